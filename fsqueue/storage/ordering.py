"""The mark in `queue.jsonl` that tells workers that tasks have priorities (docs/format.md; decision 30)."""

from __future__ import annotations

from fsqueue.format.layout import ordered_record
from fsqueue.format.priority import LAST, Rank
from fsqueue.storage.queue_changes import changing
from fsqueue.storage.store import Store


def mark(store: Store, rank: Rank) -> None:
    """Make it known, durably, that tasks have priorities, before one of this rank becomes visible.

    That is one line for the life of the queue. If the process dies right after it, workers compare priorities that no
    task has.
    """
    if rank == LAST or store.queue_state.is_ordered:
        return
    with changing(store, "Nothing was inserted.") as queue_file:
        if not queue_file.state.is_ordered:
            queue_file.append(ordered_record(store.clock.now_ms()))
