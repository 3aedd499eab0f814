"""sge: submit a script of workers to Grid Engine, as jobs that replace themselves; the first step of each of them."""

from __future__ import annotations

from typing import Any

import click

from fsqueue.cluster.sge import SGE

from .common import example
from .job_scripts import script_options, submit_script


@click.command(
    epilog=example(
        """fsqueue sge Q worker.sge --max-jobs 4     # for weeks
fsqueue sge Q worker.sge --fill 20        # as many jobs as the tasks need
fsqueue sge --stop Q"""
    )
)
@script_options
def sge(**given: Any) -> None:
    """Submit SCRIPT to Grid Engine as jobs that replace themselves.

    SCRIPT is a job script of your own, with its '#$' lines. Before the worker it has the line

    \b
        fsqueue sge "$Q" "$0" || exit 0

    There each job, as its first step, submits its successor, which begins when that job has ended. So a job that is
    killed, or reaches its time limit, has one, too. No more than --max-jobs work at once: a job that finds another one
    of its place running ends at once. A job that finds the queues drained or paused ends, too, and submits none. Nor
    does it if no task fits the time limit. Failed jobs do not end the campaign.

    With --fill N there are no more jobs than the tasks need within the time limit of SCRIPT, by the durations measured
    so far. Each job that begins reckons again, and submits those that are missing.

    'fsqueue sge --stop Q' does, where Q is the first of its queues: jobs that wait are cancelled, and workers with
    --stoppable finish the tasks at work. docs/schedulers.md has a whole script.

    \b
    Exit codes:
      1    qsub is not here, or has refused the job; with --stop, jobs could not be cancelled
      2    SCRIPT lacks the line, or asks for an array
      3    nothing to do: no task is left in the queues, or this job ends at once
    """
    submit_script(SGE, **given)
