"""The meaning of taskstore's calls on a group of queues: tasks with numbers as ids (docs/decisions/0053).

Values first. The class `Taskstore` that acts on them comes next, and is not here yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NumberedTask:
    """A task as a client of taskstore sees it. Nothing in it ever changes: a change ends its id, and gives a new one.

    `group` is the name of its queue. `data`: its payload, if that is text; else the payload as JSON text.
    `available_ms`: Unix milliseconds, on the file server's clock, from which no client owns it; `owner` owns it until
    then.
    """

    id: int
    group: str
    data: str
    available_ms: int
    owner: int


@dataclass(frozen=True, slots=True)
class Add:
    """A task to add. `available_ms`: Unix milliseconds; 0 or less counts from now: -60000 is in a minute."""

    group: str
    data: str = ""
    available_ms: int = 0


@dataclass(frozen=True, slots=True)
class Change:
    """What a task is to become: all of it, so what is left out is lost. `available_ms`: as in `Add`."""

    id: int
    data: str = ""
    available_ms: int = 0


class Refused(Exception):
    """Nothing was done. Each list has all ids that are in the way, in the order of the request, as taskstore says.

    `changes`, `deletes` and `depends`: tasks of these lists that are not there under this id, or not any more. `owned`:
    tasks to change or delete that another client owns. `bugs`: sentences on what can never be done.
    """

    def __init__(
        self,
        *,
        changes: Sequence[int] = (),
        deletes: Sequence[int] = (),
        depends: Sequence[int] = (),
        owned: Sequence[int] = (),
        bugs: Sequence[str] = (),
    ) -> None:
        self.changes, self.deletes, self.depends = list(changes), list(deletes), list(depends)
        self.owned, self.bugs = list(owned), list(bugs)
        super().__init__(
            f"Nothing was done. changes: {self.changes}, deletes: {self.deletes}, depends: {self.depends}, "
            f"owned: {self.owned}, bugs: {self.bugs}"
        )
