"""Checkpoints: records that restate what a log comes to, for readers who begin there (docs/format.md; decision 25).

Pure: no clock, no input or output. A checkpoint stands behind the records that it restates. It tells where it stands
(`here`), where the one before it ends (`since`), and a checksum of what stands between the two (`sum`). A reader trusts
it only if all three are true of the bytes that it sees.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import orjson

from fsqueue.clock import MS_MAX
from fsqueue.format import movements, names, priority
from fsqueue.format.task_states import AVAILABLE, CANCELLED, COMPLETED, DEAD, LEASED, SKIPPED, Lease, States

if TYPE_CHECKING:
    from fsqueue.format.movements import Range

MARK = b'{"op":"checkpoint",'
"""What the line of every checkpoint begins with."""
LEAST_BYTES = 8 << 10
"""So much is written between two checkpoints, ..."""
SHARE = 4
"""... and so many times the size of the last one. A log is thus longer by a quarter at most."""
NAMES_MOST = 16
"""So many of the names that the task file had are restated: the last ones. Older ones are found by listing."""
WINDOWS = (1 << 14, 1 << 17, 1 << 20, 1 << 22)
"""So much is read from the end of a log, one after the other, until a checkpoint is found that can be trusted."""
TRIES_MOST = 8
"""After so many checkpoints that cannot be trusted the log is read from its start."""


class Stretch:
    """What a log holds since its last checkpoint: where that ended, and a checksum of what was replayed since."""

    __slots__ = ("_appended", "_sum", "append", "due", "since")

    def __init__(self, since: int = 0, size: int = 0) -> None:
        self.since = since
        self.due = since + max(LEAST_BYTES, SHARE * size)
        """Write the next checkpoint at this offset or later: each append compares its end with it, once."""
        self._sum = 0
        self._appended: list[bytes] = []
        self.append: Callable[[bytes], None] = self._appended.append
        """Add bytes that follow, a few: they are kept until the sum is asked for. This spares the hot path a frame."""

    def cover(self, data: bytes) -> None:
        """Add bytes that follow."""
        self._sum = _checksum(data, self.sum)

    @property
    def sum(self) -> int:
        """Return the checksum of all bytes that were added."""
        if self._appended:
            self._sum = _checksum(b"".join(self._appended), self._sum)
            self._appended.clear()
        return self._sum


def _checksum(data: bytes, before: int = 0) -> int:
    """Return the CRC-32 of `data` behind bytes with that of `before`. NUL bytes do not count: long runs of zeros need
    not be read.
    """
    return crc32(data.replace(b"\0", b""), before)


class Found(NamedTuple):
    """A checkpoint that can be trusted: its record, where it stands, and where it ends."""

    record: dict[str, Any]
    here: int
    end: int


# -- writing --------------------------------------------------------------------------------------


class _Group(NamedTuple):
    """What tasks have in common that one entry of a checkpoint tells of."""

    state: int
    since: int
    version: int
    attempts: int
    lease: str | None
    is_solo: bool
    error: str | None
    replaced: int | None
    """The task, if it has a payload of its own: then it is alone in its group."""


def restated(states: States) -> dict[str, Any]:
    """Return all that later records are judged by, and views of what is alive show, as fields of a record."""
    groups: dict[_Group, list[int]] = {}
    leases: dict[str, Lease] = {}
    for index in sorted(states.touched):
        holder = states.holder[index]
        if holder is not None:
            leases[holder.id] = holder
        group = _Group(
            states.state[index],
            states.since[index],
            states.version[index],
            states.attempts[index],
            holder.id if holder is not None else None,
            index in states.solo,
            states.errors.get(index),
            index if index in states.payloads else None,
        )
        groups.setdefault(group, []).append(index)
    return {
        "count": states.count,
        "available_at": states.available_at,
        "version": states.base_version,
        "completed": _runs_of(COMPLETED, states),
        "cancelled": _runs_of(CANCELLED, states),
        "touched": [_entry(states, group, tasks) for group, tasks in groups.items()],
        "leases": [
            {"lease": each.id, "at": each.at, "span": each.span, "alone": each.is_alone, "worker": each.worker}
            for each in leases.values()
        ],
        "names": [*states.names][-NAMES_MOST:],
        **_inserted(states),
    }


def _inserted(states: States) -> dict[str, Any]:
    """Return what a checkpoint of a batch with tasks in its log tells besides: where those tasks are that still matter.

    Offsets are told by their differences, the first one from 0.
    """
    if states.inserts is None:
        return {}
    offsets = list(states.places.values())
    return {
        "inserts": states.inserts,
        "sealed": states.sealed,
        "inserted_at": states.inserted_at,
        "inserted": movements.to_ranges(list(states.places)) if offsets else [],
        "steps": [offset - before for before, offset in zip([0, *offsets], offsets, strict=False)],
        **({"priorities": [[index, given] for index, given in states.priorities.items()]} if states.priorities else {}),
    }


def _runs_of(outcome: int, states: States) -> list[Range]:
    """Return the tasks of this outcome."""
    runs: list[Range] = []
    if states.done[outcome]:
        codes, code, end = bytes(states.state), bytes((outcome,)), 0
        while (start := codes.find(code, end)) >= 0:
            end = len(codes) - len(codes[start:].lstrip(code))
            runs.append((start, end))
    return runs


def _entry(states: States, group: _Group, tasks: list[int]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "state": _STATES[group.state],
        "tasks": movements.to_ranges(tasks),
        "since": group.since,
        "version": group.version,
    }
    if group.attempts:
        found["attempts"] = group.attempts
    if group.lease is not None:
        found["lease"] = group.lease
    if group.is_solo:
        found["solo"] = True
    if group.error is not None:
        found["error"] = group.error
    if group.replaced is not None:
        found["payload"] = states.payloads[group.replaced]
    return found


_STATES = {AVAILABLE: "available", LEASED: "leased", DEAD: "dead"}
_CODES = {text: code for code, text in _STATES.items()}


def record(states: States, at: int, damaged: int, stretch: Stretch, here: int) -> bytes:
    """Return the checkpoint for the offset `here`."""
    fields = {"at": at, "here": here, "since": stretch.since, "sum": stretch.sum, "damaged": damaged}
    return MARK + orjson.dumps(fields | restated(states), option=orjson.OPT_APPEND_NEWLINE)[1:]


def agrees(states: States, at: int, damaged: int, record: dict[str, Any]) -> bool:
    """Return whether a checkpoint restates what a reader of all records before it knows."""
    own = orjson.loads(orjson.dumps({"at": at, "damaged": damaged, **restated(states)}))
    return bool(own == {key: value for key, value in record.items() if key not in ("op", "here", "since", "sum")})


# -- reading --------------------------------------------------------------------------------------


def restore(states: States, found: Found) -> None:
    """Make `states` what a checkpoint restates. KeyError, TypeError or ValueError if a field is missing or wrong.

    Wrong is also what no records could come to: nothing that is out of range is taken in, or takes memory.
    """
    record, here = found.record, found.here
    if any(type(record[field]) is not list for field in ("completed", "cancelled", "touched", "leases", "names")):
        raise TypeError
    count = number(record["count"], names.BATCH_TASKS_MAX)
    if len(record["names"]) > NAMES_MOST:
        raise ValueError
    states.begin(count, number(record["available_at"], movements.TIME_MAX), number(record["version"], here))
    seen: set[int] = set()
    places = _restore_inserted(states, record, count, here)
    for outcome, field in ((COMPLETED, "completed"), (CANCELLED, "cancelled")):
        states.done[outcome] = len(_indices(record[field], count, seen))
        for start, end in record[field]:  # most tasks of a long log: set range by range
            states.state[start:end] = bytes((outcome,)) * (end - start)
            states.since[start:end] = [0] * (end - start)
            states.version[start:end] = [here] * (end - start)
    for each in record["leases"]:
        at, span = number(each["at"], MS_MAX), number(each["span"], movements.TIME_MAX)
        lease = Lease(_text(each["lease"]), at, span, _worker(each["worker"]))
        lease.is_alone = each["alone"] is True
        states.leases[lease.id] = lease
    states.ids.update(states.leases)
    for group in record["touched"]:
        _restore_group(states, group, _indices(group["tasks"], count, seen), here)
    for index in places:
        if index not in seen:  # as it was inserted
            states.state[index], states.since[index], states.version[index] = AVAILABLE, 0, places[index]
    _restore_priorities(states, record)
    states.left = count - sum(states.done) - states.state.count(SKIPPED)
    for text in record["names"]:
        if names.parse_task_file(_text(text)) is None:
            raise ValueError
        states.mention(text)


def _restore_inserted(states: States, record: dict[str, Any], count: int, here: int) -> dict[int, int]:
    """Take in where tasks are in the log, and return it. The indices that a checkpoint does not name have no task."""
    states.opened = True
    if "inserts" not in record:
        return {}
    states.inserts, states.sealed = _text(record["inserts"]), record["sealed"] is True
    states.inserted_at = number(record["inserted_at"], MS_MAX)
    alive, steps = _indices(record["inserted"], count, set()), record["steps"]
    offsets = list(accumulate(number(step, here) for step in steps))
    if len(alive) != len(offsets) or (offsets and offsets[-1] >= here):
        raise ValueError
    states.places = dict(zip(alive, offsets, strict=True))
    states.state[:] = bytes((SKIPPED,)) * count
    states.version[:] = [here] * count
    return states.places


def _restore_priorities(states: States, record: dict[str, Any]) -> None:
    """Take in the priorities of tasks in the log, which ascend. Those of a task file stand in the file."""
    if "priorities" not in record:
        return
    if type(record["priorities"]) is not list:
        raise TypeError
    last = -1
    for index, given in record["priorities"]:
        if type(index) is not int or index <= last or index not in states.places:
            raise ValueError
        if given is None or priority.fault(given) is not None:
            raise ValueError
        states.priorities[index] = given
        last = index
    states.rank_tasks(states.priorities)


def _restore_group(states: States, group: dict[str, Any], tasks: list[int], here: int) -> None:
    state, since = _CODES[group["state"]], number(group["since"], movements.TIME_MAX)
    version, attempts = number(group["version"], here), number(group.get("attempts", 0), here)
    lease = states.leases[group["lease"]] if "lease" in group else None
    if state == LEASED and lease is None:
        raise ValueError
    for index in tasks:
        states.state[index], states.since[index], states.version[index] = state, since, version
        states.attempts[index], states.holder[index] = attempts, lease
        if "error" in group:
            states.errors[index] = _text(group["error"])
        if "payload" in group:
            states.payloads[index] = group["payload"]
    if group.get("solo") is True:
        states.solo.update(tasks)
    if state == DEAD:
        states.done[DEAD] += len(tasks)
    states.touched.update(tasks)
    states.expect(tasks, since, lease)


def last_trusted(
    read: Callable[[int, int], bytes], size: int, before_ms: int | None = None, windows: Sequence[int] = WINDOWS
) -> Found | None:
    """Return the last checkpoint of a log of `size` bytes that can be trusted; None if a few steps find none.

    `before_ms`: the last one of before that time or, if a few steps find none, the oldest that they find; None if they
    have read all of the log.
    `read(length, offset)` returns bytes of the log, fewer only at its end.
    """
    found, tries = None, 0
    for window in windows:
        start = max(0, size - window)
        data = read(size - start, start)
        place = len(data) if found is None else found.here - start
        while (place := data.rfind(b"\n" + MARK, 0, place)) >= 0:
            end = data.find(b"\n", place + 1)
            if end < 0:
                continue  # torn, or being written
            trusted = _trusted(read, data, start, place + 1, end)
            if trusted is not None:
                if before_ms is None or trusted.record["at"] < before_ms:
                    return trusted
                found = trusted
            else:
                tries += 1
                if tries == TRIES_MOST:
                    return found
        if start == 0:
            return None
    return found


def _trusted(read: Callable[[int, int], bytes], data: bytes, start: int, place: int, end: int) -> Found | None:
    """Return the checkpoint in `data[place:end]`, where `data` begins at `start`; None if it is not what it says."""
    record = movements.parse(data[place:end])
    if record is None:
        return None
    here, since = record.get("here"), record.get("since")
    if type(here) is not int or type(since) is not int or not 0 <= since <= here <= since + WINDOWS[-1]:
        return None
    if here != start + place:  # written over records of others, or behind them
        return None
    before = data[since - start : here - start] if since >= start else read(here - since, since)
    if len(before) != here - since or _checksum(before) != record.get("sum"):
        return None  # what it restates has been overwritten since
    return Found(record, here, start + end + 1)


def _indices(ranges: Any, count: int, seen: set[int]) -> list[int]:
    """Return the tasks in ranges, which ascend, and add them to those seen: none may be named twice."""
    tasks: list[int] = []
    last = 0
    for start, end in ranges:
        if type(start) is not int or type(end) is not int or not last <= start < end <= count:
            raise ValueError
        tasks.extend(range(start, end))
        last = end
    if len(seen) + len(tasks) != len(seen.union(tasks)):
        raise ValueError
    seen.update(tasks)
    return tasks


def number(value: Any, most: int) -> int:
    """Return a whole number from 0 to `most`. ValueError if it is none."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError
    return value


def _worker(value: Any) -> dict[str, Any] | None:
    return value if type(value) is dict else None
