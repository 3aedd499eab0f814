"""A task at a worker, and what all that do tasks have in common: commands, child processes, threads."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from fsqueue.errors import FULL, FsqueueError, InvalidArgument, from_os_error
from fsqueue.format.models import Used
from fsqueue.leased_task import LeasedTask
from fsqueue.worker.limits import STALL_S
from fsqueue.worker.output_relay import Output


class SharedCommand:
    """What the tasks of one command have in common."""

    __slots__ = ("left", "since")

    def __init__(self, left: int, since: float) -> None:
        self.left = left
        """Number of tasks that are at work."""
        self.since = since
        """When it began, or gave its last answer."""


class Job:
    """A task that this worker holds. Times are of the monotonic clock."""

    __slots__ = (
        "batch", "began", "begun_under", "doomed", "kill_at", "killed", "leads", "number", "settled", "task", "used",
        "why",
    )  # fmt: skip

    def __init__(self, task: LeasedTask) -> None:
        self.task = task
        """The task under the lease that holds it now."""
        self.begun_under = task
        """The task under the lease that it was handed out with: that lease's attempt is the one at work."""
        self.number = 0
        """Which giving of a task to a child process this is; 0: none. No two givings have the same number."""
        self.began = math.inf
        """When the work on it began, as far as is known."""
        self.doomed = ""
        """Why it was told to end: timeout, lost or stop."""
        self.why = ""
        """The same in words, where they become the reason of a failure."""
        self.settled: str | None = None
        """What became of it, if its command told the queue itself."""
        self.kill_at = math.inf
        """When SIGKILL is due."""
        self.killed = False
        """Whether a signal ended its process, whatever sent it."""
        self.used: Used | None = None
        """What the work used, once it has ended and if that was measured."""
        self.batch: SharedCommand | None = None
        """What it has in common with the other tasks of its command; None if a command has no other."""
        self.leads = True
        """Whether its failure counts among those in a row: of tasks that failed with one command, one."""

    @property
    def gone(self) -> str:
        """Return the outcome of a task that is not this worker's any more: nothing is reported. "" if it still is."""
        return self.settled or ("lost" if self.doomed == "lost" else "")

    def untouched(self) -> Job:
        """Return this job, which has come back unbegun, without what was meant for the work on it."""
        self.began = self.kill_at = math.inf
        self.doomed = self.why = ""
        return self


@dataclass(frozen=True, slots=True)
class How:
    """The way in which the tasks are done: options of `Worker`."""

    command: list[str]
    handler: dict[str, Any]
    function: Callable[..., Any] | None
    slots: int
    of_slots: list[dict[str, str]]
    """What the environment of each slot's process has beside this process's own."""
    sysexits: bool
    keep_output: str | None
    result_dir: str | None
    result_from_stdout: bool
    stdin: bool
    """Whether a command gets the payload on standard input also if its arguments have it."""
    then: str | None
    """The queue of the group into which goes what a command prints."""
    moved_exits: frozenset[int]
    """Exit statuses of commands whose tasks go to another queue."""
    output: Output
    has_tags: bool
    tasks_per_command: int | None
    """Maximum number of tasks that a command gets on standard input; None: one, in its arguments or there."""
    recycle_after: int | None
    """Number of tasks after which a child process is replaced."""
    recycle_rss_bytes: int | None
    """Physical memory above which a child process is replaced once its task has ended (bytes)."""


class JobExecutor(Protocol):
    """Something that does tasks, some at a time. Everything happens in the loop's thread.

    What an executor has nothing to do for it leaves as it is here.
    """

    @property
    def slots(self) -> int:
        """Return how many tasks can be at work at a time. It may grow, and shrink while the system refuses more."""

    @property
    def due_at(self) -> float:
        """Return when `keep_time` has something to do, on the monotonic clock."""
        return math.inf

    def keep_time(self, now: float) -> None:
        """Do what is due: try again what the system has refused, or wait no longer."""
        return

    def hurry(self) -> None:
        """Wait no longer for anything but tasks at work: the grace is over."""
        return

    def start(self) -> None:
        """Make ready."""

    def is_ready(self) -> bool:
        """Return whether tasks may be leased for this executor."""

    def room(self, each: int) -> int:
        """Return how many more tasks it takes, when each of its slots may hold `each`."""

    def give(self, job: Job) -> bool:
        """Take a task to execute. Return False if there was no room after all."""

    def prepare(self, waiting: int) -> None:
        """Get ready for more, as far as can be done at once: there was no room for so many tasks."""
        return

    def at_work(self) -> list[Job]:
        """Return the tasks that are at work."""

    def is_at_work(self, job: Job) -> bool:
        """Return whether a task is at work. It is asked of each task at work in turn."""
        return any(job is one for one in self.at_work())

    def held(self) -> list[Job]:
        """Return the tasks that it was given and has not said to be done."""

    def take_back(self, slower_than_s: float = -1.0) -> list[Job]:
        """Return the tasks that were given and not begun, in order; of those only whose slot is at one for so long."""
        return []

    def end(self, job: Job, number: int) -> None:
        """End the work on a task, by SIGTERM or SIGKILL. If it has ended by itself, that counts."""

    def stopping(self) -> None:
        """Tell the tasks at work that the worker is stopping."""
        return

    def close(self) -> None:
        """Leave nothing behind."""


def capacity(executor: JobExecutor, each: int, now: float) -> int:
    """Return how many tasks `executor` may hold, `each` a slot. A slot at work on a slow task holds that one only."""
    slow = sum(job.began < now - STALL_S for job in executor.at_work())
    return each * (executor.slots - slow) + slow


def kept_name(task: LeasedTask) -> str:
    """Return the name of the file for what is printed during an attempt at a task."""
    return f"{re.sub('[^0-9A-Za-z.~-]', '_', task.id)}.{task.attempt}"


def not_kept(error: OSError, what: str, advice: str) -> FsqueueError:
    """Return what it means that outputs or results cannot be kept. `what` has happened, before a task was begun."""
    if error.errno in FULL:
        return from_os_error(error, "making a file for a command")
    return InvalidArgument(f"{what}: {error.strerror or error}. No task was begun. {advice}")
