"""Tasks with priorities: the most urgent ones are leased first."""

from __future__ import annotations

import random
from contextlib import ExitStack
from itertools import count, islice
from pathlib import Path

import pytest

from fsqueue import InvalidArgument, InvalidTask, Queue, Task
from fsqueue.clock import ManualClock
from fsqueue.format import checkpoints
from fsqueue.format.priority import Priority, rank_of
from fsqueue.format.task_states import States
from fsqueue.protocol import leasing, selection
from fsqueue.protocol.selection import BUSY_AGAIN_S, KNOWN_S, LISTING_S, LISTING_SHARE
from fsqueue.storage.locked_batch import LockedBatch
from tests.support import QueueFactory, insert_in_file, insert_into, put_open, put_ranked

pytestmark = pytest.mark.once


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def q(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    return Queue(queue_factory(shards=1).path, clock=clock)


def worked(q: Queue, n: int = 1) -> list[object]:
    """Lease and complete all tasks, `n` at a time; their payloads in that order."""
    found: list[object] = []
    while tasks := q.lease(n):
        found += [task.payload for task in tasks]
        q.complete(tasks)
    return found


@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("seed", range(5))
def test_one_worker_and_one_shard_make_an_exact_order(q: Queue, clock: ManualClock, seed: int, n: int) -> None:
    lots = random.Random(seed)
    kinds: list[Priority | None] = [None, -5, 3, 10, "", "a", "ü", "10"]
    all_tasks: list[tuple[int, Priority | None]] = []
    for batch in range(8):
        tasks = [(100 * batch + number, lots.choice(kinds)) for number in range(lots.randint(1, 9))]
        all_tasks += tasks
        clock.advance(0.01)
        (put_open if lots.random() < 0.5 else put_ranked)(q, list(tasks))
    found, given = worked(q, n), dict(all_tasks)
    assert sorted(found) == sorted(given)  # type: ignore[type-var]
    ranks = [rank_of(given[payload]) for payload in found if isinstance(payload, int)]
    assert ranks == sorted(ranks)
    for batch in range(8):
        own = [payload for payload in found if isinstance(payload, int) and payload // 100 == batch]
        assert own == sorted(own, key=lambda payload: (rank_of(given[payload]), payload))


@pytest.mark.parametrize("open_batches", [False, True])
def test_a_loop_keeps_the_order_too(q: Queue, clock: ManualClock, open_batches: bool) -> None:
    for tasks in ([("a", 1), ("d", 4), ("e", 5)], [("b", 2), ("c", 3), ("f", 6)]):
        clock.advance(0.01)
        (put_open if open_batches else put_ranked)(q, list(tasks))
    found = []
    for task in q.poll():
        with task:
            found.append(task.payload)
    assert found == list("abcdef")


def test_numbers_come_back_as_numbers_and_texts_as_texts(q: Queue) -> None:
    put_ranked(q, [("x", 10), ("y", 9), ("z", "10")])
    found = q.lease(3)
    assert [(task.payload, task.priority) for task in found] == [("z", "10"), ("y", 9), ("x", 10)]
    assert q.task(found[0].id).priority == "10"
    assert q.task(found[1].id).priority == 9


def test_tasks_without_a_priority_come_last_the_oldest_first(q: Queue, clock: ManualClock) -> None:
    insert_in_file(q, "old")
    clock.advance(0.01)
    insert_in_file(q, "young")
    clock.advance(0.01)
    put_ranked(q, [("urgent", 10**18)])
    assert worked(q) == ["urgent", "old", "young"]


def test_equal_priorities_do_not_make_a_worker_leave_its_batch(q: Queue, clock: ManualClock) -> None:
    first = put_ranked(q, [(1, 7), (2, 7), (3, 7)])
    clock.advance(0.01)
    put_ranked(q, [(4, 7), (5, 7)])
    assert [q.lease()[0].batch for _ in range(3)] == [first] * 3


def test_what_comes_back_takes_its_place(q: Queue, clock: ManualClock) -> None:
    put_ranked(q, [("a", 1), ("b", 2), ("c", 3), ("d", 4)])
    a, b = q.lease(2)
    b.release()
    assert q.lease()[0].payload == "b"
    a.fail("no", delay_s=5)
    assert q.lease()[0].payload == "c"
    clock.advance(6)
    assert q.lease()[0].payload == "a"


def test_a_lease_that_ran_out_takes_its_place(q: Queue, clock: ManualClock) -> None:
    put_ranked(q, [("a", 1), ("b", 2), ("c", 3)])
    q.lease(lease_s=5)
    clock.advance(6)
    assert worked(q) == ["a", "b", "c"]


# -- noticing -------------------------------------------------------------------------------------


@pytest.mark.parametrize("delay_s", [0, 3.7])
def test_a_worker_that_stays_with_a_batch_notices_an_urgent_task_within_a_second(
    q: Queue, clock: ManualClock, delay_s: float
) -> None:
    put_ranked(q, [(number, 100) for number in range(400)])
    other = Queue(q.path, clock=clock)
    due = float("inf")
    for number, task in enumerate(q.poll()):
        if task.payload == "urgent":
            task.complete()
            break
        clock.advance(0.1)
        if number == 55:
            other.insert("urgent", priority=5, delay_s=delay_s)
            due = clock.monotonic() + delay_s
        assert clock.monotonic() < due + LISTING_S + 0.11
        task.complete()
    assert due - 0.1 <= clock.monotonic() <= due + LISTING_S + 0.11


def test_single_leases_notice_an_urgent_task_within_a_second(q: Queue, clock: ManualClock) -> None:
    """A worker that stays with its batch chooses among no heads meanwhile."""
    put_ranked(q, [(number, 100) for number in range(400)])
    other = Queue(q.path, clock=clock)
    found: list[object] = []
    for number in range(70):
        if number == 55:
            put_ranked(other, [("urgent", 5)])
        found.append(q.lease()[0].payload)
        clock.advance(0.1)
    assert "urgent" in found
    assert 55 <= found.index("urgent") <= 55 + 10 * LISTING_S + 1


def test_a_worker_notices_that_priorities_begin(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(400))
    other = Queue(q.path, clock=clock)
    for number, task in enumerate(q.poll()):
        if task.payload == "urgent":
            task.complete()
            break
        clock.advance(0.1)
        if number == 55:
            put_ranked(other, [("urgent", 5)])
        assert number < 58
        task.complete()


def test_an_open_batch_that_has_become_urgent_again_is_noticed(q: Queue, clock: ManualClock) -> None:
    """Its name has promised as much before, and so does not change."""
    batch = put_open(q, [("a", 1), ("z", 90)])
    clock.advance(0.01)
    put_ranked(q, [(number, 50) for number in range(100)])
    assert q.lease()[0].payload == "a"
    assert q.lease()[0].payload == 0
    with LockedBatch(q.store, batch) as locked:
        insert_into(locked, 2, "again", 10)
    clock.advance(LISTING_S)
    assert q.lease()[0].payload == "again"
    assert q.lease()[0].payload == 1


def test_a_task_that_comes_back_elsewhere_is_noticed(q: Queue, clock: ManualClock) -> None:
    put_ranked(q, [("a", 1), ("z", 90)])
    clock.advance(0.01)
    put_ranked(q, [(number, 50) for number in range(100)])
    other = Queue(q.path, clock=clock)
    (a,) = other.lease()
    assert q.lease()[0].payload == 0
    a.release()
    clock.advance(KNOWN_S)
    assert q.lease()[0].payload == "a"


def test_listing_takes_a_twentieth_of_the_time_at_most(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_ranked(q, [(number, 50) for number in range(100)])
    names, listed = q.store.fs.names, []

    def slow(path: str, strict: bool = False) -> list[str]:
        clock.advance(0.5)
        listed.append(clock.monotonic())
        return names(path, strict)

    monkeypatch.setattr(q.store.fs, "names", slow)
    for _ in range(100):
        clock.advance(1.5)
        q.lease()
    took = 2 * 0.5  # the shards, and the one shard
    assert len(listed) <= 4 + 2 * (150 + len(listed) / 2) / (took / LISTING_SHARE)


def test_a_busy_batch_is_passed_over(q: Queue, clock: ManualClock) -> None:
    busy = put_ranked(q, [("a", 1), ("b", 1), ("c", 1)])
    clock.advance(0.01)
    put_ranked(q, [(number, 50) for number in range(100)])
    assert q.lease()[0].payload == "a"
    other = Queue(q.path, clock=clock)
    with LockedBatch(other.store, busy):
        assert [q.lease()[0].payload for _ in range(5)] == [0, 1, 2, 3, 4]
    assert q.lease()[0].payload == 5, "it is not looked into at once"
    clock.advance(0.06)
    assert q.lease()[0].payload == "b"


def test_a_batch_that_is_busy_again_soon_rests_longer(q: Queue, clock: ManualClock) -> None:
    """Also if it gave a task in between."""
    busy = put_ranked(q, [(f"u{number}", 1) for number in range(9)])
    clock.advance(0.01)
    put_ranked(q, [(number, 50) for number in range(100)])
    other = Queue(q.path, clock=clock)

    def meet() -> None:
        assert str(q.lease()[0].payload)[0] == "u"
        with LockedBatch(other.store, busy):
            assert type(q.lease()[0].payload) is int

    meet()
    clock.advance(0.06)
    meet()
    clock.advance(0.06)
    assert type(q.lease()[0].payload) is int
    clock.advance(0.05)
    meet()
    clock.advance(0.2 + BUSY_AGAIN_S + 1)
    meet()
    clock.advance(0.06)
    assert str(q.lease()[0].payload)[0] == "u", "that was long ago"


def test_a_worker_that_stays_with_a_batch_leaves_it_for_one_that_was_busy(q: Queue, clock: ManualClock) -> None:
    busy = put_ranked(q, [("a", 1), ("b", 2)])
    clock.advance(0.01)
    put_ranked(q, [(number, 50) for number in range(9)])
    assert q.lease()[0].payload == "a"
    with LockedBatch(Queue(q.path, clock=clock).store, busy):
        q.lease()
    found = []
    for _ in range(4):
        clock.advance(0.02)
        found.append(q.lease()[0].payload)
    assert found == [1, 2, "b", 3]


def test_nothing_but_a_busy_batch_is_waited_for(q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = put_ranked(q, [("a", 1), ("b", 1)])
    other = Queue(q.path, clock=clock)
    with LockedBatch(other.store, busy, create=True) as locked:
        sleep = clock.sleep

        def unlock(seconds: float) -> None:
            locked.unlock()
            sleep(seconds)

        monkeypatch.setattr(clock, "sleep", unlock)
        assert q.lease()[0].payload == "a"


@pytest.mark.parametrize("with_priorities", [True, False])
def test_a_batch_that_is_free_when_the_waiting_is_over_is_tried_once_more(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, with_priorities: bool
) -> None:
    """The last pauses are long: a holder that was stopped may go on during the very last one."""
    busy = put_ranked(q, [("a", 1 if with_priorities else None)])
    stack = ExitStack()
    stack.enter_context(LockedBatch(Queue(q.path, clock=clock).store, busy, create=True))
    begin, sleep = clock.monotonic(), clock.sleep

    def sleep_and_free(seconds: float) -> None:
        sleep(seconds)
        if clock.monotonic() >= begin + leasing.BUSY_WAIT_S:
            stack.close()

    monkeypatch.setattr(clock, "sleep", sleep_and_free)
    assert [task.payload for task in q.lease()] == ["a"]


@pytest.mark.parametrize("with_priorities", [True, False])
@pytest.mark.parametrize("tries", [1, 5])
def test_a_strict_lease_waits_for_the_batch_that_comes_next(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, with_priorities: bool, tries: int
) -> None:
    busy = put_ranked(q, [("first", 1 if with_priorities else None)])
    clock.advance(0.01)
    put_ranked(q, [("second", 2 if with_priorities else None)])
    stack = ExitStack()
    stack.enter_context(LockedBatch(Queue(q.path, clock=clock).store, busy, create=True))
    sleep, slept = clock.sleep, count(1)

    def sleep_and_free(seconds: float) -> None:
        sleep(seconds)
        if next(slept) == tries:
            stack.close()

    monkeypatch.setattr(clock, "sleep", sleep_and_free)
    assert [q.lease(strict=True)[0].payload for _ in range(2)] == ["first", "second"]
    assert next(slept) == tries + 1, "nothing else was waited for"


def test_a_strict_lease_passes_a_batch_by_that_stays_locked(
    q: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    busy = put_ranked(q, [("first", 1)])
    put_ranked(q, [("second", 2), ("third", 3)])
    begin = clock.monotonic()
    with LockedBatch(Queue(q.path, clock=clock).store, busy, create=True):
        assert [task.payload for task in q.lease(2, strict=True)] == ["second", "third"]
        assert clock.monotonic() - begin == pytest.approx(leasing.BUSY_WAIT_S, abs=0.1)
        assert caplog.text.count(f"{busy} of {q.path} stayed locked for 2 s and was passed by") == 1
        assert q.lease(strict=True) == []
        assert clock.monotonic() - begin == pytest.approx(2 * leasing.BUSY_WAIT_S, abs=0.2)
    assert [task.payload for task in q.lease(strict=True)] == ["first"]


@pytest.mark.parametrize("with_priorities", [True, False])
def test_a_strict_lease_does_not_miss_a_file_that_is_being_renamed(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, with_priorities: bool
) -> None:
    """An inserter renames its open batch when a more urgent task joins it: a listing of that moment may miss it."""
    moving = put_open(q, [("first", 1 if with_priorities else None)])
    clock.advance(0.01)
    put_ranked(q, [("second", 2 if with_priorities else None)])
    fs = q.store.fs
    names_of, missed = fs.names, count(1)

    def names(path: str, strict: bool = False) -> list[str]:
        found = names_of(path, strict)
        if any(moving in name for name in found) and "/queue/" in path and next(missed) == 1:
            return [name for name in found if moving not in name]
        return found

    monkeypatch.setattr(fs, "names", names)
    assert [q.lease(strict=True)[0].payload for _ in range(2)] == ["first", "second"]
    assert next(missed) > 2


def insert_one_by_one(q: Queue, clock: ManualClock, tasks: list[Priority | None]) -> None:
    """Insert tasks whose payloads are their priorities, by another process, each in a batch of its own."""
    other = Queue(q.path, clock=clock)
    for priority in tasks:
        clock.advance(0.002)
        other.insert_many([Task(priority, priority=priority)], batch_tasks=1)


@pytest.mark.parametrize("is_at_work", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("ranks", [[None, 1], [5, 6, 5, 7], [None, "b", None, "a"]])
def test_a_strict_lease_knows_at_once_that_the_first_priority_came(
    q: Queue, clock: ManualClock, ranks: list[Priority | None], n: int, is_at_work: bool
) -> None:
    """`queue.jsonl` was read within the last second, when no task had a priority."""
    if is_at_work:
        q.insert_many(["before"] * 9, batch_tasks=9)
        assert q.lease()[0].payload == "before"
    insert_one_by_one(q, clock, ranks)
    assert not q.has_priorities, "as last read"
    found: list[object] = []
    while len(found) < len(ranks) and (tasks := q.lease(n, strict=True)):
        found += [task.priority for task in tasks]
    assert found[: len(ranks)] == sorted(ranks, key=rank_of)


def test_an_idle_worker_that_is_notified_knows_at_once_that_the_first_priority_came(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    sleep, left = clock.sleep, [True]

    def sleep_and_insert(seconds: float) -> None:
        sleep(seconds)
        if left:
            left.clear()
            insert_one_by_one(q, clock, [None, 1])

    monkeypatch.setattr(clock, "sleep", sleep_and_insert)
    assert q.lease(wait_s=20)[0].payload == 1
    assert not left


def test_what_has_come_due_is_compared_with_all_else_by_a_strict_lease(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = Queue(queue_factory("due", shards=64).path, clock=clock)
    due = clock.now_ms() + 3000
    put_ranked(q, [("due", 5)], available_at=due)
    sleep, urgent = clock.sleep, iter([[("urgent", 1)]] * 3)

    def sleep_and_insert(seconds: float) -> None:
        sleep(seconds)
        if clock.now_ms() >= due:
            for tasks in urgent:
                put_ranked(q, list(tasks))  # without a notification

    monkeypatch.setattr(clock, "sleep", sleep_and_insert)
    assert q.lease(strict=True, wait_s=20)[0].payload == "urgent"


def test_more_heads_than_are_kept(q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "HEADS_MAX", 3)
    tasks: list[tuple[int, Priority | None]] = [(number, 20 - number if number % 3 else None) for number in range(20)]
    for task in tasks:
        clock.advance(0.01)
        put_ranked(q, [task])
    assert sorted(worked(q)) == list(range(20))  # type: ignore[type-var]
    assert q.status().drained


def test_many_batches_that_promise_too_much(q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others take what names promise; after a while the next task will do, and none is lost."""
    monkeypatch.setattr(leasing, "OVERPROMISED_MAX", 2)
    for number in range(9):
        clock.advance(0.01)
        put_ranked(q, [(number, 1), (100 + number, 50 - number)])
    other = Queue(q.path, clock=clock)
    assert len(other.lease(9)) == 9
    assert sorted(worked(q)) == list(range(100, 109))  # type: ignore[type-var]


def test_a_strict_lease_looks_into_all_batches_that_promise_too_much(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many: each of its leases knows nothing from before, and would give up at the same ones again."""
    monkeypatch.setattr(leasing, "OVERPROMISED_MAX", 2)
    for number in range(9):
        clock.advance(0.01)
        put_ranked(q, [(number, 1), (100 + number, 50 - number)])
    assert len(Queue(q.path, clock=clock).lease(9)) == 9
    assert [q.lease(strict=True)[0].payload for _ in range(9)] == list(range(108, 99, -1))
    assert q.lease(strict=True) == []


def test_a_loop_keeps_the_order_behind_a_task_that_is_out_of_attempts(
    queue_factory: QueueFactory, clock: ManualClock
) -> None:
    """A completion takes nothing then: what it had chosen stays in its batch."""
    q = Queue(queue_factory("once", shards=1, max_attempts=1, lease_s=10).path, clock=clock)
    put_ranked(q, [("a0", 1), ("a1", 2), ("a2", 3), ("a3", 9)])
    clock.advance(0.01)
    put_ranked(q, [("b", 4)])
    other = Queue(q.path, clock=clock)
    first, spent = other.lease()[0], other.lease()[0]
    assert spent.payload == "a1"
    first.release()
    clock.advance(20)
    found = []
    for task in q.poll():
        with task:
            found.append(task.payload)
    assert found == ["a0", "a2", "b", "a3"]
    assert [letter.payload for letter in q.dead()] == ["a1"]


def test_all_shards_are_listed_at_once_where_that_is_asked_for(queue_factory: QueueFactory, clock: ManualClock) -> None:
    q = Queue(queue_factory("many", shards=64).path, clock=clock)
    for number in range(100, 0, -1):
        put_ranked(q, [(number, number)])
    assert [q.lease(strict=True)[0].payload for _ in range(100)] == list(range(1, 101))


def test_all_shards_are_known_after_some_leases(queue_factory: QueueFactory, clock: ManualClock) -> None:
    q = Queue(queue_factory("many", shards=16).path, clock=clock)
    for number in range(200):
        put_ranked(q, [(number, number)])
    found = worked(q)
    assert found[20:] == sorted(found[20:])  # type: ignore[type-var]


# -- bounds and chance ----------------------------------------------------------------------------


def test_up_to_leaves_the_others(q: Queue, clock: ManualClock) -> None:
    insert_in_file(q, "none")
    put_ranked(q, [("a", 1), ("b", 5), ("c", 6)])
    clock.advance(0.01)
    put_open(q, [("d", 4), ("e", 9), ("f", None)])
    assert [task.payload for task in q.lease(9, up_to=5)] == ["a", "d", "b"]
    assert q.lease(9, up_to=5) == []
    assert [task.payload for task in q.lease(9)] == ["c", "e", "f", "none"], "it stays with a batch among equals"


def test_up_to_finds_nothing_where_no_task_has_a_priority(q: Queue) -> None:
    q.insert("x")
    assert q.lease(up_to="zzz") == []
    assert q.lease(up_to=5, wait_s=3) == []
    assert q.lease()[0].payload == "x"


def test_waiting_for_a_task_that_is_urgent_enough(q: Queue, clock: ManualClock) -> None:
    batch = put_open(q, [("later", 9), ("soon", 1)])
    (soon,) = q.lease(up_to=5)
    begin = clock.monotonic()
    soon.release(delay_s=30)
    assert q.lease(up_to=5, wait_s=10) == []
    assert q.lease(up_to=5, wait_s=60)[0].payload == "soon"
    assert 30 <= clock.monotonic() - begin < 31
    assert q.status().waiting == 1
    assert q.lease()[0].batch == batch


@pytest.mark.parametrize("value", [True, 1.5, ["a"], "x" * 2000, 1 << 63, "\ud800"])
def test_what_is_no_priority_is_refused(q: Queue, value: object) -> None:
    with pytest.raises(InvalidArgument, match="up_to"):
        q.lease(up_to=value)  # type: ignore[arg-type]


@pytest.mark.parametrize("digits", [30, 5000])  # Python writes no number of more than 4,300
def test_a_number_that_is_far_too_large_is_refused(q: Queue, digits: int) -> None:
    for number in (10**digits, -(10**digits)):
        with pytest.raises(InvalidArgument, match="up_to"):
            q.lease(up_to=number)
        with pytest.raises(InvalidTask, match="64 bits"):
            q.insert("x", priority=number)
    with pytest.raises(InvalidArgument, match="n must be"):
        q.lease(-(10**digits))


def test_an_order_that_is_none_is_refused(q: Queue) -> None:
    with pytest.raises(InvalidArgument, match="order"):
        q.lease(order="lifo")  # type: ignore[arg-type]


def test_at_random(q: Queue, queue_factory: QueueFactory) -> None:
    q.insert_many(range(50))
    put_ranked(q, [(100 + number, number) for number in range(50)])
    found = [q.lease(order="random")[0].payload for _ in range(100)]
    assert sorted(found) == [*range(50), *range(100, 150)]
    assert found != sorted(found)
    assert q.lease(order="random") == []


def test_at_random_with_a_bound(q: Queue, clock: ManualClock) -> None:
    insert_in_file(q, "none")
    put_ranked(q, [(number, number) for number in range(50)])
    put_open(q, [(100 + number, number) for number in range(50)])
    found = [task.payload for task in q.lease(99, up_to=9, order="random")]
    assert sorted(found) == [*range(10), *range(100, 110)]
    assert q.lease(up_to=9, order="random") == []


# -- looking ----------------------------------------------------------------------------------------


def test_peek_shows_the_most_urgent_first(q: Queue, clock: ManualClock) -> None:
    insert_in_file(q, "none")
    put_ranked(q, [("c", 3), ("a", 1), ("z", None)])
    clock.advance(0.01)
    put_open(q, [("d", 4), ("b", 2)])
    for n in range(1, 8):
        assert [info.payload for info in q.peek(n)] == ["a", "b", "c", "d", "none", "z"][:n]
    assert [info.priority for info in q.peek(5)] == [1, 2, 3, 4, None]


# -- who meets what ---------------------------------------------------------------------------------


def test_a_file_that_is_gone_is_settled(q: Queue) -> None:
    batch = put_ranked(q, [("a", 1), ("b", 2)])
    q.lease()
    for path in Path(q.store.layout.tasks).rglob("*.jsonl"):
        path.unlink()
    q.store.logs.close()
    assert q.lease() == []
    assert [letter.id for letter in q.dead()] == [f"{batch}.1"]


def test_a_purge_begins_anew(q: Queue) -> None:
    put_ranked(q, [("a", 1), ("b", 2)])
    assert q.lease()[0].payload == "a"
    q.purge()
    put_ranked(q, [("c", 1)])
    assert worked(q) == ["c"]


def test_the_heap_holds_no_more_than_there_is(q: Queue, clock: ManualClock) -> None:
    put_ranked(q, [(number, 7) for number in range(300)])
    clock.advance(0.01)
    put_ranked(q, [(number, 7) for number in range(300)])
    for _ in range(600):
        q.lease()
    assert len(q._leaser.selection._heap) <= 4 * 2 + selection.HEADS_MAX


# -- inserted and leased by one process -------------------------------------------------------------


@pytest.mark.batched  # batches of one have no checkpoints
@pytest.mark.parametrize("seed", range(4))
def test_who_inserts_one_by_one_and_leases_gets_the_exact_order(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """Also across checkpoints, with batches of many tasks between, and where tasks come back."""
    monkeypatch.setattr(checkpoints, "LEAST_BYTES", 200)
    monkeypatch.setattr(checkpoints, "SHARE", 0)
    restored: list[bool] = []
    restore = checkpoints.restore

    def restore_and_note(states: States, found: checkpoints.Found) -> None:
        restore(states, found)
        restored.append(bool(states.priorities))

    monkeypatch.setattr(checkpoints, "restore", restore_and_note)
    q = Queue(queue_factory("exact", shards=1, durability="none").path, clock=clock)
    lots, n = random.Random(seed), 1 + 2 * (seed % 2)
    kinds: list[Priority | None] = [None, None, -5, 3, 10, 1 << 60, "", "a", "ü" * 300, "10"]
    there: dict[object, Priority | None] = {}
    numbers = count()
    for part in range(5):
        for number in islice(numbers, 60):
            there[number] = lots.choice(kinds)
            clock.advance(0.001)
            q.insert(number, priority=there[number])
        several = {number: lots.choice(kinds) for number in islice(numbers, 20)}
        q.insert_many(Task(number, priority=given) for number, given in several.items())
        there |= several
        q.close()  # logs are read anew, from their last checkpoints on
        clock.advance(LISTING_S)
        for _ in range(40 // n if part < 4 else 500):
            tasks = q.lease(n)
            assert [task.priority for task in tasks] == [there[task.payload] for task in tasks]
            ranks = [rank_of(task.priority) for task in tasks]
            assert ranks == sorted(map(rank_of, there.values()))[:n]
            for task in tasks:
                if lots.random() < 0.1:
                    task.release()
                    clock.advance(KNOWN_S)
                else:
                    del there[task.payload]
                    task.complete()
    assert not there
    assert q.status().drained
    assert any(restored)
