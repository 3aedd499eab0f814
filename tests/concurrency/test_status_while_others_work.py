"""The numbers of a status add up at every moment, while others drain, fail and are killed."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from fsqueue import LeaseLost, Queue
from tests.concurrency.books import check_drained
from tests.concurrency.processes import children
from tests.waiting import PATIENCE_S, until

QueueFactory = Callable[..., Queue]
TASKS = 300
LEASE_S = 0.3
"""So short that the tasks of the worker that is killed come back soon. Others may lose theirs, too."""


def work(queue: Queue, seed: int) -> int:
    mine, dice = Queue(queue.path), random.Random(seed)
    while not mine.is_drained():
        tasks = mine.lease(dice.choice([1, 2, 10]), lease_s=LEASE_S, wait_s=0.05)
        try:
            if tasks and dice.random() < 0.2:
                tasks.pop().fail("no", delay_s=0)
            mine.complete(tasks)
        except LeaseLost:
            pass
    return 1


@pytest.mark.parametrize("shards", [1, 64])
@pytest.mark.parametrize("batch_tasks", [1, 3])
def test_a_status_never_invents_or_forgets_a_task(queue_factory: QueueFactory, shards: int, batch_tasks: int) -> None:
    queue = queue_factory(shards=shards, max_attempts=3, durability="none")
    queue.insert_many(range(TASKS), batch_tasks=batch_tasks)
    looks, completed = 0, 0
    with children(*((work, queue, seed) for seed in range(5))) as workers:

        def look() -> bool:
            nonlocal looks, completed
            status = queue.status()
            looks += 1
            assert status.inserted == TASKS, f"look {looks}: {status}"
            assert status.completed >= completed, f"look {looks}: {status}, but {completed} were completed before"
            completed = status.completed
            if looks == 3:
                workers[0].kill()
            return status.drained and looks >= 3

        until(look, "the queue to be drained", PATIENCE_S)
        for worker in workers[1:]:
            worker.result()
    done, dead = check_drained(queue)
    assert len(done) + len(dead) == TASKS


def test_a_listing_of_tasks_shows_each_task_once_while_others_work(queue: Queue) -> None:
    queue.insert_many(range(TASKS), batch_tasks=3)
    with children(*((work, queue, seed) for seed in range(3))) as workers:
        for _ in range(20):
            found = [info.id for info in queue.tasks()]
            assert len(found) == len(set(found))
            assert len(queue.peek(5)) <= 5
        for worker in workers:
            worker.result()
    assert len(list(queue.tasks("completed"))) + queue.status().dead == TASKS
