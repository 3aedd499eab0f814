"""Ask for the size that a file has now. That is the cheapest way to see whether others have appended to it."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from collections.abc import Callable
from functools import cache, partial

from fsqueue.filesystem import resources

SIZE, NO_FOLLOW, ASK_THE_SERVER = 0x200, 0x100, 0x2000
"""STATX_SIZE, AT_SYMLINK_NOFOLLOW, AT_STATX_FORCE_SYNC."""
STATX_BYTES, AT_BYTE = 256, 40
"""The length of `struct statx`, and where the size stands in it."""


class SizeOf(partial[int]):
    """Return the size of an open file when called: one system call, without a Python frame. It owns the descriptor.

    Each call moves the descriptor's offset to the end, so nothing may read by that offset. Only this object may close
    the descriptor, by `drop`: another file could get its number, and the next call would move that file's offset.
    """

    kept: resources.Kept

    def __new__(cls, fd: int, drop: Callable[[int], object]) -> SizeOf:
        made = super().__new__(cls, os.lseek, fd, 0, os.SEEK_END)
        made.kept = resources.Kept(fd, drop)
        return made


@cache
def _statx() -> Callable[..., int] | None:
    """Return the C library's statx(2), or None if it has none."""
    try:
        function = ctypes.CDLL(None, use_errno=True).statx
    except AttributeError:
        return None
    function.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_uint, ctypes.c_char_p)
    function.restype = ctypes.c_int
    return function


def size_on_server(directory: int, name: str) -> int | None:
    """Return the size of a file in an open directory. It asks the file server once, and ignores the client's cache.

    None if the C library or the kernel has no statx(2). FileNotFoundError and other errors as stat(2).
    """
    function = _statx()
    if function is None:
        return None
    found = ctypes.create_string_buffer(STATX_BYTES)
    if function(directory, os.fsencode(name), NO_FOLLOW | ASK_THE_SERVER, SIZE, found) == 0:
        return int.from_bytes(found.raw[AT_BYTE : AT_BYTE + 8], sys.byteorder)
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EPERM):  # an old kernel, or a container that forbids the call
        return None
    raise OSError(code, os.strerror(code), name)
