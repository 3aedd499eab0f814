"""Seal a batch: from then on it takes no inserts (docs/design.md, section 4.16)."""

from __future__ import annotations

from fsqueue.format.replay import AVAILABLE
from fsqueue.storage.locked_batch import LockedBatch

LOG_BYTES_MAX = 1 << 20
"""A batch whose log is longer, or would be by several tasks at once, takes no more inserts."""


def seal(locked: LockedBatch, at: int) -> None:
    """Record that an open batch takes no more inserts, then rename its task file, which tells so without a look inside.

    The record is not the batch's only witness: a process that dies before the renaming leaves a file that seems to take
    inserts, and whose log says that it does not.
    """
    store, log, replay_state = locked.store, locked.log, locked.replay_state
    assert replay_state.takes_inserts, "a batch is sealed that takes no inserts"
    if store.sync_inserts and not log.sync:
        store.fs.fsync(log.fd)  # what a reader counts by the record alone must not be lost before it
    name = locked.find_task_file()
    # No name says that there are no tasks: such a batch is over, and the next process that meets its log finishes it.
    target = name.sealed(replay_state.count) if name is not None and replay_state.count else None
    locked.append_record(
        "seal",
        at,
        here=log.next_offset(),
        tasks=replay_state.count,
        waiting=replay_state.count if _is_untouched(locked) else None,
        **({"from": str(name), "name": str(target)} if target is not None else {}),
    )
    if target is not None:
        locked.rename_task_file(target)


def _is_untouched(locked: LockedBatch) -> bool:
    """Return whether all tasks wait as they were inserted, available at once."""
    replay_state = locked.replay_state
    states = replay_state.state
    return states.count(AVAILABLE) == len(states) and not any(replay_state.since) and not replay_state.touched
