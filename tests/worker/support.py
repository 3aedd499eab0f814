"""What the tests of workers share."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue, Worker, WorkerReport
from fsqueue.worker.jobs import Job
from tests.waiting import until


def drained(**counts: Any) -> WorkerReport:
    """The report of a run that ended because nothing was left."""
    return WorkerReport(**counts, ended="drained")


def python(code: str) -> list[str]:
    """A command line for some Python."""
    return [sys.executable, "-c", code]


def shell_until(condition: str) -> str:
    """A shell's way to wait for a condition."""
    return f"until {condition}; do sleep 0.05; done"


def until_there(path: object) -> str:
    """A shell's way to wait for a file."""
    return shell_until(f"[ -e {path} ]")


def stopped(pid: int) -> None:
    """Stop a process, and return when it stands still."""
    os.kill(pid, signal.SIGSTOP)
    until(lambda: Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T", "it to be stopped")


def time_out(worker: Worker, which: Callable[[Job], bool] = lambda job: True) -> None:
    """As if all that a worker with `task_timeout_s=1000` has at work, or some of it, had been at work for longer.

    A task that a child has not taken in yet comes back, and is given out anew.
    """

    def age() -> None:
        for job in filter(which, worker._loop._executor.at_work()):
            job.began -= 2000
            if job.batch is not None:
                job.batch.since -= 2000

    worker._loop.mailbox.post(age)


def time_is_over(worker: Worker) -> None:
    """As if the time of a worker that must end at some time were over."""

    def stop_now() -> None:
        assert worker._loop._stop_at < math.inf
        worker._loop._stop_at = worker._loop._now()

    worker._loop.mailbox.post(stop_now)


class Resting:
    """Tells whether a worker waits for tasks with nothing to do."""

    def __init__(self, worker: Worker, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_so = False
        listener = worker._loop._feeder._listener
        real = listener.sleep

        def sleep(*arguments: Any, **options: Any) -> Any:
            self.is_so = True
            try:
                return real(*arguments, **options)
            finally:
                self.is_so = False

        monkeypatch.setattr(listener, "sleep", sleep)

    def until_so(self) -> None:
        until(lambda: self.is_so, "the worker to have nothing to do")


class Renewals:
    """Counts how often leases were renewed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = Queue.renew

        def renew(*arguments: Any, **options: Any) -> Any:
            try:
                return real(*arguments, **options)
            finally:
                self.count += 1

        monkeypatch.setattr(Queue, "renew", renew)

    def until_more(self, more: int) -> None:
        enough = self.count + more
        until(lambda: self.count >= enough, f"{more} renewals")


def in_background(worker: Worker) -> tuple[threading.Thread, list[WorkerReport]]:
    """Run a worker in a thread; its report comes into the list."""
    reports: list[WorkerReport] = []
    thread = threading.Thread(target=lambda: reports.append(worker.run()), daemon=True)
    thread.start()
    return thread, reports


class Failing:
    """Makes a method raise for a number of calls."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, errors: list[Exception]) -> None:
        self.errors = errors
        self.calls = 0
        real = getattr(owner, name)

        def replacement(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.errors:
                raise self.errors.pop()
            return real(*arguments, **options)

        monkeypatch.setattr(owner, name, replacement)
