"""Compute a queue's activity: rates, how long leases take, failures by reason, the oldest leases (docs/status.md).

All of it comes from what the other verbs write anyway:

- The names of the task files tell what was inserted, and when.
- The logs tell what is at work.
- The ends of the history tell what has finished.

It is cheap however many tasks there are: a bounded number of logs, and of the shards' histories, is read. They are
drawn at random, and stand for the others. Nothing is locked, and nothing changes.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from heapq import nlargest, nsmallest
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from fsqueue.cluster import identity
from fsqueue.format import names
from fsqueue.format.models import DeadLetter, Status
from fsqueue.format.names import Batch, TaskFileName
from fsqueue.format.replay import AVAILABLE, COMPLETED, DEAD, LEASED, SKIPPED, ReplayState
from fsqueue.format.task_states import Lease
from fsqueue.storage import deadletters, history, listing
from fsqueue.storage.store import Store

WINDOWS_S = (60.0, 3600.0)
"""What rates are averages over, unless the caller says: the second where work goes on, but too little was finished in
the first."""
FEW = 30
"""Smallest number of finished tasks from which the first window gives a rate."""
SPAN_S_MIN = 1.0
"""A queue in which work began more lately than this has no rate yet."""
LOGS_MAX, LOGS_BYTES_MAX = 512, 4 << 20
"""Maximum number of logs to read; number of bytes of logs after which no further log is read."""
HISTORY_BYTES_MAX = 4 << 20
"""Number of bytes of history after which no further shard's is read; most bytes to read of one shard's."""
TASKS_MAX = 1 << 16
"""Number of leases of tasks after which no further log is read; of a history that has more tasks, batches are drawn at
random. A batch that was worked off at once has a thousand tasks in 700 bytes: a bound of bytes alone bounds no work."""
GROUPS = 32
"""Into how many groups the batches are put that were drawn, to see how much they differ."""
LETTERS_BYTES_MAX = 1 << 20
"""How much is read of the dead letters, from their ends."""
OLDEST, REASONS = 10, 20
"""How many of the oldest leases, and of the most frequent reasons, are told."""
STILL_S = 10.0
"""No worker is at work if none holds a task, and none was finished for this time."""
PIECES = 10
"""Into how many pieces a window is cut, to see how much a rate varies."""
QUANTILE = 2.26
"""Student's t, 9 degrees of freedom: the number of standard errors within which the rate lies 19 of 20 times."""

_MEMORY = re.compile(r"(?:probably )?out of memory(?= \()")
"""Matches the beginning of a reason that a worker gives for want of memory: see `worker.causes.Memory`."""
_NUMBER = re.compile(r"(?<![0-9])(?<!exit status )[0-9]+")
HEADLINE_CHARS_MAX = 200


@dataclass(frozen=True, slots=True)
class Rate:
    """Tasks a second (`per_s`), on average over the last `over_s` seconds, with its standard error.

    The error is that of batch means (Law and Kelton): the window is cut into ten pieces, and the spread of what
    happened in each tells how far the average may be from the rate at which things go on. Where only a part of the
    files was read, the spread between those is added to it.
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
    """A lease that a worker holds: the id of its first task, how many of its batch it holds, since and until when.

    Times are Unix seconds on the file server's clock. `worker`: host, pid, address, Slurm job, as it said itself.
    """

    id: str
    tasks: int
    since: float
    until: float
    attempt: int
    worker: dict[str, Any] | None


@dataclass(frozen=True, slots=True)
class MostUsed:
    """The most that an attempt used, of memory and of processor time, each with the id of its task.

    Of each task the last attempt counts that completed, failed or buried it, where the worker measured that: `attempts`
    tells how many these are.
    """

    attempts: int
    peak_memory_bytes: int
    memory_id: str
    cpu_s: float
    cpu_id: str


@dataclass(slots=True)
class Failure:
    """Failures whose reasons are `alike`; `reason` is the first line of one.

    `dead` of them were given up; `retrying`: the last attempt failed, and they come back. `last` is Unix seconds, if
    known.
    """

    reason: str
    dead: int = 0
    retrying: int = 0
    last: float | None = None
    example: str = ""

    def covers(self, reason: str) -> bool:
        """Return whether a failure for this reason is counted here."""
        return alike(reason) == alike(self.reason)


@dataclass(frozen=True, slots=True)
class Activity:
    """A queue's activity. `at`: Unix seconds on the file server's clock.

    Rates of insertion, of leasing, of completion, and of finishing (completed or given up); None where they are not
    known: the queue keeps no history, or more happened within a second than is read. Those of work begin with the
    first lease, if it is younger than the window.

    `lease_s`: how long a completed task had been leased, on average over the window, in seconds; `lease_error` its
    standard error, `measured` the number of tasks that it comes from. `work_s`: how long the work on them took, on
    average, which is less where workers lease ahead.

    `share`: the part of the logs, or of the history if that is less, that was read, drawn at random. Below 1 the rates
    and means are estimates, and their errors include that of the sample. Of what was not read, the oldest leases and
    the tasks that come back are not among those told. `whole_reasons`: whether all dead letters were read.

    `is_worked`: whether a worker that is not proven dead by this host holds a task in time; where none is held, whether
    one was finished within the last ten seconds.
    `holders`: who holds tasks, each as JSON, in what was read; None: not known.
    `most_used`: of tasks that were finished within the window, and of those in batches at work that have none yet, in
    what was read; None: no worker measured any.
    `oldest_inserted`: when the oldest batch was begun that has a task without an outcome, in Unix seconds; None: there
    is none. That task may have been inserted into it later. A hint.
    `last_leased`: when a task was last leased, in Unix seconds, as far as what was read tells: in batches at work, and
    in those that ended within the window. None: not known, or none was.
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
    is_worked: bool = True
    holders: frozenset[bytes] | None = None
    work_s: float | None = None
    most_used: MostUsed | None = None
    oldest_inserted: float | None = None
    last_leased: float | None = None

    @property
    def workers(self) -> int | None:
        """Return how many workers hold tasks, as far as logs were read (`share`); None: not known."""
        return None if self.holders is None else len(self.holders)

    def is_idle(self, status: Status) -> bool:
        """Return whether tasks wait and no worker is there, so that nothing happens until one is started.

        `status`: the queue's.
        """
        return status.waiting > 0 == status.leased and not self.is_worked

    def left(self, remaining: int) -> TimeLeft | None:
        """Return when `remaining` tasks will be finished, if things go on and nothing is added.

        None: not known, or no worker is at work.

        What is to come varies as what has been: over a time of n windows, by the error over the root of n.
        """
        if self.finished is None or not self.finished.per_s or not self.is_worked:
            return None
        if not remaining:
            return TimeLeft(0.0, 0.0, 0.0)
        rate = self.finished.per_s
        likely_s = remaining / rate
        spread = QUANTILE * self.finished.error * math.sqrt(1 + self.finished.over_s / likely_s)
        return TimeLeft(likely_s, remaining / (rate + spread), remaining / (rate - spread) if rate > spread else None)

    def as_dict(self) -> dict[str, Any]:
        """Return the activity as a dict, ready for JSON, with the number of the workers that hold tasks."""
        found = asdict(self) | {"workers": self.workers}
        del found["holders"]
        return found


def headline(reason: str) -> str:
    """Return the first line of a reason, cut."""
    return reason.partition("\n")[0][:HEADLINE_CHARS_MAX]


def alike(reason: str) -> str:
    """Return what reasons have in common that differ in numbers only (but for exit statuses), or in the sign by which
    a worker knew that memory was used up.
    """
    first = headline(reason)
    memory = _MEMORY.match(first)
    return _NUMBER.sub("#", first) if memory is None else memory[0]


def activity(store: Store, window_ms: int | None = None) -> Activity:
    """Return how the queue is doing, over a window of `window_ms` milliseconds, or one that suits it."""
    store.verify_place()
    while True:
        found = _activity(store, window_ms)
        if not store.verify_place():  # what is seen while a queue is purged does not matter
            return found


def total_activity(found: Sequence[Activity]) -> Activity:
    """Return several queues as one: sums of rates, means over all measured tasks, all failures, the oldest leases."""
    measured = sum(one.measured for one in found)
    holders = [one.holders for one in found if one.holders is not None]
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
        is_worked=any(one.is_worked for one in found),
        holders=frozenset().union(*holders) if holders and len(holders) == len(found) else None,
        work_s=sum(weight * (one.work_s or 0) for weight, one in weighed) if weighed else None,
        most_used=_most_of([one.most_used for one in found if one.most_used is not None]),
        oldest_inserted=min((one.oldest_inserted for one in found if one.oldest_inserted is not None), default=None),
        last_leased=max((one.last_leased for one in found if one.last_leased is not None), default=None),
    )


def _most_of(found: Sequence[MostUsed]) -> MostUsed | None:
    if not found:
        return None
    memory = max(found, key=lambda one: one.peak_memory_bytes)
    cpu = max(found, key=lambda one: one.cpu_s)
    attempts = sum(one.attempts for one in found)
    return MostUsed(attempts, memory.peak_memory_bytes, memory.memory_id, cpu.cpu_s, cpu.cpu_id)


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
    listed = Listed.of(store)
    survey = Survey(store, round(WINDOWS_S[0] * 1000) if window_ms is None else window_ms, listed)
    if window_ms is None and survey.is_at_work() and survey.finished() < FEW:
        survey = Survey(store, round(WINDOWS_S[1] * 1000), listed)
    has_letters = store.layout.dead_letters in listing.parts(store)
    letters, whole = deadletters.latest(store, LETTERS_BYTES_MAX) if has_letters else ([], True)
    lease_s, lease_error, work_s, measured = survey.lease()
    return Activity(
        at=survey.now / 1000,
        inserted=survey.rate(INSERTED, survey.since),
        leased=survey.rate(LEASES, survey.work_since()),
        completed=survey.rate(COMPLETIONS, survey.work_since()),
        finished=survey.rate(FINISHED, survey.work_since()),
        lease_s=lease_s,
        lease_error=lease_error,
        measured=measured,
        share=min(1 / part.scale for part in survey.parts),
        oldest=nsmallest(OLDEST, survey.held, key=lambda held: held.since),
        failures=_most_frequent(_merged([*survey.failures.values(), *map(_of_letter, letters)])),
        whole_reasons=whole,
        is_worked=survey.is_worked(),
        holders=frozenset(survey.holders),
        work_s=work_s,
        most_used=_most_of(survey.most_used),
        oldest_inserted=None if survey.oldest_birth is None else survey.oldest_birth / 1000,
        last_leased=None if survey.last_lease is None else survey.last_lease / 1000,
    )


INSERTED, LEASES, COMPLETIONS, FINISHED = range(4)


class Unit:
    """The events of the batches of one file. Times are milliseconds."""

    def __init__(self) -> None:
        self.events: tuple[Counter[int], ...] = tuple(Counter() for _ in range(4))
        """How many tasks were inserted, leased, completed, finished at which time."""
        self.leases: Counter[tuple[int, int, int]] = Counter()
        """How many tasks were completed at which time, had been leased how long, and took how long to work on."""
        self.tasks = 0
        """How many tasks its batches have, as the history says, if they were drawn from it."""


class FileSample:
    """Files of one kind, of which some were read: `units`, drawn at random out of `frame`."""

    def __init__(self, frame: int) -> None:
        self.frame = frame
        self.units: list[Unit] = []

    @property
    def scale(self) -> float:
        """Return how many files one that was read stands for."""
        return self.frame / len(self.units) if self.units else 1.0

    def sampling_variance(self, numbers: Sequence[float]) -> float:
        """Return the variance of the sum over all files, of which `values` were read (without replacement)."""
        read = len(numbers)
        if read >= self.frame:
            return 0.0
        spread = _variance(numbers) / read if read > 1 else sum(numbers) ** 2
        return self.frame**2 * spread * (1 - read / self.frame)


class DrawnBatches(FileSample):
    """Batches drawn at random from the history: each unit is a group of them. What they tell stands for all tasks.

    `frame`: how many shards have a history; `tasks`: for each that was read, how many tasks its batches have. These
    numbers are known without replaying a batch, so the sums over the drawn batches are multiplied by the ratio of the
    tasks (the ratio estimator: Cochran, Sampling Techniques, chapter 6). Decision 79 has what whole shards would cost.
    """

    def __init__(self, frame: int, tasks: list[int]) -> None:
        super().__init__(frame)
        self.tasks = tasks
        self.units = [Unit() for _ in range(GROUPS)]

    @property
    def drawn(self) -> int:
        """Return how many tasks the drawn batches have."""
        return sum(unit.tasks for unit in self.units)

    @property
    def scale(self) -> float:
        """Return how many tasks one that was read stands for."""
        return self.frame / len(self.tasks) * sum(self.tasks) / self.drawn if self.drawn else 1.0

    def sampling_variance(self, numbers: Sequence[float]) -> float:
        """Return the variance of the sum over all files: that between the groups, and that between the shards."""
        if not self.drawn:
            return 0.0
        ratio = sum(numbers) / self.drawn
        apart = _variance([n - ratio * unit.tasks for n, unit in zip(numbers, self.units, strict=True)])
        within = self.scale**2 * len(numbers) * apart * (1 - self.drawn / sum(self.tasks))
        shards = FileSample(self.frame)
        shards.units = [Unit() for _ in self.tasks]
        return within + shards.sampling_variance([ratio * tasks for tasks in self.tasks])


Groups = Counter[tuple[int, int, Lease | None, int | None]]
"""Number of tasks with this state since that time (ms), this last lease, and this time of work (ms; None: unknown)."""


class Listed(NamedTuple):
    """What is there by name: task files, and then batches with logs."""

    files: list[tuple[Batch, TaskFileName]]
    logs: list[Batch]

    @classmethod
    def of(cls, store: Store) -> Listed:
        """List it, each directory once."""
        shards = listing.shards(store)
        return cls(list(listing.published_in(store, shards)), list(listing.with_logs_in(store, shards)))


class Survey:
    """All that was read. `since`: from when on nothing is missing (ms), in the files that were read.

    First names, then logs, then the history: what finishes meanwhile is seen again, and not missed.
    """

    def __init__(self, store: Store, window_ms: int, listed: Listed) -> None:
        self.store = store
        self.now = store.clock.now_ms()
        self.since = self.asked = self.now - window_ms
        self.held: list[Held] = []
        self.holders: dict[bytes, dict[str, Any]] = {}
        """The workers that hold tasks, each by its record as JSON."""
        self.failures: dict[str, Failure] = {}
        self.most_used: list[MostUsed] = []
        """Of each batch that tells of any, the most."""
        self.was_at_work = False
        """Whether a lease is older than the window, and reaches into it."""
        self.oldest_birth: int | None = None
        """When the oldest batch that has a task without an outcome was begun, as far as names and logs tell."""
        self.open: dict[str, int] = {}
        """When each batch was begun that takes inserts. Its task file stays though all of its tasks have outcomes."""
        self.first_lease: int | None = None
        """When the first of the leases in the window was given."""
        self.last_lease: int | None = None
        """When the last of all leases was given that were read."""
        self.young: set[str] = set()
        """The batches whose insertion was counted."""
        self.read: set[str] = set()
        self.parts = (self._names(listed.files), self._logs(listed.logs), self._history())

    def _names(self, files: list[tuple[Batch, TaskFileName]]) -> FileSample:
        part = FileSample(1)
        part.units.append(Unit())
        for batch, name in files:
            birth = names.birth_ms(batch)
            if name.is_open:
                self.open[batch] = birth
            else:
                self._note_birth(birth)
            if name.inserted is None:  # else its log tells
                self._insert(part.units[0], batch, name.count)
        return part

    def _note_birth(self, birth: int) -> None:
        self.oldest_birth = birth if self.oldest_birth is None else min(self.oldest_birth, birth)

    def _logs(self, logs: list[Batch]) -> FileSample:
        store = self.store
        part, size, leased = FileSample(len(logs)), 0, 0
        for batch in nsmallest(LOGS_MAX, logs, key=lambda _: store.entropy.random()):
            if size >= LOGS_BYTES_MAX or leased >= TASKS_MAX:
                break
            replay_state, begun, read = listing.read_recent_state(store, batch, self.asked)
            self.since = max(self.since, begun)
            size += read
            leased += sum(len(lease.tasks) for lease in replay_state.leases.values())
            part.units.append(Unit())
            if replay_state.count:  # else it has just finished, and is in the history
                self._add(part.units[-1], batch, replay_state)
            if not replay_state.remaining:
                self.open.pop(batch, None)
        for birth in self.open.values():
            self._note_birth(birth)
        return part

    def _history(self) -> FileSample:
        store, size = self.store, 0
        kept = history.recent_files(store, self.asked) if store.layout.history_days in listing.parts(store) else {}
        known = sorted(kept)
        lines: list[list[bytes]] = []
        for shard in store.entropy.shuffled(known):
            if size >= HISTORY_BYTES_MAX:
                break
            recent = history.recent(store, shard, kept[shard], self.asked, HISTORY_BYTES_MAX)
            size += recent.bytes
            self.since = max(self.since, recent.since)
            lines.append([line for line in recent.lines if history.batch_named(line) not in self.read])
        tasks = [sum(map(history.tasks_named, each)) for each in lines]
        if sum(tasks) > TASKS_MAX:
            return self._draw(DrawnBatches(len(known), tasks), [line for each in lines for line in each])
        part = FileSample(len(known))
        for each in lines:
            part.units.append(Unit())
            for line in each:
                self._add_line(part.units[-1], line)
        return part

    def _draw(self, part: DrawnBatches, lines: list[bytes]) -> DrawnBatches:
        """Read batches drawn at random, until they have `TASKS_MAX` tasks."""
        ended = (line for line in lines if history.finished_ms(line) >= self.asked)
        parsed = history.parse(min(ended, key=history.finished_ms, default=b""))
        if parsed is not None:  # else work would seem to begin with the first one drawn
            replay_state = history.replay(parsed[1])
            self._begin(replay_state, _groups(replay_state))
        read = 0
        for number, line in enumerate(self.store.entropy.shuffled(lines)):
            if read >= TASKS_MAX:
                break
            tasks = history.tasks_named(line)
            read += tasks
            unit = part.units[number % GROUPS]
            unit.tasks += tasks
            self._add_line(unit, line)
        return part

    def _add_line(self, unit: Unit, line: bytes) -> None:
        parsed = history.parse(line)
        if parsed is not None and parsed[0] not in self.read:
            self._add(unit, parsed[0], history.replay(parsed[1]))

    def _insert(self, unit: Unit, batch: str, tasks: int) -> None:
        birth = names.birth_ms(batch)
        if birth >= self.asked and batch not in self.young:
            self.young.add(batch)
            unit.events[INSERTED][birth] += tasks

    def _insert_singly(self, unit: Unit, batch: str, replay_state: ReplayState) -> None:
        """Count tasks that were inserted into the log: evenly from the batch's birth until its last insert."""
        birth = names.birth_ms(batch)
        tasks = replay_state.count - replay_state.state.count(SKIPPED)
        for index in range(tasks):
            born = birth + (replay_state.inserted_at - birth) * (index + 1) // tasks
            if born >= self.asked:
                unit.events[INSERTED][born] += 1

    def _begin(self, replay_state: ReplayState, groups: Groups) -> None:
        """Take in when a batch's tasks were leased: the rates of work begin with the first lease in the window."""
        for state, since, holder, _ in groups:
            if holder is not None and holder.at < self.asked:
                ended_since = state in (COMPLETED, DEAD) and since >= self.asked
                self.was_at_work = self.was_at_work or ended_since or (state == LEASED and since > self.now)
        for lease in replay_state.leases.values():
            self.last_lease = max(self.last_lease or lease.at, lease.at)
            if lease.at >= self.asked:
                self.first_lease = min(self.first_lease or lease.at, lease.at)

    def _add(self, unit: Unit, batch: str, replay_state: ReplayState) -> None:
        """Add what a replay state tells of the window, and of now."""
        self.read.add(batch)
        if replay_state.inserts is None:
            self._insert(unit, batch, replay_state.count)
        else:
            self._insert_singly(unit, batch, replay_state)
        groups = _groups(replay_state)
        self._begin(replay_state, groups)
        for lease in replay_state.leases.values():
            if lease.at >= self.asked:
                unit.events[LEASES][lease.at] += len(lease.tasks)
        for (state, since, holder, worked), tasks in groups.items():
            if state in (COMPLETED, DEAD) and since >= self.asked:
                unit.events[FINISHED][since] += tasks
                if state == COMPLETED and holder is not None:
                    unit.events[COMPLETIONS][since] += tasks
                    leased = since - holder.at
                    unit.leases[since, leased, leased if worked is None else worked] += tasks
        self._add_held(batch, replay_state)
        self._add_used(batch, replay_state)
        for index, reason in replay_state.errors.items():
            if replay_state.state[index] in (AVAILABLE, LEASED):
                failure = self.failures.setdefault(alike(reason), Failure(headline(reason)))
                failure.retrying += 1
                failure.example = failure.example or names.task_id(batch, index)

    def _add_held(self, batch: str, replay_state: ReplayState) -> None:
        held: dict[str, tuple[int, int]] = {}
        for index in sorted(replay_state.touched):
            holder = replay_state.holder[index]
            if holder is not None and replay_state.state[index] == LEASED and replay_state.since[index] > self.now:
                first, tasks = held.get(holder.id, (index, 0))
                held[holder.id] = first, tasks + 1
        for lease_id, (first, tasks) in held.items():
            lease = replay_state.leases[lease_id]
            self.holders[orjson.dumps(lease.worker or {}, option=orjson.OPT_SORT_KEYS)] = lease.worker or {}
            self.held.append(
                Held(
                    names.task_id(batch, first),
                    tasks,
                    lease.at / 1000,
                    replay_state.since[first] / 1000,
                    replay_state.attempts[first] + 1,
                    lease.worker,
                )
            )

    def _add_used(self, batch: str, replay_state: ReplayState) -> None:
        state, since = replay_state.state, replay_state.since
        known = [
            (index, cpu_ms, peak_kib)
            for index, (cpu_ms, peak_kib) in replay_state.used.items()
            if state[index] in (AVAILABLE, LEASED) or since[index] >= self.asked
        ]
        if known:
            memory, cpu = max(known, key=itemgetter(2)), max(known, key=itemgetter(1))
            memory_id, cpu_id = names.task_id(batch, memory[0]), names.task_id(batch, cpu[0])
            self.most_used.append(MostUsed(len(known), memory[2] * 1024, memory_id, cpu[1] / 1000, cpu_id))

    # -- reckoning --------------------------------------------------------------------------------

    def finished(self) -> float:
        """Return how many tasks were finished in the window."""
        return sum(sum(unit.events[FINISHED].values()) * part.scale for part in self.parts for unit in part.units)

    def is_at_work(self) -> bool:
        """Return whether a worker holds tasks, or has just finished some: else the time before tells nothing."""
        return bool(self.held or self.finished())

    def is_worked(self) -> bool:
        """Return whether a worker holds tasks, or has just finished some: between two leases it holds none.

        Workers that this host proves dead finish nothing. While they hold tasks and no other does, what has just been
        finished may have been theirs.
        """
        if self.held:
            return any(identity.lives_here(worker) is not False for worker in self.holders.values())
        recent = self.now - STILL_S * 1000
        return any(at >= recent for part in self.parts for unit in part.units for at in unit.events[FINISHED])

    def work_since(self) -> int:
        """Return when work began, if that was in the window. A rate over the time before that would be too low."""
        begun = self.since if self.was_at_work or self.first_lease is None else self.first_lease
        return max(self.since, begun)

    def lease(self) -> tuple[float | None, float | None, float | None, int]:
        """Return how long completed tasks had been leased on average, the standard error, how long the work on them
        took on average (all in s), and how many were measured.
        """
        weights = total = variance = work = 0.0
        measured = 0
        for part in self.parts:
            units = [[(one, n) for one, n in unit.leases.items() if one[0] >= self.since] for unit in part.units]
            numbers = [sum(n for _, n in unit) for unit in units]
            sums = [sum(leased * n for (_, leased, _), n in unit) / 1000 for unit in units]
            tasks, whole = sum(numbers), sum(sums)
            measured += tasks
            weights += part.scale * tasks
            total += part.scale * whole
            work += part.scale * sum(worked * n for unit in units for (_, _, worked), n in unit) / 1000
            if tasks > 1:
                mean = whole / tasks
                squares = sum(n * (leased / 1000 - mean) ** 2 for unit in units for (_, leased, _), n in unit)
                spread = squares / (tasks - 1) * tasks
                if isinstance(part, DrawnBatches):  # tasks of one batch are often leased together: they tell as one
                    apart = [one - mean * n for one, n in zip(sums, numbers, strict=True)]
                    spread = max(spread, len(apart) * _variance(apart))
                variance += part.scale**2 * spread
        if not measured:
            return None, None, None, 0
        error = math.sqrt(variance) / weights if measured > 1 else None
        return total / weights, error, work / weights, measured

    def rate(self, kind: int, begin: int) -> Rate | None:
        """Return how often something happened from `begin` (ms) on."""
        return rate_of(self.parts, kind, begin, self.now) if self.store.settings.keep_history else None


def _groups(of: ReplayState) -> Groups:
    """Count the tasks of which a state tells more than that they finished at some time before its checkpoint."""
    told = range(of.count) if of.is_whole else [*of.touched.union(*(lease.tasks for lease in of.leases.values()))]
    of_each = (of.state.__getitem__, of.since.__getitem__, of.holder.__getitem__, of.took.get)
    return Counter(zip(*(map(get, told) for get in of_each), strict=True))


def rate_of(parts: Iterable[FileSample], kind: int, begin: int, now: int) -> Rate | None:
    """Return how often something happened from `begin` until `now` (ms), by the files that were read."""
    over_s = (now - begin) / 1000
    if over_s < SPAN_S_MIN:
        return None
    pieces, variance = [0.0] * PIECES, 0.0
    for part in parts:
        numbers = []
        for unit in part.units:
            found = [(at, tasks) for at, tasks in unit.events[kind].items() if at >= begin]
            numbers.append(sum(tasks for _, tasks in found))
            for at, tasks in found:
                at = min(at, now - 1)  # other hosts' clocks differ
                pieces[(at - begin) * PIECES // (now - begin)] += tasks * part.scale
        variance += part.sampling_variance(numbers)
    if not any(pieces):
        return Rate(0.0, 1 / over_s, over_s)  # as after one
    return Rate(sum(pieces) / over_s, math.sqrt(_variance(pieces) * PIECES + variance) / over_s, over_s)


def _variance(values: Sequence[float]) -> float:
    """Return the variance of the population that at least two `values` are a sample of."""
    mean = sum(values) / len(values)
    return sum((value - mean) ** 2 for value in values) / (len(values) - 1)


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
