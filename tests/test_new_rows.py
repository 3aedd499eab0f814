"""Insert only what is new or changed, and the results of the newest versions (docs/tables.md)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fsqueue import InvalidArgument, InvalidTask, Queue, StorageError, Task
from fsqueue import new_rows as module
from fsqueue.clock import Clock, ManualClock
from fsqueue.format import versions
from fsqueue.protocol.keyed_inserts import KeyedInserter
from fsqueue.views import newest_versions
from tests.support import QueueFactory, crashes

pytestmark = pytest.mark.batched  # with one task a batch a queue takes no keys

A, B, C = ({"run": 1, "alpha": alpha} for alpha in (0.1, 0.2, 0.3))
OTHER = {"run": 2, "alpha": 0.1}


def insert(queue: Queue, *rows: Any) -> int:
    return queue.insert_many(rows, new_by="run")


def work(queue: Queue) -> list[Any]:
    """Complete all that can be leased, and return the payloads."""
    done = []
    while tasks := queue.lease(10, strict=True):
        for task in tasks:
            done.append(task.payload)
            task.complete({"of": task.payload["alpha"]})
    return done


def latest(queue: Queue, **more: Any) -> list[Any]:
    return sorted(result.payload["alpha"] for result in queue.results(latest_by="run", **more))


def test_what_is_there_is_not_inserted_again_and_what_changed_is(queue: Queue) -> None:
    assert insert(queue, A, OTHER) == 2
    assert insert(queue, A, OTHER) == 0  # they wait
    tasks = queue.lease(2)
    assert insert(queue, A, OTHER) == 0  # they are leased
    for task in tasks:
        task.complete({"of": task.payload["alpha"]})
    assert insert(queue, OTHER, A) == 0  # they were completed
    assert insert(queue, B, OTHER) == 1
    assert work(queue) == [B]
    assert insert(queue, B, OTHER) == 0


@pytest.mark.parametrize("end", [lambda task: task.bury("no"), lambda task: task.release()], ids=["dead", "cancelled"])
def test_a_task_that_was_given_up_or_cancelled_does_not_count(queue: Queue, end: Callable[[Any], object]) -> None:
    insert(queue, A)
    [task] = queue.lease()
    end(task)
    queue.cancel([task.id])
    assert insert(queue, A) == 1
    assert insert(queue, A) == 0


def test_a_retried_dead_letter_counts_although_it_has_no_key(queue: Queue) -> None:
    insert(queue, A)
    queue.lease()[0].bury("no")
    assert queue.retry_dead() == 1
    assert insert(queue, A) == 0


def test_a_row_that_was_inserted_without_new_by_counts(queue: Queue) -> None:
    queue.insert_many([{"alpha": 0.1, "run": 1}])
    assert insert(queue, A) == 0
    work(queue)
    assert insert(queue, A) == 0


def test_an_older_version_that_waits_stays(queue: Queue) -> None:
    insert(queue, A)
    assert insert(queue, B) == 1
    assert sorted(payload["alpha"] for payload in work(queue)) == [0.1, 0.2]
    assert latest(queue) == [0.2]


def test_a_row_that_goes_back_to_earlier_content_is_inserted_again(queue: Queue) -> None:
    for row in (A, B, A, B):
        assert insert(queue, row) == 1
        assert work(queue) == [row]
        assert insert(queue, row) == 0
        assert latest(queue) == [row["alpha"]]


def test_a_row_that_goes_back_after_its_newest_version_was_given_up_is_inserted_again(queue: Queue) -> None:
    insert(queue, A)
    work(queue)
    insert(queue, B)
    queue.lease()[0].bury("no")
    assert latest(queue) == [0.2]
    assert insert(queue, A) == 1
    assert work(queue) == [A]
    assert latest(queue) == [0.1]
    assert insert(queue, A) == 0


def test_the_newest_of_a_field_that_no_task_has_is_an_error(queue: Queue) -> None:
    assert latest(queue) == []  # no task at all
    insert(queue, A)
    with pytest.raises(InvalidArgument, match="has a value in the field 'lap'"):
        list(queue.results(latest_by="lap"))


def test_the_key_tells_the_value_and_the_content(queue: Queue) -> None:
    insert(queue, {"run": "s#7", "b": [1], "a": None})
    [task] = queue.lease()
    assert task.key is not None
    assert versions.parts_of(task.key) == ("s#7", versions.digest({"a": None, "b": [1], "run": "s#7"}))
    assert re.fullmatch("s#7#[0-9a-f]{32}", task.key)


def test_values_are_texts_numbers_and_truth_values(queue: Queue) -> None:
    rows = [{"run": value} for value in ("", "x", 7, 7.5, True, "é\n")]
    assert insert(queue, *rows) == 6
    assert insert(queue, *rows) == 0
    assert insert(queue, {"run": "7"}) == 1  # of the same value as 7, with other content


@pytest.mark.parametrize("row", [5, "run", [1], None, b"run", {}, {"run": None}, {"run": [1]}, {"run": {}}])
def test_a_row_without_a_value_is_refused(queue: Queue, row: Any) -> None:
    with pytest.raises(InvalidTask, match="Task number 2 has no value in the field 'run'") as caught:
        insert(queue, A, row, B)
    assert (caught.value.index, caught.value.inserted, caught.value.new) == (1, 1, 1)
    assert [task.payload for task in queue.tasks()] == [A]


def test_two_rows_with_one_value_and_other_content_are_refused(queue: Queue) -> None:
    assert insert(queue, A, dict(A)) == 1
    with pytest.raises(InvalidTask, match=r"Task number 3 has the value '1'.*other content. Name a field"):
        insert(queue, A, OTHER, B)
    assert queue.status().waiting == 2


def test_the_rows_before_a_refused_one_are_inserted_also_if_they_were_postponed(queue: Queue) -> None:
    insert(queue, A)
    queue.lease()[0].bury("no")
    with pytest.raises(InvalidTask) as caught:
        insert(queue, A, OTHER, {})
    assert (caught.value.inserted, caught.value.new) == (2, 2)
    assert queue.status().waiting == 2


def test_the_rows_before_an_error_of_the_stream_are_inserted_also_if_they_were_postponed(queue: Queue) -> None:
    insert(queue, A)
    queue.lease()[0].bury("no")

    def rows() -> Iterator[Any]:
        yield from (A, OTHER)
        raise StorageError("of the stream")

    with pytest.raises(StorageError, match=r"^of the stream$") as caught:
        queue.insert_many(rows(), new_by="run")
    assert caught.value.new == 2
    assert queue.status().waiting == 2


def test_a_row_whose_payload_would_not_be_kept_is_refused(queue_factory: QueueFactory) -> None:
    queue = queue_factory(keep_payloads=40)
    long = {"run": 1, "text": "x" * 20}
    assert insert(queue, long) == 1  # 40 bytes or less
    with pytest.raises(InvalidTask, match=r"takes 41 bytes, and the queue keeps .* fsqueue set Q keep_payloads=41\.$"):
        insert(queue, {"run": 2, "text": "x" * 22 + "y"[: 41 - len('{"run":2,"text":""}') - 22]})
    queue.change_settings(keep_payloads=None)
    assert insert(queue, {"run": 2, "text": "x" * 2_000}) == 1


def test_what_it_needs_and_what_it_does_not_go_with(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    for more in ({"commit": "c"}, {"batch_tasks": 5}):
        with pytest.raises(InvalidArgument, match="new_by gives each task a key"):
            queue.insert_many([A], new_by="run", **more)
    with pytest.raises(InvalidTask, match="has a key, and new_by gives"):
        insert(queue, Task(A, key="k"))
    with pytest.raises(InvalidTask, match="takes more than 991 bytes"):
        insert(queue, {"run": "x" * 992})
    assert insert(queue, {"run": "x" * 991}) == 1
    none = queue_factory("none", keep_history=False)
    with pytest.raises(InvalidArgument, match=r"new_by goes by .* none of them: .*--no-history.*Nothing was done"):
        insert(none, A)
    with pytest.raises(InvalidArgument, match="latest_by goes by"):
        list(none.results(latest_by="run"))


def test_priorities_and_delays_stay_and_are_no_content(queue: Queue) -> None:
    assert insert(queue, Task(A, priority=5), Task(OTHER, delay_s=3_600)) == 2
    assert insert(queue, Task(A, priority=4), OTHER) == 0
    assert sorted((task.state, task.priority) for task in queue.tasks()) == [("delayed", None), ("waiting", 5)]


# -- what others do meanwhile ---------------------------------------------------------------------------


def meanwhile(act: Callable[[], object], times: int = 1) -> Any:
    """Return a patch that calls `act` after each of the first `times` readings of the queue's tasks."""
    reads = iter([act] * times)
    read = newest_versions.newest

    def newest(*args: Any, **named: Any) -> Any:
        found = read(*args, **named)
        next(reads, lambda: None)()
        return found

    return mock.patch.object(newest_versions, "newest", newest)


def test_a_row_that_another_process_inserts_and_completes_meanwhile_is_not_inserted_again(queue: Queue) -> None:
    other = Queue(queue.path)

    def act() -> None:
        other.insert(A, key=versions.key_of("1", versions.digest(A)))
        assert work(other) == [A]

    with meanwhile(act):
        assert insert(queue, A, OTHER) == 1
    assert [task.payload for task in queue.tasks()] == [OTHER]


def test_a_row_that_another_process_inserts_and_loses_meanwhile_is_inserted(queue: Queue) -> None:
    other = Queue(queue.path)

    def act() -> None:
        other.insert(A, key=versions.key_of("1", versions.digest(A)))
        other.lease()[0].bury("no")

    with meanwhile(act, times=3):  # again after each reading: each row is postponed once more
        assert insert(queue, A) == 1
    assert len(list(queue.dead())) == 3


def test_many_rows_that_were_given_up_are_inserted_in_parts(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POSTPONED_MAX", 3)
    rows = [{"run": run, "alpha": 0.5} for run in range(8)]
    insert(queue, *rows)
    for task in queue.lease(8):
        task.bury("no")
    assert insert(queue, *rows) == 8
    assert insert(queue, *rows) == 0


def test_the_tasks_are_read_again_after_an_hour(queue_factory: QueueFactory) -> None:
    """`gc` removes files of free keys after a day. Then only reading again tells that a task was completed."""
    clock = ManualClock(1_800_000_000.0)
    queue = Queue(queue_factory().path, clock=clock)
    other = Queue(queue.path, clock=clock)

    def rows() -> Iterator[Any]:
        yield OTHER
        insert(other, A)
        work(other)
        clock.advance(module.READ_AGAIN_S + 1)
        files = [*Path(queue.store.layout.keys(0)).rglob("*.jsonl")]
        for path in files:
            path.unlink()
        assert files
        yield A

    assert queue.insert_many(rows(), new_by="run") == 1


def test_a_process_that_dies_at_any_step_leaves_what_a_repeat_completes(queue_factory: QueueFactory) -> None:
    """One of the rows was given up before: it is postponed."""
    rows = [A, OTHER, {"run": 3, "alpha": 1}]

    def build(number: int) -> Queue:
        queue = queue_factory(f"q{number}", shards=1)
        insert(queue, A)
        queue.lease()[0].bury("no")
        return queue

    clock = Clock()
    for where, queue in crashes(build, lambda queue: insert(queue, *rows), clock, every=2):
        before = [task.payload["run"] for task in queue.tasks()]
        assert len(before) == len(set(before)), where
        assert insert(queue, *rows) == 3 - len(before), where
        assert sorted(task.payload["run"] for task in queue.tasks()) == [1, 2, 3], where
        assert insert(queue, *rows) == 0, where


def test_the_numbers_in_an_error_leave_postponed_rows_out(queue: Queue) -> None:
    insert(queue, A)
    queue.lease()[0].bury("no")
    insert_keyed = KeyedInserter.insert
    calls = iter(range(10))

    def third_fails(*args: Any, **named: Any) -> Any:
        if next(calls) == 2:
            raise StorageError("no")
        return insert_keyed(*args, **named)

    alone = mock.patch.object(KeyedInserter, "_insert_together", return_value=0)
    with alone, mock.patch.object(KeyedInserter, "insert", third_fails), pytest.raises(StorageError) as caught:
        insert(queue, A, OTHER, {"run": 3, "alpha": 1})
    assert (caught.value.inserted, caught.value.new) == (0, 1)
    assert insert(queue, A, OTHER, {"run": 3, "alpha": 1}) == 2


# -- the newest version -----------------------------------------------------------------------------------


def test_only_the_newest_version_has_a_row(queue: Queue) -> None:
    queue.insert_many([5, {"run": None, "alpha": 9}])  # without a value: no version of anything
    for task in queue.lease(2):
        task.complete()
    for row in (A, OTHER, B):
        insert(queue, row)
        work(queue)
    assert latest(queue) == [0.1, 0.2]
    assert latest(queue, where=lambda result: result.payload["run"] == 1) == [0.2]
    assert sum(len(columns[0]) for columns in queue.result_columns(latest_by="run")) == 2
    insert(queue, C)
    assert latest(queue) == [0.1]  # the newest has not ended
    queue.lease()[0].bury("no")
    assert [(result.state, result.payload) for result in queue.results(dead=True, latest_by="run")] == [("dead", C)]
    assert latest(queue) == [0.1, 0.3]


@pytest.mark.parametrize("end", ["wait", "complete", "bury"])
def test_the_newest_is_the_one_inserted_last_whatever_batch_it_went_into(queue_factory: QueueFactory, end: str) -> None:
    """Each process inserts into a batch of its own. The one whose batch began first inserts last."""
    clock = ManualClock(1_800_000_000.0)
    path = queue_factory(shards=1).path
    first, second = (Queue(path, clock=clock) for _ in range(2))
    insert(first, OTHER)
    clock.advance(1)
    second.insert_many([A], batch_tasks=1)  # into a file
    clock.advance(1)
    insert(first, B)
    ids = {task.payload["alpha"]: task.id for task in first.tasks() if task.payload["run"] == 1}
    assert ids[0.2] < ids[0.1]
    for task in first.lease(3, strict=True):
        if task.payload != B or end == "complete":
            task.complete()
        elif end == "bury":
            task.bury("no")
        else:
            task.release()
    assert latest(first) == ([0.1] if end == "wait" else [0.1, 0.2])
    assert {result.payload["run"] for result in first.results(latest_by="run")} == ({2} if end == "wait" else {1, 2})
    clock.advance(100_000)
    first.gc()
    assert latest(first) == ([0.1] if end == "wait" else [0.1, 0.2])


def test_the_tasks_are_read_once_for_a_whole_call(queue: Queue) -> None:
    with mock.patch.object(newest_versions, "newest", wraps=newest_versions.newest) as newest:
        insert(queue, *({"run": run} for run in range(20)))
    assert newest.call_count == 1
