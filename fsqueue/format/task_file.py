"""Task files: JSON Lines, one task a line, never modified once published (docs/format.md, "Task files")."""

from __future__ import annotations

import base64
import binascii
import math
from typing import Any

import orjson

from fsqueue.errors import InvalidTask, TaskTooLarge
from fsqueue.format import nesting, user_json
from fsqueue.format.priority import Priority

_OPTIONS = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_U = ord("u")
"""Looked for before `null` is, as that takes ten times as long."""
_INSTEAD = {
    "payload": "Use only what JSON has, or make the whole payload bytes.",
    "result": "Use only what JSON has. Store bytes in a file and give its path, or give them as text (base64).",
}
"""Advice of the error about a value that is not JSON."""


def encode_task(payload: Any, bytes_max: int, index: int | None = None, priority: Priority | None = None) -> bytes:
    """Return a task's line, with its newline. InvalidTask names what JSON cannot hold; TaskTooLarge the limit.

    The priority must be sound: see `priority.fault`.
    """
    end = b"}\n" if priority is None else b',"priority":' + orjson.dumps(priority) + b"}\n"
    if isinstance(payload, (bytes, bytearray, memoryview)):
        line = b'{"b64":"' + _base64(payload, index) + b'"' + end
    else:
        line = b'{"payload":' + encode_json(payload, "payload", index) + end
    if len(line) > bytes_max:
        raise too_large(len(line), bytes_max, index)
    return line


def _base64(payload: bytes | bytearray | memoryview, index: int | None) -> bytes:
    """Return bytes as base64. The parts of a memoryview that is not contiguous are copied, in their order."""
    try:
        if isinstance(payload, memoryview) and not payload.c_contiguous:
            payload = payload.tobytes()
        return base64.b64encode(payload)
    except (BufferError, TypeError, ValueError) as error:  # one that was released, for one
        raise InvalidTask(
            f"{_where(index)}: the bytes of the payload cannot be read: {error}. Convert it with bytes(...) while it "
            "can be read.",
            index,
        ) from None


def too_large(size: int, bytes_max: int, index: int | None) -> TaskTooLarge:
    """Return the error that says by how much a task's line is too long, and what to do."""
    assert size > bytes_max, "a task is refused that is short enough"
    return TaskTooLarge(
        f"{_where(index)} takes {size:,} bytes; this queue accepts up to {bytes_max:,}. "
        "Store the data in a file and queue its path, or create the queue with a larger task_bytes_max.",
        index,
    )


def too_deep(what: str, index: int | None) -> InvalidTask:
    """Return the error for a payload or result that nests too deep."""
    return InvalidTask(
        f"{_where(index)}: the {what} nests deeper than {nesting.NESTING_MAX} levels of JSON arrays and objects. "
        "Flatten it, or store it in a file and give its path.",
        index,
    )


def encode_json(value: Any, what: str, index: int | None = None) -> bytes:
    """Return strict JSON (no NaN, no silent conversions of dates and dataclasses), or raise InvalidTask."""
    try:
        data = orjson.dumps(value, option=_OPTIONS)
    except (orjson.JSONEncodeError, RecursionError) as error:
        if isinstance(error, RecursionError) or user_json.is_about_depth(error):
            raise too_deep(what, index) from None
        raise InvalidTask(
            f"{_where(index)}: the {what} is not JSON: {error}. {_INSTEAD.get(what, _INSTEAD['payload'])}", index
        ) from None
    if len(data) > nesting.SHALLOW_BYTES and nesting.is_deeper(data):
        raise too_deep(what, index)
    if _U in data and b"null" in data and (bad := _not_finite(value)) is not None:
        raise InvalidTask(
            f"{_where(index)}: the {what} contains {bad}, which JSON does not have. Use null or a string.", index
        )
    return data


_SAME = (str, int, float, bool, type(None))
"""The types of scalars that come back as they went in."""


def check_unchanged(payload: Any, index: int | None = None) -> None:
    """Raise InvalidTask if anything in a payload would come back as something else: a tuple as a list, for one."""
    if type(payload) is bytes:
        return
    pending: list[tuple[Any, int, Any]] = [(payload, 0, None)]  # a value, its depth, and its (container's entry, key)
    while pending:
        entry = value, depth, _ = pending.pop()
        kind, inside = type(value), "payload"
        if kind in _SAME:
            continue
        if depth > nesting.NESTING_MAX:
            raise too_deep("payload", index)
        if kind is list:
            pending += [(item, depth + 1, (entry, number)) for number, item in enumerate(value)]
            continue
        if kind is dict:
            bad = [type(key) for key in value if type(key) is not str]
            if not bad:
                pending += [(item, depth + 1, (entry, key)) for key, item in value.items()]
                continue
            kind, inside = bad[0], "a key of payload"
        keys: list[str] = []
        while entry[2] is not None:
            entry, key = entry[2]
            keys.insert(0, f"[{key!r}]")
        raise InvalidTask(
            f"{_where(index)}: {inside}{''.join(keys)} is of the type {kind.__name__}, and would not come back as "
            "that. Convert it to a type of JSON first, or insert it without `strict`.",
            index,
        )


def _where(index: int | None) -> str:
    return "The task" if index is None else f"Task number {index + 1}"


def _not_finite(value: Any) -> float | None:
    """Return the first NaN or infinity inside, which orjson would silently write as null."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, float):
            if not math.isfinite(item):
                return item
        elif isinstance(item, dict):  # as orjson reads it, whatever a subclass overrides
            pending.extend(dict.values(item))
        elif isinstance(item, list):
            pending.extend(list.__iter__(item))
        elif isinstance(item, tuple):
            pending.extend(item)
    return None


SHARED = "shared"
"""The domain of batches on a mount that several hosts share. On a local disk it is the id of the boot."""


def encode_open_batch(domain: str) -> bytes:
    """Return the content of an open batch's task file: the domain whose inserts the batch takes, and no task."""
    return orjson.dumps({"inserts": domain}, option=orjson.OPT_APPEND_NEWLINE)


def domain_of(content: bytes) -> str | None:
    """Return the domain whose inserts a batch takes, from its task file's content; None if the file holds tasks or is
    damaged.
    """
    try:
        record = orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
    domain = record.get("inserts") if type(record) is dict else None
    return domain if type(domain) is str else None


def split_lines(content: bytes) -> list[bytes]:
    """Return the lines of a task file, by task index. A torn last line is left out."""
    return content.split(b"\n")[:-1]


def decode_task(line: bytes) -> dict[str, Any]:
    """Return a line as {"payload": ..., "key": ..., "priority": ...}; ValueError if it is damaged or nests too deep."""
    record = orjson.loads(line)
    if not isinstance(record, dict):
        raise ValueError("not an object")
    check_depth(line)
    record["payload"] = decode_fields(record)
    return record


def decode_tasks(lines: list[bytes]) -> list[dict[str, Any] | None]:
    """Return the decoded record of each line, but leave `b64` encoded; None for a damaged line. See `decode_task`.

    All at once, if all are sound: that is twice as fast.
    """
    try:
        joined = b"[%s]" % b",".join(lines)
        check_depth(joined)
        found = orjson.loads(joined)
        if len(found) == len(lines) and all(type(record) is dict for record in found):
            return list(found)
    except ValueError:
        pass
    return [_decoded(line) for line in lines]


def _decoded(line: bytes) -> dict[str, Any] | None:
    try:
        return decode_task(line)
    except ValueError:
        return None


def check_depth(line: bytes) -> None:
    """Raise ValueError for a line that nests too deep to be a task: no worker could write a dead letter of it."""
    if len(line) > nesting.SHALLOW_BYTES and nesting.is_deeper(line, nesting.LINE_NESTING_MAX):
        raise ValueError("nested too deep")


def decode_fields(record: dict[str, Any]) -> Any:
    """Return the payload in a task's line or letter: `payload`, or `b64` for bytes. ValueError if it is damaged."""
    if "payload" in record:
        return record["payload"]
    try:
        return base64.b64decode(record["b64"], validate=True)
    except (KeyError, TypeError, binascii.Error) as error:
        raise ValueError(f"neither payload nor sound b64: {error}") from None


AROUND = len(b'"b64":""}')
"""The least number of bytes around a payload in the member of an object that ends with it."""
NOT_KEPT = b"{}"
"""The line of a task whose payload is not kept."""


def is_kept(task: dict[str, Any], payload_bytes_max: int | None) -> bool:
    """Return whether a queue keeps the payload of a finished task.

    `task`: its line, or its `insert` or `replace` record. `payload_bytes_max`: the length of the longest payloads that
    the queue keeps; None: all; 0: none. The length of a payload is that of its JSON; of bytes that of their base64.
    """
    if payload_bytes_max is None or not payload_bytes_max:
        return payload_bytes_max is None
    payload, encoded = task.get("payload"), task.get("b64")
    if isinstance(encoded, str) and (payload is None or isinstance(payload, bytes)):
        return len(encoded) <= payload_bytes_max
    try:
        return len(orjson.dumps(payload)) <= payload_bytes_max
    except orjson.JSONEncodeError:  # nested too deep for any line of this package
        return False


def are_short(lines: list[bytes], payload_bytes_max: int | None) -> bool:
    """Return whether the lengths of lines alone tell that each payload in them is kept."""
    return payload_bytes_max is None or is_short(max(map(len, lines), default=0), payload_bytes_max)


def is_short(length: int, payload_bytes_max: int | None) -> bool:
    """Return whether the length of a line alone tells that its payload is kept."""
    return payload_bytes_max is None or (payload_bytes_max > 0 and length <= payload_bytes_max + 1 + AROUND)


def keep_lines(lines: list[bytes], payload_bytes_max: int | None) -> list[bytes]:
    """Return the lines of a task file, with `NOT_KEPT` in place of those whose payload is not kept (see `is_kept`)."""
    if are_short(lines, payload_bytes_max):
        return lines
    return [line if is_line_kept(line, 1, payload_bytes_max) else NOT_KEPT for line in lines]


def is_line_kept(line: bytes, begin: int, payload_bytes_max: int | None) -> bool:
    """Return whether a queue keeps the payload in a task's line, or record. `begin`: where its member begins."""
    if payload_bytes_max is None or not payload_bytes_max:
        return payload_bytes_max is None
    if len(line) - begin <= payload_bytes_max + AROUND:
        return True
    if line.startswith(b'"payload":', begin) and b',"key":' not in line and b',"priority":' not in line:
        return len(line) - begin - len(b'"payload":}') <= payload_bytes_max
    try:
        task = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return isinstance(task, dict) and is_kept(task, payload_bytes_max)


def payload_fields(payload: Any) -> dict[str, Any]:
    """Return a payload as it is written into records and letters: `payload`, or `b64` for bytes."""
    if isinstance(payload, bytes):
        return {"b64": base64.b64encode(payload).decode()}
    return {"payload": payload}
