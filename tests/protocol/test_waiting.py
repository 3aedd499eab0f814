"""Waiting for tasks: an idle worker notices what it was told of, whatever goes wrong while it looks."""

from __future__ import annotations

import errno
import itertools
import signal
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from fsqueue import FsqueueError, LeasedTask, Queue
from fsqueue.clock import ManualClock
from fsqueue.protocol import waiting
from fsqueue.protocol.single_inserts import TASK_BYTES_MAX
from fsqueue.protocol.waiting import BELL_S, IdlePoller
from fsqueue.storage import listening
from tests.concurrency.trapped import Call, Count, Trapped
from tests.support import QueueFactory, Sleeps, leasing, watched_sleeps
from tests.waiting import until

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


MAKES_AVAILABLE: dict[str, Callable[[Queue, LeasedTask], object]] = {
    "insert": lambda queue, held: queue.insert("new"),
    "insert, with a key": lambda queue, held: queue.insert("new", key="a"),
    "insert, large": lambda queue, held: queue.insert("x" * TASK_BYTES_MAX),
    "insert_many": lambda queue, held: queue.insert_many(["new"]),
    "a commit": lambda queue, held: queue.insert_many(["new"], commit="seed"),
    "release": lambda queue, held: held.release(),
    "release, of several": lambda queue, held: queue.release([held]),
    "fail": lambda queue, held: held.fail("no", delay_s=0),
    "release_all": lambda queue, held: queue.release_all(),
    "retry_dead": lambda queue, held: queue.retry_dead(),
    "retry_completed": lambda queue, held: queue.retry_completed(),
    "resume": lambda queue, held: queue.resume(),
    "purge": lambda queue, held: queue.purge(),
}


@pytest.mark.once
@pytest.mark.parametrize("verb", MAKES_AVAILABLE)
def test_idle_workers_are_notified_by_whatever_gives_them_something_to_do(queue: Queue, verb: str) -> None:
    """They would find it at their next look at everything, ten minutes later."""
    clock = ManualClock()
    queue = Queue(queue.path, clock=clock)
    queue.insert_many(["dead", "completed", "held"], batch_tasks=1)
    for task in queue.lease(3):
        if task.payload == "dead":
            task.bury("no")
        elif task.payload == "completed":
            task.complete()
        else:
            held = task
    clock.advance(10)
    before = queue.store.doorbell.read()
    MAKES_AVAILABLE[verb](queue, held)
    assert queue.store.doorbell.read() != before


# -- notifications on this host ---------------------------------------------------------------------------------------

NEVER_S = (600.0, 600.0)
"""Pauses after which a test would have failed: what it finds in time, it was told of."""


def waits(queue: Queue) -> list[LeasedTask]:
    """Wait for a task, with a `Queue` of its own."""
    with Queue(queue.path) as mine:
        return mine.lease(wait_s=NEVER_S[0])


@pytest.mark.once
@pytest.mark.parametrize("is_first", [True, False])
def test_a_task_inserted_on_this_host_wakes_an_idle_worker(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    monkeypatch.setattr(waiting, "BELL_S", NEVER_S)
    if not is_first:
        queue.insert("before")
        queue.complete(queue.lease(1))
    with leasing(partial(waits, queue)) as found:
        queue.insert("x")
    assert found == ["x"]


@pytest.mark.once
def test_a_task_inserted_without_a_notification_of_its_own_is_found_soon(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process notifies at most every 50 ms: the worker that got nothing looks again when they are over."""
    monkeypatch.setattr(waiting, "BELL_S", NEVER_S)
    with leasing(partial(waits, queue)) as one, leasing(partial(waits, queue)) as another:
        rings = []
        real = queue.store.doorbell.ring
        queue.store.doorbell.ring = lambda: rings.append(real())  # type: ignore[method-assign, func-returns-value]
        queue.insert("a")
        queue.insert("b")
    assert sorted(one + another) == ["a", "b"]
    assert len(rings) <= 2


@pytest.mark.once
def test_a_worker_notified_in_vain_sleeps_until_it_looks_at_everything_again(queue: Queue) -> None:
    """Where others take each task, many idle workers would otherwise list for each."""
    clock = ManualClock()
    queue = Queue(queue.path, clock=clock)
    poller = waiting.IdlePoller(queue._leaser, 1000)
    assert poller.look(1) == []
    assert not poller.is_deaf
    queue.store.doorbell.ring()
    assert poller.look(1) == []
    assert poller.is_deaf
    assert poller.due_s() <= waiting.AGAIN_S
    clock.advance(waiting.AGAIN_S)
    assert poller.look(1) == []
    assert not poller.is_deaf
    queue.insert("x")
    assert len(poller.look(1)) == 1
    assert not poller.is_deaf


@pytest.mark.once
def test_without_inotify_workers_look_as_before(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(errno.EMFILE, "no instance left")

    monkeypatch.setattr(listening, "Changes", fail)
    with leasing(partial(waits, queue)) as found:
        queue.insert("x")
    assert found == ["x"]


@pytest.mark.once
def test_a_signal_ends_a_wait_for_a_notification(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    class Rang(Exception):
        pass

    rang: list[int] = []

    def ring(number: int, _: object) -> None:
        rang.append(number)
        if len(rang) == 1:
            raise Rang

    def rings(me: int) -> bool:
        signal.pthread_kill(me, signal.SIGALRM)  # again and again: the first one may come just before the sleep
        return bool(rang)

    def send(sleeps: Sleeps, me: int) -> None:
        until(lambda: sleeps.begun, "a worker that sleeps")
        until(lambda: rings(me), "the signal")

    monkeypatch.setattr(waiting, "BELL_S", NEVER_S)
    before = signal.signal(signal.SIGALRM, ring)
    try:
        with watched_sleeps() as sleeps:
            sender = threading.Thread(target=send, args=(sleeps, threading.get_ident()))
            sender.start()
            with pytest.raises(Rang):
                queue.lease(wait_s=NEVER_S[0])
            sender.join()
        assert sleeps.ended == []
    finally:
        signal.signal(signal.SIGALRM, before)
    assert len(listening._idle) == 1, "it was given back"
    queue.insert("x")
    assert len(queue.lease(wait_s=60)) == 1
