"""A worker is killed with SIGKILL at each of its steps in turn; others go on at once, with what the kernel has
taken back from it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

import pytest

from fsqueue import Queue
from tests.concurrency.books import check_drained, clock_of_later, drain
from tests.concurrency.processes import children
from tests.concurrency.trapped import DieAt, trapped
from tests.levels import how_many

QueueFactory = Callable[..., Queue]
STRIDE = how_many(7, 1)
"""A long life is ended at each seventh step in the gate. (tests/simulation ends each verb at each of its calls.)"""


def whole_life(queue: Queue) -> None:
    """Every verb of a worker, to the end of two batches."""
    tasks = queue.lease(4)
    queue.renew(tasks)
    tasks[0].fail("once", delay_s=0)
    tasks[1].release()
    tasks[2].bury("hopeless")
    tasks[3].complete({"a": "result"})
    while tasks := queue.lease(2):
        queue.complete(tasks)


def by_poll(queue: Queue) -> None:
    for task in queue.poll():
        task.complete()


@pytest.mark.parametrize("life", [whole_life, by_poll])
def test_killed_at_every_step(queue_factory: QueueFactory, life: Callable[[Queue], None]) -> None:
    """To the last step of the life: each task has one outcome, is counted once, and nothing is left over."""
    step, stride = 1, STRIDE
    while True:
        queue = queue_factory(f"q{step}", max_attempts=None, shards=2, durability="none" if step % 2 else "strict")
        queue.insert_many([f"t{index}" for index in range(4)], batch_tasks=2)

        def live(queue: Queue = queue, step: int = step) -> None:
            trap = DieAt(step)
            mine = trapped(queue, trap)
            trap.armed = True
            life(mine)

        with children((live,)) as [child]:
            status = child.wait()
        assert status in (0, -signal.SIGKILL), child.report()
        before = queue.status()
        assert before.inserted == 4, f"step {step}: {before}"
        queue.gc()
        later = Queue(queue.path, clock=clock_of_later())
        drain(later)
        completed, dead = check_drained(later)
        assert len(completed) + len(dead) == 4, f"step {step}"
        if status == 0:
            break
        step += stride
        stride = STRIDE + step // 40  # the life has some hundred steps, of which the first are the most varied
    assert step > 60


def test_an_inserter_killed_at_every_step(queue_factory: QueueFactory) -> None:
    """Of a batch all tasks are there, or none; and a repeated insert is not hindered."""
    step = 1
    while True:
        queue = queue_factory(f"q{step}", shards=2)

        def live(queue: Queue = queue, step: int = step) -> None:
            trap = DieAt(step)
            mine = trapped(queue, trap)
            trap.armed = True
            mine.insert_many(["a", "b", "c"], batch_tasks=3)

        with children((live,)) as [child]:
            status = child.wait()
        there = sorted(info.payload for info in queue.tasks())
        if queue.settings.batch_tasks_max > 1:
            assert there in ([], ["a", "b", "c"]), f"step {step}"
        assert queue.status().inserted == len(there)
        queue.insert_many(["d", "e"], batch_tasks=2)
        assert sorted(drain(queue)) == [*there, "d", "e"]
        check_drained(queue, staged_leftovers=3)
        if status == 0:
            assert there == ["a", "b", "c"]
            break
        step += STRIDE
    assert step > 10


@pytest.mark.once
def test_a_retry_of_completed_tasks_killed_at_every_step(queue_factory: QueueFactory) -> None:
    """Each is inserted again once, by the killed process or by the one that repeats the call."""
    step = 1 - STRIDE
    while True:
        step += STRIDE
        queue = queue_factory(f"q{step}", shards=1)
        queue.insert_many(["a", "b", "c", "d"], batch_tasks=2)
        drain(queue)

        def live(queue: Queue = queue, step: int = step) -> None:
            trap = DieAt(step)
            mine = trapped(queue, trap)
            trap.armed = True
            mine.retry_completed()

        with children((live,)) as [child]:
            status = child.wait()
        report = Queue(queue.path).retry_completed()
        assert (report.retried + report.repeated, report.unkept) == (4, 0), f"step {step}"
        assert sorted(drain(queue)) == ["a", "b", "c", "d"], f"step {step}"
        check_drained(queue, staged_leftovers=3)
        if status == 0:
            assert report.retried == 0
            break
    assert step > 20


def pauses(queue: Queue) -> None:
    queue.pause("killed")


def resumes(queue: Queue) -> None:
    queue.resume()


def sets(queue: Queue) -> None:
    queue.change_settings(max_attempts=7, lease_s=70)


@pytest.mark.once
@pytest.mark.parametrize("change", [pauses, resumes, sets])
def test_a_change_of_the_queue_killed_at_every_step(
    queue_factory: QueueFactory, change: Callable[[Queue], None]
) -> None:
    """It is made, or not; to repeat it makes it, and the queue goes on."""
    step = 0
    while True:
        step += 1
        queue = queue_factory(f"q{step}", shards=2)
        queue.insert_many(["a", "b"])
        if change is resumes:
            queue.pause()

        def live(queue: Queue = queue, step: int = step) -> None:
            trap = DieAt(step)
            mine = trapped(queue, trap)
            trap.armed = True
            change(mine)

        with children((live,)) as [child]:
            status = child.wait()
        found = Queue(queue.path)
        assert found.settings.lease_s in ((600, 70) if change is sets else (600,)), f"step {step}"
        change(queue)
        found = Queue(queue.path)
        assert (found.paused is not None, found.settings.max_attempts) == (change is pauses, 7 if change is sets else 5)
        queue.resume()
        assert sorted(drain(queue)) == ["a", "b"]
        check_drained(queue)
        if status == 0:
            break
    assert step > 5
