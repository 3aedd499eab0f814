"""Record the resources that a thread owns, so that an interrupted verb releases them (docs/design.md, section 11).

Resources are open descriptors with their file locks, and mutexes.

A signal handler may raise between any two instructions of Python: KeyboardInterrupt at Ctrl-C, a TimeoutError of the
caller's alarm. `try` and `finally` do not suffice: the exception may come between a call that acquires a resource and
the `try` behind it, or as the first instruction of the `finally`. So each thread has a record of what it owns:

- One call of C code opens a descriptor and records it. Another one closes it and removes it from the record. No Python
  instruction comes in between, and so no signal.
- A descriptor has one owner at a time: a record, or an object (`Kept`). One call of C code hands it over. Only its
  owner closes it: a second close would close a file that has got the number since.
- A mutex is recorded before it is acquired, and removed from the record after its release. It knows its owner.
- A verb that ends with an exception compares the record with that at its start, and releases what was added since.

If a second exception interrupts the release, the release begins again.

A forked child has the records of all threads of its parent, and none of these threads but one. It gives the locks of
their files up, without unlocking what the parent has locked: see `_Records`.
"""

from __future__ import annotations

import _thread
import errno
import fcntl
import os
import stat
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Set
from functools import partial
from itertools import compress, count
from types import TracebackType
from typing import Protocol

from fsqueue import forks
from fsqueue.errors import ForkedChild, ForkedInCall
from fsqueue.interruptions import handler_in, is_interruption, let_out, suppress


class Closer(Protocol):
    """Unlock and close descriptors. A Filesystem is one."""

    unlock: Callable[[int], None]
    close: Callable[[int], None]


class Abandonable(Protocol):
    """A resource that a thread holds for the length of a section: a mutex, or an open log."""

    def abandon(self) -> None:
        """Release the resource, if this thread has it. An exception may have ended the section at
        any instruction.
        """


class Fresh(list[int]):
    """Descriptors that were just opened. (A class of its own: see `_RefusingFresh`.)"""

    __slots__ = ()


class _RefusingFresh(Fresh):
    """Stand in place of `Fresh` in a child that was forked within a call: it opens nothing for that call."""

    __slots__ = ()

    def extend(self, attempt: Iterable[int]) -> None:
        refuse_the_parents()
        super().extend(attempt)


def refuse_the_parents() -> None:
    """Raise ForkedInCall if the caller is a call that this process's parent had begun: it goes on in the parent alone.

    No handler within that call takes it for an error of the system. What ends the call raises ForkedChild.
    """
    if forks.is_of_the_parent():
        raise ForkedInCall(ForkedChild("a call"))


def in_child(error: BaseException | None) -> BaseException:
    """Return the exception that ends a call in a child that was forked within the call, after `error` or without one.

    An exception that the child's own user code has raised is returned itself. Any other one comes from what a child
    lacks: then it is ForkedChild.
    """
    if isinstance(error, ForkedInCall):
        return error.error
    if error is not None and (not isinstance(error, Exception) or forks.is_from_user_code(error.__traceback__)):
        return error
    return ForkedChild("a call")


class Entry:
    """A descriptor's record. It is made anew each time that one is recorded, and so tells the descriptor from a later
    one that has got its number: compare entries by `is`.
    """

    __slots__ = ("by", "is_given_back")

    def __init__(self, by: Closer) -> None:
        self.by = by
        """Closer of the descriptor."""
        self.is_given_back = False
        """True if `give_back` has closed the descriptor, or is about to."""


class ThreadResources:
    """List the resources that one thread owns."""

    __slots__ = ("fds", "fresh", "is_opening", "sections")

    def __init__(self) -> None:
        self.fds: dict[int, Entry] = {}
        """Open descriptors, and what closes each. A descriptor that an object keeps open is not among them."""
        self.fresh = Fresh()
        """Descriptors that were just opened, and are not among `fds` yet."""
        self.sections: list[Abandonable] = []
        """Sections that this thread has entered, the innermost last."""
        self.is_opening = False
        """True while the thread is opening a file. A fork may come between the system's part of that and the record."""


class _Records:
    """The records of all threads, by their numbers. (Held here: those of threads that a fork has ended go before that.)

    A forked child replaces each descriptor in them that may have a lock by one that leads to the root directory. A
    lock of an open file stays taken as long as any process has the file open, so the child closes its copy. To unlock
    it would give the parent's lock away. The number of the descriptor stays in use: the child's thread or a generator
    may still close it, and must not close another file. To write to it, to read it and to lock it fails.
    """

    _PRUNE_AT = 64
    """Number of records from which on those of threads that have ended are looked for."""

    def __init__(self) -> None:
        self.of_threads: dict[int, ThreadResources] = {}
        self.unrecorded: dict[int, str] = {}
        """In a forked child: descriptors that another thread may just have opened, and their paths."""
        forks.register(self, _Records.after_fork)

    def add(self, owned: ThreadResources) -> None:
        """Add this thread's record. The number may be that of a thread that has ended."""
        self.of_threads[_thread.get_ident()] = owned
        if len(self.of_threads) > self._PRUNE_AT:
            living = sys._current_frames().keys()
            for number, other in list(self.of_threads.items()):
                if number not in living and not other.fds:
                    self.of_threads.pop(number, None)

    def after_fork(self) -> None:
        """Let go of what the parent's threads had open. This thread goes on to read what it was reading."""
        mine = this_thread.owned
        if forks.is_within_call():
            mine.fresh.__class__ = _RefusingFresh
        others = [owned for owned in self.of_threads.values() if owned is not mine]
        theirs = {fd for owned in others for fd in (*owned.fds, *owned.fresh) if _access_of(fd) is not None}
        own = {fd for fd in (*mine.fds, *mine.fresh) if _access_of(fd) in (os.O_RDWR, os.O_WRONLY)}
        lead_nowhere([*own, *(theirs - mine.fds.keys())])
        self.of_threads = {_thread.get_ident(): mine}
        is_opening = any(owned.is_opening for owned in others)
        self.unrecorded = _writable_files(theirs | mine.fds.keys()) if is_opening else {}


def let_go_below(root: int) -> None:
    """Let go of the files below an open directory that another thread of the parent was just opening, in a child.

    Other holders may have closed some of them meanwhile. `lead_nowhere` would get such a number for itself, and fail.
    """
    if _records.unrecorded:
        below = os.readlink(f"/proc/self/fd/{root}") + "/"
        found = [fd for fd, path in _records.unrecorded.items() if path.startswith(below)]
        lead_nowhere([fd for fd in found if _access_of(fd) in (os.O_RDWR, os.O_WRONLY)])


def _writable_files(known: Set[int]) -> dict[int, str]:
    """Return all descriptors but the known ones that can write to a file, with the paths of the files."""
    found: dict[int, str] = {}
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd not in known and _access_of(fd) in (os.O_RDWR, os.O_WRONLY) and stat.S_ISREG(os.fstat(fd).st_mode):
            found[fd] = os.readlink(f"/proc/self/fd/{fd}")
    return found


def _access_of(fd: int) -> int | None:
    """Return how a descriptor was opened: to read, to write or both; None if it is not open. One that cannot write has
    no exclusive lock.
    """
    try:
        return fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE
    except (OSError, ValueError) as error:  # it is closed; or below 0, since nothing was opened
        let_out(error)
        return None


def lead_nowhere(fds: list[int]) -> None:
    """Have descriptors lead to the root directory of the system, instead of to their files."""
    if not fds:
        return
    nowhere = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for fd in fds:
            os.dup2(nowhere, fd, inheritable=False)
    finally:
        os.close(nowhere)


_records = _Records()


class _ThisThread(threading.local):
    """Give each thread a record of its own."""

    def __init__(self) -> None:
        self.owned = ThreadResources()
        _records.add(self.owned)


this_thread = _ThisThread()

Mark = tuple[int, dict[int, Entry], int]
"""Number of sections, open descriptors, and number of descriptors that were just opened."""
NOTHING: Mark = (0, {}, 0)


def opened(by: Closer | None, attempt: Iterator[int]) -> int:
    """Return the descriptor that `attempt` opens, and record it in the same C call. If `by` is None, do not record it.

    `attempt` is a `map` of one call: `map(os.open, (path,), (flags,))`. No signal can come in between only if its
    function is C code. A number below 0 says that nothing was opened, and is not recorded.
    """
    if by is None:
        return next(attempt)
    owned = this_thread.owned
    fresh = owned.fresh
    owned.is_opening = True
    try:
        fresh.extend(attempt)
    finally:
        owned.is_opening = False
    fd = fresh[-1]
    if fd >= 0:
        owned.fds[fd] = Entry(by)
    fresh.pop()
    return fd


def close(fd: int) -> None:
    """Close a descriptor, and remove it from this thread's record (if it is there) in the same C call.

    EBADF if it is not open. No other error is raised: see `refuse_unopened`.
    """
    try:
        fds = this_thread.owned.fds
    except AttributeError:  # a finalizer at the end of this thread: its record has gone before
        os.close(fd)
        return
    if fd not in fds:  # another thread may have opened it
        fds = next((owned.fds for owned in list(_records.of_threads.values()) if fd in owned.fds), fds)
    try:
        any(map(os.close, compress((fd,), map(fds.pop, (fd,), (True,)))))
    except OSError as error:
        refuse_unopened(error)


class Closing:
    """Close a descriptor at the end of a `with` block.

    The block may be a generator's, and outlive the call that has opened the descriptor. If that call was interrupted,
    it has given the descriptor back, and the number may be another file's: then the block's end closes nothing.
    """

    __slots__ = ("_close", "_entry", "_fd")

    def __init__(self, fd: int, by: Callable[[int], None] = close) -> None:
        self._fd, self._close = fd, by
        self._entry = this_thread.owned.fds.get(fd)

    def __enter__(self) -> int:
        return self._fd

    def __exit__(self, kind: object, error: object, at: object) -> None:
        if self._entry is None or not self._entry.is_given_back:
            self._close(self._fd)


def refuse_unopened(error: OSError) -> None:
    """Raise an error of closing if it says that the descriptor was not open (EBADF).

    After any other one the descriptor is closed all the same, and what was to be durable was synced before. Raised from
    a `finally`, it would hide what was done, or the error that ended that.
    """
    let_out(error)
    if error.errno == errno.EBADF:
        raise error


_kept: dict[int, weakref.ref[Kept]] = {}
"""Closers of the descriptors of objects that have one, by the objects' numbers. The table outlives the module's
globals: the callbacks have it.
"""
_numbers = count()


class Kept:
    """Keep a descriptor open that this thread has recorded, as long as this object lives; then `drop` it.

    A finalizer in Python would not do. A signal handler that raises at its first instruction ends it, and nothing calls
    it again: the descriptor would stay open. At the end of the process it would meet modules without globals. So the
    death of this object calls C code alone, if `drop` is that. The garbage collector may be what calls it, at any
    allocation: `drop` must wait for nothing.
    """

    __slots__ = ("__weakref__", "_number", "fd")

    def __init__(self, fd: int, drop: Callable[[int], object]) -> None:
        self.fd, self._number = fd, next(_numbers)
        number, fds = (self._number,), (fd,)
        # Does nothing unless this object is in `_kept`: an interruption may end its life before it owns the descriptor.
        end = partial(next, map(drop, compress(fds, map(_kept.pop, number, (None,)))))
        here = (weakref.ref(self, end),)
        # In one C call: an interruption leaves the descriptor either to this thread or to this object.
        any(map(_kept.__setitem__, compress(number, map(this_thread.owned.fds.pop, fds, (True,))), here))

    def give_up(self, by: Closer) -> bool:
        """Leave the descriptor to this thread's record, in one C call: it is about to be closed by `by`.

        False if this object has it no more. Then the caller must not close it: a record has it, or it is closed.
        """
        had = compress((Entry(by),), map(_kept.pop, (self._number,), (None,)))
        return list(map(this_thread.owned.fds.__setitem__, (self.fd,), had)) != []


def disown(fd: int) -> None:
    """Remove a descriptor from the record: from now on an object keeps it open, and closes it."""
    this_thread.owned.fds.pop(fd, None)


class OwnedLock(_thread.RLock):  # type: ignore[misc]  # final only to type checkers
    """Lock, and know which thread has the lock."""

    __slots__ = ()

    def is_mine(self) -> bool:
        """Return whether this thread has it."""
        return bool(self._is_owned())  # type: ignore[attr-defined]  # what threading.Condition asks, too

    def locked(self) -> bool:
        """Return whether any thread has it."""
        if self.is_mine():
            return True
        if self.acquire(blocking=False):
            self.release()
            return False
        return True


class Mutex:
    """Exclude other threads for the length of a `with` block. An exception may end the block at any instruction.

    Reentrant: a signal handler or finalizer may run in the block's own thread, and must not wait for that thread.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self) -> None:
        self._lock = OwnedLock()
        forks.register(self, Mutex.after_fork)

    def after_fork(self) -> None:
        """Make the lock anew in a forked child, unless its thread has it: no other thread is there to release it."""
        if not self._lock.is_mine():
            self._lock = OwnedLock()

    def __enter__(self) -> None:
        this_thread.owned.sections.append(self)
        self._lock.acquire()

    def __exit__(self, kind: object, error: object, at: object) -> None:
        self._lock.release()
        this_thread.owned.sections.remove(self)

    def locked(self) -> bool:
        """Return whether any thread has it."""
        return self._lock.locked()

    def abandon(self) -> None:
        """Release the mutex, if this thread has it."""
        if self._lock.is_mine():
            self._lock.release()


def mark() -> Mark:
    """Return a mark of what this thread owns now: sections, descriptors and fresh ones. `give_back` takes the mark."""
    owned = this_thread.owned
    if not owned.sections and not owned.fds and not owned.fresh:
        return NOTHING
    return len(owned.sections), dict(owned.fds), len(owned.fresh)


def new_since(before: dict[int, Entry], fds: dict[int, Entry]) -> dict[int, Entry]:
    """Return the descriptors among `fds` that were not open before. One may have got the number of another."""
    return {fd: entry for fd, entry in fds.items() if before.get(fd) is not entry}


def give_back(before: Mark, error: BaseException) -> BaseException:
    """Release what this thread has acquired since `mark` and, because of `error`, still owns. Mostly nothing.

    Return what the caller raises: `error`, or the last interruption of the release. To drop that one would leave a
    Ctrl-C unheard, if `error` is one that the caller expects.
    """
    raised = error
    for last in (False, False, True):
        try:
            owned = this_thread.owned
            if len(owned.sections) > before[0] or len(owned.fresh) > before[2] or new_since(before[1], owned.fds):
                _give_back(before, error)
            break
        except BaseException as another:
            # A second Ctrl-C: begin again. What was released is no longer in the record.
            if last:
                raise
            error = another
            if is_interruption(another):
                raised = another
    return raised


def _give_back(before: Mark, error: BaseException) -> None:
    # Close the generators that the traceback's frames keep open. Left to the garbage collector, they would later close
    # descriptors by numbers that other files have got by then.
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        one = chain.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            _clear_frames(one)
            chain += [one.__cause__, one.__context__]
    held, fds, fresh = this_thread.owned.sections, this_thread.owned.fds, this_thread.owned.fresh
    while len(fresh) > before[2]:
        if fresh[-1] >= 0 and fresh[-1] not in fds:  # just opened: it has no lock
            fds[fresh[-1]] = Entry(_Plain())
        fresh.pop()
    while len(held) > before[0]:
        held[-1].abandon()
        held.pop()
    for fd, entry in new_since(before[1], fds).items():
        entry.is_given_back = True  # first: if an interruption comes behind the close, nobody else would say so
        with suppress(OSError):  # it is no file, or the server has forgotten the lock
            entry.by.unlock(fd)  # closing alone would keep the lock: a child forked meanwhile has the file open, too
        with suppress(OSError):
            entry.by.close(fd)
        fds.pop(fd, None)


def _clear_frames(error: BaseException) -> None:
    """Clear the frames of a traceback, up to those of a signal handler: its arguments tell that it has raised this."""
    at, end = error.__traceback__, handler_in(error)
    while at is not None and at is not end:
        with suppress(RuntimeError):  # it is still executing
            at.tb_frame.clear()
        at = at.tb_next


class _Plain:
    """Close a descriptor that has no lock."""

    def __init__(self) -> None:
        self.unlock: Callable[[int], None] = lambda fd: None
        self.close: Callable[[int], None] = close


class Scope:
    """If an exception ends a `with` block, release what the block has acquired and not released.

    In a child that was forked within the block, or before it within the call that it belongs to, the block ends as
    `in_child` says.
    """

    __slots__ = ("_before", "_process")

    def __enter__(self) -> None:
        self._before, self._process = mark(), forks.depth

    def __exit__(self, kind: object, error: BaseException | None, at: TracebackType | None) -> None:
        ended = give_back(self._before, error) if error is not None else None
        if self._process != forks.depth or isinstance(ended, ForkedInCall):
            ended = in_child(ended)
        if ended is not None and ended is not error:
            raise ended from None
