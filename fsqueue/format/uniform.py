"""Decode JSON objects of one shape into columns, without an object for each (docs/benchmarks.md, "A table of results").

One program mostly writes payloads of one shape. Then what stands between their values is always the same: it is
replaced by commas and numbers, and what is left is one flat array.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, overload

import orjson

from fsqueue.format import task_file

_TAG = 9_115_726_943_000_001
"""The first of the numbers that stand for names, which are odd and beyond 2^53: no float is equal to one."""
_DIGITS = b"9115726943"
"""The digits that tags begin with. Lines that have these digits anywhere are decoded one by one."""
NAMES_MAX = 50
"""Objects with more members are decoded one by one: each name is looked for in all lines."""


class UniformObjects(Sequence[dict[str, Any]]):
    """Objects with the same names in the same order, as columns. As a sequence it yields them as dicts."""

    __slots__ = ("columns", "names")

    def __init__(self, names: list[str], columns: list[list[Any]]) -> None:
        self.names = names
        self.columns = columns
        """The values of all objects, for each name."""

    def __len__(self) -> int:
        return len(self.columns[0])

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [*self][index]
        return {name: column[index] for name, column in zip(self.names, self.columns, strict=True)}

    def __iter__(self) -> Iterator[dict[str, Any]]:
        names = self.names
        for values in zip(*self.columns, strict=True):
            yield dict(zip(names, values, strict=True))

    def __eq__(self, other: object) -> bool:
        return [*self] == other

    __hash__ = None  # type: ignore[assignment]


def decode_payloads(lines: list[bytes]) -> UniformObjects | None:
    """Return the payloads in the lines of a task file; None unless each line has a payload of the same names in the
    same order, nothing else, and is sound.

    It is exact. Names are replaced by tags, numbers that no line has. In the flat array that is left, each second
    element is the tag that is due, and there are no other tags. So each tag stands where its name stood in its object,
    none within a text or a nested object; and between two of them is one JSON value.
    """
    count = len(lines)
    try:
        payload = orjson.loads(lines[0])["payload"] if lines else None
        if type(payload) is not dict or not 0 < len(payload) <= NAMES_MAX:
            return None
        first, *others = map(orjson.dumps, payload)
        head = b'{"payload":{%b:' % first
        content = b"\n".join(lines)
        if not content.startswith(head) or not content.endswith(b"}}") or _DIGITS in content:
            return None
        text = content[len(head) : -2]
        tags = [*range(_TAG, _TAG + 2 * len(payload), 2)]
        for tag, name in zip(tags, others, strict=False):
            if text.count(b",%b:" % name) != count:
                return None
            text = text.replace(b",%b:" % name, b",%d," % tag)
        if text.count(b"}}\n" + head) != count - 1:
            return None
        flat = orjson.loads(b"[%b]" % text.replace(b"}}\n" + head, b",%d," % tags[-1]))
        if flat[1::2] != (tags * count)[:-1]:
            return None
        if b"[" in content or content.count(b"{") != 2 * count:
            task_file.check_depth(content)
    except (ValueError, TypeError, KeyError):
        return None
    values, names = flat[::2], [*payload]
    return UniformObjects(names, [values[place :: len(names)] for place in range(len(names))])


@contextmanager
def paused_collector() -> Iterator[None]:
    """Pause the collector, which looks for cycles of references, for the length of a `with` block.

    The values of a record batch are thousands of lists and dictionaries without cycles. To search them again and again
    takes longer than to make them.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
