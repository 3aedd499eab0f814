"""Dead letters that match a condition of SQL, put back into the queue."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fsqueue.queue import Queue
from fsqueue.spark.options import directory
from fsqueue.spark.sessions import register, spark_errors

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def requeue(spark: SparkSession, path: str, where: str = "true") -> int:
    """Insert the dead tasks again for which `where` holds, a condition on the columns of the view `dead`.

    Returns how many (fewer, where a Spark task had to be tried again: what its first attempt did is not counted). They
    get new ids and all attempts; a letter is retried once, however often Spark tries.
    """
    register(spark)
    with spark_errors():
        chosen = spark.read.format("fsqueue").option("view", "dead").load(path).where(where).select("id")
        return sum(row[0] for row in chosen.mapInArrow(_Retry(directory(path)), "retried BIGINT").collect())


class _Retry:
    """Retries the letters of a partition: those of some shards, so that no other task waits for their locks."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        retried = 0
        with Queue(self.path) as queue:
            for batch in batches:
                ids: list[Any] = batch.column(0).to_pylist()
                if ids:
                    retried += queue.retry_dead(ids)
        yield pa.RecordBatch.from_pydict({"retried": pa.array([retried], pa.int64())})
