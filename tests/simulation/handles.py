"""What a process holds of the disk, and is told of it: hosts, open files, attributes, entries of listings."""

from __future__ import annotations

import errno
import os

from tests.simulation.disk import Directory, File, Node

FIRST_FD = 1 << 20
"""Simulated descriptors begin here: none has the number of a real one."""
DIRECTORY_MODE, FILE_MODE = 0o040777, 0o100666
O_APPEND, WRITING = os.O_APPEND, os.O_WRONLY | os.O_RDWR
"""Flags of `open`, looked up once."""


class Crash(BaseException):
    """The process was killed here."""


class Stat:
    """What stat tells of a file or directory."""

    __slots__ = ("st_ino", "st_mode", "st_mtime", "st_nlink", "st_size")

    st_dev, st_uid = 1, 0

    def __init__(self, node: Node, size: int, mtime: float) -> None:
        self.st_ino = node.number
        self.st_mode = DIRECTORY_MODE if isinstance(node, Directory) else FILE_MODE
        self.st_mtime = mtime
        self.st_nlink = node.links
        self.st_size = size

    @property
    def st_mtime_ns(self) -> int:
        return int(self.st_mtime * 1e9)

    st_ctime_ns = st_mtime_ns
    """Here each change of the one is a change of the other."""


class Opened:
    """An open file description. Locks belong to it; a forked child shares it."""

    __slots__ = ("append", "host", "lost", "name", "node", "shared_by", "writes")

    def __init__(self, node: Node, flags: int, host: Host, name: str) -> None:
        self.node = node
        self.append = flags & O_APPEND
        self.writes = flags & WRITING
        self.host = host
        self.name = name
        self.lost = False
        """Its lock was lost on the server: what it writes gets nowhere, and only fsync says so."""
        self.shared_by = 1


class Host:
    """A machine: its clock, and its connection to the disk."""

    def __init__(self, name: str, skew_s: float = 0.0) -> None:
        self.name = name
        self.skew_s = skew_s


_words = {code: os.strerror(code) for code in errno.errorcode}


def failure(code: int, path: str | None = None) -> OSError:
    return OSError(code, _words[code], path)


class Entry:
    """What scandir yields."""

    def __init__(self, directory: str, name: str, node: Node) -> None:
        self.name, self.path, self._node = name, f"{directory}/{name}", node

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return isinstance(self._node, Directory)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return isinstance(self._node, File)

    def is_symlink(self) -> bool:
        return False
