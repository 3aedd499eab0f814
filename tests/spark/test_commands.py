"""fsqueue spark …: what the commands print and how they exit. One Spark for all: they find the tests' session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fsqueue import Queue
from tests.spark.conftest import environment

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'fsqueue-tasks[spark]'")

from fsqueue_cli.main import cli
from pyspark.sql import SparkSession

from fsqueue.spark import register


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, ["spark", *map(str, arguments)], prog_name="fsqueue")


@pytest.fixture
def rows(spark: SparkSession, tmp_path: Path) -> Path:
    file = tmp_path / "rows.csv"
    file.write_text("n,name\n" + "".join(f"{n},name {n}\n" for n in range(50)))
    return file


@pytest.mark.oldest
def test_from_a_file_to_results(spark: SparkSession, rows: Path, tmp_path: Path) -> None:
    queue = tmp_path / "q"
    seeding = ("seed", queue, rows, "--format", "csv", "--option", "header=true", "--commit", "a")
    missing = run(*seeding)
    assert (missing.exit_code, "There is no queue" in missing.output) == (5, True)
    first = run(*seeding, "--create")
    assert (first.exit_code, first.output.startswith("50 tasks in ")) == (0, True), first.output
    assert run(*seeding).output == "nothing to do: a was committed before, with 50 tasks\n"
    assert json.loads(run(*seeding, "--json").output)["repeated"] is True

    audited = run("audit", queue)
    assert (audited.exit_code, audited.output.splitlines()[-1]) == (0, "nothing was found"), audited.output
    assert json.loads(run("audit", queue, "--json").output)["states"]["waiting"] == 50

    out = tmp_path / "out"
    drained = run("drain", queue, out, "--schema", "n INT", "--sql", "payload.n + 1", "--json")
    assert drained.exit_code == 0, drained.output
    assert json.loads(drained.output)["completed"] == 50
    assert Queue(queue).status().completed == 50

    reported = run("report", queue, tmp_path / "report")
    assert reported.exit_code == 0, reported.output
    assert reported.output.splitlines() == ["complete      50", f"{tmp_path}/report/report.html"]
    assert run("report", queue, tmp_path / "report").exit_code == 2


@pytest.mark.batched  # with one task a batch a queue takes no keys
def test_seeding_with_priorities_and_keys(spark: SparkSession, rows: Path, queue: Queue) -> None:
    seeding = ("seed", queue.path, rows, "--format", "csv", "--option", "header=true", "--priority", "n")
    ordered = run(*seeding)
    assert ordered.output.startswith("50 tasks in "), ordered.output
    assert Queue(queue.path).lease(2, strict=True, up_to="1")[1].payload == {"n": "1", "name": "name 1"}
    queue.insert(1, key="name 7")
    first = run(*seeding, "--key", "name")
    assert (first.exit_code, first.output) == (0, "49 tasks were inserted; 1 not: its key was taken\n"), first.output
    assert json.loads(run(*seeding, "--key", "name", "--json").output)["taken"] == 50
    refused = run(*seeding, "--key", "name", "--commit", "a")
    assert (refused.exit_code, "A named commit takes no keys" in refused.output) == (2, True), refused.output


def test_audit_tells_by_its_exit_code(spark: SparkSession, queue: Queue) -> None:
    queue.insert(1)
    Path(queue.store.layout.base, "stray").touch()
    found = run("audit", queue.path)
    assert found.exit_code == 10
    assert "stray" in found.output
    assert found.output.endswith("1 finding\n")


def test_requeue(spark: SparkSession, queue: Queue) -> None:
    queue.insert_many(range(4))
    for task in queue.lease(4):
        task.bury("a" if task.payload else "b")
    done = run("requeue", queue.path, "--sql", "reason = 'a'")  # no terminal: nothing is asked
    assert (done.exit_code, done.output) == (0, "3 tasks were put back\n"), done.output
    assert (queue.status().dead, queue.status().waiting) == (1, 3)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("drain", "Q", "out"), 2, "either --sql EXPRESSION or --function"),
        (("drain", "Q", "out", "--function", "no_such_module:f"), 2, "not a MODULE:NAME"),
        (("drain", "Q", "out", "--sql", "1", "--function", "os:getcwd"), 2, "either --sql"),
        (("audit", "Q", "--conf", "nonsense"), 2, "write --conf KEY=VALUE"),
        (("audit", "/nowhere/at/all"), 5, "There is no queue at /nowhere/at/all"),
        (("nonsense",), 2, "No such command"),
    ],
)
def test_what_cannot_be_done_is_said(
    spark: SparkSession, queue: Queue, arguments: tuple[str, ...], code: int, said: str
) -> None:
    done = run(*(str(queue.path) if word == "Q" else word for word in arguments))
    assert (done.exit_code, said in done.output) == (code, True), done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize("command", ["seed", "audit", "report", "drain", "requeue"])
def test_help_shows_an_example(command: str) -> None:
    done = run(command, "--help")
    assert done.exit_code == 0
    assert f"fsqueue spark {command} /scratch/me/tiles" in done.output


def test_the_workers_python_is_the_one_that_conf_names(
    spark: SparkSession, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only spark-submit heeds that setting. A driver that runs already takes it from its environment."""
    monkeypatch.setenv("PYSPARK_PYTHON", "/another/python")
    assert run("audit", queue.path, "--conf", f"spark.pyspark.python={sys.executable}").exit_code == 0
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.slow
@pytest.mark.thorough
def test_as_a_process_of_its_own_it_prints_nothing_else(
    spark: SparkSession, installed: Path, queue: Queue, tmp_path: Path
) -> None:
    queue.insert_many(range(10))
    command = [sys.executable, "-m", "fsqueue_cli", "spark", "audit", str(queue.path), "--json", "--master", "local[1]"]
    done = subprocess.run(command, env=environment(installed), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["states"]["waiting"] == 10


def test_without_pyspark_it_says_what_to_install() -> None:
    program = """
import sys
sys.modules['pyspark'] = None
import fsqueue.spark
try:
    fsqueue.spark.seed
except Exception as error:
    print(error)
"""
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    assert said == "pyspark is not installed. To install it: pip install 'fsqueue-tasks[spark]'.\n"


@pytest.mark.parametrize(
    "arguments",
    [
        ["seed", "QUEUE", ""],
        ["seed", "QUEUE", "missing.parquet"],
        ["seed", "QUEUE", "ROWS", "--format", "no such"],
        ["seed", "QUEUE", "ROWS", "--format", "csv", "--payload", "no such"],
        ["requeue", "QUEUE", "--sql", "", "--yes"],
        ["requeue", "QUEUE", "--sql", "nonsense here", "--yes"],
        ["drain", "QUEUE", "OUT", "--sql", "no_such_column +"],
        ["report", "missing", "OUT"],
        ["audit", "ROWS"],
    ],
    ids=" ".join,
)
def test_what_makes_no_sense_is_refused_in_a_line(
    spark: SparkSession, queue: Queue, rows: Path, tmp_path: Path, arguments: list[str]
) -> None:
    queue.insert(1)
    places = {"QUEUE": queue.path, "ROWS": rows, "OUT": tmp_path / "out"}
    result = run(*(places.get(word, word) for word in arguments))
    assert result.exit_code in (1, 2, 5), result.output
    assert "internal error" not in result.output
    assert "Traceback" not in result.output
    assert queue.status().waiting == 1


@pytest.mark.one_in(2)
@pytest.mark.parametrize(
    ("master", "named", "conf", "runs"),
    [
        ("local[2]", "", {}, sys.executable),
        ("local", "", {}, sys.executable),
        ("local[2]", "/of/variable", {}, "python3"),
        ("local[2]", "", {"spark.pyspark.python": "/of/conf"}, "python3"),
        ("spark://head:7077", "", {}, "python3"),
    ],
)
def test_in_local_mode_spark_runs_the_interpreter_that_registers(
    monkeypatch: pytest.MonkeyPatch, master: str, named: str, conf: dict[str, str], runs: str
) -> None:
    """It may have been called by its path: then the `python3` of PATH is another one."""
    monkeypatch.setenv("PYSPARK_PYTHON", named)
    context = SimpleNamespace(pythonExec="python3", master=master, getConf=lambda: conf)
    registered: list[object] = []
    spark: Any = SimpleNamespace(sparkContext=context, dataSource=SimpleNamespace(register=registered.append))
    assert register(spark) is spark
    assert context.pythonExec == runs
    assert len(registered) == 1
