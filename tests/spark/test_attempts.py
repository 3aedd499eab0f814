"""From records to attempts: pure, without Spark."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fsqueue import Queue
from fsqueue.clock import ManualClock
from fsqueue.format.models import Used
from fsqueue.spark import views
from fsqueue.spark.views import attempts_of
from fsqueue.storage import listing
from fsqueue.storage.history import Records
from fsqueue.views.task_history import records_of
from tests.support import QueueFactory, insert_in_file

Told = list[tuple[str, float, float | None, str | None]]
BATCH = f"{1_000_000:012x}7000{0:016x}"


def told(records: Records, now: int = 10**12) -> Told:
    """Outcome, wait, duration and error of each attempt, in milliseconds."""
    found = []
    for one in attempts_of(BATCH, records, now):
        duration = None if one.ended_at is None else one.ended_at - one.leased_at
        found.append((one.outcome, one.leased_at - one.available_at, duration, one.error))
    return found


def lines(*records: dict[str, object]) -> Records:
    return [(100 * number, record) for number, record in enumerate(records)]


OPEN = {"op": "open", "at": 1_000_000, "count": 2, "birth": 1_000_000, "available_at": 0, "name": "x"}


def lease(at: int, name: str, until: int, first: int = 0, end: int = 1) -> dict[str, object]:
    return {"op": "lease", "at": at, "lease": name, "tasks": [[first, end]], "until": until, "worker": {"host": "h"}}


def act(op: str, at: int, name: str, **more: object) -> dict[str, object]:
    return {"op": op, "at": at, "lease": name, "tasks": [[0, 1]], **more}


@pytest.mark.parametrize(
    ("records", "expected"),
    [
        ([lease(1_000_500, "a", 2_000_000), act("complete", 1_000_700, "a")], [("complete", 500, 200, None)]),
        (
            [
                lease(1_000_500, "a", 2_000_000),
                act("fail", 1_000_600, "a", available_at=1_001_000, error="no"),
                lease(1_003_000, "b", 2_000_000),
                act("bury", 1_004_000, "b", reason="never"),
            ],
            [("fail", 500, 100, "no"), ("bury", 2000, 1000, "never")],
        ),
        (
            [
                lease(1_000_500, "a", 1_000_600),
                act("renew", 1_000_550, "a", until=1_000_900),
                lease(1_000_800, "b", 2_000_000),  # void: it is still held
                lease(1_001_000, "c", 2_000_000),
                act("complete", 1_001_100, "a"),  # void: taken over
                act("release", 1_001_200, "c", available_at=1_001_200),
            ],
            [("expired", 500, 400, None), ("release", 100, 200, None)],
        ),
        (
            [
                lease(1_000_500, "a", 2_000_000),
                act("complete", 1_000_700, "a", update="0" * 16, file="0" * 32),
                {"op": "revoke", "at": 1_000_800, "tasks": [[0, 1]]},  # void: it is frozen
                {"op": "commit", "at": 1_000_900, "update": "0" * 16, "of": 1},
            ],
            [("complete", 500, 200, None)],
        ),
        (
            [
                lease(1_000_500, "a", 2_000_000),
                act("fail", 1_000_700, "a", error="no", available_at=0, update="0" * 16, file="0" * 32),
                {"op": "abort", "at": 1_000_900, "update": "0" * 16},
                act("release", 1_001_000, "a", available_at=1_001_000, update="1" * 16),
                {"op": "commit", "at": 1_001_000, "update": "1" * 16, "of": 1},
            ],
            [("release", 500, 500, None)],
        ),
        ([lease(1_000_500, "a", 10**13, 0, 2)], [("open", 500, None, None)] * 2),
        ([lease(1_000_500, "a", 1_000_600)], [("expired", 500, 100, None)]),
        (
            [
                lease(1_000_500, "a", 1_000_600),
                {"op": "bury", "at": 1_000_900, "tasks": [[0, 1]], "reason": "out of attempts"},
            ],
            [("expired", 500, 100, None)],
        ),
        (
            [
                lease(1_000_500, "a", 1_000_600),
                {"op": "change", "at": 1_000_900, "tasks": [[0, 1]], "versions": [100], "priority": 1},
            ],
            [("expired", 500, 100, None)],
        ),
        ([lease(1_000_500, "a", 10**13), act("revoke", 1_000_600, "a")], [("revoke", 500, 100, None)]),
        ([act("complete", 1_000_600, "a"), {"op": "lease", "at": 1}, {"op": "what", "at": 1}], []),
    ],
)
def test_how_attempts_end(records: list[dict[str, object]], expected: Told) -> None:
    assert told(lines(OPEN, *records)) == expected


def test_a_real_queue_s_attempts(queue_factory: QueueFactory) -> None:
    clock = ManualClock()
    made = queue_factory(max_attempts=2)
    queue = Queue(made.path, clock=clock)
    queue.insert("a")
    for wait in (5, 7):
        clock.advance(wait)
        (task,) = queue.lease(1)
        clock.advance(0.3)
        ending: Callable[..., None] = task.fail
        ending("no", delay_s=0)
        batch = task.id.partition(".")[0]
        if task.attempt == 1:
            (only,) = attempts_of(batch, records_of(queue.store, batch), clock.now_ms())
            assert (only.outcome, only.leased_at - only.available_at, only.error) == ("fail", 5000, "no")
    assert queue.status().dead == 1


def test_a_number_that_no_column_holds_costs_no_other_row(queue: Queue) -> None:
    insert_in_file(queue, 1)
    insert_in_file(queue, 2)
    queue.lease(2)
    log = min(Path(queue.path).glob("*/movements/*/*"))
    log.write_bytes(re.sub(rb'"pid":\d+', b'"pid":18446744073709551615', log.read_bytes()))
    found = [row for shard in listing.shards(queue.store) for row in views.leases(queue.store, shard)]
    assert len(found) == 2
    assert sum(os.getpid() in row for row in found) == 1
    assert all(abs(value) < 2**63 for row in found for value in row if type(value) is int)


def test_a_batch_that_finishes_while_a_view_is_read_comes_once(queue_factory: QueueFactory) -> None:
    """It is read in its log, and then it is in the history."""
    queue = queue_factory(shards=1)
    queue.insert_many(["a", "b"], batch_tasks=2)
    first, second = queue.lease(2)
    first.complete()
    store = Queue(queue.path).store
    [shard] = listing.shards(store)
    found = views.finished(store, shard)
    ids = [next(found)[0]]
    second.complete()
    assert [*ids, *(row[0] for row in found)] == [first.id]


def test_what_an_attempt_used_is_not_told_of_a_task_that_was_cancelled_since(queue_factory: QueueFactory) -> None:
    queue = queue_factory(shards=1, backoff_s=(0, 0))
    queue.insert_many(["a", "b"], batch_tasks=2)
    for task in queue.lease(2):
        task.used = Used(1500, 2)
        task.complete() if task.payload == "a" else task.fail("no")
    queue.cancel([info.id for info in queue.tasks()])
    [shard] = listing.shards(queue.store)
    rows = {row[1]: (row[4], *row[-2:]) for row in views.finished(queue.store, shard)}
    assert rows == {"completed": (1, 1.5, 2048), "cancelled": (1, None, None)}
