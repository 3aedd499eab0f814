"""What the gate has of tests whose parameters are tried each with each other."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest

from tests.levels import repeats

pytestmark = pytest.mark.once


def made(*given: dict[str, Any], **marks: int) -> list[Any]:
    """Return what stands for the tests of one function, by their parameters, with marks that have an argument."""
    found = {name: SimpleNamespace(args=(value,)) for name, value in marks.items()}
    return [SimpleNamespace(callspec=SimpleNamespace(params=params), get_closest_marker=found.get) for params in given]


def test_each_value_stays_in_the_gate_once_and_the_rest_repeats_them() -> None:
    values = {"verb": ["lease", "complete", "fail"], "kind": [0, "0"], "shared": [False, True]}
    tests = made(*(dict(zip(values, row, strict=True)) for row in itertools.product(*values.values())))
    left_out = repeats(tests)
    kept = [test.callspec.params for test in tests if test not in left_out]
    assert (len(tests), len(kept)) == (12, 3)
    for name, wanted in values.items():
        assert {repr(params[name]) for params in kept} == set(map(repr, wanted))


def test_a_table_is_left_whole() -> None:
    """Its lines share some values, and are not all combinations of them."""
    lines = [{"given": number, "code": number % 2, "says": number // 2} for number in range(6)]
    assert repeats(made(*lines)) == []
    assert repeats(made({"verb": "lease"}, {"verb": "fail"})) == []
    assert repeats(made({"verb": "lease", "kind": 1})) == []


def test_a_mark_says_one_of_how_many_are_in_the_gate() -> None:
    tests = made(*({"given": number} for number in range(7)), one_in=3)
    assert [test.callspec.params["given"] for test in tests if test not in repeats(tests)] == [0, 3, 6]
