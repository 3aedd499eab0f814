"""Removing a tree that others have had a hand in: links, thousands of levels, directories that are moved meanwhile."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
CHANGED = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.EISDIR, errno.ESTALE)
"""Somebody else removes, or still adds to it (or an open file lingers, on NFS): the next reaping takes the rest."""
REFUSED = (errno.EACCES, errno.EPERM)


def remove(name: str, within: int) -> int:
    """Remove a name in an open directory, and what is below it if it is a directory; how many names went.

    What one may not remove does not keep the rest: it is raised at the end.
    """
    removal = _Removal(within)
    try:
        removal.of(name)
    finally:
        os.close(removal.here)
    if removal.refused is not None:
        raise removal.refused
    return removal.removed


class _Removal:
    """Goes down and up by descriptors, two at a time and without recursion. No link is followed.

    The way up is `..`, if that is the directory that it came from; else somebody moves things about, and it ends there.
    """

    def __init__(self, within: int) -> None:
        self.here = os.dup(within)
        self.removed = 0
        self.refused: OSError | None = None
        self._pending: list[str] = []
        """The directories in this one that are left to remove."""
        self._above: list[tuple[str, tuple[int, int], list[str]]] = []
        """How it got here: the name that was entered, what identifies its holder, and what is pending there."""

    def of(self, name: str) -> None:
        self._enter(name)
        while self._above:
            if self._pending:
                self._enter(self._pending.pop())
            elif not self._leave():
                break

    def _enter(self, name: str) -> None:
        """Go into a directory, and remove what are no directories in it; or remove a name that is none itself."""
        try:
            inner = os.open(name, DIRECTORY_FLAGS | os.O_NOFOLLOW, dir_fd=self.here)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                self._try(os.unlink, name)
            else:
                self._note(error)
            return
        self._above.append((name, _identity(self.here), self._pending))
        os.close(self.here)
        self.here, self._pending = inner, []
        with os.scandir(inner) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    self._pending.append(entry.name)
                else:
                    self._try(os.unlink, entry.name)

    def _leave(self) -> bool:
        """Go up, and remove the directory that was left; False if it is somewhere else by now."""
        name, holder, self._pending = self._above.pop()
        outer = os.open("..", DIRECTORY_FLAGS, dir_fd=self.here)
        os.close(self.here)
        self.here = outer
        if _identity(outer) != holder:
            return False
        self._try(os.rmdir, name)
        return True

    def _try(self, action: Callable[..., None], name: str) -> None:
        try:
            action(name, dir_fd=self.here)
            self.removed += 1
        except OSError as error:
            self._note(error)

    def _note(self, error: OSError) -> None:
        if error.errno in REFUSED:
            self.refused = self.refused or error
        elif error.errno not in CHANGED:
            raise error


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
