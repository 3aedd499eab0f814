"""Record the resources that a thread owns, so that an interrupted verb releases them (docs/design.md, section 11).

Resources are open descriptors with their file locks, and mutexes.

A signal handler may raise between any two instructions of Python: KeyboardInterrupt at Ctrl-C, a TimeoutError of the
caller's alarm. `try` and `finally` do not suffice: the exception may come between a call that acquires a resource and
the `try` behind it, or as the first instruction of the `finally`. So each thread has a record of what it owns:

- One call of C code opens a descriptor and records it. Another one closes it and removes it from the record. No Python
  instruction comes in between, and so no signal.
- A mutex is recorded before it is acquired, and removed from the record after its release. It knows its owner.
- A verb that ends with an exception compares the record with that at its start, and releases what was added since.

If a second exception interrupts the release, the release begins again.
"""

from __future__ import annotations

import _thread
import errno
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import compress
from types import TracebackType
from typing import Protocol


class Closer(Protocol):
    """Unlock and close descriptors. A Filesystem is one."""

    unlock: Callable[[int], None]
    close: Callable[[int], None]


class Abandonable(Protocol):
    """A resource that a thread holds for the length of a section: a mutex, or an open log."""

    def abandon(self) -> None:
        """Release it, if this thread has it. An exception may have ended the section at any instruction."""


class ThreadResources:
    """List the resources that one thread owns."""

    __slots__ = ("fds", "fresh", "held")

    def __init__(self) -> None:
        self.fds: dict[int, Closer] = {}
        """Open descriptors, and what closes each. A descriptor that an object keeps open is not among them."""
        self.fresh: list[int] = []
        """Descriptors that were just opened, and are not among `fds` yet."""
        self.held: list[Abandonable] = []
        """Sections that this thread has entered, the innermost last."""


class _ThisThread(threading.local):
    """Give each thread a record of its own."""

    def __init__(self) -> None:
        self.owned = ThreadResources()


this_thread = _ThisThread()

Mark = tuple[int, frozenset[int], int]
NOTHING: Mark = (0, frozenset(), 0)


def opened(by: Closer | None, attempt: Iterator[int]) -> int:
    """Return the descriptor that `attempt` opens, and record it in the same C call. If `by` is None, do not record it.

    `attempt` is a `map` of one call: `map(os.open, (path,), (flags,))`. No signal can come in between only if its
    function is C code. A number below 0 says that nothing was opened, and is not recorded.
    """
    if by is None:
        return next(attempt)
    owned = this_thread.owned
    fresh = owned.fresh
    fresh.extend(attempt)
    fd = fresh[-1]
    if fd >= 0:
        owned.fds[fd] = by
    fresh.pop()
    return fd


def close(fd: int) -> None:
    """Close a descriptor, and remove it from this thread's record (if it is there) in the same C call.

    EBADF if it is not open. No other error is raised: the descriptor is closed all the same, and what was to be durable
    was synced before. Raised from a `finally`, it would hide what was done, or the error that ended that.
    """
    try:
        remove = this_thread.owned.fds.pop
    except AttributeError:  # a finalizer at the end of this thread: its record has gone before
        os.close(fd)
        return
    try:
        any(map(os.close, compress((fd,), map(remove, (fd,), (True,)))))
    except OSError as error:
        if error.errno == errno.EBADF:
            raise


def own(fd: int, by: Closer) -> None:
    """Record a descriptor that an object kept open until now, and that is about to be closed."""
    this_thread.owned.fds[fd] = by


def disown(fd: int) -> None:
    """Remove a descriptor from the record: from now on an object keeps it open, and closes it."""
    this_thread.owned.fds.pop(fd, None)


def close_all(fds: list[int]) -> None:
    """Close the descriptors in a list, and remove each from the list in the same C call. Errors: as of `close`."""
    while fds:
        try:
            any(map(os.close, map(fds.pop, [-1] * len(fds))))
        except IndexError:
            return  # another thread has emptied the list at the same time
        except OSError as error:
            if error.errno == errno.EBADF:
                raise


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

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = OwnedLock()

    def __enter__(self) -> None:
        this_thread.owned.held.append(self)
        self._lock.acquire()

    def __exit__(self, kind: object, error: object, at: object) -> None:
        self._lock.release()
        this_thread.owned.held.remove(self)

    def locked(self) -> bool:
        """Return whether any thread has it."""
        return self._lock.locked()

    def abandon(self) -> None:
        """Release it, if this thread has it."""
        if self._lock.is_mine():
            self._lock.release()


def mark() -> Mark:
    """Return what this thread owns by now, for a later `give_back`."""
    owned = this_thread.owned
    if not owned.held and not owned.fds and not owned.fresh:
        return NOTHING
    return len(owned.held), frozenset(owned.fds), len(owned.fresh)


def give_back(before: Mark, error: BaseException) -> None:
    """Release what this thread has acquired since `mark` and, because of `error`, still owns. Mostly nothing."""
    for last in (False, False, True):
        try:
            owned = this_thread.owned
            if len(owned.held) > before[0] or owned.fds.keys() - before[1] or len(owned.fresh) > before[2]:
                _give_back(before, error)
            return
        except BaseException as another:
            # A second Ctrl-C: begin again. What was released is no longer in the record.
            if last:
                raise
            error = another


def _give_back(before: Mark, error: BaseException) -> None:
    # Close the generators that the traceback's frames keep open. Left to the garbage collector, they would later close
    # descriptors by numbers that other files have got by then.
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        one = chain.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            chain += [one.__cause__, one.__context__]
    held, fds, fresh = this_thread.owned.held, this_thread.owned.fds, this_thread.owned.fresh
    while len(fresh) > before[2]:
        if fresh[-1] >= 0 and fresh[-1] not in fds:  # just opened: it has no lock
            fds[fresh[-1]] = _Plain()
        fresh.pop()
    while len(held) > before[0]:
        held[-1].abandon()
        held.pop()
    for fd in [*fds]:
        if fd not in before[1]:
            by = fds[fd]
            try:
                with suppress(OSError):  # it is no file, or the server has forgotten the lock
                    by.unlock(fd)  # closing alone would keep the lock: a child forked meanwhile has the file open, too
                with suppress(OSError):
                    by.close(fd)
            finally:
                fds.pop(fd, None)


class _Plain:
    """Close a descriptor that has no lock."""

    def __init__(self) -> None:
        self.unlock: Callable[[int], None] = lambda fd: None
        self.close: Callable[[int], None] = close


class Scope:
    """If an exception ends a `with` block, release what the block has acquired and not released."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = mark()

    def __exit__(self, kind: object, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            give_back(self._before, error)
