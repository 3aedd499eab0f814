"""Limits over all hosts: which leases count, and whether one more may be given (docs/decisions/0066-limits.md).

A slot is written before its lease, under the lock of the lease's batch. It is given back after the lease has ended,
once a process that needs it has seen that in the lease's log. So a crash leaves a slot too many, and never one too few.

Locks are taken in this order: a batch's log, then the file of slots. Under that one only the group's file of slots is
locked (`all_limits`).
"""

from __future__ import annotations

import errno
import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum

from fsqueue.clock import Clock
from fsqueue.errors import LockTimeout
from fsqueue.filesystem import LOST, NOT_FILES, either_of_two
from fsqueue.format import lease_rates, movements, names, slots, task_file
from fsqueue.format.layout import LeaseRate, QueueLimits
from fsqueue.format.names import Batch
from fsqueue.format.slots import FREE, Digests, LeaseSlot, SlotTable
from fsqueue.format.task_states import LEASED
from fsqueue.interruptions import let_out
from fsqueue.protocol import deciding
from fsqueue.protocol.shares import NewLease
from fsqueue.storage import record_times
from fsqueue.storage import slots as slot_files
from fsqueue.storage.locked_batch import BatchBusy, BatchGone, LockedBatch
from fsqueue.storage.logs import TAIL_BYTES
from fsqueue.storage.queue_file import FRESH_S
from fsqueue.storage.store import Store

logger = logging.getLogger("fsqueue")

SETTLE_S = 2.0
"""Seconds after which each process knows of limits that were set: it reads `queue.jsonl` again a second after the last
time, before it leases."""
LOOKS_MAX = 64
"""Maximum number of batches that a lease looks into for a slot that may be given back."""
VALUES_MAX = 64
"""Number of batches of which a lessee remembers what each task counts against, where fields have limits."""
KINDS_MAX = 16_384
"""Number of batches of which it remembers which values they have, while these are full."""
KINDS_S = 60.0
"""Time for which a process believes that the values of a batch are full (s): a payload may be replaced."""
LATER_S = 0.5
"""Maximum number of seconds by which a lessee asks later than the rate seems to have a token: they would all come at
once."""
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
        slot_files.make(store, limits.epoch, [name for name, _ in limits.fields], limits.counts)


def is_rate_used_up(store: Store) -> bool:
    """Return whether the rate of a queue allows no lease now, or did not up to `LATER_S` ago: lessees that wait for the
    rate may not have asked since. A hint. It reads one file, without its lock, if the queue has a rate.
    """
    limits = store.queue_state.limits
    if limits is None or limits.rate is None:
        return False
    return is_used_up(limits.rate, slot_files.read(store, limits.epoch), store.clock)


def is_used_up(rate: LeaseRate, content: bytes, clock: Clock) -> bool:
    """Return whether a rate allows no lease now, nor did a moment ago, by the content of its file of slots."""
    empty = lease_rates.empty_us(content)
    return empty is not None and not lease_rates.allowed(rate, empty, clock.now_ms() - int(LATER_S * 1000), 1)


class Limiter:
    """The limits of a queue, as one lessee looks at them. Not thread-safe."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._of_queue: Digests = ()
        """What the slots of this queue begin with, where those of others stand in the same file."""
        self._table = SlotTable()
        """The slots that the file had when it was read last."""
        self._mine: deque[tuple[int, LeaseSlot]] = deque()
        """The slots that this lessee has taken, each with its offset: those first at which it looks first."""
        self._found: list[tuple[int, LeaseSlot, End]] = []
        """The slots of the locked batch that `allowed` has found: their leases do not hold any more."""
        self._has_leased = False
        """True if the last look has given a task. Then the file of slots is there. The next look reads it only if it
        lacks a slot."""
        self._is_read = False
        """True if the file of slots was read in this look."""
        self._fields: tuple[tuple[str, int], ...] = ()
        """The fields that what is remembered of batches is about."""
        self._values: dict[Batch, list[Digests | None]] = {}
        """Values that the payloads of tasks count against, by batch and index; None: it was not decoded yet."""
        self._kinds: dict[Batch, tuple[frozenset[Digests], float]] = {}
        """Values that the tasks of a batch count against in which all were full; and the time until which that is
        believed."""
        self._most: dict[bytes, int] = {}
        """The limit of each digest that was met."""
        self.saw_full = False
        """True if the last look into a batch has met tasks whose values are full."""
        self._full: set[bytes] = set()
        """The digests that were full in the batch at hand."""
        self._room: dict[bytes, int] = {}
        """How many more tasks of each digest that was met in it seem to be allowed."""
        self._asked: set[bytes] = set()
        """The digests of which this look has tried to give slots back."""
        self._looks_left = LOOKS_MAX
        """Number of batches that this look may still open for a slot that may be given back."""
        self.is_by_field = False
        """True if the last `take` gave nothing since all its tasks have values that are full."""
        self.is_by_rate = False
        """Whether the last answer, that no task may be leased now, was due to the rate."""
        self._path = ""
        """The file of slots that is remembered: other limits have another one, and so has each generation."""

    @property
    def _limits(self) -> QueueLimits:
        return self.store.queue_file.state.limits or QueueLimits("")

    # -- the file of slots ----------------------------------------------------------------------------

    @property
    def by_fields(self) -> bool:
        """Return whether a field of payloads has a limit."""
        return bool(self._limits.fields)

    @property
    def limits(self) -> QueueLimits:
        """Return the limits as they were read last."""
        return self._limits

    def _path_of(self, limits: QueueLimits) -> str:
        return slot_files.path_of(self.store, limits.epoch)

    def _content(self, limits: QueueLimits) -> bytes:
        return slot_files.read(self.store, limits.epoch)

    def _locked(self, limits: QueueLimits) -> AbstractContextManager[slot_files.SlotFile]:
        return slot_files.locked(self.store, limits.epoch)

    def _is_whole(self) -> bool:
        return slot_files.is_whole(self.store, self._table.content)

    def _make_file(self, limits: QueueLimits) -> None:
        if not self._table.content:  # else the maker died, or the machine was booted: the limits were set long ago
            self.store.clock.sleep(SETTLE_S)
        slot_files.make(self.store, limits.epoch, [name for name, _ in limits.fields], limits.counts)

    def _slots_of(self, batch: Batch) -> dict[int, LeaseSlot]:
        """Return the slots of a batch of this queue, by their offsets."""
        return self._table.by_batch.get(batch, {})

    # -- before a look ------------------------------------------------------------------------------

    def has_room(self, current: Batch | None) -> bool:
        """Return whether it seems that one more task may be leased. True is a hint: `take` decides.

        False: as many as the limits allow were held a moment ago, in so far as a look into `LOOKS_MAX` batches can
        tell. Slots of the batch in hand do not count: they are looked at once it is locked.
        """
        limits = self._limits
        self._is_read = False
        self._asked.clear()
        self._looks_left = LOOKS_MAX
        if self._fields != limits.fields:
            self._fields = limits.fields
            self._values.clear()
            self._kinds.clear()
            self._most.clear()
        path = self._path_of(limits)
        if self._path != path:
            self._path, self._table, self._has_leased = path, SlotTable(), False
        if not self._may_begin(1):  # others only take tokens: what is known is the most that there may be
            if self._is_rate_wrong():
                self._mend_rate(limits)
            return False
        if self._has_leased and self._seems_to_have_room(limits, current):
            return True
        self._has_leased = False
        self._read(limits)
        if not self._is_whole() and not self._make(limits):
            return False
        return self._may_begin(1) > 0 and (self._seems_to_have_room(limits, current) or self.give_back())

    def _may_begin(self, most: int) -> int:
        """Return for how many leases, of `most`, the rate has tokens now, by what was read last: there are not more."""
        rate = self._limits.rate
        if rate is None:
            self.is_by_rate = False
            return most
        allowed = lease_rates.allowed(rate, self._empty_us, self.store.clock.now_ms(), most)
        assert allowed <= most, "the rate allows more leases than are asked for"
        self.is_by_rate = not allowed
        return allowed

    def _is_rate_wrong(self) -> bool:
        """Return whether the bucket was empty at a time that only a wrong clock can have told: it would stay so."""
        empty = self._empty_us
        return empty is not None and empty > self.store.clock.now_ms() * 1000 + lease_rates.APART_US

    def _mend_rate(self, limits: QueueLimits) -> None:
        """Have the bucket fill from now on, if it is told by a wrong clock still."""
        try:
            with self._locked(limits) as file:
                self._table.update(file.content())
                if self._is_rate_wrong():
                    now_us = self.store.clock.now_ms() * 1000
                    self._put(file, {lease_rates.RECORD_AT: lease_rates.record(now_us)})
        except (LockTimeout, FileNotFoundError) as error:
            logger.debug("the rate of %s is not set right now: %s", self.store.path, error)

    @property
    def _empty_us(self) -> int | None:
        """Return when the bucket of the rate was empty, by what was read last."""
        return lease_rates.empty_us(self._table.content)

    def due_s(self) -> float:
        """Return in how many seconds to ask again, if the rate has allowed nothing; infinity without a rate.

        Lessees that wait for one token ask at different times: the tokens of a second are kept.
        """
        rate = self._limits.rate
        if rate is None or not self.is_by_rate:
            return math.inf
        later_s = self.store.entropy.random() * min(LATER_S, max(LATER_S / 20, 1 / rate.per_s))
        return lease_rates.wait_s(rate, self._empty_us, self.store.clock.now_ms()) + later_s

    def _seems_to_have_room(self, limits: QueueLimits, current: Batch | None) -> bool:
        """Return whether fewer slots have a record than leases are allowed, but for those of the batch in hand."""
        table = self._table
        own = len(self._slots_of(current)) if current is not None else 0
        return limits.max_leased is None or len(table.taken) - own < limits.max_leased

    def _make(self, limits: QueueLimits) -> bool:
        """Make the file of slots, if no process does, once all know of the limits. Return whether it is there."""
        try:
            self._make_file(limits)
        except LockTimeout as error:
            logger.debug("no task of %s is leased yet: %s", self.store.path, error)
            return False
        self._read(limits)
        return self._is_whole()

    def _read(self, limits: QueueLimits) -> None:
        self._table.update(self._content(limits))
        self._is_read = True

    # -- slots that are not needed any more -----------------------------------------------------------

    def give_back(self) -> bool:
        """Give back the slots of a batch whose leases do not hold any more. Return whether there was one.

        It looks into at most `LOOKS_MAX` batches, from a random one on. One that another process has locked is passed
        over.
        """
        if self.is_by_rate:
            return False  # a place would not help
        by_batch = self._table.by_batch
        batches = sorted(by_batch)
        first = int(self.store.entropy.random() * len(batches))
        for batch in (batches[first:] + batches[:first])[:LOOKS_MAX]:
            over = self._over(batch, [*by_batch.get(batch, {}).items()])
            if over and self._clear(over):
                return True
        return False

    def give_back_of(self, full: Collection[bytes]) -> bool:
        """Give back slots of these digests whose leases do not hold any more. Return whether there was one.

        Each digest is tried once in a look, and `LOOKS_MAX` batches are opened in it at most.
        """
        found = False
        for digest in sorted({*full} - self._asked):
            self._asked.add(digest)
            by_batch: dict[Batch, list[tuple[int, LeaseSlot]]] = {}
            for offset, slot in self._table.by_digest.get(digest, {}).items():
                by_batch.setdefault(slot.batch, []).append((offset, slot))
            for batch in self.store.entropy.shuffled(sorted(by_batch)):
                if self._looks_left <= 0:
                    return found
                self._looks_left -= 1
                over = self._over(batch, by_batch[batch])
                found |= bool(over) and self._clear(over)
        return found

    def _over(self, batch: Batch, those: Sequence[tuple[int, LeaseSlot]]) -> list[tuple[int, LeaseSlot]]:
        """Return those slots of a batch whose leases are over, by its log. If there is none, end those first that have
        run out.
        """
        return self._over_in(self.store, batch, those)

    def _over_in(
        self, store: Store, batch: Batch, those: Sequence[tuple[int, LeaseSlot]]
    ) -> list[tuple[int, LeaseSlot]]:
        try:
            with LockedBatch(store, batch, 0) as locked:
                over = over_in(locked, record_times.next_at(locked), those)
                wanted = locked.undecided()
            if wanted:  # a lease that an update has counts as held until that is decided
                deciding.decide(store, batch, wanted, 0.0)
            return over
        except BatchBusy:
            return []
        except BatchGone:
            return [*those]
        except FileNotFoundError:
            return [*those] if _is_absent(store, batch) else []
        except OSError as error:
            let_out(error)
            if error.errno not in (*LOST, *NOT_FILES):
                raise
            logger.debug("slots of batch %s of %s are kept: %s", batch, store.path, error)
            return []

    def _clear(self, over: Sequence[tuple[int, LeaseSlot]]) -> bool:
        """Take the records of these slots out of the file, if they are there still. Return whether it was done."""
        store, limits = self.store, self._limits
        try:
            with self._locked(limits) as file:
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
        most = self._may_begin(most)
        if not most:
            return 0
        if limits.max_leased is None:
            if limits.fields and not self._is_read:
                self._read(limits)
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
        self._has_leased = self.is_by_field = False
        try:
            with self._locked(limits) as file:
                table.update(file.content())
                if not self._is_whole() or not self._are_current(limits):
                    return []
                now_ms, empty_us = store.clock.now_ms(), self._empty_us
                tasks = tasks[: self._may_begin(len(tasks))]
                if not tasks:
                    return []
                room = len(tasks) if limits.max_leased is None else limits.max_leased - len(table.taken)
                found = [each for each in self._found if table.taken.get(each[0]) == each[1]]
                if room + len(found) < len(tasks):
                    found += [each for each in self._ended(locked, at, len(tasks) - room) if each not in found]
                if found:
                    _prove_lock(locked)
                over = [each for each in found if each[2] is End.OVER]
                run_out = [each for each in found if each[2] is End.RUN_OUT]
                if limits.fields:
                    counts = self._digests_of(locked, tasks)
                    allowed, run_out = self._fitting(limits, tasks, counts, over, run_out)
                    self.is_by_field = not allowed
                else:
                    counts = {}
                    run_out = run_out[: max(0, len(tasks) - room - len(over))]
                    allowed = tasks[: max(0, room + len(over) + len(run_out))]
                leases = make(allowed) if allowed else []
                if leases and run_out:
                    end(locked, at, [slot for _, slot, _ in run_out])  # some are over by now: `make` has ended them
                changes = {offset: FREE for offset, _, why in (*over, *run_out) if leases or why is End.OVER}
                new = [
                    LeaseSlot(locked.batch, index, lease.id, self._of_queue + counts.get(index, ()))
                    for lease in leases
                    for index in lease.tasks
                ]
                begun = len(new)
                if not limits.counts:
                    new.clear()
                mine = [(offset, slot) for slot, offset in zip(new, _places([*changes], table), strict=False)]
                changes |= {offset: slots.record(slot) for offset, slot in mine}
                if limits.rate is not None and begun:
                    left = lease_rates.without(limits.rate, empty_us, now_ms, begun)
                    changes[lease_rates.RECORD_AT] = lease_rates.record(left)
                self._put(file, changes)
                self._mine += mine
                self._has_leased = bool(leases)
                return leases
        except (LockTimeout, FileNotFoundError) as error:
            logger.debug("no task of %s is leased now: %s", store.path, error)
            return []

    def _are_current(self, limits: QueueLimits) -> bool:
        """Return whether these are the limits of the queue, as of a second ago at most.

        The look may have taken long by now: it has waited for a batch, or until all know of a limit. Meanwhile a limit
        by another field may have begun, which counts in another file.
        """
        store = self.store
        if store.clock.monotonic() - store.queue_file.read_at <= FRESH_S:
            return True
        generation = store.queue_state.generation
        store.refresh(now=True)
        return store.queue_state.limits == limits and store.queue_state.generation == generation

    def _fitting(
        self,
        limits: QueueLimits,
        tasks: Sequence[int],
        counts: Mapping[int, Digests],
        over: Sequence[tuple[int, LeaseSlot, End]],
        run_out: Sequence[tuple[int, LeaseSlot, End]],
    ) -> tuple[list[int], list[tuple[int, LeaseSlot, End]]]:
        """Return those tasks for which there is room under each limit, in their order; and the leases that have run out
        that must be ended for them. `over`: slots that are given back in any case.
        """
        table, most = self._table, self._most
        left = {digest: len(those) for digest, those in table.by_digest.items()}
        total = len(table.taken) - len(over)
        for _, slot, _ in over:
            for digest in slot.digests:
                left[digest] -= 1
        allowed: list[int] = []
        spare, ended = [*run_out], list[tuple[int, LeaseSlot, End]]()
        for index in tasks:
            chosen: list[tuple[int, LeaseSlot, End]] = []
            gained, places = dict[bytes, int](), 0
            is_full_at = limits.max_leased is not None and total >= limits.max_leased
            for digest in counts[index]:
                if left.get(digest, 0) - gained.get(digest, 0) >= most[digest]:
                    found = next((one for one in spare if one not in chosen and digest in one[1].digests), None)
                    if found is None:
                        break
                    chosen.append(found)
                    places += 1
                    for each in found[1].digests:
                        gained[each] = gained.get(each, 0) + 1
            else:
                if is_full_at and not places:
                    found = next(iter(spare), None)
                    if found is None:
                        break  # no task has room
                    chosen.append(found)
                for one in chosen:
                    spare.remove(one)
                    ended.append(one)
                    total -= 1
                    for each in one[1].digests:
                        left[each] -= 1
                total += 1
                for digest in counts[index]:
                    left[digest] = left.get(digest, 0) + 1
                allowed.append(index)
        return allowed, ended

    # -- limits by fields of payloads ----------------------------------------------------------------

    def begin_batch(self) -> None:
        """Forget which values were full in the batch that was looked into last."""
        self._full, self._room = set(), {}
        self.saw_full = False

    def is_task_full(self, locked: LockedBatch, at: int, index: int) -> bool:
        """Return whether a task of a locked batch has a value for which there seems to be no room. `take` decides. What
        was full is known afterwards: `saw_full`, `give_back_of_batch`.
        """
        room, found = self._room, self._digests(locked, index)
        for digest in found:
            if digest not in room:
                room[digest] = self._room_of(digest, locked, at)
        full = [digest for digest in found if room[digest] <= 0]
        self._full.update(full)
        self.saw_full = self.saw_full or bool(full)
        return bool(full)

    def count(self, locked: LockedBatch, index: int) -> None:
        """Count a task of a locked batch as taken, until `begin_batch`."""
        for digest in self._digests(locked, index):
            self._room[digest] -= 1

    def _room_of(self, digest: bytes, locked: LockedBatch, at: int) -> int:
        """Return how many more tasks of a value may be leased, if leases of the batch that do not hold are given up."""
        those = self._table.by_digest.get(digest, {})
        room = self._most[digest] - len(those)
        own = self._slots_of(locked.batch)
        for offset, slot in those.items():
            if offset in own and (why := end_of(locked, at, slot)) is not End.HELD:
                room += 1
                if (offset, slot, why) not in self._found:
                    self._found.append((offset, slot, why))
        return room

    def remember(self, locked: LockedBatch) -> None:
        """Remember what the unfinished tasks of a batch count against, in which all were full: until a payload may have
        been replaced. Nothing can be inserted into the batch.
        """
        state = locked.replay_state
        kinds = frozenset(self._digests(locked, index) for index, one in enumerate(state.state) if one <= LEASED)
        while len(self._kinds) >= KINDS_MAX:
            del self._kinds[next(iter(self._kinds))]
        self._kinds[locked.batch] = kinds, self.store.clock.monotonic() + KINDS_S

    def is_full(self, batch: Batch) -> bool:
        """Return whether all tasks of a batch have values that are full, as far as that is remembered. Slots of these
        values that are of no use are given back first.
        """
        kinds, until = self._kinds.get(batch, (frozenset[Digests](), 0.0))
        if not kinds or self.store.clock.monotonic() >= until:
            return False
        full = self._full_of(kinds)
        if full and self.give_back_of(full):
            full = self._full_of(kinds)
        return bool(full)

    def _full_of(self, kinds: Collection[Digests]) -> set[bytes]:
        """Return the digests that are full, if each of these kinds of tasks has one of them."""
        full: set[bytes] = set()
        for kind in kinds:
            mine = {digest for digest in kind if len(self._table.by_digest.get(digest, ())) >= self._most[digest]}
            if not mine:
                return set()
            full |= mine
        return full

    def may_give_back(self) -> bool:
        """Return whether a value that was full in the batch at hand was not asked for yet in this look."""
        return self._looks_left > 0 and not self._full <= self._asked

    def give_back_of_batch(self) -> bool:
        """Give back slots of the values that were full in the batch that was looked into last: see `give_back_of`."""
        return self.give_back_of(self._full)

    def _digests_of(self, locked: LockedBatch, indices: Iterable[int]) -> dict[int, Digests]:
        return {index: self._digests(locked, index) for index in indices}

    def _digests(self, locked: LockedBatch, index: int) -> Digests:
        """Return the digests of the values that a task of a locked batch counts against. A line that cannot be read
        counts against nothing: its task is buried."""
        payloads = locked.replay_state.payloads
        if payloads and index in payloads:
            return self._counted(payloads[index])
        values = self._values.get(locked.batch)
        if values is None:
            while len(self._values) >= VALUES_MAX:
                del self._values[next(iter(self._values))]
            values = self._values[locked.batch] = []
        values.extend([None] * (index + 1 - len(values)))
        known = values[index]
        if known is None:
            lines = locked.read_lines() if locked.log.lines is None else locked.log.lines
            try:
                payload = None if lines is None else task_file.decode_task(lines[index])["payload"]
            except (ValueError, LookupError, TypeError):
                payload = None
            known = values[index] = self._counted(payload)
        return known

    def _counted(self, payload: object) -> Digests:
        found = slots.digests(payload, [name for name, _ in self._fields])
        for name, most in self._fields:
            if name in found:
                self._most[found[name]] = most
        return tuple(found.values())

    def _ended(self, locked: LockedBatch, at: int, most: int) -> list[tuple[int, LeaseSlot, End]]:
        """Return slots of a locked batch whose leases do not hold any more, up to `most`. Those that have run out are
        the last ones.

        Some of those of this lessee are looked at in any case: the file would grow to the limit otherwise.
        """
        own = self._slots_of(locked.batch)
        if not own:
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
                if offset in own:
                    seen.add(offset)
                    yield offset, slot
        if most > 0:
            others = [*own.items()]
            first = int(self.store.entropy.random() * len(others))
            for offset, slot in others[first:] + others[:first]:
                if offset not in seen:
                    yield offset, slot


def _prove_lock(locked: LockedBatch) -> None:
    """Prove that the log of a batch is locked still, before slots are given back by what it said. OSError if not.

    A client of a file server may have lost its locks since it read the log. Another process may have leased from the
    batch then: its slot looks like one whose lease was never recorded. To lock once more asks the server, which refuses
    it while another process holds the lock. Afterwards that process's record is read.
    """
    fs, log = locked.store.fs, locked.log
    if fs.shared and (not fs.try_lock(log.fd) or fs.pread(log.fd, TAIL_BYTES, log.end + log.torn)):
        raise OSError(errno.ESTALE, "the lock was lost", log.path)


def _is_absent(store: Store, batch: Batch) -> bool:
    """Return whether a batch has no log any more. An NFS client may say so wrongly while its server restarts."""
    layout = store.layout
    directory = f"{layout.logs}/{layout.shard(batch)}"
    return names.log_file(batch) not in either_of_two(lambda: store.fs.names(directory, True))


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
    tasks = sorted({slot.index for slot in run_out if replay_state.named_by([slot.index], slot.lease)})
    if not tasks:
        return
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
