"""Replace placeholders in a command's arguments by a payload, its fields, parts of them and the task's id.

docs/commands.md has the table of them.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from fsqueue.errors import InvalidArgument

_BEYOND_ASCII = r"\x7f\s\ud800-\udfff"
_FIRST, _NEXT = rf"[^\x00-@\[-^`{{-{_BEYOND_ASCII}]", rf"[^\x00-/:-@\[-^`{{-{_BEYOND_ASCII}]"
"""A letter or `_`, and such or a digit. All characters beyond ASCII but blanks and undecodable bytes are letters:
`\\w` lacks the marks that many scripts write vowels and accents with.
"""
_NAME = rf"{_FIRST}{_NEXT}*(?:[-.]{_NEXT}+)*"
NAME = re.compile(_NAME)
"""What names a field: a word (`tile`), or one that goes on behind hyphens or single dots (`tile-id`, `x.y`)."""
_QUOTED = r'"[^"{}]+"'
"""What names any other field: `{"tile no"}`. A colon behind it is JSON's, so it takes no format."""
_JSON_NUMBER = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_PART = r"\.|//?|/\."
_NUMBERS = "bdoxXeEfFgG%"
"""The kinds of formats that take numbers alone."""
_SPEC = rf"(?:[^\s{{}}]?[<>=^])?[+-]?#?0?(?:[1-9][0-9]{{0,2}})?[,_]?(?:\.[0-9]{{1,3}})?[{_NUMBERS}s]?"
"""Matches Python's format specification, but for what depends on the locale (n), characters by number (c), the sign " "
and widths from 1,000 on.
"""
_FIELD = re.compile(
    rf"(?:(?P<name>{_NAME})?(?:(?P<part>{_PART})|:(?P<spec>[^{{}}]*))?|(?P<quoted>{_QUOTED})(?P<part_of_quoted>{_PART})?)"
)
_SIGN = r"[-?*+=@~^#%&|<>()\[\]]"
_REFUSED = {
    rf"-?\d+(?:{_PART})?|\d+[:!][^{{}}\s]*":
        "stands for nothing: there are no numbered columns: {} is the payload, {name} a field of it.",
    rf"(?:{_NAME})![^{{}}]*|(?:{_QUOTED})?![rsa](?::[^{{}}\s]*)?":
        "stands for nothing: conversions (!) are not known: {name} is the field, {name:04d} a format of it.",
    r"0*%[.:]?": "is not known here: the number of the slot is in $FSQUEUE_SLOT, and counts from 0.",
    r"=[^{}]*=":
        "is not known here: there are no expressions. A script can change a payload: sh -c '… \"$1\" …' sh {}.",
    rf"0*##|0+#|(?:{_NAME}|-?\d+)?(?:/?\.\.\.?|\+/|\+\.{{1,3}})":
        "is not known here. The parts of a path are {.}, {/}, {//} and {/.}, and {#} is the task's id.",
    rf"(?:#|(?:{_NAME}|{_QUOTED})(?:{_PART})?|{_PART})[ \t]+":
        "has a blank before the closing brace, and so stands for nothing: leave the blank out.",
    rf"(?:{_NAME}|{_QUOTED})(?:{_SIGN}|\[(?:-?\d+|'[^'{{}}]*'|\"[^\"{{}}]*\")\])":
        "begins like a field's placeholder, and stands for nothing: {name} is the field, all of it.",
    rf"{_QUOTED}:(?!{_JSON_NUMBER}[ \t]*(?:\}}|$)){_SPEC}[ \t]*":
        "has a format behind a name in quotes, and so stands for nothing: write {\"name\"}, and format the value in "
        "the command, or rename the field.",
    rf"(?:{_NAME})?:[^{{}}\s]*\{{[^{{}}]*\}}[^{{}}\s]*":
        "has braces in its format, and so stands for nothing: a format is a fixed text, such as {tile:04d}.",
}  # fmt: skip
"""What looks like a placeholder, of GNU parallel or Python or misspelled, and means nothing; and what is said of it.

A blank behind the opening brace is none of it: `{ print }` belongs to awk.
"""
_MEANT = "|".join([rf"#|(?:{_NAME}|{_QUOTED})?(?:{_PART})?", rf"(?:{_NAME}):[^{{}}]*", r": ?[^{}\s]*[ \t]*", *_REFUSED])
"""Matches what stands between the braces of a placeholder, valid or refused."""
_BRACES = re.compile(rf"(?<!\{{)\{{\{{(?P<escaped>{_MEANT})\}}\}}(?!\}})|\{{(?P<inside>{_MEANT})\}}")
_OTHERS = re.compile(rf"(?<![{{$])\{{(?!(?:{_MEANT})\}})(?P<inside>[^{{}}]+)\}}(?!\}})")
"""Matches all other braces: text, unless a field of the payload has the name that they are around."""
_AS_FIELD = re.compile(rf"(?P<name>.*?)(?:{_PART}|:[^{{}}]*)?", re.DOTALL)
FIELDS_SHOWN_MAX = 20
"""Maximum number of fields of a payload that an error about a missing field names."""


ARGUMENT_BYTES_MAX = 131_071
"""Maximum number of bytes of an argument: Linux takes 32 pages (MAX_ARG_STRLEN, execve(2)), a NUL at its end included.
"""
_ON_STDIN = (
    "leave it out of the arguments, and the command has it on standard input (with --stdin, stdin=True, if another "
    "placeholder is left)"
)
TOO_LARGE = f"the payload is too large for a command line: {_ON_STDIN}"


def no_argument(why: str) -> str:
    """Return the reason of a failure: the payload cannot be an argument."""
    return f"the payload cannot be an argument ({why}): {_ON_STDIN}"


class Unfilled(ValueError):
    """Say why a payload cannot take the place of a placeholder, and what would help.

    The text says nothing of the payload but of which kind it is: it becomes the reason of a failure, which lasts longer
    than a payload may be kept (`keep_payloads`).
    """

    def __init__(self, why: str, names: str = "") -> None:
        super().__init__(why)
        self.names = names
        """Which fields the payload has, for a user who may see it: the task waits."""


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A pair of braces that stands for something of the task."""

    text: str
    """As it was typed: `{tile:04d}`."""
    name: str = ""
    """The field, without the quotes that it was typed in; "" for the whole payload."""
    part: str = ""
    """Which part of a path: `.` without its extension, `/` its last name, `//` its directory, `/.` its last name
    without the extension; "" for all of it.
    """
    spec: str = ""
    """A format specification."""
    is_id: bool = False
    """Whether it stands for the task's id."""

    @property
    def typed_name(self) -> str:
        """Return the field's name as it is typed between braces."""
        return self.name if not self.name or NAME.fullmatch(self.name) else f'"{self.name}"'

    @property
    def is_number(self) -> bool:
        """Return whether it stands for nothing but numbers: any other payload fails its task."""
        return self.spec.endswith(tuple(_NUMBERS))


def check_filled(words: Sequence[bytes]) -> None:
    """Raise Unfilled if no process can be started with one of these arguments, whose placeholders are filled.

    All together may still be too many for the kernel: that depends on the environment of the command.
    """
    if any(b"\0" in word for word in words):
        raise Unfilled(no_argument("embedded null byte"))
    if any(len(word) > ARGUMENT_BYTES_MAX for word in words):
        raise Unfilled(TOO_LARGE)


def fill(argv: Sequence[str], payload: Any, task_id: str) -> list[bytes]:
    """Return `argv` with what its placeholders stand for. Unfilled.

    `argv` goes back to the bytes that it came from in this locale. Payloads are UTF-8 in each locale.

    Two kinds of braces stay as they are, whatever the payload holds:
    - around what can be no placeholder: `{print $1}` and `{1..3}` belong to a program;
    - behind a dollar: `${name}` belongs to the shell.
    If a field of that name took their place, an inserter could write programs. A payload that has such a field is
    refused: the user has most likely meant the field.
    """
    if isinstance(payload, dict):
        for inside in others(tuple(argv)):
            _refuse_name(inside, payload)
    return [
        b"".join(one if isinstance(one, bytes) else _value_of(one, payload, task_id) for one in parts(argument))
        for argument in argv
    ]


@functools.lru_cache(maxsize=256)
def parts(argument: str) -> tuple[bytes | Placeholder, ...]:
    """Return an argument as the bytes and placeholders that it consists of. InvalidArgument: see `check`."""
    found: list[bytes | Placeholder] = []
    end = 0
    for match in _BRACES.finditer(argument):
        is_escaped = match["escaped"] is not None
        inside = match["escaped"] if is_escaped else match["inside"]
        if not is_escaped and argument.startswith("$", max(0, match.start() - 1)):
            continue
        found.append(system_bytes(argument[end : match.start()]))
        end = match.end()
        found.append(system_bytes(f"{{{inside}}}") if is_escaped else _placeholder(inside))
    return (*found, system_bytes(argument[end:]))


@functools.lru_cache(maxsize=256)
def others(argv: tuple[str, ...]) -> tuple[str, ...]:
    """Return what stands in braces in a command and is no placeholder, also over words that a shell has parted."""
    return tuple(dict.fromkeys(match["inside"] for match in _OTHERS.finditer(" ".join(argv))))


def in_argument(argument: str) -> Iterator[Placeholder]:
    """Yield the placeholders in an argument."""
    return (one for one in parts(argument) if isinstance(one, Placeholder))


def check(argv: Sequence[str]) -> None:
    """Refuse a command with a placeholder that means nothing: `{1}`, `{name!r}`, `{:5q}`, `{%}`. InvalidArgument."""
    for argument in argv:
        parts(argument)


def asks_for_fields(argv: Sequence[str]) -> bool:
    """Tell whether a payload may lack, have, or be, what `argv` cannot take."""
    return bool(others(tuple(argv))) or any(
        one.name or one.part or one.spec for argument in argv for one in in_argument(argument)
    )


def hand_over(argv: Sequence[str]) -> bool:
    """Tell whether some argument contains the payload or a part of the payload. The task's id is no part."""
    return any(not one.is_id for argument in argv for one in in_argument(argument))


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


def escaped(text: str) -> str:
    """Return what to type for braces that should stay as they are."""
    return f"{{{text}}}"


def _placeholder(inside: str) -> Placeholder:
    """Return what stands for the task in braces. InvalidArgument for what means nothing."""
    text = f"{{{inside}}}"
    if inside == "#":
        return Placeholder(text, is_id=True)
    match = _FIELD.fullmatch(inside)
    if match is None:
        why = next(why for pattern, why in _REFUSED.items() if re.fullmatch(pattern, inside))
        raise InvalidArgument(f"{text} {why} {_unless_text(text)}")
    spec = match["spec"]
    if spec is not None and not _is_valid(spec):
        raise InvalidArgument(
            f"{text} has no valid format behind the colon. Formats are Python's, such as {{tile:04d}}, {{x:.3f}} or "
            f"{{name:>8}}. {_unless_text(text)}"
        )
    name = match["name"] or (match["quoted"] or "")[1:-1]
    return Placeholder(text, name, match["part"] or match["part_of_quoted"] or "", spec or "")


def _unless_text(text: str) -> str:
    return f"For the text {text} write {escaped(text)}. No task was touched."


def _is_valid(spec: str) -> bool:
    """Tell whether a format specification is one of those that are allowed, and suits some value."""
    if not spec or not re.fullmatch(_SPEC, spec):
        return False
    for value in (1, 1.5, "text"):
        try:
            format(value, spec)
            return True
        except ValueError:
            pass
    return False


def _refuse_name(inside: str, payload: Mapping[str, Any]) -> None:
    """Refuse braces around a field's name that is none of a placeholder: `{tile no}`, `{2x}`, `{ n }`. Unfilled."""
    found = _field_in(inside, payload)
    if found is None:
        return
    name, instead = found
    text = f"{{{inside}}}"
    if instead or NAME.fullmatch(name):
        cure = f"there are blanks beside the name: write {_typed(instead or name)} for its value"
    elif re.fullmatch(_QUOTED, f'"{name}"'):
        cure = f"""that name needs quotes: write {_typed(f'"{name}"')} for its value"""
    else:
        cure = "no placeholder has such a name: give the field another name"
    raise Unfilled(
        f"{text} is around the name of a field of the payload, and is no placeholder, since {cure}. If the command "
        f"means the text {text}, put it into a script file"
    )


def _field_in(inside: str, payload: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the field whose name is all that stands in braces, but for blanks and a part or a format behind it.

    With it comes what would be a placeholder without the blanks, or "". `{ x: .y }` and `{x : .y}` are jq's.
    """
    bare = inside.strip()
    match = None if inside in payload else _FIELD.fullmatch(bare)
    if match is not None:
        name = match["name"] or (match["quoted"] or "")[1:-1]
        is_other = match["spec"] is not None and not _is_valid(match["spec"])
        return (name, bare) if name in payload and name and not is_other else None
    for one in (inside, bare):
        if one and one in payload:
            return one, ""
    for one in (inside, bare):
        behind = _AS_FIELD.fullmatch(one)
        name = behind["name"].strip() if behind else ""
        if name and name in payload and not (NAME.fullmatch(name) and ":" in inside):
            return name, ""
    return None


def _typed(inside: str) -> str:
    """Return how a user of a shell types a placeholder."""
    text = f"{{{inside}}}"
    return shlex.quote(text) if '"' in text else text


def _value_of(one: Placeholder, payload: Any, task_id: str) -> bytes:
    if one.is_id:
        return task_id.encode()
    value, what = payload, "payload"
    if one.name:
        if not isinstance(payload, dict) or one.name not in payload:
            raise _missing(one, payload)
        value, what = payload[one.name], f"field {one.name!r}"
    if one.part:
        if not isinstance(value, (str, bytes)):
            is_whole = isinstance(value, dict) and not one.name
            instead = f"name a field of it, as in {{name{one.part}}}" if is_whole else f"write {{{one.typed_name}}}"
            raise Unfilled(f"{one.text} takes a part of a text, and the {what} is {_kind(value)}: {instead}")
        return _part_of(bytes_of(value), one.part)
    return _formatted(one, value, what) if one.spec else bytes_of(value)


def _part_of(path: bytes, part: str) -> bytes:
    """Return a part of a path, as basename(1), dirname(1) and `os.path.splitext` know them."""
    if part == ".":
        return os.path.splitext(path)[0]
    bare = path.rstrip(b"/") or path[:1]
    if part == "//":
        return os.path.dirname(bare).rstrip(b"/") or (b"/" if bare.startswith(b"/") else b".")
    name = os.path.basename(bare) or bare
    return name if part == "/" else os.path.splitext(name)[0]


def _formatted(one: Placeholder, value: Any, what: str) -> bytes:
    if isinstance(value, bytes):
        value = value.decode(errors="surrogateescape")
    if isinstance(value, (int, float, str)) and not isinstance(value, bool):
        try:
            return format(value, one.spec).encode(errors="surrogateescape")
        except (ValueError, OverflowError):
            pass
    if isinstance(value, float):
        takes = "texts" if one.spec.endswith("s") else "whole numbers"
    elif isinstance(value, str) or one.is_number:
        takes = "numbers"
    else:
        takes = "texts" if one.spec.endswith("s") else "texts and numbers"
    kind = "no whole number" if takes == "whole numbers" else _kind(value)
    raise Unfilled(f"{one.text} takes {takes}, and the {what} is {kind}: insert {takes}, or write {{{one.name}}}")


def _missing(one: Placeholder, payload: Any) -> Unfilled:
    there = names = ""
    if isinstance(payload, Mapping):
        fields = sorted(map(str, payload))
        more = f" and {len(fields) - FIELDS_SHOWN_MAX:,} more" if len(fields) > FIELDS_SHOWN_MAX else ""
        names = f"Its fields are {', '.join(fields[:FIELDS_SHOWN_MAX])}{more}" if fields else "It has no fields"
        alike = next((field for field in fields if _is_alike(field, one.name)), None)
        if alike is not None:
            names += (
                f". The field {alike!r} ({alike!a}) looks like {one.name!r} ({one.name!a}), and is another "
                "name, of other characters: copy the name from the payload"
            )
    else:
        there = f": it is {_kind(payload)}, and no object with fields"
    return Unfilled(
        f"the payload has no field {one.name!r} for {one.text}{there} "
        f"(write {escaped(one.text)} for the text {one.text})",
        names,
    )


def _is_alike(one: str, other: str) -> bool:
    """Tell whether two names look alike: an accent may be a character of its own, or a part of its letter."""
    return unicodedata.normalize("NFKC", one) == unicodedata.normalize("NFKC", other)


def _kind(value: Any) -> str:
    """Return of which kind a value is, for an error: never the value."""
    return _KINDS.get(type(value), "a value")


_KINDS = {
    str: "a text", int: "a number", float: "a number", bool: "true or false", list: "a list", bytes: "bytes",
    dict: "an object", type(None): "null",
}  # fmt: skip
