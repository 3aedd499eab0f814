"""From a DataFrame's rows to the lines of task files (docs/format.md, "Task files"), batch by batch.

The lines of a record batch lie in one buffer, as they will in the files, and are written in pieces of it, without being
looked at one by one.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator

import numpy as np
import orjson
import pyarrow as pa
from pyspark.sql import types

from fsqueue import batch, batching
from fsqueue.batching import NOW, Encoded, When
from fsqueue.clock import duration_ms
from fsqueue.errors import InvalidArgument, InvalidTask
from fsqueue.layout import BATCH_BYTES_MAX, Settings
from fsqueue.spark import texts
from fsqueue.spark.encoding import Encoder, payload_fields


class Lines:
    """The rows of one Spark task on their way into batches."""

    def __init__(self, encoder: Encoder, settings: Settings) -> None:
        self.encoder = encoder
        self.bytes_max = settings.task_bytes_max
        self.batcher = Batcher(settings, encoder.options.batch_tasks)

    def batches(self, rows: Iterable[pa.RecordBatch]) -> Iterator[Encoded]:
        """All rows as encoded batches, in bounded memory. InvalidTask says which row cannot be stored."""
        index, same = 0, self.encoder.delay_ms
        for some in rows:
            lines = self._lines(some, index)
            self._check(lines, index)
            index += some.num_rows
            if same is not None:
                yield from self.batcher.add((False, same) if same else NOW, lines)
                continue
            delays = self._delays(some)
            order = sorted(range(len(delays)), key=delays.__getitem__)
            lines = lines.take(pa.array(order, pa.int64()))
            start = 0
            for end in range(1, len(order) + 1):
                if end == len(order) or delays[order[end]] != delays[order[start]]:
                    delay = delays[order[start]]
                    yield from self.batcher.add((False, delay) if delay else NOW, lines[start:end])
                    start = end
        yield from self.batcher.rest()

    def _delays(self, rows: pa.RecordBatch) -> list[int]:
        name = str(self.encoder.options.delay_s)
        try:
            return [duration_ms(value or 0, name) for value in rows.column(name).to_pylist()]
        except InvalidArgument as error:
            raise InvalidTask(f"The column of delays has a value that is none: {error}") from None

    def _lines(self, rows: pa.RecordBatch, first: int) -> pa.Array:
        options, schema = self.encoder.options, self.encoder.schema
        names = schema.names
        if options.payload is None:
            fields = payload_fields(options, schema)
            columns = [rows.column(names.index(field.name)) for field in fields]
            payload = texts.of_object(fields, columns, first)
        else:
            column, kind = rows.column(names.index(options.payload)), schema[options.payload].dataType
            if options.is_json or isinstance(kind, types.BinaryType):
                encode = _json_line if options.is_json else batch.encode_task
                values = enumerate(column.to_pylist(), first)
                return pa.array([encode(value, self.bytes_max, at) for at, value in values], pa.large_binary())
            payload = texts.of(column, kind, first)
        return texts.joined(['{"payload":', *payload, "}\n"], rows.num_rows)

    def _check(self, lines: pa.Array, first: int) -> None:
        sizes = np.diff(np.asarray(texts.buffers(lines)[0]))
        if len(sizes) and sizes.max() > self.bytes_max:
            at = int(sizes.argmax())
            raise batch.too_large(int(sizes[at]), self.bytes_max, first + at)


def _json_line(text: str | None, bytes_max: int, index: int) -> bytes:
    try:
        value = None if text is None else orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise InvalidTask(f"Row {index + 1}: the payload is not JSON: {error}.", index) from None
    return batch.encode_task(value, bytes_max, index)


class Batcher:
    """Cuts arrays of lines into batches, one after the other for each time of availability."""

    def __init__(self, settings: Settings, batch_tasks: int | None) -> None:
        self.tasks_max = min(batch_tasks or settings.batch_tasks_max, settings.batch_tasks_max)
        self.filling: dict[When, Encoded] = {}

    def add(self, when: When, lines: pa.Array) -> Iterator[Encoded]:
        """Take whole lines of tasks that are available from then on; gives the batches that are full."""
        offsets, data = texts.buffers(lines)
        at, count = 0, len(lines)
        while at < count:
            target = self.filling.get(when)
            if target is None:
                if len(self.filling) == batching.OPEN_BATCHES_MAX:
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
        """The batches that are not full."""
        yield from self.filling.values()
        self.filling = {}
