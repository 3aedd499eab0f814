"""Explain why a lease does not hold, and raise one error for the lost leases of several batches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fsqueue.cluster.identity import describe
from fsqueue.errors import LeaseExpired, LeaseLost
from fsqueue.format import names
from fsqueue.format.layout import QueueState
from fsqueue.format.names import Batch
from fsqueue.format.replay import CANCELLED, COMPLETED, DEAD, LEASED, ReplayState
from fsqueue.leased_task import LeasedTask

ALREADY = LeaseLost.COMPLETED_BEFORE


def why_lost(replay_state: ReplayState, index: int) -> str:
    """Return why a lease on a task does not hold: what has become of the task, for a message."""
    if index >= replay_state.count:
        return "unknown"
    state = replay_state.state[index]
    if state == LEASED:
        holder = replay_state.holder[index]
        return f"taken over by {describe(holder.worker if holder is not None else None)}"
    return {COMPLETED: "completed", DEAD: "dead", CANCELLED: "cancelled"}.get(state, "given back")


EXPIRED = "it ran out before it was renewed"
"""The reason if a lease ran out and no other worker has taken the task over. The task can still be completed."""


DELETED = "the queue was deleted"
PURGED = "purged"
FINISHED = "the batch has finished"
FINISHED_OR_PURGED = "it has finished, or was purged"
FINISHED_OR_DELETED = "it has finished, or its queue was deleted"


def why_unknown(state: QueueState, generation: int) -> str:
    """Return why a lease of a `generation` (0: not known) holds no task of which neither a log nor the history tells.

    The caller has found that such a generation that is known has not ended. A generation's history goes with it.
    """
    if generation:
        return FINISHED
    if state.generation == 1:  # another queue may have been at this path when the lease was given
        return FINISHED_OR_DELETED
    return PURGED if state.settings.keep_history else FINISHED_OR_PURGED


def of_deleted(tasks: Iterable[LeasedTask]) -> LeaseLost:
    """Return the error for leases of a queue that is not there any more."""
    losses = Losses()
    for task in tasks:
        losses.add(task.batch, [task.index], task.lease, DELETED)
    return losses.error()


def completed_by(replay_state: ReplayState, index: int, lease: str) -> bool:
    """Return whether this very lease completed the task. So a worker may repeat a completion that ended in an error."""
    holder = replay_state.holder[index] if index < replay_state.count else None
    return holder is not None and replay_state.state[index] == COMPLETED and holder.id == lease


DISCARD = "Discard the result: this lease cannot settle the task any more."
"""The end of a LeaseLost: what the worker should do."""


def already(tasks: str) -> str:
    """Return the sentence about tasks that the caller's own lease has completed."""
    return f"You have completed {tasks} already, with this lease. That counts, and nothing is left to do."


class Losses:
    """Collect the tasks of several batches whose leases do not hold, and raise one error for all of them."""

    def __init__(self) -> None:
        self.tokens: list[str] = []
        self.expired: list[str] = []
        """Leases that ran out, and whose tasks no other worker has leased since, by the log."""
        self.reasons: set[str] = set()

    def add(self, batch: Batch, indices: Iterable[int], lease: str, reason: str) -> None:
        """Record tasks that a lease has lost; `reason` is EXPIRED if no other worker has taken them."""
        kind = self.expired if reason == EXPIRED else self.tokens
        kind += [names.token(batch, index, lease) for index in indices]
        self.reasons.add(reason)

    def join(self, others: Losses) -> None:
        """Add what another `Losses` has collected."""
        self.tokens += others.tokens
        self.expired += others.expired
        self.reasons |= others.reasons

    def check(self) -> None:
        """Raise LeaseLost if any task was added; LeaseExpired if all of them were added as EXPIRED."""
        if self.tokens or self.expired:
            raise self.error()

    def error(self) -> LeaseLost:
        """Return the error that `check` raises."""
        said = []
        if self.tokens:
            why = ", ".join(sorted(self.reasons - {EXPIRED}))
            if why == ALREADY:
                said.append(already(_some(self.tokens)))
            else:
                said.append(f"The lease of {_some(self.tokens)} holds no longer ({why}). {DISCARD}")
        if self.expired:
            said.append(
                f"The lease of {_some(self.expired)} ran out before it was renewed. No worker has taken it over yet: a "
                "completion counts until one does."
            )
        kind = LeaseLost if self.tokens else LeaseExpired
        return kind(" ".join(said), self.tokens + self.expired, ", ".join(sorted(self.reasons)))


def _some(tokens: Sequence[str]) -> str:
    tasks = [names.task_of(token) for token in tokens]
    return tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks ({tasks[0]}, ...)"
