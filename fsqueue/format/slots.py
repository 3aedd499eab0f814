"""Slots: the records that say which leases count against the limits of a queue (docs/format.md, "Slots").

Pure: no clock, no input or output. A file of slots has a header and places of one size. A place has a record, or none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from hashlib import blake2b
from typing import Final, NamedTuple
from zlib import crc32

from fsqueue.format import names
from fsqueue.format.names import Batch

RECORD_BYTES: Final = 64
FREE: Final = bytes(RECORD_BYTES)
"""What stands in a place that has no record."""
_MAGIC: Final = b"fsqueue slots 1\n"
_RECORD = struct.Struct("<I2xH16s8s32x")
_BODY = struct.Struct("<2xH16s8s32x")
_SUM = struct.Struct("<I")


class LeaseSlot(NamedTuple):
    """One task that a lease holds, or may hold: it counts against the limits until it is proven that it does not."""

    batch: Batch
    index: int  # type: ignore[assignment]  # a tuple's own `index` is not needed
    lease: str


def header(domain: str) -> bytes:
    """Return what a whole file begins with. `domain`: the boot whose processes rely on it, or that of shared mounts."""
    return (_MAGIC + blake2b(domain.encode(), digest_size=16).digest()).ljust(RECORD_BYTES, b"\n")


def record(slot: LeaseSlot) -> bytes:
    """Return the record of a slot."""
    body = _BODY.pack(slot.index, bytes.fromhex(slot.batch), bytes.fromhex(slot.lease))
    return _SUM.pack(crc32(body)) + body


def each(content: bytes) -> Iterator[tuple[int, LeaseSlot]]:
    """Yield the slots that have a record, each with its offset in the file. One whose sum is wrong is none.

    Its writer died within the write: before it has written the lease, or after that has ended.
    """
    whole = len(content) // RECORD_BYTES * RECORD_BYTES
    known = memoryview(content)[:whole]
    for offset in range(RECORD_BYTES, whole, RECORD_BYTES):
        found, index, batch, lease = _RECORD.unpack_from(known, offset)
        if found and found == crc32(known[offset + _SUM.size : offset + RECORD_BYTES]):
            yield offset, LeaseSlot(names.batch_of(batch), index, lease.hex())


def places(taken: set[int]) -> Iterator[int]:
    """Yield the offsets of places without a slot, the first ones first; those behind the end of the file are the last.

    `taken`: the offsets of those that have one.
    """
    offset = RECORD_BYTES
    while True:
        if offset not in taken:
            yield offset
        offset += RECORD_BYTES
