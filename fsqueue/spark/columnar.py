"""Payloads as a column of a type, converted field by field for many rows at once.

Arrow's own parser has no maps. Here orjson reads each line, and Arrow builds one flat array for each field of the type.
"""

from __future__ import annotations

from itertools import chain
from operator import itemgetter, methodcaller
from typing import Any

import numpy as np
import orjson
import pyarrow as pa
from pyspark.sql import types

from fsqueue.format.uniform import paused_collector

NONE = type(None)
NUMBERS: dict[type[types.DataType], set[type]] = {
    types.ByteType: {int, NONE},
    types.ShortType: {int, NONE},
    types.IntegerType: {int, NONE},
    types.LongType: {int, NONE},
    types.FloatType: {int, float, NONE},
    types.DoubleType: {int, float, NONE},
}
"""What orjson may read for a number of a type. Arrow would take 1.5 for a whole number, too."""
TIMES = (types.DateType, types.TimestampType, types.TimestampNTZType)
"""Arrow casts these from text."""
EXACT = (types.StringType, types.BooleanType, *TIMES)
"""Arrow refuses anything else in their place."""


class Unsuited(ValueError):
    """Some value is not of its field's type: each payload must be looked at by itself."""


def is_known(kind: types.DataType) -> bool:
    """Return whether `parse` can make a column of this type. Of subtypes (VARCHAR of string, say) it knows nothing."""
    if isinstance(kind, types.StructType):
        return all(is_known(field.dataType) for field in kind.fields)
    if isinstance(kind, types.ArrayType):
        return is_known(kind.elementType)
    if isinstance(kind, types.MapType):
        return type(kind.keyType) is types.StringType and is_known(kind.valueType)
    return type(kind) in EXACT or type(kind) in NUMBERS


def parse(content: bytes, kind: types.DataType, arrow: pa.DataType) -> pa.Array:
    """Return the payloads in lines of task files as a column of a known type.

    Raise Unsuited, ArrowException or OverflowError if one does not fit: that says nothing of the others. A payload
    that is null, missing or bytes is null.
    """
    with paused_collector():
        try:
            records = list(map(orjson.loads, content.split(b"\n")[:-1]))
        except orjson.JSONDecodeError:
            raise Unsuited from None
        if set(map(type, records)) - {dict}:
            raise Unsuited
        return _column([record.get("payload") for record in records], kind, arrow)


def _column(values: list[Any], kind: types.DataType, arrow: pa.DataType) -> pa.Array:
    if isinstance(kind, types.StructType):
        objects, is_null = _containers(values, dict)
        columns = [
            _column(_field(objects, field.name), field.dataType, of.type)
            for field, of in zip(kind.fields, arrow, strict=True)
        ]
        mask = None if is_null is None else pa.array(is_null)
        return pa.StructArray.from_arrays(columns, fields=list(arrow), mask=mask)
    if isinstance(kind, types.ArrayType):
        lists, is_null = _containers(values, list)
        elements = _column(list(chain.from_iterable(lists)), kind.elementType, arrow.value_type)
        return pa.ListArray.from_arrays(_offsets(lists, is_null), elements, type=arrow)
    if isinstance(kind, types.MapType):
        maps, is_null = _containers(values, dict)
        keys = _column(list(chain.from_iterable(maps)), kind.keyType, arrow.key_type)
        items = _column(list(chain.from_iterable(map(_values_of, maps))), kind.valueType, arrow.item_type)
        return pa.MapArray.from_arrays(_offsets(maps, is_null), keys, items, type=arrow)
    if isinstance(kind, TIMES):
        return pa.array(values, pa.string()).cast(arrow)
    if type(kind) in NUMBERS and set(map(type, values)) - NUMBERS[type(kind)]:
        raise Unsuited
    return pa.array(values, arrow)


_values_of = methodcaller("values")


def _containers(values: list[Any], kind: type) -> tuple[list[Any], np.ndarray | None]:
    """Return values that are all lists or all objects, an empty one for null, and which are null (None: none is)."""
    found = set(map(type, values))
    if found - {kind, NONE}:
        raise Unsuited
    if NONE not in found:
        return values, None
    return [kind() if value is None else value for value in values], np.array([value is None for value in values])


def _field(objects: list[dict[str, Any]], name: str) -> list[Any]:
    try:
        return list(map(itemgetter(name), objects))
    except KeyError:
        return [one.get(name) for one in objects]


def _offsets(containers: list[Any], is_null: np.ndarray | None) -> pa.Array:
    """Return where the elements of each container begin in the row of all elements; null for one that is null."""
    offsets: np.ndarray = np.zeros(len(containers) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, containers), np.int32, len(containers)), out=offsets[1:])
    return pa.array(offsets, mask=None if is_null is None else np.append(is_null, False))
