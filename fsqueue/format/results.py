"""Encode results: what functions return, and what commands write (docs/functions.md, "What a function may return").

A payload that JSON does not have is refused: its inserter is there, and mends it. A result comes when the work is done,
and hours of it may be lost. So what can be written without a doubt is written: NaN, NumPy's numbers, dates, paths.
"""

from __future__ import annotations

import dataclasses
import datetime
import enum
import math
import pathlib
import sys
import uuid
from typing import Any

import orjson

from fsqueue.errors import InvalidTask, said
from fsqueue.format import nesting, user_json
from fsqueue.format.task_file import encode_json, too_deep
from fsqueue.interruptions import let_out

RESULT_BYTES_MAX = 64 * 1024
"""A result kept with a completed task is not larger than this: it lives in the log and the history."""
_INSTEAD = "Store it in a file, and give its path"
"""Advice of the error about a value that cannot be kept."""
_PLACE_CHARS = 200
"""Maximum number of characters of a value's place that an error shows."""


def encode_result(value: Any, bytes_max: int | None = RESULT_BYTES_MAX) -> bytes:
    """Return a result as JSON. InvalidTask says why it cannot be kept, and names the value in it that is to blame.

    `bytes_max`: None for any size. Only a MemoryError is raised besides, and what a signal handler raises.
    """
    try:
        data = _encode(value, math.inf if bytes_max is None else bytes_max)
    except (InvalidTask, MemoryError):
        raise
    except Exception as error:  # of a user's class; or a thread of the user changes the value meanwhile
        let_out(error)
        raise InvalidTask(f"The result cannot be written as JSON: {said(error)}. {_INSTEAD}.") from error
    if bytes_max is not None and len(data) > bytes_max:
        raise InvalidTask(f"The result takes {len(data):,} bytes; {bytes_max:,} are kept with a task. {_INSTEAD}.")
    return data


def _encode(value: Any, values_max: float) -> bytes:
    try:
        return encode_json(value, "result")
    except InvalidTask:
        pass  # it is not JSON as it stands, or is too deep: looking at each value in it tells
    try:
        return encode_json(_Converter(values_max).plain(value, 0), "result")
    except _Refused as error:
        place = "".join(f"[{key!r}]" for key in error.place)[:_PLACE_CHARS]
        raise InvalidTask(f"The result{place} {error}.") from None


def decode_result(data: bytes) -> Any:
    """Return the result that a command has written: JSON, or else text. InvalidTask says why it cannot be kept."""
    try:
        value = user_json.decode_with_constants(data)
    except user_json.NotExact as error:
        if error.is_json:
            raise InvalidTask(f"The result {error.unquoted}.") from None
        value = data.decode(errors="replace").rstrip("\n")
    encode_result(value)
    return value


def is_kept_exactly(data: bytes) -> bool:
    """Tell whether `decode_result` keeps all bytes of a result: those that are not UTF-8 become U+FFFD."""
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


class _Refused(Exception):
    """Say why a value cannot become JSON, as the end of a sentence, and which keys lead to the value."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.place: list[Any] = []


class _Converter:
    """Make JSON of a value, by the rules of the table in docs/functions.md. Bounded by the number of values."""

    def __init__(self, values_max: float) -> None:
        self._left = self._values_max = values_max

    def plain(self, value: Any, depth: int) -> Any:
        """Return a value as JSON has it. `depth`: of how many arrays and objects it is inside."""
        self._take(1)
        if isinstance(value, enum.Enum):
            return self.plain(value.value, depth)
        if isinstance(value, float):  # NumPy's float64 is one, too
            return _number(float(value))
        if value is None or isinstance(value, (str, int)):
            return _checked(value)
        numpy = sys.modules.get("numpy")
        if numpy is not None and isinstance(value, (numpy.generic, numpy.ndarray)):
            return self._numpy(numpy, value, depth)
        if isinstance(value, (datetime.date, datetime.time)):
            return value.isoformat()
        if isinstance(value, (pathlib.PurePath, uuid.UUID)):
            return str(value)
        return self._inside(value, depth + 1)

    def _take(self, values: int) -> None:
        self._left -= values
        if self._left < 0:
            raise InvalidTask(
                f"The result has more than {self._values_max:,} values: too many to keep with a task. {_INSTEAD}."
            )

    def _inside(self, value: Any, depth: int) -> Any:
        """Return an array or object. The values in it are at `depth`."""
        if depth > nesting.NESTING_MAX:
            raise too_deep("result", None)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            fields = dataclasses.fields(value)
            return {one.name: self._at(one.name, getattr(value, one.name), depth) for one in fields}
        if isinstance(value, dict):
            made: dict[str, Any] = {}
            for key, one in value.items():
                name = self._name(key)
                if name in made:
                    raise _Refused(f"has two keys that are written as {name!r}")
                made[name] = self._at(key, one, depth)
            return made
        if isinstance(value, (list, tuple)):
            return [self._at(number, one, depth) for number, one in enumerate(value)]
        kind = type(value)
        instead = "Give its text (base64), or store it" if isinstance(value, (bytes, bytearray)) else _INSTEAD
        raise _Refused(f"is of the type {kind.__module__}.{kind.__qualname__}, which JSON does not have. {instead}")

    def _at(self, key: Any, value: Any, depth: int) -> Any:
        try:
            return self.plain(value, depth)
        except _Refused as error:
            error.place.insert(0, key)
            raise

    def _name(self, key: Any) -> str:
        """Return a key as the name of an object's member: a number, date or path as its text."""
        if isinstance(key, str):
            return key
        plain = None if key is None or isinstance(key, (bool, list, tuple, dict)) else self.plain(key, 0)
        if isinstance(plain, str):
            return plain
        if isinstance(plain, (int, float)) and not isinstance(plain, bool):
            return orjson.dumps(plain).decode()
        raise _Refused(f"has the key {repr(key)[:40]}, of the type {type(key).__name__}. Use text or numbers as keys")

    def _numpy(self, numpy: Any, value: Any, depth: int) -> Any:
        """Return a scalar as a number or text, an array as nested arrays."""
        kind = value.dtype.kind
        if kind not in "biufUMO":
            raise _Refused(f"is of NumPy's type {value.dtype}, which JSON does not have. {_INSTEAD}")
        self._take(value.size)
        if kind == "M":
            return value.astype(str).tolist()
        if kind == "f" and value.dtype.itemsize > 8:
            value = value.astype(float)
        if kind in "biu" or (kind == "f" and numpy.isfinite(value).all()):
            return value.tolist()
        self._left += value.size  # each is counted below
        return self.plain(value.tolist(), depth + (kind == "O"))


def _number(value: float) -> float | str:
    """Return a float, or the name of one that JSON does not have."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _checked(value: str | int | None) -> str | int | None:
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        raise _Refused("is an integer beyond 64 bits. Give its text")
    return value
