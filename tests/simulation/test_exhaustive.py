"""Small cases: each fault at each call of each verb, and each verb at each call of each other.

The gate tells each death by a signal on one local filesystem. Of each other fault it tells a twentieth of the calls: of
each verb on that filesystem, on NFS and on a disk that loses power, and of every fifth verb on the others.
`scripts/test --all` tells all.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from operator import itemgetter

import pytest

from tests.levels import IS_ALL, thorough
from tests.simulation.endings import decides
from tests.simulation.exhaustive import (
    ALONE,
    ALONE_ON,
    IN_GATE,
    Play,
    Schedule,
    alone,
    calls_of,
    explore,
    in_gate,
    play,
    report,
    schedules,
    without_repeats,
)
from tests.simulation.fates import DEATHS
from tests.simulation.history import Call
from tests.simulation.verbs import FIRST_CLASS, VERBS
from tests.simulation.wiring import undisturbed

pytestmark = pytest.mark.slow

LONG = os.environ.get("FSQUEUE_SIMULATION_EXHAUSTIVE") == "long"
"""All verbs, more fates, and the second verb killed at each of its calls: for hours when there is time."""
WITH = list(VERBS) if LONG else FIRST_CLASS
PAIRS = [(first, second) for first in WITH for second in WITH]
OF_EACH_VERB = ("local", "nfs", "lossy")
"""The filesystems on which the gate has each verb."""
OTHERS = sorted((on for on in ALONE_ON if on[1] not in OF_EACH_VERB), key=itemgetter(1))
IN_EACH_RUN = {*(on for on in ALONE_ON if on[1] in OF_EACH_VERB), *OTHERS[::5]}
"""Those, and every fifth verb on each of the others."""
TIMES = re.compile(r"[0-9a-f]{12}(?=[0-9a-f]{20})|[0-9]{13}|[0-9]+[.][0-9]+|0x[0-9a-f]+")


@pytest.mark.each_with_each
@pytest.mark.parametrize(("verb", "kind"), [on if on in IN_EACH_RUN else thorough(*on) for on in ALONE_ON])
def test_every_fault_at_every_call_of_a_verb(verb: str, kind: str) -> None:
    cases = alone(verb, kind, LONG)
    found = report(cases if IS_ALL else in_gate(cases))
    assert found.wrong == [], str(found)
    assert found.schedules > 0


def test_every_verb_is_tried_at_many_calls_and_on_every_filesystem() -> None:
    with undisturbed():
        cases = {on: list(alone(*on, long=False)) for on in ALONE_ON}
    count = Counter(dict.fromkeys(VERBS, 0))
    for (verb, _), found in cases.items():
        chosen = list(in_gate(found))
        count[verb] += len(chosen)
        assert {one.fate for one in chosen} == {one.fate for one in found}
        assert set(chosen) <= set(found)
    assert min(count.values()) > 20
    assert min(sum(len(found) for (verb, _), found in cases.items() if verb == one) for one in VERBS) > 50
    assert count.total() * IN_GATE > sum(map(len, cases.values()))
    assert {kind for _, kind in ALONE_ON} == set(ALONE)
    assert {kind for _, kind in IN_EACH_RUN} == set(ALONE)


@pytest.mark.thorough
@pytest.mark.parametrize("names", PAIRS, ids="-and-".join)
def test_a_verb_at_every_call_of_another(names: tuple[str, str]) -> None:
    found = explore(*names, LONG)
    assert found.wrong == [], str(found)
    assert found.schedules > 5


@pytest.mark.one_in(3)
@pytest.mark.parametrize("first", ["complete", "insert-keyed", "overwrite-anew"])
def test_a_death_that_is_left_out_goes_on_as_one_that_is_told(first: str) -> None:
    fates = {
        kind: tuple(fate for fate in ALONE[kind] if fate in DEATHS)
        for kind in ("local", "nfs", "strict", "order-lossy")
    }
    with undisturbed():
        wanted = list(schedules(first, "", fates))
        told = list(without_repeats(wanted))
        assert len(told) < len(wanted)
        for one in set(wanted) - set(told):
            left = calls_of(one.kind, first, "")[one.at - 1].left
            alike = [other for other in told if (other.kind, other.fate, other.begins_with_upkeep)
                     == (one.kind, one.fate, one.begins_with_upkeep) and other.at < one.at
                     and calls_of(other.kind, first, "")[other.at - 1].left == left]  # fmt: skip
            assert len(alike) == 1, one.command()
            if one.at % 4 == 0:
                assert what_happened(one) == what_happened(alike[0]), one.command()


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("verb", "kind"), [("insert-keyed", "nfs"), ("insert-keyed", "local")])
def test_a_fate_that_is_left_out_finds_nothing_to_do(verb: str, kind: str) -> None:
    left_out = 0
    with undisturbed():
        for at, moment in enumerate(calls_of(kind, verb, ""), start=1):
            for fate in sorted(moment.in_vain.intersection(ALONE[kind])):
                left_out += 1
                if left_out % 3 == 0:
                    assert play(Schedule(kind, verb, "", fate, at)) is None
    assert left_out > 2


@pytest.mark.one_in(3)
@pytest.mark.parametrize(
    ("verb", "kind"), [("complete", "local"), ("insert-keyed", "nfs"), ("overwrite-anew", "lossy")]
)
def test_an_end_that_is_left_out_is_as_the_one_that_is_told(verb: str, kind: str) -> None:
    first: dict[bytes, tuple[list[str], list[str]]] = {}
    left_out = 0

    def end(told: Play) -> list[str]:
        nonlocal left_out
        key = decides(told)
        if key in first:
            left_out += 1
            if left_out % 4:
                return first[key][1]
        begun = len(told.history.calls)
        wrong = told.end()
        calls = [described(call) for call in told.history.calls[begun:]]
        assert first.setdefault(key, (calls, wrong)) == (calls, wrong), told.schedule.command()
        return wrong

    with undisturbed():
        wanted = [one for one in alone(verb, kind, False) if one.at % 2]
        for schedule in wanted:
            play(schedule, end=end)
    assert len(wanted) // 5 < left_out < len(wanted)


def described(call: Call) -> str:
    """A call of a verb and its answer, but for times, which are in the names of batches, too."""
    return TIMES.sub("", f"{call.actor} {call.verb} {call.outcome} {call.result} {call.error}")


def what_happened(schedule: Schedule) -> tuple[list[str], list[str]]:
    """Each call of a verb and its answer, and what was wrong."""
    told = play(schedule)
    assert told is not None
    return [described(call) for call in told.history.calls], told.wrong
