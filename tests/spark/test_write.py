"""Writing DataFrames into queues: all or nothing, once, and nothing that JSON cannot hold."""

from __future__ import annotations

import datetime
import math
import os
import struct
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fsqueue import InvalidArgument, InvalidTask, Queue, QueueExists, QueueNotFound
from fsqueue.upkeep import collect
from tests.levels import each_once, thorough
from tests.spark.conftest import staged_in, until_reaped
from tests.support import QueueFactory, age_staging, leftovers

pytest.importorskip("pyarrow", reason="PyArrow is not installed: pip install 'fsqueue-tasks[spark]'")
pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'fsqueue-tasks[spark]'")

import pandas as pd
import pyarrow as pa
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession, types
from pyspark.sql import functions as F

from fsqueue.spark import options, seed, writing
from fsqueue.spark.writing import FsqueueWriter

CLOCKS_S = 1.0
"""The file server's clock and this process's may differ by a tick."""


def rows(spark: SparkSession, count: int, partitions: int = 3) -> DataFrame:
    return spark.range(0, count, 1, partitions).select(F.col("id").alias("n"), F.lit("ü\n\"'\\").alias("text"))


def write(df: DataFrame, queue: Queue | Path, **options: str) -> None:
    df.write.format("fsqueue").mode("append").options(**options).save(str(getattr(queue, "path", queue)))


def payloads(queue: Queue) -> list[Any]:
    return [task.payload for task in queue.tasks()]


def numbers(queue: Queue) -> list[int]:
    return sorted(payload["n"] for payload in payloads(queue))


# -- what becomes of a row ------------------------------------------------------------------------------------

EVERYTHING = types.StructType(
    [
        types.StructField("text", types.StringType()),
        types.StructField("yes", types.BooleanType()),
        types.StructField("byte", types.ByteType()),
        types.StructField("short", types.ShortType()),
        types.StructField("int", types.IntegerType()),
        types.StructField("long", types.LongType()),
        types.StructField("float", types.FloatType()),
        types.StructField("double", types.DoubleType()),
        types.StructField("day", types.DateType()),
        types.StructField("at", types.TimestampType()),
        types.StructField("local", types.TimestampNTZType()),
        types.StructField("list", types.ArrayType(types.DateType())),
        types.StructField("map", types.MapType(types.StringType(), types.DoubleType())),
        types.StructField(
            "in.side", types.StructType([types.StructField("a", types.ArrayType(types.TimestampType()))])
        ),
    ]
)
UTC = datetime.UTC
AT = datetime.datetime(2026, 11, 21, 15, 4, 5, 123456, UTC)
DAY = datetime.date(2026, 11, 21)
LOCAL = AT.replace(microsecond=1, tzinfo=None)
VALUES = (
    'ünï"\n\\\u2028\x01', True, -128, -32768, -(2**31), -(2**63), 0.5, 1e300, DAY, AT, LOCAL,
    [DAY, None], {"b": 1.5, "a": None}, {"a": [AT]},
)  # fmt: skip
JSON = {
    "text": VALUES[0], "yes": True, "byte": -128, "short": -32768, "int": -(2**31), "long": -(2**63), "float": 0.5,
    "double": 1e300, "day": "2026-11-21", "at": "2026-11-21T15:04:05.123456Z",
    "local": "2026-11-21T15:04:05.000001", "list": ["2026-11-21", None], "map": {"b": 1.5, "a": None},
    "in.side": {"a": ["2026-11-21T15:04:05.123456Z"]},
}  # fmt: skip


@pytest.mark.oldest
def test_both_ways_make_the_same_payloads_of_all_types(spark: SparkSession, queue_factory: QueueFactory) -> None:
    df = spark.createDataFrame([VALUES, (None,) * len(VALUES)], EVERYTHING).coalesce(1)
    one, other = queue_factory("one"), queue_factory("other")
    write(df, one)
    report = seed(df, str(other.path))
    assert payloads(one) == payloads(other) == [JSON, dict.fromkeys(JSON)]
    assert list(payloads(one)[0]) == list(payloads(other)[0]) == list(JSON)
    assert (report.rows, report.batches, report.repeated) == (2, 1 if other.settings.batch_tasks_max > 1 else 2, False)
    assert report.bytes == sum(path.stat().st_size for path in other.path.rglob("queue/*/*.jsonl"))


@pytest.mark.parametrize(
    ("kind", "value", "payload"),
    [
        ("STRING", 'a "text"\n', 'a "text"\n'),
        thorough("BIGINT", 7, 7),
        ("DOUBLE", None, None),
        thorough("DATE", DAY, "2026-11-21"),
        thorough("ARRAY<STRING>", ["a", None], ["a", None]),
        ("MAP<STRING, INT>", {"a": 1}, {"a": 1}),
        ("STRUCT<a: INT, b: ARRAY<INT>>", {"a": None, "b": []}, {"a": None, "b": []}),
        thorough("STRUCT<a: INT>", None, None),
        ("BINARY", bytes(range(256)), bytes(range(256))),
        thorough("BINARY", None, None),
    ],
)
def test_a_column_as_the_payload(
    spark: SparkSession, queue_factory: QueueFactory, kind: str, value: Any, payload: Any
) -> None:
    df = spark.createDataFrame([(1, value)], f"n INT, `the.payload` {kind}")
    one, other = queue_factory("one"), queue_factory("other")
    write(df, one, payload="the.payload")
    seed(df, str(other.path), payload="the.payload")
    assert payloads(one) == payloads(other) == [payload]


def test_json_text_as_the_payload(spark: SparkSession, queue: Queue) -> None:
    df = spark.createDataFrame([(' {"a": [1, 2.50, null]} ',), ("null",), (None,)], "doc STRING").coalesce(1)
    write(df, queue, payload="doc", payloadFormat="json")
    assert payloads(queue) == [{"a": [1, 2.5, None]}, None, None]


def test_text_that_is_no_json_is_refused_and_nothing_is_inserted(spark: SparkSession, queue: Queue) -> None:
    df = spark.createDataFrame([("{}",), ("{",)], "doc STRING").coalesce(1)
    with pytest.raises(PySparkException, match="Row 2: the payload is not JSON"):
        write(df, queue, payload="doc", payloadFormat="json")
    assert queue.status().inserted == 0
    assert leftovers(queue) == []


SHAPES = {
    "DOUBLE": math.inf,
    "ARRAY<FLOAT>": [1.0, math.nan],
    "MAP<STRING, DOUBLE>": {"a": -math.inf},
    "STRUCT<`a.b`: ARRAY<DOUBLE>>": {"a.b": [None, math.nan]},
}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", SHAPES)
def test_numbers_that_json_does_not_have_are_refused(spark: SparkSession, queue: Queue, kind: str) -> None:
    df = spark.createDataFrame([(1, None), (2, SHAPES[kind])], f"n INT, x {kind}")
    with pytest.raises(InvalidTask, match=r"Task number 1: the payload contains .*, which JSON does not have"):
        seed(df, str(queue.path))
    if kind == "DOUBLE":
        with pytest.raises(PySparkException, match="which JSON does not have"):
            write(df, queue)
    assert queue.status().inserted == 0


def test_times_are_utc_whatever_the_sessions_zone_is(spark: SparkSession, queue: Queue) -> None:
    spark.conf.set("spark.sql.session.timeZone", "Asia/Tokyo")
    try:
        df = spark.createDataFrame([(AT, {"a": AT})], "at TIMESTAMP, more MAP<STRING, TIMESTAMP>")
        write(df, queue)
    finally:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
    assert payloads(queue) == [{"at": JSON["at"], "more": {"a": JSON["at"]}}]


def test_text_that_is_no_utf8_is_refused(spark: SparkSession, queue: Queue) -> None:
    df = spark.sql("SELECT CAST(X'61FF' AS STRING) AS a")
    with pytest.raises(InvalidTask, match="no UTF-8"):
        seed(df, str(queue.path))
    assert queue.status().inserted == 0


@pytest.mark.parametrize(
    "inside", ["array(a)", thorough("map('k', a)"), "map(a, 1)", thorough("named_struct('b', array(a))")]
)
def test_text_that_is_no_utf8_is_refused_wherever_it_is(spark: SparkSession, queue: Queue, inside: str) -> None:
    df = spark.sql(f"SELECT {inside} AS x FROM (SELECT CAST(X'EDA080' AS STRING) AS a)")
    with pytest.raises(InvalidTask, match="no UTF-8"):
        seed(df, str(queue.path))
    assert queue.status().inserted == 0
    seed(spark.sql(f"SELECT {inside} AS x FROM (SELECT '\ufffd' AS a)"), str(queue.path))  # which is a character
    assert "\ufffd" in str(payloads(queue))


@each_once(("kind", ["DATE", "TIMESTAMP", "TIMESTAMP_NTZ"]), ("policy", ["CORRECTED", "LEGACY"]))
def test_times_of_all_years_that_json_has_are_written(
    spark: SparkSession, queue_factory: QueueFactory, kind: str, policy: str
) -> None:
    spark.conf.set("spark.sql.legacy.timeParserPolicy", policy)
    try:
        times = ("0001-01-01T00:00:00.000001", "1582-10-10T12:00:00.000000", "9999-12-31T23:59:59.999999")
        df = spark.createDataFrame([(text,) for text in times], "t STRING").coalesce(1)
        df = df.select(F.array(F.col("t").cast(kind)).alias("x"))
        one, other = queue_factory("one"), queue_factory("other")
        seed(df, str(one.path))
        write(df, other)
        ending = {"DATE": "", "TIMESTAMP": "Z", "TIMESTAMP_NTZ": ""}[kind]
        wanted = [(text[:10] if kind == "DATE" else text) + ending for text in times]
        assert [row["x"] for row in payloads(one)] == [row["x"] for row in payloads(other)] == [[one] for one in wanted]
        late = spark.sql(f"SELECT map('a', CAST('+10000-01-01' AS {kind})) AS x")
        with pytest.raises(InvalidTask, match="years 1 to 9999"):
            seed(late, str(one.path))
        with pytest.raises(PySparkException, match="years 1 to 9999"):
            write(late, other)
    finally:
        spark.conf.unset("spark.sql.legacy.timeParserPolicy")


def test_columns_may_be_named_anything(spark: SparkSession, queue: Queue) -> None:
    df = spark.createDataFrame([(1, 2, 3, 0.0, 5)], '`a.b` INT, A INT, `a` INT, line DOUBLE, `c"0` INT')
    seed(df, str(queue.path), delay_s="line")
    assert payloads(queue) == [{"a.b": 1, "A": 2, "a": 3, 'c"0': 5}]
    seed(df.select("line"), str(queue.path), delay_s="line")
    assert sorted(payloads(queue), key=len) == [{}, {"a.b": 1, "A": 2, "a": 3, 'c"0': 5}]


@pytest.mark.thorough
def test_floats_are_the_same_both_ways(spark: SparkSession, queue_factory: QueueFactory) -> None:
    numbers = [0.1, 1.0, -0.0, 1e16, 1e-7, 123456.789, 1e38]
    df = spark.createDataFrame([(x, x, [x]) for x in numbers], "f FLOAT, d DOUBLE, a ARRAY<FLOAT>").coalesce(1)
    one, other = queue_factory("one"), queue_factory("other")
    seed(df, str(one.path))
    write(df, other)
    for row, same in zip(payloads(one), payloads(other), strict=True):
        for text in (row["f"], row["a"][0]):  # older Javas write more digits of a float than it has
            assert struct.pack("f", text) == struct.pack("f", same["f"]) == struct.pack("f", same["a"][0])
    assert (
        [repr(row["d"]) for row in payloads(one)]
        == [repr(row["d"]) for row in payloads(other)]
        == [*map(repr, numbers)]
    )
    assert payloads(one)[0]["f"] == payloads(other)[0]["f"] == 0.1


@pytest.mark.oldest
def test_delays_come_from_a_column_or_are_all_the_same(spark: SparkSession, queue_factory: QueueFactory) -> None:
    df = spark.createDataFrame([(n, None if n == 3 else float(n % 3) * 1000) for n in range(9)], "n INT, wait DOUBLE")
    one, other = queue_factory("one"), queue_factory("other")
    began = time.time()
    write(df, one, delay_s="wait")
    seed(df, str(other.path), delay_s="wait")
    ended = time.time()
    for queue in (one, other):
        assert payloads(queue)[0].keys() == {"n"}  # what says when is no part of what is to be done
        assert (queue.status().waiting, queue.status().delayed) == (3, 6)
        assert sorted(task.payload["n"] for task in queue.tasks("waiting")) == [0, 3, 6]
        inserted = [task.available_at - task.payload["n"] % 3 * 1000 for task in queue.tasks("delayed")]  # type: ignore[operator]
        assert all(began - CLOCKS_S <= at <= ended + CLOCKS_S for at in inserted)
    all_same = queue_factory("all")
    seed(df, str(all_same.path), delay_s=500)
    assert all_same.status().delayed == 9
    assert payloads(all_same)[0].keys() == {"n", "wait"}


def test_a_delay_that_is_none_is_refused(spark: SparkSession, queue: Queue) -> None:
    df = spark.createDataFrame([(1, -1.0)], "n INT, wait DOUBLE")
    with pytest.raises(PySparkException, match="delays has a value that is none"):
        write(df, queue, delay_s="wait")
    assert queue.status().inserted == 0


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        ("a DECIMAL(5, 2)", {}, "column 'a' is decimal.*cast it to string"),
        ("a ARRAY<STRUCT<b: BINARY>>", {}, r"'a\[\]\.b' is binary.*base64"),
        ("a MAP<INT, INT>", {}, "map its keys to strings"),
        ("a INTERVAL DAY TO SECOND", {}, "cast it to string"),
        ("a INT", {"payload": "b"}, "names the column 'b'; there are a"),
        ("a INT", {"payload": "a", "payloadFormat": "json"}, "JSON text is string"),
        ("a STRING", {"delay_s": "a"}, "a delay is a number of seconds"),
        ("a STRING", {"delay_s": "b"}, "names the column 'b'"),
        ("a INT", {"payloadFormat": "json"}, "in the column that the option `payload` names"),
        ("a DOUBLE", {"priority": "a"}, "column 'a' is double; a priority is text or a whole number"),
        ("a INT", {"priority": "b"}, "`priority` names the column 'b'"),
        ("a BOOLEAN", {"key": "a"}, "column 'a' is boolean; a key is text or a whole number"),
        ("a INT", {"key": "b"}, "`key` names the column 'b'"),
        ("a INT", {"key": "a", "commit": "c"}, "A named commit takes no keys"),
        ("a INT", {"key": "a", "batch_tasks": "3"}, "leave out the option `batch_tasks`"),
        ("a INT", {"key": "a", "ifExists": "error"}, "`ifExists` is append or create"),
        ("a INT", {"ifExist": "ignore"}, "no option 'ifexist'.*Did you mean 'ifexists'"),
        ("a INT", {"ifExists": "maybe"}, "`ifExists` is one of append, create, error, ignore"),
        ("a INT", {"commit": "a/b"}, "(?i)commit"),
        ("a INT", {"batch_tasks": "0"}, "`batch_tasks` is a whole number"),
    ],
)
def test_what_cannot_be_written_is_refused_by_name(
    spark: SparkSession, queue: Queue, schema: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException, match=f"(?s){said}"):
        write(spark.createDataFrame([], schema), queue, **options)
    assert queue.status().inserted == 0


def test_two_columns_of_one_name_are_refused(spark: SparkSession, queue: Queue) -> None:
    df = rows(spark, 3).select("n", F.col("n").alias("m"), F.col("n").alias("m"))
    with pytest.raises(InvalidArgument, match="several columns named 'm'"):
        seed(df, str(queue.path))


def test_seed_says_what_is_wrong_in_the_words_of_fsqueue(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="decimal"):
        seed(rows(spark, 3).withColumn("x", F.lit(1).cast("decimal(3, 1)")), str(queue.path))
    with pytest.raises(QueueNotFound, match="ifExists=create"):
        seed(rows(spark, 3), str(tmp_path / "nowhere"))
    with pytest.raises(InvalidArgument, match="one of append"):
        seed(rows(spark, 3), str(queue.path), if_exists="perhaps")
    with pytest.raises(InvalidArgument, match=r"not a DataFrame of pandas. spark.createDataFrame"):
        seed(pd.DataFrame({"n": [1]}), str(queue.path))  # type: ignore[arg-type]
    assert not (tmp_path / "nowhere").exists()


# -- batches ----------------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@pytest.mark.parametrize("by", ["write", "seed"])
def test_batches_are_full_and_no_larger_than_they_may_be(
    spark: SparkSession, queue_factory: QueueFactory, by: str
) -> None:
    queue = queue_factory()
    size = queue.settings.batch_tasks_max
    df = rows(spark, 5000, 2)
    seed(df, str(queue.path)) if by == "seed" else write(df, queue)
    counts = Counter(int(path.stem.split("-")[2]) for path in queue.path.rglob("queue/*/*.jsonl"))
    assert counts == ({1024: 4, 2500 - 2 * 1024: 2} if size == 1024 else {1: 5000})
    assert numbers(queue) == list(range(5000))
    assert list(queue.fsck()) == []


@pytest.mark.thorough
def test_large_rows_make_smaller_batches(spark: SparkSession, queue: Queue) -> None:
    df = spark.range(0, 20, 1, 1).select("id", F.repeat(F.lit("x"), 300_000).alias("x"))
    report = seed(df, str(queue.path))
    assert (report.rows, report.batches) == (20, 7 if queue.settings.batch_tasks_max > 1 else 20)
    big = spark.range(0, 3, 1, 1).select("id", F.repeat(F.lit("x"), 3_000_000).alias("x"))
    assert seed(big, str(queue.path)).batches == 3
    assert list(queue.fsck()) == []


def test_a_task_larger_than_the_queue_takes_is_refused(spark: SparkSession, queue_factory: QueueFactory) -> None:
    queue = queue_factory(task_bytes_max=1000)
    df = spark.range(0, 20, 1, 1).select("id", F.repeat(F.lit("x"), 2000).alias("x"))
    for action in (lambda: write(df, queue), lambda: seed(df, str(queue.path))):
        with pytest.raises(Exception, match="this queue accepts up to 1,000"):
            action()
    assert queue.status().inserted == 0


@pytest.mark.thorough
def test_batch_tasks_makes_them_as_small_as_asked_for(spark: SparkSession, queue: Queue) -> None:
    seed(rows(spark, 100, 1), str(queue.path), batch_tasks=7)
    assert len(list(queue.path.rglob("queue/*/*.jsonl"))) == (15 if queue.settings.batch_tasks_max > 1 else 100)


# -- once ----------------------------------------------------------------------------------------------------------


@pytest.mark.oldest
def test_a_named_commit_is_written_once(spark: SparkSession, queue: Queue) -> None:
    for _ in range(2):
        write(rows(spark, 50), queue, commit="seed-1")
    again = seed(rows(spark, 50), str(queue.path), commit="seed-1")
    assert (again.repeated, again.rows) == (True, 50)
    with pytest.raises(InvalidArgument, match=r"with 50 tasks, and here are 70 rows"):
        seed(rows(spark, 70), str(queue.path), commit="seed-1")
    with pytest.raises(Exception, match=r"with 50 tasks, and here are 49 rows"):
        write(rows(spark, 49), queue, commit="seed-1")
    assert numbers(queue) == list(range(50))
    first = seed(rows(spark, 5), str(queue.path), commit="seed-2")
    assert (first.repeated, first.rows, first.commit) == (False, 5, "seed-2")
    known = queue.commit("seed-1").committed()
    assert known is not None
    assert (known.tasks, known.files > 0, known.bytes > 0) == (50, True, True)
    assert sorted(os.listdir(queue.store.layout.staging)) == []


@pytest.mark.one_in(2)
@pytest.mark.parametrize("theirs", [10, 3])
def test_who_loses_to_another_driver_is_told_so(spark: SparkSession, queue: Queue, theirs: int) -> None:
    """The other one publishes the name after this one has looked for it."""
    path = str(queue.path)

    def other(batches: Any) -> Any:
        commit = Queue(path).commit("once")
        commit.publish([commit.stage(range(theirs))])
        yield from batches

    mine = spark.range(0, 10, 1, 1).mapInArrow(other, "id BIGINT")
    if theirs == 10:
        report = seed(mine, path, commit="once")
        assert (report.repeated, report.rows) == (True, 10)
    else:
        with pytest.raises(InvalidArgument, match="with 3 tasks, and here are 10 rows"):
            seed(mine, path, commit="once")
    assert queue.status().inserted == theirs
    assert list(queue.path.rglob("staging/*/*")) == []


@pytest.mark.thorough
def test_writes_without_a_name_add_up(spark: SparkSession, queue: Queue) -> None:
    for _ in range(2):
        write(rows(spark, 5), queue)
    assert queue.status().waiting == 10


def test_no_rows_are_a_commit_too_and_other_rows_are_told_so(spark: SparkSession, queue: Queue) -> None:
    assert seed(rows(spark, 0), str(queue.path), commit="none").rows == 0
    assert seed(rows(spark, 0), str(queue.path), commit="none").repeated
    with pytest.raises(InvalidArgument, match="with 0 tasks, and here are 10 rows"):
        seed(rows(spark, 10), str(queue.path), commit="none")
    write(rows(spark, 0), queue, commit="none")
    with pytest.raises(Exception, match="with 0 tasks, and here are 10 rows"):
        write(rows(spark, 10), queue, commit="none")
    assert queue.status().inserted == 0


def test_a_job_that_fails_leaves_nothing(spark: SparkSession, queue: Queue) -> None:
    last_fails = F.when(F.col("n") < 29_999, F.col("n")).otherwise(F.raise_error("boom"))
    bad = rows(spark, 30_000).coalesce(1).withColumn("n", last_fails)
    with pytest.raises(PySparkException, match="boom"):
        seed(bad, str(queue.path), commit="c")
    assert queue.status().inserted == 0
    until_reaped(queue)
    assert seed(rows(spark, 10), str(queue.path), commit="c").rows == 10  # a failed attempt does not burn the name


def test_what_a_writer_stages_after_its_job_was_given_up_is_reaped_a_week_later(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It makes the attempt's directory again, which the driver has removed."""
    monkeypatch.setattr(writing, "PART_BYTES_MAX", 0)  # nothing is small enough for a message
    given = options.writing({"path": str(queue.path), "commit": "c"})
    driver = FsqueueWriter(given, types.StructType().add("n", "long"), False)
    early, late = (cloudpickle.loads(cloudpickle.dumps(driver)) for _ in range(2))
    batch = pa.RecordBatch.from_pydict({"n": [1, 2]})

    early.write(iter([batch]))
    assert len(staged_in(queue)) == 3  # the directory, the lock, a task file
    driver.abort([])
    assert staged_in(queue) == []
    late.write(iter([batch]))
    assert len(staged_in(queue)) == 3
    age_staging(queue, collect.ATTEMPT_AGE_S - 60)
    assert queue.gc().attempts_reaped == 0
    assert len(staged_in(queue)) == 3
    age_staging(queue, collect.ATTEMPT_AGE_S + 60)
    assert queue.gc().attempts_reaped == 1
    assert staged_in(queue) == []
    assert queue.status().inserted == 0


def test_a_purge_forgets_the_commit(spark: SparkSession, queue: Queue) -> None:
    seed(rows(spark, 10), str(queue.path), commit="c")
    queue.purge()
    assert not seed(rows(spark, 10), str(queue.path), commit="c").repeated
    assert queue.status().waiting == 10


# -- whether there is a queue ----------------------------------------------------------------------------------------


def test_if_exists(spark: SparkSession, tmp_path: Path) -> None:
    path = tmp_path / "deep" / "q"
    with pytest.raises(PySparkException, match="There is no queue"):
        write(rows(spark, 3), path)
    write(rows(spark, 3), path, ifExists="create")
    write(rows(spark, 3), path, ifExists="create")
    assert Queue(path).status().waiting == 6
    write(rows(spark, 3), path, ifExists="ignore")
    assert Queue(path).status().waiting == 6
    assert seed(rows(spark, 3), str(path), if_exists="ignore").rows == 0
    with pytest.raises(QueueExists, match="has tasks in it already"):
        seed(rows(spark, 3), str(path), if_exists="error")
    fresh = tmp_path / "fresh"
    for _ in range(2):  # a repeat of the commit that made it is no error
        write(rows(spark, 3), fresh, ifExists="error", commit="c")
    assert Queue(fresh).status().waiting == 3


def test_an_empty_queue_left_by_a_driver_that_died_is_no_reason_to_refuse(spark: SparkSession, queue: Queue) -> None:
    seed(rows(spark, 3), str(queue.path), if_exists="error")
    assert queue.status().waiting == 3


@pytest.mark.oldest
def test_overwriting_leaves_what_is_new_and_nothing_else(spark: SparkSession, queue: Queue) -> None:
    queue.insert(1)
    for name in ("first", "second", "second"):  # the repeated one adds nothing
        rows(spark, 3).write.format("fsqueue").mode("overwrite").option("commit", name).save(str(queue.path))
        fresh = Queue(queue.path)
        assert (fresh.status().inserted, fresh.status().waiting) == (3, 3)
    assert fresh.generation == 3
    with pytest.raises(PySparkException, match="contradict each other"):
        rows(spark, 3).write.format("fsqueue").mode("overwrite").option("ifExists", "error").save(str(queue.path))
    assert Queue(queue.path).status().waiting == 3


@pytest.mark.slow
@pytest.mark.thorough
def test_a_million_rows(spark: SparkSession, queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    report = seed(spark.range(0, 1_000_000, 1, 4), str(queue.path), commit="million")
    assert (report.rows, queue.status().waiting) == (1_000_000, 1_000_000)
    read = spark.read.format("fsqueue").schema("payload STRUCT<id: BIGINT>").load(str(queue.path))
    counted = read.agg(F.count("*"), F.sum("payload.id"), F.countDistinct("payload.id")).first()
    assert counted is not None
    assert tuple(counted) == (1_000_000, 999_999 * 500_000, 1_000_000)
