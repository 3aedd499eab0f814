"""A task that a process holds, and the verbs that end its lease (docs/design.md, section 4.7)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, TypeVar

from fsqueue import forks
from fsqueue.clock import duration_ms, pause_s
from fsqueue.errors import UNKEPT, Bury, InvalidArgument, InvalidResult, LeaseLost, Retry, bury_reason
from fsqueue.format import names
from fsqueue.format.layout import Settings
from fsqueue.format.models import Movement, Result, Status, TaskRef, Used
from fsqueue.format.names import Batch
from fsqueue.interruptions import suppress
from fsqueue.storage.store import Store

T = TypeVar("T")


class Verbs(Protocol):
    """The verbs that a leased task and its worker ask of the queue that it was leased from. `Queue` has them."""

    store: Store

    @property
    def path(self) -> Path:
        """Return the queue's directory."""

    @property
    def settings(self) -> Settings:
        """Return what was decided when the queue was created."""

    @property
    def generation(self) -> int:
        """Return the queue's generation, as last read."""

    def insert(
        self,
        payload: Any,
        *,
        key: str | None = None,
        priority: str | int | None = None,
        delay_s: float = 0,
        available_at: float | None = None,
        strict: bool = False,
    ) -> TaskRef:
        """Insert one task."""

    def insert_many(
        self,
        payloads: Iterable[Any],
        *,
        batch_tasks: int | None = None,
        delay_s: float = 0,
        commit: str | None = None,
        total: int | None = None,
        strict: bool = False,
    ) -> int:
        """Insert a stream of tasks."""

    def status(self, exact: bool = True) -> Status:
        """Count the tasks by state."""

    def history(self, id: str) -> list[Movement]:
        """Return what happened to a task."""

    def complete(self, tasks: LeasedTask | Iterable[LeasedTask], results: Mapping[str, Any] | None = None) -> None:
        """Report tasks as done."""

    def renew(self, tasks: LeasedTask | Iterable[LeasedTask], lease_s: float | None = None) -> None:
        """Extend leases."""

    def release(self, tasks: LeasedTask | Iterable[LeasedTask], delay_s: float = 0) -> None:
        """Put tasks back."""

    def _complete_one(self, task: LeasedTask, result: Any) -> None:
        """Complete a task."""

    def _fail(self, task: LeasedTask, error: object, delay_s: float | None) -> None:
        """Record a failed attempt."""

    def _bury(self, task: LeasedTask, reason: object) -> None:
        """Move a task to the dead letters."""


class Ahead(Protocol):
    """The verbs that a leased task asks of the loop that leased it. `fsqueue.poll.Prefetched` has them."""

    failures_max: float
    failures_left: float

    def complete(self, task: LeasedTask, result: bytes | None) -> bool:
        """Complete `task`, with a `result` as JSON, and lease another in one step; return False if nothing was done."""

    def goes_on(self, task: LeasedTask, error: Exception) -> bool:
        """Return whether the loop goes on after the error of a task's block."""


class LeasedTask:
    """A task that this process holds until `lease_until` (Unix seconds), and the verbs that end its lease.

    As a context manager it completes the task, or fails the attempt with the error that the block raised;
    KeyboardInterrupt, SystemExit and a cancellation by asyncio release it. The error is raised on. In a loop over
    `Queue.poll` it is logged instead, and the loop goes on. `fsqueue.Retry` and `fsqueue.Bury` mean what they mean in a
    worker's handler, and end there: the program goes on behind the block. What the block dealt with itself is left
    alone. A child that was forked in the block and leaves it changes nothing: the task is its parent's. `async with`
    does the same in a thread.
    """

    key: str | None = None
    priority: str | int | None = None
    done = False
    _retries = 0
    """Number of `with` blocks of this process in a row that have asked for another time without saying when."""
    _entered_by = -1
    """The process that has entered its `with` block, by `forks.depth`."""
    solo = False
    """True if the task was leased alone, because it may have killed a worker."""
    attempt: int
    """1 for the first attempt; failures and expired leases count."""
    version: int
    """A number that each change of the task changes; the one that the lease has given it. A renewal gives another,
    which is not told here: updates go by the lease."""
    generation: int
    """The queue's generation that it was leased from; 0 if only its token is known."""
    poll: Ahead | None
    """The loop that has leased it, if one has."""
    began: float | None
    """When a loop that leases ahead handed it out, on the queue's monotonic clock; None: with its lease, or unknown."""
    took_s: float | None
    """How long the work on it took, if that was measured."""
    used: Used | None
    """What the work used, if that was measured."""

    def __init__(
        self,
        queue: Verbs,
        batch: Batch,
        index: int,
        lease: str,
        payload: Any,
        attempt: int,
        version: int,
        until_ms: int,
        generation: int,
    ) -> None:
        self.queue = queue
        self.batch = batch
        self.index = index
        self.lease = lease
        self.payload = payload
        self.attempt = attempt
        self.version = version
        self.until_ms = until_ms
        self.generation = generation
        self.poll = self.began = self.took_s = self.used = None

    @property
    def id(self) -> str:
        """Return the task's id, never used twice."""
        return f"{self.batch}.{self.index}"

    @property
    def token(self) -> str:
        """Return the text by which another process acts on this lease: see `Queue.attach`."""
        return names.token(self.batch, self.index, self.lease)

    @property
    def lease_until(self) -> float:
        """Return when the lease ends, in Unix seconds on the file server's clock."""
        return self.until_ms / 1000

    def complete(self, result: Any = None) -> None:
        """Report the task as done, with a small `result` to keep. LeaseLost: drop the work.

        docs/functions.md says what a result may be. InvalidResult: it cannot be kept, and the lease goes on.
        """
        self.queue._complete_one(self, result)

    def renew(self, lease_s: float | None = None) -> None:
        """Extend the lease to `lease_s` seconds from now. LeaseExpired: it had run out; LeaseLost: taken over."""
        self.queue.renew([self], lease_s)

    def release(self, delay_s: float = 0) -> None:
        """Put the task back, available after `delay_s` seconds. The attempt is not counted."""
        self.queue.release([self], delay_s)

    def fail(self, error: object, delay_s: float | None = None) -> None:
        """Report a failed attempt. The task comes back after `delay_s` (default: growing pauses), or is buried."""
        self.queue._fail(self, error, delay_s)

    def bury(self, reason: object) -> None:
        """Move the task to the dead letters: it cannot succeed."""
        self.queue._bury(self, reason)

    def inputs(self) -> Iterator[Result]:
        """Yield what came of the tasks that a join has waited for, if a join has inserted this one (`Group.join`).

        In the order of the set, by batches: a `Result` for each task that is still on record, completed, dead or
        cancelled. Of a dead letter that was retried, it is that of the task which was inserted in its place. It reads
        one batch at a time. InvalidArgument for a task of no join, and for one of a join that has ended over a week
        ago.
        """
        inputs: Callable[[str], Iterator[Result]] | None = getattr(self.queue, "inputs", None)
        if inputs is None:
            raise InvalidArgument(
                f"The task {self.id} has no inputs: only a task that a join has inserted into a queue of a group has."
            )
        return inputs(self.id)

    def __enter__(self) -> LeasedTask:
        self._entered_by = forks.depth
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._entered_by != forks.depth:  # on the hot path: `_is_parents`, without a frame of its own
            return False
        poll = self.poll
        try:
            if error is None:
                if LeasedTask._retries:
                    LeasedTask._retries = 0
                if not self.done:
                    self.complete()
                if poll is not None:
                    poll.failures_left = poll.failures_max
                return False
            if not isinstance(error, Exception):
                if not self.done:
                    with suppress(LeaseLost):  # else Ctrl-C would not end the program
                        self.release()
                return False
            if not self.done and self._end(error):
                return True
        except LeaseLost as lost:
            if poll is None or not poll.goes_on(self, lost):
                raise
            return True
        return poll is not None and poll.goes_on(self, error)

    def _is_parents(self) -> bool:
        """Return whether this process was forked within the `with` block: the task is its parent's."""
        return self._entered_by != forks.depth

    def _end(self, error: Exception) -> bool:
        """End the lease as the error of a block asks for. Return whether that is all there is to do about it."""
        if isinstance(error, Retry):
            return self._retry(error)
        if isinstance(error, Bury):
            self.bury(bury_reason(error))
            return True
        if isinstance(error, InvalidResult) and self.id in error.reasons:  # the work is done, and would end so again
            self.bury(f"{UNKEPT}: {error.reasons[self.id]}")
        elif not isinstance(error, LeaseLost):
            self.fail(error)
        return False

    def _retry(self, error: Retry) -> bool:
        """Put the task back as a worker does whose handler raised `error`; False for a delay that is none."""
        try:
            delay_s = None if error.delay_s is None else duration_ms(error.delay_s, "delay_s") / 1000
        except InvalidArgument as invalid:
            self.fail(f"fsqueue.Retry: {invalid}")
            return False
        if delay_s is None:
            LeasedTask._retries += 1
            delay_s = pause_s(LeasedTask._retries, self.queue.store.entropy.random())
        self.release(delay_s)
        return True

    async def __aenter__(self) -> LeasedTask:
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._is_parents():  # whose event loop, and whose threads, this process does not have
            return False
        return await in_thread(lambda: self.__exit__(kind, error, trace))

    def __repr__(self) -> str:
        return f"<LeasedTask {self.id} attempt {self.attempt}>"


async def in_thread(act: Callable[[], T]) -> T:
    """Run blocking code of this package in a thread of the event loop's pool, and return what it returns.

    A cancellation waits until `act` has ended. Otherwise `act` would still run while the cancelled coroutine goes on.
    """
    with forks.held_off():
        import asyncio
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
