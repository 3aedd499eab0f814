"""Decision files: decide about an update, and ask what was decided (docs/design.md, section 4.22; decision 50).

A process that applies updates has a decision file of its own in its group, under a name that is never used again. The
first line of an update in it decides: `commit`, or `abort`. Any process may append `abort`. A bystander reads the file
without its lock, since a first line never changes.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple

from fsqueue import forks
from fsqueue.clock import Clock, Entropy
from fsqueue.errors import FsqueueError, GroupNotFound, LockTimeout, NotAQueue, QueueNotFound, StorageError
from fsqueue.filesystem import Filesystem, PassingOverStrays, directories_above, resources
from fsqueue.format import decisions, layout, movements, names
from fsqueue.format.decisions import ABORTED, Decision, DecisionState, LogName
from fsqueue.format.groups import bell_of
from fsqueue.format.names import DecisionFileName, UpdateId
from fsqueue.interruptions import is_interruption, let_out, suppress
from fsqueue.storage import given_outcomes, group_directory, journals
from fsqueue.storage.bells import RingingDoorbell
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.journals import Journal
from fsqueue.storage.store import Store

WAIT_S = 2.0
"""Seconds to wait for the lock of a decision file. Its holder is stopped then: the owner begins another file."""
IDLE_S = 4 * 3600.0
"""Seconds without an update after which a process begins another file: upkeep retires one a day after its last line."""
LOOKS = 5
"""Maximum number of times to begin anew because others have written, or removed the file, in between."""


class DecisionBusy(LockTimeout):
    """The lock of a decision file stayed busy. Nothing was written to it."""


class OutOfGroup(StorageError):
    """A queue was moved out of its group and needs it: for an update that is not decided, or for the group's limits."""


# -- asked by any process ------------------------------------------------------------------------------------------


def group_of(store: Store, has: str = "tasks of an update that is not decided") -> GroupDirectory:
    """Return the group in which an open queue lies, by a look at this moment. OutOfGroup if it does not lie in it.

    `has`: why it is asked for, for the text of that error.
    """
    identity = store.queue_state.group
    found: GroupDirectory | None = store.group
    if found is None or not found.fs.is_in_place():
        store.forget_directory()
        groups = filter(None, map(_group_at, _holders(store.path)))
        found = store.group = next((group for group in groups if group.state.id == identity), None)
    directory = store.directory_in_group
    try:
        if found is not None and directory is not None and found.state.id == identity:
            found.prove(store, directory)
            return found
    except NotAQueue:
        pass
    except QueueNotFound:
        store.forget_directory()  # a link may lead elsewhere by now
        raise
    raise OutOfGroup(
        f"The queue {store.path} has {has}, and does not lie in the group in which it was made. Nothing was done. Move "
        "it back, or have it give them up: fsqueue fsck --repair"
    )


def group_if_in_place(store: Store) -> GroupDirectory | None:
    """Return the group in which an open queue lies; None if it lies in none, or was moved out of its own."""
    try:
        return None if store.queue_state.group is None else group_of(store)
    except OutOfGroup:
        return None


def ring_bells_of(store: Store) -> None:
    """Have the doorbell of a queue that was opened by its own path ring the bell in its group, too: a hint.

    Lessees of the group would find its tasks at their next full look only.
    """
    if store.queue_state.group is not None:
        ring = partial(_ring_bell, weakref.ref(store))  # the store keeps its doorbell
        store.doorbell = RingingDoorbell(store.fs, store.layout.doorbell, store.entropy, store.clock, ring)


def _ring_bell(of: weakref.ref[Store]) -> None:
    store = of()
    with suppress(OSError, FsqueueError):
        group = None if store is None else group_if_in_place(store)
        directory = None if store is None else store.directory_in_group
        if group is not None and directory is not None:
            group.bells.ring(bell_of(directory))


def _holders(path: str) -> dict[str, None]:
    """Return the directories that may be the group of a queue: a user may have opened it through a link."""
    return dict.fromkeys((layout.parent_of(path), *directories_above(path)[:1]))


def _group_at(path: str) -> GroupDirectory | None:
    try:
        return GroupDirectory(path)
    except (GroupNotFound, NotAQueue):
        return None


def files(group: GroupDirectory) -> list[DecisionFileName]:
    """Return a group's decision files, the oldest first; none if something else is in place of their directory."""
    listed: list[str] = []
    with PassingOverStrays():  # fsck tells of it
        listed = sorted(group.fs.names(decisions.directory(group.path)))
    return [name for text in listed if (name := names.parse_decision_file(text)) is not None]


class DecisionRequest(NamedTuple):
    """An update that has prepared records in a log, and what a process that met them asks."""

    file: DecisionFileName
    update: UpdateId
    may_abort: bool = False
    """True if the update's records are old, so that the process decides against it if nothing is decided."""
    beside: LogName | None = None
    """The log in which the update was prepared first, if its records name that."""


def ask(store: Store, asked: DecisionRequest) -> Decision | None:
    """Return the decision about an update of which an open queue has prepared records; None: there is none yet.

    Call it while no log is locked. With `may_abort` None is returned only if another process keeps the file locked. A
    `commit` is on disk when this returns. If it is known from another log, it names no logs.

    OutOfGroup if the queue was moved out of its group. Other errors: nothing is known, ask again.
    """
    return ask_all(store, [asked]).get(asked.update)


def ask_all(store: Store, asked: Iterable[DecisionRequest]) -> dict[UpdateId, Decision]:
    """Return the decisions about several updates: see `ask`.

    Each file is read once. Updates about which nothing is decided are left out.
    """
    group = group_of(store)
    by_file: dict[DecisionFileName, dict[UpdateId, DecisionRequest]] = {}
    for one in asked:
        by_file.setdefault(one.file, {})[one.update] = one
    found: dict[UpdateId, Decision] = {}
    for name, updates in by_file.items():
        state = read(group, name, *updates)
        for update, one in updates.items():
            decision = None if state is None else state.first.get(update)
            is_over = state is None or state.is_gone
            if decision is None and (is_over or one.may_abort):
                decision = _ask_further(store, group, one, is_over)
            if decision is not None:
                found[update] = decision
    return found


def _ask_further(store: Store, group: GroupDirectory, asked: DecisionRequest, is_over: bool) -> Decision | None:
    """Return the decision about an update that is not in its decision file yet. If there is none, decide against it.

    The file may be an older one, from a backup, or be lost. So the log in which the update was prepared first is asked
    before: outcomes are given in that order. A `commit` there was decided; an `abort` here would leave half of it.
    """
    if asked.beside is not None and given_outcomes.is_committed(group, asked.beside, asked.update, store):
        return Decision("commit")
    if is_over:
        return ABORTED
    return ask_in(group, asked.file, asked.update, True, store.clock, store.entropy)


def ask_in(
    group: GroupDirectory, name: DecisionFileName, update: UpdateId, may_abort: bool, clock: Clock, entropy: Entropy
) -> Decision | None:
    """Return the decision about an update in a group: see `ask`."""
    for _ in range(LOOKS):
        found = read(group, name, update)
        decision = ABORTED if found is None else found.about(update)
        if decision is not None or not may_abort:
            return decision
        try:
            return vote_against(group, name, update, clock, entropy)
        except FileNotFoundError:
            continue  # it was retired just now
        except LockTimeout:
            return None
    raise StorageError(f"The decision file {decisions.path_of(group.path, name)} is removed and made again. Repeat.")


def read(group: GroupDirectory, name: DecisionFileName, *updates: UpdateId) -> DecisionState | None:
    """Return the decisions in a decision file, by a revalidating open; None if the file is proven absent, and so
    retired.

    `updates`: what it says of these, and no latest time; by default all. It takes no lock. If it commits any of them,
    that is on disk when this returns. GroupNotFound if the group's directory is not in its place: then nothing is
    known.
    """
    fs, state, path = group.fs, DecisionState(updates), decisions.path_of(group.path, name)
    try:
        with fs.closing(fs.look_anew(path)) as fd:
            state.replay(fs.all_pieces(fd))
            if not state.commits.keys().isdisjoint(updates):
                fs.fsync(fd)  # before any outcome: a power loss could keep that, and lose what it follows from
    except FileNotFoundError:
        if not fs.is_in_place():
            raise GroupNotFound(f"{group_directory.gone(group.path)} Nothing was done.") from None
        return None
    except OSError as error:
        let_out(error)
        error.filename = error.filename or path  # a read names no file: of a directory in its place, for example
        raise
    return state


def vote_against(
    group: GroupDirectory,
    name: DecisionFileName,
    update: UpdateId,
    clock: Clock,
    entropy: Entropy,
    wait_s: float = WAIT_S,
) -> Decision | None:
    """Decide against an update, unless it is decided already. Return what is decided.

    None if the file is retired and says nothing of the update: what it said before it was retired is in the logs.
    FileNotFoundError if the file is gone; LockTimeout.
    """
    return _decide(group, name, update, partial(decisions.abort, update=update), clock, entropy, wait_s)


def commit_again(
    group: GroupDirectory,
    name: DecisionFileName,
    update: UpdateId,
    logs: Iterable[LogName],
    clock: Clock,
    entropy: Entropy,
) -> Decision | None:
    """Write the decision for an update again that a decision file has lost: a log has the `commit`. Return what the
    file says then: `abort`, if another process was faster; None if the file is retired.

    FileNotFoundError if the file is gone; LockTimeout.
    """
    return _decide(group, name, update, partial(decisions.commit, update=update, logs=logs), clock, entropy, WAIT_S)


def _decide(
    group: GroupDirectory,
    name: DecisionFileName,
    update: UpdateId,
    line: Callable[[int], bytes],
    clock: Clock,
    entropy: Entropy,
    wait_s: float,
) -> Decision | None:
    """Append a decision to a file, unless the file has one or is retired. Return what it says: a commit is synced.

    `line`: the decision's, from the time (ms).
    """
    fs = group.fs
    path = decisions.path_of(group.path, name)
    with journals.locked(DecisionFile, fs, clock, entropy, path, wait_s) as file:
        state = file.catch_up()
        if update not in state.first and not state.is_gone:
            file.add(line(clock.now_ms()))
        found = state.first.get(update)
        if found is not None and found.outcome == "commit":
            fs.fsync(file.fd)
        return found


class DecisionFile(Journal):
    """An open decision file, and what it says as far as it was read. Each line that is added is read back."""

    __slots__ = ("state", "torn")

    def __init__(self, fs: Filesystem, path: str, fd: int) -> None:
        super().__init__(fs, path, fd)
        self.state = DecisionState()
        self.torn = 0
        """Bytes of a torn line behind what was read."""

    def catch_up(self) -> DecisionState:
        """Read lines appended since the last call; return the decisions. Call it under the lock, before `add`."""
        self.torn = self.state.replay(self.fs.all_pieces(self.fd, self.state.end))
        self.size = self.state.end + self.torn
        return self.state

    def end_of_torn(self, size: int) -> bytes:
        """Return the bytes that close off a torn line: see `Journal`. It is known without a look."""
        return movements.VOID if self.torn else b""

    def add(self, line: bytes) -> None:
        """Append a line. The state follows.

        StorageError if the line is not there afterwards, whole, behind what the state knew.
        """
        begin = self.state.end
        self.append(line, read_back=True)
        self.torn = self.state.replay(self.fs.all_pieces(self.fd, begin) if self.torn else [(begin, line)])


# -- the process's own ---------------------------------------------------------------------------------------------


class Vote:
    """An update that is about to be decided for."""

    __slots__ = ("is_begun", "is_durable", "logs", "update")

    def __init__(self, update: UpdateId, logs: list[LogName]) -> None:
        self.update, self.logs = update, logs
        self.is_begun = False
        """True if the update's `commit` may stand in the file, or come there: then only that tells the outcome."""
        self.is_durable = True
        """True if a power loss cannot take the decision any more. False after a sync that has failed."""


class _Opened:
    """An open descriptor, closed when the last thread that uses it lets go of it. `file` does not keep it open: the
    traceback of an error may hold that.
    """

    __slots__ = ("_kept", "fd", "file")

    def __init__(self, fs: Filesystem, path: str, fd: int) -> None:
        self.fd, self._kept = fd, resources.Kept(fd, fs.drop)
        self.file = DecisionFile(fs, path, fd)


class OwnDecisionFile:
    """A decision file that this process has made. Threads share it; a forked child makes its own."""

    def __init__(self, group: GroupDirectory, name: DecisionFileName, opened: _Opened, clock: Clock) -> None:
        self.group, self.name = group, name
        self.path = decisions.path_of(group.path, name)
        self.is_left = False
        """True if no further update may be decided in the file."""
        self.is_named = False
        """True if the file's name is known to be on disk."""
        self.used_at = clock.monotonic()
        self._opened: _Opened | None = opened
        self._state = opened.file.state
        self._mutex = resources.OwnedLock()
        self._syncing = resources.Mutex()
        self._synced = 0
        forks.register(self, OwnDecisionFile.after_fork)

    @property
    def is_full(self) -> bool:
        """Return whether the file is full: the next update goes into another one."""
        return self._state.end >= decisions.FILE_BYTES_MAX

    def decide(self, vote: Vote, clock: Clock, entropy: Entropy, sync: bool) -> Decision:
        """Decide for an update, unless it was decided against: append its `commit`, and return what is decided.

        `sync`: make it durable. DecisionBusy, or another error while `vote.is_begun` is False: nothing was written.
        After any other error only the file tells.
        """
        held = resources.this_thread.owned.sections
        if self in held:
            raise DecisionBusy(f"A signal handler needs {self.path}, which its thread is in. Repeat the call.")
        held.append(self)
        self._mutex.acquire()
        try:
            opened, decision = self._decide(vote, clock, entropy)
        except BaseException:
            self._leave()
            raise
        finally:
            self._mutex.release()
            held.remove(self)
        if sync and not self.group.fs.shared and decision.outcome == "commit":
            self._sync(vote, opened, clock)
        return decision

    def _decide(self, vote: Vote, clock: Clock, entropy: Entropy) -> tuple[_Opened, Decision]:
        fs, opened, state = self.group.fs, self._opened, self._state
        if opened is None or self.is_left:
            raise DecisionBusy(f"The decision file {self.path} is used no more. Begin anew in another one.")
        fd, file = opened.fd, opened.file
        try:  # an error of locking may come after it was done
            if not fs.try_lock(fd) and not fs.lock(fd, clock, entropy, WAIT_S):
                raise DecisionBusy(
                    f"The decision file {self.path} has been locked for {WAIT_S:g} s by a stopped process."
                )
            file.catch_up()
            links = fs.fstat(fd).st_nlink
            if links != 1:  # another program has removed it, or given it a second name
                self.is_left = True
                return opened, ABORTED
            found = state.about(vote.update)
            if found is None:
                vote.is_begun = True
                line = decisions.commit(clock.now_ms(), vote.update, vote.logs)
                if file.torn:
                    file.add(line)
                else:
                    file.append(line, read_back=True)
                    state.replay([(state.end, line)])
                found = state.first[vote.update]
            self.is_left = self.is_left or state.is_gone
        except BaseException:
            del opened  # no traceback may keep the descriptor open, which may keep the lock
            raise
        finally:
            try:
                fs.unlock(fd)
            except BaseException as error:
                if not isinstance(error, OSError) or is_interruption(error):
                    fs.end_lock(fd)  # it may have come before the call
                    raise
                self._leave()  # closed, it gives the lock back
        self.used_at = clock.monotonic()
        return opened, found

    def _sync(self, vote: Vote, opened: _Opened, clock: Clock) -> None:
        """Make what was appended durable. Threads that decide at the same time share a sync.

        After a sync that has failed the file is used no more: the next sync may succeed though what was written is
        lost. So the line is appended once more, which makes the system write it again.
        """
        fs, end = self.group.fs, self._state.end
        with self._syncing:
            if self._synced >= end and not self.is_left:
                return
            written = self._state.end
            try:
                fs.fsync(opened.fd)
            except OSError as error:
                let_out(error)
                self.is_left = True
                vote.is_durable = False
            else:
                self._synced = written
                return
        try:
            fs.write_all(opened.fd, decisions.commit(clock.now_ms(), vote.update, vote.logs))
            fs.fsync(opened.fd)
            vote.is_durable = True
        except OSError as error:
            let_out(error)  # any other one is told by `vote`

    def _leave(self) -> None:
        """Stop using a decision file: what this process knows of it cannot be trusted. The caller holds the
        file's mutex.
        """
        self.is_left, self._opened = True, None

    def abandon(self) -> None:
        """Leave the file after a section that an exception broke off. Let other threads in."""
        if self._mutex.is_mine():
            opened = self._opened
            self._leave()
            if opened is not None:
                self.group.fs.end_lock(opened.fd)
            self._mutex.release()

    def after_fork(self) -> None:
        """Leave the parent's file, in a forked child. Its lock, if the parent has it, stays."""
        opened = self._opened
        if opened is not None and self._mutex.is_mine():
            resources.lead_nowhere([opened.fd])
        elif not self._mutex.is_mine():
            self._mutex = resources.OwnedLock()
        self._leave()


class OwnDecisionFiles:
    """The decision files that a process makes in one group, one after the other. Threads may share it."""

    def __init__(self) -> None:
        self._present: OwnDecisionFile | None = None
        self._making = resources.Mutex()

    def present(
        self, group: GroupDirectory, clock: Clock, entropy: Entropy, worker: dict[str, Any], sync: bool
    ) -> OwnDecisionFile:
        """Return the file in which the next update is decided, made if need be. `sync`: its name is on disk.

        Another file is begun if the present one is long, has stood idle for hours, or could not be used.
        """
        file = self._present
        if file is not None and (file.is_named or not sync) and not self._is_over(file, group, clock):
            file.used_at = clock.monotonic()
            return file  # as in most cases: nothing is to be made
        with self._making:
            file = self._present
            if file is None or self._is_over(file, group, clock):
                file = self._present = self._made(group, clock, entropy, worker)
            if sync and not file.is_named:
                if not group.fs.shared:
                    group.fs.sync_directory(decisions.directory(group.path))
                    group.fs.sync_directory(group.path)
                file.is_named = True
            file.used_at = clock.monotonic()
            return file

    def _is_over(self, file: OwnDecisionFile, group: GroupDirectory, clock: Clock) -> bool:
        return file.is_left or file.is_full or file.group is not group or clock.monotonic() - file.used_at > IDLE_S

    def _made(self, group: GroupDirectory, clock: Clock, entropy: Entropy, worker: dict[str, Any]) -> OwnDecisionFile:
        now = clock.now_ms()
        name = names.new_decisions(entropy, now)
        path = decisions.path_of(group.path, name)
        fd = group.fs.create(path)
        try:
            group.fs.write_all(fd, decisions.opening(now, group.state.id, worker))
            if group.fs.shared:
                group.fs.fsync(fd)  # a client that writes it later would write over another host's `abort`
        except BaseException:
            group.fs.close(fd)
            raise
        return OwnDecisionFile(group, name, _Opened(group.fs, path, fd), clock)
