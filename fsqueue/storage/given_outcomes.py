"""Find out from a log, or from the history, whether an update has happened there (docs/design.md, section 4.22)."""

from __future__ import annotations

from typing import Any

from fsqueue.format import movements, sparse
from fsqueue.format.decisions import LogName
from fsqueue.format.names import Batch, UpdateId
from fsqueue.format.replay import Records, ReplayState
from fsqueue.storage import group_queues, history
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.store import Store


def acted_in(records: Records, update: UpdateId) -> list[tuple[int, dict[str, Any]]]:
    """Return the records of an update that have acted, in their order, each with its offset."""
    return [(offset, record) for offset, record in ReplayState().effective(records) if record.get("update") == update]


def records_of(pieces: list[sparse.Piece]) -> list[tuple[int, dict[str, Any]]]:
    """Return the records of a log, each with its offset."""
    parsed = ((offset, movements.parse(line)) for offset, line, _ in sparse.lines(pieces, 0))
    return [(offset, record) for offset, record in parsed if record is not None]


def is_committed(group: GroupDirectory, name: LogName, update: UpdateId, own: Store) -> bool:
    """Return whether a log of a group has the `commit` of an update, on disk. Call it while no log is locked.

    False if it has not, or if nothing tells any more: the queue was purged or deleted, or keeps no history. `own` is an
    open queue of the group. OSError or FsqueueError: nothing is known, ask again.
    """
    with group_queues.opened(group, name, own) as queue:
        return queue is not None and _has_committed(queue, name.batch, update)


def _has_committed(store: Store, batch: Batch, update: UpdateId) -> bool:
    """Look at a log without its lock: an outcome never changes. One that was removed may have gone to the history."""
    fs = store.fs
    try:
        with fs.closing(fs.look_anew(store.layout.log(batch))) as fd:
            pieces = fs.all_pieces(fd)
            if mark(update) in sparse.content_of(pieces, 0):
                records = records_of(pieces)
                if acted_in(records, update):
                    fs.fsync(fd)  # before any other log gets it: a power loss could take it here alone
                    return True
            if pieces:
                return False
    except FileNotFoundError:
        pass
    return bool(acted_in(history.find(store, batch) or [], update))


def mark(update: UpdateId) -> bytes:
    """Return the bytes that are in the line of each record of an update."""
    return b'"update":"%s"' % update.encode()
