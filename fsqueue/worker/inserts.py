"""Tasks to insert as another one completes: what a handler returns with `Then`, or what a command prints with --then.

They are checked and encoded where they come to be: in the handler's process, or as a command ends. From there to the
update that inserts them they are bytes, so that their number and size bound the memory.

What is said of them becomes the reason of a failure. It quotes nothing of them, since it is kept longer (decision 38).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from fsqueue.errors import InvalidArgument, InvalidTask
from fsqueue.format import names, user_json
from fsqueue.format.models import Task
from fsqueue.format.priority import Priority
from fsqueue.format.task_file import decode_task
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol.encoding import When, available_from, encode
from fsqueue.protocol.single_inserts import TASK_BYTES_MAX
from fsqueue.then import Then

INSERTS_MAX = 9_999
"""Maximum number of tasks that are inserted with one completion: an update has at most 10,000 operations."""
INSERTS_BYTES_MAX = 8 << 20
"""Maximum number of bytes of their lines together. A worker holds them in memory, for each task at work and each
outcome to tell."""


class NotInserted(Exception):
    """Say why tasks cannot be inserted. `verb`: what becomes of the task: "fail", or "bury" if it would not help."""

    def __init__(self, verb: str, why: str) -> None:
        super().__init__(why)
        self.verb = verb


class Insert(NamedTuple):
    """A task to insert into a queue of the group."""

    queue: str
    line: bytes
    """The task as it stands in a task file."""
    when: When
    """When it becomes available: (absolute or from now on, milliseconds)."""
    key: str | None = None

    def task(self) -> Task:
        """Return it as a Task."""
        record = decode_task(self.line)
        is_absolute, ms = self.when
        priority: Priority | None = record.get("priority")
        if is_absolute and ms:
            return Task(record["payload"], self.key, priority, available_at=ms / 1000)
        return Task(record["payload"], self.key, priority, delay_s=ms / 1000)


@dataclass(frozen=True, slots=True)
class Inserts:
    """All that is inserted with one completion."""

    each: tuple[Insert, ...] = ()
    size: int = 0
    """Number of bytes of their lines."""


NONE = Inserts()


def of_then(then: Then) -> Inserts:
    """Check and encode what a handler returned. NotInserted."""
    given: Any = then.inserts
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise NotInserted("fail", f"fsqueue.Then: inserts must be a list of pairs, not {type(given).__name__}.{_PAIR}")
    return _collected(_of_pair(number, one) for number, one in enumerate(given, 1))


_PAIR = ' Give each as ("NAME OF A QUEUE", payload).'


def _of_pair(number: int, pair: Any) -> Insert:
    if isinstance(pair, str) or not isinstance(pair, Sequence) or len(pair) != 2:
        raise NotInserted("fail", f"fsqueue.Then: insert number {number} is no pair.{_PAIR}")
    name, payload = pair
    task = payload if isinstance(payload, Task) else Task(payload)
    return _encoded(queue_name(name, f"fsqueue.Then: insert number {number}"), task, f"insert number {number}")


def of_moved(task: LeasedTask, queue: str) -> Inserts:
    """Return a leased task as one to insert into another queue, available at once. NotInserted if it is too large."""
    return _collected([_encoded(queue, Task(task.payload, task.key, task.priority), "the task")])


def queue_name(name: object, where: str) -> str:
    """Return the name of a queue of a group. NotInserted."""
    if not isinstance(name, str):
        raise NotInserted("fail", f"{where}: the name of a queue is a text, not {type(name).__name__}.")
    try:
        names.queue_directory(name)
    except InvalidArgument:
        why = f"its first item cannot be the name of a queue in a group: {names.QUEUE_NAME_RULE} Nothing was inserted."
        raise NotInserted("fail", f"{where}: {why}") from None
    return name


def of_output(data: bytes, queue: str) -> Inserts:
    """Return the tasks that a command has printed, one in JSON on each line. Blank lines are none. NotInserted.

    `data`: the beginning of what it printed, at least one byte more than INSERTS_BYTES_MAX if there is more.
    """
    if len(data) > INSERTS_BYTES_MAX:
        raise NotInserted("bury", f"its output takes more than {INSERTS_BYTES_MAX:,} bytes. {_LESS}")
    return _collected(_of_lines(data, queue))


_LESS = "Nothing was inserted. Write large data to files and print their paths, or split the task into smaller ones."


def _of_lines(data: bytes, queue: str) -> Iterator[Insert]:
    for number, line in enumerate(data.split(b"\n"), 1):
        if not line.strip():
            continue
        where = f"line {number} of its output"
        if len(line) > TASK_BYTES_MAX:
            raise NotInserted("bury", _too_large(where, len(line)))
        try:
            payload = user_json.decode(line)
        except user_json.NotExact as error:
            raise NotInserted(
                "fail", f"{where} {error.unquoted}. Nothing was inserted. Print a task in JSON on each line."
            ) from None
        yield _encoded(queue, Task(payload), where)


def _encoded(queue: str, task: Task, where: str) -> Insert:
    try:
        available_from(task, None)
    except InvalidTask:
        why = "has a delay_s or available_at that is no number of seconds from 0 on, or has both"
        raise NotInserted("fail", f"{where} cannot be inserted. It {why}. Nothing was inserted.") from None
    try:
        encoded = encode(task, sys.maxsize)
    except InvalidTask as error:
        raise NotInserted("fail", f"{where} cannot be inserted. {error} Nothing was inserted.") from None
    if len(encoded.line) > TASK_BYTES_MAX:
        raise NotInserted("bury", _too_large(where, len(encoded.line)))
    return Insert(queue, encoded.line, encoded.when, encoded.key)


def _too_large(where: str, size: int) -> str:
    return (
        f"{where} takes {size:,} bytes; a task that is inserted in one step with a completion may take "
        f"{TASK_BYTES_MAX:,}. Nothing was inserted. Store the data in a file, and give its path."
    )


def _collected(inserts: Iterable[Insert]) -> Inserts:
    """Collect them. NotInserted for more than are allowed, as soon as that is known."""
    each: list[Insert] = []
    size = 0
    for insert in inserts:
        each.append(insert)
        size += len(insert.line)
        if len(each) > INSERTS_MAX:
            raise NotInserted(
                "bury", f"more than {INSERTS_MAX:,} tasks were to be inserted with one completion. {_LESS}"
            )
        if size > INSERTS_BYTES_MAX:
            raise NotInserted("bury", f"the tasks to insert take more than {INSERTS_BYTES_MAX:,} bytes. {_LESS}")
    return Inserts(tuple(each), size)


def packed(inserts: Inserts) -> list[Any]:
    """Return them as JSON values, for a message between processes."""
    return [[one.queue, one.line.decode(), *one.when, one.key] for one in inserts.each]


def unpacked(values: Any) -> Inserts:
    """Return what `packed` was given. ValueError or TypeError for anything else."""
    each = []
    for queue, line, is_absolute, ms, key in values:
        if not (type(queue) is type(line) is str and type(is_absolute) is bool and type(ms) is int):
            raise ValueError("no task to insert")
        if key is not None and type(key) is not str:
            raise ValueError("no key")
        each.append(Insert(queue, line.encode(), (is_absolute, ms), key))
    return Inserts(tuple(each), sum(len(one.line) for one in each))
