"""fsqueue.simulation.figures: the paper's claims hold, and one that does not is noticed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fsqueue import InvalidArgument
from fsqueue.simulation import Distribution, simulate
from fsqueue.simulation.figures import CASES, TITLES, Case, Claim, Figure, Point, claims, reproduce


@pytest.mark.slow
@pytest.mark.thorough
def test_the_paper_s_claims_hold() -> None:
    """With fewer pops than docs/pei.md has. (In the gate, tests/test_simulation.py simulates some of the cases.)"""
    told: list[int] = []
    made = reproduce(seed=1, runs=3, tell=told.append)
    assert [(claim.text, claim.measured) for claim in claims(made) if claim.holds is False] == []
    assert sum(told) == len(CASES) * 30_000
    assert [figure.number for figure in made] == [2, 3, 4, 5, 6, 7]


def test_a_point_is_one_call_of_simulate() -> None:
    case = Case(7, "better policy", 5, 10, 3, 100, policy="better", concurrent=5)
    [figure] = reproduce(seed=9, runs=2, pops=300, cases=[case])
    assert (figure.number, figure.x_name) == (7, "clients")
    assert figure.points == (
        Point(case, simulate(10, 3, 100, 300, policy="better", concurrent=5, runs=2, seed=9)),
    )  # fmt: skip
    assert figure.series() == {"better policy": {5: figure.points[0].distribution}}


def test_the_titles_tell_the_parameters() -> None:
    of = {number: [case for case in CASES if case.figure == number] for number in TITLES}
    for number, cases in of.items():
        title = TITLES[number][0]
        for name, noun in (("nodes", "{} nodes"), ("peeks", "{} peeks"), ("lag", "a lag of {:,}")):
            values = {getattr(case, name) for case in cases}
            assert (len(values) == 1) == (noun.format(min(values)) in title), (title, name)
        assert [case.x for case in cases if case.series == cases[0].series] == sorted({case.x for case in cases})


# -- made up ------------------------------------------------------------------------------------------

Shape = tuple[int, int]
"""Four fifths of the pops have the first index, one fifth the second: median, and 90th and 99th percentile."""


def ideal(case: Case) -> Shape:
    """Return indexes with which every claim holds."""
    if case.figure == 3:
        return {"pop": (10, 40), "add": (50, 200), "none": (60, 300)}[case.strategy]
    if case.figure == 4:
        return case.nodes, 4 * case.nodes
    if case.figure == 5:
        return 100 // case.peeks, 400 // case.peeks**2
    if case.figure == 6:
        return 10 * case.concurrent, 30 * case.concurrent**2
    return 5 * case.concurrent, 14 * case.concurrent**2


def made_up(shape: Callable[[Case], Shape] = ideal, first: int = 975) -> list[Figure]:
    """Return all figures; in figure 2 so many of 10,000 pops gave element 0."""
    figures = []
    for number, (title, x_name) in TITLES.items():
        points = []
        for case in CASES:
            if case.figure == number:
                usual, tail = shape(case)
                counts = {0: first, 1: 875, 9: 9125 - first} if number == 2 else {usual: 80, tail: 20}
                points.append(Point(case, Distribution(counts)))
        figures.append(Figure(number, title, x_name, tuple(points)))
    return figures


def wrong(found: list[Claim]) -> list[str]:
    return [claim.text for claim in found if claim.holds is False]


def test_claims_that_hold() -> None:
    found = claims(made_up())
    assert wrong(found) == []
    assert {claim.figure for claim in found} == set(TITLES)
    [unlike] = [claim for claim in found if claim.holds is None]
    assert unlike.text == "element 0 is popped over 10 % of the time"
    assert unlike.measured.startswith("9.75 %; its node is peeked at 1 - (19/20)^2 = 9.75 % of the time")


def bent(wanted: Callable[[Case], bool], shape: Callable[[Shape], Shape]) -> Callable[[Case], Shape]:
    """Return indexes that are other than ideal in some cases."""
    return lambda case: shape(ideal(case)) if wanted(case) else ideal(case)


def times(factor: float) -> Callable[[Shape], Shape]:
    return lambda shape: (round(shape[0] * factor), round(shape[1] * factor))


@pytest.mark.parametrize(
    ("shape", "said"),
    [
        (bent(lambda one: one.figure == 3 and one.strategy == "pop" and one.lag > 20_000, times(1.2)),
         ["with peeks before a pop, the PEI levels out as the lag grows"]),
        (bent(lambda one: one.figure == 3 and one.strategy == "none" and one.lag > 20_000, times(1.6)),
         ["with peeks before an add, and without, it levels out, too"]),
        (bent(lambda one: one.figure == 3 and one.strategy == "none" and one.lag == 5_000, times(0.7)),
         ["peek before pop is better than peek before add, and that is better than no peek"]),
        (bent(lambda one: one.figure == 4 and one.nodes == 200, times(1.2)),
         ["the PEI is linear in the number of nodes (equation 1)"]),
        (bent(lambda one: one.figure == 5 and one.peeks == 20, times(4)),
         ["the PEI falls with the number of peeks"]),
        (bent(lambda one: one.figure == 5 and one.peeks > 1, lambda shape: (shape[0], 50)),
         ["a few peeks make even the 90th percentile reasonably low"]),
        (bent(lambda one: one.figure == 6 and one.concurrent == 5, times(0.1)),
         ["the PEI degrades as the number of concurrent clients grows"]),
        (bent(lambda one: one.figure == 6 and one.concurrent == 100, lambda shape: (shape[0] * 100, shape[1])),
         ["it does so much more at the 90th and 99th percentile than at median and mean"]),
        (bent(lambda one: one.figure == 7 and one.concurrent == 50, times(1.5)),
         ["the better policy about halves the PEI at high concurrency, at the median and in the tails"]),
    ],
)  # fmt: skip
def test_a_claim_that_does_not_hold_is_noticed(shape: Callable[[Case], Shape], said: list[str]) -> None:
    assert wrong(claims(made_up(shape))) == said


def test_a_share_of_the_first_that_cannot_be_is_noticed() -> None:
    assert wrong(claims(made_up(first=1100))) == ["element 0 is popped over 10 % of the time"]
    assert wrong(claims(made_up(first=10))) == [
        "the first bar, elements 0 and 1, has over 10 % of the pops",
        "element 0 is popped over 10 % of the time",
    ]


def test_a_figure_that_is_missing_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="need all figures with all points; 7 is missing"):
        claims(made_up()[:-1])
    three = made_up()[1]
    without = replace(three, points=tuple(point for point in three.points if point.case.strategy != "add"))
    with pytest.raises(InvalidArgument, match="'peek before add' is missing"):
        claims([without if one.number == 3 else one for one in made_up()])
