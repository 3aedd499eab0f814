"""audit, report, drain, requeue: as functions."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path

import pytest

from fsqueue import InvalidArgument, Queue
from tests.support import QueueFactory

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'fsqueue-tasks[spark]'")

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from fsqueue import spark as jobs
from fsqueue.spark.jobs import drain as drain_module
from fsqueue.spark.jobs import report as report_module
from fsqueue.spark.jobs.drain import Completer, _Drain
from fsqueue.spark.jobs.output_directory import Place
from tests.spark.drivers import square


def written(spark: SparkSession, out: Path) -> Counter[tuple[int, str]]:
    return Counter((row["attempt"], row["result"]) for row in jobs.results(spark, str(out)).collect())


# -- audit -------------------------------------------------------------------------------------------------------


@pytest.mark.oldest
def test_audit_of_a_sound_queue(spark: SparkSession, queue: Queue) -> None:
    queue.insert_many(range(100))
    queue.insert(1, delay_s=1000)
    tasks = queue.lease(10)
    queue.complete(tasks[:4])
    tasks[4].bury("no")
    found = jobs.audit(spark, str(queue.path))
    assert found.is_sound
    status = queue.status()
    assert found.states == {name: count for name, count in status.as_dict().items() if name != "inserted"}
    assert (status.completed, sum(found.states.values())) == (4, 101)
    assert found.findings == []


def test_audit_finds_what_fsck_finds_in_all_queues(
    spark: SparkSession, queue_factory: QueueFactory, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        queue = queue_factory(name)
        queue.insert_many(range(200), batch_tasks=2)
        for path in sorted(queue.path.rglob("queue/*/*.jsonl"))[:5]:
            path.write_bytes(b"\x00")
        Path(queue.store.layout.base, "stray").touch()
    found = jobs.audit(spark, str(tmp_path))
    assert found.counts == dict(Counter(f.kind for name in ("a", "b") for f in Queue(tmp_path / name).fsck()))
    assert {finding["queue"] for finding in found.findings} == {"a", "b"}
    assert not found.is_sound


# -- report ------------------------------------------------------------------------------------------------------


@pytest.mark.oldest
def test_report_tells_what_a_queue_went_through(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    began = time.time()
    queue.insert_many(range(500))
    for _ in range(2):
        for number, task in enumerate(queue.lease(100)):
            task.fail(f"exit status {number}: <no>", delay_s=0) if number % 2 else task.complete()
    queue.lease(1, lease_s=0.001)
    made = jobs.report(spark, str(queue.path), str(tmp_path / "out"))
    assert made.attempts == {"complete": 100, "fail": 100, "expired": 1}
    assert sum(count for _, count in made.throughput) == 100
    fails = [row for row in made.failures if row["outcome"] == "fail"]
    host = queue.store.worker["host"]
    assert [(row["reason"], row["host"], row["attempts"]) for row in fails] == [("exit status #: <no>", host, 100)]
    assert [(row["attempts"], row["completed"], row["failed"], row["expired"]) for row in made.hosts] == [
        (201, 100, 100, 1)
    ]
    assert len(made.duration_s) == len(made.wait_s) == 4
    assert made.duration_s == sorted(made.duration_s)
    page = (tmp_path / "out" / "report.html").read_text()
    assert "exit status #: &lt;no&gt;" in page
    bars = len(made.throughput) + sum(1 for *_, count in made.durations if count)
    assert page.count("<rect") == bars
    assert sum(count for *_, count in made.durations) == 100
    assert made.durations[0][0] <= made.duration_s[0] <= made.duration_s[-1] <= made.durations[-1][1]
    [of_median] = [count for a, b, count in made.durations if a <= made.duration_s[0] + 1e-9 < b]
    assert of_median > 0  # a duration on an edge belongs to the bar that begins there
    assert len(made.held_s) == 4
    [state] = made.queues
    assert (state.path, state.states) == (str(queue.path), queue.status().as_dict())
    assert state.settings["lease_s"] == queue.settings.lease_s
    assert began <= made.looked_at <= time.time()
    assert len(made.slowest) == 20
    took = [row["duration_s"] for row in made.slowest]
    assert took == sorted(took, reverse=True)
    assert all(row["attempts"] in (1, 2) and row["outcome"] in ("complete", "fail") for row in made.slowest)
    assert len({row["id"] for row in made.slowest}) == 20
    assert f"(process {os.getpid()})" in made.slowest[0]["worker"]
    ended = {task.id: task.since for task in queue.tasks("completed")}
    completed = [row for row in made.slowest if row["outcome"] == "complete"]
    assert completed
    assert [row["ended_at"] for row in completed] == pytest.approx([ended[row["id"]] for row in completed], abs=0.002)
    assert all(row["id"] in page for row in made.slowest)
    assert spark.read.parquet(str(tmp_path / "out" / "attempts")).count() == 201
    with pytest.raises(InvalidArgument, match="is not empty"):
        jobs.report(spark, str(queue.path), str(tmp_path / "out"))


def test_the_states_of_a_directory_of_queues(
    queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, name in enumerate("cab"):
        queue_factory(name, max_attempts=number + 1).insert_many(range(number))
    found, count = report_module._states(f"file://{tmp_path}")
    assert count == 3
    assert [(one.path, one.states["waiting"], one.settings["max_attempts"]) for one in found] == [
        (f"{tmp_path}/a", 1, 2), (f"{tmp_path}/b", 2, 3), (f"{tmp_path}/c", 0, 1),
    ]  # fmt: skip
    monkeypatch.setattr(report_module, "ROWS_MAX", 2)
    found, count = report_module._states(str(tmp_path))
    assert (len(found), count) == (2, 3)


@pytest.mark.thorough
def test_report_of_nothing(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    made = jobs.report(spark, str(queue.path), str(tmp_path / "out"))
    assert (made.attempts, made.throughput, made.duration_s) == ({}, [], [])
    assert (made.durations, made.slowest, made.queues[0].states["inserted"]) == ([], [], 0)
    assert "No task was completed." in (tmp_path / "out" / "report.html").read_text()


# -- drain -------------------------------------------------------------------------------------------------------


@pytest.mark.oldest
def test_drain_with_a_function(spark: SparkSession, queue_factory: QueueFactory, tmp_path: Path) -> None:
    queue = queue_factory(backoff_s=(1000, 1000))
    queue.insert_many(range(100))
    began = time.monotonic()
    done = jobs.drain(spark, str(queue.path), str(tmp_path / "out"), square, partition_tasks=20)
    whole_s = time.monotonic() - began
    assert (done.completed, done.failed, done.lost) == (99, 1, 0)
    assert done.rounds >= 2
    assert written(spark, tmp_path / "out") == Counter((1, f'{{"square":{n * n}}}') for n in range(100) if n != 13)
    status = queue.status()
    assert (status.completed, status.remaining) == (99, 1)
    took = [queue.history(task.id)[-1].took_s for task in queue.tasks("completed")]
    assert None not in took
    # Two threads work, each on one task after another. If each task had its round's time, the sum would be far larger.
    assert sum(filter(None, took)) <= 2 * whole_s, "the function's time, and not the round's"
    (failed,) = queue.tasks()
    assert (failed.payload, failed.error, failed.attempt) == (13, "ValueError: 13 brings bad luck", 1)


@pytest.mark.oldest
def test_drain_with_an_expression(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    queue.insert_many([{"x": n, "y": 2.5} for n in range(50)])
    done = jobs.drain(
        spark, str(queue.path), str(tmp_path / "out"), "payload.x * payload.y", payload_schema="x INT, y DOUBLE"
    )
    assert (done.completed, queue.status().completed) == (50, 50)
    assert sorted(row["result"] for row in jobs.results(spark, str(tmp_path / "out")).collect()) == [
        n * 2.5 for n in range(50)
    ]


def test_an_expression_that_fails_gives_the_tasks_back(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(10))
    with pytest.raises(PySparkException, match="CAST_INVALID_INPUT"):
        jobs.drain(spark, str(queue.path), str(tmp_path / "out"), "CAST('x' || payload AS INT)")
    assert queue.status().waiting == 10
    assert {task.attempt for task in queue.tasks()} == {0}


def test_a_drain_that_died_before_it_completed_is_gone_on_with(
    spark: SparkSession, queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = queue_factory(backoff_s=(1000, 1000))
    queue.insert_many(range(40))
    out = tmp_path / "out"

    def dies(*arguments: object) -> int:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(_Drain, "complete_round", dies)
        patched.setattr(drain_module, "release_leases", lambda *arguments: 0)
        with pytest.raises(KeyboardInterrupt):
            jobs.drain(spark, str(queue.path), str(out), square, partitions=2, partition_tasks=10)
    assert (queue.status().leased, queue.status().completed) == (20, 0)
    held = queue.lease(100)  # somebody else has the others
    assert len(held) == 20
    # Half of what was written is completed by an attempt that dies before it can say so.
    rows = spark.read.parquet(f"{out}/results/round=1").limit(10).collect()
    list(Completer(str(queue.path))._complete(queue, [row.asDict() for row in rows if row["error"] is None]))
    done = jobs.drain(spark, str(queue.path), str(out), square)
    assert done.lost == 0
    assert done.completed + done.failed == 20
    assert sum(written(spark, out).values()) == done.completed == queue.status().completed


def test_results_of_tasks_that_were_taken_over_do_not_count(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    queue.insert_many(range(10))
    job = _Drain(spark, str(queue.path), Place(str(tmp_path / "out")), square, None, 3600, 10)
    complete_round = job.complete_round

    def somebody_else_comes(number: int) -> None:
        queue.release_all()
        queue.complete(queue.lease(4))
        complete_round(number)

    job.complete_round = somebody_else_comes  # type: ignore[method-assign]
    job.round(1, 2)
    assert (job.report().lost, job.report().completed) == (10, 0)
    assert written(spark, tmp_path / "out") == Counter()
    assert (queue.status().completed, queue.status().waiting) == (4, 6)


def test_two_drains_into_one_directory_are_refused(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    """Each would take the rounds of the other for those of a drain that died."""
    queue.insert_many(range(4))
    with Place(str(tmp_path / "out")).held(), pytest.raises(InvalidArgument, match="Another drain writes into"):
        jobs.drain(spark, str(queue.path), str(tmp_path / "out"), square)
    assert queue.status().waiting == 4
    assert jobs.drain(spark, str(queue.path), str(tmp_path / "out"), square).completed == 4


# -- requeue -----------------------------------------------------------------------------------------------------


@pytest.mark.oldest
def test_requeue_takes_what_matches(spark: SparkSession, queue: Queue) -> None:
    queue.insert_many([{"n": n} for n in range(30)])
    for task in queue.lease(30):
        task.bury("timed out" if task.payload["n"] % 3 else "broken")
    assert jobs.requeue(spark, str(queue.path), "reason LIKE 'timed%' AND get_json_object(payload, '$.n') < 10") == 6
    assert sorted(task.payload["n"] for task in queue.tasks()) == [1, 2, 4, 5, 7, 8]
    assert queue.status().dead == 24
    assert jobs.requeue(spark, str(queue.path), "reason = 'no such'") == 0
    assert jobs.requeue(spark, str(queue.path)) == 24
    with pytest.raises(PySparkException, match="rhyme"):
        jobs.requeue(spark, str(queue.path), "rhyme = 1")
