"""Count completed tasks: one byte a task, appended under a lock to one of several files (docs/format.md, "Counters").

A process may crash after it has appended a batch's bytes, and before it has removed the batch. The batch must not be
counted again then. So its log names the offset of the bytes beforehand, and no other batch ever names that offset
(docs/decisions/0004-counting.md).

A batch that ends without a completed task leaves no such bytes. If a task of it was cancelled, one byte is appended to
a file of its own: it counts nothing, but "drained" looks at its size (docs/design.md, section 6.1).
"""

from __future__ import annotations

import errno
import hashlib
import stat
from collections.abc import Mapping

from fsqueue.errors import LockTimeout
from fsqueue.filesystem import NOT_FILES, PassingOverStrays
from fsqueue.format import names
from fsqueue.format.layout import COUNTERS, Layout
from fsqueue.format.names import CounterName
from fsqueue.interruptions import suppress
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.store import Store

OFFSET_MAX = 1 << 62
"""No counter is ever so large."""
NUMBERS = names.counters(COUNTERS)
READ_BYTES = 1 << 20
"""Number of bytes of a counter to read at a time."""
GUARD = b"\0"
"""Written before the record that announces an offset behind it. The next process that counts finds a longer counter,
and takes another offset, even if the announced bytes are never written. A NUL byte counts nothing."""
CANCELLED = b"x"
"""Byte that each batch that ends by cancelled tasks appends. Only the number of bytes counts."""
HOLE = b"\0\0"
"""Two NUL bytes in a row: bytes that were announced and are not written yet, or that a crash has prevented."""
READ_AGAIN_S = 600.0
"""Seconds after which a process reads a counter from its beginning again: `fsck --repair` may have voided bytes."""


def mark(batch: str, count: int) -> bytes:
    """Return the bytes that a batch of `count` completed tasks appends: derived from its id, never zero."""
    pattern = hashlib.blake2b(batch.encode(), digest_size=32).digest().replace(b"\0", b"\x01")
    assert b"\0" not in pattern, "a NUL byte counts nothing"
    return (pattern * (count // 32 + 1))[:count]


def there(store: Store, layout: Layout, batch: str, number: str, offset: int, count: int) -> int:
    """Return how many of the bytes that a `count` record announced are in the counter."""
    name = names.parse_counter(number)
    if count <= 0 or name not in NUMBERS or offset > OFFSET_MAX:
        return 0  # what a log says may come from anybody: nothing but the queue's own counters is looked at
    try:
        with store.fs.closing(store.fs.look_anew(layout.counter(name))) as fd:
            found = store.fs.pread(fd, count, offset)
    except FileNotFoundError:
        return 0
    return common_prefix(found, mark(batch, count))


def common_prefix(found: bytes, wanted: bytes) -> int:
    """Return the length of what two byte strings have in common at their start."""
    if found == wanted:
        return len(wanted)
    length = 0
    for one, other in zip(found, wanted, strict=False):
        if one != other:
            break
        length += 1
    return length


def add(locked: LockedBatch, completed: int, at: int, wait_s: float) -> None:
    """Count a finished batch exactly once, even if another process began to before.

    Under the counter's lock: a guard, then `count` in the log, naming file and offset, then the bytes. A crash
    in between leaves a record whose bytes are missing, or cut short; the next process adds the rest elsewhere. A
    counter that stays locked for `wait_s` seconds is passed over for another one.
    """
    store, log = locked.store, locked.log
    assert locked.replay_state.finished, "a batch is counted that has not finished"
    fs, layout = store.fs, log.layout
    assert completed > 0, "a batch without a completed task is counted"
    missing = completed - sum(there(store, layout, log.batch, *announced) for announced in locked.replay_state.counts)
    own = NUMBERS.index(store.counter_number)
    for number in NUMBERS[own:] + NUMBERS[:own] if missing > 0 else ():
        try:
            with store.locked(layout.counter(number), wait_s / 4, durable=store.sync_movements) as file:
                offset = reserve(store, file.fd, durable=store.sync_movements)
                locked.append_record("count", at, file=number, offset=offset, count=missing)
                fs.write_all(file.fd, mark(log.batch, missing))
                if store.sync_movements:
                    fs.fsync(file.fd)
                return
        except LockTimeout:
            continue
    if missing > 0:
        raise LockTimeout(f"All completion counters of {store.path} stayed locked. Counting goes on later.")


def note_cancelled(locked: LockedBatch, wait_s: float) -> None:
    """Note that a batch ends by cancelled tasks, and without a completed one. Do it before its log is removed.

    A process that goes on with the finishing notes it again: a look that finds more than the one before proves nothing,
    and is repeated.
    """
    assert locked.replay_state.finished, "a batch is counted that has not finished"
    store = locked.store
    with store.locked(locked.log.layout.cancelled, wait_s, durable=store.sync_movements) as file:
        store.fs.write_all(file.fd, CANCELLED)
        if store.sync_movements:
            store.fs.fsync(file.fd)


def cancelled(store: Store) -> int:
    """Return how many batches have ended so, or more; by a revalidating open. It only grows.

    While something else is in the file's place, none ends: its log stays.
    """
    with PassingOverStrays(), store.fs.closing(store.fs.look(store.layout.cancelled)) as fd:
        return store.fs.fstat(fd).st_size
    return 0


def reserve(store: Store, fd: int, *, durable: bool) -> int:
    """Append a guard to a locked counter, and return the offset behind it, which no other process is ever given."""
    store.fs.write_all(fd, GUARD)
    if durable:
        store.fs.fsync(fd)  # else a power loss might take the guard and keep the record that names the offset
    return store.fs.fstat(fd).st_size


def completed(store: Store, sizes: Mapping[CounterName, int]) -> dict[CounterName, int]:
    """Return how many completions each counter tells of, up to the given sizes: its bytes that are not NUL.

    No batch writes NUL in its bytes. Guards, and the holes that a power loss leaves, count nothing.
    """
    return {number: _marks(store, number, size) for number, size in sizes.items()}


def _marks(store: Store, number: CounterName, size: int) -> int:
    """Return how many of a counter's first bytes are not NUL. A process reads most of them once."""
    fs, path, now = store.fs, store.layout.counter(number), store.clock.monotonic()
    offset, found, since = store.read_counters.get(path, (0, 0, now))
    if now - since > READ_AGAIN_S or offset > size:
        offset, found, since = 0, 0, now
    if offset >= size:
        return found
    lasting = True
    with suppress(FileNotFoundError), fs.closing(fs.look_anew(path)) as fd:
        while offset < size:
            data = fs.pread(fd, min(READ_BYTES, size - offset), offset)
            if not data:
                break  # it was cut meanwhile
            sound = data.rstrip(GUARD)
            lasting = lasting and sound != b"" and HOLE not in sound
            if lasting:
                marks = len(sound) - sound.count(GUARD)
                store.read_counters[path] = offset + len(sound), found + marks, since
            if not sound or offset + len(data) >= size:
                sound = data  # its last NULs may be written over yet: they are looked at again
            found += len(sound) - sound.count(GUARD)
            offset += len(sound)
        assert found <= offset, "a counter tells of more completions than it has bytes"
        return found
    return 0  # purged meanwhile


def sizes(store: Store) -> dict[CounterName, int]:
    """Return the size of each counter in bytes, by a revalidating open: the most completions there can be.

    HiddenTasks if something else stands in the place of a counter, or of their directory.
    """
    found: dict[CounterName, int] = {}
    for number in map(names.parse_counter, store.fs.names(store.layout.completions, True)):
        if number in NUMBERS:
            path = store.layout.counter(number)
            try:
                fd = store.fs.look(path)
            except FileNotFoundError:
                continue
            except OSError as error:
                if error.errno not in NOT_FILES:
                    raise
                raise store.fs.hidden(path, error.errno or 0) from error
            with store.fs.closing(fd):
                status = store.fs.fstat(fd)
                if stat.S_ISDIR(status.st_mode):
                    raise store.fs.hidden(path, errno.EISDIR)
            found[number] = status.st_size
    return found
