"""run: a command or a Python function for each task."""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from typing import Any, Literal

import click

import fsqueue
from fsqueue import wording
from fsqueue.worker import Event, Output, check_program

from .common import brief, example, json_option, queues_argument, search_working_directory, worker_option
from .options import DURATION, renamed
from .printing import complain, is_screen, print_json, unguarded
from .progress import Progress

FAILURES, EXCLUDED = 11, 12
"""Exit codes of its own: too many failures in a row; this node takes no more tasks."""


class AfterDashes(click.Command):
    """A command line in which everything after the first `--` is another one."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta["command"] = args[:at], args[at + 1 :]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "Q...", "[-- COMMAND...]"]


number = click.IntRange(min=1)
OUTPUTS = ("group", "line", "none")
"""The values of `--output`."""
AUTO = "auto"


class Processes(click.IntRange):
    """Convert how many tasks to do at a time: a number from 1 on, or `AUTO`."""

    name = "integer|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the number, or `AUTO`."""
        return AUTO if value == AUTO else super().convert(value, param, ctx)


@click.command(
    cls=AfterDashes,
    epilog=example(
        """fsqueue run Q -- ./process {}
fsqueue run Q -j 4 --timeout 10m -- convert {input} -resize 50% {output}
fsqueue run Q -- sh -c 'jq -r .name | xargs ./process'     # the payload on standard input
fsqueue run Q -- sh -c './process "$1" | gzip >"$2"' sh {input} {output}
fsqueue run Q -j 8 --output line --tag -- ./process {}
fsqueue run Q -j 4 --gpus-per-task 1 -- ./train {config}
fsqueue run Q1 Q2 -j 8 --call mypackage.tiles:render --max-runtime 58m"""
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
    "--processes",
    type=Processes(min=1),
    default=1,
    help="Tasks at a time, a process each; auto: one for each processor of the job or machine, or for fewer GPUs [1].",
)
@click.option("--gpus-per-task", type=number, metavar="N",
              help="Show each process N of the visible GPUs, and no other process the same.")  # fmt: skip
@click.option("--threads", type=number, help="Call functions in so many threads of one process instead.")
@click.option("--prefetch", type=number, help="Tasks leased at a time for each process [as many as are quickly done].")
@renamed("--lease", "lease_s", former=["--lease-s"], type=DURATION,
         help="How long a lease holds; renewed while a task is at work [the queue's].")  # fmt: skip
@click.option("--on-lease-lost", type=click.Choice(["kill", "finish"]), default="kill",
              help="What to do about work that was taken over [kill].")  # fmt: skip
@click.option("--timeout", "timeout_s", type=DURATION, help="How long a task may take; then it is ended, and fails.")
@click.option("--sysexits", is_flag=True, help="A command's exit code 75 puts back without blame, 65 buries at once.")
@click.option(
    "--stop-after-failures",
    type=number,
    metavar="N",
    help="Stop when so many attempts in a row have failed [10 before the first success].",
)
@click.option("--exclude-after", type=number, metavar="N",
              help="Take no more tasks on this node when so many in a row have failed on it.")  # fmt: skip
@click.option("--max-tasks", type=number, help="Stop after so many tasks.")
@click.option("--max-runtime", "max_runtime_s", type=DURATION,
              help="Stop after so long; tasks at work then have --grace.")  # fmt: skip
@click.option("--idle-timeout", "idle_timeout_s", type=DURATION, help="Stop after so long with nothing to do.")
@click.option("--forever", is_flag=True, help="Wait for more tasks when the queues are drained.")
@click.option(
    "--grace", "grace_s", type=DURATION, default=10.0, help="How long tasks at work get when it has to stop [10]."
)
@click.option(
    "--patience", "patience_s", type=DURATION, default=600.0, help="How long to wait for a filesystem that fails [10m]."
)
@click.option("--keep-output", type=click.Path(file_okay=False), metavar="DIR",
              help="Keep all that is printed, a new file a task and attempt.")  # fmt: skip
@click.option("--result-dir", type=click.Path(file_okay=False), metavar="DIR",
              help="Where the files FSQUEUE_RESULT are [TMPDIR; in Q for commands with srun or mpirun]")  # fmt: skip
@click.option("--result-stdout", is_flag=True, help="Keep what a command prints on standard output as its result.")
@click.option("--output", type=click.Choice(OUTPUTS),
              help="Pass on what is printed when its attempt ends, line by line, or as it comes "
              "[group for commands side by side, else line].")  # fmt: skip
@click.option("--tag", is_flag=True, help="Begin each line that is passed on with the id of its task.")
@worker_option
@click.option("--log-json", is_flag=True, help="Say what happens in JSON, a line each, on standard error.")
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
    forever: bool,
    result_stdout: bool,
    output: Output | None,
    log_json: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run COMMAND, or call a Python function, for each task of the queues Q, until no task is waiting, delayed or
    leased in them, by any worker.

    '{}' in an argument of COMMAND stands for the payload, '{field}' for a field of it: strings as they are, all else
    as JSON. A task that lacks the field fails; if the first waiting task lacks it, nothing is begun. '{{field}}' stands
    for the text '{field}', and braces around anything but a name stay as they are: '{print $1}', '${name}'. A name may
    hold hyphens and dots: '{tile-id}'. No shell is involved.
    The command also finds the payload as JSON on standard input, and FSQUEUE_PAYLOAD (if at most 100 kB),
    FSQUEUE_TASK_ID, FSQUEUE_ATTEMPT, FSQUEUE_QUEUE, FSQUEUE_TOKEN and FSQUEUE_SLOT in its environment. Small JSON that
    it writes to the file FSQUEUE_RESULT (which does not exist before) is kept in the history. It inherits no open files
    of the caller but the standard streams.

    In 'sh -c SCRIPT' a placeholder becomes part of the script, and a payload can be a command: write
    sh -c 'cmd "$1"' sh {field} instead. A payload may also begin with '-'.

    Exit status 0 completes the task. Any other fails it, with the end of its output as the reason. A failed task is
    tried again after a growing pause, up to the queue's number of attempts. A function is called as f(payload) or
    f(payload, task). Its return value is the result, an exception fails the task, fsqueue.Retry puts it back, and
    fsqueue.Bury makes it a dead letter. Functions run in separate processes; if one dies, only its own task fails.
    Modules are looked for in the working directory first.

    FSQUEUE_SLOT is 0 to JOBS - 1: no two processes at work have the same. With --gpus-per-task each slot has its own
    share of the GPUs that CUDA_VISIBLE_DEVICES, ROCR_VISIBLE_DEVICES, HIP_VISIBLE_DEVICES or ZE_AFFINITY_MASK name
    (without them, of those that nvidia-smi shows). Too few for all processes are refused before a task is leased.

    On a terminal a bar shows how the queues get on, and failures are shown as they happen. The output of commands and
    functions is passed on in whole lines. If several commands run at a time, the output of each is shown when it ends.

    After SIGTERM, SIGUSR1, SIGUSR2, SIGHUP or Ctrl-C the worker begins no more tasks. Tasks at work have --grace to
    end; then they get SIGTERM, and are put back. A second signal puts them back at once. Under Slurm, and with
    --max-runtime, the worker begins no task that, by the times measured so far, is likely to outlast that time and its
    --grace.

    An idle worker looks for tasks less and less often. A new task starts within eight seconds. The worker ends at most
    half a minute after others have drained the queue.

    Exit codes: 0 drained, or stopped as asked for (--max-tasks, --max-runtime, --idle-timeout, the job's end); 9
    drained, but this worker has given tasks up ('fsqueue wait' ends with 9 for dead letters of any run); 7 there was no
    room for what is printed; 11 stopped by --stop-after-failures; 12 by --exclude-after; 2 COMMAND or the function
    cannot be found; 129, 130, 138, 143 stopped by a signal.
    """
    command = ctx.meta.get("command", [])
    if bool(command) + bool(call) + bool(load) != 1:
        raise click.UsageError("Give either a command after '--', or --call, or --load.")
    if command and missing_program(command):
        raise click.UsageError(f"The command '{command[0]}' was not found, or is not executable. No task was touched.")
    script = exposed_script(command)
    if script is not None:
        text = (
            f"hint: in the script {brief(script, 40)!r} each payload becomes part of the program, whatever it holds. "
            "Safer: sh -c 'cmd \"$1\"' sh {field}"
        )
        (_log_json if log_json else _say)(Event("hint", text, {}))
    if not command:
        search_working_directory()
    opened = [fsqueue.Queue(queue, worker) for queue in dict.fromkeys(queues)]
    # What functions print in threads of this process goes past the bar.
    shows = not log_json and options["threads"] is None and is_screen(sys.stderr)
    progress = Progress([str(queue.path) for queue in opened]) if shows else None
    made = fsqueue.Worker(
        opened,
        call,
        command=command,
        load=load,
        processes=jobs,
        until="forever" if forever else "drained",
        result_from_stdout=result_stdout,
        output=output,
        tell=progress.tell if progress is not None else _log_json if log_json else _say,
        pass_on=progress.pass_on if progress is not None else None,
        **options,
    )
    try:
        if progress is not None:
            progress.start(made)
        report = made.run()
        if report.signal is not None:
            ctx.call_on_close(_leave_soon(128 + report.signal).cancel)
    finally:
        if progress is not None:
            progress.close()
    dead = sum(queue.status().dead for queue in opened) if report.signal is None else 0
    summary = report.as_dict() | ({"dead": dead} if report.signal is None else {})
    if log_json:
        _log_json(Event("end", "", summary))
    if as_json:
        print_json(summary)
    if not log_json and not as_json:
        _summarise(report, dead, queues)
    if report.signal is not None:
        raise click.exceptions.Exit(128 + report.signal)
    code = {"failures": FAILURES, "excluded": EXCLUDED, "drained": 9 if report.buried else 0}.get(report.ended, 0)
    code = code or (fsqueue.StorageFull.exit_code if report.unwritten else 0)
    if code:
        raise click.exceptions.Exit(code)


TELL_S = 3.0
"""How long the summary may take once a signal has ended the work."""
SHELLS = ("sh", "bash", "dash", "ash", "ksh", "zsh")
"""Programs that take a script as the argument after `-c`."""
EXPOSED = re.compile(r"(?<!\$)\{(?:[^\W\d]\w*(?:[-.]\w+)*)?\}")
"""Matches what is most likely a payload or a field of it in a script: `${name}` and `{ …; }` belong to the shell."""


def missing_program(command: list[str]) -> bool:
    """Tell whether the program of a command is not there. InvalidArgument if it was quoted as a whole."""
    if "{" in command[0] or shutil.which(command[0]) is not None:
        return False
    check_program(command)
    return True


def exposed_script(command: list[str]) -> str | None:
    """Return the script of a shell in `command` that payloads become part of, if there is one."""
    for at, word in enumerate(command):
        rest = iter(command[at + 1 :] if os.path.basename(word) in SHELLS else ())
        for option in rest:
            if option in ("-o", "+o", "-O", "+O"):
                next(rest, None)  # its argument
            elif option.startswith("-") and not option.startswith("--") and "c" in option:
                script = next(rest, "")
                if EXPOSED.search(script):
                    return script
                break
            elif not option.startswith(("-", "+")):
                break
    return None


def _leave_soon(code: int) -> threading.Timer:
    """End this process in a while, unless that is cancelled. Its output may be a pipe that nobody reads.

    The user has sent a signal to end it, and it holds no task any more.
    """
    timer = threading.Timer(TELL_S, os._exit, (code,))
    timer.daemon = True
    timer.start()
    return timer


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


def _summarise(report: fsqueue.WorkerReport, dead: int, queues: tuple[str, ...]) -> None:
    counts = {name: getattr(report, name) for name in ("completed", "failed", "released", "lost")}
    parts = [f"{value:,} {name}" for name, value in counts.items() if value]
    if report.unkept:
        parts.append(f"the output of {report.unkept:,} not kept, or not all of it")
    if report.unwritten:
        parts.append("output was lost: no room")
    is_cut_short = report.ended in ("max-runtime", "job-end", "excluded")  # there may be tasks that it left to others
    complain(", ".join(parts) or ("no task was begun" if is_cut_short else "there was nothing to do"))
    if dead:
        complain(f"{wording.counted(dead, 'dead letter')} in the queue: 'fsqueue dead list {queues[0]}' says why")
