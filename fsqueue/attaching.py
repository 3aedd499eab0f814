"""Acting on a lease that was made elsewhere, by its token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fsqueue import inspection, names, transitions
from fsqueue.errors import LeaseLost, TaskNotFound
from fsqueue.task import LeasedTask

if TYPE_CHECKING:
    from fsqueue.queue import Queue


class WithoutPayload(LeasedTask):
    """A leased task whose task file is damaged or gone. Its holder has the payload from before, and may end the lease.

    To read `payload` raises TaskNotFound.
    """

    why = TaskNotFound("Its payload cannot be read.")

    @property
    def payload(self) -> Any:
        """Raise TaskNotFound."""
        raise self.why

    @payload.setter
    def payload(self, value: Any) -> None:
        """Ignore it: there is none."""


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
        if transitions.completed_by(ledger, index, lease):
            raise LeaseLost(transitions.already(task_id), [task_id], transitions.ALREADY)
        reason = transitions.why_lost(ledger, index)
        raise LeaseLost(
            f"The lease of {task_id} holds no longer ({reason}). {transitions.NOT_ITS_OWN}",
            [task_id],
            reason,
        )
    kind, payload, why = LeasedTask, None, None
    try:
        payload = inspection.payload_of(store, batch_id, index, ledger)
    except TaskNotFound as error:
        kind, why = WithoutPayload, error
    task = kind(
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
    if isinstance(task, WithoutPayload) and why is not None:
        task.why = why
    return task
