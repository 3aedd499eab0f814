"""Arguments of calls as JSON, and back as they were: tuples, integer keys, dates, paths (docs/functions.md).

A call has its arguments as plain JSON. Where JSON has no type for one, the call's `types` says which it had, by a JSON
Pointer (RFC 6901): `{"args": [[1, 2]], "types": {"/args/0": "tuple"}}`. The types are those of `TYPES`; nothing that a
payload names is imported or evaluated.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsqueue.format import nesting

DEPTH_MAX = nesting.NESTING_MAX - 2
"""Levels of lists and dicts in an argument: the payload around it has two."""
_INSTEAD = {
    bytes: "Pass text (base64), or the path of a file.",
    bytearray: "Pass text (base64), or the path of a file.",
    set: "Pass a list: sorted(…).",
    frozenset: "Pass a list: sorted(…).",
    float: "Pass None, or a text.",
}
_NUMPY_NUMBERS = "biufU"
"""The kinds of NumPy's scalars that Python has, too: booleans, integers, floats, text."""


class Alien(ValueError):
    """Say what in an argument can be no JSON, and would not come back as it is."""

    def __init__(self, where: str, what: str, instead: str = "") -> None:
        super().__init__(what)
        self.where, self.what, self.instead = where, what, instead


def plain(value: Any, pointer: str, types: dict[str, str], where: str = "", depth: int = 0) -> Any:
    """Return a value as JSON has it. `types` gets what `restored` needs, by pointers that begin with `pointer`. Alien.

    Whatever is accepted comes back equal and of the same type. But NumPy's numbers and texts come back as Python's.
    """
    kind = type(value)
    if kind in (list, tuple, dict):
        if depth == DEPTH_MAX:
            raise Alien(where, f"nested more than {DEPTH_MAX} levels deep, or contains itself")
        if kind is dict:
            return _plain_dict(value, pointer, types, where, depth)
        if kind is tuple:
            types[pointer] = "tuple"
        return [
            plain(one, f"{pointer}/{number}", types, f"{where}[{number}]", depth + 1)
            for number, one in enumerate(value)
        ]
    if kind is str:
        if not _is_unicode(value):
            raise Alien(where, "text with half a surrogate pair")
        return value
    if kind is int:
        if not -(2**63) <= value < 2**64:
            raise Alien(where, "an integer of more than 64 bits", "Pass a text.")
        return value
    if kind is float:
        if not math.isfinite(value):
            raise Alien(where, str(value), _INSTEAD[float])
        return value
    if value is None or kind is bool:
        return value
    if kind.__module__ == "numpy":
        return _plain_number(value, pointer, types, where, depth)
    for name, (known, to_text, from_text) in TYPES.items():
        if kind is known:
            text: str = to_text(value)
            # Another name of a zone, or which of two equal hours it is, would be lost.
            if not _is_unicode(text) or repr(from_text(text)) != repr(value):
                raise Alien(where, f"{value!r}, which text does not give back", "Use datetime.timezone.utc.")
            types[pointer] = name
            return text
    raise Alien(where, f"of the type {kind.__module__}.{kind.__qualname__}", _INSTEAD.get(kind, ""))


def inside(pointer: str, key: str) -> str:
    """Return the pointer to what has this key in the object that `pointer` leads to."""
    return f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"


def restored(args: list[Any], kwargs: dict[str, Any], types: object) -> None:
    """Give the arguments of a call, in place, the types that they had. ValueError if `types` does not fit them."""
    if not isinstance(types, dict):
        raise ValueError("its types are no object")
    root = {"args": args, "kwargs": kwargs}
    for pointer in sorted(types, key=lambda pointer: pointer.count("/"), reverse=True):  # what is inside comes first
        empty, *tokens = (part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/"))
        if empty or len(tokens) < 2:
            raise ValueError(f"{pointer!r} points at no argument")
        around: Any = root
        for token in tokens[:-1]:
            around = around[_key(around, token, pointer)]
        last = _key(around, tokens[-1], pointer)
        around[last] = _restored(around[last], types[pointer], pointer)


def _plain_dict(value: dict[Any, Any], pointer: str, types: dict[str, str], where: str, depth: int) -> dict[str, Any]:
    kinds = {type(key) for key in value}
    if kinds == {int}:
        types[pointer] = INTEGER_KEYS
    elif not kinds <= {str}:
        key = next(key for key in value if type(key) is not str)
        both = " beside others" if len(kinds) > 1 else ""
        raise Alien(where, f"a dict with the key {key!r}{both}", "Keys are all texts, or all integers.")
    made = {}
    for key, one in value.items():
        text = str(plain(key, pointer, types, where)) if type(key) is int else key
        if not _is_unicode(text):
            raise Alien(where, f"a dict with the key {key!r}")
        made[text] = plain(one, inside(pointer, text), types, f"{where}[{key!r}]", depth + 1)
    return made


def _plain_number(value: Any, pointer: str, types: dict[str, str], where: str, depth: int) -> Any:
    """Return a scalar of NumPy as Python's. Alien for arrays, and for what Python does not have."""
    kind = type(value)
    if getattr(value, "shape", None) == () and getattr(value.dtype, "kind", "") in _NUMPY_NUMBERS:
        found = value.item()
        if type(found) in (bool, int, float, str):
            return plain(found, pointer, types, where, depth)
    instead = "Pass array.tolist(), or the path of a file." if hasattr(value, "tolist") else ""
    raise Alien(where, f"of the type {kind.__module__}.{kind.__qualname__}", instead)


def _key(around: object, token: str, pointer: str) -> Any:
    """Return the index or key that a part of a pointer stands for. ValueError if nothing is there."""
    if isinstance(around, list) and token.isascii() and token.isdecimal() and int(token) < len(around):
        return int(token)
    if isinstance(around, dict) and token in around:
        return token
    raise ValueError(f"{pointer!r} points at nothing")


def _restored(value: Any, name: object, pointer: str) -> Any:
    if name == "tuple" and isinstance(value, list):
        return tuple(value)
    if name == INTEGER_KEYS and isinstance(value, dict):
        keys = {text: int(text) for text in value if len(text) <= len(str(-(2**63)))}
        if len(keys) == len(value) and all(str(key) == text for text, key in keys.items()):
            return {keys[text]: one for text, one in value.items()}
    elif isinstance(name, str) and name in TYPES and isinstance(value, str):
        return TYPES[name][2](value)
    raise ValueError(f"{pointer!r} is no {name!r}")


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


INTEGER_KEYS = "integer keys"
"""Name by which `types` calls a dict whose keys are integers."""
TYPES: dict[str, tuple[type, Callable[[Any], str], Callable[[str], Any]]] = {
    "date": (datetime.date, datetime.date.isoformat, datetime.date.fromisoformat),
    "datetime": (datetime.datetime, datetime.datetime.isoformat, datetime.datetime.fromisoformat),
    "path": (type(Path()), str, Path),
}
"""The types that are texts in a call: how they become texts, and come back."""
