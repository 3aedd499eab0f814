"""Leasing from several queues in one call."""

from __future__ import annotations

import logging
from collections import Counter

import pytest

import fsqueue
from fsqueue import InvalidArgument, LeasedTask, Queue, QueueNotFound
from fsqueue.clock import ManualClock
from fsqueue.worker import Worker
from tests.support import QueueFactory, put_open, put_ranked

pytestmark = [pytest.mark.batched, pytest.mark.once]


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


def test_an_urgent_task_in_an_idle_queue_is_noticed(three: list[Queue], clock: ManualClock) -> None:
    a, b, _ = three
    put_ranked(a, [(number, 50) for number in range(100)])
    assert fsqueue.lease(three)[0].payload == 0
    put_ranked(b, [("urgent", 1)])
    assert fsqueue.lease(three)[0].payload == "urgent"


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
