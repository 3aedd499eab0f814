"""A group that is not in its place, or another one there: each verb says so, and nothing is made where it was.

Most of these move the filesystem's directory away, and put an empty one in its place: what an unmounting leaves. One
unmounts a filesystem.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Group, GroupNotFound, GroupQueue, LeaseLost, NewNumber, QueueFileLost, TaskRef, Worker
from fsqueue.format import groups
from fsqueue.groups import members
from fsqueue.protocol import leasing
from fsqueue.storage import queue_file
from fsqueue.verbs.table import OF_QUEUES
from tests.disks import can_mount, run, small_disk
from tests.groups.absent import HINT, WAYS, Used, emptied, nothing_was_done, removed, told, unmounted

pytestmark = pytest.mark.once

ABSENT, REPLACED = "is not there any more", "holds another group than the one that was opened"


@pytest.fixture(params=WAYS)
def away(request: pytest.FixtureRequest) -> Callable[[Used], None]:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Used:
    """With queues that look at their files each time, and lessees that list: else what they know is a second old."""
    (tmp_path / "disk").mkdir()
    made = Used(tmp_path / "disk")
    monkeypatch.setattr(queue_file, "FRESH_S", -1.0)
    monkeypatch.setattr(leasing, "FRESH_S", -1.0)
    monkeypatch.setattr(members, "LIST_S", -1.0)
    monkeypatch.setattr(members, "LIST_SHARE", 1e9)
    return made


def work(payload: Any) -> None:
    """What a worker does."""


def update_of(used: Used, *, ends: bool, looked_up: bool = False, into: str = "open") -> Callable[[], object]:
    update = used.group.update()
    if ends:
        update.complete(used.task)
    if looked_up:
        update.cancel(used.open.task(used.seen.id))
    update.insert(into, "new")
    return update.apply


def numbers_for(used: Used) -> Callable[[], object]:
    [info] = [one for one in used.group["other"].tasks() if one.payload == "x"]
    return lambda: used.group.numbers.give([NewNumber(info, 0)])


GROUP_VERBS: dict[str, Callable[[Used], Callable[[], object]]] = {
    "lease": lambda used: used.group.lease,
    "lease of those that match": lambda used: used.group.matching("o.*").lease,
    "a lessee that has leased": lambda used: (used.group.lease(), used.group.lease)[1],
    "lease of a fixed queue": lambda used: lambda: fsqueue.lease([used.never, used.open]),
    "poll": lambda used: lambda: [*used.group.poll()],
    "a loop that has begun": lambda used: (loop := used.group.poll(until="forever"), next(loop), lambda: next(loop))[2],
    "queues": lambda used: lambda: [*used.group.queues()],
    "all queues": lambda used: lambda: [*used.group.queues(tasks_min=0)],
    "status": lambda used: used.group.status,
    "drained_proof": lambda used: used.group.drained_proof,
    "is_drained": lambda used: used.group.is_drained,
    "is_drained of those that match": lambda used: used.group.matching("never").is_drained,
    "group.wait": lambda used: lambda: used.group.wait(timeout_s=5),
    "wait": lambda used: lambda: fsqueue.wait([used.group], timeout_s=5),
    "wait for one that never was": lambda used: lambda: fsqueue.wait([used.never], timeout_s=5),
    "barrier": lambda used: lambda: used.group.barrier("open", then=("never", 1)),
    "barriers": lambda used: used.group.barriers,
    "set_limits": lambda used: lambda: used.group.set_limits(max_leased=1),
    "join": lambda used: lambda: used.group.join(TaskRef(used.task.id, True, used.open), then=("never", 1)),
    "flows": lambda used: used.group.flows,
    "usage": lambda used: used.group.usage,
    "lineage": lambda used: lambda: used.group.lineage("open", used.task.id),
    "fsck": lambda used: lambda: [*used.group.fsck()],
    "delete": lambda used: lambda: used.group.delete("open"),
    "delete one that never was": lambda used: lambda: used.group.delete("never"),
    "settings": lambda used: lambda: used.group.settings,
    "settings of one that never was": lambda used: lambda: used.never.settings,
    "id": lambda used: lambda: used.group.id,
    "an update that inserts": lambda used: update_of(used, ends=False),
    "an update that makes a queue": lambda used: update_of(used, ends=False, into="new"),
    "an update that completes": lambda used: update_of(used, ends=True),
    "an update that completes, and makes a queue": lambda used: update_of(used, ends=True, into="new"),
    "an update that cancels": lambda used: update_of(used, ends=False, looked_up=True),
    "an empty update": lambda used: used.group.update().apply,
    "numbers.give": numbers_for,
    "numbers.find": lambda used: lambda: used.group.numbers.find([1]),
    "numbers.named": lambda used: lambda: used.group.numbers.named([1]),
    "numbers.now_ms": lambda used: lambda: used.group.numbers.now_ms("open"),
    "a worker": lambda used: Worker(used.group, work, threads=1).run,
    "a worker of one that never was": lambda used: Worker(used.never, work, threads=1).run,
}
PLAIN = (
    "accept_copy", "activity", "dead", "delete", "drained_proof", "exists", "failing_nodes", "fsck", "gc", "is_copy",
    "is_drained",
    "lease", "pause", "peek",
    "poll", "purge", "purge_dead", "release_all", "result_columns", "results", "resume", "retry_completed",
    "retry_dead", "status", "stuck", "tasks", "timeline", "usage", "waiting_by_priority", "workers",
)  # fmt: skip
QUEUE_VERBS: dict[str, Callable[[GroupQueue], object]] = {
    **{verb: lambda queue, verb=verb: getattr(queue, verb)() for verb in PLAIN},  # type: ignore[misc]
    "admit_node": lambda queue: queue.admit_node("node"),
    "attach": lambda queue: queue.attach(f"{'0' * 32}.0@{'0' * 16}"),
    "cancel": lambda queue: queue.cancel(["0" * 32 + ".0"]),
    "change": lambda queue: queue.change(["0" * 32 + ".0"], priority=1),
    "change_settings": lambda queue: queue.change_settings(lease_s=5),
    "commit": lambda queue: queue.commit("seed"),
    "history": lambda queue: queue.history("0" * 32 + ".0"),
    "inputs": lambda queue: next(queue.inputs("0" * 32 + ".0")),
    "insert": lambda queue: queue.insert("new"),
    "insert with a key": lambda queue: queue.insert("new", key="k"),
    "insert_many": lambda queue: queue.insert_many(["new"] * 3),
    "insert_many what is new": lambda queue: queue.insert_many([{"run": 1}], new_by="run"),
    "insert_many once": lambda queue: queue.insert_many(["new"] * 3, commit="seed"),
    "lease_by_id": lambda queue: queue.lease_by_id("0" * 32 + ".0"),
    "lease_for": lambda queue: queue.lease_for([(1, {"host": "h"})]),
    "lease, waiting": lambda queue: queue.lease(wait_s=0.1),
    "next of poll": lambda queue: next(iter(queue.poll()), None),
    "result": lambda queue: queue.result("0" * 32 + ".0"),
    "results_of": lambda queue: queue.results_of("0" * 32 + ".0"),
    "find_by_key": lambda queue: queue.find_by_key("key"),
    "task": lambda queue: queue.task("0" * 32 + ".0"),
    "wait": lambda queue: queue.wait(timeout_s=5),
}


OF_TASKS: dict[str, Callable[[Used], object]] = {
    "complete": lambda used: used.open.complete(used.task),
    "renew": lambda used: used.open.renew(used.task),
    "release": lambda used: used.open.release(used.task),
}
ANSWER_BY_MEMORY = {
    "close", "create", "directory", "generation", "group", "has_priorities", "id", "lease_for_others", "path", "paused",
    "settings", "typed_path",
}  # fmt: skip
"""Of a queue: what asks no file, tells what was last read, or needs no group."""
IN_LOOPS = {"poll_async"}
"""What is `poll` in another dress."""
OF_GROUPS = {
    "at", "barriers_due_s", "bells", "close", "create", "directories", "directory", "group", "holding", "matching",
    "note_open", "numbers", "opened_queue", "opener", "pass_barriers", "path", "queue_at", "queue_in", "queue_stamp",
    "stamp", "states", "update",
}  # fmt: skip
"""Of a group: what makes an object whose verbs are in the table, what needs no group, and what its modules share."""


def public(of: type) -> set[str]:
    return {name for name in dir(of) if not name.startswith("_")}


def test_the_verbs_are_all() -> None:
    """A new verb must be put into a table, or be named here as one that needs none."""
    assert QUEUE_VERBS.keys() >= {verb.name for verb in OF_QUEUES if callable(verb.absent)}
    tried = {verb.split(",")[0].split()[0] for verb in QUEUE_VERBS} - {"next"}
    assert public(GroupQueue) == tried | OF_TASKS.keys() | ANSWER_BY_MEMORY | IN_LOOPS
    assert public(Group) - OF_GROUPS == (GROUP_VERBS.keys() | {"wait"}) & public(Group)


@pytest.mark.parametrize("verb", OF_TASKS)
def test_a_lease_s_end_says_that_the_group_is_away(used: Used, verb: str, away: Callable[[Used], None]) -> None:
    away(used)
    if away is emptied and verb != "renew":  # the queue of the lease was removed, and another one is in its place
        with pytest.raises(LeaseLost, match="the queue was deleted"):
            OF_TASKS[verb](used)
    else:
        with pytest.raises(GroupNotFound, match=HINT):
            OF_TASKS[verb](used)
    nothing_was_done(used, away)


LOST = r"no \.group\.jsonl: it is gone.*fsqueue fsck --repair"


def test_each_verb_of_a_group_names_its_file_that_is_gone(used: Used) -> None:
    acts = {verb: prepare(used) for verb, prepare in GROUP_VERBS.items()}
    (used.group.path / groups.GROUP_FILE).unlink()
    before = sorted(used.group.path.rglob("*"))
    for verb, act in acts.items():
        with pytest.raises(GroupNotFound, match=LOST):
            answer(verb, act())
    assert sorted(used.group.path.rglob("*")) == before


@pytest.mark.parametrize("name", ["never", "open"])
def test_each_verb_of_a_queue_names_the_groups_file_that_is_gone(used: Used, name: str) -> None:
    (used.group.path / groups.GROUP_FILE).unlink()
    before = sorted(used.group.path.rglob("*"))
    for verb, act in QUEUE_VERBS.items():
        with pytest.raises(GroupNotFound, match=LOST):
            answer(verb, act(GroupQueue(used.group, name)))
    assert sorted(used.group.path.rglob("*")) == before


@pytest.mark.parametrize("which", ["open", "closed", "new object"])
def test_each_verb_of_a_queue_names_its_file_that_is_gone(used: Used, which: str) -> None:
    queues = {verb: GroupQueue(used.group, "open") for verb in QUEUE_VERBS}
    for queue in queues.values():
        if which != "new object":
            queue.status()
        if which == "closed":
            queue.close()
    (used.group.path / "open" / "queue.jsonl").unlink()
    before = sorted(used.group.path.rglob("*"))
    for verb, queue in queues.items():
        with pytest.raises(QueueFileLost, match=r"its queue\.jsonl is gone.*fsqueue fsck --repair"):
            answer(verb, QUEUE_VERBS[verb](queue))
    assert sorted(used.group.path.rglob("*")) == before


def answer(verb: str, found: Any) -> None:
    """Fail with what a verb answers; go through what it yields, since that may raise."""
    pytest.fail(f"{verb} answers {[*found] if hasattr(found, '__next__') else found!r}")


def test_each_verb_of_a_group_says_that_it_is_away(used: Used, away: Callable[[Used], None]) -> None:
    acts = {verb: prepare(used) for verb, prepare in GROUP_VERBS.items()}
    away(used)
    for verb, act in acts.items():
        error = told(verb, act)
        assert isinstance(error, GroupNotFound), (verb, error)
        assert error.exit_code == 5
        assert (ABSENT if away in (unmounted, removed) else REPLACED) in str(error), verb
    nothing_was_done(used, away)


@pytest.mark.parametrize("which", ["never", "open", "closed", "new object"])
def test_each_verb_of_a_queue_says_that_its_group_is_away(used: Used, which: str, away: Callable[[Used], None]) -> None:
    name = "never" if which == "never" else "open"
    queues = {verb: GroupQueue(used.group, name) for verb in QUEUE_VERBS}
    for queue in queues.values():
        if which in ("open", "closed"):
            queue.status()
        if which == "closed":
            queue.close()
    away(used)
    for verb, queue in queues.items():
        error = told(verb, lambda verb=verb, queue=queue: QUEUE_VERBS[verb](queue))
        assert isinstance(error, GroupNotFound), (verb, error)
        if "insert" in verb:
            assert (error.inserted, error.new, error.is_exact) == (0, 0, True), verb
            assert "Nothing was inserted" in str(error), verb
    nothing_was_done(used, away)


def test_a_stream_that_outlives_the_group_says_what_is_in_it(used: Used) -> None:
    def stream() -> Iterator[int]:
        yield from range(300)  # a batch
        unmounted(used)
        yield from range(300)

    with pytest.raises(GroupNotFound, match=HINT) as refused:
        used.open.insert_many(stream(), batch_tasks=100)
    assert refused.value.is_exact
    assert [*used.disk.rglob("*")] == []
    used.disk.rmdir()
    os.rename(used.aside, used.disk)
    assert used.inserted() == {"open": 10 + (refused.value.new or 0), "other": 1}


def test_a_group_that_was_moved_to_another_place_and_back_is_the_same(used: Used) -> None:
    """So is one whose file a cleaner has touched, or a backup has linked: the id decides."""
    before = used.group.directory()
    os.rename(used.group.path, f"{used.group.path}-2")
    with pytest.raises(GroupNotFound, match=ABSENT):
        used.open.status()
    os.rename(f"{used.group.path}-2", used.group.path)
    used.open.insert("back")
    file = used.group.path / groups.GROUP_FILE
    os.utime(file)
    os.link(file, used.disk / "backup")
    used.open.insert("touched")
    assert used.group.directory() is before
    shutil.copytree(used.group.path, used.disk / "copy")
    shutil.rmtree(used.group.path)
    os.rename(used.disk / "copy", used.group.path)  # restored
    used.group["other"].insert("restored")
    assert used.group.directory() is not before
    assert used.inserted() == {"open": 12, "other": 2}


def test_a_look_whether_it_is_in_place_is_one_system_call(used: Used, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = used.group.directory()

    def fails(*args: object) -> None:
        raise AssertionError(args)

    for name in ("_open", "_root", "is_in_place", "stat"):
        monkeypatch.setattr(directory.fs, name, fails)
    assert used.group.directory() is directory


def test_what_a_group_is_without_its_file(used: Used) -> None:
    """As after a purge of scratch: what is in it is not called drained."""
    (used.group.path / groups.GROUP_FILE).unlink()
    for act in (used.group.is_drained, used.never.lease, lambda: Group(used.group.path)):
        with pytest.raises(GroupNotFound, match=r"no \.group\.jsonl: it is gone.*fsqueue fsck --repair"):
            act()
    assert sorted(os.listdir(used.group.path)) == [".bells", "open", "other"]


@pytest.mark.skipif(not can_mount("tmpfs"), reason="only root, where it may mount, can unmount")
def test_a_filesystem_that_is_unmounted_under_a_producer(tmp_path: Path) -> None:
    """What is reported inserted is in the filesystem, at each moment; and nothing comes into the bare mount point."""
    with small_disk(tmp_path / "disk", 8, 2000) as disk:
        group = Group.create(disk / "group", shards=2)
        queue, never = group["fetch"], group["never"]
        ids = [queue.insert(1).id]
        kept = tmp_path / "kept"
        kept.mkdir()
        run("mount", "--bind", str(disk), str(kept))
        try:
            run("umount", "--lazy", str(disk))
            unknown: list[str] = []

            def insert_on_and_on() -> None:
                while True:  # for up to a second its file is not asked for again
                    ids.append(queue.insert(2).id)

            with pytest.raises(GroupNotFound, match=HINT) as refused:
                insert_on_and_on()
            if not refused.value.is_exact:  # it was looked at behind the append
                assert "unknown whether the task is in the queue" in str(refused.value)
                unknown.append("one")
            for act in (
                never.status,
                group.is_drained,
                queue.status,
                lambda: queue.insert(3),
                lambda: Group(disk / "group"),
            ):
                with pytest.raises(GroupNotFound, match="check that this is mounted"):
                    act()
            with pytest.raises(GroupNotFound, match=HINT), group.update() as update:
                update.insert("fetch", 3)
            assert os.listdir(disk) == []
            run("mount", "--bind", str(kept), str(disk))
            found = {task.id for task in group["fetch"].tasks()}
            assert found >= {*ids}
            assert len(found) in (len(ids), len(ids) + len(unknown))
            queue.insert(4)
            never.insert(5)
            assert group.status().status.inserted == len(found) + 2
        finally:
            run("umount", "--lazy", str(kept))


# -- several roots: docs/several-servers.md, "Several file servers" ---------------------------------------------


def test_the_recipe_of_several_roots_names_the_one_that_is_away(tmp_path: Path) -> None:
    roots = [tmp_path / "scratch1", tmp_path / "scratch2"]
    for root in roots:
        Group.create(root / "me" / "crawl", lease_s=300)
    page = (Path(__file__).parents[2] / "docs" / "several-servers.md").read_text()
    found = re.search(r"## Several file servers.*?```python\n(.*?)```", page, re.DOTALL)
    assert found is not None
    opening = found[1].replace("/scratch", f"{tmp_path}/scratch").partition('\n\n\ngroup_of("europe")')[0]

    def opened() -> Callable[[str], Group]:
        world: dict[str, Any] = {}
        exec(opening, world)
        return world["group_of"]  # type: ignore[no-any-return]

    group_of, names = opened(), [f"n{number}" for number in range(40)]  # the ids of groups choose: some for each
    assert {group_of(name).path.parent.parent for name in names} == {*roots}
    for name in names:
        group_of(name)[f"{name}#fetch"].insert(name)
    lost = [name for name in names if group_of(name).path.is_relative_to(roots[1])]
    os.rename(roots[1], tmp_path / "aside")
    roots[1].mkdir()
    with pytest.raises(GroupNotFound, match=rf"{roots[1]}/me/crawl.* check that this is mounted"):
        opened()
    for name in names:
        if name in lost:
            with pytest.raises(GroupNotFound, match=rf"{roots[1]}/me/crawl.* check that this is mounted"):
                group_of(name)[f"{name}#parse"].insert("ids that nobody finds")
        else:
            assert group_of(name)[f"{name}#fetch"].status().waiting == 1
    assert os.listdir(roots[1]) == []
    with pytest.raises(GroupNotFound, match="check that this is mounted"):
        fsqueue.wait([group_of(name) for name in names], timeout_s=5)
