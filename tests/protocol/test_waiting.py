"""Waiting for tasks: an idle worker notices what it was told of, whatever goes wrong while it looks."""

from __future__ import annotations

import errno
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from fsqueue import FsqueueError, LeasedTask, Queue
from fsqueue.clock import ManualClock
from fsqueue.protocol.waiting import BELL_S, IdlePoller
from tests.concurrency.trapped import Call, Count, Trapped
from tests.support import QueueFactory

LEASE_MS = 5_000


class FailFrom(Count):
    """A number of steps in a row fail, from one on."""

    def __init__(self, number: int, code: int, times: int) -> None:
        super().__init__(lambda step, args: step not in ("close", "unlock"))
        self.number, self.code, self.times = number, code, times

    def at(self, number: int, step: str, call: Call, *args: Any) -> Any:
        if self.number <= number < self.number + self.times:
            raise OSError(self.code, "injected")
        return call(*args)


def comes(queue: Queue, clock: ManualClock) -> None:
    """Another process inserts a task, and rings."""
    queue.insert("new")


def comes_into_another_generation(queue: Queue, clock: ManualClock) -> None:
    """The queue is purged, and a task inserted after that."""
    queue.purge()
    queue.insert("new")


def comes_due(queue: Queue, clock: ManualClock) -> None:
    """The delay of the task that is in the queue is over."""
    clock.advance(100)


def lease_runs_out(queue: Queue, clock: ManualClock) -> None:
    """Nobody rings for that, either."""
    clock.advance(1000)


@pytest.mark.once
@pytest.mark.parametrize(
    ("code", "times"), [(errno.ENOSPC, 1), (errno.EIO, 10**9)], ids=["no room at a step", "errors from a step on"]
)
@pytest.mark.parametrize("event", [comes, comes_into_another_generation, comes_due, lease_runs_out])
def test_an_error_at_any_step_of_an_idle_look_loses_no_wake_up(
    queue_factory: QueueFactory, event: Callable[[Queue, ManualClock], None], code: int, times: int
) -> None:
    """The task that it was told of is taken by the next look that does not fail, and not after the next sweep."""
    for number in itertools.count(1):
        clock, trap = ManualClock(), FailFrom(number, code, times)
        queue = Queue(queue_factory(f"q{number}", shards=2, durability="none").path, clock=clock)
        if event is comes_due:
            queue.insert("delayed", delay_s=99)
        if event is lease_runs_out:
            queue.insert("leased")
            queue.lease(lease_s=500)
        worker = Queue(queue.path, filesystem=Trapped(str(queue.path), trap), clock=clock)
        idle_poller = IdlePoller(worker._leaser, LEASE_MS)
        for _ in range(3):
            assert idle_poller.look(1) == []
            clock.advance(1)
        event(queue, clock)
        trap.armed = True
        found: list[LeasedTask] = []
        try:
            error: Exception | None = None
            found = idle_poller.look(1)
        except (OSError, FsqueueError) as caught:
            error = caught
        trap.armed = False
        where = f"{errno.errorcode[code]} at step {number} ({trap.steps[number - 1 :][:1]}): {error!r}"
        for _ in range(3):
            if not found:
                clock.advance(BELL_S[1])
                found = idle_poller.look(1)
        assert found, f"the wake-up is lost after {where}"
        worker.close()
        queue.close()
        if len(trap.steps) < number:
            assert number > 5
            break
