"""Make the logs of an update durable, and their names (docs/design.md, section 4.22)."""

from __future__ import annotations

import os
from collections.abc import Sequence

from fsqueue.filesystem import resources
from fsqueue.format import names
from fsqueue.format.names import Batch
from fsqueue.interruptions import suppress
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

    def sync(self) -> None:
        """Make the appended records durable. OSError: they may not be."""
        if self.fd >= 0:
            self.store.fs.fsync(self.fd)


class LogSyncs:
    """Know of which logs the names are on disk. Threads may share it."""

    def __init__(self) -> None:
        self._named: set[tuple[str, Batch, bool]] = set()
        """Logs, and whether the names of their task files are on disk, too."""

    def sync(self, logs: Sequence[tuple[LogSync, bool, bool]]) -> None:
        """Sync some logs, all at once, and then the directories whose names lead to them. OSError: one of them may not
        be.

        With each log: whether inserts were appended to it, and whether its task file was renamed for them.
        """
        open_logs = [log for log, _, _ in logs if log.fd >= 0]
        if len(open_logs) == 1:
            open_logs[0].sync()
        elif open_logs:
            open_logs[0].store.fs.at_once([log.sync for log in open_logs])
        for log, is_insert, has_new_name in logs:
            self._sync_names(log, is_insert, has_new_name)

    def _sync_names(self, log: LogSync, is_insert: bool, has_new_name: bool) -> None:
        store = log.store
        if store.fs.shared:
            return
        layout, named = store.layout, self._named
        with suppress(FileNotFoundError):  # a purge took it along
            if named.isdisjoint({(store.path, log.batch, False), (store.path, log.batch, True)}):
                store.names.sync(os.path.dirname(layout.log(log.batch)))
            if is_insert and (has_new_name or (store.path, log.batch, True) not in named):
                store.names.sync(os.path.dirname(layout.task_file(names.open_batch_file(log.batch))))
        if len(named) >= NAMED_MAX:
            named.clear()
        named.add((store.path, log.batch, is_insert))
