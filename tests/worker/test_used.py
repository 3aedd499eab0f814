"""What an attempt used: processor time and peak memory, in the record that ends it, for commands and functions."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from fsqueue import Movement, Queue, Worker
from fsqueue.format import movements
from fsqueue.format.models import Used
from fsqueue.worker import child_messages
from fsqueue.worker.causes import Memory
from tests.support import QueueFactory
from tests.worker import tasks

pytestmark = pytest.mark.once

MIB = 1 << 20
BUSY = "b = bytearray(60 << 20); x = sum(range(3_000_000)); import sys; sys.exit(int(sys.argv[1]))"


def ends_of(queue: Queue) -> list[Movement]:
    known = [*queue.tasks("completed"), *queue.dead()]
    return [move for one in known for move in queue.history(one.id) if move.cpu_s is not None]


@pytest.mark.parametrize("kind", ["command", "function"])
def test_each_attempt_tells_what_it_used(queue_factory: QueueFactory, kind: str) -> None:
    queue = queue_factory(max_attempts=2, backoff_s=(0, 0))
    queue.insert_many([0, 3])
    work: dict[str, Any] = {"command": [sys.executable, "-c", BUSY, "{}"]} if kind == "command" else {}
    Worker(queue, None if work else tasks.busy, processes=1, stop_after_failures=1000, **work).run()
    found = ends_of(queue)
    assert sorted(move.op for move in found) == ["bury", "complete", "fail"], "also those that failed"
    for move in found:
        assert move.cpu_s is not None
        assert 0 < move.cpu_s < 60
        assert move.peak_memory_bytes is not None
        assert 60 * MIB < move.peak_memory_bytes < 4096 * MIB
    for result in queue.results():
        last = [move for move in queue.history(result.id) if move.cpu_s is not None][-1]
        assert (result.cpu_s, result.peak_memory_bytes) == (last.cpu_s, last.peak_memory_bytes), result.state
    assert sorted(result.state for result in queue.results()) == ["completed", "dead"]
    assert [info.state for info in queue.tasks("completed")] == ["completed"]


def test_what_nobody_measured_is_not_told(queue: Queue) -> None:
    queue.insert_many([1, 2], batch_tasks=2)
    for task in queue.poll():
        with task:
            pass
    assert ends_of(queue) == []
    assert {(result.cpu_s, result.peak_memory_bytes) for result in queue.results()} == {(None, None)}


def test_of_several_tasks_in_a_record_each_has_its_own(queue_factory: QueueFactory) -> None:
    queue = queue_factory(shards=1)
    queue.insert_many([1, 2, 3], batch_tasks=3)
    leased = queue.lease(3)
    leased[0].used, leased[2].used = Used(10, 100), Used(30, 300)
    queue.complete(leased)
    found = {result.id: (result.cpu_s, result.peak_memory_bytes) for result in queue.results()}
    assert found == {
        leased[0].id: (0.01, 100 << 10),
        leased[1].id: (None, None),
        leased[2].id: (0.03, 300 << 10),
    }


def test_what_the_last_attempt_used_counts_and_of_one_that_was_not_measured_nothing(
    queue_factory: QueueFactory,
) -> None:
    queue = queue_factory(shards=1, backoff_s=(0, 0))
    queue.insert_many(["completes", "is buried", "fails", "is measured last"], batch_tasks=4)
    for attempt in (1, 2):
        for task in queue.lease(4):
            if (attempt == 1) != (task.payload == "is measured last"):
                task.used = Used(10, 100)
            if attempt == 1 or task.payload in ("fails", "is measured last"):
                task.fail("no")
            else:
                task.complete() if task.payload == "completes" else task.bury("no")
    queue.change_settings(max_attempts=1)
    assert queue.lease(4) == [], "the attempts of the others are used up: they are buried without a lease"
    nothing, measured = (None, None), (0.01, 100 << 10)
    wanted = {"completes": nothing, "is buried": nothing, "fails": nothing, "is measured last": measured}
    assert {result.payload: (result.cpu_s, result.peak_memory_bytes) for result in queue.results()} == wanted
    wanted.pop("completes")
    assert {letter.payload: (letter.cpu_s, letter.peak_memory_bytes) for letter in queue.dead()} == wanted


@pytest.mark.parametrize(
    "used", [None, 5, [], [[1]], [[1, 2, 3]], [["1", 2]], [[-1, 2]], [[1, True]], [None], {"0": [1, 2]}]
)
def test_what_is_no_usage_is_ignored(used: Any) -> None:
    assert movements.used({"tasks": [[0, 1]], "used": used}, 0) is None
    assert movements.used({"tasks": [[0, 1]], "used": [[1, 2]]}, 0) == (1, 2)


def test_an_answer_without_usage_is_garbled() -> None:
    answer = child_messages.encode_answer("complete", {"y": 1}, 0.5, Used(1, 2))
    assert child_messages.decode_answer(answer) == ("complete", {"y": 1}, 0.5, Used(1, 2), Memory.ENOUGH)
    short = child_messages.encode_answer("fail", "w", 0.5, Used(1, 2), Memory.SHORT)
    assert child_messages.decode_answer(short) == ("fail", "w", 0.5, Used(1, 2), Memory.SHORT)
    for body in (
        b'["complete",1,0.5]',
        b'["complete",1,0.5,1,"2"]',
        b'["complete",1,0.5,1.0,2]',
        b'["fail","w",0.5,1,2,"so"]',
    ):
        with pytest.raises(child_messages.Garbled):
            child_messages.decode_answer(body)
