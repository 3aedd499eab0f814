"""Files of JSON Lines that several append to under a lock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fsqueue import LockTimeout
from fsqueue.clock import Entropy, ManualClock
from fsqueue.filesystem import Filesystem
from fsqueue.storage import jsonl


@pytest.fixture
def fs(tmp_path: Path) -> Filesystem:
    return Filesystem(str(tmp_path), shared=False)


@pytest.fixture
def fd(fs: Filesystem, tmp_path: Path) -> Iterator[int]:
    fd = fs.open_append(f"{tmp_path}/file.jsonl")
    yield fd
    fs.close(fd)


def test_lines_are_appended_and_synced_where_asked_for(fs: Filesystem, fd: int) -> None:
    synced = [0]
    fs.fsync = lambda fd: synced.__setitem__(0, synced[0] + 1)
    jsonl.append(fs, fd, b"one\n", False)
    assert synced == [0]
    jsonl.append(fs, fd, b"two\nthree\n", True)
    assert synced == [1]
    fs.shared = True
    jsonl.append(fs, fd, b"four\n", False)
    assert synced == [2]
    assert list(jsonl.lines_of(fs, fd)) == [b"one", b"two", b"three", b"four"]


def test_a_torn_tail_is_voided_first(fs: Filesystem, fd: int) -> None:
    jsonl.append(fs, fd, b'one\n{"torn":', False)
    assert list(jsonl.lines_of(fs, fd)) == [b"one"]
    jsonl.append(fs, fd, b"two\n", False)
    assert list(jsonl.lines_of(fs, fd)) == [b"one", b'{"torn":~', b"two"]


@given(st.lists(st.binary(max_size=30).map(lambda line: line.replace(b"\n", b"")), max_size=40), st.integers(1, 50))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_lines_come_out_whole_wherever_reading_is_cut(fs: Filesystem, lines: list[bytes], size: int) -> None:
    content = b"".join(line + b"\n" for line in lines) + b"torn"
    fs.pread = lambda fd, most, offset: content[offset : offset + min(most, size)]
    assert list(jsonl.lines_of(fs, -1)) == lines


def test_the_lock_is_held_within_and_given_back_after(fs: Filesystem, tmp_path: Path) -> None:
    clock, entropy, path = ManualClock(), Entropy(), f"{tmp_path}/.deep/file.jsonl"
    with jsonl.locked(fs, clock, entropy, path) as fd:
        jsonl.append(fs, fd, b"one\n", False)
        before = clock.now_s
        with pytest.raises(LockTimeout, match=path), jsonl.locked(fs, clock, entropy, path, 3):
            raise AssertionError("locked twice")
        assert 3 <= clock.now_s - before < 3.1
    with pytest.raises(KeyError), jsonl.locked(fs, clock, entropy, path):
        raise KeyError
    with jsonl.locked(fs, clock, entropy, path) as fd:
        assert list(jsonl.lines_of(fs, fd)) == [b"one"]


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
    fd = fs.look(str(path))
    try:
        assert list(jsonl.lines_from_end(fs, fd, bytes_max, piece)) == wanted[::-1]
    finally:
        fs.close(fd)


class Piece(bytes):
    """A piece of a file that is not to be appended to what was read before it."""

    def __radd__(self, before: bytes) -> bytes:
        raise AssertionError(f"{len(before)} bytes are copied once more")


def test_the_pieces_of_a_long_line_are_joined_once(fs: Filesystem) -> None:
    """A letter of 60 MB took ten seconds to read: each piece copied all that was read of its line before."""
    content = b"short\n" + b"x" * 5000 + b"\nlast\n"
    fs.pread = lambda fd, most, offset: Piece(content[offset : offset + min(most, 100)])
    assert [len(line) for line in jsonl.lines_of(fs, -1)] == [5, 5000, 4]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.sampled_from([b"", b"one", b"long " + b"x" * 40, b"long " + b"y" * 9 + b"\0z", b"lo", b"ng"])),
    st.sampled_from([b"", b"torn", b"long " + b"t" * 30]),
    st.integers(1, 60),
)
def test_long_lines_of_no_interest_are_shortened(fs: Filesystem, lines: list[bytes], torn: bytes, most: int) -> None:
    content = b"".join(line + b"\n" for line in lines) + torn
    fs.pread = lambda fd, _, offset: content[offset : offset + most]
    found = list(jsonl.pieces_of(fs, -1, 0, shortened=b"long "))
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
    found = list(jsonl.lines_from_end(fs, fd, 200_000))
    if closed_off:
        assert found.pop(0) == (8 + zeros + 2, b"last")
        offset, void = found.pop(0)
        assert (offset, void[:1], void[-1:]) == (8, b"\0", b"~")
        assert len(void) < 1 << 20
    assert found == [(4, b"two"), (0, b"one")]
    assert [line for _, line in found[::-1]] == [line for line in jsonl.lines_of(fs, fd) if not line.endswith(b"~")][:2]
    assert jsonl.zeros_at_end(fs, fd) == (0 if closed_off else zeros)
    lengths = [length for length, _ in jsonl.pieces_of(fs, fd, 4)]
    assert sum(lengths) == (path.stat().st_size - 4 if closed_off else 4)
    fs.close(fd)
