"""The doorbell: one file that changes when there may be tasks, or none are left (docs/design.md, section 4.6)."""

from __future__ import annotations

from fsqueue.clock import Entropy
from fsqueue.filesystem import Filesystem
from fsqueue.filesystem.changes import Changes

BYTES = 16
"""What the doorbell holds."""
LONG_AGO_S = -1e9
QUIET_S = 0.05
"""A process that inserts singly notifies no more often. A worker that was notified looks once more after this time, for
what was inserted meanwhile.
"""


class Doorbell:
    """Notify idle workers, and learn whether another process did. A hint: a lost notification does no harm."""

    def __init__(self, fs: Filesystem, path: str, entropy: Entropy) -> None:
        self._fs = fs
        self._path = path
        self._entropy = entropy
        self._rung_at = LONG_AGO_S

    def ring_now_and_then(self, now: float) -> None:
        """Notify idle workers, unless this process has done so a moment ago. `now` is on the monotonic clock.

        No task is overlooked: a worker that sees a notification looks at once, and again QUIET_S later. All that was
        inserted without a notification of its own was there by then.
        """
        if now - self._rung_at >= QUIET_S:
            self.ring()
            self._rung_at = now  # after it: another thread must not rely on what is not written yet

    def ring(self) -> None:
        """Notify idle workers that there may be tasks."""
        try:
            self._fs.overwrite(self._path, self._entropy.bytes16())
        except OSError:
            pass

    def read(self) -> bytes:
        """Return the doorbell's value: another than before if a process has notified; b"" if there is none.

        This takes three system calls, since idle workers do nothing else.
        """
        try:
            fd = self._fs.look(self._path)
        except OSError:
            return b""
        try:
            return self._fs.pread(fd, BYTES, 0)
        except OSError:
            return b""
        finally:
            self._fs.close(fd)

    def watch(self, changes: Changes) -> int:
        """Have the kernel tell when a process of this host notifies. FileNotFoundError if no process ever has."""
        fd = self._fs.look(self._path)
        try:
            return changes.watch_file(fd)
        finally:
            self._fs.close(fd)

    def watch_place(self, changes: Changes) -> int:
        """Have the kernel tell when a process of this host makes a name in the directory of the doorbell."""
        fd = self._fs.hold_directory(self._fs.root)
        try:
            return changes.watch_directory(fd)
        finally:
            self._fs.close(fd)
