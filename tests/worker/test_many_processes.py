"""A worker with more processes than it needs, or than the system allows: they are made as tasks ask for them."""

from __future__ import annotations

import errno
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue, Worker
from fsqueue.worker import child_processes
from tests.waiting import PATIENCE_S, until
from tests.worker import tasks
from tests.worker.support import drained, in_background

pytestmark = pytest.mark.once

MANY = 10_000
"""Asked for, and never to be started: each test has a bound of its own."""


class Started:
    """Counts the children that are started; more than `most` are refused as the system does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
        self.count = self.at_once = 0
        made = child_processes._Child.__init__

        def make(child: Any, family: Any) -> None:
            if self.count >= most:
                raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            self.count += 1
            made(child, family)
            self.at_once = max(self.at_once, 1 + sum(not one.is_ready for one in family._children))

        monkeypatch.setattr(child_processes._Child, "__init__", make)


def test_no_more_processes_are_started_than_tasks_ask_for(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    started = Started(monkeypatch, 20)
    assert Worker(queue, tasks.nothing, processes=MANY).run() == drained()
    assert started.count == 1, "which tells whether the handler can be found"
    queue.insert_many([{"do": "until", "path": str(tmp_path / "go")}] * 3)
    worker = Worker(queue, tasks.obey, processes=MANY)
    thread, reports = in_background(worker)
    until(lambda: len(worker._loop._executor.at_work()) == 3, "three tasks at work")
    (tmp_path / "go").touch()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=3)]
    assert started.count <= 1 + 3


def test_tasks_that_wait_get_processes_up_to_the_number_asked_for(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = Started(monkeypatch, 20)
    monkeypatch.setattr(child_processes, "STARTING_MAX", 1)
    queue.insert_many([{"do": "last"}] * 9)
    worker = Worker(queue, tasks.obey, processes=4, grace_s=0)
    thread, reports = in_background(worker)
    until(lambda: len(worker._loop._executor.at_work()) == 4, "four tasks at work")
    assert queue.status().leased == 4, "none is leased for which there can be no process"
    worker.stop()
    thread.join(PATIENCE_S)
    assert (reports[0].ended, queue.status().waiting) == ("signal", 9)
    assert (started.count, started.at_once) == (4, 1)


def test_a_signal_is_heeded_while_processes_are_started(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    started = Started(monkeypatch, 20)
    monkeypatch.setattr(child_processes, "STARTING_MAX", 2)
    queue.insert_many([{"do": "last"}] * 100)
    worker = Worker(queue, tasks.obey, processes=MANY, grace_s=0)
    thread, reports = in_background(worker)
    until(lambda: started.count >= 2, "two processes")
    worker.stop()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert reports[0].ended == "signal"
    assert started.count < 20
    assert started.at_once <= 2
    assert queue.status().waiting == 100


def test_where_no_further_process_can_be_started_those_that_there_are_go_on(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, told: list[str]
) -> None:
    started = Started(monkeypatch, 2)
    queue.insert_many([{"do": "until", "path": str(tmp_path / "go")}] * 8)
    worker = Worker(queue, tasks.obey, processes=MANY, tell=lambda event: event.text and told.append(event.text))
    before = len(os.listdir("/proc/self/fd"))
    thread, reports = in_background(worker)
    until(lambda: any("no more than 2 processes instead of" in text for text in told), "the word of too few processes")
    (tmp_path / "go").touch()
    thread.join(PATIENCE_S)
    assert reports == [drained(completed=8)]
    assert started.count == 2
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_the_limit_of_open_files_is_kept_and_said(queue: Queue) -> None:
    """As a user has it: SIGTERM ends a run with far too many processes while it is still starting them."""
    queue.insert_many([{"do": "last"}] * 30)
    run = subprocess.Popen(
        [sys.executable, "-m", "fsqueue_cli", "run", str(queue.path), "-j", str(MANY), "--grace", "0", "--call",
         "tests.worker.tasks:obey"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        until(lambda: queue.status().leased, "a leased task")
        run.send_signal(signal.SIGTERM)
        _, said = run.communicate(timeout=PATIENCE_S)
    finally:
        run.kill()
    assert run.returncode == 128 + signal.SIGTERM
    assert f"no more than 9 processes instead of {MANY:,}" in said
    assert queue.status().waiting == 30
