"""map: a command for each argument of a list. It makes a queue, inserts a task for each argument, and runs them all."""

from __future__ import annotations

import os
import secrets
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import chain, count
from typing import Any, NamedTuple

import click

import fsqueue
from fsqueue.format.wording import counted
from fsqueue.worker import check_command, placeholders

from .common import example, queue_at
from .insert_input import Input
from .insert_options import Asked
from .insert_source import Source
from .options import ATTEMPTS, OneScreen, at_argument, limit
from .printing import complain, json_text, print_json, quoted, say
from .running import AUTO, Processes, missing_program, run
from .targets import is_address

ARGUMENTS, FILE = ":::", "::::"
"""What stands before arguments, and before a file with an argument on each line. GNU parallel has them."""
SEVERAL = (":::", "::::", ":::+", "::::+")
NAME = "fsqueue-map"
"""The queues of the working directory are called so, and numbered."""
TAKEN_OVER = (
    "gpus_per_task", "task_timeout_s", "lease_s", "stop_after_failures", "max_runtime_s", "grace_s", "stdin",
    "result_stdout", "output", "tag", "keep_output", "result_dir", "allow_in_script", "sysexits", "log_json", "as_json",
)  # fmt: skip
"""The options of `run` that `map` has, too. All others are as if they were not given."""


class WithArguments(NamedTuple):
    """A command line behind `--`."""

    command: list[str]
    arguments: list[str] | None
    """None: they are the lines of `file`."""
    file: str


class Mapped(OneScreen):
    """A command line with the command and its arguments after `--`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["typed"] = list(args)
        if "--" in args:
            at = args.index("--")
            args, ctx.meta["mapped"] = args[:at], args[at + 1 :]
        elif not {"-h", "--help"} & set(args):
            first = at_argument(self, args, 0)
            line = [*args[:first], "--", *args[first:]] if first is not None else ["--", "COMMAND", "{}", ":::", "A"]
            raise click.UsageError(f"Write '--' before the command: fsqueue map {' '.join(map(quoted, line))}", ctx)
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "[Q]", "-- COMMAND...", "[::: ARGUMENT... | :::: FILE]"]


def _options_of_run() -> list[click.Parameter]:
    return [one for one in run.params if one.name in TAKEN_OVER]


@click.command(
    "map",
    cls=Mapped,
    epilog=example(
        """fsqueue map -- gzip {} ::: *.log
find photos -name '*.tif' -print0 | fsqueue map -0 -j 4 -- convert {} -resize 50% {.}.jpg
fsqueue map /scratch/me/tiles --max-attempts 3 --task-timeout 10m -- ./render {} :::: tiles.txt
fsqueue map -- gzip ::: *.log                                # no placeholder: {} is added
fsqueue map --dry-run -- ./process --in {} --out {/.}.out ::: in/*.dat
seq 1000 | fsqueue map --result-stdout -- factor {} && fsqueue results fsqueue-map-1 factors.csv"""
    ),
)
@click.argument("queue", metavar="[Q]", required=False)
@click.option("-0", "--null", is_flag=True, help="Each item of the file, or of standard input, ends with NUL.")
@click.option("-j", "--jobs", type=Processes(min=1), default=AUTO, metavar="N|auto",
              help="Tasks at a time, a process each. auto: one for each processor of the job or machine, or for fewer "
              "GPUs [auto].")  # fmt: skip
@click.option(
    "--max-attempts",
    type=ATTEMPTS,
    metavar="N",
    help="Attempts before a task becomes a dead letter, or 'none' [1]. A Q that was there has its own.",
)
@click.option("--dry-run", is_flag=True, help="Print the command of each argument, and do nothing else.")
@click.pass_context
def map_(
    ctx: click.Context,
    /,
    queue: str | None,
    null: bool,
    jobs: int | str,
    max_attempts: int | str | None,
    dry_run: bool,
    **options: Any,
) -> None:
    """Run COMMAND for each ARGUMENT, for each line of FILE, or for each line of standard input.

    Each argument becomes a task of a queue; '{}' in COMMAND stands for it. If COMMAND has no placeholder, '{}' is added
    at its end; with --stdin, COMMAND finds the argument as JSON on standard input instead. 'fsqueue help run' lists the
    placeholders: '{.}', '{/}', '{//}', '{/.}' and others.

    Of a file and of standard input, blank lines, a CR at the end of a line, and with -0 empty items count for nothing.
    An empty ARGUMENT after ':::' is an argument.

    Without Q, a queue is made in the working directory: fsqueue-map-1, or the next number that is free. If Q is not
    there, it is made. If it is there, it must have no task that waits or is leased, since COMMAND would get those, too.
    All arguments are inserted, or none. The queue stays, also without tasks if inserting failed: it has the history and
    the results, and another host may help with 'fsqueue run Q -- COMMAND'.

    A task has one attempt, unless --max-attempts allows more. If all fail, it becomes a dead letter. The last line says
    how to try those tasks again, or how to go on after Ctrl-C, with the same options.

    Everything else is as for 'fsqueue run': output is shown command by command, no shell is involved, and COMMAND has
    an empty standard input. Exit codes are those of 'fsqueue run': 0 if all tasks were completed, 9 if some became dead
    letters.
    """
    given = _given(ctx, null)
    command, gives_stdin = given.command, options["stdin"]
    check_command(command, options["allow_in_script"])
    if missing_program(command):
        raise click.UsageError(f"The command '{command[0]}' was not found, or is not executable. No queue was made.")
    if not gives_stdin and not placeholders.hand_over(command):
        command = [*command, "{}"]
    read = None if given.arguments is not None else _source(given.file, null)
    payloads: Iterator[Any] = map(_payload, given.arguments or ()) if read is None else read.until_end()
    with nullcontext() if read is None else read.interruptible():
        first = list(_until_first(payloads, read))
        if not first:
            complain("there is no argument, so there is nothing to do")
            return
        _check_first(command, first[0])
        everything = chain(first, payloads)
        if dry_run:
            _show(command, everything, gives_stdin, options["as_json"])
            _refuse_broken(read)
            return
        path, q, is_new = _queue(queue, 1 if max_attempts is None else limit(max_attempts))
        part = _insert(q, path, is_new, everything, read)
    if options["as_json"] or options["log_json"]:
        print_json({"event": "inserted", "queue": path, "inserted": part.tasks}, err=True)
    else:
        complain(f"{counted(part.tasks, 'task')} in the queue {path}")
    again = _run_again(ctx, path, command)
    try:
        # Its defaults, for what has no option here.
        with run.make_context("run", [path, "--", *command], parent=ctx) as inner:
            limited = None if is_new or max_attempts is None else limit(max_attempts)
            inner.params.update(options | {"jobs": jobs, "max_attempts": limited})
            inner.meta["command"] = command
            run.invoke(inner)
    finally:
        if not (options["as_json"] or options["log_json"]):
            _say_what_is_left(q, quoted(path), again, None if is_new else part)


def _given(ctx: click.Context, null: bool) -> WithArguments:
    """Return the command and its arguments. UsageError."""
    words: list[str] = ctx.meta["mapped"]
    at = next((number for number, word in enumerate(words) if word in SEVERAL), len(words))
    command, mark, rest = words[:at], words[at : at + 1], words[at + 1 :]
    if not command:
        raise click.UsageError("There is no command after '--'. Write: fsqueue map -- COMMAND {} ::: A B")
    if more := [word for word in (*mark, *rest) if word in SEVERAL][1:] or [word for word in mark if word[-1] == "+"]:
        raise click.UsageError(
            f"'{more[0]}' would combine two lists, and there is one list here. No queue was made. Write the "
            "combinations into a table: fsqueue insert Q --csv FILE. Then: fsqueue run Q -- COMMAND {a} {b}"
        )
    if mark == [ARGUMENTS] and null:
        raise click.UsageError(
            f"-0 is for the items of a file or of standard input, and the arguments stand after '{ARGUMENTS}'. Leave "
            "one of both out. No queue was made."
        )
    if mark == [ARGUMENTS]:
        return WithArguments(command, rest, "")
    if mark == [FILE] and len(rest) != 1:
        raise click.UsageError(f"'{FILE}' takes one file, not {len(rest)}. Several: cat A B | fsqueue map -- COMMAND")
    if not mark and sys.stdin.isatty():
        raise click.UsageError(
            "There are no arguments. Write them after ':::', name a file after '::::', or give them on standard input."
        )
    return WithArguments(command, None, rest[0] if mark else "-")


def _source(file: str, null: bool) -> Source:
    """Return the lines, or items, of a file. InvalidArgument if it cannot be read."""
    asked = Asked(
        files=(file,), lines=not null, null=null, csv=False, tsv=False, delimiter=None, text=(), text_all=False,
        given=(), skip_bad=False, priority=None, key=None, new_by=None, commit=NAME, batch_tasks=None,
        from_command=False,
    )  # fmt: skip
    read = Input(fsqueue.Settings().task_bytes_max)
    source = Source(read, asked, asked.format(read), None)
    source.check_files()
    return source


def _payload(argument: str) -> str | bytes:
    """Return an argument as it was typed: bytes if it is no text, as a file name may be."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return os.fsencode(argument)
    return argument


def _until_first(payloads: Iterator[Any], read: Source | None) -> Iterator[Any]:
    """Yield the first payload, if there is one."""
    for payload in payloads:
        yield payload
        return
    _refuse_broken(read)


def _refuse_broken(read: Source | None) -> None:
    """Raise if a line of the input was none, or if a signal came: nothing is inserted then."""
    if read is None or not read.broken_off:
        return
    if read.fault is None:
        complain("interrupted: nothing was inserted")
        raise click.exceptions.Exit(128 + (read.signal or signal.SIGINT))
    raise fsqueue.InvalidArgument(f"{read.fault}. Nothing was inserted: correct it, and repeat the command.")


def _check_first(command: Sequence[str], payload: Any) -> None:
    """Refuse a command that the first argument does not suit. UsageError."""
    try:
        placeholders.check_filled(placeholders.fill(command, payload, ""))
    except placeholders.Unfilled as error:
        raise click.UsageError(f"COMMAND does not suit the first argument: {error}. No queue was made.") from None


def _show(command: Sequence[str], payloads: Iterator[Any], gives_stdin: bool, as_json: bool) -> None:
    """Print the command of each argument as a shell takes it."""
    for payload in payloads:
        words = [word.decode(errors="backslashreplace") for word in placeholders.fill(command, payload, "TASK")]
        if as_json:
            print_json({"command": words})
        else:
            stdin = f" <<<{shlex.quote(json_text(payload))}" if gives_stdin else ""
            say(shlex.join(words) + stdin)


def _numbered(max_attempts: int | None) -> tuple[str, fsqueue.Queue]:
    """Make a queue in the working directory, and return its name. Two processes never get the same one."""
    for number in count(1):
        name = f"{NAME}-{number}"
        with suppress(fsqueue.QueueExists):
            return name, fsqueue.Queue.create(name, max_attempts=max_attempts)
    raise AssertionError  # there is always another number


def _queue(path: str | None, max_attempts: int | None) -> tuple[str, fsqueue.Queue, bool]:
    """Return the path, the queue, and whether it was made just now.

    InvalidArgument if it has tasks that are not done.
    """
    if path is None:
        return *_numbered(max_attempts), True
    if is_address(path):
        raise click.UsageError(
            f"{path} is an address, and map makes a queue on a filesystem. Nothing was done. For a gateway's queue: "
            f"fsqueue insert {quoted(path)} --lines. Then: fsqueue run {quoted(path)} -- COMMAND {{}}"
        )
    try:
        q = queue_at(path)
    except fsqueue.QueueNotFound:
        return path, fsqueue.Queue.create(path, max_attempts=max_attempts), True
    if undone := q.status().remaining:
        raise fsqueue.InvalidArgument(
            f"{path} has unfinished tasks ({undone:,}), and COMMAND would get them, too. Nothing was inserted. To go "
            f"on with them: fsqueue run {quoted(path)} -- COMMAND. Or name another queue."
        )
    return path, q, False


def _insert(
    q: fsqueue.Queue, path: str, is_new: bool, payloads: Iterator[Any], read: Source | None
) -> fsqueue.CommitPart:
    """Insert all, or nothing, and return what was inserted.

    A queue that was made for them stays if this fails, and is named: another process may have inserted into it, and
    would lose its tasks if it was deleted.
    """
    commit = q.commit(f"map-{secrets.token_hex(8)}")
    try:
        part = commit.stage(payloads)
        _refuse_broken(read)
        commit.publish([part])
    except BaseException:
        with suppress(fsqueue.FsqueueError):
            commit.discard()
        if is_new:
            complain(f"the queue {path} was made, and stays. To look: fsqueue status {quoted(path)}")
        raise
    return part


def _run_again(ctx: click.Context, path: str, command: Sequence[str]) -> str:
    """Return the command line that goes on with the tasks of the queue, with the options that `run` has, too."""
    typed: list[str] = ctx.meta["typed"]
    values, _, given = ctx.command.make_parser(ctx).parse_args(typed[: typed.index("--")])
    of_run = {option.name for option in run.params}
    words = [] if "jobs" in values else ["-j", AUTO]
    for option in dict.fromkeys(given):
        if option.name in values and option.name in of_run and isinstance(option, click.Option):
            words += [option.opts[0]] if option.is_flag else [option.opts[0], values[option.name]]
    return " ".join(map(quoted, ["fsqueue", "run", path, *words, "--", *command]))


def _say_what_is_left(q: fsqueue.Queue, path: str, again: str, part: fsqueue.CommitPart | None) -> None:
    """Name the queue, and say last what to type for what is not completed. Says nothing if the queue does not answer.

    `part`: what was inserted. None: the queue was made for it, and has no other tasks.
    """
    with suppress(fsqueue.FsqueueError, OSError):
        complain(f"inputs beside results: fsqueue results {path}")
        status = q.status()
        if status.remaining:
            complain(f"to go on: {again}")
        elif status.dead and (which := _given_up(q, part)) is not None:
            complain(f"to try again what was given up: fsqueue retry {path}{which} && {again}")


def _given_up(q: fsqueue.Queue, part: fsqueue.CommitPart | None) -> str | None:
    """Return the condition by which `retry` finds the dead letters of a part, "" for all. None: there are none."""
    if part is None:
        return ""
    since: float | None = None
    has_others = False
    for letter in q.dead():
        if letter.id < part.first:  # ids are in the order of time
            has_others = True
        elif (at := letter.as_result().inserted_at) is not None:
            since = at if since is None else min(since, at)
    if since is None:
        return None
    # The command is not meant for what an earlier one gave up.
    return f" --where {quoted(f'inserted_at>={since}')}" if has_others else ""


map_.params += _options_of_run()
