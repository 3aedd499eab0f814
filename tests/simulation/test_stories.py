"""A hundred thousand stories, of all scenarios: nothing that was promised is broken in any of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.simulation.runner import Told, pooled, replay_command
from tests.simulation.scenarios import SCENARIOS

SCHEDULES = int(os.environ.get("FSQUEUE_SIMULATION_SCHEDULES", "100000"))
EACH = -(-SCHEDULES // len(SCENARIOS))
"""Stories of one scenario."""


@pytest.fixture(scope="module")
def told_of(request: pytest.FixtureRequest) -> Iterator[Callable[[str], Told]]:
    """What became of the stories of a scenario: of all that the selected tests ask for, told side by side."""
    wanted = [item.callspec.params["name"] for item in request.session.items
              if item.path == request.path and item.originalname == test_many_stories_end_well.__name__]  # fmt: skip
    with pooled(wanted, first=0, each=EACH, jobs=os.cpu_count() or 1) as told_of:
        yield told_of


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_many_stories_end_well(told_of: Callable[[str], Told], name: str) -> None:
    told = told_of(name)
    found = [f"{replay_command(name, seed)}\n    {wrong[0]}" for _, seed, wrong in told.wrong]
    assert found == [], "\n".join(found)
    assert told.stories == EACH
    assert told.faults.keys() == set(SCENARIOS[name].faults)
    assert told.calls > 5 * EACH


def test_a_seed_replays_exactly_in_another_process() -> None:
    """Also where Python orders its sets otherwise."""
    command = [sys.executable, "-m", "tests.simulation", "7", "--scenario", "storm", "-v"]
    texts = [
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1]
    assert len(texts[0].splitlines()) > 100
