"""How many movement logs a process keeps open, and what its user sees when descriptors run out."""

from __future__ import annotations

import errno
import gc
import json
import math
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, LeasedTask, Queue, StorageError
from fsqueue.filesystem import idle_files
from fsqueue.storage import open_logs
from fsqueue.storage.open_logs import OPEN_LOGS_MAX, OPEN_LOGS_MIN, SHARE, OpenLogs
from fsqueue.weak_table import WeakTable

QueueFactory = Callable[..., Queue]

pytestmark = pytest.mark.once

LIMIT = 400
"""A soft limit of open files at which a queue's share is less than what it may have open at most."""


def limited(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """Let open logs believe that this process may have so many descriptors. None is closed because it was not used."""
    monkeypatch.setattr(open_logs, "UNUSED_S", math.inf)
    monkeypatch.setattr(open_logs.resource, "getrlimit", lambda which: (limit, limit))


class OfOneTest(WeakTable[OpenLogs, None]):
    """Logs of queues below one directory. A thread of an earlier test may open a queue of its own meanwhile."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory

    def living(self) -> list[OpenLogs]:
        return [logs for logs in super().living() if Path(logs._names._path).is_relative_to(self.directory)]


@pytest.fixture(autouse=True)
def no_queues_of_earlier_tests(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(open_logs, "_everywhere", OfOneTest(tmp_path))


def test_a_queue_of_an_earlier_test_does_not_count(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    limited(monkeypatch, 80)
    earlier = Queue.create(tmp_path_factory.mktemp("earlier") / "q", batch_tasks_max=1, durability="none")
    earlier.insert_many(range(7), batch_tasks=1)
    leased = earlier.lease(7)
    queue = many(queue_factory, "q", 30)
    queue.lease(30)
    assert (len(leased), opened(earlier, queue)) == (7, [7, 20])


def many(queue_factory: QueueFactory, name: str, batches: int) -> Queue:
    """Make a queue with so many batches of one task."""
    queue = queue_factory(name, batch_tasks_max=1, durability="none", shards=1)
    queue.insert_many(range(batches), batch_tasks=1)
    return queue


def descriptors_in(queue: Queue) -> int:
    """Return how many files of a queue are open in this process. Threads of earlier tests may open others."""
    targets = []
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # closed meanwhile
            targets.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum(target.startswith(f"{queue.path}/") for target in targets)


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
    gc.collect()  # the queues of other tests in this process had a share each
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
    before = descriptors_in(queue)
    VERBS[verb](queue, task)
    if verb != "complete":
        task.complete()
    status = queue.status()
    assert status.completed == 1
    assert status.completed + status.remaining == (3 if "insert" in verb else 2)
    assert descriptors_in(queue) <= before + 5


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


# -- what gives way to them ----------------------------------------------------------------------------------------

FULL = """
import json, os, resource, sys
soft, hard = map(int, sys.argv[1:3])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
import fsqueue
first, *others = [fsqueue.Queue(path) for path in sys.argv[3:]]
held = first.lease(10)
[spare] = others[0].lease(1)
taken = []
try:
    while True:
        taken.append(os.open("/dev/null", os.O_RDONLY))
except OSError:
    pass
"""
"""A program with logs open, and no descriptor left."""

GOES_ON = f"""{FULL}
open_before = len([*first.store.logs])
for queue in others:
    queue.insert_many(["more"])
    queue.insert("and more")
others[0].complete(others[0].lease(3, strict=True))
left = len([*first.store.logs])
for task in held:
    task.renew()
    task.complete()
spare.complete()
states = [first.status(), *(other.status() for other in others)]
print(json.dumps([len(held), open_before, left, [(one.waiting, one.leased, one.completed) for one in states]]))
"""
GIVES_UP = f"""{FULL}
resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
for act in (lambda: others[0].insert("more"), others[0].lease, others[0].status, spare.complete):
    try:
        act()
    except fsqueue.StorageError as error:
        print(json.dumps(str(error)))
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
for fd in taken:
    os.close(fd)
spare.complete()
first.complete(held)
"""


def program(text: str, soft: int, hard: int, queues: list[Queue]) -> list[Any]:
    """Return what a program prints whose limits of open files are `soft` and `hard`."""
    words = [str(soft), str(hard), *(str(queue.path) for queue in queues)]
    done = subprocess.run([sys.executable, "-c", text, *words], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("limit", [64, 256])
def test_logs_that_no_thread_uses_give_way_to_what_must_be_opened(queue_factory: QueueFactory, limit: int) -> None:
    """Tasks whose logs were closed are renewed and completed all the same."""
    queues = [many(queue_factory, f"q{number}", 12) for number in range(3)]
    [[held, before, left, states]] = program(GOES_ON, limit, limit, queues)
    assert (held, before, left) == (10, 10, 0)
    assert states == [[2, 0, 10], [10, 0, 4], [14, 0, 0]]


@pytest.mark.parametrize(
    ("soft", "hard", "told"),
    [
        (64, 64, "This process may have 3 open: raise that limit ('ulimit -n'), to 64 at most, or close queues"),
        (64, 256, "This process may have 3 open: raise that limit ('ulimit -n'), to 256 at most, or close queues"),
    ],
)
def test_if_that_does_not_suffice_the_error_names_the_limit(
    queue_factory: QueueFactory, soft: int, hard: int, told: str
) -> None:
    queues = [many(queue_factory, f"q{number}", 12) for number in range(2)]
    errors = program(GIVES_UP, soft, hard, queues)
    assert len(errors) >= 3
    assert all(told in error and error.startswith("Too many files are open while ") for error in errors)
    assert [queue.status().completed for queue in queues] == [10, 1]


def test_a_log_that_a_thread_uses_stays_open(queue_factory: QueueFactory) -> None:
    """One with records of an update that is not decided stays, too: it knows since when this process waits."""
    queue = many(queue_factory, "q", 4)
    tasks = queue.lease(4)
    in_use, undecided, *others = [log for task in tasks if (log := queue.store.logs.get(task.batch)) is not None]
    undecided.replay_state.prepared["an update"] = object()  # type: ignore[index,assignment]
    entered, leave = threading.Event(), threading.Event()

    def use() -> None:
        assert in_use.enter()
        entered.set()
        leave.wait()
        in_use.leave()

    thread = threading.Thread(target=use)
    thread.start()
    entered.wait()
    try:
        for code in (errno.EIO, errno.ENOSPC):
            assert not idle_files.make_room(OSError(code, "no"))
        assert opened(queue) == [4]
        for code in (errno.EMFILE, errno.ENFILE):
            assert idle_files.make_room(OSError(code, "no"))
            assert [log.closed for log in (in_use, undecided, *others)] == [False, False, True, True]
    finally:
        leave.set()
        thread.join()
        undecided.replay_state.prepared.clear()
    queue.complete(tasks)
    assert queue.status().completed == 4


def test_a_queues_own_file_is_closed_if_it_has_no_log_open(queue_factory: QueueFactory) -> None:
    queue = queue_factory("q", shards=1)
    queue.insert(1)
    queue.status()
    queue.store.logs.close()
    assert queue.store.queue_file.is_unchanged()
    before = descriptors_in(queue)
    assert idle_files.make_room(OSError(errno.EMFILE, "no"))
    assert descriptors_in(queue) == before - (not queue.store.fs.shared)
    assert not queue.store.queue_file.is_unchanged(), "it is read anew"
    assert queue.status().waiting == 1


def test_a_worker_of_a_group_with_many_queues_does_all_with_256_descriptors(tmp_path: Path) -> None:
    """A task may have to wait until others are told: then the worker says so, and tries again."""
    group = Group.create(tmp_path / "group", shards=1, durability="none")
    for number in range(100):
        group[f"q{number}"].insert_many(range(3), batch_tasks=1)
    done = subprocess.run(
        [sys.executable, "-m", "fsqueue_cli", "run", str(group.path), "-j", "2", "--patience", "5", "--json", "--",
         "true"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256)),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["completed"] == 300
