"""Attempts that are counted look by look, against what is known to have happened."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from fsqueue import Group, Queue
from fsqueue.clock import ManualClock
from fsqueue.format.counting_replay import CountingReplay
from fsqueue.format.replay import ReplayState
from fsqueue.storage import listing
from fsqueue.views import attempts
from fsqueue.views.attempts import AttemptCounts, count_attempts
from tests.conftest import QueueFactory

T0 = 1_795_255_200.0


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


@pytest.fixture
def q(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    return Queue(queue_factory(max_attempts=3, backoff_s=(0, 0)).path, clock=clock)


def now_ms(clock: ManualClock) -> int:
    return round(clock.now_s * 1000)


def numbers(found: AttemptCounts) -> tuple[float, ...]:
    return found.leased, found.retried, found.failed, found.expired, found.given_up


def test_each_kind_is_counted_once(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(6))
    begin = now_ms(clock)
    clock.advance(10)
    tasks = q.lease(5)
    assert numbers(count_attempts(q.store, begin, now_ms(clock))) == (5, 0, 0, 0, 0)
    clock.advance(30)
    tasks[0].complete()
    tasks[1].fail("bad", delay_s=0)
    tasks[2].bury("worse")
    tasks[3].release()
    clock.advance(1)
    [again] = q.lease(1)
    found = count_attempts(q.store, begin, now_ms(clock))
    assert numbers(found) == (6, int(again.attempt > 1), 2, 0, 1)
    assert found.work_s == {30.0: 1}
    assert (found.share, found.is_whole) == (1.0, True)


def test_a_lease_that_has_run_out_counts_when_another_takes_the_task(q: Queue, clock: ManualClock) -> None:
    q.insert("only")
    begin = now_ms(clock)
    clock.advance(1)
    q.lease(1, lease_s=60)
    clock.advance(120)
    assert count_attempts(q.store, begin, now_ms(clock)).expired == 0
    [task] = q.lease(1)
    assert task.attempt == 2
    assert numbers(count_attempts(q.store, begin, now_ms(clock))) == (2, 1, 0, 1, 0)
    task.complete()
    assert numbers(count_attempts(q.store, begin, now_ms(clock))) == (2, 1, 0, 1, 0)


def test_the_last_attempts_lease_that_runs_out_gives_the_task_up(q: Queue, clock: ManualClock) -> None:
    q.change_settings(max_attempts=1)
    clock.advance(10)
    q.insert("only")
    begin = now_ms(clock)
    clock.advance(1)
    q.lease(1, lease_s=60)
    clock.advance(120)
    assert q.lease(1) == []
    assert q.status().dead == 1
    assert numbers(count_attempts(q.store, begin, now_ms(clock))) == (1, 0, 0, 1, 1)


def test_an_update_that_fails_a_task_counts_once(tmp_path_factory: pytest.TempPathFactory) -> None:
    group = Group.create(tmp_path_factory.mktemp("group") / "g")
    group["a"].insert_many([1, 2])
    store = group["a"].store
    begin = store.clock.now_ms() - 1
    first, second = group["a"].lease(2)
    with group.update() as update:
        update.complete(first)
        update.bury(second, "no")
        update.insert("b", "more")
    found = count_attempts(store, begin, store.clock.now_ms() + 60_000)
    assert numbers(found) == (2, 0, 1, 0, 1)
    assert sum(found.work_s.values()) == 1


@pytest.mark.parametrize("seed", range(6))
def test_looks_one_after_the_other_count_all_that_happens_once(
    queue_factory: QueueFactory, clock: ManualClock, seed: int
) -> None:
    """Whatever a look falls between: before or behind a checkpoint, while a batch is at work or after its end."""
    chance = random.Random(seed)
    q = Queue(queue_factory(max_attempts=4, backoff_s=(0, 0), shards=2).path, clock=clock)
    q.insert_many([f"task {number}" for number in range(400)])
    done, whole = Counter[str](), AttemptCounts()
    since = now_ms(clock)
    for _ in range(300):
        clock.advance(chance.choice([0.001, 1, 20]))
        tasks = q.lease(chance.randint(1, 6), lease_s=1000)
        done["leased"] += len(tasks)
        done["retried"] += sum(task.attempt > 1 for task in tasks)
        clock.advance(chance.choice([0.5, 2]))
        for task in tasks:
            match chance.randrange(5):
                case 0:
                    task.fail("no luck", delay_s=0)
                    done["failed"] += 1
                case 1:
                    task.bury("no hope")
                    done["failed"] += 1
                case 2:
                    task.release()
                case _:
                    task.complete()
                    done["completed"] += 1
        if chance.random() < 0.2:
            until = now_ms(clock)
            whole.add(count_attempts(q.store, since, until), 1.0)
            since = until
    whole.add(count_attempts(q.store, since, now_ms(clock)), 1.0)
    status = q.status()
    assert status.completed == done["completed"] == sum(whole.work_s.values())
    assert numbers(whole) == (done["leased"], done["retried"], done["failed"], 0, status.dead)
    assert whole.is_whole


def test_a_counting_replay_comes_to_the_state_of_any_other(q: Queue, clock: ManualClock) -> None:
    """Counting is beside the replay, and changes nothing of it."""
    q.insert_many(range(50))
    for task in q.lease(40):
        clock.advance(1)
        task.fail("x", delay_s=0) if task.payload % 2 else task.complete()
    compared = 0
    for batch in listing.with_logs(q.store):
        states = [listing.read_recent_state(q.store, batch, 0, kind)[0] for kind in (ReplayState, CountingReplay)]
        plain, counting = ([one.state, one.since, one.version, one.attempts, one.at, one.remaining] for one in states)
        assert plain == counting
        compared += 1
    assert compared


def test_of_very_much_a_sample_stands_for_all(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = Queue(queue_factory(shards=2).path, clock=clock)
    q.insert_many(range(400), batch_tasks=10)
    begin = now_ms(clock)
    clock.advance(10)
    for task in q.lease(200):
        task.complete()
    q.lease(200)
    exact = count_attempts(q.store, begin, now_ms(clock))
    assert numbers(exact)[0] == 400
    monkeypatch.setattr(attempts, "LOGS_MAX", 4)
    monkeypatch.setattr(attempts, "TASKS_MAX", 50)
    found = count_attempts(q.store, begin, now_ms(clock))
    assert found.leased == pytest.approx(400, rel=0.4)
    assert sum(found.work_s.values()) == pytest.approx(200, rel=0.6)
    assert 0 < found.share < 1
