"""JSON texts of Arrow columns, held against what orjson makes of the same values one by one."""

from __future__ import annotations

import datetime
import math
from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
types = pytest.importorskip("pyspark.sql.types")

from fsqueue.errors import InvalidTask  # noqa: E402
from fsqueue.spark import texts  # noqa: E402

UTC = datetime.UTC
PLAIN = st.text(st.characters(codec="utf-8"), max_size=8)


def pairs() -> st.SearchStrategy[tuple[Any, Any, st.SearchStrategy[Any]]]:
    """(Spark's type, Arrow's type, values)."""
    leaves = st.sampled_from(
        [
            (types.StringType(), pa.string(), PLAIN),
            (types.StringType(), pa.large_string(), st.text("ab", max_size=3)),
            (types.BooleanType(), pa.bool_(), st.booleans()),
            (types.ByteType(), pa.int8(), st.integers(-128, 127)),
            (types.LongType(), pa.int64(), st.integers(-(2**63), 2**63 - 1)),
            (types.DoubleType(), pa.float64(), st.floats(allow_nan=False, allow_infinity=False)),
            (types.DoubleType(), pa.float64(), st.integers(-(2**60), 2**60).map(float)),
            (types.DateType(), pa.date32(), st.dates()),
            (types.TimestampType(), pa.timestamp("us", "Asia/Tokyo"), st.datetimes(timezones=st.just(UTC))),
            (types.TimestampNTZType(), pa.timestamp("us"), st.datetimes()),
        ]
    )

    def larger(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        lists = inner.map(lambda of: (types.ArrayType(of[0]), pa.list_(of[1]), st.lists(st.none() | of[2], max_size=3)))
        maps = inner.map(
            lambda of: (
                types.MapType(types.StringType(), of[0]),
                pa.map_(pa.string(), of[1]),
                st.dictionaries(PLAIN, st.none() | of[2], max_size=3).map(lambda found: list(found.items())),
            )
        )
        return lists | maps | st.lists(inner, min_size=1, max_size=3).map(struct)

    return st.recursive(leaves, larger, max_leaves=4)


def struct(fields: list[tuple[Any, Any, st.SearchStrategy[Any]]]) -> tuple[Any, Any, st.SearchStrategy[Any]]:
    names = [f'f"{number}' for number in range(len(fields))]
    kinds = [types.StructField(name, of[0]) for name, of in zip(names, fields, strict=True)]
    arrow = pa.struct([(name, of[1]) for name, of in zip(names, fields, strict=True)])
    values = st.fixed_dictionaries({name: st.none() | of[2] for name, of in zip(names, fields, strict=True)})
    return types.StructType(kinds), arrow, values


def plain(value: Any, kind: Any) -> Any:
    """A value as JSON has it."""
    if value is None:
        return None
    if isinstance(kind, types.ArrayType):
        return [plain(one, kind.elementType) for one in value]
    if isinstance(kind, types.MapType):
        return {key: plain(one, kind.valueType) for key, one in value}
    if isinstance(kind, types.StructType):
        return {field.name: plain(value[field.name], field.dataType) for field in kind.fields}
    if isinstance(kind, types.TimestampType):
        return value.strftime("%m-%dT%H:%M:%S.%fZ") if value.year < 1000 else value.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    if isinstance(kind, types.TimestampNTZType):
        return value.isoformat(timespec="microseconds")
    return value.isoformat() if isinstance(kind, types.DateType) else value


def made(values: list[Any], kind: Any, arrow: Any, before: int = 0) -> list[Any]:
    """The values that the texts stand for; `before`: rows of the array that the column leaves out."""
    column = pa.array([None] * before + values, arrow).slice(before)
    found = texts.joined(texts.of(column, kind, 0), len(column)).to_pylist()
    return [orjson.loads(text) for text in found]


@given(st.data(), pairs(), st.integers(0, 2))
def test_texts_are_what_the_values_are_as_json(data: st.DataObject, pair: Any, before: int) -> None:
    kind, arrow, strategy = pair
    values = data.draw(st.lists(st.none() | strategy, max_size=5))
    found = made(values, kind, arrow, before)
    for one, value in zip(found, values, strict=True):
        expected = plain(value, kind)
        assert same(one, expected), (one, expected)


def same(one: Any, other: Any) -> bool:
    """Equal, also in being whole or not, in the sign of zero, and in the order of fields."""
    if isinstance(one, dict) and isinstance(other, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, str) and isinstance(other, str) and len(one) > len(other) > 20:
        return one.endswith(other)  # years below 1000, which strftime does not fill up with zeros
    return type(one) is type(other) and repr(one) == repr(other)


@example([1e15, 1e16, 2.0**53, 2.0**53 - 1, -0.0, 0.0, 1e21, 123456789012345680.0, None])
@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False)))
def test_floats_stay_floats(values: list[float | None]) -> None:
    assert repr(made(values, types.DoubleType(), pa.float64())) == repr(values)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("inside", ["", "list", "struct"])
def test_numbers_that_json_does_not_have_are_refused_with_their_row(bad: float, inside: str) -> None:
    kind, arrow, rows = types.DoubleType(), pa.float64(), [0.5, None, bad]
    if inside == "list":
        kind, arrow, rows = types.ArrayType(kind), pa.list_(arrow), [[0.5, 1.5], [], [None, bad]]
    elif inside == "struct":
        kind = types.StructType([types.StructField("a", kind)])
        arrow, rows = pa.struct([("a", arrow)]), [{"a": 0.5}, None, {"a": bad}]
    with pytest.raises(InvalidTask, match="Task number 10003: the payload contains") as caught:
        texts.of(pa.array(rows, arrow), kind, 10_000)
    assert caught.value.index == 10_002


@pytest.mark.parametrize("days", [-719_163, 2_932_897])
def test_years_that_nobody_reads_are_refused(days: int) -> None:
    with pytest.raises(InvalidTask, match="years 1 to 9999"):
        texts.of(pa.array([0, days], pa.int32()).view(pa.date32()), types.DateType(), 0)


def test_an_object_without_fields_is_one() -> None:
    assert texts.joined(texts.of_object([], [], 0), 2).to_pylist() == ["{}", "{}"]
