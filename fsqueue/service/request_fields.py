"""Check the fields of a request, and describe them for `/v1/openapi.json`. `fsqueue.verbs` says which there are."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fsqueue.service.faults import BadField
from fsqueue.verbs.fields import BYTES, Field, Kind

INT64 = 1 << 63
TEXT_CHARS_MAX = 64 << 10
LIST_MAX = 10_000
"""How many ids, tokens or tasks a request may name."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?", re.ASCII)
_FLAGS = {"true": True, "1": True, "false": False, "0": False}


def check(field: Field, value: Any, where: str) -> Any:
    """Return the value; BadField if it is none for this field. `where`: how to call it."""
    if value is None and field.nullable:
        return None
    return _CHECKS[field.kind](field, value, where)


def _from_text(field: Field, text: str) -> Any:
    """Return what a query says by this text; BadField."""
    if field.kind in ("number", "whole"):
        if not _NUMBER.fullmatch(text):
            raise BadField(field.name, f"must be a number, not {text!r:.100}. Nothing was done.")
        value: Any = float(text) if field.kind == "number" or not text.lstrip("-").isdecimal() else _integer(text)
    elif field.kind == "flag":
        if text not in _FLAGS:
            raise BadField(field.name, f"must be true or false, not {text!r:.100}. Nothing was done.")
        value = _FLAGS[text]
    else:
        value = text
    return check(field, value, field.name)


def schema(field: Field) -> dict[str, Any]:
    """Return a field as JSON Schema."""
    found = _SCHEMAS[field.kind](field)
    if field.choices:
        found |= {"enum": list(field.choices)}
    if field.nullable:
        found = {"anyOf": [found, {"type": "null"}]}
    if field.default not in (None, ()):
        found["default"] = field.default
    return {**found, "description": field.about}


def given_in(fields: Sequence[Field], given: Any, where: str = "") -> dict[str, Any]:
    """Return the values of all fields of an object, defaults among them. BadField names the one that is wrong."""
    if not isinstance(given, dict):
        raise BadField(where or "body", f"must be a JSON object, not {_shown(given)}. Nothing was done.")
    known = {field.name: field for field in fields}
    prefix = f"{where}." if where else ""
    for name in given:
        if name not in known:
            raise BadField(
                f"{prefix}{name:.100}", f"is no field here. There are: {', '.join(known) or 'none'}. Nothing was done."
            )
    found: dict[str, Any] = {}
    for name, field in known.items():
        if name in given:
            found[name] = check(field, given[name], prefix + name)
        elif field.needed:
            raise BadField(prefix + name, "is missing. Nothing was done.")
        else:
            found[name] = field.default
    return found


def query_in(fields: Sequence[Field], given: Sequence[tuple[str, str]]) -> dict[str, Any]:
    """Return the values of all fields of a query. BadField, also for a field that is given twice."""
    known = {field.name: field for field in fields}
    texts: dict[str, str] = {}
    for name, text in given:
        if name not in known:
            raise BadField(name[:100], f"is no parameter here. There are: {', '.join(known) or 'none'}.")
        if name in texts:
            raise BadField(name, "is given twice. Nothing was done.")
        texts[name] = text
    found: dict[str, Any] = {}
    for name, field in known.items():
        if name in texts:
            found[name] = _from_text(field, texts[name])
        elif field.needed:
            raise BadField(name, "is missing. Nothing was done.")
        else:
            found[name] = field.default
    return found


def payload_in(task: Mapping[str, Any], given: Mapping[str, Any], where: str = "") -> Any:
    """Return the payload of a task that was sent as JSON, or as base64 text; BadField. `given`: the object itself."""
    prefix = f"{where}." if where else ""
    if ("payload" in given) == ("b64" in given):
        raise BadField(f"{prefix}payload", "or b64 is needed, one of the two. Nothing was done.")
    if "payload" in given:
        return task["payload"]
    try:
        return base64.b64decode(task["b64"].encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise BadField(f"{prefix}b64", "is no base64 text. Nothing was done.") from None


def objects_schema(fields: Sequence[Field]) -> dict[str, Any]:
    """Return an object with these fields as JSON Schema."""
    found: dict[str, Any] = {
        "type": "object",
        "properties": {field.name: schema(field) for field in fields},
        "additionalProperties": False,
    }
    needed = [field.name for field in fields if field.needed]
    return found | {"required": needed} if needed else found


def _integer(text: str) -> int:
    if len(text) > 20:
        raise BadField("a number", "is beyond 64 bits. Nothing was done.")
    return int(text)


def _shown(value: Any) -> str:
    return "null" if value is None else f"{value!r:.100}"


def _number(field: Field, value: Any, where: str) -> Any:
    most = math.inf if field.most is None else field.most
    if type(value) not in (int, float) or not field.least <= value <= most:
        raise BadField(where, f"must be a number {_between(field)}, not {_shown(value)}. Nothing was done.")
    return value


def _whole(field: Field, value: Any, where: str) -> Any:
    if type(value) is float and value.is_integer() and abs(value) < 1 << 53:  # JSON tells 1 and 1.0 not apart
        value = int(value)
    most = INT64 - 1 if field.most is None else field.most
    if type(value) is not int or not field.least <= value <= most:
        raise BadField(where, f"must be a whole number {_between(field)}, not {_shown(value)}. Nothing was done.")
    return value


def _between(field: Field) -> str:
    return f"from {field.least:g} on" if field.most is None else f"from {field.least:g} to {field.most:g}"


def _text(field: Field, value: Any, where: str) -> Any:
    most = TEXT_CHARS_MAX if field.most is None else int(field.most)
    if type(value) is not str or not field.least <= len(value) <= most:
        raise BadField(
            where, f"must be text of {field.least:g} to {most:,} characters, not {_shown(value)}. Nothing was done."
        )
    if field.choices and value not in field.choices:
        raise BadField(where, f"must be one of {', '.join(field.choices)}, not {_shown(value)}. Nothing was done.")
    return value


def _pattern(field: Field, value: Any, where: str) -> Any:
    return check_pattern(where, _text(field, value, where))


def _flag(field: Field, value: Any, where: str) -> Any:
    if type(value) is not bool:
        raise BadField(where, f"must be true or false, not {_shown(value)}. Nothing was done.")
    return value


def _priority(field: Field, value: Any, where: str) -> Any:
    if type(value) is str and len(value.encode("utf-8", "replace")) <= 1024:
        return value
    if type(value) is int and -INT64 <= value < INT64:
        return value
    raise BadField(
        where, f"must be text of up to 1,024 bytes or a whole number of 64 bits, not {_shown(value)}. Nothing was done."
    )


def _list(field: Field, value: Any, where: str) -> list[Any]:
    most = LIST_MAX if field.most is None else int(field.most)
    if type(value) is not list or not field.least <= len(value) <= most:
        raise BadField(
            where, f"must be a list of {field.least:g} to {most:,} items, not {_shown(value)}. Nothing was done."
        )
    return value


def _texts(field: Field, value: Any, where: str) -> Any:
    for index, one in enumerate(_list(field, value, where)):
        if type(one) is not str or len(one) > TEXT_CHARS_MAX:
            raise BadField(f"{where}[{index}]", f"must be text, not {_shown(one)}. Nothing was done.")
    return value


def _objects(field: Field, value: Any, where: str) -> Any:
    found = [given_in(field.of, one, f"{where}[{index}]") for index, one in enumerate(_list(field, value, where))]
    if BYTES in field.of:  # tasks to insert: null is a payload, too
        for index, (one, sent) in enumerate(zip(found, value, strict=True)):
            one["payload"] = payload_in(one, sent, f"{where}[{index}]")
    return found


def _object(field: Field, value: Any, where: str) -> Any:
    if field.of:
        return given_in(field.of, value, where)
    if type(value) is not dict:
        raise BadField(where, f"must be a JSON object, not {_shown(value)}. Nothing was done.")
    return value


_CHECKS: dict[Kind, Callable[[Field, Any, str], Any]] = {
    "number": _number,
    "whole": _whole,
    "text": _text,
    "pattern": _pattern,
    "flag": _flag,
    "priority": _priority,
    "texts": _texts,
    "objects": _objects,
    "object": _object,
    "any": lambda field, value, where: value,
}


def _numbers(field: Field, kind: str) -> dict[str, Any]:
    found: dict[str, Any] = {"type": kind, "minimum": field.least}
    most = INT64 - 1 if field.most is None and kind == "integer" else field.most
    return found if most is None else found | {"maximum": most}


def _items(field: Field, of: dict[str, Any]) -> dict[str, Any]:
    most = LIST_MAX if field.most is None else int(field.most)
    return {"type": "array", "minItems": int(field.least), "maxItems": most, "items": of}


_SCHEMAS: dict[Kind, Callable[[Field], dict[str, Any]]] = {
    "number": lambda field: _numbers(field, "number"),
    "whole": lambda field: _numbers(field, "integer"),
    "text": lambda field: {
        "type": "string",
        "minLength": int(field.least),
        "maxLength": TEXT_CHARS_MAX if field.most is None else int(field.most),
    },
    "pattern": lambda field: _SCHEMAS["text"](field),
    "flag": lambda field: {"type": "boolean"},
    "priority": lambda field: {
        "anyOf": [
            {"type": "string", "maxLength": 256},
            {"type": "integer", "minimum": -INT64, "maximum": INT64 - 1},
        ]
    },
    "texts": lambda field: _items(field, {"type": "string", "maxLength": TEXT_CHARS_MAX}),
    "objects": lambda field: _items(field, objects_schema(field.of)),
    "object": lambda field: objects_schema(field.of) if field.of else {"type": "object"},
    "any": lambda field: {},
}


REPEATS_MAX = 4
"""Maximum number of `*`, `+`, `?` and `{...}` in one pattern. Each may multiply the time by the length of a name."""
_TOKEN = re.compile(
    r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\(\?P=\w+\)|\(\?#[^)]*\)|\(\?[a-zA-Z]+\)"
    r"|\(\?P<\w+>|\(\?<?[=!]|\(\?>|\(\?[a-zA-Z-]*:|\(\?|[()|]|[*+?]|\{\d*,?\d*\}|.",
    re.DOTALL,
)
"""A part of a pattern: an escape, a set of characters, what stands in brackets by itself, the start of a group, one of
`()|`, a repeat, or a character."""
_REPEAT = re.compile(r"[*+?]|\{\d*,?\d*\}")


def check_pattern(name: str, pattern: str | None) -> str | None:
    """Return a client's regular expression; BadField if it is none, or could take very long. `name`: the field's name.

    Python's `re` backtracks, and holds the GIL meanwhile. `(a+)+b` takes years for a name of fifty letters: any client,
    also one that may only read, could stop a gateway by it.
    """
    if pattern is None:
        return None
    try:
        re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise BadField(name, f"is no regular expression: {error}. Nothing was done.") from None
    if why := _why_slow(pattern):
        raise BadField(name, f"{why}: comparing names with it could take for ever. Nothing was done.")
    return pattern


def _why_slow(pattern: str) -> str:
    """Return why a pattern could take very long; "" if it cannot."""
    if "(?" in pattern and re.search(r"\(\?[a-zA-Z]*x", pattern):
        return "is written with comments (?x)"
    repeats, groups = 0, [False]
    """Of each group that is open, whether it has a repeat or an alternative."""
    ended, was_repeat = False, False
    for token in _TOKEN.findall(pattern):
        if _REPEAT.fullmatch(token):
            if ended and token != "?":
                return "repeats a group that has a repeat or an alternative in it"
            repeats += 0 if was_repeat else 1  # behind a repeat, `?` and `+` say how it is done
            groups[-1] = was_repeat = True
            continue
        ended = was_repeat = False
        if token.startswith("(") and not token.endswith((")", "(?")):
            groups.append(False)
        elif token == ")" and len(groups) > 1:
            ended = groups.pop()
            groups[-1] |= ended
        elif token == "|":
            groups[-1] = True
        elif re.fullmatch(r"\\[1-9]|\(\?P=.*\)", token):
            return "refers to what a group has found"
        elif token == "(?":
            return "has a group of a kind that is not known"
    return f"has more than {REPEATS_MAX} repeats" if repeats > REPEATS_MAX else ""
