"""Conditions on what is listed: FIELD=VALUE and the like, as `--where` takes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from . import habits

_CONDITION = re.compile(r"([\w.-]+?)\s*(!=|!~|<=|>=|=|~|<|>)(.*)", re.DOTALL)

Condition = Callable[[Any], bool]


def where_option(fields: Sequence[str], instances: str) -> Callable[[Any], Any]:
    """Return the option `--where` for items with these attributes. `instances`: a few conditions, for the help."""

    def parsed(value: str) -> Condition:
        return condition(value, fields)

    parsed.__name__ = "condition"  # as click calls it in the help
    return click.option(
        "--where",
        "conditions",
        type=parsed,
        multiple=True,
        help=f"Only those with, for instance, {instances}. May be repeated.",
    )


def all_of(conditions: tuple[Condition, ...]) -> Condition | None:
    """Return the condition that all of these hold; None if there are none."""
    return (lambda item: all(holds(item) for holds in conditions)) if conditions else None


def condition(value: str, fields: Sequence[str]) -> Condition:
    """Parse FIELD=VALUE and the like. Return a function that tells whether an item meets it."""
    match = _CONDITION.fullmatch(value)
    path = match[1].split(".") if match else []
    if match is None and value.partition(".")[0] in fields:
        raise click.BadParameter(f"{value!r} is a field without what it is compared with. {habits.NOT_QUOTED}")
    if match is None or path[0] not in fields:
        raise click.BadParameter(
            f"{value!r} is not a condition. Write FIELD=VALUE (or != < <= > >=; ~ and !~ search a regular expression) "
            f"with a FIELD of {', '.join(fields)}, or one inside, such as payload.name{_inside(fields)}."
        )
    operator, wanted = match[2], match[3].strip()
    if "~" in operator:
        try:
            pattern = re.compile(wanted)
        except re.error as error:
            raise click.BadParameter(f"{wanted!r} is not a regular expression: {error}.") from None
        return lambda item: (pattern.search(_shown(_field(item, path))) is not None) == (operator == "~")
    if operator in ("=", "!="):
        return lambda item: (_shown(_field(item, path)) == wanted) == (operator == "=")
    try:
        limit = float(wanted)
    except ValueError:
        raise click.BadParameter(f"{operator} compares numbers, and {wanted!r} is not a number.") from None
    return lambda item: _compare(_field(item, path), operator, limit)


def _inside(fields: Sequence[str]) -> str:
    return " or result.loss" if "result" in fields else " or worker.host"


def _field(item: Any, path: list[str]) -> Any:
    value = getattr(item, path[0])
    for name in path[1:]:
        value = value.get(name) if isinstance(value, dict) else None
    return value


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
