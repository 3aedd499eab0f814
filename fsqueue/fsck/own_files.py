"""Check what no open queue is needed for (docs/fsck.md): the own files of queues and groups, a group's other files.

An own file that is gone is written again. In decision files, numbers and barriers stand out: names that belong
elsewhere, and lines or files that cannot be read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from fsqueue.clock import Clock, Entropy
from fsqueue.errors import StorageError, from_os_error
from fsqueue.filesystem import Filesystem, mount_of
from fsqueue.format import barriers, decisions, groups, layout, names, numbers
from fsqueue.format.groups import GroupState
from fsqueue.fsck import journal_checks
from fsqueue.fsck.findings import Finding, Suspect, found, guarded
from fsqueue.fsck.repair import Quarantine
from fsqueue.fsck.walk import judge
from fsqueue.storage import barrier_files, group_directory, remains
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


_KINDS = {stat.S_IFLNK: "link", stat.S_IFDIR: "directory", stat.S_IFREG: "file"}


def fsck_group(group: GroupDirectory, repair: bool) -> Iterator[Finding]:
    """Yield what is wrong with a group's own files; with `repair` each finding is mended before it is yielded.

    Each of its queues is checked by itself: see `fsck`.
    """
    quarantine = Quarantine(group.fs, group.path, group.clock, group.entropy)
    for directory, parse, check in (
        (decisions.directory(group.path), names.parse_decision_file, _second_name),
        (numbers.directory(group.path), names.parse_number_file, _second_name),
        (groups.barriers_directory(group.path), _barrier_of, _barrier),
        (groups.limits_directory(group.path), _slots_of, _second_name),
    ):
        for suspect in guarded(group, directory, _suspects(group, quarantine, directory, parse, check)):
            finding = judge(group, suspect, repair)
            if finding is not None:
                yield finding
    journals = journal_checks.check_all(
        group, quarantine, lambda kind: () if kind.in_group is None else kind.in_group(group)
    )
    for suspect in journals:
        finding = judge(group, suspect, repair)
        if finding is not None:
            yield finding
    for member in sorted(group.directories()):
        yield from fsck_lost_member(group, member, repair)


def _barrier_of(name: str) -> object:
    """Return a truth for a name of a barrier's file, or of one that is being written; None for any other."""
    return name if names.is_fresh(name) else barriers.parse_name(name)


def _slots_of(name: str) -> object:
    """Return the name of a file of slots; None if it is none."""
    return name if names.is_slot_file(name) else None


def _suspects(
    group: GroupDirectory,
    quarantine: Quarantine,
    directory: str,
    parse: Callable[[str], object],
    check: Callable[[GroupDirectory, Quarantine, str], Iterator[Suspect]],
) -> Iterator[Suspect]:
    """Yield what may be wrong in a directory of the group's own.

    `parse` returns None for what is no name in it, `check` what may be wrong with a file in it.
    """
    kind = _kind(group, directory)
    if kind not in (None, "directory"):
        yield _misplaced(group, quarantine, directory, kind, "link" if kind == "link" else "in-the-way")
        return
    for text, kind in group.fs.entries(directory):
        path, is_named = f"{directory}/{text}", parse(text) is not None
        if text.startswith(".nfs"):
            continue
        if not is_named or kind != "file":
            what = "link" if kind == "link" else "in-the-way" if is_named else "stray"
            yield _misplaced(group, quarantine, path, kind, what)
        else:
            yield from check(group, quarantine, path)


def _second_name(group: GroupDirectory, quarantine: Quarantine, path: str) -> Iterator[Suspect]:
    if _links(group, path) > 1:
        yield Suspect(found(group, "linked-file", path), partial(_is_linked, group, path), lambda: None)


def _barrier(group: GroupDirectory, quarantine: Quarantine, path: str) -> Iterator[Suspect]:
    """Yield the file of a barrier that has not ended, if it is damaged. It may have a second name: nothing is written
    to it.
    """
    parsed = barriers.parse_name(path.rpartition("/")[2])
    if parsed is not None and parsed[1] not in barriers.ENDED:
        is_damaged = partial(barrier_files.is_damaged, group, *parsed)
        if is_damaged():
            yield Suspect(found(group, "damaged-barrier", path), is_damaged, partial(quarantine.move, path))


def _misplaced(group: GroupDirectory, quarantine: Quarantine, path: str, kind: str | None, what: str) -> Suspect:
    note = "" if kind == "file" else f"a {kind}" if kind in ("link", "directory") else "a pipe, socket or device"
    return Suspect(
        found(group, what, path, note=note), lambda: _kind(group, path) == kind, partial(quarantine.move, path)
    )


def _kind(group: GroupDirectory, path: str) -> str | None:
    """Return what is at a path; None if nothing is."""
    try:
        return _KINDS.get(stat.S_IFMT(group.fs.stat(path).st_mode), "other")
    except (FileNotFoundError, NotADirectoryError):
        return None


def _links(group: GroupDirectory, path: str) -> int:
    """Return the number of links to a file; 0 if it was retired meanwhile. A hint."""
    try:
        return group.fs.stat(path).st_nlink
    except (FileNotFoundError, NotADirectoryError):
        return 0


def _is_linked(group: GroupDirectory, path: str) -> bool:
    try:
        with group.fs.closing(group.fs.look(path)) as fd:
            return group.fs.fstat(fd).st_nlink > 1
    except (FileNotFoundError, NotADirectoryError):
        return False
