"""Tasks are leased by their ids, and no others."""

from __future__ import annotations

import errno
import logging
from typing import Any

import pytest

from fsqueue import InvalidArgument, LeaseLost, Queue, Task
from fsqueue.clock import ManualClock
from fsqueue.format import names
from fsqueue.protocol import leasing, leasing_by_id
from fsqueue.storage.locked_batch import LockedBatch
from tests.support import QueueFactory, crashes, drain, leftovers, task_file_names

NOWHERE = f"{'0' * 32}.0"


def ids(q: Queue) -> dict[Any, str]:
    """The unfinished tasks' ids, by payload."""
    return {info.payload: info.id for info in q.tasks()}


def payloads(tasks: Any) -> list[Any]:
    return sorted(task.payload for task in tasks)


@pytest.mark.parametrize("batch_tasks", [1, 3, 100])
def test_the_named_tasks_and_no_others_are_leased(q: Queue, q2: Queue, batch_tasks: int) -> None:
    q.insert_many(range(10), batch_tasks=batch_tasks)
    of = ids(q)
    got = q.lease_by_id([of[7], of[2], of[8], of[2]])
    assert payloads(got) == [2, 7, 8]
    assert {task.id: task.attempt for task in got} == {of[payload]: 1 for payload in (2, 7, 8)}
    assert payloads(q.tasks("leased")) == [2, 7, 8]
    assert payloads(q2.lease(10)) == [0, 1, 3, 4, 5, 6, 9]
    q.complete(got)
    assert q.status().completed == 3


@pytest.mark.batched
def test_a_task_that_was_inserted_alone_is_leased(q: Queue, q2: Queue) -> None:
    refs = [q2.insert(payload, key=str(payload)) for payload in "abc"]
    [task] = q.lease_by_id(refs[1].id, lease_s=5)
    assert (task.payload, task.key, task.lease_until) == ("b", "b", q.store.clock.now_s + 5)
    task.complete()
    assert payloads(q.lease(3)) == ["a", "c"]


def test_what_is_not_available_is_left_out(q: Queue, q2: Queue, clock: ManualClock) -> None:
    q.insert_many(["held", "done", "buried", "free"])
    of = ids(q) | {"later": q.insert("later", delay_s=100).id}
    [done] = q.lease_by_id(of["done"])
    done.complete()
    [buried] = q.lease_by_id(of["buried"])
    buried.bury("no")
    [held] = q2.lease_by_id(of["held"], lease_s=50)
    behind = f"{of['free'].partition('.')[0]}.1000"
    assert payloads(q.lease_by_id([*of.values(), NOWHERE, behind])) == ["free"]
    assert q.lease_by_id(NOWHERE) == q.lease_by_id([]) == []
    clock.advance(60)
    [again] = q.lease_by_id(of["held"])
    assert again.attempt == 2
    with pytest.raises(LeaseLost):
        held.complete()
    clock.advance(50)
    assert payloads(q.lease_by_id(of["later"])) == ["later"]


def test_what_failed_waits_for_its_time(queue_factory: QueueFactory, clock: ManualClock) -> None:
    q = Queue(queue_factory(backoff_s=(10, 10)).path, clock=clock)
    ref = q.insert(1)
    q.lease_by_id(ref.id)[0].fail("no")
    assert q.lease_by_id(ref.id) == []
    clock.advance(20)
    assert [task.attempt for task in q.lease_by_id(ref.id)] == [2]


def test_a_task_out_of_attempts_is_given_up_in_place_of_leased(queue_factory: QueueFactory, clock: ManualClock) -> None:
    q = Queue(queue_factory(max_attempts=1).path, clock=clock)
    q.insert_many([*"ab"])
    of = ids(q)
    q.lease_by_id(of["a"], lease_s=5)
    clock.advance(10)
    assert q.lease_by_id(of["a"]) == []
    assert [letter.payload for letter in q.dead()] == ["a"]
    assert payloads(q.lease_by_id([of["b"]])) == ["b"]


@pytest.mark.batched
def test_a_task_that_must_go_alone_is_leased_if_it_is_named_alone(q: Queue, q2: Queue, clock: ManualClock) -> None:
    q.insert_many(range(3))
    q2.lease(2, lease_s=5)
    of = ids(q)
    clock.advance(10)
    assert payloads(q.lease_by_id(of.values())) == [2]
    [task] = q.lease_by_id(of[0])
    assert task.solo


def test_several_of_one_call_must_go_alone_when_their_worker_has_died(q: Queue, q2: Queue, clock: ManualClock) -> None:
    q.insert_many(range(3), batch_tasks=1)
    q.lease_by_id(ids(q).values(), lease_s=5)
    clock.advance(10)
    assert [len(q2.lease(3)) for _ in range(3)] == [1, 1, 1]


@pytest.mark.batched
def test_priorities_do_not_matter_and_what_is_left_keeps_its_order(q: Queue, q2: Queue) -> None:
    q.insert_many(Task(payload, priority=payload) for payload in range(6))
    of = ids(q)
    assert payloads(q.lease_by_id([of[0], of[5]])) == [0, 5]
    assert [q2.lease()[0].payload for _ in range(4)] == [1, 2, 3, 4]


@pytest.mark.batched
def test_a_batch_without_another_task_keeps_its_priority_in_its_name(
    q: Queue, queue: Queue, clock: ManualClock
) -> None:
    """Otherwise a lessee would look into others first once the leases run out."""
    q.insert_many([Task(n, priority=1 + n) for n in range(200)], batch_tasks=200)
    [before] = task_file_names(q)
    q.lease_by_id(ids(q).values(), lease_s=5)
    [after] = task_file_names(q)
    assert after.available_at > before.available_at
    assert after.priority == before.priority is not None
    clock.advance(10)
    assert payloads(Queue(queue.path, clock=clock).lease(up_to=1)) == [0]


def test_in_a_paused_queue_none_is_leased(q: Queue, q2: Queue) -> None:
    ref = q.insert(1)
    q2.pause()
    assert q.lease_by_id(ref.id) == []
    q2.resume()
    assert payloads(q.lease_by_id(ref.id)) == [1]


def test_after_a_purge_the_ids_mean_nothing(q: Queue, q2: Queue) -> None:
    ref = q.insert(1)
    q2.purge()
    assert q.lease_by_id(ref.id) == []


@pytest.mark.parametrize("seconds", [0.5, 100])
def test_a_locked_batch_is_waited_for(
    q: Queue, q2: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    seconds: float,
) -> None:  # fmt: skip
    """Not for ever: it is passed by, with a warning."""
    q.insert_many(range(4), batch_tasks=2)
    of, began, real = ids(q), clock.monotonic(), clock.sleep
    locked = LockedBatch(q2.store, names.parse_task_id(of[0])[0], create=True)
    locked.__enter__()

    def sleep(pause_s: float) -> None:
        real(pause_s)
        if clock.monotonic() - began >= seconds and locked.log.fd >= 0:
            locked.unlock()

    monkeypatch.setattr(clock, "sleep", sleep)
    with caplog.at_level(logging.WARNING):
        got = q.lease_by_id([of[0], of[2]])
    assert payloads(got) == ([0, 2] if seconds < leasing.BUSY_WAIT_S else [2])
    assert ("stayed locked" in caplog.text) == (seconds > leasing.BUSY_WAIT_S)
    locked.__exit__(None, None, None)


def test_what_was_leased_before_an_error_is_put_back(q: Queue) -> None:
    """No caller would know of it."""
    q.insert_many(range(4), batch_tasks=2)
    of, real, tries = ids(q), leasing_by_id.NamedLeaser._from_head, []

    def from_head(self: Any, *given: Any) -> Any:
        tries.append(given)
        if len(tries) == 2:
            raise OSError(errno.ENOSPC, "no room")
        return real(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leasing_by_id.NamedLeaser, "_from_head", from_head)
        with pytest.raises(Exception, match="room"):
            q.lease_by_id(of.values())
    assert q.status().waiting == 4


@pytest.mark.parametrize("ids", [None, 5, "x", ["x"], [None], f"{'0' * 32}", "\ud800"])
def test_what_is_no_id_is_refused(q: Queue, ids: Any) -> None:
    with pytest.raises(InvalidArgument):
        q.lease_by_id(ids)


def test_a_death_at_any_step_leaves_each_task_to_one_worker(queue_factory: QueueFactory, clock: ManualClock) -> None:
    """The lease runs out, or was not recorded; the file's name and the log agree with that in the end."""

    def build(number: int) -> Queue:
        q = Queue(queue_factory(f"q{number}").path, clock=clock)
        q.insert_many(range(3), batch_tasks=2)
        return q

    def act(worker: Queue) -> object:
        return worker.lease_by_id([task_id for payload, task_id in ids(worker).items() if payload != 1])

    for where, q in crashes(build, act, clock):
        assert q.status().inserted == 3, where
        assert sum(drain(q, clock).values()) == 3, where
        assert list(q.fsck()) == [], where
        assert leftovers(q) == [], where
