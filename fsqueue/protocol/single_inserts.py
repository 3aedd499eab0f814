"""Insert one task: append it to the log of a batch that takes inserts (docs/design.md, section 4.3; decision 27).

A batch is *open* while it takes inserts: its task file is empty but for a header, and its tasks are `insert` records in
its log. A process stays with one open batch. Its first one it adopts, if an earlier process of its host has left one
that is not full.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from fsqueue.errors import FULL, FsqueueError, LockTimeout, StorageError, from_os_error
from fsqueue.filesystem import taken
from fsqueue.format import movements, names, sparse, task_file
from fsqueue.format.layout import OPEN_BATCHES, Layout
from fsqueue.format.names import Batch
from fsqueue.format.replay import ReplayState
from fsqueue.protocol import finishing, insertion, sealing, transitions
from fsqueue.protocol.encoding import When
from fsqueue.storage import history, jsonl, published, record_times, staging
from fsqueue.storage.locked_batch import BatchBusy, LockedBatch
from fsqueue.storage.store import Store, hash_of

TASK_BYTES_MAX = 64 << 10
"""A longer task gets a file of its own: the log of a batch is read again and again, and a task file once."""
LOG_BYTES_MAX = 1 << 20
"""A batch whose log is longer takes no more inserts."""
BUSY_WAIT_S = 0.02
"""Wait so long for the lock of the batch that this process inserts into, then take another: its holder may be stopped."""
ADOPT_MAX = 8
"""Of the open batches that other processes of this host have left, so many are tried, the newest first."""
TRIES = 20
"""So often an insert is begun anew: the batch was full, sealed, finished or locked, or the queue was purged."""


class _Unknown(Exception):
    """It cannot be found out whether a task is in a batch that is gone."""


class SingleInserter:
    """Insert tasks one at a time into one queue. Threads may share it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._batch: Batch | None = None
        """The open batch that this process inserts into."""
        self._named: Batch | None = None
        """The batch whose names this process knows to be durable."""
        self._finding = taken.Mutex()
        self._synced = _Synced(store)

    def takes(self, line: bytes) -> bool:
        """Return whether a task goes into an open batch. Else insert it as a file of its own."""
        store = self.store
        return (
            len(line) <= TASK_BYTES_MAX
            and store.queue_state.format >= OPEN_BATCHES
            and store.settings.batch_tasks_max > 1
            and bool(store.domain)
        )

    def insert_if_taken(self, line: bytes, when: When) -> str | None:
        """Insert a task as `insert` does; None, and nothing was done, if it needs a file of its own."""
        return self.insert(line, when) if self.takes(line) else None

    def close(self) -> None:
        """Close what is open. The inserter may be used again."""
        self._synced.close()

    def insert(self, line: bytes, when: When) -> str:
        """Insert a task, durably, and return its id. `line` is the task as it would stand in a task file.

        An error says whether the task is in the queue, or that this is unknown.
        """
        store = self.store
        store.refresh()
        identity = store.entropy.hex16()
        for batch in self._batches():
            layout = store.layout
            try:
                index = self._into(batch, identity, line, when)
            except (BatchBusy, LockTimeout):
                index = None
            except FileNotFoundError:
                store.refresh(now=True)
                index = None
            if index is None:
                if self._batch == batch:
                    self._batch = None
                continue
            self._batch = batch
            if not store.queue_file.is_unchanged(layout.generation):
                store.refresh(now=True)
                if store.layout.generation != layout.generation:  # a purge took it along
                    identity = store.entropy.hex16()
                    continue
            store.secure_generation()
            store.doorbell.ring_now_and_then(store.clock.monotonic())
            return names.task_id(batch, index)
        raise StorageError(
            f"The queue {store.path} was purged, or its batches were locked by others, again and again while a task "
            "was being inserted. The task is not in the queue."
        )

    # -- which batch -------------------------------------------------------------------------------

    def _batches(self) -> Iterator[Batch]:
        """Yield batches to try: the one of the last insert, those that others have left, then new ones."""
        tried: set[Batch] = set()
        for _ in range(TRIES):
            batch = self._batch
            if batch is None or batch in tried:
                with self._finding:  # else each thread would make one
                    batch = self._batch
                    if batch is None or batch in tried:
                        batch = self._adopted(tried) or self._made()
                        self._batch = batch
            tried.add(batch)
            yield batch

    def _home(self, layout: Layout) -> names.Shard:
        """Return the shard in which the processes of this host look for open batches."""
        shards = names.all_shards(layout.shards)
        return shards[hash_of(str(self.store.worker.get("host"))) % len(shards)]

    def _adopted(self, tried: set[Batch]) -> Batch | None:
        """Return an open batch of this host that was not tried yet, the newest of a few; None if there is none."""
        store = self.store
        if self._named is not None:
            return None  # this process has had one of its own
        directory = f"{store.layout.tasks}/{self._home(store.layout)}"
        found = (names.parse_task_file(text) for text in store.fs.names(directory))
        batches = sorted(name.batch for name in found if name is not None and name.is_open)
        return next((batch for batch in batches[: -ADOPT_MAX - 1 : -1] if batch not in tried), None)

    def _made(self) -> Batch:
        """Publish the task file of a new open batch, durably, and return the batch."""
        store = self.store
        for _ in range(TRIES):
            layout = store.layout
            try:
                return self._publish(layout)
            except FileNotFoundError:
                store.refresh(now=True)
                store.make_generation()
        raise StorageError(
            f"The queue {store.path} was purged again and again while a task was being inserted. It is not in the queue."
        )

    def _publish(self, layout: Layout) -> Batch:
        store = self.store
        shard = int(self._home(layout), 16)
        if self._named is not None:  # others do not look for this one: spread the work
            shard = int(store.entropy.hex16()[:8], 16) % layout.shards
        batch = names.new_batch_in(store.entropy, store.clock.now_ms(), shard, layout.shards)
        staged = staging.stage_as(store, layout, [task_file.encode_open_batch(store.domain)], names.open_batch(batch))
        is_published = False
        try:
            staging.sync(store, [staged])
            for _ in staging.publish(store, layout, [staged]):
                is_published = True
        finally:
            if not is_published:
                store.fs.unlink(staged.path)
            staged.close(store)
        return batch

    # -- into it -----------------------------------------------------------------------------------

    def _into(self, batch: Batch, identity: str, line: bytes, when: When) -> int | None:
        """Insert a task into a batch, durably, and return its index; None if the batch takes no inserts."""
        place = self._appended(batch, identity, line, when)
        if place is None:
            return None
        index, end = place
        try:
            self._make_durable(batch, end)
        except OSError as error:
            raise self._unknown(error) from error
        return index

    def _appended(self, batch: Batch, identity: str, line: bytes, when: When) -> tuple[int, int] | None:
        """Append a task to a batch's log. Return its index, and where its record ends."""
        is_known = batch == self._named
        for is_last in (False, True):
            began = False
            try:
                with LockedBatch(self.store, batch, BUSY_WAIT_S if is_known else 0, create=True) as locked:
                    opening = self._prepare(locked, is_known)
                    if opening is None:
                        return None
                    began = True
                    index = self._append(locked, opening, identity, line, when)
                    self._synced.wrote(locked)
                    return index, locked.log.end
            except (OSError, StorageError) as error:
                if not began:
                    raise
                found = self._found(batch, identity, error)
                if found is not None:
                    return found
                if is_last or (isinstance(error, OSError) and error.errno in FULL):
                    raise  # it is not in the queue
        raise AssertionError("unreachable")

    def _prepare(self, locked: LockedBatch, is_known: bool) -> bytes | None:
        """Return the record to write first into an empty log, b"" in any other; None if the batch takes no inserts.

        A batch that is full, or takes those of another boot only, is sealed.
        """
        store, log, replay_state = self.store, locked.log, locked.replay_state
        opening = b""
        if not is_known and published.read(locked) is None:
            if not replay_state.opened:
                finishing.retire(locked)  # it finished after it was listed, and opening the log revived its name
            return None
        if not replay_state.opened:
            if published.read(locked) is None or log.name is None:
                finishing.retire(locked)
                return None
            opening = transitions.opening(locked, log.name)
            replay_state.replay_own(opening, log.next_offset())
        takes = replay_state.takes_inserts
        is_full = replay_state.count >= store.settings.batch_tasks_max or log.end >= LOG_BYTES_MAX
        if takes and not is_full and replay_state.inserts == store.domain:
            return opening
        if opening:
            log.append(opening)
        if takes:
            sealing.seal(locked, record_times.present(locked))
        return None

    def _append(self, locked: LockedBatch, opening: bytes, identity: str, line: bytes, when: When) -> int:
        """Append an `insert` record. Return the task's index."""
        log, replay_state = locked.log, locked.replay_state
        at, index = record_times.present(locked), replay_state.count
        available_at = insertion.moment(self.store, when)
        replay_state.insert(at, identity, index, available_at, log.next_offset() + len(opening))
        replay_state.at = at
        log.append(opening + movements.insert(at, identity, index, line, available_at))
        return index

    def _make_durable(self, batch: Batch, end: int) -> None:
        """Sync the batch's names, once, and its log up to `end`. On a shared mount that was done under the lock."""
        store = self.store
        if store.sync_inserts and not store.fs.shared:
            if batch != self._named:
                for path in (store.layout.log(batch), store.layout.task_file(names.open_batch(batch))):
                    store.names.sync(os.path.dirname(path))
            self._synced.up_to(batch, end)
        self._named = batch

    # -- after an error ----------------------------------------------------------------------------

    def _found(self, batch: Batch, identity: str, error: OSError | StorageError) -> tuple[int, int] | None:
        """Return the index of a task whose append ended with an error, and where the log ends; None if the task is not
        in the batch, for certain.

        The error that says that this is unknown, if neither the log nor the history tells.
        """
        try:
            return self._look_for(batch, identity)
        except (OSError, FsqueueError, _Unknown) as other:
            raise self._unknown(error) from other

    def _look_for(self, batch: Batch, identity: str) -> tuple[int, int] | None:
        store = self.store
        try:
            with LockedBatch(store, batch, jsonl.LOCK_TIMEOUT_S, create=True) as locked:
                if not locked.replay_state.opened and published.read(locked) is None:
                    finishing.retire(locked)
                    raise FileNotFoundError(batch)
                pieces = store.fs.all_pieces(locked.log.fd)
                index = _index_of([(at, movements.parse(line)) for at, line, _ in sparse.lines(pieces, 0)], identity)
                if index is not None and locked.log.sync and locked.recall().takes_inserts:
                    sealing.seal(locked, record_times.present(locked))  # its sync covers the insert
                return None if index is None else (index, locked.log.end)
        except FileNotFoundError:
            store.refresh(now=True)
            records = history.find(store, batch)
            if records is None:
                raise _Unknown from None
            index = _index_of(records, identity)
            return None if index is None else (index, 0)

    def _unknown(self, error: OSError | StorageError) -> FsqueueError:
        then = "It is unknown whether the task is in the queue. Look for it before you insert it again"
        if isinstance(error, OSError):
            return from_os_error(error, f"inserting into {self.store.path}", f"{then}.")
        return StorageError(f"{error} {then}.")


def _index_of(records: list[tuple[int, dict[str, object] | None]] | history.Records, identity: str) -> int | None:
    """Return the index that the `insert` of this id has given to its task; None if there is none that counts."""
    replay_state = ReplayState()
    for offset, record in records:
        if record is not None:
            replay_state.apply(record, offset)
            first = record.get("first")
            if record.get("id") == identity and type(first) is int and replay_state.places.get(first) == offset:
                return first
    return None


class _Synced:
    """Sync the log of the batch that a process inserts into. Threads that insert at the same time share a sync."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._mutex = taken.Mutex()
        self._batch: Batch | None = None
        self._fd = -1
        """A descriptor of its own: that of the log may be closed, and its number used again, while this one syncs."""
        self._done = 0
        self._written: tuple[Batch | None, int] = (None, 0)
        """Up to where this process has written the log of its latest batch."""

    def wrote(self, locked: LockedBatch) -> None:
        """Take in up to where the log is written. Call it under the log's lock."""
        self._written = locked.batch, locked.log.end

    def up_to(self, batch: Batch, end: int) -> None:
        """Return when the log is on disk up to `end`. A batch that is gone was synced before its file was removed."""
        with self._mutex:
            if batch != self._batch:
                self.close()
                try:
                    self._fd = self._store.fs.look(self._store.layout.log(batch))
                except FileNotFoundError:
                    return
                taken.disown(self._fd)  # from now on the finalizer closes it
                self._batch, self._done = batch, 0
            if self._done < end:
                latest, written = self._written
                self._store.fs.fsync(self._fd)
                self._done = written if latest == batch else end

    def close(self) -> None:
        """Close the descriptor."""
        fd, self._fd, self._batch = self._fd, -1, None
        if fd >= 0:
            taken.own(fd, self._store.fs)
            self._store.fs.close(fd)

    def __del__(self) -> None:
        fd = getattr(self, "_fd", -1)
        if fd >= 0:
            self._fd = -1
            self._store.fs.drop(fd)
