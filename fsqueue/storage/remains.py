"""Recognize what is left of a queue or a group whose own file is gone, and write that file again (docs/fsck.md).

Cleaners of scratch filesystems remove files one by one, the oldest first: `queue.jsonl` is written once. The directory
of a generation has the queue's id and the generation's number in its name, so the file can be written again from that.
"""

from __future__ import annotations

import math
import os
import re
import shlex
import stat
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import NamedTuple

from fsqueue.clock import Clock, Entropy
from fsqueue.errors import FsqueueError, QueueFileLost, StorageError
from fsqueue.filesystem import NOT_FILES, Filesystem, is_gone
from fsqueue.format import groups, layout, names, sparse
from fsqueue.format.groups import GroupState
from fsqueue.format.layout import DEFAULTS, KeyEpochs, QueueState
from fsqueue.format.names import QueueId
from fsqueue.interruptions import let_out, suppress

SHARDS_MAX = 4096
SAMPLE_BYTES = 1 << 16
"""Number of bytes of a file of lines that are read to learn of which shard the batches in it are."""
_LETTER = re.compile(rb'"op":"dead","id":"([0-9a-f]{32})\.')
_FINISHED = re.compile(rb'^{"batch":"([0-9a-f]{32})"', re.MULTILINE)
_PARTS = {"queue", "movements"}
"""Names in a generation's directory once a task was inserted."""


class Remains(NamedTuple):
    """The newest generation of a queue whose `queue.jsonl` is gone."""

    id: QueueId
    generation: int

    @property
    def directory(self) -> names.Generation:
        """Return the name of the generation's directory."""
        return names.generation(self.generation, self.id)


def of_queue(fs: Filesystem, path: str) -> list[Remains]:
    """Return the remains of queues in a directory without `queue.jsonl`: of each queue the newest generation that has
    task files. Empty if the directory is a queue, or holds nothing of one. Links are not followed.
    """
    try:
        entries = fs.entries(path)
    except OSError as error:
        let_out(error)
        if is_gone(error) or error.errno in NOT_FILES:
            return []
        raise
    if any(name == layout.SETTINGS_FILE for name, _ in entries):
        return []
    found: dict[QueueId, Remains] = {}
    for name, kind in entries:
        parsed = names.parse_generation(name) if kind == "directory" else None
        if parsed is None or not _PARTS & {part for part, _ in fs.entries(f"{path}/{name}")}:
            continue
        number, identity = parsed
        if identity not in found or found[identity].generation < number:
            found[identity] = Remains(identity, number)
    return sorted(found.values())


def refuse(fs: Filesystem, path: str) -> None:
    """Raise QueueFileLost if a directory holds the remains of a queue: it must not be called drained, or empty."""
    found = of_queue(fs, path)
    if found:
        raise lost(path, found)


def lost(path: str, found: list[Remains]) -> QueueFileLost:
    """Return the error for a directory with the remains of a queue."""
    where = " and ".join(each.directory for each in found)
    return QueueFileLost(
        f"{path} holds what is left of a queue: its {layout.SETTINGS_FILE} is gone, as after a purge of a scratch "
        f"filesystem. Its tasks are in {where}. Nothing was changed. Put the file back from a copy; or have it written "
        f"again: fsqueue fsck --repair {shlex.quote(path)}"
    )


# -- a queue's file ------------------------------------------------------------------------------------------------


def state_of(fs: Filesystem, path: str, found: Remains, group: GroupState | None) -> QueueState:
    """Return the state of a queue whose `queue.jsonl` is gone, as its directories and names tell it. StorageError if
    they contradict.

    Settings that nothing tells are those of the group, or the defaults.
    """
    base = f"{path}/{found.directory}"
    begin = DEFAULTS if group is None else group.settings
    settings = replace(begin, shards=_shards(fs, base, begin.shards))
    epochs = sorted(
        epoch
        for name, kind in fs.entries(base)
        if kind == "directory" and (epoch := names.parse_key_epoch(name)) is not None
    )
    return QueueState(
        settings,
        found.id,
        generation=found.generation,
        group=None if group is None else group.id,
        is_ordered=_has_priorities(fs, base),
        allows_unsafe=group is not None and group.allows_unsafe,
        has_group_limits=group is not None and group.limits is not None,
        key_epochs=KeyEpochs(*(epochs[-2:] * 2)[:2]) if epochs else KeyEpochs(),
    )


def write_queue_file(fs: Filesystem, path: str, state: QueueState, clock: Clock, entropy: Entropy) -> None:
    """Make `queue.jsonl` of what is known, complete, by linking; nothing is done if it is there by now.

    A crash before the link leaves a file `.new-…`, which no process reads. OSError.
    """
    now = clock.now_ms()
    lines = [layout.birth_record(state.settings, state.id, now), layout.place_record(fs.place(path), now)]
    if state.group is not None:
        lines.append(layout.group_record(state.group, now))
    if state.allows_unsafe:
        lines.append(layout.unsafe_record(now))
    if state.has_group_limits:
        lines.append(layout.group_mark(now))
    if state.generation > 1:
        lines.append(layout.generation_record(state.generation, now))
    if state.is_ordered:
        lines.append(layout.ordered_record(now))
    if state.key_epochs.present:
        lines.append(
            layout.key_epochs_record(state.generation, state.key_epochs.earlier, state.key_epochs.present, now)
        )
    _link(fs, path, layout.settings_file(path), b"".join(lines), entropy)


def _shards(fs: Filesystem, base: str, wanted: int) -> int:
    """Return a number of shards that fits the places of all batches and keys; `wanted`, if that fits.

    The right number divides the difference of each batch's number and its shard. Another one that fits all of them
    does as well: no process computes a place with the old one any more.
    """
    divisor, least, wide = 0, 0, set[bool]()
    for shard, inside in _places(fs, base):
        if len(shard) not in (2, 4) or set(shard) - set("0123456789abcdef"):
            continue
        number = int(shard, 16)
        least = max(least, number)
        wide.add(len(shard) == 4)
        for name in inside:
            divisor = math.gcd(divisor, int(name[-8:], 16) - number)
    if len(wide) <= 1:
        candidates: Iterable[int] = (wanted, *range(1, SHARDS_MAX + 1))
        for shards in candidates:
            if shards > least and divisor % shards == 0 and wide <= {shards > 256}:
                return shards
    raise StorageError(f"no number of shards fits the directories in {base}")


def _places(fs: Filesystem, base: str) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield the names of shards in a generation's directory, each with batches, or keys' digests, that are of it."""
    for part, kind in fs.entries(base):
        directory = f"{base}/{part}"
        if kind != "directory":
            continue
        if part in _PARTS or names.parse_key_epoch(part) is not None:
            for shard, inside in fs.entries(directory):
                if inside == "directory":
                    yield shard, _named(fs.names(f"{directory}/{shard}"))
        elif part == "dead":
            yield from _in_files(fs, directory, _LETTER)
        elif part == "history":
            for day, inside in fs.entries(directory):
                if inside == "directory":
                    yield from _in_files(fs, f"{directory}/{day}", _FINISHED)


def _named(found: Iterable[str]) -> Iterator[str]:
    for name in found:
        task_file = names.parse_task_file(name)
        known = names.parse_log_file(name) or names.parse_key_file(name) if task_file is None else task_file.batch
        if known is not None:
            yield known


def _in_files(fs: Filesystem, directory: str, pattern: re.Pattern[bytes]) -> Iterator[tuple[str, Iterator[str]]]:
    """Yield the shards that have files of lines in a directory, each with the batches that its first lines tell of."""
    for name, kind in fs.entries(directory):
        shard = name.removesuffix(".jsonl")
        if kind == "file" and shard != name and "." not in shard:
            with fs.closing(fs.look(f"{directory}/{name}")) as fd:
                yield shard, (match.decode() for match in pattern.findall(fs.pread(fd, SAMPLE_BYTES, 0)))


def _has_priorities(fs: Filesystem, base: str) -> bool:
    """Return whether a task file's name tells of a priority."""
    for shard, kind in fs.entries(f"{base}/queue"):
        for name, _ in fs.entries(f"{base}/queue/{shard}") if kind == "directory" else ():
            parsed = names.parse_task_file(name)
            if parsed is not None and parsed.priority is not None:
                return True
    return False


# -- a group's file ------------------------------------------------------------------------------------------------


def of_group(fs: Filesystem, path: str) -> GroupState | None:
    """Return the state of a lost group, from the queues in a directory without `.group.jsonl`.

    None if the directory is a group or a queue, if no queue in it was made in a group, or if several groups are named.
    The settings are those that most of the queues have.
    """
    entries = fs.entries(path)
    if {groups.GROUP_FILE, layout.SETTINGS_FILE} & {name for name, _ in entries}:
        return None
    states = list(_states(fs, path, [name for name, kind in entries if kind == "directory"]))
    ids = {state.group for state in states}
    if len(ids) != 1:
        return None
    [identity] = ids
    assert identity is not None
    [(settings, _)] = Counter(state.settings for state in states).most_common(1)
    return GroupState(identity, settings, all(state.allows_unsafe for state in states))


def _states(fs: Filesystem, path: str, directories: list[str]) -> Iterator[QueueState]:
    """Yield the states of the queues in a directory that were made in a group, and lie under a queue's name."""
    for name in sorted(directories):
        if names.listed_queue_directory(name) is None:
            continue
        with suppress(FsqueueError, OSError):
            place = f"{path}/{name}"
            state = layout.read_queue_state(sparse.content_of(fs.read_pieces(layout.settings_file(place))), place)
            if state.group is not None and not state.closed:
                yield state


def write_group_file(fs: Filesystem, path: str, state: GroupState, clock: Clock, entropy: Entropy) -> None:
    """Make `.group.jsonl` of what is known, complete, by linking; nothing is done if it is there by now. OSError."""
    now = clock.now_ms()
    unsafe = layout.unsafe_record(now) if state.allows_unsafe else b""
    _link(fs, path, groups.group_file(path), groups.birth_record(state.settings, state.id, now) + unsafe, entropy)


def without_group(fs: Filesystem, path: str) -> str | None:
    """Return a sentence about a directory that holds queues made in a group, and no `.group.jsonl`; None for
    any other.
    """
    with suppress(OSError):
        if of_group(fs, path) is not None:
            return (
                f"{path} holds queues that were made in a group, and no {groups.GROUP_FILE}: it is gone, as after a "
                "purge of a scratch filesystem, or the queues were moved here. Nothing was changed. If this is the "
                f"group, have the file written again: fsqueue fsck --repair {shlex.quote(path)}. If not, use each "
                "queue by its path."
            )
    return None


# -- both ----------------------------------------------------------------------------------------------------------


def refuse_strangers(fs: Filesystem, path: str) -> None:
    """Raise StorageError unless a directory is this user's, or shared with the user's group.

    A file of root's own could not be used by the queue's owner; what a stranger has planted must not become a queue.
    """
    found = fs.stat(path)
    is_shared = found.st_mode & stat.S_ISGID and found.st_mode & stat.S_IWGRP
    if found.st_uid != os.geteuid() and not (is_shared and os.geteuid() != 0):
        raise StorageError("the directory is another user's; its owner can repair it")


def _link(fs: Filesystem, path: str, target: str, content: bytes, entropy: Entropy) -> None:
    fresh = f"{path}/{names.fresh(entropy.hex16())}"
    fd = fs.create(fresh)
    try:
        fs.write_all(fd, content)
        fs.fsync(fd)
        with suppress(FileExistsError):  # another process was faster
            fs.link(fresh, target)
    finally:
        fs.close(fd)
        with suppress(OSError):
            fs.unlink(fresh)
    fs.sync_directory(path)
