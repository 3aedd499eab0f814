"""Submit a job script of the user's own as jobs that replace themselves: `fsqueue pbs`, `fsqueue lsf`, `fsqueue sge`.

The commands differ by their controllers alone (fsqueue/cluster). A line of the script takes each job's first step.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import click

from fsqueue.cluster.controller import ScriptController

from .campaign import JOBS_MAX, Campaign, Capacity, Relay, short_name
from .common import NOTHING_EXIT, example, json_option, path_of, queue_at
from .options import seconds_in
from .printing import complain, print_done, print_json, say

SCRIPT_BYTES_MAX = 1 << 20
_RUNTIME = re.compile(rb"--max-runtime[=\s]+['\"]?([0-9A-Za-z:.-]+)")
_WORKER = re.compile(rb"^[^#\n]*\bfsqueue\s+run\s(.*)$", re.MULTILINE)


EXAMPLE = """fsqueue {name} Q worker.{name} --max-jobs 4     # for weeks
fsqueue {name} Q worker.{name} --fill 20        # as many jobs as the tasks need
fsqueue {name} --stop Q"""
HELP = """Submit SCRIPT to {title} as jobs that replace themselves.

SCRIPT is a job script of your own, with its '{directive}' lines. Before the worker it has the line

\b
    fsqueue {name} "$Q" "$0" || exit 0

There each job, as its first step, submits its successor, which begins when that job has ended. So a job that is
killed, or reaches its time limit, has one, too. No more than --max-jobs work at once: a job that finds another one
of its place running ends at once. A job that finds the queues drained or paused ends, too, and submits none. Nor
does it if no task fits the time limit. Failed jobs do not end the campaign.

With --fill N there are no more jobs than the tasks need within the time limit of SCRIPT, by the durations measured
so far. Each job that begins reckons again, and submits those that are missing.

'fsqueue {name} --stop Q' does, where Q is the first of its queues: jobs that wait are cancelled, and workers with
--stoppable finish the tasks at work. docs/schedulers.md has a whole script.

\b
Exit codes:
  1    {submit} is not here, or has refused the job; with --stop, jobs could not be cancelled
  2    SCRIPT lacks the line, or asks for an array
  3    nothing to do: no task is left in the queues, or this job ends at once
"""


def script_command(controller: ScriptController) -> click.Command:
    """Return the command of a scheduler."""
    words = {
        "name": controller.name,
        "title": controller.title,
        "submit": controller.submit_command,
        "directive": controller.limit_option.split()[0],
    }

    @click.command(controller.name, help=HELP.format(**words), epilog=example(EXAMPLE.format(**words)))
    @script_options
    def command(**given: Any) -> None:
        submit_script(controller, **given)

    return command


def script_options(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the arguments and options that all of these have."""
    for decorate in (
        json_option,
        click.option("--now", "is_now", is_flag=True, help="With --stop: cancel those that run, too."),
        click.option("--stop", "is_stop", is_flag=True,
                     help="Submit no more successors; cancel those that wait. Running jobs finish their tasks."),
        click.option("--print", "only_print", is_flag=True,
                     help="Submit nothing. Print a shell script that would submit the jobs."),
        click.option("--fill", type=click.IntRange(1, JOBS_MAX), metavar="N",
                     help="Submit as many jobs as the tasks need, so that N are there at most."),
        click.option("--max-jobs", type=click.IntRange(1, JOBS_MAX), metavar="N",
                     help="How many jobs there are at once [1]."),
        click.argument("words", metavar="Q... SCRIPT", nargs=-1, required=True),
    ):  # fmt: skip
        function = decorate(function)
    return function


def submit_script(
    controller: ScriptController,
    words: tuple[str, ...],
    max_jobs: int | None,
    fill: int | None,
    only_print: bool,
    is_stop: bool,
    is_now: bool,
    as_json: bool,
) -> None:
    """Do what one of these commands does: submit a script, take the first step of a job, or stop campaigns."""
    typed = f"fsqueue {controller.name}"
    if is_stop or is_now:
        if not is_stop or max_jobs or fill or only_print:
            raise click.UsageError(f"--stop stands alone with its queues, and --now with it: {typed} --stop Q --now")
        _stop(controller, words, is_now, as_json)
        return
    if max_jobs and fill:
        raise click.UsageError(
            "--fill N says how many jobs there are at most: leave out --max-jobs. Nothing was submitted."
        )
    *queues, path = words
    if not queues:
        raise click.UsageError(f"Name the queues, then the script: {typed} Q worker.{controller.name}")
    script = _read(path)
    if (found := _job_of(controller, path, script)) is not None:
        from .successors import main

        if code := main(list(found)):
            raise click.exceptions.Exit(code)
        return
    _check(controller, path, script)
    opened = [queue_at(queue) for queue in queues]
    if all(queue.status().remaining == 0 for queue in opened):
        complain("there is nothing to do: insert tasks first")
        raise click.exceptions.Exit(NOTHING_EXIT)
    runtimes = _RUNTIME.findall(script)
    first, _, rest = script.partition(b"\n")
    campaign = Campaign(
        name=short_name(opened[0].id, is_shared=fill is not None),
        slots=fill or max_jobs or 1,
        queues=[path_of(queue) for queue in opened],
        upstream=[],
        forever=False,
        sbatch=[],
        directory=os.getcwd(),
        warned_s=0,
        stops=opened[0].store.queue_state.stops,
        scheduler=controller.name,
        script_bytes=len(rest),
        max_runtime_s=seconds_in(runtimes[-1].decode()) if runtimes else None,
    )
    slots, reckoned = list(range(campaign.slots)), None
    if fill is not None:
        from .filling import slots_to_fill

        campaign = replace(campaign, worker=_capacity(controller, script))
        slots, reckoned = slots_to_fill(campaign, opened, controller, only_print, f"limit ({controller.limit_option})")
    why: dict[str, Any] = {} if reckoned is None else {"fill": reckoned.as_dict()}
    marked = b"\n".join([first, b"", rest])  # the line is made anew for each job
    if only_print:
        _print(campaign, marked, slots, why, as_json)
    else:
        _begin(campaign, marked, slots, why, as_json)


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


def _job_of(controller: ScriptController, path: str, script: bytes) -> tuple[str, str] | None:
    """Return the file with the script of this campaign's job, and what the job is told; None if it is no campaign's.

    The scheduler may execute another file than `path`, which the script calls $0.
    """
    from .successors import told_in

    if (told := told_in(script)) is not None:
        return path, told
    own = os.environ.get(controller.script_variable) if controller.script_variable and controller.own_job() else None
    told = told_in(_read(own)) if own and os.path.isfile(own) else None
    return None if own is None or told is None else (own, told)


def _check(controller: ScriptController, path: str, script: bytes) -> None:
    """Refuse a script whose jobs would not replace themselves, and one that was submitted without this command."""
    if controller.is_batch():
        raise click.UsageError(
            f"This job was submitted by {controller.submit_command}, so it has no place among those of a campaign. "
            f"Submit its script by 'fsqueue {controller.name} Q SCRIPT', on a login host."
        )
    if re.search(rb"^[^#\n]*\bfsqueue\s+%s\s" % controller.name.encode(), script, re.MULTILINE) is None:
        raise click.UsageError(
            f"The script '{path}' would not replace itself. Nothing was submitted. Before the line with 'fsqueue run', "
            f'add this one: fsqueue {controller.name} "$Q" "$0" || exit 0'
        )
    if controller.array.search(script):
        raise click.UsageError(
            f"An array cannot replace itself. Nothing was submitted. Take '{controller.array_option}' out of the "
            "script: --max-jobs N says how many jobs there are."
        )


def _capacity(controller: ScriptController, script: bytes) -> Capacity:
    """Return what the worker of a job can do, by the script's text. UsageError if that does not tell."""
    from .filling import capacity_of
    from .running import run

    lines = _WORKER.findall(script.replace(b"\\\n", b" "))
    try:
        words = shlex.split(os.fsdecode(lines[-1]), comments=True) if lines else []
        with run.make_context("fsqueue run", words) as checked:
            options = checked.params
    except (ValueError, click.UsageError) as error:
        said = error.format_message() if isinstance(error, click.UsageError) else str(error)
        raise click.UsageError(
            "--fill has to know how many tasks a worker does at a time, and the line with 'fsqueue run' does not tell: "
            f"{said} Nothing was submitted."
        ) from None
    why = f"the script asks for none. Nothing was submitted. For example: {controller.limit_option}"
    return capacity_of(options, controller.limit_s(script), 0.0, why)


def _print(campaign: Campaign, script: bytes, slots: list[int], why: dict[str, Any], as_json: bool) -> None:
    """Print what would submit a job to each slot."""
    from .slurm import Submitted, as_shell, described
    from .successors import CONTROLLERS, submission

    outer = CONTROLLERS[campaign.scheduler].outer_variables(os.environ)
    for slot in slots:
        words, text = submission(campaign, Relay(slot=slot), script, "")
        one = Submitted(words, os.fsdecode(text), logs=None, outer=outer)
        print_json({words[0]: words, "script": described(one)["script"]} | why) if as_json else say(*as_shell(one))


def _begin(campaign: Campaign, script: bytes, slots: list[int], why: dict[str, Any], as_json: bool) -> None:
    """Submit a job to each slot, and print their ids. The script's second line is the campaign's."""
    from .successors import NotTaken, begin_campaign

    try:
        jobs = begin_campaign(campaign, script, "", slots)
    except NotTaken as error:
        complain(f"no job was submitted: {error}")
        raise click.exceptions.Exit(1) from None
    print_done(as_json, {"jobs": jobs, "campaign": campaign.name} | why, *jobs)


def _stop(controller: ScriptController, queues: tuple[str, ...], is_now: bool, as_json: bool) -> None:
    """Stop the campaigns of queues."""
    from .successors import stop

    done = [stop(queue, is_now, as_json, controller) for queue in queues]
    if not all(done):
        complain(
            f"not all jobs could be cancelled. Repeat this where {controller.title} answers, or see "
            f"'{controller.list_command}'"
        )
        raise click.exceptions.Exit(1)
