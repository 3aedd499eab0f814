"""A paused queue gives no task, to no verb and no worker, and goes on where it was when it is resumed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import InvalidArgument, Pause, Queue, QueueNotFound
from fsqueue.clock import ManualClock
from fsqueue.format.layout import REASON_CHARS_MAX, pause_record
from fsqueue.protocol.queue_watches import Several, Watch
from fsqueue.protocol.waiting import BELL_S, IdlePoller
from tests.support import QueueFactory


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def worker(queue: Queue, clock: ManualClock) -> Queue:
    """The queue as another process has it open."""
    return Queue(queue.path, clock=clock)


def test_another_process_leases_nothing_a_second_later(queue: Queue, worker: Queue, clock: ManualClock) -> None:
    queue.insert_many(range(8))
    [held] = worker.lease()
    assert queue.pause("the licence server is down")
    clock.advance(1.1)
    assert worker.lease(5) == []
    assert worker.lease(5, strict=True) == worker.lease(5, order="random") == []
    assert fsqueue.lease([worker], 5) == []
    held.complete()
    assert (queue.status().completed, queue.status().waiting) == (1, 7)
    assert queue.resume()
    assert len(worker.lease(8)) == 7


def test_a_strict_lease_knows_of_a_pause_at_once(queue: Queue, worker: Queue) -> None:
    queue.insert_many(range(8))
    worker.lease()
    queue.pause()
    assert worker.lease(5, strict=True) == []
    queue.resume()
    assert len(worker.lease(5, strict=True)) == 5


def test_what_a_pause_says_is_known_to_others(queue: Queue, worker: Queue) -> None:
    assert queue.paused is None
    queue.pause("maintenance")
    worker.status()
    found = worker.paused
    assert isinstance(found, Pause)
    assert (found.reason, sorted(found.by)) == ("maintenance", ["host", "pid", "user"])
    assert found.as_dict()["reason"] == "maintenance"


def test_a_second_pause_changes_nothing_and_neither_does_a_second_resume(queue: Queue) -> None:
    assert queue.pause("first")
    before = (queue.path / "queue.jsonl").read_bytes()
    assert not queue.pause("second")
    assert (queue.path / "queue.jsonl").read_bytes() == before
    assert queue.paused is not None
    assert queue.paused.reason == "first"
    assert queue.resume()
    assert not queue.resume()
    assert queue.paused is None


def test_a_completion_does_not_lease_the_next_task_of_a_paused_queue(queue: Queue, worker: Queue) -> None:
    queue.insert_many(range(3))
    tasks = worker.poll()
    first = next(tasks)
    queue.pause()
    first.complete()
    assert (queue.status().completed, queue.status().leased) == (1, 0)
    tasks.close()


Look = Callable[[int], list[Any]]


@pytest.mark.parametrize("how", ["one queue", "several"])
@pytest.mark.parametrize("rings", [True, False], ids=["notified", "the notification is lost"])
def test_an_idle_worker_goes_on_after_a_pause(
    queue: Queue, worker: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, how: str, rings: bool
) -> None:
    """Also if the process that resumed died before it rang the doorbell."""
    looks: Any = IdlePoller(worker._leaser, None) if how == "one queue" else Several([Watch(worker._leaser, None)])
    for _ in range(3):
        assert looks.look(1) == []
        clock.advance(1.1)
    queue.pause()
    queue.insert("comes while it is paused")
    for _ in range(3):
        assert looks.look(1) == []
        clock.advance(1.1)
    if not rings:
        monkeypatch.setattr(type(queue.store.doorbell), "ring", lambda self: None)
    queue.resume()
    clock.advance(BELL_S[1])
    assert [task.payload for task in looks.look(1)] == ["comes while it is paused"]


def test_an_idle_worker_that_was_notified_in_vain_listens_for_the_end_of_a_pause(
    queue: Queue, worker: Queue, clock: ManualClock
) -> None:
    """Else the resumed queue would wait for its next look, seconds later."""
    poller = IdlePoller(worker._leaser, None)
    for _ in range(3):
        assert poller.look(1) == []
        clock.advance(1.1)
    queue.pause()
    queue.store.doorbell.ring()
    assert (poller.look(1), poller.is_deaf) == ([], True)
    for _ in range(2):
        clock.advance(BELL_S[1])
        assert (poller.look(1), poller.is_deaf) == ([], False)


def test_a_task_that_comes_due_while_the_queue_is_paused_is_leased_afterwards(
    queue: Queue, worker: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(queue.path, clock=clock)
    queue.insert("delayed", delay_s=50)
    poller = IdlePoller(worker._leaser, None)
    for _ in range(3):
        assert poller.look(1) == []
        clock.advance(1.1)
    queue.pause()
    clock.advance(60)
    assert poller.look(1) == []
    monkeypatch.setattr(type(queue.store.doorbell), "ring", lambda self: None)
    queue.resume()
    clock.advance(BELL_S[1])
    assert [task.payload for task in poller.look(1)] == ["delayed"]


def test_a_loop_says_once_that_the_queue_is_paused_and_once_that_it_goes_on(
    queue: Queue, worker: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    queue.insert(1)
    queue.pause("why not")
    clock.advance(1.1)
    with caplog.at_level(logging.WARNING, "fsqueue"):
        for _ in range(3):
            assert worker.lease(wait_s=2) == []
        assert len(caplog.messages) == 1
        assert "is paused since" in caplog.messages[0]
        assert "why not. No task of it is leased until 'fsqueue resume" in caplog.messages[0]
        queue.resume()
        [task] = worker.lease(wait_s=2)
        task.complete()
        assert worker.lease(wait_s=2) == []
    assert caplog.messages[1:] == [f"{queue.path} is resumed: its tasks are leased again."]


def test_a_pause_outlives_a_purge(queue: Queue) -> None:
    queue.pause()
    queue.purge()
    queue.insert(1)
    assert queue.lease() == []
    queue.resume()
    assert len(queue.lease()) == 1


def test_a_pause_of_a_queue_that_was_deleted_is_an_error(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    other = Queue(queue.path)
    queue.delete(foreground=True)
    queue_factory()
    with pytest.raises(QueueNotFound):
        other.pause()
    assert Queue(queue.path).paused is None


@pytest.mark.once
@pytest.mark.parametrize(
    "change",
    [Queue.pause, Queue.resume, lambda mine: mine.change_settings(lease_s=5), lambda mine: mine.insert(1, priority=1)],
    ids=["pause", "resume", "settings", "the first priority"],
)
def test_a_queue_whose_directory_was_moved_away_is_not_changed(
    queue: Queue, tmp_path: Path, change: Callable[[Queue], object]
) -> None:
    """Its process has it open still. On a full disk a queue is deleted so, without the mark that says it."""
    queue.path.rename(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere" / "queue.jsonl").read_bytes()
    with pytest.raises(QueueNotFound):
        change(queue)
    assert (tmp_path / "elsewhere" / "queue.jsonl").read_bytes() == before


@pytest.mark.once
@pytest.mark.parametrize("reason", [5, "x" * 1001])
def test_a_reason_is_a_short_text(queue: Queue, reason: Any) -> None:
    with pytest.raises(InvalidArgument, match="reason must be text"):
        queue.pause(reason)
    assert queue.paused is None


def test_the_end_of_a_pause_is_notified(queue: Queue) -> None:
    queue.pause()
    bell = queue.store.doorbell.read()
    queue.resume()
    assert queue.store.doorbell.read() != bell


@pytest.mark.once
@pytest.mark.parametrize(
    ("line", "text"),
    [
        (b'{"op":"pause","at":1e3}', None),
        (b'{"op":"pause","at":1000000000000000000,"reason":7,"by":"me"}', "since 1e+15"),
        (b'{"op":"pause","at":1000000000000000000,"reason":"why","by":{}}', "since 1e+15: why"),
        (b'{"op":"pause","at":1000000000000000000,"reason":"","by":{"host":"h"}}', "since 1e+15 by ? on h"),
    ],
)
def test_what_another_program_says_of_a_pause(queue: Queue, line: bytes, text: str | None) -> None:
    with (queue.path / "queue.jsonl").open("ab") as file:
        file.write(line + b"\n")
    paused = Queue(queue.path).paused
    assert (None if paused is None else str(paused)) == text


@pytest.mark.once
def test_a_reason_that_another_program_has_written_is_cut(queue: Queue) -> None:
    with (queue.path / "queue.jsonl").open("ab") as file:
        file.write(pause_record("x" * 5000, {}, 1))
    paused = Queue(queue.path).paused
    assert paused is not None
    assert paused.reason == "x" * REASON_CHARS_MAX
