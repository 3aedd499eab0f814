"""Slots of a queue with limits against the leases in its logs: what lacks is told and written, what is over is not."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from fsqueue import Queue
from fsqueue.clock import ManualClock
from fsqueue.format import slots
from fsqueue.format.names import parse_batch
from fsqueue.format.slots import FREE, RECORD_BYTES
from fsqueue.protocol import parcels
from tests.support import PATIENCE_S, QueueFactory


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limited(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    queue = Queue(queue_factory(batch_tasks_max=4, shards=2).path, clock=clock)
    queue.insert_many(range(40))
    queue.change_settings(max_leased=6)
    return queue


def slot_file(queue: Queue) -> Path:
    limits = queue.store.queue_state.limits
    assert limits is not None
    return Path(queue.store.layout.slots(limits.epoch))


def lose(queue: Queue, number: int) -> None:
    """Overwrite the first records that are there."""
    path = slot_file(queue)
    content = bytearray(path.read_bytes())
    for offset, _ in [*slots.each(bytes(content))][:number]:
        content[offset : offset + RECORD_BYTES] = FREE
    path.write_bytes(content)


def found(queue: Queue, repair: bool = False) -> list[tuple[str, int, bool]]:
    return [(one.kind, one.tasks, one.repaired) for one in queue.fsck(repair=repair)]


@pytest.mark.batched
def test_a_task_that_moves_to_another_queue_needs_no_slot(limited: Queue, tmp_path: Path) -> None:
    held = limited.lease(4)
    batch = next(task for task in limited.tasks() if task.state == "waiting").id.partition(".")[0]
    with Queue.create(tmp_path / "to") as to:
        there = parcels.Destination(to.id, to.generation, "mv to there")
        parcel = parcels.hold(limited.store, parse_batch(batch), range(4), there, "host")  # type: ignore[arg-type]
    assert parcel is not None
    assert len(parcel.tasks) == 4
    assert found(limited) == []
    limited.change_settings(max_leased=None)
    limited.change_settings(max_leased=6)
    assert len(held) + len(limited.lease(9)) == 6
    assert found(limited) == []


def test_leases_without_slots_are_told_and_get_slots(limited: Queue, clock: ManualClock) -> None:
    held = limited.lease(4)
    lose(limited, 3)
    assert sum(tasks for kind, tasks, _ in found(limited) if kind == "missing-slot") == 3
    mended = found(limited, repair=True)
    assert {(kind, repaired) for kind, _, repaired in mended} == {("missing-slot", True)}
    assert found(limited) == []
    assert len({slot for _, slot in slots.each(slot_file(limited).read_bytes())}) == len(held) == 4
    assert len(Queue(limited.path, clock=clock).lease(9)) == 2


def test_slots_of_leases_that_are_over_are_no_finding(limited: Queue) -> None:
    limited.complete(limited.lease(6)[:3])
    assert found(limited) == []


def test_a_lease_that_has_run_out_has_its_slot_until_a_record_ends_it(limited: Queue, clock: ManualClock) -> None:
    limited.lease(6, lease_s=10)
    clock.advance(60)
    assert found(limited) == []
    lose(limited, 1)
    assert [kind for kind, _, _ in found(limited, repair=True)] == ["missing-slot"]
    assert sum(len(limited.lease(9)) for _ in range(9)) == 6


def test_a_file_that_is_not_whole_is_left_to_the_next_lessee(limited: Queue, clock: ManualClock) -> None:
    limited.lease(6)
    path = slot_file(limited)
    path.write_bytes(bytes(RECORD_BYTES) + path.read_bytes()[RECORD_BYTES:])
    assert found(limited) == []
    path.unlink()
    assert found(limited) == []
    assert Queue(limited.path, clock=clock).lease(9) == []


def test_a_queue_without_limits_has_no_slots_to_check(queue: Queue) -> None:
    queue.insert_many(range(3))
    queue.lease(2)
    assert found(queue) == []


def test_nothing_is_found_while_workers_work_and_are_killed(queue_factory: QueueFactory) -> None:
    queue = queue_factory(batch_tasks_max=8, lease_s=1)
    queue.insert_many(range(3000))
    queue.change_settings(max_leased=3)

    def work() -> None:
        mine = Queue(queue.path)
        while True:
            for task in mine.lease(2):
                task.complete()

    context = multiprocessing.get_context("fork")
    children = [context.Process(target=work) for _ in range(2)]
    for child in children:
        child.start()
    try:
        for _ in range(12):
            assert [one for one in queue.fsck() if one.kind == "missing-slot"] == []
    finally:
        for child in children:
            assert child.pid is not None
            os.kill(child.pid, signal.SIGKILL)
            child.join(PATIENCE_S)
    assert [one for one in queue.fsck() if one.kind == "missing-slot"] == []
