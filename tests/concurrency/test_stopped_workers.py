"""A worker that is stopped (SIGSTOP, a suspended job) inside a critical section holds its lock without dying:
others go on.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from fsqueue import LeaseLost, LockTimeout, Queue
from fsqueue.clock import Clock, ManualClock
from tests.concurrency.books import check_drained, clock_of_later, drain
from tests.concurrency.processes import Child, children, together
from tests.concurrency.trapped import trapped

QueueFactory = Callable[..., Queue]


class StopHere:
    """Stops the process when it has locked a file whose path has `part` in it; only once, and when armed."""

    def __init__(self, part: str) -> None:
        self.part, self.armed = part, False

    def __call__(self, step: str, call: Callable[..., Any], *args: Any) -> Any:
        result = call(*args)
        if self.armed and step == "try_lock" and result and self.part in os.readlink(f"/proc/self/fd/{args[0]}"):
            self.armed = False
            os.kill(os.getpid(), signal.SIGSTOP)
        return result


@contextmanager
def stopped_in(queue: Queue, part: str, act: Callable[[Queue], object]) -> Iterator[Child]:
    """A child that does `act` and is stopped inside the lock of a file; it goes on, to its end, after the block."""

    def live() -> str:
        trap = StopHere(part)
        mine = trapped(queue, trap)
        trap.armed = True
        try:
            act(mine)
        except LeaseLost as error:
            return error.reason
        return "done"

    with children((live,)) as [child]:
        child.wait_stopped()
        yield child
        child.signal(signal.SIGCONT)
        child.result()


class HastyClock(Clock):
    """Time to be patient passes a hundred times faster."""

    def monotonic(self) -> float:
        return super().monotonic() * 100

    def sleep(self, seconds: float) -> None:
        super().sleep(seconds / 100)


def test_others_pass_a_stopped_workers_batch_by(queue: Queue) -> None:
    queue.insert_many(range(30), batch_tasks=3)
    with stopped_in(queue, "movements/", lambda mine: mine.lease()) as child:

        def work() -> int:
            clock = ManualClock(time.time())
            mine, done = Queue(queue.path, clock=clock), 0
            for _ in range(100):
                begin = clock.monotonic()
                tasks = mine.lease(2, lease_s=3600)
                waited_s = clock.monotonic() - begin
                if not tasks:
                    assert waited_s > 1.5  # "empty" is not said at once: the batch is waited for
                    return done
                assert waited_s < 1
                mine.complete(tasks)
                done += len(tasks)
            return -1

        batch = queue.settings.batch_tasks_max
        assert sum(together((work,), (work,), (work,))) == 30 - min(3, batch)
        assert queue.status().waiting == min(3, batch)
        child.signal(signal.SIGCONT)
        assert child.result() == "done"
    assert queue.release_all() == 1
    drain(queue)
    assert len(check_drained(queue)[0]) == 30


def test_completing_in_other_batches_is_not_held_up(queue: Queue) -> None:
    queue.insert_many(range(40), batch_tasks=1)
    clock = ManualClock(time.time())
    mine = Queue(queue.path, clock=clock)
    tasks = mine.lease(40, lease_s=3600)
    with stopped_in(queue, "movements/", lambda other: other.attach(tasks[0].token).renew()):
        begin = clock.monotonic()
        mine.complete(tasks[1:20])
        mine.renew(tasks[20:])
        mine.release(tasks[30:])
        for task in tasks[20:30]:
            task.complete()
        assert clock.monotonic() - begin < 2
    tasks[0].complete()
    assert queue.status().completed == 30


def test_who_waits_in_vain_is_told_whom_the_log_saw_last(queue: Queue) -> None:
    queue.insert("task")
    [task] = queue.lease()
    with stopped_in(queue, "movements/", lambda mine: mine.attach(task.token).renew()):
        clock = ManualClock(time.time())
        hasty = Queue(queue.path, clock=clock)
        with pytest.raises(LockTimeout, match=str(os.getpid())):
            hasty.attach(task.token).complete()
        with pytest.raises(LockTimeout):
            hasty.release_all()
        begin = clock.monotonic()
        with pytest.raises(LockTimeout):
            hasty.release_all(offline=True)
        assert hasty.gc().busy <= 1
        assert clock.monotonic() - begin < 35
        assert queue.status().leased == 1
    task.complete()
    assert queue.status().completed == 1


@pytest.mark.parametrize("part", ["completions/", "history/", "dead/"])
def test_finishing_does_not_wait_long_for_a_stopped_worker(queue_factory: QueueFactory, part: str) -> None:
    """Stopped inside the lock of a file that many batches share. What is done counts, though it is cleared away
    later.
    """
    queue = queue_factory(shards=1, max_attempts=1)
    queue.insert_many(range(6), batch_tasks=1)
    tasks = queue.lease(6)

    def end(mine: Queue, token: str) -> None:
        held = mine.attach(token)
        if part == "dead/":
            held.fail("broken")
        else:
            held.complete()

    number = queue.store.counter_number

    def act(mine: Queue) -> None:
        mine.store.counter_number = number  # the same file as the one this process counts in
        end(mine, tasks[0].token)

    with stopped_in(queue, part, act):
        clock = ManualClock(time.time())
        other = Queue(queue.path, clock=clock)
        other.store.counter_number = number
        begin = clock.monotonic()
        for task in tasks[1:]:
            end(other, task.token)
        waited_s = clock.monotonic() - begin
        assert 0 < waited_s < 8, f"5 tasks waited for {waited_s:.1f} s"
        status = queue.status()
        assert (status.inserted, status.completed if part != "dead/" else status.dead) == (6, 6)
    completed, dead = check_drained(queue)
    assert len(dead if part == "dead/" else completed) == 6


def test_a_killed_lock_holder_is_no_obstacle(queue: Queue) -> None:
    queue.insert_many(range(3), batch_tasks=3)
    with children((lambda: stop_in_lease(queue),)) as [child]:
        child.wait_stopped()
        child.kill()
        clock = ManualClock(time.time())
        begin = clock.monotonic()
        assert len(Queue(queue.path, clock=clock).lease(3)) == 3
        assert clock.monotonic() == begin


def stop_in_lease(queue: Queue) -> None:
    trap = StopHere("movements/")
    mine = trapped(queue, trap)
    trap.armed = True
    mine.lease()


def test_a_holder_stopped_past_its_leases_end_cannot_complete(queue: Queue) -> None:
    """A suspended job wakes up long after its task was done by another."""
    queue.insert("task")

    def hold() -> str:
        [task] = Queue(queue.path).lease()
        os.kill(os.getpid(), signal.SIGSTOP)
        with pytest.raises(LeaseLost):
            task.renew()
        try:
            task.complete()
        except LeaseLost:
            return "lost"
        return "completed"

    with children((hold,)) as [child]:
        child.wait_stopped()
        [task] = Queue(queue.path, clock=clock_of_later()).lease()
        task.complete()
        child.signal(signal.SIGCONT)
        assert child.result() == "lost"
    assert queue.status().completed == 1
