"""Refuse the system calls that a forked child would make in its parent's place (docs/design.md, section 11).

A signal handler may fork within a call of fsqueue, between any two instructions. A child that comes back from there
would repeat what its parent does: publish what that has staged, or remove it. So in such a child, and in no other
process, the modules of this layer get another `os`. It asks for each call whose it is. Whatever opens a file goes
through `resources.opened`, whose list of fresh descriptors asks the same. What the parent had open for writing leads
nowhere by then: see `resources`.

What fails in such a call only because a child makes it is logged by nobody: all is well with the queue.
"""

from __future__ import annotations

import logging
import sys
from functools import partial
from typing import Any

from fsqueue import forks
from fsqueue.filesystem import resources

HARMLESS = frozenset(
    ("close", "dup2", "fspath", "fsencode", "fsdecode", "fstat", "strerror", "getpid", "geteuid", "readlink", "urandom")
)
"""Functions of `os` that change nothing on disk, and those that clean-up needs to close a descriptor."""
_LAYER = __name__.rpartition(".")[0] + "."


class RefusingOs:
    """An `os` that ends the calls of the parent with ForkedInCall, and makes those of the child."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._real, name)
        if not callable(found) or isinstance(found, type) or name in HARMLESS:
            return found
        return partial(_unless_refused, found)


def _unless_refused(call: Any, *args: Any, **kwargs: Any) -> Any:
    resources.refuse_the_parents()
    return call(*args, **kwargs)


def _is_the_childs_own(record: logging.LogRecord) -> bool:
    """Return whether to log a record: not what the parent's call says in the child."""
    return not forks.is_of_the_parent()


class Layer:
    """Stand for the modules of this layer that make system calls: one object for all, which forks call."""

    def __init__(self) -> None:
        forks.register(self, Layer.after_fork)

    def after_fork(self) -> None:
        """Give the modules an `os` that refuses, in a child that was forked within a call of fsqueue, and no log."""
        if not forks.is_within_call():
            return
        logging.getLogger("fsqueue").addFilter(_is_the_childs_own)
        for name, module in list(sys.modules.items()):
            real = getattr(module, "os", None) if name.startswith(_LAYER) and name != __name__ else None
            if real is not None and not isinstance(real, RefusingOs):
                vars(module)["os"] = RefusingOs(real)
