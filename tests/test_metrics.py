"""Figures for Prometheus: what is told of queues, in bounded series, and the dashboard that asks for them."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from fsqueue import FsqueueError, Queue, Status, metrics
from fsqueue.metrics import Figures, Scrape

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


def names() -> set[str]:
    """Return the names of all figures."""
    families = text_string_to_metric_families(metrics.text(Scrape([], 0, 0)).decode())
    return {family.name + ("_total" if family.type == "counter" else "") for family in families}


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
    assert set(re.findall(r"`(fsqueue_\w+)`", page)) == names()


def test_the_dashboard_asks_for_figures_that_there_are_with_labels_that_they_have() -> None:
    board = json.loads((TOP / "examples/grafana.json").read_text())
    asked = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    asked += [one["definition"] for one in board["templating"]["list"] if "definition" in one]
    assert len(asked) > 10
    assert {name for expression in asked for name in re.findall(r"fsqueue_\w+", expression)} <= names()
    labels = {name for expression in asked for name in re.findall(r"(\w+)=~?\"", expression)}
    assert labels <= {"root", "queue", "state"}
    places = [tuple(panel["gridPos"].values()) for panel in board["panels"]]
    assert len(set(places)) == len(places)


def test_without_the_library_a_sentence_says_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(FsqueueError, match=r"pip install 'fsqueue-tasks\[serve\]'"):
        metrics.text(Scrape([], 0, 0))
