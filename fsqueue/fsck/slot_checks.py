"""Compare slots with the leases in a queue's logs (decisions 66 and 78): its own, and those in the file of its group.

Each lease that no record has ended has a slot in each file that counts it. The other way round nothing is wrong: a slot
whose lease is over is left until its place is needed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from typing import NamedTuple

from fsqueue.errors import FsqueueError
from fsqueue.format import groups, slots
from fsqueue.format.layout import QueueLimits
from fsqueue.format.names import Batch
from fsqueue.format.slots import LeaseSlot, SlotTable
from fsqueue.fsck.findings import Suspect, found
from fsqueue.fsck.repair import WAIT_S
from fsqueue.interruptions import suppress
from fsqueue.storage import decisions, group_slots, listing, queue_changes
from fsqueue.storage import slots as slot_files
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.group_slots import Clocks
from fsqueue.storage.locked_batch import BatchGone, LockedBatch
from fsqueue.storage.slots import SlotFile
from fsqueue.storage.store import Store, domain_of


class _Counted(NamedTuple):
    """A file of slots that counts a queue's leases, and the limits that it is of."""

    limits: QueueLimits
    path: str
    read: Callable[[], bytes]
    is_whole: Callable[[bytes | bytearray], bool]
    locked: Callable[[], AbstractContextManager[SlotFile]]
    as_there: Callable[[list[LeaseSlot]], list[LeaseSlot]]
    """Returns slots of the queue's leases as they stand in the file."""


def check(store: Store) -> Iterator[Suspect]:
    """Yield a mark that is missing, or that no group stands behind; and the batches that have leases without slots.

    Logs are read before the slots: a slot is there before its lease.
    """
    yield from _mark(store)
    if not _files(store):
        return
    leased = []
    for batch in listing.with_logs(store, every_shard=store.fs.shared):
        state = listing.read_own_state(store, batch)
        if state is not None and (held := slot_files.held_in(state, batch)):
            leased.append((batch, held))
    for file in _files(store):
        content = file.read()
        for batch, held in leased:
            if missing := len(_without_slot(file, content, held)):
                yield Suspect(
                    found(store, "missing-slot", file.path, missing, f"of batch {batch}"),
                    partial(_is_missing, store, batch, file),
                    partial(_write, store, batch, file),
                )


def _files(store: Store) -> list[_Counted]:
    """Return the files of slots that count the queue's leases now."""
    limits, files = store.queue_state.limits, list[_Counted]()
    if limits is not None and limits.counts:
        epoch = limits.epoch
        files.append(
            _Counted(
                limits,
                slot_files.path_of(store, epoch),
                partial(slot_files.read, store, epoch),
                partial(slot_files.is_whole, store),
                partial(slot_files.locked, store, epoch, WAIT_S),
                list,
            )
        )
    group = _group_of(store) if store.queue_state.has_group_limits else None
    limits = None if group is None else group.state.limits
    if group is not None and limits is not None and limits.counts:
        epoch, by = limits.epoch, Clocks(store.clock, store.entropy)
        directory = store.directory_in_group
        assert directory is not None, "it lies in the group by that name"
        files.append(
            _Counted(
                limits,
                groups.slots_file(group.path, epoch),
                partial(group_slots.read, group, epoch),
                partial(group_slots.is_whole, domain_of(group.fs)),
                partial(group_slots.locked, group, by, epoch, WAIT_S),
                partial(group_slots.of_group, directory),
            )
        )
    return files


def _group_of(store: Store) -> GroupDirectory | None:
    """Return the group that the queue lies in, as its file says now; None if it lies in none, or nobody can ask it."""
    with suppress(FsqueueError, OSError):
        group = decisions.group_if_in_place(store)
        if group is not None:
            group.read_anew()
        return group
    return None


def _without_slot(file: _Counted, content: bytes | bytearray, held: list[LeaseSlot]) -> list[LeaseSlot]:
    """Return those of these leases that have no slot. None if the file is not whole: the next lessee makes it anew."""
    if not file.is_whole(content):
        return []
    own = {digest for slot in file.as_there(held) for digest in slot.digests[:1]}
    known = {slot.key for _, slot in slots.each(bytes(content)) if not own or own & {*slot.digests[:1]}}
    return [slot for slot in held if slot.key not in known]


def _is_missing(store: Store, batch: Batch, file: _Counted) -> bool:
    """Return whether a lease of a batch has no slot. Under the lock of the batch no slot of a held lease can go."""
    if all(one.path != file.path for one in _files(store)):
        return False
    try:
        with LockedBatch(store, batch, WAIT_S) as locked:
            held = slot_files.held_in(locked.replay_state, batch)
            return bool(_without_slot(file, file.read(), held))
    except (BatchGone, FileNotFoundError):
        return False


def _write(store: Store, batch: Batch, file: _Counted) -> None:
    """Write the slots that are missing, also if there are more of them than the limits allow: the leases are held."""
    fields = [name for name, _ in file.limits.fields]
    with LockedBatch(store, batch, WAIT_S) as locked, file.locked() as slots_there:
        table = SlotTable()
        table.update(slots_there.content())
        missing = file.as_there(_without_slot(file, table.content, slot_files.with_digests(locked, fields)))
        places = zip(missing, table.places(), strict=False)
        if missing:
            slots_there.put({offset: slots.record(slot) for slot, offset in places}, durably=True)


# -- the mark of a group's limits ----------------------------------------------------------------------------------


def _mark(store: Store) -> Iterator[Suspect]:
    """Yield a queue that has no mark while its group has limits, or that has one while it lies in no group."""
    for lacks in (True, False):
        if _is_wrong(store, lacks):
            kind = "missing-mark" if lacks else "mark-of-no-group"
            finding = found(store, kind, store.layout.settings_file)
            yield Suspect(finding, partial(_is_wrong, store, lacks), partial(_mend_mark, store, lacks))


def _is_wrong(store: Store, lacks: bool) -> bool:
    state = store.queue_state
    if state.group is None or state.has_group_limits == lacks:
        return False
    if not lacks:
        with suppress(FsqueueError, OSError):
            return decisions.group_if_in_place(store) is None
        return False
    group = _group_of(store)
    return group is not None and group.state.limits is not None


def _mend_mark(store: Store, lacks: bool) -> None:
    group = store.queue_state.group
    assert group is not None, "a queue of no group has no mark, and needs none"
    queue_changes.mark_group_limits(store.fs, store.clock, store.entropy, store.path, group, lacks)
    store.refresh(now=True)
