"""The columns of each view, as Spark's DDL (docs/spark-read.md, "Views"). Times are UTC; JSON is text."""

from __future__ import annotations

from pyspark.sql import types
from pyspark.sql.types import DataType, StructType

from fsqueue.errors import InvalidArgument

RANGES = "ARRAY<STRUCT<first:INT,end:INT>>"

VIEWS = {
    "tasks": (
        "id STRING, state STRING, payload STRING, payload_bytes BINARY, attempt INT, since TIMESTAMP, "
        "available_at TIMESTAMP, lease_until TIMESTAMP, worker STRING, error STRING, version BIGINT, "
        "priority STRING, key STRING"
    ),
    "leases": (
        "id STRING, lease STRING, attempt INT, at TIMESTAMP, until TIMESTAMP, in_time BOOLEAN, host STRING, "
        "pid BIGINT, slurm_job STRING, worker STRING"
    ),
    "dead": (
        "id STRING, reason STRING, at TIMESTAMP, attempt INT, payload STRING, payload_bytes BINARY, host STRING, "
        "worker STRING, priority STRING, key STRING"
    ),
    "states": "shard STRING, state STRING, tasks BIGINT",
    "counters": "counter STRING, completed BIGINT",
    "commits": "name STRING, at TIMESTAMP, tasks BIGINT, files BIGINT, bytes BIGINT",
    "movements": (
        f"batch STRING, version BIGINT, op STRING, at TIMESTAMP, tasks {RANGES}, lease STRING, until TIMESTAMP, "
        "available_at TIMESTAMP, host STRING, worker STRING, error STRING, reason STRING, result STRING, "
        "finished BOOLEAN, update STRING"
    ),
    "history": (
        "id STRING, state STRING, inserted_at TIMESTAMP, finished_at TIMESTAMP, attempts INT, host STRING, "
        "worker STRING, error STRING, result STRING, cpu_s DOUBLE, peak_memory_bytes BIGINT"
    ),
    "attempts": (
        "id STRING, lease STRING, outcome STRING, leased_at TIMESTAMP, began_at TIMESTAMP, ended_at TIMESTAMP, "
        "wait_s DOUBLE, duration_s DOUBLE, held_s DOUBLE, host STRING, worker STRING, error STRING, "
        "cpu_s DOUBLE, peak_memory_bytes BIGINT"
    ),
    "findings": "kind STRING, gravity STRING, path STRING, tasks BIGINT, note STRING, meaning STRING",
}
"""What can be read: the columns of each view."""
PARSED = (
    "StringType", "BooleanType", "IntegralType", "FloatType", "DoubleType", "DecimalType", "BinaryType", "DateType",
    "TimestampType", "TimestampNTZType", "VariantType",
)  # fmt: skip
"""What a payload's fields may be, beside structs, arrays and maps of text."""
QUEUE = "queue"
"""The column with a queue's name: there in a group, and on request elsewhere."""
LEVELS_MAX = 62
"""The most levels of arrays, structs and maps in a column. Arrow's streams take 64 levels, scalars among them, and
Spark wraps all columns in a struct. A map counts twice, since Arrow has it as a list of structs.
"""
LIMIT = f"Spark hands it over through Arrow, which takes {LEVELS_MAX} levels of arrays, structs and maps (a map is two)"


def columns_of(view: str) -> dict[str, str]:
    """Return the columns of a view, in their order: the type of each, by name."""
    return dict(column.split(" ") for column in VIEWS[view].split(", "))


def levels(kind: types.DataType) -> int:
    """Return how many levels of Arrow's a type has around its innermost scalars: 0 for a scalar."""
    if isinstance(kind, types.StructType):
        return 1 + max((levels(field.dataType) for field in kind.fields), default=0)
    if isinstance(kind, types.ArrayType):
        return 1 + levels(kind.elementType)
    if isinstance(kind, types.MapType):
        return 2 + max(levels(kind.keyType), levels(kind.valueType))
    return int(isinstance(kind, types.VariantType))  # a struct of two columns of bytes


def check_written(schema: types.StructType) -> None:
    """Raise InvalidArgument for a column that is too deep to be written by `df.write`."""
    for field in schema.fields:
        if (found := levels(field.dataType)) > LEVELS_MAX:
            raise InvalidArgument(
                f"The column {field.name!r} nests {found} levels deep. {LIMIT}. Insert the rows by fsqueue.spark.seed "
                "without a key: the JVM makes its lines. Or make the column JSON text by to_json, and write it with "
                "the options payload and payloadFormat=json."
            )


def check_read(kind: types.DataType) -> None:
    """Raise InvalidArgument for a type that is too deep for a payload to be read as."""
    if (found := levels(kind)) > LEVELS_MAX:
        raise InvalidArgument(
            f"The payload is asked for with {found} levels. {LIMIT}. Read it as STRING, and use from_json."
        )


def view_of(name: str) -> str:
    """Return a view's name, or InvalidArgument."""
    if name not in VIEWS:
        raise InvalidArgument(f"The option `view` is one of {', '.join(VIEWS)}, not {name!r}.")
    return name


def schema_of(view: str, group: bool) -> StructType:
    """Return the columns of a view; in a group, the queue's name is the first."""
    kinds: dict[str, types.DataType] = {
        "STRING": types.StringType(),
        "BINARY": types.BinaryType(),
        "BOOLEAN": types.BooleanType(),
        "INT": types.IntegerType(),
        "BIGINT": types.LongType(),
        "DOUBLE": types.DoubleType(),
        "TIMESTAMP": types.TimestampType(),
        RANGES: types.ArrayType(
            types.StructType(
                [types.StructField("first", types.IntegerType()), types.StructField("end", types.IntegerType())]
            )
        ),
    }
    columns = {QUEUE: "STRING", **columns_of(view)} if group else columns_of(view)
    return types.StructType([types.StructField(name, kinds[kind]) for name, kind in columns.items()])


def check(view: str, schema: StructType, corrupt: str) -> None:
    """Raise InvalidArgument if a schema that a user gives asks for something that the view does not have.

    Any columns in any order will do: what is left out is not read. `payload` may have any type that JSON can be
    parsed into; `corrupt` is the field of it that takes the text of what does not fit.
    """
    there = schema_of(view, True)
    for field in schema.fields:
        if field.name not in there.names:
            inside = " A field of the payload is asked for as `payload STRUCT<…>`." if "payload" in there.names else ""
            raise InvalidArgument(
                f"The view {view!r} has no column {field.name!r}, but {', '.join(there.names)}.{inside}"
            )
        if field.name == "payload":
            _check_payload(field.dataType, "payload", corrupt)
            check_read(field.dataType)
        elif field.dataType != there[field.name].dataType:
            is_nested = isinstance(field.dataType, (types.StructType, types.ArrayType, types.MapType))
            raise InvalidArgument(
                f"The column {field.name!r} of the view {view!r} is {there[field.name].dataType.simpleString()}, "
                f"not {field.dataType.simpleString()}: read it so, and {'use from_json' if is_nested else 'cast it'}."
            )


def _check_payload(kind: DataType, where: str, corrupt: str = "") -> None:
    """Raise InvalidArgument for a type that payloads are not parsed into."""
    if isinstance(kind, types.StructType):
        for field in kind.fields:
            if field.name != corrupt:
                _check_payload(field.dataType, f"{where}.{field.name}")
            elif field.dataType != types.StringType():
                raise InvalidArgument(
                    f"The field {corrupt!r} takes the text of a payload that does not fit: it is string, not "
                    f"{field.dataType.simpleString()}."
                )
    elif isinstance(kind, types.ArrayType):
        _check_payload(kind.elementType, f"{where}[]")
    elif isinstance(kind, types.MapType) and isinstance(kind.keyType, types.StringType):
        _check_payload(kind.valueType, f"{where}{{}}")
    elif not isinstance(kind, tuple(getattr(types, name) for name in PARSED)):
        is_map = isinstance(kind, types.MapType)
        advice = "JSON has texts for keys: read them as STRING" if is_map else "Read it as STRING, and cast it"
        raise InvalidArgument(f"{where!r} cannot be read as {kind.simpleString()}. {advice}.")
