"""A task that always lives, and never where the look is: it hops from place to place by every verb there is.

`Hopper` is the other process. Before a look lists a directory in which the task is, the next task is inserted
elsewhere, and then the one that is there gets its outcome. Batches end with their last task, without the time in which
an open batch lingers: so nothing of them is left to be seen but what a batch leaves that has ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from fsqueue import Group, LeasedTask, TaskInfo
from fsqueue.filesystem import Filesystem
from fsqueue.format import names
from fsqueue.groups.queue import GroupQueue
from fsqueue.protocol import finishing
from fsqueue.storage import commits, group_directory, retrying, staging, store
from tests.concurrency.trapped import Trapped
from tests.support import insert_in_file

SPARE = 40
"""Dead letters, and completed tasks, that each queue has to begin with: to be retried."""


def end_by(verb: str, queue: GroupQueue, found: TaskInfo) -> None:
    """Give the task its outcome."""
    if verb in ("cancel", "replace", "revoke", "update"):
        if verb == "replace":
            with queue.group.update() as update:
                update.replace(found, "another payload")
        elif verb == "revoke":
            assert queue.lease()
            assert queue.release_all() == 1
        elif verb == "update":
            (task,) = queue.lease()
            with queue.group.update() as update:
                update.cancel(task)
            return
        assert queue.cancel([found.id]) == 1
        return
    (task,) = queue.lease()
    assert task.id == found.id
    _ENDS[verb](task)


_ENDS: dict[str, Callable[[LeasedTask], object]] = {
    "complete": lambda task: task.complete(),
    "bury": lambda task: task.bury("no good"),
    "spend": lambda task: task.fail("no more attempts"),
    "release": lambda task: (task.release(), task.queue.cancel([task.id])),
}
ENDS = ("cancel", "replace", "revoke", "update", *_ENDS)
"""How a task gets its outcome: all but the first ones of `_ENDS` by a cancellation."""
WAYS = ("file", "open", "key", "commit", "pending", "retry", "retry-staged", "retry-completed", "update")
"""How the next task comes into being."""


class Hopper:
    """The one task that lives in the queues `queues` of a group, and where it is."""

    def __init__(self, path: Path, way: str, verb: str, queues: str = "ab") -> None:
        self.group = Group.create(path, shards=2, durability="none", max_attempts=1)
        self.way, self.verb = way, verb
        self.queues = {name: self.group[name] for name in queues}
        self._numbers = itertools.count()
        self.hops = 0
        self.is_hopping = False
        for queue in self.queues.values():
            queue.insert_many(range(2 * SPARE), batch_tasks=1)  # of each shard some
            for number, task in enumerate(queue.lease(2 * SPARE)):
                task.bury("to be retried") if number % 2 else task.complete()
        self._letters = {name: [one.id for one in queue.dead()] for name, queue in self.queues.items()}
        self._completed = {name: [one.id for one in queue.tasks("completed")] for name, queue in self.queues.items()}
        self.queue = next(reversed(self.queues.values()))
        insert_in_file(self.queue, "first")
        self.is_pending = False
        (self.task,) = self.queue.tasks()

    def is_at(self, directory: str) -> bool:
        """Return whether a listing of this directory would lead to the task."""
        layout = self.queue.store.layout
        if self.is_pending:
            return directory in (layout.pending, layout.staging)
        shard = layout.shard(names.parse_task_id(self.task.id)[0])
        return directory in (f"{layout.tasks}/{shard}", f"{layout.logs}/{shard}")

    def avoid(self, directory: str) -> None:
        """Let the task be elsewhere before a look lists this directory."""
        if self.is_hopping:
            return
        self.is_hopping = True
        try:
            for tries in itertools.count():
                if not self.is_at(directory):
                    break
                # The only queue may have one open batch, of this shard: then a file of its own is made.
                self.hop(directory, "file" if tries > 3 and self.way in ("open", "key", "update") else self.way)
        finally:
            self.is_hopping = False

    def hop(self, directory: str, way: str) -> None:
        """Insert the next task into a queue that is not looked at, if there is another one; then end this one."""
        if self.is_pending:
            commits.apply_pending(self.queue.store)  # what it was published by is only gone on with
            retrying.publish_pending(self.queue.store)
            self.is_pending = False
            (self.task,) = self.queue.tasks()
            return
        self.hops += 1
        others = [one for one in self.queues.values() if not directory.startswith(one.store.layout.base)]
        before, old_queue, self.queue = self.task, self.queue, (others or [self.queue])[0]
        if way == "update":
            self._by_update(old_queue, before)
            return
        new = self._insert(way)
        if new is None:
            self.is_pending = True
        else:
            self.task = self.queue.task(new)
        end_by(self.verb, old_queue, old_queue.task(before.id))

    def _by_update(self, old_queue: GroupQueue, before: TaskInfo) -> None:
        with self.group.update() as update:
            if self.verb in _ENDS and self.verb != "release":
                (task,) = old_queue.lease()
                update.complete(task) if self.verb == "complete" else update.bury(task, "no good")
            else:
                update.cancel(old_queue.task(before.id))
            update.insert(self.queue.name, next(self._numbers))
        (ref,) = [one for one in update.results if one is not None and one.id != before.id]
        self.task = self.queue.task(ref.id)

    def _insert(self, way: str) -> str | None:
        """Insert the next task; return its id, or None if it is decided and not published."""
        queue, number = self.queue, next(self._numbers)
        known = {one.id for one in queue.tasks()}
        if not {"retry": self._letters, "retry-staged": self._letters}.get(way, self._completed)[queue.name]:
            way = "file"  # all of them are retried by now
        match way:
            case "file":
                return insert_in_file(queue, number).id
            case "open":
                return queue.insert(number).id
            case "key":
                return queue.insert(number, key=str(number)).id
            case "commit":
                queue.insert_many([number], commit=f"c{number}")
            case "pending":
                with mock.patch.object(commits, "apply"):
                    queue.insert_many([number], commit=f"c{number}")
                return None
            case "retry":
                assert queue.retry_dead([self._letters[queue.name].pop()]) == 1
            case "retry-staged":
                with mock.patch.object(staging, "publish", return_value=()):
                    assert queue.retry_dead([self._letters[queue.name].pop()]) == 1
                return None
            case "retry-completed":
                assert queue.retry_completed([self._completed[queue.name].pop()]).retried == 1
        (new,) = [one.id for one in queue.tasks() if one.id not in known]
        return new

    def end(self) -> None:
        """Give the last task its outcome: from now on there is none."""
        self.is_hopping = True
        while self.is_pending:
            self.hop("", self.way)
        end_by("cancel", self.queue, self.queue.task(self.task.id))

    @contextmanager
    def hopping(self) -> Iterator[Group]:
        """Yield the group as another process has it: whatever it lists, the task is elsewhere by then."""

        def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
            if step == "names":
                self.avoid(args[0])
            return call(*args)

        def filesystem(root: str, **_: Any) -> Filesystem:
            return Trapped(root, trap)

        with (
            mock.patch.object(store, "Filesystem", filesystem),
            mock.patch.object(group_directory, "Filesystem", filesystem),
            mock.patch.object(finishing, "LINGER_MS", -1),
        ):
            yield Group(self.group.path)
