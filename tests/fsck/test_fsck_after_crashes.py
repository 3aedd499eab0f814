"""What a death at any step of any verb leaves, fsck knows as a leftover, and mends."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from fsqueue import Queue
from fsqueue.clock import ManualClock
from fsqueue.protocol import finishing
from tests.support import QueueFactory, age_staging, crashes, drain, leftovers

VERBS: dict[str, Callable[[Queue], object]] = {
    "insert": lambda queue: queue.insert("new"),
    "insert_many": lambda queue: queue.insert_many(["new", "new", "new"], batch_tasks=2),
    "insert once": lambda queue: queue.insert_many(["new", "new", "new"], batch_tasks=2, commit="seed"),
    "lease": lambda queue: queue.lease(3),
    "complete": lambda queue: queue.complete(queue.lease(2)),
    "complete one": lambda queue: queue.lease()[0].complete({"a": 1}),
    "renew": lambda queue: queue.renew(queue.lease(2), 1),
    "release": lambda queue: queue.release(queue.lease(2)),
    "fail": lambda queue: queue.lease()[0].fail("no"),
    "bury": lambda queue: [task.bury("no") for task in queue.lease(2)],
    "retry": lambda queue: queue.retry_dead(),
    "release_all": lambda queue: queue.release_all(),
    "cancel": lambda queue: queue.cancel([info.id for info in queue.tasks("waiting")][:1]),
    "gc": lambda queue: queue.gc(),
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("verb", VERBS)
def test_a_death_at_any_step(queue_factory: QueueFactory, verb: str) -> None:
    clock = ManualClock(time.time())

    def build(number: int) -> Queue:
        queue = Queue(
            queue_factory(f"q{number}", shards=2, durability="none", max_attempts=None, backoff_s=(0, 0)).path,
            clock=clock,
        )
        queue.insert_many(["dead 0", "dead 1"], batch_tasks=2)
        for task in queue.lease(2):
            task.bury("no")
        queue.insert_many(["a", "b", "c", "d"], batch_tasks=2)
        queue.close()
        return queue

    for where, queue in crashes(build, VERBS[verb], clock):
        before = queue.status()
        age_staging(queue, 8 * 86_400)
        found = list(queue.fsck())
        assert {finding.gravity for finding in found} <= {"leftover"}, (where, found)
        mended = list(queue.fsck(repair=True))
        assert all(finding.repaired for finding in mended), (where, mended)
        assert list(queue.fsck()) == [], where
        after = queue.status()
        assert (after.completed, after.inserted) == (before.completed, before.inserted), where
        executed = drain(queue, clock)
        assert all(count == 1 for count in executed.values()), where
        assert queue.status().completed == before.completed + sum(executed.values()), where
        assert list(queue.fsck()) == [], where
        clock.advance(finishing.LINGER_MS / 1000)
        queue.gc()
        assert leftovers(queue) == [], where
