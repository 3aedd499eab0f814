"""The mark in `queue.jsonl` that tells workers that tasks have priorities (docs/format.md; decision 30)."""

from __future__ import annotations

from fsqueue.format.layout import ordered_record
from fsqueue.format.priority import LAST, Rank
from fsqueue.storage import queue_changes
from fsqueue.storage.store import Store


def mark(store: Store, rank: Rank) -> None:
    """Make it known, durably, that tasks have priorities, before one of this rank becomes visible.

    That is one line for the life of the queue. If the process dies right after it, workers compare priorities that no
    task has.
    """
    if rank == LAST or store.queue_state.is_ordered:
        return
    record = ordered_record(store.clock.now_ms())
    queue_changes.append(store, lambda state: None if state.is_ordered else record, "Nothing was inserted.")
