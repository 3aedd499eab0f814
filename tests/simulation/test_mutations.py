"""The simulator can fail: every mutation of the protocol is caught, by stories that end well without it."""

from __future__ import annotations

import logging

import pytest

from tests.simulation.mutations import MUTATIONS, Mutation, applied
from tests.simulation.runner import tell_share
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.stories import tell
from tests.simulation.wiring import simulated_machine

pytestmark = [pytest.mark.once, pytest.mark.slow]


def caught_by(mutation: Mutation) -> int | None:
    """The first seed whose story goes wrong."""
    logging.disable(logging.WARNING)
    try:
        with simulated_machine(), applied(mutation):
            for seed in range(mutation.stories):
                if tell(SCENARIOS[mutation.scenario], seed).wrong:
                    return seed
    finally:
        logging.disable(logging.NOTSET)
    return None


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.name)
def test_a_mutation_is_caught(mutation: Mutation) -> None:
    seed = caught_by(mutation)
    assert seed is not None, mutation.why
    assert tell_share((mutation.scenario, seed, 1)).wrong == []  # the same story, with the code as it is


def test_there_are_enough_of_them() -> None:
    assert len(MUTATIONS) >= 20
