"""A stand-in for a PBS server: qsub, qselect, qstat and qdel on a directory, by the manuals of PBS Pro.

Called by one of these names it is that command. `PbsStandIn` is what tests see of it. Faults: `fault` in the directory
has a command, when it acts, and how often. A job that has ended is known to `qstat -x` alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Job = dict[str, Any]
SERVER = ".pbs01"
HERE = ("Q", "H", "W", "R", "E")
"""States of jobs that have not ended."""


class PbsStandIn:
    """Jobs in a directory. `bin` is for the PATH."""

    def __init__(self, directory: Path) -> None:
        self.directory, self.bin = directory, directory / "bin"

    @classmethod
    def make(cls, directory: Path) -> PbsStandIn:
        """Return a server without jobs."""
        made = cls(directory)
        made.bin.mkdir(parents=True)
        (directory / "jobs").write_text("[]")
        for name in COMMANDS:
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

    def change(self, job: str, **fields: Any) -> None:
        """Change a job."""
        with self.changing() as jobs:
            [found] = [one for one in jobs if one["id"] == job]
            found.update(fields)

    def can_begin(self) -> list[str]:
        """Return the jobs that PBS would start. Names do not matter to it."""
        there = {job["id"] for job in self.jobs(*HERE)}
        return [job["id"] for job in self.jobs("Q", "H") if not there & set(job["after"])]

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

    def script_of(self, job: str) -> str:
        """Return the path of a job's script, as PBS spools it."""
        [found] = [one for one in self.jobs() if one["id"] == job]
        path = self.directory / f"{job}.SC"
        path.write_text(found["script"])
        return str(path)

    def begin(self, job: str, *words: str) -> subprocess.Popen[str]:
        """Start a job: a process that executes `words` and its script."""
        assert job in self.can_begin(), self.jobs(*HERE)
        self.change(job, state="R")
        return self.execute(job, *words)

    def execute(self, job: str, *words: str) -> subprocess.Popen[str]:
        """Execute a job's script, also once more."""
        environment = os.environ | {
            "PATH": f"{self.bin}:{os.environ['PATH']}", "PBS_JOBID": job, "PBS_ENVIRONMENT": "PBS_BATCH",
            "PBS_O_WORKDIR": str(self.directory),
        }  # fmt: skip
        return subprocess.Popen(
            [*words, self.script_of(job)], env=environment, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )


def _qsub(pbs: PbsStandIn, words: list[str]) -> int:
    act = pbs.take_fault("qsub")
    if act == "refuse":
        print("qsub: would exceed queue generic's per-user limit of jobs in 'Q' state", file=sys.stderr)
        return 38
    if act == "kill-before":
        os.kill(os.getppid(), signal.SIGKILL)
        return 1
    option = dict(zip(words[::2], words[1::2], strict=True))
    name = option.get("-N", "STDIN")
    if len(name) > 15 or not name[:1].isalpha():
        print("qsub: illegal -N value", file=sys.stderr)
        return 2
    after = [one for one in option.get("-W", "").removeprefix("depend=afterany:").split(":") if one]
    script = sys.stdin.read()
    with pbs.changing() as jobs:
        for one in after:
            if not any(job["id"] == one and job["state"] in HERE for job in jobs):
                print(f"qsub: Unknown Job Id {one}", file=sys.stderr)
                return 153
        number = f"{len(jobs) + 1}{SERVER}"
        jobs.append({
            "id": number, "name": name, "state": "H" if after else "Q", "after": after, "begin": option.get("-a"),
            "script": script,
        })  # fmt: skip
    if act == "kill-after":
        os.kill(os.getppid(), signal.SIGKILL)
    if act == "lose":
        print("qsub: cannot connect to server pbs01 (errno=15010)", file=sys.stderr)
        return 15
    print(number)
    return 0


def _qselect(pbs: PbsStandIn, words: list[str]) -> int:
    act = pbs.take_fault("qselect")
    if act.startswith("kill"):
        os.kill(os.getppid(), signal.SIGKILL)
    if act:
        return 1
    assert words[0] == "-u"
    for job in pbs.jobs(*HERE):
        print(job["id"])
    print(f"900[]{SERVER}")  # an array of the same user
    return 0


def _qstat(pbs: PbsStandIn, words: list[str]) -> int:
    known = {job["id"]: job for job in pbs.jobs()}
    code = 0
    for one in (word for word in words if not word.startswith("-")):
        job = known.get(one)
        if job is None:
            print(f"qstat: Unknown Job Id {one}", file=sys.stderr)
            code = 153
        elif job["state"] not in HERE and "-x" not in words:
            print(f"qstat: {one} Job has finished, use -x or -H to obtain historical job information", file=sys.stderr)
            code = 35
        else:
            more = {"comment": f"Job run at Tue Dec 01 on (node1:ncpus=2){',' * 30}\n\tand so on = too"}
            fields = {"Job_Name": job["name"], "job_state": job["state"], **more, **job.get("fields", {})}
            print(f"Job Id: {one}", *(f"    {key} = {value}" for key, value in fields.items()), "", sep="\n")
    return code


def _qdel(pbs: PbsStandIn, words: list[str]) -> int:
    act = pbs.take_fault("qdel")
    if act.startswith("kill"):
        os.kill(os.getppid(), signal.SIGKILL)
    if act:
        return 1
    code = 0
    for one in words:
        if any(job["id"] == one for job in pbs.jobs(*HERE)):
            pbs.change(one, state="F")
        else:
            print(f"qdel: Job has finished {one}", file=sys.stderr)
            code = 35
    return code


COMMANDS = {"qsub": _qsub, "qselect": _qselect, "qstat": _qstat, "qdel": _qdel}

if __name__ == "__main__":
    _name, _directory, *_words = sys.argv[1:]
    sys.exit(COMMANDS[_name](PbsStandIn(Path(_directory)), _words))
