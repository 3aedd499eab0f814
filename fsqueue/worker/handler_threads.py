"""Python functions in threads of this process: cheap, and able to share memory, but nothing protects the worker.

A handler that holds the interpreter's lock (most of C does, for as long as it computes) keeps leases from being
renewed and signals from being noticed. A thread cannot be ended, either: what does not return in time goes on, its
task put back.
"""

from __future__ import annotations

import functools
import os
import signal
import time
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any

from fsqueue.clock import Clock
from fsqueue.leased_task import LeasedTask
from fsqueue.worker import handlers
from fsqueue.worker.background import BackgroundThread
from fsqueue.worker.causes import Cause
from fsqueue.worker.jobs import Job, JobExecutor
from fsqueue.worker.loop import Loop

WARNING = (
    "handlers run in threads of this process: one that holds the interpreter's lock for longer than a lease lasts "
    "loses its tasks to others. Processes (the default) have no such limit."
)


class Threads(JobExecutor):
    """Runs a handler in `slots` threads."""

    slots = 0

    def __init__(self, handler: Callable[..., Any], slots: int, loop: Loop) -> None:
        self.slots, self._loop = slots, loop
        self._handler, self._way = handler, handlers.Way(handler)
        self._now = Clock().monotonic
        self._waiting: SimpleQueue[Job | None] = SimpleQueue()
        self._given: set[Job] = set()
        """The jobs that are not done."""
        self._answers: deque[tuple[Job, handlers.CallEnd, float]] = deque()
        self._is_stopping = False

    def start(self) -> None:
        for number in range(self.slots):
            BackgroundThread(f"handler-{number}", self._loop.thread_died, self._serve).start()

    def is_ready(self) -> bool:
        return True

    def room(self, each: int) -> int:
        return self.slots * each - len(self._given)

    def give(self, job: Job) -> bool:
        self._given.add(job)
        self._waiting.put(job)
        return True

    def at_work(self) -> list[Job]:
        return [job for job in self._given if job.began != float("inf")]

    def held(self) -> list[Job]:
        return list(self._given)

    def take_back(self, slower_than_s: float = -1.0) -> list[Job]:
        now = self._now()
        if not any(now - job.began > slower_than_s for job in self.at_work()):
            return []
        back: list[Job] = []
        while True:
            try:
                job = self._waiting.get_nowait()
            except Empty:
                return back
            if job is not None:
                self._given.remove(job)
                back.append(job)

    def end(self, job: Job, number: int) -> None:
        """Report the task as done with, and drop what its thread will return: a thread cannot be killed."""
        if number == signal.SIGKILL and job in self._given:
            self._given.remove(job)
            self._loop.done(job, "release", 0, max(0.0, self._now() - job.began))

    def stopping(self) -> None:
        self._is_stopping = True

    def close(self) -> None:
        for _ in range(self.slots):
            self._waiting.put(None)

    def _serve(self) -> None:
        while (job := self._waiting.get()) is not None:
            job.began = self._now()
            task = job.task
            at_hand = functools.partial(self._at_hand, task)
            began = time.perf_counter()
            result = handlers.execute(self._handler, self._way, task.payload, at_hand)
            seconds = time.perf_counter() - began
            self._answers.append((job, result, seconds))
            self._loop.mailbox.post(self._take_in)

    def _at_hand(self, task: LeasedTask) -> handlers.TaskAtHand:
        where = os.path.abspath(task.queue.path)
        return handlers.TaskAtHand(task.id, task.attempt, where, lambda: self._is_stopping)

    def _take_in(self) -> None:
        while self._answers:
            job, result, seconds = self._answers.popleft()
            if job in self._given:
                self._given.remove(job)
                self._loop.done(job, result.verb, result.value, seconds, Cause(result.memory))
