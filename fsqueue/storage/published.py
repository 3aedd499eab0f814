"""Find, read, rename and remove a batch's published task file, under the batch's lock.

The file's name changes with the time at which something inside is available, so a name is a hint:
what was opened last, then the names in the log, then a listing of the shard (docs/design.md, section 4.5).
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

from fsqueue import checks
from fsqueue.checks import CHECK
from fsqueue.filesystem import either_of_two
from fsqueue.format import names, priority, sparse, task_file
from fsqueue.format.layout import Layout
from fsqueue.format.names import TaskFileName
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.logs import LinesInLog, TaskLines
from fsqueue.storage.store import Store

logger = logging.getLogger("fsqueue")

LOST = object()
"""In place of a payload that cannot be read any more."""


def candidates(locked: LockedBatch) -> Iterator[TaskFileName]:
    """Yield the names the task file may have, likeliest first."""
    store, log = locked.store, locked.log
    seen: set[str] = set()
    if log.name is not None:
        seen.add(str(log.name))
        yield log.name
    for name in names.task_files_of(log.batch, reversed(locked.replay_state.names)):
        if str(name) not in seen:
            seen.add(str(name))
            yield name
    for _ in range(2):  # one listing may be old: only two of them prove absence
        # Names that were tried before, too: a process that lost the log's lock may have renamed the file meanwhile.
        yield from names.task_files_of(log.batch, listed(store, log.layout, log.batch))


def listed(store: Store, layout: Layout, batch: str) -> list[str]:
    """Return the names that a listing of the shard shows for this batch."""
    directory = f"{layout.tasks}/{layout.shard(batch)}"
    return [
        text
        for text in store.fs.names(directory)
        if text[14 : 14 + len(batch) + 1] == f"{batch}-" and names.parse_task_file(text)
    ]


def names_of(store: Store, layout: Layout, batch: str) -> list[TaskFileName]:
    """Return the names of a batch's task files, in order. A listing can miss one: two are taken."""
    texts = either_of_two(lambda: listed(store, layout, batch))
    return list(names.task_files_of(batch, sorted(texts)))


def content_of(store: Store, path: str) -> bytes:
    """Return what a task file holds. Long runs of zeros, which a power loss leaves, are one NUL byte each."""
    return sparse.joined(store.fs.read_pieces(path))


def read(locked: LockedBatch) -> TaskLines | None:
    """Return the lines of the tasks, kept with the log; None if the task file is proven absent."""
    store, log = locked.store, locked.log
    if log.lines is None:
        for name in candidates(locked):
            try:
                content = content_of(store, log.layout.task_file(name))
            except FileNotFoundError:
                continue
            log.name, log.is_named_so = name, True
            if name.inserted is None:
                log.lines = task_file.split_lines(content)
            else:
                log.lines, log.domain = LinesInLog(log), task_file.domain_of(content)
            _make_single(locked, name)
            break
    return log.lines


def _make_single(locked: LockedBatch, name: TaskFileName) -> None:
    """Remove the other names that a power loss left the file with (btrfs; see `Filesystem.rename`)."""
    fs, log = locked.store.fs, locked.log
    if fs.shared or log.single:
        return
    try:
        links = fs.stat(log.layout.task_file(name)).st_nlink
    except FileNotFoundError:  # not this name, or the whole generation has just been moved away
        return
    if links > 1:
        for other in names.task_files_of(log.batch, listed(locked.store, log.layout, log.batch)):
            if other != name:
                fs.unlink(log.layout.task_file(other))
    log.single = True


def payload(locked: LockedBatch, index: int) -> Any:
    """Return a task's payload as it stands now, replaced or original; LOST if it cannot be read any more."""
    if index in locked.replay_state.payloads:
        return locked.replay_state.payloads[index]
    is_in_log = index in locked.replay_state.places
    lines = LinesInLog(locked.log) if is_in_log else read(locked)
    try:
        return LOST if lines is None else task_file.decode_task(lines[index])["payload"]
    except (ValueError, IndexError):
        return LOST


def key_and_priority(locked: LockedBatch, index: int) -> dict[str, Any]:
    """Return a task's `key` and `priority`, as they stand in its line: those that it has, and that can be read."""
    lines = LinesInLog(locked.log) if index in locked.replay_state.places else read(locked)
    try:
        record = {} if lines is None else task_file.decode_task(lines[index])
    except (ValueError, IndexError):
        return {}
    found = {name: value for name in ("key", "priority") if (value := record.get(name)) is not None}
    if "priority" in found and priority.fault(found["priority"]) is not None:
        del found["priority"]
    return found


def find(locked: LockedBatch) -> TaskFileName | None:
    """Return the name that the file has; None if it is proven absent.

    What the log says last may not have been done: its author died before renaming, or was told that it failed.
    """
    store, log = locked.store, locked.log
    if not log.is_named_so:
        for name in candidates(locked):
            if store.fs.exists(log.layout.task_file(name)):
                log.name, log.is_named_so = name, True
                break
        else:
            return None
    return log.name


def named(locked: LockedBatch, name: TaskFileName, available_at: int) -> TaskFileName:
    """Return the name that the file `name` gets, with another time. Do not give an open batch's file a later one.

    Of a batch that was sealed it says so: the process that sealed it may have died before renaming the file.
    """
    if name.is_open and not locked.replay_state.takes_inserts:
        name = name.sealed(locked.replay_state.count)
    return name.at(available_at)


def rename(locked: LockedBatch, target: TaskFileName) -> bool:
    """Give the file the name `target`, whichever it has. Return whether it has that name now.

    A record that says so stands in the log already, and counts. A failure is only logged, so this is for names that
    become later: one that is too early costs a look.
    """
    try:
        return rename_surely(locked, target)
    except OSError as error:
        logger.warning("%s could not be renamed to %s (%s); 'fsqueue gc' will do it", locked.log.name, target, error)
        return False


def rename_surely(locked: LockedBatch, target: TaskFileName) -> bool:
    """Give the file the name `target`, as `rename` does; OSError if that fails. False if there is no such file."""
    store, log = locked.store, locked.log
    path = log.layout.task_file(target)
    log.is_named_so = False
    for name in candidates(locked):
        if name != target and store.fs.rename(log.layout.task_file(name), path):
            break
    else:
        if not store.fs.exists(path):
            return False
    log.name, log.is_named_so = target, True
    return True


def move(locked: LockedBatch, at: int, name: TaskFileName, target: TaskFileName) -> bool:
    """Record that the file `name` is now `target`, then rename it. Return whether it has that name now."""
    locked.append_move(at, name, target)
    return rename(locked, target)


def move_away(locked: LockedBatch, name: TaskFileName, path: str, target: str) -> bool:
    """Rename the task file `name` from `path` to `target`; False if it, or the directory of `target`, is not there."""
    if CHECK:
        _check_over(locked)
    _make_single(locked, name)
    return locked.store.fs.rename(path, target)


def remove(locked: LockedBatch) -> None:
    """Unlink the task file, under all names that it has. If it is not found, the shard is listed."""
    if CHECK:
        _check_over(locked)
    store, log = locked.store, locked.log
    for name in candidates(locked):
        _make_single(locked, name)
        if store.fs.unlink(log.layout.task_file(name)):
            return


def _check_over(locked: LockedBatch) -> None:
    """Check invariant 1 before a task file goes: the log says that the batch is over, and has each task's outcome."""
    state = locked.replay_state
    what = f"the task file of batch {locked.batch} is about to go, and {state.left} of its tasks have no outcome"
    checks.hold(1, state.finished and not state.left, what)
