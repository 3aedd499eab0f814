"""Lease from the queues of a group: once, waiting, or in a loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from fsqueue.arguments import leased
from fsqueue.clock import Clock
from fsqueue.errors import LeaseLost
from fsqueue.filesystem import resources
from fsqueue.format.priority import Rank
from fsqueue.groups.drain_check import (
    BUSY_S,
    GroupDrainCheck,
    Source,
    barriers_due_s,
    groups_of,
    pass_barriers,
)
from fsqueue.groups.members import Members
from fsqueue.groups.queue import GroupQueue, drained_behind_barriers
from fsqueue.leased_task import LeasedTask
from fsqueue.poll import Errors, Poll, Prefetched, Until, put_back_dropped
from fsqueue.protocol.queue_watches import Several, Watch
from fsqueue.protocol.waiting import tell_of_end, wait
from fsqueue.queue import Queue
from fsqueue.storage.store import Store


class GroupSource:
    """Queues and groups as a `TaskSource`: the most urgent task of all, in turn among equals. One thread's."""

    def __init__(
        self,
        sources: Iterable[Source],
        lease_ms: int | None,
        up_to: Rank | None = None,
        holder: dict[str, Any] | None = None,
    ) -> None:
        def make_watch(queue: Queue) -> Watch:
            queue._leaser.holder = holder
            return Watch(queue._leaser, lease_ms, up_to, may_go=isinstance(queue, GroupQueue))

        given = list(sources)
        self._groups = groups_of(given)
        self._clock = Clock()
        self._barriers_at = self._clock.monotonic() + BUSY_S
        self._members = Members(given, make_watch, self._clock)
        self._several = Several(self._members.watches)

    @property
    def stores(self) -> list[Store]:
        """Return the queues that are open."""
        return [queue.store for queue in self._members.queues]

    @property
    def is_deaf(self) -> bool:
        """Return whether to sleep without listening for notifications."""
        return self._several.is_deaf

    def look(self, n: int) -> list[LeasedTask]:
        """Return up to `n` tasks. The first [] comes after a full look at each queue.

        Those in which nothing is found make room for others, until each was open.
        """
        got = self._look(n)
        if got and self._clock.monotonic() < self._barriers_at:
            return got
        self._barriers_at = self._clock.monotonic() + BUSY_S
        if not pass_barriers(self._groups) or got:
            return got
        return self._look(n)

    def _look(self, n: int) -> list[LeasedTask]:
        members, rounds = self._members, 0
        while True:
            rounds += 1
            if members.refresh():
                self._several.change(members.watches)
            got = self._several.look(n)
            if got or not members.goes_on or rounds > members.rounds_max:
                return got

    def due_s(self) -> float:
        """Return in how many seconds to look again at the latest."""
        return min(self._several.due_s(), self._members.due_s(), barriers_due_s(self._groups))


class _Lessor:
    """What a loop over a group asks of its queue."""

    def __init__(self, source: GroupSource) -> None:
        self._source = source

    def _lease_waiting(self, n: int, lease_ms: int | None, stop: Callable[[], bool]) -> list[LeasedTask]:
        put_back_dropped()
        with resources.Scope():
            return wait(self._source, n, math.inf, stop)

    def release(self, tasks: list[LeasedTask], delay_s: float = 0) -> None:
        """Put tasks back, each into its own queue. LeaseLost if some held no longer."""
        lost: LeaseLost | None = None
        for queue in dict.fromkeys(task.queue for task in leased(tasks)):
            try:
                queue.release([task for task in tasks if task.queue == queue], delay_s)
            except LeaseLost as error:
                lost = error
        if lost is not None:
            raise lost


class GroupPoll(Poll):
    """An iterator over leased tasks of a group's queues, until all are drained or for ever: see `Poll`."""

    def __init__(
        self,
        sources: list[Source],
        lease_ms: int | None,
        prefetch: int,
        until: Until,
        errors: Errors,
        stop_after_failures: int | None,
    ) -> None:
        source = GroupSource(sources, lease_ms)
        lessor = _Lessor(source)
        ahead = Prefetched(lessor, lease_ms, False, errors, stop_after_failures)  # type: ignore[arg-type]
        super().__init__(lessor, ahead, prefetch, "forever")  # type: ignore[arg-type]  # what it is asked for, it has
        self._until = until
        if until == "drained":
            self._stop = _EndOfGroup(GroupDrainCheck(sources), source, ahead)


class _EndOfGroup:
    """Tell whether all queues are drained. If the loop has had tasks, the first "yes" tells the idle workers of it."""

    def __init__(self, is_drained: GroupDrainCheck, source: GroupSource, ahead: Prefetched) -> None:
        self._is_drained, self._source, self._ahead = is_drained, source, ahead

    def __call__(self) -> bool:
        if not drained_behind_barriers(self._is_drained, self._source._groups):
            return False
        if self._ahead.has_leased:
            self._ahead.has_leased = False
            tell_of_end(self._source.stores)
        return True
