"""At most so many tasks of a queue are leased in a time, over all processes."""

from __future__ import annotations

import math
import multiprocessing
import os
import signal
from collections import Counter
from pathlib import Path

import pytest

import fsqueue
from fsqueue import InvalidArgument, Queue
from fsqueue.clock import ManualClock
from fsqueue.format import lease_rates, slots
from fsqueue.protocol import limiting, waiting
from fsqueue.storage import slots as slot_files
from tests.support import PATIENCE_S, QueueFactory


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def rated(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    """A queue of a hundred tasks, of which four may be leased in a second."""
    queue = Queue(queue_factory(batch_tasks_max=16, lease_s=1e6).path, clock=clock)
    queue.insert_many(range(100))
    assert queue.change_settings(rate="4/s").rate == "4/s"
    return queue


@pytest.fixture
def other(rated: Queue, clock: ManualClock) -> Queue:
    """The queue as another process has it open."""
    return Queue(rated.path, clock=clock)


def slot_file(queue: Queue) -> Path:
    limits = queue.store.queue_state.limits
    assert limits is not None
    return Path(slot_files.path_of(queue.store, limits.epoch))


def test_no_more_than_the_rate_are_leased(rated: Queue, other: Queue, clock: ManualClock) -> None:
    assert len(rated.lease(9)) == 1  # a rate begins with one
    assert rated.lease(9) == other.lease() == other.lease(strict=True) == other.lease(order="random") == []
    assert fsqueue.lease([other], 5) == []
    clock.advance(0.5)
    assert len(other.lease(9)) == 2
    assert rated.lease() == []
    clock.advance(3600)
    assert len(rated.lease(9)) == 5  # those of one second, and one
    assert other.lease() == []
    assert not rated.is_drained()


def test_it_holds_over_a_minute_however_tasks_are_leased(rated: Queue, other: Queue, clock: ManualClock) -> None:
    rated.change_settings(rate="60/m")
    clock.advance(1000)
    begun = 0
    for step in range(600):
        clock.advance(0.1)
        begun += len((rated if step % 3 else other).lease(1 + step % 4))
    assert 60 <= begun <= 62


def test_a_task_that_is_named_takes_a_token_too(rated: Queue, clock: ManualClock) -> None:
    ids = [task.id for task in rated.peek(9)]
    assert len(rated.lease_by_id(ids)) == 1
    assert rated.lease_by_id(ids) == []


def test_each_attempt_takes_a_token_and_its_end_gives_none_back(rated: Queue, clock: ManualClock) -> None:
    clock.advance(60)
    assert len(rated.lease(9)) == 1
    clock.advance(60)
    for task in rated.lease(9):
        task.release()
    assert rated.lease(9) == []
    clock.advance(0.26)
    assert len(rated.lease(9)) == 1


def test_no_lease_has_a_slot_where_there_is_a_rate_alone(rated: Queue, clock: ManualClock) -> None:
    assert len(rated.lease(9)) == 1
    clock.advance(60)
    assert len(rated.lease(9)) == 5
    assert slot_file(rated).stat().st_size == slots.RECORD_BYTES
    assert [*rated.fsck()] == []


def test_a_limit_beside_it_counts_what_was_leased_before(rated: Queue, other: Queue, clock: ManualClock) -> None:
    held = rated.lease(9)
    clock.advance(60)
    held += rated.lease(9)
    assert len(held) == 6
    rated.change_settings(max_leased=7)
    clock.advance(60)
    assert len(other.lease(9)) == 1
    assert other.lease(9) == []
    other.complete(held)
    clock.advance(60)
    assert len(other.lease(9)) == 5
    assert rated.change_settings(max_leased=None).rate == "4/s"
    clock.advance(60)
    assert len(other.lease(9)) == 5
    rated.change_settings(max_leased=8)
    clock.advance(60)
    assert other.lease(9) == []  # eleven are held, also those that were leased while there was no limit


def test_a_rate_beside_a_limit_by_a_field(queue_factory: QueueFactory, clock: ManualClock) -> None:
    queue = Queue(queue_factory().path, clock=clock)
    queue.insert_many([{"host": host, "n": n} for n in range(9) for host in "ab"])
    queue.change_settings(rate="4/s", limit={"host": 2})
    got = queue.lease(9)
    assert len(got) == 1
    clock.advance(60)
    got += [task for _ in range(4) for task in queue.lease(9)]
    assert Counter(task.payload["host"] for task in got) == {"a": 2, "b": 2}
    queue.complete(got)
    assert len(queue.lease(9)) == 2  # five tokens, of which three were taken


def test_a_rate_is_raised_lowered_and_taken_away(rated: Queue, other: Queue, clock: ManualClock) -> None:
    assert len(rated.lease()) == 1
    assert rated.change_settings(rate="1/h").rate == "1/h"
    clock.advance(1800)
    assert other.lease(9) == []
    clock.advance(1801)
    assert len(other.lease(9)) == 1
    rated.change_settings(rate="600/m")
    clock.advance(1.2)
    assert len(other.lease(99)) == 11
    assert rated.change_settings(rate=None).rate is None
    clock.advance(1.2)
    assert sum(len(other.lease(99)) for _ in range(3)) == 100 - 13
    rated.gc()
    assert not slot_names(rated)


def slot_names(queue: Queue) -> list[str]:
    """The names of all files of slots."""
    return os.listdir(queue.store.layout.limits)


@pytest.mark.parametrize(
    "rate", ["", "5", "5/d", "0/s", "-1/s", "10001/s", "1e3/s", "0.5/h/s", 5, True, "1/s\n", "٣/s"]
)
def test_a_rate_that_is_none_is_refused(rated: Queue, rate: object) -> None:
    with pytest.raises(InvalidArgument, match="rate must be a number of leases per second, minute or hour"):
        rated.change_settings(rate=rate)
    assert rated.settings.rate == "4/s"


@pytest.mark.parametrize(("rate", "kept"), [("5.0/s", "5/s"), ("0.50/h", "0.5/h"), ("030/m", "30/m")])
def test_a_rate_is_shown_in_one_way(rated: Queue, rate: str, kept: str) -> None:
    assert rated.change_settings(rate=rate).rate == kept
    assert Queue(rated.path).settings.rate == kept


def test_a_line_with_a_wrong_rate_is_void(rated: Queue) -> None:
    with open(rated.path / "queue.jsonl", "ab") as file:
        file.write(b'{"op":"pause","at":1,"by":{},"slots":"0123456789abcdef","limits":{"rate":"fast"}}\n')
    again = Queue(rated.path)
    assert again.settings.rate == "4/s"
    assert again.paused is None


def test_a_torn_record_of_the_bucket_gives_one_token(rated: Queue, other: Queue, clock: ManualClock) -> None:
    assert len(rated.lease(9)) == 1
    clock.advance(60)
    assert len(rated.lease(9)) == 5
    with open(slot_file(rated), "r+b") as file:
        file.seek(lease_rates.RECORD_AT + 5)
        file.write(b"\xff\xff\xff")
    late = Queue(rated.path, clock=clock)
    assert len(late.lease(9)) == 1
    clock.advance(0.24)
    assert late.lease(9) == other.lease(9) == []
    clock.advance(0.02)
    assert len(other.lease(9)) == 1


def test_clocks_that_differ_lease_no_more_together(rated: Queue, clock: ManualClock) -> None:
    rated.change_settings(rate="1/s")
    ahead = ManualClock()
    ahead.advance(clock.monotonic() - ahead.monotonic() + 50)
    early = Queue(rated.path, clock=ahead)
    begun = 0
    for _ in range(600):
        clock.advance(0.1)
        ahead.advance(0.1)
        begun += len(rated.lease(9)) + len(early.lease(9))
    assert 60 <= begun <= 62


def test_a_clock_far_ahead_makes_tokens_once_and_holds_nothing_up(
    rated: Queue, other: Queue, clock: ManualClock
) -> None:
    assert len(rated.lease()) == 1
    ahead = ManualClock()
    ahead.advance(clock.monotonic() - ahead.monotonic() + 86_400)
    assert len(Queue(rated.path, clock=ahead).lease(99)) == 5
    begun = 0
    for _ in range(100):
        clock.advance(0.1)
        begun += len(rated.lease(9)) + len(other.lease(9))
    assert 38 <= begun <= 41


def test_a_purge_keeps_the_rate(rated: Queue, clock: ManualClock) -> None:
    assert len(rated.lease(9)) == 1
    rated.purge()
    rated.insert_many(range(50))
    clock.advance(60)
    assert 1 <= len(rated.lease(9)) <= 5
    clock.advance(0.3)
    assert len(rated.lease(9)) <= 1


def test_a_locked_file_gives_no_task_and_no_error(
    rated: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(rated.lease(9)) == 1
    clock.advance(60)
    holder = Queue(rated.path)
    limits = holder.store.queue_state.limits
    assert limits is not None
    with slot_files.locked(holder.store, limits.epoch):
        assert rated.lease(9) == []
    assert len(rated.lease(9)) == 5


def test_a_worker_that_waits_asks_again_when_it_is_time(rated: Queue, clock: ManualClock) -> None:
    poller = waiting.IdlePoller(rated._leaser, None)
    assert len(poller.look(9)) == 1
    assert poller.look(1) == []
    assert 0.249 <= poller.due_s() <= 0.251 + limiting.LATER_S
    clock.advance(0.2)
    assert 0.049 <= poller.due_s() <= 0.051 + limiting.LATER_S
    clock.advance(0.1)
    assert len(poller.look(1)) == 1
    assert rated._leaser.held_up_s() == math.inf


def test_asking_reads_and_locks_nothing_while_it_is_not_time(
    rated: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(rated.lease(9)) == 1
    for name in ("read", "locked"):
        monkeypatch.setattr(slot_files, name, lambda *_, name=name: pytest.fail(f"the file is {name}"))
    assert rated.lease(9) == []
    clock.advance(0.2)
    assert rated.lease() == []
    clock.advance(0.06)
    with pytest.raises(pytest.fail.Exception):
        rated.lease()


def test_a_rate_is_told_of_once(rated: Queue, caplog: pytest.LogCaptureFixture) -> None:
    assert len(rated.lease(9)) == 1
    for _ in range(2):
        assert rated.lease() == []
        waiting.tell_pauses([rated.store])
    assert [record.getMessage() for record in caplog.records] == [
        f"All workers together lease tasks of {rated.path} as its limits allow (rate=4/s). The next one is leased when "
        "it is time."
    ]


# -- processes ---------------------------------------------------------------------------------------


def _lease_and_die(path: str, writes: bool) -> None:
    """Lease, and be killed in front of the write of the record, or behind it."""
    put = slot_files.SlotFile.put

    def put_and_die(self: slot_files.SlotFile, changes: dict[int, bytes], durably: bool) -> None:
        if writes:
            put(self, changes, durably)
        os.kill(os.getpid(), signal.SIGKILL)

    slot_files.SlotFile.put = put_and_die  # type: ignore[method-assign,assignment]
    Queue(path).lease(3)


@pytest.mark.parametrize("writes", [False, True])
def test_a_process_that_is_killed_costs_its_tokens_and_gives_none(queue_factory: QueueFactory, writes: bool) -> None:
    queue = queue_factory()
    queue.insert_many(range(20))
    queue.change_settings(rate="3/h")
    child = multiprocessing.get_context("fork").Process(target=_lease_and_die, args=(str(queue.path), writes))
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == -signal.SIGKILL
    assert queue.status().leased == 0
    assert len(queue.lease(9)) == (0 if writes else 1)
    assert queue.lease(9) == []


def test_a_rate_is_used_up_only_while_workers_wait_for_it(rated: Queue, clock: ManualClock) -> None:
    """A bucket that is not empty holds no task back. A worker may ask up to half a second after a token was there."""
    assert not limiting.is_rate_used_up(rated.store), "nothing was leased yet"
    assert len(rated.lease(20)) == 1
    assert limiting.is_rate_used_up(rated.store)
    clock.advance(0.25 + limiting.LATER_S - 0.01)
    assert limiting.is_rate_used_up(rated.store)
    clock.advance(0.02)
    assert not limiting.is_rate_used_up(rated.store)
    rated.change_settings(rate=None)
    assert not limiting.is_rate_used_up(rated.store)
