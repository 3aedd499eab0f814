"""Make tasks of the rows of Parquet files, or of a directory of such files that a program has written as one table
(docs/tables.md). pyarrow reads them; it comes with the extra `arrow`.
"""

from __future__ import annotations

import os
import re
import stat
import struct
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import IO, TYPE_CHECKING, Any

import fsqueue

from .insert_input import BadLine, Input, Unreadable
from .insert_lines import NOTHING, PARQUET_MAGIC, UNNAMED, Format

if TYPE_CHECKING:
    import pyarrow as pa

SUFFIXES = (".parquet", ".pq")
BATCH_ROWS_MAX = 4096
BATCH_BYTES = 1 << 24
"""About how much of a file is in memory as Python objects at a time, before they are made."""
COLUMNS_SHOWN_MAX = 20
PANDAS_INDEX = re.compile(r"__index_level_[0-9]+__")
"""The name that pandas gives to an index without one, which it writes as a column."""
UNITS = {"s": 1, "ms": 1000, "us": 1_000_000, "ns": 1_000_000_000}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
OTHER_TABLES = {"_delta_log": "a Delta table", ".hoodie": "a Hudi table"}
"""What lies in a directory whose files are not all part of the table: some are of earlier versions."""
UNFINISHED = "_temporary"
"""What a Spark job has in the directory until it commits its files."""
MISSING = "pyarrow is not installed. To install it: pip install 'fsqueue-tasks[arrow]'"

Convert = Callable[[Any], Any]


class NoJson(Exception):
    """Say why a value or a type has no form in JSON, as the end of a sentence."""


def is_parquet(name: str) -> bool:
    """Tell whether a file is to be read as Parquet: by its name, or by its first bytes. A pipe never is."""
    if name == "-":
        return False
    try:
        if not stat.S_ISREG(os.stat(name).st_mode):
            return False
        with open(name, "rb") as file:
            return name.lower().endswith(SUFFIXES) or file.read(len(PARQUET_MAGIC)) == PARQUET_MAGIC
    except OSError:  # said later
        return False


class ParquetFormat(Format):
    """Make a task of each row: an object with a field for each column."""

    unit = "row"

    def __init__(self, source: Input, fields: Sequence[tuple[str, str]] = ()) -> None:
        super().__init__()
        self._input, self._fields = source, fields

    def check(self, names: Sequence[str]) -> None:
        """Refuse a file that is not Parquet, or has columns that JSON has no form for. InvalidArgument.

        The files are one table: all have the same columns, and those that the options name.
        """
        columns = must_agree(names)
        for option, field in self._fields:
            if field not in columns:
                raise fsqueue.InvalidArgument(
                    f"{names[0]} has no column {field!r} ({option}). Its columns are "
                    f"{', '.join(map(repr, columns[:COLUMNS_SHOWN_MAX]))}. {NOTHING}"
                )
        self.unnamed = [name for name in columns if set(name) & UNNAMED]
        self.indexes = [name for name in columns if PANDAS_INDEX.fullmatch(name)]

    def rows(self, number: int, name: str, file: IO[bytes]) -> Iterator[Any]:
        """Yield the rows of a file, in batches of bounded memory."""
        self.line, self._input.is_cut = 0, False
        try:
            opened, casts, converts = _opened(file)
            size = os.fstat(file.fileno()).st_size
            total = max(1, opened.metadata.num_rows)
            uncompressed = sum(opened.metadata.row_group(at).total_byte_size for at in range(opened.num_row_groups))
            some = max(1, min(BATCH_ROWS_MAX, BATCH_BYTES * total // max(1, uncompressed)))
            for batch in opened.iter_batches(batch_size=some, use_threads=False):
                self._input.on_bytes(size * batch.num_rows // total, batch.num_rows)
                for row in _plain(batch.cast(casts)):
                    if self._input.signal is not None:
                        self._input.is_cut = True
                        return
                    self.line += 1
                    yield number, self.line, self.line, row if isinstance(row, BadLine) else _payload(row, converts)
        except BadLine as error:
            yield number, self.line, self.line, error
        except Exception as error:  # pyarrow's, of several kinds; those of the operating system go their way
            is_its = type(error).__module__.partition(".")[0] == "pyarrow" or isinstance(error, ValueError)
            if not is_its:
                raise
            yield number, self.line, self.line, Unreadable(_first_line(error))


def schema_of(name: str) -> dict[str, pa.DataType]:
    """Return the columns of a Parquet file, with their types.

    InvalidArgument if it is not Parquet, or has columns that JSON has no form for.
    """
    try:
        with open(name, "rb") as file:
            opened, _, _ = _opened(file)
            return {field.name: field.type for field in opened.schema_arrow}
    except BadLine as error:
        raise fsqueue.InvalidArgument(f"{name} {error}. {NOTHING}") from None
    except ImportError:
        raise fsqueue.InvalidArgument(f"{name} is a Parquet file, and {MISSING}. {NOTHING}") from None


def _opened(file: IO[bytes]) -> tuple[Any, pa.Schema, dict[str, Convert]]:
    """Return a Parquet file, the schema to cast its batches to, and what makes JSON of each column's values.

    BadLine if it is not Parquet, or has columns that JSON has no form for. ImportError without pyarrow.
    """
    import pyarrow as pa
    from pyarrow import parquet

    try:
        opened = parquet.ParquetFile(file, pre_buffer=False)
        schema = opened.schema_arrow
    except (pa.ArrowException, ValueError) as error:
        raise BadLine(f"cannot be read as Parquet: {_first_line(error)}", may_skip=False) from None
    names = schema.names
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise BadLine(f"has two columns {twice!r}: rename one", may_skip=False)
    if "" in names:
        raise BadLine(f"has no name for the column number {names.index('') + 1:,}: give it one", may_skip=False)
    converts, fields = {}, []
    for field in schema:
        try:
            kind, converts[field.name] = _conversion(field.type, field.name)
        except NoJson as error:
            raise BadLine(str(error), may_skip=False) from None
        fields.append(pa.field(field.name, kind))
    return opened, pa.schema(fields), converts


def _plain(batch: pa.RecordBatch) -> list[dict[str, Any] | BadLine]:
    """Return the rows of a batch; a BadLine for one with text that is not UTF-8, which Parquet does not look at."""
    try:
        rows: list[dict[str, Any] | BadLine] = batch.to_pylist()
        return rows
    except UnicodeDecodeError:
        return [_plain_row(batch.slice(at, 1)) for at in range(batch.num_rows)]


def _plain_row(batch: pa.RecordBatch) -> dict[str, Any] | BadLine:
    row = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            [row[name]] = column.to_pylist()
        except UnicodeDecodeError:
            return BadLine(f"has text that is not UTF-8 in the column {name!r}")
    return row


def _payload(row: dict[str, Any], converts: dict[str, Convert]) -> dict[str, Any] | BadLine:
    """Return a row as an object, or a BadLine that names the column of a value that JSON does not have."""
    payload = {}
    for name, convert in converts.items():
        value = row[name]
        try:
            payload[name] = None if value is None else convert(value)
        except NoJson as error:
            return BadLine(f"has {error} in the column {name!r}")
    return payload


def _conversion(kind: pa.DataType, where: str) -> tuple[pa.DataType, Convert]:
    """Return the type to cast a column to, and what makes JSON of a value of that type other than null.

    `where` names the column or the part of it. NoJson if JSON has no form for the type.
    """
    import pyarrow as pa

    types = pa.types
    if types.is_dictionary(kind):
        return _conversion(kind.value_type, where)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_null(kind):
        return kind, _same
    if types.is_string(kind) or types.is_large_string(kind) or str(kind) == "string_view":
        return pa.large_string(), _same
    if types.is_float16(kind) or types.is_float32(kind):
        return pa.float32(), _float32
    if types.is_float64(kind):
        return kind, _float64
    if types.is_decimal(kind):
        return kind, lambda value: format(value, "f")
    if types.is_date32(kind):
        return pa.int32(), _date
    if types.is_date64(kind):
        return pa.int64(), lambda value: _date(value // 86_400_000)
    if types.is_timestamp(kind):
        zone = "" if kind.tz is None else "Z"
        return pa.int64(), lambda value, per_s=UNITS[kind.unit]: _moment(value, per_s) + zone
    if types.is_time(kind):
        whole = pa.int32() if types.is_time32(kind) else pa.int64()
        return whole, lambda value, per_s=UNITS[kind.unit]: _moment(value, per_s).partition("T")[2]
    if types.is_struct(kind):
        return _struct(kind, where)
    if types.is_map(kind):
        return _map(kind, where)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner, convert = _conversion(kind.value_type, f"{where}[]")
        to = pa.list_(inner, kind.list_size) if types.is_fixed_size_list(kind) else pa.large_list(inner)
        return to, lambda value: [None if one is None else convert(one) for one in value]
    if "binary" in str(kind):
        advice = "if it is text, write the file anew with a column of strings; else encode it, or leave it out"
    elif types.is_duration(kind):
        advice = "write it as a number of seconds"
    else:
        advice = "write it as text, or leave it out"
    raise NoJson(f"has the column {where!r} of type {kind}, which JSON does not have: {advice}")


def _struct(kind: pa.StructType, where: str) -> tuple[pa.DataType, Convert]:
    import pyarrow as pa

    inner = {}
    fields = []
    for at in range(kind.num_fields):
        field = kind.field(at)
        if field.name in inner:
            raise NoJson(f"has the column {where!r} with two fields {field.name!r}: rename one")
        to, inner[field.name] = _conversion(field.type, f"{where}.{field.name}")
        fields.append(pa.field(field.name, to))

    def convert(value: Any) -> Any:
        return {name: None if value[name] is None else make(value[name]) for name, make in inner.items()}

    return pa.struct(fields), convert


def _map(kind: pa.MapType, where: str) -> tuple[pa.DataType, Convert]:
    import pyarrow as pa

    if not (pa.types.is_string(kind.key_type) or pa.types.is_large_string(kind.key_type)):
        raise NoJson(f"has the column {where!r} of type {kind}, which JSON does not have: its names are text alone")
    to, make = _conversion(kind.item_type, f"{where}{{}}")

    def convert(value: Any) -> Any:
        found = {key: None if one is None else make(one) for key, one in value}
        if len(found) < len(value):
            raise NoJson("a map with a key twice")
        return found

    return pa.map_(kind.key_type, to), convert


def _same(value: Any) -> Any:
    return value


def _float64(value: float) -> float:
    if value != value or value in (float("inf"), float("-inf")):
        raise NoJson(f"{value}, which JSON does not have,")
    return value


def _float32(value: float) -> float:
    """Return the shortest number that is this one as a float of 32 bits: 0.1, not 0.10000000149011612."""
    _float64(value)
    for digits in range(6, 9):
        short = float(f"{value:.{digits}g}")
        if struct.unpack("f", struct.pack("f", short))[0] == value:
            return short
    return float(f"{value:.9g}")


def _date(days: int) -> str:
    try:
        return (date(1970, 1, 1) + timedelta(days=days)).isoformat()
    except OverflowError:
        raise NoJson("a date beyond the years 1 to 9999") from None


def _moment(value: int, per_s: int) -> str:
    """Return a time since 1970 in ISO 8601, in microseconds, or in nanoseconds where it has some."""
    seconds, fraction = divmod(value, per_s)
    nanoseconds = fraction * (1_000_000_000 // per_s)
    try:
        whole = EPOCH + timedelta(seconds=seconds)
    except OverflowError:
        raise NoJson("a time beyond the years 1 to 9999") from None
    digits = f"{nanoseconds:09d}"
    return f"{whole.isoformat()[:19]}.{digits if nanoseconds % 1000 else digits[:6]}"


def _first_line(error: Exception) -> str:
    """Return the first line of an error as the end of a sentence: without the full stop."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(". ")


# -- the parts of a table -----------------------------------------------------------------------------------


def parts_of(directory: str) -> list[str]:
    """Return the Parquet files of a directory in the order of their names; [] if it is no directory, or has none.

    Names that begin with a dot or an underscore are skipped, as Spark does. InvalidArgument for a directory that has
    anything else in it, so that no row is left out without a word.
    """
    try:
        with os.scandir(directory) as found:
            entries = sorted(found, key=lambda entry: entry.name)
    except OSError:  # it is a file, or is not there: said later
        return []
    names = {entry.name for entry in entries}
    shown = [entry for entry in entries if not entry.name.startswith((".", "_"))]
    is_table = any(entry.name.lower().endswith(SUFFIXES) or ("=" in entry.name and entry.is_dir()) for entry in shown)
    if not is_table:
        return []
    for name, kind in OTHER_TABLES.items():
        if name in names:
            raise _refused(directory, f"it is {kind}, with files of earlier versions in it. Write it anew as Parquet.")
    if UNFINISHED in names:
        raise _refused(directory, f"{UNFINISHED} is in it: a job is writing it, or has died. Wait, or write it anew.")
    for entry in shown:
        if entry.is_dir() and "=" in entry.name:
            column = entry.name.partition("=")[0]
            raise _refused(
                directory,
                f"it is partitioned, with values of the column {column!r} in names of directories ({entry.name}). They "
                "are not read: write it without partitions.",
            )
        if not (entry.is_file() and entry.name.lower().endswith(SUFFIXES)):
            raise _refused(
                directory, f"{entry.name} is in it, which is no Parquet file. Move it away, or name the files."
            )
    return [os.path.join(directory, entry.name) for entry in shown]


def must_agree(parts: Sequence[str]) -> list[str]:
    """Return the columns of the files of one table. InvalidArgument if one has other columns or types than the first.

    A column without a value (of the type null) agrees with any.
    """
    first: dict[str, tuple[str, Any]] = {}
    """By the name of a column: a part in which it has values, else the first part, and its type there."""
    for part in parts:
        found = schema_of(part)
        if not first:
            first = {name: (part, kind) for name, kind in found.items()}
        for name in [*first, *found]:
            if name not in found:
                raise _disagree(f"{part} has no column {name!r}, and {first[name][0]} has")
            if name not in first:
                raise _disagree(f"{part} has a column {name!r}, and {parts[0]} has none")
            known, kind = first[name]
            if str(kind) == "null":
                first[name] = part, found[name]
            elif found[name] != kind and str(found[name]) != "null":
                raise _disagree(
                    f"{part} has the column {name!r} of type {found[name]}, and {known} has it of type {kind}"
                )
    return list(first)


def _refused(directory: str, why: str) -> fsqueue.InvalidArgument:
    return fsqueue.InvalidArgument(f"{directory} cannot be inserted as one table: {why} {NOTHING}")


def _disagree(what: str) -> fsqueue.InvalidArgument:
    return fsqueue.InvalidArgument(
        f"{what}. Files of Parquet are one table, and must have the same columns. Insert each table by a command of "
        f"its own. {NOTHING}"
    )
