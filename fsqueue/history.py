"""What finished batches went through: a line each, by day and shard (docs/format.md, "History")."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from typing import Any

import orjson

from fsqueue import jsonl, movements, names
from fsqueue.ledger import Ledger
from fsqueue.logs import Log
from fsqueue.store import Store


def day_of(at_ms: int) -> str:
    """The UTC day of a time, as 2026-11-21."""
    return time.strftime("%Y-%m-%d", time.gmtime(at_ms / 1000))


def keep(store: Store, log: Log, at: int, timeout_s: float) -> None:
    """Append the batch's records. Under the log's lock; a repeat after a crash is dropped by readers."""
    line = b'{"batch":"%s","count":%d,"records":[%s]}\n' % (log.batch.encode(), log.ledger.count, log.records())
    path = log.layout.history(day_of(at), log.layout.shard(log.batch))
    sync = store.settings.durability == "strict"
    with store.locked(path, timeout_s, durable=sync) as fd:
        jsonl.append(store.fs, fd, line, sync)


def days(store: Store) -> list[str]:
    """The days that have a history, oldest first."""
    return sorted(name for name in store.fs.names(store.layout.history_days) if names.is_day(name))


Records = list[tuple[int, dict[str, Any]]]
"""Records with their offsets in the log that they were in."""


def find(store: Store, batch: str) -> Records | None:
    """The records of a finished batch, newest day first; None if the history does not know it."""
    start = b'{"batch":"%s",' % batch.encode()
    for day in reversed(days(store)):
        for line in _lines(store, store.layout.history(day, store.layout.shard(batch))):
            if line.startswith(start) and (found := parse(line)) is not None:
                return found[1]
    return None


def batches(store: Store) -> Iterator[tuple[str, Records]]:
    """All finished batches that the history keeps, with their records; a repeat of a batch is dropped."""
    for shard in names.all_shards(store.layout.shards):
        yield from batches_of(store, shard)


def batches_of(store: Store, shard: str) -> Iterator[tuple[str, Records]]:
    """Those of one shard. Memory is bounded by the ids of its batches."""
    seen: set[str] = set()
    for day in days(store):
        for line in _lines(store, store.layout.history(day, shard)):
            found = parse(line)
            if found is not None and found[0] not in seen:
                seen.add(found[0])
                yield found


def sizes(store: Store) -> dict[str, int]:
    """The bytes of history that each shard has."""
    found: dict[str, int] = {}
    for day in days(store):
        for name in store.fs.names(f"{store.layout.history_days}/{day}"):
            try:
                size = store.fs.stat(f"{store.layout.history_days}/{day}/{name}").st_size
            except FileNotFoundError:
                continue
            shard = name.removesuffix(".jsonl")
            found[shard] = found.get(shard, 0) + size
    return found


def read(store: Store, path: str, batch: str | None = None) -> Iterator[tuple[int, int, str, Records]]:
    """Offset, length, batch and records of each sound line of a file, repeats too; of one batch only if asked for."""
    start = b'{"batch":"%s",' % batch.encode() if batch is not None else b""
    offset = 0
    for line in _lines(store, path):
        if line.startswith(start) and (found := parse(line)) is not None:
            yield offset, len(line), *found
        offset += len(line) + 1


def all_lines(store: Store) -> Iterator[tuple[str, Records]]:
    """Batch and records of every line that the history keeps, repeats too."""
    for shard in names.all_shards(store.layout.shards):
        for day in days(store):
            for _, _, batch, records in read(store, store.layout.history(day, shard)):
                yield batch, records


def replay(records: Records) -> Ledger:
    """The ledger after records that were kept in the history."""
    ledger = Ledger()
    for offset, record in records:
        if movements.is_record(record):
            ledger.apply(record, offset)
    return ledger


def parse(line: bytes) -> tuple[str, Records] | None:
    """Batch and records of a line. The records stand in it as far apart as they stood in the log."""
    begin = line.find(b'"records":[') + len(b'"records":[')
    try:
        batch = orjson.loads(line)["batch"]
        text = line[begin:].decode("latin-1")  # one character a byte: only the ends of the records are wanted
        records: Records = []
        at = _BLANK.match(text, 0).end()  # type: ignore[union-attr]
        while text[at] != "]":
            _, end = _DECODER.raw_decode(text, at)
            records.append((at, orjson.loads(line[begin + at : begin + end])))
            at = _BLANK.match(text, end).end()  # type: ignore[union-attr]
        return (batch, records) if isinstance(batch, str) else None
    except (ValueError, KeyError, TypeError, IndexError):
        return None


_BLANK = re.compile(r"[ ,]*")
_DECODER = json.JSONDecoder()


def _lines(store: Store, path: str) -> Iterator[bytes]:
    try:
        fd = store.fs.look(path)
    except FileNotFoundError:
        return
    try:
        yield from jsonl.lines_of(store.fs, fd)
    finally:
        store.fs.close(fd)
