"""Marks in what a child prints: where the output of one task ends, and that of the next begins.

A child goes on to its next task before its parent knows that the one before has ended. The parent reads messages and
output from different descriptors, so the order in which it reads them proves nothing. Only the pipe itself keeps what
was printed in order. So the child writes a mark into it at the end of each task, when it has flushed its output and
before it answers.

A child marks nothing until something was printed, since most functions print nothing and a mark costs time. It knows
that something was printed if the pipe holds unread bytes, or if its parent says so. The parent says so before it reads
a pipe, and the child asks the pipe first and then the parent. So no byte escapes both questions.
"""

from __future__ import annotations

import os
import re
from typing import Protocol

from fsqueue.filesystem.memory import shared_memory
from fsqueue.filesystem.outputs import PipeEnd

STOPPING_AT, HAS_READ_AT = 0, 1
"""Where the bytes stand, in the file in memory that parent and children share, that say that the worker is stopping,
and that it reads what they print."""
FLAGS = b"\0\0"
"""What that file has at first."""
_LENGTH = 1 + 16 + 20 + 1
"""The bytes of a mark: NUL, a token of 16 characters, a number of 20 digits, NUL. One write of so few is never split
by another."""


def mark(token: str, number: int) -> bytes:
    """Return the mark that ends the output of the task with this number. `token`: 16 characters of no other output."""
    return b"\0%b%020d\0" % (token.encode(), number)


class Flags(Protocol):
    """The bytes of that file, as they are at each look."""

    def __getitem__(self, at: int, /) -> int: ...


def flags(fd: int) -> Flags:
    """Return the bytes of that file, to be looked at without a system call."""
    return shared_memory(fd, len(FLAGS), is_written=False)


class Marker:
    """Mark, in the child, the ends of tasks in its standard output and error."""

    def __init__(self, token: str, flags: Flags) -> None:
        self._token, self._flags = token, flags
        self._ends = [PipeEnd(fd) for fd in (1, 2)]
        self._has_printed = False

    def ended(self, number: int) -> None:
        """Mark the end of the output of the task with this number, if anything was ever printed. Flush that output."""
        if not self._has_printed:
            is_left = any(end.unread() for end in self._ends)
            self._has_printed = is_left or bool(self._flags[HAS_READ_AT])
        if self._has_printed:
            for end in self._ends:
                end.write(mark(self._token, number))


class Marks:
    """Find, in the parent, the marks in one stream of a child. Cut its tail at each."""

    def __init__(self, token: str, flag: int) -> None:
        self._mark = re.compile(rb"\x00%b([0-9]{20})\x00" % token.encode())
        self._flag, self._has_told = flag, False
        self._rest = b""
        """The last bytes that were read, if a mark may begin in them whose end is not read yet."""
        self._ended = -1
        """The number of the last mark."""
        self._before = b""
        """The tail of what that mark has ended."""

    def begin_read(self) -> None:
        """Tell the children that something may be read of what they print. Call it before reading."""
        if not self._has_told:
            os.pwrite(self._flag, b"\1", HAS_READ_AT)
            self._has_told = True

    def take(self, chunk: bytes, tail: bytes, is_cut: bool) -> tuple[bytes, bytes]:
        """Return what was printed, without marks, and the part of it behind the last mark, which `tail` leads.

        `is_cut`: more may have been there than was read, so a mark may have been read in part.
        """
        data, self._rest = self._rest + chunk, b""
        printed = []
        start = 0
        for found in self._mark.finditer(data) if b"\0" in data else ():
            piece, start = data[start : found.start()], found.end()
            printed.append(piece)
            self._ended, self._before, tail = int(found[1]), tail + piece, b""
        rest = data[start:]
        # The part of a mark has one NUL, its first byte.
        if is_cut and (at := rest.rfind(b"\0", -_LENGTH + 1)) >= 0:
            rest, self._rest = rest[:at], rest[at:]
        return b"".join([*printed, rest]), tail + rest

    def tail_of(self, number: int, tail: bytes) -> bytes:
        """Return the end of what the task of this number has printed. `tail`: what stands behind the last mark.

        It may have been ended by the last mark, and not be answered.
        """
        return self._before + tail if self._ended == number else tail
