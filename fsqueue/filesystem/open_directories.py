"""Hold directories open by descriptor, where other users may rename directories, replace them, and plant links.

A name may lead elsewhere a moment later. An `OpenDirectory` stays the one that was opened, even if it is moved or
another takes its name. Everything in it is reached from its descriptor, and no link in it is followed.
"""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import re
import stat
import struct
from collections.abc import Callable, Sequence
from itertools import islice
from types import TracebackType

from fsqueue.filesystem import resources, trees
from fsqueue.interruptions import let_out, suppress
from fsqueue.weak_table import WeakTable

FLAGS = os.O_DIRECTORY | os.O_CLOEXEC
"""With O_PATH a directory in which one may write can be held even if one may not list it."""
PRIVATE, SHARED = 0o700, 0o1777
"""Modes, before the umask. SHARED is sticky: strangers can add names, and cannot take away those of others."""
NOT_FOR_OTHERS = 0o077

Names = Sequence[tuple[str, "Names | None"]]
"""Names that may be removed: patterns of files (None), and of directories, with the names in those."""
Stat = os.stat_result
Fresh = Callable[[], str]
"""Return a new random name, so that no other user can have planted something under it."""

_used: WeakTable[object, resources.Kept] = WeakTable()
"""Closers of directories, by the objects that use these: see `OpenDirectory.close_after`."""


class Displaced(OSError):
    """Another user has put something else in the place of a directory that was just made."""

    def __init__(self, path: str) -> None:
        super().__init__(
            errno.EPERM, "another process put something else in place of a directory that was just made", path
        )


class OpenDirectory:
    """A directory, open. Close it, or use it in a `with` statement.

    `path` leads to this very directory, whatever becomes of its name (through /proc; where there is none, by name).
    `name` is what it was called in the directory that it was reached from.
    """

    def __init__(self, fd: int, name: str) -> None:
        self.fd, self.name = fd, name
        through = f"/proc/self/fd/{fd}"
        self.is_followed = os.path.isdir(through)
        """True if `path` leads to this very directory. Without /proc others could put something else in its place."""
        self.path = through if self.is_followed else name

    @classmethod
    def at(cls, path: str) -> OpenDirectory:
        """Open a directory that the caller named: links on the way to it are followed. OSError."""
        return cls(os.open(path, os.O_PATH | FLAGS), path)

    def close(self) -> None:
        """Close the descriptor. A second call does nothing."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def close_after(self, user: object) -> None:
        """Close the descriptor when an object has died that uses it, and not before. `close` is not to be called."""
        _used[user] = resources.Kept(self.fd, os.close)

    def __enter__(self) -> OpenDirectory:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def stat(self) -> os.stat_result:
        """Return the status of the open directory itself."""
        return os.fstat(self.fd)

    def names(self, most: int | None = None) -> list[str]:
        """Return the names in the directory, at most `most` of them. OSError if this user may not list it."""
        fd = os.open(".", os.O_RDONLY | FLAGS, dir_fd=self.fd)
        try:
            with os.scandir(fd) as entries:
                return [entry.name for entry in islice(entries, most)]
        finally:
            os.close(fd)

    # -- ways in -----------------------------------------------------------------------------------

    def enter(self, name: str) -> OpenDirectory:
        """Open a directory in this one. OSError (ENOTDIR) if it is a link, or anything else."""
        _check(name)
        return OpenDirectory(os.open(name, os.O_PATH | FLAGS | os.O_NOFOLLOW, dir_fd=self.fd), name)

    def make(self, name: str, mode: int, fresh: Fresh) -> OpenDirectory:
        """Make a directory in this one, and open it. FileExistsError if the name is taken.

        Displaced if the directory that was then opened cannot be the one that was made. The one that was made belongs
        to this user, and admits no users whom `mode` keeps out; if it is PRIVATE, it is empty.
        """
        _check(name)
        os.mkdir(name, mode, dir_fd=self.fd)
        try:
            made = self.enter(name)
        except (FileNotFoundError, NotADirectoryError):
            raise Displaced(name) from None
        try:
            if not self._is_as_made(made, mode, fresh):
                raise Displaced(name)
        except BaseException:
            made.close()
            raise
        return made

    def make_or_enter(self, name: str, mode: int, fresh: Fresh) -> OpenDirectory:
        """Open a directory in this one. Make it first, if it is not there."""
        try:
            return self.make(name, mode, fresh)
        except FileExistsError:
            return self.enter(name)

    def _is_as_made(self, made: OpenDirectory, mode: int, fresh: Fresh) -> bool:
        """Tell whether a directory looks like one that this process has just made with `mode`."""
        found = made.stat()
        loose = found.st_mode & NOT_FOR_OTHERS & ~mode
        if found.st_uid != os.geteuid() or loose:
            owner, allowed = self.as_made(fresh())
            if found.st_uid != owner or loose & ~allowed:
                return False
        return mode != PRIVATE or made.names() == []

    def as_made(self, name: str) -> tuple[int, int]:
        """Return owner and mode that the filesystem gives to what this user makes here; `name` is a fresh one.

        They are not always those that were asked for: NFS turns root into the user `nobody`, SMB and FAT know no modes.
        """
        _check(name)
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=self.fd)
        try:
            found = os.fstat(fd)
            return found.st_uid, found.st_mode
        finally:
            os.close(fd)
            self.remove_file(name)

    # -- removal -------------------------------------------------------------------------------------

    def look(self, name: str) -> os.stat_result | None:
        """Return the status of a name in this directory, links not followed; None if it is gone, or cannot be told."""
        _check(name)
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except OSError as error:
            let_out(error)
            return None

    def remove_file(self, name: str) -> bool:
        """Remove a name that is no directory; False if that was not possible."""
        return self._remove(os.unlink, name)

    def remove_directory(self, name: str) -> bool:
        """Remove an empty directory; False if that was not possible."""
        return self._remove(os.rmdir, name)

    def _remove(self, action: Callable[..., None], name: str) -> bool:
        _check(name)
        with suppress(OSError), trees.counting_removal(name, self.fd):
            action(name, dir_fd=self.fd)
            return True
        return False

    def remove(self, inner: OpenDirectory, names: Names) -> bool:
        """Remove a directory in this one, after the `names` in it. Return False if it stays: it had more."""
        inner.clear(names)
        found, mine = self.look(inner.name), inner.stat()
        if found is None or (found.st_dev, found.st_ino) != (mine.st_dev, mine.st_ino):
            return False  # it was moved away: another user's directory has its name now
        return self.remove_directory(inner.name)

    def clear(self, names: Names) -> int:
        """Remove the files and directories that match `names`, and nothing else. Return how many went. Never raise."""
        removed = 0
        with suppress(OSError):
            for name in self.names():
                for pattern, inside in names:
                    if re.fullmatch(pattern, name):
                        removed += self.remove_file(name) if inside is None else self._remove_inner(name, inside)
        return removed

    def _remove_inner(self, name: str, names: Names) -> bool:
        try:
            with self.enter(name) as inner:
                return self.remove(inner, names)
        except OSError as error:
            let_out(error)
            return False


def _check(name: str) -> None:
    """Raise ValueError unless this is a single name: any other could lead out of the directory."""
    if not name or "/" in name or "\0" in name or name in (".", ".."):
        raise ValueError(f"{name!r} is no name of a file in a directory")


def is_mine(found: os.stat_result) -> bool:
    """Tell whether a file belongs to the user as whom this process acts."""
    return found.st_uid == os.geteuid()


def is_directory(path: str) -> bool:
    """Tell whether a path that the caller named is a directory, links followed. OSError if it cannot be told."""
    return stat.S_ISDIR(os.stat(path).st_mode)


_READS = 0x40000000 if platform.machine().startswith(("ppc", "mips", "sparc", "alpha")) else 0x80000000
GET_VERSION = _READS | struct.calcsize("l") << 16 | ord("v") << 8 | 1
"""FS_IOC_GETVERSION of <linux/fs.h>: _IOR('v', 1, long)."""


def place_of(fd: int) -> tuple[int, int | None]:
    """Return the number of an open directory's inode, and the generation of the number; None: it is not known.

    A filesystem may give the number of a removed directory to the next one. Then the generation differs.
    """
    generation = None
    with suppress(OSError):  # ENOTTY, EOPNOTSUPP, EPERM of a container
        answer = fcntl.ioctl(fd, GET_VERSION, bytes(struct.calcsize("l")))
        [generation] = struct.unpack_from("I", answer)  # an int, whatever the ioctl is called
    return os.fstat(fd).st_ino, generation
