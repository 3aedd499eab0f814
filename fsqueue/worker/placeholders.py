"""Replace placeholders in a command's arguments by a payload and its fields, and refuse those that cannot be."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from fsqueue.errors import InvalidArgument
from fsqueue.filesystem import is_program

_NAME = r"[^\W\d]\w*(?:[-.]\w+)*"
NAME = re.compile(_NAME)
"""What names a field: an identifier (`tile`), or one that goes on behind hyphens or single dots (`tile-id`, `x.y`)."""
PLACEHOLDER = re.compile(rf"(?<!\{{)\{{\{{(?P<escaped>(?:{_NAME})?)\}}\}}(?!\}})|\{{(?P<named>[^{{}}]*)\}}")
"""`{}`: the payload; `{field}`: a field of it; `{{}}` and `{{field}}`: the same, as text with single braces."""
FIELDS_SHOWN_MAX = 20
"""How many fields of a payload an error about a missing field names, at most."""


class MissingField(ValueError):
    """Say that a payload lacks a field that the command asks for, and which fields it has."""


def fill(argv: Sequence[str], payload: Any) -> list[bytes]:
    """Return `argv` with the payload and its fields in the place of their placeholders. MissingField.

    `argv` goes back to the bytes that it came from in this locale. Payloads are UTF-8 in each locale.

    Two kinds of braces stay as they are, whatever the payload holds:
    - around what can be no name: `{print $1}` and `{1..3}` belong to a program;
    - behind a dollar: `${name}` belongs to the shell.
    If a field of that name took their place, an inserter could write programs.
    """
    fields = payload if isinstance(payload, dict) else {}

    def one(match: re.Match[str]) -> bytes:
        if match["escaped"] is not None:
            return system_bytes("{" + match["escaped"] + "}")
        name = match["named"]
        if not name:
            return bytes_of(payload)
        if not _is_field(match):
            return system_bytes(match[0])
        if name not in fields:
            raise MissingField(_missing(name, payload))
        return bytes_of(fields[name])

    def filled(argument: str) -> bytes:
        parts, end = [], 0
        for match in PLACEHOLDER.finditer(argument):
            parts += [system_bytes(argument[end : match.start()]), one(match)]
            end = match.end()
        return b"".join([*parts, system_bytes(argument[end:])])

    return [filled(argument) for argument in argv]


def asks_for_fields(argv: Sequence[str]) -> bool:
    """Tell whether a payload may lack what `argv` asks for."""
    return any(_is_field(match) for argument in argv for match in PLACEHOLDER.finditer(argument))


def is_fixed(argument: str) -> bool:
    """Tell whether an argument is the same for every payload."""
    return all(match["escaped"] is not None for match in PLACEHOLDER.finditer(argument))


def check_program(argv: Sequence[str]) -> None:
    """Refuse a command line that was quoted as a whole, so that its only word is not a program. InvalidArgument."""
    word = argv[0]
    if len(argv) > 1 or not re.search(r"\s", word.strip()) or is_program(word):
        return
    directory = os.path.dirname(PLACEHOLDER.split(word, maxsplit=1)[0])
    if re.search(r"\s", directory):
        return  # "/my programs/{name}"
    raise InvalidArgument(
        f"The command {word!r} is one word, and no program has that name. No task was touched. Leave the quotes away, "
        f"so that each argument is a word of its own: -- {word.strip()}"
    )


def bytes_of(value: Any) -> bytes:
    """Return a payload, or a field of one, for an argument: text in UTF-8, whatever the locale."""
    if isinstance(value, str):
        return value.encode(errors="surrogateescape")
    return value if isinstance(value, bytes) else orjson.dumps(value)


def system_bytes(text: str) -> bytes:
    """Return an argument or a path of this system as the bytes that it came from; in UTF-8 what the locale lacks."""
    try:
        return os.fsencode(text)
    except UnicodeEncodeError:
        return text.encode(errors="surrogateescape")


def _is_field(match: re.Match[str]) -> bool:
    """Tell whether a placeholder means a field, whether the payload has one of that name or not."""
    name = match["named"]
    return bool(name and NAME.fullmatch(name)) and not match.string.startswith("$", max(0, match.start() - 1))


def _missing(name: str, payload: Any) -> str:
    if isinstance(payload, Mapping):
        names = sorted(map(str, payload))
        more = f" and {len(names) - FIELDS_SHOWN_MAX:,} more" if len(names) > FIELDS_SHOWN_MAX else ""
        there = f"its fields are {', '.join(names[:FIELDS_SHOWN_MAX])}{more}" if names else "it has no fields"
    else:
        there = f"it is {_KINDS.get(type(payload), 'a value')}, and no object with fields"
    return f"the payload has no field {name!r} for {{{name}}}: {there} (write {{{{{name}}}}} for the text {{{name}}})"


_KINDS = {
    str: "a text", int: "a number", float: "a number", bool: "true or false", list: "a list", bytes: "bytes",
    type(None): "null",
}  # fmt: skip
