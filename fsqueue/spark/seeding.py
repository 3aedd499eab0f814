"""Seeding a queue from a DataFrame by the fastest correct route: JSON is made in the JVM, and written as it comes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fsqueue.queue import Queue
from fsqueue.spark import encoding, options
from fsqueue.spark.sessions import register, spark_errors
from fsqueue.task import CommitReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class SeedReport:
    """What a seeding inserted: `rows` tasks in `batches` files of `bytes` together. `repeated`: a former call did."""

    commit: str
    rows: int
    batches: int
    bytes: int
    repeated: bool

    @classmethod
    def of(cls, report: CommitReport, repeated: bool) -> SeedReport:
        """The same from a commit's report."""
        return cls(report.name, report.tasks, report.files, report.bytes, repeated)

    def as_dict(self) -> dict[str, Any]:
        """The fields by name, ready for JSON."""
        return dict(vars(self))


def seed(
    df: DataFrame,
    path: str,
    *,
    commit: str | None = None,
    payload: str | None = None,
    delay_s: str | float | None = None,
    if_exists: str = "append",
    batch_tasks: int | None = None,
) -> SeedReport:
    """Insert a DataFrame's rows as tasks, all of them at one instant; with a `commit` name once, however often called.

    The payload is the row as an object, or the column that `payload` names. `delay_s`: a number of seconds, or a
    column of them. `if_exists`: "append" (the queue must be there), "create" (it is made if it is missing), "error",
    "ignore". InvalidArgument names a column that JSON cannot hold. What Spark says of a failure stays as it is.
    """
    register(df.sparkSession)
    given = {"path": path, "ifexists": if_exists}
    for name, value in (("payload", payload), ("delay_s", delay_s), ("batch_tasks", batch_tasks)):
        if value is not None:
            given[name] = str(value)
    wanted = options.writing(given)
    encoding.check(wanted, df.schema)
    name = commit or f"spark-{uuid4()}"
    if commit is not None and (known := _committed(wanted.path, commit)) is not None:
        return SeedReport.of(known, True)
    line = encoding.line_of(wanted, df.schema).alias(encoding.LINE)
    columns = [line]
    writer_options = {"encoded": "true", "commit": name, "ifExists": if_exists}
    if encoding.is_number(wanted.delay_s) and wanted.delay_s not in df.columns:
        from pyspark.sql import functions as F

        columns.append(F.lit(float(wanted.delay_s or 0)).alias(encoding.DELAY))
    elif wanted.delay_s is not None:
        columns.append(df[encoding.quoted(wanted.delay_s)].alias(encoding.DELAY))
    if batch_tasks is not None:
        writer_options["batch_tasks"] = str(batch_tasks)
    writer = df.select(*columns).write.format("fsqueue").mode("append").options(**writer_options)
    with spark_errors():
        writer.save(path)
    known = _committed(wanted.path, name)
    if known is None:  # the queue was there, and was to be left alone
        return SeedReport(name, 0, 0, 0, False)
    return SeedReport.of(known, False)


def _committed(path: str, name: str) -> CommitReport | None:
    from fsqueue.errors import QueueNotFound

    try:
        return Queue(path).commit(name).committed()
    except QueueNotFound:
        return None
