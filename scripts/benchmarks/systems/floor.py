"""The floor: a bare loop of the system calls that fsqueue makes, on as many files of the same sizes.

No JSON, no replay, no choice, no objects, no errors handled: what is left is what the operating
system, the filesystem and Python's `os` module ask for. The loop follows a *trail*, which is what
fsqueue did in the same round: which batches, how many tasks of each at a time.

An append is five calls under the log's lock: lock, read the tail, write the record, read it back,
unlock. A batch costs, once: open its directory, the task file and the log, read the task file; rename it; and
to finish it, a record, the log synced, the task file unlinked, bytes appended to a counter and a line
to the history, each under its lock, a farewell, the log unlinked.
"""

from __future__ import annotations

import fcntl
import os
import struct
from dataclasses import dataclass
from typing import NamedTuple

OPEN_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
OPEN_LOG = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
LOCKED = struct.pack("hhqqi4x", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
UNLOCKED = struct.pack("hhqqi4x", fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0)
TAIL_BYTES = 4096
READ_BYTES = 1 << 20
GROUP_BYTES, GROUP_FILES = 8 << 20, 64
"""How much is staged before it is published."""
MARK_BYTES = 50
"""About the size of the records that finish a batch: `finish`, `count`, `gone`."""


class Stop(NamedTuple):
    """A stretch of a trail: so many times in a row, so many tasks of this batch at once."""

    batch: str
    tasks: int
    times: int


@dataclass
class Sizes:
    """What fsqueue wrote in this run, in bytes."""

    line: int = 215
    lease: int = 200
    complete: int = 80


def append(fd: int, record: bytes, end: int) -> int:
    """One sure append; the log's new length."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, LOCKED)
    os.pread(fd, TAIL_BYTES, end)
    os.write(fd, record)
    os.pread(fd, TAIL_BYTES, end)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, UNLOCKED)
    return end + len(record)


def append_elsewhere(path: str, record: bytes) -> None:
    """A locked append to a file that is opened for it: a counter, the history."""
    within = os.open(os.path.dirname(path), OPEN_DIRECTORY)
    fd = os.open(os.path.basename(path), OPEN_LOG, 0o666, dir_fd=within)
    os.close(within)
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, LOCKED)
    os.fstat(fd)
    os.write(fd, record)
    os.close(fd)  # its lock goes with it


class Floor:
    """A directory shaped like a queue."""

    def __init__(self, path: str, sizes: Sizes, shards: int = 64) -> None:
        self.path, self.sizes, self.shards = path, sizes, shards
        self.lease_record = b"l" * (sizes.lease - 1) + b"\n"
        self.complete_record = b"c" * (sizes.complete - 1) + b"\n"
        self.mark = b"m" * (MARK_BYTES - 1) + b"\n"

    def create(self) -> None:
        """Make the directories. Those of the shards are among what the first inserts cost fsqueue, but few."""
        os.makedirs(self.path)
        for name in ("staging", "completions", "history"):
            os.mkdir(f"{self.path}/{name}")
        for kind in ("queue", "movements"):
            for shard in range(self.shards):
                os.makedirs(f"{self.path}/{kind}/{shard:02x}")

    def _file(self, kind: str, number: int) -> str:
        return f"{self.path}/{kind}/{number % self.shards:02x}/{number:032x}.jsonl"

    def insert(self, counts: list[int], sync: bool) -> None:
        """Publish a task file for each count, in groups: stage and sync each, rename each, sync the directories."""
        group: list[int] = []
        size = 0
        for number, count in enumerate(counts):
            group.append(number)
            size += count * self.sizes.line
            if size >= GROUP_BYTES or len(group) >= GROUP_FILES or number == len(counts) - 1:
                self._publish(group, counts, sync)
                group, size = [], 0

    def _publish(self, group: list[int], counts: list[int], sync: bool) -> None:
        opened = []
        for number in group:
            fd = os.open(f"{self.path}/staging/{number:032x}", OPEN_LOG | os.O_EXCL, 0o666)
            opened.append(fd)
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, LOCKED)
            os.write(fd, b"x" * self.sizes.line * counts[number])
            if sync:
                os.fsync(fd)
        directories = set()
        for number in group:
            published = self._file("queue", number)
            os.rename(f"{self.path}/staging/{number:032x}", published)
            directories.add(os.path.dirname(published))
        if sync:
            for directory in directories:
                within = os.open(directory, OPEN_DIRECTORY)
                os.fsync(within)
                os.close(within)
        for fd in opened:
            os.close(fd)

    def walk(self, counts: dict[str, int], trail: list[Stop], joined: bool) -> int:
        """Follow a trail: lease and complete. `joined`: one append completes a task and leases the next.

        `counts`: tasks in each batch; the task files must be there, numbered in this order. Returns the tasks done.
        """
        numbers = {batch: number for number, batch in enumerate(counts)}
        logs: dict[str, tuple[int, int]] = {}
        left = dict(counts)
        done = 0
        both = self.complete_record + self.lease_record
        for batch, tasks, times in trail:
            fd, end = logs.get(batch) or self._open(numbers[batch])
            for _ in range(times):
                if joined:
                    end = append(fd, both, end)
                else:
                    end = append(fd, self.lease_record, end)
                    end = append(fd, self.complete_record, end)
            done += tasks * times
            left[batch] -= tasks * times
            logs[batch] = fd, end
            if left[batch] <= 0:
                name = self._file("queue", numbers[batch])
                os.rename(name, f"{name}-leased")  # when its last task was leased
                self._finish(numbers[batch], counts[batch], *logs.pop(batch))
        for fd, _ in logs.values():
            os.close(fd)
        return done

    def _open(self, number: int) -> tuple[int, int]:
        log, tasks = self._file("movements", number), self._file("queue", number)
        within = os.open(os.path.dirname(log), OPEN_DIRECTORY)
        fd = os.open(os.path.basename(log), OPEN_LOG, 0o666, dir_fd=within)
        os.close(within)
        within = os.open(os.path.dirname(tasks), OPEN_DIRECTORY)
        source = os.open(os.path.basename(tasks), os.O_RDONLY | os.O_CLOEXEC, dir_fd=within)
        os.close(within)
        os.fstat(source)
        os.pread(source, READ_BYTES, 0)
        os.close(source)
        return fd, os.lseek(fd, 0, os.SEEK_END)

    def _finish(self, number: int, count: int, fd: int, end: int) -> None:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, LOCKED)
        os.write(fd, self.mark)
        os.fsync(fd)
        os.unlink(f"{self._file('queue', number)}-leased")
        os.write(fd, self.mark)
        append_elsewhere(f"{self.path}/completions/00", b"." * count)
        append_elsewhere(f"{self.path}/history/{number % self.shards:02x}.jsonl", os.pread(fd, READ_BYTES, 0) + b"\n")
        os.write(fd, self.mark)
        os.unlink(self._file("movements", number))
        os.close(fd)

    def delete(self) -> int:
        """Remove everything; how many names that were."""
        return remove_tree(self.path)


def remove_tree(path: str) -> int:
    """Unlink a tree, depth first."""
    removed = 1
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                removed += remove_tree(entry.path)
            else:
                os.unlink(entry.path)
                removed += 1
    os.rmdir(path)
    return removed
