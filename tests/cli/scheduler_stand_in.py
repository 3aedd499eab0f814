"""A stand-in for a scheduler: its commands on a directory, and what it does with dependencies. KINDS has what differs.

Called by the name of a kind and of a command it is that command, and prints what the manuals say. `StandIn` is what
tests see of it. It executes nothing by itself. Faults: `fault` in the directory has a command, when it acts, and how
often. `tests/lab/test_resubmission.py` has a real Slurm; none of the others was at hand.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Job = dict[str, Any]
"""`state` is waits, runs, or how it has ended in Slurm's words. `used_s`, `limit_s` and `status` tell of its run."""
HERE = ("waits", "runs")


class StandIn:
    """Jobs in a directory. `bin` is for the PATH."""

    def __init__(self, directory: Path, kind: str) -> None:
        self.directory, self.bin, self.kind = directory, directory / "bin", KINDS[kind]

    @classmethod
    def make(cls, directory: Path, kind: str) -> StandIn:
        """Return a scheduler without jobs."""
        made = cls(directory, kind)
        made.bin.mkdir(parents=True)
        (directory / "jobs").write_text("[]")
        for name in made.kind.commands:
            command = f'exec {sys.executable} -S {__file__} {kind} {name} {directory} "$@"'
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

    def slots(self, *states: str) -> list[str]:
        """Return the slots of jobs, in the order of their ids."""
        return [job["name"].rpartition("-")[2] for job in self.jobs(*states)]

    def change(self, job: str, **fields: Any) -> None:
        """Change a job."""
        with self.changing() as jobs:
            [found] = [one for one in jobs if one["id"] == job]
            found.update(fields)

    def id(self, number: int) -> str:
        """Return the id of the job that was submitted as the one of this number, from 1 on."""
        return f"{number}{self.kind.server}"

    def can_begin(self) -> list[str]:
        """Return the jobs that would be started: by their dependencies, and by their names where those matter."""
        there = self.jobs(*HERE)
        ids = {job["id"] for job in there}
        return [
            job["id"]
            for at, job in enumerate(there)
            if job["state"] == "waits" and not ids & set(job["after"])
            and not (job["is_single"] and any(
                other["name"] == job["name"] and (other["state"] == "runs" or before < at)
                for before, other in enumerate(there) if other is not job
            ))
        ]  # fmt: skip

    def surplus(self, of: str) -> str:
        """Submit a second job of the same slot, as one whose answer came too late for the next look."""
        with self.changing() as jobs:
            [one] = [job for job in jobs if job["id"] == of]
            jobs.append({**one, "id": self.id(len(jobs) + 1)})
            return str(jobs[-1]["id"])

    def fault(self, role: str, act: str, times: int = 1) -> None:
        """Let the next calls of a command fail: refuse, lose (the answer), kill-before, kill-after (its caller)."""
        (self.directory / "fault").write_text(f"{self.kind.roles[role]} {act} {times}")

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
        """Return the path of a job's script, as the scheduler spools it."""
        [found] = [one for one in self.jobs() if one["id"] == job]
        path = self.directory / self.kind.spooled.format(job=job)
        path.write_text(found["script"])
        path.chmod(0o755)
        return str(path)

    def told(self, job: str) -> list[str]:
        """Return the file of a job's script, and what the job is told in its second line."""
        path = self.script_of(job)
        line = Path(path).read_text().split("\n")[1]
        if line.startswith("#fsqueue "):
            return [path, line.removeprefix("#fsqueue ")]
        words = shlex.split(line.replace('"$0"', path))
        return [path, words[words.index(path) + 1].removesuffix(";")]

    def variables(self, job: str) -> dict[str, str]:
        """Return the environment of a job's script."""
        own = {name: value.format(job=job) for name, value in self.kind.variables.items()}
        return os.environ | {"PATH": f"{self.bin}:{os.environ['PATH']}"} | own

    def begin(self, job: str, *words: str) -> subprocess.Popen[str]:
        """Start a job, as far as its first step; with `words`, a process that executes them and its script."""
        assert job in self.can_begin(), self.jobs(*HERE)
        self.change(job, state="runs")
        return self.execute(job, *words)

    def execute(self, job: str, *words: str) -> subprocess.Popen[str]:
        """Have a job begin, also once more, in a process of its own."""
        path, told = self.told(job)
        command = [*words, path] if words else [sys.executable, "-P", "-m", "fsqueue_cli.successors", path, told]
        if not words and self.kind.name != "slurm":  # a script has the path of its queue, or it does not matter
            command = [sys.executable, "-P", "-m", "fsqueue_cli", self.kind.name, "Q", path]
        return subprocess.Popen(
            command, env=self.variables(job), stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def add(self, name: str, after: list[str], script: str, words: list[str], **more: Any) -> str:
        """Take a job, and return its id."""
        with self.changing() as jobs:
            number = self.id(len(jobs) + 1)
            jobs.append({
                "id": number, "name": name, "state": "waits", "after": after, "script": script, "words": words,
                "variables": sorted(os.environ), "used_s": 0, "limit_s": 3600, "status": 0, "is_single": False, **more,
            })  # fmt: skip
        return number


def _complain(text: str, status: int = 1) -> int:
    print(text, file=sys.stderr)
    return status


def _submission(of: Callable[[StandIn, list[str]], Job | str], taken: str) -> Callable[[StandIn, list[str]], int]:
    """Return a submitting command. `of` reads its options, and returns the job, or why it is refused. `taken`: what it
    prints.
    """

    def submit(there: StandIn, words: list[str]) -> int:
        kind = there.kind
        act = there.take_fault(kind.roles["submit"])
        if act == "refuse":
            return _complain(kind.refusal)
        if act == "kill-before":
            os.kill(os.getppid(), signal.SIGKILL)
            return 1
        job = of(there, words)
        if isinstance(job, str):
            return _complain(job, 2)
        number = there.add(**job, words=words, script=sys.stdin.read())
        if act == "kill-after":
            os.kill(os.getppid(), signal.SIGKILL)
        if act == "lose":
            return _complain("cannot connect to the server")
        print(taken.format(job=number))
        return 0

    return submit


def _faulty(role: str, command: Callable[[StandIn, list[str]], int]) -> Callable[[StandIn, list[str]], int]:
    """Return a command whose calls may fail before they do anything."""

    def call(there: StandIn, words: list[str]) -> int:
        act = there.take_fault(there.kind.roles[role])
        if act.startswith("kill"):
            os.kill(os.getppid(), signal.SIGKILL)
        return 1 if act else command(there, words)

    return call


def _cancelled(there: StandIn, job: str, *states: str) -> bool:
    """Cancel a job; False if it is not there any more."""
    if any(one["id"] == job for one in there.jobs(*(states or HERE))):
        there.change(job, state="CANCELLED")
        return True
    return False


def _user() -> str:
    return pwd.getpwuid(os.geteuid()).pw_name


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 3600:02}:{int(seconds) // 60 % 60:02}:{int(seconds) % 60:02}"


# -- Slurm


def _sbatch(_: StandIn, words: list[str]) -> Job | str:
    option = {name: value for name, _, value in (word.partition("=") for word in words)}
    depends = dict(one.partition(":")[::2] for one in option.get("--dependency", "").split(",") if one)
    after = depends["afterany"].split(":") if "afterany" in depends else []
    return {
        "name": option.get("--job-name", ""), "after": after, "begin": option.get("--begin"),
        "is_single": "singleton" in depends,
    }  # fmt: skip


_SLURMS = {"waits": "PENDING", "runs": "RUNNING"}


def _squeue(there: StandIn, words: list[str]) -> int:
    option = {name: value for name, _, value in (word.partition("=") for word in words)}
    for job in there.jobs():
        state = _SLURMS.get(job["state"], job["state"])
        fields = {"%A": job["id"], "%T": state, "%j": job["name"], "%e": str(job.get("end", "N/A"))}
        if option.get("--jobs", job["id"]) != job["id"]:
            continue
        if "--Format" in option:
            print(f"{state}|{_clock(job['used_s'])}|{job['status'] << 8}|")
        else:
            print("|".join(fields[one] for one in option["--format"].split("|")))
    return 0


def _scancel(there: StandIn, words: list[str]) -> int:
    states = ("waits",) if "--state=PENDING" in words else HERE
    for job in words:
        _cancelled(there, job, *states)
    return 0


# -- PBS


def _options(words: list[str]) -> dict[str, str]:
    """Return options that have a value each."""
    assert len(words) % 2 == 0, words
    return dict(zip(words[::2], words[1::2], strict=True))


def _qsub(there: StandIn, words: list[str]) -> Job | str:
    option = _options(words)
    name = option.get("-N", "STDIN")
    if len(name) > 15 or not name[:1].isalpha():
        return "qsub: illegal -N value"
    after = [one for one in option.get("-W", "").removeprefix("depend=afterany:").split(":") if one]
    if missing := [one for one in after if one not in {job["id"] for job in there.jobs(*HERE)}]:
        return f"qsub: Unknown Job Id {missing[0]}"
    assert re.fullmatch(r"\d{12}\.\d\d|", option.get("-a", "")), words
    return {"name": name, "after": after, "begin": option.get("-a")}


def _qselect(there: StandIn, words: list[str]) -> int:
    assert words == ["-u", _user()]
    for job in there.jobs(*HERE):
        print(job["id"])
    print(f"900[]{there.kind.server}")  # an array of the same user
    return 0


def _qstat(there: StandIn, words: list[str]) -> int:
    known = {job["id"]: job for job in there.jobs()}
    code = 0
    for one in (word for word in words if not word.startswith("-")):
        job = known.get(one)
        if job is None:
            code = _complain(f"qstat: Unknown Job Id {one}", 153)
        elif job["state"] not in HERE and "-x" not in words:
            code = _complain(f"qstat: {one} Job has finished, use -x or -H to obtain historical job information", 35)
        else:
            state = {"waits": "H" if job["after"] else "Q", "runs": "R"}.get(job["state"], "F")
            fields = {
                "Job_Name": job["name"], "job_state": state,
                "comment": f"Job run at Tue Dec 01 on (node1:ncpus=2){',' * 30}\n\tand so on = too",
                "Resource_List.walltime": _clock(job["limit_s"]), "resources_used.walltime": _clock(job["used_s"]),
            }  # fmt: skip
            if state == "F":  # PBS adds 256 to the number of a signal
                fields["Exit_status"] = str(job["status"] + 128 if job["status"] > 128 else job["status"])
            print(f"Job Id: {one}", *(f"    {key} = {value}" for key, value in fields.items()), "", sep="\n")
    return code


def _qdel(there: StandIn, words: list[str]) -> int:
    left = [one for one in words if not _cancelled(there, one)]
    for one in left:
        _complain(f"qdel: Job has finished {one}")
    return 35 if left else 0


# -- LSF


def _bsub(there: StandIn, words: list[str]) -> Job | str:
    option = _options(words)
    assert os.environ.get("LSB_NTRIES") == "1", "bsub would try for ever where the user has too many jobs"
    assert not {"BSUB_QUIET", "LSB_JOBINDEX"} & set(os.environ), sorted(os.environ)
    after = re.findall(r"ended\((\d+)\)", option.get("-w", ""))
    assert "&&".join(f"ended({one})" for one in after) == option.get("-w", ""), words
    if not set(after) <= {job["id"] for job in there.jobs()}:
        return "Dependency condition invalid or never satisfied. Job not submitted."
    assert re.fullmatch(r"\d{4}(:\d\d){4}|", option.get("-b", "")), words
    return {"name": option["-J"], "after": after, "begin": option.get("-b")}


_LSFS = {"waits": "PEND", "runs": "RUN", "COMPLETED": "DONE"}


def _bjobs(there: StandIn, words: list[str]) -> int:
    *options, form = words[: words.index("-o") + 2]
    assert "-noheader" in options, words
    ids = words[words.index("-o") + 2 :]
    *fields, delimiter = form.split()
    found = [job for job in there.jobs() if job["id"] in ids or (not ids and job["state"] in HERE)]
    for job in found:
        state = _LSFS.get(job["state"], "EXIT")
        is_at_limit = job["state"] == "TIMEOUT"
        reason = "TERM_RUNLIMIT: job killed after reaching LSF run time limit" if is_at_limit else "-"
        said = {
            "jobid": job["id"], "stat": state, "job_name": job["name"], "run_time": f"{job['used_s']} second(s)",
            "runtimelimit": f"{job['limit_s'] / 60:.1f} min", "exit_code": str(job["status"]) if job["status"] else "-",
            "exit_reason": reason,
        }  # fmt: skip
        print(*(said[one] for one in fields), sep=delimiter.removeprefix("delimiter=").strip("'"))
    if not ids and not found:
        return _complain("No unfinished job found", 255)
    if missing := [one for one in ids if one not in {job["id"] for job in found}]:
        return _complain(f"Job <{missing[0]}> is not found", 255)
    return 0


def _bkill(there: StandIn, words: list[str]) -> int:
    code = 0
    for one in words:
        if _cancelled(there, one):
            print(f"Job <{one}> is being terminated")
        else:
            is_known = any(job["id"] == one for job in there.jobs())
            why = "Job has already finished" if is_known else "No matching job found"
            code = _complain(f"Job <{one}>: {why}", 255)
    return code


# -- Grid Engine


def _sge_qsub(there: StandIn, words: list[str]) -> Job | str:
    assert words[0] == "-terse", words
    option = _options(words[1:])
    if not option["-N"][0].isalpha():
        return f'Unable to run job: denied: "{option["-N"]}" is not a valid object name (cannot start with a digit).'
    assert re.fullmatch(r"\d{12}\.\d\d|", option.get("-a", "")), words
    after = [one for one in option.get("-hold_jid", "").split(",") if one]  # one that has ended is passed by
    return {"name": option["-N"], "after": after, "begin": option.get("-a")}


def _sge_qstat(there: StandIn, words: list[str]) -> int:
    if words[0] == "-j":
        found = [job for job in there.jobs(*HERE) if job["id"] == words[1]]
        if not found:
            return _complain(f"Following jobs do not exist: \n{words[1]}")
        print("=" * 62, f"job_number:                 {words[1]}", sep="\n")
        print(f"job_name:                   {found[0]['name']}")
        print(f"hard resource_list:         h_rt={found[0]['limit_s']},h_vmem=2G")
        return 0
    assert words == ["-u", _user(), "-xml"]
    print("<?xml version='1.0'?>\n<job_info  xmlns:xsd=\"http://www.w3.org/2001/XMLSchema\">\n  <queue_info>")
    for job in there.jobs(*HERE):
        runs = job["state"] == "runs"
        state = "r" if runs else "hqw" if job["after"] else "qw"
        print(
            f'    <job_list state="{"running" if runs else "pending"}">',
            f"      <JB_job_number>{job['id']}</JB_job_number>",
            "      <JAT_prio>0.50500</JAT_prio>",
            f"      <JB_name>{job['name']}</JB_name>",
            f"      <JB_owner>{_user()}</JB_owner>",
            f"      <state>{state}</state>",
            "      <queue_name>all.q@node1</queue_name>\n      <slots>1</slots>\n    </job_list>",
            sep="\n",
        )
    print('    <job_list state="pending">\n      <JB_job_number>900</JB_job_number>\n      <JB_name>array</JB_name>')
    print("      <state>qw</state>\n      <tasks>1-4:1</tasks>\n    </job_list>\n  </queue_info>\n</job_info>")
    return 0


def _qacct(there: StandIn, words: list[str]) -> int:
    found = [job for job in there.jobs() if job["id"] == words[1] and job["state"] not in HERE]
    if not found:
        return _complain(f"error: job id {words[1]} not found")
    [job] = found
    for key, value in {
        "=" * 62: "", "qname": "all.q", "jobname": job["name"], "jobnumber": job["id"], "taskid": "undefined",
        "failed": "100 : assumedly after job" if job["status"] == 137 else "0", "exit_status": job["status"],
        "ru_wallclock": f"{job['used_s']}s", "category": f"-u me -l h_rt={job['limit_s']},h_vmem=2G",
    }.items():  # fmt: skip
        print(f"{key:<13}{value}")
    return 0


def _sge_qdel(there: StandIn, words: list[str]) -> int:
    code = 0
    for one in words:
        if _cancelled(there, one):
            print(f"{_user()} has deleted job {one}")
        else:
            print(f'denied: job "{one}" does not exist')
            code = 1
    return code


@dataclass(frozen=True)
class Kind:
    """What differs among the schedulers."""

    name: str
    commands: dict[str, Callable[[StandIn, list[str]], int]]
    roles: dict[str, str]
    """The commands that submit, list and cancel."""
    variables: dict[str, str]
    """What it sets in a job with the id {job}, and what a job may have of an outer one."""
    refusal: str
    """What a command that submits complains of where the user has too many jobs."""
    server: str = ""
    """What stands behind the number of a job."""
    spooled: str = "script-{job}"
    """The file of a job's script."""


KINDS = {
    one.name: one
    for one in (
        Kind(
            "slurm",
            {"sbatch": _submission(_sbatch, "{job}"), "squeue": _faulty("list", _squeue),
             "scancel": _faulty("cancel", _scancel)},
            {"submit": "sbatch", "list": "squeue", "cancel": "scancel"},
            {"SLURM_JOB_ID": "{job}", "SLURM_JOB_NAME": "outer", "SLURM_JOB_END_TIME": "", "SRUN_DEBUG": "3",
             "SBATCH_ACCOUNT": "mine"},
            "sbatch: error: Batch job submission failed: too many jobs, Resource temporarily unavailable",
        ),
        Kind(
            "pbs",
            {"qsub": _submission(_qsub, "{job}"), "qselect": _faulty("list", _qselect), "qstat": _qstat,
             "qdel": _faulty("cancel", _qdel)},
            {"submit": "qsub", "list": "qselect", "cancel": "qdel"},
            {"PBS_JOBID": "{job}", "PBS_ENVIRONMENT": "PBS_BATCH", "PBS_O_WORKDIR": "."},
            "qsub: would exceed queue generic's per-user limit of too many jobs in 'Q' state",
            server=".pbs01",
        ),
        Kind(
            "lsf",
            {"bsub": _submission(_bsub, "Job <{job}> is submitted to default queue <normal>."),
             "bjobs": _faulty("list", _bjobs), "bkill": _faulty("cancel", _bkill)},
            {"submit": "bsub", "list": "bjobs", "cancel": "bkill"},
            {"LSB_JOBID": "{job}", "LSB_JOBINDEX": "0", "LSB_INTERACTIVE": "N", "BSUB_QUIET": "Y",
             "LSB_DEFAULTPROJECT": "mine"},
            "User <me>: Pending job threshold reached, too many jobs. Job not submitted.",
            spooled="1764548725.{job}.shell",
        ),
        Kind(
            "sge",
            {"qsub": _submission(_sge_qsub, "{job}"), "qstat": _faulty("list", _sge_qstat), "qacct": _qacct,
             "qdel": _faulty("cancel", _sge_qdel)},
            {"submit": "qsub", "list": "qstat", "cancel": "qdel"},
            {"JOB_ID": "{job}", "SGE_TASK_ID": "undefined", "ENVIRONMENT": "BATCH"},
            "Unable to run job: job rejected: too many jobs, only 5 are allowed per user (current job count: 5).\n"
            "Exiting.",
        ),
    )
}  # fmt: skip

if __name__ == "__main__":
    _kind, _name, _directory, *_words = sys.argv[1:]
    sys.exit(KINDS[_kind].commands[_name](StandIn(Path(_directory), _kind), _words))
