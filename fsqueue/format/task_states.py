"""The states of a batch's tasks, and what a valid record does to them (docs/format.md, "Movement logs").

Pure: no clock, no input or output. `replay_state` decides which records are valid.

A task that a prepared record of an update names is frozen: until the outcome no other record changes it, but for a
`renew` by the lease that holds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from typing import Any

from fsqueue.format import decisions
from fsqueue.format.decisions import LogName
from fsqueue.format.names import BATCH_TASKS_MAX, DecisionFileName, UpdateId
from fsqueue.format.priority import LAST, Priority, Rank, rank_of

AVAILABLE, LEASED, COMPLETED, CANCELLED, DEAD = range(5)
SKIPPED = 5
"""The state of an index that no task has: an insert named a later one."""
SURVEYED = 32
"""Number of tasks that a survey looks at."""
NEVER = 1 << 62
_AS_THEY_CAME: Sequence[int] = tuple(range(BATCH_TASKS_MAX))
"""The order of tasks as they were inserted. An entry of a tuple is found faster than one of a range."""


class Lease:
    """The right to execute tasks of one batch. `tasks` are those it was given."""

    __slots__ = ("at", "id", "is_alone", "span", "tasks", "worker")

    def __init__(self, lease: str, at: int, span: int, worker: dict[str, Any] | None) -> None:
        self.id = lease
        self.at = at
        self.span = span
        self.worker = worker
        self.is_alone = False
        """True if the call that made the lease has leased one task only."""
        self.tasks: list[int] = []

    @property
    def move(self) -> dict[str, Any] | None:
        """Return the fields of the queue to which a lease's tasks move; None if a worker has them."""
        said = None if self.worker is None else self.worker.get("move")
        return said if type(said) is dict else None

    def __lt__(self, other: Lease) -> bool:
        """Return False: heaps of leases order them by their ids, and two may have the same one in a damaged log."""
        return False


class Sharing:
    """A frozen task on which updates only depend. Any number of them may, at the same time."""

    __slots__ = ("at", "updates")

    def __init__(self, at: int) -> None:
        self.at = at
        """Time at which the first update froze the task (ms). The task has been frozen since, by one update or
        another."""
        self.updates: list[UpdateId] = []
        """The updates that depend on the task, one entry for each record that names the task."""


Verdict = list[int] | tuple[int, int, Priority | None]
"""The tasks on which a record of an update acts: the tasks that it names; or the index of the task that it inserts,
from when on that is available (ms), and its priority."""


class Prepared:
    """The prepared records of one update in a log: judged, and without an outcome so far."""

    __slots__ = ("file", "patience_ms", "records", "tasks", "update", "verdicts")

    def __init__(self, update: UpdateId, file: DecisionFileName | None, patience_ms: int) -> None:
        self.update = update
        self.file = file
        """The decision file that decides; None only while a replay judges an update that is all in one write."""
        self.patience_ms = patience_ms
        """Time that a process that meets the records waits before it asks for an `abort` (ms): the longest that one
        names."""
        self.records: list[tuple[int, int, dict[str, Any]]] = []
        """The records, each with its offset and the time at which it was judged. An `insert` of this process has no
        payload here.
        """
        self.verdicts: list[Verdict] = []
        """Verdict about each record."""
        self.tasks: list[int] = []
        """The tasks that the records freeze."""

    @property
    def at(self) -> int:
        """Return when the last record was written, as the log has it (ms)."""
        return self.records[-1][1]

    @property
    def beside(self) -> LogName | None:
        """Return the log in which the update was prepared first, as its records say; None if they name none."""
        return decisions.parse_log(self.records[0][2].get("beside"))

    @property
    def inserted(self) -> list[int]:
        """Return the indices that the inserts of the update have used up."""
        return [record["first"] for _, _, record in self.records if record["op"] == "insert"]

    def left_ms(self, waited_ms: int, now_ms: int, margin_ms: int) -> int:
        """Return how long a process goes on waiting before it asks for an `abort`; 0 or less if they are old (ms).

        They are old once the process has waited for their patience by its own clock. `waited_ms`: since it first met
        them. They are old also by their own time, unless that is in the future: a clock that was ahead may have given
        it. `margin_ms`: by how much the clocks of two hosts may differ.
        """
        left_ms = self.patience_ms - waited_ms
        return left_ms if self.at > now_ms else min(left_ms, self.at + self.patience_ms + margin_ms - now_ms)


Choice = tuple[list[int], list[int], bool]
"""The tasks that a lessee may take: tasks; tasks that are out of attempts instead; and whether the task must go
alone."""


class States:
    """The states of a batch's tasks. Indices are task indices, times milliseconds."""

    # Slots: CPython finds the attributes of an object at once that has slots, or 30 attributes at most (decision 26).
    __slots__ = (
        "_end",
        "_expiries",
        "_frontier",
        "_order",
        "_ready",
        "_returns",
        "attempts",
        "available_at",
        "base_version",
        "blamed",
        "changed",
        "count",
        "counts",
        "done",
        "ended",
        "errors",
        "finished",
        "fresh_end",
        "frozen",
        "holder",
        "ids",
        "insert_ids",
        "inserted_at",
        "inserts",
        "is_ranked",
        "leases",
        "names",
        "opened",
        "payloads",
        "places",
        "prepared",
        "priorities",
        "quiet_until",
        "ranks",
        "remaining",
        "results",
        "sealed",
        "shared",
        "since",
        "solo",
        "state",
        "took",
        "touched",
        "used",
        "version",
    )

    def __init__(self) -> None:
        self.begin(0, 0, 0)

    def begin(self, count: int, available_at: int, version: int) -> None:
        """Begin with `count` untouched tasks, available from `available_at` on, of their first record's version."""
        self.count = self.remaining = count
        self.available_at = available_at
        self.base_version = version
        self.opened = False
        """True if the log has its `open` record. Else nothing was done with the batch yet."""
        self.inserts: str | None = None
        """Domain whose inserts the batch takes, or took before it was sealed; None if its tasks are in its file."""
        self.sealed = False
        self.inserted_at = 0
        """Time at which the last task was inserted into the log (ms); at first the batch's birth."""
        self.places: dict[int, int] = {}
        """Offsets of the `insert` records of tasks in the log that have no outcome, or are dead."""
        self.priorities: dict[int, Priority] = {}
        """The priorities of the tasks in `places` that have one."""
        self.ranks: dict[int, Rank] = {}
        """The ranks of tasks that are known to have a priority. All others have the rank LAST."""
        self.changed: dict[int, Priority | None] = {}
        """The priorities that `change` records gave tasks, in place of those with which they were inserted."""
        self.is_ranked = False
        """True if the ranks were learned. Until then a file's tasks are taken for equals."""
        self.insert_ids: set[str] = set()
        """The ids that no `insert` may have any more: of those since the last checkpoint."""
        self.finished = False
        self.state = bytearray(count)
        self.since = [available_at] * count
        """Time from which on a task is available, or until which it is leased, or since which it has its outcome
        (ms)."""
        self.holder: list[Lease | None] = [None] * count
        self.attempts = [0] * count
        self.version = [version] * count
        self.solo: set[int] = set()
        """Tasks that were leased with others when their worker died: they are leased alone from then on."""
        self.payloads: dict[int, Any] = {}
        self.errors: dict[int, str] = {}
        self.blamed: dict[int, dict[str, Any]] = {}
        """The worker of the last attempt at tasks that were buried without a lease, where the record tells it. Behind a
        checkpoint not of those buried before."""
        self.ended: set[tuple[int, str]] = set()
        """Tasks that were released, failed or buried by a lease, each with that lease."""
        self.results: dict[int, Any] = {}
        self.used: dict[int, tuple[int, int]] = {}
        """Processor time (ms) and peak memory (KiB) of the last attempt that completed, failed or buried a task, where
        they were measured."""
        self.took: dict[int, int] = {}
        """Duration of the work on completed tasks (ms), where a record tells."""
        self.leases: dict[str, Lease] = {}
        """All leases that are known, by their ids; behind a checkpoint, of older ones those only that hold a task."""
        self.ids: set[str] = set()
        """The ids that no `lease` may have any more: of leases since the last checkpoint, and of those that hold."""
        self.touched: set[int] = set()
        """The tasks that are not as they began, and neither completed nor cancelled."""
        self.names: dict[str, None] = {}
        """Every name of the task file that a record mentions, the last one mentioned last."""
        self.counts: list[tuple[str, int, int]] = []
        """(counter file, offset, bytes) of each `count`."""
        self.done = [0] * 5
        """Number of tasks with each outcome."""
        self.prepared: dict[UpdateId, Prepared] = {}
        """The updates that have prepared records here without an outcome."""
        self.frozen: dict[int, UpdateId] = {}
        """The tasks that prepared records name, each with its update; if several updates depend on it, with one."""
        self.shared: dict[int, Sharing] = {}
        """The frozen tasks on which updates only depend."""
        self._order = _AS_THEY_CAME
        """Tasks that are as they began are chosen in this order: by their ranks, equals by their indices."""
        self._frontier, self._end = 0, count
        """The places in `_order` between which tasks are that no lessee has looked at."""
        self._ready: list[tuple[Rank, int]] = []
        """Tasks that have come back, or were inserted after ranks were learned."""
        self._returns: list[tuple[int, int]] = []
        self._expiries: list[tuple[int, str, Lease]] = []
        """Time at which each lease ends, or would have ended before a renewal; the lease's id, and the lease."""
        self.fresh_end, self.quiet_until = 0, 0
        """Findings of `survey`: the end of the run of fresh tasks, and the time until which nothing else comes (ms).
        `Log.catch_up` forgets them: a section that comes between may change anything."""

    # -- reading ------------------------------------------------------------------------------

    def holds(self, index: int, lease: str) -> bool:
        """Return whether a task's latest lease is still this one, run out or not. No lease holds a frozen task."""
        if index < self.count and self.state[index] == LEASED:
            holder = self.holder[index]
            return holder is not None and holder.id == lease and not (self.frozen and index in self.frozen)
        return False

    def held(self, tasks: list[int], lease: str) -> list[int]:
        """Return the tasks among `tasks` whose latest lease is still this one. Frozen tasks are left out."""
        found = self.named_by(tasks, lease)
        return [index for index in found if index not in self.frozen] if self.frozen else found

    def named_by(self, tasks: list[int], lease: str) -> list[int]:
        """Return the tasks among `tasks` whose latest lease is still this one, frozen tasks too."""
        latest, state, holder = self.leases.get(lease), self.state, self.holder
        if latest is None:
            return []
        return [index for index in tasks if index < self.count and state[index] == LEASED and holder[index] is latest]

    def is_free(self, index: int, at: int) -> bool:
        """Return whether the task has no outcome, no lease holds it at `at`, and it is not frozen."""
        state = self.state[index]
        if self.frozen and index in self.frozen:
            return False
        return state == AVAILABLE or (state == LEASED and self.since[index] <= at)

    def due_at(self, tasks: Iterable[int], at: int) -> list[int]:
        """Return the tasks among `tasks` that wait, and are due at exactly this time."""
        state, since = self.state, self.since
        return [index for index in tasks if state[index] == AVAILABLE and since[index] == at]

    def charged(self, index: int) -> int:
        """Return how many attempts at a task the next lease finds charged. A lease that ran out counts if its
        call held this task alone.
        """
        holder = self.holder[index] if self.state[index] == LEASED else None
        return self.attempts[index] + (1 if holder is not None and holder.is_alone else 0)

    def exhausted(self, at: int) -> bool:
        """Return whether no task of the batch is available at `at`, as far as is known (a lease may run out).

        False while anything is prepared: its outcome may make a task available at any moment.
        """
        if self.prepared:
            return False
        place, end = self._frontier, self._end
        if place < end and (self.version[self._order[place]] == self.base_version or self._untouched() < end):
            return False  # mostly the next task is as it began
        ready, returns = self._ready, self._returns
        while ready and not self.is_free(ready[0][1], at):
            heappop(ready)
        while returns and not self._is_due(*returns[0]):
            heappop(returns)
        return not ready and (not returns or returns[0][0] > at)

    def _untouched(self) -> int:
        """Return the place of the next task in `_order` that is as it began; `_end` if there is none."""
        order, state, touched, place, end = self._order, self.state, self.touched, self._frontier, self._end
        while place < end and (state[order[place]] != AVAILABLE or order[place] in touched):
            place += 1
        self._frontier = place
        return place

    def _is_due(self, since: int, index: int) -> bool:
        """Return whether a task still becomes available at `since`. A frozen task does not: it is expected anew
        later.
        """
        return self.state[index] == AVAILABLE and self.since[index] == since and index not in self.frozen

    def next_time(self) -> int | None:
        """Return the earliest time (ms, maybe past) at which a task is or becomes available; None if there is none.

        While anything is prepared: 0, since its outcome may make a task available at any moment.
        """
        if self.prepared:
            return 0
        best: list[int] = []
        if self._untouched() < self._end:
            best.append(self.available_at)
        while self._returns:
            if self._is_due(*self._returns[0]):
                best.append(self._returns[0][0])
                break
            heappop(self._returns)
        while self._expiries:
            until, _, lease = self._expiries[0]
            if self._ends_at(until, lease):
                best.append(until)
                break
            heappop(self._expiries)
        best += [self.since[index] for _, index in self._ready if self.state[index] <= LEASED]
        return min(best, default=None)

    def next_change(self) -> int | None:
        """Return when the first delayed or leased task may come back; None if there is none. A hint.

        Tasks that `choose` and `head` have gathered already do not count.
        """
        times = [heap[0][0] for heap in (self._returns, self._expiries) if heap]
        return min(times, default=None)

    def rank_tasks(self, priorities: Mapping[int, object]) -> None:
        """Choose the most urgent tasks first from now on. `priorities`: those of the tasks that have one.

        It acts once.
        """
        self.take_ranks({index: rank for index, given in priorities.items() if (rank := rank_of(given)) != LAST})

    def take_ranks(self, ranks: dict[int, Rank]) -> None:
        """Choose the most urgent tasks first from now on. `ranks`: those of the tasks that have a priority."""
        if self.is_ranked:
            return
        get, state, touched, order = ranks.get, self.state, self.touched, self._order
        left = [each for each in order[self._frontier : self._end] if state[each] == AVAILABLE and each not in touched]
        given = [get(index, LAST) for index in left]
        if given != sorted(given):  # else they are in that order already, as a bulk insert writes them
            left.sort(key=lambda index: get(index, LAST))
            self._order, self._frontier, self._end = left, 0, len(left)
        self._rank_ready(ranks)

    def take_over_ranks(self, known: States) -> None:
        """Take over the ranks and the sorted order of `known`, an earlier state of this batch. Its tasks are in a task
        file.

        Tasks in front of its frontier are not as they began. Those of them that come back were restated.
        """
        if known.is_ranked and not self.is_ranked:
            self._order, self._frontier, self._end = known._order, known._frontier, known._end
            self._rank_ready(known.ranks)

    def _rank_ready(self, ranks: dict[int, Rank]) -> None:
        self.ranks, self.is_ranked = ranks, True
        self.rank_changed()
        self._ready = [(ranks.get(index, LAST), index) for _, index in self._ready]
        heapify(self._ready)

    def rank_changed(self) -> None:
        """Give the tasks in `changed` the ranks of their new priorities."""
        for index, given in self.changed.items():
            if given is None:
                self.ranks.pop(index, None)
            else:
                self.ranks[index] = rank_of(given)

    def rank(self, index: int) -> Rank:
        """Return the rank of a task, as far as it is known."""
        return self.ranks.get(index, LAST)

    def head(self, at: int, margin: int) -> Rank | None:
        """Return the rank of the most urgent task that `choose` could take next; None if there is none."""
        returns, expiries, ready = self._returns, self._expiries, self._ready
        if (expiries and expiries[0][0] <= at) or (returns and returns[0][0] <= at):
            self._gather(at, margin)
        while ready and not self.may_be_taken(ready[0][1], at, margin):
            heappop(ready)
        best = ready[0][0] if ready else None
        if self.available_at <= at and (place := self._untouched()) < self._end:
            fresh = self.ranks.get(self._order[place], LAST)
            return fresh if best is None or fresh < best else best
        return best

    def choose(
        self, at: int, most: int, margin: int, attempts_max: int | None, solo: bool = True, limit: Rank = LAST
    ) -> Choice:
        """Choose up to `most` tasks to lease at `at`. It changes the indexes: lease what it returns, or drop the state.

        The most urgent tasks come first, those of one rank in their order. Nothing less urgent than `limit` is chosen.
        A lease that ran out may be taken `margin` ms later, at most a tenth of its length. With
        `solo` a task that must go alone is returned alone; without, such tasks are passed over.
        """
        returns, expiries = self._returns, self._expiries
        if (expiries and expiries[0][0] <= at) or (returns and returns[0][0] <= at):
            self._gather(at, margin)
        if self._ready:
            chosen, spent, aside, alone = self._sift(self._by_rank(at, limit), at, most, margin, attempts_max, solo)
            for index in aside:
                self._offer(index)
            return chosen, spent, alone
        if self.available_at > at:
            return [], [], False
        place, order = self._frontier, self._order  # as in most cases, all that is left is as it began
        if most == 1 and place < self._end:
            index = order[place]
            if self.state[index] == AVAILABLE and index not in self.touched:
                if limit is not LAST and self.ranks.get(index, LAST) > limit:
                    return [], [], False
                self._frontier = place + 1
                return [index], [], False
        state, touched, end = self.state, self.touched, self._end
        chosen = []
        stop = max(place, min(place + most, end))
        if self._are_fresh(place, stop) and (limit is LAST or self.ranks.get(stop - 1, LAST) <= limit):
            chosen += range(place, stop)
            place = stop
        while len(chosen) < most and place < end:
            index = order[place]
            if state[index] == AVAILABLE and index not in touched:
                if limit is not LAST and self.ranks.get(index, LAST) > limit:
                    break
                chosen.append(index)
            place += 1
        self._frontier = place
        return chosen, [], False

    def survey(self, at: int) -> bool:
        """Count the next tasks that are as they began. Return True if there are at least two, and no other task can be
        leased.

        These tasks are at the places from `_frontier` to `fresh_end` in `_order`. What may be leased besides them comes
        back at `quiet_until` at the earliest. That holds as long as tasks are only leased from there, or completed.
        """
        returns, expiries, self.fresh_end = self._returns, self._expiries, 0
        until = min(returns[0][0] if returns else NEVER, expiries[0][0] if expiries else NEVER)
        if self._ready or at >= until:
            return False
        place = begin = self._untouched()
        order, state, touched, end = self._order, self.state, self.touched, min(self._end, begin + SURVEYED)
        if self._are_fresh(begin, end):
            place = end
        while place < end and state[order[place]] == AVAILABLE and order[place] not in touched:
            place += 1
        self.fresh_end, self.quiet_until = place, until
        return place > begin + 1

    def _are_fresh(self, begin: int, end: int) -> bool:
        """Return whether the tasks at these places are known to be as they began, and in the order of their indices."""
        return (
            self._order is _AS_THEY_CAME
            and self.state.count(AVAILABLE, begin, end) == end - begin
            and self.touched.isdisjoint(range(begin, end))
        )

    def _by_rank(self, at: int, limit: Rank) -> Iterator[int]:
        """Take off and yield the tasks that may be available and are not less urgent than `limit`, by their ranks."""
        ready, order, get = self._ready, self._order, self.ranks.get
        while True:
            place = self._untouched() if self.available_at <= at else self._end
            fresh = (get(order[place], LAST), order[place]) if place < self._end else None
            if fresh is not None and (not ready or fresh < ready[0]):
                if fresh[0] > limit:
                    return
                self._frontier = place + 1
                yield fresh[1]
            elif ready and ready[0][0] <= limit:
                yield heappop(ready)[1]
            else:
                return

    def choose_any(
        self,
        at: int,
        most: int,
        margin: int,
        attempts_max: int | None,
        solo: bool,
        limit: Rank,
        shuffled: Callable[[Iterable[int]], list[int]],
    ) -> Choice:
        """Choose as `choose` does, but at random among all that may be taken and are not less urgent than `limit`."""
        free = [index for index in range(self.count) if self.is_free(index, at) and self.rank(index) <= limit]
        chosen, spent, _, alone = self._sift(shuffled(free), at, most, margin, attempts_max, solo)
        return chosen, spent, alone

    def choose_among(
        self, indices: Iterable[int], at: int, most: int, margin: int, attempts_max: int | None, solo: bool
    ) -> Choice:
        """Choose as `choose` does, but only among some tasks, in their order. Indices that no task has are left out."""
        self._gather(at, margin)  # what is not chosen of them is left: see `exhausted`
        known = (index for index in indices if index < self.count)
        chosen, spent, _, alone = self._sift(known, at, most, margin, attempts_max, solo)
        return chosen, spent, alone

    def _sift(
        self, tasks: Iterable[int], at: int, most: int, margin: int, attempts_max: int | None, solo: bool
    ) -> tuple[list[int], list[int], list[int], bool]:
        """Take up to `most` of the tasks, in their order: chosen ones, those out of attempts, and those that were
        passed over because they must go alone. And whether the chosen one does.
        """
        chosen: list[int] = []
        spent: list[int] = []
        aside: list[int] = []
        seen: set[int] = set()
        for index in tasks if most > 0 else ():
            if index not in seen and self.may_be_taken(index, at, margin):
                seen.add(index)
                if attempts_max is not None and self.charged(index) >= attempts_max:
                    spent.append(index)
                elif index not in self.solo and not self._expired_with_others(index):
                    chosen.append(index)
                    if len(chosen) == most:
                        break
                elif solo and not chosen:
                    return [index], spent, aside, True
                else:
                    aside.append(index)
        return chosen, spent, aside, False

    def may_be_taken(self, index: int, at: int, margin: int) -> bool:
        """Return whether a task may be leased at `at`. A lease that has run out holds its task a little longer:
        see `choose`.
        """
        if self.frozen and index in self.frozen:
            return False
        if self.state[index] == AVAILABLE:
            return self.since[index] <= at
        holder = self.holder[index]
        return (
            self.state[index] == LEASED
            and holder is not None
            and self.since[index] + min(margin, holder.span // 10) <= at
        )

    def _expired_with_others(self, index: int) -> bool:
        holder = self.holder[index]
        return self.state[index] == LEASED and holder is not None and not holder.is_alone

    def _gather(self, at: int, margin: int) -> None:
        returns, expiries = self._returns, self._expiries
        while returns and returns[0][0] <= at:
            self._offer(heappop(returns)[1])
        while expiries and expiries[0][0] <= at:
            until, _, lease = expiries[0]
            if until + min(margin, lease.span // 10) > at:
                break
            heappop(expiries)
            for index in lease.tasks:
                if self.holder[index] is lease and self.state[index] == LEASED and self.since[index] <= until:
                    self._offer(index)

    def offer(self, tasks: Iterable[int]) -> None:
        """Let `choose` find tasks again that it has chosen, and that were not leased after all."""
        for index in tasks:
            self._offer(index)

    def _offer(self, index: int) -> None:
        """Let `choose` find a task that has come back."""
        heappush(self._ready, (self.ranks.get(index, LAST), index))

    def expect(self, tasks: list[int], since: int, lease: Lease | None) -> None:
        """Note when tasks that a checkpoint restates come back: at `since`, at which `lease` ends if one holds them."""
        if self.state[tasks[0]] == AVAILABLE:
            for index in tasks:
                heappush(self._returns, (since, index))
        elif self.state[tasks[0]] == LEASED and lease is not None:
            lease.tasks += tasks
            self._expects(since, lease)

    @property
    def takes_inserts(self) -> bool:
        """Return whether a task can be inserted into the log."""
        return self.inserts is not None and not self.sealed and not self.finished

    def insert(
        self, at: int, identity: str, index: int, available_at: int, offset: int, priority: Priority | None = None
    ) -> bool:
        """Add a task whose `insert` record stands at `offset`. Return whether it was added."""
        if self.inserts is None or self.sealed or self.finished:  # `may_insert`, without a frame of its own
            return False
        if identity in self.insert_ids or not self.count <= index < BATCH_TASKS_MAX:
            return False
        if priority is not None:
            self.rank_tasks({})
        if index > self.count:
            self.skip_to(index, at, offset)
        self.state.append(AVAILABLE)
        self.since.append(available_at)
        self.holder.append(None)
        self.attempts.append(0)
        self.version.append(offset)
        self.places[index] = offset
        if priority is not None:
            self.priorities[index] = priority
            self.ranks[index] = rank_of(priority)
        self.insert_ids.add(identity)
        self.count = index + 1
        self.remaining += 1
        self.inserted_at = at
        if available_at:
            self.touched.add(index)
            heappush(self._returns, (available_at, index))
        elif self.is_ranked:
            self._offer(index)
        else:
            self._end = self.count
        return True

    def skip_to(self, index: int, at: int, offset: int) -> None:
        """Add indices that no task has, up to this one."""
        missing = index - self.count
        if missing == 1:  # as in most cases: a place for an insert
            self.state.append(SKIPPED)
            self.since.append(at)
            self.holder.append(None)
            self.attempts.append(0)
            self.version.append(offset)
            self.count = index
        elif missing > 0:
            self.state += bytes((SKIPPED,)) * missing
            self.since += [at] * missing
            self.holder += [None] * missing
            self.attempts += [0] * missing
            self.version += [offset] * missing
            self.count = index

    # -- updates ------------------------------------------------------------------------------

    def freeze(self, prepared: Prepared, tasks: list[int], shared_at: int | None = None) -> None:
        """Keep tasks that a prepared record names as they are until the outcome of its update.

        `shared_at`: the time (ms) of a record that only depends on them. Others may depend on them, too.
        """
        prepared.tasks += tasks
        if shared_at is None:
            self.frozen.update(dict.fromkeys(tasks, prepared.update))
        else:
            for index in tasks:
                self.frozen.setdefault(index, prepared.update)
                self.shared.setdefault(index, Sharing(shared_at)).updates.append(prepared.update)
        self.touched.update(tasks)  # a run of tasks that are as they began leaves them out

    def may_share(self, index: int) -> bool:
        """Return whether no update changes a task that is frozen: others may depend on it."""
        return index not in self.frozen or index in self.shared

    def thaw(self, prepared: Prepared) -> None:
        """Let other records change tasks of a decided update again. A task on which several updates depend
        stays frozen until the last of them is decided.
        """
        for index in prepared.tasks:
            self.frozen.pop(index, None)
            sharing = self.shared.get(index)
            if sharing is None:
                continue
            sharing.updates.remove(prepared.update)
            if sharing.updates:
                self.frozen[index] = sharing.updates[0]
            else:
                del self.shared[index]

    def expect_again(self, prepared: Prepared) -> None:
        """Let `choose` find tasks that were frozen. It has passed them by meanwhile, and will not look there again."""
        for index in prepared.tasks:
            holder = self.holder[index]
            if self.state[index] == AVAILABLE:
                self._comes_back(index)
            elif self.state[index] == LEASED and holder is not None:
                self._expects(self.since[index], holder)

    def may_insert(self, identity: str, index: int) -> bool:
        """Return whether an `insert` of this id may give the batch the task of this index."""
        return self.takes_inserts and identity not in self.insert_ids and self.count <= index < BATCH_TASKS_MAX

    def reserve(self, identity: str, index: int, at: int, offset: int) -> None:
        """Use up the index and the id of an `insert` that does not act yet, and perhaps never will."""
        self.skip_to(index + 1, at, offset)
        self.insert_ids.add(identity)

    def prepared_insert(self, identity: str) -> UpdateId | None:
        """Return the update that has a prepared `insert` of this id here; None if there is none."""
        for update, prepared in self.prepared.items():
            for _, _, record in prepared.records:
                if record["op"] == "insert" and record["id"] == identity:
                    return update
        return None

    def bring(self, at: int, index: int, available_at: int, offset: int, priority: Priority | None) -> None:
        """Add the task of a committed insert at the index that was reserved for it. `choose` may have passed the index,
        and finds the task as one that has come back.
        """
        if priority is not None:
            self.rank_tasks({})
            self.priorities[index] = priority
            self.ranks[index] = rank_of(priority)
        assert self.state[index] == SKIPPED, "an insert brings its task twice"
        self.state[index], self.since[index], self.version[index] = AVAILABLE, available_at, offset
        self.places[index] = offset
        self.remaining += 1
        self.inserted_at = max(self.inserted_at, at)
        self.touched.add(index)
        heappush(self._returns, (available_at, index))

    def extend(self, tasks: list[int], until: int, offset: int) -> None:
        """Renew what a prepared `renew` names. A later renewal counts more: its worker relies on that."""
        for index in tasks:
            holder = self.holder[index]
            if self.version[index] < offset and holder is not None:
                self.since[index], self.version[index] = until, offset
                self._expects(until, holder)

    def mention(self, name: str) -> None:
        """Take in that a record says that this is, or was, the task file's name."""
        self.names.pop(name, None)
        self.names[name] = None

    def last_name(self) -> str | None:
        """Return the name that was mentioned last; None if none was."""
        return next(reversed(self.names), None)

    # -- records, one by one (arguments are valid) -----------------------------------------------

    def lease(
        self,
        at: int,
        lease: str,
        tasks: list[int],
        until: int,
        worker: dict[str, Any] | None,
        several: bool,
        offset: int,
    ) -> list[int]:
        """Give the free ones of `tasks` to a new lease. Return the tasks that the lease has got."""
        if lease in self.ids:
            return []
        if self.frozen:
            tasks = [index for index in tasks if index not in self.frozen]
        made = Lease(lease, at, until - at if until > at else 0, worker)
        given = made.tasks
        state, since = self.state, self.since
        holder, version = self.holder, self.version
        for index in tasks:
            if state[index] == AVAILABLE:
                if since[index] > at:
                    continue
            elif state[index] == LEASED and since[index] <= at:
                self._expire(index)
            else:
                continue
            state[index] = LEASED
            since[index] = until
            holder[index] = made
            version[index] = offset
            given.append(index)
        if given:
            made.is_alone = not several and len(given) == 1
            self.leases[lease] = made
            self.ids.add(lease)
            self.touched.update(given)
            heappush(self._expiries, (until, lease, made))  # `_expects`, without a frame of its own
        return given

    def complete(self, at: int, tasks: list[int], offset: int, result: Any = None) -> None:
        """Complete tasks. The caller has checked that its lease holds them."""
        state, since, version = self.state, self.since, self.version
        done = len(tasks)
        for index in tasks:
            state[index] = COMPLETED
            since[index] = at
            version[index] = offset
        if self.places:
            self._forget_places(tasks)
        self.remaining -= done
        self.done[COMPLETED] += done
        self.touched.difference_update(tasks)
        if result is not None:
            self.results.update(dict.fromkeys(tasks, result))

    def reschedule(self, at: int, since: dict[int, int]) -> None:
        """Give open tasks new times at `at`: from when they are available, or until when they are leased.

        Versions stay: it is still the same task, under the same lease.
        """
        for index, time in since.items():
            lease = self.holder[index]
            if self.state[index] == AVAILABLE:
                self.since[index] = time
                self.touched.add(index)
                self._comes_back(index)
            elif self.state[index] == LEASED and lease is not None:
                self.since[index] = time
                lease.at = min(lease.at, at)
                self._expects(time, lease)

    def change(self, index: int, at: int, available_at: int | None, offset: int) -> None:
        """Give a free task another version at `at`, and if asked another time from when on it is available.

        A lease on it has run out, and ends. The task is available at once then, unless another time is asked for.
        """
        if self.state[index] == LEASED:
            self._expire(index)
            self.state[index], self.holder[index], self.since[index] = AVAILABLE, None, at
        assert self.state[index] == AVAILABLE, "a task is changed that has an outcome"
        if available_at is not None:
            self.since[index] = available_at
        self.version[index] = offset
        self.touched.add(index)
        self._ready = [(rank, ready) for rank, ready in self._ready if ready != index]  # at its old rank
        heapify(self._ready)
        self._comes_back(index)

    def prioritize(self, index: int, given: Priority | None) -> None:
        """Give a task another priority; None: none. The caller has it come back, or changes it next."""
        self.changed[index] = given
        if index in self.places:
            if given is None:
                self.priorities.pop(index, None)
            else:
                self.rank_tasks({})
                self.priorities[index] = given
        self.rank_changed()  # those of a task file are learned from there, and these count more

    def _ends_at(self, until: int, lease: Lease) -> bool:
        """Return whether a lease that ends at `until` still holds a task until then."""
        for index in lease.tasks:
            if self.state[index] == LEASED and self.holder[index] is lease and self.since[index] <= until:
                return True
        return False

    def _expects(self, until: int, lease: Lease) -> None:
        heappush(self._expiries, (until, lease.id, lease))

    def _comes_back(self, index: int) -> None:
        """Let `choose` find an available task."""
        heappush(self._returns, (self.since[index], index))

    def _return(self, index: int, available_at: int, offset: int) -> None:
        """Take a task out of its lease. It is available from `available_at` on."""
        assert self.state[index] == LEASED, "a task comes back that no lease holds"
        self.state[index] = AVAILABLE
        self.since[index] = available_at
        self.holder[index] = None
        self.version[index] = offset
        heappush(self._returns, (available_at, index))

    def decide(self, index: int, outcome: int, at: int, offset: int) -> None:
        """Give a task an outcome. The caller has checked that its lease allows that, or that no lease holds it."""
        assert self.state[index] <= LEASED < outcome, "a task gets a second outcome, or none"
        self.state[index] = outcome
        self.since[index] = at
        self.version[index] = offset
        self.remaining -= 1
        self.done[outcome] += 1
        if outcome == DEAD:
            self.touched.add(index)
        else:
            self.touched.discard(index)
            if self.places:
                self._forget_places([index])

    def _forget_places(self, done: list[int]) -> None:
        for index in done:
            self.places.pop(index, None)
            if self.priorities:
                self.priorities.pop(index, None)

    def _expire(self, index: int) -> None:
        """If the lease of a task ran out, charge an attempt. If the lease held several tasks, charge none, and
        lease each alone from now on.
        """
        holder = self.holder[index]
        if self.state[index] == LEASED and holder is not None:
            if holder.is_alone:
                self.attempts[index] += 1
            else:
                self.solo.add(index)
