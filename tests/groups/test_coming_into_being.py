"""A queue of a group comes into being at its first insert, whatever others do meanwhile."""

from __future__ import annotations

import errno
import os
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

import fsqueue
from fsqueue import Group, GroupNotFound, GroupQueue, InvalidArgument, NotAQueue, Queue, QueueNotFound, administration
from fsqueue.filesystem import Filesystem, Mount
from fsqueue.filesystem.rooted import Rooted
from fsqueue.format import groups, layout, names
from fsqueue.protocol.single_inserts import SingleInserter
from fsqueue.storage import group_queues, queue_file, store
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.store import Store
from fsqueue.upkeep.trash import reap
from tests.concurrency.books import drain
from tests.concurrency.processes import children
from tests.concurrency.trapped import Count, DieAt, Trapped
from tests.support import needs_root

pytestmark = pytest.mark.once


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group.create(tmp_path / "group", shards=2, durability="none")


def proven(group: Group) -> object:
    """Open the queue `q` as a process does that looks for an update's decision."""
    own = Store(str(group.path / "third"), fs=Filesystem(str(group.path / "third")))
    return group_queues.proven(group.directory(), names.queue_directory("q"), own)


def names_in(group: Group) -> list[str]:
    """Return the names of all queues, the empty ones, too."""
    return [queue.name for queue in group.queues(tasks_min=0)]


def test_a_queue_that_never_was_is_empty_and_no_look_makes_it(group: Group) -> None:
    queue = group["fetch"]
    assert queue.lease(wait_s=0.01) == []
    assert queue.status() == fsqueue.Status()
    assert queue.is_drained()
    assert [*queue.tasks(), *queue.results(), *queue.dead(), *queue.poll(), *queue.fsck()] == []
    assert queue.peek() == []
    assert queue.cancel([]) == queue.release_all() == queue.purge_dead() == 0
    assert queue.wait() == fsqueue.Status()
    assert queue.settings == group.settings
    assert not queue.exists()
    assert queue.gc() == fsqueue.GcReport()
    assert queue.activity().finished is None
    with pytest.raises(fsqueue.TaskNotFound):
        queue.task("0" * 32 + ".0")
    for change in (queue.pause, queue.resume, lambda: queue.change_settings(lease_s=5), lambda: queue.attach("a@b")):
        with pytest.raises((QueueNotFound, InvalidArgument)):
            change()
    with pytest.raises(TypeError):
        queue.status(rough=True)  # type: ignore[call-arg]
    queue.delete()
    queue.close()
    assert sorted(os.listdir(group.path)) == [".bells", groups.GROUP_FILE]


def test_the_first_insert_of_each_kind_makes_the_queue(group: Group) -> None:
    group["one"].insert({"a": 1}, key="k", priority=3)
    assert group["many"].insert_many(range(5)) == 5
    assert group["named"].insert_many([1, 2], commit="seed") == 2
    commit = group["staged"].commit("seed")
    commit.publish([commit.stage([1])])
    assert names_in(group) == ["many", "named", "one", "staged"]
    assert all(Queue(group.path / name).store.queue_state.group == group.id for name in names_in(group))
    assert [task.payload for task in group["one"].lease()] == [{"a": 1}]


class Unencodable:
    """A payload whose own code fails."""

    def __str__(self) -> str:
        raise ZeroDivisionError

    __repr__ = __str__


def updating(queue: str, *given: Any, **how: Any) -> Callable[[Group], object]:
    def call(group: Group) -> object:
        with group.update() as update:
            update.insert(queue, *given, **how)
        return update

    return call


REFUSED: dict[str, Callable[[Group], object]] = {
    "no JSON": lambda group: group["new"].insert({1, 2}),
    "an object": lambda group: group["new"].insert(Unencodable()),
    "too large": lambda group: group["new"].insert("x" * 2_000),
    "strict": lambda group: group["new"].insert((1, 2), strict=True),
    "a key": lambda group: group["new"].insert(1, key=""),
    "a key in a queue of files": lambda group: group["new"].insert(1, key="k"),
    "two keys": lambda group: group["new"].insert(fsqueue.Task(1, key="a"), key="b"),
    "a priority": lambda group: group["new"].insert(1, priority=1.5),  # type: ignore[arg-type]
    "delay_s": lambda group: group["new"].insert(1, delay_s=-1),
    "available_at": lambda group: group["new"].insert(1, available_at=-1),
    "delay_s and available_at": lambda group: group["new"].insert(1, delay_s=1, available_at=1),
    "an unknown word": lambda group: group["new"].insert(1, foo=1),  # type: ignore[call-arg]
    "no stream": lambda group: group["new"].insert_many(5),  # type: ignore[arg-type]
    "one text": lambda group: group["new"].insert_many("abc"),
    "batch_tasks": lambda group: group["new"].insert_many([1], batch_tasks=0),
    "total": lambda group: group["new"].insert_many([1], total=-1),
    "delay_s of many": lambda group: group["new"].insert_many([1], delay_s=-1),
    "commit": lambda group: group["new"].insert_many([1], commit="a/b"),
    "delay_s of a commit": lambda group: group["new"].insert_many([1], commit="a", delay_s=-1),
    "an unknown word of many": lambda group: group["new"].insert_many([1], foo=1),  # type: ignore[call-arg]
    "a commit's name": lambda group: group["new"].commit(""),
    "a commit's attempt": lambda group: group["new"].commit("a", attempt="b"),
    "an update of a queue of files": updating("new", 1),
    "an update with no JSON": updating("new", {1, 2}),
    "an update with a key": updating("new", 1, key=""),
    "an update with delay_s": updating("new", 1, delay_s=-1),
    "an update with a payload that is too large": updating("new", "x" * 2_000),
}


@pytest.mark.parametrize("call", REFUSED)
def test_a_bad_argument_makes_no_queue(tmp_path: Path, call: str) -> None:
    group = Group.create(
        tmp_path / "group", durability="none", task_bytes_max=1_000,
        batch_tasks_max=1 if "queue of files" in call else 1_000,
    )  # fmt: skip
    with pytest.raises(TypeError if "unknown" in call else (InvalidArgument, ZeroDivisionError)) as caught:
        REFUSED[call](group)
    assert sorted(os.listdir(group.path)) == [".bells", groups.GROUP_FILE]
    again = Group.create(tmp_path / "again", durability="none", task_bytes_max=1_000,
                         batch_tasks_max=group.settings.batch_tasks_max)  # fmt: skip
    again["new"].insert(1)
    with pytest.raises(type(caught.value)) as known:
        REFUSED[call](again)
    assert str(caught.value) == str(known.value).replace(str(again.path), str(group.path)), "as of one that is there"


def test_settings_are_those_of_the_group_and_others_are_refused(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "a" / "group", lease_s=77, max_attempts=None)
    group["q"].insert(1)
    assert Queue(group.path / "q").settings.lease_s == 77
    assert Group(group.path).settings == group.settings
    assert Group.create(group.path, exist_ok=True, lease_s=77.0).settings == group.settings
    assert Group.create(group.path, exist_ok=True).settings == group.settings
    before = (group.path / groups.GROUP_FILE).read_bytes()
    with pytest.raises(InvalidArgument, match=r"lease_s is 77. Nothing was done"):
        Group.create(group.path, exist_ok=True, lease_s=78)
    with pytest.raises(TypeError):
        Group(group.path, lease_s=77)  # type: ignore[call-arg]
    with pytest.raises(InvalidArgument, match="no setting 'leases'"):
        Group.create(tmp_path / "b", leases=3)
    with pytest.raises(InvalidArgument, match="lease_s must be"):
        Group.create(tmp_path / "b", lease_s=0)
    assert not (tmp_path / "b").exists()
    with pytest.raises(fsqueue.QueueExists, match=r"There is a group of queues.*\(exist_ok=True\), or choose"):
        Group.create(group.path)
    assert (group.path / groups.GROUP_FILE).read_bytes() == before


def test_of_two_who_make_the_group_at_once_the_first_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    link, theirs = Filesystem.link, list[Group]()

    def late(self: Filesystem, source: str, target: str) -> None:
        monkeypatch.setattr(Filesystem, "link", link)
        theirs.append(Group.create(tmp_path / "g", lease_s=22))
        link(self, source, target)

    monkeypatch.setattr(Filesystem, "link", late)
    with pytest.raises(InvalidArgument, match=r"lease_s is 22"):
        Group.create(tmp_path / "g", exist_ok=True, lease_s=11)
    theirs[0]["q"].insert(1)
    assert [*drain(Group(tmp_path / "g")["q"])] == [1]


def test_a_group_that_is_moved_while_it_is_made_keeps_what_others_have_inserted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, path = Filesystem.link, tmp_path / "g"

    def moved_behind(self: Filesystem, source: str, target: str) -> None:
        link(self, source, target)
        if target.endswith(groups.GROUP_FILE):
            monkeypatch.setattr(Filesystem, "link", link)
            Group(path)["q"].insert("theirs")
            os.rename(path, tmp_path / "moved")

    monkeypatch.setattr(Filesystem, "link", moved_behind)
    Group.create(path)["q"].insert("mine")
    assert [*drain(Group(tmp_path / "moved")["q"])] == ["theirs"]
    assert [*drain(Group(path)["q"])] == ["mine"]


def test_of_many_who_insert_first_at_once_all_insert_into_one_queue(tmp_path: Path) -> None:
    path = tmp_path / "group"

    def insert(number: int) -> str:
        return Group.create(path, exist_ok=True, shards=2)["q"].insert(number).id

    with children(*((insert, number) for number in range(6))) as inserters:
        ids = {child.result() for child in inserters}
    assert len(ids) == 6
    group = Group(path)
    assert sorted(drain(group["q"])) == list(range(6))
    assert [name for name in os.listdir(path / "q") if name.startswith(".new-")] == []


def test_killed_at_every_step(tmp_path: Path) -> None:
    """The next process that inserts goes on with what the killed one has left; nothing of it is in the way."""
    step = 0
    while True:
        step += 1
        group = Group.create(tmp_path / f"group{step}", shards=2, durability="none" if step % 2 else "strict")

        def live(group: Group = group, step: int = step) -> None:
            trap = DieAt(step)
            mine = Group(group.path)
            directory = mine.directory()
            directory.fs = Trapped(str(group.path), trap)
            trap.armed = True
            mine["q"].insert("mine")

        with children((live,)) as [child]:
            status = child.wait()
        assert status in (0, -signal.SIGKILL), child.report()
        assert group.status().status.inserted == (status == 0)
        assert group.is_drained() == (status != 0)
        group["q"].insert("theirs")
        assert sorted(drain(group["q"])) == (["mine"] if status == 0 else []) + ["theirs"], f"step {step}"
        assert names_in(group) == ["q"]
        if status == 0:
            break
    assert step > 8


def test_killed_at_every_step_of_making_the_group(tmp_path: Path) -> None:
    """The next process that creates the group makes it, or uses it, whatever the killed one has left of it."""
    step = 0
    while True:
        step += 1
        path = tmp_path / f"group{step}"

        def live(path: Path = path, step: int = step) -> None:
            trap = DieAt(step)
            trap.armed = True
            with mock.patch.object(administration, "Filesystem", lambda root, **how: Trapped(root, trap)):
                Group.create(path, exist_ok=True, shards=2)["q"].insert("mine")

        with children((live,)) as [child]:
            status = child.wait()
        assert status in (0, -signal.SIGKILL), child.report()
        group = Group.create(path, exist_ok=True, shards=2)
        group["q"].insert("theirs")
        assert sorted(drain(group["q"])) == (["mine"] if status == 0 else []) + ["theirs"], f"step {step}"
        left = [name for name in os.listdir(path) if not name.startswith(".new-")]
        assert sorted(left) == [".bells", groups.GROUP_FILE, "q"]
        assert (path / ".bells").stat().st_size == groups.BELLS_BYTES
        if status == 0:
            break
    assert step > 8


class _Deleting(Count):
    """Deletes the queue before a step of another process that makes it."""

    def __init__(self, at: int, group: Group) -> None:
        super().__init__()
        self.number, self.group = at, group

    def at(self, number: int, step: str, call: Any, *args: Any) -> Any:
        if number == self.number:
            self.armed = False
            self.group["q"].insert("theirs")
            self.group.delete("q", foreground=True)
        return call(*args)


def test_an_insert_beside_a_delete_at_every_step(tmp_path: Path) -> None:
    """Another process makes the same queue, and deletes it, between two steps: the insert makes it anew."""
    step = 0
    while True:
        step += 1
        mine = Group.create(tmp_path / f"group{step}", shards=2, durability="none")
        trap = _Deleting(step, Group(mine.path))
        mine.directory().fs = Trapped(str(mine.path), trap)
        trap.armed = True
        mine["q"].insert("mine")
        if trap.armed:
            break
        assert [*drain(Group(mine.path)["q"])] == ["mine"], f"step {step}"
        reap(mine.path)
        left = [name for name in os.listdir(mine.path) if not name.startswith(".fsqueue-deleted-")]
        assert sorted(left) == [".bells", groups.GROUP_FILE, "q"]
    assert step > 8


def test_an_insert_after_a_delete_makes_the_queue_anew(group: Group) -> None:
    """Also by an object that had the old one open. Who holds a lease of the old one is told."""
    mine, theirs = Group(group.path)["q"], Group(group.path)["q"]
    mine.insert("old")
    [held] = theirs.lease()
    assert group.delete("q")
    assert not group.delete("q")
    with pytest.raises((fsqueue.LeaseLost, QueueNotFound)):
        held.complete()
    assert theirs.lease() == []
    assert theirs.status() == fsqueue.Status()
    mine.insert("new")
    assert mine.insert_many(["newer"]) == 1
    assert sorted(drain(theirs)) == ["new", "newer"]
    assert group["q"].status().completed == 2


def test_a_queue_of_any_size_is_deleted_at_once(group: Group) -> None:
    group["q"].insert_many(range(5000), batch_tasks=10)
    assert group.delete("q")
    assert names_in(group) == []
    assert not group["q"].exists()
    assert group.status().status == fsqueue.Status()


def test_a_deleted_queue_that_is_still_in_place_is_moved_away(group: Group) -> None:
    """Its deleter died between the mark and the renaming."""
    group["q"].insert(1)
    with (group.path / "q" / "queue.jsonl").open("ab") as file:
        file.write(layout.closed_record(1))
    fresh = Group(group.path)["q"]
    assert fresh.status() == fsqueue.Status()
    fresh.insert(2)
    assert [*drain(fresh)] == [2]


def test_what_is_in_the_way_is_left_alone(group: Group, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    Queue.create(tmp_path / "outside")
    group["other"].insert(1)
    path = group.path
    (path / "file").write_text("kept")
    (path / "link").symlink_to(elsewhere)
    (path / "dangling").symlink_to(path / "nowhere")
    (path / "outside").symlink_to(tmp_path / "outside")
    (path / "alias").symlink_to(path / "other")
    (path / "full").mkdir()
    (path / "full" / "data").write_text("kept")
    os.mkfifo(path / "pipe")
    hidden = ("alias", "dangling", "file", "link", "outside", "pipe")
    for name in hidden:
        with pytest.raises(fsqueue.QueueFileLost, match=f"{name} is a .*, where a directory of the queue belongs"):
            group[name].insert(1)
    with pytest.raises(NotAQueue):
        group["full"].insert(1)
    assert os.listdir(elsewhere) == []
    assert (path / "file").read_text() == (path / "full" / "data").read_text() == "kept"
    assert not (path / "nowhere").exists()
    assert Queue(tmp_path / "outside").status().inserted == 0
    assert group["other"].status().inserted == 1
    listed = tuple(name for name in hidden if name != "file")
    assert [queue.name for queue in group.queues()] == sorted(["other", *listed])
    assert group.status().queues == {"other": fsqueue.Status(waiting=1)}
    assert group.status().lost == listed
    assert [task.payload for task in group.lease(5)] == [1]


def test_a_queue_that_was_moved_in_is_told_apart(group: Group, tmp_path: Path) -> None:
    other = Group.create(tmp_path / "other")
    other["q"].insert(1)
    Queue.create(tmp_path / "plain").insert(2)
    (other.path / "q").rename(group.path / "moved")
    (tmp_path / "plain").rename(group.path / "plain")
    for name in ("moved", "plain"):
        with pytest.raises(NotAQueue, match="not made in this group"):
            group[name].status()
        with pytest.raises(NotAQueue, match="not made in this group"):
            group[name].insert(3)
    assert group.lease(5) == []
    assert group.is_drained()
    assert group.status().status == fsqueue.Status()
    assert Queue(group.path / "moved").status().waiting == Queue(group.path / "plain").status().waiting == 1
    (group.path / "moved").rename(other.path / "q")
    assert [*drain(other["q"])] == [1]


def test_an_insert_follows_a_queue_that_was_moved_out_until_its_path_is_asked_for(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It asks once a second. What it reported by then is whole in the moved queue."""
    queue = group["q"]
    queue.insert(1)
    monkeypatch.setattr(queue_file, "FRESH_S", 1e9)
    os.rename(queue.path, tmp_path / "moved")
    queue.insert(2)
    assert not queue.path.exists()
    monkeypatch.setattr(queue_file, "FRESH_S", -1.0)
    queue.insert(3)
    assert [*drain(Queue(tmp_path / "moved"))] == [1, 2]
    assert [*drain(group["q"])] == [3]


def test_a_link_that_a_neighbour_has_put_in_a_queues_place_is_told(group: Group, tmp_path: Path) -> None:
    queue = group["q"]
    queue.insert(1)
    (tmp_path / "elsewhere").write_text("not ours")
    os.rename(queue.path / layout.SETTINGS_FILE, tmp_path / "settings")
    (queue.path / layout.SETTINGS_FILE).symlink_to(tmp_path / "elsewhere")
    for verb in (queue.exists, lambda: Group(group.path).delete("q")):
        with pytest.raises(fsqueue.FsqueueError, match="group/q"):
            verb()
    with pytest.raises(fsqueue.QueueFileLost, match=r"queue\.jsonl is a symbolic link"):
        Group(group.path).delete("q")
    assert (tmp_path / "elsewhere").read_text() == "not ours"


@pytest.mark.parametrize("opens", [lambda group: group["q"].exists(), proven], ids=["a verb", "a decision"])
def test_a_link_that_comes_just_before_a_queue_is_opened_leads_to_no_other_queue(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, opens: Callable[[Group], object]
) -> None:
    """Over a network mount, to open a queue writes into it: the clocks are compared."""
    for each in (group, Group.create(tmp_path / "other", shards=2, durability="none")):
        each["q"].insert(1)
        each["third"].insert(1)
    other = tmp_path / "other" / "q"
    monkeypatch.setattr(store, "mount_of", lambda path: Mount("nfs4", "/", "rw"))
    group["third"].status()
    before = {path: path.stat().st_mtime_ns for path in (other, *other.rglob("*"))}
    mount_of = store.mount_of

    def is_swapped(path: str) -> Mount:
        if path.endswith("/q"):
            os.rename(path, tmp_path / "aside")
            os.symlink(other, path)
        return mount_of(path)

    monkeypatch.setattr(store, "mount_of", is_swapped)
    with pytest.raises(fsqueue.QueueFileLost, match="is a symbolic link"):
        opens(Group(group.path))
    assert {path: path.stat().st_mtime_ns for path in (other, *other.rglob("*"))} == before


@pytest.mark.parametrize(
    "use",
    [
        lambda queue: queue.status(),
        lambda queue: queue.lease(),
        lambda queue: queue.insert(2),
        lambda queue: [*queue.tasks()],
        lambda queue: queue.exists(),
        lambda queue: queue.gc(),
        lambda queue: [*queue.fsck()],
    ],
    ids=["status", "lease", "insert", "tasks", "exists", "gc", "fsck"],
)
def test_a_queue_that_was_closed_is_not_opened_through_a_link(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use: Callable[[GroupQueue], object]
) -> None:
    queue, victim = group["q"], Group.create(tmp_path / "other", shards=2, durability="none")["q"]
    victim.insert(1)
    queue.insert(1)
    queue.close()
    os.rename(queue.path, tmp_path / "aside")
    os.symlink(victim.path, queue.path)
    roots: list[str] = []
    take = Rooted._take_root
    monkeypatch.setattr(
        Rooted, "_take_root", lambda self, fd: (roots.append(os.readlink(f"/proc/self/fd/{fd}")), take(self, fd))[1]
    )
    with pytest.raises(NotAQueue, match="a symbolic link"):
        use(queue)
    assert str(victim.path) not in roots


def between(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Let something happen once, after the next insert was appended, and before it asks whether it is in the queue."""
    ask = SingleInserter._is_in_queue

    def asked(self: SingleInserter, *arguments: Any) -> bool:
        monkeypatch.setattr(SingleInserter, "_is_in_queue", ask)
        happens()
        self.store.queue_file.forget()
        return ask(self, *arguments)

    monkeypatch.setattr(SingleInserter, "_is_in_queue", asked)


@pytest.mark.parametrize("key", [None, "k"])
def test_an_insert_into_a_queue_that_is_moved_meanwhile_is_not_repeated(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str | None
) -> None:
    """The queue may come back, and would have the task twice."""
    queue = group["q"]
    queue.insert(1)
    between(monkeypatch, lambda: os.rename(queue.path, tmp_path / "moved"))
    with pytest.raises(QueueNotFound, match="unknown whether the task is in the queue") as refused:
        queue.insert(2, key=key)
    assert not refused.value.is_exact
    assert not queue.path.exists()
    os.rename(tmp_path / "moved", queue.path)
    assert [*drain(group["q"])] == [1, 2]


@pytest.mark.parametrize("foreground", [False, True], ids=["being removed", "removed"])
def test_an_insert_into_a_queue_that_is_deleted_meanwhile_makes_it_anew(
    group: Group, monkeypatch: pytest.MonkeyPatch, foreground: bool
) -> None:
    queue = group["q"]
    queue.insert(1)
    between(monkeypatch, lambda: Group(group.path).delete("q", foreground=foreground))
    queue.insert(2)
    assert [*drain(group["q"])] == [2]


@needs_root
def test_a_group_that_a_stranger_has_planted_is_none(tmp_path: Path) -> None:
    """Otherwise a stranger's file would make queues of mistyped paths in /tmp."""
    group = Group.create(tmp_path / "public")
    os.chmod(group.path, 0o1777)
    os.chown(group.path / groups.GROUP_FILE, 12345, 12345)
    with pytest.raises(NotAQueue, match="another user's"):
        Group(group.path)
    with pytest.raises(QueueNotFound):
        Group.queue_at(group.path / "q")
    assert Group.at(group.path) is None


@needs_root
def test_an_empty_directory_of_a_stranger_is_not_used(group: Group) -> None:
    (group.path / "q").mkdir()
    os.chown(group.path / "q", 12345, 12345)
    with pytest.raises(NotAQueue, match="another user"):
        group["q"].insert(1)
    os.chown(group.path, -1, 777)
    os.chmod(group.path, 0o2770)  # of a group of users, any member may have died there
    os.chown(group.path / "q", 12345, 777)
    group["q"].insert(1)


def test_neither_groups_nor_queues_are_made_in_a_group_or_a_queue(group: Group, tmp_path: Path) -> None:
    group["q"].insert(1)
    for place in (group.path / "new", group.path / "q" / "deep"):
        for create in (Queue.create, Group.create):
            with pytest.raises(InvalidArgument, match="Nothing was created"):
                create(place)
    with pytest.raises(NotAQueue, match="is a group of queues"):
        Queue.create(group.path)
    with pytest.raises(NotAQueue, match="is a group of queues"):
        Queue(group.path)
    queue = Queue.create(tmp_path / "queue")
    with pytest.raises(NotAQueue, match="is not empty"):
        Group.create(queue.path)
    with pytest.raises(InvalidArgument, match="Nothing was created"):
        Group.create(queue.path / "below")
    assert names_in(group) == ["q"]


def _lower(path: str) -> str:
    """As a filesystem that ignores case takes a path: here by its last component alone."""
    directory, slash, name = path.rpartition("/")
    return f"{directory}{slash}{name.lower()}"


def test_a_filesystem_that_ignores_case_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The queues A and a would be one."""
    real = Filesystem.exists
    monkeypatch.setattr(Filesystem, "exists", lambda self, path: real(self, _lower(path)))
    place = tmp_path / "group"
    with pytest.raises(fsqueue.UnsafeFilesystem, match="ignores case"):
        Group.create(place)
    assert not (place / groups.GROUP_FILE).exists()
    assert [name for name in os.listdir(place) if name.startswith(".new-")] == []


def test_a_group_that_is_damaged_or_too_new_is_not_guessed(group: Group) -> None:
    group["q"].insert(1)
    file = group.path / groups.GROUP_FILE
    sound = file.read_bytes()
    for content, error in (
        (b"", NotAQueue),
        (sound[:-2], NotAQueue),
        (sound.replace(b'"shards":2', b'"shards":0'), NotAQueue),
        (sound + b'{"op":"create","format":2}\n', fsqueue.FormatTooNew),
    ):
        file.write_bytes(content)
        with pytest.raises(error):
            Group(group.path)["q"].status()
    file.write_bytes(b"torn" + b"\n" + sound + b'{"op":"later"}\n')
    assert Group(group.path)["q"].status().waiting == 1


def test_a_group_that_is_not_there_is_not_opened(tmp_path: Path) -> None:
    (tmp_path / "bare").mkdir()
    with pytest.raises(GroupNotFound, match=r"check that this is mounted\. .* fsqueue create --group"):
        Group(tmp_path / "none")
    assert not (tmp_path / "none").exists()
    bare = re.escape(f"check that this is mounted: {tmp_path / 'bare'} is empty")
    for path in (tmp_path / "bare", tmp_path / "bare" / "below"):
        with pytest.raises(GroupNotFound, match=bare) as refused:
            Group(path)
        assert "create --group" not in str(refused.value)
    assert os.listdir(tmp_path / "bare") == []
    assert Group.at(tmp_path / "bare") is None
    (tmp_path / "file").write_text("kept")
    with pytest.raises(NotAQueue, match="is a file"):
        Group(tmp_path / "file")
    Queue.create(tmp_path / "queue")
    with pytest.raises(NotAQueue, match="is a queue, and no group"):
        Group(tmp_path / "queue")


def test_paths_of_a_queue_are_those_of_its_encoded_name(group: Group) -> None:
    for name in ("..", ".", "a/../../b", "%2E%2E", ".hidden", "google.com#fetch", "ä", "A", "a"):
        group[name].insert(name)
        directory = names.queue_directory(name)
        assert group[name].path == group.path / directory
        assert os.path.isfile(group.path / directory / "queue.jsonl")
    assert {task.payload for task in group.lease(20)} == set(names_in(group))
    assert sorted(os.listdir(group.path.parent)) == ["group"]


def test_a_signal_of_the_group_s_time_is_a_new_queue(group: Group) -> None:
    directory = GroupDirectory(str(group.path), Filesystem(str(group.path)))
    before = directory.stamp()
    group["q"].insert(1)
    assert directory.stamp() != before
    assert directory.stamp() == directory.stamp()


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_what_is_in_the_place_of_the_groups_own_file_is_told(group: Group, tmp_path: Path, kind: str) -> None:
    """Otherwise there would be no group, and all its queues would be drained."""
    group["q"].insert(1)
    file = group.path / ".group.jsonl"
    file.rename(tmp_path / "aside")
    if kind == "link":
        file.symlink_to(tmp_path / "aside")
    elif kind == "pipe":
        os.mkfifo(file)
    else:
        file.mkdir()
    tries: list[Callable[[], object]] = [
        lambda: Group(group.path),
        lambda: Queue(group.path),
        lambda: Queue(group.path / "later"),
        lambda: Queue(group.path / "with" / "slashes"),
        lambda: Queue.create(group.path / "later"),
        lambda: Group.create(group.path, exist_ok=True),
        lambda: fsqueue.queues(group.path),
    ]
    for each in tries:
        with pytest.raises(NotAQueue, match=r"\.group\.jsonl is no regular file"):
            each()
    file.rename(tmp_path / "planted")
    (tmp_path / "aside").rename(file)
    assert Group(group.path)["q"].status().waiting == 1


def test_a_groups_file_that_goes_between_two_looks_is_told_in_a_sentence(group: Group) -> None:
    def gone(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step == "stat" and str(args[0]).endswith(".group.jsonl"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), args[0])
        return call(*args)

    with pytest.raises(NotAQueue, match="is a group of queues"):
        Queue(group.path, filesystem=Trapped(str(group.path), gone))
