"""Journals: files of records that processes append to under a lock (docs/decisions/0059-one-journal.md).

`queue.jsonl`, dead letters, keys, nodes, history, decisions and numbers are journals, each with its own records. What
is the same for all of them is here: the lock, the look whether the path still names what was locked, the append behind
a torn end, and reading from either end.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import TypeVar

from fsqueue.clock import Clock, Entropy
from fsqueue.errors import LockTimeout, SecondName, StorageError
from fsqueue.filesystem import Filesystem
from fsqueue.format import movements, sparse

J = TypeVar("J", bound="Journal")

LOCK_TIMEOUT_S = 30.0
"""Seconds to wait for a file that is locked for a few system calls at a time."""
PRESENT, IN_PLACE = os.O_RDWR | os.O_APPEND, os.O_RDWR
"""Open a journal that is there: to append to it; to write over bytes of it, or for its lock alone."""
MADE = PRESENT | os.O_CREAT
"""Opens a journal to append to it. It is made if it is missing, and so are directories above it."""
ANEW = 10
"""Maximum number of times to open a file that others keep removing, or replacing."""
PAGE_BYTES = 4096


@contextmanager
def locked(
    kind: Callable[[Filesystem, str, int], J],
    fs: Filesystem,
    clock: Clock,
    entropy: Entropy,
    path: str,
    wait_s: float = LOCK_TIMEOUT_S,
    flags: int = PRESENT,
    openings_max: int = 1,
    one_name: bool = True,
) -> Iterator[J]:
    """Open a journal by a revalidating open, and hold its lock. LockTimeout if it stays busy; FileNotFoundError.

    `kind` makes the journal. `one_name`: SecondName if the file has another name, too. `openings_max`: how often to
    open the file at most, while its path names another one as soon as it is locked. With 1 that is an error
    (FileNotFoundError). With 0 nobody asks: the file only grows, and a purge moves it away with its generation.
    """
    assert openings_max >= 0, "a file is opened a number of times"
    for left in reversed(range(max(1, openings_max))):
        with fs.unlocking(fs.open_append(path) if flags == MADE else fs.look(path, flags)) as fd:
            journal = kind(fs, path, fd)
            journal.take_lock(clock, entropy, wait_s, one_name)
            if not openings_max or journal.is_in_place():
                yield journal
                return
            if openings_max == 1:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if not left:
                raise StorageError(f"{path} was replaced or removed each time it was opened. Repeat the call.")


@contextmanager
def opened(fs: Filesystem, path: str) -> Iterator[Journal]:
    """Open a journal by a revalidating open, to read what other processes may have appended. No lock is taken."""
    with fs.closing(fs.look_anew(path)) as fd:
        yield Journal(fs, path, fd)


class Journal:
    """An open file of records: of lines, if its class does not say otherwise. Append to it under its lock alone."""

    __slots__ = ("fd", "fs", "path", "size")

    def __init__(self, fs: Filesystem, path: str, fd: int) -> None:
        self.fs, self.path, self.fd = fs, path, fd
        self.size: int | None = None
        """Length of the file, if that is known under the lock (bytes). Not on a network mount, where the lock can be
        lost."""

    # -- the lock ------------------------------------------------------------------------------

    def take_lock(self, clock: Clock, entropy: Entropy, wait_s: float, one_name: bool) -> None:
        """Lock the file, which `locked` has just opened. LockTimeout; SecondName, as `locked`."""
        fs, fd = self.fs, self.fd
        asks_once = one_name and not fs.shared
        if not (asks_once and fs.try_lock(fd)):
            if one_name:  # first: the lock of a file from elsewhere is not waited for
                self.must_have_one_name(fs.fstat(fd))
            if not fs.lock(fd, clock, entropy, wait_s):
                raise self.busy(wait_s)
        if asks_once:
            found = fs.fstat(fd)
            self.must_have_one_name(found)
            self.size = found.st_size if found.st_nlink else None

    def must_have_one_name(self, found: os.stat_result) -> None:
        """Refuse to write into a file that has a second name, as its status says: SecondName."""
        if found.st_nlink > 1:
            raise SecondName(self.path)

    def is_in_place(self) -> bool:
        """Return whether the path still names the locked file, and records may be appended to it."""
        return self.fs.same_file(self.fd, self.path)

    def busy(self, wait_s: float) -> LockTimeout:
        """Return the error for a lock that stayed busy."""
        return LockTimeout(
            f"{self.path} stayed locked for {wait_s:g} s: its holder is at work, stopped or cut off. Try again later."
        )

    # -- appending -----------------------------------------------------------------------------

    def length(self) -> int:
        """Return how long the file is."""
        return self.fs.fstat(self.fd).st_size if self.size is None else self.size

    def append(self, data: bytes, sync: bool | None = False, read_back: bool = False) -> None:
        """Append whole records to the locked file, and sync them where asked for or shared. A torn end is closed off.

        With `sync` None the caller syncs. `read_back`: StorageError if what stands there then is not what was written.
        FileNotFoundError if the file has no name. After any error only the file tells what was appended.
        """
        fs, fd, size = self.fs, self.fd, self.size
        if size is None:
            found = fs.fstat(fd)
            if not found.st_nlink:  # it was replaced while this process waited for its lock
                raise FileNotFoundError(errno.ENOENT, "The file was replaced or removed before it was locked")
            size = found.st_size
        self.size = None  # the append may fail, or write a part: the next one asks again
        data = self.end_of_torn(size) + data
        fs.write_all(fd, data)
        if sync or (fs.shared and sync is not None):
            fs.fsync(fd)
        if read_back and fs.pread(fd, len(data) + 1, size) != data:
            raise StorageError(f"What was appended to {self.path} is not there: the lock was lost. Repeat the call.")

    def end_of_torn(self, size: int) -> bytes:
        """Return the bytes that close off the torn record in which a file of this size ends: none, if it does not end
        in one."""
        return movements.VOID if size and self.fs.pread(self.fd, 1, size - 1) != b"\n" else b""

    # -- reading -------------------------------------------------------------------------------

    def lines(self) -> Iterator[bytes]:
        """Yield the whole lines, read in pieces; a torn last line is left out.

        In a line with a long run of zeros one NUL byte stands for them: `lines_at` has the line's true length.
        """
        for _, line, _ in self.lines_at():
            yield line
            del line  # it may be long: it is not held while the next one is read

    def lines_at(self) -> Iterator[tuple[int, bytes, int]]:
        """Yield the whole lines, each with its offset and its length; a torn last line is left out."""
        return sparse.lines(self.fs.pieces(self.fd, 0), 0)

    def pieces(self, offset: int, shortened: bytes | None = None) -> Iterator[tuple[int, bytes]]:
        """Yield the whole lines from `offset` on, many at a time, each time with the length that they have in the file.
        It is more than there are bytes only for a single line that has a long run of zeros. A torn last line is left
        out.

        Long lines that begin with `shortened` are of no interest. They come alone, too, and only their beginnings do;
        if they have NUL bytes, with one of them.
        """
        assert offset >= 0, "a file is read from its beginning at the earliest"
        rest: list[bytes] = []
        begin = at = offset
        for place, chunk in self.fs.pieces(self.fd, offset):
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

    def lines_from_end(self, bytes_max: int, piece: int = 1 << 16) -> Iterator[tuple[int, bytes]]:
        """Yield the whole lines with their offsets, the last one first, read in growing pieces from the end.

        What does not lie wholly within the last `bytes_max` bytes is not read: only a caller that gets offset 0 has
        seen all. Long runs of zeros are not among those bytes; one NUL byte stands for them in their line.
        """
        assert bytes_max >= 0 < piece, "a file is read in pieces that have bytes"
        at, rest, torn = self.length(), b"", True
        least = max(0, at - bytes_max)
        while at > least:
            size = min(piece, at - least)
            at -= size
            chunk = self.fs.pread(self.fd, size, at)
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

    def zeros_at_end(self) -> int:
        """Return how many NUL bytes the file ends in."""
        size, end = self.fs.fstat(self.fd).st_size, 0
        if not size or self.fs.pread(self.fd, 1, size - 1) != b"\0":
            return 0
        for offset, data in self.fs.pieces(self.fd, 0):
            if kept := len(data.rstrip(b"\0")):
                end = offset + kept
        return size - end


def is_bad(line: bytes, is_sound: Callable[[bytes], bool]) -> bool:
    """Return whether a line makes no sense, unless it is blank or was marked as void (it ends in `~`)."""
    return bool(line.strip()) and not line.endswith(b"~") and not is_sound(line)
