"""The completion counters against the history: bytes that a power loss took, and putting them back.

The history of a finished batch holds its `count` records: file, offset and number of the bytes, which tell by
their value whose they are. Missing ones are written where they belong, if no other batch's are there now.
Else they are announced anew, in a further line of the history, and appended. So a crash in between, or
another fsck at the same time, never counts twice.
"""

from __future__ import annotations

from typing import Any

import orjson

from fsqueue.format import names
from fsqueue.format.names import Batch, CounterName
from fsqueue.format.replay import COMPLETED, ReplayState
from fsqueue.storage import counters, history
from fsqueue.storage.journals import Journal
from fsqueue.storage.store import Store

WAIT_S = 2.0

Announced = tuple[str, int, int]
"""(counter file, offset, bytes)."""


def announced(records: history.Records) -> set[Announced]:
    """Return the `count` records among the records of a batch."""
    found = set()
    for _, record in records:
        if record.get("op") == "count":
            values: Any = record.get("file"), record.get("offset"), record.get("count")
            if type(values[0]) is str and type(values[1]) is int and type(values[2]) is int:
                found.add(values)
    return found


def short(store: Store, batch: str, replay_state: ReplayState) -> int:
    """Return how many of a finished batch's completions are in no counter, as far as this line of the history knows."""
    there = sum(counters.there(store, store.layout, batch, *count) for count in replay_state.counts)
    return max(0, replay_state.done[COMPLETED] - there)


def known(store: Store, batch: str) -> tuple[str, ReplayState] | None:
    """Return the first line's file and the replay state with all that later lines announce; None if it is not known."""
    first: tuple[str, ReplayState] | None = None
    for day in history.days(store):
        path = store.layout.history(day, store.layout.shard(batch))
        for _, _, _, records in history.read(store, path, batch):
            if first is None:
                first = path, history.replay(records)
            else:
                for offset, record in records:
                    if record.get("op") == "count":
                        first[1].apply(record, offset)
    return first


def is_short(store: Store, batch: str) -> bool:
    """Return whether completions of a finished batch are in no counter."""
    found = known(store, batch)
    return found is not None and short(store, batch, found[1]) > 0


class Recount:
    """Puts missing bytes back. Keeps an index of whose bytes are where, made when it is first needed."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._claims: dict[str, list[tuple[int, int, Batch]]] | None = None
        self._sizes: dict[CounterName, int] = {}

    def put_back(self, batch: Batch) -> None:
        """Put lines back, under the lock of the batch's history: first in place, then behind everything."""
        store = self.store
        found = known(store, batch)
        if found is None:
            return
        path = found[0]
        with store.locked(path, WAIT_S) as file:
            found = known(store, batch)
            if found is None:
                return
            replay_state = found[1]
            for text, offset, count in sorted(replay_state.counts):
                missing, number = short(store, batch, replay_state), names.parse_counter(text)
                if missing and number in counters.NUMBERS:
                    self._in_place(batch, number, offset, count, missing)
            missing = short(store, batch, replay_state)
            if missing:
                self._behind(file, batch, replay_state, missing)

    def _in_place(self, batch: Batch, number: CounterName, offset: int, count: int, missing: int) -> None:
        store, fs = self.store, self.store.fs
        path = store.layout.counter(number)
        with store.locked(path, WAIT_S):
            size = fs.stat(path).st_size
            done = counters.there(store, store.layout, batch, number, offset, count)
            end = min(offset + count, max(size, offset + done + missing))
            if offset > size or done == count or self._is_taken(batch, number, offset + done, end):
                return
            with fs.closing(fs.look(path, 2)) as fd:
                fs.pwrite(fd, counters.mark(batch, count)[done : end - offset], offset + done)
                fs.fsync(fd)
            if self._claims is not None:
                self._claims.setdefault(number, []).append((offset, offset + count, batch))
                self._sizes[number] = max(size, end)

    def _behind(self, history_file: Journal, batch: str, replay_state: ReplayState, missing: int) -> None:
        store, fs = self.store, self.store.fs
        number = store.counter_number
        with store.locked(store.layout.counter(number), WAIT_S) as file:
            offset = counters.reserve(store, file.fd, durable=True)
            at = max(store.clock.now_ms(), replay_state.at)
            record = {"op": "count", "at": at, "file": number, "offset": offset, "count": missing}
            line = {"batch": batch, "count": replay_state.count, "records": [record]}
            history_file.append(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE), True)
            fs.write_all(file.fd, counters.mark(batch, missing))
            fs.fsync(file.fd)
            self._claims = None

    def _is_taken(self, batch: str, number: CounterName, start: int, end: int) -> bool:
        """Return whether another batch's bytes are anywhere between these offsets. Under the counter's lock."""
        store = self.store
        size = store.fs.stat(store.layout.counter(number)).st_size
        if self._claims is None or self._sizes.get(number) != size:
            self._claims = {}
            self._sizes = counters.sizes(store)
            for other, records in history.all_lines(store):
                for file, offset, count in announced(records):
                    self._claims.setdefault(file, []).append((offset, offset + count, other))
        for offset, until, other in self._claims.get(number, ()):
            if other != batch and offset < min(end, size) and start < until:
                there = counters.there(store, store.layout, other, number, offset, until - offset)
                if offset + there > start:
                    return True
        return False
