"""The payloads of finished tasks (docs/format.md, "Payloads"; decision 35).

When a batch has finished, its task file is renamed into the directory of the day: no byte is copied. The lines of a
small file go into the batch's line of the history instead, so that few tasks do not cost an inode each. What was
inserted singly is in the batch's log, and with it in the history. Each payload is kept or not by its own length: of a
file in which some are too long the other lines are kept, as a small file, or as a new file.
"""

from __future__ import annotations

import logging
import math
import stat
from collections.abc import Iterable

from fsqueue.errors import StorageError
from fsqueue.filesystem import PassingOverStrays
from fsqueue.format import names, sparse, task_file
from fsqueue.format.movements import LINE_BYTES
from fsqueue.format.names import Batch, Day, TaskFileName, day_of
from fsqueue.interruptions import let_out
from fsqueue.storage import published
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.store import Store

logger = logging.getLogger("fsqueue")

PAYLOAD_DAYS = 30
"""Number of days for which task files of finished batches are kept, unless a user asks for another time."""
PAYLOAD_BYTES = 10 << 30
"""Bytes of the latest of those files that are kept; those of the present day in any case."""
WHOLE_BYTES = 16 << 10
"""A task file of this length or more is renamed: a queue keeps an inode for each 16 KiB of payloads, at most."""


def keep(locked: LockedBatch, at: int) -> bytes | None:
    """Keep the payloads in the task file of a finished batch, if the queue's settings say so.

    Return None if the file was renamed. Else return the lines for the history, b"" if there are none for it: the
    caller removes the file. What fails is logged: a batch does not wait for room, or for a right, to keep payloads.
    """
    assert locked.replay_state.finished, "a task file would go while its batch is at work"
    settings, log = locked.store.settings, locked.log
    if not settings.keep_history or settings.keep_payloads == 0 or locked.replay_state.inserts is not None:
        return b""
    try:
        return _keep(locked, day_of(at), settings.keep_payloads)
    except FileNotFoundError:
        raise  # the queue was purged or deleted
    except (OSError, StorageError) as error:
        let_out(error)
        logger.warning("the payloads of batch %s of %s are not kept: %s", log.batch, locked.store.path, error)
        return b""


def _keep(locked: LockedBatch, day: Day, payload_bytes_max: int | None) -> bytes | None:
    store, layout = locked.store, locked.log.layout
    for name in locked.task_file_names():
        path = layout.task_file(name)
        try:
            found = store.fs.stat(path)
        except FileNotFoundError:
            continue
        break
    else:
        return b""  # this process goes on with what another has begun
    if not stat.S_ISREG(found.st_mode) or name.inserted is not None:
        return b""
    longest = locked.log.longest
    is_whole = found.st_size >= WHOLE_BYTES and longest is not None and task_file.is_short(longest, payload_bytes_max)
    if not is_whole and (found.st_size < WHOLE_BYTES or payload_bytes_max is not None):
        read = locked.log.lines  # mostly this process has read them before, for the leases
        if not isinstance(read, list):
            try:
                read = task_file.split_lines(published.content_of(store, path))
            except FileNotFoundError:  # on a network mount the look before may have been of the past
                return b""
        lines = task_file.keep_lines(read, payload_bytes_max)
        if lines.count(task_file.NOT_KEPT) == len(lines):
            return b""
        if lines is not read or found.st_size < WHOLE_BYTES:
            content = b"".join(line + b"\n" for line in lines)
            if len(content) < WHOLE_BYTES:
                return content
            if lines is not read:
                _copy(locked, content, layout.payloads(day), name)
                return b""
    return None if _move(locked, name, path, layout.payloads(day)) else b""


def _copy(locked: LockedBatch, content: bytes, directory: str, name: TaskFileName) -> None:
    """Write `content`, which is kept of a task file, into the directory of a day. The file itself stays."""
    fs, sync = locked.store.fs, locked.log.sync and not locked.store.fs.shared
    fs.make_directory(directory, sync)
    put(locked.store, f"{directory}/{name}", [content])
    if sync:
        fs.sync_directory(directory)  # before the name in the queue is known to be gone


def put(store: Store, path: str, content: Iterable[bytes]) -> bool:
    """Write a new file into `staging/`, and rename it to `path`. Return False if that was not possible any more.

    So a reader finds the whole new content under that name, or what was there before. A process that dies in between
    leaves the staged file to `gc`.
    """
    fs, staged = store.fs, f"{store.layout.staging}/{names.replacement(store.entropy.hex16())}"
    try:
        with fs.closing(fs.create(staged)) as fd:
            for piece in content:
                fs.write_all(fd, piece)
            if store.sync_inserts:
                fs.fsync(fd)  # else a power loss might keep the name and lose the content
        if fs.rename(staged, path):
            return True
    except BaseException:
        fs.unlink(staged)
        raise
    fs.unlink(staged)
    return False


def _move(locked: LockedBatch, name: TaskFileName, path: str, directory: str) -> bool:
    """Rename the task file into the directory of a day, which is made if it is missing."""
    fs, target = locked.store.fs, f"{directory}/{name}"
    sync = locked.log.sync and not fs.shared
    if not locked.move_task_file_away(name, path, target):
        fs.make_directory(directory, sync)
        if not locked.move_task_file_away(name, path, target):
            return False
    if sync:
        fs.sync_directory(directory)  # before the name in the queue is known to be gone
    return True


def days(store: Store) -> list[Day]:
    """Return the days of which task files are kept, oldest first."""
    found = map(names.parse_day, store.fs.names(store.layout.payload_days))
    return sorted(day for day in found if day is not None)


def files(store: Store, first: str = "") -> dict[Batch, str]:
    """Return the paths of the task files that are kept, by batch. It takes some 300 bytes of memory for each.

    `first`: those of this day and of later ones alone.
    """
    found: dict[Batch, str] = {}
    for day in days(store):
        if day < first:
            continue
        directory = store.layout.payloads(day)
        for text in store.fs.names(directory):
            name = names.parse_task_file(text)
            if name is not None and name.inserted is None:
                found[name.batch] = f"{directory}/{text}"
    return found


def bytes_of(store: Store, day: Day) -> int:
    """Return how many bytes the kept task files of a day have. This asks for each file."""
    directory, size = store.layout.payloads(day), 0
    for text in store.fs.names(directory):
        try:
            size += store.fs.stat(f"{directory}/{text}").st_size
        except FileNotFoundError:
            continue
    return size


def most_bytes_of(store: Store, day: Day) -> float:
    """Return how many bytes the task files of a day have at most, as their names and the settings tell.

    `keep_payloads` may have been lowered since they were kept.
    """
    longest = store.queue_state.payload_bytes_max
    if longest is None:
        return math.inf
    found = map(names.parse_task_file, store.fs.names(store.layout.payloads(day)))
    return sum(name.count for name in found if name is not None) * (longest + LINE_BYTES)


def lines_at(store: Store, path: str) -> list[bytes]:
    """Return the lines of a kept task file, by the tasks' indices; none if `gc` has removed it, or it is no file."""
    with PassingOverStrays():
        return task_file.split_lines(sparse.content_of(store.fs.read_pieces(path)))
    return []


def lines_named(store: Store, days: Iterable[Day], texts: Iterable[str]) -> list[bytes]:
    """Return the lines of a kept task file that has one of these names on one of these days; none if no file has.

    No directory is listed. The log of a batch says what its task file was called, and when the batch finished.
    """
    for text in texts:
        for day in days:
            if lines := lines_at(store, f"{store.layout.payloads(day)}/{text}"):
                return lines
    return []


def of_batch(store: Store, batch: Batch) -> list[bytes]:
    """Return the lines of the task file of one finished batch, if it is kept; latest days first."""
    for day in reversed(days(store)):
        directory = store.layout.payloads(day)
        for text in store.fs.names(directory):
            if batch in text and (name := names.parse_task_file(text)) is not None and name.batch == batch:
                return lines_at(store, f"{directory}/{text}")
    return []
