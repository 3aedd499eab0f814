"""A signal handler forks anywhere in a worker's run: the child ends with ForkedChild, and waits for no thread."""

from __future__ import annotations

import threading

import pytest

from fsqueue import Queue, Worker
from tests.levels import how_many
from tests.test_signal_forks import Forker

pytestmark = pytest.mark.once


def test_a_child_of_a_signal_handler_leaves_the_run_to_its_parent(queue: Queue) -> None:
    forker = Forker(stride=how_many(9, 2), also=threading.__file__)
    for done, _ in enumerate(forker.rounds(), start=1):
        queue.insert("x")
        worker = Worker(queue, lambda payload: None, threads=1, tell=lambda event: None)
        report = forker.run(worker.run)
        assert report.completed == 1, forker.where
        assert queue.status().completed == done
