"""JSON text that users hand in is kept as it is, or refused."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue import InvalidTask
from fsqueue.format import user_json
from fsqueue.format.results import decode_result
from fsqueue.format.user_json import NotExact

pytestmark = pytest.mark.once

CHANGED = {
    "18446744073709551616": "integer beyond 64 bits, 18446744073709551616: write it as a string",
    "-9223372036854775809": "integer beyond 64 bits",
    '{"a":["x",{"seed":123456789012345678901}]}': "integer beyond 64 bits",
    "1" * 5000: "integer beyond 64 bits",
    "1e999": "beyond the range of floats",
    '{"a":-1E400}': "beyond the range of floats",
    '{"a":1,"a":2}': "has a name twice in an object, 'a'",
    '{"a":1,"a":1}': "has a name twice in an object, 'a'",
    '[{"b":{"a" : 1,"c":":"},"d":{"e":1, "e" :2}}]': "has a name twice in an object, 'e'",
    '{"a":":","a":1}': "has a name twice in an object, 'a'",
    '{"a":1,"\\u0061":2}': "has a name twice in an object, 'a'",
    '{"x":"\\":","a":1,"a":"\\u003a\\u003a"}': "has a name twice in an object, 'a'",
    "[" * 2000 + "]" * 2000: "nests too deep",
}


@pytest.mark.parametrize("text", CHANGED, ids=lambda text: text[:30])
def test_what_would_come_back_as_something_else_is_refused(text: str) -> None:
    for given_as in (text, text.encode()):
        with pytest.raises(NotExact) as caught:
            user_json.decode(given_as)
        assert CHANGED[text] in str(caught.value)
        assert caught.value.is_json


@pytest.mark.parametrize("text", CHANGED, ids=lambda text: text[:30])
def test_of_fields_that_are_checked_one_by_one_long_integers_alone_are_let_through(text: str) -> None:
    if "integer beyond" in CHANGED[text] and len(text) < 5000:
        assert str(user_json.decode_fields(text)).count("e+") == 1, "the check of its field sees a float"
    else:
        with pytest.raises(NotExact):
            user_json.decode_fields(text)


@pytest.mark.parametrize("text", ["", "{", "NaN", "[1, Infinity]", "{'a':1}", '{"a":1,}', "\ud800"])
def test_what_is_no_json_says_where_it_ceases_to_be(text: str) -> None:
    with pytest.raises(NotExact, match="is not JSON") as caught:
        user_json.decode(text)
    assert not caught.value.is_json
    assert 0 <= caught.value.position <= len(text)


@pytest.mark.parametrize(
    "value",
    [
        18446744073709551615,
        -9223372036854775808,
        "18446744073709551616",
        {"text": '"a":1,"a":2', "url": "gs://a:b", "a": {"a": {"a": ":"}}},
        [{"a": 1}, {"a": 2}, ":", {}],
        {":": ":", "\\": '":'},
        1.8446744073709552e19,
        0.1,
        None,
    ],
)
def test_what_can_be_kept_is_kept(value: Any) -> None:
    for text in (json.dumps(value), orjson.dumps(value), json.dumps(value, indent=2, separators=(" ,", " : "))):
        assert user_json.decode(text) == value


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats(allow_nan=False, allow_infinity=False) | st.text('a:"\\ é'),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('a:"\\é', max_size=3), inner, max_size=4),
    max_leaves=12,
)  # fmt: skip


@given(json_values, st.booleans(), st.sampled_from([None, 1]))
def test_any_value_comes_back(value: Any, ascii_only: bool, indent: int | None) -> None:
    assert user_json.decode(json.dumps(value, ensure_ascii=ascii_only, indent=indent)) == value


@given(st.lists(st.tuples(st.sampled_from(['"a"', '"\\u0061"', '"b"', '":"', '"\\":"']), json_values), min_size=1))
def test_any_name_that_is_there_twice_is_found(members: list[tuple[str, Any]]) -> None:
    text = "{" + ",".join(f"{name}:{json.dumps(value)}" for name, value in members) + "}"
    names = [json.loads(name) for name, _ in members]
    if len(set(names)) == len(names):
        assert user_json.decode(text) == dict(zip(names, (value for _, value in members), strict=True))
    else:
        with pytest.raises(NotExact, match="twice"):
            user_json.decode(text)


@pytest.mark.parametrize("text", [text for text in CHANGED if len(text) < 100])
def test_a_result_is_not_kept_changed(text: str) -> None:
    with pytest.raises(InvalidTask, match=r"The result (has|nests)"):
        decode_result(text.encode())


def test_a_result_that_is_no_json_is_text() -> None:
    assert decode_result(b"18446744073709551616 bytes\n") == "18446744073709551616 bytes"


def test_the_search_for_a_name_that_is_twice_takes_no_longer_than_reading() -> None:
    """400,000 equal names: comparing each with each would take hours."""
    text = b"[" + b"{" + b'"aa":1,' * 400_000 + b'"b":1}' + b"]"
    with pytest.raises(user_json.NotExact, match="has a name twice in an object, 'aa'"):
        user_json.decode(text)
