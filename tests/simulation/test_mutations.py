"""The simulator can fail: every mutation of the protocol is caught, by something that ends well without it."""

from __future__ import annotations

import itertools
import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator

import pytest

from tests.simulation.exhaustive import Schedule, calls_of, play
from tests.simulation.mutations import DRAFTS, ISSUE, MUTATIONS, Mutation, applied
from tests.simulation.scenarios import SCENARIOS
from tests.simulation.stories import tell
from tests.simulation.wiring import simulated_machine

pytestmark = [pytest.mark.once, pytest.mark.slow]

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


@pytest.fixture(scope="module")
def catches(request: pytest.FixtureRequest) -> Iterator[Callable[[str], tuple[int, list[str], list[str]]]]:
    """Of the tests that were selected, made by as many processes as there are processors."""
    wanted = [item.callspec.params["name"] for item in request.session.items if hasattr(item, "callspec")
              and item.path == request.path]  # fmt: skip
    with multiprocessing.get_context("forkserver").Pool(os.cpu_count()) as pool:
        under_way = {name: pool.apply_async(caught, (name,)) for name in wanted}
        yield lambda name: under_way[name].get()


@pytest.mark.parametrize("name", BY_NAME)
def test_a_mutation_is_caught(catches: Callable[[str], tuple[int, list[str], list[str]]], name: str) -> None:
    _, wrong, without_it = catches(name)
    assert wrong, BY_NAME[name].why
    assert without_it == []


def test_there_are_enough_of_them() -> None:
    assert len(MUTATIONS) == len(BY_NAME) >= 20


def test_what_is_known_to_break_a_queue_is_among_them() -> None:
    tried = [*ISSUE.values(), *(names for names in DRAFTS.values() if isinstance(names, list))]
    assert set(itertools.chain(*tried)) <= BY_NAME.keys()
    assert len(ISSUE) == 9
    assert sorted(DRAFTS) == list(range(1, 19))
