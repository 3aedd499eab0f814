"""Sets of tasks that a barrier waits for in place of queues: `Group.join` (docs/decisions/0077-joins.md)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator
from typing import Literal, NamedTuple

from fsqueue.commit import Commit
from fsqueue.errors import InvalidArgument, QueueNotFound, shown
from fsqueue.filesystem import resources
from fsqueue.format import movements, names
from fsqueue.format.barriers import BarrierRecord, BatchTasks, OnFailure
from fsqueue.format.models import DEAD, Result, TaskRef
from fsqueue.format.names import BATCH_TASKS_MAX, Batch
from fsqueue.groups.queue import GroupQueue, HasQueues
from fsqueue.interruptions import suppress
from fsqueue.storage import barrier_files, commits, deadletters, retrying
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.store import Store
from fsqueue.user_code import user_items
from fsqueue.views import inspection, task_results

Outlook = Literal["waits", "done", "failed"]


class _Rest(NamedTuple):
    """What is left of some tasks of a batch: those that wait or are leased, and dead letters; and what became of
    those that were retried.
    """

    unfinished: list[int]
    dead: list[int]
    retried: list[str]
    """The ids of the tasks that were inserted in the place of dead letters."""


class JoinProgress:
    """How many tasks of a join's set have ended, as far as one process knows. It looks at no batch again that has."""

    def __init__(self, record: BarrierRecord) -> None:
        self._on_failure: OnFailure = record.on_failure
        self._left = [*reversed(record.tasks)]
        """The tasks that may be left, those that are looked at next last."""

    def look(self, group: HasQueues) -> Outlook:
        """Return whether all tasks of the set have ended. It reads the batches of those that may be left, until it
        finds one that is.

        "done" is true, also on NFS: no task without an outcome is overlooked. "failed": one was given up, and the
        join is dropped for that.
        """
        while self._left:
            part = self._left.pop()
            rest = self._rest(group, part)
            if rest.dead and self._on_failure == "drop":
                return "failed"
            left = rest.unfinished + rest.dead
            if left:
                self._left.append(part.only(left))
            self._left += parts_of(part.queue, rest.retried)
            if left:
                return "waits"
        return "done"

    def _rest(self, group: HasQueues, part: BatchTasks) -> _Rest:
        queue = group.opened_queue(names.queue_directory(part.queue))
        with suppress(QueueNotFound), resources.Scope():
            if queue.exists():
                store = queue.store
                store.verify()
                unfinished = [*inspection.unfinished(store, part.batch, part.indices())]
                if self._on_failure == "run" or unfinished:
                    return _Rest(unfinished, [], [])
                return _given_up(store, part)
        return _Rest([], [], [])  # a queue that is gone has no task left


def _given_up(store: Store, part: BatchTasks) -> _Rest:
    """Return the dead letters among tasks that have ended, and what those that were retried were inserted as."""
    ids = part.ids()
    found = task_results.results_of(store, ids)
    dead = [index for index, task_id in zip(part.indices(), ids, strict=True)
            if task_id in found and found[task_id].state == DEAD]  # fmt: skip
    retried = _retried(store, part, found)
    if retried:
        retrying.publish_pending(store)  # where another process has died before it did: they would seem to have ended
    return _Rest([], dead, retried)


def _retried(store: Store, part: BatchTasks, found: Container[str]) -> list[str]:
    """Return the ids of the tasks that were inserted in the place of those that were not found."""
    unknown = [task_id for task_id in part.ids() if task_id not in found]
    retried = deadletters.retried(store, part.batch) if unknown else {}
    return [retried[task_id] for task_id in unknown if task_id in retried]


def parts_of(queue: str, ids: Iterable[str]) -> list[BatchTasks]:
    """Return tasks of a queue by their batches, in the order in which these come first."""
    found: dict[Batch, set[int]] = {}
    for task_id in ids:
        batch, index = names.parse_task_id(task_id)
        found.setdefault(batch, set()).add(index)
    return [BatchTasks(queue, batch, tuple((start, end) for start, end in movements.to_ranges([*indices])))
            for batch, indices in found.items()]  # fmt: skip


# -- asked by users ----------------------------------------------------------------------------------------------------


def tasks_of(group: HasQueues, given: object) -> tuple[BatchTasks, ...]:
    """Return the tasks that references and named commits stand for, in order. InvalidArgument."""
    each = [given] if isinstance(given, (TaskRef, Commit)) else given
    if not isinstance(each, Iterable) or isinstance(each, (str, bytes, dict)):
        raise InvalidArgument(_WANTED.format(shown(given)))
    ids: dict[str, dict[str, None]] = {}
    found: list[BatchTasks] = []
    for one in user_items(each):
        match one:
            case TaskRef(queue=GroupQueue() as queue) if queue.group.path == group.path:
                ids.setdefault(queue.name, {})[one.id] = None
            case Commit():
                found += _of_commit(group, one)
            case TaskRef():
                raise InvalidArgument(
                    f"The task {one.id} is not in a queue of the group {group.path}, or its queue is behind a "
                    "gateway. Nothing was done."
                )
            case _:
                raise InvalidArgument(_WANTED.format(shown(one)))
    found += (part for queue, some in ids.items() for part in parts_of(queue, some))
    if not found:
        raise InvalidArgument("A join waits for one task at least. Nothing was done.")
    return tuple(found)


_WANTED = "A join takes references to tasks, as insert returns them, or named commits, not {}. Nothing was done."


def _of_commit(group: HasQueues, commit: Commit) -> Iterator[BatchTasks]:
    """Yield the tasks of a named commit that was published."""
    name = commit.store.name_in_group
    if name is None or str(group.opened_queue(names.queue_directory(name)).path) != commit.store.path:
        raise InvalidArgument(f"{commit!r} is not of a queue of the group {group.path}. Nothing was done.")
    known = None if commit.committed() is None else commits.find(commit.store, commit.store.layout, commit.name)
    if known is None:
        raise InvalidArgument(f"Nothing was published under the name {commit.name} in {name!r}. Nothing was done.")
    for part in known.parts:
        whole = ((0, min(part.tasks, BATCH_TASKS_MAX)),)
        for place in range(part.files):
            yield BatchTasks(name, names.successor(part.first, place), whole)


def refuse_without_history(group: HasQueues, tasks: Iterable[BatchTasks], on_failure: str) -> None:
    """Raise InvalidArgument if a queue of these tasks keeps no history: what became of a dead letter is then not known
    for long.
    """
    for name in dict.fromkeys(part.queue for part in tasks):
        if not group.opened_queue(names.queue_directory(name)).settings.keep_history:
            raise InvalidArgument(
                f"The queue {name!r} keeps no history, so a join cannot tell later which of its tasks failed. Nothing "
                f'was done. Give on_failure="run" instead of {on_failure!r}.'
            )


def inputs(group: HasQueues, directory: GroupDirectory, store: Store, task_id: str) -> Iterator[Result]:
    """Yield what came of the tasks that the join of a task waited for. InvalidArgument if it is a task of no join."""
    record = _join_of(directory, store, names.parse_task_id(task_id)[0])
    if record is None:
        raise InvalidArgument(
            f"The task {task_id} has no inputs: no join has inserted it, or its join was forgotten. Joins are kept for "
            "a week after they have ended."
        )
    left = [*reversed(record.tasks)]
    while left:
        part = left.pop()
        with resources.Scope():
            found, retried = _ended(group, part)
        yield from found
        left += parts_of(part.queue, retried)


def _ended(group: HasQueues, part: BatchTasks) -> tuple[list[Result], list[str]]:
    """Return what is known of tasks of a batch, and the ids of the tasks that others of them were inserted again as."""
    queue = group.opened_queue(names.queue_directory(part.queue))
    with suppress(QueueNotFound):
        if queue.exists():
            found = task_results.results_of(queue.store, part.ids())
            return [found[one] for one in part.ids() if one in found], _retried(queue.store, part, found)
    return [], []


def _join_of(directory: GroupDirectory, store: Store, batch: Batch) -> BarrierRecord | None:
    """Return the join whose commit has a batch; None if none has.

    Both have their time in their names. Mostly it is the join that is the nearest.
    """
    birth = names.birth_ms(batch)
    steps = barrier_files.steps(directory)
    for identity in sorted(steps, key=lambda one: abs(names.birth_ms(one) - birth)):
        record = barrier_files.read(directory, identity, steps[identity])
        if record is None or not record.tasks or store.name_in_group not in record.targets():
            continue
        known = commits.find(store, store.layout, names.commit_name(record.commit))
        if known is not None and any(part.has(batch) for part in known.parts):
            return record
    return None
