"""The limits that the loop of a worker keeps to: its options, and constants that are the same for all."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from fsqueue.clock import Clock
from fsqueue.cluster import schedulers, slurm
from fsqueue.errors import InvalidArgument
from fsqueue.format import names
from fsqueue.worker.causes import Cause, Memory

KILL_S = 5.0
"""Time from SIGTERM to SIGKILL; the grace, if that is shorter."""
KILLED_S = 3.0
"""Maximum wait for the end of a process after SIGKILL: the kernel may hold it for as long as a file server is
away."""
GIVE_BACK_S = 15.0
"""Time in which a worker that ends because of an error of its own tries to put back what it holds."""
LEAVE_S = 5.0
"""Maximum time that the worker stays after a second signal to report what it holds."""
FAILURES_FIRST = 10
"""Number of failures before the first success that stops the worker: the command is likelier wrong than each task."""
STALL_S = 1.0
"""Time after which what was leased ahead and is not begun is given to others."""
UNTOLD_MAX = 256
"""Maximum number of outcomes that the queues have not been told. Beyond it, a worker takes nothing more."""
UNTOLD_BYTES_MAX = 64 << 20
"""Maximum number of bytes of tasks to insert with such outcomes. Beyond it, a worker takes nothing more."""
TASKS_PER_COMMAND_MAX = 1_000
"""Maximum number of tasks that one command gets."""

_STATUS = re.compile(r"[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class Moves:
    """Which tasks go to another queue of their group when an attempt at them fails, and to which."""

    queue: str
    """Its name."""
    on_oom: bool
    on_timeout: bool
    on_exits: frozenset[int]
    """The exit statuses of commands."""

    @classmethod
    def of(cls, queue: str, causes: Sequence[str]) -> Moves:
        """Return what `then_to` and `on` of a worker ask for. InvalidArgument."""
        names.queue_directory(queue)
        if isinstance(causes, str) or not causes:
            raise InvalidArgument(f"on (--on) must name what moves a task to {queue}: {_CAUSES}, not {causes!r}.")
        exits = set()
        for cause in causes:
            name, _, status = str(cause).partition("=")
            if cause in ("oom", "timeout"):
                continue
            if name != "exit" or _STATUS.fullmatch(status) is None or not 1 <= int(status) <= 255:
                raise InvalidArgument(f"on (--on) takes {_CAUSES}, not {cause!r}.")
            exits.add(int(status))
        return cls(queue, "oom" in causes, "timeout" in causes, frozenset(exits))

    def take(self, timed_out: bool, cause: Cause) -> bool:
        """Return whether a task moves whose attempt has timed out, or has failed for this cause."""
        if timed_out:
            return self.on_timeout
        return (self.on_oom and cause.memory is not Memory.ENOUGH) or cause.exit_status in self.on_exits


_CAUSES = "oom, timeout, exit=N (an exit status of a command, from 1 to 255)"


@dataclass(frozen=True, slots=True)
class Limits:
    """The options of a worker that the loop keeps to; infinite where there is no limit."""

    lease_s: float
    task_timeout_s: float
    grace_s: float
    forever: bool
    prefetch: int | None
    max_tasks: float
    max_runtime_s: float
    idle_timeout_s: float
    failures_max: float
    failures_first: float
    """Number of failures in a row after which it ends, too, as long as nothing has succeeded."""
    exclude_after: int | None
    kills_lost: bool
    patience_s: float
    max_attempts: float
    """A task whose attempt fails here is given up after `max_attempts` attempts."""
    moves: Moves | None = None
    tasks_per_command: int = 1
    """Maximum number of tasks that a command gets: each adds to its time."""
    reports_at_once: bool = False
    """Whether outcomes are reported at once while there is nothing else to do: somebody waits for each."""


def stop_time(limits: Limits, began: float) -> tuple[float, str]:
    """Return when to stop, on the monotonic clock, and why: early enough before the end of a job to put everything
    back.
    """
    at, why = math.inf, ""
    if limits.max_runtime_s < math.inf:
        at, why = began + limits.max_runtime_s, "max-runtime"
    end, clock = slurm.job_end() or schedulers.job_end(), Clock()
    if end is not None:
        left_s = end - clock.local_ms() / 1000 - limits.grace_s - 2 * KILL_S
        if clock.monotonic() + left_s < at:
            at, why = clock.monotonic() + left_s, "job-end"
    return at, why
