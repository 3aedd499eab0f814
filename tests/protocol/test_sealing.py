"""Sealing: a batch takes no more inserts, whatever its task file's name says, and its record can be believed alone."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue
from fsqueue.clock import ManualClock
from fsqueue.format import movements, names
from fsqueue.format.names import Batch
from fsqueue.protocol import sealing
from fsqueue.protocol.finishing import LINGER_MS
from fsqueue.storage import listing, record_times
from fsqueue.storage.locked_batch import LockedBatch
from tests import record_lines
from tests.concurrency.trapped import Trapped
from tests.support import base_of, crashes, drain, files_below, leftovers, log_files, task_file_names

pytestmark = pytest.mark.once  # of open batches

LINGER_S = LINGER_MS / 1000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: ManualClock) -> Queue:
    """A queue with a clock of its own."""
    Queue.create(tmp_path / "q", shards=2, backoff_s=(0, 0), max_attempts=2)
    return Queue(tmp_path / "q", clock=clock)


def batch_of(queue: Queue) -> Batch:
    [name] = task_file_names(queue)
    return name.batch


def seal(queue: Queue) -> None:
    """Seal the only batch, as another process does."""
    other = Queue(queue.path, clock=queue.store.clock)
    with LockedBatch(other.store, batch_of(queue)) as locked:
        sealing.seal(locked, record_times.next_at(locked))


def last_record(queue: Queue) -> tuple[int, dict[str, Any]]:
    """Where the last record of the only log stands, and what it says."""
    [path] = log_files(queue)
    content = path.read_bytes()
    start = content.rindex(b"\n", 0, -1) + 1
    record = movements.parse(content[start:-1])
    assert record is not None
    return start, record


def waiting(queue: Queue) -> int | None:
    """What a reader of the last record alone knows."""
    return listing.waiting_if_sealed(queue.store, batch_of(queue))


def test_a_seal_says_where_it_stands_and_how_many_tasks_wait(queue: Queue) -> None:
    for number in range(3):
        queue.insert(number)
    name = task_file_names(queue)[0]
    seal(queue)
    start, record = last_record(queue)
    assert record == {
        "op": "seal", "at": record["at"], "here": start, "tasks": 3, "waiting": 3,
        "from": str(name), "name": str(name.sealed(3)),
    }  # fmt: skip
    assert task_file_names(queue) == [name.sealed(3)]
    assert waiting(queue) == 3


def complete(queue: Queue) -> None:
    queue.lease()[0].complete()


TOUCHED: dict[str, Callable[[Queue], object]] = {
    "a task is delayed": lambda queue: queue.insert(3, delay_s=100),
    "a task is leased": lambda queue: queue.lease(),
    "a task is completed": complete,
    "a task is dead": lambda queue: queue.lease()[0].bury("no"),
    "a task was given back": lambda queue: queue.lease()[0].release(),
    "a task has failed": lambda queue: queue.lease()[0].fail("no"),
    "a task is cancelled": lambda queue: queue.cancel(next(iter(queue.tasks())).id),
}


@pytest.mark.parametrize("touched", TOUCHED)
def test_a_seal_of_a_batch_that_was_worked_on_does_not_count_it(queue: Queue, touched: str) -> None:
    queue.insert(1)
    queue.insert(2)
    TOUCHED[touched](queue)
    before = queue.status()
    seal(queue)
    assert "waiting" not in last_record(queue)[1]
    assert waiting(queue) is None
    assert Queue(queue.path, clock=queue.store.clock).status() == before


@pytest.mark.parametrize("touched", TOUCHED)
def test_a_seal_that_others_have_written_behind_is_not_believed(queue: Queue, touched: str) -> None:
    queue.insert(1)
    queue.insert(2)
    seal(queue)
    if touched == "a task is delayed":
        return
    TOUCHED[touched](queue)
    assert waiting(queue) is None


@pytest.mark.parametrize("change", ["moved", "torn", "torn behind", "without waiting", "of another op", "late"])
def test_a_seal_that_is_not_what_it_says_is_not_believed(queue: Queue, change: str) -> None:
    queue.insert(1)
    queue.insert(2)
    seal(queue)
    [path] = log_files(queue)
    content = path.read_bytes()
    start, _ = last_record(queue)
    line = content[start:]
    path.write_bytes(
        {
            "moved": content[:start] + b"~\n" + line,
            "torn": content[:-1],
            "torn behind": content + b'{"op":"lease"',
            "without waiting": content[:start] + line.replace(b"waiting", b"anything"),
            "of another op": content[:start] + line.replace(b'"seal"', b'"move"'),
            "late": content[:start] + record_lines.insert(1, "late", 2, b'{"payload":3}\n') + line,
        }[change]
    )
    assert waiting(queue) is None
    tasks = {"late": 3}.get(change, 2)
    assert Queue(queue.path).status().waiting == tasks


def test_a_log_is_synced_before_its_seal(queue: Queue) -> None:
    """A reader that counts by the seal alone must not count what a power loss has taken."""
    queue.insert(1)
    steps: list[str] = []

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step in ("write", "fsync") and "/movements/" in os.readlink(f"/proc/self/fd/{args[0]}"):
            steps.append(step)
        return call(*args)

    other = Queue(queue.path, filesystem=Trapped(str(queue.path), trap), clock=queue.store.clock)
    with LockedBatch(other.store, batch_of(queue)) as locked:
        sealing.seal(locked, record_times.next_at(locked))
    assert steps == ["fsync", "write"]


def test_a_sealed_batch_ends_with_its_last_task(queue: Queue) -> None:
    queue.insert(1)
    seal(queue)
    queue.lease()[0].complete()
    assert leftovers(queue) == []


def test_a_batch_that_is_sealed_and_done_is_ended_by_the_inserter_that_meets_it(queue: Queue) -> None:
    queue.insert(1)
    queue.lease()[0].complete()
    other = Queue(queue.path, clock=queue.store.clock)
    other.store.domain = "another boot"
    other.insert(2)
    assert len(task_file_names(queue)) == len(log_files(queue)) == 1
    assert [task.payload for task in queue.lease(9)] == [2]


def test_no_name_is_given_that_no_reader_knows(queue: Queue) -> None:
    """A batch without a task is sealed under the name that it has, and ended by whoever meets it."""
    queue.insert(1)
    [name] = task_file_names(queue)
    [path] = log_files(queue)
    path.write_bytes(path.read_bytes().partition(b"\n")[0] + b"\n")
    seal(queue)
    assert task_file_names(queue) == [name]
    assert names.parse_task_file(str(name.sealed(0))) is None
    assert Queue(queue.path, clock=queue.store.clock).lease() == []
    assert leftovers(queue) == []


def test_a_batch_whose_task_file_is_gone_is_sealed_before_its_tasks_are_buried(
    queue: Queue, clock: ManualClock
) -> None:
    """Else a process that knows it would insert into a log that leads no worker to its tasks."""
    queue.insert("lost")
    [name] = task_file_names(queue)
    os.unlink(queue.store.layout.task_file(name))
    other = Queue(queue.path, clock=clock)
    other.gc()
    assert [letter.payload for letter in other.dead()] == ["lost"]
    second = queue.insert("second")
    assert second.id[:32] != name.batch
    assert [task.payload for task in other.lease(9)] == ["second"]


# -- death at any step --------------------------------------------------------------------------------


def first(queue: Queue) -> None:
    queue.insert("new")


def into_a_full_batch(queue: Queue) -> None:
    for number in range(3):
        queue.insert(f"new {number}")


def of_another_boot(queue: Queue) -> None:
    queue.store.domain = "another boot"
    queue.insert("new")


def delayed(queue: Queue) -> None:
    queue.insert("new", delay_s=60)


def and_sealed(queue: Queue) -> None:
    queue.insert("new")
    for name in task_file_names(queue):
        with LockedBatch(queue.store, name.batch, create=True) as locked:
            if locked.replay_state.takes_inserts:
                sealing.seal(locked, record_times.next_at(locked))


@pytest.mark.parametrize("is_there", [False, True])
@pytest.mark.parametrize("act", [first, into_a_full_batch, of_another_boot, delayed, and_sealed])
def test_an_inserter_that_dies_at_any_step_leaves_a_queue_that_can_be_worked_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, act: Callable[[Queue], object], is_there: bool
) -> None:
    """Each task is there whole, or not at all; and nothing stays behind."""
    clock = ManualClock()

    def build(number: int) -> Queue:
        Queue.create(tmp_path / f"{number}", shards=2, batch_tasks_max=2, backoff_s=(0, 0))
        queue = Queue(tmp_path / f"{number}", clock=clock)
        if is_there:
            queue.insert("old")
            queue.close()
        return queue

    died = 0
    for where, queue in crashes(build, act, clock):
        died += 1
        queue.insert("after")
        payloads: list[Any] = []

        def take(task: Any, payloads: list[Any] = payloads) -> None:
            payloads.append(task.payload)
            task.complete()

        for _ in range(3):
            drain(queue, clock, take)
            clock.advance(100)
        assert payloads.count("after") == 1, where
        assert payloads.count("old") == is_there, where
        assert len(payloads) == len(set(payloads)), where
        assert {one for one in payloads if one not in ("after", "old")} <= {"new", "new 0", "new 1", "new 2"}, where
        assert queue.lease() == [], where
        left = [path for path in leftovers(queue) if not path.startswith("staging/")]
        assert left == [], where
        assert list(queue.fsck()) == [] or files_below(base_of(queue) / "staging"), where
    assert died >= 5
