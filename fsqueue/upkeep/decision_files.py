"""Retire decision files of a group (docs/design.md, section 4.22).

A file may go when each log that it commits has its outcome on disk, or needs none. Whatever is in doubt keeps it: it
costs one file.
"""

from __future__ import annotations

import logging
from collections import Counter

from fsqueue.errors import FsqueueError, LockTimeout, QueueNotFound, from_os_error
from fsqueue.filesystem import NOT_FILES, PassingOverStrays, either_of_two
from fsqueue.format import decisions, names, numbers
from fsqueue.format.decisions import DecisionState, LogName
from fsqueue.format.groups import bells_file, group_file
from fsqueue.format.names import DecisionFileName, UpdateId
from fsqueue.format.wording import counted
from fsqueue.interruptions import suppress
from fsqueue.protocol import deciding
from fsqueue.storage import barrier_files, bells, group_queues, group_slots, journals, listing
from fsqueue.storage import decisions as stored
from fsqueue.storage import number_table as stored_numbers
from fsqueue.storage.decisions import DecisionFile
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.store import Store

logger = logging.getLogger("fsqueue")

AGE_MS = 86_400_000
"""A file is retired a day after its last line."""
FULL_AGE_MS = 3_600_000
"""A full one, to which its owner adds nothing: an hour after it."""
AWAY_MS = 30 * AGE_MS
"""How long a queue that is not in its place keeps the files that name it: it may have been moved, and come back. What
hides a queue keeps them as long as it stands there."""
WAIT_S = 2.0
"""Seconds to wait for a lock. Then the file is left to the next upkeep."""


def retire(store: Store) -> int:
    """Retire the decision files of the group that an open queue lies in; how many. 0 if it lies in none.

    Files of barriers that ended a week ago are removed, too, and those of limits that have ended. Log a warning for
    each reason why a queue that a file names cannot be read: it keeps the file.
    """
    group = stored.group_if_in_place(store)
    if group is None:
        return 0
    barrier_files.tidy(group)
    group_slots.forget(group)
    retired, kept = 0, Counter[str]()
    for name in stored.files(group):
        with PassingOverStrays():  # fsck tells of them: one link must not stop the upkeep of all queues
            retired += _retire(store, group, name, kept)
    for reason, count in kept.items():
        logger.warning(
            "kept %s of the group %s: a queue that cannot be read may lack outcomes of updates. %s",
            counted(count, "decision file"),
            group.path,
            reason,
        )
    return retired


def refresh(store: Store) -> int:
    """Set the times of the group's own files to now, and return how many they are: a cleaner must not remove them."""
    group = stored.group_if_in_place(store)
    if group is None:
        return 0
    touched = barrier_files.refresh(group)
    # Of numbers the last file alone. The upkeep renews the times of others in which a number holds: it looks into one
    # that is a day old, and would never do so if each day began with this.
    last = stored_numbers.files(group)[-1:]
    own = [numbers.path_of(group.path, names.number_file(place)) for place in last]
    bells.make(group.fs, group.path)
    of_group = [group_file(group.path), bells_file(group.path), *group_slots.files(group)]
    for path in [*of_group, *own, *(decisions.path_of(group.path, name) for name in stored.files(group))]:
        with suppress(FileNotFoundError, PermissionError):  # it was retired just now, or is another user's
            group.fs.touch(path)
            touched += 1
    return touched


def _retire(store: Store, group: GroupDirectory, name: DecisionFileName, kept: Counter[str]) -> bool:
    """Retire a file, if it is old and all of its logs are settled. Return whether it was removed.

    `kept`: by the reason, how many files stay since a queue that they name cannot be read.
    """
    path = decisions.path_of(group.path, name)
    state = stored.read(group, name)
    if state is None:
        return False
    age_ms = _age_ms(store, group, path, name, state)
    if age_ms < (FULL_AGE_MS if state.end >= decisions.FILE_BYTES_MAX else AGE_MS):
        return False
    try:
        if not state.is_gone and not all(_settle(store, group, *each, age_ms) for each in _logs_of(state)):
            return False
        return _remove(store, group, path, state)
    except (LockTimeout, FileNotFoundError):
        return False
    except _Unreadable as unreadable:
        kept[str(unreadable)] += 1
        return False


def _age_ms(store: Store, group: GroupDirectory, path: str, name: DecisionFileName, state: DecisionState) -> int:
    """Return how long ago the last line was written. Of a clock that was ahead, the file's own stamp tells it."""
    now, last = store.clock.now_ms(), max(state.at, names.birth_ms(name))
    return now - (last if last <= now else group.fs.stat(path).st_mtime_ns // 1_000_000)


def _logs_of(state: DecisionState) -> list[tuple[LogName, list[UpdateId]]]:
    """Return each log that a file's commits name, with their updates."""
    found: dict[LogName, list[UpdateId]] = {}
    for update, logs in state.commits.items():
        for log in logs:
            found.setdefault(log, []).append(update)
    return sorted(found.items())


class _Unreadable(Exception):
    """A queue cannot be read, or something may hide it: an update may still have no outcome in its log."""


def _settle(store: Store, group: GroupDirectory, name: LogName, updates: list[UpdateId], age_ms: int) -> bool:
    """Give a log the outcomes that it lacks, and sync it. Return whether it has them all on disk, or needs none.

    LockTimeout, FileNotFoundError: the next upkeep tries again.
    """
    try:
        return _settle_in(store, group, name, updates, age_ms)
    except LockTimeout:
        raise
    except QueueNotFound:
        return False  # it was deleted just now
    except FsqueueError as error:
        raise _Unreadable(str(error)) from error
    except OSError as error:
        if error.errno not in NOT_FILES:
            raise
        raise _Unreadable(str(from_os_error(error, "giving a queue the outcomes of updates"))) from error


def _settle_in(store: Store, group: GroupDirectory, name: LogName, updates: list[UpdateId], age_ms: int) -> bool:
    """Do what `_settle` says.

    A line `closed` excuses no log: a deletion can be refused, and taken back.
    """
    state = group_queues.state_of(group, name)
    if state is None:
        return age_ms >= AWAY_MS
    if state.generation > group_queues.generation(name):
        return True
    if state.closed:
        return False
    with group_queues.opened(group, name, store) as queue:
        return queue is not None and (
            _give(queue, name, updates) or (_is_absent(queue, name) and group_queues.state_of(group, name) is not None)
        )


def _is_absent(queue: Store, name: LogName) -> bool:
    """Return whether neither the log nor its task file is there. HiddenTasks if something may hide one of them."""
    shard = queue.layout.shard(name.batch)
    listed = either_of_two(lambda: listing.task_files(queue, shard))
    return name.batch not in listed and not queue.fs.exists(queue.layout.log(name.batch))


def _give(queue: Store, name: LogName, updates: list[UpdateId]) -> bool:
    """Give a log its outcomes, durably. Return False if there is no such log."""
    try:
        given = False
        with LockedBatch(queue, name.batch, WAIT_S) as locked:
            for update in updates:
                if locked.log.fd < 0:
                    return False  # it has finished with the last outcome
                given = deciding.give(locked, update, "commit") or given
            if locked.log.fd < 0:
                return False
            queue.fs.fsync(locked.log.fd)
    except FileNotFoundError:
        return False
    if given:
        queue.doorbell.ring()
    return True


def _remove(store: Store, group: GroupDirectory, path: str, visited: DecisionState) -> bool:
    """Retire and unlink a file, unless a line was added since its logs were visited."""
    fs = group.fs
    with journals.locked(DecisionFile, fs, store.clock, store.entropy, path, WAIT_S) as file:
        state = file.catch_up()
        if state.end != visited.end:
            return False
        if not state.is_gone:
            file.add(decisions.gone(store.clock.now_ms()))
        return fs.unlink(path)
