"""Acting on a lease that was made elsewhere, by its token."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fsqueue import inspection, names, transitions
from fsqueue.errors import LeaseLost, TaskNotFound
from fsqueue.task import LeasedTask

if TYPE_CHECKING:
    from fsqueue.queue import Queue


def attach(queue: Queue, token: str) -> LeasedTask:
    """The task that the lease holds. InvalidArgument: no token; TaskNotFound: its batch has finished; LeaseLost."""
    store = queue.store
    batch_id, index, lease = names.parse_token(token)
    store.verify()
    ledger = inspection.read_ledger(store, batch_id)
    task_id = names.task_id(batch_id, index)
    if ledger is None:
        raise TaskNotFound(
            f"The task {task_id} is not at work in {store.path}: it has finished, was purged, or never leased."
        )
    if not ledger.holds(index, lease):
        reason = transitions.why_lost(ledger, index)
        raise LeaseLost(
            f"The lease of {task_id} holds no longer ({reason}). Drop the result: the task is somebody else's.",
            [task_id],
            reason,
        )
    payload = inspection.payload_of(store, batch_id, index, ledger)
    return LeasedTask(
        queue,
        batch_id,
        index,
        lease,
        payload,
        ledger.attempts[index] + 1,
        ledger.version[index],
        ledger.since[index],
        queue.generation,
    )
