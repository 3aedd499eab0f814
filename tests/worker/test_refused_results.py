"""Results that cannot be kept: each makes its own task a dead letter, at once, and all others are completed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from fsqueue import Queue, StorageError, Worker
from fsqueue.worker import handlers
from fsqueue.worker.settling import Outcome, OutcomeReporter, Taking
from tests.support import QueueFactory
from tests.worker import tasks
from tests.worker.support import Failing, drained

TOO_LARGE = r"takes 180,002 bytes; 65,536 are kept"
"""What is said of 30,000 control characters, which JSON writes with six bytes each."""
BIG = "head -c 30000 /dev/zero | tr '\\0' '\\001'"


def reporter_of(queue: Queue) -> OutcomeReporter:
    limits = Worker(queue, tasks.nothing)._limits
    return OutcomeReporter(limits, Taking(), lambda settled: None, lambda error: None, lambda name, error: None)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("how", ["standard output", "file", "function", "threads"])
def test_a_result_that_is_too_large_as_json_buries_its_own_task_alone(queue_factory: QueueFactory, how: str) -> None:
    queue = queue_factory()
    queue.insert_many(["good"] * 6 + ["bad"] + ["good"] * 5)
    script = f'if [ "$0" = bad ]; then {BIG}; else echo 1; fi'
    if how == "standard output":
        worker = Worker(queue, command=["sh", "-c", script, "{}"], processes=4, result_from_stdout=True)
    elif how == "file":
        worker = Worker(queue, command=["sh", "-c", f"({script}) >$FSQUEUE_RESULT", "{}"], processes=4)
    else:
        worker = Worker(queue, tasks.large_if_bad, processes=2, threads=4 if how == "threads" else None)
    assert worker.run() == drained(completed=11, failed=1)
    [letter] = queue.dead()
    assert (letter.payload, letter.attempt) == ("bad", 1)
    assert letter.reason.startswith("its result cannot be kept, and its work is not repeated")
    assert re.search(TOO_LARGE, letter.reason), letter.reason
    assert [task.result for task in queue.tasks("completed")] == [1] * 11


def test_completions_are_told_whatever_results_are_among_them(queue_factory: QueueFactory) -> None:
    """Results that only the queue refuses make dead letters of their own tasks, each with its own reason."""
    queue = queue_factory()
    queue.insert_many(range(6))
    results = [1, "\x01" * 30_000, None, [{1}], {"a": 2}, 3]
    leased = sorted(queue.lease(6), key=lambda task: int(task.payload))
    queue.release([queue.attach(leased[5].token)])  # as a command may, with its token
    outcomes = [Outcome(task, "complete", result=results[task.payload]) for task in leased]
    reporter = reporter_of(queue)
    settled, again = reporter._round(outcomes)
    assert again == []
    counted = {outcome.task.payload: how for outcome, how, _ in settled.counted}
    assert counted == {0: "completed", 1: "buried", 2: "completed", 3: "buried", 4: "completed", 5: "released"}
    letters = {letter.payload: letter.reason for letter in queue.dead()}
    assert re.search(TOO_LARGE, letters[1])
    assert "The result[0] is of the type builtins.set" in letters[3]
    assert queue.status().completed == 3


def test_the_result_of_a_lost_lease_is_not_kept_for_a_later_lease_of_the_task(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    queue.insert(1)
    [first] = queue.lease()
    queue.release_all()
    [second] = queue.lease()
    outcomes = [Outcome(second, "complete", result="second"), Outcome(first, "complete", result="first")]
    settled, again = reporter_of(queue)._round(outcomes)
    assert again == []
    counted = {outcome.task.token: how for outcome, how, _ in settled.counted}
    assert counted == {second.token: "completed", first.token: "lost"}
    assert queue.task(second.id).result == "second"


def test_a_disk_that_fails_among_refused_results_loses_none_of_them(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_factory()
    queue.insert_many(range(4))
    outcomes = [Outcome(task, "complete", result="\x01" * 30_000 if task.payload else 1) for task in queue.lease(4)]
    reporter = reporter_of(queue)
    Failing(monkeypatch, Queue, "_bury", [StorageError("The filesystem is away.")])
    settled, again = reporter._round(outcomes)
    assert settled.counted == []
    assert len(again) == 4
    settled, again = reporter._round(again)
    assert again == []
    assert sorted(how for _, how, _ in settled.counted) == ["buried", "buried", "buried", "completed"]
    assert (queue.status().completed, queue.status().dead) == (1, 3)


def test_a_result_is_kept_as_it_was_when_the_function_returned_it() -> None:
    """In threads the function, or another thread, may go on changing what it has returned."""
    shared: list[Any] = [1]
    verb, value, _ = handlers.call(lambda: shared, [])
    shared.append(float("nan"))
    assert (verb, value) == ("complete", [1])
