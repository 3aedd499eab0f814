"""A signal handler forks anywhere in a worker's run: the child ends with ForkedChild, and waits for no thread."""

from __future__ import annotations

import threading

import pytest

from fsqueue import Queue, Worker
from tests.levels import how_many
from tests.test_signal_forks import REFUSED, RETURNED, Forker

pytestmark = pytest.mark.once


def test_a_child_of_a_signal_handler_leaves_the_run_to_its_parent(queue: Queue) -> None:
    forker, wrong, forks = Forker(stride=how_many(9, 2), also=threading.__file__), [], 0
    while True:
        queue.insert("x")
        worker = Worker(queue, lambda payload: None, threads=1, tell=lambda event: None)
        report = forker.run(worker.run)
        assert report.completed == 1, forker.where
        if not forker.where:
            break
        forks += 1
        if forker.status not in (REFUSED, RETURNED):
            wrong.append(f"{forker.where}: the child ended with {forker.status} {forker.said}")
    assert wrong == []
    assert forks > 5
    assert queue.status().completed == forks + 1
