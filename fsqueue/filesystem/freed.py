"""Counts what this thread removes from the filesystem, for those who want to say it.

    with freed.counted() as removed:
        ...
    removed.inodes, removed.bytes

Without a `counted` around it, a removal costs no further system call.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class Freed:
    """The inodes that nothing names any more, and the bytes of the files among them."""

    inodes: int = 0
    bytes: int = 0


_counting: ContextVar[Freed | None] = ContextVar("fsqueue_freed", default=None)


@contextmanager
def counted() -> Iterator[Freed]:
    """Count what this thread removes within."""
    token = _counting.set(Freed())
    try:
        freed = _counting.get()
        assert freed is not None
        yield freed
    finally:
        _counting.reset(token)


@contextmanager
def noting(name: str, within: int) -> Iterator[None]:
    """Count a name in an open directory if the block removes it. The block raises what it raises."""
    freed = _counting.get()
    if freed is None:
        yield
        return
    try:
        found = os.stat(name, dir_fd=within, follow_symlinks=False)
    except OSError:  # the removal itself will tell
        yield
        return
    yield
    is_directory = stat.S_ISDIR(found.st_mode)
    if is_directory or found.st_nlink == 1:
        freed.inodes += 1
        freed.bytes += 0 if is_directory else found.st_size
