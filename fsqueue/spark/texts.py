"""JSON texts of Arrow columns, column by column instead of row by row, and rows joined of them.

What Arrow writes as JSON does is cast by Arrow; what needs escapes, or has no such form, is taken one by one in Python.
Which types there are, and how each stands in JSON, is docs/spark.md's "Types"; `encoding.check` refuses the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import types

from fsqueue import batch
from fsqueue.errors import InvalidTask

Piece: TypeAlias = "str | pa.Array"
"""What each row has alike, or a text for each."""
TEXT = pa.large_string()  # rows of many columns may be more than 2 GiB together
WHOLE_MAX = 2**53
"""Whole floats below this are written as 1.0; Arrow writes 1, which would be read as an integer."""
YEARS = {
    types.DateType: (-719_162, 2_932_896),
    types.TimestampType: (-62_135_596_800_000_000, 253_402_300_799_999_999),
    types.TimestampNTZType: (-62_135_596_800_000_000, 253_402_300_799_999_999),
}
"""The years 1 to 9999, in days and in microseconds: what Python and JSON's usual readers have."""


def joined(pieces: Sequence[Piece], count: int) -> pa.Array:
    """So many texts, each put together of its pieces."""
    merged: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and merged and isinstance(merged[-1], str):
            merged[-1] += piece
        else:
            merged.append(piece)
    if all(isinstance(piece, str) for piece in merged):
        return pa.repeat(pa.scalar("".join(map(str, merged)), TEXT), count)
    given = [pa.scalar(piece, TEXT) if isinstance(piece, str) else piece.cast(TEXT) for piece in merged]
    return given[0] if len(given) == 1 else pc.binary_join_element_wise(*given, pa.scalar("", TEXT))


def of_object(fields: Sequence[types.StructField], columns: Sequence[pa.Array], first: int) -> list[Piece]:
    """The pieces of objects with these fields. `first`: the number of the first row, for errors."""
    pieces: list[Piece] = ["{"]
    for number, (field, column) in enumerate(zip(fields, columns, strict=True)):
        name = batch.encode_json(field.name, "name").decode()
        pieces += ["," if number else "", name, ":", *of(column, field.dataType, first)]
    return [*pieces, "}"]


def of(values: pa.Array, kind: types.DataType, first: int) -> list[Piece]:
    """The pieces of a column's texts. InvalidTask for a value that JSON does not have."""
    if values.null_count == len(values):
        return ["null"]
    found = _of_plain(values, kind, first)
    if found is None:
        return [_one_by_one(values, kind, first)]
    if values.null_count:
        return [pc.if_else(values.is_valid(), joined(found, len(values)), pa.scalar("null", TEXT))]
    return found


def _of_plain(values: pa.Array, kind: types.DataType, first: int) -> list[Piece] | None:
    """The pieces, whatever they are where there is no value; None if the values have to be taken one by one."""
    if isinstance(kind, types.StringType):
        return ['"', values, '"'] if _is_plain_text(values) else None
    if isinstance(kind, (types.BooleanType, types.IntegralType)):
        return [values.cast(TEXT)]
    if isinstance(kind, (types.FloatType, types.DoubleType)):
        return _of_floats(values)
    if type(kind) in YEARS:
        return _of_times(values, kind)
    if isinstance(kind, types.StructType):
        columns = [pc.struct_field(values, [number]) for number in range(len(kind.fields))]
        return of_object(kind.fields, columns, first)
    if isinstance(kind, types.ArrayType):
        return _of_lists(values, kind)
    return None


def _of_lists(values: pa.Array, kind: types.ArrayType) -> list[Piece] | None:
    elements = values.flatten()
    try:
        texts = joined(of(elements, kind.elementType, 0), len(elements))
    except InvalidTask:
        return None  # the row's number is told there
    ends = np.cumsum(values.value_lengths().fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
    lists = pa.LargeListArray.from_arrays(pa.array(np.concatenate(([0], ends))), texts)
    return ["[", pc.binary_join(lists, pa.scalar(",", TEXT)), "]"]


def _is_plain_text(values: pa.Array) -> bool:
    """Whether texts stand in JSON as they are: no quotes, backslashes or control characters. InvalidTask: no UTF-8."""
    offsets, data = buffers(values)
    content = bytes(data[offsets[0] : offsets[-1]])
    if not content.isascii():
        try:
            values.validate(full=True)
        except pa.ArrowInvalid:
            raise InvalidTask("A column of texts has a value that is no UTF-8: encode it, as base64(…) does.") from None
    if content.find(b'"') >= 0 or content.find(b"\\") >= 0:
        return False
    return not content or int(np.frombuffer(content, np.uint8).min()) >= ord(" ")


def _of_floats(values: pa.Array) -> list[Piece] | None:
    numbers = values.fill_null(0.5).to_numpy(zero_copy_only=False)
    if not np.isfinite(numbers).all() or (np.signbit(numbers) & (numbers == 0)).any():
        return None
    texts = values.cast(TEXT)
    whole = (numbers == np.floor(numbers)) & (np.abs(numbers) < WHOLE_MAX)
    if whole.any():
        better = joined([pa.array(numbers[whole].astype(np.int64)), ".0"], int(whole.sum()))
        texts = pc.replace_with_mask(texts, pa.array(whole), better)
    return [texts]


def _of_times(values: pa.Array, kind: types.DataType) -> list[Piece] | None:
    least, most = YEARS[type(kind)]
    units = pa.int32() if isinstance(kind, types.DateType) else pa.int64()
    numbers = values.view(units) if values.type == pa.date32() else values.cast(units)
    extent = pc.min_max(numbers).as_py()
    if extent["min"] < least or extent["max"] > most:
        raise InvalidTask("A column of times has one outside of the years 1 to 9999: cast it to string.")
    if isinstance(kind, types.DateType):
        return ['"', values.cast(TEXT), '"']
    zone = "UTC" if isinstance(kind, types.TimestampType) else None
    texts = values.cast(pa.timestamp("us", zone)).cast(TEXT)
    return ['"', pc.utf8_replace_slice(texts, 10, 11, "T"), '"']


def buffers(array: pa.Array) -> tuple[memoryview, memoryview]:
    """The offsets of an array of texts or bytes, and what they are offsets in."""
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    places = memoryview(offsets).cast("q" if large else "i")[array.offset : array.offset + len(array) + 1]
    return places, memoryview(data if data is not None else b"").cast("B")


# -- one by one ----------------------------------------------------------------------------------------------


def _one_by_one(values: pa.Array, kind: types.DataType, first: int) -> pa.Array:
    texts = [batch.encode_json(value, "payload", first + at) for at, value in enumerate(converted(values, kind))]
    return pa.array(texts, pa.large_binary()).cast(TEXT)


def converted(values: pa.Array, kind: types.DataType) -> list[Any]:
    """A column's values as JSON has them."""
    convert = _converter(kind)
    given: list[Any] = values.to_pylist()
    return given if convert is None else [None if value is None else convert(value) for value in given]


def _converter(kind: types.DataType) -> Callable[[Any], Any] | None:
    """What turns Arrow's Python value of a type into that of JSON; None if it is the same."""
    if isinstance(kind, types.DateType):
        return lambda value: value.isoformat()
    if isinstance(kind, types.TimestampType):
        return lambda value: value.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"
    if isinstance(kind, types.TimestampNTZType):
        return lambda value: value.isoformat(timespec="microseconds")
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
