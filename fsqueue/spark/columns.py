"""From rows to Arrow record batches with the columns that were asked for, a bounded number of rows at a time.

The untouched batches of the view `tasks`, which are most of a large queue, take a short cut: their files are not
decoded task by task; the payloads are cut out of the lines, or parsed in the mass.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

import numpy
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType

from fsqueue.format import names
from fsqueue.format.names import TaskFileName
from fsqueue.spark import schemas, views
from fsqueue.spark.options import DROP, ReadOptions
from fsqueue.spark.parsing import PREFIX, SUFFIX, Parser
from fsqueue.spark.views import Row

# What differs between the PySpark versions that setup.cfg admits is here alone. It goes by the function's parameters,
# and not by a version number: a vendor's build may carry a later change.
# PySpark 4.1 makes every timestamp UTC by itself, and refuses `timezone`. From 4.2 on, timestamps have no zone
# without it, and Spark refuses the record batch.
_UTC: dict[str, Any] = {"timezone": "UTC"} if "timezone" in inspect.signature(to_arrow_schema).parameters else {}
ROWS_MAX = 16_384
"""Rows after which a record batch is full. Fewer cost more calls; more no longer fit the processor's cache."""
BYTES_MAX = 8 << 20
"""Bytes of payload after which a record batch is full. The largest task may have more."""
INDICES = pa.array([str(index) for index in range(names.BATCH_TASKS_MAX)])
NEWLINE = ord("\n")


def arrow_schema(schema: StructType) -> pa.Schema:
    """Return the Arrow schema that Spark expects of record batches with this schema. Timestamps are in UTC."""
    return to_arrow_schema(schema, **_UTC)


class Columns:
    """Collects rows of a view, and gives record batches of `schema` away when there is enough for one."""

    def __init__(self, options: ReadOptions, schema: StructType, queue: str) -> None:
        view = options.view
        self.schema = arrow_schema(schema)
        self.queue = queue
        self.places = {name: place for place, name in enumerate(schemas.columns_of(view))}
        self.is_dropping = options.mode == DROP
        self.parser: Parser | None = None
        """Where payloads are asked for as anything but their text."""
        if "payload" in schema.names and schema["payload"].dataType != StringType():
            kind, arrow = schema["payload"].dataType, self.schema.field("payload").type
            self.parser = Parser(kind, arrow, options.mode, options.corrupt)
        self.is_parsed = self.parser is not None
        self.is_content_wanted = not {"payload", "payload_bytes", "priority", "key"}.isdisjoint(schema.names)
        """Whether a column needs more of an untouched batch than its file's name."""
        self._clear()

    def _clear(self) -> None:
        self.values: dict[str, list[Any]] = {name: [] for name in self.schema.names}
        """What was taken row by row, and is no array yet."""
        self.arrays: dict[str, list[pa.Array]] = {name: [] for name in self.schema.names}
        self.json: list[bytes] = []
        """Instead of these, where payloads are parsed: lines as in a task file."""
        self.count = self.size = self.sealed = 0

    # -- taking ---------------------------------------------------------------------------------------

    def rows(self, rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
        """Take rows with all columns of the view."""
        payload = self.places.get("payload", -1)
        wanted = self._wanted()
        for row in rows:
            for values, place in wanted:
                values.append(row[place])
            if payload >= 0 and row[payload] is not None:
                self.size += len(row[payload])
            if self.is_parsed:
                self.json.append(b"{}\n" if row[payload] is None else PREFIX + row[payload].encode() + SUFFIX)
            self.count += 1
            if self.is_full:
                yield self._batch()
                wanted = self._wanted()

    def _wanted(self) -> list[tuple[list[Any], int]]:
        return [(values, self.places[name]) for name, values in self.values.items() if name in self.places]

    def untouched(self, name: TaskFileName, state: str, content: bytes | None) -> list[pa.RecordBatch] | None:
        """Take all tasks of a batch that no worker has touched. Return the record batches that are full, if any.

        `content` None: its file was not read, as no column needs more than its name.
        None: the content has to be looked at line by line; nothing was taken.
        """
        lines = None
        if content is None:
            assert not self.is_content_wanted
        elif self.is_parsed and "payload_bytes" not in self.schema.names:
            if not are_lines(content, name.count):
                return None
        elif (lines := lines_of(content, name.count)) is None:
            return None
        self._seal()
        since = views.moment(name.available_at or names.birth_ms(name.batch))
        same = {
            "state": state,
            "attempt": 0,
            "since": since,
            "available_at": views.moment(name.available_at) if name.available_at else None,
            "version": 0,
        }
        for field in self.schema:
            if field.name == "id":
                found = pc.binary_join_element_wise(f"{name.batch}.", INDICES[: name.count], "")
            elif field.name == "payload":
                assert content is not None
                if self.is_parsed:
                    self.json.append(content)
                    continue
                found = payloads_of(lines)
            else:
                found = pa.repeat(pa.scalar(same.get(field.name), field.type), name.count)
            self.arrays[field.name].append(found)
        self.count += name.count
        self.sealed = self.count
        self.size += len(content or b"")
        return [self._batch()] if self.is_full else []

    def _seal(self) -> None:
        """Make arrays of what was taken row by row."""
        if self.sealed < self.count:
            for field in self.schema:
                values, self.values[field.name] = self.values[field.name], []
                if field.name in self.places and not (field.name == "payload" and self.is_parsed):
                    self.arrays[field.name].append(pa.array(values, field.type))
            self.sealed = self.count

    # -- giving ---------------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Return whether there is enough for a record batch."""
        return self.count >= ROWS_MAX or self.size >= BYTES_MAX

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield what is left in the end."""
        if self.count:
            yield self._batch()

    def _batch(self) -> pa.RecordBatch:
        self._seal()
        arrays, unfit = [], None
        for field in self.schema:
            if field.name == schemas.QUEUE:
                arrays.append(pa.repeat(pa.scalar(self.queue, field.type), self.count))
            elif field.name == "payload" and self.parser is not None:
                column, unfit = self.parser.parse(self.json, self.count)
                arrays.append(column)
            else:
                arrays.append(pa.concat_arrays(self.arrays[field.name]))
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        self._clear()
        return batch.filter(pa.array(~unfit)) if self.is_dropping and unfit is not None else batch


def are_lines(content: bytes, count: int) -> bool:
    """Return whether this is `count` whole lines of text, whatever stands in them."""
    ends = numpy.count_nonzero(numpy.frombuffer(content, numpy.uint8) == NEWLINE)
    return content.endswith(SUFFIX) and ends == count and is_text(content)


def is_text(content: bytes) -> bool:
    """Return whether it is UTF-8."""
    if content.isascii():
        return True
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def lines_of(content: bytes, count: int) -> pa.Array | None:
    """Return the lines, without their ends, of a task file with `count` tasks that are a payload alone; else None."""
    if not content.endswith(SUFFIX):
        return None
    lines = pc.split_pattern(pa.array([content[:-1]], pa.binary()), b"\n").flatten()
    try:
        lines.cast(pa.string())
    except pa.ArrowInvalid:  # no UTF-8
        return None
    return lines if len(lines) == count and pc.all(pc.starts_with(lines, PREFIX)).as_py() else None


def payloads_of(lines: pa.Array) -> pa.Array:
    """Return the payloads in the lines of `lines_of`, as JSON text; null for a line that is plainly damaged."""
    payloads = pc.binary_slice(lines, len(PREFIX), -1).cast(pa.string())
    return pc.if_else(pc.ends_with(lines, SUFFIX[:1]), payloads, None)
