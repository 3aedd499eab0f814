"""The Spark data source `fsqueue` (docs/spark.md). Imported by every Python worker that Spark starts: keep it light."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


class FsqueueDataSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("fsqueue")`, `df.write.format("fsqueue")`, `df.writeStream.format("fsqueue")`."""

    @classmethod
    def name(cls) -> str:
        """What stands in format("…")."""
        return "fsqueue"

    def schema(self) -> StructType:
        """The view's columns; in a group of queues the queue's name is the first."""
        from fsqueue.discovery import queues_in
        from fsqueue.spark import options, schemas

        wanted = options.reading(self.options)
        return schemas.schema_of(wanted.view, queues_in(wanted.path) is not None)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Reads the view that the options name; `schema` may be any of its columns."""
        from fsqueue.spark import options, reading

        wanted = options.reading(self.options)
        kind = reading.PushdownReader if wanted.pushdown else reading.FsqueueReader
        return kind(wanted, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Inserts rows as tasks, all of them at one instant."""
        from fsqueue.spark import options, writing

        return writing.FsqueueWriter(options.writing(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Inserts each micro-batch at one instant, exactly once."""
        from fsqueue.spark import options, streaming

        return streaming.FsqueueStreamWriter(options.writing(self.options), schema, overwrite)
