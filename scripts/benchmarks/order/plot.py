"""Draw PEI against workers, and TaskMaster's plots, with matplotlib, as SVG."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import EngFormatter, FuncFormatter, NullFormatter

from benchmarks.order.figures import Rows, share
from benchmarks.plot import _nothing, _page

STYLES = [
    {"color": "#0072b2", "marker": "o"},
    {"color": "#d55e00", "marker": "D"},
    {"color": "#009e73", "marker": "^"},
    {"color": "#b3589a", "marker": "s"},
    {"color": "#767676", "marker": "v"},
    {"color": "#56b4e9", "marker": "P"},
]
"""Colours that colour-blind readers tell apart (Okabe and Ito), and marks for those who print in grey."""
OPERATIONS = {"insert": "insert", "insert_priority": "insert with priority", "work": "lease + complete"}

Line = list[tuple[float, float]]


def pei(rows: Rows) -> str:
    """Return an SVG of the median PEI against workers: a panel for each way to fill, and for the simulation."""
    if not rows.found("pei"):
        return _nothing("PEI", "This run measured no PEI.")
    panels: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
        ("singly inserted", "pei", "pei", {"way": "single"}),
        ("inserted in bulk", "pei", "pei", {"way": "bulk"}),
        ("simulated, 2 peeks, basic policy", "simulated", "basic", {}),
        ("simulated, 2 peeks, better policy", "simulated", "better", {}),
    )
    medians = [
        row[key]["median"] for _, step, key, wanted in panels for row in rows.found(step, **wanted) if key in row
    ]
    title = "Median PEI: tasks that a pop passed over (symmetric log axis; lower is better)"
    with _page(11, 6.5, title) as (figure, out):
        for axes, (name, step, key, wanted) in zip(figure.subplots(2, 2, sharey=True).flat, panels, strict=True):
            axes.set_title(name, loc="left")
            for number, shards in enumerate(rows.kinds(step, "shards")):
                found = rows.found(step, shards=shards, **wanted)
                line = [(row["workers"], row[key]["median"]) for row in found if key in row]
                if line:
                    axes.plot(
                        *zip(*line, strict=True),
                        label="1 shard" if shards == 1 else f"{shards} shards",
                        markersize=4,
                        **_style(number),
                    )
            axes.set_yscale("symlog", linthresh=1)
            axes.set_ylim(0, max(1, *medians) * 1.5)
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))
            _workers(axes, rows.kinds("pei", "workers"))
            axes.set_ylabel("tasks")
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    return out.getvalue()


def _style(number: int) -> dict[str, Any]:
    return STYLES[number % len(STYLES)]


def _workers(axes: Axes, counts: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [str(count) for count in counts])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("workers at the same time")
    axes.grid(alpha=0.4)


def taskmaster(rows: Rows) -> str:
    """Return an SVG: throughput and latency against the size of batches, collisions, isolation."""
    if not any(rows.found(step) for step in ("bulk", "collisions", "isolation")):
        return _nothing("TaskMaster's benchmarks", "This run measured none of them.")
    with _page(11, 7, "TaskMaster's benchmarks, with fsqueue") as (figure, out):
        throughput, latency, collisions, isolation = figure.subplots(2, 2).flat
        _bulk(throughput, latency, rows)
        _collisions(collisions, rows)
        _isolation(isolation, rows)
    return out.getvalue()


def _bulk(throughput: Axes, latency: Axes, rows: Rows) -> None:
    sizes = rows.kinds("bulk", "n")
    for number, (operation, title) in enumerate(OPERATIONS.items()):
        verb = "lease" if operation == "work" else "insert"
        fast = [(n, rate) for n in sizes if (rate := rows.rate("bulk", n=n, operation=operation))]
        slow = {
            percentile: [
                (n, us / 1000)
                for n in sizes
                if (us := rows.latency("bulk", verb, percentile, n=n, operation=operation))
            ]
            for percentile in ("p20", "p50", "p80")
        }
        if fast:
            throughput.plot(*zip(*fast, strict=True), label=title, markersize=4, **_style(number))
            _spread(latency, slow, verb if operation == "work" else title, number)
    for axes, title, unit in (
        (throughput, "throughput against the size of a batch (figure 5a)", "tasks a second"),
        (latency, "latency: median, 20th to 80th percentile (figure 5b)", "ms a call"),
    ):
        _logs(axes, title, "tasks in a batch", unit, bool(sizes))


def _spread(axes: Axes, lines: dict[str, Line], label: str, number: int) -> None:
    x, middle = zip(*lines["p50"], strict=True)
    low, high = ([value for _, value in lines[key]] for key in ("p20", "p80"))
    errors = [
        [mid - lo for mid, lo in zip(middle, low, strict=True)],
        [hi - mid for mid, hi in zip(middle, high, strict=True)],
    ]
    axes.errorbar(x, middle, yerr=errors, label=label, markersize=4, capsize=2, **_style(number))


def _logs(axes: Axes, title: str, x: str, y: str, is_measured: bool) -> None:
    axes.set_title(title, loc="left")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    if not is_measured:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center")
        return
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(_plain))
        axis.set_minor_formatter(NullFormatter())
    axes.grid(alpha=0.4)
    axes.legend(fontsize=8, frameon=False)


def _plain(value: float, _: object) -> str:
    """Return a number for an axis: 0.1, 10, 1k."""
    return f"{value:g}" if value < 1000 else f"{value / 1000:g}k"


def _collisions(axes: Axes, rows: Rows) -> None:
    axes.set_title("latency of keyed inserts against collisions (figure 3)", loc="left")
    found = [row for row in rows.found("collisions") if row["collisions"] is not None]
    axes.set_xlabel("likelihood of the same key")
    axes.set_ylabel("ms: median, 20th to 80th percentile")
    if not found:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center")
        return
    x = [row["collisions"] for row in found]
    lines = {
        key: [(place, row["latency_us"]["insert"][key] / 1000) for place, row in zip(x, found, strict=True)]
        for key in ("p20", "p50", "p80")
    }
    _spread(axes, lines, "with keys", 0)
    plain = rows.latency("collisions", "insert", "p50", collisions=None)
    if plain:
        axes.axhline(plain / 1000, color="#767676", linestyle="--", label="without keys")
    axes.set_xscale("symlog", linthresh=0.001)
    axes.set_yscale("log")
    axes.set_xticks(x, [f"{value:g}" for value in x])
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.yaxis.set_major_formatter(FuncFormatter(_plain))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylim(bottom=min(axes.get_ylim()[0], 0.1))
    axes.grid(alpha=0.4)
    axes.legend(fontsize=8, frameon=False)


def _isolation(axes: Axes, rows: Rows) -> None:
    axes.set_title("a lone worker beside loaders of other queues (figure 6a)", loc="left")
    axes.set_xlabel("loaders")
    axes.set_ylabel("tasks a second")
    loaders = [count for count in rows.kinds("isolation", "loaders") if rows.rate("isolation", loaders=count)]
    alone = rows.rate("isolation", loaders=0)
    if not loaders or not alone:
        axes.text(0.5, 0.5, "not measured", transform=axes.transAxes, ha="center")
        return
    cores = int(rows.value("cores", lambda row: row["cores"]) or 1)
    rates = [rows.rate("isolation", loaders=count) or 0.0 for count in loaders]
    shares = [alone * share(count, cores) for count in loaders]
    axes.plot(loaders, rates, label="the lone worker", markersize=4, **_style(0))
    axes.plot(loaders, shares, color="#767676", linestyle="--", label="its share of the machine")
    axes.plot(loaders, [value / 2 for value in shares], color="#767676", linestyle=":", label="half of that")
    axes.set_ylim(bottom=0)
    axes.yaxis.set_major_formatter(EngFormatter(sep=""))
    axes.grid(alpha=0.4)
    axes.legend(fontsize=8, frameon=False)
