"""A stand-in for Slurm that executes its jobs on this host: sbatch, squeue and scancel on a directory.

Jobs of one name run one after the other if they have --dependency=singleton. The elements of an array (--array=0-N)
run at the same time. All other options are ignored. If the directory has a file `refusal`, sbatch takes no job and says
what is in it. Called by the name of a command it is that command. `scheduler_stand_in` is the one that executes
nothing, and has faults.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path


def commands(directory: str) -> dict[str, str]:
    """Return the scripts that are these commands, by their paths, on jobs in a directory."""
    text = f'#!/bin/sh\nexec {sys.executable} -S {__file__} %s {directory} "$@"\n'
    return {f"bin/{name}": text % name for name in ("sbatch", "squeue", "scancel")}


def jobs(directory: Path) -> dict[int, dict[str, str]]:
    """Return the jobs by their numbers: name and state."""
    return {int(one.stem): json.loads(one.read_text()) for one in directory.glob("*.json")}


def have_ended(directory: Path) -> bool:
    """Return whether no job waits or runs."""
    return all(one["state"] in ("COMPLETED", "FAILED", "CANCELLED") for one in jobs(directory).values())


@contextlib.contextmanager
def held(directory: Path, name: str) -> Iterator[None]:
    """Have jobs of a name wait that have --dependency=singleton."""
    with open(directory / f"of-{name}", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def put(directory: Path, number: int, **fields: str) -> None:
    """Change a job in one step."""
    path = directory / f"{number}.json"
    known = json.loads(path.read_text()) if path.exists() else {}
    beside = directory / f"{number}.{os.getpid()}"
    beside.write_text(json.dumps(known | fields))
    beside.rename(path)


def sbatch(directory: Path, words: list[str]) -> None:
    """Take a job, and print its number."""
    directory.mkdir(exist_ok=True)
    option = {name: value for name, _, value in (word.partition("=") for word in words)}
    if (refusal := directory / "refusal").exists():
        sys.exit(refusal.read_text())
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        number = max(jobs(directory), default=0) + 1
        (directory / f"{number}.sh").write_text(sys.stdin.read())
        put(directory, number, name=option.get("--job-name", "sbatch"), state="PENDING", words=" ".join(words))
    with open(directory / f"{number}.log", "w") as log:
        subprocess.Popen(
            [sys.executable, "-S", __file__, "job", str(directory), str(number)],
            stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    print(number)


def job(directory: Path, words: list[str]) -> None:
    """Execute a job when its name is free, unless it was cancelled by then."""
    number = int(words[0])
    known = jobs(directory)[number]
    option = {name: value for name, _, value in (word.partition("=") for word in known["words"].split())}
    array = option.get("--array")
    with open(directory / f"of-{known['name']}", "w") as lock:
        if "singleton" in option.get("--dependency", ""):
            fcntl.flock(lock, fcntl.LOCK_EX)
        if jobs(directory)[number]["state"] != "PENDING":
            return
        scripts = []
        for index in range(1 if array is None else int(array.removeprefix("0-")) + 1):
            environment = os.environ | {"SLURM_JOB_ID": str(number), "SLURMD_NODENAME": "node1"}
            if array is not None:
                environment |= {"SLURM_ARRAY_JOB_ID": str(number), "SLURM_ARRAY_TASK_ID": str(index)}
            command = ["bash", str(directory / f"{number}.sh")]
            scripts.append(subprocess.Popen(command, env=environment, start_new_session=True))
        put(directory, number, state="RUNNING", groups=" ".join(str(script.pid) for script in scripts))
        statuses = [script.wait() for script in scripts]
        put(directory, number, state="FAILED" if any(statuses) else "COMPLETED")


def squeue(directory: Path, words: list[str]) -> None:
    """Print the jobs in the given format."""
    option = {name: value for name, _, value in (word.partition("=") for word in words)}
    for number, one in sorted(jobs(directory).items()):
        if option.get("--jobs", str(number)) != str(number):
            continue
        fields = {"%A": str(number), "%T": one["state"], "%j": one["name"]}
        if "--Format" in option:
            print(f"{one['state']}|0:01|0|")
        else:
            print("|".join(fields.get(each, "N/A") for each in option["--format"].split("|")))


def scancel(directory: Path, words: list[str]) -> None:
    """Cancel jobs: those that wait, or all that are named."""
    known = jobs(directory)
    for number in (int(word) for word in words if word.isdecimal()):
        one = known[number]
        if one["state"] == "RUNNING" and "--state=PENDING" not in words:
            for group in map(int, one["groups"].split()):
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGTERM)
        elif one["state"] == "PENDING":
            put(directory, number, state="CANCELLED")


if __name__ == "__main__":
    _name, _directory, *_words = sys.argv[1:]
    {"sbatch": sbatch, "job": job, "squeue": squeue, "scancel": scancel}[_name](Path(_directory), _words)
