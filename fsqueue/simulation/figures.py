"""Repeat the figures 2 to 7 of "A Scalable Relaxed Distributed Priority Queue", and check the paper's claims.

`reproduce` simulates every point of every figure; `claims` says of each claim what came out, and whether it holds. The
paper does not tell all parameters. Those of CASES are its own where it does. Elsewhere they are near those of the
simulation that the authors published. Each point is several runs of 10,000 pops, as theirs: without peeks before a
pop, nodes drift apart with every pop, so longer runs would show other figures than the paper's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import sqrt

from fsqueue.errors import InvalidArgument
from fsqueue.simulation import Distribution, Policy, Strategy, simulate

RUNS, POPS = 10, 10_000
"""How many runs each point has, and how many pops each run, unless the caller says otherwise."""

BEFORE_POP, BEFORE_ADD, NO_PEEK = "peek before pop", "peek before add", "no peek"
BASIC, BETTER = "basic policy", "better policy"
MEASURES = ("mean", "median", "p90", "p99")
"""What tables and plots show of a distribution."""


@dataclass(frozen=True)
class Case:
    """Name a point of a figure, and what is simulated for it. `x` is what the figure varies."""

    figure: int
    series: str
    x: int
    nodes: int
    peeks: int
    lag: int
    strategy: Strategy = "pop"
    policy: Policy = "basic"
    concurrent: int = 1


@dataclass(frozen=True)
class Point:
    """Hold what was simulated for a case."""

    case: Case
    distribution: Distribution


@dataclass(frozen=True)
class Figure:
    """Hold the points of one of the paper's figures. `x_name` says what `Case.x` is."""

    number: int
    title: str
    x_name: str
    points: tuple[Point, ...]

    def series(self) -> dict[str, dict[int, Distribution]]:
        """Return the distributions by series and by x, in the order of CASES."""
        found: dict[str, dict[int, Distribution]] = {}
        for point in self.points:
            found.setdefault(point.case.series, {})[point.case.x] = point.distribution
        return found


@dataclass(frozen=True)
class Claim:
    """Hold one of the paper's claims: in which figure, what it says, what came out, and whether that agrees.

    `holds` is None for a sentence that no simulation can confirm as it is worded; `measured` says why.
    """

    figure: int
    text: str
    measured: str
    holds: bool | None


TITLES: Mapping[int, tuple[str, str]] = {
    2: ("PEI of 20 nodes, 2 peeks before a pop, a lag of 10,000", "nodes"),
    3: ("PEI against the lag, by when a client peeks (20 nodes, 2 peeks)", "lag"),
    4: ("PEI against the number of nodes (2 peeks, a lag of 50,000)", "nodes"),
    5: ("PEI against the number of peeks (100 nodes, a lag of 50,000)", "peeks"),
    6: ("PEI against concurrent clients, basic policy (100 nodes, 10 peeks, a lag of 20,000)", "clients"),
    7: ("PEI against concurrent clients, better policy (100 nodes, 10 peeks, a lag of 20,000)", "clients"),
}
"""By number: title, and what the figure varies."""

LAGS = (100, 1_000, 5_000, 10_000, 20_000, 50_000, 100_000)
NODES = (20, 50, 100, 150, 200)
PEEKS = (1, 2, 3, 5, 10, 20, 50, 100)
CLIENTS = (1, 2, 5, 10, 20, 50, 100)

CASES: tuple[Case, ...] = (
    Case(2, BEFORE_POP, 20, 20, 2, 10_000),
    *(Case(3, BEFORE_POP, lag, 20, 2, lag) for lag in LAGS),
    *(Case(3, BEFORE_ADD, lag, 20, 2, lag, "add") for lag in LAGS),
    *(Case(3, NO_PEEK, lag, 20, 2, lag, "none") for lag in LAGS),
    *(Case(4, BEFORE_POP, nodes, nodes, 2, 50_000) for nodes in NODES),
    *(Case(5, BEFORE_POP, peeks, 100, peeks, 50_000) for peeks in PEEKS),
    *(Case(6, BASIC, clients, 100, 10, 20_000, concurrent=clients) for clients in CLIENTS),
    *(Case(7, BETTER, clients, 100, 10, 20_000, policy="better", concurrent=clients) for clients in CLIENTS),
)
"""All points of all figures."""


def reproduce(
    seed: int,
    runs: int = RUNS,
    pops: int = POPS,
    cases: Iterable[Case] = CASES,
    tell: Callable[[int], object] | None = None,
) -> list[Figure]:
    """Return the figures, from 2 on. Each point is `simulate` with the parameters of its case and the same `seed`.

    `tell` is called with numbers of pops that were done: there are len(cases) * runs * pops. InvalidArgument if an
    argument makes no sense.
    """
    points: dict[int, list[Point]] = {}
    for case in cases:
        made = simulate(
            case.nodes, case.peeks, case.lag, pops, case.strategy, case.policy, case.concurrent, runs, seed, tell
        )
        points.setdefault(case.figure, []).append(Point(case, made))
    return [Figure(number, *TITLES[number], tuple(points[number])) for number in sorted(points)]


# -- claims ---------------------------------------------------------------------------------------

FIRST_SHARE = 0.10
"""Figure 2: the bar of the first elements is higher than that."""
SIGMAS = 4
"""A share may be off by as many standard errors from what it must be."""
LEVEL, LEVEL_FROM = 1.15, (20_000, 100_000)
"""Figure 3, peeks before a pop: between these lags the mean grows at most LEVEL times. The others level out later:
there it grows less than between STEEP, which are five times apart, too."""
STEEP = (1_000, 5_000)
LINEAR = 1.15
"""Figure 4: the PEI for each node is the same within that ratio."""
FEW_PEEKS, LOW = 5, 1 / 10
"""Figure 5: the first number of peeks brings the 90th percentile down to the second part of what one peek has."""
HALF, HIGH = 0.6, 50
"""Figure 7: from HIGH clients on, half as many as nodes, each measure is at most this part of figure 6's. With few
clients the median of figure 6 is hardly above that of a single client: nothing is there to be halved."""


def claims(figures: Sequence[Figure]) -> list[Claim]:
    """Return the paper's claims, with what came out. InvalidArgument if a figure or a point of CASES is missing."""
    by_number = {figure.number: figure.series() for figure in figures}
    try:
        two, three, four, five, six, seven = (by_number[number] for number in TITLES)
        return [
            *_of_figure_2(two[BEFORE_POP][20]),
            *_of_figure_3(three[BEFORE_POP], three[BEFORE_ADD], three[NO_PEEK]),
            _of_figure_4(four[BEFORE_POP]),
            *_of_figure_5(five[BEFORE_POP]),
            *_of_figure_6(six[BASIC]),
            _of_figure_7(six[BASIC], seven[BETTER]),
        ]
    except KeyError as error:
        raise InvalidArgument(f"The claims need all figures with all points; {error} is missing.") from error


def _measure(distribution: Distribution, name: str) -> float:
    return float(getattr(distribution, name))


def _of_figure_2(made: Distribution) -> list[Claim]:
    bar = made.share(0) + made.share(1)
    exact = 1 - (19 / 20) ** 2
    error = sqrt(exact * (1 - exact) / made.pops)
    as_it_must = abs(made.share(0) - exact) <= SIGMAS * error
    return [
        Claim(
            2,
            "the first bar, elements 0 and 1, has over 10 % of the pops",
            f"{100 * bar:.1f} % of the pops gave element 0 or 1",
            bar > FIRST_SHARE,
        ),
        Claim(
            2,
            "element 0 is popped over 10 % of the time",
            f"{100 * made.share(0):.2f} %; its node is peeked at 1 - (19/20)^2 = {100 * exact:.2f} % of the time",
            None if as_it_must else False,
        ),
    ]


def _of_figure_3(
    pop: dict[int, Distribution], add: dict[int, Distribution], none: dict[int, Distribution]
) -> list[Claim]:
    low, greatest = LEVEL_FROM
    growth = [_growth(made, LEVEL_FROM) for made in (add, none)]
    earlier = [_growth(made, STEEP) for made in (add, none)]
    lags = [lag for lag in pop if lag >= STEEP[0]]
    at = ", ".join(f"{made[greatest].mean:.1f}" for made in (pop, add, none))
    return [
        Claim(
            3,
            "with peeks before a pop, the PEI levels out as the lag grows",
            f"mean {pop[low].mean:.1f} at {low:,}, {pop[greatest].mean:.1f} at {greatest:,}",
            _growth(pop, LEVEL_FROM) <= LEVEL,
        ),
        Claim(
            3,
            "with peeks before an add, and without, it levels out, too",
            f"mean times {growth[0]:.2f} and {growth[1]:.2f} from {low:,} to {greatest:,}; "
            f"{earlier[0]:.2f} and {earlier[1]:.2f} from {STEEP[0]:,} to {STEEP[1]:,}",
            all(now <= max(LEVEL, before) for now, before in zip(growth, earlier, strict=True)),
        ),
        Claim(
            3,
            "peek before pop is better than peek before add, and that is better than no peek",
            f"mean {at} at {greatest:,}; means and medians are compared at each lag from {STEEP[0]:,} on",
            all(
                _measure(pop[lag], name) < _measure(add[lag], name) < _measure(none[lag], name)
                for lag in lags
                for name in ("mean", "median")
            ),
        ),
    ]


def _growth(made: dict[int, Distribution], lags: tuple[int, int]) -> float:
    return made[lags[1]].mean / made[lags[0]].mean


def _of_figure_4(made: dict[int, Distribution]) -> Claim:
    each = {name: [_measure(one, name) / nodes for nodes, one in made.items()] for name in MEASURES}
    said = ", ".join(f"{name} {min(values):.2f} to {max(values):.2f}" for name, values in each.items())
    return Claim(
        4,
        "the PEI is linear in the number of nodes (equation 1)",
        f"PEI for each node: {said}",
        all(max(values) <= LINEAR * min(values) for values in each.values()),
    )


def _of_figure_5(made: dict[int, Distribution]) -> list[Claim]:
    falls = all(
        _measure(less, name) >= _measure(more, name)
        for name in MEASURES
        for less, more in pairwise(made[peeks] for peeks in sorted(made))
    )
    least, most = min(made), max(made)
    one, few = made[1].p90, made[FEW_PEEKS].p90
    return [
        Claim(
            5,
            "the PEI falls with the number of peeks",
            f"mean {made[least].mean:.1f} with {least}, {made[most].mean:.2f} with {most}; each measure at each step",
            falls,
        ),
        Claim(
            5,
            "a few peeks make even the 90th percentile reasonably low",
            f"p90 {one:,} with 1 peek, {few:,} with {FEW_PEEKS}, of 100 nodes",
            few <= LOW * one,
        ),
    ]


def _of_figure_6(made: dict[int, Distribution]) -> list[Claim]:
    clients = sorted(made)
    least, most = clients[0], clients[-1]
    rises = all(
        _measure(made[fewer], name) <= _measure(made[more], name)
        for name in MEASURES
        for fewer, more in pairwise(clients)
    )
    growth = {name: _measure(made[most], name) / max(1.0, _measure(made[least], name)) for name in MEASURES}
    said = ", ".join(f"{name} times {value:.0f}" for name, value in growth.items())
    return [
        Claim(
            6,
            "the PEI degrades as the number of concurrent clients grows",
            f"mean {made[least].mean:.1f} with {least}, {made[most].mean:.1f} with {most}; each measure at each step",
            rises and made[least].mean < made[most].mean,
        ),
        Claim(
            6,
            "it does so much more at the 90th and 99th percentile than at median and mean",
            f"{said}, from {least} to {most}",
            min(growth["p90"], growth["p99"]) > max(growth["mean"], growth["median"]),
        ),
    ]


def _of_figure_7(basic: dict[int, Distribution], better: dict[int, Distribution]) -> Claim:
    high = [clients for clients in basic if clients >= HIGH]
    parts = {
        name: [_measure(better[clients], name) / _measure(basic[clients], name) for clients in high]
        for name in MEASURES
    }
    said = ", ".join(f"{name} {min(values):.2f} to {max(values):.2f}" for name, values in parts.items())
    return Claim(
        7,
        "the better policy about halves the PEI at high concurrency, at the median and in the tails",
        f"as a part of figure 6, from {HIGH} clients on: {said}",
        all(max(values) <= HALF for values in parts.values()),
    )
