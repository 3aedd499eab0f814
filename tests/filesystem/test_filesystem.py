"""The filesystem layer: each operation and what it says when something is missing."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import signal
import threading
from pathlib import Path

import pytest

from fsqueue.filesystem import Filesystem, mount_of, operations
from fsqueue.filesystem.mounts import Mount
from tests.support import files_below, open_below
from tests.waiting import until


@pytest.fixture
def fs(tmp_path: Path) -> Filesystem:
    (tmp_path / "root").mkdir()
    return Filesystem(str(tmp_path / "root"), shared=False)


def test_a_lock_is_given_back_although_a_signal_comes_before_that(fs: Filesystem) -> None:
    """A child that was forked meanwhile has the file open: closing alone would leave it the lock."""
    fd = fs.create(f"{fs.root}/file")
    child, unlock, signals = os.dup(fd), fs.unlock, [KeyboardInterrupt()]

    def interrupted(fd: int) -> None:
        if signals:
            raise signals.pop()
        unlock(fd)

    assert fs.try_lock(fd)
    fs.unlock = interrupted
    with pytest.raises(KeyboardInterrupt):
        fs.end_lock(fd)
    fs.close(fd)
    other = fs.look(f"{fs.root}/file", os.O_RDWR)
    assert fs.try_lock(other)
    fs.close(other)
    os.close(child)


def test_a_look_goes_through_the_directory_and_follows_no_links(fs: Filesystem) -> None:
    fs.close(fs.create(f"{fs.root}/file"))
    os.symlink("file", f"{fs.root}/link")
    fs.close(fs.look(f"{fs.root}/file"))
    with pytest.raises(FileNotFoundError, match="missing"):
        fs.look(f"{fs.root}/missing")
    with pytest.raises(FileNotFoundError):
        fs.look(f"{fs.root}/missing/file")
    with pytest.raises(NotADirectoryError):
        fs.look(f"{fs.root}/file/file")
    with pytest.raises(OSError) as caught:
        fs.look(f"{fs.root}/link")
    assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize("shared", [True, False])
def test_a_file_is_found_in_a_directory_that_the_client_believes_missing(tmp_path: Path, shared: bool) -> None:
    """Another host has made the directory within the last minute. On a local disk nobody asks twice."""
    fs = Filesystem(str(tmp_path), shared=shared)
    (tmp_path / "one" / "two").mkdir(parents=True)
    (tmp_path / "one" / "two" / "file").write_bytes(b"content")
    real = fs._open_beneath

    def believing(root: int, path: str, flags: int, mode: int, **record: object) -> int:
        if path.startswith("one/two"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
        return real(root, path, flags, mode, **record)  # type: ignore[arg-type]

    fs._open_beneath = believing
    assert fs.exists(f"{tmp_path}/one/two/file") is shared
    assert not fs.exists(f"{tmp_path}/one/two/other")
    with pytest.raises(FileNotFoundError, match=f"{tmp_path}/one/three/file"):
        fs.look(f"{tmp_path}/one/three/file")
    if shared:
        assert fs.read(f"{tmp_path}/one/two/file") == b"content"


def test_a_stale_handle_means_gone_after_some_looks(fs: Filesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    fs.close(fs.create(f"{fs.root}/file"))
    real, stale = fs._open_beneath, [1]

    def opening(root: int, path: str, flags: int, mode: int, **record: object) -> int:
        if path == "file" and stale[0]:
            stale[0] -= 1
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(root, path, flags, mode, **record)  # type: ignore[arg-type]

    monkeypatch.setattr(fs, "_open_beneath", opening)
    fs.close(fs.look(f"{fs.root}/file"))
    stale[0] = operations.LOOKS
    with pytest.raises(FileNotFoundError):
        fs.look(f"{fs.root}/file")


def test_a_file_that_is_replaced_between_opening_and_asking_what_it_is_is_opened_anew(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.close(fs.create(f"{fs.root}/file"))
    before, real, asked = open_below(Path(fs.root).parent), os.fstat, [0]

    def asking(fd: int) -> os.stat_result:
        asked[0] += 1
        if asked[0] == 1:
            raise OSError(errno.ESTALE, "Stale file handle")
        return real(fd)

    monkeypatch.setattr(os, "fstat", asking)
    fs.close(fs.look(f"{fs.root}/file"))
    assert asked[0] == 2
    assert open_below(Path(fs.root).parent) == before


def test_a_file_that_is_removed_while_it_is_read_is_gone(fs: Filesystem) -> None:
    path = f"{fs.root}/file"
    Path(path).write_text("content")

    def removed_meanwhile(fd: int, size: int, offset: int) -> bytes:
        os.unlink(path)
        raise OSError(errno.ESTALE, "Stale file handle")  # as an NFS 3 client says

    fs.pread = removed_meanwhile
    with pytest.raises(FileNotFoundError):
        fs.read(path)


def test_a_file_that_is_delegated_to_an_nfs_client_is_called_back(fs: Filesystem) -> None:
    # What a file server has on its own disk for a client's delegation is a lease, in the sense of fcntl.
    path = f"{fs.root}/file"
    fs.close(fs.create(path))
    holder = fs.look(path)
    called = threading.Event()

    def give_back(*_: object) -> None:
        called.set()
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_UNLCK)

    before = signal.signal(signal.SIGIO, give_back)
    try:
        fcntl.fcntl(holder, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        # The holder has to be free to answer, so another thread opens it.
        opened: list[int] = []
        opener = threading.Thread(target=lambda: opened.append(fs.look(path, os.O_RDWR)))
        opener.start()
        # The kernel may choose another thread for the signal, which does not end a wait here.
        until(lambda: not opener.is_alive(), "the file to be opened")
        assert called.is_set()
        fs.close(opened[0])
    finally:
        signal.signal(signal.SIGIO, before)
        fs.close(holder)


def test_a_pipe_in_the_way_stops_nobody(fs: Filesystem) -> None:
    os.mkfifo(f"{fs.root}/pipe")
    for flags in (os.O_WRONLY, os.O_RDONLY, os.O_RDWR):
        with pytest.raises(OSError) as caught:
            fs.look(f"{fs.root}/pipe", flags)
        assert caught.value.errno == errno.ENXIO


def test_descriptors_are_not_inherited_by_programs(fs: Filesystem) -> None:
    for fd in (fs.create(f"{fs.root}/a"), fs.look(f"{fs.root}/a"), fs.open_append(f"{fs.root}/b")):
        assert not os.get_inheritable(fd)
        fs.close(fd)


def test_create_is_exclusive_and_makes_the_directories(fs: Filesystem) -> None:
    fs.make_directory(f"{fs.root}/1")
    fs.close(fs.create(f"{fs.root}/1/staging/x"))
    with pytest.raises(FileExistsError):
        fs.create(f"{fs.root}/1/staging/x")


def test_what_is_right_in_the_root_comes_back_only_if_hidden(fs: Filesystem) -> None:
    """Else who is late would bring a generation back to life that was purged, or that of a deleted queue."""
    for path in (f"{fs.root}/1/x", f"{fs.root}/1/staging/x", f"{fs.root}/1/staging/a/x"):
        for call in (fs.create, fs.open_append, lambda path: fs.overwrite(path, b"x")):
            with pytest.raises(FileNotFoundError):
                call(path)
    assert fs.names(fs.root) == []
    fs.close(fs.create(f"{fs.root}/.quarantine/a/x"))


def test_open_append_makes_what_is_missing_and_appends(fs: Filesystem) -> None:
    for part in (b"one", b"two"):
        fd = fs.open_append(f"{fs.root}/.a/b/file")
        fs.write_all(fd, part)
        fs.close(fd)
    assert fs.read(f"{fs.root}/.a/b/file") == b"onetwo"


def test_the_root_is_never_made_by_the_way(tmp_path: Path) -> None:
    fs = Filesystem(str(tmp_path / "gone"), shared=False)
    for path in (f"{fs.root}/a/file", f"{fs.root}/file"):
        with pytest.raises(FileNotFoundError):
            fs.open_append(path)
    with pytest.raises(OSError, match="Not below"):
        fs.open_append(f"{tmp_path}/elsewhere/file")
    with pytest.raises(FileNotFoundError):
        fs.make_directory(fs.root)
    assert os.listdir(tmp_path) == []
    fs.make_root()
    fs.make_root()
    assert os.listdir(tmp_path) == ["gone"]


def test_large_files_are_read_whole(fs: Filesystem) -> None:
    content = os.urandom((2 << 20) + 7)
    fd = fs.create(f"{fs.root}/f")
    fs.write_all(fd, content)
    assert fs.read_from(fd, 0) == content
    assert fs.read_from(fd, 1 << 20) == content[1 << 20 :]
    assert fs.read_from(fd, len(content)) == b""
    fs.close(fd)


def test_short_writes_are_completed(fs: Filesystem) -> None:
    fd = fs.create(f"{fs.root}/f")
    real = fs.write
    fs.write = lambda fd, data: real(fd, data[:3])
    fs.write_all(fd, b"0123456789")
    assert fs.read(f"{fs.root}/f") == b"0123456789"
    fs.write = lambda fd, data: real(fd, data[:3]) if len(data) > 4 else 0
    with pytest.raises(OSError, match="No space left"):
        fs.write_all(fd, b"0123456789")
    fs.close(fd)


def test_overwrite_is_in_place(fs: Filesystem) -> None:
    fs.overwrite(f"{fs.root}/doorbell", b"0" * 16)
    inode = os.stat(f"{fs.root}/doorbell").st_ino
    fs.overwrite(f"{fs.root}/doorbell", b"1" * 16)
    assert fs.read(f"{fs.root}/doorbell") == b"1" * 16
    assert os.stat(f"{fs.root}/doorbell").st_ino == inode


def test_listing_what_is_not_there_is_empty(fs: Filesystem) -> None:
    fs.close(fs.create(f"{fs.root}/file"))
    assert fs.names(f"{fs.root}/missing") == []
    assert fs.names(f"{fs.root}/file") == []
    assert fs.names(fs.root) == ["file"]


@pytest.mark.parametrize(("mount", "touched"), [("nfs", True), ("nfs4", False), ("ext4", False)])
def test_where_listings_go_by_time_a_directory_is_touched_first(tmp_path: Path, mount: str, touched: bool) -> None:
    fs = Filesystem(str(tmp_path), lists_by_time=Mount(mount, "/", "").lists_by_time)
    (tmp_path / "d").mkdir()
    for listing in (fs.names, fs.entries):
        os.utime(tmp_path / "d", (1, 1))
        assert list(listing(f"{tmp_path}/d")) == []
        assert ((tmp_path / "d").stat().st_mtime > 1) == touched


def test_rename_and_unlink_say_whether_it_was_there(fs: Filesystem) -> None:
    fs.close(fs.create(f"{fs.root}/a"))
    assert not fs.rename(f"{fs.root}/missing", f"{fs.root}/b")
    assert not fs.rename(f"{fs.root}/a", f"{fs.root}/missing/b")
    assert fs.rename(f"{fs.root}/a", f"{fs.root}/b")
    assert fs.unlink(f"{fs.root}/b")
    assert not fs.unlink(f"{fs.root}/b")


def test_link_is_exclusive(fs: Filesystem) -> None:
    for name in "ab":
        fs.close(fs.create(f"{fs.root}/{name}"))
    fs.link(f"{fs.root}/a", f"{fs.root}/c")
    with pytest.raises(FileExistsError):
        fs.link(f"{fs.root}/b", f"{fs.root}/c")


def test_same_file_tells_a_file_from_its_successor(fs: Filesystem) -> None:
    fd = fs.create(f"{fs.root}/a")
    assert fs.same_file(fd, f"{fs.root}/a")
    fs.unlink(f"{fs.root}/a")
    assert not fs.same_file(fd, f"{fs.root}/a")
    other = fs.create(f"{fs.root}/a")
    assert not fs.same_file(fd, f"{fs.root}/a")
    fs.close(fd)
    fs.close(other)


def test_exists_touch_and_stat(fs: Filesystem) -> None:
    fs.close(fs.create(f"{fs.root}/a"))
    os.utime(f"{fs.root}/a", (1, 1))
    assert fs.stat(f"{fs.root}/a").st_mtime == 1
    fs.touch(f"{fs.root}/a")
    assert fs.stat(f"{fs.root}/a").st_mtime > 1e9
    assert fs.exists(f"{fs.root}/a")
    assert not fs.exists(f"{fs.root}/b")


def test_a_tree_is_removed_with_links_but_not_what_they_mean(fs: Filesystem, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    fs.make_directory(f"{fs.root}/t")
    for name in ("t/a", "t/b/c", "t/b/d"):
        fs.close(fs.create(f"{fs.root}/{name}"))
    os.symlink(tmp_path / "precious", f"{fs.root}/t/link")
    assert fs.remove_tree(f"{fs.root}/t") == 6
    assert fs.names(fs.root) == []
    assert os.listdir(tmp_path / "precious") == ["file"]
    assert fs.remove_tree(f"{fs.root}/t") == 0


def deep(place: Path, levels: int) -> None:
    """Directories in one another, too many for a path, with a file in each."""
    place.mkdir()
    here = os.open(place, os.O_RDONLY)
    for _ in range(levels):
        os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        os.mkdir("directory", dir_fd=here)
        here, above = os.open("directory", os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)


def test_a_tree_of_any_depth_is_removed(fs: Filesystem, tmp_path: Path) -> None:
    """With the descriptors and frames that a process has: 1,500 levels."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert fs.names(fs.root) == []  # the root is open from here on
    deep(Path(fs.root) / "t", 1500)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    try:
        before = open_below(tmp_path)
        assert fs.remove_tree(f"{fs.root}/t") == 3001
        assert open_below(tmp_path) == before == 1
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert fs.names(fs.root) == []


def test_a_directory_that_is_moved_away_while_it_is_emptied_takes_nothing_with_it(
    fs: Filesystem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever moves it: what lies beside its new place is not touched."""
    inner, aside = Path(fs.root) / "t" / "a" / "b", tmp_path / "aside"
    inner.mkdir(parents=True)
    (aside / "precious").mkdir(parents=True)
    real = os.scandir

    def scan(place: int) -> object:
        if os.path.samestat(os.fstat(place), os.stat(inner)):
            inner.rename(aside / "b")
            monkeypatch.setattr(os, "scandir", real)
        return real(place)

    monkeypatch.setattr(os, "scandir", scan)
    assert fs.remove_tree(f"{fs.root}/t") == 0
    assert sorted(os.listdir(aside)) == ["b", "precious"]
    assert fs.remove_tree(f"{fs.root}/t") == 2


def test_what_may_not_be_removed_does_not_keep_the_rest(fs: Filesystem, monkeypatch: pytest.MonkeyPatch) -> None:
    fs.make_directory(f"{fs.root}/t")
    for name in ("t/a", "t/b/c", "t/b/d"):
        fs.close(fs.create(f"{fs.root}/{name}"))
    real = os.unlink

    def unlink(name: str, dir_fd: int) -> None:
        if name == "c":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), name)
        real(name, dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", unlink)
        with pytest.raises(PermissionError):
            fs.remove_tree(f"{fs.root}/t")
    assert files_below(fs.root) == ["t/b/c"]
    assert fs.remove_tree(f"{fs.root}/t") == 3


def test_a_tree_that_somebody_adds_to_is_left_for_the_next_time(
    fs: Filesystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs.make_directory(f"{fs.root}/t")
    fs.close(fs.create(f"{fs.root}/t/a"))
    real = os.rmdir

    def removing(path: str, dir_fd: int) -> None:
        monkeypatch.setattr(os, "rmdir", real)
        fs.close(fs.create(f"{fs.root}/t/late"))
        real(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", removing)
    assert fs.remove_tree(f"{fs.root}/t") == 1
    assert fs.remove_tree(f"{fs.root}/t") == 2


def test_the_mount_of_a_path_need_not_have_the_path(tmp_path: Path) -> None:
    found = mount_of(str(tmp_path / "a" / "b"))
    assert found == mount_of(str(tmp_path))
    assert tmp_path.is_relative_to(found.point)
    assert mount_of("/proc/self").kind == "proc"


def test_what_is_not_known_to_be_local_counts_as_shared() -> None:
    assert not Mount("ext4", "/", "rw").shared
    assert not Mount("tmpfs", "/", "rw").shared
    assert all(
        Mount(kind, "/", "rw").shared for kind in ("nfs4", "lustre", "beegfs", "gpfs", "fuse.sshfs", "unknown", "9p")
    )


@pytest.mark.parametrize("is_hole", [True, False], ids=["a hole", "zeros on the disk"])
@pytest.mark.parametrize("end", [b"", b"end\n"])
def test_long_runs_of_zeros_are_left_out_of_the_pieces_of_a_file(tmp_path: Path, is_hole: bool, end: bytes) -> None:
    path, size = tmp_path / "file", 16 << 20
    with path.open("wb") as file:
        file.write(b"begin\n")
        file.seek(size) if is_hole else file.write(bytes(size - 6))
        file.write(end)
        file.truncate()
    fs = Filesystem(str(tmp_path))
    pieces = fs.read_pieces(str(path))
    assert sum(len(data) for _, data in pieces) < 3 << 20
    assert pieces[-1][0] + len(pieces[-1][1]) == size + len(end)
    content = bytearray(size + len(end))
    for offset, data in pieces:
        content[offset : offset + len(data)] = data
    assert content == path.read_bytes()
    fd = fs.look(str(path))
    assert list(fs.pieces(fd, size + len(end))) == []
    fs.close(fd)
