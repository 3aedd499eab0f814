"""All small cases: each fault at each call of each verb, and each verb at each call of each other."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator

import pytest

from tests.simulation.exhaustive import Report, explore
from tests.simulation.verbs import FIRST_CLASS, VERBS

pytestmark = [pytest.mark.once, pytest.mark.slow]

LONG = os.environ.get("FSQUEUE_SIMULATION_EXHAUSTIVE") == "long"
"""All verbs, more fates, and the second verb killed at each of its calls: for hours when there is time."""
WITH = list(VERBS) if LONG else FIRST_CLASS
PAIRS = [(first, second) for first in WITH for second in WITH]

Reports = Callable[[str, str], Report]


@pytest.fixture(scope="module")
def reports(request: pytest.FixtureRequest) -> Iterator[Reports]:
    """Those of the tests that were selected, made by as many processes as there are processors."""
    wanted = []
    for item in request.session.items:
        names = getattr(item, "callspec", None) and item.callspec.params.get("names")
        if names and item.path == request.path:
            wanted.append(names)
    with multiprocessing.get_context("forkserver").Pool(os.cpu_count()) as pool:
        under_way = {names: pool.apply_async(explore, (*names, LONG)) for names in wanted}
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
