"""The mark in `queue.jsonl` that tells workers that tasks have priorities (docs/format.md; decision 30)."""

from __future__ import annotations

import os

from fsqueue.errors import QueueNotFound
from fsqueue.format import sparse
from fsqueue.format.layout import ordered_record, read_queue_state
from fsqueue.format.priority import LAST, Rank
from fsqueue.storage import jsonl
from fsqueue.storage.store import Store


def mark(store: Store, rank: Rank) -> None:
    """Make it known, durably, that tasks have priorities, before one of this rank becomes visible.

    That is one line for the life of the queue. If the process dies right after it, workers compare priorities that no
    task has.
    """
    if rank == LAST or store.queue_state.is_ordered:
        return
    fs, path = store.fs, store.layout.settings_file
    with jsonl.held(fs, store.clock, store.entropy, path, flags=os.O_APPEND) as fd:
        queue_state = read_queue_state(sparse.joined(fs.all_pieces(fd)), store.path)
        if queue_state.closed or queue_state.id != store.queue_state.id:
            raise QueueNotFound(f"The queue {store.path} was deleted just now. Nothing was inserted.")
        if not queue_state.is_ordered:
            jsonl.append(fs, fd, ordered_record(store.clock.now_ms()), True)
    store.refresh(now=True)
