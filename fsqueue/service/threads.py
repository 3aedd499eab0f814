"""Blocking calls of queues in threads, so that no request waits for another one's disk."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from fsqueue.service.faults import RETRY_AFTER_S, Overloaded, Unanswered
from fsqueue.service.limits import ServiceLimits

T = TypeVar("T")


class ServiceThreads:
    """The threads of a gateway: some for verbs, and one for each stream while it lasts.

    A file server that does not answer keeps threads for ever. So their number is bounded, and so is what waits for
    them: others are told to come again.
    """

    def __init__(self, limits: ServiceLimits) -> None:
        self._limits = limits
        self._verbs = ThreadPoolExecutor(limits.verbs_max, "fsqueue-verb")
        self._asked = self._streams = 0
        self._lock = threading.Lock()

    async def run(self, act: Callable[[], T]) -> T:
        """Return what a blocking call returns. Overloaded: it was not begun. Unanswered: it goes on, unseen."""
        self.enter()
        future = self._verbs.submit(act)
        future.add_done_callback(lambda _: self.leave())
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self._limits.answer_s)
        except TimeoutError:
            if not future.done() or future.cancelled():  # else it is the call's own
                raise unanswered(self._limits.answer_s, begun=not future.cancelled()) from None
            raise

    @property
    def answer_s(self) -> float:
        """Return how long the filesystem may take for one verb, in seconds."""
        return self._limits.answer_s

    def enter(self) -> None:
        """Count a request that waits for a thread, or has one. Overloaded if there are too many."""
        with self._lock:
            if self._asked >= self._limits.verbs_max + self._limits.backlog_max:
                raise Overloaded("The gateway has too many requests at once. Nothing was done: come again.")
            self._asked += 1

    def leave(self) -> None:
        """Count one request less."""
        with self._lock:
            self._asked -= 1

    def begin(self, act: Callable[[], object]) -> None:
        """Have something done that nobody waits for. It must raise nothing."""
        self._verbs.submit(act)

    async def each(self, make: Callable[[], Iterator[T]]) -> AsyncIterator[T]:
        """Yield what a blocking iterator yields. It runs in a thread of its own. Close this when it is left."""
        with self.one() as thread:
            items = await self.within(thread, make)
            try:
                while (item := await self.within(thread, lambda: next(items, _END))) is not _END:
                    yield item  # type: ignore[misc]  # it is no _END
            finally:
                thread.submit(lambda: getattr(items, "close", _nothing)())

    def one(self) -> OneThread:
        """Return a thread of its own, for a block. Overloaded if there are too many."""
        return OneThread(self)

    async def within(self, thread: ThreadPoolExecutor, act: Callable[[], T]) -> T:
        """Return what a call in such a thread returns. Unanswered."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(thread.submit(act)), self._limits.answer_s)
        except TimeoutError:
            raise unanswered(self._limits.answer_s, begun=True) from None

    @property
    def streams(self) -> int:
        """Return how many streams have a thread."""
        return self._streams

    def begin_stream(self) -> None:
        """Count a stream. Overloaded if there are too many."""
        with self._lock:
            if self._streams >= self._limits.streams_max:
                raise Overloaded("The gateway has too many streams at once. Nothing was done: come again.")
            self._streams += 1

    def end_stream(self) -> None:
        """Count one stream less."""
        with self._lock:
            self._streams -= 1

    def close(self) -> None:
        """Begin nothing more. What is at work ends by itself."""
        self._verbs.shutdown(wait=False, cancel_futures=True)


class OneThread:
    """A thread for one stream. It counts until its last call has ended, also if the stream was left before that."""

    def __init__(self, threads: ServiceThreads) -> None:
        self._threads = threads

    def __enter__(self) -> ThreadPoolExecutor:
        self._threads.begin_stream()
        self._thread = ThreadPoolExecutor(1, "fsqueue-stream")
        return self._thread

    def __exit__(self, *error: object) -> None:
        self._thread.submit(self._threads.end_stream)
        self._thread.shutdown(wait=False)


_END = object()


def _nothing() -> None:
    """Do nothing."""


def unanswered(after_s: float, begun: bool) -> Unanswered:
    """Return the error of a call that has not returned in time."""
    what = "Whether it is done in the end is unknown: look" if begun else "Nothing was done: come again"
    return Unanswered(f"The filesystem has not answered within {after_s:g} s. {what}, in {RETRY_AFTER_S} s or later.")
