"""Values of fsqueue in requests and answers: tasks that are sent, leased tasks, and all that is only looked at."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import IO, Any

from fsqueue.client.wire import Answer, encoded, lacking
from fsqueue.errors import InvalidArgument, LeaseLost, TaskNotFound, TaskTooLarge
from fsqueue.format import names
from fsqueue.format.models import Task
from fsqueue.format.task_file import decode_task
from fsqueue.leased_task import LeasedTask, Verbs
from fsqueue.protocol import encoding
from fsqueue.protocol.encoding import EncodedTask, task_at
from fsqueue.verbs.fields import BODY_BYTES_MAX
from fsqueue.views.activity import Activity, Failure, Held, MostUsed, Rate
from fsqueue.views.attaching import WithoutPayload

BYTES_MAX = 1 << 30
"""A longer task is not even encoded. What a queue takes, it says itself."""
PART_ITEMS, PART_BYTES = 10_000, 4 << 20
"""How many tasks one request names at most, and in how many bytes: the gateway takes no more."""


def task_line(task: EncodedTask) -> bytes:
    """Return a task as a gateway takes it, without a newline: as in a task file, and from when on it is available.

    TaskTooLarge if no request can hold it.
    """
    is_absolute, ms = task.when
    line = task.line[:-1]
    if ms:
        line = b'%s,"%s":%s}' % (line[:-1], b"available_at" if is_absolute else b"delay_s", encoded(ms / 1000))
    if len(line) > BODY_BYTES_MAX:
        raise TaskTooLarge(
            f"{task_at(task.place)} takes {len(line):,} bytes; a gateway takes up to {BODY_BYTES_MAX:,}. Store the "
            "data in a file and queue its path, or insert the task where the queue's directory is mounted.",
            task.place,
        )
    return line


def json_object(fields: dict[str, Any], **encoded_fields: bytes | None) -> bytes:
    """Return an object as JSON, of values, and of some that are JSON already; those that are None are left out."""
    found = [b"%s:%s" % (encoded(name), encoded(value)) for name, value in fields.items() if value is not None]
    found += [b"%s:%s" % (encoded(name), value) for name, value in encoded_fields.items() if value is not None]
    return b"{%s}" % b",".join(found)


def in_parts(items: Sequence[bytes]) -> Iterable[tuple[slice, bytes]]:
    """Yield JSON lists of items, each short enough for one request, and which of the items are in each list."""
    first = size = 0
    for place, item in enumerate(items):
        if place > first and (place - first >= PART_ITEMS or size + len(item) > PART_BYTES):
            yield slice(first, place), b"[%s]" % b",".join(items[first:place])
            first, size = place, 0
        size += len(item) + 1
    if items:
        yield slice(first, len(items)), b"[%s]" % b",".join(items[first:])


def lost_together(losses: Sequence[LeaseLost]) -> LeaseLost:
    """Return one error for the leases that several requests have found lost."""
    first, *others = losses
    if not others:
        return first
    kinds = {type(one) for one in losses}
    kind = type(first) if len(kinds) == 1 else LeaseLost
    reasons = ", ".join(sorted({one.reason for one in losses}))
    return kind(" ".join(map(str, losses)), [token for one in losses for token in one.tokens], reasons)


def payload_of(given: dict[str, Any]) -> Any:
    """Return the payload of a task in an answer."""
    return base64.b64decode(given["b64"]) if given.get("b64") is not None else given.get("payload")


def made(kind: Any, given: dict[str, Any]) -> Any:
    """Return a value of fsqueue from its fields by name; one that is newer than this package is left out."""
    known = getattr(kind, "_fields", None) or kind.__dataclass_fields__
    values = {name: value for name, value in given.items() if name in known}
    if "payload" in known:
        values["payload"] = payload_of(given)
    if not values:  # all fields of some have defaults: a status without any would say that the queue is empty
        raise lacking(f"fields of {kind.__name__}")
    try:
        return kind(**values)
    except TypeError:
        raise lacking(f"fields of {kind.__name__}") from None


def activity(given: dict[str, Any]) -> Activity:
    """Return a queue's activity, from a gateway."""
    rates = {name: _or_none(Rate, given.get(name)) for name in ("inserted", "leased", "completed", "finished")}
    holders = given.get("holders")
    found: Activity = made(Activity, given | rates | {
        "oldest": [made(Held, one) for one in given.get("oldest", ())],
        "failures": [made(Failure, one) for one in given.get("failures", ())],
        "most_used": _or_none(MostUsed, given.get("most_used")),
        "holders": None if holders is None else frozenset(one.encode() for one in holders),
    })  # fmt: skip
    return found


def _or_none(kind: Any, given: dict[str, Any] | None) -> Any:
    return None if given is None else made(kind, given)


def leased_task(queue: Verbs, given: dict[str, Any]) -> LeasedTask:
    """Return a task that this process holds, from a gateway."""
    given = Answer(given)
    try:
        batch, index, lease = names.parse_token(given["token"])
    except InvalidArgument:
        raise lacking("a token") from None
    kind = LeasedTask if given.get("unread") is None else WithoutPayload
    until_ms = round(given["lease_until"] * 1000)
    task = kind(queue, batch, index, lease, payload_of(given), given["attempt"], given["version"], until_ms, 0)
    if isinstance(task, WithoutPayload):
        task.why = TaskNotFound(given["unread"])
    task.key, task.priority = given.get("key"), given.get("priority")
    return task


class KeptTasks:
    """Tasks without keys, in a file of the caller. A gateway breaks off a request that pauses: so it begins late."""

    def __init__(self, file: IO[bytes], task_bytes_max: int, delay_s: float) -> None:
        self._file, self._bytes_max, self._default = file, task_bytes_max, encoding.default_when(delay_s)

    def add(self, payload: Any) -> None:
        """Keep a payload, or a Task. InvalidTask if the queue would refuse it; OSError of the file."""
        task = payload if isinstance(payload, Task) else Task(payload)
        self._file.write(encoding.encode(task, self._bytes_max, None, self._default).line)

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks from the beginning."""
        self._file.seek(0)
        for line in self._file:
            record = decode_task(line)
            yield Task(record["payload"], priority=record.get("priority"))
