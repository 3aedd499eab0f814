"""Ask several queues and groups of which one may lie on a file server that does not answer.

Each is asked in a thread of its own, which is left if it does not come back in time. Such a thread does not keep the
process from ending.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Any, Generic, TypeVar

import fsqueue

from . import process

T = TypeVar("T")

OPEN_S = 3.0
"""How long to wait until one is open, before a command goes on with the others."""

SILENT_LOOKS = 3
"""Number of looks in a row, `process.TICK_S` apart, that find a thread waiting before its file server is silent: fewer
than `process.SILENT_TICKS`, after which the command would say that it still waits."""


class PendingAnswer(Future[T]):
    """What a call returns or raises that asks the file server of a path. A thread of its own makes the call."""

    def __init__(self, path: str, asks: Callable[[], T]) -> None:
        super().__init__()
        self.path, self._asks = path, asks
        self.began = time.monotonic()
        self._thread = threading.Thread(target=self._ask, name=f"fsqueue-ask-{path}", daemon=True)
        self._thread.start()

    @property
    def thread(self) -> int:
        """Return the number of its thread, as the kernel knows it."""
        return self._thread.native_id or 0

    def _ask(self) -> None:
        try:
            with process.question_to(self.path):
                found = self._asks()
        except BaseException as error:  # also SystemExit: `result` raises it
            self.set_exception(error)
        else:
            self.set_result(found)


class AskedAgain(Generic[T]):
    """What is asked for again and again, each time in a thread of its own: nobody waits for it."""

    def __init__(self, first: PendingAnswer[T], asks: Callable[[], T]) -> None:
        self._answer, self._asks = first, asks
        self._error: Exception | None = None

    def result(self) -> T:
        """Return what it is, or raise the error of the last answer, and then ask again. Only once the first is done."""
        try:
            if self._error is None or self._answer.done():
                return self._answer.result()
        except Exception as error:
            self._error = error
            self._answer = PendingAnswer(self._answer.path, self._asks)
        raise self._error


def ask(path: str, asks: Callable[[], T], within_s: float | None) -> PendingAnswer[T]:
    """Call `asks`. Return what has the answer, or will have it: `done()` tells. `within_s`: None to wait for it."""
    answer = PendingAnswer(path, asks)
    wait([answer], within_s)
    return answer


def wait_for_any(answers: Iterable[PendingAnswer[Any]], within_s: float = math.inf) -> None:
    """Wait for one of the file servers that have not answered, for `within_s` at most."""
    wait(answers, min(within_s, threading.TIMEOUT_MAX), return_when=FIRST_COMPLETED)


def wait_while_answering(answers: Iterable[PendingAnswer[T]]) -> None:
    """Wait for all, but for those whose file servers do not answer. A slow answer is one."""
    pending, waits = list(answers), dict[int, tuple[int, int]]()
    while pending and not all(waits.get(one.thread, (0, 0))[0] >= SILENT_LOOKS for one in pending):
        wait(pending, process.TICK_S)
        pending = [one for one in pending if not one.done()]
        waits = process.look(waits)
    process.leave(one.thread for one in pending)


def no_answer(path: str) -> fsqueue.QueueNotFound:
    """Return what is raised, once all else is told, if a file server does not answer."""
    return fsqueue.QueueNotFound(
        f"{path} does not answer, and is left out: its file server (or a disk) is silent. Its tasks are as they were. "
        "Repeat the command when it answers."
    )
