"""Choose the next batch: shards as subqueues, their heads compared (docs/design.md, section 8; decisions 30 and 47).

After the relaxed priority queue, sections 3.2 and 4.3: a worker compares the heads of the shards that it has listed,
takes the best, and asks no other process. Heads are remembered, since a listing costs more here than a peek does there.
Without priorities all are equals, and the oldest is the best. What is here are hints; the log decides.
"""

from __future__ import annotations

import math
from heapq import heapify, heappop, heappush, nsmallest
from typing import NamedTuple

from fsqueue.errors import HiddenTasks
from fsqueue.format import names
from fsqueue.format.names import Batch, TaskFileName, shard_listed
from fsqueue.format.priority import LAST, Rank
from fsqueue.storage import listing
from fsqueue.storage.store import Store

HEADS_MAX = 1024
"""Maximum number of task files of a shard that are kept in mind."""
LISTING_S = 1.0
"""Without priorities another shard is listed after this time, although heads are left; with them all shards are."""
SHARDS_LISTED = 2
"""Number of shards with tasks that are looked at before a batch is chosen (the paper's peeks)."""
LISTINGS_MAX = 3
"""Maximum number of times that a strict look lists a shard, if a batch at work is missing."""
NEVER = 1 << 62
LISTING_SHARE = 1 / 20
"""Maximum part of the time that goes into listing all shards anew."""
BUSY_S = (0.05, 1.0)
"""Shortest and longest pause for a batch that another process had locked. The pause doubles each time."""
BUSY_AGAIN_S = 1.0
"""A batch found busy again so soon after such a pause rests for twice as long, also if it gave tasks in between.

Otherwise workers would meet in it all the time, and each would replay what the others do there.
"""
KNOWN_S = 10.0
"""Longest use of the rank that a batch was seen to have, if nothing can be inserted into it. A task that comes back
into it may be more urgent, and its name does not tell.
"""


class _Head(NamedTuple):
    """A task file, and the rank of the most urgent task that it may have available."""

    name: TaskFileName
    rank: Rank


class Selection:
    """Choose the next batch among the heads of shards: the most urgent one, and of one rank the oldest. Not
    thread-safe.

    Without priorities no head is better than the batch in hand. So the worker stays with that, and lists a shard only
    when it needs more. With priorities it knows the heads of all shards, and lists them all again and again.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self.next_due: dict[str, int] = {}
        """Per shard the earliest time in the future that its names mention, as of its last listing."""
        self.hidden: HiddenTasks | None = None
        """The obstacle that this sweep has met in the place of a shard's directory: tasks that it hides cannot be
        leased."""
        self._unlisted: list[str] = []
        self._further: dict[str, str] = {}
        """Per shard of which more than HEADS_MAX heads were seen: behind which birth those begin that are left."""
        self._listed_at = -math.inf
        self._heads: dict[Batch, _Head] = {}
        """Task files that may have something available."""
        self._heap: list[tuple[Rank, Batch]] = []
        """The heads, and others that are none any more."""
        self._seen: dict[str, dict[str, _Head]] = {}
        """Task files that the last listing of each shard has shown, as far as they were kept, by their names."""
        self._known: dict[Batch, tuple[str | None, Rank, float]] = {}
        """Findings of a look into a batch: the name's promise then, the rank that the batch really had, and the time
        until which that counts."""
        self._resting: dict[Batch, tuple[float, float]] = {}
        """Batches that were busy: until when they are passed over, or were lately, and how long that is."""
        self._passed_over: list[tuple[float, Rank, Batch]] = []
        """Heads that are left out of the heap while they rest."""
        self._in_hand: tuple[TaskFileName, Rank] | None = None
        """The batch that gave a task last: no head, until a choice is to be made. A worker that stays sorts nothing."""
        self.batch_in_hand: Batch | None = None
        """The batch in hand: the one that gave the last task."""
        self._limit = LAST
        """The rank of the best head, as long as `_in_hand` is set."""
        self._until = 0.0
        """Time at which the limit must be looked at again: a batch has rested, or the shards are to be listed."""
        self._seen_at = 0.0
        """Time at which the batch in hand was looked into."""
        self._began = -math.inf
        """Time at which the oldest listing began of those that were made to compare heads."""
        self._took_s = 0.0
        """Duration of the last listing of all shards (s)."""

    @property
    def is_ordered(self) -> bool:
        """Return whether the queue has tasks with priorities, as last read."""
        return self.store.queue_file.state.is_ordered

    def sweep(self, shards: list[str] | None = None) -> None:
        """Begin anew: list all shards, or those given, before anything is found empty. The heads of other
        shards stay.
        """
        self._let_go()
        self.hidden = None
        if shards is None:
            self._heads.clear()
            self._heap.clear()
            self._seen.clear()
            self._further.clear()
            self._known.clear()
            self._resting.clear()
            self._passed_over.clear()
            shards = self.store.fs.names(self.store.layout.tasks, True)
            self.next_due.clear()
            self._began = self.store.clock.monotonic() if self.is_ordered else -math.inf
        else:  # what has come due in them is looked at, whatever is known of its batch
            self._known.clear()
            self._resting.clear()
            self._make_heap()
        self._unlisted = self.store.entropy.shuffled(shards)

    def expect(self, batch: str, due: int) -> None:
        """Remember that a task in this batch will be available at `due` (ms), which the file's name does not say."""
        shard = self.store.layout.shard(batch)
        self.next_due[shard] = min(self.next_due.get(shard, NEVER), due)

    def due(self, now: int) -> list[str]:
        """Return the shards of which a name promised something for a time that has come."""
        return [shard for shard, time in self.next_due.items() if time <= now]

    def earliest(self) -> int:
        """Return the earliest time in the future (ms) at which a listed shard said that something will be available."""
        return min(self.next_due.values(), default=NEVER)

    def keep_up(self, now: int, every: bool = False) -> None:
        """List shards before the next choice: two a call until all are listed; then all anew after a second.

        `every`: list each shard that was not listed yet. Without priorities list one shard a second, and none anew.
        """
        self._let_go()
        clock = self.store.clock
        begin = clock.monotonic()
        while self._passed_over and self._passed_over[0][0] <= begin:
            _, rank, batch = heappop(self._passed_over)
            heappush(self._heap, (rank, batch))
        if not self.is_ordered:
            if self._heads and begin - self._listed_at > LISTING_S:
                self._list_some(now, 1)
        elif self._unlisted:
            self._list_some(now, len(self._unlisted) if every else SHARDS_LISTED)
        elif self._is_old(begin):
            shards = self.store.fs.names(self.store.layout.tasks, True)
            for shard in self._seen.keys() - set(shards):
                self._replace(shard, {})
            for shard in shards:
                self._list(shard, now)
            self._began, self._took_s = begin, clock.monotonic() - begin
            self._known = {batch: known for batch, known in self._known.items() if known[2] > begin}
            since = begin - BUSY_AGAIN_S
            self._resting = {batch: rest for batch, rest in self._resting.items() if rest[0] > since}
            self._make_heap()

    def is_behind(self) -> bool:
        """Return whether `keep_up` would list something to compare heads, where there are priorities."""
        return bool(self._unlisted) or self._is_old(self.store.clock.monotonic())

    def _is_old(self, now_s: float) -> bool:
        return bool(self._heads or self._in_hand) and now_s >= self._old_at()

    def _old_at(self) -> float:
        """Return when all shards are to be listed anew."""
        return self._began + max(LISTING_S, self._took_s / LISTING_SHARE)

    def next(
        self, now: int, strict: bool = False, bound: Rank = LAST, stay: Batch | None = None
    ) -> TaskFileName | None:
        """Take the best head that is not less urgent than `bound` off the heads, and return it. Among equals take
        `stay` first. A strict look without priorities takes the oldest instead.

        None: all shards of this sweep were listed, and have no such head left.
        """
        self._let_go()
        if strict:
            self._list_some(now, len(self._unlisted), strict)
        rank = self.glance(now, bound)
        if rank is None:
            return None
        _, batch = self._heap[0]
        head = None if stay is None or (strict and not self.is_ordered) else self._heads.get(stay)
        if head is not None and head.rank <= rank and not self._rests(head.name.batch):
            batch = head.name.batch
        return self._heads.pop(batch).name

    def glance(self, now: int, bound: Rank = LAST) -> Rank | None:
        """Return the rank of the best head, and leave it there; None if all heads are less urgent than `bound`."""
        self._let_go()
        while (rank := self.best()) is None or rank > bound:
            if self._unlisted:
                self._list_some(now, SHARDS_LISTED)
            elif self._further:
                shard, behind = self._further.popitem()
                self._list_on(shard, now, behind, bound)
            else:
                return None
        return rank

    def best(self, without: Batch | None = None) -> Rank | None:
        """Return the rank of the best head, of another batch than the one named; None if there is none."""
        if self._in_hand is not None and self._in_hand[0].batch != without:
            self._let_go()
        heads, heap, resting, aside = self._heads, self._heap, self._resting, None
        found: Rank | None = None
        while heap:
            rank, batch = heap[0]
            head = heads.get(batch)
            if head is None or head.rank != rank:
                heappop(heap)
            elif resting and self._rests(batch):
                heappop(heap)
                heappush(self._passed_over, (resting[batch][0], rank, batch))
            elif batch == without:
                aside = heappop(heap)
            else:
                found = rank
                break
        if aside is not None:
            heappush(heap, aside)
        return found

    def limit(self, bound: Rank = LAST, without: Batch | None = None) -> Rank:
        """Return the rank up to which the batch in hand is better than any other that was seen."""
        best = self.best(without)
        return bound if best is None else min(best, bound)

    def _rests(self, batch: Batch) -> bool:
        rest = self._resting.get(batch)
        return rest is not None and rest[0] > self.store.clock.monotonic()

    def _wake(self, batch: Batch, now_s: float) -> None:
        """End the rest of a batch that is not busy any more. The length of this rest still decides that of the next
        one.
        """
        rest = self._resting.get(batch)
        if rest is not None and rest[0] > now_s:
            self._resting[batch] = (now_s, rest[1])

    def take_off(self, batch: Batch) -> None:
        """Forget a batch that has no task left, until a listing shows it again."""
        if batch == self.batch_in_hand:
            self._in_hand = self.batch_in_hand = None
        self._let_go()
        self._heads.pop(batch, None)

    def put_back(self, name: TaskFileName, rank: Rank) -> None:
        """Put a batch among the heads, with the rank of the next task that it really has."""
        self._let_go()
        self._take_in(_Head(name, rank), self.store.clock.monotonic())

    def _take_in(self, head: _Head, seen_at: float) -> None:
        name, rank = head
        self._wake(name.batch, seen_at)
        if not name.is_open and rank > name.rank:  # in an open one a task may be inserted that its name promises
            self._known[name.batch] = (name.priority, rank, seen_at + KNOWN_S)
        else:
            self._known.pop(name.batch, None)
        self._add(head)

    def keep_in_hand(self, name: TaskFileName, rank: Rank) -> None:
        """Keep the batch that gave the last task in hand, with the rank of its next task: it may give the next one,
        too.
        """
        if name.batch == self.batch_in_hand:
            self._in_hand = name, rank
            return
        self._let_go()
        if self._unlisted and self.is_ordered:
            self.put_back(name, rank)
            return
        self._seen_at = self.store.clock.monotonic()
        self._heads.pop(name.batch, None)
        self._wake(name.batch, self._seen_at)
        self._limit = self.limit()
        self._until = min(self._old_at(), self._passed_over[0][0]) if self._passed_over else self._old_at()
        self._in_hand, self.batch_in_hand = (name, rank), name.batch

    def limit_in_hand(self, batch: Batch) -> Rank | None:
        """Return the rank up to which this batch may go on giving tasks, without a choice among the heads, in a queue
        with priorities.

        None: choose. Another batch is in hand, or its next task is less urgent than the best head of another, or
        something is to be listed.
        """
        in_hand = self._in_hand
        if in_hand is None or in_hand[0].batch != batch:
            return None
        if in_hand[1] > self._limit:
            return None
        now = self.store.clock.monotonic()
        if now >= self._until:
            return None
        self._seen_at = now
        return self._limit

    def _let_go(self) -> None:
        """Put the batch in hand among the heads, before any of them is chosen."""
        in_hand = self._in_hand
        if in_hand is not None:
            self._in_hand = self.batch_in_hand = None
            self._take_in(_Head(*in_hand), self._seen_at)

    def rest(self, name: TaskFileName) -> None:
        """Pass over a batch for a while: another process has it locked."""
        self._let_go()
        now = self.store.clock.monotonic()
        ended, before = self._resting.get(name.batch, (0.0, 0.0))
        pause_s = min(max(BUSY_S[0], 2 * before), BUSY_S[1]) if now < ended + BUSY_AGAIN_S else BUSY_S[0]
        self._resting[name.batch] = (now + pause_s, pause_s)
        self._add(self._head(name))

    # -- listing ------------------------------------------------------------------------------------

    def _list_some(self, now: int, wanted: int, strict: bool = False) -> None:
        """List shards of this sweep until `wanted` of them had task files. `strict`: list all that are left."""
        while self._unlisted and wanted > 0:
            wanted -= self._list(self._unlisted.pop(), now, strict=strict) and not strict

    def _list(self, shard: str, now: int, strict: bool = False) -> bool:
        """List a shard from its beginning, and keep its most urgent heads. Return whether it had any.

        If it has more than are kept, the others are looked through when the heads of all shards are used up: see
        `_list_on`. Without priorities these are younger than what is kept, and only that is parsed.
        """
        due, self.next_due[shard] = self._due(shard, now, strict)
        self._listed_at = self.store.clock.monotonic()
        self._further.pop(shard, None)
        if len(due) > HEADS_MAX and not self.is_ordered:
            due = nsmallest(HEADS_MAX, due, key=_birth)
            self._further[shard] = due[-1][14:]
        seen = self._seen.get(shard, {})
        heads = {text: head for text in due if (head := seen.get(text) or self._parse(text)) is not None}
        if len(heads) > HEADS_MAX:
            best = nsmallest(HEADS_MAX, heads.items(), key=lambda item: (item[1].rank, item[1].name.batch))
            heads = dict(best)
            self._further[shard] = ""
        self._replace(shard, heads)
        return bool(heads)

    def _list_on(self, shard: str, now: int, behind: str, bound: Rank) -> None:
        """Add the heads of a shard, of batches named later than `behind`, the oldest first.

        An open batch may become more urgent, and so its rank is no place in the shard: a batch could be passed over
        that moves from behind the last head to before it. Its birth stays.
        """
        due, promised = self._due(shard, now)
        self.next_due[shard] = min(promised, self.next_due.get(shard, NEVER))
        texts = sorted((text for text in due if text[14:] > behind), key=_birth)
        heads = [head for text in texts if (head := self._parse(text)) is not None and head.rank <= bound]
        if len(heads) > HEADS_MAX:
            heads = heads[:HEADS_MAX]
            self._further[shard] = str(heads[-1].name)[14:]
        for head in heads:
            self._seen.setdefault(shard, {})[str(head.name)] = head
            self._add(self._head(head.name))

    def _names(self, shard: str, strict: bool) -> list[str]:
        """Return the names of a shard's task files.

        A listing may miss a file that is being renamed, and an inserter renames an open batch when a more urgent task
        joins it. Such a batch has a log. So a strict look lists the logs, too, and the files again if one is missing.
        """
        path = f"{self.store.layout.tasks}/{shard}"
        texts: list[str] = []
        try:
            texts = [text for text in self.store.fs.names(path, True) if text[13:14] == "-"]
            for _ in range(LISTINGS_MAX - 1 if strict else 0):
                there = {text[14:46]: text for text in texts}
                if there.keys() >= set(listing.logs(self.store, shard_listed(shard))):
                    break
                there |= {text[14:46]: text for text in self.store.fs.names(path) if text[13:14] == "-"}
                texts = list(there.values())
        except HiddenTasks as error:  # the other shards may have tasks
            if shard in names.all_shards(self.store.layout.shards):  # else it is a stray
                self.hidden = error
        return texts

    def _due(self, shard: str, now: int, strict: bool = False) -> tuple[list[str], int]:
        """List a shard. Return the names of task files that promise something now, and when the first of the others
        does.
        """
        texts = self._names(shard, strict)
        limit = f"{now:013d}~"
        later = min((text for text in texts if text > limit), default=None)
        promised = int(later[:13]) if later is not None and later[:13].isdigit() else NEVER
        return [text for text in texts if text < limit], promised

    @staticmethod
    def _parse(text: str) -> _Head | None:
        name = names.parse_task_file(text)
        return None if name is None else _Head(name, name.rank)

    def _replace(self, shard: str, heads: dict[str, _Head]) -> None:
        """Take in what a listing has shown of a shard, in place of what the one before did."""
        before = self._seen.get(shard, {})
        for text in before.keys() - heads.keys():
            head = self._heads.get(before[text].name.batch)
            if head is not None and head.name == before[text].name:
                del self._heads[head.name.batch]
        self._seen[shard] = heads
        for head in heads.values():
            self._add(self._head(head.name, head.rank))

    def _head(self, name: TaskFileName, rank: Rank | None = None) -> _Head:
        """Return a head with the rank that its name promises, or that is known to be left."""
        promised = name.rank if rank is None else rank
        known = self._known.get(name.batch)
        if known is not None and not name.is_open:
            priority, left, until = known
            if priority == name.priority and self.store.clock.monotonic() < until:
                promised = max(promised, left)
        return _Head(name, promised)

    def _add(self, head: _Head) -> None:
        before = self._heads.get(head.name.batch)
        self._heads[head.name.batch] = head
        if before is None or before.rank != head.rank:
            heappush(self._heap, (head.rank, head.name.batch))
            if len(self._heap) > 4 * len(self._heads) + HEADS_MAX:
                self._make_heap()

    def _make_heap(self) -> None:
        """Make the heap anew, without batches that are no heads any more."""
        self._heap = [(head.rank, batch) for batch, head in self._heads.items()]
        heapify(self._heap)
        self._passed_over.clear()


def _birth(text: str) -> str:
    return text[14:]


class RandomSelection(Selection):
    """Heads in no order: for lessees that any task will do, and that are not to meet at the same ones."""

    def keep_up(self, now: int, every: bool = False) -> None:
        """Begin anew after a second, so that tasks that were inserted meanwhile may be chosen, too."""
        if self._listed_at + LISTING_S < self.store.clock.monotonic():
            self.sweep()

    def next(
        self, now: int, strict: bool = False, bound: Rank = LAST, stay: Batch | None = None
    ) -> TaskFileName | None:
        """Return a head that is not less urgent than `bound`, taken off the cache. None: see `Selection.next`."""
        if strict:
            self._list_some(now, len(self._unlisted), strict)
        if self.glance(now, bound) is None:
            return None
        found = [head for head in self._heads.values() if head.rank <= bound and not self._rests(head.name.batch)]
        name = found[int(self.store.entropy.random() * len(found))].name
        del self._heads[name.batch]
        return name

    def limit(self, bound: Rank = LAST, without: Batch | None = None) -> Rank:
        """Return the bound: heads are not compared."""
        return bound

    def keep_in_hand(self, name: TaskFileName, rank: Rank) -> None:
        """Put the batch back: the next task may come from any."""
        self.put_back(name, rank)
