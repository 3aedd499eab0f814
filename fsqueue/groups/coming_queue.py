"""Look for tasks in a queue that may not be there: it comes into being, is deleted, and comes again meanwhile."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Protocol

from fsqueue.errors import QueueNotFound
from fsqueue.filesystem import resources
from fsqueue.interruptions import let_out
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol.waiting import IdlePoller
from fsqueue.storage.store import Store


class MayCome(Protocol):
    """A queue of a group."""

    store: Store

    def _opens(self) -> bool:
        """Return whether it has come into being, and was not deleted. GroupNotFound."""

    def _let_go(self) -> None:
        """Forget a queue that was deleted. Another one may come into being, or has."""


class ComingQueue:
    """A queue of a group as a `TaskSource`. While it is not there, it has no task. Errors are fsqueue's own.

    `poller`: makes what looks at it, once it is there.
    """

    def __init__(self, queue: MayCome, poller: Callable[[], IdlePoller]) -> None:
        self._queue, self._make_poller = queue, poller
        self._poller: IdlePoller | None = None
        """What looks at it; None while it is not there, as far as is known."""

    @property
    def stores(self) -> Sequence[Store]:
        """Return the queue, if it is there."""
        return [] if self._poller is None else self._poller.stores

    @property
    def is_deaf(self) -> bool:
        """Return whether to sleep without listening for notifications."""
        return self._poller is None or self._poller.is_deaf

    def look(self, n: int) -> list[LeasedTask]:
        """Return up to `n` tasks. GroupNotFound."""
        while self._queue._opens():
            try:
                store = self._queue.store
                with resources.Scope():
                    self._poller = self._poller or self._make_poller()
                    return self._poller.look(n)
            except QueueNotFound:  # it was deleted; perhaps another one has come into being
                pass
            except OSError as error:
                let_out(error)
                failure = store.explain(error, "leasing")
                if not isinstance(failure, QueueNotFound):
                    raise failure from error
            self._poller = None
            self._queue._let_go()
        self._poller = None
        return []

    def due_s(self) -> float:
        """Return in how many seconds a task will be available that was seen and is not available yet."""
        return math.inf if self._poller is None else self._poller.due_s()
