"""The records of a movement log, built and parsed (docs/format.md, "Movement logs").

A record is one line of JSON with at least `op` and `at` (ms). Builders return bytes with the
newline. The two of the hot path are put together by hand, the others by orjson.
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

Range = tuple[int, int]

TIME_MAX = 10**14
"""As late as any time in a record but `at`; and as long as any work."""
VOID = b"~\n"
"""Appended to a torn tail, so that no reader can parse that line: what was reported failed stays void."""


def to_ranges(tasks: Sequence[int]) -> list[Range]:
    """Return task indices as half-open ranges, in ascending order."""
    ordered = sorted(tasks)
    if ordered == list(range(ordered[0], ordered[-1] + 1)):  # as in most cases; and one task
        return [(ordered[0], ordered[-1] + 1)]
    ranges: list[Range] = []
    start = last = ordered[0]
    for index in ordered[1:]:
        if index != last + 1:
            ranges.append((start, last + 1))
            start = index
        last = index
    ranges.append((start, last + 1))
    return ranges


def from_ranges(ranges: Iterable[Range]) -> list[int]:
    """Return the indices in half-open ranges."""
    return [index for start, end in ranges for index in range(start, end)]


def _ranges(tasks: Sequence[int]) -> str:
    return ",".join([f"[{start},{end}]" for start, end in to_ranges(tasks)])


class UpdatePart(NamedTuple):
    """Say that a record is a part of an update: what `insert`, `complete` and `record` add to it."""

    update: UpdateId
    file: DecisionFileName | None = None
    """The decision file that decides. Without one all records of the update are written at once, with their `commit`
    behind them."""
    patience_ms: int = 0
    """With a file: how long other processes wait for the decision before they ask for an `abort`."""
    beside: LogName | None = None
    """With a file: the log in which the update was prepared first; None in that log itself."""

    @property
    def fields(self) -> dict[str, Any]:
        """Return the fields, for `record`."""
        if self.file is None:
            return {"update": self.update}
        fields = {"update": self.update, "file": self.file, "patience": self.patience_ms}
        return fields if self.beside is None else {**fields, "beside": list(self.beside)}

    @property
    def text(self) -> str:
        """Return the fields as JSON, with a comma before each. Names have no character that JSON would escape."""
        update, file, patience_ms, beside = self
        if file is None:
            return f',"update":"{update}"'
        if beside is None:
            return f',"update":"{update}","file":"{file}","patience":{patience_ms}'
        first = f'["{beside.directory}","{beside.generation}","{beside.batch}"]'
        return f',"update":"{update}","file":"{file}","patience":{patience_ms},"beside":{first}'


def lease(at: int, lease: str, tasks: Sequence[int], until: int, worker: str, several: bool, move: str = "") -> bytes:
    """Return a `lease` record. `worker` is JSON; `several`: the call may hold more tasks; `move` is from `moving`."""
    ranges = f"[{tasks[0]},{tasks[0] + 1}]" if len(tasks) == 1 else _ranges(tasks)
    more = ',"several":true' if several else ""
    return (
        f'{{"op":"lease","at":{at},"lease":"{lease}","tasks":[{ranges}],"until":{until},"worker":{worker}{more}{move}}}\n'
    ).encode()


def complete(
    at: int,
    lease: str,
    tasks: Sequence[int],
    result: bytes | None = None,
    took: int | list[int] | None = None,
    used: Sequence[Sequence[int] | None] | None = None,
    part: UpdatePart | None = None,
) -> bytes:
    """Return a `complete` record. `result` is JSON; `took` and `used` come from `worktimes`; `part`: of an update."""
    ranges = f"[{tasks[0]},{tasks[0] + 1}]" if len(tasks) == 1 else _ranges(tasks)
    more = "" if result is None else f',"result":{result.decode()}'
    if took is not None:
        more += f',"took":{str(took).replace(" ", "")}'
    if used is not None:
        more += f',"used":{orjson.dumps(used).decode()}'
    if part is not None:
        more += part.text
    return f'{{"op":"complete","at":{at},"lease":"{lease}","tasks":[{ranges}]{more}}}\n'.encode()


def insert(
    at: int, identity: str, first: int, task: bytes, available_at: int = 0, part: UpdatePart | None = None
) -> bytes:
    """Return an `insert` record. `task` is the task's line as it would stand in a task file: an object, a newline.

    `part`: of an update.
    """
    later = f'"available_at":{available_at},' if available_at else ""
    of = "" if part is None else part.text
    return f'{{"op":"insert","at":{at},"id":"{identity}","first":{first}{of},{later}'.encode() + task[1:]


def replace(at: int, lease: str | None, version: int, task: int, payload: bytes, part: UpdatePart) -> bytes:
    """Return a `replace` record of an update. `payload` is JSON. Without a lease it names the `version` seen."""
    of = f'"version":{version}' if lease is None else f'"lease":"{lease}"'
    return (
        f'{{"op":"replace","at":{at},{of},"tasks":[[{task},{task + 1}]]{part.text},"payload":'.encode()
        + payload
        + b"}\n"
    )


COMMIT = b'{"op":"commit",'
"""Begins the record at which the records of an update act."""


def commit(at: int, update: UpdateId, of: int) -> bytes:
    """Return the record at which the records of an update in this log act; `of` is their number."""
    return f'{{"op":"commit","at":{at},"update":"{update}","of":{of}}}\n'.encode()


def abort(at: int, update: UpdateId) -> bytes:
    """Return the record that makes the prepared records of an update in this log void."""
    return record("abort", at, update=update)


SEAL = b'{"op":"seal",'
"""What the line of a `seal` begins with."""
INSERT = b'{"op":"insert",'
"""What the line of every `insert` begins with that this package writes."""
REPLACE = b'{"op":"replace",'
"""What the line of every `replace` begins with that this package writes."""
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


def moving(source: object, target: object) -> str:
    """Return the fields of a record that renames the task file: its names before and after."""
    return f',"from":"{source}","name":"{target}"'


def record(op: str, at: int, **fields: Any) -> bytes:
    """Return any record; fields that are None are left out."""
    full = {"op": op, "at": at, **{key: value for key, value in fields.items() if value is not None}}
    return orjson.dumps(full, option=orjson.OPT_APPEND_NEWLINE)


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
    if type(found) is list and len(found) == 2 and all(type(each) is int and 0 <= each <= TIME_MAX for each in found):
        return found[0], found[1]
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
    """Return the record in a line (without its newline); None if it is none, or nests deeper than any record does.

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
    """Return whether `is_record` is true of all these JSON values: ten times as fast as asking it of each."""
    if set(map(type, found)) != {dict}:
        return not found
    try:
        times = [*map(_AT, found)]
        return set(map(type, map(_OP, found))) == {str} and set(map(type, times)) == {int} and min(times) >= 0
    except KeyError:
        return False
