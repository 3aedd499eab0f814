"""A queue's history for people: every attempt as Parquet, and a page with charts and tables.

Everything is computed by Spark from the view `attempts`; what comes to the driver are a few hundred numbers, so memory
is bounded whatever the history's size.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from fsqueue.cluster.identity import describe
from fsqueue.queue import Queue
from fsqueue.spark.jobs.output_directory import Place
from fsqueue.spark.jobs.report_page import QueueReport, QueueSummary, page
from fsqueue.spark.options import reading
from fsqueue.spark.sessions import register, spark_errors
from fsqueue.storage.discovery import queues
from fsqueue.webpages import charts, rendering

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEPS_S = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 86_400, 7 * 86_400, 30 * 86_400)
POINTS = 60
"""Number of points of throughput over time, about, a step of those apart."""
ROWS_MAX = 50
"""Maximum number of rows of the page's tables; the Parquet tables have all."""
SLOWEST = 20
"""Number of the slowest tasks to name."""
EDGE = 1e-6
"""Largest distance, in bars, of a duration from an edge that it is meant to lie on: clocks count whole milliseconds."""
QUANTILES = (0.5, 0.9, 0.99, 1.0)


def report(spark: SparkSession, path: str, out: str) -> QueueReport:
    """Write into the new directory `out`: `attempts`, `throughput`, `failures`, `hosts` as Parquet, and `report.html`.

    Of a queue, or of all queues in a directory; as far as the history goes back. Times waited are from when a task
    was available to its lease, durations those of the work. Raise FsqueueError, before anything is done, if Jinja2 is
    not installed, and InvalidArgument if there is something in `out`.
    """
    rendering.environment()  # if it cannot be had, say so before the work
    register(spark)
    place = Place(out)
    place.must_be_empty()
    looked_at = time.time()
    with spark_errors():
        read = spark.read.format("fsqueue").option("view", "attempts").load(path)
        read.write.parquet(f"{place.path}/attempts")
        made = _Report(spark, place.path).make(looked_at, *_states(path))
    place.write("report.html", page(path, made))
    return made


def _states(path: str) -> tuple[list[QueueSummary], int]:
    """Return the state of each queue there, of the first `ROWS_MAX`, and how many queues there are."""
    found = [one for where in reading({"path": path}).paths for one in queues(where)]
    states = []
    for one in found[:ROWS_MAX]:
        with Queue(one) as queue:
            states.append(QueueSummary(one, queue.status().as_dict(), asdict(queue.settings)))
    return states, len(found)


class _Report:
    def __init__(self, spark: SparkSession, out: str) -> None:
        from pyspark.sql import functions as F

        self.out, self.F = out, F
        self.attempts = spark.read.parquet(f"{out}/attempts")
        self.spark = spark

    def make(self, looked_at: float, queues: list[QueueSummary], queue_count: int) -> QueueReport:
        F = self.F
        outcomes = {row["outcome"]: row["count"] for row in self.attempts.groupBy("outcome").count().collect()}
        done = self.attempts.where("outcome = 'complete'")
        quantiles = [F.percentile_approx(name, list(QUANTILES)) for name in ("duration_s", "wait_s", "held_s")]
        ends = [edge("ended_at").cast("double") for edge in (F.min, F.max)]
        durations, waits, helds, first, last, shortest = done.agg(*quantiles, *ends, F.min("duration_s")).collect()[0]
        step = next((step for step in STEPS_S if ((last or 0) - (first or 0)) / step <= POINTS), STEPS_S[-1])
        bucket = (F.floor(F.col("ended_at").cast("double") / step) * step).cast("double").alias("at")
        throughput = self._kept(done.groupBy(bucket).agg(F.count("*").alias("completed")).orderBy("at"), "throughput")
        what = F.regexp_replace(F.substring_index(F.coalesce("error", F.lit("")), "\n", 1), "[0-9]+", "#")
        failures = self._kept(
            self.attempts.where("outcome IN ('fail', 'bury', 'expired')")
            .groupBy("outcome", F.substring(what, 1, 200).alias("reason"), "host")
            .agg(F.count("*").alias("attempts"), F.min("id").alias("example"))
            .orderBy(F.desc("attempts"), "reason", "host"),
            "failures",
        )
        hosts = self._kept(
            self.attempts.groupBy("host")
            .agg(
                F.count("*").alias("attempts"),
                F.count_if(F.col("outcome") == "complete").alias("completed"),
                F.count_if(F.col("outcome").isin("fail", "bury")).alias("failed"),
                F.count_if(F.col("outcome") == "expired").alias("expired"),
                F.percentile_approx("duration_s", 0.5).alias("median_duration_s"),
            )
            .orderBy(F.desc("attempts"), "host"),
            "hosts",
        )
        bins = charts.bins_for(shortest, durations[-1]) if durations else None
        points = [(row["at"], row["completed"]) for row in throughput.orderBy("at").limit(10 * POINTS).collect()]
        return QueueReport(
            self.out,
            dict(sorted(outcomes.items())),
            durations or [],
            waits or [],
            step,
            points,
            _rows(failures.orderBy(F.desc("attempts"), "reason", "host")),
            _rows(hosts.orderBy(F.desc("attempts"), "host")),
            held_s=helds or [],
            durations=[] if bins is None else self._histogram(done, bins),
            is_log=bins is not None and bins.is_log,
            slowest=self._slowest(),
            queues=queues,
            queue_count=queue_count,
            looked_at=looked_at,
        )

    def _histogram(self, done: DataFrame, bins: charts.Bins) -> list[tuple[float, float, int]]:
        """Count the durations in each part of the axis; what lies at its ends or beyond counts to the first or last."""
        F = self.F
        took = F.col("duration_s")
        if bins.is_log:
            part = F.log(F.greatest(took, F.lit(bins.low)) / bins.low) / math.log(bins.high / bins.low)
        else:
            part = (took - bins.low) / (bins.high - bins.low)
        number = F.greatest(F.lit(0), F.least(F.floor(part * bins.count + EDGE), F.lit(bins.count - 1)))
        counts = {row["part"]: row["count"] for row in done.groupBy(number.alias("part")).count().collect()}
        return [(bins.edge(n), bins.edge(n + 1), counts.get(n, 0)) for n in range(bins.count)]

    def _slowest(self) -> list[dict[str, Any]]:
        """Return the tasks whose longest attempt took longest, of those that ended by themselves."""
        F = self.F
        ended = self.attempts.where("outcome IN ('complete', 'fail', 'bury') AND duration_s IS NOT NULL")
        ended = ended.withColumn("ended_at", F.col("ended_at").cast("double"))
        longest = ended.orderBy(F.desc("duration_s"), "id").limit(ROWS_MAX).collect()
        first = {row["id"]: row.asDict() for row in reversed(longest)}
        chosen = sorted(first.values(), key=lambda row: (-row["duration_s"], row["id"]))[:SLOWEST]
        ids = [row["id"] for row in chosen]
        known = self.attempts.where(F.col("id").isin(ids)).groupBy("id").count().collect() if ids else []
        attempts = {row["id"]: row["count"] for row in known}
        wanted = ("id", "queue", "duration_s", "held_s", "outcome")
        return [
            {name: row[name] for name in wanted if name in row}
            | {"attempts": attempts[row["id"]], "worker": describe(_worker(row)), "ended_at": row["ended_at"]}
            for row in chosen
        ]

    def _kept(self, df: DataFrame, name: str) -> DataFrame:
        """Write rows as Parquet files, and return a DataFrame that reads these files."""
        df.write.parquet(f"{self.out}/{name}")
        return self.spark.read.parquet(f"{self.out}/{name}")


def _rows(df: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in df.limit(ROWS_MAX).collect()]


def _worker(row: dict[str, Any]) -> dict[str, Any] | None:
    """Return what a row says of its worker: a record may hold anything."""
    try:
        found = json.loads(row["worker"] or "null")
    except ValueError:
        return None
    return found if isinstance(found, dict) else None
