"""Which batch next: heads of shards, hints all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsqueue import Queue
from fsqueue.clock import ManualClock
from fsqueue.format import names
from fsqueue.format.names import TaskFileName
from fsqueue.format.priority import LAST, rank_of
from fsqueue.protocol import selection
from fsqueue.protocol.selection import BUSY_AGAIN_S, BUSY_S, HEADS_MAX, LISTING_S, NEVER, SHARDS_LISTED, Selection
from fsqueue.storage import queue_changes
from tests.support import QueueFactory, base_of

pytestmark = pytest.mark.once

NOW = 1_800_000_000_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(NOW / 1000)


@pytest.fixture
def q(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    return Queue(queue_factory(shards=8).path, clock=clock)


def put(
    q: Queue, birth: int, shard: int = 0, available_at: int = 0, count: int = 1, priority: int | None = None
) -> TaskFileName:
    batch = f"{birth:012x}7{'0' * 11}{8 * birth + shard:08x}"
    name = TaskFileName(available_at, batch, count).ranked(rank_of(priority))
    path = Path(q.store.layout.task_file(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    assert path.parent.name == f"{shard:02x}"
    return name


def taken(selection: Selection, strict: bool = False) -> list[TaskFileName]:
    found = []
    while (name := selection.next(NOW, strict)) is not None:
        found.append(name)
    return found


def heads(selection: Selection) -> list[TaskFileName]:
    return [head.name for head in selection._heads.values()]


def test_nothing_is_found_before_a_sweep_and_everything_after(q: Queue) -> None:
    files = {put(q, birth, birth % 8) for birth in range(20)}
    selection = Selection(q.store)
    assert selection.next(NOW) is None
    selection.sweep()
    found = taken(selection)
    assert len(found) == 20
    assert set(found) == files


def test_strictly_the_oldest_comes_first(q: Queue) -> None:
    files = [put(q, birth, (5 * birth) % 8) for birth in range(20)]
    selection = Selection(q.store)
    selection.sweep()
    assert taken(selection, strict=True) == files


def test_of_the_shards_listed_the_oldest_comes_first(q: Queue) -> None:
    for birth in range(32):
        put(q, birth, birth % 8)
    selection = Selection(q.store)
    selection.sweep()
    first = selection.next(NOW)
    assert first is not None
    seen = [first, *heads(selection)]
    assert len({q.store.layout.shard(name.batch) for name in seen}) == SHARDS_LISTED
    assert first == min(seen, key=lambda name: name.batch)


def test_an_empty_shard_does_not_count_as_looked_at(q: Queue) -> None:
    for shard in range(8):
        (base_of(q) / "queue" / f"{shard:02x}").mkdir(parents=True, exist_ok=True)
    only = put(q, 1, 5)
    selection = Selection(q.store)
    selection.sweep()
    assert selection.next(NOW) == only


def test_after_a_second_another_shard_is_listed_although_heads_are_left(q: Queue, clock: ManualClock) -> None:
    for birth in range(32):
        put(q, birth, birth % 8)
    selection = Selection(q.store)
    selection.sweep()
    selection.next(NOW)
    before = len(heads(selection))
    clock.advance(LISTING_S * 1.1)
    selection.keep_up(NOW)
    selection.next(NOW)
    assert len(heads(selection)) == before + 4 - 1
    selection.keep_up(NOW)
    selection.next(NOW)
    assert len(heads(selection)) == before + 4 - 2


def test_what_is_not_due_is_passed_over_and_remembered(q: Queue) -> None:
    put(q, 1, 3, available_at=NOW + 500)
    put(q, 2, 3, available_at=NOW + 300)
    due = put(q, 3, 3, available_at=NOW)
    put(q, 4, 4, available_at=NOW + 900)
    selection = Selection(q.store)
    selection.sweep()
    assert taken(selection) == [due]
    assert selection.earliest() == NOW + 300
    assert selection.due(NOW + 299) == []
    assert selection.due(NOW + 300) == ["03"]
    assert sorted(selection.due(NOW + 900)) == ["03", "04"]


def test_without_anything_to_come_there_is_no_earliest_time(q: Queue) -> None:
    put(q, 1, 3)
    selection = Selection(q.store)
    assert selection.earliest() == NEVER
    selection.sweep()
    taken(selection)
    assert selection.earliest() == NEVER
    assert selection.due(NOW + 10**9) == []


def test_what_a_name_does_not_say_can_be_expected_too(q: Queue) -> None:
    name = put(q, 1, 3, available_at=NOW - 10)
    selection = Selection(q.store)
    selection.sweep()
    assert taken(selection) == [name]
    selection.expect(name.batch, NOW + 50)
    selection.expect(name.batch, NOW + 80)
    assert selection.earliest() == NOW + 50
    assert selection.due(NOW + 50) == ["03"]


def test_a_sweep_of_some_shards_looks_only_there(q: Queue) -> None:
    put(q, 1, 1)
    wanted = put(q, 2, 2)
    selection = Selection(q.store)
    selection.sweep(["02"])
    assert taken(selection, strict=True) == [wanted]


def test_what_came_due_in_a_shard_is_looked_at_whatever_was_known_of_its_batch(q: Queue) -> None:
    queue_changes.mark_ordered(q.store, rank_of(1))
    name = put(q, 1, 3, priority=1)
    selection = Selection(q.store)
    selection.sweep()
    assert selection.next(NOW) == name
    selection.put_back(name, rank_of(5))
    assert selection.glance(NOW) == rank_of(5)
    selection.sweep([q.store.layout.shard(name.batch)])
    selection.keep_up(NOW)
    assert selection.glance(NOW) == name.rank == rank_of(1)


def test_the_batch_in_hand_is_compared_until_all_shards_are_listed(q: Queue) -> None:
    queue_changes.mark_ordered(q.store, rank_of(1))
    files = [put(q, 1 + shard, shard) for shard in range(3 * SHARDS_LISTED)]
    selection = Selection(q.store)
    selection.sweep()
    name = selection.next(NOW)
    assert name in files
    selection.keep_in_hand(name, name.rank)
    assert selection.limit_in_hand(name.batch) is None, "a shard that is not listed may have something better"
    assert name in heads(selection)
    while selection.is_behind():
        selection.keep_up(NOW)
    selection.keep_in_hand(name, name.rank)
    assert selection.limit_in_hand(name.batch) == LAST


def test_a_batch_that_stays_busy_rests_for_longer_each_time_up_to_a_second(q: Queue, clock: ManualClock) -> None:
    """Without the bound, one that was busy for a minute would be passed over for another one."""
    put(q, 1)
    selection = Selection(q.store)
    selection.sweep()

    def rested_s() -> float:
        name = selection.next(NOW)
        assert name is not None
        selection.rest(name)
        begin = clock.monotonic()
        while selection.glance(NOW) is None:
            clock.advance(0.01)
            selection.keep_up(NOW)
        return clock.monotonic() - begin

    shortest, longest = BUSY_S
    doubled = [min(shortest * 2**times, longest) for times in range(8)]
    assert [rested_s() for _ in doubled] == pytest.approx(doubled, abs=0.011)
    clock.advance(BUSY_AGAIN_S + 0.1)
    assert rested_s() == pytest.approx(shortest, abs=0.011), "it was not busy for a while"


def test_stray_files_are_passed_over(q: Queue) -> None:
    good = put(q, 1, 1)
    shard = base_of(q) / "queue" / "01"
    for name in (
        ".nfs01",
        f"{good}~",
        f"{good}.swp",
        f"x{good}",
        "README",
        "9999999999999-x",
        "0000000000000-x",
        "aaaaaaaaaaaaa-x",
    ):
        (shard / name).touch()
    (shard.parent / "notes.txt").touch()
    (shard.parent / "zz").mkdir()
    selection = Selection(q.store)
    selection.sweep()
    assert taken(selection) == [good]


def test_memory_is_bounded(q: Queue) -> None:
    shard = base_of(q) / "queue" / "01"
    shard.mkdir(parents=True)
    oldest = put(q, 0, 1)
    for birth in range(1, HEADS_MAX + 200):
        (shard / str(TaskFileName(0, f"{birth:012x}7{'0' * 11}{8 * birth + 1:08x}", 1))).touch()
    selection = Selection(q.store)
    selection.sweep()
    assert selection.next(NOW) == oldest
    assert len(heads(selection)) == HEADS_MAX - 1


def test_heads_beyond_the_limit_come_when_the_others_are_used_up(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "HEADS_MAX", 3)
    files = [put(q, birth, 1) for birth in range(10)]
    other = put(q, 50, 2)
    mine = Selection(q.store)
    mine.sweep()
    assert set(taken(mine)) == {*files, other}
    mine.sweep()
    found = []
    while (name := mine.next(NOW)) is not None:
        assert len(heads(mine)) <= 3 * SHARDS_LISTED
        found.append(name)
        if name != other:  # what was looked at in vain gets a later name, as a batch that is leased does
            path = Path(q.store.layout.task_file(name))
            path.rename(path.with_name(str(name.at(NOW + 100))))
    assert set(found) == {*files, other}
    assert mine.next(NOW) is None


def test_what_is_expected_is_not_forgotten_when_a_shard_is_listed_further(
    q: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(selection, "HEADS_MAX", 1)
    first, second = put(q, 1, 1), put(q, 2, 1)
    mine = Selection(q.store)
    mine.sweep()
    assert mine.next(NOW) == first
    mine.expect(first.batch, NOW + 50)
    assert mine.next(NOW) == second
    assert mine.earliest() == NOW + 50


def test_processes_go_through_the_shards_in_orders_of_their_own(q: Queue) -> None:
    for birth in range(8):
        put(q, birth, birth)
    firsts = set()
    for _ in range(60):
        selection = Selection(q.store)
        selection.sweep()
        selection.next(NOW)
        firsts.add(frozenset(name.batch for name in heads(selection)))
    assert len(firsts) > 3


def test_shards_are_named_as_in_the_layout(q: Queue) -> None:
    assert {q.store.layout.shard(put(q, birth, birth).batch) for birth in range(8)} == set(names.all_shards(8))
