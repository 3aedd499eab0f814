"""Queues of a group by name, and leasing over all of them: the same for every kind of group."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fsqueue import InvalidArgument, QueuePurged, RemoteGroup, Status

pytestmark = pytest.mark.once

NONE_SET = "a gateway sets none: that is done where the group's directory is mounted"
LACKING = {"barrier": NONE_SET, "join": NONE_SET}
"""What a group of a gateway refuses, each with the reason."""


def test_what_cannot_be_a_name_is_refused(group: Any) -> None:
    for name in ("", "\0", "x" * 300, 5, None, "\ud800"):
        with pytest.raises(InvalidArgument):
            _ = group[name]


@pytest.mark.parametrize("pattern", ["(", 5, "\ud800", "a\udcff"])
def test_what_is_no_pattern_is_refused(group: Any, pattern: Any) -> None:
    for ask in (group.matching, group.status, lambda one: list(group.queues(one))):
        with pytest.raises(InvalidArgument, match="is no regular expression for names of queues"):
            ask(pattern)


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


def test_a_loop_over_a_group_takes_of_all_and_ends_when_all_are_drained(group: Any) -> None:
    for name in ("fetch", "parse", "store"):
        group[name].insert(name)
    seen = []
    for task in group.matching("fetch|parse").poll(prefetch=2):
        with task:
            seen.append(task.payload)
            if task.payload == "fetch":
                group["parse"].insert("late")
    assert sorted(seen) == ["fetch", "late", "parse"]
    assert not group.is_drained()
    assert group.matching("fetch|parse").is_drained()
    assert [task.payload for task in group.poll() if not task.complete()] == ["store"]
    assert group.is_drained()


def test_a_loop_that_is_left_puts_back_what_it_has_leased_ahead(group: Any) -> None:
    for name in ("fetch", "parse"):
        group[name].insert_many([1, 2])
    poll = group.poll(prefetch=4)
    next(poll).complete()
    poll.close()
    left = [group[name].status() for name in ("fetch", "parse")]
    assert sum(status.waiting for status in left) == 3
    assert sum(status.leased for status in left) == 0


def test_a_wait_for_a_group_ends_with_it_or_with_its_time(group: Any) -> None:
    for name in ("fetch", "parse"):
        group[name].insert(name)
    seen: list[Status] = []
    assert group.wait(0, seen.append) == Status(waiting=2)
    assert seen == [Status(waiting=2)]
    tasks = group.lease(2)
    assert group.matching("none").wait() == Status()
    timers = [threading.Timer(0.1, task.complete) for task in tasks]
    for timer in timers:
        timer.start()
    assert group.wait(60) == Status(completed=2)
    for timer in timers:
        timer.join()


def test_a_purge_of_one_queue_ends_a_wait_for_the_group(group: Any) -> None:
    for name in ("fetch", "parse"):
        group[name].insert(name)

    def purge(status: Status) -> None:
        for name in ("fetch", "parse"):
            group[name].purge()

    with pytest.raises(QueuePurged, match="waited for"):
        group.wait(60, purge)


def test_a_group_tells_its_settings_its_usage_and_its_flows(group: Any) -> None:
    assert (group.settings.lease_s, group.settings.backoff_s) == (60, (0.01, 0.01))
    group["fetch"].insert(1)
    assert group.flows() == []
    with group.update() as update:
        update.complete(group["fetch"].lease()[0])
        update.insert("parse", 2)
    [flow] = group.flows()
    assert (flow.source, flow.target, flow.updates) == ("fetch", "parse", 1)
    usage = group.usage()
    assert usage["updates"].files == 1
    assert usage["all"].files >= 4


def test_a_selection_narrows_what_it_lists(group: Any) -> None:
    for name in ("fetch", "fetch2", "parse"):
        group[name].insert(1)
    chosen = group.matching("fetch.*")
    assert [queue.name for queue in chosen.queues()] == ["fetch", "fetch2"]
    assert [queue.name for queue in chosen.queues(".*2|parse")] == ["fetch2"]
    assert sorted(task.queue.name for task in chosen.lease(5)) == ["fetch", "fetch2"]
    with pytest.raises(InvalidArgument):
        group.matching("(")


def test_a_barrier_is_set_or_refused(group: Any) -> None:
    group["fetch"].insert(1)
    if isinstance(group, RemoteGroup):
        for name in LACKING:
            with pytest.raises(InvalidArgument, match="Nothing was done"):
                getattr(group, name)(["fetch"], then=("report", 2))
        assert [queue.name for queue in group.queues(tasks_min=0)] == ["fetch"]
    else:
        barrier = group.barrier(["fetch"], then=("report", 2))
        done = []
        for task in group.poll():
            with task:
                done.append(task.payload)
        assert done == [1, 2]
        assert barrier.state == "fired"
