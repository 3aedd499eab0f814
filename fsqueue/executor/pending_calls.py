"""The calls of one executor: gathered, inserted, and looked for until each has ended (decision 69).

One thread does this, which keeps no process alive. What a look may see is in `Queue.results_of`. An own worker tells
the ids of the tasks that it is done with. That is a hint: it saves looks at the other tasks.
"""

from __future__ import annotations

import atexit
import concurrent.futures
import logging
import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import islice
from typing import Any, Protocol

from fsqueue import forks
from fsqueue.clock import Clock
from fsqueue.errors import ForkedChild, FsqueueError, QueueNotFound, TaskFailed, TaskNotFound
from fsqueue.executor.mapped_calls import MappedCall, MappedCalls
from fsqueue.executor.task_future import ResultUnpacker, TaskFuture
from fsqueue.filesystem.side_threads import SideThread
from fsqueue.format.models import CANCELLED, COMPLETED, DEAD, Result, TaskRef
from fsqueue.format.wording import counted
from fsqueue.interruptions import suppress
from fsqueue.weak_table import WeakTable
from fsqueue.worker.started_worker import StartedWorker

logger = logging.getLogger("fsqueue")

GATHER_S = 0.05
"""Maximum time for which a call that was submitted waits for others, ..."""
QUIET_S = 0.005
"""... and the time without another one after which it waits no longer."""
GATHER_MAX = 256
"""Number of calls at which none waits any longer: one append takes no more."""
LOOK_S = (0.01, 1.0)
"""Shortest and longest pause between two looks at all calls that have not ended."""
LATE = 0.1
"""The part of the time since the latest end that may pass before the next look."""
TOLD_LOOK_S = (0.002, 0.05)
"""Shortest and longest pause between two looks at the tasks of which a worker has told."""
TOLD_S = 1.0
"""Time after which these are looked at no more often than others: an attempt that failed is followed by a pause."""
LOOK_SHARE = 0.3
"""Maximum part of the time that goes into looking."""
LOOKS_AT_ONCE = 2_000
"""Maximum number of told tasks that one look is for."""
IN_TURN_MAX = 5_000
"""Maximum number of other tasks that one look is for, if an own worker tells of most ends. All have their turn."""
MISSED_S = 2.0
"""Number of seconds after which a task that no look has found counts as gone. A look may miss one that becomes a dead
letter."""
DEATHS_MAX = 3
"""Number of own workers in a row that may end before a call has ended, until no more is started."""
FORGOTTEN_S = 1.0
"""How often is looked whether somebody has the executor still: nothing tells that it was collected."""
CHECK_S = 0.25
"""How often is looked whether the own worker is there, ..."""
PATIENCE_S = (30.0, 15.0, 5.0)
"""... and how long is waited for its end: once it was told to finish, by SIGTERM, by SIGKILL."""


class AsksForTasks(Protocol):
    """A queue, at hand or at a gateway: what is asked of it here."""

    def insert_many(self, payloads: Iterable[Any], *, refs: Any) -> Any:
        """Insert tasks. Return references to them."""

    def results_of(self, ids: Iterable[str]) -> dict[str, Result]:
        """Return what is known of tasks."""

    def cancel(self, ids: Iterable[str]) -> int:
        """Cancel those tasks that no worker holds."""


Call = TaskFuture | MappedCall
"""What waits for a call's end."""
StartWorker = Callable[[Callable[[list[str]], object]], StartedWorker]
"""Start an own worker, which tells ids of tasks that it is done with."""


class OwnJobs(Protocol):
    """Jobs that an executor has submitted to a cluster."""

    def check(self, has_calls: bool, ends: int) -> Exception | None:
        """Submit jobs if calls wait and none is there, without waiting for that. Return why none is submitted any
        more.

        ends: how many calls have ended so far.
        """

    def end(self) -> None:
        """Submit no more, and cancel those that wait."""

    def leave(self) -> None:
        """Submit jobs for the calls that this process leaves, unless some are there."""


class PendingCalls:
    """The calls that have not ended. `start_worker`: starts an own worker; None if the executor has none.

    `at_end`: called when they all have ended, and the own worker has. `rouse_worker`: has an idle own worker hear of
    the next insert at once. `jobs`: what submits jobs for the calls; None if the executor has none.
    """

    def __init__(
        self,
        executor: object,
        queue: AsksForTasks,
        start_worker: StartWorker | None,
        at_end: Callable[[], object],
        rouse_worker: Callable[[], object],
        jobs: OwnJobs | None = None,
    ) -> None:
        self._executor = weakref.ref(executor)
        """If it is there no more, nobody submits a call."""
        self._queue, self._start_worker, self._at_end = queue, start_worker, at_end
        self._rouse_worker, self._jobs = rouse_worker, jobs
        self._now = Clock().monotonic
        self._changed = threading.Condition()
        self._inserting = threading.Lock()
        """Held while what was gathered is inserted."""
        self._inserts = 0
        """Number of inserts under way: a worker may tell of their tasks before their ids are known here."""
        self._futures: WeakTable[TaskFuture | MappedCalls, None] = WeakTable()
        """All futures that somebody has, and the calls of each `map`, for a forked child to end."""
        self.has_gathered = False
        self._gathered: dict[TaskFuture, Any] = {}
        """The calls that are not inserted yet, with their payloads."""
        self._gathered_at = self._last_at = 0.0
        self._pending: dict[str, Call] = {}
        """The calls whose tasks are in the queue, by the ids of these."""
        self._told: dict[str, float] = {}
        """Ids of tasks of which a worker has told, and whose ends the queue has not shown yet; and when it has told."""
        self._unwanted: list[Call] = []
        """Calls to cancel."""
        self._look_at = self._told_look_at = self._rested_at = 0.0
        self._ended_at = self._told_at = 0.0
        self._turn = 0
        """How many of the pending calls come before those that are looked at next."""
        self._is_hurried = self._is_shut = self._is_leaving = self._cancels = False
        self._error: Exception | None = None
        """Why no call is taken any more."""
        self._thread: SideThread | None = None
        self._worker: StartedWorker | None = None
        self._deaths = 0
        self._ends = 0
        """How many calls have ended so far."""
        self._missed: dict[str, float] = {}
        """Tasks that the latest looks did not find, and since when that is so."""
        forks.register(self, PendingCalls._in_child)

    # -- what the executor and its futures ask, in any thread --------------------------------------------------------

    def submit(self, payload: Any, pickled: ResultUnpacker | None = None) -> TaskFuture:
        """Take a call, which is inserted soon."""
        future = TaskFuture(self, pickled)
        with self._changed:
            self._begin()
            self._futures[future] = None
            now = self._last_at = self._now()
            if threading.current_thread() is self._thread:
                self._is_hurried = True  # by a callback: it gathers those of all callbacks, and then inserts
            if not self._gathered:
                self._gathered_at = now
                self._changed.notify()
            elif len(self._gathered) >= GATHER_MAX - 1:
                self._is_hurried = True
                self._changed.notify()
            self._gathered[future] = payload
            self.has_gathered = True
        return future

    def insert(self, payloads: Sequence[Any], pickled: Sequence[ResultUnpacker | None]) -> list[TaskFuture]:
        """Insert calls now, as `insert_many` does."""
        return self.take(pickled, lambda: self._queue.insert_many(payloads, refs=True))

    def take(self, pickled: Sequence[ResultUnpacker | None], insert: Callable[[], list[TaskRef]]) -> list[TaskFuture]:
        """Call a function that inserts as many calls, or finds them in the queue. Return their futures."""
        futures = [TaskFuture(self, one) for one in pickled]
        self._take(futures, futures, insert)
        return futures

    def insert_mapped(self, payloads: Sequence[Any]) -> list[MappedCall]:
        """Insert the calls of a `map` now, as `insert_many` does. Return them in their order."""
        made = MappedCalls(len(payloads))
        self._take([made], made.each, lambda: self._queue.insert_many(payloads, refs=True))
        return made.each

    def _take(
        self,
        made: Iterable[TaskFuture | MappedCalls],
        calls: Collection[Call],
        insert: Callable[[], list[TaskRef]],
    ) -> None:
        """Insert calls, behind those that were gathered. `made`: what a forked child has to end."""
        with self._changed:
            self._begin()
            self._inserts += 1  # a shutdown meanwhile waits for these calls, too
            for one in made:
                self._futures[one] = None
        try:
            self.hurry()
            self._insert_now(calls, insert)
        finally:
            with self._changed:
                self._inserts -= 1
                self._changed.notify()

    def hurry(self) -> None:
        """Insert at once what was gathered."""
        with self._changed:
            if self._gathered:
                self._is_hurried = True
                self._changed.notify()

    def cancel(self, future: TaskFuture) -> bool:
        """Cancel a call, unless a worker holds it or it has ended."""
        with self._changed:
            is_gathered = self._gathered.pop(future, self) is not self
            self.has_gathered = bool(self._gathered)
            self._changed.notify()
        if is_gathered:
            future.was_cancelled()
            return True
        with self._inserting:  # then its reference is there, or its error
            ref = future.ref
        if ref is None or not ref.cancel():
            return future.cancelled()
        if self._pending.pop(ref.id, None) is not None:
            self._ends += 1
            future.was_cancelled()
            with self._changed:
                self._changed.notify()
        return True

    def cancel_soon(self, calls: Iterable[Call]) -> None:
        """Have calls cancelled, as far as no worker holds them, without waiting for that."""
        with self._changed:
            self._unwanted += [call for call in calls if not call.done()]
            self._changed.notify()

    def shut(self, cancels: bool) -> SideThread | None:
        """Take no more calls. Return the thread, if it runs: it ends when all calls have ended."""
        with self._changed:
            self._is_shut = True
            if cancels:  # those that are just being inserted are cancelled once they are
                self._cancels = True
                self._unwanted += [*self._gathered, *self._pending.values()]
            self._changed.notify()
        return self._thread

    def leave(self) -> None:
        """At the end of this process: insert what was gathered, and wait for nothing. The own worker ends by itself."""
        with self._changed:
            self._is_shut = self._is_leaving = True
        with suppress(FsqueueError):
            self._insert()
        if self._worker is not None:
            self._worker.finish()
        if self._jobs is not None and self._pending:
            self._jobs.leave()
        elif self._jobs is not None:
            self._jobs.end()

    def _begin(self) -> None:
        """Refuse a call, or start the executor's thread unless it runs. The caller holds the lock."""
        self.refuse()
        if self._thread is None:
            self._ended_at = self._now()
            self._thread = SideThread("fsqueue-executor", self._work)
            self._thread.start()
            _live[self] = None

    def refuse(self) -> None:
        """Raise what a further call is refused with, if it is."""
        if self._error is not None:
            raise self._error
        if self._is_shut:
            raise RuntimeError("cannot schedule new futures after shutdown")

    def _insert_now(self, calls: Collection[Call], insert: Callable[[], list[TaskRef]]) -> None:
        """Insert calls, and wait for what comes of them from now on."""
        with self._changed:
            self._inserts += 1
        more: dict[str, Call] = {}
        try:
            for call, ref in zip(calls, insert(), strict=True):
                call.ref = ref
                more[ref.id] = call
        finally:
            with self._changed:
                self._inserts -= 1
                was_idle = not self._pending
                self._pending |= more
                if self._cancels:
                    self._unwanted += more.values()
                self._ended_at = self._now()
                if self._start_worker is None:
                    self._look_at = max(self._rested_at, min(self._look_at, self._ended_at + LOOK_S[0]))
                elif was_idle:  # the own worker tells of its tasks
                    self._look_at = max(self._look_at, self._ended_at + LOOK_S[1])
                self._changed.notify()
                error = self._error
            if error is not None and more:  # the executor broke meanwhile: nobody else would end these
                self._break(error)

    def _tell(self, ids: list[str]) -> None:
        """Take in that a worker is done with tasks."""
        with self._changed:
            if not self._told:
                self._told_at = self._now()
                self._told_look_at = max(self._told_look_at, self._told_at + TOLD_LOOK_S[0])
            self._told.update(dict.fromkeys(ids, self._now()))
            self._changed.notify()

    # -- the thread --------------------------------------------------------------------------------------------------

    def _work(self) -> None:
        """Insert and look until the executor is shut and all calls have ended."""
        try:
            while self._step():
                pass
        except BaseException as error:  # of a callback, too: futures let only an Exception of theirs go by
            logger.error("the thread of an executor has ended", exc_info=True)
            self._break(concurrent.futures.BrokenExecutor(f"The executor has failed: {error!r}. Make another one."))
        finally:
            self._end_worker()
            if self._jobs is not None and not self._is_leaving:
                self._jobs.end()
            self._at_end()

    def _step(self) -> bool:
        """Wait until something is due, and do it. Return whether there is more to wait for."""
        with self._changed:
            self._is_shut = self._is_shut or self._executor() is None
            while (wait_s := self._due_at() - self._now()) > 0:
                self._changed.wait(wait_s)
                self._is_shut = self._is_shut or self._executor() is None
                if self._is_over():
                    return False
            if self._is_over():
                return False
            unwanted, self._unwanted = self._unwanted, []
            is_due = self._is_hurried or (bool(self._gathered) and self._gather_until() <= self._now())
        if unwanted:
            self._cancel(unwanted)
        if is_due:
            self._insert()
        self._check_worker()
        self._check_jobs()
        self._look()
        return True

    def _is_over(self) -> bool:
        is_busy = self._gathered or self._pending or self._unwanted or self._inserts
        return self._is_leaving or (self._is_shut and not is_busy)

    def _gather_until(self) -> float:
        return min(self._gathered_at + GATHER_S, self._last_at + QUIET_S)

    def _due_at(self) -> float:
        """Return when there is something to do, on the monotonic clock."""
        if self._is_hurried or self._unwanted or self._is_over() or self._lacks_worker():
            return 0.0
        due = [self._now() + (CHECK_S if self._worker is not None else FORGOTTEN_S)]
        if self._gathered:
            due.append(self._gather_until())
        if self._pending:
            due.append(self._look_at)
        if self._told:
            due.append(self._told_look_at)
        return min(due)

    def _insert(self) -> None:
        """Insert what was gathered."""
        with self._inserting:
            with self._changed:
                gathered, self._gathered = self._gathered, {}
                self.has_gathered = self._is_hurried = False
            if not gathered:
                return
            try:
                payloads = [*gathered.values()]
                if self._worker is not None:
                    self._rouse_worker()
                self._insert_now(gathered.keys(), lambda: self._queue.insert_many(payloads, refs=True))
            except Exception as error:
                for future in gathered:
                    future.set_exception(error)

    def _cancel(self, unwanted: Iterable[Call]) -> None:
        """Cancel calls, as far as no worker holds them."""
        ids = []
        for call in unwanted:
            with self._changed:
                is_gathered = isinstance(call, TaskFuture) and self._gathered.pop(call, self) is not self
                self.has_gathered = bool(self._gathered)
            if is_gathered:
                call.was_cancelled()
            elif call.ref is not None and call.ref.id in self._pending:
                ids.append(call.ref.id)
        if ids:
            self._ask(lambda: self._queue.cancel(ids))
            self._look_at = 0.0

    def _look(self) -> None:
        """Look at the tasks of which a worker has told, or at all, where that is due."""
        now = self._now()
        if self._told and now >= self._told_look_at:
            with self._changed:
                ids = self._next_told(now)
            has_found = self._look_for(ids)
            after = self._now()
            self._told_at = after if has_found else self._told_at
            self._told_look_at = _next(now, after, self._told_at, TOLD_LOOK_S)
        if self._pending and now >= self._look_at:
            with self._changed:
                ids = self._next_in_turn()
            has_found, after = self._look_for(ids), self._now()
            self._ended_at = after if has_found else self._ended_at
            self._rested_at = after + (after - now) * (1 / LOOK_SHARE - 1)
            self._look_at = _next(now, after, self._ended_at, LOOK_S)
            if (
                self._worker is not None and not self._missed
            ):  # which tells of its tasks: a look at all is for those of others
                self._look_at = max(self._look_at, after + LOOK_S[1])

    def _next_told(self, now: float) -> list[str]:
        """Return at which of the told tasks to look, and have the others come before them the next time."""
        told, pending = self._told, self._pending
        ids = [*islice((one for one in told if one in pending), LOOKS_AT_ONCE)]
        again = {one: at for one in ids if now - (at := told.pop(one)) < TOLD_S}
        if not self._inserts:  # what is unknown is not this executor's, or its end was seen already
            told = {one: at for one, at in told.items() if one in pending}
        self._told = told | again
        return ids

    def _next_in_turn(self) -> list[str]:
        """Return which tasks to look at, told of or not: all; some of many, if an own worker tells of most ends.

        Those that a look has missed are looked at each time.
        """
        ids = [*self._pending]
        if self._worker is None or len(ids) <= IN_TURN_MAX:
            return ids
        first = self._turn if self._turn < len(ids) else 0
        some = ids[first : first + IN_TURN_MAX]
        self._turn = first + len(some)
        return [*dict.fromkeys([*some, *(one for one in self._missed if one in self._pending)])]

    def _look_for(self, ids: list[str]) -> bool:
        """Look at tasks, and settle the futures of those that have ended. Return whether there was one."""
        found = self._ask(lambda: self._queue.results_of(ids)) if ids else None
        if found is None:
            return False
        now = self._now()
        if len(found) < len(ids) or self._missed:
            for one in ids:
                if one in found:
                    self._missed.pop(one, None)
                else:
                    self._missed.setdefault(one, now)
        ended: list[tuple[str, Result | None]] = [
            (one, result) for one, result in found.items() if result.state in _ENDED
        ]
        ended += [(one, None) for one, since in self._missed.items() if now - since >= MISSED_S]
        self._settle_all(ended)
        self._deaths = 0 if ended else self._deaths
        return bool(ended)

    def _settle_all(self, ended: Iterable[tuple[str, Result | None]]) -> None:
        """End the calls whose tasks have ended. None: nothing is known of the task any more."""
        calls: list[tuple[Call, str, Result | None]] = []
        with self._changed:
            for one, result in ended:
                self._told.pop(one, None)
                self._missed.pop(one, None)
                call = self._pending.pop(one, None)
                if call is not None:
                    calls.append((call, one, result))
            self._ends += len(calls)
        calls.reverse()
        try:
            while calls:
                _settle(*calls.pop())
        finally:
            if calls:  # a callback has raised what ends this thread: the others end with the executor
                with self._changed:
                    self._pending |= {one: call for call, one, _ in calls}

    def _ask(self, act: Callable[[], Any]) -> Any:
        """Ask the queue. Return None if its filesystem does not answer now. If the queue is gone, break."""
        try:
            return act()
        except QueueNotFound as error:
            self._break(error)
        except FsqueueError as error:
            logger.warning("an executor waits for its queue: %s", error)
        return None

    def _break(self, error: Exception) -> None:
        """Take no more calls, and end those that have not ended with an error."""
        with self._changed:
            self._error = error
            calls: list[Call] = [*self._gathered, *self._pending.values()]
            ids = [*self._pending]
            self._gathered, self._pending, self.has_gathered = {}, {}, False
            self._told.clear()
        with suppress(FsqueueError):
            self._queue.cancel(ids)
        for call in calls:
            with suppress(concurrent.futures.InvalidStateError):
                call.set_exception(error)

    # -- the own worker ----------------------------------------------------------------------------------------------

    def _lacks_worker(self) -> bool:
        """Return whether the own worker is to be started for the first time: its start takes as long as many calls."""
        is_first = self._start_worker is not None and self._worker is None and self._error is None
        return is_first and bool(self._pending or self._inserts)

    def _check_worker(self) -> None:
        """Start the own worker, or another one in the place of one that has ended. Break if that helps no more."""
        if self._start_worker is None or self._error is not None:
            return
        how = ""
        if self._worker is not None:
            how = self._worker.ended()
            if not how:
                return
            self._worker.finish()
            self._deaths += 1
        if self._deaths >= DEATHS_MAX:
            self._break(
                concurrent.futures.BrokenExecutor(
                    f"The executor's own worker has ended {counted(self._deaths, 'time')} in a row, the last time so: "
                    f"{how}. Calls that had not begun are cancelled. Look at what it has printed, mend the cause, and "
                    "make another executor."
                )
            )
            return
        if how:
            logger.warning("an executor's own worker has ended: %s. Another one is started", how)
        try:
            self._worker = self._start_worker(self._tell)
        except OSError as error:
            self._worker = None
            self._break(concurrent.futures.BrokenExecutor(f"The executor's own worker could not be started: {error}."))

    def _end_worker(self) -> None:
        """End the own worker. Tasks that it is at may end, for some time."""
        worker = self._worker
        if worker is None:
            return
        worker.finish()
        for patience_s, then in zip(PATIENCE_S, (worker.terminate, worker.kill, None), strict=True):
            if self._is_leaving or worker.wait(patience_s) or then is None:
                return
            then()

    # -- jobs of a cluster -------------------------------------------------------------------------------------------

    def _check_jobs(self) -> None:
        """Have jobs submitted if calls wait for some. Break if no more are submitted."""
        if self._jobs is None or self._error is not None:
            return
        error = self._jobs.check(bool(self._pending), self._ends)
        if error is not None:
            self._break(error)

    # -- the end of the process --------------------------------------------------------------------------------------

    def _in_child(self) -> None:
        """In a forked child: end the futures with an error. The parent goes on with the calls."""
        error = ForkedChild("the use of an executor")
        futures = self._futures.living()
        self._changed, self._inserting = threading.Condition(), threading.Lock()
        self._gathered, self._pending, self._unwanted, self.has_gathered = {}, {}, [], False
        self._told, self._is_shut, self._is_leaving = {}, True, True
        self._error, self._thread, self._worker, self._jobs = error, None, None, None
        for future in futures:
            future.leave_to_parent(error)


_ENDED = {COMPLETED, DEAD, CANCELLED}
_live: WeakTable[PendingCalls, None] = WeakTable()


def _leave_all() -> None:
    """Let go of all executors at the end of this process."""
    for calls in _live.living():
        calls.leave()


atexit.register(_leave_all)


def _next(began: float, ended: float, since: float, bounds_s: tuple[float, float]) -> float:
    """Return when to look again after a look, by the time that has passed without an end, and that the look took."""
    pause_s = min(max(bounds_s[0], (ended - since) * LATE), bounds_s[1])
    return ended + max(pause_s, (ended - began) * (1 / LOOK_SHARE - 1))


def _settle(call: Call, task_id: str, result: Result | None) -> None:
    """End a call as its task has ended."""
    if result is None:
        call.set_exception(
            TaskNotFound(
                f"Nothing is known of the task {task_id} any more: its queue was purged, it was retried as another "
                "task, or its history was removed. It has no result here."
            )
        )
    elif result.state == COMPLETED:
        call.has_returned(result.result)
    elif result.state == CANCELLED:
        call.was_cancelled()
    else:
        call.set_exception(
            TaskFailed(f"The call was given up after {counted(result.attempts, 'attempt')}: {result.error}", result)
        )
