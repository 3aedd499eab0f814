"""The files of a group's barriers: their names, which tell how far they are, and their content.

docs/format-groups.md, "Barriers". Pure: no clock, no input or output.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from typing import Any, Final, Literal, NamedTuple, get_args

import orjson

from fsqueue.errors import InvalidArgument
from fsqueue.format import movements, names, task_file
from fsqueue.format.groups import barriers_directory
from fsqueue.format.models import DELAYED, Task, TaskInfo
from fsqueue.format.names import Batch, Uuid

NEVER_S: Final = 9_999_999_998
"""When tasks are due that a barrier holds. No user means this time: it is in the year 2286."""
NEVER_MS: Final = NEVER_S * 1000
Step = Literal["begun", "waiting", "firing", "fired", "cancelling", "cancelled"]
"""How far a barrier is."""
STEPS: tuple[Step, ...] = get_args(Step)
ENDED: Final = ("fired", "cancelled")
OnFailure = Literal["run", "wait", "drop"]
ON_FAILURE: tuple[OnFailure, ...] = get_args(OnFailure)
_NAME = re.compile(rf"([0-9a-f]{{32}})\.({'|'.join(STEPS)})")


class BatchTasks(NamedTuple):
    """Some tasks of a batch: those of a join's set."""

    queue: str
    """The name of the queue."""
    batch: Batch
    ranges: tuple[tuple[int, int], ...]
    """Half-open ranges of indices, in ascending order."""

    def indices(self) -> list[int]:
        """Return the indices of the tasks, in ascending order."""
        return [index for start, end in self.ranges for index in range(start, end)]

    def ids(self) -> list[str]:
        """Return the ids of the tasks, in the order of `indices`."""
        return [names.task_id(self.batch, index) for index in self.indices()]

    @property
    def size(self) -> int:
        """Return the number of tasks."""
        return sum(end - start for start, end in self.ranges)

    @classmethod
    def of(cls, queue: str, batch: Batch, indices: Collection[int]) -> BatchTasks:
        """Return tasks of a batch by their indices."""
        assert indices, "a join waits for tasks"
        return cls(queue, batch, tuple((start, end) for start, end in movements.to_ranges([*indices])))


class BarrierRecord(NamedTuple):
    """What a barrier waits for, and what comes then."""

    id: Uuid
    at: int
    """When it was set (ms)."""
    of: tuple[str, ...]
    """The names of queues. Empty if there is a pattern, or tasks."""
    match: str | None
    """A regular expression for the names of queues."""
    on_failure: OnFailure
    then: tuple[tuple[str, bytes], ...]
    """The names of queues, and the line of the task that comes into each."""
    tasks: tuple[BatchTasks, ...] = ()
    """The tasks that a join waits for, in place of queues."""

    @property
    def commit(self) -> str:
        """Return the name under which each queue takes the tasks, once."""
        return f"barrier-{self.id}"

    def targets(self) -> dict[str, list[bytes]]:
        """Return the lines of the tasks by the names of their queues."""
        found: dict[str, list[bytes]] = {}
        for queue, line in self.then:
            found.setdefault(queue, []).append(line)
        return found

    def encode(self) -> bytes:
        """Return the content of the barrier's file."""
        assert (self.match is not None) + bool(self.of) + bool(self.tasks) == 1, "a barrier waits for one kind of thing"
        assert self.then, "a barrier that nothing follows"
        then = [{"queue": queue, "task": orjson.Fragment(line.rstrip(b"\n"))} for queue, line in self.then]
        line = {"op": "barrier", "id": self.id, "at": self.at, "of": self.of, "match": self.match,
                "on_failure": self.on_failure, "then": then}  # fmt: skip
        if self.tasks:
            line["tasks"] = [[part.queue, part.batch, part.ranges] for part in self.tasks]
        return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def path_of(group: str, identity: Uuid, step: Step) -> str:
    """Return the path of a barrier's file."""
    return f"{barriers_directory(group)}/{identity}.{step}"


def parse_name(name: str) -> tuple[Uuid, Step] | None:
    """Return which barrier has a file of this name, and how far it is; None for any other name."""
    found = _NAME.fullmatch(name)
    identity = None if found is None else names.parse_uuid(found[1])
    if found is None or identity is None:
        return None
    step: Any = found[2]
    return identity, step


def parse(content: bytes) -> BarrierRecord | None:
    """Return what a barrier's file says; None for anything that is none: any user of the group may have written it."""
    try:
        line = orjson.loads(content) if content.endswith(b"\n") else None
    except orjson.JSONDecodeError:
        return None
    match line:
        case {"op": "barrier", "id": identity, "at": int(at), "of": list(of), "on_failure": str(how),
              "then": list(given), **more}:  # fmt: skip
            known = names.parse_uuid(identity)
            pattern: Any = more.get("match")
            then = [one for one in map(_then, given) if one is not None]
            tasks = _tasks(more.get("tasks", []))
            is_sound = all(map(_is_queue, of)) and (pattern is None or _is_pattern(pattern)) and tasks is not None
            is_sound = is_sound and (pattern is not None) + bool(of) + bool(tasks) == 1
            if known is not None and is_sound and how in ON_FAILURE and then and len(then) == len(given):
                means: Any = how
                return BarrierRecord(known, at, tuple(of), pattern, means, tuple(then), tasks or ())
    return None


def _tasks(given: Any) -> tuple[BatchTasks, ...] | None:
    """Return the tasks of a join's set; None if they are damaged."""
    found: list[BatchTasks] = []
    for one in given if isinstance(given, list) else [None]:
        match one:
            case [queue, text, list(ranges)] if _is_queue(queue) and (batch := names.parse_batch(text)) is not None:
                pairs = [(one[0], one[1]) for one in ranges if _is_range(one)]
                if not pairs or len(pairs) < len(ranges):
                    return None
                found.append(BatchTasks(queue, batch, tuple(pairs)))
            case _:
                return None
    return tuple(found)


def _is_range(given: Any) -> bool:
    """Return whether this is a half-open range of indices of a batch."""
    match given:
        case [int(start), int(end)]:
            return 0 <= start < end <= names.BATCH_TASKS_MAX
    return False


def _is_queue(name: Any) -> bool:
    try:
        names.queue_directory(name)
    except InvalidArgument:
        return False
    return True


def _is_pattern(given: Any) -> bool:
    try:
        re.compile(given)
    except (re.error, OverflowError, RecursionError, TypeError):
        return False
    return type(given) is str


def _then(given: Any) -> tuple[str, bytes] | None:
    match given:
        case {"queue": str(queue), "task": dict(task)} if _is_queue(queue):
            try:
                task_file.decode_fields(task)
            except ValueError:
                return None
            return queue, orjson.dumps(task, option=orjson.OPT_APPEND_NEWLINE)
    return None


def is_held(task: TaskInfo) -> bool:
    """Return whether a barrier holds a task."""
    return task.state == DELAYED and task.available_at == NEVER_S


def tasks_of(lines: Sequence[bytes]) -> list[Task]:
    """Return the tasks of these lines, due never. ValueError if one is damaged."""
    found = []
    for line in lines:
        task = task_file.decode_task(line)
        found.append(Task(task_file.decode_fields(task), priority=task.get("priority"), available_at=NEVER_S))
    return found
