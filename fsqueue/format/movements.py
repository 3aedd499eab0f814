"""The records of a movement log: values, their lines, and back (docs/format.md, "Movement logs").

A record is the object that its line decodes to, with at least `op` and `at` (ms). A process that decides upon a record
makes it, lets `ReplayState.apply` act upon it, and writes its line; a reader decodes the line, and does the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import orjson

from fsqueue.format import nesting, task_file
from fsqueue.format.decisions import LogName
from fsqueue.format.names import DecisionFileName, UpdateId
from fsqueue.format.priority import Priority

Range = list[int]
"""A range of tasks as JSON has it: its begin and its end."""
Record = dict[str, Any]

TIME_MAX = 10**14
"""Latest time in a record but for `at`, and longest duration of work (ms)."""
VOID = b"~\n"
"""Appended to a torn tail, so that no reader can parse that line: what was reported failed stays void."""


def to_ranges(tasks: Sequence[int]) -> list[Range]:
    """Return task indices as half-open ranges, in ascending order."""
    if len(tasks) == 1:
        return [[tasks[0], tasks[0] + 1]]
    ordered = sorted(tasks)
    if ordered == list(range(ordered[0], ordered[-1] + 1)):  # as in most cases; and one task
        return [[ordered[0], ordered[-1] + 1]]
    ranges: list[Range] = []
    start = last = ordered[0]
    for index in ordered[1:]:
        if index != last + 1:
            ranges.append([start, last + 1])
            start = index
        last = index
    ranges.append([start, last + 1])
    return ranges


def from_ranges(ranges: Iterable[Sequence[int]]) -> list[int]:
    """Return the indices in half-open ranges."""
    return [index for start, end in ranges for index in range(start, end)]


class UpdatePart(NamedTuple):
    """Say of which update a record is a part: which fields the record has for that."""

    update: UpdateId
    file: DecisionFileName | None = None
    """The decision file that decides. Without one all records of the update are written at once, with their `commit`
    behind them."""
    patience_ms: int = 0
    """With a file: the time that other processes wait for the decision before they ask for an `abort`."""
    beside: LogName | None = None
    """With a file: the log in which the update was prepared first; None in that log itself."""

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields of an update's record, by their names in the line."""
        if self.file is None:
            return {"update": self.update}
        fields = {"update": self.update, "file": self.file, "patience": self.patience_ms}
        return fields if self.beside is None else {**fields, "beside": [*self.beside]}


def record(op: str, at: int, **fields: Any) -> Record:
    """Return a record; fields that are None are left out."""
    return {"op": op, "at": at, **{key: value for key, value in fields.items() if value is not None}}


def encode(record: Record) -> bytes:
    """Return the line of a record, with its newline."""
    return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)


def lease(at: int, lease: str, tasks: Sequence[int], until: int, worker: Record, several: bool) -> Record:
    """Return a `lease` record. `several`: the call may hold more tasks."""
    made = {"op": "lease", "at": at, "lease": lease, "tasks": to_ranges(tasks), "until": until, "worker": worker}
    if several:
        made["several"] = True
    return made


def completion(at: int, lease: str, tasks: Sequence[int], result: bytes, **more: Any) -> tuple[Record, bytes]:
    """Return a `complete` record with a result, which is JSON, and its line. `more`: its other fields."""
    made = {"op": "complete", "at": at, "lease": lease, "tasks": to_ranges(tasks), "result": None, **more}
    return _with_json(made, "result", result)


def replacement(
    at: int, lease: str | None, version: int | None, task: int, payload: bytes, part: UpdatePart
) -> tuple[Record, bytes]:
    """Return a `replace` record of an update, and its line. `payload` is JSON. Without a lease it names a version."""
    assert (lease is None) != (version is None), "a task is replaced by its lease, or at the version that was seen"
    made = record("replace", at, version=version, lease=lease, tasks=to_ranges([task]), **part.fields)
    return _with_json(made, "payload", payload)


def _with_json(made: Record, field: str, value: bytes) -> tuple[Record, bytes]:
    """Return a record with one more field, and its line. In the line stands `value` as it is: JSON."""
    made[field] = orjson.Fragment(value)
    line = encode(made)
    made[field] = orjson.loads(value)
    return made, line


def insert_line(made: Record, task: bytes) -> bytes:
    """Return the line of an `insert` record: the fields in `made`, then those of `task`, a task's line in a
    task file.
    """
    return b"%b,%b" % (orjson.dumps(made)[:-1], task[1:])


def insert(
    at: int,
    identity: str,
    first: int,
    task: bytes,
    available_at: int = 0,
    priority: Priority | None = None,
    part: UpdatePart | None = None,
) -> tuple[Record, bytes]:
    """Return an `insert` record, and its line. `task` is the task's line as it would stand in a task file: an object, a
    newline. `part`: of an update.

    The record has `cut` in place of the payload, as one in the history: a process that inserts many tasks keeps their
    lines only.
    """
    made: Record = {"op": "insert", "at": at, "id": identity, "first": first}
    if part is not None:
        made |= part.fields
    if available_at:
        made["available_at"] = available_at
    line = insert_line(made, task)
    made["cut"] = 0
    if priority is not None:
        made["priority"] = priority
    return made, line


SEAL = b'{"op":"seal",'
"""First bytes of the line of a `seal` record."""
INSERT = b'{"op":"insert",'
"""First bytes of the line of each `insert` record that this package writes."""
REPLACE = b'{"op":"replace",'
"""First bytes of the line of each `replace` record that this package writes."""
CHANGE = b'{"op":"change",'
"""First bytes of the line of each `change` record that this package writes."""
WITH_PAYLOAD = (INSERT, REPLACE)
_OF = rb'"update":"\w+"(?:,"file":"\w+","patience":\d+(?:,"beside":\[[^\]]*\])?)?'
_HEAD = re.compile(
    rb'\{"op":"insert","at":\d+,"id":"\w+","first":\d+(?:,%b)?(?:,"available_at":\d+)?(?=,)'
    rb'|\{"op":"replace","at":\d+,(?:"version":\d+|"lease":"[^"\\]*"),"tasks":\[\[\d+,\d+\]\],%b(?=,"payload":)'
    % (_OF, _OF)
)


LINE_BYTES = 64
"""More than what stands around a payload in the line of a task file."""


def cut(line: bytes, payload_bytes_max: int | None, shorten: bool = True) -> bytes:
    """Return an `insert` or `replace` record as the history keeps it: without its payload, key and priority, if the
    payload is not kept (`task_file.is_kept`). It tells how many bytes that spares; none, unless it may `shorten`.

    It is padded with blanks, so that the offsets of the records behind it can be told. A line that another program
    wrote in another form is returned as it is.
    """
    if payload_bytes_max is None or (payload_bytes_max and len(line) <= payload_bytes_max):
        return line
    head = _HEAD.match(line)
    if head is None or line.startswith(b',"cut":', head.end()):
        return line
    if task_file.is_line_kept(line, head.end() + 1, payload_bytes_max):
        return line
    spared = len(line) - head.end() - len(b',"cut":0}') if shorten else 0
    spared = max(0, spared - len(str(spared)) + 1)
    short = b'%s,"cut":%d}' % (head[0], spared)
    return short + b" " * (len(line) - spared - len(short))


def change(
    at: int, tasks: Sequence[int], versions: Sequence[int], available_at: int | None, given: Sequence[Priority | None]
) -> Record:
    """Return a `change` record. `given`: the new priority, None for none; nothing if it stays."""
    assert len(tasks) == len(versions), "each task is changed at the version that was seen"
    made = record("change", at, tasks=to_ranges(tasks), versions=[*versions], available_at=available_at)
    if given:
        [made["priority"]] = given  # the last field: see `without_priority`
    return made


def without_priority(line: bytes) -> bytes:
    """Return a `change` record as the history keeps it: a priority may tell what a payload does that is not kept.

    It is as long. A line that another program wrote in another form is returned as it is.
    """
    head, field, _ = line.partition(b',"priority":')
    return (head + b"}").ljust(len(line)) if field and _CHANGE.fullmatch(head) else line


_CHANGE = re.compile(rb'\{"op":"change","at":\d+,"tasks":\[[\d,\[\]]*\],"versions":\[[\d,]*\](?:,"available_at":\d+)?')


def took_ms(record: dict[str, Any], index: int) -> int | None:
    """Return how long the work on a task took that a record names, in milliseconds; None if it does not tell."""
    took = record.get("took")
    if type(took) is list:
        took = _at_place_of(index, took, record.get("tasks"))
    return took if type(took) is int and 0 <= took <= TIME_MAX else None


def used(record: dict[str, Any], index: int) -> tuple[int, int] | None:
    """Return the processor time (ms) and the peak memory (KiB) of the work on a task, if the record tells them."""
    given = record.get("used")
    return usage(_at_place_of(index, given, record.get("tasks")) if type(given) is list else None)


def usage(found: Any) -> tuple[int, int] | None:
    """Return `[CPU_MS,PEAK_KIB]` as a pair; None for anything else."""
    if type(found) is not list or len(found) != 2:
        return None
    cpu_ms, peak_kib = found
    if type(cpu_ms) is type(peak_kib) is int and 0 <= cpu_ms <= TIME_MAX and 0 <= peak_kib <= TIME_MAX:
        return cpu_ms, peak_kib
    return None


def _at_place_of(index: int, values: list[Any], ranges: Any) -> Any:
    """Return the value of a task, of which `values` has one for each task in `ranges`; None if it has none for it."""
    place = 0
    try:
        for first, end in ranges:
            if first <= index < end:
                return values[place + index - first]
            place += end - first
    except (TypeError, ValueError, IndexError):
        pass
    return None


def parse(line: bytes) -> dict[str, Any] | None:
    """Return the record in a line (without its newline); None if the line is no record, or nests deeper than any
    record.

    A field that nests too deep is left out. The record acts, but no program could pass such a field on.
    """
    try:
        found = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if not is_record(found):
        return None
    if len(line) > nesting.SHALLOW_BYTES and nesting.is_deeper(line):
        return None if nesting.is_deeper(line, nesting.RECORD_NESTING_MAX) else nesting.trimmed(found)
    return found  # type: ignore[no-any-return]


def is_record(found: object) -> bool:
    """Return whether a JSON value is a record: an object with `op` and a sensible `at`."""
    if type(found) is not dict:
        return False
    at = found.get("at")
    return type(found.get("op")) is str and type(at) is int and at >= 0


def is_prepared(record: dict[str, Any]) -> bool:
    """Return whether a record is a part of an update that a decision file decides. A `count` has a `file`, too."""
    return "file" in record and "update" in record


_OP, _AT = itemgetter("op"), itemgetter("at")


def are_records(found: list[Any]) -> bool:
    """Return whether `is_record` is true of all of some JSON values: ten times as fast as a call for each."""
    if set(map(type, found)) != {dict}:
        return not found
    try:
        times = [*map(_AT, found)]
        return set(map(type, map(_OP, found))) == {str} and set(map(type, times)) == {int} and min(times) >= 0
    except KeyError:
        return False
