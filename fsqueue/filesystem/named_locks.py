"""Locks by name, in a directory that the caller named, outside of any queue (docs/decisions/0033-filelock.md)."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock, Timeout

from fsqueue.errors import LockTimeout
from fsqueue.interruptions import let_out

logger = logging.getLogger("fsqueue")


@contextmanager
def held_by_name(path: str) -> Iterator[None]:
    """Hold the lock of the file at `path`, which is made. LockTimeout if another process holds it.

    The path is resolved by name, and links in it are followed. So it is only for a directory that the caller named,
    and in which no other user may write. Where there are no locks, go on without: this keeps a user from a mistake,
    and proves nothing.
    """
    lock = FileLock(path, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise LockTimeout(f"Another process holds {path}. Nothing was done.") from None
    except (OSError, NotImplementedError) as error:  # filelock raises the latter where a filesystem has no flock
        let_out(error)
        logger.debug("%s cannot be locked: %s", path, error)
    try:
        yield
    finally:
        lock.release()
