"""Describe what differs among the schedulers to which campaigns submit jobs: `Controller`, of which each has one.

docs/decisions/0062-jobs-that-replace-themselves.md has the steps, which are the same for all. A scheduler is asked with
its own commands, which may be missing, refuse, or hang with their server: then nothing is known. Nothing here raises,
and no question takes longer than `ASK_S`.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar, NamedTuple

from fsqueue.cluster import schedulers
from fsqueue.interruptions import let_out, suppress

ASK_S = 5.0
"""Seconds that a question to a scheduler may take: its own commands try for minutes while the server is away."""
NEAR_S = 120.0
"""Schedulers look at the limits of jobs every minute or two."""
KILLED = frozenset({137, 143, 256 + 9, 256 + 15})
"""Exit statuses of a job that was killed by SIGTERM or SIGKILL: as a shell tells it, or 256 more, as PBS does."""

Jobs = dict[str, list[tuple[str, bool]]]
"""Jobs by their names: the id, and whether it waits."""


class JobRun(NamedTuple):
    """How a job has gone."""

    state: str
    """In Slurm's words: COMPLETED, FAILED, TIMEOUT and others."""
    elapsed_s: float | None
    """For how long it has run."""
    exit_status: int
    """-1 if it is not told."""


class Controller(ABC):
    """Describe one kind of scheduler: how jobs are submitted to it, listed and cancelled."""

    name: ClassVar[str]
    """What the command is called that submits to it, and how campaigns name it."""
    title: ClassVar[str]
    """What people call it."""
    submit_command: ClassVar[str]
    cancel_command: ClassVar[str]
    list_command: ClassVar[str]
    """What users type to see their jobs."""
    keeps_names_apart: ClassVar[bool] = False
    """Whether it never runs two jobs of one name, as those of a campaign are submitted."""
    writes_scripts: ClassVar[bool] = False
    """Whether fsqueue writes the scripts of jobs. If not, they are the user's."""
    id_variable: ClassVar[str]
    """The variable by which a job knows its id."""
    ids: ClassVar[re.Pattern[str]] = re.compile(r"\d+")
    """Matches the ids of jobs that are no arrays."""
    gone: ClassVar[re.Pattern[str]]
    """Matches a line in which a command complains that a job has ended, or is not known any more."""
    unwanted: ClassVar[frozenset[str]] = frozenset()
    """Variables that users may have set for its command, and a campaign cannot have."""
    settings: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Variables that its command needs, unless the user has set them."""

    def number(self, job: str) -> int:
        """Return the number of a job. Jobs that were submitted later have larger ones."""
        return int(job)

    def own_job(self) -> str:
        """Return the id of the job that this process runs in; "" if it is none."""
        job = os.environ.get(self.id_variable, "")
        return job if self.ids.fullmatch(job) else ""

    def may_follow_unseen(self) -> bool:
        """Return whether this job may have a successor although it is not listed under its name."""
        return False

    def outer_variables(self, environment: Mapping[str, str]) -> list[str]:
        """Return the names of the variables that the job has set in which a command is typed: new jobs must not get
        them.
        """
        return []

    def environment(self, environment: Mapping[str, str]) -> dict[str, str]:
        """Return the variables with which a job is submitted."""
        left_out = {*self.outer_variables(environment), *self.unwanted}
        return {**self.settings, **{name: value for name, value in environment.items() if name not in left_out}}

    @abstractmethod
    def after(self, jobs: Sequence[str]) -> str:
        """Return the dependency on the end of jobs, as its command takes it."""

    @abstractmethod
    def submission(self, command: Sequence[str], name: str, depends_on: str, pause_s: float) -> list[str]:
        """Return the command that submits the script on its standard input. `command`: what the user has given of it.

        `depends_on`: what `after` returns, or another dependency, or "". `pause_s`: how much later the job begins, at
        least.
        """

    @abstractmethod
    def job_in(self, printed: str) -> str | None:
        """Return the id of a job in what the submitting command prints; None if there is none."""

    def refusal_in(self, complaint: str, status: int) -> str:
        """Return why the submitting command has not taken a job, by what it complains of, and its exit status."""
        lines = complaint.strip().splitlines()
        return lines[-1] if lines else f"{self.submit_command} ended with exit status {status}"

    @abstractmethod
    def jobs_by_name(self) -> Jobs | None:
        """Return this user's jobs that run or wait, by their names. None: unknown."""

    @abstractmethod
    def run_of(self, job: str) -> JobRun | None:
        """Return how a job has gone. None: the scheduler does not know it any more."""

    @abstractmethod
    def job_end(self) -> float | None:
        """Return when this process's job ends, in Unix seconds on this host's clock. None if that is not known."""

    def cancel(self, jobs: Sequence[str], only_waiting: bool) -> bool:
        """Cancel jobs by their ids. False if that was not done, or not all of it. Jobs that have ended count as
        cancelled.

        Most commands do not tell jobs that wait from others. With `only_waiting`, a job may be cancelled that begins
        just then.
        """
        return not jobs or self.ask(self.cancel_command, *jobs) is not None

    def ask(self, *command: str) -> str | None:
        """Return what a command prints, also if all that it complains of is that jobs have ended. None: unknown."""
        done = answer_of(command, os.environ | {"LC_ALL": "C"}, ASK_S)
        if done is None or (done.status and not self._are_gone(done.complaint.strip() or done.said)):
            return None
        return done.said

    def _are_gone(self, complaint: str) -> bool:
        lines = [line for line in complaint.splitlines() if line.strip()]
        return bool(lines) and all(self.gone.search(line) for line in lines)


class ScriptController(Controller):
    """Describe a scheduler to which scripts of the user's own are submitted, whose lines with options it reads."""

    array: ClassVar[re.Pattern[bytes]]
    """Matches in the script of an array of jobs."""
    array_option: ClassVar[str]
    """What asks for one, for people."""
    limit: ClassVar[re.Pattern[bytes]]
    """Matches the time limit in the script of a job, as its first group."""
    limit_option: ClassVar[str]
    """What asks for one, as an example."""
    script_variable: ClassVar[str] = ""
    """The variable that has the file of a job's script, if $0 may be another one."""

    def is_batch(self) -> bool:
        """Return whether this process was started by the script of a job, and not in an interactive one."""
        return bool(self.own_job())

    def limit_s(self, script: bytes) -> float | None:
        """Return the time limit that a script asks for, in seconds; None if it asks for none."""
        found = self.limit.findall(script)
        return self.seconds(found[-1].decode()) if found else None

    def seconds(self, text: str) -> float | None:
        """Return the seconds of a time limit, as scripts have it; None for other text."""
        return schedulers.seconds(text)


def how_it_ended(exit_status: int, elapsed_s: float | None, limit_s: float | None) -> str:
    """Return, in Slurm's words, how a job has gone. It has reached its limit if it was killed near that."""
    is_at_limit = elapsed_s is not None and limit_s is not None and elapsed_s >= limit_s - NEAR_S
    if exit_status == 0:
        return "COMPLETED"
    return "TIMEOUT" if exit_status in KILLED and is_at_limit else "FAILED"


def local_time(form: str, after_s: float) -> str:
    """Return this host's local time a number of seconds from now."""
    return time.strftime(form, time.localtime(time.time() + after_s))


class Printed(NamedTuple):
    """What a scheduler's command printed, and its exit status."""

    status: int
    said: str
    complaint: str


def answer_of(command: Sequence[str], environment: Mapping[str, str], seconds: float) -> Printed | None:
    """Return the answer of a scheduler's command; None if it is not there, or takes longer."""
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us
        )
    except (OSError, ValueError) as error:
        let_out(error)
        return None
    try:
        said, complaint = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)  # no longer: what hangs in a system call does not end before that does
        return None
    return Printed(process.returncode, said.decode(errors="replace"), complaint.decode(errors="replace"))
