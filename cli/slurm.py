"""slurm: submit an array job of workers."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import click

from fsqueue.cluster.slurm import SLURM as controller
from fsqueue.cluster.slurm import time_limit_s, typed_in
from fsqueue.format import wording
from fsqueue.worker import (
    OUTPUTS,
    check_command,
    check_fields,
    check_no_placeholders,
    names_launcher,
    no_second_python,
)

from .campaign import JOBS_MAX, Campaign, Capacity, Relay
from .campaign import name as campaign_name
from .common import NOTHING_EXIT, example, json_option, path_of, queue_at, search_working_directory
from .options import OneScreen, takes_value
from .printing import complain, print_done, print_json, quoted, say
from .running import AUTO, missing_program, run

if TYPE_CHECKING:
    from .worker_need import Reckoning

SPARE_S = 30
"""Seconds before the grace at which workers hear of the end of their job."""
SIGNAL_S_MAX = 65_535
"""The most that sbatch takes."""
NAME_CHARS_MAX = 60
LOG_DIR = "fsqueue-logs"
"""Where jobs write their logs by default, in the directory of submission."""
DIRECTIVES = (b"#SBATCH", b"#PBS", b"#BSUB")
"""With what lines begin that sbatch reads in a script, and takes for its options."""
PROLOGUE_BYTES_MAX = 1 << 20
"""sbatch refuses scripts of more than 4 MiB, unless a site has set another bound."""
TASKS = ("-N", "--nodes", "-n", "--ntasks", "--ntasks-per-node", "--ntasks-per-socket", "--ntasks-per-gpu")
"""Options of sbatch by which a job has several tasks, unless their value is 1."""
FLAGS = {
    "-H", "--hold", "-I", "--immediate", "-k", "--no-kill", "-O", "--overcommit", "-s", "--oversubscribe", "-Q",
    "--quiet", "-v", "--verbose", "-W", "--wait", "--contiguous", "--exclusive", "--requeue", "--no-requeue",
    "--parsable", "--reboot", "--spread-job", "--test-only", "--use-min-nodes", "--get-user-env", "--ignore-pbs",
    "--nice", "--propagate",
}  # fmt: skip
"""Options of sbatch that take no value, or none in a word of its own."""
GPUS = {"--gres", "-G", "--gpus", "--gpus-per-node", "--gpus-per-socket"}
"""Options of sbatch that ask for GPUs."""
NOT_HERE = ("--wrap", "--usage", "--version", "-V", "--dry-run")
"""Options of sbatch, and of `run`, that make no sense here."""
STOPPING = {"--stop", "--now", "--json"}
"""Options of its own behind which queues may stand."""
NOT_ANEW = {
    "-a": "--array", "-W": "--wait", "-H": "--hold", "-M": "--clusters", "-I": "--immediate", "--test-only": "",
}  # fmt: skip
"""Options of sbatch, by their short names, that jobs with slots cannot have: those of --resubmit and --fill."""


class Submission(OneScreen):
    """Queues, then options in any order: its own, those of `run`, any of sbatch; after `--` the command."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        before, command = args, None
        if "--" in args:
            before, command = args[: args.index("--")], args[args.index("--") + 1 :]
        own = [word for word in before if word in ("--help", "-h")]
        if not own:
            queues, own, for_run, for_sbatch = self._sorted(before)
            ctx.meta["run"] = [*queues, *for_run, *([] if command is None else ["--", *command])]
            ctx.meta["sbatch"], ctx.meta["queues"], ctx.meta["command"] = for_sbatch, queues, command
        return super().parse_args(ctx, own)

    def _sorted(self, words: list[str]) -> tuple[list[str], list[str], list[str], list[str]]:
        """Return the queues, and the words that are options of its own, of `run`, of sbatch."""
        mine, theirs = takes_value(self), takes_value(run)
        rest = iter(words)
        queues: list[str] = []
        own: list[str] = []
        for_run: list[str] = []
        for_sbatch: list[str] = []
        waits_for_value = False
        for word in rest:
            name = word.partition("=")[0] if word.startswith("--") else word[:2]
            if not word.startswith("-"):
                if waits_for_value:
                    for_sbatch.append(word)
                elif not (for_run or for_sbatch or set(own) - STOPPING):
                    queues.append(word)
                else:
                    raise click.UsageError(
                        f"'{word}' is no option, nor the value of one. Queues come first, the command after '--'."
                    )
                waits_for_value = False
                continue
            waits_for_value = False
            if name in NOT_HERE:
                raise click.UsageError(f"{name} cannot be used here: workers are what the job runs.")
            if name in mine:
                own.append(word)
                if mine[name] and word == name:
                    own += _next(rest, name)
            elif name in theirs:
                words_of = [word, *(_next(rest, name) if theirs[name] and word == name else [])]
                is_log = name == "--output" and words_of[-1].removeprefix("--output=") not in (*OUTPUTS, "none")
                (for_sbatch if is_log else for_run).extend(words_of)
            else:
                for_sbatch.append(word)
                waits_for_value = word == name and name not in FLAGS
        return queues, own, for_run, for_sbatch

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["Q...", "[SBATCH OPTIONS]", "[WORKER OPTIONS]", "[-- COMMAND...]"]


def _next(words: Iterator[str], name: str) -> list[str]:
    value = next(words, None)
    if value is None:
        raise click.UsageError(f"Option '{name}' requires an argument.")
    return [value]


@click.command(
    cls=Submission,
    epilog=example(
        """fsqueue slurm Q --array 0-99 --time 1:00:00 -- ./process {}
fsqueue slurm Q --array 0-99%20 -t 4:00:00 -p short -j 4 --exclude-after 5 -- ./process {}
fsqueue slurm Q -N 4 --ntasks-per-node=1 --exclusive -j auto -t 60 -- ./process {}
fsqueue slurm Q -N 4 -n 64 -t 60 -- srun -n 16 --exact ./simulate {}
fsqueue slurm Q --array 0-9 -t 60 --prologue modules.sh --call mypackage.tiles:render --print
fsqueue slurm Q --resubmit --max-jobs 20 -t 24:00:00 -j 4 -- ./process {}     # for weeks
fsqueue slurm Q --fill 20 -t 4:00:00 -j 4 -- ./process {}       # as many jobs as the tasks need
fsqueue slurm --stop Q
job=$(fsqueue slurm Q --array 0-99 -t 60 --requeue -- ./process {})
sbatch --dependency=afterany:$job --wrap 'fsqueue wait Q && ./assemble'"""
    ),
)
@click.option(
    "--print", "only_print", is_flag=True, help="Submit nothing. Print a shell script that would submit the job."
)
@click.option("--allow-empty", is_flag=True, help="Submit even if there is nothing to do yet.")
@click.option("--prologue", type=click.Path(exists=True, dir_okay=False), metavar="FILE",
              help="Put this file's lines into the job script, before the worker: modules, conda.")  # fmt: skip
@click.option("--log-dir", type=click.Path(file_okay=False), metavar="DIR",
              help=f"Directory for the logs of jobs. It is made if missing [{LOG_DIR}].")  # fmt: skip
@click.option("--one-worker", is_flag=True,
              help="Start one worker in the job. Its commands use the job's tasks (srun).")  # fmt: skip
@click.option("--no-command-check", is_flag=True, help="Submit even if COMMAND, or the module, is not found here.")
@click.option("--resubmit", is_flag=True,
              help="Have each job submit its successor when it begins, until the queues are drained.")  # fmt: skip
@click.option("--max-jobs", type=click.IntRange(1, JOBS_MAX), metavar="N",
              help="How many jobs there are at once with --resubmit [1].")  # fmt: skip
@click.option("--fill", type=click.IntRange(1, JOBS_MAX), metavar="N",
              help="Submit as many jobs as the tasks need, by the durations measured so far, so that N are there at "
              "most.")  # fmt: skip
@click.option("--stop", "is_stop", is_flag=True,
              help="Submit no more successors; cancel those that wait. Running jobs finish their tasks.")  # fmt: skip
@click.option("--now", "is_now", is_flag=True, help="With --stop: cancel those that run, too.")
@json_option
@click.pass_context
def slurm(
    ctx: click.Context,
    only_print: bool,
    allow_empty: bool,
    prologue: str | None,
    log_dir: str | None,
    one_worker: bool,
    no_command_check: bool,
    resubmit: bool,
    max_jobs: int | None,
    fill: int | None,
    is_stop: bool,
    is_now: bool,
    as_json: bool,
) -> None:
    """Submit a Slurm job whose elements are workers, and print its id.

    Each element executes 'fsqueue run Q -- COMMAND'. Have more tasks than elements: a worker takes one task after the
    other. It begins none that would not end before its job does.

    Options of 'fsqueue run' go to the workers. All others go to sbatch as they are. --output group, line or ungrouped
    is for the workers. Any other --output is sbatch's, the name of the log.

    -j 4 asks for four processors (--cpus-per-task=4), and -c 4 sets -j 4. Give both if they differ.

    A job of several tasks (-N, -n, --ntasks-per-node) starts a worker in each of them, by srun. With --one-worker, or
    if COMMAND names srun or mpirun, the job has one worker, whose commands use the tasks.

    The logs are DIR/JOBNAME-JOB_INDEX.out. A job that is requeued appends to its own log.

    On the node, bash executes the lines of --prologue. The worker then runs with the Python that has submitted the
    job. Its commands see what the prologue has set.

    Workers get SIGUSR1 before the time limit: 30 s and their --grace before, unless --signal says otherwise. They put
    back what they cannot finish within the grace. At SIGTERM (scancel, preemption, requeueing, the limit itself) they
    put everything back at once, since Slurm sends that signal to the commands, too. No other program has to run
    afterwards.

    Typed in a job (srun --pty, a notebook on a node), the new job gets none of that job's variables: no SLURM_*,
    SRUN_*, PMI* or GPUs. What you set for sbatch or for all of Slurm stays: SBATCH_ACCOUNT, SLURM_CONF and the like.

    A dependent job should wait with 'fsqueue wait', as in the example. Elements of the array may end early, or with
    exit code 9 because they have given up tasks. Slurm counts that as failed, and 'afterok' would wait for ever.

    With --resubmit, each job submits its successor when it begins. So a job that is killed, or reaches its time limit,
    has one, too. No more than --max-jobs run at once. A successor that finds the queues drained or paused ends at once,
    and the campaign is over. It is also over when no task fits the time limit. 'fsqueue slurm --stop Q' ends it, where
    Q is the first of its queues: jobs that wait are cancelled, those that run finish the tasks at work. Failed jobs do
    not end it. docs/resubmit.md tells more.

    With --fill N, as many jobs are submitted as the unfinished tasks need within the time limit (--time), less the
    workers that are there, or wait in Slurm. No more than N are there at once. A sentence says what that comes from:
    the mean of the durations measured so far, -j and the time limit. While none is known, each task counts as long as a
    job. Nothing watches the queues: each call reckons once. With --resubmit, each job that begins reckons again, and
    submits those that are missing.

    \b
    Exit codes:
      1    sbatch is not here, or has refused the job; with --stop, jobs could not be cancelled
      2    COMMAND or the module is not found (submit anyway: --no-command-check), or a waiting task lacks a field
      3    nothing to do: no task is left in the queues (submit anyway: --allow-empty)
    """
    queues, for_run = ctx.meta["queues"], ctx.meta["run"]
    if not queues:
        raise click.UsageError("Missing argument 'Q...'. Queues come first: fsqueue slurm Q --array 0-9 -- COMMAND")
    if is_stop or is_now:
        _stop(ctx, queues, is_stop and not (resubmit or max_jobs or fill), is_now, as_json)
        return
    if max_jobs is not None and fill is not None:
        raise click.UsageError(
            "--fill N says how many jobs there are at most: leave out --max-jobs. Nothing was submitted."
        )
    if max_jobs is not None and not resubmit:
        raise click.UsageError("--max-jobs is for jobs that replace themselves: add --resubmit. Nothing was submitted.")
    if not ctx.meta["command"] and not {word.partition("=")[0] for word in for_run} & {"--call", "--load"}:
        raise click.UsageError("There is nothing to run. Give a command after '--', or --call.")
    with run.make_context("fsqueue slurm", list(for_run), help_option_names=ctx.help_option_names) as checked:
        options = checked.params
        typed = click.core.ParameterSource.COMMANDLINE
        is_given = {name: checked.get_parameter_source(name) is typed for name in ("jobs", "threads")}
    given = ctx.meta["sbatch"]
    has_slots = resubmit or fill is not None
    if has_slots:
        _check_slots(given, "--resubmit" if fill is None else "--fill")
    if log_dir is not None and _names(given) & {"-o", "--output"}:
        raise click.UsageError("Give either --log-dir or --output.")
    before = "" if prologue is None else _read_prologue(prologue)
    opened = [queue_at(queue) for queue in queues]
    if ctx.meta["command"]:
        if options["tasks_per_command"] is not None:
            check_command(ctx.meta["command"], allow_in_script=True)
            check_no_placeholders(ctx.meta["command"])
        else:
            check_command(ctx.meta["command"], options["allow_in_script"])
            check_fields(ctx.meta["command"], opened)
    if not no_command_check:
        directory = _value(given, "-D", "--chdir")
        if ctx.meta["command"]:
            _check_command(ctx.meta["command"], directory, has_prologue=bool(before))
        elif not before:
            _check_modules(_module_of(options["call"]) if options["call"] else options["load"], directory)
    if not allow_empty and not options.get("forever") and all(queue.status().remaining == 0 for queue in opened):
        complain("there is nothing to do: insert tasks first, or let workers wait for them (--forever, --allow-empty)")
        raise click.exceptions.Exit(NOTHING_EXIT)
    paths = [path_of(queue) for queue in opened]
    has_tasks = any(value not in (None, "1") for value in (_value(given, name) for name in TASKS))
    one_worker = one_worker or names_launcher(ctx.meta["command"] or [])
    for_worker, stops_before = for_run[len(queues) :], 0
    if has_slots:
        stops_before = opened[0].store.queue_state.stops
        for_worker = ["--stoppable", "--stops-before", str(stops_before), *for_worker]
    cpus = _value(given, "-c", "--cpus-per-task")
    defaults = _defaults(given, paths[0], options)
    if not (has_tasks and one_worker):  # else the processors are those of what its commands start
        if cpus is None and is_given["jobs"] and options["jobs"] != AUTO:
            cpus = str(options["jobs"])
            defaults.append(f"--cpus-per-task={cpus}")
        elif cpus is not None and cpus.isdecimal() and not any(is_given.values()):
            for_worker, options["jobs"] = ["-j", cpus, *for_worker], int(cpus)
    if options["gpus_per_task"] and not has_tasks and options["jobs"] != AUTO and not _names(given) & GPUS:
        defaults.append(f"--gres=gpu:{options['jobs'] * options['gpus_per_task']}")
    logs = None
    if not _names(given) & {"-o", "--output"}:
        logs = _outside(os.path.abspath(log_dir or LOG_DIR), paths)
        # a slash in the job's name would name a directory that is not there
        name = "" if "/" in (_value(given, "-J", "--job-name") or "") else "%x-"
        number = "%A_%a" if _names(given) & {"-a", "--array"} else "%j"
        defaults.append(f"--output={_pattern(logs)}/{name}{number}.out")
    launcher = _launcher(cpus) if has_tasks and not one_worker else []
    if launcher and fill is not None:
        raise click.UsageError(
            "--fill reckons with one worker in each job, and a job of several tasks has one in each of them. Nothing "
            "was submitted. Leave out -N, -n and the like, or add --one-worker if the tasks are for COMMAND."
        )
    if launcher:
        complain("the job has a worker in each of its tasks; if its commands start tasks themselves: --one-worker")
    outer = controller.outer_variables(os.environ)
    if outer:
        complain(
            f"this is typed in job {typed_in(os.environ)}: the new job does not get the "
            f"{wording.counted(len(outer), 'variable')} of that one (SLURM_* and such; what you set as SBATCH_* stays)"
        )
    submission = Submitted(
        sbatch=["sbatch", "--parsable", *defaults, *given],
        script=_script(before, launcher, [*paths, *for_worker]),
        logs=logs,
        outer=outer,
    )
    if has_slots:
        most = fill or max_jobs or 1
        campaign = _campaign(submission, given, opened, paths, most, options, stops_before, fill is not None)
        slots, reckoned = list(range(campaign.slots)), None
        if fill is not None:
            from .filling import slots_to_fill

            campaign = replace(campaign, worker=_capacity(submission.sbatch, campaign, options), replaces=resubmit)
            slots, reckoned = slots_to_fill(campaign, opened, controller, only_print, "--time")
        depends_on = _value(given, "-d", "--dependency") or ""
        if only_print:
            for slot in slots:
                one = _of_slot(campaign, slot, submission, depends_on)
                why = {} if reckoned is None else {"fill": reckoned.as_dict()}
                print_json(described(one) | why) if as_json else say(*as_shell(one))
            return
        if slots:
            _make_logs(logs)
        _begin(campaign, submission, depends_on, slots, reckoned, as_json)
    elif not only_print:
        _make_logs(logs)
        _submit(submission, as_json)
    elif as_json:
        print_json(described(submission))
    else:
        say(*as_shell(submission))


def _stop(ctx: click.Context, queues: list[str], is_alone: bool, is_now: bool, as_json: bool) -> None:
    """Stop the campaigns of queues. UsageError if something else is asked for, too."""
    if not is_alone or ctx.meta["sbatch"] or len(ctx.meta["run"]) > len(queues):
        raise click.UsageError("--stop stands alone with its queues, and --now with it: fsqueue slurm --stop Q --now")
    from .successors import stop

    done = [stop(queue, is_now, as_json, controller) for queue in queues]
    if not all(done):
        complain("not all jobs could be cancelled. Repeat this where Slurm answers, or see 'squeue --me'")
        raise click.exceptions.Exit(1)


def _check_slots(given: list[str], option: str) -> None:
    """Refuse options of sbatch that jobs with slots cannot have. `option`: why they have slots."""
    names = _names(given)
    for short, long in NOT_ANEW.items():
        if names & {short, long}:
            number = "--fill N" if option == "--fill" else "--max-jobs N"
            more = f": {number} says how many jobs there are" if short == "-a" else ""
            raise click.UsageError(f"{long or short} cannot be used with {option}{more}. Nothing was submitted.")
    if "?" in (_value(given, "-d", "--dependency") or ""):
        raise click.UsageError(f"A dependency with '?' cannot be used with {option}. Nothing was submitted.")


def _capacity(words: list[str], campaign: Campaign, options: dict[str, Any]) -> Capacity:
    """Return what the worker of a job can do. UsageError if its options do not tell. `words`: the command of sbatch."""
    from .filling import capacity_of

    text = _value(words, "-t", "--time") or os.environ.get("SBATCH_TIMELIMIT") or ""
    said = f"'{text}' is none" if text else "none is given"
    why = f"{said}. Nothing was submitted. For example: -t 4:00:00"
    return capacity_of(options, time_limit_s(text), campaign.warned_s, why)


def _campaign(
    submission: Submitted,
    given: list[str],
    opened: list[Any],
    paths: list[str],
    slots: int,
    options: dict[str, Any],
    stops_before: int,
    is_shared: bool,
) -> Campaign:
    """Return a campaign of jobs that are submitted so. `stops_before`: what its workers are told, too. `is_shared`: as
    of `campaign.name`.
    """
    words = submission.sbatch
    early = _value(words, "--signal") or ""
    _, at, seconds = early.rpartition("@")
    return Campaign(
        name=campaign_name(_value(words, "-J", "--job-name") or "fsqueue", opened[0].id, is_shared),
        slots=slots,
        queues=paths,
        upstream=list(options["upstream"]),
        forever=bool(options["forever"]),
        sbatch=words,
        directory=os.getcwd(),
        warned_s=int(seconds) if at and seconds.isdecimal() else 0,
        stops=stops_before,
    )


def _of_slot(campaign: Campaign, slot: int, submission: Submitted, depends_on: str) -> Submitted:
    """Return the submission of a slot's first job."""
    from .successors import script_line

    script = submission.script
    if campaign.replaces:
        first, _, rest = script.partition("\n")
        script = f"{first}\n{script_line(campaign, Relay(slot=slot))}\n{rest}"
    return replace(
        submission,
        sbatch=controller.submission(campaign.sbatch, campaign.job_name(slot), depends_on, 0.0),
        script=script,
    )


def _begin(
    campaign: Campaign,
    submission: Submitted,
    depends_on: str,
    slots: list[int],
    reckoned: Reckoning | None,
    as_json: bool,
) -> None:
    """Submit jobs to slots of a campaign, and print their ids. `reckoned`: why these, if that was reckoned."""
    from .successors import NotTaken, begin_campaign

    first = _of_slot(campaign, 0, submission, depends_on)
    try:
        jobs = begin_campaign(campaign, os.fsencode(first.script), depends_on, slots)
    except NotTaken as error:
        complain(f"no job was submitted: {error}. To see what would be submitted: --print")
        raise click.exceptions.Exit(1) from None
    said: dict[str, Any] = {"jobs": jobs, "campaign": campaign.name, **described(first)}
    print_done(as_json, said if reckoned is None else said | {"fill": reckoned.as_dict()}, *jobs)


@dataclass(frozen=True, slots=True)
class Submitted:
    """What is submitted, and how."""

    sbatch: list[str]
    """The command that submits."""
    script: str
    logs: str | None
    """The directory of the logs; None if the user named a place."""
    outer: list[str]
    """The variables that the new job must not get."""


def _names(words: Iterable[str]) -> set[str]:
    """Return the names of options of sbatch, as they were typed."""
    return {word.partition("=")[0] if word.startswith("--") else word[:2] for word in words if word.startswith("-")}


def _value(words: list[str], *names: str) -> str | None:
    """Return the last value that an option of sbatch has under one of its names; None if it is not given."""
    found = None
    for word, after in pairwise([*words, ""]):
        for name in names:
            if word == name:
                found = after
            elif word.startswith(f"{name}=" if name.startswith("--") else name):
                found = word[len(name) :].removeprefix("=")
    return found


def _check_command(command: list[str], directory: str | None, has_prologue: bool) -> None:
    """Refuse a program that is not found here: each element of the array would end with that.

    A name without a slash may be found only after a prologue has set the PATH, so it passes if there is one.
    """
    program = command[0]
    if os.path.dirname(program):
        program = os.path.join(directory or "", program)
    elif has_prologue:
        return
    if missing_program([program, *command[1:]]):
        raise click.UsageError(
            f"The command '{command[0]}' was not found here, or is not executable. Nothing was submitted. If it is "
            "only on the nodes, add --no-command-check."
        )


def _module_of(call: str) -> list[str]:
    """Return the module that --call names. UsageError if it names no function in it."""
    module, _, function = call.partition(":")
    if not (module and function):
        raise click.UsageError(f"--call names a function as MODULE:FUNCTION, not '{call}'. Nothing was submitted.")
    return [module]


def _check_modules(names: Iterable[str], directory: str | None) -> None:
    """Refuse a function whose module is not found here. Nothing is imported, so only a package is looked for."""
    from importlib.machinery import PathFinder
    from importlib.util import find_spec

    search_working_directory()
    there = [] if directory is None else [os.path.abspath(directory)]
    for name in names:
        module = name.partition(".")[0]
        is_found = module in sys.modules or (module and (find_spec(module) or PathFinder.find_spec(module, there)))
        if not is_found:
            raise click.UsageError(
                f"The module '{module}' was not found here. Nothing was submitted. If it is only on the nodes, add "
                "--no-command-check."
            )


def _read_prologue(path: str) -> str:
    """Return the lines that go before the worker. UsageError for what bash does not understand."""
    with open(path, "rb") as file:
        data = file.read(PROLOGUE_BYTES_MAX + 1)
    wrong = ""
    if len(data) > PROLOGUE_BYTES_MAX:
        wrong = f"it is larger than {PROLOGUE_BYTES_MAX:,} bytes"
    elif b"\0" in data:
        wrong = "it is no text"
    elif b"\r\n" in data or data.endswith(b"\r"):
        wrong = "its lines end as on Windows (CR LF), which bash takes for part of each word"
    elif found := next((sign for sign in DIRECTIVES for line in data.split(b"\n") if line.startswith(sign)), b""):
        wrong = (
            f"sbatch takes options out of it ({found.decode()}), but none where fsqueue gives others; type them on the "
            "command line"
        )
    elif bash := shutil.which("bash"):
        # A locale that is not installed here, or a site's BASH_ENV, would have bash complain of more than these lines.
        environment = {key: value for key, value in os.environ.items() if key != "BASH_ENV"} | {"LC_ALL": "C"}
        extended = ["-O", "extglob"] if b"extglob" in data else []  # -n does not execute the prologue's own shopt
        tried = subprocess.run([bash, *extended, "-n"], input=data, capture_output=True, check=False, env=environment)
        if tried.returncode or tried.stderr:  # bash only warns of a here-document without an end
            lines = tried.stderr.decode(errors="replace").splitlines()
            wrong = lines[0] if lines else f"bash -n ends with exit status {tried.returncode}"
    if wrong:
        raise click.UsageError(f"The prologue '{path}' cannot be used: {wrong}. Nothing was submitted.")
    return os.fsdecode(data)


def _pattern(directory: str) -> str:
    """Return a directory as sbatch takes it in the name of a file."""
    if "\\" in directory:
        raise click.UsageError("sbatch takes no directory with a backslash in its name. Name another one: --log-dir")
    return directory.replace("%", "%%")


def _outside(directory: str, queues: list[str]) -> str:
    """Return a directory for logs. UsageError if it is in a queue."""
    real = os.path.realpath(directory)
    for queue in queues:
        if os.path.commonpath([real, where := os.path.realpath(queue)]) == where:
            raise click.UsageError(
                f"Logs would be written to {directory}, which is in the queue. Deleting the queue would delete "
                "them, and fsck would move them away. Nothing was submitted. Name another directory: --log-dir"
            )
    return directory


def _make_logs(directory: str | None) -> None:
    """Make the directory of the logs: Slurm makes none, and a job without it fails without a word."""
    if directory is None:
        return
    try:
        os.makedirs(directory, exist_ok=True)
        if not os.access(directory, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        complain(
            f"the directory for logs, {directory}, cannot be used: {error.strerror}. Nothing was submitted. Name "
            "another one: --log-dir"
        )
        raise click.exceptions.Exit(1) from None


def _defaults(given: list[str], path: str, options: dict[str, Any]) -> list[str]:
    """Return what sbatch is told unless the user has said it."""
    names = _names(given)
    defaults = []
    if not names & {"-J", "--job-name"}:
        name = "".join(character for character in path.rpartition("/")[2] if character.isprintable())
        defaults.append(f"--job-name=fsqueue-{name[:NAME_CHARS_MAX]}")
    if "--signal" not in names:
        early = min(int(options.get("grace_s") or 0) + SPARE_S, SIGNAL_S_MAX)
        defaults.append(f"--signal=B:USR1@{early}")
    if "--open-mode" not in names:  # many sites requeue unasked, and that would empty the log of what went wrong
        defaults.append("--open-mode=append")
    return defaults


def _launcher(cpus: str | None) -> list[str]:
    """Return what starts a worker in each task of a job. It hands on the signals that it gets.

    srun does not take the number of processors from the job. A site may have it end all tasks when one has failed.
    """
    wanted = [] if cpus is None else [f"--cpus-per-task={cpus}"]
    return ["srun", "--export=ALL", "--kill-on-bad-exit=0", "--wait=0", "--label", *wanted]


def _script(prologue: str, launcher: list[str], arguments: list[str]) -> str:
    """Return the batch script. The worker takes the shell's place, so that Slurm's signals reach it."""
    if (reason := no_second_python()) is not None:
        raise click.UsageError(f"The job would start workers. {reason}")
    worker = [*launcher, sys.executable, "-P", "-m", __package__ or "fsqueue_cli", "run", *arguments]
    before = f"{prologue}\n\n" if prologue else ""  # a backslash at its end continues an empty line
    return f"#!/bin/bash\n{before}exec {' '.join(map(quoted, worker))}\n"


def as_shell(submission: Submitted) -> list[str]:
    """Return lines that do for bash what would be done here."""
    made = [] if submission.logs is None else [f"mkdir -p -- {quoted(submission.logs)}"]
    if submission.outer:
        made.append(f"unset {' '.join(map(quoted, submission.outer))}")
    submit = " ".join(map(quoted, submission.sbatch))
    script = submission.script.removesuffix("\n")
    lines = script.split("\n")
    if not all(line.isprintable() for line in lines):
        return [*made, f"{submit} <<<{quoted(script)}"]
    end = "END"
    while end in lines:
        end += "_"
    return [*made, f"{submit} <<'{end}'", *lines, end]


def _submit(submission: Submitted, as_json: bool) -> None:
    """Submit, and print the job's id as soon as it is known: with --wait, sbatch stays."""
    own = {name: value for name, value in os.environ.items() if name not in submission.outer}
    try:
        process = subprocess.Popen(submission.sbatch, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=own)
    except OSError as error:
        complain(
            f"Slurm's sbatch cannot be run here ({error.strerror or error}). Do this where jobs are submitted, or see "
            "what would be submitted: --print."
        )
        raise click.exceptions.Exit(1) from None
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            process.stdin.write(os.fsencode(submission.script))
            process.stdin.close()
        except BrokenPipeError:
            pass  # it has refused already
        job, _, cluster = process.stdout.readline().decode(errors="replace").strip().partition(";")
        if job:
            print_done(as_json, {"job": job, "cluster": cluster or None, **described(submission)}, job)
        sys.stdout.flush()
        status = process.wait()
    if status and not job:
        complain(f"sbatch has refused the job (exit status {status}); it said why above")
        raise click.exceptions.Exit(1)
    if status:
        raise click.exceptions.Exit(status if 0 < status < 256 else 1)


def described(submission: Submitted) -> dict[str, Any]:
    """Return what is submitted, as JSON can hold it: arguments may be any bytes."""
    return {
        "sbatch": [_text(word) for word in submission.sbatch],
        "script": _text(submission.script),
        "log_dir": None if submission.logs is None else _text(submission.logs),
        "unset": [_text(name) for name in submission.outer],
    }


def _text(value: str) -> str:
    return os.fsencode(value).decode(errors="replace")
