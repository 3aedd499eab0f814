"""Remove files of numbers all of whose numbers have ended (docs/decisions/0053-taskstore-ids.md).

The last file stays, so the numbers go on behind it. A full file is never appended to again. A version never comes back:
a number that has ended here has ended for ever. Whatever is in doubt keeps the file. A queue that is not in the group
may be away: its numbers hold for 30 days, as outcomes of updates are kept for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from fsqueue.errors import FsqueueError, LockTimeout
from fsqueue.filesystem import PassingOverStrays
from fsqueue.format import names, numbers
from fsqueue.format.names import Batch, QueueDirectory, QueueId
from fsqueue.format.numbers import FILE_RECORDS, RECORD_BYTES, NumberCodec
from fsqueue.interruptions import let_out, suppress
from fsqueue.storage import group_queues, journals
from fsqueue.storage import number_table as stored
from fsqueue.storage.decisions import group_if_in_place
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.number_table import NumberFile
from fsqueue.storage.store import Store
from fsqueue.upkeep.decision_files import AWAY_MS
from fsqueue.views import inspection

AGE_MS = 86_400_000
"""A file is looked into a day after it was written, and again a day after a number in it was found to hold."""
WAIT_S = 2.0
"""Seconds to wait for a lock. Then the file is left to the next upkeep."""

Versions = dict[tuple[bytes, QueueId, Batch], dict[int, int]]
"""By where a batch is: the latest version of each of its tasks, by their indices, of which a file has a number."""


def retire(store: Store) -> int:
    """Remove what has ended of the numbers of the group that an open queue lies in; how many files."""
    group = group_if_in_place(store)
    if group is None:
        return 0
    retired = 0
    for place in stored.files(group)[:-1]:
        with PassingOverStrays(), suppress(LockTimeout, FileNotFoundError):  # another upkeep was faster
            retired += _retire(store, group, numbers.path_of(group.path, names.number_file(place)), place)
    return retired


def _retire(store: Store, group: GroupDirectory, path: str, place: int) -> bool:
    """Remove a file, if it is full and old, and none of its numbers holds. Return whether it was removed."""
    fs = group.fs
    age_ms = store.clock.now_ms() - fs.stat(path).st_mtime_ns // 1_000_000
    if age_ms < AGE_MS:
        return False
    with fs.closing(fs.look_anew(path)) as fd:
        content = fs.read_from(fd, 0)
    if len(content) != FILE_RECORDS * RECORD_BYTES:
        return False
    directories = {numbers.place_of(directory): directory for directory in group.directories()}
    versions = _versions(group, place, content)
    if _is_held(store, group, versions, directories):
        fs.touch(path)  # the upkeep of each other queue of the group need not ask again
        return False
    if age_ms < AWAY_MS and any(found not in directories for found, _, _ in versions):
        return False  # its age tells how long to wait
    with journals.locked(NumberFile, fs, group.clock, group.entropy, path, WAIT_S) as file:
        is_full = file.length() == len(content)
        return is_full and place < max(stored.files(group), default=0) and fs.unlink(path)


def _versions(group: GroupDirectory, place: int, content: bytes) -> Versions:
    codec, found = NumberCodec(group.state.id), Versions()
    for at in range(FILE_RECORDS):
        record = content[at * RECORD_BYTES : (at + 1) * RECORD_BYTES]
        named = codec.parse(place * FILE_RECORDS + at + 1, record)
        if named is not None:
            of_batch = found.setdefault((named.place, named.queue, named.batch), {})
            of_batch[named.index] = max(named.version, of_batch.get(named.index, 0))
    return found


def _is_held(
    store: Store, group: GroupDirectory, versions: Versions, directories: Mapping[bytes, QueueDirectory]
) -> bool:
    """Return whether a number of one of these versions holds, or may hold, in a queue that is there."""
    opened: dict[QueueDirectory, Store | None] = {}
    try:
        for (place, identity, batch), of_batch in versions.items():
            directory = directories.get(place)
            if directory is None:
                continue  # the queue was deleted, or is away
            if directory not in opened:
                is_there = group.has_queue(directory)
                opened[directory] = group_queues.proven(group, directory, store) if is_there else None
            queue = opened[directory]
            if queue is None or queue.queue_state.id != identity:
                continue
            infos = inspection.unfinished(queue, batch, of_batch)
            if any(info.version == of_batch[index] for index, info in infos.items()):
                return True
        return False
    except (OSError, FsqueueError) as error:
        let_out(error)
        return True
    finally:
        for queue in opened.values():
            if queue is not None:
                queue.close()
