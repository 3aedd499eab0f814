"""Results as a table in a file: CSV, JSON Lines or Parquet, written whole or not at all, and where none may be
(docs/results.md).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice, repeat
from typing import IO, Any

import click
import orjson

import fsqueue
from fsqueue.filesystem import replacing
from fsqueue.filesystem.replacing import Replaced
from fsqueue.format.uniform import paused_collector
from fsqueue.storage import nested

from .result_table import NOT_FINITE, Block, Column, Columns, Step, Table, as_text

GRAMMAR = ".fsqueue-results-"
BLOCKS_AT_ONCE = 20
"""Blocks of rows in a row group of Parquet."""

Cells = bytes | list[bytes]
"""What stands at one place of each row; if it is the same in all rows, only that."""


def _lines(rows: int, parts: Iterable[Cells]) -> bytes:
    """Return rows as bytes, made of their parts."""
    merged: list[Cells] = []
    for part in parts:
        if merged and type(part) is bytes and type(merged[-1]) is bytes:
            merged[-1] += part
        else:
            merged.append(part)
    every = [repeat(part, rows) if type(part) is bytes else part for part in merged]
    return b"".join(chain.from_iterable(zip(*every, strict=True)))


def _taken_apart(column: Column, rows: int) -> list[bytes] | None:
    """Return the elements of an array as JSON, without decoding it; None if its commas do not tell where they end.

    Between elements there are as many commas as there must be. If there are no others, these are all.
    """
    return column.data[1:-1].split(b",") if column.data.count(b",") == rows - 1 else None


def _is_plain_text(column: Column) -> bool:
    """Return whether a column has strings alone in which nothing is escaped: their quotes tell where they end."""
    return column.is_text and b"\\" not in column.data


# -- CSV --------------------------------------------------------------------------------------------------


def write_csv(file: IO[bytes], table: Table, step: Step) -> None:
    """Write a header and a line for each row: UTF-8, texts quoted, null an empty cell."""
    numeric = [kind == "float64" for kind in table.types()]
    file.write(b",".join([csv_cell(name, False) for name in table.columns()]) + b"\n")
    for rows, columns in table.read(step):
        parts: list[Cells] = []
        for column, is_number in zip(columns, numeric, strict=True):
            if column is not None:
                parts += _csv_parts(column, rows, is_number)
            parts.append(b",")
        parts[-1] = b"\n"
        file.write(_lines(rows, parts))


def _csv_parts(column: Column, rows: int, is_number: bool) -> list[Cells]:
    """Return the cells of a column. JSON that needs no escape is a cell of CSV as it is, but for null."""
    data = column.data
    if column.is_constant:
        return [csv_cell(orjson.loads(data), is_number)]
    if _is_plain_text(column) and not is_number:
        return [b'"', data.split(b'"')[1::2], b'"']
    if b"\\" not in data and b"{" not in data and data.find(b"[", 1) < 0 and not (is_number and b'"' in data):
        cells = _taken_apart(column, rows)
        if cells is not None:
            return [[b"" if cell == b"null" else cell for cell in cells] if b"null" in data else cells]
    return [[csv_cell(value, is_number) for value in orjson.loads(data)]]


def csv_cell(value: Any, is_number: bool) -> bytes:
    """Return a value as a cell of CSV. `is_number`: the texts of NaN and infinities are numbers."""
    if value is None:
        return b""
    if type(value) is str and is_number:
        return NOT_FINITE[value]
    if type(value) in (str, dict, list):
        return b'"%b"' % as_text(value).replace('"', '""').encode()
    return orjson.dumps(value)


# -- JSON Lines -------------------------------------------------------------------------------------------


def write_jsonl(file: IO[bytes], table: Table, step: Step) -> None:
    """Write an object for each row. A field that a payload or a result lacks is left out."""
    names = [b",%b:" % orjson.dumps(name) for name in table.columns()]
    names[0] = b"{" + names[0][1:]
    for rows, columns in table.read(step):
        parts: list[Cells] = []
        for column, name in zip(columns, names, strict=True):
            if column is not None:
                parts += _json_parts(column, rows, name)
        file.write(_lines(rows, [*parts, b"}\n"]))


def _json_parts(column: Column, rows: int, name: bytes) -> list[Cells]:
    """Return the members of a column."""
    if column.is_constant:
        return [name, column.data]
    if _is_plain_text(column):
        return [name, b'"', column.data.split(b'"')[1::2], b'"']
    cells = _taken_apart(column, rows) or [orjson.dumps(value) for value in orjson.loads(column.data)]
    if not column.lacking:
        return [name, cells]
    members = [name + cell for cell in cells]
    for row in column.lacking:
        members[row] = b""
    return [members]


# -- Parquet ----------------------------------------------------------------------------------------------


def write_parquet(file: IO[bytes], table: Table, step: Step) -> None:
    """Write columns of one type each. Where the values are of several types, a column holds their text or JSON."""
    import pyarrow
    from pyarrow import parquet

    names = table.columns()
    types = [getattr(pyarrow, name)() for name in table.types()]
    schema = pyarrow.schema(list(zip(names, types, strict=True)))
    with parquet.ParquetWriter(file, schema) as writer:
        blocks = table.read(step)
        while some := list(islice(blocks, BLOCKS_AT_ONCE)):
            arrays = [
                pyarrow.chunked_array([_array(pyarrow, kind, block, place) for block in some], kind)
                for place, kind in enumerate(types)
            ]
            writer.write_table(pyarrow.Table.from_arrays(arrays, schema=schema))


def _array(pyarrow: Any, kind: Any, block: Block, place: int) -> Any:
    """Return a column of a block as an array of a type."""
    column = block.columns[place]
    if column is None:
        return pyarrow.nulls(block.rows, kind)
    values = orjson.loads(column.data)
    if column.is_constant:
        [value] = _typed(pyarrow, kind, column, [values])
        return pyarrow.repeat(pyarrow.scalar(value, kind), block.rows)
    return pyarrow.array(_typed(pyarrow, kind, column, values), kind)


def _typed(pyarrow: Any, kind: Any, column: Column, values: list[Any]) -> list[Any]:
    if pyarrow.types.is_string(kind):
        return values if column.is_text else [as_text(value) for value in values]
    if pyarrow.types.is_floating(kind) and b'"' in column.data:
        return [float(value) if type(value) is str else value for value in values]  # NaN and infinities
    return values


def _needs_pyarrow() -> None:
    import importlib.util

    if importlib.util.find_spec("pyarrow") is None:
        raise fsqueue.FsqueueError(
            "Parquet needs pyarrow, which is not installed. Nothing was written. To install it: pip install "
            "'fsqueue-tasks[arrow]'. Or write a .csv or .jsonl file."
        )


FORMATS: dict[str, tuple[Callable[[IO[bytes], Table, Step], None], Callable[[], None]]] = {
    ".csv": (write_csv, lambda: None),
    ".jsonl": (write_jsonl, lambda: None),
    ".ndjson": (write_jsonl, lambda: None),
    ".parquet": (write_parquet, _needs_pyarrow),
}
"""By the end of a file's name: what writes it, and what is asked before anything is read."""


def write(
    path: str, found: Iterable[Columns], reading: Step, writing: Step, with_queue: bool = False
) -> tuple[int, int]:
    """Write results into a file, in the format that its name ends in. Return the numbers of rows and columns.

    `found` is as `Queue.result_columns` yields it; nothing is asked of it before the place of the file is found good.
    Two passes: the first notes the columns, and keeps the rows in a temporary file in the same directory; the second
    writes the table under a temporary name, and renames it when it is whole. An existing file is replaced. `reading`
    and `writing` are told how many rows a pass has done. `with_queue`: `found` has one column more, the queue of each
    row.
    """
    ending = os.path.splitext(path)[1].lower()
    if ending not in FORMATS:
        raise click.UsageError(f"{path!r} ends in none of {', '.join(FORMATS)}, so its format is not known.")
    writes, prepare = FORMATS[ending]
    prepare()
    with place_of(path) as place, paused_collector(), Table(place.spool(), with_queue) as table:
        table.fill(found, reading)
        place.replace(lambda file: writes(file, table, writing))
        return table.rows, len(table.columns())


# -- the place --------------------------------------------------------------------------------------------


@contextmanager
def place_of(path: str) -> Iterator[Replaced]:
    """Hold the place of a file, which need not exist, until the end of a `with` block. Symbolic links of this user's
    and of root's are followed.

    click.UsageError if no table may be there. An OSError in the block names the file that the user named.
    """
    try:
        directory, name = replacing.place_of(path)
        try:
            place = Replaced(directory, name or ".", GRAMMAR)
            _check(place, directory, path)
            place.tidy()
            yield place
        finally:
            os.close(directory)
    except replacing.OthersLink:
        raise click.UsageError(
            f"{path!r} is, or leads to, a symbolic link of another user, who could choose which of your files is "
            "replaced. Nothing was written. Name another file."
        ) from None
    except OSError as error:
        error.filename, error.filename2 = path, None
        raise


def _check(place: Replaced, directory: int, path: str) -> None:
    """Refuse a place that is not for tables: in a queue, or taken by what is no regular file. click.UsageError."""
    if nested.holds(directory):
        raise click.UsageError(
            f"{path!r} lies inside the directory of a queue, whose files are not to be replaced. Nothing was "
            "written. Name a file outside of it."
        )
    before = place.status()
    if before is not None and not stat.S_ISREG(before.st_mode):
        raise click.UsageError(f"{path!r} is there already, and is no regular file. Name another file.")
