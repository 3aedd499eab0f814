"""How much of what is random is played: some rounds with a fixed seed in the gate, many in `scripts/test --all`."""

from __future__ import annotations

import os

PLAYS_ALL = os.environ.get("FSQUEUE_TEST_LEVEL", "gate") == "all"


def rounds(gate: int, everything: int) -> int:
    """Return how many rounds of a storm this run plays. `FSQUEUE_TEST_LEVEL` is `gate`, the default, or `all`."""
    return everything if PLAYS_ALL else gate
