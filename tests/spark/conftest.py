"""Real Spark for the tests: one local session for all of them, and a standalone cluster of two workers.

Skipped, with the reason, where there is no PySpark or no Java 17; scripts/test installs both.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue
from tests.lab.guests import DIES_WITH_US
from tests.support import age_staging, base_of
from tests.waiting import until

TOP = Path(__file__).resolve().parents[2]
JAVA_LEAST = 17
FAST_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xss4m"
"""Starts quickly; runs slower, which does not matter here."""
JVM_S = 600.0
"""How long what starts a JVM may take on a machine that is busy with other work."""
PATIENT = {
    # How long anything waits for an answer: an executor's heartbeats, remote calls, connections, blocks.
    "spark.network.timeout": "3600s",
    "spark.executor.heartbeat.maxFailures": "10000",
    "spark.files.fetchTimeout": "3600s",
    "spark.sql.broadcastTimeout": "3600s",
    # How long the JVM waits until Python connects to a socket that it has opened for it, and the other way round.
    "spark.python.authenticate.socketTimeout": "3600s",
}
"""Spark's own time limits, which would otherwise fire on a busy machine."""
CONF = {
    **PATIENT,
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.extraJavaOptions": FAST_JVM,
    "spark.executor.extraJavaOptions": FAST_JVM,
    "spark.python.daemon.module": "tests.spark.daemon",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/spark/"):
            item.add_marker(pytest.mark.once)


def why_not() -> str:
    """Why Spark cannot run here; empty if it can."""
    try:
        import pyarrow
        import pyspark
    except ImportError as error:
        return f"{error.name} is not installed: pip install 'fsqueue-tasks[spark]'"
    del pyarrow, pyspark
    java = os.path.join(os.environ["JAVA_HOME"], "bin/java") if os.environ.get("JAVA_HOME") else shutil.which("java")
    said = subprocess.run([java, "-version"], capture_output=True, text=True).stderr if java else ""
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < JAVA_LEAST:
        return f"no Java {JAVA_LEAST} or newer (JAVA_HOME, or java on the PATH)"
    return ""


@pytest.fixture(scope="session")
def has_spark() -> None:
    if reason := why_not():
        pytest.skip(reason)


PYTHON = f"""#!/bin/sh
if [ "$1" = -m ] && [ "$2" = pyspark.daemon ]; then
    shift 2
    exec {shlex.quote(sys.executable)} -m tests.spark.daemon "$@"
fi
exec {shlex.quote(sys.executable)} "$@"
"""
"""Starts this Python for Spark, and always with the daemon of CONF.

What Spark asks a data source while it plans (write, commit, read) runs in processes of `pyspark.daemon`, whatever the
setting says. Each of them would import pandas and fsqueue anew.
"""


@pytest.fixture(scope="session")
def installed(has_spark: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which fsqueue lies as it does in site-packages, so that Spark finds the data source by itself."""
    place = tmp_path_factory.mktemp("installed")
    (place / "fsqueue").symlink_to(TOP / "fsqueue")
    (place / "pyspark_fsqueue").symlink_to(TOP / "fsqueue/spark/pyspark_fsqueue")
    (place / "python").write_text(PYTHON)
    (place / "python").chmod(0o755)
    return place


def environment(installed: Path) -> dict[str, str]:
    """What Spark and its Python workers need to find this Python and this fsqueue."""
    return {
        **os.environ,
        "PYTHONPATH": f"{installed}:{TOP}",
        "PYSPARK_PYTHON": str(installed / "python"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_AUTH_SOCKET_TIMEOUT": "3600",  # what Python makes of the setting spark.python.authenticate.socketTimeout
    }


@pytest.fixture(scope="session")
def spark(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The session of all tests: two threads, and failed tasks are tried three times."""
    from pyspark.sql import SparkSession

    before = dict(os.environ)
    os.environ.update(environment(installed))
    builder = SparkSession.builder.master("local[2,3]").appName("fsqueue tests")
    for key, value in {**CONF, "spark.local.dir": str(tmp_path_factory.mktemp("spark-local"))}.items():
        builder = builder.config(key, value)
    builder = builder.config("spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse")))
    session = builder.getOrCreate()
    os.environ.clear()
    os.environ.update(before)
    session.sparkContext.setLogLevel("OFF")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SPARK_AUTH_SOCKET_TIMEOUT", environment(installed)["SPARK_AUTH_SOCKET_TIMEOUT"])
        yield session
    session.stop()
    gateway = session.sparkContext._gateway
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(JVM_S)


def run_to_end(start: Callable[[], Any]) -> None:
    """Start a streaming query that ends by itself, and wait for its end.

    Spark gives the Python process of a streaming source ten seconds to connect back, and no setting changes that
    (PythonWorkerFactory.createSimpleWorker). On a busy machine the process may need longer. Then the query is started
    again from its checkpoint, as a user would do.
    """
    from pyspark.errors import StreamingQueryException

    def has_ended() -> bool:
        query = start()
        try:
            assert query.awaitTermination(int(JVM_S)), query.status
            return True
        except StreamingQueryException as error:
            if "connect back" not in str(error):
                raise
            return False

    until(has_ended, "Spark to start the Python process of a streaming source in time", JVM_S)


@dataclass
class Upkeep:
    """What `gc` has left in staging, and its report. True if that is nothing; `until` prints it otherwise."""

    left: list[str]
    report: dict[str, Any]

    def __bool__(self) -> bool:
        return not self.left


def until_reaped(queue: Queue) -> None:
    """Wait until `gc`, a week later by the times of what is staged, leaves nothing in staging.

    The driver learns that a task has failed before the task's Python worker does. The worker may make the attempt's
    directory again after the driver has removed it, and end then. Only `gc` removes that (docs/spark-cost.md,
    "How a write works").
    """

    def upkeep() -> Upkeep:
        age_staging(queue)
        report = queue.gc().as_dict()
        return Upkeep(staged_in(queue), {name: count for name, count in report.items() if count})

    until(upkeep, "gc to remove what was staged for a job that is over")


def staged_in(queue: Queue) -> list[str]:
    """Return what is staged or proposed: each path, its age, and whether a process has it locked."""
    base, now_s, found = base_of(queue), queue.store.clock.now_ms() / 1000, []
    for part in ("staging", "commits/pending"):
        for place, directories, files in os.walk(base / part):
            for path in (Path(place, name) for name in (*directories, *files)):
                with suppress(FileNotFoundError):  # a worker of Spark has just removed it
                    age_s, lock = now_s - path.stat().st_mtime, "locked" if is_locked(queue, path) else "not locked"
                    found.append(f"{path.relative_to(base)} ({age_s:.0f} s old, {lock})")
    return sorted(found)


def is_locked(queue: Queue, path: Path) -> bool:
    """Return whether a process has a file locked; False for a directory."""
    if path.is_dir():
        return False
    fd = os.open(path, os.O_RDWR)
    try:
        return queue.store.fs.is_locked(fd)
    finally:
        os.close(fd)


Driver = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def driver(installed: Path, tmp_path: Path) -> Iterator[Driver]:
    """Starts a program of drivers.py in a process of its own: `driver("name", arguments…, master=…, **environment)`."""
    started: list[subprocess.Popen[str]] = []

    def start(name: str, *arguments: str | Path, master: str = "local[2,3]", **more: str) -> subprocess.Popen[str]:
        program = [
            *DIES_WITH_US, sys.executable, "-m", "tests.spark.drivers", master, str(tmp_path), name,
            *map(str, arguments),
        ]  # fmt: skip
        process = subprocess.Popen(
            program, env=environment(installed) | more, cwd=TOP, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        return process

    yield start
    for process in started:
        end(process)


def end(process: subprocess.Popen[Any]) -> None:
    """End a process and its children, if they live."""
    try:
        os.killpg(process.pid, 9)
    except ProcessLookupError:
        pass
    process.communicate()


@dataclass
class Cluster:
    """A standalone cluster: its master's address."""

    master: str


@pytest.fixture(scope="session")
def cluster(installed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A master and two workers as processes. The second has another address, or no task would be copied to it."""
    import pyspark

    home = os.path.dirname(pyspark.__file__)
    logs = tmp_path_factory.mktemp("cluster")
    processes: list[subprocess.Popen[bytes]] = []

    def start(name: str, address: str, *arguments: str) -> None:
        env = environment(installed) | {
            "SPARK_HOME": home,
            "SPARK_LOCAL_IP": address,
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_DAEMON_JAVA_OPTS": f"{FAST_JVM} -Dspark.network.timeout=3600s -Dspark.worker.timeout=3600",
        }
        java = f"org.apache.spark.deploy.{name}"
        command = [*DIES_WITH_US, f"{home}/bin/spark-class", java, "--host", address, *arguments]
        with open(logs / f"{len(processes)}.log", "wb") as log:
            processes.append(
                subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=logs, start_new_session=True)
            )

    port, web = free_port(), free_port()
    start("master.Master", "127.0.0.1", "--port", str(port), "--webui-port", str(web))
    master = f"spark://127.0.0.1:{port}"
    try:
        wait_for(lambda: status(web) is not None, "the cluster's master", logs)
        for number, address in enumerate(("127.0.0.1", "127.0.0.2")):
            start(
                "worker.Worker", address, "--port", "0", "--webui-port", "0", "--cores", "1", "--memory", "1g",
                "--work-dir", str(logs / f"work{number}"), master,
            )  # fmt: skip
        wait_for(lambda: (status(web) or {}).get("aliveworkers") == 2, "the cluster's workers", logs)
        yield Cluster(master)
    finally:
        for process in processes:
            end(process)


def status(port: int) -> dict[str, Any] | None:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/", timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
            return found
    except (OSError, ValueError):
        return None


def wait_for(condition: Callable[[], bool], what: str, logs: Path) -> None:
    try:
        until(condition, what, JVM_S)
    except AssertionError as error:
        pytest.fail(f"{error}\n" + "\n".join(log.read_text() for log in logs.glob("*.log")))


def free_port() -> int:
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
