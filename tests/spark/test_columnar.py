"""Payloads converted field by field for many rows, held against what each is converted to by itself."""

from __future__ import annotations

import gc
from contextlib import suppress
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql import types  # noqa: E402

from fsqueue.format.uniform import paused_collector  # noqa: E402
from fsqueue.spark import columnar  # noqa: E402
from fsqueue.spark.columns import arrow_schema  # noqa: E402
from fsqueue.spark.parsing import Parser  # noqa: E402

TEXTS = types.MapType(types.StringType(), types.StringType())
EVENT = types.StructType().add("a", types.IntegerType()).add("at", types.TimestampType())
KIND = (
    types.StructType()
    .add("named", types.MapType(types.StringType(), types.ArrayType(EVENT)))
    .add("several", types.ArrayType(types.MapType(types.StringType(), types.DoubleType())))
    .add("inner", types.StructType().add("labels", TEXTS).add("day", types.DateType()))
    .add("is_set", types.BooleanType())
    .add("gone", TEXTS)
)
ARROW = pa.struct(list(arrow_schema(KIND)))

NAMES = st.text('ab"\\ü ', max_size=3)
EVENTS = st.fixed_dictionaries(
    {"a": st.none() | st.integers(-(2**31), 2**31 - 1), "at": st.none() | st.just("2026-11-21T15:04:05.123456Z")}
)
FLOATS = st.floats(allow_nan=False, allow_infinity=False) | st.integers(-9, 9)
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "named": st.none() | st.dictionaries(NAMES, st.none() | st.lists(st.none() | EVENTS, max_size=2), max_size=2),
        "several": st.none() | st.lists(st.none() | st.dictionaries(NAMES, st.none() | FLOATS, max_size=2), max_size=2),
        "inner": st.none()
        | st.fixed_dictionaries({"labels": st.none() | st.dictionaries(NAMES, st.none() | NAMES, max_size=2)}),
        "is_set": st.none() | st.booleans(),
        "nobody asks": st.integers(0, 9),
    },
)


def lines(rows: list[Any]) -> bytes:
    return b"".join(b'{"payload":' + orjson.dumps(row) + b"}\n" for row in rows)


def parser() -> Parser:
    return Parser(KIND, ARROW, "PERMISSIVE", "_corrupt_record")


def one_by_one(content: bytes) -> Any:
    return parser()._each(content.split(b"\n")[:-1])


@settings(deadline=None)
@given(st.lists(st.none() | ROWS, min_size=1, max_size=5))
def test_any_payloads_of_the_type(rows: list[Any]) -> None:
    content = lines(rows)
    found = columnar.parse(content, KIND, ARROW)
    found.validate(full=True)
    assert found.equals(one_by_one(content).column)


def test_bytes_are_null() -> None:
    found = columnar.parse(b'{"b64":"YWI="}\n{"payload":{"gone":{"a":"b"}}}\n', KIND, ARROW)
    assert found.to_pylist()[0] is None
    assert found.to_pylist()[1]["gone"] == [("a", "b")]


ODD: dict[str, Any] = {
    "a list for a map": {"gone": []},
    "a map for a list": {"several": {}},
    "a text for a payload": "text",
    "a number for a text": {"gone": {"a": 1}},  # which is taken as its JSON
    "a fraction for a whole number": {"named": {"a": [{"a": 1.0}]}},
    "a whole number that is too large": {"named": {"a": [{"a": 2**31}]}},
    "a truth for a number": {"several": [{"a": True}]},
    "a number for a truth": {"is_set": 1},
    "a day that there is not": {"inner": {"day": "2026-13-01"}},
    "a number beyond all": {"named": {"a": [{"a": 2**64 - 1}]}},
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("at", [0, 3, 6])
def test_one_odd_payload_leaves_each_to_itself(odd: str, at: int) -> None:
    rows: list[Any] = [{"gone": {"a": "b"}, "is_set": True}] * 6
    rows.insert(at, ODD[odd])
    content = lines(rows)
    with pytest.raises((columnar.Unsuited, pa.ArrowException, OverflowError)):
        columnar.parse(content, KIND, ARROW)
    found, expected = parser().parse([content], 7), one_by_one(content)
    assert found.unfit is not None
    assert found.unfit.tolist() == [number == at and odd != "a number for a text" for number in range(7)]
    assert found.column.equals(expected.column)


def test_a_damaged_line_is_never_part_of_another() -> None:
    whole = lines([{"gone": {"a": "b"}}])
    for cut in range(1, len(whole)):
        content = whole[:cut] + b"\n" + whole[cut:] if cut < len(whole) - 1 else whole[:-2] + b"\n" + whole
        with pytest.raises(columnar.Unsuited):
            columnar.parse(content, KIND, ARROW)
    with pytest.raises(columnar.Unsuited):
        columnar.parse(b"[]\n", KIND, ARROW)


def test_what_fits_is_not_looked_at_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Parser, "_each", lambda *_: pytest.fail("each payload was looked at by itself"))
    found = parser().parse([lines([{"gone": {"a": "b"}}]), lines([None, {}])], 3)
    assert found.unfit is None
    assert found.column.to_pylist()[0]["gone"] == [("a", "b")]


@pytest.mark.parametrize(
    "kind", [types.DecimalType(6, 2), types.BinaryType(), types.VariantType(), types.VarcharType(3)]
)
def test_types_that_need_more_than_a_cast_are_not_known(kind: types.DataType) -> None:
    assert not columnar.is_known(types.StructType().add("a", types.MapType(types.StringType(), kind)))


@pytest.mark.parametrize("is_on", [True, False])
def test_the_collector_is_as_it_was(is_on: bool) -> None:
    was_on = gc.isenabled()
    try:
        (gc.enable if is_on else gc.disable)()
        with suppress(ZeroDivisionError), paused_collector():
            assert not gc.isenabled()
            raise ZeroDivisionError
        assert gc.isenabled() is is_on
    finally:
        (gc.enable if was_on else gc.disable)()
