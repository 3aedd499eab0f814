"""Open, lock, read and append to a batch's movement log (docs/design.md, section 3).

Three rules hold here. Open a log through its directory, so that an NFS client asks its server (a revalidating open).
Append under the lock only: void a torn tail first, then write, sync on a shared mount, and read back what was written
(a verified append). Never append to a log that ends in the tombstone record `gone`.
"""

from __future__ import annotations

import errno
import os

from fsqueue.errors import StorageError
from fsqueue.filesystem import Filesystem, taken
from fsqueue.format import movements, sparse
from fsqueue.format.layout import Layout
from fsqueue.format.names import Batch, TaskFileName, task_files_of
from fsqueue.format.replay import ReplayState

TAIL_BYTES = 1 << 16


class Log:
    """An open movement log and the state replayed from it. Use it while you hold `mutex` and the file lock.

    After any error in a critical section the state cannot be trusted: `discard` the log, and open the batch anew.
    """

    __slots__ = (
        "batch",
        "end",
        "fd",
        "fs",
        "is_named_so",
        "is_used",
        "layout",
        "lettered",
        "lines",
        "mutex",
        "name",
        "path",
        "replay_state",
        "single",
        "sync",
        "torn",
    )

    def __init__(self, fs: Filesystem, layout: Layout, batch: Batch, fd: int, sync: bool) -> None:
        self.fd = -1
        self.fs = fs
        self.layout = layout
        """The layout of the batch's generation. Another thread may have seen a later generation."""
        self.batch = batch
        self.path = layout.log(batch)
        self.sync = sync
        self.mutex = taken.OwnedLock()
        """Use `enter` and `leave`."""
        self.replay_state = ReplayState()
        self.end = 0
        """The offset behind the last whole line that was replayed."""
        self.torn = 0
        """Bytes of a torn line behind `end`."""
        self.lines: list[bytes] | None = None
        """The lines of the task file, while they are needed."""
        self.name: TaskFileName | None = None
        """The task file's name as last seen or made: a hint."""
        self.is_named_so = False
        """Whether this process saw the file under `name`, or renamed it so, and no other name was recorded since."""
        self.is_used = True
        """Whether it was locked since `OpenLogs` looked for one to close."""
        self.single = False
        """Whether the task file was seen to have one name. Renaming it then leaves it with one."""
        self.lettered: set[int] = set()
        """Dead tasks whose letters this process has written."""
        self.fd = fd
        taken.disown(fd)  # from now on the finalizer closes it

    @property
    def closed(self) -> bool:
        """Return whether it was discarded."""
        return self.fd < 0

    def discard(self, inherited: bool = False) -> None:
        """Unlock the file, close the descriptor, and forget the state.

        A forked child only closes what it `inherited`: the lock is its parent's. The parent unlocks before it closes,
        since a child may have the descriptor open, too.
        """
        fd = self.fd
        if fd >= 0:
            taken.own(fd, self.fs)
            self.fd, self.lines = -1, None
            try:
                if not inherited:
                    self.fs.unlock(fd)
            except OSError:
                pass  # the server has forgotten the lock, or the file
            finally:
                self.fs.close(fd)
                taken.disown(fd)

    def __del__(self) -> None:
        fd = getattr(self, "fd", -1)  # missing if it was never made
        if fd >= 0:  # the queue was dropped without being closed
            self.fd = -1
            self.fs.drop(fd)

    def enter(self, wait_s: float = -1) -> bool:
        """Take the mutex, waiting up to `wait_s` seconds for other threads (-1: no limit). Return False if it is busy.

        It is busy also for a signal handler that interrupts a section of its own thread. If an exception ends a section
        between two instructions, `taken.give_back` calls `abandon`.
        """
        held = taken.hands.mine.held
        if self in held:
            return False
        held.append(self)
        if self.mutex.acquire(False) or (wait_s and self.mutex.acquire(True, wait_s)):
            return True
        held.remove(self)
        return False

    def leave(self) -> None:
        """Give the mutex back."""
        self.mutex.release()
        taken.hands.mine.held.remove(self)

    def abandon(self) -> None:
        """Discard this log after a section that an exception broke off: its state cannot be trusted. Let others in."""
        if self.mutex.is_mine():
            self.discard()
            self.mutex.release()

    def after_fork(self) -> None:
        """Close the parent's descriptor without unlocking it. Call it in a forked child."""
        if not self.mutex.is_mine():  # else this very thread has forked in a section, which it goes on with
            self.mutex = taken.OwnedLock()
        self.discard(inherited=True)

    def catch_up(self) -> None:
        """Read and replay what others appended. Call it under the lock."""
        data = self.fs.pread(self.fd, TAIL_BYTES, self.end)
        if not data:
            self.torn = 0
            return
        named = self.replay_state.names[-1:]
        if len(data) < TAIL_BYTES:
            end = self.end + self.replay_state.replay(data, self.end)
            self.torn = self.end + len(data) - end
            is_renamed = b'"name"' in data
        else:  # much was appended; or a power loss has left zeros, maybe more than memory holds
            pieces = list(self.fs.pieces(self.fd, self.end))
            end = self.replay_state.replay_pieces(pieces, self.end)
            self.torn = sparse.end_of(pieces, self.end) - end
            is_renamed = any(b'"name"' in piece for _, piece in pieces)
        self.end = end
        if self.replay_state.names[-1:] != named:  # a process has renamed the task file
            self.name = next(task_files_of(self.batch, self.replay_state.names[-1:]), None)
        if is_renamed:
            self.is_named_so = False

    def next_offset(self) -> int:
        """Return the offset at which the next record will stand."""
        return self.end + (self.torn + len(movements.VOID) if self.torn else 0)

    def append(self, data: bytes) -> int:
        """Append whole records, and read them back; return the offset of the first. Call it under the lock, caught up.

        OSError or StorageError if what is there afterwards is not what was written: then discard the log.
        """
        base = self.end
        if self.torn:
            base += self.torn
            data = movements.VOID + data
        fs, fd, size = self.fs, self.fd, len(data)
        if fs.write(fd, data) != size:  # the disk is full; what was written is a torn tail now
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        if self.sync:
            fs.fsync(fd)
        if fs.pread(fd, size + 1, base) != data:
            raise StorageError(
                f"What was appended to {self.path} is not what is there: the lock was lost. Repeat the call."
            )
        self.end = base + size
        if self.torn:
            self.torn = 0
            self.replay_state.damaged += 1
            base += len(movements.VOID)
        return base

    def append_record(self, op: str, at: int, **fields: object) -> None:
        """Append one record and replay it, as any reader would."""
        self.write(movements.record(op, at, **fields))

    def write(self, data: bytes) -> None:
        """Append records and replay them, as any reader would."""
        offset = self.append(data)
        self.replay_state.replay(data, offset)

    def records(self) -> bytes:
        """Return all records as the elements of a JSON array, each at its offset. Void lines are blanks.

        A long run of zeros in a void line is left out: then the records behind it stand nearer than in the log.
        """
        pieces = self.fs.all_pieces(self.fd)
        if not self.replay_state.damaged:
            return b"".join(piece for _, piece in pieces)[: self.end - 1].replace(b"\n", b",")
        lines = [line for offset, line, _ in sparse.lines(pieces, 0) if offset < self.end]
        kept = [number for number, line in enumerate(lines) if movements.parse(line) is not None]
        last = kept[-1] if kept else -1
        elements = [b" " * (len(line) + 1) for line in lines]
        for number in kept:
            elements[number] = lines[number] + (b"," if number < last else b" ")
        return b"".join(elements)
