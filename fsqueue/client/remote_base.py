"""What a queue and a group of a gateway have in common: address, wire, the wait for their end, the loop over tasks."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol, Self

from fsqueue.client.values import made
from fsqueue.client.wire import Answer, Wire, in_steps
from fsqueue.clock import duration_ms
from fsqueue.format.models import Status
from fsqueue.groups import drain_check
from fsqueue.leased_task import LeasedTask
from fsqueue.poll import Errors, Poll, Prefetched, Until, check_loop


class RemoteBase(ABC):
    """A queue or a group of a gateway: a wire leads to it. It is equal to another one with its address."""

    _wire: Wire

    @property
    @abstractmethod
    def url(self) -> str:
        """Return its address, as `connect` takes it."""

    @abstractmethod
    def _ask(self, verb: str, /, **given: Any) -> Any:
        """Return what a verb answers. `given`: its fields by name."""

    @abstractmethod
    def _states(self, found: dict[str, Any]) -> dict[str, str]:
        """Return by the address of each queue, of what `wait` answers, what is another text once it was purged."""

    def is_drained(self) -> bool:
        """Return whether at one instant nothing was waiting, delayed or leased."""
        return bool(self._ask("is_drained")["drained"])

    def drained_proof(self) -> bytes | None:
        """Return what the gateway's look has found, if nothing is waiting, delayed or leased; otherwise None.

        Two that are equal prove that nothing was left between the two.
        """
        proof = Answer(self._ask("is_drained"))["proof"]
        return None if proof is None else bytes.fromhex(proof)

    def counted(self) -> tuple[Status, dict[str, str]]:
        """Return the counts, of a group their sum; and `_states`. A queue that is not there has none."""
        found = Answer(self._ask("wait", timeout_s=0))
        return made(Status, found), self._states(found)

    def _wait_together(
        self, given: Sequence[object], timeout_s: float | None, poll: Callable[[list[Status]], object] | None
    ) -> list[Status]:
        return drain_check.wait(given, timeout_s, poll)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return self.url == other.url if isinstance(other, type(self)) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.url)

    def close(self) -> None:
        """Close this thread's connection, which a group and its queues share. Leases go on; it may be used again."""
        self._wire.drop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


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
