"""Results as a table in a file: CSV, JSON Lines or Parquet, written whole or not at all (docs/results.md)."""

from __future__ import annotations

import base64
import os
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from typing import IO, Any

import click
import orjson

import fsqueue

BEFORE = ("id", "state", "attempts")
AFTER = (
    "error",
    "worker",
    "host",
    "inserted_at",
    "started_at",
    "finished_at",
    "took_s",
    "cpu_s",
    "peak_memory_bytes",
    "key",
)
"""The columns that every table has, before and after those of payloads and results."""
COLUMNS_MAX = 2000
"""If objects have more fields than this together, each stays whole, as JSON in one column."""
ROWS_AT_ONCE = 1_000
"""Rows on a line of the spool."""
_NAN = {"NaN", "Infinity", "-Infinity"}
Row = list[Any]
Field = tuple[str, str | None]
"""A column before it has a name: "payload" or "result", and a field of it; None for what is no object."""


class Table:
    """Rows in a temporary file, and the columns that they need. Memory does not grow with the rows.

    In the spool a row has the columns that every row has, then the values of its payload and its result, and the number
    of its shape: which fields those are. Mostly all have one shape, and nothing has to be looked up.
    """

    def __init__(self, directory: str) -> None:
        self._spool: IO[bytes] = tempfile.TemporaryFile(dir=directory, prefix=".fsqueue-results-")  # noqa: SIM115
        self.rows = 0
        self._shapes: dict[tuple[Any, ...], int] = {}
        self._fields: dict[Field, None] = {}
        """All fields, in the order in which they were met."""

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *error: object) -> None:
        self._spool.close()

    def fill(self, results: Iterable[fsqueue.Result], step: Callable[[int], None]) -> None:
        """Read all results. `step` is called with the number of rows now and then."""
        results = iter(results)
        while rows := [self._row(found) for found in islice(results, ROWS_AT_ONCE)]:
            self._spool.write(orjson.dumps(rows, option=orjson.OPT_APPEND_NEWLINE))
            self.rows += len(rows)
            step(self.rows)

    def _row(self, found: fsqueue.Result) -> Row:
        task, state, attempts, payload, result, *others = found
        if type(payload) is bytes:
            payload = base64.b64encode(payload).decode()
        if len(self._fields) > COLUMNS_MAX:  # they are too many for a table: see `columns`
            payload = _text(payload) if type(payload) is dict else payload
            result = _text(result) if type(result) is dict else result
        row = [task, state, attempts, *others]
        shape: list[Any] = []
        for value in (payload, result):
            if type(value) is dict:
                shape.append(tuple(value))
                row += value.values()
            elif value is not None:
                shape.append(_WHOLE)
                row.append(value)
            else:
                shape.append(())
        key = tuple(shape)
        number = self._shapes.get(key)
        if number is None:
            number = self._shapes[key] = len(self._shapes)
            self._fields |= dict.fromkeys(_fields_of(key))
        row.append(number)
        return row

    def columns(self) -> list[str]:
        """Return the names of the columns: those of all rows, and between them the fields of payloads and results."""
        return [*BEFORE, *self._names().values(), *AFTER]

    def _names(self) -> dict[Field, str]:
        """Return the name of each field's column: its own, or with a prefix where that is taken."""
        names: dict[Field, str] = {}
        taken = {*BEFORE, *AFTER, "payload", "result"}
        for field in sorted(self._fields, key=lambda field: (field[0], field[1] is not None)):  # stable otherwise
            whole, inside = field
            name = whole if inside is None else inside
            while inside is not None and name in taken:
                name = f"{whole}.{name}"
            taken.add(name)
            names[field] = name
        return names

    def read(self) -> Iterator[list[Row]]:
        """Yield the rows, many at a time, each with a value for every column; MISSING where it has no such field."""
        places = {field: place for place, field in enumerate(self._names())}
        width, first, last = len(places), len(BEFORE), len(BEFORE) + len(AFTER)
        takes = []
        for shape in self._shapes:
            where = [places[field] for field in _fields_of(shape)]
            takes.append(None if where == list(range(width)) else where)
        self._spool.seek(0)
        for line in self._spool:
            rows = orjson.loads(line)
            for row in rows:
                where, given = takes[row.pop()], row[last:]
                if where is not None:
                    values = [MISSING] * width
                    for place, value in zip(where, given, strict=True):
                        values[place] = value
                    given = values
                row[first:] = [*given, *row[first:last]]
            yield rows


MISSING = object()
_WHOLE = object()
"""The shape of what is no object."""


def _fields_of(shape: tuple[Any, ...]) -> list[Field]:
    """Return the fields of a shape, in the order of the values in a row."""
    fields: list[Field] = []
    for whole, names in zip(("payload", "result"), shape, strict=True):
        fields += [(whole, None)] if names is _WHOLE else [(whole, name) for name in names]
    return fields


def _text(value: Any) -> Any:
    """Return a value as a cell of text."""
    return value if value is None or type(value) is str else orjson.dumps(value).decode()


# -- formats ----------------------------------------------------------------------------------------------


def write_csv(path: str, table: Table) -> None:
    """Write a header and a line for each row: UTF-8, texts quoted, null an empty cell."""
    with open(path, "wb") as file:
        file.write(_csv_line(table.columns()))
        for rows in table.read():
            file.writelines(map(_csv_line, rows))


def _csv_line(row: Row) -> bytes:
    """Return a row as a line of CSV.

    The elements of a JSON array are cells of CSV as they are, as long as no text is escaped and none is an object or an
    array: that is four times as fast as the library `csv`, which does the others.
    """
    if MISSING in row:
        row = [None if value is MISSING else value for value in row]
    line = orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE)
    if (
        b"\\" not in line
        and b"{" not in line
        and line.find(b"[", 1) < 0
        and line.count(b"null") == row.count(None)  # else it is part of a text
    ):
        return line[1:-2].replace(b"null", b"") + b"\n"
    import csv
    import io

    text = io.StringIO(newline="")
    cells = [_text(value) if type(value) in _AS_JSON else value for value in row]
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()


_AS_JSON = frozenset((bool, dict, list))


def write_jsonl(path: str, table: Table) -> None:
    """Write an object for each row. A field that a payload or a result lacks is left out."""
    columns = table.columns()
    with open(path, "wb") as file:
        for rows in table.read():
            for row in rows:
                found = dict(zip(columns, row, strict=True))
                if MISSING in row:
                    found = {name: value for name, value in found.items() if value is not MISSING}
                file.write(orjson.dumps(found, option=orjson.OPT_APPEND_NEWLINE))


def write_parquet(path: str, table: Table) -> None:
    """Write columns of one type each. Where values are of several types, a column holds their JSON."""
    import pyarrow
    from pyarrow import parquet

    columns = table.columns()
    kinds: list[set[Any]] = [set() for _ in columns]
    for rows in table.read():  # one pass more: which types there are
        for known, values in zip(kinds, zip(*rows, strict=True), strict=True):
            known.update(map(_kind, values))
    types = [
        getattr(pyarrow, OF_FIXED[name])() if name in OF_FIXED else _arrow_type(pyarrow, known)
        for name, known in zip(columns, kinds, strict=True)
    ]
    schema = pyarrow.schema(list(zip(columns, types, strict=True)))
    with parquet.ParquetWriter(path, schema) as writer:
        chunks = table.read()
        while some := list(islice(chunks, CHUNKS_AT_ONCE)):
            by_column = zip(*(row for rows in some for row in rows), strict=True)
            arrays = [
                pyarrow.array(_converted(pyarrow, kind, column), kind)
                for kind, column in zip(types, by_column, strict=True)
            ]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


CHUNKS_AT_ONCE = 20
"""Lines of the spool in a row group."""
OF_FIXED = {
    **dict.fromkeys(("id", "state", "error", "worker", "host", "key"), "string"),
    **dict.fromkeys(("inserted_at", "started_at", "finished_at", "took_s", "cpu_s"), "float64"),
    **dict.fromkeys(("attempts", "peak_memory_bytes"), "int64"),
}


def _kind(value: Any) -> Any:
    """Return the type of a value, as far as a column's type depends on it."""
    kind = type(value)
    if kind is int:
        return int if -(2**63) <= value < 2**63 else list  # no column of numbers can hold it
    return None if value is None or value is MISSING else "NaN" if kind is str and value in _NAN else kind


def _arrow_type(pyarrow: Any, kinds: set[Any]) -> Any:
    kinds = kinds - {None}
    if kinds == {bool}:
        return pyarrow.bool_()
    if kinds == {int}:
        return pyarrow.int64()
    if kinds <= {int, float, "NaN"} and kinds & {int, float}:
        return pyarrow.float64()
    return pyarrow.string()


def _converted(pyarrow: Any, kind: Any, values: Iterable[Any]) -> list[Any]:
    found = [None if value is MISSING else value for value in values]
    if pyarrow.types.is_string(kind):
        return [_text(value) for value in found]
    if pyarrow.types.is_floating(kind):
        return [None if value is None else float(value) for value in found]  # also of NaN as text
    return found


def _needs_pyarrow() -> None:
    import importlib.util

    if importlib.util.find_spec("pyarrow") is None:
        raise fsqueue.FsqueueError(
            "Parquet needs pyarrow, which is not installed. Nothing was written. To install it: pip install "
            "'fsqueue-tasks[arrow]'. Or write a .csv or .jsonl file."
        )


FORMATS: dict[str, tuple[Callable[[str, Table], None], Callable[[], None]]] = {
    ".csv": (write_csv, lambda: None),
    ".jsonl": (write_jsonl, lambda: None),
    ".ndjson": (write_jsonl, lambda: None),
    ".parquet": (write_parquet, _needs_pyarrow),
}
"""By the end of a file's name: what writes it, and what is asked before anything is read."""


def write(path: str, results: Iterable[fsqueue.Result], step: Callable[[int], None]) -> tuple[int, int]:
    """Write results into a file, in the format that its name ends in. Return the numbers of rows and columns.

    Two passes: the first notes the columns, and keeps the rows in a temporary file in the same directory; the second
    writes the table under a temporary name, and renames it when it is whole. An existing file is replaced.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in FORMATS:
        raise click.UsageError(f"{path!r} ends in none of {', '.join(FORMATS)}, so its format is not known.")
    if os.path.lexists(path) and not os.path.isfile(path):
        raise click.UsageError(f"{path!r} is there already, and is no regular file. Name another file.")
    writes, prepare = FORMATS[ending]
    prepare()
    directory, name = os.path.split(os.path.realpath(path))
    with Table(directory) as table:
        table.fill(results, step)
        fresh = os.path.join(directory, f".{name}.{secrets.token_hex(8)}.tmp")
        try:
            writes(fresh, table)
            os.replace(fresh, os.path.join(directory, name))
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(fresh)
            raise
        return table.rows, len(table.columns())
