"""Make tasks of the rows of a table: CSV, TSV and the like (docs/tables.md).

The header names the fields. The first rows decide which columns are numbers; after them the table streams.
"""

from __future__ import annotations

import csv
import math
import os
import re
import sys
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import IO, Any

import orjson

import fsqueue
from fsqueue.format import wording

from .insert_input import PAUSE, BadLine, Input, PriorityKind, TooLong, cut, shown
from .insert_lines import (
    LONE_RETURN,
    NOTHING,
    OLDER,
    SEPARATORS,
    UNNAMED,
    Foreign,
    Format,
    Row,
    decode_text,
    kind_of,
    no_table,
    option_for,
    without_marks,
)
from .printing import complain, quoted

SAMPLE_ROWS = 10_000
"""Number of rows that decide the types of the columns."""
SAMPLE_BYTES_MAX = 1 << 24
"""Number of bytes of these rows to keep in memory. If they take more, fewer rows decide the types."""
FIELDS_MAX = 100_000
"""More names in a header are no header."""
ADVISED_MAX = 20
"""Maximum number of columns that an advice names one by one."""
BLANKS = " \t"
BLANK_LINE = f"{BLANKS}\r\n"
"""A line of these alone is no row, unless some of them separate cells."""

_NUMBER = re.compile(r"-?(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"-?[0-9]+")
_DIGITS_ALWAYS_HELD = 15
"""A float of normal size holds so many decimal digits, whatever they are."""
_DIGITS_MAX = 800
"""No float has more decimal digits than this that are not zeros at an end."""
_LONGEST_INTEGER = 20
"""Characters of the longest integers of 64 bits: -9223372036854775808, 18446744073709551615."""

UNKNOWN, NUMBERS, TEXT = "unknown", "numbers", "text"
"""Types of a column: no value so far, numbers, text. All of them may have empty cells."""


def number_in(cell: str) -> int | float | None:
    """Return the number that a cell is, or None if it is none that a payload can hold.

    It must be written as JSON writes numbers; `.5` and `5.` are numbers, too, and blanks around do not count. So
    `007`, `+1`, `1_000`, `1,000`, `nan` and `inf` are none, nor are integers beyond 64 bits, nor numbers with more
    digits than a float holds. `-0` is 0, as it is in JSON Lines; `-0.0` is a float.
    """
    text = cell.strip(BLANKS)
    if not _NUMBER.fullmatch(text):
        return None
    if _INTEGER.fullmatch(text):
        if len(text) > _LONGEST_INTEGER:
            return None
        whole = int(text)
        return whole if -(1 << 63) <= whole < 1 << 64 else None
    value = float(text)
    return value if _is_held(text, value) else None


def _is_held(text: str, value: float) -> bool:
    """Tell whether a float has all digits of its text: printed with as many, it shows the same ones.

    So what C or NumPy print of a float (`%.17g`, `%.18e`) is held, and most other numbers of so many digits are not.
    """
    if (len(text) <= _DIGITS_ALWAYS_HELD and abs(value) >= sys.float_info.min) or repr(value) == text:
        return math.isfinite(value)
    digits = _digits_of(text)
    if not digits or value == 0.0 or math.isinf(value):
        return value == 0.0 and not digits
    if len(digits) <= _DIGITS_ALWAYS_HELD and abs(value) >= sys.float_info.min:
        return True
    return len(digits) <= _DIGITS_MAX and _digits_of(f"{value:.{len(digits) - 1}e}") == digits


def _digits_of(number: str) -> str:
    """Return the digits of a number, without zeros at the ends."""
    return re.split("[eE]", number)[0].replace(".", "").strip("-").strip("0")


def respelling(cell: str, value: int | float) -> str | None:
    """Return how a payload spells the number in a cell, if it does not spell it in the same way."""
    if value and type(value) is int:
        return None
    spelled = orjson.dumps(value).decode()
    return None if spelled == cell or spelled == cell.strip(BLANKS) else spelled


class TableFormat(Format):
    """Make a task of each row below the header. The files are one table: types are decided once."""

    takes_text = True

    def __init__(
        self,
        source: Input,
        delimiter: str,
        text: tuple[str, ...],
        skip_bad: bool,
        has_text_alone: bool = False,
        ordering: str | None = None,
        fields: Sequence[tuple[str, str]] = (),
    ) -> None:
        super().__init__()
        self._input, self._delimiter, self._skip_bad = source, delimiter, skip_bad
        self._needed = [*(("--text", name) for name in text), *fields]
        """The options that name a column, each with its column."""
        self._has_text_alone = has_text_alone
        self._ordering = None if has_text_alone or ordering in text else ordering
        """The column that has priorities, unless the user has said that it is text."""
        column = self._ordering or ""
        self._priorities = PriorityKind(f"column {shown(column)}", f"add --text {quoted(column)}")
        self._first: tuple[list[str], str] | None = None
        """The names in the first header, and that of its file."""
        self._types: dict[str, str] = dict.fromkeys(text, TEXT)
        """The type of each column by its name."""
        self._sample: list[tuple[int, int, int, Any]] | None = None if has_text_alone else []
        """Rows whose types are not decided yet: names and cells instead of a payload. None once they are decided."""
        self._sample_bytes = 0
        self._headers: dict[int, int] = {}
        """Number of lines of the header of each file."""
        csv.field_size_limit(max(csv.field_size_limit(), source.line_bytes_max))

    def rows(self, number: int, name: str, file: IO[bytes]) -> Iterator[Any]:
        """Yield the rows of a file, once the types of the columns are decided."""
        self.line = 0
        records = _Records(self._input, file, self._delimiter)
        names: list[str] | None = None
        for record in self._without_separator_line(records):
            if record is PAUSE:
                yield PAUSE
                continue
            first, last, value = record
            if names is None:
                value = self._header(value, name, self._input.head)
                if isinstance(value, BadLine):
                    yield from self.waiting()
                    yield number, first, last, value
                    return
                names, self._headers[number], self.line = value, last, last
                if self._has_text_alone:
                    self._types.update(dict.fromkeys(names, TEXT))
                continue
            if not isinstance(value, BadLine) and len(value) != len(names):
                value = _miscounted(value, len(names), is_first=self.line == self._headers[number])
            elif not isinstance(value, BadLine) and value[-1].strip(BLANKS) == names[-1] and _is_again(value, names):
                value = BadLine(AGAIN)
            yield from self._taken(number, first, last, value, names, records.bytes)
            if isinstance(value, BadLine) and not value.may_skip:
                return
            self.line = last
        if names is None and self._input.signal is None:
            yield from self.waiting()
            yield number, 0, 0, BadLine(EMPTY, may_skip=False)

    @property
    def has_waiting(self) -> bool:
        """Tell whether rows wait for the types to be decided."""
        return bool(self._sample)

    def check(self, names: Sequence[str]) -> None:
        """Refuse a file without a header, or with one that no rows can be read by. InvalidArgument.

        Only a regular file is read twice: of any other the header is looked at when it comes.
        """
        for name in filter(os.path.isfile, names):
            with suppress(OSError), open(name, "rb", buffering=0) as file:
                source = Input(self._input.line_bytes_max)
                read = _Records(source, file, self._delimiter)
                line, _, first = next(self._without_separator_line(read), (0, 0, BadLine(EMPTY)))
                header = self._header(first, name, source.head) if line else first
                if isinstance(header, BadLine):
                    place = f"{name}, line {line:,}" if line else name
                    raise fsqueue.InvalidArgument(f"{place} {header}. {NOTHING}")

    def _without_separator_line(self, records: Iterable[Any]) -> Iterator[Any]:
        """Yield the records, but for a first line that names the separator. One that names another is bad."""
        for record in records:
            if record is not PAUSE and record[0] == 1 and not isinstance(record[2], BadLine):
                by_excel = _separator_line(self._delimiter, record[2])
                if by_excel == self._delimiter:
                    continue
                if by_excel is not None:
                    record = (*record[:2], _other_separator(by_excel))
            yield record

    def _other_columns(self, names: list[str], file: str) -> str | None:
        """Say how a header differs from that of the first file; None if it does not. The order does not matter."""
        if self._first is None:
            self._first = names, file
        known, first = self._first
        if set(names) == set(known):
            return None
        return (
            f"has other columns than {first}: here {_listed(names)}, there {_listed(known)}. Several files are one "
            "table. Insert each by a command of its own"
        )

    def waiting(self) -> Iterator[Row]:
        """Decide the types by the rows read so far, and yield these; or the row alone that has no fit priority."""
        if self._sample is None:
            return
        rows, self._sample = self._sample, None
        self._decide(rows)
        mixed = self._mixed(rows)
        if mixed is not None:
            yield mixed
            return
        self._tell_respelled(list(self.respelled))
        for number, first, last, value in rows:
            yield number, first, last, value if isinstance(value, BadLine) else self._payload(*value)

    def _taken(
        self, number: int, first: int, last: int, value: Any, names: list[str], size: int
    ) -> Iterator[tuple[int, int, int, Any]]:
        """Yield a row as a payload; or keep it until the types are decided, and then yield all that were kept."""
        if self._sample is None:
            yield number, first, last, value if isinstance(value, BadLine) else self._payload(names, value)
            return
        self._sample.append((number, first, last, value if isinstance(value, BadLine) else (names, value)))
        self._sample_bytes += size
        is_last = isinstance(value, BadLine) and not (value.may_skip and self._skip_bad)
        if is_last or len(self._sample) >= SAMPLE_ROWS or self._sample_bytes > SAMPLE_BYTES_MAX:
            yield from self.waiting()

    def _mixed(self, rows: list[Row]) -> Row | None:
        """Return the first row whose priority is not of the kind that those before it are, as a bad one."""
        for number, line, last, value in rows:
            if isinstance(value, BadLine) or self._ordering is None:
                continue
            cell = dict(zip(*value, strict=True)).get(self._ordering, "")
            bad = self._priorities.other(cell, number_in(cell) is not None) if cell.strip(BLANKS) else None
            if bad is not None:
                return number, line, last, bad
        return None

    def _header(self, cells: list[str] | BadLine, name: str, head: bytes) -> list[str] | BadLine:
        """Return the names in the first record of a file that begins with `head`; or why they are none."""
        kind = no_table(head)
        if kind is not None:
            return BadLine(f"is no header of a table: {kind}", may_skip=False)
        names = cells if isinstance(cells, BadLine) else self._names(cells, name)
        if not isinstance(names, BadLine):
            return names
        kind = kind_of(head, name, is_json=False)
        return BadLine(str(names) if kind is None else f"is no header of a table ({kind})", may_skip=False)

    def _names(self, cells: list[str], file: str) -> list[str] | BadLine:
        """Return the names in a header, without blanks around them; or why they are none."""
        names = _bare(cells)
        option = option_for(names[0], self._delimiter) if len(names) == 1 else None
        why = None
        if len(names) > FIELDS_MAX:
            why = f"has {len(names):,} names of fields, which is more than {FIELDS_MAX:,}"
        elif option is not None:
            why = f"has a single name, {shown(names[0])}: are the fields separated by another character? Use {option}"
        elif all(number_in(name) is not None for name in names):
            why = "has numbers alone, and no names: the first line of a table has the names of its fields"
        elif "" in names:
            at = names.index("")
            why = f"has no name for the column number {at + 1:,}: give it one, or leave the column out"
            if at == 0:
                why += " (pandas writes such a column unless it is told to_csv(…, index=False))"
        elif len(set(names)) < len(names):
            twice = next(name for at, name in enumerate(names) if name in names[:at])
            why = f"names two columns {shown(twice)}: of a task's fields with one name, one would be lost. Rename one"
        elif missing := [each for each in self._needed if each[1] not in names and self._first is None]:
            option, name = missing[0]
            why = f"has no column {shown(name)} ({option}). Its columns are {_listed(names)}"
        else:
            why = self._other_columns(names, file)
        self.unnamed = [name for name in names if set(name) & UNNAMED]
        return names if why is None else BadLine(why, may_skip=False)

    def _decide(self, rows: list[tuple[int, int, int, Any]]) -> None:
        """Decide the types of the columns by all cells of the first rows."""
        for _, _, _, value in rows:
            if isinstance(value, BadLine):
                continue
            for name, cell in zip(*value, strict=True):
                if cell and self._types.get(name) is not TEXT and cell.strip(BLANKS):
                    number = number_in(cell)
                    self._types[name] = TEXT if number is None else NUMBERS
                    if name not in self.respelled:
                        self._note_spelling(name, cell, number)
        numbers = [name for name, kind in self._types.items() if kind is NUMBERS and name in self.respelled]
        self.respelled = {name: self.respelled[name] for name in numbers}

    def _note_spelling(self, name: str, cell: str, number: int | float | None) -> bool:
        """Remember the first cell of a column whose number a payload spells otherwise. Return whether this is it."""
        becomes = None if number is None else respelling(cell, number)
        if becomes is None:
            return False
        self.respelled[name] = (cell.strip(BLANKS), becomes)
        return True

    def _tell_respelled(self, names: list[str]) -> None:
        """Say of columns of numbers that their spelling changes, before the first such row is inserted."""
        for name in names[:ADVISED_MAX]:
            cell, becomes = self.respelled[name]
            complain(
                f"the column {shown(name)} has numbers, and {shown(cell)} becomes {cut(becomes)}. To keep each cell "
                f"as it is written: --text {quoted(name)}"
            )
        if len(names) > ADVISED_MAX:
            complain(f"{wording.counted(len(names) - ADVISED_MAX, 'more column')} of this kind")
        if len(names) > 1:
            complain("to keep all columns as they are written: --text-all")

    def _payload(self, names: list[str], cells: list[str]) -> dict[str, Any] | BadLine:
        """Return a row as an object. BadLine if a cell is no number in a column of numbers."""
        payload: dict[str, Any] = {}
        for name, cell in zip(names, cells, strict=True):
            kind = self._types.get(name, UNKNOWN)
            if not cell:
                payload[name] = None
            elif kind is TEXT:
                if name == self._ordering and number_in(cell) is not None:
                    return self._priorities.refusal(cell, is_number=True)
                payload[name] = cell
            else:
                value = number_in(cell)
                is_blank = value is None and not cell.strip(BLANKS)
                if value is None and not is_blank and kind is NUMBERS:
                    return BadLine(
                        f"has {shown(cell)} in the column {shown(name)}, whose values before it are numbers",
                        option=f"--text {quoted(name)}",
                    )
                if kind is UNKNOWN and not is_blank:  # its first value decides
                    self._types[name] = TEXT if value is None else NUMBERS
                if name not in self.respelled and self._note_spelling(name, cell, value):
                    self._tell_respelled([name])
                payload[name] = cell if value is None and not is_blank else value
        return payload

    def from_line(self, number: int, line: int) -> str | None:
        """Return the command that prints the header, and the lines from one on, or "" for the whole file."""
        header = self._headers.get(number, 0)
        return "" if line <= header + 1 else f"sed {header + 1},{line - 1}d"

    def advice(self) -> str:
        """Return the options --text that keep columns of text what they are, whatever comes next."""
        if self._has_text_alone:
            return " (with --text-all)"
        columns = [name for name, kind in self._types.items() if kind is TEXT]
        if not columns:
            return ""
        if len(columns) > ADVISED_MAX:
            return f" (with --text for each of the {len(columns):,} columns of text)"
        return f" (with {' '.join(f'--text {quoted(name)}' for name in columns)})"


class _Records:
    """Yield the records of a table: (first line, last line, cells or BadLine), and PAUSE.

    A record may have line ends in quotes. A pause within one ends the parser's work on it, which begins anew later.
    """

    def __init__(self, source: Input, file: IO[bytes], delimiter: str) -> None:
        self._input = source
        self._lines = source.lines(file)
        self._read = 0
        """Lines that were read from the file."""
        self._held: list[str] = []
        """The lines that the parser was given of the record that it is at."""
        self._again: deque[str] = deque()
        """Those of them that it must get once more."""
        self.bytes = 0
        """Bytes of the record that was read last."""
        # A generator would be at its end after the first exception.
        self._parser = csv.reader(iter(self._line, None), delimiter=delimiter, strict=True)

    def __iter__(self) -> Iterator[Any]:
        while True:
            first = self._read + 1 - len(self._again)
            self._held, self.bytes = [], 0
            value: Any
            try:
                value = next(self._parser)
            except StopIteration:
                return
            except _Paused:
                self._again.extend(self._held)
                yield PAUSE
                continue
            except BadLine as error:
                value = error
            except csv.Error as error:
                value = self._explained(str(error))
            if self._input.signal is not None:  # it may be a part of the record
                self._input.is_cut = True
                return
            if isinstance(value, list) and len(value) <= 1 and not "".join(self._held).strip(BLANK_LINE):
                continue  # by the text: a cell that is empty in quotes is a row, and looks the same in the value
            yield first, self._read, value

    def _line(self) -> str:
        """Return the next line for the parser, with its end."""
        if self._again:
            text = self._again.popleft()
            self.bytes += len(text)
        else:
            line = next(self._lines)
            if line is PAUSE:
                raise _Paused
            self._read += 1
            self.bytes += len(line) + 1
            if len(line) > self._input.line_bytes_max:
                raise TooLong(self._input.line_bytes_max)
            if self.bytes > self._input.line_bytes_max + 2:
                if self._held:
                    raise BadLine(UNCLOSED, may_skip=False)
                raise TooLong(self._input.line_bytes_max)
            if self._read == 1:
                line = without_marks(line)
            if b"\0" in line:
                raise BadLine("has the character NUL, which no table has")
            try:
                text = decode_text(line) + "\n"
            except Foreign as error:
                raise BadLine(f"{error}{OLDER}") from None
        self._held.append(text)
        return text

    def _explained(self, why: str) -> BadLine:
        if "unexpected end" in why:
            return BadLine(UNCLOSED, may_skip=False)
        if "new-line" in why:
            return BadLine(LONE_RETURN)
        if "expected after" in why:
            return BadLine('has more behind the closing quote of a cell: a quote within a cell must be doubled ("")')
        return BadLine(f"is no row of a table: {why}")


def _miscounted(cells: list[str], names: int, is_first: bool) -> BadLine:
    """Return the error on a row that has not as many cells as the header has names."""
    has = f"has {wording.counted(len(cells), 'cell')}, and the header {names:,}"
    if len(cells) < names:
        return BadLine(f"{has}: a cell without a value needs its separator, too")
    if is_first and cells[-1] and len(cells) == names + 1:
        return BadLine(f"{has}: a cell with a separator in it needs double quotes; or one name is missing, as where R "
                       "writes the names of rows without col.names=NA")  # fmt: skip
    if any(cells[names:]):
        return BadLine(f"{has}: a cell with a separator in it needs double quotes")
    return BadLine(f"{has}: a separator at the end of a row begins an empty cell. Take it away, or name the column")


def _is_again(cells: list[str], names: list[str]) -> bool:
    """Tell whether a row repeats the header, perhaps that of another file, which has byte order marks of its own.

    A single cell may have the name of its column by chance.
    """
    return len(names) > 1 and _bare([cells[0].lstrip("\ufeff"), *cells[1:]]) == names


def _bare(cells: list[str]) -> list[str]:
    """Return the names in a header without the blanks around them."""
    return [cell.strip(BLANKS) for cell in cells]


def _listed(names: list[str]) -> str:
    return ", ".join(map(shown, names[:ADVISED_MAX])) + (", …" if len(names) > ADVISED_MAX else "")


def _separator_line(delimiter: str, cells: list[str]) -> str | None:
    """Return the separator that a line names as Excel writes and reads it, `sep=;`; None for any other line."""
    found = re.fullmatch(r"sep=(.)", delimiter.join(cells), re.IGNORECASE)
    return found and found[1]


def _other_separator(mark: str) -> BadLine:
    option = SEPARATORS.get(mark) or f"--delimiter {quoted(mark)}"
    return BadLine(f"says, as Excel writes it, that {mark!r} separates the cells: use {option}", may_skip=False)


AGAIN = "is the header once more: leave it out, or, if files were joined, give their names instead, as one table"
EMPTY = "is empty: the first line of a table has the names of its fields"


UNCLOSED = "begins a row with a quote that is never closed: a cell that begins with a quote must end with one"


class _Paused(Exception):
    """The input has paused where the parser wants another line."""
