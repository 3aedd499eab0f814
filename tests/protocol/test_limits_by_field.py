"""At most N tasks whose payloads have one value of a field are leased at one instant, over all processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import InvalidArgument, Queue
from fsqueue.clock import ManualClock
from fsqueue.fsck import slot_checks
from fsqueue.protocol import leasing
from fsqueue.storage import slots as slot_files
from fsqueue.storage.store import Store
from tests.support import PATIENCE_S, QueueFactory


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def of(host: object, number: int = 0) -> dict[str, Any]:
    return {"host": host, "n": number}


@pytest.fixture
def limited(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    """A queue of forty tasks of four hosts, of each of which two may be leased at a time."""
    queue = Queue(queue_factory(batch_tasks_max=8).path, clock=clock)
    queue.insert_many(of(host, number) for number in range(10) for host in "abcd")
    assert queue.change_settings(limit={"host": 2}).limit == {"host": 2}
    return queue


@pytest.fixture
def other(limited: Queue, clock: ManualClock) -> Queue:
    return Queue(limited.path, clock=clock)


def hosts(tasks: list[fsqueue.LeasedTask]) -> Counter[Any]:
    return Counter(task.payload["host"] if isinstance(task.payload, dict) else None for task in tasks)


def test_of_each_value_no_more_are_leased_and_others_go_on(limited: Queue, other: Queue) -> None:
    held = limited.lease(3)
    held += other.lease(100)
    assert hosts(held) == dict.fromkeys("abcd", 2)
    assert limited.lease(5) == other.lease() == other.lease(strict=True) == other.lease(order="random") == []
    assert not limited.is_drained()
    [mine] = [task for task in held if task.payload["host"] == "c"][:1]
    mine.complete()
    assert hosts(other.lease(100)) == {"c": 1}
    limited.insert(of("e"))
    assert hosts(limited.lease(100)) == {"e": 1}


def test_a_payload_without_the_field_is_not_limited(limited: Queue, other: Queue) -> None:
    limited.lease(100)
    without = [1, None, "host", ["host"], {}, {"host": None}, {"Host": "a"}, {"in": {"host": "a"}}]
    limited.insert_many(without)
    assert sorted(map(str, (task.payload for task in other.lease(100)))) == sorted(map(str, without))


def test_values_are_the_same_if_their_json_is(limited: Queue) -> None:
    limited.lease(100)
    limited.insert_many([of(1), of(1), of(1), of("1"), of({"x": 1, "y": [2]}), of({"y": [2], "x": 1}), of({"x": 1})])
    got = limited.lease(100)
    assert [task.payload["host"] for task in got].count(1) == 2
    assert len(got) == 6
    limited.insert({"host": {"y": [2], "x": 1}})
    assert limited.lease() == []


def test_several_limits_hold_together(queue_factory: QueueFactory, clock: ManualClock) -> None:
    queue = Queue(queue_factory(batch_tasks_max=8).path, clock=clock)
    queue.insert_many({"host": host, "user": user} for host in "ab" for user in "xyz" for _ in range(5))
    queue.change_settings(limit={"host": 3, "user": 2}, max_leased=5)
    got = [task for _ in range(9) for task in queue.lease(4)]
    assert len(got) <= 5
    assert max(Counter(task.payload["host"] for task in got).values()) <= 3
    assert max(Counter(task.payload["user"] for task in got).values()) <= 2
    assert len(got) >= 4
    queue.complete(got)
    queue.change_settings(max_leased=None)
    clock.advance(1.1)
    got = [task for _ in range(9) for task in queue.lease(4)]
    assert len(got) in (5, 6)
    while got:
        queue.complete(got)
        got = queue.lease(100)
    assert queue.is_drained()


def test_limits_are_changed_and_taken_away(limited: Queue, other: Queue, clock: ManualClock) -> None:
    assert len(limited.lease(100)) == 8
    limited.change_settings(limit={"host": 3})
    clock.advance(1.1)
    assert hosts(other.lease(100)) == dict.fromkeys("abcd", 1)
    limited.change_settings(limit={"n": 1})
    clock.advance(1.1)
    assert limited.settings.limit == {"host": 3, "n": 1}
    assert other.lease(100) == []
    limited.change_settings(limit={"host": None})
    clock.advance(1.1)
    got = other.lease(100)
    assert got
    assert max(Counter(task.payload["n"] for task in got).values()) == 1
    assert limited.change_settings(limit={"n": None}).limit == {}
    clock.advance(1.1)
    assert len(other.lease(100)) == 40 - 12 - len(got)


def test_a_limit_of_one_more_field_counts_what_is_held(limited: Queue, other: Queue, clock: ManualClock) -> None:
    """Slots that were written before have no such digest: so the file is made anew, from the payloads."""
    held = limited.lease(4)
    limited.change_settings(limit={"n": 1})
    clock.advance(1.1)
    taken = {task.payload["n"] for task in held}
    assert not taken & {task.payload["n"] for task in other.lease(100)}


@pytest.mark.parametrize("end", ["complete", "release", "fail", "bury"])
def test_a_place_of_a_value_comes_back_however_its_lease_ends(limited: Queue, other: Queue, end: str) -> None:
    for task in limited.lease(100):
        {
            "complete": task.complete,
            "release": task.release,
            "fail": lambda task=task: task.fail("not today"),
            "bury": lambda task=task: task.bury("never"),
        }[end]()
    assert hosts(other.lease(100)) == dict.fromkeys("abcd", 2)


def test_a_lease_that_has_run_out_gives_its_place(limited: Queue, other: Queue, clock: ManualClock) -> None:
    lost = limited.lease(100, lease_s=10)
    clock.advance(60)
    got = [task for _ in range(40) for task in other.lease(3)]
    assert hosts(got) == dict.fromkeys("abcd", 2)
    for task in lost:
        if task.id not in {one.id for one in got}:
            assert limited.task(task.id).state in ("waiting", "leased")


def test_a_value_behind_many_batches_of_a_full_one_is_found(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look ends after some seconds. The next one remembers what was full, and goes on behind it."""
    queue = Queue(queue_factory(batch_tasks_max=2, shards=2).path, clock=clock)
    queue.insert_many(of("a") for _ in range(60))
    queue.change_settings(limit={"host": 1})
    held = queue.lease(9)
    assert len(held) == 1
    queue.insert_many(of("b") for _ in range(2))
    monkeypatch.setattr(leasing, "FULL_LOOK_S", -1.0)
    other, looks = Queue(queue.path, clock=clock), 0
    while not (got := other.lease(9)):
        looks += 1
        assert looks < 80
    assert hosts(got) == {"b": 1}
    assert looks > 1
    monkeypatch.undo()
    assert other.lease(9) == []
    held[0].complete()
    assert hosts(other.lease(9)) == {"a": 1}


def test_a_full_batch_is_not_opened_again_and_a_replaced_payload_is_found_in_time(
    queue_factory: QueueFactory, clock: ManualClock
) -> None:
    queue = Queue(queue_factory(batch_tasks_max=1, shards=1).path, clock=clock)
    queue.insert_many(of("a", number) for number in range(4))
    queue.change_settings(limit={"host": 1})
    queue.lease()
    assert queue.lease() == []
    waiting = [task for task in queue.peek(9) if task.state == "waiting"]
    assert len(waiting) == 3
    clock.advance(61)
    assert queue.lease() == []


def test_tasks_that_are_named_keep_to_the_limit(limited: Queue, other: Queue) -> None:
    ids = [task.id for task in limited.peek(40)]
    assert hosts(limited.lease_by_id(ids)) == dict.fromkeys("abcd", 2)
    assert other.lease_by_id(ids) == []


def test_the_most_urgent_task_that_has_room_comes_first(queue_factory: QueueFactory, clock: ManualClock) -> None:
    queue = Queue(queue_factory().path, clock=clock)
    for number in range(12):
        queue.insert(of("ab"[number % 2], number), priority=number // 4)
    queue.change_settings(limit={"host": 1})
    [first] = queue.lease(1, strict=True)
    [second] = queue.lease(1, strict=True)
    assert (first.priority, second.priority) == (0, 0)
    assert first.payload["host"] != second.payload["host"]
    order = []
    queue.complete([first, second])
    while got := queue.lease(5, strict=True):
        order += sorted(task.priority for task in got)
        queue.complete(got)
    assert order == sorted(order)


def test_a_loop_goes_through_all_tasks(limited: Queue) -> None:
    done = 0
    for task in limited.poll():
        done += 1
        task.complete()
    assert done == 40


@pytest.mark.parametrize(
    "wrong",
    [{"host": 0}, {"host": -1}, {"host": 1.5}, {"host": "4"}, {"host": True}, {"": 1}, {"a" * 201: 1}, {1: 1}, 4, None,
     dict.fromkeys("abcde", 1), {"host": 10_001}],
)  # fmt: skip
def test_a_limit_that_makes_no_sense_is_refused_and_changes_nothing(limited: Queue, wrong: object) -> None:
    before = (limited.path / "queue.jsonl").read_bytes()
    with pytest.raises(InvalidArgument):
        limited.change_settings(limit=wrong)
    assert (limited.path / "queue.jsonl").read_bytes() == before


def test_fields_that_are_one_too_many_with_those_that_have_a_limit_are_refused(limited: Queue) -> None:
    limited.change_settings(limit=dict.fromkeys("abc", 1))
    with pytest.raises(InvalidArgument, match="At most 4"):
        limited.change_settings(limit={"d": 1})
    assert sorted(limited.settings.limit) == ["a", "b", "c", "host"]


def test_fsck_writes_missing_slots_with_what_they_count_against(limited: Queue, clock: ManualClock) -> None:
    limited.lease(100)
    store = Store(str(limited.path))
    limits = store.queue_state.limits
    assert limits is not None
    path = Path(slot_files.path_of(store, limits.epoch))
    path.write_bytes(path.read_bytes()[:64])
    assert len([*slot_checks.check(store)]) > 0
    store.close()
    assert {one.kind for one in limited.fsck(repair=True)} == {"missing-slot"}
    assert Queue(limited.path, clock=clock).lease(100) == []


# -- crashes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["before the slot", "before the lease", "behind the lease"])
def test_a_worker_that_is_killed_leaves_no_slot_too_few(limited: Queue, clock: ManualClock, step: str) -> None:
    put = slot_files.SlotFile.put

    def killed() -> None:
        def dies(self: slot_files.SlotFile, changes: dict[int, bytes], durably: bool) -> None:
            if step == "before the lease":
                put(self, changes, durably)
            os.kill(os.getpid(), signal.SIGKILL)

        if step != "behind the lease":
            slot_files.SlotFile.put = dies  # type: ignore[assignment,method-assign]
        Queue(limited.path, clock=clock).lease(100, lease_s=10)
        os.kill(os.getpid(), signal.SIGKILL)

    child = multiprocessing.get_context("fork").Process(target=killed)
    child.start()
    child.join(PATIENCE_S)
    assert child.exitcode == -signal.SIGKILL
    if step == "behind the lease":
        assert limited.lease(100) == []
        clock.advance(60)
    got = [task for _ in range(40) for task in limited.lease(3)]
    assert hosts(got) == dict.fromkeys("abcd", 2)


def test_processes_that_are_killed_never_hold_more_than_the_limit(queue_factory: QueueFactory) -> None:
    """Each that holds a task has a file of its own for it, named after the value. A file of a killed one stays."""
    queue = queue_factory(batch_tasks_max=8, lease_s=600)
    queue.insert_many(of("abc"[number % 3], number) for number in range(150))
    queue.change_settings(limit={"host": 2})
    place = queue.path.parent / "held"
    place.mkdir()
    context = multiprocessing.get_context("fork")
    seen = context.SimpleQueue()

    def work(dies_at: int) -> None:
        mine, done, looks = Queue(queue.path), 0, 0
        while done < 40 and looks < 100:
            looks += 1
            for task in mine.lease(2):
                (place / f"{task.payload['host']}-{task.id}").touch()
                seen.put(max(Counter(name[0] for name in os.listdir(place)).values()))
                done += 1
                if done == dies_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                (place / f"{task.payload['host']}-{task.id}").unlink()
                task.complete()

    children = [context.Process(target=work, args=(dies_at,)) for dies_at in (0, 3, 5)]
    for child in children:
        child.start()
    most = 0
    for child in children:
        child.join(PATIENCE_S)
        assert child.exitcode in (0, -signal.SIGKILL)
    while not seen.empty():
        most = max(most, seen.get())
    assert 1 <= most <= 2
