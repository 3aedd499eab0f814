"""run: a command for each task."""

from __future__ import annotations

import shutil

import click

import fsqueue
from fsqueue.worker import CommandRunner

from .common import example, json_option, print_json, queue_argument, seconds, worker_option
from .main import complain


@click.command(
    epilog=example(
        """fsqueue run Q -- ./process {}
fsqueue run Q -j 4 --timeout 600 -- convert {input} -resize 50% {output}
fsqueue run Q -- sh -c 'jq -r .name | xargs ./process'     # the payload on standard input"""
    ),
)
@queue_argument
@click.argument("command", metavar="-- COMMAND...", nargs=-1, required=True, type=click.UNPROCESSED)
@click.option("-j", "--jobs", type=click.IntRange(min=1), default=1, help="Commands that run at a time [1].")
@click.option("--lease-s", type=seconds, help="Seconds a lease holds; renewed while the command runs [the queue's].")
@click.option(
    "--timeout", "timeout_s", type=seconds, help="Seconds after which a command is ended, and its task fails."
)
@click.option(
    "--grace",
    "grace_s",
    type=seconds,
    default=10.0,
    help="Seconds from SIGTERM to SIGKILL, for commands that have to end [10].",
)
@worker_option
@click.option("--forever", is_flag=True, help="Wait for more tasks when the queue is drained.")
@json_option
def run(
    queue: str,
    command: tuple[str, ...],
    jobs: int,
    lease_s: float | None,
    timeout_s: float | None,
    grace_s: float,
    worker: str | None,
    forever: bool,
    as_json: bool,
) -> None:
    """Run COMMAND for each task of Q, until nothing is waiting, delayed or leased, by anybody.

    '{}' in an argument stands for the payload, '{field}' for a field of it (only where the payload is an object
    that has the field): strings as they are, all else as JSON. No shell is involved. The command also finds the
    payload as JSON on standard input, and FSQUEUE_PAYLOAD (if at most 100 kB), FSQUEUE_TASK_ID, FSQUEUE_ATTEMPT,
    FSQUEUE_QUEUE and FSQUEUE_TOKEN in its environment.

    Exit status 0 completes the task; anything else fails it, with the end of its standard error as the reason, and
    it is tried again, up to the queue's number of attempts. Ctrl-C or SIGTERM: the commands get SIGTERM, later
    SIGKILL, and their tasks are put back; a second Ctrl-C kills at once.

    Exit codes: 0 drained; 9 drained, but the queue has dead letters; 2 COMMAND cannot be executed; 130, 143 stopped
    by a signal.
    """
    program = command[0]
    if "{" not in program and shutil.which(program) is None:
        raise click.UsageError(f"The command '{program}' was not found, or is not executable. No task was touched.")
    with fsqueue.Queue(queue, worker) as q:
        runner = CommandRunner(
            q,
            command,
            jobs=jobs,
            lease_s=lease_s,
            timeout_s=timeout_s,
            until="forever" if forever else "drained",
            grace_s=grace_s,
            tell=complain,
        )
        report = runner.run()
        dead = q.status().dead if report.signal is None else 0
    if as_json:
        print_json(report.as_dict() | {"dead": dead} if report.signal is None else report.as_dict())
    else:
        parts = [f"{value:,} {name}" for name, value in report.as_dict().items() if value and name != "signal"]
        complain(", ".join(parts) or "there was nothing to do")
        if dead:
            complain(f"{dead:,} dead letter(s) in the queue: 'fsqueue dead list {queue}' says why")
    if report.signal is not None:
        raise click.exceptions.Exit(128 + report.signal)
    if dead:
        raise click.exceptions.Exit(9)
