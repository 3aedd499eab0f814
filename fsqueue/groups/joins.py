"""Sets of tasks that a barrier waits for in place of queues: `Group.join` (docs/decisions/0077-joins.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Literal

from fsqueue.commit import Commit
from fsqueue.errors import FsqueueError, InvalidArgument, QueueNotFound, shown
from fsqueue.filesystem import PassingOverStrays, resources
from fsqueue.format import names
from fsqueue.format.barriers import BarrierRecord, BatchTasks, OnFailure
from fsqueue.format.models import DEAD, Result, TaskRef
from fsqueue.format.names import BATCH_TASKS_MAX, Batch
from fsqueue.groups.queue import GroupQueue, HasQueues
from fsqueue.interruptions import let_out, suppress
from fsqueue.storage import barrier_files, commits, deadletters, retrying
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.store import Store
from fsqueue.user_code import user_items
from fsqueue.views import inspection, task_results

Outlook = Literal["waits", "done", "failed"]
TASKS_TOGETHER = 4096
"""Number of tasks of which results are read together: the history of a shard is read once for them."""
RETRIES_MAX = 100
"""How often a task may have been retried whose join is still found."""


class JoinProgress:
    """How many tasks of a join's set have ended, as far as one process knows. It looks at no batch again that has."""

    def __init__(self, record: BarrierRecord) -> None:
        self._on_failure: OnFailure = record.on_failure
        self._left = [*reversed(record.tasks)]
        """The tasks of which some may have no outcome, those that are looked at next last."""
        self._ended: list[BatchTasks] = []
        """The tasks that have ended, unless they were retried. Which were given up is asked once all have ended."""

    def look(self, group: HasQueues) -> Outlook:
        """Return whether all tasks of the set have ended. It reads the batches of those that may be left, until it
        finds one that is.

        "done" is true, also on NFS: no task without an outcome is overlooked. "failed": all have ended, one was given
        up, and the join is dropped for that. Each step keeps what is left until it is known better: after an error or
        an interruption the next look begins there.
        """
        while True:
            while self._left:
                if _is_unfinished(group, self._left[-1]):
                    return "waits"
                if self._on_failure != "run":
                    self._ended.append(self._left[-1])
                self._left.pop()
            dead, again = list[BatchTasks](), list[BatchTasks]()
            for some in _together(self._ended):
                letters, retried = _given_up(group, some)
                dead += letters
                again += retried
            if dead and self._on_failure == "drop":
                return "failed"
            self._left = again  # first: what has ended is asked for once more, if an interruption comes in between
            self._ended = dead
            if not again:
                return "waits" if dead else "done"


def _is_unfinished(group: HasQueues, part: BatchTasks) -> bool:
    """Return whether one of these tasks has no outcome. A queue that is gone has no task left."""
    queue = group.opened_queue(names.queue_directory(part.queue))
    with suppress(QueueNotFound), resources.Scope():
        if queue.exists():
            queue.store.verify()
            return bool(inspection.unfinished(queue.store, part.batch, part.indices()))
    return False


def _together(parts: Iterable[BatchTasks]) -> Iterator[list[BatchTasks]]:
    """Yield tasks of one queue together, up to some number of them."""
    for _, same in groupby(parts, lambda part: part.queue):
        some, tasks = list[BatchTasks](), 0
        for part in same:
            if some and tasks + part.size > TASKS_TOGETHER:
                yield some
                some, tasks = [], 0
            some.append(part)
            tasks += part.size
        if some:
            yield some


def _given_up(group: HasQueues, parts: Sequence[BatchTasks]) -> tuple[list[BatchTasks], list[BatchTasks]]:
    """Return the dead letters among tasks of a queue that have ended; and the tasks that were inserted in the place of
    others.
    """
    found, retried = _results_of(group, parts)
    name = parts[0].queue
    dead = parts_of(name, (one.id for one in found if one.state == DEAD))
    if retried:
        # Where a process has died before it published them, they would seem to have ended.
        with suppress(QueueNotFound):
            retrying.publish_pending(group.opened_queue(names.queue_directory(name)).store)
    return dead, parts_of(name, retried)


def _results_of(group: HasQueues, parts: Sequence[BatchTasks]) -> tuple[list[Result], list[str]]:
    """Return what is known of tasks of a queue, in their order; and the ids of the tasks that were inserted in the
    place of others.
    """
    queue = group.opened_queue(names.queue_directory(parts[0].queue))
    with suppress(QueueNotFound), resources.Scope():
        if queue.exists():
            ids = [task_id for part in parts for task_id in part.ids()]
            found = task_results.results_of(queue.store, ids)
            unknown = [task_id for task_id in ids if task_id not in found]
            retried = deadletters.retried(queue.store, unknown) if unknown else {}
            return [found[one] for one in ids if one in found], [retried[one] for one in unknown if one in retried]
    return [], []


def parts_of(queue: str, ids: Iterable[str]) -> list[BatchTasks]:
    """Return tasks of a queue by their batches, in the order in which these come first."""
    found: dict[Batch, set[int]] = {}
    for task_id in ids:
        batch, index = names.parse_task_id(task_id)
        found.setdefault(batch, set()).add(index)
    return [BatchTasks.of(queue, batch, indices) for batch, indices in found.items()]


# -- asked by users ----------------------------------------------------------------------------------------------------


def tasks_of(group: HasQueues, given: object) -> tuple[BatchTasks, ...]:
    """Return the tasks that references and named commits stand for, each once, by batches. InvalidArgument."""
    each = [given] if isinstance(given, (TaskRef, Commit)) or is_commits_name(given) else given
    if not isinstance(each, Iterable) or isinstance(each, (str, bytes, dict)):
        raise InvalidArgument(_WANTED.format(shown(given)))
    found: dict[tuple[str, Batch], set[int]] = {}
    for one in user_items(each):
        match one:
            case TaskRef(queue=GroupQueue() as queue) if queue.group.path == group.path:
                batch, index = names.parse_task_id(one.id)
                found.setdefault((queue.name, batch), set()).add(index)
            case Commit() | tuple() if isinstance(one, Commit) or is_commits_name(one):
                for part in _of_commit(group, one if isinstance(one, Commit) else _commit_named(group, *one)):
                    found.setdefault((part.queue, part.batch), set()).update(part.indices())
            case TaskRef():
                raise InvalidArgument(
                    f"The task {one.id} is not known as one of a queue of the group {group.path}: insert it by "
                    "Group(PATH)[NAME], which is no queue behind a gateway. Nothing was done."
                )
            case _:
                raise InvalidArgument(_WANTED.format(shown(one)))
    if not found:
        raise InvalidArgument("A join waits for one task at least. Nothing was done.")
    return tuple(BatchTasks.of(queue, batch, indices) for (queue, batch), indices in found.items())


_WANTED = "A join takes references to tasks, as insert returns them, or named commits, not {}. Nothing was done."


def is_commits_name(given: object) -> bool:
    """Return whether this names a commit by its queue and its name."""
    return isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], str) and given[1] != ""


def _commit_named(group: HasQueues, queue: object, name: str) -> Commit:
    """Return the commit of a queue, or of one that is named. InvalidArgument."""
    at = queue.name if isinstance(queue, GroupQueue) and queue.group.path == group.path else queue
    found = group.opened_queue(names.queue_directory(at))  # InvalidArgument
    if not found.exists():
        raise InvalidArgument(
            f"{shown(queue)} is no queue that is there, so it has no commit {name}. Nothing was done."
        )
    return found.commit(name)


def _of_commit(group: HasQueues, commit: Commit) -> Iterator[BatchTasks]:
    """Yield the tasks of a named commit that was published."""
    name = commit.store.name_in_group
    if name is None or str(group.opened_queue(names.queue_directory(name)).path) != commit.store.path:
        raise InvalidArgument(f"{commit!r} is not of a queue of the group {group.path}. Nothing was done.")
    known = None if commit.committed() is None else commits.find(commit.store, commit.store.layout, commit.name)
    if known is None:
        raise InvalidArgument(f"Nothing was published under the name {commit.name} in {name!r}. Nothing was done.")
    most = min(commit.store.settings.batch_tasks_max, BATCH_TASKS_MAX)
    for part in known.parts:  # a batch may have fewer tasks: what is no task has ended
        whole = ((0, min(part.tasks, most)),)
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
    """Yield what came of the tasks that the join of a task waited for. InvalidArgument if it is a task of no join.

    The task may be one that was inserted in the place of the join's, by a retry.
    """
    store.verify()
    record, known = None, task_id
    for _ in range(RETRIES_MAX):
        record = _join_of(directory, store, names.parse_task_id(known)[0])
        before = deadletters.repeats(store, known) if record is None else None
        if before is None:
            break
        known = before
    if record is None:
        raise InvalidArgument(
            f"The task {task_id} has no inputs: no join has inserted it, or its join was forgotten, as a week after "
            "its end. 'fsqueue barrier GROUP' lists those that are known."
        )
    left = [*record.tasks]
    while left:
        again = list[BatchTasks]()
        for some in _together(left):
            found, retried = _results_of(group, some)
            yield from found
            again += parts_of(some[0].queue, retried)
        left = again


def _join_of(directory: GroupDirectory, store: Store, batch: Batch) -> BarrierRecord | None:
    """Return the join whose commit has a batch; None if none has.

    Both have their time in their names. Mostly it is the join that is the nearest.
    """
    birth = names.birth_ms(batch)
    steps = barrier_files.steps(directory)
    for identity in sorted(steps, key=lambda one: abs(names.birth_ms(one) - birth)):
        try:
            with PassingOverStrays():
                record, _ = barrier_files.find(directory, identity, steps[identity]) or (None, None)
        except FsqueueError as error:  # another join's file may be damaged: fsck tells
            let_out(error)
            continue
        if record is None or not record.tasks or store.name_in_group not in record.targets():
            continue
        known = commits.find(store, store.layout, names.commit_name(record.commit))
        if known is not None and any(part.has(batch) for part in known.parts):
            return record
    return None
