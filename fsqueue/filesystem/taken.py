"""What a thread has taken and has to give back: descriptors, file locks, mutexes (docs/design.md, "Interrupted").

A signal handler may raise between any two instructions of Python: KeyboardInterrupt at Ctrl-C, a TimeoutError of the
caller's alarm. `try` and `finally` do not suffice: the exception may come between a call that takes something and the
`try` behind it, or as the first instruction of the `finally`. So each thread has a record of what it has taken:

- A descriptor is opened, and recorded, in one call of C code; closed, and struck off, likewise. No instruction of
  Python, hence no signal, comes in between.
- A mutex is recorded before it is acquired, and struck off after it was released. It knows its owner itself.
- Each verb compares the record with what it was at its start, if it ends with an exception, and gives the rest back.

A second exception within the few instructions of giving back makes it begin again.
"""

from __future__ import annotations

import _thread
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import compress
from types import TracebackType
from typing import Protocol


class Closer(Protocol):
    """A Filesystem, as far as it matters here."""

    unlock: Callable[[int], None]
    close: Callable[[int], None]


class Held(Protocol):
    """Something that is taken for the length of a section."""

    def abandon(self) -> None:
        """Give it back, if this thread has it. Called for a section that was broken off at any instruction."""


class Record:
    """What one thread has taken."""

    __slots__ = ("fds", "fresh", "held")

    def __init__(self) -> None:
        self.fds: dict[int, Closer] = {}
        """Open descriptors, and what closes each. Those that belong to something that lasts are not among them."""
        self.fresh: list[int] = []
        """Descriptors that are open, and not among `fds` yet."""
        self.held: list[Held] = []
        """Sections under way, the innermost last."""


class _Hands(threading.local):
    """Each thread's record."""

    def __init__(self) -> None:
        self.mine = Record()


hands = _Hands()

Mark = tuple[int, frozenset[int], int]
NOTHING: Mark = (0, frozenset(), 0)


def opened(by: Closer | None, attempt: Iterator[int]) -> int:
    """Return the descriptor that `attempt` opens, recorded in the same moment; None: not recorded.

    `attempt` is a `map` of one call: `map(os.open, (path,), (flags,))`. Its function must be C code for this to hold;
    the record is also kept for one of Python. A number below 0 says that nothing was opened, and is not recorded.
    """
    if by is None:
        return next(attempt)
    mine = hands.mine
    fresh = mine.fresh
    fresh.extend(attempt)
    fd = fresh[-1]
    if fd >= 0:
        mine.fds[fd] = by
    fresh.pop()
    return fd


def close(fd: int) -> None:
    """Close a descriptor and strike it off in the same moment, whoever has opened it."""
    any(map(os.close, compress((fd,), map(hands.mine.fds.pop, (fd,), (True,)))))


def own(fd: int, by: Closer) -> None:
    """Record a descriptor of something that lasts, which is about to be closed."""
    hands.mine.fds[fd] = by


def disown(fd: int) -> None:
    """Strike off a descriptor that something that lasts closes from now on."""
    hands.mine.fds.pop(fd, None)


def close_all(fds: list[int]) -> None:
    """Close the descriptors in a list, and take each out in the same moment."""
    with suppress(IndexError):  # another thread did so at the same time
        any(map(os.close, map(fds.pop, [-1] * len(fds))))


class OwnedLock(_thread.RLock):  # type: ignore[misc]  # final only to type checkers
    """A lock that knows which thread has it."""

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
    """Exclude other threads for the length of a `with` block, which may be broken off at any instruction.

    Reentrant: a signal handler or finalizer that runs in the block, in its thread, does not wait for itself.
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = OwnedLock()

    def __enter__(self) -> None:
        hands.mine.held.append(self)
        self._lock.acquire()

    def __exit__(self, kind: object, error: object, at: object) -> None:
        self._lock.release()
        hands.mine.held.remove(self)

    def locked(self) -> bool:
        """Return whether any thread has it."""
        return self._lock.locked()

    def abandon(self) -> None:
        """Release it, if this thread has it."""
        if self._lock.is_mine():
            self._lock.release()


def mark() -> Mark:
    """Return what this thread has taken by now: to be given to `give_back`."""
    mine = hands.mine
    if not mine.held and not mine.fds and not mine.fresh:
        return NOTHING
    return len(mine.held), frozenset(mine.fds), len(mine.fresh)


def give_back(before: Mark, error: BaseException) -> None:
    """Give back what this thread has taken since `mark`, which `error` kept from being given back. Mostly nothing."""
    for last in (False, False, True):
        try:
            mine = hands.mine
            if len(mine.held) > before[0] or mine.fds.keys() - before[1] or len(mine.fresh) > before[2]:
                _give_back(before, error)
            return
        except BaseException as another:
            # A second Ctrl-C: what was given back is struck off, so begin again with the rest.
            if last:
                raise
            error = another


def _give_back(before: Mark, error: BaseException) -> None:
    # Generators that were broken off between two of their steps are still open in the frames that the traceback keeps.
    # Close them now: some time later they would close descriptors whose numbers are others' by then.
    seen: set[int] = set()
    chain: list[BaseException | None] = [error]
    while chain:
        one = chain.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            chain += [one.__cause__, one.__context__]
    held, fds, fresh = hands.mine.held, hands.mine.fds, hands.mine.fresh
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
                    by.unlock(fd)  # closing alone would not: a child that was forked meanwhile has it open, too
                with suppress(OSError):
                    by.close(fd)
            finally:
                fds.pop(fd, None)


class _Plain:
    """Closes a descriptor that nobody has locked."""

    def __init__(self) -> None:
        self.unlock: Callable[[int], None] = lambda fd: None
        self.close: Callable[[int], None] = close


class Scope:
    """Give back, at the end of a `with` block that an exception ends, what was taken in it and not given back."""

    __slots__ = ("_before",)

    def __enter__(self) -> None:
        self._before = mark()

    def __exit__(self, kind: object, error: BaseException | None, at: TracebackType | None) -> None:
        if error is not None:
            give_back(self._before, error)
