"""A report as a page of HTML that needs nothing else: no script, no other file, for any window from a phone's on."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fsqueue.spark.jobs import charts

_HIDDEN = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""Characters that show nothing, that turn the direction of the text behind them, or that no file of UTF-8 can hold."""
COLUMNS_MAX = 4
"""With more columns a table is too wide for a phone. There each of its rows becomes a list, one column a line."""
QUANTILE_NAMES = ("median", "90 %", "99 %", "longest")

STYLE = """
:root{color-scheme:light dark;--back:#fff;--text:#1b1f24;--soft:#57606a;--line:#d0d7de;--bar:#2f6db3;--mark:#a04000}
@media(prefers-color-scheme:dark){
:root{--back:#15181c;--text:#e6e9ed;--soft:#a9b3bf;--line:#3b434d;--bar:#6ea8e6;--mark:#f0a868}}
*{box-sizing:border-box}
body{font:16px/1.5 system-ui,sans-serif;max-width:76rem;margin:0 auto;padding:1rem;color:var(--text);
background:var(--back);overflow-wrap:anywhere}
h1{font-size:1.6rem;margin:.5rem 0}h2{font-size:1.2rem;margin:2rem 0 .3rem}p{margin:.3rem 0 .8rem}
.soft,caption,footer{color:var(--soft)}footer{margin:2rem 0 1rem;font-size:.9rem}
.box{overflow-x:auto;max-width:100%;margin:.5rem 0 1rem}
.box:focus-visible,summary:focus-visible{outline:3px solid var(--bar);outline-offset:2px}
table{border-collapse:collapse;font-size:.92rem}caption{text-align:left;padding:.2rem 0;white-space:nowrap}
th,td{padding:.25rem 1rem .25rem 0;text-align:left;vertical-align:top;border-bottom:1px solid var(--line);
white-space:nowrap}
th{font-weight:600}.n{text-align:right;font-variant-numeric:tabular-nums}
.long{white-space:normal;min-width:20rem;font-weight:400}.id{font-family:ui-monospace,monospace;font-weight:400;font-size:.85rem}
summary{cursor:pointer;padding:.3rem 0}
svg{width:100%;max-width:56rem;height:auto;display:block}svg.narrow{display:none}
svg text{font:12px system-ui,sans-serif;fill:var(--text)}svg rect{fill:var(--bar)}
svg path{fill:none;stroke:var(--soft)}svg .grid{stroke:var(--line)}
svg .mark{stroke:var(--mark);stroke-dasharray:4 3}svg .q{fill:var(--mark);font-weight:600;
paint-order:stroke;stroke:var(--back);stroke-width:5px}
@media(max-width:640px){body{padding:.7rem}.long{min-width:13rem}svg.wide{display:none}svg.narrow{display:block}
.rows,.rows tbody,.rows tr,.rows th,.rows caption{display:block}
.rows thead{position:absolute;width:1px;height:1px;overflow:hidden;clip-path:inset(50%)}
.rows tr{padding:.4rem 0;border-bottom:1px solid var(--line)}
.rows td{display:grid;grid-template-columns:6.5rem 1fr}
.rows th,.rows td{white-space:normal;min-width:0;text-align:left;padding:.1rem 0;border:0}
.rows td::before{content:attr(data-column);content:attr(data-column)/"";color:var(--soft)}}
@media(forced-colors:active){svg rect{fill:CanvasText}svg text{fill:CanvasText}}
"""


@dataclass(frozen=True)
class QueueSummary:
    """A queue as it was found: how many tasks are in which state, and what it was created with."""

    path: str
    states: dict[str, int]
    settings: dict[str, Any]


@dataclass(frozen=True)
class QueueReport:
    """The numbers of a report, and where it was written. Times are Unix seconds, durations seconds.

    `duration_s` is the time at work, `held_s` the time under lease, `wait_s` the time until the lease: each the median,
    the 90 % and 99 % quantile and the longest of the completed tasks, empty if there are none. `throughput`:
    completions a step. `durations`: from, to, count, on a logarithmic scale if `is_log`. `queues` has the first of the
    queues, and `queue_count` says how many there are.
    """

    out: str
    attempts: dict[str, int]
    duration_s: list[float]
    wait_s: list[float]
    step_s: int
    throughput: list[tuple[float, int]]
    failures: list[dict[str, Any]]
    hosts: list[dict[str, Any]]
    held_s: list[float] = field(default_factory=list)
    durations: list[tuple[float, float, int]] = field(default_factory=list)
    is_log: bool = False
    slowest: list[dict[str, Any]] = field(default_factory=list)
    queues: list[QueueSummary] = field(default_factory=list)
    queue_count: int = 0
    looked_at: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, ready for JSON."""
        return asdict(self)


def page(queue: str, report: QueueReport) -> str:
    """Return the whole page of a report on the queue, or the directory of queues, at `queue`."""
    name = queue.rstrip("/").rpartition("/")[2] or queue
    looked = charts.moment(report.looked_at)
    sections = {
        "state": ("Tasks by state", _states(report)),
        "attempts": ("Attempts", _attempts(report)),
        "throughput": ("Throughput", _throughput(report)),
        "durations": ("Durations", _durations(report)),
        "slowest": ("Slowest tasks", _slowest(report)),
        "failures": ("Failures", _failures(report)),
        "hosts": ("Hosts", _hosts(report)),
    }
    parts = [
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(name)}: report of {escape(looked)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<header>",
        f"<h1>{escape(name)}</h1>",
        f"<p>The queue{'s in' if report.queue_count != 1 else ''} {escape(queue)}, looked at {looked}. "
        "All times are UTC.</p>\n</header>\n<main>",
    ]
    for key, (title, content) in sections.items():
        parts.append(f'<section aria-labelledby="{key}">\n<h2 id="{key}">{title}</h2>\n{content}\n</section>')
    parts.append(
        "</main>\n<footer><i>waited</i>: from when a task was available to its lease. <i>took</i>: the work. "
        "<i>leased</i>: the time under lease, also while a worker had the task leased ahead. All numbers but those of "
        "the states go back as far as the history does.</footer>\n</body>\n</html>\n"
    )
    return "\n".join(parts)


# -- sections --------------------------------------------------------------------------------------------------


def _states(report: QueueReport) -> str:
    if report.queue_count == 1 and report.queues:
        [found] = report.queues
        states = [{"state": name, "tasks": count} for name, count in found.states.items()]
        settings = [{"setting": _words(name), "value": _setting(value)} for name, value in found.settings.items()]
        return table("How many tasks are in which state", states) + _folded(
            "Settings", table("What the queue was created with", settings)
        )
    rows = [{"queue": found.path} | found.states for found in report.queues]
    left = report.queue_count - len(rows)
    settings = [
        {"queue": found.path} | {name: _setting(value) for name, value in found.settings.items()}
        for found in report.queues
    ]
    return (
        table("How many tasks are in which state, by queue", rows)
        + (f"<p>There are {left:,} more queues.</p>\n" if left > 0 else "")
        + _folded("Settings", table("What the queues were created with", settings))
    )


def _attempts(report: QueueReport) -> str:
    if not report.attempts:
        if report.queues and not any(found.settings.get("keep_history", True) for found in report.queues):
            return "<p>None is known: the queue keeps no history.</p>"
        return "<p>None yet.</p>"
    rows = [{"outcome": name, "attempts": count} for name, count in report.attempts.items()]
    return table("How attempts at tasks ended; open: under way", rows)


def _throughput(report: QueueReport) -> str:
    if not report.throughput:
        return "<p>No task was completed.</p>"
    rows = [{"from": charts.moment(at), "completed": count} for at, count in report.throughput]
    said = f"<p>Completed tasks in {charts.span(report.step_s)} each.</p>\n"
    numbers = table(f"Completed tasks in {charts.span(report.step_s)} each", rows)
    return said + charts.over_time(report.throughput, report.step_s) + _folded("The numbers of this chart", numbers)


def _durations(report: QueueReport) -> str:
    if not report.duration_s:
        return "<p>No task was completed.</p>"
    rows = [
        {"": name} | {column: charts.span(value) for column, value in zip(QUANTILE_NAMES, values, strict=False)}
        for name, values in (("took", report.duration_s), ("leased", report.held_s), ("waited", report.wait_s))
        if values
    ]
    said = table("Of the completed tasks", rows)
    if not report.durations:
        return said
    bins = charts.Bins(report.durations[0][0], report.durations[-1][1], len(report.durations), report.is_log)
    counts = [count for _, _, count in report.durations]
    marks = list(zip(QUANTILE_NAMES[:3], report.duration_s, strict=False))
    numbers = [{"from": charts.span(a), "to": charts.span(b), "completed": n} for a, b, n in report.durations if n]
    return (
        charts.of_durations(bins, counts, marks)
        + said
        + _folded("The numbers of this chart", table("Completed tasks by duration", numbers))
    )


def _slowest(report: QueueReport) -> str:
    if not report.slowest:
        return "<p>No attempt has ended by itself.</p>"
    rows = [
        {
            "task": row["id"],
            **({"queue": row["queue"]} if "queue" in row else {}),
            "took": charts.span(row["duration_s"]),
            "leased": charts.span(row["held_s"]),
            "outcome": row["outcome"],
            "attempts": row["attempts"],
            "worker": row["worker"],
            "ended": charts.moment(row["ended_at"]),
        }
        for row in report.slowest
    ]
    return table("The attempts that took longest, one of each task", rows, identifier="task", long=("worker",))


def _failures(report: QueueReport) -> str:
    order = ("reason", "attempts", "outcome", "host", "example")
    rows = [{name: row[name] for name in order} for row in report.failures]
    return table("Failed and expired attempts by reason and host", rows, long=("reason",)) if rows else "<p>None.</p>"


def _hosts(report: QueueReport) -> str:
    rows = [
        {name.removesuffix("_s"): _seconds(value) if name.endswith("_s") else value for name, value in row.items()}
        for row in report.hosts
    ]
    return table("Attempts by host", rows) if rows else "<p>None.</p>"


def escape(text: str) -> str:
    """Return text that others wrote, as HTML, with hidden characters as Python writes them: \\x1b, \\u202e."""
    return html.escape(_HIDDEN.sub(lambda match: repr(match[0])[1:-1], text))


# -- elements --------------------------------------------------------------------------------------------------


def table(caption: str, rows: Sequence[dict[str, Any]], identifier: str | None = None, long: Sequence[str] = ()) -> str:
    """Return rows with the same columns as a table, which scrolls by itself if it is too wide.

    In a narrow window, one of more than COLUMNS_MAX columns becomes a list. Its roles are named: a browser may take
    them away from what is not laid out as a table. The first column names the rows. Numbers stand right.
    `identifier`: a column of ids; `long`: columns that may wrap.
    """
    if not rows:
        return "<p>None.</p>\n"
    columns = list(rows[0])
    numbers = {name for name in columns if all(_is_number(row[name]) for row in rows)}
    is_wide = len(columns) > COLUMNS_MAX

    def role(name: str) -> str:
        return f' role="{name}"' if is_wide else ""

    def cell(name: str, value: Any, row_head: bool) -> str:
        said = "–" if value is None or value == "" else f"{value:,}" if _is_number(value) else str(value)
        kinds = [kind for kind, those in (("n", numbers), ("id", {identifier}), ("long", long)) if name in those]
        kind = f' class="{" ".join(kinds)}"' if kinds else ""
        if row_head:
            return f'<th scope="row"{role("rowheader")}{kind}>{escape(said)}</th>'
        column = f' data-column="{escape(_words(name))}"' if is_wide else ""
        return f"<td{role('cell')}{column}{kind}>{escape(said)}</td>"

    head = "".join(
        f'<th scope="col"{role("columnheader")}{" class=n" if name in numbers else ""}>{escape(_words(name))}</th>'
        if name
        else f"<td{role('cell')}></td>"
        for name in columns
    )
    body = "\n".join(
        f"<tr{role('row')}>"
        + "".join(cell(name, row[name], number == 0) for number, name in enumerate(columns))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="box" role="region" aria-label="{escape(caption)}" tabindex="0">'
        f"<table{' class=rows' if is_wide else ''}{role('table')}><caption>{escape(caption)}</caption>\n"
        f"<thead{role('rowgroup')}><tr{role('row')}>{head}</tr></thead>\n"
        f"<tbody{role('rowgroup')}>\n{body}\n</tbody></table></div>\n"
    )


def _folded(title: str, content: str) -> str:
    return f"<details><summary>{title}</summary>\n{content}</details>\n"


def _is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _words(name: str) -> str:
    return name.replace("_", " ")


def _seconds(value: float | None) -> str | None:
    return None if value is None else charts.span(value)


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return " to ".join(map(_setting, value))
    return "none" if value is None else f"{value:,}" if isinstance(value, (int, float)) else str(value)
