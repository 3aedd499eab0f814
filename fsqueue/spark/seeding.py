"""Seeding a queue from a DataFrame: the JVM makes the lines of task files, the data source writes them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql import functions, types

from fsqueue.clock import Clock, Entropy
from fsqueue.commit import must_be_as_many
from fsqueue.errors import InvalidArgument, QueueNotFound
from fsqueue.format.models import AsDict, CommitReport
from fsqueue.format.names import commit_name, new_uuid
from fsqueue.queue import Queue
from fsqueue.spark import keyed_rows, options, stored_columns
from fsqueue.spark.sessions import register, spark_errors
from fsqueue.spark.writing import open_queue
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
"""docs/spark-write.md, "Types", in the words of Spark."""
TIME_POLICY = "spark.sql.legacy.timeParserPolicy"
"""LEGACY has other formats, and a calendar of its own: then the rows are encoded in Python."""
NO_UTF8 = "\nfsqueue.errors.InvalidTask: A column of texts has a value that is no UTF-8: encode it, as base64(…) does."
"""As `spark_errors` finds it in what Spark says of a failure."""


@dataclass(frozen=True)
class SeedReport(AsDict):
    """The result of a seeding: `rows` tasks in `batches` files of `bytes` together. `repeated`: another call did.

    Rows with keys are inserted one by one, without a commit, and have no files of their own. Of `taken` rows a task
    with the key was in the queue already. If Spark has repeated a part, what its first attempt inserted counts there.
    """

    commit: str | None
    rows: int
    batches: int
    bytes: int
    repeated: bool
    taken: int = 0

    @classmethod
    def of(cls, report: CommitReport, repeated: bool) -> SeedReport:
        """Return the report on a seeding by the report on its commit."""
        return cls(report.name, report.tasks, report.files, report.bytes, repeated)


def seed(
    df: DataFrame,
    path: str,
    *,
    commit: str | None = None,
    payload: str | None = None,
    delay_s: str | float | None = None,
    priority: str | None = None,
    key: str | None = None,
    if_exists: str = "append",
    batch_tasks: int | None = None,
) -> SeedReport:
    """Insert a DataFrame's rows as tasks, all of them at one instant; with a `commit` name once, however often called.

    The payload is the row as an object, or the column that `payload` names. `delay_s`: a number of seconds, or a
    column of them. `priority`: a column of texts or whole numbers; null is none. `if_exists`: "append" (the queue must
    be there), "create" (it is made if it is missing), "error", "ignore". InvalidArgument names a column that JSON
    cannot hold, or says that the commit was made before with another number of rows: these are counted. What Spark says
    of a failure stays as it is.

    `key`: a column of keys. Then the rows are inserted one by one, each unless a task with its key lives, and not all
    at one instant: after an error some are in the queue. Repeat the call, which inserts the others.
    """
    if not hasattr(df, "sparkSession"):
        raise InvalidArgument(
            f"seed takes a DataFrame of Spark, not a {type(df).__name__} of {type(df).__module__.partition('.')[0]}. "
            "spark.createDataFrame(…) makes one."
        )
    register(df.sparkSession)
    given = {"path": path, "ifexists": if_exists}
    for option, value in (
        ("commit", commit),
        ("payload", payload),
        ("delay_s", delay_s),
        ("priority", priority),
        ("key", key),
        ("batch_tasks", batch_tasks),
    ):
        if value is not None:
            given[option] = str(value)
    wanted = options.writing(given)
    stored_columns.check(wanted, df.schema)
    if wanted.key is not None:
        return _insert_keyed(_needed(df, wanted), wanted)
    name = commit or f"spark-{uuid4()}"
    if commit is not None and (known := _committed(wanted.path, commit)) is not None:
        with spark_errors():
            must_be_as_many(known, df.count(), "row")
        return SeedReport.of(known, True)
    given["commit"] = name
    attempt = given[options.ATTEMPT] = new_uuid(Entropy(), Clock().now_ms())
    kind = payload_type(wanted, df.schema)
    if isinstance(kind, types.BinaryType) or df.sparkSession.conf.get(TIME_POLICY) == "LEGACY":
        rows = _needed(df, wanted)
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


def _insert_keyed(rows: DataFrame, wanted: options.WriteOptions) -> SeedReport:
    insert = keyed_rows.CountedInsert(stored_columns.Encoder(wanted, rows.schema))
    open_queue(wanted)
    with spark_errors():
        done = keyed_rows.total(rows.mapInArrow(insert, keyed_rows.COUNTS).collect())
    return SeedReport(None, done.inserted, 0, 0, False, done.taken)


def _needed(df: DataFrame, wanted: options.WriteOptions) -> DataFrame:
    """Return the rows with the columns that become tasks."""
    if wanted.payload is None:
        return df
    named = (wanted.payload, wanted.delay_s, wanted.priority, wanted.key)
    columns = (column.replace("`", "``") for column in df.columns if column in named)
    return df.select(*(df[f"`{column}`"] for column in columns))  # quoted, dots and all


def payload_type(wanted: options.WriteOptions, schema: types.StructType) -> types.DataType:
    """Return the type of the column, or of the columns, that become the payload."""
    if wanted.payload is not None:
        return schema[wanted.payload].dataType
    return types.StructType(stored_columns.payload_fields(wanted, schema))


def lines_of(df: DataFrame, wanted: options.WriteOptions, kind: types.DataType) -> DataFrame:
    """Return the lines of the rows' tasks in the last column, after the columns of delays and priorities.

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
    if stored_columns.contains(kind, (types.StringType,)):
        is_replaced = functions.contains(functions.col("text"), functions.lit("\ufffd"))
        is_sound = functions.is_valid_utf8(payload.cast("string"))
        line = functions.when(is_replaced & ~is_sound, functions.raise_error(functions.lit(NO_UTF8))).otherwise(line)
    others = [name for name in df.columns if name in (wanted.delay_s, wanted.priority)]
    free = next(name for name in ("line", "lines", "task") if name not in others)
    return made.select(*(places[name].alias(name) for name in others), line.alias(free))


def _is_own(path: str, name: str, attempt: str) -> bool:
    """Return whether a commit inserted what this attempt staged: another driver may have published the name first."""
    store = Queue(path).store
    record = commits.find(store, store.layout, commit_name(name))
    return record is None or not record.parts or attempt in record.attempts()


def _committed(path: str, name: str) -> CommitReport | None:
    try:
        return Queue(path).commit(name).committed()
    except QueueNotFound:
        return None
