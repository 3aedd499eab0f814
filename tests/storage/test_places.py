"""A queue remembers its directory, by the number of its inode and the generation of that: a copy has another one."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from fsqueue import Group, Queue, StorageFull
from fsqueue.filesystem import Filesystem, Mount, operations
from fsqueue.fsck import fsck_lost
from tests import copied
from tests.concurrency.processes import children
from tests.concurrency.trapped import DieAt, trapped
from tests.copied import WAYS, Copy
from tests.disks import DISKS, small_disk
from tests.support import failing

pytestmark = pytest.mark.once


def lines(path: Path) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in (path / "queue.jsonl").read_bytes().splitlines()]


def places(path: Path) -> list[Any]:
    """Return the places that a queue's file names, the first one first."""
    return [line["place"] for line in lines(path) if line["op"] == "place"]


def without_place(path: Path) -> None:
    """Make a queue's file as it was before places were recorded."""
    file = path / "queue.jsonl"
    kept = [line for line in file.read_bytes().splitlines(keepends=True) if b'"op":"place"' not in line]
    file.write_bytes(b"".join(kept))


def test_the_place_is_written_with_the_lines_that_begin_a_queue(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q")
    group = Group.create(tmp_path / "group")
    group["a"].insert(1)
    for path in (queue.path, group["a"].path):
        [[number, generation]] = places(path)
        assert number == path.stat().st_ino
        assert generation is None or generation >= 0
    assert [line["op"] for line in lines(queue.path)] == ["create", "place"]
    assert [line["op"] for line in lines(group["a"].path)] == ["create", "place", "group"]
    assert not queue.is_copy()
    assert not group["a"].is_copy()
    assert not group["none"].is_copy()


def test_a_queue_s_file_that_is_written_again_names_the_place(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q", shards=2)
    queue.insert_many(range(3))
    (queue.path / "queue.jsonl").unlink()
    assert [finding.repaired for finding in fsck_lost(queue.path, repair=True)] == [True]
    assert not Queue(queue.path).is_copy()
    assert Queue(copied.restored(queue.path)).is_copy()


@pytest.mark.parametrize("copy", WAYS)
def test_a_copy_is_one_until_it_is_accepted(tmp_path: Path, copy: Copy) -> None:
    path = Queue.create(tmp_path / "q").path
    there = copy(path)
    queue = Queue(there)
    assert queue.is_copy()
    before = (there / "queue.jsonl").read_bytes()
    assert queue.accept_copy()
    assert not queue.is_copy()
    assert not Queue(there).is_copy()
    after = (there / "queue.jsonl").read_bytes()
    assert after.startswith(before)
    assert after.count(b"\n") == before.count(b"\n") + 1
    assert not queue.accept_copy()
    assert (there / "queue.jsonl").read_bytes() == after


def test_a_copy_of_an_accepted_copy_is_one(tmp_path: Path) -> None:
    path = copied.restored(Queue.create(tmp_path / "q").path)
    assert Queue(path).accept_copy()
    there = copied.beside(path)
    assert Queue(there).is_copy()
    assert not Queue(path).is_copy()


@pytest.mark.parametrize("copy", WAYS)
def test_a_queue_of_a_group_and_all_of_a_copied_group(tmp_path: Path, copy: Copy) -> None:
    group = Group.create(tmp_path / "group")
    for name in "ab":
        group[name].insert(1)
    there = Group(copy(group.path))
    assert [there[name].is_copy() for name in "ab"] == [True, True]
    assert there["a"].accept_copy()
    assert [there[name].is_copy() for name in "ab"] == [False, True]
    assert not there["none"].accept_copy()


def test_a_renaming_makes_no_copy(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q")
    moved = Queue(queue.path.rename(tmp_path / "moved"))
    assert not moved.is_copy()
    group = Group.create(tmp_path / "group")
    group["a"].insert(1)
    renamed = Group(group.path.rename(tmp_path / "elsewhere"))
    assert not renamed["a"].is_copy()
    moved.purge()
    assert not moved.is_copy()


def test_a_move_to_another_filesystem_makes_one(tmp_path: Path) -> None:
    with copied.on_tmpfs() as disk, copied.on_tmpfs() as other:
        assert Queue(shutil.move(Queue.create(tmp_path / "q").path, disk)).is_copy()
        queue = Queue.create(disk / "p")
        assert not queue.is_copy()
        there = other / "p"
        shutil.copytree(queue.path, there)
        assert Queue(there).is_copy()


def test_on_a_tmpfs_the_generation_is_not_known_and_a_copy_is_seen_all_the_same(tmp_path: Path) -> None:
    with copied.on_tmpfs() as disk:
        queue = Queue.create(disk / "q")
        assert places(queue.path) == [[queue.path.stat().st_ino, None]]
        for copy in WAYS:
            there = copy(queue.path)
            assert Queue(there).is_copy(), copy
            assert Queue(there).accept_copy()
            assert not Queue(there).is_copy()
            shutil.rmtree(there)
            queue = Queue.create(disk / f"q-{copy.__name__}")


@pytest.fixture(params=["xfs", "btrfs", *[kind for kind in DISKS if kind != "none"]])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    kind = request.param
    if kind in ("xfs", "btrfs") and shutil.which(f"mkfs.{kind}") is None:
        pytest.skip(f"there is no mkfs.{kind}")
    with small_disk(tmp_path / "disk", {"xfs": 320, "btrfs": 128}.get(kind, 16), 10_000, kind) as place:
        yield place


def test_on_each_filesystem_a_restored_backup_is_seen_and_a_remount_is_none(disk: Path) -> None:
    queue = Queue.create(disk / "q")
    for _ in range(10):
        path = copied.restored(queue.path)
        with Queue(path) as restored:
            assert restored.is_copy()
            assert restored.accept_copy()
            assert not restored.is_copy()
    queue.close()
    image = Path(f"{disk}.img")
    if image.exists():
        subprocess.run(["umount", disk], check=True)
        subprocess.run(["mount", "-o", "loop", image, disk], check=True)
        with Queue(path) as mounted:
            assert not mounted.is_copy()


def test_a_queue_of_an_earlier_fsqueue_gives_no_warning_until_its_place_is_recorded(tmp_path: Path) -> None:
    path = Queue.create(tmp_path / "q").path
    without_place(path)
    there = copied.restored(path)
    assert not Queue(there).is_copy()
    assert Queue(there).accept_copy()
    assert not Queue(there).is_copy()
    assert Queue(copied.restored(there)).is_copy()


@pytest.mark.parametrize(
    ("recorded", "found", "differs"),
    [
        ((5, 1), (5, 1), False),
        ((5, 1), (6, 1), True),
        ((5, 1), (5, 2), True),
        ((5, None), (5, 2), False),
        ((5, 1), (5, None), False),
        ((5, None), (5, None), False),
        ((5, None), (6, None), True),
        ((2**64 - 1, 2**32 - 1), (2**64 - 1, 2**32 - 1), False),
        ((5, 0), (5, 1), True),
    ],
)
def test_what_differs(
    tmp_path: Path, recorded: Any, found: Any, differs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A generation that one of two hosts does not know, as a client of NFS, tells nothing."""
    monkeypatch.setattr(Filesystem, "place", lambda fs, path: recorded)
    path = Queue.create(tmp_path / "q").path
    monkeypatch.setattr(Filesystem, "place", lambda fs, path: found)
    assert Queue(path).is_copy() == differs
    assert Queue(path).accept_copy() == differs
    assert places(path) == [list(recorded)] + [list(found)] * differs


@pytest.mark.parametrize(
    "place",
    [
        "5",
        "[5]",
        "[5,1,1]",
        "[-5,1]",
        "[5,-1]",
        "[5.0,1]",
        "[true,null]",
        '["5",null]',
        "null",
        "{}",
        "[null,1]",
        "[5,4294967296]",
        "[18446744073709551616,1]",
    ],
)
def test_a_line_that_names_no_place_is_void(tmp_path: Path, place: str) -> None:
    queue = Queue.create(tmp_path / "q")
    with (queue.path / "queue.jsonl").open("a") as file:
        file.write(f'{{"op":"place","at":1,"place":{place}}}\n')
    assert not Queue(queue.path).is_copy()
    assert Queue(copied.restored(queue.path)).is_copy()


@pytest.mark.parametrize("code", [errno.ENOTTY, errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS, errno.EIO])
def test_a_filesystem_that_tells_no_generation_is_no_error(
    tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ioctl(*arguments: Any) -> Any:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    queue = Queue.create(tmp_path / "q")
    assert places(queue.path) == [[queue.path.stat().st_ino, None]]
    assert not queue.is_copy()
    assert Queue(copied.beside(queue.path)).is_copy()


@pytest.mark.parametrize(("kind", "keeps"), [("fuse.sshfs", False), ("fuse", False), ("fuse.glusterfs", True)])
def test_where_numbers_are_made_up_nothing_is_recorded_or_compared(
    tmp_path: Path, kind: str, keeps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded = Queue.create(tmp_path / "before").path
    monkeypatch.setattr(operations, "mount_of", lambda path: Mount(kind, "/", "rw"))
    assert len(places(Queue.create(tmp_path / "q").path)) == keeps
    assert Queue(copied.beside(recorded)).is_copy() == keeps
    assert Queue(tmp_path / "copy").accept_copy() == keeps


def test_a_user_who_may_not_read_the_directory_gets_no_warning_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = Queue(copied.restored(Queue.create(tmp_path / "q").path))
    real = Filesystem.look

    def look(fs: Filesystem, path: str, flags: int = os.O_RDONLY) -> int:
        if path == str(queue.path):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(fs, path, flags)

    monkeypatch.setattr(Filesystem, "look", look)
    assert not queue.is_copy()
    assert not queue.accept_copy()


def test_an_accept_that_is_killed_at_any_step_leaves_the_old_place_or_the_new_one(tmp_path: Path) -> None:
    original = Queue.create(tmp_path / "q").path
    step, left = 0, set()
    while True:
        step += 1
        path = tmp_path / f"copy{step}"
        copied.run("cp", "-a", original, path)
        before = (path / "queue.jsonl").read_bytes()

        def live(path: Path = path, step: int = step) -> None:
            trap = DieAt(step)
            mine = trapped(Queue(path), trap)
            trap.armed = True
            mine.accept_copy()

        with children((live,)) as [child]:
            status = child.wait()
        assert status in (0, -signal.SIGKILL), child.report()
        after = (path / "queue.jsonl").read_bytes()
        assert after.startswith(before)
        is_new = not Queue(path).is_copy()
        assert is_new == (len(after) > len(before))
        left.add(is_new)
        assert Queue(path).accept_copy() != is_new
        assert not Queue(path).is_copy()
        assert len(places(path)) == 2
        if status == 0:
            break
    assert step > 5
    assert left == {False, True}


@pytest.mark.parametrize("is_written", [False, True])
def test_an_accept_without_room_or_sync_is_an_error_and_can_be_repeated(tmp_path: Path, is_written: bool) -> None:
    there = copied.beside(Queue.create(tmp_path / "q").path)
    queue = Queue(there)
    with failing(queue.store.fs, "fsync" if is_written else "write"), pytest.raises(StorageFull):
        queue.accept_copy()
    assert Queue(there).is_copy() != is_written
    assert Queue(there).accept_copy() != is_written
    assert len(places(there)) == 2


def test_of_those_that_accept_at_once_one_does(tmp_path: Path) -> None:
    there = copied.beside(Queue.create(tmp_path / "q").path)

    def accept() -> bool:
        return Queue(there).accept_copy()

    with children(*[(accept,)] * 4) as accepting:
        assert sorted(child.result() for child in accepting) == [False, False, False, True]
    assert len(places(there)) == 2


def test_what_leases_completes_or_inserts_asks_for_no_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Queue.create(tmp_path / "q")
    group = Group.create(tmp_path / "group")
    group["a"].insert(1)

    def place(*arguments: Any) -> Any:
        raise AssertionError("the place was asked for")

    monkeypatch.setattr(Filesystem, "place", place)
    for each in (Queue(queue.path), Group(group.path)["a"]):
        each.insert(1)
        each.insert_many([2, 3])
        for task in each.lease(3):
            task.renew()
            task.complete()
        each.status()
        assert each.is_drained() == (each.status().remaining == 0)
        each.gc()
