"""Keep values of objects for as long as the objects live, so that no code of Python runs when one of them dies.

An object may die at any instruction: between two lines of a call, or in the garbage collector. Python passes over an
exception that is raised in code that runs then. A signal handler may run there, and what it raises would be lost: the
user's timeout or Ctrl-C. `WeakSet`, `WeakMethod`, `finalize` and the dictionaries of the module `weakref` have such
code, written in Python. Here it is C code, before which no handler runs.
"""

from __future__ import annotations

import weakref
from functools import partial
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class WeakTable(Generic[K, V]):
    """Values by the identity of objects: equal objects are several. An object that has died is not in it.

    Threads may share a table.
    """

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[K], V]] = {}

    def __setitem__(self, key: K, value: V) -> None:
        number = id(key)  # of no other object while this one lives
        self._entries[number] = weakref.ref(key, partial(self._entries.pop, number)), value

    def get(self, key: K) -> V | None:
        """Return an object's value; None if it has none."""
        entry = self._entries.get(id(key))
        return entry and entry[1]

    def items(self) -> list[tuple[K, V]]:
        """Return the objects that live, and their values, in the order in which they were put in."""
        return [(key, value) for reference, value in [*self._entries.values()] if (key := reference()) is not None]

    def living(self) -> list[K]:
        """Return the objects that live, in the order in which they were put in."""
        return [key for key, _ in self.items()]

    def clear(self) -> None:
        """Take all objects out."""
        self._entries.clear()
