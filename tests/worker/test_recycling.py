"""Processes of functions are replaced after a number of tasks, or for their memory. No task is lost or blamed."""

from __future__ import annotations

import collections
from typing import Any

import pytest

import fsqueue
from fsqueue import InvalidArgument, Queue, Worker
from fsqueue.worker import Event, child_processes
from tests.support import QueueFactory
from tests.worker import leaks
from tests.worker.support import drained

MIB = 1 << 20


def tasks_of_processes(queue: Queue) -> list[int]:
    return sorted(collections.Counter(info.result for info in queue.tasks("completed")).values())


@pytest.mark.parametrize(("jobs", "every", "prefetch"), [(1, 1, None), (1, 5, None), (2, 5, 100), (2, 7, 3)])
def test_a_process_gets_no_more_tasks_than_that(queue: Queue, jobs: int, every: int, prefetch: int | None) -> None:
    count = 4 * every
    queue.insert_many(range(count))
    events: list[Event] = []
    worker = Worker(queue, leaks.pid, processes=jobs, recycle_after=every, prefetch=prefetch, tell=events.append)
    assert worker.run() == drained(completed=count)
    shares = tasks_of_processes(queue)
    assert max(shares) == every
    assert sum(shares) == count
    if jobs == 1:
        assert shares == [every] * 4
    recycled = [event for event in events if event.kind == "recycled"]
    assert [event.fields for event in recycled] == [{"tasks": every}] * shares.count(every)
    assert not any(event.text for event in recycled)
    assert not [event for event in events if event.kind == "child"]


def test_each_attempt_is_told_apart(queue: Queue, tmp_path: Any) -> None:
    queue.insert_many(range(6))
    assert Worker(queue, leaks.pid, recycle_after=2, keep_output=tmp_path / "kept").run() == drained(completed=6)
    assert tasks_of_processes(queue) == [2, 2, 2]


def test_a_process_that_has_grown_is_replaced(queue: Queue) -> None:
    queue.insert_many([100] * 6)
    events: list[Event] = []
    worker = Worker(queue, leaks.leak, recycle_rss_bytes=300 * MIB, prefetch=1, tell=events.append)
    assert worker.run() == drained(completed=6)
    assert tasks_of_processes(queue) == [3, 3]
    recycled = [event for event in events if event.kind == "recycled"]
    assert [event.fields["tasks"] for event in recycled] == [3, 3]
    assert all(event.fields["bytes"] > 300 * MIB for event in recycled)
    assert not any(event.text for event in recycled)


def test_what_lies_before_it_goes_to_the_next_process(queue: Queue) -> None:
    queue.insert_many([100] * 12)
    assert Worker(queue, leaks.leak, recycle_rss_bytes=300 * MIB, prefetch=12).run() == drained(completed=12)
    # A process may receive another task before its memory is looked at: it does that one, too.
    assert len(tasks_of_processes(queue)) >= 2
    assert queue.status().dead == 0


def test_memory_that_a_task_gave_back_does_not_count(queue: Queue) -> None:
    queue.insert_many([400] * 3)
    assert Worker(queue, leaks.passing, recycle_rss_bytes=300 * MIB).run() == drained(completed=3)
    assert tasks_of_processes(queue) == [3]


def test_a_limit_that_each_process_exceeds_is_told_once(queue: Queue) -> None:
    queue.insert_many(range(3))
    events: list[Event] = []
    assert Worker(queue, leaks.pid, recycle_rss_bytes=1, prefetch=1, tell=events.append).run() == drained(completed=3)
    assert tasks_of_processes(queue) == [1, 1, 1]
    [text] = [event.text for event in events if event.text]
    assert "after its first task, more than recycle_rss_bytes (--recycle-rss)" in text
    assert "Allow more" in text


def test_one_that_does_not_end_is_killed(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child_processes, "CLOSE_S", 0.2)
    queue.insert_many(range(4))
    assert Worker(queue, leaks.stay, recycle_after=2).run() == drained(completed=4)
    assert tasks_of_processes(queue) == [2, 2]


def test_one_that_dies_takes_its_own_task_only(queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=1)
    queue.insert_many(range(12))
    report = Worker(queue, leaks.die_at_seven, recycle_after=5).run()
    assert (report.completed, report.failed) == (11, 1)
    assert [letter.payload for letter in queue.dead()] == [7]


@pytest.mark.parametrize("option", ["recycle_after", "recycle_rss_bytes"])
@pytest.mark.parametrize("work", [{"command": ["true"]}, {"handler": leaks.pid, "threads": 2}])
def test_it_is_for_processes_of_functions(queue: Queue, option: str, work: dict[str, Any]) -> None:
    with pytest.raises(InvalidArgument, match=r"recycle_after \(--recycle-after\).*leave them out"):
        Worker(queue, **work, **{option: 5})


@pytest.mark.parametrize("option", ["recycle_after", "recycle_rss_bytes"])
@pytest.mark.parametrize("value", [0, -1, 1.5, "5", True])
def test_what_is_no_number_is_refused(queue: Queue, option: str, value: Any) -> None:
    with pytest.raises(InvalidArgument, match=option):
        fsqueue.Worker(queue, leaks.pid, **{option: value})
