"""Queues of a group by name, and leasing over all of them: the same for every kind of group."""

from __future__ import annotations

from typing import Any

import pytest

from fsqueue import InvalidArgument, Status

pytestmark = pytest.mark.once


def test_what_cannot_be_a_name_is_refused(group: Any) -> None:
    for name in ("", "\0", "x" * 300, 5, None, "\ud800"):
        with pytest.raises(InvalidArgument):
            _ = group[name]


def test_any_name_is_a_queue_of_its_own(group: Any) -> None:
    for name in ("a/b", "..", ".hidden", "é ü", "%2F", "x" * 255):
        assert not group[name].exists()
        group[name].insert(1)
        assert [queue.name for queue in group.queues()] == [name]
        assert group[name].exists()
        assert (group.delete(name), group.delete(name)) == (True, False)
        assert not group[name].exists()


def test_a_queue_that_is_not_there_is_empty(group: Any) -> None:
    queue = group["none"]
    assert (queue.status(), queue.is_drained(), queue.lease(), list(queue.tasks())) == (Status(), True, [], [])
    assert (list(queue.poll()), queue.wait(), queue.cancel(f"{'0' * 32}.0")) == ([], Status(), 0)
    assert queue.delete() == {}
    assert not queue.exists()


def test_queues_are_listed_by_name_and_by_what_they_hold(group: Any) -> None:
    for name in ("fetch", "parse", "store"):
        group[name].insert(name)
    assert [queue.name for queue in group.queues("f.*|s.*")] == ["fetch", "store"]
    group["fetch"].complete(group["fetch"].lease())
    assert [queue.name for queue in group.queues()] == ["parse", "store"]
    assert [queue.name for queue in group.queues(tasks_min=0)] == ["fetch", "parse", "store"]
    with pytest.raises(InvalidArgument):
        list(group.queues(tasks_min=-1))


def test_a_wrong_argument_of_a_lease_is_refused(group: Any) -> None:
    group["fetch"].insert(1)
    for given in ({"n": 0}, {"lease_s": 0}, {"wait_s": -1}, {"up_to": 1.5}, {"n": 1.5}):
        with pytest.raises(InvalidArgument):
            group.lease(**given)
    assert group["fetch"].status() == Status(waiting=1)


def test_a_lease_over_all_knows_of_each_task_whose_it_is(group: Any) -> None:
    for name in ("fetch", "parse"):
        group[name].insert(name, priority=len(name))
    tasks = group.lease(5, wait_s=0, up_to=9)
    assert sorted(task.payload for task in tasks) == ["fetch", "parse"]
    for task in tasks:
        assert task.queue == group[task.payload]
        task.complete()
    assert group["fetch"].status() == group["parse"].status() == Status(completed=1)


def test_a_lease_depends_on_tasks_of_the_group(group: Any) -> None:
    for name in ("leader", "work"):
        group[name].insert(name)
    [leader] = group["leader"].lease()
    [task] = group["work"].lease(depends=[leader])
    task.release()
    for wrong in (5, [5], [None]):
        with pytest.raises(InvalidArgument):
            group["work"].lease(depends=wrong)
    assert group["work"].status() == Status(waiting=1)
