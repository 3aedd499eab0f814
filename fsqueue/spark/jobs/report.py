"""What a queue went through, for people: every attempt as Parquet, and a page with charts and tables.

Everything is computed by Spark from the view `attempts`; what comes to the driver are a few hundred numbers, so memory
is bounded whatever the history's size.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from fsqueue.spark.jobs import charts
from fsqueue.spark.jobs.places import Place
from fsqueue.spark.sessions import register, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

STEPS_S = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 86_400, 7 * 86_400, 30 * 86_400)
POINTS = 60
"""Throughput over time has about so many points, a step of those apart."""
ROWS_MAX = 50
"""The page's tables have at most so many rows; the Parquet tables have all."""
QUANTILES = (0.5, 0.9, 0.99, 1.0)


@dataclass(frozen=True)
class Report:
    """The numbers of a report, and where it was written. Times are seconds; `throughput` is completions a step."""

    out: str
    attempts: dict[str, int]
    duration_s: list[float]
    wait_s: list[float]
    step_s: int
    throughput: list[tuple[float, int]]
    failures: list[dict[str, Any]]
    hosts: list[dict[str, Any]]

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, ready for JSON."""
        return asdict(self)


def report(spark: SparkSession, path: str, out: str) -> Report:
    """Write into the new directory `out`: `attempts`, `throughput`, `failures`, `hosts` as Parquet, and `report.html`.

    Of a queue, or of all queues in a directory; as far as the history goes back. Times waited are from when a task
    was available to its lease, durations from the lease to how it ended.
    """
    register(spark)
    place = Place(out)
    place.must_be_empty()
    with spark_errors():
        read = spark.read.format("fsqueue").option("view", "attempts").load(path)
        read.write.parquet(f"{place.path}/attempts")
        made = _Report(spark, place.path).make()
    place.write("report.html", charts.page(path, made))
    return made


class _Report:
    def __init__(self, spark: SparkSession, out: str) -> None:
        from pyspark.sql import functions as F

        self.out, self.F = out, F
        self.attempts = spark.read.parquet(f"{out}/attempts")
        self.spark = spark

    def make(self) -> Report:
        F = self.F
        outcomes = {row["outcome"]: row["count"] for row in self.attempts.groupBy("outcome").count().collect()}
        done = self.attempts.where("outcome = 'complete'")
        quantiles = [F.percentile_approx(name, list(QUANTILES)) for name in ("duration_s", "wait_s")]
        durations, waits = done.agg(*quantiles).collect()[0]
        first, last = done.agg(F.min("ended_at").cast("double"), F.max("ended_at").cast("double")).collect()[0]
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
        points = [(row["at"], row["completed"]) for row in throughput.orderBy("at").limit(10 * POINTS).collect()]
        return Report(
            self.out,
            dict(sorted(outcomes.items())),
            durations or [],
            waits or [],
            step,
            points,
            _rows(failures.orderBy(F.desc("attempts"), "reason", "host")),
            _rows(hosts.orderBy(F.desc("attempts"), "host")),
        )

    def _kept(self, df: DataFrame, name: str) -> DataFrame:
        """Written as Parquet, and read from there."""
        df.write.parquet(f"{self.out}/{name}")
        return self.spark.read.parquet(f"{self.out}/{name}")


def _rows(df: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in df.limit(ROWS_MAX).collect()]
