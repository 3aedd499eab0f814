"""Fixtures of all tests. FSQUEUE_TEST_BATCH_TASKS_MAX=1 runs the suite with the plain FileQueue: one task a file."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue
from fsqueue.format import layout
from tests import levels

levels.load_profile()

BATCH_TASKS_MAX = int(os.environ.get("FSQUEUE_TEST_BATCH_TASKS_MAX", "1024"))

QueueFactory = Callable[..., Queue]

LEFT_OPEN_MOST = 100
"""Descriptors that a module may leave open: what pytest keeps of the last test, and what caches keep."""


@pytest.fixture(scope="module", autouse=True)
def descriptors_are_closed() -> Iterator[None]:
    """No module leaves many descriptors open: tests that come after it would run out of them."""
    gc.collect()
    before = set(os.listdir("/proc/self/fd"))
    yield
    gc.collect()
    left = {}
    for fd in set(os.listdir("/proc/self/fd")) - before:
        with suppress(OSError):
            left[fd] = os.readlink(f"/proc/self/fd/{fd}")
    assert len(left) <= LEFT_OPEN_MOST, left


@pytest.fixture(scope="session", autouse=True)
def nothing_waits_for_the_disk() -> Iterator[None]:
    """Let `os.fsync` return at once in this process: that it reaches the disk is seen only when the power goes.

    What is synced, and in which order, is tested by what records the calls; that it helps, by power cuts in tests/lab.
    Other processes that tests start do wait for the disk.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", _check_descriptor)
        yield


def _check_descriptor(fd: Any) -> None:
    os.fstat(fd)


@pytest.fixture
def open_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Queues made in this process have a format with batches that take inserts."""
    monkeypatch.setattr(layout, "FORMAT_OF_NEW_QUEUES", layout.OPEN_BATCHES)


@pytest.fixture
def queue_factory(tmp_path: Path) -> QueueFactory:
    """Makes queues in a temporary directory: `queue_factory(name="q", **settings)`."""

    def make(name: str = "q", **settings: Any) -> Queue:
        settings["batch_tasks_max"] = min(BATCH_TASKS_MAX, settings.get("batch_tasks_max", 1024))
        return Queue.create(tmp_path / name, **settings)

    return make


@pytest.fixture
def queue(queue_factory: QueueFactory) -> Queue:
    """An empty queue with default settings."""
    return queue_factory()
