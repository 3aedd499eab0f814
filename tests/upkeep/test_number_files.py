"""Files of numbers go when all of their numbers have ended; the last one stays, and numbers go on behind it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from fsqueue import Group, NewNumber, TaskInfo
from fsqueue.format import numbers as format_of
from fsqueue.storage import number_table as stored
from fsqueue.upkeep import number_files

pytestmark = pytest.mark.once


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    """A group whose files of numbers have room for four each."""
    for module in (stored, format_of, number_files):
        monkeypatch.setattr(module, "FILE_RECORDS", 4)
    return Group.create(tmp_path / "group", durability="none")


def numbered(group: Group, name: str, n: int) -> dict[int, TaskInfo]:
    """New tasks in a task file, by their numbers."""
    group[name].insert_many(range(n))
    given = group.numbers.give([NewNumber(info, 0) for info in group[name].tasks()])
    return {one.number: one.task for one in given}


def files(group: Group) -> list[int]:
    return sorted(int(name, 16) for name in os.listdir(group.path / ".numbers"))


def gc_a_day_later(group: Group, name: str = "a") -> int:
    for path in (group.path / ".numbers").iterdir():
        os.utime(path, (0, 0))
    return Group(group.path)[name].gc().number_files_retired


def test_a_file_goes_when_all_of_its_numbers_have_ended(group: Group) -> None:
    tasks = numbered(group, "a", 10)
    assert (list(tasks), files(group)) == ([*range(1, 11)], [0, 1, 2])
    leased = group["a"].lease(10, lease_s=60)  # which ends all of these numbers
    held = group.numbers.give([NewNumber(task, 0, 7) for task in leased[:1]])
    assert [one.number for one in held] == [11]
    assert Group(group.path)["a"].gc().number_files_retired == 0, "it is not a day old"
    assert gc_a_day_later(group) == 2
    assert files(group) == [2]
    for each in (group, Group(group.path)):  # one that had followed them all, and one that comes now
        assert [one and one.number for one in each.numbers.find([1, 5, 9, 11])] == [None, None, None, 11]
    assert list(numbered(Group(group.path), "b", 2)) == [12, 13]
    assert list(group.fsck()) == []


def test_one_number_that_holds_keeps_its_file(group: Group) -> None:
    tasks = numbered(group, "a", 10)
    with group.update() as update:
        for number, task in tasks.items():
            if number != 6:
                update.cancel(task)
    assert gc_a_day_later(group) == 1
    assert files(group) == [1, 2]
    assert (group.path / ".numbers" / f"{1:012x}").stat().st_mtime > 0, "others ask again in a day"
    assert [one and one.number for one in Group(group.path).numbers.find(list(tasks))][5] == 6
    group["a"].purge()
    assert gc_a_day_later(group) == 1
    assert (files(group), gc_a_day_later(group)) == ([2], 0)


def test_what_is_in_doubt_keeps_a_file(group: Group) -> None:
    numbered(group, "a", 6)
    numbered(group, "b", 3)
    group["a"].purge()
    settings = group.path / "b" / "queue.jsonl"
    content = settings.read_bytes()
    settings.write_bytes(b"")
    assert gc_a_day_later(group) == 1, "the first has only numbers of the purged queue"
    assert files(group) == [1, 2]
    settings.write_bytes(content)
    group.delete("b", foreground=True)
    first = group.path / ".numbers" / f"{1:012x}"
    whole = first.read_bytes()
    first.write_bytes(whole[:-1])
    assert gc_a_day_later(group) == 0, "a file that is not full may be the one to which another process appends"
    first.write_bytes(whole)
    assert gc_a_day_later(group) == 1


def test_touched_each_day_files_go_all_the_same(group: Group) -> None:
    tasks = numbered(group, "a", 10)
    for task in group["a"].lease(10):
        task.complete()
    assert len(tasks) == 10
    for path in (group.path / ".numbers").iterdir():
        os.utime(path, (0, 0))
    last = group.path / ".numbers" / f"{2:012x}"
    group["a"].insert("x")
    Group(group.path)["a"].gc(touch=True)
    assert files(group) == [2]
    assert last.stat().st_mtime > 0, "the last one is kept young"
    more = numbered(group, "b", 8)
    assert len(more) == 8
    before = {path.name: path.stat().st_mtime_ns for path in (group.path / ".numbers").iterdir()}
    Group(group.path)["a"].gc(touch=True)
    after = {path.name: path.stat().st_mtime_ns for path in (group.path / ".numbers").iterdir()}
    same = [name for name in sorted(before) if before[name] == after[name]]
    assert same == sorted(before)[:-1], "the age of a full file goes on"


def test_the_numbers_of_a_queue_that_is_away_hold_for_thirty_days(group: Group, tmp_path: Path) -> None:
    tasks = numbered(group, "a", 10)
    group["b"].insert(1)
    os.rename(group["a"].path, tmp_path / "away")
    ages: list[int] = []

    def gc_days_later(days: int) -> int:
        at = int(time.time()) - days * 86_400
        ages.append(at)
        for path in (group.path / ".numbers").iterdir():
            os.utime(path, (at, at))
        return Group(group.path)["b"].gc().number_files_retired

    assert gc_days_later(29) == 0
    assert [int((group.path / ".numbers" / f"{0:012x}").stat().st_mtime)] == ages, "its age goes on"
    os.rename(tmp_path / "away", group["a"].path)
    assert [one and one.number for one in Group(group.path).numbers.find(list(tasks))] == list(tasks)
    os.rename(group["a"].path, tmp_path / "away")
    assert gc_days_later(31) == 2
    assert files(group) == [2]
