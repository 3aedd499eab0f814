"""Tell what used up a task's attempts (docs/format.md, "Attempts").

Pure: no clock, no input or output.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from fsqueue.format.replay import ReplayState
from fsqueue.format.task_states import Lease

CHANGING = frozenset({"lease", "fail", "release", "revoke", "bury"})
"""The kinds of records that change who holds a task, or how many attempts it has had, and leave or give it a chance."""


class Charge(NamedTuple):
    """What ended an attempt that was charged, and the worker that had made it, as its lease says."""

    error: str | None
    """The error of a `fail` record; None: its lease ran out."""
    worker: dict[str, Any] | None


def last(records: Iterable[tuple[int, dict[str, Any]]], tasks: Collection[int]) -> dict[int, Charge]:
    """Return the last charge of each of the tasks that has one, from all records of a log with their offsets.

    A lease that ran out counts from the record on that gives the task to another one. Of a task that is leased when
    the records end, the last charge before that is returned.
    """
    replay_state, wanted = ReplayState(), frozenset(tasks)
    found: dict[int, Charge] = {}
    known: dict[int, tuple[int, Lease | None]] = {}
    for _, record in replay_state.effective(records):
        for index in _named(record, wanted) if record["op"] in CHANGING else ():
            if index >= replay_state.count:
                continue
            attempts, holder = known.get(index, (0, None))
            if replay_state.attempts[index] > attempts and record["op"] in ("lease", "fail"):
                error = replay_state.errors.get(index) if record["op"] == "fail" else None
                found[index] = Charge(error, holder.worker if holder is not None else None)
            known[index] = replay_state.attempts[index], replay_state.holder[index]
    return found


def _named(record: dict[str, Any], wanted: frozenset[int]) -> list[int]:
    """Return which of the wanted tasks a record names; none if it is damaged: then it does not act."""
    named: list[int] = []
    try:
        for start, end in record["tasks"]:
            if end - start <= len(wanted):
                named += [index for index in range(start, end) if index in wanted]
            else:
                named += [index for index in wanted if start <= index < end]
    except (KeyError, TypeError, ValueError):
        return []
    return named
