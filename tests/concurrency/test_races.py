"""Two who want the same at the same moment: fencing, renewing, revoking, purging and deleting while others work."""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import FsqueueError, LeaseExpired, LeaseLost, Queue, QueueNotFound, StorageError, TaskNotFound
from fsqueue.clock import ManualClock
from tests.concurrency.books import check_drained, counted, drain, leftovers
from tests.concurrency.processes import children, together
from tests.concurrency.trapped import trapped
from tests.support import base_of, generations_of, insert_in_file

QueueFactory = Callable[..., Queue]


# -- fencing -------------------------------------------------------------------------------------------


LEASE_S, TAKEN_S = 0.1, 0.11
"""Long enough to fork a process meanwhile; and when others may take such a task over: a tenth later."""


def test_an_expired_lease_is_completed_by_exactly_one(queue: Queue) -> None:
    """The old holder completes a little late, just when another takes the task over: one of the two succeeds."""
    dice = random.Random(7)
    outcomes: Counter[str] = Counter()
    late_s = 0.0  # how late the other comes on this machine, as the laps before tell
    for lap in range(60):
        queue.insert(lap)
        [old] = queue.lease(lease_s=LEASE_S)
        leased = time.monotonic()

        def take_over(after_s: float, leased: float = leased) -> str:
            time.sleep(max(0.0, leased + after_s - time.monotonic()))
            tasks = Queue(queue.path).lease(lease_s=30)
            if not tasks:
                return "not free"
            try:
                tasks[0].complete()
            except LeaseLost:
                return "lost"
            return "completed"

        with children((take_over, TAKEN_S - 0.003 + dice.random() * 0.006)) as [child]:
            time.sleep(max(0.0, leased + TAKEN_S + late_s + dice.random() * 0.006 - time.monotonic()))
            try:
                old.complete()
                mine = "completed"
            except LeaseLost:
                mine = "lost"
            theirs = child.result()
        assert [mine, theirs].count("completed") == 1, f"lap {lap}: {mine}, {theirs}"
        outcomes[mine] += 1
        late_s = late_s * 1.3 + 0.002 if mine == "completed" else late_s * 0.7
        assert queue.status().completed == lap + 1
    assert len(outcomes) == 2, f"not a race: {outcomes}"
    assert len(check_drained(queue)[0]) == 60


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
    queue.insert_many(["a", "b"], batch_tasks=2)
    one, two = queue.lease(2, lease_s=0.03)
    time.sleep(0.05)
    with pytest.raises(LeaseExpired):
        one.renew()
    one.complete()  # late, but nobody took it
    [taken] = Queue(queue.path).lease(lease_s=30, wait_s=5)
    assert taken.id == two.id
    with pytest.raises(LeaseLost) as error:
        two.renew()
    assert not isinstance(error.value, LeaseExpired)
    with pytest.raises(LeaseLost) as error:
        queue.complete([one, two])
    assert two.id in error.value.tasks
    taken.complete()


def test_a_renewed_lease_is_not_taken_over(queue_factory: QueueFactory) -> None:
    """A heartbeat at a quarter of the lease keeps hungry workers away. On a busy machine it comes late: once more then,
    with a longer lease.
    """
    for number in range(5):
        if renewed_in_time(queue_factory(str(number)), 0.4 * 2**number):
            return
    pytest.fail("the heartbeat was late each time")


def renewed_in_time(queue: Queue, lease_s: float) -> bool:
    """Renew leases for five times their length beside those who wait for them; False if a renewal came late."""
    queue.insert_many(range(4), batch_tasks=2)
    length_s = 5 * lease_s

    def lurk() -> int:
        mine, until = Queue(queue.path), time.monotonic() + length_s
        got = 0
        while time.monotonic() < until:
            got += len(mine.lease(wait_s=0.1))
        return got

    last = begun = time.monotonic()
    tasks = queue.lease(4, lease_s=lease_s)
    assert len(tasks) == 4
    with children(*((lurk,) for _ in range(4))) as lurkers:
        until, latest = begun + length_s + 0.2, 0.0
        while last < until:
            begun = time.monotonic()
            try:
                queue.renew(tasks, lease_s)
            except LeaseLost:
                latest = max(latest, time.monotonic() - last)
                break
            latest, last = max(latest, time.monotonic() - last), begun
            time.sleep(lease_s / 4)
        got = [child.result() for child in lurkers]
    if latest >= lease_s:
        return False
    assert got == [0] * 4
    queue.complete(tasks)
    assert queue.status().completed == 4
    return True


def test_an_idle_worker_wakes_when_a_renewed_lease_runs_out(queue: Queue) -> None:
    """It comes when the lease would have ended, finds it renewed, and must come again."""
    queue.insert("task")
    [task] = queue.lease(lease_s=0.3)

    def idle() -> float:
        begin = time.monotonic()
        [mine] = Queue(queue.path).lease(wait_s=8)
        mine.complete()
        return time.monotonic() - begin

    with children((idle,)) as [child]:
        time.sleep(0.15)
        task.renew(0.6)
        assert 0.4 < child.result() < 3


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
        while not begun.exists():
            time.sleep(0.001)
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
    over = queue.path.parent / "over"

    def insert(number: int) -> list[tuple[float, str, bool]]:
        mine, done = Queue(queue.path), []
        for step in range(10_000):
            if over.exists():
                break
            payloads = [f"{number}.{step}.{index}" for index in range(5)]
            begin = time.monotonic()
            try:
                mine.insert_many(payloads, batch_tasks=2)
                reported = True
            except StorageError:  # a busy machine: it was purged again at each of its tries
                reported = False
            done += [(begin, payload, reported) for payload in payloads]
        return done

    with children(*((insert, number) for number in range(3))) as inserters:
        purged = 0.0
        for _ in range(25):
            time.sleep(0.02)
            Queue(queue.path).purge()
            purged = time.monotonic()
        deadline = time.monotonic() + 60
        enough = Queue(queue.path).status().inserted + 15  # of each inserter one call may have begun before
        while Queue(queue.path).status().inserted <= enough and time.monotonic() < deadline:
            time.sleep(0.02)
        over.touch()
        found = [tuple(pair) for child in inserters for pair in child.result()]
    fresh = Queue(queue.path)
    assert fresh.generation == 26
    there = Counter(info.payload for info in fresh.tasks())
    assert max(there.values()) == 1
    after = {payload for begin, payload, reported in found if reported and begin > purged}
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
            time.sleep(0.03)
            queue.purge()
            status = Queue(queue.path).status()
            assert status.inserted == 0, f"lap {lap}: {status}"
        queue.insert_many(range(100), batch_tasks=10)
        assert queue.wait(20).drained
        over.touch()
        for child in workers:
            child.result()
    time.sleep(0.1)
    status = queue.status()
    assert (status.inserted, status.completed, status.dead) == (100, 100, 0)
    queue.gc()
    assert generations_of(queue) == [base_of(queue, 13)]
    assert len(check_drained(queue)[0]) == 100


def test_deleting_while_others_work_and_insert(queue_factory: QueueFactory, tmp_path: Path) -> None:
    """Everybody gets a clear error within about a second, and the queue does not come back to life."""

    def begin(queue: Queue) -> Queue:
        mine = Queue(queue.path)
        (tmp_path / f"{queue.path.name}.{os.getpid()}").touch()
        return mine

    def work(queue: Queue) -> str:
        mine = begin(queue)
        deadline = time.monotonic() + 20
        try:
            while time.monotonic() < deadline:
                for task in mine.lease(3, wait_s=0.05):
                    try:
                        task.complete()
                    except LeaseLost:
                        pass
        except QueueNotFound:
            return "not found"
        return "never noticed"

    def insert(queue: Queue) -> str:
        mine = begin(queue)
        try:
            for step in range(100_000):
                mine.insert(step)
        except QueueNotFound:
            return "not found"
        return "never noticed"

    for lap in range(4):
        queue = queue_factory(f"q{lap}")
        queue.insert_many(range(500), batch_tasks=10)
        with children((work, queue), (work, queue), (insert, queue)) as others:
            while len(list(tmp_path.glob(f"q{lap}.*"))) < len(others):
                time.sleep(0.001)
            time.sleep(0.02 * lap)
            deleted = time.monotonic()
            queue.delete(wait=True)
            assert [child.result() for child in others] == ["not found"] * 3
            assert time.monotonic() - deleted < 8
        assert not os.path.exists(queue.path)
        with pytest.raises(QueueNotFound):
            Queue(queue.path)


def test_one_of_many_deletes(queue_factory: QueueFactory) -> None:
    queue = queue_factory("gone")
    queue.insert_many(range(100))

    def delete() -> str:
        try:
            Queue(queue.path).delete(wait=True)
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
        Queue(path).delete(wait=True)
        assert sorted(together(*((create, False) for _ in range(4)))) == ["QueueExists"] * 3 + ["made"]
        assert sorted(path.name for path in path.iterdir()) == [base_of(Queue(path)).name, "doorbell", "queue.jsonl"]
