"""Make tasks of lines: JSON Lines, plain lines, items that end with NUL, and the values of --task."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, Protocol

from fsqueue.format import user_json

from . import insert_kinds
from .insert_input import PAUSE, BadLine, Input

Row = tuple[int, int, int, Any]
"""The number of a file, the first and the last line of a task in it, and the payload, or a BadLine."""


USE_NULL = ": use -0 for items that end with NUL, as 'find -print0' writes them"
QUOTED = " (a shell needs JSON in single quotes: --task '{\"tile\": 7}'; for plain text add --lines)"


class Format(Protocol):
    """Say what one kind of file needs to become tasks."""

    unit: str
    """Name what a file is counted in: lines, items, rows."""
    line: int
    """Number the last line that belongs to a whole row of the file that is being read. 0 before the first."""

    def check(self, name: str) -> None:
        """Refuse a file before anything is inserted (InvalidArgument), as far as that can be told from outside."""

    def rows(self, number: int, name: str, file: IO[bytes]) -> Iterator[Any]:
        """Yield the rows of a file, and PAUSE. `number` is that of the file in the input."""

    def waiting(self) -> Iterator[Row]:
        """Yield the rows that were read and not yet yielded, at the end of all input."""

    def from_line(self, number: int, line: int) -> str | None:
        """Return the command that prints a file from a line on, without its name. "" if that is the whole file.

        None if no command does it.
        """

    def advice(self) -> str:
        """Return what the options must say to read the rest of the input like its beginning, or ""."""


class LineFormat:
    """Make a task of each line, by a function that decodes it."""

    unit = "line"
    _end = b"\n"

    def __init__(self, source: Input, decode: Callable[[bytes], Any], is_json: bool) -> None:
        self._input, self._decode = source, decode
        self._is_json = is_json
        self.line = 0

    def check(self, name: str) -> None:
        """Refuse nothing: any bytes may be lines."""

    def rows(self, number: int, name: str, file: IO[bytes]) -> Iterator[Any]:
        """Yield a row for each line that is not blank."""
        self.line = count = 0
        is_first = True
        for line in self._input.lines(file, self._end):
            if line is PAUSE:
                yield PAUSE
                continue
            self.line = count = count + 1
            text = self._text(line, count)
            if not text:
                continue
            try:
                if len(line) > self._input.line_bytes_max:
                    raise too_long(self._input.line_bytes_max)
                if is_first and not self._is_json and self._end == b"\n" and b"\0" in self._input.head:
                    raise Foreign("or one soon after has the character NUL", USE_NULL, may_skip=False)
                yield number, count, count, self._decode(text)
            except BadLine as error:
                yield number, count, count, self._explained(error, text, name) if is_first else error
            is_first = False

    def _text(self, line: bytes, count: int) -> bytes:
        """Return what counts of a line; nothing if it is blank."""
        text = line.removesuffix(b"\r")
        if count == 1:
            text = text.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
        return b"" if text.isspace() else text

    def _explained(self, error: BadLine, text: bytes, name: str) -> BadLine:
        """Return the error on the first line of a file, with what kind of file it may be."""
        kind = insert_kinds.kind_of(self._input.head, name, self._is_json)
        if kind is None:
            return error
        return BadLine(f"{error.why} ({kind})", error.may_skip) if isinstance(error, Foreign) else error

    def waiting(self) -> Iterator[Row]:
        """Yield nothing: no row waits."""
        return iter(())

    def from_line(self, number: int, line: int) -> str | None:
        """Return the command that prints the lines from one on, or "" for all of them."""
        return "" if line <= 1 else f"tail -n +{line}"

    def advice(self) -> str:
        """Return "": each line says all about its task."""
        return ""


class NulFormat(LineFormat):
    """Make a task of each item that ends with NUL, as `find -print0` writes them. Nothing is taken from an item."""

    unit = "item"
    _end = b"\0"

    def _text(self, line: bytes, count: int) -> bytes:
        return line

    def from_line(self, number: int, line: int) -> str | None:
        """Return the command that prints the items from one on, or "" for all of them."""
        return "" if line <= 1 else f"tail -z -n +{line}"


class GivenFormat:
    """Make a task of each value of --task. All of them are good: `decoded` has looked."""

    unit = "task"

    def __init__(self, payloads: Sequence[Any]) -> None:
        self._payloads = payloads
        self.line = 0

    def check(self, name: str) -> None:
        """Refuse nothing: there is no file."""

    def rows(self, number: int, name: str, file: IO[bytes]) -> Iterator[Any]:
        """Yield a row for each value."""
        for at, payload in enumerate(self._payloads, 1):
            self.line = at
            yield number, at, at, payload

    def waiting(self) -> Iterator[Row]:
        """Yield nothing: no row waits."""
        return iter(())

    def from_line(self, number: int, line: int) -> str | None:
        """Return "" for all of the values, else None: options are no file that a command could cut."""
        return "" if line <= 1 else None

    def advice(self) -> str:
        """Return "": each value says all about its task."""
        return ""


class Foreign(BadLine):
    """A line is not JSON, or not text: the file may be something else. `why` is without the guess at what it is."""

    def __init__(self, why: str, guess: str = "", may_skip: bool = True) -> None:
        super().__init__(why + guess, may_skip)
        self.why = why


def json_lines(source: Input) -> LineFormat:
    """Return the format of JSON Lines."""
    return LineFormat(source, decode_json, is_json=True)


def plain_lines(source: Input) -> LineFormat:
    """Return the format of plain lines."""
    return LineFormat(source, decode_plain, is_json=False)


def nul_items(source: Input) -> NulFormat:
    """Return the format of items that end with NUL."""
    return NulFormat(source, decode_text, is_json=False)


def too_long(bytes_max: int) -> BadLine:
    """Return the error on a line that is too long for a task."""
    return BadLine(f"is longer than a task of this queue may be ({bytes_max:,} bytes)")


def decode_text(line: bytes) -> str:
    """Return a line as text. Foreign if it is not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise Foreign(f"is not UTF-8 ({error.reason} at byte {error.start + 1})") from None


def decode_plain(line: bytes) -> str:
    """Return a line as text. Foreign if it is none, or has the character NUL, which ends names in some lists."""
    if b"\0" in line:
        raise Foreign("has the character NUL", USE_NULL)
    return decode_text(line)


def decode_json(line: bytes) -> Any:
    """Return the value of a line of JSON. BadLine if it is not JSON, or cannot be kept exactly."""
    try:
        return user_json.decode(line)
    except user_json.NotExact as error:
        if error.is_json:
            raise BadLine(str(error)) from None
        raise Foreign(str(error), insert_kinds.guess(line, error.position)) from None


def given_payloads(texts: Sequence[str], plain: bool) -> list[Any]:
    """Return the payloads in the values of --task. BadLine, which says which of them, if one is none."""
    payloads = []
    for number, text in enumerate(texts, 1):
        try:
            data = text.encode("utf-8", "surrogateescape")
            payloads.append(decode_plain(data) if plain else decode_json(data))
        except BadLine as error:
            why = error.why if isinstance(error, Foreign) else str(error)
            quoted = QUOTED if isinstance(error, Foreign) and not plain else ""
            raise BadLine(f"--task number {number:,} {why}{quoted}") from None
    return payloads
