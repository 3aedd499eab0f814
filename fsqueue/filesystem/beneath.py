"""Open a path below an open directory: no symbolic link is followed, nothing outside is reached.

A path that was looked at and is opened afterwards may lead elsewhere by then: a neighbour with write permission puts
a link in place of a directory. Here looking and opening are one step. Linux 5.6 and newer do it in one system call,
openat2(2). Older kernels, and containers that forbid the call, get the same component by component.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from functools import cache, partial

from fsqueue.filesystem import idle_files
from fsqueue.filesystem.resources import Closer, Closing, close, opened
from fsqueue.interruptions import let_out

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
HOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
"""Open a directory for names in it. An NFS client need not ask its server, and no permission to read is needed."""

FILE_MODE = 0o666
"""Before the umask: see `rooted`."""
LOOK_FLAGS = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Follow no link, and do not wait at a pipe: a neighbour could otherwise stop every reader with one."""

OPENAT2 = 437
"""The number of the system call, on every architecture but Alpha."""
RESOLVE = 0x04 | 0x08
"""RESOLVE_NO_SYMLINKS | RESOLVE_BENEATH."""

HOW_BYTES = 24
"""Size of `struct open_how` in bytes."""
MOVES = 3
"""Maximum number of times that a path is resolved anew after EXDEV: a directory on the way was moved out meanwhile."""
NO_MOUNTS = 0x01
"""RESOLVE_NO_XDEV: EXDEV where something is mounted, be it another directory of the same filesystem."""


@cache
def _how(flags: int, mode: int, resolve: int) -> bytes:
    """Return `struct open_how`."""
    return struct.pack("=QQQ", flags, mode if flags & os.O_CREAT else 0, resolve)


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.argtypes = (ctypes.c_long, ctypes.c_int, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t)
_syscall.restype = ctypes.c_long
_CALL, _LENGTH = (OPENAT2,), (HOW_BYTES,)


def openat2(
    directory: int, path: str, flags: int, mode: int = 0, resolve: int = RESOLVE, by: Closer | None = None
) -> int:
    """Open `path` below an open directory, in one system call.

    OSError as open(2) says, and ELOOP for a symbolic link anywhere in `path`, EXDEV for a path that leads outside.
    `by`: what closes it, for the record of `taken`.
    """
    if "\0" in path:
        raise ValueError("embedded null byte")
    encoded, how = path.encode() if path.isascii() else os.fsencode(path), _how(flags, mode, resolve)
    moves = MOVES if resolve == RESOLVE else 0
    while True:
        fd = opened(by, map(_syscall, _CALL, (directory,), (encoded,), (how,), _LENGTH))
        if fd >= 0:
            return fd
        code = ctypes.get_errno()
        if code == errno.EXDEV and moves:
            moves -= 1
        elif code != errno.EINTR:
            raise OSError(code, os.strerror(code), path)


def open_at(directory: int, name: str, flags: int, by: Closer | None = None) -> int:
    """Open a name in a directory. Follow no link, and do not wait at a pipe."""
    within = partial(os.open, dir_fd=directory)
    try:
        try:
            return opened(by, map(within, (name,), (flags | LOOK_FLAGS,), (FILE_MODE,)))
        except OSError as error:
            let_out(error)
            if not idle_files.make_room(error):
                raise
        return opened(by, map(within, (name,), (flags | LOOK_FLAGS,), (FILE_MODE,)))
    except BlockingIOError:
        # On the file server's own disk, a delegation of the file to an NFS client has to be called back first. Wait for
        # it through a descriptor that is proven to be a file's: the name could lead to a pipe by now.
        with Closing(opened(by, map(within, (name,), (os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC,)))) as fd:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise
            flags = (flags | os.O_CLOEXEC) & ~(os.O_CREAT | os.O_EXCL)
            return opened(by, map(os.open, (f"/proc/self/fd/{fd}",), (flags,)))


def enter(directory: int, name: str, by: Closer | None = None) -> int:
    """Open a directory in an open one. OSError: EXDEV if something is mounted there, ENOTDIR or ELOOP for a link.

    Where openat2 is missing, only another filesystem is noticed, not another directory of the same one.
    """
    if openat2_works():
        return openat2(directory, name, DIRECTORY_FLAGS, resolve=RESOLVE | NO_MOUNTS, by=by)
    fd = opened(by, map(partial(os.open, dir_fd=directory), (name,), (DIRECTORY_FLAGS | os.O_NOFOLLOW,)))
    if os.fstat(fd).st_dev != os.fstat(directory).st_dev:
        close(fd)
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), name)
    return fd


def walk(
    directory: int, path: str, flags: int, mode: int = 0, way: int = HOLDER_FLAGS, by: Closer | None = None
) -> int:
    """Open `path` below an open directory, component by component; the same errors as `openat2`.

    `way`: the flags with which the directories on the way are opened.
    """
    *above, name = path.split("/")
    here = directory
    try:
        for part in above:
            here, left = _step(here, part, way | os.O_NOFOLLOW, 0, path, by), here
            if left != directory:
                close(left)
        return _step(here, name, flags | os.O_NOFOLLOW, mode, path, by)
    finally:
        if here != directory:
            close(here)


def _step(directory: int, name: str, flags: int, mode: int, path: str, by: Closer | None) -> int:
    if name == "..":
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), path)
    try:
        return opened(by, map(partial(os.open, dir_fd=directory), (name or ".",), (flags,), (mode,)))
    except OSError as error:
        let_out(error)
        raise OSError(error.errno, os.strerror(error.errno or 0), path) from None


@cache
def openat2_works() -> bool:
    """Return whether this kernel has openat2, and lets this process use it."""
    try:
        here = os.open("/", HOLDER_FLAGS)
    except OSError as error:
        let_out(error)
        return False
    try:
        os.close(openat2(here, ".", HOLDER_FLAGS))
        return True
    except OSError as error:
        let_out(error)
        return False  # a kernel without the call, or a container that forbids it
    finally:
        os.close(here)
