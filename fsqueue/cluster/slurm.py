"""Ask Slurm when this process's job ends, and whether others' jobs go on; submit to it. Without it, nothing is known.

Slurm is asked with its own commands, which may be missing, refuse, or hang with their controller: then nothing is
known. Nothing here raises, and no question takes longer than `ASK_S`.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from functools import cache

from fsqueue.cluster.controller import ASK_S, Controller, JobRun, Jobs, answer_of


def in_job() -> bool:
    """Return whether a node of Slurm has started this process, or its ancestor: then the end of the job ends it."""
    return bool(os.environ.get("SLURM_JOB_ID")) and bool(os.environ.get("SLURMD_NODENAME"))


def is_alone_on_nodes() -> bool:
    """Return whether this process's job has several nodes, and no task like this one beside it."""
    nodes, tasks = (os.environ.get(name, "") for name in ("SLURM_JOB_NUM_NODES", "SLURM_STEP_NUM_TASKS"))
    is_one_of_many = "SLURM_STEP_ID" in os.environ and tasks not in ("", "1")
    return in_job() and nodes not in ("", "1") and not is_one_of_many


@cache
def job_end() -> float | None:
    """Return when this process's Slurm job ends, in Unix seconds on this host's clock; None if there is none or it is
    unknown.

    SLURM_JOB_END_TIME where Slurm sets it; else Slurm is asked, once a process. A time that is past says nothing (a
    shell that outlived its allocation, a site that lets jobs run on).
    """
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job.isascii() or not job.isdecimal():
        return None
    text = os.environ.get("SLURM_JOB_END_TIME", "")
    if not text.strip().isdecimal():
        text = ask("squeue", "--noheader", f"--jobs={job}", "--format=%e") or ""
    try:
        end = float(text)
    except ValueError:  # no limit, or not known yet
        return None
    return end if time.time() < end < math.inf else None


def time_limit_s(text: str) -> float | None:
    """Return the seconds of a time limit as sbatch reads it: `60` (minutes), `1:30` (minutes, seconds), `1:00:00`,
    `2-12`, `2-12:30`, `2-12:30:00`. None for no limit, and for other text.
    """
    found = re.fullmatch(r"(?:(\d{1,6})-)?(\d{1,9})(?::(\d{1,6}))?(?::(\d{1,6}))?", text.strip(), re.ASCII)
    if found is None:
        return None
    days, *parts = (None if part is None else int(part) for part in found.groups())
    numbers = [part for part in parts if part is not None]
    if days is not None:  # hours come first
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
    elif len(numbers) == 3:
        hours, minutes, seconds = numbers
    else:
        hours, minutes, seconds = 0, *(*numbers, 0)[:2]
    return float((((days or 0) * 24 + hours) * 60 + minutes) * 60 + seconds) or None


def processors() -> int:
    """Return how many processors this process may use: those of its task of a Slurm job, or else of this machine.

    The job's number counts even where Slurm confines no process to its processors: neighbours use the others. Never
    more than the system lets this process use.
    """
    usable = len(os.sched_getaffinity(0))
    return max(1, min(usable, _of_task() or usable))


def _of_task() -> int | None:
    """Return how many processors Slurm gives the task that this process belongs to; None if it does not say."""
    if not in_job():
        return None
    text = os.environ.get("SLURM_CPUS_PER_TASK", "")
    if text.isdecimal():
        return int(text)
    on_node = os.environ.get("SLURM_CPUS_ON_NODE", "")
    if not on_node.isdecimal():
        return None
    if "SLURM_STEP_ID" not in os.environ:  # a batch script has them all
        return int(on_node)
    tasks, node = os.environ.get("SLURM_STEP_TASKS_PER_NODE", ""), os.environ.get("SLURM_NODEID", "")
    left = int(node) if node.isdecimal() else 0
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", tasks):  # 2(x3),1: three nodes with two each, one with one
        left -= int(times or 1)
        if left < 0:
            return max(1, int(on_node) // max(1, int(count)))
    return int(on_node)


RUNNING = frozenset(
    {"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT"}
)
"""States of a job whose processes may live. In others, also pending again after a requeue, those of before are gone."""
JOBS_MAX = 500
"""Maximum number of jobs to ask for in one question."""
_FIELDS = "ArrayJobID:|,ArrayTaskID:|,State:|,RestartCnt:"


def alive(workers: Sequence[Mapping[str, object]]) -> list[bool | None]:
    """Return whether the Slurm jobs that these workers ran in (as lease records name them) go on; None: cannot be
    known.

    A job that Slurm knows no more, that has ended, waits, or was started anew since has none of its former processes.
    That is proof only where Slurm would show the job: not if it is of another cluster, nor another user's where jobs
    are private.
    """
    ids = sorted({job for worker in workers if (job := _id_of(worker)) is not None})
    if not ids:
        return [None] * len(workers)
    cluster, are_private = _cluster()
    found: dict[tuple[str, str], tuple[str, int]] = {}
    asked: set[str] = set()
    for start in range(0, len(ids), JOBS_MAX) if cluster else ():
        some = ids[start : start + JOBS_MAX]
        said = _jobs(some)
        if said is None:
            break  # and the next question would wait as long
        asked.update(some)
        found.update(said)

    def verdict(worker: Mapping[str, object]) -> bool | None:
        job = _id_of(worker)
        if job not in asked or worker.get("slurm_cluster") != cluster:
            return None
        state = found.get((job, str(worker.get("slurm_index", "N/A"))))
        if state is None:
            return None if are_private and worker.get("slurm_user") != os.getuid() != 0 else False
        restart = str(worker.get("slurm_restart", "0"))
        return state[0] in RUNNING and not (restart.isdecimal() and state[1] > int(restart))

    return [verdict(worker) for worker in workers]


def _id_of(worker: Mapping[str, object]) -> str | None:
    """Return a worker's job, of an array the whole array's, if that is a number: a record may hold anything."""
    job = worker.get("slurm_job")
    return job if isinstance(job, str) and job.isascii() and job.isdecimal() and len(job) < 12 else None


def _cluster() -> tuple[str | None, bool]:
    """Return the name of the cluster that would answer, and whether it keeps others' jobs private; None if it does not
    say.
    """
    name, private = None, False
    for line in (ask("scontrol", "show", "config") or "").splitlines():
        key, _, value = (part.strip() for part in line.partition("="))
        if key == "ClusterName":
            name = value
        elif key == "PrivateData":
            private = "jobs" in value.split(",")
    return name, private


def _jobs(ids: list[str]) -> dict[tuple[str, str], tuple[str, int]] | None:
    """Return state and restarts of the jobs that Slurm knows, by job and index ("N/A": none). None: unknown."""
    said = ask(
        "squeue", "--noheader", "--all", "--array", "--states=all", f"--jobs={','.join(ids)}", f"--Format={_FIELDS}"
    )
    if said is None:
        return None
    found = {}
    for line in said.splitlines():
        job, index, state, restarts = (word.strip() for word in (*line.split("|"), "", "", "")[:4])
        if state and restarts.isdecimal():
            found[job, index] = state, int(restarts)
    return found


_SLURM = re.compile(r"SLURM_|SLURMD_|SRUN_|SBATCH_(?:CPU|MEM)_BIND|PMI_|PMI2_|PMIX_(?!MCA_)|OMPI_COMM_WORLD_")
"""Matches what Slurm and the launchers of MPI set in a job and its steps.

SBATCH_*, such as SBATCH_ACCOUNT, is what users ask sbatch for. Only the bindings among them are set by Slurm.
PMIX_MCA_* and OMPI_MCA_* are settings of users and sites.
"""
_USERS = {
    "SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT", "SLURM_SACK_KEY", "SLURM_SACK_SOCKET",
    "SLURM_TIME_FORMAT", "SLURM_BITSTR_LEN", "SLURM_DEBUG_FLAGS", "SLURM_EXIT_ERROR", "SLURM_EXIT_IMMEDIATE",
}  # fmt: skip
"""What users and sites set to reach Slurm, or to have it print otherwise. sbatch itself needs the former."""
_DEVICES = {"CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ZE_AFFINITY_MASK",
            "GPU_DEVICE_ORDINAL"}  # fmt: skip
"""What Slurm sets for the GPUs of a job. A new job with GPUs gets its own; one without must not see the outer job's."""
_HAS_DEVICES = ("SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "SLURM_GPUS_ON_NODE")
_ENDED = frozenset(
    {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED",
     "TIMEOUT"}
)  # fmt: skip
"""States of jobs that do not run any more, and will not again."""
_STATE = re.compile(r"[A-Z][A-Z_]*")
"""Matches the name of a state of a job."""


def typed_in(environment: Mapping[str, str]) -> str:
    """Return the id of the job in which a command is typed; "" outside of jobs."""
    return environment.get("SLURM_JOB_ID") or environment.get("SLURM_JOBID") or ""


class Slurm(Controller):
    """Use sbatch, squeue and scancel. Jobs of one name have --dependency=singleton: Slurm runs one at a time."""

    name = "slurm"
    title = "Slurm"
    submit_command = "sbatch"
    cancel_command = "scancel"
    list_command = "squeue --me"
    keeps_names_apart = True
    writes_scripts = True
    id_variable = "SLURM_JOB_ID"
    unwanted = frozenset({"SBATCH_ARRAY_INX", "SBATCH_WAIT", "SBATCH_CLUSTERS", "SLURM_CLUSTERS"})

    def may_follow_unseen(self) -> bool:
        """Return whether this job begins for the first time."""
        return os.environ.get("SLURM_RESTART_COUNT", "0") == "0"

    def outer_variables(self, environment: Mapping[str, str]) -> list[str]:
        """Return the names of the variables that the job has set in which a command is typed. Outside, all are the
        user's.

        Slurm hands a submitter's environment on to the new job, where srun reads its variables as options: workers
        would share the outer step's one processor, or srun would refuse two kinds of memory limits, and none would
        start.
        """
        if not typed_in(environment):
            return []
        devices = _DEVICES if any(environment.get(name) for name in _HAS_DEVICES) else set()
        return sorted(
            name for name in environment if name in devices or (_SLURM.match(name) is not None and name not in _USERS)
        )

    def after(self, jobs: Sequence[str]) -> str:
        return f"afterany:{':'.join(jobs)}"

    def submission(self, command: Sequence[str], name: str, depends_on: str, pause_s: float) -> list[str]:
        depends = f"{depends_on},singleton" if depends_on else "singleton"
        begin = [f"--begin=now+{round(pause_s)}"] if pause_s else []
        return [*command, f"--job-name={name}", f"--dependency={depends}", *begin]

    def job_in(self, printed: str) -> str | None:
        """Return the id of a job in what `sbatch --parsable` prints; None if there is none."""
        job = printed.strip().partition(";")[0]
        return job if job.isdecimal() else None

    def jobs_by_name(self) -> Jobs | None:
        """Return this user's jobs that run or wait, by their names. None: unknown.

        An element of an array that waits has no entry of its own.
        """
        said = self.ask("squeue", "--noheader", f"--user={os.getuid()}", "--states=all", "--format=%A|%T|%j")
        if said is None:
            return None
        found: Jobs = {}
        for line in said.splitlines():
            job, state, name = (*line.split("|", 2), "", "")[:3]
            if name and state not in _ENDED and job.isdecimal():
                found.setdefault(name, []).append((job, state == "PENDING"))
        return found

    def is_over(self, job: str) -> bool | None:
        """Return whether a job has ended, or all elements of an array have. None: unknown.

        A job that Slurm knows no more has ended.
        """
        said = self.ask("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T")
        lines = [] if said is None else [line.strip() for line in said.splitlines() if line.strip()]
        if said is None or not all(map(_STATE.fullmatch, lines)):  # sites let squeue print words of their own
            return None
        return {*lines} <= _ENDED

    def run_of(self, job: str) -> JobRun | None:
        fields = "--Format=State:|,TimeUsed:|,exit_code:|"
        said = self.ask("squeue", "--noheader", "--states=all", f"--jobs={job}", fields) if job.isdecimal() else None
        state, elapsed, status = (word.strip() for word in (*(said or "").split("|"), "", "", "")[:3])
        return JobRun(state, time_limit_s(elapsed), exit_status_in(status)) if elapsed else None

    def job_end(self) -> float | None:
        return job_end()

    def cancel(self, jobs: Sequence[str], only_waiting: bool) -> bool:
        """Cancel jobs by their ids: those that wait, or all. False if Slurm did not do it, or not all of it."""
        return not jobs or self.ask("scancel", *(["--state=PENDING"] if only_waiting else []), *jobs) is not None

    def ask(self, *command: str) -> str | None:
        return ask(*command)


SLURM = Slurm()


def exit_status_in(text: str) -> int:
    """Return the exit status that squeue prints: as wait(2) tells it, or as `STATUS:SIGNAL`. -1 for other text."""
    status, _, signalled = text.partition(":")
    if not status.isdecimal():
        return -1
    return int(status) if signalled else int(status) >> 8


def ask(*command: str) -> str | None:
    """Return what one of Slurm's commands prints; None if it is not there, fails, or takes longer than `ASK_S`.

    Asked for a single job that it knows no more, squeue fails; that is an answer, too: nothing.
    """
    theirs = ("SQUEUE_", "SCANCEL_", "SLURM_CLUSTERS")  # with them the commands mean other jobs
    environment = {key: value for key, value in os.environ.items() if not key.startswith(theirs)}
    environment |= {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
    answer = answer_of(command, environment, ASK_S)
    if answer is None:
        return None
    if answer.status:
        return "" if "Invalid job id specified" in answer.complaint else None
    return answer.said
