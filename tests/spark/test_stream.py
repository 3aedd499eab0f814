"""Streams into queues: each micro-batch once, whatever is repeated."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue
from tests.levels import thorough
from tests.spark.conftest import run_to_end

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'fsqueue-tasks[spark]'")

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession


class Stream:
    """A directory of JSON files as a stream into a queue, run until it has caught up."""

    def __init__(self, spark: SparkSession, queue: Queue, place: Path) -> None:
        self.spark, self.queue, self.place = spark, queue, place
        self.fed = 0
        (place / "in").mkdir()

    def feed(self, count: int) -> None:
        lines = [json.dumps({"n": self.fed + number}) for number in range(count)]
        (self.place / "in" / f"{self.fed:06d}.json").write_text("\n".join(lines))
        self.fed += count

    def run(self, **options: str) -> None:
        source = self.spark.readStream.schema("n INT").option("maxFilesPerTrigger", "1").json(str(self.place / "in"))
        writer = source.writeStream.format("fsqueue").option("checkpointLocation", str(self.place / "checkpoint"))
        writer = writer.options(**options).trigger(availableNow=True)
        run_to_end(lambda: writer.start(str(self.queue.path)))

    def forget_last_batch(self) -> None:
        """What Spark's checkpoint looks like if the driver died after the sink's commit, before its own."""
        commits = self.place / "checkpoint" / "commits"
        last = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
        for path in commits.glob(f"*{last}*"):
            path.unlink()


@pytest.fixture
def stream(spark: SparkSession, queue: Queue, tmp_path: Path) -> Stream:
    (tmp_path / "stream").mkdir()
    return Stream(spark, queue, tmp_path / "stream")


def numbers(queue: Queue) -> list[Any]:
    return sorted(task.payload["n"] for task in queue.tasks())


def records(queue: Queue) -> list[str]:
    return sorted(path.stem.rpartition("-")[2] for path in Path(queue.store.layout.commits).glob("*.json"))


@pytest.mark.oldest
def test_each_batch_is_inserted_once_and_only_the_last_is_on_record(stream: Stream, queue: Queue) -> None:
    for count in (10, 20):
        stream.feed(count)
    stream.run()
    assert numbers(queue) == list(range(30))
    assert records(queue) == ["1"]
    stream.feed(5)
    stream.run()
    assert numbers(queue) == list(range(35))
    assert records(queue) == ["2"]
    assert os.listdir(queue.store.layout.staging) == []
    assert list(queue.fsck()) == []


def test_a_batch_that_spark_repeats_adds_nothing(stream: Stream, queue: Queue) -> None:
    for count in (10, 20):
        stream.feed(count)
    stream.run()
    stream.forget_last_batch()
    stream.feed(5)
    stream.run()
    assert numbers(queue) == list(range(35))
    assert records(queue) == ["2"]


@pytest.mark.parametrize(
    ("options", "said"),
    [({"commit": "c"}, "names its commits itself"), thorough({"ifExists": "error"}, "append or create")],
)
def test_what_a_stream_cannot_do(stream: Stream, options: dict[str, str], said: str) -> None:
    stream.feed(1)
    with pytest.raises(StreamingQueryException, match=said):
        stream.run(**options)
    assert stream.queue.status().inserted == 0
