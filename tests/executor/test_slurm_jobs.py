"""Executors whose workers are jobs of Slurm. A stand-in executes the jobs on this host; tests/lab has a real one."""

from __future__ import annotations

import concurrent.futures as cf
import math
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Executor, Group, InvalidArgument, Queue, Status, TaskFailed
from fsqueue.cluster.controller import JobRun, Printed
from fsqueue.cluster.slurm import SLURM
from fsqueue.executor import slurm_jobs
from fsqueue.executor.slurm_jobs import JobOptions, SlurmJobs
from tests.cli import running_slurm
from tests.executor import called
from tests.executor.conftest import wait_for_threads
from tests.gateways import gateways
from tests.house.source import TOP
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once

LOAD = ["tests.executor.called"]


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue.create(tmp_path / "q", durability="none", max_attempts=10, backoff_s=(0.01, 0.01))


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Give this process a Slurm, and return the directory of its jobs. Wait for their end."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "jobs").mkdir()
    for name, text in running_slurm.commands(f"{tmp_path}/jobs").items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(TOP))
    monkeypatch.chdir(tmp_path)
    for name in "FIRST_LOOK_S", "ENDED_S", "FRUITLESS_PAUSE_S":
        monkeypatch.setattr(slurm_jobs, name, 0.05)
    monkeypatch.setattr(slurm_jobs, "REFUSED_PAUSE_S", (0.05, 0.1))
    yield tmp_path / "jobs"
    wait_for_threads()
    until(lambda: running_slurm.have_ended(tmp_path / "jobs"), "the end of all jobs")


def submitted(jobs: Path) -> list[dict[str, str]]:
    return [one for _, one in sorted(running_slurm.jobs(jobs).items())]


def is_at_work(jobs: Path) -> list[int]:
    """Return the leaders of the processes of the latest job, if it runs."""
    latest = submitted(jobs)[-1:]
    return [int(group) for one in latest if one["state"] == "RUNNING" for group in one["groups"].split()]


# -- from the first call to the end ---------------------------------------------------------------------------


def test_an_array_is_submitted_for_the_first_call_and_another_one_for_calls_that_come_when_it_has_ended(
    queue: Queue, jobs: Path
) -> None:
    options = {"jobs": 2, "processes": 2, "time": "0:10:00", "requeue": True, "mem": None, "log_dir": Path("logs")}
    with Executor(str(queue.path), slurm=options) as executor:
        assert submitted(jobs) == [], "no call waits for it"
        assert [*executor.map(called.add, range(50), range(50))] == [*range(0, 100, 2)]
        assert executor.submit(called.divide, 1, 4).result(PATIENCE_S) == 0.25
        until(lambda: running_slurm.have_ended(jobs), "the end of the jobs, without a shutdown")
        first = len(submitted(jobs))
        assert executor.submit(called.same, "later").result(PATIENCE_S) == "later"
        assert len(submitted(jobs)) > first
    words = submitted(jobs)[0]["words"].split()
    assert {"--array=0-1", "--time=0:10:00", "--requeue", "--cpus-per-task=2"} <= {*words}
    assert "mem" not in " ".join(words)
    assert {path.name for path in Path("logs").parent.iterdir()} >= {"logs"}
    workers = [info.worker for info in queue.tasks("completed")]
    assert {worker["slurm_job"] for worker in workers} <= {str(number) for number in running_slurm.jobs(jobs)}
    assert {worker["slurm_index"] for worker in workers} <= {"0", "1"}
    until(lambda: running_slurm.have_ended(jobs), "the end of the jobs")


def test_pickled_calls_load_what_unpickles_them(
    queue: Queue, jobs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FSQUEUE_PICKLE_KEY", str(tmp_path / "pickle.key"))
    with Executor(queue, slurm={"load": LOAD}, pickle=True) as executor:
        assert executor.submit(lambda one: one + 1, 2).result(PATIENCE_S) == 3
    assert "--load fsqueue.pickled" in (jobs / "1.sh").read_text()


def test_jobs_load_the_modules_of_the_calls_before_them_and_no_later_ones(queue: Queue, jobs: Path) -> None:
    with Executor(queue, slurm={}) as executor:
        assert executor.submit(called.same, 1).result(PATIENCE_S) == 1
        from tests.executor import called_elsewhere

        with pytest.raises(InvalidArgument, match=r"load tests.executor.called, and .* is in tests.*_elsewhere"):
            executor.submit(called_elsewhere.other, 1)
        with pytest.raises(InvalidArgument, match=r"@fsqueue.task before it; or let the executor pickle"):
            executor.submit(math.hypot, 1, 2)
    assert (jobs / "1.sh").read_text().count("--load") == 1


def test_calls_by_name_are_found_again_with_the_jobs_of_another_driver(queue: Queue, jobs: Path) -> None:
    for _ in range(2):
        with Executor(queue, slurm={}) as executor:
            futures = executor.submit_many(called.add, [1, 2], [3, 4], name="sweep")
            assert [future.result(PATIENCE_S) for future in futures] == [4, 6]
    assert queue.status().completed == 2


def test_calls_that_raise_end_no_job_and_their_futures_raise_for_them(jobs: Path, tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "strict", durability="none", max_attempts=1)
    with Executor(queue, slurm={}) as executor:
        futures = [executor.submit(called.divide, 1, 0) for _ in range(15)]
        for future in futures:
            with pytest.raises(TaskFailed, match="ZeroDivisionError"):
                future.result(PATIENCE_S)
    assert len(submitted(jobs)) == 1


def test_a_queue_of_a_group_is_named_as_commands_name_it(jobs: Path, tmp_path: Path) -> None:
    group = Group.create(tmp_path / "g", durability="none")
    with Executor(group["a b#c"], slurm={}) as executor:
        assert executor.submit(called.add, 1, 2).result(PATIENCE_S) == 3


# -- what dies ------------------------------------------------------------------------------------------------


def test_a_job_that_is_killed_at_a_call_is_followed_by_another_one(queue: Queue, jobs: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with Executor(queue, slurm={"jobs": 2}) as executor:
        futures = [executor.submit(called.wait_for, str(file)) for _ in range(3)]
        until(Path(f"{file}.begun").exists, "the first call")
        for group in until(lambda: is_at_work(jobs), "the job"):
            os.killpg(group, signal.SIGKILL)
        until(lambda: len(submitted(jobs)) > 1, "the next job")
        file.touch()
        assert [future.result(PATIENCE_S) for future in futures] == ["waited"] * 3
    assert queue.status().completed == 3


def test_jobs_that_end_at_once_are_not_submitted_for_ever(queue: Queue, jobs: Path, tmp_path: Path) -> None:
    (tmp_path / "prologue.sh").write_text("exit 3\n")
    with Executor(queue, slurm={"prologue": "prologue.sh"}) as executor:
        futures = [executor.submit(called.add, 1, number) for number in range(3)]
        for future in futures:
            with pytest.raises(cf.BrokenExecutor, match=r"jobs have ended 3 times in a row, .* Job 3: FAILED, exit"):
                future.result(PATIENCE_S)
        with pytest.raises(cf.BrokenExecutor):
            executor.submit(called.add, 1, 2)
    assert len(submitted(jobs)) == 3
    assert queue.status().remaining == 0


def test_a_refused_submission_is_tried_again(queue: Queue, jobs: Path) -> None:
    (jobs / "refusal").write_text("sbatch: error: QOSMaxSubmitJobPerUserLimit")
    with Executor(queue, slurm={}) as executor:
        future = executor.submit(called.add, 1, 2)
        refused = executor._jobs
        assert refused is not None
        until(lambda: refused._refused_since is not None, "the refusal")
        (jobs / "refusal").unlink()
        assert future.result(PATIENCE_S) == 3


def test_a_submission_that_is_refused_for_long_ends_the_futures_with_what_sbatch_has_said(
    queue: Queue, jobs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm_jobs, "REFUSED_S", (0.1, 3600.0))
    (jobs / "refusal").write_text("sbatch: error: invalid partition specified: nowhere")
    with Executor(queue, slurm={"partition": "nowhere"}) as executor:
        future = executor.submit(called.add, 1, 2)
        with pytest.raises(cf.BrokenExecutor, match=r"to Slurm: sbatch: error: invalid partition .*: nowhere\. C"):
            future.result(PATIENCE_S)
    assert queue.status().remaining == 0


def test_what_no_repetition_mends_is_said_at_once(queue: Queue, jobs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm_jobs, "REFUSED_S", (math.inf, math.inf))
    with Executor(queue, slurm={"log_dir": queue.path / "logs"}) as executor:
        future = executor.submit(called.add, 1, 2)
        with pytest.raises(cf.BrokenExecutor, match="which is in the queue"):
            future.result(PATIENCE_S)
    assert submitted(jobs) == []


DRIVER = """
import sys, fsqueue
from tests.executor import called
executor = fsqueue.Executor(sys.argv[1], slurm={"load": ["tests.executor.called"]})
futures = [executor.submit(called.wait_for, sys.argv[2]) for _ in range(3)]
from tests.waiting import until
from pathlib import Path
until(Path(sys.argv[2] + ".begun").exists, "the first call")
print("begun", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("is_killed", [True, False])
def test_a_driver_that_dies_or_ends_without_a_shutdown_leaves_jobs_that_do_its_calls_and_end(
    queue: Queue, jobs: Path, tmp_path: Path, is_killed: bool
) -> None:
    command = [sys.executable, "-c", DRIVER, str(queue.path), str(tmp_path / "file")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdin is not None
        assert driver.stdout is not None
        assert driver.stdout.readline() == "begun\n"
        if is_killed:
            driver.kill()
        else:
            driver.stdin.close()
        assert driver.wait(PATIENCE_S) == (-signal.SIGKILL if is_killed else 0)
    (tmp_path / "file").touch()
    until(lambda: queue.status().completed == 3, "the calls")
    until(lambda: running_slurm.have_ended(jobs), "the end of the job")
    assert len(submitted(jobs)) == 1


LEAVING = """
import sys, fsqueue
from tests.executor import called
executor = fsqueue.Executor(sys.argv[1], slurm={})
for number in range(3):
    executor.submit(called.same, number)
if sys.argv[2] == "shut":
    executor.shutdown(wait=False)
"""


@pytest.mark.parametrize("end", ["shut", "leave"])
def test_a_driver_that_ends_at_once_leaves_a_job_for_its_calls(queue: Queue, jobs: Path, end: str) -> None:
    subprocess.run([sys.executable, "-c", LEAVING, str(queue.path), end], check=True)
    until(lambda: queue.status().completed == 3, "the calls")
    until(lambda: running_slurm.have_ended(jobs), "the end of the job")
    assert len(submitted(jobs)) == 1


def test_a_shutdown_cancels_jobs_that_wait(queue: Queue, jobs: Path, tmp_path: Path) -> None:
    with running_slurm.held(jobs, "waits"):
        executor = Executor(queue, slurm={"job_name": "waits", "dependency": "singleton"})
        future = executor.submit(called.add, 1, 2)
        until(lambda: submitted(jobs), "the job")
        executor.shutdown(cancel_futures=True)
        assert future.cancelled()
        assert [one["state"] for one in submitted(jobs)] == ["CANCELLED"], "also what was just being submitted"
    assert queue.status().remaining == 0


def test_a_forked_child_leaves_the_jobs_to_its_parent(queue: Queue, jobs: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    with Executor(queue, slurm={}) as executor:
        future = executor.submit(called.wait_for, str(file))
        until(Path(f"{file}.begun").exists, "the call")
        if (child := os.fork()) == 0:
            try:
                executor.shutdown()
            finally:
                os._exit(executor._calls._jobs is not None)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        file.touch()
        assert future.result(PATIENCE_S) == "waited"


# -- how often Slurm is asked ---------------------------------------------------------------------------------


class FalseSlurm:
    """Answers what it is told to."""

    submit_command = "true"

    def __init__(self) -> None:
        self.is_there: bool | None = True
        self.asked: list[float] = []
        self.cancelled: list[str] = []
        self.taken = 0
        self.now = 0.0

    def is_over(self, job: str) -> bool | None:
        self.asked.append(self.now)
        return None if self.is_there is None else not self.is_there

    def run_of(self, job: str) -> JobRun | None:
        return None

    def cancel(self, jobs: list[str], only_waiting: bool) -> bool:
        self.cancelled += jobs
        return only_waiting

    def environment(self, environment: Any) -> dict[str, str]:
        return {}

    def job_in(self, printed: str) -> str | None:
        return printed or None

    def answer(self, *_: object) -> Printed | None:
        self.taken += 1
        return Printed(0, str(self.taken), "")


@pytest.fixture
def slurm(monkeypatch: pytest.MonkeyPatch) -> FalseSlurm:
    class AtOnce:
        def __init__(self, name: str, act: Any) -> None:
            self.start = act

        def is_alive(self) -> bool:
            return False

    made = FalseSlurm()
    monkeypatch.setattr(slurm_jobs, "SLURM", made)
    monkeypatch.setattr(slurm_jobs, "answer_of", made.answer)
    monkeypatch.setattr(slurm_jobs, "SideThread", AtOnce)
    return made


def some() -> Status:
    return Status(waiting=1)


def checked(slurm: FalseSlurm, jobs: SlurmJobs, seconds: int, has_calls: bool = True, ends: int = 0) -> Any:
    """Check ten times a second for some time, and return the last answer."""
    said = None
    jobs._clock = lambda: slurm.now
    for _ in range(10 * seconds):
        said = jobs.check(has_calls, ends)
        slurm.now = round(slurm.now + 0.1, 1)
    return said


def test_slurm_is_asked_more_and_more_seldom_and_soon_after_a_rest(slurm: FalseSlurm) -> None:
    jobs = SlurmJobs("/q", JobOptions({}), some)
    checked(slurm, jobs, 120)
    assert slurm.asked == [3.0, 9.0, 21.0, 45.0, 75.0, 105.0]
    checked(slurm, jobs, 60, has_calls=False)
    assert len(slurm.asked) == 6
    checked(slurm, jobs, 1)
    assert slurm.asked[6:] == [180.0]
    assert slurm.taken == 1


def test_another_array_is_submitted_when_all_jobs_have_ended_and_not_while_slurm_does_not_answer(
    slurm: FalseSlurm,
) -> None:
    jobs = SlurmJobs("/q", JobOptions({"check_s": 5}), some)
    checked(slurm, jobs, 10)
    slurm.is_there = None
    checked(slurm, jobs, 100)
    assert slurm.taken == 1
    slurm.is_there = False
    checked(slurm, jobs, 5, ends=1)
    assert slurm.taken == 1, "the executor looks at its calls first"
    checked(slurm, jobs, 5, ends=1)
    assert slurm.taken == 2
    assert jobs._fruitless == 0


def test_arrays_that_end_no_call_are_submitted_later_and_later_and_three_times(slurm: FalseSlurm) -> None:
    slurm.is_there = False
    jobs = SlurmJobs("/q", JobOptions({}), some)
    assert checked(slurm, jobs, 30) is None
    assert slurm.taken == 1
    assert checked(slurm, jobs, 10) is None
    assert slurm.taken == 2
    assert checked(slurm, jobs, 10, ends=1) is None
    assert slurm.taken == 3, "a call has ended"
    assert isinstance(checked(slurm, jobs, 200, ends=1), cf.BrokenExecutor)
    assert slurm.taken == 5
    checked(slurm, jobs, 200, ends=2)
    assert slurm.taken == 5


def test_calls_that_are_cancelled_before_a_job_began_count_as_no_failure_of_jobs(slurm: FalseSlurm) -> None:
    slurm.is_there = False
    jobs = SlurmJobs("/q", JobOptions({}), some)
    for _ in range(10):
        assert checked(slurm, jobs, 20) is None
        assert checked(slurm, jobs, 20, has_calls=False) is None
    assert slurm.taken >= 10


def test_an_array_that_was_submitted_during_the_end_is_cancelled(
    slurm: FalseSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = SlurmJobs("/q", JobOptions({}), some)

    def ended_meanwhile(*_: object) -> Printed:
        jobs.end()
        return Printed(0, "7", "")

    monkeypatch.setattr(slurm_jobs, "answer_of", ended_meanwhile)
    checked(slurm, jobs, 1)
    assert slurm.cancelled == ["7"]
    checked(slurm, jobs, 100)
    assert slurm.cancelled == ["7"]


def test_nothing_is_submitted_while_no_task_waits(slurm: FalseSlurm) -> None:
    now = [Status(leased=3)]
    jobs = SlurmJobs("/q", JobOptions({}), lambda: now[0])
    checked(slurm, jobs, 60)
    assert slurm.taken == 0
    now[0] = Status(leased=2, delayed=1)
    checked(slurm, jobs, 4)
    assert slurm.taken == 1


def test_an_answer_that_names_no_job_ends_the_futures_and_is_not_asked_for_again(
    slurm: FalseSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    answered: list[Printed] = []
    monkeypatch.setattr(slurm, "job_in", lambda printed: None)
    monkeypatch.setattr(
        slurm_jobs, "answer_of", lambda *_: answered.append(Printed(0, "Welcome!\n", "")) or answered[-1]
    )
    error = checked(slurm, SlurmJobs("/q", JobOptions({}), some), 5)
    assert isinstance(error, cf.BrokenExecutor)
    assert "names no job: 'Welcome!'" in str(error)
    assert len(answered) == 1


@pytest.mark.parametrize(
    ("said", "is_over"),
    [("RUNNING\nPENDING\n", False), ("COMPLETED\nFAILED\n", True), ("", True), (None, None),
     ("*** maintenance ***\nCOMPLETED\n", None), ("COMPLETED\nSTRANGE_NEW\n", False)],
)  # fmt: skip
def test_only_states_tell_whether_a_job_is_over(
    monkeypatch: pytest.MonkeyPatch, said: str | None, is_over: bool | None
) -> None:
    monkeypatch.setattr(SLURM, "ask", lambda *_: said)
    assert SLURM.is_over("7") is is_over


# -- what is refused ------------------------------------------------------------------------------------------

REFUSED: list[tuple[Any, str]] = [
    (["jobs"], r"slurm is a dict of options, not .* For example: slurm=\{"),
    ({"jobs": 0}, r'slurm\["jobs"\] must be a whole number of at least 1, not 0'),
    ({"jobs": "4"}, r'slurm\["jobs"\] must be a whole number'),
    ({"processes": 0}, r'slurm\["processes"\] must be a whole number of at least 1'),
    ({"load": "tiles"}, r'slurm\["load"\] must be a list of names of modules'),
    ({"load": []}, r'"load": \["tiles"\]'),
    ({"check_s": 0}, r'slurm\["check_s"\] must be a number of seconds above 0'),
    ({"time": ["1"]}, r'slurm\["time"\] must be a text, a number or True'),
    ({"time": b"1"}, r'slurm\["time"\] must be a text, a number or True'),
    ({"time": "1\0"}, r'slurm\["time"\] must be a text'),
    ({"t": 1}, r"Write the long name of an option of sbatch"),
    ({"cpus-per-task": 1}, r"with _ for -"),
    ({"array": "0-3"}, r'cannot have the key "array"\. Say how many jobs there are: "jobs": N'),
    ({"forever": True}, r"The jobs end when the queue is drained"),
    ({"wait": True}, r'cannot have the key "wait"'),
    ({"wrap": "true"}, r"The jobs execute the calls of the executor"),
    ({"print": True}, r"Leave it out"),
    ({"quiet": True}, r"Leave it out"),
    ({"wra": "true"}, r'cannot have the key "wra"\. The jobs execute'),
    ({"arr": "0-7"}, r'cannot have the key "arr"\. Say how many'),
    ({"log_dir": 3}, r'slurm\["log_dir"\] must be a path, not 3'),
]


@pytest.mark.parametrize(("options", "said"), REFUSED)
def test_what_slurm_cannot_be_is_refused(queue: Queue, jobs: Path, options: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Executor(queue, slurm=options)


def test_each_key_that_is_refused_says_what_to_do() -> None:
    assert slurm_jobs.INSTEAD.keys() <= slurm_jobs.RESERVED
    for key in slurm_jobs.RESERVED:
        with pytest.raises(InvalidArgument, match=re.escape(f'"{key}". ') + "[A-Z]"):
            JobOptions({key: 1})


def test_slurm_and_workers_exclude_each_other(queue: Queue, jobs: Path) -> None:
    with pytest.raises(ValueError, match=r"Leave one of them out"):
        Executor(queue, workers=2, slurm={})


def test_a_gateway_has_no_jobs(jobs: Path, tmp_path: Path) -> None:
    group = Group.create(tmp_path / "g")
    group["q"].insert("a")
    with gateways(tmp_path) as serve:
        there = fsqueue.connect(f"{serve(group.path)}/q")
        with pytest.raises(ValueError, match=r"'fsqueue slurm PATH --load MODULE'"):
            Executor(there, slurm={})


def test_a_host_without_sbatch_is_told(queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ValueError, match=r"sbatch is not found on this host.* workers=N"):
        Executor(queue, slurm={})
