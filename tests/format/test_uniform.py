"""Payloads of one shape are decoded into columns, exactly as one by one, or not at all."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fsqueue.format import nesting, task_file
from fsqueue.format.uniform import NAMES_MAX, decode_payloads
from tests.levels import how_many

pytestmark = pytest.mark.once

scalars = (
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=6)
    | st.sampled_from([",", '"', "}}", '{"payload":{"a":', ',"b":', '","b":', "\\", "\n", -0.0, 1.0])
)  # fmt: skip
values = st.recursive(
    scalars,
    lambda inside: (
        st.lists(inside, max_size=3) | st.dictionaries(st.sampled_from(["a", "q", "payload"]), inside, max_size=3)
    ),
    max_leaves=5,
)


def one_by_one(lines: list[bytes]) -> list[Any]:
    """The payloads as the general way decodes them; None for a line that is damaged."""
    return [None if record is None else record.get("payload") for record in task_file.decode_tasks(lines)]


def exact(payloads: list[Any]) -> str:
    """JSON tells 1 from 1.0 and from true, and keeps the order of names."""
    return json.dumps(payloads)


@given(st.lists(st.tuples(values, values, scalars), min_size=1, max_size=6))
@settings(max_examples=how_many(24, 3000))
def test_one_shape_is_decoded_at_once(rows: list[tuple[Any, Any, Any]]) -> None:
    lines = [orjson.dumps({"payload": dict(zip(("a", "b", "ü\"'"), row, strict=True))}) for row in rows]
    assume(b"9115726943" not in b"".join(lines))  # Hypothesis draws numbers that it finds in the source
    found = decode_payloads(lines)
    assert found is not None
    assert found.names == ["a", "b", "ü\"'"]
    assert exact([*found]) == exact(one_by_one(lines))
    assert len(found) == len(rows)
    assert exact([found[0], *found[1:]]) == exact([*found])


pieces = st.sampled_from(
    [b'{"payload":{"a":', b"1", b",", b'"b":', b',"b":', b"}}", b'"', b"\\", b" ", b"[", b"]", b"{", b"}", b'"x"',
     b"2.5", b"9115726943000001", b"9115726943000003", b"\t", b"null", b'"a":', b',"key":"k"']
)  # fmt: skip
sound = st.sampled_from([b'{"payload":{"a":1,"b":2}}', b'{"payload":{"a":"x","b":[1,"y"]}}', b'{"payload":{"a":1}}'])
broken = st.lists(pieces, max_size=9).map(lambda parts: b'{"payload":{"a":' + b"".join(parts) + b"}}")


@given(st.lists(sound | broken, min_size=1, max_size=4))
@settings(max_examples=how_many(40, 20000))
def test_damaged_lines_among_sound_ones_are_left_to_the_general_way(lines: list[bytes]) -> None:
    found = decode_payloads(lines)
    if found is not None:
        assert exact([*found]) == exact(one_by_one(lines))


@pytest.mark.parametrize(
    "lines",
    [
        [],
        [b""],
        [b"7"],
        [b'{"payload":7}'],
        [b'{"payload":{}}'],
        [b'{"b64":"/w=="}'],
        [b'{"payload":{"a":1},"key":"k"}'],
        [b'{"payload":{"a":1,"b":2}}', b'{"payload":{"b":2,"a":1}}'],
        [b'{"payload":{"a":1,"b":2,"c":3}}', b'{"payload":{"a":1,"c":3,"b":2}}'],
        [b'{"payload":{"a":1,"b":2}}', b'{"payload":{"a":1}}'],
        [b'{"payload":{"a":1,"b":2}}', b'{"payload":{"a":1,"b":2,"b":3}}'],
        [b'{"payload":{"a":1,"b":2}}', b'{"payload":{"a":5,1,"b":3}}'],
        [b'{"payload":{"a":{"c":1,"b":2},"b":3}}'],
        [b'{"payload":{"a":1,"b":9115726943000001}}'],
        [b'{"payload":{"a":1,"b":2}}', b'{"payload":{"a":"x,"b":",1,7}}'],
        [b'{"payload":{"a":1,"b":2}}', b'{"payload":{"a":1,"b":2}}x'],
        [orjson.dumps({"payload": {f"n{number}": number for number in range(NAMES_MAX + 1)}})],
        [b'{"payload":{"a":%b%b}}' % (b"[" * nesting.NESTING_MAX, b"]" * nesting.NESTING_MAX)],
        [b'{"payload":{"a":%b1%b}}' % (b'{"x":' * nesting.NESTING_MAX, b"}" * nesting.NESTING_MAX)],
    ],
)
def test_other_lines_are_left_to_the_general_way(lines: list[bytes]) -> None:
    assert decode_payloads(lines) is None


def test_the_deepest_payload_is_taken() -> None:
    deep = nesting.NESTING_MAX - 1
    lines = [b'{"payload":{"a":%b%b}}' % (b"[" * deep, b"]" * deep)] * 2
    found = decode_payloads(lines)
    assert found is not None
    assert exact([*found]) == exact(one_by_one(lines))
