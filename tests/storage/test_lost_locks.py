"""A lock that the file server forgot, an open file that was removed elsewhere: the log is opened anew, and tells."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from fsqueue import LeaseLost, Queue, StorageError
from fsqueue.storage import open_logs
from tests.concurrency.trapped import trapped
from tests.levels import how_many
from tests.support import checkpoints_everywhere, insert_in_file
from tests.waiting import until

QueueFactory = Callable[..., Queue]


@pytest.fixture(autouse=True, params=["whole", "from-a-checkpoint"])
def from_where_logs_are_read(request: pytest.FixtureRequest) -> Iterator[None]:
    """A log that is opened anew is read from its start, or from the checkpoint behind each movement."""
    with checkpoints_everywhere() if request.param == "from-a-checkpoint" else nullcontext():
        yield


CODES = (errno.EIO, errno.ESTALE, errno.EBADF)
STRIDE = how_many(3, 1)
"""In the gate an error comes at each third step."""


class Failing:
    """Fails in the `at`-th step on an open log, before it is done or after; `times` times from then on."""

    def __init__(self, at: int, code: int, done: bool, times: int = 1) -> None:
        self.left, self.code, self.done, self.times = at, code, done, times
        self.armed = False

    def __call__(self, step: str, call: Callable[..., Any], *args: Any) -> Any:
        of_interest = self.armed and step in ("try_lock", "pread", "write", "fsync", "unlock")
        if not of_interest or "/movements/" not in os.readlink(f"/proc/self/fd/{args[0]}"):
            return call(*args)
        self.left -= 1
        if self.left > 0 or self.left <= -self.times:
            return call(*args)
        if self.done:
            call(*args)
        raise OSError(self.code, os.strerror(self.code))


VERBS: dict[str, Callable[[Queue, Any], object]] = {
    "complete": lambda queue, task: task.complete(),
    "complete many": lambda queue, task: queue.complete([task]),
    "renew": lambda queue, task: task.renew(60),
    "release": lambda queue, task: task.release(),
    "fail": lambda queue, task: task.fail("why"),
    "bury": lambda queue, task: task.bury("why"),
    "lease": lambda queue, task: queue.lease(),
}
STATES = {
    "complete": ("completed",),
    "complete many": ("completed",),
    "renew": ("leased",),
    "release": ("waiting", "delayed"),
    "fail": ("waiting", "delayed"),
    "bury": ("dead",),
    "lease": ("leased",),
}


@pytest.mark.parametrize("code", CODES)
@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_finds_out_what_became_of_its_record(
    queue_factory: QueueFactory, verb: str, done: bool, code: int
) -> None:
    for at in range(1 + CODES.index(code) % STRIDE, 60, STRIDE):
        queue = queue_factory(f"{verb}-{at}")
        queue.insert_many(range(4), batch_tasks=4)
        trap = Failing(at, code, done)
        mine = trapped(queue, trap, shared=True)
        [task] = mine.lease(lease_s=30)
        trap.armed = True
        VERBS[verb](mine, task)
        trap.armed = False
        assert queue.task(task.id).state in STATES[verb]
        status = queue.status()
        assert status.inserted == 4
        assert status.leased <= (3 if verb == "lease" else 1)
        mine.close()
        if trap.left > 0:
            break
    else:
        pytest.fail("it never got through")


def test_the_work_loop_goes_on(queue: Queue) -> None:
    """A lease of which the loop does not know runs out while it waits for the end, and the task is seen again.

    On a slow machine a lease may run out that it does know of: then that task is seen again, too.
    """
    for at in range(1, 12):
        queue.insert_many(range(6), batch_tasks=6)
        trap = Failing(at, errno.EIO, done=at % 2 == 0)
        mine = trapped(queue, trap, shared=True)
        trap.armed = True
        seen: set[int] = set()
        for task in mine.poll(lease_s=0.4):
            with task:
                seen.add(task.payload)
        assert seen == {*range(6)}
        mine.close()
    assert queue.status().completed == 66


def test_a_broken_disk_is_an_error(queue: Queue) -> None:
    queue.insert("payload")
    trap = Failing(1, errno.EIO, done=False, times=100)
    mine = trapped(queue, trap, shared=True)
    [task] = mine.lease()
    trap.armed = True
    with pytest.raises(StorageError):
        task.complete()
    with pytest.raises(StorageError):
        mine.renew([task])


def test_a_log_that_is_gone_under_its_worker_is_no_error(tmp_path: Path) -> None:
    """What a client sees when a batch is finished elsewhere, and then the server restarts: its descriptor is stale."""
    queue = Queue.create(tmp_path / "q")
    queue.insert_many(range(2), batch_tasks=2)
    trap = Failing(1, errno.ESTALE, done=False, times=100)
    mine = trapped(queue, trap, shared=True)
    held = mine.lease(2, lease_s=0.2)  # the other loop waits until it has run out, however long that takes
    for task in queue.poll():
        task.complete()
    trap.armed = True
    with pytest.raises(LeaseLost):
        mine.complete(held)
    trap.armed = False
    assert mine.lease() == []


@pytest.mark.parametrize("verb", ["complete", "complete many", "poll"])
@pytest.mark.parametrize("keep_history", [True, False])
def test_a_completion_whose_batch_others_finished_meanwhile_is_no_lost_lease(
    queue_factory: QueueFactory, verb: str, keep_history: bool
) -> None:
    """The record is there, the lock was lost before it was read back: the history tells, or else nobody knows."""
    queue = queue_factory(shards=1, keep_history=keep_history)
    insert_in_file(queue, "x")
    other = Queue(queue.path)
    steps = ["write", "pread"]

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if armed and steps and step == steps[0] and "/movements/" in os.readlink(f"/proc/self/fd/{args[0]}"):
            steps.pop(0)
            if step == "pread":
                mine.store.fs.unlock(args[0])
                assert other.gc().finished == 1
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call(*args)

    armed = False
    mine = trapped(queue, trap)
    task = next(mine.poll()) if verb == "poll" else mine.lease()[0]
    armed = True
    act = VERBS["complete" if verb == "poll" else verb]
    if keep_history:
        act(mine, task)
    else:
        with pytest.raises(StorageError):
            act(mine, task)
    assert steps == []
    assert other.status().completed == 1


@pytest.mark.parametrize("verb", ["release", "fail"])
@pytest.mark.parametrize("then", ["leased", "released", "completed", "finished"])
def test_what_others_do_with_a_task_given_back_makes_no_lost_lease(
    queue_factory: QueueFactory, verb: str, then: str
) -> None:
    """The record is there, the lock was lost before the call returned, and others go on with the task."""
    queue = queue_factory(shards=1, backoff_s=(0, 0))
    queue.insert_many(range(1 if then == "finished" else 2), batch_tasks=2)
    other = Queue(queue.path)
    met: list[str] = []

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if armed and not met and step == "unlock" and "/movements/" in os.readlink(f"/proc/self/fd/{args[0]}"):
            call(*args)
            [again] = other.lease()
            assert again.id == task.id
            if then == "released":
                again.release()
            elif then != "leased":
                again.complete()
            met.append(step)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call(*args)

    armed = False
    mine = trapped(queue, trap)
    [task] = mine.lease()
    armed = True
    VERBS[verb](mine, task)
    assert met
    assert other.status().completed == (then in ("completed", "finished"))


@pytest.mark.parametrize("verb", ["release", "fail", "bury"])
@pytest.mark.parametrize("others", [0, 1])
def test_a_task_that_others_buried_is_a_lost_lease(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, verb: str, others: int
) -> None:
    """The holder was away until its lease ran out; who buried the task did not do what this call wants recorded."""
    monkeypatch.setattr(open_logs, "beside", lambda logs: [])  # the others are another process
    queue = queue_factory(shards=1, max_attempts=1)
    queue.insert_many(range(1 + others), batch_tasks=2)
    trap = Failing(1, errno.ESTALE, done=False)
    mine = trapped(queue, trap, shared=True)
    [task] = mine.lease(lease_s=0.1)  # what follows waits until it has run out

    def is_buried() -> bool:
        queue.lease(2)
        return bool(queue.status().dead)

    until(is_buried, "the end of the lease")
    trap.armed = True
    with pytest.raises(LeaseLost):
        VERBS[verb](mine, task)
    assert trap.left <= 0
