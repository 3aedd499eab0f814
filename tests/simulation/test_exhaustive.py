"""All small cases: each fault at each call of each verb, and each verb at each call of each other."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator

import pytest

from tests.simulation.exhaustive import ALONE, TOGETHER, TOGETHER_LONG, Report, report, schedules, with_deaths
from tests.simulation.verbs import FIRST_CLASS, VERBS

pytestmark = [pytest.mark.once, pytest.mark.slow]

LONG = os.environ.get("FSQUEUE_SIMULATION_EXHAUSTIVE") == "long"
"""All verbs, more fates, and the second verb killed at each of its calls: for hours when there is time."""
WITH = list(VERBS) if LONG else FIRST_CLASS
PAIRS = [(first, second) for first in WITH for second in WITH]

Reports = Callable[[str, str], Report]


def explore(names: tuple[str, str]) -> Report:
    """Everything that is told of one verb, or of two."""
    first, second = names
    step = 3 if first == "fsck" and second and not LONG else 1  # it makes many calls, most of which only look
    found = report(schedules(first, second, (TOGETHER_LONG if LONG else TOGETHER) if second else ALONE, step))
    if second and LONG:
        found.add(report(death for one in schedules(first, second, {"nfs": ("on",)}) for death in with_deaths(one)))
    return found


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest) -> Iterator[Reports]:
    """Those of the tests that were selected, made by as many processes as there are processors."""
    wanted = []
    for item in request.session.items:
        names = getattr(item, "callspec", None) and item.callspec.params.get("names")
        if names and item.path == request.path:
            wanted.append(names)
    with multiprocessing.get_context("forkserver").Pool(os.cpu_count()) as pool:
        under_way = {names: pool.apply_async(explore, (names,)) for names in wanted}
        yield lambda first, second: under_way[first, second].get()


@pytest.mark.parametrize("names", [(name, "") for name in VERBS], ids=lambda names: names[0])
def test_every_fault_at_every_call_of_a_verb(reports: Reports, names: tuple[str, str]) -> None:
    found = reports(*names)
    assert found.wrong == [], str(found)
    assert found.schedules > 50


@pytest.mark.parametrize("names", PAIRS, ids="-and-".join)
def test_a_verb_at_every_call_of_another(reports: Reports, names: tuple[str, str]) -> None:
    found = reports(*names)
    assert found.wrong == [], str(found)
    assert found.schedules > 5
