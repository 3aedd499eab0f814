"""From arrays of lines to batches (docs/design.md, section 4.2): pieces of the arrays' buffers, not copies.

Tasks with priorities (decision 30) are sorted as any bulk insert's: within windows of at most a group, so that a batch
holds a narrow range.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from fsqueue.errors import InvalidTask
from fsqueue.format import priority, task_file
from fsqueue.format.layout import BATCH_BYTES_MAX, Settings
from fsqueue.protocol.encoding import OPEN_BATCHES_MAX, RUN_TASKS_MAX, Encoded, SortWindow, When

SHOWN_CHARS = 60
"""Number of characters that the error shows of a text that is too long for a priority or a key."""


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


def texts_of(priorities: pa.Array, first: int) -> pa.Array:
    """Return a column of priorities as JSON; null stays null. InvalidTask names the first that is too long.

    `first`: the number of the first row.
    """
    if pa.types.is_integer(priorities.type):
        return priorities.cast(pa.string())
    try:
        given = priorities.to_pylist()
    except UnicodeDecodeError:
        raise InvalidTask("The column of priorities has a value that is no UTF-8.") from None
    if (pc.max(pc.binary_length(priorities)).as_py() or 0) > priority.BYTES_MAX:
        for index, text in enumerate(given, first):
            if text is not None and (why := priority.fault(text)) is not None:
                raise InvalidTask(f"Task number {index + 1}: {why}. It begins with {text[:SHOWN_CHARS]!r}.", index)
    return pa.array([None if text is None else orjson.dumps(text) for text in given], pa.binary())


def with_priorities(lines: pa.Array, texts: pa.Array, first: int, bytes_max: int) -> pa.Array:
    """Return lines with their priorities in them; those of tasks without one as they are. TaskTooLarge names the first
    that is too long then.
    """
    large = pa.types.is_large_string(lines.type) or pa.types.is_large_binary(lines.type)
    kind = pa.large_binary() if large else pa.binary()
    lines = lines.cast(kind)
    begin, end, separator = (pa.scalar(text, kind) for text in (b',"priority":', b"}\n", b""))
    whole = pc.binary_slice(lines, 0, -len(b"}\n"))
    lines = pc.coalesce(pc.binary_join_element_wise(whole, begin, texts.cast(kind), end, separator), lines)
    sizes = pc.binary_length(lines)
    if (pc.max(sizes).as_py() or 0) > bytes_max:
        index = pc.index(pc.greater(sizes, bytes_max), True).as_py()
        raise task_file.too_large(sizes[index].as_py(), bytes_max, first + index)
    return lines


class Sorter:
    """Cut lines into batches: those of tasks with priorities in order, the others as a Cutter does."""

    def __init__(self, cutter: Cutter) -> None:
        self.cutter = cutter
        self.window = SortWindow()

    def add(self, when: When, lines: pa.Array, priorities: pa.Array) -> Iterator[Encoded]:
        """Take whole lines of tasks that are available from then on, and their priorities; yield full batches."""
        if priorities.null_count:
            yield from self.cutter.add(when, lines.filter(priorities.is_null()))
            is_urgent = priorities.is_valid()
            lines, priorities = lines.filter(is_urgent), priorities.filter(is_urgent)
        most = self.cutter.tasks_max
        for at in range(0, len(lines), RUN_TASKS_MAX):
            run: list[bytes] = lines.slice(at, RUN_TASKS_MAX).to_pylist()
            size = sum(map(len, run))
            if not self.window.has_room(len(run), size, most):
                yield from self.window.drain(most)
            self.window.add(when, priorities.slice(at, RUN_TASKS_MAX).to_pylist(), run, size)

    def rest(self) -> Iterator[Encoded]:
        """Yield the batches that are not full."""
        yield from self.window.drain(self.cutter.tasks_max)
        yield from self.cutter.rest()
