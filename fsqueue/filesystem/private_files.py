"""Files that processes of one user share, on any host, and nobody else may read or write: a key, and long data.

Both are checked when they are opened: another user may have put something of his in their place. What is in a file of
data is checked by its reader, by a digest: the directory may lie where others may write.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterable

from fsqueue.filesystem.open_directories import NOT_FOR_OTHERS, PRIVATE, OpenDirectory, is_mine
from fsqueue.filesystem.outputs import write_all
from fsqueue.filesystem.replacing import NEW_FILE_FLAGS
from fsqueue.interruptions import let_out, suppress

KEY_BYTES = 32
KEY_FILE_BYTES_MAX = 1_000
READ_BYTES = 1 << 24
PREFIX = ".fsqueue-data-"
"""What the names of directories for data begin with."""
LOOK_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class NotPrivate(PermissionError):
    """Raised if a file or directory is another user's, or lets others in."""


def key_in(path: str, makes: bool) -> bytes:
    """Return the key in a file. `makes`: make the file if it is missing, with a new key. Of two makers one wins.

    NotPrivate if others may read the file; OSError.
    """
    try:
        return _key_in(path)
    except FileNotFoundError:
        if not makes:
            raise
        _make_key(path)
        return _key_in(path)


def _key_in(path: str) -> bytes:
    fd = os.open(path, LOOK_FLAGS)
    try:
        _check(os.fstat(fd), stat.S_ISREG, path)
        return os.read(fd, KEY_FILE_BYTES_MAX).strip()
    finally:
        os.close(fd)


def _make_key(path: str) -> None:
    """Make a file with a new key, whole, unless there is one by now."""
    os.makedirs(os.path.dirname(path) or ".", PRIVATE, exist_ok=True)
    fresh = f"{path}.{secrets.token_hex(8)}"
    fd = os.open(fresh, NEW_FILE_FLAGS, 0o600)
    try:
        with os.fdopen(fd, "wb") as file:
            file.write(secrets.token_hex(KEY_BYTES).encode() + b"\n")
            file.flush()
            os.fsync(fd)
        with suppress(FileExistsError):
            os.link(fresh, path)
    finally:
        os.unlink(fresh)


def _check(found: os.stat_result, is_kind: Callable[[int], bool], path: str) -> None:
    """Raise NotPrivate unless an open file is of the kind that is meant, this user's, and closed to all others."""
    if not is_kind(found.st_mode) or not is_mine(found) or found.st_mode & NOT_FOR_OTHERS:
        raise NotPrivate(f"{path} is not this user's own, or others may read or write it")


def fresh_directory(within: str) -> str:
    """Return a path in a directory under which `DataDirectory` makes another one: no other process knows it."""
    return os.path.join(os.path.abspath(within), PREFIX + secrets.token_hex(16))


class DataDirectory:
    """A private directory whose files processes of one user hand each other. It is made by who writes the first one.

    `path`: as `fresh_directory` returned it, here or in another process. Links on the way to it are followed.
    """

    def __init__(self, path: str) -> None:
        self.path = path

    def _open(self, holder: OpenDirectory, makes: bool) -> OpenDirectory:
        name = os.path.basename(self.path)
        opened = holder.make_or_enter(name, PRIVATE, _fresh) if makes else holder.enter(name)
        try:
            _check(opened.stat(), stat.S_ISDIR, self.path)
        except BaseException:
            opened.close()
            raise
        return opened

    def write(self, name: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Write a new file, durably. NotPrivate, FileExistsError, OSError: nothing is left of it."""
        with OpenDirectory.at(os.path.dirname(self.path)) as holder, self._open(holder, True) as inside:
            fd = os.open(name, NEW_FILE_FLAGS, 0o600, dir_fd=inside.fd)
            try:
                for piece in pieces:
                    write_all(fd, memoryview(piece))
                os.fsync(fd)
            except BaseException:
                inside.remove_file(name)
                raise
            finally:
                os.close(fd)

    def read(self, name: str) -> bytes:
        """Return the content of a private file. NotPrivate, OSError."""
        with OpenDirectory.at(os.path.dirname(self.path)) as holder, self._open(holder, False) as inside:
            fd = os.open(name, LOOK_FLAGS, dir_fd=inside.fd)
            try:
                _check(os.fstat(fd), stat.S_ISREG, name)
                found = bytearray()
                while piece := os.read(fd, READ_BYTES):
                    found += piece
                return bytes(found)
            finally:
                os.close(fd)

    def remove(self, names: Iterable[str]) -> None:
        """Remove files, as far as they are there."""
        try:
            with OpenDirectory.at(os.path.dirname(self.path)) as holder, self._open(holder, False) as inside:
                for name in names:
                    inside.remove_file(name)
        except OSError as error:
            let_out(error)

    def remove_all(self) -> None:
        """Remove the directory with its files, if it is there. What cannot be removed now stays."""
        try:
            with OpenDirectory.at(os.path.dirname(self.path)) as holder, self._open(holder, False) as inside:
                holder.remove(inside, [("[0-9a-f-]+", None)])
        except OSError as error:
            let_out(error)


def _fresh() -> str:
    return PREFIX + secrets.token_hex(16)
