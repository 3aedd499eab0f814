"""Exclusive locks on open files, between processes, threads and hosts.

They are fcntl locks of the open file description (`F_OFD_SETLK`, Linux 3.15). They exclude threads, work across NFS
clients, and stay when the process closes another descriptor of the file. The classic fcntl locks of other programs
exclude them, and are excluded by them.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from functools import cache

from fsqueue.errors import UnsafeFilesystem
from fsqueue.interruptions import let_out

BUSY = (errno.EAGAIN, errno.EACCES)
"""Errors of the system for a lock that another process has."""
GET, SET = 36, 37
"""F_OFD_GETLK and F_OFD_SETLK of fcntl(2), the same on every architecture. `fcntl` has no names for them where Python
was built with a C library older than glibc 2.20, as for an old cluster, though the kernel has the locks.
"""


def _flock(kind: int) -> bytes:
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)


_EXCLUSIVE, _FREE = _flock(fcntl.F_WRLCK), _flock(fcntl.F_UNLCK)
_fcntl = fcntl.fcntl


def try_lock(fd: int) -> bool:
    """Lock the whole file exclusively, without waiting. False: another has it."""
    try:
        _fcntl(fd, SET, _EXCLUSIVE)
    except OSError as error:
        let_out(error)
        if error.errno in BUSY:
            return False
        raise
    return True


def unlock(fd: int) -> None:
    """Give the lock back (harmless without one)."""
    _fcntl(fd, SET, _FREE)


def is_locked(fd: int) -> bool:
    """Return whether another process has a lock on the file. Ask without locking, so that no other has to wait."""
    return int(struct.unpack_from("h", _fcntl(fd, GET, _EXCLUSIVE))[0]) != fcntl.F_UNLCK


@cache
def fault() -> str | None:
    """Return why this system knows no locks of open file descriptions; None if it knows them. It takes no lock."""
    fd = os.open("/", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        is_locked(fd)
        return None
    except OSError as error:
        let_out(error)
        return error.strerror
    finally:
        os.close(fd)


def require() -> None:
    """Raise UnsafeFilesystem if this system has no locks of open file descriptions."""
    if (why := fault()) is not None:
        raise UnsafeFilesystem(
            f"This system knows no locks of open file descriptions (fcntl, F_OFD_GETLK: {why}). Without them two "
            "workers could take the same task. Nothing was changed. Use Linux 3.15 or newer, and no sandbox that lacks "
            "these locks."
        )
