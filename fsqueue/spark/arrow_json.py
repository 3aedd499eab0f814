"""Payloads as a column of a type, by Arrow's own JSON parser, in a fraction of the time that Python takes.

The parser has no dates and no maps. Dates and times are parsed as text and cast. Maps are parsed as structs of their
keys, and become maps then.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.json
from pyspark.sql import types

from fsqueue.interruptions import suppress
from fsqueue.spark.stored_columns import contains

SAME = (types.StringType, types.BooleanType, types.LongType, types.IntegerType, types.FloatType, types.DoubleType)
"""Types that Arrow parses as Spark does."""
CAST = (types.DateType, types.TimestampType, types.TimestampNTZType)
"""Types that Arrow casts from text."""
KEYS_MAX = 64
"""A map with more different keys is left to `columnar`: as a struct, each key would be a column, mostly of nulls."""
SAMPLE_BYTES = 1 << 16
"""Number of bytes of a record batch that tell the keys. With keys that never repeat, memory grows with its square."""
REFUSALS_MAX = 3
"""Maximum number of record batches in a row that do not fit; then no further one is tried."""
NULL = b"null"


def carrier_of(kind: types.DataType, arrow: pa.DataType) -> pa.DataType | None:
    """Return what Arrow parses a type as, to cast it then; None: it knows none."""
    if isinstance(kind, SAME):
        return arrow
    if isinstance(kind, CAST):
        return pa.string()
    if isinstance(kind, types.ArrayType):
        inner = carrier_of(kind.elementType, arrow.value_type)
        return None if inner is None else pa.list_(arrow.value_field.with_type(inner))
    if isinstance(kind, types.StructType):
        found = [carrier_of(one.dataType, field.type) for one, field in zip(kind.fields, arrow, strict=True)]
        if None not in found and found:
            return pa.struct([field.with_type(of) for field, of in zip(arrow, found, strict=True)])
    return None


def parse(content: bytes, kind: pa.DataType) -> pa.Array:
    """Return the payloads in lines of task files. ArrowInvalid: one is not of the type."""
    return _payloads(_table(content, pa.schema([("payload", kind)]), "ignore"))


def _table(content: bytes, schema: pa.Schema, others: str) -> pa.Table:
    """Parse lines. `others`: what becomes of fields that the schema lacks ("ignore", "error", or "infer": add them)."""
    return pyarrow.json.read_json(
        pa.BufferReader(content),
        read_options=pyarrow.json.ReadOptions(use_threads=False, block_size=len(content) + 1),
        parse_options=pyarrow.json.ParseOptions(explicit_schema=schema, unexpected_field_behavior=others),
    )


def _payloads(table: pa.Table) -> pa.Array:
    column = table.column("payload")
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)


def has_maps(kind: types.DataType, arrow: pa.DataType) -> bool:
    """Return whether `Maps` can parse a type: it has maps, each in structs alone, with values that Arrow knows."""
    return contains(kind, (types.MapType,)) and _is_known(kind, arrow)


def _is_known(kind: types.DataType, arrow: pa.DataType) -> bool:
    if isinstance(kind, types.MapType):
        return type(kind.keyType) is types.StringType and carrier_of(kind.valueType, arrow.item_type) is not None
    if isinstance(kind, types.StructType) and contains(kind, (types.MapType,)):
        return all(_is_known(one.dataType, field.type) for one, field in zip(kind.fields, arrow, strict=True))
    return carrier_of(kind, arrow) is not None


class Maps:
    """Parses payloads of one type that has maps, for as long as these have few different keys.

    The beginning of a record batch tells the keys. Arrow refuses a record batch with a further key, or a further field.
    Then that one is parsed in another way, and the next one tells the keys anew.
    A map's entries come in the order in which its keys were first seen.
    """

    def __init__(self, kind: types.DataType, arrow: pa.DataType) -> None:
        self.kind, self.arrow = kind, arrow
        self.keys: dict[tuple[str, ...], list[str]] = {}
        """The keys seen so far, by where the map is in the payload."""
        self.schema: pa.Schema | None = None
        """What the lines are made of, as far as it is known."""
        self.refusals = 0

    def parse(self, content: bytes) -> pa.Array | None:
        """Return the payloads in lines of task files; None if they have to be parsed in another way.

        None says nothing about damage. A payload that is null, missing or bytes is null.
        """
        if self.refusals >= REFUSALS_MAX:
            return None
        found = None
        with suppress(pa.ArrowException):
            if self.schema is None:
                self.schema = self._learned(content[: content.find(b"\n", SAMPLE_BYTES) + 1 or len(content)])
            if self.schema is not None:
                carried = _payloads(_table(content, self.schema, "error"))
                found = self._column(carried, self.kind, self.arrow, NULL in content)
        if self._has_many_keys():
            self.refusals = REFUSALS_MAX  # no key is ever forgotten
        elif found is None:
            self.schema = None
            self.refusals += 1
        else:
            self.refusals = 0
        return found

    def _learned(self, sample: bytes) -> pa.Schema | None:
        """Return the schema of lines, with all keys that any map is known to have; None if a map has too many."""
        known = pa.schema([("payload", self._carrier(self.kind, self.arrow, ()))])
        found = _table(sample, known, "infer").schema
        self._learn(self.kind, found.field("payload").type, ())
        if self._has_many_keys():
            return None
        # Arrow has chosen types for what is new. Of a map's values, its own type says which fit.
        known = pa.schema([("payload", self._carrier(self.kind, self.arrow, ()))])
        return _table(sample, known, "infer").schema

    def _has_many_keys(self) -> bool:
        return any(len(keys) > KEYS_MAX for keys in self.keys.values())

    def _carrier(self, kind: types.DataType, arrow: pa.DataType, place: tuple[str, ...]) -> pa.DataType:
        if isinstance(kind, types.MapType):
            value = carrier_of(kind.valueType, arrow.item_type)
            return pa.struct([pa.field(key, value) for key in self.keys.get(place, ())])
        if isinstance(kind, types.StructType) and contains(kind, (types.MapType,)):
            fields = zip(kind.fields, arrow, strict=True)
            return pa.struct(
                [field.with_type(self._carrier(one.dataType, field.type, (*place, one.name))) for one, field in fields]
            )
        return carrier_of(kind, arrow)

    def _learn(self, kind: types.DataType, carried: pa.DataType, place: tuple[str, ...]) -> None:
        """Take in the keys of all maps."""
        if isinstance(kind, types.MapType):
            known = self.keys.setdefault(place, [])
            seen = set(known)
            known += [field.name for field in carried if field.name not in seen]
        elif isinstance(kind, types.StructType):
            for one in kind.fields:
                self._learn(one.dataType, carried.field(one.name).type, (*place, one.name))

    def _column(self, carried: pa.Array, kind: types.DataType, arrow: pa.DataType, has_null: bool) -> pa.Array | None:
        """Return a column of the type; None if a missing key cannot be told from one whose value is null."""
        if isinstance(kind, types.MapType):
            return _map(carried, arrow, has_null)
        if not contains(kind, (types.MapType,)):
            return carried.cast(arrow)
        assert isinstance(kind, types.StructType)
        columns: list[Any] = []
        for one, field in zip(kind.fields, arrow, strict=True):
            inner = carried.field(carried.type.get_field_index(one.name))
            column = self._column(inner, one.dataType, field.type, has_null)
            if column is None:
                return None
            columns.append(column)
        return pa.StructArray.from_arrays(columns, fields=list(arrow), mask=carried.is_null())


def _map(structs: pa.StructArray, arrow: pa.DataType, has_null: bool) -> pa.Array | None:
    """Return structs as maps, without the keys that each lacks; None if a null may be a value."""
    count, names = len(structs), [field.name for field in structs.type]
    columns = structs.flatten()
    is_there: np.ndarray = np.zeros((count, len(names)), bool)
    for number, column in enumerate(columns):
        is_there[:, number] = column.is_valid()
    is_null: np.ndarray = np.asarray(structs.is_null())
    if has_null and not is_there[~is_null].all():
        return None
    rows, places = np.nonzero(is_there)
    offsets: np.ndarray = np.zeros(count + 1, np.int32)
    np.cumsum(is_there.sum(axis=1), out=offsets[1:])
    keys = pa.array(names, arrow.key_type).take(pa.array(places))
    if names:
        items = pa.concat_arrays(columns).take(pa.array(places * count + rows)).cast(arrow.item_type)
    else:
        items = pa.array([], arrow.item_type)
    places_of = pa.array(offsets, mask=np.append(is_null, False) if is_null.any() else None)
    return pa.MapArray.from_arrays(places_of, keys, items, type=arrow)
