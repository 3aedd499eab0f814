"""Draw the results with matplotlib, as SVG: cost against size in small multiples, latencies as rows of percentiles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import StringIO
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, NullFormatter

from benchmarks import alive
from benchmarks.summary import Summary
from benchmarks.systems import BY_NAME
from fsqueue.simulation import Distribution
from fsqueue.simulation import figures as simulation_figures

# Colours that colour-blind readers tell apart (Okabe and Ito), and marks for those who print in grey.
STYLES: dict[str, dict[str, Any]] = {
    "fsqueue": {"color": "#0072b2", "marker": "o", "linewidth": 2.6},
    "fsqueue-single": {"color": "#56b4e9", "marker": "s"},
    "floor": {"color": "#767676", "marker": "_", "linestyle": "--"},
    "task-queue": {"color": "#d55e00", "marker": "D"},
    "dirq": {"color": "#009e73", "marker": "^"},
    "huey": {"color": "#b3589a", "marker": "s"},
    "huey-nosync": {"color": "#b3589a", "marker": "o", "linestyle": ":"},
}
LOOK = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "fsqueue",  # equal results give equal files
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 10,
    "axes.labelsize": 9,
    "font.size": 9,
}


@dataclass(frozen=True)
class Panel:
    """One small plot: a step, and the row's key that it shows (None: microseconds a task)."""

    step: str
    title: str
    unit: str
    key: str | None = None
    factor: float = 1.0


PANELS = (
    Panel("insert", "insert many", "µs a task"),
    Panel("lease_one", "lease 1 + complete", "µs a task"),
    Panel("lease_many", "lease 100 + complete", "µs a task"),
    Panel("leased", "lease 1 + complete, 60 % leased", "µs a task"),
    Panel("status", "status", "ms", "seconds", 1e3),
    Panel("delete", "delete, until reaped", "µs a task"),
)
KEYS = ("p50", "p90", "p99", "max")
ROW_INCHES = 0.3


@contextmanager
def _page(width: float, height: float, title: str) -> Iterator[tuple[Figure, StringIO]]:
    """Give a figure to draw into; its SVG is in the stream afterwards."""
    out = StringIO()
    with mpl.rc_context(LOOK):
        figure = Figure(figsize=(width, height), layout="constrained")
        figure.suptitle(title, fontweight="bold")
        yield figure, out
        figure.savefig(out, format="svg", metadata={"Date": None, "Title": title})


def _nothing(title: str, why: str) -> str:
    with _page(9, 1.3, title) as (figure, out):
        figure.text(0.05, 0.3, why)
    return out.getvalue()


def _points(summary: Summary, panel: Panel, name: str) -> list[tuple[int, float]]:
    found = []
    for size in summary.sizes(panel.step, name):
        value = (
            summary.value(name, panel.step, size, panel.key) if panel.key else summary.task_us(name, panel.step, size)
        )
        whole = not any("note" in row for row in summary.rounds(name, panel.step, size))
        if value and size and whole:
            found.append((size, value * panel.factor))
    return found


def costs(summary: Summary) -> str:
    """Return an SVG of cost against size, a panel a step."""
    series = {panel: {name: _points(summary, panel, name) for name in STYLES} for panel in PANELS}
    if not any(points for lines in series.values() for points in lines.values()):
        return _nothing("Nothing measured", "This run measured nothing that could be drawn.")
    with _page(10, 7, "Cost against the size of the queue (log axes; lower is better)") as (figure, out):
        all_axes = figure.subplots(2, 3)
        for axes, panel in zip(all_axes.flat, PANELS, strict=True):
            _draw(axes, panel, series[panel])
        known = {
            text: line for axes in all_axes.flat for line, text in zip(*axes.get_legend_handles_labels(), strict=True)
        }
        figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=4, frameon=False)
    return out.getvalue()


def _draw(axes: Axes, panel: Panel, lines: dict[str, list[tuple[int, float]]]) -> None:
    axes.set_title(panel.title, loc="left")
    axes.set_ylabel(panel.unit)
    axes.set_xlabel("tasks")
    if not any(lines.values()):
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center")
        axes.set(xticks=[], yticks=[])
        return
    for name, points in reversed(lines.items()):  # fsqueue's line on top
        if points:
            axes.loglog(*zip(*points, strict=True), label=BY_NAME[name].title, markersize=4, **STYLES[name])
    axes.grid(alpha=0.4)
    _label(axes.xaxis)
    _label(axes.yaxis)


def _label(axis: Axis) -> None:
    """Give a log axis whole decades, each with a plain number: 10, 1k, 1M."""
    least, most = axis.get_data_interval()
    axis.set_view_interval(
        10 ** math.floor(math.log10(least)) * 0.9, 10 ** math.ceil(math.log10(most)) * 1.1, ignore=True
    )
    axis.set_major_formatter(EngFormatter(sep=""))
    axis.set_minor_formatter(NullFormatter())


def latencies(summary: Summary, size: int) -> str:
    """Return an SVG of how long a lease and a completion take, p50 to max, a row a system."""
    rows = [
        (name, verb, found)
        for name in STYLES
        for verb in ("lease", "complete")
        if (found := summary.latency(name, "lease_one", size, verb))
        and found["p50"] > 1  # huey's completions are nothing
    ]
    title = f"Latency of lease 1 and complete at {size:,} tasks"
    if not rows:
        return _nothing(title, "This run measured no latencies at this size.")
    with _page(9, 1.4 + ROW_INCHES * len(rows), title) as (figure, out):
        axes = figure.subplots()
        for place, (name, _, found) in enumerate(rows):
            colour = STYLES[name]["color"]
            values = [found[key] for key in KEYS]
            axes.plot(values, [place] * len(KEYS), "-o", color=colour, alpha=0.6, markersize=4)
            axes.plot(values[0], place, "o", color=colour, markersize=7)
            axes.plot(values[-1], place, "o", color=colour, markerfacecolor="white")
        axes.set_yticks(range(len(rows)), [f"{BY_NAME[name].title}: {verb}" for name, verb, _ in rows])
        axes.invert_yaxis()
        axes.set_xscale("log")
        _label(axes.xaxis)
        axes.set_xlabel("microseconds, log axis; each row: p50 (full), p90, p99, and the worst (hollow)")
        axes.grid(axis="x", alpha=0.4)
    return out.getvalue()


def growth(tenths: list[dict[str, Any]]) -> str:
    """Return an SVG of what each command, each verb and the files of a soak took, in each tenth of it."""
    x = [each["movements"] for each in tenths]
    commands = {
        alive.typed(name): [each["commands"][name]["cpu_s"] * 1e3 for each in tenths] for name in tenths[0]["commands"]
    }
    memory = {
        alive.typed(name): [each["commands"][name]["memory_mb"] for each in tenths] for name in tenths[0]["commands"]
    }
    verbs = {
        name: [each["verbs"].get(name, {}).get("cpu_us", math.nan) for each in tenths] for name in tenths[0]["verbs"]
    }
    files = {kind: [each["usage"][kind][0] for each in tenths] for kind in tenths[0]["usage"]}
    files |= {"all": [each["inodes"] for each in tenths]}
    files = {kind: [count or math.nan for count in counts] for kind, counts in files.items() if any(counts)}
    panels = (
        ("commands: CPU time, with the start of Python", "ms", commands),
        ("commands: peak memory", "MB", memory),
        ("verbs: CPU time", "µs a task; gc: µs a call", verbs),
        ("files and directories", "", files),
    )
    with _page(11, 9, "What a queue costs in each tenth of a soak (log axis; lower is better)") as (figure, out):
        for axes, (title, unit, lines) in zip(figure.subplots(2, 2).flat, panels, strict=True):
            axes.set_title(title, loc="left")
            axes.set_ylabel(unit)
            axes.set_xlabel("movements")
            for number, (name, values) in enumerate(lines.items()):
                colour, mark = list(mpl.color_sequences["tab10"])[number % 10], "os^Dv"[(number + number // 10) % 5]
                axes.semilogy(x, values, color=colour, marker=mark, markersize=3, label=name)
            axes.set_xlim(0, max(x) * 1.03)
            axes.xaxis.set_major_formatter(EngFormatter(sep=""))
            _label(axes.yaxis)
            axes.grid(alpha=0.4)
            axes.legend(fontsize=7, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    return out.getvalue()


PEI_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#b3589a")
PEI_LOG = {3: (True, True), 5: (True, True), 6: (True, True), 7: (True, True)}
"""By number of the figure: whether x and y are log axes, if not neither."""


def pei(figure: simulation_figures.Figure, greatest: float | None = None) -> str:
    """Return an SVG of one of the paper's figures. `greatest`: where the y axis ends, to be like another figure's."""
    (first, *_), series = figure.points, figure.series()
    with _page(9.5, 4, f"Figure {figure.number}: {figure.title}") as (page, out):
        axes = page.subplots()
        if len(figure.points) == 1:
            made = first.distribution
            shown = range(made.p99 + 1)
            axes.bar(shown, [100 * made.share(index) for index in shown], width=1.0, color=PEI_COLOURS[0])
            axes.set(xlabel="index of the popped element (PEI), up to the 99th percentile", ylabel="% of the pops")
            axes.grid(axis="y", alpha=0.4)
        else:
            _pei_lines(axes, figure, series, greatest)
    return out.getvalue()


def _pei_lines(
    axes: Axes,
    figure: simulation_figures.Figure,
    series: dict[str, dict[int, Distribution]],
    greatest: float | None,
) -> None:
    several = len(series) > 1
    for number, (name, made) in enumerate(series.items()):
        for place, measure in enumerate(("mean", "median") if several else simulation_figures.MEASURES):
            axes.plot(
                list(made),
                [getattr(one, measure) for one in made.values()],
                color=PEI_COLOURS[number if several else place],
                marker="os^D"[place],
                markersize=4,
                linestyle="-" if not several or not place else "--",
                label=f"{name}: {measure}" if several else measure,
            )
    log_x, log_y = PEI_LOG.get(figure.number, (False, False))
    axes.set(xlabel=figure.x_name, ylabel="PEI (lower is better)")
    if log_x:
        axes.set_xscale("log")
        axes.set_xticks(sorted({point.case.x for point in figure.points}))
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
        axes.xaxis.set_minor_formatter(NullFormatter())
    least, most = axes.yaxis.get_data_interval()
    if log_y and least < 1:  # with many peeks most pops give the first: 0 needs a place
        axes.set_yscale("symlog", linthresh=1)
    elif log_y:
        axes.set_yscale("log")
    if log_y:
        axes.yaxis.set_major_formatter(EngFormatter(sep=""))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(bottom=1 if log_y and least >= 1 else 0, top=greatest or most * 1.3)
    axes.grid(alpha=0.4)
    axes.legend(fontsize=8, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
