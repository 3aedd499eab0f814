"""Finish a batch once every task has an outcome; resumable after a crash at any step.

Under the log's lock, in this order (invariants 1 and 6 fix it):

1. `finish` in the log, synced: from here on the task file is not needed to know any outcome.
2. Missing dead letters, synced: from here on it is not needed for any payload.
3. The task file is unlinked, under whichever name it has; or renamed into the payloads of the day. The directory is
   synced with durability "strict", and of a batch in which an update has acted.
4. Under the counter's lock: `count` in the log, then the bytes. If no task was completed, and some were cancelled: a
   byte in the file `cancelled`.
5. The records go to the history, where it is kept.
6. `gone` in the log; the log is unlinked.

A process that meets a log with `finish` starts at step 2 again; each step finds out what is done already.
"""

from __future__ import annotations

import logging

from fsqueue.errors import FsqueueError
from fsqueue.format import movements
from fsqueue.format.replay import CANCELLED, COMPLETED, DEAD
from fsqueue.interruptions import let_out, suppress
from fsqueue.protocol import sealing
from fsqueue.storage import commits, counters, deadletters, history, payloads, record_times, staging
from fsqueue.storage.locked_batch import LockedBatch

logger = logging.getLogger("fsqueue")

LINGER_MS = 2_000
"""A batch that takes inserts ends this time after its last insert at the earliest: a task whose completion inserts the
next one would otherwise cost the end of a batch each time, and the beginning of another.
"""
WAIT_S = 2.0
"""Time to wait for a file that processes share (s); the next process that meets the batch goes on with the
finishing."""


def finish(locked: LockedBatch) -> bool:
    """Finish a batch whose tasks all have outcomes, or go on where another process has stopped. Then the log is closed.

    Return False, and do nothing, in three cases: a task has no outcome; an update that is not decided may insert one;
    a task was inserted a moment ago.
    """
    store, log, replay_state = locked.store, locked.log, locked.replay_state
    if not replay_state.opened or replay_state.remaining or replay_state.prepared:
        return False
    at = record_times.next_at(locked)
    if replay_state.takes_inserts and at < replay_state.inserted_at + LINGER_MS:
        return False
    if not replay_state.finished:
        locked.append_record("finish", at)
    if store.sync_inserts and not log.sync:
        store.fs.fsync(log.fd)  # else a power loss might keep the unlinking and lose the outcomes
    if replay_state.done[DEAD]:
        write_missing_letters(locked)
    lines = payloads.keep(locked, at)
    if lines is not None:
        locked.remove_task_file()
    if not store.fs.shared and (log.sync or (store.sync_inserts and _has_update(locked))):
        with suppress(FileNotFoundError):  # the directory went, too
            store.fs.sync_directory(f"{log.layout.tasks}/{log.layout.shard(log.batch)}")  # before anything else goes
    if replay_state.done[COMPLETED]:
        counters.add(locked, replay_state.done[COMPLETED], at, WAIT_S)
    if replay_state.done[CANCELLED] and not replay_state.done[COMPLETED]:
        counters.note_cancelled(locked, WAIT_S)  # else no look could tell that the batch was ever there
    if store.settings.keep_history and replay_state.count:
        history.keep(locked, at, WAIT_S, lines or b"")
    retire(locked)
    return True


def _has_update(locked: LockedBatch) -> bool:
    """Return whether an update has acted in the log. True, too, if it may have: before the checkpoint at which the
    replay began. What it has inserted elsewhere must not stay without what it has ended here.
    """
    state = locked.replay_state
    return locked.store.queue_state.group is not None and (state.is_updated or not state.is_whole)


def retire(locked: LockedBatch) -> None:
    """Append the tombstone record `gone` to a log, unlink the log, and close it."""
    store = locked.store
    locked.log.append(movements.encode(movements.record("gone", max(store.clock.now_ms(), locked.replay_state.at))))
    store.fs.unlink(locked.log.path)
    locked.drop()


def try_finish(locked: LockedBatch) -> None:
    """Finish the batch. After an error, leave the rest to the next process that meets the log.

    The outcomes are recorded already, so the caller's work is done either way.
    """
    try:
        finish(locked)
    except (OSError, FsqueueError) as error:
        let_out(error)
        if not is_queue_gone(locked):
            logger.warning(
                "batch %s of %s is done, but clearing it away failed (%s); 'fsqueue gc' will do it",
                locked.batch,
                locked.store.path,
                error,
            )
        locked.drop()
    except BaseException:
        locked.drop()
        raise


def is_queue_gone(locked: LockedBatch) -> bool:
    """Return whether the generation of a batch was purged, or its queue deleted. Then an error in its log does not
    matter any more.
    """
    fs = locked.store.fs
    try:
        return not fs.is_in_place() or not fs.exists(locked.log.layout.base)
    except OSError as error:
        let_out(error)
        return False


def write_missing_letters(locked: LockedBatch) -> int:
    """Write the dead letters of those dead tasks of a batch that have none yet, and sync them. Return how many."""
    dead = [index for index, state in enumerate(locked.replay_state.state) if state == DEAD]
    if any(index not in locked.log.lettered and locked.replay_state.holder[index] is None for index in dead):
        locked.recall()  # else a checkpoint would hide who made the last attempt
    return _write_letters(locked, dead, certain=False)


def _write_letters(locked: LockedBatch, tasks: list[int], *, certain: bool) -> int:
    def payload(index: int) -> object:
        return locked.payload(index)

    return deadletters.write(locked, tasks, payload, certain=certain, timeout_s=WAIT_S)


def write_letters(locked: LockedBatch, tasks: list[int]) -> None:
    """Write the dead letters of tasks that were buried just now. If that fails, log it: `finish` or `gc` writes
    them.
    """
    store, log = locked.store, locked.log
    try:
        if store.sync_inserts and not log.sync:
            store.fs.fsync(log.fd)  # else a power loss might keep the letter and lose the burial: dead, and there again
        _write_letters(locked, tasks, certain=True)
    except (OSError, FsqueueError) as error:
        let_out(error)
        if not is_queue_gone(locked):
            logger.warning(
                "the dead letters of batch %s of %s were not written (%s); 'fsqueue gc' will do it",
                log.batch,
                store.path,
                error,
            )


def bury_lost(locked: LockedBatch) -> bool:
    """Bury the tasks without an outcome whose task file is proven absent: no reader should wait for them for ever.

    A batch that took inserts takes no more.

    False, and nothing is done, if the file is in staging: a power loss may put it back there after tasks were
    leased from it. The next reader that applies what is decided, or `gc`, publishes it. Files move from staging into
    the shard only, so the shard is looked at again after staging: another process may have published it in between.
    False also while an update is not decided: it may change these tasks. HiddenTasks if something else has the place of
    what may lead to the file.
    """
    store, log = locked.store, locked.log
    if locked.replay_state.prepared:
        return False
    if staging.has(store, log.layout, log.batch) or log.batch in commits.waiting(store, strict=True):
        return False
    if locked.read_lines() is not None:
        return False
    replay_state = locked.replay_state
    at = record_times.next_at(locked)
    if replay_state.takes_inserts:
        sealing.seal(locked, at)  # else its inserters would go on, and only upkeep would ever find their tasks
    lost = [index for index in range(replay_state.count) if replay_state.is_free(index, at)]
    if lost:
        locked.append_record(
            "bury",
            at,
            tasks=movements.to_ranges(lost),
            reason="task file gone: it was removed by something else than fsqueue",
        )
        write_letters(locked, lost)
    if not replay_state.remaining:
        try_finish(locked)
    return True
