"""Figures of queues for Prometheus, in its text format (https://prometheus.io/docs/instrumenting/exposition_formats/).

The library prometheus-client writes the format. It comes with the extra `serve`. docs/metrics.md lists the figures.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from typing import TYPE_CHECKING

from fsqueue.errors import FsqueueError
from fsqueue.forks import held_off
from fsqueue.format.models import Status
from fsqueue.views.activity import Activity, Rate

if TYPE_CHECKING:
    from prometheus_client.core import Metric

QUEUES_MAX = 1000
"""Maximum number of queues that have series of their own. The others count together, with `queue` empty."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Figures:
    """What was seen of one queue. `root`: its group's directory, or the directory that it is in.

    None: not known.
    """

    root: str
    queue: str
    status: Status
    activity: Activity | None = None
    is_paused: bool | None = False


@dataclass(frozen=True, slots=True)
class Scrape:
    """Queues as they were seen in one look, for one page of figures.

    `at`: when it began (Unix seconds); `took_s`: how long it took. `left_out`: how many queues were not looked at;
    `unreadable`: how many could not be read.
    """

    found: Sequence[Figures]
    at: float
    took_s: float
    left_out: int = 0
    unreadable: int = 0


def text(look: Scrape) -> bytes:
    """Return the figures of a look in Prometheus' text format. FsqueueError if prometheus-client is not installed."""
    try:
        with held_off():
            from prometheus_client import generate_latest
            from prometheus_client.registry import Collector, CollectorRegistry
    except ModuleNotFoundError:
        raise FsqueueError(
            "prometheus-client, which writes figures for Prometheus, is not installed. Nothing was written. To "
            "install it: pip install 'fsqueue-tasks[serve]'."
        ) from None

    class Seen(Collector):
        def collect(self) -> Iterable[Metric]:
            return _metrics(look)

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Seen())
    written: bytes = generate_latest(registry)
    return written


_LABELS = ("root", "queue")
_GAUGES = (
    ("dead_tasks", "Dead letters: tasks that were given up and not dealt with since."),
    ("retrying_tasks", "Tasks whose last attempt failed and that will be tried again, as far as it was read."),
    ("workers", "Workers that hold a task, as far as it was read."),
    ("inserted_tasks_per_second", "Tasks inserted per second, on average over the last minute, or hour."),
    ("leased_tasks_per_second", "Tasks leased per second, on average over the last minute, or hour."),
    ("completed_tasks_per_second", "Tasks completed per second, on average over the last minute, or hour."),
    ("lease_seconds", "How long completed tasks had been leased, on average over the last minute, or hour."),
    ("oldest_task_age_seconds", "Age of the oldest batch that has a task without an outcome."),
    ("oldest_lease_age_seconds", "For how long the task is leased that is leased for longest."),
    ("paused", "1 if the queue is paused, so that no task is leased; else 0."),
)


def _metrics(look: Scrape) -> Iterator[Metric]:
    with held_off():
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    shown = _bounded(look.found)
    tasks = GaugeMetricFamily("fsqueue_tasks", "Tasks without an outcome, by state.", labels=(*_LABELS, "state"))
    completed = CounterMetricFamily("fsqueue_completed_tasks", "Tasks that were completed.", labels=_LABELS)
    gauges = {name: GaugeMetricFamily(f"fsqueue_{name}", says, labels=_LABELS) for name, says in _GAUGES}
    for one in shown:
        labels = _utf8(one.root), _utf8(one.queue)
        for state in ("waiting", "delayed", "leased"):
            tasks.add_metric((*labels, state), getattr(one.status, state))
        completed.add_metric(labels, one.status.completed)
        for name, value in _values(one).items():
            if value is not None:
                gauges[name].add_metric(labels, value)
    yield tasks
    yield completed
    yield from gauges.values()
    for name, says, value in (
        ("queues", "Queues that were looked at.", len(look.found)),
        ("left_out_queues", "Queues that were not looked at, because there are too many.", look.left_out),
        ("unreadable_queues", "Queues that could not be read.", look.unreadable),
        ("look_timestamp_seconds", "When the queues were looked at, in Unix seconds.", look.at),
        ("look_duration_seconds", "How long it took to look at the queues.", look.took_s),
    ):
        yield GaugeMetricFamily(f"fsqueue_{name}", says, value=value)


def _utf8(name: str) -> str:
    """Return a name as Unicode text: a path may have bytes that are none."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def _values(one: Figures) -> dict[str, float | None]:
    found = one.activity
    known: dict[str, float | None] = {
        "dead_tasks": one.status.dead,
        "paused": None if one.is_paused is None else int(one.is_paused),
    }
    if found is None:
        return known
    oldest_lease = min((held.since for held in found.oldest), default=None)
    return known | {
        "retrying_tasks": sum(failure.retrying for failure in found.failures),
        "workers": found.workers,
        "inserted_tasks_per_second": _per_s(found.inserted),
        "leased_tasks_per_second": _per_s(found.leased),
        "completed_tasks_per_second": _per_s(found.completed),
        "lease_seconds": found.lease_s,
        "oldest_task_age_seconds": _age(found.oldest_inserted, found.at),
        "oldest_lease_age_seconds": _age(oldest_lease, found.at),
    }


def _per_s(rate: Rate | None) -> float | None:
    return None if rate is None else rate.per_s


def _age(since: float | None, now: float) -> float | None:
    return None if since is None else max(0.0, now - since)


def _bounded(found: Sequence[Figures]) -> list[Figures]:
    """Return figures of at most QUEUES_MAX queues: those with most tasks to do or given up. The others are summed up.

    No queue has an empty name, so the sum of all series is that of all queues.
    """
    if len(found) <= QUEUES_MAX:
        return list(found)
    order = [(one.status.remaining + one.status.dead, -number) for number, one in enumerate(found)]
    kept = {-number for _, number in nlargest(QUEUES_MAX, order)}
    others: dict[str, Status] = {}
    for number, one in enumerate(found):
        if number not in kept:
            before, more = others.get(one.root, Status()), one.status
            others[one.root] = Status(
                before.waiting + more.waiting,
                before.delayed + more.delayed,
                before.leased + more.leased,
                before.completed + more.completed,
                before.dead + more.dead,
            )
    return [found[number] for number in sorted(kept)] + [
        Figures(root, "", sum_, None, None) for root, sum_ in others.items()
    ]
