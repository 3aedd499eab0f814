"""Name the errors of the system that are no failures: about strays, and about what a network filesystem forgot."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from fsqueue.filesystem import idle_files
from fsqueue.interruptions import is_interruption

T = TypeVar("T")

NOT_FILES = (errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ESPIPE, errno.ENOTDIR, errno.ENODEV)
"""Errors for a directory, link or pipe in the place of a file: a stray, which is skipped."""

LOST = (errno.ESTALE, errno.EIO, errno.EBADF)
"""Errors of a network filesystem for an open file that another host has removed, or whose lock the server has lost.
A server loses locks if it restarts, or if this host was cut off (EBADF: it has lost the open file, too). Open the file
again to learn what became of it. A broken disk gives these errors every time."""


def retried_after_stale(action: Callable[[], T]) -> T:
    """Call `action`; after ESTALE call it once more, so that it resolves its path again.

    Also if the system had no descriptor left: idle files are closed before that.

    If a directory is gone, the second call says "missing". A second ESTALE proves nothing, least of all that the name
    is gone.
    """
    try:
        return action()
    except OSError as error:
        if error.errno != errno.ESTALE and not idle_files.make_room(error):
            raise
        return action()


class PassingOverStrays:
    """Go on behind the `with` block if a file is missing in it, or if something else is in the file's place."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: object, at: object) -> bool:
        return isinstance(error, OSError) and error.errno in (errno.ENOENT, *NOT_FILES) and not is_interruption(error)


def either_of_two(look: Callable[[], Iterable[T]]) -> set[T]:
    """Look twice, and return everything that either look has found. One listing may be old, or miss a name that is
    being renamed: only two of them prove absence.
    """
    return {*look(), *look()}


def is_gone(error: Exception) -> bool:
    """Return whether an error says that a file or directory was removed: "missing", or ESTALE, as a network filesystem
    says of what another host has removed while it was open here.

    A hint: ESTALE may also come where nothing was removed. Read anew what would have removed it.
    """
    return isinstance(error, FileNotFoundError) or (isinstance(error, OSError) and error.errno == errno.ESTALE)


@contextmanager
def stale_is_missing(path: str) -> Iterator[None]:
    """Turn ESTALE within a block into FileNotFoundError, with the same words. `path`: the file that it names.

    Use it where the caller handles a missing file by beginning anew.
    """
    try:
        yield
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ESTALE), path) from error


def kind_of(entry: os.DirEntry[str]) -> str:
    """Return the kind of an entry of a listing: "file", "directory", "link" or "other"."""
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
