"""Maps parsed by Arrow as structs of their keys, held against what each payload is converted to by itself."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql import types  # noqa: E402

from fsqueue.spark import arrow_json, columnar  # noqa: E402
from fsqueue.spark.columns import arrow_schema  # noqa: E402
from fsqueue.spark.parsing import Parser  # noqa: E402

EVENT = types.StructType().add("a", types.IntegerType()).add("at", types.TimestampType())
KIND = (
    types.StructType()
    .add("numbers", types.MapType(types.StringType(), types.LongType()))
    .add(
        "inner", types.StructType().add("days", types.MapType(types.StringType(), types.DateType())).add("x", "double")
    )
    .add("events", types.MapType(types.StringType(), types.ArrayType(EVENT)))
    .add("name", types.StringType())
)
ARROW = pa.struct(list(arrow_schema(KIND)))


def lines(rows: list[Any]) -> bytes:
    return b"".join(b'{"payload":' + orjson.dumps(row) + b"}\n" for row in rows)


def sorted_maps(value: Any) -> Any:
    """Return values with the entries of maps in one order."""
    if isinstance(value, dict):
        return {key: sorted_maps(one) for key, one in value.items()}
    if isinstance(value, list):
        found = [sorted_maps(one) for one in value]
        return sorted(found) if found and all(isinstance(one, tuple) for one in found) else found
    return (value[0], sorted_maps(value[1])) if isinstance(value, tuple) else value


def one_by_one(content: bytes) -> Any:
    return Parser(KIND, ARROW, "PERMISSIVE", "_corrupt_record")._each(content.split(b"\n")[:-1])


KEYS = st.sampled_from(["x", "y", 'say "z"', "ü\\", ""])
EVENTS = st.lists(
    st.fixed_dictionaries({"a": st.integers(-(2**31), 2**31 - 1), "at": st.just("2026-11-21T15:04:05.123456Z")}),
    max_size=2,
)
ROWS = st.fixed_dictionaries(
    {},
    optional={
        "numbers": st.none() | st.dictionaries(KEYS, st.none() | st.integers(-(2**63), 2**63 - 1), max_size=3),
        "inner": st.none()
        | st.fixed_dictionaries(
            {"days": st.none() | st.dictionaries(KEYS, st.sampled_from(["2026-11-21", "0001-01-01"]), max_size=3)}
        ),
        "events": st.dictionaries(KEYS, EVENTS, max_size=3),
        "name": st.text(max_size=3),
        "nobody asks": st.integers(0, 9) | st.lists(st.booleans(), max_size=1),
    },
)


@pytest.mark.oldest
@settings(deadline=None)
@given(st.lists(st.lists(st.none() | ROWS, min_size=1, max_size=4), min_size=1, max_size=3))
def test_any_payloads_of_the_type(batches: list[list[Any]]) -> None:
    maps = arrow_json.Maps(KIND, ARROW)
    for rows in batches:
        content = lines(rows)
        found = maps.parse(content)
        if found is not None:
            found.validate(full=True)
            assert found.type == ARROW
            assert sorted_maps(found.to_pylist()) == sorted_maps(one_by_one(content).column.to_pylist())


ROW = {"numbers": {"x": 1, "y": 2}, "inner": {"days": {"a": "2026-11-21"}, "x": 1}, "name": 'say "x"', "other": [1]}


@pytest.mark.oldest
def test_what_fits_is_not_converted_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = one_by_one(lines([ROW] * 3)).column
    monkeypatch.setattr(columnar, "parse", lambda *_: pytest.fail("the payloads were converted in Python"))
    parser = Parser(KIND, ARROW, "PERMISSIVE", "_corrupt_record")
    found = parser.parse([lines([ROW]), lines([ROW] * 2)], 3)
    assert found.unfit is None
    assert found.column.equals(expected)


MAP = types.MapType(types.StringType(), types.LongType())


def parsed(*batches: list[Any]) -> list[Any]:
    """Return what one parser makes of record batches, each None or a list."""
    maps = arrow_json.Maps(MAP, pa.map_(pa.string(), pa.int64()))
    assert arrow_json.has_maps(MAP, maps.arrow)
    return [None if found is None else found.to_pylist() for found in map(maps.parse, map(lines, batches))]


def test_a_key_that_is_missing_is_told_from_one_that_is_null() -> None:
    assert parsed([{"x": 1, "y": 2}, {"x": 1}, {}]) == [[[("x", 1), ("y", 2)], [("x", 1)], []]]
    assert parsed([{"x": 1, "y": None}, {"x": 1}]) == [None]
    assert parsed([None, {"x": 1}]) == [[None, [("x", 1)]]]
    assert parsed([{}, {}]) == [[[], []]]


def test_a_key_after_the_beginning_is_never_lost() -> None:
    many = [{"x": 1}] * arrow_json.SAMPLE_BYTES
    late = [*many, {"y": 2}]
    first, second, third = parsed(late, [{"x": 3, "y": 4}], late)
    assert first is None
    assert second == [[("x", 3), ("y", 4)]]
    assert third[-2:] == [[("x", 1)], [("y", 2)]]


def test_maps_of_many_keys_are_left_to_python_and_cost_little_memory() -> None:
    before = pa.total_allocated_bytes()
    pool = pa.default_memory_pool()
    maps = arrow_json.Maps(MAP, pa.map_(pa.string(), pa.int64()))
    content = lines([{f"key {number}": number} for number in range(20_000)])
    assert [maps.parse(content) for _ in range(arrow_json.REFUSALS_MAX)] == [None] * arrow_json.REFUSALS_MAX
    assert pool.max_memory() - before < 200 << 20


def test_what_never_fits_is_not_tried_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    odd = [{"x": "text"}]
    maps = arrow_json.Maps(MAP, pa.map_(pa.string(), pa.int64()))
    assert [maps.parse(lines(odd)) for _ in range(arrow_json.REFUSALS_MAX)] == [None] * arrow_json.REFUSALS_MAX
    monkeypatch.setattr(arrow_json, "_table", lambda *_: pytest.fail("it was tried again"))
    assert maps.parse(lines(odd)) is None


@pytest.mark.parametrize("odd", [[1], "text", 5, {"x": 1.5}, {"x": 2**63}, {"x": True}, {"x": {}}])
@pytest.mark.parametrize("at", [0, 1, 3])
def test_an_odd_payload_is_refused(odd: Any, at: int) -> None:
    rows: list[Any] = [{"x": 1}] * 3
    rows.insert(at, odd)
    assert parsed(rows) == [None]


@pytest.mark.parametrize(
    "line", [b'{"payload":{"x":1,"x":2}}', b'{"payload":{"x":1}', b'{"payload":{"x":1}} {}', b"[]"]
)
def test_damage_is_refused_or_counted(line: bytes) -> None:
    maps = arrow_json.Maps(MAP, pa.map_(pa.string(), pa.int64()))
    found = maps.parse(lines([{"x": 1}]) + line + b"\n" + lines([{"x": 1}]))
    assert found is None or len(found) != 3


def test_maps_in_lists_are_left_to_python() -> None:
    inside = types.StructType().add("several", types.ArrayType(MAP))
    assert not arrow_json.has_maps(inside, pa.struct(list(arrow_schema(inside))))
