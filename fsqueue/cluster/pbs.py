"""Ask PBS (PBS Pro, OpenPBS, Torque) which jobs of this user there are, how one has gone, and have it cancel some.

The functions are those of `slurm` by the same names, for campaigns of jobs that replace themselves. PBS is asked with
its own commands, which may be missing, refuse, or hang with their server: then nothing is known. Nothing here raises,
and no question takes longer than `ASK_S`.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence

from fsqueue.cluster import schedulers
from fsqueue.cluster.identity import user_of_this_process
from fsqueue.cluster.slurm import ASK_S, answer_of

TITLE = "PBS"
WAITING = frozenset("QHWT")
"""States of a job that has not begun: queued, held, waiting for its time, in transit."""
ENDED = frozenset("FXCM")
"""States of a job that does not run any more here. C is Torque's; M was moved to another server."""
KILLED = frozenset({137, 143, 256 + 9, 256 + 15})
"""Exit statuses of a job that PBS has killed: by SIGTERM or SIGKILL, as a shell tells it or 256 more."""
NEAR_S = 120.0
"""PBS looks at the limits of jobs every minute or two."""
NAME_CHARS_MAX = 15
"""The longest name of a job that all versions take."""
_GONE = re.compile(r"Unknown Job Id|has finished", re.IGNORECASE)
_ID = re.compile(r"\d+(?:\.[A-Za-z0-9._-]+)?")
_FIELD = re.compile(r"^ {4}(\S+) = (.*)$")


def number(job: str) -> int:
    """Return the number of a job. Jobs that were submitted later have larger ones."""
    return int(job.partition(".")[0])


def own_job() -> str:
    """Return the id of the job that this process runs in; "" if it is none."""
    job = os.environ.get("PBS_JOBID", "")
    return job if _ID.fullmatch(job) else ""


def submission(name: str, depends_on: str, pause_s: float) -> list[str]:
    """Return the command that submits the script on its standard input. `depends_on`: `afterany:` and ids, or ""."""
    depends = ["-W", f"depend={depends_on}"] if depends_on else []
    begin = ["-a", time.strftime("%Y%m%d%H%M.%S", time.localtime(time.time() + pause_s))] if pause_s else []
    return ["qsub", "-N", name, *depends, *begin]


def job_in(printed: str) -> str | None:
    """Return the id of a job in what qsub prints; None if there is none."""
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    return lines[-1] if lines and _ID.fullmatch(lines[-1]) else None


def jobs_by_name() -> dict[str, list[tuple[str, bool]]] | None:
    """Return this user's jobs that run or wait, by their names: the id, and whether it waits. None: unknown."""
    listed = answer_of(["qselect", "-u", str(user_of_this_process()["user"])], _environment(), ASK_S)
    if listed is None or listed.status:
        return None
    ids = [word for word in listed.said.split() if _ID.fullmatch(word)]
    found: dict[str, list[tuple[str, bool]]] = {}
    described = _described(["-f"], ids) if ids else {}
    if described is None:
        return None
    for job, fields in described.items():
        state = fields.get("job_state", "")
        if state not in ENDED:
            found.setdefault(fields.get("Job_Name", ""), []).append((job, state in WAITING))
    return found


def run_of(job: str) -> tuple[str, str, int] | None:
    """Return how a job has ended, in Slurm's words, for how long it ran (`1:00:00`), and its exit status, -1 if that is
    not told. None: PBS does not know it any more; it keeps ended jobs only where the site says so.
    """
    fields = (_described(["-x", "-f"], [job]) or {}).get(job, {})
    used, status = fields.get("resources_used.walltime", ""), fields.get("Exit_status", "")
    if not used:
        return None
    code = int(status) if re.fullmatch(r"\d{1,6}", status) else -1
    used_s, limit_s = schedulers.seconds(used), schedulers.seconds(fields.get("Resource_List.walltime", ""))
    is_at_limit = used_s is not None and limit_s is not None and used_s >= limit_s - NEAR_S
    if code == 0:
        return "COMPLETED", used, code
    return ("TIMEOUT" if code in KILLED and is_at_limit else "FAILED"), used, code


def job_end() -> float | None:
    """Return when this process's job ends, in Unix seconds on this host's clock. None if that is not known."""
    job = own_job()
    if not job or (end := schedulers.job_end()) is not None:
        return end if job else None
    fields = (_described(["-f"], [job]) or {}).get(job, {})
    limit_s = schedulers.seconds(fields.get("Resource_List.walltime", ""))
    used_s = schedulers.seconds(fields.get("resources_used.walltime", "")) or 0.0
    return None if limit_s is None or limit_s <= used_s else time.time() + limit_s - used_s


def cancel(jobs: Sequence[str], only_waiting: bool) -> bool:
    """Cancel jobs by their ids. False if PBS did not do it, or not all of it. Jobs that have ended count as cancelled.

    qdel does not tell jobs that wait from others. With `only_waiting`, a job may be cancelled that begins just then.
    """
    if not jobs:
        return True
    done = answer_of(["qdel", *jobs], _environment(), ASK_S)
    return done is not None and (not done.status or _are_gone(done.complaint))


def _described(options: list[str], jobs: list[str]) -> dict[str, dict[str, str]] | None:
    """Return the fields of jobs by their ids, as `qstat -f` prints them. Those that have ended are left out. None:
    unknown.
    """
    done = answer_of(["qstat", *options, *jobs], _environment(), ASK_S)
    if done is None or (done.status and not _are_gone(done.complaint)):
        return None
    found: dict[str, dict[str, str]] = {}
    fields: dict[str, str] = {}
    for line in done.said.replace("\n\t", "").splitlines():  # long values go on in lines that begin with a tab
        if line.startswith("Job Id:"):
            fields = found.setdefault(line.removeprefix("Job Id:").strip(), {})
        elif (field := _FIELD.match(line)) is not None:
            fields[field[1]] = field[2].strip()
    return found


def _are_gone(complaint: str) -> bool:
    """Return whether all that a command complains of is that jobs have ended."""
    lines = [line for line in complaint.splitlines() if line.strip()]
    return bool(lines) and all(_GONE.search(line) for line in lines)


def _environment() -> dict[str, str]:
    return os.environ | {"LC_ALL": "C"}
