"""A loop over a gateway's queue: `Poll`, but that the gateway does the waiting."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from fsqueue.client.wire import in_steps
from fsqueue.clock import duration_ms
from fsqueue.leased_task import LeasedTask
from fsqueue.poll import Errors, Poll, Prefetched, Until, check_loop

LOOK_S = {"drained": 2.0, "forever": 30.0}
"""How long one request waits for a task. A loop that ends with its queue looks in between whether that is drained."""


class PolledQueue(Protocol):
    """What a loop asks of a gateway's queue."""

    store: Any

    def lease_patiently(self, n: int, lease_s: float | None, wait_s: float) -> list[LeasedTask]:
        """Lease tasks, though the gateway be away for a while."""

    def put_back(self, tasks: Iterable[LeasedTask]) -> None:
        """Put back what was leased ahead."""

    def is_drained(self) -> bool:
        """Return whether nothing is waiting, delayed or leased."""


class _Lessor:
    """What `Poll` asks of its queue."""

    def __init__(self, queue: PolledQueue, look_s: float) -> None:
        self._queue, self._look_s, self.store = queue, look_s, queue.store

    def _lease_waiting(self, n: int, lease_ms: int | None, stop: Callable[[], bool]) -> list[LeasedTask]:
        lease_s = None if lease_ms is None else lease_ms / 1000
        ask = partial(self._queue.lease_patiently, n, lease_s)
        return in_steps(ask, math.inf, lambda got: got or stop(), self._look_s)

    def release(self, tasks: list[LeasedTask], delay_s: float = 0) -> None:
        """Put tasks back."""
        self._queue.put_back(tasks)

    def __repr__(self) -> str:
        return repr(self._queue)


class RemotePoll(Poll):
    """An iterator over leased tasks of a gateway's queue, until it is drained or for ever: see `Poll`."""

    def __init__(
        self,
        queue: PolledQueue,
        lease_s: float | None,
        prefetch: int,
        until: Until,
        errors: Errors,
        stop_after_failures: int | None,
    ) -> None:
        check_loop(prefetch, until, errors, stop_after_failures)
        lease_ms = None if lease_s is None else duration_ms(lease_s, "lease_s", 0.001)
        lessor = _Lessor(queue, LOOK_S[until])
        ahead = Prefetched(lessor, lease_ms, False, errors, stop_after_failures)  # type: ignore[arg-type]
        super().__init__(lessor, ahead, prefetch, "forever")  # type: ignore[arg-type]  # what it is asked for, it has
        self._until = until
        if until == "drained":
            self._stop = queue.is_drained
