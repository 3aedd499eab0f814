"""The files of a group's barriers on disk: one each, written once, whose name tells how far it is (decision 73)."""

from __future__ import annotations

from collections.abc import Iterable

from fsqueue.errors import StorageError
from fsqueue.filesystem import PassingOverStrays, either_of_two
from fsqueue.format import barriers, names, sparse
from fsqueue.format.barriers import STEPS, BarrierRecord, Step
from fsqueue.format.groups import barriers_directory
from fsqueue.format.names import Uuid
from fsqueue.interruptions import suppress
from fsqueue.storage.group_directory import GroupDirectory

KEPT_MS = 7 * 86_400_000
"""How long the file of a barrier that has ended stays, for those who ask what became of it."""
FRESH_MS = 86_400_000
"""How old a file is at least that was never finished, and is removed."""


def steps(group: GroupDirectory) -> dict[Uuid, Step]:
    """Return how far each barrier is, the oldest first; {} if something else has the directory's name.

    One listing may miss a name that is being renamed.
    """
    found: dict[Uuid, Step] = {}
    with PassingOverStrays():  # fsck tells of it
        for identity, step in _named(_names(group)):
            if identity not in found or STEPS.index(found[identity]) < STEPS.index(step):
                found[identity] = step
    return dict(sorted(found.items()))


def step_of(group: GroupDirectory, identity: Uuid) -> Step | None:
    """Return how far a barrier is, by two listings; None if nothing is known of it any more."""
    listed = _named(either_of_two(lambda: _names(group)))
    found = [step for other, step in listed if other == identity]
    return max(found, key=STEPS.index, default=None)


def _names(group: GroupDirectory) -> list[str]:
    return group.fs.names(barriers_directory(group.path))


def _named(listed: Iterable[str]) -> Iterable[tuple[Uuid, Step]]:
    return (parsed for name in listed if (parsed := barriers.parse_name(name)) is not None)


def read(group: GroupDirectory, identity: Uuid, step: Step) -> BarrierRecord | None:
    """Return what the file of a barrier says; None if it has another name by now. StorageError: it is damaged."""
    path = barriers.path_of(group.path, identity, step)
    try:
        content = sparse.content_of(group.fs.read_pieces(path))
    except FileNotFoundError:
        return None
    record = barriers.parse(content)
    if record is None or record.id != identity:
        raise StorageError(
            f"{path} is damaged, so no process can let this barrier pass, or cancel it. Nothing was changed. Its tasks "
            "stay where they are: 'fsqueue ls GROUP/QUEUE --state delayed' lists them, 'fsqueue change' makes them "
            "available, 'fsqueue cancel' takes them out. 'fsqueue fsck GROUP' tells more."
        )
    return record


def is_damaged(group: GroupDirectory, identity: Uuid, step: Step) -> bool:
    """Return whether the file of a barrier is there and cannot be read as one."""
    try:
        read(group, identity, step)
    except StorageError:
        return True
    return False


def find(group: GroupDirectory, identity: Uuid, step: Step) -> tuple[BarrierRecord, Step] | None:
    """Return what the file of a barrier says, and how far the barrier is; None if it is gone. `step`: as it was seen.

    Others may take it further meanwhile. StorageError: it is damaged.
    """
    now: Step | None = step
    for _ in range(len(STEPS)):
        if now is None:
            return None
        record = read(group, identity, now)
        if record is not None:
            return record, now
        now = step_of(group, identity)
    return None


def write(group: GroupDirectory, identity: Uuid, content: bytes) -> None:
    """Write the file of a new barrier, whole: it is `begun`, durably. `content`: its encoded record."""
    fs, directory = group.fs, barriers_directory(group.path)
    fs.make_directory(directory, sync=True)
    fresh = f"{directory}/{names.fresh(group.entropy.hex16())}"
    try:
        with fs.closing(fs.create(fresh)) as fd:
            fs.write_all(fd, content)
            fs.fsync(fd)
        fs.rename(fresh, barriers.path_of(group.path, identity, "begun"))
    except BaseException:
        with suppress(OSError):
            fs.unlink(fresh)
        raise
    fs.sync_directory(directory)


def advance(group: GroupDirectory, identity: Uuid, before: Step, to: Step) -> Step | None:
    """Take a barrier further, durably, unless another process has. Return how far it is then."""
    assert STEPS.index(before) < STEPS.index(to), "if both names are left, the later one counts"
    fs = group.fs
    fs.rename(barriers.path_of(group.path, identity, before), barriers.path_of(group.path, identity, to))
    found = step_of(group, identity)
    fs.sync_directory(barriers_directory(group.path))
    return found


def tidy(group: GroupDirectory) -> int:
    """Remove files of barriers that ended a week ago, or were never set. Return how many files."""
    fs, removed = group.fs, 0
    with PassingOverStrays():
        for name in _names(group):
            parsed = barriers.parse_name(name)
            if parsed is None and not names.is_fresh(name):
                continue
            if parsed is not None and parsed[1] not in barriers.ENDED:
                continue
            path = f"{barriers_directory(group.path)}/{name}"
            with suppress(FileNotFoundError):
                changed_ms = fs.stat(path).st_ctime_ns // 1_000_000
                if group.clock.now_ms() - changed_ms > (FRESH_MS if parsed is None else KEPT_MS):
                    removed += fs.unlink(path)
    return removed


def refresh(group: GroupDirectory) -> int:
    """Set the times of all barriers' files to now; how many: a cleaner of scratch space must not remove them."""
    touched = 0
    with PassingOverStrays():
        for identity, step in steps(group).items():
            if step not in barriers.ENDED:
                with suppress(FileNotFoundError, PermissionError):
                    group.fs.touch(barriers.path_of(group.path, identity, step))
                    touched += 1
    return touched
