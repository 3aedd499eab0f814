"""Slots: the records that say which leases count against the limits of a queue (docs/format.md, "Slots").

Pure: no clock, no input or output. A file of slots has a header and places of one size. A place has a record, or none.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any, Final, NamedTuple
from zlib import crc32

import orjson

from fsqueue.format import names
from fsqueue.format.names import Batch

RECORD_BYTES: Final = 64
HEADER_BYTES: Final = 32
"""So much of the first place tells whether the file is whole. Behind it stands the record of a rate."""
DIGEST_BYTES: Final = 8
_NO_DIGESTS: Final = bytes(32)
Digests = tuple[bytes, ...]
"""Digests of values of fields that have limits."""
_BLOCK_BYTES: Final = 64 * RECORD_BYTES
"""Number of bytes that are compared at once, before single records are."""
FREE: Final = bytes(RECORD_BYTES)
"""Bytes of a place that has no record."""
_MAGIC: Final = b"fsqueue slots 1\n"
_RECORD = struct.Struct("<I2xH16s8s32s")
_BODY = struct.Struct("<2xH16s8s32s")
_SUM = struct.Struct("<I")


class LeaseSlot(NamedTuple):
    """One task that a lease holds, or may hold: it counts against the limits until it is proven that it does not."""

    batch: Batch
    index: int  # type: ignore[assignment]  # a tuple's own `index` is not needed
    lease: str
    digests: Digests = ()
    """Digests of the fields of the task's payload that count against limits by fields, as it was when the task was
    leased."""

    @property
    def key(self) -> tuple[Batch, int, str]:
        """Return the batch, index and lease, which tell the lease of the task from all others."""
        return self.batch, self.index, self.lease


def digests(payload: object, fields: Iterable[str]) -> dict[str, bytes]:
    """Return a digest of each of these fields that a payload has, and of its value. Values are the same if their JSON
    is.

    A payload that is no object has none, and null is no value. Two values may have one digest: then they share their
    places.
    """
    found: dict[str, bytes] = {}
    for name in fields:
        value = payload.get(name) if isinstance(payload, dict) else None
        if value is not None:
            text = orjson.dumps([name, value], option=orjson.OPT_SORT_KEYS)
            found[name] = blake2b(text, digest_size=DIGEST_BYTES).digest()
    return found


def header(domain: str) -> bytes:
    """Return the header with which a whole file of slots begins. `domain`: the boot whose processes rely on it, or that
    of shared mounts."""
    made = (_MAGIC + blake2b(domain.encode(), digest_size=16).digest()).ljust(RECORD_BYTES, b"\n")
    assert len(made) == RECORD_BYTES, "the header does not fill its place: the records behind it would be misread"
    return made


def record(slot: LeaseSlot) -> bytes:
    """Return the record of a slot."""
    digests_of = b"".join(slot.digests)
    assert len(digests_of) <= len(_NO_DIGESTS), "a slot counts against more fields than its record has room for"
    assert 0 <= slot.index < names.BATCH_TASKS_MAX, "a slot for a task that no batch has"
    body = _BODY.pack(slot.index, bytes.fromhex(slot.batch), bytes.fromhex(slot.lease), digests_of)
    return _SUM.pack(crc32(body)) + body


def each(content: bytes) -> Iterator[tuple[int, LeaseSlot]]:
    """Yield the slots that have a record, each with its offset in the file. One whose sum is wrong is none."""
    for offset in range(RECORD_BYTES, len(content) - RECORD_BYTES + 1, RECORD_BYTES):
        if (slot := _decoded(content[offset : offset + RECORD_BYTES])) is not None:
            yield offset, slot


def _decoded(data: bytes) -> LeaseSlot | None:
    """Return the slot in a place; None if it has no record, or one whose sum is wrong.

    The writer of that died within the write: before it has written the lease, or after that has ended.
    """
    if data == FREE:
        return None
    found, index, batch, lease, rest = _RECORD.unpack(data)
    if not found or found != crc32(data[_SUM.size :]):
        return None
    parts = () if rest == _NO_DIGESTS else (rest[at : at + DIGEST_BYTES] for at in range(0, len(rest), DIGEST_BYTES))
    return LeaseSlot(names.batch_of(batch), index, lease.hex(), tuple(part for part in parts if any(part)))


def _take_out(some: dict[Any, dict[int, LeaseSlot]], key: object, offset: int) -> None:
    those = some[key]
    those.pop(offset, None)
    if not those:
        del some[key]


class SlotTable:
    """The slots that a file had when it was read last. Only records that differ from those are decoded again."""

    __slots__ = ("_free", "by_batch", "by_digest", "content", "taken")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget all slots."""
        self.content = bytearray()
        self.taken: dict[int, LeaseSlot] = {}
        """The slots that have a record, by their offsets."""
        self.by_batch: dict[Batch, dict[int, LeaseSlot]] = {}
        """Slots by their offsets, for each batch."""
        self.by_digest: dict[bytes, dict[int, LeaseSlot]] = {}
        """Slots by their offsets, for each digest."""
        self._free: list[int] = []
        """A heap of the offsets of places that had no record at some time. Some may have got one since."""

    def update(self, content: bytes) -> None:
        """Take in what the file has now."""
        known = self.content
        if known == content:
            return
        if len(content) < len(known):
            self.clear()
            known = self.content
        for begin in range(0, len(content), _BLOCK_BYTES):
            block = content[begin : begin + _BLOCK_BYTES]
            if block == known[begin : begin + _BLOCK_BYTES]:
                continue
            for offset in range(begin, begin + len(block), RECORD_BYTES):
                data = content[offset : offset + RECORD_BYTES]
                if data != known[offset : offset + RECORD_BYTES]:
                    self._put(offset, data)
        self.content = bytearray(content)

    def write(self, changes: Mapping[int, bytes]) -> None:
        """Take in records that were just written at these offsets."""
        for offset, data in changes.items():
            assert offset % RECORD_BYTES in (0, HEADER_BYTES), "a record would stand across two places"
            torn = len(self.content) // RECORD_BYTES * RECORD_BYTES
            if offset > len(self.content):
                self.content.extend(bytes(offset - len(self.content)))
                self._put(torn, bytes(self.content[torn : torn + RECORD_BYTES]))  # zeros may have made it whole
            self.content[offset : offset + RECORD_BYTES] = data
            self._put(offset, data)

    def _put(self, offset: int, data: bytes) -> None:
        if not offset or len(data) < RECORD_BYTES:
            return  # the header, or a torn place at the end
        was, slot = self.taken.pop(offset, None), _decoded(data)
        if was is not None:
            _take_out(self.by_batch, was.batch, offset)
            for digest in was.digests:
                _take_out(self.by_digest, digest, offset)
        if slot is None:
            heappush(self._free, offset)
        else:
            self.taken[offset] = slot
            self.by_batch.setdefault(slot.batch, {})[offset] = slot
            for digest in slot.digests:
                self.by_digest.setdefault(digest, {})[offset] = slot

    def places(self) -> Iterator[int]:
        """Yield the offsets of places without a slot, the first ones first; then those behind the end of the file.

        The caller writes into each one, or begins with an empty table.
        """
        last = 0
        while self._free:
            offset = heappop(self._free)
            if offset not in self.taken and offset != last:
                last = offset
                yield offset
        offset = max(RECORD_BYTES, len(self.content) // RECORD_BYTES * RECORD_BYTES)
        while True:
            yield offset
            offset += RECORD_BYTES
