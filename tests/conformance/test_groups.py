"""Queues of a group by name, and leasing over all of them: the same for every kind of group."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import InvalidArgument, QueuePurged, Status
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once


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


def work_off(group: Any) -> list[Any]:
    """Complete what is there, each task with its payload, negated if it is a number. Return the payloads."""
    done = []
    for task in group.poll():
        done.append(task.payload)
        task.complete(-task.payload if isinstance(task.payload, int) else None)
    return done


def test_tasks_come_once_queues_are_drained(group: Any) -> None:
    group["fetch"].insert(1)
    then = [("report", fsqueue.Task({"of": [1]}, priority=3)), (group["mail"], "done")]
    barrier = group.barrier(["fetch", group["parse"]], then=then)
    assert (barrier.of, barrier.match, barrier.then, barrier.on_failure, barrier.is_join) == (
        ("fetch", "parse"), None, ("report", "mail"), "run", False,
    )  # fmt: skip
    behind = group.barrier(group.matching("mail|report"), ("end", b"\0"), on_failure="drop")
    assert (behind.of, behind.match, behind.on_failure) == ((), "mail|report", "drop")
    assert (barrier.state, behind.state) == ("waiting", "waiting")
    assert [one.id for one in group.barriers()] == [barrier.id, behind.id]
    assert group.barriers()[0].as_dict() == barrier.as_dict()
    assert group["report"].status().delayed == 1
    done = work_off(group)
    assert (done[0], done[-1]) == (1, b"\0")
    assert len(done) == 4
    assert {"of": [1]} in done
    assert (barrier.state, behind.state) == ("fired", "fired")
    assert not barrier.cancel(), "it has passed before"


def test_a_barrier_that_is_cancelled_takes_its_tasks_out(group: Any) -> None:
    group["fetch"].insert(1)
    barrier = group.barrier("fetch", then=("report", 2))
    assert (barrier.cancel(), barrier.cancel(), barrier.state) == (True, True, "cancelled")
    assert (work_off(group), group["report"].status().remaining) == ([1], 0)


def test_a_task_comes_once_a_set_is_done_and_reads_what_came_of_it(group: Any) -> None:
    refs = group["fetch"].insert_many([1, 2, 3], refs=True)
    other = group["parse"].insert(4)
    join = group.join([*refs[1:], other, refs[1]], then=("report", "x"))
    assert (join.is_join, join.on_failure, join.match, join.state) == (True, "wait", None, "waiting")
    assert sorted(join.of) == ["fetch", "parse"]
    assert sorted(work_off(group.matching("fetch|parse"))) == [1, 2, 3, 4]
    [task] = group["report"].lease(wait_s=PATIENCE_S)
    assert sorted(one.result for one in task.inputs()) == [-4, -3, -2]
    assert {one.id for one in group["report"].inputs(task.id)} == {refs[1].id, refs[2].id, other.id}
    assert (task.payload, join.state) == ("x", "fired")
    task.complete()
    with pytest.raises(InvalidArgument, match="has no inputs"):
        list(group["fetch"].inputs(refs[0]))


@pytest.mark.parametrize("queues", [[], (), {"fetch": 1}, 5, b"fetch", [5], "", ["fetch", ""], ["report"], "report"])
def test_a_barrier_that_cannot_be_is_refused(group: Any, queues: Any) -> None:
    with pytest.raises(InvalidArgument):
        group.barrier(queues, then=("report", 2))
    assert group.barriers() == []


@pytest.mark.parametrize(
    "then",
    [[], (), None, "report", ("report",), [("report", 1), 2], ("", 1), ("report", fsqueue.Task(1, key="k")),
     ("report", fsqueue.Task(1, delay_s=3)), ("report", {1, 2})],
)  # fmt: skip
def test_a_barrier_without_sound_tasks_is_refused(group: Any, then: Any) -> None:
    ref = group["fetch"].insert(1)
    with pytest.raises(InvalidArgument):
        group.barrier("fetch", then)
    with pytest.raises(InvalidArgument):
        group.join([ref], then)
    assert group.barriers() == []


def test_a_barrier_of_all_queues_or_of_another_group_or_with_another_end_is_refused(group: Any, tmp_path: Path) -> None:
    other = fsqueue.Group.create(tmp_path / "other")
    ref = group["fetch"].insert(1)
    for wrong in (group, other["fetch"], [other["fetch"]], other.matching("fetch")):
        with pytest.raises(InvalidArgument):
            group.barrier(wrong, then=("report", 2))
    others: list[Any] = [[], None, "fetch", ["fetch"], [ref.id], [other["fetch"].insert(1)], fsqueue.TaskRef(ref.id)]
    for given in (*others, [("fetch", "none")], ("absent", "none"), [ref, ("fetch", "none")]):
        with pytest.raises(InvalidArgument, match="Nothing was done"):
            group.join(given, then=("report", 2))
    with pytest.raises(InvalidArgument, match="on_failure"):
        group.barrier("fetch", ("report", 2), on_failure="later")
    with pytest.raises(InvalidArgument, match="on_failure"):
        group.join([ref], ("report", 2), on_failure="later")
    assert group.barriers() == []


def test_a_set_may_be_named_commits(group: Any) -> None:
    for name in ("monday", "tuesday"):
        group["fetch"].insert_many([1, 2], commit=name)
    join = group.join(("fetch", "monday"), ("report", 3))
    both = group.join([("fetch", "monday"), (group["fetch"], "tuesday"), group["parse"].insert(5)], ("report", 4))
    assert (join.of, sorted(both.of), join.is_join) == (("fetch",), ["fetch", "parse"], True)
    done = work_off(group)
    assert (sorted(done[:-2]), sorted(done[-2:])) == ([1, 1, 2, 2, 5], [3, 4])
    assert (join.state, both.state) == ("fired", "fired")
