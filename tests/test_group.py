"""A queue that a Unix group shares: umask and setgid decide, and who may not write is told so."""

from __future__ import annotations

import fcntl
import os
import stat
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import LeaseLost, Queue, StorageError
from tests.concurrency.processes import Child
from tests.pages import blocks, text_of
from tests.support import leftovers, needs_root, open_to_all

GROUP, OWNER, MEMBER = 64_001, 64_002, 64_003


def become(uid: int, umask: int) -> None:
    os.setgroups([])
    os.setgid(GROUP if uid == OWNER else 64_009)
    os.setgroups([GROUP])
    os.setuid(uid)
    os.umask(umask)


def as_user(uid: int, umask: int, action: Callable[[], object]) -> Any:
    def live() -> object:
        become(uid, umask)
        return action()

    child = Child(live)
    try:
        return child.result()
    finally:
        child.close()


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A directory of the group, setgid, as administrators make them; reachable by everybody."""
    place = tmp_path / "project"
    place.mkdir()
    os.chown(place, OWNER, GROUP)
    place.chmod(0o2775)
    open_to_all(tmp_path)
    return place


def create(path: Path) -> None:
    queue = Queue.create(path, shards=2)
    queue.insert_many(range(6), batch_tasks=2)
    queue.complete(queue.lease(1))
    queue.lease()[0].bury("no")


def use(path: Path) -> list[int]:
    """Everything, as a member."""
    queue = Queue(path)
    assert queue.retry_dead() == 1
    queue.insert("mine")
    tasks = queue.lease(20)
    queue.complete(tasks)
    queue.gc()
    assert list(queue.fsck(repair=True)) == []
    status = queue.status()
    return [len(tasks), status.completed, status.inserted]


@needs_root
def test_members_work_on_each_others_files(shared: Path) -> None:
    path = shared / "q"
    as_user(OWNER, 0o002, lambda: create(path))
    assert as_user(MEMBER, 0o002, lambda: use(path)) == [6, 7, 7]
    assert as_user(OWNER, 0o002, lambda: Queue(path).status().completed) == 7
    for place in (path, *path.rglob("*")):
        found = place.stat()
        assert found.st_gid == GROUP, place
        assert found.st_mode & 0o020, f"{place} is not writable by the group"
        assert not found.st_mode & 0o002, f"{place} is writable by everybody"
        assert place.is_file() or found.st_mode & stat.S_ISGID, place


@needs_root
def test_members_share_keys_whatever_the_umask_of_the_one_who_inserts_first(shared: Path) -> None:
    path = shared / "q"

    def insert(payload: str) -> list[bool]:
        queue = Queue(path)
        return [queue.insert(payload, key=f"k{n}").inserted for n in range(5)]

    def complete() -> int:
        queue = Queue(path)
        tasks = queue.lease(20)
        queue.complete(tasks)
        return len(tasks)

    as_user(OWNER, 0o002, lambda: Queue.create(path, shards=2).close())
    for first, second in ((OWNER, MEMBER), (MEMBER, OWNER)):
        assert as_user(first, 0o077, lambda: insert("small")) == [True] * 5
        assert as_user(second, 0o077, lambda: insert("small")) == [False] * 5
        assert as_user(second, 0o077, complete) == 5
        assert as_user(second, 0o077, lambda: insert("again")) == [True] * 5, "the key's file is the first one's"
        assert as_user(first, 0o077, lambda: insert("small")) == [False] * 5
        assert as_user(first, 0o077, complete) == 5
    assert as_user(MEMBER, 0o077, lambda: len(list(Queue(path).fsck()))) == 0


@needs_root
def test_without_that_umask_nothing_becomes_writable_and_a_member_is_told(shared: Path) -> None:
    path = shared / "q"
    as_user(OWNER, 0o022, lambda: create(path))
    before = {place: place.stat().st_mode for place in path.rglob("*")}
    assert not any(mode & 0o022 for mode in before.values())

    def refusals() -> list[str]:
        queue = Queue(path)
        assert queue.status().inserted == 6
        said = []
        verbs = {
            "insert": lambda: queue.insert(1),
            "lease": queue.lease,
            "purge": queue.purge,
            "delete": queue.delete,
            "retry_dead": queue.retry_dead,
        }
        for name, verb in verbs.items():
            try:
                said.append(f"{name}: {verb()!r}")
            except StorageError as error:
                said.append(str(error))
        assert list(queue.fsck()) == []
        return said

    said = as_user(MEMBER, 0o022, refusals)
    assert isinstance(said, list)
    assert all("Permission denied" in text and "owner" in text for text in said), said
    assert {place: place.stat().st_mode for place in path.rglob("*")} == before


def told(action: Callable[[], object]) -> str:
    """What an error of the system is said to be; "" if there is none."""
    try:
        action()
    except StorageError as error:
        return str(error)
    return ""


def contents(path: Path) -> dict[Path, bytes]:
    return {place: place.read_bytes() for place in path.rglob("*") if place.is_file()}


@needs_root
def test_a_default_acl_does_it_whatever_the_umask(shared: Path) -> None:
    """As `setfacl -d -m g::rwx,m::rwx` sets it: user, group, mask and others, each with its permissions."""
    entries = [(0x01, 7), (0x04, 7), (0x10, 7), (0x20, 0)]
    acl = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", tag, mode, 0xFFFFFFFF) for tag, mode in entries)
    try:
        os.setxattr(shared, "system.posix_acl_default", acl)
    except OSError as error:
        pytest.skip(f"this filesystem has no ACLs: {error}")
    path = shared / "q"
    as_user(OWNER, 0o077, lambda: create(path))
    assert as_user(MEMBER, 0o022, lambda: use(path)) == [6, 7, 7]
    assert as_user(OWNER, 0o077, lambda: len(list(Queue(path).fsck()))) == 0


@needs_root
def test_a_member_can_take_away_anothers_lease(shared: Path) -> None:
    path = shared / "q"

    def take() -> str:
        queue = Queue.create(path)
        queue.insert("x")
        return queue.lease()[0].token

    def complete() -> str:
        try:
            Queue(path).attach(str(token)).complete()
        except LeaseLost as error:
            return error.reason
        return ""

    token = as_user(OWNER, 0o002, take)
    assert as_user(MEMBER, 0o002, lambda: Queue(path).release_all()) == 1
    assert as_user(OWNER, 0o002, complete) == "given back"


@needs_root
@pytest.mark.parametrize("mode", [0o2755, 0o3775], ids=["not writable", "sticky"])
def test_who_may_not_write_beside_the_queue_cannot_delete_it(shared: Path, mode: int) -> None:
    path = shared / "q"
    as_user(OWNER, 0o002, lambda: create(path))
    shared.chmod(mode)
    before = contents(path)
    assert "Permission denied" in str(as_user(MEMBER, 0o002, lambda: told(lambda: Queue(path).delete(foreground=True))))
    assert contents(path) == before
    assert as_user(MEMBER, 0o002, lambda: use(path)) == [6, 7, 7]
    as_user(OWNER, 0o002, lambda: Queue(path).delete(foreground=True))
    assert not path.exists()


@needs_root
def test_a_reader_can_take_no_exclusive_lock(shared: Path) -> None:
    path = shared / "q"
    as_user(OWNER, 0o022, lambda: create(path))

    def locks() -> list[str]:
        taken = []
        for place in path.rglob("*"):
            if place.is_file():
                fd = os.open(place, os.O_RDONLY)
                try:
                    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    taken.append(str(place))
                except OSError:
                    pass
        return taken

    assert as_user(MEMBER, 0o022, locks) == []


def touch_all(path: Path) -> None:
    for task in Queue(path).lease(9):
        task.release()


def work(path: Path) -> list[object]:
    """Lease and complete one by one; the last entry tells whether permission was denied in the end."""
    queue, done = Queue(path), []
    try:
        while tasks := queue.lease(1):
            done.append(tasks[0].payload)
            tasks[0].complete()
    except StorageError as error:
        done.append("Permission denied" in str(error))
    return done


@needs_root
@pytest.mark.parametrize("umask", [0o022, 0o027, 0o077])
def test_a_members_umask_keeps_nobody_out(shared: Path, umask: int) -> None:
    """What a member makes in a queue that a group shares the group may read and write, whatever his umask."""
    path = shared / "q"
    as_user(OWNER, 0o002, lambda: str(Queue.create(path, shards=1)))

    def use_it() -> None:
        queue = Queue(path)
        queue.insert_many(["one", "two", "three", "four"], batch_tasks=1)
        queue.commit("named").publish([queue.commit("named").stage(["five"])])
        [first, second, third] = queue.lease(3)
        first.complete()
        second.bury("his")
        third.release()

    as_user(MEMBER, umask, use_it)

    def look() -> list[object]:
        queue = Queue(path)
        queue.gc()
        return [
            queue.status().as_dict()["waiting"],
            len(list(queue.tasks())),
            [letter.reason for letter in queue.dead()],
            [finding.kind for finding in queue.fsck()],
        ]

    assert as_user(OWNER, 0o002, look) == [3, 3, ["his"], []]
    left = as_user(OWNER, 0o002, lambda: work(path))
    assert len(left) == 3
    assert "five" in left
    closed = [place for place in path.rglob("*") if place.stat().st_mode & 0o060 != 0o060]
    assert closed == []


@needs_root
def test_a_file_that_only_one_member_may_read_is_worked_around_and_mended(shared: Path) -> None:
    """As older versions made them for a member with a tight umask."""
    path = shared / "q"
    as_user(OWNER, 0o002, lambda: Queue.create(path, shards=1).insert_many(["ours", "more of ours"], batch_tasks=1))
    as_user(OWNER, 0o002, lambda: touch_all(path))

    def spoil() -> None:
        before = set(path.rglob("*"))
        Queue(path).insert("his")
        touch_all(path)
        for place in set(path.rglob("*")) - before:
            if place.stat().st_uid == MEMBER and place.is_file():
                place.chmod(0o600)

    as_user(MEMBER, 0o022, spoil)
    assert sorted(map(str, as_user(OWNER, 0o002, lambda: work(path)))) == ["True", "more of ours", "ours"]
    for place in path.rglob("*"):
        place.chmod(place.stat().st_mode | 0o060)
    assert as_user(OWNER, 0o002, lambda: work(path)) == ["his"]
    assert Queue(path).status().completed == 3


@needs_root
def test_what_the_page_says_repairs_files_of_another_group(shared: Path) -> None:
    """Without setgid, what a member makes belongs to the group that this member is in first of all."""
    path = shared / "q"
    shared.chmod(0o775)
    as_user(OWNER, 0o002, lambda: Queue.create(path, shards=1).insert_many(["ours"], batch_tasks=1))
    as_user(OWNER, 0o002, lambda: touch_all(path))
    as_user(MEMBER, 0o022, lambda: Queue(path).insert_many(["his"], batch_tasks=1))
    as_user(MEMBER, 0o022, lambda: touch_all(path))
    assert {place.stat().st_gid for place in path.rglob("*")} == {GROUP, 64_009}
    assert as_user(OWNER, 0o002, lambda: work(path)) == ["ours", True]
    [repair] = [block for block in blocks(text_of("docs/sharing.md")) if "chgrp" in block.code]
    code = repair.code.replace("geo", str(GROUP)).replace(" Q", f" {path}")
    subprocess.run(["sh", "-ec", code], check=True)
    assert as_user(OWNER, 0o002, lambda: work(path)) == ["his"]
    assert {place.stat().st_gid for place in path.rglob("*")} == {GROUP}


@needs_root
def test_a_sticky_bit_keeps_members_from_clearing_away_what_another_made(shared: Path) -> None:
    """No harm is done, but the batches stay until their maker, or gc, clears them away."""
    path = shared / "q"
    as_user(OWNER, 0o002, lambda: create(path))
    for place in (path, *path.rglob("*")):
        if place.is_dir():
            place.chmod(place.stat().st_mode | stat.S_ISVTX)

    def work() -> dict[str, int]:
        queue = Queue(path)
        queue.complete(queue.lease(20))
        return queue.status().as_dict()

    status = as_user(MEMBER, 0o002, work)
    assert (status["completed"], status["dead"], status["inserted"]) == (5, 1, 6)
    assert leftovers(Queue(path)) != []
    as_user(OWNER, 0o002, lambda: len(list(Queue(path).fsck(repair=True))))
    assert leftovers(Queue(path)) == []
    assert Queue(path).status().as_dict() == status


@needs_root
def test_a_member_can_do_everything_to_everybodys_tasks(shared: Path) -> None:
    path = shared / "q"
    as_user(OWNER, 0o002, lambda: create(path))

    def act() -> list[int]:
        queue = Queue(path)
        first, second, third = queue.lease(3)
        first.fail("no")
        second.bury("no")
        given_back = queue.release_all()
        gone = queue.cancel([third.id])
        letters = len(list(queue.dead()))
        queue.purge()
        return [given_back, gone, letters, queue.status().inserted]

    assert as_user(MEMBER, 0o002, act) == [1, 1, 2, 0]
