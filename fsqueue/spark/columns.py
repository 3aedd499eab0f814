"""From rows to Arrow record batches with the columns that were asked for, a bounded number of rows at a time.

The untouched batches of the view `tasks`, which are most of a large queue, take a short cut: their files are not
decoded task by task; the payloads are cut out of the lines, or parsed in the mass by Arrow.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.json
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StringType, StructType

from fsqueue import names
from fsqueue.errors import InvalidArgument
from fsqueue.names import TaskFileName
from fsqueue.spark import schemas, views
from fsqueue.spark.views import PREFIX, SUFFIX, Row

ROWS_MAX = 16_384
"""A record batch has about so many rows, ..."""
BYTES_MAX = 8 << 20
"""... or about so many bytes of payload (the largest task more)."""


class Columns:
    """Collects rows of a view, and gives record batches of `schema` away when there is enough for one."""

    def __init__(self, view: str, schema: StructType, queue: str) -> None:
        self.view = view
        self.schema = to_arrow_schema(schema, timezone="UTC")
        self.queue = queue
        self.places = {name: place for place, name in enumerate(schemas.VIEWS[view])}
        self.wanted = list(schema.names)
        self.is_parsed = "payload" in self.wanted and schema["payload"].dataType != StringType()
        self._clear()

    def _clear(self) -> None:
        self.values: dict[str, list[Any]] = {name: [] for name in self.wanted}
        self.json: list[bytes] = []
        """Instead of values, where payloads are parsed: lines as in a task file."""
        self.count = self.size = 0

    # -- taking ---------------------------------------------------------------------------------------

    def rows(self, rows: Iterable[Row]) -> Iterator[pa.RecordBatch]:
        """Take rows with all columns of the view."""
        wanted = [(self.values[name], self.places[name]) for name in self.wanted if name in self.places]
        payload = self.places.get("payload", -1)
        for row in rows:
            for values, place in wanted:
                values.append(row[place])
            if payload >= 0 and row[payload] is not None:
                self.size += len(row[payload])
            if self.is_parsed:
                self.json.append(b"{}\n" if row[payload] is None else PREFIX + row[payload].encode() + SUFFIX)
            self.count += 1
            if self.count >= ROWS_MAX or self.size >= BYTES_MAX:
                yield self._batch()
                wanted = [(self.values[name], self.places[name]) for name in self.wanted if name in self.places]

    def untouched(self, name: TaskFileName, state: str, content: bytes) -> Iterator[pa.RecordBatch]:
        """Take all tasks of a batch that nobody has touched, from its file as `views.lines_of` read it."""
        count, values = name.count, self.values
        if "payload" in values:
            if self.is_parsed:
                self.json.append(content)
                values["payload"] += [None] * count
            else:
                values["payload"] += views.payloads_of(content)
        if "id" in values:
            start = f"{name.batch}."
            values["id"] += [start + text for text in INDICES[:count]]
        since = views.moment(name.available_at or names.birth_ms(name.batch))
        same = {
            "state": state,
            "attempt": 0,
            "since": since,
            "available_at": views.moment(name.available_at) if name.available_at else None,
            "version": 0,
        }
        for column in self.wanted:
            if column not in ("payload", "id", schemas.QUEUE):
                values[column] += [same.get(column)] * count
        self.count += count
        self.size += len(content)
        if self.count >= ROWS_MAX or self.size >= BYTES_MAX:
            yield self._batch()

    # -- giving ---------------------------------------------------------------------------------------

    def rest(self) -> Iterator[pa.RecordBatch]:
        """What is left in the end."""
        if self.count:
            yield self._batch()

    def _batch(self) -> pa.RecordBatch:
        arrays = []
        for field in self.schema:
            if field.name == schemas.QUEUE:
                arrays.append(pa.array([self.queue] * self.count, field.type))
            elif field.name == "payload" and self.is_parsed:
                arrays.append(parse(self.json, field.type, self.count))
            else:
                arrays.append(pa.array(self.values[field.name], field.type))
        batch = pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        self._clear()
        return batch


INDICES = [str(index) for index in range(names.BATCH_TASKS_MAX)]


def parse(lines: list[bytes], kind: pa.DataType, count: int) -> pa.Array:
    """The payloads in lines of task files, as a column of a type. Null for a payload that is not of that type.

    All at once; if one of them does not fit, one after the other. InvalidArgument for a type that no JSON has.
    """
    content = b"".join(lines)
    try:
        found = _parse(content, kind)
        if len(found) == count:
            return found
    except pa.ArrowNotImplementedError as error:
        raise InvalidArgument(
            f"The payload cannot be read as {kind}: {error}. Read it as STRING, and use from_json."
        ) from None
    except pa.ArrowInvalid:
        pass
    return pa.concat_arrays([_parse_one(line, kind) for line in content.splitlines()])


def _parse(content: bytes, kind: pa.DataType) -> pa.Array:
    table = pyarrow.json.read_json(
        pa.BufferReader(content),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(content) + 1),
        parse_options=pyarrow.json.ParseOptions(
            explicit_schema=pa.schema([("payload", kind)]), unexpected_field_behavior="ignore"
        ),
    )
    column = table.column("payload")
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def _parse_one(line: bytes, kind: pa.DataType) -> pa.Array:
    try:
        return _parse(line + b"\n", kind)
    except pa.ArrowInvalid:
        return pa.nulls(1, kind)
