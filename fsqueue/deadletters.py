"""Dead letters: tasks that were given up, with the reason, until somebody retries or purges them.

One file a shard, appended under its lock: `dead`, `retried` and `purged` lines; of an id the last
line counts, and a second `dead` is dropped (docs/format.md, "Dead letters").
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import orjson

from fsqueue import batch, jsonl, names, nesting, staging
from fsqueue.layout import Layout
from fsqueue.ledger import Ledger
from fsqueue.logs import Log
from fsqueue.names import Shard
from fsqueue.store import Store
from fsqueue.task import DeadLetter

Where = Callable[[DeadLetter], bool]
SETTLED = ("retried", "purged")
END_BYTES = 1 << 14
"""How much is read of the end of a file, at least, for its latest letters."""


# -- writing -----------------------------------------------------------------------------------------


def write(
    store: Store, log: Log, tasks: Iterable[int], payload_of: Callable[[int], Any], *, certain: bool, timeout_s: float
) -> int:
    """Append letters for buried `tasks`. Under the log's lock, which keeps others from doing the same.

    `certain`: they were buried just now. Otherwise those are left out that have a line already,
    and what is there is synced. Returns how many were written.
    """
    wanted = [index for index in tasks if index not in log.lettered]
    path = log.layout.dead(log.layout.shard(log.batch))
    sync = store.sync_inserts and not certain
    with store.locked(path, timeout_s, durable=store.sync_inserts) as fd:
        if wanted and not certain:
            known = {line["id"] for line in _lines(store, fd) if line["op"] == "dead"}
            wanted = [index for index in wanted if names.task_id(log.batch, index) not in known]
        if wanted:
            jsonl.append(
                store.fs,
                fd,
                b"".join(_letter(log.batch, log.ledger, index, payload_of(index)) for index in wanted),
                sync,
            )
        elif sync:
            store.fs.fsync(fd)
    log.lettered.update(wanted)
    return len(wanted)


def restore(store: Store, batch: str, ledger: Ledger, tasks: Iterable[int]) -> None:
    """Write the letters of a finished batch that are missing all the same, without the payloads, which are gone."""
    path = store.layout.dead(store.layout.shard(batch))
    with store.locked(path) as fd:
        there, settled = _alive(store, fd)
        lost = [index for index in tasks if names.task_id(batch, index) not in there.keys() | settled]
        jsonl.append(store.fs, fd, b"".join(_letter(batch, ledger, index, None) for index in lost), True)


def _letter(batch_id: str, ledger: Ledger, index: int, payload: Any) -> bytes:
    holder = ledger.holder[index]
    letter = {
        "op": "dead",
        "at": ledger.since[index],
        "id": names.task_id(batch_id, index),
        "reason": ledger.errors.get(index, ""),
        "attempt": ledger.attempts[index],
        "worker": holder.worker if holder is not None else None,
        **batch.payload_fields(payload),
    }
    return orjson.dumps(letter, option=orjson.OPT_APPEND_NEWLINE)


# -- reading -----------------------------------------------------------------------------------------


def _lines(store: Store, fd: int) -> Iterator[dict[str, Any]]:
    """The lines of a file that make sense."""
    for line in jsonl.lines_of(store.fs, fd):
        record = _parse(line)
        if record is not None:
            yield record


def _parse(line: bytes) -> dict[str, Any] | None:
    """Return a line that makes sense, without the fields that nest too deep; None for any other."""
    try:
        record = orjson.loads(line)
    except orjson.JSONDecodeError:
        return None
    if isinstance(record, dict) and len(line) > batch.SHALLOW_BYTES and nesting.is_deeper(line):
        record = nesting.trimmed(record)
    if isinstance(record, dict) and (
        (record.get("op") == "dead" and isinstance(record.get("id"), str))
        or (record.get("op") in SETTLED and isinstance(record.get("ids"), list))
    ):
        return record
    return None


def _shards(store: Store, layout: Layout) -> list[Shard]:
    found = (names.parse_shard_file(name, layout.shards) for name in store.fs.names(layout.dead_letters))
    return sorted(shard for shard in found if shard is not None)


def _opened(store: Store, layout: Layout, only: Shard | None = None) -> Iterator[tuple[Shard, int]]:
    """The files there are (or that of one shard, if it is there), opened one after the other."""
    for shard in _shards(store, layout) if only is None else [only]:
        try:
            fd = store.fs.look_anew(layout.dead(shard))
        except FileNotFoundError:
            continue
        try:
            yield shard, fd
        finally:
            store.fs.close(fd)


def _alive(store: Store, fd: int) -> tuple[dict[str, int], set[str]]:
    """The ids that are dead, with the number of their line; and those that were dealt with."""
    dead: dict[str, int] = {}
    settled: set[str] = set()
    for number, line in enumerate(_lines(store, fd)):
        if line["op"] == "dead":
            if line["id"] not in settled:
                dead.setdefault(line["id"], number)
        else:
            for one in line["ids"]:
                if isinstance(one, str):
                    dead.pop(one, None)
                    settled.add(one)
    return dead, settled


class Ids:
    """What one reading of all letters says: the ids that are dead, those that were dealt with, what retries staged."""

    def __init__(self, store: Store) -> None:
        self.dead: set[str] = set()
        self.settled: set[str] = set()
        self.staged: set[str] = set()
        """The names of the files in `staging/` that are as good as published, if they are there still."""
        for _, fd in _opened(store, store.layout):
            some, others = _alive(store, fd)
            self.dead.update(some)
            self.settled |= others
            self.staged |= _staged(store, fd)

    def known(self) -> set[str]:
        """Those that have a letter, or had one that was dealt with."""
        return self.dead | self.settled


def known(store: Store, shard: str) -> set[str]:
    """The ids in a shard that have a letter, or had one that was dealt with."""
    found: set[str] = set()
    for other, fd in _opened(store, store.layout):
        if other == shard:
            found.update(*_alive(store, fd))
    return found


def sizes(store: Store) -> dict[Shard, int]:
    """The size of each file of letters in bytes: changed, if anything was appended."""
    return {shard: store.fs.fstat(fd).st_size for shard, fd in _opened(store, store.layout)}


def letters(store: Store, only: Shard | None = None) -> Iterator[DeadLetter]:
    """All dead letters, shard by shard, or those of one; memory is bounded by a shard's ids."""
    for _, fd in _opened(store, store.layout, only):
        yield from _letters(store, fd)


def latest(store: Store, bytes_max: int) -> tuple[list[DeadLetter], bool]:
    """The letters at the ends of the files, of which about `bytes_max` bytes in all are read; whether those are all.

    Letters that were dealt with are left out: what says so stands behind them.
    """
    found: list[DeadLetter] = []
    shards, whole, left = _shards(store, store.layout), True, bytes_max
    share = max(END_BYTES, bytes_max // max(1, len(shards)))
    for shard in sorted(shards, key=lambda _: store.entropy.random()):
        if left <= 0:
            return found, False
        for _, fd in _opened(store, store.layout, shard):
            letters, size = _latest(store, fd, share)
            found += letters
            left -= min(size, share)
            whole = whole and size <= share
    return found, whole


def _latest(store: Store, fd: int, bytes_max: int) -> tuple[Iterable[DeadLetter], int]:
    """The same of one file; and its size."""
    dead: dict[str, DeadLetter] = {}
    settled: set[str] = set()
    for _, line in jsonl.lines_from_end(store.fs, fd, bytes_max):
        record = _parse(line)
        if record is not None and record["op"] == "dead":
            if record["id"] not in settled:
                dead[record["id"]] = _decode(record)
        elif record is not None:
            for one in record["ids"]:
                if isinstance(one, str):
                    settled.add(one)
                    dead.pop(one, None)  # a `dead` line behind this one is a repeat
    return dead.values(), store.fs.fstat(fd).st_size


def letter_of(store: Store, task_id: str) -> DeadLetter | None:
    """The letter of one task, if there is one."""
    wanted = store.layout.shard(names.parse_task_id(task_id)[0])
    for shard, fd in _opened(store, store.layout):
        if shard == wanted:
            return next((letter for letter in _letters(store, fd) if letter.id == task_id), None)
    return None


def _letters(store: Store, fd: int) -> Iterator[DeadLetter]:
    alive, _ = _alive(store, fd)
    for number, line in enumerate(_lines(store, fd)):
        if line["op"] == "dead" and alive.get(line["id"]) == number:
            yield _decode(line)


def _decode(line: dict[str, Any]) -> DeadLetter:
    try:
        payload = batch.decode_fields(line)
    except ValueError:
        payload = None  # damaged: the letter is still there to be seen
    at, attempt, worker = line.get("at"), line.get("attempt"), line.get("worker")
    return DeadLetter(
        id=line["id"],
        payload=payload,
        reason=str(line.get("reason", "")),
        at=at / 1000 if isinstance(at, int) else 0.0,
        attempt=attempt if isinstance(attempt, int) else 0,
        worker=worker if isinstance(worker, dict) else None,
    )


# -- settling ------------------------------------------------------------------------------------------


def purge(store: Store, wanted: set[str] | None, where: Where | None) -> int:
    """Throw letters away; they leave *inserted*, too. Returns how many."""

    def act(layout: Layout, fd: int, part: list[DeadLetter]) -> None:
        jsonl.append(store.fs, fd, _settling(store, "purged", part), store.sync_inserts)

    return _settle(store, wanted, where, act)


def retry(store: Store, wanted: set[str] | None, where: Where | None) -> int:
    """Insert the tasks of letters again, with new ids and no attempts charged. Returns how many.

    Under the file's lock: stage the new tasks; append one `retried` line that names the staged file,
    and sync; publish. A crash before the line leaves letters and a staged file that upkeep reaps;
    one after it leaves a staged file that `publish_pending` publishes: never lost, never twice. An error while the
    line is written leaves open whether it stands, so the staged file stays, too: the line, or its absence, decides.
    """
    bytes_max = 2 * store.settings.task_bytes_max

    def act(layout: Layout, fd: int, part: list[DeadLetter]) -> None:
        content = [batch.encode_task(letter.payload, bytes_max) for letter in part]
        staged = staging.stage(store, layout, content, len(content), 0)
        named = False
        try:
            staging.sync(store, [staged])
            if store.sync_inserts:
                store.sync_names(layout.staging)  # the line must not outlive what it names
            line = _settling(store, "retried", part, staged=str(staged.name), **{"as": staged.name.batch})
            named = True
            jsonl.append(store.fs, fd, line, store.sync_inserts)
            list(staging.publish(store, layout, [staged]))
        except OSError:
            if not named:
                store.fs.unlink(staged.path)
            raise
        finally:
            staged.close(store)

    return _settle(store, wanted, where, act)


def _settling(store: Store, op: str, part: list[DeadLetter], **fields: str) -> bytes:
    line = {"op": op, "at": store.clock.now_ms(), "ids": [letter.id for letter in part], **fields}
    return orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE)


def _settle(
    store: Store, wanted: set[str] | None, where: Where | None, act: Callable[[Layout, int, list[DeadLetter]], None]
) -> int:
    settled, layout = 0, store.layout
    for shard in _shards(store, layout):
        with store.locked(layout.dead(shard)) as fd:
            chosen = [
                letter
                for letter in _letters(store, fd)
                if (wanted is None or letter.id in wanted) and (where is None or where(letter))
            ]
            size = store.settings.batch_tasks_max
            for start in range(0, len(chosen), size):
                act(layout, fd, chosen[start : start + size])
                settled += len(chosen[start : start + size])
    return settled


def publish_pending(store: Store) -> int:
    """Publish what retries recorded, but did not live to publish, and ring. Returns how many files."""
    layout = store.layout
    orphans = set(staging.orphans(store, layout))
    published = 0
    for _, fd in _opened(store, layout) if orphans else ():
        named = _named(store, fd, orphans)
        if named and store.sync_inserts:
            store.fs.fsync(fd)  # the line must not be lost when what it publishes is not
        published += sum(staging.publish_named(store, layout, name) for name in named)
    if published:
        store.ring()
    return published


def is_retrying(store: Store) -> bool:
    """Whether tasks that a retry has recorded wait to be published: its author lives, or may be stopped."""
    there = {str(name) for name in staging.files(store, store.layout)}
    return bool(there) and not there.isdisjoint(staged_names(store))


def pending(store: Store) -> set[str]:
    """The staged files that `publish_pending` would publish."""
    orphans = set(staging.orphans(store, store.layout))
    return {name for _, fd in _opened(store, store.layout) for name in _named(store, fd, orphans)} if orphans else set()


def _named(store: Store, fd: int, orphans: set[str]) -> list[str]:
    return sorted(_staged(store, fd) & orphans)


def _staged(store: Store, fd: int) -> set[str]:
    named = (line.get("staged") for line in _lines(store, fd))
    return {name for name in named if isinstance(name, str)}


def staged_names(store: Store) -> set[str]:
    """The staged files that `retried` lines name: not to be reaped before they are published."""
    return set().union(*(_staged(store, fd) for _, fd in _opened(store, store.layout)))
