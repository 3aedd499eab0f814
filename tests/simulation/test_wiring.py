"""What else a test process does has no part in a story: other threads, and what is left of earlier worlds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import pytest

from fsqueue import Queue
from fsqueue.filesystem import resources
from fsqueue.storage.listening import Doorbell
from tests.simulation.faults import QUEUE
from tests.simulation.kernel import Process
from tests.simulation.retelling import record, what_happened
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.stories import Story, tell
from tests.simulation.wiring import SimFilesystem, undisturbed

pytestmark = pytest.mark.once
CALM = SCENARIOS["storm-local"]


def test_a_thread_that_an_earlier_test_has_left_takes_no_part_in_a_story(tmp_path: Path) -> None:
    """It works on its own queue meanwhile, on the real disk, and no seed means another story by it."""
    queue = Queue.create(tmp_path / "q")
    with ThreadPoolExecutor(1) as other_thread:
        used = []

        def use() -> tuple[list[str], int, list[object]]:
            task_id = queue.insert("real").id
            queue.purge()
            assert queue.store.doorbell.read() != b""
            again = Queue(queue.path)
            again.insert("also real")
            return [task_id], again.status().waiting, [task.payload for task in again.lease(9)]

        def ring(doorbell: Doorbell) -> None:
            original(doorbell)
            if not used:
                used.append(None)
                used.append(other_thread.submit(use).result(timeout=60))

        original = Doorbell.ring
        with undisturbed():
            alone = what_happened(tell(CALM, 500))
            for telling in (tell, record):
                used.clear()
                with mock.patch.object(Doorbell, "ring", ring):
                    assert what_happened(telling(CALM, 500)) == alone
                assert used[1][1:] == (1, ["also real"])


def test_closing_a_file_of_an_earlier_world_leaves_the_record_of_this_one_alone() -> None:
    """Descriptors of two worlds have the same numbers. An interrupted verb would not close what is not recorded."""
    with undisturbed():
        earlier, present = (_opened(Story(CALM, seed)) for seed in (1, 2))
        assert earlier[1] == present[1]
        earlier[0].close(earlier[1])
        assert {fd: entry.by for fd, entry in resources.this_thread.owned.fds.items()} == {present[1]: present[0]}
        present[0].close(present[1])
        assert resources.this_thread.owned.fds == {}


def _opened(story: Story) -> tuple[SimFilesystem, int]:
    actor = story.actor("one")
    assert isinstance(actor.persona.process, Process)
    fs = actor.persona.filesystem(QUEUE)
    resources.this_thread.owned.fds.clear()
    return fs, fs._open(f"{QUEUE}/queue.jsonl", actor.persona.process.O_RDWR)
