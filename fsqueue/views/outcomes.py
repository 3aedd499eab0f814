"""Say what became of tasks that the command line could not act on: finished, taken over, or unknown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fsqueue.errors import FsqueueError, LeaseLost
from fsqueue.format import names
from fsqueue.format.names import Batch, Shard, TaskFileName
from fsqueue.format.replay import SKIPPED, ReplayState
from fsqueue.interruptions import let_out
from fsqueue.protocol import losses, update_plan
from fsqueue.storage import deadletters, history, listing
from fsqueue.storage.store import Store
from fsqueue.views import inspection

DONE_BEFORE = (losses.ALREADY, update_plan.ALREADY)
"""The reasons of a lost lease, and of a conflict of an update, if the same lease has completed the task before."""
NEVER_LEASED = "it was never leased"


def unknown(store: Store, ids: Iterable[str]) -> list[str]:
    """Return those ids that are neither in the queue, nor in its history, nor among its dead letters. A hint.

    Such a task has finished, and its history was not kept; or it was never inserted.
    """
    wanted = {task_id: names.parse_task_id(task_id) for task_id in ids}
    return [task_id for task_id, became in _outcomes(store, wanted).items() if became is None]


def check_id(task_id: str) -> None:
    """Raise InvalidArgument for what is no id of a task, whether there is one or not."""
    names.parse_task_id(task_id)


class Loss(NamedTuple):
    """Say in a sentence why a lease no longer holds, and whether this very lease has completed its task."""

    why: str
    is_completed: bool = False


def loss_of(error: LeaseLost) -> Loss:
    """Return why a single lease does not hold, as `attach` has said it."""
    return Loss(str(error), error.reason == losses.ALREADY)


def why_lost(store: Store, tokens: Iterable[str]) -> dict[str, Loss | None]:
    """Return for each token why its lease no longer holds; None for an unknown task.

    For batches that have finished, the answer comes from the history.
    """
    leases = {token: names.parse_token(token) for token in tokens}
    outcomes = _outcomes(store, {token: (batch, index) for token, (batch, index, _) in leases.items()})
    reasons: dict[str, Loss | None] = {}
    for token, became in outcomes.items():
        batch, index, lease = leases[token]
        if became is None:
            reasons[token] = None
        elif isinstance(became, ReplayState) and losses.completed_by(became, index, lease):
            reasons[token] = Loss(losses.already(names.task_id(batch, index)), True)
        else:
            reason = losses.why_lost(became, index) if isinstance(became, ReplayState) else became
            reasons[token] = _lost(reason)
    return reasons


def loss_in_state(task_id: str, state: str, is_completed: bool) -> Loss:
    """Return why a lease no longer holds whose batch is not at work, from the state of its task.

    `is_completed`: this very lease has completed it.
    """
    if is_completed:
        return Loss(losses.already(task_id), True)
    return _lost(state if state in ("completed", "dead", "cancelled") else NEVER_LEASED)


def _lost(reason: str) -> Loss:
    return Loss(f"Its lease holds no longer ({reason}). Discard the result.")


def settled_as(store: Store, task_id: str) -> tuple[str, str | None] | None:
    """Return what was done about an ended task: `retried` and the new id, or `purged`; None if nothing was."""
    return deadletters.settled_as(store, task_id)


def is_completed_by(store: Store, token: str) -> bool:
    """Return whether this very lease has completed its task, also in a queue that forgets completed tasks at once.

    A hint: False also if that is not known any more, or cannot be read.
    """
    try:
        loss = why_lost(store, [token])[token]
    except (FsqueueError, OSError) as error:
        let_out(error)
        return False
    return loss is not None and loss.is_completed


def _outcomes(store: Store, wanted: dict[str, tuple[Batch, int]]) -> dict[str, ReplayState | str | None]:
    """Return for each task its batch's replay state, a few words if there is none, or None. Each batch is read once."""
    store.verify()
    inspection.apply_pending(store)
    files: dict[Shard, dict[Batch, TaskFileName]] = {}
    replay_states: dict[Batch, ReplayState | None] = {}
    letters: dict[Shard, set[str]] = {}
    found: dict[str, ReplayState | str | None] = {}
    for key, (batch, index) in wanted.items():
        shard = store.layout.shard(batch)
        if shard not in files:
            files[shard] = listing.task_files(store, shard)
        if batch not in replay_states:
            replay_states[batch] = _replay_state(store, batch, in_history=batch not in files[shard])
        replay_state, file = replay_states[batch], files[shard].get(batch)
        if replay_state is not None and index < replay_state.count and replay_state.state[index] != SKIPPED:
            found[key] = replay_state
        elif replay_state is None and file is not None and index < file.count:
            found[key] = NEVER_LEASED
        else:
            if shard not in letters:
                letters[shard] = deadletters.known(store, shard)
            found[key] = "dead" if names.task_id(batch, index) in letters[shard] else None
    return found


def _replay_state(store: Store, batch: Batch, in_history: bool) -> ReplayState | None:
    replay_state = listing.read_replay_state(store, batch)
    if replay_state is None and in_history and (records := history.find(store, batch)) is not None:
        replay_state = history.replay(records)
    return replay_state
