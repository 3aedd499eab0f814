"""Wait for tasks by looking at the doorbell, which is easier on the file server than a listing is.

docs/design.md, section 4.6.
"""

from __future__ import annotations

import logging
import math
import shlex
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from fsqueue.clock import Backoff, Clock, Entropy
from fsqueue.format.priority import Rank
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol.leasing import Leaser
from fsqueue.storage import listening
from fsqueue.storage.listening import QUIET_S, Listener
from fsqueue.storage.store import Store

logger = logging.getLogger("fsqueue")

BELL_S = (0.1, 6.0)
"""Shortest and longest pause between two readings of the doorbell."""
AGAIN_S = 1.2 * QUIET_S
"""Pause after a notification before another look, for what was inserted without one of its own."""
SWEEP_S = 600.0
"""An idle worker lists everything after this time, although the doorbell is unchanged (it is a hint)."""


class IdlePoller:
    """A lessee's looks at one queue, again and again: they cost little as long as nothing has changed. One thread's."""

    def __init__(self, leaser: Leaser, lease_ms: int | None, strict: bool = False, up_to: Rank | None = None) -> None:
        self._leaser, self._lease_ms, self._strict, self._up_to = leaser, lease_ms, strict, up_to
        self.stores = [leaser.store]
        self._idle = False
        """True if the last look found nothing, and did not fail."""
        self._acted_on = (0, b"")
        """The generation, and what its doorbell said, before the last look at everything that did not fail."""
        self._swept = 0.0
        self._again_at = math.inf
        """Time at which to look at everything once more after a notification (monotonic clock): see `Doorbell`."""
        self.is_deaf = False
        """True if the poller sleeps without listening for notifications: other workers took what the last one told of,
        and a look at everything comes soon anyway. Many idle workers would otherwise list for each task that one
        takes."""

    def look(self, n: int) -> list[LeasedTask]:
        """Return up to `n` tasks.

        The first [] says that nothing was available; those after it, that nothing told of more.

        QueueNotFound if the queue was deleted meanwhile. After an error the next look is one at everything: a
        notification is used up only by a look that has acted on it, and so is a time at which something comes due.
        """
        leaser, store = self._leaser, self._leaser.store
        idle, self._idle = self._idle, False  # and stays False if this look fails, or the queue is paused
        if not idle:
            got = leaser.lease(n, self._lease_ms, self._strict, self._up_to)
            if got:
                return got
            if leaser.is_held_up:
                self.is_deaf = False
                return got
        notification = store.doorbell.read()
        now = store.clock.monotonic()  # after it: what was inserted without a notification is there by `_again_at`
        if idle and not notification:  # no process has ever notified; or the queue was deleted
            store.verify()
            leaser.begin_look()
        news = (leaser.generation, notification)
        is_notified = idle and news != self._acted_on
        if news != self._acted_on:
            self._again_at = now + AGAIN_S
        elif now >= self._again_at:
            idle, self._again_at = False, math.inf
        if idle and news == self._acted_on and now - self._swept <= SWEEP_S * (0.75 + store.entropy.random() / 2):
            due = leaser.selection.due(store.clock.now_ms())
            got = self._look_into(due, n) if due else []
            if not got:
                leaser.let_go()
        else:  # if not idle, for what came between the look above and the reading of the bell
            store.verify()  # what came may be the first task with a priority
            got = leaser.lease(n, self._lease_ms, self._strict, self._up_to)
            self._acted_on, self._swept = news, now
        self._idle = not got and not leaser.is_held_up
        self.is_deaf = is_notified and not got
        return got

    def _look_into(self, due: list[str], n: int) -> list[LeasedTask]:
        """Lease tasks that have come due in some shards. A strict look compares it with what all shards have."""
        if self._strict:
            return self._leaser.lease(n, self._lease_ms, True, self._up_to)
        return self._leaser.from_shards(due, n, self._lease_ms, self._up_to)

    def promise(self, is_anew: bool = True) -> Rank | None:
        """Return the rank of the best task that seems to be there, for a choice among queues; None if none does.

        `is_anew`: see `Leaser.promise`.

        That costs the reading of the doorbell while nothing has changed since a look that found nothing.
        """
        leaser, store = self._leaser, self._leaser.store
        if self._idle:
            news = (leaser.generation, store.doorbell.read())
            is_due = leaser.selection.earliest() <= store.clock.now_ms()
            if news == self._acted_on and not is_due and store.clock.monotonic() < self._again_at:
                return None
        return leaser.promise(self._up_to, is_anew)

    def take(self, n: int, bound: Rank) -> list[LeasedTask]:
        """Lease up to `n` tasks that seem to be there, none less urgent than `bound`. [] proves nothing. []
        proves nothing.
        """
        if self._up_to is not None:
            bound = min(bound, self._up_to)
        got = self._leaser.lease_seen(n, self._lease_ms, bound)
        if got:
            self._idle = False
        return got

    @property
    def idle_since(self) -> bytes | None:
        """Return the doorbell's value before the last look, if that found nothing and nothing held it up; else None."""
        return self._acted_on[1] if self._idle else None

    def due_s(self, looks_again: bool = True) -> float:
        """Return in how many seconds a task will be available that was seen and is not available yet.

        `looks_again`: or in how many seconds to look once more after a notification, if that is less. While the queue's
        rate allows no lease, in how many seconds it may: nothing is leased before.
        """
        held_up_s = self._leaser.held_up_s()
        if held_up_s < math.inf:
            return held_up_s
        clock = self._leaser.store.clock
        due_s = (self._leaser.selection.earliest() - clock.now_ms()) / 1000 + 0.002
        return min(due_s, self._again_at - clock.monotonic()) if looks_again else due_s


def pause_news(stores: Iterable[Store]) -> list[str]:
    """Return a sentence for each queue that was paused or resumed, as last read. Each is returned once for a store."""
    found = []
    for store in stores:
        pause = store.queue_state.paused
        if pause == store.noted_pause:
            continue
        store.noted_pause = pause
        if pause is None:
            found.append(f"{store.path} is resumed: its tasks are leased again.")
        else:
            found.append(
                f"{store.path} is paused {pause}. No task of it is leased until 'fsqueue resume "
                f"{shlex.quote(store.path)}'."
            )
    return found


def limit_news(stores: Iterable[Store]) -> list[str]:
    """Return a sentence for each queue whose limits allowed no more at the last look. Each is returned once for a store
    and for its limits.
    """
    found = []
    for store in stores:
        full = store.full
        if full is None or full == store.noted_full:
            continue
        store.noted_full = full
        of = f"the group {full.group}" if full.group else store.path
        if full.rate is None:
            text = (
                f"As many tasks of {of} are leased as its limits allow ({full}), by all workers together. The next one "
                "is leased when a place is free."
            )
        else:
            text = (
                f"All workers together lease tasks of {of} as its limits allow ({full}). The next one is leased when "
                "it is time."
            )
        found += [] if text in found else [text]  # the queues of a group share its limits
    return found


def tell_pauses(stores: Iterable[Store]) -> None:
    """Log a warning, once, for each queue that turns out to be paused, or not to be any more; and that its limits allow
    no more.
    """
    known = [*stores]
    for text in pause_news(known) + limit_news(known):
        logger.warning("%s", text)


def tell_of_end(stores: Iterable[Store]) -> None:
    """Notify the idle workers of these queues that they are drained: call it after a check has found that. A hint.

    Only a process that has done tasks of them should. Otherwise each worker that comes too late would wake all others.
    """
    for store in stores:
        store.doorbell.ring()


class TaskSource(Protocol):
    """Source of tasks: a queue, several, those of a group. Looked at again and again, by one thread at a time."""

    @property
    def stores(self) -> Sequence[Store]:
        """Return the open queues of a source. A notification in one of them ends a pause."""

    @property
    def is_deaf(self) -> bool:
        """Return whether to sleep without listening for notifications."""

    def look(self, n: int) -> list[LeasedTask]:
        """Return up to `n` tasks. The first [] says that there were none; those after it, that nothing told of more."""

    def due_s(self) -> float:
        """Return in how many seconds to look again at the latest."""


class Pauses:
    """Pause between the looks of one wait at a source, which lasts `wait_s` seconds at most."""

    def __init__(self, source: TaskSource, wait_s: float = math.inf) -> None:
        self._source = source
        self._clock, entropy = clock_of(source.stores)
        self._deadline = self._clock.monotonic() + wait_s
        self._backoff = Backoff(BELL_S, entropy.random)

    @property
    def left_s(self) -> float:
        """Return how many seconds of the time to wait are left."""
        return self._deadline - self._clock.monotonic()

    def next_s(self) -> float:
        """Return how many seconds to sleep before the next look."""
        return max(0.001, min(self._backoff.next_s(), self._source.due_s(), self.left_s))


def clock_of(stores: Sequence[Store]) -> tuple[Clock, Entropy]:
    """Return the clock and the randomness by which a wait at these queues goes; one may wait before any is there."""
    return (stores[0].clock, stores[0].entropy) if stores else (Clock(), Entropy())


def listening_to(source: TaskSource) -> AbstractContextManager[Listener]:
    """Lend a listener to the doorbells of a source, for the length of a `with` block. Others may come."""
    stores = source.stores
    return listening.over([store.doorbell for store in stores], clock_of(stores)[0])


def wait(source: TaskSource, n: int, wait_s: float, stop: Callable[[], bool] = lambda: False) -> list[LeasedTask]:
    """Look for up to `n` tasks; if there are none, again and again for `wait_s` seconds, or until `stop()`."""
    pauses = Pauses(source, wait_s)
    got = source.look(n)
    if got or not wait_s:
        return got
    with listening_to(source) as listener:
        while not got and pauses.left_s > 0 and not stop():
            tell_pauses(source.stores)
            listener.turn_to([store.doorbell for store in source.stores])
            listener.sleep(pauses.next_s(), source.is_deaf)
            got = source.look(n)
    return got
