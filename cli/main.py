"""Define the `fsqueue` command: its help, its commands, and how an error becomes a line and an exit code.

A command's module is imported only when the command is called. (`entry` is what the system starts.)
"""

from __future__ import annotations

import builtins
import importlib
import keyword
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import click

from . import printing, process
from .printing import complain, silence_stdout

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

GROUPS = {
    "Tasks and workers": {
        "map": ("mapping", "Run a command for each argument, file name or line, and end."),
        "create": ("queues", "Create a queue."),
        "insert": ("inserting", "Insert tasks: JSON Lines, tables, lists, what a command prints."),
        "run": ("running", "Run a command, or a Python function, for each task."),
        "slurm": ("slurm", "Submit an array job of workers to Slurm."),
        "pbs": ("pbs", "Submit a script of workers to PBS that replace themselves."),
        "lsf": ("lsf", "Submit a script of workers to LSF that replace themselves."),
        "sge": ("sge", "The same for Grid Engine."),
        "spark": ("spark", "Queues and Spark: seed, audit, report, drain, requeue."),
        "import": ("importing", "Insert what 'export' has printed, or a FileQueue's tasks."),
    },
    "What became of them": {
        "status": ("watching", "Count the tasks; rates, time left, failures; --watch."),
        "wait": ("watching", "Wait until the queue is drained."),
        "ls": ("looking", "List tasks, or the queues of a group."),
        "show": ("looking", "Show all about one task, with its history."),
        "results": ("results", "Inputs beside results: CSV, JSON Lines or Parquet."),
        "dead": ("dead", "List, retry or purge dead letters: tasks that were given up."),
        "workers": ("workers", "List workers: what each holds, whether it is alive."),
        "serve": ("serving", "Serve queues over HTTP: for other hosts and a browser."),
    },
    "To change what is to be done": {
        "retry": ("results", "Insert dead letters again, or completed tasks."),
        "cancel": ("leases", "Cancel waiting tasks."),
        "change": ("changing", "Change the priority or the time of waiting tasks."),
        "export": ("exporting", "Print waiting tasks as JSON Lines, for import."),
        "cp": ("exporting", "Copy waiting tasks into another queue, once."),
        "mv": ("moving", "Move waiting tasks to another queue."),
        "barrier": ("barriers", "Begin the next stage once queues of a group are drained."),
        "pause": ("queues", "Keep all workers from leasing tasks, until resume."),
        "resume": ("queues", "End a pause."),
        "release-all": ("leases", "Take leases away: all, or those of a worker, host or job."),
        "purge": ("queues", "Drop all tasks, keep the settings."),
        "delete": ("queues", "Delete a queue."),
    },
    "Leases, for scripts": {
        "lease": ("leases", "Lease tasks, and print their tokens."),
        "complete": ("leases", "Complete leased tasks."),
        "renew": ("leases", "Extend leases."),
        "release": ("leases", "Put leased tasks back."),
        "fail": ("leases", "Report failed attempts, to be tried again."),
        "bury": ("leases", "Make leased tasks dead letters at once."),
        "update": ("updating", "Change tasks in several queues of a group, all or nothing."),
    },
    "Upkeep": {
        "set": ("queues", "Change settings of a queue in use, or show them."),
        "gc": ("queues", "Clean up a queue: leftovers, old history, trash."),
        "doctor": ("doctor", "Check whether a mount is fit for a queue."),
        "fsck": ("fsck", "Check all that a queue has on disk; --repair mends it."),
    },
    "Help and laboratory": {
        "help": ("main", "Print all about a command, or about fsqueue."),
        "completion": ("main", "Print a completion script for bash, zsh or fish."),
        "bench": ("bench", "Measure what a queue does on your filesystem."),
        "simulate": ("simulating", "Simulate a relaxed priority queue."),
    },
}
"""The commands by what they are for: the module that has each (as an attribute of the same name, with `_` for `-`), and
its line in the help."""
COMMANDS = {name: command for commands in GROUPS.values() for name, command in commands.items()}

FIRST = """\
Example:
  fsqueue create /scratch/me/tiles
  seq 1000 | fsqueue insert /scratch/me/tiles
  fsqueue run /scratch/me/tiles -j 4 -- ./process {}
  fsqueue status /scratch/me/tiles"""
MORE = """\
'fsqueue COMMAND --help' shows a command on one screen, 'fsqueue help COMMAND'
all about it. 'fsqueue help' has the exit codes, durations and --json, too."""

EPILOG = f"""\b
{FIRST}

\b
Durations are seconds (90, 1.5), units (5m, 1h30m, 7d) or clocks (1:00:00, 2-12:00:00).

\b
--json prints JSON Lines: an object a line. Commands that list tasks or findings (ls,
results, dead list, lease, fsck) print a line for each, all others one for each queue,
or one in all.

\b
Exit codes:
  0    done
  1    an error, said in a sentence
  2    wrong use, or a bad line of input
  3    nothing to do: no task is available (lease), changed, moved, to import, or left (slurm, pbs, lsf, sge)
  4    a lease is lost
  5    there is no such queue
  6    update: a lease was lost, or others were in the way; nothing was done
  7    no room is left (disk, inodes, quota)
  8    the filesystem is unsafe for a queue
  9    drained, but there are dead letters
  10   fsck has findings
  11   run: too many failures in a row
  12   run: this node takes no more tasks
  13   there is no such task
  14   a task is larger than the queue accepts
  15   wait: nobody worked for the time of --no-workers-timeout
  124  a timeout ran out, as of timeout(1)
  130  ended by Ctrl-C (143: by SIGTERM; 128 + N by signal N)
  141  the reader of the output went away
"""


class LazyGroup(click.Group):
    """Knows the names of its commands without importing them, and says errors in one line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module("." + COMMANDS[cmd_name][0], __package__)
        name = cmd_name.replace("-", "_")
        is_taken = name in vars(builtins) or keyword.iskeyword(name)
        command: click.Command = getattr(module, f"{name}_" if is_taken else name)
        if sys.flags.optimize > 1:
            _restore_help(command)
        process.command_begins()  # all that may be long in loading is loaded
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, COMMANDS))
        for title, commands in GROUPS.items():
            lines = [f"  {name:<{width}}  {short}" for name, (_, short) in commands.items()]
            formatter.write("\n".join(["", f"{title}:", *lines, ""]))

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the commands and an example; `fsqueue help` writes the rest, too."""
        self.format_usage(ctx, formatter)
        self.format_help_text(ctx, formatter)
        self.format_commands(ctx, formatter)
        formatter.write("\n".join(["", FIRST, "", MORE, ""]))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [
            CompletionItem(name, help=short) for name, (_, short) in COMMANDS.items() if name.startswith(incomplete)
        ]

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from difflib import get_close_matches

            from . import habits

            if args[0] in habits.COMMANDS:
                ctx.fail(f"No such command '{args[0]}'. {habits.COMMANDS[args[0]]}")
            near = get_close_matches(args[0], COMMANDS, 1)
            hint = f" Did you mean '{near[0]}'?" if near else " 'fsqueue --help' lists the commands."
            ctx.fail(f"No such command '{args[0]}'.{hint}")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **options: Any) -> Any:
        if "_FSQUEUE_COMPLETE" in os.environ:  # a shell reads it, and click writes bytes for that
            return super().main(*args, **options)
        with printing.guarded():
            return super().main(*args, **options)

    def make_context(self, *args: Any, **extra: Any) -> click.Context:
        with errors_as_lines():  # --help and --version print, too
            return super().make_context(*args, **extra)

    def invoke(self, ctx: click.Context) -> Any:
        with errors_as_lines():
            with printing.logging_escaped():
                result = super().invoke(ctx)
            sys.stdout.flush()
            if code := printing.unprinted_exit(ctx):
                raise click.exceptions.Exit(code)
            return result


def _restore_help(command: click.Command) -> None:
    """Read the help of a command, and of those below it, from the source. `python -OO` leaves docstrings out."""
    import ast
    import inspect
    import textwrap

    if isinstance(command, click.Group):
        for inner in command.commands.values():
            _restore_help(inner)
    if command.callback is not None and not command.help:
        with suppress(OSError, TypeError):  # an installation without sources
            [function] = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(command.callback)))).body
            if isinstance(function, ast.FunctionDef):
                command.help = ast.get_docstring(function)


@contextmanager
def errors_as_lines() -> Iterator[None]:
    """Print an error of the block as one line, and end with its exit code. click's own errors pass."""
    try:
        yield
    except click.UsageError as error:
        from . import habits

        raise habits.explained(error) from None
    except (click.ClickException, click.exceptions.Exit, click.Abort):
        raise
    except KeyboardInterrupt:
        process.leave_at_once()
        complain("interrupted")
        raise click.exceptions.Exit(130) from None
    except BrokenPipeError:
        silence_stdout()
        raise click.exceptions.Exit(printing.GONE_EXIT) from None
    except Exception as error:  # the one place where an error becomes a line
        message, code = explain(error)
        complain(message)
        silence_stdout()
        raise click.exceptions.Exit(code) from None


def explain(error: Exception) -> tuple[str, int]:
    """Return the sentence and the exit code for `error`."""
    if os.environ.get("FSQUEUE_TRACEBACK"):
        import traceback

        traceback.print_exc()
    code = getattr(error, "exit_code", None)
    if isinstance(code, int):  # FsqueueError: not imported for this, since most commands that fail have it loaded
        return str(error), code
    if isinstance(error, OSError):
        from fsqueue.errors import FULL, from_os_error

        if error.errno in FULL:
            full = from_os_error(error, "writing")
            return str(full), full.exit_code
        return f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}", 1
    if type(error).__module__.partition(".")[0] in ("pyspark", "py4j"):
        said = [line.strip() for line in str(error).splitlines() if line.strip()]
        return f"Spark: {said[0] if said else type(error).__name__}", 1
    if isinstance(error, MemoryError):
        return "out of memory", 1
    if isinstance(error, RuntimeError) and str(error) == "can't start new thread":  # as Python says it
        return (
            "The system allows no further thread. Raise the limit of processes (ulimit -u, or that of the job or "
            "container).",
            1,
        )
    return f"internal error, please report it: {type(error).__name__}: {error} (FSQUEUE_TRACEBACK=1 shows where)", 1


def _print_version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        import fsqueue

        printing.say(f"fsqueue {fsqueue.__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version, help="Show the version."
)
def cli() -> None:
    """A task queue that is a directory on a shared filesystem.

    A queue is named by its path, also written fq://path.
    """


@click.command(
    "help",
    epilog="""\b
Example:
  fsqueue help run
  fsqueue help dead list
  fsqueue help | grep Durations""",
)
@click.argument("words", metavar="[COMMAND]...", nargs=-1)
@click.pass_context
def help_(ctx: click.Context, words: tuple[str, ...]) -> None:
    """Print all about a command, on a terminal through a pager ($PAGER, else less).

    Without a COMMAND: all commands by theme, the exit codes, and what durations and --json are. 'man fsqueue-run' shows
    the same where the manual pages were installed.
    """
    from . import short_help

    top = ctx.find_root()
    found, command = top, top.command
    for word in words:
        if not isinstance(command, click.Group):
            raise click.UsageError(f"'{found.command_path}' has no commands below it, so '{word}' is none.")
        _, below, _ = command.resolve_command(found, [word])
        assert below is not None  # else that was an error
        command, found = below, click.Context(below, found, info_name=word)
    printing.say_in_pages(short_help.whole(command, found))


@click.command(
    epilog="""\b
Example:
  fsqueue completion bash > ~/.local/share/bash-completion/completions/fsqueue
  fsqueue completion zsh  > ~/.zfunc/_fsqueue     # with 'fpath+=~/.zfunc' before compinit in ~/.zshrc
  fsqueue completion fish > ~/.config/fish/completions/fsqueue.fish"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print a completion script for your shell. Store it as in the example, and start a new shell."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    printing.say(*kind(cli, {}, "fsqueue", "_FSQUEUE_COMPLETE").source().split("\n"))
