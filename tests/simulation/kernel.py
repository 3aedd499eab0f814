"""What a process sees of the disk through its kernel: the calls of `os` in the filesystem layer, on one coherent host.

`Process` stands in for the module `os` behind the real `fsqueue.filesystem.Filesystem`. Before each call it asks
the world whether something is to happen first. `nfs.NfsProcess` adds the caches of a network filesystem's client.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any

from tests.simulation.disk import Directory, Disk, File, Node
from tests.simulation.handles import FIRST_FD, WRITING, Crash, Entry, Host, Opened, Stat, failure

if TYPE_CHECKING:
    from tests.simulation.world import World

Call = Callable[..., Any]
At = int | Directory | None
"""A directory that is open: by its descriptor, or, where only its names are used (O_PATH), by itself."""
USER = 1000
"""Who every process is: not root."""
INTERRUPTED = -1
"""What `Process.answer` is where a signal comes after the call, before its caller has the result."""
O_CREAT, O_DIRECTORY, O_EXCL = os.O_CREAT, os.O_DIRECTORY, os.O_EXCL
"""Flags of `open`, looked up once."""
CALL_S = 0.0005
"""How long a call takes."""


def call(function: Call) -> Call:
    """A system call: the world may do something first, and may make it answer an error although it happened."""
    name = function.__name__

    @wraps(function)
    def called(self: Process, *args: Any, **kwargs: Any) -> Any:
        if self.dead:
            raise Crash
        world, disk = self.world, self.disk
        world.now += CALL_S
        disk.step = step = disk.step + 1
        if step >= world.alert_at:
            world.alert(self, name, args)
        if self.answer is None:
            return function(self, *args, **kwargs)
        code, self.answer = self.answer, None
        result = function(self, *args, **kwargs)
        if code == INTERRUPTED:
            raise KeyboardInterrupt
        if name == "open":
            self._close(result)
        raise failure(code, next((arg for arg in args if isinstance(arg, str)), None))

    return called


class Process:
    """The `os` of one process."""

    O_RDONLY, O_WRONLY, O_RDWR, O_APPEND = os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_APPEND
    O_CREAT, O_EXCL, O_DIRECTORY = os.O_CREAT, os.O_EXCL, os.O_DIRECTORY
    O_CLOEXEC, O_NOFOLLOW, O_NONBLOCK = os.O_CLOEXEC, os.O_NOFOLLOW, os.O_NONBLOCK
    POSIX_FADV_DONTNEED = os.POSIX_FADV_DONTNEED
    path, strerror = os.path, staticmethod(os.strerror)

    def __init__(self, world: World, name: str, host: Host) -> None:
        self.world = world
        self.disk: Disk = world.disk
        self.name = name
        self.host = host
        self.dead = False
        self.answer: int | None = None
        """The error that the next call is to answer after it has happened."""
        self.fds: dict[int, Opened] = {}
        self.environ: dict[str, str] = {}
        self.children: list[Process] = []
        """Those that were forked from it."""
        self._resolved: dict[tuple[Directory | None, str], Directory] = {}
        self._resolved_at = 0

    def enter(self, name: str, args: tuple[Any, ...]) -> None:
        """What `call` does, for calls that cannot be answered wrongly."""
        if self.dead:
            raise Crash
        world = self.world
        world.now += CALL_S
        self.disk.step += 1
        if self.disk.step >= world.alert_at:
            world.alert(self, name, args)

    # -- death and birth -------------------------------------------------------------------------

    def kill(self) -> None:
        """What the system does for a dead process: close its files, and so give its locks back."""
        self.dead = True
        for fd in list(self.fds):
            self._close(fd)

    def has_lock(self) -> bool:
        """Whether it has any file locked; a dead process has none."""
        return any(isinstance(one.node, File) and one.node.owner is one for one in self.fds.values())

    def fork(self, name: str) -> Process:
        """A child, which shares what is open."""
        child = type(self)(self.world, name, self.host)
        child.fds = dict(self.fds)
        for opened in child.fds.values():
            opened.shared_by += 1
        self.children.append(child)
        return child

    # -- paths -----------------------------------------------------------------------------------

    def directory(self, path: str, below: Directory | None = None) -> Directory:
        """The directory at a path, or at a path below a directory that is open."""
        if self._resolved_at != self.disk.moved_directories:
            self._resolved.clear()
            self._resolved_at = self.disk.moved_directories
        place = below, path
        found = self._resolved.get(place)
        if found is None:
            found = self._resolved[place] = self.walk(path, below)
        return found

    def walk(self, path: str, below: Directory | None) -> Directory:
        """The same, by looking up each name on the way."""
        node: Node | None = below or self.disk.root
        for part in path.split("/"):
            if part:
                if not isinstance(node, Directory):
                    raise failure(errno.ENOTDIR, path)
                node = self.lookup(node, part)
                if node is None:
                    raise failure(errno.ENOENT, path)
        if not isinstance(node, Directory):
            raise failure(errno.ENOTDIR, path)
        return node

    def lookup(self, directory: Directory, name: str) -> Node | None:
        """What a name means, as far as this host knows."""
        return directory.entries.get(name)

    def parent(self, path: str, dir_fd: At = None) -> tuple[Directory, str]:
        """The directory that holds a path, and the name in it: from the top, or from an open directory on."""
        directory, _, name = path.rpartition("/")
        below = self._directory_of(dir_fd) if type(dir_fd) is int else dir_fd
        found = self.directory(directory, below) if directory or below is None else below
        if found.removed:
            raise self.gone(path)
        return found, name

    def gone(self, path: str | None) -> OSError:
        """What a name in a directory that was removed is answered with."""
        return failure(errno.ENOENT, path)

    def _directory_of(self, fd: int) -> Directory:
        within = self.fds[fd].node
        assert isinstance(within, Directory)
        return within

    def changed(self, directory: Directory, name: str, node: Node | None) -> None:
        """This host has changed a name, or learnt of it."""

    # -- opening -----------------------------------------------------------------------------------

    @call
    def open(self, path: str, flags: int, mode: int = 0o777, *, dir_fd: At = None) -> int:
        if path == "/":
            return self._opened(Opened(self.disk.root, flags, self.host, path))
        directory, name = self.parent(path, dir_fd)
        if not name:
            self.opening(directory)
            return self._opened(Opened(directory, flags, self.host, path))
        exclusive = flags & O_EXCL
        node = directory.entries.get(name) if exclusive else self.lookup(directory, name)
        if node is None:
            if not flags & O_CREAT:
                raise failure(errno.ENOENT, path)
            node = directory.entries.get(name)  # creating asks the server
            if node is None:
                self.room(path)
                node = self.disk.new_file(directory, name)
            elif exclusive:
                raise failure(errno.EEXIST, path)
            self.changed(directory, name, node)
        elif exclusive:
            raise failure(errno.EEXIST, path)
        if isinstance(node, Directory):
            if flags & WRITING:
                raise failure(errno.EISDIR, path)
        elif flags & O_DIRECTORY:
            raise failure(errno.ENOTDIR, path)
        self.opening(node)
        return self._opened(Opened(node, flags, self.host, name))

    def opening(self, node: Node) -> None:
        """Open to close: opening asks the server."""

    def _opened(self, opened: Opened) -> int:
        world = self.world
        world.fd = fd = world.fd + 1
        self.fds[fd] = opened
        if isinstance(opened.node, File):
            self.opened(opened, opened.node)
        return fd

    def opened(self, opened: Opened, file: File) -> None:
        """A description of a file was made."""

    def close(self, fd: int) -> None:
        if fd < FIRST_FD:
            os.close(fd)  # a real one, of garbage that was there before this world
            return
        if self.dead:
            return
        opened = self.fds.get(fd)
        if opened is not None and isinstance(opened.node, File) and self.is_felt(opened, opened.node):
            self.enter("close", (fd,))
        self._close(fd)

    def is_felt(self, opened: Opened, file: File) -> bool:
        """Whether anybody can tell that this is closed now: else it is no step, since nothing depends on its moment."""
        return bool(opened.writes) or file.owner is opened

    def _close(self, fd: int) -> None:
        opened = self.fds.pop(fd, None)
        if opened is None:
            raise failure(errno.EBADF)
        opened.shared_by -= 1
        if not opened.shared_by and isinstance(opened.node, File):
            self.closing(opened, opened.node)
            if opened.node.owner is opened:
                opened.node.owner = None

    def closing(self, opened: Opened, file: File) -> None:
        """The last descriptor of a description is closed."""

    # -- data ------------------------------------------------------------------------------------------

    def _file(self, fd: int) -> tuple[Opened, File]:
        opened = self.fds.get(fd)
        if opened is None:
            raise failure(errno.EBADF)
        if not isinstance(opened.node, File):
            raise failure(errno.EISDIR)
        return opened, opened.node

    @call
    def pread(self, fd: int, size: int, offset: int) -> bytes:
        return bytes(self.content(*self._file(fd))[offset : offset + size])

    def content(self, opened: Opened, file: File) -> bytearray:
        return file.data

    @call
    def write(self, fd: int, data: bytes) -> int:
        opened, file = self._file(fd)
        data = self.partly(data)
        assert opened.append or not file.data, "this model writes at the end, or at the start of an empty file"
        self.put_data(opened, file, len(self.content(opened, file)), data)
        return len(data)

    @call
    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        opened, file = self._file(fd)
        data = self.partly(data)
        self.put_data(opened, file, offset, data)
        return len(data)

    def partly(self, data: bytes) -> bytes:
        """What of a write gets to the disk: a full disk, or death, may cut it."""
        cut = self.world.cut_write(self, data)
        if cut is None:
            return data
        if not cut:
            raise failure(errno.ENOSPC)
        return data[:cut]

    def room(self, path: str) -> None:
        """A new name needs room, too."""

    def put_data(self, opened: Opened, file: File, offset: int, data: bytes) -> None:
        file.data[offset : offset + len(data)] = data
        self.disk.written(file)

    @call
    def fsync(self, fd: int) -> None:
        opened = self.fds.get(fd)
        if opened is None:
            raise failure(errno.EBADF)
        if isinstance(opened.node, Directory):
            self.disk.sync_directory(opened.node)
        else:
            self.flush(opened, opened.node)
            self.disk.sync_file(opened.node)

    def posix_fadvise(self, fd: int, offset: int, length: int, advice: int) -> None:
        """Nothing is promised by it."""

    def flush(self, opened: Opened, file: File) -> None:
        """Bring what is buffered to the server."""

    @call
    def fstat(self, fd: int) -> Stat:
        opened = self.fds.get(fd)
        if opened is None:
            raise failure(errno.EBADF)
        return self.attributes(opened)

    def attributes(self, opened: Opened) -> Stat:
        node = opened.node
        size = 4096 if isinstance(node, Directory) else len(self.content(opened, node))
        return Stat(node, size, self.world.disk.kept(node.mtime))

    # -- names -----------------------------------------------------------------------------------------

    @call
    def stat(self, path: str, *, dir_fd: At = None, follow_symlinks: bool = True) -> Stat:
        directory, name = self.parent(path, dir_fd)
        node = directory if name == "." else self.lookup(directory, name)
        if node is None:
            raise failure(errno.ENOENT, path)
        return Stat(node, 4096 if isinstance(node, Directory) else len(node.data), self.world.disk.kept(node.mtime))

    @call
    def utime(self, path: str, *, dir_fd: At = None, follow_symlinks: bool = True) -> None:
        directory, name = self.parent(path, dir_fd)
        node = directory.entries.get(name)
        if node is None:
            raise failure(errno.ENOENT, path)
        node.mtime = self.world.now

    @call
    def listdir(self, path: int | Directory) -> list[str]:
        directory = path if isinstance(path, Directory) else self._directory_of(path)
        self.opening(directory)
        return self.listing(directory)

    def listing(self, directory: Directory) -> list[str]:
        return self.world.listing(self, directory)

    @contextmanager
    def scandir(self, path: str | int) -> Iterator[Iterator[Entry]]:
        self.enter("scandir", (path,))
        directory = self._directory_of(path) if isinstance(path, int) else self.directory(path)
        yield iter([Entry(str(path), name, node) for name, node in list(directory.entries.items())])

    def geteuid(self) -> int:
        return USER

    @call
    def mkdir(self, path: str, mode: int = 0o777, *, dir_fd: At = None) -> None:
        directory, name = self.parent(path, dir_fd)
        if name in directory.entries:
            self.changed(directory, name, directory.entries[name])
            raise failure(errno.EEXIST, path)
        self.room(path)
        self.changed(directory, name, self.disk.new_directory(directory, name))

    def makedirs(self, path: str, mode: int = 0o777, exist_ok: bool = False) -> None:
        parts = path.split("/")
        for end in range(2, len(parts) + 1):
            try:
                self.mkdir("/".join(parts[:end]), mode)
            except FileExistsError:
                if end == len(parts) and not exist_ok:
                    raise

    @call
    def rmdir(self, path: str, *, dir_fd: At = None) -> None:
        directory, name = self.parent(path, dir_fd)
        node = directory.entries.get(name)
        if node is None:
            raise failure(errno.ENOENT, path)
        if not isinstance(node, Directory):
            raise failure(errno.ENOTDIR, path)
        if node.entries:
            raise failure(errno.ENOTEMPTY, path)
        self.disk.remove_directory(directory, name)
        self.changed(directory, name, None)

    @call
    def rename(self, source: str, target: str, *, src_dir_fd: At = None, dst_dir_fd: At = None) -> None:
        here, old = self.parent(source, src_dir_fd)
        there, new = self.parent(target, dst_dir_fd)
        node = here.entries.get(old)
        if node is None:
            raise failure(errno.ENOENT, source)
        other = there.entries.get(new)
        if isinstance(node, Directory):
            if other is not None:
                raise failure(errno.ENOTEMPTY, target)
            self.disk.moved_directories += 1
        if other is not node:
            self.world.renaming(self, node, new, other)
            self.disk.put([(here, old, None), (there, new, node)])
        self.changed(here, old, None)
        self.changed(there, new, node)

    @call
    def link(
        self,
        source: str,
        target: str,
        *,
        src_dir_fd: At = None,
        dst_dir_fd: At = None,
        follow_symlinks: bool = True,
    ) -> None:
        here, old = self.parent(source, src_dir_fd)
        there, new = self.parent(target, dst_dir_fd)
        node = here.entries.get(old)
        if node is None:
            raise failure(errno.ENOENT, source)
        if new in there.entries:
            raise failure(errno.EEXIST, target)
        self.disk.put([(there, new, node)])
        self.changed(there, new, node)

    @call
    def unlink(self, path: str, *, dir_fd: At = None) -> None:
        directory, name = self.parent(path, dir_fd)
        node = directory.entries.get(name)
        if node is None:
            self.changed(directory, name, None)
            raise failure(errno.ENOENT, path)
        if isinstance(node, Directory):
            raise failure(errno.EISDIR, path)
        self.removing(directory, name, node)
        self.changed(directory, name, None)

    def removing(self, directory: Directory, name: str, file: File) -> None:
        self.disk.put([(directory, name, None)])

    # -- locks -------------------------------------------------------------------------------------------

    @call
    def try_lock(self, fd: int) -> bool:
        opened, file = self._file(fd)
        if file.owner is not None and file.owner is not opened:
            return False
        file.owner = opened
        self.locked(opened, file)
        return True

    def locked(self, opened: Opened, file: File) -> None:
        """Taking a lock asks the server what the file holds now."""

    @call
    def is_locked(self, fd: int) -> bool:
        opened, file = self._file(fd)
        return file.owner is not None and file.owner is not opened

    def unlock(self, fd: int) -> None:
        if self.dead:
            return
        self.enter("unlock", (fd,))
        opened, file = self._file(fd)
        self.closing(opened, file)
        if file.owner is opened:
            file.owner = None
