"""Count the waiting tasks by their priorities, in ranges (docs/order.md).

It keeps a bounded number of ranges. When there are more, neighbours are made one, but not across cuts that a sample of
the batches gives: a batch holds a narrow range, so what was read first says little of what comes.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from operator import attrgetter

from fsqueue.format import priority
from fsqueue.format.models import AsDict
from fsqueue.format.names import TaskFileName
from fsqueue.format.priority import Priority, Rank, rank_of
from fsqueue.format.replay import AVAILABLE, LEASED
from fsqueue.storage import listing, retrying
from fsqueue.storage.store import Store
from fsqueue.views import inspection

KEPT_MAX = 4096
"""Maximum number of ranges to keep while counting."""
CUTS = 512
"""Number of parts into which the sample cuts the priorities."""
SAMPLED = 256
"""Number of batches that the sample is drawn from."""
OF_EACH = 64
"""Number of tasks to draw of each of those batches, about."""
Progress = Callable[[int, int], object]
"""Called with how many shards were read, of how many."""


@dataclass(frozen=True, slots=True)
class PriorityRange(AsDict):
    """Number of waiting tasks with a priority from `first` (the most urgent) to `last`; None: those without one."""

    first: Priority | None
    last: Priority | None
    waiting: int


class _Range:
    """Neighbouring priorities that tasks have, and how many tasks."""

    __slots__ = ("first", "last", "least", "most", "waiting")

    def __init__(self, rank: Rank, given: Priority) -> None:
        self.least, self.first = rank, given
        self.most, self.last = rank, given
        self.waiting = 0

    def join(self, behind: _Range) -> None:
        """Take in the next range."""
        self.most, self.last = behind.most, behind.last
        self.waiting += behind.waiting


class Ranges:
    """Waiting tasks by priority, in bounded memory: exact as long as there are few different priorities."""

    def __init__(self, sample: Callable[[], list[Rank]], kept_max: int = KEPT_MAX) -> None:
        self._sample = sample
        """Returns ranks that tasks have, of all kinds of batches."""
        self.kept_max = kept_max
        self._cuts: list[Rank] | None = None
        self._ranges: list[_Range] = []
        self._of_one: dict[Rank, _Range] = {}
        """The ranges that tasks were just added to, by the priorities of those."""
        self.without = 0
        """Number of tasks without a priority."""

    def add(self, given: Priority | None, tasks: int = 1) -> None:
        """Add tasks of one priority."""
        if given is None:
            self.without += tasks
            return
        rank = rank_of(given)
        found = self._of_one.get(rank)
        if found is None:
            found = self._find(rank, given)
            if len(self._of_one) >= self.kept_max:
                self._of_one.clear()
            self._of_one[rank] = found
        found.waiting += tasks
        if len(self._ranges) > self.kept_max:
            self._join()
            self._of_one.clear()

    def _find(self, rank: Rank, given: Priority) -> _Range:
        place = bisect_right(self._ranges, rank, key=attrgetter("least"))
        if place and rank <= self._ranges[place - 1].most:
            return self._ranges[place - 1]
        new = _Range(rank, given)
        self._ranges.insert(place, new)
        return new

    def _join(self) -> None:
        """Make neighbours one, within each part that the cuts make; if there are more of those, across some cuts."""
        if self._cuts is None:
            ranks = sorted(self._sample())
            self._cuts = ranks[:: max(1, len(ranks) // min(CUTS, self.kept_max // 4 or 1))]
        found: list[_Range] = []
        part = -1
        for one in self._ranges:
            before, part = part, bisect_right(self._cuts, one.least)
            if part == before:
                found[-1].join(one)
            else:
                found.append(one)
        self._ranges = fewer_ranges(found, max(1, self.kept_max // 2))

    def summed(self, ranges: int) -> list[PriorityRange]:
        """Return at most `ranges` of them, the most urgent one first, and then the tasks without a priority."""
        found = [PriorityRange(one.first, one.last, one.waiting) for one in fewer_ranges(self._ranges, ranges)]
        return found + ([PriorityRange(None, None, self.without)] if self.without else [])


def fewer_ranges(ranges: Iterable[_Range], most: int) -> list[_Range]:
    """Return up to `most` ranges, with about equally many tasks if neighbours have to be made one."""
    left = list(ranges)
    waiting = sum(one.waiting for one in left)  # in the range at hand and behind it
    found: list[_Range] = []
    for place, one in enumerate(left):
        more = most - len(found)
        is_full = bool(found) and (found[-1].waiting + one.waiting / 2) * (more + 1) > waiting
        if not found or len(left) - place <= more or (more and is_full):
            waiting -= found[-1].waiting if found else 0
            found.append(one)
        else:
            found[-1].join(one)
    return found


def count(store: Store, ranges: int, progress: Progress | None = None) -> list[PriorityRange]:
    """Count the waiting tasks by priority; a hint while others work. No lock is taken."""
    store.refresh(now=True)
    retrying.publish_pending(store)
    inspection.apply_pending(store)
    found = Ranges(partial(_sample, store))
    shards = listing.shards(store)
    for done, shard in enumerate(shards):
        if progress is not None:
            progress(done, len(shards))
        for name in listing.task_files(store, shard).values():
            for given, tasks in _waiting_in(store, name):
                found.add(given, tasks)
    if progress is not None:
        progress(len(shards), len(shards))
    return found.summed(ranges)


def _sample(store: Store) -> list[Rank]:
    """Return the ranks of some waiting tasks of some batches, drawn at random."""
    found: list[Rank] = []
    batches = [name for _, name in listing.published(store) if name.priority is not None]
    for name in store.entropy.shuffled(batches)[:SAMPLED]:
        given = [each for each, _ in _waiting_in(store, name) if each is not None]
        found += map(rank_of, given[:: max(1, len(given) // OF_EACH)])
    return found


def _waiting_in(store: Store, name: TaskFileName) -> Iterator[tuple[Priority | None, int]]:
    """Yield the priorities of the waiting tasks of a batch that has, or had just now, a task file of this name, each
    with how many of them have it.
    """
    lines = inspection.lines_of(store, name) if name.priority is not None else []
    state = listing.read_present_state(store, name.batch)
    now = store.clock.now_ms()
    if state is None:
        if name.available_at <= now and name.priority is None:
            yield None, name.tasks
        elif name.available_at <= now:
            given = priority.in_lines(lines)
            yield from ((given.get(index), 1) for index in range(len(lines)))
        return
    given = state.priorities
    if state.inserts is None and name.priority is not None and state.remaining:
        given = priority.in_lines(lines or inspection.lines_anywhere(store, name.batch, state) or [])
    known: dict[int, Priority | None] = {**given, **state.changed}
    for index, code in enumerate(state.state):
        if code in (AVAILABLE, LEASED) and state.since[index] <= now:
            yield known.get(index), 1
