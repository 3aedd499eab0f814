"""Share among commands: the argument for a queue, types of values, values as text, questions to the user."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar, cast
from urllib.parse import unquote

import click

import fsqueue

from . import process
from .printing import ask, complain, json_text, plain, print_done, quoted

if TYPE_CHECKING:
    from pathlib import Path

    from click.shell_completion import CompletionItem

    from fsqueue.client.remote_group import RemoteQueues

Function = TypeVar("Function", bound=Callable[..., Any])

LINE_CHARS_MAX = 100
"""Maximum number of characters of a payload or a reason that a table shows."""
NOTHING_EXIT, DEAD_EXIT, FINDINGS_EXIT, TIMEOUT_EXIT = 3, 9, 10, 124
"""Exit codes of commands that found out what was asked: nothing is available, or to be done; tasks were given up; the
queue has findings that were not repaired; the time to wait is over, as of timeout(1).
"""
UNKNOWN_EXIT = fsqueue.TaskNotFound.exit_code
UNKNOWN_SHOWN_MAX = 20
"""Maximum number of unknown ids that are named one by one; the rest is counted."""
LEAVE_S = 3.0
"""Maximum time for what is left to do once a signal has ended a command."""
GATEWAY_PATIENCE_S = 10.0
"""How long a command but `run` asks again for a gateway that is away: a user waits for it."""
NO_OPTIONS: Mapping[str, object] = {}
NAMED_MAX = 10
"""Maximum number of queues of a group that a hint names."""


def _directories(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from click.shell_completion import CompletionItem

    return [CompletionItem(incomplete, type="dir")]


queue_argument = click.argument("queue", metavar="Q", shell_complete=_directories)
queues_argument = click.argument("queues", metavar="Q...", nargs=-1, required=True, shell_complete=_directories)
queues_and_tasks_argument = click.argument(
    "arguments", metavar="Q... [TASK]...", nargs=-1, required=True, shell_complete=_directories
)
ids_argument = click.argument("ids", metavar="[TASK]...", nargs=-1)
optional_queues_argument = click.argument("queues", metavar="[Q]...", nargs=-1, shell_complete=_directories)
worker_option = click.option("--worker", metavar="NAME", help="The worker's name in histories.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON, an object a line.")
match_option = click.option("--match", metavar="RE", help="Of a group: only queues whose whole names match.")
yes_option = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def queue_at(path: str, worker: str | None = None) -> fsqueue.Queue:
    """Return the queue that a user's path means: that of a directory, or the queue NAME of a group by GROUP/NAME.

    The latter comes into being at its first insert. QueueNotFound, NotAQueue.
    """
    with process.question_to(path):
        return fsqueue.Group.queue_at(path, worker)


def path_of(source: fsqueue.Queue | fsqueue.GroupQueues | fsqueue.RemoteQueue | RemoteQueues) -> str:
    """Return the path of a queue as the user would type it, or that of a group; the address of a gateway's queue."""
    if isinstance(source, fsqueue.GroupQueue):
        return source.typed_path
    if isinstance(source, fsqueue.Queue):
        return str(source.path)
    return str(source.group.path) if isinstance(source, fsqueue.GroupQueues) else source.url


def group_at(path: str, given: Mapping[str, object] = NO_OPTIONS, worker: str | None = None) -> fsqueue.Group | None:
    """Return the group at a path; None if there is none: then the options `given`, which are a group's, are refused.

    NotAQueue if options are given and something else is in the place of a group's own file; QueueNotFound if nothing is
    there.
    """
    with process.question_to(path):
        group = fsqueue.Group.at(path, worker)
    named = [name for name, value in given.items() if value is not None]
    if group is None and named:
        try:
            fsqueue.queues(path)
        except fsqueue.QueueNotFound:
            if fsqueue.Group.holding(path) is None:
                raise
        raise click.UsageError(
            f"{named[0]} is for the queues of a group, and {path} is no group. Nothing was done. To make one: fsqueue "
            "create --group PATH"
        )
    return group


def named(group: fsqueue.Group | fsqueue.RemoteGroup, given: str) -> str:
    """Return the name of a queue of a group, as it was given. UsageError if it is a path to a group, or to a queue in
    one, or an address of these: a name may have slashes, and would make another queue than the one that is meant.
    """
    if not isinstance(group, fsqueue.Group):
        if given.startswith(group.url):
            name = unquote(given.removeprefix(group.url)) or "NAME"
            raise click.UsageError(
                f"{given!r} is an address. Nothing was done. Name the queue as it is called in the group: {name}"
            )
    elif "/" in given:
        text = given.removeprefix("fq://")
        for end in (*(at for at, char in enumerate(text) if char == "/" and at), len(text)):
            _refuse_path(group, given, text[:end], text[end:].lstrip("/"))
    return given


def _refuse_path(group: fsqueue.Group, given: str, head: str, name: str) -> None:
    """Raise UsageError if what stands before a name leads to a group."""
    if not name and _is_at(head, group.path):
        raise click.UsageError(
            f"{given!r} is the group. Nothing was done. Name one of its queues, as 'fsqueue ls --min 0 "
            f"{quoted(given)}' lists them."
        )
    holder = _holder(f"{head}/{name}") if name else None
    if holder is None or not _is_at(head, holder):
        return
    if _is_at(holder, group.path):
        raise click.UsageError(
            f"{given!r} is a path. Nothing was done. Name the queue as it is called in the group: {name}"
        )
    raise click.UsageError(
        f"{given!r} leads into another group, {holder}. A queue of {group.path} is expected. Nothing was done. "
        "If one is called so, call the command from another directory."
    )


def _is_at(path: str, other: str | Path) -> bool:
    with suppress(OSError):  # nothing is there, or the path leads nowhere
        return os.path.samefile(path, other)
    return False


def _holder(path: str) -> str | None:
    """Return the path of the group in which a path lies, if there is one and it can be seen."""
    with suppress(fsqueue.FsqueueError):
        return fsqueue.Group.holding(path)
    return None


def queues_there(group: fsqueue.Group | fsqueue.RemoteGroup) -> str:
    """Return the names of some queues of a group, for a user who may have mistyped one."""
    queues: Iterator[fsqueue.GroupQueue | fsqueue.RemoteQueue] = group.queues(tasks_min=0)
    names = [queue.name for queue in islice(queues, NAMED_MAX + 1)]
    if not names:
        return "The group has no queue yet."
    more = ""
    if len(names) > NAMED_MAX:
        lists = "fsqueue.connect(URL).queues(tasks_min=0) lists them, in Python"
        if isinstance(group, fsqueue.Group):
            lists = f"'fsqueue ls --min 0 {quoted(str(group.path))}' lists them"
        more = f", and more: {lists}"
    return f"The group has {', '.join(names[:NAMED_MAX])}{more}."


def no_match(source: fsqueue.Queue | fsqueue.GroupQueues | fsqueue.RemoteQueue | RemoteQueues) -> str | None:
    """Return a hint if no queue of a group has a name that matches its pattern; None for anything else."""
    pattern = getattr(source, "pattern", None)
    if pattern is None:
        return None
    group: fsqueue.Group | fsqueue.RemoteGroup
    if isinstance(source, fsqueue.GroupQueues):
        is_met, group = bool(source.directories()), cast(fsqueue.Group, source.group)
    else:
        queues = cast("RemoteQueues", source)
        is_met, group = next(queues.queues(tasks_min=0), None) is not None, _group_at_gateway(queues.url)
    if is_met:
        return None
    return f"hint: {path_of(source)} has no queue whose whole name matches {pattern}. {queues_there(group)}"


def is_one_queue(source: object) -> TypeGuard[fsqueue.Queue | fsqueue.RemoteQueue]:
    """Return whether this is a queue, and no part of a group. The client is not imported for a filesystem's."""
    if isinstance(source, fsqueue.Queue | fsqueue.GroupQueues):
        return isinstance(source, fsqueue.Queue)
    return isinstance(source, fsqueue.RemoteQueue)


def _group_at_gateway(url: str) -> fsqueue.RemoteGroup:
    return cast(fsqueue.RemoteGroup, fsqueue.connect(url, patience_s=GATEWAY_PATIENCE_S))


def not_there(queue: object, typed: str) -> str | None:
    """Return a hint if a queue of a group is not there, for its name may be mistyped; None for any other queue.

    It is no error: a queue comes into being when the first task is inserted. `typed`: what the user has named it by.
    """
    if isinstance(queue, fsqueue.GroupQueue):
        if queue.exists():
            return None
        there = queues_there(cast(fsqueue.Group, queue.group))
    # For what lies on a filesystem the client is not imported.
    elif isinstance(queue, fsqueue.Queue | fsqueue.GroupQueues) or not isinstance(queue, fsqueue.RemoteQueue):
        return None
    else:
        if queue.exists():
            return None
        there = queues_there(_group_at_gateway(f"{queue.gateway}/"))
    return f"hint: {typed} names no queue that is there. {there} It counts as drained until a task is inserted into it."


def leave_soon(code: int) -> threading.Timer:
    """End this process after LEAVE_S, unless that is cancelled: a thread may wait for a lock, or for who reads a pipe.

    The user has sent a signal to end it, and it holds no task any more.
    """
    timer = threading.Timer(LEAVE_S, os._exit, (code,))
    timer.daemon = True
    timer.start()
    return timer


def example(text: str) -> str:
    """Return an epilog that shows examples as they are typed."""
    return "\b\nExample:\n" + "\n".join(f"  {line}" for line in text.strip().splitlines())


def brief(value: Any, chars: int = LINE_CHARS_MAX) -> str:
    """Return a payload or a text, on one line of at most `chars`, harmless for a terminal.

    Bytes are told from all that JSON has by their number, which stands before them: `2 bytes: AP8=`.
    """
    if isinstance(value, bytes):
        import base64

        text = f"{len(value):,} byte{'s' * (len(value) != 1)}: {base64.b64encode(value[: chars * 4]).decode()}"
    else:
        text = value if isinstance(value, str) else json_text(value)
    text = plain(text[: chars * 4])
    return text if len(text) <= chars else text[: chars - 1] + "…"


def moment(at: float | None) -> str:
    """Return Unix seconds as local time."""
    if at is None:
        return "-"
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return f"{at:g}"


def size(count: int) -> str:
    """Return bytes in the largest decimal unit of which there is one, in three digits or so."""
    for unit, power in (("TB", 12), ("GB", 9), ("MB", 6), ("kB", 3)):
        if count >= 10**power:
            value = count / 10**power
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"
    return f"{count} B"


def confirm(question: str, yes: bool) -> None:
    """Before work is destroyed: go on only with `--yes`, or if the user at the terminal agrees."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Standard input is no terminal, so no user can answer: add --yes.")
    _ask(question)


def confirm_at_terminal(question: str, yes: bool) -> None:
    """Before work is repeated: ask the user if there is a terminal. Elsewhere, as in a cron job, go on."""
    if not yes and sys.stdin.isatty():
        _ask(question)


def _ask(question: str) -> None:
    if not ask(question):
        complain("nothing was changed")
        raise click.exceptions.Exit(1)


def words(arguments: tuple[str, ...]) -> Iterator[str]:
    """Yield the arguments, with `-` replaced by the lines of standard input.

    A line may also be one that `lease` or `ls` printed as JSON: its token counts, or its id.
    """
    return (word for word, _ in words_with_objects(arguments))


def words_with_objects(arguments: tuple[str, ...]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the same words, each with the JSON object that it stood in; {} for a plain one."""
    for argument in arguments:
        if argument != "-":
            yield argument, {}
            continue
        try:
            for number, line in enumerate(sys.stdin, 1):
                if line.strip():
                    yield _word(line.strip(), number)
        except UnicodeDecodeError as error:
            raise click.UsageError(f"Standard input is not UTF-8 ({error.reason}). Nothing was done.") from None


def _word(line: str, number: int) -> tuple[str, dict[str, Any]]:
    if not line.startswith("{"):
        return line, {}
    from fsqueue.format import user_json

    try:
        value = user_json.decode_with_constants(line)  # a result may have NaN
    except user_json.NotExact as error:
        raise click.UsageError(f"Standard input, line {number}, {error}. Nothing was done.") from None
    word = value.get("token") or value.get("id")
    if not isinstance(word, str):
        raise click.UsageError(f"Standard input, line {number}, has neither a token nor an id. Nothing was done.")
    return word, value


def search_working_directory() -> None:
    """Have modules found where the user is, as `python -m` does. Processes started later inherit the way."""
    with suppress(OSError):  # it may have been removed
        here = os.getcwd()
        if here not in sys.path:
            sys.path.insert(0, here)


def print_count(name: str, count: int, as_json: bool, unknown: Sequence[str] = ()) -> None:
    """Print a number, or both as JSON. Ids that the queue does not know are named; the exit code is that of `show`."""
    print_done(as_json, {name: count, **({"unknown": list(unknown)} if unknown else {})}, count)
    say_unknown(unknown)
    if unknown:
        raise click.exceptions.Exit(UNKNOWN_EXIT)


_ID = re.compile(r"[0-9a-f]{32}\.(0|[1-9][0-9]{0,8})")


def is_id(word: str) -> bool:
    """Return whether a word has the form of a task's id. Any other is a key."""
    return _ID.fullmatch(word) is not None


def say_unknown(ids: Sequence[str]) -> None:
    """Name the ids that neither the queue nor its history knows."""
    for task_id in ids[:UNKNOWN_SHOWN_MAX]:
        complain(f"{task_id}: neither the queue nor its history has this task. Check the id and the queue.")
    if len(ids) > UNKNOWN_SHOWN_MAX:
        complain(f"unknown ids not shown: {len(ids) - UNKNOWN_SHOWN_MAX:,}")
