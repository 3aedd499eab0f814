"""Payloads as fields, held against what Spark's own JSON source makes of the same text."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'fsqueue-tasks[spark]'")

from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

GOOD = {
    "STRING": ['"ü\\n"', '""'],
    "BOOLEAN": ["true", "false"],
    "TINYINT": ["-128", "127"],
    "SMALLINT": ["-32768"],
    "INT": ["7", "2147483647"],
    "BIGINT": ["-9223372036854775808"],
    "FLOAT": ["0.5", "3", '"NaN"', '"-Infinity"'],
    "DOUBLE": ["1e300", "-0.0", "12", '"+INF"', '"INF"'],
    "DECIMAL(6, 2)": ["1.5", "-1234.567", "7", '"2.25"'],
    "BINARY": ['"YWI="'],
    "DATE": ['"2026-11-21"', '"2026-1-2"', '"2026-11-21T01:02:03Z"', '"0001-01-01"'],
    "TIMESTAMP": ['"2026-11-21T15:04:05.123456Z"', '"2026-11-21 15:04"', '"2026-11-21T15:04:05+01:30"', '"2026"', "77"],
    "TIMESTAMP_NTZ": ['"2026-11-21T15:04:05.123456"', '"2026-11-21"'],
    "ARRAY<DATE>": ['["2026-11-21",null]', "[]"],
    "ARRAY<STRUCT<a: INT, b: DATE>>": ['[{"a":1,"b":"2026-11-21"},null]', '[{"a":"x","b":"2026-11-21"}]'],
    "MAP<STRING, INT>": ['{"a":1,"b":null}', "{}"],
    "STRUCT<a: INT, b: STRUCT<c: STRING>>": ['{"a":1,"b":{"c":"x"}}', '{"a":true,"b":{"c":"x"}}', '{"b":5,"a":1}'],
    "VARIANT": ['{"a":[1,"x",null,true]}', '"text"', "17"],
}
"""By type: what fits, wholly or in part."""
ODD = [
    "null",
    "true",
    "5",
    "-1",
    "300",
    "2.5",
    "9223372036854775808",
    '"text"',
    '"5"',
    "[1,2]",
    '{"z":1}',
    '"2026-13-01"',
]
"""What fits few types."""
OTHERWISE = ("TINYINT", "BINARY")
"""Types that take some of those in another way than Spark's (docs/spark-read.md)."""
NAMES = {kind: f"f{number}" for number, kind in enumerate(GOOD)}
FIELDS = ", ".join(f"{name} {kind}" for kind, name in NAMES.items())


def with_payloads(queue: Queue, texts: list[str]) -> Queue:
    """A queue with these payloads, as they are, in the order of their numbers."""
    queue.insert_many([f"@{number}@" for number in range(len(texts))], batch_tasks=64)
    for path in queue.path.rglob("queue/*/*.jsonl"):
        content = path.read_bytes().decode()
        for line in content.splitlines():
            number = int(line.split("@")[1])
            content = content.replace(f'"@{number}@"', texts[number])
        path.write_bytes(content.encode())
    return queue


def read(spark: SparkSession, queue: Queue, schema: str, **options: str) -> DataFrame:
    return spark.read.format("fsqueue").options(**options).schema(schema).load(str(queue.path))


def shown(values: list[Any]) -> list[str]:
    """Values in an order, and so that NaN equals NaN."""
    return sorted(repr(value.asDict(recursive=True)) for value in values)


def theirs(spark: SparkSession, place: Path, texts: list[str], schema: str, **options: str) -> list[Any]:
    place.write_text("".join(f"{text}\n" for text in texts))
    df: DataFrame = spark.read.options(**options).schema(schema).json(str(place))
    return df.collect()


def rows_of_all_types() -> list[str]:
    """Payloads of all types, in which now and then a field, or all of it, is wrong or missing."""
    chance = random.Random(11)
    rows = []
    for _ in range(200):
        fields = [
            f'"{name}":{chance.choice(ODD if chance.random() < 0.15 and kind not in OTHERWISE else GOOD[kind])}'
            for kind, name in NAMES.items()
            if chance.random() < 0.9
        ]
        chance.shuffle(fields)
        rows.append("{" + ",".join(fields) + "}")
    return [*rows, "{}", "5", '"text"', '{"f0":', "{]", '{"f4":1,"f4":2}', '{"f0":{"a":[1,"x"]}}']


def test_payloads_are_parsed_as_sparks_json_source_parses_them(
    spark: SparkSession, queue: Queue, tmp_path: Path
) -> None:
    texts = rows_of_all_types()
    with_payloads(queue, texts)
    fields = f"{FIELDS}, _corrupt_record STRING"
    ours = [row.payload for row in read(spark, queue, f"payload STRUCT<{fields}>").collect()]
    known = theirs(spark, tmp_path / "rows.json", texts, fields)
    assert shown(ours) == shown(known)
    dropped = read(spark, queue, f"id STRING, payload STRUCT<{FIELDS}>", mode="dropmalformed").collect()
    assert all(row.id for row in dropped)
    known = [row for row in known if row["_corrupt_record"] is None]
    assert len(dropped) == len(known) > 5


def test_an_array_is_one_payload(spark: SparkSession, queue: Queue) -> None:
    """Spark's source would make a row of each of its objects."""
    with_payloads(queue, ["[]", '[{"n":1},{"n":2}]'])
    found = read(spark, queue, "payload STRUCT<n: INT, _corrupt_record: STRING>").collect()
    assert sorted(tuple(row.payload) for row in found) == [(None, "[]"), (None, '[{"n":1},{"n":2}]')]


def test_a_text_that_is_no_base64_is_null_in_its_field_alone(spark: SparkSession, queue: Queue) -> None:
    with_payloads(queue, ['{"n":1,"data":"5"}'])
    (row,) = read(spark, queue, "payload STRUCT<n: INT, data: BINARY, _corrupt_record: STRING>").collect()
    assert row.payload.asDict() == {"n": 1, "data": None, "_corrupt_record": '{"n":1,"data":"5"}'}


@pytest.mark.one_in(6)
@pytest.mark.parametrize("kind", GOOD)
def test_each_type_is_read_alone(spark: SparkSession, queue: Queue, tmp_path: Path, kind: str) -> None:
    """Where all fit, which Arrow parses at once if it can."""
    texts = [f'{{"a":{value}}}' for value in [*GOOD[kind], "null"]] + ["{}"]
    ours = read(spark, with_payloads(queue, texts), f"payload STRUCT<a: {kind}>").collect()
    assert shown([row.payload for row in ours]) == shown(theirs(spark, tmp_path / "rows.json", texts, f"a {kind}"))


def test_a_mode_that_fails_names_the_payload(spark: SparkSession, queue: Queue) -> None:
    with_payloads(queue, ['{"n":1,"day":"2026-11-21"}', '{"n":1,"day":"someday"}'])
    with pytest.raises(PySparkException, match=r'(?s)A payload is not struct<.*: \{"n":1,"day":"someday"\}'):
        read(spark, queue, "payload STRUCT<n: INT, day: DATE>", mode="FAILFAST").collect()
    found = read(spark, queue, "payload STRUCT<n: INT>", mode="FAILFAST").collect()
    assert [row.payload.n for row in found] == [1, 1]


def test_the_text_of_what_does_not_fit_stands_where_it_is_asked_for(spark: SparkSession, queue: Queue) -> None:
    with_payloads(queue, ['{"n":1}', '{"n":"x"}', "{]", "null"])
    schema = "payload STRUCT<bad: STRING, n: INT>"
    found = [row.payload for row in read(spark, queue, schema, columnNameOfCorruptRecord="bad").collect()]
    assert sorted(map(str, found)) == sorted(
        ["Row(bad=None, n=1)", 'Row(bad=\'{"n":"x"}\', n=None)', "Row(bad='{]', n=None)", "None"]
    )


@pytest.mark.parametrize(
    ("schema", "options", "said"),
    [
        ("payload STRUCT<a: INTERVAL DAY TO SECOND>", {}, "'payload.a' cannot be read as interval day to second"),
        ("payload MAP<INT, INT>", {}, "JSON has texts for keys: read them as STRING"),
        ("payload STRUCT<_corrupt_record: INT>", {}, "it is string, not int"),
        ("payload STRUCT<a: INT>", {"mode": "STRICT"}, "`mode` is one of PERMISSIVE, DROPMALFORMED, FAILFAST"),
    ],
)
def test_what_cannot_be_parsed_is_refused_beforehand(
    spark: SparkSession, queue: Queue, schema: str, options: dict[str, str], said: str
) -> None:
    with pytest.raises(PySparkException, match=f"(?s){said}"):
        read(spark, queue, schema, **options).collect()
