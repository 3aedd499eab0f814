"""fsck at scale: the look of `fsqueue fsck`, spread over executors shard by shard, and the numbers added up."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fsqueue.format.models import COMPLETED, DEAD, DELAYED, LEASED, WAITING, AsDict
from fsqueue.spark.sessions import register, spark_errors

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

FINDINGS_MAX = 1000
"""Maximum number of findings that come to the driver; all of them are in the view `findings`."""


@dataclass(frozen=True)
class AuditReport(AsDict):
    """The result of an audit: `counts` of findings by kind, the first of them, how many tasks are in which state."""

    counts: dict[str, int]
    findings: list[dict[str, Any]]
    states: dict[str, int]

    @property
    def is_sound(self) -> bool:
        """Return whether nothing was found."""
        return not self.counts


def audit(spark: SparkSession, path: str) -> AuditReport:
    """Check a queue, or all queues in a directory, while others work on it. Nothing is mended: that is fsck's.

    The states are those of `Queue.status`, and exact of a queue that rests. They are counted shard by shard, so of a
    queue at work they are about right: what finishes meanwhile may be counted twice or not at all.
    """
    register(spark)

    def view(name: str) -> DataFrame:
        return spark.read.format("fsqueue").option("view", name).load(path)

    with spark_errors():
        findings = view("findings").cache()
        try:
            counts = {row["kind"]: row["count"] for row in findings.groupBy("kind").count().collect()}
            first = [row.asDict() for row in findings.limit(FINDINGS_MAX).collect()]
        finally:
            findings.unpersist()
        found = {row[0]: row[1] for row in view("states").groupBy("state").agg({"tasks": "sum"}).collect()}
    states = {state: found.get(state, 0) for state in (WAITING, DELAYED, LEASED, COMPLETED, DEAD)}
    return AuditReport(dict(sorted(counts.items())), first, states)
