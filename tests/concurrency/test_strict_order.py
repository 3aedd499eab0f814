"""A strict lease beside processes that insert: no more urgent task that was reported before is passed by."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from pathlib import Path

import pytest

from fsqueue import Queue, Task
from tests.concurrency.processes import children
from tests.waiting import until

QueueFactory = Callable[..., Queue]
LEASES = 100


def insert_noise(queue: Queue, stop: Path) -> int:
    """Insert singly, all the time: the open batch is locked again and again."""
    mine = Queue(queue.path)
    while not stop.exists():
        mine.insert("noise", priority=9)
    return 1


@pytest.mark.parametrize("durability", ["none", "default"])
def test_an_open_batch_that_is_locked_for_an_instant_is_not_passed_by(
    queue_factory: QueueFactory, tmp_path: Path, durability: str
) -> None:
    queue = queue_factory(shards=1, durability=durability, max_attempts=None)
    queue.insert_many(Task("bulk", priority=5) for _ in range(LEASES))
    stop = tmp_path / "stop"
    with children((insert_noise, queue, stop)) as workers:
        until(lambda: queue.status().waiting > LEASES, "noise")
        for _ in range(LEASES):
            queue.insert("urgent", priority=0)
            (task,) = queue.lease(strict=True)
            assert task.payload == "urgent"
            task.complete()
        stop.touch()
        workers[0].result()


def insert_ever_more_urgent(queue: Queue, stop: Path, told: mmap.mmap) -> int:
    """Insert singly, each task more urgent than all before: its file is renamed each time. Tell of those reported."""
    mine = Queue(queue.path)
    for priority in range(1 << 40, 0, -1):
        if stop.exists():
            return 1
        mine.insert(priority, priority=priority)
        told[:8] = priority.to_bytes(8, "little")
    return 0


@pytest.mark.parametrize("shards", [1, 4])
def test_a_file_that_is_renamed_all_the_time_is_not_passed_by(
    queue_factory: QueueFactory, tmp_path: Path, shards: int
) -> None:
    queue = queue_factory(shards=shards, durability="none", max_attempts=None)
    queue.insert_many(Task("bulk", priority=(1 << 40) + 1) for _ in range(LEASES))
    stop, told = tmp_path / "stop", mmap.mmap(-1, 8)
    with children((insert_ever_more_urgent, queue, stop, told)) as workers:
        until(lambda: any(told[:8]), "a first insert")
        taken: set[object] = set()
        for _ in range(LEASES):
            reported = int.from_bytes(told[:8], "little")
            (task,) = queue.lease(strict=True)
            if reported not in taken:
                assert isinstance(task.priority, int)
                assert task.priority <= reported
            taken.add(task.payload)
            task.complete()
        stop.touch()
        workers[0].result()
    told.close()
