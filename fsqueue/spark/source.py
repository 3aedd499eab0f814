"""The Spark data source `fsqueue` (docs/spark.md). Imported by every Python worker that Spark starts: keep it light."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class FsqueueDataSource(DataSource):  # type: ignore[misc]
    """`spark.read.format("fsqueue")`, `df.write.format("fsqueue")`; the same with `readStream` and `writeStream`."""

    @classmethod
    def name(cls) -> str:
        """Return what stands in format("…")."""
        return "fsqueue"

    def schema(self) -> StructType:
        """Return the view's columns; in a group of queues the queue's name is the first."""
        from fsqueue.spark import options, schemas
        from fsqueue.storage.discovery import queues_in

        is_table = options.is_table(self.options)
        given = options.table_options(self.options) if is_table else self.options
        wanted = options.reading(given)
        are_several = len(wanted.paths) > 1
        schema = schemas.schema_of(wanted.view, queues_in(wanted.paths[0]) is not None or are_several)
        if is_table:
            return options.with_options(schema, given)
        return schema

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a reader of the view that the options name; `schema` may be any of its columns."""
        from fsqueue.spark import options, reading

        wanted = options.reading(options.with_those_of_table(self.options, schema))
        kind = reading.PushdownReader if wanted.pushdown else reading.FsqueueReader
        return kind(wanted, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a writer that inserts rows as tasks: all of them at one instant, or one by one if they have keys."""
        from fsqueue.spark import keyed_rows, options, writing

        given = options.with_those_of_table(self.options, schema)
        if "path" not in self.options and "path" in given:
            options.must_be_tasks(given)
            given = {**dict(self.options), "path": given["path"]}
        wanted = options.writing(given)
        if wanted.key is not None:
            return keyed_rows.KeyedWriter(wanted, schema, overwrite)
        kind = writing.TableWriter if writing.is_insertion(wanted, schema) else writing.FsqueueWriter
        return kind(wanted, schema, overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a reader of tasks as they finish: the view `history`."""
        from fsqueue.spark import following, options

        return following.HistoryStream(options.reading(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a writer that inserts each micro-batch at one instant, exactly once; or rows with keys one by one."""
        from fsqueue.spark import keyed_rows, options, writing

        wanted = options.writing(self.options)
        kind = writing.FsqueueStreamWriter if wanted.key is None else keyed_rows.KeyedStreamWriter
        return kind(wanted, schema, overwrite)
