"""Delay the report of a failure that the end of the batch job may explain.

When a batch job is cancelled, preempted, requeued or over its time, its scheduler sends SIGTERM to every process in it
at once. A command may die of it before its worker gets the signal. So in a job the worker reports a failure a second
later. If such a signal comes meanwhile, it puts the task back instead.
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
        """Take in a failure."""
        self._waiting.append((now + self._wait_s, failure))

    def due_at(self) -> float:
        """Return when the first of them is due to be reported; infinite if there is none."""
        return self._waiting[0][0] if self._waiting else math.inf

    def ripe(self, now: float) -> list[Outcome]:
        """Return what to report now: failures that no signal has explained, and for the others, releases."""
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
