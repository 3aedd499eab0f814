"""Seeding a queue from a DataFrame: the JVM makes the lines of task files, the data source writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from pyspark.sql import functions, types

from fsqueue.clock import Clock, Entropy
from fsqueue.format.names import commit_name, new_uuid
from fsqueue.models import CommitReport
from fsqueue.queue import Queue
from fsqueue.spark import encoding, options
from fsqueue.spark.sessions import register, spark_errors
from fsqueue.storage import commits

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

TO_JSON = {
    "ignoreNullFields": "false",
    "timeZone": "UTC",
    "dateFormat": "yyyy-MM-dd",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS'Z'",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}
"""docs/spark.md, "Types", in the words of Spark."""
TIME_POLICY = "spark.sql.legacy.timeParserPolicy"
"""LEGACY has other formats, and a calendar of its own: then the rows are encoded in Python."""
NO_UTF8 = "\nfsqueue.errors.InvalidTask: A column of texts has a value that is no UTF-8: encode it, as base64(…) does."
"""As `spark_errors` finds it in what Spark says of a failure."""


@dataclass(frozen=True)
class SeedReport:
    """The result of a seeding: `rows` tasks in `batches` files of `bytes` together. `repeated`: another call did."""

    commit: str
    rows: int
    batches: int
    bytes: int
    repeated: bool

    @classmethod
    def of(cls, report: CommitReport, repeated: bool) -> SeedReport:
        """Return the report on a seeding by the report on its commit."""
        return cls(report.name, report.tasks, report.files, report.bytes, repeated)

    def as_dict(self) -> dict[str, Any]:
        """Return the fields by name, ready for JSON."""
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
    kind = payload_type(wanted, df.schema)
    if isinstance(kind, types.BinaryType) or df.sparkSession.conf.get(TIME_POLICY) == "LEGACY":
        columns = [column for column in df.columns if payload is None or column in (payload, wanted.delay_s)]
        rows = df.select(*(df[_quoted(column)] for column in columns)) if payload is not None else df
    else:
        rows = lines_of(df, wanted, kind)
        given |= {"payload": rows.columns[-1], options.MADE_OF: kind.json()}
    writer = rows.write.format("fsqueue").mode("append").options(**given)
    with spark_errors():
        writer.save()
    known = _committed(wanted.path, name)
    if known is None:  # the queue was there, and was to be left alone
        return SeedReport(name, 0, 0, 0, False)
    return SeedReport.of(known, not _is_own(wanted.path, name, attempt))


def payload_type(wanted: options.WriteOptions, schema: types.StructType) -> types.DataType:
    """Return the type of what becomes the payload."""
    if wanted.payload is not None:
        return schema[wanted.payload].dataType
    return types.StructType(encoding.payload_fields(wanted, schema))


def lines_of(df: DataFrame, wanted: options.WriteOptions, kind: types.DataType) -> DataFrame:
    """Return the lines of the rows' tasks in the last column, after the delays if a column holds them.

    The JVM replaces text that is no UTF-8 by U+FFFD: where that turns up, the row itself is looked at.
    """
    names = [f"c{number}" for number in range(len(df.columns))]  # the given ones may differ in case alone
    places = {name: functions.col(short) for name, short in zip(df.columns, names, strict=True)}
    if wanted.payload is not None:
        payload = places[wanted.payload]
    else:
        payload = functions.struct(*(places[name].alias(name) for name in kind.names))
    text = functions.to_json(functions.struct(payload.alias("payload")), TO_JSON).alias("text")
    made = df.toDF(*names).select(*names, text)
    line = functions.concat(functions.col("text"), functions.lit("\n"))
    if encoding.contains(kind, (types.StringType,)):
        is_replaced = functions.contains(functions.col("text"), functions.lit("\ufffd"))
        is_sound = functions.is_valid_utf8(payload.cast("string"))
        line = functions.when(is_replaced & ~is_sound, functions.raise_error(functions.lit(NO_UTF8))).otherwise(line)
    delays = [places[wanted.delay_s].alias(str(wanted.delay_s))] if wanted.delay_s in places else []
    return made.select(*delays, line.alias(_other(wanted)))


def _other(wanted: options.WriteOptions) -> str:
    """Return a name for the column of lines that the column of delays does not have."""
    return "line" if wanted.delay_s != "line" else "lines"


def _quoted(name: str) -> str:
    """Return a column's name as Spark takes it, dots and all."""
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
