"""Stuck lock holders: which locks of a queue are held for long, and by which process, if that can be told.

A process that is stopped inside a critical section keeps its lock. The kernel does not tell which process has a lock
of an open file description, least of all on another host. So these hints are put together: whether the file is locked;
when it was last written; for a batch's log, by which worker; on this host, the locks that each process shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from fsqueue.cluster.identity import describe
from fsqueue.errors import FsqueueError
from fsqueue.filesystem import Filesystem
from fsqueue.filesystem.processes import Holder, holders_of
from fsqueue.format import names, numbers
from fsqueue.format.decisions import path_of
from fsqueue.format.replay import ReplayState
from fsqueue.interruptions import let_out
from fsqueue.storage import commits, counters, decisions, history, listing
from fsqueue.storage import number_table as stored_numbers
from fsqueue.storage.store import Store

QUIET_S = 2.0
"""A file that was written to more recently is at work: its lock is not looked at."""
LOOKS, LOOK_PAUSE_S = 8, 0.05
"""Number of looks, and the pause between them. A lock that is taken at each is stuck: others are held for moments."""


@dataclass(slots=True)
class StuckLock:
    """A lock that stays taken. `written`: when the file was last written to, in Unix seconds.

    `worker` is whom the batch's log saw last, on whichever host; `holders` are the processes of this host that hold
    the lock, if it is one of this host's (and this user may know).
    """

    what: str
    path: str
    written: float
    worker: dict[str, Any] | None = None
    holders: list[Holder] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name."""
        return asdict(self)

    def __str__(self) -> str:
        if self.holders:
            who = "held here by " + ", ".join(
                f"process {holder.pid} ({holder.state}: {holder.command})" for holder in self.holders
            )
        elif self.worker is not None:
            who = f"last seen in it: {describe(self.worker)}"
        else:
            who = "its holder is on another host, or another user's"
        return f"{self.what}: {who}"


def of_queue(path: str) -> list[StuckLock]:
    """Return the stuck locks of the queue at `path`; QueueNotFound and the like if there is none."""
    return of_store(Store(path))


def of_store(store: Store) -> list[StuckLock]:
    """Return the stuck locks of an open queue: of batches, counters, dead letters, the history and `queue.jsonl`; and
    of the decision files and the last numbers of its group.

    Nothing is locked for this. Costs an open, and where a file is quiet a question to the file server, for each file.
    """
    store.refresh()
    files = [*((store.fs, what, path) for what, path in _files(store)), *_files_of_group(store)]
    suspects = [each for each in files if _is_suspect(store, each[0], each[2])]
    for _ in range(LOOKS if suspects else 0):
        store.clock.sleep(LOOK_PAUSE_S)
        suspects = [each for each in suspects if _is_suspect(store, each[0], each[2])]
    found = (_describe(*each) for each in suspects)
    return [lock for lock in found if lock is not None]


def _files_of_group(store: Store) -> Iterator[tuple[Filesystem, str, str]]:
    """Yield what may be locked of the queue's group, if it lies in one, with what gives access to it."""
    if store.queue_state.group is None:
        return
    try:
        group = decisions.group_of(store)
    except (OSError, FsqueueError) as error:
        let_out(error)
        return  # it was moved elsewhere: that is fsck's matter
    for name in decisions.files(group):
        yield group.fs, f"decision file {name}", path_of(group.path, name)
    for place in stored_numbers.files(group)[-1:]:
        yield group.fs, "numbers of tasks", numbers.path_of(group.path, names.number_file(place))


def _files(store: Store) -> Iterator[tuple[str, str]]:
    """Yield what may be locked, and where it is."""
    layout, fs = store.layout, store.fs
    yield "queue.jsonl", layout.settings_file
    for number in counters.NUMBERS:
        yield f"counter {number}", layout.counter(number)
    yield "counter of batches that ended by cancelled tasks", layout.cancelled
    for shard in listing.shards(store):
        yield f"dead letters of shard {shard}", layout.dead(shard)
    for batch in listing.with_logs(store):
        yield f"batch {batch}", layout.log(batch)
    for identity in commits.proposals(store, layout):
        yield f"proposal of a commit {identity}", layout.proposal(identity)
    for text in fs.names(layout.staging):
        if (attempt := names.parse_attempt(text)) is not None:
            yield f"attempt of a commit {text}", f"{layout.attempt(*attempt)}/{commits.LOCK}"
    for day in history.days(store)[-2:]:  # no process writes to earlier ones any more
        for shard in history.shards_of(store, day):
            yield f"history of shard {shard} on {day}", layout.history(day, shard)


def _is_suspect(store: Store, fs: Filesystem, path: str) -> bool:
    """Return whether a file is locked although no process has written to it for a while."""
    try:
        with fs.closing(fs.look(path)) as fd:
            quiet_ms = store.clock.now_ms() - fs.fstat(fd).st_mtime_ns / 1e6
            return quiet_ms > QUIET_S * 1000 and fs.is_locked(fd)
    except OSError as error:
        let_out(error)
        return False


def _describe(fs: Filesystem, what: str, path: str) -> StuckLock | None:
    try:
        fd = fs.look_anew(path)
    except OSError as error:
        let_out(error)
        return None
    with fs.closing(fd):
        status = fs.fstat(fd)
        lock = StuckLock(what, path, status.st_mtime, holders=holders_of(status.st_dev, status.st_ino))
        if what.startswith("batch "):
            replay_state = ReplayState()
            replay_state.replay_pieces(fs.pieces(fd, 0), 0)
            latest = max(replay_state.leases.values(), key=lambda lease: lease.at, default=None)
            lock.worker = latest.worker if latest is not None else None
        return lock
