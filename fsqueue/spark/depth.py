"""How deep a column may nest where Spark hands it to Python, or takes it from there, through Arrow."""

from __future__ import annotations

from pyspark.sql import types

from fsqueue.errors import InvalidArgument

LEVELS_MAX = 62
"""The most levels of arrays, structs and maps in a column. Arrow's streams take 64 levels, scalars among them, and
Spark wraps all columns in a struct. A map counts twice, since Arrow has it as a list of structs.
"""
LIMIT = f"Spark hands it over through Arrow, which takes {LEVELS_MAX} levels of arrays, structs and maps (a map is two)"


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
