"""Task files: lines encoded and decoded."""

from __future__ import annotations

import dataclasses
import datetime
import math
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue.errors import InvalidTask, TaskTooLarge
from fsqueue.format import task_file

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(json_values | st.binary())
def test_a_payload_comes_back_as_it_was(payload: Any) -> None:
    line = task_file.encode_task(payload, 10**6)
    assert line.count(b"\n") == 1
    assert line.endswith(b"\n")
    assert task_file.decode_task(line[:-1])["payload"] == payload
    assert orjson.loads(line)


def test_lines_as_in_the_format() -> None:
    assert task_file.encode_task({"a": [1, None]}, 100) == b'{"payload":{"a":[1,null]}}\n'
    assert task_file.encode_task(b"\x00\xff", 100) == b'{"b64":"AP8="}\n'
    assert task_file.encode_task(bytearray(b"\x00\xff"), 100) == b'{"b64":"AP8="}\n'
    assert task_file.encode_task(memoryview(b"\x00\xff"), 100) == b'{"b64":"AP8="}\n'


@dataclasses.dataclass
class Point:
    x: int


class Odd:
    pass


@pytest.mark.parametrize(
    "payload",
    [
        math.nan,
        [1, {"a": math.inf}],
        {"a": (1, -math.inf)},
        {1: 2},
        {1, 2},
        Odd(),
        Point(1),
        datetime.datetime(2026, 11, 21, tzinfo=datetime.UTC),
        2**64,
        "\ud800",
        [b"bytes within"],
    ],
)
def test_what_json_does_not_have_is_an_invalid_task(payload: Any) -> None:
    with pytest.raises(InvalidTask, match="Task number 8") as caught:
        task_file.encode_task(payload, 10**6, 7)
    assert caught.value.index == 7


def test_a_cycle_is_an_invalid_task() -> None:
    cycle: list[Any] = []
    cycle.append(cycle)
    with pytest.raises(InvalidTask, match="The task: the payload nests deeper than 200 levels"):
        task_file.encode_task(cycle, 10**6)


def test_null_in_a_payload_is_no_nan() -> None:
    assert task_file.decode_task(task_file.encode_task([None, "null", 1.5], 100)[:-1])["payload"] == [None, "null", 1.5]


def test_the_size_limit_counts_the_whole_line() -> None:
    line = task_file.encode_task("x" * 50, 1000)
    assert task_file.encode_task("x" * 50, len(line)) == line
    with pytest.raises(
        TaskTooLarge, match=rf"Task number 3 takes {len(line)} bytes; this queue accepts up to {len(line) - 1}"
    ) as caught:
        task_file.encode_task("x" * 50, len(line) - 1, 2)
    assert caught.value.index == 2


def test_a_torn_last_line_is_no_task() -> None:
    assert task_file.split_lines(b"one\ntwo\nthr") == [b"one", b"two"]
    assert task_file.split_lines(b"") == []


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"{",
        b"7",
        b"[]",
        b"{}",
        b'{"b64":7}',
        b'{"b64":"?"}',
        b'{"b64":"AP8"}',
        b"\xff\xff",
        b'{"payloads":1}',
        b"\x00" * 20,
    ],
)
def test_a_damaged_line_is_a_value_error(line: bytes) -> None:
    with pytest.raises(ValueError):
        task_file.decode_task(line)


@given(st.binary(max_size=60))
def test_any_line_is_a_task_or_a_value_error(line: bytes) -> None:
    try:
        assert "payload" in task_file.decode_task(line)
    except ValueError:
        pass


def test_key_and_priority_have_room_in_a_line() -> None:
    line = b'{"payload":1,"key":"k","priority":"p"}'
    assert task_file.decode_task(line) == {"payload": 1, "key": "k", "priority": "p"}


@given(json_values | st.binary())
def test_payload_fields_are_what_letters_and_records_carry(payload: Any) -> None:
    assert task_file.decode_task(orjson.dumps(task_file.payload_fields(payload)))["payload"] == payload
