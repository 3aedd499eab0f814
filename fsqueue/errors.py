"""The errors of fsqueue: what each lets the caller conclude, and what to do.

::

    FsqueueError                 anything fsqueue says "no" to                                    exit 1
    ├── QueueNotFound            nothing is there; nothing was created                                 5
    │   └── QueueClosed          … it was deleted: no other process goes on with it either                 5
    ├── GroupNotFound            no group is there, or another one: perhaps it is not mounted          5
    ├── QueuePurged              what was waited for was purged or overwritten                          1
    ├── QueueExists              create found a queue and `exist_ok` was not given                     1
    ├── NotAQueue                the path is a file, or a directory that is no queue                   5
    ├── QueueFileLost            a queue's own file is gone or hidden, its tasks may be there: fsck             5
    ├── FormatTooNew             written by a newer fsqueue: upgrade this one                          1
    ├── FormatTooOld             written before the first release: drain it with what made it          1
    ├── InvalidArgument          an argument is wrong; nothing was done (also a ValueError)            2
    │   └── InvalidTask          this task cannot be stored                                            2
    │       ├── TaskTooLarge     … because of its size                                                14
    │       └── InvalidResult    a result cannot be kept: its task is still leased                     2
    ├── TaskNotFound             no such task, or it finished and the history no longer knows it      13
    ├── TaskFailed               a task whose result is waited for was given up or cancelled           1
    ├── ResultNotReady           it has not ended in time (also a TimeoutError)                        1
    ├── LeaseLost                the lease no longer holds: drop the result, do not retry              4
    │   └── LeaseExpired         … it ran out before it was renewed; no worker has taken the task yet
    ├── UpdateConflict           what an update needs is not so; nothing of it has happened                 6
    ├── CommitLost               what was staged for a commit is gone; nothing of it shows: stage again    1
    ├── ForkedChild              a forked child came back into a call of its parent; the parent goes on     1
    ├── StorageFull              no space, inodes or quota left; free some and repeat the call         7
    ├── StorageError             the filesystem failed; what happened is unknown: look, then repeat    1
    │   └── LockTimeout          a lock stayed busy; nothing was done, repeating is safe
    └── UnsafeFilesystem         the mount cannot keep the queue's promises                            8

The last column is the exit code of the command line.

`Retry` and `Bury` are not among them: a worker's handler raises them, to say what is to become of its task.
"""

from __future__ import annotations

import errno
import resource
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from fsqueue.interruptions import let_out


class FsqueueError(Exception):
    """The root of all errors that fsqueue raises on purpose."""

    exit_code = 1
    inserted: int | None = None
    """Number of tasks from the beginning of the stream that are in the queue all the same. `insert` and `insert_many`
    set it. Go on after them: to repeat the whole call would insert those without a key again. Tasks whose keys were
    taken count, too. None if this cannot be said: tasks with priorities or different delays are not inserted in the
    order of the stream."""
    new: int | None = None
    """Number of tasks that the call has inserted. Tasks whose keys were taken do not count. `insert` and `insert_many`
    set it."""
    is_exact: bool = True
    """Set by `insert` and `insert_many`: False if some of the tasks that came next may be in the queue, too. Set by
    each verb of a gateway's client: False if it is unknown whether the verb has happened."""
    advice: str = ""
    """Set by `insert`, `insert_many`, updates and a gateway's client: how to go on if that is unknown, as the text says
    at its end."""


class QueueNotFound(FsqueueError):
    """There is no queue at this path (or it has been deleted). Nothing was created."""

    exit_code = 5


class QueueClosed(QueueNotFound):
    """The queue is deleted: it is marked so, or its file is gone from the open directory, in which a move leaves it."""


class GroupNotFound(FsqueueError):
    """There is no group of queues at this path, or another one than was opened. Nothing was created.

    Perhaps its filesystem is not mounted, and all tasks are still in it. So it is no QueueNotFound: what handles a
    deleted queue must not take the queues of such a group for deleted.
    """

    exit_code = 5
    why: str = "is not there (not mounted?)"
    """What is wrong with the group, to be said after its path."""


class QueuePurged(FsqueueError):
    """The queue was purged or overwritten while it was waited for, while its dead letters were settled, or while its
    results were read.

    What was in it is gone, worked off or not.
    """


class QueueExists(FsqueueError):
    """A queue is there already. It was left as it is."""


class NotAQueue(FsqueueError):
    """The path exists but holds no queue. It was left as it is."""

    exit_code = 5


class QueueFileLost(FsqueueError):
    """A file of the queue's own is gone, or something else stands in its place. Its tasks may be there.

    Either a directory holds what is left of a queue, and its `queue.jsonl` is gone: repair it (`fsqueue fsck --repair`)
    before anything else is done with it. Or a link, or anything else, stands in the place of a file or directory that
    has tasks: `fsqueue fsck` says what to do.
    """

    exit_code = 5


class FormatTooNew(FsqueueError):
    """The queue was written by a newer fsqueue than this one. Nothing was touched: upgrade."""


class FormatTooOld(FsqueueError):
    """The queue was written by an fsqueue before its first release. Nothing was touched: drain it with that one."""


class InvalidArgument(FsqueueError, ValueError):
    """An argument has the wrong type or is out of range. Nothing was done."""

    exit_code = 2


class InvalidTask(InvalidArgument):
    """A task cannot be stored as given. `index` is its position in the input, where there is one."""

    part: Any = None
    """Set by `Commit.stage`: a CommitPart with what came before the bad task, to be published or not."""

    def __init__(self, message: str, index: int | None = None) -> None:
        super().__init__(message)
        self.index = index


class TaskTooLarge(InvalidTask):
    """The task is larger than the queue accepts. Store the data in a file and queue its path."""

    exit_code = 14


class InvalidResult(InvalidTask):
    """A result cannot be kept: it has a value that JSON does not have, is too large, or nests too deep.

    docs/functions.md has the rules, "What a function may return". Its task was not completed. If this error leaves the
    task's `with` block, the block buries the task: the work is done, and would end so each time.

    `tasks` are the ids concerned, `reasons` says of each why: their leases still hold. Of tasks handed in together, the
    others were dealt with; if leases among those were lost, `__cause__` is the LeaseLost that names them.
    """

    def __init__(self, message: str, reasons: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.reasons = dict(reasons or {})

    @property
    def tasks(self) -> list[str]:
        """Return the ids of the tasks whose results cannot be kept."""
        return list(self.reasons)


class TaskNotFound(FsqueueError):
    """No such task is in the queue, nor in what the history still keeps."""

    exit_code = 13


class TaskFailed(FsqueueError):
    """A task whose result was waited for has ended without one: it is a dead letter, or it was cancelled.

    `task`: what is known of it, a `TaskInfo`. Its `state` is "dead" or "cancelled", its `error` why it was given up.
    """

    def __init__(self, message: str, task: Any = None) -> None:
        super().__init__(message)
        self.task = task


class ResultNotReady(FsqueueError, TimeoutError):
    """A task has not ended within the time to wait for its result. It goes on; wait again, or cancel it."""


class LeaseLost(FsqueueError):
    """The lease does not hold its task any more. Discard the result: another worker has done the work, or will.

    `tokens` are the leases concerned, `tasks` the ids of their tasks, in the same order; `reason` says why ("taken
    over", "completed", "purged", ...). Of leases handed in together, those not named here were accepted. Two of them
    may be of one task, from different calls: then only `tokens` tell which was lost.

    If `reason` is "you have completed it already", this very lease has completed the task before. That completion
    counts, and nothing is left to do. (`fsqueue complete` exits with 0 then.)
    """

    exit_code = 4

    COMPLETED_BEFORE = "you have completed it already"
    """The reason if the same lease has completed the task before."""

    def __init__(self, message: str, tokens: Sequence[str] = (), reason: str = "") -> None:
        super().__init__(message)
        self.tokens = list(tokens)
        self.tasks = [token.partition("@")[0] for token in tokens]
        self.reason = reason


class LeaseExpired(LeaseLost):
    """The lease ran out before it was renewed. By the log, no other worker has taken the task over yet.

    The first to complete the task wins: this worker, or the next that leases it.
    """


class Conflict(NamedTuple):
    """Why an update could not happen: one of its operations."""

    op: str
    """The operation: complete, renew, release, fail, bury, cancel, replace, depends, insert."""
    queue: str
    """The queue's name in its group."""
    id: str
    """The task's id; "" for an insert."""
    reason: str


class UpdateConflict(FsqueueError):
    """An update could not happen. Nothing of it has happened, in any queue.

    `missing`: tasks that have ended ("completed by this lease" says that an earlier try has succeeded), or whose queue
    is gone. `changed`: tasks of another version than the one that was seen. `owned`: tasks whose lease does not hold
    any more, or that were seen free and are leased. `depends`: what is not so of the tasks that it only depends on.
    Each names all that is wrong. `busy`: only other processes were in the way; the same update may be applied again.
    """

    exit_code = 6
    KINDS = ("missing", "changed", "owned", "depends", "busy")
    """The names of its lists."""

    def __init__(
        self,
        message: str,
        *,
        missing: Sequence[Conflict] = (),
        changed: Sequence[Conflict] = (),
        owned: Sequence[Conflict] = (),
        depends: Sequence[Conflict] = (),
        busy: Sequence[Conflict] = (),
    ) -> None:
        super().__init__(message)
        self.missing, self.changed, self.owned = list(missing), list(changed), list(owned)
        self.depends, self.busy = list(depends), list(busy)


class CommitLost(FsqueueError):
    """The tasks staged for a commit are gone: purged, discarded, or reaped. None is visible: stage them again."""


class ForkedChild(FsqueueError):
    """This process was forked within a call of its parent, and came back into that call. It does nothing here.

    The call goes on in the parent alone, with all that it has leased, staged and inserted.
    """

    def __init__(self, call: str) -> None:
        super().__init__(
            f"This process was forked within {call} of its parent, which goes on with that alone. Nothing was done "
            "here. A forked child ends by os._exit, or makes calls of its own."
        )


class ForkedInCall(BaseException):
    """Carry an exception out of a call in a child that was forked within it. The user never gets it.

    No handler inside the call may take it for an error of the stream's or of the system's, and go on.
    """

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


class StorageFull(FsqueueError):
    """No space, inodes or quota is left. What was reported done is kept; make room and repeat.

    Of `insert_many` without a commit's name, repeat only what is not `inserted`. Tasks with keys may be repeated.
    """

    exit_code = 7


class StorageError(FsqueueError):
    """The filesystem failed. Whether the last operation happened is unknown.

    Repeating is safe, but for an insert without a commit's name: what happened of it would be inserted again. A key
    keeps a task from that as long as the first one waits or is leased.
    """


class LockTimeout(StorageError):
    """A lock stayed busy for too long: its holder is stopped or cut off. Nothing was done."""


class UnsafeFilesystem(FsqueueError):
    """The filesystem cannot keep the queue's promises, so it is refused. The message names the remedy."""

    exit_code = 8


class Retry(Exception):
    """Raised by a worker's handler, or in `with task:`: put the task back, without blame, for another time.

    `delay_s`: seconds before it is available again; by default a pause that grows with each in a row.
    """

    def __init__(self, delay_s: float | None = None) -> None:
        super().__init__(delay_s)
        self.delay_s = delay_s


class Bury(Exception):
    """Raised by a worker's handler, or in `with task:`: the task cannot succeed.

    It becomes a dead letter at once, with this reason.
    """


UNKEPT = "its result cannot be kept, and its work is not repeated"
"""The reason of a dead letter begins so if the work on the task succeeded, and only its result could not be kept."""


def bury_reason(error: Bury) -> str:
    """Return the reason of a dead letter that `error` asks for."""
    return text_of(error) or "given up by its handler"


def said(error: BaseException) -> str:
    """Return an exception in a line: its type and its text, even if asking for the text raises."""
    name = type(error).__name__
    try:
        return in_unicode(f"{name}: {error}")
    except Exception as another:
        let_out(another)
        return in_unicode(f"{name}: (its text could not be had: {type(another).__name__})")


def in_unicode(text: str) -> str:
    """Return a text that UTF-8 can hold: half surrogates, as in names of files that are no UTF-8, are spelled out."""
    return text.encode("utf-8", "backslashreplace").decode()


def shown(value: object) -> str:
    """Return a value for a message, cut. Python writes no number of more than 4,300 digits."""
    try:
        return f"{value!r:.100}"
    except ValueError:
        return f"a {type(value).__name__} that is too large"


def text_of(thing: object) -> str:
    """Return what the caller gave as a reason, as text, even if asking for the text raises."""
    try:
        return in_unicode(str(thing))
    except Exception as error:
        let_out(error)
        return f"(a {type(thing).__name__}; its text could not be had: {type(error).__name__})"


FULL = (errno.ENOSPC, errno.EDQUOT)
"""What the system says when there is no room."""
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""What it says when this process, or this host, has too many files open."""
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""What it says where there are no file locks."""


LINKED_REMEDY = (
    "If it is the queue's own and a backup has linked it ('cp -al', rsnapshot), replace it while no process uses the "
    "queue: cp -p FILE FILE.new && mv -f FILE.new FILE"
)
"""What to do about a file of the queue that has a second name."""


class SecondName(OSError):
    """A file of the queue has a second name, which may lie outside of it: nothing was written to it.

    A neighbour may have linked another file of this user to the place where one of the queue belongs.
    """

    def __init__(self, path: str) -> None:
        super().__init__(errno.ELOOP, "It has a second name, which may lie outside of the queue", path)


class HiddenTasks(OSError):
    """Something else stands in the place of a file or directory of the queue that has tasks, or tells of them.

    A deduplicator, an archive or a careless hand has put it there. It is not followed, and nothing is written to it.
    """

    def __init__(self, code: int, path: str, stands: str, wanted: str) -> None:
        super().__init__(code, f"It is {stands}, where a {wanted} of the queue belongs", path)
        self.stands, self.wanted = stands, wanted


class NotGiven(PermissionError):
    """Root cannot give what it has made in a directory of another user to that user. It was removed."""

    def __init__(self, path: str) -> None:
        super().__init__(errno.EPERM, "Operation not permitted", path)


def _limit_of(error: OSError) -> str:
    """Return which limit of open files is reached, and how to raise it."""
    if error.errno == errno.ENFILE:
        return "The limit is that of the whole host: have it raised ('sysctl fs.file-max')"
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == hard:
        return f"This process may have {soft:,} open ('ulimit -n'), which is its hard limit: have that raised"
    most = "" if hard == resource.RLIM_INFINITY else f", to {hard:,} at most"
    return f"This process may have {soft:,} open: raise that limit ('ulimit -n'){most}"


def from_os_error(error: OSError, doing: str, then: str = "") -> FsqueueError:
    """Return the fsqueue error that says what `error`, met while `doing` something, means to the user.

    `then`: sentences for the end: what to do when the cause is mended, if that is not to repeat what was done.
    If a signal handler of the caller has raised it, as a timeout does, raise it as it is.
    """
    let_out(error)
    where = f" ({error.filename})" if error.filename else ""
    what = f"{error.strerror or error}{where}"
    after = f" {then}" if then else ""
    if error.errno in FULL:
        return StorageFull(
            f"There is no room left while {doing}: {what}. Free space or inodes, or raise the quota"
            + (f".{after}" if then else ", and repeat.")
        )
    if error.errno in NO_DESCRIPTORS:
        return StorageError(
            f"Too many files are open while {doing}: {what}. The filesystem is not to blame. {_limit_of(error)}, or "
            "close queues that you do not use ('Queue.close', 'Group.close'), or run less at a time."
            + (after or " Then repeat; nothing reported done is lost.")
        )
    if error.errno == errno.EFBIG:
        return StorageError(
            f"A file may not grow while {doing}: {what}. Raise the limit of a file's size ('ulimit -f')."
            + (after or " Then repeat; nothing reported done is lost.")
        )
    if error.errno == errno.EROFS:
        return StorageError(f"The filesystem is mounted read-only: {what}, while {doing}. Use a writable mount.{after}")
    if isinstance(error, NotGiven):
        return StorageError(
            f"Root could not make {error.filename} while {doing}: root may not give it to the user who owns the "
            f"directory, and that user's processes need it. Run the command as that user.{after}"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return StorageError(
            f"Permission denied while {doing}: {what}. Ask the queue's owner for read and write access.{after}"
        )
    if isinstance(error, SecondName):
        return StorageError(
            f"A file of the queue was not written to while {doing}, since it has a second name and may be another "
            f"user's private file: {error.filename}. {LINKED_REMEDY}. 'fsqueue fsck' lists all such files.{after}"
        )
    if isinstance(error, HiddenTasks):
        return QueueFileLost(
            f"{error.filename} is {error.stands}, where a {error.wanted} of the queue belongs (met while {doing}). "
            "Tasks that it hides are not executed, and may not be counted, so the queue is not called drained. All "
            f"else in it is as it was; nothing behind a link was touched. 'fsqueue fsck' says what to do.{after}"
        )
    if error.errno in (errno.ENOTDIR, errno.ELOOP, errno.ENXIO, errno.EISDIR):
        return StorageError(
            f"Something is in the way while {doing}: {what}. 'fsqueue fsck --repair' moves it into quarantine, or says "
            f"what to do about a link.{after}"
        )
    if error.errno in NO_LOCKS:
        return UnsafeFilesystem(
            f"The filesystem has no file locks: {what}, while {doing}. "
            f"On Lustre ask for the mount option 'flock', on NFS for a running lock service.{after}"
        )
    return StorageError(
        f"The filesystem failed while {doing}: {what}."
        + (after or " Repeat when it works again; nothing reported done is lost.")
    )
