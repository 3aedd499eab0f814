"""change: the priority or the time of tasks that wait."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

import fsqueue

from .common import NOTHING_EXIT, UNKNOWN_EXIT, example, is_id, json_option, queue_argument, say_unknown, words
from .conditions import Condition, all_of, where_option
from .options import DURATION, MOMENT, PRIORITY
from .printing import complain, print_done
from .targets import one_queue, state_of

if TYPE_CHECKING:
    from .targets import AnyQueue

ASKED_MAX = 100
"""Of how many tasks that were not changed the command asks for the state: each costs a look."""


def _priority(ctx: click.Context, param: click.Parameter, given: str | None) -> str | int | None:
    """Return the priority that is meant. The option is a text, as `insert --priority`, which names a field, is one."""
    return None if given is None else PRIORITY.convert(given, param, ctx)


@click.command(
    epilog=example(
        """fsqueue change Q 0193f0c2a4b97c31a2d5e8f001234567.12 --priority 1
fsqueue change Q --where 'payload.site=north' --at 2026-12-01T18:00
fsqueue change Q nightly-report --delay 0               # the task with this key, at once"""
    )
)
@queue_argument
@click.argument("tasks", metavar="[TASK|KEY]...", nargs=-1)
@where_option
@click.option("--priority", metavar="PRIORITY", callback=_priority,
              help="The new priority: smaller ones come first. 5 is a number, '\"5\"' a text.")  # fmt: skip
@click.option("--no-priority", is_flag=True, help="Take the priority away: such tasks come last.")
@click.option("--delay", "delay_s", type=DURATION, help="How long from now until they are available. 0: at once.")
@click.option("--at", "available_at", metavar="TIME", type=MOMENT,
              help="When they are available: 2026-12-01T18:00 (local), 2026-12-01T18:00Z, or Unix "
              "seconds.")  # fmt: skip
@json_option
def change(
    queue: str, tasks: tuple[str, ...], conditions: tuple[Condition, ...], priority: str | int | None,
    no_priority: bool, delay_s: float | None, available_at: float | None, as_json: bool,
) -> None:  # fmt: skip
    """Change the priority or the time of waiting tasks of Q: the TASKs, those with the KEYs, or those of --where.

    With both, those of the named ones that meet the conditions. '-' reads ids and keys from standard input. Ids, keys
    and attempts stay, and so does what is not given. Leased and finished tasks stay as they are, and are named. To find
    a KEY, or what --where means, all unfinished tasks are read.

    Exit code 3: none was changed; 13: there is no such task.
    """
    if not tasks and not conditions:
        raise click.UsageError("Say which tasks: TASKs, KEYs or --where. Nothing was changed.")
    if priority is None and not no_priority and delay_s is None and available_at is None:
        raise click.UsageError("Say what to change: --priority, --no-priority, --delay or --at. Nothing was changed.")
    if priority is not None and no_priority:
        raise click.UsageError("Give either --priority or --no-priority. Nothing was changed.")
    if delay_s is not None and available_at is not None:
        raise click.UsageError("Give either --delay or --at. Nothing was changed.")
    with one_queue(queue) as q:
        chosen, unknown = _chosen(q, list(dict.fromkeys(words(tasks))), conditions, bool(tasks))
        report = q.change(
            chosen, priority=priority, no_priority=no_priority, delay_s=delay_s, available_at=available_at
        )
        _report(q, chosen, unknown, report, as_json)


def _chosen(
    q: AnyQueue, named: list[str], conditions: tuple[Condition, ...], is_named: bool
) -> tuple[list[str], list[str]]:
    """Return the ids of the tasks that are meant, and the keys that no unfinished task has."""
    ids = [one for one in named if is_id(one)]
    wanted = dict.fromkeys(one for one in named if not is_id(one))
    where = all_of(conditions)
    if not wanted and where is None:
        return ids, []
    found: dict[str, str] = {}
    met: set[str] = set()
    for task in q.tasks():
        if task.key is not None and task.key in wanted:
            found[task.key] = task.id
        if where is not None and where(task):
            met.add(task.id)
    ids += [found[key] for key in wanted if key in found]
    if where is not None:
        ids = [one for one in ids if one in met] if is_named else sorted(met)
    return list(dict.fromkeys(ids)), [key for key in wanted if key not in found]


def _report(q: AnyQueue, chosen: list[str], no_keys: list[str], report: fsqueue.ChangeReport, as_json: bool) -> None:
    gone = {*report.changed, *report.leased}
    left = [one for one in chosen if one not in gone]
    states = {one: state_of(q, one) for one in left[:ASKED_MAX]}
    unknown = [one for one in left if one in states and states[one] is None]
    ended = [one for one in left if one not in unknown]
    said = {"changed": report.changed, "leased": report.leased, "ended": ended}
    missing = unknown + no_keys
    print_done(as_json, said | ({"unknown": missing} if missing else {}), len(report.changed))
    for one in report.leased[:ASKED_MAX]:
        complain(f"{one} is leased, and stays as it is: a worker holds it. 'fsqueue workers' tells which")
    for one in filter(states.__contains__, ended):
        complain(f"{one} ({states[one]}) stays as it is: it has ended")
    for key in no_keys:
        complain(f"no unfinished task has the key {key!r}")
    say_unknown(unknown)
    if not report.changed:
        raise click.exceptions.Exit(UNKNOWN_EXIT if missing else NOTHING_EXIT)
