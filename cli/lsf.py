"""lsf: submit a script of workers to LSF, as jobs that replace themselves; the first step of each of them."""

from __future__ import annotations

from fsqueue.cluster.lsf import LSF

from .job_scripts import script_command

lsf = script_command(LSF)
