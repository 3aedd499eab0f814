"""A queue that a Unix group shares: umask and setgid decide, and who may not write is told so."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from fsqueue import Queue, StorageError
from tests.concurrency.processes import Child

GROUP, OWNER, MEMBER = 64_001, 64_002, 64_003

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become several users")


def become(uid: int, umask: int) -> None:
    os.setgroups([])
    os.setgid(GROUP if uid == OWNER else 64_009)
    os.setgroups([GROUP])
    os.setuid(uid)
    os.umask(umask)


def as_user(uid: int, umask: int, action: Callable[[], object]) -> object:
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
    above = tmp_path
    while above.parent != above and above.stat().st_mode & 0o005 != 0o005:
        above.chmod(above.stat().st_mode | 0o005)
        above = above.parent
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
@pytest.mark.once
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
@pytest.mark.once
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
