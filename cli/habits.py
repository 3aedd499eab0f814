"""Say what to type where a habit from another program fails: commands, options and values that do not exist here."""

from __future__ import annotations

import click

_END_WORK = (
    "To end a worker, send it SIGTERM ('scancel' does): it puts back what it holds. 'fsqueue pause Q' has no more "
    "tasks leased, 'fsqueue cancel Q TASK' cancels waiting ones, and 'fsqueue release-all Q' takes leases away."
)
COMMANDS = {
    "log": "'fsqueue show Q TASK' prints a task's history. 'fsqueue run --keep-output DIR' keeps what commands print.",
    "tail": "'fsqueue status Q --watch' shows what goes on. 'fsqueue run --keep-output DIR' keeps what commands print.",
    "kill": _END_WORK,
    "stop": _END_WORK,
    "info": "'fsqueue status Q' counts the tasks, 'fsqueue show Q TASK' tells all about one, and 'fsqueue set Q' shows "
    "the settings.",
    **dict.fromkeys(
        ("parallel", "xargs", "each"), "'fsqueue map -- COMMAND {} ::: A B' runs a command for each argument."
    ),
    "clean": "'fsqueue gc Q' removes leftovers, 'fsqueue purge Q' drops all tasks, and 'fsqueue delete Q' the queue.",
}
"""What to type instead of a command."""

_JOBS = "Use -j N to execute N tasks at a time."
_MEMORY = (
    "No option limits memory. Limit it in the command: "
    "-- sh -c 'ulimit -v 4000000; exec \"$@\"' sh ./process {} (in KiB, for each process)."
)
OPTIONS = {
    "run": {
        **dict.fromkeys(("-P", "-n", "--workers", "--parallel", "--max-procs"), _JOBS),
        **dict.fromkeys(("--mem", "--memory", "--memfree"), _MEMORY),
        "--resume": "None is needed: the queue knows what is done. Type the command again, and it goes on with the "
        "rest. 'fsqueue dead retry Q' puts back what was given up.",
        "--keep-going": "It goes on after failures anyway. --stop-after-failures N ends it after N in a row.",
        "--joblog": "The queue keeps it: 'fsqueue results Q log.csv' has the times, hosts and errors. --log-json "
        "reports each event as it happens.",
        "--timeout": "--task-timeout limits a task; --max-runtime limits the worker.",
        "--retries": "--max-attempts N lets a task have N attempts, the first one counted.",
        "--halt": "--stop-after-failures 1 ends it at the first failure.",
    },
    "set": {
        "--max-attempts": "Write max_attempts=N: fsqueue set Q max_attempts=3.",
        "--lease": "Write lease=DURATION: fsqueue set Q lease=1h.",
        "--backoff": "Write backoff=FIRST,MOST: fsqueue set Q backoff=10s,30m.",
        "--keep-payloads": "Write keep_payloads=BYTES: fsqueue set Q keep_payloads=10000.",
    },
}
"""What to type instead of an option, by the command."""

_FAILED = "Use --state dead for tasks that were given up, --state retrying for those that will be tried again."
VALUES = {
    ("ls", "--state", "done"): "Use --state completed.",
    ("ls", "--state", "finished"): "Use --state completed.",
    ("ls", "--state", "running"): "Use --state leased.",
    ("ls", "--state", "pending"): "Use --state waiting, or --state delayed for those that become available later.",
    ("ls", "--state", "queued"): "Use --state waiting, or --state delayed for those that become available later.",
    ("ls", "--state", "failed"): _FAILED,
    ("ls", "--state", "error"): _FAILED,
    ("run", "--output", "none"): "All output is passed on: ungrouped, as it comes, is what 'none' was called. To see "
    "none of it, append >/dev/null 2>&1; --keep-output DIR keeps it in files.",
}
"""What to type instead of a value, by the command and the option."""

OF_COMMAND = "If it belongs to the command, write '--' before that: fsqueue run Q -- COMMAND."
NOT_QUOTED = "A shell takes < and > for files: quote the condition, as in --where 'took_s>2'."


def explained(error: click.UsageError) -> click.UsageError:
    """Return an error of usage with what to type instead, if that is known."""
    advice = _advice(error)
    if advice is None:
        return error
    is_clear = isinstance(error, click.NoSuchOption) and advice is not OF_COMMAND
    said = error.message if is_clear else error.format_message()
    return click.UsageError(f"{said.rstrip('.')}. {advice}", ctx=error.ctx)


def _advice(error: click.UsageError) -> str | None:
    if isinstance(error, click.BadOptionUsage) and error.option_name == "--where":
        return NOT_QUOTED
    if error.ctx is None:
        return None
    command = error.ctx.command_path.partition(" ")[2]
    if isinstance(error, click.NoSuchOption):
        is_before = command == "run" and "command" not in error.ctx.meta
        return OPTIONS.get(command, {}).get(error.option_name, OF_COMMAND if is_before else None)
    if isinstance(error, click.BadParameter) and error.param is not None:
        for (whose, option, value), advice in VALUES.items():
            if whose == command and option in error.param.opts and error.message.startswith(repr(value)):
                return advice
    return None
