"""Jobs that replace themselves on a real Slurm: cancelled, requeued, at their limit, with a step or a submission that
dies, and stopped.

All campaigns begin at first. tests/cli/test_campaigns.py has each step with a stand-in. The last test is the story of
docs/weeks.md.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue
from tests.lab.cluster import Cluster, why_no_cluster
from tests.lab.conftest import needs
from tests.waiting import LOOK_AGAIN

pytestmark = [pytest.mark.slow, pytest.mark.thorough]

LONG_S = 900.0
"""How long anything may take that needs several jobs at their time limits, on a busy machine."""
FAULTS = """#!/bin/sh
# sbatch, which counts its calls, and goes wrong in some
echo >>{place}/calls
case $(wc -l <{place}/calls) in
{cases}
esac
exec /usr/bin/sbatch "$@"
"""


@dataclass
class Jobs:
    """A campaign on a queue of its own."""

    cluster: Cluster
    queue: Queue
    most: int
    seen: set[str] = field(default_factory=set)
    """The ids of all its jobs that were seen."""

    def now(self) -> dict[str, list[str]]:
        """Return its jobs: ids by state. No more than `most` may run, whatever happens."""
        found: dict[str, list[str]] = {"PENDING": [], "RUNNING": []}
        mark = f"-{self.queue.store.queue_state.id[:8]}"
        for line in self.cluster.run("squeue", "-h", "-o", "%A %T %j").splitlines():
            job, state, name = line.split(maxsplit=2)
            if mark in name:
                found.setdefault(state, []).append(job)
                self.seen.add(job)
        assert len(found["RUNNING"]) <= self.most, found
        return found

    def until(self, what: str, is_so: Callable[[dict[str, list[str]]], Any], timeout_s: float = LONG_S) -> Any:
        """Wait until its jobs are so, and return what was found."""
        return self.cluster.until(f"{self.queue.path.name}: {what}", lambda: is_so(self.now()), timeout_s)

    def is_complete(self, found: dict[str, list[str]]) -> bool:
        """Return whether all its jobs run, and each has a successor."""
        return len(found["RUNNING"]) == self.most == len(found["PENDING"])

    def logs(self) -> str:
        """Return what its jobs have written."""
        mark = f"*-{self.queue.store.queue_state.id[:8]}*"
        return "".join(path.read_text() for path in self.cluster.directory.glob(f"fsqueue-logs/{mark}"))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    needs(why_no_cluster())
    cluster = Cluster(tmp_path_factory.mktemp("again") / "lab", NODES="3", CPUS="8")
    yield cluster
    cluster.close()


def faulty(cluster: Cluster, name: str, cases: str) -> dict[str, str]:
    """Return the environment of a campaign whose sbatch goes wrong: `cases` of a shell, by the number of the call."""
    place = cluster.directory / f"{name}-bin"
    place.mkdir()
    (place / "sbatch").write_text(FAULTS.format(place=place, cases=cases))
    (place / "sbatch").chmod(0o755)
    return {"PATH": f"{place}:{cluster._environment()['PATH']}"}


def begin(cluster: Cluster, name: str, most: int, tasks: int, seconds: int, *options: str, cases: str = "") -> Jobs:
    queue = Queue.create(cluster.directory / name)
    queue.insert_many(range(tasks))
    environment = faulty(cluster, name, cases) if cases else {}
    words = ("slurm", queue.path, "--resubmit", "--max-jobs", most, *options, "--", "sleep", seconds)
    cluster.fsqueue(*words, **environment)
    return Jobs(cluster, queue, most)


@pytest.fixture(scope="module")
def campaigns(cluster: Cluster) -> dict[str, Jobs]:
    return {
        "unfit": begin(cluster, "unfit", 1, 3, 3600, "-t", "1"),
        "limit": begin(cluster, "limit", 2, 40, 4, "-t", "1"),
        "ended": begin(cluster, "ended", 2, 8, 3600, "-t", "60", "--requeue"),
        "refused": begin(cluster, "refused", 1, 3, 3600, "-t", "60", cases="2|3|4) echo busy >&2; exit 1 ;;"),
        "killed": begin(
            cluster, "killed", 2, 10_000, 1, "-t", "60",
            cases='3) kill -9 $PPID; exit 1 ;;\n4) /usr/bin/sbatch "$@"; kill -9 $PPID; exit 1 ;;',
        ),
    }  # fmt: skip


def test_cancelled_and_requeued_jobs_have_successors(cluster: Cluster, campaigns: dict[str, Jobs]) -> None:
    jobs = campaigns["ended"]
    first = jobs.until("all run", lambda found: jobs.is_complete(found) and found)
    cancelled, requeued = sorted(first["RUNNING"], key=int)
    cluster.run("scancel", cancelled)
    jobs.until("another runs", lambda found: jobs.is_complete(found) and cancelled not in found["RUNNING"])
    cluster.run("scontrol", "requeue", requeued)
    jobs.until("it waits", lambda found: requeued in found["PENDING"])
    assert len(jobs.now()["RUNNING"]) == 1, "its successor waits for its end"

    def runs_again(found: dict[str, list[str]]) -> bool:
        cluster.run("scontrol", "update", f"jobid={requeued}", "StartTime=now", code=None)
        return requeued in found["RUNNING"] and jobs.is_complete(found)

    jobs.until("it runs again, with the successor that it had", runs_again)
    assert len(jobs.seen) == 5
    said = cluster.fsqueue("slurm", "--stop", jobs.queue.path, "--now")
    assert "2 waiting jobs cancelled" in said
    jobs.until("none is left", lambda found: not any(found.values()))
    status = jobs.queue.status()
    assert (status.waiting, status.dead) == (8, 0)


def test_a_step_that_dies_leaves_a_campaign_that_goes_on(cluster: Cluster, campaigns: dict[str, Jobs]) -> None:
    """One is killed before Slurm has the successor, the other behind: each worker begins nevertheless."""
    jobs = campaigns["killed"]
    found = jobs.until("one has a successor", lambda found: len(found["PENDING"]) == 1 and found)
    jobs.until("both work", lambda _: jobs.queue.status().completed > 4)
    assert sorted(map(len, jobs.now().values())) == [1, 2]
    cluster.run("scancel", *found["RUNNING"])
    jobs.until("both places have jobs again", jobs.is_complete)
    said = cluster.fsqueue("slurm", "--stop", jobs.queue.path)
    assert "2 running jobs finish their tasks" in said
    jobs.until("they have ended by themselves", lambda found: not any(found.values()))
    assert jobs.queue.status().leased == 0
    assert "its campaign was stopped" in jobs.logs()


def test_a_refused_submission_is_repeated(cluster: Cluster, campaigns: dict[str, Jobs]) -> None:
    jobs = campaigns["refused"]
    jobs.until("it has a successor", jobs.is_complete)
    assert "busy; it is tried again" in jobs.logs()
    cluster.fsqueue("slurm", "--stop", jobs.queue.path, "--now")


def test_a_queue_is_drained_by_jobs_that_are_too_short_for_it(campaigns: dict[str, Jobs]) -> None:
    jobs = campaigns["limit"]
    jobs.until("it is drained", lambda _: jobs.queue.is_drained())
    jobs.until("none is left", lambda found: not any(found.values()))
    workers = {info.worker["slurm_job"] for info in jobs.queue.tasks("completed") if info.worker}
    assert len(workers) > 2, "successors have worked"
    assert "nothing is left to do" in jobs.logs()


def test_a_limit_that_no_task_fits_ends_the_campaign(campaigns: dict[str, Jobs]) -> None:
    jobs = campaigns["unfit"]
    jobs.until("no job is left", lambda found: not any(found.values()))
    said = jobs.logs()
    assert said.count("no task fits the time limit") == 1
    assert said.count("follows this one") in (3, 4), "it went on while other campaigns were looked at"


def test_as_many_jobs_as_the_tasks_need(cluster: Cluster) -> None:
    """The jobs of --fill share their places with those that are there, and end with the tasks."""
    queue = Queue.create(cluster.directory / "filled")
    queue.insert_many(range(12))
    jobs = Jobs(cluster, queue, 3)
    go = cluster.directory / "go"
    words = ("slurm", queue.path, "--fill", 3, "--json", "-t", 60, "-j", 2)
    command = ("--", "sh", "-c", f"until [ -e {go} ]; do {LOOK_AGAIN}; done")

    def fill(*options: str) -> dict[str, Any]:
        reckoned: dict[str, Any] = json.loads(cluster.fsqueue(*words, *options, *command))["fill"]
        return reckoned

    first = fill()
    assert (first["needed"], first["there"], first["submitted"]) == (6, 0, 3)
    running = jobs.until("three run", lambda found: len(found["RUNNING"]) == 3 and found["RUNNING"])
    assert fill()["submitted"] == 0
    jobs.until("their workers hold tasks", lambda _: queue.status().leased == 6)
    assert fill()["there"] == 3, "a worker that holds tasks is the same as its job"
    cluster.run("scancel", running[0])
    jobs.until("two run", lambda found: len(found["RUNNING"]) == 2)
    assert fill("--resubmit")["submitted"] == 1
    jobs.until("it has a successor", lambda found: list(map(len, found.values())) == [1, 3])
    go.touch()
    jobs.until("none is left", lambda found: not any(found.values()))
    assert queue.status().completed == 12


SOLVE = """#!/bin/sh
echo + >>{place}/seats
[ $1 -le 20 ] || flock --shared {place}/held true
echo - >>{place}/seats
[ $(($1 % 10)) -ne 7 ] || exit 137
echo '{{}}' >$FSQUEUE_RESULT
"""
"""A tenth has too little memory; those from 21 on last until the test goes on."""
SOLVER = """
import fcntl

def solve(run):
    for sign in "+-":
        with open({place!r} + "/large-seats", "a") as seats:
            seats.write(sign + "\\n")
        with open({place!r} + "/held") as held:
            fcntl.flock(held, fcntl.LOCK_SH)
    return {{}}
"""


@contextmanager
def held(place: Path) -> Iterator[None]:
    """Keep tasks from ending meanwhile."""
    with open(place / "held", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def signs(path: Path) -> list[int]:
    """Return how many tasks were at work, each time that one began or ended."""
    return list(accumulate(1 if line == "+" else -1 for line in path.read_text().split())) if path.exists() else []


def test_a_campaign_with_limits_whose_large_tasks_move(cluster: Cluster) -> None:
    """Four seats of a licence for two jobs with four processes each; out of memory; a stop; a queue that is moved."""
    place = cluster.directory / "weeks"
    place.mkdir()
    small, big, moved = place / "campaign/solve", place / "campaign/big", place / "moved-big"
    (place / "solve").write_text(SOLVE.format(place=place))
    (place / "solve").chmod(0o755)
    (cluster.directory / "solver.py").write_text(SOLVER.format(place=str(place)))
    (place / "runs.jsonl").write_text("".join(f'{{"run": {n}, "licence": "solver"}}\n' for n in range(1, 41)))
    campaign = ("slurm", small, "--resubmit", "--max-jobs", 2, "-t", 60, "-j", 4)
    campaign += ("--then-to", "big", "--on", "oom", "--", place / "solve", "{run}")

    cluster.fsqueue("create", "--group", place / "campaign")
    cluster.fsqueue("insert", small, place / "runs.jsonl")
    cluster.fsqueue("set", small, "limit.licence=4", "rate=600/m")
    queue = Queue(small)
    jobs = Jobs(cluster, queue, 2)
    with held(place):
        cluster.fsqueue(*campaign)
        jobs.until("both work", jobs.is_complete)
        jobs.until("all seats are taken", lambda _: signs(place / "seats")[-1:] == [4] and queue.status().leased == 4)
        assert "2 running jobs finish their tasks" in cluster.fsqueue("slurm", "--stop", small)
        cluster.fsqueue("pause", small, "--reason", "maintenance")
        jobs.until("both have heard of it", lambda _: jobs.logs().count("its campaign was stopped") == 2)
    jobs.until("none is left", lambda found: not any(found.values()))
    assert (queue.status().leased, queue.status().dead) == (0, 0)

    cluster.fsqueue("resume", small)
    cluster.fsqueue(*campaign)
    cluster.fsqueue("wait", small)
    assert queue.status().completed == 36, "a tenth has moved"
    assert max(signs(place / "seats")) == 4
    assert signs(place / "seats")[-1] == 0

    cluster.fsqueue("create", moved)
    cluster.fsqueue("mv", big, moved)
    cluster.fsqueue("set", moved, "limit.licence=4", "max_leased=1")
    large = Queue(moved)
    words = ("slurm", moved, "--resubmit", "--fill", 6, "--json", "-t", 60, "--mem", "100M", "-j", 2)
    with held(place):
        said = json.loads(cluster.fsqueue(*words, "--call", "solver:solve", "--recycle-after", 2))["fill"]
        assert (said["tasks"], said["needed"], said["submitted"]) == (4, 1, 1), "only one task is at work at a time"
        jobs = Jobs(cluster, large, 1)
        jobs.until("one is at work", lambda _: signs(place / "large-seats") == [1] and large.status().leased == 1)
    cluster.fsqueue("wait", moved)
    assert (large.status().completed, max(signs(place / "large-seats"))) == (4, 1)
    for path in (small, moved):
        cluster.fsqueue("slurm", "--stop", path)
    results = cluster.fsqueue("results", small, "--json") + cluster.fsqueue("results", moved, "--json")
    assert len({json.loads(line)["id"] for line in results.splitlines()}) == 40
