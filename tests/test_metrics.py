"""Figures for Prometheus: what is told of queues, in bounded series, and the dashboard that asks for them."""

from __future__ import annotations

import json
import math
import re
import sys
from pathlib import Path

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from fsqueue import FsqueueError, Queue, Status, metrics
from fsqueue.metrics import Counted, Figures, GatewayFigures, Scrape

TOP = Path(__file__).parent.parent


def samples(look: Scrape) -> dict[tuple[str, ...], float]:
    """Return each sample by its name and the values of its labels, as Prometheus parses the text."""
    found = {}
    for family in text_string_to_metric_families(metrics.text(look).decode()):
        for sample in family.samples:
            key = sample.name, *(sample.labels[name] for name in ("root", "queue", "state") if name in sample.labels)
            assert key not in found
            found[key] = sample.value
    return found


GATEWAY = GatewayFigures(
    "1.0", 0.5, 1, 2, 3, {("lease", "200"): 4}, {"lease": ([1] * (len(metrics.REQUESTS_S) + 1), 2.5)}
)
COUNTED = Counted(0, 1, 5, 4, 3, 2, 1, [1] * (len(metrics.DURATIONS_S) + 1), 1000.5)


def families() -> list[Metric]:
    """Return all figures that a gateway has."""
    found = [Figures("/x", "q", Status(waiting=1), counted=COUNTED)]
    return [*text_string_to_metric_families(metrics.text(Scrape(found, 0, 0, gateway=GATEWAY)).decode())]


def names() -> set[str]:
    """Return the names of all figures."""
    return {family.name + ("_total" if family.type == "counter" else "") for family in families()}


def test_the_figures_are_those_of_the_queue(queue: Queue) -> None:
    queue.insert_many(range(5), delay_s=0)
    queue.insert("later", delay_s=1000)
    [done, bad, held] = queue.lease(3)
    done.complete()
    bad.bury("worn out")
    assert held
    queue.pause()
    found = samples(Scrape([Figures("/x", "q", queue.status(), queue.activity(), True)], 100.0, 0.5))
    assert {key[-1]: n for key, n in found.items() if key[0] == "fsqueue_tasks"} == {
        "waiting": 2, "delayed": 1, "leased": 1,
    }  # fmt: skip
    assert found["fsqueue_completed_tasks_total", "/x", "q"] == 1
    assert found["fsqueue_dead_tasks", "/x", "q"] == 1
    assert found["fsqueue_workers", "/x", "q"] == 1
    assert found["fsqueue_paused", "/x", "q"] == 1
    assert found["fsqueue_oldest_task_age_seconds", "/x", "q"] >= 0
    assert found["fsqueue_look_timestamp_seconds",] == 100
    assert found["fsqueue_queues",] == 1


def test_of_very_many_queues_the_busiest_have_series_and_the_sum_is_that_of_all() -> None:
    count = metrics.QUEUES_MAX + 500
    look = Scrape([Figures("/g", f"q{n}", Status(waiting=n, completed=1, dead=1)) for n in range(count)], 0, 0)
    found = samples(look)
    waiting = {key[2]: n for key, n in found.items() if key[0] == "fsqueue_tasks" and key[-1] == "waiting"}
    assert len(waiting) == metrics.QUEUES_MAX + 1
    assert f"q{count - 1}" in waiting
    assert "q0" not in waiting
    assert sum(waiting.values()) == sum(range(count))
    assert waiting[""] == sum(range(500))
    assert found["fsqueue_dead_tasks", "/g", ""] == 500
    assert ("fsqueue_paused", "/g", "") not in found


@pytest.mark.parametrize("name", ['a"b\\c\n} 1\nforged 2', "<script>", "\u202egnp", "x" * 255, "\udcff"])
def test_a_name_forges_no_sample(name: str) -> None:
    found = samples(Scrape([Figures("/x", name, Status(waiting=7))], 0, 0))
    shown = name.encode(errors="surrogateescape").decode(errors="replace")
    assert found["fsqueue_tasks", "/x", shown, "waiting"] == 7
    assert not [key for key in found if key[0] == "forged"]


def test_each_name_is_on_the_page_and_no_other() -> None:
    page = (TOP / "docs/metrics.md").read_text()
    known = names()
    assert set(re.findall(r"`(fsqueue_\w+)`", page)) == {name for name in known if name.startswith("fsqueue_")}
    told = set(re.findall(r"`(process_\w+)`", page))
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes", "process_start_time_seconds"} == told < known


def test_a_file_has_what_no_gateway_counts_left_out() -> None:
    """`fsqueue status --prometheus` runs anew each time: it has counted nothing, and has no requests."""
    found = samples(Scrape([Figures("/x", "q", Status(waiting=1))], 0, 0))
    assert not [name for name, *_ in found if re.match("process_|fsqueue_(http|counted|failed|task_duration)", name)]


def test_buckets_hold_what_is_not_longer_than_their_bounds() -> None:
    [found] = [family for family in families() if family.name == "fsqueue_task_duration_seconds"]
    buckets = {one.labels["le"]: one.value for one in found.samples if one.name.endswith("_bucket")}
    assert list(buckets.values()) == list(range(1, len(metrics.DURATIONS_S) + 2))
    assert list(map(float, buckets)) == [*metrics.DURATIONS_S, math.inf]
    assert {one.name[len(found.name) :]: one.value for one in found.samples[-2:]} == {
        "_count": len(buckets),
        "_sum": 1000.5,
    }


def test_each_counter_says_since_when_it_counts() -> None:
    counters = [family for family in families() if family.type in ("counter", "histogram")]
    assert len(counters) > 8
    for family in counters:
        assert re.search("since|begins at 0", family.documentation) or family.name.startswith("process_"), family.name


def test_the_dashboard_asks_for_figures_that_there_are_with_labels_that_they_have() -> None:
    board = json.loads((TOP / "examples/grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [one["definition"] for one in board["templating"]["list"] if "definition" in one]
    assert len(asked) > 10
    series = names() | {one.name for family in families() for one in family.samples}
    assert {name for expression in asked for name in re.findall(r"(?:fsqueue|process)_\w+", expression)} <= series
    labels = {name for expression in asked for name in re.findall(r"(\w+)=~?\"", expression)}
    assert labels <= {"root", "queue", "state"}
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(set(places)) == len(places)
    assert len({panel["id"] for panel in board["panels"]}) == len(places)
    shown = {name for expression in asked for name in re.findall(r"(?:fsqueue|process)_\w+", expression)}
    for name in ("failed_attempts", "retried_tasks", "expired_leases", "given_up_tasks", "http_requests"):
        assert f"fsqueue_{name}_total" in shown
    assert "fsqueue_task_duration_seconds_bucket" in shown


def test_without_the_library_a_sentence_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(FsqueueError, match=r"pip install 'fsqueue-tasks\[serve\]'"):
        metrics.text(Scrape([], 0, 0))
