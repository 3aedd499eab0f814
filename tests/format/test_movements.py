"""Records of a movement log, built and parsed."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue.format import movements
from fsqueue.format.movements import UpdatePart
from fsqueue.format.names import DecisionFileName, TaskFileName, UpdateId

indices = st.lists(st.integers(0, 40), min_size=1, max_size=30, unique=True)


@given(indices)
def test_ranges_hold_the_same_tasks_in_ascending_disjoint_pieces(tasks: list[int]) -> None:
    ranges = movements.to_ranges(tasks)
    assert movements.from_ranges(ranges) == sorted(tasks)
    assert all(start < end for start, end in ranges)
    assert all(ranges[place][1] < ranges[place + 1][0] for place in range(len(ranges) - 1))


def test_a_run_is_one_range() -> None:
    assert movements.to_ranges([7]) == [(7, 8)]
    assert movements.to_ranges([2, 0, 1]) == [(0, 3)]
    assert movements.to_ranges([5, 1, 2]) == [(1, 3), (5, 6)]


def test_records_of_the_hot_path_are_json_as_orjson_would_write_it() -> None:
    worker = {"host": 'h"\\', "pid": 7}
    lease = movements.lease(5, "ab", [0, 1, 4], 9, orjson.dumps(worker).decode(), False)
    assert orjson.loads(lease) == {
        "op": "lease",
        "at": 5,
        "lease": "ab",
        "tasks": [[0, 2], [4, 5]],
        "until": 9,
        "worker": worker,
    }
    complete = movements.complete(5, "ab", [0])
    assert orjson.loads(complete) == {"op": "complete", "at": 5, "lease": "ab", "tasks": [[0, 1]]}
    part = UpdatePart(UpdateId("0" * 16), DecisionFileName("1" * 32), 5000)
    for one in (part, part._replace(file=None)):
        assert orjson.loads(b"{" + one.text[1:].encode() + b"}") == one.fields
    assert movements.commit(5, part.update, 2) == movements.record("commit", 5, update=part.update, of=2)
    assert lease.endswith(b"}\n")
    assert complete.endswith(b"}\n")


def test_what_a_record_says_more() -> None:
    source, target = TaskFileName(0, "a" * 32, 2), TaskFileName(9, "a" * 32, 2)
    lease = orjson.loads(movements.lease(5, "ab", [0], 9, "{}", True, movements.moving(source, target)))
    assert (lease["several"], lease["from"], lease["name"]) == (True, str(source), str(target))
    assert orjson.loads(movements.complete(5, "ab", [0], b'{"r":[1]}'))["result"] == {"r": [1]}


def test_fields_that_are_none_are_left_out() -> None:
    assert (
        movements.record("fail", 3, lease="ab", error=None, available_at=0)
        == b'{"op":"fail","at":3,"lease":"ab","available_at":0}\n'
    )


@given(
    st.sampled_from(["lease", "finish", "später"]),
    st.integers(0, 10**13),
    st.dictionaries(st.text("abc", min_size=1), st.integers(0, 9)),
)
def test_a_record_is_parsed_as_it_was_built(op: str, at: int, fields: dict[str, Any]) -> None:
    line = movements.record(op, at, **fields)
    assert line.count(b"\n") == 1
    assert movements.parse(line[:-1]) == {"op": op, "at": at, **fields}


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"~",
        b"{",
        b"[]",
        b"7",
        b"{}",
        b'{"op":"x"}',
        b'{"at":1}',
        b'{"op":1,"at":1}',
        b'{"op":"x","at":-1}',
        b'{"op":"x","at":1.5}',
        b'{"op":"x","at":true}',
        b"\xff",
    ],
)
def test_anything_else_is_no_record(line: bytes) -> None:
    assert movements.parse(line) is None


@given(st.binary(max_size=80))
def test_no_bytes_make_the_parser_fail(line: bytes) -> None:
    found = movements.parse(line)
    assert found is None or (type(found["op"]) is str and type(found["at"]) is int)


@given(st.binary(max_size=80))
def test_a_voided_tail_is_never_a_record(torn: bytes) -> None:
    if b"\n" not in torn:
        assert movements.parse(torn + movements.VOID[:-1]) is None


@pytest.mark.parametrize(
    "found",
    [
        [], [{"op": "x", "at": 1}], [{"op": "x", "at": 1}] * 2, [{"op": "x", "at": -1}], [{"op": "x", "at": True}],
        [{"op": "x"}], [{"op": 1, "at": 1}], [{"op": "x", "at": 1}, {"at": 1}], [{"op": "x", "at": 1}, 7], ["op"],
        [{"op": "x", "at": 1.0}], [{"op": "x", "at": 1}, None],
    ],
)  # fmt: skip
def test_many_records_are_checked_like_each(found: list[Any]) -> None:
    assert movements.are_records(found) == all(map(movements.is_record, found))
