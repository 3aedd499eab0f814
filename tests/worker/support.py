"""What the tests of workers share."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from fsqueue import Worker, WorkerReport


def drained(**counts: Any) -> WorkerReport:
    """The report of a run that ended because nothing was left."""
    return WorkerReport(**counts, ended="drained")


def python(code: str) -> list[str]:
    """A command line for some Python."""
    return [sys.executable, "-c", code]


def wait_for(condition: Callable[[], object], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)


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
