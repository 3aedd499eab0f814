"""The files of keys (docs/format.md, "Keys"): which task has a key. Only inserters and upkeep read them.

A file is read and appended to under its lock, by a process that has looked whether the path still names it: upkeep
removes the files of free keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from fsqueue.cluster.identity import describe
from fsqueue.errors import LockTimeout, SecondName, StorageError
from fsqueue.format import keys, names
from fsqueue.format.keys import KeyClaim
from fsqueue.format.layout import Layout
from fsqueue.storage import jsonl
from fsqueue.storage.store import Store

LOOKS = 10
"""How often a file that others keep removing is opened anew."""
LOOK_BYTES_MAX = 1 << 20
"""The last line that can be read is looked for within so many bytes from the end."""
BYTES_MAX = 64 << 10
"""A longer file of a free key is begun anew by the next process that inserts with the key."""


class KeyFile:
    """The file of a key, open and locked, and named so by its path when it was locked."""

    __slots__ = ("_fd", "_size", "_store", "layout", "path")

    def __init__(self, store: Store, layout: Layout, fd: int, path: str, size: int | None = None) -> None:
        self._store = store
        self._fd = fd
        self._size = size
        """How long the file is. None where a lock can be lost, and other processes may append: ask for it there."""
        self.layout = layout
        self.path = path

    def last(self, key: str | None = None) -> KeyClaim | None:
        """Return the last claim; None if there is none. With `key`, a line of any other key does not count."""
        if self._size == 0:
            return None
        for _, line in jsonl.lines_from_end(self._store.fs, self._fd, LOOK_BYTES_MAX):
            claim = keys.parse(line)
            if claim is not None and (key is None or claim.key == key):
                return claim
        return None

    def has_no_line(self) -> bool:
        """Return whether not even one whole line is in the file."""
        return not any(True for _ in jsonl.lines_at(self._store.fs, self._fd))

    @property
    def size(self) -> int:
        """Return how long the file is."""
        return self._store.fs.fstat(self._fd).st_size if self._size is None else self._size

    def append(self, claim: KeyClaim) -> None:
        """Append a claim, and sync it, with the file's name. OSError or StorageError: the lock may be lost.

        After an error nothing may be inserted under this lock.
        """
        store, line = self._store, keys.encode(claim)
        size, self._size = self._size, None  # a torn line may be voided, or the append fail: ask for it again
        if store.sync_inserts and not size:
            store.names.secure(self._fd, self.path)
        jsonl.append(store.fs, self._fd, line, store.sync_inserts, size)
        if store.fs.shared and store.fs.pread(self._fd, len(line) + 1, self.size - len(line)) != line:
            raise StorageError(
                f"What was appended to {self.path} is not what is there: the lock was lost. The task was not inserted; "
                "its insert may be repeated."
            )

    def remove(self) -> bool:
        """Unlink the file. Return False if it is gone. Only for a key that is free."""
        return self._store.fs.unlink(self.path)


@contextmanager
def locked(store: Store, layout: Layout, key: str, wait_s: float = jsonl.LOCK_TIMEOUT_S) -> Iterator[KeyFile]:
    """Open the file of a key, making it, and lock it.

    LockTimeout names the process that was the last to write to it. FileNotFoundError: the generation has gone.
    """
    path = layout.key(names.key_digest(key))
    fs = store.fs
    for _ in range(LOOKS):
        fd = fs.open_append(path)
        try:
            if fs.shared or not fs.try_lock(fd):
                jsonl.must_have_one_name(fs, fd, path)  # first: the lock of a file from elsewhere is not waited for
                if not fs.lock(fd, store.clock, store.entropy, wait_s):
                    raise _timeout(store, path, key, wait_s)
            held = _named(store, layout, fd, path)
            if held is not None:
                yield held
                return
        finally:
            try:
                fs.unlock(fd)  # closing alone would not: a child that was forked meanwhile has it open, too
            finally:
                fs.close(fd)
    raise StorageError(f"The file of the key {key!r}, {path}, was removed again and again. The task was not inserted.")


def _named(store: Store, layout: Layout, fd: int, path: str) -> KeyFile | None:
    """Return the file of a key that was just locked; None if its path does not name it any more. SecondName.

    On a local disk only its lock's holder unlinks it, and so a file that has a name has this one. A purge renames a
    directory above it: whoever inserts asks for that later. On a network mount a process of this host that has an
    unlinked file open keeps it under another name.
    """
    fs = store.fs
    if fs.shared:
        return KeyFile(store, layout, fd, path) if fs.same_file(fd, path) else None
    found = fs.fstat(fd)
    if found.st_nlink > 1:
        raise SecondName(path)
    return KeyFile(store, layout, fd, path, found.st_size) if found.st_nlink else None


@contextmanager
def held(store: Store, layout: Layout, path: str, wait_s: float) -> Iterator[KeyFile]:
    """Open an existing file of a key, and lock it. FileNotFoundError if it is gone; LockTimeout."""
    with jsonl.held(store.fs, store.clock, store.entropy, path, wait_s, os.O_APPEND) as fd:
        yield KeyFile(store, layout, fd, path)


def read(store: Store, path: str, key: str | None = None) -> KeyClaim | None:
    """Return the last claim in a file, without its lock: a hint. None if there is none. `key`: as for `last`."""
    try:
        fd = store.fs.look_anew(path)
    except OSError:
        return None
    try:
        return KeyFile(store, store.layout, fd, path).last(key)
    except OSError:
        return None
    finally:
        store.fs.close(fd)


def files(store: Store, layout: Layout) -> Iterator[str]:
    """Yield the paths of all files of keys, as listings show them."""
    for shard in names.all_shards(layout.shards):
        yield from files_of(store, layout, shard)


def files_of(store: Store, layout: Layout, shard: names.Shard) -> Iterator[str]:
    """Yield those of one shard."""
    for name in store.fs.names(f"{layout.keys}/{shard}"):
        if (digest := names.parse_key_file(name)) is not None and layout.shard(digest) == shard:
            yield layout.key(digest)


def _timeout(store: Store, path: str, key: str, wait_s: float) -> LockTimeout:
    last = read(store, path)
    who = f" The file last saw {describe(last.holder)}." if last is not None and last.holder else ""
    return LockTimeout(
        f"The key {key!r} of {store.path} has been locked for {wait_s:g} s: a process that inserts a task with it is "
        f"stopped or cut off.{who} The task was not inserted; its insert may be repeated."
    )
