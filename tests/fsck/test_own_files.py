"""A queue or a group whose own file is gone: each verb names it, and fsck brings the file back."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Group, GroupNotFound, NotAQueue, Queue, QueueFileLost
from fsqueue.filesystem import Filesystem
from fsqueue.format.layout import DEFAULTS
from fsqueue.fsck import Finding, fsck_lost
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once


def lost_file(path: Path) -> bytes:
    content = (path / "queue.jsonl").read_bytes()
    (path / "queue.jsonl").unlink()
    return content


@pytest.fixture
def group(tmp_path: Path) -> Path:
    """A group with a queue `a` that is drained, and a queue `q` with 30 tasks whose file is gone."""
    group = Group.create(tmp_path / "group", shards=7, durability="none", max_attempts=9)
    group["a"].insert(1)
    group["a"].complete(group["a"].lease(1))
    group["q"].insert_many(range(30), batch_tasks=3)
    lost_file(tmp_path / "group" / "q")
    return tmp_path / "group"


def found(path: Path, repair: bool = False) -> list[Finding]:
    return list(fsck_lost(str(path), repair))


VERBS: dict[str, Callable[[Path], Any]] = {
    "a look at the group": lambda path: Group(path).is_drained(),
    "a wait for the group": lambda path: Group(path).wait(timeout_s=PATIENCE_S),
    "a wait for the queue": lambda path: Group(path)["q"].wait(timeout_s=PATIENCE_S),
    "a wait by its path": lambda path: fsqueue.wait([Group(path)["q"], Group(path)["a"]], timeout_s=PATIENCE_S),
    "a lease": lambda path: Group(path)["q"].lease(1),
    "an insert": lambda path: Group(path)["q"].insert(1),
    "inserts": lambda path: Group(path)["q"].insert_many([1]),
    "status": lambda path: Group(path)["q"].status(),
    "tasks": lambda path: list(Group(path)["q"].tasks()),
    "gc": lambda path: Group(path)["q"].gc(),
    "fsck": lambda path: list(Group(path)["q"].fsck()),
    "delete": lambda path: Group(path).delete("q"),
    "purge": lambda path: Group(path)["q"].purge(),
    "exists": lambda path: Group(path)["q"].exists(),
    "an update": lambda path: insert_by_update(Group(path)),
    "a queue by its path": lambda path: Queue(path / "q"),
    "create": lambda path: Queue.create(path.parent / "alone"),
    "open": lambda path: Queue(path.parent / "alone"),
    "queues": lambda path: fsqueue.queues(path.parent / "alone"),
}


def insert_by_update(group: Group) -> None:
    with group.update() as update:
        update.insert("q", 1)


@pytest.mark.parametrize("verb", VERBS)
def test_each_verb_names_what_is_left_of_a_queue(group: Path, verb: str) -> None:
    shutil.copytree(group / "q", group.parent / "alone")
    before = sorted(group.rglob("*"))
    with pytest.raises(QueueFileLost, match=r"holds what is left of a queue: its queue\.jsonl is gone.*fsck --repair"):
        VERBS[verb](group)
    assert sorted(group.rglob("*")) == before


def test_the_group_goes_on_without_it_and_names_it(group: Path) -> None:
    opened = Group(group)
    status = opened.status()
    assert (status.lost, list(status.queues)) == (("q",), ["a"])
    assert status.as_dict()["lost"] == ["q"]
    assert [queue.name for queue in opened.queues()] == ["q"]
    opened["a"].insert(2)
    assert [task.payload for task in opened.lease(5)] == [2]


def test_a_directory_of_queues_lists_it(tmp_path: Path) -> None:
    """Damaged queues are among those of a directory: opening one tells what is wrong."""
    for name in ("one", "two"):
        Queue.create(tmp_path / name).insert(1)
    lost_file(tmp_path / "one")
    assert [os.path.basename(path) for path in fsqueue.queues(tmp_path)] == ["one", "two"]


def test_an_open_queue_that_loses_its_file_is_not_called_deleted(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "queue")
    queue.insert(1)
    lost_file(tmp_path / "queue")
    with pytest.raises(QueueFileLost):
        queue.wait(timeout_s=PATIENCE_S)


@pytest.mark.parametrize("way", ["the group", "the queue"])
def test_fsck_of_a_group_brings_the_file_back_with_the_groups_settings(group: Path, way: str) -> None:
    def look(repair: bool = False) -> list[Finding]:
        return list(Group(group).fsck(repair=repair)) if way == "the group" else found(group / "q", repair)

    before = sorted(group.rglob("*"))
    [finding] = look()
    assert (finding.kind, finding.path, finding.tasks, finding.repaired) == (
        "queue-file-gone",
        "q/queue.jsonl",
        30,
        False,
    )
    assert "shards: 7" in finding.note
    assert sorted(group.rglob("*")) == before
    [finding] = look(repair=True)
    assert finding.repaired
    assert look() == []
    queue = Group(group)["q"]
    assert queue.settings == Group(group).settings
    assert sorted(task.payload for task in queue.lease(30)) == list(range(30))
    queue.insert(30)
    assert list(queue.fsck()) == []


@pytest.mark.parametrize("shards", [1, 2, 64, 100, 256, 257, 4096])
@pytest.mark.parametrize("tasks", [1, 40])
def test_what_the_directories_tell_is_as_it_was(tmp_path: Path, shards: int, tasks: int) -> None:
    """Of few batches the right number of shards cannot be told. One that fits all of them does as well."""
    path = tmp_path / "queue"
    queue = Queue.create(path, shards=shards, durability="none")
    queue.insert("purged")
    queue.purge()
    queue.insert_many(range(tasks), batch_tasks=1)
    queue.insert("urgent", priority=1)
    queue.insert("keyed", key="k")
    queue.insert("dies")
    for task in queue.lease(tasks + 3):
        if task.payload == "dies":
            task.bury("bad")
        elif task.payload == 0:
            task.complete()
        else:
            task.release()
    first = queue.task(next(iter(queue.tasks())).id)
    before, counted = queue.store.queue_state, queue.status()
    assert (counted.dead, counted.completed) == (1, 1)
    queue.close()
    lost_file(path)
    [finding] = found(path, repair=True)
    assert finding.repaired
    again = Queue(path)
    after = again.store.queue_state
    assert (after.id, after.generation, after.is_ordered) == (before.id, before.generation, True)
    assert after.settings.shards == shards or tasks == 1
    assert after.settings.max_attempts == DEFAULTS.max_attempts
    assert again.task(first.id).payload == first.payload
    assert not again.insert("keyed", key="k").inserted
    assert sum(1 for _ in again.tasks()) == tasks + 1
    assert again.status() == counted
    assert list(again.fsck()) == []


def test_keys_of_later_epochs_count_as_before(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    Queue.create(path).insert(1, key="k")
    [generation] = (one for one in path.iterdir() if one.name.startswith("1-"))
    (generation / "keys").rename(generation / "keys-7")
    lost_file(path)
    found(path, repair=True)
    assert Queue(path).store.queue_state.key_epochs[:2] == (7, 7)
    assert not Queue(path).insert(2, key="k").inserted


def test_of_several_generations_the_newest_counts(tmp_path: Path) -> None:
    """A purge that died has left the earlier one in place."""
    path = tmp_path / "queue"
    queue = Queue.create(path)
    queue.insert("old")
    [old] = (one for one in path.iterdir() if one.name.startswith("1-"))
    shutil.copytree(old, tmp_path / "copy")
    queue.purge()
    queue.insert("new")
    queue.close()
    shutil.copytree(tmp_path / "copy", old)
    lost_file(path)
    assert [one.repaired for one in found(path, repair=True)] == [True]
    assert [task.payload for task in Queue(path).tasks()] == ["new"]


def test_what_cannot_be_told_is_left_and_said(tmp_path: Path) -> None:
    path = tmp_path / "queue"
    Queue.create(path).insert(1)
    Queue.create(tmp_path / "other").insert(2)
    [foreign] = (one for one in (tmp_path / "other").iterdir() if one.name.startswith("1-"))
    shutil.copytree(foreign, path / foreign.name)
    lost_file(path)
    [finding] = found(path, repair=True)
    assert not finding.repaired
    assert "directories of several queues are here" in finding.note
    shutil.rmtree(path / foreign.name)
    [generation] = (one for one in path.iterdir() if one.name.startswith("1-"))
    shard = next((generation / "queue").iterdir())
    shutil.copytree(shard, generation / "queue" / "1fff")
    [finding] = found(path, repair=True)
    assert not finding.repaired
    assert "no number of shards fits" in finding.note
    assert not (path / "queue.jsonl").exists()


@pytest.mark.parametrize("kind", ["nothing", "strays", "an empty generation", "a link", "a file"])
def test_what_is_no_queues_remains_is_none(tmp_path: Path, kind: str) -> None:
    path, name = tmp_path / "group" / "q", f"1-{'a' * 16}"
    Group.create(tmp_path / "group")
    path.mkdir()
    match kind:
        case "strays":
            (path / "notes").touch()
        case "an empty generation":
            (path / name / "other").mkdir(parents=True)
        case "a link":
            (tmp_path / "there" / "queue").mkdir(parents=True)
            (path / name).symlink_to(tmp_path / "there")
        case "a file":
            (path / name).touch()
    assert found(path) == []
    assert Group(tmp_path / "group").is_drained()


@pytest.mark.parametrize("step", ["create", "write_all", "link", "unlink", "sync_directory"])
def test_a_repair_that_dies_is_repeated(group: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Before the link there is no queue; from then on it is complete."""

    class Died(BaseException):
        pass

    act = getattr(Filesystem, step)

    def dies(fs: Filesystem, *args: Any) -> Any:
        if any(isinstance(arg, str) and "/q" in arg for arg in args) or step == "write_all":
            monkeypatch.undo()
            raise Died
        return act(fs, *args)

    monkeypatch.setattr(Filesystem, step, dies)
    with pytest.raises(Died):
        found(group / "q", repair=True)
    is_there = (group / "q" / "queue.jsonl").exists()
    assert is_there == (step in ("unlink", "sync_directory"))
    assert [one.repaired for one in found(group / "q", repair=True)] == ([] if is_there else [True])
    assert Group(group)["q"].status().waiting == 30


def test_another_users_directory_is_left_alone(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a stranger has planted becomes no queue, and root's file would be of no use to the owner."""
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    [finding] = found(group / "q", repair=True)
    assert not finding.repaired
    assert "another user's" in finding.note
    os.chmod(group / "q", stat.S_ISGID | 0o775)
    [finding] = found(group / "q", repair=True)
    assert finding.repaired, "the directory is shared with the user's group"


# -- the group's own file ----------------------------------------------------------------------------------------


@pytest.fixture
def headless(tmp_path: Path) -> Path:
    """A group whose `.group.jsonl` is gone."""
    group = Group.create(tmp_path / "group", shards=5, max_attempts=2)
    group["a"].insert(1)
    group["b"].insert(2)
    (tmp_path / "group" / ".group.jsonl").unlink()
    return tmp_path / "group"


def test_a_group_without_its_file_is_named_and_brought_back(headless: Path) -> None:
    before = Queue(headless / "a").store.queue_state.group
    with pytest.raises(GroupNotFound, match=r"no \.group\.jsonl: it is gone.*fsck --repair"):
        Group(headless).directory()
    with pytest.raises(NotAQueue, match="fsck --repair"):
        Group.create(headless)
    [finding] = found(headless)
    assert (finding.kind, finding.path, finding.repaired) == ("group-file-gone", ".group.jsonl", False)
    [finding] = found(headless, repair=True)
    assert finding.repaired
    assert found(headless) == []
    group = Group(headless)
    assert group.directory().state.id == before
    assert (group.settings.shards, group.settings.max_attempts) == (5, 2)
    with group.update() as update:
        update.complete(group["a"].lease(1)[0])
        update.insert("c", 3)
    assert [queue.name for queue in group.queues()] == ["b", "c"]


def test_queues_of_two_groups_make_no_group(headless: Path, tmp_path: Path) -> None:
    other = Group.create(tmp_path / "other")
    other["c"].insert(1)
    os.rename(tmp_path / "other" / "c", headless / "c")
    assert found(headless, repair=True) == []
    with pytest.raises(NotAQueue, match="is not empty"):
        Group.create(headless)
    with pytest.raises(GroupNotFound):
        Group(headless).directory()


def test_queues_that_were_made_in_no_group_make_none(tmp_path: Path) -> None:
    Queue.create(tmp_path / "directory" / "a").insert(1)
    assert found(tmp_path / "directory", repair=True) == []


# -- the barriers of a group --------------------------------------------------------------------------------------


def test_the_damaged_file_of_a_barrier_is_moved_into_quarantine_and_its_tasks_stay(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "group", shards=1, durability="none")
    group["a"].insert(1)
    bad, good, ended = (group.barrier("a", then=("b", n)) for n in range(3))
    assert ended.cancel()
    files = group.path / ".barriers"
    assert list(group.fsck()) == []
    os.link(files / f"{good.id}.waiting", tmp_path / "a backup by hard links")
    for name in (f"{bad.id}.waiting", f"{ended.id}.cancelled"):
        (files / name).write_text('{"op":"barrier"}\n')
    [finding] = group.fsck()
    assert (finding.kind, finding.path) == ("damaged-barrier", f".barriers/{bad.id}.waiting")
    assert (finding.gravity, finding.repaired) == ("damage", False)
    [finding] = group.fsck(repair=True)
    assert finding.repaired
    assert list(group.fsck()) == []
    [run] = (group.path / ".quarantine").iterdir()
    assert (run / finding.path).read_text() == '{"op":"barrier"}\n'
    assert group["b"].status().delayed == 2
    assert [one.id for one in group.barriers()] == [good.id]
