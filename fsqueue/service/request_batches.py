"""Do in one turn of a thread, with few writes, what many requests ask for: leases, completions, updates.

While a thread works for some requests, others gather; the next turn is for all that have come by then. With a thread
each, requests would wait for their turn to compute at each system call, and each would write, and sync, by itself.

`lease`, `complete` and `update` are given what the requests say. They return an outcome for each request: its answer,
the error that it answers with, or ALONE or AGAIN, if the request must be done by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar

import fsqueue
from fsqueue.service import update_requests, verb_calls
from fsqueue.service.served import Served
from fsqueue.service.threads import ServiceThreads, unanswered

A = TypeVar("A")
T = TypeVar("T")

AT_ONCE_MAX = 64
"""Maximum number of requests that are done together."""
SLOW_S = 0.25
"""A turn that takes longer is no longer waited for: what has come meanwhile gets a thread of its own."""


class Alone(Exception):
    """The outcome of a request that must be done by itself: see ALONE and AGAIN."""


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
    """The turn in which no further request gets a place; None: the next request begins one."""


class RequestBatches:
    """Turns of a gateway's threads, each for many requests of one kind. For the event loop alone."""

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
        """Return or raise the outcome of the request `what`; for ALONE and AGAIN, what `alone(what, is_again)` returns.

        `act` blocks. It is called with all requests that have come with the same `key`, and returns an outcome for
        each. `late` is given an outcome that comes after this call was cancelled, or given up; it must not block.
        Overloaded, Unanswered.
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
        """Begin a turn for the requests of a lane that wait: AT_ONCE_MAX of them at most."""
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
        """Begin the next turn of a lane, unless that was done when this turn became slow."""
        if lane.turn is not turn:
            return
        lane.turn = None
        if lane.waiting:
            self._begin(key, lane, act)
        elif self._lanes.get(key) is lane:
            del self._lanes[key]


def _give(late: Callable[[Any], object], outcome: Any) -> None:
    """Call `late` with the outcome of a request that was cancelled or given up, unless that is an error."""
    if not isinstance(outcome, Exception):
        late(outcome)


TASKS_MAX = 1_000
"""Maximum number of tasks that are leased in one call."""
OPERATIONS_MAX = 32
"""An update with more operations is applied by itself: it gains little, and would hold up others."""
MERGED_S = 0.5
"""How long updates that are applied together wait for others in the way. After that each waits by itself."""

Given = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one request wants to lease, and for whom."""

    n: int
    holder: Mapping[str, Any]


def lease(served: Served, name: str, how: Given, wanted: Sequence[Wanted]) -> list[Outcome[list[fsqueue.LeasedTask]]]:
    """Lease for requests that want it in the same way. [] only after a full look."""
    found: list[Outcome[list[fsqueue.LeasedTask]]] = [[] for _ in wanted]
    left = list(range(len(wanted)))
    with served.queue(name) as queue:
        while left:
            some, n = [left[0]], wanted[left[0]].n
            for place in left[1:]:
                if (n := n + wanted[place].n) > TASKS_MAX:
                    break
                some.append(place)
            try:
                parts = queue.lease_for([(wanted[place].n, wanted[place].holder) for place in some], **how)
            except Exception as error:
                for place in left:  # a wrong field of one request fails the others, too
                    found[place] = ALONE if isinstance(error, fsqueue.InvalidArgument) else error
                break
            for place, part in zip(some, parts, strict=True):
                found[place] = part
            if not any(parts):
                break
            left = [place for place in left if not found[place]]
    return found


def complete(served: Served, name: str, given: Sequence[Given]) -> list[Outcome[Any]]:
    """Report tasks as done, those of all requests that have one: one write a batch."""
    if len(given) == 1:
        return [complete_alone(served, name, given[0])]
    found: list[Outcome[Any]] = [ALONE] * len(given)
    tasks: dict[str, tuple[int, fsqueue.LeasedTask]] = {}
    results: dict[str, Any] = {}
    with served.queue(name) as queue:
        for place, one in enumerate(given):
            if len(one["tasks"]) != 1:
                continue
            [told] = one["tasks"]
            try:
                task = queue.attach(told["token"], verify=False)
            except fsqueue.FsqueueError:
                continue
            if task.id not in tasks:  # of two requests for one task the other one is told what became of it
                tasks[task.id] = place, task
                if told["result"] is not None:
                    results[task.id] = told["result"]
        lost: set[str] = set()
        try:
            if tasks:
                queue.complete([task for _, task in tasks.values()], results)
        except fsqueue.LeaseLost as error:
            lost.update(error.tokens)
        except fsqueue.FsqueueError:  # some may be done
            for place, _ in tasks.values():
                found[place] = AGAIN
            return found
        for place, task in tasks.values():
            if task.token not in lost:
                found[place] = {"completed": 1}
    return found


def complete_alone(served: Served, name: str, given: Given, is_again: bool = False) -> Any:
    """Report the tasks of one request as done. `is_again`: they may have been completed for it a moment ago."""
    with served.queue(name) as queue:
        try:
            return verb_calls.complete(queue, given)
        except fsqueue.LeaseLost as error:
            if is_again and error.reason == fsqueue.LeaseLost.COMPLETED_BEFORE:
                return {"completed": len(given["tasks"])}
            raise


def lease_alone(served: Served, name: str, how: Given, wanted: Wanted) -> list[fsqueue.LeasedTask]:
    """Lease for one request."""
    with served.queue(name) as queue:
        found: list[fsqueue.LeasedTask] = queue.lease(min(wanted.n, TASKS_MAX), holder=wanted.holder, **how)
        return found


def update(served: Served, given: Sequence[update_requests.RequestedUpdate]) -> list[Outcome[Any]]:
    """Apply updates as one: all of them happen, or none, and then each is applied by itself.

    One by itself is applied at once. Those that name the same task, or that have keys, are not for this: what one does
    decides what the other one may.
    """
    if len(given) == 1:
        return [update_requests.apply(served, given[0])]
    found: list[Outcome[Any]] = [ALONE] * len(given)
    named: set[str] = set()
    together: list[int] = []
    for place, (one, timeout_s) in enumerate(given):
        tasks = update_requests.tasks_in(one)
        is_small = sum(map(len, one.values())) <= OPERATIONS_MAX and timeout_s >= MERGED_S
        if is_small and named.isdisjoint(tasks) and all(insert["key"] is None for insert in one["inserts"]):
            named.update(tasks)
            together.append(place)
    if len(together) < 2:
        return found
    assert served.group is not None
    made = served.group.update()
    try:
        with ExitStack() as queues:
            for place in together:
                update_requests.add(made, served, queues, given[place].operations)
            results = iter(made.apply(MERGED_S))
    except (fsqueue.UpdateConflict, fsqueue.InvalidArgument):  # nothing has happened, and it may be for one of them
        return found
    except fsqueue.FsqueueError as error:
        for place in together:
            found[place] = error
        return found
    for place in together:
        found[place] = update_requests.answer_of(made, given[place].operations, results)
    return found
