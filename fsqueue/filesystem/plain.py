"""Files that are no part of a queue: what a worker keeps of what its tasks print."""

from __future__ import annotations

import os

from fsqueue.filesystem.rooted import FILE_MODE


def append_to(path: str, data: bytes) -> None:
    """Append to a file, which is made if need be, and its directory, too. OSError."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
    try:
        fd = os.open(path, flags, FILE_MODE)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        fd = os.open(path, flags, FILE_MODE)
    try:
        write_all(fd, data)
    finally:
        os.close(fd)


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data` into a file, or into what else can be written to: standard output, memory. OSError."""
    while data:
        data = data[os.write(fd, data) :]
