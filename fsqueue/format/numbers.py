"""Numbers of tasks: the records that say which version of which task a number names (docs/format-groups.md, "Numbers").

Pure: no clock, no input or output. A number is the place of its record, from 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, NamedTuple
from zlib import crc32

from fsqueue.format import names
from fsqueue.format.names import Batch, NumberFileName, QueueDirectory, QueueId

DIRECTORY: Final = ".numbers"
FILE_RECORDS: Final = 1 << 16
"""Maximum number of records in a file."""
RECORD_BYTES: Final = 72
NUMBER_MAX: Final = (1 << 63) - 1

_KIND = 1
_PLAIN = 1
_BODY = struct.Struct("<BBH32sqqQi4x")
_RECORD = struct.Struct("<IBBH32sqqQi4x")
_SUM = struct.Struct("<I")
_MASK = 0xFFFFFFFF


class TaskVersion(NamedTuple):
    """One version of one task, which a number names."""

    queue: QueueId
    place: bytes
    """8 bytes that stand for the queue's directory: see `place_of`."""
    batch: Batch
    index: int  # type: ignore[assignment]  # a tuple's own `index` is not needed
    version: int
    """As `TaskInfo.version`. Later versions of a task are greater."""
    available_ms: int = 0
    """Time from which on no client owns the task (Unix ms)."""
    owner: int = 0
    """The client that owns the task until its time, a signed number of 32 bits; 0 if none is known."""
    lease: str = ""
    """The lease that made this version, as far as the record's author knew it."""
    is_plain: bool = False
    """True if the payload is text, and the task has no priority."""

    @property
    def key(self) -> bytes:
        """Return the 32 bytes that stand for the batch: its queue's id, its name, and its queue's directory.

        A copy of the queue in the same group has the same id and batches, in another directory.
        """
        return bytes.fromhex(self.queue + self.batch) + self.place


class IndexedRecord(NamedTuple):
    """The part of a record of numbers that an index keeps."""

    number: int
    key: bytes
    index: int  # type: ignore[assignment]  # a tuple's own `index` is not needed
    version: int
    available_ms: int
    owner: int


def directory(group: str) -> str:
    """Return the path of the directory of a group's numbers."""
    return f"{group}/{DIRECTORY}"


def path_of(group: str, name: NumberFileName) -> str:
    """Return the path of a file of numbers."""
    return f"{group}/{DIRECTORY}/{name}"


def place_of(queue: QueueDirectory) -> bytes:
    """Return the 8 bytes that stand for a queue's directory: BLAKE2b-64 of its name."""
    return blake2b(queue.encode(), digest_size=8).digest()


def where(number: int) -> tuple[int, int]:
    """Return where the record of a number is: the place of its file, from 0, and the record's offset there."""
    assert number > 0, "numbers begin with 1"
    file, record = divmod(number - 1, FILE_RECORDS)
    return file, record * RECORD_BYTES


class NumberCodec:
    """Build and parse the records of one group. A record of another group, or in another place, is none."""

    def __init__(self, group: QueueId) -> None:
        self._seed = crc32(group.encode())

    def record(self, number: int, named: TaskVersion) -> bytes:
        """Return the record of a number."""
        assert number > 0, "numbers begin with 1"
        lease = int(named.lease or "0", 16)
        flags = _PLAIN if named.is_plain else 0
        when, owner = named.available_ms, named.owner
        body = _BODY.pack(_KIND, flags, named.index, named.key, named.version, when, lease, owner)
        return _SUM.pack(crc32(body, (self._seed + number) & _MASK)) + body

    def parse(self, number: int, record: bytes) -> TaskVersion | None:
        """Return the version of a task that a record names; None if the record is torn, damaged or missing."""
        if len(record) != RECORD_BYTES or not self._is_sound(number, record):
            return None
        _, _, flags, index, key, version, when, lease, owner = _RECORD.unpack(record)
        queue, batch = names.queue_id_of(key[:8]), names.batch_of(key[8:24])
        by = f"{lease:016x}" if lease else ""
        return TaskVersion(queue, key[24:], batch, index, version, when, owner, by, bool(flags & _PLAIN))

    def each(self, first: int, records: bytes) -> Iterator[IndexedRecord]:
        """Yield what an index keeps of the whole, sound records in a row of which the first has the number `first`."""
        seed, known = self._seed + first, memoryview(records)
        whole = len(records) // RECORD_BYTES
        parsed = _RECORD.iter_unpack(known[: whole * RECORD_BYTES])
        for at, (found, kind, _, index, key, version, when, _, owner) in enumerate(parsed):
            body = known[at * RECORD_BYTES + _SUM.size : (at + 1) * RECORD_BYTES]
            if found == crc32(body, (seed + at) & _MASK) and kind == _KIND:
                yield IndexedRecord(first + at, key, index, version, when, owner)

    def _is_sound(self, number: int, record: bytes) -> bool:
        [found] = _SUM.unpack_from(record)
        return bool(found == crc32(record[_SUM.size :], (self._seed + number) & _MASK) and record[_SUM.size] == _KIND)
