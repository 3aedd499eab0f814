"""Workers in the jobs of a real Slurm: drained by an array, cancelled, requeued, at their time limit, killed, lost.

All jobs are submitted at first, and wait for what happens to them. Leases last for ten minutes, so that what is
available again was put back.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue
from fsqueue.format.models import Movement, TaskInfo
from tests.lab.cluster import FSQUEUE, Cluster, why_no_cluster
from tests.waiting import LOOK_AGAIN

pytestmark = pytest.mark.slow

SOON_S = 90.0
"""How long anything may take that happens at once, on a busy machine."""
OTHERS = "n3,n4,n5"
"""Nodes that a scenario has for itself."""
LONG = ("sh", "-c", "exec sleep 600")


@dataclass
class Job:
    """A job of workers on a queue of its own."""

    cluster: Cluster
    queue: Queue
    id: str

    @property
    def path(self) -> Path:
        return self.queue.path

    def leased(self) -> list[TaskInfo]:
        return list(self.queue.tasks("leased"))

    def works(self) -> list[TaskInfo]:
        """Wait until it has leased; what."""
        found: list[TaskInfo] = self.cluster.until(f"{self.path} is worked on", self.leased)
        return found

    def puts_back(self, tasks: int, timeout_s: float = SOON_S) -> None:
        """Wait until nothing is leased; all has to be there as if nothing had happened."""
        self.cluster.until(f"{self.path} is put back", lambda: not self.leased(), timeout_s)
        status = self.queue.status()
        assert (status.waiting, status.dead) == (tasks, 0), status
        assert {info.attempt for info in self.queue.tasks()} == {0}

    def workers(self, *options: str) -> Any:
        """What `fsqueue workers` says on the login host."""
        return json.loads(self.cluster.fsqueue("workers", self.path, "--json", *options))

    def moves(self, op: str) -> list[Movement]:
        """What has happened to its tasks, of one kind, in order."""
        moves = [move for info in self.queue.tasks() for move in self.queue.history(info.id) if move.op == op]
        return sorted(moves, key=lambda move: move.at)

    def state(self) -> str:
        """What Slurm calls its state."""
        return self.cluster.state(self.id)

    def last_state(self) -> str:
        """What Slurm calls its state, once all that belongs to its end is done."""
        self.cluster.until("it is over", lambda: self.state() not in ("RUNNING", "COMPLETING"))
        return self.state()

    def ends(self) -> None:
        """Wait until Slurm says that nothing of it runs."""
        self.cluster.until(f"job {self.id} has ended", lambda: not self.processes())

    def processes(self) -> list[str]:
        """The numbers, on the login host, of the processes of its workers, on whatever node."""
        return self.cluster.run("pgrep", "-f", f"fsqueue_cli run {self.path}( |$)", code=None).split()


Submit = Callable[..., Job]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if lacking := why_no_cluster():
        pytest.skip(lacking)
    cluster = Cluster(
        tmp_path_factory.mktemp("slurm") / "lab", NODES="5", CPUS="4", SLURMD_TIMEOUT_S="60", KILL_WAIT_S="60"
    )
    yield cluster
    cluster.close()


def prepare(cluster: Cluster, name: str, tasks: int) -> Queue:
    queue = Queue.create(cluster.directory / name)
    queue.insert_many(range(tasks))
    return queue


def submit(
    cluster: Cluster, name: str, *options: str, tasks: int = 3, command: tuple[str, ...] = LONG, **environment: str
) -> Job:
    queue = prepare(cluster, name, tasks)
    return Job(cluster, queue, cluster.fsqueue("slurm", queue.path, *options, "--", *command, **environment).strip())


def plain(cluster: Cluster, name: str, **environment: str) -> Job:
    """As submitted by hand."""
    queue = prepare(cluster, name, 3)
    worker = " ".join(("exec", *FSQUEUE, "run", str(queue.path), "--", "sleep", "600"))
    sbatch = ("sbatch", "--parsable", "-t", "1", "-x", OTHERS, "--wrap", worker)
    return Job(cluster, queue, cluster.run(*sbatch, **environment).strip())


def unaware() -> dict[str, str]:
    """The environment of workers that do not know when their job ends."""
    return {"SLURM_JOB_END_TIME": str(int(time.time()) + 100 * 86_400)}


JOBS: dict[str, Callable[[Cluster, str], Job]] = {
    "limit": lambda cluster, name: plain(cluster, name, **unaware()),
    "signal": lambda cluster, name: submit(cluster, name, "-x", OTHERS, "-t", "1", "--signal=B:USR1@10", **unaware()),
    "end": plain,
    "crash": lambda cluster, name: submit(cluster, name, "-w", "n4", "--requeue"),
    "preempt": lambda cluster, name: submit(cluster, name, "-p", "low", "-w", "n5", "--exclusive", "--requeue"),
    "daemon": lambda cluster, name: submit(
        cluster, name, "-w", "n3", command=("sh", "-c", f"until [ -e go ]; do {LOOK_AGAIN}; done")
    ),
    "requeue": lambda cluster, name: submit(cluster, name, "-x", OTHERS, "--requeue", "--array=5"),
    "cancel": lambda cluster, name: submit(cluster, name, "-x", OTHERS),
    "kill": lambda cluster, name: submit(cluster, name, "-x", OTHERS),
    "array": lambda cluster, name: submit(cluster, name, "-x", OTHERS, "--array=0-1,7", tasks=9),
    "drain": lambda cluster, name: submit(
        cluster, name, "--array=0-3", "--time=10", tasks=40, command=("sh", "-c", 'echo "$1" >>done', "x", "{}")
    ),
}
"""How each job is submitted: the slow ones first."""


@pytest.fixture(scope="module")
def jobs(request: pytest.FixtureRequest, cluster: Cluster) -> dict[str, Job]:
    """The jobs of the tests that are to run, all submitted at first."""
    marks = [mark for item in request.session.items for mark in item.iter_markers("parametrize")]
    wanted = {name for mark in marks if mark.args[0] == "job" and mark.kwargs.get("indirect") for name in mark.args[1]}
    return {name: begin(cluster, name) for name, begin in JOBS.items() if name in wanted}


@pytest.fixture
def job(request: pytest.FixtureRequest, jobs: dict[str, Job]) -> Job:
    return jobs[request.param]


def with_job(name: str) -> pytest.MarkDecorator:
    """Give a test the job of that name."""
    return pytest.mark.parametrize("job", [name], indirect=True)


@with_job("drain")
def test_more_tasks_than_elements_are_drained_each_once(job: Job) -> None:
    job.cluster.fsqueue("wait", job.path, "--timeout", "180")
    assert job.queue.status().completed == 40
    assert sorted(map(int, (job.cluster.directory / "done").read_text().split())) == list(range(40))
    workers = [info.worker for info in job.queue.tasks("completed")]
    assert {worker["slurm_job"] for worker in workers} == {job.id}
    assert {worker["slurm_index"] for worker in workers} <= {"0", "1", "2", "3"}
    assert {worker["slurm_cluster"] for worker in workers} == {"lab"}
    assert all(worker["slurm_node"] == worker["host"] for worker in workers)


@pytest.mark.thorough
@with_job("drain")
def test_a_dependent_job_waits_for_the_queue(job: Job) -> None:
    made = job.cluster.directory / "assembled"
    wrap = f"{' '.join(FSQUEUE)} wait {job.path} && touch {made}"
    job.cluster.run("sbatch", f"--dependency=afterany:{job.id}", "-x", OTHERS, "--wrap", wrap)
    job.cluster.until("the dependent job has run", made.exists)


@pytest.mark.thorough
@with_job("cancel")
def test_scancel_puts_back_at_once(job: Job) -> None:
    job.works()
    job.cluster.run("scancel", job.id)
    job.puts_back(3)
    job.ends()


@pytest.mark.thorough
@with_job("requeue")
def test_a_requeued_job_puts_back_and_goes_on_later(job: Job) -> None:
    [before] = job.works()
    job.cluster.run("scontrol", "requeue", f"{job.id}_5")
    job.puts_back(3)
    job.ends()
    job.cluster.until("it waits", lambda: job.cluster.state(f"{job.id}_5") == "PENDING")

    def starts_again() -> list[TaskInfo]:  # a node starts no job again that it was told to end in the same second
        job.cluster.run("scontrol", "update", f"jobid={job.id}_5", "StartTime=now", code=None)
        return job.leased()

    [after] = job.cluster.until("it works again", starts_again)
    assert before.worker is not None
    assert after.worker is not None
    assert "slurm_restart" not in before.worker
    assert (after.worker["slurm_job"], after.worker["slurm_index"]) == (job.id, "5")
    assert after.worker["slurm_restart"] == "1"
    assert [worker["life"] for worker in job.workers()["workers"]] == ["alive"]
    log = job.cluster.directory / "fsqueue-logs" / f"fsqueue-requeue-{job.id}_5.out"
    assert re.search(r"\d released", log.read_text()), "it goes on with the log of its first worker"


@pytest.mark.thorough
@with_job("preempt")
def test_a_preempted_job_puts_back_for_whoever_comes_first(job: Job) -> None:
    job.works()
    job.cluster.run("srun", "-p", "main", "-w", "n5", "--exclusive", "true")
    job.puts_back(3)
    assert len(job.moves("release")) == 1


@pytest.mark.thorough
@with_job("array")
def test_release_all_of_an_array_job_takes_the_leases_of_all_its_elements(job: Job) -> None:
    job.cluster.until("all elements work", lambda: len(job.leased()) == 3)
    found = job.workers()["workers"]
    assert {worker["job"] for worker in found} == {f"{job.id}_{index}" for index in (0, 1, 7)}
    assert {worker["life"] for worker in found} == {"alive"}
    job.cluster.run("scancel", f"{job.id}_7")
    job.cluster.until("one has put back", lambda: len(job.leased()) == 2)
    job.cluster.run("lab-slurm", "hang")
    try:
        assert {worker["life"] for worker in job.workers()["workers"]} == {"unknown"}
    finally:
        job.cluster.run("lab-slurm", "resume")
    assert job.cluster.fsqueue("release-all", job.path, "--job", job.id, "--yes") == "2\n"
    job.cluster.run("scancel", job.id)
    job.ends()
    job.puts_back(9)


@pytest.mark.thorough
@with_job("kill")
def test_a_killed_worker_s_tasks_are_free_at_once_with_release_dead(job: Job) -> None:
    job.works()
    [process] = job.processes()
    assert job.workers("--release-dead")["released"] == 0
    job.cluster.run("pkill", "-9", "-P", process)  # its fork server, which would end its leases
    job.cluster.run("kill", "-9", process)
    report = job.cluster.until("Slurm notices", lambda: (found := job.workers("--release-dead"))["dead"] and found)
    assert report["released"] == 1
    assert "does not run" in report["dead"][0]["evidence"]
    job.cluster.until("it is available", lambda: job.queue.status().waiting == 3, SOON_S)


@pytest.mark.thorough
@with_job("daemon")
def test_a_node_whose_daemon_is_killed_works_on(job: Job) -> None:
    job.works()
    job.cluster.run("lab-slurm", "kill", "3")
    (job.cluster.directory / "go").touch()
    job.cluster.fsqueue("wait", job.path, "--timeout", "180")
    moves = [move for info in job.queue.tasks("completed") for move in job.queue.history(info.id)]
    assert {move.op for move in moves} == {"insert", "lease", "complete"}
    assert {info.worker["slurm_node"] for info in job.queue.tasks("completed") if info.worker} == {"n3"}
    job.cluster.run("lab-slurm", "start", "3")


@pytest.mark.thorough
@with_job("crash")
def test_a_lost_node_s_tasks_are_free_as_soon_as_slurm_knows(job: Job) -> None:
    job.works()
    job.cluster.run("lab-slurm", "crash", "4")
    report = job.cluster.until("Slurm notices", lambda: (found := job.workers("--release-dead"))["dead"] and found)
    assert report["released"] == 1
    assert report["dead"][0]["node"] == "n4"
    job.cluster.until("it is available", lambda: job.queue.status().waiting == 3, SOON_S)


def has_put_back(job: Job) -> None:
    """Wait until its first worker has put back the task that it held, and has ended."""
    job.cluster.until(f"{job.path} is put back", lambda: not job.leased() and job.moves("release"))
    job.puts_back(3)
    job.ends()
    assert len(job.moves("release")) == 1


@pytest.mark.thorough
@with_job("end")
def test_a_worker_that_knows_the_end_of_its_job_comes_before_it(job: Job) -> None:
    has_put_back(job)
    job.cluster.until("it ends well, and not at its limit", lambda: job.state() == "COMPLETED")


@pytest.mark.thorough
@with_job("signal")
def test_the_signal_before_the_time_limit_is_heeded(job: Job) -> None:
    has_put_back(job)
    assert job.last_state() != "TIMEOUT"


@pytest.mark.thorough
@with_job("limit")
def test_at_the_time_limit_itself_tasks_are_put_back_too(job: Job) -> None:
    has_put_back(job)
    assert job.last_state() == "TIMEOUT"


@pytest.mark.thorough
def test_a_job_knows_its_end(cluster: Cluster) -> None:
    asking = "import time; from fsqueue.cluster.slurm import job_end as f; print(f() and round(f() - time.time()))"
    command = ["srun", "-x", OTHERS, *FSQUEUE[:1], "-c", asking]
    assert 1800 < int(cluster.run(*command[:1], "-t", "60", *command[1:])) <= 3600
    assert cluster.run(*command) == "None\n"
    assert cluster.run(*command[3:]) == "None\n"


@pytest.mark.thorough
def test_a_job_of_several_tasks_has_a_worker_in_each(cluster: Cluster) -> None:
    """Each command waits for the other's. What the prologue has set on the first node is there on both."""
    queue = prepare(cluster, "tasks", 8)
    prologue = cluster.directory / "prologue"
    prologue.write_text("export LOADED=yes\n")
    meet = f"until [ -e at.0 ] && [ -e at.1 ]; do {LOOK_AGAIN}; done"
    command = ("sh", "-c", f'test "$LOADED" = yes || exit 1; hostname >"at.$SLURM_PROCID"; {meet}')
    words = ("-N", "2", "--ntasks-per-node=1", "-j", "1", "-t", "5", "--prologue", prologue)
    job = Job(cluster, queue, cluster.fsqueue("slurm", queue.path, *words, "--", *command).strip())
    cluster.fsqueue("wait", queue.path, "--timeout", "180")
    job.ends()
    assert job.last_state() == "COMPLETED"
    assert len({(cluster.directory / f"at.{task}").read_text() for task in (0, 1)}) == 2, "two nodes"
    log = (cluster.directory / "fsqueue-logs" / f"fsqueue-tasks-{job.id}.out").read_text()
    assert {line.partition(":")[0] for line in log.splitlines() if "completed" in line} == {"0", "1"}


@pytest.mark.thorough
def test_a_signal_reaches_the_workers_of_all_tasks(cluster: Cluster) -> None:
    job = submit(cluster, "each", "-x", OTHERS, "-n", "2", "--grace", "1", tasks=3)
    cluster.until("both work", lambda: len(job.leased()) == 2)
    cluster.run("scancel", "--batch", "--signal=USR1", job.id)
    job.puts_back(3)
    job.ends()
    log = (cluster.directory / "fsqueue-logs" / f"fsqueue-each-{job.id}.out").read_text()
    assert log.count("released") == 2


@pytest.mark.thorough
def test_commands_on_another_node_leave_their_results(cluster: Cluster) -> None:
    """One worker has the whole job: its commands are started on the job's other node."""
    queue = prepare(cluster, "other", 2)
    script = r'printf "[\"%s\",\"%s\"]" "$(hostname)" "$FSQUEUE_RESULT" >"$FSQUEUE_RESULT"'
    words = ("-N", "2", "-t", "5", "--", "srun", "--nodes=1", "--ntasks=1", "--relative=1", "sh", "-c", script)
    job = cluster.fsqueue("slurm", queue.path, *words).strip()
    cluster.fsqueue("wait", queue.path, "--timeout", "180")
    for info in queue.tasks("completed"):
        assert info.worker is not None
        node, path = info.result
        assert node != info.worker["slurm_node"]
        assert path.startswith(f"{queue.path}/.results/")
    cluster.until("the worker has ended", lambda: cluster.state(job) == "COMPLETED")
    assert list((queue.path / ".results").iterdir()) == []


@pytest.mark.thorough
def test_the_only_worker_of_several_nodes_is_told_from_one_of_many(cluster: Cluster) -> None:
    """By the environment alone, which is Slurm's: what the commands start elsewhere is in a script of their own."""
    kept = {}
    for name, words in (("only", ("--one-worker",)), ("many", ())):
        queue = prepare(cluster, name, 1)
        command = ("sh", "-c", r'printf "\"%s\"" "$FSQUEUE_RESULT" >"$FSQUEUE_RESULT"')
        cluster.fsqueue("slurm", queue.path, "-N", "2", "-t", "5", *words, "--", *command)
        cluster.fsqueue("wait", queue.path, "--timeout", "180")
        [info] = queue.tasks("completed")
        kept[name] = info.result.startswith(f"{queue.path}/.results/")
    assert kept == {"only": True, "many": False}
