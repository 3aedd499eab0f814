"""How many movement logs a process keeps open, and what its user sees when descriptors run out."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fsqueue import LeasedTask, Queue, StorageError
from fsqueue.storage import open_logs
from fsqueue.storage.open_logs import OPEN_LOGS_MAX, OPEN_LOGS_MIN, SHARE

QueueFactory = Callable[..., Queue]

pytestmark = pytest.mark.once

LIMIT = 400
"""A soft limit of open files at which a queue's share is less than what it may have open at most."""


def limited(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Let open logs believe that this process may have so many descriptors."""
    monkeypatch.setattr(open_logs.resource, "getrlimit", lambda which: (limit, limit))


@pytest.fixture(autouse=True)
def no_queues_of_earlier_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_logs, "_everywhere", type(open_logs._everywhere)())


def many(queue_factory: QueueFactory, name: str, batches: int) -> Queue:
    """Make a queue with so many batches of one task."""
    queue = queue_factory(name, batch_tasks_max=1, durability="none", shards=1)
    queue.insert_many(range(batches), batch_tasks=1)
    return queue


def opened(*queues: Queue) -> list[int]:
    return [len(list(queue.store.logs)) for queue in queues]


@pytest.mark.parametrize(
    ("limit", "most"),
    [
        (80, 80 // SHARE),
        (4, OPEN_LOGS_MIN),
        (1 << 20, OPEN_LOGS_MAX),
        (resource.RLIM_INFINITY, OPEN_LOGS_MAX),
    ],
)
def test_a_queue_keeps_a_quarter_of_the_descriptors_for_open_logs(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, limit: int, most: int
) -> None:
    limited(monkeypatch, limit)
    queue = many(queue_factory, "q", OPEN_LOGS_MAX + 5)
    held = queue.lease(OPEN_LOGS_MAX + 5)
    assert opened(queue) == [most]
    queue.complete(held)  # those whose logs were closed, too
    assert (queue.status().completed, opened(queue)) == (OPEN_LOGS_MAX + 5, [0])


def test_the_limit_that_is_in_force_counts_and_not_that_of_when_the_queue_was_opened(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue = many(queue_factory, "q", 50)
    limited(monkeypatch, 400)
    queue.lease(40)
    assert opened(queue) == [40]
    limited(monkeypatch, 80)
    queue.lease(1)
    assert opened(queue) == [20]


def test_several_queues_share_what_a_process_may_have(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    limited(monkeypatch, 80)
    queues = [many(queue_factory, f"q{number}", 70) for number in range(12)]
    queues[0].lease(30)
    assert opened(*queues[:2]) == [20, 0], "the first one has it all"
    for queue in queues[1:]:
        queue.lease(30)
    first, second, *others = opened(*queues)
    assert (first, second) == (20, 10), "a queue that opens no log leaves the next one its part"
    assert all(OPEN_LOGS_MIN <= number <= 10 for number in others)
    assert first + second + sum(others) <= 2 * 20 + OPEN_LOGS_MIN * len(queues)
    queues[0].lease(1)
    assert opened(queues[0]) == [OPEN_LOGS_MIN], "it gives way when it opens one"
    for queue in queues[1:]:
        queue.close()
    queues[0].lease(30)
    assert opened(queues[0]) == [20], "and has it all again once the others are closed"


PROGRAM = f"""
import json, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({LIMIT}, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
import fsqueue
queues = [fsqueue.Queue(path) for path in sys.argv[1:]]
held = [queue.lease({LIMIT}) for queue in queues]
for queue, tasks in zip(queues, held):
    queue.complete(tasks)
print(json.dumps([len(tasks) for tasks in held]))
"""


def test_a_process_with_a_low_limit_leases_from_many_queues(queue_factory: QueueFactory) -> None:
    """Each of them alone would fill a quarter of the limit: six would leave the process no descriptor."""
    queues = [many(queue_factory, f"q{number}", LIMIT // SHARE + 5) for number in range(6)]
    paths = [str(queue.path) for queue in queues]
    done = subprocess.run([sys.executable, "-c", PROGRAM, *paths], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == [LIMIT // SHARE + 5] * 6
    assert [queue.status().completed for queue in queues] == [LIMIT // SHARE + 5] * 6


# -- when descriptors run out all the same ------------------------------------------------------------------------


class NoDescriptors:
    """While this lasts, this process can open no file: its soft limit is what it has open."""

    def __enter__(self) -> None:
        self._limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, self._limits[1]))

    def __exit__(self, *error: object) -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, self._limits)


VERBS: dict[str, Callable[[Queue, LeasedTask], Any]] = {
    "insert": lambda queue, held: queue.insert("another"),
    "insert_many": lambda queue, held: queue.insert_many(["another"]),
    "lease": lambda queue, held: queue.lease(),
    "complete": lambda queue, held: queue.complete([held]),
    "renew": lambda queue, held: held.renew(),
    "status": lambda queue, held: queue.status(),
}


@pytest.fixture
def held(queue_factory: QueueFactory, tmp_path: Path) -> Iterator[tuple[Queue, LeasedTask]]:
    """A leased task whose log is not open any more, and one that waits."""
    queue = many(queue_factory, "q", 2)
    tasks = queue.lease(1)
    queue.store.logs.close()
    yield queue, tasks[0]
    queue.close()


@pytest.mark.parametrize("verb", VERBS)
def test_the_user_is_told_of_the_limit_and_may_repeat(held: tuple[Queue, LeasedTask], verb: str) -> None:
    queue, task = held
    with NoDescriptors(), pytest.raises(StorageError, match=r"Too many files are open.*'ulimit -n'"):
        VERBS[verb](queue, task)
    before = len(os.listdir("/proc/self/fd"))
    VERBS[verb](queue, task)
    if verb != "complete":
        task.complete()
    status = queue.status()
    assert status.completed == 1
    assert status.completed + status.remaining == (3 if "insert" in verb else 2)
    assert len(os.listdir("/proc/self/fd")) <= before + 5


@pytest.mark.batched
def test_what_is_open_goes_on_without_a_descriptor(queue_factory: QueueFactory) -> None:
    """A worker that holds the log of its task open completes it."""
    queue = queue_factory("q", shards=1, batch_tasks_max=8)
    queue.insert_many(range(4))
    first, *_ = queue.lease(2)
    with NoDescriptors():
        first.renew()
        first.complete()
    assert queue.status().completed == 1
