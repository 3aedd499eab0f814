"""The two levels of the tests: how many random examples and rounds each tries (docs/testing.md).

FSQUEUE_TEST_LEVEL=all stands for `scripts/test --all`. Anything else is the gate, in which each run tries the same
examples: what is red there is red again.
"""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

IS_ALL = os.environ.get("FSQUEUE_TEST_LEVEL", "gate") == "all"


def how_many(gate: int, everything: int) -> int:
    """Return how many examples or rounds are tried on this level (or one of how many)."""
    return everything if IS_ALL else gate


def load_profile() -> None:
    """Set how Hypothesis works. How long an example takes says how busy the machine is, and nothing of the code."""
    common = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.register_profile("gate", common, derandomize=True)
    settings.register_profile("all", common, print_blob=True)
    settings.load_profile("all" if IS_ALL else "gate")
