"""sge: submit a script of workers to Grid Engine, as jobs that replace themselves; the first step of each of them."""

from __future__ import annotations

from fsqueue.cluster.sge import SGE

from .job_scripts import script_command

sge = script_command(SGE)
