"""From a DataFrame's rows to the lines of task files (docs/format.md, "Task files"), batch by batch.

Which types a payload may have, and how each stands in JSON, is said here once, for both ways there are: `Encoder` does
it in Python; `line_of` makes Spark do it, in the JVM, after which the lines of a record batch lie in one buffer, as
they will in the file, and are written without being looked at one by one.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

import orjson
from pyspark.sql import types

from fsqueue import batch, batching
from fsqueue.batching import NOW, Encoded, When
from fsqueue.clock import duration_ms
from fsqueue.errors import InvalidArgument, InvalidTask, TaskTooLarge
from fsqueue.layout import BATCH_BYTES_MAX, Settings
from fsqueue.spark.options import WriteOptions

if TYPE_CHECKING:  # pyarrow is imported where rows are: planning and committing start sooner without it
    import pyarrow as pa
    from pyspark.sql import Column

LINE, DELAY = "line", "delay_s"
"""The columns of a DataFrame whose rows are lines already."""

_PLAIN = (
    types.StringType, types.BooleanType, types.ByteType, types.ShortType, types.IntegerType, types.LongType,
    types.FloatType, types.DoubleType, types.NullType,
)  # fmt: skip
_DATES = (types.DateType, types.TimestampType, types.TimestampNTZType)
_NUMBERS = (types.ByteType, types.ShortType, types.IntegerType, types.LongType, types.FloatType, types.DoubleType)
JSON_OPTIONS = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "dateFormat": "yyyy-MM-dd",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""How Spark writes JSON: what is null stays there, times are UTC and keep their microseconds."""


# -- what can be a task ------------------------------------------------------------------------------------


def check(options: WriteOptions, schema: types.StructType) -> None:
    """InvalidArgument says which column cannot be stored, and what to do about it."""
    if options.encoded:
        if schema.names[:1] != [LINE] or schema.names[1:] not in ([], [DELAY]):
            raise InvalidArgument("The option `encoded` is for what fsqueue.spark.seed makes of a DataFrame.")
        return
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise InvalidArgument(f"There are several columns named {name!r}. Rename or drop all but one.")
    delay = options.delay_s if not is_number(options.delay_s) else None
    for option, column in (("payload", options.payload), ("delay_s", delay)):
        if column is not None and column not in schema.names:
            raise InvalidArgument(
                f"The option `{option}` names the column {column!r}; there are {', '.join(schema.names)}."
            )
    if delay is not None and not isinstance(schema[delay].dataType, _NUMBERS):
        raise InvalidArgument(
            f"The column {delay!r} is {schema[delay].dataType.simpleString()}; a delay is a number of seconds."
        )
    if options.payload is None:
        for field in payload_fields(options, schema):
            _check_type(field.dataType, field.name)
        return
    kind = schema[options.payload].dataType
    if options.is_json and not isinstance(kind, types.StringType):
        raise InvalidArgument(f"The column {options.payload!r} is {kind.simpleString()}; JSON text is string.")
    if not isinstance(kind, types.BinaryType):
        _check_type(kind, options.payload)


def is_number(text: str | None) -> bool:
    """Whether the option `delay_s` gives seconds, not a column."""
    try:
        return text is not None and math.isfinite(float(text))
    except ValueError:
        return False


def payload_fields(options: WriteOptions, schema: types.StructType) -> list[types.StructField]:
    """The columns that make a payload: all but that of the delay."""
    return [field for field in schema.fields if field.name != options.delay_s]


def _check_type(kind: types.DataType, where: str) -> None:
    if isinstance(kind, (*_PLAIN, *_DATES)):
        return
    if isinstance(kind, types.ArrayType):
        _check_type(kind.elementType, f"{where}[]")
    elif isinstance(kind, types.StructType):
        for field in kind.fields:
            _check_type(field.dataType, f"{where}.{field.name}")
    elif isinstance(kind, types.MapType) and isinstance(kind.keyType, types.StringType):
        _check_type(kind.valueType, f"{where}{{}}")
    else:
        if isinstance(kind, types.DecimalType):
            advice = "cast it to string, or to double if that is precise enough"
        elif isinstance(kind, types.BinaryType):
            advice = "encode it, as base64(…) does, or make it the whole payload with the option `payload`"
        elif isinstance(kind, types.MapType):
            advice = "map its keys to strings: JSON has no others"
        else:
            advice = "cast it to string"
        raise InvalidArgument(f"The column {where!r} is {kind.simpleString()}, which JSON does not have: {advice}.")


# -- in the JVM ---------------------------------------------------------------------------------------------


def line_of(options: WriteOptions, schema: types.StructType) -> Column:
    """A column with the task's line. NaN and infinity fail the job: JSON does not have them."""
    from pyspark.sql import functions as F

    if options.payload is None:
        names = [field.name for field in payload_fields(options, schema)]
        kind: types.DataType = types.StructType(payload_fields(options, schema))
        value = F.struct(*(F.col(quoted(name)) for name in names))
    else:
        kind, value = schema[options.payload].dataType, F.col(quoted(options.payload))
    if isinstance(kind, types.BinaryType):
        whole = F.concat(F.lit('{"b64":"'), F.translate(F.base64(value), "\r\n", ""), F.lit('"}\n'))
        return F.coalesce(whole, F.lit('{"payload":null}\n'))
    if options.payload is None:
        line = F.concat(F.to_json(F.struct(value.alias("payload")), JSON_OPTIONS), F.lit("\n"))
    else:
        if isinstance(kind, (types.StructType, types.ArrayType, types.MapType)):
            text = F.to_json(value, JSON_OPTIONS)
        else:  # to_json takes no plain value: put into a list, and taken out of the text again
            text = F.to_json(F.array(value), JSON_OPTIONS)
            text = F.substring(text, F.lit(2), F.length(text) - 2)
        line = F.concat(F.lit('{"payload":'), F.coalesce(text, F.lit("null")), F.lit("}\n"))
    bad = _not_finite(kind, value)
    if bad is None:
        return line
    message = "A payload contains NaN or infinity, which JSON does not have. Use null or a string (nanvl, when)."
    return F.when(bad, F.raise_error(F.lit(message))).otherwise(line)


def quoted(name: str) -> str:
    """A column's name as Spark takes it, dots and all."""
    return "`" + name.replace("`", "``") + "`"


def _not_finite(kind: types.DataType, value: Column) -> Column | None:
    """Whether NaN or infinity is in a value; None if its type has none."""
    from pyspark.sql import functions as F

    if isinstance(kind, (types.FloatType, types.DoubleType)):
        bad = F.isnan(value) | (F.abs(value) == F.lit(math.inf))
        return F.coalesce(bad, F.lit(False))
    if isinstance(kind, types.StructType):
        found = [_not_finite(field.dataType, value.getField(field.name)) for field in kind.fields]
        there = [one for one in found if one is not None]
        return reduce(or_, there) if there else None
    if isinstance(kind, types.MapType):
        kind, value = types.ArrayType(kind.valueType), F.map_values(value)
    if isinstance(kind, types.ArrayType) and _not_finite(kind.elementType, F.lit(None)) is not None:
        element = kind.elementType
        inside = F.exists(value, lambda one: F.coalesce(_not_finite(element, one), F.lit(False)))
        return F.coalesce(inside, F.lit(False))
    return None


# -- in Python ------------------------------------------------------------------------------------------------


class Encoder:
    """Makes batches of the rows of one Spark task. It travels to the executors with what it was told."""

    def __init__(self, options: WriteOptions, schema: types.StructType) -> None:
        check(options, schema)
        self.options = options
        self.schema = schema
        self.delay_ms: int | None = 0
        """None: the delay stands in a column."""
        if options.encoded:
            self.delay_ms = None if DELAY in schema.names else 0
        elif options.delay_s is not None:
            self.delay_ms = (
                duration_ms(float(options.delay_s), "delay_s")
                if is_number(options.delay_s) and options.delay_s not in schema.names
                else None
            )

    def batches(self, rows: Iterable[pa.RecordBatch], settings: Settings) -> Iterator[Encoded]:
        """All rows as encoded batches, in bounded memory. InvalidTask says which row cannot be stored."""
        import pyarrow as pa

        batcher = Batcher(settings, self.options.batch_tasks)
        index = 0
        for some in rows:
            lines = self._lines(some, settings.task_bytes_max, index)
            index += some.num_rows
            if self.delay_ms is not None:
                yield from batcher.add((False, self.delay_ms) if self.delay_ms else NOW, lines)
                continue
            delays = self._delays(some)
            order = sorted(range(len(delays)), key=delays.__getitem__)
            lines = lines.take(pa.array(order, pa.int64()))
            start = 0
            for end in range(1, len(order) + 1):
                if end == len(order) or delays[order[end]] != delays[order[start]]:
                    delay = delays[order[start]]
                    yield from batcher.add((False, delay) if delay else NOW, lines[start:end])
                    start = end
        yield from batcher.rest()

    def _delays(self, rows: pa.RecordBatch) -> list[int]:
        name = DELAY if self.options.encoded else str(self.options.delay_s)
        try:
            return [duration_ms(value or 0, name) for value in rows.column(name).to_pylist()]
        except InvalidArgument as error:
            raise InvalidTask(f"The column of delays has a value that is none: {error}") from None

    def _lines(self, rows: pa.RecordBatch, bytes_max: int, first: int) -> pa.Array:
        if self.options.encoded:
            return rows.column(LINE)
        options, names = self.options, self.schema.names
        if options.payload is not None:
            kind = self.schema[options.payload].dataType
            values = _converted(rows.column(options.payload), kind)
            if options.is_json:
                return _array([_json_line(value, bytes_max, first + at) for at, value in enumerate(values)])
        else:
            fields = payload_fields(options, self.schema)
            columns = [_converted(rows.column(names.index(field.name)), field.dataType) for field in fields]
            keys = [field.name for field in fields]
            values = [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)]
            values = values if columns else [{}] * rows.num_rows
        return _array([batch.encode_task(value, bytes_max, first + at) for at, value in enumerate(values)])


def _array(lines: list[bytes]) -> pa.Array:
    import pyarrow as pa

    return pa.array(lines, pa.large_binary())


def _json_line(text: str | None, bytes_max: int, index: int) -> bytes:
    try:
        value = None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidTask(f"Row {index + 1}: the payload is not JSON: {error}.", index) from None
    return batch.encode_task(value, bytes_max, index)


def _converted(column: pa.Array, kind: types.DataType) -> list[Any]:
    convert = _converter(kind)
    values: list[Any] = column.to_pylist()
    return values if convert is None else [None if value is None else convert(value) for value in values]


def _converter(kind: types.DataType) -> Callable[[Any], Any] | None:
    """What turns Arrow's Python value of a type into that of JSON; None if it is the same."""
    if isinstance(kind, types.DateType):
        return lambda value: value.isoformat()
    if isinstance(kind, types.TimestampType):
        return lambda value: value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(kind, types.TimestampNTZType):
        return lambda value: value.strftime("%Y-%m-%dT%H:%M:%S.%f")
    if isinstance(kind, types.ArrayType):
        inner = _orsame(_converter(kind.elementType))
        return lambda value: [inner(one) for one in value]
    if isinstance(kind, types.MapType):
        inner = _orsame(_converter(kind.valueType))
        return lambda value: {key: inner(one) for key, one in value}
    if isinstance(kind, types.StructType):
        inners = {field.name: _orsame(_converter(field.dataType)) for field in kind.fields}
        return lambda value: {name: inner(value[name]) for name, inner in inners.items()}
    return None


def _orsame(convert: Callable[[Any], Any] | None) -> Callable[[Any], Any]:
    return (lambda value: value) if convert is None else (lambda value: None if value is None else convert(value))


class Batcher:
    """Cuts arrays of lines into batches, one after the other for each time of availability."""

    def __init__(self, settings: Settings, batch_tasks: int | None) -> None:
        self.tasks_max = min(batch_tasks or settings.batch_tasks_max, settings.batch_tasks_max)
        self.bytes_max = settings.task_bytes_max
        self.filling: dict[When, Encoded] = {}

    def add(self, when: When, lines: pa.Array) -> Iterator[Encoded]:
        """Take whole lines of tasks that are available from then on; gives the batches that are full."""
        offsets, data = buffers(lines)
        self._check(lines, offsets, data)
        at, count = 0, len(lines)
        while at < count:
            target = self.filling.get(when)
            if target is None:
                if len(self.filling) == batching.OPEN_BATCHES_MAX:
                    yield self.filling.pop(max(self.filling, key=lambda key: self.filling[key].tasks))
                target = self.filling[when] = Encoded(when)
            end = min(count, at + self.tasks_max - target.tasks)
            limit = offsets[at] + BATCH_BYTES_MAX - target.size
            if offsets[end] > limit:
                end = bisect_right(offsets, limit, at, end + 1) - 1
                if end <= at:
                    if target.tasks:
                        yield self.filling.pop(when)
                        continue
                    end = at + 1  # larger than a batch should be: one of its own
            target.take(data[offsets[at] : offsets[end]], end - at)
            at = end
            if target.tasks == self.tasks_max or target.size >= BATCH_BYTES_MAX:
                yield self.filling.pop(when)

    def rest(self) -> Iterator[Encoded]:
        """The batches that are not full."""
        yield from self.filling.values()
        self.filling = {}

    def _check(self, lines: pa.Array, offsets: memoryview, data: memoryview) -> None:
        """That they are lines, in the mass: what is no line would make others' tasks unreadable."""
        import numpy

        count = len(lines)
        if not count:
            return
        content = numpy.frombuffer(data[offsets[0] : offsets[count]], numpy.uint8)
        ends = numpy.count_nonzero(content == NEWLINE)
        if lines.null_count or ends != count or content[-1] != NEWLINE or bytes(content[:2]) != START:
            raise InvalidTask("What should be lines of task files is none: use fsqueue.spark.seed to make them.")
        if len(content) > self.bytes_max:
            longest = int(numpy.diff(numpy.asarray(offsets)).max())
            if longest > self.bytes_max:
                raise TaskTooLarge(
                    f"A task takes {longest:,} bytes; this queue accepts up to {self.bytes_max:,}. Store the data in "
                    "a file and queue its path, or create the queue with a larger task_bytes_max."
                )


START, NEWLINE = b'{"', 10


def buffers(array: pa.Array) -> tuple[memoryview, memoryview]:
    """The offsets of an array of texts or bytes, and what they are offsets in."""
    import pyarrow as pa

    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    places = memoryview(offsets).cast("q" if large else "i")[array.offset : array.offset + len(array) + 1]
    return places, memoryview(data if data is not None else b"").cast("B")
