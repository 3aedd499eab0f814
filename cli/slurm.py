"""slurm: submit an array job of workers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import click

import fsqueue

from .common import example, json_option
from .options import names_of
from .printing import complain, print_json, quoted, say
from .running import run

SPARE_S = 30
"""How much earlier than the grace, in seconds, workers hear of the end of their job."""
SIGNAL_S_MAX = 65_535
"""The most that sbatch takes."""
NAME_CHARS_MAX = 60
FLAGS = {
    "-H", "--hold", "-I", "--immediate", "-k", "--no-kill", "-O", "--overcommit", "-s", "--oversubscribe", "-Q",
    "--quiet", "-v", "--verbose", "-W", "--wait", "--contiguous", "--exclusive", "--requeue", "--no-requeue",
    "--parsable", "--reboot", "--spread-job", "--test-only", "--use-min-nodes", "--get-user-env", "--ignore-pbs",
    "--nice", "--propagate",
}  # fmt: skip
"""Options of sbatch that take no value, or none in a word of its own."""
NOT_HERE = ("--wrap", "--usage", "--version", "-V")
"""Options of sbatch that make no sense here."""


class Submission(click.Command):
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
        """The queues, and the words that are options of its own, of `run`, of sbatch."""
        mine = {name for option in self.params for name in names_of(option)}
        theirs = {
            name: isinstance(option, click.Option) and not option.is_flag
            for option in run.params
            for name in names_of(option)
        }
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
                elif not (own or for_run or for_sbatch):
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
            elif name in theirs:
                for_run.append(word)
                if theirs[name] and word == name:
                    for_run += _next(rest, name)
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
fsqueue slurm Q --array 0-99%20 -t 4:00:00 -p short -c 4 -j 4 --exclude-after 5 -- ./process {}
fsqueue slurm Q --array 0-9 -t 60 --call mypackage.tiles:render --print
job=$(fsqueue slurm Q --array 0-99 -t 60 --requeue -- ./process {})
sbatch --dependency=afterany:$job --wrap 'fsqueue wait Q && ./assemble'"""
    ),
)
@click.option("--print", "only_print", is_flag=True, help="Submit nothing; print what would be, as a shell script.")
@click.option("--allow-empty", is_flag=True, help="Submit even if there is nothing to do yet.")
@json_option
@click.pass_context
def slurm(ctx: click.Context, only_print: bool, allow_empty: bool, as_json: bool) -> None:
    """Submit a Slurm job whose elements are workers, and print its id: 'fsqueue run Q -- COMMAND', many times.

    Options that 'fsqueue run' knows go to the workers; all others to sbatch, as they are. Have more tasks than
    elements: a worker takes one task after the other, and begins none that would not end before its job does.

    Unless --signal says otherwise, workers get SIGUSR1 30 s and their --grace before the time limit: what they cannot
    finish within the grace they put back. At SIGTERM (scancel, preemption, requeueing, the limit itself) they put
    everything back at once, since Slurm sends that to the commands, too. Nothing has to run afterwards.

    A dependent job should wait with 'fsqueue wait', as below: elements of the array may end early, or find others'
    dead letters (exit code 9), which Slurm calls failed. 'afterok' would wait for ever then.

    Exit codes: 3 there is nothing to do (--allow-empty); 1 sbatch is not here, or has refused.
    """
    queues, for_run = ctx.meta["queues"], ctx.meta["run"]
    if not queues:
        raise click.UsageError("Missing argument 'Q...'. Queues come first: fsqueue slurm Q --array 0-9 -- COMMAND")
    if not ctx.meta["command"] and not {word.partition("=")[0] for word in for_run} & {"--call", "--load"}:
        raise click.UsageError("There is nothing to run. Give a command after '--', or --call.")
    with run.make_context("fsqueue slurm", list(for_run)) as checked:
        options = checked.params
    opened = [fsqueue.Queue(queue) for queue in queues]
    if not allow_empty and not options.get("forever") and all(queue.status().remaining == 0 for queue in opened):
        complain("there is nothing to do: insert tasks first, or let workers wait for them (--forever, --allow-empty)")
        raise click.exceptions.Exit(3)
    paths = [str(queue.path) for queue in opened]
    script = _script([*paths, *for_run[len(queues) :]])
    sbatch = ["sbatch", "--parsable", *_defaults(ctx.meta["sbatch"], paths[0], options), *ctx.meta["sbatch"]]
    if not only_print:
        _submit(sbatch, script, as_json)
    elif as_json:
        print_json(_described(sbatch, script))
    else:
        say(*f"{' '.join(map(quoted, sbatch))} <<'END'\n{script}END".split("\n"))


def _defaults(given: list[str], path: str, options: dict[str, Any]) -> list[str]:
    """What sbatch is told unless the user has said it."""
    names = {word.partition("=")[0] if word.startswith("--") else word[:2] for word in given}
    defaults = []
    if not names & {"-J", "--job-name"}:
        name = "".join(character for character in path.rpartition("/")[2] if character.isprintable())
        defaults.append(f"--job-name=fsqueue-{name[:NAME_CHARS_MAX]}")
    if "--signal" not in names:
        early = min(int(options.get("grace_s") or 0) + SPARE_S, SIGNAL_S_MAX)
        defaults.append(f"--signal=B:USR1@{early}")
    return defaults


def _script(arguments: list[str]) -> str:
    """The batch script. The worker takes the shell's place, so that Slurm's signals reach it."""
    worker = [sys.executable, "-P", "-m", __package__ or "fsqueue_cli", "run", *arguments]
    return f"#!/bin/bash\nexec {' '.join(map(quoted, worker))}\n"


def _submit(sbatch: list[str], script: str, as_json: bool) -> None:
    """Submit, and print the job's id as soon as it is known: with --wait, sbatch stays."""
    try:
        process = subprocess.Popen(sbatch, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
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
            process.stdin.write(os.fsencode(script))
            process.stdin.close()
        except BrokenPipeError:
            pass  # it has refused already
        job, _, cluster = process.stdout.readline().decode(errors="replace").strip().partition(";")
        if job and as_json:
            print_json({"job": job, "cluster": cluster or None, **_described(sbatch, script)})
        elif job:
            say(job)
        sys.stdout.flush()
        status = process.wait()
    if status and not job:
        complain(f"sbatch has refused the job (exit status {status}); it said why above")
        raise click.exceptions.Exit(1)
    if status:
        raise click.exceptions.Exit(status if 0 < status < 256 else 1)


def _described(sbatch: list[str], script: str) -> dict[str, Any]:
    """What is submitted, as JSON can hold it: arguments may be any bytes."""
    return {"sbatch": [_text(word) for word in sbatch], "script": _text(script)}


def _text(value: str) -> str:
    return os.fsencode(value).decode(errors="replace")
