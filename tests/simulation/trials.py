"""Each mutation of the protocol on trial: what catches it, and that this ends well without it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from tests.simulation import (
    checkpoint_mutations,
    commit_mutations,
    keyed_mutations,
    more_mutations,
    open_mutations,
    order_mutations,
)
from tests.simulation.exhaustive import Schedule, calls_of, play
from tests.simulation.mutations import MUTATIONS, Mutation, applied
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.stories import tell
from tests.simulation.wiring import collect, undisturbed

ALL = (
    MUTATIONS
    + commit_mutations.MUTATIONS
    + more_mutations.MUTATIONS
    + checkpoint_mutations.MUTATIONS
    + open_mutations.MUTATIONS
    + keyed_mutations.MUTATIONS
    + order_mutations.MUTATIONS
)
BY_NAME = {mutation.name: mutation for mutation in ALL}
Case = Callable[[], list[str]]


def cases(mutation: Mutation) -> list[Case]:
    """What is tried, one after the other; each tells what went wrong."""
    if isinstance(mutation.found_by, str):
        return [
            partial(_story, mutation.found_by, seed)
            for seed in range(mutation.first, mutation.first + mutation.stories)
        ]
    kind, first, second, fate = mutation.found_by
    calls = len(calls_of(kind, first, second))
    return [partial(_small, Schedule(kind, first, second, fate, at)) for at in range(1, calls + 1)]


def _story(scenario: str, seed: int) -> list[str]:
    return tell(SCENARIOS[scenario], seed).wrong


def _small(schedule: Schedule) -> list[str]:
    told = play(schedule)
    return told.wrong if told is not None else []


def caught(name: str) -> tuple[int, list[str], list[str]]:
    """Which case goes wrong first, how, and what is wrong with it when the code is as it is."""
    with undisturbed():
        tried = cases(BY_NAME[name])
        with applied(BY_NAME[name]):
            for number, case in enumerate(tried):
                wrong = case()
                if wrong:
                    break
                collect(number)
        return number, wrong, case() if wrong else []
