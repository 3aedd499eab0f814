"""From a DataFrame's rows to the lines of task files (docs/format.md, "Task files"), batch by batch.

`seed` lets the JVM make the lines. They lie in one buffer as they will in the files, and are written in pieces of it.
The rows of other writes are encoded here, one by one.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from fsqueue.clock import duration_ms
from fsqueue.errors import InvalidArgument, InvalidTask
from fsqueue.format import task_file, user_json
from fsqueue.format.layout import Settings
from fsqueue.format.uniform import paused_collector
from fsqueue.protocol.encoding import NOW, Encoded, When
from fsqueue.spark.columnar import TIMES
from fsqueue.spark.cutting import Cutter, Sorter, buffers, texts_of, with_priorities
from fsqueue.spark.stored_columns import Encoder, contains, counted_in_part, payload_fields

FLOATS = (types.FloatType, types.DoubleType)
NOT_FINITE = (b'"NaN"', b'"Infinity"', b'"-Infinity"')
"""How the JVM writes the floats that JSON does not have."""
ODD_YEARS = (b'"+', b'"-', b'"0000-')
"""How the JVM begins times outside of the years 1 to 9999. Texts may begin so, too: `_fault` tells them apart."""
YEAR = re.compile(r"(?!0000)[0-9]{4}-")
OUTSIDE = "a time outside of the years 1 to 9999: cast the column to string"


class Lines:
    """The rows of one Spark task on their way into batches."""

    def __init__(self, encoder: Encoder, settings: Settings) -> None:
        self.encoder = encoder
        self.bytes_max = settings.task_bytes_max
        self.priority = encoder.options.priority
        cutter = Cutter(settings, encoder.options.batch_tasks)
        self.cutter: Cutter | Sorter = cutter if self.priority is None else Sorter(cutter)
        made_of = encoder.options.made_of
        self.made = None if made_of is None else Made(types._parse_datatype_json_string(made_of))
        self.values_of = None if made_of is not None else values_of(encoder)

    def batches(self, rows: Iterable[pa.RecordBatch]) -> Iterator[Encoded]:
        """Yield all rows as encoded batches, in bounded memory. InvalidTask names the row that cannot be stored."""
        with counted_in_part():
            yield from self._batches(rows)

    def _batches(self, rows: Iterable[pa.RecordBatch]) -> Iterator[Encoded]:
        index = 0
        for some in rows:
            columns = [self._lines(some, index)]
            if self.priority is not None:
                priorities = some.column(self.priority)
                texts = texts_of(priorities, index)
                columns = [with_priorities(columns[0], texts, index, self.bytes_max), priorities]
            index += some.num_rows
            for when, part in self._by_time(some, columns):
                yield from self.cutter.add(when, *part)
        yield from self.cutter.rest()

    def _by_time(self, rows: pa.RecordBatch, columns: list[pa.Array]) -> Iterator[tuple[When, list[pa.Array]]]:
        """Yield when tasks are available, with what the columns have of these tasks."""
        same = self.encoder.delay_ms
        if same is not None:
            yield (False, same) if same else NOW, columns
            return
        name = str(self.encoder.options.delay_s)
        delays = delays_ms(rows.column(name), name)
        order = sorted(range(len(delays)), key=delays.__getitem__)
        columns = [column.take(pa.array(order, pa.int64())) for column in columns]
        start = 0
        for end in range(1, len(order) + 1):
            if end == len(order) or delays[order[end]] != delays[order[start]]:
                delay = delays[order[start]]
                yield (False, delay) if delay else NOW, [column[start:end] for column in columns]
                start = end

    def _lines(self, rows: pa.RecordBatch, first: int) -> pa.Array:
        if self.made is not None:
            lines = rows.column(str(self.encoder.options.payload))
            self.made.check(lines, first, self.bytes_max)
            return lines
        assert self.values_of is not None
        encode = task_file.encode_task
        with paused_collector():
            values = enumerate(self.values_of(rows, first), first)
            return pa.array([encode(value, self.bytes_max, at) for at, value in values], pa.large_binary())


# -- lines that the JVM made -----------------------------------------------------------------------------------


class Made:
    """Check lines that the JVM made of payloads of one type: it writes some values that no payload may have."""

    def __init__(self, kind: types.DataType) -> None:
        self.kind = kind
        # Lines without these texts are sound. In a line with one of them, each value is looked at.
        self.suspects = (NOT_FINITE if contains(kind, FLOATS) else ()) + (ODD_YEARS if contains(kind, TIMES) else ())

    def check(self, lines: pa.Array, first: int, bytes_max: int) -> None:
        """Raise InvalidTask for a line that holds such a value or is too long. `first`: the first row's number."""
        offsets, data = buffers(lines)
        sizes = np.diff(np.asarray(offsets))
        if len(sizes) and sizes.max() > bytes_max:
            longest = int(sizes.argmax())
            raise task_file.too_large(int(sizes[longest]), bytes_max, first + longest)
        content = bytes(data[offsets[0] : offsets[-1]]) if self.suspects and len(lines) else b""
        for text in self.suspects if content else ():
            if _contains(content, text):
                for at in np.flatnonzero(pc.match_substring(lines, text).to_numpy(zero_copy_only=False)):
                    fault = _fault(orjson.loads(lines[int(at)].as_py())["payload"], self.kind)
                    if fault is not None:
                        index = first + int(at)
                        raise InvalidTask(f"Task number {index + 1}: the payload contains {fault}.", index)


def _contains(content: bytes, text: bytes) -> bool:
    """Return whether lines contain a text of at least two bytes.

    Most lines lack its second byte, which costs next to nothing to see. For two bytes, NumPy takes a tenth of the time
    that `find` takes.
    """
    if content.find(text[1:2]) < 0:
        return False
    pair = int.from_bytes(text[:2], sys.byteorder)
    pairs = (np.frombuffer(content, np.uint16, (len(content) - at) // 2, at) for at in (0, 1))
    return any((found == pair).any() for found in pairs) and content.find(text) >= 0


def _fault(value: Any, kind: types.DataType) -> str | None:
    """Return what is wrong with a payload that the JVM wrote of a value of this type; None: nothing."""
    if isinstance(kind, types.StructType):
        inner = [(value[field.name], field.dataType) for field in kind.fields] if value is not None else []
    elif isinstance(kind, types.ArrayType):
        inner = [(one, kind.elementType) for one in value or ()]
    elif isinstance(kind, types.MapType):
        inner = [(one, kind.valueType) for one in (value or {}).values()]
    elif isinstance(kind, FLOATS) and isinstance(value, str):
        return f"{value}, which JSON does not have. Use null or a string"
    elif isinstance(kind, TIMES) and value is not None and not YEAR.match(value):
        return OUTSIDE
    else:
        return None
    return next((fault for one, of in inner if (fault := _fault(one, of)) is not None), None)


# -- rows, one by one ------------------------------------------------------------------------------------------


def values_of(encoder: Encoder) -> Callable[[pa.RecordBatch, int], Iterable[Any]]:
    """Return a function that makes payloads of a record batch, whose first row has the number that it is given."""
    options, schema = encoder.options, encoder.schema
    if options.payload is not None:
        place, convert = schema.names.index(options.payload), _converter(schema[options.payload].dataType)
        if options.is_json:
            return lambda rows, first: map(_parsed, _converted(rows.column(place), None), count(first))
        return lambda rows, _: _converted(rows.column(place), convert)
    fields = payload_fields(options, schema)
    names = [field.name for field in fields]
    places = [(schema.names.index(field.name), _converter(field.dataType)) for field in fields]

    def objects(rows: pa.RecordBatch, _: int) -> Iterable[Any]:
        if not names:
            return ({} for _ in range(rows.num_rows))
        columns = [_converted(rows.column(place), convert) for place, convert in places]
        return (dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True))

    return objects


def _converted(values: pa.Array, convert: Callable[[Any], Any] | None) -> list[Any]:
    """Return a column's values as JSON has them."""
    try:
        given: list[Any] = values.cast(_naive(values.type)).to_pylist()
    except UnicodeDecodeError:
        raise InvalidTask("A column of texts has a value that is no UTF-8: encode it, as base64(…) does.") from None
    except (ValueError, OverflowError):
        raise InvalidTask(f"A column of times has {OUTSIDE}.") from None
    return given if convert is None else [None if value is None else convert(value) for value in given]


def _naive(kind: pa.DataType) -> pa.DataType:
    """Return a type with its timestamps in UTC, which has no hours that Python's dates lack."""
    if pa.types.is_timestamp(kind):
        return pa.timestamp("us")
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_naive(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_naive(kind.value_type)))
    if pa.types.is_map(kind):
        return pa.map_(kind.key_field, kind.item_field.with_type(_naive(kind.item_type)))
    return kind


def _converter(kind: types.DataType) -> Callable[[Any], Any] | None:
    """Return what turns Arrow's Python value of a type into that of JSON; None if it is the same."""
    if isinstance(kind, types.FloatType):
        return lambda value: float(str(np.float32(value)))  # 0.1, as the JVM writes it, not 0.10000000149011612
    if isinstance(kind, types.DateType):
        return lambda value: value.isoformat()
    if isinstance(kind, types.TimestampType):
        return lambda value: value.isoformat(timespec="microseconds") + "Z"
    if isinstance(kind, types.TimestampNTZType):
        return lambda value: value.isoformat(timespec="microseconds")
    if isinstance(kind, types.ArrayType):
        inner = _or_none(_converter(kind.elementType))
        return lambda value: [inner(one) for one in value]
    if isinstance(kind, types.MapType):
        inner = _or_none(_converter(kind.valueType))
        return lambda value: _object(value, inner)
    if isinstance(kind, types.StructType):
        inners = {field.name: _or_none(_converter(field.dataType)) for field in kind.fields}
        return lambda value: {name: inner(value[name]) for name, inner in inners.items()}
    return None


def _object(entries: list[tuple[str, Any]], convert: Callable[[Any], Any]) -> dict[str, Any]:
    """Return a map's entries as an object. InvalidTask if a key is there twice: a value would be lost."""
    found = {key: convert(one) for key, one in entries}
    if len(found) < len(entries):
        raise InvalidTask("A column of maps has a map with a key twice. Keep one entry for each key.")
    return found


def _or_none(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    return (lambda value: value) if convert is None else (lambda value: None if value is None else convert(value))


def _parsed(text: str | None, index: int) -> Any:
    try:
        return None if text is None else user_json.decode(text)
    except user_json.NotExact as error:
        raise InvalidTask(f"Row {index + 1}: the payload {error}.", index) from None


def delays_ms(delays: pa.Array, name: str) -> list[int]:
    """Return a column of delays, which are in seconds, in milliseconds."""
    try:
        return [duration_ms(value or 0, name) for value in delays.to_pylist()]
    except InvalidArgument as error:
        raise InvalidTask(f"The column of delays has a value that is none: {error}") from None
