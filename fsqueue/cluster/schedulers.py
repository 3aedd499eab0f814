"""Recognise the job of a scheduler other than Slurm by the environment: its id, its index, and when it ends.

Nothing here asks a scheduler. docs/schedulers.md, "PBS, LSF, SGE, HTCondor", says which variables each one sets.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from fsqueue.filesystem import processes

VALUE_CHARS_MAX = 200
"""A longer value is no job id, index or limit."""


@dataclass(frozen=True, slots=True)
class Scheduler:
    """Describe the variables by which a scheduler's processes know their job.

    Where a field names several variables, the first that is set counts.
    """

    name: str
    """The name in lease records."""
    title: str
    """The name for people."""
    marks: tuple[str, ...]
    """One of these variables is set in each of its jobs, and in no other scheduler's."""
    job: tuple[str, ...]
    """The job's id, which may include the index."""
    index: tuple[str, ...]
    """The index in an array of jobs."""
    ids: str
    """A pattern for ids, with the groups `job`, `index` and `server`. The latter two may be None or empty."""
    element: str
    """The format of the id of one element of an array, with {job} and {index}."""
    no_index: str = ""
    """The value of the index outside of arrays."""
    limits: tuple[str, ...] = ()
    """The time that the job may take from its start. The shortest counts."""
    attributes: str = ""
    """The name of a file with further variables, one `NAME = VALUE` a line."""
    ending: frozenset[int] = field(default=frozenset({signal.SIGTERM}))
    """Signals that it sends to all processes of a job to end them."""
    warning: frozenset[int] = frozenset()
    """Signals that it sends to all processes of a job some time before it ends the job."""


SCHEDULERS = (
    Scheduler(
        name="pbs", title="PBS", marks=("PBS_JOBID",), job=("PBS_JOBID",), index=("PBS_ARRAY_INDEX", "PBS_ARRAYID"),
        ids=r"(?P<job>\d+)(?:\[(?P<index>\d*)\]|-(?P<dash>\d+))?(?:\.(?P<server>.+))?",  # 7[3].pbs; once: 7-3.pbs
        element="{job}[{index}]", limits=("PBS_WALLTIME",),
    ),
    Scheduler(
        name="lsf", title="LSF", marks=("LSB_JOBID",), job=("LSB_JOBID",), index=("LSB_JOBINDEX",),
        ids=r"(?P<job>\d+)(?:\[(?P<index>\d+)\])?", element="{job}[{index}]", no_index="0",
        ending=frozenset({signal.SIGINT, signal.SIGTERM}), warning=frozenset({signal.SIGUSR2}),
    ),
    Scheduler(
        name="sge", title="Grid Engine", marks=("SGE_TASK_ID",), job=("JOB_ID",), index=("SGE_TASK_ID",),
        ids=r"(?P<job>\d+)(?:\.(?P<index>\d+))?", element="{job}.{index}", no_index="undefined",
        ending=frozenset({signal.SIGTERM, signal.SIGUSR2}), warning=frozenset({signal.SIGUSR1}),
    ),
    Scheduler(
        name="htcondor", title="HTCondor", marks=("_CONDOR_JOB_AD", "_CONDOR_SLOT"),
        job=("ClusterId", "CONDOR_CLUSTER"), index=("ProcId", "CONDOR_PROCESS"),
        ids=r"(?P<job>\d+)(?:\.(?P<index>\d+))?", element="{job}.{index}",
        limits=("AllowedExecuteDuration", "AllowedJobDuration"), attributes="_CONDOR_JOB_AD",
    ),
)  # fmt: skip
TEXT_BYTES_MAX = 1 << 20
"""Maximum number of bytes to read of a batch system's file."""
_BY_NAME = {scheduler.name: scheduler for scheduler in SCHEDULERS}


@dataclass(frozen=True, slots=True)
class SchedulerJob:
    """A job of one of the schedulers. With an `index`, one element of an array of jobs."""

    scheduler: Scheduler
    id: str
    """The job's number. All elements of an array have the same."""
    index: str | None
    server: str | None
    limit_s: float | None
    """Seconds that it may take; None if the environment does not say."""
    mark: tuple[str, str]
    """The variable by which the scheduler was recognised, and its value."""

    def record(self) -> dict[str, str]:
        """Return the job's fields of a lease record (docs/format.md, "Workers")."""
        fields = {"scheduler": self.scheduler.name, "job": self.id, "job_index": self.index, "job_server": self.server}
        return {key: value for key, value in fields.items() if value is not None}


def here() -> SchedulerJob | None:
    """Return the job that this process runs in, by its environment; None if there is none, or it is Slurm's."""
    if os.environ.get("SLURM_JOB_ID"):
        return None  # other schedulers' variables may be inherited into a job of Slurm
    for scheduler in SCHEDULERS:
        mark = next((name for name in scheduler.marks if os.environ.get(name)), None)
        if mark is None:
            continue
        values = _values(scheduler)
        parsed = re.fullmatch(scheduler.ids, _first(values, scheduler.job))
        if parsed is None:
            continue
        found = parsed.groupdict()
        index = _first(values, scheduler.index) or found.get("index") or found.get("dash") or ""
        is_element = index.isascii() and index.isdecimal() and index != scheduler.no_index
        limits = [limit for name in scheduler.limits if (limit := seconds(_first(values, (name,)))) is not None]
        return SchedulerJob(
            scheduler, found["job"], index if is_element else None, found.get("server"), min(limits, default=None),
            (mark, os.environ[mark]),
        )  # fmt: skip
    return None


def job_end() -> float | None:
    """Return when this process's job ends, in Unix seconds on this host's clock; None if the environment does not say.

    The limit counts from the start of the job's first process. Return None, too, if that time has passed.
    """
    job = here()
    if job is None or job.limit_s is None:
        return None
    left_s = job.limit_s - processes.age_with(*job.mark)
    return time.time() + left_s if left_s > 0 else None


def job_of(worker: Mapping[str, object]) -> str | None:
    """Return a worker's job, as its scheduler writes it. None if its lease record names none of these schedulers."""
    scheduler = _BY_NAME.get(str(worker.get("scheduler")))
    if scheduler is None or "job" not in worker:
        return None
    job, index = str(worker["job"]), worker.get("job_index")
    return job if index is None else scheduler.element.format(job=job, index=index)


def title_of(worker: Mapping[str, object]) -> str | None:
    """Return the name of a worker's scheduler, for people. None if its lease record names none of these schedulers."""
    scheduler = _BY_NAME.get(str(worker.get("scheduler")))
    return None if scheduler is None else scheduler.title


def is_of(worker: Mapping[str, object], text: str) -> bool:
    """Return whether a worker runs in the job, or the element of an array, with the id `text`.

    An id without an index means all elements, and one without a server any server.
    """
    scheduler = _BY_NAME.get(str(worker.get("scheduler")))
    parsed = None if scheduler is None else re.fullmatch(scheduler.ids, text)
    if parsed is None or str(worker.get("job")) != parsed["job"]:
        return False
    asked = parsed.groupdict()
    index, server = asked.get("index") or asked.get("dash"), asked.get("server")
    its_server = worker.get("job_server")
    return index in (None, "", worker.get("job_index")) and (server is None or its_server in (None, server))


def _values(scheduler: Scheduler) -> dict[str, str]:
    """Return the scheduler's variables, from the environment and from the file that it names."""
    values = {name: os.environ.get(name, "") for name in (*scheduler.job, *scheduler.index, *scheduler.limits)}
    if scheduler.attributes and (path := os.environ.get(scheduler.attributes)):
        said = processes.start_of(path, TEXT_BYTES_MAX) or b""
        for line in said.decode(errors="replace").splitlines():
            name, equals, value = line.partition("=")
            if equals and name.strip() in values:
                values[name.strip()] = value.strip()
    return values


def _first(values: Mapping[str, str], names: tuple[str, ...]) -> str:
    value = next((values[name].strip() for name in names if values[name]), "")
    return value if value.isascii() and value.isprintable() and len(value) <= VALUE_CHARS_MAX else ""


def seconds(text: str) -> float | None:
    """Return the seconds of `3600` or `1:00:00`; None for other text."""
    if not re.fullmatch(r"\d{1,9}|(\d{1,3}:)?\d{1,6}:\d\d(:\d\d)?", text):
        return None
    total = 0.0
    for part, size in zip(reversed(text.split(":")), (1, 60, 3600, 86_400), strict=False):
        total += int(part) * size
    return total or None
