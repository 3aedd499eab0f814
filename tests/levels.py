"""The two levels of the tests: how many random examples and rounds each tries (docs/testing.md).

FSQUEUE_TEST_LEVEL=all stands for `scripts/test --all`. Anything else is the gate, in which each run tries the same
examples: what is red there is red again.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from _pytest.mark import ParameterSet
from hypothesis import HealthCheck, settings

IS_ALL = os.environ.get("FSQUEUE_TEST_LEVEL", "gate") == "all"


def how_many(gate: int, everything: int) -> int:
    """Return how many examples or rounds are tried on this level (or one of how many)."""
    return everything if IS_ALL else gate


def thorough(*values: Any) -> Any:
    """Make a case of `parametrize` that is left to --all: of values, or of what `pytest.param` has made of them."""
    match values:
        case [ParameterSet() as made]:
            return pytest.param(*made.values, id=made.id, marks=[*made.marks, pytest.mark.thorough])
    return pytest.param(*values, marks=pytest.mark.thorough)


def each_once(ones: tuple[str, Sequence[Any]], others: tuple[str, Sequence[Any]]) -> pytest.MarkDecorator:
    """Parametrize by all pairs of two lists, each given as `names, values`.

    The gate has each value of either list in one pair at least. The other pairs are left to scripts/test --all.
    """
    (names, first), (more, second) = ones, others
    in_gate = {(number % len(first), number % len(second)) for number in range(max(len(first), len(second)))}
    return pytest.mark.parametrize(
        f"{names}, {more}",
        [
            (pytest.param if (i, j) in in_gate else thorough)(*(one if "," in names else (one,)), other)
            for i, one in enumerate(first)
            for j, other in enumerate(second)
        ],
    )


def repeats(tests: Sequence[pytest.Function]) -> list[pytest.Function]:
    """Return those of one function's tests that the gate leaves out.

    Of a function with the mark `one_in(number)` the gate has each `number`-th, beginning with the first. Else what is
    left out shows no value of a parameter for the first time: the gate has each value of each parameter. A function is
    left whole if that would leave more than half of its tests: their parameters then stand in a table, and are not
    tried each with each other.
    """
    if mark := tests[0].get_closest_marker("one_in"):
        return [test for place, test in enumerate(tests) if place % mark.args[0]]
    shown = [{(name, repr(value)) for name, value in test.callspec.params.items()} for test in tests]
    wanted = set[tuple[str, str]]().union(*shown)
    kept = set[int]()
    while wanted:
        most = max(range(len(tests)), key=lambda place: len(shown[place] & wanted))
        kept.add(most)
        wanted -= shown[most]
    return [test for place, test in enumerate(tests) if place not in kept] if 2 * len(kept) <= len(tests) else []


def load_profile() -> None:
    """Set how Hypothesis works. How long an example takes says how busy the machine is, and nothing of the code."""
    common = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("gate", common, derandomize=True, max_examples=20)
    settings.register_profile("all", common, print_blob=True)
    settings.load_profile("all" if IS_ALL else "gate")
