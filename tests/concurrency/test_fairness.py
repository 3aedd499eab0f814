"""Eight processes drain one small queue: nobody starves, and nobody is told "empty" while there are tasks."""

from __future__ import annotations

import multiprocessing
import os
import time
from multiprocessing.synchronize import Barrier
from typing import Any

import pytest

from fsqueue import Queue
from tests.concurrency.books import check_drained
from tests.concurrency.processes import together
from tests.levels import how_many
from tests.waiting import PATIENCE_S

WORKERS, TASKS = 8, how_many(200, 1000)


def work(queue: Queue, n: int, all_are_there: Barrier) -> dict[str, Any]:
    """Lease and complete until told "empty"; how many tasks, and when which lease call began and came back empty."""
    mine = Queue(queue.path)
    all_are_there.wait(PATIENCE_S)
    done, began, empty = 0, [], []
    while True:
        start = time.monotonic()
        tasks = mine.lease(n, lease_s=100)
        if not tasks:
            empty.append(time.monotonic())
            return {"done": done, "began": began, "empty": empty}
        began.append(start)
        mine.complete(tasks)
        done += len(tasks)
        os.sched_yield()


def drain_together(queue: Queue, n: int = 1) -> list[dict[str, Any]]:
    all_are_there = multiprocessing.get_context("fork").Barrier(WORKERS)
    return together(*((work, queue, n, all_are_there) for _ in range(WORKERS)))


def are_false_empties(found: list[dict[str, Any]]) -> bool:
    """Whether an empty answer came back before the call began in which another worker still got a task."""
    last = max(began for one in found for began in one["began"])
    return any(at < last for one in found for at in one["empty"])


def in_step(queue: Queue, all_are_there: Barrier) -> list[int]:
    """Lease one task whenever all others do, at the same moment, until nobody can get one; how many each time."""
    mine, got = Queue(queue.path), []
    for _ in range(TASKS // WORKERS + 1):
        all_are_there.wait(PATIENCE_S)
        tasks = mine.lease(lease_s=100)
        all_are_there.wait(PATIENCE_S)  # what one gives back, no other gets in the same round
        mine.complete(tasks)
        got.append(len(tasks))
    return got


@pytest.mark.parametrize("bulk", [True, False])
def test_no_worker_starves(queue: Queue, bulk: bool) -> None:
    """All ask at the same moment, again and again, and each gets a task each time: nobody is passed by."""
    queue.insert_many(range(TASKS), batch_tasks=None if bulk else 1)
    all_are_there = multiprocessing.get_context("fork").Barrier(WORKERS)
    found = together(*((in_step, queue, all_are_there) for _ in range(WORKERS)))
    assert found == [[1] * (TASKS // WORKERS) + [0]] * WORKERS
    assert len(check_drained(queue)[0]) == TASKS


@pytest.mark.parametrize("n", [1, 3, 25])
def test_nobody_is_told_empty_while_there_are_tasks(queue: Queue, n: int) -> None:
    """At full speed, where the workers meet in the same batches all the time."""
    queue.insert_many(range(TASKS))
    found = drain_together(queue, n=n)
    assert sum(one["done"] for one in found) == TASKS
    assert not are_false_empties(found)


@pytest.mark.batched
def test_nobody_is_told_empty_when_all_meet_in_one_batch(queue: Queue) -> None:
    rounds = []
    for _ in range(5):  # a busy machine may keep a worker from running; a queue that keeps it out does so every time
        queue.insert_many(range(TASKS), batch_tasks=TASKS)
        found = drain_together(queue)
        assert sum(one["done"] for one in found) == TASKS
        assert not are_false_empties(found)
        done = sorted(one["done"] for one in found)
        if done[-1] <= 4 * done[0]:
            return
        rounds.append(done)
    pytest.fail(f"never fair: {rounds}")


def test_what_comes_back_is_found_at_once_by_all(queue: Queue) -> None:
    """Released tasks are there for everybody, whatever a worker remembers of the batch."""
    queue.insert_many(range(40), batch_tasks=1)
    other = Queue(queue.path)
    mine = queue.lease(20)
    theirs = other.lease(20)
    assert len(mine) == len(theirs) == 20
    assert queue.lease() == other.lease() == []
    for task in mine:
        task.release()
        [again] = other.lease()
        assert again.id == task.id
    for task in theirs:
        task.fail("no", delay_s=0)
        [again] = queue.lease(strict=True)
        assert again.id == task.id
    assert queue.release_all() == 40
    assert len(other.lease(40)) == 40


@pytest.mark.batched
def test_what_is_given_back_is_found_although_another_has_moved_the_file(queue: Queue) -> None:
    """Who gives a task back may remember an earlier name of the file than the one it has by now."""
    queue.insert_many([1, 2, 3], batch_tasks=3)
    other = Queue(queue.path)
    [first], [second], [third] = queue.lease(), other.lease(), other.lease()
    first.release()
    assert [task.id for task in Queue(queue.path).lease(3)] == [first.id]
    second.fail("no", delay_s=0)
    assert [task.id for task in Queue(queue.path).lease(3)] == [second.id]
    assert queue.release_all(worker="nobody") == 0
    third.release()
    assert [task.id for task in queue.lease(3)] == [third.id]
