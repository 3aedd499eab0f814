"""Have as many open files as the processes of a worker need: raise the soft limit, up to the hard one."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager

FILES_EACH = 5
"""The descriptors that the worker has open for a process: of a socket, or kept output; two pipes; a supervisor's."""
FILES_SPARE = 256
"""Number of descriptors left for the files of the queues; a quarter of all, if that is less."""


def processes_max() -> int | None:
    """Return for how many processes the soft limit suffices; None without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else _suffices_for(limit)


@contextmanager
def room_for(processes: int, say: Callable[[str], object]) -> Iterator[None]:
    """Raise the soft limit of open files to what so many processes need, until the end of the block.

    It goes no higher, since processes inherit it: some close all numbers below the limit when they begin. `say` gets a
    sentence if the hard limit does not suffice.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = processes * FILES_EACH + FILES_SPARE
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        yield
        return
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        most = soft
    if (few := _suffices_for(most)) < processes:
        say(
            f"{most:,} open files, the hard limit (ulimit -Hn), suffice for about {few:,} of {processes:,} tasks at a "
            "time. Further ones wait. Have the limit raised, or start workers with a smaller -j on several nodes."
        )
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def _suffices_for(limit: int) -> int:
    return max(1, (limit - min(FILES_SPARE, limit // 4)) // FILES_EACH)
