"""Conditions on tasks, as `--where` takes them: all commands have the same fields, those of `fsqueue.Result`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click

import fsqueue
from fsqueue.format import wording

from . import habits

FIELDS = fsqueue.Result._fields
"""What conditions may be about, whatever a command lists: tasks, results or dead letters."""

_CONDITION = re.compile(r"([\w.-]+?)\s*(!=|!~|<=|>=|=|~|<|>)(.*)", re.DOTALL)

Item = fsqueue.TaskInfo | fsqueue.Result | fsqueue.DeadLetter


class Condition(NamedTuple):
    """A condition, as it was typed, and a function that tells whether a task meets it."""

    text: str
    holds: Callable[[fsqueue.Result], bool]


def condition(value: str) -> Condition:
    """Parse FIELD=VALUE and the like."""
    return Condition(value, _parsed(value))


def _parsed(value: str) -> Callable[[fsqueue.Result], bool]:
    match = _CONDITION.fullmatch(value)
    path = match[1].split(".") if match else []
    if match is None and value.partition(".")[0] in FIELDS:
        raise click.BadParameter(f"{value!r} is a field without what it is compared with. {habits.NOT_QUOTED}")
    if match is None or path[0] not in FIELDS:
        raise click.BadParameter(
            f"{value!r} is not a condition. Write FIELD=VALUE (or != < <= > >=; ~ and !~ search a regular expression) "
            f"with a FIELD of {', '.join(FIELDS)}, or one inside, such as payload.name or result.loss."
        )
    operator, wanted = match[2], match[3].strip()
    if "~" in operator:
        try:
            pattern = re.compile(wanted)
        except re.error as error:
            raise click.BadParameter(f"{wanted!r} is not a regular expression: {error}.") from None
        return lambda result: (pattern.search(_shown(_field(result, path))) is not None) == (operator == "~")
    if operator in ("=", "!="):
        return lambda result: (_shown(_field(result, path)) == wanted) == (operator == "=")
    try:
        limit = float(wanted)
    except ValueError:
        raise click.BadParameter(f"{operator} compares numbers, and {wanted!r} is not a number.") from None
    return lambda result: _compare(_field(result, path), operator, limit)


where_option = click.option(
    "--where",
    "conditions",
    type=condition,
    multiple=True,
    help="Only those with, for instance, payload.seed=7, 'result.loss<0.1', error~timeout, host=node17. "
    "May be repeated.",
)


def all_of(conditions: tuple[Condition, ...]) -> Callable[[Item], bool] | None:
    """Return a function that tells whether a task meets all conditions; None if there are none."""
    if not conditions:
        return None

    def meets_all(item: Item) -> bool:
        result = _as_result(item)
        return all(one.holds(result) for one in conditions)

    return meets_all


def in_words(noun: str, named: Sequence[str] | None, path: str, conditions: tuple[Condition, ...]) -> str:
    """Return which tasks of a queue a command is about to change. `named`: their ids; None for all."""
    if named is None:
        which = f"all {noun}s of {path}"
    else:
        which = f"the {wording.counted(len(named), f'named {noun}')} of {path}"
        which = f"those of {which}" if conditions else which
    return f"{which} that meet the conditions" if conditions else which


def _field(result: fsqueue.Result, path: list[str]) -> Any:
    value = getattr(result, path[0])
    for name in path[1:]:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _as_result(item: Item) -> fsqueue.Result:
    """Return a task's facts as `fsqueue results` shows them. Of an unfinished one, some are None."""
    return item if isinstance(item, fsqueue.Result) else item.as_result()


def _shown(value: Any) -> str:
    """Return a value as a user types it: strings as they are, all else as JSON."""
    if isinstance(value, str):
        return value
    import orjson

    return "" if value is None else orjson.dumps(value, default=str).decode()


def _compare(value: Any, operator: str, limit: float) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    below, equal = value < limit, value == limit
    return (equal and "=" in operator) or (below if "<" in operator else not below and not equal)
