"""The movement logs that a process keeps open, so that a batch is opened and replayed once, not once a task."""

from __future__ import annotations

import os
import resource
from collections import OrderedDict
from collections.abc import Iterator

from fsqueue import forks
from fsqueue.filesystem import Filesystem, resources
from fsqueue.format.names import Batch
from fsqueue.storage import jsonl
from fsqueue.storage.durable import DurableNames
from fsqueue.storage.logs import Log
from fsqueue.storage.queue_file import QueueFile

OPEN_LOGS_MAX = 128
"""How many logs a process keeps open, ..."""
SHARE = 4
"""... and no more than this part of the descriptors that it may have: commands and their pipes need the rest."""


class OpenLogs:
    """Open logs by batch. Threads may share it.

    When there are too many, it closes the oldest one that was not used since the last one was closed (second chance).
    So a log that is in use stays open, and finding it costs the hot path no more than a look into a dictionary.
    """

    def __init__(self, fs: Filesystem, queue_file: QueueFile, names: DurableNames, sync: bool) -> None:
        self._fs = fs
        self._queue_file = queue_file
        self._names = names
        self._sync = sync
        self._logs: OrderedDict[Batch, Log] = OrderedDict()
        self._mutex = resources.Mutex()
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._share = OPEN_LOGS_MAX if limit == resource.RLIM_INFINITY else max(2, limit // SHARE)
        forks.register(self, OpenLogs.after_fork)
        self.get = self._logs.get
        """Return the batch's log or None. It may be closed: `log.fd` is below 0 then."""

    def __iter__(self) -> Iterator[Log]:
        return iter(list(self._logs.values()))

    def open(self, batch: Batch, create: bool = False) -> Log:
        """Return a batch's log of the present generation, opened (revalidating) unless it is open.

        FileNotFoundError if there is none.
        """
        log = self._logs.get(batch)
        if log is not None and not log.closed:
            return log
        layout = self._queue_file.layout
        path = layout.log(batch)
        fd = self._fs.open_append(path) if create else self._fs.look(path, os.O_RDWR | os.O_APPEND)
        try:
            jsonl.must_have_one_name(self._fs, fd, path)
            if create and self._sync:
                self._names.secure(fd, path)
        except BaseException:
            self._fs.close(fd)
            raise
        log = Log(self._fs, layout, batch, fd, self._sync)
        old: list[Log] = []
        with self._mutex:
            other = self._logs.get(batch)
            if other is not None and not other.closed:  # another thread was faster
                old, log = [log], other
            else:
                self._logs[batch] = log
                self._logs.move_to_end(batch)
                while len(self._logs) > min(OPEN_LOGS_MAX, self._share):
                    old += self._evict()
        _close(old)
        return log

    def _evict(self) -> list[Log]:
        """Take out the oldest log, unless it was used since the last look at it. Under the mutex."""
        batch, log = self._logs.popitem(last=False)
        if not log.is_used:
            return [log]
        log.is_used = False
        self._logs[batch] = log
        return []

    def drop(self, log: Log) -> None:
        """Close a log and forget it. Its mutex is held."""
        with self._mutex:
            if self._logs.get(log.batch) is log:
                del self._logs[log.batch]
        log.discard()

    def close(self) -> None:
        """Close all logs; what is leased stays leased."""
        with self._mutex:
            logs = list(self._logs.values())
            self._logs.clear()
        _close(logs)

    def after_fork(self) -> None:
        """Forget the logs in a forked child: each of them lets go of its descriptor itself."""
        self._logs.clear()


def _close(logs: list[Log]) -> None:
    """Close logs, once other threads have left their critical sections."""
    for log in logs:
        if log.enter():
            log.discard()
            log.leave()
