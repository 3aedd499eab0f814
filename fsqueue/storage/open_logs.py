"""The movement logs that a process keeps open, so that a batch is opened and replayed once, not once a task."""

from __future__ import annotations

import os
import resource
import weakref
from collections import OrderedDict
from collections.abc import Iterator

from fsqueue import forks
from fsqueue.filesystem import Filesystem, resources
from fsqueue.format.names import Batch
from fsqueue.storage import jsonl
from fsqueue.storage.logs import Log
from fsqueue.storage.queue_file import QueueFile

OPEN_LOGS_MAX = 128
"""Maximum number of logs that stay open of one open queue."""
SHARE = 4
"""The logs of a process take one in this many of the descriptors that it may have, those of several queues up to two.

Commands and their pipes need the rest.
"""
OPEN_LOGS_MIN = 2
"""Number of logs of one queue that may stay open in any case."""
_everywhere: weakref.WeakValueDictionary[int, OpenLogs] = weakref.WeakValueDictionary()
"""Those of all queues that are open in this process."""


class OpenLogs:
    """Open logs of one queue, by batch. Threads may share it.

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
        _everywhere[id(self)] = self
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
        path, most = layout.log(batch), self._most()
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
                while len(self._logs) > most:
                    old += self._evict()
        _close(old)
        return log

    def _most(self) -> int:
        """Return how many logs of this queue may stay open, with the one that is being opened: a hint.

        A queue gets what the others leave of the share. If they leave less than an even part, it gets that, as long as
        all have less than two shares. So a queue that keeps many logs and opens none takes not all from the others.
        """
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            return OPEN_LOGS_MAX
        share = limit // SHARE
        others = [count for count in beside(self) if count]
        rest, even = share - sum(others), share // (len(others) + 1)
        return min(OPEN_LOGS_MAX, max(OPEN_LOGS_MIN, rest, min(even, share + rest)))

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


def beside(mine: OpenLogs) -> list[int]:
    """Return how many logs each of the process's other queues has open."""
    found = [reference() for reference in _everywhere.valuerefs()]
    return [len(logs._logs) for logs in found if logs is not None and logs is not mine]


def _close(logs: list[Log]) -> None:
    """Close logs, once other threads have left their critical sections."""
    for log in logs:
        if log.enter():
            log.discard()
            log.leave()


class DurableNames:
    """Sync the names in a queue's directories, each directory's own name and those above it only once."""

    def __init__(self, fs: Filesystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._known: set[str] = set()
        """Directories whose names are known to be durable."""
        self.shards: set[str] = set()
        """Shard directories that are known to be there, and durable."""
        self.replaced: set[object] = set()
        """Versions of files that have replaced others, and whose names are known to be durable."""

    def secure(self, fd: int, path: str) -> None:
        """Make the name of an open file durable, and those of its directories, unless the file has content already.

        Whichever process writes the first byte has done this before. On a shared mount names are durable at once.
        """
        if self._fs.shared or self._fs.fstat(fd).st_size:
            return
        self.sync(os.path.dirname(path))

    def sync(self, directory: str) -> None:
        """Make the names in a directory durable, and once its own and those above it, up to the queue's.

        The queue itself may have been created a moment ago, and its creator not have come so far yet.
        """
        self._fs.sync_directory(directory)
        while directory not in self._known:
            above = os.path.dirname(directory)
            try:
                self._fs.sync_directory(above)
            except PermissionError:
                if directory != self._path:
                    raise
                # the directory that holds the queue is another's matter
            self._known.add(directory)
            if directory == self._path:
                return
            directory = above
