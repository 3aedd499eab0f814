"""Failures that may be a job's end, and no fault of the task.

When a batch job is cancelled, preempted, requeued or over its time, its scheduler sends SIGTERM to every process in it
at once: a command may die of it before its worker has heard of anything. So in a job a failure is told a moment later;
if such a signal comes meanwhile, the task is put back instead.
"""

from __future__ import annotations

import math
import signal
from collections import deque
from dataclasses import replace

from fsqueue.cluster import schedulers, slurm
from fsqueue.worker.settling import Outcome

WAIT_S = 1.0
"""How long a failure waits for a signal that explains it."""


class PendingFailures:
    """Failures on their way, in order. Used in the loop's thread alone. Outside of jobs nothing is doubted."""

    def __init__(self) -> None:
        job = schedulers.here()
        self._ending = frozenset({signal.SIGTERM}) if slurm.in_job() else job.scheduler.ending if job else frozenset()
        self._warning = frozenset() if slurm.in_job() or job is None else job.scheduler.warning
        self._wait_s = WAIT_S if self._ending else 0.0
        self._is_explained = False
        self._waiting: deque[tuple[float, Outcome]] = deque()
        self.is_over = False
        """Whether the job is being ended."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, failure: Outcome, now: float) -> None:
        """Something has failed."""
        self._waiting.append((now + self._wait_s, failure))

    def due_at(self) -> float:
        """Return when the first of them is to be told; infinite if there is none."""
        return self._waiting[0][0] if self._waiting else math.inf

    def ripe(self, now: float) -> list[Outcome]:
        """Return what is to be told now: failures that nothing has explained, or that their tasks are put back."""
        told = []
        while self._waiting and (self._is_explained or self._waiting[0][0] <= now):
            failure = self._waiting.popleft()[1]
            told.append(replace(failure, verb="release", delay_s=0) if self._is_explained else failure)
        self._is_explained = self.is_over  # a warning explains what was waiting, and nothing that fails later
        return told

    def left(self) -> list[Outcome]:
        """Return the failures that are not told yet."""
        return [failure for _, failure in self._waiting]

    def hear(self, number: int) -> None:
        """Take in a signal. One that ends the job, or warns of its end, has reached the commands, too."""
        self.is_over = self.is_over or number in self._ending
        self._is_explained = self.is_over or number in self._warning
