"""Stops of campaigns whose jobs replace themselves: lines of `queue.jsonl` (docs/format.md, "`queue.jsonl`").

A campaign notes how many such lines there are when it begins, and has ended as soon as there is another number. No
clock is compared. docs/decisions/0062-jobs-that-replace-themselves.md tells the rest.
"""

from __future__ import annotations

from fsqueue.cluster.identity import user_of_this_process
from fsqueue.format import layout
from fsqueue.storage import queue_changes
from fsqueue.storage.store import Store


def stop(store: Store) -> None:
    """End, durably, all campaigns that have begun. Errors as `queue_changes.append`."""
    by = user_of_this_process()
    queue_changes.append(store, lambda _: layout.stop_record(by, store.clock.now_ms()))


def count(store: Store) -> int:
    """Return how often campaigns were stopped, as the file says now. QueueNotFound, NotAQueue, OSError."""
    store.refresh(now=True)
    return store.queue_state.stops
