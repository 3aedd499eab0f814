"""Remove a tree that others may change: links, thousands of levels, directories that are moved meanwhile.

A tree is opened once, and everything is done through that descriptor. A proof, where the caller asks for one, is about
the very directory that is open. So no neighbour can put another in its place between the look and the removal.

What a thread removes within `count_removals` is counted, so that `gc` can report it. Elsewhere a removal costs no
further system call.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial

from fsqueue.filesystem.beneath import DIRECTORY_FLAGS, enter
from fsqueue.filesystem.resources import Closer, close, opened
from fsqueue.interruptions import let_out, suppress

CHANGED = (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST, errno.EISDIR, errno.ESTALE)
"""Another process removes it or still adds to it, or (NFS) an open file lingers. The next reaping takes the rest."""
REFUSED = (errno.EACCES, errno.EPERM)
NO_DIRECTORY = (errno.ENOTDIR, errno.ELOOP)
PROOF_BYTES_MAX, READ_BYTES = 64 << 20, 1 << 20
"""A larger file proves nothing. Number of bytes to read at a time."""


@dataclass(slots=True)
class Freed:
    """Count inodes that have lost their last name, and the bytes of the files among them."""

    inodes: int = 0
    bytes: int = 0


_counting: ContextVar[Freed | None] = ContextVar("fsqueue_freed", default=None)


@contextmanager
def count_removals() -> Iterator[Freed]:
    """Count what this thread removes within."""
    freed = Freed()
    token = _counting.set(freed)
    try:
        yield freed
    finally:
        _counting.reset(token)


@contextmanager
def counting_removal(name: str, within: int) -> Iterator[None]:
    """Count a name in an open directory if the block removes it. The block raises what it raises."""
    freed, found = _counting.get(), None
    if freed is not None:
        with suppress(OSError):  # the removal itself will tell
            found = os.stat(name, dir_fd=within, follow_symlinks=False)
    yield
    if freed is not None and found is not None:
        is_directory = stat.S_ISDIR(found.st_mode)
        if is_directory or found.st_nlink == 1:
            freed.inodes += 1
            freed.bytes += 0 if is_directory else found.st_size


class OpenTree:
    """Look into an open directory before it is removed. It must not be used afterwards."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def names(self) -> list[str]:
        """Return the names in the tree's directory, unordered."""
        return os.listdir(self._fd)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file right in the tree's directory; None if there is no regular file of this name."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            fd = os.open(name, flags, dir_fd=self._fd)
        except OSError as error:
            let_out(error)
            if error.errno in (errno.ENOENT, errno.ENXIO, *NO_DIRECTORY):
                return None
            raise
        try:
            found = os.fstat(fd)
            if not stat.S_ISREG(found.st_mode) or found.st_size > PROOF_BYTES_MAX:
                return None
            return b"".join(iter(lambda: os.read(fd, READ_BYTES), b""))
        finally:
            os.close(fd)


Proof = Callable[[OpenTree], bool]
"""Tells whether an open directory may be removed."""


def remove(
    name: str,
    within: int,
    proof: Proof | None = None,
    last: str | None = None,
    most: int | None = None,
    by: Closer | None = None,
) -> int:
    """Remove a name in an open directory, and what is below it if it is a directory; return how many names went.

    With a `proof` nothing goes unless the name is a directory (no link) and the proof holds. `last`: the file right in
    it that the proof rests on. It goes after all the rest, so that what an interrupted removal leaves can be proven
    again. `most`: maximum number of names to remove. If one name may not be removed, the rest goes; then that error is
    raised. `by`: what closes the descriptors after an interruption (see `taken`).
    """
    try:
        top = opened(by, map(partial(os.open, dir_fd=within), (name,), (DIRECTORY_FLAGS | os.O_NOFOLLOW,)))
    except OSError as error:
        let_out(error)
        if error.errno in NO_DIRECTORY and proof is None:
            return _unlink(name, within)
        if error.errno in (*NO_DIRECTORY, *CHANGED):
            return 0
        raise
    try:
        if proof is not None and not proof(OpenTree(top)):
            return 0
        removal = _Removal(top, most, by)
        try:
            removal.empty(last)
        finally:
            close(removal.here)
        if removal.left:
            removal.end(name, within, top, last)
        if removal.refused is not None:
            raise removal.refused
        return removal.removed
    finally:
        close(top)


def _unlink(name: str, within: int) -> int:
    try:
        with counting_removal(name, within):
            os.unlink(name, dir_fd=within)
        return 1
    except OSError as error:
        let_out(error)
        if error.errno in CHANGED:
            return 0
        raise


class _Removal:
    """Go down and up by descriptors, two at a time and without recursion. Follow no link, enter no mount.

    The way up is `..`, if that is the directory that it came from. Otherwise a neighbour moved it: end.
    """

    def __init__(self, top: int, most: int | None, by: Closer | None) -> None:
        self._by = by
        self.here = opened(by, map(os.dup, (top,)))
        self.removed = 0
        self.left = most if most is not None else -1
        """Number of names that may still go; below 0: any number."""
        self.refused: OSError | None = None
        self._pending: list[str] = []
        """The directories in this one that are left to remove."""
        self._above: list[tuple[str, tuple[int, int], list[str]]] = []
        """How it got here: the name that was entered, what identifies its holder, and what is pending there."""

    def empty(self, last: str | None) -> None:
        """Remove everything in the tree but, right in it, the file `last`."""
        self._clear(last)
        while self.left:
            if self._pending:
                self._enter(self._pending.pop())
            elif not self._above or not self._leave():
                break

    def end(self, name: str, within: int, top: int, last: str | None) -> None:
        """Remove the file `last` and the directory itself, if nothing else is in it any more."""
        try:
            if last is not None and os.listdir(top) == [last]:
                # Sync before unlinking the proof: a power loss could lose it, and bring back what it proves.
                with suppress(OSError):
                    os.fsync(top)
                self._try(os.unlink, last, top)
            found = os.stat(name, dir_fd=within, follow_symlinks=False)
            if (found.st_dev, found.st_ino) == _identity(top):  # else a neighbour has moved it away
                self._try(os.rmdir, name, within)
        except OSError as error:
            let_out(error)
            self._note(error)

    def _enter(self, name: str) -> None:
        """Enter a directory, and remove all but the directories in it; or remove the name if it is no directory."""
        try:
            inner = enter(self.here, name, self._by)
        except OSError as error:
            let_out(error)
            if error.errno in NO_DIRECTORY:
                self._try(os.unlink, name, self.here)
            elif error.errno == errno.EXDEV:
                self.refused = self.refused or OSError(errno.EXDEV, "Something is mounted there", name)
            else:
                self._note(error)
            return
        self._above.append((name, _identity(self.here), self._pending))
        self._pending = []
        self._move_to(inner)
        self._clear(None)

    def _clear(self, last: str | None) -> None:
        with os.scandir(self.here) as entries:
            for entry in entries:
                if not self.left:
                    break  # else a large directory would be listed to its end for each piece that goes
                if entry.is_dir(follow_symlinks=False):
                    self._pending.append(entry.name)
                elif entry.name != last:
                    self._try(os.unlink, entry.name, self.here)

    def _leave(self) -> bool:
        """Go up, and remove the directory that was left; False if it is somewhere else by now."""
        name, holder, self._pending = self._above.pop()
        outer = opened(self._by, map(partial(os.open, dir_fd=self.here), ("..",), (DIRECTORY_FLAGS,)))
        self._move_to(outer)
        if _identity(outer) != holder:
            return False
        self._try(os.rmdir, name, outer)
        return True

    def _move_to(self, fd: int) -> None:
        """Go on in another directory. Closed last: an interruption must not have the same number closed twice."""
        before, self.here = self.here, fd
        close(before)

    def _try(self, action: Callable[..., None], name: str, within: int) -> None:
        try:
            with counting_removal(name, within):
                action(name, dir_fd=within)
            self.removed += 1
            self.left -= 1
        except OSError as error:
            let_out(error)
            self._note(error)

    def _note(self, error: OSError) -> None:
        if error.errno in REFUSED:
            self.refused = self.refused or error
        elif error.errno not in CHANGED:
            raise error


def _identity(fd: int) -> tuple[int, int]:
    found = os.fstat(fd)
    return found.st_dev, found.st_ino
