"""Tests run again with batches of one task where batching branches; with FSQUEUE_TEST_LEVEL=all, wherever it may."""

from __future__ import annotations

from collections import defaultdict

import pytest

from tests.conftest import AGAIN, BATCHING_BRANCHES_IN
from tests.house.collected import Collected, collected

SELECTING = {"once", "batched"}


@pytest.fixture(scope="module")
def where_batching_branches() -> list[Collected]:
    return collected(*(f"tests/{name}" for name in BATCHING_BRANCHES_IN))


def test_what_makes_queues_where_batching_branches_runs_with_batches_of_one_or_is_marked(
    where_batching_branches: list[Collected],
) -> None:
    """A fixture that makes queues by itself asks for `tasks_a_batch`, or the test says that it needs no second run."""
    sizes = defaultdict(set)
    for test in where_batching_branches:
        if test.makes_queues and not SELECTING & set(test.marks):
            sizes[test.name].add(test.tasks_a_batch)
    assert {name: found for name, found in sizes.items() if found != {1024, 1}} == {}
    assert {test.directory for test in where_batching_branches if test.tasks_a_batch == 1} == set(BATCHING_BRANCHES_IN)


def test_a_mark_leaves_out_the_second_run(where_batching_branches: list[Collected]) -> None:
    again = [test for test in where_batching_branches if test.tasks_a_batch == 1]
    assert [test.name for test in again if SELECTING & set(test.marks)] == []


def test_no_mark_is_needless(where_batching_branches: list[Collected]) -> None:
    """A test that makes no queue by the fixtures runs once, marked or not."""
    tests = [test for test in where_batching_branches if SELECTING & set(test.own_marks)]
    assert {test.name for test in tests if test.tasks_a_batch is None} == set()


@pytest.mark.parametrize(
    ("arguments", "level", "sizes"),
    [
        ((), "gate", [1024]),
        ((), "all", [1024, 1]),
        (("-k", AGAIN), "gate", [1]),
        (("-k", f"not {AGAIN}"), "all", [1024]),
    ],
)
def test_elsewhere_it_is_left_to_the_level_all_or_to_its_name(
    arguments: tuple[str, ...], level: str, sizes: list[int]
) -> None:
    tests = collected("tests/concurrency/test_killed_workers.py", *arguments, level=level)
    assert [test.tasks_a_batch for test in tests] == sizes


def test_the_name_that_failed_plays_it_again() -> None:
    name = (
        "tests/concurrency/test_killed_workers.py::test_nothing_is_lost_and_nothing_done_twice_when_workers_are_killed"
    )
    assert [test.tasks_a_batch for test in collected(f"{name}[{AGAIN}]")] == [1]
