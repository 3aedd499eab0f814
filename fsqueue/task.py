"""What users hold: tasks to insert, leased tasks, and what is known of a task."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, fields
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal

from fsqueue import identity
from fsqueue.batch import payload_fields
from fsqueue.clock import duration_ms, pause_s
from fsqueue.errors import Bury, InvalidArgument, LeaseLost, Retry, bury_reason
from fsqueue.names import Batch

if TYPE_CHECKING:
    from fsqueue.poll import Prefetched
    from fsqueue.queue import Queue

State = Literal["waiting", "delayed", "leased", "completed", "dead", "cancelled"]
WAITING: Final = "waiting"
DELAYED: Final = "delayed"
LEASED: Final = "leased"
COMPLETED: Final = "completed"
DEAD: Final = "dead"
CANCELLED: Final = "cancelled"
STATES: tuple[State, ...] = (WAITING, DELAYED, LEASED, COMPLETED, DEAD, CANCELLED)
"""The states of a task. A task whose lease has run out is waiting again, by itself."""


class _AsDict:
    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, ready for JSON.

        A payload of bytes is not in `payload`, but in `b64` as base64 text, as in the queue's files.
        """
        found: dict[str, Any] = {}
        for field in fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            found |= payload_fields(value) if field.name == "payload" else {field.name: value}
        return found


@dataclass(frozen=True, slots=True)
class Task:
    """A task to insert. `payload` is any JSON value, or bytes; see `Queue.insert` for what comes back changed.

    `delay_s`: seconds before it becomes available; `available_at`: the same as an absolute time in
    Unix seconds (give one of the two).
    """

    payload: Any
    key: str | None = None
    priority: str | int | None = None
    delay_s: float = 0
    available_at: float | None = None


@dataclass(frozen=True, slots=True)
class TaskRef:
    """A task that was inserted: its id, and whether it is new."""

    id: str
    inserted: bool = True

    def __str__(self) -> str:
        return self.id


class LeasedTask:
    """A task that this process holds until `lease_until` (Unix seconds), and the verbs that end its lease.

    As a context manager it completes the task, or fails it with the error that the block raised; KeyboardInterrupt,
    SystemExit and a cancellation by asyncio release it. The error is raised on. In a loop over `Queue.poll` it is
    logged instead, and the loop goes on. `fsqueue.Retry` and `fsqueue.Bury` mean what they mean in a worker's handler,
    and end there: the program goes on behind the block. What the block dealt with itself is left alone. A child that
    was forked in the block and leaves it changes nothing: the task is its parent's. `async with` does the same in a
    thread.
    """

    key: str | None = None
    priority: str | None = None
    poll: Prefetched | None = None
    """The loop that has leased it, if one has."""
    began: float | None = None
    """When a loop that leases ahead handed it out, on the queue's monotonic clock; None: with its lease, or unknown."""
    took_s: float | None = None
    """How long the work on it took, if that was measured."""
    done = False
    _retries = 0
    """How many `with` blocks of this process in a row have asked for another time without saying when."""
    _entered_by = -1
    """The process that has entered its `with` block, by `identity.forks`."""
    solo = False
    """Leased alone, because it may have killed a worker."""

    def __init__(
        self,
        queue: Queue,
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
        """1 for the first attempt; failures and expired leases count."""
        self.version = version
        self.until_ms = until_ms
        self.generation = generation
        """The queue's generation that it was leased from."""

    @property
    def id(self) -> str:
        """The task's id, never used twice."""
        return f"{self.batch}.{self.index}"

    @property
    def token(self) -> str:
        """What another process needs to act on this lease: see `Queue.attach`."""
        return f"{self.batch}.{self.index}@{self.lease}"

    @property
    def lease_until(self) -> float:
        """When the lease ends, in Unix seconds on the file server's clock."""
        return self.until_ms / 1000

    def complete(self, result: Any = None) -> None:
        """Report the task as done, with a small JSON `result` to keep. LeaseLost: drop the work."""
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

    def __enter__(self) -> LeasedTask:
        self._entered_by = identity.forks
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._entered_by != identity.forks:
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

    def _end(self, error: Exception) -> bool:
        """End the lease as the error of a block asks for. Return whether that is all there is to do about it."""
        if isinstance(error, Retry):
            return self._retry(error)
        if isinstance(error, Bury):
            self.bury(bury_reason(error))
            return True
        if not isinstance(error, LeaseLost):
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
        from fsqueue.aside import in_thread

        return await in_thread(lambda: self.__exit__(kind, error, trace))

    def __repr__(self) -> str:
        return f"<LeasedTask {self.id} attempt {self.attempt}>"


@dataclass(frozen=True, slots=True)
class TaskInfo(_AsDict):
    """What is known of a task. Times are Unix seconds; a payload is None once the task has finished."""

    id: str
    state: State
    payload: Any = None
    attempt: int = 0
    since: float | None = None
    available_at: float | None = None
    lease_until: float | None = None
    worker: dict[str, Any] | None = None
    error: str | None = None
    result: Any = None
    version: int = 0
    key: str | None = None
    priority: str | None = None


@dataclass(frozen=True, slots=True)
class Movement(_AsDict):
    """One thing that happened to a task. Times are Unix seconds."""

    op: str
    at: float
    lease: str | None = None
    until: float | None = None
    available_at: float | None = None
    worker: dict[str, Any] | None = None
    error: str | None = None
    reason: str | None = None
    result: Any = None
    took_s: float | None = None
    """How long the work took that this ended, where it differs from how long the task was leased."""

    def as_dict(self) -> dict[str, Any]:
        """The fields that are set, by name."""
        return {key: value for key, value in _AsDict.as_dict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class DeadLetter(_AsDict):
    """A task that was given up, with the reason. `at` is in Unix seconds.

    `payload_lost`: its task file was damaged or removed, so that `payload` is None and it cannot be retried.
    """

    id: str
    payload: Any
    reason: str
    at: float
    attempt: int = 0
    worker: dict[str, Any] | None = None
    payload_lost: bool = False


@dataclass(frozen=True, slots=True)
class Status:
    """How many tasks are in which state. `inserted` is the sum of the others, always."""

    waiting: int = 0
    delayed: int = 0
    leased: int = 0
    completed: int = 0
    dead: int = 0

    @property
    def inserted(self) -> int:
        """All tasks there ever were, but the cancelled ones and the dead letters thrown away."""
        return self.waiting + self.delayed + self.leased + self.completed + self.dead

    @property
    def remaining(self) -> int:
        """Tasks without an outcome yet."""
        return self.waiting + self.delayed + self.leased

    @property
    def drained(self) -> bool:
        """Whether nothing is waiting, delayed or leased."""
        return self.remaining == 0

    def as_dict(self) -> dict[str, int]:
        """The numbers by name, `inserted` first."""
        return {"inserted": self.inserted, **{field.name: getattr(self, field.name) for field in fields(self)}}


@dataclass(frozen=True, slots=True)
class CommitPart(_AsDict):
    """What one `Commit.stage` has staged: small, it pickles, and goes through JSON as `CommitPart(**part.as_dict())`.

    The batches of a part are named in a row, from `first` on; `queue` and `generation` tell where they were staged.
    """

    commit: str
    attempt: str
    first: str
    files: int
    tasks: int
    bytes: int
    queue: str
    generation: int


@dataclass(frozen=True, slots=True)
class CommitReport(_AsDict):
    """What a commit has inserted, and when it was decided (Unix seconds). `repeated`: not by this call."""

    name: str
    tasks: int
    files: int
    bytes: int
    at: float
    repeated: bool = False


@dataclass(slots=True)
class GcReport(_AsDict):
    """What upkeep found and mended, in numbers of files or batches."""

    finished: int = 0
    staged_reaped: int = 0
    commits_applied: int = 0
    attempts_reaped: int = 0
    generations_trashed: int = 0
    history_days_removed: int = 0
    letters_added: int = 0
    renamed: int = 0
    retries_published: int = 0
    touched: int = 0
    trash_reaped: int = 0
    stray: int = 0
    busy: int = 0
