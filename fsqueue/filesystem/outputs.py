"""Output on its way: kept in files for the worker's user to read, held back until it may be shown, marked in a pipe.

Others may write in the directory that the user names, and may know how the files will be called. So each file is made
anew, never opened by a name that was there before, and its name is never looked up again.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import stat
import sys
import tempfile
import termios
from collections.abc import Iterator
from typing import Any

from fsqueue.filesystem import replacing
from fsqueue.filesystem.beneath import FILE_MODE
from fsqueue.interruptions import let_out, suppress

NEW_FILE_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""With O_EXCL the system follows no link, opens no pipe and no file of another user: it makes a regular file."""
NAMES_MAX = 99
"""Maximum number of names to try for a file: `NAME`, then `NAME-2` and so on."""


class KeptOutput:
    """Keep a directory with a file for each attempt. Links on the way to it are followed, since the user named it.

    A link in its own place is not followed if it is another user's: he could choose where it leads.

    `open_max`: maximum number of files that are open at a time; the one that was written to least recently is closed
    for another.
    One thread uses it at a time.
    """

    def __init__(self, path: str, open_max: int) -> None:
        self.path, self._open_max = path, open_max
        self._fd = -1
        self._open: dict[KeptFile, None] = {}
        """The open files, the one that was written to last at the end."""

    def open(self) -> None:
        """Open the directory, which is made if it is missing, and try to make a file in it. OSError."""
        os.makedirs(self.path, exist_ok=True)
        self._fd = replacing.directory_of(self.path)
        trial = f".fsqueue-{os.urandom(8).hex()}"
        try:
            os.close(os.open(trial, NEW_FILE_FLAGS, FILE_MODE, dir_fd=self._fd))
            os.unlink(trial, dir_fd=self._fd)
        except OSError as error:
            let_out(error)
            self.close()
            raise

    def file(self, name: str) -> KeptFile:
        """Return the file for an attempt. It is made when something is written to it."""
        return KeptFile(self, name)

    def make(self, file: KeptFile) -> int:
        """Make a file under the first name that is free. FileExistsError if too many are taken; OSError."""
        while len(self._open) >= self._open_max:
            next(iter(self._open)).close()
        while file.names_used < NAMES_MAX:
            file.names_used += 1
            name = file.name if file.names_used == 1 else f"{file.name}-{file.names_used}"
            with suppress(FileExistsError):
                return os.open(name, NEW_FILE_FLAGS, FILE_MODE, dir_fd=self._fd)
        raise FileExistsError(errno.EEXIST, f"All of its {NAMES_MAX} names are taken", file.name)

    def used(self, file: KeptFile) -> None:
        """Note that a file is open, and was written to."""
        self._open.pop(file, None)
        self._open[file] = None

    def closed(self, file: KeptFile) -> None:
        """Note that a file is closed."""
        self._open.pop(file, None)

    def close(self) -> None:
        """Close the directory and all files."""
        for file in list(self._open):
            file.close()
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class KeptFile:
    """Keep the output of one attempt. After `close` it goes on under another name, in a new file."""

    def __init__(self, directory: KeptOutput, name: str) -> None:
        self.name = name
        self.names_used = 0
        self.writers = 0
        """Number of streams that end in it. The loop counts them."""
        self.is_incomplete = False
        """True if some of the output was not kept."""
        self._directory, self._fd = directory, -1

    def append(self, data: bytes) -> None:
        """Append to the output. OSError."""
        if self._fd < 0:
            self._fd = self._directory.make(self)
        self._directory.used(self)
        write_all(self._fd, data)

    def close(self) -> None:
        """Close the file of the output."""
        if self._fd >= 0:
            self._directory.closed(self)
            fd, self._fd = self._fd, -1
            os.close(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all of `data` into a file, or into what else can be written to: standard output, memory. OSError."""
    while data:
        data = data[os.write(fd, data) :]


def open_nothing() -> int:
    """Open /dev/null for reading and return its descriptor. OSError."""
    return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)


def is_same_file(one: int, other: int) -> bool:
    """Return whether two descriptors lead to one file, pipe or terminal; False if either is closed."""
    try:
        return os.path.sameopenfile(one, other)
    except OSError as error:
        let_out(error)
        return False


def is_terminal(fd: int) -> bool:
    """Return whether a descriptor leads to a terminal; False if it is closed."""
    return os.isatty(fd)


PIECE_BYTES = 1 << 16
"""Number of bytes to read back at a time."""


class Spool:
    """Hold bytes in the order in which they came. Not thread-safe.

    The file is in the system's directory for temporary files. It goes when this process ends, also after a crash.
    """

    def __init__(self, memory_bytes_max: int) -> None:
        self._most = memory_bytes_max
        self._memory = bytearray()
        """The bytes that follow those in the file."""
        self._file: Any = None
        self._filed = 0

    def append(self, data: bytes) -> None:
        """Append bytes. OSError if the disk is full: they are kept in memory, and nothing may be appended later."""
        self._memory += data
        if len(self._memory) > self._most:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            write_all(self._file.fileno(), bytes(self._memory))
            self._filed += len(self._memory)
            self._memory.clear()

    def pieces(self) -> Iterator[bytes]:
        """Yield all bytes, piece by piece. OSError."""
        at = 0
        while at < self._filed and (piece := os.pread(self._file.fileno(), min(PIECE_BYTES, self._filed - at), at)):
            at += len(piece)
            yield piece
        if self._memory:
            yield bytes(self._memory)

    def close(self) -> None:
        """Drop all bytes and close the file."""
        self._memory.clear()
        self._filed = 0
        if self._file is not None:
            self._file.close()
            self._file = None


class PipeEnd:
    """A descriptor of our own for the pipe that `fd` writes into: user code may redirect or close `fd`.

    User code may also close ours, and open something else under its number. So each use compares what is open there
    with the pipe, and does nothing with anything else.
    """

    def __init__(self, fd: int) -> None:
        self._fd = os.dup(fd)
        self._pipe = self._identity()

    def _identity(self) -> tuple[int, int, int]:
        found = os.fstat(self._fd)
        return stat.S_IFMT(found.st_mode), found.st_dev, found.st_ino

    def _is_ours(self) -> bool:
        try:
            return stat.S_ISFIFO(self._pipe[0]) and self._identity() == self._pipe
        except OSError as error:
            let_out(error)
            return False

    def unread(self) -> int:
        """Return the number of bytes in the pipe that its reader has not taken yet; 0 if the descriptor is closed.

        A hint: user code may have opened something else under the descriptor's number.
        """
        count = bytearray(4)
        try:
            fcntl.ioctl(self._fd, termios.FIONREAD, count)
        except OSError as error:
            let_out(error)
            return 0
        return int.from_bytes(count, sys.byteorder)

    def write(self, data: bytes) -> None:
        """Write up to `PIPE_BUF` bytes, all at once, and wait until there is room. Without a reader, do nothing."""
        while self._is_ours():
            try:
                os.write(self._fd, data)
            except BlockingIOError:  # a program that shares the pipe has set O_NONBLOCK
                room = select.poll()
                room.register(self._fd, select.POLLOUT)
                room.poll()
            except OSError as error:
                let_out(error)
                return
            else:
                return
