"""Stories of all scenarios: nothing that was promised is broken in any of them.

The gate tells the same stories each time, some of each scenario, and those of the corpus. `scripts/test --all` tells a
hundred thousand with seeds of the day: FSQUEUE_SIMULATION_FIRST and FSQUEUE_SIMULATION_SCHEDULES tell the same again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from collections import Counter

import pytest

from tests.levels import how_many
from tests.simulation.corpus import CORPUS, tell_kept
from tests.simulation.runner import Told, replay_command, tell_share
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.wiring import undisturbed

FIXED = how_many(2, 5)
"""Stories of one scenario in each run, from the first seed on."""
SCHEDULES = int(os.environ.get("FSQUEUE_SIMULATION_SCHEDULES", "100000"))
EACH = -(-SCHEDULES // len(SCENARIOS))
"""Stories of one scenario, when there is time."""
FIRST = int(os.environ["FSQUEUE_SIMULATION_FIRST"])
"""Their first seed, which tests/conftest.py takes from the date."""
SLICE = 1000
"""Number of them that one test tells."""
MANY = 300
"""Number of stories of one scenario among which are some with each of its faults."""
KEPT = sorted(path.stem for path in CORPUS.glob("*.json"))


@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_the_same_stories_end_well_each_time(name: str) -> None:
    told = tell_share((name, 0, FIXED))
    assert_all_is_well(name, told, FIXED)


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("begin", range(0, EACH, SLICE))
@pytest.mark.parametrize("name", sorted(SCENARIOS))
def test_many_stories_end_well(name: str, begin: int) -> None:
    """With seeds that nobody has tried before."""
    count = min(SLICE, EACH - begin)
    told = tell_share((name, FIRST + begin, count))
    assert_all_is_well(name, told, count)


def assert_all_is_well(name: str, told: Told, count: int) -> None:
    found = [f"{replay_command(name, seed)}\n    " + "\n    ".join(wrong) for _, seed, wrong in told.wrong]
    assert found == [], "\n".join((f"FSQUEUE_SIMULATION_FIRST={FIRST}", *found))
    assert told.stories == count
    assert told.calls > 5 * count
    kinds = set(SCENARIOS[name].faults)
    if count >= MANY:
        assert told.faults.keys() == kinds
    else:
        assert told.faults.keys() <= kinds


# -- the corpus --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", KEPT)
def test_a_story_that_once_went_wrong_ends_well(name: str) -> None:
    with undisturbed():
        story = tell_kept(CORPUS / f"{name}.json")
    replay = f"python -m tests.simulation --kept tests/simulation/kept/{name}.json -v"
    assert story.wrong == [], f"{replay}\n    it showed: {story.kept.showed}"


@pytest.mark.thorough
def test_in_the_stories_of_the_corpus_what_went_wrong_still_finds_its_place() -> None:
    """Those in which it does not are listed among the warnings: find them anew, or write their places anew."""
    lost = Counter[str]()
    with undisturbed():
        for name in KEPT:
            story = tell_kept(CORPUS / f"{name}.json")
            for fault in story.not_reached:
                lost[f"{name}: {fault.kind} at {fault.place}"] += 1
    if lost:
        warnings.warn("faults of kept stories that were not reached: " + "; ".join(sorted(lost)), stacklevel=1)
    assert len({line.partition(":")[0] for line in lost}) <= len(KEPT) // 10, sorted(lost)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("name", ["storm", "update"])
def test_a_seed_replays_exactly_in_another_process(name: str) -> None:
    """Also where Python orders its sets otherwise."""
    command = [sys.executable, "-m", "tests.simulation", "7", "--scenario", name, "-v"]
    texts = [
        subprocess.run(command, env=os.environ | {"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1]
    assert len(texts[0].splitlines()) > 100
