"""Results as a table in a file: CSV, JSON Lines or Parquet, written whole or not at all, and where none may be
(docs/results.md).

Rows are kept in a temporary file until it is known which columns there are. That file has columns, some thousand rows
at a time, each as the JSON that was made of it at once. What reads them takes most of them apart without decoding them.
"""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, islice, repeat
from typing import IO, Any, NamedTuple

import click
import orjson

import fsqueue
from fsqueue.filesystem import replacing
from fsqueue.filesystem.replacing import Replaced
from fsqueue.format.uniform import UniformObjects, paused_collector
from fsqueue.storage import nested

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
    "priority",
)
"""The columns that every table has, before and after those of payloads and results."""
PRIORITIES = AFTER.index("priority")
QUEUE = "queue"
"""The last column of a table with results of several queues."""
COLUMNS_MAX = 2000
"""If objects have more fields than this together, each stays whole, as JSON in one column."""
ROWS_AT_ONCE = 1_000
"""Fewer rows than this are kept together with the next ones."""
NOT_FINITE = {"NaN": b"nan", "Infinity": b"inf", "-Infinity": b"-inf"}
"""The texts that stand for numbers which JSON does not have, and how a table has them that can have them."""
OF_FIXED = {
    **dict.fromkeys(("id", "state", "error", "worker", "host", "key", QUEUE), "string"),
    **dict.fromkeys(("inserted_at", "started_at", "finished_at", "took_s", "cpu_s"), "float64"),
    **dict.fromkeys(("attempts", "peak_memory_bytes"), "int64"),
}
"""The types of the columns that every table has, as Arrow calls them; but for that of priorities."""

Field = tuple[str, str | None]
"""A column before it has a name: "payload" or "result", and a field of it; None for what is no object."""
Columns = list[Sequence[Any]]
"""Results as `Queue.result_columns` yields them."""
Step = Callable[[int], None]
"""What is told now and then how many rows are done."""

_LACKING = object()
_LARGE, _BEYOND = "an integer that no double has", "an integer beyond 64 bits with a sign"
_CONSTANTS = frozenset((str, int, bool, float, type(None)))


class Column(NamedTuple):
    """The values of a column in a block of rows."""

    data: bytes
    """JSON: an array of them all; or, if they are one, this value."""
    is_constant: bool
    is_text: bool
    """Whether each is a string."""
    lacking: list[int]
    """The rows that have no such field. There, null is written."""


class Block(NamedTuple):
    """Some rows."""

    rows: int
    columns: list[Column | None]
    """In the order of `Table.columns`; None: no row has this field."""


class Table:
    """Rows in a temporary file, and the columns that they need. Memory does not grow with the rows."""

    def __init__(self, spool: IO[bytes], with_queue: bool = False) -> None:
        """`with_queue`: results have one column more, which is called `queue`."""
        self._spool = spool
        self._after = (*AFTER, QUEUE) if with_queue else AFTER
        self._fixed = (*BEFORE, *self._after)
        self.rows = 0
        self._kinds: dict[Field, set[Any]] = {}
        """All fields, in the order in which they were met, and what kinds of values each has."""
        self._numbers: dict[Field, int] = {}
        self._priorities: set[Any] = set()
        """What kinds of values priorities are: numbers, texts, or both."""

    def __enter__(self) -> Table:
        return self

    def __exit__(self, *error: object) -> None:
        self._spool.close()

    # -- the first pass ---------------------------------------------------------------------------------------

    def fill(self, found: Iterable[Columns], step: Step) -> None:
        """Take in all results."""
        width = len(fsqueue.Result._fields) + (QUEUE in self._after)
        pending: list[list[Any]] = [[] for _ in range(width)]
        for columns in found:
            if not pending[0] and len(columns[0]) >= ROWS_AT_ONCE:
                self._add(columns, step)
                continue
            for have, more in zip(pending, columns, strict=True):
                have += more
            if len(pending[0]) >= ROWS_AT_ONCE:
                self._add([*pending], step)
                pending = [[] for _ in pending]
        self._add([*pending], step)

    def _add(self, columns: Columns, step: Step) -> None:
        ids, states, attempts, payloads, results, *others = columns
        if not ids:
            return
        if not isinstance(payloads, UniformObjects) and bytes in set(map(type, payloads)):
            payloads = [base64.b64encode(value).decode() if type(value) is bytes else value for value in payloads]
        if len(self._kinds) > COLUMNS_MAX:  # they are too many for a table: what comes now stays whole
            payloads, results = [*map(_whole, payloads)], [*map(_whole, results)]
        fields = {**_fields("payload", payloads), **_fields("result", results)}
        if len(self._kinds.keys() | fields.keys()) > COLUMNS_MAX >= len(self._kinds) and len(ids) > 1:
            for row in zip(*columns, strict=True):  # somewhere among these rows they become too many
                self._add([[value] for value in row], step)
            return
        self._priorities |= _kinds(others[PRIORITIES])
        header: list[tuple[int, bool, bool, list[int]]] = []
        lines = [b""]
        for number, values in enumerate((ids, states, attempts, *others)):
            is_constant, is_text = _form(values)
            header.append((number, is_constant, is_text, []))
            lines.append(orjson.dumps(values[0] if is_constant else values))
        for field, (values, lacking) in fields.items():
            number = self._numbers.setdefault(field, len(self._fixed) + len(self._numbers))
            self._kinds.setdefault(field, set()).update(_kinds(values))
            is_constant, is_text = _form(values)
            is_constant = is_constant and not lacking
            header.append((number, is_constant, is_text, lacking))
            lines.append(orjson.dumps(values[0] if is_constant else values))
        lines[0] = orjson.dumps((len(ids), header))
        lines.append(b"")
        self._spool.write(b"\n".join(lines))
        self.rows += len(ids)
        step(self.rows)

    # -- the second pass --------------------------------------------------------------------------------------

    def columns(self) -> list[str]:
        """Return the names of the columns: those of all rows, and between them the fields of payloads and results."""
        return [*BEFORE, *self._names().values(), *self._after]

    def types(self) -> list[str]:
        """Return the type of each column, as Arrow calls it: `string` if its values are of several."""
        of_fields = {name: _type(self._kinds[field]) for field, name in self._names().items()}
        fixed = OF_FIXED | {"priority": _type(self._priorities)}
        return [of_fields.get(name) or fixed[name] for name in self.columns()]

    def _names(self) -> dict[Field, str]:
        """Return the name of each field's column: its own, or with a prefix where that is taken."""
        names: dict[Field, str] = {}
        taken = {*self._fixed, "payload", "result"}
        for field in sorted(self._kinds, key=lambda field: (field[0], field[1] is not None)):  # stable otherwise
            whole, inside = field
            name = whole if inside is None else inside
            while inside is not None and name in taken:
                name = f"{whole}.{name}"
            taken.add(name)
            names[field] = name
        return names

    def read(self, step: Step) -> Iterator[Block]:
        """Yield the rows, in their order, many at a time."""
        numbers = [*range(len(BEFORE)), *map(self._numbers.__getitem__, self._names())]
        numbers += range(len(BEFORE), len(self._fixed))
        self._spool.seek(0)
        done = 0
        while header := self._spool.readline():
            rows, forms = orjson.loads(header)
            found = {number: Column(self._spool.readline()[:-1], *form) for number, *form in forms}
            yield Block(rows, [*map(found.get, numbers)])
            done += rows
            step(done)


def _fields(whole: str, given: Sequence[Any]) -> dict[Field, tuple[list[Any], list[int]]]:
    """Return the columns of some payloads or results, in the order in which their fields are met; and for each the
    rows that lack it, where None is put.
    """
    if isinstance(given, UniformObjects):
        return {(whole, name): (values, []) for name, values in zip(given.names, given.columns, strict=True)}
    if set(map(type, given)) == {dict} and len(shapes := set(map(tuple, given))) == 1:  # as in most cases
        columns = zip(*map(dict.values, given), strict=True)
        return {(whole, name): ([*values], []) for name, values in zip(shapes.pop(), columns, strict=True)}
    found: dict[str | None, list[Any]] = {}
    for row, value in enumerate(given):
        if value is None:
            continue
        for name, inside in value.items() if type(value) is dict else ((None, value),):
            values = found.get(name)
            if values is None:
                values = found[name] = [_LACKING] * len(given)
            values[row] = inside
    fields: dict[Field, tuple[list[Any], list[int]]] = {}
    for name, values in found.items():
        lacking = [row for row, value in enumerate(values) if value is _LACKING]
        for row in lacking:
            values[row] = None
        fields[whole, name] = values, lacking
    return fields


def _form(values: Sequence[Any]) -> tuple[bool, bool]:
    """Return whether all values are one, and whether all are strings. Two zeros with different signs are not one."""
    first = values[0]
    kind = type(first)
    may_be_one = kind in _CONSTANTS and first == values[-1] and (first != 0 or kind is not float)
    is_one = may_be_one and values.count(first) == len(values) and set(map(type, values)) == {kind}
    return is_one, kind is str and (is_one or set(map(type, values)) == {str})


def _kinds(values: Sequence[Any]) -> set[Any]:
    """Return the kinds of some values, as far as a column's type depends on them."""
    types: set[Any] = set(map(type, values))
    kinds = types - {type(None)}
    if int in kinds:
        integers = values if types == {int} else [each for each in values if type(each) is int]
        most = max(-min(integers) - 1, max(integers))
        if most >= 1 << 53:
            kinds.add(_LARGE if most < 1 << 63 else _BEYOND)
    if str in kinds and NOT_FINITE.keys() >= {each for each in values if type(each) is str}:
        kinds = kinds - {str} | {"NaN"}
    return kinds


def _type(kinds: set[Any]) -> str:
    """Return the type of a column. It must have every value exactly, so integers beyond 2^53 are no doubles."""
    if kinds == {bool}:
        return "bool_"
    if int in kinds and kinds <= {int, _LARGE}:
        return "int64"
    if kinds & {int, float} and kinds <= {int, float, "NaN"}:
        return "float64"
    return "string"


def as_text(value: Any) -> Any:
    """Return a value as a cell of text: JSON, unless it is text, or None."""
    return value if value is None or type(value) is str else orjson.dumps(value).decode()


def _whole(value: Any) -> Any:
    return as_text(value) if type(value) is dict else value
