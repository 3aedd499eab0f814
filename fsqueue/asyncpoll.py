"""Poll a queue in an asyncio program: an asynchronous iterator of leased tasks. Threads look at the queue."""

from __future__ import annotations

import asyncio

from fsqueue import forks
from fsqueue.interruptions import suppress
from fsqueue.leased_task import LeasedTask, in_thread
from fsqueue.poll import Lessor, Poll
from fsqueue.protocol.leasing import Leaser
from fsqueue.protocol.waiting import Pauses, TaskSource, listening_to
from fsqueue.storage.listening import Listener


class AsyncPoll:
    """Iterate over leased tasks, asynchronously: see `Queue.poll_async`. Several coroutines may share one.

    `aclose` ends it and puts back the tasks that were leased ahead. So does the end of its `async with`, or of the
    loop. If it is cancelled while it waits for a task, it puts back what it has leased. While nothing is available,
    it sleeps in the event loop and keeps no thread. A forked child, in an event loop of its own, leases its own tasks.
    """

    def __init__(self, queue: Lessor, poll: Poll) -> None:
        self._queue, self._poll = queue, poll
        self._ended = poll._closed
        self._begin()
        forks.register(self, AsyncPoll._begin)

    def _begin(self) -> None:
        """Begin, or begin anew in a forked child: coroutines of its parent may have had their turn."""
        self._source: TaskSource | None = None
        """What is looked at. Made at the first look."""
        self._turn = asyncio.Lock()
        self._awake = asyncio.Event()
        """Set to end a sleep: by a notification, or by `aclose`."""

    def _leaser(self) -> Leaser:
        """Return a lessee of its own: the looks are made in several threads, one at a time."""
        return Leaser(self._queue, self._queue.store)

    def __aiter__(self) -> AsyncPoll:
        return self

    async def __anext__(self) -> LeasedTask:
        ahead = self._poll._ahead
        async with self._turn:
            try:
                await self._look_and_wait()
            except asyncio.CancelledError:
                await in_thread(self._poll._put_back)
                raise
            if self._ended:
                await in_thread(self._poll.close)
                raise StopAsyncIteration
            task = ahead.tasks.popleft()
            if self._poll._prefetch > 1:
                task.began = self._queue.store.clock.monotonic()
            return task

    async def _look_and_wait(self) -> None:
        """Lease ahead, and wait until something is leased or the iteration is ended."""
        source = self._source = self._source or self._queue._source(self._leaser, self._poll._ahead.lease_ms)
        pauses, is_over = Pauses(source), await self._look(source)
        if is_over:
            return
        with listening_to(source) as listener:
            while not is_over:
                listener.turn_to([store.doorbell for store in source.stores])
                seconds = pauses.next_s()
                if source.is_deaf:
                    await self._nap(seconds, None)
                elif listener.is_complete or not await in_thread(listener.listen):
                    await self._nap(seconds, listener)
                is_over = await self._look(source)

    async def _look(self, source: TaskSource) -> bool:
        """Lease ahead, if nothing is. Return whether something is, or the iteration has ended."""
        ahead = self._poll._ahead
        if not (ahead.tasks or self._ended) and await in_thread(lambda: self._lease_ahead(source)):
            self._ended = True
        return bool(ahead.tasks) or self._ended

    def _lease_ahead(self, source: TaskSource) -> bool:
        """Lease ahead. Return whether the iteration has ended."""
        got, ended = self._queue._look(source, self._poll._prefetch, self._poll._stop)
        self._poll._ahead.add(got)
        return ended

    async def _nap(self, seconds: float, listener: Listener | None) -> None:
        """Sleep for `seconds`, or until the iteration is ended, or a process of this host notifies."""
        loop, fd, awake = asyncio.get_running_loop(), -1 if listener is None else listener.fd, self._awake
        if not self._ended:
            awake.clear()
        if fd >= 0:
            try:
                loop.add_reader(fd, awake.set)
            except NotImplementedError:  # this event loop watches no descriptors: the poll goes by its pauses
                fd = -1
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await awake.wait()
        finally:
            if fd >= 0:
                loop.remove_reader(fd)
        if listener is not None:
            listener.take_in()

    async def aclose(self) -> None:
        """End the loop, and put back what was leased ahead. A task that was handed out stays leased."""
        self._ended = True
        self._awake.set()
        async with self._turn:  # wait for a look under way: nothing would put back what it leases
            await in_thread(self._poll.close)

    async def __aenter__(self) -> AsyncPoll:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<Async{repr(self._poll)[1:]}"
