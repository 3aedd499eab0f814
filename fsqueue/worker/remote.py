"""Queues of a gateway as what a worker takes tasks from: no doorbell, and no log that the worker could read."""

from __future__ import annotations

import math
import time
from typing import Any, Protocol, runtime_checkable

from fsqueue.format.layout import Settings
from fsqueue.groups.drain_check import Elsewhere
from fsqueue.leased_task import LeasedTask

LOOK_S = 2.0
"""How long a look waits at the gateway for a task. A worker that is told to end waits for it."""


@runtime_checkable
class RemoteSource(Elsewhere, Protocol):
    """A queue of a gateway, as `fsqueue.connect` returns it, or queues of its group: what a worker asks of them beside
    a task's verbs.
    """

    @property
    def settings(self) -> Settings:
        """Return its settings, which it is asked for; of a group those that its queues begin with."""

    def lease(self, n: int = 1, *, lease_s: float | None = None, wait_s: float = 0) -> list[Any]:
        """Lease up to `n` tasks."""

    def is_drained(self) -> bool:
        """Return whether nothing is waiting, delayed or leased."""


class RemoteWatch:
    """Poll queues of a gateway, as `Watch` polls one on a filesystem. The gateway does the waiting."""

    is_deaf = False

    def __init__(self, source: RemoteSource, lease_s: float | None) -> None:
        self._source, self._lease_s = source, lease_s
        self._has_looked = self.has_waited = False
        """`has_waited`: whether the last look was a pause, too. A gateway that ends answers at once."""

    def look(self, n: int) -> list[LeasedTask]:
        """Return up to `n` tasks. The first look waits for none, so that a queue without tasks is soon known."""
        wait_s, self._has_looked = LOOK_S if self._has_looked else 0, True
        began = time.monotonic()
        got = self._source.lease(n, lease_s=self._lease_s, wait_s=wait_s)
        self.has_waited = time.monotonic() - began >= LOOK_S / 2
        return got

    def due_s(self) -> float:
        """Return infinity: it does not know what is delayed."""
        return math.inf
