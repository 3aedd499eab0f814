"""Append to `queue.jsonl`: every line but the first comes there through this module (docs/design.md, section 4.20)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fsqueue.clock import Clock, Entropy
from fsqueue.errors import FsqueueError, QueueNotFound
from fsqueue.filesystem import Filesystem
from fsqueue.format.layout import QueueState, end_of_group_mark, group_mark, ordered_record, settings_file
from fsqueue.format.names import QueueId
from fsqueue.format.priority import LAST, Rank
from fsqueue.interruptions import let_out
from fsqueue.storage import journals
from fsqueue.storage.journals import Journal
from fsqueue.storage.queue_file import state_in
from fsqueue.storage.store import Store


class Locked(Journal):
    """The locked `queue.jsonl` of a queue, and what it said when it was locked."""

    __slots__ = ("state",)

    state: QueueState

    def append(self, data: bytes, sync: bool | None = True, read_back: bool = False) -> None:
        """Append a line, durably. After an error the line may be there: see `may_differ`."""
        super().append(data, sync, read_back)

    def may_differ(self) -> bool:
        """Return whether the queue was purged or deleted since the file was locked. True also if it cannot be read."""
        try:
            return state_in(self.fs, self.fd, os.path.dirname(self.path)) != self.state
        except (OSError, FsqueueError) as error:
            let_out(error)
            return True


@contextmanager
def locked(fs: Filesystem, clock: Clock, entropy: Entropy, path: str) -> Iterator[Locked]:
    """Lock the `queue.jsonl` of the queue at `path`, read it, and yield both. The caller compares.

    FileNotFoundError if there is no such file, LockTimeout if it stays locked.
    """
    # A creator that died before it removed the name under which it made the file has left it with two.
    with journals.locked(Locked, fs, clock, entropy, settings_file(path), one_name=False) as queue_file:
        queue_file.state = state_in(fs, queue_file.fd, path)
        yield queue_file


def append(store: Store, line: Callable[[QueueState], bytes | None], untouched: str = "Nothing was changed.") -> bool:
    """Append the line that `line` makes of what `queue.jsonl` says now, durably, and read the file again.

    `line` returns None if the file says what is wanted, or not what is expected. The file is synced then: its writer
    may have died before it did. Return whether a line was appended.

    QueueNotFound if the queue was deleted, or another one was created in its place; `untouched` is its last sentence.
    Other errors as `locked`, and those of `line`.
    """
    with locked(store.fs, store.clock, store.entropy, store.path) as queue_file:
        state = queue_file.state
        if state.closed or state.id != store.queue_state.id or not store.fs.is_in_place():
            raise QueueNotFound(f"The queue {store.path} was deleted just now. {untouched}")
        record = line(state)
        if record is None:
            store.fs.fsync(queue_file.fd)
        else:
            queue_file.append(record)
    store.refresh(now=True)
    return record is not None


def mark_ordered(store: Store, rank: Rank) -> None:
    """Write into `queue.jsonl`, durably, that tasks have priorities, if `rank` is of one. Call it before such a task
    becomes visible.

    That is one line for the life of the queue. If the process dies right after it, workers compare priorities that no
    task has.
    """
    if rank == LAST or store.queue_state.is_ordered:
        return
    record = ordered_record(store.clock.now_ms())
    append(store, lambda state: None if state.is_ordered else record, "Nothing was inserted.")


def mark_group_limits(
    fs: Filesystem, clock: Clock, entropy: Entropy, path: str, group: QueueId, is_limited: bool = True
) -> bool:
    """Mark the queue at `path` as one of a group with limits, durably, or take that mark away.

    Return whether a line was appended.

    Nothing is written into a queue that was not made in `group`, or is deleted. Errors as `locked`.
    """
    with locked(fs, clock, entropy, path) as queue_file:
        state = queue_file.state
        if state.closed or state.group != group:
            return False
        if state.has_group_limits == is_limited:
            fs.fsync(queue_file.fd)  # its writer may have died before it did
            return False
        now_ms = clock.now_ms()
        queue_file.append(group_mark(now_ms) if is_limited else end_of_group_mark(state, now_ms))
    return True
