"""Spark jobs in trouble: failing tasks, dead executors, copies, dead drivers. Each row is inserted once."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue
from tests.support import QueueFactory, age_staging, leftovers

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'fsqueue-tasks[spark]'")

from pyspark.sql import SparkSession

from fsqueue.spark import seed
from tests.spark.conftest import JVM_S, Cluster, Driver, environment, until_reaped
from tests.spark.drivers import rows, troubled

ROWS = 40_000
MORTAL = Path(__file__).parent / "mortal"


def numbers(queue: Queue) -> list[int]:
    return sorted(task.payload["n"] for task in queue.tasks())


def output(process: subprocess.Popen[str]) -> list[dict[str, Any]]:
    out, err = process.communicate(timeout=JVM_S)
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines() if line.startswith("{")]


def test_failing_tasks_are_tried_again_and_insert_once(spark: SparkSession, queue: Queue, tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    report = seed(troubled(rows(spark, ROWS, 2), str(marks), "fails"), str(queue.path), commit="c")
    assert report.rows == ROWS
    assert sorted(path.name for path in marks.iterdir()) == ["0-0", "0-1", "1-0", "1-1"]
    assert numbers(queue) == list(range(ROWS))
    until_reaped(queue)  # what the failed attempts staged


@pytest.mark.slow
@pytest.mark.thorough
def test_on_a_cluster_with_dead_executors_and_copies(
    cluster: Cluster, driver: Driver, queue_factory: QueueFactory
) -> None:
    troubles = ("is slow", "fails", "kills its executor")
    queues = {trouble: queue_factory(trouble.replace(" ", "-")) for trouble in troubles}
    jobs = [["seeds_with_trouble", str(queues[trouble].path), trouble, str(ROWS)] for trouble in troubles]
    conf = {
        "spark.executor.memory": "512m",
        "spark.speculation": "true",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.multiplier": "1.2",
        "spark.speculation.minTaskRuntime": "100ms",
        "spark.speculation.interval": "100ms",
        "spark.task.maxFailures": "4",
        "spark.locality.wait": "0",
    }
    done = output(driver("several", json.dumps(jobs), master=cluster.master, TEST_CONF=json.dumps(conf)))
    for trouble, told in zip(troubles, done, strict=True):
        assert told["rows"] == ROWS, trouble
        assert numbers(queues[trouble]) == list(range(ROWS)), trouble
        assert list(queues[trouble].fsck()) == []
        assert queues[trouble].commit(trouble.replace(" ", "-")).committed() is not None
    slow, failing, killing = (set(told["attempts"]) for told in done)
    assert {"0-0", "0-1"} <= slow, "no copy of the slow task was started"
    assert {f"{partition}-1" for partition in range(4)} <= failing
    assert "killed" in killing, "the executor did not die"


@pytest.mark.slow
@pytest.mark.parametrize(("where", "visible"), [("before", 0), ("half-way", ROWS), ("after", ROWS)])
@pytest.mark.thorough
def test_a_driver_that_dies_at_its_commit(
    spark: SparkSession, driver: Driver, installed: Path, queue: Queue, where: str, visible: int
) -> None:
    """All or nothing is there, whoever looks; the same commit again adds what is missing, once."""
    path = f"{MORTAL}:{environment(installed)['PYTHONPATH']}"
    dying = driver("seeds", queue.path, str(ROWS), "c", DIE_AT=where, PYTHONPATH=path)
    dying.communicate(timeout=JVM_S)
    assert dying.returncode == -9
    assert Queue(queue.path).status().waiting == visible
    again = seed(rows(spark, ROWS, 4), str(queue.path), commit="c")
    assert (again.rows, again.repeated) == (ROWS, visible > 0)
    assert numbers(queue) == list(range(ROWS))
    if where == "before":  # what the dead driver had staged is not there any more once it is old
        age_staging(queue)
        queue.gc()
    assert leftovers_but_record(queue) == []


def leftovers_but_record(queue: Queue) -> list[str]:
    return [name for name in leftovers(queue) if not name.startswith(("queue/", "commits/commit", "commits/c"))]
