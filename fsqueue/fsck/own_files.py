"""Find queues and groups whose own file is gone, and write it again (docs/fsck.md): no queue can be opened for that."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from fsqueue.clock import Clock, Entropy
from fsqueue.errors import StorageError, from_os_error
from fsqueue.filesystem import Filesystem, mount_of
from fsqueue.format import groups, layout, names
from fsqueue.format.groups import GroupState
from fsqueue.fsck.findings import Finding, Suspect, found
from fsqueue.fsck.walk import judge
from fsqueue.storage import group_directory, remains
from fsqueue.storage.discovery import queue_path
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.remains import Remains


@dataclass(slots=True)
class _Place:
    path: str
    fs: Filesystem


def fsck_lost(path: str | os.PathLike[str], repair: bool = False) -> Iterator[Finding]:
    """Yield what is wrong with a directory that should be a queue or a group, if its own file is gone.

    With `repair` it is mended before it is yielded. InvalidArgument for what is no path; StorageError.
    """
    where = queue_path(path)
    try:
        yield from _fsck_lost(where, repair)
    except OSError as error:
        raise from_os_error(error, f"checking {where}") from error


def _fsck_lost(path: str, repair: bool) -> Iterator[Finding]:
    resolved = group_directory.resolve(path)
    if resolved is not None:
        group = GroupDirectory(resolved[0])
        yield from fsck_lost_member(group, names.queue_directory(resolved[1]), repair)
        return
    place = _Place(path, Filesystem(path, shared=mount_of(path).shared))
    try:
        queues = remains.of_queue(place.fs, path)
        suspects = [_queue(place, path, queues, None)] if queues else []
        state = None if queues else remains.of_group(place.fs, path)
        if state is not None:
            suspects.append(_group(place, state))
        for suspect in suspects:
            finding = judge(place, suspect, repair)
            if finding is not None:
                yield finding
    finally:
        place.fs.close_root()


def fsck_lost_member(group: GroupDirectory, directory: names.QueueDirectory, repair: bool) -> Iterator[Finding]:
    """Yield what is wrong with what should be a queue of a group, if its own file is gone or hidden."""
    path = group.path_of(directory)
    hidden = group.hidden(directory)
    if hidden is not None:
        note = f"{hidden.stands}, where a {hidden.wanted} of a queue belongs"
        # Mended by nobody: what is behind a link may be the only copy of the tasks.
        suspect = Suspect(
            found(group, "hidden-file", str(hidden.filename), note=note),
            lambda: group.hidden(directory) is not None,
            lambda: None,
        )
        finding = judge(group, suspect, repair)
        if finding is not None:
            yield finding
        return
    queues = remains.of_queue(group.fs, path)
    if queues:
        finding = judge(group, _queue(_Place(group.path, group.fs), path, queues, group.state), repair)
        if finding is not None:
            yield finding


def _queue(place: _Place, path: str, queues: list[Remains], group: GroupState | None) -> Suspect:
    tasks, note = _tasks(place.fs, path, queues), " and ".join(each.directory for each in queues)
    if len(queues) == 1:
        try:
            state = remains.state_of(place.fs, path, queues[0], group)
            note = f"{note}; shards: {state.settings.shards}, as the directories show"
        except StorageError as error:
            note = f"{note}; {error}"
    finding = found(place, "queue-file-gone", layout.settings_file(path), tasks, note)
    return Suspect(
        finding, lambda: remains.of_queue(place.fs, path) == queues, partial(_mend, place, path, queues, group)
    )


def _tasks(fs: Filesystem, path: str, queues: list[Remains]) -> int:
    """Return how many tasks the names of task files promise. Those of open batches are not counted."""
    count = 0
    for each in queues:
        base = f"{path}/{each.directory}/queue"
        for shard, kind in fs.entries(base):
            for name in fs.names(f"{base}/{shard}") if kind == "directory" else ():
                parsed = names.parse_task_file(name)
                count += 0 if parsed is None else parsed.tasks
    return count


def _mend(place: _Place, path: str, queues: list[Remains], group: GroupState | None) -> None:
    if len(queues) > 1:
        raise StorageError("directories of several queues are here; move all but one of them elsewhere")
    remains.refuse_strangers(place.fs, path)
    state = remains.state_of(place.fs, path, queues[0], group)
    remains.write_queue_file(place.fs, path, state, Clock(), Entropy())


def _group(place: _Place, state: GroupState) -> Suspect:
    def mend() -> None:
        remains.refuse_strangers(place.fs, place.path)
        remains.write_group_file(place.fs, place.path, state, Clock(), Entropy())

    path = groups.group_file(place.path)
    return Suspect(
        found(place, "group-file-gone", path, note=f"group {state.id}"),
        lambda: remains.of_group(place.fs, place.path) is not None,
        mend,
    )
