"""Streaming: each micro-batch is a named commit, so that a repeated one adds nothing (docs/spark.md, "Streams").

The name tells query and batch. Spark repeats at most the last batch of a query: when one is committed, the names
of those before are forgotten.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from fsqueue.errors import FsqueueError, InvalidArgument
from fsqueue.spark.encoding import Encoder
from fsqueue.spark.options import WriteOptions
from fsqueue.spark.small import carry_or_stage
from fsqueue.spark.writing import StagedPart, all_staged, open_queue, partition, parts_of

if TYPE_CHECKING:
    import pyarrow as pa

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
        commit = open_queue(self.encoder.options).commit(commit_name(query, int(number)))
        batches = Lines(self.encoder, commit.store.settings).batches(iterator)
        return StagedOf(carry_or_stage(commit, batches, partition()), query)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publish the micro-batch, unless it was before; then forget the one before it."""
        queries = {message.query for message in messages if isinstance(message, StagedOf)}
        for query in queries:  # one, or none where nothing was written
            commit = self.queue.commit(commit_name(query, batchId))
            try:
                commit.publish(all_staged(commit, messages, self.encoder.options.batch_tasks))
            except BaseException:
                with suppress(FsqueueError):  # no other object knows this attempt; otherwise `gc` removes it
                    commit.discard()
                raise
            if batchId > 0:
                self.queue.commit(commit_name(query, batchId - 1)).forget()

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Remove what was staged, as far as it is known."""
        for part in parts_of(messages):
            self.queue.commit(part.commit, attempt=part.attempt).discard()


def commit_name(query: str, batch: int) -> str:
    """Return the commit of a micro-batch."""
    return f"stream-{query}-{batch}"
