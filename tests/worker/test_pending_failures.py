"""The end of a Slurm job: what it kills is put back, and nobody is blamed."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from fsqueue import Queue, Worker
from tests.waiting import PATIENCE_S, until
from tests.worker import tasks
from tests.worker.support import in_background, python

pytestmark = pytest.mark.once


@pytest.fixture
def in_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a process that a node of Slurm has started, in a job without an end."""
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "none")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")


DIES = python("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")


@pytest.mark.usefixtures("in_job")
def test_a_command_that_slurm_ended_before_its_worker_heard_of_it_is_not_blamed(queue: Queue) -> None:
    queue.insert_many(range(2))
    events = []
    worker = Worker(queue, command=DIES, processes=2, grace_s=1000, tell=lambda event: events.append(event.kind))
    thread, reports = in_background(worker)
    until(lambda: "failed" in events, "a failure")
    worker.stop()
    thread.join()
    assert (reports[0].failed, reports[0].ended, reports[0].signal) == (0, "signal", signal.SIGTERM)
    assert [(info.state, info.attempt) for info in queue.tasks()] == [("waiting", 0)] * 2


@pytest.mark.usefixtures("in_job")
def test_a_failure_that_no_signal_explains_counts(queue: Queue) -> None:
    queue.insert("x")
    report = Worker(queue, command=DIES, stop_after_failures=1).run()
    assert (report.failed, report.ended) == (1, "failures")
    [info] = queue.tasks()
    assert (info.attempt, info.error) == (1, "killed by SIGTERM")


@pytest.mark.usefixtures("in_job")
def test_sigterm_in_a_job_puts_back_at_once_whatever_the_grace(queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(2))
    command = ["sh", "-c", 'touch "$1"; exec sleep 1000', "sh", f"{tmp_path}/began-{{}}"]
    worker = Worker(queue, command=command, processes=2, grace_s=1000)
    thread, reports = in_background(worker)
    until(lambda: len(list(tmp_path.glob("began-*"))) == 2, "the begin of two tasks")
    worker.stop()
    thread.join(PATIENCE_S)
    assert (reports[0].released, reports[0].failed) == (2, 0)
    assert [(info.state, info.attempt) for info in queue.tasks()] == [("waiting", 0)] * 2


def test_another_signal_and_sigterm_elsewhere_leave_the_grace(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for number, job in ((signal.SIGUSR1, "4711"), (signal.SIGTERM, "")):
        monkeypatch.setenv("SLURM_JOB_ID", job)
        monkeypatch.setenv("SLURMD_NODENAME", "n1")
        monkeypatch.setenv("SLURM_JOB_END_TIME", "none")
        began = tmp_path / f"began-{number}"
        go = tmp_path / f"go-{number}"
        queue.insert({"do": "touch", "path": str(began), "go": str(go)})
        worker = Worker(queue, tasks.obey, grace_s=1000)
        thread, reports = in_background(worker)
        until(began.exists, "the begin of a task")
        worker._loop.stop(number)
        until(lambda: worker._loop._signals, "the worker to hear it")  # noqa: B023 - called at once
        go.touch()
        thread.join()
        assert reports[0].completed == 1


def test_outside_slurm_a_failure_is_told_at_once(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsqueue.worker.settling.DOUBT_S", 1e6)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    queue.insert("x")
    assert Worker(queue, command=["false"], stop_after_failures=1).run().failed == 1
