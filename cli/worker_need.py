"""Reckon how many workers the tasks of some queues need, and count those that are there: `fsqueue slurm --fill N`.

docs/decisions/0062-jobs-that-replace-themselves.md says what counts, and why. Every number is a hint: others work.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import fsqueue
from fsqueue.cluster import identity
from fsqueue.format.wording import counted, duration
from fsqueue.views import lease_holders

from .campaign import MEASURED_MIN, Capacity, names_of

MEASURED_S = 7 * 86_400.0
"""Of how long ago durations of tasks count."""
LEAST_S = 0.001
"""Durations are measured in milliseconds: a task that took none took this."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a queue has to do. Durations are in seconds."""

    tasks: int
    """How many tasks have no outcome; 0 if the queue is paused."""
    measured: int = 0
    """How many durations of completed tasks were measured."""
    mean_s: float | None = None
    """The mean of them; None if there are none."""
    shortest_s: float | None = None
    at_once_max: float | None = None
    """How many tasks the settings of the queue let be at work at a time; None: any number."""

    def fits(self, limit_s: float) -> bool:
        """Return whether a task may end within a time limit: unless enough were measured, and all took longer."""
        return self.shortest_s is None or self.measured < MEASURED_MIN or self.shortest_s <= limit_s

    def workers(self, worker: Capacity) -> float:
        """Return how many workers do these tasks within their time. A part of one may be left for other queues.

        While no duration is known, each task counts as if it took all of a worker's time.
        """
        if not self.fits(worker.limit_s):
            return 0.0
        each = 1 if self.mean_s is None else max(1, math.floor(worker.work_s / max(self.mean_s, LEAST_S)))
        tasks_each = worker.at_a_time * each
        if worker.tasks_max is not None:
            tasks_each = min(tasks_each, worker.tasks_max)
        found = self.tasks / tasks_each
        return found if self.at_once_max is None else min(found, self.at_once_max / worker.at_a_time)


@dataclass(frozen=True, slots=True)
class Reckoning:
    """How many workers are needed, are there, and are to be submitted, and what that comes from."""

    most: int
    tasks: int
    measured: int
    mean_s: float | None
    """Of all tasks that were measured; None if the tasks of a queue have no measured durations."""
    at_a_time: int
    work_s: float
    needed: int
    there: int
    """Workers whose jobs run or wait, and others that hold tasks."""

    @property
    def submitted(self) -> int:
        """Return how many workers are to be submitted."""
        return max(0, min(self.needed, self.most) - self.there)

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers by name."""
        return asdict(self) | {"submitted": self.submitted}

    def __str__(self) -> str:
        """Return the reckoning in one sentence."""
        if self.mean_s is not None:
            took = f"a task takes {duration(self.mean_s)} ({self.measured:,} measured)"
        else:
            unknown = "the durations of some are not known" if self.measured else "no duration is known yet"
            took = f"{unknown}, so each of these counts as all of a worker's time"
        return (
            f"{counted(self.tasks, 'task')} to do, {took}; a worker has {duration(self.work_s)} and does "
            f"{self.at_a_time:,} at a time: {counted(self.needed, 'worker')} needed, {self.there:,} there, "
            f"{self.submitted:,} to submit (at most {self.most:,})"
        )


def load_of(queue: fsqueue.Queue) -> Load:
    """Return what a queue has to do: its unfinished tasks, and the durations of those completed lately. Bounded reads.

    OSError, QueueNotFound.
    """
    status = queue.status()
    if queue.paused is not None or not status.remaining:
        return Load(0)
    work = queue.timeline(MEASURED_S, 1).work_s
    measured = sum(tasks for _, tasks in work)
    mean_s = sum(seconds * tasks for seconds, tasks in work) / measured if measured else None
    from fsqueue.protocol import all_limits

    at_once = [
        at_once_max(limits.max_leased, None if limits.rate is None else limits.rate.per_s, mean_s)
        for limits in (queue.store.queue_state.limits, all_limits.limits_of_group(queue.store))
        if limits is not None
    ]
    most = min((one for one in at_once if one is not None), default=None)
    shortest_s = min((seconds for seconds, _ in work), default=None)
    return Load(status.remaining, measured, mean_s, shortest_s, most)


def at_once_max(max_leased: int | None, rate_per_s: float | None, mean_s: float | None) -> float | None:
    """Return how many tasks the limits of a queue let be at work at a time; None: any number, or it is not known.

    With a rate of tasks that begin, as many are at work on average as begin while one lasts (Little's law). Limits by
    fields of payloads do not count: how many values there are is not known.
    """
    found = [] if max_leased is None else [float(max_leased)]
    if rate_per_s is not None and mean_s is not None:
        found.append(rate_per_s * mean_s)
    return min(found, default=None)


def reckon(loads: Sequence[Load], worker: Capacity, there: int, most: int) -> Reckoning:
    """Return how many workers are needed for the tasks of queues, and how many of them are missing."""
    busy = [load for load in loads if load.tasks]
    measured = sum(load.measured for load in busy)
    is_known = bool(busy) and all(load.mean_s is not None for load in busy)
    mean_s = sum((load.mean_s or 0.0) * load.measured for load in busy) / measured if is_known else None
    needed = math.ceil(sum(load.workers(worker) for load in busy) - 1e-9)
    return Reckoning(
        most, sum(load.tasks for load in busy), measured, mean_s, worker.at_a_time, worker.work_s, needed, there
    )


def why_none_fits(loads: Sequence[Load], worker: Capacity) -> str | None:
    """Return why no worker can do a task: all durations are longer than the time limit. None if one may, or there are
    no tasks.
    """
    busy = [load for load in loads if load.tasks]
    if not busy or any(load.fits(worker.limit_s) for load in busy):
        return None
    shortest_s = min(load.shortest_s for load in busy if load.shortest_s is not None)
    return (
        f"no task fits the time limit: the shortest task that was measured took {duration(shortest_s)}, and a job has "
        f"{duration(worker.limit_s)}"
    )


def workers_there(queues: Sequence[fsqueue.Queue], jobs: Mapping[str, list[tuple[str, bool]]]) -> int:
    """Return how many workers there are: one for each name of jobs of the first queue's campaigns that run or wait, and
    each other worker that holds tasks and is not proven dead. OSError, QueueNotFound.

    Jobs of one name run one after the other, so they are one worker.
    """
    pattern = names_of(queues[0].id)
    own = {name: listed for name, listed in jobs.items() if listed and pattern.fullmatch(name)}
    ids = {job.partition(".")[0] for listed in own.values() for job, _ in listed}  # of PBS without the server
    others = {
        holder.key
        for queue in queues
        for holder in queue.workers()
        if holder.tasks and holder.life != lease_holders.DEAD and identity.job_of(holder.worker) not in ids
    }
    return len(own) + len(others)
