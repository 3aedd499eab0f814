"""What Slurm tells, with a stand-in for its commands; tests/lab/test_slurm.py has the real ones."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fsqueue.cluster import slurm

Commands = Callable[[str, str], None]


@pytest.fixture(autouse=True)
def outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """No Slurm anywhere, and nothing known from before."""
    for name in [name for name in os.environ if name.startswith("SLURM")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    slurm.job_end.cache_clear()
    yield
    slurm.job_end.cache_clear()


@pytest.fixture
def command(tmp_path: Path) -> Commands:
    """Make one of Slurm's commands: a shell script."""

    def make(name: str, script: str) -> None:
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return make


def test_outside_slurm_no_job_ends(command: Commands) -> None:
    command("squeue", "echo 4000000000")
    assert slurm.job_end() is None


def test_the_end_that_slurm_sets_counts(monkeypatch: pytest.MonkeyPatch, command: Commands) -> None:
    command("squeue", "echo 4000000001")
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_JOB_END_TIME", "4000000000")
    assert slurm.job_end() == 4e9


def test_slurm_is_asked_once(monkeypatch: pytest.MonkeyPatch, command: Commands, tmp_path: Path) -> None:
    command("squeue", f'echo "$@" "$SLURM_TIME_FORMAT" "$SQUEUE_STATES" >>{tmp_path}/asked; echo 4000000000')
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SQUEUE_STATES", "PENDING")
    assert [slurm.job_end(), slurm.job_end()] == [4e9, 4e9]
    assert (tmp_path / "asked").read_text() == "--noheader --jobs=7 --format=%e %s \n"


@pytest.mark.parametrize(
    "script", ["echo NONE", "echo N/A", "echo inf", "echo nan", "echo 1000", "exit 1", "echo 4000000000; exit 1", ":"]
)
def test_an_end_that_is_unknown_or_past_is_none(
    monkeypatch: pytest.MonkeyPatch, command: Commands, script: str
) -> None:
    command("squeue", script)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert slurm.job_end() is None


@pytest.mark.parametrize("job", ["", "7; rm", "--help", "²", "7 8"])
def test_what_is_no_job_is_not_asked_for(monkeypatch: pytest.MonkeyPatch, command: Commands, job: str) -> None:
    command("squeue", "echo 4000000000")
    monkeypatch.setenv("SLURM_JOB_ID", job)
    assert slurm.job_end() is None


def test_without_slurm_s_commands_nothing_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert slurm.job_end() is None


def test_a_controller_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, command: Commands
) -> None:
    command("squeue", "exec sleep 600")
    monkeypatch.setattr(slurm, "ASK_S", 0.2)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert slurm.job_end() is None  # else in ten minutes


NODE = {"SLURM_JOB_ID": "7", "SLURMD_NODENAME": "n2"}


@pytest.mark.parametrize(
    ("environment", "processors"),
    [
        ({}, 8),
        ({"SLURM_CPUS_PER_TASK": "4"}, 8),  # of an allocation that this shell does not run in
        (NODE, 8),
        (NODE | {"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "6"}, 4),
        (NODE | {"SLURM_CPUS_PER_TASK": "64"}, 8),  # more than the system lets it use
        (NODE | {"SLURM_CPUS_ON_NODE": "6", "SLURM_STEP_TASKS_PER_NODE": "3"}, 6),  # a batch script
        (NODE | {"SLURM_CPUS_ON_NODE": "6", "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "3(x4)"}, 2),
        (
            NODE
            | {"SLURM_CPUS_ON_NODE": "6", "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2),2,6"}
            | {"SLURM_NODEID": "2"},
            3,
        ),
        (
            NODE
            | {"SLURM_CPUS_ON_NODE": "6", "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "2,12"}
            | {"SLURM_NODEID": "1"},
            1,
        ),
        (NODE | {"SLURM_CPUS_ON_NODE": "6", "SLURM_STEP_ID": "0", "SLURM_STEP_TASKS_PER_NODE": "odd"}, 6),
    ],
)
def test_processors_are_those_of_the_job_s_task_or_of_the_machine(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], processors: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert slurm.processors() == processors


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60", 3600), ("1:30", 90), ("1:00:00", 3600), ("2-12", 216_000), ("2-12:30", 217_800),
        ("2-12:30:15", 217_815), (" 5 ", 300), ("0", None), ("UNLIMITED", None), ("", None), ("1h", None),
        ("1:2:3:4", None), ("-1", None), ("1-", None),
    ],
)  # fmt: skip
def test_a_time_limit_is_read_as_sbatch_does(text: str, seconds: float | None) -> None:
    assert slurm.time_limit_s(text) == seconds
