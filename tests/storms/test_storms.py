"""A short round of each storm, with a fixed seed. `scripts/storm` plays many, and so does scripts/soak.

FSQUEUE_TEST_SEED=SEED plays the round of another seed, FSQUEUE_TEST_FAULTS how many faults come in it.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests import tally
from tests.storms import hops, updates
from tests.storms.rounds import Storm, play_apart

SEED = int(os.environ.get("FSQUEUE_TEST_SEED", "67"))
FAULTS = int(os.environ.get("FSQUEUE_TEST_FAULTS", "10"))

pytestmark = [pytest.mark.slow, pytest.mark.thorough, pytest.mark.once]


@pytest.mark.parametrize("storm", [updates.STORM, hops.STORM], ids=lambda storm: storm.name)
def test_all_that_is_told_of_a_storm_is_true(tmp_path: Path, storm: Storm) -> None:
    found = play_apart(storm, tmp_path, SEED, FAULTS)
    print(found)
    tally.note(f"storm of {storm.name}", found)
    assert found["interrupted"] > 5
    assert found["forked"] > 3
    assert found["completed"] > 20
