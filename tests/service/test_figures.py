"""Figures at /metrics: what the gateway has counted of queues, and of itself, as Prometheus parses it."""

from __future__ import annotations

import re
from itertools import pairwise
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

import fsqueue
from fsqueue import Group, metrics
from fsqueue.metrics import DURATIONS_S, REQUESTS_S
from fsqueue.service import queue_counters
from fsqueue.service.queue_counters import QueueCounters
from fsqueue.service.request_figures import RequestFigures
from fsqueue.verbs.table import ROUTED
from fsqueue.views import attempts
from fsqueue.views.attempts import AttemptCounts
from tests.service.conftest import READ, Open, gateway_of, pages_of

pytestmark = pytest.mark.once

Labels = frozenset[tuple[str, str]]
COUNTERS = ("leased_tasks", "retried_tasks", "failed_attempts", "expired_leases", "given_up_tasks")


def samples(client: TestClient, **query: str) -> dict[tuple[str, Labels], float]:
    """Return each sample by its name and labels, but for `root`. Check what the format asks for."""
    answer = client.get("/metrics", params=query)
    assert answer.status_code == 200
    found: dict[tuple[str, Labels], float] = {}
    names = set()
    for family in text_string_to_metric_families(answer.text):
        assert family.name not in names, "a family comes twice"
        names.add(family.name)
        assert family.documentation
        assert family.type in ("counter", "gauge", "histogram")
        for sample in family.samples:
            key = sample.name, frozenset((name, text) for name, text in sample.labels.items() if name != "root")
            assert key not in found, "a series comes twice"
            assert sample.name.endswith("_total") == (family.type == "counter")
            found[key] = sample.value
    return found


def of(found: dict[tuple[str, Labels], float], name: str, **labels: str) -> float:
    return found[name, frozenset(labels.items())]


@pytest.fixture
def clock(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """A monotonic clock for looks, by which counters go, too."""
    now = [1000.0]
    monkeypatch.setattr(pages_of(client).looks, "_monotonic", lambda: now[0])
    monkeypatch.setattr(metrics, "now_ms", lambda queue: round(now[0] * 1000))
    return now


def test_counters_grow_with_what_happens_and_begin_with_the_gateway(
    client: TestClient, group: Group, clock: list[float]
) -> None:
    queue = group["q"]
    queue.insert_many(range(9))
    [task] = queue.lease()
    task.complete()
    first = samples(client)
    assert [of(first, f"fsqueue_{name}_total", queue="q") for name in COUNTERS] == [0] * 5
    assert of(first, "fsqueue_completed_tasks_total", queue="q") == 1
    assert not [name for name, _ in first if name.startswith("fsqueue_task_duration_seconds")]
    assert of(first, "fsqueue_counting_since_timestamp_seconds", queue="q") == of(
        first, "fsqueue_counted_until_timestamp_seconds", queue="q"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attempts, "count_attempts", lambda store, after, until: counts(3, 1, 2, 1, 1))
        clock[0] += 60
        queue.insert(1)  # the state has changed, so it is read
        second = samples(client)
    assert [of(second, f"fsqueue_{name}_total", queue="q") for name in COUNTERS] == [3, 1, 2, 1, 1]
    assert of(second, "fsqueue_task_duration_seconds_count", queue="q") == 4
    assert of(second, "fsqueue_task_duration_seconds_sum", queue="q") == 0.5 + 3 * 100_000
    assert of(second, "fsqueue_task_duration_seconds_bucket", queue="q", le="0.1") == 0
    assert of(second, "fsqueue_task_duration_seconds_bucket", queue="q", le="1.0") == 1
    assert of(second, "fsqueue_task_duration_seconds_bucket", queue="q", le="86400.0") == 1
    assert of(second, "fsqueue_task_duration_seconds_bucket", queue="q", le="259200.0") == 4
    assert of(second, "fsqueue_task_duration_seconds_bucket", queue="q", le="+Inf") == 4
    queue.purge()
    clock[0] += 60
    third = samples(client)
    assert [of(third, f"fsqueue_{name}_total", queue="q") for name in COUNTERS] == [3, 1, 2, 1, 1]
    assert of(third, "fsqueue_completed_tasks_total", queue="q") == 0


def counts(*numbers: float) -> AttemptCounts:
    return AttemptCounts(*numbers, work_s={0.5: 1, 100_000.0: 3})


class Counting:
    """Counters of one queue whose time a test moves. `reads`: from when until when the files were read."""

    def __init__(self, queue: fsqueue.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queue, self.now_ms, self.reads = queue, 1_000_000, list[tuple[int, int]]()
        self.counters = QueueCounters(self._count)
        monkeypatch.setattr(metrics, "now_ms", lambda queue: self.now_ms)

    def _count(self, queue: fsqueue.Queue, after_ms: int, until_ms: int) -> AttemptCounts:
        self.reads.append((after_ms, until_ms))
        return AttemptCounts(leased=1)

    def look(self, after_ms: int, leased: int = 0, completed: int = 0, name: str = "q") -> Any:
        """Count at a look, some time after the last one."""
        self.now_ms += after_ms
        status = fsqueue.Status(leased=leased, completed=completed)
        look = queue_counters.QueueLook(name, status, settings=self.queue.settings)
        return self.counters.counted(self.queue, look)


def test_each_moment_is_counted_once_and_a_quiet_queue_is_not_read(
    queue: fsqueue.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(queue, monkeypatch)
    settle = queue_counters.SETTLE_MS
    assert counting.look(0).leased == 0
    for _ in range(5):
        counting.look(60_000, leased=2)
    counting.look(1, leased=2)
    begin = 1_000_000 - settle
    assert counting.reads == [(begin + n * 60_000, begin + (n + 1) * 60_000) for n in range(5)] + [
        (begin + 300_000, begin + 300_001)
    ]
    counting.look(60_000, completed=2)
    counting.look(60_000, completed=2)  # what happened just before the look before is counted now
    assert len(counting.reads) == 8
    for _ in range(10):
        found = counting.look(60_000, completed=2)
    assert len(counting.reads) == 8
    assert found.until == (counting.now_ms - settle) / 1000
    counting.look(60_000, completed=3)
    counting.look(60_000, completed=3)
    read = counting.reads
    assert read[8][0] == round(found.until * 1000), "what a quiet queue did is not looked for again"
    assert all(after == until for (_, until), (after, _) in pairwise(read[8:]))
    assert found.leased == 8


def test_a_clock_that_runs_backwards_counts_nothing_twice(
    queue: fsqueue.Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    counting = Counting(queue, monkeypatch)
    counting.look(0, leased=1)
    counting.look(60_000, leased=1)
    counting.look(-30_000, leased=1)
    assert len(counting.reads) == 1
    counting.look(60_000, leased=1)
    assert counting.reads[1][0] == counting.reads[0][1]


def test_what_cannot_be_counted_is_left_out_and_made_up_for(
    queue: fsqueue.Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    counting = Counting(queue, monkeypatch)
    counting.look(0, leased=1)

    def away(*given: Any) -> AttemptCounts:
        raise fsqueue.StorageError("The file server is away.")

    counting.counters._count = away
    assert counting.look(60_000, leased=1) is None
    assert "lack what happened in it: The file server is away." in caplog.text
    counting.counters._count = counting._count
    assert counting.look(60_000, leased=1).leased == 1
    [(after, until)] = counting.reads
    assert until - after == 120_000


def test_a_queue_without_history_has_no_counters(open_gateway: Open, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("queues") / "q"
    fsqueue.Queue.create(path, keep_history=False).insert(1)
    found = samples(open_gateway(path))
    assert of(found, "fsqueue_tasks", queue="q", state="waiting") == 1
    assert not [name for name, _ in found if name.startswith("fsqueue_counted")]


def test_the_counters_of_few_queues_are_kept(queue: fsqueue.Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_counters, "QUEUES_MAX", 2)
    counting = Counting(queue, monkeypatch)
    for name in ("a", "b", "a", "c"):
        counting.look(60_000, leased=1, name=name)
    assert counting.look(60_000, leased=1, name="a").leased == 2
    assert counting.look(60_000, leased=1, name="b").leased == 0


def test_requests_are_counted_by_verb_and_status_in_a_bounded_number_of_series(
    group: Group, open_gateway: Open
) -> None:
    client = open_gateway(group.path)
    group["q"].insert(1)
    for number in range(30):
        client.get(f"/nowhere/{number}")
        client.get(f"/v1/queues/absent{number}/status")
        client.get("/queue", params={"name": f"absent {number}"})
        client.request(f"VERB{number}", "/v1/queues/q/status")
        client.get("/v1/queues/q/status", headers={"authorization": f"Bearer {number}"})
    client.post("/v1/queues/q/lease", json={"n": 1})
    found = samples(client)
    requests = {labels: count for (name, labels), count in found.items() if name == "fsqueue_http_requests_total"}
    assert of(found, "fsqueue_http_requests_total", verb="none", status="404") == 30
    assert of(found, "fsqueue_http_requests_total", verb="none", status="401") == 30
    assert of(found, "fsqueue_http_requests_total", verb="lease", status="200") == 1
    assert of(found, "fsqueue_http_requests_total", verb="status", status="200") == 30
    assert of(found, "fsqueue_http_requests_total", verb="status", status="405") == 30
    verbs = {text for labels in requests for name, text in labels if name == "verb"}
    known = {verb.name for verb, _ in ROUTED} | {"none", "/queue", "/metrics"}
    assert verbs <= known, verbs - known
    assert sum(requests.values()) == 151
    assert of(found, "fsqueue_http_requests_in_progress") == 1
    for verb in verbs:
        whole = of(found, "fsqueue_http_request_duration_seconds_bucket", verb=verb, le="+Inf")
        assert whole == of(found, "fsqueue_http_request_duration_seconds_count", verb=verb)
    assert gateway_of(client).requests.in_progress == 0


def test_a_request_counts_in_the_bucket_of_its_seconds() -> None:
    now = [0.0]
    figures = RequestFigures(lambda: now[0])
    for seconds in (0.001, 0.005, 0.3, 1000.0):
        began = figures.begin()
        now[0] += seconds
        figures.end({"type": "http"}, None, began)
    [(verb, (buckets, sum_s))] = figures.durations().items()
    assert (verb, figures.in_progress) == ("none", 0)
    assert sum_s == pytest.approx(1000.306)
    assert buckets == [2, 0, 0, 1, 0, 0, 0, 1]
    assert len(buckets) == len(REQUESTS_S) + 1


def test_the_figures_say_how_old_they_are_and_those_of_the_process_have_the_usual_names(
    client: TestClient, group: Group, clock: list[float]
) -> None:
    group["q"].insert(1)
    assert of(samples(client), "fsqueue_look_age_seconds") == 0
    clock[0] += 1.5
    assert of(samples(client), "fsqueue_look_age_seconds") == 1.5
    clock[0] += 1.5
    found = samples(client)
    assert of(found, "fsqueue_look_age_seconds") == 0, "a look is shared for two seconds"
    assert of(found, "fsqueue_build_info", version=fsqueue.__version__) == 1
    usual = {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds"}
    assert usual <= {name for name, _ in found}


def test_who_may_read_may_ask_for_figures(group: Group, open_gateway: Open) -> None:
    group["q"].insert(1)
    assert samples(open_gateway(group.path, token=READ), match="q")
    assert open_gateway(group.path, token=None).get("/metrics").status_code == 401


def test_buckets_go_from_seconds_to_days() -> None:
    assert list(DURATIONS_S) == sorted(set(DURATIONS_S))
    assert DURATIONS_S[0] < 1 < 86_400 < DURATIONS_S[-1]
    assert not re.search("[^0-9.]", "".join(map(str, DURATIONS_S)))
