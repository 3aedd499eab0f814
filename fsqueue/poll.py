"""Poll: the loop of a worker in the same process, as an iterator of leased tasks; and waiting for its end."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from fsqueue import inspection
from fsqueue.errors import LeaseLost
from fsqueue.store import Store
from fsqueue.task import Status

if TYPE_CHECKING:
    from fsqueue.queue import Queue
    from fsqueue.task import LeasedTask


WAIT_S = (0.05, 5.0)
"""Shortest and longest pause between two looks of `wait`."""


def wait(store: Store, timeout_s: float | None, poll: Callable[[Status], None] | None) -> Status:
    """Look until nothing is waiting, delayed or leased, or `timeout_s` is over; the last status."""
    clock = store.clock
    until = None if timeout_s is None else clock.monotonic() + timeout_s
    pause, longest = WAIT_S
    while True:
        status = inspection.status(store)
        if poll is not None:
            poll(status)
        left = longest if until is None else until - clock.monotonic()
        if status.drained or left <= 0:
            return status
        clock.sleep(min(pause, left))
        pause = min(pause * 1.3, longest)


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
