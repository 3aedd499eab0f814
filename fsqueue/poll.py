"""Poll: the loop of a worker in the same process, as an iterator of leased tasks; and waiting for its end."""

from __future__ import annotations

import _thread
import atexit
import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

from fsqueue import forks
from fsqueue.arguments import HasStore, one_of, whole
from fsqueue.clock import Clock, Entropy, duration_ms
from fsqueue.errors import (
    ForkedChild,
    ForkedInCall,
    FsqueueError,
    InvalidArgument,
    LeaseLost,
    QueueNotFound,
    QueuePurged,
    ResultNotReady,
    StorageError,
    TaskFailed,
    from_os_error,
    said,
    shown,
)
from fsqueue.filesystem import resources
from fsqueue.format.models import (
    CANCELLED,
    COMPLETED,
    DEAD,
    DELAYED,
    LEASED,
    WAITING,
    Status,
    TaskInfo,
    TaskRef,
    TellsOfTasks,
)
from fsqueue.format.wording import counted
from fsqueue.interruptions import let_out, suppress
from fsqueue.leased_task import LeasedTask, Verbs
from fsqueue.protocol.leasing import Leaser
from fsqueue.protocol.waiting import TaskSource, clock_of, tell_of_end, tell_pauses
from fsqueue.storage import open_logs
from fsqueue.storage.discovery import queue_path
from fsqueue.storage.store import Store
from fsqueue.user_code import UserCodeError, user_function, user_items
from fsqueue.views import inspection

logger = logging.getLogger("fsqueue")

Found = TypeVar("Found")

Until = Literal["drained", "forever"]
Errors = Literal["record", "raise"]
FIRST_FAILURES = 10
"""Number of failures in a row that ends a loop in which nothing has succeeded yet: a misspelt name in its body would
otherwise bury the queue."""

UNFINISHED = {WAITING, DELAYED, LEASED}
"""States of tasks that have not ended."""
WAIT_S = (0.05, 15.0)
"""Shortest and longest pause between two looks of `wait`, ..."""
LATE = 0.1
"""... which grows with the time waited: the part of it that may pass before the end is noticed."""
LOOK_SHARE = 0.2
"""At most this part of the time goes into looking, where that takes long."""
RESULT_S = (0.01, 2.0)
"""Shortest and longest pause between two looks at a task whose result is waited for; it grows as above."""
LAST_LOOKS = 4
"""Maximum number of times that statuses are read at the end of the time to wait, while they show no task and there is
one."""


def wait(
    queues: Iterable[HasStore | OfGroup | str | os.PathLike[str]],
    timeout_s: float | None = None,
    poll: Callable[[list[Status]], object] | None = None,
) -> list[Status]:
    """Wait until at one instant nothing is waiting, delayed or leased in any of the queues, or `timeout_s` is over.

    `queues` are queues, or paths as `fsqueue.queues` returns them. A group, or `Group.matching`, in it stands for all
    its queues, also for those that come while this waits; their status is one. A gateway's queue, or group, is asked
    like the others.
    Returns the last status of each, also of one that is given twice; `poll` is called with these on the way. Without it
    waiting costs little: one shard is looked into, which had something the last time, after pauses that grow to 15 s.
    QueuePurged if what was waited for was purged or overwritten.
    """
    given = [*_several(queues)]
    for one in given:  # a queue of a group may not be there yet, and more of them may come
        if isinstance(one, OfGroup):
            return one._wait_together(given, timeout_s, poll)
    stores = [_store_of(one) for one in given]
    timeout = math.inf if timeout_s is None else duration_ms(timeout_s, "timeout_s") / 1000
    tell = None if poll is None else user_function(poll)
    try:
        with resources.Scope():
            return Backlog(stores).wait(timeout, tell) if stores else []
    except OSError as error:
        let_out(error)
        found = [store.explain(error, "waiting") for store in stores]
        raise min(found, key=lambda one: not isinstance(one, QueueNotFound)) from error
    except (UserCodeError, ForkedInCall) as carried:
        own = carried.error
    raise own


@runtime_checkable
class OfGroup(Protocol):
    """A queue of a group, queues of one, or a gateway's: what knows how to wait for queues that come and go."""

    def _wait_together(
        self, given: Sequence[object], timeout_s: float | None, poll: Callable[[list[Status]], object] | None
    ) -> list[Status]:
        """Do what `wait` does."""


def _several(queues: object) -> Iterable[object]:
    """Return what was given to `wait`; InvalidArgument if that is no list of queues."""
    if isinstance(queues, (str, bytes, os.PathLike)) or not isinstance(queues, Iterable):
        raise InvalidArgument(
            f"wait takes a list of queues or paths, not {queues!r}. For a single queue use Queue.wait, or put it in a "
            "list."
        )
    return queues


def _store_of(queue: object) -> Store:
    """Return the store of a queue, or of the queue at a path."""
    store = getattr(queue, "store", None)
    if isinstance(store, Store):
        return store
    path = queue_path(queue)
    try:
        with resources.Scope():
            return Store(path)
    except OSError as error:
        raise from_os_error(error, f"opening the queue {path}") from error


def _pause_s(waited_s: float, bounds_s: tuple[float, float], entropy: Entropy) -> float:
    """Return how long to pause after a look that has found nothing, `waited_s` after the wait began: about a tenth of
    that time, within bounds, and a random quarter of it more or less.
    """
    shortest_s, longest_s = bounds_s
    return min(max(shortest_s, waited_s * LATE), longest_s) * (0.75 + entropy.random() / 2)


class Backlog:
    """The tasks of some queues, to wait until all are done."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self.stores: Sequence[Store] = stores
        """The queues that were given one by one: a wait says which of them are paused."""
        self.is_drained: Callable[[], bool] = inspection.DrainCheck(*stores)
        for store in stores:
            store.refresh(now=True)
        self._generations = [store.queue_state.generation for store in stores]

    def statuses(self) -> list[Status]:
        """Return the status of each that was given."""
        return [inspection.status(store) for store in self.stores]

    def look(self, counts: bool) -> tuple[bool, list[Status]]:
        """Return whether all is done, and the statuses if it is, or if `counts`. QueuePurged."""
        drained = self.is_drained()
        found = self.statuses() if drained or counts else []
        for store, generation in zip(self.stores, self._generations, strict=True):
            if store.queue_state.generation != generation:
                raise QueuePurged(
                    f"The queue {store.path} was purged or overwritten while it was waited for: what was in it was not "
                    "worked off. Wait again for what is in it now."
                )
        return drained, found

    def wait(self, timeout_s: float, poll: Callable[[list[Status]], object] | None) -> list[Status]:
        """Wait until all is done, or the time is over. Return the last statuses."""
        clock, entropy = clock_of(self.stores)
        begin = clock.monotonic()
        while True:
            looked_at = clock.monotonic()
            drained, found = self.look(poll is not None)
            if poll is not None:
                poll(found)
            else:
                tell_pauses(self.stores)
            now = clock.monotonic()
            left = begin + timeout_s - now
            if drained and all(status.drained for status in found):  # else something was inserted since
                return found
            if left <= 0:
                return last_statuses(found, self.statuses, self.is_drained)
            pause_s = max(_pause_s(now - begin, WAIT_S, entropy), (now - looked_at) * (1 / LOOK_SHARE - 1))
            open_logs.let_go()
            clock.sleep(min(pause_s, left))


def last_statuses(
    found: list[Status], look: Callable[[], list[Status]], is_drained: Callable[[], bool]
) -> list[Status]:
    """Return what a wait returns whose time is over: the statuses `found`, or those that `look` finds.

    Statuses are no proof. Tasks that move while they are read may be in none of them. So if all of them say "drained",
    `is_drained` is asked once more. StorageError if it goes on to say no, while they go on to show no task.
    """
    for _ in range(LAST_LOOKS):
        found = found or look()
        if not all(status.drained for status in found) or is_drained():
            return found
        found = []
    raise StorageError(
        "The time to wait is over, and the queues are not drained. Others move the tasks so fast that no status shows "
        "them. Nothing was changed. Wait again."
    )


class HasClock(Protocol):
    """Has the clock and the randomness by which a wait goes."""

    @property
    def clock(self) -> Clock:
        """Return the clock."""

    @property
    def entropy(self) -> Entropy:
        """Return the randomness."""


class _LookPauses:
    """The pauses between looks at tasks whose outcome is waited for, for `timeout_s` seconds in all."""

    def __init__(self, timeout_s: float | None, of: HasClock) -> None:
        self._timeout_s = math.inf if timeout_s is None else duration_ms(timeout_s, "timeout_s") / 1000
        self._clock, self._entropy = of.clock, of.entropy
        self._began = self._since = self._woke_at = self._clock.monotonic()
        self._looked_s = 0.0

    def shorten(self) -> None:
        """Begin with short pauses again: the last look has found something."""
        self._since = self._clock.monotonic()

    @property
    def waited_s(self) -> float:
        """Return how many seconds have passed since the beginning."""
        return self._clock.monotonic() - self._began

    def timed(self, look: Callable[[], Found]) -> Found:
        """Look, and return what was found. The next pause is in proportion to the time that this took."""
        begun = self._clock.monotonic()
        found = look()
        self._looked_s += self._clock.monotonic() - begun
        return found

    def sleep(self) -> bool:
        """Sleep until the next look. False, at once, if the last looks began when the time was over."""
        if self._woke_at >= self._began + self._timeout_s:
            return False
        now = self._clock.monotonic()
        pause_s = max(_pause_s(now - self._since, RESULT_S, self._entropy), self._looked_s * (1 / LOOK_SHARE - 1))
        open_logs.let_go()
        self._clock.sleep(max(0.0, min(pause_s, self._began + self._timeout_s - now)))
        self._woke_at, self._looked_s = self._clock.monotonic(), 0.0
        return True


def result_of(
    task: str | TaskRef, timeout_s: float | None, look: Callable[[str], TaskInfo], store_of: Callable[[], HasClock]
) -> Any:
    """Look at a task, by its id, until it has ended; return its result: see `Queue.result`.

    `store_of`: returns the queue's store, once a look has found the task in the queue.
    """
    task_id = task.id if isinstance(task, TaskRef) else task
    if timeout_s is not None:
        duration_ms(timeout_s, "timeout_s")  # before the look, which may fail
    found = look(task_id)
    pauses = _LookPauses(timeout_s, store_of())
    while found.state in UNFINISHED:
        if not pauses.sleep():
            raise ResultNotReady(
                f"The task {task_id} is {found.state} still, after {round(pauses.waited_s, 2):g} s. It goes on: wait "
                "for its result again, or cancel it."
            )
        found = pauses.timed(lambda: look(task_id))
    if found.state == CANCELLED:
        raise TaskFailed(f"The task {task_id} was cancelled: it has no result.", found)
    if found.state == DEAD:
        raise TaskFailed(
            f"The task {task_id} was given up after {counted(found.attempt, 'attempt')}: {found.error}", found
        )
    return found.result


def as_completed(refs: Iterable[TaskRef], timeout_s: float | None = None) -> Iterator[TaskRef]:
    """Yield references to tasks as the tasks end, each once; as `concurrent.futures.as_completed` does (PEP 3148).

    `refs`: what `insert` has returned, of one queue or of several, also behind gateways. A task has ended if it is
    completed, dead or cancelled, or if nothing is known of it any more: a queue may keep no history. `ref.result()`
    then returns at once, or tells why there is none. ResultNotReady, which is a TimeoutError, if some have not ended
    `timeout_s` seconds after the first was asked for; InvalidArgument for what is no TaskRef with a queue.

    The queues are looked at again and again, 10 ms after a task has ended and then more and more rarely, down to once
    in 2 s; looking takes a fifth of the time at most. A look reads each batch that has some of the tasks, once, and the
    history of those of which a task has ended.
    """
    pending: dict[TellsOfTasks, dict[str, TaskRef]] = {}
    for ref in user_items(refs) if isinstance(refs, Iterable) else [refs]:
        if not isinstance(ref, TaskRef) or ref.queue is None:
            raise InvalidArgument(f"as_completed takes references to tasks, as insert returns them, not {shown(ref)}.")
        pending.setdefault(ref.queue, {}).setdefault(ref.id, ref)
    return _as_completed(pending, timeout_s)


def _as_completed(pending: dict[TellsOfTasks, dict[str, TaskRef]], timeout_s: float | None) -> Iterator[TaskRef]:
    pauses: _LookPauses | None = None
    while pending:
        has_found = False
        for queue, waited_for in [*pending.items()]:
            if pauses is None:
                found = queue.results_of(waited_for)
                pauses = _LookPauses(timeout_s, queue.store)
            else:
                found = pauses.timed(partial(queue.results_of, waited_for))
            for task_id in [one for one in waited_for if one not in found or found[one].state not in UNFINISHED]:
                ref, has_found = waited_for.pop(task_id), True
                if task_id in found and found[task_id].state == COMPLETED:
                    ref._ended = found[task_id]
                yield ref
            if not waited_for:
                del pending[queue]
        assert pauses is not None, "a queue was looked at"
        if has_found:
            pauses.shorten()
        if pending and not pauses.sleep():
            left = sum(map(len, pending.values()))
            raise ResultNotReady(
                f"{counted(left, 'task')} of those waited for {'has' if left == 1 else 'have'} not ended after "
                f"{round(pauses.waited_s, 2):g} s. They go on: wait for them again, or cancel them."
            )


def check_loop(prefetch: object, until: object, errors: object, stop_after_failures: object) -> None:
    """Raise InvalidArgument if a loop cannot be asked for so: see `Queue.poll`."""
    whole("prefetch", prefetch)
    one_of("until", until, ("drained", "forever"))
    one_of("errors", errors, ("record", "raise"))
    if stop_after_failures is not None:
        whole("stop_after_failures", stop_after_failures, 0)


class Lessor(Verbs, Protocol):
    """The verbs that a loop asks of its queue. `Queue` has them."""

    @property
    def _leaser(self) -> Leaser:
        """Return this thread's lessee."""

    def _lease_waiting(self, n: int, lease_ms: int | None, stop: Callable[[], bool]) -> list[LeasedTask]:
        """Lease up to `n` tasks; wait for the first until `stop` says True."""

    def _look(self, source: TaskSource, n: int, stop: Callable[[], bool]) -> tuple[list[LeasedTask], bool]:
        """Look once for up to `n` tasks. Return them, and whether none was found and `stop` says True."""

    def _source(self, leaser: Callable[[], Leaser], lease_ms: int | None) -> TaskSource:
        """Return what `_look` looks at. `leaser` makes its lessee."""

    def _end_check(self, ahead: Prefetched) -> Callable[[], bool]:
        """Return what tells a loop whether nothing is left to do."""


class Prefetched:
    """The tasks that are leased and not handed out yet. Completing one leases the next in the same append.

    `errors` and `stop_after_failures`: see `Queue.poll`.
    """

    def __init__(
        self, queue: Lessor, lease_ms: int | None, exchange: bool, errors: Errors, stop_after_failures: int | None
    ) -> None:
        self.queue = queue
        self.records = errors == "record"
        self.failures_max: float = stop_after_failures or math.inf
        """Number of failures in a row that ends the loop after a success."""
        self.failures_left = FIRST_FAILURES if stop_after_failures is None else self.failures_max
        """Number of further failures in a row that ends the loop now."""
        self.lease_ms = lease_ms
        self.tasks: deque[LeasedTask] = deque()
        self.open = exchange
        """Whether a completion should lease the next; no longer, once the loop was left."""
        self.has_leased = False
        """Whether a task was leased, and the idle workers were not told since that the queue is drained."""
        forks.register(self, Prefetched.forget)

    def forget(self) -> None:
        """Forget the tasks, in a forked child, which leases its own: they are its parent's."""
        self.tasks.clear()

    def complete(self, task: LeasedTask, result: bytes | None) -> bool:
        """Complete `task`, with a `result` as JSON, and lease another.

        False if that was not possible in one step, and nothing was done.
        """
        if not self.open or self.tasks:
            return False
        got = self.queue._leaser.exchange(task, result, self.lease_ms)
        if got is None:
            return False
        self.add(got)
        return True

    def add(self, tasks: list[LeasedTask]) -> None:
        """Take leased tasks in."""
        for task in tasks:
            task.poll = self
        self.tasks.extend(tasks)
        self.has_leased = self.has_leased or bool(tasks)

    def goes_on(self, task: LeasedTask, error: Exception) -> bool:
        """Log the error that has ended a task's block. Return whether the loop goes on with the next task."""
        if not self.records:
            return False
        self.failures_left -= 1
        if self.failures_left <= 0:
            error.add_note(
                "This error ends the loop: too many attempts in a row have failed (stop_after_failures). Their "
                "failures are recorded, and they will be tried again. Mend the cause, and start the loop again."
            )
            return False
        logger.warning(
            "task %s of %s: attempt %d failed, and the loop goes on: %s",
            task.id,
            task.queue.path,
            task.attempt,
            said(error),
            exc_info=error,
        )
        return True


class EndCheck:
    """Whether the queue is drained. If the loop has had tasks, the first "yes" tells the idle workers of it."""

    def __init__(self, store: Store, ahead: Prefetched) -> None:
        self._is_drained = inspection.DrainCheck(store)
        self._store, self._ahead = store, ahead

    def __call__(self) -> bool:
        if not self._is_drained():
            return False
        if self._ahead.has_leased:
            self._ahead.has_leased = False
            tell_of_end([self._store])
        return True


dropped: deque[tuple[Verbs, list[LeasedTask]]] = deque()
"""Tasks leased ahead by loops that were dropped without being closed, until they are put back."""
forks.register(dropped, deque.clear)  # in a child: the parent puts them back


def put_back_dropped(queue: Verbs | None = None) -> None:
    """Release what dropped loops of one queue, or of all, have left behind. Never raises fsqueue's errors.

    Several threads may do so at once: a lease that another one has released already is found lost.
    """
    for entry in tuple(dropped):
        of, tasks = entry
        if queue is None or of is queue:
            with suppress(FsqueueError):  # another worker has them now; or they come back when their leases end
                of.release(tasks)
            with suppress(ValueError):
                dropped.remove(entry)


atexit.register(put_back_dropped)


def _note_begin(task: LeasedTask) -> None:
    """Note when the work on a task begins. If its queue was deleted meanwhile, the end of its block tells that."""
    with suppress(QueueNotFound):
        task.began = task.queue.store.clock.monotonic()


class Poll:
    """An iterator over leased tasks, until the queue is drained or for ever.

    Closing it ends it and puts back what was leased ahead; so does leaving its `with`, or the loop. In a forked child
    that goes on with the loop, or leaves it, what was leased ahead stays its parent's.
    """

    def __init__(self, queue: Lessor, ahead: Prefetched, prefetch: int, until: Until) -> None:
        self._queue = queue
        self._ahead = ahead
        self._prefetch = prefetch
        self._until = until
        self._closed = False
        self._stop: Callable[[], bool] = (lambda: False) if until == "forever" else queue._end_check(ahead)

    def __iter__(self) -> Poll:
        return self

    def __next__(self) -> LeasedTask:
        ahead = self._ahead
        if self._closed:
            raise StopIteration
        process = forks.depth
        try:
            while not ahead.tasks:
                ahead.add(self._queue._lease_waiting(self._prefetch, ahead.lease_ms, self._stop))
                if not ahead.tasks and self._stop():
                    self.close()
                    raise StopIteration
            task = ahead.tasks.popleft() if ahead.tasks else None  # None: a signal handler has forked behind the look
            if task is not None and self._prefetch > 1:  # else its lease tells when it was handed out
                _note_begin(task)
            if task is not None and process == forks.depth:
                return task
            failure: BaseException = ForkedChild("a loop's step")
        except ForkedInCall as forked:  # between two looks
            failure = forked.error
        raise failure

    def close(self) -> None:
        """End the loop, and put back what was leased ahead. A task that was handed out stays leased."""
        self._closed = True
        self._put_back()

    def _put_back(self) -> None:
        """Put back what was leased ahead."""
        if tasks := self._taken_out():
            try:
                self._queue.release(tasks)
            except LeaseLost:
                pass  # other workers have them by now

    def _taken_out(self) -> list[LeasedTask]:
        """End the leasing ahead. Return what this process has leased so far and not handed out."""
        self._ahead.open = False
        tasks, self._ahead.tasks = list(self._ahead.tasks), deque()
        for task in tasks:
            task.took_s = 0.0
        return tasks

    def __repr__(self) -> str:
        state = "closed" if self._closed else f"{len(self._ahead.tasks)} leased ahead"
        return f"<Poll of {self._queue!r} until {self._until}, {state}>"

    def __enter__(self) -> Poll:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        # The garbage collector may call this at any allocation, also under a lock that this very thread has taken.
        # To release here would then wait for ever; so another thread does it. Starting one takes no lock.
        try:
            if tasks := self._taken_out():
                dropped.append((self._queue, tasks))
                _thread.start_new_thread(put_back_dropped, ())
        except (AttributeError, RuntimeError, TypeError):
            # Never opened; or no thread can be started: the next lease, or the exit, puts them back; or that was so.
            pass
