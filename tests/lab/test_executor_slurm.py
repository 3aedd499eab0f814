"""An executor whose workers are jobs of a real Slurm: drained, cancelled, killed, held, refused, and left by a driver.

tests/executor/test_slurm_jobs.py has each step with a stand-in.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fsqueue import Queue
from tests.house.source import TOP
from tests.lab.cluster import Cluster, why_no_cluster
from tests.lab.conftest import needs

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

TILES = """
import pathlib
import fsqueue
from tests.waiting import until

@fsqueue.task
def square(number):
    return number * number

@fsqueue.task
def wait_for(path):
    pathlib.Path(path + ".begun").touch()
    until(pathlib.Path(path).exists, "the file")
    return "waited"
"""
DRIVER = """
import sys
import fsqueue, tiles
from fsqueue.cluster.slurm import SLURM
from tests.waiting import until

what, path = sys.argv[1:]
options = {"jobs": 3, "time": "0:05:00", "check_s": 2}
if what == "held":
    options["hold"] = True
if what == "refused":
    options["partition"] = "nowhere"
with fsqueue.Executor(fsqueue.Queue.create(path), slurm=options) as executor:
    if what == "twice":
        print(sum(executor.map(tiles.square, range(300))), flush=True)
        until(lambda: SLURM.is_over(executor._jobs._job), "the end of the jobs")
        print(sum(executor.map(tiles.square, range(3))), flush=True)
    elif what == "refused":
        print(executor.submit(tiles.square, 3).exception(), flush=True)
    else:
        futures = [executor.submit(tiles.wait_for, path + "-go") for _ in range(5)]
        print("begun", flush=True)
        if what == "held":
            until(lambda: executor._jobs._job, "the job")
            print(executor._jobs._job, flush=True)
            executor.shutdown(cancel_futures=True)
            print(all(future.cancelled() for future in futures), flush=True)
        else:
            print([future.result() for future in futures], flush=True)
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    needs(why_no_cluster())
    cluster = Cluster(tmp_path_factory.mktemp("executor") / "lab", NODES="3", CPUS="4")
    (cluster.directory / "tiles.py").write_text(TILES)
    (cluster.directory / "driver.py").write_text(DRIVER)
    yield cluster
    cluster.close()


def driver(cluster: Cluster, what: str) -> subprocess.Popen[str]:
    """Start a driver on the login host."""
    return subprocess.Popen(
        [*cluster._inside, sys.executable, "driver.py", what, str(cluster.directory / what)],
        env=cluster._environment() | {"PYTHONPATH": str(TOP)},
        cwd=cluster.directory, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def jobs_of(cluster: Cluster, what: str, states: str) -> set[str]:
    """Return the ids of the arrays of a queue that have elements in one of some states."""
    lines = cluster.run("squeue", "-h", "-r", "-t", states, "-o", "%F %j").splitlines()
    return {job for job, name in map(str.split, lines) if name == f"fsqueue-{what}"}


def test_two_maps_have_an_array_each_and_nothing_of_them_is_left(cluster: Cluster) -> None:
    with driver(cluster, "twice") as process:
        assert line(process) == str(sum(number * number for number in range(300)))
        assert line(process) == "5"
        assert process.wait() == 0
    queue = Queue(cluster.directory / "twice")
    workers = [info.worker for info in queue.tasks("completed")]
    assert len(workers) == 303
    assert len({worker["slurm_job"] for worker in workers}) == 2
    assert {worker["slurm_index"] for worker in workers} <= {"0", "1", "2"}
    cluster.until("all jobs have ended", lambda: not jobs_of(cluster, "twice", "pending,running"))


def test_jobs_that_are_cancelled_are_followed_by_others(cluster: Cluster) -> None:
    with driver(cluster, "cancelled") as process:
        assert line(process) == "begun"
        go = cluster.directory / "cancelled-go"
        cluster.until("a call is under way", Path(f"{go}.begun").exists)
        first = jobs_of(cluster, "cancelled", "running")
        cluster.run("scancel", *first)
        cluster.until("another array is there", lambda: jobs_of(cluster, "cancelled", "pending,running") - first)
        go.touch()
        assert line(process) == str(["waited"] * 5)
        assert process.wait() == 0


def test_a_driver_that_is_killed_leaves_jobs_that_do_its_calls_and_end(cluster: Cluster) -> None:
    with driver(cluster, "left") as process:
        assert line(process) == "begun"
        cluster.until("a call is under way", (cluster.directory / "left-go.begun").exists)
        [pid] = cluster.run("pgrep", "-f", "driver.py left").split()
        cluster.run("kill", "-9", pid)
        assert process.wait() in (-signal.SIGKILL, 128 + signal.SIGKILL)
    (cluster.directory / "left-go").touch()
    queue = Queue(cluster.directory / "left")
    cluster.until("its calls are done", lambda: queue.status().completed == 5)
    cluster.until("its jobs have ended", lambda: not jobs_of(cluster, "left", "pending,running"))


def test_a_shutdown_cancels_jobs_that_wait(cluster: Cluster) -> None:
    with driver(cluster, "held") as process:
        assert line(process) == "begun"
        job = line(process)
        assert line(process) == "True"
        assert process.wait() == 0
    cluster.until("it is cancelled", lambda: job not in jobs_of(cluster, "held", "pending"))


def test_a_refusal_says_what_sbatch_says(cluster: Cluster) -> None:
    with driver(cluster, "refused") as process:
        said = line(process)
        assert process.wait() == 0
    assert "could not be submitted to Slurm: sbatch: error: " in said
    assert "invalid partition" in said
