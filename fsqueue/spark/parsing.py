"""Payloads as a column of a type, as Spark's own JSON source parses them (docs/spark-read.md, "Payloads as fields").

Arrow parses a record batch at once, or `columnar` does where Arrow cannot. If one payload of it does not fit,
each is converted here by itself, field by field: a value that is not of its field's type makes that field null, and no
other.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import orjson
import pyarrow as pa
from pyspark.sql import types

from fsqueue.errors import InvalidTask
from fsqueue.spark import arrow_json, columnar, one_shape
from fsqueue.spark.options import FAIL
from fsqueue.spark.stored_columns import contains

PREFIX, SUFFIX = b'{"payload":', b"}\n"
"""What stands before and after a payload in a task file's line, where it stands alone."""
MOMENT = re.compile(
    r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})"
    r"(?:[T ]([0-9]{1,2}):([0-9]{1,2})(?::([0-9]{1,2})(?:\.([0-9]{0,9}))?)?"
    r"\s*(Z|UTC|GMT|[+-][0-9]{1,2}(?::?[0-9]{2})?)?)?)?)?"
)
DAY = re.compile(r"([0-9]{4})(?:-([0-9]{1,2})(?:-([0-9]{1,2})(?:[T ].*)?)?)?", re.DOTALL)
DAYS = re.compile("[+-]?[0-9]{1,9}")
"""Days since 1970 in a text, as Spark once wrote dates, and reads them still."""
LEAST = (1, 1, 1, 0, 0, 0)
"""The parts of a time that are not written."""
FLOATS = {
    "NaN": "nan", "+INF": "inf", "Infinity": "inf", "+Infinity": "inf", "-INF": "-inf",
    "-Infinity": "-inf",
}  # fmt: skip
"""The texts that stand for floats which JSON does not have."""
Convert = Callable[[Any], Any]


class Unfit(ValueError):
    """A value is not of its field's type. `kept`: what is left of it, None if nothing is."""

    def __init__(self, kept: Any = None) -> None:
        super().__init__()
        self.kept = kept


class Parsed(NamedTuple):
    """A column of payloads, and which of its rows are not as they should be (None: all are)."""

    column: pa.Array
    unfit: np.ndarray | None


class Parser:
    """Parses payloads into one type. `corrupt`: the field that takes the text of a payload that does not fit."""

    def __init__(self, kind: types.DataType, arrow: pa.DataType, mode: str, corrupt: str) -> None:
        self.mode, self.arrow = mode, arrow
        self.corrupt = corrupt if isinstance(kind, types.StructType) and corrupt in kind.names else None
        self.place = kind.names.index(corrupt) if self.corrupt is not None else -1
        fields = [field for field in kind.fields if field.name != self.corrupt] if _is_struct(kind) else []
        self.kind = types.StructType(fields) if _is_struct(kind) else kind
        self.inner = pa.struct([field for field in arrow if field.name != self.corrupt]) if _is_struct(kind) else arrow
        self.carrier = arrow_json.carrier_of(self.kind, self.inner)
        self.is_columnar = self.carrier is None and columnar.is_known(self.kind)
        carried = self.inner if self.is_columnar else self.carrier
        self.carried = carried if carried is not None and one_shape.is_known(carried) else None
        """What `one_shape` parses payloads as; None: it does not know the type."""
        self.maps = arrow_json.Maps(self.kind, self.inner) if arrow_json.has_maps(self.kind, self.inner) else None
        self.convert = _converter(self.kind)
        self.loads: Callable[[bytes], Any] = orjson.loads
        if contains(kind, (types.DecimalType,)):  # whose digits a float would not keep
            self.loads = partial(json.loads, parse_float=Decimal, parse_constant=_no_constant)

    def parse(self, lines: list[bytes], count: int) -> Parsed:
        """Parse `count` payloads in lines of task files. InvalidTask: one does not fit, and the mode is FAILFAST."""
        content = b"".join(lines)
        column = self._at_once(content, count)
        if column is None:
            return self._each(content.split(b"\n")[:-1])
        if self.corrupt is not None:
            column = self._with_corrupt(column, pa.nulls(count, pa.string()))
        return Parsed(column, None)

    def _at_once(self, content: bytes, count: int) -> pa.Array | None:
        try:
            found = one_shape.parse(content, self.carried, count) if self.carried is not None else None
            if found is not None:
                pass
            elif self.is_columnar:
                found = self.maps.parse(content) if self.maps is not None else None
                if found is None or len(found) != count:
                    found = columnar.parse(content, self.kind, self.inner)
            elif self.carrier is not None:
                found = arrow_json.parse(content, self.carrier)
            else:
                return None
            return found.cast(self.inner) if len(found) == count else None
        except (columnar.Unsuited, pa.ArrowException, OverflowError):
            return None  # some payload does not fit, or Arrow has no such cast: `_each` tells what each one is

    def _each(self, lines: list[bytes]) -> Parsed:
        values: list[Any] = []
        texts: list[str | None] = []
        for line in lines:
            value, is_unfit = self._one(line)
            text = line[len(PREFIX) : -1].decode(errors="replace") if is_unfit else None
            if text is not None and self.mode == FAIL:
                raise InvalidTask(
                    f"A payload is not {self.kind.simpleString()}: {text[:200]}. Nothing was changed. Read with the "
                    "mode PERMISSIVE to have what does not fit as null."
                )
            values.append(value)
            texts.append(text)
        column = pa.array(values, self.inner)
        if self.corrupt is not None:
            column = self._with_corrupt(column, pa.array(texts, pa.string()))
        return Parsed(column, np.array([text is not None for text in texts], bool))

    def _one(self, line: bytes) -> tuple[Any, bool]:
        """Return the value of one payload, and whether some field of the payload does not fit its type."""
        nothing: Any = {} if _is_struct(self.kind) else None
        try:
            record = self.loads(line)
        except ValueError:
            return nothing, True
        if not isinstance(record, dict) or record.get("payload") is None:
            return None, False  # null, bytes
        try:
            return self.convert(record["payload"]), False
        except Unfit as unfit:
            return nothing if unfit.kept is None else unfit.kept, True

    def _with_corrupt(self, column: pa.Array, texts: pa.Array) -> pa.Array:
        arrays = column.flatten()
        arrays.insert(self.place, texts)
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow), mask=column.is_null())


def _is_struct(kind: types.DataType) -> bool:
    return isinstance(kind, types.StructType)


# -- one value, as Spark's parser converts it ------------------------------------------------------------------


def _converter(kind: types.DataType) -> Convert:
    """Return what turns a JSON value that is not null into one of a type, or raises Unfit."""
    if isinstance(kind, types.StructType):
        return partial(_struct, {field.name: _converter(field.dataType) for field in kind.fields})
    if isinstance(kind, types.ArrayType):
        return partial(_array, _converter(kind.elementType))
    if isinstance(kind, types.MapType):
        return partial(_map, _converter(kind.valueType))
    if isinstance(kind, types.DecimalType):
        return partial(_decimal, kind.precision, kind.scale)
    if isinstance(kind, types.IntegralType):
        bits = {types.ByteType: 8, types.ShortType: 16, types.IntegerType: 32}.get(type(kind), 64)
        return partial(_whole, 1 << (bits - 1))
    return next(convert for of, convert in SCALARS.items() if isinstance(kind, of))


def _or_null(convert: Convert, value: Any) -> Any:
    """Return a converted value. JSON's null is null, but in a variant, which has one of its own."""
    return None if value is None and convert is not _variant else convert(value)


def _struct(fields: dict[str, Convert], value: Any) -> dict[str, Any]:
    """Return the fields that fit, as far as they do."""
    if not isinstance(value, dict):
        raise Unfit
    found: dict[str, Any] = {}
    is_unfit = False
    for name, convert in fields.items():
        if name in value:
            try:
                found[name] = _or_null(convert, value[name])
            except Unfit as unfit:
                found[name] = unfit.kept
                is_unfit = True
    if is_unfit:
        raise Unfit(found)
    return found


def _several(convert: Convert, values: list[Any]) -> tuple[list[Any], bool]:
    """Return values, and whether a part of one is missing. Unfit: one does not fit at all."""
    found, is_unfit = [], False
    for value in values:
        try:
            found.append(_or_null(convert, value))
        except Unfit as unfit:
            if unfit.kept is None:
                raise
            found.append(unfit.kept)
            is_unfit = True
    return found, is_unfit


def _array(convert: Convert, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise Unfit
    found, is_unfit = _several(convert, value)
    if is_unfit:
        raise Unfit(found)
    return found


def _map(convert: Convert, value: Any) -> list[tuple[str, Any]]:
    if not isinstance(value, dict):
        raise Unfit
    values, is_unfit = _several(convert, list(value.values()))
    found = list(zip(value, values, strict=True))
    if is_unfit:
        raise Unfit(found)
    return found


def _text(value: Any) -> str:
    """Return a text, or the JSON of anything else."""
    if isinstance(value, str):
        return value
    return str(value) if isinstance(value, Decimal) else orjson.dumps(value, default=float).decode()


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise Unfit
    return value


def _whole(limit: int, value: Any) -> int:
    if type(value) is not int or not -limit <= value < limit:
        raise Unfit
    return value


def _float(value: Any) -> float:
    if isinstance(value, str) and value in FLOATS:
        return float(FLOATS[value])
    if isinstance(value, bool) or not isinstance(value, (int, float, Decimal)):
        raise Unfit
    return float(value)


def _decimal(precision: int, scale: int, value: Any) -> Decimal:
    try:
        if isinstance(value, bool) or not isinstance(value, (int, Decimal, str)):
            raise Unfit
        found = Decimal(value)
        digits = found.quantize(Decimal(1).scaleb(-scale), ROUND_HALF_UP)
    except (InvalidOperation, ValueError):
        raise Unfit from None
    if len(digits.as_tuple().digits) > precision:
        raise Unfit
    return digits


def _binary(value: Any) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError):
        raise Unfit from None


def _date(value: Any) -> date:
    if not isinstance(value, str):
        raise Unfit
    found = DAY.fullmatch(value.strip())
    try:
        if found is None and DAYS.fullmatch(value):
            return date(1970, 1, 1) + timedelta(days=int(value))
        if found is not None:
            return date(*(int(part or 1) for part in found.groups()))
    except (OverflowError, ValueError):
        pass
    raise Unfit


def _moment(value: Any) -> tuple[datetime, str | None]:
    """Return a time as it is written, and its zone."""
    found = MOMENT.fullmatch(value.strip()) if isinstance(value, str) else None
    if found is None:
        raise Unfit
    *numbers, fraction, zone = found.groups()
    year, month, day, hour, minute, second = (int(part or least) for part, least in zip(numbers, LEAST, strict=True))
    micros = int((fraction or "")[:6].ljust(6, "0"))
    try:
        return datetime(year, month, day, hour, minute, second, micros), zone  # noqa: DTZ001
    except ValueError:
        raise Unfit from None


def _timestamp(value: Any) -> datetime:
    """Return a moment: a text, in UTC if it names no zone, or whole seconds."""
    try:
        if type(value) is int:
            return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=value)
        found, zone = _moment(value)
        if zone is None or zone[0] not in "+-":
            return found.replace(tzinfo=UTC)
        hours, minutes = int(zone[1:3].rstrip(":")), int(zone[3:].lstrip(":") or 0)
        offset = timedelta(hours=hours, minutes=minutes)
        return found.replace(tzinfo=timezone(-offset if zone[0] == "-" else offset)).astimezone(UTC)
    except (OverflowError, ValueError):
        raise Unfit from None


def _local(value: Any) -> datetime:
    found, zone = _moment(value)
    if zone is not None:
        raise Unfit
    return found


def _variant(value: Any) -> dict[str, bytes]:
    found = types.VariantVal.parseJson(json.dumps(value, default=float))
    return {"value": found.value, "metadata": found.metadata}


def _no_constant(text: str) -> Any:
    raise ValueError(text)


SCALARS: dict[type[types.DataType], Convert] = {
    types.StringType: _text,
    types.BooleanType: _boolean,
    types.FloatType: _float,
    types.DoubleType: _float,
    types.BinaryType: _binary,
    types.DateType: _date,
    types.TimestampType: _timestamp,
    types.TimestampNTZType: _local,
    types.VariantType: _variant,
}
"""How a value becomes one of a type; in `schemas.PARSED` are the same types."""
