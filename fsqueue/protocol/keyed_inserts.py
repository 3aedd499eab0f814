"""Insert a task with a key, unless a task with this key lives (docs/design.md, section 4.17; decisions 31 and 43).

Under the lock of the key's file: does the task that its last line names live? If not, append a line that names the new
task, synced, and then insert that into an open batch, as any single task. The line comes first, and is durable first:
no task lives whose key's file does not name it. What does not go into an open batch takes no key.

Keys are locked before logs. No process locks a key while it holds a log. An update inserts with the same steps: what
follows the line is a prepared record (`KeyedInserter.prepare`).
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Collection, Sequence

from fsqueue.errors import FsqueueError, InvalidTask, StorageError, TaskTooLarge
from fsqueue.filesystem import LOST, idle_files, is_gone
from fsqueue.format import names
from fsqueue.format.keys import KeyClaim
from fsqueue.format.layout import Layout, Settings
from fsqueue.format.models import TaskRef
from fsqueue.format.movements import UpdatePart
from fsqueue.format.names import Batch, UpdateId
from fsqueue.format.task_states import Prepared
from fsqueue.interruptions import let_out
from fsqueue.protocol import deciding, finishing, sealing, transitions
from fsqueue.protocol.encoding import FILE_TASKS_MIN, EncodedTask, task_at
from fsqueue.protocol.insert_errors import LOOK_FIRST, AppendFailed
from fsqueue.protocol.insert_retries import TRIES, is_overtaken
from fsqueue.protocol.single_inserts import TASK_BYTES_MAX, Announce, Pending, SingleInserter
from fsqueue.storage import insert_ids, journals, keys, logs, published, record_times
from fsqueue.storage.keys import KeyFile
from fsqueue.storage.locked_batch import LockedBatch, Undecided
from fsqueue.storage.store import Store

KNOWN_MAX = 64
"""Maximum number of batches of which it is remembered up to which offset their logs are durable."""
TOGETHER_MAX = 128
"""Maximum number of tasks with keys that are inserted together: as many files are open and locked meanwhile."""
REPEAT = "Repeat the insert: the key keeps it from being inserted twice while it waits or is leased."
"""Advise how to go on when nobody knows whether a task with a key is in the queue: a repeat is safe."""


class _Moved(Exception):
    """A purge or a key epoch has begun since this process locked the key's file, or it was removed: insert anew."""


class TaskEnded(Exception):
    """Raised if the last task with a key has ended, and the caller wants to know how before a task with the key is
    inserted.
    """

    def __init__(self, insert: str) -> None:
        super().__init__(insert)
        self.insert = insert
        """The id of that task's `insert` record."""


def check(given: EncodedTask, path: str, settings: Settings, domain: str) -> None:
    """Raise InvalidTask if a task with a key does not go into an open batch of the queue at `path`. It says why, and
    what to do. `domain`: as of its `Store`.
    """
    task, index = task_at(given.place), given.place
    if settings.batch_tasks_max == 1:
        raise InvalidTask(
            f"{task} has a key, and the queue {path} takes none: it has one task in each batch. Leave the key out, or "
            "create the queue with a batch_tasks_max of 2 or more.",
            index,
        )
    if not domain:
        raise InvalidTask(
            f"{task} has a key, and this host cannot insert it into {path}: the host does not tell when it was booted "
            "(/proc/sys/kernel/random/boot_id cannot be read), and a key on a local disk needs that. Make that file "
            "readable, or leave the key out.",
            index,
        )
    if len(given.line) > TASK_BYTES_MAX:
        raise TaskTooLarge(
            f"{task} takes {len(given.line):,} bytes with its key; a task with a key may take {TASK_BYTES_MAX:,}. "
            "Store the data in a file and queue its path, or leave the key out.",
            index,
        )


def together_max(store: Store) -> int:
    """Return how many tasks with keys are inserted together at most: one append to one batch takes them, and other
    files can be opened meanwhile.
    """
    most = FILE_TASKS_MIN if store.fs.shared else TOGETHER_MAX
    return min(idle_files.share(4, most), store.settings.batch_tasks_max)


Outcome = TaskRef | TaskEnded
"""What has become of a task with a key: it is in the queue, or another one has its key; or TaskEnded was raised."""


class KeyedInserter:
    """Insert tasks with keys into one queue. Threads may share it."""

    def __init__(self, store: Store, single: SingleInserter) -> None:
        self.store = store
        self._single = single
        self._claims = Claims(store, single)

    def insert(self, task: EncodedTask, ended: Collection[str] | None = None) -> TaskRef:
        """Insert a task with a key, durably; or return the id of the task that has the key, with `inserted` False.

        `ended`: ids of `insert` records. TaskEnded if the key's file names the task of any other one, and that has
        ended. None: it does not matter how tasks with the key have ended.

        The task that is named lived during this call. An error says whether the task is in the queue, or that this is
        unknown. InvalidTask, before anything is written, if the task does not go into an open batch.
        """
        store = self.store
        check(task, store.path, store.settings, store.domain)
        store.refresh()
        for _ in range(TRIES):
            layout, epochs = store.layout, store.queue_state.key_epochs
            unexplained: OSError | None = None
            try:
                ref = self._insert(layout, task, ended)
            except _Moved:
                continue
            except OSError as error:  # the task is not in the queue
                let_out(error)
                if not is_overtaken(store, error, layout, epochs):
                    unexplained = error
                store.make_generation()
                continue
            except FsqueueError as error:
                if error.advice == LOOK_FIRST:
                    error.args = (str(error).removesuffix(LOOK_FIRST) + REPEAT, *error.args[1:])
                    error.advice = REPEAT
                raise
            if ref is not None:
                return ref
        if unexplained is not None:  # neither a purge nor a key epoch was the cause
            raise unexplained
        raise StorageError(
            f"The queue {store.path} was purged, or its files of keys were moved, again and again while a task was "
            "being inserted. The task is not in it."
        )

    def insert_all(
        self,
        tasks: Sequence[EncodedTask],
        note: Callable[[EncodedTask, Outcome], object],
        ended: Collection[str] | None = None,
    ) -> None:
        """Insert tasks with keys, durably, in their order: as if each were inserted alone, with fewer locks and syncs.

        `note` is called for each in its order, once it is in the queue or another task has its key. `ended`: as of
        `insert`; TaskEnded is given to `note`. After an error, the tasks that `note` was called for are in the queue,
        and all others are not, as far as the error tells. AppendFailed tells of those of one append.
        """
        done = 0
        while done < len(tasks):
            if len(tasks) - done > 1:
                done += self._insert_together(tasks[done:], note, ended)
            if done < len(tasks):  # at first, or where those before it ended, is one that is not as usual
                task = tasks[done]
                try:
                    note(task, self.insert(task, ended))
                except TaskEnded as found:
                    note(task, found)
                done += 1

    def _insert_together(
        self,
        tasks: Sequence[EncodedTask],
        note: Callable[[EncodedTask, Outcome], object],
        ended: Collection[str] | None,
    ) -> int:
        """Insert the first ones of some tasks, as many as need no wait. Return how many were dealt with.

        Keys are locked, never waited for: a process that has keys locked must not wait for another key. 0: nothing was
        inserted, since a key is locked, a task is refused, or files were moved. The caller inserts the next one alone.
        After an error other than AppendFailed none is in the queue.
        """
        store, outcomes = self.store, list[Outcome | None]()
        new, files = list[EncodedTask](), list[KeyFile]()
        failed: AppendFailed | None = None
        left = 0
        try:
            store.refresh()
            layout = store.layout
            with keys.LockedKeys(store, layout) as locked:
                claimed = self._lock_all(locked, tasks)
                living = self._claims.all_living(layout, [claim for _, claim in claimed if claim is not None])
                for task, (file, claim) in zip(tasks, claimed, strict=False):
                    outcome: Outcome | None = None
                    if claim is not None:
                        if claim.insert not in living:
                            break
                        if (task_id := living[claim.insert]) is not None:
                            outcome = TaskRef(task_id, inserted=False)
                        elif ended is not None and claim.insert not in ended:
                            outcome = TaskEnded(claim.insert)
                        elif file.length() > keys.BYTES_MAX:
                            break
                    outcomes.append(outcome)
                    if outcome is None:
                        new.append(task)
                        files.append(file)
                    else:
                        locked.let_go(file)
                if new:
                    batch, indices = self._single.insert_all(new, self._announcing_all(files))
                    ids = iter([names.task_id(batch, index) for index in indices])
                    outcomes = [TaskRef(next(ids)) if outcome is None else outcome for outcome in outcomes]
                elif not outcomes or not self._single.is_in_queue(layout):
                    return 0
        except AppendFailed as error:
            failed, left = error, error.new
        except _Moved:
            return 0
        except OSError as error:  # nothing was inserted
            let_out(error)
            if not is_gone(error):
                raise  # a sync that has failed is not tried again: it might succeed, though what was written is lost
            return 0
        done = 0
        for task, outcome in zip(tasks, outcomes, strict=False):
            if outcome is None:  # of an append that failed
                if not left:
                    break
                left -= 1
                outcome = TaskRef("")
            note(task, outcome)
            done += 1
        if failed is not None:
            raise failed from failed.__cause__
        return done

    def _lock_all(self, locked: keys.LockedKeys, tasks: Sequence[EncodedTask]) -> list[tuple[KeyFile, KeyClaim | None]]:
        """Lock the files of the keys of the first ones of some tasks, as many as are free and differ. Return the files,
        each with its last claim."""
        store, found, seen = self.store, list[tuple[KeyFile, KeyClaim | None]](), set[str]()
        for task in tasks:
            key = task.key
            assert key is not None, "the caller gives tasks with keys alone"
            if key in seen:
                break
            seen.add(key)
            try:
                check(task, store.path, store.settings, store.domain)
                file = locked.lock(key)
                found.append((file, file.last(key) or keys.earlier(store, file, key, 0.0)))
            except (OSError, FsqueueError) as error:
                let_out(error)
                break
        return found

    def _insert(self, layout: Layout, task: EncodedTask, ended: Collection[str] | None) -> TaskRef | None:
        """Insert into a generation. None: begin anew."""
        store, key = self.store, task.key
        assert key is not None
        with keys.locked(store, layout, key) as key_file:
            living = self._living(key_file, key, journals.LOCK_TIMEOUT_S, ended)
            if living is not None:
                return TaskRef(living, inserted=False) if self._single.is_in_queue(layout) else None
            return TaskRef(self._single.insert(task, self._announcing(key_file, key)))

    def prepare(
        self, task: EncodedTask, part: UpdatePart, note: Callable[[LockedBatch], object], sync: bool, wait_s: float
    ) -> TaskRef | None:
        """Prepare the insert of a task as a part of an update; or return the id of the task that has the key, with
        `inserted` False. That task lived during this call.

        None: the queue was purged. `note`: see `SingleInserter.prepare`. `sync`: make the claim durable, even if the
        queue's own inserts are not. LockTimeout if the key's lock stays busy for `wait_s` seconds, or another update
        that inserts with the key stays undecided for as long. OSError. After an error the update must be given up.
        """
        store, key, layout = self.store, task.key, self.store.layout
        assert key is not None
        for _ in range(TRIES):
            epochs = store.queue_state.key_epochs
            try:
                with keys.locked(store, layout, key, wait_s) as key_file:
                    living = self._living(key_file, key, wait_s)
                    if living is not None:
                        return TaskRef(living, inserted=False)
                    found = self._single.prepare([task], part, note, self._announcing(key_file, key, sync))
                    return TaskRef(names.task_id(found.batch, found.first))
            except _Moved:
                pass
            except OSError as error:
                let_out(error)
                is_overtaken(store, error, layout, epochs)
                store.make_generation()
            if store.layout is not layout:
                return None
        raise StorageError(f"The files of keys of {store.path} were moved or removed by others again and again.")

    def _living(self, key_file: KeyFile, key: str, wait_s: float, ended: Collection[str] | None = None) -> str | None:
        """Return the id of the task that has a key; None if the key is free. _Moved: its file had grown too long.

        TaskEnded: as of `insert`.
        """
        store = self.store
        claim = key_file.last(key) or keys.earlier(store, key_file, key, wait_s)
        if claim is None:
            return None
        living = self._claims.living(key_file.layout, claim, wait_s)
        if living is None and ended is not None and claim.insert not in ended:
            raise TaskEnded(claim.insert)
        if living is None and key_file.length() > keys.BYTES_MAX and not store.fs.shared:
            key_file.remove()
            raise _Moved
        return living

    def _announcing(self, key_file: KeyFile, key: str, sync: bool = False) -> Announce:
        """Return a function that appends a claim to the key's file. Call it before the `insert` record is appended."""

        def announce(layout: Layout, batch: Batch, pending: Pending) -> None:
            if layout.generation != key_file.layout.generation:
                raise _Moved
            key_file.add(self._claim(key, batch, pending[0][0]), sync)
            if not key_file.is_current():
                raise _Moved

        return announce

    def _announcing_all(self, files: Sequence[KeyFile]) -> Announce:
        """Return a function that appends the claims of several tasks to the files of their keys, as `_announcing`."""

        def announce(layout: Layout, batch: Batch, pending: Pending) -> None:
            if layout.generation != files[0].layout.generation:
                raise _Moved
            claims = list[tuple[KeyFile, KeyClaim]]()
            for file, (identity, task) in zip(files, pending, strict=True):
                assert task.key is not None, "each task here has a key"
                claims.append((file, self._claim(task.key, batch, identity)))
            keys.add_all(self.store, claims)
            if not all(file.epochs == files[0].epochs for file in files) or not files[0].is_current():
                raise _Moved

        return announce

    def _claim(self, key: str, batch: Batch, insert: str) -> KeyClaim:
        worker, store = self.store.worker, self.store
        return KeyClaim(
            key, store.clock.now_ms(), batch, insert, str(worker.get("host", "")), worker.get("pid", 0), store.fs.shared
        )


class _Prepared(Exception):
    """Raised if it depends on an update whether a task lives: on one that inserts or changes the task, and is not
    decided in its log."""

    def __init__(self, prepared: Prepared, is_insert: bool) -> None:
        super().__init__(prepared.update)
        self.update, self.file, self.is_insert = prepared.update, prepared.file, is_insert
        self.beside = prepared.beside


class Claims:
    """Tell whether the task that a claim names lives. A claim is a line of a key's file. Threads may share it."""

    def __init__(self, store: Store, single: SingleInserter | None = None) -> None:
        self.store = store
        self._single = single
        """The inserter of this process, which knows what it has synced."""
        self._durable: dict[Batch, int] = {}
        """Up to where this process knows the logs of some batches to be on disk: the end of a line."""

    def living(self, layout: Layout, claim: KeyClaim, wait_s: float = journals.LOCK_TIMEOUT_S) -> str | None:
        """Return the id of the task that a claim names, once its insert is durable; None if it does not live.

        None: the task will never live again, a power loss included. Call it under the lock of the key's file.

        A task lives also while an update that is not decided completes it: nobody waits for that. Otherwise two pages
        that link to each other would wait for each other. One that such an update inserts is neither there nor not: the
        decision is waited for. LockTimeout if there is none in `wait_s` seconds.
        """
        try:
            return self._living(layout, claim, ())
        except _Prepared:
            return self._decided_living(layout, claim, deciding.DecisionWait(self.store, claim.batch, wait_s))

    def all_living(self, layout: Layout, claims: Sequence[KeyClaim]) -> dict[str, str | None]:
        """Return what `living` returns of several claims, by the ids of their inserts. Each batch is locked once.

        Left out are those of which this takes a wait, and all claims on a mount that several hosts share.
        """
        store, by_batch, found = self.store, dict[Batch, list[str]](), dict[str, str | None]()
        for claim in claims:
            if not (store.fs.shared or claim.shared):
                by_batch.setdefault(claim.batch, []).append(claim.insert)
        for batch, identities in by_batch.items():
            if store.logs.get(batch) is None and not store.fs.exists(layout.log(batch)):
                found |= dict.fromkeys(identities)  # as in `_living`
                continue
            known, end = self._find_in_open_log(layout, batch, identities, ())
            for identity, (index, needed) in known.items():
                if index is None:
                    self._make_end_durable(layout, batch, end)
                else:
                    self._make_durable(layout, batch, needed, end)
                found[identity] = None if index is None else names.task_id(batch, index)
        return found

    def _decided_living(self, layout: Layout, claim: KeyClaim, waiting: deciding.DecisionWait) -> str | None:
        """Return what `living` returns. It depends on an update that is not decided, and may be waited for."""
        passed: set[UpdateId] = set()
        while True:
            try:
                return self._living(layout, claim, passed)
            except _Prepared as prepared:
                if not prepared.is_insert:
                    self._look_at(prepared, claim.batch, waiting.wait_s)
                    passed.add(prepared.update)
                    continue
                wanted = self._wanted(claim, waiting.wait_s)
            if wanted:
                waiting.out(wanted)

    def _look_at(self, prepared: _Prepared, batch: Batch, wait_s: float) -> None:
        """Append the outcome of an update that changes the claimed task to the log of its batch, if there is a
        decision. Readers of the queue see it already, and the key may be free.
        """
        if prepared.file is not None:
            wanted = Undecided(prepared.update, prepared.file, False, 0, prepared.beside)
            deciding.decide(self.store, batch, [wanted], wait_s)

    def _wanted(self, claim: KeyClaim, wait_s: float) -> list[Undecided]:
        """Return the update that inserts the claimed task, unless it is decided by now."""
        try:
            with LockedBatch(self.store, claim.batch, wait_s) as locked:
                update = locked.replay_state.prepared_insert(claim.insert)
                return [each for each in locked.undecided() if each.update == update]
        except FileNotFoundError:
            return []

    def _living(self, layout: Layout, claim: KeyClaim, passed: Collection[UpdateId]) -> str | None:
        """Return the id of the task that a claim names, as `living` does. _Prepared: an update that is not decided
        tells whether the task lives.

        `passed`: updates that were not decided during this call. A task that they change lives.
        """
        store, batch, identity = self.store, claim.batch, claim.insert
        may_come_late = store.fs.shared or claim.shared
        if not may_come_late and store.logs.get(batch) is None and not store.fs.exists(layout.log(batch)):
            return None  # as below: asked once, and not by each of two ways
        found = None if may_come_late else self._in_open_log(layout, batch, identity, passed)
        if found is not None:
            index, needed, end = found
            if index is None:
                self._make_end_durable(layout, batch, end)
                return None
            self._make_durable(layout, batch, needed, end)
            return names.task_id(batch, index)
        for _ in range(2):
            try:
                fd = store.fs.look_anew(layout.log(batch))
            except FileNotFoundError:
                if not may_come_late:
                    return None  # it ended, or the inserter died before it appended the record
                if published.names_of(store, layout, batch):
                    break
                continue  # it has ended, if there is no log now that the task file is gone
            with store.fs.closing(fd):
                index, is_known, end = self._read(fd, identity, passed)
                if index is not None:
                    self._make_durable(layout, batch, end, end)
                    return names.task_id(batch, index)
                if is_known or not may_come_late:
                    self._make_end_durable(layout, batch, end)
                    return None
            break
        else:
            return None
        return self._end(batch, identity, passed)

    def _in_open_log(
        self, layout: Layout, batch: Batch, identity: str, passed: Collection[UpdateId]
    ) -> tuple[int | None, int, int] | None:
        """Return the index of the claimed task from the log that this process keeps open; None unless the task has no
        outcome. It is replayed once, and not once a key. With it: where the task's record begins or a line behind it,
        and where the log ends.

        None: read the log without its lock. Another process may have that, and is not waited for: it may be stopped.
        Or an update that is not decided inserts or changes the task.
        """
        found, end = self._find_in_open_log(layout, batch, (identity,), passed)
        return (*found[identity], end) if identity in found else None

    def _find_in_open_log(
        self, layout: Layout, batch: Batch, identities: Collection[str], passed: Collection[UpdateId]
    ) -> tuple[dict[str, tuple[int | None, int]], int]:
        """Return what `_in_open_log` returns of several claims that name one batch, by the ids of their inserts. Left
        out are those for which it returns None.
        """
        store, found = self.store, dict[str, tuple[int | None, int]]()
        try:
            with LockedBatch(store, batch, 0.0) as locked:
                log, frozen = locked.log, locked.replay_state.frozen
                if log.layout is layout and store.fs.fstat(log.fd).st_nlink:
                    for identity in identities:
                        if locked.replay_state.prepared_insert(identity) is None:
                            index = log.find_insert(identity)
                            if index not in frozen or frozen[index] in passed:
                                found[identity] = index, 0 if index is None else locked.replay_state.places[index] + 1
                    return found, log.end
                locked.drop()  # a cleaner has removed it, or a purge
        except (OSError, FsqueueError) as error:
            let_out(error)
        return {}, 0

    def _read(self, fd: int, identity: str, passed: Collection[UpdateId]) -> tuple[int | None, bool, int]:
        """Return the index of the task that an `insert` of this id has given to an open log, if it lives; whether
        there is such a record at all; and where the log's last whole line ends. _Prepared if an update that is not
        decided inserts it, or changes it and is not `passed`.
        """
        fs = self.store.fs
        state, begin = logs.last_checkpoint(fs, fd)
        end = state.replay_pieces(fs.all_pieces(fd, begin), begin)
        update = state.prepared_insert(identity)
        if update is not None:
            raise _Prepared(state.prepared[update], is_insert=True)
        index, is_known = insert_ids.find(state, fs.all_pieces(fd, 0), identity)
        update = None if index is None else state.frozen.get(index)
        if update is not None and update not in passed:
            raise _Prepared(state.prepared[update], is_insert=False)
        return index, is_known, end

    def _end(self, batch: Batch, identity: str, passed: Collection[UpdateId]) -> str | None:
        """Seal a batch whose log lacks the record that a claim names, so that the record cannot come late.

        An inserter that a network mount has cut off may have lost the lock of the key. It would append its record late.
        Return the task's id if the record is there after all, and the task lives.
        """
        store = self.store
        try:
            with LockedBatch(store, batch, journals.LOCK_TIMEOUT_S, create=True) as locked:
                if not transitions.open_untouched(locked):
                    finishing.retire(locked)
                    return None  # the batch has ended
                index, is_known, _ = self._read(locked.log.fd, identity, passed)
                if index is not None:
                    return names.task_id(batch, index)
                if not is_known and locked.replay_state.takes_inserts:
                    sealing.seal(locked, record_times.next_at(locked))
                    if not locked.replay_state.remaining:
                        finishing.try_finish(locked)
                return None
        except FileNotFoundError:
            store.refresh(now=True)
            return None  # it ended meanwhile, or went with a purge: the next inserter finds that out

    # -- durable ---------------------------------------------------------------------------------------

    def _make_durable(self, layout: Layout, batch: Batch, needed: int, end: int) -> None:
        """Sync a log before its task is reported to another inserter: the first may have died before its own sync.

        Nothing is done if it is known to be on disk up to `needed`. `end`: where a line ends that was read.
        """
        store = self.store
        if store.fs.shared or not store.sync_inserts:
            return
        own = -1 if self._single is None else self._single.durable_to(batch)
        done = max(own, self._durable.get(batch, -1))
        if needed <= done:
            return
        path = layout.log(batch)
        try:
            fd = store.fs.look(path)
        except FileNotFoundError:
            return  # the batch has ended: its log was synced before it was removed
        with store.fs.closing(fd):
            store.fs.fsync(fd)
        if done < 0:
            for each in (path, layout.task_file(names.open_batch_file(batch))):
                try:
                    store.names.sync(os.path.dirname(each))
                except OSError as error:
                    if error.errno not in (errno.ENOENT, *LOST):
                        raise
        if len(self._durable) >= KNOWN_MAX:
            self._durable.pop(next(iter(self._durable)), None)
        self._durable[batch] = end

    def _make_end_durable(self, layout: Layout, batch: Batch, end: int) -> None:
        """Sync a log in which a task has an outcome. Else a power loss could take that, and a second task would live
        with its key.
        """
        if not self.store.sync_movements:
            self._make_durable(layout, batch, end, end)
