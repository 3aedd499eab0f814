"""fsck in the middle of work: what is in flight is no finding, what killed workers leave is mended."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from fsqueue import LeaseLost, Queue
from fsqueue.clock import ManualClock
from tests.concurrency.books import check_drained, clock_of_later, drain
from tests.concurrency.processes import Child, children, together
from tests.fsck.test_fsck import EACH, WORK, Damage, build
from tests.levels import how_many, thorough
from tests.support import counted

QueueFactory = Callable[..., Queue]
CREW = how_many(4, 8)
"""Number of processes that work at once."""
CREWS = how_many(1, 3)
"""How many crews work, one after the other, each at a queue of its own."""
LOOKS = how_many(3, 6)
"""How often fsck looks at a queue meanwhile. A look takes the longer, the more was done before it, and more is done
during a longer one: so the looks of one queue must be few.
"""


def work(path: Path, number: int) -> int:
    """Complete, fail, release and bury, now and then insert and retry, until told to stop, and one is completed."""
    queue, dice, done = Queue(path, worker=f"w{number}"), random.Random(number), 0
    while not done or not (path.parent / "over").exists():
        for task in queue.lease(dice.choice([1, 1, 5]), lease_s=2, wait_s=0.02):
            try:
                chance = dice.random()
                if chance < 0.1:
                    task.fail("no luck", delay_s=0)
                elif chance < 0.2:
                    task.release()
                elif chance < 0.25:
                    task.bury("hopeless")
                elif chance < 0.3:
                    task.renew(2)
                    task.complete({"a": 1})
                    done += 1
                else:
                    task.complete()
                    done += 1
            except LeaseLost:
                pass
        if dice.random() < 0.3:
            queue.insert_many(range(dice.choice([1, 3, 20])), batch_tasks=4)
        if dice.random() < 0.02:
            queue.retry_dead()
    return done


@pytest.mark.parametrize("crew_number", range(CREWS))
@pytest.mark.parametrize("killing", [False, True], ids=["nobody dies", "workers are killed"])
def test_while_a_crew_works(queue_factory: QueueFactory, killing: bool, crew_number: int) -> None:
    queue = queue_factory(shards=4, durability="none", max_attempts=None, backoff_s=(0, 0))
    queue.insert_many(range(300), batch_tasks=10)
    first = 100 * crew_number
    dice, number, looks = random.Random(7 + first), first + CREW, 0
    with children(*((work, queue.path, number) for number in range(first, first + CREW))) as crew:
        try:
            while looks < LOOKS:
                if killing:
                    victim = dice.randrange(CREW)
                    crew[victim].close()
                    number += 1
                    crew[victim] = Child(work, queue.path, number)
                found = list(queue.fsck(repair=killing and looks % 2 == 1))
                looks += 1
                if killing:
                    assert {finding.gravity for finding in found} <= {"leftover"}, found
                else:
                    assert found == []
        finally:
            (queue.path.parent / "over").touch()
        for child in crew:
            if not killing:
                assert child.result() > 0
            child.close()
    assert all(finding.repaired for finding in queue.fsck(repair=True))
    assert list(queue.fsck()) == []
    drain(queue)
    check_drained(queue, staged_leftovers=64)
    assert list(queue.fsck()) == []


def mend(path: Path) -> int:
    """Check and repair twice; how much was found. What one finds busy, the other is at."""
    queue = Queue(path, clock=clock_of_later())
    return sum(1 for _ in range(2) for _ in queue.fsck(repair=True))


def work_off(path: Path) -> list[str]:
    """Complete what can be had, one by one, for as long as the repairs may take."""
    queue, done = Queue(path, clock=clock_of_later()), []
    for _ in range(15):
        for task in queue.lease(1, wait_s=0.02):
            task.complete()
            done.append(task.payload)
    return done


ONE_OF_EACH_KIND = [
    action if action.values[0] != before.values[0] else thorough(action)
    for before, action in pairwise([pytest.param(""), *EACH])
]


@pytest.mark.one_in(6)
@pytest.mark.parametrize(("kind", "action"), ONE_OF_EACH_KIND)
def test_two_repairs_at_once_while_others_work(queue_factory: QueueFactory, kind: str, action: Damage) -> None:
    """Nothing is lost but what the damage took, the counts add up, and nothing is left to find."""
    clock = ManualClock(time.time())
    queue = build(queue_factory, clock)
    lost = action(queue, clock)
    path = queue.path
    queue.close()
    _, _, one, two = together((mend, path), (mend, path), (work_off, path), (work_off, path))
    queue = Queue(path, clock=clock_of_later())
    assert all(finding.repaired for finding in queue.fsck(repair=True))
    assert list(queue.fsck()) == []
    done = one + two + drain(queue)
    extra = {payload.removeprefix("+") for payload in lost if payload.startswith("+")}
    wanted = (set(WORK) if "all" not in lost else set()) - lost
    assert wanted <= set(done)  # not the extra ones, if a worker came before the repair and finished what the name said
    assert set(done) <= wanted | extra | lost | {"dead 0", "dead 1"}
    status = queue.status()
    assert status.drained
    assert status.completed == counted(queue)
    assert status.dead == len(list(queue.dead()))
    assert list(queue.fsck()) == []
