""" "Drained" over several queues: queues that feed each other always have a task, and no look may miss it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

import fsqueue
from fsqueue import LeasedTask, Queue
from fsqueue.storage import listing
from fsqueue.views.inspection import DrainCheck
from fsqueue.worker import Worker
from tests.concurrency.processes import children
from tests.levels import how_many
from tests.waiting import until

QueueFactory = Callable[..., Queue]

LOOKS = how_many(400, 4_000)
"""Looks of each test. By hand 50,000 were made, in four kinds of queues: none said drained."""


def pass_on(queues: list[Queue], held: LeasedTask) -> LeasedTask:
    """Insert the next task into the next queue, then complete this one: there is one at every moment."""
    here = next(number for number, queue in enumerate(queues) if queue is held.queue)
    queues[(here + 1) % len(queues)].insert(held.payload + 1)
    held.complete()
    return taken(queues)


def taken(queues: list[Queue]) -> LeasedTask:
    """Lease the one task that there is."""
    return until(lambda: fsqueue.lease(queues), "the task that always is there")[0]


@pytest.mark.parametrize("batch_tasks", [1, 1024])
@pytest.mark.parametrize("is_leased", [True, False])
@pytest.mark.parametrize("queues", [2, 3])
def test_a_task_that_is_always_in_a_queue_that_is_not_looked_at_is_not_missed(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, queues: int, batch_tasks: int, is_leased: bool
) -> None:
    several = [queue_factory(name, shards=1, batch_tasks_max=batch_tasks) for name in "abc"[:queues]]
    theirs = [Queue(queue.path) for queue in several]
    theirs[-1].insert(0)
    looked = 0
    listed = listing.shards
    held: list[LeasedTask] = taken_if(theirs, is_leased)

    def look_after_it_has_left(store: Any) -> list[str]:
        """List a queue once the task is in another one."""
        nonlocal looked, held
        looked += 1
        monkeypatch.setattr(listing, "shards", listed)
        task = held[0] if held else taken(theirs)
        while str(task.queue.path) == str(store.path):
            theirs[(theirs.index(task.queue) + 1) % len(theirs)].insert(task.payload + 1)
            task.complete()
            task = taken(theirs)
        held = [task]
        if not is_leased:
            task.release()
            held = []
        monkeypatch.setattr(listing, "shards", look_after_it_has_left)
        return listed(store)

    monkeypatch.setattr(listing, "shards", look_after_it_has_left)
    check = DrainCheck(*(queue.store for queue in several))
    for _ in range(5):
        assert not check()
    assert looked > 5 * queues, "each look looked at all queues"
    monkeypatch.undo()
    task = held[0] if held else taken(theirs)
    task.complete()
    until(check, "drained")


def taken_if(queues: list[Queue], is_leased: bool) -> list[LeasedTask]:
    return [taken(queues)] if is_leased else []


def hop(queues: list[Queue], stop: Any) -> int:
    """Pass tasks on from queue to queue."""
    mine = [Queue(queue.path) for queue in queues]
    while not stop.exists():
        for number, queue in enumerate(mine):
            for task in queue.lease():
                mine[(number + 1) % len(mine)].insert(task.payload + 1)
                task.complete()
    return 1


@pytest.mark.parametrize("batch_tasks", [1, 1024])
@pytest.mark.parametrize("queues", [1, 2, 3])
def test_queues_that_feed_each_other_are_never_called_drained(
    queue_factory: QueueFactory, tmp_path: Any, queues: int, batch_tasks: int
) -> None:
    several = [
        queue_factory(name, batch_tasks_max=batch_tasks, durability="none", keep_history=False)
        for name in "abc"[:queues]
    ]
    several[0].insert(0)
    stop = tmp_path / "stop"
    with children(*((hop, several, stop) for _ in range(2))) as workers:
        check = DrainCheck(*(queue.store for queue in several))
        for look in range(LOOKS):
            assert not check(), f"look {look}"
        stop.touch()
        for worker in workers:
            worker.result()
    for queue in several:
        queue.complete(queue.lease(9))
    until(check, "drained")
    assert all(status.drained for status in fsqueue.wait(several, timeout_s=60))


def test_a_worker_of_queues_that_feed_each_other_does_all_tasks(queue_factory: QueueFactory) -> None:
    """Each task inserts the next into the other queue, 40 times; the worker ends after the last one."""
    a, b = (queue_factory(name, shards=1) for name in "ab")
    a.insert(0)
    done: list[int] = []
    other = threading.local()

    def handle(payload: int) -> None:
        if not hasattr(other, "queues"):
            other.queues = [Queue(a.path), Queue(b.path)]
        if payload < 40:
            other.queues[(payload + 1) % 2].insert(payload + 1)
        done.append(payload)

    report = Worker([a, b], handle, threads=1, prefetch=1).run()
    assert report.ended == "drained"
    assert done == [*range(41)]
