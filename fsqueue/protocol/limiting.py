"""Limits over all hosts: which leases count, and whether one more may be given (docs/decisions/0066-limits.md).

A slot is written before its lease, under the lock of the lease's batch. It is given back after the lease has ended,
once a process that needs it has seen that in the lease's log. So a crash leaves a slot too many, and never one too few.

Locks are taken in this order: a batch's log, then the file of slots. No other lock is taken under that one.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum

from fsqueue.errors import LockTimeout
from fsqueue.filesystem import LOST, NOT_FILES, either_of_two
from fsqueue.format import movements, names, slots
from fsqueue.format.layout import QueueLimits
from fsqueue.format.names import Batch
from fsqueue.format.slots import FREE, LeaseSlot, SlotTable
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
OWN_LOOKS = 4
"""Number of slots, besides as many as are wanted, that a lease looks at of those that its lessee has taken before: a
lease that its lessee has ended is found at once, however many others there are."""


class End(Enum):
    """Say whether a lease still holds its task."""

    HELD = "it may be renewed"
    RUN_OUT = "it has run out, and no record has ended it"
    OVER = "a record has ended it, or it was never recorded"


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
        self._table = SlotTable()
        """What the file of slots had when it was read last."""
        self._mine: deque[tuple[int, LeaseSlot]] = deque()
        """The slots that this lessee has taken, each with its offset: those first at which it looks first."""
        self._found: list[tuple[int, LeaseSlot, End]] = []
        """The slots of the locked batch that `allowed` has found: their leases do not hold any more."""
        self._has_leased = False
        """Whether the last look has given a task. Then the file of slots is there. The next look reads it only if it
        lacks a slot."""
        self._is_read = False
        """Whether the file was read in this look."""

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
        self._is_read = False
        if self._has_leased and self._seems_to_have_room(limits, current):
            return True
        self._has_leased = False
        self._read(limits)
        if not slot_files.is_whole(self.store, self._table.content) and not self._make(limits):
            return False
        return self._seems_to_have_room(limits, current) or self.give_back()

    def _seems_to_have_room(self, limits: QueueLimits, current: Batch | None) -> bool:
        """Return whether fewer slots have a record than leases are allowed, but for those of the batch in hand."""
        table = self._table
        own = len(table.by_batch.get(current, ())) if current is not None else 0
        return limits.max_leased is None or len(table.taken) - own < limits.max_leased

    def _make(self, limits: QueueLimits) -> bool:
        """Make the file of slots, if no process does, once all know of the limits. Return whether it is there."""
        store = self.store
        if not self._table.content:  # else the maker died, or the machine was booted: the limits were set long ago
            store.clock.sleep(SETTLE_S)
        try:
            slot_files.make(store, limits.epoch)
        except LockTimeout as error:
            logger.debug("no task of %s is leased yet: %s", store.path, error)
            return False
        self._read(limits)
        return slot_files.is_whole(store, self._table.content)

    def _read(self, limits: QueueLimits) -> None:
        self._table.update(slot_files.read(self.store, limits.epoch))
        self._is_read = True

    # -- slots that are not needed any more -----------------------------------------------------------

    def give_back(self) -> bool:
        """Give back the slots of a batch whose leases do not hold any more. Return whether there was one.

        It looks into at most `LOOKS_MAX` batches, from a random one on. One that another process has locked is passed
        over.
        """
        by_batch = self._table.by_batch
        batches = sorted(by_batch)
        first = int(self.store.entropy.random() * len(batches))
        for batch in (batches[first:] + batches[:first])[:LOOKS_MAX]:
            over = self._over(batch, [*by_batch.get(batch, {}).items()])
            if over and self._clear(over):
                return True
        return False

    def _over(self, batch: Batch, those: Sequence[tuple[int, LeaseSlot]]) -> list[tuple[int, LeaseSlot]]:
        """Return those slots of a batch whose leases are over, by its log. If there is none, end those first that have
        run out.
        """
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
                self._table.update(file.content())
                taken = self._table.taken
                self._put(file, {offset: FREE for offset, slot in over if taken.get(offset) == slot})
            return True
        except (LockTimeout, FileNotFoundError) as error:
            logger.debug("slots of %s are kept: %s", store.path, error)
            return False

    def _put(self, file: slot_files.SlotFile, changes: Mapping[int, bytes]) -> None:
        """Write records into the locked file. After an error it is read anew."""
        try:
            file.put(changes, self.store.sync_movements)
        except BaseException:
            self._table = SlotTable()
            raise
        self._table.write(changes)

    # -- under the lock of a batch -------------------------------------------------------------------

    def allowed(self, locked: LockedBatch, at: int, most: int) -> int:
        """Return how many tasks of a batch, of `most`, seem to be allowed: a hint, from the last look at the slots."""
        limits, self._found = self._limits, []
        if limits.max_leased is None:
            return most
        for is_last in (self._is_read, True):
            room = limits.max_leased - len(self._table.taken)
            self._found = self._ended(locked, at, most - room)
            if is_last or room + len(self._found) >= most:
                break
            self._read(limits)
        return max(0, min(most, room + len(self._found)))

    def take(
        self, locked: LockedBatch, at: int, tasks: list[int], make: Callable[[list[int]], list[NewLease]]
    ) -> list[NewLease]:
        """Write slots for tasks of a batch, and return their leases, which the caller records then: for as many tasks
        as the limits allow. [] if none is allowed, or the file of slots stays locked.

        As many slots of the batch's own leases are given back for that as are needed. Leases that have run out are
        ended first.
        """
        store, limits, table = self.store, self._limits, self._table
        self._has_leased = False
        try:
            with slot_files.locked(store, limits.epoch) as file:
                table.update(file.content())
                if not slot_files.is_whole(store, table.content):
                    return []
                room = len(tasks) if limits.max_leased is None else limits.max_leased - len(table.taken)
                found = [each for each in self._found if table.taken.get(each[0]) == each[1]]
                if room + len(found) < len(tasks):
                    found = self._ended(locked, at, len(tasks) - room)
                over = [each for each in found if each[2] is End.OVER]
                run_out = [each for each in found if each[2] is End.RUN_OUT][: max(0, len(tasks) - room - len(over))]
                leases = make(tasks[: room + len(over) + len(run_out)]) if room + len(over) + len(run_out) > 0 else []
                if leases and run_out:
                    end(locked, at, [slot for _, slot, _ in run_out])
                changes = {offset: FREE for offset, _, why in (*over, *run_out) if leases or why is End.OVER}
                new = [LeaseSlot(locked.batch, index, lease.id) for lease in leases for index in lease.tasks]
                mine = [(offset, slot) for slot, offset in zip(new, _places([*changes], table), strict=False)]
                changes |= {offset: slots.record(slot) for offset, slot in mine}
                self._put(file, changes)
                self._mine += mine
                self._has_leased = bool(leases)
                return leases
        except (LockTimeout, FileNotFoundError) as error:
            logger.debug("no task of %s is leased now: %s", store.path, error)
            return []

    def _ended(self, locked: LockedBatch, at: int, most: int) -> list[tuple[int, LeaseSlot, End]]:
        """Return slots of a locked batch whose leases do not hold any more, up to `most`. Those that have run out are
        the last ones.

        Some of those of this lessee are looked at in any case: the file would grow to the limit otherwise.
        """
        own = self._table.by_batch.get(locked.batch)
        if own is None:
            return []
        over: dict[int, tuple[int, LeaseSlot, End]] = {}
        run_out: dict[int, tuple[int, LeaseSlot, End]] = {}
        for offset, slot in self._likely(locked.batch, own, most):
            why = end_of(locked, at, slot)
            if why is not End.HELD:
                (over if why is End.OVER else run_out)[offset] = (offset, slot, why)
            if len(over) >= most > 0:
                break
        return [*over.values(), *[*run_out.values()][: max(0, most - len(over))]]

    def _likely(self, batch: Batch, own: dict[int, LeaseSlot], most: int) -> Iterator[tuple[int, LeaseSlot]]:
        """Yield slots of a batch: those first that this lessee has taken; all others, in turn from a random one on, if
        `most` are wanted and those do not do.
        """
        mine, seen = self._mine, set[int]()
        for _ in range(min(len(mine), max(0, most) + OWN_LOOKS)):
            offset, slot = mine.popleft()
            if self._table.taken.get(offset) == slot:
                mine.append((offset, slot))
                if slot.batch == batch:
                    seen.add(offset)
                    yield offset, slot
        if most > 0:
            others = [*own.items()]
            first = int(self.store.entropy.random() * len(others))
            for offset, slot in others[first:] + others[:first]:
                if offset not in seen:
                    yield offset, slot


def _places(given_back: Sequence[int], table: SlotTable) -> Iterator[int]:
    """Yield the offsets of places for new records: those that are given back; then others without a record."""
    yield from given_back
    yield from table.places()


def over_in(locked: LockedBatch, at: int, those: Sequence[tuple[int, LeaseSlot]]) -> list[tuple[int, LeaseSlot]]:
    """Return those slots of a locked batch whose leases are over. If there is none, end those that have run out, and
    return them."""
    ends = [(each, end_of(locked, at, each[1])) for each in those]
    over = [each for each, why in ends if why is End.OVER]
    if over:
        return over
    over = [each for each, why in ends if why is End.RUN_OUT]
    if over:
        end(locked, at, [slot for _, slot in over])
    return over


def end(locked: LockedBatch, at: int, run_out: Sequence[LeaseSlot]) -> None:
    """End leases that have run out, by a record. Their tasks wait again, and the attempt counts as of any such lease.

    Without the record they could hold again, beside the lease that gets the slot: a process whose clock is behind may
    renew them, and a log's time that was far ahead is set back.
    """
    replay_state = locked.replay_state
    tasks = sorted({slot.index for slot in run_out})
    versions = [replay_state.version[index] for index in tasks]
    locked.log.write(movements.change(at, tasks, versions, None, []))


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
    margin = min(locked.store.clock.margin_ms, holder.span // 10)
    return End.RUN_OUT if state.at >= until or until + margin <= at else End.HELD
