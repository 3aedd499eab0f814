"""Insert a task with a key, unless a task with this key lives (docs/design.md, section 4.17; decision 31).

Under the lock of the key's file: does the task that its last line names live? If not, append a line that names the new
task, synced, and then insert that as any single task. The line comes first, and is durable first: no task lives whose
key's file does not name it.

Keys are locked before logs. No process locks a key while it holds a log.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator

from fsqueue.errors import InvalidTask, StorageError
from fsqueue.filesystem import LOST
from fsqueue.format import movements, names, sparse
from fsqueue.format.keys import KeyClaim
from fsqueue.format.layout import OPEN_BATCHES, Layout
from fsqueue.format.names import Batch
from fsqueue.format.priority import Rank
from fsqueue.format.replay import AVAILABLE, LEASED, ReplayState
from fsqueue.models import TaskRef
from fsqueue.protocol import finishing, insertion, sealing, transitions
from fsqueue.protocol.encoding import When
from fsqueue.protocol.single_inserts import SingleInserter
from fsqueue.storage import jsonl, keys, logs, ordering, published, record_times, staging
from fsqueue.storage.keys import KeyFile
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.store import Store

TRIES = 20
"""So often an insert is begun anew: the queue was purged, or the key's file removed or begun anew."""
LOOKS = 10
"""So often a task with a file of its own is looked for that moves meanwhile."""
KNOWN_MAX = 64
"""Of so many batches a process remembers up to where it knows their logs to be durable."""
OPEN = (AVAILABLE, LEASED)
"""The states of tasks that live."""


class _Purged(Exception):
    """The queue was purged while the key's file of the generation before was locked."""


class KeyedInserter:
    """Insert tasks with keys into one queue. Threads may share it."""

    def __init__(self, store: Store, single: SingleInserter) -> None:
        self.store = store
        self._single = single
        self._claims = Claims(store)

    def insert(self, line: bytes, when: When, rank: Rank, key: str, index: int | None = None) -> TaskRef:
        """Insert a task with a key, durably; or return the id of the task that has the key, with `inserted` False.

        `line` is the task as it would stand in a task file, with the key. The task that is named lived during this
        call. An error says whether the task is in the queue, or that this is unknown.
        """
        store = self.store
        store.refresh()
        if store.queue_state.format < OPEN_BATCHES:
            raise InvalidTask(
                f"The queue {store.path} has format {store.queue_state.format}, which has no keys. Raise it with "
                "'fsqueue upgrade', or insert the task without `key`.",
                index,
            )
        for _ in range(TRIES):
            layout = store.layout
            try:
                ref = self._insert(layout, line, when, rank, key)
            except _Purged:
                continue
            except FileNotFoundError:
                store.refresh(now=True)
                store.make_generation()
                continue
            if ref is not None:
                return ref
        raise StorageError(
            f"The queue {store.path} was purged again and again while a task was being inserted. The task is not in it."
        )

    def _insert(self, layout: Layout, line: bytes, when: When, rank: Rank, key: str) -> TaskRef | None:
        """Insert into a generation. None: begin anew."""
        store = self.store
        with keys.locked(store, layout, key) as held:
            claim = held.last(key)
            if claim is not None:
                living = self._claims.living(layout, claim)
                if living is not None:
                    return TaskRef(living, inserted=False) if self._single._is_in_present(layout) else None
                if held.size > keys.BYTES_MAX:
                    held.remove()
                    return None
            if self._single.takes(line):
                return TaskRef(self._single.insert(line, when, rank, self._announcing(held, key)))
            return self._with_own_file(held, line, when, rank, key)

    def _announcing(self, held: KeyFile, key: str) -> Callable[[Layout, Batch, str], None]:
        """Return what writes into the key's file which record is about to be appended to which batch."""

        def announce(layout: Layout, batch: Batch, identity: str) -> None:
            if layout.generation != held.layout.generation:
                raise _Purged
            held.append(self._claim(key, batch, insert=identity))

        return announce

    def _claim(
        self, key: str, batch: Batch, insert: str | None = None, staged: names.TaskFileName | None = None
    ) -> KeyClaim:
        worker, store = self.store.worker, self.store
        return KeyClaim(
            key, store.clock.now_ms(), batch, insert, staged, str(worker.get("host", "")), worker.get("pid", 0)
        )

    def _with_own_file(self, held: KeyFile, line: bytes, when: When, rank: Rank, key: str) -> TaskRef | None:
        """Insert a task that does not go into an open batch: stage it, name it in the key's file, publish it."""
        store, layout = self.store, held.layout
        ordering.mark(store, rank)
        staged = staging.stage(store, layout, [line], 1, insertion.moment(store, when), rank)
        is_published = False
        try:
            staging.sync(store, [staged])
            held.append(self._claim(key, staged.name.batch, staged=staged.name))
            for _ in staging.publish(store, layout, [staged]):
                is_published = True
        finally:
            if not is_published:
                store.fs.unlink(staged.path)
            staged.close(store)
        if not self._single._is_in_present(layout):
            return None
        store.doorbell.ring()
        return TaskRef(names.task_id(staged.name.batch, 0))


class Claims:
    """Tell whether the task lives that a line in a key's file names. Threads may share it."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._durable: dict[Batch, int] = {}
        """Up to where this process knows the logs of some batches to be on disk."""

    def living(self, layout: Layout, claim: KeyClaim) -> str | None:
        """Return the id of the task that a claim names, durably inserted, if it lives.

        None: it does not, and never will again, a power loss included. Call it under the lock of the key's file.
        """
        if claim.staged is not None:
            return self._with_own_file(layout, claim, claim.staged)
        return self._in_log(layout, claim, claim.insert or "")

    # -- a task in the log of an open batch ------------------------------------------------------------

    def _in_log(self, layout: Layout, claim: KeyClaim, identity: str) -> str | None:
        store, batch = self.store, claim.batch
        for _ in range(2):
            try:
                fd = store.fs.look_anew(layout.log(batch))
            except FileNotFoundError:
                if not store.fs.shared:
                    return None  # it ended, or the inserter died before it appended the record
                if published.names_of(store, layout, batch):
                    break
                continue  # it has ended, if there is no log now that the task file is gone
            try:
                index, is_known = self._read(fd, identity)
                if index is not None:
                    self._make_durable(layout, batch, fd)
                    return names.task_id(batch, index)
                if is_known or not store.fs.shared:
                    self._make_end_durable(layout, batch, fd)
                    return None
            finally:
                store.fs.close(fd)
            break
        else:
            return None
        return self._end(batch, identity)

    def _read(self, fd: int, identity: str) -> tuple[int | None, bool]:
        """Return the index of the task that an `insert` of this id has given to an open log, if it lives. And whether
        there is such a record at all.
        """
        fs = self.store.fs
        state, begin = logs.present(fs, fd)
        state.replay_pieces(fs.all_pieces(fd, begin), begin)
        return _found(state, sparse.lines(fs.all_pieces(fd, 0), 0), identity)

    def _end(self, batch: Batch, identity: str) -> str | None:
        """Let a batch take no more inserts in whose log a record is not: it may be on its way still.

        An inserter that a network mount has cut off may have lost the lock of the key, and append its record late.
        Return the task's id if the record is there after all, and the task lives.
        """
        store = self.store
        try:
            with LockedBatch(store, batch, jsonl.LOCK_TIMEOUT_S, create=True) as locked:
                if not transitions.open_untouched(locked):
                    finishing.retire(locked)
                    return None  # the batch has ended
                index, is_known = self._read(locked.log.fd, identity)
                if index is not None:
                    return names.task_id(batch, index)
                if not is_known and locked.replay_state.takes_inserts:
                    sealing.seal(locked, record_times.present(locked))
                    if not locked.replay_state.left:
                        finishing.try_finish(locked)
                return None
        except FileNotFoundError:
            store.refresh(now=True)
            return None  # it ended meanwhile, or went with a purge: who inserts next finds that out

    # -- a task with a file of its own -----------------------------------------------------------------

    def _with_own_file(self, layout: Layout, claim: KeyClaim, name: names.TaskFileName) -> str | None:
        """A staged file that a line names is as good as published: its inserter has died, or is cut off."""
        store, batch = self.store, claim.batch
        for _ in range(LOOKS):
            if staging.publish_named(store, layout, str(name)):
                store.doorbell.ring()
            state = self._state(layout, batch)
            if state is not None:
                return names.task_id(batch, 0) if state else None
            listed = published.names_of(store, layout, batch)  # of the past, perhaps: a listing may be old
            if any(store.fs.exists(layout.task_file(one)) for one in listed):
                if store.sync_inserts:
                    staging.sync_shards(store, layout, [name])
                return names.task_id(batch, 0)
            state = self._state(layout, batch)  # a worker may have leased it, and renamed its file meanwhile
            if state is not None:
                return names.task_id(batch, 0) if state else None
            if not store.fs.exists(layout.staged(name)):
                if store.sync_inserts:  # else a power loss could bring the file back
                    staging.sync_shards(store, layout, [name])
                return None
        raise StorageError(
            f"It cannot be told whether the task {names.task_id(batch, 0)} of the key {claim.key!r} lives: its file "
            f"{layout.staged(name)} can neither be published nor does it go. The task was not inserted."
        )

    def _state(self, layout: Layout, batch: Batch) -> bool | None:
        """Return whether the task of a batch with a log lives; None if there is no log, or nothing in it."""
        store = self.store
        try:
            fd = store.fs.look_anew(layout.log(batch))
        except FileNotFoundError:
            return None
        try:
            state, begin = logs.present(store.fs, fd)
            state.replay_pieces(store.fs.all_pieces(fd, begin), begin)
            if not state.opened:
                return None
            if state.count and state.state[0] in OPEN:
                return True
            self._make_end_durable(layout, batch, fd)
            return False
        finally:
            store.fs.close(fd)

    # -- durable ---------------------------------------------------------------------------------------

    def _make_durable(self, layout: Layout, batch: Batch, fd: int) -> None:
        """Sync a log in whose task others are told to believe: its inserter may have died before its own sync."""
        store = self.store
        if store.fs.shared or not store.sync_inserts:
            return
        size = store.fs.fstat(fd).st_size
        done = self._durable.get(batch, -1)
        if size <= done:
            return
        store.fs.fsync(fd)
        if done < 0:
            for path in (layout.log(batch), layout.task_file(names.open_batch(batch))):
                try:
                    store.names.sync(os.path.dirname(path))
                except OSError as error:
                    if error.errno not in (errno.ENOENT, *LOST):
                        raise
        if len(self._durable) >= KNOWN_MAX:
            self._durable.pop(next(iter(self._durable)), None)
        self._durable[batch] = size

    def _make_end_durable(self, layout: Layout, batch: Batch, fd: int) -> None:
        """Sync a log in which a task has an outcome. Else a power loss could take that, and a second task would live
        with its key.
        """
        if not self.store.sync_movements:
            self._make_durable(layout, batch, fd)


def _found(state: ReplayState, lines: Iterator[tuple[int, bytes, int]], identity: str) -> tuple[int | None, bool]:
    """Return the index of the task that an `insert` of this id in a log has made, if it lives; and whether there is
    such a record. An insert whose append was uncertain may have left two: only one of them counts.
    """
    wanted, is_known = f'"id":"{identity}"'.encode(), False
    for begin, line, _ in lines:
        if wanted not in line:
            continue
        record = movements.parse(line)
        if record is not None and record["op"] == "insert" and record.get("id") == identity:
            is_known = True
            first = record.get("first")
            if type(first) is int and state.places.get(first) == begin and state.state[first] in OPEN:
                return first, True
    return None, is_known
