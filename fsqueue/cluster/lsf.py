"""LSF, as campaigns of jobs that replace themselves submit to it."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType

from fsqueue.cluster.controller import JobRun, Jobs, ScriptController, how_it_ended, local_time

WAITING = frozenset({"PEND", "PSUSP", "WAIT", "FWD_PEND"})
"""States of a job that has not begun."""
ENDED = frozenset({"DONE", "EXIT"})
_SUBMITTED = re.compile(r"^Job <(\d+)> is submitted", re.MULTILINE)
_OF_JOB = re.compile(
    r"LSB_(?:ACCT_FILE|AFFINITY|BATCH_JID|BIND|CHKPNT|CPUSET|DJOB|ECHKPNT|EEXEC|EFFECTIVE|ERRORFILE|EXEC|EXIT|HOSTS|"
    r"INPUTFILE|INTERACTIVE|JOB|JOBNAME|MAX_NUM|MCPU|NTASKS|OUTPUT|QUEUE$|RESTART|RES_|SUB_|TRAPSIGS|XFER|XJOB)"
    r"|LS_(?:JOBPID|SUBCWD|EXEC_T)|LSF_(?:JOB|EAUTH|INVOKE_CMD)"
)
"""Matches variables that LSF sets in a job. LSF_ENVDIR and such are the site's; LSB_DEFAULT* are users'."""
_MINUTES = re.compile(r"(\d+(?:\.\d+)?)(?: min|/.*)?")
_SECONDS = re.compile(r"(\d+(?:\.\d+)?) second\(s\)")


class Lsf(ScriptController):
    """Use bsub, bjobs and bkill."""

    name = "lsf"
    title = "LSF"
    submit_command = "bsub"
    cancel_command = "bkill"
    list_command = "bjobs"
    id_variable = "LSB_JOBID"
    gone = re.compile(r"already finished|No matching job found|is not found|No \w+ job found|is being terminated")
    unwanted = frozenset({"BSUB_BLOCK", "BSUB_QUIET", "BSUB_QUIET2", "BSUB_STDERR", "BSUB_CHK_RESREQ"})
    settings = MappingProxyType({"LSB_NTRIES": "1"})  # else bsub waits while the user has too many jobs
    array = re.compile(rb"^#BSUB\s+(?:.*\s)?-J\s*[\"']?[^\s\"'\[]*\[", re.MULTILINE)
    array_option = "[1-4]' of '#BSUB -J"
    limit = re.compile(rb"^#BSUB\s+(?:.*\s)?-W\s*[\"']?([\d:]+)", re.MULTILINE)
    limit_option = "#BSUB -W 4:00"
    script_variable = "LSB_JOBFILENAME"

    def is_batch(self) -> bool:
        return bool(self.own_job()) and os.environ.get("LSB_INTERACTIVE", "N") in ("N", "")

    def outer_variables(self, environment: Mapping[str, str]) -> list[str]:
        """Return the names of the variables that the job has set in which a command is typed: bsub hands all on."""
        if not environment.get("LSB_JOBID"):
            return []
        return sorted(name for name in environment if _OF_JOB.match(name) is not None)

    def after(self, jobs: Sequence[str]) -> str:
        return "&&".join(f"ended({job})" for job in jobs)

    def submission(self, command: Sequence[str], name: str, depends_on: str, pause_s: float) -> list[str]:
        depends = ["-w", depends_on] if depends_on else []
        begin = ["-b", local_time("%Y:%m:%d:%H:%M", pause_s + 59.0)] if pause_s else []  # it takes whole minutes
        return ["bsub", *command, "-J", name, *depends, *begin]

    def job_in(self, printed: str) -> str | None:
        found = _SUBMITTED.search(printed)
        return None if found is None else found[1]

    def jobs_by_name(self) -> Jobs | None:
        said = self.ask("bjobs", "-noheader", "-o", "jobid stat job_name delimiter='|'")
        if said is None:
            return None
        found: Jobs = {}
        for line in said.splitlines():
            job, state, name = (*line.strip().split("|", 2), "", "")[:3]
            if name and state not in ENDED and self.ids.fullmatch(job):
                found.setdefault(name, []).append((job, state in WAITING))
        return found

    def run_of(self, job: str) -> JobRun | None:
        """Return how a job has gone. None: LSF does not know it any more; bjobs tells of ended jobs for an hour, unless
        the site says otherwise.
        """
        state, used_s, limit_s, status, reason = self._times(job)
        if not state or used_s is None:
            return None
        code = 0 if state == "DONE" else int(status) if re.fullmatch(r"\d{1,6}", status) else -1
        if reason.startswith("TERM_"):
            return JobRun("TIMEOUT" if reason.startswith("TERM_RUNLIMIT") else "CANCELLED", used_s, code)
        return JobRun(how_it_ended(code, used_s, limit_s), used_s, code)

    def job_end(self) -> float | None:
        if not (job := self.own_job()):
            return None
        _, used_s, limit_s, *_ = self._times(job)
        return None if limit_s is None or limit_s <= (used_s or 0.0) else time.time() + limit_s - (used_s or 0.0)

    def _times(self, job: str) -> tuple[str, float | None, float | None, str, str]:
        """Return a job's state, for how long it has run, its time limit, its exit code, and why LSF has ended it."""
        said = self.ask("bjobs", "-a", "-noheader", "-o", f"{_FIELDS} delimiter='|'", job)
        state, used, limit, status, reason = (word.strip() for word in (*(said or "").split("|"), *[""] * 5)[:5])
        return state, seconds_in(used), seconds_in(limit), status, reason

    def seconds(self, text: str) -> float | None:
        """Return the seconds of a time limit: `90` minutes, or `1:30`."""
        found = re.fullmatch(r"(?:(\d{1,6}):)?(\d{1,9})", text)
        return None if found is None else (60.0 * int(found[1] or 0) + int(found[2])) * 60.0 or None


_FIELDS = "stat run_time runtimelimit exit_code exit_reason"


def seconds_in(text: str) -> float | None:
    """Return the seconds that bjobs prints: `12 second(s)`, `60.0 min`, `60.0/host1`, `01:00:00`. None: `-`."""
    if (found := _SECONDS.fullmatch(text)) is not None:
        return float(found[1])
    if (found := re.fullmatch(r"(\d+):(\d\d):(\d\d)", text)) is not None:
        return 3600.0 * int(found[1]) + 60.0 * int(found[2]) + int(found[3])
    found = _MINUTES.fullmatch(text)
    return None if found is None else float(found[1]) * 60.0


LSF = Lsf()
