"""A worker may allow fewer attempts than the queue does."""

from __future__ import annotations

import pytest

from fsqueue import InvalidArgument, Queue, Worker
from tests.support import QueueFactory
from tests.worker import tasks
from tests.worker.support import drained

pytestmark = pytest.mark.once


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("max_attempts", "attempts"), [(1, 1), (3, 3), (9, 4), (None, 4)])
def test_a_task_has_so_many_attempts_at_most(
    queue_factory: QueueFactory, max_attempts: int | None, attempts: int
) -> None:
    queue = queue_factory(max_attempts=4, backoff_s=(0, 0))
    queue.insert_many([{"do": "raise", "text": "bad value"}, {"do": "return"}])
    report = Worker(queue, tasks.obey, max_attempts=max_attempts).run()
    assert report == drained(completed=1, failed=attempts)
    assert (report.buried, report.buried_attempts) == (1, attempts)
    [letter] = queue.dead()
    assert (letter.attempt, letter.reason.partition("\n")[0]) == (attempts, "ValueError: bad value")


def test_a_lease_that_ran_out_counts_as_an_attempt(queue_factory: QueueFactory) -> None:
    queue = queue_factory(backoff_s=(0, 0))
    queue.insert({"do": "raise", "text": "bad value"})
    queue.lease(lease_s=0.001)
    report = Worker(queue, tasks.obey, max_attempts=2).run()
    assert (report.failed, report.buried_attempts) == (1, 2)


@pytest.mark.parametrize("max_attempts", [0, -1, 1.5])
def test_the_attempts_are_a_whole_number_from_1(queue: Queue, max_attempts: int) -> None:
    with pytest.raises(InvalidArgument, match="max_attempts"):
        Worker(queue, tasks.obey, max_attempts=max_attempts)
