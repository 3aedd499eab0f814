"""The future of an executor's call: one of `concurrent.futures`, which asks the queue where that one asks a thread."""

from __future__ import annotations

import concurrent.futures
import threading
from typing import Any, Protocol

from fsqueue.errors import FsqueueError
from fsqueue.format.models import TaskRef
from fsqueue.interruptions import suppress


class Calls(Protocol):
    """The calls of an executor: what a future asks of them."""

    has_gathered: bool

    def hurry(self) -> None:
        """Insert at once what was gathered."""

    def cancel(self, future: TaskFuture) -> bool:
        """Cancel a call, unless a worker holds it or it has ended."""


class ResultUnpacker(Protocol):
    """The pickled call of a future: it unpickles the result."""

    def unpack(self, given: Any) -> tuple[Any, BaseException | None]:
        """Return what the call has returned, and what it has raised instead."""

    def end(self) -> None:
        """Let go of the call's files: it has ended."""


class TaskFuture(concurrent.futures.Future[Any]):
    """The future of a call. `ref`: the reference to its task, once that is in the queue, which outlives this process.

    A call that a worker holds cannot be cancelled, though the worker may not have begun it. `running` asks the queue.
    """

    def __init__(self, calls: Calls, pickled: ResultUnpacker | None = None) -> None:
        super().__init__()
        self._calls, self._pickled = calls, pickled
        self.ref: TaskRef | None = None
        if pickled is not None:
            self.add_done_callback(lambda _: pickled.end())

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the call, and return what it has returned, as JSON has it. For `timeout` seconds at most.

        TimeoutError, CancelledError; TaskFailed if the call has raised, with the traceback that the worker told.
        """
        if self._calls.has_gathered:
            self._calls.hurry()
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the call, and return what `result` would raise; None if it has returned."""
        if self._calls.has_gathered:
            self._calls.hurry()
        return super().exception(timeout)

    def cancel(self) -> bool:
        """Cancel the call, unless a worker holds it or it has ended. Return whether it is cancelled."""
        return self.cancelled() or (not self.done() and self._calls.cancel(self))

    def running(self) -> bool:
        """Return whether a worker holds the call now: a hint, for which the queue is asked. False if it cannot be."""
        if self.done() or self.ref is None:
            return False
        with suppress(FsqueueError):
            return self.ref.state() == "leased"
        return False

    def has_returned(self, value: Any) -> None:
        """Take in that the task is completed, with a result, and tell those who wait."""
        error = None
        if self._pickled is not None:
            value, error = self._pickled.unpack(value)
        if error is None:
            self.set_result(value)
        else:
            self.set_exception(error)

    def was_cancelled(self) -> None:
        """Take in that the task is cancelled, and tell those who wait."""
        if super().cancel():
            self.set_running_or_notify_cancel()

    def leave_to_parent(self, error: Exception) -> None:
        """In a forked child: end with an error, and call no callback. Threads of the parent may hold its lock."""
        self._condition = threading.Condition()
        self._done_callbacks.clear()  # type: ignore[attr-defined]
        self._waiters.clear()
        if not self.done():
            self.set_exception(error)
