"""How a queue is doing: rates, how long leases take, failures by reason, the oldest leases (TaskMaster, section 3.5).

All of it comes from what the other verbs write anyway, and is cheap however many tasks there are. Shards are looked
into in a random order, each wholly, until a fixed number of logs or bytes was read: the names of its task files (when
each batch was inserted), its logs, the end of its history. A batch's shard is a hash, so a part of the shards tells
of all of them. Nothing is locked, and nothing changes.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from heapq import nlargest, nsmallest
from typing import Any, NamedTuple

from fsqueue import deadletters, history, inspection, names
from fsqueue.ledger import AVAILABLE, COMPLETED, DEAD, LEASED, Ledger
from fsqueue.store import Store
from fsqueue.task import DeadLetter

WINDOWS_S = (60.0, 3600.0)
"""What rates are averages over, unless the caller says: the second where too little was finished in the first."""
FEW = 30
"""So many finished tasks are enough."""
LEAST_S = 1.0
"""A window that is shorter tells no rate."""
LOGS_MAX, BYTES_MAX = 512, 4 << 20
"""No further shard is looked into after so many logs, or bytes of logs and history. One shard takes as much at most."""
LETTERS_BYTES_MAX = 1 << 20
"""How much is read of the dead letters, from their ends."""
OLDEST, REASONS = 10, 20
"""How many of the oldest leases, and of the most frequent reasons, are told."""
PIECES = 10
"""Into how many pieces a window is cut, to see how much a rate varies."""
QUANTILE = 2.26
"""Student's t, 9 degrees of freedom: 19 of 20 times the rate lies within so many standard errors."""

_NUMBER = re.compile(r"(?<![0-9])(?<!exit status )[0-9]+")
HEADLINE_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Rate:
    """Tasks a second (`per_s`), on average over the last `over_s` seconds, with its standard error.

    The error is that of batch means (Law and Kelton): the window is cut into ten pieces, and the spread of what
    happened in each tells how far the average may be from the rate at which things go on. Where only a part of the
    shards was read, the spread between those is added to it.
    """

    per_s: float
    error: float
    over_s: float


class TimeLeft(NamedTuple):
    """Seconds until all is finished at the present rate; 19 of 20 times from `least_s` to `most_s` (None: no end)."""

    likely_s: float
    least_s: float
    most_s: float | None


@dataclass(frozen=True, slots=True)
class Held:
    """A lease that somebody holds: the id of its first task, how many of its batch it holds, since and until when.

    Times are Unix seconds on the file server's clock. `worker`: host, pid, address, Slurm job, as it said itself.
    """

    id: str
    tasks: int
    since: float
    until: float
    attempt: int
    worker: dict[str, Any] | None


@dataclass(slots=True)
class Failure:
    """Failures whose reasons differ in numbers only (but for exit statuses); `reason` is the first line of one.

    `dead` of them were given up; `retrying` tasks failed last time and come back. `last` is Unix seconds, if known.
    """

    reason: str
    dead: int = 0
    retrying: int = 0
    last: float | None = None
    example: str = ""


@dataclass(frozen=True, slots=True)
class Activity:
    """How a queue is doing. `at`: Unix seconds on the file server's clock.

    Rates of insertion, of leasing, of completion, and of finishing (completed or given up); None where they are not
    known: the queue keeps no history, or more happened within a second than is read. Those of work begin with the
    first lease, if it is younger than the window.

    `lease_s`: how long a completed task had been leased, on average over the window, in seconds; `lease_error` its
    standard error, `measured` the number of tasks that it comes from.

    `share`: the part of the shards that was read; `whole_reasons`: whether all dead letters were.
    """

    at: float
    inserted: Rate | None
    leased: Rate | None
    completed: Rate | None
    finished: Rate | None
    lease_s: float | None
    lease_error: float | None
    measured: int
    share: float
    oldest: list[Held] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    whole_reasons: bool = True

    def left(self, remaining: int) -> TimeLeft | None:
        """When `remaining` tasks will be finished, if things go on and nothing is added; None: not known."""
        if self.finished is None or not self.finished.per_s:
            return None
        rate, spread = self.finished.per_s, QUANTILE * self.finished.error
        most = remaining / (rate - spread) if rate > spread else None
        return TimeLeft(remaining / rate, remaining / (rate + spread), most if remaining else 0.0)

    def as_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        return asdict(self)


def headline(reason: str) -> str:
    """The first line of a reason, cut."""
    return reason.partition("\n")[0][:HEADLINE_CHARS_MAX]


def alike(reason: str) -> str:
    """What reasons have in common that differ in numbers only (but for exit statuses)."""
    return _NUMBER.sub("#", headline(reason))


def activity(store: Store, window_ms: int | None = None) -> Activity:
    """How the queue is doing, over a window of so many milliseconds, or one that suits it."""
    store.refresh(now=True)
    while True:
        found = _activity(store, window_ms)
        if not store.refresh(now=True):  # what is seen while a queue is purged is of no moment
            return found


def together(found: Sequence[Activity]) -> Activity:
    """Several queues as one: sums of rates, means over all measured tasks, all failures and the oldest leases."""
    measured = sum(one.measured for one in found)
    weighed = [(one.measured / measured, one) for one in found if one.measured]
    return Activity(
        at=max((one.at for one in found), default=0.0),
        inserted=_sum([one.inserted for one in found]),
        leased=_sum([one.leased for one in found]),
        completed=_sum([one.completed for one in found]),
        finished=_sum([one.finished for one in found]),
        lease_s=sum(weight * (one.lease_s or 0) for weight, one in weighed) if weighed else None,
        lease_error=math.hypot(*(weight * (one.lease_error or 0) for weight, one in weighed)) if weighed else None,
        measured=measured,
        share=min((one.share for one in found), default=1.0),
        oldest=nsmallest(OLDEST, (held for one in found for held in one.oldest), key=lambda held: held.since),
        failures=_most_frequent(_merged(failure for one in found for failure in one.failures)),
        whole_reasons=all(one.whole_reasons for one in found),
    )


def _sum(rates: Sequence[Rate | None]) -> Rate | None:
    known = [rate for rate in rates if rate is not None]
    if len(known) < len(rates) or not known:
        return None
    return Rate(
        sum(rate.per_s for rate in known),
        math.hypot(*(rate.error for rate in known)),
        max(rate.over_s for rate in known),
    )


# -- reading -----------------------------------------------------------------------------------------


def _activity(store: Store, window_ms: int | None) -> Activity:
    survey = _Survey(store, round(WINDOWS_S[0] * 1000) if window_ms is None else window_ms)
    if window_ms is None and survey.is_touched and survey.total(FINISHED) < FEW:
        survey = _Survey(store, round(WINDOWS_S[1] * 1000))
    letters, whole = deadletters.latest(store, LETTERS_BYTES_MAX)
    durations = [ms / 1000 for at, ms in survey.durations if at >= survey.since]
    return Activity(
        at=survey.now / 1000,
        inserted=survey.rate(INSERTED, survey.since),
        leased=survey.rate(LEASES, survey.work_since()),
        completed=survey.rate(COMPLETIONS, survey.work_since()),
        finished=survey.rate(FINISHED, survey.work_since()),
        lease_s=sum(durations) / len(durations) if durations else None,
        lease_error=math.sqrt(_variance(durations) / len(durations)) if len(durations) > 1 else None,
        measured=len(durations),
        share=len(survey.shards) / survey.frame if survey.frame else 1.0,
        oldest=nsmallest(OLDEST, survey.held, key=lambda held: held.since),
        failures=_most_frequent(_merged([*survey.failures.values(), *map(_of_letter, letters)])),
        whole_reasons=whole,
    )


INSERTED, LEASES, COMPLETIONS, FINISHED = range(4)
Events = tuple[defaultdict[int, float], ...]
"""How many tasks were inserted, leased, completed, finished at which time (ms), in one shard."""


class _Survey:
    """What was read. `since`: from when on nothing is missing (ms), in the shards that were looked into."""

    def __init__(self, store: Store, window_ms: int) -> None:
        self.store = store
        self.now = store.clock.now_ms()
        self.since = self.asked = self.now - window_ms
        self.shards: list[Events] = []
        self.durations: list[tuple[int, int]] = []
        """When a task was completed, and how long it had been leased (ms)."""
        self.held: list[Held] = []
        self.failures: dict[str, Failure] = {}
        self.logs = self.bytes = 0
        self.was_at_work = False
        """Whether a lease is older than the window, and reaches into it."""
        kept = history.recent_files(store, self.asked)
        frame = sorted({*inspection.shards(store), *kept} & set(names.all_shards(store.layout.shards)))
        self.frame = len(frame)
        for shard in sorted(frame, key=lambda _: store.entropy.random()):
            if self.logs >= LOGS_MAX or self.bytes >= BYTES_MAX:
                break
            self._look_into(shard, kept.get(shard, []))
        self.is_touched = bool(kept or self.logs)

    def _look_into(self, shard: str, days: list[str]) -> None:
        """Names, logs, history, in this order: what finishes meanwhile is seen again, and not missed."""
        files = inspection.task_files(self.store, shard)
        logs = sorted(inspection.logs(self.store, shard), key=lambda _: self.store.entropy.random())
        events, of_logs = _events(), _events()
        for batch, name in files.items():
            self._insert(events, batch, name.count)
        read: set[str] = set()
        size = 0
        for batch in logs[:LOGS_MAX]:
            if size >= BYTES_MAX:
                break
            content, ledger = inspection.read_log(self.store, batch), Ledger()
            ledger.fold(content, 0)
            size += len(content)
            read.add(batch)
            self._add(of_logs, batch, ledger)
            if batch not in files:
                self._insert(of_logs, batch, ledger.count)
        for total, part in zip(events, of_logs, strict=True):
            for at, tasks in part.items():
                total[at] += tasks * len(logs) / len(read)  # those that were not read will be like them
        recent = history.recent(self.store, shard, days, self.asked, BYTES_MAX)
        self.since = max(self.since, recent.since)
        for batch, records in recent.batches:
            if batch not in read:
                read.add(batch)
                ledger = history.replay(records)
                self._add(events, batch, ledger)
                if batch not in files:
                    self._insert(events, batch, ledger.count)
        self.logs += len(logs[:LOGS_MAX])
        self.bytes += size + recent.bytes
        self.shards.append(events)

    def _insert(self, events: Events, batch: str, tasks: int) -> None:
        if (birth := names.birth_ms(batch)) >= self.asked:
            events[INSERTED][birth] += tasks

    def _add(self, events: Events, batch: str, ledger: Ledger) -> None:
        """What a ledger tells of the window, and of now."""
        for lease in ledger.leases.values():
            if lease.at >= self.asked:
                events[LEASES][lease.at] += len(lease.tasks)
        held: dict[str, tuple[int, int]] = {}
        for index, (state, since, holder) in enumerate(zip(ledger.state, ledger.since, ledger.holder, strict=True)):
            if state == LEASED and since > self.now and holder is not None:
                first, tasks = held.get(holder.id, (index, 0))
                held[holder.id] = first, tasks + 1
            elif state in (COMPLETED, DEAD) and since >= self.asked:
                events[FINISHED][since] += 1
                if state == COMPLETED and holder is not None:
                    events[COMPLETIONS][since] += 1
                    self.durations.append((since, since - holder.at))
            else:
                continue
            self.was_at_work = self.was_at_work or (holder is not None and holder.at < self.asked)
        for lease_id, (first, tasks) in held.items():
            lease = ledger.leases[lease_id]
            self.held.append(
                Held(
                    names.task_id(batch, first),
                    tasks,
                    lease.at / 1000,
                    ledger.since[first] / 1000,
                    ledger.attempts[first] + 1,
                    lease.worker,
                )
            )
        for index, reason in ledger.errors.items():
            if ledger.state[index] in (AVAILABLE, LEASED):
                failure = self.failures.setdefault(alike(reason), Failure(headline(reason)))
                failure.retrying += 1
                failure.example = failure.example or names.task_id(batch, index)

    # -- reckoning --------------------------------------------------------------------------------

    def total(self, kind: int) -> float:
        """How many tasks something happened to, in all shards."""
        return sum(sum(events[kind].values()) for events in self.shards) * self._scale()

    def _scale(self) -> float:
        return self.frame / len(self.shards) if self.shards else 1.0

    def work_since(self) -> int:
        """When work began, if that was in the window: a rate over a time before that would be nobody's."""
        first = min((at for events in self.shards for at in events[LEASES]), default=self.since)
        return self.since if self.was_at_work else max(self.since, first)

    def rate(self, kind: int, begin: int) -> Rate | None:
        """How often something happened from `begin` (ms) on."""
        over_s = (self.now - begin) / 1000
        if over_s < LEAST_S or not self.store.settings.keep_history:
            return None
        pieces = [0.0] * PIECES
        shards = []
        for events in self.shards:
            tasks = 0.0
            for at, number in events[kind].items():
                if at >= begin:
                    piece = (min(at, self.now - 1) - begin) * PIECES // (self.now - begin)  # other hosts' clocks differ
                    pieces[piece] += number * self._scale()
                    tasks += number
            shards.append(tasks)
        if not any(pieces):
            return Rate(0.0, 1 / over_s, over_s)  # as after one
        error = math.sqrt(_variance(pieces) * PIECES)
        if len(shards) < self.frame:
            spread = _variance(shards) / len(shards) if len(shards) > 1 else shards[0] ** 2
            error = math.hypot(error, self.frame * math.sqrt(spread * (1 - len(shards) / self.frame)))
        return Rate(sum(pieces) / over_s, error / over_s, over_s)


def _variance(values: Sequence[float]) -> float:
    """Of the population that at least two `values` are a sample of."""
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


def _events() -> Events:
    return tuple(defaultdict(float) for _ in range(4))


# -- failures ----------------------------------------------------------------------------------------


def _of_letter(letter: DeadLetter) -> Failure:
    return Failure(headline(letter.reason), dead=1, last=letter.at, example=letter.id)


def _merged(failures: Iterable[Failure]) -> dict[str, Failure]:
    found: dict[str, Failure] = {}
    for one in failures:
        known = found.setdefault(alike(one.reason), Failure(one.reason, example=one.example))
        known.dead += one.dead
        known.retrying += one.retrying
        known.last = max((at for at in (known.last, one.last) if at is not None), default=None)
    return found


def _most_frequent(failures: dict[str, Failure]) -> list[Failure]:
    return nlargest(REASONS, failures.values(), key=lambda failure: failure.dead + failure.retrying)
