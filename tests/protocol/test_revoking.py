"""The leases of one run of a worker are ended, and no others."""

from __future__ import annotations

import errno
import os
from typing import Any

import pytest

from fsqueue import LeaseLost, LockTimeout, Queue
from fsqueue.clock import MARGIN_MS, ManualClock
from fsqueue.protocol import revoking
from fsqueue.storage import journals
from tests.support import QueueFactory, crashes, drain, hand_on, leftovers

RUN, OTHER = "0123456789abcdef", "fedcba9876543210"


def of_run(queue: Queue, run_id: str | None, clock: ManualClock) -> Queue:
    """A queue that leases as the loop of a worker's run does."""
    found = Queue(queue.path, clock=clock)
    found._leaser.run_id = run_id
    return found


def test_only_the_leases_of_the_run_end(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(8), batch_tasks=4)
    held = {run: of_run(q, run, clock).lease(2) for run in (RUN, OTHER, None)}
    assert revoking.expire_run(q.store, RUN) == (2, [])
    assert {info.id for info in q.tasks("leased")} == {task.id for run in (OTHER, None) for task in held[run]}
    for run in (OTHER, None):
        q.renew(held[run])
    with pytest.raises(LeaseLost):
        q.renew(held[RUN])
    assert revoking.expire_run(q.store, RUN) == (0, []), "a repeat finds nothing"


def test_a_worker_whose_clock_is_vague_may_take_the_tasks_at_once(q: Queue, clock: ManualClock) -> None:
    """It waits for longer than others behind a lease's end. The end is so far in the past that this makes no odds."""
    q.insert("x")
    [task] = of_run(q, RUN, clock).lease()
    assert revoking.expire_run(q.store, RUN) == (1, [])
    vague = ManualClock(clock.now_s)
    vague.margin_ms = MARGIN_MS[1]
    assert [again.id for again in Queue(q.path, clock=vague).lease()] == [task.id]


def test_attempts_are_charged_as_when_a_lease_runs_out(q: Queue, clock: ManualClock) -> None:
    q.insert_many(["alone", "one", "two"], batch_tasks=3)
    run = of_run(q, RUN, clock)
    [alone] = run.lease(1)
    together = run.lease(2)
    assert revoking.expire_run(q.store, RUN)[0] == 3
    attempts = {}
    while tasks := q.lease(1):
        attempts[tasks[0].id] = tasks[0].attempt
    assert attempts == {alone.id: 2} | {task.id: 1 for task in together}


def test_a_lease_that_has_been_renewed_or_followed_by_another_is_told_apart(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(2), batch_tasks=2)
    run = of_run(q, RUN, clock)
    renewed, put_back = run.lease(2)
    renewed.renew()
    put_back.release()
    [again] = of_run(q, OTHER, clock).lease(1)
    assert again.id == put_back.id
    assert revoking.expire_run(q.store, RUN) == (1, [])
    again.renew()


def test_an_identity_that_was_taken_anew_is_in_the_leases_that_follow(q: Queue, clock: ManualClock) -> None:
    """As after a fork: what was kept of the one before is not used any more."""
    q.insert_many(range(2), batch_tasks=2)
    run = of_run(q, RUN, clock)
    run.lease(1)
    run.store._be(run.store.worker | {"pid": 7})
    run.lease(1)
    assert {(info.worker["pid"], info.worker["run"]) for info in q.tasks("leased") if info.worker} == {
        (os.getpid(), RUN), (7, RUN),
    }  # fmt: skip


@pytest.mark.parametrize("worker", [None, [], RUN, {}, {"run": None}, {"run": [RUN]}, {"run": {RUN: RUN}}, {"run": 1}])
def test_records_that_say_anything_are_of_no_run(q: Queue, clock: ManualClock, worker: Any) -> None:
    q.insert("x")
    [task] = q.lease()
    hand_on(q, task, worker)
    assert revoking.expire_run(Queue(q.path, clock=clock).store, RUN) == (0, [])


def test_a_batch_that_stays_locked_is_named_and_those_of_others_are_not_waited_for(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.insert_many(range(3), batch_tasks=1)
    mine = of_run(q, RUN, clock).lease(2)
    [other] = of_run(q, OTHER, clock).lease(1)
    monkeypatch.setattr(journals, "LOCK_TIMEOUT_S", 0.1)
    fs, batches = q.store.fs, [task.id.partition(".")[0] for task in (mine[0], other)]
    locked = [fs.look(q.store.layout.log(batch), os.O_RDWR) for batch in batches]
    assert all(map(fs.try_lock, locked))
    try:
        assert revoking.expire_run(Queue(q.path, clock=clock).store, RUN) == (1, [batches[0]])
    finally:
        for fd in locked:
            fs.close(fd)
    assert revoking.expire_run(q.store, RUN) == (1, [])


@pytest.mark.parametrize("verb", ["run", "all"])
def test_several_locked_batches_are_waited_for_no_longer_than_one(q: Queue, clock: ManualClock, verb: str) -> None:
    q.insert_many(range(4), batch_tasks=1)
    held = of_run(q, RUN, clock).lease(4)
    fs, other = q.store.fs, Queue(q.path, clock=clock)
    locked = [fs.look(q.store.layout.log(task.batch), os.O_RDWR) for task in held[:3]]
    assert all(map(fs.try_lock, locked))
    began = clock.monotonic()
    if verb == "run":
        ended, busy = revoking.expire_run(other.store, RUN)
        assert (ended, sorted(busy)) == (1, sorted(task.batch for task in held[:3]))
    else:
        with pytest.raises(LockTimeout, match=r"Leases released: 1\. But 3 batches stayed locked"):
            other.release_all()
    assert journals.LOCK_TIMEOUT_S <= clock.monotonic() - began < 1.5 * journals.LOCK_TIMEOUT_S, "they share one time"
    for fd in locked:
        fs.close(fd)
    assert {info.id for info in q.tasks("leased")} == {task.id for task in held[:3]}
    assert (revoking.expire_run(other.store, RUN)[0] if verb == "run" else other.release_all()) == 3


def test_idle_workers_are_notified_if_a_lease_was_ended(q: Queue, clock: ManualClock) -> None:
    q.insert("x")
    of_run(q, RUN, clock).lease()
    bell = q.store.doorbell
    before = bell.read()
    revoking.expire_run(q.store, OTHER)
    assert bell.read() == before
    revoking.expire_run(q.store, RUN)
    assert bell.read() != before


def test_idle_workers_are_notified_of_what_was_ended_before_an_error(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.insert_many(range(2), batch_tasks=1)
    of_run(q, RUN, clock).lease(2)
    real, ended = revoking.expire, []

    def failing(*arguments: Any) -> int:
        if ended:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        ended.append(arguments)
        return real(*arguments)

    monkeypatch.setattr(revoking, "expire", failing)
    before = q.store.doorbell.read()
    with pytest.raises(OSError, match="Input/output"):
        revoking.expire_run(q.store, RUN)
    assert q.store.doorbell.read() != before
    assert len(q.lease(2)) == 1


def test_a_death_at_any_step_leaves_the_rest_to_the_next(queue_factory: QueueFactory, clock: ManualClock) -> None:
    def build(number: int) -> Queue:
        q = Queue(queue_factory(f"q{number}").path, clock=clock)
        q.insert_many(range(4), batch_tasks=2)
        run = of_run(q, RUN, clock)
        for _ in range(3):
            run.lease(1)
        return q

    for where, q in crashes(build, lambda worker: revoking.expire_run(worker.store, RUN), clock):
        revoking.expire_run(q.store, RUN)
        q.gc()  # a file's name may promise the later time of before: see docs/design.md, section 4.7
        assert q.status().waiting == 4, where
        assert list(q.fsck()) == [], where
        assert sum(drain(q, clock).values()) == 4, where
        assert leftovers(q) == [], where
