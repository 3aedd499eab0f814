"""Who holds what, and who lives; what the dead hold is made available."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest

from fsqueue import LeaseLost, LockTimeout, Queue
from fsqueue.clock import ManualClock
from fsqueue.cluster import slurm
from fsqueue.filesystem import processes
from fsqueue.storage import journals
from fsqueue.views.lease_holders import LeaseHolder, held_by_dead, release_dead, workers
from tests.support import QueueFactory, crashes, drain, hand_on, leftovers, log_files
from tests.waiting import until

Commands = Callable[[str, str], None]

LEASING = """
import sys, time
from fsqueue import Queue
Queue(sys.argv[1]).lease(2)
print("leased", flush=True)
time.sleep(600)
"""
RELEASING = """
import sys
from fsqueue import Queue
from fsqueue.views.lease_holders import release_dead

print(release_dead(Queue(sys.argv[1]).store)[1])
"""
SQUEUE = """
1|3|RUNNING|0
1|4|COMPLETED|0
2|N/A|PENDING|1
3|N/A|RUNNING|1
4|N/A|COMPLETING|1
nonsense
"""


@pytest.fixture
def other(queue: Queue) -> Iterator[subprocess.Popen[str]]:
    """Another process of this host that has leased two tasks."""
    queue.insert_many(range(4), batch_tasks=1)
    process = subprocess.Popen([sys.executable, "-c", LEASING, queue.path], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "leased\n"
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Commands:
    """Make one of Slurm's commands: a shell script."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")

    def make(name: str, script: str) -> None:
        path = tmp_path / "bin" / name
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return make


def in_job(path: Path, monkeypatch: pytest.MonkeyPatch, job: str, clock: ManualClock, **variables: str) -> Queue:
    """A queue as a worker in a Slurm job on another host sees it."""
    given = {"SLURM_JOB_ID": job, "SLURMD_NODENAME": "n1", "SLURM_CLUSTER_NAME": "lab"} | variables
    with monkeypatch.context() as patch:
        for name, value in given.items():
            patch.setenv(name, value)
        found = Queue(path, clock=clock)
        found.store.lease_for_others()  # no process to look for from here
    return found


def lives(q: Queue) -> dict[str | None, str]:
    return {worker.job: worker.life for worker in workers(q.store)}


def test_nobody_holds_anything(queue: Queue) -> None:
    assert workers(queue.store) == []
    assert release_dead(queue.store) == ([], 0)


def test_what_a_worker_holds_since_when_and_how_long(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(6), batch_tasks=3)
    begun = clock.now_s
    first = q.lease(2, lease_s=100)
    clock.advance(10)
    second = q.lease(1, lease_s=50)
    clock.advance(5)
    q.renew(first, lease_s=70)
    [worker] = workers(q.store)
    assert sorted(worker.tasks) == sorted(task.id for task in first + second)
    assert (worker.since, worker.heartbeat, worker.lease_until) == (begun, begun + 15, begun + 60)
    assert worker.worker["pid"] == os.getpid()
    assert worker.life == "alive"
    clock.advance(50)
    [worker] = workers(q.store)
    assert (len(worker.tasks), worker.expired) == (2, 1)
    first[0].complete()
    first[1].release()
    [worker] = workers(q.store)
    assert (worker.tasks, worker.expired) == ([], 1)


def test_the_tasks_of_a_killed_process_are_available_at_once(queue: Queue, other: subprocess.Popen[str]) -> None:
    assert [(len(worker.tasks), worker.life) for worker in workers(queue.store)] == [(2, "alive")]
    assert release_dead(queue.store) == ([], 0)
    other.kill()
    other.wait()
    dead, released = release_dead(queue.store)
    assert ([worker.worker["pid"] for worker in dead], released) == ([other.pid], 2)
    assert release_dead(queue.store)[1] == 0
    until(lambda: queue.lease(4) and queue.status().leased == 4, "the tasks of the killed process")


def test_a_zombie_is_dead(queue: Queue, other: subprocess.Popen[str]) -> None:
    other.kill()
    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
    assert [worker.life for worker in workers(queue.store)] == ["dead"]


def test_what_release_dead_has_ended_is_not_counted_again(q: Queue) -> None:
    q.insert_many(range(3), batch_tasks=3)
    held = q.lease(2)
    forge_identity(q)
    assert release_dead(q.store)[1] == 2
    assert q.release_all() == 0
    with pytest.raises(LeaseLost):  # but it was taken away
        q.complete(held)
    assert q.release_all() == 0
    assert q.status().waiting == 3


def test_an_attempt_is_charged_as_when_a_lease_runs_out(q: Queue, clock: ManualClock) -> None:
    q.insert_many(["alone", "one", "two"], batch_tasks=3)
    [alone] = q.lease(1)
    several = q.lease(2)
    forge_identity(q)
    assert release_dead(q.store)[1] == 3
    with pytest.raises(LeaseLost):
        alone.renew()
    attempts = {}
    while tasks := q.lease(1):
        attempts[tasks[0].payload] = tasks[0].attempt
    assert attempts == {alone.payload: 2} | {task.payload: 1 for task in several}
    with pytest.raises(LeaseLost):
        several[0].complete()


def forge_identity(q: Queue) -> None:
    """Have all leases so far be those of a process that has ended: its number is another's now."""
    mine = processes.identity_of(os.getpid())
    assert mine is not None
    q.close()
    for log in log_files(q):
        log.write_bytes(log.read_bytes().replace(mine.encode(), mine.rpartition(".")[0].encode() + b".1"))


def test_a_number_that_another_process_has_now_is_a_death(q: Queue) -> None:
    q.insert("x")
    q.lease()
    forge_identity(q)
    assert [worker.life for worker in workers(q.store)] == ["dead"]


@pytest.mark.parametrize("place", ["000000000000.effffffc.1", "", "garbage", "\n", "7" * 5000])
def test_processes_of_another_boot_machine_or_namespace_are_unknown(q: Queue, place: str) -> None:
    q.insert("x")
    q.lease()
    mine = processes.identity_of(os.getpid())
    assert mine is not None
    q.close()
    for log in log_files(q):
        log.write_bytes(log.read_bytes().replace(mine.encode(), orjson.dumps(place)[1:-1]))
    assert [worker.life for worker in workers(q.store)] == ["unknown"]


def test_a_process_that_hides_is_not_taken_for_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = processes.identity_of(os.getpid())
    assert mine is not None
    monkeypatch.setattr(processes, "fields_of", lambda pid: [])
    assert processes.is_alive(os.getpid(), mine) is None


@pytest.mark.parametrize("pid", [0, -1, 2**62, True, "7", None, 1.5])
def test_a_number_that_is_none_proves_nothing(q: Queue, pid: object) -> None:
    q.insert("x")
    q.store._be(q.store.worker | {"pid": pid})
    q.lease()
    assert [worker.life for worker in workers(q.store)] == ["unknown"]


def test_what_was_leased_for_others_has_no_process(queue: Queue) -> None:
    queue.insert("x")
    queue.store.lease_for_others()
    queue.lease()
    assert [worker.life for worker in workers(queue.store)] == ["unknown"]


def test_slurm_tells_who_lives(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, command: Commands, tmp_path: Path
) -> None:
    command("scontrol", "echo 'ClusterName             = lab\nPrivateData = none'")
    command("squeue", f"echo \"$@\" >{tmp_path}/asked; cat <<'END'\n{SQUEUE}END")
    q.insert_many(range(8), batch_tasks=1)
    for job, variables in (
        ("1", {"SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": "3"}),
        ("1", {"SLURM_ARRAY_JOB_ID": "1", "SLURM_ARRAY_TASK_ID": "4"}),
        ("2", {}),
        ("3", {}),
        ("4", {"SLURM_RESTART_COUNT": "1"}),
        ("5", {}),
        ("6", {"SLURM_CLUSTER_NAME": "elsewhere"}),
        ("7", {"SLURMD_NODENAME": ""}),
    ):
        in_job(q.path, monkeypatch, job, clock, **variables).lease()
    assert lives(q) == {
        "1_3": "alive",
        "1_4": "dead",  # has ended
        "2": "dead",  # was requeued, and waits
        "3": "dead",  # was requeued, and runs again
        "4": "alive",
        "5": "dead",  # Slurm does not know it any more
        "6": "unknown",  # another cluster's
        "7": "unknown",  # a shell that may have outlived its allocation
    }
    assert "--jobs=1,2,3,4,5,6 " in (tmp_path / "asked").read_text()
    assert {worker.job for worker in release_dead(q.store)[0]} == {"1_4", "2", "3", "5"}
    assert set(lives(q)) >= {"1_3", "4", "6", "7"}


@pytest.mark.once
@pytest.mark.parametrize(("ending", "life", "times"), [("exit 0", "dead", 3), ("exit 1", "unknown", 1)])
def test_slurm_is_asked_for_some_jobs_at_a_time_until_it_does_not_answer(
    q: Queue,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    command: Commands,
    tmp_path: Path,
    ending: str,
    life: str,
    times: int,
) -> None:
    command("scontrol", "echo ClusterName=lab")
    command("squeue", f'echo "$@" >>{tmp_path}/asked; {ending}')
    monkeypatch.setattr(slurm, "JOBS_MAX", 2)
    q.insert_many(range(5), batch_tasks=1)
    for job in "12345":
        in_job(q.path, monkeypatch, job, clock).lease()
    assert set(lives(q).values()) == {life}
    assert len((tmp_path / "asked").read_text().splitlines()) == times


def test_a_single_job_that_slurm_does_not_know_is_dead(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, command: Commands
) -> None:
    command("scontrol", "echo 'ClusterName=lab'")
    command("squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    q.insert("x")
    in_job(q.path, monkeypatch, "9", clock).lease()
    assert lives(q) == {"9": "dead"}


@pytest.mark.parametrize(
    ("scontrol", "squeue"),
    [
        ("exit 1", "exit 0"),
        ("exec sleep 600", "exit 0"),
        ("echo ClusterName=lab", "exit 1"),
        ("echo ClusterName=lab", "exec sleep 600"),
        ("echo ClusterName=other", "exit 0"),
        ("echo ClusterName=lab; echo PrivateData=accounts,jobs", "exit 0"),
        ("head -c 100000 /dev/urandom", "exit 0"),
    ],
)
def test_a_slurm_that_does_not_say_proves_nothing(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, command: Commands, scontrol: str, squeue: str
) -> None:
    command("scontrol", scontrol)
    command("squeue", squeue)
    monkeypatch.setattr(slurm, "ASK_S", 0.2 if "sleep" in scontrol + squeue else 60.0)
    q.insert("x")
    with monkeypatch.context() as patch:
        patch.setattr(os, "getuid", lambda: 4711)
        in_job(q.path, monkeypatch, "9", clock).lease()
        patch.setattr(os, "getuid", lambda: 4712)
        assert lives(q) == {"9": "unknown"}
        assert release_dead(q.store) == ([], 0)


def test_one_s_own_jobs_are_seen_where_jobs_are_private(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, command: Commands
) -> None:
    command("scontrol", "echo ClusterName=lab; echo PrivateData=jobs")
    command("squeue", "exit 0")
    q.insert("x")
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    in_job(q.path, monkeypatch, "9", clock).lease()
    assert lives(q) == {"9": "dead"}


@pytest.mark.parametrize(
    "worker", [None, [], "x", {}, {"slurm_job": ["1"]}, {"slurm_job": "1; rm -rf /"}, {"host": {}}]
)
def test_records_that_say_anything(q: Queue, command: Commands, worker: Any) -> None:
    command("scontrol", "echo ClusterName=lab")
    command("squeue", 'echo "$@" >&2; exit 1')
    q.insert("x")
    [task] = q.lease()
    hand_on(q, task, worker)
    for found in workers(q.store):
        assert found.life == "unknown"
        assert orjson.dumps(found.as_dict())
        assert isinstance(found, LeaseHolder)


def test_a_batch_that_stays_locked_is_named_after_the_rest_is_done(
    queue: Queue, other: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other.kill()
    other.wait()
    monkeypatch.setattr(journals, "LOCK_TIMEOUT_S", 0.2)
    first, *_ = [worker.tasks[0].partition(".")[0] for worker in workers(queue.store)]
    path = queue.store.layout.log(first)
    fs = queue.store.fs
    fd = fs.look(path, os.O_RDWR)
    assert fs.try_lock(fd)
    try:
        with pytest.raises(LockTimeout, match=r"^Leases ended: 1. But 1 batch stayed locked"):
            release_dead(Queue(queue.path).store)
    finally:
        fs.close(fd)
    assert release_dead(queue.store)[1] == 1


def test_two_at_once_end_each_lease_once(queue: Queue, other: subprocess.Popen[str]) -> None:
    other.kill()
    other.wait()
    both = [
        subprocess.Popen([sys.executable, "-c", RELEASING, queue.path], stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert sum(int(process.communicate()[0]) for process in both) == 2
    assert list(queue.fsck()) == []


def test_a_death_at_any_step_of_releasing_the_dead_is_made_good_by_the_next(
    queue_factory: QueueFactory, clock: ManualClock
) -> None:
    def build(number: int) -> Queue:
        q = Queue(queue_factory(f"q{number}").path, clock=clock)
        q.insert_many(range(4), batch_tasks=2)
        for _ in range(3):
            q.lease(1)
        forge_identity(q)
        return q

    for where, q in crashes(build, lambda worker: release_dead(worker.store), clock):
        release_dead(q.store)
        q.gc()  # a file's name may promise the later time of before: see docs/design.md, section 4.7
        assert [worker.tasks for worker in workers(q.store)] in ([], [[]]), where
        assert q.status().waiting == 4, where
        assert list(q.fsck()) == [], where
        assert sum(drain(q, clock).values()) == 4, where
        assert leftovers(q) == [], where


def test_a_queue_that_is_purged_meanwhile_has_no_workers(queue: Queue, other: subprocess.Popen[str]) -> None:
    other.kill()
    other.wait()
    stale = Queue(queue.path)
    queue.purge()
    assert release_dead(stale.store) == ([], 0)


def test_idle_workers_are_notified_of_what_the_dead_held(q: Queue) -> None:
    q.insert_many(range(3), batch_tasks=3)
    q.lease(2)
    bell = q.store.doorbell.read()
    assert release_dead(q.store) == ([], 0)
    assert q.store.doorbell.read() == bell
    forge_identity(q)
    assert release_dead(q.store)[1] == 2
    assert q.store.doorbell.read() != bell


def test_what_has_run_out_by_itself_is_not_said_to_be_held_by_the_dead(q: Queue, clock: ManualClock) -> None:
    q.insert("x")
    q.lease(lease_s=5)
    forge_identity(q)
    assert f"fsqueue workers {q.path} --release-dead" in (held_by_dead(q.store) or "")
    clock.advance(6)
    assert held_by_dead(q.store) is None
    assert release_dead(q.store) == ([], 0)


def test_the_oldest_lease_comes_first(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(7), batch_tasks=1)
    names = [f"w{number}" for number in range(7)]
    for name in names:
        Queue(q.path, worker=name, clock=clock).lease()
        clock.advance(1)
    assert [worker.worker["name"] for worker in workers(q.store)] == names
