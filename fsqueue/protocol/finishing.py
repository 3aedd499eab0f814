"""The end of a batch, once every task has an outcome; resumable after a crash at any step.

Under the log's lock, in this order (invariants 1 and 6 fix it):

1. `finish` in the log, synced: from here on the task file is not needed to know any outcome.
2. Missing dead letters, synced: from here on it is not needed for any payload.
3. The task file is unlinked, under whichever name it has.
4. Under the counter's lock: `count` in the log, then the bytes.
5. The records go to the history, where it is kept.
6. `gone` in the log; the log is unlinked.

Whoever meets a log with `finish` starts at step 2 again; each step finds out what is done already.
"""

from __future__ import annotations

import logging
from contextlib import suppress

from fsqueue.errors import LockTimeout
from fsqueue.format import movements
from fsqueue.format.replay import COMPLETED, DEAD
from fsqueue.storage import commits, counters, deadletters, history, published, record_times, staging
from fsqueue.storage.logs import Log
from fsqueue.storage.store import Store

logger = logging.getLogger("fsqueue")

WAIT_S = 2.0
"""How long to wait for a file shared with others; whoever meets the batch next goes on with the finishing."""


def finish(store: Store, log: Log) -> None:
    """Finish a batch whose tasks all have outcomes, or go on with that. The log is closed afterwards."""
    replay_state = log.replay_state
    if not replay_state.count or replay_state.left:
        return
    at = record_times.present(store, log)
    if not replay_state.finished:
        log.append_record("finish", at)
    if store.sync_inserts and not log.sync:
        store.fs.fsync(log.fd)  # else a power loss might keep the unlinking and lose the outcomes
    if replay_state.done[DEAD]:
        missing_letters(store, log)
    published.remove(store, log)
    if log.sync and not store.fs.shared:
        with suppress(FileNotFoundError):  # the directory went, too
            store.fs.sync_directory(f"{log.layout.tasks}/{log.layout.shard(log.batch)}")  # before anything else goes
    if replay_state.done[COMPLETED]:
        counters.add(store, log, replay_state.done[COMPLETED], at, WAIT_S)
    if store.settings.keep_history:
        history.keep(store, log, at, WAIT_S)
    retire(store, log)


def retire(store: Store, log: Log) -> None:
    """Say `gone` in the log, unlink it, and close it."""
    log.append(movements.record("gone", max(store.clock.now_ms(), log.replay_state.at)))
    store.fs.unlink(log.path)
    store.drop(log)


def try_finish(store: Store, log: Log) -> None:
    """Finish; what cannot be done now (a full disk, a busy lock) is left to the next who meets the log.

    The outcomes are recorded already, so the caller's work is done either way.
    """
    try:
        finish(store, log)
    except (OSError, LockTimeout) as error:
        if not is_over(store, log):
            logger.warning(
                "batch %s of %s is done, but clearing it away failed (%s); 'fsqueue gc' will do it",
                log.batch,
                store.path,
                error,
            )
        store.drop(log)
    except BaseException:
        store.drop(log)
        raise


def is_over(store: Store, log: Log) -> bool:
    """Return whether the queue was purged or deleted: what failed in a log of it is nobody's concern any more."""
    try:
        return not store.fs.is_in_place() or not store.fs.exists(log.layout.base)
    except OSError:
        return False


def missing_letters(store: Store, log: Log) -> int:
    """Write the letters of dead tasks that have none yet, and sync them; how many."""
    dead = [index for index, state in enumerate(log.replay_state.state) if state == DEAD]
    return _write(store, log, dead, certain=False)


def _write(store: Store, log: Log, tasks: list[int], *, certain: bool) -> int:
    def payload(index: int) -> object:
        return published.payload(store, log, index)

    return deadletters.write(store, log, tasks, payload, certain=certain, timeout_s=WAIT_S)


def bury(store: Store, log: Log, tasks: list[int]) -> None:
    """Write the letters of tasks that were buried just now. If that fails, `finish` or upkeep makes up for it."""
    try:
        if store.sync_inserts and not log.sync:
            store.fs.fsync(log.fd)  # else a power loss might keep the letter and lose the burial: dead, and there again
        _write(store, log, tasks, certain=True)
    except (OSError, LockTimeout) as error:
        if not is_over(store, log):
            logger.warning(
                "the dead letters of batch %s of %s were not written (%s); 'fsqueue gc' will do it",
                log.batch,
                store.path,
                error,
            )


def settle_loss(store: Store, log: Log) -> bool:
    """Bury the tasks without an outcome whose task file is proven absent: nobody should wait for them for ever.

    False, and nothing is done, if the file is in staging: a power loss may put it back there after tasks were
    leased from it. The next reader that applies what is decided, or `gc`, publishes it. Files move from staging into
    the shard only, so the shard is looked at again after staging: another process may have published it in between.
    """
    if staging.has(store, log.layout, log.batch) or log.batch in commits.waiting(store):
        return False
    if published.read(store, log) is not None:
        return False
    replay_state = log.replay_state
    at = record_times.present(store, log)
    lost = [index for index in range(replay_state.count) if replay_state.is_free(index, at)]
    if lost:
        log.append_record(
            "bury",
            at,
            tasks=movements.to_ranges(lost),
            reason="task file gone: it was removed by something else than fsqueue",
        )
        bury(store, log, lost)
    if not replay_state.left:
        try_finish(store, log)
    return True


def retire_if_gone(store: Store, log: Log) -> bool:
    """Return whether the log ends in `gone`; then, if the path still names this very file, it is unlinked.

    Closes it.
    """
    if not log.replay_state.gone:
        return False
    if store.fs.same_file(log.fd, log.path):
        store.fs.unlink(log.path)
    store.drop(log)
    return True
