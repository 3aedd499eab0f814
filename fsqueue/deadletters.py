"""Dead letters: tasks that were given up, with the reason, until somebody retries or purges them.

One file a shard, appended under its lock: `dead`, `retried` and `purged` lines; of an id the last
line counts, and a second `dead` is dropped (docs/format.md, "Dead letters").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson

from fsqueue import batch, jsonl, names, staging
from fsqueue.logs import Log
from fsqueue.store import Store
from fsqueue.task import DeadLetter


def write(
    store: Store,
    log: Log,
    tasks: Iterable[int],
    payload_of: Callable[[int], Any],
    at: int,
    *,
    sync: bool,
    certain: bool,
) -> int:
    """Append letters for buried `tasks`. Under the log's lock, which keeps others from doing the same.

    `certain`: they were buried just now. Otherwise those are left out that have a line already.
    Returns how many were written.
    """
    wanted = [index for index in tasks if index not in log.lettered]
    if not wanted and not sync:
        return 0
    path = store.layout.dead(store.layout.shard(log.batch))
    with jsonl.locked(store.fs, store.clock, store.entropy, path) as fd:
        if wanted and not certain:
            known = {str(line.get("id")) for line in _lines(store, fd) if line.get("op") == "dead"}
            wanted = [index for index in wanted if names.task_id(log.batch, index) not in known]
        lines = b"".join(_letter(log, index, payload_of(index), at) for index in wanted)
        jsonl.append(store.fs, fd, lines, sync)
    log.lettered.update(wanted)
    return len(wanted)


def _letter(log: Log, index: int, payload: Any, at: int) -> bytes:
    ledger = log.ledger
    holder = ledger.holder[index]
    letter = {
        "op": "dead",
        "at": at,
        "id": names.task_id(log.batch, index),
        "reason": ledger.errors.get(index, ""),
        "attempt": ledger.attempts[index],
        "worker": holder.worker if holder is not None else None,
        **batch.payload_fields(payload),
    }
    return orjson.dumps(letter, option=orjson.OPT_APPEND_NEWLINE)


def _lines(store: Store, fd: int) -> Iterator[dict[str, Any]]:
    for line in jsonl.lines_of(store.fs, fd):
        try:
            record = orjson.loads(line)
        except orjson.JSONDecodeError:
            continue
        if isinstance(record, dict) and isinstance(record.get("id"), str):
            yield record


def _shards(store: Store) -> list[str]:
    found = (name.removesuffix(".jsonl") for name in store.fs.names(store.layout.dead("")[: -len("/.jsonl")]))
    return sorted(set(found) & set(names.all_shards(store.layout.shards)))


def _alive(store: Store, fd: int) -> dict[str, int]:
    """The ids whose last line says dead, with the number of that line."""
    dead: dict[str, int] = {}
    closed: set[str] = set()
    for number, line in enumerate(_lines(store, fd)):
        if line.get("op") == "dead":
            if line["id"] not in closed:
                dead.setdefault(line["id"], number)
        else:
            dead.pop(line["id"], None)
            closed.add(line["id"])
    return dead


def ids(store: Store) -> tuple[set[str], set[str]]:
    """The ids of all dead letters there are, and of those that were dealt with."""
    dead: set[str] = set()
    settled: set[str] = set()
    for shard in _shards(store):
        fd = _look(store, shard)
        if fd is None:
            continue
        try:
            alive = _alive(store, fd)
            dead.update(alive)
            settled.update(line["id"] for line in _lines(store, fd) if line["id"] not in alive)
        finally:
            store.fs.close(fd)
    return dead, settled


def _look(store: Store, shard: str) -> int | None:
    try:
        return store.fs.look(store.layout.dead(shard))
    except FileNotFoundError:
        return None


def letters(store: Store) -> Iterator[DeadLetter]:
    """All dead letters, shard by shard; memory is bounded by a shard's ids."""
    for shard in _shards(store):
        fd = _look(store, shard)
        if fd is None:
            continue
        try:
            yield from _letters(store, fd)
        finally:
            store.fs.close(fd)


def _letters(store: Store, fd: int) -> Iterator[DeadLetter]:
    alive = _alive(store, fd)
    for number, line in enumerate(_lines(store, fd)):
        if alive.get(line["id"]) == number:
            yield _decode(line)


def _decode(line: dict[str, Any]) -> DeadLetter:
    payload = line.get("payload")
    if "b64" in line:
        payload = batch.decode_task(orjson.dumps({"b64": line["b64"]}))["payload"]
    at, attempt, worker = line.get("at"), line.get("attempt"), line.get("worker")
    return DeadLetter(
        id=line["id"],
        payload=payload,
        reason=str(line.get("reason", "")),
        at=at / 1000 if isinstance(at, int) else 0.0,
        attempt=attempt if isinstance(attempt, int) else 0,
        worker=worker if isinstance(worker, dict) else None,
    )


Where = Callable[[DeadLetter], bool]


def purge(store: Store, wanted: set[str] | None, where: Where | None) -> int:
    """Throw letters away; they leave *inserted*, too. Returns how many."""
    return sum(_settle(store, shard, wanted, where, retry=False) for shard in _shards(store))


def retry(store: Store, wanted: set[str] | None, where: Where | None) -> int:
    """Insert the tasks of letters again, with new ids and no attempts charged. Returns how many.

    Under the file's lock: stage the new tasks; append `retried` lines that name the staged file,
    and sync; publish. A crash before the lines leaves letters and a staged file that upkeep reaps;
    one after them leaves a staged file that `publish_pending` publishes: never lost, never twice.
    """
    return sum(_settle(store, shard, wanted, where, retry=True) for shard in _shards(store))


def _settle(store: Store, shard: str, wanted: set[str] | None, where: Where | None, *, retry: bool) -> int:
    settled = 0
    with jsonl.locked(store.fs, store.clock, store.entropy, store.layout.dead(shard)) as fd:
        chosen = [
            letter
            for letter in _letters(store, fd)
            if (wanted is None or letter.id in wanted) and (where is None or where(letter))
        ]
        at = store.clock.now_ms()
        for start in range(0, len(chosen), store.settings.batch_tasks_max):
            part = chosen[start : start + store.settings.batch_tasks_max]
            if not retry:
                lines = [{"op": "purged", "at": at, "id": letter.id} for letter in part]
                jsonl.append(store.fs, fd, _join(lines), store.sync_inserts)
            else:
                bytes_max = 2 * store.settings.task_bytes_max
                content = [batch.encode_task(letter.payload, bytes_max) for letter in part]
                staged = staging.stage(store, content, 0)
                try:
                    lines = [
                        {
                            "op": "retried",
                            "at": at,
                            "id": letter.id,
                            "as": names.task_id(staged.name.batch, index),
                            "staged": str(staged.name),
                        }
                        for index, letter in enumerate(part)
                    ]
                    jsonl.append(store.fs, fd, _join(lines), store.sync_inserts)
                    staging.publish(store, staged)
                finally:
                    staged.close(store)
            settled += len(part)
    return settled


def _join(lines: list[dict[str, Any]]) -> bytes:
    return b"".join(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE) for line in lines)


def publish_pending(store: Store) -> int:
    """Publish what a retry staged and recorded, but did not live to publish. Returns how many files."""
    waiting = {name for name in store.fs.names(store.layout.staging) if names.parse_task_file(name)}
    published = 0
    for shard in _shards(store) if waiting else ():
        with jsonl.locked(store.fs, store.clock, store.entropy, store.layout.dead(shard)) as fd:
            for line in _lines(store, fd):
                staged = line.get("staged")
                if line.get("op") == "retried" and isinstance(staged, str) and staged in waiting:
                    waiting.discard(staged)
                    published += staging.publish_named(store, staged)
    return published


def letters_of(store: Store, task_id: str) -> Iterator[DeadLetter]:
    """The letter of one task, if there is one."""
    fd = _look(store, store.layout.shard(names.parse_task_id(task_id)[0]))
    if fd is None:
        return
    try:
        for letter in _letters(store, fd):
            if letter.id == task_id:
                yield letter
                return
    finally:
        store.fs.close(fd)


def staged_names(store: Store) -> set[str]:
    """The staged files that `retried` lines name: not to be reaped before they are published."""
    found: set[str] = set()
    for shard in _shards(store):
        fd = _look(store, shard)
        if fd is not None:
            try:
                found.update(str(line["staged"]) for line in _lines(store, fd) if "staged" in line)
            finally:
                store.fs.close(fd)
    return found
