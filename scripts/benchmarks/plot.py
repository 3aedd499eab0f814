"""Plots as SVG, by hand: small multiples of cost against size on log axes, and latencies as rows of percentiles."""

from __future__ import annotations

import math
from dataclasses import dataclass
from xml.sax.saxutils import escape

from benchmarks.summary import Summary
from benchmarks.systems import BY_NAME

# Colours that colour-blind readers tell apart (Okabe and Ito), and marks for those who print in grey.
STYLES = {
    "fsqueue": ("#0072b2", "circle", ""),
    "fsqueue-single": ("#56b4e9", "square", ""),
    "floor": ("#767676", "none", "5 4"),
    "task-queue": ("#d55e00", "diamond", ""),
    "dirq": ("#009e73", "triangle", ""),
    "huey": ("#b3589a", "square", ""),
    "huey-nosync": ("#b3589a", "circle", "2 3"),
}
INK, FAINT, GRID = "#222222", "#666666", "#e2e2e2"
FONT = "font-family='DejaVu Sans, Verdana, Helvetica, Arial, sans-serif'"


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

WIDTH, HEIGHT = 900, 640
PANEL_W, PANEL_H = 225, 195
LEFT, TOP, STEP_X, STEP_Y = 62, 92, 285, 272


def text(
    x: float, y: float, content: str, size: int = 12, anchor: str = "start", colour: str = INK, extra: str = ""
) -> str:
    """A piece of text."""
    style = f"font-size='{size}' text-anchor='{anchor}' fill='{colour}' {extra}"
    return f"<text x='{x:.1f}' y='{y:.1f}' {style}>{escape(content)}</text>"


def mark(x: float, y: float, kind: str, colour: str, size: float = 4) -> str:
    """A mark at a measured point."""
    wide, tall = 1.3 * size, 1.4 * size
    shapes = {
        "circle": f"<circle cx='{x:.1f}' cy='{y:.1f}' r='{size}'",
        "square": f"<rect x='{x - size:.1f}' y='{y - size:.1f}' width='{2 * size}' height='{2 * size}'",
        "diamond": f"<path d='M{x:.1f} {y - tall:.1f}l{wide} {tall}l{-wide} {tall}l{-wide} {-tall}z'",
        "triangle": f"<path d='M{x:.1f} {y - 1.2 * size:.1f}l{1.2 * size} {2.2 * size}h{-2.4 * size}z'",
    }
    return f"{shapes[kind]} fill='{colour}'/>" if kind in shapes else ""


def decades(values: list[float]) -> tuple[int, int]:
    """The powers of ten that enclose the values, at least one apart."""
    low, high = math.floor(math.log10(min(values)) + 1e-9), math.ceil(math.log10(max(values)) - 1e-9)
    return low, max(high, low + 1)


def short(value: float) -> str:
    """A power of ten as a reader says it: 0.1, 10, 1k, 1M."""
    for limit, suffix in ((1e6, "M"), (1e3, "k")):
        if value >= limit:
            return f"{value / limit:g}{suffix}"
    return f"{value:g}"


def page(width: int, height: int, title: str, body: list[str]) -> str:
    """A whole SVG file; its background is white so that it can be read on dark pages."""
    return "\n".join(
        [
            f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {width} {height}' "
            f"width='{width}' height='{height}' {FONT} role='img'>",
            f"<title>{escape(title)}</title>",
            f"<rect width='{width}' height='{height}' fill='#ffffff'/>",
            *body,
            "</svg>\n",
        ]
    )


def _legend(names: list[str]) -> list[str]:
    parts = []
    x, y = float(LEFT), 50.0
    for name in names:
        title = BY_NAME[name].title
        needed = 44 + 6.9 * len(title)
        if x + needed > WIDTH - 10:
            x, y = float(LEFT), y + 18
        colour, kind, dash = STYLES[name]
        parts.append(_line([(x, y - 4), (x + 26, y - 4)], colour, dash, name))
        parts += [mark(x + 13, y - 4, kind, colour), text(x + 32, y, title, 11)]
        x += needed
    return parts


def _line(points: list[tuple[float, float]], colour: str, dash: str, name: str) -> str:
    width = 2.6 if name == "fsqueue" else 1.6
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = f" stroke-dasharray='{dash}'" if dash else ""
    return f"<polyline points='{path}' fill='none' stroke='{colour}' stroke-width='{width}'{dashes}/>"


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
    """Cost against size, a panel a step."""
    series = {panel: {name: _points(summary, panel, name) for name in STYLES} for panel in PANELS}
    shown = [name for name in STYLES if any(lines[name] for lines in series.values())]
    body = [
        text(
            LEFT, 26, "Cost against the size of the queue (log axes; lower is better)", 16, extra="font-weight='bold'"
        ),
        *_legend(shown),
    ]
    sizes = [float(size) for lines in series.values() for points in lines.values() for size, _ in points]
    if not sizes:
        return page(WIDTH, 120, "Nothing measured", [text(LEFT, 60, "This run measured nothing that could be drawn.")])
    for number, panel in enumerate(PANELS):
        body += _panel(panel, series[panel], LEFT + number % 3 * STEP_X, TOP + number // 3 * STEP_Y, decades(sizes))
    return page(WIDTH, HEIGHT, "Cost against the size of the queue", body)


def _panel(
    panel: Panel, lines: dict[str, list[tuple[int, float]]], left: float, top: float, across: tuple[int, int]
) -> list[str]:
    body = [
        text(left, top, panel.title, 13, extra="font-weight='bold'"),
        text(left, top + 15, panel.unit, 11, colour=FAINT),
    ]
    values = [value for points in lines.values() for _, value in points]
    plot_top = top + 24
    if not values:
        return [*body, text(left + PANEL_W / 2, plot_top + PANEL_H / 2, "not measured", 11, "middle", FAINT)]
    low, high = decades(values)

    def x_of(size: float) -> float:
        return left + (math.log10(size) - across[0]) / (across[1] - across[0]) * PANEL_W

    def y_of(value: float) -> float:
        return plot_top + PANEL_H - (math.log10(value) - low) / (high - low) * PANEL_H

    for power in range(low, high + 1):
        y = y_of(10.0**power)
        body.append(f"<line x1='{left}' x2='{left + PANEL_W}' y1='{y:.1f}' y2='{y:.1f}' stroke='{GRID}'/>")
        body.append(text(left - 6, y + 4, short(10.0**power), 11, "end", FAINT))
    for power in range(across[0], across[1] + 1):
        x = x_of(10.0**power)
        body.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{plot_top}' y2='{plot_top + PANEL_H}' stroke='{GRID}'/>")
        body.append(text(x, plot_top + PANEL_H + 16, short(10.0**power), 11, "middle", FAINT))
    body.append(text(left + PANEL_W, plot_top + PANEL_H + 31, "tasks", 11, "end", FAINT))
    for name in reversed(STYLES):  # fsqueue's line on top
        points = [(x_of(size), y_of(value)) for size, value in lines[name]]
        colour, kind, dash = STYLES[name]
        if len(points) > 1 or kind == "none":
            body.append(
                _line(
                    points
                    if len(points) > 1
                    else [(points[0][0] - 8, points[0][1]), (points[0][0] + 8, points[0][1])]
                    if points
                    else [],
                    colour,
                    dash,
                    name,
                )
            )
        body += [mark(x, y, kind, colour) for x, y in points]
    return body


ROW_H = 26
KEYS = ("p50", "p90", "p99", "max")


def latencies(summary: Summary, size: int) -> str:
    """How long a lease and a completion take, p50 to max, a row a system."""
    rows = []
    for name in STYLES:
        for verb in ("lease", "complete"):
            found = summary.latency(name, "lease_one", size, verb)
            if found and found["p50"] > 1:  # huey's completions are nothing at all
                rows.append((name, verb, found))
    title = f"Latency of lease 1 and complete at {size:,} tasks"
    if not rows:
        return page(WIDTH, 120, title, [text(30, 60, "This run measured no latencies at this size.")])
    left, top, width = 260.0, 84.0, WIDTH - 260.0 - 60
    low, high = decades([value for _, _, found in rows for value in (max(found["p50"], 0.1), found["max"])])

    def x_of(value: float) -> float:
        return left + (math.log10(max(value, 0.1)) - low) / (high - low) * width

    bottom = top + ROW_H * len(rows)
    body = [
        text(30, 26, title, 16, extra="font-weight='bold'"),
        text(
            30, 46, "microseconds, log axis; each row: p50 (full), p90, p99, and the worst (hollow)", 11, colour=FAINT
        ),
    ]
    for power in range(low, high + 1):
        x = x_of(10.0**power)
        body.append(f"<line x1='{x:.1f}' x2='{x:.1f}' y1='{top - 8}' y2='{bottom:.1f}' stroke='{GRID}'/>")
        body.append(text(x, top - 14, short(10.0**power), 11, "middle", FAINT))
    for number, (name, verb, found) in enumerate(rows):
        y = top + ROW_H * (number + 0.5)
        colour = STYLES[name][0]
        body.append(text(left - 12, y + 4, f"{BY_NAME[name].title}: {verb}", 11, "end"))
        first, last = x_of(found["p50"]), x_of(found["max"])
        stroke = f"stroke='{colour}' stroke-opacity='0.45' stroke-width='2'"
        body.append(f"<line x1='{first:.1f}' x2='{last:.1f}' y1='{y}' y2='{y}' {stroke}/>")
        for key, radius in zip(KEYS, (5.0, 3.6, 3.6, 4.2), strict=True):
            paint = f"fill='{'#ffffff' if key == 'max' else colour}' stroke='{colour}' stroke-width='1.6'"
            body.append(f"<circle cx='{x_of(found[key]):.1f}' cy='{y}' r='{radius}' {paint}/>")
    return page(WIDTH, int(bottom) + 20, title, body)
