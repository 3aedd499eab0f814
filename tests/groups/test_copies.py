"""A copy of a queue (`cp -a`) beside it: both have one id, and the same ids of tasks. Each task is told of in its own
queue, or the two are refused by name.
"""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Group, InvalidArgument, LeasedTask, Queue, Then, Worker
from fsqueue.groups.task_numbers import NewNumber
from fsqueue.worker.settling import Outcome, OutcomeReporter, adopt
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once

N = 30


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group.create(tmp_path / "group", shards=2, durability="none")


def copied(path: Path) -> Path:
    """A copy of a queue beside it, as a user makes it."""
    there = path.with_name(f"{path.name}.bak")
    subprocess.run(["cp", "-a", path, there], check=True)
    return there


def of_both(queues: Sequence[Queue]) -> list[LeasedTask]:
    """One task of each of two queues, with the same id."""
    tasks = fsqueue.lease(queues, 2)
    assert len({task.queue for task in tasks}) == 2
    assert len({task.id for task in tasks}) == 1
    return tasks


def where(payload: Any, task: Any) -> list[Any]:
    """The queue in which a task is executed, and its payload."""
    return [Path(task.queue).name, payload]


def is_each_in_its_own(queues: Sequence[Queue]) -> None:
    for queue in queues:
        results = [(one.payload, one.result, one.attempts) for one in queue.results()]
        assert sorted(results) == [(n, [queue.path.name, n], 1) for n in range(N)]


def test_a_worker_of_a_group_tells_each_task_in_the_queue_where_it_ran(group: Group) -> None:
    group["a"].insert_many(range(N))
    copied(group["a"].path)
    report = Worker(group, where, threads=2, prefetch=8, idle_timeout_s=PATIENCE_S).run()
    assert (report.ended, report.completed) == ("drained", 2 * N)
    is_each_in_its_own([group["a"], group["a.bak"]])


def test_a_worker_of_two_queues_outside_of_groups_does_so_too(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "a", durability="none")
    queue.insert_many(range(N))
    both = [queue, Queue(copied(queue.path))]
    report = Worker(both, where, threads=2, prefetch=8, idle_timeout_s=PATIENCE_S).run()
    assert (report.ended, report.completed) == ("drained", 2 * N)
    is_each_in_its_own(both)


def test_what_is_done_in_one_queue_is_not_done_in_its_copy(group: Group) -> None:
    group["a"].insert("x")
    copied(group["a"].path)
    mine, other = of_both([group["a"], group["a.bak"]])
    assert adopt([other], [], [Outcome(mine, "complete", result=7)]) == ([other], [])


def test_outcomes_of_a_queue_and_its_copy_are_told_in_one_round(group: Group) -> None:
    group["a"].insert("x")
    copied(group["a"].path)
    tasks = of_both([group["a"], group["a.bak"]])
    worker = Worker(group, where, threads=1)
    reporter: OutcomeReporter = worker._loop._reporter
    settled, again = reporter._round([Outcome(task, "complete", result=task.queue.path.name) for task in tasks])
    assert ([kind for _, kind, _ in settled.counted], again) == (["completed"] * 2, [])
    for name in ("a", "a.bak"):
        assert [one.result for one in group[name].results()] == [name]


def test_what_is_leased_of_both_is_completed_and_put_back_each_by_itself(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "a", durability="none")
    queue.insert_many(range(2))
    both = [queue, Queue(copied(queue.path))]
    for task in of_both(both):
        task.complete(task.queue.path.name)
    assert [[one.result for one in each.results()] for each in both] == [["a"], ["a.bak"]]
    tasks = of_both(both)
    with pytest.raises(fsqueue.LeaseLost) as caught:
        queue.complete(tasks)
    [other] = [task for task in tasks if task.queue != queue]
    assert caught.value.tokens == [other.token]
    other.release()
    assert [(each.status().completed, each.status().waiting) for each in both] == [(2, 0), (1, 1)]


def test_a_loop_over_a_group_puts_back_what_it_has_leased_ahead_in_both(group: Group) -> None:
    group["a"].insert_many(range(4))
    copied(group["a"].path)
    tasks = group.poll(prefetch=8)
    next(tasks)
    tasks.close()
    assert [group[name].status().leased for name in ("a", "a.bak")] in ([1, 0], [0, 1])


# -- updates


def test_an_update_of_both_is_refused_by_name_and_does_nothing(group: Group) -> None:
    group["a"].insert("x")
    copied(group["a"].path)
    tasks = of_both([group["a"], group["a.bak"]])
    update = group.update()
    for task in tasks:
        update.complete(task, 7)
    update.insert("b", 1)
    with pytest.raises(InvalidArgument) as caught:
        update.apply()
    text = str(caught.value)
    assert f"{group.path}/a and {group.path}/a.bak have the same id: one is a copy of the other" in text
    assert "Nothing of the update has happened" in text
    assert [group[name].status().leased for name in ("a", "a.bak")] == [1, 1]
    assert group["b"].status().inserted == 0
    for task in tasks:  # each by itself
        with group.update() as update:
            update.complete(task, task.queue.path.name)
            update.insert("b", task.queue.path.name)
    assert [[one.result for one in group[name].results()] for name in ("a", "a.bak")] == [["a"], ["a.bak"]]
    assert sorted(info.payload for info in group["b"].tasks()) == ["a", "a.bak"]


def test_an_update_names_each_task_once(group: Group) -> None:
    group["a"].insert("x")
    [task] = group["a"].lease()
    update = group.update()
    update.renew(task)
    with pytest.raises(InvalidArgument, match=f"The task {task.id} is in this update already"):
        update.complete(task)


def then_b(payload: Any, task: Any) -> Then:
    return Then(where(payload, task), [("b", [Path(task.queue).name, payload])])


def test_a_worker_whose_tasks_insert_others_does_both_queues(group: Group) -> None:
    group["a"].insert_many(range(N))
    copied(group["a"].path)
    worker = Worker([group["a"], group["a.bak"]], then_b, threads=2, prefetch=8, idle_timeout_s=PATIENCE_S)
    assert worker.run().completed == 2 * N
    is_each_in_its_own([group["a"], group["a.bak"]])
    assert sorted(info.payload for info in group["b"].tasks()) == [
        [name, n] for name in ("a", "a.bak") for n in range(N)
    ]


# -- numbers


def test_a_task_and_its_copy_have_numbers_of_their_own(group: Group) -> None:
    group["a"].insert("x")
    copied(group["a"].path)
    infos = [next(group[name].tasks()) for name in ("a", "a.bak")]
    assert infos[0].id == infos[1].id
    given = group.numbers.give([NewNumber(info, 0) for info in infos])
    assert given[0].number != given[1].number
    again = Group(group.path).numbers  # another process
    assert [one.number for one in again.give([NewNumber(info, 0) for info in infos])] == [one.number for one in given]
    for numbers in (group.numbers, again):
        for look in (numbers.find, numbers.named):
            found = look([one.number for one in given])
            assert [one.task.queue for one in found if one is not None] == ["a", "a.bak"]


def test_a_renamed_queue_gets_numbers_that_name_it(group: Group) -> None:
    group["a"].insert("x")
    group.numbers.give([NewNumber(next(group["a"].tasks()), 0)])
    group["a"].path.rename(group.path / "b")
    [given] = Group(group.path).numbers.give([NewNumber(next(group["b"].tasks()), 0)])
    [found] = Group(group.path).numbers.find([given.number])
    assert found is not None
    assert found.task.queue == "b"
