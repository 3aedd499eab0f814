"""What a worker takes tasks from: queues, and groups, whose queues come and go."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fsqueue.errors import InvalidArgument
from fsqueue.format.layout import Settings
from fsqueue.groups.drained import Source, source_of
from fsqueue.groups.selection import Selected
from fsqueue.queue import Queue


class Sources(list[Queue]):
    """The queues that a worker has open: those that it was given, and of groups those that may have tasks.

    Only the feeder's thread changes it. Other threads may read it at any time, in one step: `list(sources)`.
    """

    def __init__(self, given: list[Source]) -> None:
        super().__init__(source for source in given if isinstance(source, Queue))
        self.given = given
        self.groups = [source for source in given if isinstance(source, Selected)]
        self._of_groups = [selected.group.settings for selected in self.groups]  # a thread that may not wait asks

    def settings(self) -> list[Settings]:
        """Return the settings of each queue that is open, and those that the queues of each group begin with."""
        return [queue.settings for queue in list(self)] + self._of_groups

    def paths(self) -> list[str]:
        """Return the paths of the queues that it was given, and of the groups."""
        return [source.store.path if isinstance(source, Queue) else str(source.group.path) for source in self.given]


def sources_of(queues: Any) -> Sources:
    """Return what a worker was given; InvalidArgument for anything else."""
    given = [queues] if isinstance(queues, (Queue, Selected)) else queues
    found = list(given) if isinstance(given, Iterable) and not isinstance(given, (str, bytes)) else []
    if not found or not all(isinstance(one, (Queue, Selected)) for one in found):
        raise InvalidArgument(f"A worker takes a Queue, a Group, or several in a list, not {queues!r}.")
    return Sources([source_of(one) for one in found])
