"""dead list, retry, purge: the tasks that were given up."""

from __future__ import annotations

from dataclasses import dataclass

import click

import fsqueue
from fsqueue.views import outcomes
from fsqueue.views.activity import alike

from .common import (
    brief,
    confirm,
    confirm_at_terminal,
    example,
    ids_argument,
    json_option,
    moment,
    print_count,
    queue_argument,
    queue_at,
    words,
    yes_option,
)
from .conditions import Condition, all_of, in_words, where_option
from .printing import hint, or_hint, plain, print_json, print_table, quoted, say

EXAMPLES_MAX = 3
"""Maximum number of tasks of a group that are shown."""
PAYLOAD_CHARS = 60
"""Maximum number of characters of a payload that are shown."""


@click.group()
def dead() -> None:
    """Dead letters: tasks that were given up, with the reason and the last worker."""


@dataclass
class _Group:
    """Dead letters whose reasons differ in numbers only (but for exit statuses)."""

    headline: str
    count: int
    last: float
    examples: list[fsqueue.DeadLetter]
    is_one: bool = True
    """Whether all their reasons have the same first line."""


@dead.command("list", epilog=example("fsqueue dead list Q\nfsqueue dead list Q --where host=node17 --each"))
@queue_argument
@where_option
@click.option("--each", is_flag=True, help="Each on a line of its own, not grouped.")
@json_option
def list_(queue: str, conditions: tuple[Condition, ...], each: bool, as_json: bool) -> None:
    """List the dead letters of Q, grouped by the first line of their reason; with --json, each.

    Reasons that differ in numbers only are one group. Of each group some tasks are shown with their payload, and with
    their own reason where the reasons differ. 'fsqueue show Q TASK' shows the whole reason, with the output's end.
    """
    with queue_at(queue) as q:
        letters = q.dead(where=all_of(conditions))
        if as_json:
            for letter in letters:
                print_json(letter.as_dict())
            return
        none = f"no dead letter of {q.path} meets the conditions" if conditions else f"{q.path} has no dead letters"
        letters = or_hint(letters, none)
        if each:
            print_table(
                ((letter.id, moment(letter.at), brief(letter.payload, 40), _first_line(letter)) for letter in letters),
                (36, 19, 40),
            )
        else:
            groups: dict[str, _Group] = {}
            for letter in letters:
                first = _first_line(letter)
                group = groups.setdefault(alike(first), _Group(first, 0, 0.0, []))
                group.count += 1
                group.last = max(group.last, letter.at)
                group.is_one = group.is_one and first == group.headline
                group.examples += [letter] if len(group.examples) < EXAMPLES_MAX else []
            for group in sorted(groups.values(), key=lambda group: -group.count):
                say(f"{group.count:>9,}  {group.headline}  (last {moment(group.last)})")
                for letter in group.examples:
                    own = "" if group.is_one else f"  {_first_line(letter)}"
                    say(f"{'':>11}{letter.id}  {brief(letter.payload, PAYLOAD_CHARS)}{own}")
                if group.count > len(group.examples):
                    say(f"{'':>11}and {group.count - len(group.examples):,} more")
            if groups:
                _say_what_next(str(q.path), next(iter(groups.values())).examples[0].id)


def _say_what_next(path: str, task_id: str) -> None:
    queue = quoted(path)
    hint(
        f"The whole of one: fsqueue show {queue} {task_id}. Each on a line: fsqueue dead list {queue} --each",
        f"When the cause is mended: fsqueue dead retry {queue}. To drop them for good: fsqueue dead purge {queue}",
    )


def _first_line(letter: fsqueue.DeadLetter) -> str:
    return plain(letter.reason.partition("\n")[0])


@dead.command(epilog=example("fsqueue dead retry Q --where error~timeout"))
@queue_argument
@ids_argument
@where_option
@yes_option
@json_option
def retry(queue: str, ids: tuple[str, ...], conditions: tuple[Condition, ...], yes: bool, as_json: bool) -> None:
    """Make dead letters of Q waiting tasks again, with all their attempts, as 'fsqueue retry Q' does.

    Without TASKs and conditions, the command retries all dead letters. With TASKs ('-': from standard input) or
    conditions, it retries only these; with both, those of the TASKs that meet the conditions. The tasks get new ids:
    'fsqueue show' of an old id tells the new id, and of a new one the old. On a terminal, the command asks first.
    Exit code 13: there is no such task.
    """
    retry_letters(queue, ids, conditions, yes, as_json)


def retry_letters(
    queue: str, ids: tuple[str, ...], conditions: tuple[Condition, ...], yes: bool, as_json: bool
) -> None:
    """Retry dead letters: those with these ids that meet the conditions."""
    with queue_at(queue) as q:
        chosen = list(dict.fromkeys(words(ids)))
        confirm_at_terminal(f"Retry {in_words('dead letter', chosen if ids else None, q.path, conditions)}?", yes)
        where = all_of(conditions)
        count = q.retry_dead(chosen, where=where) if ids else q.retry_dead(where=where)
        unknown = outcomes.unknown(q.store, chosen) if chosen else []
    print_count("retried", count, as_json, unknown)


@dead.command(epilog=example("fsqueue dead purge Q --where 'finished_at<1790000000' --yes"))
@queue_argument
@ids_argument
@where_option
@yes_option
@json_option
def purge(queue: str, ids: tuple[str, ...], conditions: tuple[Condition, ...], yes: bool, as_json: bool) -> None:
    """Drop dead letters of Q for good.

    All of them, unless TASKs are named ('-': from standard input) or conditions given. With both, those of the TASKs
    that meet the conditions. Exit code 13: there is no such task.
    """
    with queue_at(queue) as q:
        chosen = list(dict.fromkeys(words(ids)))
        confirm(f"Drop {in_words('dead letter', chosen if ids else None, q.path, conditions)} for good?", yes)
        where = all_of(conditions)
        count = q.purge_dead(chosen, where=where) if ids else q.purge_dead(where=where)
        unknown = outcomes.unknown(q.store, chosen) if chosen else []
    print_count("purged", count, as_json, unknown)
