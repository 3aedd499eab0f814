"""From a batch's records to the attempts at its tasks: which worker leased which, when, and how that ended. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fsqueue.format import movements, names
from fsqueue.format.replay import AVAILABLE, CANCELLED, COMPLETED, DEAD, LEASED, ReplayState
from fsqueue.storage import history

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
                    late = record.get("lease") is None and outcome in (BURY, CANCEL)  # whose lease had run out before
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
