"""Do together what many requests ask for at the same time: one thread, and few writes, for all of them.

While a thread works for some, the others gather; the next turn is for all that have come by then. A thread for each
request would wait for its turn to compute at each of its system calls, and each would write, and sync, by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

from fsqueue.service.threads import ServiceThreads, unanswered

A = TypeVar("A")
T = TypeVar("T")

AT_ONCE_MAX = 64
"""Maximum number of requests that are done together."""
SLOW_S = 0.25
"""A turn that takes longer is no longer waited for: what has come meanwhile gets a thread of its own."""


class Alone(Exception):
    """The outcome of a request that is to be done by itself."""


ALONE: Final = Alone("Nothing was done for it.")
AGAIN: Final = Alone("It may have been done.")
Outcome: TypeAlias = T | Exception


@dataclass(eq=False, slots=True)
class _Asked:
    what: Any
    answer: asyncio.Future[Any]
    late: Callable[[Any], object]


@dataclass(eq=False, slots=True)
class _Lane:
    """Requests that can be done together."""

    waiting: list[_Asked] = field(default_factory=list)
    turn: object | None = None
    """The turn that is waited for."""


class Together:
    """Turns of a gateway's threads, each for many requests. For the event loop alone."""

    def __init__(self, threads: ServiceThreads) -> None:
        self._threads = threads
        self._lanes: dict[Hashable, _Lane] = {}

    async def run(
        self,
        key: Hashable,
        what: A,
        act: Callable[[Sequence[A]], Sequence[Outcome[T]]],
        alone: Callable[[A, bool], T],
        late: Callable[[T], object] = lambda found: None,
    ) -> T:
        """Return what `act` tells for `what`, or raise it; for ALONE and AGAIN, what `alone(what, is_again)` returns.

        `act` blocks, and is called with all that has come with the same `key`: it tells an outcome for each. `late`: is
        given what comes after this call was cancelled, or given up; it must not block. Overloaded, Unanswered.
        """
        self._threads.enter()
        asked = _Asked(what, asyncio.get_running_loop().create_future(), late)
        lane = self._lanes.setdefault(key, _Lane())
        lane.waiting.append(asked)
        if lane.turn is None:
            self._begin(key, lane, act)
        try:
            found = await asyncio.wait_for(asked.answer, self._threads.answer_s)
        except BaseException as error:
            begun = asked not in lane.waiting
            if not begun:
                lane.waiting.remove(asked)
                self._threads.leave()
            elif asked.answer.done() and not asked.answer.cancelled() and asked.answer.exception() is None:
                _give(late, asked.answer.result())
            if isinstance(error, TimeoutError) and asked.answer.cancelled():
                raise unanswered(self._threads.answer_s, begun) from None
            raise
        if isinstance(found, Alone):
            return await self._threads.run(lambda: alone(what, found is AGAIN))
        return found  # type: ignore[no-any-return]

    def _begin(self, key: Hashable, lane: _Lane, act: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        """Begin a turn for what waits."""
        taken, lane.waiting = lane.waiting[:AT_ONCE_MAX], lane.waiting[AT_ONCE_MAX:]
        loop, turn = asyncio.get_running_loop(), object()
        lane.turn = turn
        slow = loop.call_later(SLOW_S, lambda: self._pass(key, lane, turn, act))

        def work() -> None:
            try:
                outcomes = act([one.what for one in taken])
            except Exception as error:
                outcomes = [error] * len(taken)
            loop.call_soon_threadsafe(end, outcomes)

        def end(outcomes: Sequence[Any]) -> None:
            slow.cancel()
            for one, outcome in zip(taken, outcomes, strict=True):
                self._threads.leave()
                if one.answer.done():
                    _give(one.late, outcome)
                elif isinstance(outcome, Exception) and not isinstance(outcome, Alone):
                    one.answer.set_exception(outcome)
                else:
                    one.answer.set_result(outcome)
            self._pass(key, lane, turn, act)

        self._threads.begin(work)

    def _pass(self, key: Hashable, lane: _Lane, turn: object, act: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        """Begin the next turn, if this one was waited for."""
        if lane.turn is not turn:
            return
        lane.turn = None
        if lane.waiting:
            self._begin(key, lane, act)
        elif self._lanes.get(key) is lane:
            del self._lanes[key]


def _give(late: Callable[[Any], object], outcome: Any) -> None:
    """Hand on an outcome that its request does not take any more."""
    if not isinstance(outcome, Exception):
        late(outcome)
