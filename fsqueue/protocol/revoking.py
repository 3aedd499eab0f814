"""End leases of other workers: taken away at once, or made to run out (docs/design.md, section 4.8)."""

from __future__ import annotations

from collections.abc import Callable

from fsqueue.clock import MARGIN_MS
from fsqueue.format.movements import to_ranges
from fsqueue.format.names import Batch
from fsqueue.format.replay import LEASED, ReplayState
from fsqueue.protocol.transitions import name_earlier
from fsqueue.storage import record_times
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.store import Store


def revoke(store: Store, batch: Batch, chosen: Callable[[ReplayState, int], bool], wait_s: float) -> int:
    """End the leases of a batch's tasks for which `chosen(replay_state, index)` holds. LockTimeout.

    Return how many of them had not run out. Those that had are taken away, too: their holders could still complete.
    """
    try:
        with LockedBatch(store, batch, wait_s) as locked:
            replay_state = locked.replay_state
            at = record_times.present(locked)
            tasks = [
                index
                for index in range(replay_state.count)
                if replay_state.state[index] == LEASED and chosen(replay_state, index)
            ]
            in_time = sum(at < replay_state.since[index] for index in tasks)
            if tasks:
                name_earlier(locked, at, 0)
                locked.append_record("revoke", at, tasks=to_ranges(tasks))
            return in_time
    except FileNotFoundError:
        return 0


def expire(store: Store, batch: Batch, chosen: Callable[[ReplayState, int], bool], wait_s: float) -> int:
    """Let leases run out now, on tasks for which `chosen(replay_state, index)` is true; return how many. LockTimeout.

    Each lease is renewed to an end that is past, by every clock's margin. The worker that takes such a task over
    charges what a lease that ran out costs. Until then its holder may still complete the task.
    """
    try:
        with LockedBatch(store, batch, wait_s) as locked:
            replay_state, ended = locked.replay_state, 0
            at = record_times.present(locked)
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
            for lease, tasks in held.items():
                until = max(0, at - MARGIN_MS[1])
                name_earlier(locked, at, until)
                locked.append_record("renew", at, lease=lease, tasks=to_ranges(tasks), until=until)
                ended += len(tasks)
            return ended
    except FileNotFoundError:
        return 0
