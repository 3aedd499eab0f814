"""Say why a task is given up that has had all its attempts (docs/design.md, section 4.5)."""

from __future__ import annotations

from fsqueue.cluster.identity import describe
from fsqueue.format import charges, movements, sparse
from fsqueue.format.charges import Charge
from fsqueue.format.replay import LEASED
from fsqueue.protocol.transitions import shorten
from fsqueue.storage.locked_batch import LockedBatch


def last_charges(locked: LockedBatch, spent: list[int]) -> dict[int, Charge]:
    """Return what used up the last attempt of each of these tasks, in their order.

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
        found |= charges.last(((at, record) for at, record in parsed if record is not None), others)
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
