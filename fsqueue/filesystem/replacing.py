"""Find the file or directory that a user named, without believing others' links, and write such a file whole or not at
all, beside the one that it replaces.

A user who may write in a shared directory may put a link there, under a guessed name. So the link in the last
place of a path is followed only if it is this user's or root's. Links before it are followed: the user named them.
Everything is done by way of an open directory, so what was found out about it holds until the file is there. A file
that is made has a name of its own grammar and is locked while its maker lives: both tell what a killed one leaves.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Callable
from typing import IO

from fsqueue.filesystem.beneath import DIRECTORY_FLAGS, FILE_MODE, HOLDER_FLAGS
from fsqueue.interruptions import let_out, suppress

LINKS_MAX = 40
"""Maximum number of links to follow, one after the other, as the system does (path_resolution(7))."""
_LOOK_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
NEW_FILE_FLAGS = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
LEFTOVER_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIGITS = 16


class OthersLink(PermissionError):
    """Raised if a path is a symbolic link of another user."""


def place_of(path: str) -> tuple[int, str]:
    """Open the directory that holds the file to which `path` leads, or would hold it. Return its descriptor, and the
    name in it.

    The name is empty, `.` or `..` if the path ends so. It is no link, or was none when it was looked at. OthersLink;
    OSError.
    """
    holder, name = os.path.split(path)
    here = os.open(holder or ".", HOLDER_FLAGS)
    try:
        for _ in range(LINKS_MAX):
            target = None if name in ("", ".", "..") else _target(here, name)
            if target is None:
                return here, name
            holder, name = os.path.split(target)
            before, here = here, os.open(holder or ".", HOLDER_FLAGS, dir_fd=here)
            os.close(before)  # last: an interruption must not have the same number closed twice
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    except BaseException:
        os.close(here)
        raise


def directory_of(path: str) -> int:
    """Open the directory that `path` leads to, and return its descriptor. Errors as `place_of` says."""
    here, name = place_of(path.rstrip("/") or path)
    try:
        return os.open(name or ".", HOLDER_FLAGS | os.O_NOFOLLOW, dir_fd=here)
    finally:
        os.close(here)


def _target(directory: int, name: str) -> str | None:
    """Return where a link leads; None for what is no link, or is not there."""
    try:
        fd = os.open(name, _LOOK_FLAGS, dir_fd=directory)
    except FileNotFoundError:
        return None
    try:
        found = os.fstat(fd)
        if not stat.S_ISLNK(found.st_mode):
            return None
        if found.st_uid not in (os.geteuid(), 0):
            raise OthersLink(errno.EPERM, "It is a symbolic link of another user's", name)
        return os.readlink("", dir_fd=fd)
    finally:
        os.close(fd)


class Replaced:
    """Write a file whole or not at all, under a name in an open directory, which the caller closes.

    `grammar`: begins the names of what is made beside it. After that come digits for the host and the name, since
    another host may not see the lock of what is made here.
    """

    def __init__(self, directory: int, name: str, grammar: str) -> None:
        self._directory, self._name = directory, name
        whose = hashlib.sha256(os.fsencode(f"{os.uname().nodename}/{name}")).hexdigest()
        self._prefix = f"{grammar}{whose[:_DIGITS]}-"

    def spool(self) -> IO[bytes]:
        """Return an empty file without a name, which goes when it is closed."""
        fd, made = self._make(0o600)
        try:
            os.unlink(made, dir_fd=self._directory)
        except BaseException:
            os.close(fd)
            raise
        return os.fdopen(fd, "w+b")  # out here: it closes what it was given, also if it fails

    def replace(self, write: Callable[[IO[bytes]], None]) -> None:
        """Call a function that writes a new file, and give the file the name. One that is there is replaced. If it is
        this user's, its mode is kept, and its group where the system allows it. If it is another's, the new one allows
        no more than that did: in a directory where he may write he could choose who reads the new file, and who changes
        it.
        """
        before = self.status()
        is_own = before is not None and before.st_uid == os.geteuid()
        allowed = FILE_MODE if before is None else 0o600 if is_own else FILE_MODE & before.st_mode
        fd, made = self._make(allowed)
        try:
            if before is not None and is_own:
                _take_over(fd, before)
            with os.fdopen(fd, "wb", closefd=False) as file:
                write(file)
            os.fsync(fd)
            if not self._is(fd, made):
                raise OSError(errno.ESTALE, "The new file was removed or replaced before it was whole")
            os.rename(made, self._name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
        except BaseException:
            if self._is(fd, made):
                os.unlink(made, dir_fd=self._directory)
            raise
        finally:
            os.close(fd)

    def tidy(self) -> None:
        """Remove what a killed process of this user has left on this host when it wrote this file."""
        grammar = re.compile(re.escape(self._prefix) + rf"[0-9a-f]{{{_DIGITS}}}\.tmp")
        try:
            fd = os.open(".", DIRECTORY_FLAGS, dir_fd=self._directory)
        except OSError as error:
            let_out(error)
            return  # this user may make files here, but not list them
        try:
            names = os.listdir(fd)
        finally:
            os.close(fd)
        for name in filter(grammar.fullmatch, names):
            with suppress(OSError):
                self._reap(name)

    def _reap(self, name: str) -> None:
        """Remove a file if it is this user's, has no second name, and no process holds its lock."""
        fd = os.open(name, LEFTOVER_FLAGS, dir_fd=self._directory)
        try:
            status = os.fstat(fd)
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_nlink == 1:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if self._is(fd, name):
                    os.unlink(name, dir_fd=self._directory)
        finally:
            os.close(fd)

    def _make(self, mode: int) -> tuple[int, str]:
        """Make a file with a random name, locked; its descriptor and its name."""
        while True:
            name = f"{self._prefix}{secrets.token_hex(_DIGITS // 2)}.tmp"
            fd = os.open(name, NEW_FILE_FLAGS, mode, dir_fd=self._directory)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(fd)  # another one took it for a leftover before it was locked, and removes it
                continue
            except OSError as error:
                let_out(error)  # else a filesystem without locks: nobody locks a leftover there, nor removes one
            if self._is(fd, name):
                return fd, name
            os.close(fd)

    def _is(self, fd: int, name: str) -> bool:
        """Return whether a name still leads to an open file."""
        try:
            found = os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(found, os.fstat(fd))

    def status(self) -> os.stat_result | None:
        """Return the status of the file that has the name now, links not followed; None if there is none."""
        try:
            return os.stat(self._name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return None


def _take_over(fd: int, before: os.stat_result) -> None:
    """Give a new file the mode of the one that it replaces, and its group.

    If this user may not give it that group, his own group may do no more with it than all others may.
    """
    mode = stat.S_IMODE(before.st_mode) & 0o777
    with suppress(OSError):
        os.fchown(fd, -1, before.st_gid)
    if os.fstat(fd).st_gid != before.st_gid:
        mode &= ~0o070 | (mode & 0o007) << 3
    os.fchmod(fd, mode)
