"""Compare the slots of a queue with limits with the leases in its logs (docs/decisions/0066-limits.md).

Each lease that no record has ended has a slot. The other way round nothing is wrong: a slot whose lease is over is left
until its place is needed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from fsqueue.format import slots
from fsqueue.format.names import Batch
from fsqueue.format.slots import LeaseSlot, SlotTable
from fsqueue.fsck.findings import Suspect, found
from fsqueue.fsck.repair import WAIT_S
from fsqueue.storage import listing
from fsqueue.storage import slots as slot_files
from fsqueue.storage.locked_batch import BatchGone, LockedBatch
from fsqueue.storage.store import Store


def check(store: Store) -> Iterator[Suspect]:
    """Yield the batches that have leases without slots. Logs are read first: a slot is there before its lease."""
    limits = store.queue_state.limits
    if limits is None or not limits.counts:
        return
    leased = []
    for batch in listing.with_logs(store, every_shard=store.fs.shared):
        state = listing.read_own_state(store, batch)
        if state is not None and (held := slot_files.held_in(state, batch)):
            leased.append((batch, held))
    content = slot_files.read(store, limits.epoch)
    for batch, held in leased:
        if missing := _without_slot(store, content, held):
            path, note = slot_files.path_of(store, limits.epoch), f"of batch {batch}"
            yield Suspect(
                found(store, "missing-slot", path, missing, note),
                partial(_is_missing, store, batch, limits.epoch),
                partial(_write, store, batch, limits.epoch),
            )


def _without_slot(store: Store, content: bytes, held: list[LeaseSlot]) -> int:
    """Return how many of these leases have no slot. 0 if the file is not whole: the next lessee makes it anew."""
    known = {slot.key for _, slot in slots.each(content)}
    return sum(slot.key not in known for slot in held) if slot_files.is_whole(store, content) else 0


def _is_missing(store: Store, batch: Batch, epoch: str) -> bool:
    """Return whether a lease of a batch has no slot. Under the lock of the batch no slot of a held lease can go."""
    limits = store.queue_state.limits
    if limits is None or limits.epoch != epoch:
        return False
    try:
        with LockedBatch(store, batch, WAIT_S) as locked:
            held = slot_files.held_in(locked.replay_state, batch)
            return _without_slot(store, slot_files.read(store, epoch), held) > 0
    except (BatchGone, FileNotFoundError):
        return False


def _write(store: Store, batch: Batch, epoch: str) -> None:
    """Write the slots that are missing, also if there are more of them than the limits allow: the leases are held."""
    limits = store.queue_state.limits
    fields = [] if limits is None else [name for name, _ in limits.fields]
    with LockedBatch(store, batch, WAIT_S) as locked, slot_files.locked(store, epoch, WAIT_S) as file:
        table = SlotTable()
        table.update(file.content())
        if slot_files.is_whole(store, table.content):
            known = {slot.key for slot in table.taken.values()}
            missing = [slot for slot in slot_files.with_digests(locked, fields) if slot.key not in known]
            places = zip(missing, table.places(), strict=False)
            file.put({offset: slots.record(slot) for slot, offset in places}, durably=True)
