"""What finished batches went through: a line each, by day and shard (docs/format.md, "History")."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import orjson

from fsqueue import jsonl, names
from fsqueue.logs import Log
from fsqueue.store import Store


def day_of(at_ms: int) -> str:
    """The UTC day of a time, as 2026-11-21."""
    return time.strftime("%Y-%m-%d", time.gmtime(at_ms / 1000))


def keep(store: Store, log: Log, at: int) -> None:
    """Append the batch's records. Under the log's lock; a repeat after a crash is dropped by readers."""
    line = b'{"batch":"%s","count":%d,"records":[%s]}\n' % (log.batch.encode(), log.ledger.count, log.records())
    path = store.layout.history(day_of(at), store.layout.shard(log.batch))
    with jsonl.locked(store.fs, store.clock, store.entropy, path) as fd:
        jsonl.append(store.fs, fd, line, store.settings.durability == "strict")


def days(store: Store) -> list[str]:
    """The days that have a history, oldest first."""
    return sorted(name for name in store.fs.names(store.layout.history_days) if names.is_day(name))


def find(store: Store, batch: str) -> list[dict[str, Any]] | None:
    """The records of a finished batch, newest day first; None if the history does not know it."""
    start = b'{"batch":"%s",' % batch.encode()
    for day in reversed(days(store)):
        for line in _lines(store, store.layout.history(day, store.layout.shard(batch))):
            if line.startswith(start):
                try:
                    return [dict(record) for record in orjson.loads(line)["records"]]
                except (orjson.JSONDecodeError, KeyError, TypeError, ValueError):
                    continue
    return None


def batches(store: Store) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """All finished batches that the history keeps, with their records; repeats dropped within a day's file."""
    for day in days(store):
        for shard in names.all_shards(store.layout.shards):
            seen: set[str] = set()
            for line in _lines(store, store.layout.history(day, shard)):
                try:
                    record = orjson.loads(line)
                    batch, records = record["batch"], record["records"]
                except (orjson.JSONDecodeError, KeyError, TypeError):
                    continue
                if isinstance(batch, str) and batch not in seen and isinstance(records, list):
                    seen.add(batch)
                    yield batch, records


def _lines(store: Store, path: str) -> Iterator[bytes]:
    try:
        fd = store.fs.look(path)
    except FileNotFoundError:
        return
    try:
        yield from jsonl.lines_of(store.fs, fd)
    finally:
        store.fs.close(fd)
