"""Gateways are killed with tasks under way, and started again: each task counts once."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from urllib.parse import quote

import pytest

import fsqueue
from fsqueue import Group, LeaseLost, RemoteQueue, StorageError, TaskNotFound
from tests.waiting import until

pytestmark = [pytest.mark.once, pytest.mark.slow]

TASKS = 40
LEASE_S = 3.0
"""Leases of tasks whose answer was lost run out after this."""


class RealGateway:
    """A process that serves a group on a Unix socket."""

    def __init__(self, group: Group, at: Path) -> None:
        self._command = [sys.executable, "-m", "fsqueue_cli", "serve", str(group.path), "--listen", f"unix:{at}"]
        self.url = f"http+unix://{quote(str(at), safe='')}/q"
        self.start()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
        assert self._process.stdout is not None
        assert "fsqueue serves" in self._process.stdout.readline()

    def kill(self) -> None:
        """Kill it, as a power cut of its host would."""
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()


def test_two_gateways_are_killed_with_tasks_under_way_and_each_task_counts_once(group: Group, tmp_path: Path) -> None:
    queue = group["q"]
    queue.insert_many(range(TASKS), batch_tasks=8)
    gateways = [RealGateway(group, tmp_path / f"{n}.sock") for n in range(2)]
    is_over = threading.Event()
    holding = threading.Semaphore(0)

    def work(number: int) -> None:
        turn = number
        while not is_over.is_set():
            turn += 1
            try:
                remote = fsqueue.connect(gateways[turn % 2].url, patience_s=0)
                assert isinstance(remote, RemoteQueue)
                while not is_over.is_set():
                    for task in remote.lease(2, lease_s=LEASE_S, wait_s=1):
                        holding.release()
                        remote.complete([task], {task.id: task.payload})
            except (StorageError, LeaseLost, TaskNotFound):
                continue  # the gateway was killed; what it had leased for this worker comes back

    workers = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for worker in workers:
        worker.start()
    try:
        for number in range(2):
            for _ in range(TASKS // 5):
                holding.acquire()  # tasks are under way
            gateways[number % 2].kill()
            gateways[number % 2].start()
        until(queue.is_drained, "all tasks to be completed")
    finally:
        is_over.set()
        for worker in workers:
            worker.join()
        for gateway in gateways:
            gateway.kill()
    assert queue.status() == fsqueue.Status(completed=TASKS)
    assert sorted(result.payload for result in queue.results()) == list(range(TASKS))
    assert all(result.result == result.payload for result in queue.results())
    assert list(queue.fsck()) == []
