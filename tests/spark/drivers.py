"""Spark drivers that tests start as processes: python -m tests.spark.drivers MASTER DIRECTORY NAME ARGUMENT…

Each prints what it found as a line of JSON.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from fsqueue import spark as jobs
from fsqueue.spark import seed
from tests.spark.conftest import CONF, JVM_S
from tests.waiting import until


def session(master: str, directory: str, **conf: str) -> SparkSession:
    is_remote = master == "connect"
    builder = SparkSession.builder.remote("local[2]") if is_remote else SparkSession.builder.master(master)
    builder = builder.appName("fsqueue driver")
    builder = builder.config("spark.local.dir", f"{directory}/local-{os.getpid()}")
    builder = builder.config("spark.sql.warehouse.dir", f"{directory}/warehouse")
    for key, value in {**CONF, **conf}.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if not is_remote:
        spark.sparkContext.setLogLevel("OFF")
    return spark


def rows(spark: SparkSession, count: int, partitions: int) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(
        F.col("id").alias("n"), F.concat(F.lit("name "), F.col("id")).alias("name")
    )


def troubled(df: DataFrame, directory: str, trouble: str) -> DataFrame:
    """The same rows, but each partition's first attempt meets with `trouble` after its first rows.

    Which attempts there were is told by files in `directory`.
    """

    def work(batches: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        partition, attempt = context.partitionId(), context.attemptNumber()
        Path(directory, f"{partition}-{attempt}").touch()
        for number, batch in enumerate(batches):
            yield batch
            if number == 0:
                # whichever attempt begins first: on a busy machine that may be the copy of one that has not begun
                if trouble == "kills its executor" and partition == 1 and is_first(Path(directory, "killed")):
                    os.kill(jvm_of_this_worker(), 9)
                if trouble == "fails" and attempt == 0:
                    raise RuntimeError("on purpose")
                if attempt == 0 and trouble == "is slow" and partition == 0:
                    # An error here would have Spark try again, which would look like the copy.
                    with suppress(AssertionError):
                        until(Path(directory, "0-1").exists, "the copy of a slow task", JVM_S)

    return df.mapInArrow(work, df.schema)


def square(payload: Any) -> Any:
    """What drains apply: a function has to be importable where the executors are."""
    if payload == 13:
        raise ValueError("13 brings bad luck")
    return {"square": payload**2}


def is_first(mark: Path) -> bool:
    """Whether nobody was here before; when a whole stage is tried again, its attempts are counted from 0 anew."""
    try:
        mark.touch(exist_ok=False)
        return True
    except FileExistsError:
        return False


def jvm_of_this_worker() -> int:
    """The process above this worker's daemon."""
    return parent(os.getppid()) if parent(os.getppid()) > 1 else os.getppid()


def parent(pid: int) -> int:
    with open(f"/proc/{pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


def seeds_with_trouble(spark: SparkSession, directory: str, queue: str, trouble: str, count: str) -> dict[str, Any]:
    marks = Path(directory, f"marks-{trouble.replace(' ', '-')}")
    marks.mkdir()
    df = troubled(rows(spark, int(count), 4).repartition(4), str(marks), trouble)
    report = seed(df, queue, commit=trouble.replace(" ", "-"))
    return {"rows": report.rows, "attempts": sorted(path.name for path in marks.iterdir())}


def seeds(spark: SparkSession, directory: str, queue: str, count: str, commit: str) -> dict[str, Any]:
    report = seed(rows(spark, int(count), 4), queue, commit=commit)
    return {"rows": report.rows, "repeated": report.repeated}


def connect(spark: SparkSession, directory: str, queue: str) -> dict[str, Any]:
    drained = jobs.drain(spark, queue, f"{directory}/drained", square)
    states = jobs.audit(spark, queue).states
    try:
        jobs.report(spark, f"{directory}/nothing", f"{directory}/report")
        refused = ""
    except Exception as error:
        refused = type(error).__name__
    results = [row.result for row in jobs.results(spark, f"{directory}/drained").collect()]
    return {"drained": drained.as_dict(), "states": states, "results": results, "refused": refused}


PROGRAMS = {"connect": connect, "seeds": seeds, "seeds_with_trouble": seeds_with_trouble}


def main(master: str, directory: str, name: str, *arguments: str) -> None:
    conf = json.loads(os.environ.get("TEST_CONF", "{}"))
    if "DIE_AT" in os.environ:
        os.environ["DRIVER"] = str(os.getpid())
    spark = session(master, directory, **conf)
    if name == "several":
        for one in json.loads(arguments[0]):
            print(json.dumps(PROGRAMS[one[0]](spark, directory, *one[1:])), flush=True)
    else:
        print(json.dumps(PROGRAMS[name](spark, directory, *arguments)), flush=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
