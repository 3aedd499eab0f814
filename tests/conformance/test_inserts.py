"""What goes in comes out, and what cannot be kept is refused: the same for every kind of queue."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Iterator
from typing import Any

import pytest

from fsqueue import InvalidArgument, InvalidTask, Status, Task, TaskTooLarge, as_completed
from tests.conformance.kinds import A_FUNCTION, A_KEY, A_PART, ANY_VALUE, lacks
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once


def nested(levels: int) -> Any:
    """Return a list in a list, so many times."""
    found: Any = []
    for _ in range(levels):
        found = [found]
    return found


KEPT = [
    (None, None), (True, True), ([], []), ({}, {}), ("", ""), ("\0", "\0"), ({"é": 1}, {"é": 1}), (1.0, 1.0),
    (-0.0, -0.0), (0.1 + 0.2, 0.1 + 0.2), (1e308, 1e308), (2**63, 2**63), (2**64 - 1, 2**64 - 1), (-(2**63), -(2**63)),
    ((1, 2), [1, 2]), (b"bytes\xff", b"bytes\xff"), (bytearray(b"x"), b"x"), (memoryview(b"yz"), b"yz"),
    ({"b64": "text"}, {"b64": "text"}), ([[[]]], [[[]]]), (nested(99), nested(99)),
]  # fmt: skip
REFUSED = [
    float("nan"), float("inf"), {"a": float("nan")}, 2**64, -(2**63) - 1, 10**30, {1: 2}, {"a": {1: 2}}, {(1,): 2},
    {None: 1, True: 2, 1.5: 3}, {"a": b"x"}, "\ud800", set(), object(), datetime.date(2020, 1, 1),
    decimal.Decimal("1.1"), nested(250),
]  # fmt: skip


@ANY_VALUE
def test_a_payload_comes_back_as_json_has_it(queue: Any) -> None:
    for given, back in KEPT:
        ref = queue.insert(given)
        assert queue.insert_many([given, Task(given)]) == 2
        assert repr(queue.task(ref.id).payload) == repr(back)
        tasks = queue.lease(3, strict=True)
        assert [repr(task.payload) for task in tasks] == [repr(back)] * 3
        queue.complete(tasks)


@ANY_VALUE
def test_a_payload_that_json_cannot_hold_is_refused(queue: Any) -> None:
    for number, payload in enumerate(REFUSED):
        with pytest.raises(InvalidTask) as alone:
            queue.insert(payload)
        assert (alone.value.inserted, alone.value.new, alone.value.index) == (0, 0, None)
        with pytest.raises(InvalidTask, match="Task number 3") as third:
            queue.insert_many(["a", "b", payload, "d"])
        assert (third.value.inserted, third.value.new, third.value.index) == (2, 2, 2)
        with pytest.raises(InvalidTask, match="Task number 2") as committed:
            queue.insert_many(["a", payload], commit=f"seed-{number}")
        assert (committed.value.inserted, committed.value.new) == (0, 0)
        tasks = queue.lease(9)
        assert sorted(task.payload for task in tasks) == ["a", "b"]
        queue.complete(tasks)


@ANY_VALUE
def test_strict_refuses_what_would_come_back_changed(queue: Any) -> None:
    for act in (lambda: queue.insert((1,), strict=True), lambda: queue.insert_many([(1,)], strict=True)):
        with pytest.raises(InvalidTask, match="tuple"):
            act()
    assert queue.insert([1], strict=True).inserted
    assert queue.insert_many([[1]], strict=True) == 1


def test_a_payload_that_is_too_large_is_refused_and_the_next_one_is_not(queue: Any) -> None:
    with pytest.raises(TaskTooLarge) as alone:
        queue.insert("x" * (2 << 20))
    assert (alone.value.inserted, alone.value.new) == (0, 0)
    assert queue.insert("y").inserted
    assert queue.status() == Status(waiting=1)


@A_KEY
def test_a_task_with_a_key_has_less_room(queue: Any) -> None:
    with pytest.raises(TaskTooLarge):
        queue.insert("x" * (70 << 10), key="k")
    assert queue.status() == Status()


@ANY_VALUE
def test_many_payloads_are_a_list_and_no_single_one(queue: Any) -> None:
    for payloads in ("abc", b"abc", {"a": 1}, Task(1), 5, None):
        with pytest.raises(InvalidArgument, match="insert_many takes a list"):
            queue.insert_many(payloads)
    assert queue.status() == Status()


@ANY_VALUE
def test_a_wrong_argument_of_an_insert_is_refused(queue: Any) -> None:
    for given in (
        {"key": ""}, {"key": "k" * 2000}, {"key": 5}, {"priority": 2**63}, {"priority": 1.5}, {"priority": [1]},
        {"delay_s": -1}, {"delay_s": 1e12}, {"delay_s": float("nan")}, {"delay_s": "1"}, {"available_at": -5},
        {"available_at": 1e18}, {"available_at": 5, "delay_s": 5},
    ):  # fmt: skip
        with pytest.raises(InvalidArgument) as refused:
            queue.insert(1, **given)
        assert (refused.value.inserted, refused.value.new) == (0, 0), given
        with pytest.raises(InvalidTask):
            queue.insert_many([Task(1, **given)])
    assert queue.status() == Status()


@ANY_VALUE
def test_a_wrong_argument_of_a_stream_is_refused(queue: Any) -> None:
    for given in ({"total": -1}, {"total": 1.5}, {"delay_s": -1}, {"commit": ""}, {"commit": 5}, {"commit": "a b"}):
        with pytest.raises(InvalidArgument):
            queue.insert_many([1], **given)
    assert queue.status() == Status()


@ANY_VALUE
def test_a_task_may_bring_its_key_and_priority_and_the_call_may_not_say_others(queue: Any) -> None:
    task = Task("p", key="k", priority=3)
    for given in ({"key": "other"}, {"priority": 4}, {"priority": "3"}):
        with pytest.raises(InvalidArgument, match="Nothing was inserted"):
            queue.insert(task, **given)
    first, again = queue.insert(task, key="k", priority=3), queue.insert("q", key="k")
    assert (again.id, first.inserted, again.inserted) == (first.id, True, False)
    [leased] = queue.lease()
    assert (leased.key, leased.priority, leased.payload) == ("k", 3, "p")


def test_tasks_wait_for_their_time(queue: Any) -> None:
    queue.insert("later", delay_s=1000)
    queue.insert("at", available_at=9_000_000_000)
    queue.insert_many(["stream", Task("now", available_at=1)], delay_s=1000)
    assert queue.status() == Status(waiting=1, delayed=3)
    assert [task.payload for task in queue.lease(4)] == ["now"]


REFERENCES = lacks(
    commands="`insert` prints how many tasks are new; `update` prints the id of each.",
    taskstore="Its ids are other numbers.",
)


@REFERENCES
def test_references_to_the_tasks_of_a_stream_come_in_its_order(queue: Any) -> None:
    for given in (
        [*range(5)],
        [Task(number, priority=-number % 7) for number in range(600)],
        [Task(number, delay_s=number % 3 * 1000) for number in range(600)],
        [Task(number, key=f"key {number}" if number % 50 == 7 else None) for number in range(300)],
        [number if number % 4 else Task(number, priority="a", delay_s=number % 8) for number in range(700)],
        [Task(0, key="first"), Task(1, key="second"), 2, Task(3, key="third"), 4],
        [],
    ):
        refs = queue.insert_many(iter(given), refs=True)
        assert len({ref.id for ref in refs}) == len(refs) == len(given)
        assert all(ref.inserted for ref in refs)
        found = queue.results_of(refs)
        payloads = [one.payload if isinstance(one, Task) else one for one in given]
        assert [found[ref.id].payload for ref in refs] == payloads


@REFERENCES
def test_references_wait_for_the_tasks_of_a_stream(queue: Any) -> None:
    refs = queue.insert_many(range(100), refs=True)
    for task in queue.lease(100, strict=True):
        task.complete({"of": task.payload})
    assert {ref.result()["of"] for ref in as_completed(refs, timeout_s=PATIENCE_S)} == {*range(100)}
    assert [ref.result(timeout_s=0)["of"] for ref in refs] == [*range(100)]
    assert queue.results_of(refs).keys() == {ref.id for ref in refs}


@REFERENCES
def test_a_task_whose_key_is_taken_gets_the_reference_to_the_other_one(queue: Any) -> None:
    first = queue.insert("other", key="k")
    refs = queue.insert_many(["a", Task("b", key="k"), "c"], refs=True)
    assert [ref.inserted for ref in refs] == [True, False, True]
    assert refs[1].id == first.id
    assert queue.status() == Status(waiting=3)


@REFERENCES
def test_a_stream_that_may_be_an_earlier_call_s_gives_no_references(queue: Any) -> None:
    for given in ({"commit": "all"}, {"new_by": "run"}):
        with pytest.raises(InvalidArgument, match="Leave one of the two out"):
            queue.insert_many([{"run": 1}], refs=True, **given)
    with pytest.raises(InvalidTask, match="Task number 3") as refused:
        queue.insert_many(["a", "b", float("nan")], refs=True)
    assert (refused.value.inserted, refused.value.new) == (2, 2)
    assert queue.status() == Status(waiting=2)


class Stops(Exception):
    """An error of the caller's own."""


@A_PART
@A_FUNCTION
def test_a_stream_that_ends_with_an_error_of_its_own_leaves_what_came_before(queue: Any) -> None:
    def payloads() -> Iterator[int]:
        yield from range(3)
        raise Stops("of the caller's")

    with pytest.raises(Stops):
        queue.insert_many(payloads())
    assert queue.status() == Status(waiting=3)
    with pytest.raises(Stops):
        queue.insert_many(payloads(), commit="all")
    assert queue.status() == Status(waiting=3)


@A_PART
@A_FUNCTION
def test_an_error_of_the_system_in_a_stream_is_the_caller_s(queue: Any) -> None:
    def payloads() -> Iterator[int]:
        yield 1
        raise FileNotFoundError("a file of the caller's")

    for commit in (None, "all"):
        with pytest.raises(FileNotFoundError, match="of the caller's"):
            queue.insert_many(payloads(), commit=commit)
    assert queue.status() == Status(waiting=1)


@A_KEY
def test_a_name_is_committed_once(queue: Any) -> None:
    assert queue.insert_many(range(300), commit="seed") == 300
    assert queue.insert_many(range(300), commit="seed") == 0
    assert queue.status() == Status(waiting=300)


@ANY_VALUE
def test_a_task_with_a_key_is_committed_under_no_name(queue: Any) -> None:
    with pytest.raises(InvalidTask, match="key"):
        queue.insert_many([Task(1, key="k")], commit="keyed")
    assert queue.status() == Status()


@A_KEY
def test_a_key_is_taken_until_its_task_has_ended(queue: Any) -> None:
    first, again = queue.insert(1, key="k"), queue.insert(2, key="k")
    assert (first.inserted, again.inserted, again.id) == (True, False, first.id)
    [task] = queue.lease()
    assert not queue.insert(3, key="k").inserted
    task.complete()
    assert queue.insert(4, key="k").inserted
    assert queue.status() == Status(waiting=1, completed=1)


@A_KEY
def test_only_what_is_new_or_changed_is_inserted(queue: Any) -> None:
    old, new = {"run": 1, "alpha": 0.5}, {"run": 1, "alpha": 0.7}
    assert queue.insert_many([old, {"run": "b"}], new_by="run") == 2
    assert queue.insert_many([old, {"run": "b"}], new_by="run") == 0
    for task in queue.lease(2, strict=True):
        task.complete({"of": task.payload["run"]})
    assert queue.insert_many([old, {"run": "c"}], new_by="run") == 1
    assert queue.insert_many([new, {"run": "c"}], new_by="run") == 1
    assert [result.payload for result in queue.results(latest_by="run")] == [{"run": "b"}]
    queue.complete(queue.lease(2, strict=True))
    found = [result.payload for result in queue.results(latest_by="run")]
    assert sorted(found, key=str) == sorted([{"run": "b"}, {"run": "c"}, new], key=str)
    assert len(list(queue.results())) == 4


@A_KEY
def test_a_row_that_has_no_value_to_tell_versions_apart_is_refused(queue: Any) -> None:
    with pytest.raises(InvalidTask, match="has no value in the field 'run'"):
        queue.insert_many([{"run": 1}, {"walk": 2}, {"run": 3}], new_by="run")
    assert queue.status().waiting == 1
