"""Let a reader see updates that are decided, and whose outcome a log does not have yet.

A process that has a log locked appends the outcome. A reader has no lock: it asks the decision file, and lets the
records act in its own copy that the file commits (docs/design.md, section 4.22). So a process that has seen a part
of an update sees the rest by any later look.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Any, TypeVar

from fsqueue.format import movements
from fsqueue.format.decisions import Outcome
from fsqueue.format.names import Batch, UpdateId
from fsqueue.format.replay import ReplayState
from fsqueue.format.task_states import Prepared
from fsqueue.storage import decisions, history
from fsqueue.storage.decisions import DecisionRequest, OutOfGroup
from fsqueue.storage.store import Store

MAY_NOT_WRITE = (errno.EACCES, errno.EPERM, errno.EROFS)
T = TypeVar("T")

LOOKS = 8
"""Maximum number of times that a log is read: again if a decision is against an update, or gone. Each time that is
another update."""


def seen(store: Store, state: ReplayState, again: Callable[[], ReplayState | None]) -> ReplayState | None:
    """Return the state of a log that was just read, with what is decided about its prepared records. No lock is taken.

    What is not decided stays in `prepared`: its tasks are as they were, and what it inserts is not there yet. So does
    everything of a queue that was moved out of its group. `again` reads the log anew; None if there is none any more.
    OSError or StorageError if a decision file cannot be read.
    """
    found = with_outcomes(store, state, again, lambda state: state)
    if found is None:
        return None
    state, outcomes = found
    for record in outcomes:
        state.apply(record, state.prepared[record["update"]].records[-1][0] + 1)
    return state


def seen_records(store: Store, records: history.Records, again: Callable[[], history.Records]) -> history.Records:
    """Return the records of a log that was just read, and behind them the outcomes that it does not have yet."""
    if not any(movements.is_prepared(record) for _, record in records):
        return records
    found = with_outcomes(store, records, again, history.replay)
    assert found is not None
    records, outcomes = found
    return [*records, *((records[-1][0] + number, record) for number, record in enumerate(outcomes, 1))]


def with_outcomes(
    store: Store, found: T, again: Callable[[], T | None], state_of: Callable[[T], ReplayState]
) -> tuple[T, list[dict[str, Any]]] | None:
    """Return `found`, which was read of a log, and the outcomes of the log's updates that are decided.

    If an update was decided meanwhile, `again` reads the log anew. None if there is no log any more.
    """
    against: set[UpdateId] = set()
    for _ in range(LOOKS):
        state, outcomes, more = state_of(found), list[dict[str, Any]](), set[UpdateId]()
        answers = _ask(store, {update: one for update, one in state.prepared.items() if update not in against})
        for update, prepared in state.prepared.items():
            outcome = answers.get(update)
            if outcome == "commit":
                outcomes.append({"op": outcome, "at": state.at, "update": update, "of": len(prepared.records)})
            elif update in against:
                outcomes.append({"op": "abort", "at": state.at, "update": update})
            elif outcome == "abort":
                more.add(update)
        if not more:
            return found, outcomes
        # A decision file is removed once each log has its outcomes: the log that was read may be older than that.
        against |= more
        new = again()
        if new is None:
            return None
        found = new
    return found, []


def _ask(store: Store, wanted: dict[UpdateId, Prepared]) -> dict[UpdateId, Outcome]:
    """Return the decisions about updates, as far as they are decided."""
    asked = [
        DecisionRequest(prepared.file, update, False, prepared.beside)
        for update, prepared in wanted.items()
        if prepared.file is not None
    ]
    try:
        found = decisions.ask_all(store, asked) if asked else {}
    except OutOfGroup:
        return {}
    return {update: decision.outcome for update, decision in found.items()}


MET_MAX = 10_000
"""Maximum number of updates of which a check remembers when it met them. With more of them it begins anew."""


class UpdatePatience:
    """Remember since when a check has met prepared records, to tell which of them are old. Not thread-safe.

    The times in the records do not tell that: a host's clock may have been set back since, or be behind the updater's.
    """

    def __init__(self) -> None:
        self._met: dict[tuple[Batch, UpdateId], float] = {}
        """Time at which each update was first met in a log, on this process's monotonic clock (s)."""

    def decide(self, store: Store, batch: Batch, state: ReplayState) -> bool:
        """Have old updates decided that have prepared records in a log. Return whether one was: then look again.

        Nothing is decided by a user who may not write, nor while another process keeps a decision file locked.
        OutOfGroup, which says what to do, if a queue was moved out of its group: nothing would ever be decided there.
        """
        if len(self._met) > MET_MAX:
            self._met.clear()
        clock, found = store.clock, False
        for update, prepared in state.prepared.items():
            waited_s = clock.monotonic() - self._met.setdefault((batch, update), clock.monotonic())
            left_ms = prepared.left_ms(round(waited_s * 1000), clock.now_ms(), clock.margin_ms)
            if left_ms <= 0 and prepared.file is not None:
                try:
                    asked = DecisionRequest(prepared.file, update, True, prepared.beside)
                    found = decisions.ask(store, asked) is not None or found
                except OSError as error:
                    if error.errno not in MAY_NOT_WRITE:
                        raise
        return found
