"""dead list, retry, purge: the tasks that were given up."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import click

import fsqueue
from fsqueue.views.activity import alike

from .common import (
    brief,
    example,
    json_option,
    match_option,
    moment,
    queues_and_tasks_argument,
    queues_argument,
    yes_option,
)
from .conditions import Condition, all_of, in_words, where_option
from .printing import hint, or_hint, plain, print_json, print_table, quoted, say
from .targets import Target, Targets, unknown_in, with_tasks

EXAMPLES_MAX = 3
"""Maximum number of tasks of a group that are shown."""
PAYLOAD_CHARS = 60
"""Maximum number of characters of a payload that are shown."""


@click.group()
def dead() -> None:
    """Dead letters: tasks that were given up, with the reason and the last worker."""


@dataclass
class _Group:
    """Dead letters whose reasons are `alike`."""

    headline: str
    count: int
    last: float
    examples: list[tuple[Target, fsqueue.DeadLetter]]
    is_one: bool = True
    """Whether all their reasons have the same first line."""


@dead.command(
    "list",
    epilog=example(
        """fsqueue dead list Q
fsqueue dead list Q --where host=node17 --each
fsqueue dead list /scratch/me/crawl --match '.*#fetch'      # of several queues of a group, together"""
    ),
)
@queues_argument
@match_option
@where_option
@click.option("--each", is_flag=True, help="Each on a line of its own, not grouped.")
@json_option
def list_(
    queues: tuple[str, ...], match: str | None, conditions: tuple[Condition, ...], each: bool, as_json: bool
) -> None:
    """List the dead letters of Q, grouped by the first line of their reason; with --json, each.

    Reasons that differ in numbers only are one group, and so are all that begin with 'out of memory'. Of each group
    some tasks are shown with their payload, and with their own reason where the reasons differ. 'fsqueue show Q TASK'
    shows the whole reason, with the output's end.

    Q may be a group of queues: then the letters of all its queues are grouped together.
    """
    targets = Targets(queues, match, as_json)
    letters = _letters(targets, conditions)
    if as_json:
        for target, letter in letters:
            print_json(target.as_dict(letter.as_dict()))
        targets.end()
        return
    letters = or_hint(letters, _none(targets, bool(conditions))) if targets.named else letters
    if each:
        of_queue = (lambda target: (target.name,)) if targets.is_several else lambda target: ()
        rows = (
            (*of_queue(target), letter.id, moment(letter.at), brief(letter.payload, 40), _first_line(letter))
            for target, letter in letters
        )
        print_table(rows, (*(20,) * targets.is_several, 36, 19, 40))
        targets.end()
        return
    groups: dict[str, _Group] = {}
    for target, letter in letters:
        first = _first_line(letter)
        group = groups.setdefault(alike(first), _Group(first, 0, 0.0, []))
        group.count += 1
        group.last = max(group.last, letter.at)
        group.is_one = group.is_one and first == group.headline
        group.examples += [(target, letter)] if len(group.examples) < EXAMPLES_MAX else []
    for group in sorted(groups.values(), key=lambda group: -group.count):
        say(f"{group.count:>9,}  {group.headline}  (last {moment(group.last)})")
        for target, letter in group.examples:
            own = "" if group.is_one else f"  {_first_line(letter)}"
            of = f"{target.name}  " if targets.is_several else ""
            say(f"{'':>11}{of}{letter.id}  {brief(letter.payload, PAYLOAD_CHARS)}{own}")
        if group.count > len(group.examples):
            say(f"{'':>11}and {group.count - len(group.examples):,} more")
    if groups:
        target, letter = next(iter(groups.values())).examples[0]
        _say_what_next(targets, target.path, letter.id)
    targets.end()


def _letters(targets: Targets, conditions: tuple[Condition, ...]) -> Iterator[tuple[Target, fsqueue.DeadLetter]]:
    """Yield the dead letters of all queues, each with its queue."""
    for target in targets:
        with target as q:
            for letter in q.dead(where=all_of(conditions)):
                yield target, letter


def _none(targets: Targets, is_conditional: bool) -> str:
    if is_conditional:
        return f"no dead letter of {targets.described} meets the conditions"
    return f"{targets.described} {'have' if len(targets.named) > 1 else 'has'} no dead letters"


def _say_what_next(targets: Targets, path: str, task_id: str) -> None:
    of_all = " ".join(map(quoted, targets.given)) + (
        "" if targets.match is None else f" --match {quoted(targets.match)}"
    )
    hint(
        f"The whole of one: fsqueue show {quoted(path)} {task_id}. Each on a line: fsqueue dead list {of_all} --each",
        f"When the cause is mended: fsqueue dead retry {of_all}. To drop them for good: fsqueue dead purge {of_all}",
    )


def _first_line(letter: fsqueue.DeadLetter) -> str:
    return plain(letter.reason.partition("\n")[0])


@dead.command(
    epilog=example(
        """fsqueue dead retry Q --where error~timeout
fsqueue dead retry /scratch/me/crawl --match '.*#fetch'     # of queues of a group
fsqueue dead retry http://localhost:8750/fetch              # of a queue of a gateway"""
    )
)
@queues_and_tasks_argument
@match_option
@where_option
@yes_option
@json_option
def retry(
    arguments: tuple[str, ...], match: str | None, conditions: tuple[Condition, ...], yes: bool, as_json: bool
) -> None:
    """Make dead letters of Q waiting tasks again, with all their attempts, as 'fsqueue retry Q' does.

    Without TASKs and conditions, the command retries all dead letters. With TASKs ('-': from standard input) or
    conditions, it retries only these; with both, those of the TASKs that meet the conditions. The tasks get new ids:
    'fsqueue show' of an old id tells the new id, and of a new one the old. On a terminal, the command asks first.
    Exit code 13: there is no such task.

    Q may be a group: then of all its queues. A second Q needs a slash (./Q2), which tells it from a TASK.
    """
    retry_letters(arguments, match, conditions, yes, as_json)


def retry_letters(
    arguments: tuple[str, ...], match: str | None, conditions: tuple[Condition, ...], yes: bool, as_json: bool
) -> None:
    """Retry dead letters: those with these ids that meet the conditions."""
    targets, chosen = with_tasks(arguments, match, as_json)
    where = all_of(conditions)
    targets.confirm_at_terminal(f"Retry {in_words('dead letter', chosen, targets.described, conditions)}?", yes)
    for target in targets:
        with target as q:
            count = q.retry_dead(where=where) if chosen is None else q.retry_dead(chosen, where=where)
            target.print_count("retried", count, unknown_in(q, chosen or ()))
    targets.end()


@dead.command(
    epilog=example(
        """fsqueue dead purge Q --where 'finished_at<1790000000' --yes
fsqueue dead purge /scratch/me/crawl --match '.*#fetch'     # asks; of queues of a group"""
    )
)
@queues_and_tasks_argument
@match_option
@where_option
@yes_option
@json_option
def purge(
    arguments: tuple[str, ...], match: str | None, conditions: tuple[Condition, ...], yes: bool, as_json: bool
) -> None:
    """Drop dead letters of Q for good.

    All of them, unless TASKs are named ('-': from standard input) or conditions given. With both, those of the TASKs
    that meet the conditions. Exit code 13: there is no such task.

    Q may be a group: then of all its queues. A second Q needs a slash (./Q2), which tells it from a TASK.
    """
    targets, chosen = with_tasks(arguments, match, as_json)
    where = all_of(conditions)
    targets.confirm(f"Drop {in_words('dead letter', chosen, targets.described, conditions)} for good?", yes)
    for target in targets:
        with target as q:
            count = q.purge_dead(where=where) if chosen is None else q.purge_dead(chosen, where=where)
            target.print_count("purged", count, unknown_in(q, chosen or ()))
    targets.end()
