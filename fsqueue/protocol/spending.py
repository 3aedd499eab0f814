"""Say what used up a task's attempts, and why it is given up (design, section 4.5; format.md, "Attempts")."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any, NamedTuple

from fsqueue.cluster.identity import describe
from fsqueue.format import movements, sparse
from fsqueue.format.replay import LEASED, ReplayState
from fsqueue.format.task_states import Lease
from fsqueue.protocol.transitions import shorten
from fsqueue.storage.locked_batch import LockedBatch

CHANGING = frozenset({"lease", "fail", "release", "revoke", "bury", "change"})
"""The kinds of records that change who holds a task, or how many attempts it has had, and leave or give it a chance."""


class Charge(NamedTuple):
    """Tell how a charged attempt ended, and which worker made it, as its lease says."""

    error: str | None
    """The error of a `fail` record; None: the lease ran out."""
    worker: dict[str, Any] | None


def last_charges(locked: LockedBatch, spent: list[int]) -> dict[int, Charge]:
    """Return how the last attempt at each of the `spent` tasks ended, in their order.

    For a lease that ran out just now the state knows. For others the whole log is read: the attempt may have failed,
    and the task may have been leased and put back since.
    """
    replay_state = locked.replay_state
    found: dict[int, Charge] = {}
    for index in spent:
        holder = replay_state.holder[index]
        if replay_state.state[index] == LEASED and holder is not None and holder.is_alone:
            found[index] = Charge(None, holder.worker)
    others = [index for index in spent if index not in found]
    if others:
        log = locked.log
        parsed = ((at, movements.parse(line)) for at, line, _ in sparse.lines(locked.store.fs.all_pieces(log.fd), 0))
        found |= last(((at, record) for at, record in parsed if record is not None), others)
    unknown = Charge(None, None)
    return {index: found.get(index, unknown) for index in spent}


def reason(charge: Charge, attempts: int, attempts_max: int | None) -> str:
    """Return the reason of a dead letter: how the last attempt ended, and that no other is allowed."""
    if charge.error is None:
        return shorten(f"lease expired, last worker {describe(charge.worker)}: out of attempts")
    headline, newline, rest = charge.error.partition("\n")
    return shorten(
        f"{headline} (out of attempts: it has had {attempts}, and max_attempts is {attempts_max}){newline}{rest}"
    )


def last(records: Iterable[tuple[int, dict[str, Any]]], tasks: Collection[int]) -> dict[int, Charge]:
    """Return the last charge of each of the tasks that has one, from all records of a log with their offsets.

    A lease that ran out counts from the record on that gives the task to another one, or changes the task. Of a task
    that is leased when the records end, the last charge before that is returned.
    """
    replay_state, wanted = ReplayState(), frozenset(tasks)
    found: dict[int, Charge] = {}
    known: dict[int, tuple[int, Lease | None]] = {}
    for _, record in replay_state.effective(records):
        for index in _named(record, wanted) if record["op"] in CHANGING else ():
            if index >= replay_state.count:
                continue
            attempts, holder = known.get(index, (0, None))
            if replay_state.attempts[index] > attempts and record["op"] in ("lease", "fail", "change"):
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
