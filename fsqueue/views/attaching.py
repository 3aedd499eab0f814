"""Acting on a lease that was made elsewhere, by its token."""

from __future__ import annotations

from typing import Any

from fsqueue.errors import LeaseLost, TaskNotFound
from fsqueue.format import names
from fsqueue.format.names import Batch
from fsqueue.format.replay import ReplayState
from fsqueue.leased_task import LeasedTask, Verbs
from fsqueue.protocol import losses
from fsqueue.storage import listing
from fsqueue.storage.store import Store
from fsqueue.views import inspection


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


def attach_unread(queue: Verbs, token: str) -> LeasedTask:
    """Return a task of which no more is known than its token says; InvalidArgument if that is none."""
    task = WithoutPayload(queue, *names.parse_token(token), None, 0, 0, 0, 0)
    task.why = TaskNotFound(not_read(token))
    return task


def not_read(token: str) -> str:
    """Return what is said of the payload of a task that was attached without a look."""
    return f"The payload of {names.task_of(token)} was not read: attach its token with verify=True."


def attach(queue: Verbs, token: str) -> LeasedTask:
    """Return the task that the lease holds.

    InvalidArgument: no token; TaskNotFound: its batch has finished; LeaseLost.
    """
    batch_id, index, lease = names.parse_token(token)  # before the store is asked for
    store = queue.store
    replay_state = _held(store, batch_id, index, lease)
    kind, record, why = LeasedTask, dict[str, Any](), None
    try:
        record = inspection.record_of(store, batch_id, index, replay_state)
    except TaskNotFound as error:
        # If the batch has finished or was purged meanwhile, its file is not damaged: say what became of the lease.
        replay_state = _held(store, batch_id, index, lease)
        kind, why = WithoutPayload, error
    task = kind(
        queue,
        batch_id,
        index,
        lease,
        record.get("payload"),
        replay_state.attempts[index] + 1,
        replay_state.version[index],
        replay_state.since[index],
        queue.generation,
    )
    task.key, task.priority = record.get("key"), record.get("priority")
    if isinstance(task, WithoutPayload) and why is not None:
        task.why = why
    return task


def _held(store: Store, batch: Batch, index: int, lease: str) -> ReplayState:
    """Return the state of a batch in which the lease holds its task. TaskNotFound or LeaseLost if it holds none."""
    store.verify()
    replay_state = listing.read_present_state(store, batch)
    if replay_state is not None and not replay_state.is_whole and not replay_state.named_by([index], lease):
        replay_state = listing.read_replay_state(store, batch)  # only the whole log tells who completed a task
    task_id = names.task_id(batch, index)
    if replay_state is None:
        raise TaskNotFound(
            f"The task {task_id} is not at work in {store.path}: it has finished, was purged, or never leased."
        )
    if not replay_state.named_by([index], lease):  # of a task that an update has frozen, the lease goes on
        token = names.token(batch, index, lease)
        if losses.completed_by(replay_state, index, lease):
            raise LeaseLost(losses.already(task_id), [token], losses.ALREADY)
        reason = losses.why_lost(replay_state, index)
        raise LeaseLost(
            f"The lease of {task_id} holds no longer ({reason}). {losses.DISCARD}",
            [token],
            reason,
        )
    return replay_state
