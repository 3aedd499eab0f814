"""The critical section of a batch: its log locked, and its state caught up (docs/design.md, section 4.7).

Everything that changes a batch goes through `LockedBatch`, but for `protocol.fast_path`. A function that must be called
under the batch's lock takes one, as the proof that the lock is held.

The name of a batch's task file changes with the time at which something inside is available, so a name is a hint: what
was opened last, then the names in the log, then a listing of the shard (docs/design.md, section 4.5).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, NoReturn

from fsqueue import checks
from fsqueue.checks import CHECK
from fsqueue.cluster.identity import describe
from fsqueue.errors import LockTimeout
from fsqueue.filesystem import resources
from fsqueue.format import movements, names, priority, state_checks, task_file
from fsqueue.format.decisions import LogName
from fsqueue.format.names import Batch, DecisionFileName, TaskFileName, UpdateId
from fsqueue.format.replay import ReplayState
from fsqueue.interruptions import is_interruption, let_out
from fsqueue.storage import journals, published
from fsqueue.storage.logs import LinesInLog, Log, TaskLines
from fsqueue.storage.store import Store

logger = logging.getLogger("fsqueue")

LOST = object()
"""Stands in place of a payload that cannot be read any more."""

LEAST_WAIT_S = 0.01
"""Shortest wait for a batch whose lock is busy: the error then says who has it."""
THREADS_WAIT_S = 0.05
"""Longest wait for another thread in the same batch, by a caller that does not wait for other processes."""

CORRECTED_MS = 15 * 60_000
"""A name that promises a time later by more than this was given by a wrong clock, and waits for its correction (see
`record_times`)."""


class BatchBusy(LockTimeout):
    """Another process has the batch locked, and the caller does not wait. Nothing was done, and the log stays open."""


class Undecided(NamedTuple):
    """An update that has prepared records in a log, and no outcome there."""

    update: UpdateId
    file: DecisionFileName
    """The decision file that decides."""
    is_old: bool
    """True if the update's patience is over: a process that needs the decision may decide against it."""
    old_ms: int
    """Time at which the update's patience is over, as the file server's clock is expected to show it (ms)."""
    beside: LogName | None = None
    """The log in which the update was prepared first; None if that is this log, or the records do not say it."""


class BatchGone(FileNotFoundError):
    """The batch has finished, and its log ends with `gone`; or there is no log."""


class LockedBatch:
    """A batch that this thread has locked, and whose log is replayed to its end.

        with LockedBatch(store, batch) as locked:
            locked.append_record("release", record_times.next_at(locked), ...)

    It waits up to `wait_s` seconds: LockTimeout; with 0 it does not wait: BatchBusy. FileNotFoundError (BatchGone) if
    the batch has no log; with `create` the log of an untouched batch is made. After an exception inside nothing is
    believed: the log is closed, and the next process that needs it replays it anew.
    """

    __slots__ = ("_create", "_held", "_is_locked", "_wait_s", "batch", "log", "replay_state", "store")

    log: Log
    replay_state: ReplayState
    _held: list[resources.Abandonable]
    _is_locked: bool

    def __init__(
        self, store: Store, batch: Batch, wait_s: float = journals.LOCK_TIMEOUT_S, create: bool = False
    ) -> None:
        self.store = store
        self.batch = batch
        self._wait_s = wait_s
        self._create = create

    @classmethod
    def entered(cls, store: Store, log: Log) -> LockedBatch:
        """Return the section of a log that the caller has locked and caught up with: see `protocol.fast_path`."""
        locked = cls(store, log.batch)
        locked.log, locked.replay_state = log, log.replay_state
        return locked

    def __enter__(self) -> LockedBatch:
        store, batch, wait_s = self.store, self.batch, self._wait_s
        get, try_lock = store.logs.get, store.fs.try_lock  # what objects hold is looked up first: see decision 26
        while True:
            log = get(batch)
            if log is None or log.fd < 0:
                log = store.logs.open(batch, self._create)
            held = resources.this_thread.owned.sections  # on the hot path: `Log.enter`, without a frame of its own
            if log in held:
                self._raise_entered()
            held.append(log)
            if not log.mutex.acquire(False) and not log.mutex.acquire(True, -1 if wait_s else THREADS_WAIT_S):
                held.remove(log)
                self._raise_entered()
            try:
                if log.fd < 0:  # another thread has closed it meanwhile
                    log.leave()
                    continue
                if try_lock(log.fd) or (wait_s > 0 and self._wait_for(log)):
                    log.catch_up()
                    log.is_used = self._is_locked = True
                    self.log, self._held = log, held
                    self.replay_state = replay_state = log.replay_state
                    if replay_state.gone:
                        self._retire_gone(log)
                    return self
            except BaseException:
                store.logs.drop(log)
                log.leave()
                raise
            log.leave()
            raise BatchBusy(f"Batch {batch} of {store.path} is locked by another process. Repeat the call.")

    def __exit__(self, kind: object, error: BaseException | None, at: TracebackType | None) -> None:
        log = self.log
        try:
            if kind is not None:
                self.drop()
            elif self._is_locked and log.fd >= 0:
                if CHECK:
                    self.check_invariants()
                unlock = self.store.fs.unlock
                unlock(log.fd)
        except BaseException as other:
            end_badly(self.store, log, other)
        finally:
            log.mutex.release()
            self._held.remove(log)

    def _raise_entered(self) -> NoReturn:
        if self._wait_s:
            raise LockTimeout(
                f"A signal handler needs batch {self.batch} of {self.store.path}, which its thread is in. Repeat."
            )
        raise BatchBusy(f"Another thread is in batch {self.batch} of {self.store.path}. Repeat the call.")

    def _wait_for(self, log: Log) -> bool:
        """Wait for the file lock. LockTimeout names the last holder that the log knows: it was read without the lock,
        and so is closed.
        """
        store = self.store
        if store.fs.lock(log.fd, store.clock, store.entropy, self._wait_s):
            return True
        log.catch_up()
        holder = max(log.replay_state.leases.values(), key=lambda lease: lease.at, default=None)
        who = f" The log last saw {describe(holder.worker)}." if holder is not None else ""
        raise LockTimeout(
            f"The lock of batch {self.batch} in {store.path} stayed busy for {journals.LOCK_TIMEOUT_S:g} s: "
            f"its holder is stopped or cut off.{who} Nothing was done in it; repeat the call."
        )

    def _retire_gone(self, log: Log) -> NoReturn:
        """Unlink a log that ends in `gone`, if the path still names this very file."""
        if self.store.fs.same_file(log.fd, log.path):
            self.store.fs.unlink(log.path)
        raise BatchGone(log.path)

    # -- inside ----------------------------------------------------------------------------------

    def append_record(self, op: str, at: int, **fields: object) -> None:
        """Apply one record to the state, and append it to the log, behind those that were added."""
        self.log.write(movements.record(op, at, **fields))

    def append_move(self, at: int, name: TaskFileName, target: TaskFileName) -> None:
        """Record that the task file is about to be renamed. Rename it after this, not before."""
        assert name.batch == target.batch == self.batch, "a task file would get the name of another batch's"
        self.append_record("move", at, **{"from": str(name), "name": str(target)})

    def undecided(self) -> list[Undecided]:
        """Return the updates that have prepared records in this log. Ask for the decisions once the log is unlocked.

        `Prepared.left_ms` tells which of them are old. This process counts their age from when it first read them in
        the log that it keeps open.
        """
        clock, seen, prepared = self.store.clock, self.log.met, self.replay_state.prepared
        now, now_ms = clock.monotonic(), clock.now_ms()
        for update in [*seen]:
            if update not in prepared:
                del seen[update]
        found = []
        for update, each in prepared.items():
            waited_ms = round((now - seen.setdefault(update, now)) * 1000)
            left_ms = each.left_ms(waited_ms, now_ms, clock.margin_ms)
            if each.file is not None:
                found.append(Undecided(update, each.file, left_ms <= 0, now_ms + max(0, left_ms), each.beside))
        return found

    def recall(self) -> ReplayState:
        """Replay the whole log, if the state comes from a checkpoint, which leaves finished tasks out. Return it."""
        self.log.recall()
        self.replay_state = self.log.replay_state
        return self.replay_state

    # -- its task file ----------------------------------------------------------------------------

    def task_file_names(self) -> Iterator[TaskFileName]:
        """Yield the names the task file may have, likeliest first."""
        store, log = self.store, self.log
        seen: set[str] = set()
        if log.name is not None:
            seen.add(str(log.name))
            yield log.name
        for name in names.task_files_of(log.batch, reversed(self.replay_state.names)):
            if str(name) not in seen:
                seen.add(str(name))
                yield name
        for _ in range(2):  # one listing may be old: only two of them prove absence
            # Names that were tried before, too: a process that lost the log's lock may have renamed the file meanwhile.
            yield from names.task_files_of(log.batch, published.listed(store, log.layout, log.batch))

    def read_lines(self) -> TaskLines | None:
        """Return the lines of the batch's tasks, and keep them with the log; None if the task file is proven absent."""
        store, log = self.store, self.log
        if log.lines is None:
            for name in self.task_file_names():
                try:
                    content = published.content_of(store, log.layout.task_file(name))
                except FileNotFoundError:
                    continue
                log.name, log.is_named_so = name, True
                if name.inserted is None:
                    log.lines = task_file.split_lines(content)
                else:
                    log.lines, log.domain = LinesInLog(log), task_file.domain_of(content)
                self._make_single(name)
                break
        return log.lines

    def _make_single(self, name: TaskFileName) -> None:
        """Remove the other names that a power loss left the file with (btrfs; see `Filesystem.rename`)."""
        fs, log = self.store.fs, self.log
        if fs.shared or log.single:
            return
        try:
            links = fs.stat(log.layout.task_file(name)).st_nlink
        except FileNotFoundError:  # not this name, or the whole generation has just been moved away
            return
        if links > 1:
            for other in names.task_files_of(log.batch, published.listed(self.store, log.layout, log.batch)):
                if other != name:
                    fs.unlink(log.layout.task_file(other))
        log.single = True

    def payload(self, index: int) -> Any:
        """Return a task's payload as it stands now, replaced or original; LOST if it cannot be read any more."""
        if index in self.replay_state.payloads:
            return self.replay_state.payloads[index]
        is_in_log = index in self.replay_state.places
        lines = LinesInLog(self.log) if is_in_log else self.read_lines()
        try:
            return LOST if lines is None else task_file.decode_task(lines[index])["payload"]
        except (ValueError, IndexError):
            return LOST

    def key_and_priority(self, index: int) -> dict[str, Any]:
        """Return a task's `key` and `priority`, as far as it has them and they can be read."""
        lines = LinesInLog(self.log) if index in self.replay_state.places else self.read_lines()
        try:
            record = {} if lines is None else task_file.decode_task(lines[index])
        except (ValueError, IndexError):
            record = {}
        if index in self.replay_state.changed:
            record["priority"] = self.replay_state.changed[index]
        found = {name: value for name in ("key", "priority") if (value := record.get(name)) is not None}
        if "priority" in found and priority.fault(found["priority"]) is not None:
            del found["priority"]
        return found

    def find_task_file(self) -> TaskFileName | None:
        """Return the name that the task file has; None if the file is proven absent.

        What the log says last may not have been done: its author died before renaming, or was told that it failed.
        """
        store, log = self.store, self.log
        if not log.is_named_so:
            for name in self.task_file_names():
                if store.fs.exists(log.layout.task_file(name)):
                    log.name, log.is_named_so = name, True
                    break
            else:
                return None
        return log.name

    def task_file_name_at(self, name: TaskFileName, available_at: int) -> TaskFileName:
        """Return `name` with another time. Do not give the file of an open batch a later time.

        If the batch was sealed, the name returned says so: the process that sealed it may have died before renaming the
        file.
        """
        if name.is_open and not self.replay_state.takes_inserts:
            name = name.sealed(self.replay_state.count)
        return name.at(available_at)

    def rename_task_file(self, target: TaskFileName) -> bool:
        """Give the task file the name `target`, whichever name it has. Return whether the file has that name now.

        A record in the log says so already, and counts. A failure is only logged, so this is for names that
        become later: one that is too early costs a look.
        """
        try:
            return self.rename_task_file_surely(target)
        except OSError as error:
            let_out(error)
            logger.warning("%s could not be renamed to %s (%s); 'fsqueue gc' will do it", self.log.name, target, error)
            return False

    def rename_task_file_surely(self, target: TaskFileName) -> bool:
        """Give the task file the name `target`, whichever name it has; OSError if that fails. False: there is
        no file.
        """
        store, log = self.store, self.log
        assert target.batch == log.batch, "a task file would get the name of another batch's"
        path = log.layout.task_file(target)
        log.is_named_so = False
        for name in self.task_file_names():
            if name != target and store.fs.rename(log.layout.task_file(name), path):
                break
        else:
            if not store.fs.exists(path):
                return False
        log.name, log.is_named_so = target, True
        return True

    def name_earlier(self, at: int, available_at: int) -> None:
        """Give the task file a name that promises `available_at` at the latest, before a record at the time `at` makes
        tasks available then.

        OSError if that fails. Then the record must not be written: no worker would look for its tasks before the time
        that the name promises, and `lease` would answer "empty" although they wait. A name that is too early costs a
        look.
        """
        name = self.find_task_file()
        if name is not None and name.available_at > available_at:
            target = name.at(available_at)
            self.append_move(at, name, target)
            self.rename_task_file_surely(target)

    def move_task_file_away(self, name: TaskFileName, path: str, target: str) -> bool:
        """Rename the task file `name` from `path` to `target`; False if it or the directory of `target` is missing."""
        if CHECK:
            self._check_over()
        self._make_single(name)
        return self.store.fs.rename(path, target)

    def remove_task_file(self) -> None:
        """Unlink the task file, under all names that it has. If it is not found, the shard is listed."""
        if CHECK:
            self._check_over()
        store, log = self.store, self.log
        for name in self.task_file_names():
            self._make_single(name)
            if store.fs.unlink(log.layout.task_file(name)):
                return

    def _check_over(self) -> None:
        """Check invariant 1 before the task file goes: the log has `finish`, and an outcome of each task."""
        state = self.replay_state
        what = f"the task file of batch {self.batch} is about to go, and {state.remaining} of its tasks have no outcome"
        checks.hold(1, state.finished and not state.remaining, what)

    # -- out of it -------------------------------------------------------------------------------

    def unlock(self) -> None:
        """Unlock the log before the block ends. Nothing may be appended any more."""
        if CHECK:
            self.check_invariants()
        unlock = self.store.fs.unlock
        try:
            unlock(self.log.fd)
        except OSError as error:
            let_out(error)
            return  # what was done is done: the end of the block tries again, and closes the log
        self._is_locked = False

    def check_invariants(self) -> None:
        """Check the invariants that the state of the batch shows at the end of a critical section."""
        log, states, where = self.log, self.replay_state, f"At the end of a critical section of batch {self.batch}"
        checks.refuse(state_checks.broken(states), where)
        checks.hold(
            1, not log.added_bytes, f"{where}, the state has {log.added_bytes} bytes of records more than the log"
        )
        # Invariant 5: no worker looks for a task before the time that the file's name promises. Then they do.
        # While anything is prepared, no name is given, and what becomes available with the outcome is not known.
        if log.name is not None and log.is_named_so and not states.prepared and (due := states.next_time()) is not None:
            promised, truth, now = log.name.available_at, max(due, states.at), self.store.clock.now_ms()
            is_late = max(truth, now) < promised <= truth + CORRECTED_MS
            checks.hold(5, not is_late, f"{where}, a task comes at {due}, and {log.name} promises it for {promised}")

    def drop(self) -> None:
        """Close the log: what this process knows of the log cannot be trusted, or the batch is over."""
        self._is_locked = False
        self.store.logs.drop(self.log)


def end_badly(store: Store, log: Log, error: BaseException) -> None:
    """Close the log of a critical section whose end was cut short by `error`. Raise `error`, unless it is an OSError.

    An OSError comes from the unlocking, and all that was done under the lock is done. The caller must still give the
    log's mutex back.
    """
    store.logs.drop(log)
    if not isinstance(error, OSError) or is_interruption(error):
        raise error


def for_each_batch(
    store: Store, batches: Iterable[Batch], act: Callable[[Batch, float], None], wait_s: float | None = None
) -> dict[Batch, LockTimeout]:
    """Call `act(batch, seconds to wait for its lock)` for each of some batches: first for those that can be locked at
    once.

    The others share `wait_s` seconds, by default those of one lock: several stopped processes must not add up.
    Return the batches that stayed locked, each with the LockTimeout that `act` raised: nothing was done in these.
    """
    waiting: Collection[Batch] = list(batches)
    until = store.clock.monotonic() + (journals.LOCK_TIMEOUT_S if wait_s is None else wait_s)
    busy: dict[Batch, LockTimeout] = {}
    for is_last in (False, True) if len(waiting) > 1 else (True,):
        busy = {}
        for batch in waiting:
            try:
                act(batch, max(LEAST_WAIT_S, until - store.clock.monotonic()) if is_last else 0.0)
            except LockTimeout as error:
                busy[batch] = error
        waiting = busy
    return busy
