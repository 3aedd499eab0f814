"""A disk that is full at any step of any verb: a clear error, nothing lost, and on it goes when there is room."""

from __future__ import annotations

import errno

import pytest

from fsqueue import FsqueueError, Queue, StorageError, StorageFull, Task
from tests.concurrency.trapped import FullFrom, trapped
from tests.levels import how_many
from tests.support import QueueFactory
from tests.verb_calls import VERBS, Verb, assert_nothing_lost, check_and_repair, renew_some, set_up, upkeep

STRIDE = how_many(3, 1)
"""In the gate each verb meets one of the three kinds of a full disk, at each third step."""
KINDS = [(errno.ENOSPC, False, 1), (errno.EDQUOT, False, 10**9), (errno.ENOSPC, True, 10**9)]


@pytest.mark.parametrize(
    ("code", "partly", "times"), KINDS, ids=["one step", "from a step on, quota", "from a step on, torn"]
)
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_no_room_at_any_step(queue_factory: QueueFactory, verb: Verb, code: int, partly: bool, times: int) -> None:
    """Whatever the verb reports, nothing that was there is lost or doubled, and it can be repeated when there is
    room.
    """
    step = KINDS.index((code, partly, times)) % STRIDE + 1 - STRIDE
    failures, torn = 0, 0
    while True:
        step += STRIDE
        queue = queue_factory(f"q{step}", durability="strict" if step % 2 else "none", backoff_s=(0, 0))
        set_up(queue)
        trap = FullFrom(step, times=times, code=code, partly=partly)
        full = trapped(queue, trap)
        trap.armed = True
        error: FsqueueError | None = None
        try:
            verb(full, queue)
        except StorageFull as caught:
            error = caught
            failures += 1
        except StorageError as caught:  # what was cut short may also be found out by reading it back
            error = caught
            torn += 1
            failures += 1
        trap.armed = False
        full.close()
        where = f"step {step} ({trap.steps[-1:]})"
        fresh = Queue(queue.path)
        assert_nothing_lost(fresh, queue, verb, error, where)
        if not trap.met:
            assert error is None
            break
        assert step < 200, "it never gets through"
        assert partly or not torn, error
    assert step > 2 or verb in (upkeep, renew_some, check_and_repair)


def test_an_insert_with_many_delays_does_not_promise_what_is_not_so(queue_factory: QueueFactory) -> None:
    """Batches of several delays are filled side by side: `inserted` is a beginning of the stream, or says nothing."""
    tasks = [Task(index, delay_s=[0, 1000, 2000, 0, 3000][index % 5]) for index in range(60)]
    step = 0
    while True:
        step += 1
        queue = queue_factory(f"q{step}")
        trap = FullFrom(step)
        full = trapped(queue, trap)
        trap.armed = True
        error: StorageFull | None = None
        try:
            full.insert_many(tasks, batch_tasks=4)
        except StorageFull as caught:
            error = caught
        found = sorted(info.payload for info in queue.tasks())
        assert len(found) == len(set(found)), f"step {step}"
        if error is None:
            assert found == list(range(60)), f"step {step}"
        elif error.inserted is not None:
            assert found == list(range(error.inserted)), f"step {step}"
        if not trap.met:
            break
        step += 5
    assert step > 30
