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
    for version, record in records:
        if not movements.is_record(record):
            continue
        before = replay_state.since.copy() if record["op"] == "lease" else []
        replay_state.apply(record, version)
        if record["op"] == "insert":
            if replay_state.count and replay_state.version[-1] == version:
                births[replay_state.count - 1] = replay_state.at
            continue
        for index in _touched(replay_state, record):
            if replay_state.version[index] != version:
                continue
            state, holder = replay_state.state[index], replay_state.holder[index]
            attempt = running.get(index)
            if state == LEASED and holder is not None:
                if attempt is not None and attempt.lease == holder.id:
                    attempt.until = replay_state.since[index]  # renewed
                    continue
                if attempt is not None:
                    yield _ended(running.pop(index), EXPIRED, min(attempt.until, replay_state.at))
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
                    yield _ended(attempt, EXPIRED, min(attempt.until, replay_state.at))
                else:
                    attempt.took, attempt.used = movements.took_ms(record, index), movements.used(record, index)
                    yield _ended(
                        attempt,
                        outcome,
                        replay_state.at,
                        replay_state.errors.get(index) if outcome != COMPLETE else None,
                    )
    for attempt in running.values():
        yield _ended(attempt, EXPIRED, attempt.until) if attempt.until <= now_ms else attempt


def _touched(replay_state: ReplayState, record: dict[str, Any]) -> Iterator[int]:
    """Yield the tasks that a record may have changed: those it names, or (an update's outcome) any."""
    if type(record.get("tasks")) is not list:
        yield from range(replay_state.count)
        return
    try:
        for first, end in record["tasks"]:
            yield from range(max(first, 0), min(end, replay_state.count))
    except (TypeError, ValueError):
        return


def _outcome(record: dict[str, Any], state: int) -> str:
    if state == AVAILABLE:
        return record["op"] if record["op"] in (FAIL, RELEASE, REVOKE) else RELEASE
    return _OUTCOMES[state]


def _ended(attempt: Attempt, outcome: str, at: int, error: str | None = None) -> Attempt:
    attempt.outcome, attempt.ended_at, attempt.error = outcome, at, error
    return attempt
