"""Files of JSON Lines that several append to under a lock."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsqueue import LockTimeout, StorageError
from fsqueue.clock import Entropy, ManualClock
from fsqueue.errors import SecondName
from fsqueue.filesystem import Filesystem
from fsqueue.storage import journals
from fsqueue.storage.journals import Journal


@pytest.fixture
def fs(tmp_path: Path) -> Filesystem:
    return Filesystem(str(tmp_path), shared=False)


@pytest.fixture
def file(fs: Filesystem, tmp_path: Path) -> Iterator[Journal]:
    path = f"{tmp_path}/file.jsonl"
    with fs.closing(fs.open_append(path)) as fd:
        yield Journal(fs, path, fd)


def test_lines_are_appended_and_synced_where_asked_for(fs: Filesystem, file: Journal) -> None:
    synced = [0]
    fs.fsync = lambda fd: synced.__setitem__(0, synced[0] + 1)
    file.append(b"one\n")
    assert synced == [0]
    file.append(b"two\nthree\n", True)
    assert synced == [1]
    fs.shared = True
    file.append(b"four\n")
    assert synced == [2]
    assert list(file.lines()) == [b"one", b"two", b"three", b"four"]


def test_a_torn_tail_is_voided_first(fs: Filesystem, file: Journal) -> None:
    file.append(b'one\n{"torn":')
    assert list(file.lines()) == [b"one"]
    file.append(b"two\n")
    assert list(file.lines()) == [b"one", b'{"torn":~', b"two"]


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=40), st.integers(1, 50))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_come_out_whole_wherever_reading_is_cut(fs: Filesystem, lines: list[bytes], size: int) -> None:
    content = b"".join(line + b"\n" for line in lines) + b"torn"
    fs.pread = lambda fd, most, offset: content[offset : offset + min(most, size)]
    assert list(Journal(fs, "", -1).lines()) == lines


def test_the_lock_is_held_within_and_given_back_after(fs: Filesystem, tmp_path: Path) -> None:
    clock, path = ManualClock(), f"{tmp_path}/.deep/file.jsonl"
    locked = partial(journals.locked, Journal, fs, clock, Entropy(), path, flags=journals.MADE, openings_max=0)
    with locked() as file:
        file.append(b"one\n")
        before = clock.now_s
        with pytest.raises(LockTimeout, match=path), locked(wait_s=3):
            raise AssertionError("locked twice")
        assert 3 <= clock.now_s - before < 3.1
    with pytest.raises(KeyError), locked():
        raise KeyError
    with locked() as file:
        assert list(file.lines()) == [b"one"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    lines=st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=8),
    torn=st.sampled_from([b"", b"torn"]),
    bytes_max=st.integers(0, 90),
    piece=st.integers(1, 40),
)
def test_lines_from_the_end_are_those_from_the_start_as_far_as_they_are_read(
    tmp_path: Path, fs: Filesystem, lines: list[bytes], torn: bytes, bytes_max: int, piece: int
) -> None:
    content = b"".join(line + b"\n" for line in lines) + torn
    path = tmp_path / "lines"
    path.write_bytes(content)
    begins = [sum(len(line) + 1 for line in lines[:number]) for number in range(len(lines))]
    first = len(content) - bytes_max
    wanted = [(at, line) for at, line in zip(begins, lines, strict=True) if at > first or first <= 0]
    with journals.opened(fs, str(path)) as file:
        assert list(file.lines_from_end(bytes_max, piece)) == wanted[::-1]


class Piece(bytes):
    """A piece of a file that is not to be appended to what was read before it."""

    def __radd__(self, before: bytes) -> bytes:
        raise AssertionError(f"{len(before)} bytes are copied once more")


def test_the_pieces_of_a_long_line_are_joined_once(fs: Filesystem) -> None:
    """A letter of 60 MB took ten seconds to read: each piece copied all that was read of its line before."""
    content = b"short\n" + b"x" * 5000 + b"\nlast\n"
    fs.pread = lambda fd, most, offset: Piece(content[offset : offset + min(most, 100)])
    assert [len(line) for line in Journal(fs, "", -1).lines()] == [5, 5000, 4]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from([b"", b"one", b"long " + b"x" * 40, b"long " + b"y" * 9 + b"\0z", b"lo", b"ng"])),
    st.sampled_from([b"", b"torn", b"long " + b"t" * 30]),
    st.integers(1, 60),
)
def test_long_lines_of_no_interest_are_shortened(fs: Filesystem, lines: list[bytes], torn: bytes, most: int) -> None:
    content = b"".join(line + b"\n" for line in lines) + torn
    fs.pread = lambda fd, _, offset: content[offset : offset + most]
    found = list(Journal(fs, "", -1).pieces(0, shortened=b"long "))
    assert sum(length for length, _ in found) == len(content) - len(torn)
    at, told = 0, []
    for length, piece in found:
        told += [line for line in piece.split(b"\n")[:-1] if not line.startswith(b"long ")]
        assert (b"\0" in piece) == (b"\0" in content[at : at + length]), "what may be read again later is not hidden"
        at += length
    assert told == [line for line in lines if not line.startswith(b"long ")]


@pytest.mark.parametrize("closed_off", [b"", b"~\nlast\n"])
def test_zeros_hide_no_line_from_a_reader_that_begins_at_the_end(
    tmp_path: Path, fs: Filesystem, closed_off: bytes
) -> None:
    path, zeros = tmp_path / "lines", 8 << 20
    path.write_bytes(b"one\ntwo\n" + bytes(zeros) + closed_off)
    fd = fs.look(str(path))
    file = Journal(fs, str(path), fd)
    found = list(file.lines_from_end(200_000))
    if closed_off:
        assert found.pop(0) == (8 + zeros + 2, b"last")
        offset, void = found.pop(0)
        assert (offset, void[:1], void[-1:]) == (8, b"\0", b"~")
        assert len(void) < 1 << 20
    assert found == [(4, b"two"), (0, b"one")]
    assert [line for _, line in found[::-1]] == [line for line in file.lines() if not line.endswith(b"~")][:2]
    assert file.zeros_at_end() == (0 if closed_off else zeros)
    lengths = [length for length, _ in file.pieces(4)]
    assert sum(lengths) == (path.stat().st_size - 4 if closed_off else 4)
    fs.close(fd)


class Replaced(Journal):
    """A journal that another process replaces right before it is locked, as long as `left` says."""

    left = 1

    def take_lock(self, *args: Any) -> None:
        if Replaced.left:
            Replaced.left -= 1
            os.replace(self.path, f"{self.path}.old")
            Path(self.path).touch()
        super().take_lock(*args)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("looks", "times", "error"),
    [(1, 1, FileNotFoundError), (journals.ANEW, 1, None), (2, 2, StorageError), (0, 1, None)],
)
def test_what_becomes_of_a_file_that_is_replaced_before_it_is_locked(
    fs: Filesystem, tmp_path: Path, shared: bool, looks: int, times: int, error: type[Exception] | None
) -> None:
    fs.shared, Replaced.left, path = shared, times, tmp_path / "file"
    path.touch()
    lock = journals.locked(Replaced, fs, ManualClock(), Entropy(), str(path), 3, journals.MADE, looks)
    with pytest.raises(error) if error else nullcontext(), lock as file:
        file.append(b"line\n")
    assert path.read_bytes() == (b"line\n" if looks == journals.ANEW else b"")


@pytest.mark.parametrize("shared", [False, True])
def test_a_file_that_was_removed_before_its_lock_takes_no_line(fs: Filesystem, tmp_path: Path, shared: bool) -> None:
    fs.shared, path = shared, tmp_path / "file"

    class Removed(Journal):
        def take_lock(self, *args: Any) -> None:
            path.unlink()
            super().take_lock(*args)

    lock = journals.locked(Removed, fs, ManualClock(), Entropy(), str(path), 3, journals.MADE, openings_max=0)
    with lock as file, pytest.raises(FileNotFoundError, match="removed before it was locked"):
        file.append(b"line\n")


def test_a_file_with_a_second_name_is_neither_waited_for_nor_written_to(fs: Filesystem, tmp_path: Path) -> None:
    clock, path = ManualClock(), tmp_path / "file"
    path.touch()
    locked = partial(journals.locked, Journal, fs, clock, Entropy(), str(path))
    with locked():
        (tmp_path / "other").hardlink_to(path)
        before = clock.now_s
        for flags in (journals.PRESENT, journals.MADE, journals.IN_PLACE):
            with pytest.raises(SecondName), locked(flags=flags):
                raise AssertionError("locked")
        assert clock.now_s == before
    with pytest.raises(SecondName), locked():
        raise AssertionError("locked")
    with locked(one_name=False) as file:
        file.append(b"line\n")


def test_a_line_behind_that_of_a_process_that_has_the_lost_lock_is_noticed(fs: Filesystem, file: Journal) -> None:
    file.append(b"one\n", read_back=True)
    file.size = file.length()
    with open(file.path, "ab") as other:
        other.write(b"two\n")
    with pytest.raises(StorageError, match="the lock was lost"):
        file.append(b"three\n", read_back=True)
