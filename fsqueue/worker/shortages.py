"""What the system has too little of: calls that it refuses, how long to wait, and what helps; limits of open files and
of memory.

A refused call ends no worker. What could not be begun waits for a pause, or is put back. Only a worker at which nothing
is at work, so that nothing will be given back, ends after some time: with all tasks put back, and words that say why.
"""

from __future__ import annotations

import errno
import math
import re
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fsqueue.clock import Backoff
from fsqueue.errors import NO_DESCRIPTORS, FsqueueError, StorageError, from_os_error
from fsqueue.filesystem.processes import oom_kills
from fsqueue.worker.causes import Memory

_NO_MEMORY = (errno.ENOMEM, errno.ENOBUFS)
SHORT = (*NO_DESCRIPTORS, *_NO_MEMORY, errno.EAGAIN)
"""What the system says when it has no descriptor, memory or process left. It passes, most likely."""
PAUSES_S = (0.1, 5.0)
"""Shortest and longest pause before a refused call is made again."""
OWN_S, PATIENCE_S = 5.0, 60.0
"""Time that a worker with nothing at work waits: for descriptors of its own, and for what others may give back."""
TRIES = 6
"""Minimum number of tries: on a busy machine a few tries may take all of that time."""
FORGOTTEN_S = 15.0
"""A refusal that much later is the first of a new shortage: there was nothing to begin meanwhile."""
FEWER = "or execute fewer tasks at a time (-j, processes=)"
FILES_EACH = 5
"""The descriptors that the worker has open for a process: of a socket, or kept output; two pipes; a supervisor's."""
FILES_SPARE = 256
"""Number of descriptors left for the files of the queues; a quarter of all, if that is less."""
_MEMORY = re.compile(
    r"MemoryError|bad_alloc|OutOfMemory|(?:out of|insufficient|virtual) memory|memory exhausted"
    r"|(?:can ?not|could not|failed to|unable to) (?:allocate|map|mmap|reserve)(?: \w+){0,2} "
    r"(?:memory|segment|space|stack|heap|vector)",
    re.IGNORECASE,
)
"""Matches what programs print that got no memory."""
KILLED_BELOW = 128 + signal.SIGKILL
"""With this exit status, shells and srun say that SIGKILL has ended what they had started."""
KILLS_S = 5.0
"""Number of seconds for which a kill that the kernel has counted explains the ends of processes by SIGKILL: one kill
may end several."""
_COUNTED = "the memory of its job or container was used up"
_OF_MEMORY = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS)
"""How programs die that do not look whether they got memory."""


class NoSupervisor(OSError):
    """Raised if the process that starts commands and functions has ended, or gives no answer, each time it is asked.

    Like a refused call, it is tried again after a pause. `why`: what became of that process, as the end of a sentence.
    """

    def __init__(self, why: str) -> None:
        super().__init__(errno.EAGAIN, f"The process that starts commands and functions {why}")


def is_short(error: OSError) -> bool:
    """Return whether a call was refused for want of something."""
    return error.errno in SHORT


def words(error: OSError, what: str, then: str) -> str:
    """Return what happened, what `then` holds, and what helps, in sentences."""
    if isinstance(error, NoSupervisor):
        advice = "Look for what ends or stops it: the limits of the job, the kernel's log (dmesg)"
        return f"{what}. {error.strerror}. {then} {advice}."
    if error.errno in NO_DESCRIPTORS:
        advice = "Raise the limit of open files (ulimit -n)"
    elif error.errno in _NO_MEMORY:
        most = address_space()
        limit = f"raise the limit of each process (ulimit -v, which is {most}), " if most else ""
        advice = f"Free memory, {limit}give the job more of it"
    else:
        advice = "Raise the limit of processes (ulimit -u, or that of the job or container)"
    return f"{what}: {error.strerror or error}. {then} {advice}, {FEWER}."


def explain(error: OSError, what: str, doing: str) -> FsqueueError:
    """Return the error of a worker that ends because of `error`: `what` happened while `doing` something."""
    then = "What the worker held was put back, or comes back when its leases end."
    return StorageError(words(error, what, then)) if is_short(error) else from_os_error(error, doing, then)


class KilledForMemory:
    """Tells which processes that SIGKILL has ended were killed by the kernel, because memory was used up."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._count = oom_kills()
        self._counted_at = -math.inf
        """When the counter was last seen to have grown."""

    def is_likely(self) -> bool | None:
        """Return whether the kernel has counted such a kill within `KILLS_S`; None if there is no counter."""
        count = oom_kills()
        if count is not None and self._count is not None and count > self._count:
            self._counted_at = self._now()
        self._count = count
        return None if count is None else self._now() < self._counted_at + KILLS_S

    def judge(self, status: int, said: str, is_own: bool) -> tuple[Memory, str]:
        """Return whether memory is to blame for the end of a process, and how it has ended, in words ("" if not).

        `said`: what it has printed at last. `is_own`: whether this worker has sent it a signal.
        """
        if -status == signal.SIGKILL and not is_own:
            is_likely = self.is_likely()
            if is_likely:
                return Memory.SHORT, f"killed by SIGKILL; {_COUNTED}"
            return (Memory.PROBABLY_SHORT, "killed by SIGKILL") if is_likely is None else (Memory.ENOUGH, "")
        if status == KILLED_BELOW:
            if self.is_likely():
                return Memory.SHORT, f"exit status {status}; {_COUNTED}"
            how = f"exit status {status}: SIGKILL has ended a process that it had started"
            return Memory.PROBABLY_SHORT, how
        if status > 0 and _MEMORY.search(said.rstrip().rpartition("\n")[2]):
            return Memory.SHORT, f"exit status {status}"
        return Memory.ENOUGH, ""


class Shortage:
    """The pauses between calls that were refused. Used in the loop's thread alone."""

    def __init__(self, now: Callable[[], float], random: Callable[[], float]) -> None:
        self._now, self._random = now, random
        self._last = -math.inf
        self.over()

    def over(self) -> None:
        """Note that a call was not refused."""
        self.until = self._since = math.inf
        self._count = 0
        self._backoff = Backoff(PAUSES_S, self._random, 2)

    @property
    def is_on(self) -> bool:
        """Return whether a pause is going on: `until` is its end on the monotonic clock. `pass_by` ends it."""
        return self.until < math.inf

    def pass_by(self, now: float) -> bool:
        """End the pause if its time is over. Return whether it is: the call may be made again."""
        if now < self.until:
            return False
        self.until = math.inf
        return True

    def met(self) -> bool:
        """Note a refused call, and begin a pause. Return whether it is the first in a row."""
        now = self._now()
        if now - self._last > FORGOTTEN_S:
            self.over()
        is_first = self._since == math.inf
        self._since, self._last = min(self._since, now), now
        self._count += 1
        self.until = now + self._backoff.next_s()
        return is_first

    def is_hopeless(self, error: OSError) -> bool:
        """Return whether a worker at which nothing is at work has waited long enough."""
        return self._count >= TRIES and self._now() - self._since >= (
            OWN_S if error.errno == errno.EMFILE else PATIENCE_S
        )


def address_space() -> str:
    """Return how much memory a process of this worker may have, in words; "" without a limit."""
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return "" if most == resource.RLIM_INFINITY else f"{most / 2**30:.1f} GiB"


def memory(said: str, status: int | None = None) -> str:
    """Return what to add to a failure in which memory seems to lack: " (…)", or "" if nothing limits it by ulimit -v.

    `said`: what was printed or raised; `status`: how the process ended.
    """
    most = address_space()
    if not most or not (_MEMORY.search(said) or (status is not None and -status in _OF_MEMORY)):
        return ""
    return f" (ulimit -v allows each process {most} of memory: raise it, or remove it)"


def processes_max() -> int | None:
    """Return for how many processes the soft limit suffices; None without a limit."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return None if limit == resource.RLIM_INFINITY else _suffices_for(limit)


@contextmanager
def room_for(processes: int, say: Callable[[str], object]) -> Iterator[None]:
    """Raise the soft limit of open files to what `processes` processes need, until the end of the block.

    It goes no higher, since processes inherit it: some close all numbers below the limit when they begin. `say` gets a
    sentence if the hard limit does not suffice.
    """
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = raise_open_files(processes * FILES_EACH + FILES_SPARE)
    if (few := _suffices_for(most)) < processes:
        say(
            f"{most:,} open files, the hard limit (ulimit -Hn), suffice for about {few:,} of {processes:,} tasks at a "
            "time. Further ones wait. Have the limit raised, or start workers with a smaller -j on several nodes."
        )
    try:
        yield
    finally:
        if resource.getrlimit(resource.RLIMIT_NOFILE) != before:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)


def raise_open_files(wanted: int) -> int:
    """Raise this process's soft limit of open files to `wanted`, or to the hard limit. Return how many it may have now,
    `wanted` at most.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return wanted
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    except (OSError, ValueError):
        return soft
    return most


def _suffices_for(limit: int) -> int:
    return max(1, (limit - min(FILES_SPARE, limit // 4)) // FILES_EACH)
