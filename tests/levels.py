"""The two levels of the tests: how many random examples and rounds each tries (docs/testing.md).

FSQUEUE_TEST_LEVEL=all stands for `scripts/test --all`. Anything else is the gate, in which each run tries the same
examples: what is red there is red again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

IS_ALL = os.environ.get("FSQUEUE_TEST_LEVEL", "gate") == "all"


def how_many(gate: int, everything: int) -> int:
    """Return how many examples or rounds are tried on this level (or one of how many)."""
    return everything if IS_ALL else gate


def one_in(number: int, parameters: Iterable[Any]) -> list[Any]:
    """Return the parameters of a test. The gate tries each `number`-th, beginning with the first; --all tries all."""
    return [each if place % number == 0 else thorough(each) for place, each in enumerate(parameters)]


def crossed(first: Iterable[Any], second: Iterable[Any]) -> list[Any]:
    """Return all pairs of values of two kinds, as parameters. The gate tries each value, --all tries each pair."""
    one, other = list(first), list(second)
    few = min(len(one), len(other))
    return [
        pytest.param(a, b) if (i - j) % few == 0 else thorough(pytest.param(a, b))
        for i, a in enumerate(one)
        for j, b in enumerate(other)
    ]


def thorough(parameter: Any) -> Any:
    """Return a parameter (a value, or what `pytest.param` returns) that --all tries, and the gate does not."""
    if isinstance(parameter, type(pytest.param())):
        return pytest.param(*parameter.values, id=parameter.id, marks=[*parameter.marks, pytest.mark.thorough])
    return pytest.param(parameter, marks=pytest.mark.thorough)


def load_profile() -> None:
    """Set how Hypothesis works. How long an example takes says how busy the machine is, and nothing of the code."""
    common = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("gate", common, derandomize=True)
    settings.register_profile("all", common, print_blob=True)
    settings.load_profile("all" if IS_ALL else "gate")
