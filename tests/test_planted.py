"""What neighbours plant at the rim: links to private files, directories in place of others, misleading paths."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsqueue import FsqueueError, Queue, QueueNotFound, StorageError, UnsafeFilesystem, administration, errors
from fsqueue.errors import NotAQueue
from fsqueue.filesystem import Filesystem, operations
from fsqueue.filesystem.result_paths import ResultFiles
from fsqueue.upkeep import trash
from tests.support import QueueFactory, base_of, files_below, log_files, needs_root

pytestmark = pytest.mark.once

STRANGER = 64_010


@pytest.fixture
def private(tmp_path: Path) -> Iterator[Path]:
    """A private file of this user, outside of every queue."""
    path = tmp_path / "private"
    path.write_text("secret\n" * 5)
    path.chmod(0o600)
    yield path
    assert path.read_text() == "secret\n" * 5


@pytest.mark.parametrize("place", ["log", "doorbell", "dead", "completions", "cancelled"])
def test_a_private_file_that_is_linked_into_the_queue_is_not_written_to(
    queue_factory: QueueFactory, private: Path, place: str
) -> None:
    queue = queue_factory(shards=1)
    queue.insert_many(range(4), batch_tasks=2)
    queue.complete(queue.lease(1))
    queue.close()
    base = base_of(queue)
    paths = {
        "log": log_files(queue)[:1],
        "doorbell": [queue.path / "doorbell"],
        "dead": [base / "dead" / "00.jsonl"],
        "completions": [base / "completions" / f"{number:02x}" for number in range(16)],
        "cancelled": [base / "cancelled"],
    }
    for path in paths[place]:
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        os.link(private, path)
    queue = Queue(queue.path)
    for verb in (
        lambda: queue.insert("x"),
        lambda: [task.bury("no") for task in queue.lease(1)],
        lambda: queue.complete(queue.lease(3)),
        lambda: queue.cancel([queue.insert_many([1], batch_tasks=1) and one.id for one in queue.tasks()]),
        lambda: queue.gc(),
        lambda: list(queue.fsck(repair=True)),
    ):
        try:
            verb()
        except FsqueueError:
            pass
    assert not any("secret" in copy.read_text() for copy in queue.path.glob(".quarantine/**/*lines-from*"))


def test_files_that_a_backup_has_linked_are_found_and_can_be_replaced_as_the_error_says(
    queue_factory: QueueFactory, tmp_path: Path
) -> None:
    queue = queue_factory(shards=1, max_attempts=1)
    queue.insert_many(range(4), batch_tasks=1)
    queue.complete(queue.lease(1))
    queue.lease(1)[0].bury("no")
    tasks = queue.lease(1)
    assert not list(queue.fsck())
    shutil.copytree(queue.path, tmp_path / "backup", copy_function=os.link)
    before = {path: path.read_bytes() for path in (tmp_path / "backup").rglob("*") if path.is_file()}
    queue.close()
    with pytest.raises(StorageError, match="second name") as caught:
        queue.complete(tasks)
    assert "repair" not in str(caught.value)
    assert errors.LINKED_REMEDY in str(caught.value)
    base = base_of(queue)
    places = [
        *log_files(queue),
        *(base / "completions").iterdir(),
        *base.glob("history/*/*"),
        base / "dead" / "00.jsonl",
    ]
    places.append(queue.path / "doorbell")
    wanted = {("linked-file", str(path.relative_to(queue.path)), False) for path in places}
    assert len(wanted) == 5
    for repair in (False, True):
        assert {(one.kind, one.path, one.repaired) for one in queue.fsck(repair=repair)} == wanted
    queue.close()
    for path in places:
        subprocess.run(["sh", "-c", 'cp -p "$0" "$0.new" && mv -f "$0.new" "$0"', path], check=True)
    assert not list(queue.fsck())
    queue.complete(tasks)
    assert queue.status().as_dict() == {
        "inserted": 4,
        "waiting": 1,
        "delayed": 0,
        "leased": 0,
        "completed": 2,
        "dead": 1,
    }
    assert {path: path.read_bytes() for path in before} == before


def test_a_path_with_dots_after_a_link_means_what_the_system_says(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "a" / "link").symlink_to("../b/c")
    Queue.create(tmp_path / "a" / "q").insert("of a")
    Queue.create(tmp_path / "b" / "q").insert("of b")
    path = f"{tmp_path}/a/link/../q"
    assert [task.payload for task in Queue(path).tasks()] == ["of b"]
    Queue(path).delete(foreground=True)
    assert [task.payload for task in Queue(tmp_path / "a" / "q").tasks()] == ["of a"]
    with pytest.raises(QueueNotFound):
        Queue(tmp_path / "b" / "q")


def test_dots_at_the_beginning_are_those_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Queue.create(tmp_path / "q").insert("here")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    assert [task.payload for task in Queue("../q").tasks()] == ["here"]
    assert [task.payload for task in Queue("./../below/..//q/").tasks()] == ["here"]


@needs_root
def test_a_directory_that_a_stranger_made_is_not_made_a_queue(tmp_path: Path) -> None:
    planted = tmp_path / "q"
    planted.mkdir()
    os.chown(planted, STRANGER, STRANGER)
    planted.chmod(0o2777)
    with pytest.raises(NotAQueue, match="another user"):
        Queue.create(planted)
    assert list(planted.iterdir()) == []


def test_create_and_delete_at_once_leave_nothing_behind(tmp_path: Path) -> None:
    errors: list[Exception] = []

    def play() -> None:
        for _ in range(15):
            try:
                Queue.create(tmp_path / "q", exist_ok=True, durability="none").delete(foreground=True)
            except (QueueNotFound, StorageError):
                pass  # another was faster
            except Exception as error:
                errors.append(error)

    players = [threading.Thread(target=play) for _ in range(3)]
    for player in players:
        player.start()
    for player in players:
        player.join()
    assert errors == []
    Queue.create(tmp_path / "q", exist_ok=True).delete(foreground=True)
    trash.reap(tmp_path)  # a creator that came late may have kept a directory from being removed
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("by_then", ["gone", "made again"])
def test_create_tries_again_after_a_delete_between_the_two_steps_of_making_a_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, by_then: str
) -> None:
    """`os.makedirs` finds the name taken, and the directory removed when it looks what is there."""
    path = tmp_path / "q"
    path.mkdir()
    real = os.path.isdir

    def deleted_before(name: str) -> bool:
        if name != str(path):
            return real(name)
        monkeypatch.setattr(os.path, "isdir", real)
        path.rmdir()
        found = real(name)
        if by_then == "made again":
            path.mkdir()
        return found

    monkeypatch.setattr(os.path, "isdir", deleted_before)
    Queue.create(path).insert("a task")
    assert os.path.isdir is real
    assert Queue(path).status().waiting == 1


def test_create_tries_again_when_its_directory_is_removed_before_it_is_opened_and_then_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "q"
    real_make = Filesystem.make_root
    made: list[str] = []

    def make_and_lose(self: Filesystem) -> None:
        real_make(self)
        made.append(self.root)
        if len(made) == 1:
            path.rmdir()

    def refuse(*_: object) -> None:
        """Fail as the probes do whose directory is not there."""
        if not path.exists():
            path.mkdir()
            raise UnsafeFilesystem("No such file or directory.")

    monkeypatch.setattr(Filesystem, "make_root", make_and_lose)
    monkeypatch.setattr(administration, "check", refuse)
    Queue.create(path).insert("a task")
    assert len(made) == 2
    assert Queue(path).status().waiting == 1


def test_a_queue_that_is_created_while_it_is_looked_for_is_not_called_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "q").mkdir()
    real = Filesystem.names

    def late(self: Filesystem, path: str) -> list[str]:
        monkeypatch.setattr(Filesystem, "names", real)
        Queue.create(path).insert("another")
        return real(self, path)

    monkeypatch.setattr(Filesystem, "names", late)
    with pytest.raises(QueueNotFound):
        Queue(tmp_path / "q")
    assert Queue(tmp_path / "q").status().waiting == 1


def test_a_directory_in_place_of_the_one_just_made_for_results_is_not_adopted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = tmp_path / "private"
    private.mkdir(0o700)
    (private / "diary").write_text("mine")
    real = os.mkdir

    def swapping(name: str, mode: int, **within: int) -> None:
        real(name, mode, **within)
        private.rename(tmp_path / name)

    monkeypatch.setattr(os, "mkdir", swapping)
    files = ResultFiles(str(tmp_path))
    with pytest.raises(FileExistsError):
        files.open()
    files.close()
    assert [path.name for path in tmp_path.glob("*/*")] == ["diary"]


def test_a_pipe_in_place_of_a_file_that_was_waited_for_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first open says "try again", as for a file with a lease; then a neighbour swaps the file for a pipe."""
    (tmp_path / "file").touch()
    fs, real, tried = Filesystem(str(tmp_path), shared=True), os.open, [0]

    def opening(name: str, flags: int, *args: int, **kwargs: int) -> int:
        if name == "file" and not tried[0]:
            tried[0] = 1
            os.unlink(tmp_path / "file")
            os.mkfifo(tmp_path / "file")
            raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return real(name, flags, *args, **kwargs)

    monkeypatch.setattr(operations.os, "open", opening)
    with pytest.raises(OSError):
        fs.look(f"{tmp_path}/file")


def test_descriptors_above_the_limit_stop_no_command(queue: Queue, tmp_path: Path) -> None:
    import resource

    from fsqueue import Worker

    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = max(map(int, os.listdir("/proc/self/fd"))) + 200  # above what earlier tests have left open
    high = fcntl.fcntl(0, fcntl.F_DUPFD, limit + 400)
    queue.insert(1)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limits[1]))
        assert Worker(queue, command=["true"], result_dir=tmp_path).run().completed == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(high)


@pytest.mark.once
def test_a_copy_of_a_queue_changes_nothing_in_it(queue: Queue, tmp_path: Path) -> None:
    """docs/fsck.md recommends it as a backup: `cp -a`, and not `cp -al`."""
    queue.insert_many(range(4))
    task, *_ = queue.lease(2)
    subprocess.run(["cp", "-a", queue.path, tmp_path / "backup"], check=True)
    kept = files_below(tmp_path / "backup")
    task.complete()
    queue.complete(queue.lease(2))
    assert not list(queue.fsck())
    assert files_below(tmp_path / "backup") == kept
    backup = Queue(tmp_path / "backup")
    assert not list(backup.fsck())
    assert (backup.status().waiting, backup.status().leased) == (2, 2)
