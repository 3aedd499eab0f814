"""Answers: values of fsqueue as JSON, streams of lines, and events."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

import orjson
from starlette.responses import Response, StreamingResponse

import fsqueue
from fsqueue.service import faults

LINES_BYTES = 64 << 10
"""How much of a stream is made at a time."""
LINES_AT_ONCE = 500


class Json(Response):
    """A value as JSON."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """Return it as bytes."""
        return encoded(content)


def encoded(value: Any) -> bytes:
    """Return a value as JSON. Texts that UTF-8 cannot hold, as in names of files, are escaped."""
    try:
        return orjson.dumps(value, option=orjson.OPT_NON_STR_KEYS)
    except TypeError:
        return json.dumps(value).encode()


def plain(value: Any) -> Any:
    """Return a value of fsqueue as JSON has it: its fields by name."""
    if hasattr(value, "as_dict"):
        return value.as_dict()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {one.name: plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: plain(one) for name, one in value._asdict().items()}
    if isinstance(value, dict):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def activity(found: fsqueue.Activity) -> dict[str, Any]:
    """Return an activity with all that `Queue.activity` tells, also who holds tasks, each as a text of JSON."""
    holders = None if found.holders is None else sorted(one.decode() for one in found.holders)
    return found.as_dict() | {"holders": holders}


def inserted(found: int | list[fsqueue.TaskRef]) -> dict[str, Any]:
    """Return how many tasks are new; with references, also the ids, and the places of those that are not new."""
    if isinstance(found, int):
        return {"inserted": found}
    taken = [place for place, ref in enumerate(found) if not ref.inserted]
    return {"inserted": len(found) - len(taken), "ids": [ref.id for ref in found], "taken": taken}


def leased(task: fsqueue.LeasedTask, with_queue: bool = False) -> dict[str, Any]:
    """Return what a worker needs of a task. A payload of bytes is in `b64`, as base64 text."""
    info = fsqueue.TaskInfo(task.id, "leased", task.payload).as_dict()
    payload = {name: info[name] for name in ("payload", "b64") if name in info}
    known = {name: getattr(task, name) for name in ("key", "priority", "attempt", "version", "lease_until")}
    queue = {"queue": task.queue.name} if with_queue and isinstance(task.queue, fsqueue.GroupQueue) else {}
    return {"token": task.token, "id": task.id, **payload, **known, **queue}


def attached(task: fsqueue.LeasedTask) -> dict[str, Any]:
    """Return what `leased` does; of a task whose payload cannot be read, why, as `unread`."""
    try:
        return leased(task)
    except fsqueue.TaskNotFound as error:
        known = {name: getattr(task, name) for name in ("key", "priority", "attempt", "version", "lease_until")}
        return {"token": task.token, "id": task.id, "payload": None, **known, "unread": str(error)}


def chunks(items: Iterable[Any]) -> Iterator[bytes]:
    """Yield JSON Lines of values, in parts of some size, and behind them a line that tells their number.

    Who reads them knows by that line that they are all: a connection may end anywhere, and a proxy may hide that.
    """
    part: list[bytes] = []
    size = count = 0
    for item in items:
        count += 1
        line = encoded(plain(item)) + b"\n"
        part.append(line)
        size += len(line)
        if size >= LINES_BYTES or len(part) >= LINES_AT_ONCE:
            yield b"".join(part)
            part, size = [], 0
    yield b"".join(part) + encoded({"end": count}) + b"\n"


def lines(first: bytes, rest: AsyncIterator[bytes]) -> Response:
    """Return JSON Lines as an answer. A stream that breaks off ends with a line that has `error`."""

    async def all_of_it() -> AsyncIterator[bytes]:
        yield first
        try:
            async for part in rest:
                yield part
        except fsqueue.FsqueueError as error:
            yield encoded({"error": {"type": faults.type_of(error), "message": str(error)}}) + b"\n"

    return StreamingResponse(all_of_it(), media_type="application/x-ndjson")


def event(value: Any, name: str, id: str | None = None) -> bytes:
    """Return a server-sent event."""
    head = b"" if id is None else b"id: " + id.encode() + b"\n"
    return head + b"event: " + name.encode() + b"\ndata: " + encoded(value) + b"\n\n"
