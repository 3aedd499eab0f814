"""The movement logs that a process keeps open, so that a batch is opened and replayed once, not once a task."""

from __future__ import annotations

import math
import os
import resource
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from typing import Protocol

from fsqueue import forks
from fsqueue.clock import Clock
from fsqueue.filesystem import Filesystem, idle_files, resources
from fsqueue.format.names import Batch
from fsqueue.storage.journals import Journal
from fsqueue.storage.logs import Log
from fsqueue.storage.queue_file import QueueFile
from fsqueue.weak_table import WeakTable

OPEN_LOGS_MAX = 128
"""Maximum number of logs that stay open of one open queue."""
SHARE = 4
"""The logs of a process take one in this many of the descriptors that it may have, those of several queues up to two.

Commands and their pipes need the rest.
"""
OPEN_LOGS_MIN = 2
"""Number of logs of one queue that may stay open in any case."""
UNUSED_S = 10.0
"""Seconds without use after which a process that finds nothing to do closes a log, within twice this time."""
SELDOM_S = 1.0
"""Shortest time between two looks for logs to close, of a process that renews leases. Renewals may follow each other at
once, and each look asks the system about each open log.
"""
CHECKED = 2
"""Number of other logs that are looked at when one is opened. With one, those of finished batches would become no fewer
in a process that leaves each log behind.
"""
_everywhere: WeakTable[OpenLogs, None] = WeakTable()
"""The open logs of all queues that are open in this process."""


class Follower(Protocol):
    """Has a descriptor of a log besides the one that `OpenLogs` has."""

    def let_go(self) -> None:
        """Close what an object keeps open of a batch, if the batch has finished."""


class OpenLogs:
    """Open logs of one queue, by batch. Threads may share it.

    When there are too many, it closes the oldest one that was not used since the last one was closed (second chance).
    So a log that is in use stays open, and finding it costs the hot path no more than a look into a dictionary.

    The process that finishes a batch closes its log. Other processes close theirs when they next find nothing to do
    (`let_go`), or open further logs.
    """

    def __init__(self, fs: Filesystem, queue_file: QueueFile, names: DurableNames, sync: bool, clock: Clock) -> None:
        self._fs = fs
        self._clock = clock
        self._queue_file = queue_file
        self._names = names
        self._sync = sync
        self._logs: OrderedDict[Batch, Log] = OrderedDict()
        self._mutex = resources.Mutex()
        self._passed_at = -math.inf
        """Time at which `let_go` last began to look for logs that are not used (monotonic clock)."""
        self._let_go_at = -math.inf
        """Time at which `let_go_seldom` last called `let_go` (monotonic clock)."""
        self.followers: WeakTable[Follower, None] = WeakTable()
        """Objects beside the logs that have descriptors of the queue's logs."""
        _everywhere[self] = None
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
            Journal(self._fs, path, fd).must_have_one_name(self._fs.fstat(fd))
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
        if len(self._logs) > 1:
            self._check_oldest(log)
        return log

    def _check_oldest(self, opened: Log) -> None:
        """Close a few of the logs that were opened or looked at first, if their batches have finished.

        A process with enough to do may never call `let_go`. It keeps few logs of finished batches all the same.
        """
        with self._mutex:
            oldest = [*islice(self._logs.values(), CHECKED)]
            for log in oldest:
                self._logs.move_to_end(log.batch)
        for log in oldest:
            if log is not opened:
                self._close_unless(log, is_needed=True)

    def let_go(self) -> None:
        """Close logs that the process does not seem to need, in all its queues. Call it when there is nothing to do.

        These are the logs of batches that have finished, and those that were not used for a while. A log that another
        thread uses at this moment stays.
        """
        for logs in (self, *beside(self)):
            logs.let_go_of_own()

    def let_go_seldom(self) -> None:
        """Do what `let_go` does, unless this queue has done so within a second: for callers that come often."""
        now = self._clock.monotonic()
        if now - self._let_go_at >= SELDOM_S:
            self._let_go_at = now
            self.let_go()

    def let_go_of_own(self) -> None:
        """Do what `let_go` does in this queue."""
        for follower in self.followers.living():
            follower.let_go()
        if not self._logs:
            return
        now = self._clock.monotonic()
        marks = now - self._passed_at >= UNUSED_S
        for log in self:
            self._close_unless(log, is_needed=log.is_used or not marks)
            if marks:
                log.is_used = False
        if marks:
            self._passed_at = now

    def _close_unless(self, log: Log, is_needed: bool) -> None:
        """Close a log of a batch that has finished, and one that is not needed. If another thread uses it, leave it.

        A log with records of an undecided update stays: it knows since when this process waits for the decision.
        """
        if is_needed and not log.has_finished():  # another thread may close it just now: asked again below
            return
        if log.enter(0):
            try:
                if log.has_finished() or not (is_needed or log.replay_state.prepared):
                    self.drop(log)
            finally:
                log.leave()

    def make_room(self) -> None:
        """Close each log that no thread uses at this moment; if there is none, the queue's file. Both are opened anew.

        A log with records of an undecided update stays, as in `let_go`.
        """
        for follower in self.followers.living():
            follower.let_go()
        before = len(self._logs)
        for log in self:
            self._close_unless(log, is_needed=False)
        if len(self._logs) == before:
            self._queue_file.forget()

    def _most(self) -> int:
        """Return how many logs of this queue may stay open, with the one that is being opened: a hint.

        A queue gets what the others leave of the share. If they leave less than an even part, it gets that, as long as
        all have less than two shares. So a queue that keeps many logs and opens none takes not all from the others.
        """
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            return OPEN_LOGS_MAX
        share = limit // SHARE
        others = [count for logs in beside(self) if (count := len(logs._logs))]
        rest, even = share - sum(others), share // (len(others) + 1)
        return min(OPEN_LOGS_MAX, max(OPEN_LOGS_MIN, rest, min(even, share + rest)))

    def _evict(self) -> list[Log]:
        """Take the oldest log out of the open ones, unless it was used since the last look at it. Under the mutex."""
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


def let_go() -> None:
    """Do what `OpenLogs.let_go` does, where no queue is at hand."""
    for logs in beside(None):
        logs.let_go_of_own()


def _make_room() -> None:
    for logs in beside(None):
        logs.make_room()


idle_files.add(_make_room)


def beside(mine: OpenLogs | None) -> list[OpenLogs]:
    """Return the open logs of the process's other queues."""
    return [logs for logs in _everywhere.living() if logs is not mine]


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
