"""Notice that a queue's directory may be a copy of the one that the queue was made in (docs/decisions/0054)."""

from __future__ import annotations

from fsqueue.format import layout
from fsqueue.format.layout import DirectoryIdentity, QueueState
from fsqueue.storage import queue_changes
from fsqueue.storage.store import Store


def is_copy(store: Store) -> bool:
    """Return whether the directory is another one than the queue's file tells of. A hint: the page says when it errs.

    False if the file tells of none. Three system calls, and a look at the mounts. OSError.
    """
    recorded = store.queue_state.place
    return recorded is not None and _is_other(recorded, store.fs.place(store.path))


def accept(store: Store) -> bool:
    """Have this directory count as the queue's, durably. Return False, with nothing changed, if it does already.

    Errors as `queue_changes.append`.
    """

    def line(state: QueueState) -> bytes | None:
        place = store.fs.place(store.path)
        if state.place is not None and not _is_other(state.place, place):
            return None
        return layout.place_record(place, store.clock.now_ms()) or None

    return queue_changes.append(store, line)


def _is_other(recorded: DirectoryIdentity, found: tuple[int, int | None] | None) -> bool:
    return found is not None and recorded.is_other(DirectoryIdentity(*found))
