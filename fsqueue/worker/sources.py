"""What a worker takes tasks from: queues, and groups, whose queues come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from fsqueue.errors import InvalidArgument
from fsqueue.filesystem import resources
from fsqueue.format.layout import Settings
from fsqueue.groups.drained import GroupDrainCheck, Source, source_of
from fsqueue.groups.selection import Selected
from fsqueue.queue import Queue
from fsqueue.views.inspection import DrainCheck
from fsqueue.worker.remote import RemoteSource


class Sources(list[Queue]):
    """The queues that a worker has open: those that it was given, and of groups those that may have tasks.

    Only the feeder's thread changes it. Other threads may read it at any time, in one step: `list(sources)`.
    """

    def __init__(self, given: list[Source], upstream: list[Source], remote: RemoteSource | None = None) -> None:
        super().__init__(source for source in given if isinstance(source, Queue))
        self.given, self.upstream = given, upstream
        self.groups = [source for source in given if isinstance(source, Selected)]
        self.remote = remote
        """The queue of a gateway, which then is the only source."""
        self._of_remote = [] if remote is None else [remote.settings]
        self._of_groups = [selected.group.settings for selected in self.groups]  # a thread that may not wait asks

    def settings(self) -> list[Settings]:
        """Return the settings of each queue that is open, and those that the queues of each group begin with."""
        return [queue.settings for queue in list(self)] + self._of_groups + self._of_remote

    def drain_check(self) -> Callable[[], bool]:
        """Return a check whether all of them, and what stands before them, were drained at one instant."""
        if self.remote is not None:
            return self.remote.is_drained
        each = [*self.given, *self.upstream]
        queues = [source for source in each if isinstance(source, Queue)]
        return GroupDrainCheck(each) if len(queues) < len(each) else _Checked(DrainCheck(*(q.store for q in queues)))

    def paths(self) -> list[str]:
        """Return the paths of the queues that it was given, and of the groups."""
        return [source.store.path if isinstance(source, Queue) else str(source.group.path) for source in self.given]


class _Checked:
    """Ask a `DrainCheck`, its errors of the system translated."""

    def __init__(self, check: DrainCheck) -> None:
        self._check = check

    def __call__(self) -> bool:
        try:
            with resources.Scope():
                return self._check()
        except OSError as error:
            raise self._check.store.explain(error, "looking whether the queue is drained") from error


def sources_of(queues: Any, upstream: Any = ()) -> Sources:
    """Return what a worker was given, and what it waits for; InvalidArgument for anything else."""
    given = [queues] if isinstance(queues, RemoteSource) else list(queues) if isinstance(queues, list) else []
    if any(isinstance(one, RemoteSource) for one in given):
        if len(given) > 1 or upstream:
            raise InvalidArgument(
                "A worker takes one queue of a gateway, without others and without upstream. Start a worker for each."
            )
        return Sources([], [], given[0])
    found = _listed(queues)
    if not found:
        raise InvalidArgument(f"A worker takes a Queue, a Group, or several in a list, not {queues!r}.")
    before = _listed(upstream)
    if before is None:
        raise InvalidArgument(f"upstream must be a Queue, a Group, or several in a list, not {upstream!r}.")
    return Sources([source_of(one) for one in found], [source_of(one) for one in before])


def _listed(given: Any) -> list[Queue | Selected] | None:
    """Return queues and groups as a list; None if that is something else."""
    each = [given] if isinstance(given, (Queue, Selected)) else given
    if isinstance(each, (str, bytes)) or not isinstance(each, Iterable):
        return None
    found: list[Any] = list(each)
    return found if all(isinstance(one, (Queue, Selected)) for one in found) else None
