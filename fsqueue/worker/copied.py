"""What a worker says of queues that may be copies: once of each, and once of each group."""

from __future__ import annotations

import logging
from collections.abc import Callable

from fsqueue.errors import FsqueueError
from fsqueue.filesystem import resources
from fsqueue.groups.queue import GroupQueue
from fsqueue.queue import Queue
from fsqueue.storage import copies
from fsqueue.views import copy_warnings

logger = logging.getLogger("fsqueue")


class CopyCheck:
    """Ask of each queue, when the worker begins to take tasks from it, whether it may be a copy. One thread's."""

    def __init__(self) -> None:
        self.begun: list[Queue] = []
        """Those that the worker has begun with, and were not asked about."""
        self._asked: set[str] = set()
        """The paths of those that were, and of groups of which a warning was given."""

    def forget(self) -> None:
        """Ask of all of them once more: what was away may have come back as another one."""
        self._asked.clear()

    def warnings(self, asking: Callable[[Queue], object], say: Callable[[str], object]) -> None:
        """Say what there is to say of those that were begun with. `asking` is told which one is asked.

        A queue that cannot be asked is passed by: the worker meets the error when it leases.
        """
        begun, self.begun = self.begun, []
        for queue in begun:
            path = queue.store.path
            group = str(queue.group.path) if isinstance(queue, GroupQueue) else path
            if not self._asked.isdisjoint((path, group)):
                continue
            self._asked.add(path)
            asking(queue)
            try:
                with resources.Scope():
                    is_copy = copies.is_copy(queue.store)
            except (OSError, FsqueueError) as error:
                logger.debug("whether %s is a copy could not be found out: %s", path, error)
                continue
            if is_copy:
                self._asked.add(group)
                if isinstance(queue, GroupQueue):
                    say(copy_warnings.in_group(queue.typed_path, group))
                else:
                    say(copy_warnings.of_queue(path))
