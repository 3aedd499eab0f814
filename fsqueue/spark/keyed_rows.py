"""Writing rows that have keys: one by one, each unless a task with its key lives (docs/spark-write.md, "Keys").

No commit is made: what a Spark task has inserted is in the queue at once, and stays. When Spark repeats that task, the
keys of what still lives are taken, so nothing of it is inserted again (decision 31).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from fsqueue.errors import InvalidArgument, InvalidTask
from fsqueue.format import keys
from fsqueue.format.models import Task
from fsqueue.protocol.insertion import KEYS_ADVISED, advise_commit
from fsqueue.queue import Queue
from fsqueue.spark.options import WriteOptions
from fsqueue.spark.stored_columns import Encoder, counted_in_part
from fsqueue.spark.writing import open_queue

if TYPE_CHECKING:
    import pyarrow as pa

COUNTS = "inserted BIGINT, taken BIGINT"
"""What `CountedInsert` yields for each partition."""


@dataclass
class KeyedRows(WriterCommitMessage):  # type: ignore[misc]
    """Number of rows that a Spark task has inserted, and of those whose key was taken."""

    inserted: int = 0
    taken: int = 0


def total(parts: Iterable[Any]) -> KeyedRows:
    """Return the sums of messages or rows that have `inserted` and `taken`; warn if a commit would have been better."""
    found = KeyedRows()
    for part in parts:
        found.inserted += part.inserted
        found.taken += part.taken
    if found.inserted + found.taken > KEYS_ADVISED:
        advise_commit()
    return found


def insert(encoder: Encoder, rows: Iterable[pa.RecordBatch]) -> KeyedRows:
    """Insert the rows of a partition, durably. After an error those inserted before it stay."""
    seen = 0

    def counted() -> Iterator[pa.RecordBatch]:
        nonlocal seen
        for some in rows:
            yield some
            seen += some.num_rows

    with Queue(encoder.options.path) as queue, counted_in_part():
        inserted = queue.insert_many(_tasks(encoder, counted()))
    return KeyedRows(inserted, seen - inserted)


def _tasks(encoder: Encoder, rows: Iterable[pa.RecordBatch]) -> Iterator[Task]:
    from fsqueue.spark.cutting import texts_of
    from fsqueue.spark.lines import delays_ms, values_of

    options, index = encoder.options, 0
    values = values_of(encoder)
    for some in rows:
        found = _keys(some.column(str(options.key)), index)
        priorities: Iterable[Any] = repeat(None)
        if options.priority is not None:
            texts_of(some.column(options.priority), index)
            priorities = some.column(options.priority).to_pylist()
        delays: Iterable[int] = repeat(encoder.delay_ms or 0)
        if encoder.delay_ms is None:
            name = str(options.delay_s)
            delays = delays_ms(some.column(name), name)
        for value, key, urgency, delay in zip(values(some, index), found, priorities, delays, strict=False):
            yield Task(value, key, urgency, delay / 1000)
        index += some.num_rows


def _keys(column: pa.Array, first: int) -> list[str]:
    """Return the keys of rows; InvalidTask for one without, and for one that is too long."""
    from fsqueue.spark.cutting import SHOWN_CHARS

    if column.null_count:
        index = first + column.is_null().to_pylist().index(True)
        raise InvalidTask(
            f"Task number {index + 1}: its key is null. A row without a key would be inserted again when Spark repeats "
            "its task. Write rows without keys by themselves, without the option `key`.",
            index,
        )
    try:
        found = [str(key) for key in column.to_pylist()]
    except UnicodeDecodeError:
        raise InvalidTask("The column of keys has a value that is no UTF-8.") from None
    for index, key in enumerate(found, first):
        if len(key) > SHOWN_CHARS and (why := keys.fault(key)) is not None:
            raise InvalidTask(f"Task number {index + 1}: {why}. It begins with {key[:SHOWN_CHARS]!r}.", index)
    return found


class CountedInsert:
    """Insert the rows of a partition in an executor, and tell how many are new: a function for `mapInArrow`."""

    def __init__(self, encoder: Encoder) -> None:
        self.encoder = encoder

    def __call__(self, rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        done = insert(self.encoder, rows)
        yield pa.RecordBatch.from_pydict({"inserted": [done.inserted], "taken": [done.taken]})


class _Keyed:
    """What both writers do: prepare the queue on the driver, and insert in executors."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgument(
                "Rows with keys are inserted one by one, and overwriting replaces everything at one instant. Use mode "
                "append (of a stream, outputMode append or update), or leave out the option `key`."
            )
        self.encoder = Encoder(options, schema)
        open_queue(options)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> KeyedRows:
        """Insert the rows of a partition, durably and at once."""
        return insert(self.encoder, iterator)


class KeyedWriter(_Keyed, DataSourceArrowWriter):  # type: ignore[misc]
    """Inserts rows with keys. There is nothing to publish in the end, and nothing to take back after a failure."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Warn if there were many."""
        total(message for message in messages if isinstance(message, KeyedRows))


class KeyedStreamWriter(_Keyed, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Inserts the rows of each micro-batch, which have keys. A repeated one inserts what does not live any more."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: everything is in the queue."""

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: what was inserted stays."""
