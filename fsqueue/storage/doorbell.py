"""The doorbell: one file that changes when there may be tasks (docs/design.md, section 4.6). Idle workers read it."""

from __future__ import annotations

from fsqueue.clock import Entropy
from fsqueue.filesystem import Filesystem

BYTES = 16
"""What the doorbell holds."""


class Doorbell:
    """Notify idle workers, and learn whether another process did. A hint: a lost notification does no harm."""

    def __init__(self, fs: Filesystem, path: str, entropy: Entropy) -> None:
        self._fs = fs
        self._path = path
        self._entropy = entropy

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
