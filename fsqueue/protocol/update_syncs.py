"""Make the logs of an update durable, and their names (docs/design.md, section 4.22)."""

from __future__ import annotations

import os
from contextlib import suppress

from fsqueue.filesystem import resources
from fsqueue.format import names
from fsqueue.format.names import Batch
from fsqueue.storage.locked_batch import LockedBatch

NAMED_MAX = 4096
"""Maximum number of logs whose names a process remembers to be on disk."""


class LogSync:
    """Sync a log up to what is appended to it next. Make it under the log's lock, before the append: the system tells
    of a failed write only what was open by then.
    """

    __slots__ = ("_kept", "batch", "fd", "store")

    def __init__(self, locked: LockedBatch, is_needed: bool) -> None:
        self.store, self.batch, self.fd = locked.store, locked.batch, -1
        if is_needed and not locked.log.sync:  # else each append is synced
            self.fd = locked.store.fs.look(locked.log.path)
            self._kept = resources.Kept(self.fd, locked.store.fs.drop)


class LogSyncs:
    """Know of which logs the names are on disk. Threads may share it."""

    def __init__(self) -> None:
        self._named: set[tuple[str, Batch, bool]] = set()
        """Logs, and whether the names of their task files are on disk, too."""

    def sync(self, log: LogSync, is_insert: bool, has_new_name: bool) -> None:
        """Make a log durable, and the names that lead to it. OSError: it may not be.

        `is_insert`: inserts were appended to it. `has_new_name`: its task file was renamed for them.
        """
        store = log.store
        if log.fd >= 0:
            store.fs.fsync(log.fd)
        if store.fs.shared:
            return
        layout, named = store.layout, self._named
        with suppress(FileNotFoundError):  # a purge took it along
            if named.isdisjoint({(store.path, log.batch, False), (store.path, log.batch, True)}):
                store.names.sync(os.path.dirname(layout.log(log.batch)))
            if is_insert and (has_new_name or (store.path, log.batch, True) not in named):
                store.names.sync(os.path.dirname(layout.task_file(names.open_batch(log.batch))))
        if len(named) >= NAMED_MAX:
            named.clear()
        named.add((store.path, log.batch, is_insert))
