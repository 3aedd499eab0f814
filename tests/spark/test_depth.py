"""Columns that nest deep: what passes through Arrow, and what is said of the rest."""

from __future__ import annotations

from typing import Any

import pytest

from fsqueue import InvalidArgument, Queue

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'fsqueue-tasks[spark]'")

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession, types
from pyspark.sql import functions as F

from fsqueue.spark import options, schemas, seed
from fsqueue.spark.columns import arrow_schema
from fsqueue.spark.stored_columns import Encoder

LONG, TEXT = types.LongType(), types.StringType()


def nested(kind: str, count: int) -> tuple[types.DataType, Any]:
    """Return a type of nested structs, lists or maps, with the given number of levels, and a value of it."""
    of: types.DataType = LONG
    value: Any = 1
    for _ in range(count):
        if kind == "struct":
            of, value = types.StructType([types.StructField("a", of)]), {"a": value}
        elif kind == "list":
            of, value = types.ArrayType(of), [value]
        else:
            of, value = types.MapType(TEXT, of), {"a": value}
    return of, value


def column(kind: types.DataType) -> types.StructType:
    return types.StructType([types.StructField("payload", kind)])


@pytest.mark.parametrize(("kind", "most"), [("struct", 62), ("list", 62), ("map", 31)])
def test_the_limit_is_that_of_arrows_streams(kind: str, most: int) -> None:
    """Spark wraps the columns of a stream in a struct."""
    for count in (most, most + 1):
        whole = pa.schema([pa.field("wrapped", pa.struct(list(arrow_schema(column(nested(kind, count)[0])))))])
        sink = pa.BufferOutputStream()

        def write(schema: pa.Schema = whole, sink: pa.BufferOutputStream = sink) -> None:
            with pa.ipc.new_stream(sink, schema) as stream:
                stream.write_batch(pa.RecordBatch.from_arrays([pa.nulls(1, schema[0].type)], schema=schema))

        if schemas.levels(nested(kind, count)[0]) <= schemas.LEVELS_MAX:
            write()
        else:
            with pytest.raises(pa.ArrowInvalid, match="recursion depth"):
                write()


@pytest.mark.parametrize("kind", ["struct", "list", "map"])
def test_a_column_that_is_too_deep_is_refused_with_what_to_do(kind: str) -> None:
    deep, _ = nested(kind, 63 if kind != "map" else 32)
    given = options.writing({"path": "/q"})
    with pytest.raises(
        InvalidArgument, match=r"'payload' nests 6[34] levels deep.*takes 62 levels.*fsqueue.spark.seed"
    ):
        Encoder(given, column(deep))
    with pytest.raises(
        InvalidArgument, match=r"with 6[34] levels.*takes 62 levels.*Read it as STRING, and use from_json"
    ):
        schemas.check("tasks", column(deep), "_corrupt_record")
    fitting, _ = nested(kind, 62 if kind != "map" else 31)
    Encoder(given, column(fitting))
    schemas.check("tasks", column(fitting), "_corrupt_record")


def test_the_deepest_branch_counts() -> None:
    three = types.MapType(TEXT, types.ArrayType(LONG))
    two = types.StructType([types.StructField("c", types.VariantType())])
    assert [schemas.levels(kind) for kind in (LONG, two, three)] == [0, 2, 3]
    fields = [types.StructField(name, kind) for name, kind in (("a", LONG), ("b", two), ("c", three))]
    assert schemas.levels(types.StructType(fields)) == 4
    assert schemas.levels(types.StructType([])) == 1


@pytest.mark.thorough
def test_deep_payloads_on_all_ways(spark: SparkSession, queue: Queue) -> None:
    fitting, value = nested("struct", 62)
    too_deep, deeper = nested("struct", 64)
    tasks = spark.read.format("fsqueue")
    queue.insert(value)
    read = tasks.schema(column(fitting)).load(str(queue.path))
    read.write.format("fsqueue").mode("append").option("payload", "payload").save(str(queue.path))
    assert [task.payload for task in queue.tasks()] == [value] * 2
    queue.purge()
    queue.insert(deeper)
    with pytest.raises(PySparkException, match="takes 62 levels"):
        tasks.schema(column(too_deep)).load(str(queue.path)).collect()
    text = tasks.schema("payload STRING").load(str(queue.path))
    df = text.select(F.from_json("payload", too_deep).alias("payload"))
    with pytest.raises(PySparkException, match="takes 62 levels"):
        df.write.format("fsqueue").mode("append").option("payload", "payload").save(str(queue.path))
    seed(df, str(queue.path), payload="payload")
    json = df.select(F.to_json("payload").alias("payload"))
    given = {"payload": "payload", "payloadFormat": "json"}
    json.write.format("fsqueue").mode("append").options(**given).save(str(queue.path))
    assert [task.payload for task in Queue(queue.path).tasks()] == [deeper] * 4
