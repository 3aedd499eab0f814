"""A report as a page of HTML that needs nothing else: a chart drawn as SVG, and tables."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from fsqueue.names import day_of

if TYPE_CHECKING:
    from fsqueue.spark.jobs.report import Report

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 900, 260, 70, 30, 15
STYLE = """body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:.5rem 0}td,th{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}
th{border-bottom:1px solid #999}td.n{text-align:right;font-variant-numeric:tabular-nums}
svg{width:100%;height:auto}text{font-size:12px;fill:#444}"""


def page(queue: str, report: Report) -> str:
    """The whole page."""
    quantiles = [
        {"": name, "median": values[0], "90 %": values[1], "99 %": values[2], "longest": values[3]}
        for name, values in (("waited", report.wait_s), ("took", report.duration_s))
        if values
    ]
    parts = [
        f"<!doctype html><html lang=en><meta charset=utf-8><title>{escape(queue)}</title><style>{STYLE}</style>",
        f"<h1>{escape(queue)}</h1>",
        table([report.attempts]),
        f"<h2>Throughput</h2><p>Completed tasks in {report.step_s:,} s each.</p>",
        bars(report.throughput, report.step_s),
        "<h2>Completed tasks, in seconds</h2>",
        table(quantiles),
        "<h2>Failures</h2>",
        table(report.failures),
        "<h2>Hosts</h2>",
        table(report.hosts),
    ]
    return "\n".join(parts) + "\n"


def table(rows: list[dict[str, Any]]) -> str:
    """Rows with the same columns as a table; numbers stand right."""
    if not rows or not rows[0]:
        return "<p>None.</p>"
    head = "".join(f"<th>{escape(str(name).replace('_', ' '))}" for name in rows[0])
    body = "".join("<tr>" + "".join(map(_cell, row.values())) for row in rows)
    return f"<table><tr>{head}{body}</table>"


def _cell(value: Any) -> str:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return f"<td>{escape('–' if value is None else str(value))}"
    return f"<td class=n>{value:,}" if isinstance(value, int) else f"<td class=n>{value:,.3g}"


def bars(points: list[tuple[float, int]], step_s: int) -> str:
    """Counts over time as SVG; `points` are (Unix seconds, count), ascending, a step apart or several."""
    if not points:
        return "<p>None.</p>"
    first, last = points[0][0], points[-1][0] + step_s
    most = max(count for _, count in points)
    wide, high = WIDTH - LEFT, HEIGHT - BOTTOM - TOP
    drawn = []
    for at, count in points:
        x = LEFT + (at - first) / (last - first) * wide
        height = count / most * high
        width = max(1.0, step_s / (last - first) * wide - 1)
        drawn.append(
            f'<rect x="{x:.1f}" y="{TOP + high - height:.1f}" width="{width:.1f}" height="{height:.1f}" fill="#3b6ea5">'
            f"<title>{moment(at)}: {count:,}</title></rect>"
        )
    base = TOP + high
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
        f'{"".join(drawn)}<path d="M{LEFT} {TOP}V{base}H{WIDTH}" fill="none" stroke="#444"/>'
        f'<text x="{LEFT - 6}" y="{TOP + 10}" text-anchor="end">{most:,}</text>'
        f'<text x="{LEFT - 6}" y="{base}" text-anchor="end">0</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 8}">{moment(first)}</text>'
        f'<text x="{WIDTH}" y="{HEIGHT - 8}" text-anchor="end">{moment(last)}</text></svg>'
    )


def moment(at_s: float) -> str:
    """Unix seconds as day and time, UTC."""
    minute = int(at_s) // 60 % 1440
    return f"{day_of(int(at_s * 1000))} {minute // 60:02d}:{minute % 60:02d} UTC"
