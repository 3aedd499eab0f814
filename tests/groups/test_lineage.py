"""The tasks that a task came of by updates, and those that came of it."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from fsqueue import Group, LeasedTask
from fsqueue.format.names import Batch
from fsqueue.groups import lineage
from fsqueue.storage import history
from fsqueue.storage.store import Store
from fsqueue.views import task_history

pytestmark = pytest.mark.once


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group.create(tmp_path / "group", shards=2, durability="none")


def move_on(group: Group, tasks: list[LeasedTask], queue: str, count: int) -> list[str]:
    """Complete tasks and insert others by one update; return the ids of these."""
    with group.update() as update:
        for task in tasks:
            update.complete(task)
        update.insert_many(queue, range(count))
    return [str(one) for one in update.results[-1]]


def leased(group: Group, queue: str, count: int = 1) -> list[LeasedTask]:
    group[queue].insert_many(range(count))
    return group[queue].lease(count)


def test_an_update_that_ended_several_tasks_names_each_of_them(group: Group) -> None:
    tasks = leased(group, "first", 2)
    (inserted,) = move_on(group, tasks, "second", 1)
    found = group.lineage("second", inserted)
    assert {one.id for one in found.ancestors} == {task.id for task in tasks}
    assert {(one.op, one.steps, one.among) for one in found.ancestors} == {("complete", -1, 2)}
    assert found.is_whole


def test_a_task_that_inserts_into_its_own_queue_is_followed(group: Group) -> None:
    tasks = leased(group, "first")
    ids = move_on(group, tasks, "first", 3)
    assert [one.id for one in group.lineage("first", tasks[0].id).successors] == ids
    assert [one.id for one in group.lineage("first", ids[2]).ancestors] == [tasks[0].id]


def test_what_was_purged_since_is_left_out(group: Group) -> None:
    tasks = leased(group, "first")
    move_on(group, tasks, "second", 1)
    group["second"].purge()
    assert group.lineage("first", tasks[0].id).successors == []


def test_a_queue_that_cannot_be_read_is_not_taken_for_one_without_tasks(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    tasks = leased(group, "first")
    (inserted,) = move_on(group, tasks, "second", 1)

    def failing(store: Store, batch: Batch) -> history.Records:
        if store.path.endswith("second"):
            raise OSError(errno.EIO, "Input/output error")
        return task_history.decided_records(store, batch)

    monkeypatch.setattr(lineage, "decided_records", failing)
    assert group.lineage("first", tasks[0].id) == lineage.Lineage([], [], False)
    assert group.lineage("second", inserted) == lineage.Lineage([], [], False)


def test_no_more_tasks_are_named_than_the_limit_says(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage, "TASKS_MAX", 5)
    tasks = leased(group, "first")
    move_on(group, tasks, "second", 7)
    found = group.lineage("first", tasks[0].id)
    assert (len(found.successors), found.is_whole) == (5, False)


def test_of_a_task_that_is_not_known_there_are_none(group: Group) -> None:
    leased(group, "first")
    assert group.lineage("first", f"{'0' * 32}.0") == lineage.Lineage([], [], True)
