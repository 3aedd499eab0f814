"""An update of one log: its records and their `commit`, by one write (docs/design.md, section 4.22).

They act together or not at all: they count only if they stand directly before that `commit`, and are as many as it
says.
"""

from __future__ import annotations

from typing import Any

from fsqueue.errors import FULL, FsqueueError, StorageError
from fsqueue.format import movements, names
from fsqueue.format.movements import UpdatePart
from fsqueue.format.names import UpdateId
from fsqueue.format.priority import LAST
from fsqueue.interruptions import let_out
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol import deciding, finishing, transitions, update_traces
from fsqueue.protocol.single_inserts import SingleInserter, write_commit
from fsqueue.protocol.update_plan import (
    Applied,
    Conflicts,
    QueuePlan,
    Records,
    check,
    completes_one,
    in_the_way,
)
from fsqueue.protocol.update_syncs import LogSync, LogSyncs
from fsqueue.storage import record_times
from fsqueue.storage.locked_batch import LEAST_WAIT_S, LockedBatch
from fsqueue.storage.store import Store


class UpdateInOneLog:
    """An update that changes tasks of one batch, and inserts into that batch or nowhere."""

    def __init__(
        self,
        update: UpdateId,
        queue: QueuePlan,
        store: Store,
        inserter: SingleInserter,
        conflicts: Conflicts,
        applied: Applied,
    ) -> None:
        self._queue, self._store, self._inserter = queue, store, inserter
        self._update, self._conflicts, self._applied = update, conflicts, applied
        [(self._batch, self._endings)] = queue.endings.items()
        self._pending = [(store.entropy.hex16(), task) for task in queue.inserts]
        self._is_written = False
        """True if the last try may have written anything."""
        self._log: LogSync | None = None
        """The sync that makes the update's records durable, where they must be."""

    def apply(self, syncs: LogSyncs, until: float) -> bool:
        """Let the update happen. False: nothing was done: the batch does not take the inserts, or a lease is lost.

        LockTimeout, FileNotFoundError: nothing was done. After an error of the write the log tells whether the update
        has happened. If not, it is written once more with the same ids, so that it happens once, also if the first
        write lands late.
        """
        store = self._store
        left_s = until - store.clock.monotonic()
        wait_s = max(LEAST_WAIT_S, left_s) if left_s > 0 else 0.0
        waiting: deciding.DecisionWait | None = None
        failure: OSError | StorageError | None = None
        while True:
            self._is_written, self._log = False, None
            try:
                with LockedBatch(store, self._batch, wait_s) as locked:
                    wanted = in_the_way(locked, self._endings) if locked.replay_state.prepared else []
                    if not wanted and not self._apply_in(locked, failure is not None):
                        if failure is None or not store.fs.shared:
                            return False
                        raise failure  # the first write may still land
            except (OSError, StorageError) as error:
                let_out(error)
                if not self._is_written:
                    if failure is None:
                        raise
                    raise update_traces.unknown(failure) from error
                if not self._has_happened(error):
                    if failure is not None or (isinstance(error, OSError) and error.errno in FULL):
                        if store.fs.shared:  # it may still land
                            raise update_traces.unknown(error) from error
                        raise
                    failure = error
                    continue
                wanted = []
            if not wanted:
                self._make_durable(syncs)
                return True
            waiting = waiting or deciding.DecisionWait(store, self._batch, wait_s)
            try:
                waiting.out(wanted)
                wait_s = waiting.wait_s
            except (OSError, FsqueueError) as error:
                let_out(error)
                if failure is None:
                    raise
                raise update_traces.unknown(failure) from error

    def _apply_in(self, locked: LockedBatch, again: bool) -> bool:
        inserter, tasks = self._inserter, self._queue.inserts
        if not locked.replay_state.opened:
            return False  # made just now by a lessee, or left empty by one that died: it tells of no task
        at = record_times.next_at(locked)
        one = completes_one(self._endings) if not again else None
        if one is not None and locked.replay_state.holds(one.index, one.lease):
            if tasks and not inserter.takes_into(locked, tasks):
                return False
            self._complete_one(locked, one, at)
            return True
        if not check(locked, self._queue, self._endings, at, self._conflicts):
            return False
        if tasks and not inserter.takes_into(locked, tasks):
            return False
        if not tasks and all(each.kind == "depends" for each in self._endings):
            return True  # nothing is to be changed, and all that it depends on is so
        part = UpdatePart(self._update)
        records = Records(locked, self._endings, part, at)
        records.name_earlier()
        self._begin(locked)
        if again:
            # Whole lines of a first write that was cut off would count as parts of the second one: a record of another
            # update ends them.
            locked.log.add(movements.record("abort", at, update=names.new_update(self._store.entropy)))
        records.add()
        inserter.add(locked, self._pending, at, part)
        write_commit(locked, at, self._update, len(records.made) + len(self._pending))
        self._take_in(locked.replay_state.acted)
        if records.buried:
            finishing.write_letters(locked, records.buried)
        if not locked.replay_state.remaining:
            finishing.try_finish(locked)
        return True

    def _begin(self, locked: LockedBatch) -> None:
        """Note that the log is about to be written."""
        if self._pending and self._store.sync_inserts:
            self._log = LogSync(locked, True)
        self._is_written = True

    def _complete_one(self, locked: LockedBatch, task: LeasedTask, at: int) -> None:
        """Complete a task, and insert. It does what `_apply_in` does, with fewer looks."""
        part, first = UpdatePart(self._update), locked.replay_state.count
        self._begin(locked)
        locked.log.add(transitions.completion(locked, task, at, part))
        versions = self._inserter.add(locked, self._pending, at, part)
        write_commit(locked, at, self._update, 1 + len(versions))
        self._applied.inserted[self._queue.name] = []
        self._applied.note_new(self._queue.name, self._batch, first, versions)
        if not locked.replay_state.remaining:
            finishing.try_finish(locked)

    def _take_in(self, acted: list[tuple[int, dict[str, Any]]]) -> None:
        """Note the outcome of the update: new tasks, new versions, and the ends of renewed leases."""
        name, batch = self._queue.name, self._batch
        self._applied.inserted[name] = []
        for offset, record in acted:
            self._applied.note_version(batch, offset, record)
            if record["op"] == "insert":
                self._applied.note_new(name, batch, record["first"], [offset])
            elif record["op"] == "renew":
                tasks = movements.from_ranges(record["tasks"])
                self._applied.until.update({(self._batch, index): record["until"] for index in tasks})

    def _has_happened(self, error: BaseException) -> bool:
        try:
            acted = update_traces.acted(self._store, self._batch, self._update)
        except (OSError, FsqueueError) as other:
            let_out(other)
            raise update_traces.unknown(error) from other
        if acted is None:
            raise update_traces.unknown(error) from error
        self._take_in(acted)
        return bool(acted)

    def _make_durable(self, syncs: LogSyncs) -> None:
        """Sync the log if there are inserts. Completions by themselves are not, with the durability "default"."""
        store, tasks = self._store, self._queue.inserts
        if self._log is None:
            return
        try:
            syncs.sync([(self._log, True, any(task.rank != LAST for task in tasks))])
            store.secure_generation()
        except OSError as error:
            let_out(error)
            raise update_traces.not_durable(error) from error
