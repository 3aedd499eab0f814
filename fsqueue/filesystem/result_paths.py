"""Files into which commands write their results: each attempt has a path of its own, which is never used again.

A process that a command leaves behind may write late. Its directory has been renamed by then, so that a late write by
path fails. What it writes through a descriptor goes into a file that has no name any more.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import NamedTuple

from fsqueue.filesystem import resources, trees
from fsqueue.filesystem.beneath import DIRECTORY_FLAGS, HOLDER_FLAGS
from fsqueue.filesystem.expected_errors import NOT_FILES
from fsqueue.filesystem.locks import BUSY
from fsqueue.filesystem.operations import Filesystem
from fsqueue.filesystem.processes import boot_id
from fsqueue.interruptions import let_out, suppress

PREFIX = "fsqueue-results-"
"""How the private directory of a worker is named."""
LOCK_PREFIX = ".alive-"
AGE_S = 7 * 86_400.0
"""Seconds without a change after which `reap` removes what a killed worker of another host has left."""
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""Errors of the system for an attempt's directory that its command has removed, or has replaced by something else."""
NO_RESULT_FILES = (*NOT_FILES, errno.EACCES, errno.EPERM)
"""Errors for what a command has made in place of a readable file. Any other error is the worker's own."""


class ResultFile(NamedTuple):
    """Where one attempt may leave its result. Both names are random, and belong to this attempt alone."""

    path: str
    """The file. It is not there before the command makes it."""
    directory: str
    """The name of its directory, in the private one."""
    name: str
    """Its name in there."""


class ResultFiles:
    """Hand out the paths of results, in a private directory (mode 0700) that is made in `parent`.

    `parent` is the system's directory for temporary files by default. If `fs` is given, `parent` lies below its root:
    then it is made if need be, and reached through no link. Not thread-safe.

    A directory that is clean after an attempt is renamed, for the next one: on some disks making a directory takes a
    hundred times longer. A worker that is killed leaves its private directory behind; the next worker of this user on
    this host removes it (`_reap`).
    """

    def __init__(self, parent: str | None = None, fs: Filesystem | None = None) -> None:
        self.parent, self._fs = parent, fs
        self._root, self._name, self._fd, self._within = "", "", -1, -1
        self._alive = -1
        """The lock file's descriptor. The lock goes with it."""
        self._spare: list[str] = []
        """The names of clean directories. No process has been told of any of them."""
        self._trees: list[str] = []
        """The names of directories in which commands have left more than results. `sweep` removes them."""

    def open(self) -> None:
        """Make the private directory. OSError if that is refused, or if it would not be private."""
        parent, within = self._open_parent()
        fd = -1
        try:
            name = f"{PREFIX}{os.urandom(8).hex()}"
            os.mkdir(name, 0o700, dir_fd=within)
            fd = os.open(name, DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=within)
            found = os.fstat(fd)
            if os.listdir(fd):
                raise FileExistsError(errno.EEXIST, "Another directory was put in place of the one just made", name)
            if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise PermissionError(errno.EPERM, "What is made there is not this user's alone", name)
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # keeps systemd-tmpfiles from clearing it away
            alive = _lock(fd, _lock_name())
        except _Taken:  # another worker took it for a dead one's, between the making of the lock and its taking
            os.close(fd)
            os.close(within)
            self.open()
            return
        except BaseException:
            if fd >= 0:
                os.close(fd)
            os.close(within)
            raise
        self.close()
        self._root, self._name, self._fd, self._within, self._alive = f"{parent}/{name}", name, fd, within, alive
        with suppress(OSError):
            _reap(within)

    def _open_parent(self) -> tuple[str, int]:
        """Return the path of the directory that holds the worker's private directory, and a descriptor of it."""
        if self._fs is not None:
            assert self.parent is not None
            self._fs.make_directory(self.parent)
            within = self._fs.hold_directory(self.parent)
            resources.disown(within)
            return self.parent, within
        parent = os.path.abspath(self.parent or tempfile.gettempdir())
        return parent, os.open(parent, HOLDER_FLAGS)

    def new(self) -> ResultFile:
        """Return the path for an attempt. OSError if its directory cannot be made."""
        try:
            directory = self._clean_directory()
        except FileNotFoundError:  # the user, or a cleaner, has removed the private directory
            self.open()
            directory = self._clean_directory()
        # Random, too: a process that still works in the directory must not meet the next attempt's file.
        name = os.urandom(8).hex()
        return ResultFile(f"{self._root}/{directory}/{name}", directory, name)

    def _clean_directory(self) -> str:
        """Return the name of a directory that no command has been told of."""
        while self._spare:
            spare = self._spare.pop()
            with suppress(FileNotFoundError):
                os.stat(spare, dir_fd=self._fd, follow_symlinks=False)
                return spare
        directory = os.urandom(16).hex()
        os.mkdir(directory, 0o700, dir_fd=self._fd)
        return directory

    def take(self, result: ResultFile, bytes_max: int) -> bytes:
        """Return the first `bytes_max` bytes of a result, b"" if there is none, and end the life of its path.

        The command may have put another file there by renaming. OSError (NO_RESULT_FILES) if that cannot be read, or is
        no regular file. Whatever is there goes; a process that opens the path later finds no directory. Any other
        OSError (EMFILE, EIO, …) says nothing about the result: all stays as it is, and the call can be repeated.
        """
        try:
            # Opening the directory first makes an NFS client ask the server which file has that name by now.
            within = os.open(result.directory, DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=self._fd)
        except OSError as error:
            let_out(error)
            if error.errno in _GONE:
                return b""  # the command has removed it, or put something else there
            raise
        found, is_over = ["?"], True
        try:
            found = os.listdir(within)
            return self._read(result, within, bytes_max) if result.name in found else b""
        except FileNotFoundError:
            return b""  # a process that the command left behind has just removed it
        except OSError as error:
            let_out(error)
            is_over = error.errno in NO_RESULT_FILES  # else the next try would find no directory, and say "no result"
            raise
        finally:
            try:
                if is_over:
                    self._discard(result, within, found)
            finally:
                os.close(within)

    def _read(self, result: ResultFile, within: int, bytes_max: int) -> bytes:
        fd = os.open(result.name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=within)
        try:
            mode = os.fstat(fd).st_mode
            if not stat.S_ISREG(mode):
                code = errno.EISDIR if stat.S_ISDIR(mode) else errno.ENXIO
                raise OSError(code, os.strerror(code), result.path)
            parts = []
            while bytes_max > 0 and (part := os.read(fd, bytes_max)):
                parts.append(part)
                bytes_max -= len(part)
            return b"".join(parts)
        finally:
            os.close(fd)

    def _discard(self, result: ResultFile, within: int, found: list[str]) -> None:
        """Empty a directory, and keep it for another attempt, under a name that no command knows."""
        spare = os.urandom(16).hex()
        with suppress(OSError):  # what is left goes at the end
            if found == [result.name]:
                os.unlink(result.name, dir_fd=within)
                found = os.listdir(within)  # NFS keeps a file that is open under another name
            os.rename(result.directory, spare, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            if not found:
                self._spare.append(spare)
            elif os.path.samestat(os.fstat(within), os.stat(spare, dir_fd=self._fd, follow_symlinks=False)):
                self._trees.append(spare)

    @property
    def has_trees(self) -> bool:
        """Return whether `sweep` has something to remove."""
        return bool(self._trees)

    def sweep(self, names_max: int) -> None:
        """Remove up to `names_max` names of what commands have left beside their results. `close` removes the rest."""
        name = self._trees.pop()
        with suppress(OSError):
            if trees.remove(name, self._fd, most=names_max) >= names_max:
                self._trees.append(name)

    def close(self) -> None:
        """Remove the private directory with all that commands have left in it."""
        if self._fd < 0:
            return
        with suppress(OSError):
            for name in _lock_last(os.listdir(self._fd)):
                with suppress(OSError):
                    trees.remove(name, self._fd)
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._fd), os.stat(self._name, dir_fd=self._within, follow_symlinks=False)):
                os.rmdir(self._name, dir_fd=self._within)
        fds = self._fd, self._within, self._alive
        self._root, self._name, self._fd, self._within, self._alive, self._spare = "", "", -1, -1, -1, []
        self._trees = []
        for fd in fds:
            if fd >= 0:
                resources.close(fd)  # with that of the lock, the lock


# -- whether the worker of a private directory lives -------------------------------------------------


class _Taken(Exception):
    """Another process has the lock, or has removed its file."""


class _Lock:
    """Unlock and close a lock file, for the record of its thread."""

    def __init__(self) -> None:
        self.unlock: Callable[[int], None] = lambda fd: fcntl.flock(fd, fcntl.LOCK_UN)
        self.close: Callable[[int], None] = resources.close


_LOCK = _Lock()


def _lock(directory: int, name: str) -> int:
    """Lock a file in an open private directory for as long as this process lives. Return its descriptor.

    -1 where there are no locks; _Taken. The file is opened in the open directory, and the descriptor is locked: no
    path is resolved that leads through a directory in which others may write. The record has it, so that a forked child
    lets go of it.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        fd = resources.opened(_LOCK, map(partial(os.open, dir_fd=directory), (name,), (flags,), (0o600,)))
    except OSError as error:
        let_out(error)
        return -1
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        found = os.fstat(fd)
    except OSError as error:
        let_out(error)
        resources.close(fd)
        if error.errno in BUSY:
            raise _Taken from None
        return -1
    except BaseException:
        resources.close(fd)
        raise
    if found.st_nlink and stat.S_ISREG(found.st_mode):
        return fd
    resources.close(fd)
    if found.st_nlink:
        return -1  # a pipe of that name
    raise _Taken


def _lock_name() -> str:
    """Return the lock's name. It tells this boot of this host: a lock need not exclude between hosts."""
    return f"{LOCK_PREFIX}{boot_id()}"


def _lock_last(names: list[str]) -> list[str]:
    """Return names in the order of removal, the lock last: without it, no process would remove what a crash leaves."""
    return sorted(names, key=lambda name: name.startswith(LOCK_PREFIX))


def reap(fs: Filesystem, parent: str, now_s: float) -> int:
    """Remove the private directories of this user's killed workers, of any host, in `parent`; how many those were.

    `now_s` is by the clock that stamps the files in there. What proves that of one is said in `_reap_one`.
    """
    try:
        within = fs.hold_directory(parent)
    except FileNotFoundError:
        return 0
    with resources.Closing(within):
        return _reap(within, now_s)


def _reap(within: int, now_s: float | None = None) -> int:
    removed = 0
    fd = os.open(".", DIRECTORY_FLAGS, dir_fd=within)
    try:
        for name in os.listdir(fd):
            if name.startswith(PREFIX):
                with suppress(OSError, _Taken):
                    removed += _reap_one(name, fd, now_s)
    finally:
        os.close(fd)
    return removed


def _reap_one(name: str, within: int, now_s: float | None) -> bool:
    """Remove a private directory whose worker was killed.

    Three things prove that: only this user may enter it, it has a lock file of this boot of this host, and no process
    holds that lock. Of another boot or host the lock proves less: then nothing in it may have changed for `AGE_S`, too.
    The same age is asked of an empty one without a lock: its worker was killed before or after it had the lock there.
    """
    fd = os.open(name, DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=within)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            return False
        inside = os.listdir(fd)
        locks = [lock for lock in inside if lock.startswith(LOCK_PREFIX)]
        is_old = now_s is not None and all(
            there.st_mtime < now_s - AGE_S
            for there in (found, *(os.stat(one, dir_fd=fd, follow_symlinks=False) for one in inside))
        )
        if _lock_name() not in locks and not (is_old and (locks or not inside)):
            return False
        with ExitStack() as locked:
            for lock in locks:
                if (alive := _lock(fd, lock)) < 0:
                    return False
                locked.callback(resources.close, alive)
            for one in _lock_last(inside):
                trees.remove(one, fd)
            if os.path.samestat(found, os.stat(name, dir_fd=within, follow_symlinks=False)):
                with trees.counting_removal(name, within):
                    os.rmdir(name, dir_fd=within)
            return True
    finally:
        os.close(fd)
