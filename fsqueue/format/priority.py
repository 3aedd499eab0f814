"""Priorities: texts or whole numbers, the smaller the more urgent (docs/format.md, "Priorities"; decision 30).

Pure: no input or output. Each priority has a *rank*: bytes by which priorities are compared. Smaller bytes come first.
A task without a priority has the rank LAST, and comes after all tasks with one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import pack
from urllib.parse import quote_from_bytes, unquote_to_bytes

import orjson

from fsqueue.format.plain_values import plain

Priority = str | int
"""A priority as users give it, and as task lines and records hold it."""
Rank = bytes
"""Bytes by which priorities are compared."""

FIRST: Rank = b""
"""A rank before that of every priority."""
LAST: Rank = b"\x01"
"""The rank of a task without a priority."""
BYTES_MAX = 1024
"""The longest priority, in bytes of UTF-8."""
INT_MIN, INT_MAX = -(1 << 63), (1 << 63) - 1
"""The range of priorities that are whole numbers."""
NAME_CHARS_MAX = 128
"""A task file's name has this much of a priority, since a name has 255 bytes at most. A cut priority is more urgent
than the whole one, so the name never promises less.
"""
_WITH = b"\x00"
"""The first byte of the rank of a task with a priority."""


def fault(value: object) -> str | None:
    """Return why a value is not a valid priority; None if it is valid."""
    if type(value) is str and len(value) <= BYTES_MAX and value.isascii():
        return None  # the usual case
    kind, value = type(value), plain(value)
    if type(value) is int:
        return None if INT_MIN <= value <= INT_MAX else "a whole number as priority has 64 bits: -2^63 to 2^63 - 1"
    if type(value) is not str:
        cure = ": multiply it and round, such as 150 for 1.5" if kind is float else ""
        return f"a priority is a text or a whole number, not {kind.__name__}{cure}"
    try:
        size = len(value.encode())
    except UnicodeEncodeError:
        return "the priority is no valid text: UTF-8 cannot hold it"
    return None if size <= BYTES_MAX else f"the priority takes {size:,} bytes; {BYTES_MAX:,} are the most"


def rank_of(value: object) -> Rank:
    """Return the rank of a priority. LAST for None, and for a value that is not valid, as in a damaged record."""
    if value is None or fault(value) is not None:
        return LAST
    value = plain(value)
    assert isinstance(value, (str, int))
    return _WITH + text_of(value).encode()


def text_of(value: Priority) -> str:
    """Return a valid priority, a str or an int itself, as a text. These texts are in the same order as the ranks."""
    return f"{value - INT_MIN:016x}" if isinstance(value, int) else value


def in_name(rank: Rank) -> str | None:
    """Return a rank as text for a task file's name. A long one is cut, which makes it more urgent, never less."""
    if rank == LAST:
        return None
    text = quote_from_bytes(rank[1:], safe="")
    if len(text) > NAME_CHARS_MAX:
        text = text[:NAME_CHARS_MAX]
        cut = text.rfind("%", -2)
        text = text if cut < 0 else text[:cut]  # keep escapes whole
    assert rank_in_name(text) <= rank, "workers would look into the batch too late"
    return text


def rank_in_name(text: str | None) -> Rank:
    """Return the rank that a task file's name promises: no task in the file is more urgent."""
    return LAST if text is None else _WITH + unquote_to_bytes(text)


def in_lines(lines: Iterable[bytes]) -> dict[int, Priority]:
    """Return the priorities in the lines of a task file, by the tasks' indices. Damaged lines have none."""
    found: dict[int, Priority] = {}
    for index, line in enumerate(lines):
        if b'"priority"' in line:
            try:
                record = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            given = record.get("priority") if type(record) is dict else None
            if given is not None and fault(given) is None:
                found[index] = given
    return found


_DIGITS_SURE = 18
"""Maximum number of digits of numbers that surely have 64 bits."""
_QUOTE = ord('"')
_MEMBER = b',"priority":'
"""Bytes before a priority in a line that this package writes; nothing but the priority and a brace follow it."""


def ranks_in_lines(lines: Sequence[bytes], tasks: Iterable[int]) -> dict[int, Rank]:
    """Return the ranks of the tasks among `tasks` that have a priority, by their indices in the lines of a task file.

    It parses only lines of another form than this package writes. Of a damaged line it may tell any rank.
    """
    chosen = [index for index in tasks if index < len(lines)]
    texts = [lines[index].rpartition(_MEMBER)[2] for index in chosen]
    # A brace behind the digits ends the line: so it is the task's own, and not one of a payload that is an object.
    if {text[-1:] for text in texts} == {b"}"}:
        numbers = [text[:-1] for text in texts]
        if all(map(bytes.isdigit, numbers)) and len(max(numbers, key=len)) <= _DIGITS_SURE:  # as in most cases: no text
            above = [int(number) - INT_MIN for number in numbers]
            digits = pack(f">{len(above)}Q", *above).hex().encode()
            return {index: _WITH + digits[16 * place : 16 * place + 16] for place, index in enumerate(chosen)}
    found: dict[int, Rank] = {}
    for index, text in zip(chosen, texts, strict=True):
        quoted = text[:-1]
        if len(quoted) > 1 and quoted[0] == quoted[-1] == _QUOTE and text[-1:] == b"}" and _is_plain(quoted[1:-1]):
            found[index] = _WITH + quoted[1:-1]
        elif b'"priority"' in lines[index]:
            for given in in_lines([lines[index]]).values():
                found[index] = rank_of(given)
    return found


def _is_plain(text: bytes) -> bool:
    """Return whether a text stands in JSON as it is, and is short enough for a priority."""
    return len(text) <= BYTES_MAX and text.isascii() and b"\\" not in text and b'"' not in text
