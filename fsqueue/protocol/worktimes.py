"""Record how long the work on tasks took, where that differs from their leases (docs/format.md, `took`).

A worker leases several tasks ahead, so a lease is longer than the work. Only the loop that hands tasks out knows when
work began. Nothing in the protocol depends on these times: they are for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fsqueue.format.names import Batch
from fsqueue.leased_task import LeasedTask
from fsqueue.storage.locked_batch import LockedBatch

LEAST_MS = 1
"""Do not record a time that differs from the lease by at most this, in milliseconds: the lease tells enough."""
LEAST_SHARE = 8
"""Nor one that differs by at most the lease divided by this."""
LONGEST_S = 10**10
"""Ignore longer times: they are errors of measurement."""

Worked = Mapping[tuple[Batch, int], int]
"""Milliseconds of work, by batch and index."""


def worked(tasks: Iterable[LeasedTask]) -> Worked:
    """Return how long the work on tasks took, as far as their loops know it."""
    found: dict[tuple[Batch, int], int] = {}
    for task in tasks:
        seconds = task.took_s
        if seconds is None:
            if task.began is None:
                continue
            seconds = task.queue.store.clock.monotonic() - task.began
        if 0 <= seconds < LONGEST_S:
            found[task.batch, task.index] = round(seconds * 1000)
    return found


def took(times: Worked, locked: LockedBatch, tasks: Sequence[int], at: int) -> int | list[int] | None:
    """Return the field `took` of a record that ends the leases of `tasks` at `at`; None if the leases tell as much.

    Return one number if it is the same for all. A task without a measured time counts as worked on since its lease.
    """
    if not times:
        return None
    found, differs = [], False
    for index in tasks:
        holder = locked.replay_state.holder[index]
        held = max(0, at - holder.at) if holder is not None else 0
        ms = times.get((locked.batch, index), held)
        differs = differs or abs(held - ms) > max(LEAST_MS, held // LEAST_SHARE)
        found.append(ms)
    if not differs:
        return None
    return found[0] if found.count(found[0]) == len(found) else found
