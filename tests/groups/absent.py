"""A group that is used, and then is not in its place, or another one there.

Most tests move the filesystem's directory away, and put an empty one in its place: what an unmounting leaves.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Group, LeasedTask, TaskInfo

HINT = r"check that (it|this) is mounted[;.] [Ee]lse it was deleted"
"""What an error says, in this order."""


class Used:
    """A group on a disk, with what a process has of it that has used it."""

    def __init__(self, disk: Path) -> None:
        self.disk, self.aside = disk, disk.parent / "aside"
        self.group = Group.create(disk / "me" / "group", shards=2, durability="none")
        self.open, self.never = self.group["open"], self.group["never"]
        self.open.insert_many(range(10))
        self.group["other"].insert("x")
        self.task: LeasedTask
        [self.task] = self.open.lease()
        self.seen: TaskInfo
        [self.seen] = self.open.peek()

    def inserted(self) -> dict[str, int]:
        return {name: one.inserted for name, one in Group(self.group.path).status().queues.items()}


def unmounted(used: Used) -> None:
    os.rename(used.disk, used.aside)
    used.disk.mkdir()


def removed(used: Used) -> None:
    os.rename(used.disk, used.aside)


def replaced(used: Used) -> None:
    unmounted(used)
    Group.create(used.group.path)["open"].insert("theirs")


def emptied(used: Used) -> None:
    """Another group in the same directory: only the id tells."""
    shutil.copytree(used.disk, used.aside, symlinks=True)
    for entry in os.scandir(used.group.path):
        shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
    before = os.stat(used.group.path)
    Group.create(used.group.path)["open"].insert("theirs")
    assert os.path.samestat(before, os.stat(used.group.path))


WAYS = [unmounted, removed, replaced, emptied]


def told(verb: str, act: Callable[[], Any]) -> fsqueue.FsqueueError:
    """Act, go through what it yields, and return its error, which says first that something may not be mounted."""

    def answer() -> None:
        found = act()
        pytest.fail(f"{verb} answers {[*found] if hasattr(found, '__next__') else found!r}")

    with pytest.raises(fsqueue.FsqueueError) as refused:
        answer()
    assert re.search(HINT, str(refused.value)), (verb, refused.value)
    return refused.value


def nothing_was_done(used: Used, away: Callable[[Used], None]) -> None:
    """Nothing was made in its place; and everything is there again, for the same objects, when it is back."""
    if away is unmounted:
        assert [*used.disk.rglob("*")] == []
    if away is removed:
        assert not used.disk.exists()
    if away in (replaced, emptied):
        assert used.inserted() == {"open": 1}, "into a group that was not opened"
        assert [one.name for one in Group(used.group.path).queues(tasks_min=0)] == ["open"]
    if away is emptied:
        return
    shutil.rmtree(used.disk, ignore_errors=True)
    os.rename(used.aside, used.disk)
    assert used.inserted() == {"open": 10, "other": 1}
    assert [one.name for one in used.group.queues()] == ["open", "other"]
    assert used.open.status().inserted == 10
    used.open.insert("back")
    used.never.insert("back")
    assert used.inserted() == {"open": 11, "other": 1, "never": 1}
