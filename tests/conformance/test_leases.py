"""Leasing, and all that ends a lease: the same for every kind of queue."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from fsqueue import (
    Bury,
    ForkedChild,
    InvalidArgument,
    InvalidResult,
    LeaseLost,
    QueueClosed,
    Retry,
    Status,
    Task,
    TaskNotFound,
)
from tests.conformance.kinds import (
    A_FAILURE,
    A_KEY,
    A_LOOP,
    A_RESULT,
    AN_OBJECT,
    ANY_VALUE,
    BY_ID,
    THE_HOST,
    THE_REASON,
)

pytestmark = pytest.mark.once


def in_a_child(act: Callable[[], object]) -> int:
    """Do something in a forked child, and return its exit code: that of its last line, if nothing was raised."""
    pid = os.fork()
    if not pid:
        code = 99
        try:
            code = int(act() is True)
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@ANY_VALUE
def test_a_wrong_argument_of_a_lease_is_refused(queue: Any) -> None:
    queue.insert(1)
    for given in (
        {"n": 0}, {"n": -1}, {"n": 1.5}, {"n": True}, {"lease_s": 0}, {"lease_s": -1}, {"lease_s": 1e12},
        {"lease_s": "60"}, {"wait_s": -1}, {"wait_s": float("nan")}, {"wait_s": None}, {"up_to": 1.5}, {"up_to": [1]},
        {"order": "x"}, {"holder": {"host": ""}}, {"holder": {"pid": 1}}, {"holder": 5},
    ):  # fmt: skip
        with pytest.raises(InvalidArgument):
            queue.lease(**given)
    assert queue.status() == Status(waiting=1)


@THE_HOST
def test_the_holder_of_a_lease_is_whom_the_caller_names(queue: Any) -> None:
    ref = queue.insert(1)
    queue.lease(holder={"host": "node7", "name": "w1"})
    assert queue.history(ref.id)[-1].worker == {"host": "node7", "name": "w1"}


@A_RESULT
def test_more_tasks_than_a_request_takes_are_leased_and_ended_together(queue: Any) -> None:
    count = 2_500
    queue.insert_many(range(count))
    tasks = queue.lease(5_000)
    assert sorted(task.payload for task in tasks) == list(range(count))
    queue.renew(tasks, 1000)
    queue.complete(tasks[:2_200], {task.id: "x" * 4_000 for task in tasks[:2_200]})
    queue.release(tasks[2_200:])
    assert queue.status() == Status(waiting=300, completed=2_200)
    assert {result.result for result in queue.results()} == {"x" * 4_000}
    assert queue.cancel([task.id for task in tasks]) == 300


def test_nothing_is_asked_of_nothing(queue: Any) -> None:
    queue.insert(1)
    queue.complete([])
    queue.renew([])
    queue.release(())
    assert queue.cancel([]) == 0
    assert queue.status() == Status(waiting=1)


@A_FAILURE
def test_no_letter_is_chosen_by_no_id(queue: Any) -> None:
    queue.insert(1)
    queue.lease()[0].bury("no")
    assert (queue.retry_dead([]), queue.purge_dead([]), queue.retry_completed([]).retried) == (0, 0, 0)
    assert queue.status() == Status(dead=1)


@ANY_VALUE
def test_a_result_that_cannot_be_kept_leaves_its_task_leased_and_the_others_done(queue: Any) -> None:
    for result in (object(), b"bytes", "x" * (1 << 20)):
        queue.insert_many(range(3))
        first, second, third = queue.lease(3)
        with pytest.raises(InvalidResult) as refused:
            first.complete(result)
        assert refused.value.tasks == [first.id]
        with pytest.raises(InvalidResult) as refused:
            queue.complete([first, second], {first.id: result, second.id: 2})
        assert refused.value.tasks == [first.id]
        assert (first.done, second.done, third.done) == (False, True, False)
        assert queue.status() == Status(leased=2, completed=1)
        with pytest.raises(InvalidResult), third:
            third.complete(result)
        assert [letter.id for letter in queue.dead()] == [third.id]
        queue.purge()


@ANY_VALUE
def test_a_result_comes_back_as_its_rules_say(queue: Any) -> None:
    queue.insert_many(range(5))
    back = [{"1": "r"}, [1, 2], {"a": "NaN"}, 2**64 - 1, "é"]
    for task, given in zip(queue.lease(5), [{1: "r"}, (1, 2), {"a": float("nan")}, 2**64 - 1, "é"], strict=True):
        task.complete(given)
    assert sorted(map(repr, (result.result for result in queue.results()))) == sorted(map(repr, back))


def test_what_is_no_task_is_refused(queue: Any) -> None:
    queue.insert(1)
    [task] = queue.lease()
    for given in (5, None, [5], "text", {task: "result"}):
        for verb in (queue.complete, queue.renew, queue.release):
            with pytest.raises(InvalidArgument, match="This verb takes leased tasks"):
                verb(given)
    assert queue.status() == Status(leased=1)


@ANY_VALUE
def test_a_wrong_argument_is_refused_when_the_verb_is_called(queue: Any) -> None:
    queue.insert(1)
    [task] = queue.lease()
    for act in (
        lambda: queue.complete(task, [1]),
        lambda: queue.complete(task, {"x": 1}),
        lambda: task.renew(0),
        lambda: task.renew(-1),
        lambda: task.release(-1),
        lambda: task.release(None),
        lambda: task.fail("x", -1),
        lambda: task.fail("x", float("nan")),
        lambda: queue.cancel("x"),
        lambda: queue.cancel(["x"]),
        lambda: queue.cancel(5),
        lambda: queue.task("x"),
        lambda: queue.history("x"),
        lambda: queue.task(""),
        lambda: queue.attach("x"),
        lambda: queue.attach("x", verify=False),
        lambda: queue.tasks("odd"),
        lambda: queue.results(where=5),
        lambda: queue.dead(where=5),
        lambda: queue.peek(0),
        lambda: queue.retry_dead(None),
        lambda: queue.retry_dead(["x"]),
        lambda: queue.purge_dead(None),
        lambda: queue.retry_completed(None),
        lambda: queue.release_all(worker=None),
        lambda: queue.release_all(host=""),
        lambda: queue.change_settings(lease_s=-1),
        lambda: queue.change_settings(nosuch=1),
        lambda: queue.change_settings(lease_s=object()),
        lambda: queue.change_settings(lease_s=float("nan")),
        lambda: queue.pause("x" * 5000),
        lambda: queue.pause(5),
        lambda: queue.admit_node(""),
        lambda: queue.activity(0),
        lambda: queue.timeline(pieces=0),
        lambda: queue.waiting_by_priority(0),
        lambda: queue.wait(-1),
        lambda: queue.wait(0, poll=5),
    ):
        with pytest.raises(InvalidArgument):
            act()
    assert queue.status() == Status(leased=1)
    assert not task.done


class Silent(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise RuntimeError


@A_FAILURE
def test_any_error_can_be_told(queue: Any) -> None:
    for error, failed, buried in (
        (ValueError("odd"), "ValueError: odd", "odd"),
        (Silent(), "Silent: (its text could not be had: RuntimeError)",
         "(a Silent; its text could not be had: RuntimeError)"),
        ("\ud800", "\\ud800", "\\ud800"),
        (5, "5", "5"),
    ):  # fmt: skip
        ref = queue.insert(1)
        queue.lease()[0].fail(error, delay_s=0)
        assert queue.task(ref.id).error == failed
        queue.lease()[0].bury(error)
        assert [letter.reason for letter in queue.dead()] == [buried]
        assert queue.purge_dead() == 1


@A_FAILURE
def test_an_error_of_any_length_can_be_told(queue: Any) -> None:
    ref = queue.insert(1)
    queue.lease()[0].fail("x" * (3 << 20), delay_s=0)
    assert "characters left out" in queue.task(ref.id).error


def test_a_lost_lease_is_told_by_every_verb(queue: Any) -> None:
    queue.insert(1)
    [held] = queue.lease()
    queue.release_all()
    [other] = queue.lease()
    for act in (held.complete, held.renew, held.release):
        with pytest.raises(LeaseLost) as lost:
            act()
        assert (lost.value.tokens, held.done) == ([held.token], False)
    other.complete()
    assert queue.status() == Status(completed=1)


@A_FAILURE
def test_a_lost_lease_cannot_fail(queue: Any) -> None:
    queue.insert(1)
    [held] = queue.lease()
    queue.release_all()
    for act in (held.fail, held.bury):
        with pytest.raises(LeaseLost) as lost:
            act("x")
        assert (lost.value.tokens, held.done) == ([held.token], False)
    assert queue.status() == Status(waiting=1)


def test_what_is_put_back_comes_again_in_its_time_and_what_is_done_does_not(queue: Any) -> None:
    queue.insert_many(["done", "again", "later"])
    held = {task.payload: task for task in queue.lease(5)}
    assert queue.status() == Status(leased=3)
    queue.complete(held["done"])
    held["again"].release()
    held["later"].release(1000)
    assert queue.status() == Status(waiting=1, delayed=1, completed=1)
    assert [task.payload for task in queue.lease(5)] == ["again"]
    assert [task.done for task in held.values()] == [True] * 3


@BY_ID
def test_tasks_are_leased_by_their_ids_as_far_as_they_are_available(queue: Any) -> None:
    first, second, later = queue.insert(1), queue.insert(2), queue.insert(3, delay_s=1000)
    [task] = queue.lease_by_id(second.id, lease_s=500)
    assert (task.id, task.payload, task.attempt) == (second.id, 2, 1)
    assert [task.id for task in queue.lease_by_id([first.id, second.id, later.id])] == [first.id]
    assert queue.lease_by_id([]) == queue.lease_by_id(f"{'0' * 32}.0") == queue.lease_by_id(later.id) == []
    assert queue.status() == Status(delayed=1, leased=2)
    queue.complete([task])
    assert queue.lease_by_id(second.id) == []
    assert queue.status() == Status(delayed=1, leased=1, completed=1)


@BY_ID
def test_hundreds_of_tasks_are_leased_by_their_ids(queue: Any) -> None:
    queue.insert_many(range(300))
    wanted = sorted(task.id for task in queue.tasks() if task.payload % 2)
    got = queue.lease_by_id(wanted)
    assert sorted(task.id for task in got) == wanted
    assert all(task.payload % 2 for task in got)
    assert queue.status() == Status(waiting=150, leased=150)


@BY_ID
def test_in_a_paused_queue_no_task_is_leased_by_its_id(queue: Any) -> None:
    ref = queue.insert(1)
    queue.pause()
    assert queue.lease_by_id(ref.id) == []
    queue.resume()
    assert [task.id for task in queue.lease_by_id(ref.id)] == [ref.id]


@BY_ID
@THE_HOST
def test_the_holder_of_a_lease_by_id_is_whom_the_caller_names(queue: Any) -> None:
    ref = queue.insert(1)
    queue.lease_by_id(ref.id, holder={"host": "node7", "name": "w1"})
    assert queue.history(ref.id)[-1].worker == {"host": "node7", "name": "w1"}


def test_what_no_worker_holds_is_cancelled_once(queue: Any) -> None:
    first, later = queue.insert(1), queue.insert(2, delay_s=1000)
    assert (queue.cancel([first.id, later.id]), queue.cancel(first.id)) == (2, 0)
    assert queue.lease() == []
    assert queue.status() == Status()


@A_KEY
def test_what_waits_gets_another_priority_or_time_and_stays_the_same_task(queue: Any) -> None:
    first, second, third = queue.insert("a", key="k"), queue.insert("b", priority=3), queue.insert("c")
    report = queue.change([third.id, first.id], priority="soon")
    assert (sorted(report.changed), report.leased) == (sorted([first.id, third.id]), [])
    assert queue.change(third.id, delay_s=1000).changed == [third.id]
    assert queue.task(third.id).state == "delayed"
    assert [queue.task(one.id).priority for one in (first, second, third)] == ["soon", 3, "soon"]
    [task] = queue.lease(strict=True)
    assert (task.id, task.payload, task.key, task.priority) == (second.id, "b", None, 3), "numbers come before texts"
    [task] = queue.lease(strict=True)
    assert (task.id, task.payload, task.key, task.priority, task.attempt) == (first.id, "a", "k", "soon", 1)
    assert queue.change([third.id, first.id], no_priority=True, delay_s=0).as_dict() == {
        "changed": [third.id], "leased": [first.id]
    }  # fmt: skip
    [task] = queue.lease()
    assert (task.id, task.priority) == (third.id, None)


@A_KEY
def test_what_has_ended_or_never_was_is_not_changed(queue: Any) -> None:
    done, dead, gone = (queue.insert(number).id for number in range(3))
    assert queue.cancel(gone) == 1
    for task in queue.lease(2):
        task.complete() if task.id == done else task.bury("x")
    assert queue.change([done, dead, gone, f"{'0' * 32}.0"], delay_s=5).as_dict() == {"changed": [], "leased": []}
    assert queue.change([], priority=1).as_dict() == {"changed": [], "leased": []}


@A_KEY
def test_a_time_is_given_as_it_is(queue: Any) -> None:
    ref = queue.insert(1)
    queue.change(ref.id, available_at=4_000_000_000)
    assert (queue.task(ref.id).available_at, queue.lease()) == (4_000_000_000, [])
    assert [move.available_at for move in queue.history(ref.id)] == [None, 4_000_000_000]


@A_KEY
def test_more_tasks_than_a_request_takes_are_changed_together(queue: Any) -> None:
    queue.insert_many(range(1_500))
    ids = [task.id for task in queue.tasks()]
    assert sorted(queue.change(ids, priority=1).changed) == sorted(ids)
    assert {task.priority for task in queue.tasks()} == {1}


ENDS = {"purge": "purged", "delete": "the queue was deleted"}


@THE_REASON
@pytest.mark.parametrize("end", ENDS)
def test_a_lease_on_what_was_purged_or_deleted_is_lost_for_that_reason(queue: Any, end: str) -> None:
    queue.insert_many(range(6))
    held = queue.lease(5)
    [blocked] = queue.lease()
    getattr(queue, end)()
    acts = [lambda task: task.complete(), lambda task: task.renew(), lambda task: task.release(),
            lambda task: task.fail("x"), lambda task: task.bury("x")]  # fmt: skip
    for task, act in zip(held, acts, strict=True):
        with pytest.raises(LeaseLost) as lost:
            act(task)
        assert (lost.value.tokens, lost.value.reason, task.done) == ([task.token], ENDS[end], False)
    with pytest.raises(LeaseLost) as lost:
        queue.complete(held, {held[0].id: 1})
    assert sorted(lost.value.tokens) == sorted(task.token for task in held)
    assert lost.value.reason == ENDS[end]
    with pytest.raises(LeaseLost, match=ENDS[end]), blocked:
        pass


@THE_REASON
def test_a_lost_lease_of_a_queue_that_was_purged_once_is_not_called_purged(queue: Any) -> None:
    """Not if its task was inserted after that, and has ended."""
    queue.insert(1)
    [before] = queue.lease()
    queue.purge()
    queue.insert_many(range(1_000))
    [first] = queue.lease()
    queue.release_all()
    queue.complete(queue.lease(1_000))
    for task, reason in ((first, "the batch has finished"), (before, "purged")):
        with pytest.raises(LeaseLost) as lost:
            task.release()
        assert lost.value.reason == reason


@A_LOOP
@pytest.mark.parametrize("prefetch", [1, 2])
def test_a_loop_goes_on_after_a_purge_in_it(queue: Any, prefetch: int) -> None:
    queue.insert_many(range(3))
    seen: list[Any] = []
    for task in queue.poll(prefetch=prefetch):
        with task:
            seen.append(task.payload)
            if len(seen) == 1:
                queue.purge()
                queue.insert("new")
    assert seen[-1] == "new"
    assert queue.status() == Status(completed=1)


@A_LOOP
@pytest.mark.parametrize("prefetch", [1, 2])
def test_a_loop_ends_if_its_queue_is_deleted_in_it(request: pytest.FixtureRequest, queue: Any, prefetch: int) -> None:
    """In a group a queue may come into being again, and none is drained. A single queue is gone: that is an error."""
    queue.insert_many(range(3))
    seen: list[Any] = []

    def loop() -> None:
        for task in queue.poll(prefetch=prefetch):
            with task:
                if not seen:
                    queue.delete()
                seen.append(task.payload)

    if request.node.callspec.params["queue"] in ("group", "gateway"):
        loop()
        assert queue.status() == Status()
    else:
        with pytest.raises(QueueClosed, match="was deleted"):
            loop()
    assert seen


def test_a_renewal_of_several_counts_for_those_that_hold(queue: Any) -> None:
    queue.insert_many(range(2))
    first, second = queue.lease(2, lease_s=60)
    first.release()
    until = second.lease_until
    with pytest.raises(LeaseLost) as lost:
        queue.renew([first, second], 600)
    assert lost.value.tokens == [first.token]
    assert second.lease_until > until + 300


@AN_OBJECT
def test_a_lease_is_attached_to_by_its_token(queue: Any) -> None:
    queue.insert({"n": 1}, key="k", priority=5)
    [task] = queue.lease(lease_s=100)
    found = queue.attach(task.token)
    for name in ("id", "token", "payload", "key", "priority", "attempt", "version", "lease_until"):
        assert getattr(found, name) == getattr(task, name), name
    unread = queue.attach(task.token, verify=False)
    assert (unread.id, unread.key, unread.attempt, unread.lease_until) == (task.id, None, 0, 0)
    with pytest.raises(TaskNotFound, match="verify=True"):
        _ = unread.payload
    unread.complete(7)
    with pytest.raises((LeaseLost, TaskNotFound)):
        queue.attach(task.token)
    assert [result.result for result in queue.results()] == [7]


@AN_OBJECT
@pytest.mark.parametrize("insert", ["insert", "insert_many"])
def test_an_attached_task_has_the_priority_that_it_was_inserted_with(queue: Any, insert: str) -> None:
    task = Task({"n": 1}, priority="urgent")
    queue.insert(task) if insert == "insert" else queue.insert_many([task])
    [held] = queue.lease()
    assert queue.attach(held.token).priority == held.priority == "urgent"


@A_FAILURE
def test_a_block_ends_its_task(queue: Any) -> None:
    queue.insert_many(["done", "again", "bad", "wrong"])
    for task in queue.lease(4):
        error = {"again": Retry(1000), "bad": Bury("no"), "wrong": ValueError("odd")}.get(task.payload)
        try:
            with task:
                if error is not None:
                    raise error
        except ValueError:
            assert task.payload == "wrong"
    status = queue.status()
    assert (status.completed, status.dead, status.remaining) == (1, 1, 2)


@AN_OBJECT
def test_a_child_that_was_forked_in_a_block_leaves_the_task_to_its_parent(queue: Any) -> None:
    queue.insert(1)
    [task] = queue.lease()

    def leave() -> None:
        task.__exit__(None, None, None)

    with task:
        assert in_a_child(leave) == 0
        assert queue.status() == Status(leased=1)
    assert queue.status() == Status(completed=1)


@A_LOOP
def test_a_wrong_argument_of_a_loop_is_refused(queue: Any) -> None:
    for given in (
        {"prefetch": 0}, {"prefetch": 1.5}, {"until": "x"}, {"errors": "x"}, {"lease_s": 0}, {"lease_s": "1"},
        {"stop_after_failures": -1}, {"stop_after_failures": 1.5},
    ):  # fmt: skip
        with pytest.raises(InvalidArgument):
            queue.poll(**given)


@A_LOOP
@pytest.mark.parametrize("prefetch", [1, 3])
def test_a_loop_does_each_task_once_and_ends_with_the_queue(queue: Any, prefetch: int) -> None:
    queue.insert_many(range(20))
    done = []
    for task in queue.poll(prefetch=prefetch):
        with task:
            if task.payload == 5 and task.attempt == 1:
                raise ValueError("the first time")
            done.append(task.payload)
    assert sorted(done) == list(range(20))
    assert queue.status() == Status(completed=20)


@A_LOOP
def test_a_loop_raises_the_error_of_a_block_if_it_is_to(queue: Any) -> None:
    queue.insert_many(range(3))
    with queue.poll(prefetch=3, errors="raise") as loop, pytest.raises(ValueError, match="odd"), next(loop):
        raise ValueError("odd")
    assert queue.status().leased == 0


@A_LOOP
def test_a_loop_ends_after_so_many_failures_in_a_row(queue: Any) -> None:
    queue.insert_many(range(9))
    loop = queue.poll(stop_after_failures=2)
    with next(loop):
        raise ValueError("the first")
    with pytest.raises(ValueError, match="the second"), next(loop):
        raise ValueError("the second")


@A_LOOP
def test_leaving_a_loop_puts_back_what_was_leased_ahead(queue: Any) -> None:
    queue.insert_many(range(4))
    with queue.poll(prefetch=4) as loop:
        next(loop).complete()
        assert queue.status() == Status(leased=3, completed=1)
    assert queue.status() == Status(waiting=3, completed=1)
    assert list(loop) == []


@A_LOOP
def test_a_child_that_was_forked_in_a_loop_does_not_get_what_its_parent_leased_ahead(queue: Any) -> None:
    queue.insert_many(range(4))
    with queue.poll(prefetch=4) as loop:
        next(loop).complete()
        assert in_a_child(lambda: len(loop._ahead.tasks) == 0) == 1
        assert in_a_child(lambda: loop.close() is None) == 1
        assert queue.status() == Status(leased=3, completed=1)


@AN_OBJECT
def test_a_child_that_was_forked_within_a_call_gets_an_error_and_the_parent_goes_on(queue: Any) -> None:
    pids = []

    def payloads() -> Any:
        yield 1
        pids.append(os.fork())
        yield 2

    code = 99
    try:
        new = queue.insert_many(payloads())
        code = 1
    except ForkedChild:
        code = 7
    finally:
        if pids == [0]:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pids[0], 0)[1]) == 7
    assert new == 2
    assert sorted(info.payload for info in queue.tasks()) == [1, 2]


@AN_OBJECT
def test_a_child_that_was_forked_in_a_listing_gets_the_rest_or_an_error_and_the_parent_goes_on(queue: Any) -> None:
    queue.insert_many(range(50))
    found = queue.tasks()
    next(found)

    def go_on() -> bool:
        try:
            return len(list(found)) == 49
        except ForkedChild:
            return True

    assert in_a_child(go_on) == 1
    assert len(list(found)) == 49


@AN_OBJECT
def test_a_queue_is_used_after_a_fork_and_after_it_was_closed(queue: Any) -> None:
    queue.insert(1)
    assert in_a_child(lambda: queue.insert(2).inserted) == 1
    with queue:
        assert queue.status() == Status(waiting=2)
    queue.close()
    assert sorted(task.payload for task in queue.lease(2)) == [1, 2]
