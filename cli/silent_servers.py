"""Ask several queues and groups of which one may lie on a file server that does not answer.

Each is asked in a thread of its own, which is left if it does not come back in time. Such a thread does not keep the
process from ending.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import TypeVar

from . import process

T = TypeVar("T")

OPEN_S = 3.0
"""How long to wait until one is open, before a command goes on with the others."""


class PendingAnswer(Future[T]):
    """What a call returns or raises that asks the file server of a path. A thread of its own makes the call."""

    def __init__(self, path: str, asks: Callable[[], T]) -> None:
        super().__init__()
        self.path, self._asks = path, asks
        self.began = time.monotonic()
        threading.Thread(target=self._ask, name=f"fsqueue-ask-{path}", daemon=True).start()

    def _ask(self) -> None:
        try:
            with process.asking(self.path):
                found = self._asks()
        except BaseException as error:  # also SystemExit: `result` raises it
            self.set_exception(error)
        else:
            self.set_result(found)


def ask(path: str, asks: Callable[[], T], within_s: float | None) -> PendingAnswer[T]:
    """Call `asks`. Return what has the answer, or will have it: `done()` tells. `within_s`: None to wait for it."""
    answer = PendingAnswer(path, asks)
    wait([answer], within_s)
    return answer


def wait_for_any(answers: Iterable[PendingAnswer[T]]) -> None:
    """Wait for one of those that have not answered."""
    wait(answers, return_when=FIRST_COMPLETED)
