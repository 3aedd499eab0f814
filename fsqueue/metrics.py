"""Figures of queues for Prometheus, in its text format (https://prometheus.io/docs/instrumenting/exposition_formats/).

The library prometheus-client writes the format. It comes with the extra `serve`. docs/metrics.md lists the figures.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import accumulate
from typing import TYPE_CHECKING

from fsqueue.arguments import verb
from fsqueue.errors import FsqueueError
from fsqueue.forks import held_off
from fsqueue.format.models import Status
from fsqueue.queue import Queue
from fsqueue.views import attempts
from fsqueue.views.activity import Activity, Rate
from fsqueue.views.attempts import AttemptCounts as AttemptCounts

if TYPE_CHECKING:
    from prometheus_client.core import Metric

QUEUES_MAX = 1000
"""Maximum number of queues that have series of their own. The others count together, with `queue` empty."""
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


DURATIONS_S = (0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3600.0, 14400.0, 43200.0, 86400.0, 259200.0)
"""Upper bounds of the buckets for the work on a task, in seconds: from a tenth of a second to three days."""
REQUESTS_S = (0.005, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)
"""Upper bounds of the buckets for requests, in seconds. Those that wait for tasks take long on purpose."""


@dataclass(frozen=True, slots=True)
class Counted:
    """What a gateway has counted of one queue, from `since` until `until` (Unix seconds on the file server's clock).

    `buckets`: numbers of completed tasks, by how long the work took, one for each of DURATIONS_S and one for longer
    work; `work_s`: the sum. `share`: the part of the files that was read last; below 1 the latest numbers are
    estimates.
    """

    since: float
    until: float
    leased: float
    retried: float
    failed: float
    expired: float
    given_up: float
    buckets: Sequence[float]
    work_s: float
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class GatewayFigures:
    """Figures of a gateway itself. Verbs are names of routes, so their number is bounded.

    `requests`: how many requests were answered, by verb and status; `durations`: for each verb numbers of requests, one
    for each of REQUESTS_S and one for longer ones, and the sum of seconds. `look_age_s`: how old the look is from which
    the figures of queues come. `version`: that of fsqueue.
    """

    version: str
    look_age_s: float
    in_progress: int
    streams: int
    followers: int
    requests: Mapping[tuple[str, str], int]
    durations: Mapping[str, tuple[Sequence[int], float]]


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
    counted: Counted | None = None


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
    gateway: GatewayFigures | None = None


@verb("counting attempts")
def count_attempts(queue: Queue, after_ms: int, until_ms: int) -> AttemptCounts:
    """Return what became of attempts at a queue's tasks in some time: `views.attempts`. QueueNotFound, StorageError."""
    return attempts.count_attempts(queue.store, after_ms, until_ms)


@verb("reading the time")
def now_ms(queue: Queue) -> int:
    """Return the time on the queue's file server, in milliseconds. QueueNotFound, StorageError."""
    return queue.store.clock.now_ms()


def text(look: Scrape) -> bytes:
    """Return the figures of a look in Prometheus' text format. FsqueueError if prometheus-client is not installed."""
    try:
        with held_off():
            from prometheus_client import ProcessCollector, generate_latest
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
    if look.gateway is not None:
        ProcessCollector(registry=registry)
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


_COUNTERS = (
    ("leased_tasks", "leased", "Attempts that began: tasks that a worker leased."),
    ("retried_tasks", "retried", "Attempts that began and were not the first at their task."),
    ("failed_attempts", "failed", "Attempts that a worker reported as failed, also the last one at a task."),
    ("expired_leases", "expired", "Leases that had run out when another worker took the task, or it was given up."),
    ("given_up_tasks", "given_up", "Tasks that became dead letters."),
)
_SINCE = (
    "Counted by this gateway since fsqueue_counting_since_timestamp_seconds; it begins at 0 when the gateway starts."
)


def _metrics(look: Scrape) -> Iterator[Metric]:
    with held_off():
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    shown = _bounded(look.found)
    tasks = GaugeMetricFamily("fsqueue_tasks", "Tasks without an outcome, by state.", labels=(*_LABELS, "state"))
    completed = CounterMetricFamily(
        "fsqueue_completed_tasks",
        "Tasks that were completed, as the queue's files say; it begins at 0 when the queue is purged or made anew.",
        labels=_LABELS,
    )
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
    yield from _counted(shown)
    if look.gateway is not None:
        yield from _of_gateway(look.gateway)
    for name, says, value in (
        ("queues", "Queues that were looked at.", len(look.found)),
        ("left_out_queues", "Queues that were not looked at, because there are too many.", look.left_out),
        ("unreadable_queues", "Queues that could not be read.", look.unreadable),
        ("look_timestamp_seconds", "When the queues were looked at, in Unix seconds.", look.at),
        ("look_duration_seconds", "How long it took to look at the queues.", look.took_s),
    ):
        yield GaugeMetricFamily(f"fsqueue_{name}", says, value=value)


def _counted(shown: Sequence[Figures]) -> Iterator[Metric]:
    """Yield what a gateway has counted of queues; of an idle queue no histogram, which has many series."""
    with held_off():
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    known = [((_utf8(one.root), _utf8(one.queue)), one.counted) for one in shown if one.counted is not None]
    for name, field, says in _COUNTERS:
        counter = CounterMetricFamily(f"fsqueue_{name}", f"{says} {_SINCE}", labels=_LABELS)
        for labels, counted in known:
            counter.add_metric(labels, getattr(counted, field))
        yield counter
    durations = HistogramMetricFamily(
        "fsqueue_task_duration_seconds", f"How long the work on completed tasks took. {_SINCE}", labels=_LABELS
    )
    for labels, counted in known:
        if any(counted.buckets):
            durations.add_metric(labels, _cumulated(DURATIONS_S, counted.buckets), counted.work_s)
    yield durations
    for name, says, field in (
        ("counting_since_timestamp_seconds", "Since when the gateway counts, in Unix seconds.", "since"),
        ("counted_until_timestamp_seconds", "Until when the gateway has counted, in Unix seconds.", "until"),
        (
            "counted_share",
            "Part of the files that the last counting read: below 1 it is an estimate, 0 if it did not reach back.",
            "share",
        ),
    ):
        gauge = GaugeMetricFamily(f"fsqueue_{name}", says, labels=_LABELS)
        for labels, counted in known:
            gauge.add_metric(labels, getattr(counted, field))
        yield gauge


def _of_gateway(found: GatewayFigures) -> Iterator[Metric]:
    """Yield the figures of the gateway itself."""
    with held_off():
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
    info = GaugeMetricFamily("fsqueue_build_info", "1, with the version of fsqueue.", labels=("version",))
    info.add_metric((found.version,), 1)
    yield info
    requests = CounterMetricFamily(
        "fsqueue_http_requests", "Requests that were answered, since the gateway started.", labels=("verb", "status")
    )
    for labels, count in sorted(found.requests.items()):
        requests.add_metric(labels, count)
    yield requests
    seconds = HistogramMetricFamily(
        "fsqueue_http_request_duration_seconds",
        "How long requests took until their answers ended, since the gateway started.",
        labels=("verb",),
    )
    for name, (buckets, sum_s) in sorted(found.durations.items()):
        seconds.add_metric((name,), _cumulated(REQUESTS_S, buckets), sum_s)
    yield seconds
    for name, says, value in (
        (
            "http_requests_in_progress",
            "Requests that are not answered to the end, this one among them.",
            found.in_progress,
        ),
        ("http_open_streams", "Answers and bodies of many lines that are under way.", found.streams),
        ("http_open_event_streams", "Streams of events that are under way.", found.followers),
        ("look_age_seconds", "How old the look is from which the figures of queues come.", found.look_age_s),
    ):
        yield GaugeMetricFamily(f"fsqueue_{name}", says, value=value)


def _cumulated(bounds: Sequence[float], numbers: Sequence[float]) -> list[tuple[str, float]]:
    """Return buckets as the text format has them: each holds what is below its bound."""
    sums = accumulate(numbers)
    return [(_bound(bound), sum_) for bound, sum_ in zip((*bounds, math.inf), sums, strict=True)]


def _bound(bound: float) -> str:
    return "+Inf" if bound == math.inf else str(float(bound))


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
