"""Have a forked child let go of what its parent held (docs/design.md, section 11).

A forked child has a copy of every object, and the one thread that forked. What another thread was doing ends there:
its mutexes stay taken, its files stay open, and a lock of an open file stays taken as long as any process has that
open. What the parent has leased or staged is known to both. So each object that holds such a thing registers itself
here. A new process begins by having them all let go, in the order in which they were registered.

What goes on in the thread that forked asks whose it is: it notes `depth` when it begins, and compares.

A signal handler may fork between any two instructions, so also within fsqueue's own code. A child that comes back from
there must not do what its parent does. So it remembers the frames that were on the stack of the thread that forked.
`is_of_the_parent` tells by them whether a call comes from code that its parent had begun.
"""

from __future__ import annotations

import logging  # noqa: F401  # its hook must be registered before those below: see `_before`
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from importlib import import_module
from types import FrameType, ModuleType, TracebackType
from typing import Any, TypeVar

from fsqueue.weak_table import WeakTable

T = TypeVar("T")

depth = 0
"""How many forks lie between this process and the one that imported fsqueue: cheaper to ask for than its number."""

IMPORT_S = 60.0
"""Maximum number of seconds that a fork waits for an import that is under way: see `held_off`."""
TRIES = 3
"""Maximum number of times that a holder that fails is asked to let go."""

OURS = ("fsqueue", "fsqueue_cli")
"""The packages whose calls a child must not go on with."""

_SUSPENDED = 0x20 | 0x80 | 0x200
"""Flags of the code of generators and coroutines: CO_GENERATOR and others of `inspect`, which is slow to import."""

_begun: frozenset[FrameType] = frozenset()
"""In a child that was forked within a call of fsqueue: the frames on the stack at that moment, those of others, too."""
_has_coroutines = False
"""Whether one of them belongs to a generator or a coroutine. It may leave the stack, and come back."""

_holders: WeakTable[Any, Callable[[Any], object]] = WeakTable()
_importing = threading.RLock()


def register(holder: T, let_go: Callable[[T], object]) -> None:
    """Have `let_go(holder)` called in each process that is forked from now on, as long as the holder lives.

    A second call of it must do no harm.
    """
    _holders[holder] = let_go


@contextmanager
def held_off() -> Iterator[None]:
    """Let no fork begin while a block imports a module.

    A module that another thread is importing stays locked in a forked child, for ever: Python gives only the lock of
    all imports back. The child would wait at its own import of it, or of the modules that this one imports.
    """
    with _importing:
        yield


class Late:
    """Stand for a module of which few programs use anything. Import it when the first of its names is asked for.

    A module that uses it imports it for type checkers alone, and has a `Late` of the same name for the program.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._module: ModuleType | None = None

    def __getattr__(self, attribute: str) -> Any:
        if self._module is None:
            with held_off():
                self._module = import_module(self._name)
        return getattr(self._module, attribute)


def is_within_call() -> bool:
    """Return whether this process was forked within a call of fsqueue that may still be on the stack of its thread."""
    return bool(_begun)


def is_of_the_parent() -> bool:
    """Return whether the caller belongs to a call that a parent of this process had begun before the fork.

    The innermost frame that was on the stack at the fork is the one that has gone on since. What is below it is new.
    If that frame is fsqueue's, or one of the standard library's that fsqueue has called, then the call is the parent's.
    If it is one of user code, the child makes a call of its own: a signal handler or a generator of payloads may do so.
    """
    global _begun
    if not _begun:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame not in _begun:
        frame = frame.f_back
    if frame is None:  # another thread, or an event loop
        return False
    found, is_beneath = _is_ours(frame), False
    while frame is not None and not is_beneath:
        is_beneath = _owner(frame) in OURS
        frame = frame.f_back
    if not is_beneath and not _has_coroutines:
        _begun = frozenset()  # the parent's calls have ended here
    return found


def is_from_user_code(at: TracebackType | None) -> bool:
    """Return whether an exception comes from user code that fsqueue has called, a signal handler perhaps."""
    while at is not None:
        owner = _owner(at.tb_frame)
        if owner not in OURS and owner not in sys.stdlib_module_names:
            return True
        at = at.tb_next
    return False


def _is_ours(frame: FrameType | None) -> bool:
    """Return whether code of fsqueue runs in a frame: its own, or what it calls of the standard library."""
    while frame is not None:
        owner = _owner(frame)
        if owner in OURS:
            return True
        if owner not in sys.stdlib_module_names:
            return False
        frame = frame.f_back
    return False


def _owner(frame: FrameType) -> str:
    """Return the package whose code runs in a frame."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]


def _remember(frame: FrameType | None) -> None:
    """Remember the frames of the thread that has forked, if calls of fsqueue are among them.

    What fsqueue forks itself goes on with that on purpose.
    """
    global _begun, _has_coroutines
    frames: list[FrameType] = []
    if frame is not None and _owner(frame) not in OURS:
        while frame is not None:
            frames.append(frame)
            frame = frame.f_back
    is_within = any(_owner(one) in OURS for one in frames)
    _begun = frozenset(frames if is_within else ())
    _has_coroutines = any(one.f_code.co_flags & _SUSPENDED for one in _begun if _owner(one) in OURS)


def _before() -> None:
    """Wait for an import that is under way. It may ask for a logger, whose lock the hook of `logging` takes.

    Hooks of this kind run in reverse order: `logging`, which is imported first, takes its lock after this.
    """
    _importing.acquire(timeout=IMPORT_S)


def _in_parent() -> None:
    with suppress(RuntimeError):  # it was waited for in vain
        _importing.release()


def _in_child() -> None:
    global depth, _importing
    depth += 1
    _remember(sys._getframe(1))
    _importing = threading.RLock()
    errors = [error for holder, let_go in _holders.items() if (error := _tried(let_go, holder)) is not None]
    if errors:
        raise errors[0]  # Python reports it, and goes on


def _tried(let_go: Callable[[T], object], holder: T) -> BaseException | None:
    """Have a holder let go. If that fails, or a signal handler ends it, begin again; return the error of the last try.

    What one holder cannot let go of keeps no other from it.
    """
    failed: BaseException | None = None
    for _ in range(TRIES):
        try:
            let_go(holder)
            return None
        except BaseException as error:
            failed = error
    return failed


os.register_at_fork(before=_before, after_in_parent=_in_parent, after_in_child=_in_child)
