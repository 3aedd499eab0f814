"""Erase payloads of finished tasks that a queue does not keep any more (decision 35).

What a batch leaves when it finishes has no payload that the settings of that moment do not keep. So there is something
to erase only after `keep_payloads` was made smaller. Readers hide it until then.

A file is replaced by a whole new one. In a file of the history each line keeps its length, and each record its place:
versions are offsets, and streams remember how far they have read.

A line `erased` of `queue.jsonl` says what was erased. The next upkeep reads the files of the days since, and none at
all once no process goes by the setting before any more.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial

from fsqueue.errors import LockTimeout
from fsqueue.filesystem import NOT_FILES
from fsqueue.format import sparse, task_file
from fsqueue.format.layout import DAY_MS, QueueState, erased_record, nothing_longer_comes
from fsqueue.format.models import GcReport
from fsqueue.format.names import day_of
from fsqueue.interruptions import suppress
from fsqueue.storage import history, journals, payloads, queue_changes
from fsqueue.storage.store import Store

WAIT_S = 2.0
"""Seconds to wait for the lock of a file. Then it is left to the next upkeep."""


def erase(store: Store, report: GcReport) -> None:
    """Erase what is longer than the queue keeps now, and count the files. What cannot be replaced is left as it is.

    Nothing is recorded then: the next upkeep reads all of these days again.
    """
    state, begun_at = store.queue_state, store.clock.now_ms()
    now, longest = state.settings.keep_payloads, state.payload_bytes_max
    if now is None or (longest is not None and longest <= now):
        return
    first = "" if state.erased_at is None else day_of(max(0, state.erased_at - DAY_MS))
    is_whole, directories = True, set[str]()
    for path, erase_in in _files(store, first, begun_at, now):
        directories.add(os.path.dirname(path))
        try:
            report.payload_files_erased += erase_in()
        except FileNotFoundError:
            continue  # another upkeep was faster
        except LockTimeout:
            is_whole = False
        except OSError as error:
            if error.errno not in NOT_FILES:
                raise
            is_whole = False  # what the stray hides may come back
    of = state.limited_at
    if is_whole and of is not None and (state.erased_at is None or nothing_longer_comes(of, begun_at)):
        _record(store, state, erased_record(now, of, begun_at), directories)


def _files(store: Store, first: str, begun_at: int, payload_bytes_max: int) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Yield the files of this day and later ones that may hold payloads, each with the function that erases there.

    On a shared mount without the history of today: a renaming that a server executes late would undo what was appended
    since.
    """
    for path in payloads.files(store, first).values():
        yield path, partial(_kept_file, store, path, payload_bytes_max)
    for day in history.days(store):
        if day >= first and not (store.fs.shared and day >= day_of(begun_at)):
            for shard in history.shards_of(store, day):
                path = store.layout.history(day, shard)
                yield path, partial(_history_file, store, path, payload_bytes_max)


def _record(store: Store, state: QueueState, line: bytes, directories: set[str]) -> None:
    """Say in `queue.jsonl` that nothing longer is left. What fails is for the next upkeep, which looks again.

    Sync all directories first, since an upkeep that died may have renamed files in them. A power loss could otherwise
    keep the line, and bring the old files back.
    """

    def still_wanted(found: QueueState) -> bytes | None:
        now, then = (
            (each.limited_at, each.settings.keep_payloads, each.erased_at, each.generation) for each in (found, state)
        )
        return line if now == then else None

    with suppress(LockTimeout, OSError):
        if not store.fs.shared:
            for directory in sorted(directories):
                with suppress(FileNotFoundError):
                    store.fs.sync_directory(directory)
        queue_changes.append(store, still_wanted)


def _kept_file(store: Store, path: str, payload_bytes_max: int) -> bool:
    lines = task_file.split_lines(sparse.content_of(store.fs.read_pieces(path)))
    kept = task_file.keep_lines(lines, payload_bytes_max)
    if kept == lines:
        return False
    if kept.count(task_file.NOT_KEPT) == len(kept):
        return store.fs.unlink(path)
    return payloads.put(store, path, (line + b"\n" for line in kept))


def _history_file(store: Store, path: str, payload_bytes_max: int) -> bool:
    with journals.opened(store.fs, path) as file:
        if all(history.erased(line, payload_bytes_max) == line for line in file.lines()):
            return False
    with store.locked_existing(path, WAIT_S, one_name=True) as file:
        return payloads.put(store, path, _erased(file, payload_bytes_max))


def _erased(file: journals.Journal, payload_bytes_max: int) -> Iterator[bytes]:
    """Yield the content of a locked file of the history, as long as it is, without what is not kept.

    A damaged line may have a hole, of which one byte was read: it is filled with zeros.
    """
    end = 0
    for offset, line, length in file.lines_at():
        yield history.erased(line, payload_bytes_max).ljust(length, b"\0") + b"\n"
        end = offset + length + 1
    while torn := file.fs.pread(file.fd, 1 << 20, end):
        yield torn
        end += len(torn)
