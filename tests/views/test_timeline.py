"""A queue over time, against what is known to have happened when."""

from __future__ import annotations

import pytest

from fsqueue import Group, InvalidArgument, Queue
from fsqueue.clock import ManualClock
from tests.conftest import QueueFactory

T0 = 1_795_255_200.0


def test_each_piece_counts_what_happened_in_it(queue: Queue) -> None:
    clock = ManualClock(T0)
    q = Queue(queue.path, clock=clock)
    q.insert_many(range(4), batch_tasks=2)
    clock.advance(60)
    held = q.lease(4)
    clock.advance(60)
    held[0].complete()
    held[1].complete()
    clock.advance(60)
    held[2].bury("worn out")
    clock.advance(59)
    found = q.timeline(window_s=300, pieces=5)
    assert found.begin == pytest.approx(T0 + 239 - 300)
    assert found.step_s == 60
    assert found.inserted == [0, 4, 0, 0, 0]
    assert found.leased == [0, 0, 4, 0, 0]
    assert found.completed == [0, 0, 0, 2, 0]
    assert found.given_up == [0, 0, 0, 0, 1]
    assert found.work_s == [(60.0, 2)]
    assert found.as_dict()["share"] == 1.0


def test_without_a_history_nothing_is_known(queue_factory: QueueFactory) -> None:
    q = queue_factory(keep_history=False)
    q.insert(1)
    assert q.timeline(window_s=60, pieces=3).completed == [None, None, None]


@pytest.mark.parametrize("pieces", [0, 1001, 1.5, True])
def test_pieces_that_are_none(queue: Queue, pieces: int) -> None:
    with pytest.raises(InvalidArgument, match="pieces must be"):
        queue.timeline(pieces=pieces)


def test_a_queue_that_is_not_there_has_none(queue: Queue) -> None:
    group = Group.create(queue.path.parent / "group")
    assert group["fetch"].timeline().completed == []
    assert group["fetch"].workers() == []


def test_the_workers_are_those_that_hold_tasks(queue: Queue) -> None:
    queue.insert(1)
    assert queue.workers() == []
    [task] = queue.lease()
    [worker] = queue.workers(asks_slurm=False)
    assert worker.tasks == [task.id]
    assert worker.life == "alive"


@pytest.mark.batched
def test_the_oldest_batch_with_a_task_to_do(queue: Queue) -> None:
    clock = ManualClock(T0)
    q = Queue(queue.path, clock=clock)
    assert q.activity().oldest_inserted is None
    q.insert_many([1], batch_tasks=1)
    clock.advance(100)
    q.insert_many([2], batch_tasks=1)
    assert q.activity().oldest_inserted == pytest.approx(T0, abs=1)
    q.lease()[0].complete()
    assert q.activity().oldest_inserted == pytest.approx(T0 + 100, abs=1)
    q.lease()[0].complete()
    clock.advance(100)
    q.insert(3)
    assert q.activity().oldest_inserted == pytest.approx(T0 + 200, abs=1)
    q.lease()[0].complete()
    assert q.activity().oldest_inserted is None, "the batch that takes inserts is there, without a task to do"
    clock.advance(100)
    q.insert(4)
    assert q.activity().oldest_inserted == pytest.approx(T0 + 200, abs=1)
