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
    """Return the session, with the data source registered: Spark finds it by itself only where fsqueue is installed
    whole.
    """
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
_NO_MODULE = re.compile(r"No module named '((?:fsqueue|orjson|filelock|pyarrow|numpy|pandas)\b[^']*)'")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_NAME_ONE = "Name one that has fsqueue, on the driver's host and on the executors': --conf spark.pyspark.python=PATH."


@contextmanager
def spark_errors() -> Iterator[None]:
    """Raise fsqueue's own error where Spark only passes one on from its Python workers.

    Raise FsqueueError, too, if Spark's Python workers have no Python, or one without fsqueue.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        said = str(error)
        found = _OURS.findall(said)
        kind = getattr(errors, found[-1][0], None) if found else None
        if kind is not None and issubclass(kind, errors.FsqueueError):
            raise kind(found[-1][1]) from error
        if found := _NO_MODULE.findall(said):
            raise errors.FsqueueError(f"The Python that Spark runs has no module {found[0]!r}. {_NAME_ONE}") from error
        if found := _NO_PYTHON.findall(said):
            raise errors.FsqueueError(f"Spark found no Python at {found[0]}. {_NAME_ONE}") from error
        raise
