"""Make the error that ends an insert of one task. It says whether the task is in the queue.

One of three things is true: the task is not in the queue; the task is in it, but could not be made durable; nobody
knows. The error's `inserted`, `new` and `is_exact` say the same to programs.
"""

from __future__ import annotations

from fsqueue.errors import FsqueueError, QueueNotFound, StorageError, from_os_error
from fsqueue.filesystem import is_gone
from fsqueue.storage.store import Store


class AppendFailed(Exception):
    """An append to an open batch has ended with an error: what is known of its tasks."""

    def __init__(
        self, error: OSError | FsqueueError, new: int = 0, *, is_exact: bool = True, is_safe: bool = True
    ) -> None:
        super().__init__(error)
        self.error = error
        self.new = new
        """Number of the append's first tasks that are in the queue."""
        self.is_exact = is_exact
        """True if none of the append's other tasks is in the queue."""
        self.is_safe = is_safe
        """True if neither a power loss nor a purge that has just begun can still take those tasks."""

    def of_one(self, store: Store) -> FsqueueError:
        """Return the error that the user gets if the append was one of a single task."""
        if not self.is_exact:
            return unknown_error(store, self.error)
        return inserted_error(store, self.error, self.new)


LOOK_FIRST = "Look for it before you insert it again."
"""Advise how to go on when nobody knows whether a task without a key is in the queue."""
NOTHING = "Nothing was inserted; the call may be repeated."
MAY_GO = "A power loss, or a purge that has just begun, may still take {}."
"""The end of an error about tasks that are in the queue, and could not be made durable."""


def inserted_error(store: Store, error: OSError | FsqueueError, new: int = 1) -> FsqueueError:
    """Return the error for a task that is in the queue, though not proven to stay there. `new`: 0 if it was before."""
    return _error_for(
        store, error, f"The task is in the queue: do not insert it again. {MAY_GO.format('it')}", 1, new, True
    )


def unknown_error(store: Store, error: OSError | FsqueueError) -> FsqueueError:
    """Return the error for a task that may be in the queue or not: the inserter cannot tell."""
    failure = _error_for(store, error, f"It is unknown whether the task is in the queue. {LOOK_FIRST}", 0, 0, False)
    failure.advice = LOOK_FIRST
    return failure


def not_inserted_error(store: Store, error: OSError) -> FsqueueError:
    """Return the error for a task that is not in the queue."""
    return _error_for(store, error, NOTHING, 0, 0, True)


def note_none_inserted(error: FsqueueError) -> None:
    """Note in an error that nothing was inserted, unless it says something else. Its text says so already."""
    if error.new is None and error.is_exact:
        error.inserted = error.new = 0


def say_none_inserted(error: FsqueueError) -> None:
    """Say in an error, in its text too, that nothing was inserted."""
    error.args = (f"{error} {NOTHING}", *error.args[1:])
    note_none_inserted(error)


def _error_for(
    store: Store, error: OSError | FsqueueError, then: str, inserted: int, new: int, is_exact: bool
) -> FsqueueError:
    if isinstance(error, OSError):
        gone = store.explain(error, "inserting") if is_gone(error) else None
        failure = (
            gone if isinstance(gone, QueueNotFound) else from_os_error(error, f"inserting into {store.path}", then)
        )
    elif isinstance(error, QueueNotFound):
        failure = error if is_exact else QueueNotFound(f"{error} {then}")
    else:
        failure = StorageError(f"{error} {then}")
    failure.inserted, failure.new, failure.is_exact = inserted, new, is_exact
    return failure
