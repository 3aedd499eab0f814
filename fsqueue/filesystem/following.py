"""Find the file or directory that a user named, by way of open directories, without believing others' links.

Whoever may write in a shared directory may put a link there, under a name that he guesses. So the link in the last
place of a path is followed only if it is this user's or root's. Links before it are followed: the user named them.
"""

from __future__ import annotations

import errno
import os
import stat

from fsqueue.filesystem.beneath import HOLDER_FLAGS

LINKS_MAX = 40
"""Maximum number of links to follow, one after the other, as the system does (path_resolution(7))."""
_LOOK_FLAGS = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC


class OthersLink(PermissionError):
    """It is a symbolic link of another user's."""


def place(path: str) -> tuple[int, str]:
    """Open the directory that has what `path` leads to, or would have it. Return its descriptor, and the name in it.

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
            there = os.open(holder or ".", HOLDER_FLAGS, dir_fd=here)
            os.close(here)
            here = there
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
    except BaseException:
        os.close(here)
        raise


def directory(path: str) -> int:
    """Open the directory that `path` leads to, and return its descriptor. Errors as `place` says."""
    here, name = place(path.rstrip("/") or path)
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
