"""Change `queue.jsonl`: lock it, compare it with what is known, append a line, and read it again.

Creating, purging and deleting a queue have steps of their own under this lock (`administration`, `overwriting`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fsqueue.errors import QueueNotFound
from fsqueue.format import sparse
from fsqueue.format.layout import QueueState, read_queue_state
from fsqueue.storage import jsonl
from fsqueue.storage.store import Store


@dataclass(frozen=True, slots=True)
class Locked:
    """Hold the locked `queue.jsonl`, and what it says now."""

    store: Store
    fd: int
    state: QueueState

    def append(self, record: bytes) -> None:
        """Append a line, durably. After an error the line may be there, or not: reading the file tells."""
        jsonl.append(self.store.fs, self.fd, record, True)


@contextmanager
def changing(store: Store, untouched: str = "Nothing was changed.") -> Iterator[Locked]:
    """Lock `queue.jsonl`, and yield it with what it says now; read it again at the end.

    QueueNotFound if the queue was deleted, or another one was created in its place; `untouched` is its last sentence.
    FileNotFoundError if there is no such file, LockTimeout if it stays locked.
    """
    fs, path = store.fs, store.layout.settings_file
    with jsonl.held(fs, store.clock, store.entropy, path, flags=os.O_APPEND) as fd:
        state = read_queue_state(sparse.joined(fs.all_pieces(fd)), store.path)
        if state.closed or state.id != store.queue_state.id or not fs.is_in_place():
            raise QueueNotFound(f"The queue {store.path} was deleted just now. {untouched}")
        yield Locked(store, fd, state)
    store.refresh(now=True)
