"""At most `max_leased` tasks of a queue are leased at one instant, over all processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import orjson
import pytest

import fsqueue
from fsqueue import InvalidArgument, LeaseLost, Queue, StorageError
from fsqueue.clock import ManualClock
from fsqueue.format import slots
from fsqueue.format.layout import Pause, read_queue_state
from fsqueue.protocol import limiting
from fsqueue.protocol.limiting import SETTLE_S
from fsqueue.storage import listing
from fsqueue.storage import slots as slot_files
from fsqueue.storage.store import Store
from tests.support import PATIENCE_S, QueueFactory


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def limited(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    """A queue of a hundred tasks, of which three may be leased at a time."""
    queue = Queue(queue_factory(batch_tasks_max=16).path, clock=clock)
    queue.insert_many(range(100))
    assert queue.change_settings(max_leased=3).max_leased == 3
    return queue


@pytest.fixture
def other(limited: Queue, clock: ManualClock) -> Queue:
    """The queue as another process has it open."""
    return Queue(limited.path, clock=clock)


def taken(queue: Queue) -> int:
    """How many slots have a record."""
    limits = queue.store.queue_state.limits
    assert limits is not None
    return len([*slots.each(slot_files.read(queue.store, limits.epoch))])


def test_no_more_than_the_limit_are_leased_at_a_time(limited: Queue, other: Queue) -> None:
    held = limited.lease(2)
    assert len(held) == 2
    assert len(other.lease(100)) == 1
    assert limited.lease(5) == other.lease() == other.lease(strict=True) == other.lease(order="random") == []
    assert fsqueue.lease([other], 5) == []
    assert not limited.is_drained()
    held[0].complete()
    assert len(other.lease(5)) == 1
    held[1].release()
    assert len(limited.lease(5)) == 1


@pytest.mark.parametrize("end", ["complete", "release", "fail", "bury"])
def test_a_slot_comes_back_however_its_lease_ends(limited: Queue, other: Queue, end: str) -> None:
    for task in limited.lease(3):
        {
            "complete": task.complete,
            "release": task.release,
            "fail": lambda task=task: task.fail("not today"),
            "bury": lambda task=task: task.bury("never"),
        }[end]()
    assert len(other.lease(9)) == 3


def test_the_slot_of_a_lease_that_has_run_out_comes_back_and_it_cannot_be_renewed(
    limited: Queue, other: Queue, clock: ManualClock
) -> None:
    held = limited.lease(3, lease_s=10)
    clock.advance(9)
    held[0].renew(60)
    assert other.lease(9) == []
    clock.advance(2)
    assert sum(len(other.lease(9)) for _ in range(4)) == 2  # those that ran out together go alone
    behind = ManualClock()
    behind.advance(clock.monotonic() - behind.monotonic() - 8)
    late = Queue(limited.path, clock=behind)
    with pytest.raises(LeaseLost):
        late.attach(held[1].token).renew()
    assert other.lease() == []


def test_a_lease_whose_end_a_clock_far_ahead_has_passed_does_not_hold_again(limited: Queue, clock: ManualClock) -> None:
    """The time of its log is set back afterwards (decision 17). By then its task waits, by a record."""
    held = limited.lease(3, lease_s=600)
    assert len(held) == 3
    ahead = ManualClock()
    ahead.advance(clock.monotonic() - ahead.monotonic() + 86_400)
    early = Queue(limited.path, clock=ahead)
    got = [task for _ in range(6) for task in early.lease(3, lease_s=100_000)]
    assert len(got) == 3
    stamp_logs(limited, clock)
    for task in held:
        with pytest.raises(LeaseLost):
            limited.attach(task.token).renew()
    early.release(got)
    stamp_logs(limited, clock)
    assert sum(len(limited.lease(9)) for _ in range(5)) <= 3


def stamp_logs(queue: Queue, clock: ManualClock) -> None:
    """Have the file server say that all logs were written at the time of a clock."""
    for log in (queue.path / queue.store.layout.logs).rglob("*.jsonl"):
        os.utime(log, (clock.now_s, clock.now_s))


@pytest.mark.parametrize("several", [1, 2])
def test_a_lease_that_ends_by_a_record_counts_as_one_that_runs_out(
    queue_factory: QueueFactory, clock: ManualClock, several: int
) -> None:
    """The attempt is charged if the lease had one task; its task waits again, and is shown so."""
    queue = Queue(queue_factory(batch_tasks_max=1, shards=2, max_attempts=9).path, clock=clock)
    queue.insert_many(range(9))
    queue.change_settings(max_leased=several)
    lost = queue.lease(several, lease_s=10)
    assert len(lost) == several
    clock.advance(60)
    other = Queue(queue.path, clock=clock)
    got = [task for _ in range(4) for task in other.lease(several)]
    assert len(got) == several
    store = Store(str(queue.path))
    states = [listing.read_own_state(store, task.batch) for task in lost]
    ends = [
        (state.attempts[task.index], {move.op for move in queue.history(task.id)})
        for task, state in zip(lost, states, strict=True)
        if state is not None
    ]
    store.close()
    assert any("change" in ops for _, ops in ends)
    assert all(attempts == (several == 1) for attempts, ops in ends if "change" in ops)
    again = next(task for task, (_, ops) in zip(lost, ends, strict=True) if "change" in ops)
    with pytest.raises(LeaseLost):
        again.complete()
    queue.release_all()
    while rest := queue.lease(several):
        queue.complete(rest)
    assert queue.status().completed == 9


def test_a_lease_that_was_held_before_counts(queue_factory: QueueFactory, clock: ManualClock) -> None:
    queue = Queue(queue_factory().path, clock=clock)
    queue.insert_many(range(20))
    before = queue.lease(5)
    queue.change_settings(max_leased=3)
    assert queue.lease() == []
    queue.complete(before[:2])
    assert queue.lease() == []
    before[2].complete()
    assert len(queue.lease(9)) == 1


def test_limits_are_raised_lowered_and_taken_away(limited: Queue, other: Queue, clock: ManualClock) -> None:
    assert len(other.lease(9)) == 3
    limited.change_settings(max_leased=5)
    clock.advance(1.1)
    assert len(other.lease(9)) == 2
    limited.change_settings(max_leased=2)
    clock.advance(1.1)
    assert other.lease(9) == []
    assert limited.change_settings(max_leased=None).max_leased is None
    clock.advance(1.1)
    assert len(other.lease(9)) == 9
    limited.gc()
    assert [*(limited.path / limited.store.layout.base).glob("limits/*")] == []
    limited.change_settings(max_leased=15)
    clock.advance(1.1)
    assert len(other.lease(9)) == 15 - 3 - 2 - 9


def test_each_way_to_lease_keeps_to_the_limit(limited: Queue, other: Queue) -> None:
    ids = [task.id for task in limited.peek(10)]
    assert len(limited.lease_by_id(ids)) == 3
    assert other.lease_by_id(ids) == []
    limited.release_all()
    parts = limited.lease_for([(2, {"host": "a"}), (2, {"host": "b"})])
    assert [len(part) for part in parts] == [2, 1]
    limited.release_all()
    with other.poll(prefetch=10) as tasks:
        assert next(tasks).queue is other
        assert limited.lease() == []


def test_a_loop_goes_through_all_tasks_of_a_limited_queue(limited: Queue) -> None:
    done = []
    for task in limited.poll(prefetch=2):
        done.append(task.payload)
        assert limited.status().leased <= 3
        task.complete()
    assert sorted(done) == list(range(100))
    assert taken(limited) <= 3


def test_tasks_with_priorities_are_leased_in_their_order(queue_factory: QueueFactory, clock: ManualClock) -> None:
    queue = Queue(queue_factory().path, clock=clock)
    for number in range(12):
        queue.insert(number, priority=number % 4)
    queue.change_settings(max_leased=2)
    order = []
    while got := queue.lease(5, strict=True):
        assert len(got) <= 2
        order += [task.priority for task in got]
        queue.complete(got)
    assert order == sorted(order)


def test_a_purge_gives_all_slots_back(limited: Queue, other: Queue, clock: ManualClock) -> None:
    limited.lease(3)
    limited.purge()
    limited.insert_many(range(5))
    clock.advance(1.1)
    assert len(other.lease(9)) == 3


def test_limits_and_a_pause_are_independent(limited: Queue, other: Queue, clock: ManualClock) -> None:
    limited.pause("maintenance")
    limited.change_settings(max_leased=2)
    clock.advance(1.1)
    assert other.lease() == []
    other.status()
    assert isinstance(other.paused, Pause)
    assert other.paused.reason == "maintenance"
    assert limited.resume()
    assert limited.paused is None
    clock.advance(1.1)
    assert len(other.lease(9)) == 2


def test_a_program_that_does_not_know_limits_leases_nothing(limited: Queue) -> None:
    """It sees a pause, which is what it does without the field."""

    def as_seen_by_it() -> Pause | None:
        lines = [orjson.loads(line) for line in (limited.path / "queue.jsonl").read_bytes().splitlines()]
        for line in lines:
            for name in ("limits", "slots", "resumes"):
                line.pop(name, None)
        return read_queue_state(b"".join(orjson.dumps(line) + b"\n" for line in lines), "q").paused

    found = as_seen_by_it()
    assert found is not None
    assert found.reason is not None
    assert "Upgrade fsqueue" in found.reason
    limited.pause("maintenance")
    limited.resume()
    assert as_seen_by_it() is not None
    limited.pause("maintenance")
    limited.change_settings(max_leased=None)
    seen = as_seen_by_it()
    assert seen is not None
    assert seen.reason == "maintenance"
    limited.resume()
    assert as_seen_by_it() is None


@pytest.mark.parametrize("wrong", [0, -1, 10_001, 1.5, "3", True])
def test_a_limit_out_of_range_is_refused_and_changes_nothing(limited: Queue, wrong: object) -> None:
    before = (limited.path / "queue.jsonl").read_bytes()
    with pytest.raises(InvalidArgument, match="max_leased"):
        limited.change_settings(max_leased=wrong)
    assert (limited.path / "queue.jsonl").read_bytes() == before


def test_a_line_with_a_wrong_limit_is_void(limited: Queue, other: Queue, clock: ManualClock) -> None:
    with (limited.path / "queue.jsonl").open("ab") as file:
        for text in ('"limits":{"max_leased":-1},"slots":"0123456789abcdef"', '"limits":{"max_leased":1},"slots":"x"'):
            file.write(b'{"op":"pause","at":1,%s}\n' % text.encode())
    clock.advance(1.1)
    assert len(other.lease(9)) == 3


def test_without_limits_no_file_of_slots_is_made(queue: Queue) -> None:
    queue.insert_many(range(5))
    queue.lease(2)
    assert not [*queue.path.glob("*/limits")]


# -- crashes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["before the slot", "in the slot", "before the lease", "behind the lease"])
def test_a_worker_that_is_killed_leaves_a_slot_too_many_and_never_one_too_few(
    limited: Queue, clock: ManualClock, step: str
) -> None:
    """The next worker gives back a slot whose lease was never recorded. One whose lease was recorded runs out."""
    put = slot_files.SlotFile.put

    def killed() -> None:
        if step == "before the slot":
            slot_files.SlotFile.put = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[method-assign]
        elif step == "in the slot":

            def half(self: slot_files.SlotFile, changes: dict[int, bytes], durably: bool) -> None:
                put(self, {offset: data[:30] for offset, data in changes.items()}, durably)
                os.kill(os.getpid(), signal.SIGKILL)

            slot_files.SlotFile.put = half  # type: ignore[assignment,method-assign]
        elif step == "before the lease":

            def whole(self: slot_files.SlotFile, changes: dict[int, bytes], durably: bool) -> None:
                put(self, changes, durably)
                os.kill(os.getpid(), signal.SIGKILL)

            slot_files.SlotFile.put = whole  # type: ignore[assignment,method-assign]
        Queue(limited.path, clock=clock).lease(3, lease_s=10)
        os.kill(os.getpid(), signal.SIGKILL)

    child = multiprocessing.get_context("fork").Process(target=killed)
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == -signal.SIGKILL
    was_leased = step == "behind the lease"
    written = {"before the lease": (1, 3), "behind the lease": (3,)}  # where a batch has one task, its first lease
    assert taken(limited) in written.get(step, (0,))
    assert len(limited.lease(9, lease_s=10)) == (0 if was_leased else 3)
    clock.advance(11)
    assert sum(len(limited.lease(9)) for _ in range(5)) == 3  # each of those that ran out together goes alone


def test_a_killed_setter_leaves_the_making_of_the_file_to_the_next_lessee(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(queue_factory().path, clock=clock)
    queue.insert_many(range(10))
    queue.lease(1)
    with monkeypatch.context() as patched:
        patched.setattr(limiting, "begin", lambda store: None)
        queue.change_settings(max_leased=3)
    began = clock.monotonic()
    assert len(queue.lease(9)) == 2
    assert clock.monotonic() - began >= SETTLE_S


def test_a_file_of_slots_that_its_maker_did_not_finish_is_made_anew(limited: Queue, other: Queue) -> None:
    limited.lease(2)
    limits = limited.store.queue_state.limits
    assert limits is not None
    path = limited.store.layout.slots(limits.epoch)
    Path(path).write_bytes(bytes(64) + Path(path).read_bytes()[64:128] + b"torn")
    assert len(other.lease(9)) == 1


def test_after_a_boot_the_file_of_slots_is_made_anew(limited: Queue, other: Queue) -> None:
    """A power loss may have taken records of it: on a local disk they are not synced."""
    limited.lease(2)
    limits = limited.store.queue_state.limits
    assert limits is not None
    path = Path(limited.store.layout.slots(limits.epoch))
    path.write_bytes(slots.header("another boot") + bytes(path.stat().st_size - 64))
    assert len(other.lease(9)) == 1


def test_many_processes_never_hold_more_than_the_limit(queue_factory: QueueFactory) -> None:
    """Each that holds a task has a file of its own meanwhile; some are killed while they do."""
    queue = queue_factory(batch_tasks_max=8, lease_s=600)
    queue.insert_many(range(120))
    queue.change_settings(max_leased=3)
    place = queue.path.parent / "held"
    place.mkdir()
    context = multiprocessing.get_context("fork")
    seen = context.Queue()

    def work() -> None:
        mine = Queue(queue.path)
        while not mine.is_drained():
            for task in mine.lease(2):
                mark = place / task.id
                mark.touch()
                seen.put(len(os.listdir(place)))
                mark.unlink()
                task.complete()

    children = [context.Process(target=work) for _ in range(4)]
    for child in children:
        child.start()
    counts = []
    reader = threading.Thread(target=lambda: counts.extend(seen.get(timeout=PATIENCE_S) for _ in range(120)))
    reader.start()
    for child in children:
        child.join(PATIENCE_S)
    reader.join(PATIENCE_S)
    assert max(counts) <= 3
    assert queue.status().completed == 120


@pytest.fixture
def store(limited: Queue) -> Iterator[Store]:
    store = Store(str(limited.path))
    yield store
    store.close()


def test_a_locked_file_of_slots_gives_no_task_and_no_error(
    limited: Queue, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its holder is at work for some system calls, or was stopped within them."""
    limits = store.queue_state.limits
    assert limits is not None
    with slot_files.locked(store, limits.epoch):
        assert limited.lease() == []
    assert len(limited.lease(9)) == 3


def test_a_directory_in_place_of_the_file_of_slots_is_named(limited: Queue, other: Queue) -> None:
    limits = limited.store.queue_state.limits
    assert limits is not None
    path = Path(slot_files.path_of(limited.store, limits.epoch))
    path.unlink()
    path.mkdir()
    with pytest.raises(StorageError) as caught:
        other.lease()
    assert str(path) in str(caught.value)
    assert "fsqueue fsck --repair" in str(caught.value)
    assert all(one.repaired for one in limited.fsck(repair=True))
    assert len(other.lease(9)) == 3
