"""Resolve paths below one directory from its open descriptor."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial

from fsqueue import forks
from fsqueue.filesystem import beneath, idle_files, resources
from fsqueue.filesystem.beneath import DIRECTORY_FLAGS, FILE_MODE, HOLDER_FLAGS
from fsqueue.filesystem.expected_errors import retried_after_stale
from fsqueue.interruptions import is_interruption, let_out, suppress

DIRECTORY_MODE = 0o777
"""Before the umask: a queue shared by a Unix group is a matter of umask and setgid."""

GROUP_SHARED = stat.S_ISGID | stat.S_IWGRP
"""The mode of a directory that a group shares."""
FILE_BITS, DIRECTORY_BITS = 0o060, 0o070
"""Mode bits of the group for a file and for a directory below it."""


Stamp = tuple[int, int, int, int]
"""Identity of a version of a file: the device, the inode number, the time of the last change, the size."""


def stamp_of(found: os.stat_result) -> Stamp:
    """Return the stamp of a file. Each write, link and renaming changes the time (of the inode, not of the content)."""
    return found.st_dev, found.st_ino, found.st_ctime_ns, found.st_size


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


class OpenParent:
    """Hold an open directory and a name in it; close it at the end of a `with` block. (Cheaper than a generator.)

    An error of the system names the whole path.
    """

    __slots__ = ("is_owned", "name", "path", "root", "within")

    def __init__(self, root: Rooted, within: int, name: str, path: str, is_owned: bool = True) -> None:
        self.root, self.within, self.name, self.path, self.is_owned = root, within, name, path, is_owned

    def __enter__(self) -> tuple[int, str]:
        return self.within, self.name

    def __exit__(self, kind: object, error: object, at: object) -> None:
        if isinstance(error, OSError) and not is_interruption(error):
            if error.errno == errno.ESTALE:
                self.root.ask_anew(self.path)
            if error.filename in (None, self.name):
                error.filename = self.path
        if self.is_owned:
            resources.close(self.within)


class _Root(int):
    """The descriptor of a root. Each thread that uses it refers to it, and so keeps it open: see `close_root`.

    A plain number could belong to another file by the time at which the thread uses it.
    """

    kept: resources.Kept
    number: tuple[int, int]
    """Identity of the root directory: the device, and the inode number."""


class Rooted:
    """Open what lies below `root`, and nothing else.

    The first use opens `root`, which may be reached through links: see `open_root_in`. From then on every path below it
    is resolved from that descriptor, and no symbolic link is followed. A neighbour may put a link in place of a
    directory, or another directory in place of `root`. No operation is redirected outside the root: it ends with
    NotADirectoryError or ELOOP, and a listing is empty. A path that is not below `root` is refused: EXDEV.

    A group may share `root`: it is setgid, and writable by the group. Then the group may read and write what any
    member makes below it, whatever that member's umask.
    """

    def __init__(self, root: str) -> None:
        self.root = root
        self.shared = True
        """True if other hosts may work on the same files: a server may use an inode number again while it is open
        here."""
        self._below = root.rstrip("/") + "/"
        self._root_fd = _Root(-1)
        self._within: Rooted | None = None
        """In which the root is opened; None: by its path."""
        self.drop: Callable[[int], object] = os.close
        """Close a descriptor, for a finalizer. It is C code, and waits for nothing."""
        self._opening = resources.Mutex()
        self.unlock: Callable[[int], None]
        self.close: Callable[[int], None] = resources.close
        self._is_group_shared = False
        self._open_beneath = beneath.openat2 if beneath.openat2_works() else beneath.walk
        forks.register(self, Rooted.after_fork)

    def after_fork(self) -> None:
        """In a forked child, close the descriptors that the parent's threads were just opening. A reading goes on."""
        if self._root_fd >= 0:
            resources.let_go_below(self._root_fd)

    def _inside(self, path: str) -> str:
        """Return `path` relative to the root: "" for the root itself. OSError (EXDEV) if it is outside."""
        if path.startswith(self._below):
            return path[len(self._below) :]
        if path + "/" == self._below or path == self.root:
            return ""
        raise OSError(errno.EXDEV, f"Not below {self.root}", path)

    def _root(self) -> _Root:
        """Return the descriptor of the root, which the first use opens."""
        root = self._root_fd
        if root < 0:
            with self._opening:
                root = self._root_fd
                if root < 0:
                    root = self._take_root(self._open_root())
        return root

    def _open_root(self) -> int:
        if self._within is not None:
            return self._within.hold_directory(self.root)
        return retried_after_stale(lambda: resources.opened(self, map(os.open, (self.root,), (HOLDER_FLAGS,))))

    @property
    def device(self) -> int:
        """Return the device of the root, as it was when the root was opened."""
        return self._root().number[0]

    def open_root_in(self, holder: Rooted) -> None:
        """Open the root now, and each time anew, in another open directory. NotADirectoryError for a link; OSError."""
        self._within = holder
        self._root()

    def _take_root(self, fd: int) -> _Root:
        root = _Root(fd)
        root.kept = resources.Kept(fd, os.close)
        found = os.fstat(root)
        root.number = found.st_dev, found.st_ino
        self._is_group_shared = found.st_mode & GROUP_SHARED == GROUP_SHARED
        self._root_fd = root
        return root

    def close_root(self) -> None:
        """Close the root, once no thread uses it. The next use opens it anew, and may find another directory."""
        self._root_fd = _Root(-1)

    def _open(self, path: str, flags: int) -> int:
        """Open a path below the root, in one step that follows no link. The errors name `path`."""
        below = self._below
        inside = path[len(below) :] if path.startswith(below) else self._inside(path)
        root = self._root_fd
        if root < 0:
            root = self._root()
        try:
            return self._open_beneath(root, inside or ".", flags, FILE_MODE, by=self)
        except OSError as error:
            let_out(error)
            if error.errno == errno.ESTALE and self._root_is_gone():
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path) from None
            error.filename = path
            if not idle_files.make_room(error):
                raise
        try:
            return self._open_beneath(root, inside or ".", flags, FILE_MODE, by=self)
        except OSError as error:
            let_out(error)
            error.filename = path
            raise

    def watch(self, path: str, fd: int) -> Callable[[], int]:
        """Return a function that returns the present size of the file at `path`. Truth, also while others append.

        `fd`: that file, open. It is taken over, and closed with the function. On a network filesystem it would keep
        an unlinked file alive as `.nfs…`: `size_on_server` serves there.
        """
        return SizeOf(fd, self.drop)

    def size_on_server(self, path: str) -> int:
        """Return the size of the file `path`, as a file server knows it: one request, which no cache answers."""
        directory, _, name = path.rpartition("/")
        if directory == self.root:
            size = size_on_server(self._root(), name)
        else:
            with self._holder(path) as (within, inner):
                size = size_on_server(within, inner)
        if size is None:  # a revalidating open asks, too, in more requests
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            with self.closing(beneath.walk(self._root(), self._inside(path), flags, by=self)) as fd:
                return os.fstat(fd).st_size
        return size

    def closing(self, fd: int) -> resources.Closing:
        """Close a descriptor at the end of a `with` block."""
        return resources.Closing(fd, self.close)

    def is_open(self) -> bool:
        """Return whether the root was opened."""
        return self._root_fd >= 0

    def is_in_place(self) -> bool:
        """Return whether the root's path still names the directory that is open: neither moved, removed nor replaced.

        Of a root that was opened in another directory, a link in its place is no such name: it was moved, and a link
        leads to it. On a network filesystem an answer may be a minute old.
        """
        try:
            root, found = self._root(), os.stat(self.root, follow_symlinks=self._within is None)
            if self.shared:
                os.fstat(root)  # ESTALE if it was removed
            return root.number == (found.st_dev, found.st_ino)
        except OSError as error:
            let_out(error)
            return error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ESTALE)

    def stamp_at(self, path: str) -> Stamp | None:
        """Return the stamp of the file to which `path` leads now, from the top, whatever root is open; None if to none.

        Nothing is opened, and no link in the file's own place is followed. On a network filesystem an answer may be a
        minute old.
        """
        try:
            return stamp_of(os.lstat(path))
        except OSError as error:
            let_out(error)
            return None

    def _root_is_gone(self) -> bool:
        """Return whether the root was removed; a network filesystem reports ESTALE for a removed root."""
        try:
            return os.fstat(self._root()).st_nlink == 0
        except OSError as error:
            let_out(error)
            return True

    def _open_directory(self, path: str, flags: int = DIRECTORY_FLAGS) -> int:
        """Open a directory below the root. NotADirectoryError also where a link leads to one."""
        try:
            return self._open(path, flags)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
            raise NotADirectoryError(
                errno.ENOTDIR, "A symbolic link, where a directory of the queue belongs", path
            ) from None

    def hold_directory(self, path: str) -> int:
        """Return a descriptor of a directory below the root, for names in it. The caller closes it."""
        return self._open_directory(path, HOLDER_FLAGS)

    def _open_listing(self, path: str, touched: bool) -> int:
        """Open a directory to list it. `touched`: first change its time, so that a client asks its server for it."""
        fd = self._open_directory(path)
        if touched:
            with suppress(OSError):  # this user may only read
                os.utime(fd)
        return fd

    def _walk_to(self, path: str) -> int:
        """Open a directory below the root, asking a file server for each one on the way."""
        root, inside = self._root(), self._inside(path)
        return retried_after_stale(lambda: beneath.walk(root, inside, DIRECTORY_FLAGS, way=DIRECTORY_FLAGS, by=self))

    def _holder(self, path: str) -> OpenParent:
        """Open the directory that holds `path`: yield its descriptor, and the name in it ("." for the root itself)."""
        if path == self.root:
            return OpenParent(self, self._root(), ".", path, False)
        directory, _, name = path.rpartition("/")
        return OpenParent(self, self._open_directory(directory, HOLDER_FLAGS), name, path)

    def ask_anew(self, path: str) -> None:
        """Have a network filesystem's client ask its server for each directory on the way to `path`.

        A client may believe for a minute in a directory that another host has removed, and answer "stale" for each
        name in it. It opens a descriptor for names only (`HOLDER_FLAGS`) without a question to the server. To ask for
        the attributes of an open directory does not make the client doubt its name.
        """
        with suppress(OSError):
            self.close(self._walk_to(path.rpartition("/")[0]))

    @contextmanager
    def _holders(self, source: str, target: str) -> Iterator[tuple[int, str, int, str]]:
        """Open the directories that hold two paths: once, if it is the same one."""
        directory, _, name = target.rpartition("/")
        with self._holder(source) as (here, old):
            if source.rpartition("/")[0] == directory:
                yield here, old, here, name
                return
            with self._holder(target) as (there, new):
                yield here, old, there, new

    def _share_directory(self, path: str) -> None:
        """Share a directory with the group: this user may have made it, and crashed before sharing it."""
        try:
            fd = self._open_directory(path)
        except (NotADirectoryError, PermissionError):
            return  # something else has the name, or another member's directory
        try:
            self._share(fd, os.fstat(fd))
        finally:
            resources.close(fd)

    def _share(self, fd: int, found: os.stat_result) -> None:
        """Let the group read and write what this user has just made in a directory that the group shares.

        A member with a tight umask would otherwise make logs that keep all other members from working. `found`: what
        fstat says of it. A file with a second name is left alone: a neighbour may have linked it from elsewhere.
        """
        is_directory = stat.S_ISDIR(found.st_mode)
        bits = DIRECTORY_BITS if is_directory else FILE_BITS
        is_mine = found.st_uid == os.geteuid() and (is_directory or found.st_nlink == 1)
        if is_mine and found.st_mode & bits != bits:
            os.fchmod(fd, stat.S_IMODE(found.st_mode) | bits)
