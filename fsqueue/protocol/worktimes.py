"""Record how long the work on tasks took, and what it used (docs/format.md, `took` and `used`).

A worker leases several tasks ahead, so a lease is longer than the work. Only the loop that hands tasks out knows when
work began. Nothing in the protocol depends on these: they are for people.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fsqueue.format.models import Used
from fsqueue.format.names import Batch
from fsqueue.leased_task import LeasedTask
from fsqueue.storage.locked_batch import LockedBatch

LEAST_MS = 1
"""Do not record a time that differs from the lease by at most this, in milliseconds: the lease tells enough."""
LEAST_SHARE = 8
"""Nor one that differs by at most the lease divided by this."""
LONGEST_S = 10**10
"""Ignore longer times: they are errors of measurement."""


@dataclass(slots=True)
class Worked:
    """Durations and resources of the work on tasks, by batch and index."""

    ms: dict[tuple[Batch, int], int]
    """Duration of the work on each task (ms)."""
    used: dict[tuple[Batch, int], Used]


def measure_work(tasks: Iterable[LeasedTask]) -> Worked:
    """Return how long the work on tasks has taken by now, and what it has used; only what was measured."""
    found: dict[tuple[Batch, int], int] = {}
    usages: dict[tuple[Batch, int], Used] = {}
    for task in tasks:
        if task.used is not None:
            usages[task.batch, task.index] = task.used
        seconds = task.took_s
        if seconds is None:
            if task.began is None:
                continue
            seconds = task.queue.store.clock.monotonic() - task.began
        if 0 <= seconds < LONGEST_S:
            found[task.batch, task.index] = round(seconds * 1000)
    return Worked(found, usages)


def work_fields(work: Worked, locked: LockedBatch, tasks: Sequence[int], at: int) -> dict[str, Any]:
    """Return the fields `took` and `used` of a record that ends the leases of `tasks` at `at`: those that it needs."""
    found: dict[str, Any] = {}
    if (ms := took_field(work.ms, locked, tasks, at)) is not None:
        found["took"] = ms
    if work.used:
        used = [work.used.get((locked.batch, index)) for index in tasks]
        if any(used):
            found["used"] = [None if each is None else [*each] for each in used]
    return found


def work_fields_of_one(work: Worked, locked: LockedBatch, index: int, at: int) -> dict[str, Any]:
    """Return what `work_fields` returns, for a record that ends the lease of one task."""
    found: dict[str, Any] = {}
    place = locked.batch, index
    if (ms := work.ms.get(place)) is not None:
        holder = locked.replay_state.holder[index]
        held = max(0, at - holder.at) if holder is not None else 0
        if abs(held - ms) > max(LEAST_MS, held // LEAST_SHARE):
            found["took"] = ms
    if (used := work.used.get(place)) is not None:
        found["used"] = [[*used]]
    return found


def took_field(
    times: Mapping[tuple[Batch, int], int], locked: LockedBatch, tasks: Sequence[int], at: int
) -> int | list[int] | None:
    """Return the field `took` of a record that ends the leases of `tasks` at `at`; None if the leases tell as much.

    Return one number if it is the same for all. A task without a measured time counts as worked on since its lease.
    """
    if not times:
        return None
    assert tasks, "a record ends the lease of some task"
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
