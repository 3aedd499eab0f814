"""Read and append to the files of keys, which say which task has a key (docs/format.md, "Keys").

Only inserters, upkeep and fsck read them. A process appends under the file's lock, after it has looked whether the path
still names the file. On a disk of this host upkeep removes the files of free keys one by one; on a network mount it
removes them with the directory of their key epoch.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

from fsqueue.cluster.identity import describe
from fsqueue.errors import LockTimeout
from fsqueue.filesystem import Filesystem, resources
from fsqueue.format import keys, names
from fsqueue.format.keys import KeyClaim
from fsqueue.format.layout import KeyEpochs, Layout
from fsqueue.interruptions import let_out
from fsqueue.storage import journals
from fsqueue.storage.journals import Journal
from fsqueue.storage.store import Store

LOOK_BYTES_MAX = 1 << 20
"""Maximum number of bytes from the end in which the last line that can be read is looked for."""
BYTES_MAX = 64 << 10
"""A longer file of a free key is begun anew: on a disk of this host by the next process that inserts with the key, on
a network mount with the next key epoch.
"""


class KeyFile(Journal):
    """The file of a key, open and locked, and named so by its path when it was locked."""

    __slots__ = ("_key", "_store", "_whole_to", "epochs", "layout")

    def __init__(
        self, store: Store, layout: Layout, epochs: KeyEpochs, key: str | None, fs: Filesystem, path: str, fd: int
    ) -> None:
        super().__init__(fs, path, fd)
        self._store = store
        self._key = key
        self._whole_to = -1
        """Where the file's last line ends, if it was read under the lock, and is no torn one."""
        self.layout = layout
        self.epochs = epochs

    def is_in_place(self) -> bool:
        """Return whether the path names the locked file: on a local disk, whether the file has a name.

        Only its lock's holder unlinks it. A purge, or the end of a key epoch, renames a directory above it: the
        inserter asks for that later. On a network mount this would not do: a process of this host that has an unlinked
        file open keeps it under another name.
        """
        return self.size is not None or super().is_in_place()

    def busy(self, wait_s: float) -> LockTimeout:
        """Return the error for a lock that stayed busy. It names the process that was the last to write."""
        if self._key is None:
            return super().busy(wait_s)
        last = read(self._store, self.path)
        who = f" The file last saw {describe(last.holder)}." if last is not None and last.holder else ""
        return LockTimeout(
            f"The key {self._key!r} of {self._store.path} has been locked for {wait_s:g} s: a process that inserts a "
            f"task with it is stopped or cut off.{who} The task was not inserted; its insert may be repeated."
        )

    def last(self, key: str | None = None) -> KeyClaim | None:
        """Return the last claim in a file of a key; None if there is none. A line of any other key than the
        file's does not count.
        """
        size = self.size
        lines: Iterable[bytes]
        if size == 0:
            return None
        if size is None or size > journals.PAGE_BYTES:
            lines = (line for _, line in self.lines_from_end(LOOK_BYTES_MAX))
        else:  # as in most cases
            data = self.fs.pread(self.fd, size, 0)
            self._whole_to = size if len(data) == size and data.endswith(b"\n") else -1
            lines = reversed(data.split(b"\n")[:-1])
        for line in lines:
            claim = keys.parse(line)
            if claim is not None and (self._is_named_by(claim) if key is None else claim.key == key):
                return claim
        return None

    def end_of_torn(self, size: int) -> bytes:
        """Return the bytes that close off a torn line. They are not looked for if `last` has seen the end just now."""
        return b"" if size == self._whole_to else super().end_of_torn(size)

    def _is_named_by(self, claim: KeyClaim) -> bool:
        return self.path.endswith(f"/{names.key_file(names.key_digest(claim.key))}")

    def has_no_line(self) -> bool:
        """Return whether not even one whole line is in the file."""
        return not any(True for _ in self.lines_at())

    def add(self, claim: KeyClaim, sync: bool = False) -> None:
        """Append a claim to the file of a key, and sync the claim and the file's name. OSError or StorageError: the
        lock may be lost.

        After an error nothing may be inserted under this lock. `sync`: even if the queue's own inserts are not synced.
        """
        sync = sync or self._store.sync_inserts
        if sync and not self.size:
            self._store.names.secure(self.fd, self.path)
        self.append(keys.encode(claim), sync, read_back=self.fs.shared)

    def remove(self) -> bool:
        """Unlink the file. Return False if it is gone. Only for a key that is free, and not on a network mount.

        There the lock can be lost, and the removal be late: it would remove a file that another process has begun.
        """
        return self.fs.unlink(self.path)

    def is_current(self) -> bool:
        """Return whether the file is where claims are written still: no purge, and no key epoch, has begun since."""
        store = self._store
        store.verify()
        state = store.queue_state
        return state.generation == self.layout.generation and state.key_epochs == self.epochs


def locked(
    store: Store, layout: Layout, key: str, wait_s: float = journals.LOCK_TIMEOUT_S
) -> AbstractContextManager[KeyFile]:
    """Open the file of a key, making it, and lock it.

    LockTimeout names the process that was the last to write to it. FileNotFoundError: the generation has gone.
    """
    epochs = store.queue_state.key_epochs
    path, kind = layout.key(names.key_digest(key), epochs.present), partial(KeyFile, store, layout, epochs, key)
    how = journals.MADE, journals.ANEW  # upkeep, or another inserter, may have removed it just before it was locked
    return journals.locked(kind, store.fs, store.clock, store.entropy, path, wait_s, *how)


class LockedKeys:
    """Open and lock the files of several keys, and close them at the end of a `with` block. No lock is waited for: a
    process that waits for a key has no other one locked.
    """

    def __init__(self, store: Store, layout: Layout) -> None:
        self._store, self._layout, self._epochs = store, layout, store.queue_state.key_epochs
        self._sections: dict[KeyFile, resources.Closing] = {}

    def __enter__(self) -> LockedKeys:
        return self

    def __exit__(self, kind: object, error: object, at: object) -> None:
        while self._sections:
            self.let_go(next(reversed(self._sections)))

    def lock(self, key: str) -> KeyFile:
        """Open the file of a key, making it, and lock it. LockTimeout if another process has it locked; OSError."""
        store, layout, fs = self._store, self._layout, self._store.fs
        path = layout.key(names.key_digest(key), self._epochs.present)
        section = fs.unlocking(fs.open_append(path))
        file = KeyFile(store, layout, self._epochs, key, fs, path, section.__enter__())
        self._sections[file] = section
        file.take_lock(store.clock, store.entropy, 0.0, one_name=True)
        if not file.is_in_place():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return file

    def let_go(self, file: KeyFile) -> None:
        """Unlock and close one of the files."""
        self._sections.pop(file).__exit__(None, None, None)


def add_all(store: Store, claims: Sequence[tuple[KeyFile, KeyClaim]]) -> None:
    """Append a claim to each of several files, all locked, and sync all claims and the files' names. OSError or
    StorageError: as of `KeyFile.add`.

    Names are synced before any claim is written: a file with content has a durable name. Then all claims are written
    before the first one is synced, so that a journaling filesystem writes them together.
    """
    fs = store.fs
    if fs.shared or not store.sync_inserts:
        for file, claim in claims:
            file.add(claim)
        return
    empty = [file for file, _ in claims if not file.length()]
    directories = dict.fromkeys(os.path.dirname(file.path) for file in empty)
    fs.at_once([partial(store.names.sync, directory) for directory in directories])
    for file, claim in claims:
        file.append(keys.encode(claim))
    for file, _ in claims:
        fs.drop_cached(file.fd)  # begins to write it, and does not wait
    for file, _ in claims:
        fs.fsync(file.fd)


def locked_existing(
    store: Store, layout: Layout, path: str, wait_s: float, key: str | None = None
) -> AbstractContextManager[KeyFile]:
    """Open an existing file of a key, and lock it. FileNotFoundError if it is gone; LockTimeout."""
    kind = partial(KeyFile, store, layout, store.queue_state.key_epochs, key)
    return journals.locked(kind, store.fs, store.clock, store.entropy, path, wait_s, one_name=False)


def earlier(store: Store, file: KeyFile, key: str, wait_s: float = journals.LOCK_TIMEOUT_S) -> KeyClaim | None:
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
        with locked_existing(store, layout, path, wait_s, key) as before:
            return before.last(key)
    except FileNotFoundError:
        return None


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
    epochs = store.queue_state.key_epochs
    try:
        with store.fs.closing(store.fs.look_anew(path)) as fd:
            return KeyFile(store, store.layout, epochs, key, store.fs, path, fd).last(key)
    except OSError as error:
        let_out(error)
        return None


def files(store: Store, layout: Layout, epoch: int) -> Iterator[str]:
    """Yield the paths of all files of keys of an epoch, as listings show them."""
    for shard in names.all_shards(layout.shards):
        yield from files_of(store, layout, epoch, shard)


def files_of(store: Store, layout: Layout, epoch: int, shard: names.Shard) -> Iterator[str]:
    """Yield the paths of the files of keys of an epoch in one shard."""
    for name in store.fs.names(f"{layout.keys(epoch)}/{shard}"):
        if (digest := names.parse_key_file(name)) is not None and layout.shard(digest) == shard:
            yield layout.key(digest, epoch)
