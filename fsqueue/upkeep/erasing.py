"""Erase payloads of finished tasks that a queue does not keep any more (decision 35).

What a batch leaves when it finishes has no payload that the settings of that moment do not keep. So there is something
to erase only after `keep_payloads` was made smaller. Readers hide it until then.

A file is replaced by a whole new one. In a file of the history each line keeps its length, and each record its place:
versions are offsets, and streams remember how far they have read.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

from fsqueue.errors import LockTimeout
from fsqueue.filesystem import PassingOverStrays
from fsqueue.format import task_file
from fsqueue.format.models import GcReport
from fsqueue.format.names import day_of
from fsqueue.storage import history, jsonl, payloads
from fsqueue.storage.store import Store

WAIT_S = 2.0
"""Seconds to wait for the lock of a file. Then it is left to the next upkeep."""


def erase(store: Store, report: GcReport) -> None:
    """Erase what is longer than the queue keeps now, and count the files. What cannot be replaced is left as it is."""
    now, longest = store.settings.keep_payloads, store.queue_state.payload_bytes_max
    if now is None or (longest is not None and longest <= now):
        return
    for path in payloads.files(store).values():
        with PassingOverStrays(), suppress(FileNotFoundError):
            report.payload_files_erased += _kept_file(store, path, now)
    today = day_of(store.clock.now_ms())
    for day in history.days(store):
        if store.fs.shared and day >= today:
            continue  # a renaming that a server executes late would undo what was appended since
        for shard in history.shards_of(store, day):
            with PassingOverStrays(), suppress(FileNotFoundError, LockTimeout):
                report.payload_files_erased += _history_file(store, store.layout.history(day, shard), now)


def _kept_file(store: Store, path: str, payload_bytes_max: int) -> bool:
    lines = payloads.lines_at(store, path)
    kept = task_file.keep_lines(lines, payload_bytes_max)
    if kept == lines:
        return False
    if kept.count(task_file.NOT_KEPT) == len(kept):
        return store.fs.unlink(path)
    return payloads.put(store, path, (line + b"\n" for line in kept))


def _history_file(store: Store, path: str, payload_bytes_max: int) -> bool:
    if not _has_longer(store, path, payload_bytes_max):
        return False
    with store.locked_existing(path, WAIT_S) as fd:
        jsonl.must_have_one_name(store.fs, fd, path)
        return payloads.put(store, path, _erased(store, fd, payload_bytes_max))


def _has_longer(store: Store, path: str, payload_bytes_max: int) -> bool:
    with store.fs.closing(store.fs.look_anew(path)) as fd:
        return any(history.erased(line, payload_bytes_max) != line for line in jsonl.lines_of(store.fs, fd))


def _erased(store: Store, fd: int, payload_bytes_max: int) -> Iterator[bytes]:
    """Yield the content of a locked file of the history, as long as it is, without what is not kept.

    A damaged line may have a hole, of which one byte was read: it is filled with zeros.
    """
    end = 0
    for offset, line, length in jsonl.lines_at(store.fs, fd):
        yield history.erased(line, payload_bytes_max).ljust(length, b"\0") + b"\n"
        end = offset + length + 1
    while torn := store.fs.pread(fd, 1 << 20, end):
        yield torn
        end += len(torn)
