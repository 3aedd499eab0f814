"""pbs: submit a script of workers to PBS, as jobs that replace themselves; the first step of each of them."""

from __future__ import annotations

import os
import re
from typing import Any

import click

from fsqueue.cluster import pbs as controller

from .campaign import JOBS_MAX, Campaign, Relay, short_name
from .common import NOTHING_EXIT, example, json_option, path_of, queue_at
from .options import seconds_in
from .printing import complain, print_done, print_json, say

SCRIPT_BYTES_MAX = 1 << 20
STEP = 'fsqueue pbs "$Q" "$0" || exit 0'
_HAS_STEP = re.compile(rb"^[^#\n]*\bfsqueue\s+pbs\s", re.MULTILINE)
_IS_ARRAY = re.compile(rb"^#PBS\s+(?:.*\s)?-[Jt]\b", re.MULTILINE)
_RUNTIME = re.compile(rb"--max-runtime[=\s]+['\"]?([0-9A-Za-z:.-]+)")


@click.command(
    epilog=example(
        """fsqueue pbs Q worker.pbs --max-jobs 4     # for weeks
fsqueue pbs "$Q" "$0" || exit 0           # in worker.pbs, before 'exec fsqueue run'
fsqueue pbs --stop Q"""
    )
)
@click.argument("words", metavar="Q... SCRIPT", nargs=-1, required=True)
@click.option("--max-jobs", type=click.IntRange(1, JOBS_MAX), metavar="N",
              help="How many jobs there are at once [1].")  # fmt: skip
@click.option(
    "--print", "only_print", is_flag=True, help="Submit nothing. Print a shell script that would submit the jobs."
)
@click.option("--stop", "is_stop", is_flag=True,
              help="Submit no more successors; cancel those that wait. Running jobs finish their tasks.")  # fmt: skip
@click.option("--now", "is_now", is_flag=True, help="With --stop: cancel those that run, too.")
@json_option
def pbs(
    words: tuple[str, ...], max_jobs: int | None, only_print: bool, is_stop: bool, is_now: bool, as_json: bool
) -> None:
    """Submit SCRIPT to PBS, as jobs that replace themselves, and print their ids.

    SCRIPT is a job script of your own, with its '#PBS' lines. Before the worker it has the line

    \b
        fsqueue pbs "$Q" "$0" || exit 0

    There, as the first step of a job, the command submits the job's successor, which begins when that job has ended.
    So a job that is killed, or reaches its time limit, has one, too. No more than --max-jobs run at once, whatever is
    submitted twice: a job that finds another one of its place running ends at once. A successor that finds the queues
    drained or paused ends at once, and the campaign is over. It is also over when no task fits the time limit. Failed
    jobs do not end it.

    'fsqueue pbs --stop Q' ends it, where Q is the first of its queues: jobs that wait are cancelled, and workers with
    --stoppable finish the tasks at work. docs/schedulers.md has a whole script.

    \b
    Exit codes:
      1    qsub is not here, or has refused the job; with --stop, jobs could not be cancelled
      2    SCRIPT lacks the line, or asks for an array
      3    nothing to do: no task is left in the queues, or this job ends at once
    """
    if is_stop or is_now:
        if not is_stop or max_jobs is not None or only_print:
            raise click.UsageError("--stop stands alone with its queues, and --now with it: fsqueue pbs --stop Q --now")
        _stop(words, is_now, as_json)
        return
    *queues, path = words
    if not queues:
        raise click.UsageError("Name the queues, then the script: fsqueue pbs Q worker.pbs")
    script = _read(path)
    if (told := told_in(script)) is not None:
        from .successors import main

        if code := main([path, told]):
            raise click.exceptions.Exit(code)
        return
    _check(path, script)
    opened = [queue_at(queue) for queue in queues]
    if all(queue.status().remaining == 0 for queue in opened):
        complain("there is nothing to do: insert tasks first")
        raise click.exceptions.Exit(NOTHING_EXIT)
    runtimes = _RUNTIME.findall(script)
    campaign = Campaign(
        name=short_name(opened[0].id),
        slots=max_jobs or 1,
        queues=[path_of(queue) for queue in opened],
        upstream=[],
        forever=False,
        sbatch=[],
        directory=os.getcwd(),
        warned_s=0,
        stops=opened[0].store.queue_state.stops,
        scheduler="pbs",
        max_runtime_s=seconds_in(runtimes[-1].decode()) if runtimes else None,
    )
    first, _, rest = script.partition(b"\n")
    marked = b"\n".join([first, b"", rest])  # the line is made anew for each job
    if only_print:
        from .slurm import Submitted, as_shell, described
        from .successors import submission

        for slot in range(campaign.slots):
            words_of, text = submission(campaign, Relay(slot=slot), marked, "")
            one = Submitted(words_of, os.fsdecode(text), logs=None, outer=[])
            print_json({"qsub": words_of, "script": described(one)["script"]}) if as_json else say(*as_shell(one))
        return
    _begin(campaign, marked, as_json)


def told_in(script: bytes) -> str | None:
    """Return what a job is told, by its script; None if it is not a campaign's."""
    from .successors import MARK

    second = (*script.split(b"\n", 2), b"")[1]
    return second.removeprefix(MARK).decode() if second.startswith(MARK) and second.isascii() else None


def _read(path: str) -> bytes:
    """Return a script. UsageError if it cannot be read, or is none."""
    try:
        with open(path, "rb") as file:
            script = file.read(SCRIPT_BYTES_MAX + 1)
    except OSError as error:
        raise click.UsageError(
            f"The script '{path}' cannot be read: {error.strerror}. Nothing was submitted."
        ) from None
    if len(script) > SCRIPT_BYTES_MAX or b"\0" in script:
        raise click.UsageError(f"'{path}' is no script: it is no text, or has more than {SCRIPT_BYTES_MAX:,} bytes.")
    return script


def _check(path: str, script: bytes) -> None:
    """Refuse a script whose jobs would not replace themselves, and one that was submitted without this command."""
    if os.environ.get("PBS_ENVIRONMENT") == "PBS_BATCH":
        raise click.UsageError(
            "This job was submitted by qsub, so it has no place among those of a campaign. Submit its script by "
            "'fsqueue pbs Q SCRIPT', on a login host."
        )
    if not _HAS_STEP.search(script):
        raise click.UsageError(
            f"The script '{path}' would not replace itself. Nothing was submitted. Before the line with 'fsqueue run', "
            f"add this one: {STEP}"
        )
    if _IS_ARRAY.search(script):
        raise click.UsageError(
            "An array cannot replace itself. Nothing was submitted. Take the line '#PBS -J' (-t) out of the script: "
            "--max-jobs N says how many jobs there are."
        )


def _begin(campaign: Campaign, script: bytes, as_json: bool) -> None:
    """Submit a job to each slot, and print their ids. The script's second line is the campaign's."""
    from .successors import NotTaken, begin_campaign

    try:
        jobs = begin_campaign(campaign, script, "", range(campaign.slots))
    except NotTaken as error:
        complain(f"no job was submitted: {error}")
        raise click.exceptions.Exit(1) from None
    said: dict[str, Any] = {"jobs": jobs, "campaign": campaign.name}
    print_done(as_json, said, *jobs)


def _stop(queues: tuple[str, ...], is_now: bool, as_json: bool) -> None:
    """Stop the campaigns of queues."""
    from .successors import stop

    done = [stop(queue, is_now, as_json, controller) for queue in queues]
    if not all(done):
        complain("not all jobs could be cancelled. Repeat this where PBS answers, or see 'qstat -u $USER'")
        raise click.exceptions.Exit(1)
