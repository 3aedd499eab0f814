"""Payloads parsed together, held against Arrow's own parser, and where that knows no maps against orjson."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql import types  # noqa: E402

from fsqueue.spark import arrow_json, columnar, columns, one_shape  # noqa: E402
from fsqueue.spark.columns import arrow_schema  # noqa: E402
from fsqueue.spark.parsing import Parser  # noqa: E402

KIND = pa.struct([("n", pa.int64()), ("s", pa.string()), ("x", pa.float64()), ("gone", pa.int32()), ("t", pa.string())])
FIELDS = ("t", "n", "more", "m", "x", "s")
"""As they stand in a line: in another order than they are asked for in, and with two that nobody asks for."""


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(b'{"payload":' + orjson.dumps(row) + b"}\n" for row in rows)


def row(number: int) -> dict[str, Any]:
    values = (f'täxt "{number}"\\', number - 3, "x" * number, number, number / 7, "")
    return dict(zip(FIELDS, values, strict=True))


def test_what_is_uniform_is_parsed_as_arrow_parses_it() -> None:
    content = lines([row(number) for number in range(200)])
    found = one_shape.parse(content, KIND, 200)
    assert found is not None
    assert found.equals(arrow_json.parse(content, KIND))
    found.validate(full=True)


@given(
    st.lists(st.fixed_dictionaries({"n": st.integers(-(2**63), 2**63 - 1), "s": st.text('ab,:{}ü"\\\n\t/', max_size=4),
                                    "x": st.floats(-1e99, 1e99).filter(lambda x: abs(x) > 1e-99) | st.integers(0, 9)}),
             min_size=1, max_size=4),
    st.permutations(["n", "s", "x"]),
)  # fmt: skip
def test_any_values_of_a_shape(rows: list[dict[str, Any]], order: list[str]) -> None:
    content = lines([{name: one[name] for name in order} for one in rows])
    found = one_shape.parse(content, KIND, len(rows))
    assert found is not None
    assert found.equals(arrow_json.parse(content, KIND))


ODD = {
    "a code point": {"s": "a\x01"},
    "a code point where nobody asks": {"more": "\x01"},
    "a null": {"s": None},
    "a null number": {"n": None},
    "a number for a text": {"s": 7},
    "a text for a number": {"n": "7"},
    "a fraction for a whole number": {"n": 7.5},
    "a number too large": {"n": 2**63},
    "a list": {"s": ["a"]},
    "an object": {"s": {"a": "b"}},
    "a boolean": {"x": True},
    "a field more": {"z": 1},
    "another order": {},
}


@pytest.mark.parametrize("at", [0, 1, 9])
@pytest.mark.parametrize("odd", ODD)
def test_one_line_of_another_shape_leaves_all_to_arrow(odd: str, at: int) -> None:
    rows = [row(number) for number in range(10)]
    rows[at] |= ODD[odd]
    if odd == "another order":
        rows[at] = dict(reversed(rows[at].items()))
    assert one_shape.parse(lines(rows), KIND, 10) is None


def nested(number: int) -> dict[str, Any]:
    return {
        "inner": {"deep": {"x": number / 3}, "names": ["a", f"b {number}"]},
        "counts": {"x": number, 'y "z"': -number} if number < 0 else {"x": number, "y": -number},
        "numbers": [number, number + 1, number * 7],
        "pairs": [{"a": number, "b": f'say "{number}"\n'}, {"a": 2, "b": "C:\\dir\\"}],
        "by name": {"p": {"a": 1, "b": ""}, "q": {"a": number, "b": "q"}},
        "others": [[number, "any"], []],
        "none": [],
        "no keys": {},
    }


PAIR = types.StructType().add("b", "string").add("gone", "double").add("a", "integer")
NESTED = (
    types.StructType()
    .add("by name", types.MapType(types.StringType(), PAIR))
    .add("numbers", types.ArrayType(types.LongType()))
    .add("none", types.ArrayType(types.LongType()))
    .add("counts", types.MapType(types.StringType(), types.LongType()))
    .add("no keys", types.MapType(types.StringType(), types.LongType()))
    .add("pairs", types.ArrayType(PAIR))
    .add(
        "inner",
        types.StructType()
        .add("names", types.ArrayType(types.StringType()))
        .add("gone", types.ArrayType(types.LongType()))
        .add("deep", types.StructType().add("x", "double")),
    )
)
ARROW = pa.struct(list(arrow_schema(NESTED)))


def one_by_one(content: bytes) -> Any:
    return Parser(NESTED, ARROW, "PERMISSIVE", "_corrupt_record")._each(content.split(b"\n")[:-1])


def test_lists_maps_and_structs_of_one_shape_are_parsed_together() -> None:
    content = lines([nested(number) for number in range(200)])
    found = one_shape.parse(content, ARROW, 200)
    assert found is not None
    found.validate(full=True)
    assert found.equals(one_by_one(content).column)


def test_they_are_converted_by_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (arrow_json, columnar):
        monkeypatch.setattr(module, "parse", lambda *_: pytest.fail("the payloads were parsed in another way"))
    monkeypatch.setattr(arrow_json, "_table", lambda *_: pytest.fail("the payloads were parsed as structs"))
    found = Parser(NESTED, ARROW, "PERMISSIVE", "_corrupt_record").parse([lines([nested(1)]), lines([nested(2)])], 2)
    assert found.unfit is None
    assert found.column[1].as_py()["numbers"] == [2, 3, 14]


ODD_NESTED: dict[str, Any] = {
    "a longer list": {"numbers": [1, 2, 3, 4]},
    "a shorter list": {"numbers": [1, 2]},
    "elsewhere a longer list": {"others": [[1, "any", 2], []]},
    "another key": {"counts": {"x": 1, "z": 2}},
    "keys in another order": {"counts": {"y": 1, "x": 2}},
    "a key more": {"no keys": {"x": 1}},
    "a list for an object": {"counts": [1, 2]},
    "a text for a number": {"numbers": [1, "2", 3]},
    "a fraction": {"numbers": [1, 2.5, 3]},
    "a comma in a text": {"inner": {"deep": {"x": 1}, "names": ["a,", "b"]}},
    "a null": {"numbers": None},
}


@pytest.mark.parametrize("at", [0, 1, 9])
@pytest.mark.parametrize("odd", ODD_NESTED)
def test_one_payload_of_another_shape_leaves_all_to_others(odd: str, at: int) -> None:
    rows = [nested(number) for number in range(10)]
    rows[at] |= ODD_NESTED[odd]
    assert one_shape.parse(lines(rows), ARROW, 10) is None


def test_shapes_that_are_too_large_are_left_to_others() -> None:
    kind = pa.struct([("n", pa.list_(pa.int64()))])
    assert one_shape.parse(lines([{"n": [1] * one_shape.SLOTS_MAX}]), kind, 1) is not None
    assert one_shape.parse(lines([{"n": [1] * (one_shape.SLOTS_MAX + 2)}]), kind, 1) is None
    assert one_shape.parse(lines([{"other": [{}] * 1_000_000, "n": [1]}]), kind, 1) is None
    deep = b'{"payload":{"n":[1],"deep":' + b"[" * 900 + b"1" + b"]" * 900 + b"}}\n"
    assert one_shape.parse(deep, kind, 1) is None


@pytest.mark.parametrize("text", [b"\\", b"\\q", b"\\u0041", b"\\ud83d", b'a\\"\\', b"a\\\\\\"])
def test_escapes_that_are_damaged_are_not_taken_for_any(text: bytes) -> None:
    sound = lines([row(1), row(1)])
    for field in (b"s", b"more"):
        place = sound.rindex(b'"%s":"' % field) + len(field) + 4
        end = sound.index(b'"', place)
        assert one_shape.parse(sound[:place] + text + sound[end:], KIND, 2) is None


@pytest.mark.parametrize(
    "number",
    [
        "01",
        "-01",
        "00.5",
        "-.5",
        "+1",
        "0x1",
        "1e5 ",
        "1.",
        ".5",
        "1e",
        "1e999",
        "0e999",
        "nan",
        "inf",
        "-",
        "",
        "1 ",
        "1_0",
        "- 1",
    ],
)
@pytest.mark.parametrize("field", ["n", "m", "x"])
def test_numbers_that_are_no_json_are_not_taken_for_any(field: str, number: str) -> None:
    sound = lines([row(1), row(1)])
    place = sound.rindex(b'"%s":' % field.encode()) + 4
    end = sound.index(b",", place)
    assert one_shape.parse(sound, KIND, 2) is not None
    assert one_shape.parse(sound[:place] + number.encode() + sound[end:], KIND, 2) is None


@pytest.mark.parametrize("is_nested", [False, True])
def test_damage_is_never_parsed_into_anything_else(is_nested: bool) -> None:
    """Bytes changed, lost or doubled: no result, or that of another parser."""
    chance = random.Random(7)
    sound = lines([(nested if is_nested else row)(number) for number in range(4)])
    kept = 0
    for _ in range(4000):
        damaged = bytearray(sound)
        for _ in range(chance.randint(1, 2)):
            at = chance.randrange(len(damaged))
            what = chance.choice([b"", bytes(damaged[at : at + 1]) * 2, bytes([chance.choice(b'"{}[]:,\n 0-e.an\\')])])
            damaged[at : at + 1] = what
        content = bytes(damaged)
        found = one_shape.parse(content, ARROW if is_nested else KIND, 4) if columns.is_text(content) else None
        if found is not None:
            kept += 1
            expected = columnar.parse(content, NESTED, ARROW) if is_nested else arrow_json.parse(content, KIND)
            assert found.equals(expected), content
    assert 0 < kept < 4000
