"""Read and append to the files of keys, which say which task has a key (docs/format.md, "Keys").

Only inserters, upkeep and fsck read them. A process appends under the file's lock, after it has looked whether the path
still names the file. On a disk of this host upkeep removes the files of free keys one by one; on a network mount it
removes them with the directory of their key epoch.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from fsqueue.cluster.identity import describe
from fsqueue.errors import LockTimeout, SecondName, StorageError
from fsqueue.format import keys, names
from fsqueue.format.keys import KeyClaim
from fsqueue.format.layout import KeyEpochs, Layout
from fsqueue.interruptions import let_out
from fsqueue.storage import jsonl
from fsqueue.storage.store import Store

LOOKS = 10
"""Maximum number of times that a file is opened which others keep removing."""
LOOK_BYTES_MAX = 1 << 20
"""Maximum number of bytes from the end in which the last line that can be read is looked for."""
BYTES_MAX = 64 << 10
"""A longer file of a free key is begun anew: on a disk of this host by the next process that inserts with the key, on
a network mount with the next key epoch.
"""


class KeyFile:
    """The file of a key, open and locked, and named so by its path when it was locked."""

    __slots__ = ("_fd", "_size", "_store", "epochs", "layout", "path")

    def __init__(
        self, store: Store, layout: Layout, epochs: KeyEpochs, fd: int, path: str, size: int | None = None
    ) -> None:
        self._store = store
        self._fd = fd
        self._size = size
        """How long the file is. None where a lock can be lost, and other processes may append: ask for it there."""
        self.layout = layout
        self.epochs = epochs
        self.path = path

    def last(self, key: str | None = None) -> KeyClaim | None:
        """Return the last claim; None if there is none. A line of any other key than the file's does not count."""
        if self._size == 0:
            return None
        for _, line in jsonl.lines_from_end(self._store.fs, self._fd, LOOK_BYTES_MAX):
            claim = keys.parse(line)
            if claim is not None and (self._is_named_by(claim) if key is None else claim.key == key):
                return claim
        return None

    def _is_named_by(self, claim: KeyClaim) -> bool:
        return self.path.endswith(f"/{names.key_file(names.key_digest(claim.key))}")

    def has_no_line(self) -> bool:
        """Return whether not even one whole line is in the file."""
        return not any(True for _ in jsonl.lines_at(self._store.fs, self._fd))

    @property
    def size(self) -> int:
        """Return how long the file is."""
        return self._store.fs.fstat(self._fd).st_size if self._size is None else self._size

    def append(self, claim: KeyClaim, sync: bool = False) -> None:
        """Append a claim, and sync it, with the file's name. OSError or StorageError: the lock may be lost.

        After an error nothing may be inserted under this lock. `sync`: even if the queue's own inserts are not synced.
        """
        store, line = self._store, keys.encode(claim)
        size, self._size = self._size, None  # a torn line may be voided, or the append fail: ask for it again
        sync = sync or store.sync_inserts
        if sync and not size:
            store.names.secure(self._fd, self.path)
        jsonl.append(store.fs, self._fd, line, sync, size)
        if store.fs.shared and store.fs.pread(self._fd, len(line) + 1, self.size - len(line)) != line:
            raise StorageError(
                f"What was appended to {self.path} is not what is there: the lock was lost. The task was not inserted; "
                "its insert may be repeated."
            )

    def remove(self) -> bool:
        """Unlink the file. Return False if it is gone. Only for a key that is free, and not on a network mount.

        There the lock can be lost, and the removal be late: it would remove a file that another process has begun.
        """
        return self._store.fs.unlink(self.path)

    def is_current(self) -> bool:
        """Return whether the file is where claims are written still: no purge, and no key epoch, has begun since."""
        store = self._store
        store.verify()
        state = store.queue_state
        return state.generation == self.layout.generation and state.key_epochs == self.epochs


@contextmanager
def locked(store: Store, layout: Layout, key: str, wait_s: float = jsonl.LOCK_TIMEOUT_S) -> Iterator[KeyFile]:
    """Open the file of a key, making it, and lock it.

    LockTimeout names the process that was the last to write to it. FileNotFoundError: the generation has gone.
    """
    epochs, fs = store.queue_state.key_epochs, store.fs
    path = layout.key(names.key_digest(key), epochs.present)
    for _ in range(LOOKS):
        fd = fs.open_append(path)
        try:
            if fs.shared or not fs.try_lock(fd):
                jsonl.must_have_one_name(fs, fd, path)  # first: the lock of a file from elsewhere is not waited for
                if not fs.lock(fd, store.clock, store.entropy, wait_s):
                    raise _timeout(store, path, key, wait_s)
            if fs.shared:
                size, is_named = None, fs.same_file(fd, path)
            else:
                size, is_named = _names_of(store, fd, path)
            if is_named:
                yield KeyFile(store, layout, epochs, fd, path, size)
                return
        finally:
            with fs.closing(fd):
                fs.end_lock(fd)
    raise StorageError(f"The file of the key {key!r}, {path}, was removed again and again. The task was not inserted.")


def _names_of(store: Store, fd: int, path: str) -> tuple[int, bool]:
    """Return how long the locked file of a key on a local disk is, and whether it has a name. SecondName.

    Only its lock's holder unlinks it, and so a file that has a name has the one by which it was opened. A purge, or the
    end of a key epoch, renames a directory above it: the inserter asks for that later. On a network mount this would
    not do: a process of this host that has an unlinked file open keeps it under another name.
    """
    found = store.fs.fstat(fd)
    if found.st_nlink > 1:
        raise SecondName(path)
    return found.st_size, found.st_nlink == 1


@contextmanager
def locked_existing(store: Store, layout: Layout, path: str, wait_s: float) -> Iterator[KeyFile]:
    """Open an existing file of a key, and lock it. FileNotFoundError if it is gone; LockTimeout."""
    epochs = store.queue_state.key_epochs
    with jsonl.locked_existing(store.fs, store.clock, store.entropy, path, wait_s, os.O_APPEND) as fd:
        yield KeyFile(store, layout, epochs, fd, path)


def earlier(store: Store, file: KeyFile, key: str, wait_s: float = jsonl.LOCK_TIMEOUT_S) -> KeyClaim | None:
    """Return the last claim of a key in the epoch before the present one, if that counts still. None if there is none.

    `file`: the key's file in the present epoch, which has no claim of this key. LockTimeout: an inserter that began
    before this epoch did is at work, or stopped.
    """
    epochs, layout = file.epochs, file.layout
    if epochs.earlier == epochs.present:
        return None
    path = layout.key(names.key_digest(key), epochs.earlier)
    make_directory(store, os.path.dirname(path))
    try:
        with locked_existing(store, layout, path, wait_s) as before:
            return before.last(key)
    except FileNotFoundError:
        return None
    except LockTimeout:
        raise _timeout(store, path, key, wait_s) from None


def make_directory(store: Store, path: str) -> None:
    """Make a directory of an earlier epoch on a network mount, so that its client learns whether it is there.

    It may believe for a minute that it is not, where another host has made it.
    """
    if store.fs.shared:
        store.fs.make_directory(path)


def read(store: Store, path: str, key: str | None = None) -> KeyClaim | None:
    """Return the last claim in a file, without its lock: a hint. None if there is none, or it cannot be read. `key`: as
    for `last`.
    """
    try:
        fd = store.fs.look_anew(path)
    except OSError as error:
        let_out(error)
        return None
    try:
        return KeyFile(store, store.layout, store.queue_state.key_epochs, fd, path).last(key)
    except OSError as error:
        let_out(error)
        return None
    finally:
        store.fs.close(fd)


def files(store: Store, layout: Layout, epoch: int) -> Iterator[str]:
    """Yield the paths of all files of keys of an epoch, as listings show them."""
    for shard in names.all_shards(layout.shards):
        yield from files_of(store, layout, epoch, shard)


def files_of(store: Store, layout: Layout, epoch: int, shard: names.Shard) -> Iterator[str]:
    """Yield those of one shard."""
    for name in store.fs.names(f"{layout.keys(epoch)}/{shard}"):
        if (digest := names.parse_key_file(name)) is not None and layout.shard(digest) == shard:
            yield layout.key(digest, epoch)


def _timeout(store: Store, path: str, key: str, wait_s: float) -> LockTimeout:
    last = read(store, path)
    who = f" The file last saw {describe(last.holder)}." if last is not None and last.holder else ""
    return LockTimeout(
        f"The key {key!r} of {store.path} has been locked for {wait_s:g} s: a process that inserts a task with it is "
        f"stopped or cut off.{who} The task was not inserted; its insert may be repeated."
    )
