"""Find out under a log's lock whether an update has happened there, and say it (docs/design.md, section 4.22)."""

from __future__ import annotations

from typing import Any

from fsqueue.errors import StorageError
from fsqueue.format.names import Batch, UpdateId
from fsqueue.storage import history, journals
from fsqueue.storage.given_outcomes import acted_in, records_of
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.store import Store

HOW_TO_FIND_OUT = (
    "Look at one of its tasks with 'fsqueue show': all of the update has happened, or nothing of it. If it ends a "
    "task, applying it again is safe."
)
"""Advise how to go on when nobody knows whether an update has happened."""


def acted(
    store: Store, batch: Batch, update: UpdateId, wait_s: float = journals.LOCK_TIMEOUT_S
) -> list[tuple[int, dict[str, Any]]] | None:
    """Return the records of an update that have acted in a batch, each with its offset: none, if it is prepared or
    void; None if nothing tells.

    LockTimeout; OSError.
    """
    try:
        with LockedBatch(store, batch, wait_s) as locked:
            return acted_in(records_of(store.fs.all_pieces(locked.log.fd)), update)
    except FileNotFoundError:
        store.refresh(now=True)
        records = history.find(store, batch)
    return None if records is None else acted_in(records, update)


def unknown(error: BaseException) -> StorageError:
    """Return the error for an update that may have happened or not: its process cannot tell."""
    failure = StorageError(f"It is unknown whether the update has happened: {error} {HOW_TO_FIND_OUT}")
    failure.advice = HOW_TO_FIND_OUT
    return failure


def not_durable(error: BaseException) -> StorageError:
    """Return the error for an update that has happened, and that a power loss may still take."""
    return StorageError(
        f"The update has happened, and could not be made durable: {str(error).rstrip('.')}. A power loss may take it. "
        "Do not apply it again."
    )
