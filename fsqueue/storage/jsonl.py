"""Files of JSON Lines that several processes append to: dead letters, history, `queue.jsonl`.

Every append happens under the file's lock, and begins with voiding a torn tail.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate

import orjson

from fsqueue.clock import Clock, Entropy
from fsqueue.errors import LockTimeout, SecondName
from fsqueue.filesystem import Filesystem
from fsqueue.format import movements, sparse

LOCK_TIMEOUT_S = 30.0
"""Seconds to wait for a file that is locked for a few system calls at a time."""


@contextmanager
def locked(
    fs: Filesystem, clock: Clock, entropy: Entropy, path: str, timeout_s: float = LOCK_TIMEOUT_S
) -> Iterator[int]:
    """Open `path` for appending (it is made if missing) and hold its lock; LockTimeout when it stays busy."""
    with fs.closing(fs.open_append(path)) as fd:
        must_have_one_name(fs, fd, path)
        if not fs.lock(fd, clock, entropy, timeout_s):
            raise LockTimeout(
                f"{path} has been locked for {timeout_s:g} s by a process that is stopped or cut off. Repeat."
            )
        try:
            yield fd
        finally:
            fs.end_lock(fd)


def must_have_one_name(fs: Filesystem, fd: int, path: str) -> None:
    """Refuse to write into an open file that has a second name: SecondName."""
    if fs.fstat(fd).st_nlink > 1:
        raise SecondName(path)


@contextmanager
def locked_existing(
    fs: Filesystem, clock: Clock, entropy: Entropy, path: str, timeout_s: float = LOCK_TIMEOUT_S, flags: int = 0
) -> Iterator[int]:
    """Open an existing file for writing in place, and lock it. FileNotFoundError if it is gone; LockTimeout."""
    with fs.closing(fs.look(path, os.O_RDWR | flags)) as fd:
        if not fs.lock(fd, clock, entropy, timeout_s):
            raise LockTimeout(f"{path} is locked by a process that is at work, or stopped. Try again later.")
        try:
            if not fs.same_file(fd, path):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            yield fd
        finally:
            fs.end_lock(fd)


def append(fs: Filesystem, fd: int, lines: bytes, sync: bool, size: int | None = None) -> None:
    """Append whole lines to a locked file, and sync them where asked for or shared.

    `size`: how long the file is, if the caller knows that under the lock.
    """
    if size is None:
        found = fs.fstat(fd)
        if not found.st_nlink:  # it was replaced while this process waited for its lock
            raise FileNotFoundError(errno.ENOENT, "The file was replaced or removed before it was locked")
        size = found.st_size
    if size and fs.pread(fd, 1, size - 1) != b"\n":
        lines = movements.VOID + lines
    fs.write_all(fd, lines)
    if sync or fs.shared:
        fs.fsync(fd)


def lines_of(fs: Filesystem, fd: int) -> Iterator[bytes]:
    """Yield the whole lines of an open file, read in pieces; a torn last line is left out.

    In a line with a long run of zeros one NUL byte stands for them: `lines_at` has the line's true length.
    """
    for _, line, _ in lines_at(fs, fd):
        yield line
        del line  # it may be long: it is not held while the next one is read


def lines_at(fs: Filesystem, fd: int) -> Iterator[tuple[int, bytes, int]]:
    """Yield the whole lines of an open file, each with its offset and its length; a torn last line is left out."""
    return sparse.lines(fs.pieces(fd, 0), 0)


def pieces_of(fs: Filesystem, fd: int, offset: int, shortened: bytes | None = None) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines of an open file from `offset` on, many at a time, each time with the length that they have
    in the file. It is more than there are bytes only for a single line that has a long run of zeros. A torn last line
    is left out.

    Long lines that begin with `shortened` are of no interest. They come alone, too, and only their beginnings do; if
    they have NUL bytes, with one of them.
    """
    rest: list[bytes] = []
    begin = at = offset
    for place, chunk in fs.pieces(fd, offset):
        if place > at:
            rest.append(sparse.GAP)
        at = place + len(chunk)
        is_short = shortened is not None and bool(rest) and rest[0].startswith(shortened)
        if is_short or (rest[1:] and sparse.GAP in rest):  # such a line goes alone
            end = chunk.find(b"\n") + 1
            part = chunk[:end] if end else chunk
            rest.append(part if not is_short else (sparse.GAP if sparse.GAP in part else b"") + part[end - 1 : end])
            if not end:
                continue
            yield place + end - begin, b"".join(rest)
            rest, begin, chunk = [], place + end, chunk[end:]
        end = chunk.rfind(b"\n") + 1
        if end:
            whole = b"".join([*rest, chunk[:end]])
            yield len(whole), whole
            begin += len(whole)
            rest = []
        rest.append(chunk[end:])


def lines_from_end(fs: Filesystem, fd: int, bytes_max: int, piece: int = 1 << 16) -> Iterator[tuple[int, bytes]]:
    """Yield the whole lines of an open file with their offsets, the last one first, read in growing pieces from the
    end.

    What does not lie wholly within the last `bytes_max` bytes is not read: only who gets offset 0 has seen all. Long
    runs of zeros are not among those bytes; one NUL byte stands for them in their line.
    """
    at, rest, torn = fs.fstat(fd).st_size, b"", True
    least = max(0, at - bytes_max)
    while at > least:
        size = min(piece, at - least)
        at -= size
        chunk = fs.pread(fd, size, at)
        if size >= PAGE_BYTES and chunk[:1] == sparse.GAP and chunk.count(0) == size:
            rest = rest if rest.startswith(sparse.GAP) else sparse.GAP + rest
            piece, least = max(piece, 1 << 20), max(0, least - size)  # zeros are read fast, and are not kept
            continue
        piece *= 4
        lines = (chunk + rest).split(b"\n")
        if torn and len(lines) > 1:  # what follows the last newline is no line yet
            lines.pop()
            torn = False
        rest = lines[0]
        begins = list(accumulate((len(line) + 1 for line in lines), initial=at))
        for number in range(len(lines) - 1, 0, -1):
            yield begins[number], lines[number]
    if not at and not torn:
        yield 0, rest


PAGE_BYTES = 4096
UNSOUND_MAX = 1000
"""Maximum number of bad lines to look at in one go."""


def unsound(fs: Filesystem, fd: int, is_sound: Callable[[bytes], bool]) -> tuple[list[tuple[int, int]], int]:
    """Offset and length of (at most `UNSOUND_MAX`) lines that make no sense; how many bytes of a torn line follow."""
    found: list[tuple[int, int]] = []
    end = 0
    for offset, line, length in lines_at(fs, fd):
        if len(found) < UNSOUND_MAX and is_bad(line, is_sound):
            found.append((offset, length))
        end = offset + length + 1
    return found, max(0, fs.fstat(fd).st_size - end)


def zeros_at_end(fs: Filesystem, fd: int) -> int:
    """Return how many NUL bytes an open file ends in."""
    size, end = fs.fstat(fd).st_size, 0
    if not size or fs.pread(fd, 1, size - 1) != b"\0":
        return 0
    for offset, data in fs.pieces(fd, 0):
        if kept := len(data.rstrip(b"\0")):
            end = offset + kept
    return size - end


def is_bad(line: bytes, is_sound: Callable[[bytes], bool]) -> bool:
    """Return whether a line makes no sense, unless it is blank or was marked as void (it ends in `~`)."""
    return bool(line.strip()) and not line.endswith(b"~") and not is_sound(line)


def is_object(line: bytes) -> bool:
    """Return whether a line is a JSON object with an `op`, as in `queue.jsonl` and among the dead letters."""
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return False
    return isinstance(found, dict) and isinstance(found.get("op"), str)
