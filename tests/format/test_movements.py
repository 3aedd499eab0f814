"""Records of a movement log, built and parsed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue.format import movements, state_checks
from fsqueue.format.decisions import LogName
from fsqueue.format.movements import UpdatePart
from fsqueue.format.names import DecisionFileName, UpdateId
from tests import record_lines

indices = st.lists(st.integers(0, 40), min_size=1, max_size=30, unique=True)


@given(indices)
def test_ranges_hold_the_same_tasks_in_ascending_disjoint_pieces(tasks: list[int]) -> None:
    ranges = movements.to_ranges(tasks)
    assert movements.from_ranges(ranges) == sorted(tasks)
    assert all(start < end for start, end in ranges)
    assert all(ranges[place][1] < ranges[place + 1][0] for place in range(len(ranges) - 1))


def test_a_run_is_one_range() -> None:
    assert movements.to_ranges([7]) == [[7, 8]]
    assert movements.to_ranges([2, 0, 1]) == [[0, 3]]
    assert movements.to_ranges([5, 1, 2]) == [[1, 3], [5, 6]]


PART = UpdatePart(UpdateId("0" * 16), DecisionFileName("1" * 32), 5000, LogName("d", "1-ab", "2" * 32))  # type: ignore[arg-type]


def test_a_line_has_the_fields_in_their_order() -> None:
    lease = movements.lease(5, "ab", [0, 1, 4], 9, {"host": 'h"', "pid": 7}, True)
    assert movements.encode(lease) == (
        b'{"op":"lease","at":5,"lease":"ab","tasks":[[0,2],[4,5]],"until":9,'
        b'"worker":{"host":"h\\"","pid":7},"several":true}\n'
    )
    made, line = movements.completion(5, "ab", [0], b'{"r": 1e2}', took=3, **PART.fields)
    assert line == (
        b'{"op":"complete","at":5,"lease":"ab","tasks":[[0,1]],"result":{"r": 1e2},"took":3,'
        b'"update":"0000000000000000","file":"11111111111111111111111111111111","patience":5000,"beside":["d","1-ab","22222222222222222222222222222222"]}\n'
    )
    assert made["result"] == {"r": 100}


@pytest.mark.parametrize("part", [None, PART._replace(file=None), PART._replace(beside=None), PART])
@pytest.mark.parametrize("available_at", [0, 7])
def test_a_record_with_json_of_its_own_reads_as_it_was_made(part: UpdatePart | None, available_at: int) -> None:
    line = b'{"payload":"a\xc3\xb6","priority":3,"key":"k"}\n'
    for made, written in (
        movements.insert(5, "ab", 1, line, available_at, 3, part),
        movements.completion(5, "ab", [0, 2], b"null", **({} if part is None else part.fields)),
        movements.replacement(5, None, 9, 4, b'["x", 1.0]', part or PART),
        movements.replacement(5, "ab", None, 4, b"7", part or PART),
    ):
        assert list(state_checks.misread(made, written)) == []
        assert list(state_checks.misread(made | {"at": 6}, written))


def test_fields_that_are_none_are_left_out() -> None:
    assert (
        record_lines.record("fail", 3, lease="ab", error=None, available_at=0)
        == b'{"op":"fail","at":3,"lease":"ab","available_at":0}\n'
    )


@given(
    st.sampled_from(["lease", "finish", "später"]),
    st.integers(0, 10**13),
    st.dictionaries(st.text("abc", min_size=1), st.integers(0, 9)),
)
def test_a_record_is_parsed_as_it_was_built(op: str, at: int, fields: dict[str, Any]) -> None:
    line = record_lines.record(op, at, **fields)
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
