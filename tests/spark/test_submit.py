"""`spark-submit` and `--master`, as docs/spark.md writes them: on a standalone cluster, with fsqueue from a wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import venv
from dataclasses import dataclass
from pathlib import Path

import pytest

from fsqueue import Queue
from tests.pages import blocks, text_of
from tests.spark.conftest import CONF, JVM_S, TOP, Cluster

pytest.importorskip("pyspark", reason="PySpark is not installed: pip install 'fsqueue-tasks[spark]'")

import pyspark
from pyspark.sql import SparkSession

from fsqueue.errors import FsqueueError
from fsqueue.spark import audit, register

pytestmark = pytest.mark.thorough  # each needs a virtualenv with a wheel of its own, most a cluster

HERE = [path for path in sys.path if path.endswith("site-packages")]
"""Where this Python has Spark and what else fsqueue needs."""


@dataclass
class Shared:
    """A directory that all hosts of a cluster have: virtualenvs, and the tests' settings of Spark."""

    place: Path

    def make(self, name: str) -> Path:
        """Make a virtualenv that has nothing: neither Spark nor fsqueue."""
        venv.create(self.place / name, symlinks=True)
        return self.place / name

    def type(self, command: str, cwd: Path) -> subprocess.CompletedProcess[str]:
        """Type a command, where Spark's own commands are found by their names."""
        env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYSPARK", "SPARK"))}
        env |= {
            "PATH": f"{self.place / 'venv/bin'}:{os.path.dirname(pyspark.__file__)}/bin:{env['PATH']}",
            "SPARK_CONF_DIR": str(self.place / "conf"),
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        return subprocess.run(
            ["bash", "-euc", command], cwd=cwd, env=env, capture_output=True, text=True, timeout=JVM_S
        )


@pytest.fixture(scope="module")
def shared(has_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Shared:
    """Give a `venv` in which pip has installed fsqueue. The rest is taken from this Python, which has it already."""
    shared = Shared(tmp_path_factory.mktemp("shared"))
    python = shared.make("venv") / "bin/python"
    tree = tmp_path_factory.mktemp("tree")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(TOP / name, tree)
    for name in ("fsqueue", "cli"):
        shutil.copytree(TOP / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", tree]
    subprocess.run(pip, check=True)
    # The cluster's workers have this clone on their PYTHONPATH: it must not stand in for the wheel.
    is_other = f"path in {HERE} or not (path + '/').startswith('{TOP}/')"  # Python reads this file twice
    others = f"import sys; sys.path[:] = [path for path in sys.path if {is_other}]"
    (purelib,) = shared.place.glob("venv/lib/python*/site-packages")
    (purelib / "others.pth").write_text("\n".join([others, *HERE]) + "\n")
    (shared.place / "conf").mkdir()
    conf = {key: value for key, value in CONF.items() if "daemon" not in key} | {"spark.executor.memory": "512m"}
    (shared.place / "conf/spark-defaults.conf").write_text("".join(f"{key} {value}\n" for key, value in conf.items()))
    return shared


def documented(shared: Shared, cluster: Cluster, queue: Queue, first: str) -> str:
    """Return the block of docs/spark.md that begins like this, for these places instead of its own."""
    (code,) = (block.code for block in blocks(text_of("docs/spark.md")) if block.code.startswith(first))
    code = code.replace("/shared", str(shared.place)).replace("/scratch/me/tiles", str(queue.path))
    return code.replace("--master spark://head:7077", "--master yarn").replace("yarn", cluster.master)


@pytest.mark.slow
@pytest.mark.parametrize("first", ["# a virtualenv on the shared filesystem", ". /shared/venv", "mkdir env"])
def test_an_audit_as_the_page_writes_it(
    shared: Shared, cluster: Cluster, queue: Queue, tmp_path: Path, first: str
) -> None:
    queue.insert_many(range(10))
    Path(queue.store.layout.base, "stray").touch()
    if first == "mkdir env":
        with tarfile.open(tmp_path / "env.tar.gz", "w:gz") as file:
            file.add(shared.place / "venv", ".")
    done = shared.type(documented(shared, cluster, queue, first), tmp_path)
    assert done.returncode == 10, done.stderr  # the command's own exit code: there is a finding
    told = done.stdout.splitlines()
    assert "10 waiting" in told[0]
    assert "stray" in told[1]
    assert told[2:] == ["1 finding"]


@pytest.mark.slow
def test_a_python_without_fsqueue_is_named(shared: Shared, queue: Queue, tmp_path: Path) -> None:
    bare = shared.make("bare")
    asked = f"audit {queue.path}"
    python = f"--conf spark.pyspark.python={bare}/bin/python"
    driver = shared.type(f'spark-submit --master local {python} "$(fsqueue spark --entry)" {asked}', tmp_path)
    assert driver.returncode == 1
    assert f"the driver with {bare}/bin/python, which has no module 'fsqueue_cli'. Nothing was done." in driver.stdout
    assert "Traceback" not in driver.stdout


def test_a_python_of_spark_s_workers_without_fsqueue_is_named(
    shared: Shared, spark: SparkSession, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = shared.make("bare-workers") / "bin/python"
    try:
        for python, said in (
            (bare, "Spark runs has no module"),
            ("none/python", "Spark found no Python at none/python"),
        ):
            monkeypatch.setattr(spark.sparkContext, "pythonExec", str(python))
            monkeypatch.setenv("PYSPARK_PYTHON", str(python))  # as Spark was told: else fsqueue has this Python run
            with pytest.raises(FsqueueError, match=f"{said}.*--conf spark.pyspark.python=PATH"):
                audit(spark, str(queue.path))
    finally:
        monkeypatch.undo()
        register(spark)  # else the session keeps the data source of the Python above
    assert audit(spark, str(queue.path)).is_sound


def test_the_entry_that_is_printed_is_the_wheel_s(shared: Shared, tmp_path: Path) -> None:
    printed = shared.type(
        "fsqueue spark --entry; env/bin/python -m fsqueue_cli spark --entry".replace("env", str(shared.place / "venv")),
        tmp_path,
    )
    (first, second) = printed.stdout.splitlines()
    assert first == second
    assert Path(first).is_relative_to(shared.place)
    # spark-submit may copy the file away from its package.
    copied = shutil.copy(first, tmp_path / "entry.py")
    for file in (first, copied):
        helped = shared.type(f"python {file} audit --help", tmp_path)
        assert helped.stdout.startswith("Usage: fsqueue spark audit "), helped.stderr
