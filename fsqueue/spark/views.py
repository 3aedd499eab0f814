"""The rows of each view, shard by shard, from the same files that the other verbs read. No locks, no changes.

A row is a tuple in the order of the view's columns; times are microseconds, JSON is text. Each batch is read
consistently, different batches at different times. A shard's logs are read before its history, and what was in a
log is not taken from the history again: so a batch that finishes meanwhile appears, and appears once.

`attempts_of` reads off a batch's records which worker leased which task, when, and how that ended.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from fsqueue.format import movements, names
from fsqueue.format.models import CANCELLED as IS_CANCELLED
from fsqueue.format.models import COMPLETED as IS_COMPLETED
from fsqueue.format.models import DEAD as IS_DEAD
from fsqueue.format.names import Batch, Shard, TaskFileName
from fsqueue.format.priority import fault
from fsqueue.format.replay import AVAILABLE, CANCELLED, COMPLETED, DEAD, LEASED, ReplayState
from fsqueue.format.wording import priority_text
from fsqueue.storage import commits, counters, deadletters, history, listing, published
from fsqueue.storage.store import Store
from fsqueue.views import finished as finished_batches
from fsqueue.views import inspection, task_history

COMPLETE, FAIL, BURY, RELEASE, REVOKE, CANCEL, EXPIRED, OPEN = (
    "complete", "fail", "bury", "release", "revoke", "cancel", "expired", "open",
)  # fmt: skip
"""How an attempt ended. `expired`: its lease ran out, its worker died or was too slow; `open`: it is under way."""
_OUTCOMES = {COMPLETED: COMPLETE, DEAD: BURY, CANCELLED: CANCEL}


@dataclass(slots=True)
class Attempt:
    """One lease of one task. Times are milliseconds; `ended_at` None while it is open."""

    index: int
    lease: str
    worker: dict[str, Any] | None
    available_at: int
    leased_at: int
    until: int
    outcome: str = OPEN
    ended_at: int | None = None
    error: str | None = None
    took: int | None = None
    """How long the work took, where that was recorded."""
    used: tuple[int, int] | None = None
    """Processor time (ms) and peak memory (KiB), where they were measured."""
    several: bool = True
    """Whether the lease may be of several tasks, so that work may have begun later."""

    @property
    def held(self) -> int | None:
        """Return how long the task was leased; None while it is."""
        return None if self.ended_at is None else max(0, self.ended_at - self.leased_at)

    @property
    def duration(self) -> int | None:
        """Return how long the work took: as recorded, else as long as the lease."""
        return self.held if self.took is None else self.took

    @property
    def began_at(self) -> int | None:
        """Return when the work began: with a lease of this task alone, or as recorded. None: not known."""
        if self.took is None or self.ended_at is None:
            return None if self.several else self.leased_at
        return self.ended_at - self.took


def attempts_of(batch: str, records: history.Records, now_ms: int) -> Iterator[Attempt]:
    """Yield the attempts at a batch's tasks, as the replay state sees them; memory is bounded by the batch.

    What a record does is read off the replay state before and after it, so that what does not apply makes no attempt.
    """
    replay_state, running = ReplayState(), dict[int, Attempt]()
    birth, births = names.birth_ms(batch), dict[int, int]()
    for place, line in records:
        if not movements.is_record(line):
            continue
        before = replay_state.since.copy() if line["op"] == "lease" else []
        for version, record in replay_state.effective([(place, line)]):
            for index in _changed(replay_state, record, version):
                state, holder = replay_state.state[index], replay_state.holder[index]
                attempt, at = running.get(index), _time_of(replay_state, record, index)
                if record["op"] == "insert":
                    births[index] = at
                    continue
                if state == LEASED and holder is not None:
                    if attempt is not None and attempt.lease == holder.id:
                        attempt.until = replay_state.since[index]  # renewed
                        continue
                    if attempt is not None:
                        yield _ended(running.pop(index), EXPIRED, min(attempt.until, at))
                    available = max(before[index] if index < len(before) else 0, births.get(index, birth))
                    running[index] = Attempt(
                        index, holder.id, holder.worker, available, holder.at, replay_state.since[index],
                        several=not holder.is_alone,
                    )  # fmt: skip
                elif attempt is not None:
                    outcome = _outcome(record, state)
                    late = record.get("lease") is None and (
                        outcome in (BURY, CANCEL) or record["op"] == "change"
                    )  # whose lease had run out before
                    del running[index]
                    if late:
                        yield _ended(attempt, EXPIRED, min(attempt.until, at))
                    else:
                        attempt.took, attempt.used = movements.took_ms(record, index), movements.used(record, index)
                        error = replay_state.errors.get(index) if outcome != COMPLETE else None
                        yield _ended(attempt, outcome, at, error)
    for attempt in running.values():
        yield _ended(attempt, EXPIRED, attempt.until) if attempt.until <= now_ms else attempt


def _time_of(replay_state: ReplayState, record: dict[str, Any], index: int) -> int:
    """Return when a record acted that has changed a task (ms): of an update each record acts as at its own time."""
    if replay_state.state[index] in _OUTCOMES:
        return replay_state.since[index]
    return record["at"] if "update" in record else replay_state.at


def _changed(replay_state: ReplayState, record: dict[str, Any], version: int) -> list[int]:
    """Return the tasks that a record at the offset `version` has changed, of those that it names."""
    named: Any = record.get("tasks")
    try:
        if record["op"] == "insert":
            named = [(record["first"], record["first"] + 1)]
        ranges = [range(max(begin, 0), min(end, replay_state.count)) for begin, end in named]
    except (KeyError, TypeError, ValueError):
        return []
    return [index for tasks in ranges for index in tasks if replay_state.version[index] == version]


def _outcome(record: dict[str, Any], state: int) -> str:
    if state == AVAILABLE:
        return record["op"] if record["op"] in (FAIL, RELEASE, REVOKE) else RELEASE
    return _OUTCOMES[state]


def _ended(attempt: Attempt, outcome: str, at: int, error: str | None = None) -> Attempt:
    attempt.outcome, attempt.ended_at, attempt.error = outcome, at, error
    return attempt


Row = tuple[Any, ...]
PID_MAX = 2**31 - 1
"""A record may hold any number. One that the column cannot hold would make the view fail for all rows."""
FINISHED = {COMPLETED: IS_COMPLETED, DEAD: IS_DEAD, CANCELLED: IS_CANCELLED}


def text(value: Any) -> str | None:
    """Return JSON as text; None stays None."""
    return None if value is None else orjson.dumps(value).decode()


def moment(at_ms: int | float | None) -> int | None:
    """Return milliseconds as microseconds."""
    return None if at_ms is None else int(at_ms * 1000)


def seconds(at_s: float | None) -> int | None:
    """Return seconds as microseconds."""
    return None if at_s is None else round(at_s * 1_000_000)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def what_was_used(used: tuple[int, int] | None) -> tuple[float | None, int | None]:
    """Return the columns `cpu_s` and `peak_memory_bytes`, of milliseconds and KiB."""
    return (None, None) if used is None else (used[0] / 1000, used[1] * 1024)


def who(worker: dict[str, Any] | None) -> tuple[str | None, str | None]:
    """Return a worker's host, and all that is known of it as JSON."""
    return (None, None) if not worker else (_string(worker.get("host")), text(worker))


def _string(value: Any) -> str | None:
    return None if value is None else str(value)


def payload(value: Any) -> tuple[str | None, bytes | None]:
    """Return the columns `payload` and `payload_bytes`."""
    return (None, value) if isinstance(value, bytes) else (text(value), None)


def order(priority: Any, key: Any) -> tuple[str | None, str | None]:
    """Return the columns `priority` and `key`. What a damaged line has in their place is none."""
    is_sound = priority is not None and fault(priority) is None
    return priority_text(priority) if is_sound else None, key if isinstance(key, str) else None


# -- unfinished tasks ----------------------------------------------------------------------------------


def untouched(store: Store, shard: Shard) -> tuple[list[TaskFileName], list[TaskFileName]]:
    """Return the batches of a shard that no worker has touched, and the others, oldest first.

    The logs are listed after the task files: what is called untouched was so when its file was seen.
    """
    files = listing.task_files(store, shard)
    touched = set(listing.logs(store, shard))
    split: tuple[list[TaskFileName], list[TaskFileName]] = ([], [])
    for batch, name in sorted(files.items()):
        split[batch in touched].append(name)
    return split


def tasks(store: Store, name: TaskFileName, states: tuple[str, ...]) -> Iterator[Row]:
    """Yield the unfinished tasks of one batch."""
    for info in inspection.of_batch(store, name.batch, name):
        if info.state in states:
            yield (
                info.id,
                info.state,
                *payload(info.payload),
                info.attempt,
                seconds(info.since),
                seconds(info.available_at),
                seconds(info.lease_until),
                text(info.worker),
                info.error,
                info.version,
                *order(info.priority, info.key),
            )


# -- logs ----------------------------------------------------------------------------------------------


def leases(store: Store, shard: Shard) -> Iterator[Row]:
    """Yield the tasks that a lease holds, in time or not."""
    now = store.clock.now_ms()
    for batch in listing.logs(store, shard):
        replay_state = listing.read_present_state(store, batch) or ReplayState()
        for index, (state, until, holder) in enumerate(
            zip(replay_state.state, replay_state.since, replay_state.holder, strict=True)
        ):
            if state == LEASED and holder is not None:
                worker = holder.worker or {}
                pid = worker.get("pid")
                yield (
                    names.task_id(batch, index),
                    holder.id,
                    replay_state.attempts[index] + 1,
                    moment(holder.at),
                    moment(until),
                    until > now,
                    _string(worker.get("host")),
                    pid if type(pid) is int and 0 <= pid <= PID_MAX else None,
                    _string(worker.get("slurm_job")),
                    text(holder.worker),
                )


def records(
    store: Store, shard: Shard, read: Callable[[Store, Batch], history.Records] = task_history.decided_records
) -> Iterator[tuple[str, history.Records, bool]]:
    """Yield every batch of a shard that was ever touched, with its records and whether it has finished."""
    seen: set[str] = set()
    for batch in listing.logs(store, shard):
        found = read(store, batch)
        if any(record["op"] == "open" for _, record in found):
            seen.add(batch)
            yield batch, found, False
    for batch, found in history.batches_of(store, shard):
        if batch not in seen:
            yield batch, found, True


def _hidden(store: Store, found: history.Records) -> frozenset[int]:
    """Return the tasks of a batch of which no view tells."""
    return frozenset() if store.settings.keep_history else finished_batches.hidden(store, history.replay(found))


def all_movements(store: Store, shard: Shard) -> Iterator[Row]:
    """Yield the records of all logs, as they stand; what does not apply is among them."""
    for batch, found, finished in records(store, shard, task_history.records_of):
        hidden = _hidden(store, found)
        for version, record in found:
            if movements.is_record(record) and (left := _without(record, hidden)) is not None:
                yield _movement(batch, version, left, finished)


def _without(record: dict[str, Any], hidden: frozenset[int]) -> dict[str, Any] | None:
    """Return a record as it is told of all tasks but the `hidden` ones; None if it is about no other."""
    if not hidden:
        return record
    if record["op"] == "insert":
        return None if record.get("first") in hidden else record
    if record["op"] == "seal" or _ranges(record.get("tasks")) is None:
        return record
    left = [index for index in movements.from_ranges(record["tasks"]) if index not in hidden]
    return record | {"tasks": movements.to_ranges(left)} if left else None


def _movement(batch: str, version: int, record: dict[str, Any], finished: bool) -> Row:
    def when(field: str) -> int | None:
        value = record.get(field)
        return moment(value) if type(value) is int and 0 <= value <= 10**14 else None

    def words(field: str) -> str | None:
        value = record.get(field)
        return value if type(value) is str else None

    worker = record.get("worker")
    return (
        batch,
        version,
        record["op"],
        when("at"),
        _ranges(record.get("tasks") if record["op"] not in ("insert", "seal") else _inserted(record)),
        words("lease"),
        when("until"),
        when("available_at"),
        *who(worker if type(worker) is dict else None),
        words("error"),
        words("reason"),
        text(record.get("result")),
        finished,
        words("update"),
    )


def _inserted(record: dict[str, Any]) -> list[tuple[int, int]] | None:
    """Return the task that an `insert` record brings, as a range. A `seal` names none: its `tasks` is their number."""
    first = record.get("first")
    return [(first, first + 1)] if type(first) is int else None


def _ranges(tasks: Any) -> list[dict[str, int]] | None:
    try:
        found = [{"first": first, "end": end} for first, end in tasks]
    except (TypeError, ValueError):
        return None
    return found if all(type(n) is int and 0 <= n < 2**31 for one in found for n in one.values()) else None


def finished(store: Store, shard: Shard) -> Iterator[Row]:
    """Yield the tasks that have an outcome, as far as logs and history know them."""
    for batch, found, _ in records(store, shard):
        hidden = _hidden(store, found)
        yield from finished_in(batch, found, hidden)


def finished_in(batch: str, found: history.Records, hidden: Container[int] = ()) -> Iterator[Row]:
    """Yield the tasks of a batch that have an outcome, but for the `hidden` ones."""
    replay_state, births = history.replay(found), history.insertion_times(found)
    birth = names.birth_ms(batch)
    for index, state in enumerate(replay_state.state):
        if state in FINISHED and index not in hidden:
            holder = replay_state.holder[index]
            yield (
                names.task_id(batch, index),
                FINISHED[state],
                moment(births.get(index, birth)),
                moment(replay_state.since[index]),
                replay_state.attempts[index] + (1 if state == COMPLETED else 0),
                *who(holder.worker if holder is not None else None),
                replay_state.errors.get(index),
                text(replay_state.results.get(index)),
                *what_was_used(replay_state.used.get(index) if state != CANCELLED else None),
            )


def all_attempts(store: Store, shard: Shard) -> Iterator[Row]:
    """Yield every lease of every task, with how it ended."""
    now = store.clock.now_ms()
    for batch, found, _ in records(store, shard):
        hidden = _hidden(store, found)
        for one in attempts_of(batch, found, now):
            if one.index in hidden:
                continue
            yield (
                names.task_id(batch, one.index),
                one.lease,
                one.outcome,
                moment(one.leased_at),
                moment(one.began_at),
                moment(one.ended_at),
                max(0, one.leased_at - one.available_at) / 1000,
                _seconds(one.duration),
                _seconds(one.held),
                *who(one.worker),
                one.error,
                *what_was_used(one.used),
            )


# -- letters, counters, findings -------------------------------------------------------------------------


def states(store: Store, shard: Shard) -> Iterator[Row]:
    """Yield how many tasks of a shard are in which state. What the counters hold is told with the first shard."""
    counts = inspection.status_of_shard(store, shard).as_dict()
    del counts["inserted"]
    yield from ((shard, state, count) for state, count in counts.items() if count)
    if shard == names.all_shards(store.layout.shards)[0]:
        yield None, IS_COMPLETED, sum(counters.completed(store, counters.sizes(store)).values())


def dead(store: Store, shard: Shard) -> Iterator[Row]:
    """Yield the dead letters that are neither retried nor purged."""
    for letter in deadletters.letters(store, shard):
        yield (
            letter.id,
            letter.reason,
            seconds(letter.at),
            letter.attempt,
            *payload(letter.payload),
            *who(letter.worker),
            *order(letter.priority, letter.key),
        )


def counted(store: Store) -> Iterator[Row]:
    """Yield the completion counters: they hold what finished batches completed."""
    yield from sorted(counters.completed(store, counters.sizes(store)).items())


def committed(store: Store) -> Iterator[Row]:
    """Yield the named commits on record, with what they inserted."""
    for text in sorted(commits.decided(store)):
        name = names.parse_record_file(text)
        record = None if name is None else commits.find(store, store.layout, name)
        if record is not None:
            yield record.name, moment(record.at), *(record.total(what) for what in ("tasks", "files", "bytes"))


def findings(store: Store, shards: Sequence[Shard], first: bool) -> Iterator[Row]:
    """Yield what fsck finds in these shards and, in the `first` part, in what belongs to none. Nothing is mended."""
    from fsqueue.fsck import fsck_part

    for finding in fsck_part(store, shards, first):
        yield finding.kind, finding.gravity, finding.path, finding.tasks, finding.note, finding.meaning


OF_NO_SHARD: dict[str, Callable[[Store], Iterator[Row]]] = {"counters": counted, "commits": committed}
"""The views that tell of the queue as a whole."""
BY_SHARD: dict[str, Callable[[Store, Shard], Iterator[Row]]] = {
    "states": states,
    "leases": leases,
    "dead": dead,
    "movements": all_movements,
    "history": finished,
    "attempts": all_attempts,
}
"""The views that a shard's files tell."""


def content_of(store: Store, name: TaskFileName) -> bytes | None:
    """Return the content of an untouched batch's file; None if it is gone, or if its tasks have more than a payload."""
    if name.priority is not None:
        return None
    try:
        return published.content_of(store, store.layout.task_file(name))
    except OSError:
        return None
