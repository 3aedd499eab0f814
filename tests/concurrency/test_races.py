"""Two who want the same at the same moment: fencing, renewing, revoking, purging and deleting while others work."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

import pytest

from fsqueue import FsqueueError, LeaseExpired, LeaseLost, Queue, QueueNotFound, StorageError, TaskNotFound
from fsqueue.clock import Clock, ManualClock
from fsqueue.leased_task import LeasedTask
from fsqueue.storage.queue_file import FRESH_S
from tests.concurrency.books import check_drained, counted, drain, leftovers
from tests.concurrency.clocks import SharedClock
from tests.concurrency.processes import Count, children, together
from tests.concurrency.trapped import Trapped, trapped
from tests.levels import how_many
from tests.support import base_of, generations_of, insert_in_file
from tests.waiting import PATIENCE_S, until

QueueFactory = Callable[..., Queue]


# -- fencing -------------------------------------------------------------------------------------------


LEASE_S = 3600.0
"""A lease ends when the test lets the time pass (`SharedClock`), not because the machine is busy."""


def take_over(path: Path, clock: Clock) -> str:
    """Lease what another one held, and complete it: what became of that."""
    tasks = Queue(path, clock=clock).lease(lease_s=LEASE_S)
    if not tasks:
        return "not free"
    try:
        tasks[0].complete()
    except LeaseLost:
        return "lost"
    return "completed"


def complete_late(task: LeasedTask) -> str:
    try:
        task.complete()
    except LeaseLost:
        return "lost"
    return "completed"


@pytest.mark.parametrize("batch_tasks", [1, 3])
def test_an_expired_lease_is_completed_by_exactly_one(queue_factory: QueueFactory, batch_tasks: int) -> None:
    """The old holder completes late. At each of its steps in turn another process takes the task over: one succeeds."""
    outcomes: Counter[tuple[str, str]] = Counter()
    for step in itertools.count(1):
        queue = queue_factory(f"q{step}")
        queue.insert_many(range(batch_tasks), batch_tasks=batch_tasks)
        steps, theirs = -1, ""

        def other_comes(kind: str, call: Callable[..., Any], *args: Any, step: int = step, queue: Queue = queue) -> Any:
            nonlocal steps, theirs
            steps += steps >= 0
            if steps == step:  # for a lock that the old holder has, the other waits in no time
                [theirs] = together((take_over, queue.path, ManualClock(time.time() + 2 * LEASE_S)))
            return call(*args)

        clock = SharedClock()
        mine = Queue(queue.path, filesystem=Trapped(str(queue.path), other_comes), clock=clock)
        [old] = mine.lease(lease_s=LEASE_S)
        for _ in range(batch_tasks - 1):  # by others, who have them for longer
            Queue(queue.path).lease(lease_s=10 * LEASE_S)
        clock.advance(2 * LEASE_S)
        steps = 0
        outcome = complete_late(old)
        if not theirs:
            assert outcome == "completed"
            break
        assert [outcome, theirs].count("completed") == 1, f"step {step}: {outcome}, {theirs}"
        assert Queue(queue.path).status().completed == 1
        outcomes[outcome, theirs] += 1
    assert outcomes.keys() == {("lost", "completed"), ("completed", "not free")}, outcomes


def test_an_expired_lease_is_completed_by_one_of_two_at_once(queue: Queue) -> None:
    """The old holder and the new one begin at the same moment: either may be the first."""
    clock, laps = SharedClock(), how_many(8, 60)
    mine = Queue(queue.path, clock=clock)
    for lap in range(laps):
        queue.insert(lap)
        [old] = mine.lease(lease_s=LEASE_S)
        both_are_there = multiprocessing.get_context("fork").Barrier(2)

        def take_over_at_once(both_are_there: Barrier = both_are_there) -> str:
            both_are_there.wait(PATIENCE_S)
            return take_over(queue.path, clock)

        with children((take_over_at_once,)) as [child]:
            clock.advance(2 * LEASE_S)
            both_are_there.wait(PATIENCE_S)
            outcomes = [complete_late(old), child.result()]
        assert outcomes.count("completed") == 1, f"lap {lap}: {outcomes}"
        assert queue.status().completed == lap + 1
    assert len(check_drained(queue)[0]) == laps


def test_of_many_copies_of_one_token_one_completes(queue: Queue) -> None:
    for lap in range(10):
        insert_in_file(queue, lap)
        token = queue.lease()[0].token

        def complete(token: str = token) -> int:
            try:
                Queue(queue.path).attach(token).complete()
            except (LeaseLost, TaskNotFound):
                return 0
            return 1

        assert sum(together(*((complete,) for _ in range(4)))) == 1
    assert counted(queue) == 10


def test_renewing_a_lease_that_ran_out(queue: Queue) -> None:
    clock = SharedClock()
    mine, other = Queue(queue.path, clock=clock), Queue(queue.path, clock=clock)
    queue.insert_many(["a", "b"], batch_tasks=2)
    one, two = mine.lease(2, lease_s=LEASE_S)
    clock.advance(2 * LEASE_S)
    with pytest.raises(LeaseExpired):
        one.renew()
    one.complete()  # late, but nobody took it
    [taken] = other.lease(lease_s=LEASE_S, wait_s=60)
    assert taken.id == two.id
    with pytest.raises(LeaseLost) as error:
        two.renew()
    assert not isinstance(error.value, LeaseExpired)
    with pytest.raises(LeaseLost) as error:
        mine.complete([one, two])
    assert two.id in error.value.tasks
    taken.complete()


def test_a_renewed_lease_is_not_taken_over(queue: Queue) -> None:
    """A heartbeat at half of the lease keeps hungry workers away, who look again and again between the beats."""
    clock, over = SharedClock(), queue.path.with_name("over")
    queue.insert_many(range(4), batch_tasks=2)
    mine = Queue(queue.path, clock=clock)
    tasks = mine.lease(4, lease_s=LEASE_S)
    assert len(tasks) == 4
    looks = [Count() for _ in range(4)]

    def lurk(number: int) -> int:
        other, got = Queue(queue.path, clock=clock), 0
        while not over.exists():
            got += len(other.lease(wait_s=0.01))
            looks[number].add()
        return got

    def all_have_looked() -> None:
        before = [int(count) for count in looks]
        until(  # of two looks one has begun since
            lambda: all(int(count) >= had + 2 for count, had in zip(looks, before, strict=True)),
            "all to look for tasks",
        )

    with children(*((lurk, number) for number in range(4))) as lurkers:
        for _ in range(10):
            all_have_looked()
            clock.advance(LEASE_S / 2)
            all_have_looked()
            mine.renew(tasks, LEASE_S)
        over.touch()
        assert [child.result() for child in lurkers] == [0] * 4
    mine.complete(tasks)
    assert queue.status().completed == 4


def test_an_idle_worker_wakes_when_a_renewed_lease_runs_out(queue: Queue) -> None:
    """It comes when the lease would have ended, finds it renewed, and must come again."""

    class Watched(SharedClock):
        def monotonic(self) -> float:
            asked.add()
            return super().monotonic()

    asked = Count()
    clock, idle_clock = SharedClock(), Watched()
    idle_clock._passed = clock._passed
    queue.insert("task")
    [task] = Queue(queue.path, clock=clock).lease(lease_s=LEASE_S)

    def idle() -> str:
        [mine] = Queue(queue.path, clock=idle_clock).lease(wait_s=10 * LEASE_S)
        mine.complete()
        return mine.id

    def it_looks_again() -> None:
        before = int(asked)
        until(lambda: int(asked) > before + 10, "the idle worker to look again")

    with children((idle,)) as [child]:
        it_looks_again()
        clock.advance(0.5 * LEASE_S)
        task.renew(LEASE_S)
        clock.advance(0.7 * LEASE_S)  # the lease would have ended
        it_looks_again()
        assert child.running
        clock.advance(0.7 * LEASE_S)
        assert child.result() == task.id
    lease, again = [move for move in queue.history(task.id) if move.op == "lease"]
    assert again.at >= lease.at + 1.5 * LEASE_S


def test_completing_many_reports_exactly_those_that_were_lost(queue: Queue) -> None:
    queue.insert_many(range(30), batch_tasks=4)
    tasks = queue.lease(30, lease_s=30)
    dice = random.Random(3)
    gone = dice.sample(tasks, 9)
    for number, task in enumerate(gone):
        other = Queue(queue.path).attach(task.token)
        (other.complete, other.release, lambda other=other: other.bury("no"))[number % 3]()
    with pytest.raises(LeaseLost) as error:
        queue.complete(tasks)
    # those whose batch is still there are told apart by their lease; a repeated completion by the same lease is no loss
    lost = {task.id for number, task in enumerate(gone) if number % 3}
    assert lost <= set(error.value.tasks) <= {task.id for task in gone}
    assert queue.status().completed == 24
    assert queue.status().waiting == 3
    drain(queue)
    check_drained(queue)


# -- from outside ----------------------------------------------------------------------------------------


def test_releasing_all_leases_again_and_again_while_others_work(queue: Queue) -> None:
    queue.insert_many(range(400), batch_tasks=10)

    def work() -> tuple[int, int]:
        mine, done, lost = Queue(queue.path), 0, 0
        for task in mine.poll():
            try:
                task.complete()
                done += 1
            except LeaseLost:
                lost += 1
        return done, lost

    with children(*((work,) for _ in range(4))) as workers:
        released = 0
        while any(child.running for child in workers):
            released += queue.release_all()
            assert queue.status().inserted == 400
        found = [child.result() for child in workers]
    assert sum(done for done, _ in found) == 400
    assert sum(lost for _, lost in found) <= released
    assert all(info.attempt == 1 for info in queue.tasks("completed")), "a revoked lease was charged"
    assert len(check_drained(queue)[0]) == 400


def test_cancelling_while_others_lease(queue: Queue) -> None:
    """A task is cancelled or executed, never both."""
    queue.insert_many(range(300), batch_tasks=5)
    ids = [info.id for info in queue.tasks()]
    begun = queue.path.with_name("begun")

    def work() -> list[str]:
        mine, done = Queue(queue.path), []
        until(begun.exists, "the first one to be cancelled")
        while tasks := mine.lease(3):
            mine.complete(tasks)
            done += [task.id for task in tasks]
        return done

    def cancel() -> int:
        mine, cancelled = Queue(queue.path), 0
        for task in reversed(ids):
            try:
                cancelled += mine.cancel([task])
            except TaskNotFound:
                pass
            begun.touch()
        return cancelled

    *done, cancelled = together((work,), (work,), (work,), (cancel,))
    executed = [task for one in done for task in one]
    assert len(executed) == len(set(executed))
    assert len(executed) + cancelled == 300
    assert cancelled > 0
    status = queue.status()
    assert (status.inserted, status.completed) == (len(executed), len(executed))
    assert set(executed) == {info.id for info in queue.tasks("completed")}
    assert queue.gc() is not None
    assert leftovers(queue) == []


def test_dead_letters_are_retried_by_one_of_many(queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=1, shards=2)
    queue.insert_many(range(40), batch_tasks=4)
    for task in queue.lease(40):
        task.bury("bad")
    assert queue.status().dead == 40
    assert sum(together(*((lambda: Queue(queue.path).retry_dead(),) for _ in range(4)))) == 40
    assert (queue.status().dead, queue.status().waiting) == (0, 40)
    assert sorted(drain(queue)) == list(range(40))


def test_upkeep_goes_on_all_the_time(queue: Queue) -> None:
    """gc from two processes does no harm while others insert, work and finish."""

    def work() -> int:
        return sum(1 for task in Queue(queue.path).poll() if task.complete() is None)

    def keep_up() -> int:
        mine, laps = Queue(queue.path), 0
        while not (queue.path / "over").exists():
            mine.gc(touch=True)
            laps += 1
        return laps

    queue.insert_many(range(300), batch_tasks=2)
    with children((keep_up,), (keep_up,)) as keepers:
        assert sum(together((work,), (work,), (work,))) == 300
        (queue.path / "over").touch()
        assert min(child.result() for child in keepers) > 2
    (queue.path / "over").unlink()
    assert len(check_drained(queue)[0]) == 300


# -- purge and delete --------------------------------------------------------------------------------------


def test_what_is_reported_inserted_after_a_purge_is_there(queue: Queue) -> None:
    """Inserters and purgers side by side: nothing that was inserted after the last purge began is missing, nothing
    is doubled.
    """
    over, purges = queue.path.parent / "over", Count()

    def insert(number: int) -> list[tuple[int, str, bool]]:
        mine, done, step = Queue(queue.path), [], 0
        while not over.exists():
            step += 1
            payloads = [f"{number}.{step}.{index}" for index in range(5)]
            purges_before = int(purges)
            try:
                mine.insert_many(payloads, batch_tasks=2)
                reported = True
            except StorageError:  # a busy machine: it was purged again at each of its tries
                reported = False
            done += [(purges_before, payload, reported) for payload in payloads]
        return done

    with children(*((insert, number) for number in range(3))) as inserters:
        for _ in range(25):
            until(lambda: Queue(queue.path).status().inserted, "something to purge")
            Queue(queue.path).purge()
            purges.add()
        enough = Queue(queue.path).status().inserted + 15  # of each inserter one call may have begun before
        until(lambda: Queue(queue.path).status().inserted > enough, "inserts that began after the last purge")
        over.touch()
        found = [tuple(pair) for child in inserters for pair in child.result()]
    fresh = Queue(queue.path)
    assert fresh.generation == 26
    there = Counter(info.payload for info in fresh.tasks())
    assert max(there.values()) == 1
    after = {payload for purges_before, payload, reported in found if reported and purges_before == 25}
    assert after
    assert after <= set(there)
    assert set(there) <= {payload for _, payload, _ in found}
    assert fresh.status().inserted == len(there)
    fresh.gc()
    assert generations_of(fresh) == [base_of(fresh, 26)]
    assert sorted(drain(fresh)) == sorted(there)
    check_drained(fresh)


def test_an_insert_that_a_purge_overtakes_half_way(queue: Queue) -> None:
    """The purge comes at each step of the insert in turn: afterwards the tasks are there, once."""
    step = 0
    while True:
        step += 1
        seen = 0

        def purge_first(kind: str, call: Callable[..., Any], *args: Any, step: int = step) -> Any:
            nonlocal seen
            if seen >= 0:
                seen += 1
                if seen == step:
                    seen = -1
                    Queue(queue.path, clock=ManualClock(time.time())).purge()  # in no time waits for a lock in vain
            return call(*args)

        seen = -1
        mine = trapped(queue, purge_first)
        seen = 0
        assert mine.insert_many(["a", "b", "c"], batch_tasks=2) == 3
        over = seen >= 0
        there = sorted(info.payload for info in Queue(queue.path).tasks())
        # purged before it was begun to be visible, or afterwards: all or nothing of it, and only the very last step
        # may lose it
        assert there == ["a", "b", "c"] or (there == [] and not over), f"step {step}: {there}"
        Queue(queue.path).purge()
        if over:
            break
    assert step > 20


def test_workers_in_the_middle_of_a_purge(queue: Queue) -> None:
    """Held tasks of a purged generation are lost for their holders, and leave no trace in the new one."""
    over = queue.path.parent / "over"

    def work() -> dict[str, int]:
        mine, seen = Queue(queue.path), Counter[str]()
        while not over.exists():
            for task in mine.lease(4, wait_s=0.02):
                try:
                    task.complete()
                    seen["done"] += 1
                except LeaseLost:
                    seen["lost"] += 1
        return seen

    with children(*((work,) for _ in range(4))) as workers:
        for lap in range(12):
            queue.insert_many(range(200), batch_tasks=10)
            until(lambda: queue.status().completed, "one to be in the middle of its work")
            queue.purge()
            status = Queue(queue.path).status()
            assert status.inserted == 0, f"lap {lap}: {status}"
        queue.insert_many(range(100), batch_tasks=10)
        assert queue.wait(PATIENCE_S).drained
        over.touch()
        for child in workers:
            child.result()
    status = queue.status()
    assert (status.inserted, status.completed, status.dead) == (100, 100, 0)
    queue.gc()
    assert generations_of(queue) == [base_of(queue, 13)]
    assert len(check_drained(queue)[0]) == 100


def test_deleting_while_others_work_and_insert(queue_factory: QueueFactory) -> None:
    """A second later, each call that begins gets a clear error, and the queue does not come back to life.

    A worker that waits for tasks hears of it while it waits. For a second a process may believe what it has read.
    """
    deleted, clock = Count(), SharedClock()

    def work(queue: Queue, done: Count, wait_s: float) -> int:
        """Return how many calls began a second after the queue was deleted, or later."""
        mine, late = Queue(queue.path, clock=clock), 0
        while True:
            late += int(deleted) > lap
            try:
                for task in mine.lease(3, wait_s=wait_s):
                    try:
                        task.complete()
                    except LeaseLost:
                        pass
                    done.add()
            except QueueNotFound:
                return late

    def insert(queue: Queue, done: Count) -> int:
        mine, late = Queue(queue.path, clock=clock), 0
        while True:
            late += int(deleted) > lap
            try:
                mine.insert("more")
            except QueueNotFound:
                return late
            done.add()

    for lap in range(4):
        queue, counts = queue_factory(f"q{lap}"), [Count() for _ in range(3)]
        queue.insert_many(range(500), batch_tasks=10)
        actions = [(work, queue, counts[0], 0.05), (work, queue, counts[1], 600), (insert, queue, counts[2])]
        with children(*actions) as others:
            until(lambda counts=counts, lap=lap: all(int(count) > 10 * lap for count in counts), "all to be at work")
            queue.delete(foreground=True)
            clock.advance(1.1 * FRESH_S)
            deleted.add()
            assert max(child.result() for child in others) <= 1
        assert not os.path.exists(queue.path)
        with pytest.raises(QueueNotFound):
            Queue(queue.path)


def test_one_of_many_deletes(queue_factory: QueueFactory) -> None:
    queue = queue_factory("gone")
    queue.insert_many(range(100))

    def delete() -> str:
        try:
            Queue(queue.path).delete(foreground=True)
        except QueueNotFound:
            return "not found"
        return "deleted"

    found = together(*((delete,) for _ in range(4)))
    assert "deleted" in found
    assert not queue.path.exists()


def test_one_of_many_creates(queue_factory: QueueFactory) -> None:
    """All open the same queue, complete, whoever was first; without exist_ok one of them does."""
    first = queue_factory("first")
    for lap in range(5):
        path = first.path.parent / f"many-{lap}"

        def create(exist_ok: bool, path: Any = path) -> str:
            try:
                Queue.create(path, exist_ok=exist_ok, lease_s=12.5).insert(os.getpid())
            except FsqueueError as error:
                return type(error).__name__
            return "made"

        assert together(*((create, True) for _ in range(4))) == ["made"] * 4
        assert Queue(path).status().waiting == 4
        Queue(path).delete(foreground=True)
        assert sorted(together(*((create, False) for _ in range(4)))) == ["QueueExists"] * 3 + ["made"]
        assert sorted(path.name for path in path.iterdir()) == [base_of(Queue(path)).name, "doorbell", "queue.jsonl"]
