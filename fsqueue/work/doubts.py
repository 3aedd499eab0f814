"""Failures that may be a job's end, and no fault of the task.

When a Slurm job is cancelled, preempted, requeued or over its time, Slurm sends SIGTERM to every process in it at
once: a command may die of it before its worker has heard of anything. So in a job a failure is told a moment later; if
SIGTERM comes meanwhile, the task is put back instead.
"""

from __future__ import annotations

import math
import signal
from collections import deque
from dataclasses import replace

from fsqueue import slurm
from fsqueue.work.settling import Outcome

WAIT_S = 1.0
"""How long a failure waits for a signal that explains it."""


class Doubts:
    """Failures on their way, in order. Used in the loop's thread alone. Outside Slurm nothing is doubted."""

    def __init__(self) -> None:
        self._wait_s = WAIT_S if slurm.in_job() else 0.0
        self._waiting: deque[tuple[float, Outcome]] = deque()
        self.is_over = False
        """Whether the job is being ended."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, failure: Outcome, now: float) -> None:
        """Something has failed."""
        self._waiting.append((now + self._wait_s, failure))

    def due_at(self) -> float:
        """When the first of them is to be told; infinite if there is none."""
        return self._waiting[0][0] if self._waiting else math.inf

    def ripe(self, now: float) -> list[Outcome]:
        """What is to be told now: failures that nothing has explained, or that their tasks are put back."""
        told = []
        while self._waiting and (self.is_over or self._waiting[0][0] <= now):
            failure = self._waiting.popleft()[1]
            told.append(replace(failure, verb="release", delay_s=0) if self.is_over else failure)
        return told

    def left(self) -> list[Outcome]:
        """Return the failures that are not told yet."""
        return [failure for _, failure in self._waiting]

    def hear(self, number: int) -> None:
        """A signal has come."""
        self.is_over = self.is_over or (number == signal.SIGTERM and self._wait_s > 0)
