"""Share the tasks of one look among several holders: each gets leases of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fsqueue.format.movements import Record, lease
from fsqueue.leased_task import LeasedTask

Holder = dict[str, Any]
"""The fields by which a lease names its worker."""


@dataclass(eq=False, slots=True)
class Share:
    """Note how many tasks one holder wants of a look, `n` at most, and which leases it has got."""

    n: int
    holder: Holder
    left: int = 0
    """Number of further tasks that the holder wants."""
    leases: set[str] = field(default_factory=set)
    """The leases that the holder has got."""

    def __post_init__(self) -> None:
        assert self.n > 0, "a holder that wants no task"
        self.left = self.n


@dataclass(eq=False, slots=True)
class NewLease:
    """A lease that is about to be recorded. `several`: its call may hold more tasks."""

    id: str
    tasks: list[int]
    holder: Holder
    several: bool
    share: Share | None = None
    offset: int = 0
    """Offset of the lease's record in the log."""

    def record(self, at: int, until: int) -> Record:
        """Return the record that gives the tasks to the lease."""
        return lease(at, self.id, self.tasks, until, self.holder, self.several)

    def hand_out(self, tasks: list[LeasedTask]) -> None:
        """Note which tasks of this lease the caller gets. Damaged tasks are not among them."""
        if self.share is not None:
            assert len(tasks) <= self.share.left, "a holder gets more tasks than it wants"
            self.share.left -= len(tasks)
            self.share.leases.add(self.id)


class Shares:
    """Share the tasks that one call leases among several holders. The first holder comes first."""

    def __init__(self, wanted: Sequence[tuple[int, Holder]]) -> None:
        self._shares = [Share(n, holder) for n, holder in wanted]

    @property
    def n(self) -> int:
        """Return how many tasks all holders want together."""
        return sum(share.n for share in self._shares)

    def next_leases(self, tasks: list[int], draw: Callable[[], str], alone: bool) -> list[NewLease]:
        """Return the leases of tasks that were chosen: no more than are still wanted.

        Nothing is noted: recording them may fail, and be tried again. `alone`: the task has to go alone.
        """
        leases, begin = [], 0
        for share in self._shares:
            if share.left and begin < len(tasks):
                mine = tasks[begin : begin + share.left]
                leases.append(NewLease(draw(), mine, share.holder, share.n > 1 and not alone, share))
                begin += len(mine)
        return leases

    def parts(self, tasks: Sequence[LeasedTask]) -> list[list[LeasedTask]]:
        """Return the tasks of each holder."""
        return [[task for task in tasks if task.lease in share.leases] for share in self._shares]
