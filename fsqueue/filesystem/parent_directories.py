"""The directories above an open one, found through descriptors: neither a link nor a bind mount hides one."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from fsqueue.filesystem.beneath import HOLDER_FLAGS, LOOK_FLAGS
from fsqueue.filesystem.mounts import plain
from fsqueue.interruptions import let_out

Key = tuple[int, int, int]
"""A directory in a mount: the mount, the device, the inode."""


class FileAbove(NamedTuple):
    """A regular file of the name that was looked for, in a directory above."""

    holder: os.stat_result
    status: os.stat_result
    content: bytes | None
    """Its beginning; None if this user may not read it."""


def files_above(directory: int, name: str, bytes_max: int) -> Iterator[FileAbove]:
    """Yield the files of a name in an open directory and in those above it. OSError if one cannot be looked into."""
    for here in _above(directory):
        try:
            status = os.stat(name, dir_fd=here, follow_symlinks=False)
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode):
            yield FileAbove(os.fstat(here), status, _beginning(here, name, bytes_max))


def _beginning(directory: int, name: str, bytes_max: int) -> bytes | None:
    try:
        fd = os.open(name, os.O_RDONLY | LOOK_FLAGS, dir_fd=directory)
    except OSError as error:
        let_out(error)
        if error.errno == errno.ENOENT:
            return b""  # it has gone meanwhile
        return None
    try:
        return os.pread(fd, bytes_max, 0)
    finally:
        os.close(fd)


def _above(directory: int) -> Iterator[int]:
    """Yield an open directory and the directories above it, the nearest first. Each is open until the next one is asked
    for.

    Above the root of a mount is the directory that it is mounted on. If what is mounted there is a directory from
    within a filesystem, those above it in the filesystem follow, too, as far as another mount shows them.
    """
    pending = [os.open(".", HOLDER_FLAGS, dir_fd=directory)]
    seen: set[Key] = set()
    try:
        while pending:
            here = pending.pop()
            try:
                key = _key(here)
                if key in seen:
                    continue
                seen.add(key)
                yield here
                pending.append(os.open("..", HOLDER_FLAGS, dir_fd=here))
                above = _key(pending[-1])
                if above[0] != key[0] or above == key:  # the root of a mount
                    pending += _elsewhere(key)
            finally:
                os.close(here)
    finally:
        for fd in pending:
            os.close(fd)


def _key(fd: int) -> Key:
    status = os.fstat(fd)
    return _mount_number(fd), status.st_dev, status.st_ino


def _mount_number(fd: int) -> int:
    """Return the number of the mount through which a file was opened, as mountinfo has it; -1 if it is not known."""
    try:
        with open(f"/proc/self/fdinfo/{fd}", encoding="ascii", errors="replace") as lines:
            return next((int(line.split()[1]) for line in lines if line.startswith("mnt_id:")), -1)
    except OSError as error:
        let_out(error)
        return -1


def _elsewhere(key: Key) -> Iterator[int]:
    """Open the root of a mount where other mounts show it inside of a larger tree."""
    try:
        with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as lines:
            paths = other_paths(lines, key[0])
    except OSError as error:
        let_out(error)
        return
    for path in paths:
        try:
            fd = os.open(path, HOLDER_FLAGS)
        except OSError as error:
            let_out(error)
            continue  # something else is mounted over it, or this user may not go there
        if _key(fd)[1:] == key[1:]:
            yield fd
        else:
            os.close(fd)


def other_paths(lines: Iterable[str], number: int) -> list[str]:
    """Return the paths that the root of a mount has in mounts of more of its filesystem, by a mountinfo (proc(5))."""
    mounts = [(int(fields[0]), fields[2], fields[3], fields[4]) for fields in map(str.split, lines) if len(fields) > 6]
    device, tree = next(((device, tree) for its, device, tree, _ in mounts if its == number), ("", "/"))
    found = []
    for its, other, larger, point in mounts:
        larger = larger.rstrip("/")
        if its != number and other == device and tree != larger and tree.startswith(f"{larger}/") and tree != "/":
            found.append(plain(point).rstrip("/") + plain(tree[len(larger) :]))
    return found
