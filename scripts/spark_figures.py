"""The Spark data source beside Spark's own JSON: rates, ratios, and whether the figures to reach are reached.

Everything is done several times in turns, in one session, on the same rows; the best of each counts (other load can
only add).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TOP = Path(__file__).resolve().parents[1]
FIELDS = "tile: BIGINT, path: STRING, sum: STRING, x: DOUBLE"
Best = dict[str, float]


def session(place: Path, cores: int) -> Any:
    """A session for throughput (the tests' is for starting quickly), in which fsqueue lies as where it is installed."""
    installed = place / "installed"
    installed.mkdir()
    (installed / "fsqueue").symlink_to(TOP / "fsqueue")
    (installed / "pyspark_fsqueue").symlink_to(TOP / "fsqueue/spark/pyspark_fsqueue")
    os.environ.update(PYTHONPATH=str(installed), PYSPARK_PYTHON=sys.executable, SPARK_LOCAL_IP="127.0.0.1")
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").appName("figures")
    for key, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.local.dir": str(place / "local"),
        "spark.sql.warehouse.dir": str(place / "warehouse"),
    }.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def measured(best: Best, name: str, action: Callable[..., object], *arguments: object, **options: object) -> None:
    started = time.perf_counter()
    action(*arguments, **options)
    took = time.perf_counter() - started
    best[name] = min(took, best.get(name, took))
    print(f"{name}: {took:.2f} s", file=sys.stderr)


def measure(spark: Any, place: Path, rows: int, repeat: int) -> Best:
    from pyspark.sql import functions as F

    from fsqueue import Queue
    from fsqueue import spark as jobs

    text = F.sha2(F.col("id").cast("string"), 256)
    made = spark.range(0, rows, 1, 4).select(
        F.col("id").alias("tile"), F.concat(F.lit("s3://bucket/volume/"), text).alias("path"), text.alias("sum"),
        (F.col("id") / 7).alias("x"),
    )  # fmt: skip
    made.write.parquet(str(place / "rows"))
    df = spark.read.parquet(str(place / "rows"))
    best: Best = {}
    Queue.create(place / "warm")  # what a session does only once is not measured
    jobs.seed(df.limit(1000), str(place / "warm"))
    drop(spark.read.format("fsqueue").load(str(place / "warm")))
    path = str(place / "q")
    for _ in range(repeat):  # before each writing its last output is removed: all find the same memory free
        shutil.rmtree(place / "json", ignore_errors=True)
        measured(best, "write.json", df.write.json, str(place / "json"))
        shutil.rmtree(path, ignore_errors=True)
        Queue.create(path)
        measured(best, "seed", jobs.seed, df, path, commit="a")
        shutil.rmtree(path)
        Queue.create(path)
        measured(best, "write", df.write.format("fsqueue").mode("append").option("commit", "a").save, path)
        publish(place / "p", df, best)
    reader = spark.read.format("fsqueue").schema(f"id STRING, state STRING, payload STRUCT<{FIELDS}>")
    for _ in range(repeat):
        measured(best, "read.json", drop, spark.read.schema(df.schema).json(str(place / "json")))
        measured(best, "read", drop, reader.load(path))
        measured(best, "read, payloads as text", drop, spark.read.format("fsqueue").load(path))
    work(Queue(path), rows)
    measured(best, "report", jobs.report, spark, path, str(place / "report"))
    return best


def drop(df: Any) -> None:
    df.write.format("noop").mode("overwrite").save()


def publish(path: Path, df: Any, best: Best) -> None:
    """The commit alone: what is staged is published."""
    from fsqueue import Queue
    from fsqueue.spark import options
    from fsqueue.spark.writing import FsqueueWriter

    queue = Queue.create(path)
    writer = FsqueueWriter(options.writing({"path": str(path), "commit": "a"}), df.schema, False)

    def stage(batches: Any) -> Any:
        import pyarrow as pa

        part = writer.write(batches).part
        assert part is not None
        yield pa.RecordBatch.from_pydict({"part": [json.dumps(part.as_dict())]})

    from fsqueue.task import CommitPart

    staged = df.mapInArrow(stage, "part STRING").collect()
    parts = [CommitPart(**json.loads(row[0])) for row in staged]
    measured(best, "publish", writer.commit_.publish, parts)
    queue.delete(wait=True)


def work(queue: Any, most: int) -> None:
    """Make movements: half as many tasks are leased and completed one by one (the other half of `most` records)."""
    tasks = queue.poll(prefetch=1)
    for number, task in enumerate(tasks):
        task.complete()
        if number + 1 >= most // 2:
            break
    tasks.close()


FIGURES = (
    ("seeding, against df.write.json", "write.json", "seed", 0.7),
    ("reading back, against spark.read.json with a schema", "read.json", "read", 0.8),
)
PUBLISH_S = 2.0


def table(best: Best, rows: int) -> str:
    lines = ["| what | rows/s | |", "|---|---|---|"]
    for name in ("write.json", "seed", "write", "read.json", "read", "read, payloads as text"):
        lines.append(f"| `{name}` | {rows / best[name]:,.0f} | |")
    for what, theirs, ours, least in FIGURES:
        ratio = best[theirs] / best[ours]
        lines.append(f"| {what} | {ratio:.2f} | {least} wanted: {'reached' if ratio >= least else 'not reached'} |")
    wanted = PUBLISH_S * rows / 1_000_000
    reached = "reached" if best["publish"] < wanted else "not reached"
    lines.append(f"| commit of the staged tasks | {best['publish']:.2f} s | {wanted:.1f} s wanted: {reached} |")
    lines.append(f"| `report` over {rows:,} movements | {best['report']:.1f} s | |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench-spark", description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--dir", type=Path, default=None, help="where to work [the system's temporary directory]")
    parser.add_argument("--json", action="store_true", help="print the seconds as JSON")
    arguments = parser.parse_args()
    place = Path(tempfile.mkdtemp(dir=arguments.dir))
    try:
        spark = session(place, arguments.cores)
        best = measure(spark, place, arguments.rows, arguments.repeat)
        spark.stop()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        if arguments.json:
            print(json.dumps(best))
        else:
            where = f"local[{arguments.cores}], Python {platform.python_version()}"
            print(f"{arguments.rows:,} rows, {where}, driver {peak} MB\n")
            print(table(best, arguments.rows))
    finally:
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    main()
