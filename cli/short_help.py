"""The help of a command on one screen, and all of it.

Both are made from the same source: the options, the docstring and the examples of the command. What a long command
shows first is chosen here, by option names. `fsqueue help COMMAND` and the manual pages (scripts/man-pages) have the
rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from textwrap import wrap
from typing import NamedTuple

import click

LINES_MAX = 45
"""Maximum number of lines of `fsqueue COMMAND --help`, 80 columns wide."""
COLUMNS_MAX = 80
EXAMPLES_MAX = 3
_NAMES_MAX = 24
"""Widest column of option names. A longer name moves its own text to the right."""


class Short(NamedTuple):
    """What a long command shows on one screen."""

    text: str
    themes: Mapping[str, Mapping[str, str]]
    """The options of each theme, by their longest names. An empty text stands for the first sentence of the option's
    own help. Options that are in no theme are named in the last lines."""


SHORT = {
    "create": Short(
        "Create the queue Q, a directory; or with --group a group of queues, which come into being when the first "
        "task is inserted.",
        {
            "Attempts and leases": {
                "--max-attempts": "Attempts before a task is given up, or 'none' [5].",
                "--lease": "",
                "--backoff": "First and longest pause between attempts [1 1h].",
                "--keep-payloads": "Longest payload to keep of a completed task [1024].",
            },
            "What is kept, and how safely": {
                "--durability": "What is synced to disk.",
                "--no-history": "Forget completed tasks, with their results, at once.",
                "--max-batch-tasks": "Most tasks in one file [1024].",
                "--max-task-bytes": "",
                "--shards": "Subdirectories that the files spread over [64].",
            },
            "The command": {
                "--group": "Create a group of queues, with these settings.",
                "--exist-ok": "",
                "--allow-unsafe": "Create it even on a mount known to be unfit.",
                "--json": "",
            },
        },
    ),
    "import": Short(
        "Insert tasks into the queue Q, each once, and print how many are new: those of FILE, which 'fsqueue export' "
        "has printed ('-': standard input), or those of a FileQueue. The command may be killed and repeated. "
        "Exit code 3: FILE has no task.",
        {
            "A FileQueue of python-task-queue": {
                "--from-filequeue": "In place of FILE: a FileQueue (fq://DIR).",
                "--wait": "",
                "--take-leased": "Take leased tasks, too: if no worker of DIR lives.",
                "--skip-bad": "Leave out what is no task, and name it.",
            },
            "The command": {
                "--commit": "The name under which the tasks are inserted, once.",
                "--json": "",
            },
        },
    ),
    "insert": Short(
        "Insert a task for each line of the FILEs, or of standard input, and print how many tasks were inserted. A "
        "line is JSON, or with --lines a string.",
        {
            "What the input is": {
                "--lines": "Each line is a task: a string.",
                "--null": "Each item that ends with NUL is a task: a string.",
                "--csv": "A table: each row is a task, the header names its fields.",
                "--tsv": "",
                "--delimiter": "A table whose cells this character separates.",
                "--text": "Keep a column of a table as text.",
                "--text-all": "",
                "--task": "",
                "--from": "Run the command after '--', insert what it prints.",
            },
            "Once, and only what is new": {
                "--commit": "Insert all or nothing, and once under this name.",
                "--key": "Field of the key: no two waiting tasks have the same.",
                "--new-by": "Insert only rows that are new or changed.",
            },
            "When": {
                "--priority": "Field of the priority: smaller ones come first.",
                "--delay": "",
            },
            "Output": {
                "--skip-bad": "Go on after a bad line, and end with exit code 1.",
                "--json": "",
            },
        },
    ),
    "map": Short(
        "Run COMMAND for each ARGUMENT, each line of FILE, or of standard input, and end. '{}' in COMMAND stands for "
        "it, and is added if COMMAND has no placeholder. The tasks are in the queue Q [fsqueue-map-1, 2, …].",
        {
            "Input": {
                "--null": "Items of the input end with NUL.",
                "--stdin": "Give COMMAND the argument on standard input.",
                "--dry-run": "Print the command of each argument, and end.",
            },
            "How many at a time": {
                "--jobs": "Tasks at a time [auto: one for each processor].",
                "--gpus-per-task": "",
            },
            "Failures and time": {
                "--max-attempts": "Attempts before a task is given up [1].",
                "--task-timeout": "",
                "--stop-after-failures": "Stop when N attempts in a row have failed.",
                "--max-runtime": "",
                "--grace": "How long tasks may go on when it must stop [10].",
            },
            "Output and results": {
                "--result-stdout": "What COMMAND prints is the task's result.",
                "--output": "When to pass output on.",
                "--tag": "",
                "--keep-output": "Keep the output of each attempt in DIR.",
                "--json": "",
            },
        },
    ),
    "run": Short(
        "Run COMMAND, or a Python function, for each task of the queues Q. In COMMAND, '{}' stands for the payload, "
        "and '{field}' for a field of it.",
        {
            "What to run": {
                "--call": "Call this Python function, and no command.",
                "--stdin": "Give COMMAND the payload on standard input, too.",
                "--tasks-per-command": "Give each COMMAND up to N tasks, as lines of JSON.",
                "--dry-run": "Print the commands of the first tasks, and end.",
            },
            "How many at a time": {
                "--jobs": "Tasks at a time [1]. auto: one for each processor.",
                "--threads": "Call functions in N threads of one process.",
                "--gpus-per-task": "",
            },
            "Failures": {
                "--task-timeout": "",
                "--max-attempts": "Attempts before a task is given up [the queue's].",
                "--stop-after-failures": "Stop when N attempts in a row have failed.",
                "--exclude-after": "Stop on this node when N in a row have failed.",
            },
            "When to end": {
                "--max-runtime": "",
                "--max-tasks": "",
                "--idle-timeout": "",
                "--forever": "",
                "--grace": "How long tasks may go on when the worker ends [10].",
            },
            "Output and results": {
                "--result-stdout": "What COMMAND prints is the task's result.",
                "--output": "When to pass output on.",
                "--tag": "",
                "--keep-output": "Keep the output of each attempt in DIR.",
                "--json": "",
            },
            "Several queues": {
                "--match": "",
                "--then": "What COMMAND prints becomes tasks of this queue.",
                "--upstream": "End only when this queue is drained, too.",
            },
        },
    ),
    "results": Short(
        "Print the results of the queues Q: what was put into each finished task beside what came out of it. FILE ends "
        "in .csv, .jsonl or .parquet; there each field of a payload and of a result is a column. Without FILE: a table "
        "on a terminal, elsewhere JSON Lines.",
        {
            "Which tasks": {
                "--match": "",
                "--where": "Only those with, for instance, 'result.loss<0.1'.",
                "--dead": "",
                "--latest-by": "Of the tasks with one value in FIELD only the newest.",
                "--newest": "Only the N that ended last.",
                "--inputs-of": "Only what the join of TASK waited for.",
            },
            "Output": {"--json": ""},
        },
    ),
    "slurm": Short(
        "Submit a Slurm job whose elements are workers, and print its id. Each element executes 'fsqueue run Q -- "
        "COMMAND'. Options of 'fsqueue run' go to the workers, all others to sbatch.",
        {
            "Before the job": {
                "--print": "Submit nothing; print a script that would submit the job.",
                "--prologue": "Lines for the job script, before the worker: modules.",
                "--log-dir": "Directory for the logs of jobs [fsqueue-logs].",
                "--one-worker": "One worker, whose commands use the job's tasks (srun).",
                "--allow-empty": "",
                "--no-command-check": "Submit even if COMMAND is not found here.",
            },
            "For weeks": {
                "--resubmit": "Have each job submit its successor, until all is done.",
                "--max-jobs": "",
                "--fill": "As many jobs as the tasks need, N at most.",
                "--stop": "Submit no more successors; running jobs end their tasks.",
                "--now": "",
            },
            "Output": {"--json": ""},
        },
    ),
    "update": Short(
        "Change tasks in several queues of GROUP in one step: either all of it happens, or nothing. Without options "
        "for operations, standard input has them, one in JSON on each line.",
        {
            "Operations": {
                "--insert": "",
                "--complete": "",
                "--renew": "",
                "--release": "",
                "--fail": "",
                "--bury": "",
                "--cancel": "Take a task out.",
                "--depends": "Only if the task is still so.",
            },
            "Their values": {
                "--result": "",
                "--lease": "",
                "--reason": "",
                "--delay": "How long until released or failed ones come back.",
                "--worker": "",
            },
            "Output": {"--json": ""},
        },
    ),
}
"""The commands whose whole help is longer than a screen."""


def whole(command: click.Command, ctx: click.Context) -> str:
    """Return all that is said of a command."""
    formatter = ctx.make_formatter()
    click.Command.format_help(command, ctx, formatter)
    return formatter.getvalue().rstrip("\n")


def write(short: Short, command: click.Command, ctx: click.Context, formatter: click.HelpFormatter) -> None:
    """Write what a long command shows on one screen."""
    command.format_usage(ctx, formatter)
    lines = ["", *wrap(short.text, COLUMNS_MAX - 2, initial_indent="  ", subsequent_indent="  "), ""]
    options = {max(option.opts, key=len): option for option in command.get_params(ctx) if option.opts}
    left = {name: record[0] for name, one in options.items() if (record := one.get_help_record(ctx))}
    shown = [name for theme in short.themes.values() for name in theme]
    width = min(_NAMES_MAX, max(len(left[name]) for name in shown))
    for title, theme in short.themes.items():
        lines.append(f"{title}:")
        lines += [f"  {left[name]:<{width}}  {text or first_sentence(options[name])}" for name, text in theme.items()]
    path = command_path(ctx)
    rest = [name for name in left if isinstance(options[name], click.Option) and name not in (*shown, "--help")]
    more = f"All about {path}: '{path.replace(' ', ' help ', 1)}'."
    if rest:
        more = f"Further options: {', '.join(rest)}. {more}"
    lines += ["", "Examples:", *(f"  {typed}" for typed in examples(command)[:EXAMPLES_MAX]), ""]
    formatter.write("\n".join([*lines, *wrap(more, COLUMNS_MAX, break_on_hyphens=False)]) + "\n")


def command_path(ctx: click.Context) -> str:
    """Return the words of a command: `fsqueue run`, also where its script lies elsewhere."""
    return " ".join(["fsqueue", *ctx.command_path.split(" ")[1:]])


def first_sentence(parameter: click.Parameter) -> str:
    """Return the first sentence of an option's help."""
    text = getattr(parameter, "help", None) or ""
    return text.partition(". ")[0].rstrip(".") + "."


def examples(command: click.Command) -> list[str]:
    """Return the examples of a command, as lines that are typed. Comments go where the screen is too narrow."""
    _, _, text = (command.epilog or "").partition("Example:\n")
    lines = [line.strip() for line in text.partition("\n\n")[0].splitlines()]
    return [line if len(line) < COLUMNS_MAX - 2 else re.sub(r"\s+#.*", "", line) for line in lines]
