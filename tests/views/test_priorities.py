"""Waiting tasks by ranges of priorities."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from fsqueue import InvalidArgument, PriorityRange, Queue, Task
from fsqueue.clock import ManualClock
from fsqueue.format.priority import Priority, rank_of
from fsqueue.views import priorities
from fsqueue.views.priorities import Ranges
from tests.support import QueueFactory, put_open, put_ranked

pytestmark = pytest.mark.once


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def q(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    return Queue(queue_factory(shards=4, durability="none").path, clock=clock)


def test_few_priorities_are_each_a_range(q: Queue) -> None:
    put_ranked(q, [("a", 7), ("b", 7), ("c", "x"), ("d", None)])
    put_open(q, [("e", -3), ("f", 7), ("g", None)])
    q.insert_many(["h", "i"])
    expected = [PriorityRange(-3, -3, 1), PriorityRange(7, 7, 3), PriorityRange("x", "x", 1)]
    assert q.waiting_by_priority() == [*expected, PriorityRange(None, None, 4)]
    assert q.waiting_by_priority(3)[:3] == expected
    assert q.waiting_by_priority(1) == [PriorityRange(-3, "x", 5), PriorityRange(None, None, 4)]
    assert q.waiting_by_priority(1)[0].as_dict() == {"first": -3, "last": "x", "waiting": 5}


def test_nothing_waits(q: Queue) -> None:
    assert q.waiting_by_priority() == []


@pytest.mark.parametrize("is_open", [False, True])
def test_only_waiting_tasks_count(q: Queue, clock: ManualClock, is_open: bool) -> None:
    put = put_open if is_open else put_ranked
    put(q, [(number, number) for number in range(1, 10)])
    one, two, three, four, five = q.lease(5, lease_s=100)
    one.complete()
    two.bury("no")
    three.fail("later", delay_s=50)
    four.release()
    q.insert_many([Task("delayed", priority=1)] * 2, delay_s=30)
    q.cancel(next(info.id for info in q.tasks("waiting") if info.priority == 9))
    assert [(each.first, each.waiting) for each in q.waiting_by_priority()] == [(4, 1), (6, 1), (7, 1), (8, 1)]
    assert sum(each.waiting for each in q.waiting_by_priority()) == q.status().waiting
    clock.advance(60)
    assert next((each.first, each.waiting) for each in q.waiting_by_priority(20)) == (1, 2)
    assert five.payload == 5
    clock.advance(50)
    assert (5, 1) in [(each.first, each.waiting) for each in q.waiting_by_priority(20)], "its lease has run out"
    assert sum(each.waiting for each in q.waiting_by_priority()) == q.status().waiting


def test_a_retried_dead_letter_counts(q: Queue) -> None:
    put_ranked(q, [("a", 1), ("b", 2)])
    q.lease()[0].bury("no")
    q.retry_dead()
    assert q.waiting_by_priority() == [PriorityRange(1, 1, 1), PriorityRange(2, 2, 1)]


def test_progress_is_told(q: Queue) -> None:
    put_ranked(q, [("a", 1)])
    told: list[tuple[int, int]] = []
    q.waiting_by_priority(progress=lambda done, shards: told.append((done, shards)))
    assert told[0][0] == 0
    assert told[-1][0] == told[-1][1] > 0


@pytest.mark.parametrize("bad", [0, -1, 1.5, "8", None, True])
def test_a_number_of_ranges_that_is_none_is_refused(q: Queue, bad: object) -> None:
    with pytest.raises(InvalidArgument, match="ranges"):
        q.waiting_by_priority(bad)  # type: ignore[arg-type]


def test_what_is_no_function_is_refused(q: Queue) -> None:
    with pytest.raises(InvalidArgument, match="progress"):
        q.waiting_by_priority(progress=5)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", range(20))
def test_ranges_are_disjoint_and_hold_what_they_say(seed: int) -> None:
    lots = random.Random(seed)
    most, kept = lots.randint(1, 9), lots.choice([4, 16, 5000])
    kinds: list[Priority | None] = [None, *(lots.randint(-90, 90) for _ in range(lots.randint(1, 60))), "", "a", "ü"]
    given = [lots.choice(kinds) for _ in range(lots.randint(1, 500))]
    ranges = Ranges(lambda: [rank_of(one) for one in given if one is not None], kept)
    for one in given:
        ranges.add(one)
        assert len(ranges._ranges) <= kept
    found = ranges.summed(most)
    ranked = [each for each in found if each.first is not None]
    assert len(ranked) <= most
    assert sum(each.waiting for each in found) == len(given)
    bounds = [rank_of(bound) for each in ranked for bound in (each.first, each.last)]
    assert bounds == sorted(bounds)
    assert all(before.last != behind.first for before, behind in itertools.pairwise(ranked))
    counts = Counter(given)
    for each in ranked:
        least, last = rank_of(each.first), rank_of(each.last)
        assert each.waiting == sum(
            tasks for one, tasks in counts.items() if one is not None and least <= rank_of(one) <= last
        )
    different = len(counts) - (None in counts)
    assert different > most or len(ranked) == different


def test_ranges_have_about_equally_many_tasks(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if batches hold narrow ranges, and there are more different priorities than are kept."""
    monkeypatch.setattr(Ranges.__init__, "__defaults__", (100,))
    lots = random.Random(1)
    for _ in range(4):
        q.insert_many((Task(None, priority=lots.randrange(10**6)) for _ in range(1000)), batch_tasks=50)
    found = q.waiting_by_priority(4)
    assert [each.waiting for each in found] == pytest.approx([1000] * 4, rel=0.25)


def test_names_are_enough_for_tasks_without_a_priority(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    q.insert_many(range(1000))
    monkeypatch.setattr(priorities.inspection, "lines_of", None)
    assert q.waiting_by_priority() == [PriorityRange(None, None, 1000)]
