"""A pipeline: Spark seeds a queue with files, command-line workers count lines, Spark joins and sums up.

    python examples/spark_pipeline.py /usr/lib/python3 /scratch/me/pipeline

The first argument is a directory of Python sources, the second a new directory for everything that is made. Each step
can be typed again after it was interrupted: what was done is not done twice. On a cluster the workers would be jobs on
other hosts; they start when they like, since they find all tasks or none.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fsqueue import spark as fsqueue_spark


def tasks_of(spark: SparkSession, sources: Path) -> DataFrame:
    """A row for each source file: its path, its package (the directory below `sources`), its size in bytes.

    Listed here: Spark's own readers of files leave out names that begin with `_`.
    """
    found = [
        (str(path), path.relative_to(sources).parts[0], path.stat().st_size) for path in sorted(sources.rglob("*.py"))
    ]
    return spark.createDataFrame(found, "path STRING, package STRING, bytes BIGINT")


def seed(spark: SparkSession, sources: Path, queue: Path) -> fsqueue_spark.SeedReport:
    """Every file a task, once; in small batches, so that also a few files spread over many workers."""
    df = tasks_of(spark, sources)
    return fsqueue_spark.seed(df, str(queue), commit="files", if_exists="create", batch_tasks=16)


def keep_tasks(spark: SparkSession, queue: Path, kept: Path) -> None:
    """Which task is which file: finished tasks are remembered by their ids alone."""
    schema = "id STRING, payload STRUCT<path: STRING, package: STRING, bytes: BIGINT>"
    tasks = spark.read.format("fsqueue").schema(schema).load(str(queue))
    tasks.select("id", "payload.*").write.mode("ignore").parquet(str(kept))


def work(queue: Path, results: Path, jobs: int = 2) -> None:
    """What would run on other hosts: a worker that runs a command for each task, and writes what it says to a file."""
    results.mkdir(exist_ok=True)
    count = 'wc -l <"$1" >"$2/$FSQUEUE_TASK_ID"'
    worker = [sys.executable, "-m", "fsqueue_cli", "run", str(queue), "-j", str(jobs), "--"]
    subprocess.run([*worker, "sh", "-c", count, "sh", "{path}", str(results)], check=True)


def joined(spark: SparkSession, queue: Path, kept: Path, results: Path) -> DataFrame:
    """A row for each file: what it is, what came out, how long it took and where."""
    tasks = spark.read.parquet(str(kept))
    counted = spark.read.text(str(results)).select(
        F.col("_metadata.file_name").alias("id"), F.trim("value").cast("bigint").alias("lines")
    )
    attempts = spark.read.format("fsqueue").option("view", "attempts").load(str(queue))
    done = attempts.where("outcome = 'complete'").select("id", "host", "duration_s")
    return tasks.join(counted, "id").join(done, "id")


def summed_up(files: DataFrame) -> DataFrame:
    """Lines and time by package, the largest first."""
    return (
        files.groupBy("package")
        .agg(F.count("*").alias("files"), F.sum("lines").alias("lines"), F.sum("duration_s").alias("took_s"))
        .orderBy(F.desc("lines"), "package")
    )


def main(sources: str, out: str) -> None:
    spark = fsqueue_spark.register(SparkSession.builder.appName("pipeline").getOrCreate())
    place = Path(out).absolute()
    place.mkdir(parents=True, exist_ok=True)
    print(seed(spark, Path(sources).absolute(), place / "queue"))
    keep_tasks(spark, place / "queue", place / "tasks.parquet")
    work(place / "queue", place / "results")
    files = joined(spark, place / "queue", place / "tasks.parquet", place / "results")
    files.write.mode("overwrite").parquet(str(place / "files.parquet"))
    summed_up(spark.read.parquet(str(place / "files.parquet"))).show(20, truncate=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
