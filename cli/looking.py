"""ls, show: looking at tasks changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, cast

import click

import fsqueue
from fsqueue.format import wording
from fsqueue.views import outcomes

from .common import brief, example, group_at, json_option, match_option, moment, queue_argument, queue_at, refuse_lost
from .conditions import Condition, Item, all_of, where_option
from .printing import or_hint, print_json, print_table, say

STATES = ("waiting", "delayed", "leased", "completed", "dead", "cancelled")
RETRYING = "retrying"
"""Waiting or delayed, since the last attempt has failed. No state of its own."""


@click.command(
    epilog=example(
        """fsqueue ls Q --state leased
fsqueue ls /scratch/me/crawl --match '.*#fetch'          # the queues of a group
fsqueue ls Q --where 'attempts>1' --json | jq -r .id"""
    )
)
@queue_argument
@click.option("--state", type=click.Choice([*STATES, RETRYING]),
              help="Only tasks in this state; retrying: to be tried again [all unfinished].")  # fmt: skip
@where_option
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Stop after N tasks, or N queues.")
@match_option
@click.option("--min", "tasks_min", type=click.IntRange(min=0), metavar="N",
              help="Of a group: only queues with at least N unfinished tasks; 0: all [1].")  # fmt: skip
@json_option
def ls(
    queue: str, state: str | None, conditions: tuple[Condition, ...], limit: int | None, match: str | None,
    tasks_min: int | None, as_json: bool,
) -> None:  # fmt: skip
    """List the tasks of Q, in no particular order; or the queues of the group Q, by name.

    Finished tasks are listed while the history keeps them, with their payloads if it keeps those; completed ones with
    their results. 'fsqueue results' makes tables of them. A task that changes its state while the
    command reads the queue may appear in either state.

    A queue of a group whose tasks cannot be counted is named on standard error. The others are listed, and the command
    ends with exit code 5.
    """
    group = group_at(queue, {"--match": match, "--min": tasks_min})
    if group is not None:
        if state is not None or conditions:
            raise click.UsageError(f"{queue} is a group. To list tasks, name one of its queues: {queue}/NAME")
        _list_queues(group, match, 1 if tasks_min is None else tasks_min, limit, as_json)
        return
    with queue_at(queue) as q:
        found = _listed(q, state, all_of(conditions))
        tasks: Iterator[fsqueue.TaskInfo] = islice(found, limit)
        if as_json:
            for task in tasks:
                print_json(task.as_dict())
            return
        if limit != 0:
            tasks = or_hint(tasks, _none(str(q.path), state, bool(conditions)))
        heading: tuple[str, ...] = ("TASK", "STATE", "ATTEMPT", "UNTIL" if state == "delayed" else "SINCE")
        known = ((task, (task.id, task.state, str(task.attempt), _time_of(task, state))) for task in tasks)
        rows: Iterator[tuple[str, ...]]
        if state == "completed":
            rows = ((*begin, f"{brief(task.payload, 60)} -> {brief(task.result, 60)}") for task, begin in known)
            heading = (*heading, "PAYLOAD -> RESULT")
        elif q.has_priorities:
            rows = ((*begin, _priority(task), brief(task.payload)) for task, begin in known)
            heading = (*heading, "PRIORITY", "PAYLOAD")
        else:
            rows = ((*begin, brief(task.payload)) for task, begin in known)
            heading = (*heading, "PAYLOAD")
        print_table(rows, (36, 9, 7, 19, 8)[: len(heading) - 1], heading)


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


def _listed(q: fsqueue.Queue, state: str | None, where: Callable[[Item], bool] | None) -> Iterator[fsqueue.TaskInfo]:
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


def _list_queues(group: fsqueue.Group, match: str | None, tasks_min: int, limit: int | None, as_json: bool) -> None:
    """List queues of a group, each with a hint of how many tasks it has left; with 0 none is looked into.

    A queue that cannot be counted is named, and the others are listed. Then the command ends as it does for that queue
    alone.
    """
    lost: list[fsqueue.QueueFileLost] = []
    queues = islice(group.queues(match, tasks_min), limit)
    for queue in queues if as_json or limit == 0 else or_hint(queues, _no_queue(str(group.path), match, tasks_min)):
        try:
            left = queue.status(exact=False).remaining if tasks_min else None
        except fsqueue.QueueFileLost as error:
            lost.append(error)
            continue
        if as_json:
            about = {} if left is None else {"remaining": left}
            print_json({"name": queue.name, "queue": f"{group.path}/{queue.name}", **about})
        elif left is None:
            say(queue.name)
        else:
            say(f"{left:>12,}  {queue.name}")
        queue.close()
    refuse_lost(lost)


def _retrying(q: fsqueue.Queue) -> Iterator[fsqueue.TaskInfo]:
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


@click.command(epilog=example("fsqueue show Q 0193f0c2a4b97c31a2d5e8f001234567.12"))
@queue_argument
@click.argument("task", metavar="TASK")
@json_option
def show(queue: str, task: str, as_json: bool) -> None:
    """Show everything about one task of Q, by its id or a token: state, payload, worker, and its history."""
    task_id = task.partition("@")[0]
    with queue_at(queue) as q:
        info = q.task(task_id)
        try:
            movements = q.history(task_id)
        except fsqueue.TaskNotFound:
            movements = []  # the queue keeps none of finished tasks, but their dead letters
        settled = outcomes.settled_as(q.store, task_id) if info.state in ("completed", "dead") else None
        kin = fsqueue.Group(q.group.path).lineage(q.name, task_id) if isinstance(q, fsqueue.GroupQueue) else None
    done, new_id = settled or (None, None)
    if as_json:
        more: dict[str, Any] = {"settled": done, "retried_as": new_id} if done is not None else {}
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
    say("history")
    for move in movements:
        if move.op == "renew" and move.until is not None and move.until < move.at:  # see `revoking.expire`
            say(f"  {moment(move.at)}  released, its worker was proven dead (lease {move.lease})")
            continue
        rest = {name: value for name, value in move.as_dict().items() if name not in ("op", "at")}
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
