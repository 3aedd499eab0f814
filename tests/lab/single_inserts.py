"""Single inserts on NFS: what runs in the guest of scripts/lab/nfs. Queues there have a format with open batches."""

from __future__ import annotations

import ctypes
import os
import random
import signal
import socket
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

from fsqueue import LeaseLost, LockTimeout, Queue
from fsqueue.format import names
from fsqueue.protocol import finishing
from tests.concurrency.books import check_sound
from tests.concurrency.processes import PATIENCE_S, Child, Count, at_a_random_moment
from tests.lab.nfs import SERVER, at, calls_of, explained, restart_server
from tests.support import leftovers
from tests.waiting import until

TASKS = 150
"""An inserter inserts so many tasks, unless it is killed."""
KILLS = 16
PURGES = 3
NEW_HOST_NAME = 0x04000000
"""CLONE_NEWUTS: a process that unshares this has a host name of its own."""
LEASE_S = 2.0


def fill(path: Path, notes: Path, number: int, tasks: int = TASKS) -> int:
    """Insert tasks one at a time, and note each that was reported: its payload and its id."""
    fd = os.open(notes / f"inserted-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Queue(path) as queue:
        for task in range(tasks):
            payload = f"{number}-{task}"
            os.write(fd, f"{payload} {queue.insert(payload).id}\n".encode())
    return tasks


def fill_as_another_host(path: Path, notes: Path, number: int, tasks: int = TASKS) -> int:
    """Do as `fill`, on a host with a name of its own."""
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.unshare(NEW_HOST_NAME) == 0, os.strerror(ctypes.get_errno())
    socket.sethostname(f"host-{number}")
    return fill(path, notes, number, tasks)


purges = Count()
"""All processes of this guest share it."""


def fill_until_over(path: Path, notes: Path, number: int) -> int:
    """Insert tasks one at a time until the file `over` is there.

    Note each that was reported, and after how many purges it was begun.
    """
    fd = os.open(notes / f"begun-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    task = 0
    with Queue(path) as queue:
        while not (notes / "over").exists():
            payload, begun = f"{number}-{task}", int(purges)
            queue.insert(payload)
            os.write(fd, f"{payload} {begun}\n".encode())
            task += 1
    return task


def drain(path: Path, notes: Path, number: int) -> None:
    """Lease and complete until the file `over` is there and nothing is left; note each execution."""
    fd = os.open(notes / f"executed-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    with Queue(path) as queue:
        while True:
            is_over = (notes / "over").exists()
            tasks = queue.lease(3, lease_s=LEASE_S, wait_s=0.5)
            for task in tasks:
                os.write(fd, f"{task.payload} {task.id}\n".encode())
                try:
                    task.complete()
                except (LeaseLost, LockTimeout):
                    pass
            if is_over and not tasks:
                return


def noted(notes: Path, kind: str) -> list[tuple[str, str]]:
    """Payload and id of all that was noted; a torn last line is none."""
    lines = [line for file in notes.glob(f"{kind}-*") for line in file.read_text().split("\n")[:-1]]
    return [(payload, task_id) for payload, task_id in map(str.split, lines)]


def play(seed: int, restart: bool = False) -> dict[str, int]:
    """Two clients insert singly and work at once; processes are killed; with `restart`, the server is, too, once."""
    name, dice = f"singly-{seed}-{restart}", random.Random(seed)
    notes = Path("/tmp") / name
    notes.mkdir()
    Queue.create(at(1, name), shards=8, batch_tasks_max=64, lease_s=LEASE_S, max_attempts=None, backoff_s=(0, 0))
    number = killed = 0

    def hire(action: Callable[[Path, Path, int], object], client: int) -> tuple[Callable[..., object], int, Child]:
        nonlocal number
        number += 1
        return action, client, Child(action, at(client, name), notes, number)

    with ExitStack() as hired, explained(name, notes):
        crew = [hire(action, client) for action in (fill, drain) for client in (1, 2, 1, 2)]
        hired.callback(lambda: [child.close() for _, _, child in crew])
        for fault in range(KILLS):
            at_a_random_moment(dice, 0.2)
            if restart and fault == KILLS // 2:
                restart_server(name)
            action, client, victim = dice.choice(crew)
            if victim.running:
                victim.kill()
                killed += 1
            else:
                victim.result()
            victim.close()
            crew.remove((action, client, victim))
            crew.append(hire(action, client))
        for action, _, child in crew:
            if action is fill:
                child.result()
        (notes / "over").touch()
        for action, _, child in crew:
            if action is drain:
                child.result()
        return settle(name, notes) | {"killed": killed}


def adopt() -> dict[str, int]:
    """One inserter after the other goes on with the batch of the first, each at another client and host than the last.

    The first one is killed in the middle of its inserts.
    """
    name = "adopted"
    notes = Path("/tmp") / name
    notes.mkdir()
    Queue.create(at(1, name), shards=1, lease_s=LEASE_S, max_attempts=None, backoff_s=(0, 0))
    with explained(name, notes):
        for number, client in enumerate((1, 2, 1)):
            tasks = TASKS if number else sys.maxsize  # the first one has not ended when it is killed
            child = Child(fill_as_another_host, at(client, name), notes, number, tasks)
            try:
                if number == 0:
                    wait_for_notes(notes, "inserted", TASKS // 3)
                    assert child.kill() == -signal.SIGKILL, child.report()
                else:
                    child.result()
            finally:
                child.close()
        batches = {names.parse_task_id(task_id)[0] for _, task_id in noted(notes, "inserted")}
        return settle(name, notes) | {"batches": len(batches)}


def purge(seed: int) -> dict[str, int]:
    """Two clients insert singly and work at once, and the queue is purged at either, some times.

    What was inserted after the last purge is there, once.
    """
    name, dice = f"purged-singly-{seed}", random.Random(seed)
    notes = Path("/tmp") / name
    notes.mkdir()
    Queue.create(at(1, name), shards=4, batch_tasks_max=64, lease_s=LEASE_S, max_attempts=None, backoff_s=(0, 0))
    with ExitStack() as hired, explained(name, notes):
        before = int(purges)
        actions = [(action, client) for action in (fill_until_over, drain) for client in (1, 2)]
        crew = [Child(action, at(client, name), notes, number) for number, (action, client) in enumerate(actions)]
        hired.callback(lambda: [child.close() for child in crew])
        wait_for_notes(notes, "begun", 40)
        for turn in range(PURGES):
            at_a_random_moment(dice, 0.5)
            Queue(at(1 + turn % 2, name)).purge()
            purges.add()
        since = len(noted(notes, "begun"))
        wait_for_notes(notes, "begun", since + 80)
        (notes / "over").touch()
        inserted = sum(child.result() or 0 for child in crew)
        finish(name, notes)
        after = {payload for payload, begun in noted(notes, "begun") if int(begun) == before + PURGES}
        executed = set(noted(notes, "executed"))
        ids = Counter(payload for payload, _ in executed)
        assert after <= set(ids), f"inserted after the purge, and never executed: {sorted(after - set(ids))[:9]}"
        twice = [payload for payload in after if ids[payload] > 1]
        assert not twice, f"inserted once, and there twice: {twice[:9]}"
        status = Queue(SERVER / name).status()
        assert len(after) <= status.inserted == status.completed, (status, len(after))
    return {"inserted": inserted, "after": len(after)}


def wait_for_notes(notes: Path, kind: str, least: int) -> None:
    """Return when there are so many notes of a kind."""
    until(lambda: len(noted(notes, kind)) >= least, f"{least} notes of what was {kind}", PATIENCE_S)


def settle(name: str, notes: Path) -> dict[str, int]:
    """Drain what is left, and compare: what was reported ran, each task under one id, and nothing is left on disk."""
    finish(name, notes)
    inserted, executed = noted(notes, "inserted"), noted(notes, "executed")
    lost = set(inserted) - set(executed)
    assert not lost, f"reported, and never executed: {sorted(lost)[:9]}"
    ids = Counter(payload for payload, _ in set(executed))
    twice = [payload for payload, count in ids.items() if count > 1]
    assert not twice, f"inserted once, and there twice: {twice[:9]}"
    status = Queue(SERVER / name).status()
    assert status.inserted == status.completed == len(ids), (status, len(ids))
    return {"inserted": len(inserted), "executed": len(executed), "tasks": len(ids)}


def finish(name: str, notes: Path) -> None:
    """Drain what is left. Nothing of it stays on disk, and fsck finds nothing but what a kill may leave."""
    queue = Queue(at(2, name))
    fd = os.open(notes / "executed-last", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def is_drained() -> bool:
        for task in queue.lease(9, lease_s=60, wait_s=LEASE_S):
            os.write(fd, f"{task.payload} {task.id}\n".encode())
            task.complete()
        return queue.status().drained

    until(is_drained, f"{name} to be drained", PATIENCE_S)
    with mock.patch.object(finishing, "LINGER_MS", 0):  # else open batches end some seconds after the last insert
        assert queue.lease(1) == []
        queue.gc()
    truth = Queue(SERVER / name)
    check_sound(truth)  # a kill may tear a line of the history, or repeat one
    left = [path for path in leftovers(truth) if not path.startswith("staging/")]
    assert left == [], left


def calls_per_task() -> dict[str, dict[str, float]]:
    """Count the calls to the server of a single insert, and of the lease and completion of such a task; by kind."""
    queue = Queue.create(at(1, "calls-singly"))
    queue.insert("first")  # what it takes to make the batch does not count

    def work() -> None:
        for _ in range(1000):
            [task] = queue.lease()
            task.complete()

    def both() -> None:
        for number in range(500):
            queue.insert({"n": number})
            [task] = queue.lease()
            task.complete()

    return {
        "insert one": calls_of(1000, lambda: [queue.insert({"n": number}) for number in range(1000)]),
        "lease 1 + complete": calls_of(1000, work),
        "insert one, lease 1 + complete": calls_of(500, both),
    }
