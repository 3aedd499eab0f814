"""The power is cut in the middle of all kinds of work, dozens of times: see `tests.lab.power.check`."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests import tally
from tests.lab.conftest import CUTS, GATE_POWER_CASES, POWER_CASES

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case in GATE_POWER_CASES else pytest.mark.thorough, id=" ".join(case))
        for case in dict.fromkeys([*GATE_POWER_CASES, *POWER_CASES])
    ],
)
def test_what_was_reported_survives_a_power_cut(
    power: Callable[[tuple[str, str, str, str]], dict[str, int]], case
) -> None:
    found = power(case)
    tally.note(f"power cuts under {case[-1]}", found)
    assert found["cuts"] == CUTS
    assert found["inserted"] + found.get("gone", 0) > 0
