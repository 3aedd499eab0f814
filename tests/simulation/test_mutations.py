"""The simulator can fail: every mutation of the protocol is caught, by something that ends well without it."""

from __future__ import annotations

import itertools

import pytest

from tests.simulation.mutations import DRAFTS, ISSUE
from tests.simulation.trials import ALL, BY_NAME, SAMPLE, caught


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in SAMPLE else pytest.mark.thorough) for name in BY_NAME]
)
def test_a_mutation_is_caught(name: str) -> None:
    _, wrong, without_it = caught(name)
    assert wrong, f"nothing goes wrong, although {BY_NAME[name].why}"
    assert without_it == []


def test_there_are_enough_of_them() -> None:
    assert len(ALL) == len(BY_NAME) >= 90
    assert len(SAMPLE) == len(set(SAMPLE) & BY_NAME.keys()) >= 25


def test_what_is_known_to_break_a_queue_is_among_them() -> None:
    tried = [*ISSUE.values(), *(names for names in DRAFTS.values() if isinstance(names, list))]
    assert set(itertools.chain(*tried)) <= BY_NAME.keys()
    assert len(ISSUE) == 9
    assert sorted(DRAFTS) == list(range(1, 19))
