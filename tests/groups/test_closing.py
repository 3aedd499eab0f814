"""What a group has open, and when that is closed: by `close`, and as soon as nothing refers to the group any more."""

from __future__ import annotations

import gc
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import fsqueue
from fsqueue import Group, GroupNotFound, Queue, UpdateConflict
from fsqueue.groups.task_numbers import NewNumber
from tests.concurrency.processes import children
from tests.prepared import ByHand
from tests.waiting import until_nothing_reaps

pytestmark = pytest.mark.once

ROUNDS = 300


def opened_in(path: Path) -> list[str]:
    """Return what this process has open below a path."""
    found = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found.append(os.readlink(f"/proc/self/fd/{fd}"))
    return [one for one in found if one == str(path) or one.startswith(f"{path}/")]


@contextmanager
def without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def applied(path: Path) -> None:
    with Group(path).update() as update:
        update.insert("A", 1)
        update.insert("B", 1)


def refused(path: Path) -> None:
    group = Group(path)
    update = group.update()
    update.cancel(next(iter(group["A"].tasks())))
    group["A"].purge()
    group["A"].insert(1)
    with suppress(UpdateConflict):
        update.apply()


def numbered(path: Path) -> None:
    group = Group(path)
    [info, *_] = group["A"].tasks()
    group.numbers.give([NewNumber(info, 0)])


def closed_in_a_block(path: Path) -> None:
    with Group(path) as group:
        [task] = group.lease()
        task.release()
        group["B"].lease(), [*group.matching(".*").queues()]


KINDS: dict[str, Callable[[Path], object]] = {
    "a queue": lambda path: Group(path)["A"].insert(1),
    "a queue that is closed": lambda path: closed(Group(path)["A"]),
    "an update": applied,
    "an update that is refused": refused,
    "an update that is never applied": lambda path: Group(path).update().insert("A", 1),
    "looks": lambda path: (Group(path).status(), Group(path).is_drained(), [*Group(path).queues()]),
    "numbers": numbered,
    "all of it, in a block": closed_in_a_block,
}


def closed(queue: Queue) -> None:
    queue.insert(1)
    queue.close()


@pytest.mark.parametrize("kind", KINDS)
def test_what_nothing_refers_to_is_closed_without_the_collector(tmp_path: Path, kind: str) -> None:
    """No cycle of references keeps a group, its queues or its updates: they would use up the descriptors."""

    def live() -> int:
        path = Group.create(tmp_path / "g", shards=2, durability="none").path
        Group(path)["A"].insert(0)
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
        with without_collector():
            for _ in range(ROUNDS):
                KINDS[kind](path)
            until_nothing_reaps()  # behind a purge
            return len(opened_in(path))

    with children((live,)) as [child]:
        assert child.result() == 0, f"{kind}: of {ROUNDS} rounds"


def test_close_closes_all_that_the_group_has_opened(tmp_path: Path) -> None:
    path = Group.create(tmp_path / "g", shards=2).path
    group = Group(path)
    equal = [group["A"], group["A"], group["A"]]
    for queue in equal:
        queue.insert(1)
    [task] = group.lease()
    with group.update() as update:
        update.insert("A", 2)
        update.insert("B", 2)
    group.numbers.give([NewNumber(next(iter(equal[0].tasks("waiting"))), 0)])
    matching = group.matching("A")
    [other] = matching.lease()
    assert opened_in(path)
    group.close()
    assert opened_in(path) == []
    task.complete()  # leases go on, and what was closed is opened again
    other.complete()
    equal[1].insert(3)
    with group.update() as update:
        update.insert("A", 4)
        update.insert("B", 4)
    assert group.status().status.inserted == 3 + 2 + 1 + 2
    assert len(group.lease(20)) == 6
    assert [*matching.queues()] == [group["A"]] if group["A"].status().remaining else []
    group.close()
    group.close()
    assert opened_in(path) == []


def test_a_closed_group_is_not_opened_in_another_one(tmp_path: Path) -> None:
    """As a closed queue, it proves by its id that it is the same."""
    with Group.create(tmp_path / "g") as group:
        queue = group["A"]
        queue.insert(1)
    os.rename(group.path, tmp_path / "moved")
    Group.create(group.path)
    for act in (lambda: queue.insert(2), group.is_drained, lambda: group["B"].status()):
        with pytest.raises(GroupNotFound, match="another group than the one that was opened"):
            act()
    assert Group(group.path).status() == fsqueue.GroupStatus()


def test_a_queue_that_has_asked_for_decisions_closes_the_group_too(tmp_path: Path) -> None:
    """It was opened by its path, and has met the records of an updater that died."""
    made = ByHand(tmp_path / "g")
    made.prepare()
    path = made.group.path
    made.group.close()
    with without_collector():
        queue = Queue(path / "first")
        queue.status()
        queue.gc()
        assert str(path) in opened_in(path)
        queue.close()
        assert [one for one in opened_in(path) if one == str(path)] == []
