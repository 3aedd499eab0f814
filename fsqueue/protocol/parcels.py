"""Hold tasks that move to another queue, and end them here once that has them (docs/decisions/0070-moves.md).

A parcel is held by a lease that outlasts any mover: a mover that is killed cannot renew one, and its tasks would be
done at both queues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from fsqueue.clock import MS_MAX
from fsqueue.format import movements, names
from fsqueue.format.models import Task
from fsqueue.format.movements import to_ranges
from fsqueue.format.names import Batch
from fsqueue.format.priority import LAST
from fsqueue.format.replay import AVAILABLE, LEASED, ReplayState
from fsqueue.format.task_states import Lease
from fsqueue.protocol import changing, deciding, finishing, transitions
from fsqueue.storage import journals, listing, locked_batch, record_times
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.store import Store

HELD_MS = 100 * 365 * 86_400_000
"""Duration of the lease of a parcel: a hundred years (ms)."""
MOVES = "mv to "
"""First characters of the name of a parcel's holder; the path of the other queue follows."""
T = TypeVar("T")


class Destination(NamedTuple):
    """The queue to which tasks move: its id, its generation, and what the holder of their leases is called."""

    id: str
    generation: int
    title: str

    @property
    def path(self) -> str:
        """Return the path of the destination, as the holder's name has it: whole, however long."""
        return self.title.removeprefix(MOVES)


class Parcel(NamedTuple):
    """Tasks of one batch that one lease holds for a destination. `due`: when those are due that were delayed (ms)."""

    batch: Batch
    lease: str
    tasks: list[int]
    due: dict[int, int]
    to: Destination

    @property
    def commit(self) -> str:
        """Return the name of the commit by which the destination takes a parcel's tasks once."""
        return f"mv-{self.batch}-{self.lease}"


def place(task_id: str) -> tuple[Batch, int]:
    """Return the batch of a task, and its index there, by its id."""
    return names.parse_task_id(task_id)


def hold(store: Store, batch: Batch, indices: Sequence[int], to: Destination, host: str) -> Parcel | None:
    """Take those tasks of a batch that no lease holds, in one append. None if there is none.

    Tasks whose payload cannot be read stay. Tasks of an update that is not decided are waited for. LockTimeout.
    """
    store.verify()
    name = transitions.file_of_waiting(store, batch)
    if name is None:
        return None

    def act(locked: LockedBatch) -> Parcel | None:
        return _hold_in(locked, indices, to, host) if transitions.begin_waiting(locked, name) else None

    return _in_batch(store, batch, indices, act, None, create=True)


def _hold_in(locked: LockedBatch, indices: Sequence[int], to: Destination, host: str) -> Parcel | None:
    store, states = locked.store, locked.replay_state
    at = record_times.next_at(locked)
    known = sorted({index for index in indices if index < states.count})
    free = [index for index in known if states.is_free(index, at)]
    free = [index for index in free if locked.payload(index) is not locked_batch.LOST]
    if not free:
        return None
    due = {
        index: states.since[index] for index in free if states.state[index] == AVAILABLE and states.since[index] > at
    }
    records = []
    if due:
        changing.promise(locked, LAST, at, at)  # else they would be hidden once they are given back
        records.append(movements.change(at, [*due], [states.version[index] for index in due], at, ()))
    move: dict[str, Any] = {"to": to.id, "generation": to.generation}
    if due:
        move["due"] = [[*pair] for pair in due.items()]
    worker = {"host": host, "name": to.title, "move": move}
    lease = store.entropy.hex16()
    records.append(movements.lease(at, lease, free, at + HELD_MS, worker, several=True))
    locked.log.write(*records)
    _sync(locked)
    return Parcel(locked.batch, lease, _held(states, lease), due, to)


def _sync(locked: LockedBatch) -> None:
    """Sync the log. Without that a power loss could keep what the other queue has, and lose the hold."""
    if locked.store.sync_inserts and not locked.log.sync:
        locked.store.fs.fsync(locked.log.fd)


def _held(states: ReplayState, lease: str) -> list[int]:
    found = ((index, states.holder[index]) for index in range(states.count) if states.state[index] == LEASED)
    return [index for index, holder in found if holder is not None and holder.id == lease]


def _in_batch(
    store: Store,
    batch: Batch,
    indices: Sequence[int],
    act: Callable[[LockedBatch], T],
    absent: T,
    create: bool = False,
) -> T:
    """Call `act` under the lock of a batch, once no update freezes the tasks. `absent`: if the batch has finished."""
    waiting = deciding.DecisionWait(store, batch, journals.LOCK_TIMEOUT_S)
    try:
        while True:
            with LockedBatch(store, batch, waiting.wait_s, create=create) as locked:
                wanted = deciding.freezing(locked, indices)
                if not wanted:
                    return act(locked)
            waiting.out(wanted)
    except FileNotFoundError:
        return absent


def tasks(store: Store, parcel: Parcel) -> list[Task] | None:
    """Return the tasks that a parcel holds, to be inserted elsewhere. None if the parcel does not hold all of them any
    more."""

    def act(locked: LockedBatch) -> list[Task] | None:
        if _held(locked.replay_state, parcel.lease) != parcel.tasks:
            return None
        found = []
        for index in parcel.tasks:
            payload, due = locked.payload(index), parcel.due.get(index)
            if payload is locked_batch.LOST:
                return None
            priority = locked.key_and_priority(index).get("priority")
            found.append(Task(payload, priority=priority, available_at=None if due is None else due / 1000))
        return found

    return _in_batch(store, parcel.batch, parcel.tasks, act, None)


def end(store: Store, parcel: Parcel) -> int:
    """Cancel the tasks that a parcel holds: the destination has them. Return how many tasks."""

    def act(locked: LockedBatch) -> int:
        held = _held(locked.replay_state, parcel.lease)
        if held:
            at = record_times.next_at(locked)
            locked.append_record("cancel", at, lease=parcel.lease, tasks=to_ranges(held))
            _sync(locked)
        if not locked.replay_state.remaining:
            finishing.try_finish(locked)
        return len(held)

    return _in_batch(store, parcel.batch, parcel.tasks, act, 0)


def give_back(store: Store, parcel: Parcel) -> int:
    """Put back what a parcel holds, due as before. Return how many tasks. Only if the destination never gets it."""

    def act(locked: LockedBatch) -> int:
        held = _held(locked.replay_state, parcel.lease)
        at = record_times.next_at(locked)
        times: dict[int, list[int]] = {}
        for index in held:
            times.setdefault(max(at, parcel.due.get(index, at)), []).append(index)
        if held:
            transitions.name_earlier(locked, at, min(times))
            locked.log.write(
                *(
                    movements.record(
                        "release", at, lease=parcel.lease, tasks=to_ranges(some), available_at=available_at
                    )
                    for available_at, some in sorted(times.items())
                )
            )
        return len(held)

    try:
        return _in_batch(store, parcel.batch, parcel.tasks, act, 0)
    finally:
        store.doorbell.ring()


def held(store: Store) -> Iterator[Parcel]:
    """Yield the parcels of a queue that have not ended, whichever mover made them, alive or dead."""
    for batch in listing.with_logs(store, every_shard=store.fs.shared):
        states = listing.read_present_state(store, batch)
        if states is None or not states.remaining:
            continue
        found: dict[str, Parcel] = {}
        for index in range(states.count):
            holder = states.holder[index]
            if states.state[index] != LEASED or holder is None:
                continue
            if holder.id not in found:
                parcel = _parcel_of(batch, holder)
                if parcel is None:
                    continue
                found[holder.id] = parcel
            found[holder.id].tasks.append(index)
        yield from found.values()


def _parcel_of(batch: Batch, lease: Lease) -> Parcel | None:
    """Return an empty parcel if a lease says that it moves tasks; None for any other lease."""
    move, title = lease.move, (lease.worker or {}).get("name")
    if move is None or type(title) is not str:
        return None
    to, generation, due = move.get("to"), move.get("generation"), move.get("due", [])
    if type(to) is not str or type(generation) is not int or type(due) is not list:
        return None
    times = {
        pair[0]: pair[1]
        for pair in due
        if type(pair) is list and [*map(type, pair)] == [int, int] and 0 <= pair[1] <= MS_MAX
    }
    return Parcel(batch, lease.id, [], times, Destination(to, generation, title))
