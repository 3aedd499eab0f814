"""Values that users hold, most of them frozen: tasks to insert, and facts about tasks, commits and queues."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Final, Literal, NamedTuple, Protocol

from fsqueue.errors import InvalidArgument
from fsqueue.format import names
from fsqueue.format.task_file import payload_fields

State = Literal["waiting", "delayed", "leased", "completed", "dead", "cancelled"]
WAITING: Final = "waiting"
DELAYED: Final = "delayed"
LEASED: Final = "leased"
COMPLETED: Final = "completed"
DEAD: Final = "dead"
CANCELLED: Final = "cancelled"
STATES: tuple[State, ...] = (WAITING, DELAYED, LEASED, COMPLETED, DEAD, CANCELLED)
"""The states of a task. A task whose lease has run out is waiting again, by itself."""


class AsDict:
    """Give a dataclass the method `as_dict`."""

    __slots__ = ()

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, ready for JSON.

        A payload of bytes is not in `payload`, but in `b64` as base64 text, as in the queue's files.
        """
        found: dict[str, Any] = {}
        for one in fields(self):  # type: ignore[arg-type]
            value = getattr(self, one.name)
            found |= payload_fields(value) if one.name == "payload" else {one.name: value}
        return found


@dataclass(frozen=True, slots=True)
class Task:
    """A task to insert. `payload` is any JSON value, or bytes; see `Queue.insert` for what comes back changed.

    `delay_s`: seconds before it becomes available; `available_at`: the same as an absolute time in
    Unix seconds (give one of the two).

    `key`: text of up to 1,024 bytes, unique among the tasks that are to be done: see `Queue.insert`. The task may then
    take 64 KiB.

    `priority`: text of up to 1,024 bytes, or a whole number of 64 bits. Smaller ones come first ("" before all), and
    tasks without one after all that have one. Texts are compared by their bytes in UTF-8, numbers by their size.
    """

    payload: Any
    key: str | None = None
    priority: str | int | None = None
    delay_s: float = 0
    available_at: float | None = None


class TellsOfTasks(Protocol):
    """A queue, at hand or behind a gateway, as a TaskRef asks it."""

    def task(self, id: str) -> TaskInfo:
        """Return what is known of a task."""

    def result(self, task: str, timeout_s: float | None = None) -> Any:
        """Wait for a task's result, and return it."""

    def results_of(self, ids: Iterable[str]) -> dict[str, Result]:
        """Return what is known of tasks, finished or not, by their ids."""

    @property
    def store(self) -> Any:
        """Return an object with the clock by which waits for the queue's tasks go."""

    def cancel(self, ids: str) -> int:
        """Cancel a task that no worker holds. Return how many were cancelled."""


class TaskRef:
    """A task that was inserted: its id, whether it is new, and its queue. What `insert` returns.

    It pickles, with its queue's path or address. Two of the same task are equal. What it is asked is named as in PEP
    3148.
    """

    __slots__ = ("_ended", "_id", "_inserted", "queue")

    def __init__(self, id: str, inserted: bool = True, queue: TellsOfTasks | None = None) -> None:
        """`queue`: None if it is not known. Then ask the queue: `queue.result(ref)`."""
        self._id, self._inserted, self.queue = id, inserted, queue
        self._ended: Result  # what came of the task, once `as_completed` has read that it is completed

    @property
    def id(self) -> str:
        """Return the task's id."""
        return self._id

    @property
    def inserted(self) -> bool:
        """Return whether the task is new: not if it has a key that another one had."""
        return self._inserted

    def result(self, timeout_s: float | None = None) -> Any:
        """Wait until the task is completed, and return its result, a JSON value.

        For `timeout_s` seconds at most (None: for ever). Errors: see `Queue.result`. `as_completed` has read the
        results of the references that it yields: those are at hand at once.
        """
        ended: Result | None = getattr(self, "_ended", None)
        return self._queue().result(self.id, timeout_s) if ended is None else ended.result

    def state(self) -> State:
        """Return the task's state now. TaskNotFound if nothing is known of it: see `Queue.task`."""
        return self._queue().task(self.id).state

    def cancel(self) -> bool:
        """Cancel the task, unless a worker holds it or it has ended. Return whether this call has cancelled it."""
        return self._queue().cancel(self.id) == 1

    def _queue(self) -> TellsOfTasks:
        if self.queue is None:
            raise InvalidArgument(
                f"This reference to {self.id} does not know the queue. Ask the queue: queue.result(ref)."
            )
        return self.queue

    def __str__(self) -> str:
        return self.id

    def __repr__(self) -> str:
        return f"TaskRef(id={self.id!r}, inserted={self.inserted!r})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TaskRef):
            return NotImplemented
        return (self.id, self.inserted) == (other.id, other.inserted)

    def __hash__(self) -> int:
        return hash(self.id)


@dataclass(frozen=True, slots=True)
class TaskInfo(AsDict):
    """Facts about a task. Times are Unix seconds. A finished task has its payload if that is kept."""

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
    """A number that each change of the task changes: `Update.cancel` and `replace` act only if it still has it."""
    key: str | None = None
    priority: str | int | None = None
    update: str | None = None
    """An atomic update that is not decided yet and changes this task. It is shown as it was before."""
    queue: str | None = None
    """The queue's name in its group; None outside of a group."""

    def as_result(self) -> Result:
        """Return what is known of the task, finished or not, as a result. It does not tell what an attempt used."""
        worker = self.worker or {}
        return Result(
            self.id,
            self.state,
            self.attempt,
            self.payload,
            self.result,
            self.error,
            worker.get("name"),
            worker.get("host"),
            inserted_at=_birth(self.id),
            started_at=self.since if self.state == LEASED else None,
            finished_at=self.since if self.state in (COMPLETED, DEAD, CANCELLED) else None,
            key=self.key,
            priority=self.priority,
        )


class Used(NamedTuple):
    """Resources that an attempt at a task used: of a command, and of all processes that it has waited for."""

    cpu_ms: int
    """Processor time, user and system."""
    peak_kib: int
    """The largest resident set of one of those processes."""


class Result(NamedTuple):
    """A task that has ended, completed or dead: what was put in beside what came out. Times are Unix seconds."""

    id: str
    state: State
    attempts: int
    """Number of attempts at the task, the last one included."""
    payload: Any = None
    """The task's payload; None if the history does not keep it (`keep_payloads`)."""
    result: Any = None
    error: str | None = None
    """Reason why the task was given up; of a completed task, the error of its last failed attempt."""
    worker: str | None = None
    """The worker's name, where it has one."""
    host: str | None = None
    inserted_at: float | None = None
    started_at: float | None = None
    """Time at which the last attempt began; None for a dead letter."""
    finished_at: float | None = None
    took_s: float | None = None
    """Duration of the work of the last attempt (s)."""
    cpu_s: float | None = None
    """Processor time of the last attempt, if the worker measured it."""
    peak_memory_bytes: int | None = None
    """The largest resident set of a process of the last attempt, if the worker measured it."""
    key: str | None = None
    priority: str | int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, ready for JSON. A payload of bytes is in `b64`, as base64 text."""
        found = self._asdict()
        if type(self.payload) is bytes:
            found |= payload_fields(found.pop("payload"))
        return found


@dataclass(frozen=True, slots=True)
class Movement(AsDict):
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
    """Duration of the work that this movement ended, where it differs from how long the task was leased (s)."""
    cpu_s: float | None = None
    """Processor time that the work used, where it was measured."""
    peak_memory_bytes: int | None = None
    """The largest resident set of one of its processes, where it was measured."""
    repeats: str | None = None
    """Id of the ended task, a dead letter or a completed one, that an insert has retried as this task."""
    update: str | None = None
    """The atomic update that the movement was a part of."""
    priority: str | int | None = None
    """The new priority, of a change that gave the task one."""

    def as_dict(self) -> dict[str, Any]:
        """Return the fields that are set, by name."""
        return {key: value for key, value in AsDict.as_dict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class DeadLetter(AsDict):
    """A task that was given up, with the reason. `at` is in Unix seconds.

    `payload_lost`: its task file was damaged or removed, so that `payload` is None and it cannot be retried. `cpu_s`,
    `peak_memory_bytes`: processor time (s) and peak memory of the last attempt; None where its worker did not tell.
    """

    id: str
    payload: Any
    reason: str
    at: float
    attempt: int = 0
    worker: dict[str, Any] | None = None
    payload_lost: bool = False
    key: str | None = None
    priority: str | int | None = None
    cpu_s: float | None = None
    peak_memory_bytes: int | None = None

    def as_result(self) -> Result:
        """Return the dead letter as a result."""
        worker = self.worker or {}
        return Result(
            self.id,
            DEAD,
            self.attempt,
            self.payload,
            error=self.reason,
            worker=worker.get("name"),
            host=worker.get("host"),
            inserted_at=_birth(self.id),
            finished_at=self.at,
            cpu_s=self.cpu_s,
            peak_memory_bytes=self.peak_memory_bytes,
            key=self.key,
            priority=self.priority,
        )


@dataclass(frozen=True, slots=True)
class Status:
    """Counts of tasks by state. `inserted` is the sum of the others, always."""

    waiting: int = 0
    delayed: int = 0
    leased: int = 0
    completed: int = 0
    dead: int = 0

    @property
    def inserted(self) -> int:
        """Return all tasks there ever were, but the cancelled ones and the dead letters thrown away."""
        return self.waiting + self.delayed + self.leased + self.completed + self.dead

    @property
    def remaining(self) -> int:
        """Return the number of tasks without an outcome."""
        return self.waiting + self.delayed + self.leased

    @property
    def drained(self) -> bool:
        """Return whether nothing is waiting, delayed or leased."""
        return self.remaining == 0

    def as_dict(self) -> dict[str, int]:
        """Return the numbers by name, `inserted` first."""
        return {"inserted": self.inserted, **{one.name: getattr(self, one.name) for one in fields(self)}}


@dataclass(frozen=True, slots=True)
class CommitPart(AsDict):
    """A part that `Commit.stage` has staged: small, and ready for pickle or for JSON (`CommitPart(**part.as_dict())`).

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
class CommitReport(AsDict):
    """Counts of what a commit inserted. `at`: when it was decided (Unix seconds). `repeated`: not by this call."""

    name: str
    tasks: int
    files: int
    bytes: int
    at: float
    repeated: bool = False


NEWEST_MAX = 1_000
"""Maximum number of results that are asked for as the newest ones."""
UNKEPT_NAMED_MAX = 20
"""Maximum number of tasks without a kept payload that a report names. It counts all of them."""


@dataclass(slots=True)
class RetryReport(AsDict):
    """Counts of what became of the completed tasks that were to be inserted again.

    `retried`: inserted by this call. `repeated`: left out, because they were inserted again before. `unkept`: left out,
    because the queue does not keep their payload; `unkept_ids` are the first twenty of those.
    """

    retried: int = 0
    repeated: int = 0
    unkept: int = 0
    unkept_ids: list[str] = field(default_factory=list)

    def note_unkept(self, task_id: str) -> None:
        """Count a task whose payload is not kept."""
        self.unkept += 1
        if len(self.unkept_ids) < UNKEPT_NAMED_MAX:
            self.unkept_ids.append(task_id)

    def add(self, other: RetryReport) -> None:
        """Add what became of other tasks."""
        self.retried, self.repeated = self.retried + other.retried, self.repeated + other.repeated
        self.unkept += other.unkept
        self.unkept_ids = (self.unkept_ids + other.unkept_ids)[:UNKEPT_NAMED_MAX]


@dataclass(slots=True)
class ChangeReport(AsDict):
    """Ids of the tasks that were to be changed, in order: those that were, and those that a worker held.

    A task that is in neither list has ended, or the queue does not know it.
    """

    changed: list[str] = field(default_factory=list)
    leased: list[str] = field(default_factory=list)

    def add(self, other: ChangeReport) -> None:
        """Add what became of other tasks."""
        self.changed += other.changed
        self.leased += other.leased


@dataclass(slots=True)
class GcReport(AsDict):
    """Counts of what upkeep found and mended, in files or batches.

    `inodes_given_back`, `bytes_given_back`: files and directories that upkeep removed, and the bytes that were in them.
    What a finished batch's log said goes to the history, whose growth is not subtracted.
    """

    finished: int = 0
    staged_reaped: int = 0
    commits_applied: int = 0
    attempts_reaped: int = 0
    generations_trashed: int = 0
    history_days_removed: int = 0
    payload_days_removed: int = 0
    payload_files_erased: int = 0
    keys_removed: int = 0
    decision_files_retired: int = 0
    number_files_retired: int = 0
    letters_added: int = 0
    renamed: int = 0
    retries_published: int = 0
    touched: int = 0
    trash_reaped: int = 0
    stray: int = 0
    busy: int = 0
    inodes_given_back: int = 0
    bytes_given_back: int = 0


def _birth(task_id: str) -> float:
    """Return about when a task was inserted (Unix seconds): when its batch was made."""
    return names.birth_ms(names.parse_task_id(task_id)[0]) / 1000
