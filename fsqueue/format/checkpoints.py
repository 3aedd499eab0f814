"""Write and read checkpoints: records that restate the state of a log's tasks (docs/format.md; decision 25).

A reader may begin at the last checkpoint instead of at the start of the log.

Pure: no clock, no input or output. A checkpoint stands behind the records that it restates. It says its own offset
(`here`), the offset where the checkpoint before it ends (`since`), and a checksum of the bytes between the two (`sum`).
A reader trusts the checkpoint only if all three are true of the bytes that it reads.
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
    from fsqueue.format.priority import Priority

MARK = b'{"op":"checkpoint",'
"""Mark a line as a checkpoint: each one begins so."""
LEAST_BYTES = 8 << 10
"""Write at least this much between two checkpoints."""
SHARE = 4
"""Write at least this many times the last checkpoint's size before the next one: a log grows by a quarter at most."""
NAMES_MOST = 16
"""Restate this many of the names that the task file had: the last ones. A reader finds older ones by listing."""
WINDOWS = (1 << 14, 1 << 17, 1 << 20, 1 << 22)
"""Read this many bytes from the end of a log, one window after the other, until one has a trusted checkpoint."""
TRIES_MOST = 8
"""Read the log from its start after this many checkpoints that cannot be trusted."""


class Stretch:
    """Follow the part of a log behind its last checkpoint: where it begins, and the checksum of what was replayed."""

    __slots__ = ("_appended", "_sum", "append", "due", "since")

    def __init__(self, since: int = 0, size: int = 0) -> None:
        self.since = since
        self.due = since + max(LEAST_BYTES, SHARE * size)
        """Give the offset from which on an append writes a checkpoint. Each append compares its end with it once."""
        self._sum = 0
        self._appended: list[bytes] = []
        self.append: Callable[[bytes], None] = self._appended.append
        """Add a few bytes that follow, kept until `sum` is read. A list's own method spares the hot path a frame."""

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
    """Return the CRC-32 of some bytes and `data`, given that of the bytes (`before`).

    NUL bytes do not count, so a reader need not hold long runs of zeros.
    """
    return crc32(data.replace(b"\0", b""), before)


class Found(NamedTuple):
    """Hold a trusted checkpoint: its record, the offset where it begins, and the offset where it ends."""

    record: dict[str, Any]
    here: int
    end: int


# -- writing --------------------------------------------------------------------------------------


_Group = tuple[int, int, int, int, str | None, bool, str | None, int | None]
"""Fields that the tasks of one entry in a checkpoint have in common: their state, `since`, version and attempts, the
lease, whether each goes alone, the last error, and the index of a task whose payload was replaced, or priority changed:
no other one is in its group. (A plain tuple: a batch with many of them has one made for each, at each checkpoint.)"""


def restated(states: States) -> dict[str, Any]:
    """Return the fields of a checkpoint: all that the replay of later records and views of unfinished tasks need."""
    groups: dict[_Group, list[int]] = {}
    leases: dict[str, Lease] = {}
    state, since, version, attempts, holders = (
        states.state, states.since, states.version, states.attempts, states.holder,
    )  # fmt: skip
    solo, errors, payloads, changed = states.solo, states.errors, states.payloads, states.changed
    for index in sorted(states.touched):
        holder, lease = holders[index], None
        if holder is not None:
            lease = holder.id
            leases[lease] = holder
        single = index if index in payloads or index in changed else None
        group = (
            state[index], since[index], version[index], attempts[index],
            lease, index in solo, errors.get(index), single,
        )  # fmt: skip
        if group in groups:
            groups[group].append(index)
        else:
            groups[group] = [index]
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
    """Return the further fields for a batch with tasks in its log: where the `insert` records of unfinished tasks are.

    `steps` are the differences between their offsets, the first one from 0.
    """
    if states.inserts is None:
        return {}
    tasks = sorted(states.places)  # an insert that was prepared comes later than its index says
    offsets = [states.places[index] for index in tasks]
    return {
        "inserts": states.inserts,
        "sealed": states.sealed,
        "inserted_at": states.inserted_at,
        "inserted": movements.to_ranges(tasks) if tasks else [],
        "steps": [offset - before for before, offset in zip([0, *offsets], offsets, strict=False)],
        **(
            {"priorities": [[index, states.priorities[index]] for index in sorted(states.priorities)]}
            if states.priorities
            else {}
        ),
    }


def _runs_of(outcome: int, states: States) -> list[Range]:
    """Return the tasks with this outcome, as ranges."""
    runs: list[Range] = []
    if states.done[outcome]:
        codes, code, end = bytes(states.state), bytes((outcome,)), 0
        while (start := codes.find(code, end)) >= 0:
            end = len(codes) - len(codes[start:].lstrip(code))
            runs.append([start, end])
    return runs


def _entry(states: States, group: _Group, tasks: list[int]) -> dict[str, Any]:
    state, since, version, attempts, lease, is_solo, error, single = group
    ranges = movements.to_ranges(tasks) if len(tasks) > 1 else [[tasks[0], tasks[0] + 1]]
    found: dict[str, Any] = {"state": _STATES[state], "tasks": ranges, "since": since, "version": version}
    if attempts:
        found["attempts"] = attempts
    if lease is not None:
        found["lease"] = lease
    if is_solo:
        found["solo"] = True
    if error is not None:
        found["error"] = error
    if single is not None:
        if single in states.payloads:
            found["payload"] = states.payloads[single]
        if single in states.changed:
            found["priority"] = states.changed[single]
    return found


_STATES = {AVAILABLE: "available", LEASED: "leased", DEAD: "dead"}
_CODES = {text: code for code, text in _STATES.items()}


def record(states: States, at: int, damaged: int, stretch: Stretch, here: int) -> bytes:
    """Return the line of the checkpoint for the offset `here`."""
    assert 0 <= stretch.since <= here, "a checkpoint stands before the stretch that it sums up"
    fields = {"at": at, "here": here, "since": stretch.since, "sum": stretch.sum, "damaged": damaged}
    return MARK + orjson.dumps(fields | restated(states), option=orjson.OPT_APPEND_NEWLINE)[1:]


def agrees(states: States, at: int, damaged: int, record: dict[str, Any]) -> bool:
    """Return whether a checkpoint restates the state that a reader of all records before it has."""
    own = orjson.loads(orjson.dumps({"at": at, "damaged": damaged, **restated(states)}))
    return bool(own == {key: value for key, value in record.items() if key not in ("op", "here", "since", "sum")})


# -- reading --------------------------------------------------------------------------------------


def restore(states: States, found: Found) -> None:
    """Set `states` to the state that a checkpoint restates. KeyError, TypeError or ValueError if a field is missing or
    wrong.

    A value is wrong, too, if no records could lead to it. So no value out of range is used, or takes memory.
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
    states.rank_changed()
    states.remaining = count - sum(states.done) - states.state.count(SKIPPED)
    for text in record["names"]:
        if names.parse_task_file(_text(text)) is None:
            raise ValueError
        states.mention(text)


def _restore_inserted(states: States, record: dict[str, Any], count: int, here: int) -> dict[int, int]:
    """Restore the offsets of tasks in the log, by index, and return them. Other indices have no task."""
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
    """Restore the priorities of tasks in the log, whose indices ascend. Those of a task file are in the file itself."""
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
    if (state == LEASED and lease is None) or (state == AVAILABLE and lease is not None):
        raise ValueError
    for index in tasks:
        states.state[index], states.since[index], states.version[index] = state, since, version
        states.attempts[index], states.holder[index] = attempts, lease
        if "error" in group:
            states.errors[index] = _text(group["error"])
        if "payload" in group:
            states.payloads[index] = group["payload"]
        if "priority" in group:
            states.changed[index] = _priority(group["priority"])
    if group.get("solo") is True:
        states.solo.update(tasks)
    if state == DEAD:
        states.done[DEAD] += len(tasks)
    states.touched.update(tasks)
    states.expect(tasks, since, lease)


def last_trusted(
    read: Callable[[int, int], bytes], size: int, before_ms: int | None = None, windows: Sequence[int] = WINDOWS
) -> Found | None:
    """Return the last trusted checkpoint of a log of `size` bytes; None if no window has one.

    With `before_ms`, return the last one written before that time. If no window has one, return the oldest trusted
    checkpoint found, but None if the windows have reached the start of the log.
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
    """Return the checkpoint in `data[place:end]`, where `data` begins at `start`; None if it cannot be trusted."""
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
    """Return the tasks in ascending ranges, and add them to `seen`. ValueError if one is in `seen` already."""
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
    """Return `value` if it is a whole number from 0 to `most`. ValueError if not."""
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError
    return value


def _priority(value: Any) -> Priority | None:
    if value is not None and priority.fault(value) is not None:
        raise ValueError
    return value  # type: ignore[no-any-return]


def _worker(value: Any) -> dict[str, Any] | None:
    return value if type(value) is dict else None
