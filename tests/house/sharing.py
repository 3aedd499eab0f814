"""How tests are shared between processes: how many there are, and what stays together in one of them.

This is the one place that decides how many processes run. No test starts more by looking at the machine's processors.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from operator import itemgetter

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

TOGETHER = ("tests/lab/", "tests/spark/")
"""Directories whose tests share what is dear to start: guests, a cluster, a Spark session. The longest comes first."""
EARLY = ("tests/concurrency/", "tests/test_", "tests/worker/", "tests/cli/")
"""Directories whose tests fork often: that takes longer, the more their process has kept of other tests."""
PARSED = "tests/house/"
"""Tests that read the source. In one process, so that it is parsed once, and not in as many as there are."""
AHEAD = 2
"""A process that has no more tests than this is given its next unit."""
APART = ("tests/doctor/test_two_processes.py", "tests/simulation/")
"""Where tests share nothing: each may run anywhere. They come last, so that all processes end together.

The first of the two wait, the second compute. So the first are spread among the second: if all processes waited at the
same time, no processor would work.
"""


def processes() -> int:
    """Return the number of processes that run tests: one for each processor, and one for each directory in TOGETHER.

    The tests in those directories wait for guests, and for Spark, more than they compute.
    """
    given = os.environ.get("FSQUEUE_TEST_PROCESSES")
    return int(given) if given else len(os.sched_getaffinity(0)) + len(TOGETHER)


@pytest.hookimpl(tryfirst=True)  # else xdist answers
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    return processes()


def unit_of(nodeid: str) -> str:
    """Return the name of a test's unit. The tests of a unit run one after the other, in one process."""
    for directory in (*TOGETHER, PARSED):
        if nodeid.startswith(directory):
            return directory
    return nodeid if nodeid.startswith(APART) else nodeid.partition("::")[0]


def rank_of(unit: str) -> int:
    """Return the place of a unit in the order in which units begin."""
    order = (*TOGETHER, *EARLY, PARSED, "", *APART)  # "": all others
    return max((len(start), place) for place, start in enumerate(order) if unit.startswith(start))[1]


def places_of(units: Sequence[str]) -> list[tuple[int, float]]:
    """Return by what units are sorted. Those that wait come within the first half of those that compute."""
    waiting, computing = map(rank_of, APART)
    ranks = [rank_of(unit) for unit in units]
    number, before = Counter(ranks), Counter[int]()
    found = []
    for rank in ranks:
        share = before[rank] / number[rank] if rank in (waiting, computing) else 0.0
        before[rank] += 1
        found.append((computing, share / 2) if rank == waiting else (rank, share))
    return found


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the units. All processes must agree on the order."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        places = places_of([unit_of(item.nodeid) for item in items])
        items[:] = [item for _, item in sorted(zip(places, items, strict=True), key=itemgetter(0))]


@pytest.hookimpl
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> UnitScheduling:
    config.option.loadscopereorder = False
    return UnitScheduling(config, log)


class UnitScheduling(LoadScopeScheduling):
    """Hand out units to processes, in the order of collection.

    A process of pytest-xdist begins its last test only when it is given another one, or told to end. When a process
    dies, LoadScopeScheduling gives out its units again: with the test that killed it, which kills the next one, and
    those that it had finished. A process that is given a finished unit has nothing to run, and waits forever.
    """

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """Take a process out. If it died, give back what it had not run, and return the test that killed it."""
        left = {unit: tests for unit, tests in self.assigned_work.pop(node).items() if not all(tests.values())}
        if not left:
            return None
        died_in = next(test for tests in left.values() for test, done in tests.items() if not done)
        left[unit_of(died_in)][died_in] = True
        self.workqueue.update((unit, tests) for unit, tests in left.items() if not all(tests.values()))
        for other in self.nodes:
            self._reschedule(other)
        return died_in

    def _reschedule(self, node: WorkerController) -> None:
        """Give a process enough to go on with, or end it."""
        if node not in self.registered_collections:
            return  # it has taken another's place, and does not know the tests yet
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) <= AHEAD:
            if self.workqueue:
                with suppress(OSError):  # it has just died: `remove_node` will give the unit back
                    self._assign_work_unit(node)
            else:
                node.shutdown()
