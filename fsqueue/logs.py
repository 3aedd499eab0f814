"""A batch's movement log on disk: opened, locked, caught up with, appended to (DESIGN section 4).

Three rules hold here. *Fresh look*: a log is opened through its directory. *Sure append*: under
the lock, torn tails are voided first, what was written is synced (shared mounts) and read back.
*Farewell*: a log that ends in `gone` is never appended to.
"""

from __future__ import annotations

import errno
import os
import threading

from fsqueue import movements
from fsqueue.errors import StorageError
from fsqueue.filesystem import Filesystem
from fsqueue.ledger import Ledger
from fsqueue.names import TaskFileName

TAIL_BYTES = 1 << 16


class Log:
    """An open movement log and the ledger folded from it. Use it while `mutex` and file lock are held.

    After any error within a critical section nothing here can be believed: `discard` it, and open
    the batch anew.
    """

    __slots__ = ("batch", "end", "fd", "fs", "ledger", "lettered", "lines", "mutex", "name", "path", "sync", "torn")

    def __init__(self, fs: Filesystem, batch: str, path: str, fd: int, sync: bool) -> None:
        self.fs = fs
        self.batch = batch
        self.path = path
        self.fd = fd
        self.sync = sync
        self.mutex = threading.Lock()
        self.ledger = Ledger()
        self.end = 0
        """The offset behind the last whole line that was folded."""
        self.torn = 0
        """Bytes of a torn line behind `end`."""
        self.lines: list[bytes] | None = None
        """The lines of the task file, while they are needed."""
        self.name: TaskFileName | None = None
        """The task file's name as last seen or made: a hint."""
        self.lettered: set[int] = set()
        """Dead tasks whose letters this process has written."""

    @property
    def closed(self) -> bool:
        """Whether it was discarded."""
        return self.fd < 0

    def discard(self) -> None:
        """Close the descriptor, and with it a lock that is held, and forget all."""
        fd, self.fd, self.lines = self.fd, -1, None
        if fd >= 0:
            self.fs.close(fd)

    def catch_up(self) -> None:
        """Fold what others appended. Under the lock."""
        data = self.fs.pread(self.fd, TAIL_BYTES, self.end)
        if not data:
            self.torn = 0
            return
        if len(data) == TAIL_BYTES:
            data += self.fs.read_from(self.fd, self.end + TAIL_BYTES)
        folded = self.ledger.fold(data, self.end)
        self.end += folded
        self.torn = len(data) - folded

    def next_offset(self) -> int:
        """Where the next record will stand."""
        return self.end + (self.torn + len(movements.VOID) if self.torn else 0)

    def append(self, data: bytes) -> int:
        """Append whole records, surely; returns the offset of the first. Under the lock, caught up."""
        base = self.end
        if self.torn:
            base += self.torn
            data = movements.VOID + data
        fd, size = self.fd, len(data)
        if self.fs.write(fd, data) != size:  # the disk is full; what was written is a torn tail now
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        if self.sync:
            self.fs.fsync(fd)
        if self.fs.pread(fd, size + 1, base) != data:
            raise StorageError(
                f"What was appended to {self.path} is not what is there: the lock was lost. Repeat the call."
            )
        self.end = base + size
        if self.torn:
            self.torn = 0
            self.ledger.damaged += 1
            base += len(movements.VOID)
        return base

    def note(self, op: str, at: int, **fields: object) -> None:
        """Append one record and fold it, as any reader would."""
        self.write(movements.record(op, at, **fields))

    def write(self, data: bytes) -> None:
        """Append records and fold them, as any reader would."""
        offset = self.append(data)
        self.ledger.fold(data, offset)

    def records(self) -> bytes:
        """All records, as the elements of a JSON array. Caught up."""
        content = self.fs.read_from(self.fd, 0)[: self.end]
        if not self.ledger.damaged:
            return content[:-1].replace(b"\n", b",")
        return b",".join(line for line in content.split(b"\n") if movements.parse(line) is not None)
