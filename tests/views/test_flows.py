"""Flows between queues, by what the latest updates did."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsqueue import Flow, Group, UpdateConflict
from fsqueue.views import flows

pytestmark = pytest.mark.once


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group.create(tmp_path / "group", shards=2)


def move(group: Group, source: str, *targets: str) -> None:
    """Complete a task of one queue, and insert into others, in one update."""
    [task] = group[source].lease()
    with group.update() as update:
        update.complete(task)
        for target in targets:
            update.insert(target, source)


def test_a_pipeline_with_a_fork_and_a_loop(group: Group) -> None:
    assert group.flows() == []
    group["fetch"].insert_many(range(6))
    assert group.flows() == []
    for _ in range(3):
        move(group, "fetch", "parse")
    move(group, "fetch", "parse", "log")
    move(group, "parse", "fetch")
    assert set(group.flows()) == {
        Flow("fetch", "parse", 4), Flow("fetch", "log", 1), Flow("parse", "fetch", 1),
    }  # fmt: skip
    assert group.flows()[0] == Flow("fetch", "parse", 4)
    group.delete("log")
    assert Flow("fetch", "log", 1) not in group.flows()


def test_what_has_finished_is_found_in_the_history(group: Group) -> None:
    group["fetch"].insert_many(["page"], batch_tasks=1)
    move(group, "fetch", "parse")
    assert group["fetch"].status().drained
    assert group.flows() == [Flow("fetch", "parse", 1)]


def test_what_was_done_before_many_others_of_another_kind_is_seen(group: Group) -> None:
    group["fetch"].insert("page")
    group["parse"].insert_many(range(100))
    move(group, "fetch", "parse")
    for _ in range(80):
        move(group, "parse", "index")
    assert group.flows() == [Flow("parse", "index", 80), Flow("fetch", "parse", 1)]


def test_an_update_that_was_not_applied_is_no_flow(group: Group) -> None:
    group["fetch"].insert("page")
    [task] = group["fetch"].lease()
    update = group.update()
    update.complete(task)
    update.insert("parse", "text")
    task.release()
    with pytest.raises(UpdateConflict):
        update.apply()
    assert group.flows() == []


def test_it_reads_no_more_logs_than_its_bound(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group["fetch"].insert_many(range(20))
    for number in range(20):
        move(group, "fetch", f"site{number}")
    read = []
    records_of = flows.task_history.records_of
    monkeypatch.setattr(flows, "LOGS_MAX", 5)
    monkeypatch.setattr(flows.task_history, "records_of", lambda *given: read.append(given) or records_of(*given))
    assert len(group.flows()) == 4
    assert len(read) == 5
