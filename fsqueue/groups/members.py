"""The queues that a lessee of groups has open: those that may have tasks, a bounded number.

docs/group-cost.md, "Leasing", says when it finds which task.

A group may have 100,000 queues. A lessee cannot have all of them open, nor may it ask about each of them all the time
while there is nothing to do. So it opens those that may have tasks, and learns of others in three ways: the time of the
group's directory tells that a queue has come into being; the doorbells of others whose bells have rung are read in
turn, at a bounded rate; and when a task comes due that was seen in one, that one is opened again.
"""

from __future__ import annotations

import logging
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import partial

from fsqueue.clock import Clock
from fsqueue.errors import FormatTooNew, FormatTooOld, NotAQueue, QueueFileLost, QueueNotFound
from fsqueue.filesystem import idle_files, resources
from fsqueue.format.groups import bell_of
from fsqueue.format.names import QueueDirectory
from fsqueue.groups.drain_check import Source
from fsqueue.groups.queue_selection import Selected
from fsqueue.protocol.queue_watches import Watch
from fsqueue.protocol.waiting import AGAIN_S
from fsqueue.queue import Queue
from fsqueue.storage import unopened_queues

logger = logging.getLogger("fsqueue")

OPEN_MAX = 64
"""How many queues of a group a lessee has open at most, ..."""
SHARE = 8
"""... which is one in this many of the descriptors that the process may have, or less: each takes two, and its logs."""
LIST_S = 1.0
"""Shortest time between two looks at the time of the group's directory, ..."""
CHANGED_S = 3.0
"""... after which it is listed once more: two changes within one tick of a clock leave the time as it is."""
LIST_SHARE = 0.05
"""Maximum part of the time that goes into listing a group in which queues come and go all the time. As much may go into
reading the bells of its queues."""
SWEEP_S = 600.0
"""A group is listed after this time in any case, and a queue that was called empty is opened again. (A doorbell is a
hint, and so is a time.)"""
BELLS_PER_S = 200.0
"""How many doorbells of queues that are not open are read in a second at most, ..."""
BELLS_S = 0.1
"""... from this time on since the last were read, ..."""
BELLS_MAX = 1000
"""... and in a row."""
UNBORN_S = (0.1, 60.0)
"""Shortest and longest time after which a directory is looked into again that holds no queue, or a queue in which
nothing was found although a name promised a task."""
LOOKS_S = 0.1
"""Queues are looked into for this long, and at least `OPEN_MAX` of them, before tasks of those that are open are
leased. While there are such tasks, as much time passes before the next queues are looked into."""

HELD_UP_S = 30.0
"""A queue that is paused or fails makes room for others, if there are more, and is tried again after this time."""


class _Closed:
    """Remember when to look again into a queue that is not open: its bell, and the time at which a task comes due."""

    __slots__ = ("bell", "due_at", "mark", "pause_s")

    def __init__(self, bell: bytes, due_at: float, pause_s: float = 0.0, mark: bytes | None = None) -> None:
        self.bell, self.due_at, self.pause_s = bell, due_at, pause_s
        self.mark = mark
        """The mark of its bell before the doorbell was read: see `Bells.mark`."""


class _OfOne:
    """Remember which queues of one group were listed, are closed, or are to be opened."""

    def __init__(self, selected: Selected, clock: Clock) -> None:
        self.selected, self._clock = selected, clock
        self.listed: dict[QueueDirectory, None] = {}
        self.closed: dict[QueueDirectory, _Closed] = {}
        """Queues that were looked into and had nothing. A queue that is neither here nor open was never looked into."""
        self.wanted: OrderedDict[QueueDirectory, None] = OrderedDict()
        """Queues that are to be opened, in this order."""
        self._stamp: object = None
        self._look_at = self._list_at = -math.inf
        self._in_turn: list[QueueDirectory] = []
        self._read_at = clock.monotonic()
        self._marks_at = -math.inf

    def list_anew(self, is_open: Callable[[QueueDirectory], bool]) -> bool:
        """List the group if a queue may have come or gone, and want those that are new. Return whether it did."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return False
        self._look_at = now + LIST_S
        group = self.selected.group.directory()
        stamp = self.selected.stamp()
        if stamp == self._stamp and now < self._list_at:
            return False
        is_changed = stamp != self._stamp
        found = dict.fromkeys(self.selected.directories())
        took_s = self._clock.monotonic() - now
        self._look_at = max(self._look_at, now + took_s / LIST_SHARE)
        self._list_at = now + (CHANGED_S if is_changed else SWEEP_S)
        self._stamp = stamp
        new = [directory for directory in found if directory not in self.listed and not is_open(directory)]
        # Each lessee begins somewhere else: all of them would open the same queues, and leave the others.
        first = int(group.entropy.random() * len(new)) if len(new) > 1 else 0
        self._want(new[first:] + new[:first])
        for directory in self.listed.keys() - found.keys():
            self.closed.pop(directory, None)
            self.wanted.pop(directory, None)
        self.listed = found
        return True

    def _want(self, directories: Sequence[QueueDirectory]) -> None:
        """Want queues of which something has become known, before all that were wanted by then."""
        for directory in reversed(directories):
            self.wanted[directory] = None
            self.wanted.move_to_end(directory, last=False)

    def has_nothing(self, directory: QueueDirectory) -> bool:
        """Return whether a queue has no task, as a look without opening it says. Then it is noted as one of those."""
        known, group = self.closed.get(directory), self.selected.group.directory()
        mark = group.bells.mark(bell_of(directory))
        bell = self.bell(directory)  # before the look: what is inserted after it rings once more
        if unopened_queues.remaining(group, directory) != 0:
            return False
        # A process that has rung just now may insert without a further notification: see `Doorbell`.
        is_rung = bell != b"" and (known is None or bell != known.bell)
        due_s = AGAIN_S if is_rung else SWEEP_S * (0.75 + group.entropy.random() / 2)
        self.closed[directory] = _Closed(bell, self._clock.monotonic() + due_s, mark=mark)
        return True

    def forget(self, directory: QueueDirectory) -> None:
        """Forget a queue that was deleted. Another one may have come into being in its place: list again at once."""
        self.listed.pop(directory, None)
        self._look_at = self._list_at = -math.inf

    def bell(self, directory: QueueDirectory) -> bytes:
        """Return the value of a queue's doorbell; b"" if it has none."""
        return next(self.selected.bells([directory]), b"")

    def look_around(self) -> None:
        """Want queues that are not open and may have tasks: their doorbells were rung, or something is due."""
        now = self._clock.monotonic()
        if now - self._read_at < BELLS_S:
            return
        room = min(int((now - self._read_at) * BELLS_PER_S), BELLS_MAX)
        self._read_at = now
        for directory in [one for one, known in self.closed.items() if known.due_at <= now]:
            self.wanted.setdefault(directory)
        bells = self.selected.group.directory().bells
        if not self._in_turn and now >= self._marks_at:
            self._in_turn = [
                one
                for one, known in self.closed.items()
                if known.mark is None or known.mark != bells.mark(bell_of(one))
            ][::-1]
            self._marks_at = now + (self._clock.monotonic() - now) / LIST_SHARE
        asked = [self._in_turn.pop() for _ in range(min(room, len(self._in_turn)))]
        marks = [bells.mark(bell_of(directory)) for directory in asked]
        for directory, mark, bell in zip(asked, marks, self.selected.bells(asked), strict=False):
            known = self.closed.get(directory)
            if known is not None and bell != known.bell:
                self._want([directory])
            elif known is not None:
                known.mark = mark


class Members:
    """Keep some queues open, given ones and queues of groups, and the watches that poll them. Not thread-safe.

    `queues` are open, and `watches` poll them, in the same order. `refresh` changes both in place.
    """

    def __init__(self, sources: Sequence[Source], make_watch: Callable[[Queue], Watch], clock: Clock) -> None:
        self._clock, self._make_watch = clock, make_watch
        self._open_max = idle_files.share(SHARE, OPEN_MAX)
        fixed = [source for source in sources if isinstance(source, Queue)]
        self.queues: list[Queue] = fixed
        self.watches = [make_watch(queue) for queue in fixed]
        self._fixed = len(fixed)
        self._groups = [_OfOne(source, clock) for source in sources if isinstance(source, Selected)]
        self._open: dict[tuple[int, QueueDirectory], tuple[Queue, Watch]] = {}
        """The open queues of groups, by the place of the group: the one that was opened first comes first."""
        self.asked_source: Selected | None = None
        """The group that is asked by `refresh` at this moment, for other threads: it may not answer."""
        self._looks_at = -math.inf
        """When to look into further queues (monotonic clock), as long as open ones have tasks."""
        self._before: dict[tuple[int, QueueDirectory], _Closed] = {}
        """The entries that open queues had in `closed` before they were opened."""

    @property
    def is_complete(self) -> bool:
        """Return whether each queue that is known was looked into, or is open."""
        return not any(group.wanted for group in self._groups)

    @property
    def goes_on(self) -> bool:
        """Return whether to call `refresh` again at once if the last look found nothing: others are to be opened."""
        return not self.is_complete and self.due_s() == 0

    @property
    def rounds_max(self) -> int:
        """Return how often to call `refresh`, at most, until each queue that is known now was looked into."""
        return 2 + sum(len(group.listed) for group in self._groups) // self._open_max

    def due_s(self) -> float:
        """Return in how many seconds to call `refresh` again at the latest."""
        if not self.is_complete:
            is_idle = len(self._open) < self._open_max or any(has_nothing(watch) for _, watch in self._open.values())
            return 0.0 if is_idle else LIST_S
        now = self._clock.monotonic()
        due = min((known.due_at for group in self._groups for known in group.closed.values()), default=math.inf)
        return max(0.0, due - now)

    def refresh(self) -> bool:
        """Open queues that may have tasks, in place of queues that have none. Return whether `queues` has changed."""
        is_changed = self._drop_gone()
        for place, group in enumerate(self._groups):
            self.asked_source = group.selected
            if group.list_anew(partial(self._is_open, place)):
                self._doubt_unlisted(place, group)
            if group.closed:
                group.look_around()
        if any(group.wanted for group in self._groups):
            idle = [key for key, (_, watch) in self._open.items() if has_nothing(watch)]
            if len(idle) == len(self._open) or self._clock.monotonic() >= self._looks_at:
                is_changed |= self._look_into_wanted(idle)
        if is_changed:
            self.watches[self._fixed :] = [watch for _, watch in self._open.values()]
            self.queues[self._fixed :] = [queue for queue, _ in self._open.values()]
        return is_changed

    def _look_into_wanted(self, idle: list[tuple[int, QueueDirectory]]) -> bool:
        """Look into queues that may have tasks, for a while, and open those that seem to, in place of `idle` ones.

        Return whether any was opened.
        """
        begin, looks, is_changed = self._clock.monotonic(), 0, False
        while any(group.wanted for group in self._groups):
            if len(self._open) >= self._open_max and not idle:
                break  # each of them may have more
            if looks >= self._open_max and self._clock.monotonic() - begin >= LOOKS_S:
                break
            for place, group in enumerate(self._groups):
                if not group.wanted or (len(self._open) >= self._open_max and not idle):
                    continue
                directory = group.wanted.popitem(last=False)[0]
                looks += 1
                if self._is_open(place, directory):
                    continue
                if len(self._open) >= self._open_max:
                    if group.has_nothing(directory):
                        continue
                    self._close(idle.pop(0))
                self._open_one(place, group, directory)
                is_changed = True
        self._looks_at = 2 * self._clock.monotonic() - begin
        return is_changed

    def _is_open(self, place: int, directory: QueueDirectory) -> bool:
        return (place, directory) in self._open

    def _open_one(self, place: int, group: _OfOne, directory: QueueDirectory) -> None:
        known, now = group.closed.pop(directory, None), self._clock.monotonic()
        self.asked_source = group.selected
        queue = group.selected.queue_in(directory)
        if known is not None:
            self._before[place, directory] = known
        try:
            with resources.Scope():
                self._open[place, directory] = queue, self._make_watch(queue)
        except QueueNotFound:  # it is just coming into being, or was deleted
            pause_s = UNBORN_S[0] if known is None else min(2 * known.pause_s or UNBORN_S[0], UNBORN_S[1])
            group.closed[directory] = _Closed(b"", now + pause_s, pause_s)
        except (NotAQueue, QueueFileLost, FormatTooNew, FormatTooOld) as error:
            logger.warning("a queue of a group is left out: %s", error)
            group.closed[directory] = _Closed(group.bell(directory), now + SWEEP_S)

    def _close(self, key: tuple[int, QueueDirectory]) -> None:
        """Close a queue in which nothing was found. Tasks of it that are held keep it alive."""
        (_, watch), (place, directory) = self._open.pop(key), key
        group, bell, before = self._groups[place], watch.idle_since, self._before.pop(key, None)
        # After a notification it is looked into once more, as `IdlePoller` does; else many would be opened for ever.
        due_s = watch.due_s(bell != b"" and (before is None or bell != before.bell))
        due_s = min(due_s, SWEEP_S if bell is not None else HELD_UP_S)
        pause_s = 0.0
        if due_s < UNBORN_S[0]:  # a name promised a task, and there was none: it may go on to promise one
            due_s = pause_s = min(2 * (before.pause_s if before is not None else 0.0) or UNBORN_S[0], UNBORN_S[1])
        known = group.bell(directory) if bell is None else bell
        group.closed[directory] = _Closed(known, self._clock.monotonic() + due_s, pause_s)

    def _doubt_unlisted(self, place: int, group: _OfOne) -> None:
        """Have open queues looked at that a listing does not show: of one that was removed, no bell tells."""
        for (of, directory), (_, watch) in self._open.items():
            if of == place and directory not in group.listed:
                watch.store.doorbell.forget()

    def _drop_gone(self) -> bool:
        """Forget open queues that were deleted. Return whether there were any."""
        gone = [key for key, (_, watch) in self._open.items() if watch.is_gone]
        for place, directory in gone:
            del self._open[place, directory]
            self._before.pop((place, directory), None)
            self._groups[place].forget(directory)
        return bool(gone)


def has_nothing(watch: Watch) -> bool:
    """Return whether the last look at an open queue found nothing, or could find nothing: others may take its place."""
    return watch.idle_since is not None or watch.is_failing or watch.store.queue_state.paused is not None
