"""Charts as SVG, from plain numbers: counts over time, and how long tasks took. No script, no fonts, no colours.

Each chart is drawn twice, for a wide window and for a phone: text in a picture that is scaled down cannot be read. The
page's style shows one of the two.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

WIDTHS = {"wide": 880, "narrow": 360}
HEIGHT, TOP, BOTTOM, RIGHT = 280, 14, 52, 42
CHAR = 7.2
"""How wide a character of a label is, at most, in the units of the pictures (12 pixels high)."""
GAP = 14
"""Smallest distance between labels."""

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


def span(seconds: float) -> str:
    """Return a duration for people: `12 ms`, `3.42 s`, `5 min 07 s`, `2 h 05 min`, `3 d 4 h`."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.3g} ms" if seconds > 0 else "0 s"
    if round(seconds) < MINUTE_S:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < HOUR_S:
        return f"{whole // 60} min" + (f" {whole % 60:02d} s" if whole % 60 else "")
    minutes = round(seconds / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h" + (f" {minutes % 60:02d} min" if minutes % 60 else "")
    hours = round(seconds / HOUR_S)
    return f"{hours // 24:,} d" + (f" {hours % 24} h" if hours % 24 else "")


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
class _Tick:
    x: float
    labels: tuple[str, ...]
    """A line each."""


@dataclass(frozen=True)
class _Bar:
    x: float
    width: float
    count: int
    says: str


@dataclass(frozen=True)
class _Mark:
    x: float
    label: str


_Place = Callable[[float], float]


def over_time(points: Sequence[tuple[float, int]], step_s: float) -> str:
    """Draw counts over time. `points`: Unix seconds and a count, ascending, a step apart or several."""
    first, last = points[0][0], points[-1][0] + step_s
    total, (when, most) = sum(count for _, count in points), max(points, key=lambda point: point[1])
    days = dict.fromkeys(_clock(at, "%Y-%m-%d") for at in (first, last))
    dates = " to ".join(days)
    says = (
        f"{total:,} completed tasks from {moment(first)} to {moment(last)}, in bars of {span(step_s)} each. "
        f"The highest bar has {most:,}, from {moment(when)}."
    )

    def draw(name: str, width: int) -> str:
        left = _left(most)
        wide = width - left - RIGHT

        def place(at: float) -> float:
            return left + (at - first) / (last - first) * wide

        bars = [
            _Bar(place(at), place(at + step_s) - place(at), count, f"{moment(at)}: {count:,}") for at, count in points
        ]
        ticks = time_ticks(first, last, wide, place)
        return _svg(name, width, "Completed tasks over time", says, bars, ticks, [], f"Time (UTC), {dates}", most)

    return _both(draw)


def of_durations(bins: Bins, counts: Sequence[int], marks: Sequence[tuple[str, float]]) -> str:
    """Draw how many durations fall into each part of an axis; `marks`: quantiles, by name."""
    total, most = sum(counts), max(counts)
    quantiles = "; ".join(f"{name} {span(value)}" for name, value in marks)
    says = f"{total:,} durations from {span(bins.low)} to {span(bins.high)}. {quantiles}."
    title = "Completed tasks by duration" + (", on a logarithmic scale" if bins.is_log else "")

    def draw(name: str, width: int) -> str:
        left = _left(most)
        wide = width - left - RIGHT

        def place(seconds: float) -> float:
            if bins.is_log:
                part = math.log(max(seconds, bins.low) / bins.low) / math.log(bins.high / bins.low)
            else:
                part = (seconds - bins.low) / (bins.high - bins.low)
            return left + min(1.0, max(0.0, part)) * wide

        edges = [bins.edge(number) for number in range(bins.count + 1)]
        bars = [
            _Bar(place(a), place(b) - place(a), count, f"{span(a)} to {span(b)}: {count:,}")
            for (a, b), count in zip(pairwise(edges), counts, strict=True)
            if count
        ]
        ticks = length_ticks(bins, wide, place)
        drawn = [_Mark(place(value), f"{mark}: {span(value)}") for mark, value in marks]
        return _svg(name, width, title, says, bars, ticks, drawn, "Duration", most)

    return _both(draw)


def time_ticks(first: float, last: float, wide: float, place: _Place) -> list[_Tick]:
    """Return ticks that tell times apart: the time as fine as they need it, and below it the day where that changes.

    Ticks of whole days have the day, and below it the year. The axis has the full dates of its ends.
    """
    for step in STEPS_S:
        text, below = ("%H:%M:%S" if step < MINUTE_S else "%H:%M", "%m-%d") if step < DAY_S else ("%m-%d", "%Y")
        if step / (last - first) * wide >= len(_clock(first, text)) * CHAR + GAP:
            break
    ticks, before = [], ""
    for number in range(math.ceil(first / step), math.floor(last / step) + 1):
        label, under = _clock(number * step, text), _clock(number * step, below)
        ticks.append(_Tick(place(number * step), (label, under) if under != before else (label,)))
        before = under
    if not ticks:  # a span that holds no whole step: say at least where it begins
        ticks = [_Tick(place(first), (_clock(first, "%H:%M:%S"), _clock(first, "%m-%d")))]
    return ticks


def length_ticks(bins: Bins, wide: float, place: _Place) -> list[_Tick]:
    """Return ticks of an axis of durations, as many as have room."""
    if bins.is_log:
        found = [(length, _length(length)) for length in LENGTHS_S if bins.low <= length * 1.001 <= bins.high * 1.002]
    else:
        size, unit = next(
            (one for one in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min"), (1, "s")) if bins.high >= 2 * one[0]),
            (0.001, "ms"),
        )
        step = _nice((bins.high - bins.low) / size / max(1.0, wide / (CHAR * 10 + GAP)))
        decimals = max(0, -math.floor(math.log10(step) + 1e-9))
        numbers = range(math.ceil(bins.low / size / step - 1e-9), math.floor(bins.high / size / step + 1e-9) + 1)
        found = [(number * step * size, f"{number * step:,.{decimals}f} {unit}") for number in numbers]
    ticks: list[_Tick] = []
    end = -math.inf
    for value, label in found:
        x, half = place(value), len(label) * CHAR / 2
        if x - half >= end + GAP:
            ticks.append(_Tick(x, (label,)))
            end = x + half
    return ticks


def count_ticks(most: int) -> list[int]:
    """Return about four round numbers from 0 on; the last is the greatest count, or more."""
    step = max(1, math.ceil(_nice(most / 4)))
    return list(range(0, most + step, step))


def _svg(
    name: str, width: int, title: str, says: str, bars: Sequence[_Bar], ticks: Sequence[_Tick], marks: Sequence[_Mark],
    axis: str, most: int,
) -> str:  # fmt: skip
    """Put a chart together: grid, bars, marks (each with a line of its own for its name), axes."""
    rows = 16 * len(marks)
    top, base, left, right = TOP + rows, HEIGHT + rows - BOTTOM, _left(most), width - RIGHT
    greatest = count_ticks(most)[-1]
    drawn = [
        f'<svg class="{name}" viewBox="0 0 {width} {HEIGHT + rows}" role="img"'
        f' aria-label="{escape(f"{title}. {says}")}">',
        f"<title>{escape(title)}</title><desc>{escape(says)}</desc>",
    ]
    for count in count_ticks(most):
        y = base - count / greatest * (base - top)
        drawn.append(f'<path class="grid" d="M{left} {y:.1f}H{right}"/>')
        drawn.append(f'<text class="y" x="{left - 8}" y="{y + 4:.1f}" text-anchor="end">{count:,}</text>')
    for bar in bars:
        high = max(1.0, bar.count / greatest * (base - top))
        gap = 1 if bar.width > 3 else 0
        drawn.append(
            f'<rect x="{bar.x:.1f}" y="{base - high:.1f}" width="{max(1.0, bar.width - gap):.1f}" height="{high:.1f}">'
            f"<title>{escape(bar.says)}</title></rect>"
        )
    names = []
    for row, mark in enumerate(marks):
        y = TOP + 16 * row
        side, anchor = (5, "start") if mark.x < (left + right) / 2 else (-5, "end")
        drawn.append(f'<path class="mark" d="M{mark.x:.1f} {y - 8}V{base}"/>')
        names.append(f'<text class="q" x="{mark.x + side:.1f}" y="{y + 2}" text-anchor="{anchor}">{mark.label}</text>')
    drawn += names  # above all lines: a line that crosses a name stops at its edge
    drawn.append(f'<path class="axis" d="M{left} {top}V{base}H{right}"/>')
    for tick in ticks:
        drawn.append(f'<path class="axis" d="M{tick.x:.1f} {base}v5"/>')
        for line, label in enumerate(tick.labels):
            y = base + 18 + 15 * line
            drawn.append(f'<text class="x" x="{tick.x:.1f}" y="{y}" text-anchor="middle">{escape(label)}</text>')
    drawn.append(f'<text x="{right}" y="{HEIGHT + rows - 4}" text-anchor="end">{escape(axis)}</text></svg>')
    return "".join(drawn)


def _both(draw: Callable[[str, int], str]) -> str:
    return "\n".join(draw(name, width) for name, width in WIDTHS.items())


def _left(most: int) -> int:
    """Return how much room the labels of the counts need; half of the first label below stands there, too."""
    return round(max(len(f"{count_ticks(most)[-1]:,}") * CHAR + 12, CHAR * 5 + 4))


def _nice(least: float) -> float:
    """Return the least of 1, 2, 5 times a power of ten that is not less."""
    power = 10.0 ** math.floor(math.log10(least))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999999)


def _length(seconds: float) -> str:
    for size, unit in ((DAY_S, "d"), (HOUR_S, "h"), (MINUTE_S, "min"), (1, "s")):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds * 1000:.0f} ms"


def _clock(at_s: float, form: str) -> str:
    return time.strftime(form, time.gmtime(at_s))
