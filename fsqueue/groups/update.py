"""Changes to tasks of several queues of one group, all or nothing (docs/updates.md, "Updates")."""

from __future__ import annotations

import weakref
from functools import partial
from pathlib import Path
from typing import Protocol

from fsqueue.errors import GroupNotFound, InvalidArgument, TaskTooLarge, from_os_error
from fsqueue.filesystem import resources
from fsqueue.format import names
from fsqueue.format.layout import Settings
from fsqueue.format.models import TellsOfTasks
from fsqueue.format.names import QueueDirectory
from fsqueue.groups.pending_update import NOTHING, PendingUpdate
from fsqueue.groups.queue import GroupQueue
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol.keyed_inserts import KeyedInserter
from fsqueue.protocol.single_inserts import SingleInserter, may_append
from fsqueue.protocol.update_plan import Applied, QueuePlan
from fsqueue.protocol.updates import Coordinator
from fsqueue.queue import Queue
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.store import Store


class HasUpdates(Protocol):
    """Say what an update asks of its group. `Group` has it."""

    coordinator: Coordinator

    @property
    def path(self) -> Path:
        """Return the group's directory."""

    def directory(self) -> GroupDirectory:
        """Return the open group. GroupNotFound if it is not in its place, or another one is."""

    def opened_queue(self, directory: QueueDirectory) -> GroupQueue:
        """Return a queue by the name of its directory, the same object as the last time if that is kept."""

    def __getitem__(self, name: str) -> GroupQueue:
        """Return a queue by its name. It need not be there."""


class Update(PendingUpdate[Queue, QueuePlan]):
    """An update that this process applies: `group.update()`. See `PendingUpdate`."""

    def __init__(self, group: HasUpdates) -> None:
        super().__init__()
        self.group = group
        self._plans: dict[QueueDirectory, QueuePlan] = {}
        self._queues: dict[QueueDirectory, Queue] = {}

    def _queue_named(self, name: str) -> TellsOfTasks:
        return self.group[name]

    def _usual_lease_ms(self, task: LeasedTask) -> int:
        return task.queue.store.lease_ms

    def _carry_out(self, timeout_s: float) -> Applied:
        plans = [plan for plan in self._plans.values() if plan.has_inserts or plan.endings]
        try:
            with resources.Scope():
                return self.group.coordinator.apply(self.group.directory, plans, timeout_s)
        except GroupNotFound as error:
            raise GroupNotFound(f"{error} {NOTHING}") from error
        except OSError as error:
            raise from_os_error(error, f"applying an update in {self.group.path}", NOTHING) from error

    def _forget(self) -> None:
        self._plans, self._queues = {}, {}

    def _plan(self, queue: object) -> QueuePlan:
        """Return the plan of a queue: by its name, or the queue itself. InvalidArgument if it is not this group's."""
        own: object = self.group
        if isinstance(queue, str):
            directory = names.queue_directory(queue)
        elif isinstance(queue, GroupQueue) and queue.group is own:
            directory = queue.directory
            self._queues[directory] = queue
        elif isinstance(queue, Queue):
            found = names.listed_queue_directory(queue.path.name)
            if found is None or queue.path.parent != self.group.path:
                raise InvalidArgument(
                    f"The queue {queue.path} is not in the group {self.group.path}. An update changes queues of one "
                    "group. Nothing was done."
                )
            directory = found
            if isinstance(queue, GroupQueue) or directory not in self._queues:
                self._queues[directory] = queue
        else:
            raise InvalidArgument(f"A queue of the group is expected, or its name, not {queue!r:.100}.")
        plan = self._plans.get(directory)
        if plan is None:
            name, update = names.parse_queue_directory(directory) or directory, weakref.ref(self)
            plan = self._plans[directory] = QueuePlan(name, directory, lambda: _opened(update, directory))
        return plan

    def _open(self, directory: QueueDirectory) -> tuple[Store, SingleInserter, KeyedInserter]:
        """Open a queue, and verify it. It is made only if there is nothing but inserts for it.

        QueueNotFound, GroupNotFound.
        """
        plan = self._plans[directory]
        queue = self._queues.get(directory)
        if queue is None or (plan.has_inserts and not isinstance(queue, GroupQueue)):
            queue = self.group.opened_queue(directory)
        if not isinstance(queue, GroupQueue):
            queue.store.verify()
        elif plan.endings:
            queue._open_and_verify()  # an empty queue would be in the way of one that is moved back
        else:
            queue._begin(True, partial(_check, plan, str(queue.path)))
        _check(plan, queue.store.path, queue.store.settings, queue.store.domain)
        return queue.store, queue._inserter, queue._keyed


def _opened(of: weakref.ref[Update], directory: QueueDirectory) -> tuple[Store, SingleInserter, KeyedInserter]:
    """Open a queue for an update that is being applied. Its plans do not keep an update that was let go of."""
    update = of()
    assert update is not None
    return update._open(directory)


def _check(plan: QueuePlan, path: str, settings: Settings, domain: str) -> None:
    """Raise InvalidArgument if a queue takes no inserts of an update; TaskTooLarge if one, or a new payload, is longer
    than it takes.
    """
    if plan.has_inserts and not may_append(settings, domain):
        raise InvalidArgument(
            f"The queue {path} has a file for each task (batch_tasks_max is {settings.batch_tasks_max}), or this host "
            f"has no boot id: an update cannot insert into it. {NOTHING}"
        )
    if plan.longest > settings.task_bytes_max:
        raise TaskTooLarge(
            f"A task for {path} takes {plan.longest:,} bytes; the queue takes {settings.task_bytes_max:,}. {NOTHING} "
            "Store the data in a file, and insert its path."
        )
