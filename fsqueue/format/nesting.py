"""Bound how deep JSON nests: payloads, results, and fields of records (docs/format.md, "Nesting").

orjson reads 1,024 levels and writes 254. fsqueue writes what it has read once more, with a few levels around it: as a
dead letter, a record of the history, a message to a child process, an answer in JSON. Without a bound, a value could be
read that cannot be written, and the process would end with an error. (`storage.nested` is about queues inside queues.)
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

NESTING_MAX = 200
"""Levels of arrays and objects in a payload, a result, or a field of a record. The deepest wrapping adds 5."""
LINE_NESTING_MAX = NESTING_MAX + 1
"""Levels in a line of a task file: the object around the payload is one."""
SHALLOW_BYTES = 2 * NESTING_MAX
"""JSON text that is no longer than this cannot nest too deep (bytes)."""
RECORD_NESTING_MAX = 256
"""Levels in a record of a log. Everything that was ever written by an fsqueue has fewer; the history adds 2."""

LONG_BYTES = 1 << 16
"""The brackets of longer text are counted without a copy of the text (bytes)."""

_OPEN, _CLOSE, _QUOTE = b'()"'
_ONE_KIND = bytes.maketrans(b"[]{}", b"()()")
_OTHERS = bytes(code for code in range(256) if code not in b'[]{}"')
_STEP = [0] * 256
_STEP[_OPEN], _STEP[_CLOSE] = 1, -1


def is_deeper(data: bytes, levels: int = NESTING_MAX) -> bool:
    """Return whether JSON text nests deeper than so many levels, at least 2. Exact for valid JSON, and only for that.

    Linear in the length. Text that is too short or has too few brackets, which is nearly all, costs next to nothing.
    """
    size, enough = len(data), levels + 1
    if size <= 2 * levels:
        return False
    if size >= LONG_BYTES and not _has_more(data, b"[", b"{", levels):
        return False
    # Removing counts brackets that are few ten times as fast as `count` does: it leaps from one to the next.
    if 2 * size - len(data.replace(b"[", b"", enough)) - len(data.replace(b"{", b"", enough)) <= levels:
        return False
    if b"\\" in data:  # quotes that are part of a string must not end it
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    data = data.translate(_ONE_KIND, _OTHERS).replace(b'""', b"")
    if _QUOTE in data:
        data = b"".join(data.split(b'"')[::2])
    flat = data.replace(b"()", b"").replace(b"()", b"")  # each removes the innermost level: what is wide shrinks
    return max(accumulate(map(_STEP.__getitem__, flat)), default=-2) + 2 > levels


def _has_more(data: bytes, one: bytes, other: bytes, most: int) -> bool:
    """Return whether two bytes occur in `data` more than a number of times, without a copy of `data`."""
    for byte in (one, other):
        place = data.find(byte)
        while place >= 0 and most >= 0:
            most -= 1
            place = data.find(byte, place + 1)
    return most < 0


def is_value_deeper(value: Any, levels: int = NESTING_MAX) -> bool:
    """Return whether a value, as it was read from JSON, nests deeper than so many levels."""
    level = [value] if type(value) in (dict, list) else []
    for _ in range(levels):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in (dict, list)
        ]
        if not level:
            return False
    return bool(level)


def trimmed(record: dict[str, Any]) -> dict[str, Any]:
    """Return an object without the fields whose values nest deeper than NESTING_MAX: no program could pass them on."""
    return {name: value for name, value in record.items() if not is_value_deeper(value)}
