"""Exclusive locks on open files, between processes, threads and hosts.

Linux has locks that belong to the open file description (`F_OFD_SETLK`): they exclude threads,
work across NFS clients and are not dropped when the process closes another descriptor of the file.
Where the kernel has none of those, the classic kind is used, which belongs to the process;
`ProcessLocks` adds what it lacks.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import threading
from collections import deque

from fsqueue import forks
from fsqueue.filesystem import resources

_BUSY = (errno.EAGAIN, errno.EACCES)


def _flock(kind: int) -> bytes:
    return struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0)


_EXCLUSIVE, _FREE = _flock(fcntl.F_WRLCK), _flock(fcntl.F_UNLCK)


def _is_taken(answer: bytes) -> bool:
    """Return whether F_GETLK answered that the file is locked."""
    return int(struct.unpack_from("h", answer)[0]) != fcntl.F_UNLCK


class DescriptionLocks:
    """Locks that belong to the open file description."""

    def __init__(self) -> None:
        self._fcntl, self._set, self._get = fcntl.fcntl, fcntl.F_OFD_SETLK, fcntl.F_OFD_GETLK

    def try_lock(self, fd: int) -> bool:
        """Lock the whole file exclusively, without waiting. False: another has it."""
        set_lock = self._fcntl
        try:
            set_lock(fd, self._set, _EXCLUSIVE)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        return True

    def unlock(self, fd: int) -> None:
        """Give the lock back (harmless without one)."""
        set_lock = self._fcntl
        set_lock(fd, self._set, _FREE)

    def is_locked(self, fd: int) -> bool:
        """Return whether another process has a lock on the file. Ask without locking, so that no other has to wait."""
        return _is_taken(self._fcntl(fd, self._get, _EXCLUSIVE))

    def close(self, fd: int) -> None:
        """Close the descriptor; its lock goes with it."""
        resources.close(fd)


_dropped: deque[int] = deque()
"""Descriptors that finalizers left. The next call of `try_lock` closes them."""


class _Held:
    """The files that this process has locked by classic locks: one table for all, since the kernel has one, too."""

    def __init__(self) -> None:
        self.mutex = threading.RLock()
        """Reentrant: the collector may close a forgotten log in a thread that is in here already."""
        self.owners: dict[tuple[int, int], int] = {}
        """The descriptor that has the lock, by file."""
        self.closing: dict[tuple[int, int], list[int]] = {}
        """Descriptors that are closed once the lock of their file is given back."""
        forks.register(self, _Held.after_fork)

    def after_fork(self) -> None:
        """Begin anew in a forked child, since it holds none of its parent's classic locks."""
        self.__init__()  # type: ignore[misc]
        _dropped.clear()


_held = _Held()


class ProcessLocks:
    """Classic locks, made safe between threads: one owner a file in this process, late closing.

    To the kernel they belong to the process, so all objects of this class share one table: two open queues exclude
    each other. To close any descriptor of a file drops the process's lock on it. So while another descriptor of the
    file is locked, `close` keeps this one open until that lock is given back.
    """

    @staticmethod
    def _file(fd: int) -> tuple[int, int]:
        status = os.fstat(fd)
        return status.st_dev, status.st_ino

    def try_lock(self, fd: int) -> bool:
        """Lock the whole file exclusively, without waiting. False: another thread or process has it."""
        self._close_dropped()
        with _held.mutex:
            file = self._file(fd)
            if self._owner(file, fd) != fd:
                return False
            had = file in _held.owners
            _held.owners[file] = fd  # first: from here on no other descriptor of the file is closed under the lock
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BaseException as error:
                if not had:
                    self._release(file)
                if isinstance(error, OSError) and error.errno in _BUSY:
                    return False
                raise
            return True

    def _owner(self, file: tuple[int, int], fd: int) -> int:
        """Return the descriptor that has the file's lock in this process, or `fd` if none has."""
        owner = _held.owners.get(file, fd)
        if owner != fd:
            try:
                if self._file(owner) == file:
                    return owner
            except OSError:
                pass
            self._release(file)  # it was closed behind our back, and the kernel has dropped the lock with it
        return fd

    def _release(self, file: tuple[int, int]) -> None:
        _held.owners.pop(file, None)
        for late in _held.closing.pop(file, ()):
            os.close(late)

    def unlock(self, fd: int) -> None:
        """Give the lock back (harmless without one)."""
        with _held.mutex:
            file = self._file(fd)
            if _held.owners.get(file) == fd:
                fcntl.lockf(fd, fcntl.LOCK_UN)
                self._release(file)

    def is_locked(self, fd: int) -> bool:
        """Return whether another thread or process has a lock on the file. Asks without locking."""
        with _held.mutex:
            if self._owner(self._file(fd), fd) != fd:
                return True
            return _is_taken(fcntl.fcntl(fd, fcntl.F_GETLK, _EXCLUSIVE))

    drop = staticmethod(_dropped.append)
    """Close the descriptor soon, for a finalizer: that must not wait for a mutex, which its own thread may have."""

    def _close_dropped(self) -> None:
        while _dropped:
            try:
                fd = _dropped.popleft()
            except IndexError:
                return  # another thread was faster
            self.close(fd)

    def close(self, fd: int) -> None:
        """Close the descriptor, at once or when the lock that another of the same file has is given back."""
        with _held.mutex:
            try:
                file = self._file(fd)
            except OSError:  # the server has forgotten the file (ESTALE), and the lock with it
                resources.close(fd)
                return
            if self._owner(file, fd) != fd:
                _held.closing.setdefault(file, []).append(fd)
                resources.forget(fd)
                return
            resources.close(fd)
            self._release(file)


def description_locks_work() -> bool:
    """Return whether this kernel knows locks of open file descriptions."""
    if not hasattr(fcntl, "F_OFD_SETLK"):
        return False
    fd = os.memfd_create("fsqueue") if hasattr(os, "memfd_create") else os.open(os.devnull, os.O_RDWR)
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _EXCLUSIVE)
        return True
    except OSError:
        return False
    finally:
        os.close(fd)
