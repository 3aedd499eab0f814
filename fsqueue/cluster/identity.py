"""The identity of a process, as a lease record gives it for its worker (docs/format.md, "Workers")."""

from __future__ import annotations

import os
import pwd
import socket
from typing import Any

from fsqueue.cluster import schedulers
from fsqueue.filesystem import processes
from fsqueue.interruptions import let_out

SLURM = {
    "slurm_index": "SLURM_ARRAY_TASK_ID",
    "slurm_node": "SLURMD_NODENAME",
    "slurm_cluster": "SLURM_CLUSTER_NAME",
    "slurm_restart": "SLURM_RESTART_COUNT",
}
"""What else is told of a job, and the variable that Slurm sets."""
TOLD_CHARS_MAX = 200


def worker_of_this_process(name: str | None = None) -> dict[str, Any]:
    """Return the record of this worker: host, pid, an identity that no other process has, address, batch job."""
    worker: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid()}
    if name is not None:
        worker["name"] = name
    if (address := _address()) is not None:
        worker["address"] = address
    if (process := processes.identity_of(os.getpid())) is not None:
        worker["process"] = process
    job = _told("SLURM_ARRAY_JOB_ID") or _told("SLURM_JOB_ID")
    if job:
        worker |= {"slurm_job": job, "slurm_user": os.getuid()}
        worker |= {field: value for field, variable in SLURM.items() if (value := _told(variable))}
    elif (other := schedulers.here()) is not None:
        worker |= other.record()
    return worker


def user_of_this_process() -> dict[str, Any]:
    """Return which user, host and process this is, for people to read."""
    user = os.geteuid()
    try:
        name = pwd.getpwuid(user).pw_name
    except (KeyError, OSError) as error:  # a container may know no names
        let_out(error)
        name = str(user)
    return {"host": socket.gethostname(), "pid": os.getpid(), "user": name}


def _told(variable: str) -> str | None:
    """Return what a variable says, if that can stand in a record: an environment may hold anything."""
    value = os.environ.get(variable, "")
    return value if value.isprintable() and len(value) <= TOLD_CHARS_MAX else None


def _address() -> str | None:
    """Return this host's address: the one that a datagram socket would send from. Nothing is sent."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))
            return str(probe.getsockname()[0])
    except OSError as error:
        let_out(error)
        return None


def node_of(worker: dict[str, Any]) -> str:
    """Return the node that a worker is on: by Slurm's name for it, else the host's."""
    return str(worker.get("slurm_node") or worker.get("host", "?"))


def job_of(worker: dict[str, Any]) -> str | None:
    """Return a worker's job as its scheduler writes it: 4711, or an element of an array (Slurm: 4711_3); else None."""
    job, index = worker.get("slurm_job"), worker.get("slurm_index")
    if job is None:
        return schedulers.job_of(worker)
    return f"{job}" if index is None else f"{job}_{index}"


def is_in_job(worker: dict[str, Any], job: str) -> bool:
    """Return whether a worker runs in a job, or in an element of an array, that its scheduler's commands call `job`."""
    if "slurm_job" in worker:
        return job in (str(worker["slurm_job"]), job_of(worker))
    return schedulers.is_of(worker, job)


def describe(worker: dict[str, Any] | None) -> str:
    """Return a worker in a few words for people."""
    if not worker:
        return "an unknown worker"
    name = f"{worker['name']} on " if "name" in worker else ""
    scheduler = "Slurm" if "slurm_job" in worker else schedulers.title_of(worker)
    job = f", {scheduler} job {job_of(worker)}" if scheduler is not None else ""
    return f"{name}{worker.get('host', '?')} (process {worker.get('pid', '?')}{job})"


def lives_here(worker: dict[str, Any]) -> bool | None:
    """Return whether this host's process table proves that a worker lives, or that it is gone; None if it tells
    neither.
    """
    pid, process = worker.get("pid"), worker.get("process")
    if isinstance(process, str) and type(pid) is int and pid > 0:
        return processes.is_alive(pid, process)
    return None
