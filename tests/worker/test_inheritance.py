"""What commands and children inherit of the worker, and of what started it: three descriptors, and no more."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsqueue import Queue, Worker
from tests.worker import tasks
from tests.worker.support import drained

pytestmark = pytest.mark.once


@pytest.fixture
def foreign(tmp_path: Path) -> Iterator[int]:
    """A descriptor that programs inherit, as a shell's `9>lock` is."""
    fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    os.set_inheritable(fd, True)
    yield fd
    os.close(fd)


@pytest.mark.usefixtures("foreign")
def test_a_command_inherits_its_standard_streams_only(queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(4))
    command = ["sh", "-c", 'ls -l /proc/self/fd >"$1/list.$FSQUEUE_TASK_ID"', "sh", str(tmp_path)]
    assert Worker(queue, command=command, processes=2, keep_output=tmp_path / "kept").run() == drained(completed=4)
    lists = [path.read_text().splitlines()[1:] for path in tmp_path.glob("list.*")]
    assert len(lists) == 4
    for listed in lists:
        numbers = [int(line.split(" -> ")[0].split()[-1]) for line in listed]
        assert [number for number in numbers if number > 3] == []
        assert all("/proc/" in line for line in listed if " 3 -> " in line)  # what ls opened itself


@pytest.mark.usefixtures("foreign")
def test_what_a_function_starts_inherits_its_standard_streams_only(queue: Queue) -> None:
    queue.insert(1)
    assert Worker(queue, tasks.descriptors).run() == drained(completed=1)
    assert [task.result for task in queue.tasks("completed")] == [[0, 1, 2, 3]]  # 3: what ls opened itself


def test_a_worker_within_a_command_hands_on_no_result_of_the_outer_one(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSQUEUE_RESULT", str(tmp_path / "outer"))
    monkeypatch.setenv("FSQUEUE_PAYLOAD", "outer")
    queue.insert(2)
    script = 'echo 3 >"$FSQUEUE_RESULT"; [ "$FSQUEUE_PAYLOAD" = 2 ]'
    assert Worker(queue, command=["sh", "-c", script]).run() == drained(completed=1)
    assert not (tmp_path / "outer").exists()
    assert [task.result for task in queue.tasks("completed")] == [3]
