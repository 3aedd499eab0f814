"""A stand-in for a Slurm controller: sbatch, squeue and scancel on a directory, and what Slurm does with dependencies.

Called by one of these names it is that command. `StandIn` is what tests see of it. Faults: `fault` in the directory has
a command, when it acts, and how often; `tests/lab/test_resubmission.py` has a real Slurm.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Job = dict[str, Any]


class StandIn:
    """Jobs in a directory. `bin` is for the PATH."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.bin = directory, directory / "bin"

    @classmethod
    def make(cls, directory: Path) -> StandIn:
        """Return a controller without jobs."""
        made = cls(directory)
        made.bin.mkdir(parents=True)
        (directory / "jobs").write_text("[]")
        for name in ("sbatch", "squeue", "scancel"):
            command = f'exec {sys.executable} -S {__file__} {name} {directory} "$@"'
            (made.bin / name).write_text(f"#!/bin/sh\n{command}\n")
            (made.bin / name).chmod(0o755)
        return made

    @contextmanager
    def changing(self) -> Iterator[list[Job]]:
        """Lock the jobs; what is changed in them is kept."""
        with open(self.directory / "jobs", "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            jobs = json.load(file)
            yield jobs
            file.seek(0)
            file.truncate()
            json.dump(jobs, file)

    def jobs(self, *states: str) -> list[Job]:
        """Return the jobs, of some states alone."""
        with self.changing() as jobs:
            return [job for job in jobs if not states or job["state"] in states]

    def change(self, job: str, **fields: Any) -> Job:
        """Change a job, and return it."""
        with self.changing() as jobs:
            [found] = [one for one in jobs if one["id"] == job]
            found.update(fields)
            return dict(found)

    def can_begin(self) -> list[str]:
        """Return the jobs that Slurm would start: by their dependencies."""
        jobs = self.jobs("PENDING", "RUNNING")
        there = {job["id"] for job in jobs}
        return [
            job["id"]
            for job in jobs
            if job["state"] == "PENDING" and job["after"] not in there
            and not any(
                other["name"] == job["name"] and (other["state"] == "RUNNING" or int(other["id"]) < int(job["id"]))
                for other in jobs if other is not job
            )
        ]  # fmt: skip

    def fault(self, command: str, act: str, times: int = 1) -> None:
        """Let the next calls of a command fail: refuse, lose (the answer), kill-before, kill-after (its caller)."""
        (self.directory / "fault").write_text(f"{command} {act} {times}")

    def take_fault(self, command: str) -> str:
        """Return what is to go wrong with this call; "" for nothing."""
        path = self.directory / "fault"
        if not path.exists():
            return ""
        name, act, times = path.read_text().split()
        if name != command or times == "0":
            return ""
        path.write_text(f"{name} {act} {int(times) - 1}")
        return act

    def step_of(self, job: str) -> list[str]:
        """Return the arguments of a job's first step: the file of its script, and what it is told."""
        [found] = [one for one in self.jobs() if one["id"] == job]
        script = self.directory / f"script-{job}"
        script.write_text(found["script"])
        words = shlex.split(found["script"].split("\n")[1].replace('"$0"', str(script)))
        at = words.index(str(script))
        return [words[at], words[at + 1].removesuffix(";")]

    def begin(self, job: str) -> subprocess.Popen[str]:
        """Start a job, as far as its first step."""
        assert job in self.can_begin(), self.jobs("PENDING", "RUNNING")
        self.change(job, state="RUNNING")
        return self.take_step(job)

    def take_step(self, job: str) -> subprocess.Popen[str]:
        """Have a job take its first step in a process of its own."""
        words = [sys.executable, "-P", "-m", "fsqueue_cli.successors", *self.step_of(job)]
        environment = os.environ | {
            "PATH": f"{self.bin}:{os.environ['PATH']}", "SLURM_JOB_ID": job, "SLURM_JOB_NAME": "outer",
            "SLURM_JOB_END_TIME": "", "SRUN_DEBUG": "3", "SBATCH_ACCOUNT": "mine",
        }  # fmt: skip
        return subprocess.Popen(words, env=environment, stderr=subprocess.PIPE, text=True)


def _sbatch(slurm: StandIn, words: list[str]) -> int:
    act = slurm.take_fault("sbatch")
    if act == "refuse":
        print("sbatch: error: Batch job submission failed: Resource temporarily unavailable", file=sys.stderr)
        return 1
    if act == "kill-before":
        os.kill(os.getppid(), signal.SIGKILL)
        return 1
    option = {name: value for name, _, value in (word.partition("=") for word in words)}
    depends = dict(one.partition(":")[::2] for one in option.get("--dependency", "").split(",") if one)
    with slurm.changing() as jobs:
        number = str(len(jobs) + 1)
        jobs.append({
            "id": number, "name": option.get("--job-name", ""), "state": "PENDING", "words": words, "elapsed": "0:00",
            "after": depends.get("afterany"), "is_single": "singleton" in depends, "script": sys.stdin.read(),
            "variables": sorted(os.environ),
        })  # fmt: skip
    if act == "kill-after":
        os.kill(os.getppid(), signal.SIGKILL)
    if act == "lose":
        print("sbatch: error: Socket timed out on send/recv operation", file=sys.stderr)
        return 1
    print(number)
    return 0


def _squeue(slurm: StandIn, words: list[str]) -> int:
    act = slurm.take_fault("squeue")
    if act.startswith("kill"):
        os.kill(os.getppid(), signal.SIGKILL)
    if act:
        return 1
    option = {name: value for name, _, value in (word.partition("=") for word in words)}
    fields = {"%A": "id", "%T": "state", "%j": "name", "%e": "end"}
    for job in slurm.jobs():
        if option.get("--jobs", job["id"]) == job["id"]:
            if "--Format" in option:
                print(f"{job['state']}|{job['elapsed']}|{job.get('status', 0)}|")
            else:
                print("|".join(str(job.get(fields[one], "N/A")) for one in option["--format"].split("|")))
    return 0


def _scancel(slurm: StandIn, words: list[str]) -> int:
    act = slurm.take_fault("scancel")
    if act.startswith("kill"):
        os.kill(os.getppid(), signal.SIGKILL)
    if act:
        return 1
    states = ("PENDING",) if "--state=PENDING" in words else ("PENDING", "RUNNING")
    for job in words:
        if job.isdecimal() and any(one["id"] == job for one in slurm.jobs(*states)):
            slurm.change(job, state="CANCELLED")
    return 0


if __name__ == "__main__":
    _name, _directory, *_words = sys.argv[1:]
    _commands = {"sbatch": _sbatch, "squeue": _squeue, "scancel": _scancel}
    sys.exit(_commands[_name](StandIn(Path(_directory)), _words))
