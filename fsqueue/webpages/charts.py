"""Charts of counts, from plain numbers: over time, and by how long tasks took. The template `elements.html` draws them.

Places are shares of an axis, from 0 to 1. Ticks are chosen for a wide window, and for a phone's.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from fsqueue.format.wording import counted, duration

WIDTHS = {"wide": 510, "narrow": 205}
"""The least pixels that an axis has where the style shows these ticks: in windows of 641, and of 320 pixels."""
CHAR = 7.2
"""How wide a character of a label is, at most, in pixels: labels are 12 pixels high."""
GAP = 14
"""Smallest distance between labels, in pixels."""

MINUTE_S, HOUR_S, DAY_S = 60, 3600, 86_400
STEPS_S = (
    1, 2, 5, 10, 15, 30, *(n * MINUTE_S for n in (1, 2, 5, 10, 15, 30)), *(n * HOUR_S for n in (1, 2, 3, 6, 12)),
    *(n * DAY_S for n in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000)),
)  # fmt: skip
"""How far ticks of a time axis may be apart."""
LENGTHS_S = (
    0.001, 0.01, 0.1, 1, 10, MINUTE_S, 10 * MINUTE_S, HOUR_S, 6 * HOUR_S, DAY_S, 7 * DAY_S, 30 * DAY_S, 365 * DAY_S,
)  # fmt: skip
"""Ticks of a logarithmic axis of durations."""
SHORTEST_S = 0.001
"""A logarithmic axis begins no earlier; what is shorter counts to its first bar."""
LOG_FROM = 20.0
"""From this ratio of the longest duration to the shortest on, an axis is logarithmic."""
BINS_A_DECADE = 6
BINS = 24
"""Number of bars on a linear axis, about."""


def moment(at_s: float) -> str:
    """Return Unix seconds as date and time, in UTC."""
    return _clock(at_s, "%Y-%m-%d %H:%M:%S UTC")


# -- the bars of durations ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Bins:
    """Equal parts of an axis from `low` to `high`, in seconds: of their logarithms, or of themselves."""

    low: float
    high: float
    count: int
    is_log: bool

    def edge(self, number: int) -> float:
        """Return where part `number` begins, which is where the one before ends."""
        part = number / self.count
        return self.low * (self.high / self.low) ** part if self.is_log else self.low + (self.high - self.low) * part

    def place(self, seconds: float) -> float:
        """Return where on the axis a duration is; one that is shorter or longer is at an end."""
        if self.is_log:
            part = math.log(max(seconds, self.low) / self.low) / math.log(self.high / self.low)
        else:
            part = (seconds - self.low) / (self.high - self.low)
        return min(1.0, max(0.0, part))


def bins_for(shortest: float, longest: float) -> Bins:
    """Return parts that hold all durations from the shortest to the longest."""
    low, high = max(0.0, shortest), max(shortest, longest, SHORTEST_S)
    if high / max(low, SHORTEST_S) >= LOG_FROM:
        first = math.floor(math.log10(max(low, SHORTEST_S)))
        last = math.ceil(math.log10(high * 1.000001))
        return Bins(10.0**first, 10.0**last, (last - first) * BINS_A_DECADE, True)
    step = _nice((high - low) / BINS if high > low else high / 10)
    begin = math.floor(low / step) * step
    count = max(1, math.floor((high - begin) / step) + 1)
    return Bins(begin, begin + count * step, count, False)


# -- charts --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Tick:
    """A place on an axis, and its labels, a line each."""

    at: float
    labels: tuple[str, ...]


@dataclass(frozen=True)
class CountBar:
    """A bar: where it begins, how wide and how high it is, and what it says when it is pointed at."""

    at: float
    width: float
    height: float
    says: str


@dataclass(frozen=True)
class Chart:
    """All that the template draws. `says`: what a screen reader reads; `axis`: what the horizontal axis is of.

    `counts`: the ticks of the vertical axis; `ticks`: those of the horizontal one, for each of WIDTHS; `marks`: lines
    with a name.
    """

    title: str
    says: str
    axis: str
    counts: list[Tick]
    bars: list[CountBar]
    ticks: dict[str, list[Tick]]
    marks: list[Tick] = field(default_factory=list)


def over_time(points: Sequence[tuple[float, int]], step_s: float, what: str = "completed") -> Chart:
    """Return counts over time. `points`: Unix seconds and a count, ascending, a step apart or several.

    `what`: what became of the tasks that are counted.
    """
    first, last = points[0][0], points[-1][0] + step_s
    total, (when, most) = sum(count for _, count in points), max(points, key=lambda point: point[1])
    days = dict.fromkeys(_clock(at, "%Y-%m-%d") for at in (first, last))
    counts = count_ticks(most)
    return Chart(
        f"{what.capitalize()} tasks over time",
        f"{counted(total, what + ' task')} from {moment(first)} to {moment(last)}, "
        f"in bars of {duration(step_s)} each. The highest bar has {most:,}, from {moment(when)}.",
        f"Time (UTC), {' to '.join(days)}",
        _count_labels(counts),
        [
            CountBar((at - first) / (last - first), step_s / (last - first), n / counts[-1], f"{moment(at)}: {n:,}")
            for at, n in points
            if n
        ],
        {name: time_ticks(first, last, width) for name, width in WIDTHS.items()},
    )


def of_durations(bins: Bins, numbers: Sequence[int], marks: Sequence[tuple[str, float]]) -> Chart:
    """Return how many durations fall into each part of an axis; `marks`: quantiles, by name."""
    quantiles = "; ".join(f"{name} {duration(value)}" for name, value in marks)
    counts = count_ticks(max(numbers))
    edges = [bins.edge(number) for number in range(bins.count + 1)]
    return Chart(
        "Completed tasks by duration" + (", on a logarithmic scale" if bins.is_log else ""),
        f"{counted(sum(numbers), 'duration')} from {duration(bins.low)} to {duration(bins.high)}. {quantiles}.",
        "Duration",
        _count_labels(counts),
        [
            CountBar(number / bins.count, 1 / bins.count, n / counts[-1], f"{duration(a)} to {duration(b)}: {n:,}")
            for number, (n, (a, b)) in enumerate(zip(numbers, pairwise(edges), strict=True))
            if n
        ],
        {name: length_ticks(bins, width) for name, width in WIDTHS.items()},
        [Tick(bins.place(value), (f"{name}: {duration(value)}",)) for name, value in marks],
    )


def time_ticks(first: float, last: float, width: float) -> list[Tick]:
    """Return ticks that tell times apart: the time as fine as they need it, and below it the day where that changes.

    Ticks of whole days have the day, and below it the year. The axis has the full dates of its ends. `width`: of the
    axis, in pixels.
    """
    for step in STEPS_S:
        text, below = ("%H:%M:%S" if step < MINUTE_S else "%H:%M", "%m-%d") if step < DAY_S else ("%m-%d", "%Y")
        if step / (last - first) * width >= len(_clock(first, text)) * CHAR + GAP:
            break
    ticks, before = [], ""
    for number in range(math.ceil(first / step), math.floor(last / step) + 1):
        label, under = _clock(number * step, text), _clock(number * step, below)
        ticks.append(Tick((number * step - first) / (last - first), (label, under) if under != before else (label,)))
        before = under
    if not ticks:  # a span that holds no whole step: say at least where it begins
        ticks = [Tick(0.0, (_clock(first, "%H:%M:%S"), _clock(first, "%m-%d")))]
    return ticks


def length_ticks(bins: Bins, width: float) -> list[Tick]:
    """Return ticks of an axis of durations, as many as have room. `width`: of the axis, in pixels."""
    if bins.is_log:
        found = [(length, duration(length)) for length in LENGTHS_S if bins.low <= length * 1.001 <= bins.high * 1.002]
    else:
        size, unit = next(
            (one for one in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min"), (1, "s")) if bins.high >= 2 * one[0]),
            (0.001, "ms"),
        )
        step = _nice((bins.high - bins.low) / size / max(1.0, width / (CHAR * 10 + GAP)))
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        numbers = range(math.ceil(bins.low / size / step - 1e-9), math.floor(bins.high / size / step + 1e-9) + 1)
        found = [(number * step * size, f"{number * step:,.{decimals}f} {unit}") for number in numbers]
    ticks: list[Tick] = []
    end = -math.inf
    for value, label in found:
        x, half = bins.place(value) * width, len(label) * CHAR / 2
        if x - half >= end + GAP:
            ticks.append(Tick(bins.place(value), (label,)))
            end = x + half
    return ticks


def count_ticks(most: int) -> list[int]:
    """Return about four round numbers from 0 on; the last is the greatest count, or more."""
    step = max(1, math.ceil(_nice(max(1, most) / 4)))
    return list(range(0, most + step, step))


def _count_labels(counts: Sequence[int]) -> list[Tick]:
    return [Tick(count / counts[-1], (_short(count),)) for count in counts]


def _short(count: int) -> str:
    """Return a round number in at most five characters, or so: there is no room for more beside the axis."""
    for size, unit in ((10**9, "G"), (10**6, "M"), (1000, "k")):
        if count >= max(size, 10_000):
            return f"{count / size:g} {unit}"
    return f"{count:,}"


def _nice(least: float) -> float:
    """Return the least of 1, 2, 5 times a power of ten that is not less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999999)


def _clock(at_s: float, form: str) -> str:
    return time.strftime(form, time.gmtime(at_s))
