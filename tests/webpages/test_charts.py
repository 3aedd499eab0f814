"""What charts show, from plain numbers: bars, ticks, and what a screen reader reads.

tests/spark/test_report_page.py looks at them in a browser.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue.webpages import charts

T = 1_795_384_800.0


@given(st.floats(0, 1e7), st.floats(0, 1e7))
def test_the_bars_hold_every_duration(one: float, other: float) -> None:
    shortest, longest = sorted((one, other))
    bins = charts.bins_for(shortest, longest)
    edges = [bins.edge(number) for number in range(bins.count + 1)]
    assert all(a < b for a, b in pairwise(edges))
    assert edges[0] <= max(shortest, charts.SHORTEST_S)
    assert longest <= edges[-1] * 1.0001
    assert bins.count <= 70
    assert [bins.place(edge) for edge in edges] == pytest.approx([n / bins.count for n in range(bins.count + 1)])


@given(st.floats(0, 4e9), st.floats(1, 1e9), st.sampled_from(sorted(charts.WIDTHS.values())))
def test_ticks_tell_times_apart_and_have_room(first: float, length: float, width: int) -> None:
    ticks = charts.time_ticks(first, first + length, width)
    assert ticks
    assert len(ticks[0].labels) == 2  # with the day, or the year
    told, day = [], ""
    for tick in ticks:
        day = tick.labels[1] if len(tick.labels) > 1 else day
        told.append((tick.labels[0], day))
    assert len(set(told)) == len(told)
    assert all(0 <= tick.at <= 1 for tick in ticks)
    for a, b in pairwise(ticks):
        assert (b.at - a.at) * width >= len(a.labels[0]) * charts.CHAR


@pytest.mark.parametrize(
    ("length", "looks"),
    [(1, "22:00:01"), (90, "22:00:10"), (5400, "22:10"), (40_000, "23:00"), (200_000, "00:00"), (3e6, "11-28"),
     (3e8, "2030")],
)  # fmt: skip
def test_ticks_are_as_fine_as_the_span_needs(length: float, looks: str) -> None:
    ticks = charts.time_ticks(T, T + length, 750)
    assert looks in [label for tick in ticks for label in tick.labels]
    assert 2 <= len(ticks) <= 16


@given(st.floats(0, 1e7), st.floats(0, 1e7), st.sampled_from(sorted(charts.WIDTHS.values())))
def test_ticks_of_durations_differ_and_have_room(one: float, other: float, width: int) -> None:
    ticks = charts.length_ticks(charts.bins_for(*sorted((one, other))), width)
    assert ticks
    assert len({tick.labels for tick in ticks}) == len(ticks)
    for a, b in pairwise(ticks):
        assert (b.at - a.at) * width >= (len(a.labels[0]) + len(b.labels[0])) / 2 * charts.CHAR


@pytest.mark.parametrize("most", [1, 2, 3, 7, 99, 1000, 12_345_678, 4_000_000_000])
def test_ticks_of_counts_are_whole_reach_the_top_and_have_short_labels(most: int) -> None:
    ticks = charts.count_ticks(most)
    assert ticks[0] == 0
    assert most <= ticks[-1] <= 2 * most
    assert len(ticks) <= 6
    labels = [tick.labels[0] for tick in charts.over_time([(T, most)], 1).counts]
    assert len(set(labels)) == len(ticks)
    assert max(map(len, labels)) <= 5
    assert all(value == count for value, count in zip(map(number, labels), ticks, strict=True))


def number(label: str) -> float:
    digits, _, unit = label.replace(",", "").partition(" ")
    return float(digits) * {"": 1, "k": 1e3, "M": 1e6, "G": 1e9}[unit]


def test_counts_over_time() -> None:
    chart = charts.over_time([(T, 3), (T + 20, 1)], 10)
    assert [(bar.at, bar.width, bar.height) for bar in chart.bars] == [
        (0, pytest.approx(1 / 3), 1),
        (pytest.approx(2 / 3), pytest.approx(1 / 3), pytest.approx(1 / 3)),
    ]
    assert chart.bars[1].says == "2026-11-22 22:00:20 UTC: 1"
    assert chart.says == (
        "4 completed tasks from 2026-11-22 22:00:00 UTC to 2026-11-22 22:00:30 UTC, in bars of 10 s each. "
        "The highest bar has 3, from 2026-11-22 22:00:00 UTC."
    )
    assert charts.over_time([(T, 1)], 86_400).says.startswith("1 completed task from")


def test_counts_of_durations() -> None:
    bins = charts.Bins(1.0, 10_000.0, 4, True)
    chart = charts.of_durations(bins, [2, 0, 0, 8], [("median", 100.0), ("90 %", 1e6)])
    assert [(bar.at, bar.width, bar.height) for bar in chart.bars] == [(0, 0.25, 0.25), (0.75, 0.25, 1)]
    assert chart.bars[0].says == "1 s to 10 s: 2"
    assert [(mark.at, *mark.labels) for mark in chart.marks] == [
        (pytest.approx(0.5), "median: 1 min 40 s"),
        (1, "90 %: 11 d 14 h"),
    ]
    assert chart.title == "Completed tasks by duration, on a logarithmic scale"
    assert chart.says == "10 durations from 1 s to 2 h 47 min. median 1 min 40 s; 90 % 11 d 14 h."
