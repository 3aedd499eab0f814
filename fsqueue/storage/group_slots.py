"""The limits of a group over its queues: their lines, the marks of its queues, and the file of slots that these share.

docs/decisions/0078-limits-of-a-group.md; docs/format-groups.md, "Slots of a group". The group's file says which limits
there are. Each queue of the group has a mark in its own file: only where it stands, a lease asks for them.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from hashlib import blake2b
from typing import NamedTuple

from fsqueue.clock import Clock, Entropy
from fsqueue.errors import HiddenTasks, NotAQueue, QueueNotFound, StorageError
from fsqueue.filesystem import NOT_FILES, either_of_two, is_gone
from fsqueue.format import names, slots
from fsqueue.format.groups import GroupState, group_file, limits_directory, slots_file
from fsqueue.format.layout import QueueLimits
from fsqueue.format.names import QueueDirectory
from fsqueue.format.slots import DIGEST_BYTES, LeaseSlot
from fsqueue.interruptions import let_out, suppress
from fsqueue.storage import group_directory, group_queues, journals, queue_changes
from fsqueue.storage import slots as slot_files
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.journals import IN_PLACE, Journal
from fsqueue.storage.slots import WAIT_S, SlotFile
from fsqueue.storage.store import Store, domain_of

FIELDS_MAX = 3
"""Maximum number of payload fields with a limit of a group: one digest of a slot tells the queue."""


class Clocks(NamedTuple):
    """Hold what a step on disk measures time by, and draws from."""

    clock: Clock
    entropy: Entropy


def digest_of(directory: QueueDirectory) -> bytes:
    """Return the digest of a queue in the slots of its group, by the name of its directory."""
    return blake2b(b"queue\0" + directory.encode(), digest_size=DIGEST_BYTES).digest()


# -- the limits, and the marks -----------------------------------------------------------------------------------


def change(group: GroupDirectory, by: Clocks, line: Callable[[GroupState], bytes | None]) -> GroupState:
    """Append the line that `line` makes of what the group's file says now, durably. Return the state afterwards.

    `line` returns None if the file says what is wanted. It is synced then: its writer may have died before it did.
    LockTimeout; GroupNotFound; StorageError, with nothing changed, if something else has the place of the slots.
    """
    directory = limits_directory(group.path)
    group.fs.make_directory_for_owner(directory)
    if not group.fs.is_directory(directory):
        raise StorageError(
            f"{directory} is no directory, but a link, for example: it was not followed. Nothing was changed. 'fsqueue "
            f"fsck --repair {shlex.quote(group.path)}' moves it away; then repeat."
        )
    with _locked_file(group, by) as file:
        record = line(group.read_anew())
        if record is None:
            group.fs.fsync(file.fd)
        else:
            file.append(record, sync=True)
    return group.read_anew()


@contextmanager
def _locked_file(group: GroupDirectory, by: Clocks) -> Iterator[Journal]:
    # A creator that died before it removed the name under which it made the file has left it with two.
    with journals.locked(Journal, group.fs, by.clock, by.entropy, group_file(group.path), one_name=False) as file:
        yield file


def mark_all(group: GroupDirectory, by: Clocks) -> None:
    """Mark all queues of a group that are there. A process that makes another one learns of the limits by itself.

    LockTimeout if a queue's file stays locked, and errors of the system: then a queue may have no mark.
    """
    for directory in sorted(group.directories()):
        _mark(group, by, directory, True)


def unmark_all(group: GroupDirectory, by: Clocks) -> None:
    """Take the marks of a group's queues away, as long as the group has no limits.

    Each is taken under the lock of the group's file, under which limits begin: one that begins then marks it again.
    """
    for directory in sorted(group.directories()):
        with _locked_file(group, by):
            if group.read_anew().limits is not None:
                return
            _mark(group, by, directory, False)


def _mark(group: GroupDirectory, by: Clocks, directory: QueueDirectory, is_limited: bool) -> None:
    try:
        queue_changes.mark_group_limits(
            group.fs, by.clock, by.entropy, group.path_of(directory), group.state.id, is_limited
        )
    except NotAQueue:
        pass  # no process can open it
    except OSError as error:
        let_out(error)
        if not is_gone(error) and error.errno not in NOT_FILES:
            raise


# -- the file of slots -------------------------------------------------------------------------------------------


def read(group: GroupDirectory, epoch: str) -> bytes:
    """Return the content of the file, without its lock: see `slots.read`."""
    return slot_files.content_at(group.fs, slots_file(group.path, epoch))


def is_whole(domain: str, content: bytes | bytearray) -> bool:
    """Return whether all leases that are held have a slot in the file: see `slots.is_whole`. `domain`: the group's, as
    `store.domain_of` its filesystem.
    """
    return content.startswith(slots.header(domain)[: slots.HEADER_BYTES])


@contextmanager
def locked(group: GroupDirectory, by: Clocks, epoch: str, wait_s: float = WAIT_S) -> Iterator[SlotFile]:
    """Lock the file. LockTimeout; FileNotFoundError if it was not made yet."""
    path = slots_file(group.path, epoch)
    with journals.locked(SlotFile, group.fs, by.clock, by.entropy, path, wait_s, IN_PLACE, openings_max=0) as file:
        yield file


def make(group: GroupDirectory, by: Clocks, limits: QueueLimits, own: Store | None = None) -> None:
    """Make the file whole, with a slot for each lease that is held in any queue of the group. Errors as `locked`.

    Call it when each queue has its mark, and all processes know of that. The header comes last. `own`: the queue of the
    caller, which is open.
    """
    group.fs.make_directory_for_owner(limits_directory(group.path))
    group.fs.make_file_for_owner(slots_file(group.path, limits.epoch))
    held = held_in(group, limits, own) if limits.counts else []
    with locked(group, by, limits.epoch) as file:
        slot_files.fill(file, held, domain_of(group.fs), durably=True)


def held_in(group: GroupDirectory, limits: QueueLimits, own: Store | None) -> list[LeaseSlot]:
    """Return a slot for each task that a lease holds in any queue of a group, by what the logs say.

    What is no queue of the group is left out; so is a link, a pipe or the like in the place of a queue's directory:
    whatever it hides does not lie in the group. QueueFileLost, and other errors: it is not known what is held.
    """
    fields = [name for name, _ in limits.fields]
    found: list[LeaseSlot] = []
    for directory in sorted(group.directories()):
        try:
            with suppress(QueueNotFound, NotAQueue), opened(group, directory, own) as store:
                if store is not None:
                    found += of_group(directory, slot_files.held_now(store, fields))
        except HiddenTasks as error:
            if error.filename != group.path_of(directory):
                raise
    return found


def of_group(directory: QueueDirectory, those: Collection[LeaseSlot]) -> list[LeaseSlot]:
    """Return slots of a queue as they stand in the file of its group: the first digest tells the queue."""
    digest = digest_of(directory)
    return [slot._replace(digests=(digest, *slot.digests)) for slot in those]


def directory_with(group: GroupDirectory, digest: bytes) -> QueueDirectory | None:
    """Return the name of the queue that has a digest; None if no directory of the group has it any more. OSError;
    GroupNotFound: then nothing is known.
    """

    def listed() -> list[QueueDirectory]:
        return [directory for directory in group.directories() if digest_of(directory) == digest]

    if not group.fs.is_in_place():
        raise group_directory.gone(group.path)
    return next(iter(either_of_two(listed)), None)


@contextmanager
def opened(group: GroupDirectory, directory: QueueDirectory, own: Store | None) -> Iterator[Store | None]:
    """Open a queue of the group for the length of a block, or yield `own` if that is it. None if none is there.

    NotAQueue if another queue has its place. Other errors as of `Store`.
    """
    if own is not None and own.lies_at(group, directory):
        own.refresh(now=True)
        yield own
        return
    state = group.queue_state(directory)
    if state is None or state.closed:
        yield None
        return
    group.refuse_foreign(state, group.path_of(directory))
    store = group_queues.proven(group, directory, own)
    try:
        yield store
    finally:
        store.close()


def files(group: GroupDirectory) -> list[str]:
    """Return the paths of the group's files of slots, also of limits that have ended."""
    directory = limits_directory(group.path)
    return [f"{directory}/{name}" for name in group.fs.names(directory) if names.is_slot_file(name)]


def forget(group: GroupDirectory) -> None:
    """Remove the files of limits that have ended. Those that begin meanwhile have a new name."""
    there = files(group)
    limits = group.read_anew().limits if there else None  # after the listing: what it names was there before
    for path in there:
        if limits is None or path != slots_file(group.path, limits.epoch):
            group.fs.unlink(path)
