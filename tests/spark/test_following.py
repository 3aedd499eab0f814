"""The history as a stream: each finished task once, also over a restart, a purge and a torn line."""

from __future__ import annotations

from pathlib import Path

import pytest

from fsqueue import InvalidArgument, Queue
from tests.spark.conftest import run_to_end
from tests.support import QueueFactory

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'fsqueue-tasks[spark]'")

from pyspark.sql import SparkSession

from fsqueue.spark import following, options, schemas
from fsqueue.spark.following import HistoryStream


def stream_of(queue: Queue, **given: str) -> HistoryStream:
    wanted = options.reading({"path": str(queue.path), "view": "history", **given})
    return HistoryStream(wanted, schemas.schema_of("history", False))


def finish(queue: Queue, payloads: range) -> set[str]:
    queue.insert_many(payloads, batch_tasks=5)
    tasks = queue.lease(len(payloads))
    queue.complete(tasks)
    return {task.id for task in tasks}


def between(stream: HistoryStream, start: following.Offset, end: following.Offset) -> list[str]:
    pieces = stream.partitions(start, end)
    return [task for piece in pieces for batch in stream.read(piece) for task in batch.column("id").to_pylist()]


def latest(stream: HistoryStream) -> following.Offset:
    stream._looked_at = -following.LOOK_S
    return stream.latestOffset()


def test_what_is_between_two_offsets_is_what_finished_between_them(queue: Queue) -> None:
    stream = stream_of(queue)
    start = stream.initialOffset()
    assert between(stream, start, latest(stream)) == []
    first = finish(queue, range(20))
    one = latest(stream)
    assert sorted(between(stream, start, one)) == sorted(first)
    second = finish(queue, range(10))
    two = latest(stream)
    assert sorted(between(stream, one, two)) == sorted(second)
    assert sorted(between(stream, start, one)) == sorted(first), "repeated, it is the same"
    assert latest(stream) == two
    assert latest(stream_of(queue)) == two
    assert between(stream, two, two) == []


@pytest.mark.once
def test_a_line_that_is_being_written_belongs_to_the_next_batch(queue_factory: QueueFactory) -> None:
    queue = queue_factory(shards=1)
    first, stream = finish(queue, range(5)), stream_of(queue)
    (path,) = queue.path.rglob("history/*/00.jsonl")
    content = path.read_bytes()
    path.write_bytes(content + content[: len(content) // 2])
    end = latest(stream)
    assert list(end["files"].values()) == [len(content)]
    assert sorted(between(stream, stream.initialOffset(), end)) == sorted(first)
    path.write_bytes(b"x" * (following.PIECE_BYTES + 7))
    assert latest(stream)["files"] == {}


def test_after_a_purge_the_stream_goes_on_with_what_came_after(queue: Queue) -> None:
    stream = stream_of(queue)
    finish(queue, range(10))
    before = latest(stream)
    queue.purge()
    assert between(stream, stream.initialOffset(), before) == []
    ids = finish(queue, range(5))
    assert sorted(between(stream, before, latest(stream))) == sorted(ids)


@pytest.mark.once
def test_a_day_is_looked_at_again_until_it_had_ended_at_the_last_look(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = stream_of(queue)
    finish(queue, range(5))
    latest(stream)
    asked: list[str] = []
    monkeypatch.setattr(following.history, "shards_of", lambda store, day: asked.append(day) or [])
    latest(stream)
    assert len(asked) == 1
    stream._seen_ms += 3 * 86_400_000
    stream._last["files"] = {f"{asked[0]}/00": 7}
    assert latest(stream)["files"] == {f"{asked[0]}/00": 7}
    assert len(asked) == 1


@pytest.mark.once
def test_what_cannot_be_streamed_is_refused(queue: Queue, queue_factory: QueueFactory) -> None:
    with pytest.raises(InvalidArgument, match="A stream reads the view 'history'"):
        stream_of(queue, view="tasks")
    with pytest.raises(InvalidArgument, match="one queue"):
        stream_of(queue, path=str(queue.path.parent))
    with pytest.raises(InvalidArgument, match="keeps no history"):
        stream_of(queue_factory("bare", keep_history=False))


@pytest.mark.oldest
def test_a_query_that_is_started_again_reads_each_task_once(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    ids = finish(queue, range(20))
    for _ in range(2):
        stream = spark.readStream.format("fsqueue").option("view", "history").load(str(queue.path))
        writer = stream.select("id", "state").writeStream.format("parquet").option("path", str(tmp_path / "out"))
        run_to_end(writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start)
        found = [row.id for row in spark.read.parquet(str(tmp_path / "out")).collect()]
        assert sorted(found) == sorted(ids)
        ids |= finish(queue, range(10))
