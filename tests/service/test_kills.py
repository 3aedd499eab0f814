"""Gateways are killed with tasks under way, and started again: each task counts once."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import fsqueue
from fsqueue import Group, LeaseLost, RemoteQueue, StorageError, TaskNotFound
from tests.gateways import RealGateway
from tests.waiting import until

pytestmark = [pytest.mark.once, pytest.mark.slow]

LEASE_S = 3.0
"""Leases of tasks whose answer was lost run out after this."""


class Oracle:
    """What workers were told: a task whose completion was answered is never leased again."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.completed: set[str] = set()
        self.wrong: list[str] = []
        self.leased = threading.Semaphore(0)

    def lease(self, ids: list[str]) -> None:
        """Note tasks that a worker got."""
        with self._lock:
            self.wrong += [id for id in ids if id in self.completed]
        for _ in ids:
            self.leased.release()

    def complete(self, ids: list[str]) -> None:
        """Note tasks of which a worker was told that they are completed. No second worker may be told so."""
        with self._lock:
            self.wrong += [id for id in ids if id in self.completed]
            self.completed.update(ids)


def inserted(gateways: list[RealGateway], commit: str, payloads: range) -> int:
    """Insert payloads under a name, by one gateway or the other, until one says that they are there."""
    turn = 0
    while True:
        turn += 1
        try:
            queue = fsqueue.connect(f"{gateways[turn % 2].url}/q", patience_s=0)
            assert isinstance(queue, RemoteQueue)
            return queue.insert_many(payloads, commit=commit)
        except StorageError:  # it was killed, and may have inserted them
            continue


def work(gateways: list[RealGateway], number: int, at_once: int, oracle: Oracle, is_over: threading.Event) -> None:
    """Lease and complete tasks by one gateway, and by the other one when that is killed."""
    turn = number
    while not is_over.is_set():
        turn += 1
        try:
            remote = fsqueue.connect(f"{gateways[turn % 2].url}/q", patience_s=0)
            assert isinstance(remote, RemoteQueue)
            while not is_over.is_set():
                tasks = remote.lease(at_once, lease_s=LEASE_S, wait_s=1)
                if tasks:
                    oracle.lease([task.id for task in tasks])
                    remote.complete(tasks, {task.id: task.payload for task in tasks})
                    oracle.complete([task.id for task in tasks])
        except (StorageError, LeaseLost, TaskNotFound):
            continue  # the gateway was killed; what it had leased for this worker comes back


def killed(group: Group, home: Path, tasks: int, at_once: int, kills: int, commits: int) -> None:
    """Have tasks inserted and worked off by two gateways that are killed in turn; judge what came of it."""
    queue, oracle, is_over = group["q"], Oracle(), threading.Event()
    gateways = [RealGateway(group, home / f"{n}.sock") for n in range(2)]
    each = tasks // commits

    def insert() -> None:
        for number in range(commits):
            inserted(gateways, f"part-{number}", range(number * each, (number + 1) * each))

    threads = [threading.Thread(target=insert)]
    threads += [threading.Thread(target=work, args=(gateways, n, at_once, oracle, is_over)) for n in range(4)]
    for thread in threads:
        thread.start()
    try:
        for number in range(kills):
            for _ in range(tasks // (kills * 2)):
                oracle.leased.acquire()  # tasks are under way
            gateways[number % 2].kill()
            gateways[number % 2].start()
        threads[0].join()
        until(queue.is_drained, "all tasks to be completed", 600)
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
        for gateway in gateways:
            gateway.kill()
    assert oracle.wrong == []
    assert queue.status() == fsqueue.Status(completed=tasks)
    results = list(queue.results())
    assert sorted(result.payload for result in results) == list(range(tasks))
    assert all(result.result == result.payload for result in results)
    assert oracle.completed <= {result.id for result in results}
    queue.gc()  # a batch may be left whose last task was completed just before a gateway was killed
    assert list(queue.fsck()) == []


def test_two_gateways_are_killed_with_tasks_under_way_and_each_task_counts_once(group: Group, tmp_path: Path) -> None:
    killed(group, tmp_path, tasks=40, at_once=2, kills=2, commits=2)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_loops_and_a_worker_go_on_over_restarts_of_their_gateway(
    group: Group, tmp_path: Path, how: signal.Signals
) -> None:
    count, queue, gateway = 200, group["q"], RealGateway(group, tmp_path / "g.sock")
    done: list[int] = []
    errors: list[BaseException] = []
    begun = threading.Semaphore(0)

    def work() -> None:
        try:
            for task in fsqueue.connect(f"{gateway.url}/q", patience_s=60).poll(lease_s=LEASE_S):  # type: ignore[union-attr]
                with task:
                    begun.release()
                    done.append(task.payload)
        except BaseException as error:
            errors.append(error)

    queue.insert_many(range(count))
    group["other"].insert_many(range(150))
    address = f"{gateway.url}/other"
    command = [sys.executable, "-m", "fsqueue_cli", "run", address, "--lease", str(LEASE_S), "--", "true"]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3):
            for _ in range(count // 6):
                begun.acquire()  # tasks are under way
            gateway.kill(how)
            gateway.start()
    finally:
        for thread in threads:
            thread.join()
        assert worker.stderr is not None
        said = worker.stderr.read()
        code = worker.wait()
        gateway.kill()
    assert errors == []
    assert queue.status() == fsqueue.Status(completed=count)
    assert set(done) == set(range(count))
    assert (code, group["other"].status()) == (0, fsqueue.Status(completed=150)), said


@pytest.mark.thorough
def test_each_of_very_many_tasks_counts_once_while_two_gateways_are_killed_time_and_again(
    tmp_path: Path,
) -> None:
    group = Group.create(tmp_path / "many", shards=8)
    killed(group, tmp_path, tasks=100_000, at_once=50, kills=20, commits=10)
