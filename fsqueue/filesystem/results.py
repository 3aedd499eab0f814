"""Files into which commands write their results: each attempt has a path of its own, which is never used again.

A process that a command leaves behind may write late. Its directory has been renamed by then, so that a late write by
path fails. What it writes through a descriptor goes into a file that has no name any more.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from contextlib import suppress
from typing import NamedTuple

from filelock import BaseFileLock, FileLock, Timeout

from fsqueue.filesystem import trees
from fsqueue.filesystem.answers import NOT_FILES
from fsqueue.filesystem.beneath import DIRECTORY_FLAGS
from fsqueue.filesystem.holders import boot_id

PREFIX = "fsqueue-results-"
"""How the private directory of a worker is named."""
_GONE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)
"""What the system says of an attempt's directory that its command has removed, or has replaced by something else."""
NO_RESULT_FILES = (*NOT_FILES, errno.EACCES, errno.EPERM)
"""What it says of what a command has made instead of a file that can be read. Any other error is the worker's own."""


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

    `parent` is the system's directory for temporary files by default. Not thread-safe.

    A directory that is clean after an attempt is renamed, for the next one: on some disks making a directory takes a
    hundred times longer. A worker that is killed leaves its private directory behind; the next worker of this user on
    this host removes it (`_reap`).
    """

    def __init__(self, parent: str | None = None) -> None:
        self.parent = parent
        self._root, self._fd = "", -1
        self._alive: BaseFileLock | None = None
        self._spare: list[str] = []
        """The names of clean directories. No process has been told of any of them."""

    def open(self) -> None:
        """Make the private directory. OSError if that is refused, or if it would not be private."""
        import tempfile  # which loads much that no other command needs

        root = tempfile.mkdtemp(prefix=PREFIX, dir=self.parent)
        fd = os.open(root, DIRECTORY_FLAGS | os.O_NOFOLLOW)
        try:
            found = os.fstat(fd)
            if os.listdir(fd):
                raise FileExistsError(errno.EEXIST, "Another directory was put in place of the one just made", root)
            if found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise PermissionError(errno.EPERM, "What is made there is not this user's alone", root)
            with suppress(OSError):
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)  # keeps systemd-tmpfiles from clearing it away
            alive = _lock(fd)
        except Timeout:  # another worker took it for a dead one's, between the making of the lock and its taking
            os.close(fd)
            self.open()
            return
        except BaseException:
            os.close(fd)
            raise
        self.close()
        self._root, self._fd, self._alive = os.path.abspath(root), fd, alive
        with suppress(OSError):
            _reap(os.path.dirname(self._root))

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
        no regular file. Whatever is there goes; who opens the path later finds no directory. Any other OSError (EMFILE,
        EIO, …) says nothing about the result: everything stays as it is, and the call can be repeated.
        """
        try:
            # Opening the directory first makes an NFS client ask the server which file has that name by now.
            within = os.open(result.directory, DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=self._fd)
        except OSError as error:
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
        """Empty a directory, and keep it for another attempt, under a name that nobody was told."""
        spare = os.urandom(16).hex()
        try:
            if found == [result.name]:
                os.unlink(result.name, dir_fd=within)
                found = os.listdir(within)  # NFS keeps a file that is open under another name
            os.rename(result.directory, spare, src_dir_fd=self._fd, dst_dir_fd=self._fd)
            if not found:
                self._spare.append(spare)
            elif os.path.samestat(os.fstat(within), os.stat(spare, dir_fd=self._fd, follow_symlinks=False)):
                trees.remove(spare, self._fd)
        except OSError:
            pass  # what is left goes at the end

    def close(self) -> None:
        """Remove the private directory with all that commands have left in it."""
        if self._fd < 0:
            return
        with suppress(OSError):
            for name in os.listdir(self._fd):
                with suppress(OSError):
                    trees.remove(name, self._fd)
        with suppress(OSError):
            if os.path.samestat(os.fstat(self._fd), os.stat(self._root, follow_symlinks=False)):
                os.rmdir(self._root)
        os.close(self._fd)
        if self._alive is not None:
            self._alive.release()
        self._root, self._fd, self._alive, self._spare = "", -1, None, []


# -- whether the worker of a private directory lives -------------------------------------------------


def _lock(directory: int) -> BaseFileLock | None:
    """Lock a file in an open private directory for as long as this process lives; None where there are no locks.

    `filelock.Timeout` if another process has the lock. The file's name tells this boot of this host: a lock on a shared
    mount need not exclude between hosts. The directory is named by its descriptor, so that nothing that is put in its
    place is opened.
    """
    lock = FileLock(f"/proc/self/fd/{directory}/{_lock_name()}", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise
    except (OSError, NotImplementedError):
        return None
    return lock


def _lock_name() -> str:
    return f".alive-{boot_id()}"


def _reap(parent: str) -> None:
    """Remove the private directories in `parent` whose workers were killed.

    Three things prove that of one: only this user may enter it, it has a lock file of this boot of this host, and no
    process holds that lock.
    """
    within = os.open(parent, DIRECTORY_FLAGS)
    try:
        for name in os.listdir(within):
            if name.startswith(PREFIX):
                with suppress(OSError, Timeout):
                    _reap_one(name, within)
    finally:
        os.close(within)


def _reap_one(name: str, within: int) -> None:
    fd = os.open(name, DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=within)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or found.st_mode & 0o077 or _lock_name() not in os.listdir(fd):
            return
        lock = _lock(fd)
        if lock is None:
            return
        try:
            for inside in os.listdir(fd):
                trees.remove(inside, fd)
            if os.path.samestat(found, os.stat(name, dir_fd=within, follow_symlinks=False)):
                os.rmdir(name, dir_fd=within)
        finally:
            lock.release()
    finally:
        os.close(fd)
