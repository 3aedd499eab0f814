"""How long the work on tasks took, where that differs from how long they were leased (docs/format.md, `took`).

A worker leases several tasks ahead, so a lease is longer than the work. Only the loop that hands tasks out knows when
work began. Nothing in the protocol depends on these times: they are for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fsqueue.logs import Log
from fsqueue.names import Batch
from fsqueue.task import LeasedTask

LEAST_MS = 1
"""Times that differ from the lease by no more than this, ..."""
LEAST_SHARE = 8
"""... or by no more than this part of the lease, are not recorded: the lease tells enough."""
LONGEST_S = 10**10
"""Longer times are taken for errors of whoever measured them."""

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


def took(times: Worked, log: Log, tasks: Sequence[int], at: int) -> int | list[int] | None:
    """Return the field `took` of a record that ends the leases of `tasks` at `at`; None if the leases tell as much.

    A single number if it is the same for all. A task of which nothing is known counts as at work since it was leased.
    """
    if not times:
        return None
    found, differs = [], False
    for index in tasks:
        holder = log.ledger.holder[index]
        held = max(0, at - holder.at) if holder is not None else 0
        ms = times.get((log.batch, index), held)
        differs = differs or abs(held - ms) > max(LEAST_MS, held // LEAST_SHARE)
        found.append(ms)
    if not differs:
        return None
    return found[0] if found.count(found[0]) == len(found) else found
