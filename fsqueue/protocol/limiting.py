"""Limits over all hosts: which leases count, and whether one more may be given (docs/decisions/0066-limits.md).

A slot is written before its lease, under the lock of the lease's batch. It is given back after the lease has ended,
once a process that needs it has seen that in the lease's log. So a crash leaves a slot too many, and never one too few.

Locks are taken in this order: a batch's log, then the file of slots. No other lock is taken under that one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from enum import Enum

from fsqueue.errors import LockTimeout
from fsqueue.filesystem import LOST, NOT_FILES, either_of_two
from fsqueue.format import names, slots
from fsqueue.format.layout import QueueLimits
from fsqueue.format.names import Batch
from fsqueue.format.slots import FREE, LeaseSlot
from fsqueue.interruptions import let_out
from fsqueue.protocol import deciding
from fsqueue.protocol.shares import NewLease
from fsqueue.storage import record_times
from fsqueue.storage import slots as slot_files
from fsqueue.storage.locked_batch import BatchBusy, BatchGone, LockedBatch
from fsqueue.storage.store import Store

logger = logging.getLogger("fsqueue")

SETTLE_S = 2.0
"""Seconds after which each process knows of limits that were set: it reads `queue.jsonl` again a second after the last
time, before it leases."""
LOOKS_MAX = 64
"""Maximum number of batches that a lease looks into for a slot that may be given back."""


class End(Enum):
    """Say whether a lease still holds its task."""

    HELD = "it may be renewed"
    RUN_OUT = "it has run out, and its log does not show that yet"
    OVER = "it has ended, was never recorded, or has run out by the time of its log"


def begin(store: Store) -> None:
    """Have limits hold that were just set: once all processes know of them, make the file of slots. It may be there.

    If its process dies before, the next lessee does it. LockTimeout if it stays locked: then that one does it, too.
    """
    limits = store.queue_state.limits
    if limits is not None and not slot_files.is_whole(store, slot_files.read(store, limits.epoch)):
        store.clock.sleep(SETTLE_S)
        slot_files.make(store, limits.epoch)


class Limiter:
    """The limits of a queue, as one lessee looks at them. Not thread-safe."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._content = b""
        """What the file of slots had when it was read last."""

    @property
    def _limits(self) -> QueueLimits:
        return self.store.queue_file.state.limits or QueueLimits("")

    # -- before a look ------------------------------------------------------------------------------

    def has_room(self, current: Batch | None) -> bool:
        """Return whether it seems that one more task may be leased. True is a hint: `take` decides.

        False: as many as the limits allow were held a moment ago, in so far as a look into `LOOKS_MAX` batches can
        tell. Slots of the batch in hand do not count: they are looked at once it is locked.
        """
        limits = self._limits
        self._content = slot_files.read(self.store, limits.epoch)
        if not slot_files.is_whole(self.store, self._content) and not self._make(limits):
            return False
        others = [slot for _, slot in slots.each(self._content) if slot.batch != current]
        return limits.max_leased is None or len(others) < limits.max_leased or self.give_back()

    def _make(self, limits: QueueLimits) -> bool:
        """Make the file of slots, if no process does, once all know of the limits. Return whether it is there."""
        store = self.store
        if not self._content:  # else the maker died, or the machine was booted: the limits were set long ago
            store.clock.sleep(SETTLE_S)
        try:
            slot_files.make(store, limits.epoch)
        except LockTimeout as error:
            logger.debug("no task of %s is leased yet: %s", store.path, error)
            return False
        self._content = slot_files.read(store, limits.epoch)
        return slot_files.is_whole(store, self._content)

    # -- slots that are not needed any more -----------------------------------------------------------

    def give_back(self) -> bool:
        """Give back the slots of a batch whose leases do not hold any more. Return whether there was one.

        It looks into at most `LOOKS_MAX` batches, from a random one on. One that another process has locked is passed
        over.
        """
        by_batch: dict[Batch, list[tuple[int, LeaseSlot]]] = {}
        for offset, slot in slots.each(self._content):
            by_batch.setdefault(slot.batch, []).append((offset, slot))
        batches = sorted(by_batch)
        first = int(self.store.entropy.random() * len(batches))
        for batch in (batches[first:] + batches[:first])[:LOOKS_MAX]:
            over = self._over(batch, by_batch[batch])
            if over and self._clear(over):
                return True
        return False

    def _over(self, batch: Batch, those: Sequence[tuple[int, LeaseSlot]]) -> list[tuple[int, LeaseSlot]]:
        """Return those slots of a batch whose leases are over, by its log. None of them comes back."""
        store = self.store
        try:
            with LockedBatch(store, batch, 0) as locked:
                over = over_in(locked, record_times.present(locked), those)
                wanted = locked.undecided()
            if wanted:  # a lease that an update has counts as held until that is decided
                deciding.decide(store, batch, wanted, 0.0)
            return over
        except BatchBusy:
            return []
        except BatchGone:
            return [*those]
        except FileNotFoundError:
            return [*those] if self._is_absent(batch) else []
        except OSError as error:
            let_out(error)
            if error.errno not in (*LOST, *NOT_FILES):
                raise
            logger.debug("slots of batch %s of %s are kept: %s", batch, store.path, error)
            return []

    def _is_absent(self, batch: Batch) -> bool:
        """Return whether a batch has no log any more. An NFS client may say so wrongly while its server restarts."""
        store, layout = self.store, self.store.layout
        directory = f"{layout.logs}/{layout.shard(batch)}"
        return names.log_file(batch) not in either_of_two(lambda: store.fs.names(directory, True))

    def _clear(self, over: Sequence[tuple[int, LeaseSlot]]) -> bool:
        """Take the records of these slots out of the file, if they are there still. Return whether it was done."""
        store, limits = self.store, self._limits
        try:
            with slot_files.locked(store, limits.epoch) as file:
                content = file.content()
                known = {*slots.each(content)}
                file.put({offset: FREE for offset, slot in over if (offset, slot) in known}, store.sync_movements)
                self._content = file.content()
            return True
        except (LockTimeout, FileNotFoundError) as error:
            logger.debug("slots of %s are kept: %s", store.path, error)
            return False

    # -- under the lock of a batch -------------------------------------------------------------------

    def allowed(self, locked: LockedBatch, at: int, most: int) -> int:
        """Return how many tasks of a batch, of `most`, seem to be allowed: a hint, from the last look at the slots."""
        limits = self._limits
        if limits.max_leased is None:
            return most
        known = [*slots.each(self._content)]
        own = [each for each in known if each[1].batch == locked.batch]
        left = limits.max_leased - len(known) + sum(end_of(locked, at, slot) is not End.HELD for _, slot in own)
        return max(0, min(most, left))

    def take(
        self, locked: LockedBatch, at: int, tasks: list[int], make: Callable[[list[int]], list[NewLease]]
    ) -> list[NewLease]:
        """Write slots for tasks of a batch, and return their leases, which the caller records then: for as many tasks
        as the limits allow. [] if none is allowed, or the file of slots stays locked.

        The slots of the batch's leases that are over are given back by that.
        """
        store, limits = self.store, self._limits
        try:
            with slot_files.locked(store, limits.epoch) as file:
                content = file.content()
                if not slot_files.is_whole(store, content):
                    return []
                known = dict(slots.each(content))
                over = dict(over_in(locked, at, [each for each in known.items() if each[1].batch == locked.batch]))
                taken = known.keys() - over.keys()
                room = len(tasks) if limits.max_leased is None else max(0, limits.max_leased - len(taken))
                leases = make(tasks[:room]) if room else []
                free = slots.places({*taken})
                changes = dict.fromkeys(over, FREE)
                for lease in leases:
                    for index in lease.tasks:
                        changes[next(free)] = slots.record(LeaseSlot(locked.batch, index, lease.id))
                file.put(changes, store.sync_movements)
                self._content = file.content()
                return leases
        except (LockTimeout, FileNotFoundError) as error:
            logger.debug("no task of %s is leased now: %s", store.path, error)
            return []


def over_in(locked: LockedBatch, at: int, those: Sequence[tuple[int, LeaseSlot]]) -> list[tuple[int, LeaseSlot]]:
    """Return those slots of a locked batch whose leases are over.

    Of one that has run out that must stand in the log: a process whose clock is behind could renew it otherwise. So a
    record without effect moves the time of the log to `at`, behind the end of the lease.
    """
    ends = [(each, end_of(locked, at, each[1])) for each in those]
    if any(end is End.RUN_OUT for _, end in ends):
        locked.append_record("move", at)
    return [each for each, end in ends if end is not End.HELD]


def end_of(locked: LockedBatch, at: int, slot: LeaseSlot) -> End:
    """Return whether the lease of a slot holds its task still, as the locked log says. `at`: the time of a record now.

    A frozen task is held: what its update does to it is not known.
    """
    state, index = locked.replay_state, slot.index
    if not state.named_by([index], slot.lease):
        return End.OVER
    if index in state.frozen:
        return End.HELD
    holder, until = state.leases[slot.lease], state.since[index]
    if state.at >= until:
        return End.OVER
    margin = min(locked.store.clock.margin_ms, holder.span // 10)
    return End.RUN_OUT if until + margin <= at else End.HELD
