"""An update as its user puts it together: each verb, what guards it, and what it has brought about.

Who applies the update is left open: `Update` does so in this process, and a gateway does it for `RemoteUpdate`. So a
guard stands here once, and holds for both.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar

from fsqueue import forks
from fsqueue.arguments import one_task, payloads_of, refuse, results_of
from fsqueue.clock import duration_ms
from fsqueue.errors import InvalidArgument, InvalidTask, TaskTooLarge, said, text_of
from fsqueue.filesystem import resources
from fsqueue.format import names, task_file
from fsqueue.format.decisions import OPERATIONS_MAX
from fsqueue.format.models import Task, TaskInfo, TaskRef, TellsOfTasks
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol import encoding, transitions
from fsqueue.protocol.encoding import EncodedTask
from fsqueue.protocol.single_inserts import TASK_BYTES_MAX
from fsqueue.protocol.update_plan import Applied, SeenTask, TaskChange
from fsqueue.user_code import unwrapped

ENCODED_BYTES_MAX = 1 << 30
"""A longer payload is not even encoded: the error that says so is the same."""
NOTHING = "Nothing of the update has happened."


class Plan(Protocol):
    """Collect what an update does in one queue."""

    @property
    def name(self) -> str:
        """Return the queue's name."""

    def insert(self, task: EncodedTask, /) -> None:
        """Add a task to insert. Of several with one key, the first one counts."""

    def add_change(self, change: TaskChange, /) -> None:
        """Add a change of an existing task."""


P = TypeVar("P", bound=Plan)
Q = TypeVar("Q")
"""The queues that it changes."""


class PendingUpdate(ABC, Generic[Q, P]):
    """Changes to tasks of one group's queues that happen all together, or not at all.

    As a context manager it is applied at the end of the block, and not after an exception. In a child that was forked
    in the block it is not applied: it is the parent's. Not thread-safe.
    """

    def __init__(self) -> None:
        self.results: list[Any] = []
        """Results of the calls, in their order, once the update is applied: a TaskRef for an insert, a list of them for
        `insert_many`, the task for a renewal or a replacement, None for any other call."""
        self.versions: dict[str, int] = {}
        """The version of each task that it has inserted without a key, by the task's id, once it is applied."""
        self._calls: list[Callable[[_Outcome], Any]] = []
        self._tasks: set[tuple[str, str]] = set()
        self._ended: list[LeasedTask] = []
        self._count = 0
        self._is_applied = False
        self._entered_by = -1

    def __enter__(self) -> Self:
        self._entered_by = forks.depth
        return self

    def __exit__(self, kind: object, error: BaseException | None, at: TracebackType | None) -> None:
        if kind is None and not self._is_applied and self._entered_by == forks.depth:
            self.apply()

    # -- what it is to do --------------------------------------------------------------------------

    def insert(
        self,
        queue: str | Q,
        payload: Any,
        *,
        key: str | None = None,
        priority: str | int | None = None,
        delay_s: float = 0,
        available_at: float | None = None,
    ) -> None:
        """Insert one task, as `Queue.insert` does. The queue comes into being if it is not there.

        `queue`: its name in the group, or the queue. A payload may take 64 KiB as JSON, with its key. While a task with
        the `key` is waiting, delayed or leased, nothing is inserted, and the rest of the update happens: `results` has
        the id of that task, with `inserted` False. It lived while the update was applied. `apply` raises
        InvalidArgument if this update completes, fails or buries the task that has the key: it cannot insert it anew.
        To do that task again, `release` it, with a delay.
        """
        default = encoding.NOW
        if available_at is not None or type(delay_s) is not int or delay_s:
            default = encoding.available_from(Task(None, delay_s=delay_s, available_at=available_at), None)
        if key is None and priority is None:
            encoded = _encoded(payload, None, default)
        else:
            encoded = _encoded(one_task(payload, key, priority), None, default)
        plan = self._plan_for(queue, 1)
        plan.insert(encoded)
        name, key = plan.name, encoded.key
        self._calls.append(lambda outcome: outcome.of_insert(name, key))

    def insert_many(self, queue: str | Q, payloads: Iterable[Any]) -> None:
        """Insert payloads or Tasks, in their order; those with keys after the others, as `insert` does."""
        with unwrapped():
            tasks = [
                _encoded(item, index, encoding.NOW) for index, item in enumerate(payloads_of(payloads, "insert_many"))
            ]
        plan = self._plan_for(queue, len(tasks))
        for task in tasks:
            plan.insert(task)
        name, keys = plan.name, [task.key for task in tasks]
        self._calls.append(lambda outcome: [outcome.of_insert(name, key) for key in keys])

    def complete(self, task: LeasedTask, result: Any = None) -> None:
        """Report a task as done, with a small result to keep, as `task.complete` does."""
        encoded: bytes | None = None
        if result is not None:
            with unwrapped():
                found, refused = results_of({_held(task).id: result})
            refuse(refused)
            encoded = found[task.batch, task.index]
        self._end(task, TaskChange("complete", _held(task), encoded))

    def renew(self, task: LeasedTask, lease_s: float | None = None) -> None:
        """Extend a task's lease, as `task.renew` does; by default by the time that its queue gives."""
        lease_ms = self._usual_lease_ms(_held(task)) if lease_s is None else duration_ms(lease_s, "lease_s", 0.001)
        self._end(task, TaskChange("renew", task, ms=lease_ms))

    def release(self, task: LeasedTask, delay_s: float = 0) -> None:
        """Put a task back, uncharged, as `task.release` does."""
        self._end(task, TaskChange("release", _held(task), ms=duration_ms(delay_s, "delay_s")))

    def fail(self, task: LeasedTask, error: object, delay_s: float | None = None) -> None:
        """Record a failed attempt, as `task.fail` does."""
        text = transitions.shorten(said(error) if isinstance(error, BaseException) else text_of(error))
        self._end(
            task,
            TaskChange("fail", _held(task), ms=None if delay_s is None else duration_ms(delay_s, "delay_s"), text=text),
        )

    def bury(self, task: LeasedTask, reason: object) -> None:
        """Give a task up at once, as `task.bury` does."""
        self._end(task, TaskChange("bury", _held(task), text=transitions.shorten(text_of(reason))))

    def cancel(self, task: LeasedTask | TaskInfo) -> None:
        """Take a task out: it counts as cancelled, and no worker executes it.

        `task`: one that this process has leased; or one that was looked up (`group[name].task(id)`), and that is still
        as it was then when the update is applied. UpdateConflict then says of one that is not: `changed`, `owned` if
        a worker has leased it, or `missing`.
        """
        self._end(task, TaskChange("cancel", _seen(task)))

    def replace(self, task: LeasedTask | TaskInfo, payload: Any) -> None:
        """Give a task another payload, any JSON of up to 64 KiB. Its id, key, priority and attempts stay.

        `task`: as in `cancel`. A lease of this process goes on, and `task.payload` is the new one afterwards. A task
        whose lease has run out is `owned`, too, until a worker takes it over: the former one may still complete it.
        """
        if isinstance(payload, (bytes, Task)):
            raise InvalidTask(
                f"A new payload is JSON, not {type(payload).__name__}. Nothing was done. Cancel the task, and insert "
                "another one."
            )
        encoded = _encoded(payload, None, encoding.NOW)
        value = task_file.decode_task(encoded.line)["payload"]  # as a lessee would get it
        self._end(task, TaskChange("replace", _seen(task), task_file.encode_json(value, "payload")), value)

    def depends(self, task: LeasedTask | TaskInfo) -> None:
        """Let the update happen only if a task is as it was seen. Nothing of that task changes.

        `task`: one that this process has leased: its lease must hold. Or one that was looked up
        (`group[name].task(id)`), waiting or leased: it must have the same version. No process changes it until the
        update is decided, but for a renewal of its lease. UpdateConflict lists in `depends` what is not so.
        """
        self._end(task, TaskChange("depends", _seen(task)))

    # -- to do it ----------------------------------------------------------------------------------

    def apply(self, timeout_s: float = 30) -> list[Any]:
        """Apply all changes of the update, durably, and return `results`. It waits up to `timeout_s` for others in the
        way.

        UpdateConflict, GroupNotFound: nothing has happened. StorageError with `advice`: nobody knows whether it has.
        StorageFull and others: nothing has happened, or the text says so. An update may be applied once.
        """
        duration_ms(timeout_s, "timeout_s")
        self._refuse_second()
        process = forks.depth
        applied = self._carry_out(timeout_s)
        self._is_applied = True
        for task in self._ended:
            task.done = True
        self.versions = applied.new_versions
        outcome = _Outcome(applied, self._queue_named)
        self.results = [call(outcome) for call in self._calls]
        self._calls = []
        self._forget()
        if forks.depth != process:
            raise resources.in_child(None)
        return self.results

    # -- what differs ------------------------------------------------------------------------------

    @abstractmethod
    def _plan(self, queue: object) -> P:
        """Return the plan of a queue: by its name, or the queue itself. InvalidArgument if it is not this group's."""

    @abstractmethod
    def _queue_named(self, name: str) -> TellsOfTasks:
        """Return the group's queue of this name, for the references to what was inserted into it."""

    @abstractmethod
    def _usual_lease_ms(self, task: LeasedTask) -> int | None:
        """Return for how long the task's queue renews a lease (ms); None if what applies the update knows that."""

    @abstractmethod
    def _carry_out(self, timeout_s: float) -> Applied:
        """Apply all changes of the update. Return what it has brought about; errors as of `apply`."""

    @abstractmethod
    def _forget(self) -> None:
        """Forget the planned changes, with their payloads, and all that refers back to this update."""

    # -- the guards --------------------------------------------------------------------------------

    def _refuse_second(self) -> None:
        if self._is_applied:
            raise InvalidArgument("This update has been applied. Nothing was done now: make another one.")

    def _end(self, task: LeasedTask | TaskInfo, ending: TaskChange, payload: Any = None) -> None:
        plan = self._plan_for(task.queue, 1)
        identity = plan.name, task.id
        if identity in self._tasks:
            raise InvalidArgument(
                f"The task {task.id} is in this update already. An update names a task once: a change depends on the "
                "task, too. Nothing was done."
            )
        self._tasks.add(identity)
        plan.add_change(ending)
        if ending.kind not in ("renew", "replace"):
            if isinstance(task, LeasedTask) and ending.kind != "depends":
                self._ended.append(task)
            self._calls.append(_no_result)
            return
        place = ending.task.batch, ending.task.index

        def changed(outcome: _Outcome) -> LeasedTask | TaskInfo:
            if isinstance(task, TaskInfo):
                return replace(task, payload=payload, version=outcome.applied.versions[place])
            if ending.kind == "replace":
                task.payload, task.version = payload, outcome.applied.versions[place]
            else:
                task.until_ms = outcome.applied.until.get(place, task.until_ms)
            return task

        self._calls.append(changed)

    def _plan_for(self, queue: object, operations: int) -> P:
        """Count operations on a queue, and return its plan. InvalidArgument: they are too many; or as `_plan`."""
        if self._is_applied:
            self._refuse_second()
        if self._count + operations > OPERATIONS_MAX:
            raise InvalidArgument(
                f"An update has at most {OPERATIONS_MAX:,} operations, and this one would have more. Nothing was done. "
                "Make several updates, or insert many tasks at once by `Queue.insert_many`."
            )
        self._count += operations
        return self._plan(queue)


def _no_result(outcome: _Outcome) -> None:
    """Return None: the result of a call that ends a task."""


class _Outcome:
    """Tell what has happened, call by call."""

    def __init__(self, applied: Applied, queue_named: Callable[[str], TellsOfTasks]) -> None:
        self.applied = applied
        self._ids = {queue: iter(ids) for queue, ids in applied.inserted.items()}
        self._keyed = dict(applied.keyed)
        self._queues = {name: queue_named(name) for name in {*self._ids, *(queue for queue, _ in self._keyed)}}

    def of_insert(self, queue: str, key: str | None) -> TaskRef:
        """Return the task of the next insert into a queue; of a key only the first insert may have made a task."""
        if key is None:
            return TaskRef(next(self._ids[queue]), True, self._queues[queue])
        found = self._keyed[queue, key]
        self._keyed[queue, key] = TaskRef(found.id, inserted=False)
        return TaskRef(found.id, found.inserted, self._queues[queue])


def _seen(task: object) -> LeasedTask | SeenTask:
    """Return a leased task, or what was seen of one that was looked up. InvalidArgument for anything else."""
    if isinstance(task, LeasedTask):
        return task
    if not isinstance(task, TaskInfo):
        raise InvalidArgument(
            f"A leased task is expected, or one that was looked up by `group[name].task(id)`, not {task!r:.100}. "
            "Nothing was done."
        )
    if task.queue is None:
        raise InvalidArgument(
            f"The task {task.id} was not looked up in a queue of a group. Nothing was done. Look it up by "
            "`group[name].task(id)`."
        )
    return SeenTask(*names.parse_task_id(task.id), task.version)


def _held(task: object) -> LeasedTask:
    if not isinstance(task, LeasedTask):
        raise InvalidArgument(f"A leased task is expected, as `lease` returns it, not {task!r:.100}. Nothing was done.")
    return task


def _encoded(item: Any, index: int | None, default: encoding.When) -> EncodedTask:
    """Encode a payload or a Task, of which `index` is the place in the call."""
    if isinstance(item, Task):
        encoded = encoding.encode(item, ENCODED_BYTES_MAX, index, default)
    else:
        encoded = EncodedTask(task_file.encode_task(item, ENCODED_BYTES_MAX, index), default, place=index)
    if len(encoded.line) > TASK_BYTES_MAX:
        raise TaskTooLarge(
            f"{encoding.task_at(index)} takes {len(encoded.line):,} bytes; in an update it may take "
            f"{TASK_BYTES_MAX:,}. Nothing was done. Store the data in a file, and insert its path.",
            index,
        )
    return encoded
