"""Memory that processes share: files without a name, which no filesystem has."""

from __future__ import annotations

import mmap
import os


def make_memory(size: int) -> int:
    """Return the descriptor of a new memory file: `size` bytes, all zero. OSError if memory is short."""
    fd = os.memfd_create("shared")
    try:
        os.posix_fallocate(fd, 0, size)  # else the kernel would kill the process that writes where memory is short
    except BaseException:
        os.close(fd)
        raise
    return fd


def shared_memory(fd: int, size: int, is_written: bool) -> mmap.mmap:
    """Return the bytes behind a descriptor, as they are at each look. OSError."""
    return mmap.mmap(fd, size, prot=mmap.PROT_READ | (mmap.PROT_WRITE if is_written else 0))
