"""Activity: rates, the average lease, the oldest leases, failures by reason; against what is known to have happened."""

from __future__ import annotations

import math
import random
import tracemalloc
from pathlib import Path

import pytest

from fsqueue import InvalidArgument, LeasedTask, MostUsed, Queue
from fsqueue.clock import ManualClock
from fsqueue.cluster import identity
from fsqueue.format import names
from fsqueue.format.models import Used
from fsqueue.format.replay import DEAD, ReplayState
from fsqueue.storage import deadletters, history, listing
from fsqueue.storage.store import Store
from fsqueue.views import activity
from fsqueue.views.activity import Activity, Rate, total_activity
from tests.conftest import QueueFactory
from tests.pages import text_of
from tests.support import base_of, calls, task_file_names

T0 = 1_795_255_200.0  # 2026-11-21 10:00 UTC


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


@pytest.fixture
def q(queue: Queue, clock: ManualClock) -> Queue:
    return Queue(queue.path, clock=clock)


def work(q: Queue, clock: ManualClock, tasks: int, *, lease_s: float, pause_s: float = 0.0) -> None:
    """Complete tasks one after the other: each is held for `lease_s`."""
    for _ in range(tasks):
        [task] = q.lease()
        clock.advance(lease_s)
        task.complete()
        clock.advance(pause_s)


# -- rates -----------------------------------------------------------------------------------


def test_rates_are_those_at_which_things_happened(q: Queue, clock: ManualClock) -> None:
    """400 tasks long one is leased each half second, and completed 0.4 s later; every fifth second ten are inserted."""
    q.insert_many(range(300))
    for number in range(400):
        if number % 10 == 0:
            q.insert_many(range(10), batch_tasks=5)
        work(q, clock, 1, lease_s=0.4, pause_s=0.1)
    found = q.activity(window_s=60)
    for rate, per_s in ((found.inserted, 2.0), (found.leased, 2.0), (found.completed, 2.0), (found.finished, 2.0)):
        assert rate is not None
        assert rate.per_s == pytest.approx(per_s, abs=1 / 60 + 1e-9)
        assert rate.over_s == 60
        assert rate.error < 0.25
    assert found.lease_s == pytest.approx(0.4, abs=0.001)
    assert found.measured == 120
    assert found.share == 1.0
    assert found.at == clock.now_s


@pytest.mark.parametrize("batch_tasks", [1, 7, 64])
def test_rates_do_not_depend_on_whether_batches_have_finished(q: Queue, clock: ManualClock, batch_tasks: int) -> None:
    q.insert_many(range(200), batch_tasks=batch_tasks)
    clock.advance(100)
    work(q, clock, 150, lease_s=0.5)
    found = q.activity(window_s=30)
    assert found.completed is not None
    assert found.completed.per_s == pytest.approx(2.0, abs=0.05)
    assert found.inserted == Rate(0.0, 1 / 30, 30.0)


def test_what_was_given_up_is_finished_but_not_completed(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(100))
    clock.advance(3600)
    for number, task in enumerate(q.lease(100)):
        clock.advance(1)
        if number % 4 == 0:
            task.bury("no")
        else:
            task.complete()
    found = q.activity(window_s=60)
    assert found.completed is not None
    assert found.finished is not None
    assert found.completed.per_s == pytest.approx(0.75, abs=0.02)
    assert found.finished.per_s == pytest.approx(1.0, abs=0.02)


def test_work_that_began_in_the_window_is_not_diluted_by_the_time_before(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(100))
    clock.advance(3600)
    work(q, clock, 20, lease_s=0.5)
    found = q.activity(window_s=60)
    assert found.completed is not None
    assert found.completed.per_s == pytest.approx(2.0)
    assert found.completed.over_s == 10
    assert found.inserted is not None
    assert found.inserted.over_s == 60


def test_where_little_happens_the_window_is_an_hour(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(300))
    clock.advance(10_000)
    work(q, clock, 200, lease_s=30)
    q.lease()
    found = q.activity()
    assert found.completed is not None
    assert found.completed.over_s == 3600
    assert found.completed.per_s == pytest.approx(1 / 30, rel=0.02)
    short = q.activity(window_s=60).completed
    assert short is not None
    assert short.over_s == 60


def test_when_work_has_stopped_what_was_done_an_hour_ago_promises_nothing(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(100))
    work(q, clock, 50, lease_s=1)
    clock.advance(200)
    found = q.activity()
    assert found.finished == Rate(0.0, 1 / 60, 60.0)
    assert found.left(50) is None
    q.lease()  # somebody is at work again, and nobody knows yet how fast
    clock.advance(70)
    assert q.activity().left(50) is not None


def test_when_the_last_worker_has_gone_no_end_is_promised(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(100))
    work(q, clock, 50, lease_s=0.5)
    assert q.activity().left(50) is not None, "a worker that holds nothing for a moment is no reason to doubt"
    [task] = q.lease()
    clock.advance(11)
    assert q.activity().left(50) is not None, "it may take its time"
    task.release()
    found = q.activity()
    assert found.finished is not None
    assert found.finished.per_s > 0
    assert found.left(50) is None
    assert not found.is_worked


def test_while_only_the_dead_hold_tasks_no_end_is_promised(
    queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q, killed = (Queue(queue.path, worker=name, clock=clock) for name in ("living", "killed"))
    q.insert_many(range(100), batch_tasks=10)
    work(q, clock, 50, lease_s=0.5)
    held = killed.lease(2)
    assert q.activity().left(50) is not None
    monkeypatch.setattr(identity, "lives_here", lambda worker: worker["name"] != "killed")
    assert q.activity().left(50) is None, "although tasks were finished just now"
    [task] = q.lease()
    assert q.activity().left(50) is not None, "another worker is at work"
    monkeypatch.setattr(identity, "lives_here", lambda worker: None)
    task.release()
    assert q.activity().left(50) is not None, "it may live on another host"
    killed.release(held)


@pytest.mark.batched
def test_when_a_task_was_last_leased(q: Queue, clock: ManualClock, queue_factory: QueueFactory) -> None:
    assert q.activity().last_leased is None
    q.insert_many(range(3), batch_tasks=3)
    first = clock.now_ms() / 1000
    [task] = q.lease()
    clock.advance(100)
    task.complete()
    clock.advance(300)
    assert q.activity().last_leased == first, "though it has ended, and before the window"
    clock.advance(7)
    q.lease()
    last = q.activity()
    assert last.last_leased == clock.now_ms() / 1000 == first + 407
    other = Queue(queue_factory("other").path, clock=clock)
    assert total_activity([other.activity(), last]).last_leased == last.last_leased


def test_how_many_workers_hold_something(q: Queue, clock: ManualClock, queue_factory: QueueFactory) -> None:
    other = Queue(queue_factory("other").path, "one", clock=clock)
    q.insert_many(range(10), batch_tasks=2)
    other.insert("x")
    one, two = (Queue(q.path, name, clock=clock) for name in ("one", "two"))
    assert q.activity().workers == 0
    held = [*one.lease(3), *two.lease(1, lease_s=5)]
    other.lease()
    assert q.activity().workers == 2
    assert total_activity([q.activity(), other.activity()]).workers == 2, "one of them holds tasks of both"
    clock.advance(6)
    assert q.activity().workers == 1, "a lease that ran out is held by nobody"
    q.complete(held[:3])
    assert q.activity().as_dict()["workers"] == 0


def test_a_queue_in_which_nothing_happens_has_rates_of_zero_and_no_end(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(10))
    clock.advance(10_000)
    found = q.activity()
    assert found.finished is not None
    assert found.finished.per_s == 0
    assert found.left(10) is None
    assert found.lease_s is None
    assert found.oldest == found.failures == []


def test_without_a_history_rates_are_not_known(queue_factory: QueueFactory, clock: ManualClock) -> None:
    q = Queue(queue_factory(keep_history=False).path, clock=clock)
    q.insert_many(range(10), batch_tasks=5)
    work(q, clock, 7, lease_s=2)
    found = q.activity()
    assert found.inserted is found.completed is found.left(3) is None


def test_what_finished_just_before_midnight_is_in_the_window(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(100), batch_tasks=2)
    clock.advance(14 * 3600 - 40)
    work(q, clock, 60, lease_s=1)
    assert len(history.days(q.store)) == 2
    assert q.activity(window_s=50).measured in (50, 51)


# -- time left -------------------------------------------------------------------------------


@pytest.mark.parametrize("length", ["random", "constant", "mixed"])
def test_the_interval_of_the_time_left_holds_the_truth_about_nineteen_times_of_twenty(length: str) -> None:
    """Four workers, many times over: how often the end comes within what was foretold after a minute."""
    dice = random.Random(20)
    draw = {
        "random": lambda: dice.expovariate(1 / 2),
        "constant": lambda: 2.0,
        "mixed": lambda: 0.5 if dice.random() < 0.8 else 8.0,
    }[length]
    hits, runs = 0, 300
    for _ in range(runs):
        ends = []
        for _ in range(4):
            now = dice.random() * 2
            while now < 500:
                ends.append(now := now + draw())
        ends.sort()
        part = activity.FileSample(1)
        part.units.append(activity.Unit())
        part.units[0].events[activity.FINISHED].update(int(at * 1000) for at in ends if at <= 60)
        rate = activity.rate_of([part], activity.FINISHED, 0, 60_000)
        left = Activity(60, None, None, None, rate, None, None, 0, 1.0).left(400)
        assert left is not None
        truth = ends[sum(at <= 60 for at in ends) + 400 - 1] - 60
        hits += left.least_s <= truth <= (left.most_s or math.inf)
    assert hits >= 0.92 * runs, f"{hits} of {runs}"


def test_the_less_steady_the_work_the_wider_the_interval(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(400))
    clock.advance(100)
    work(q, clock, 60, lease_s=1)
    steady = q.activity(window_s=60).left(100)
    clock.advance(20)
    q.complete(q.lease(40))
    bursts = q.activity(window_s=60).left(100)
    assert steady is not None
    assert bursts is not None
    assert steady.likely_s == pytest.approx(100)
    assert steady.most_s == pytest.approx(100, rel=0.1)
    assert bursts.least_s < 70
    assert bursts.most_s is None


# -- leases and failures ---------------------------------------------------------------------


def test_the_oldest_leases_come_first_with_whoever_holds_them(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(12), batch_tasks=12)
    first, second = Queue(q.path, worker="first", clock=clock), Queue(q.path, worker="second", clock=clock)
    first.lease(1, lease_s=3600)
    clock.advance(100)
    held = second.lease(5, lease_s=3600)
    clock.advance(100)
    q.lease(1, lease_s=1)
    clock.advance(10)  # that one runs out
    second.complete(held[:2])
    oldest = q.activity().oldest
    if len(task_file_names(q)) > 1:  # batches of one
        assert [(held.tasks, held.worker and held.worker["name"]) for held in oldest] == [
            (1, "first"),
            *[(1, "second")] * 3,
        ]
    else:
        assert [(held.tasks, held.worker and held.worker["name"]) for held in oldest] == [(1, "first"), (3, "second")]
    assert [held.since for held in oldest][:2] == [T0, T0 + 100]
    assert oldest[0].until == T0 + 3600
    assert oldest[0].attempt == 1


def test_failures_are_grouped_by_what_their_reasons_have_in_common(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(12), batch_tasks=4)
    tasks = q.lease(12)
    for number, task in enumerate(tasks[:5]):
        clock.advance(1)
        task.bury(f"tile {number} is missing\nlong story {number}")
    tasks[5].bury("exit status 1")
    tasks[6].bury("exit status 2")
    tasks[7].fail("tile 99 is missing")
    q.purge_dead([tasks[0].id])
    found = {failure.reason: (failure.dead, failure.retrying) for failure in q.activity().failures}
    assert sorted(found.values()) == [(0 + 1, 0), (1, 0), (4, 1)]
    [tiles] = [failure for failure in q.activity().failures if failure.dead == 4]
    assert tiles.last == T0 + 5
    assert tiles.reason.startswith("tile ")
    assert "\n" not in tiles.reason
    assert q.activity().whole_reasons


def test_of_many_dead_letters_the_latest_are_read(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.insert_many(range(300), batch_tasks=300)
    for task in q.lease(300):
        task.bury("why not " * 10)
    monkeypatch.setattr(activity, "LETTERS_BYTES_MAX", 8_000)
    found = q.activity()
    assert not found.whole_reasons
    assert 0 < found.failures[0].dead < 200


def test_letters_that_were_dealt_with_are_not_among_the_latest(q: Queue) -> None:
    q.insert_many(range(6), batch_tasks=6)
    for task in q.lease(6):
        task.bury("no")
    ids = sorted(letter.id for letter in q.dead())
    assert q.purge_dead(ids[:2]) == 2
    assert q.retry_dead(ids[2:4]) == 2
    letters, whole = deadletters.latest(q.store, 1 << 20)
    assert (sorted(letter.id for letter in letters), whole) == (ids[4:], True)


# -- what it costs ---------------------------------------------------------------------------


def hollow(q: Queue, batches: int) -> None:
    """Task files of 1,024 tasks each without content: looking at a queue reads names."""
    now = q.store.clock.now_ms() - 3_600_000
    q.store.make_generation()
    for _ in range(batches):
        batch = q.store.entropy.uuid7(now)
        path = Path(q.store.layout.task_file(names.TaskFileName(0, batch, 1024)))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


@pytest.mark.batched
def test_what_a_look_costs_at_a_million_tasks_and_at_a_thousand(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/status.md says so. A count of steps, at the filesystem layer."""
    costs = {}
    for batches in (1, 977):
        q = Queue(queue_factory(f"of-{batches}").path, clock=clock)
        q.insert_many(range(2048), batch_tasks=64)  # 32 batches that are worked on
        for _ in range(16):
            clock.advance(1)
            q.complete(q.lease(64))
        held = [q.lease(1) for _ in range(8)]
        hollow(q, batches)
        assert len(held) == 8
        with calls(monkeypatch) as counted:
            other = Queue(q.path, clock=clock)
            counted.clear()
            assert other.status().inserted == 2048 + batches * 1024
            status = counted.total()
            counted.clear()
            assert other.activity().measured == 1024
            costs[batches] = status, counted.total()
    (_, small), (status, large) = costs[1], costs[977]
    assert small <= large <= 1.5 * status
    assert large <= 450


def test_what_a_look_costs_at_a_thousand_tasks_is_what_the_page_says(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    Queue.create(tmp_path / "q").close()
    queue = Queue(tmp_path / "q", clock=clock)
    queue.insert_many(range(1024), batch_tasks=1024)
    queue.lease(1)
    looks = {
        "`q.status()`": Queue.status,
        "`q.activity()`, if fewer have, and workers are active": Queue.activity,
        "`q.status(exact=False)`, as with `--fast`": lambda q: q.status(exact=False),
        "`q.activity()`, if 30 tasks or more have finished within the last minute": Queue.activity,
    }
    rows = [line.split("|")[1:-1] for line in text_of("docs/status-cost.md").splitlines() if line.startswith("| `q.")]
    said = {row[0].strip(): int(row[3]) for row in rows}
    assert said.keys() == looks.keys()
    for row, look in looks.items():
        if "30 tasks or more" in row:
            queue.complete(queue.lease(100))
        with calls(monkeypatch) as counted:
            other = Queue(queue.path, clock=clock)
            counted.clear()
            look(other)
            assert (row, counted.total()) == (row, said[row])


def test_many_logs_and_a_long_history_are_sampled(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only so many are read, and the error says how far that may be off."""
    q = Queue(queue_factory(durability="none").path, clock=clock)
    q.insert_many(range(500), batch_tasks=1)
    clock.advance(100)
    for _ in range(400):  # as many logs
        clock.advance(0.05)
        q.lease()
    truth = q.activity(window_s=20)
    assert truth.share == 1.0
    assert truth.leased is not None
    monkeypatch.setattr(activity, "LOGS_MAX", 100)
    within = 0
    for _ in range(20):
        found = q.activity(window_s=20)
        assert found.share < 0.5
        assert found.leased is not None
        assert found.leased.error > truth.leased.error
        within += abs(found.leased.per_s - truth.leased.per_s) < 2.5 * found.leased.error
    assert within >= 17


def test_of_a_single_shard_with_many_logs_a_part_is_read(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = Queue(queue_factory(shards=1).path, clock=clock)
    q.insert_many(range(300), batch_tasks=1)
    q.lease(300)
    clock.advance(20)
    monkeypatch.setattr(activity, "LOGS_MAX", 100)
    found = q.activity(window_s=30)
    assert found.leased is not None
    assert found.leased.per_s * found.leased.over_s == pytest.approx(300)


def test_a_history_that_is_too_long_shortens_the_window(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = Queue(queue_factory(shards=1).path, clock=clock)
    q.insert_many(range(600), batch_tasks=2)
    clock.advance(100)
    work(q, clock, 590, lease_s=0.1)
    monkeypatch.setattr(activity, "HISTORY_BYTES_MAX", 100_000)
    found = q.activity(window_s=60)
    assert found.completed is not None
    assert found.completed.over_s < 40
    assert found.completed.per_s == pytest.approx(10, rel=0.05)
    monkeypatch.setattr(activity, "HISTORY_BYTES_MAX", 100)
    assert q.activity(window_s=60).completed is None


@pytest.mark.batched
def test_of_a_history_with_many_tasks_batches_are_drawn_and_the_error_says_how_far_that_may_be_off(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = Queue(queue_factory(durability="none").path, clock=clock)
    clock.advance(1000)
    for number in range(300):  # batches of 10 and 30 tasks in turn, worked off for a second or three
        q.insert_many(range(10 + number % 2 * 20), batch_tasks=1)
        tasks = q.lease(30)
        clock.advance(len(tasks) / 10)
        q.complete(tasks)
    truth = q.activity(window_s=200)
    assert truth.share == 1.0, "what is not too much is all read"
    assert 2000 <= truth.measured <= 2030
    assert truth.completed is not None
    assert truth.lease_s is not None
    monkeypatch.setattr(activity, "TASKS_MAX", 500)
    near = leases_near = 0
    for _ in range(20):
        found = q.activity(window_s=200)
        assert 0.1 < found.share < 0.5
        assert 300 <= found.measured < 530
        assert found.completed is not None
        assert found.lease_s is not None
        assert found.lease_error is not None
        assert found.completed.over_s == truth.completed.over_s
        assert found.completed.error < 0.2 * truth.completed.per_s
        near += abs(found.completed.per_s - truth.completed.per_s) < 2.5 * found.completed.error
        leases_near += abs(found.lease_s - truth.lease_s) < 2.5 * found.lease_error
    assert near >= 17
    assert leases_near >= 17


@pytest.mark.batched
def test_a_look_replays_no_more_tasks_than_its_bound_and_keeps_none_of_them(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = Queue(queue_factory(durability="none").path, clock=clock)
    q.insert_many(range(160 * 1024))
    clock.advance(10)
    for _ in range(80):
        clock.advance(0.1)
        q.complete(q.lease(1024))
    for _ in range(80):
        q.lease(1024)
    monkeypatch.setattr(activity, "TASKS_MAX", 20_000)
    q.activity()
    tracemalloc.start()
    try:
        found = q.activity()
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()
    assert 20_000 <= found.measured < 20_000 + 1024
    assert found.leased is not None
    assert found.leased.error > 0
    assert found.share == pytest.approx(0.25, abs=0.02)
    assert len(found.holders or ()) == 1


# -- several queues, strays, bad input --------------------------------------------------------


def test_several_queues_together(queue_factory: QueueFactory, clock: ManualClock) -> None:
    found = []
    for name, seconds in (("a", 1), ("b", 2)):
        q = Queue(queue_factory(name).path, clock=clock)
        q.insert_many(range(100))
        start = clock.now_s
        work(q, clock, 30, lease_s=seconds)
        found.append(q.activity(window_s=clock.now_s - start))
    both = activity.total_activity(found)
    assert both.completed is not None
    assert both.completed.per_s == pytest.approx(1.5, abs=0.05)
    assert both.lease_s == pytest.approx(1.5)
    assert both.measured == 60
    assert activity.total_activity([found[0]]) == found[0]
    assert activity.total_activity([]).completed is None


def test_a_purge_meanwhile_is_no_error(q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    q.insert_many(range(10))
    q.lease(3)
    other, purged = Queue(q.path, clock=clock), []
    read_history = activity.Survey._history

    def purging(survey: activity.Survey) -> activity.FileSample:
        if not purged:
            purged.append(other.purge())
        return read_history(survey)

    monkeypatch.setattr(activity.Survey, "_history", purging)
    assert q.activity().oldest == []


def test_a_batch_that_finishes_meanwhile_is_counted_once(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.insert_many(range(4), batch_tasks=2)
    clock.advance(10)
    tasks = q.lease(4)
    clock.advance(10)
    q.complete(tasks[:1])
    read = listing.read_recent_state

    def finishing(store: Store, batch: str, before_ms: int) -> tuple[ReplayState, int, int]:
        q.complete(task for task in tasks if not task.done)  # between the listing and this look
        return read(store, batch, before_ms)

    monkeypatch.setattr(listing, "read_recent_state", finishing)
    found = q.activity(window_s=60)
    assert found.measured == 4
    assert found.inserted is not None
    assert found.inserted.per_s * 60 == pytest.approx(4)


@pytest.mark.batched
def test_what_was_read_in_a_log_is_not_read_in_the_history_again(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.insert_many(range(2), batch_tasks=2)
    one, two = q.lease(2)
    clock.advance(10)
    one.complete()
    read = listing.read_recent_state

    def finishing(store: Store, batch: str, before_ms: int) -> tuple[ReplayState, int, int]:
        found = read(store, batch, before_ms)
        two.complete()
        return found

    monkeypatch.setattr(listing, "read_recent_state", finishing)
    assert q.activity(window_s=60).measured == 1
    assert q.activity(window_s=60).measured == 2


def test_strays_in_the_history_are_passed_by(q: Queue, clock: ManualClock) -> None:
    q.insert("x")
    day = base_of(q) / "history" / history.day_of(clock.now_ms())
    (day / "00.jsonl").mkdir(parents=True)
    (day / "01.jsonl").write_bytes(b'nonsense\n{"batch":"x","records":[{"op":"finish","at":99999999999999999}]}\ntorn')
    (day / "02.jsonl").symlink_to("/etc/passwd")
    (day / "readme").write_text("mine")
    assert q.activity().measured == 0


@pytest.mark.parametrize("window_s", [0, 0.5, -1, "60", float("nan"), True])
def test_a_window_is_at_least_a_second(q: Queue, window_s: object) -> None:
    with pytest.raises(InvalidArgument, match="window_s"):
        q.activity(window_s)  # type: ignore[arg-type]


def test_it_goes_into_json(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(3))
    q.lease(2)
    clock.advance(2)
    found = q.activity().as_dict()
    assert found["leased"]["per_s"] == pytest.approx(1.0)
    assert found["oldest"][0]["worker"]["pid"]


# -- what attempts used ------------------------------------------------------------------------


def use(task: LeasedTask, cpu_ms: int, peak_kib: int) -> LeasedTask:
    """Have an attempt measured, as a worker does."""
    task.used = Used(cpu_ms, peak_kib)
    return task


@pytest.mark.parametrize("batch_tasks", [1, 5])
def test_the_most_that_attempts_used(q: Queue, clock: ManualClock, batch_tasks: int) -> None:
    """Those that failed or gave a task up count as well; what was not measured does not."""
    q.insert_many(range(5), batch_tasks=batch_tasks)
    tasks = {task.payload: task for task in q.lease(5)}
    assert q.activity().most_used is None
    use(tasks[0], 1500, 100).complete()
    use(tasks[1], 20, 5000).fail("out of memory", delay_s=0)
    use(tasks[2], 90_000, 300).bury("no")
    tasks[3].complete()
    clock.advance(1)
    found = q.activity().most_used
    assert found == MostUsed(3, 5000 * 1024, tasks[1].id, 90.0, tasks[2].id)
    assert q.activity().as_dict()["most_used"]["memory_id"] == tasks[1].id
    [again] = [task for task in q.lease(5) if task.payload == 1]
    again.complete()
    assert q.activity().most_used == MostUsed(2, 300 * 1024, tasks[2].id, 90.0, tasks[2].id), "the last attempt counts"


def test_what_finished_before_the_window_is_not_among_it(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(2), batch_tasks=1)
    first, second = q.lease(2)
    use(first, 70_000, 9000).complete()
    clock.advance(1000)
    use(second, 10, 20).complete()
    clock.advance(1)
    assert q.activity(60).most_used == MostUsed(1, 20 * 1024, second.id, 0.01, second.id)
    assert q.activity(2000).most_used == MostUsed(2, 9000 * 1024, first.id, 70.0, first.id)
    both = total_activity([q.activity(60), q.activity(2000)])
    assert both.most_used == MostUsed(3, 9000 * 1024, first.id, 70.0, first.id)


@pytest.mark.batched
def test_what_a_task_is_buried_for_without_a_lease_says_nothing_of_its_attempts(q: Queue) -> None:
    """`bury` of a lease that ran out ends no attempt: the one before it still counts."""
    state = ReplayState()
    for offset, record in enumerate(
        [
            {"op": "open", "at": 0, "count": 1, "birth": 0, "available_at": 0, "name": "x"},
            {"op": "lease", "at": 1, "lease": "a" * 16, "tasks": [[0, 1]], "until": 9, "worker": {}},
            {"op": "fail", "at": 2, "lease": "a" * 16, "tasks": [[0, 1]], "available_at": 3, "error": "",
             "used": [[7, 8]]},
            {"op": "bury", "at": 4, "tasks": [[0, 1]], "reason": "no"},
        ]
    ):  # fmt: skip
        state.apply(record, offset)
    assert (state.used, state.done[DEAD]) == ({0: (7, 8)}, 1)
