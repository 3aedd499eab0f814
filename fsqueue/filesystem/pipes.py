"""The end of a pipe that other code of this process writes into, too: how much is unread, and own writes."""

from __future__ import annotations

import fcntl
import os
import select
import stat
import sys
import termios


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
        except OSError:
            return False

    def unread(self) -> int:
        """Return how many bytes are in the pipe that its reader has not taken yet; 0 if it is not ours any more."""
        count = bytearray(4)
        try:
            fcntl.ioctl(self._fd, termios.FIONREAD, count)
        except OSError:
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
            except OSError:
                return
            else:
                return
