"""Deleting, and what is reaped: a deleted queue is removed on proof, and nothing else is, whoever put it where."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from fsqueue_cli.main import cli

from fsqueue import FsqueueError, Queue, QueueNotFound, StorageError, administration
from fsqueue.errors import InvalidArgument
from fsqueue.filesystem import Filesystem, beneath
from fsqueue.format import layout, names
from fsqueue.upkeep import trash
from tests.concurrency.processes import Child
from tests.support import Crash, base_of, files_below, needs_root, open_to_all
from tests.waiting import until_nothing_reaps

pytestmark = pytest.mark.once

HEX = "0123456789abcdef"
OWNER, STRANGER = 64_101, 64_102


def ours(parent: Path) -> list[str]:
    """What is called a deleted queue in a directory."""
    return [name for name in os.listdir(parent) if names.parse_deleted(name) is not None]


def closed(queue: Queue, place: Path) -> Path:
    """A copy of a queue, marked as deleted, at `place`."""
    shutil.copytree(queue.path, place)
    with open(place / "queue.jsonl", "ab") as file:
        file.write(layout.closed_record(1))
    return place


def snapshot(place: Path) -> dict[str, object]:
    """Every name below a directory, and what it is."""
    found: dict[str, object] = {}
    for directory, inner, files in os.walk(place):
        for path in (Path(directory) / name for name in inner + files):
            what = os.readlink(path) if path.is_symlink() else None if path.is_dir() else path.read_bytes()
            found[str(path.relative_to(place))] = what
    return found


# -- what others have beside a queue -----------------------------------------------------------------

TRASH = ".trash"
SIBLINGS = [
    ".trash-old", ".trash.bak", ".trash-0123456789abcdef", ".trash2", ".trashes", ".trash-1000", f".trash-q-{HEX}",
    ".Trash", f".trash/q-{HEX}", f".trash/1-{HEX}-{HEX}", ".trash/holiday", ".fsqueue-deleted", ".fsqueue-deleted-mine",
    f".fsqueue-deleted-{HEX}", f".fsqueue-deleted-{HEX}-{HEX[:15]}", f".fsqueue-deleted-{HEX.upper()}-{HEX}",
    f".fsqueue-deleted-{HEX}-{HEX}x", f".fsqueue-deleted-{HEX}-{HEX}", f"fsqueue-deleted-{HEX}-{HEX}",
]  # fmt: skip


@pytest.mark.parametrize("how", ["foreground", "in the background", "gc --trash", "finished by who opens it"])
def test_deleting_a_queue_removes_nothing_else(queue: Queue, how: str) -> None:
    parent = queue.path.parent
    queue.insert(1)
    for name in SIBLINGS:
        (parent / name).mkdir(parents=True)
        (parent / name / "mine").write_text("mine")
    (parent / ".trash" / "thesis.tex").write_text("mine")
    before = snapshot(parent)
    if how == "finished by who opens it":
        (queue.path / "queue.jsonl").write_bytes((queue.path / "queue.jsonl").read_bytes() + layout.closed_record(1))
        with pytest.raises(QueueNotFound):
            Queue(queue.path)
    else:
        queue.delete(foreground=how == "foreground")
    until_nothing_reaps()
    trash.reap(str(parent))
    assert not queue.path.exists()
    assert snapshot(parent) == {name: what for name, what in before.items() if Path(name).parts[0] != queue.path.name}


def test_a_queue_called_trash_survives_its_neighbours_deletion(tmp_path: Path) -> None:
    for name in (".trash", ".trash-1", f".trash-q-{HEX}"):
        Queue.create(tmp_path / name).insert_many(range(10))
    neighbour = Queue.create(tmp_path / "q")
    neighbour.insert(1)
    neighbour.delete(foreground=True)
    trash.reap(str(tmp_path))
    for name in (".trash", ".trash-1", f".trash-q-{HEX}"):
        assert Queue(tmp_path / name).status().waiting == 10


@pytest.mark.parametrize("kind", ["link", "file", "pipe", "link to nowhere"])
def test_whatever_is_called_trash_beside_it_a_queue_is_deleted(queue: Queue, tmp_path: Path, kind: str) -> None:
    elsewhere, place = tmp_path / "elsewhere", queue.path.parent / ".trash"
    elsewhere.mkdir()
    (elsewhere / f"q-{HEX}").mkdir()
    (elsewhere / f"q-{HEX}" / "thesis.tex").write_text("mine")
    match kind:
        case "link":
            place.symlink_to(elsewhere)
        case "file":
            place.write_text("mine")
        case "pipe":
            os.mkfifo(place)
        case _:
            place.symlink_to("nowhere")
    queue.insert(1)
    path = queue.path
    queue.delete(foreground=True)
    assert sorted(os.listdir(path.parent)) == sorted({".trash", "elsewhere"})
    assert files_below(elsewhere) == [f"q-{HEX}/thesis.tex"]
    Queue.create(path).insert("again")


@pytest.mark.parametrize("size", [238, 239, 255])
def test_a_queue_with_a_long_name_can_be_deleted(tmp_path: Path, size: int) -> None:
    queue = Queue.create(tmp_path / ("a" * size))
    queue.insert(1)
    queue.delete(foreground=True)
    assert os.listdir(tmp_path) == []
    Queue.create(queue.path).insert("again")


# -- proof ----------------------------------------------------------------------------------------------


def test_a_deleted_queue_is_reaped_and_nothing_beside_it(queue: Queue) -> None:
    parent, queue_id = queue.path.parent, queue.store.queue_state.id
    queue.insert(1)
    deleted = closed(queue, parent / names.deleted(queue_id, HEX))
    kept = [".trash.bak", f".trash-some-queue-{HEX}", f".trash/q-{HEX}", ".trash/kept by hand"]
    for name in kept:
        closed(queue, parent / name)
    done = trash.reap(f"fq://{parent}")
    assert not deleted.exists()
    assert (done.removed > 5, done.left) == (True, {})
    assert all((parent / name / "queue.jsonl").exists() for name in kept)
    assert queue.status().waiting == 1
    assert trash.reap(parent).removed == 0


def edited(old: bytes, new: bytes) -> Callable[[Path], object]:
    """Change something in a tree's queue.jsonl."""
    return lambda file: file.write_bytes(file.read_bytes().replace(old, new))


def moved(file: Path) -> None:
    file.rename(file.with_name("real"))
    file.symlink_to("real")


UNPROVEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "no queue.jsonl": (Path.unlink, "no queue.jsonl"),
    "a link to one": (moved, "no queue.jsonl"),
    "a pipe": (lambda file: (file.unlink(), os.mkfifo(file)), "no queue.jsonl"),
    "a directory": (lambda file: (file.unlink(), file.mkdir()), "no queue.jsonl"),
    "nothing in it": (lambda file: file.write_bytes(b""), "damaged"),
    "no id": (edited(b'"id":', b'"no":'), "damaged"),
    "a sound queue's": (edited(b"closed", b"opened"), "does not say that the queue is deleted"),
    "a newer format's": (edited(b'"format":%d' % layout.FORMAT, b'"format":99'), "a newer fsqueue"),
    "an older format's": (edited(b'"format":%d' % layout.FORMAT, b'"format":2'), "an older fsqueue"),
}


@pytest.mark.parametrize("which", UNPROVEN)
def test_a_tree_without_proof_is_left_and_named(queue: Queue, which: str) -> None:
    queue.insert(1)
    parent, (change, why) = queue.path.parent, UNPROVEN[which]
    tree = closed(queue, parent / names.deleted(queue.store.queue_state.id, HEX))
    change(tree / "queue.jsonl")
    before = sorted(os.listdir(tree))
    done = trash.reap(parent)
    assert done.removed == 0
    assert list(done.left) == [str(tree)]
    assert why in done.left[str(tree)]
    assert sorted(os.listdir(tree)) == before


def test_the_name_of_another_queue_is_no_proof(queue: Queue) -> None:
    tree = closed(queue, queue.path.parent / names.deleted(names.QueueId(HEX), HEX))
    done = trash.reap(queue.path.parent)
    assert (done.removed, list(done.left)) == (0, [str(tree)])
    assert "another queue" in done.left[str(tree)]


def test_an_empty_directory_of_the_name_is_what_a_crash_leaves_in_the_end(tmp_path: Path) -> None:
    (tmp_path / names.deleted(names.QueueId(HEX), HEX)).mkdir()
    (tmp_path / f".trash-q-{HEX}").mkdir()
    (tmp_path / names.deleted(names.QueueId(HEX), HEX[::-1])).symlink_to(tmp_path)
    assert trash.reap(tmp_path).removed == 1
    assert len(os.listdir(tmp_path)) == 2


def test_the_proof_goes_last(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """However a removal is interrupted, what is left can be proven again."""
    queue.insert_many(range(30), batch_tasks=3)
    (queue.path / "zzz").mkdir()
    parent, unlink = queue.path.parent, os.unlink
    tree = closed(queue, parent / names.deleted(queue.store.queue_state.id, HEX))
    gone: list[str] = []

    def watching(name: str, dir_fd: int) -> None:
        gone.append(name)
        unlink(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", watching)
    trash.reap(parent)
    assert gone[-1] == "queue.jsonl"
    assert gone.count("queue.jsonl") == 1
    assert not tree.exists()


def test_the_proof_is_of_the_very_directory_that_is_emptied(queue: Queue, tmp_path: Path) -> None:
    """Who swaps the directory after the look has what was looked at removed, and not what he put there."""
    queue.insert(1)
    parent = queue.path.parent
    tree = closed(queue, parent / names.deleted(queue.store.queue_state.id, HEX))
    mine = parent / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("mine")
    fs = Filesystem(str(parent), shared=False)
    real = trash.why_not

    def swapping(*args: Any) -> str:
        why = real(*args)
        tree.rename(parent / "aside")
        mine.rename(tree)
        return why

    done = trash.Reaping()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trash, "why_not", swapping)
        trash.reap_tree(fs, str(tree), queue.store.queue_state.id, done)
    assert files_below(tree) == ["thesis.tex"]
    assert files_below(parent / "aside") == []
    assert trash.reap(parent).left == {str(tree): "no queue.jsonl in it proves that it was a queue"}


def test_no_filesystem_that_is_mounted_in_a_tree_is_entered(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.insert(1)
    parent = queue.path.parent
    tree = closed(queue, parent / names.deleted(queue.store.queue_state.id, HEX))
    mounted = tree / "mounted"
    mounted.mkdir()
    (mounted / "precious").touch()
    real, number = os.fstat, mounted.stat().st_ino

    def fstat(fd: int) -> os.stat_result:
        found = real(fd)
        if found.st_ino != number:
            return found
        return os.stat_result((*found[:2], found.st_dev + 1, *found[3:]))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fstat", fstat)
        patch.setattr(beneath, "openat2_works", lambda: False)
        done = trash.reap(parent)
    assert "mounted there" in done.left[str(tree)]
    assert sorted(files_below(tree)) == ["mounted/precious", "queue.jsonl"]
    trash.reap(parent)
    assert not tree.exists()


@needs_root
@pytest.mark.parametrize("kind", ["another filesystem", "another directory of the same one"])
def test_what_is_mounted_in_a_tree_is_not_emptied(queue: Queue, tmp_path: Path, kind: str) -> None:
    queue.insert(1)
    precious = tmp_path / "outside"
    precious.mkdir()
    inside = Path(next(queue.path.glob("1-*"))) / "staging" / "mounted"
    inside.mkdir(parents=True)
    options = ["-t", "tmpfs", "none"] if kind == "another filesystem" else ["--bind", str(precious)]
    subprocess.run(["mount", *options, str(inside)], check=True)
    mounted = inside
    try:
        (inside / "precious").write_text("precious")
        queue.purge()
        queue.gc()
        [mounted] = queue.path.glob(".trash/*/staging/mounted")
        assert (mounted / "precious").read_text() == "precious"
    finally:
        subprocess.run(["umount", str(mounted)], check=True)
    queue.gc()
    assert files_below(queue.path / ".trash") == []


def test_the_reaping_of_a_queue_takes_what_it_purged(queue: Queue) -> None:
    """`gc --trash Q`, which the command line starts after a purge."""
    queue.insert(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(administration, "reap_later", lambda store: None)
        queue.purge()
    assert files_below(queue.path / ".trash") != []
    assert trash.reap(queue.path).removed >= 5
    assert files_below(queue.path / ".trash") == []
    assert queue.status().inserted == 0


# -- refused, and nothing changed -----------------------------------------------------------------------


def is_sound(path: Path) -> bool:
    queue = Queue(path)
    queue.insert("still there")
    return queue.status().waiting > 0


def test_a_queue_is_not_deleted_through_a_link(queue: Queue) -> None:
    link = queue.path.parent / "link"
    link.symlink_to(queue.path)
    with pytest.raises(InvalidArgument, match=r"symbolic link .* Nothing was changed"):
        Queue(link).delete()
    assert link.is_symlink()
    assert is_sound(queue.path)
    Queue(link).purge()
    assert queue.status().inserted == 0


def test_a_closed_queue_behind_a_link_stays_where_it_is(queue: Queue) -> None:
    path, link = queue.path, queue.path.parent / "link"
    link.symlink_to(path)
    with open(path / "queue.jsonl", "ab") as file:
        file.write(layout.closed_record(1))
    with pytest.raises(QueueNotFound):
        Queue(link)
    with pytest.raises(FsqueueError):
        Queue.create(link)
    assert link.is_symlink()
    assert path.is_dir()


REFUSALS = [errno.EBUSY, errno.EPERM, errno.EACCES, errno.EXDEV, errno.ENAMETOOLONG, errno.EIO, errno.EROFS]


@pytest.mark.parametrize("code", REFUSALS)
def test_a_refused_deletion_changes_nothing(queue: Queue, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Whatever the system says at the last step, as for a mount point or an immutable directory."""
    queue.insert("x")
    before = (queue.path / "queue.jsonl").read_bytes()

    def refusing(self: Filesystem, source: str, target: str) -> bool:
        raise OSError(code, os.strerror(code), source)

    with monkeypatch.context() as patch:
        patch.setattr(Filesystem, "rename", refusing)
        with pytest.raises(StorageError):
            queue.delete(foreground=True)
    content = (queue.path / "queue.jsonl").read_bytes()
    assert content.startswith(before)
    assert content[len(before) :].strip() == b""
    assert is_sound(queue.path)
    assert list(queue.fsck()) == []
    queue.delete(foreground=True)
    assert os.listdir(queue.path.parent) == []


def test_a_mark_that_was_not_synced_is_taken_back(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failed = queue.store.fs.fsync, []

    def failing(fd: int) -> None:
        if not failed:
            failed.append(fd)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        real(fd)

    queue.store.fs.fsync = failing
    with pytest.raises(StorageError):
        queue.delete(foreground=True)
    assert is_sound(queue.path)


def test_who_may_not_write_queue_jsonl_closes_nothing(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.insert("x")
    real = queue.store.fs.look

    def refusing(path: str, flags: int = os.O_RDONLY) -> int:
        if path.endswith("queue.jsonl") and flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
        return real(path, flags)

    monkeypatch.setattr(queue.store.fs, "look", refusing)
    with pytest.raises(StorageError, match="Permission denied"):
        queue.delete()
    assert is_sound(queue.path)


def test_another_directory_in_the_queues_place_is_put_back(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody renames while the deleter has the queue locked."""
    path, aside = queue.path, queue.path.parent / "aside"
    real = Filesystem.rename

    def swapped(self: Filesystem, source: str, target: str) -> bool:
        if source == str(path) and not aside.exists():
            path.rename(aside)
            path.mkdir()
            (path / "thesis.tex").write_text("mine")
        return real(self, source, target)

    monkeypatch.setattr(Filesystem, "rename", swapped)
    with pytest.raises(StorageError, match="Another directory"):
        queue.delete(foreground=True)
    assert sorted(os.listdir(path.parent)) == ["aside", path.name]
    assert files_below(path) == ["thesis.tex"]


def test_a_renaming_that_is_reported_as_failed_may_have_happened(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """NFS: the reply got lost, and the repeat found nothing."""
    real = Filesystem.rename

    def lost(self: Filesystem, source: str, target: str) -> bool:
        real(self, source, target)
        return False

    monkeypatch.setattr(Filesystem, "rename", lost)
    queue.delete(foreground=True)
    assert os.listdir(queue.path.parent) == []


# -- crashes ------------------------------------------------------------------------------------------------

CHANGES = ("rename", "unlink", "rmdir", "write", "pwrite", "fsync", "mkdir", "link")


class Killed:
    """The process dies before its `at`-th change of the disk; from then on it can do nothing any more."""

    def __init__(self, at: int) -> None:
        self.at, self.step, self.what = at, 0, ""
        self.is_dead = False

    def wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def dying(*args: Any, **kwargs: Any) -> Any:
            self.step += 1
            if self.step >= self.at:
                self.what, self.is_dead = self.what or f"{name} {args[:2]}", True
                raise Crash
            return call(*args, **kwargs)

        return dying


@contextmanager
def killed(at: int) -> Iterator[Killed]:
    """A process that dies at its `at`-th change. Open the queue within: a Filesystem binds some of the calls."""
    process = Killed(at)
    with pytest.MonkeyPatch.context() as patch:
        for name in CHANGES:
            patch.setattr(os, name, process.wrapped(name, getattr(os, name)))
        yield process


def deaths(tmp_path: Path, act: Callable[[Queue], object]) -> Iterator[tuple[str, Path, list[str]]]:
    """Do `act` on a fresh queue, dying at each of its steps. Yields where, the queue's path, and what was beside it."""
    for at in range(1, 400):
        place = tmp_path / str(at)
        queue = Queue.create(place / "q", shards=2)
        queue.insert_many(range(4), batch_tasks=2)
        queue.lease()[0].complete()
        (place / "thesis.tex").write_text("mine")
        with killed(at) as process:
            doomed = Queue(queue.path)
            try:
                act(doomed)
            except Crash:
                assert process.is_dead
        doomed.store.fs = Filesystem(str(queue.path), shared=False)  # the system closes the dead process's files
        yield f"died at {at}: {process.what}", queue.path, sorted(os.listdir(place))
        if not process.is_dead:
            return
    raise AssertionError("it never ends")


def test_a_deletion_that_dies_at_any_step_leaves_a_queue_or_proven_trash(tmp_path: Path) -> None:
    seen = set()
    for where, path, _ in deaths(tmp_path, lambda queue: queue.delete(foreground=True)):
        parent = path.parent
        if path.exists():
            try:
                assert Queue(path).status().waiting == 3, where
                seen.add("untouched")
                Queue(path).delete(foreground=True)
            except QueueNotFound:
                seen.add("closed")  # opening it has moved it away
        else:
            seen.add("moved")
        done = trash.reap(parent)
        assert done.left == {}, where
        assert os.listdir(parent) == ["thesis.tex"], where
    assert seen == {"untouched", "closed", "moved"}


@contextmanager
def full_disk(parent: Path, names_max: int) -> Iterator[None]:
    """No room for the mark of a deletion, before the deleter has removed so many names."""
    removed, unlink, rmdir = [0], os.unlink, os.rmdir

    def counting(call: Callable[..., None]) -> Callable[..., None]:
        def count(*args: Any, **kwargs: Any) -> None:
            call(*args, **kwargs)
            removed[0] += 1

        return count

    real = os.write

    def write(fd: int, data: bytes) -> int:
        if b'"closed"' in data and removed[0] < names_max:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(fd, data)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "unlink", counting(unlink))
        patch.setattr(os, "rmdir", counting(rmdir))
        patch.setattr(os, "write", write)
        yield


@pytest.mark.parametrize("names_max", [1, 5, 10**6])
@pytest.mark.parametrize("foreground", [True, False])
def test_a_queue_is_deleted_on_a_full_disk(queue: Queue, names_max: int, foreground: bool) -> None:
    """The mark comes as soon as there is room for it; if there never is, the queue goes without."""
    queue.insert_many(range(10), batch_tasks=1)
    with full_disk(queue.path.parent, names_max):
        Queue(queue.path).delete(foreground=foreground)
    until_nothing_reaps()
    assert os.listdir(queue.path.parent) == []


def test_on_a_full_disk_the_mark_comes_before_the_rest_goes(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a crash from then on leaves something that can be reaped."""
    queue.insert_many(range(200), batch_tasks=1)
    monkeypatch.setattr(administration, "_reap_later", lambda reap: None)
    with full_disk(queue.path.parent, 1):
        Queue(queue.path).delete()
    [left] = ours(queue.path.parent)
    assert len(files_below(queue.path.parent / left)) > 200 - 2 * administration.REAPED_AT_ONCE
    assert trash.reap(queue.path.parent).left == {}
    assert os.listdir(queue.path.parent) == []


@pytest.mark.parametrize("names_max", [3, 10**6])
def test_a_deletion_on_a_full_disk_that_dies_at_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names_max: int
) -> None:
    """What is left is a queue, or proven trash, or (it died before the mark had room) a directory that is named."""
    monkeypatch.setattr(administration, "REAPED_AT_ONCE", 2)

    def act(queue: Queue) -> None:
        with full_disk(queue.path.parent, names_max):
            Queue(queue.path).delete(foreground=True)

    seen = set()
    for where, path, beside in deaths(tmp_path, act):
        parent = path.parent
        if path.exists():
            assert Queue(path).status().waiting == 3, where
            seen.add("untouched")
            continue
        assert beside in (["thesis.tex"], [*ours(parent), "thesis.tex"]), where
        done = trash.reap(parent)
        if done.left:
            [(tree, why)] = done.left.items()
            assert "does not say that the queue is deleted" in why, where
            os.rename(tree, path)  # as it says
            Queue(path).delete(foreground=True)
            seen.add("unmarked")
        assert os.listdir(parent) == ["thesis.tex"], where
    assert seen == {"untouched", "unmarked"}


# -- several users ------------------------------------------------------------------------------------------


def as_user(uid: int, umask: int, action: Callable[[], object]) -> Any:
    """What an action returns that another user does; an FsqueueError as its text."""

    def live() -> object:
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        os.umask(umask)
        try:
            return action()
        except FsqueueError as error:
            return f"{type(error).__name__}: {error}"

    child = Child(live)
    try:
        return child.result()
    finally:
        child.close()


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """A sticky directory that everybody may write to."""
    place = tmp_path / "scratch"
    place.mkdir()
    place.chmod(0o1777)
    open_to_all(tmp_path)
    return place


def plant(place: Path, kind: str) -> None:
    match kind:
        case "mode 700":
            place.mkdir(0o700)
        case "mode 777":
            place.mkdir(0o777)
            place.chmod(0o777)
        case "file":
            place.touch()
        case _:
            place.symlink_to("/")


@needs_root
@pytest.mark.parametrize("kind", ["mode 700", "mode 777", "file", "link"])
def test_what_a_stranger_plants_beside_a_queue_keeps_nobody_from_deleting_it(scratch: Path, kind: str) -> None:
    path = scratch / "q"

    def own() -> None:
        Queue.create(path).insert("secret")

    as_user(OWNER, 0o077, own)
    as_user(STRANGER, 0o022, lambda: plant(scratch / ".trash", kind))
    assert as_user(OWNER, 0o077, lambda: Queue(path).delete(foreground=True)) == {}
    assert os.listdir(scratch) == [".trash"]
    if kind.startswith("mode"):
        assert os.listdir(scratch / ".trash") == []
    assert as_user(OWNER, 0o077, own) is None


@needs_root
def test_who_may_not_delete_is_told_who_may_and_the_queue_stays_open(scratch: Path) -> None:
    path = scratch / "q"

    def own() -> None:
        Queue.create(path).insert("x")

    as_user(OWNER, 0o000, own)
    said = as_user(STRANGER, 0o000, lambda: Queue(path).delete(foreground=True))
    assert "Nothing was changed" in said
    assert "sticky" in said
    assert as_user(OWNER, 0o000, lambda: Queue(path).status().waiting) == 1
    assert as_user(OWNER, 0o000, lambda: Queue(path).delete(foreground=True)) == {}
    assert os.listdir(scratch) == []


@needs_root
def test_a_reaping_leaves_what_another_user_has_to_remove_and_says_so(scratch: Path) -> None:
    path = scratch / "q"

    def own() -> None:
        administration._reap_later = lambda reap: None  # type: ignore[assignment]  # in this process, which ends at once
        Queue.create(path).insert("x")
        Queue(path).delete()

    as_user(OWNER, 0o077, own)
    [left] = ours(scratch)
    assert "owner" in as_user(STRANGER, 0o077, lambda: trash.reap(str(scratch)).left)[str(scratch / left)]
    assert as_user(OWNER, 0o077, lambda: trash.reap(str(scratch)).left) == {}
    assert os.listdir(scratch) == []


@needs_root
@pytest.mark.parametrize("way", ["Queue.delete", "fsqueue delete"])
def test_a_deletion_that_waits_tells_what_it_could_not_remove(scratch: Path, way: str) -> None:
    path = scratch / "q"

    def delete() -> object:
        if way == "Queue.delete":
            return Queue(path).delete(foreground=True)
        done = CliRunner().invoke(cli, ["delete", str(path), "--foreground", "--yes", "--json"])
        assert done.exit_code == 1, done.output
        return json.loads(done.stdout)["left"]

    def keep() -> None:
        os.mkdir(path / "mine", 0o755)
        (path / "mine" / "thesis.tex").touch()

    as_user(OWNER, 0o000, lambda: Queue.create(path) and None)
    as_user(STRANGER, 0o022, keep)
    found = as_user(OWNER, 0o000, delete)
    [left] = ours(scratch)
    assert list(found) == [str(scratch / left)]
    assert "owner" in found[str(scratch / left)]
    assert (scratch / left / "mine" / "thesis.tex").exists()


# -- paths --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "file:///x",
        "s3://x",
        "hdfs://name:8020/x",
        "FILE:///x",
        "fq://s3://x",
        "fq://file:///x",
        "fq:/x",
        Path("s3://x"),
    ],
)
def test_other_urls_are_refused_and_make_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str | Path
) -> None:
    monkeypatch.chdir(tmp_path)
    for verb in (Queue.create, Queue, trash.reap):
        with pytest.raises(InvalidArgument, match="mounted filesystem"):
            verb(path)
    assert os.listdir(tmp_path) == []


def test_a_directory_whose_name_looks_like_a_scheme_can_be_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for path in ("./s3:/q", str(tmp_path / "s3:" / "r"), f"fq://{tmp_path}/s3:/s", "host:q"):
        Queue.create(path).insert(1)
    assert sorted(os.listdir("s3:")) == ["q", "r", "s"]


def test_a_directory_of_deleted_queues_shows_none(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    from fsqueue.storage.discovery import queues

    monkeypatch.setattr(administration, "_reap_later", lambda reap: None)
    other = Queue.create(queue.path.parent / "other")
    queue.delete()
    [left] = ours(other.path.parent)
    assert queues(other.path.parent) == [str(other.path)]
    with pytest.raises(QueueNotFound):
        Queue(other.path.parent / left)
    assert ours(other.path.parent) == [left]
    other.delete()
    with pytest.raises(QueueNotFound):
        queues(other.path.parent)


def test_deleting_takes_no_time_whatever_is_in_the_queue(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is one renaming; the rest is done in the background."""
    queue.insert_many(range(500), batch_tasks=1)
    monkeypatch.setattr(administration, "_reap_later", lambda reap: None)
    renamed: list[str] = []
    real = Filesystem.rename

    def counting(self: Filesystem, source: str, target: str) -> bool:
        renamed.append(source)
        return real(self, source, target)

    monkeypatch.setattr(Filesystem, "rename", counting)
    queue.delete()
    assert renamed == [str(queue.path)]
    [left] = ours(queue.path.parent)
    assert len(files_below(queue.path.parent / left)) >= 500
    assert base_of(queue).name in os.listdir(queue.path.parent / left)


def test_a_mark_behind_zeros_is_taken_back_where_it_stands(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power loss left zeros behind `queue.jsonl`; then a deletion marks it, and the system refuses the renaming."""
    queue.insert("x")
    path = queue.path / "queue.jsonl"
    before = path.read_bytes()
    os.truncate(path, len(before) + (3 << 20))

    def refuse(*arguments: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(administration, "_move", refuse)
    with pytest.raises(StorageError):
        Queue(queue.path).delete()
    assert Queue(queue.path).status().waiting == 1
    after = path.read_bytes()
    assert after.startswith(before + bytes(3 << 20))
    assert b"closed" not in after
