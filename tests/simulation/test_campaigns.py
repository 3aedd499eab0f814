"""Jobs replace themselves within the bound that was asked for, whatever becomes of them at whichever call.

The gate tells some of the calls for each fault; `scripts/test --all` tells all.
"""

from __future__ import annotations

import pytest

from tests.levels import how_many
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.stories import tell
from tests.simulation.struck_campaigns import CASES, wrong
from tests.simulation.wiring import undisturbed

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(("slots", "whose", "fate", "act"), CASES)
def test_every_fault_at_calls_of_a_campaign(slots: int, whose: str, fate: str, act: str) -> None:
    count, jobs, found = wrong(slots, whose, fate, act, how_many(40, 1))
    assert not found, "\n".join(found[:5])
    assert count >= 1
    assert jobs >= 1 or whose == "user"


def test_stories_of_campaigns_have_what_they_are_about() -> None:
    """Jobs that were requeued, cancelled, at their limit, taken late; campaigns of several jobs; and their ends."""
    states, slots, reasons, late, requeued = set[str](), set[int](), "", 0, 0
    with undisturbed():
        for name in ("campaign", "campaign-commands", "campaign-stop", "campaign-too-long"):
            for seed in range(12):
                story = tell(SCENARIOS[name], seed)
                assert story.wrong == []
                for job in story.slurm.jobs:
                    states.add(job.state)
                    slots.add(job.campaign.slots)
                    late += job.is_late
                    requeued += job.restarts
                reasons += "\n".join(text for said in story.slurm.said.values() for text in said)
                story.forget()
    assert states == {"COMPLETED", "TIMEOUT", "CANCELLED", "FAILED"}
    assert slots == {1, 2, 3}
    assert late > 1
    assert requeued > 5
    for said in ("nothing is left", "was stopped", "no task fits", "another process goes on", "fills an empty place"):
        assert said in reasons, said
