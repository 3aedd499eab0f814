"""What tasks are leased from, and waited for, shows no difference: order, turns, the end of a wait, and "drained"."""

from __future__ import annotations

import shutil
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from fsqueue import (
    FsqueueError,
    Group,
    GroupNotFound,
    Queue,
    QueueFileLost,
    QueueNotFound,
    QueuePurged,
    Status,
    Task,
    Worker,
)
from fsqueue.protocol import leasing
from fsqueue.storage import queue_file
from tests.conformance.sources import OF_SEVERAL, SOURCES, Source

pytestmark = pytest.mark.once


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Source]:
    """Empty queues, as one kind of source after the other."""
    with SOURCES[request.param](tmp_path) as made:
        yield made


@pytest.mark.parametrize("n", [1, 5])
def test_the_most_urgent_of_all_come_first(source: Source, n: int) -> None:
    count = len(source.queues)
    for number, queue in enumerate(source.queues):
        queue.insert_many([Task(count * rank + number, priority=count * rank + number) for rank in reversed(range(5))])
    found: list[object] = []
    while tasks := source.lease(n):
        found += [task.payload for task in tasks]
    assert found == [*range(5 * count)]


def test_a_bound_leaves_what_is_less_urgent(source: Source) -> None:
    for queue in source.queues:
        queue.insert_many([Task(number, priority=number) for number in (3, 7)])
    found = [task.payload for task in source.lease(9, up_to=5)]
    assert found == [3] * len(source.queues)
    assert source.lease(9, up_to=5) == []


@pytest.mark.parametrize("source", OF_SEVERAL, indirect=True)
def test_queues_whose_tasks_are_equally_urgent_take_turns(source: Source) -> None:
    for number, queue in enumerate(source.queues):
        queue.insert_many([number] * 70)
    assert Counter(task.payload for task in source.lease(6)) == {0: 2, 1: 2, 2: 2}
    singly = Counter(source.lease()[0].payload for _ in range(60))
    assert singly.keys() == {0, 1, 2}, "each thread takes turns by itself: those of a gateway may meet in one queue"
    assert Counter(task.payload for task in source.lease(300)) == {number: 68 - singly[number] for number in range(3)}
    assert source.lease() == []


@pytest.mark.parametrize("source", OF_SEVERAL, indirect=True)
def test_a_queue_with_less_leaves_the_rest_to_the_others(source: Source) -> None:
    for number, queue in enumerate(source.queues):
        queue.insert_many([number] * (1 + 9 * (number == 2)))
    assert Counter(task.payload for task in source.lease(8)) == {0: 1, 1: 1, 2: 6}


@pytest.mark.parametrize("number", [0, -1])
def test_an_insert_ends_the_wait_of_a_lease(source: Source, number: int) -> None:
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.extend(task.payload for task in source.lease(wait_s=600)))
    waiting.start()
    source.queues[number].insert("late")
    waiting.join()
    assert found == ["late"]


def test_it_is_drained_only_if_no_task_is_left_in_any(source: Source) -> None:
    first, last = source.queues[0], source.queues[-1]
    first.insert_many(["done"])
    first.complete(first.lease())
    assert source.is_drained()
    last.insert("later", delay_s=1_000)
    assert not source.is_drained()
    last.cancel(next(last.tasks()).id)
    last.insert("now")
    assert not source.is_drained()
    [task] = last.lease()
    assert not source.is_drained()
    task.bury("no")
    assert source.is_drained()
    assert source.wait(0) == Status(completed=1, dead=1)


def test_a_wait_ends_with_the_last_task_of_all(source: Source) -> None:
    for queue in source.queues:
        queue.insert(1)
    tasks = source.lease(len(source.queues))
    seen: list[Status] = []
    ended: list[Status] = []
    waiting = threading.Thread(target=lambda: ended.append(source.wait(600, seen.append)))
    waiting.start()
    for task in tasks:
        task.complete()
    waiting.join()
    assert ended == [seen[-1]] == [Status(completed=len(tasks))]


@pytest.mark.parametrize("verb", ["purge", "delete"])
def test_a_wait_does_not_end_well_if_what_was_waited_for_was_dropped(source: Source, verb: str) -> None:
    for queue in source.queues:
        queue.insert(1)

    def drop(status: Status) -> None:
        for queue in source.queues:
            getattr(queue, verb)()

    with pytest.raises(FsqueueError) as dropped:
        source.wait(600, drop)
    assert isinstance(dropped.value, (QueuePurged, QueueNotFound))


def test_a_link_in_the_place_of_the_tasks_is_an_error_and_not_drained(source: Source) -> None:
    for queue in source.queues:
        queue.insert(1)
        queue.close()
    place = source.places[-1]
    [tasks] = place.glob("*/queue")
    tasks.rename(place.parent / "aside")
    tasks.symlink_to(place.parent / "aside")
    for queue in source.queues[:-1]:
        queue.complete(queue.lease())
    for ask in (source.is_drained, lambda: source.wait(0)):
        with pytest.raises(QueueFileLost):
            ask()


@pytest.fixture
def seen_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no answer be from a memory, which may be a second old."""
    monkeypatch.setattr(queue_file, "FRESH_S", -1.0)
    monkeypatch.setattr(leasing, "FRESH_S", -1.0)


@pytest.mark.usefixtures("seen_at_once")
@pytest.mark.parametrize("comes", [None, "an empty directory", "another one"])
def test_what_is_not_in_its_place_is_an_error_and_nothing_is_made_there(source: Source, comes: str | None) -> None:
    for queue in source.queues:
        queue.insert(1)
        queue.complete(queue.lease())
    assert source.is_drained()
    place, aside = source.goes_away, source.goes_away.with_name("aside")
    kind = Group if place not in source.places else Queue
    place.rename(aside)
    if comes == "another one":
        kind.create(place)
    elif comes:
        place.mkdir()
    there = sorted(place.rglob("*"))
    last = source.queues[-1]
    for ask in (source.is_drained, lambda: source.wait(0), lambda: source.wait(60), lambda: last.insert(2)):
        with pytest.raises((QueueNotFound, GroupNotFound)):
            ask()
    with suppress(QueueNotFound, GroupNotFound):  # of several, those that are there are leased from
        assert source.lease() == []
    assert sorted(place.rglob("*")) == there
    if place.exists():
        shutil.rmtree(place)
    aside.rename(place)
    assert source.is_drained()
    last.insert(2)
    assert source.wait(0).waiting == 1


def test_a_worker_does_all_tasks_and_ends(source: Source) -> None:
    for queue in source.queues:
        queue.insert_many(range(4))
    report = Worker(source.of_worker, handler=nothing, threads=1, until="drained").run()
    assert report.completed == 4 * len(source.queues)
    assert source.is_drained()


def nothing(payload: object) -> None:
    """Do nothing."""
