""" "Drained" of a group beside a task that always lives, in queues that come and are deleted while the group is listed.

Each look of the other process is forced to the moment at which the task is elsewhere.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import fsqueue
from fsqueue import Group, Queue, administration
from fsqueue.clock import ManualClock
from fsqueue.format.names import QueueDirectory
from fsqueue.groups import drain_check
from fsqueue.groups.drain_check import GroupDrainCheck
from fsqueue.groups.queue_selection import Selected
from fsqueue.storage.group_directory import DirectoryStamp, GroupDirectory
from fsqueue.worker.sources import sources_of
from tests.views.test_drained import waits

pytestmark = pytest.mark.once


class Comings:
    """The one task that lives in a group, in a queue that is made for it, and is deleted after its next insert."""

    def __init__(self, path: Path) -> None:
        self.group = Group.create(path, shards=1, durability="none")
        self._numbers = itertools.count()
        self.is_hopping, self.hops = True, 0
        self.at = ""
        self.hop("first")

    def hop(self, to: str | None = None) -> None:
        """Insert the next task into a new queue, then delete the queue that had the one before, and what is left."""
        self.hops += 1
        before, self.at = self.at, to or f"new{next(self._numbers)}"
        self.group[self.at].insert(self.hops)
        if before:
            assert self.group.delete(before, foreground=True)

    def end(self) -> None:
        """Complete the last task."""
        self.is_hopping = False
        (task,) = self.group[self.at].lease()
        task.complete()

    @contextmanager
    def listed_badly(self) -> Iterator[Group]:
        """Yield the group as another process has it: each listing shows only what is there throughout the listing."""
        listed, is_there = GroupDirectory.directories, GroupDirectory.is_there

        def while_it_hops(directory: GroupDirectory) -> list[QueueDirectory]:
            before = listed(directory)
            if not self._begins():
                return before
            self.hop()
            self.is_hopping = True
            return [one for one in listed(directory) if one in before]

        def elsewhere(directory: GroupDirectory, one: QueueDirectory) -> bool:
            if self._begins():
                if self.at == one:
                    self.hop("b" if one == "a" else "a")
                self.is_hopping = True
            return is_there(directory, one)

        with (
            mock.patch.object(GroupDirectory, "directories", while_it_hops),
            mock.patch.object(GroupDirectory, "is_there", elsewhere),
        ):
            yield Group(self.group.path)

    def _begins(self) -> bool:
        """Return whether the task hops now: not while it does."""
        begins, self.is_hopping = self.is_hopping, False
        return begins


def plain(group: Group) -> Queue:
    return Queue.create(group.path.parent / "plain", exist_ok=True, durability="none")


ASKED: dict[str, Callable[[Group], bool]] = {
    "a group": lambda group: group.is_drained(),
    "those that match": lambda group: group.matching(".*").is_drained(),
    "waiting for a group": lambda group: waits(lambda: [group.wait(0)]),
    "waiting for a group and a queue": lambda group: waits(lambda: fsqueue.wait([group, plain(group)], 0)),
    "waiting for a queue and a group": lambda group: waits(lambda: fsqueue.wait([plain(group), group], 0)),
    "a worker of a group": lambda group: sources_of(group).drain_check()(),
    "a worker of a group and a queue": lambda group: sources_of([group, plain(group)]).drain_check()(),
}


@pytest.mark.parametrize("asked", ASKED)
def test_a_task_is_not_missed_in_queues_that_come_and_go_while_the_group_is_listed(tmp_path: Path, asked: str) -> None:
    task = Comings(tmp_path / "group")
    with task.listed_badly() as group:
        for _ in range(2):
            begun = task.hops
            assert not ASKED[asked](group)
            assert task.hops > begun + 1, "there were two listings at least"
        task.end()
        assert ASKED[asked](group)


def test_a_task_is_not_missed_in_two_named_queues_that_are_never_there_when_looked_for(tmp_path: Path) -> None:
    task = Comings(tmp_path / "group")
    task.hop("a")
    with task.listed_badly() as group:
        given = [Selected(group, names_=("a",)), Selected(group, names_=("b",))]
        begun = task.hops
        assert not GroupDrainCheck(given)()
        assert not waits(lambda: fsqueue.wait([group["a"], group["b"]], 0))
        assert task.hops > begun + 4
        task.end()
        assert GroupDrainCheck(given)()


def test_a_task_is_not_missed_in_a_queue_that_is_made_in_an_empty_directory_and_closed_there(tmp_path: Path) -> None:
    """An inserter that died has left the directory. Who deletes the queue may mark it, and not rename it."""
    group = Group.create(tmp_path / "group", shards=1, durability="none")
    for name in "abc":
        os.mkdir(group.path / name)
    group["c"].insert("first")
    times = os.stat(group.path).st_mtime_ns
    asks: list[str] = []
    queue_in = Selected.queue_in

    def ask(selected: Selected, directory: QueueDirectory) -> Any:
        match len(asks), directory:
            case 2, "c":  # the first look has found nothing in a and b
                group["b"].insert("second")
                Queue(group.path / "c").delete()
            case 4, "b":  # nor has the second one in a
                group["a"].insert("third")
                Queue(group.path / "b").delete()
        asks.append(directory)
        return queue_in(selected, directory)

    with (
        mock.patch.object(Selected, "queue_in", ask),
        mock.patch.object(administration, "_move", return_value=None),
    ):
        assert not Group(group.path).is_drained()
    assert asks[:6] == list("abcabc")
    assert os.stat(group.path).st_mtime_ns == times, "no name came or went"
    assert group["a"].status().waiting == 1


# -- what is quiet is drained -----------------------------------------------------------------------------------------


def test_a_quiet_group_is_drained_also_beside_what_is_no_queue(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "group", shards=1, durability="none")
    assert group.is_drained()
    group["a"].insert(1)
    assert not group.is_drained()
    (task,) = group.lease()
    task.complete()
    os.mkdir(group.path / "empty")
    (group.path / "strange").mkdir()
    (group.path / "strange" / "notes.txt").write_text("mine")
    group["closed"].insert(1)
    with mock.patch.object(administration, "_move", return_value=None):
        Queue(group.path / "closed").delete()
        assert group.is_drained()
        assert GroupDrainCheck([Selected(group, names_=("a", "empty", "closed", "never"))])()
    assert group.wait(0).drained
    assert not (group.path / "closed").exists(), "a look has moved it away"


def test_while_deleted_queues_are_removed_a_group_is_drained_in_the_end(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "group", shards=1, durability="none")
    for number in range(20):
        group[f"q{number}"].insert_many(range(50), batch_tasks=1)
    for number in range(20):
        group.delete(f"q{number}")
    assert group.wait(30).drained


def test_named_queues_that_are_there_are_drained_while_others_come_and_go(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "group", shards=1, durability="none")
    for task in [group["a"].insert(1), *group["a"].lease()][1:]:
        task.complete()
    ask_member, numbers = GroupDrainCheck._ask_member, itertools.count()

    def come_and_go(check: GroupDrainCheck, selected: Selected, directory: QueueDirectory) -> bytes | None:
        os.mkdir(group.path / f"other{next(numbers)}")
        return ask_member(check, selected, directory)

    with mock.patch.object(GroupDrainCheck, "_ask_member", come_and_go):
        assert GroupDrainCheck([Selected(group, names_=("a",))])()
    assert next(numbers) == 2


# -- the clock that stamps directories ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("tick_ns", "least_s"), [(10_000_000, 0.01), (1_000_000_000, 1.0)])
def test_a_deletion_in_the_tick_of_the_first_look_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tick_ns: int, least_s: float
) -> None:
    """The directory is stamped by a clock that ticks seldom. Time passes by the pauses of the look alone."""
    clock = ManualClock(1_800_000_000.015)
    monkeypatch.setattr(drain_check, "Clock", lambda: clock)
    task = Comings(tmp_path / "group")
    changed_ns = 0

    def tick() -> int:
        return round(clock.now_s * 1000) * 1_000_000 // tick_ns * tick_ns

    def hop(to: str | None = None) -> None:
        nonlocal changed_ns
        Comings.hop(task, to)
        changed_ns = tick()

    def stamp(directory: GroupDirectory) -> DirectoryStamp:
        return DirectoryStamp(changed_ns, changed_ns, 1, 1)

    monkeypatch.setattr(task, "hop", hop)
    monkeypatch.setattr(GroupDirectory, "stamp", stamp)
    begun = clock.now_s
    with task.listed_badly() as group:
        assert not group.is_drained()
    assert clock.now_s - begun >= 3 * least_s, "it paused between its looks"
