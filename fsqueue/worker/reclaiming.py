"""The program that ends the leases of a killed worker (docs/decisions/0042-leases-of-a-killed-worker.md).

The worker's fork server becomes this program when the worker is proven dead, and nothing is left of what it has
started. So it needs no proof of its own, and nothing waits for it.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence

from fsqueue.clock import Backoff, Clock, Entropy
from fsqueue.errors import FormatTooNew, FormatTooOld, FsqueueError, NotAQueue, QueueNotFound
from fsqueue.filesystem import resources
from fsqueue.groups.group import Group
from fsqueue.protocol import revoking
from fsqueue.queue import Queue
from fsqueue.worker import spawning

logger = logging.getLogger("fsqueue")

TRY_S = 60.0
"""How long it is tried again while the file server does not answer, or a log is locked. The leases run out anyway."""
PAUSE_S = (0.5, 10.0)
"""The first and the longest pause between two tries."""
_NO_QUEUE = (QueueNotFound, NotAQueue, FormatTooNew, FormatTooOld)
"""Errors at which a repeat would find nothing, either."""


def command(paths: Sequence[str], run_id: str) -> list[str]:
    """Return the command line that ends the leases of a run in these queues, and in all queues of these groups."""
    return [*spawning.python("reclaiming"), run_id, *map(os.path.abspath, paths)]


def main() -> None:
    """End the leases of a run. The arguments: its id, and the paths of the queues and groups."""
    run_id, *paths = sys.argv[1:]
    reclaim([queue for path in paths for queue in _queues_at(path)], run_id)


def _queues_at(path: str) -> list[str]:
    """Return the paths of a group's queues; or the path, if it is not a group's."""
    try:
        group = Group.at(path)
        return [path] if group is None else [str(queue.path) for queue in group.queues(tasks_min=0)]
    except (OSError, FsqueueError) as error:
        logger.debug("leases in %s could not be ended: %s", path, error)
        return []


def reclaim(
    paths: Sequence[str],
    run_id: str,
    clock: Clock | None = None,
    open_queue: Callable[[str], Queue] = Queue,
) -> int:
    """End the leases of a run in these queues. Return how many.

    A queue that fails is tried again, after the others, for `TRY_S`. Raises nothing of fsqueue's: what is left runs out
    by itself.
    """
    clock = clock or Clock()
    deadline, backoff, ended, left = clock.monotonic() + TRY_S, Backoff(PAUSE_S, Entropy().random, 2), 0, list(paths)
    while True:
        again = []
        for path in left:
            try:
                with open_queue(path) as queue, resources.Scope():
                    count, busy = revoking.expire_run(queue.store, run_id)
                ended += count
                if busy:
                    again.append(path)
            except _NO_QUEUE as error:
                logger.debug("%s has no leases to end: %s", path, error)
            except (OSError, FsqueueError) as error:
                logger.debug("leases in %s could not be ended: %s", path, error)
                again.append(path)
        left = again
        if not left or clock.monotonic() >= deadline:
            return ended
        clock.sleep(backoff.next_s())
