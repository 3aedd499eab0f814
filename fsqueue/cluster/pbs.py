"""PBS (PBS Pro, OpenPBS, Torque), as campaigns of jobs that replace themselves submit to it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence

from fsqueue.cluster import schedulers
from fsqueue.cluster.controller import JobRun, Jobs, ScriptController, how_it_ended, local_time
from fsqueue.cluster.identity import user_of_this_process

WAITING = frozenset("QHWT")
"""States of a job that has not begun: queued, held, waiting for its time, in transit."""
ENDED = frozenset("FXCM")
"""States of a job that does not run any more here. C is Torque's; M was moved to another server."""
_FIELD = re.compile(r"^ {4}(\S+) = (.*)$")


class Pbs(ScriptController):
    """Use qsub, qselect, qstat and qdel."""

    name = "pbs"
    title = "PBS"
    submit_command = "qsub"
    cancel_command = "qdel"
    list_command = "qstat -u $USER"
    id_variable = "PBS_JOBID"
    ids = re.compile(r"\d+(?:\.[A-Za-z0-9._-]+)?")
    gone = re.compile(r"Unknown Job Id|has finished", re.IGNORECASE)
    array = re.compile(rb"^#PBS\s+(?:.*\s)?-[Jt]\b", re.MULTILINE)
    array_option = "#PBS -J' or '#PBS -t"
    limit = re.compile(rb"^#PBS\s.*\bwalltime=([\d:]+)", re.MULTILINE)
    limit_option = "#PBS -l walltime=4:00:00"

    def number(self, job: str) -> int:
        return int(job.partition(".")[0])

    def is_batch(self) -> bool:
        return os.environ.get("PBS_ENVIRONMENT") == "PBS_BATCH"

    def after(self, jobs: Sequence[str]) -> str:
        return f"depend=afterany:{':'.join(jobs)}"

    def submission(self, command: Sequence[str], name: str, depends_on: str, pause_s: float) -> list[str]:
        depends = ["-W", depends_on] if depends_on else []
        begin = ["-a", local_time("%Y%m%d%H%M.%S", pause_s)] if pause_s else []
        return ["qsub", *command, "-N", name, *depends, *begin]

    def job_in(self, printed: str) -> str | None:
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        return lines[-1] if lines and self.ids.fullmatch(lines[-1]) else None

    def jobs_by_name(self) -> Jobs | None:
        listed = self.ask("qselect", "-u", str(user_of_this_process()["user"]))
        if listed is None:
            return None
        ids = [word for word in listed.split() if self.ids.fullmatch(word)]
        found: Jobs = {}
        described = self._described(["-f"], ids) if ids else {}
        if described is None:
            return None
        for job, fields in described.items():
            state = fields.get("job_state", "")
            if state not in ENDED:
                found.setdefault(fields.get("Job_Name", ""), []).append((job, state in WAITING))
        return found

    def run_of(self, job: str) -> JobRun | None:
        """Return how a job has gone. None: PBS does not know it any more, unless the site has it keep ended jobs."""
        fields = (self._described(["-x", "-f"], [job]) or {}).get(job, {})
        used_s, status = schedulers.seconds(fields.get("resources_used.walltime", "")), fields.get("Exit_status", "")
        if "resources_used.walltime" not in fields:
            return None
        code = int(status) if re.fullmatch(r"\d{1,6}", status) else -1
        limit_s = schedulers.seconds(fields.get("Resource_List.walltime", ""))
        return JobRun(how_it_ended(code, used_s, limit_s), used_s, code)

    def job_end(self) -> float | None:
        job = self.own_job()
        if not job or (end := schedulers.job_end()) is not None:
            return end if job else None
        fields = (self._described(["-f"], [job]) or {}).get(job, {})
        limit_s = schedulers.seconds(fields.get("Resource_List.walltime", ""))
        used_s = schedulers.seconds(fields.get("resources_used.walltime", "")) or 0.0
        return None if limit_s is None or limit_s <= used_s else time.time() + limit_s - used_s

    def _described(self, options: list[str], jobs: list[str]) -> dict[str, dict[str, str]] | None:
        """Return the fields of jobs by their ids, as `qstat -f` prints them. Those that have ended are left out. None:
        unknown.
        """
        said = self.ask("qstat", *options, *jobs)
        if said is None:
            return None
        found: dict[str, dict[str, str]] = {}
        fields: dict[str, str] = {}
        for line in said.replace("\n\t", "").splitlines():  # long values go on in lines that begin with a tab
            if line.startswith("Job Id:"):
                fields = found.setdefault(line.removeprefix("Job Id:").strip(), {})
            elif (field := _FIELD.match(line)) is not None:
                fields[field[1]] = field[2].strip()
        return found


PBS = Pbs()
