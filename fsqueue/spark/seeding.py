"""Seeding a queue from a DataFrame: the columns that are needed go to the data source, and what it inserted is told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from fsqueue import commits
from fsqueue.clock import Clock, Entropy
from fsqueue.names import commit_name, new_uuid
from fsqueue.queue import Queue
from fsqueue.spark import encoding, options
from fsqueue.spark.sessions import register, spark_errors
from fsqueue.task import CommitReport

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class SeedReport:
    """What a seeding inserted: `rows` tasks in `batches` files of `bytes` together. `repeated`: another call did."""

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
    given["commit"] = name
    attempt = given[options.ATTEMPT] = new_uuid(Entropy(), Clock().now_ms())
    needed = df
    if payload is not None:
        columns = [column for column in df.columns if column in (payload, wanted.delay_s)]
        needed = df.select(*(df[_quoted(column)] for column in columns))
    writer = needed.write.format("fsqueue").mode("append").options(**given)
    with spark_errors():
        writer.save()
    known = _committed(wanted.path, name)
    if known is None:  # the queue was there, and was to be left alone
        return SeedReport(name, 0, 0, 0, False)
    return SeedReport.of(known, not _is_own(wanted.path, name, attempt))


def _quoted(name: str) -> str:
    """A column's name as Spark takes it, dots and all."""
    return "`" + name.replace("`", "``") + "`"


def _is_own(path: str, name: str, attempt: str) -> bool:
    """Return whether a commit inserted what this attempt staged: another driver may have published the name first."""
    store = Queue(path).store
    record = commits.find(store, store.layout, commit_name(name))
    return record is None or not record.parts or attempt in record.attempts()


def _committed(path: str, name: str) -> CommitReport | None:
    from fsqueue.errors import QueueNotFound

    try:
        return Queue(path).commit(name).committed()
    except QueueNotFound:
        return None
