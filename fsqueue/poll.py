"""Poll: the loop of a worker in the same process, as an iterator of leased tasks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from fsqueue import inspection
from fsqueue.errors import LeaseLost

if TYPE_CHECKING:
    from fsqueue.queue import Queue
    from fsqueue.task import LeasedTask


class Prefetched:
    """The tasks that are leased and not handed out yet. Completing one leases the next in the same append."""

    def __init__(self, queue: Queue, lease_ms: int, exchange: bool) -> None:
        self.queue = queue
        self.lease_ms = lease_ms
        self.tasks: deque[LeasedTask] = deque()
        self.open = exchange
        """Whether a completion should lease the next; no longer, once the loop was left."""

    def complete(self, task: LeasedTask) -> bool:
        """Complete `task` and lease another; False if that was not possible in one step, and nothing was done."""
        if not self.open or self.tasks:
            return False
        got = self.queue._leaser.exchange(task, self.lease_ms)
        if got is None:
            return False
        self.add(got)
        return True

    def add(self, tasks: list[LeasedTask]) -> None:
        """Take leased tasks in."""
        for task in tasks:
            task.poll = self
        self.tasks.extend(tasks)


class Poll:
    """An iterator over leased tasks, until the queue is drained or for ever.

    Leaving the loop, closing it or leaving its `with` puts back what was leased ahead.
    """

    def __init__(self, queue: Queue, lease_ms: int, prefetch: int, forever: bool) -> None:
        self._queue = queue
        self._ahead = Prefetched(queue, lease_ms, exchange=prefetch == 1)
        self._prefetch = prefetch
        self._stop: Callable[[], bool] = (lambda: False) if forever else inspection.DrainCheck(queue.store)

    def __iter__(self) -> Poll:
        return self

    def __next__(self) -> LeasedTask:
        ahead = self._ahead
        while not ahead.tasks:
            ahead.add(self._queue._lease_waiting(self._prefetch, ahead.lease_ms, self._stop))
            if not ahead.tasks and self._stop():
                self.close()
                raise StopIteration
        return ahead.tasks.popleft()

    def close(self) -> None:
        """Put back what was leased ahead."""
        self._ahead.open = False
        tasks, self._ahead.tasks = list(self._ahead.tasks), deque()
        if tasks:
            try:
                self._queue.release(tasks)
            except LeaseLost:
                pass  # whoever has them now, it is not us

    def __enter__(self) -> Poll:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        try:
            self.close()
        except Exception:  # at the end of the interpreter: the leases run out by themselves
            pass
