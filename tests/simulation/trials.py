"""Each mutation of the protocol on trial: what catches it, and that this ends well without it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator

from tests.simulation.exhaustive import Schedule, calls_of, play
from tests.simulation.mutations import MUTATIONS, Mutation, applied
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.stories import tell
from tests.simulation.wiring import simulated_machine

BY_NAME = {mutation.name: mutation for mutation in MUTATIONS}
Case = Callable[[], list[str]]


def cases(mutation: Mutation) -> Iterator[Case]:
    """What is tried, one after the other; each tells what went wrong."""
    if isinstance(mutation.found_by, str):
        scenario = SCENARIOS[mutation.found_by]
        for seed in range(mutation.stories):
            yield lambda seed=seed: tell(scenario, seed).wrong  # type: ignore[misc]
    else:
        kind, first, second, fate = mutation.found_by
        for at in range(1, calls_of(kind, first, second) + 1):
            yield lambda at=at: _played(Schedule(kind, first, second, fate, at))  # type: ignore[misc]


def _played(schedule: Schedule) -> list[str]:
    told = play(schedule)
    return told.wrong if told is not None else []


def caught(name: str) -> tuple[int, list[str], list[str]]:
    """Which case goes wrong first, how, and what is wrong with it when the code is as it is."""
    mutation = BY_NAME[name]
    logging.disable(logging.WARNING)
    try:
        with simulated_machine():
            tried = list(cases(mutation))
            for number, case in enumerate(tried):
                with applied(mutation):
                    wrong = case()
                if wrong:
                    return number, wrong, case()
    finally:
        logging.disable(logging.NOTSET)
    return len(tried), [], []
