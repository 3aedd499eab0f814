"""A Spark session that knows the data source `fsqueue`, and Spark's errors in fsqueue's words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fsqueue import errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> SparkSession:
    """The session, with the data source registered: Spark finds it by itself only where fsqueue is installed whole."""
    from fsqueue.spark.source import FsqueueDataSource

    spark.dataSource.register(FsqueueDataSource)
    return spark


PROBE_ROWS = 1 << 16
"""So many rows make one in each partition, whatever their number."""


def parallelism(spark: SparkSession) -> int:
    """Return how many tasks Spark runs at a time, about: into so many partitions it splits a range."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkException:  # Spark Connect has no context
        return int(spark.range(PROBE_ROWS).select(F.spark_partition_id()).distinct().count())


_OURS = re.compile(r"^fsqueue\.errors\.(\w+): (.*)$", re.MULTILINE)


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise fsqueue's own error where Spark only passes one on from its Python workers."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        found = _OURS.findall(str(error))
        kind = getattr(errors, found[-1][0], None) if found else None
        if kind is None or not issubclass(kind, errors.FsqueueError):
            raise
        raise kind(found[-1][1]) from error
