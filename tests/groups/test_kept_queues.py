"""`group[name]` is the same queue as the last time, as long as the group keeps it; neither keeps the other open."""

from __future__ import annotations

import gc
import os
import threading
import weakref
from pathlib import Path

import pytest

from fsqueue import Group, GroupNotFound, GroupQueue
from fsqueue.filesystem import Filesystem
from fsqueue.groups.group import KEPT_MAX
from tests.support import open_below

pytestmark = pytest.mark.once


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group.create(tmp_path / "g")


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are opened."""
    found: list[str] = []
    look = Filesystem.look

    def noted(self: Filesystem, path: str, flags: int = os.O_RDONLY) -> int:
        found.append(path)
        return look(self, path, flags)

    monkeypatch.setattr(Filesystem, "look", noted)
    return found


def test_a_name_is_the_same_queue_and_stays_open(group: Group, opened: list[str]) -> None:
    queue = group["q"]
    assert group["q"] is queue
    queue.insert(0)
    opened.clear()
    for number in range(10):
        group["q"].insert(number)
    assert not [path for path in opened if path.endswith("queue.jsonl")]
    assert group["q"].status().waiting == 11


def test_those_that_were_used_last_are_kept(group: Group) -> None:
    first, second = group["first"], group["second"]
    for number in range(KEPT_MAX - 2):
        assert group[f"q{number}"].name == f"q{number}"
    assert group["first"] is first
    assert group["one more"].name == "one more"
    assert group["first"] is first
    assert group["second"] is not second


def test_one_that_is_not_kept_any_more_works_on(group: Group) -> None:
    old = group["q"]
    old.insert("a")
    for number in range(KEPT_MAX):
        assert group[f"q{number}"].name == f"q{number}"
    (task,) = group["q"].lease()
    old.complete(task)
    assert (old.status().completed, group["q"].status().completed) == (1, 1)


def test_a_queue_outlives_its_group_and_is_still_of_it(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "g")
    path, queue, seen = group.path, group["q"], weakref.ref(group)
    queue.insert("a")
    del group
    assert seen() is None  # at once: there is no cycle
    assert queue.group.path == path
    assert isinstance(queue.group, Group)
    assert queue.group is queue.group
    queue.group["other"].insert("b")
    with queue.group.update() as update:
        update.insert(queue, "c")
    assert Group(path)["q"].status().waiting == 2


def test_a_queue_of_a_group_that_nobody_has_any_more_refuses_another_group_at_its_path(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "g")
    path, queue = group.path, group["q"]
    del group
    os.rename(path, path.with_name("aside"))
    with pytest.raises(GroupNotFound):
        queue.insert("a")
    Group.create(path)
    with pytest.raises(GroupNotFound):
        queue.insert("a")
    assert sorted(os.listdir(path)) == [".bells", ".group.jsonl"]
    Group(path)  # it is a group, but not that one
    os.rename(path, path.with_name("another"))
    os.rename(path.with_name("aside"), path)
    queue.insert("a")
    assert Group(path)["q"].status().waiting == 1


def test_a_queue_that_was_deleted_and_made_anew_is_the_new_one(group: Group) -> None:
    group["q"].insert("old")
    assert Group(group.path).delete("q")
    group["q"].insert("new")
    assert [task.payload for task in group["q"].lease(5)] == ["new"]


def test_one_thread_closes_it_while_others_use_it(group: Group) -> None:
    ended = threading.Event()
    failures: list[BaseException] = []

    def close() -> None:
        while not ended.is_set():
            group["q"].close()

    def work() -> None:
        try:
            for number in range(100):
                group["q"].insert(number)
                (task,) = group["q"].lease()
                task.complete()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    closer = threading.Thread(target=close)
    for thread in (*threads, closer):
        thread.start()
    for thread in threads:
        thread.join()
    ended.set()
    closer.join()
    assert failures == []
    assert group["q"].status().completed == 300


def test_closing_the_group_closes_what_it_keeps(tmp_path: Path) -> None:
    with Group.create(tmp_path / "h") as group:
        queues: list[GroupQueue] = [group["a"], group["b"]]
        for queue in queues:
            queue.insert("a")
        assert open_below(tmp_path) > 0
    assert open_below(tmp_path) == 0
    assert group["a"] is not queues[0]
    queues[0].insert("b")
    assert group["a"].status().waiting == 2
    del group, queue, queues
    gc.collect()
    assert open_below(tmp_path) == 0
