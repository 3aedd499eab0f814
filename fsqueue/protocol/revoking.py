"""End leases of other workers: taken away at once, or made to run out (docs/design.md, section 4.8).

Tasks of an update that is not decided are waited for, as a locked batch is: the update may complete them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain

from fsqueue.clock import MARGIN_MS
from fsqueue.format.movements import to_ranges
from fsqueue.format.names import Batch
from fsqueue.format.replay import LEASED, ReplayState
from fsqueue.protocol import deciding
from fsqueue.protocol.transitions import name_earlier
from fsqueue.storage import listing, locked_batch, record_times
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.store import Store


def revoke(store: Store, batch: Batch, chosen: Callable[[ReplayState, int], bool], wait_s: float) -> int:
    """End the leases of a batch's tasks for which `chosen(replay_state, index)` holds. LockTimeout.

    Return how many of them had not run out. Those that had are taken away, too: their holders could still complete.
    """
    waiting = deciding.DecisionWait(store, batch, wait_s)
    try:
        while True:
            with LockedBatch(store, batch, waiting.wait_s) as locked:
                replay_state = locked.replay_state
                at = record_times.next_at(locked)
                tasks = [
                    index
                    for index in range(replay_state.count)
                    if replay_state.state[index] == LEASED and chosen(replay_state, index)
                ]
                wanted = deciding.freezing(locked, tasks)
                if not wanted:
                    in_time = sum(at < replay_state.since[index] for index in tasks)
                    if tasks:
                        name_earlier(locked, at, 0)
                        locked.append_record("revoke", at, tasks=to_ranges(tasks))
                    return in_time
            waiting.out(wanted)
    except FileNotFoundError:
        return 0


def expire(store: Store, batch: Batch, chosen: Callable[[ReplayState, int], bool], wait_s: float) -> int:
    """Let leases run out now, on tasks for which `chosen(replay_state, index)` is true; return how many. LockTimeout.

    Each lease is renewed to an end that is past, by every clock's margin. The worker that takes such a task over
    charges what a lease that ran out costs. Until then its holder may still complete the task.
    """
    waiting = deciding.DecisionWait(store, batch, wait_s)
    try:
        while True:
            with LockedBatch(store, batch, waiting.wait_s) as locked:
                replay_state = locked.replay_state
                at = record_times.next_at(locked)
                held: dict[str, list[int]] = {}
                for index in range(replay_state.count):
                    holder = replay_state.holder[index]
                    if (
                        holder
                        and replay_state.state[index] == LEASED
                        and at < replay_state.since[index]
                        and chosen(replay_state, index)
                    ):
                        held.setdefault(holder.id, []).append(index)
                wanted = deciding.freezing(locked, chain.from_iterable(held.values()))
                if not wanted:
                    for lease, tasks in held.items():
                        until = max(0, at - MARGIN_MS[1])
                        name_earlier(locked, at, until)
                        locked.append_record("renew", at, lease=lease, tasks=to_ranges(tasks), until=until)
                    return sum(map(len, held.values()))
            waiting.out(wanted)
    except FileNotFoundError:
        return 0


def expire_in(
    store: Store, batches: Iterable[Batch], chosen: Callable[[ReplayState, int], bool]
) -> tuple[int, list[Batch]]:
    """Let leases run out now in several batches, and notify idle workers. Return how many, and the batches that stayed
    locked: nothing was done in these. They share the time of one lock to wait.
    """
    ended = 0

    def act(batch: Batch, wait_s: float) -> None:
        nonlocal ended
        ended += expire(store, batch, chosen, wait_s)

    try:
        busy = locked_batch.for_each_batch(store, batches, act)
    finally:
        if ended:
            store.doorbell.ring()
    return ended, list(busy)


def expire_run(store: Store, run_id: str) -> tuple[int, list[Batch]]:
    """Let the leases of one run of a worker run out now (docs/format.md, "Workers"). Return what `expire_in` does.

    The caller has proof that nothing of the run is at work (docs/decisions/0042-leases-of-a-killed-worker.md). A repeat
    finds the leases that are left. It reads the logs of all batches at work. OSError, QueueNotFound.
    """

    def chosen(replay_state: ReplayState, index: int) -> bool:
        holder = replay_state.holder[index]
        return holder is not None and (holder.worker or {}).get("run") == run_id

    store.refresh(now=True)
    found = [
        batch
        for batch, replay_state in listing.at_work(store, store.fs.shared, listing.read_present_state)
        if any(chosen(replay_state, index) for index in range(replay_state.count))
    ]
    return expire_in(store, found, chosen)
