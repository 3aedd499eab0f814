"""How long the work on tasks took, where they were leased ahead."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any

import pytest

from fsqueue import LeasedTask, Queue, Worker
from fsqueue.clock import ManualClock
from fsqueue.format import movements
from fsqueue.format.models import Movement
from fsqueue.spark.views import Attempt, attempts_of
from fsqueue.views.task_history import records_of
from tests import record_lines
from tests.support import QueueFactory, log_files
from tests.worker import tasks


def endings(q: Queue) -> list[Movement]:
    """The last movement of each completed task, in the order in which they ended."""
    return sorted((q.history(task.id)[-1] for task in q.tasks("completed")), key=lambda move: move.at)


def attempts(q: Queue, task: LeasedTask) -> list[Attempt]:
    return list(attempts_of(task.batch, records_of(q.store, task.batch), q.store.clock.now_ms()))


def test_a_loop_that_leases_ahead_records_how_long_each_task_took(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(10))
    for task in q.poll(prefetch=10):
        with task:
            clock.advance(2)
    found = endings(q)
    assert [move.op for move in found] == ["complete"] * 10
    leased = [q.history(task.id)[1].at for task in q.tasks("completed")]
    assert max(move.at for move in found) - min(leased) == pytest.approx(20)
    assert [move.took_s for move in found] == [None, *[2.0] * 9], "the first one was at work since it was leased"


def test_an_asynchronous_loop_that_leases_ahead_does_so_too(q: Queue, clock: ManualClock) -> None:
    async def work() -> None:
        async for task in q.poll_async(prefetch=3):
            async with task:
                clock.advance(2)

    q.insert_many(range(3))
    asyncio.run(work())
    assert [move.took_s for move in endings(q)] == [None, 2.0, 2.0]


def test_a_task_leased_alone_writes_nothing_more(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(5), batch_tasks=5)
    for task in q.poll():
        with task:
            clock.advance(2)
            (log,) = log_files(q)
            assert b"took" not in log.read_bytes()
    assert [move.took_s for move in endings(q)] == [None] * 5


@pytest.mark.batched
def test_what_ends_otherwise_is_measured_too(queue_factory: QueueFactory, clock: ManualClock) -> None:
    q = Queue(queue_factory(max_attempts=2, backoff_s=(0, 0)).path, clock=clock)
    q.insert_many(range(4), batch_tasks=4)
    with q.poll(prefetch=4) as loop:
        for end in ("complete", "fail", "bury"):
            task = next(loop)
            clock.advance(3)
            getattr(task, end)(*([] if end == "complete" else ["no"]))
    found = {one.outcome: one for one in attempts(q, task)}
    assert {name: (one.held, one.duration) for name, one in found.items()} == {
        "complete": (3000, 3000),
        "fail": (6000, 3000),
        "bury": (9000, 3000),
        "release": (9000, 0),
    }, "what was only leased ahead was not worked on at all"
    assert found["bury"].ended_at is not None
    assert found["bury"].began_at == found["bury"].ended_at - 3000


@pytest.mark.batched
def test_a_last_failure_is_measured_too(queue_factory: QueueFactory, clock: ManualClock) -> None:
    q = Queue(queue_factory(max_attempts=1).path, clock=clock)
    q.insert_many(range(3), batch_tasks=3)
    loop = q.poll(prefetch=2)
    for _ in range(2):
        task = next(loop)
        clock.advance(3)
        task.fail("no")
    assert [(one.outcome, one.duration) for one in attempts(q, task)] == [("bury", 3000)] * 2


@pytest.mark.once
@pytest.mark.parametrize("processes", [0, 1])
def test_a_worker_records_how_long_each_task_took(queue: Queue, processes: int) -> None:
    """Its tasks lie leased ahead for most of the time; the sum of what they took is no longer than it ran."""
    queue.insert_many([{"do": "sleep", "s": 0.01}] * 60, batch_tasks=60)
    ways: dict[str, Any] = {"processes": processes} if processes else {"threads": 1}
    report = Worker(queue, tasks.obey, prefetch=60, **ways).run()
    assert report.completed == 60
    held, took = [], []
    for task in queue.tasks("completed"):
        lease, end = queue.history(task.id)[-2:]
        held.append(end.at - lease.at)
        took.append(held[-1] if end.took_s is None else end.took_s)
    assert min(took) >= 0.009
    lasted_s = max(held)
    assert sum(took) <= 1.2 * lasted_s + 0.1
    assert sum(held) > 5 * sum(took)


@pytest.mark.batched
def test_tasks_that_took_equally_long_share_one_number(queue: Queue, clock: ManualClock) -> None:
    q = Queue(queue.path, clock=clock)
    q.insert_many(range(5), batch_tasks=5)
    leased = q.lease(4)
    clock.advance(10)
    for task in leased:
        task.took_s = 0.25
    q.complete(leased[:2])
    leased[2].took_s, leased[3].took_s = 1.5, 10.0
    q.complete(leased[2:])
    (log,) = log_files(q)
    records = [record for line in log.read_bytes().splitlines() if (record := movements.parse(line)) is not None]
    assert [record["took"] for record in records if record["op"] == "complete"] == [250, [1500, 10000]]
    assert [one.duration for one in attempts(q, leased[0])] == [250, 250, 1500, 10000]


@pytest.mark.parametrize("completes", [lambda q, task: q.complete([task]), lambda q, task: task.complete()])
def test_a_time_that_a_worker_has_measured_is_recorded(
    q: Queue, clock: ManualClock, completes: Callable[[Queue, LeasedTask], object]
) -> None:
    q.insert_many(range(2))
    for task in q.lease(2):
        clock.advance(10)
        task.took_s = 1.5
        completes(q, task)
    assert {move.took_s for move in endings(q)} == {1.5}


@pytest.mark.parametrize("seconds", [-1.0, math.nan, math.inf, 1e300])
def test_a_time_that_cannot_be_is_not_recorded(q: Queue, clock: ManualClock, seconds: float) -> None:
    q.insert_many(range(2))
    for task in q.lease(2):
        clock.advance(10)
        task.took_s = seconds
        q.complete([task])
    assert {move.took_s for move in endings(q)} == {None}


@pytest.mark.parametrize(
    ("took", "expected"),
    [
        (7, [7, 7, 7]), ([1, 2, 3], [1, 2, 3]), ([1], [1, None, None]), ([1, None, "x"], [1, None, None]),
        ("x", [None] * 3), (-1, [None] * 3), (True, [None] * 3), (10**15, [None] * 3), ({}, [None] * 3),
    ],
)  # fmt: skip
def test_a_field_that_is_damaged_tells_nothing_and_harms_nothing(took: object, expected: list[int | None]) -> None:
    record = {"op": "complete", "at": 1, "lease": "a", "tasks": [[0, 2], [5, 6]], "took": took}
    assert [movements.took_ms(record, index) for index in (0, 1, 5)] == expected
    assert movements.took_ms(record, 3) is None or type(took) is int
    for ranges in (None, "x", [[0]], [["a", "b"]], [[0, 10**15]]):
        movements.took_ms({**record, "tasks": ranges}, 7)


def test_a_damaged_field_does_not_void_its_record(q: Queue) -> None:
    q.insert("x")
    (task,) = q.lease()
    q.store.close()
    (path,) = log_files(q)
    with path.open("ab") as file:
        file.write(record_lines.record("complete", 10**12 * 2, lease=task.lease, tasks=[[0, 1]], took={"a": [None]}))
    assert q.status().completed == 1


def test_the_average_of_work_and_of_leases_are_told_apart(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(64))
    for task in q.poll(prefetch=64):
        with task:
            clock.advance(0.5)
    found = q.activity()
    assert found.work_s == pytest.approx(0.5)
    assert found.lease_s is not None
    assert found.lease_s > 10
