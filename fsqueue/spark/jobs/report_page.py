"""The numbers of a report, and the page that shows them (webpages/templates/report.html)."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from fsqueue.format.wording import duration
from fsqueue.webpages import charts, rendering
from fsqueue.webpages.charts import moment

QUANTILE_NAMES = ("median", "90 %", "99 %", "longest")


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
    many = report.queue_count != 1
    of_durations = None
    if report.durations:
        bins = charts.Bins(report.durations[0][0], report.durations[-1][1], len(report.durations), report.is_log)
        marks = list(zip(QUANTILE_NAMES[:3], report.duration_s, strict=False))
        of_durations = charts.of_durations(bins, [count for _, _, count in report.durations], marks)
    return rendering.page(
        "report.html",
        queue=queue,
        name=queue.rstrip("/").rpartition("/")[2] or queue,
        looked_at=moment(report.looked_at),
        many=many,
        more_queues=report.queue_count - len(report.queues),
        states=_by_queue([(found.path, found.states) for found in report.queues], "state", "tasks", many),
        settings=_by_queue([(found.path, _settings(found)) for found in report.queues], "setting", "value", many),
        attempts=[{"outcome": name, "attempts": count} for name, count in report.attempts.items()],
        keeps_history=not report.queues or any(found.settings.get("keep_history", True) for found in report.queues),
        step=duration(report.step_s),
        over_time=charts.over_time(report.throughput, report.step_s) if report.throughput else None,
        throughput=[{"from": moment(at), "completed": count} for at, count in report.throughput],
        of_durations=of_durations,
        durations=[{"from": duration(a), "to": duration(b), "completed": n} for a, b, n in report.durations if n],
        quantiles=[
            {"": name} | dict(zip(QUANTILE_NAMES, map(duration, values), strict=False))
            for name, values in (("took", report.duration_s), ("leased", report.held_s), ("waited", report.wait_s))
            if values
        ],
        slowest=list(map(_slow, report.slowest)),
        failures=[
            {name: row[name] for name in ("reason", "attempts", "outcome", "host", "example")}
            for row in report.failures
        ],
        hosts=[
            {name.removesuffix("_s"): _seconds(value) if name.endswith("_s") else value for name, value in row.items()}
            for row in report.hosts
        ],
    )


def _by_queue(found: list[tuple[str, dict[str, Any]]], name: str, value: str, many: bool) -> list[dict[str, Any]]:
    """Return a row for each queue; of a single one, a row for each of its values."""
    if many:
        return [{"queue": path} | values for path, values in found]
    return [{name: key.replace("_", " "), value: each} for _, values in found for key, each in values.items()]


def _slow(row: dict[str, Any]) -> dict[str, Any]:
    return {
        "task": row["id"],
        **({"queue": row["queue"]} if "queue" in row else {}),
        "took": duration(row["duration_s"]),
        "leased": duration(row["held_s"]),
        "outcome": row["outcome"],
        "attempts": row["attempts"],
        "worker": row["worker"],
        "ended": moment(row["ended_at"]),
    }


def _seconds(value: float | None) -> str | None:
    return None if value is None else duration(value)


def _settings(found: QueueSummary) -> dict[str, str]:
    return {name: _setting(value) for name, value in found.settings.items()}


def _setting(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (tuple, list)):
        return " to ".join(map(_setting, value))
    return "none" if value is None else f"{value:,}" if isinstance(value, (int, float)) else str(value)
