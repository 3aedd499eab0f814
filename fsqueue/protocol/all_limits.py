"""All limits that count for a queue: its own, and those of its group (docs/decisions/0078-limits-of-a-group.md).

Locks are taken in this order: a batch's log, the queue's file of slots, the group's file of slots. No other lock is
taken under these.
"""

from __future__ import annotations

import logging
import math
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial

from fsqueue.errors import FsqueueError, GroupNotFound, NotAQueue, QueueNotFound, StorageError
from fsqueue.format import slots
from fsqueue.format.groups import GROUP_FILE, slots_file
from fsqueue.format.layout import QueueLimits
from fsqueue.format.names import Batch, QueueDirectory
from fsqueue.format.slots import LeaseSlot
from fsqueue.interruptions import let_out, suppress
from fsqueue.protocol.limiting import SETTLE_S, Limiter, is_used_up
from fsqueue.protocol.shares import NewLease
from fsqueue.storage import group_slots
from fsqueue.storage import slots as slot_files
from fsqueue.storage.decisions import OutOfGroup, group_of
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.group_slots import Clocks
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.queue_file import FRESH_S
from fsqueue.storage.store import Store, domain_of

logger = logging.getLogger("fsqueue")

HAS_LIMITS = "limits of its group"
"""What a queue has, for the text of `OutOfGroup`."""


def begin_in(group: GroupDirectory, by: Clocks, own: Store | None = None) -> None:
    """Have limits of a group hold: mark all of its queues; once all processes know of that, make the file of slots.

    If its process dies before, the next lessee does it. `own`: its queue, which is open. LockTimeout if a file stays
    locked: then that one does it, too.
    """
    limits = group.read_anew().limits
    if limits is not None and not group_slots.is_whole(domain_of(group.fs), group_slots.read(group, limits.epoch)):
        group_slots.mark_all(group, by)
        by.clock.sleep(SETTLE_S)  # since the last mark, of this process or another one
        group_slots.make(group, by, limits, own)


def limits_of_group(store: Store) -> QueueLimits | None:
    """Return the limits of the group of a queue, as its file says now; None if they do not count for the queue. A hint:
    also None for a queue that was moved out of its group, or that nobody can ask.
    """
    if store.queue_state.has_group_limits:
        with suppress(FsqueueError, OSError):
            return group_of(store, HAS_LIMITS).read_anew().limits
    return None


def holding_up(store: Store) -> QueueLimits | None:
    """Return the limits of the group of a queue, if tasks may wait for these now; None if not. A hint, by one look at
    the slots: some of them may be of leases that are over.
    """
    limits = limits_of_group(store)
    if limits is None:
        return None
    content = group_slots.read(group_of(store, HAS_LIMITS), limits.epoch)
    held = sum(1 for _ in slots.each(content))
    holds = (limits.max_leased is not None and held >= limits.max_leased) or (limits.fields and held)
    holds = holds or (limits.rate is not None and is_used_up(limits.rate, content, store.clock))
    return limits if holds else None


class GroupLimiter(Limiter):
    """The limits of the group that a queue lies in, as one lessee of the queue looks at them. Not thread-safe.

    The slots of all queues of the group stand in one file, in the group's directory. Nothing is written there before
    it is proven, a second ago at most, that the queue lies in the group in which it was made.
    """

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._group: GroupDirectory | None = None
        self._domain = ""
        """The domain of the group's filesystem: see `Store.domain`."""
        self._read_at = -math.inf
        """When the group's file was read last (monotonic clock)."""
        self._known: QueueLimits | None = None
        self._by = Clocks(store.clock, store.entropy)
        self._directories: dict[bytes, QueueDirectory] = {}
        """The directories of queues of the group, by their digests."""

    @property
    def _limits(self) -> QueueLimits:
        return self._known or QueueLimits("")

    @property
    def is_over(self) -> bool:
        """Return whether the group has no limits any more, as far as this lessee has looked."""
        return self._group is not None and self._known is None

    def look(self) -> None:
        """Read the group's file, unless it was read within the last second: it says which limits there are.

        OutOfGroup if the queue was moved out of its group; StorageError if the group's limits are lost.
        """
        store = self.store
        if self._group is not None and store.clock.monotonic() - self._read_at <= FRESH_S:
            return
        began = store.clock.monotonic()
        group = group_of(store, HAS_LIMITS)
        state = group.read_anew()
        if not state.had_limits:
            raise StorageError(
                f"The group {group.path} had limits, and its {GROUP_FILE} says of none: it was written anew. No task "
                f"of {store.path} was leased. Set them again, or say that there are none: fsqueue set "
                f"{shlex.quote(group.path)} max_leased=none"
            )
        directory = store.directory_in_group
        assert directory is not None, "it was found in the group by that name"
        if group is not self._group:
            self._of_queue, self._domain = (group_slots.digest_of(directory),), domain_of(group.fs)
        self._group, self._known, self._read_at = group, state.limits, began

    @property
    def _in(self) -> GroupDirectory:
        assert self._group is not None, "`look` comes first"
        return self._group

    def has_room(self, current: Batch | None) -> bool:
        """Return whether it seems that one more task may be leased: see `Limiter`. Errors as `look`."""
        self.look()
        return self._known is None or super().has_room(current)

    def allowed(self, locked: LockedBatch, at: int, most: int) -> int:
        """Return how many tasks of a batch, of `most`, seem to be allowed: see `Limiter`."""
        if self._group is None:
            return 0  # the queue was marked during this look
        return most if self._known is None else super().allowed(locked, at, most)

    def _path_of(self, limits: QueueLimits) -> str:
        return slots_file(self._in.path, limits.epoch)

    def _content(self, limits: QueueLimits) -> bytes:
        return group_slots.read(self._in, limits.epoch)

    def _locked(self, limits: QueueLimits) -> AbstractContextManager[slot_files.SlotFile]:
        return group_slots.locked(self._in, self._by, limits.epoch)

    def _is_whole(self) -> bool:
        return group_slots.is_whole(self._domain, self._table.content)

    def _make_file(self, limits: QueueLimits) -> None:
        begin_in(self._in, self._by, self.store)

    def _are_current(self, limits: QueueLimits) -> bool:
        """Return whether these are the limits of the group, as of a second ago at most: see `Limiter`."""
        try:
            self.look()
        except (OutOfGroup, GroupNotFound) as error:
            logger.debug("no task of %s is leased now: %s", self.store.path, error)
            self._read_at = -math.inf  # the next look tells
            return False
        return self._known == limits

    def _slots_of(self, batch: Batch) -> dict[int, LeaseSlot]:
        # A queue that was copied within its group has batches of the same names.
        those = self._table.by_batch.get(batch, {})
        return {offset: slot for offset, slot in those.items() if slot.digests[:1] == self._of_queue}

    def _over(self, batch: Batch, those: Sequence[tuple[int, LeaseSlot]]) -> list[tuple[int, LeaseSlot]]:
        """Return those slots of a batch whose leases are over, in whichever queue of the group it is: see `Limiter`."""
        by_queue: dict[bytes, list[tuple[int, LeaseSlot]]] = {}
        for offset, slot in those:
            by_queue.setdefault(slot.digests[0] if slot.digests else b"", []).append((offset, slot))
        over: list[tuple[int, LeaseSlot]] = []
        for digest, mine in by_queue.items():
            over += self._over_of(digest, batch, mine)
        return over

    def _over_of(
        self, digest: bytes, batch: Batch, those: Sequence[tuple[int, LeaseSlot]]
    ) -> list[tuple[int, LeaseSlot]]:
        """Return those slots of a queue's batch whose leases are over. All are, if the queue is not in the group."""
        if (digest,) == self._of_queue:
            # The slots, which were read before, may be of a generation that this process does not know yet.
            self.store.refresh(now=True)
            return self._over_in(self.store, batch, those)
        group = self._in
        try:
            directory = self._directories.get(digest)
            if directory is None or not group.is_there(directory):
                directory = group_slots.directory_with(group, digest)
                if directory is None:
                    return [*those]
                self._directories[digest] = directory
            with group_slots.opened(group, directory, None) as store:
                return [*those] if store is None else self._over_in(store, batch, those)
        except QueueNotFound:
            return [*those]  # it was deleted just now
        except NotAQueue as error:
            logger.debug("slots of %s are kept: %s", group.path, error)
            return []
        except (FsqueueError, OSError) as error:
            let_out(error)
            logger.debug("slots of %s are kept: %s", group.path, error)
            return []


class AllLimits:
    """All limits that count for one queue, as one lessee looks at them: its own, and those of its group. Not
    thread-safe.

    A task is leased if both have room for it. The slots of both are written before the lease.
    """

    def __init__(self, store: Store) -> None:
        self.store = store
        self._own = Limiter(store)
        self._group: GroupLimiter | None = None
        self.full: QueueLimits | None = None
        """The limits that have allowed no lease when they were asked last; None: there was room, or tasks had values
        that are full."""

    def _each(self) -> list[Limiter]:
        """Return the limits that count, by what is known of them: in the order in which their files are locked."""
        state = self.store.queue_file.state
        found = [] if state.limits is None else [self._own]
        if state.has_group_limits:
            if self._group is None:
                self._group = GroupLimiter(self.store)
            if not self._group.is_over:
                found.append(self._group)
        return found

    def holding_up(self) -> QueueLimits | None:
        """Return the limits that hold up the last look, to be told to users."""
        each = self._each()
        found = next((one for one in each if one.limits == self.full or one.saw_full), next(iter(each), None))
        return None if found is None else found.limits

    @property
    def by_fields(self) -> bool:
        """Return whether a field of payloads has a limit."""
        return any(one.by_fields for one in self._each())

    def has_room(self, current: Batch | None) -> bool:
        """Return whether it seems that one more task may be leased. True is a hint: `take` decides. Errors as
        `GroupLimiter.look`.
        """
        self.full = None
        if self._group is not None and self.store.queue_file.state.has_group_limits:
            self._group.look()  # they may have begun anew
        return self._is_allowed(self._each(), lambda one: one.has_room(current))

    def _is_allowed(self, each: Iterable[Limiter], ask: Callable[[Limiter], object]) -> bool:
        for one in each:
            if not ask(one):
                self.full = one.limits
                return False
        return True

    def due_s(self) -> float:
        """Return in how many seconds to ask again, if a rate has allowed nothing; infinity without one."""
        return min((one.due_s() for one in self._each()), default=math.inf)

    def allowed(self, locked: LockedBatch, at: int, most: int) -> int:
        """Return how many tasks of a batch, of `most`, seem to be allowed: a hint, from the last look at the slots."""
        for one in self._each():
            most = one.allowed(locked, at, most)
            if not most:
                self.full = one.limits
                break
        return most

    def take(
        self, locked: LockedBatch, at: int, tasks: list[int], make: Callable[[list[int]], list[NewLease]]
    ) -> list[NewLease]:
        """Write slots for tasks of a batch, and return their leases, which the caller records then: see `Limiter.take`.

        The slots of the group are written first, under the lock of the queue's: then those of what was allowed there.
        """
        for one in reversed(self._each()):
            make = partial(self._take, one, locked, at, make)
        return make(tasks)

    def _take(
        self,
        one: Limiter,
        locked: LockedBatch,
        at: int,
        make: Callable[[list[int]], list[NewLease]],
        tasks: list[int],
    ) -> list[NewLease]:
        is_asked, self.full = False, None

        def make_of(those: list[int]) -> list[NewLease]:
            nonlocal is_asked
            is_asked = True
            return make(those)

        leases = one.take(locked, at, tasks, make_of)
        if not leases and not is_asked:
            self.full = one.limits
        return leases

    @property
    def is_by_field(self) -> bool:
        """True if the last `take` gave nothing since all its tasks have values that are full."""
        return any(one.is_by_field for one in self._each() if one.limits == self.full)

    def give_back(self) -> bool:
        """Give back slots of the limits that have allowed no lease: see `Limiter.give_back`."""
        return any(one.give_back() for one in self._each() if one.limits == self.full)

    def with_room(self, locked: LockedBatch, at: int, indices: Iterable[int]) -> Iterator[int]:
        """Yield those tasks of a locked batch, of the ones given, for which there seems to be room. `take` decides.

        A task that is yielded counts as taken from then on. Only tasks are yielded that may be leased now. What was
        full is known afterwards: `saw_full`, `give_back_of_batch`.
        """
        state, margin, each = locked.replay_state, self.store.clock.margin_ms, self._each()
        for one in each:
            one.begin_batch()
        each = [one for one in each if one.by_fields]
        for index in indices:
            if not state.may_be_taken(index, at, margin):
                continue
            is_full = [one.is_task_full(locked, at, index) for one in each]  # each notes what is full
            if any(is_full):
                continue
            for one in each:
                one.count(locked, index)
            yield index

    @property
    def saw_full(self) -> bool:
        """Return whether the last look into a batch has met tasks whose values are full."""
        return any(one.saw_full for one in self._each())

    def remember(self, locked: LockedBatch) -> None:
        """Remember what the tasks of a batch count against, in which all were full: see `Limiter.remember`."""
        for one in self._each():
            if one.by_fields:
                one.remember(locked)

    def is_full(self, batch: Batch) -> bool:
        """Return whether all tasks of a batch have values that are full: see `Limiter.is_full`."""
        for one in self._each():
            if one.by_fields and one.is_full(batch):
                self.full = one.limits
                return True
        return False

    def may_give_back(self) -> bool:
        """Return whether a value that was full in the batch at hand was not asked for yet in this look."""
        return any(one.may_give_back() for one in self._each())

    def give_back_of_batch(self) -> bool:
        """Give back slots of the values that were full in the batch that was looked into last."""
        found = [one.give_back_of_batch() for one in self._each()]  # of each, also if one has given some
        return any(found)
