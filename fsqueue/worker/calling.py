"""Decide how a function gets a payload: as a whole, or its fields by name (docs/functions.md has the rules)."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fsqueue.errors import InvalidArgument


class Mismatch(ValueError):
    """Say why a function cannot be called with a payload."""


@dataclass(frozen=True, slots=True)
class Way:
    """How a function is called with one payload after the other."""

    name: str
    is_whole: bool
    """Whether it gets each payload as a whole, because a parameter is called `payload`, or because it does not say."""
    names: frozenset[str]
    """The parameters that a field can go to: those with a name, but for `task`."""
    required: frozenset[str]
    """Those of them that have no default."""
    can_be_named: bool
    """Whether all that it needs can be given by name."""
    payload_at: str
    """The name by which it gets a whole payload; "" for the first place."""
    cannot_be_whole: bool
    """Whether it needs more than the payload and the task."""
    task_is_second: bool
    """Whether it gets the task in the second place, behind a whole payload."""
    task_is_named: bool
    """Whether a parameter that can be given by name is called `task`."""
    task_is_apart: bool
    """Whether that one is in neither of the first two places, which a whole payload fills."""

    def arguments(self, payload: Any, task: Callable[[], Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return the arguments for a payload, by place and by name. Mismatch."""
        if not self.is_whole and self.can_be_named and isinstance(payload, dict) and payload:
            if self.required <= payload.keys() <= self.names:
                return [], {**payload, **({"task": task()} if self.task_is_named else {})}
            if len(self.names) > 1 and payload.keys() & self.names:
                raise Mismatch(self._told(payload))
        if self.cannot_be_whole:
            raise Mismatch(self._told(payload))
        placed = [] if self.payload_at else [payload]
        named = {self.payload_at: payload} if self.payload_at else {}
        if self.task_is_second:
            placed.append(task())
        elif self.task_is_apart:
            named["task"] = task()
        return placed, named

    def _told(self, payload: Any) -> str:
        takes = ", ".join(name if name in self.required else f"{name} (optional)" for name in sorted(self.names))
        has = f"has {', '.join(map(str, payload))}" if isinstance(payload, dict) and payload else "has no fields"
        return (
            f"{self.name} takes the fields {takes}, and the payload {has}. Name them alike; or call a parameter "
            "'payload', which gets the whole."
        )


def way_of(function: Callable[..., Any]) -> Way:
    """Return how a function is called. InvalidArgument if it takes no argument, or is an `async` function."""
    if inspect.iscoroutinefunction(function):
        raise InvalidArgument("A handler is a plain function, not an 'async' one: call asyncio.run in it.")
    name = getattr(function, "__name__", type(function).__name__)
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # built in: it does not say
        return Way(name, True, frozenset(), frozenset(), False, "", False, False, False, False)
    placed = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    named = [one for one in parameters if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    takes_any = bool(placed) or any(one.kind is one.VAR_POSITIONAL for one in parameters)
    fields = [one for one in named if one.name != "task"]
    if not takes_any and not fields:
        raise InvalidArgument(
            "A handler takes the payload as its argument: def handler(payload), or (payload, task); or the fields of "
            "payloads, by their names."
        )
    has_task = any(one.name == "task" for one in named)
    has_payload = any(one.name == "payload" for one in fields)
    payload_at = "payload" if has_payload and (not placed or placed[0].name != "payload") else ""
    second = placed[1] if len(placed) > 1 and not payload_at else None
    task_is_second = second is not None and (second.default is second.empty or second.name == "task")
    given = {one.name for one in placed[: 1 + task_is_second]} if not payload_at else {payload_at}
    empty = inspect.Parameter.empty
    missing = {one.name for one in [*placed, *named] if one.default is empty} - given - {"task"}
    return Way(
        name=name,
        is_whole=has_payload,
        names=frozenset(one.name for one in fields),
        required=frozenset(one.name for one in fields if one.default is empty),
        can_be_named=not any(one.kind is one.POSITIONAL_ONLY and one.default is empty for one in placed),
        payload_at=payload_at,
        cannot_be_whole=bool(missing) or not (takes_any or payload_at),
        task_is_second=task_is_second,
        task_is_named=has_task,
        task_is_apart=has_task and "task" not in given,
    )
