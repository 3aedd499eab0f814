"""Priorities are compared as users expect, in memory and in names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue.format import names, priority
from fsqueue.format.priority import FIRST, LAST, rank_in_name, rank_of

texts = st.text(st.characters(codec="utf-8"), max_size=256)
numbers = st.integers(priority.INT_MIN, priority.INT_MAX)


@given(texts, texts)
def test_texts_go_by_their_bytes(one: str, other: str) -> None:
    assert (rank_of(one) < rank_of(other)) == (one.encode() < other.encode())


@given(numbers, numbers)
def test_numbers_go_by_their_size(one: int, other: int) -> None:
    assert (rank_of(one) < rank_of(other)) == (one < other)


def test_the_empty_text_is_the_most_urgent_and_none_the_least() -> None:
    assert FIRST < rank_of("") < rank_of("\0") < rank_of("\x7f") < rank_of("\U0010ffff") < LAST == rank_of(None)
    assert rank_of(9) < rank_of(10) < LAST
    assert rank_of("10") < rank_of("9")


@given(st.one_of(texts, numbers))
def test_a_name_is_as_urgent_as_its_task_or_more(value: str | int) -> None:
    rank = rank_of(value)
    text = priority.in_name(rank)
    assert text is not None
    assert len(text) <= priority.NAME_CHARS_MAX
    assert rank_in_name(text) <= rank
    if len(text) < priority.NAME_CHARS_MAX - 2:
        assert rank_in_name(text) == rank
    name = names.TaskFileName(1, names.Batch("0" * 32), 1024, text)
    assert names.parse_task_file(str(name)) == name


def test_a_long_name_fits_into_a_directory() -> None:
    name = names.open_batch_file(names.Batch("0" * 32), rank_of("ü" * 512)).sealed(1024)
    assert len(str(name)) <= names.NAME_BYTES_MAX
    assert rank_in_name(name.priority) == rank_of("ü" * 21)


@pytest.mark.parametrize("value", [True, 1.5, b"a", [], 1 << 63, -(1 << 63) - 1, "a" * 1025, "\ud800"])
def test_what_is_no_priority_is_named_and_counts_as_none(value: object) -> None:
    assert priority.fault(value)
    assert rank_of(value) == LAST


@pytest.mark.parametrize("value", ["", "a" * 1024, 0, 1 << 62, -(1 << 63)])
def test_what_is_one_has_no_fault(value: object) -> None:
    assert priority.fault(value) is None
