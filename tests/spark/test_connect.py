"""Jobs on Spark Connect, where the driver has no SparkContext: in a process of its own, with a server of its own."""

from __future__ import annotations

import importlib.util
import json

import pytest

from fsqueue import Queue
from tests.spark.conftest import JVM_S, Driver

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'fsqueue-tasks[spark]'")

LACKING = [name for name in ("grpc", "grpc_status", "zstandard") if importlib.util.find_spec(name) is None]


@pytest.mark.slow
@pytest.mark.skipif(bool(LACKING), reason=f"Spark Connect needs {', '.join(LACKING)}: pip install 'pyspark[connect]'")
@pytest.mark.thorough
def test_drain_on_spark_connect(driver: Driver, queue: Queue) -> None:
    queue.insert_many(range(10))
    process = driver("connect", queue.path, master="connect")
    out, err = process.communicate(timeout=JVM_S)
    assert process.returncode == 0, err[-3000:]
    told = json.loads(out.splitlines()[-1])
    assert told["drained"]["completed"] == 10
    assert sorted(told["results"]) == sorted(f'{{"square":{n * n}}}' for n in range(10))
    assert told["states"]["completed"] == 10
    assert told["refused"] == "QueueNotFound", "not an error of Spark's"
    assert queue.status().completed == 10
