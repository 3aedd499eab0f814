"""The history of finished batches: a line each, by day and shard (docs/format.md, "History")."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Collection, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple

import orjson

from fsqueue.filesystem import PassingOverStrays
from fsqueue.format import movements, names, nesting, task_file, wording
from fsqueue.format.names import Batch, Day, Shard, day_of
from fsqueue.format.replay import ReplayState
from fsqueue.interruptions import suppress
from fsqueue.storage import journals
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.store import Store

logger = logging.getLogger("fsqueue")

PAGE_BYTES = 4096
"""Number of bytes that hold the end of a line, with the record that says when its batch finished."""
CUT = ("insert", "replace")
"""The records that may have `cut` in place of their payload."""
NOT_KEPT: Any = object()
"""The payload that a task was given by a `replace` record, if the history does not keep it."""
LATE_MS = 5_000
"""Longest time by which lines may stand out of the order in which batches finished: a finishing process waits for the
lock."""


def keep(locked: LockedBatch, at: int, timeout_s: float, tasks: bytes = b"") -> None:
    """Append a line about a finished batch to the history: its records, and `tasks`, the lines of its task file.
    Readers drop a repeat after a crash.

    The lines are a JSON text, not JSON: no reader takes what a payload says for a record.
    """
    store, log = locked.store, locked.log
    line = b'{"batch":"%s","count":%d,%s"records":[%s]}\n' % (
        log.batch.encode(),
        locked.replay_state.count,
        b'"tasks":%s,' % orjson.dumps(tasks.decode(errors="replace")) if tasks else b"",
        log.records(store.settings.keep_payloads),
    )
    path = log.layout.history(day_of(at), log.layout.shard(log.batch))
    sync = store.settings.durability == "strict"
    with store.locked(path, timeout_s, durable=sync) as file:
        file.append(line, sync)


def days(store: Store) -> list[Day]:
    """Return the days that have a history, oldest first."""
    found = map(names.parse_day, store.fs.names(store.layout.history_days))
    return sorted(day for day in found if day is not None)


def shards_of(store: Store, day: Day) -> list[Shard]:
    """Return the shards that have a history of a day."""
    found = store.fs.names(f"{store.layout.history_days}/{day}")
    return [shard for name in found if (shard := names.parse_shard_file(name, store.layout.shards)) is not None]


Records = list[tuple[int, dict[str, Any]]]
"""Records with their offsets in the log that they were in."""


class Finished(NamedTuple):
    """A finished batch, as a line of the history has it."""

    batch: Batch
    records: Records
    """Offsets count only in comparison with each other: they may be numbers of records."""
    lines: list[bytes]
    """The lines of the batch's task file, if that was small: by the tasks' indices. Else none."""


def find(store: Store, batch: str) -> Records | None:
    """Return the records of a finished batch, newest day first; None if the history does not know it."""
    found = find_finished(store, batch)
    return found.records if found is not None else None


def find_finished(store: Store, batch: str) -> Finished | None:
    """Return a finished batch, with the lines of its tasks that it has; None if the history does not know it."""
    with closing(find_all(store, [batch])) as found:
        return next(found, None)


def find_all(store: Store, batches: Iterable[str], offsets: bool = True) -> Generator[Finished, None, None]:
    """Yield the batches among `batches` that the history knows, each once, with those lines of its tasks that are kept.

    Of the shards of these batches it reads the latest days first, until it has found all. Without `offsets`, records
    have numbers in place of their offsets: that is four times as fast.
    """
    missing_of: dict[Shard, set[str]] = {}
    for batch in batches:
        missing_of.setdefault(store.layout.shard(batch), set()).add(batch)
    latest_first = days(store)[::-1] if missing_of else []
    for shard, missing in sorted(missing_of.items()):
        for day in latest_first:
            # Closed, not dropped: what a signal handler raises while a dropped generator ends would be lost.
            with closing(_lines_at(store, store.layout.history(day, shard))) as found_lines:
                for _, line, _ in found_lines:
                    if batch_named(line) not in missing:
                        continue
                    found = _parse_whole(line) if offsets else _parse_fast(line)
                    if found is not None:
                        missing.remove(found.batch)
                        yield found
                        if not missing:
                            break
            if not missing:
                break


def finished(store: Store, shard: Shard, batches: Collection[str]) -> set[str]:
    """Return the `batches` of a shard of which the history has a line, be it torn or damaged behind the name.

    A line is begun when every task has an outcome. So its beginning proves that none may be executed again.
    """
    found: set[str] = set()
    for day in days(store) if batches else ():
        for line in beginnings(store, store.layout.history(day, shard)):
            if (batch := batch_named(line)) in batches and batch is not None:
                found.add(batch)
    return found


def finished_batches(store: Store, offsets: bool = True) -> Iterator[Finished]:
    """Yield all finished batches that the history keeps, with the lines that it has; repeats are dropped.

    Without `offsets`, records have numbers in place of their offsets: that is four times as fast. Damaged lines are
    left out. A warning says at the end how many.
    """
    damaged = 0
    for shard in names.all_shards(store.layout.shards):
        seen: set[str] = set()
        unread: list[str | None] = []
        for day in days(store):
            for line in _lines(store, store.layout.history(day, shard)):
                batch = batch_named(line)
                if batch in seen:
                    continue
                found = None
                if batch is not None:
                    found = _parse_whole(line) if offsets else _parse_fast(line)
                if found is not None:
                    seen.add(found.batch)
                    yield found
                elif is_damaged(line):
                    unread.append(batch)
        damaged += sum(batch not in seen for batch in unread)
    warn_of_damage(store, damaged)


def warn_of_damage(store: Store, lines: int) -> None:
    """Log how many lines of the history could not be read, if there were any."""
    if lines:
        logger.warning(
            "%s in the history of %s cannot be read: what was finished there is left out; 'fsqueue fsck' shows where",
            wording.counted(lines, "line"),
            store.path,
        )


def finished_in(line: bytes) -> Finished | None:
    """Return the finished batch in a line; its records have numbers in place of offsets. None if it cannot be read."""
    return _parse_fast(line)


def is_damaged(line: bytes) -> bool:
    """Return whether a line makes no sense, unless it is blank or void."""
    return journals.is_bad(line, lambda line: parse(line) is not None)


def _parse_fast(line: bytes) -> Finished | None:
    """Return the finished batch in a line of the history, by one decoding of the whole line.

    Three kinds of lines go to `_parse_whole`. Records that name versions need the offsets of all records. The payload
    of a `replace` can be told by `parse` alone. In a line that nests deep, `parse` looks at each record.
    """
    if b'"version' in line or movements.REPLACE in line or nesting.is_deeper(line, nesting.NESTING_MAX + 3):
        return _parse_whole(line)
    try:
        whole = orjson.loads(line)
        batch = names.parse_batch(whole["batch"])
        records = whole["records"]
        if not movements.are_records(records):
            records = filter(movements.is_record, records)
        return Finished(batch, [*enumerate(records)], _task_lines(whole)) if batch is not None else None
    except (ValueError, KeyError, TypeError):
        return None


def _parse_whole(line: bytes) -> Finished | None:
    found = parse(line)
    return Finished(*found, _task_lines(orjson.loads(line))) if found is not None else None


def _task_lines(line: dict[str, Any]) -> list[bytes]:
    tasks = line.get("tasks")
    return task_file.split_lines(tasks.encode()) if type(tasks) is str else []


def batches_of(store: Store, shard: Shard) -> Iterator[tuple[Batch, Records]]:
    """Yield the finished batches of a shard, with their records; a repeat of one is dropped.

    Memory is bounded by the ids of its batches.
    """
    seen: set[str] = set()
    for day in days(store):
        for line in _lines(store, store.layout.history(day, shard)):
            found = parse(line)
            if found is not None and found[0] not in seen:
                seen.add(found[0])
                yield found


def sizes(store: Store) -> dict[Shard, int]:
    """Return the bytes of history that each shard has."""
    found: dict[Shard, int] = {}
    for day in days(store):
        for shard in shards_of(store, day):
            try:
                size = store.fs.stat(store.layout.history(day, shard)).st_size
            except FileNotFoundError:
                continue
            found[shard] = found.get(shard, 0) + size
    return found


def read(store: Store, path: str, batch: str | None = None) -> Iterator[tuple[int, int, Batch, Records]]:
    """Yield offset, length, batch and records of each sound line, repeats too; of one batch only if asked for."""
    start = b'{"batch":"%s",' % batch.encode() if batch is not None else b""
    for offset, line, length in _lines_at(store, path):
        if line.startswith(start) and (found := parse(line)) is not None:
            yield offset, length, *found


@dataclass(slots=True)
class Recent:
    """Lines of batches that finished lately in a shard, the last one first. None since `since` (ms) is missing.

    They are not parsed: a million tasks that were worked off in bulk are some 500 kB of lines, and 100 MB of records.
    """

    lines: list[bytes]
    since: int
    bytes: int


def recent_files(store: Store, since: int) -> dict[Shard, list[Day]]:
    """Return for each shard the days, latest first, whose files may have batches that finished since `since` (ms)."""
    found: dict[Shard, list[Day]] = {}
    for day in reversed(days(store)):
        if day >= day_of(max(0, since - LATE_MS)):
            for shard in shards_of(store, day):
                found.setdefault(shard, []).append(day)
    return found


def recent(store: Store, shard: Shard, days: list[Day], since: int, bytes_max: int) -> Recent:
    """Return the lines of what finished in a shard from `since` (ms) on, from the ends of the files of these days.

    At most the last `bytes_max` bytes of each file are read: where those do not reach back so far, what is returned
    begins later. Of a file in which nothing is so young a page is read.
    """
    assert bytes_max > 0, "nothing would be read, and nothing would seem to have finished"
    found = Recent([], since, 0)
    earliest = since - LATE_MS
    for day in days:
        with PassingOverStrays(), journals.opened(store.fs, store.layout.history(day, shard)) as file:
            if not _recent(file, earliest, bytes_max, found):
                break
    return found


def _recent(file: journals.Journal, earliest: int, bytes_max: int, found: Recent) -> bool:
    """Return whether an earlier day's file may have more."""
    size = file.length()
    page = file.fs.pread(file.fd, PAGE_BYTES, max(0, size - PAGE_BYTES))
    if 0 <= _finished_at(page) < earliest:
        return False
    begin, last = size, -1
    for offset, line in file.lines_from_end(bytes_max):
        finished_at = finished_ms(line)
        if 0 <= finished_at < earliest:
            return False
        begin, last = offset, finished_at if finished_at >= 0 else last
        found.bytes += len(line)
        found.lines.append(line)
    if begin:  # what stands before that is not read: it finished before what was read last, or (nothing was) just now
        found.since = max(found.since, (last if last >= 0 else _finished_at(page)) + LATE_MS)
    return not begin


def end_of(store: Store, day: Day, shard: Shard) -> tuple[int, int]:
    """Return how long a file is, and when the last batch in it finished (ms): -1 if its last page does not tell."""
    with PassingOverStrays(), journals.opened(store.fs, store.layout.history(day, shard)) as file:
        size = file.length()
        return size, _finished_at(file.fs.pread(file.fd, PAGE_BYTES, max(0, size - PAGE_BYTES)))
    return 0, -1


def lines_from_end(store: Store, day: Day, shard: Shard, bytes_max: int) -> Generator[tuple[int, bytes], None, None]:
    """Yield the whole lines of a file with their offsets, the last one first, as `Journal.lines_from_end` does.

    No line if the file is missing. Who stops early closes it: what a signal handler raises while a dropped generator
    ends would be lost.
    """
    with PassingOverStrays(), journals.opened(store.fs, store.layout.history(day, shard)) as file:
        yield from file.lines_from_end(bytes_max, PAGE_BYTES)


def finished_ms(line: bytes) -> int:
    """Return when a line's batch finished (ms); -1 if its end does not tell."""
    return _finished_at(line[-PAGE_BYTES:])


def _finished_at(end: bytes) -> int:
    """Return when the last batch finished (ms) whose line's end is in these bytes; -1 if they do not tell."""
    last = end.rfind(_FINISH)
    digits = end[last + len(_FINISH) :].partition(b"}")[0] if last >= 0 else b""
    return int(digits) if digits.isdigit() and len(digits) <= 13 else -1


_FINISH = b'{"op":"finish","at":'


def all_lines(store: Store) -> Iterator[tuple[Batch, Records]]:
    """Yield batch and records of every line that the history keeps, repeats too."""
    for shard in names.all_shards(store.layout.shards):
        for day in days(store):
            for _, _, batch, records in read(store, store.layout.history(day, shard)):
                yield batch, records


def replay(records: Records, kind: type[ReplayState] = ReplayState) -> ReplayState:
    """Return the replay state after records that were kept in the history. `kind`: the state's class."""
    replay_state = kind()
    for offset, record in records:
        if movements.is_record(record):
            replay_state.apply(record, offset)
    return replay_state


def insertion_times(records: Records) -> dict[int, int]:
    """Return when tasks were inserted into the log (ms), by index; {} for a batch whose tasks were in its file."""
    found: dict[int, int] = {}
    if any(record["op"] == "insert" for _, record in records):
        replay_state = ReplayState()
        sound = ((offset, record) for offset, record in records if movements.is_record(record))
        for offset, record in replay_state.effective(sound):
            index = record.get("first") if record["op"] == "insert" else None
            if type(index) is int and 0 <= index < replay_state.count and replay_state.version[index] == offset:
                found[index] = replay_state.at if "update" not in record else min(record["at"], replay_state.at)
    return found


def erased(line: bytes, payload_bytes_max: int | None) -> bytes:
    """Return a line without the payloads that are longer than a queue keeps. It is as long, and its records stand where
    they stood. A damaged line is returned as it is.
    """
    has_tasks = b',"tasks":"' in line
    if not has_tasks and movements.INSERT not in line and movements.REPLACE not in line:
        return line
    if parse(line) is None:
        return line
    if has_tasks:
        lines = _task_lines(orjson.loads(line))
        kept = task_file.keep_lines(lines, payload_bytes_max)
        if kept != lines:
            begin = line.index(b',"tasks":"') + 1
            end = line.index(b',"records":[') + 1
            line = line[:begin] + _tasks_field(kept).ljust(end - begin) + line[end:]
    parts, done = list[bytes](), 0
    for begin, end in _places(line):
        if line.startswith(movements.WITH_PAYLOAD, begin):
            parts += [line[done:begin], movements.cut(line[begin:end], payload_bytes_max, shorten=False)]
            done = end
    return b"".join([*parts, line[done:]])


def _tasks_field(lines: list[bytes]) -> bytes:
    """Return the field with the lines of a task file; none if no payload is kept."""
    if lines.count(task_file.NOT_KEPT) == len(lines):
        return b""
    return b'"tasks":%s,' % orjson.dumps(b"".join(each + b"\n" for each in lines).decode(errors="replace"))


def parse(line: bytes) -> tuple[Batch, Records] | None:
    """Return batch and records of a line. The records stand in it as far apart as they stood in the log."""
    try:
        batch = names.parse_batch(orjson.loads(line)["batch"])
        records: Records = []
        first = line.find(_RECORDS) + len(_RECORDS)
        cut = 0
        for begin, end in _places(line):
            record = movements.parse(line[begin:end])
            if record is not None:
                records.append((begin - first + cut, record))
                if record["op"] in CUT:
                    spared = record.get("cut")
                    cut += spared if type(spared) is int and spared > 0 else 0
                    if record["op"] == "replace" and spared is not None:
                        record.setdefault("payload", NOT_KEPT)
        return (batch, records) if batch is not None else None
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        return None


def _places(line: bytes) -> Iterator[tuple[int, int]]:
    """Yield where each record of a line begins and ends. A damaged line raises what `parse` catches."""
    first = line.find(_RECORDS) + len(_RECORDS)
    text = line[first:].decode("latin-1")  # one character a byte: only the ends of the records are wanted
    at = _BLANK.match(text, 0).end()  # type: ignore[union-attr]
    while text[at] != "]":
        _, end = _DECODER.raw_decode(text, at)
        yield first + at, first + end
        at = _BLANK.match(text, end).end()  # type: ignore[union-attr]


_RECORDS = b'"records":['
_BLANK = re.compile(r"[ ,]*")
_DECODER = json.JSONDecoder()


def batch_named(line: bytes) -> str | None:
    """Return the batch that a line begins with, whatever follows; None if it begins with none."""
    return line[len(_NAMED) :].partition(b'"')[0].decode("ascii", "replace") if line.startswith(_NAMED) else None


_NAMED = b'{"batch":"'


def tasks_named(line: bytes) -> int:
    """Return how many tasks a line's batch has, as its beginning says; 1 if that tells nothing."""
    found = _COUNT.match(line)
    return min(int(found[1]), names.BATCH_TASKS_MAX) or 1 if found is not None else 1


_COUNT = re.compile(rb'\{"batch":"[^"]{1,64}","count":([0-9]{1,9}),')


def beginnings(store: Store, path: str) -> Iterator[bytes]:
    """Yield the lines of a file; of a torn last one the first page."""
    with suppress(FileNotFoundError), journals.opened(store.fs, path) as file:
        end = 0
        for offset, line, length in file.lines_at():
            end = offset + length + 1
            yield line
        yield store.fs.pread(file.fd, PAGE_BYTES, end)


def _lines(store: Store, path: str) -> Iterator[bytes]:
    return (line for _, line, _ in _lines_at(store, path))


def _lines_at(store: Store, path: str) -> Generator[tuple[int, bytes, int], None, None]:
    with suppress(FileNotFoundError), journals.opened(store.fs, path) as file:
        yield from file.lines_at()
