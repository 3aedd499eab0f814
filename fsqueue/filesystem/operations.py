"""Thin operations on files, each a system call or a named idiom of a few.

The hot ones (`pread`, `try_lock`, ...) are bound once per object, without a Python frame in
between. Paths are strings. Errors are the system's own OSError; a queue's verbs translate them.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from fsqueue.clock import Backoff, Clock, Entropy
from fsqueue.errors import HiddenTasks, NotGiven
from fsqueue.filesystem import forked, locks, resources, side_threads, trees
from fsqueue.filesystem.beneath import DIRECTORY_FLAGS, LOOK_FLAGS, open_at
from fsqueue.filesystem.expected_errors import NOT_FILES, kind_of, retried_after_stale
from fsqueue.filesystem.mounts import mount_of
from fsqueue.filesystem.open_directories import place_of
from fsqueue.filesystem.rooted import DIRECTORY_MODE, Rooted, Stamp, stamp_of
from fsqueue.filesystem.trees import Proof
from fsqueue.interruptions import let_out, suppress

T = TypeVar("T")

LOCAL_PAUSES_S, SHARED_PAUSES_S = (0.00005, 0.001), (0.0005, 0.02)
"""Shortest and longest pause between two tries for a busy lock: a matter of fairness here, of a server's load there."""

SMALL_READ_BYTES, READ_BYTES = 1 << 16, 1 << 20
"""Most files are small, and a large buffer is not for free; only what goes on is read in large pieces."""
LOOKS = 4
"""Maximum number of times to open a name that others remove and make again."""


def _give(fd: int, holder: os.stat_result) -> bool:
    """Give an open file or directory that root has just made to the owner of the directory that holds it. Return
    whether it is the owner's now: a file server may take root for nobody, and a container may lack the right.
    """
    if os.fstat(fd).st_uid != holder.st_uid:
        with suppress(OSError):
            os.fchown(fd, holder.st_uid, holder.st_gid)
    return os.fstat(fd).st_uid == holder.st_uid


def _is_empty_file(found: os.stat_result) -> bool:
    """Return whether this is the status of a regular file of one name, without content."""
    return stat.S_ISREG(found.st_mode) and found.st_nlink == 1 and not found.st_size


class Filesystem(Rooted):
    """The system calls that fsqueue uses below `root`, on a local or a shared filesystem.

    `shared` tells whether other hosts may work on the same files: then every append is synced,
    because nothing else reports a lost lock or a full disk there. `lists_by_time`: see `Mount`.
    Missing directories on the way to a file are made below `root`, but never `root` itself nor, unless hidden, one
    right in it: neither a deleted queue nor an earlier generation must come back to life. For paths see `Rooted`.
    UnsafeFilesystem if the system lacks the locks (`locks.require`).
    """

    def __init__(self, root: str, *, shared: bool = True, lists_by_time: bool = False) -> None:
        locks.require()
        super().__init__(root)
        self.shared, self.lists_by_time = shared, lists_by_time
        self._keeps_numbers: bool | None = None
        """True if inode numbers last on the mount of the root; None until `place` has asked for that."""
        self.pauses_s = SHARED_PAUSES_S if shared else LOCAL_PAUSES_S
        self.try_lock: Callable[[int], bool] = locks.try_lock
        self.unlock: Callable[[int], None] = locks.unlock
        self.is_locked: Callable[[int], bool] = locks.is_locked
        self.pread: Callable[[int, int, int], bytes] = os.pread
        self.write: Callable[[int, bytes | memoryview], int] = os.write
        self.pwrite: Callable[[int, bytes, int], int] = os.pwrite
        self.fsync: Callable[[int], None] = os.fsync
        self.fstat: Callable[[int], os.stat_result] = os.fstat
        self.at_once: Callable[[Sequence[Callable[[], object]]], None] = side_threads.at_once

    # -- opening -----------------------------------------------------------------------------

    def look(self, path: str, flags: int = os.O_RDONLY) -> int:
        """Open `path` by a revalidating open: its directory first, then the name in it.

        An NFS client may answer for a path from its cache for as long as a minute; opening the
        directory makes it ask the server. Symbolic links are not followed. ESTALE means gone.
        """
        for left in reversed(range(LOOKS)):
            fd = -1
            try:
                fd = self._open_anew(path, flags) if self.shared else self._open_once(path, flags)
                found = os.fstat(fd)
                mode = found.st_mode
                if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # a pipe, or a device that can be read for ever
                    raise OSError(errno.ENXIO, os.strerror(errno.ENXIO))
                if flags & os.O_CREAT and self._is_group_shared and not found.st_size:
                    self._share(fd, found)
                return fd
            except OSError as error:
                let_out(error)
                if fd >= 0:
                    resources.close(fd)
                if error.errno == errno.ESTALE and left:
                    continue
                code = errno.ENOENT if error.errno == errno.ESTALE else error.errno
                raise OSError(code, error.strerror if code == error.errno else os.strerror(code or 0), path) from None
        raise AssertionError("unreachable")

    def _open_once(self, path: str, flags: int) -> int:
        """Open a file on a local disk, which has nothing cached that others have changed."""
        try:
            return self._open(path, flags | LOOK_FLAGS)
        except BlockingIOError:
            return self._open_anew(path, flags)  # which knows what to do about it

    def _open_anew(self, path: str, flags: int) -> int:
        """Open a file through its directory, so that a network filesystem's client asks its server for the name.

        The client may believe for a minute that a directory is missing which another host has just made. A finisher
        would then miss the counter that tells what is counted, and count it again. So it asks for each on the way.
        """
        if path == self.root:
            return self._open(path, flags | LOOK_FLAGS)
        directory, _, name = path.rpartition("/")
        try:
            within = self._open_directory(directory)
        except FileNotFoundError:
            if not self.shared:
                raise
            within = self._walk_to(directory)
        try:
            return open_at(within, name, flags, self)
        finally:
            resources.close(within)

    def look_anew(self, path: str) -> int:
        """Open `path` by a revalidating open, to read what others may have appended.

        While a process on this host has a file open for writing, even a stopped one, an NFS client believes what it has
        cached of it. It serves zeros for what other hosts have appended since (Linux 6.1). Locking makes it ask the
        server, too; but a reader takes no lock.
        """
        fd = self.look(path)
        if self.shared:
            self.drop_cached(fd)
        return fd

    def open_append(self, path: str) -> int:
        """Open a file for locked appending, by a revalidating open. The file and its directories are made if
        missing.
        """
        return self.making_room(path, lambda: self.look(path, os.O_RDWR | os.O_APPEND | os.O_CREAT))

    def create(self, path: str, sync: bool = False) -> int:
        """Create `path` exclusively (FileExistsError otherwise) for appending; directories as needed."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        fd = self.making_room(path, lambda: self._open(path, flags), sync)
        if self._is_group_shared:
            try:
                self._share(fd, os.fstat(fd))
            except BaseException:
                resources.close(fd)
                raise
        return fd

    def making_room(self, path: str, action: Callable[[], T], sync: bool = False) -> T:
        """Call `action`; if a directory on the way to `path` is missing, make it and call it again."""
        try:
            return action()
        except FileNotFoundError:
            self._make_above(path, sync)
            return action()

    def read(self, path: str) -> bytes:
        """Return the content of `path`, by a revalidating open.

        FileNotFoundError if it is gone, or is removed while it is read (NFS 3).
        """

        def from_the_start() -> bytes:
            with self.closing(self.look_anew(path)) as fd:
                return self.read_from(fd, 0)

        return retried_after_stale(from_the_start)

    def read_from(self, fd: int, offset: int) -> bytes:
        """Return all bytes of an open file from `offset` on."""
        chunk = self.pread(fd, SMALL_READ_BYTES, offset)
        if len(chunk) < SMALL_READ_BYTES:
            return chunk
        chunks = [chunk]
        while chunk:
            offset += len(chunk)
            chunk = self.pread(fd, READ_BYTES, offset)
            chunks.append(chunk)
        return b"".join(chunks)

    def pieces(self, fd: int, offset: int) -> Iterator[tuple[int, bytes]]:
        """Yield the bytes of an open file from `offset` on, each piece with its offset, without long runs of zeros.

        A power loss leaves such: on XFS or ext4 a file may be longer than what was written of it. A hole costs two
        system calls where the filesystem tells where data begins (SEEK_DATA); zeros elsewhere are read, not kept. The
        last piece ends where the file does.
        """
        size, is_left_out = SMALL_READ_BYTES, False
        while chunk := self.pread(fd, size, offset):
            end = offset + len(chunk)
            is_left_out = len(chunk) == size and not chunk[0] and chunk == _ZEROS[:size]
            if is_left_out:
                offset = _data_from(fd, end)
            else:
                yield offset, chunk
                offset = end
            size = READ_BYTES
        if is_left_out:
            yield offset, b""

    def all_pieces(self, fd: int, offset: int = 0) -> list[tuple[int, bytes]]:
        """Return the pieces of an open file from `offset` on. Few bytes, as most have, take one read."""
        chunk = self.pread(fd, SMALL_READ_BYTES, offset)
        if len(chunk) < SMALL_READ_BYTES:
            return [(offset, chunk)] if chunk else []
        return list(self.pieces(fd, offset))

    def read_pieces(self, path: str) -> list[tuple[int, bytes]]:
        """Return the pieces of the content of `path`, by a revalidating open; errors as `read`."""

        def from_the_start() -> list[tuple[int, bytes]]:
            with self.closing(self.look_anew(path)) as fd:
                return self.all_pieces(fd)

        return retried_after_stale(from_the_start)

    def read_stamped(self, path: str) -> tuple[Stamp, list[tuple[int, bytes]]]:
        """Return the stamp of the file `path` before it was read, and the pieces of its content: see `read_pieces`."""

        def from_the_start() -> tuple[Stamp, list[tuple[int, bytes]]]:
            with self.closing(self.look_anew(path)) as fd:
                return stamp_of(self.fstat(fd)), self.all_pieces(fd)

        return retried_after_stale(from_the_start)

    def cut_to(self, fd: int, size: int) -> None:
        """Make an open file as short as this, synced. Only under the file's lock."""
        os.ftruncate(fd, size)
        self.fsync(fd)

    def write_all(self, fd: int, data: bytes | memoryview) -> None:
        """Write all of `data`, or raise the error that stopped the write: then a part may be in the file."""
        written = self.write(fd, data)
        while written < len(data):
            count = self.write(fd, data[written:])
            if count == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            written += count

    def overwrite(self, path: str, data: bytes) -> None:
        """Put `data` at the start of an existing or new file, in place (for hints; not atomic)."""
        with self.closing(self.making_room(path, lambda: self.look(path, os.O_WRONLY | os.O_CREAT))) as fd:
            if os.fstat(fd).st_nlink > 1:
                raise OSError(errno.ELOOP, "It has a second name, which may lie elsewhere", path)
            self.pwrite(fd, data, 0)

    def overwrite_at(self, path: str, data: bytes, offset: int) -> None:
        """Put `data` at an offset of an existing file, in place, as `overwrite` does. FileNotFoundError."""
        with self.closing(self.look(path, os.O_WRONLY)) as fd:
            if os.fstat(fd).st_nlink > 1:
                raise OSError(errno.ELOOP, "It has a second name, which may lie elsewhere", path)
            self.pwrite(fd, data, offset)

    def drop_cached(self, fd: int) -> None:
        """Have the system forget what it has cached of an open file, and begin to write what it has not written yet."""
        with suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    # -- names -------------------------------------------------------------------------------

    def make_directory(self, path: str, sync: bool = False) -> None:
        """Make a directory below the root, and those above it as the class says; FileNotFoundError if one is gone."""
        if not self._inside(path):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)

        def make() -> None:
            with self._holder(path) as (within, name):
                os.mkdir(name, DIRECTORY_MODE, dir_fd=within)

        try:
            retried_after_stale(make)
        except FileExistsError:
            sync = False
        except FileNotFoundError:
            self._make_above(path, sync)
            self.make_directory(path, sync)
            return
        if self._is_group_shared:
            self._share_directory(path)
        if sync:
            self.sync_directory(os.path.dirname(path))

    def make_directory_for_owner(self, path: str) -> None:
        """Make a directory below the root, as `make_directory`. What root makes in a directory of another user, it
        gives to that user, who could not write into it otherwise.

        NotGiven, with nothing left, if the system forbids that. Other errors as of `make_directory`.
        """
        if os.geteuid() != 0:
            return self.make_directory(path)
        was_there = self.is_directory(path)
        self.make_directory(path)
        with self._holder(path) as (within, name), resources.Closing(self._open_directory(path)) as fd:
            # Another directory of root's may have the name, by a neighbour's doing: one that is not empty is not given.
            if was_there and (os.fstat(fd).st_uid != 0 or os.listdir(fd)):
                return None
            if not _give(fd, os.fstat(within)):
                if not was_there:
                    os.rmdir(name, dir_fd=within)
                raise NotGiven(path)
        return None

    def make_file_for_owner(self, path: str) -> None:
        """Make an empty file below the root, unless there is one. What root makes in a directory of another user, it
        gives to that user. It also gives an empty file of root's that it finds: its maker may have died before that.

        FileNotFoundError without its directory; NotGiven, with nothing left. Other errors as of `look`, if something
        else has the name.
        """
        if os.geteuid() != 0:
            return self.close(self.look(path, os.O_RDWR | os.O_CREAT))
        try:
            fd, was_there = self.create(path), False
        except FileExistsError:
            fd, was_there = self.look(path), True
        with self.closing(fd), self._holder(path) as (within, name):
            # One that was there is given only if it can be what root has left when it died before giving it: a
            # neighbour may have put another file of root's here, as a second name or by moving it.
            found = os.fstat(fd)
            if was_there and not (_is_empty_file(found) and found.st_uid == 0):
                return None
            if was_there and self._is_group_shared:
                self._share(fd, found)
            if not _give(fd, os.fstat(within)):
                if not was_there:
                    os.unlink(name, dir_fd=within)
                raise NotGiven(path)
        return None

    def _make_above(self, path: str, sync: bool) -> None:
        """Make the directory that holds `path`, unless a caller must ask for that directory by name."""
        directory = os.path.dirname(path)
        above, name = os.path.split(directory)
        if above + "/" == self._below and not name.startswith("."):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        self.make_directory(directory, sync)

    def make_root(self) -> None:
        """Make the root itself, and the directories above it: only when a queue is created."""
        os.makedirs(self.root, DIRECTORY_MODE, exist_ok=True)
        self.close_root()

    def names(self, directory: str, strict: bool = False) -> list[str]:
        """Return the names in a directory, unordered; [] if it does not exist. A listing is a hint.

        If something else stands in its place, or in that of a directory above it: []; with `strict`, HiddenTasks.
        """
        try:
            return retried_after_stale(lambda: self._list(directory))
        except (FileNotFoundError, NotADirectoryError) as error:
            code = error.errno or 0
        if self.shared:
            try:
                return self._names_afresh(directory)
            except (FileNotFoundError, NotADirectoryError) as error:
                code = error.errno or 0
        if strict and code != errno.ENOENT:
            raise self.hidden(directory, code, "directory")
        return []

    def _list(self, directory: str) -> list[str]:
        by_time = self.lists_by_time
        return _listed(self._open_listing(directory, True) if by_time else self._open_directory(directory))

    def _names_afresh(self, directory: str) -> list[str]:
        """Return the names in a directory by revalidating opens, from the root down.

        An NFS client may call a directory missing for up to a minute after another host has made it. A queue in which
        the first task was inserted would be called empty.
        """
        return _listed(self._walk_to(directory))

    def hidden(self, path: str, code: int, wanted: str = "file") -> HiddenTasks:
        """Return the error for what stands in the place of `path`, or of a directory above it.

        `code`: what the system has said. Only now look what it is: nothing is asked beforehand where all is well.
        """
        above = [path[:at] for at in range(len(self._below), len(path)) if path[at] == "/"]
        for place, kind in [*((one, "directory") for one in above), (path, wanted)]:
            try:
                mode = self.stat(place).st_mode
            except OSError as error:
                let_out(error)
                break  # others have mended or removed it meanwhile
            stands = _STANDS.get(stat.S_IFMT(mode), "a pipe, a socket or a device")
            if stands != f"a {kind}":
                return HiddenTasks(code, place, stands, kind)
        return HiddenTasks(code, path, "something else", wanted)

    def unless_absent(self, path: str, read: Callable[[], T]) -> T | None:
        """Return what `read` returns for a file that tells of tasks; None if there is no such file. HiddenTasks if
        something else has its name.
        """
        try:
            return read()
        except FileNotFoundError:
            return None
        except OSError as error:
            if error.errno not in NOT_FILES:
                raise
            raise self.hidden(path, error.errno or 0) from error

    def entries(self, directory: str) -> list[tuple[str, str]]:
        """Return name and kind of what is in a directory, unordered; [] if it does not exist. A hint, as every listing.

        Kinds: "file", "directory", "link" (symbolic), "other" (a pipe, a socket, a device).
        """

        return self._scan(directory, lambda found: [(entry.name, kind_of(entry)) for entry in found])

    def names_but_files(self, directory: str) -> list[str]:
        """Return the names of what is in a directory and is no regular file, unordered. As `entries`, in less time."""
        return self._scan(
            directory, lambda found: [entry.name for entry in found if not entry.is_file(follow_symlinks=False)]
        )

    def _scan(self, directory: str, take: Callable[[Iterator[os.DirEntry[str]]], list[T]]) -> list[T]:
        def scan() -> list[T]:
            fd = self._open_listing(directory, self.lists_by_time)
            with resources.Closing(fd), os.scandir(fd) as found:
                return take(found)

        try:
            return retried_after_stale(scan)
        except (FileNotFoundError, NotADirectoryError):
            return []

    def rename(self, source: str, target: str) -> bool:
        """Rename `source` to `target`; False if the source (or the target's directory) is not there.

        On NFS the result alone proves nothing: look afterwards. A power loss leaves some filesystems (btrfs) with both
        names of a renaming; to repeat it does nothing (POSIX), so the old name is removed.
        """

        def move() -> None:
            with self._holders(source, target) as (here, old, there, new):
                os.rename(old, new, src_dir_fd=here, dst_dir_fd=there)
                with suppress(FileNotFoundError):
                    if not self.shared and os.path.samestat(_stat(old, here), _stat(new, there)):
                        os.unlink(old, dir_fd=here)

        try:
            retried_after_stale(move)
        except FileNotFoundError:
            return False
        return True

    def link(self, source: str, target: str) -> None:
        """Make `target` a second name of `source`; FileExistsError if it is taken."""

        def link() -> None:
            with self._holders(source, target) as (here, old, there, new):
                os.link(old, new, src_dir_fd=here, dst_dir_fd=there, follow_symlinks=False)

        retried_after_stale(link)

    def unlink(self, path: str) -> bool:
        """Remove a name; False if it was not there."""

        def remove() -> None:
            with self._holder(path) as (within, name), trees.counting_removal(name, within):
                os.unlink(name, dir_fd=within)

        try:
            retried_after_stale(remove)
            return True
        except FileNotFoundError:
            return False

    def same_file(self, fd: int, path: str) -> bool:
        """Return whether `path`, looked at afresh, names the very file that is open as `fd`."""
        try:
            other = self.look(path)
        except FileNotFoundError:
            return False
        try:
            mine, found = self.fstat(fd), self.fstat(other)
        except OSError as error:
            let_out(error)
            if error.errno == errno.ESTALE:
                return False
            raise
        else:
            return (mine.st_dev, mine.st_ino) == (found.st_dev, found.st_ino)
        finally:
            self.close(other)

    def exists(self, path: str) -> bool:
        """Return whether `path` is there, by a revalidating open."""
        try:
            self.close(self.look(path))
            return True
        except FileNotFoundError:
            return False

    def stat(self, path: str) -> os.stat_result:
        """Return the status of a path, links not followed. It may be stale on a network filesystem."""
        with self._holder(path) as (within, name):
            return _stat(name, within)

    def place(self, path: str) -> tuple[int, int | None] | None:
        """Return the numbers that tell the directory `path` from copies of it. OSError.

        None where inode numbers do not last, and if this user may not read the directory.
        """
        if self._keeps_numbers is None:
            self._keeps_numbers = mount_of(self.root).keeps_numbers
        if not self._keeps_numbers:
            return None
        try:
            fd = self.look(path, DIRECTORY_FLAGS)
        except PermissionError:
            return None
        with self.closing(fd):
            return place_of(fd)

    def is_directory(self, path: str) -> bool:
        """Return whether a path is a directory, and no link to one."""
        try:
            return stat.S_ISDIR(self.stat(path).st_mode)
        except (FileNotFoundError, NotADirectoryError):
            return False

    def may_move(self, path: str) -> bool:
        """Return whether this user may rename `path` out of its directory.

        A mode says so; a read-only mount says it later.
        """
        holder = os.path.dirname(path)
        if os.statvfs(holder).f_flag & os.ST_RDONLY:
            return True
        if not os.access(holder, os.W_OK | os.X_OK, effective_ids=True):
            return False
        found = os.stat(holder)
        return not found.st_mode & stat.S_ISVTX or os.geteuid() in (0, found.st_uid, self.stat(path).st_uid)

    def touch(self, path: str) -> None:
        """Set a file's times to now, so that a scratch system's cleaner leaves it alone."""
        with self._holder(path) as (within, name):
            os.utime(name, dir_fd=within, follow_symlinks=False)

    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable: one below the root, or the directory that holds the root.

        FileNotFoundError if it is gone, also where the system says ESTALE first (NFS).
        """
        holds_root = path == (os.path.dirname(self.root) or "/")

        def sync() -> None:
            if holds_root:
                fd = resources.opened(self, map(os.open, (path,), (DIRECTORY_FLAGS,)))
            else:
                fd = self._open_directory(path)
            try:
                self.fsync(fd)
            finally:
                resources.close(fd)

        retried_after_stale(sync)

    def remove_directory(self, path: str) -> bool:
        """Remove an empty directory; False if it is not empty, not there or not ours to remove."""
        try:
            with self._holder(path) as (within, name), trees.counting_removal(name, within):
                os.rmdir(name, dir_fd=within)
            return True
        except OSError as error:
            let_out(error)
            return False

    def space(self, path: str) -> os.statvfs_result:
        """Return how much room there is on the filesystem of `path`, in blocks and inodes (statvfs(3))."""
        return os.statvfs(path)

    def remove_tree(
        self, path: str, proof: Proof | None = None, last: str | None = None, most: int | None = None
    ) -> int:
        """Remove a directory and all below it, however deep; return the number of names removed. See `trees.remove`.

        A link that a neighbour puts in a directory's place is removed, and not followed. Another filesystem that is
        mounted there is not entered. If the caller may not remove a file, the rest goes, and the error is raised at
        the end.
        """
        try:
            with self._holder(path) as (within, name):
                return trees.remove(name, within, proof, last, most, by=self)
        except FileNotFoundError:
            return 0

    # -- locks and time ------------------------------------------------------------------------

    def unlocking(self, fd: int) -> resources.Closing:
        """Give the lock of a file back, if it was taken, and close the file at the end of a `with` block."""
        return resources.Closing(fd, self._end_section)

    def _end_section(self, fd: int) -> None:
        try:
            self.end_lock(fd)
        finally:
            self.close(fd)

    def end_lock(self, fd: int) -> None:
        """Give a lock back at the end of a section, before the descriptor is closed.

        Closing alone would not do: a child that was forked meanwhile has the file open, too. An error is not raised:
        what was done under the lock is done, and an error that ended the section must not be hidden.
        """
        with suppress(OSError):  # the server has forgotten the lock, or the file
            try:
                self.unlock(fd)
            except BaseException:  # of a signal handler, perhaps, that came before the call
                self.unlock(fd)
                raise

    def lock(self, fd: int, clock: Clock, entropy: Entropy, timeout_s: float) -> bool:
        """Lock exclusively, waiting for up to `timeout_s` seconds with growing, jittered pauses."""
        if self.try_lock(fd):
            return True
        backoff = Backoff(self.pauses_s, entropy.random, 1.5, 0.5)
        until = clock.monotonic() + timeout_s
        while clock.monotonic() < until:
            clock.sleep(backoff.next_s())
            if self.try_lock(fd):
                return True
        return False

    def compare_clock(self, clock: Clock, probe: str) -> None:
        """Teach `clock` the file server's time, from the stamp of a probe file made at the path `probe`."""
        fd = self.create(probe)
        try:
            before = clock.ticks_ms()
            self.write_all(fd, b"\n")
            if self.shared:
                self.fsync(fd)
            stamp = self.fstat(fd).st_mtime_ns / 1e6
            clock.learn(stamp, before, clock.ticks_ms())
        finally:
            self.close(fd)
            self.unlink(probe)


_ZEROS = bytes(READ_BYTES)
_STANDS = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a directory", stat.S_IFREG: "a file"}
_layer = forked.Layer()


def _data_from(fd: int, offset: int) -> int:
    """Return the offset at which the next data of an open file may begin, from `offset` on; the end of the file
    if there is none.
    """
    try:
        return os.lseek(fd, offset, os.SEEK_DATA)
    except OSError as error:
        let_out(error)
        return max(offset, os.fstat(fd).st_size) if error.errno == errno.ENXIO else offset


def _listed(fd: int) -> list[str]:
    """Return the names in an open directory, and close it."""
    try:
        return os.listdir(fd)
    finally:
        resources.close(fd)


def _stat(name: str, within: int) -> os.stat_result:
    return os.stat(name, dir_fd=within, follow_symlinks=False)
