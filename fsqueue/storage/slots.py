"""The file of slots of a queue with limits (docs/format.md, "Slots"; docs/decisions/0066-limits.md).

A lease that is in no log may have a slot. A lease that is held always has one. `protocol.limiting` keeps it so.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

from fsqueue.filesystem import Filesystem
from fsqueue.format import names, slots
from fsqueue.format.names import Batch
from fsqueue.format.replay import ReplayState
from fsqueue.format.slots import FREE, RECORD_BYTES, LeaseSlot
from fsqueue.format.task_states import LEASED
from fsqueue.interruptions import let_out, suppress
from fsqueue.storage import journals, listing
from fsqueue.storage.journals import IN_PLACE, Journal
from fsqueue.storage.locked_batch import BatchGone, LockedBatch
from fsqueue.storage.store import Store

WAIT_S = 2.0
"""Seconds to wait for a file of slots that another process has locked: it does so for a few system calls."""


class SlotFile(Journal):
    """The locked file of slots of a queue."""

    __slots__ = ()

    def content(self) -> bytes:
        """Return the content of the file of slots."""
        return self.fs.pread(self.fd, self.length(), 0)

    def put(self, changes: Mapping[int, bytes], durably: bool) -> None:
        """Write records at their offsets, in place. After an error any of them may be there."""
        self.size = None
        for offset, data in _adjacent_runs(changes):
            if self.fs.pwrite(self.fd, data, offset) != len(data):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), self.path)
        if durably:  # on a shared mount: else nobody learns that the lock was lost
            self.fs.fsync(self.fd)


def _adjacent_runs(changes: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield the records with their offsets, those that stand beside each other as one."""
    begin, run = 0, b""
    for offset in sorted(changes):
        if run and offset == begin + len(run):
            run += changes[offset]
            continue
        assert offset >= begin + len(run), "a record would overwrite the one before it"
        if run:
            yield begin, run
        begin, run = offset, changes[offset]
    if run:
        yield begin, run


def path_of(store: Store, epoch: str) -> str:
    """Return the path of the file of the limits that have begun under this id, in the present generation."""
    return store.layout.slots(epoch)


def read(store: Store, epoch: str) -> bytes:
    """Return the content of the file, without its lock. It may be old by the time that it is used. b"" without one."""
    return content_at(store.fs, path_of(store, epoch))


def content_at(fs: Filesystem, path: str) -> bytes:
    """Return the content of a file of slots, without its lock; b"" if there is none. OSError, which names the path."""
    try:
        with fs.closing(fs.look_anew(path)) as fd:
            return fs.pread(fd, fs.fstat(fd).st_size, 0)
    except FileNotFoundError:
        return b""
    except OSError as error:
        let_out(error)
        error.filename = error.filename or path  # a read names no file: of a directory in its place, for example
        raise


def is_whole(store: Store, content: bytes | bytearray) -> bool:
    """Return whether all leases that are held have a slot in the file.

    Not if its maker has died, or if the machine was booted since: a power loss may have taken records that were not
    synced.
    """
    return content.startswith(slots.header(store.domain)[: slots.HEADER_BYTES])


@contextmanager
def locked(store: Store, epoch: str, wait_s: float = WAIT_S) -> Iterator[SlotFile]:
    """Lock the file. LockTimeout; FileNotFoundError if it was not made yet, or the generation has ended."""
    path = path_of(store, epoch)
    with journals.locked(
        SlotFile, store.fs, store.clock, store.entropy, path, wait_s, IN_PLACE, openings_max=0
    ) as file:
        yield file


def prepare(store: Store) -> None:
    """Make the directory for files of slots in the present generation. OSError."""
    store.making_generation(lambda: store.fs.make_directory_for_owner(store.layout.limits))


def make(store: Store, epoch: str, fields: Collection[str] = (), counts: bool = True) -> None:
    """Make the file whole: with a slot for each lease that is held. Errors as `locked`. `fields`: those of payloads
    that have a limit. `counts`: whether leases need slots; with a rate alone they do not.

    Call it when all processes know of the limits: then none leases without a slot. The header comes last. If the maker
    dies before it, the next one begins anew.
    """
    prepare(store)
    store.making_generation(lambda: store.fs.make_file_for_owner(path_of(store, epoch)))
    # Before the lock, under which no other may be taken. As long as the file is not whole, no lease is added.
    held = held_now(store, fields) if counts else ()
    with locked(store, epoch) as file:
        fill(file, held, store.domain, durably=store.sync_movements)


def fill(file: SlotFile, held: Sequence[LeaseSlot], domain: str, durably: bool) -> None:
    """Write the slots of leases that are held into a locked file, and then its header; unless another process has."""
    content = file.content()
    if content.startswith(slots.header(domain)[: slots.HEADER_BYTES]):
        return
    changes = dict.fromkeys(range(0, max(1, len(content)), RECORD_BYTES), FREE)
    for number, slot in enumerate(held, 1):
        changes[number * RECORD_BYTES] = slots.record(slot)
    file.put(changes, durably=durably)
    file.put({0: slots.header(domain)}, durably=durably)


def held_now(store: Store, fields: Collection[str]) -> Sequence[LeaseSlot]:
    """Return a slot for each task that a lease holds, by what the logs say. One that an update has counts as held.

    LockTimeout if a payload is to be read, and its batch stays locked.
    """
    found = []
    for batch in listing.with_logs(store, every_shard=store.fs.shared):
        state = listing.read_own_state(store, batch)
        held = held_in(state, batch) if state is not None else []
        if held and fields:
            with suppress(BatchGone, FileNotFoundError), LockedBatch(store, batch, WAIT_S) as locked:
                found += with_digests(locked, fields)
        else:
            found += held
    return found


def held_in(state: ReplayState, batch: Batch) -> list[LeaseSlot]:
    """Return a slot for each task of a batch that a worker's lease has, by the state of its log: be it in time or not.

    None for tasks that move to another queue: nobody executes them.
    """
    holders = ((index, state.holder[index]) for index in sorted(state.touched) if state.state[index] == LEASED)
    return [LeaseSlot(batch, index, lease.id) for index, lease in holders if lease is not None and lease.move is None]


def with_digests(locked: LockedBatch, fields: Collection[str]) -> list[LeaseSlot]:
    """Return a slot for each task of a locked batch that a lease has, with digests of its payload as that is now."""
    held = held_in(locked.replay_state, locked.batch)
    return [slot._replace(digests=tuple(slots.digests(locked.payload(slot.index), fields).values())) for slot in held]


def forget(store: Store) -> None:
    """Remove the files of limits that have ended. Those that begin meanwhile have a new name."""
    fs, layout = store.fs, store.layout
    there = [name for name in fs.names(layout.limits) if names.is_slot_file(name)]
    if not there:
        return
    store.refresh(now=True)  # after the listing: what it names was there before
    limits = store.queue_state.limits
    for name in there:
        if (limits is None or name != names.slot_file(limits.epoch)) and layout is store.layout:
            fs.unlink(f"{layout.limits}/{name}")
