"""Change the priority or the time of tasks that wait (docs/design.md, section 4.24; decision 67).

One record in the batch's log does it: the tasks keep their ids, their keys and their attempts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fsqueue.format import movements, names
from fsqueue.format.models import ChangeReport
from fsqueue.format.names import Batch, TaskFileName
from fsqueue.format.priority import LAST, Priority, Rank, rank_of
from fsqueue.format.replay import AVAILABLE, LEASED, ReplayState
from fsqueue.protocol import deciding, finishing, transitions
from fsqueue.storage import journals, queue_changes, record_times
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.store import Store


class NewValues(NamedTuple):
    """Values that waiting tasks get: another priority, another time."""

    priority: Sequence[Priority | None]
    """The priority, None for none. Nothing if it stays."""
    delay_ms: int | None
    """Number of milliseconds from now until the tasks are available. None if that stays, or is an absolute time."""
    available_at: int | None
    """Time from which on the tasks are available, as an absolute time (ms)."""
    only_due: int | None = None
    """Only tasks that are due at this very time (ms) get anything. None: all."""

    @property
    def rank(self) -> Rank:
        """Return the rank of the new priority; LAST if it stays."""
        return rank_of(self.priority[0]) if self.priority else LAST


def begin(store: Store, values: NewValues) -> None:
    """Write into `queue.jsonl` that tasks have priorities, before the first task gets one: workers compare them
    from then on.
    """
    queue_changes.mark_ordered(store, values.rank)


def change(store: Store, batch: Batch, indices: Sequence[int], values: NewValues) -> ChangeReport:
    """Change waiting tasks of a batch. Return what became of them.

    Tasks of an update that is not decided are waited for. LockTimeout. Call `begin` before.
    """
    name = transitions.file_of_waiting(store, batch)
    if name is None:
        return ChangeReport()
    waiting = deciding.DecisionWait(store, batch, journals.LOCK_TIMEOUT_S)
    try:
        while True:
            with LockedBatch(store, batch, waiting.wait_s, create=True) as locked:
                if not transitions.begin_waiting(locked, name):
                    return ChangeReport()
                wanted = deciding.freezing(locked, indices)
                if not wanted:
                    return _change_in(locked, indices, values)
            waiting.out(wanted)
    except FileNotFoundError:
        return ChangeReport()


def _change_in(locked: LockedBatch, indices: Sequence[int], values: NewValues) -> ChangeReport:
    replay_state = locked.replay_state
    at = record_times.next_at(locked)
    known = sorted(index for index in set(indices) if index < replay_state.count)
    free = [index for index in known if replay_state.is_free(index, at)]
    held = [index for index in known if replay_state.state[index] == LEASED and index not in free]
    if values.only_due is not None:
        free = replay_state.due_at(free, values.only_due)
    if free and locked.read_lines() is None:
        finishing.bury_lost(locked)  # no worker could get them: the task file is gone
        free = []
    if free:
        store = locked.store
        available_at = values.available_at if values.delay_ms is None else at + values.delay_ms
        first = min(_available_from(replay_state, index, at, available_at) for index in free)
        promise(locked, values.rank, first, at)
        versions = [replay_state.version[index] for index in free]
        locked.log.write(movements.change(at, free, versions, available_at, values.priority))
        if store.sync_inserts and not locked.log.sync:
            store.fs.fsync(locked.log.fd)  # else a power loss could take what was reported
    return ChangeReport(*([names.task_id(locked.batch, index) for index in some] for some in (free, held)))


def _available_from(replay_state: ReplayState, index: int, at: int, wanted: int | None) -> int:
    """Return from when on a task is available that gets this time (ms), or keeps its own."""
    if wanted is not None:
        return wanted
    return replay_state.since[index] if replay_state.state[index] == AVAILABLE else at


def promise(locked: LockedBatch, rank: Rank, available_at: int, at: int) -> None:
    """Give the task file a name that promises no less than what the tasks are about to be. OSError if that fails.

    It is recorded, done and proven before: a name that promises too much costs a look. One that promises too little
    hides the tasks.
    """
    name: TaskFileName | None = locked.find_task_file()
    if name is None:
        return
    target = name if name.available_at <= available_at else name.at(available_at)
    if rank < name.rank:
        target = target.ranked(rank)
    if target != name:
        store, layout = locked.store, locked.log.layout
        locked.append_move(at, name, target)
        locked.rename_task_file_surely(target)
        if store.sync_inserts and not store.fs.shared:  # else a power loss could keep the record and lose the name
            store.fs.sync_directory(f"{layout.tasks}/{layout.shard(locked.batch)}")
