"""Answers in memory that a worker and its child share: none is lost by a death, and none is told late.

docs/decisions/0058-answers-in-shared-memory.md has the order of the steps.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue, Worker
from fsqueue.worker import answer_memory
from fsqueue.worker.answer_memory import ANSWER_BYTES_MAX, SLOTS, Answers
from tests.support import QueueFactory
from tests.waiting import PATIENCE_S, until
from tests.worker import tasks
from tests.worker.support import drained, in_background


@pytest.fixture
def both() -> Iterator[tuple[Answers, Answers]]:
    fd = answer_memory.make()
    child, worker = Answers(fd), Answers(fd)
    os.close(fd)
    yield child, worker
    child.close()
    worker.close()


def test_answers_come_in_order_and_none_is_overwritten(both: tuple[Answers, Answers]) -> None:
    child, worker = both
    put, taken = 0, []
    for round_ in (1, SLOTS, 7, SLOTS, SLOTS - 1, SLOTS):
        for _ in range(round_):
            child.put(b"%d" % put + b"x" * (put % 500))
            put += 1
        while (answer := worker.next()) is not None:
            assert worker.next() == answer, "it stays until it was taken"
            worker.taken()
            taken.append(answer)
        assert taken == [b"%d" % n + b"x" * (n % 500) for n in range(put)]


def test_what_is_not_all_there_is_no_answer(both: tuple[Answers, Answers]) -> None:
    child, worker = both
    child.put(b"a" * ANSWER_BYTES_MAX)
    assert worker.next() == b"a" * ANSWER_BYTES_MAX
    for at, garbage in ((answer_memory._FIRST + 100, b"b"), (answer_memory._FIRST, b"\xff\xff\xff\xff")):
        kept = child._memory[at : at + len(garbage)]
        child._memory[at : at + len(garbage)] = garbage
        assert worker.next() is None
        child._memory[at : at + len(garbage)] = kept
    assert worker.next() == b"a" * ANSWER_BYTES_MAX


STEPS = {
    "not put": False,
    "put, not counted": False,
    "counted, not rung": True,
    "rung": True,
    "rung, no message": False,
    "rung, then a message": True,
}
"""The steps of a child that answers, and whether the answer counts if it dies then."""


@pytest.mark.one_in(3)
@pytest.mark.once
@pytest.mark.parametrize("step", STEPS)
def test_a_child_that_dies_as_it_answers_takes_no_other_answer_with_it(
    queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """What it has counted counts, told of or not; what it has not received is done by the next one, once."""
    monkeypatch.setattr(answer_memory, "LOOK_S", 1e6)  # the death alone has the worker look
    log, go = tmp_path / "log", tmp_path / "go"
    queue = queue_factory(lease_s=60, max_attempts=1)
    payloads: list[dict[str, Any]] = [{"n": n, "log": str(log), "go": str(go)} for n in range(9)]
    payloads[5]["dies"] = step
    queue.insert_many(payloads, batch_tasks=9)
    worker = Worker(queue, tasks.dies_as_it_answers, prefetch=9)
    thread, reports = in_background(worker)
    until(lambda: log.exists() and len(worker._loop._executor.held()) == 9, "a task at work and eight sent ahead")
    go.touch()
    thread.join(PATIENCE_S)
    failed = 0 if STEPS[step] else 1
    assert reports == [drained(completed=9 - failed, failed=failed)]
    assert sorted(map(int, log.read_text().split())) == list(range(9)), "each was executed once"
    results = {info.payload["n"]: info.result for info in queue.tasks("completed")}
    assert results.pop(5, "x" * 2000) == ("x" * 2000 if failed or step.endswith("a message") else 5)
    assert results == {n: n for n in range(9) if n != 5}
    assert [letter.payload["n"] for letter in queue.dead()] == [5][:failed]


@pytest.mark.once
def test_a_child_that_rings_for_what_is_not_there_is_ended(queue_factory: QueueFactory, tmp_path: Path) -> None:
    queue = queue_factory(lease_s=60, max_attempts=1)
    queue.insert({"n": 1, "log": str(tmp_path / "log"), "dies": "garbled"})
    assert Worker(queue, tasks.dies_as_it_answers).run() == drained(failed=1)
    [letter] = queue.dead()
    assert letter.reason.startswith("the handler's process was ended, for it sent what is no answer")


@pytest.mark.once
def test_what_was_answered_before_a_long_task_is_told_while_that_is_at_work(
    queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child rings for the first at once, and for the second not: the worker looks."""
    monkeypatch.setattr(answer_memory, "LOOK_S", 3.0)
    queue = queue_factory(lease_s=60)
    queue.insert_many([{"s": 0}, {"s": 0.1}, {"s": 0.1, "until": str(tmp_path / "go")}], batch_tasks=3)
    worker = Worker(queue, tasks.rings_no_more, prefetch=3)
    thread, reports = in_background(worker)
    until(lambda: queue.status().completed == 2, "the ends of the short ones")
    assert queue.status().leased == 1
    (tmp_path / "go").touch()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=3)]


@pytest.mark.once
def test_what_a_child_is_given_just_after_it_has_rung_for_all_is_looked_for(
    queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It held nothing when the ring came; it need not ring for what it does in the next milliseconds."""
    monkeypatch.setattr(answer_memory, "LOOK_S", 5.0)
    queue = queue_factory(lease_s=60)
    queue.insert({"s": 0})
    worker = Worker(queue, tasks.rings_no_more, prefetch=2, until="forever")
    thread, reports = in_background(worker)
    until(lambda: queue.status().completed == 1, "the end of the first one")
    queue.insert_many([{"s": 0.01}, {"s": 0.01, "until": str(tmp_path / "go")}], batch_tasks=2)
    until(lambda: queue.status().completed == 2, "the end of the short one")
    assert queue.status().leased == 1
    (tmp_path / "go").touch()
    until(lambda: queue.status().completed == 3, "the end of the long one")
    worker.stop()
    thread.join(PATIENCE_S)
    assert reports[0].completed == 3


@pytest.mark.thorough
@pytest.mark.once
def test_large_answers_and_small_ones_keep_their_order(queue: Queue) -> None:
    sizes = [0, 300, 600, 5, 40_000, 40_000, 1, ANSWER_BYTES_MAX, 2] * 30
    queue.insert_many([{"do": "return", "value": "x" * size} for size in sizes], batch_tasks=len(sizes))
    assert Worker(queue, tasks.obey).run() == drained(completed=len(sizes))
    assert sorted(len(info.result) for info in queue.tasks("completed")) == sorted(sizes)
