"""Count what this thread removes from the filesystem, so that `gc` can report it.

    with freed.counted() as removed:
        ...
    removed.inodes, removed.bytes

Without a `counted` around it, a removal costs no further system call.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(slots=True)
class Freed:
    """Count inodes that have lost their last name, and the bytes of the files among them."""

    inodes: int = 0
    bytes: int = 0


_counting: ContextVar[Freed | None] = ContextVar("fsqueue_freed", default=None)


@contextmanager
def counted() -> Iterator[Freed]:
    """Count what this thread removes within."""
    freed = Freed()
    token = _counting.set(freed)
    try:
        yield freed
    finally:
        _counting.reset(token)


@contextmanager
def counting(name: str, within: int) -> Iterator[None]:
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
