"""What the pages of a gateway show of queues: read, kept for a while, and read again more rarely while nothing changes.

All that look at one page share one look. A page that nobody looks at is not read. docs/page.md says what that costs.
No payload is kept here for an answer: its queue may not keep it any more by then.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import fsqueue

LEAST_S = 2.0
"""Shortest time between two looks at one page."""
LOOK_SHARE = 0.2
"""At most this part of the time goes into looks at one page, as with `fsqueue status --watch`, ..."""
IDLE_SHARE = 1 / 2400
"""... and at most this part once nothing has changed for long: 25 calls a minute, where a call takes a millisecond."""
QUIET_SHARE = 0.5
"""A look is made when nothing has changed for one and a half times as long as at the last look, ..."""
CALLS_A_MINUTE = 25
"""... or when, with the calls that it makes, no more than these are made in a minute."""
CALLS_A_QUEUE, CALLS_A_SHARD = 150, 18
"""About how many calls a look at a queue makes (tests/service/test_page_contents.py counts them)."""
CALLS_OF_FLOWS = 400
"""About how many calls a look at the flows between queues makes, at most."""
PAGES_MAX = 256
"""Maximum number of pages that are remembered."""


class Shown(Protocol):
    """What a page shows."""

    def signature(self) -> object:
        """Return what is equal as long as nothing has changed: no times of the look itself, no rates."""

    def calls(self) -> int:
        """Return about how many calls the look has made to the filesystem."""


@dataclass(frozen=True, slots=True)
class SeenPage:
    """What was seen of a page at one look. `number` grows with each look of this process. `at`: Unix seconds."""

    shown: Any
    number: int
    at: float
    took_s: float
    taken_at: float
    """By the monotonic clock, as is the next."""
    changed_at: float

    def pause_s(self) -> float:
        """Return how long to wait for the next look, counted from this one."""
        busy = max(LEAST_S, self.took_s * (1 / LOOK_SHARE - 1))
        most = max(60 * self.shown.calls() / CALLS_A_MINUTE, self.took_s / IDLE_SHARE)
        pause: float = max(busy, min(most, (self.taken_at - self.changed_at) * QUIET_SHARE))
        return pause


class _Turn:
    """The lock of the looks at one page. It lasts as long as a thread looks, or waits for that."""

    __slots__ = ("lock", "threads")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.threads = 0
        """Number of threads that look, or wait for that."""


class PageLooks:
    """The looks of one gateway. Safe to use from many threads."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._monotonic, self._wall = monotonic, wall
        self._seen: OrderedDict[object, SeenPage] = OrderedDict()
        self._looking: dict[object, _Turn] = {}
        self._lock = threading.Lock()
        self._number = 0

    def last(self, key: object) -> SeenPage | None:
        """Return what was seen last for a page; None if nothing was."""
        with self._lock:
            return self._seen.get(key)

    def age_s(self, seen: SeenPage) -> float:
        """Return how long ago a look began, in seconds."""
        return max(0.0, self._monotonic() - seen.taken_at + seen.took_s)

    def due_s(self, key: object, fresh: bool = False) -> float:
        """Return in how many seconds a page is to be looked at again; 0: now. `fresh`: somebody wants to know."""
        seen = self.last(key)
        if seen is None:
            return 0.0
        pause_s = max(LEAST_S, seen.took_s) if fresh else seen.pause_s()
        return max(0.0, seen.taken_at + pause_s - self._monotonic())

    def look(self, key: object, make: Callable[[], Shown], fresh: bool = False) -> SeenPage:
        """Return what is seen of a page, by a look if one is due. One thread looks; others wait for what it sees."""
        with self._lock:
            turn = self._looking.setdefault(key, _Turn())
            turn.threads += 1
        try:
            with turn.lock:
                seen = self.last(key)
                if seen is not None and self.due_s(key, fresh) > 0:
                    return seen
                return self.look_anew(key, make)
        finally:
            with self._lock:
                turn.threads -= 1
                if not turn.threads:
                    del self._looking[key]

    def look_anew(self, key: object, make: Callable[[], Shown]) -> SeenPage:
        """Return what is seen of a page by a look that begins now, for what may be hidden by the next moment."""
        at, begin = self._wall(), self._monotonic()
        shown = make()
        end = self._monotonic()
        with self._lock:
            before = self._seen.get(key)
            is_same = before is not None and before.shown.signature() == shown.signature()
            self._number += 1
            changed_at = before.changed_at if is_same and before else end
            made = SeenPage(shown, self._number, at, end - begin, end, changed_at)
            self._seen[key] = made
            self._seen.move_to_end(key)
            while len(self._seen) > PAGES_MAX:
                self._seen.popitem(last=False)
        return made

    def forget(self) -> None:
        """Have all pages looked at again: something was changed through this gateway."""
        with self._lock:
            self._seen.clear()


# -- queues --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class QueueLook:
    """What was seen of one queue. `error`: why it could not be read; then nothing else is known."""

    name: str
    status: fsqueue.Status = field(default_factory=fsqueue.Status)
    activity: fsqueue.Activity | None = None
    settings: fsqueue.Settings | None = None
    paused: fsqueue.Pause | None = None
    workers: Sequence[fsqueue.LeaseHolder] = ()
    failing: Sequence[fsqueue.FailingNode] = ()
    error: str = ""
    has_clients: bool = False
    """Whether clients of taskstore have asked this gateway: they claim tasks without being seen in between."""

    def signature(self) -> object:
        """Return what is equal as long as nothing has changed."""
        held = tuple((worker.key, worker.life, len(worker.tasks), worker.expired) for worker in self.workers)
        return self.name, self.status, self.settings, self.paused, held, tuple(self.failing), self.error

    def calls(self) -> int:
        """Return about how many calls the look has made to the filesystem."""
        return CALLS_A_QUEUE + CALLS_A_SHARD * (self.settings.shards if self.settings is not None else 0)

    @property
    def failures(self) -> Sequence[fsqueue.Failure]:
        """Return the failures by reason; none if they are not known."""
        return () if self.activity is None else self.activity.failures


def look_at(
    queue: fsqueue.Queue, name: str, asks_slurm: bool = False, has_clients: bool = False
) -> QueueLook:  # fmt: skip
    """Look at a queue. What is wrong with it is part of what is seen."""
    try:
        status = queue.status()
        return QueueLook(
            name,
            status,
            queue.activity(),
            queue.settings,
            queue.paused,
            queue.workers(asks_slurm=asks_slurm) if status.leased or status.remaining else (),
            queue.failing_nodes() if status.remaining else (),
            has_clients=has_clients,
        )
    except fsqueue.FsqueueError as error:
        return QueueLook(name, error=str(error))


@dataclass(frozen=True, slots=True)
class QueuePage:
    """What the page of one queue shows, but for payloads: `samples` reads them for each answer."""

    look: QueueLook
    timeline: fsqueue.Timeline | None = None

    def signature(self) -> object:
        """Return what is equal as long as nothing has changed."""
        return self.look.signature()

    def calls(self) -> int:
        """Return about how many calls the look has made to the filesystem."""
        return self.look.calls()


SAMPLES = 5
"""How many of the tasks that are leased for longest the page of a queue shows."""


def look_into(queue: fsqueue.Queue, name: str, has_clients: bool = False) -> QueuePage:
    """Look at a queue for its own page. QueueNotFound, NotAQueue, StorageError."""
    look = look_at(queue, name, asks_slurm=True, has_clients=has_clients)
    if look.error:
        queue.status()  # raises what is wrong, unless it is so no more
        look = look_at(queue, name, has_clients=has_clients)
    return QueuePage(look, queue.timeline())


def samples(queue: fsqueue.Queue, look: QueueLook) -> list[fsqueue.TaskInfo]:
    """Return some of the tasks that were leased for longest at a look, as they are now."""
    found = []
    for held in look.activity.oldest[:SAMPLES] if look.activity is not None else ():
        try:
            found.append(queue.task(held.id))
        except fsqueue.TaskNotFound:  # it has ended meanwhile
            continue
    return found


@dataclass(frozen=True, slots=True)
class GroupPage:
    """What the page of a group shows: `looks` at queues, of which rows `first` to `first + ROWS` are in the table.

    `matching`: how many queues match what was searched for, of `total`. `is_whole`: whether all that match were looked
    at; otherwise those of the table were.
    """

    looks: Sequence[QueueLook]
    total: int
    matching: int
    first: int
    is_whole: bool
    flows: Sequence[fsqueue.Flow] = ()
    """Those between queues that were looked at, if all queues of the group were."""

    def signature(self) -> object:
        """Return what is equal as long as nothing has changed."""
        ways = {(flow.source, flow.target) for flow in self.flows}
        return self.total, self.matching, [look.signature() for look in self.looks], ways

    def calls(self) -> int:
        """Return about how many calls the look has made to the filesystem."""
        return sum(look.calls() for look in self.looks) + CALLS_OF_FLOWS

    @property
    def rows(self) -> Sequence[QueueLook]:
        """Return the looks at the queues in the page's table."""
        return self.looks[self.first : self.first + ROWS] if self.is_whole else self.looks


ROWS = 50
"""Maximum number of queues in the table of a page."""
WHOLE_MAX = 150
"""Maximum number of queues that are all looked at for a page; of more, those of its table are."""


class Names:
    """The names of a group's queues. They are listed every two seconds at most, for a twentieth of the time at most."""

    LIST_S, LIST_SHARE = 2.0, 0.05

    def __init__(self, group: fsqueue.Group, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._group, self._monotonic = group, monotonic
        self._names: list[str] = []
        self._due_at = float("-inf")
        self._lock = threading.Lock()

    def listed(self) -> list[str]:
        """Return the names in order, as they were listed last; none if they never were. It reads nothing."""
        with self._lock:
            return self._names

    def containing(self, text: str) -> tuple[list[str], int]:
        """Return the names that contain a text, in any case, in order; and how many names there are."""
        with self._lock:
            begin = self._monotonic()
            if begin >= self._due_at:
                self._names = sorted(queue.name for queue in self._group.queues(tasks_min=0))
                end = self._monotonic()
                self._due_at = end + max(self.LIST_S, (end - begin) / self.LIST_SHARE)
            names = self._names
        wanted = text.casefold()
        return [name for name in names if wanted in name.casefold()] if wanted else names, len(names)


def look_over(
    names: Names,
    look: Callable[[str], QueueLook],
    flows: Callable[[], Sequence[fsqueue.Flow]],
    text: str,
    page: int,
) -> GroupPage:
    """Look at the queues of a group whose names contain `text`, for page `page`, from 0 on."""
    found, total = names.containing(text)
    first = min(page, max(0, (len(found) - 1) // ROWS)) * ROWS
    is_whole = len(found) <= WHOLE_MAX
    wanted = found if is_whole else found[first : first + ROWS]
    seen = [look(name) for name in wanted]
    shown = {one.name for one in seen}
    ways = [flow for flow in flows() if {flow.source, flow.target} <= shown] if is_whole and not text else []
    return GroupPage(seen, total, len(found), first, is_whole, ways)


def stages(flows: Sequence[fsqueue.Flow]) -> list[list[str]]:
    """Return the names of queues between which tasks flow, in stages: each queue behind all that flow into it.

    A flow that leads back does not count. The most frequent flows come first, so rare ones are those that lead back.
    """
    into: dict[str, set[str]] = {}
    for flow in flows:
        into.setdefault(flow.source, set())
        before = into.setdefault(flow.target, set())
        if flow.target not in _above(into, flow.source):
            before.add(flow.source)
    depth: dict[str, int] = {}
    while len(depth) < len(into):  # one more each time, since no flow leads back
        for name, before in into.items():
            if name not in depth and all(one in depth for one in before):
                depth[name] = max((depth[one] + 1 for one in before), default=0)
    made: list[list[str]] = [[] for _ in range(max(depth.values(), default=-1) + 1)]
    for name in sorted(depth):
        made[depth[name]].append(name)
    return made


def _above(into: dict[str, set[str]], name: str) -> set[str]:
    """Return a queue with all from which tasks get into it."""
    found, left = {name}, [name]
    while left:
        for one in into[left.pop()] - found:
            found.add(one)
            left.append(one)
    return found
