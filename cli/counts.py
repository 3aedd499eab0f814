"""Print what a verb did to tasks that were named: how many, and which of them the queue does not know."""

from __future__ import annotations

from collections.abc import Sequence

import click

from .printing import complain, done, print_json, say

UNKNOWN_EXIT = 3
"""That of TaskNotFound."""
SHOWN_MAX = 20
"""Unknown ids that are named one by one; the rest is counted."""


def print_count(name: str, count: int, as_json: bool, unknown: Sequence[str] = ()) -> None:
    """Print a number, or both as JSON. Ids that the queue does not know are named; the exit code is that of `show`."""
    with done():
        if as_json:
            print_json({name: count, **({"unknown": list(unknown)} if unknown else {})})
        else:
            say(count)
    say_unknown(unknown)
    if unknown:
        raise click.exceptions.Exit(UNKNOWN_EXIT)


def say_unknown(ids: Sequence[str]) -> None:
    """Name the ids that neither the queue nor its history knows."""
    for task_id in ids[:SHOWN_MAX]:
        complain(f"{task_id}: neither the queue nor its history has this task. Check the id and the queue.")
    if len(ids) > SHOWN_MAX:
        complain(f"unknown ids not shown: {len(ids) - SHOWN_MAX:,}")
