"""Grid Engine (Son of, Univa, Altair, Open), as campaigns of jobs that replace themselves submit to it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from html import unescape

from fsqueue.cluster import schedulers
from fsqueue.cluster.controller import JobRun, Jobs, ScriptController, how_it_ended, local_time
from fsqueue.cluster.identity import user_of_this_process
from fsqueue.filesystem import processes

_JOB = re.compile(r"<job_list\b.*?</job_list>", re.DOTALL)
_FIELD = re.compile(r"<(JB_job_number|JB_name|state|tasks)>([^<]*)<")
_H_RT = re.compile(r"\bh_rt=([\d:]+)")


class Sge(ScriptController):
    """Use qsub, qstat, qacct and qdel."""

    name = "sge"
    title = "Grid Engine"
    submit_command = "qsub"
    cancel_command = "qdel"
    list_command = "qstat"
    id_variable = "JOB_ID"
    gone = re.compile(r"job \"?\d+\"? does not exist|jobs do not exist|^\s*\d+\s*$|has (?:deleted|registered the) job")
    array = re.compile(rb"^#\$\s+(?:.*\s)?-t\b", re.MULTILINE)
    array_option = "#$ -t"
    limit = re.compile(rb"^#\$\s.*\bh_rt=([\d:]+)", re.MULTILINE)
    limit_option = "#$ -l h_rt=4:00:00"
    script_variable = "JOB_SCRIPT"

    def is_batch(self) -> bool:
        return bool(self.own_job()) and os.environ.get("ENVIRONMENT") == "BATCH"

    def own_job(self) -> str:
        return super().own_job() if os.environ.get("SGE_TASK_ID") else ""  # others set JOB_ID, too

    def after(self, jobs: Sequence[str]) -> str:
        return ",".join(jobs)

    def submission(self, command: Sequence[str], name: str, depends_on: str, pause_s: float) -> list[str]:
        depends = ["-hold_jid", depends_on] if depends_on else []
        begin = ["-a", local_time("%Y%m%d%H%M.%S", pause_s)] if pause_s else []
        return ["qsub", "-terse", *command, "-N", name, *depends, *begin]

    def job_in(self, printed: str) -> str | None:
        lines = [line.strip() for line in printed.splitlines() if line.strip()]
        return lines[-1] if lines and self.ids.fullmatch(lines[-1]) else None

    def refusal_in(self, complaint: str, status: int) -> str:
        """Return why qsub has not taken a job. Its last line is "Exiting."."""
        return super().refusal_in(complaint.strip().removesuffix("Exiting."), status)

    def jobs_by_name(self) -> Jobs | None:
        said = self.ask("qstat", "-u", str(user_of_this_process()["user"]), "-xml")
        if said is None or "<job_info" not in said:
            return None
        found: Jobs = {}
        for one in _JOB.findall(said):
            fields = dict(_FIELD.findall(one))
            job, name, state = (fields.get(key, "") for key in ("JB_job_number", "JB_name", "state"))
            if name and self.ids.fullmatch(job) and not fields.get("tasks"):
                found.setdefault(unescape(name), []).append((job, "w" in state))
        return found

    def run_of(self, job: str) -> JobRun | None:
        """Return how a job has gone. None: it runs yet, or qacct has no access to the site's accounting here."""
        fields: dict[str, str] = {}
        for line in (
            self.ask("qacct", "-j", job) or ""
        ).splitlines():  # once more after it was requeued: the last counts
            key, _, value = line.partition(" ")
            fields[key] = value.strip()
        used, status = fields.get("ru_wallclock", "").removesuffix("s"), fields.get("exit_status", "").partition(" ")[0]
        if not re.fullmatch(r"\d{1,9}(?:\.\d+)?", used):
            return None
        code = int(status) if re.fullmatch(r"\d{1,6}", status) else -1
        return JobRun(how_it_ended(code, float(used), self._limit_in(fields.get("category", ""))), float(used), code)

    def job_end(self) -> float | None:
        """Return when this process's job ends. Its limit counts from the start of its first process on this host."""
        if not (job := self.own_job()):
            return None
        lines = (self.ask("qstat", "-j", job) or "").splitlines()
        limit_s = self._limit_in(" ".join(line for line in lines if line.startswith("hard resource_list")))
        left_s = 0.0 if limit_s is None else limit_s - processes.age_with(self.id_variable, job)
        return time.time() + left_s if left_s > 0 else None

    def _limit_in(self, text: str) -> float | None:
        found = _H_RT.search(text)
        return None if found is None else schedulers.seconds(found[1])


SGE = Sge()
