"""Lease from the queues of a group: once, waiting, or in a loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from fsqueue.arguments import leased
from fsqueue.clock import Backoff, Clock, Entropy
from fsqueue.errors import LeaseLost
from fsqueue.filesystem import resources
from fsqueue.format.priority import Rank
from fsqueue.groups.drained import GroupDrainCheck, Source
from fsqueue.groups.members import Members
from fsqueue.groups.queue import GroupQueue
from fsqueue.leased_task import LeasedTask
from fsqueue.poll import Errors, Poll, Prefetched, Until, put_back_dropped
from fsqueue.protocol.several import Several, Watch
from fsqueue.protocol.waiting import BELL_S, tell_of_end, tell_pauses
from fsqueue.queue import Queue
from fsqueue.storage import listening


class GroupLeaser:
    """Lease from queues and groups: the most urgent task of all, in turn among equals. One thread's."""

    def __init__(
        self,
        sources: Iterable[Source],
        lease_ms: int | None,
        up_to: Rank | None = None,
        holder: tuple[dict[str, Any], str] | None = None,
    ) -> None:
        self._clock, self._random = Clock(), Entropy().random

        def make_watch(queue: Queue) -> Watch:
            queue._leaser.holder = holder
            return Watch(queue._leaser, lease_ms, up_to, may_go=isinstance(queue, GroupQueue))

        self._members = Members(list(sources), make_watch, self._clock)
        self._several = Several(self._members.watches)

    def lease(self, n: int, wait_s: float, stop: Callable[[], bool] = lambda: False) -> list[LeasedTask]:
        """Return up to `n` tasks; if there are none, look again and again for `wait_s` seconds, or until `stop()`.

        The first [] comes after a full look at each queue; those after it, when nothing told of more.
        """
        clock, members = self._clock, self._members
        deadline, backoff = clock.monotonic() + wait_s, Backoff(BELL_S, self._random)
        rounds = 0
        while True:
            rounds += 1
            if members.refresh():
                self._several.change(members.watches)
            got = self._several.look(n)
            left_s = deadline - clock.monotonic()
            if got:
                return got
            if members.goes_on and rounds <= members.rounds_max:
                continue  # others are opened in place of those in which nothing was found
            if left_s <= 0:
                return got
            stores = [queue.store for queue in members.queues]
            tell_pauses(stores)
            if stop():
                return []
            rounds = 0
            pause_s = max(0.001, min(backoff.next_s(), self._several.due_s(), members.due_s(), left_s))
            if not stores:
                clock.sleep(pause_s)
                continue
            with listening.over([store.doorbell for store in stores], stores[0].clock) as listener:
                listener.sleep(pause_s, self._several.is_deaf)

    def tell_of_end(self) -> None:
        """Notify the idle workers of the open queues that all are drained. A hint."""
        tell_of_end(queue.store for queue in self._members.queues)


class _Lessor:
    """What a loop over a group asks of its queue."""

    def __init__(self, leaser: GroupLeaser) -> None:
        self._leaser = leaser

    def _lease_waiting(self, n: int, lease_ms: int | None, stop: Callable[[], bool]) -> list[LeasedTask]:
        put_back_dropped()
        with resources.Scope():
            return self._leaser.lease(n, math.inf, stop)

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
        leaser = GroupLeaser(sources, lease_ms)
        lessor = _Lessor(leaser)
        ahead = Prefetched(lessor, lease_ms, False, errors, stop_after_failures)  # type: ignore[arg-type]
        super().__init__(lessor, ahead, prefetch, "forever")  # type: ignore[arg-type]  # what it is asked for, it has
        self._until = until
        if until == "drained":
            self._stop = _EndOfGroup(GroupDrainCheck(sources), leaser, ahead)


class _EndOfGroup:
    """Whether all queues are drained. If the loop has had tasks, the first "yes" tells the idle workers of it."""

    def __init__(self, is_drained: GroupDrainCheck, leaser: GroupLeaser, ahead: Prefetched) -> None:
        self._is_drained, self._leaser, self._ahead = is_drained, leaser, ahead

    def __call__(self) -> bool:
        if not self._is_drained():
            return False
        if self._ahead.has_leased:
            self._ahead.has_leased = False
            self._leaser.tell_of_end()
        return True
