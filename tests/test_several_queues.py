"""Leasing from several queues in one call."""

from __future__ import annotations

import errno
import logging
import os
import random
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Group, InvalidArgument, LeasedTask, Queue, QueueNotFound, StorageError, Task
from fsqueue.clock import ManualClock
from fsqueue.protocol import queue_watches, waiting
from fsqueue.storage import listening
from fsqueue.worker import Worker
from tests.disks import small_disk
from tests.support import QueueFactory, inotify_instances, leasing, put_open, put_ranked, watched_sleeps
from tests.waiting import until

pytestmark = pytest.mark.once


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def three(queue_factory: QueueFactory, clock: ManualClock) -> list[Queue]:
    return [Queue(queue_factory(name, shards=2).path, clock=clock) for name in "abc"]


def payloads(tasks: list[LeasedTask]) -> list[object]:
    return [task.payload for task in tasks]


@pytest.mark.parametrize("n", [1, 2, 5])
def test_the_most_urgent_of_all_come_first(three: list[Queue], clock: ManualClock, n: int) -> None:
    for number, queue in enumerate(three):
        put_ranked(queue, [(10 * rank + number, 3 * rank + number) for rank in range(6)])
        clock.advance(0.01)
        put_open(queue, [(100 + 10 * rank + number, 18 + 3 * rank + number) for rank in range(6)])
    found: list[object] = []
    while tasks := fsqueue.lease(three, n):
        found += payloads(tasks)
    assert found == [base + 10 * rank + number for base in (0, 100) for rank in range(6) for number in range(3)]


def test_queues_on_several_filesystems(tmp_path: Path) -> None:
    """What docs/several-servers.md, "Several file servers", promises."""
    with small_disk(tmp_path / "one", 4, 500) as one, small_disk(tmp_path / "two", 4, 500, "ext4") as two:
        assert os.stat(one).st_dev != os.stat(two).st_dev
        queues = [Queue.create(one / "q"), Queue.create(two / "q")]
        for number, queue in enumerate(queues):
            queue.insert_many([Task(2 * rank + number, priority=2 * rank + number) for rank in range(5)])
        assert payloads(fsqueue.lease(queues, 10)) == [*range(10)]
        for queue in queues:
            queue.release_all()
        groups = [Group.create(disk / "g") for disk in (one, two)]
        for number, group in enumerate(groups):
            group["q"].insert(10 + number)
        report = Worker([*queues, *groups], "json:dumps").run()
        assert report.completed == 12
        assert [each.status().completed for each in (*queues, groups[0]["q"], groups[1]["q"])] == [5, 5, 1, 1]
        assert [each.remaining for each in fsqueue.wait([*queues, *groups], timeout_s=0)] == [0, 0, 0, 0]


def test_a_task_whose_lease_runs_out_during_the_call_is_given_once(
    three: list[Queue], clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker is stopped in the middle of its call, which finds the task again: the first lease is of no use."""
    take, stops = queue_watches.Watch.take, [3600.0]

    def stopped(watch: queue_watches.Watch, n: int, bound: bytes) -> list[LeasedTask]:
        got = take(watch, n, bound)
        if got and stops:
            clock.advance(stops.pop())
        return got

    monkeypatch.setattr(queue_watches.Watch, "take", stopped)
    three[0].insert("a")
    three[1].insert("b")
    got = fsqueue.lease(three[:2], 4)
    assert sorted(map(str, payloads(got))) == ["a", "b"]
    for task in got:
        task.complete()


def test_queues_without_priorities_take_turns(three: list[Queue]) -> None:
    for queue in three:
        queue.insert_many([queue.path.name] * 10)
    found = [fsqueue.lease(three)[0].payload for _ in range(12)]
    assert Counter(found) == {"a": 4, "b": 4, "c": 4}
    assert Counter(found[:3]) == {"a": 1, "b": 1, "c": 1}
    assert Counter(payloads(fsqueue.lease(three, 9))) == {"a": 3, "b": 3, "c": 3}
    assert Counter(payloads(fsqueue.lease(three, 99))) == {"a": 3, "b": 3, "c": 3}
    assert fsqueue.lease(three) == []


def test_a_queue_with_less_leaves_the_rest_to_the_others(three: list[Queue]) -> None:
    a, b, _ = three
    a.insert_many(["a"] * 2)
    b.insert_many(["b"] * 20)
    assert Counter(payloads(fsqueue.lease(three, 12))) == {"a": 2, "b": 10}


def test_urgent_tasks_come_before_those_of_a_queue_without_priorities(three: list[Queue]) -> None:
    a, b, _ = three
    a.insert_many(["a"] * 3)
    put_ranked(b, [("b", 7), ("none", None)])
    assert fsqueue.lease(three)[0].payload == "b"
    assert Counter(payloads(fsqueue.lease(three, 9))) == {"a": 3, "none": 1}


def test_up_to_and_waiting(three: list[Queue], clock: ManualClock) -> None:
    a, b, c = three
    a.insert("a")
    put_ranked(b, [("b", 9)])
    put_ranked(c, [("c", 1)])
    (task,) = fsqueue.lease(three, 5, up_to=5)
    assert task.payload == "c"
    assert fsqueue.lease(three, 5, up_to=5, wait_s=3) == []
    task.release(delay_s=20)
    begin = clock.monotonic()
    assert payloads(fsqueue.lease(three, 5, up_to=5, wait_s=60)) == ["c"]
    assert clock.monotonic() - begin < 21


def test_a_queue_that_is_gone_does_not_hurt_the_others(
    three: list[Queue], clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    a, b, c = three
    for queue in three:
        queue.insert(queue.path.name)
    Queue(b.path).delete()
    clock.advance(2)
    with caplog.at_level(logging.WARNING, "fsqueue"):
        assert Counter(payloads(fsqueue.lease(three, 5))) == {"a": 1, "c": 1}
    assert "left out" in caplog.text
    Queue(a.path).delete()
    Queue(c.path).delete()
    clock.advance(2)
    with pytest.raises(QueueNotFound):
        fsqueue.lease(three)


@pytest.mark.parametrize("urgent", [True, False])
def test_a_queue_that_fails_does_not_keep_the_tasks_of_others_back(
    three: list[Queue], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, urgent: bool
) -> None:
    a, b, c = three
    put_ranked(a, [("a", 1 if urgent else None)])
    b.insert("b")
    c.insert("c")
    monkeypatch.setattr(a.store.fs, "write", failing)
    with caplog.at_level(logging.WARNING, "fsqueue"):
        assert Counter(payloads(fsqueue.lease(three, 5))) == {"b": 1, "c": 1}
    assert caplog.text.count("left out") == 1
    with pytest.raises(StorageError, match="Read-only"):
        fsqueue.lease(three, 5)
    b.insert("later")
    assert payloads(fsqueue.lease(three, 5)) == ["later"]
    monkeypatch.undo()
    assert payloads(fsqueue.lease(three, 5)) == ["a"]


def failing(*_: Any) -> int:
    raise OSError(errno.EROFS, os.strerror(errno.EROFS))


def test_a_worker_does_the_tasks_of_others_before_it_ends_for_a_queue_that_is_gone(queue_factory: QueueFactory) -> None:
    gone, other = queue_factory("gone", shards=1), queue_factory("other", shards=1)
    other.insert_many(range(20), batch_tasks=1)
    gone.insert_many(range(100, 120), batch_tasks=1)
    done: list[int] = []

    def handle(payload: int) -> None:
        if len(done) == 3:
            Queue(gone.path).delete()
        done.append(payload)

    with pytest.raises(QueueNotFound):
        Worker([other, gone], handle, threads=1, prefetch=1).run()
    assert sorted(payload for payload in done if payload < 100) == [*range(20)]


def test_an_urgent_task_in_an_idle_queue_is_noticed(three: list[Queue], clock: ManualClock) -> None:
    a, b, _ = three
    put_ranked(a, [(number, 50) for number in range(100)])
    assert fsqueue.lease(three)[0].payload == 0
    put_ranked(b, [("urgent", 1)])
    assert fsqueue.lease(three)[0].payload == "urgent"


@pytest.mark.parametrize("up_to", [None, 9])
def test_queues_that_were_opened_before_the_first_priority_came_are_compared(
    three: list[Queue], clock: ManualClock, up_to: int | None
) -> None:
    """`queue.jsonl` of each was read within the last second, when no task had a priority."""
    for number, queue in enumerate(anew(three, clock)):
        queue.insert_many([Task("plain")], batch_tasks=1)
        clock.advance(0.01)
        queue.insert_many([Task(3 - number, priority=3 - number)], batch_tasks=1)
    assert [fsqueue.lease(three, up_to=up_to)[0].payload for _ in range(3)] == [1, 2, 3]


# -- at rest: nobody inserts, and nobody else works ------------------------------------------------------------------


def drained(queues: list[Queue], n: int) -> list[object]:
    """Lease all tasks, `n` at a time; return their payloads."""
    found: list[object] = []
    while tasks := fsqueue.lease(queues, n):
        found += payloads(tasks)
        for task in tasks:
            task.complete()
    return found


def anew(queues: list[Queue], clock: ManualClock) -> list[Queue]:
    """Return queues that have seen nothing of these yet."""
    return [Queue(queue.path, clock=clock) for queue in queues]


@pytest.mark.parametrize("n", [1, 2, 20])
@pytest.mark.parametrize("put", [put_ranked, put_open])
@pytest.mark.parametrize("shards", [1, 16])
def test_a_name_that_promises_too_much_lets_no_other_queue_go_first(
    queue_factory: QueueFactory, clock: ManualClock, put: Callable[..., object], n: int, shards: int
) -> None:
    queues = [Queue(queue_factory(name, shards=shards).path, clock=clock) for name in "abc"]
    for number, queue in enumerate(queues):
        for batch in range(6):
            first = 10 * batch + number
            put(queue, [(rank, rank) for rank in (first, first + 3, first + 6)])
            clock.advance(0.01)
    for queue in queues:
        for _ in range(3):  # by this process, which knows what it left of their batches; and then by one that does not
            queue.complete(queue.lease(1, strict=True))
    expected = sorted(10 * batch + number + more for batch in range(6) for number in range(3) for more in (0, 3, 6))
    first_gone = {0, 1, 2, 3, 4, 5, 6, 7, 8}
    assert drained(anew(queues, clock), n) == [rank for rank in expected if rank not in first_gone]


@pytest.mark.one_in(5)
@pytest.mark.parametrize("seed", range(20))
def test_any_queues_at_rest_give_their_tasks_in_the_order_of_priorities(
    queue_factory: QueueFactory, clock: ManualClock, seed: int
) -> None:
    dice = random.Random(seed)
    queues = [Queue(queue_factory(name, shards=dice.choice([1, 4])).path, clock=clock) for name in "abc"]
    for number in range(dice.randrange(1, 14)):
        queue = dice.choice(queues)
        ranks = [dice.choice([None, *range(12)]) for _ in range(dice.randrange(1, 6))]
        dice.choice([put_ranked, put_open])(queue, [((number, at), rank) for at, rank in enumerate(ranks)])
        clock.advance(0.01)
    for queue in queues:
        queue.complete(queue.lease(dice.randrange(1, 4), strict=True))
    clock.advance(dice.choice([0, 3]))
    found: list[int | None] = []
    while tasks := fsqueue.lease(queues if seed % 2 else anew(queues, clock), dice.choice([1, 2, 7])):
        found += [task.priority for task in tasks]
        for task in tasks:
            task.complete()
    assert found == sorted(found, key=lambda rank: 99 if rank is None else rank)


@pytest.mark.parametrize("n", [3, 20, 60])
def test_urgent_tasks_of_one_queue_do_not_wait_behind_those_without_a_priority_of_its_equal(
    queue_factory: QueueFactory, clock: ManualClock, n: int
) -> None:
    a, b = (Queue(queue_factory(name, shards=1).path, clock=clock) for name in "ab")
    put_ranked(a, [("urgent", 0)])
    put_ranked(a, [("last", None)] * 50)
    put_ranked(b, [("urgent", 0)] * 50)
    assert drained([a, b], n) == ["urgent"] * 51 + ["last"] * 50


def test_equal_tasks_of_a_queue_keep_the_order_of_insertion_beside_another_queue(
    queue_factory: QueueFactory, clock: ManualClock
) -> None:
    a, b = (Queue(queue_factory(name, shards=1).path, clock=clock) for name in "ab")
    for number in range(5):
        for queue in (a, b):
            put_ranked(queue, [((number, at), 7) for at in range(4)])
            clock.advance(0.01)
    found = drained([a, b], 3)
    expected = [[number, at] for number in range(5) for at in range(4)]
    once: list[object] = []
    again: list[object] = []
    for payload in found:
        (again if payload in once else once).append(payload)
    assert once == again == expected


def test_a_worker_of_queues_at_rest_does_not_go_by_names_alone(queue_factory: QueueFactory) -> None:
    a, b = (queue_factory(name, shards=1) for name in "ab")
    put_ranked(a, [(rank, rank) for rank in (1, 5, 6)])
    put_ranked(b, [(rank, rank) for rank in (2, 9, 10)])
    for queue in (a, b):
        with Queue(queue.path) as other:
            other.complete(other.lease(strict=True))
    found: list[object] = []
    Worker([a, b], found.append, threads=1).run()
    assert found == [5, 6, 9, 10]


def test_after_many_names_that_promised_too_much_what_a_queue_has_is_taken(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look stays bounded, as it does at one queue."""
    monkeypatch.setattr(queue_watches, "OVERPROMISED_MAX", 3)
    queues = [Queue(queue_factory(name, shards=1).path, clock=clock) for name in "ab"]
    for number, queue in enumerate(queues):
        for batch in range(10):
            put_ranked(queue, [("gone", 2 * batch + number), (f"left {batch}", 100 + batch)])
            clock.advance(0.01)
        gone = queue.lease(10, strict=True)
        assert payloads(gone) == ["gone"] * 10
        queue.complete(gone)
    (task,) = fsqueue.lease(anew(queues, clock))
    assert str(task.payload).startswith("left")


# -- notifications on this host ---------------------------------------------------------------------------------------

NEVER_S = (600.0, 600.0)
"""Pauses after which a test would have failed: what it finds in time, it was told of."""


def waits(queues: list[Queue], up_to: int | None = None) -> list[LeasedTask]:
    """Wait for a task of several queues, with a `Queue` of its own for each."""
    with ExitStack() as stack:
        return fsqueue.lease(
            [stack.enter_context(Queue(queue.path)) for queue in queues], wait_s=NEVER_S[0], up_to=up_to
        )


@pytest.mark.parametrize("number", [0, 1, 2])
@pytest.mark.parametrize("is_first", [True, False], ids=["never notified", "notified before"])
def test_a_task_inserted_on_this_host_ends_the_wait(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, number: int, is_first: bool
) -> None:
    queues = [queue_factory(name) for name in "abc"]
    if not is_first:
        queues[number].insert("before")
        queues[number].complete(queues[number].lease())
    monkeypatch.setattr(waiting, "BELL_S", NEVER_S)
    with leasing(partial(waits, queues)) as found:
        queues[number].insert("x")
    assert found == ["x"]


def test_only_a_task_within_the_bound_ends_the_wait(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    queues = [queue_factory(name) for name in "abc"]
    monkeypatch.setattr(waiting, "BELL_S", NEVER_S)
    with watched_sleeps() as sleeps, leasing(partial(waits, queues, up_to=5)) as found:
        queues[0].insert("not urgent", priority=6)
        queues[1].insert("none")
        until(lambda: any(sleeps.ended) and len(sleeps.begun) > len(sleeps.ended), "a worker that sleeps again")
        assert found == []
        queues[2].insert("x", priority=5)
    assert found == ["x"]


def test_a_task_inserted_without_a_notification_of_its_own_is_found_soon(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An inserter notifies at most every 50 ms: whoever was notified without success looks again when they are over."""
    queues = [queue_factory(name) for name in "abc"]
    monkeypatch.setattr(waiting, "BELL_S", NEVER_S)
    with leasing(partial(waits, queues)) as one, leasing(partial(waits, queues)) as another:
        queues[1].insert("a")
        queues[1].insert("b")
    assert {*one, *another} == {"a", "b"}


@pytest.mark.parametrize("gone", [0, 1, 2])
@pytest.mark.parametrize("deleted", ["before", "meanwhile"])
def test_a_queue_that_is_gone_does_not_keep_others_from_ending_the_wait(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, gone: int, deleted: str
) -> None:
    queues = [queue_factory(name) for name in "abc"]
    mine = [Queue(queue.path) for queue in queues]
    monkeypatch.setattr(waiting, "BELL_S", NEVER_S)
    if deleted == "before":
        queues[gone].delete()
    for number, other in enumerate(queue for queue in queues if queue is not queues[gone]):
        with leasing(partial(fsqueue.lease, mine, wait_s=NEVER_S[0])) as found:
            if deleted == "meanwhile" and not number:
                queues[gone].delete()
            other.insert("x")
        assert found == ["x"]


def test_without_inotify_it_looks_after_each_pause(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise OSError(errno.EMFILE, "no instance left")

    queues = [queue_factory(name) for name in "abc"]
    monkeypatch.setattr(listening, "Changes", fail)
    with leasing(partial(waits, queues)) as found:
        queues[2].insert("x")
    assert found == ["x"]


def test_a_wait_at_many_queues_takes_one_inotify_instance_and_gives_it_back(queue_factory: QueueFactory) -> None:
    """A user has 128 of them, for all programs."""
    queues = [queue_factory(name) for name in "abcdef"]
    listening.close_idle()
    before = inotify_instances()
    for _ in range(3):
        assert fsqueue.lease(queues, wait_s=0.05) == []
        assert len(inotify_instances() - before) <= 1
    until(lambda: inotify_instances() <= before, "the instance that nobody waits by to be closed")
    assert fsqueue.lease(queues, wait_s=0.05) == []
    queues[3].close()
    assert inotify_instances() <= before, "a queue that is closed listens no more"


def test_a_worker_of_several_queues_keeps_the_order(queue_factory: QueueFactory) -> None:
    a, b = (queue_factory(name, shards=1) for name in "ab")
    put_ranked(a, [(1, 1), (4, 4), (5, 5)])
    put_ranked(b, [(2, 2), (3, 3), (6, 6)])
    found: list[object] = []
    Worker([a, b], found.append, threads=1, prefetch=1).run()
    assert found == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("queues", [[], "q", b"q", ["q"], [None], None, 7])
def test_what_is_no_list_of_queues_is_refused(queues: object) -> None:
    with pytest.raises(InvalidArgument, match="list of queues"):
        fsqueue.lease(queues)  # type: ignore[arg-type]


def test_a_queue_is_no_list(queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match=r"Queue\.lease"):
        fsqueue.lease(queue)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgument, match="n must be"):
        fsqueue.lease([queue], 0)
    with pytest.raises(InvalidArgument, match="up_to"):
        fsqueue.lease([queue], up_to=1.5)  # type: ignore[arg-type]
