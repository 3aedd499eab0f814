"""Writing: executors stage a named commit's parts, the driver publishes it (docs/spark-cost.md, "How a write works").

Whatever happens to Spark's tasks (retries, copies, lost executors), only the parts that reach the driver are published,
all of them by one link, and nothing else ever is. The tasks of a small part are in its message, and the driver stages
them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from fsqueue import administration
from fsqueue.commit import Commit, must_be_as_many, warn_of_none
from fsqueue.errors import CommitLost, FsqueueError, InvalidArgument, QueueExists, QueueNotFound
from fsqueue.format import task_file
from fsqueue.format.layout import BATCH_BYTES_MAX, Settings
from fsqueue.format.models import CommitPart
from fsqueue.format.priority import LAST
from fsqueue.interruptions import suppress
from fsqueue.protocol.encoding import OPEN_BATCHES_MAX, Encoded, SortWindow, When, share
from fsqueue.queue import Queue
from fsqueue.spark import schemas
from fsqueue.spark.options import WriteOptions
from fsqueue.spark.stored_columns import Encoder
from fsqueue.storage import commits

if TYPE_CHECKING:
    import pyarrow as pa

PART_BYTES_MAX = 16 << 10
"""The most bytes of lines that a message carries. Spark puts a task result of up to 1 MiB directly into its answer."""
TOTAL_BYTES = 64 << 20
"""Bounds what all messages of a write carry: that of partition N carries at most TOTAL_BYTES / (N + 1) bytes.

So n partitions carry at most TOTAL_BYTES x (1 + ln(n / 4,096)) bytes: 64 MiB for 4,096 partitions, 416 MiB for a
million. Spark fails a job whose results are larger than `spark.driver.maxResultSize`, 1 GiB by default.
"""


class SmallBatch(NamedTuple):
    """Lines of tasks that become available at the same time. `is_urgent`: each of them has a priority."""

    when: When
    is_urgent: bool
    tasks: int
    content: bytes


@dataclass(frozen=True)
class SmallPart:
    """The tasks of a Spark task that had few of them, or none. Nothing of them is on disk: docs/design.md, 4.3.

    A DataFrame may have thousands of partitions with a few rows each. Each would otherwise cost files and syncs.

    `queue` and `generation` tell where they belong: after a purge they are refused, as staged files are.
    """

    queue: str
    generation: int
    batches: tuple[SmallBatch, ...]


def bytes_max(partition: int) -> int:
    """Return how many bytes of lines the message of a partition may carry. Partitions count from 0."""
    return min(PART_BYTES_MAX, TOTAL_BYTES // (partition + 1))


def carry_or_stage(commit: Commit, batches: Iterable[Encoded], partition: int) -> CommitPart | SmallPart:
    """Take all batches of a partition: to carry them if they are small, else staged. In bounded memory.

    InvalidTask for a bad task: then the Spark task has failed.
    """
    store, most = commit.store, bytes_max(partition)
    store.refresh()
    state = store.queue_state
    held: list[Encoded] = []
    size, coming = 0, iter(batches)
    for batch in coming:
        held.append(batch)
        size += batch.size
        if size > most:
            return commit.stage_encoded(chain(held, coming))
    found = (SmallBatch(one.when, one.rank != LAST, one.tasks, bytes(one.content())) for one in held)
    return SmallPart(state.id, state.generation, tuple(found))


def stage_together(
    commit: Commit, small: Sequence[SmallPart], others: int, batch_tasks: int | None
) -> CommitPart | None:
    """Stage the tasks of small parts, on the driver. Return their part; None if there are none.

    `others`: how many tasks of the commit are staged already. `batch_tasks`: as the option. CommitLost: the queue was
    purged since a Spark task has read it.
    """
    batches = [batch for one in small for batch in one.batches]
    if not batches:
        return None
    store = commit.store
    store.refresh(now=True)
    state = store.queue_state
    if any((one.queue, one.generation) != (state.id, state.generation) for one in small):
        raise CommitLost(
            f"The queue {store.path} was purged while Spark was reading the rows of the commit {commit.name}. "
            "Nothing of them is visible. Write them again."
        )
    return commit.stage_encoded(merged(batches, tasks_per_file(batches, others, store.settings, batch_tasks)))


def tasks_per_file(batches: Sequence[SmallBatch], others: int, settings: Settings, batch_tasks: int | None) -> int:
    """Return how many tasks a file should hold: as for any bulk insert (decision 8), and no fewer than a batch has.

    So merging makes no more files than there are batches, but for those that hold priorities.
    """
    most = min(batch_tasks or settings.batch_tasks_max, settings.batch_tasks_max)
    if batch_tasks is not None:
        return most
    total = others + sum(batch.tasks for batch in batches)
    return min(most, max(share(total), *(batch.tasks for batch in batches)))


def merged(batches: Iterable[SmallBatch], tasks_max: int) -> Iterator[Encoded]:
    """Yield the tasks of small batches in files of at most `tasks_max` tasks, and of a batch's bytes.

    Tasks with priorities are sorted anew, within windows, as those of any bulk insert. Other batches stay whole.
    """
    filling: dict[When, Encoded] = {}
    window = SortWindow()
    for batch in batches:
        if batch.is_urgent:
            lines = task_file.split_lines(batch.content)
            if not window.has_room(len(lines), len(batch.content), tasks_max):
                yield from window.drain(tasks_max)
            priorities = [task_file.decode_task(line)["priority"] for line in lines]
            window.add(batch.when, priorities, [line + b"\n" for line in lines], len(batch.content))
            continue
        target = filling.get(batch.when)
        if target is not None and not _has_room(target, batch, tasks_max):
            yield filling.pop(batch.when)
            target = None
        if target is None:
            if len(filling) == OPEN_BATCHES_MAX:
                yield filling.pop(max(filling, key=lambda when: filling[when].tasks))
            target = filling[batch.when] = Encoded(batch.when)
        target.take(batch.content, batch.tasks)
    yield from window.drain(tasks_max)
    yield from filling.values()


def _has_room(target: Encoded, batch: SmallBatch, tasks_max: int) -> bool:
    return target.tasks + batch.tasks <= tasks_max and target.size + len(batch.content) <= BATCH_BYTES_MAX


@dataclass
class StagedPart(WriterCommitMessage):  # type: ignore[misc]
    """The part that one Spark task has staged, or carries here; None if its rows were not wanted.

    Then `rows` says how many they are.
    """

    part: CommitPart | SmallPart | None
    rows: int = field(default=0, kw_only=True)


class FsqueueWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Made on the driver, where it prepares the queue; `write` runs in executors, `commit` on the driver again.

    Between these nothing is shared but this object, pickled as it was made.
    """

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite and options.if_exists in ("error", "ignore"):
            raise InvalidArgument(
                f"mode overwrite and ifExists={options.if_exists} contradict each other: leave one of them out."
            )
        self.overwrite = overwrite
        self.encoder = Encoder(options, schema)
        queue = open_queue(options)
        self.commit_ = queue.commit(options.commit or f"spark-{uuid4()}", attempt=options.attempt)
        self.known = None if options.commit is None else self.commit_.committed()
        """What was published under this name before."""
        self.is_needed = self.known is None
        """Whether rows are worth staging: not if this very commit was published before."""
        if self.is_needed and options.if_exists in ("error", "ignore") and holds_something(queue):
            if options.if_exists == "error":
                raise QueueExists(
                    f"The queue {options.path} has tasks in it already, or had. Choose another path, or add to it with "
                    "the option ifExists=append."
                )
            self.is_needed = False

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        """Stage the rows of a partition, invisibly and durably; or carry them to the driver, if they are few."""
        if not self.is_needed:
            return StagedPart(None, rows=sum(batch.num_rows for batch in iterator))
        from fsqueue.spark.lines import Lines
        from fsqueue.spark.record_batches import ahead, system_pool

        with system_pool():
            batches = Lines(self.encoder, self.commit_.store.settings).batches(ahead(iterator))
            return StagedPart(carry_or_stage(self.commit_, batches, partition()))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Make all of it visible at one instant, and when overwriting nothing else; or, if the commit's name was
        published before, add nothing. InvalidArgument: it was published with another number of rows.
        """
        if self.known is not None:
            rows = sum(message.rows for message in messages if isinstance(message, StagedPart))
            must_be_as_many(self.known, rows, "row")
        if self.is_needed:
            parts = all_staged(self.commit_, messages, self.encoder.options.batch_tasks)
            report = self.commit_.publish(parts, overwrite=self.overwrite)
            if report.repeated:  # another driver was quicker
                must_be_as_many(report, sum(part.tasks for part in parts), "row")
            warn_of_none(report)
            if self.overwrite:
                administration.reap_later(self.commit_.store)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Remove what was staged. What was published before something else failed stays: it is decided."""
        self.commit_.discard()


def partition() -> int:
    """Return the number of the partition that this Spark task works on. 0 outside of a Spark task."""
    context = TaskContext.get()
    return 0 if context is None else context.partitionId()


def parts_of(messages: Iterable[WriterCommitMessage | None]) -> list[CommitPart]:
    """Return what the executors report to have staged."""
    parts = (message.part for message in messages if isinstance(message, StagedPart))
    return [part for part in parts if isinstance(part, CommitPart)]


def all_staged(
    commit: Commit, messages: Sequence[WriterCommitMessage | None], batch_tasks: int | None
) -> list[CommitPart]:
    """Return what the executors have staged, and stage what they have sent. CommitLost: the queue was purged."""
    parts = parts_of(messages)
    given = (message.part for message in messages if isinstance(message, StagedPart))
    carried = [part for part in given if isinstance(part, SmallPart)]
    more = stage_together(commit, carried, sum(part.tasks for part in parts), batch_tasks)
    return parts if more is None else [*parts, more]


def open_queue(options: WriteOptions) -> Queue:
    """Return the queue to write to, made if the option `ifExists` says so."""
    try:
        return Queue(options.path)
    except QueueNotFound as error:
        if options.if_exists == "append":
            raise QueueNotFound(f"{error} Or let Spark create it: the option ifExists=create.") from None
        return Queue.create(options.path, exist_ok=True)


def holds_something(queue: Queue) -> bool:
    """Return whether anything was ever inserted into a queue's generation, by an insert or by a commit."""
    return bool(queue.status().inserted or commits.decided(queue.store))


QUERY_ID, BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"


@dataclass
class StagedOf(StagedPart):
    """The part of a micro-batch of this query that a Spark task has staged."""

    query: str


class FsqueueStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Made anew for each micro-batch, and once more for its commit: so all that matters is in the messages."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise InvalidArgument("A stream adds to its queue: outputMode append or update, not complete.")
        if options.commit is not None:
            raise InvalidArgument("A stream names its commits itself: leave out the option `commit`.")
        if options.if_exists not in ("append", "create"):
            raise InvalidArgument("A stream comes back to its queue: the option `ifExists` is append or create.")
        self.encoder = Encoder(options, schema)
        self.queue = open_queue(options)

    def __getstate__(self) -> dict[str, object]:
        return {"encoder": self.encoder}

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedOf:
        """Stage the rows of a partition of a micro-batch; or carry them to the driver, if they are few."""
        from fsqueue.spark.lines import Lines

        context = TaskContext.get()
        assert context is not None
        query, number = context.getLocalProperty(QUERY_ID), context.getLocalProperty(BATCH_ID)
        assert query is not None
        assert number is not None
        commit = open_queue(self.encoder.options).commit(commit_of_batch(query, int(number)))
        batches = Lines(self.encoder, commit.store.settings).batches(iterator)
        return StagedOf(carry_or_stage(commit, batches, partition()), query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the micro-batch, unless it was before; then forget the one before it."""
        queries = {message.query for message in messages if isinstance(message, StagedOf)}
        for query in queries:  # one, or none where nothing was written
            commit = self.queue.commit(commit_of_batch(query, batchId))
            try:
                commit.publish(all_staged(commit, messages, self.encoder.options.batch_tasks))
            except BaseException:
                with suppress(FsqueueError):  # no other object knows this attempt; otherwise `gc` removes it
                    commit.discard()
                raise
            if batchId > 0:
                self.queue.commit(commit_of_batch(query, batchId - 1)).forget()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what was staged, as far as it is known."""
        for part in parts_of(messages):
            self.queue.commit(part.commit, attempt=part.attempt).discard()


def commit_of_batch(query: str, batch: int) -> str:
    """Return the commit of a micro-batch."""
    return f"stream-{query}-{batch}"


PAYLOAD = "payload"
"""The column that SQL may insert."""


def is_insertion(wanted: WriteOptions, schema: StructType) -> bool:
    """Return whether rows have the columns of the view `tasks`: an INSERT into a table or a temporary view."""
    names = schema.names[1:] if schema.names[:1] == [schemas.QUEUE] else schema.names
    return wanted.payload is None and names == list(schemas.columns_of("tasks"))


class TableWriter(FsqueueWriter):
    """Inserts rows that SQL gives (docs/spark.md, "SQL"): the column `payload`, JSON text. The others must be null."""

    def __init__(self, options: WriteOptions, schema: StructType, overwrite: bool) -> None:
        wanted = replace(options, payload=PAYLOAD, is_json=True)
        super().__init__(wanted, StructType([schema[PAYLOAD]]), overwrite)

    def write(self, iterator: Iterator[pa.RecordBatch]) -> StagedPart:
        """Stage the payloads of a partition."""
        return super().write(map(_payloads, iterator))


def _payloads(batch: pa.RecordBatch) -> pa.RecordBatch:
    for name in batch.schema.names:
        if name != PAYLOAD and batch.column(name).null_count < batch.num_rows:
            raise InvalidArgument(
                f"The column {name!r} cannot be inserted: SQL inserts payloads alone, as JSON text: "
                "INSERT INTO … (payload) SELECT to_json(struct(…)). To make payloads of such rows from Python, write "
                "a DataFrame with the option `payload`; and with `priority` and `key`, which name their columns."
            )
    return batch.select([PAYLOAD])
