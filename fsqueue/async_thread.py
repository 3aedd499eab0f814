"""Run blocking code of this package in a thread, for programs of asyncio."""

from __future__ import annotations

import asyncio
import concurrent.futures.thread  # noqa: F401 - else the first call would load it, maybe while another thread forks
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


async def in_thread(act: Callable[[], T]) -> T:
    """Run `act` in a thread of the event loop's pool, and return what it returns.

    A cancellation waits until `act` has ended. Otherwise `act` would still run while the cancelled coroutine goes on.
    """
    future = asyncio.get_running_loop().run_in_executor(None, act)
    cancelled: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])  # unlike awaiting the future, this leaves it alone when it is cancelled
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        future.exception()  # else asyncio would log that the exception was never retrieved
        try:
            raise cancelled
        finally:
            del cancelled
    return future.result()
