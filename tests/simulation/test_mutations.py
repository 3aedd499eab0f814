"""The simulator can fail: every mutation of the protocol is caught, by something that ends well without it."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Iterator

import pytest

from tests.simulation.mutations import DRAFTS, ISSUE
from tests.simulation.trials import ALL, BY_NAME, caught

pytestmark = pytest.mark.slow


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
    assert len(ALL) == len(BY_NAME) >= 90


def test_what_is_known_to_break_a_queue_is_among_them() -> None:
    tried = [*ISSUE.values(), *(names for names in DRAFTS.values() if isinstance(names, list))]
    assert set(itertools.chain(*tried)) <= BY_NAME.keys()
    assert len(ISSUE) == 9
    assert sorted(DRAFTS) == list(range(1, 19))
