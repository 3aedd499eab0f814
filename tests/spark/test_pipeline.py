"""The pipeline of examples/, on the standard library's sources."""

from __future__ import annotations

import importlib.util
import shutil
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest

from fsqueue import Queue

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'fsqueue-tasks[spark]'")

from pyspark.sql import SparkSession

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "spark_pipeline.py"


@pytest.fixture
def pipeline() -> ModuleType:
    spec = importlib.util.spec_from_file_location("spark_pipeline", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_lines_of_the_standard_library(spark: SparkSession, pipeline: ModuleType, tmp_path: Path) -> None:
    library = Path(sysconfig.get_path("stdlib"))
    sources = tmp_path / "sources"
    sources.mkdir()
    for package in ("asyncio", "collections", "email", "json", "logging", "unittest", "xml"):
        shutil.copytree(library / package, sources / package, ignore=shutil.ignore_patterns("__pycache__"))
    known = {
        f"{package.name}/{path.relative_to(package)}": path.read_bytes().count(b"\n")
        for package in sources.iterdir()
        for path in package.rglob("*.py")
    }
    queue, kept, results = tmp_path / "queue", tmp_path / "tasks", tmp_path / "results"
    assert pipeline.seed(spark, sources, queue).rows == len(known) > 80
    assert pipeline.seed(spark, sources, queue).repeated
    pipeline.keep_tasks(spark, queue, kept)
    pipeline.work(queue, results)
    status = Queue(queue).status()
    assert (status.completed, status.remaining, status.dead) == (len(known), 0, 0)
    files = pipeline.joined(spark, queue, kept, results).collect()
    assert {row["path"].removeprefix(f"{sources}/"): row["lines"] for row in files} == known
    summed = {
        row["package"]: row["lines"]
        for row in pipeline.summed_up(pipeline.joined(spark, queue, kept, results)).collect()
    }
    assert summed == {
        package: sum(lines for path, lines in known.items() if path.startswith(f"{package}/")) for package in summed
    }
    assert len(summed) == 7
