"""Beside each command that deletes, moves or writes, a member of the group renames, links and swaps at random.

A short run of what `scripts/adversary` does for as long as you like. A failure prints its seed:
FSQUEUE_TEST_SEED=SEED plays the same acts again.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.adversary.arena import COMMANDS, Arena, duel, interpreter
from tests.support import needs_root

SECONDS = float(os.environ.get("FSQUEUE_TEST_ADVERSARY_S", "4"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.thorough,
    needs_root,
]


@pytest.mark.parametrize("command", COMMANDS)
def test_nothing_outside_is_touched_and_nothing_hangs(tmp_path: Path, command: str) -> None:
    if interpreter() is None:
        pytest.skip("there is no interpreter of this version that every user may start")
    seed = os.environ.get("FSQUEUE_TEST_SEED") or str(random.randrange(10**9))
    broken = duel(Arena(tmp_path / "arena", seed), command, SECONDS)
    assert not broken, "\n".join(broken)
