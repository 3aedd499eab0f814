"""Priorities and keys: of rows that are written, and in the views."""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from fsqueue import InvalidTask, Queue, Task
from fsqueue.format import names
from fsqueue.format.names import TaskFileName
from fsqueue.format.priority import rank_of
from tests.support import QueueFactory, leftovers

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'fsqueue-tasks[spark]'")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from fsqueue.spark import keyed_rows, schemas, seed, writing
from fsqueue.spark.options import WriteOptions
from tests.levels import each_once
from tests.spark.test_stream import Stream, stream  # noqa: F401 - a fixture

Way = Callable[..., None]


def by_write(df: DataFrame, queue: Queue, **options: str) -> None:
    df.write.format("fsqueue").mode("append").options(**options).save(str(queue.path))


def by_seed(df: DataFrame, queue: Queue, **options: str) -> None:
    seed(df, str(queue.path), **options)  # type: ignore[arg-type]


PART = r"The number counts the rows of partition 0 of the DataFrame\."
WAYS = [by_write, by_seed]
BOTH = pytest.mark.parametrize("way", WAYS)


def leased(queue: Queue) -> list[Any]:
    """Return payloads and priorities in the exact order."""
    return [(task.payload, task.priority) for task in Queue(queue.path).lease(1000, strict=True)]


def view(spark: SparkSession, queue: Queue, **options: str) -> list[Row]:
    return spark.read.format("fsqueue").options(**options).load(str(queue.path)).collect()


# -- priorities -----------------------------------------------------------------------------------------------


@pytest.mark.one_in(2)
@each_once(
    (
        "kind, given",
        [
            ("STRING", ["b", "", None, 'a"\\\n', "é", "2026-11-30", "5"]),
            ("BIGINT", [2**63 - 1, 10, None, -(2**63), 9, 0]),
            ("INT", [10, None, -9, 9]),
            ("SMALLINT", [10, None, -9, 9]),
            ("TINYINT", [10, None, -9, 9]),
        ],
    ),
    ("way", WAYS),
)
def test_tasks_come_in_the_order_of_their_priorities(
    spark: SparkSession, queue: Queue, way: Way, kind: str, given: list[Any]
) -> None:
    df = spark.createDataFrame(list(enumerate(given)), f"n INT, `a.p` {kind}").coalesce(1)
    way(df, queue, priority="a.p")
    urgent = sorted(
        (one for one in given if one is not None), key=lambda one: one.encode() if kind == "STRING" else one
    )
    assert leased(queue) == [({"n": given.index(one), "a.p": one}, one) for one in [*urgent, None]]
    assert Queue(queue.path).has_priorities
    assert list(queue.fsck()) == []


@pytest.mark.oldest
@BOTH
def test_a_batch_holds_a_narrow_range(spark: SparkSession, queue: Queue, way: Way) -> None:
    """They are sorted within windows of as many tasks as a group of batches holds."""
    draw = random.Random(7)
    rows = [(number, draw.choice([None, draw.randrange(1000)])) for number in range(6000)]
    way(spark.createDataFrame(rows, "n INT, p INT").coalesce(1), queue, priority="p", batch_tasks="20")
    size = min(20, queue.settings.batch_tasks_max)
    urgent = [row for row in rows if row[1] is not None]
    windows = [urgent[at : at + 64 * size] for at in range(0, len(urgent), 64 * size)]
    ordered = [sorted(window, key=lambda row: row[1]) for window in windows]
    expected = [window[at : at + size] for window in ordered for at in range(0, len(window), size)]
    found = dict(contents(queue))
    assert sorted(batch for batch in found.values() if batch[0][1] is not None) == sorted(expected)
    others = [row for row in rows if row[1] is None]
    assert sorted(row for batch in found.values() for row in batch if row[1] is None) == others
    for name, batch in found.items():
        assert name.rank == rank_of(batch[0][1])


def contents(queue: Queue) -> Iterator[tuple[TaskFileName, list[Any]]]:
    """Yield the names of a queue's task files, and the number and the priority of each task."""
    for path in queue.path.rglob("queue/*/*.jsonl"):
        name = names.parse_task_file(path.name)
        assert name is not None
        lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
        yield name, [(line["payload"]["n"], line.get("priority")) for line in lines]


@each_once(("text", ["x" * 1025, "é" * 513]), ("way", WAYS))
def test_a_priority_that_is_too_long_is_named_and_nothing_is_inserted(
    spark: SparkSession, queue: Queue, way: Way, text: str
) -> None:
    df = spark.createDataFrame([(1, "a"), (2, text)], "n INT, p STRING").coalesce(1)
    with pytest.raises(
        Exception, match=rf"Task number 2: the priority takes 1,02[56] bytes.*begins with '{text[:50]}.*{PART}"
    ):
        way(df, queue, priority="p")
    assert queue.status().inserted == 0
    assert leftovers(queue) == []


def test_a_priority_that_is_no_utf8_is_refused(spark: SparkSession, queue: Queue) -> None:
    with pytest.raises(InvalidTask, match="no UTF-8"):
        seed(spark.sql("SELECT 1 AS n, CAST(X'61FF' AS STRING) AS p"), str(queue.path), payload="n", priority="p")
    assert queue.status().inserted == 0


def test_a_line_that_its_priority_makes_too_long_is_refused(spark: SparkSession, queue_factory: QueueFactory) -> None:
    queue = queue_factory(task_bytes_max=100)
    df = spark.createDataFrame([("x" * 70, "p"), ("x" * 70, "p" * 20)], "a STRING, p STRING").coalesce(1)
    with pytest.raises(InvalidTask, match="Task number 2 takes 119 bytes; this queue accepts up to 100"):
        seed(df, str(queue.path), payload="a", priority="p")


@pytest.mark.one_in(2)
@BOTH
def test_priorities_and_delays(spark: SparkSession, queue: Queue, way: Way) -> None:
    df = spark.createDataFrame([(n, n % 3, 1000.0 * (n % 2)) for n in range(6)], "n INT, line INT, lines DOUBLE")
    way(df.coalesce(1), queue, payload="n", priority="line", delay_s="lines")
    assert leased(queue) == [(0, 0), (4, 1), (2, 2)]
    assert {(task.payload, task.priority) for task in queue.tasks("delayed")} == {(3, 0), (1, 1), (5, 2)}


@pytest.mark.thorough
@BOTH
def test_a_payload_of_bytes_with_a_priority(spark: SparkSession, queue: Queue, way: Way) -> None:
    df = spark.createDataFrame([(b"\xff", 2), (b"", 1)], "b BINARY, p INT").coalesce(1)
    way(df, queue, payload="b", priority="p")
    assert leased(queue) == [(b"", 1), (b"\xff", 2)]


def test_overwriting_with_priorities(spark: SparkSession, queue: Queue) -> None:
    queue.insert("old")
    rows = spark.createDataFrame([(2,), (1,)], "p INT")
    rows.write.format("fsqueue").mode("overwrite").option("priority", "p").save(str(queue.path))
    assert leased(Queue(queue.path)) == [({"p": 1}, 1), ({"p": 2}, 2)]


@pytest.mark.thorough
def test_a_stream_with_priorities(stream: Stream, queue: Queue) -> None:  # noqa: F811
    stream.feed(5)
    stream.run(priority="n", payload="n")
    assert leased(queue) == [(n, n) for n in range(5)]


# -- keys -----------------------------------------------------------------------------------------------------


NO_SINGLES = pytest.mark.batched
"""With one task a batch a queue takes no keys."""


def keys_of(queue: Queue) -> Counter[Any]:
    return Counter(task.key for task in queue.tasks())


@pytest.mark.oldest
@NO_SINGLES
def test_rows_whose_keys_live_are_not_inserted(spark: SparkSession, queue: Queue) -> None:
    queue.insert("before", key="3")
    df = spark.range(0, 10, 1, 3).select("id", F.lit("x").alias("x"))
    first = seed(df, str(queue.path), key="id", payload="x")
    assert (first.rows, first.taken, first.commit, first.repeated) == (9, 1, None, False)
    by_write(df, queue, key="id", payload="x")
    assert keys_of(queue) == {str(n): 1 for n in range(10)}
    assert queue.status().inserted == 10
    for task in queue.lease(4):
        task.complete()
    again = seed(df, str(queue.path), key="id")
    assert (again.rows, again.taken) == (4, 6)
    assert list(queue.fsck()) == []


@pytest.mark.one_in(2)
@BOTH
@NO_SINGLES
def test_a_key_that_many_rows_have_is_inserted_once(spark: SparkSession, queue: Queue, way: Way) -> None:
    df = spark.range(0, 40, 1, 4).select((F.col("id") % 5).cast("string").alias("k"), "id")
    way(df, queue, key="k")
    assert keys_of(queue) == {str(n): 1 for n in range(5)}


@pytest.mark.thorough
@NO_SINGLES
def test_keys_with_priorities_delays_and_json(spark: SparkSession, queue: Queue) -> None:
    rows = [("a", 2, 0.0, "[1]"), ("b", 1, 0.0, "[2]"), ("c", None, 0.0, "null"), ("d", 0, 900.0, "{}")]
    df = spark.createDataFrame(rows, "k STRING, p INT, wait DOUBLE, doc STRING")
    by_write(df, queue, key="k", priority="p", delay_s="wait", payload="doc", payloadFormat="json")
    assert leased(queue) == [([2], 1), ([1], 2), (None, None)]
    assert [(task.key, task.priority) for task in queue.tasks("delayed")] == [("d", 0)]


@each_once(
    (
        "rows, said",
        [
            ([("a",), (None,), ("c",)], "Task number 2: its key is null"),
            ([("a",), ("",)], "Task number 2: the key is empty"),
            ([("a",), ("k" * 1025,)], r"Task number 2: the key takes 1,025 bytes; .* It begins with 'kkkkkkkkkk"),
        ],
    ),
    ("way", WAYS),
)
@NO_SINGLES
def test_what_is_no_key_is_refused(spark: SparkSession, queue: Queue, way: Way, rows: Any, said: str) -> None:
    with pytest.raises(Exception, match=rf"{said}.*{PART}"):
        way(spark.createDataFrame(rows, "k STRING").coalesce(1), queue, key="k")
    assert set(keys_of(queue)) <= {"a"}


@NO_SINGLES
def test_a_row_that_is_too_long_for_a_key_is_named(spark: SparkSession, queue: Queue) -> None:
    df = spark.createDataFrame([("a", 1), ("b", 70_000)], "k STRING, size INT").coalesce(1)
    df = df.select("k", F.expr("repeat('x', size)").alias("x"))
    said = f"Task number 2 takes 70,0[0-9]{{2}} bytes with its key; a task with a key may take 65,536.*{PART}"
    with pytest.raises(Exception, match=said):
        by_write(df, queue, key="k")
    assert keys_of(queue) == {"a": 1}


def test_keys_are_not_for_overwriting(spark: SparkSession, queue: Queue) -> None:
    queue.insert(1)
    with pytest.raises(PySparkException, match="inserted one by one, and overwriting replaces everything"):
        spark.range(3).write.format("fsqueue").mode("overwrite").option("key", "id").save(str(queue.path))
    assert queue.status().inserted == 1


def interrupted(path: str, completes: bool) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return rows that the writer refuses in a Spark task's first attempt, after it has inserted ten of them."""

    def rows_of(rows: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        if context.attemptNumber() and completes:
            for task in Queue(path).lease(2):
                task.complete()
        for some in rows:
            keys = [None if key == 13 and not context.attemptNumber() else key for key in some.column(0).to_pylist()]
            yield pa.RecordBatch.from_pydict({"id": pa.array(keys, pa.int64())})

    return rows_of


@each_once(("completes", [False, True]), ("way", WAYS))
@NO_SINGLES
def test_a_spark_task_that_is_repeated_inserts_what_is_missing(
    spark: SparkSession, queue: Queue, way: Way, completes: bool
) -> None:
    """Of the tasks that were done between the attempts it cannot know: those are inserted again."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", "5")
    try:
        df = spark.range(0, 20, 1, 1).repartition(1).mapInArrow(interrupted(str(queue.path), completes), "id BIGINT")
        way(df, queue, key="id")
    finally:
        spark.conf.unset("spark.sql.execution.arrow.maxRecordsPerBatch")
    assert keys_of(queue) == {str(n): 1 for n in range(20)}
    assert queue.status().completed == (2 if completes else 0)


@NO_SINGLES
def test_many_keys_are_advised_against(
    spark: SparkSession, queue: Queue, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keyed_rows, "KEYS_ADVISED", 3)
    with caplog.at_level(logging.WARNING, "fsqueue"):
        seed(spark.range(3), str(queue.path), key="id")
        assert caplog.text == ""
        seed(spark.range(4), str(queue.path), key="id")
        assert "To insert a whole set once, use a name instead" in caplog.text


@pytest.mark.thorough
@NO_SINGLES
def test_a_stream_with_keys(stream: Stream, queue: Queue) -> None:  # noqa: F811
    for count in (4, 3):
        stream.feed(count)
    stream.run(key="n", ifExists="create")
    assert keys_of(queue) == {str(n): 1 for n in range(7)}
    stream.forget_last_batch()
    stream.feed(2)
    stream.run(key="n")
    assert keys_of(queue) == {str(n): 1 for n in range(9)}
    assert list(Path(queue.store.layout.commits).glob("*")) == []


# -- views ----------------------------------------------------------------------------------------------------


@pytest.mark.oldest
@NO_SINGLES
def test_views_tell_priorities_and_keys(spark: SparkSession, queue_factory: QueueFactory) -> None:
    queue = queue_factory(task_bytes_max=1 << 20)
    large = {"k": "x" * 100_000}  # so that it gets a file of its own, and has no key
    queue.insert_many([Task(n, priority=given) for n, given in enumerate(["due", "5", '"', 5, -(2**63), None, ""])])
    queue.insert(7, key="seven", priority=7)
    queue.insert(large)
    queue.insert("quoted", key='la"rge')
    queue.insert_many([8, 9])
    expected = {
        "0": ("due", None),
        "1": ('"5"', None),
        "2": ('"\\""', None),
        "3": ("5", None),
        "4": (str(-(2**63)), None),
        "5": (None, None),
        "6": ('""', None),
        "7": ("7", "seven"),
        orjson.dumps(large).decode(): (None, None),
        '"quoted"': (None, 'la"rge'),
        "8": (None, None),
        "9": (None, None),
    }
    found = view(spark, queue)
    assert {row.payload: (row.priority, row.key) for row in found} == expected
    reading = spark.read.format("fsqueue")
    alone = reading.schema("priority STRING, key STRING").load(str(queue.path)).collect()
    assert Counter(map(tuple, alone)) == Counter(expected.values())
    (fields,) = reading.schema("payload STRUCT<k: STRING>").load(str(queue.path)).where("payload.k != ''").collect()
    assert fields.payload.k == large["k"]

    for task in queue.lease(100):
        task.bury("no")
    letters = view(spark, queue, view="dead")
    assert {row.payload: (row.priority, row.key) for row in letters} == expected
    info = queue.task(next(row.id for row in letters if row.key == "seven"))
    assert (info.key, info.priority) == ("seven", 7)


def test_a_priority_that_is_damaged_is_none(spark: SparkSession, queue: Queue) -> None:
    queue.insert_many([Task(1, priority=1), Task(2, priority=1)], batch_tasks=2)
    (path,) = queue.path.rglob("queue/*/*.jsonl")
    path.write_bytes(path.read_bytes().replace(b'"priority":1}', b'"priority":[],"key":8}'))
    assert {(row.payload, row.priority, row.key) for row in view(spark, queue)} == {
        ("1", None, None),
        ("2", None, None),
    }


def test_rows_with_the_columns_of_a_table_are_an_insert(spark: SparkSession) -> None:
    columns = schemas.schema_of("tasks", True)
    wanted = WriteOptions("/q")
    for names_of in (columns.names, columns.names[1:]):
        assert writing.is_insertion(wanted, type(columns)([columns[name] for name in names_of]))
    for names_of in (["payload"], columns.names[1:5], columns.names[1:12], [*columns.names[1:12], "queue"]):
        assert not writing.is_insertion(wanted, type(columns)([columns[name] for name in names_of]))


def test_sql_does_not_insert_priorities_and_keys(spark: SparkSession, queue: Queue) -> None:
    spark.sql(f"CREATE TABLE ordered USING fsqueue OPTIONS (path '{queue.path}')")
    try:
        for column in ("priority", "key"):
            with pytest.raises(PySparkException, match=f"The column '{column}' cannot be inserted"):
                spark.sql(f"INSERT INTO ordered (payload, {column}) VALUES ('1', '2')")
        spark.sql("INSERT INTO ordered (payload) VALUES ('1')")
    finally:
        spark.sql("DROP TABLE ordered")
    assert [task.payload for task in queue.tasks()] == [1]
