"""Fixtures of all tests. FSQUEUE_TEST_BATCH_TASKS_MAX=1 runs the suite with the plain FileQueue: one task a file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue

BATCH_TASKS_MAX = int(os.environ.get("FSQUEUE_TEST_BATCH_TASKS_MAX", "1024"))

QueueFactory = Callable[..., Queue]


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
