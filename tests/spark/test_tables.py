"""What SQL types: paths of all kinds, tables of the catalog, temporary views; and the chapter of docs/spark.md."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from fsqueue import InvalidArgument, Queue
from tests.support import QueueFactory

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'fsqueue-tasks[spark]'")

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fsqueue import spark as jobs
from fsqueue.spark import options
from fsqueue.spark.jobs.output_directory import Place
from fsqueue.spark.options import directory

TOP = Path(__file__).resolve().parents[2]


def load(spark: SparkSession, path: Any, **given: str) -> Any:
    return spark.read.format("fsqueue").options(**given).load(path)


@pytest.fixture
def tables(spark: SparkSession) -> Iterator[None]:
    """No table is left for the next test."""
    yield
    for row in spark.sql("SHOW TABLES").collect():
        spark.sql(f"DROP {'VIEW' if row.isTemporary else 'TABLE'} {row.tableName}")


# -- paths -------------------------------------------------------------------------------------------------------


def test_what_a_path_means(tmp_path: Path) -> None:
    for path in ("/a/b", "fq:///a/b", "file:/a/b", "file:///a/b", "file://localhost/a/b/"):
        assert directory(path) == "/a/b"
    assert directory(f"{tmp_path}/a%20b") == f"{tmp_path}/a%20b"
    assert directory(f"file:{tmp_path}/a%20b") == f"{tmp_path}/a%20b", "as Spark takes it"
    (tmp_path / "a b").mkdir()
    assert directory(f"file:{tmp_path}/a%20b") == f"{tmp_path}/a b", "there is no other"
    (tmp_path / "a%20b").mkdir()
    assert directory(f"file:{tmp_path}/a%20b") == f"{tmp_path}/a%20b"
    long = "\u3042" * 60
    (tmp_path / long).mkdir()
    assert directory(f"file:{tmp_path}/{quote(long)}") == f"{tmp_path}/{long}", "too long before it is decoded"


@pytest.mark.parametrize("path", ["s3a://b/c", "hdfs://n/x", "dbfs:/x", "file://host/x", "file:a", "abfss://c@a/x"])
def test_what_is_no_directory_is_refused_and_nothing_is_made(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for make in (lambda: options.reading({"path": path}), lambda: options.writing({"path": path})):
        with pytest.raises(InvalidArgument, match=r"mounted|absolute"):
            make()
    with pytest.raises(InvalidArgument, match="no directory for output"):
        Place(path)
    assert list(tmp_path.iterdir()) == []


def test_paths_that_spark_s_users_write(spark: SparkSession, queue_factory: QueueFactory, tmp_path: Path) -> None:
    for name, count in (("a", 3), ("b c", 4), ("d%20e", 5)):
        queue_factory(name).insert_many(range(count))
    where = str(tmp_path)
    several = load(spark, [f"file://{where}/a", f"file:{where}/b%20c", f"{where}/d%20e"])
    assert Counter(row["queue"] for row in several.select("queue").collect()) == {"a": 3, "b c": 4, "d e": 5}
    with pytest.raises(PySparkException, match=re.escape("'s3a://b/c' is a URL (s3a:)")):
        spark.range(3).write.format("fsqueue").mode("append").option("ifExists", "create").save("s3a://b/c")
    with pytest.raises(InvalidArgument, match="no directory for output"):
        jobs.report(spark, f"{where}/a", "hdfs://n/out")


# -- tables ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("tables")
@pytest.mark.oldest
def test_a_table_of_the_catalog(spark: SparkSession, queue_factory: QueueFactory) -> None:
    queue = queue_factory("with space")
    queue.insert_many([{"x": n} for n in range(3)])
    spark.sql(f"CREATE TABLE t USING fsqueue OPTIONS (path '{queue.path}')")
    spark.sql("INSERT OVERWRITE t (payload) VALUES ('[1]')")
    assert [task.payload for task in queue.tasks()] == [[1]]
    with pytest.raises(PySparkException, match="The column 'id' cannot be inserted"):
        spark.sql("INSERT INTO t SELECT * FROM t")
    spark.sql("DROP TABLE t")
    assert queue.status().waiting == 1


@pytest.mark.thorough
@pytest.mark.usefixtures("tables")
def test_a_table_of_another_view(spark: SparkSession, queue: Queue) -> None:
    spark.sql(f"CREATE TABLE d USING fsqueue OPTIONS (view 'dead') LOCATION '{queue.path}'")
    with pytest.raises(PySparkException, match="A table of the view 'dead' is for reading"):
        spark.sql("INSERT INTO d (reason) VALUES ('x')")


@pytest.mark.usefixtures("tables")
def test_a_temporary_view(spark: SparkSession, queue: Queue) -> None:
    queue.insert({"x": 1})
    spark.sql(f"CREATE TEMPORARY VIEW v USING fsqueue OPTIONS (path '{queue.path}')")
    spark.sql("INSERT INTO v (payload) VALUES ('{\"x\": 2}')")
    assert sorted(task.payload["x"] for task in queue.tasks()) == [1, 2]


@pytest.mark.usefixtures("tables")
def test_tables_that_cannot_be_are_refused_with_a_sentence(spark: SparkSession, queue: Queue) -> None:
    refused = [
        ("CREATE TABLE n USING fsqueue", "Name the queue's directory"),
        ("CREATE TABLE n USING fsqueue OPTIONS (path 's3a://b/c')", "is a URL"),
        (f"CREATE TABLE n USING fsqueue OPTIONS (path '{queue.path}', veiw 'dead')", "Did you mean 'view'"),
        (f"CREATE TABLE n USING fsqueue OPTIONS (path '{queue.path}') AS SELECT 1 AS x", "create it without columns"),
    ]
    for sql, said in refused:
        with pytest.raises(PySparkException, match=said):
            spark.sql(sql)
    spark.sql(f"CREATE TABLE n (x BIGINT) USING fsqueue OPTIONS (path '{queue.path}')")  # Spark asks nobody
    for sql in ("SELECT * FROM n", "INSERT INTO n VALUES (1)"):
        with pytest.raises(PySparkException, match="create it without columns"):
            spark.sql(sql).collect()
    assert queue.status().inserted == 0


@pytest.mark.usefixtures("tables")
def test_the_chapter_on_sql(spark: SparkSession, queue: Queue) -> None:
    """Each statement of the page, in order."""
    chapter = (TOP / "docs/spark.md").read_text().partition("\n## SQL\n")[2].partition("\n## ")[0]
    queue.insert({"tile": 1, "level": 2})
    statements = [
        one.strip() for block in re.findall(r"```sql\n(.*?)```", chapter, re.DOTALL) for one in block.split(";")
    ]
    assert len(statements) > 5
    for statement in filter(None, statements):
        spark.sql(statement.replace("/scratch/me/tiles", str(queue.path))).collect()
    assert {"tile": 8, "level": 3} in [task.payload for task in queue.tasks()]
