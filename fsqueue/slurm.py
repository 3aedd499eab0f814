"""What Slurm knows: when this process's job ends, and whether others' jobs go on. Without Slurm, nothing.

Slurm is asked with its own commands, which may be missing, refuse, or hang with their controller: then nothing is
known. Nothing here raises, and no question takes longer than `ASK_S`.
"""

from __future__ import annotations

import math
import os
import subprocess
import time
from contextlib import suppress
from functools import cache

ASK_S = 5.0
"""How long a question to Slurm may take, in seconds: its own commands try for minutes while the controller is away."""


@cache
def job_end() -> float | None:
    """When this process's Slurm job ends, in Unix seconds on this host's clock; None if there is none or it is unknown.

    SLURM_JOB_END_TIME where Slurm sets it; else Slurm is asked, once a process. A time that is past says nothing (a
    shell that outlived its allocation, a site that lets jobs run on).
    """
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job.isascii() or not job.isdecimal():
        return None
    told = os.environ.get("SLURM_JOB_END_TIME", "")
    if not told.strip().isdecimal():
        told = ask("squeue", "--noheader", f"--jobs={job}", "--format=%e") or ""
    try:
        end = float(told)
    except ValueError:  # no limit, or not known yet
        return None
    return end if time.time() < end < math.inf else None


def ask(*command: str) -> str | None:
    """What one of Slurm's commands prints; None if it is not there, fails, or takes longer than `ASK_S`."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("SQUEUE_", "SLURM_CLUSTERS"))}
    environment |= {"SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,  # Ctrl-C is for us
        )
    except (OSError, ValueError):
        return None
    try:
        said, _ = process.communicate(timeout=ASK_S)
    except subprocess.TimeoutExpired:
        process.kill()
        with suppress(subprocess.TimeoutExpired):
            process.wait(1)  # no longer: what hangs in a system call does not end before that does
        return None
    return said.decode(errors="replace") if process.returncode == 0 else None
