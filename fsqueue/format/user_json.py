"""The one decoder of JSON text that users hand in: payloads in lines and columns, results of commands, `--result`.

orjson keeps an integer beyond 64 bits as a float, and of two values with one name in an object the last one. What is
kept would not be what was handed in, and no one would know. So such text is refused. Python objects, which have no
names twice, are checked where they are encoded (`task_file.encode_json`), with the same bounds.
"""

from __future__ import annotations

import json
import re
from typing import Any

import orjson

from fsqueue.format.nesting import NESTING_MAX

_LONG_NUMBER = re.compile(rb"[0-9]{19}")
_LONG_INTEGER = re.compile(rb"(?<![0-9.eE+-])-?[0-9]{19,}(?![0-9.eE])")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"')
_CONSTANT = re.compile(rb'"(?:[^"\\]|\\.)*"|-?Infinity|NaN')
SHOWN_CHARS = 40
"""Maximum number of characters of a number or name that an error shows."""


class NotExact(ValueError):
    """Say what is wrong with a text, as the end of a sentence: "is not JSON: …", "has an integer beyond 64 bits, …".

    `is_json` is false if it is no JSON at all. Then `position` says where it ceases to be. `unquoted` says the same
    without a word of the text, for a reason that is kept longer than the text.
    """

    def __init__(self, why: str, is_json: bool = True, position: int = 0, *, unquoted: str | None = None) -> None:
        super().__init__(why)
        self.is_json, self.position = is_json, position
        self.unquoted = why if unquoted is None else unquoted


def decode(text: bytes | str) -> Any:
    """Return the value of JSON text, exactly as it was handed in. NotExact if it cannot be kept so."""
    data, value = _loaded(text)
    if _LONG_NUMBER.search(data):
        _refuse_rounding(data)
    _refuse_names_twice(data, value)
    return value


def decode_fields(text: bytes | str) -> Any:
    """Return the value of JSON text whose fields are checked one by one, and of which nothing else is kept.

    An integer beyond 64 bits is a float here. So a check of its field refuses it by name, and in a field that no check
    asks for it does not matter. NotExact as by `decode` for all else.
    """
    data, value = _loaded(text)
    _refuse_names_twice(data, value)
    return value


def _loaded(text: bytes | str) -> tuple[bytes, Any]:
    try:
        data = text.encode() if isinstance(text, str) else text
        return data, orjson.loads(data)
    except UnicodeEncodeError as error:
        raise NotExact(f"is not JSON: it is no UTF-8 ({error.reason})", False, error.start) from None
    except orjson.JSONDecodeError as error:
        if is_about_depth(error):
            raise NotExact(
                f"nests too deep, over {NESTING_MAX} levels: flatten it, or store it in a file and give its path"
            ) from None
        if "infinity" in error.msg:
            _refuse_rounding(data)
            raise NotExact("has a number beyond the range of floats: write it as a string") from None
        raise NotExact(f"is not JSON: {error}", False, error.pos) from None


def _refuse_names_twice(data: bytes, value: Any) -> None:
    if type(value) in (dict, list) and b"{" in data and _has_names_twice(data, value):
        twice, lost = "has a name twice in an object", "the values but for the last would be lost"
        raise NotExact(f"{twice}{_name_twice(data)}: {lost}", unquoted=f"{twice}: {lost}")


def decode_with_constants(text: bytes | str) -> Any:
    """Return the value of JSON text in which NaN, Infinity and -Infinity may stand, as Python writes them.

    They become strings with these names. NotExact as by `decode`.
    """
    try:
        return decode(text)
    except NotExact as error:
        data = text.encode(errors="replace") if isinstance(text, str) else text
        if error.is_json or not (b"NaN" in data or b"Infinity" in data):
            raise
    return decode(_CONSTANT.sub(lambda match: match[0] if match[0][:1] == b'"' else b'"%b"' % match[0], data))


def is_about_depth(error: Exception) -> bool:
    """Return whether orjson has refused something because it nests deeper than orjson goes, not for another reason."""
    return "depth" in str(error) or "ecursion" in str(error)


def _refuse_rounding(data: bytes) -> None:
    """Refuse integers beyond 64 bits, which would silently become floats."""
    for digits in _LONG_INTEGER.findall(_STRING.sub(b"", data)):
        if len(digits) > 20 or not -(1 << 63) <= int(digits) < 1 << 64:
            shown = digits[:SHOWN_CHARS].decode()
            beyond, cure = "has an integer beyond 64 bits", "write it as a string"
            raise NotExact(f"{beyond}, {shown}: {cure}", unquoted=f"{beyond}: {cure}")


def _has_names_twice(data: bytes, value: Any) -> bool:
    """Return whether an object in JSON text has more members than the value that was made of it.

    There is a colon for each member, and others are in strings. The value written anew has all of them, unless some
    were lost. Escapes may hide a colon: then the strings are looked at.
    """
    if b"\\" not in data:
        try:
            return data.count(b":") != orjson.dumps(value).count(b":")
        except orjson.JSONEncodeError:
            pass  # it nests too deep for orjson to write, and is refused for that later
    return _STRING.sub(b"", data).count(b":") > _members(value)


def _members(value: Any) -> int:
    """Return how many members the objects in a value have."""
    count, pending = 0, [value]
    while pending:
        one = pending.pop()
        if type(one) is dict:
            count += len(one)
            one = one.values()
        pending += [inner for inner in one if type(inner) is dict or type(inner) is list]
    return count


def _name_twice(data: bytes) -> str:
    """Return the first name that is twice in an object, for an error. The time grows with the text's length alone."""

    def note(pairs: list[tuple[str, Any]]) -> None:
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise _Found(name)
            seen.add(name)

    try:
        json.loads(data, object_pairs_hook=note)
    except _Found as found:
        return f", {found.args[0][:SHOWN_CHARS]!r}"
    except (ValueError, RecursionError):
        pass
    return ""


class _Found(Exception):
    """End the search for a name: this is it."""
