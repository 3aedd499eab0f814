"""Payloads parsed together, held against Arrow's own parser."""

from __future__ import annotations

import random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from fsqueue.spark import byarrow, columns, uniform  # noqa: E402

KIND = pa.struct([("n", pa.int64()), ("s", pa.string()), ("x", pa.float64()), ("gone", pa.int32()), ("t", pa.string())])
FIELDS = ("t", "n", "more", "m", "x", "s")
"""As they stand in a line: in another order than they are asked for in, and with two that nobody asks for."""


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(b'{"payload":' + orjson.dumps(row) + b"}\n" for row in rows)


def row(number: int) -> dict[str, Any]:
    values = (f"täxt {number}", number - 3, "x" * number, number, number / 7, "")
    return dict(zip(FIELDS, values, strict=True))


def test_what_is_uniform_is_parsed_as_arrow_parses_it() -> None:
    content = lines([row(number) for number in range(200)])
    found = uniform.parse(content, KIND, 200)
    assert found is not None
    assert found.equals(byarrow.parse(content, KIND))
    found.validate(full=True)


@given(
    st.lists(st.fixed_dictionaries({"n": st.integers(-(2**63), 2**63 - 1), "s": st.text("ab,:{}", max_size=4),
                                    "x": st.floats(-1e99, 1e99).filter(lambda x: abs(x) > 1e-99) | st.integers(0, 9)}),
             min_size=1, max_size=4),
    st.permutations(["n", "s", "x"]),
)  # fmt: skip
def test_any_values_of_a_shape(rows: list[dict[str, Any]], order: list[str]) -> None:
    content = lines([{name: one[name] for name in order} for one in rows])
    found = uniform.parse(content, KIND, len(rows))
    assert found is not None
    assert found.equals(byarrow.parse(content, KIND))


ODD = {
    "an escape": {"s": 'a"b'},
    "a backslash": {"s": "a\\"},
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
    assert uniform.parse(lines(rows), KIND, 10) is None


@pytest.mark.parametrize(
    "number", ["01", "+1", "0x1", "1.", ".5", "1e", "1e999", "0e999", "nan", "inf", "-", "", "1 ", "1_0", "- 1"]
)
@pytest.mark.parametrize("field", ["n", "m", "x"])
def test_numbers_that_are_no_json_are_not_taken_for_any(field: str, number: str) -> None:
    sound = lines([row(1), row(1)])
    place = sound.rindex(b'"%s":' % field.encode()) + 4
    end = sound.index(b",", place)
    assert uniform.parse(sound, KIND, 2) is not None
    assert uniform.parse(sound[:place] + number.encode() + sound[end:], KIND, 2) is None


def test_damage_is_never_parsed_into_anything_else() -> None:
    """Bytes changed, lost or doubled: no result, or that of Arrow's parser."""
    chance = random.Random(7)
    sound = lines([row(number) for number in range(4)])
    kept = 0
    for _ in range(4000):
        damaged = bytearray(sound)
        for _ in range(chance.randint(1, 2)):
            at = chance.randrange(len(damaged))
            what = chance.choice([b"", bytes(damaged[at : at + 1]) * 2, bytes([chance.choice(b'"{}:,\n 0-e.a\\')])])
            damaged[at : at + 1] = what
        content = bytes(damaged)
        found = uniform.parse(content, KIND, 4) if columns.is_text(content) else None
        if found is not None:
            kept += 1
            assert found.equals(byarrow.parse(content, KIND)), content
    assert 0 < kept < 4000
