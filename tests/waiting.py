"""Wait for a condition, never for a time: the only place in the tests where a process sleeps until something is so."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

from fsqueue.administration import REAPER_THREAD

PATIENCE_S = 600.0
"""Maximum time that a test waits for a condition, a process or a thread (seconds).

It only ends what hangs: a slow machine that is busy with other work needs less.
"""
PAUSE_S = 0.01
"""Between two looks."""
LOOK_AGAIN = "sleep 0.1"
"""The same in the loop of a command that waits for a file."""

T = TypeVar("T")


def until_nothing_reaps() -> None:
    """Wait for the threads of this process that remove trash behind a call."""
    for thread in threading.enumerate():
        if thread.name == REAPER_THREAD:
            thread.join(PATIENCE_S)
            assert not thread.is_alive(), thread


def until(condition: Callable[[], T], what: str, timeout_s: float = PATIENCE_S) -> T:
    """Return the first true answer of `condition`. AssertionError, with `what` was waited for, after `timeout_s`."""
    for found in _answers(condition, what, timeout_s):
        if found:
            return found
        time.sleep(PAUSE_S)
    raise AssertionError  # not reached


async def until_async(condition: Callable[[], T], what: str, timeout_s: float = PATIENCE_S) -> T:
    """Do the same in a coroutine: others go on meanwhile."""
    for found in _answers(condition, what, timeout_s):
        if found:
            return found
        await asyncio.sleep(PAUSE_S)
    raise AssertionError  # not reached


def _answers(condition: Callable[[], T], what: str, timeout_s: float) -> Iterator[T]:
    end = time.monotonic() + timeout_s
    while True:
        found = condition()
        yield found
        if time.monotonic() > end:
            raise AssertionError(f"waited {timeout_s:g} s for {what}; the last answer was {found!r}")
