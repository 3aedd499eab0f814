"""pbs: submit a script of workers to PBS, as jobs that replace themselves; the first step of each of them."""

from __future__ import annotations

from fsqueue.cluster.pbs import PBS

from .job_scripts import script_command

pbs = script_command(PBS)
