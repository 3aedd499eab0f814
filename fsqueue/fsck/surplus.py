"""Bytes in the completion counters that no batch has written: status tells of too many completions.

The history and the logs of batches at work say which bytes are whose, in their `count` records. Older history may have
been removed. So a counter is judged only if the history reaches back to its first byte that counts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import partial
from typing import Any

import orjson

from fsqueue.errors import HiddenTasks
from fsqueue.format import names
from fsqueue.format.names import CounterName, Day, Shard, day_of
from fsqueue.fsck.findings import Suspect, found
from fsqueue.fsck.repair import WAIT_S, Repair
from fsqueue.interruptions import suppress
from fsqueue.storage import counters, history, listing
from fsqueue.storage.store import Store

COUNT_BITS = names.BATCH_TASKS_MAX.bit_length()
"""Bits of a record's length, at most the tasks of a batch. A record is kept as one number, offset before length."""
OFFSET_MAX = 1 << 51
DRIFT_MS = 3_600_000
"""By how much the records of a counter may be out of order: they are dated before their authors wait for its lock."""
READ_BYTES = 1 << 20

Gap = tuple[int, int, int]
"""Begin and end of bytes that no record counts, and how many of them are not NUL."""


def check(store: Store, repair: Repair) -> Iterator[Suspect]:
    """Yield the counters that have surplus bytes."""
    for number, gaps in _surplus(store).items():
        path = store.layout.counter(number)
        surplus = sum(marked for _, _, marked in gaps)
        yield Suspect(
            found(store, "counter-surplus", path, surplus, f"{surplus:,} bytes"),
            partial(_has_surplus, store, number),
            partial(_void, store, repair, number),
        )


def _has_surplus(store: Store, number: CounterName) -> bool:
    return number in _surplus(store)


def _void(store: Store, repair: Repair, number: CounterName) -> None:
    """Overwrite the surplus of a counter with NUL, under its lock; a copy is kept.

    Nothing moves: the offsets in logs and in the history stay true. What was appended since the look is not touched.
    """
    fs, path = store.fs, store.layout.counter(number)
    gaps = _surplus(store).get(number, [])
    with store.locked_existing(path, WAIT_S, one_name=True) as file:
        try:
            for begin, end, _ in gaps:
                repair.quarantine.keep(f"{path}.bytes-from-{begin}", fs.pread(file.fd, end - begin, begin))
                fs.pwrite(file.fd, bytes(end - begin), begin)
            fs.fsync(file.fd)
        finally:
            store.read_counters.pop(path, None)


def _surplus(store: Store) -> dict[CounterName, list[Gap]]:
    """Return for each counter the bytes that count and of which no record tells; none for what cannot be judged."""
    sizes = counters.sizes(store) if store.settings.keep_history else {}
    records = _CountRecords()
    if not sizes or not records.read(store):
        return {}
    found = {}
    for number, size in sizes.items():
        gaps = list(_marked(store, number, records.uncounted(number, size)))
        if gaps and records.reach_back(number, gaps[0][0]):
            found[number] = gaps
    return found


def _marked(store: Store, number: CounterName, pieces: Iterator[tuple[int, int]]) -> Iterator[Gap]:
    """Yield the pieces of a counter, given in order, that are more than NUL. Guards are pieces of one byte each."""
    path = store.layout.counter(number)
    with suppress(FileNotFoundError), store.fs.closing(store.fs.look_anew(path)) as fd:  # else purged meanwhile
        data, start = b"", 0
        for begin, end in pieces:
            if end > start + len(data):
                data, start = store.fs.pread(fd, READ_BYTES, begin), begin
            piece = data[begin - start : end - start]
            if marked := len(piece) - piece.count(counters.GUARD):
                yield begin, end, marked


class _CountRecords:
    """Which bytes of the counters belong to batches."""

    def __init__(self) -> None:
        self._of: dict[str, array[int]] = {}
        self._first: dict[str, tuple[int, int]] = {}
        """The lowest offset that was counted of each counter, and when, as far as the history tells that reliably."""
        self._earliest: dict[str, int] = {}
        """When the earliest record of each counter was made."""

    def read(self, store: Store) -> bool:
        """Read them all; False if some may be missing: a line is damaged, or a log hidden, that may have held them.

        Logs come before the history: a batch whose log has ended meanwhile is in the history by then.
        """
        at_work: dict[Shard, set[str]] = {}
        try:
            for shard in names.all_shards(store.layout.shards):
                for batch in listing.logs(store, shard):
                    replay_state = listing.read_replay_state(store, batch)
                    if replay_state is None:
                        continue
                    if replay_state.damaged:
                        return False
                    at_work.setdefault(store.layout.shard(batch), set()).add(batch)
                    for number, offset, count in replay_state.counts:
                        self._add(number, offset, count)
        except HiddenTasks:
            return False
        days = history.days(store)
        return all(
            self._read_shard(store, shard, days, at_work.get(shard, set()))
            for shard in names.all_shards(store.layout.shards)
        )

    def _read_shard(self, store: Store, shard: Shard, days: list[Day], known: set[str]) -> bool:
        torn: set[str] = set()
        for day in days:
            for line in history.beginnings(store, store.layout.history(day, shard)):
                batch = self._read_line(line, day)
                if batch is not None:
                    known.add(batch)
                elif line.strip():
                    torn.add(history.batch_named(line) or "")
        return torn <= known

    def _read_line(self, line: bytes, day: Day) -> str | None:
        """Return the batch whose records a line of the history tells; None if it makes no sense."""
        try:
            record = orjson.loads(line)
            batch, records = names.parse_batch(record["batch"]), record["records"]
        except (ValueError, KeyError, TypeError):
            return None
        if batch is None or type(records) is not list:
            return None
        for one in records:
            if isinstance(one, dict) and one.get("op") == "count":
                values: Any = one.get("file"), one.get("offset"), one.get("count")
                at = one.get("at")
                if type(values[0]) is str and type(values[1]) is type(values[2]) is type(at) is int:
                    self._add(*values)
                    number, offset = values[:2]
                    self._earliest[number] = min(at, self._earliest.get(number, at))
                    if offset >= 0 and 0 <= at < 10**13 and day_of(at) == day:
                        self._first[number] = min((offset, at), self._first.get(number, (offset, at)))
        return batch

    def _add(self, number: str, offset: int, count: int) -> None:
        if 0 <= offset < OFFSET_MAX and 0 < count < 1 << COUNT_BITS:
            self._of.setdefault(number, array("q")).append(offset << COUNT_BITS | count)

    def reach_back(self, number: str, surplus: int) -> bool:
        """Return whether no record below the offset `surplus` can be missing, because `gc` has removed older history.

        `gc` removes the earliest days, and records were made in the order of their offsets. So no record that is
        earlier than the lowest one was removed, on three conditions: nothing below the lowest counts; it is dated on
        the day of its line; it is not later than the records behind it.
        """
        offset, at = self._first.get(number, (surplus, 0))
        return offset < surplus and at <= self._earliest[number] + DRIFT_MS

    def uncounted(self, number: CounterName, size: int) -> Iterator[tuple[int, int]]:
        """Yield begin and end of what no record counts of the first `size` bytes, in order, at most READ_BYTES each."""
        at = 0
        for record in (*sorted(self._of.get(number, ())), size << COUNT_BITS):
            offset = min(record >> COUNT_BITS, size)
            while at < offset:
                end = min(offset, at + READ_BYTES)
                yield at, end
                at = end
            at = max(at, offset + (record & (1 << COUNT_BITS) - 1))
