"""Learn from the kernel that a process of this host has changed a file, instead of looking again and again: inotify.

Where the kernel cannot tell (another system, no library, no inotify instance left for this user), an OSError says so,
and the caller goes on looking. Decision 0028 has the reasons.
"""

from __future__ import annotations

import ctypes
import errno
from functools import cache
from typing import Any

from fsqueue import forks
from fsqueue.interruptions import suppress

MODIFY, MOVED_TO, CREATE = 0x02, 0x80, 0x100
DELETE_SELF, MOVE_SELF, UNMOUNT, IGNORED = 0x400, 0x800, 0x2000, 0x8000
"""Number the events of a file or a directory as inotify(7) does."""
FILE, DIRECTORY = MODIFY | DELETE_SELF | MOVE_SELF, CREATE | MOVED_TO
"""Ask for these events: a file is written, renamed or removed; a directory gets a name."""
OVER = DELETE_SELF | MOVE_SELF | UNMOUNT | IGNORED
"""On these events drop the watch: the name may lead to another file now."""


@cache
def _library() -> Any:
    """Return the module `inotify_simple`. ImportError if it is not installed.

    It is loaded by the first worker that idles: nothing else needs it. By itself the library would start `ldconfig`,
    or a compiler, to find the C library; this process has that loaded.
    """
    with forks.held_off():
        import inotify_simple
    inotify_simple._libc = ctypes.CDLL(None, use_errno=True)
    return inotify_simple


class Changes:
    """Tell that watched files have changed. OSError if this process cannot have that.

    What is watched is what is open, and not a path: a neighbour cannot put a link in its place. Use it in one thread at
    a time. To close it takes some ten milliseconds, so keep it for the next wait.
    """

    def __init__(self) -> None:
        try:
            self._inotify: Any = _library().INotify(nonblocking=True)
        except (ImportError, AttributeError) as error:  # no library; a C library without inotify
            raise OSError(errno.ENOSYS, f"no inotify: {error}") from None
        self.fd: int = self._inotify.fileno()
        """Ready to be read when something has changed."""

    def watch(self, fd: int, events: int) -> int:
        """Watch an open FILE or DIRECTORY, and return the number of the watch. The caller may close `fd`."""
        try:
            number: int = self._inotify.add_watch(f"/proc/self/fd/{fd}", events)
        except FileNotFoundError:  # else the caller would take the file for missing
            raise OSError(errno.ENOSYS, "no /proc, through which an open file is watched") from None
        return number

    def forget(self, number: int) -> None:
        """End a watch. Nothing happens if it has ended."""
        with suppress(OSError):
            self._inotify.rm_watch(number)

    def read(self) -> list[tuple[int, bool]]:
        """Return the watches with changes since the last call, and of each whether it has to be made anew."""
        return [(event.wd, bool(event.mask & OVER)) for event in self._inotify.read(timeout=0)]

    def close(self) -> None:
        """End all watches. A second call does nothing."""
        inotify = getattr(self, "_inotify", None)
        if inotify is not None:
            inotify.close()

    __del__ = close
