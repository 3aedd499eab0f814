"""Check which columns of a DataFrame can be stored as payloads, delays, priorities and keys.

`lines` writes them. It needs pyarrow, which takes a tenth of a second to import; planning and committing do without.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from pyspark import TaskContext
from pyspark.sql import types

from fsqueue.clock import duration_ms
from fsqueue.errors import InvalidArgument, InvalidTask
from fsqueue.format.nesting import NESTING_MAX
from fsqueue.spark import schemas
from fsqueue.spark.options import WriteOptions

_PLAIN = (
    types.StringType, types.BooleanType, types.ByteType, types.ShortType, types.IntegerType, types.LongType,
    types.FloatType, types.DoubleType, types.NullType,
)  # fmt: skip
_DATES = (types.DateType, types.TimestampType, types.TimestampNTZType)
_WHOLE = (types.ByteType, types.ShortType, types.IntegerType, types.LongType)
_NUMBERS = (*_WHOLE, types.FloatType, types.DoubleType)


def check(options: WriteOptions, schema: types.StructType) -> None:
    """Raise InvalidArgument for a column that cannot be stored, with what to do about it."""
    for name in schema.names:
        if schema.names.count(name) > 1:
            raise InvalidArgument(f"There are several columns named {name!r}. Rename or drop all but one.")
    delay = options.delay_s if not is_number(options.delay_s) else None
    named = {"payload": options.payload, "delay_s": delay, "priority": options.priority, "key": options.key}
    for option, column in named.items():
        if column is not None and column not in schema.names:
            raise InvalidArgument(
                f"The option `{option}` names the column {column!r}; there are {', '.join(schema.names)}."
            )
    if delay is not None and not isinstance(schema[delay].dataType, _NUMBERS):
        raise InvalidArgument(
            f"The column {delay!r} is {schema[delay].dataType.simpleString()}; a delay is a number of seconds."
        )
    for option in ("priority", "key"):
        column = named[option]
        if column is not None and not isinstance(schema[column].dataType, (types.StringType, *_WHOLE)):
            raise InvalidArgument(
                f"The column {column!r} is {schema[column].dataType.simpleString()}; a {option} is text or a whole "
                "number. Cast it."
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
    """Return whether the option `delay_s` gives seconds, not a column."""
    try:
        return text is not None and math.isfinite(float(text))
    except ValueError:
        return False


def payload_fields(options: WriteOptions, schema: types.StructType) -> list[types.StructField]:
    """Return the columns that make a payload: all but that of the delay."""
    return [field for field in schema.fields if field.name != options.delay_s]


def contains(kind: types.DataType, some: tuple[type[types.DataType], ...]) -> bool:
    """Return whether a type, or one inside it, is one of some."""
    if isinstance(kind, some):
        return True
    if isinstance(kind, types.StructType):
        return any(contains(field.dataType, some) for field in kind.fields)
    if isinstance(kind, types.ArrayType):
        return contains(kind.elementType, some)
    if isinstance(kind, types.MapType):
        return contains(kind.keyType, some) or contains(kind.valueType, some)
    return False


def _check_type(kind: types.DataType, where: str, level: int = 2) -> None:
    """Refuse types that JSON does not have. `level`: the level of nesting that an array or object here is on."""
    if isinstance(kind, (*_PLAIN, *_DATES)):
        return
    if level > NESTING_MAX:
        raise InvalidArgument(f"The column {where[:40]!r}… nests deeper than {NESTING_MAX} levels. Flatten it.")
    if isinstance(kind, types.ArrayType):
        _check_type(kind.elementType, f"{where}[]", level + 1)
    elif isinstance(kind, types.StructType):
        for field in kind.fields:
            if kind.names.count(field.name) > 1:
                raise InvalidArgument(
                    f"The column {where!r} has several fields named {field.name!r}. Rename or drop all but one."
                )
            _check_type(field.dataType, f"{where}.{field.name}", level + 1)
    elif isinstance(kind, types.MapType) and isinstance(kind.keyType, types.StringType):
        _check_type(kind.valueType, f"{where}{{}}", level + 1)
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


@contextmanager
def counted_in_part() -> Iterator[None]:
    """Let an InvalidTask that is raised here say that its number counts the rows of one Spark task."""
    try:
        yield
    except InvalidTask as error:
        if error.index is not None:
            context = TaskContext.get()
            part = "one partition" if context is None else f"partition {context.partitionId()}"
            error.args = (f"{error} The number counts the rows of {part} of the DataFrame.", *error.args[1:])
        raise


class Encoder:
    """Settings by which `lines.Lines` makes batches of the rows of a Spark task. It pickles, and goes to executors."""

    def __init__(self, options: WriteOptions, schema: types.StructType) -> None:
        check(options, schema)
        if options.made_of is None:
            schemas.check_written(schema)
        self.options = options
        self.schema = schema
        self.delay_ms: int | None = 0
        """None: the delay stands in a column."""
        if options.delay_s is not None:
            self.delay_ms = (
                duration_ms(float(options.delay_s), "delay_s")
                if is_number(options.delay_s) and options.delay_s not in schema.names
                else None
            )
