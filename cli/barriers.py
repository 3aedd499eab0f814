"""barrier: begin the next stage once queues of a group are drained (docs/barriers.md)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

import fsqueue
from fsqueue.format import user_json, wording
from fsqueue.format.barriers import OnFailure

from .common import NOTHING_EXIT, example, group_at, json_option, named, not_there, worker_option
from .printing import complain, hint, plain, print_done, print_json, say
from .targets import group_named, is_address

if TYPE_CHECKING:
    AnyGroup = fsqueue.Group | fsqueue.RemoteGroup


@click.command(
    epilog=example(
        """fsqueue barrier /scratch/me/crawl --of fetch --of parse --then report='{"day": "monday"}'
fsqueue barrier /scratch/me/crawl --of-commit fetch=monday --then report='"monday"'
fsqueue barrier /scratch/me/crawl                     # lists them
fsqueue barrier /scratch/me/crawl --cancel ID"""
    )
)
@click.argument("group", metavar="GROUP")
@click.option("--of", "queues", metavar="QUEUE", multiple=True, help="A queue that has to be drained. Repeatable.")
@click.option("--match", metavar="RE", help="Instead: all queues whose whole names match.")
@click.option("--of-commit", "commits", metavar="QUEUE=NAME", multiple=True,
              help="Instead: the tasks of a commit ('insert --commit NAME') have to be done. Repeatable. Ends QUEUE at "
                   "the first '='.")  # fmt: skip
@click.option("--then", "then", metavar="QUEUE=JSON", multiple=True, help="A task that comes then. Repeatable.")
@click.option("--on-failure", type=click.Choice(["run", "wait", "drop"]),
              help="If there are dead letters: run all the same, wait until there are none, or cancel the barrier "
                   "[run; with --of-commit wait].")  # fmt: skip
@click.option("--cancel", "cancelled", metavar="ID", multiple=True, help="Cancel a barrier that waits.")
@worker_option
@json_option
def barrier(
    group: str,
    queues: tuple[str, ...],
    match: str | None,
    commits: tuple[str, ...],
    then: tuple[str, ...],
    on_failure: OnFailure | None,
    cancelled: tuple[str, ...],
    worker: str | None,
    as_json: bool,
) -> None:
    """Begin a stage of a pipeline in GROUP once, when at one instant other queues are drained. Print the barrier's id.

    The tasks of --then are inserted at once, as delayed ones, and become available at that instant, or soon after.
    Until then their queues are not drained, so 'fsqueue wait' waits for them, and a barrier may stand behind another
    one. Insert first what is to be waited for: queues that are drained already let the barrier pass at once.

    No process has to stay for that. Workers of the group that have nothing to do look, and so do 'fsqueue wait',
    'status' and 'gc'. It does not matter which processes were killed.

    With --of-commit the tasks come once all tasks of commits are done, whatever else is in their queues. 'fsqueue
    results QUEUE --inputs-of TASK' prints what came of those.

    Without --then and --cancel the command lists the barriers, and for a week those that have ended.

    Exit code 3: one of --cancel has passed before, or is not known.
    """
    if bool(then) != bool(queues or commits or match is not None) or (cancelled and then):
        raise click.UsageError(
            "Give --of, --match or --of-commit, and --then; or --cancel; or nothing, to list. Nothing was done."
        )
    opened = _opened(group, worker)
    if cancelled:
        _cancel(opened, cancelled, as_json)
    elif then:
        if (match is not None) + bool(queues) + bool(commits) > 1:
            raise click.UsageError("Give one of --of, --match and --of-commit. Nothing was done.")
        tasks = [_task(opened, text) for text in then]
        if commits:
            of = [_commit(opened, text) for text in commits]
            _set(opened, opened.join(of, tasks, on_failure=on_failure or "wait"), as_json)
        else:
            awaited: Any = [named(opened, name) for name in queues] if match is None else opened.matching(match)
            _set(opened, opened.barrier(awaited, tasks, on_failure=on_failure or "run"), as_json)
    else:
        _list(opened, as_json)


def _place(group: AnyGroup) -> str:
    """Return the path or the address of a group, for messages."""
    return plain(str(group.path) if isinstance(group, fsqueue.Group) else group.url.rstrip("/"))


def _opened(given: str, worker: str | None) -> AnyGroup:
    """Return the group of a path or an address. GroupNotFound, NotAQueue."""
    if not is_address(given):
        return group_at(given, worker=worker) or fsqueue.Group(given, worker=worker)
    found = group_named(given, {})
    if found is None:
        raise fsqueue.NotAQueue(f"{given} is one queue, and a barrier is of a group. Nothing was done.")
    return found


def _task(group: AnyGroup, text: str) -> tuple[str, Any]:
    queue, equals, payload = text.partition("=")
    if not equals:
        raise click.UsageError(f"--then is QUEUE=JSON, not {text!r:.100}. Nothing was done.")
    try:
        return named(group, queue), user_json.decode(payload)
    except user_json.NotExact as error:
        raise click.UsageError(f"The payload of --then {queue}= {error}. Nothing was done.") from None


def _commit(group: AnyGroup, text: str) -> tuple[str, str]:
    queue, equals, name = text.partition("=")
    if not equals:
        raise click.UsageError(f"--of-commit is QUEUE=NAME, not {text!r:.100}. Nothing was done.")
    if not group[named(group, queue)].exists():
        raise click.UsageError(f"{queue} names no queue that is there. Nothing was done.")
    return named(group, queue), name


def _set(group: AnyGroup, made: fsqueue.Barrier, as_json: bool) -> None:
    """Print the barrier that was set, and which of its queues are missing."""
    if isinstance(group, fsqueue.Group):  # a gateway has looked
        group.pass_barriers(at_once=True)
    print_done(as_json, made.as_dict(), made.id)
    if made.match is not None and not any(True for _ in group.matching(made.match).queues(tasks_min=0)):
        hint(f"{_place(group)} has no queue whose whole name matches {plain(made.match)}: they count as drained")
    for name in made.of:
        if (text := not_there(group[name], name)) is not None:
            hint(text)


def _cancel(group: AnyGroup, ids: tuple[str, ...], as_json: bool) -> None:
    known: dict[str, fsqueue.Barrier] = {one.id: one for one in group.barriers()}
    done, left = list[dict[str, Any]](), 0
    for identity in ids:
        found = known.get(identity)
        is_cancelled = found is not None and found.cancel()
        done.append({"id": identity, "cancelled": is_cancelled})
        if not is_cancelled:
            left += 1
            why = "has passed before"
            if found is None:
                where = plain(str(group.path)) if isinstance(group, fsqueue.Group) else "GROUP"
                why = f"is not known, or its file is damaged ('fsqueue fsck {where}' tells)"
            complain(f"{_place(group)}: the barrier {plain(identity)} {why}: nothing was cancelled")
    if as_json:
        for one in done:
            print_json(one)
    else:
        print_done(False, None, len(ids) - left)
    if left:
        raise click.exceptions.Exit(NOTHING_EXIT)


def _list(group: AnyGroup, as_json: bool) -> None:
    found = group.barriers()
    if as_json:
        for one in found:
            print_json(one.as_dict())
    elif found:
        say(*_lines(found))
    else:
        hint(f"{_place(group)} has no barriers")


def _lines(found: list[fsqueue.Barrier]) -> Iterator[str]:
    for one in found:
        awaited = ", ".join(one.of) if one.match is None else f"--match {one.match}"
        if one.is_join:
            awaited = f"tasks of {awaited}"
        then = ", ".join(dict.fromkeys(one.then))
        tasks = wording.counted(len(one.then), "task")
        yield f"{one.id}  {one.state:<9}  {plain(awaited)} -> {plain(then)} ({tasks})"
