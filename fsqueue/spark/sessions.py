"""Register the data source `fsqueue` with a Spark session, and turn errors that Spark passes on into fsqueue's own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from fsqueue import errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> SparkSession:
    """Register the data source with a session, and return the session.

    Without this, Spark finds the data source only if the top-level module `pyspark_fsqueue` is installed. A working
    copy (`pip install -e`) does not install it.

    In local mode Spark's Python workers are from then on this interpreter, unless PYSPARK_PYTHON names another. Spark
    itself would run the `python3` of PATH, which is another one if this was called by its path.
    """
    from fsqueue.spark.source import FsqueueDataSource

    _run_this_python(spark)
    spark.dataSource.register(FsqueueDataSource)
    return spark


def _run_this_python(spark: SparkSession) -> None:
    from pyspark.errors import PySparkException

    try:
        context = spark.sparkContext
    except PySparkException:  # Spark Connect has no context
        return
    is_named = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if not is_named and context.master.partition("[")[0] == "local" and sys.executable:
        context.pythonExec = sys.executable


PROBE_ROWS = 1 << 16
"""A range of this many rows has a row in each partition, however many partitions Spark makes."""


def parallelism(spark: SparkSession) -> int:
    """Return about how many tasks Spark runs at a time: the number of partitions into which it splits a range."""
    from pyspark.errors import PySparkException
    from pyspark.sql import functions as F

    try:
        return int(spark.sparkContext.defaultParallelism)
    except PySparkException:  # Spark Connect has no context
        return int(spark.range(PROBE_ROWS).select(F.spark_partition_id()).distinct().count())


_FSQUEUE_ERROR = re.compile(r"^fsqueue\.errors\.(\w+): (.*)$", re.MULTILINE)
"""How the text of Spark's error quotes an error that fsqueue raised in a Python worker: its class and its message."""
_NO_MODULE = re.compile(r"No module named '((?:fsqueue|orjson|filelock|pyarrow|numpy|pandas)\b[^']*)'")
_NO_PYTHON = re.compile(r'Cannot run program "([^"]+)"')
_NAME_ONE = "Name one that has fsqueue, on the driver's host and on the executors': --conf spark.pyspark.python=PATH."


@contextmanager
def spark_errors() -> Iterator[None]:
    """In a `with` block, raise fsqueue's own error in place of Spark's error that quotes it.

    Raise FsqueueError, too, if Spark's Python workers have no Python, or one without fsqueue. Other errors stay.
    """
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("pyspark", "py4j"):
            raise
        said = str(error)
        found = _FSQUEUE_ERROR.findall(said)
        kind = getattr(errors, found[-1][0], None) if found else None
        if kind is not None and issubclass(kind, errors.FsqueueError):
            raise kind(found[-1][1]) from error
        if found := _NO_MODULE.findall(said):
            raise errors.FsqueueError(f"The Python that Spark runs has no module {found[0]!r}. {_NAME_ONE}") from error
        if found := _NO_PYTHON.findall(said):
            raise errors.FsqueueError(f"Spark found no Python at {found[0]}. {_NAME_ONE}") from error
        raise
