"""Have a forked child let go of what its parent held (docs/design.md, section 11).

A forked child has a copy of every object, and the one thread that forked. What another thread was doing ends there:
its mutexes stay taken, its files stay open, and a lock of an open file stays taken as long as any process has that
open. What the parent has leased or staged is known to both. So each object that holds such a thing registers itself
here. A new process begins by having them all let go, in the order in which they were registered.

What goes on in the thread that forked asks whose it is: it notes `depth` when it begins, and compares.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

T = TypeVar("T")

depth = 0
"""How many forks lie between this process and the one that imported fsqueue: cheaper to ask for than its number."""

IMPORT_S = 60.0
"""A fork waits so long, at most, for an import that is under way: see `held_off`."""
TRIES = 3
"""So often, at most, a holder that fails is asked to let go."""


_holders: dict[int, tuple[weakref.ref[Any], Callable[[Any], object]]] = {}
_importing = threading.RLock()


def register(holder: T, let_go: Callable[[T], object]) -> None:
    """Have `let_go(holder)` called in each process that is forked from now on, as long as the holder lives.

    A second call of it must do no harm.
    """
    key = id(holder)
    _holders[key] = weakref.ref(holder, lambda _: _holders.pop(key, None)), let_go


@contextmanager
def held_off() -> Iterator[None]:
    """Let no fork begin while a block imports a module.

    A module that another thread is importing stays locked in a forked child, for ever: Python gives only the lock of
    all imports back. The child would wait at its own import of it, or of the modules that this one imports.
    """
    with _importing:
        yield


def _before() -> None:
    _importing.acquire(timeout=IMPORT_S)


def _in_parent() -> None:
    with suppress(RuntimeError):  # it was waited for in vain
        _importing.release()


def _in_child() -> None:
    global depth, _importing
    depth += 1
    _importing = threading.RLock()
    held = [(holder, let_go) for reference, let_go in list(_holders.values()) if (holder := reference()) is not None]
    errors = [error for holder, let_go in held if (error := _tried(let_go, holder)) is not None]
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
