"""Parse payloads of one shape together, for a fraction of the time. One program mostly writes payloads of one shape.

Lines of one shape have the same number of quotes, and the same text between them. So one search for quotes finds every
field of every line, and NumPy and Arrow cut the columns out of the content. Lines that differ (escapes, nulls, lists,
damage, another field) do not match that pattern, and are left to Arrow's own parser.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc

QUOTE, BACKSLASH, SPACE = ord('"'), b"\\", ord(" ")
OPEN, CLOSE = b'{"payload":{', b"}}\n"
NUMBER = r"^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,2})?$"
"""JSON's numbers (RFC 8259, section 6), but for large exponents, of which Arrow's parser refuses some."""


class Slot(NamedTuple):
    """A field of each line: what stands before it, and what it is."""

    name: str
    before: bytes
    is_text: bool


def parse(content: bytes, kind: pa.DataType, count: int) -> pa.Array | None:
    """Return the payloads of `count` lines of task files as a column of structs; None if shapes differ.

    None says nothing about damage. A column is what Arrow's own parser would return. The content is UTF-8.
    """
    if not pa.types.is_struct(kind) or not all(_is_plain(field.type) for field in kind):
        return None
    slots = _shape(content[: content.find(b"\n")])
    if slots is None or content.find(BACKSLASH) >= 0:
        return None
    data = np.frombuffer(content, np.uint8)
    if np.count_nonzero(data < SPACE) != count:
        return None
    quotes = np.flatnonzero(data == QUOTE)
    each = sum(slot.before.count(b'"') for slot in slots) + slots[-1].is_text
    if len(quotes) != each * count:
        return None
    places = _places(data, quotes.reshape(count, each), slots)
    if places is None:
        return None
    asked = {field.name: field.type for field in kind}
    columns = {}
    for slot, (begin, end) in zip(slots, places, strict=True):
        if slot.name in asked or not slot.is_text:  # a number that no column asks for may be damage
            column = _column(content, begin, end, slot, asked.get(slot.name, pa.float64()))
            if column is None:
                return None
            columns[slot.name] = column
    found = [columns[field.name] if field.name in columns else pa.nulls(count, field.type) for field in kind]
    return pa.StructArray.from_arrays(found, fields=list(kind))


def _is_plain(kind: pa.DataType) -> bool:
    return pa.types.is_string(kind) or pa.types.is_signed_integer(kind) or kind in (pa.float32(), pa.float64())


def _shape(line: bytes) -> list[Slot] | None:
    """Return what a line is made of, if it is an object of texts and numbers, written without spaces; else None."""
    try:
        record: Any = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    payload = record.get("payload") if isinstance(record, dict) else None
    if not isinstance(payload, dict) or not payload:
        return None
    slots, before = [], OPEN
    for name, value in payload.items():
        is_text = isinstance(value, str)
        if not is_text and type(value) not in (int, float):
            return None
        before += orjson.dumps(name) + (b':"' if is_text else b":")
        slots.append(Slot(name, before, is_text))
        before = b'",' if is_text else b","
    return slots


def _places(data: np.ndarray, quotes: np.ndarray, slots: list[Slot]) -> list[tuple[np.ndarray, np.ndarray]] | None:
    """Return where each field of each line begins and ends; None unless all else is the same in all lines."""
    begins: np.ndarray = quotes[:, 0] - OPEN.index(b'"')
    ends: np.ndarray = np.append(begins[1:], len(data))
    if begins[0] != 0:
        return None
    places: list[tuple[np.ndarray, np.ndarray]] = []
    seen, at = 0, begins
    for number, slot in enumerate(slots):
        if not _stands(data, at, slot.before):
            return None
        seen += slot.before.count(b'"')
        begin: np.ndarray = at + len(slot.before)
        if slot.is_text:
            end = at = quotes[:, seen]
        elif number + 1 < len(slots):
            end = at = quotes[:, seen] - slots[number + 1].before.index(b'"')
        else:
            end = at = ends - len(CLOSE)
        places.append((begin, end))
    last = b'"' + CLOSE if slots[-1].is_text else CLOSE
    return places if (at + len(last) == ends).all() and _stands(data, at, last) else None


def _stands(data: np.ndarray, at: np.ndarray, text: bytes) -> bool:
    """Return whether a text stands at all these places."""
    if at[0] < 0 or at.max() + len(text) > len(data):
        return False
    windows = np.ndarray((len(data) - len(text) + 1, len(text)), np.uint8, data, strides=(1, 1))
    return bool(windows[at].tobytes() == text * len(at))


def _column(content: bytes, begin: np.ndarray, end: np.ndarray, slot: Slot, kind: pa.DataType) -> pa.Array | None:
    """Return a field of all lines as a column; None if it has to be looked at more closely."""
    if slot.is_text != pa.types.is_string(kind) or (begin > end).any():
        return None
    borders: np.ndarray = np.empty((len(begin), 2), np.int32)
    borders[:, 0], borders[:, 1] = begin, end
    pieces = pa.StringArray.from_buffers(2 * len(begin) - 1, pa.py_buffer(borders), pa.py_buffer(content))
    texts = pieces.take(pa.array(np.arange(0, len(pieces), 2)))
    if slot.is_text:
        return texts
    try:
        numbers = texts.cast(kind)
    except pa.ArrowInvalid:
        return None
    if pa.types.is_integer(kind):
        return numbers if numbers.cast(pa.string()).equals(texts) else None
    sound = pc.and_(pc.match_substring_regex(texts, NUMBER), pc.is_finite(numbers))
    return numbers if pc.all(sound).as_py() else None
