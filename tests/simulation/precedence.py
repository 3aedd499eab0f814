"""Is there an order in which everything could have happened, one after the other? A search for circles.

Of each task the log tells in which order it was changed. Whoever has relied on a version comes after the one that
made it, and before the one that made the next. An update that ended before another began comes before it. If these
say of anything, together, that it comes before itself, there is no such order.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from typing import NamedTuple


class Event(NamedTuple):
    """A task is changed at an offset of its log, or relied on as it was there, by an update or a record."""

    task: Hashable
    offset: int
    by: str


def circle(changes: Iterable[Event], reads: Iterable[Event], spans: Mapping[str, tuple[int, int]]) -> list[str]:
    """Return what must come before itself, in order; [] if nothing does.

    `reads`: the offset is the version that was relied on. `spans`: when an update began and ended, in steps.
    """
    before: dict[str, dict[str, None]] = {}  # ordered: the same circle each time
    by_task: dict[Hashable, list[Event]] = {}
    for event in sorted(changes, key=lambda one: one.offset):
        by_task.setdefault(event.task, []).append(event)
    for events in by_task.values():
        for first, second in pairwise(events):
            _add(before, first.by, second.by)
    for read in reads:
        for event in by_task.get(read.task, ()):
            if event.offset <= read.offset:
                _add(before, event.by, read.by)
            else:
                _add(before, read.by, event.by)
    for first, (_, end) in spans.items():
        for second, (begin, _) in spans.items():
            if end < begin:
                _add(before, first, second)
    try:
        TopologicalSorter(before).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def _add(before: dict[str, dict[str, None]], first: str, second: str) -> None:
    if first != second:
        before.setdefault(second, {})[first] = None
