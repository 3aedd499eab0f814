"""What a queue and a group of a gateway have in common: their address, the wire to it, and what waits for their end."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Self

from fsqueue.client.values import made
from fsqueue.client.wire import Answer, Wire
from fsqueue.format.models import Status
from fsqueue.groups import drain_check


class RemoteBase(ABC):
    """A queue or a group of a gateway: a wire leads to it. It is equal to another one with its address."""

    _wire: Wire

    @property
    @abstractmethod
    def url(self) -> str:
        """Return the address of the queue or group, as `connect` takes it."""

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
