"""Lease from several queues at once: the most urgent task of all, in turn among equals (docs/design.md, section 8)."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from fsqueue.errors import FsqueueError, QueueNotFound
from fsqueue.filesystem import resources
from fsqueue.format.priority import LAST, Rank
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol.leasing import OVERPROMISED_MAX, Leaser
from fsqueue.protocol.waiting import IdlePoller
from fsqueue.storage import open_logs
from fsqueue.storage.store import Store

logger = logging.getLogger("fsqueue")

T = TypeVar("T")

ASKING_SHARE = 1 / 20
"""Maximum part of the time that goes into asking all queues what they have. Their answers are believed, ..."""
BELIEVED_S = 1.0
"""... for this time at most."""


class Watch:
    """Poll one of several queues. Errors are fsqueue's own. Use it in the thread that made it.

    `lease_ms`: None for the queue's setting.
    """

    def __init__(self, leaser: Leaser, lease_ms: int | None, up_to: Rank | None = None, may_go: bool = False) -> None:
        self.may_go, self.is_gone = may_go, False
        """True if it is no error that the queue is deleted; and true if it was deleted."""
        self.store = leaser.store
        leaser.let_go = leaser.store.logs.let_go_of_own  # `Several` asks the others: else each would ask each
        self._idle_poller = IdlePoller(leaser, lease_ms, up_to=up_to)
        self.due_s, self.stores = self._idle_poller.due_s, self._idle_poller.stores
        self.is_failing = False
        """True if the last question to the queue ended in an error."""
        self.warned_of: tuple[type, int | None] | None = None
        """Kind of the error that was warned of last, since the queue gave a task."""

    @property
    def is_deaf(self) -> bool:
        """Return whether to sleep without listening for notifications: see `IdlePoller`."""
        return self._idle_poller.is_deaf

    @property
    def idle_since(self) -> bytes | None:
        """Return the doorbell's value before the last look, if that found nothing and nothing held it up; else None."""
        return None if self.is_failing else self._idle_poller.idle_since

    def look(self, n: int) -> list[LeasedTask]:
        """Return up to `n` tasks. [] is as good as that of `IdlePoller.look`."""
        return self._explained(lambda: self._idle_poller.look(n))

    def promise(self, is_anew: bool = True) -> Rank | None:
        """Return the rank of the best task that the queue seems to have; None if it seems to have none.

        `is_anew`: see `Leaser.promise`.
        """
        return self._explained(lambda: self._idle_poller.promise(is_anew))

    def take(self, n: int, bound: Rank) -> list[LeasedTask]:
        """Lease up to `n` tasks that seem to be there, none less urgent than `bound`. [] proves nothing. []
        proves nothing.
        """
        return self._explained(lambda: self._idle_poller.take(n, bound))

    def _explained(self, act: Callable[[], T]) -> T:
        try:
            with resources.Scope():
                return act()
        except OSError as error:
            raise self.store.explain(error, "leasing") from error


class Several:
    """Lease from several queues: the most urgent of what they seem to have, in turn and in shares among equals.

    A queue that fails does not keep the tasks of the others back: it is left out of that look, with a warning. Its
    error is raised if no other queue has a task. `skips_gone`: a queue that was deleted is left out for good, without
    an error; QueueNotFound if no other is left.
    """

    def __init__(self, watches: Sequence[Watch], skips_gone: bool = False) -> None:
        self._watches = list(watches)
        """The one that gave something last comes last."""
        self._skips_gone = skips_gone
        self._promised: dict[Watch, Rank] = {}
        """Watches of queues that seem to have tasks, and the rank of the best. The one that gave a task last comes
        last."""
        self._unknown: dict[Watch, None] = {}
        """Watches of queues that must be asked what they have."""
        self._believed_until = -math.inf
        """Time until which the other queues need not be asked (monotonic clock)."""
        self.errors: dict[Watch, FsqueueError] = {}
        """Errors of the watches that failed during the last look."""
        self._tried: dict[Watch, Rank] = {}
        """Bounds within which queues gave nothing the last time in this look. Such a queue is asked again if it
        promises more.

        They have a say if they promise more.
        """

    @property
    def stores(self) -> list[Store]:
        """Return the queues that are looked at."""
        return [watch.store for watch in self._watches]

    @property
    def is_deaf(self) -> bool:
        """Return whether to sleep without listening for notifications."""
        return any(watch.is_deaf for watch in self._watches)

    def look(self, n: int) -> list[LeasedTask]:
        """Return up to `n` tasks, each once. [] as `IdlePoller.look` of each queue."""
        held: list[LeasedTask] = []
        self.errors.clear()
        self._take(held, n)
        for watch in list(self._watches) if not held else ():
            held += self._ask(watch, partial(watch.look, n), [])
            if held:
                self._put_last(watch)
                break
        if not held:
            open_logs.let_go()
            if self.errors:
                raise next(iter(self.errors.values()))
        return latest(held)

    def due_s(self) -> float:
        """Return in how many seconds a task will be available that was seen and is not available yet."""
        return min((watch.due_s() for watch in self._watches), default=math.inf)

    def change(self, watches: Sequence[Watch]) -> None:
        """Ask some queues from now on. Those that were asked before keep their turns, and the others follow."""
        self._forget()
        had = [watch for watch in self._watches if watch in watches]
        self._watches = had + [watch for watch in watches if watch not in had]

    def _take(self, held: list[LeasedTask], n: int) -> None:
        """Lease tasks that seem to be there, the most urgent first, and add them to `held`.

        A file's name may promise a more urgent task than its batch has left. Then its queue gives nothing within the
        bound, and knows better from then on. It is compared with the others again, and none of them gives a task that
        is less urgent meanwhile.
        """
        self._tried.clear()
        overpromised = 0
        while len(held) < n:
            promised = self._promises()
            if not promised:
                return
            best = min(promised.values())
            equals = [watch for watch, rank in promised.items() if rank == best]
            if overpromised >= OVERPROMISED_MAX:
                bound = LAST
            elif len(equals) > 1:
                bound = best
            else:
                bound = min((rank for rank in promised.values() if rank > best), default=LAST)
            for place, watch in enumerate(equals):
                share = -(-(n - len(held)) // (len(equals) - place))
                if share <= 0:
                    break
                nothing: list[LeasedTask] = []
                got = self._ask(watch, partial(watch.take, share, bound), nothing)
                promised.pop(watch, None)
                if got:
                    held += got
                    overpromised = 0
                    self._tried.pop(watch, None)
                    self._put_last(watch)
                    if watch.store.queue_state.is_ordered:
                        self._unknown[watch] = None
                    else:  # all that it has is equally urgent
                        promised[watch] = best
                elif not watch.is_gone:
                    overpromised += 1
                    self._tried[watch] = bound

    def _promises(self) -> dict[Watch, Rank]:
        """Return `_promised`. Ask all queues if that is due, or if none of those that had something has it any more."""
        if not self._watches:
            return {}
        clock = self._watches[0].store.clock
        begin = clock.monotonic()
        if begin < self._believed_until:
            self._ask_unknown()
        if begin >= self._believed_until or not self._promised:
            self._forget()
            self._unknown = {watch: None for watch in self._watches if watch not in self._tried}
            self._ask_unknown()
            end = clock.monotonic()
            self._believed_until = end + min((end - begin) / ASKING_SHARE, BELIEVED_S)
        for watch, bound in list(self._tried.items()):
            rank = self._ask(watch, partial(watch.promise, is_anew=False), None)
            if rank is not None and rank > bound:
                self._promised[watch] = rank
        return self._promised

    def _ask_unknown(self) -> None:
        for watch in list(self._unknown):
            rank = self._ask(watch, watch.promise, None)
            self._unknown.pop(watch, None)
            if rank is not None:
                self._promised[watch] = rank

    def _forget(self) -> None:
        """Have all queues asked anew."""
        self._believed_until = -math.inf
        self._promised, self._unknown = {}, {}

    def _ask(self, watch: Watch, act: Callable[[], T], otherwise: T) -> T:
        if watch in self.errors:
            return otherwise
        try:
            found = act()
        except FsqueueError as error:
            watch.is_gone = isinstance(error, QueueNotFound)
            if watch.is_gone and watch.may_go:
                self._leave_out(watch)
                return otherwise
            if watch.is_gone and self._skips_gone and self._watches != [watch]:
                self._leave_out(watch)
            else:
                self.errors[watch] = error
            # Not each time: of a filesystem that has become read-only, or is full, looks succeed between two failures.
            kind = type(error), getattr(error.__cause__, "errno", None)
            if watch.warned_of != kind:
                logger.warning("%s is left out: %s", watch.store.path, error)
            watch.is_failing, watch.warned_of = True, kind
            return otherwise
        watch.is_failing = False
        return found

    def _leave_out(self, watch: Watch) -> None:
        """Leave out a source whose queue is gone."""
        self._watches.remove(watch)
        for about in (self._promised, self._unknown, self._tried):
            about.pop(watch, None)

    def _put_last(self, watch: Watch) -> None:
        watch.warned_of = None
        self._watches.remove(watch)
        self._watches.append(watch)


class SeveralRoots(Several):
    """Lease from queues on several filesystems, of which one may not answer.

    `is_left()` tells whether another thread asks the others by now: then nothing is asked any more.
    """

    def __init__(self, watches: Sequence[Watch], is_left: Callable[[], bool]) -> None:
        super().__init__(watches)
        self._is_left = is_left
        self.asked_source: Watch | None = None
        """The one that is asked at this moment, for other threads."""
        self._held: dict[int, LeasedTask] = {}
        """Tasks that this look has leased, by identity. A task is taken out in one step, by `look` or by another
        thread."""

    def look(self, n: int) -> list[LeasedTask]:
        """Return the leased tasks that another thread has not taken by then."""
        self._held.clear()
        return [task for task in super().look(n) if self._held.pop(id(task), None) is not None]

    def held(self) -> list[LeasedTask]:
        """Return the leased tasks of a look that waits for a filesystem. For another thread, which has them from now
        on."""
        held = [task for key in list(self._held) if (task := self._held.pop(key, None)) is not None]
        return latest(held)

    def _ask(self, watch: Watch, act: Callable[[], T], otherwise: T) -> T:
        if self._is_left():
            return otherwise
        self.asked_source = watch
        found = super()._ask(watch, act, otherwise)
        if isinstance(found, list):
            self._held.update((id(task), task) for task in found)
        return found


def latest(held: Sequence[LeasedTask]) -> list[LeasedTask]:
    """Return the last lease of each task, as `leasing.latest`. A copy of a queue has the same batches, other tasks."""
    return list({(id(task.queue), task.batch, task.index): task for task in held}.values())
