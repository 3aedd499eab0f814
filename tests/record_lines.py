"""The lines of movement logs, for tests that write them themselves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from fsqueue.format import movements
from fsqueue.format.movements import UpdatePart
from fsqueue.format.names import UpdateId
from fsqueue.storage.logs import Log


def record(op: str, at: int, **fields: Any) -> bytes:
    return movements.encode(movements.record(op, at, **fields))


def lease(at: int, lease: str, tasks: Sequence[int], until: int, worker: str, several: bool, **names: str) -> bytes:
    return movements.encode(movements.lease(at, lease, tasks, until, orjson.loads(worker), several) | names)


def complete(
    at: int,
    lease: str,
    tasks: Sequence[int],
    result: bytes | None = None,
    took: object = None,
    used: object = None,
    part: UpdatePart | None = None,
) -> bytes:
    more = {"took": took, "used": used, **({} if part is None else part.fields)}
    if result is not None:
        given = {name: value for name, value in more.items() if value is not None}
        return movements.completion(at, lease, tasks, result, **given)[1]
    return record("complete", at, lease=lease, tasks=movements.to_ranges(tasks), **more)


def insert(
    at: int, identity: str, first: int, task: bytes, available_at: int = 0, part: UpdatePart | None = None
) -> bytes:
    return movements.insert(at, identity, first, task, available_at, part=part)[1]


def replace(at: int, lease: str | None, version: int, task: int, payload: bytes, part: UpdatePart) -> bytes:
    return movements.replacement(at, lease, version if lease is None else None, task, payload, part)[1]


def commit(at: int, update: UpdateId, of: int) -> bytes:
    return record("commit", at, update=update, of=of)


def abort(at: int, update: UpdateId) -> bytes:
    return record("abort", at, update=update)


def write(log: Log, data: bytes) -> None:
    """Let the records in these lines act, and append them."""
    for line in data.splitlines(keepends=True):
        record = movements.parse(line[:-1])
        assert record is not None
        log.add(record, line)
    log.write()


def put(log: Log, op: str, at: int, **fields: Any) -> None:
    log.write(movements.record(op, at, **fields))
