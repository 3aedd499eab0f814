"""Say to which slots of a campaign `--fill N` submits jobs, and why: the same for all schedulers."""

from __future__ import annotations

from typing import Any

import click

from fsqueue.cluster.controller import Controller

from .campaign import LIMIT_SHARE, Campaign, Capacity
from .common import path_of
from .printing import complain
from .running import AUTO
from .worker_need import Reckoning, load_of, reckon, why_none_fits, workers_there


def capacity_of(options: dict[str, Any], limit_s: float | None, warned_s: float, why: str) -> Capacity:
    """Return what the worker of a job can do. UsageError if that is not known.

    `options`: those of the worker. `limit_s`: the job's time limit. `why`: what to say, and to do, if there is none.
    """
    at_a_time = options["threads"] or options["jobs"]
    if at_a_time == AUTO:
        raise click.UsageError(
            "--fill has to know how many tasks a worker does at a time, and -j auto tells that only in the job. "
            "Nothing was submitted. Give a number: -j N"
        )
    if limit_s is None:
        raise click.UsageError(f"--fill has to know the time limit of a job, and {why}")
    work_s = max(limit_s - warned_s, limit_s * LIMIT_SHARE)
    return Capacity(at_a_time, limit_s, min(work_s, options["max_runtime_s"] or work_s), options["max_tasks"])


def slots_to_fill(
    campaign: Campaign, opened: list[Any], controller: Controller, only_print: bool, longer: str
) -> tuple[list[int], Reckoning]:
    """Return the slots to which jobs are submitted, and why. Say so, too. UsageError if no task fits the time limit.

    `longer`: the option by which a user asks for more time.
    """
    assert campaign.worker is not None
    jobs = controller.jobs_by_name()
    if jobs is None and not only_print:
        complain(
            f"{controller.title} does not answer here ({controller.list_command.split()[0]}), so nobody knows which "
            "workers wait. Nothing was submitted. To see what would be submitted if none did: --print"
        )
        raise click.exceptions.Exit(1)
    loads = [load_of(queue) for queue in opened]
    if (why := why_none_fits(loads, campaign.worker)) is not None:
        raise click.UsageError(f"{why[0].upper()}{why[1:]}. Nothing was submitted. Give a longer {longer}.")
    reckoned = reckon(loads, campaign.worker, workers_there(opened, jobs or {}), campaign.slots)
    empty = [slot for slot, listed in enumerate(campaign.slot_jobs(jobs or {})) if not listed]
    for queue in opened:
        if queue.paused is not None:
            complain(f"{path_of(queue)} is paused: no worker is reckoned for its tasks")
    complain(str(reckoned))
    return empty[: reckoned.submitted], reckoned
