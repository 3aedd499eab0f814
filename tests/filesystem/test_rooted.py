"""Paths below a root: whatever a neighbour links, moves or swaps, nothing outside is reached."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fsqueue.filesystem import Filesystem, beneath, resources, rooted
from tests.support import files_below, open_below

WAYS: dict[str, Callable[..., int]] = {"openat2": beneath.openat2, "walk": beneath.walk}


@pytest.fixture(params=WAYS, ids=str)
def fs(tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Filesystem:
    """A filesystem with the directory `a/b` and the file `a/b/file`, with and without the system call."""
    if request.param == "openat2" and not beneath.openat2_works():
        pytest.skip("this kernel has no openat2")
    monkeypatch.setattr(beneath, "openat2_works", lambda: request.param == "openat2")
    (tmp_path / "root" / "a" / "b").mkdir(parents=True)
    (tmp_path / "root" / "a" / "b" / "file").write_text("ours")
    return Filesystem(str(tmp_path / "root"), shared=False)


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Path]:
    """A tree that must stay as it is: the same names as in the root."""
    place = tmp_path / "outside"
    (place / "b").mkdir(parents=True)
    (place / "b" / "file").write_text("precious")
    (place / "empty").mkdir()
    yield place
    assert files_below(place) == ["b/file"]
    assert (place / "b" / "file").read_text() == "precious"
    assert sorted(os.listdir(place)) == ["b", "empty"]
    assert os.listdir(place / "empty") == []


def verbs(fs: Filesystem) -> dict[str, Callable[[], object]]:
    """Everything that a Filesystem does below `a`, on names that the tree outside has, too."""
    root = fs.root

    def write(path: str) -> None:
        fd = fs.open_append(path)
        fs.write_all(fd, b"!")
        fs.close(fd)

    return {
        "look": lambda: fs.close(fs.look(f"{root}/a/b/file")),
        "look to write": lambda: fs.close(fs.look(f"{root}/a/b/file", os.O_RDWR)),
        "open_append": lambda: write(f"{root}/a/b/file"),
        "create": lambda: fs.close(fs.create(f"{root}/a/b/new")),
        "overwrite": lambda: fs.overwrite(f"{root}/a/b/file", b"!"),
        "make_directory": lambda: fs.make_directory(f"{root}/a/b/c/d"),
        "rename away": lambda: fs.rename(f"{root}/a/b/file", f"{root}/stolen"),
        "rename into": lambda: fs.rename(f"{root}/mine", f"{root}/a/b/mine"),
        "link": lambda: fs.link(f"{root}/a/b/file", f"{root}/second"),
        "link into": lambda: fs.link(f"{root}/mine", f"{root}/a/b/second"),
        "unlink": lambda: fs.unlink(f"{root}/a/b/file"),
        "remove_directory": lambda: fs.remove_directory(f"{root}/a/empty"),
        "remove_tree": lambda: fs.remove_tree(f"{root}/a/b"),
        "touch": lambda: fs.touch(f"{root}/a/b/file"),
        "sync_directory": lambda: fs.sync_directory(f"{root}/a/b"),
    }


def tried(verb: Callable[[], object]) -> object:
    """What a verb returns; of an error of the system the negative number."""
    try:
        return verb()
    except OSError as error:
        return -(error.errno or 0)


VERBS = list(verbs(Filesystem("/nowhere")))


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("how", ["absolute", "relative", "one level up"])
def test_a_link_on_the_way_is_not_followed(fs: Filesystem, outside: Path, verb: str, how: str) -> None:
    root = Path(fs.root)
    (root / "mine").write_text("mine")
    before = (outside / "b" / "file").stat().st_mtime_ns
    (root / "a").rename(root / "aside")
    target = {"absolute": outside, "relative": Path("../outside"), "one level up": root / "hop"}[how]
    (root / "hop").symlink_to(outside)
    (root / "a").symlink_to(target)
    assert tried(verbs(fs)[verb]) in (None, False, 0, -errno.ENOTDIR, -errno.ELOOP)
    assert fs.names(f"{root}/a/b") == fs.entries(f"{root}/a/b") == []
    assert (outside / "b" / "file").stat().st_mtime_ns == before
    assert (root / "mine").exists()


@pytest.mark.parametrize("verb", VERBS)
def test_a_directory_in_place_of_the_root_is_not_entered(
    fs: Filesystem, outside: Path, tmp_path: Path, verb: str
) -> None:
    """Once open, the root is where it was, whatever its path names by then."""
    root = Path(fs.root)
    (root / "mine").write_text("mine")
    assert fs.names(fs.root) != []
    root.rename(tmp_path / "moved")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a").symlink_to(outside)
    root.symlink_to(tmp_path / "elsewhere")
    assert not fs.is_in_place()
    verbs(fs)[verb]()
    assert os.listdir(tmp_path / "elsewhere") == ["a"]


def test_a_root_is_in_place_until_it_is_moved_removed_or_replaced(fs: Filesystem, tmp_path: Path) -> None:
    assert fs.is_in_place()
    Path(fs.root).rename(tmp_path / "moved")
    assert not fs.is_in_place()
    Path(fs.root).mkdir()
    assert not fs.is_in_place()
    assert fs.names(fs.root) == ["a"]


def test_a_root_may_be_reached_through_links(fs: Filesystem, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(fs.root)
    through = Filesystem(str(tmp_path / "link"), shared=False)
    assert through.names(f"{through.root}/a/b") == ["file"]
    assert through.is_in_place()


@pytest.mark.parametrize(
    "path", ["/etc/passwd", "ROOT-beside/file", "ROOT/../outside/b/file", "ROOT/a/../../outside/b/file"]
)
def test_a_path_that_leads_outside_is_refused(fs: Filesystem, outside: Path, path: str) -> None:
    path = path.replace("ROOT", fs.root)
    for verb in (fs.look, fs.unlink, fs.create, fs.touch, fs.stat, fs.remove_tree, lambda one: fs.rename(one, one)):
        with pytest.raises(OSError) as caught:
            verb(path)
        assert caught.value.errno == errno.EXDEV


def test_a_null_byte_ends_no_path(fs: Filesystem) -> None:
    with pytest.raises(ValueError, match="null"):
        fs.look(f"{fs.root}/a/b/file\0more")


def test_what_is_missing_is_said_as_open_says_it(fs: Filesystem) -> None:
    for path, error in (("x", FileNotFoundError), ("x/y", FileNotFoundError), ("a/b/file/x", NotADirectoryError)):
        with pytest.raises(error, match=f"{fs.root}/{path}"):
            fs.look(f"{fs.root}/{path}")


def test_errors_name_the_whole_path(fs: Filesystem) -> None:
    for verb, path in ((fs.stat, "a/b/missing"), (fs.touch, "a/missing")):
        with pytest.raises(FileNotFoundError) as caught:
            verb(f"{fs.root}/{path}")
        assert caught.value.filename == f"{fs.root}/{path}"


def test_no_swap_between_two_steps_leads_out(fs: Filesystem, outside: Path) -> None:
    """A neighbour swaps the directory for a link and back, as fast as he can."""
    root = Path(fs.root)
    (root / "link").symlink_to(outside)
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            (root / "a").rename(root / "aside")
            (root / "link").rename(root / "a")
            (root / "a").rename(root / "link")
            (root / "aside").rename(root / "a")

    neighbour = threading.Thread(target=swap)
    neighbour.start()
    try:
        for _ in range(300):
            for verb in verbs(fs).values():
                tried(verb)
    finally:
        stop.set()
        neighbour.join()


NAMES = st.sampled_from(["a", "b", "file", "link", "x", "..", ".", ""])


@given(st.lists(NAMES, min_size=1, max_size=5))
def test_walking_opens_what_the_system_call_opens(tmp_path_factory: pytest.TempPathFactory, parts: list[str]) -> None:
    if not beneath.openat2_works():
        pytest.skip("this kernel has no openat2")
    root = tmp_path_factory.mktemp("walk")
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").touch()
    (root / "a" / "link").symlink_to("b")
    (root / "link").symlink_to(".")
    here = os.open(root, rooted.HOLDER_FLAGS)
    path = "/".join(parts).lstrip("/") or "."

    def opened(way: Callable[..., int]) -> int | None:
        try:
            fd = way(here, path, os.O_RDONLY)
        except OSError:
            return None
        try:
            return os.fstat(fd).st_ino
        finally:
            os.close(fd)

    try:
        walked = opened(beneath.walk)
        assert walked is None if ".." in parts else walked == opened(beneath.openat2)
    finally:
        os.close(here)


@pytest.mark.parametrize("moves", [2, 9])
def test_a_directory_that_is_moved_out_while_a_path_is_resolved_is_looked_for_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int
) -> None:
    """The kernel says EXDEV then. Each time others would be told that the filesystem has failed."""
    if not beneath.openat2_works():
        pytest.skip("this kernel has no openat2")
    call, left = beneath._syscall, moves

    def moved_out(*args: Any) -> int:
        nonlocal left
        if not left:
            return int(call(*args))
        left -= 1
        ctypes.set_errno(errno.EXDEV)
        return -1

    monkeypatch.setattr(beneath, "_syscall", moved_out)
    (tmp_path / "a").mkdir()
    with resources.Closing(os.open(tmp_path, rooted.HOLDER_FLAGS)) as here:
        if moves > beneath.MOVES:
            with pytest.raises(OSError, match="cross-device"):
                beneath.openat2(here, "a", rooted.HOLDER_FLAGS)
        else:
            resources.close(beneath.openat2(here, "a", rooted.HOLDER_FLAGS))


def test_descriptors_are_closed_with_their_filesystem(fs: Filesystem) -> None:
    before = open_below(Path(fs.root).parent)
    for _ in range(5):
        other = Filesystem(fs.root, shared=False)
        other.names(f"{fs.root}/a")
        other.rename(f"{fs.root}/a/b/file", f"{fs.root}/a/b/file2")
        other.rename(f"{fs.root}/a/b/file2", f"{fs.root}/a/b/file")
        with pytest.raises(FileNotFoundError):
            other.look(f"{fs.root}/a/x/y")
        other.make_root()
        other.names(f"{fs.root}/a")
        del other
    assert open_below(Path(fs.root).parent) == before


@pytest.mark.parametrize("mode", [0o2770, 0o0770, 0o2755])
def test_the_group_gets_what_its_directory_says(fs: Filesystem, mode: int) -> None:
    root = Path(fs.root)
    root.chmod(mode)
    (root / "old").touch(0o600)
    before = os.umask(0o077)
    try:
        fs.make_directory(f"{fs.root}/.made/deep")
        for path in (".made/deep/created", ".made/deep/appended", "old"):
            fs.close(fs.create(f"{root}/{path}") if path.endswith("created") else fs.open_append(f"{root}/{path}"))
    finally:
        os.umask(before)
    shared = mode == 0o2770
    for made in (root / ".made", root / ".made" / "deep"):
        assert stat.S_IMODE(made.stat().st_mode) & 0o777 == (0o770 if shared else 0o700)
    for path in (".made/deep/created", ".made/deep/appended"):
        assert stat.S_IMODE((root / path).stat().st_mode) == (0o660 if shared else 0o600)


def test_a_file_that_a_neighbour_has_linked_from_elsewhere_keeps_its_mode(fs: Filesystem, tmp_path: Path) -> None:
    """Opening it must not let the group read what is private."""
    root, private = Path(fs.root), tmp_path / "private"
    root.chmod(0o2770)
    private.touch(0o600)
    os.link(private, root / "log")
    fs.close(fs.open_append(f"{root}/log"))
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
