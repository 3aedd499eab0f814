"""From arrays of lines to batches (docs/design.md, section 4.2): pieces of the arrays' buffers, not copies."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import pyarrow as pa

from fsqueue.format.layout import BATCH_BYTES_MAX, Settings
from fsqueue.protocol.encoding import OPEN_BATCHES_MAX, Encoded, When


def buffers(array: pa.Array) -> tuple[memoryview, memoryview]:
    """Return the offsets of an array of texts or bytes, and what they are offsets in."""
    large = pa.types.is_large_string(array.type) or pa.types.is_large_binary(array.type)
    _, offsets, data = array.buffers()
    places = memoryview(offsets).cast("q" if large else "i")[array.offset : array.offset + len(array) + 1]
    return places, memoryview(data if data is not None else b"").cast("B")


class Cutter:
    """Cuts arrays of lines into batches, one after the other for each time of availability."""

    def __init__(self, settings: Settings, batch_tasks: int | None) -> None:
        self.tasks_max = min(batch_tasks or settings.batch_tasks_max, settings.batch_tasks_max)
        self.filling: dict[When, Encoded] = {}

    def add(self, when: When, lines: pa.Array) -> Iterator[Encoded]:
        """Take whole lines of tasks that are available from then on; yield the batches that are full."""
        offsets, data = buffers(lines)
        at, count = 0, len(lines)
        while at < count:
            target = self.filling.get(when)
            if target is None:
                if len(self.filling) == OPEN_BATCHES_MAX:
                    yield self.filling.pop(max(self.filling, key=lambda key: self.filling[key].tasks))
                target = self.filling[when] = Encoded(when)
            end = min(count, at + self.tasks_max - target.tasks)
            limit = offsets[at] + BATCH_BYTES_MAX - target.size
            if offsets[end] > limit:
                end = bisect_right(offsets, limit, at, end + 1) - 1
                if end <= at:
                    if target.tasks:
                        yield self.filling.pop(when)
                        continue
                    end = at + 1  # larger than a batch should be: one of its own
            target.take(data[offsets[at] : offsets[end]], end - at)
            at = end
            if target.tasks == self.tasks_max or target.size >= BATCH_BYTES_MAX:
                yield self.filling.pop(when)

    def rest(self) -> Iterator[Encoded]:
        """Yield the batches that are not full."""
        yield from self.filling.values()
        self.filling = {}
