"""Errors of the system that are no failures: about strays, and about what a network filesystem has forgotten."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

NOT_FILES = (errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ESPIPE, errno.ENOTDIR, errno.ENODEV)
"""Errors of the system for directories, links and pipes where a file should be: strays, which are skipped."""

LOST = (errno.ESTALE, errno.EIO, errno.EBADF)
"""Errors of a network filesystem for an open file that another host has removed, or whose lock the server has lost.
A server loses locks if it restarts or this host was cut off (EBADF: it has lost the open file, too). Opened anew, the
file tells what became of it. A broken disk answers so every time."""


def asking_again(action: Callable[[], T]) -> T:
    """Call `action`; after ESTALE once more, by the path anew.

    If a directory is gone, the system then says "missing". A second ESTALE tells nothing: least of all that the name
    is gone.
    """
    try:
        return action()
    except OSError as error:
        if error.errno != errno.ESTALE:
            raise
        return action()


def kind_of(entry: os.DirEntry[str]) -> str:
    """Return what a listing says an entry is: "file", "directory", "link" or "other"."""
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "other"
