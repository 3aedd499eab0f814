"""Lease for many requests that wait at once: one thread for all that want the same.

A thread for each request would list the queue as often as there are requests, and hold as many threads. Here one
thread leases as many tasks as all of them want together, and hands them out in the order in which they came.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field

import fsqueue
from fsqueue.service.faults import Overloaded
from fsqueue.service.limits import ServiceLimits
from fsqueue.service.threads import ServiceThreads, unanswered

Look = Callable[[int, float], list[fsqueue.LeasedTask]]
"""Lease up to a number of tasks, and wait up to a number of seconds for the first one. It blocks."""
PutBack = Callable[[list[fsqueue.LeasedTask]], object]
"""Put tasks back that nobody has got. It blocks, and raises nothing."""

AtOnce = Callable[[int], Awaitable[list[fsqueue.LeasedTask]]]
"""Lease up to a number of tasks, without waiting for one."""

GIVEN_MAX = 4_096
"""Maximum number of ways to lease that are remembered because they have given a task."""
IDLE_S = 30.0
"""How long a thread stays without a request. Its lessee knows the queue: the next request is the cheaper for it."""
AT_ONCE_MAX = 1_000
"""Maximum number of tasks that are leased in one call."""


@dataclass(eq=False)
class _Asked:
    """A request that waits. Whoever holds the lock of its lessee decides once what becomes of it."""

    n: int
    deadline: float
    answer: asyncio.Future[list[fsqueue.LeasedTask]]
    loop: asyncio.AbstractEventLoop
    is_over: bool = False
    """Whether it was answered, or has gone."""
    got: list[fsqueue.LeasedTask] = field(default_factory=list)

    def tell(self, got: list[fsqueue.LeasedTask], error: Exception | None = None) -> None:
        """Answer it, from any thread. The lock is held."""
        self.is_over, self.got = True, got
        self.loop.call_soon_threadsafe(self._tell, error)

    def _tell(self, error: Exception | None) -> None:
        if self.answer.done():
            return
        if error is None:
            self.answer.set_result(self.got)
        else:
            self.answer.set_exception(error)


class _SharedLessee:
    """One thread, and the requests that it leases for."""

    def __init__(self, look: Look, put_back: PutBack, ended: Callable[[_SharedLessee], bool]) -> None:
        self._look, self._put_back, self._ended = look, put_back, ended
        self.changed = threading.Condition()
        self.asked: list[_Asked] = []
        self.waits_until = 0.0
        """Until when it waits for tasks, by the monotonic clock, after a full look; 0: it does not wait."""
        self._is_idle = self._is_dismissed = False
        threading.Thread(target=self._work, name="fsqueue-lessee", daemon=True).start()

    def add(self, asked: _Asked) -> None:
        """Lease for one more request."""
        with self.changed:
            self.asked.append(asked)
            self.changed.notify()

    def leave(self, asked: _Asked) -> list[fsqueue.LeasedTask]:
        """Note that a request has gone, or waits no longer. Return the tasks that it was given meanwhile."""
        with self.changed:
            if asked in self.asked:
                self.asked.remove(asked)
            if asked.is_over:
                return asked.got
            asked.is_over = True
            return []

    def dismiss(self) -> bool:
        """End the thread if it does nothing, so that another one can take its place. Return whether it ends.

        A thread whose look is under way stays: if the filesystem does not answer, threads would pile up otherwise.
        """
        with self.changed:
            if self.asked or not self._is_idle:
                return False
            self._is_dismissed = True
            self.changed.notify()
            return True

    def end_all(self) -> None:
        """Answer all requests: there is nothing."""
        with self.changed:
            for one in self.asked:
                one.tell([])
            self.asked.clear()

    def _work(self) -> None:
        while True:
            with self.changed:
                if not self.asked:
                    self._is_idle = True
                    self.changed.wait(IDLE_S)
                    self._is_idle = False
                if self._is_dismissed:
                    return
                wanted = sum(one.n for one in self.asked)
            if not wanted:
                if self._ended(self):
                    return
                continue
            self._lease(min(wanted, AT_ONCE_MAX))

    def _lease(self, n: int) -> None:
        """Look once; if there is nothing, wait for as long as the most patient of the requests."""
        with self.changed:
            looked_for = set(self.asked)
        try:
            got = self._look(n, 0)
            if not got and (wait_s := self._begin_to_wait(looked_for)) > 0:
                got = self._look(n, wait_s)
        except Exception as error:
            with self.changed:
                for one in self.asked:
                    one.tell([], error)
                self.asked.clear()
                self.waits_until = 0.0
            return
        with self.changed:
            self.waits_until = 0.0
            for one in list(self.asked):
                if not got:
                    break
                one.tell(got[: one.n])
                got = got[one.n :]
                self.asked.remove(one)
            self._end_impatient(looked_for)
        if got:
            self._put_back(got)

    def _begin_to_wait(self, looked_for: set[_Asked]) -> float:
        """Note that a full look has found nothing. Return how many seconds to wait; 0 if another look comes first.

        Requests whose time is over are answered before the wait: it lasts as long as that of the most patient request.
        If a request came during the look, another look is made for it first.
        """
        with self.changed:
            self._end_impatient(looked_for)
            if not looked_for.issuperset(self.asked):
                return 0.0
            until = max((one.deadline for one in self.asked), default=0.0)
            wait_s = until - time.monotonic()
            self.waits_until = until if wait_s > 0 else 0.0
        return wait_s

    def _end_impatient(self, looked_for: set[_Asked]) -> None:
        """Answer those for which was looked, and whose time is over: there is nothing. The lock is held."""
        now = time.monotonic()
        for one in list(self.asked):
            if one.deadline <= now and one in looked_for:
                one.tell([])
                self.asked.remove(one)


class Lessees:
    """All lessees of a gateway, by what they lease: queue, worker, length of the lease, bound, order."""

    def __init__(self, threads: ServiceThreads, limits: ServiceLimits) -> None:
        self._threads, self._limits = threads, limits
        self._lessees: dict[Hashable, _SharedLessee] = {}
        self._lock = threading.Lock()
        self._waiting = 0
        self._given: set[Hashable] = set()
        """Ways to lease that have given a task at the last look."""
        self._is_closed = False

    async def lease(
        self,
        key: Hashable,
        n: int,
        wait_s: float,
        look: Look,
        put_back: PutBack,
        way: Hashable = None,
        at_once: AtOnce | None = None,
    ) -> list[fsqueue.LeasedTask]:
        """Return up to `n` tasks; [] after a full look, and after `wait_s` seconds.

        `way`: of what, and how it is leased, if other workers do the same. `at_once`: leases without waiting; by
        default a look in a thread for verbs. If this is cancelled, what was leased for it meanwhile is put back.
        Overloaded.
        """
        way = key if way is None else way
        present = self._lessees.get(key)
        waits = present is not None and bool(present.waits_until)
        if self._is_closed or wait_s <= 0 or waits or way in self._given:
            got = await (at_once(n) if at_once is not None else self._once(n, look, put_back))
            if got:
                self._note(way)
                return got
            self._given.discard(way)
            if wait_s <= 0 or self._is_closed:
                return got
        loop = asyncio.get_running_loop()
        asked = _Asked(n, time.monotonic() + wait_s, loop.create_future(), loop)
        if self._waiting >= self._limits.waiting_max:
            raise Overloaded("Too many requests wait for tasks at this gateway. Nothing was leased: come again.")
        lessee = self._join(key, asked, look, put_back)
        self._waiting += 1
        is_handed_over = False
        try:
            await asyncio.wait([asked.answer], timeout=wait_s)
            if not asked.answer.done() and lessee.waits_until > asked.deadline:  # for a request with more patience
                got = lessee.leave(asked)
            else:
                got = await asyncio.wait_for(asked.answer, self._limits.answer_s)
            is_handed_over = True
            if got:
                self._note(way)
            return got
        except TimeoutError:
            raise unanswered(self._limits.answer_s, begun=True) from None
        finally:
            self._waiting -= 1
            asked.answer.cancel()  # else an error that comes later would be logged: nobody retrieves it
            if not is_handed_over and (left := lessee.leave(asked)):
                self._threads.begin(lambda: put_back(left))

    def _note(self, way: Hashable) -> None:
        """Note that there was a task: the next request looks at once, together with others."""
        if len(self._given) >= GIVEN_MAX:
            self._given.clear()
        self._given.add(way)

    async def _once(self, n: int, look: Look, put_back: PutBack) -> list[fsqueue.LeasedTask]:
        """Look once, in a thread for verbs. What comes after the request has gone is put back."""
        has_gone = threading.Event()
        lock = threading.Lock()

        def act() -> list[fsqueue.LeasedTask]:
            got = look(min(n, AT_ONCE_MAX), 0)
            with lock:
                if not has_gone.is_set():
                    return got
            if got:
                put_back(got)
            return []

        running = asyncio.ensure_future(self._threads.run(act))
        try:
            return await asyncio.shield(running)
        except BaseException:
            with lock:
                has_gone.set()
            running.add_done_callback(lambda done: self._put_back_late(done, put_back))
            raise

    def _put_back_late(self, done: asyncio.Future[list[fsqueue.LeasedTask]], put_back: PutBack) -> None:
        if not done.cancelled() and done.exception() is None and (got := done.result()):
            self._threads.begin(lambda: put_back(got))

    def _join(self, key: Hashable, asked: _Asked, look: Look, put_back: PutBack) -> _SharedLessee:
        """Have a request leased for. Its lessee cannot end between being found and being told of it."""
        with self._lock:
            found = self._lessees.get(key)
            if found is None:
                if len(self._lessees) >= self._limits.lessees_max and not self._dismiss_one():
                    raise Overloaded(
                        "Requests wait for tasks of too many queues, or by too many workers, at this gateway. Nothing "
                        "was leased: come again."
                    )
                found = self._lessees[key] = _SharedLessee(look, put_back, lambda one: self._drop(key, one))
            found.add(asked)
            return found

    def _dismiss_one(self) -> bool:
        """End a lessee of which nothing is asked. Return False if there is none. The lock is held."""
        for key, one in self._lessees.items():
            if one.dismiss():
                del self._lessees[key]
                return True
        return False

    def _drop(self, key: Hashable, lessee: _SharedLessee) -> bool:
        """Let go of a lessee without requests. Return False if it has got one."""
        with self._lock, lessee.changed:
            if lessee.asked:
                return False
            if self._lessees.get(key) is lessee:
                del self._lessees[key]
            return True

    def close(self) -> None:
        """Answer all requests that wait: there is nothing. Those that come later are not waited for."""
        self._is_closed = True
        with self._lock:
            lessees = list(self._lessees.values())
        for lessee in lessees:
            lessee.end_all()
