"""Complete tasks and insert what follows them, or move tasks to other queues, by updates: each of them all or nothing
(docs/pipelines.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol, TypeVar

from fsqueue import errors
from fsqueue.errors import FsqueueError
from fsqueue.groups.queue import GroupQueue
from fsqueue.groups.queue_selection import Selected
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol.update_plan import ALREADY
from fsqueue.worker.inserts import INSERTS_BYTES_MAX, INSERTS_MAX, Inserts

APPLY_S = 10.0
"""Longest wait for others that are in the way of an update. Then the reporter pauses, and tries again."""
TOGETHER_MAX = 64
"""Maximum number of completions in one update: if one of them stands in the way, each is told by itself."""


class Completion(Protocol):
    """A task to complete, and what is inserted with it. Its queue is one of a group: see `is_of_group`.

    With the verb "move" the task is taken out of its queue in place of being completed: `inserts` has it.
    """

    @property
    def verb(self) -> str:
        """Return "complete" or "move"."""

    @property
    def task(self) -> LeasedTask:
        """Return the task."""

    @property
    def result(self) -> Any:
        """Return the result to keep with the completed task."""

    @property
    def inserts(self) -> Inserts:
        """Return the tasks to insert."""


C = TypeVar("C", bound=Completion)


def grouped(completions: Iterable[C]) -> Iterator[list[C]]:
    """Yield lists of completions that one update can tell: those of one group, each task once, and none that inserts
    with the key of a task that another one completes.
    """
    open_: dict[Any, list[C]] = {}
    for one in completions:
        group = group_of(one)
        mine = open_.setdefault(group, [])
        if mine and _is_full(mine, one):
            yield mine
            open_[group] = mine = []
        mine.append(one)
    yield from open_.values()


def _is_full(mine: Sequence[Completion], more: Completion) -> bool:
    """Return whether an update cannot take one more completion: it would be too large, or has its task already."""
    return (
        len(mine) >= TOGETHER_MAX
        or sum(1 + len(one.inserts.each) for one in mine) + len(more.inserts.each) > INSERTS_MAX
        or sum(one.inserts.size for one in mine) + more.inserts.size > INSERTS_BYTES_MAX
        or any(one.task.id == more.task.id for one in mine)
        or any(_inserts_key_of(more, one) or _inserts_key_of(one, more) for one in mine)
    )


def _inserts_key_of(one: Completion, other: Completion) -> bool:
    """Return whether one inserts with the key of the task that the other completes: an update cannot do both."""
    key = other.task.key
    return key is not None and any(
        insert.key == key and insert.queue == _name_of(other.task) for insert in one.inserts.each
    )


def _name_of(task: LeasedTask) -> str:
    name: str = task.queue.name  # type: ignore[attr-defined]
    return name


def is_of_group(queue: object) -> bool:
    """Return whether this is a queue of a group, or queues of one, on a filesystem or at a gateway.

    A group on a filesystem is not asked for: it may be away.
    """
    return isinstance(queue, (GroupQueue, Selected)) or getattr(queue, "group", None) is not None


def group_of(completion: Completion) -> Any:
    """Return the group of a task's queue, a `Group` or a `RemoteGroup`. The loop has seen that there is one."""
    return completion.task.queue.group  # type: ignore[attr-defined]


def complete_and_insert(mine: Sequence[Completion]) -> dict[str, FsqueueError]:
    """Complete tasks and insert what follows them by one update. Return the error of each that it refused, by token.

    If one of several stands in the way, each is told by an update of its own. StorageError, StorageFull: try again.
    To tell again what has been decided does no harm: a lease can complete its task only once.
    """
    try:
        update = group_of(mine[0]).update()
        for one in mine:
            if one.verb == "move":
                update.cancel(one.task)
            else:
                update.complete(one.task, one.result)
            for insert in one.inserts.each:
                update.insert(insert.queue, insert.task())
        update.apply(timeout_s=APPLY_S)
    except (errors.StorageError, errors.StorageFull):
        raise
    except errors.UpdateConflict as conflict:
        if len(mine) == 1 and {one.reason for one in conflict.missing} == {ALREADY} and not conflict.owned:
            return {}  # by an earlier try that seemed to fail, or by the command itself
        if len(mine) == 1 and not (conflict.missing or conflict.owned):  # others were in the way: that passes
            raise errors.LockTimeout(str(conflict)) from conflict
        refused: FsqueueError = conflict
    except FsqueueError as error:
        refused = error
    else:
        return {}
    if len(mine) == 1:
        return {mine[0].task.token: refused}
    found: dict[str, FsqueueError] = {}
    for one in mine:
        found |= complete_and_insert([one])
    return found
