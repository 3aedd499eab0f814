"""Waiting, looking, and looking after: the same for every kind of queue."""

from __future__ import annotations

import pickle  # noqa: TID251 - references to tasks are sent to other processes
import threading
from typing import Any

import pytest

from fsqueue import (
    InvalidArgument,
    QueuePurged,
    ResultNotReady,
    Status,
    Task,
    TaskFailed,
    TaskNotFound,
    as_completed,
)
from tests.conformance.kinds import A_FAILURE, A_FUNCTION, A_KEY, AN_ID, THE_HOST, lacks
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once

NOWHERE = f"{'0' * 32}.0"


@AN_ID
def test_what_is_not_there_is_told(queue: Any) -> None:
    for act in (queue.task, queue.history):
        with pytest.raises(TaskNotFound):
            act(NOWHERE)
    assert queue.cancel(NOWHERE) == 0


@A_FUNCTION
def test_a_wait_ends_with_its_queue_or_its_time(queue: Any) -> None:
    queue.insert(1)
    seen: list[Status] = []
    assert queue.wait(0, seen.append) == Status(waiting=1)
    assert seen == [Status(waiting=1)]
    [task] = queue.lease()
    timer = threading.Timer(0.2, task.complete)
    timer.start()
    assert queue.wait(60, seen.append) == Status(completed=1)
    timer.join()
    assert seen[-1] == Status(completed=1)


@A_FAILURE
@A_FUNCTION
@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")  # a generator closes its file once
def test_an_error_of_the_callers_function_is_the_callers(queue: Any) -> None:
    queue.insert(1)
    queue.lease()[0].bury("no")

    def fail(found: object) -> bool:
        raise FileNotFoundError("a file of the caller's")

    for act in (
        lambda: queue.wait(0, fail), lambda: list(queue.dead(fail)), lambda: list(queue.results(fail)),
        lambda: queue.retry_dead(where=fail), lambda: queue.purge_dead(where=fail),
    ):  # fmt: skip
        with pytest.raises(FileNotFoundError, match="of the caller's"):
            act()
    assert queue.status() == Status(dead=1)


@A_FUNCTION
def test_a_purge_ends_a_wait(queue: Any) -> None:
    queue.insert(1)
    seen: list[Status] = []

    def purge(status: Status) -> None:
        if not seen:
            queue.purge()
        seen.append(status)

    with pytest.raises(QueuePurged):
        queue.wait(60, purge)
    assert seen == [Status(waiting=1)]


def with_letters(queue: Any) -> dict[int, str]:
    """Insert six tasks, and give them up. Return their ids by their payloads."""
    queue.insert_many(range(6))
    for task in queue.lease(6):
        task.bury("odd" if task.payload % 2 else "even")
    return {letter.payload: letter.id for letter in queue.dead()}


@A_FAILURE
def test_letters_are_chosen_by_id(queue: Any) -> None:
    ids = with_letters(queue)
    assert queue.retry_dead(ids[0]) == 1
    assert queue.purge_dead([ids[1], ids[0]]) == 1
    assert sorted(letter.payload for letter in queue.dead()) == [2, 3, 4, 5]
    assert (queue.retry_dead(), queue.purge_dead()) == (4, 0)
    assert queue.status() == Status(waiting=5)


@A_FAILURE
@A_FUNCTION
def test_letters_are_chosen_by_what_they_are(queue: Any) -> None:
    ids = with_letters(queue)
    assert queue.purge_dead([ids[1], ids[2]], where=lambda letter: letter.reason == "odd") == 1
    assert queue.retry_dead(where=lambda letter: letter.payload == 3) == 1
    assert sorted(letter.payload for letter in queue.dead()) == [0, 2, 4, 5]


@A_FAILURE
def test_completed_tasks_are_done_again_once(queue: Any) -> None:
    queue.insert_many(range(3))
    tasks = queue.lease(3)
    queue.complete(tasks[:2])
    tasks[2].bury("no")
    assert queue.retry_completed(tasks[0].id).retried == 1
    report = queue.retry_completed()
    assert (report.retried, report.repeated, report.unkept) == (1, 1, 0)
    assert queue.status() == Status(waiting=2, completed=2, dead=1)


@A_FAILURE
@A_FUNCTION
def test_completed_tasks_are_done_again_by_choice(queue: Any) -> None:
    queue.insert_many(range(4))
    queue.complete(queue.lease(3))
    queue.lease()[0].bury("no")
    seen: list[Any] = []

    def chosen(result: Any) -> bool:
        seen.append(result.payload)
        return bool(result.payload == 1)

    dead = next(queue.dead()).payload
    first = 1 if dead != 1 else None
    assert queue.retry_completed(where=chosen).retried == (first is not None)
    assert dead not in seen, "a dead letter is no completed task"
    report = queue.retry_completed()
    assert (report.retried, report.repeated) == (2, 1) if first else (3, 0)


@lacks(taskstore="A client has a number, and no name.")
def test_leases_are_ended_by_who_has_them(queue: Any) -> None:
    queue.insert_many(range(3))
    for host, name in (("node1", "one"), ("node1", "two"), ("node2", "two")):
        queue.lease(holder={"host": host, "name": name})
    assert (queue.release_all(host="nosuch"), queue.release_all(worker="nosuch")) == (0, 0)
    assert queue.release_all(worker="one") == 1
    assert queue.status().leased == 2
    assert queue.release_all() == 2
    assert queue.status() == Status(waiting=3)


@THE_HOST
def test_leases_are_ended_on_a_host(queue: Any) -> None:
    queue.insert_many(range(2))
    queue.lease(holder={"host": "node1", "name": "one"})
    queue.lease(holder={"host": "node2", "name": "two"})
    assert (queue.release_all(host="node1"), queue.release_all(host="node1")) == (1, 0)


def test_a_pause_and_settings(queue: Any) -> None:
    queue.insert(1)
    assert (queue.pause("disk"), queue.pause()) == (True, False)
    assert (queue.paused.reason, queue.lease()) == ("disk", [])
    assert (queue.resume(), queue.resume(), queue.paused) == (True, False, None)
    assert queue.change_settings(lease_s=5, backoff_s=(1, 2)).backoff_s == (1, 2)
    assert queue.settings.lease_s == 5


@A_KEY
def test_a_task_is_told_alike_by_all_looks(queue: Any) -> None:
    ref = queue.insert({"n": 1}, key="k", priority=3)
    [listed] = queue.tasks("waiting")
    assert listed == queue.task(ref.id)
    assert (listed.id, listed.key, listed.priority, listed.payload) == (ref.id, "k", 3, {"n": 1})
    assert [one.op for one in queue.history(ref.id)] == ["insert"]
    assert not queue.is_drained()
    assert queue.status(exact=False).remaining == 1
    queue.lease()[0].complete({"r": 2})
    [result] = queue.results()
    assert (result.id, result.payload, result.result, result.key) == (ref.id, {"n": 1}, {"r": 2}, "k")
    assert queue.is_drained()
    assert queue.gc().finished >= 0
    assert queue.delete() == {}


@A_FAILURE
def test_the_newest_results_come_first(queue: Any) -> None:
    queue.insert_many(["a", "b", "c", "d", "waits"])
    by_payload = {task.payload: task for task in queue.lease(4)}
    ended = [by_payload[payload] for payload in sorted(by_payload)]
    ended[0].complete()
    ended[1].bury("no")
    for task in ended[2:]:
        task.complete({"r": task.payload})
    whole = sorted(queue.results(), key=lambda result: -result.finished_at)
    for count in (1, 2, 9):
        found = list(queue.results(newest=count))
        assert [result.finished_at for result in found] == [result.finished_at for result in whole[:count]]
        assert [result for result in found if result not in whole] == []
    assert [result.id for result in queue.results(newest=9, dead=True)] == [ended[1].id]


@A_KEY
def test_an_unfinished_task_is_found_by_its_key(queue: Any) -> None:
    queue.insert_many([1, 2])
    queue.insert("with a key", key="run 17/ä")
    queue.insert("with another", key="run 18")
    found = queue.find_by_key("run 17/ä")
    assert (found.payload, found.key, found.state) == ("with a key", "run 17/ä", "waiting")
    assert queue.task(found.id) == found
    [task] = [one for one in queue.lease(10) if one.id == found.id]
    assert queue.find_by_key("run 17/ä").state == "leased"
    task.complete()
    with pytest.raises(TaskNotFound, match="key"):
        queue.find_by_key("run 17/ä")
    assert queue.find_by_key("run 18").payload == "with another"
    with pytest.raises(TaskNotFound):
        queue.find_by_key("no such key")


@lacks(commands="`ls` lists in no order.", taskstore="A claim takes a random task.")
def test_the_next_tasks_are_seen_as_they_are_listed(queue: Any) -> None:
    queue.insert(1, priority=1)
    assert queue.peek(5_000) == list(queue.tasks())


@A_FAILURE
def test_a_wait_without_time_tells_whether_all_is_done(queue: Any) -> None:
    queue.insert(1)
    assert (queue.wait(0), queue.is_drained()) == (Status(waiting=1), False)
    [task] = queue.lease()
    assert (queue.wait(0), queue.is_drained()) == (Status(leased=1), False)
    task.bury("no")
    assert (queue.wait(0), queue.is_drained()) == (Status(dead=1), True)


@A_KEY
def test_who_works_at_it_and_what_it_takes_is_told(queue: Any) -> None:
    queue.insert_many([Task(number, priority=number) for number in range(3)])
    [task] = queue.lease(holder={"host": "node1", "name": "one"})
    [holder] = queue.workers()
    assert (holder.worker["name"], holder.tasks, holder.expired) == ("one", [task.id], 0)
    [found] = queue.waiting_by_priority()[:1]
    assert (found.first, sum(one.waiting for one in queue.waiting_by_priority())) == (1, 2)
    assert (queue.usage()["all"].files > 3, queue.stuck(), queue.failing_nodes(), queue.admit_node("n")) == (
        True, [], [], False
    )  # fmt: skip


# -- the result of one task ------------------------------------------------------------------------------------------

A_RESULT = lacks(
    commands="`show` prints a result, and nothing waits for it.",
    taskstore="A client adds what comes of a task as another task.",
)


@A_RESULT
def test_the_result_of_a_task_is_waited_for(queue: Any) -> None:
    ref = queue.insert("x")
    [task] = queue.lease()
    timer = threading.Timer(0.2, task.complete, [{"loss": 0.5}])
    timer.start()
    assert queue.result(ref, timeout_s=PATIENCE_S) == {"loss": 0.5}
    timer.join()
    assert queue.result(task.id, timeout_s=0) == {"loss": 0.5}


@A_RESULT
def test_a_task_without_a_result_has_none(queue: Any) -> None:
    ref = queue.insert("x")
    queue.lease()[0].complete()
    assert queue.result(ref) is None


@A_RESULT
@A_FAILURE
def test_a_task_that_was_given_up_or_cancelled_has_no_result(queue: Any) -> None:
    ref = queue.insert("bad")
    queue.lease()[0].bury("ValueError: no number")
    with pytest.raises(TaskFailed, match=r"was given up after 1 attempt: ValueError: no number") as given_up:
        queue.result(ref)
    assert (given_up.value.task.state, given_up.value.task.payload) == ("dead", "bad")
    ref = queue.insert("unwanted")
    assert queue.cancel(ref.id) == 1
    with pytest.raises(TaskFailed, match="was cancelled: it has no result") as cancelled:
        queue.result(ref.id)
    assert cancelled.value.task.state == "cancelled"


@A_RESULT
def test_a_result_that_takes_longer_than_is_waited_raises_a_timeout(queue: Any) -> None:
    ref = queue.insert("slow")
    with pytest.raises(ResultNotReady, match="is waiting still, after 0 s"):
        queue.result(ref, timeout_s=0)
    [task] = queue.lease()
    with pytest.raises(TimeoutError, match="is leased still, after 0 s"):
        queue.result(ref, timeout_s=0)
    task.complete(1)
    assert queue.result(ref, timeout_s=0) == 1


A_REFERENCE = lacks(
    commands="A command prints a task's id.",
    taskstore="Its ids are other numbers.",
)


@A_REFERENCE
@A_FAILURE
def test_what_an_insert_returns_tells_of_its_task(queue: Any) -> None:
    ref, unwanted, bad = (queue.insert(payload) for payload in ("one", "unwanted", "bad"))
    copy = pickle.loads(pickle.dumps(ref))
    assert (copy, str(copy), hash(copy)) == (ref, ref.id, hash(ref))
    assert copy != unwanted
    assert [ref.state(), copy.state()] == ["waiting", "waiting"]
    with pytest.raises(ResultNotReady):
        copy.result(timeout_s=0)
    assert [unwanted.cancel(), unwanted.cancel(), unwanted.state()] == [True, False, "cancelled"]
    for task in queue.lease(5):
        assert not ref.cancel()
        if task.payload == "bad":
            task.bury("no")
        else:
            task.complete([task.payload])
    assert (ref.result(), copy.result(timeout_s=0), ref.state()) == (["one"], ["one"], "completed")
    with pytest.raises(TaskFailed, match="no"):
        bad.result()
    with pytest.raises(TaskFailed, match="cancelled"):
        unwanted.result()


@A_REFERENCE
@A_FAILURE
def test_the_results_of_tasks_are_told_by_their_ids(queue: Any) -> None:
    refs = {payload: queue.insert(payload) for payload in ("waits", "held", "done", "bad", "cancelled", "other")}
    refs["cancelled"].cancel()
    by_payload = {task.payload: task for task in queue.lease(5)}
    by_payload["done"].complete({"loss": 0.5})
    by_payload["bad"].bury("no")
    for payload in ("waits", "other"):
        by_payload[payload].release()
    asked = {payload: ref for payload, ref in refs.items() if payload != "other"}
    found = queue.results_of([*asked.values(), NOWHERE])
    assert found.keys() == {ref.id for ref in asked.values()}
    states = {payload: found[ref.id].state for payload, ref in asked.items()}
    assert states == {
        "waits": "waiting", "held": "leased", "done": "completed", "bad": "dead", "cancelled": "cancelled",
    }  # fmt: skip
    done, bad = found[refs["done"].id], found[refs["bad"].id]
    assert (done.payload, done.result, done.attempts) == ("done", {"loss": 0.5}, 1)
    assert (bad.payload, bad.error) == ("bad", "no")
    assert queue.results_of(refs["held"].id)[refs["held"].id].payload == "held"
    assert queue.results_of([]) == queue.results_of(NOWHERE) == {}
    queue.retry_dead()
    assert queue.results_of(refs["bad"]) == {}


@A_REFERENCE
@A_FAILURE
def test_references_come_as_their_tasks_end(queue: Any) -> None:
    refs = [queue.insert(number) for number in range(5)]
    coming = as_completed([*refs, refs[0]], timeout_s=PATIENCE_S)
    tasks = {task.payload: task for task in queue.lease(5)}
    tasks[3].complete("three")
    assert next(coming) is refs[3]
    assert refs[3].result(timeout_s=0) == "three"
    tasks[1].bury("no")
    ended = next(coming)
    assert ended is refs[1]
    with pytest.raises(TaskFailed, match="no"):
        ended.result()
    for number in (0, 2, 4):
        tasks[number].complete(number)
    assert {ref.result() for ref in coming} == {0, 2, 4}
    late = queue.insert("late")
    with pytest.raises(ResultNotReady, match="1 task of those waited for has not ended"):
        [*as_completed([refs[0], late], timeout_s=0)]
    assert late.state() == "waiting"


@A_RESULT
def test_a_task_that_is_unknown_has_no_result(queue: Any) -> None:
    queue.insert("another")
    with pytest.raises(TaskNotFound):
        queue.result(NOWHERE)


@A_RESULT
def test_a_time_to_wait_for_a_result_is_a_number_of_seconds(queue: Any) -> None:
    with pytest.raises(InvalidArgument, match="timeout_s"):
        queue.result(queue.insert("x"), timeout_s="soon")
