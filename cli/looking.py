"""ls, show: looking at tasks changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import click

import fsqueue
from fsqueue.format import wording
from fsqueue.views import outcomes

from .common import (
    brief,
    example,
    json_option,
    match_option,
    moment,
    path_of,
    queue_argument,
    queues_argument,
)
from .conditions import Condition, Item, all_of, where_option
from .printing import or_hint, print_json, print_table, say
from .targets import Target, Targets, each_once, group_named, one_queue, place_of

if TYPE_CHECKING:
    from .targets import AnyQueue

STATES = ("waiting", "delayed", "leased", "completed", "dead", "cancelled")
RETRYING = "retrying"
"""Waiting or delayed, since the last attempt has failed. No state of its own."""


@click.command(
    epilog=example(
        """fsqueue ls Q --state leased
fsqueue ls /scratch/me/crawl --match '.*#fetch'          # the queues of a group
fsqueue ls /scratch/me/crawl --state leased              # tasks of all its queues
fsqueue ls Q --where 'attempts>1' --json | jq -r .id"""
    )
)
@queues_argument
@click.option("--state", type=click.Choice([*STATES, RETRYING]),
              help="Only tasks in this state; retrying: to be tried again [all unfinished].")  # fmt: skip
@where_option
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Stop after N tasks, or N queues.")
@match_option
@click.option("--min", "tasks_min", type=click.IntRange(min=0), metavar="N",
              help="Of a group: only queues with at least N unfinished tasks; 0: all [1].")  # fmt: skip
@json_option
def ls(
    queues: tuple[str, ...], state: str | None, conditions: tuple[Condition, ...], limit: int | None, match: str | None,
    tasks_min: int | None, as_json: bool,
) -> None:  # fmt: skip
    """List the tasks of Q, in no particular order; or the queues of the group Q, by name, and which are paused.

    With --state or --where, the tasks of all queues of a group are listed. Finished tasks are listed while the history
    keeps them, with their payloads if it keeps those; completed ones with their results. 'fsqueue results' makes tables
    of them. A task that changes its state while the command reads the queue may appear in either state.

    A queue of a group whose tasks cannot be counted is named on standard error. The others are listed, and the command
    ends with exit code 5. With --min 0 no queue is looked into: neither tasks nor pauses are known.
    """
    lists_tasks = state is not None or bool(conditions)
    if lists_tasks and tasks_min is not None:
        raise click.UsageError("--min lists queues of a group; with --state or --where, tasks are listed.")
    groups, others = _sorted_out(queues, match, tasks_min) if not lists_tasks else ([], [*queues])
    is_several = len(queues) > 1
    targets = Targets(others, match if lists_tasks else None, as_json, is_several=is_several or bool(groups))
    for group in groups:
        for path, error in _list_queues(
            group, match, 1 if tasks_min is None else tasks_min, limit, as_json, is_several
        ):
            targets.fail(error, path)
    if others:
        _list_tasks(targets, state, conditions, limit, as_json)
    targets.end()


def _sorted_out(
    given: Sequence[str], match: str | None, tasks_min: int | None
) -> tuple[list[fsqueue.Group | fsqueue.RemoteGroup], list[str]]:
    """Return the targets that are groups, and the others: queues, and targets that cannot be opened."""
    groups: list[fsqueue.Group | fsqueue.RemoteGroup] = []
    others: list[str] = []
    for one in dict.fromkeys(given):
        group = None
        try:
            group = group_named(one, {"--match": match, "--min": tasks_min})
        except fsqueue.FsqueueError:
            if len(given) == 1:
                raise
        if group is None:
            others.append(one)
        else:
            groups.append(group)
    return each_once(groups, path_of, place_of, {}), others


def _list_tasks(
    targets: Targets, state: str | None, conditions: tuple[Condition, ...], limit: int | None, as_json: bool
) -> None:
    found: Iterator[tuple[Target, fsqueue.TaskInfo]] = islice(_tasks_of(targets, state, conditions), limit)
    if as_json:
        for target, task in found:
            print_json(task.as_dict() | target.as_dict({}))
        targets.end()
        return
    if limit != 0 and targets.named:
        found = or_hint(found, _none(targets.described, state, bool(conditions)))
    before: tuple[tuple[str, int], ...] = (("QUEUE", 20),) if targets.is_several else ()
    columns = [*before, ("TASK", 36), ("STATE", 9), ("ATTEMPT", 7), ("UNTIL" if state == "delayed" else "SINCE", 19)]
    known = (
        ((target.name,) * len(before) + (task.id, task.state, str(task.attempt), _time_of(task, state)), task)
        for target, task in found
    )
    rows: Iterator[tuple[str, ...]]
    if state == "completed":
        rows = ((*begin, f"{brief(task.payload, 60)} -> {brief(task.result, 60)}") for begin, task in known)
        last = "PAYLOAD -> RESULT"
    elif targets.is_several or any(_has_priorities(targets)):
        rows = ((*begin, _priority(task), brief(task.payload)) for begin, task in known)
        columns, last = [*columns, ("PRIORITY", 8)], "PAYLOAD"
    else:
        rows = ((*begin, brief(task.payload)) for begin, task in known)
        last = "PAYLOAD"
    print_table(rows, tuple(width for _, width in columns), (*(name for name, _ in columns), last))
    targets.end()


def _has_priorities(targets: Targets) -> Iterator[bool]:
    for target in targets:
        with target as q:
            yield q.has_priorities


def _tasks_of(
    targets: Targets, state: str | None, conditions: tuple[Condition, ...]
) -> Iterator[tuple[Target, fsqueue.TaskInfo]]:
    """Yield the tasks that are meant, each with its queue."""
    for target in targets:
        with target as q:
            for task in _listed(q, state, all_of(conditions)):
                yield target, task


def _none(path: str, state: str | None, is_conditional: bool) -> str:
    """Say that no task is listed. Of finished tasks only those are, that the history keeps."""
    if is_conditional:
        kind = "unfinished" if state is None else state
        return f"{path} has no {kind} tasks{_on_record(state)} that meet the conditions"
    if state is None:
        return f"{path} has no unfinished tasks; --state lists finished ones"
    return f"{path} has no {state} tasks{_on_record(state)}"


def _on_record(state: str | None) -> str:
    return " on record" if state in ("completed", "cancelled") else ""


def _listed(q: AnyQueue, state: str | None, where: Callable[[Item], bool] | None) -> Iterator[fsqueue.TaskInfo]:
    """Yield the tasks in a state that meet the conditions. What a finished one used, only its result tells."""
    if state == RETRYING:
        return filter(where, _retrying(q))
    tasks = q.tasks(cast("fsqueue.State | None", state))
    if where is None or state not in ("completed", "dead"):
        return filter(where, tasks)
    ids = {result.id for result in q.results(where, dead=state == "dead")}
    return (task for task in tasks if task.id in ids)


def _no_queue(path: str, match: str | None, tasks_min: int) -> str:
    """Say that no queue of a group is listed."""
    named = "" if match is None else f" whose whole name matches {match}"
    tasks = f" with {wording.counted(tasks_min, 'unfinished task')} or more" if tasks_min else ""
    return f"{path} has no queue{named}{tasks}" + ("; --min 0 lists all queues" if tasks_min else "")


def _list_queues(
    group: fsqueue.Group | fsqueue.RemoteGroup,
    match: str | None,
    tasks_min: int,
    limit: int | None,
    as_json: bool,
    is_several: bool,
) -> Iterator[tuple[str, fsqueue.FsqueueError]]:
    """List queues of a group, each with a hint of how many tasks it has left, and whether it is paused.

    With `tasks_min` 0 none is looked into. Yield the errors of those that cannot be counted: the others are listed.
    `is_several`: groups; each queue is named by its path.
    """
    each: Iterator[AnyQueue] = group.queues(match, tasks_min)
    queues = islice(each, limit)
    for queue in queues if as_json or limit == 0 else or_hint(queues, _no_queue(path_of(group), match, tasks_min)):
        about: dict[str, Any] = {}
        found: fsqueue.Pause | None = None
        try:
            if tasks_min:
                found = queue.paused
                about = {"remaining": queue.status(exact=False).remaining, "paused": found and found.as_dict()}
        except fsqueue.FsqueueError as error:
            yield path_of(queue), error
            continue
        name = path_of(queue) if is_several else queue.name  # type: ignore[union-attr]  # a group's has one
        if as_json:
            print_json({"name": queue.name, "queue": path_of(queue), **about})  # type: ignore[union-attr]
        elif not about:
            say(name)
        else:
            say(f"{about['remaining']:>12,}  {name}" + (f"  (paused {found})" if found is not None else ""))
        if isinstance(queue, fsqueue.Queue):
            queue.close()


def _retrying(q: AnyQueue) -> Iterator[fsqueue.TaskInfo]:
    return (task for task in q.tasks() if task.error is not None and task.state != "leased")


def _time_of(task: fsqueue.TaskInfo, state: str | None) -> str:
    """Return when the task came into its state; of a delayed one, until when it stays there."""
    if task.state != "delayed":
        return moment(task.since)
    until = moment(task.available_at)
    return until if state == "delayed" else f"until {until}"


def _priority(task: fsqueue.TaskInfo) -> str:
    """Return a task's priority as `lease --up-to` takes it, shortened."""
    return "" if task.priority is None else brief(wording.priority_text(task.priority), 40)


@click.command(
    epilog=example(
        """fsqueue show Q 0193f0c2a4b97c31a2d5e8f001234567.12
fsqueue show Q --key run-17"""
    )
)
@queue_argument
@click.argument("task", metavar="[TASK]", required=False)
@click.option("--key", help="In place of TASK: the unfinished task that has this key.")
@json_option
def show(queue: str, task: str | None, key: str | None, as_json: bool) -> None:
    """Show everything about one task of Q, by its id or a token: state, payload, worker, and its history.

    Of a task that was retried it names the new one, and of that the dead letter, or the completed task, that it was.
    """
    if (task is None) == (key is None):
        raise click.UsageError("Name one task: by its id, as 'fsqueue ls' prints it, or by --key KEY.")
    with one_queue(queue) as q:
        info = q.task(task.partition("@")[0]) if task is not None else q.find_by_key(str(key))
        task_id = info.id
        try:
            movements = q.history(task_id)
        except fsqueue.TaskNotFound:
            movements = []  # the queue keeps none of finished tasks, but their dead letters
        settled = None
        if isinstance(q, fsqueue.Queue) and info.state in ("completed", "dead"):
            settled = outcomes.settled_as(q.store, task_id)
        kin = fsqueue.Group(q.group.path).lineage(q.name, task_id) if isinstance(q, fsqueue.GroupQueue) else None
    done, new_id = settled or (None, None)
    first = next((move.repeats for move in movements if move.repeats is not None), None)
    if as_json:
        more: dict[str, Any] = {"settled": done, "retried_as": new_id} if done is not None else {}
        more |= {"retry_of": first} if first is not None else {}
        more |= {"lineage": kin.as_dict()} if kin is not None else {}
        print_json(info.as_dict() | more | {"history": [move.as_dict() for move in movements]})
        return
    times = ("since", "available_at", "lease_until")
    for name, value in info.as_dict().items():
        if value is not None:
            text = moment(value) if name in times else _priority(info) if name == "priority" else _text(value)
            say(*f"{name.replace('_', ' '):<13} {text}".split("\n"))
    if done is not None:
        say(f"{done + ' as' if new_id else done:<13} {new_id or 'it is a dead letter no longer'}")
    if first is not None:
        say(f"{'retry of':<13} {first}")
    say("history")
    is_held = False
    for move in movements:
        was_held, is_held = is_held, move.op in ("lease", "renew")
        if move.op == "renew" and move.until is not None and move.until < move.at:  # see `revoking.expire`
            say(f"  {moment(move.at)}  released, its worker was proven dead (lease {move.lease})")
            continue
        rest = {name: value for name, value in move.as_dict().items() if name not in ("op", "at")}
        if move.op == "change" and not rest:
            # Of a leased task: see `limiting.end`. The history keeps no priorities of payloads that are not kept.
            what = "expired   the place of its lease was needed (a limit)" if was_held else "change    its priority"
            say(f"  {moment(move.at)}  {what}")
            continue
        shown = [
            f"{name} {moment(value) if name in ('until', 'available_at') else _text(value)}"
            for name, value in rest.items()
        ]
        say(*f"  {moment(move.at)}  {move.op:<9} {', '.join(shown)}".rstrip().split("\n"))
    if kin is not None:
        _say_lineage(kin)


def _say_lineage(kin: fsqueue.Lineage) -> None:
    """Print the tasks that a task came of, the earliest stage first, and those that came of it, indented by stage."""
    for title, found in (("came of", list(reversed(kin.ancestors))), ("led to", kin.successors)):
        if found:
            say(title)
        for one in found:
            among = f" (one of {one.among} that its update has ended)" if one.op != "insert" and one.among > 1 else ""
            indent = "  " * max(1, one.steps)
            say(f"{indent}{moment(one.at)}  {one.op:<9} {brief(one.queue)} {one.id}{among}")
    if not kin.is_whole:
        say("There may be more: not all that leads to the other tasks of its updates was read, or is still there.")


def _text(value: Any) -> str:
    """Return a value in full; of several lines, as of an error, the later ones indented."""
    if isinstance(value, str) and "\n" in value:
        return "\n    ".join(value.split("\n"))
    if isinstance(value, dict):
        return " ".join(f"{brief(name)}={brief(item)}" for name, item in value.items())
    return brief(value, 10_000)
