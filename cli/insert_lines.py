"""Make tasks of lines: JSON Lines, plain lines, items that end with NUL, and the values of --task.

`kind_of` tells from its first bytes what a file is that was taken for lines, and what to type instead.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from fsqueue.format import user_json

from .insert_input import HEAD_BYTES, PAUSE, BadLine, Input, TooLong
from .printing import quoted

Row = tuple[int, int, int, Any]
"""The number of a file, the first and the last line of a task in it, and the payload, or a BadLine."""

NOTHING = "Nothing was inserted."
USE_NULL = ": use -0 for items that end with NUL, as 'find -print0' writes them"
BINARY = "it is no text, but a binary file: write its tasks as JSON Lines, CSV or Parquet"
QUOTED = " (a shell needs JSON in single quotes: --task '{\"tile\": 7}'; for plain text add --lines)"
LONE_RETURN = "has a carriage return within a line: where it ends lines, insert what \"tr '\\r' '\\n'\" prints"
EACH_ELEMENT = "For a task of each element, insert what \"jq -c '.[]'\" makes of it."

PACKED = (
    (b"\x1f\x8b", "compressed with gzip", "zcat"),
    (b"BZh", "compressed with bzip2", "bzcat"),
    (b"\xfd7zXZ\0", "compressed with xz", "xzcat"),
    (b"\x28\xb5\x2f\xfd", "compressed with zstd", "zstd -dc"),
    (b"\x04\x22\x4d\x18", "compressed with lz4", "lz4 -dc"),
    (b"\x1f\x9d", "compressed with compress", "zcat"),
    (b"PK\x03\x04", "a ZIP archive", "unzip -p"),
)
"""The first bytes of a file, what it is, and the command that unpacks it."""
_SHEETS = (b"[Content_Types].xml", b"xl/", b"docProps/", b"mimetypeapplication/vnd.oasis.opendocument")
"""What is near the beginning of a spreadsheet that is a ZIP archive."""
_OLD_SHEET = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
OLDER = ": what older programs of Windows wrote, 'iconv -f WINDOWS-1252 -t UTF-8' makes UTF-8 of"
_COMMA_AT_END = re.compile(r",\s*[}\]]")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_PYTHONS = re.compile(r"(?:True|False|None)\b")
_NO_NUMBERS = re.compile(r"-?(?:NaN|Infinity)\b")
WIDE = (
    (b"\xff\xfe\0\0", "UTF-32"), (b"\0\0\xfe\xff", "UTF-32"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"),
)  # fmt: skip
SEPARATORS = {",": "--csv", "\t": "--tsv", ";": "--delimiter ';'", "|": "--delimiter '|'"}
"""What separates the fields of tables, and the option for it."""
SUFFIXES = {".csv": "--csv", ".tsv": "--tsv"}
PARQUET_MAGIC = b"PAR1"
UNNAMED = frozenset('"{}')
"""No placeholder names a field that has one of these in its name (`fsqueue run`)."""


class Format:
    """Say what one kind of file needs to become tasks. A kind that needs less leaves the rest as it is here."""

    has_open_end = False
    """Whether the last item lacks the end that each item has."""
    unnamed: Sequence[str] = ()
    """The columns that no placeholder of a command can name."""
    indexes: Sequence[str] = ()
    """The columns that a program has added to those of the user's table: its numbers of rows."""
    takes_text = False
    """Whether --text makes text of a column."""
    unit = "line"
    """Name what a file is counted in: lines, items, rows."""
    line = 0
    """Number the last line that belongs to a whole row of the file that is being read. 0 before the first."""

    def __init__(self) -> None:
        self.respelled: dict[str, tuple[str, str]] = {}
        """Columns of numbers in which a payload spells a cell otherwise: the first such cell, and what it becomes."""

    def check(self, names: Sequence[str]) -> None:
        """Refuse files before anything is inserted (InvalidArgument), as far as that can be told from outside."""

    def rows(self, number: int, name: str, file: IO[bytes]) -> Iterator[Any]:
        """Yield the rows of a file, and PAUSE. `number` is that of the file in the input."""
        raise NotImplementedError

    @property
    def has_waiting(self) -> bool:
        """Tell whether rows were read and not yet yielded."""
        return False

    def waiting(self) -> Iterator[Row]:
        """Yield the rows that were read and not yet yielded, at the end of all input."""
        return iter(())

    def from_line(self, number: int, line: int) -> str | None:
        """Return the command that prints a file from a line on, without its name. "" if that is the whole file.

        None if no common command does it.
        """
        return "" if line <= 1 else None

    def advice(self) -> str:
        """Return what the options must say to read the rest of the input like its beginning, or ""."""
        return ""


class LineFormat(Format):
    """Make a task of each line, by a function that decodes it."""

    _end, _tail = b"\n", "tail"

    def __init__(self, source: Input, decode: Callable[[bytes], Any], is_json: bool) -> None:
        super().__init__()
        self._input, self._decode = source, decode
        self._is_json = is_json

    def rows(self, number: int, name: str, file: IO[bytes]) -> Iterator[Any]:
        """Yield a row for each line that is not blank."""
        self.line = count = 0
        is_first, is_plain = True, not self._is_json and self._end == b"\n"
        for line in self._input.lines(file, self._end):
            if line is PAUSE:
                yield PAUSE
                continue
            self.line = count = count + 1
            try:
                text = self._text(line, count)
                if not text:
                    continue
                if len(line) > self._input.line_bytes_max:
                    raise TooLong(self._input.line_bytes_max)
                if is_plain and is_first and b"\0" in self._input.head:
                    raise Foreign("or one soon after has the character NUL", USE_NULL, may_skip=False)
                if is_plain and b"\r" in text:
                    raise BadLine(f"{LONE_RETURN}. Names with it are items for -0")
                yield number, count, count, self._decode(text)
            except BadLine as error:
                yield number, count, count, self._explained(error, name) if is_first else error
            is_first = False

    def _text(self, line: bytes, count: int) -> bytes:
        """Return what counts of a line; nothing if it is blank."""
        text = line.rstrip(b"\r")
        if count == 1:
            text = without_marks(text)
        return b"" if text.isspace() else text

    def _explained(self, error: BadLine, name: str) -> BadLine:
        """Return the error on the first line of a file, with what kind of file it may be."""
        kind = kind_of(self._input.head, name, self._is_json)
        if kind is None:
            return error
        return BadLine(f"{error.why} ({kind})", error.may_skip) if isinstance(error, Foreign) else error

    def from_line(self, number: int, line: int) -> str | None:
        """Return the command that prints the lines, or items, from one on, or "" for all of them."""
        return "" if line <= 1 else f"{self._tail} -n +{line}"


class NulFormat(LineFormat):
    """Make a task of each item that ends with NUL, as `find -print0` writes them. Nothing is taken from an item."""

    unit = "item"
    _end, _tail = b"\0", "tail -z"

    def _text(self, line: bytes, count: int) -> bytes:
        if self._input.is_unended:
            if count == 1 and b"\n" in line:
                raise BadLine("has line ends and no NUL: use --lines for a task of each line", may_skip=False)
            self.has_open_end = True
        return line


class GivenFormat(Format):
    """Make a task of each value of --task. All of them are good: `given_payloads` has looked."""

    unit = "task"

    def __init__(self, payloads: Sequence[Any]) -> None:
        super().__init__()
        self._payloads = payloads

    def rows(self, number: int, name: str, file: IO[bytes]) -> Iterator[Any]:
        """Yield a row for each value."""
        for at, payload in enumerate(self._payloads, 1):
            self.line = at
            yield number, at, at, payload


class Foreign(BadLine):
    """A line is not JSON, or not text: the file may be something else. `why` is without the guess at what it is."""

    def __init__(self, why: str, guess: str = "", may_skip: bool = True) -> None:
        super().__init__(why + guess, may_skip)
        self.why = why


def without_marks(line: bytes) -> bytes:
    """Return the first line of a file without byte order marks. A file that was saved by two programs may have two."""
    while line.startswith(codecs.BOM_UTF8):
        line = line[len(codecs.BOM_UTF8) :]
    return line


def decode_text(line: bytes) -> str:
    """Return a line as text. Foreign if it is not UTF-8."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise Foreign(f"is {_not_utf8(error)}") from None


def _not_utf8(error: UnicodeDecodeError) -> str:
    return f"not UTF-8 (byte {error.start + 1:,} is 0x{error.object[error.start]:02x})"


def decode_plain(line: bytes) -> str:
    """Return a line as text. Foreign if it is none, or has the character NUL, which ends names in some lists."""
    if b"\0" in line:
        raise Foreign("has the character NUL", f": {BINARY}" if _is_binary(line) else USE_NULL)
    return decode_text(line)


def decode_json(line: bytes) -> Any:
    """Return the value of a line of JSON. BadLine if it is not JSON, or cannot be kept exactly."""
    try:
        return user_json.decode(line)
    except user_json.NotExact as error:
        if error.is_json:
            raise BadLine(str(error)) from None
        try:
            text = line.decode()
        except UnicodeDecodeError as wrong:
            raise Foreign(f"is not JSON: it is {_not_utf8(wrong)}", OLDER) from None
        raise Foreign(str(error), guess(text, error.position)) from None


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


# -- what else a file may be ---------------------------------------------------------------------------------


def kind_of(head: bytes, name: str, is_json: bool) -> str | None:
    """Return what a file is and what to type, in one phrase; None if it shows no sign of being something else.

    `head`: its first bytes. `name`: as the user typed it, `-` for standard input. `is_json`: whether its lines were
    taken for JSON, else for text.
    """
    if head.startswith(_OLD_SHEET) or (head.startswith(b"PK") and any(mark in head for mark in _SHEETS)):
        return "it is a spreadsheet: save it as CSV in its program, and insert that with --csv"
    for magic, what, command in PACKED:
        if head.startswith(magic):
            whole = (
                ""
                if name == "-"
                else (f"; with --commit NAME --from -- {command} {quoted(name)} nothing of a damaged file is inserted")
            )
            return f"it is {what}: insert what {_command(command, name)} prints{whole}"
    if head.startswith(PARQUET_MAGIC):
        if name == "-":
            return "it is a Parquet file, which cannot be read from a pipe: give its name"
        return "it is a Parquet file: leave out the option that says otherwise"
    wide = _wide(head)
    if wide is not None:
        return f"it is {wide} text: insert what {_command(f'iconv -f {wide} -t UTF-8', name)} prints"
    if _is_binary(head):
        return BINARY
    if not is_json:
        return None
    if b"\0" in head:
        return f"it has the character NUL{USE_NULL}"
    return _table(head, name)


def _is_binary(data: bytes) -> bool:
    """Tell whether bytes have NULs as no list of names has them: it has no empty items."""
    return b"\0\0" in data or data.startswith(b"\0")


def one_for_many(payload: Any) -> str | None:
    """Return what a payload is that may have been meant for many tasks, and what to type; None if it is one task.

    pandas writes a table as an object of columns, each with a value for each number of a row, unless it is told
    otherwise.
    """
    if type(payload) is list and len(payload) > 1:
        return f"array, and became one task. {EACH_ELEMENT}"
    if type(payload) is not dict or not payload:
        return None
    columns = list(payload.values())
    is_table = set(payload) in ({"columns", "index", "data"}, {"schema", "data"}) or (
        type(columns[0]) is dict
        and len(columns[0]) > 0
        and all(type(column) is dict and column.keys() == columns[0].keys() for column in columns)
        and all(row.isdecimal() for row in columns[0])
    )
    if not is_table:
        return None
    return (
        "object with a whole table in it, and became one task. For a task of each row, let pandas write it with "
        "to_json(…, orient='records', lines=True)"
    )


def no_table(head: bytes) -> str | None:
    """Return what a file is that has no header of a table, though its first line could be read as one; else None."""
    lines = head.decode("utf-8", "replace").lstrip("\ufeff \t\r\n").splitlines() or [""]
    first = lines[0].rstrip(" \t,")
    if first in ("[", "{") or (first[:1] in ("[", "{") and _is_json(first)):
        return "it is JSON: leave out the option for tables"
    if re.match(r"<(?:[!?]|(?:html|head|body|table|div|pre|p|svg|rss)\b)", first, re.IGNORECASE):
        return "it is HTML or XML, perhaps the page of an error: look into it"
    return None


def _is_json(line: str) -> bool:
    try:
        user_json.decode(line.encode())
    except user_json.NotExact as error:
        return error.is_json
    return True


def guess(line: str, position: int) -> str:
    """Return a hint at what the user may have meant by a line that is not JSON, or "".

    `position`: where the line ceases to be JSON. Each program that a hint names takes such a line.
    """
    good, rest = line[:position].rstrip(), line[position:].strip()
    if _NO_NUMBERS.match(rest):
        return " (JSON has no NaN and no infinities: write null, or a string)"
    begin = line.strip()[:1]
    if begin not in ("[", "{"):
        return " (for plain lines use --lines)" if not good else ""
    if not rest and '"' in _STRING.sub("", good):  # jq takes no line end in a string
        return " (the end of the line is missing)"
    if not rest:
        if begin == "[":
            return f" (an array over several lines? {EACH_ELEMENT})"
        return " (an object over several lines? 'jq -c .' makes a line of each. Or is the end of the line missing?)"
    if _COMMA_AT_END.match(rest) or (good.endswith(",") and rest[0] in "}]"):
        return " (JSON has no comma before a closing bracket)"
    if rest[0] == "'" or (good[-1:] in ("{", ",") and rest[0].isidentifier()):
        return " (JSON has its strings and names in double quotes)"
    if _PYTHONS.match(rest):
        return " (JSON writes true, false and null)"
    if good.endswith(("}", "]")) and rest[0] in "{[":
        return " (several values in a line? 'jq -c .' makes a line of each)"
    return ""


def option_for(header: str, delimiter: str) -> str | None:
    """Return the option for a table of which `delimiter` finds a single field in the header. None if it may be one."""
    return next((option for mark, option in SEPARATORS.items() if mark != delimiter and mark in header), None)


def _command(command: str, name: str) -> str:
    return f"'{command}'" if name == "-" else f"'{command} {quoted(name)}'"


def _wide(head: bytes) -> str | None:
    """Return the name of an encoding of two or four bytes a character."""
    for mark, name in WIDE:
        if head.startswith(mark):
            return name
    pairs = len(head) // 2
    if pairs < 2:
        return None
    even, odd = head[0 : 2 * pairs : 2].count(0), head[1 : 2 * pairs : 2].count(0)
    if odd > 0.8 * pairs and not even:
        return "UTF-16LE"
    return "UTF-16BE" if even > 0.8 * pairs and not odd else None


def _table(head: bytes, name: str) -> str | None:
    """Return what to type for a table: a file of this name, or one whose first two lines have as many fields."""
    text = head.decode("utf-8", "replace")
    if len(head) >= HEAD_BYTES:  # its last line is cut
        text = text[: text.rfind("\n") + 1] or text
    lines = [line for line in text.splitlines() if line.strip()][:2]
    if not lines or lines[0].lstrip("\ufeff \t")[:1] in ("[", "{"):
        return None
    for mark, option in SEPARATORS.items():
        fields = lines[0].count(mark)
        if fields and all(line.count(mark) == fields for line in lines):
            return f"it looks like a table: add {option} for a task of each row below the header, or --lines"
    for suffix, option in SUFFIXES.items():
        if name.lower().endswith(suffix):
            return f"by its name it is a table: add {option} for a task of each row below the header"
    return None
