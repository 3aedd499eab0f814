"""An attempt is charged for an execution, and an execution settles the lease that it was begun under."""

from __future__ import annotations

import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue, Worker
from fsqueue.format.models import Used
from fsqueue.leased_task import LeasedTask
from fsqueue.worker import feeding, loop, settling
from fsqueue.worker.jobs import Job
from fsqueue.worker.settling import Outcome, adopt, failure
from tests.support import QueueFactory
from tests.waiting import PATIENCE_S, until
from tests.worker.support import in_background

pytestmark = pytest.mark.once


class Handler:
    """Fails each task, and keeps count."""

    def __init__(self) -> None:
        self.executed: Counter[Any] = Counter()

    def __call__(self, payload: Any) -> None:
        self.executed[payload] += 1
        raise ValueError(payload)


def charged(queue: Queue) -> Counter[tuple[str, str]]:
    """How many failures each dead task has been charged with for each of its leases."""
    moves = [(letter.id, move) for letter in queue.dead() for move in queue.history(letter.id)]
    return Counter((task, str(move.lease)) for task, move in moves if move.op in ("fail", "bury"))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("backoff_s", [(0, 0), (0.001, 0.001)])
def test_every_attempt_is_executed_however_slow_syncs_are(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, backoff_s: tuple[float, float]
) -> None:
    """What fails is available again before the loop hears that its failure was told."""
    monkeypatch.setattr(feeding, "DRAIN_CHECK_S", 0.1)
    queue = queue_factory(max_attempts=3, backoff_s=backoff_s, durability="strict")
    queue.insert_many(range(12))
    sync = queue.store.fs.fsync

    def slow_sync(fd: int) -> None:
        time.sleep(0.015)
        sync(fd)

    queue.store.fs.fsync = slow_sync
    handler = Handler()
    report = Worker(queue, handler, threads=2, stop_after_failures=1000).run()
    assert handler.executed == dict.fromkeys(range(12), 3)
    assert (report.failed, report.lost, queue.status().dead) == (36, 0, 12)
    assert (len(charged(queue)), set(charged(queue).values())) == (36, {1})  # each lease once


def test_a_failure_that_was_told_is_not_told_again_of_the_next_lease(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forced: the reporter reports the failure only when the loop has the task again."""
    again = threading.Event()
    fed, tell = loop.Loop._fed, settling._tell

    def fed_again(self: loop.Loop, news: Any, *feeder: Any) -> None:
        fed(self, news, *feeder)
        if any(task.attempt == 2 for task in news.tasks):
            again.set()

    def told_late(queue: Queue, verb: Any, delay_s: float | None, mine: list[Outcome]) -> Any:
        answer = tell(queue, verb, delay_s, mine)
        if verb == "fail" and mine[0].task.attempt == 1:
            assert again.wait(PATIENCE_S)
        return answer

    monkeypatch.setattr(loop.Loop, "_fed", fed_again)
    monkeypatch.setattr(settling, "_tell", told_late)
    queue = queue_factory(max_attempts=2, backoff_s=(0, 0))
    queue.insert("x")
    handler = Handler()
    Worker(queue, handler, threads=1).run()
    assert again.is_set()
    assert handler.executed["x"] == 2
    assert queue.status().dead == 1


def test_work_that_fails_under_a_lease_that_ran_out_charges_no_other(
    queue_factory: QueueFactory, tmp_path: Path
) -> None:
    """The worker itself has the task again, and goes on with the work at hand; then that fails."""
    queue = queue_factory(max_attempts=1, lease_s=600)
    queue.insert("x")
    handler, began, go = Handler(), threading.Event(), threading.Event()

    def fails_late(payload: Any) -> None:
        began.set()
        assert go.wait(PATIENCE_S)
        handler(payload)

    worker = Worker(queue, fails_late, threads=2)
    thread, reports = in_background(worker)
    assert began.wait(PATIENCE_S)
    [job] = worker._loop._executor.at_work()
    first = job.task.token
    queue.release_all()  # as if the lease had run out
    until(lambda: job.task.token != first, "the second lease")
    go.set()
    thread.join(PATIENCE_S)
    assert handler.executed["x"] == 2
    assert (reports[0].failed, reports[0].lost, queue.status().dead) == (1, 1, 1)
    [(_, lease)] = charged(queue)
    assert lease not in first
    assert lease not in job.task.token  # but that of the second execution


# -- what a new lease of the same task means


@pytest.fixture
def leases(queue_factory: QueueFactory) -> list[LeasedTask]:
    """Two leases of one task."""
    queue = queue_factory()
    queue.insert("x")
    found = []
    for _ in range(2):
        found += queue.lease()
        queue.release_all()
    return found


def test_a_failed_task_is_new(leases: list[LeasedTask]) -> None:
    old, again = leases
    told = Outcome(old, "fail", "no")
    assert adopt([again], [], [told]) == ([again], [])
    assert told.begun


@pytest.mark.parametrize("verb", ["complete", "bury"])
def test_a_task_that_is_done_is_done_under_the_new_lease(leases: list[LeasedTask], verb: Any) -> None:
    old, again = leases
    old.took_s, old.used = 1.5, Used(20, 300)
    done = Outcome(old, verb, "no", result=7)
    earlier = Outcome(old, "fail", "no")
    new, [outcome] = adopt([again], [], [done, earlier])
    assert new == []
    assert (outcome.task, outcome.verb, outcome.result, outcome.begun) == (again, verb, 7, True)
    assert (again.took_s, again.used) == (1.5, Used(20, 300)), "what was measured is told with it"
    assert not done.begun


def test_a_job_at_work_goes_on_under_the_new_lease_and_remembers_its_own(leases: list[LeasedTask]) -> None:
    old, again = leases
    job = Job(old)
    assert adopt([again], [job], []) == ([], [])
    assert (job.task, job.begun_under) == (again, old)
    assert failure(job, "fail", "no") == (Outcome(old, "fail", "no"), [Outcome(again, "release", begun=False)])
    assert failure(job, "bury", "no") == (Outcome(again, "bury", "no"), [])


@pytest.mark.parametrize("max_attempts", [None, 2])
def test_what_was_measured_is_told_with_the_lease_that_the_work_was_begun_under(
    queue_factory: QueueFactory, leases: list[LeasedTask], max_attempts: int | None
) -> None:
    """The new lease is put back: nothing was done under it. It is no retry either."""
    old, again = leases
    old.attempt, again.attempt = 1, 2
    its_loop = Worker(queue_factory("other"), Handler(), threads=1, max_attempts=max_attempts)._loop
    job = Job(old)
    job.task, job.used = again, Used(20, 300)
    its_loop.done(job, "fail", "no", 1.5)
    [failed], [put_back] = its_loop._pending.left(), its_loop._outbox
    assert (failed.verb, failed.task, failed.task.took_s, failed.task.used) == ("fail", old, 1.5, Used(20, 300))
    assert (put_back.task, put_back.task.took_s, put_back.task.used) == (again, 0.0, None)
