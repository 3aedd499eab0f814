"""A Slurm in memory: sbatch, squeue and scancel as processes of a story call them, and the jobs that it has taken.

The package's own code runs down to the commands (`fsqueue_cli.successors`, `fsqueue.cluster.slurm`). Each command is a
call of its process, and so is its answer: a process may be killed before the command, and between the two.
`campaigns` starts jobs and judges them.
"""

from __future__ import annotations

import io
import os
import random
import re
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fsqueue_cli import running, successors  # noqa: F401 - a job would import `running` on a simulated machine
from fsqueue_cli.campaign import Campaign, Relay, decode

from fsqueue.cluster import controller, slurm
from fsqueue.cluster.controller import ASK_S, Printed
from tests.simulation.kernel import Process

if TYPE_CHECKING:
    from tests.simulation.world import Turn, World

LIMIT_S, WARNED_S = 600.0, 40.0
"""The time limit of each job, and how long before it a worker begins no more tasks."""
LAG_S = 1.0
"""For so long squeue shows some jobs as waiting that run: each third one."""
LATE_S = 90.0
"""When a job is there whose submission seemed to fail."""
TROUBLES = {"refused": "sbatch", "lost": "sbatch", "late": "sbatch", "silent": "squeue", "deaf": "scancel"}
"""What may go wrong with a command: it is refused; the answer is lost; it is done when nobody waits for the answer any
more; it does not answer, and does nothing.
"""
CALLS = ("spawn", *(name for command in {*TROUBLES.values()} for name in (command, f"{command} answers")))
"""What processes call besides their disk."""
SPOOL = "/spool/"
CLEAN, KILLED = 0, 137
"""Exit statuses of jobs."""


@dataclass(eq=False)
class Job:
    """A job, from its submission on. Times are the world's, and moments are its steps."""

    number: int
    name: str
    after: set[int]
    is_single: bool
    script: bytes
    begin_at: float
    by: Process | None
    """The process that has submitted it."""
    campaign: Campaign
    relay: Relay
    taken: int
    """The step at which it was taken."""
    is_late: bool = False
    """Whether it was taken when nobody waited for the answer any more."""
    state: str = "waits"
    """Waits, runs, or how it has ended in Slurm's words."""
    restarts: int = 0
    since: int = 0
    """Since which step it waits, or runs."""
    waited: list[tuple[int, int]] = field(default_factory=list)
    """From which step to which it has waited, for each time that it began."""
    started: float = 0.0
    ended: float = 0.0
    status: int = CLEAN
    turns: list[Turn] = field(default_factory=list)
    """Its processes, of which the first is its script."""
    is_clean: bool = False
    """Whether its script has come to its end."""
    code: int | None = None
    """What its first step has returned, if it came to its end."""
    trouble_at: float = -1.0
    """When a command of its processes failed last."""

    @property
    def is_here(self) -> bool:
        """Return whether it waits or runs."""
        return self.state in ("waits", "runs")

    @property
    def slot(self) -> int:
        """Return the slot of its name."""
        return int(self.name.rpartition("-")[2])

    def was_waiting(self, begin: int, end: int) -> bool:
        """Return whether it has waited at a moment between these steps."""
        spans = [*self.waited, *([(self.since, end)] if self.state == "waits" else [])]
        return any(since <= end and until >= begin for since, until in spans)

    def told(self) -> tuple[str, str]:
        """Return the file of its script, and what the job is told in its second line."""
        path = f"{SPOOL}{self.number}"
        words = shlex.split(self.script.split(b"\n")[1].decode().replace('"$0"', path))
        return path, words[words.index(path) + 1].removesuffix(";")

    def used_s(self, now: float) -> float:
        """Return for how long it has run."""
        return (now if self.state == "runs" else self.ended) - self.started


class Slurm:
    """The jobs, and what the commands answer."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.jobs: list[Job] = []
        self.late: list[tuple[float, Job]] = []
        """Jobs that are taken later, and when."""
        self.troubles: dict[str, list[str]] = {}
        """What goes wrong with the next calls of each command."""
        self.troubled = 0
        """How often a command has gone wrong."""
        self.killed: set[str] = set()
        """The names of processes that were killed, other than by Slurm."""
        self.looked: dict[Process, int] = {}
        """When each process was told last which jobs there are."""
        self.said: dict[Process, list[str]] = {}
        """What each process has complained of."""
        self.processes: dict[Process, Job] = {}
        """Whose job each process is of."""
        self.spawned: list[tuple[Process, list[str]]] = []
        """Processes that others have begun, with their arguments."""
        self.turn: Turn | None = None
        """That of the controller."""
        self.judge: Any = None
        """What is called with each job that is taken."""

    def here(self) -> list[Job]:
        """Return the jobs that wait or run."""
        return [job for job in self.jobs if job.is_here]

    def job_of(self, process: Process) -> Job | None:
        """Return the job of a process."""
        return self.processes.get(process)

    def wake(self) -> None:
        """Have the controller look what it has to do."""
        if self.turn is not None:
            self.turn.awake_at = min(self.turn.awake_at, self.world.now)

    # -- commands ----------------------------------------------------------------------------------------------

    def _begin(self, process: Process, name: str, *args: str) -> str:
        """Begin a command, and return what goes wrong with it."""
        process.enter(name, args)
        left = self.troubles.get(name)
        trouble = left.pop(0) if left else ""
        self.troubled += bool(trouble)
        job = self.job_of(process)
        if trouble and job is not None:
            job.trouble_at = self.world.now
        return trouble

    def submit(self, process: Process, words: Sequence[str], script: bytes) -> tuple[int, str, str]:
        """Do what sbatch does. Return the exit status, and what it prints on both streams. TimeoutExpired."""
        option = {name: value for name, _, value in (word.partition("=") for word in words)}
        trouble = self._begin(process, "sbatch", option["--job-name"])
        if trouble == "refused":
            return 1, "", "sbatch: error: Batch job submission failed: Resource temporarily unavailable"
        job = self._made(process, option, script)
        if trouble == "late":
            job.is_late = True
            self.late.append((self.world.now + LATE_S, job))
            self.wake()
            self.world.sleep(process, successors.SUBMIT_S)
            raise subprocess.TimeoutExpired(list(words), successors.SUBMIT_S)
        self.take(job)
        process.enter("sbatch answers", (str(job.number),))
        if trouble == "lost":
            return 1, "", "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"
        return 0, f"{job.number}\n", ""

    def _made(self, process: Process, option: dict[str, str], script: bytes) -> Job:
        depends = dict(one.partition(":")[::2] for one in option.get("--dependency", "").split(",") if one)
        begin = re.fullmatch(r"now\+(\d+)|", option.get("--begin", ""))
        assert begin is not None, option
        after = {int(one) for one in depends.get("afterany", "").split(":") if one}
        job = Job(
            number=0, name=option["--job-name"], after=after, is_single="singleton" in depends, script=script,
            begin_at=self.world.now + int(begin[1] or 0), by=process,
            campaign=Campaign("", 0, [], [], False, [], "", 0, 0), relay=Relay(), taken=0,
        )  # fmt: skip
        job.campaign, job.relay = decode(job.told()[1])
        return job

    def take(self, job: Job) -> None:
        """Take a job: from now on it waits."""
        job.number = len(self.jobs) + 1
        job.taken = job.since = self.world.disk.step
        self.jobs.append(job)
        self.world.say(f"      Slurm has job {job.number}, {job.name}, after {sorted(job.after)}")
        self.judge(job)
        self.wake()

    def answer(self, process: Process, words: Sequence[str]) -> Printed | None:
        """Do what squeue and scancel do. None if there is no answer in time."""
        command, *options = words
        if command not in ("squeue", "scancel"):
            return None
        trouble = self._begin(process, command, *options)
        if trouble:
            self.world.sleep(process, ASK_S)
            return None
        said = self._listed(process, options) if command == "squeue" else self._cancelled(options)
        process.enter(f"{command} answers", ())
        return Printed(0, said, "")

    def _listed(self, process: Process, words: list[str]) -> str:
        option = {name: value for name, _, value in (word.partition("=") for word in words)}
        lines = []
        for job in self.jobs:
            if option.get("--jobs", str(job.number)) != str(job.number):
                continue
            used = int(job.used_s(self.world.now))
            if "--Format" in option:
                lines.append(
                    f"{self._shown(job)}|{used // 3600:02}:{used // 60 % 60:02}:{used % 60:02}|{job.status << 8}|"
                )
            else:
                lines.append(f"{job.number}|{self._shown(job)}|{job.name}")
        if "--jobs" not in option:
            self.looked[process] = self.world.disk.step
        return "\n".join(lines)

    def _shown(self, job: Job) -> str:
        lags = job.number % 3 == 0 and self.world.now - job.started < LAG_S
        return {"waits": "PENDING", "runs": "PENDING" if lags else "RUNNING"}.get(job.state, job.state)

    def _cancelled(self, words: list[str]) -> str:
        numbers = {int(word) for word in words if word.isdecimal()}
        states = ("waits",) if "--state=PENDING" in words else ("waits", "runs")
        for job in self.jobs:
            if job.number in numbers and job.state in states:
                self.end(job, "CANCELLED", KILLED)
        return ""

    # -- what becomes of jobs ------------------------------------------------------------------------------------

    def end(self, job: Job, state: str, status: int) -> None:
        """End a job, and its processes."""
        self._leave(job)
        job.state, job.status, job.ended = state, status, self.world.now
        self.wake()

    def requeue(self, job: Job) -> None:
        """End the processes of a job, which waits then to begin once more."""
        self._leave(job)
        job.state, job.since, job.after, job.is_clean, job.code = "waits", self.world.disk.step, set(), False, None
        job.restarts, job.begin_at = job.restarts + 1, self.world.now + 10
        self.wake()

    def _leave(self, job: Job) -> None:
        if job.state == "waits":
            job.waited.append((job.since, self.world.disk.step))
        self.world.say(f"      job {job.number} does not {job.state.removesuffix('s')} any more")
        for turn in job.turns:
            if not turn.finished and not turn.process.dead:
                turn.process.kill()

    def can_begin(self) -> list[Job]:
        """Return the jobs that may begin now, by their dependencies, and by their names."""
        here = self.here()
        numbers = {job.number for job in here}
        return [
            job for job in here
            if job.state == "waits" and job.begin_at <= self.world.now and not job.after & numbers
            and not (job.is_single and any(
                other.name == job.name and (other.state == "runs" or other.number < job.number)
                for other in here if other is not job
            ))
        ]  # fmt: skip


# -- what the package asks of the machine -------------------------------------------------------------------------


def _actor() -> Any:
    """Return the one who acts, in a thread that tells a story; else None."""
    from tests.simulation.wiring import me, tells

    return me() if tells() else None


class _OsOfJob:
    """`os`, with the variables of the process that acts."""

    def __getattr__(self, name: str) -> Any:
        who = _actor() if name == "environ" else None
        return getattr(os, name) if who is None else who.process.environ


class _TimeOfJob:
    """`time`, as the process that acts has it."""

    def __getattr__(self, name: str) -> Any:
        who = _actor()
        if who is None:
            return getattr(time, name)
        return {"time": who.clock.local_s, "monotonic": who.clock.monotonic, "sleep": who.clock.sleep}[name]


class _RandomOfJob:
    """`random`, as the process that acts has it."""

    def __getattr__(self, name: str) -> Any:
        who = _actor()
        assert who is None or name == "uniform"
        return getattr(random, name) if who is None else lambda a, b: a + (b - a) * who.entropy.random()


class _SubprocessOfJob:
    """`subprocess`, in which Slurm's commands are."""

    def __getattr__(self, name: str) -> Any:
        who = _actor()
        return (
            getattr(subprocess, name)
            if who is None
            else {"run": _run, "Popen": _spawn}.get(name) or getattr(subprocess, name)
        )


def _run(words: list[str], input: bytes, **_: Any) -> Any:
    process = _actor().process
    status, said, complaint = process.world.slurm.submit(process, words, input)
    return subprocess.CompletedProcess(words, status, said.encode(), complaint.encode())


def _spawn(words: list[str], **_: Any) -> None:
    process = _actor().process
    process.enter("spawn", ())
    process.world.slurm.spawned.append((process, words[words.index(f"{successors.__package__}.successors") + 1 :]))
    process.world.slurm.wake()


def _answer_of(command: Sequence[str], environment: Any, seconds: float) -> Printed | None:
    process = _actor().process
    answer: Printed | None = process.world.slurm.answer(process, command)
    return answer


def _complain(message: str) -> None:
    process = _actor().process
    process.world.slurm.said.setdefault(process, []).append(message)
    process.world.say(f"      {process.name} says: {message}")


def _open(path: str, mode: str) -> io.BytesIO:
    number = int(path.removeprefix(SPOOL))
    return io.BytesIO(_actor().process.world.slurm.jobs[number - 1].script)


MACHINE: list[tuple[Any, str, Any]] = [
    *((module, "os", _OsOfJob()) for module in (successors, slurm, controller)),
    *((module, "time", _TimeOfJob()) for module in (successors, slurm)),
    (successors, "random", _RandomOfJob()),
    (successors, "subprocess", _SubprocessOfJob()),
    (successors, "complain", _complain),
    (successors, "print_done", lambda *about: None),
    (successors, "open", _open),
    (slurm, "answer_of", _answer_of),
    (slurm, "job_end", slurm.job_end.__wrapped__),
]
"""What stands in the package's modules for the machine of a job: see `wiring.simulated_machine`."""
