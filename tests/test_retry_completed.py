"""Completed tasks that are inserted again: each once, from the payloads that the queue keeps."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fsqueue import InvalidArgument, LockTimeout, Queue, QueuePurged, StorageFull, Task, maintenance
from fsqueue.clock import ManualClock
from fsqueue.format import names
from fsqueue.protocol.finishing import LINGER_MS
from fsqueue.storage import deadletters, payloads, retrying
from fsqueue.storage.journals import LOCK_TIMEOUT_S
from tests.concurrency.trapped import FullFrom, trapped
from tests.support import QueueFactory, base_of, crashes, drain, leftovers


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def q(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    return Queue(queue_factory(shards=2).path, clock=clock)


def complete(q: Queue, *given: Any, batch_tasks: int | None = None) -> dict[Any, str]:
    """Insert tasks and complete them, each with its payload as the result. Return the ids by payload."""
    q.insert_many(given, batch_tasks=batch_tasks or len(given))
    ids = {}
    while tasks := q.lease(100):
        for task in tasks:
            ids[str(task.payload)] = task.id
            task.complete({"is": task.payload} if not isinstance(task.payload, bytes) else None)
    return ids


def waiting(q: Queue) -> list[Any]:
    return sorted((task.payload for task in q.tasks()), key=str)


@pytest.mark.parametrize("whole_bytes", [1, 1 << 30], ids=["files are kept", "lines are kept"])
def test_those_that_a_condition_chooses_wait_again(q: Queue, whole_bytes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "WHOLE_BYTES", whole_bytes)
    ids = complete(q, 1, 2, 3, 4)
    report = q.retry_completed(where=lambda result: result.result["is"] > 2)
    assert (report.retried, report.repeated, report.unkept) == (2, 0, 0)
    assert waiting(q) == [3, 4]
    assert q.status().as_dict() == {"inserted": 6, "waiting": 2, "delayed": 0, "leased": 0, "completed": 4, "dead": 0}
    tasks = q.lease(5)
    assert {task.attempt for task in tasks} == {1}
    assert not {task.id for task in tasks} & set(ids.values())
    q.complete(tasks)
    assert len(list(q.results())) == 6
    assert list(q.fsck()) == []
    assert leftovers(q) == []


def test_a_stopped_process_keeps_only_the_tasks_of_its_shard_waiting(
    queue_factory: QueueFactory, clock: ManualClock
) -> None:
    q = Queue(queue_factory(shards=4).path, clock=clock)
    ids = complete(q, *range(40), batch_tasks=1).values()
    layout, fs = q.store.layout, q.store.fs
    shards = [layout.shard(names.parse_task_id(task_id)[0]) for task_id in ids]
    stuck = shards.count(min(shards))
    fd = fs.open_append(layout.dead(min(shards)))
    assert fs.try_lock(fd)
    began = clock.monotonic()
    with pytest.raises(LockTimeout, match=rf"Tasks inserted again: {40 - stuck}\. Repeat the call for the rest"):
        Queue(q.path, clock=clock).retry_completed()
    assert LOCK_TIMEOUT_S <= clock.monotonic() - began < 1.5 * LOCK_TIMEOUT_S
    fs.close(fd)
    report = q.retry_completed()
    assert (report.retried, report.repeated) == (stuck, 40 - stuck)
    assert waiting(q) == sorted(range(40), key=str)


def test_each_is_retried_once_and_what_it_became_in_turn(q: Queue, clock: ManualClock) -> None:
    ids = complete(q, "a", "b")
    assert q.retry_completed().retried == 2
    again = q.retry_completed()
    assert (again.retried, again.repeated) == (0, 2)
    drain(q, clock)
    third = q.retry_completed()
    assert (third.retried, third.repeated) == (2, 2)
    assert waiting(q) == ["a", "b"]
    for payload in ("a", "b"):
        how, new = deadletters.settled_as(q.store, ids[payload]) or ("", None)
        assert how == "retried"
        assert new is not None
        assert q.task(new).payload == payload
        assert q.history(new)[0].repeats == ids[payload]
        assert q.history(ids[payload])[0].repeats is None
        assert q.store.layout.shard(new.partition(".")[0]) == q.store.layout.shard(ids[payload].partition(".")[0])


def test_ids_choose(q: Queue) -> None:
    ids = complete(q, 1, 2, 3, batch_tasks=1)
    assert q.retry_completed(ids["2"]).retried == 1
    assert q.retry_completed([ids["1"], ids["3"]], where=lambda result: result.payload == 3).retried == 1
    assert waiting(q) == [2, 3]
    assert q.retry_completed([f"{'0' * 32}.0"]).as_dict() == {
        "retried": 0, "repeated": 0, "unkept": 0, "unkept_ids": []
    }  # fmt: skip
    with pytest.raises(InvalidArgument, match="To mean all completed tasks, leave the argument out"):
        q.retry_completed(None)  # type: ignore[arg-type]


@pytest.mark.batched
def test_of_a_batch_at_work_those_that_are_completed(q: Queue) -> None:
    q.insert_many(["done", "leased", "dead"], batch_tasks=3)
    for task in q.lease(3):
        if task.payload == "done":
            task.complete()
        elif task.payload == "dead":
            task.bury("no")
    assert q.retry_completed().retried == 1
    assert waiting(q) == ["done", "leased"]
    assert [letter.payload for letter in q.dead()] == ["dead"]


@pytest.mark.batched  # with one task a batch a queue takes no keys
def test_single_inserts_bytes_null_and_priorities_come_back_and_keys_do_not(q: Queue) -> None:
    q.insert(b"\x00\xff", key="k")
    q.insert(None)
    q.insert_many([Task("last", priority=9), Task("first", priority=1)])
    while tasks := q.lease(10):
        q.complete(tasks)
    assert q.retry_completed().retried == 4
    infos = {str(info.payload): info for info in q.tasks()}
    assert {text: (info.priority, info.key) for text, info in infos.items()} == {
        str(b"\x00\xff"): (None, None), "None": (None, None), "last": (9, None), "first": (1, None),
    }  # fmt: skip
    assert [task.payload for task in q.lease(2)] == ["first", "last"]


def test_tasks_whose_payloads_are_not_kept_are_counted_and_named(q: Queue) -> None:
    ids = complete(q, "short", "x" * 3000, batch_tasks=1)
    report = q.retry_completed()
    assert (report.retried, report.unkept, report.unkept_ids) == (1, 1, [ids["x" * 3000]])
    assert waiting(q) == ["short"]
    for number in range(30):
        complete(q, f"{number:4000}", batch_tasks=1)
    report = q.retry_completed()
    assert (report.unkept, len(report.unkept_ids)) == (31, 20)


@pytest.mark.batched
def test_a_single_insert_whose_payload_is_not_kept_is_not_retried_as_null(q: Queue, clock: ManualClock) -> None:
    q.insert("x" * 3000)
    q.insert(None)
    q.complete(q.lease(2))
    clock.advance(LINGER_MS / 1000)
    q.gc()
    report = q.retry_completed()
    assert (report.retried, report.unkept) == (1, 1)
    assert waiting(q) == [None]


@pytest.mark.batched
def test_a_payload_that_cannot_be_read_any_more_is_not_kept(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing else may be inserted in its place. What is wrong with its priority costs that alone."""
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    complete(q, "first", "second", "third", "fourth")
    [file] = (base_of(q) / "payloads").glob("*/*")
    file.write_bytes(b'{"b64":7}\ntorn\n{"payload":"third","priority":1.5}\n{"payload":null}\n')
    report = q.retry_completed()
    assert (report.retried, report.unkept) == (2, 2)
    assert [(info.payload, info.priority) for info in q.tasks()] == [("third", None), (None, None)]


def test_what_was_retried_is_known_after_its_line_has_gone_to_the_history(q: Queue, clock: ManualClock) -> None:
    complete(q, *range(300))
    assert q.retry_completed().retried == 300
    assert [*base_of(q).glob("history/*/*.settled.jsonl")], "the line was not given back: insert more"
    drain(q, clock)
    report = Queue(q.path, clock=clock).retry_completed(where=lambda result: result.payload < 10)
    assert (report.retried, report.repeated) == (10, 10)
    assert list(q.fsck()) == []


@pytest.mark.batched
def test_a_batch_that_finishes_meanwhile_is_not_retried_twice(q: Queue, clock: ManualClock) -> None:
    """It is read in its log, and then it is in the history."""
    other = Queue(q.path, clock=clock)
    q.insert_many(["done", "leased"], batch_tasks=2)
    tasks = {task.payload: task for task in other.lease(2)}
    tasks["done"].complete()

    def where(result: Any) -> bool:
        if other.status().leased:
            tasks["leased"].complete()
        return True

    assert q.retry_completed(where=where).retried == 1
    assert waiting(q) == ["done"]


def test_groups_are_bounded(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "GROUP_TASKS_MAX", 3)
    complete(q, *range(10), batch_tasks=5)
    assert q.retry_completed().retried == 10
    assert waiting(q) == list(range(10))


@pytest.mark.batched
def test_groups_are_bounded_in_bytes(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines of 45 bytes: the fourth is the one that reaches the bound. Each group counts for itself."""
    monkeypatch.setattr(maintenance, "GROUP_BYTES_MAX", 150)
    insert, sizes = maintenance._Repeater._insert, list[int]()

    def noted(self: Any, shard: Any, group: list[Any]) -> None:
        sizes.append(len(group))
        insert(self, shard, group)

    monkeypatch.setattr(maintenance._Repeater, "_insert", noted)
    complete(q, *(f"{number:030}" for number in range(10)), batch_tasks=10)
    assert q.retry_completed().retried == 10
    assert [size for size in sizes if size] == [4, 4, 2]


@pytest.mark.batched
def test_its_batches_are_no_larger_than_those_of_an_insert(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retrying, "BATCH_BYTES_MAX", 1000)
    queue = queue_factory(shards=1, batch_tasks_max=3, keep_payloads=None)
    given = ["x" * 200] * 7 + ["large" * 500] + ["y" * 200] * 4
    queue.insert_many(given)
    queue.complete(queue.lease(20))
    assert queue.retry_completed().retried == len(given)
    made = [(path.stat().st_size, name.count) for path in (base_of(queue) / "queue").glob("*/*")
            if (name := names.parse_task_file(path.name)) is not None]  # fmt: skip
    assert max(count for _, count in made) == 3
    assert [count for size, count in made if size > 1000] == [1], "the large one is by itself"
    assert len(made) <= 6, "the others fill their batches"
    assert waiting(queue) == sorted(given)


@pytest.mark.batched
def test_what_another_call_retries_between_two_groups_is_left_out(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(maintenance, "GROUP_TASKS_MAX", 1)
    complete(q, 1, 2, 3)
    other, others, asked = Queue(q.path, clock=clock), [], []

    def where(result: Any) -> bool:
        asked.append(result)
        if len(asked) == 2:
            others.append(other.retry_completed())
        return True

    report = q.retry_completed(where=where)
    assert (others[0].retried, report.retried, report.repeated) == (2, 1, 2)
    assert waiting(q) == [1, 2, 3]


def test_retries_notify_idle_workers(q: Queue) -> None:
    complete(q, 1)
    q.insert(2)
    q.lease()[0].bury("no")
    for retry in (q.retry_completed, q.retry_dead):
        before = q.store.doorbell.read()
        retry()
        assert q.store.doorbell.read() != before


def test_two_at_once_insert_each_once(q: Queue, clock: ManualClock) -> None:
    """The other one comes while this one asks the caller's condition, and no lock is held."""
    complete(q, 1, 2, 3)
    other, others = Queue(q.path, clock=clock), []

    def where(result: Any) -> bool:
        if not others:
            others.append(other.retry_completed(where=lambda result: result.payload < 3))
        return True

    report = q.retry_completed(where=where)
    assert (others[0].retried, report.retried, report.repeated) == (2, 1, 2)
    assert waiting(q) == [1, 2, 3]


def test_a_purge_meanwhile_is_told(q: Queue, clock: ManualClock) -> None:
    complete(q, 1, 2)

    def where(result: Any) -> bool:
        Queue(q.path, clock=clock).purge()
        return True

    with pytest.raises(QueuePurged, match="Nothing is left to do"):
        q.retry_completed(where=where)
    assert q.status().inserted == 0


def test_a_purge_after_the_last_insertion_is_told(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(q, 1, 2)
    give_back = maintenance._Repeater._give_back

    def purging(self: Any, shard: Any) -> None:
        give_back(self, shard)
        if shard is not None:
            Queue(q.path, clock=clock).purge()

    monkeypatch.setattr(maintenance._Repeater, "_give_back", purging)
    with pytest.raises(QueuePurged, match="Nothing is left to do"):
        q.retry_completed()


def test_a_full_disk_says_how_many_are_in_and_the_rest_follows(queue_factory: QueueFactory) -> None:
    """At each step that needs room. The batches that have their line are in, and no task comes twice."""
    number = 0
    while True:
        number += 1
        queue = queue_factory(f"q{number}", shards=1, batch_tasks_max=2)
        complete(queue, "a", "b", "c", "d")
        trap = FullFrom(number, times=2)
        mine = trapped(queue, trap)
        trap.armed = True
        failure = None
        try:
            assert mine.retry_completed().retried == 4
        except StorageFull as error:
            failure = str(error)
        if failure is not None:
            told = re.search(r"Tasks inserted again: (\d+)\. Repeat the call for the rest", failure)
            assert told is not None, failure
            report = queue.retry_completed()
            assert report.retried <= 4 - int(told[1])
            assert (report.retried + report.repeated, report.unkept) == (4, 0)
        assert waiting(queue) == ["a", "b", "c", "d"], f"step {number}"
        if not trap.met:
            break
    assert number > 5


def test_on_a_network_mount_each_is_retried_once(queue_factory: QueueFactory) -> None:
    queue = queue_factory(shards=1)
    complete(queue, *range(200))
    shared = trapped(queue, lambda step, call, *args: call(*args), shared=True)
    assert shared.retry_completed(where=lambda result: result.payload % 2 == 0).retried == 100
    other = trapped(queue, lambda step, call, *args: call(*args), shared=True)
    report = other.retry_completed()
    assert (report.retried, report.repeated) == (100, 100)
    assert waiting(queue) == sorted(range(200), key=str)


@pytest.mark.batched
def test_whatever_step_it_dies_at_each_is_inserted_once(queue_factory: QueueFactory, clock: ManualClock) -> None:
    """Then the call is repeated, by another process."""
    steps = 0

    def build(number: int) -> Queue:
        queue = Queue(queue_factory(f"q{number}", shards=1).path, clock=clock)
        complete(queue, "a", "b", "c")
        return queue

    for where, queue in crashes(build, lambda worker: worker.retry_completed(), clock):
        steps += 1
        report = queue.retry_completed()
        assert report.retried + report.repeated == 3, where
        assert report.retried in (0, 3), where
        assert waiting(queue) == ["a", "b", "c"], where
        assert len(drain(queue, clock)) == 3, where
        assert queue.status().completed == 6, where
        clock.advance(2 * 86_400)
        queue.gc()
        assert leftovers(queue) == [], where
        assert list(queue.fsck()) == [], where
    assert steps > 5
