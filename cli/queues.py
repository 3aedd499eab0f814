"""create, set, pause, resume, purge, delete, gc: the queue as a whole."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

import fsqueue
from fsqueue.filesystem import mountadvice
from fsqueue.format import wording
from fsqueue.storage.payloads import PAYLOAD_BYTES, PAYLOAD_DAYS
from fsqueue.upkeep.trash import reap, until_finished
from fsqueue.views.rates import total

from .common import (
    example,
    group_at,
    json_option,
    match_option,
    named,
    optional_queues_argument,
    path_of,
    queue_argument,
    queues_argument,
    yes_option,
)
from .options import ATTEMPTS, DURATION, KEPT_PAYLOAD, OneScreen, limit
from .printing import complain, hint, print_done, print_json, quoted, say
from .targets import Target, Targets, group_named, is_address, one_queue

LEFT_EXIT = 1
REAPED_MAX = 1_000
"""Maximum number of directories that a command has emptied in the background; 'fsqueue gc' does the others."""
DEFAULTS = fsqueue.Settings()


@click.command(
    cls=OneScreen,
    epilog=example(
        """fsqueue create /scratch/me/tiles
fsqueue create /scratch/me/tiles --lease 1h --max-attempts 3
fsqueue create --group /scratch/me/crawl --lease 5m      # its queues come into being when tasks are inserted"""
    ),
)
@queue_argument
@click.option("--group", "is_group", is_flag=True,
              help="Create a group of queues instead; the options are settings of its queues.")  # fmt: skip
@click.option("--shards", type=int, help=f"Subdirectories that the task files spread over [{DEFAULTS.shards}].")
@click.option("--max-batch-tasks", "batch_tasks_max", type=int, metavar="N",
              help=f"Put no more tasks into one file [{DEFAULTS.batch_tasks_max}].")  # fmt: skip
@click.option("--max-task-bytes", "task_bytes_max", type=int, metavar="BYTES",
              help=f"Largest task [{DEFAULTS.task_bytes_max >> 20} MiB].")  # fmt: skip
@click.option(
    "--max-attempts",
    type=ATTEMPTS,
    metavar="N",
    help=f"Attempts before a task becomes a dead letter, or 'none' [{DEFAULTS.max_attempts}].",
)
@click.option("--lease", "lease_s", type=DURATION, help="How long a lease holds unless renewed [10m].")
@click.option(
    "--backoff",
    "backoff_s",
    type=(DURATION, DURATION),
    metavar="FIRST MOST",
    help="First and longest pause after failed attempts; it doubles each time [1 1h].",
)
@click.option(
    "--durability",
    type=click.Choice(["none", "default", "strict"]),
    help="What is synced to disk: nothing, inserts (default), or every movement of a task (strict).",
)
@click.option(
    "--no-history",
    is_flag=True,
    help="Forget completed and cancelled tasks, with their results, at once: nothing shows them any more. What is left "
    "on disk goes when all tasks of their batch (up to 1,024) have ended. Dead letters stay.",
)
@click.option(
    "--keep-payloads",
    type=KEPT_PAYLOAD,
    metavar="BYTES",
    help=f"Keep payloads of completed and cancelled tasks up to this size, or 'all'; 0: none "
    f"[{DEFAULTS.keep_payloads}]. Longer ones are hidden once the task has ended; their bytes are erased when all "
    "tasks of its batch (up to 1,024) have ended. Dead letters keep theirs.",
)
@click.option("--exist-ok", is_flag=True, help="Leave an existing queue as it is, and succeed.")
@click.option("--allow-unsafe", is_flag=True,
              help="Create the queue even on a mount that is known to break fsqueue's promises.")  # fmt: skip
@json_option
def create(
    queue: str,
    is_group: bool,
    no_history: bool,
    exist_ok: bool,
    allow_unsafe: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Create the queue Q, a directory; or with --group a group of queues.

    A queue in a group comes into being when the first task is inserted: 'fsqueue insert GROUP/NAME'. It begins with the
    group's settings.

    'fsqueue set' changes --max-attempts, --lease, --backoff and --keep-payloads later. All other settings are fixed.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    for name in ("max_attempts", "keep_payloads"):
        if name in given:
            given[name] = limit(given[name])
    if no_history:
        given["keep_history"] = False
    if is_group:
        _create_group(queue, given, exist_ok, allow_unsafe, as_json)
        return
    is_new = True
    try:
        q = fsqueue.Queue.create(queue, allow_unsafe=allow_unsafe, **given)
    except fsqueue.QueueExists:
        if not exist_ok:
            raise _already(queue, "queue") from None
        is_new = False
        q = fsqueue.Queue.create(queue, allow_unsafe=allow_unsafe, exist_ok=True, **given)
    with q:
        has = asdict(q.settings)
        others = {name: has[name] for name, value in given.items() if has[name] != value}
        if others:
            said = ", ".join(
                f"{name} is {_text(name, value, ' ')}, not {_text(name, given[name], ' ')}"
                for name, value in others.items()
            )
            hint(f"warning: {q.path} was there already, and keeps its settings: {said}.")
        if is_new and (lost := mountadvice.volatile(str(q.path))):
            hint(f"warning: {q.path} is {lost}")
        made = [f"made the queue {q.path}: {_promises(q.settings)}"] if is_new else []
        print_done(as_json, {"queue": str(q.path), "created": is_new, "settings": has}, *made)


def _duration(text: str) -> float:
    return DURATION.convert(text, None, None)


def _pair(text: str) -> tuple[float, ...]:
    parts = text.split(",")
    if len(parts) != 2:
        raise click.BadParameter(f"{text!r} is no pair. Write FIRST,MOST, the shortest and longest pause: 10s,30m.")
    return tuple(map(_duration, parts))


PARSERS: dict[str, Callable[[str], Any]] = {
    "max_attempts": lambda text: limit(ATTEMPTS.convert(text, None, None)),
    "lease_s": _duration,
    "backoff_s": _pair,
    "keep_payloads": lambda text: limit(KEPT_PAYLOAD.convert(text, None, None)),
    "max_leased": lambda text: limit(ATTEMPTS.convert(text, None, None)),
    "rate": lambda text: None if text == "none" else text,
}
"""How the value of each setting that can be changed is written."""
LIMITS = ("max_leased", "limit", "rate")
"""The settings that a group can change, too: they hold over all of its queues."""
OF_FIELD = "limit."
"""What stands before the name of a field of payloads that has a limit."""
SHORT = {"lease": "lease_s", "backoff": "backoff_s"}
"""Names of settings as `fsqueue create` has them."""


def _given(assignments: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings in NAME=VALUE. Names that are none are left to the queue to refuse."""
    given: dict[str, Any] = {}
    for assignment in assignments:
        name, is_there, text = assignment.partition("=")
        if not is_there:
            raise click.UsageError(f"{assignment!r} is no setting. Write NAME=VALUE, as max_attempts=3.")
        if name.startswith(OF_FIELD):
            fields = given.setdefault("limit", {})
            if name.removeprefix(OF_FIELD) in fields:
                raise click.UsageError(f"{name} is given twice.")
            try:
                fields[name.removeprefix(OF_FIELD)] = limit(ATTEMPTS.convert(text or "none", None, None))
            except click.BadParameter as error:
                raise click.UsageError(f"{name}: {error.message}") from None
            continue
        name = name.replace("-", "_")
        name = SHORT.get(name, name)
        if name == "limit":
            raise click.UsageError("Write limit.FIELD=N, as limit.host=4; or limit.FIELD=none.")
        if name in given:
            raise click.UsageError(f"{name} is given twice.")
        try:
            given[name] = PARSERS[name](text) if name in PARSERS else text
        except click.BadParameter as error:
            raise click.UsageError(f"{name}: {error.message}") from None
    return given


def _text(name: str, value: Any, between: str = ",") -> str:
    """Return the value of a setting as `set` takes it. `between` the two of a pair, `create` has a blank."""
    if isinstance(value, tuple):
        return between.join(_text(name, each) for each in value)
    if value is None:
        return "all" if name == "keep_payloads" else "none"
    return f"{value:.12g}" if isinstance(value, float) else str(value)


@click.command(
    epilog=example(
        """fsqueue set /scratch/me/tiles
fsqueue set /scratch/me/tiles max_attempts=3 lease_s=1h backoff=10s,30m
fsqueue set /scratch/me/crawl limit.licence=4           # over all queues of a group"""
    )
)
@queue_argument
@click.argument("assignments", metavar="[NAME=VALUE]...", nargs=-1)
@json_option
def set_(queue: str, assignments: tuple[str, ...], as_json: bool) -> None:
    """Change settings of the queue Q in use, and show all of them. Without NAME=VALUE, only show them. Settings that
    are not listed here are fixed when the queue is created.

    \b
    NAME=VALUE is one of
      max_attempts=N         attempts before a task becomes a dead letter; or none
      lease_s=DURATION       how long a lease lasts unless renewed; also lease=
      backoff_s=FIRST,MOST   the first and the longest pause after failed attempts; also backoff=
      keep_payloads=BYTES    the size up to which payloads of finished tasks are kept; or all
      max_leased=N           at most N tasks are leased at a time, over all hosts; or none
      limit.FIELD=N          at most N of those whose payloads have one value of FIELD; or none
      rate=N/s               at most N tasks are leased per second (/m minute, /h hour), over all hosts; or none

    limit.host=4 lets at most four tasks with one value of the payload's field "host" be leased at a time. Tasks with
    other values go on, and those without the field are not limited. At most four fields have a limit. rate=30/m lets
    30 tasks be leased in a minute, however long they take, one after the other and not all at once. The first limit of
    a kind takes two seconds to set, and holds when this command ends. Workers on all hosts keep to it, also if some of
    them are killed. What is leased already stays leased; nothing is leased until fewer than N are.

    Q may be a group. Then these three limits hold over all of its queues together, besides those of each queue; its
    other settings are those with which its queues begin, and stay.

    All processes use the new values within two seconds. Leases that are held keep their length until they are renewed.
    If keep_payloads becomes smaller, longer payloads of finished tasks are hidden at once; the next 'fsqueue gc' erases
    them. If max_attempts becomes smaller, some tasks may have used up their attempts already. Each becomes a dead
    letter when it would be leased next. Dead letters stay dead: 'fsqueue dead retry' puts them back.
    """
    given = _given(assignments)
    group = group_named(queue, {})
    if group is not None:
        if not given.keys() <= {*LIMITS}:
            one = quoted(f"{path_of(group).rstrip('/')}/NAME")
            raise click.UsageError(
                f"{queue} is a group of queues, and its settings are those with which its queues begin: they stay, but "
                f"for limits over all of its queues. Nothing was changed. Name one of its queues: fsqueue set {one} "
                "NAME=VALUE"
            )
        settings = group.settings
        if given:
            if not isinstance(group, fsqueue.Group):
                raise click.UsageError(
                    f"{queue} is a group of a gateway, which sets no limits of groups. Nothing was changed. Set them "
                    "on a host that has the group's directory: fsqueue set DIRECTORY NAME=VALUE"
                )
            settings = group.set_limits(**given)
        _show({"group": path_of(group)}, asdict(settings), as_json, is_done=bool(given), of_group=True)
        return
    with one_queue(queue) as q:
        settings = q.change_settings(**given) if given else q.settings
        _show({"queue": str(q.path)}, asdict(settings), as_json, is_done=bool(given))


def _show(
    of: dict[str, str], settings: dict[str, Any], as_json: bool, *, is_done: bool = False, of_group: bool = False
) -> None:
    """Print settings of a queue or group. `is_done`: some were changed. `of_group`: none but limits can be."""
    found = of | {"settings": settings}
    changeable = LIMITS if of_group else PARSERS
    fixed = {name: "" if name in changeable else "  (fixed)" for name in settings}
    lines = [f"{name:<16} {_text(name, value)}{fixed[name]}" for name, value in settings.items() if name != "limit"]
    lines += [f"{OF_FIELD + name:<16} {most}" for name, most in settings["limit"].items()]
    if is_done:
        print_done(as_json, found, *lines)
    elif as_json:
        print_json(found)
    else:
        say(*lines)


@click.command(
    epilog=example(
        """fsqueue pause /scratch/me/tiles --reason "the licence server is down"
fsqueue pause /scratch/me/crawl --match '.*#fetch'      # queues of a group
fsqueue pause http://localhost:8750/fetch               # a queue of a gateway"""
    )
)
@queues_argument
@match_option
@click.option("--reason", metavar="TEXT", help="Why. Workers, status and wait show it.")
@json_option
def pause(queues: tuple[str, ...], match: str | None, reason: str | None, as_json: bool) -> None:
    """Keep all processes from leasing tasks of Q until 'fsqueue resume Q'.

    Within two seconds, the workers on all hosts stop leasing, and say so. They finish the tasks that they hold. Then
    they wait, and do not end. Inserting, completing and everything else goes on. A purge does not end a pause.

    Q may be a group: then its queues that are there now are paused, each by itself. A queue that comes later is not.
    """
    targets = Targets(queues, match, as_json)
    for target in targets:
        with target as q:
            is_new = q.pause(reason)
            _say_whether_paused(target, as_json, "is paused" if is_new else "is paused already", is_new)
    targets.end()


@click.command(
    epilog=example(
        """fsqueue resume /scratch/me/tiles
fsqueue resume /scratch/me/crawl --match '.*#fetch'     # queues of a group"""
    )
)
@queues_argument
@match_option
@json_option
def resume(queues: tuple[str, ...], match: str | None, as_json: bool) -> None:
    """End the pause of the queue Q: its tasks may be leased again. Q may be a group: then of all its queues.

    Idle workers of this host go on at once, those of other hosts within eight seconds.
    """
    targets = Targets(queues, match, as_json)
    for target in targets:
        with target as q:
            is_new = q.resume()
            _say_whether_paused(target, as_json, "is resumed" if is_new else "was not paused", is_new)
    targets.end()


def _say_whether_paused(target: Target, as_json: bool, what: str, is_new: bool) -> None:
    found = target.queue.paused
    line = f"{target.path} {what}" + (f" {found}" if found is not None else "")
    paused = found.as_dict() if found is not None else None
    print_done(as_json, target.as_dict({"changed": is_new, "paused": paused}), *[line] * is_new)
    if not (is_new or as_json):
        complain(line)


def _already(path: str, kind: str) -> click.ClickException:
    """Return what `create` says of a path that is taken, in the words of the command line."""
    return click.ClickException(
        f"There is a {kind} at {path} already. Nothing was changed. Use it as it is (--exist-ok), or choose another "
        "path."
    )


def _create_group(path: str, given: dict[str, Any], exist_ok: bool, allow_unsafe: bool, as_json: bool) -> None:
    is_new = group_at(path) is None
    try:
        group = fsqueue.Group.create(path, exist_ok=exist_ok, allow_unsafe=allow_unsafe, **given)
    except fsqueue.QueueExists:
        raise _already(path, "group of queues") from None
    if is_new and (lost := mountadvice.volatile(str(group.path))):
        hint(f"warning: {group.path} is {lost}")
    made = [f"made the group {group.path}: in its queues {_promises(group.settings)}"] if is_new else []
    print_done(as_json, {"group": str(group.path), "created": is_new, "settings": asdict(group.settings)}, *made)


@click.command(
    epilog=example(
        """fsqueue purge /scratch/me/tiles --yes
fsqueue purge /scratch/me/crawl --match '.*#fetch'      # asks; queues of a group"""
    )
)
@queues_argument
@match_option
@yes_option
@json_option
def purge(queues: tuple[str, ...], match: str | None, yes: bool, as_json: bool) -> None:
    """Drop all tasks of Q, leased ones and dead letters too, and begin to count from zero. The settings stay.

    Q may be a group: then its queues that are there now are emptied, one after the other.
    """
    targets = Targets(queues, match, as_json)
    if not yes:
        targets.confirm(f"Drop {_inventory(_sum_of(targets))} of {targets.described}?", yes)
    purged: list[Path] = []
    for target in targets:
        with target as q:
            lost = q.status()
            q.purge()
            if isinstance(q, fsqueue.Queue):  # a gateway cleans up by itself
                purged.append(q.path.absolute())
            target.print_done({"purged": True} | lost.as_dict(), *[f"dropped {_inventory(lost)}"] * targets.is_several)
    _reap_in_background(purged)
    targets.end()


def _sum_of(targets: Targets) -> fsqueue.Status:
    found = fsqueue.Status()
    for target in targets:
        with target as q:
            found = total((found, q.status()))
    return found


@click.command(
    epilog=example(
        """fsqueue delete /scratch/me/tiles --yes
fsqueue delete /scratch/me/crawl --queue 'google.com#fetch' --yes
fsqueue delete /scratch/me/crawl --match 'google.com#.*'     # asks; all queues of a group: --match '.*'"""
    )
)
@queues_argument
@click.option("--queue", "name", metavar="NAME", help="Of the group Q: delete the queue of this name.")
@match_option
@click.option("--foreground", is_flag=True, help="Stay until all its files are gone.")
@yes_option
@json_option
def delete(
    queues: tuple[str, ...], name: str | None, match: str | None, foreground: bool, yes: bool, as_json: bool
) -> None:
    """Delete the queue Q. It is gone at once; its files are removed in the background.

    Of a group Q, delete the queue that --queue names, or those whose whole names match --match. The group stays.

    \b
    Exit codes:
      1    with --foreground: Q is deleted, but some of its files could not be removed
    """
    targets = Targets(_named_in_group(queues, name) if name is not None else queues, match, as_json)
    if targets.groups and match is None:
        group = queues[0]
        raise click.UsageError(
            f"{group} is a group of queues. Nothing was deleted. Name one of its queues (--queue NAME), or --match. To "
            f"list them: fsqueue ls --min 0 {quoted(group)}. When no process uses the group any more: rm -r "
            f"{quoted(group)}"
        )
    if not yes:
        targets.confirm(f"Delete {targets.described} with {_inventory(_sum_of(targets))}?", yes)
    parents = []
    for target in targets:
        with target as q:
            if not isinstance(q, fsqueue.Queue):
                if foreground:
                    raise click.UsageError(f"--foreground needs a directory, and {target.path} is an address.")
                lost, left = q.status(), q.delete()
            else:
                if isinstance(q, fsqueue.GroupQueue) and not q.exists():
                    raise fsqueue.QueueNotFound(
                        f"There is no queue {q.name!r} in the group {q.group.path}. Nothing was done."
                    )
                lost, parent = q.status(), q.path.absolute().parent
                left = q.delete(foreground=foreground)
                parents += [] if foreground else [parent]
            said = [f"deleted, with {_inventory(lost)}"] * targets.is_several
            target.print_done({"deleted": True} | lost.as_dict() | ({"left": left} if foreground else {}), *said)
            if left:  # the log has said so
                targets.leave_with(LEFT_EXIT)
    _reap_in_background(parents)
    targets.end()


def _named_in_group(queues: tuple[str, ...], name: str) -> list[str]:
    """Return the path or address of the queue of a group that --queue names."""
    if len(queues) > 1:
        raise click.UsageError("--queue NAME is for one group. Nothing was deleted.")
    if is_address(queues[0]):
        return [f"{queues[0].rstrip('/')}/{quote(name, safe='')}"]
    group = group_at(queues[0], {"--queue": name})
    assert group is not None
    return [f"{group.path}/{named(group, name)}"]


@click.command(
    epilog=example(
        """fsqueue gc /scratch/me/tiles --history-days 30
fsqueue gc --trash /scratch/me"""
    )
)
@optional_queues_argument
@match_option
@click.option("--touch", is_flag=True,
              help="Renew the times of its files, so that a scratch filesystem does not purge them.")  # fmt: skip
@click.option("--history-days", type=click.IntRange(min=0), metavar="N",
              help="Drop history that is older than N days [keep all].")  # fmt: skip
@click.option("--payload-days", type=click.IntRange(min=0), metavar="N",
              help=f"Drop files of payloads that are older than N days [{PAYLOAD_DAYS}].")  # fmt: skip
@click.option(
    "--payload-bytes",
    type=click.IntRange(min=0),
    metavar="BYTES",
    help=f"Drop the oldest days' files of payloads beyond this size; today's files stay [{PAYLOAD_BYTES >> 30} GiB].",
)
@click.option("--trash", type=click.Path(path_type=Path), metavar="DIR", multiple=True,
              help="Only remove what was deleted from DIR (repeatable).")  # fmt: skip
@json_option
def gc(
    queues: tuple[str, ...],
    match: str | None,
    touch: bool,
    history_days: int | None,
    payload_days: int | None,
    payload_bytes: int | None,
    trash: tuple[Path, ...],
    as_json: bool,
) -> None:
    """Clean up the queue Q: finish what crashed workers left half done, remove leftovers and trash.

    Q may be a group: then the command goes over its queues, and prints the sum, as it does for several. If the own file
    of one is gone, the command cleans up the others, and ends with exit code 5.

    Running it is safe at any time, and never necessary for correctness.
    """
    if bool(queues) == bool(trash):
        raise click.UsageError("Name either a queue or --trash DIR.")
    given = {"history_days": history_days, "payload_days": payload_days, "payload_bytes": payload_bytes}
    kept = {name: value for name, value in given.items() if value is not None}
    if trash and (touch or kept):
        raise click.UsageError("--touch, --history-days, --payload-days and --payload-bytes need a queue.")
    if (touch or kept) and (remote := [one for one in queues if is_address(one)]):
        raise click.UsageError(
            f"A gateway cleans up without options, and {remote[0]} is an address. Nothing was done. Type the command "
            "on a host that has mounted the filesystem."
        )
    if trash:
        _empty_trash(trash, as_json)
        return
    targets = Targets(queues, match, as_json)
    found: dict[str, int] = fsqueue.GcReport().as_dict()
    groups: dict[fsqueue.Group, None] = {}
    for target in targets:
        with target as q:
            if isinstance(q, fsqueue.GroupQueue) and isinstance(q.group, fsqueue.Group):
                groups[q.group] = None
            report = (q.gc(touch=touch, **kept) if isinstance(q, fsqueue.Queue) else q.gc()).as_dict()
            found = {name: count + report[name] for name, count in found.items()}
    for group in groups:
        group.pass_barriers(at_once=True)
    lines = _cleaned(found) if any(found.values()) else ["nothing was to be cleaned up"] * targets.is_sound
    print_done(as_json, found, *lines)
    targets.end()


def _empty_trash(directories: tuple[Path, ...], as_json: bool) -> None:
    """Remove what was deleted from these."""
    removed, left = 0, dict[str, str]()
    for one in directories:
        reaping = until_finished(lambda one=one: reap(one), time.sleep)  # type: ignore[misc]
        removed, left = removed + reaping.removed, left | reaping.left
    lines = [f"{path} was left alone: {why}." for path, why in left.items()]
    lines += _cleaned({"reaped": removed}) if removed else ["nothing was to be cleaned up"]
    print_done(as_json, {"reaped": removed, "left": left}, *lines)


GC_LINES = {
    "finished": {
        "finished": ("batch", "batches"),
        "commits_applied": ("commit", ""),
        "retries_published": ("retry of dead letters", "retries of dead letters"),
        "letters_added": ("missing dead letter", ""),
        "renamed": ("batch under the time it is due", "batches under the time they are due"),
    },
    "removed": {
        "staged_reaped": ("file of an insert that died", "files of inserts that died"),
        "attempts_reaped": ("commit that was given up", "commits that were given up"),
        "keys_removed": ("file of a free key", "files of free keys"),
        "decision_files_retired": ("file of decided updates", "files of decided updates"),
        "number_files_retired": ("file of numbers", "files of numbers"),
        "history_days_removed": ("day of history", "days of history"),
        "payload_days_removed": ("day of payloads", "days of payloads"),
        "payload_files_erased": ("file with payloads kept no more", "files with payloads kept no more"),
        "generations_trashed": ("purged generation", ""),
        "trash_reaped": ("directory of the trash", "directories of the trash"),
        "reaped": ("file or directory of what was deleted", "files and directories of what was deleted"),
    },
    "touched": {"touched": ("file", "")},
    "passed over": {"busy": ("busy batch", "busy batches")},
    "left alone": {"stray": ("stray file ('fsqueue fsck' tells more)", "stray files ('fsqueue fsck' tells more)")},
    "given back": {
        "inodes_given_back": ("file or directory", "files and directories"),
        "bytes_given_back": ("byte", ""),
    },
}
"""The lines that gc prints: the counts in each, with the noun for one, and for several if that is not one with an s."""


def _cleaned(report: dict[str, int]) -> Iterator[str]:
    """Return the lines that have counts other than 0."""
    for doing, counts in GC_LINES.items():
        found = [wording.counted(report[name], *nouns) for name, nouns in counts.items() if report.get(name)]
        if found:
            yield f"{doing:<12} {', '.join(found)}"


def _promises(settings: fsqueue.Settings) -> str:
    """Return the settings that a first user wants to know, in words."""
    attempts = settings.max_attempts
    tries = "any number of attempts" if attempts is None else wording.counted(attempts, "attempt")
    return f"a lease lasts {wording.duration(settings.lease_s)} unless renewed, a task has {tries}"


def _inventory(status: fsqueue.Status) -> str:
    """Return in words which tasks would be lost."""
    return (
        f"{wording.counted(status.remaining, 'unfinished task')}, {status.leased:,} of them leased, and "
        f"{wording.counted(status.dead, 'dead letter')}"
    )


def _reap_in_background(directories: Iterable[Path]) -> None:
    """Start a process that removes what was purged or deleted in these. It outlives this command."""
    each = [str(one) for one in dict.fromkeys(directories)][:REAPED_MAX]
    if not each:
        return
    try:
        subprocess.Popen(
            [sys.executable, "-P", "-m", __package__ or "fsqueue_cli", "gc", *(f"--trash={one}" for one in each)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        complain(f"its files stay until 'fsqueue gc --trash {quoted(each[0])}': {error}")
