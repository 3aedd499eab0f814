"""Insert one task, or a few at once: append them to the log of a batch that takes inserts.

docs/design.md, section 4.16; decisions 27 and 45.

A batch is *open* while it takes inserts: its task file is empty but for a header, and its tasks are `insert` records in
its log. A process stays with one open batch. At first it looks for one that an earlier process of its host has left,
and that is not full.

One insert goes this way, from `SingleInserter._insert`:

1. Choose a batch (`_batches`). 2. Append the record (`_insert_into`, and there `_append_surely`). The usual task goes
by `fast_path.insert_next`, in one frame. For any other one, lock the log; ask whether the batch takes it
(`_takes_now`); give the task file a name that promises it (`_ensure_promise`); append (`_write_inserts`). After an
error, look for the record (`_find_records`). 3. Sync the log (`_make_durable`). 4. Ask whether a purge has begun
meanwhile (`_is_in_queue`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import NamedTuple

from fsqueue import forks
from fsqueue.errors import FULL, NO_DESCRIPTORS, FsqueueError, LockTimeout, QueueClosed, StorageError
from fsqueue.filesystem import LOST, resources
from fsqueue.format import movements, names, sparse, task_file
from fsqueue.format.layout import Layout, Settings
from fsqueue.format.movements import UpdatePart
from fsqueue.format.names import Batch, TaskFileName, UpdateId
from fsqueue.format.priority import LAST, Rank
from fsqueue.format.replay import ReplayState
from fsqueue.interruptions import let_out, suppress
from fsqueue.protocol import fast_path, finishing, sealing, transitions
from fsqueue.protocol.encoding import NOW, Encoded, EncodedTask, moment
from fsqueue.protocol.insert_errors import AppendFailed
from fsqueue.protocol.insert_retries import TRIES, is_overtaken
from fsqueue.storage import history, journals, queue_changes, record_times, staging
from fsqueue.storage.locked_batch import BatchBusy, LockedBatch
from fsqueue.storage.logs import is_retired
from fsqueue.storage.store import Store, hash_of

TASK_BYTES_MAX = 64 << 10
"""A longer task gets a file of its own, and takes no key: a log is read again and again, and a task file once."""
APPEND_TASKS_MAX, APPEND_BYTES_MAX = 256, 1 << 18
"""Maximum number of tasks of one append, and of bytes of their lines. More are cheaper as task files."""
BUSY_WAIT_S = 0.02
"""Longest wait for the lock of the batch of the last insert. Then another batch is taken: the holder may be stopped."""
ADOPT_MAX = 8
"""Maximum number of open batches left by other processes of this host that are tried, the newest first."""
SPREAD = 16
"""Number of shards over which a process spreads its open batches: workers share the work, few directories are made."""

Pending = list[tuple[str, EncodedTask]]
"""Tasks to append, each with the id of its record."""

Announce = Callable[[Layout, Batch, Pending], None]
"""Called before records are appended to a batch: with the generation, the batch, and the tasks."""


class _Appended(NamedTuple):
    """Tell how an append of tasks to one batch has ended: all of them are in it, unless there is a `failure`."""

    first: int
    """The index of the first task."""
    end: int
    """Where the log ends behind their records."""
    new: int
    """Number of the first tasks that are in the batch."""
    failure: OSError | FsqueueError | None = None
    """Error for which not all of the tasks are in the batch."""
    is_exact: bool = True
    """True if it is certain that none of the other tasks is in the batch."""


class PreparedInserts(NamedTuple):
    """Tell where the prepared inserts of an update stand."""

    batch: Batch
    first: int
    """The index of the first task."""
    end: int
    """Where the log ends behind their records."""
    versions: Sequence[int]
    """The versions of the new tasks, in the order of their indices."""


class _Overtaken(Exception):
    """Raised if the queue was purged while an append ended with an error: the tasks are not in the queue."""


class _Unknown(Exception):
    """Raised if it cannot be found out whether a task is in a batch that is gone."""


def may_append(settings: Settings, domain: str) -> bool:
    """Return whether a process may insert into open batches of a queue. `domain`: as of its `Store`."""
    return settings.batch_tasks_max > 1 and bool(domain)


class SingleInserter:
    """Insert tasks one at a time into one queue. Threads may share it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._batch: Batch | None = None
        """The open batch that this process inserts into."""
        self._known_batch: Batch | None = None
        """The batch into which this process has inserted last: its names are durable."""
        self._needed_name: TaskFileName | None = None
        """The task file's name that promises the rank of the latest task with a priority."""
        self._durable_name: TaskFileName | None = None
        """The last of these names that this process knows to be durable."""
        self._scattered: dict[tuple[Batch, int], Sequence[int]] = {}
        """The indices of tasks that one append was to insert, and of which some may have come in by a second one: by
        their batch and the index of the first one."""
        self._finding = resources.Mutex()
        self._syncer = _LogSyncer(store)

    @property
    def has_open_batches(self) -> bool:
        """Tell whether this process may insert into open batches of this queue."""
        return may_append(self.store.settings, self.store.domain)

    def takes(self, task: EncodedTask) -> bool:
        """Return whether a task may go into an open batch. Else it needs a task file of its own."""
        return len(task.line) <= TASK_BYTES_MAX and may_append(self.store.settings, self.store.domain)

    def takes_all(self, encoded: Encoded) -> bool:
        """Return whether the tasks of an encoded batch may go into an open batch, by one append."""
        size = encoded.size
        if size <= TASK_BYTES_MAX:
            return True
        return size <= APPEND_BYTES_MAX and max(len(task.line) for task in encoded.each()) <= TASK_BYTES_MAX

    def close(self) -> None:
        """Close the descriptor for syncing. The inserter may be used again."""
        self._syncer.close()

    def durable_to(self, batch: Batch) -> int:
        """Return up to where this process knows a batch's log to be on disk, with its names; -1 if it does not."""
        synced, end = self._syncer.done
        return end if batch == synced == self._known_batch else -1

    def insert(self, task: EncodedTask, announce: Announce | None = None) -> str:
        """Insert a task, durably, and return its id.

        An error says whether the task is in the queue, or that this is unknown. An error of `announce` ends the insert.
        Of the records that were announced only the last one may be in the queue.
        """
        try:
            batch, index = self._insert([task], announce)
        except AppendFailed as failed:
            raise failed.of_one(self.store) from failed.__cause__
        return names.task_id(batch, index)

    def insert_all(self, tasks: Sequence[EncodedTask], announce: Announce | None = None) -> tuple[Batch, Sequence[int]]:
        """Insert tasks, durably, by one append to one batch. Return the batch, and their indices in it.

        AppendFailed tells how many of the first ones are in the queue. After any other error none is: one of
        `announce`, too.
        """
        batch, first = self._insert(tasks, announce)
        return batch, self._scattered.pop((batch, first), range(first, first + len(tasks)))

    def insert_together(self, tasks: Sequence[EncodedTask]) -> tuple[Batch, int, list[int]]:
        """Insert tasks, durably, all or none: as an update of one log, by one append.

        Return their batch, the index of the first one, and their versions. AppendFailed: they are in the queue, or that
        is unknown. After any other error none is.
        """
        assert tasks, "an update that inserts nothing"
        versions: list[int] = []
        batch, first = self._insert(tasks, together=versions)
        return batch, first, versions

    def _insert(
        self, tasks: Sequence[EncodedTask], announce: Announce | None = None, together: list[int] | None = None
    ) -> tuple[Batch, int]:
        """Insert tasks, durably. Return their batch, and the index of the first one.

        `announce` is told of the records before each try. `together`: all or none; it gets their versions.
        """
        store = self.store
        store.refresh()
        rank = min(task.rank for task in tasks) if len(tasks) > 1 else tasks[0].rank
        queue_changes.mark_ordered(store, rank)
        pending = [(store.entropy.hex16(), task) for task in tasks]
        refused: OSError | None = None
        lost = False
        for batch in self._batches(rank):
            layout, index = store.layout, None
            if announce is not None:
                announce(layout, batch, pending)
            try:
                index = self._insert_into(batch, pending, rank, together)
            except (BatchBusy, LockTimeout):
                pass  # take another batch
            except (FileNotFoundError, _Overtaken):
                store.refresh(now=True)
            except AppendFailed as failed:
                if failed.new and not self._is_in_queue(layout, failed.new):
                    raise AppendFailed(failed.error) from failed.__cause__  # a purge has taken what was appended
                raise
            except OSError as error:
                let_out(error)
                is_own = batch == self._known_batch
                if error.errno in (*FULL, *NO_DESCRIPTORS) or (is_own and (lost or error.errno not in LOST)):
                    raise
                # Another user has left that batch, or something else is in its place: take another. Of its own batch
                # another client has removed the log, or the server has lost the lock: take another, once.
                lost, refused = lost or is_own, error
            if index is None:
                if self._batch == batch:
                    self._batch = None
                continue
            self._batch = batch
            if not self._is_in_queue(layout, len(tasks)):  # a purge took them along
                pending = [(store.entropy.hex16(), task) for task in tasks]
                continue
            store.doorbell.ring_now_and_then(store.clock.monotonic())
            return batch, index
        if refused is not None:
            raise refused
        what = "a task was being inserted. The task is not in the queue." if len(tasks) == 1 else "tasks were inserted."
        raise StorageError(
            f"The queue {store.path} was purged, or its batches were locked by others, again and again while {what}"
        )

    def is_in_queue(self, layout: Layout) -> bool:
        """Return whether a task that was inserted into a generation before this call is in the queue, durably. False if
        that was purged.

        An error says that the task is in the queue, or that this is unknown.
        """
        try:
            return self._is_in_queue(layout, 0)
        except AppendFailed as failed:
            raise failed.of_one(self.store) from failed.__cause__

    def _is_in_queue(self, layout: Layout, new: int) -> bool:
        """Return whether tasks inserted into a generation are in the queue, durably. False if it was purged.

        AppendFailed says that it is in the queue, or that this is unknown: it was appended. It is unknown, too, if
        the queue's directory was moved: the task went with it, and may come back. QueueClosed: it was deleted with the
        queue. `new`: the number of tasks; 0 if that was before this insert.
        """
        store = self.store
        try:
            if not store.queue_file.is_unchanged(layout.generation):
                store.refresh(now=True)
                if store.layout.generation != layout.generation:
                    return False
        except QueueClosed:
            raise
        except (OSError, FsqueueError) as error:
            let_out(error)
            raise AppendFailed(error, is_exact=False) from error
        try:
            store.secure_generation()
        except OSError as error:
            let_out(error)
            raise AppendFailed(error, new, is_safe=False) from error
        return True

    # -- which batch -------------------------------------------------------------------------------

    def _batches(self, rank: Rank) -> Iterator[Batch]:
        """Yield open batches to try: that of the last insert, then those that others have left, then new ones.

        The names of new ones promise a task of this rank.
        """
        tried: set[Batch] = set()
        for _ in range(TRIES):
            batch = self._batch
            if batch is None or batch in tried:
                with self._finding:  # else each thread would make one
                    batch = self._batch
                    if batch is None or batch in tried:
                        batch = self._find_left_batch(tried) or self._make_batch(rank)
                        self._batch = batch
            tried.add(batch)
            yield batch

    def _shard_of_host(self, layout: Layout) -> names.Shard:
        """Return the shard in which the processes of this host look for open batches."""
        shards = names.all_shards(layout.shards)
        return shards[hash_of(str(self.store.worker.get("host"))) % len(shards)]

    def _find_left_batch(self, tried: set[Batch]) -> Batch | None:
        """Return an open batch of this host that was not tried yet, the newest of a few; None if there is none."""
        store = self.store
        if self._known_batch is not None:
            return None  # this process has had one of its own
        try:
            listed = store.fs.names(f"{store.layout.tasks}/{self._shard_of_host(store.layout)}")
        except OSError as error:
            if error.errno not in LOST:
                raise
            return None  # the directory went with a purge, perhaps: the process that makes a batch finds that out
        found = map(names.parse_task_file, listed)
        batches = sorted(name.batch for name in found if name is not None and name.is_open)
        return next((batch for batch in batches[: -ADOPT_MAX - 1 : -1] if batch not in tried), None)

    def _make_batch(self, rank: Rank) -> Batch:
        """Publish the task file of a new open batch, durably, and return the batch. Its name promises this rank."""
        store = self.store
        for _ in range(TRIES):
            layout = store.layout
            unexplained: OSError | None = None
            try:
                return self._publish_batch(layout, rank)
            except OSError as error:
                let_out(error)
                if not is_overtaken(store, error, layout):
                    unexplained = error
                store.make_generation()
        if unexplained is not None:  # no purge was the cause
            raise unexplained
        raise StorageError(
            f"The queue {store.path} was purged again and again while a task was being inserted. The task is not in it."
        )

    def _publish_batch(self, layout: Layout, rank: Rank) -> Batch:
        store = self.store
        shard = int(self._shard_of_host(layout), 16)
        if self._known_batch is not None:  # others do not look for this one: spread the work
            shard = (shard + int(store.entropy.hex16()[:8], 16) % SPREAD) % layout.shards
        batch = names.new_batch_in(store.entropy, store.clock.now_ms(), shard, layout.shards)
        name = names.open_batch_file(batch, rank)
        staged = staging.stage_as(store, layout, [task_file.encode_open_batch(store.domain)], name)
        staging.publish_one(store, staged)
        return batch

    # -- into it -----------------------------------------------------------------------------------

    def _insert_into(self, batch: Batch, pending: Pending, rank: Rank, together: list[int] | None) -> int | None:
        """Insert tasks into a batch, durably. Return the index of the first one; None if the batch takes no inserts.

        `rank`: of the most urgent of them.
        """
        appended = self._append_surely(batch, pending, rank, together)
        if appended is None:
            return None
        try:
            self._make_durable(batch, appended.end)
        except OSError as error:
            let_out(error)
            if self._batch == batch:
                self._batch = None
            raise AppendFailed(error, is_exact=False) from error
        if appended.failure is not None:
            raise AppendFailed(appended.failure, appended.new, is_exact=appended.is_exact) from appended.failure
        return appended.first

    def _append_surely(
        self, batch: Batch, pending: Pending, rank: Rank, together: list[int] | None
    ) -> _Appended | None:
        """Append tasks to a batch's log, and say where they stand. None if it takes no inserts.

        If that ends with an error, those records that are not there are appended once more, to the same log and to no
        other: a write that failed may land later. Only then the batch can be left, or the error be raised as one that
        tells that no task is in the queue. _Overtaken: a purge took the batch along, and all that may land in it.
        """
        layout = self.store.layout
        is_known, error = batch == self._known_batch, None
        wait_s = BUSY_WAIT_S if is_known else 0.0
        found: dict[str, int] = {}  # where those stand that were found after an error
        missing = pending
        identity, task = pending[0]
        is_usual = is_known and rank == LAST and len(pending) == 1 and together is None and task.when is NOW
        for is_last in (False, True):
            began = False
            try:
                if is_usual:
                    is_usual = False
                    self._syncer.open(batch)
                    place = fast_path.insert_next(self.store, batch, identity, task.line)
                    if place is not None:
                        index, end = place
                        self._syncer.wrote(batch, end)
                        return _Appended(index, end, 1)
                with LockedBatch(self.store, batch, wait_s, create=True) as locked:
                    if self._takes_now(locked, is_known, missing):
                        self._syncer.open(batch)
                        began = True
                        if rank == LAST or self._ensure_promise(locked, rank):
                            if together is None:
                                index = self._write_inserts(locked, missing)
                                if missing is not pending:  # the first append has left some, and these came behind
                                    behind = {one: index + place for place, (one, _) in enumerate(missing)}
                                    index = self._scatter(batch, pending, {**found, **behind})
                            else:
                                index = self._write_update(locked, missing, together)
                            self._syncer.wrote(batch, locked.log.end)
                            return _Appended(index, locked.log.end, len(pending))
            except LockTimeout as busy:
                if error is None:
                    raise
                raise AppendFailed(error, is_exact=False) from busy
            except fast_path.AppendBroken as broken:
                error, is_closed = broken.error, False
            except (OSError, StorageError) as latest:
                let_out(latest)
                if not began and error is None:
                    raise
                error, is_closed = latest, False
            else:
                is_closed = True
                if error is None:
                    return None
            is_full = isinstance(error, OSError) and error.errno in FULL
            found, end = self._find_records(layout, batch, pending, error, closing=is_last and not is_full)
            missing = [(identity, task) for identity, task in pending if identity not in found]
            if not missing:
                return _Appended(self._scatter(batch, pending, found), end, len(pending))
            if is_closed or is_last or is_full or isinstance(error, FileNotFoundError):
                if found:
                    new = next(place for place, (identity, _) in enumerate(pending) if identity not in found)
                    return _Appended(0, end, new, error, is_exact=new == len(found))
                if is_closed or isinstance(error, FileNotFoundError):
                    return None
                raise error  # none is in the queue
            wait_s = journals.LOCK_TIMEOUT_S
        raise AssertionError("unreachable")

    def _scatter(self, batch: Batch, pending: Pending, found: Mapping[str, int]) -> int:
        """Note where tasks of one append stand, which need not be side by side. Return the index of the first one."""
        indices = [found[identity] for identity, _ in pending]
        assert len(set(indices)) == len(indices), "two records of one append have made the same task"
        if len(indices) > 1:
            self._scattered[batch, indices[0]] = indices
        return indices[0]

    def _takes_now(self, locked: LockedBatch, is_known: bool, pending: Pending) -> bool:
        """Return whether a locked batch takes the `pending` inserts. If its log is empty, add its first record.

        Seal a batch that has no room for all of them, or that takes those of another boot only. `is_known`: this
        process has inserted into it before.
        """
        store, log, replay_state = self.store, locked.log, locked.replay_state
        if not is_known and locked.read_lines() is None:
            if not replay_state.opened:
                finishing.retire(locked)  # it finished after it was listed, and opening the log revived its name
            return False
        if not replay_state.opened:
            if locked.read_lines() is None or log.name is None:
                finishing.retire(locked)
                return False
            log.add(transitions.opening(locked, log.name))
        takes = replay_state.takes_inserts
        is_full = replay_state.count + len(pending) > store.settings.batch_tasks_max or log.end >= sealing.LOG_BYTES_MAX
        if len(pending) > 1 and replay_state.count:
            is_full = is_full or log.end + sum(len(task.line) for _, task in pending) > sealing.LOG_BYTES_MAX
        if takes and not is_full and replay_state.inserts == store.domain:
            return True
        if log.added_bytes:
            log.write()
        if takes:
            sealing.seal(locked, record_times.next_at(locked))
            if not replay_state.remaining:
                finishing.try_finish(locked)
        return False

    def _ensure_promise(self, locked: LockedBatch, rank: Rank) -> bool:
        """Rename a batch's task file if its name does not promise a task of this rank. False if there is no such file.

        Record the renaming, do it and prove it, in this order, before the task is inserted. A name that promises too
        much costs a look; one that promises too little hides the task.
        """
        name = locked.find_task_file()
        if name is not None and rank < name.rank:
            if locked.log.added_bytes:
                locked.log.write()
            target = name.ranked(rank)
            locked.append_move(record_times.next_at(locked), name, target)
            name = target if locked.rename_task_file_surely(target) else None
        if name is None:
            if locked.log.added_bytes:
                finishing.retire(locked)  # what was added is not written
            return False
        self._needed_name = name
        return True

    # -- of an update ------------------------------------------------------------------------------

    def prepare(
        self,
        tasks: Sequence[EncodedTask],
        part: UpdatePart,
        note: Callable[[LockedBatch], object],
        announce: Announce | None = None,
    ) -> PreparedInserts:
        """Append prepared inserts of an update to one batch, by one append. Return where they are.

        `note` is called under the log's lock, before anything of the update may be in it. No append is repeated: after
        an error that comes later, the update is given up in that log, too. LockTimeout, or another error before `note`
        was called: nothing of these tasks is anywhere. `announce`: of a single task, as for `insert`.
        """
        assert announce is None or len(tasks) == 1, "a record is announced for a single task"
        store, rank = self.store, tasks[0].rank if len(tasks) == 1 else min(task.rank for task in tasks)
        queue_changes.mark_ordered(store, rank)
        pending = [(store.entropy.hex16(), task) for task in tasks]
        for batch in self._batches(rank):
            if announce is not None:
                announce(store.layout, batch, pending)
            try:
                with LockedBatch(store, batch, BUSY_WAIT_S, create=True) as locked:
                    if self._takes_now(locked, batch == self._known_batch, pending) and (
                        rank == LAST or self._ensure_promise(locked, rank)
                    ):
                        note(locked)
                        at = self._time_of(locked)  # it may append a record that corrects the log's time
                        first = locked.replay_state.count
                        versions = self.add(locked, pending, at, part)
                        locked.log.write()
                        self._batch = batch
                        return PreparedInserts(batch, first, locked.log.end, versions)
            except (BatchBusy, LockTimeout):
                pass  # take another batch
            except FileNotFoundError:
                store.refresh(now=True)
            if self._batch == batch:
                self._batch = None
        raise LockTimeout(f"The batches of {store.path} were locked, filled or purged by others again and again.")

    def takes_into(self, locked: LockedBatch, tasks: Sequence[EncodedTask]) -> bool:
        """Return whether a locked batch, in which tasks are leased, takes these inserts as well."""
        store, replay_state = self.store, locked.replay_state
        domain, most = store.domain, store.settings.batch_tasks_max
        if not replay_state.takes_inserts or replay_state.inserts != domain or not domain or most <= 1:
            return False
        size, rank = locked.log.end, LAST
        for task in tasks:
            size += len(task.line)
            rank = min(rank, task.rank)
        if replay_state.count + len(tasks) > most or size > sealing.LOG_BYTES_MAX:
            return False
        return rank == LAST or self._ensure_promise(locked, rank)

    def add(self, locked: LockedBatch, pending: Pending, at: int, part: UpdatePart | None = None) -> list[int]:
        """Add an `insert` record for each task to the log; `part`: of an update. Return the offsets at which the
        records will stand: the versions of the tasks.

        StorageError if a record is void that a decision file decides. In an update of one log the `commit` tells that.
        """
        log, replay_state, versions = locked.log, locked.replay_state, list[int]()
        when, available_at, offset = None, 0, log.next_offset()
        for index, (identity, task) in enumerate(pending, replay_state.count):
            if task.when is not when:
                when = task.when
                available_at = moment(self.store, when)
            record, line = movements.insert(at, identity, index, task.line, available_at, task.priority, part)
            if part is None:  # on the hot path: what `apply` does with such a record
                replay_state.insert(at, identity, index, available_at, offset, task.priority)
            elif not replay_state.apply(record, offset) and part.file is not None:
                raise StorageError(f"Inserts of an update do not apply in {log.path}.")
            log.add_line(line)
            versions.append(offset)
            offset += len(line)
        if part is None:
            replay_state.at = at
        return versions

    def _time_of(self, locked: LockedBatch) -> int:
        # Where the log is empty, `present` must not correct its time: its first record is not written yet.
        at: int = locked.replay_state.at
        return max(self.store.clock.now_ms(), at) if locked.log.added_bytes else record_times.next_at(locked)

    def _write_inserts(self, locked: LockedBatch, pending: Pending) -> int:
        """Append an `insert` record for each task, in one write. Return the index of the first task."""
        first = locked.replay_state.count
        self.add(locked, pending, self._time_of(locked))
        locked.log.write()
        return first

    def _write_update(self, locked: LockedBatch, pending: Pending, versions: list[int]) -> int:
        """Append an `insert` record for each task, and the `commit` at which they act. Return the index of the first.
        `versions` become those of the tasks: where their records stand.

        Each append is an update with an id of its own: whole lines of one that was cut off are no part of the next.
        """
        update, at, first = names.new_update(self.store.entropy), self._time_of(locked), locked.replay_state.count
        versions[:] = self.add(locked, pending, at, UpdatePart(update))
        write_commit(locked, at, update, len(pending))
        return first

    def _make_durable(self, batch: Batch, end: int) -> None:
        """Sync the batch's names, once, and its log up to `end`. On a shared mount that was done under the lock."""
        store = self.store
        if store.sync_inserts and not store.fs.shared:
            promise = self._needed_name  # of this task, or of a later one of another thread
            is_promise_new = promise is not None and promise.batch == batch and promise != self._durable_name
            if batch != self._known_batch or is_promise_new:
                with suppress(FileNotFoundError):  # the purge that took it along is found out next
                    if batch != self._known_batch:
                        store.names.sync(os.path.dirname(store.layout.log(batch)))
                    store.names.sync(os.path.dirname(store.layout.task_file(names.open_batch_file(batch))))
                self._durable_name = promise
            self._syncer.up_to(batch, end)
        self._known_batch = batch

    # -- after an error ----------------------------------------------------------------------------

    def _find_records(
        self, layout: Layout, batch: Batch, pending: Pending, error: OSError | StorageError, closing: bool
    ) -> tuple[dict[str, int], int]:
        """Return the `pending` tasks that are in a batch after an append that ended with an error: the index of each,
        by the id of its record. Return also where the log ends. The others are not there, for certain.

        `closing`: let the batch take no more inserts where a write may still land, so that it stays certain.

        AppendFailed, which says that this is unknown, if neither the log nor the history tells. _Overtaken if the batch
        was in an earlier generation, that of `layout`.
        """
        identities = {identity for identity, _ in pending}
        try:
            try:
                return self._read_records(batch, identities, closing)
            except OSError as lost:
                if lost.errno not in LOST:
                    raise
                return self._read_records(batch, identities, closing)  # the log is opened anew
        except (OSError, FsqueueError, _Unknown) as other:
            let_out(other)
            if self.is_overtaken(layout):
                raise _Overtaken from other
            raise AppendFailed(error, is_exact=False) from other

    def is_overtaken(self, layout: Layout) -> bool:
        """Return whether the queue is in another generation than that of `layout`. False, too, if it cannot be read."""
        try:
            self.store.refresh(now=True)
        except (OSError, FsqueueError) as error:
            let_out(error)
            return False
        return self.store.layout is not layout

    def _read_records(self, batch: Batch, identities: Collection[str], closing: bool) -> tuple[dict[str, int], int]:
        store = self.store
        try:
            with LockedBatch(store, batch, journals.LOCK_TIMEOUT_S, create=True) as locked:
                log = locked.log
                if not locked.replay_state.opened and locked.read_lines() is None:
                    finishing.retire(locked)
                    raise FileNotFoundError(batch)
                lines = sparse.lines(store.fs.all_pieces(log.fd), 0)
                found = _indices_of([(at, movements.parse(line)) for at, line, _ in lines], identities)
                if found and log.sync:
                    store.fs.fsync(log.fd)  # the append that has failed may have written without syncing
                is_wanted = closing or len(found) == len(identities)
                if is_wanted and log.sync and locked.recall().takes_inserts:
                    sealing.seal(locked, record_times.next_at(locked))
                return found, log.end
        except FileNotFoundError:
            store.refresh(now=True)
            records = history.find(store, batch)
            if records is None:
                raise _Unknown from None
            return _indices_of(records, identities), 0


def write_commit(locked: LockedBatch, at: int, update: UpdateId, of: int) -> None:
    """Append the added records of an update, with its `commit` behind them, in one write. `of`: how many they are.

    StorageError if they do not act. Then nothing is written, and the caller must drop the log.
    """
    assert of > 0, "an update of no records"
    if not locked.log.add(movements.record("commit", at, update=update, of=of)):
        raise StorageError(f"The records of an update do not act in {locked.log.path}. Nothing has happened.")
    locked.log.write()


def _indices_of(
    records: list[tuple[int, dict[str, object] | None]] | history.Records, identities: Collection[str]
) -> dict[str, int]:
    """Return the indices of the tasks that the `insert` records of these ids have made, by id. Ids without a record
    that counts are left out.
    """
    replay_state, found = ReplayState(), dict[str, int]()
    for offset, record in replay_state.effective((at, each) for at, each in records if each is not None):
        first, identity = record.get("first"), record.get("id")
        if identity in identities and type(first) is int and replay_state.places.get(first) == offset:
            found[str(identity)] = first
    return found


class _OpenLog:
    """A descriptor of a batch's log. It is closed when this object is let go of, and so not while a thread uses it."""

    __slots__ = ("_kept", "batch", "fd")

    def __init__(self, store: Store, batch: Batch) -> None:
        self.batch, self.fd = batch, store.fs.look(store.layout.log(batch))
        self._kept = resources.Kept(self.fd, store.fs.drop)


class _LogSyncer:
    """Sync the log of the batch that a process inserts into. Threads that insert at the same time share a sync."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mutex = resources.Mutex()
        self._log: _OpenLog | None = None
        """A descriptor of its own: that of the log may be closed, and its number used again, while this one syncs."""
        self.done: tuple[Batch | None, int] = (None, 0)
        """Up to where the log of a batch is synced."""
        self._failed: Batch | None = None
        """The batch whose log could not be synced. The next sync may succeed, though what was written is lost."""
        self._written: tuple[Batch | None, int] = (None, 0)
        """Up to where this process has written the log of its latest batch."""
        store.logs.followers[self] = None
        forks.register(self, _LogSyncer.close)

    def open(self, batch: Batch) -> None:
        """Open a batch's log before it is written: a sync reports a failed write only to a descriptor that was
        open by then.
        """
        log = self._log
        if (log is None or log.batch != batch) and self._store.sync_inserts and not self._store.fs.shared:
            self._log = _OpenLog(self._store, batch)

    def wrote(self, batch: Batch, end: int) -> None:
        """Take in that a batch's log is written up to `end`."""
        self._written = batch, end

    def up_to(self, batch: Batch, end: int) -> None:
        """Sync a batch's log up to `end`, unless that was done. If the log is gone, do nothing: it was synced
        before.
        """
        with self._mutex:
            if batch == self._failed:
                raise OSError(errno.EIO, "an earlier sync of it failed", self._store.layout.log(batch))
            synced, done = self.done
            if synced == batch and done >= end:
                return
            log = self._log
            if log is None or log.batch != batch:
                try:
                    log = self._log = _OpenLog(self._store, batch)
                except FileNotFoundError:
                    return
            latest, written = self._written
            try:
                self._store.fs.fsync(log.fd)
            except OSError:
                self._failed = batch
                raise
            self.done = batch, written if latest == batch else end

    def let_go(self) -> None:
        """Close the descriptor if the batch has finished: its log was synced before."""
        log = self._log
        if log is not None and is_retired(self._store.fs, log.fd):
            self._log = None

    def close(self) -> None:
        """Close the descriptor. If a thread is using it, that thread closes it."""
        self._log = None
