"""The calls of one `map`: they have no futures, since nobody but the iterator of their results waits for them.

A future has a lock and a condition of its own. Making and telling these takes longer than reading the result of a small
call. One condition is enough for a `map`: its iterator waits for one call at a time.
"""

from __future__ import annotations

import concurrent.futures
import math
import threading
from typing import Any

from fsqueue.clock import Clock
from fsqueue.format.models import TaskRef


class MappedCalls:
    """The calls of one `map`, in the order of the items. `each`: all of them."""

    def __init__(self, count: int) -> None:
        self.changed = threading.Condition()
        self.waited_for: MappedCall | None = None
        """The call that the iterator waits for. Set before it looks whether that has ended."""
        self.each = [MappedCall(self) for _ in range(count)]
        self._now = Clock().monotonic

    def wait(self, call: MappedCall, timeout: float | None) -> None:
        """Wait until a call has ended. TimeoutError after `timeout` seconds."""
        until = math.inf if timeout is None else self._now() + timeout
        with self.changed:
            self.waited_for = call
            try:
                while not call.has_ended:
                    left_s = until - self._now()
                    if left_s <= 0:
                        raise TimeoutError
                    self.changed.wait(None if left_s == math.inf else left_s)
            finally:
                self.waited_for = None

    def leave_to_parent(self, error: Exception) -> None:
        """In a forked child: end all calls with an error. A thread of the parent may hold the condition's lock."""
        self.changed, self.waited_for = threading.Condition(), None
        for call in self.each:
            if not call.has_ended:
                call.set_exception(error)


class MappedCall:
    """A call of a `map`. The thread of the executor ends it, once. `ref`: its task, once that is in the queue."""

    __slots__ = ("_all", "_error", "_result", "has_ended", "ref")

    def __init__(self, all_calls: MappedCalls) -> None:
        self._all = all_calls
        self._result: Any = None
        self._error: BaseException | None = None
        self.has_ended = False
        self.ref: TaskRef | None = None

    def result(self, timeout: float | None) -> Any:
        """Wait for the call, and return what it has returned. TimeoutError, CancelledError; TaskFailed if it raised."""
        if not self.has_ended:
            self._all.wait(self, timeout)
        if self._error is None:
            return self._result
        try:
            raise self._error
        finally:
            del self  # the error's traceback would hold this call, and this call the error

    def done(self) -> bool:
        """Return whether the call has ended."""
        return self.has_ended

    def has_returned(self, result: Any) -> None:
        """End the call with what it has returned."""
        self._result = result
        self._end()

    def set_exception(self, error: BaseException) -> None:
        """End the call with an error."""
        self._error = error
        self._end()

    def was_cancelled(self) -> None:
        """End the call: its task is cancelled."""
        self.set_exception(concurrent.futures.CancelledError())

    def _end(self) -> None:
        """Note the end. Wake the iterator if it waits for this call: it looks again before it sleeps."""
        self.has_ended = True
        if self._all.waited_for is self:
            with self._all.changed:
                self._all.changed.notify_all()
