"""run: a command or a Python function for each task."""

from __future__ import annotations

import re
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, Literal

import click

import fsqueue
from fsqueue.errors import said
from fsqueue.format import wording
from fsqueue.views.rates import total
from fsqueue.worker import (
    OUTPUTS,
    SILENT_S,
    TASKS_PER_COMMAND_MAX,
    Away,
    Event,
    Output,
    check_command,
    check_program,
    supervision,
)

from . import process
from .common import (
    example,
    group_at,
    is_one_queue,
    json_option,
    leave_soon,
    match_option,
    named,
    no_match,
    not_there,
    path_of,
    queue_at,
    queues_argument,
    search_working_directory,
    worker_option,
)
from .options import ATTEMPTS, DURATION, SIZE, AfterDashes, at_argument, limit
from .printing import complain, is_screen, print_done, print_json, quoted, unguarded
from .progress import LogProgress, Progress
from .silent_servers import OPEN_S, AskedAgain, PendingAnswer, ask, wait_for_any
from .targets import each_once, is_address, place_of

if TYPE_CHECKING:
    from fsqueue.client.remote_group import RemoteQueues

    Source = fsqueue.Queue | fsqueue.GroupQueues | fsqueue.RemoteQueue | RemoteQueues
    Stage = fsqueue.Queue | fsqueue.RemoteQueue | fsqueue.RemoteGroup

FAILURES, EXCLUDED = 11, 12
"""Exit codes of its own: too many failures in a row; this node takes no more tasks."""


STOPPED_S = 5.0
"""Seconds between two looks whether a campaign was stopped."""
number = click.IntRange(min=1)
AUTO = "auto"
LIST = ":::"
"""What GNU parallel has before the arguments of its tasks."""


def _one_queue(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> str | None:
    """Return the queue that --then names. UsageError for two: what is meant for the first one would be lost."""
    if len(given) > 1:
        raise click.UsageError(
            f"--then takes one queue, not {len(given)}. No task was touched. To insert into several: 'fsqueue update' "
            "in the command, or a function that returns fsqueue.Then (docs/pipelines.md)."
        )
    return given[0] if given else None


def _causes(ctx: click.Context, param: click.Parameter, given: tuple[str, ...]) -> list[str]:
    """Return what --on names, in the order typed."""
    return [cause for text in given for cause in text.split(",")]


class Processes(click.IntRange):
    """Convert how many tasks to do at a time: a number from 1 on, or `AUTO`."""

    name = "integer|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or `AUTO`."""
        if value == AUTO:
            return AUTO
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            why = f"{value!r} is neither a number from 1 on nor 'auto', which is one for each processor."
            self.fail(why, param, ctx)


@click.command(
    cls=AfterDashes,
    epilog=example(
        """fsqueue run Q -- ./process {}
fsqueue run Q --dry-run -- ./process {}                    # prints the commands of the first tasks
fsqueue run Q -j 4 --task-timeout 10m -- convert {} -resize 50% small/{/.}.jpg
fsqueue run Q -- ./render --tile {tile} --out {tile:04d}.png
fsqueue run Q -- sh -c 'jq -r .name | xargs ./process'     # no placeholder: the payload on standard input
fsqueue run Q --stdin -- ./process --out {tile}.png        # the payload there although there is a placeholder
fsqueue run Q -- sh -c './process "$1" | gzip >"$2"' sh {input} {output}
fsqueue run Q --tasks-per-command 100 -- ./process-many    # 100 tasks on standard input, each a line of JSON
fsqueue run Q -j 8 --output line --tag -- ./process {}
fsqueue run Q -j 4 --gpus-per-task 1 -- ./train {config}
fsqueue run Q1 Q2 -j 8 --call mypackage.tiles:render --max-runtime 58m
fsqueue run /scratch/me/crawl/fetch --then extract -- ./fetch {page}    # what it prints becomes tasks of 'extract'
fsqueue run /scratch/me/crawl --match '.*#fetch' -- ./fetch {page}   # queues of a group, also those that come later
fsqueue run http://localhost:8750/ --match '.*#fetch' -- ./fetch {page}     # those of a gateway's group
fsqueue run http://localhost:8750/parse --upstream fetch -- ./parse {page}"""
    ),
)
@queues_argument
@click.option("--call", metavar="MODULE:FUNCTION", help="Call this Python function instead of a command.")
@click.option(
    "--load", metavar="MODULE", multiple=True, help="Call the functions that this module registers. Repeatable."
)
@click.option(
    "-j",
    "--jobs",
    type=Processes(min=1),
    default=1,
    metavar="N|auto",
    help="Tasks at a time, a process each. auto: one for each processor of the job or machine, or for fewer GPUs [1].",
)
@click.option("--gpus-per-task", type=number, metavar="N",
              help="Give each process N of the visible GPUs for itself.")  # fmt: skip
@click.option(
    "--threads", type=number, metavar="N", help="Call functions in this many threads of one process, not in processes."
)
@click.option(
    "--prefetch",
    type=number,
    metavar="N",
    help="Tasks to lease at a time for each process [as many as are quickly done].",
)
@click.option("--tasks-per-command", type=click.IntRange(min=1, max=TASKS_PER_COMMAND_MAX), metavar="N",
              help="Give COMMAND up to N tasks, each a line of JSON on standard input.")  # fmt: skip
@click.option("--recycle-after", type=number, metavar="N",
              help="Replace each process of a function after N tasks.")  # fmt: skip
@click.option("--recycle-rss", "recycle_rss_bytes", type=SIZE,
              help="Replace a process of a function that has more physical memory than this after a task.")  # fmt: skip
@click.option("--lease", "lease_s", type=DURATION,
              help="How long a lease lasts. The worker renews it while the task is at work [the queue's].")  # fmt: skip
@click.option("--on-lease-lost", type=click.Choice(["kill", "finish"]), default="kill",
              help="Kill or finish a task that another worker has taken over [kill].")  # fmt: skip
@click.option(
    "--task-timeout",
    "task_timeout_s",
    type=DURATION,
    help="How long a task may take. Then the worker ends it, and it fails.",
)
@click.option(
    "--sysexits",
    is_flag=True,
    help="Exit code 75 of a command puts its task back, as no failed attempt; 65 makes it a dead letter at once.",
)
@click.option("--allow-in-script", is_flag=True,
              help="Let payloads become part of a script, as in sh -c 'echo {f}': each can be a command.")  # fmt: skip
@click.option(
    "--stop-after-failures",
    type=number,
    metavar="N",
    help="Stop when N attempts in a row have failed [10 before the first success].",
)
@click.option("--exclude-after", type=number, metavar="N",
              help="Take no more tasks on this node when N attempts in a row have failed on it.")  # fmt: skip
@click.option("--max-attempts", type=ATTEMPTS, metavar="N", callback=lambda _, __, value: limit(value),
              help="Attempts before a task becomes a dead letter, or 'none' [none: as the queue says].")  # fmt: skip
@click.option("--max-tasks", type=number, metavar="N", help="Stop after this many tasks.")
@click.option("--max-runtime", "max_runtime_s", type=DURATION,
              help="Stop after this time. Tasks at work then have --grace.")  # fmt: skip
@click.option("--idle-timeout", "idle_timeout_s", type=DURATION, help="Stop after this time with nothing to do.")
@click.option("--upstream", multiple=True, metavar="NAME",
              help="A queue of an earlier stage, by its name in Q's group (by its path, or address, if Q is in none): "
              "end only when it is drained, too. Repeatable.")  # fmt: skip
@click.option("--then", metavar="NAME", multiple=True, callback=_one_queue,
              help="Insert each line of JSON that COMMAND prints into this queue of Q's group, in one step with the "
              "task's completion.")  # fmt: skip
@click.option(
    "--then-to",
    metavar="NAME",
    help="Move a task to this queue of Q's group if an attempt at it fails in one of the ways of --on.",
)
@click.option(
    "--on",
    multiple=True,
    metavar="CAUSE,…",
    callback=_causes,
    help="What moves a task with --then-to: oom (out of memory), timeout, exit=N. Repeatable.",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the commands of the first tasks, ten or --max-tasks, and do nothing else. Exit code 1: one would fail; "
    "5: a queue is not there.",
)
@click.option("--forever", is_flag=True, help="Wait for more tasks when the queues are drained.")
@click.option("--stoppable", is_flag=True,
              help="End when 'fsqueue slurm --stop Q' (pbs, lsf, sge) is typed, after the tasks at work.")  # fmt: skip
@click.option("--stops-before", type=click.IntRange(min=0), metavar="N",
              help="Take --stop for typed before this worker's jobs N times; else, as often as it was.")  # fmt: skip
@click.option(
    "--grace",
    "grace_s",
    type=DURATION,
    default=10.0,
    help="How long tasks at work may go on when the worker must stop [10].",
)
@click.option(
    "--patience",
    "patience_s",
    type=DURATION,
    default=600.0,
    help="How long to wait for a failing filesystem, or a gateway [10m].",
)
@click.option("--keep-output", type=click.Path(file_okay=False), metavar="DIR",
              help="Keep all output in DIR, a new file for each attempt.")  # fmt: skip
@click.option("--result-dir", type=click.Path(file_okay=False), metavar="DIR",
              help="Directory for the files FSQUEUE_RESULT [TMPDIR; in Q for commands with srun, mpirun].")  # fmt: skip
@click.option("--stdin", is_flag=True,
              help="Give COMMAND the payload on standard input, also if it has placeholders.")  # fmt: skip
@click.option("--result-stdout", is_flag=True, help="The result of a command is its standard output.")
@click.option("--output", type=click.Choice(OUTPUTS),
              help="Pass output on when its attempt ends (group), line by line (line), or as it comes (ungrouped) "
              "[group if several commands run at a time, else line].")  # fmt: skip
@click.option("--tag", is_flag=True, help="Begin each line of output with the id of its task.")
@match_option
@worker_option
@click.option("--log-json", is_flag=True, help="Report each event as a line of JSON on standard error.")
@json_option
@click.pass_context
@unguarded()  # functions may run in threads of this process, and print what they like
def run(
    ctx: click.Context,
    /,
    queues: tuple[str, ...],
    call: str | None,
    load: tuple[str, ...],
    jobs: int | Literal["auto"],
    worker: str | None,
    dry_run: bool,
    forever: bool,
    stoppable: bool,
    stops_before: int | None,
    result_stdout: bool,
    output: Output | None,
    match: str | None,
    upstream: tuple[str, ...],
    log_json: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run COMMAND, or call a Python function, for each task of the queues Q.

    Q may also be a group of queues, or the address of a gateway's queue (http://localhost:8750/fetch), or of its group
    (http://localhost:8750/). Several addresses are of one gateway, without paths: start a worker for each gateway. The
    worker ends when no task is waiting, delayed or leased in any of the queues. Tasks that other workers have leased
    count, too. If some of several queues are not there, as on a disk that is not mounted, or do not answer, the worker
    names them, takes tasks of the others, and tries again. It never calls all drained while one is away. A worker of a
    later stage may start first: with --upstream it ends only when the earlier stages are drained at the same time.
    Their first tasks must be inserted before.

    In an argument of COMMAND, '{}' stands for the payload, and '{field}' for a field of it. Strings are inserted as
    they are, all else as JSON. A field's name may have hyphens and dots: '{tile-id}'. '{{field}}' stands for the text
    '{field}', and so for all placeholders:

    \b
      {}  {field}       the payload; a field of it
      {.}  {field.}     a path without its extension
      {/}  {field/}     its last name
      {//} {field//}    its directory
      {/.} {field/.}    its last name without the extension
      {field:04d}       a format of Python's: {x:.3f}; {:04d} for the payload
      {"any field"}     a field whose name needs quotes, as "tile no" or "2x"
      {#}               the task's id

    If a task lacks the field, or its payload does not suit the format, the attempt fails. If the first waiting task
    does not suit COMMAND, the worker ends before it leases anything. It ends in the same way at what looks like a
    placeholder and means nothing: '{1}', '{%}', '{field }', '{field?}', '{field!r}', and text after a colon that is no
    format ('{:d4}'). Other braces stay as they are: '{print $1}', '{ print }', '{1..3}', '${name}'. An attempt fails if
    a field is called exactly so, as 'tile no' is in '{tile no}', or 'tile' in '{ tile }'.

    No shell is involved. In 'sh -c SCRIPT' a placeholder would become part of the script, so a payload could be a
    command. fsqueue refuses that for shells, Python, Perl, awk, ssh and others, unless --allow-in-script is given.
    Write sh -c 'cmd "$1"' sh {field} instead. Numbers are harmless: sh -c 'cmd {tile:d}'. A payload that begins with
    '-' may look like an option to the command.

    A command without placeholders finds the payload as JSON on standard input. A command with one (but for '{#}') gets
    an empty standard input, since a program such as ffmpeg would take the payload for keys. On empty input jq and
    others succeed, so the task would be completed. With --stdin, every command finds the payload there.

    The environment of a command has FSQUEUE_PAYLOAD (if at most 100 kB), FSQUEUE_TASK_ID, FSQUEUE_ATTEMPT,
    FSQUEUE_QUEUE, FSQUEUE_TOKEN and FSQUEUE_SLOT. It may write small JSON to the file that FSQUEUE_RESULT names, which
    does not exist before; the history keeps it. It inherits standard output and standard error, and no other open file.

    With --tasks-per-command N, one command gets up to N tasks on standard input. Each is a line of JSON with 'id',
    'payload' (of bytes: 'b64'), 'attempt', 'queue' and 'token'. Exit status 0 completes all of them, any other fails
    them. With --result-stdout, the command answers for each task by a line: {"id": "...", "result": 5}, or
    {"id": "...", "error": "why"}. Each answer counts when it comes, the last one when the command ends. A task without
    an answer fails. When it is tried again, it gets a command of its own. Only there do exit status 65 (--sysexits) and
    --on hold. --task-timeout is multiplied by the number of tasks.

    With --then, each line that the command prints to standard output must be JSON: a payload. When the command exits
    with 0, all of them are inserted into that queue, in one step with the completion of its task; otherwise none is.
    A line that is no JSON fails the attempt. The task becomes a dead letter if a line takes more than 64 KiB, or if
    there are more than 9,999 lines or 8 MiB. Standard output is then not shown. A function returns fsqueue.Then.

    With --then-to big --on oom, a task whose attempt ends for want of memory moves to the queue 'big' of the same
    group, where workers with more memory take it. All other failures stay as they are.

    Exit status 0 completes the task. Any other fails the attempt, with the end of the output as the reason. The task is
    retried after a growing pause, up to the queue's number of attempts ('fsqueue set' changes it). --max-attempts N
    lets this worker give a task up earlier: with 1, at the first failure. If a worker dies, only the queue's number
    counts.

    A command may fail, time out, be stopped, or lose its worker to SIGKILL. Then all processes end that it has started
    on this host. If it exits with 0, what it leaves running stays.

    A function gets the fields of a payload by name if they are its parameters: f(tile=7, zoom=2) for {"tile": 7,
    "zoom": 2}. A parameter called 'payload' gets the whole payload, and so does the first one if the fields are others.
    One called 'task' gets the task. The value that the function returns is the result. An exception fails the attempt,
    and so does sys.exit with another code than 0. fsqueue.Retry puts the task back. fsqueue.Bury makes it a dead letter
    at once, and so does a result that cannot be kept: each further attempt would end in the same way. Functions run in
    separate processes: if one dies, only its own attempt fails. Against leaks, --recycle-after and --recycle-rss
    replace a process between two tasks. Modules are searched for in the working directory first.

    FSQUEUE_SLOT is a number from 0 to JOBS - 1. No two processes at work have the same. With --gpus-per-task, each
    slot has its own share of the GPUs that CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES or
    ZE_AFFINITY_MASK name. Without these variables, the GPUs are those that nvidia-smi shows. If they are too few for
    all processes, the worker ends before it leases a task.

    On a terminal, the worker shows a progress bar (not with --log-json or --threads). Elsewhere, as in a log file, it
    prints a line a minute (not with --json or --log-json). With the bar or the lines, it shows the first failure of
    each kind as it happens. Failures whose reasons differ only in numbers are of one kind: the worker counts further
    ones, and shows their number. It passes on the output of commands and functions in whole lines. If several commands
    run at a time, it shows the output of each when that command ends.

    After SIGTERM, SIGUSR1, SIGUSR2, SIGHUP or Ctrl-C, the worker begins no more tasks. Tasks at work have --grace to
    end. Then the worker sends them SIGTERM and puts them back. After a second signal, it puts them back at once.

    Slurm or --max-runtime may limit the worker's time. Then the worker begins no task that is likely to outlast that
    time and its --grace, by the durations measured so far.

    An idle worker looks for tasks less and less often, but starts a new task within eight seconds. It ends at most half
    a minute after other workers have drained the queue.

    \b
    Exit codes:
      0    drained, or ended as asked (--max-tasks, --max-runtime, --idle-timeout, end of the job)
      1    the queue's filesystem fails: it is read-only for 15 seconds, or another error lasts for --patience
           (of several filesystems: and the others are drained)
      2    COMMAND or the function cannot be found
      5    a queue is not there; of several queues: the others are drained, and one is not there,
           cannot be opened, or does not answer
      7    no room on the queue's disk for --patience (of several: and the others are drained), or for what is printed
      9    drained, but this worker has made tasks dead letters
           ('fsqueue wait' ends with 9 for dead letters of any run)
      11   stopped by --stop-after-failures
      12   stopped by --exclude-after
      129, 130, 138, 143   stopped by a signal
    """
    command = ctx.meta.get("command", [])
    _check_work(queues, command, call, load)
    if command and missing_program(command):
        raise click.UsageError(f"The command '{command[0]}' was not found, or is not executable. No task was touched.")
    if command:
        check_command(command, options["allow_in_script"] or options["tasks_per_command"] is not None)
    if not command:
        search_working_directory()
    found, away = _sources_at(list(dict.fromkeys(queues)), worker, match, options["patience_s"])
    opened = list(found.values())
    taken = _together(opened, worker, options["patience_s"])
    first = next(iter(found))
    of = path_of(opened[0]) if is_address(first) else first
    stages, late = _upstream_of(of, upstream, worker, options["patience_s"])
    away += late
    for source in opened:
        for name in filter(None, (options["then"], options["then_to"])):
            if (group := getattr(source, "group", None)) is not None:  # a queue alone has none, and is refused later
                named(group, name)
    never = ["hint: --on timeout moves no task: without --task-timeout, no attempt times out"]
    never *= "timeout" in options["on"] and options["task_timeout_s"] is None
    hints = (
        *never,
        *_too_many(opened, options["max_attempts"]),
        *_none_alone(opened, options["tasks_per_command"], options["max_attempts"]),
        *_not_there(opened, stages),
    )
    for text in hints:
        (_log_json if log_json else _say)(Event("hint", text, {}))
    # What functions print in threads of this process goes past the bar.
    shows = not log_json and options["threads"] is None and is_screen(sys.stderr)
    paths = [path_of(source) for source in opened]
    again = [_source_at(queue, worker, match, options["patience_s"]) for queue in found]
    status_of = [partial(_status_of, source) for source in again]
    progress = Progress(paths) if shows else None
    shown: Progress | LogProgress | None = progress or (None if log_json or as_json else LogProgress(paths))
    if shown is not None:
        shown.status_of = status_of
    supervision.is_own_process = process.is_own
    made = fsqueue.Worker(
        taken,
        call,
        command=command,
        load=load,
        processes=jobs,
        until="forever" if forever else "drained",
        upstream=stages,
        result_from_stdout=result_stdout,
        output=output,
        tell=shown.tell if shown is not None else _log_json if log_json else _say,
        pass_on=progress.pass_on if progress is not None else None,
        away=away,
        **options,
    )
    if dry_run:  # a worker that would be refused has been by now
        from .dry_run import DryRun

        waiting = sum(_status_of(source).waiting for source in opened)
        DryRun(command, call, options["stdin"], as_json, options["tasks_per_command"]).show(
            opened, waiting, options["max_tasks"], away
        )
        return
    if stoppable:
        _end_when_stopped(made, path_of(opened[0]), stops_before)
    try:
        if shown is not None:
            shown.start(made)
        report = made.run()
        if report.signal is not None:
            ctx.call_on_close(leave_soon(128 + report.signal).cancel)
    finally:
        if shown is not None:
            shown.close()
    # What is away is not asked: it may not answer.
    asked = opened if report.signal is None and report.ended != "away" else []
    dead = _letters_in(asked)
    is_known = bool(asked) and len(dead) == len(asked)
    summary = report.as_dict() | ({"dead": sum(count for _, count in dead)} if is_known else {})
    if log_json:
        _log_json(Event("end", "", summary))
    print_done(as_json, summary)
    if not log_json and not as_json:
        _summarise(report, dead)
    if report.signal is not None:
        raise click.exceptions.Exit(128 + report.signal)
    code = {
        "failures": FAILURES,
        "excluded": EXCLUDED,
        "away": fsqueue.QueueNotFound.exit_code,
        "drained": 9 if report.buried or report.spent else 0,
    }.get(report.ended, 0)
    code = code or (fsqueue.StorageFull.exit_code if report.unwritten else 0)
    if code:
        raise click.exceptions.Exit(code)


def _end_when_stopped(made: fsqueue.Worker, path: str, stops_before: int | None) -> None:
    """Begin a thread that ends a worker when the campaigns of a queue are stopped. UsageError if there is no file.

    `stops_before`: how often they were stopped before this worker's campaign began; None: it begins now.
    """
    from fsqueue.storage import stops

    if is_address(path):
        raise click.UsageError("--stoppable is for a queue at a path: a gateway does not tell. No task was touched.")
    store = queue_at(path).store  # the thread's own
    known = stops.count(store) if stops_before is None else stops_before

    def watch() -> None:
        while True:
            with suppress(OSError, fsqueue.FsqueueError):  # the worker finds out, and may have patience
                if stops.count(store) != known:
                    made.finish()
                    return
            time.sleep(STOPPED_S)

    threading.Thread(target=watch, name="fsqueue-stops", daemon=True).start()


def _sources_at(
    paths: list[str], worker: str | None, match: str | None, patience_s: float
) -> tuple[dict[str, Source], list[Away]]:
    """Return the queues and groups that are there, by their paths, and those that are not, or do not answer, or cannot
    be opened.

    The error of one if none is there. A single one is waited for as long as its file server does not answer; of
    several, one. Of two paths of one queue, the first one counts, and of a group and its queue the group.
    """
    if len(paths) == 1:
        return {paths[0]: _source_at(paths[0], worker, match, patience_s)}, []
    places: dict[str, str] = {}

    def open_at(path: str) -> Source:
        found = _source_at(path, worker, match, patience_s)
        places[path] = place_of(found)  # it may have to ask the file server, as a thread may
        return found

    opens = {path: partial(open_at, path) for path in paths}
    answers = [ask(path, opens[path], None if is_address(path) else OPEN_S) for path in paths]
    while True:
        found: dict[str, Source] = {}
        away: list[Away] = []
        not_found: fsqueue.FsqueueError | None = None
        broken: fsqueue.FsqueueError | None = None
        for one in answers:
            if not one.done():
                away.append(_late(one, opens[one.path], patience_s))
                continue
            try:
                found[one.path] = one.result()
            except (fsqueue.QueueNotFound, fsqueue.GroupNotFound) as error:
                not_found = error
                away.append(Away(one.path, partial(_came_back, opens[one.path])))
            except fsqueue.InvalidArgument:
                raise  # no path: it would be the same at each try
            except fsqueue.FsqueueError as error:
                broken = error
                away.append(_broken(one, opens[one.path], error))
        if found:
            groups = {places[path] for path, source in found.items() if not is_one_queue(source)}
            kept = each_once(found, str, places.__getitem__, {}, groups)
            return {path: found[path] for path in kept}, away
        if broken is not None:
            raise broken
        waits = [one for one in answers if not one.done()]
        if not waits and not_found is not None:
            raise not_found
        wait_for_any(waits)


def _late(answer: PendingAnswer[Any], opens: Callable[[], Any], patience_s: float, is_upstream: bool = False) -> Away:
    """Return what is to be said, and done, of a queue or group whose file server has not answered in time."""
    again = _asked_again(answer, opens)
    return Away.silent(answer.path, again, answer.began, patience_s, answer.done, is_upstream)


def _broken(
    answer: PendingAnswer[Any], opens: Callable[[], Any], error: fsqueue.FsqueueError, is_upstream: bool = False
) -> Away:
    """Return what is to be said, and done, of a queue or group that could not be opened."""
    again = _asked_again(answer, opens)
    return Away(answer.path, again, f"cannot be opened ({said(error)})", is_upstream=is_upstream)


def _asked_again(answer: PendingAnswer[Any], opens: Callable[[], Any]) -> Callable[[], Any]:
    """Return what opens a queue whose first answer has come late, or was an error.

    A worker does not wait for an address: it is asked in a thread. For silent filesystems it has its own means.
    """
    if is_address(answer.path):
        return partial(_came_back, AskedAgain(answer, opens).result)
    each = chain([answer.result], repeat(opens))
    return lambda: _came_back(next(each))


def _came_back(opens: Callable[[], Source]) -> Source:
    """Open a queue or a group that was missing. NotAQueue if something else has its path now."""
    try:
        return opens()
    except click.ClickException as error:
        raise fsqueue.NotAQueue(error.format_message()) from None


def _source_at(path: str, worker: str | None, match: str | None, patience_s: float) -> Source:
    """Return the queue at a path, or the queues of the group at it; with `match`, those whose whole names match."""
    if is_address(path):
        return _remote_at(path, worker, match, patience_s)
    if group_at(path, {"--match": match}) is None:
        return queue_at(path, worker)
    group = fsqueue.Group(path, worker=worker)
    return group if match is None else group.matching(match)


def _remote_at(
    url: str, worker: str | None, match: str | None, patience_s: float
) -> fsqueue.RemoteQueue | RemoteQueues:
    """Return the queue of a gateway at an address, or the queues of its group; with `match`, as `_source_at`."""
    found = fsqueue.connect(url, worker=worker, patience_s=patience_s)
    if match is None:
        return found
    if isinstance(found, fsqueue.RemoteGroup):
        return found.matching(match)
    raise click.UsageError(f"--match is for the queues of a group, and {url} is one queue. No task was touched.")


def _together(opened: Sequence[Source], worker: str | None, patience_s: float) -> list[Source]:
    """Return what a worker takes tasks from: several queues of one gateway as a part of its group. UsageError."""
    addresses = [one for one in opened if not isinstance(one, fsqueue.Queue | fsqueue.GroupQueues)]
    if not addresses or len(opened) == 1:
        return [*opened]
    gateways = {path_of(one).rpartition("/")[0] for one in addresses}
    if len(gateways) > 1 or len(addresses) < len(opened):
        raise click.UsageError(
            f"{' and '.join(map(path_of, opened))} are not all of one gateway. A worker takes queues of one gateway, "
            "or those on filesystems: start a worker for each. No task was touched."
        )
    group = _group_at_gateway(f"{gateways.pop()}/", worker, patience_s)
    names = [one.name for one in addresses if isinstance(one, fsqueue.RemoteQueue)]
    return [group if len(names) < len(addresses) else group.matching("|".join(map(re.escape, names)))]


def _group_at_gateway(url: str, worker: str | None, patience_s: float) -> fsqueue.RemoteGroup:
    """Return the group of a gateway. UsageError if it serves a queue alone."""
    found = fsqueue.connect(url, worker=worker, patience_s=patience_s)
    if isinstance(found, fsqueue.RemoteGroup):
        return found
    raise click.UsageError(
        f"{url} is a gateway that serves one queue, and no group: name other queues by their addresses. No task was "
        "touched."
    )


def _upstream_of(
    of: str, names: Sequence[str], worker: str | None, patience_s: float
) -> tuple[list[Stage], list[Away]]:
    """Return the queues of earlier stages, and those that are not there, do not answer, or cannot be opened."""
    found: list[Stage] = []
    away: list[Away] = []
    for name in names:
        opens: Callable[[], Stage] = partial(upstream_at, name, of, worker)
        if is_address(of):
            opens = partial(_remote_upstream_at, name, of, worker, patience_s)
        answer = ask(name, opens, OPEN_S)
        if not answer.done():
            away.append(_late(answer, opens, patience_s, is_upstream=True))
            continue
        try:
            found.append(answer.result())
        except fsqueue.QueueNotFound:
            away.append(Away(name, partial(_came_back, opens), is_upstream=True))
        except fsqueue.InvalidArgument:
            raise  # no name, no path: it would be the same at each try
        except fsqueue.FsqueueError as error:
            away.append(_broken(answer, opens, error, is_upstream=True))
    return found, away


def _remote_upstream_at(name: str, of: str, worker: str | None, patience_s: float) -> Stage:
    """Return the queue of an earlier stage: by its name in the group of a gateway's queue, or by its address."""
    if is_address(name):
        return fsqueue.connect(name, worker=worker, patience_s=patience_s)
    group = _group_at_gateway(f"{of.rpartition('/')[0]}/", worker, patience_s)
    return group[named(group, name)]


def upstream_at(name: str, of: str, worker: str | None) -> fsqueue.Queue:
    """Return the queue of an earlier stage: by its name in the group of a queue, or by its path."""
    if is_address(name):
        raise click.UsageError(
            f"--upstream {name} is an address, and {of} is none. No task was touched. Name both by their addresses, or "
            "both by their paths."
        )
    group = group_at(of, worker=worker)
    holder = str(group.path) if group is not None else fsqueue.Group.holding(of)
    if holder is None:
        return queue_at(name, worker)
    group = fsqueue.Group(holder, worker=worker)
    return group[named(group, name)]


def _status_of(source: Source) -> fsqueue.Status:
    """Return the status of a queue; of queues of a group their sum, by names."""
    if isinstance(source, fsqueue.GroupQueues):
        return source.status(exact=False).status
    found = source.status() if isinstance(source, fsqueue.Queue) else source.status(exact=False)
    return total(found.values()) if isinstance(found, dict) else found


def _check_work(queues: tuple[str, ...], command: list[str], call: str | None, load: tuple[str, ...]) -> None:
    """Refuse a command line without work for each task, or with two kinds of it, with a usage error."""
    all_of = (("a command after '--'", command), ("--call", call), ("--load", load))
    given = [name for name, value in all_of if value]
    if len(given) == 1:
        return
    either = "Give either a command after '--', or --call, or --load."
    if given:
        raise click.UsageError(f"{' and '.join(given)} were given. {either}")
    if LIST in queues:
        raise click.UsageError(
            f"{LIST!r} is for 'fsqueue map -- COMMAND {{}} ::: A B'. Of a queue the tasks come first: "
            "printf '%s\\n' A B | fsqueue insert Q --lines. Then: fsqueue run Q -- COMMAND {}."
        )
    if len(queues) > 1:
        typed = click.get_current_context().meta["typed"]
        at = at_argument(run, typed, 1)
        line = " ".join(map(quoted, [*typed[:at], "--", *typed[at:]]))
        raise click.UsageError(f"{either} If {queues[1]} is the command: fsqueue run {line}")
    raise click.UsageError(either)


def _letters_in(sources: Sequence[Source]) -> list[tuple[Source, int]]:
    """Return how many dead letters each has. Of several, those are left out that do not answer in time."""
    if len(sources) == 1:  # it is waited for, and Ctrl-C ends that
        return [(sources[0], _status_of(sources[0]).dead)]
    found = [(source, ask(path_of(source), partial(_status_of, source), SILENT_S)) for source in sources]
    return [(source, answer.result().dead) for source, answer in found if answer.done()]


def _too_many(queues: list[Source], max_attempts: int | None) -> list[str]:
    """Return a hint for each queue that gives tasks up before that many attempts."""
    return [
        f"hint: {path_of(q)} gives a task up after {wording.counted(most, 'attempt')}, not {max_attempts:,}. To allow "
        f"them: fsqueue set {quoted(path_of(q))} max_attempts={max_attempts}"
        for q in queues
        if is_one_queue(q)
        and max_attempts is not None
        and (most := q.settings.max_attempts) is not None
        and most < max_attempts
    ]


def _none_alone(queues: list[Source], tasks_per_command: int | None, max_attempts: int | None) -> list[str]:
    """Return a hint for each queue whose tasks are given up together with the one that crashes their command."""
    if tasks_per_command in (None, 1):
        return []
    what = "hint: if a command fails, all its tasks become dead letters"
    if max_attempts == 1:
        return [f"{what}: --max-attempts 1 lets none be tried again, alone. Allow 2 or more"]
    return [
        f"{what}: {path_of(q)} gives a task up after 1 attempt. To have each tried again, alone: "
        f"fsqueue set {quoted(path_of(q))} max_attempts=2"
        for q in queues
        if is_one_queue(q) and q.settings.max_attempts == 1
    ]


def _not_there(sources: Sequence[Source], upstream: Sequence[Stage]) -> Iterator[str]:
    """Yield a hint for each pattern that no queue of the group matches, and each queue of a group that is not there.

    A queue of a later stage need not be there yet: with `upstream`, only the earlier stages are looked at.
    """
    for source in sources:
        with suppress(fsqueue.FsqueueError):  # the worker finds out, and may have patience
            if (text := no_match(source)) is not None:
                yield f"{text} Queues that come later are taken, too."
            if not upstream and (text := not_there(source, path_of(source))) is not None:
                yield text
    for stage in upstream:
        with suppress(fsqueue.FsqueueError):
            if (text := not_there(stage, f"--upstream {getattr(stage, 'name', '')}")) is not None:
                yield text


def missing_program(command: list[str]) -> bool:
    """Tell whether a command's program is missing. InvalidArgument if the command was quoted as a whole."""
    if "{" in command[0] or shutil.which(command[0]) is not None:
        return False
    check_program(command)
    return True


def _say(event: Event) -> None:
    if event.text:
        complain(event.text)


def _log_json(event: Event) -> None:
    import time

    line = {"at": round(time.time(), 3), "event": event.kind, **({"text": event.text} if event.text else {})}
    try:
        print_json(line | event.fields, err=True)
    except OSError:
        pass


def _summarise(
    report: fsqueue.WorkerReport,
    dead: Iterable[tuple[Source, int]],
) -> None:
    parts = [f"{report.completed:,} completed"] if report.completed else []
    if report.buried:
        attempts = wording.counted(report.buried_attempts, "failed attempt")
        parts.append(f"{report.buried:,} given up after {attempts}")
    if (others := report.failed - report.buried_attempts) > 0:
        more = "other " if report.buried else ""
        parts.append(wording.counted(others, f"{more}failed attempt"))
    if report.spent:
        parts.append(f"{report.spent:,} given up without another attempt")
    parts += [f"{value:,} {name}" for name in ("moved", "released", "lost") if (value := getattr(report, name))]
    if report.unsettled:
        parts.append(f"{report.unsettled:,} begun and not reported: available again when the lease ends")
    if report.unkept:
        parts.append(f"the output of {report.unkept:,} not kept, or not all of it")
    if report.unwritten:
        parts.append("output was lost: no room")
    is_cut_short = report.ended in (
        "signal",
        "max-runtime",
        "job-end",
        "excluded",
        "stopped",
        "away",
    )  # there may be tasks that it left to others
    complain(", ".join(parts) or ("no task was begun" if is_cut_short else "there was nothing to do"))
    for source, letters in dead:
        if letters:
            complain(f"{wording.counted(letters, 'dead letter')} in the {_where_to_look(source)}")


def _where_to_look(source: Source) -> str:
    """Return where dead letters are, and the command that tells more."""
    path = quoted(path_of(source))
    if is_one_queue(source):
        return f"queue. To see why: fsqueue dead list {path}"
    pattern = getattr(source, "pattern", None)
    match = f" --match {quoted(pattern)}" if pattern is not None else ""
    return f"group's queues. To see in which: fsqueue status {path}{match}"
