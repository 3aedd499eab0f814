"""What a worker takes tasks from: queues, and groups, whose queues come and go."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from fsqueue.errors import FsqueueError, InvalidArgument, QueueNotFound
from fsqueue.filesystem import resources
from fsqueue.format.layout import Settings
from fsqueue.groups.drained import GroupDrainCheck, Source, source_of
from fsqueue.groups.selection import Selected
from fsqueue.queue import Queue
from fsqueue.storage.queue_file import QueueClosed
from fsqueue.views.inspection import DrainCheck
from fsqueue.worker.remote import RemoteSource


@dataclass(frozen=True, slots=True)
class Away:
    """A queue or a group that a worker is to take tasks from, and that is not there: perhaps it is not mounted."""

    path: str
    open: Callable[[], object]
    """Opens it. QueueNotFound as long as it is not there."""

    @property
    def text(self) -> str:
        """Return what to say of it."""
        return f"{self.path} is not there (not mounted?); it is tried again"


class Sources(list[Queue]):
    """The queues that a worker has open: those that it was given, and of groups those that may have tasks.

    Only the feeder's thread changes it. Other threads may read it at any time, in one step: `list(sources)`.
    """

    def __init__(
        self,
        given: list[Source],
        upstream: list[Source],
        remote: RemoteSource | None = None,
        away: Iterable[Away] = (),
    ) -> None:
        super().__init__()
        self.upstream = upstream
        self.away = list(away)
        """What it was given, too, and is not there."""
        self.remote = remote
        """The queue of a gateway, which then is the only source."""
        self._of_remote = [] if remote is None else [remote.settings]
        self._take(given)

    def _take(self, given: list[Source]) -> None:
        """Have these open, and of groups no queue yet."""
        self.given = given
        self.groups = [source for source in given if isinstance(source, Selected)]
        self._of_groups = [selected.group.settings for selected in self.groups]  # a thread that may not wait asks
        self[:] = [source for source in given if isinstance(source, Queue)]

    def put_away(self) -> list[Away]:
        """Return the queues that were given and are not there any more, and put them away. Nothing if none is left."""
        gone = [source for source in self.given if isinstance(source, Queue) and _is_gone(source)]
        if not gone or len(gone) == len(self.given):
            return []
        found = [
            Away(queue.store.path, partial(Queue, queue.store.path, worker=queue.store.worker_name)) for queue in gone
        ]
        self.away += found
        self._take([source for source in self.given if source not in gone])
        return found

    def come_back(self) -> list[Away]:
        """Return those that were away and are there now, and have them open."""
        found: list[Away] = []
        for one in list(self.away):
            with suppress(FsqueueError, OSError):
                source = source_of(one.open())
                self.away.remove(one)
                self._take([*self.given, source])
                found.append(one)
        return found

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


def _is_gone(queue: Queue) -> bool:
    """Return whether a queue is not in its place any more, and was not deleted either, as far as is known."""
    try:
        with resources.Scope():
            queue.store.refresh(now=True)
    except QueueNotFound as error:
        return not isinstance(error, QueueClosed)
    except (FsqueueError, OSError):
        pass  # its filesystem fails: that is waited for
    return False


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


def sources_of(queues: Any, upstream: Any = (), away: Iterable[Away] = ()) -> Sources:
    """Return what a worker was given, and what it waits for; InvalidArgument for anything else."""
    given = [queues] if isinstance(queues, RemoteSource) else list(queues) if isinstance(queues, list) else []
    if any(isinstance(one, RemoteSource) for one in given):
        if len(given) > 1 or upstream or away:
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
    return Sources([source_of(one) for one in found], [source_of(one) for one in before], away=away)


def _listed(given: Any) -> list[Queue | Selected] | None:
    """Return queues and groups as a list; None if that is something else."""
    each = [given] if isinstance(given, (Queue, Selected)) else given
    if isinstance(each, (str, bytes)) or not isinstance(each, Iterable):
        return None
    found: list[Any] = list(each)
    return found if all(isinstance(one, (Queue, Selected)) for one in found) else None
