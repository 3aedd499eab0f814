"""Requests and answers of taskstore's HTTP format: JSON in, checked values out, and the reverse. docs/taskstore.md.

Names of fields are compared without regard to case, and unknown ones are ignored, as upstream's decoder does. A value
of a wrong type or out of range is a BadField, before anything is done. The values themselves are `taskstore`'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from fsqueue.service.answers import encoded
from fsqueue.service.faults import BadField
from fsqueue.service.request_fields import INT64, LIST_MAX
from fsqueue.service.taskstore import Add, Change, NumberedTask, Refused

DurationUnit = Literal["auto", "ms", "ns"]
"""What a claim's `duration` counts: milliseconds by the document, nanoseconds by upstream's code. See `claim_in`."""

NS_PER_MS = 1_000_000
AVAILABLE_MS_MAX = (INT64 - 1) // NS_PER_MS
"""The latest time that a request may name: in 2262. Later ones have no `duration`, which is 64 bits of nanoseconds."""
DELAY_MS_MAX = 10**12
"""The longest delay, and the longest claim: some thirty years, as elsewhere at a gateway."""
AUTO_MS_BELOW, AUTO_NS_FROM = 10**7, 10**9
"""With "auto", a claim's duration below the first counts milliseconds (up to 2.7 hours), one from the second on
nanoseconds (a second or more). In between it could be either, and is refused."""

_INTEGER = re.compile(r"[+-]?[0-9]{1,30}")
_FLAGS = {"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False, "": False}
_NOTHING = "Nothing was done."


@dataclass(frozen=True, slots=True)
class UpdateRequest:
    """What `POST /update` asks for."""

    client: int
    adds: Sequence[Add]
    changes: Sequence[Change]
    deletes: Sequence[int]
    depends: Sequence[int]


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What `POST /claim` asks for."""

    client: int
    group: str
    duration_ms: int
    depends: Sequence[int]


# -- requests ----------------------------------------------------------------------------------------------------------


def update_in(given: Any) -> UpdateRequest:
    """Return the update that a JSON value describes; BadField."""
    fields = _fields(given, "body")
    return UpdateRequest(
        _client(fields),
        [Add(_text(one, "group", at), _text(one, "data", at), _available_ms(one, at))
         for at, one in _objects(fields, "adds")],
        [Change(_whole(one, "id", at, INT64), _text(one, "data", at), _available_ms(one, at))
         for at, one in _objects(fields, "updates")],
        _ids(fields, "deletes"),
        _ids(fields, "depends"),
    )  # fmt: skip


def claim_in(given: Any, unit: DurationUnit) -> ClaimRequest:
    """Return the claim that a JSON value describes; BadField.

    With "auto" the size of `duration` tells its unit: see AUTO_MS_BELOW. What could be either is refused: a lease that
    ends at once would have two clients do the same task, and one of a year would keep a task from all others.
    """
    fields = _fields(given, "body")
    duration = max(0, _whole(fields, "duration", "", INT64))
    if unit == "auto":
        if AUTO_MS_BELOW <= duration < AUTO_NS_FROM:
            raise BadField(
                "duration",
                f"is {duration}: that could count milliseconds or nanoseconds. {_NOTHING} Start the gateway with "
                "--taskstore-duration ms, or ns.",
            )
        unit = "ms" if duration < AUTO_MS_BELOW else "ns"
    duration_ms = duration if unit == "ms" else _in_ms(duration)
    if duration_ms > DELAY_MS_MAX:
        raise BadField("duration", f"must be {DELAY_MS_MAX:,} milliseconds at most. {_NOTHING}")
    client, group = _client(fields), _text(fields, "group", "")
    if not group:
        raise BadField("group", f"is missing: the name of the group to claim a task of. {_NOTHING}")
    return ClaimRequest(client, group, duration_ms, _ids(fields, "depends"))


def ids_in(text: str) -> list[int]:
    """Return the ids of a path: numbers of 64 bits, with commas between them; BadField."""
    parts = text.split(",", LIST_MAX)
    if len(parts) > LIST_MAX:
        raise BadField("id", f"names more than {LIST_MAX:,} tasks. {_NOTHING}")
    return [_integer(part, "id") for part in parts]


def listing_in(query: Mapping[str, str]) -> tuple[int, bool]:
    """Return `limit` and `owned` of a query; 0 and False if left out. Other parameters are ignored. BadField."""
    limit, owned = query.get("limit", ""), query.get("owned", "")
    if owned.lower() not in _FLAGS:
        raise BadField("owned", f"must be yes, true, 1, no, false or 0, not {owned!r:.100}. {_NOTHING}")
    return _integer(limit, "limit") if limit else 0, _FLAGS[owned.lower()]


def _fields(given: Any, where: str) -> dict[str, Any]:
    """Return the members of an object by their names in lower case. null counts as left out, as in Go."""
    if type(given) is not dict:
        raise BadField(where, f"must be a JSON object, not {_shown(given)}. {_NOTHING}")
    found: dict[str, Any] = {}
    for name, value in given.items():
        if (lower := name.lower()) in found:
            raise BadField(_at(where, lower), f"is given twice. {_NOTHING}")
        found[lower] = value
    return {name: value for name, value in found.items() if value is not None}


def _client(fields: Mapping[str, Any]) -> int:
    if "clientid" not in fields:
        raise BadField("clientid", f"is missing: a whole number of 32 bits that is this client's own. {_NOTHING}")
    return _whole(fields, "clientid", "", 1 << 31)


def _available_ms(fields: Mapping[str, Any], where: str) -> int:
    """Return a task's time in Unix milliseconds, or, 0 and below, less the milliseconds from now.

    `timespec` counts milliseconds and `duration` nanoseconds. A client that sends both has read one of the answers,
    which have both, and has changed the one that it knows: the document has `timespec` alone, so that one counts.
    """
    if "timespec" in fields:
        name, found = "timespec", _whole(fields, "timespec", where, INT64)
    else:
        name, duration = "duration", _whole(fields, "duration", where, INT64)
        found = _in_ms(duration) if duration > 0 else -_in_ms(-duration)
    if not -DELAY_MS_MAX <= found <= AVAILABLE_MS_MAX:
        raise BadField(
            _at(where, name),
            f"must be a time before the year 2262, or a delay of {DELAY_MS_MAX:,} milliseconds at most. {_NOTHING}",
        )
    return found


def _in_ms(ns: int) -> int:
    """Return nanoseconds as milliseconds, rounded up: no task comes, and no claim ends, before its time."""
    return -(-ns // NS_PER_MS)


def _whole(fields: Mapping[str, Any], name: str, where: str, bound: int) -> int:
    """Return a whole number from -bound up to, and without, bound; 0 if it is left out."""
    return _checked(fields.get(name, 0), _at(where, name), bound)


def _checked(value: Any, where: str, bound: int) -> int:
    if type(value) is not int or not -bound <= value < bound:
        raise BadField(where, f"must be a whole number from {-bound} to {bound - 1}, not {_shown(value)}. {_NOTHING}")
    return value


def _text(fields: Mapping[str, Any], name: str, where: str) -> str:
    """Return text; "" if it is left out."""
    value = fields.get(name, "")
    if type(value) is not str:
        raise BadField(_at(where, name), f"must be text, not {_shown(value)}. {_NOTHING}")
    return value


def _list(fields: Mapping[str, Any], name: str) -> list[Any]:
    value = fields.get(name, [])
    if type(value) is not list:
        raise BadField(name, f"must be a list, not {_shown(value)}. {_NOTHING}")
    if len(value) > LIST_MAX:
        raise BadField(name, f"has {len(value):,} items: {LIST_MAX:,} are the most of one request. {_NOTHING}")
    return value


def _ids(fields: Mapping[str, Any], name: str) -> list[int]:
    return [_checked(one, f"{name}[{index}]", INT64) for index, one in enumerate(_list(fields, name))]


def _objects(fields: Mapping[str, Any], name: str) -> Iterable[tuple[str, dict[str, Any]]]:
    for index, one in enumerate(_list(fields, name)):
        at = f"{name}[{index}]"
        yield at, _fields(one, at)


def _integer(text: str, what: str) -> int:
    """Return a number of 64 bits as text has it: digits, and a sign or none."""
    found = int(text) if _INTEGER.fullmatch(text) else INT64
    if not -INT64 <= found < INT64:
        raise BadField(what, f"must be a whole number of 64 bits, not {text!r:.100}. {_NOTHING}")
    return found


def _at(where: str, name: str) -> str:
    return name if where in ("", "body") else f"{where}.{name}"


def _shown(value: Any) -> str:
    return "null" if value is None else f"{value!r:.100}"


# -- answers -----------------------------------------------------------------------------------------------------------


def task_as_json(task: NumberedTask | None) -> dict[str, Any] | None:
    """Return a task as an answer has it: its time in milliseconds (`timespec`) and in nanoseconds (`duration`)."""
    if task is None:
        return None
    return {
        "id": task.id,
        "group": task.group,
        "data": task.data,
        "timespec": task.available_ms,
        "duration": min(task.available_ms * NS_PER_MS, INT64 - 1),
        "ownerid": task.owner,
    }


def tasks_body(tasks: Sequence[NumberedTask | None] | None) -> bytes:
    """Return a list of tasks as JSON, with null for each that is not there; null for no list."""
    return encoded(None if tasks is None else [task_as_json(task) for task in tasks])


def done_body(tasks: Sequence[NumberedTask]) -> bytes:
    """Return the answer to an update or a claim that was done: its new tasks, and no error."""
    return encoded({"tasks": [task_as_json(task) for task in tasks], "error": None})


def refused_body(refused: Refused) -> bytes:
    """Return the answer to an update or a claim of which nothing was done: all that was in the way."""
    why = {name: getattr(refused, name) for name in ("changes", "deletes", "depends", "owned", "bugs")}
    return encoded({"tasks": [], "error": why})
