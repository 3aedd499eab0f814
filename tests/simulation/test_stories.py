"""A hundred thousand stories, of all scenarios: nothing that was promised is broken in any of them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest

from tests.simulation.runner import Told, pooled, replay_command
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.stories import tell
from tests.simulation.wiring import simulated_machine

pytestmark = pytest.mark.once

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
    assert set(SCENARIOS[name].faults) <= told.faults.keys()


def test_a_seed_replays_exactly_in_another_process() -> None:
    """Also where Python orders its sets otherwise."""
    command = [sys.executable, "-m", "tests.simulation", "7", "--scenario", "storm", "-v"]
    texts = [
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1]
    assert len(texts[0].splitlines()) > 100


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_each_scenario_does_what_it_is_for(name: str) -> None:
    with simulated_machine():
        stories = [tell(SCENARIOS[name], seed) for seed in range(20)]
    assert [story.wrong for story in stories if story.wrong] == []
    assert sum(len(story.history.calls) for story in stories) > 100
    assert bool(SCENARIOS[name].faults) == any(story.fault_kinds for story in stories)
