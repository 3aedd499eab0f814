"""What several test modules use: a crash at any step, a look at the tree, a drain."""

from __future__ import annotations

import errno
import itertools
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import orjson
import pytest

from fsqueue import LeasedTask, Queue, Task, TaskRef
from fsqueue.clock import Clock, ManualClock
from fsqueue.filesystem import Filesystem, beneath
from fsqueue.format import checkpoints, names
from fsqueue.format.layout import ordered_record
from fsqueue.format.priority import Priority, rank_of
from fsqueue.format.replay import ReplayState
from fsqueue.format.task_file import encode_open_batch, encode_task
from fsqueue.format.task_states import Lease
from fsqueue.protocol import insertion, transitions
from fsqueue.protocol.encoding import Encoded, available_from
from fsqueue.storage import listening, logs
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.upkeep import collect
from tests.waiting import PATIENCE_S, until

E = TypeVar("E", bound=BaseException)
QueueFactory = Callable[..., Queue]

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become several users, and give files away")


def open_below(place: Path) -> int:
    """Return how many descriptors of this process lead below a directory, with what was removed there.

    The others are no matter of a test: a thread of an earlier one may close its own meanwhile.
    """
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # of the listing itself
            found += os.readlink(f"/proc/self/fd/{fd}").startswith(f"{place}/")
    return found


def opened(path: Path) -> int:
    """Return how many descriptors of this process lead to a file. Others may be closed while they are looked at."""
    found = 0
    for fd in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            found += os.readlink(f"/proc/self/fd/{fd}") == str(path)
    return found


def inotify_instances() -> set[str]:
    """Return the descriptors of inotify that this process has open. Those of earlier tests may be closed meanwhile."""
    found = set()
    for fd in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that lists them
            if os.readlink(f"/proc/self/fd/{fd}") == "anon_inode:inotify":
                found.add(fd)
    return found


def open_to_all(directory: Path) -> None:
    """Let all users list and enter a directory and those above it, up to the root."""
    for each in (directory, *directory.parents[:-1]):
        if each.stat().st_mode & 0o005 != 0o005:
            each.chmod(each.stat().st_mode | 0o005)


class Crash(BaseException):
    """The process ends here."""


class CrashingFilesystem(Filesystem):
    """Dies at its `at`-th change of the disk, and does nothing any more from then on.

    With `torn`, the first half of what that change would have written still gets to the disk.
    Reading is no step of its own: to die before a look is to die after the last change.
    """

    def __init__(self, root: str, *, at: int, torn: bool = False, shared: bool = False) -> None:
        super().__init__(root, shared=shared)
        self.at, self.torn, self.step = at, torn, 0
        self.dead = False
        """Whether it died at its step, ..."""
        self.buried = False
        """... and whether its process is gone, dead or not."""
        self.log: list[str] = []
        self._descriptors: set[int] = set()
        self._watched: set[int] = set()
        write, pwrite, unlock = self.write, self.pwrite, self.unlock
        self._really_close = close = self.close

        def dying_write(fd: int, data: bytes) -> int:
            self.change("write", lambda: write(fd, data[: len(data) // 2]))
            return write(fd, data)

        def dying_pwrite(fd: int, data: bytes, offset: int) -> int:
            self.change("pwrite", lambda: pwrite(fd, data[: len(data) // 2], offset))
            return pwrite(fd, data, offset)

        def counted_close(fd: int) -> None:
            if fd in self._descriptors:
                self._descriptors.discard(fd)
                close(fd)

        self.write, self.pwrite, self.close = dying_write, dying_pwrite, counted_close
        self.drop = self._drop
        self.unlock = lambda fd: None if self.dead else unlock(fd)

    def change(self, what: str, half: Callable[[], object] | None = None) -> None:
        if self.dead or self.buried:
            raise Crash
        self.step += 1
        self.log.append(what)
        if self.step == self.at:
            if self.torn and half is not None:
                half()
            self.dead = True
            raise Crash

    def bury(self) -> None:
        """What the system does for a dead process: close its files, and so give its locks back."""
        self.buried = True
        for fd in list(self._descriptors):
            self.close(fd)

    def look(self, path: str, flags: int = os.O_RDONLY) -> int:
        if flags & os.O_CREAT and not os.path.exists(path):
            self.change(f"create {path}")
        fd = super().look(path, flags)
        self._descriptors.add(fd)
        return fd

    def watch(self, path: str, fd: int) -> Callable[[], int]:
        self._descriptors.discard(fd)  # what comes back closes it
        self._watched.add(fd)
        return super().watch(path, fd)

    def _drop(self, fd: int) -> None:
        if fd in self._watched:
            self._watched.discard(fd)
            self._really_close(fd)
        else:
            self.close(fd)

    def create(self, path: str, sync: bool = False) -> int:
        self.change(f"create {path}")
        fd = super().create(path, sync)
        self._descriptors.add(fd)
        return fd

    def make_directory(self, path: str, sync: bool = False) -> None:
        if not os.path.isdir(path):
            self.change(f"mkdir {path}")
        super().make_directory(path, sync)

    def make_root(self) -> None:
        if not os.path.isdir(self.root):
            self.change(f"mkdir {self.root}")
        super().make_root()

    def rename(self, source: str, target: str) -> bool:
        self.change(f"rename {source} {target}")
        return super().rename(source, target)

    def link(self, source: str, target: str) -> None:
        self.change(f"link {source} {target}")
        super().link(source, target)

    def unlink(self, path: str) -> bool:
        self.change(f"unlink {path}")
        return super().unlink(path)

    def touch(self, path: str) -> None:
        self.change(f"touch {path}")
        super().touch(path)


def crashes(
    build: Callable[[int], Queue], act: Callable[[Queue], object], clock: Clock, shared: bool = False, every: int = 1
) -> Iterator[tuple[str, Queue]]:
    """Do `act` on fresh queues of `build(number)`, dying at each of its steps: before it, and half-way in writes.

    `every`: number of steps from one death to the next; a process that tears a write dies at each write. Yields what
    died where, and the queue that `build` made, for a look at what is left. Once nothing dies.
    """
    number, writes = 0, list[int]()
    for torn in (False, True):
        steps: Iterable[int] = writes if torn else itertools.count(1, every)
        for at in steps:
            number += 1
            queue = build(number)
            fs = CrashingFilesystem(str(queue.path), at=at, torn=torn, shared=shared)
            try:
                act(Queue(queue.path, filesystem=fs, clock=clock))
            except Crash:
                assert fs.dead
            fs.bury()
            where = f"step {at} ({fs.log[-1] if fs.log else 'none'}), torn={torn}"
            yield where, queue
            if not fs.dead and not torn:
                writes = [step for step, done in enumerate(fs.log, start=1) if done in ("write", "pwrite")]
                break


CALLS = ("open", "close", "read", "pread", "write", "pwrite", "fstat", "stat", "lstat", "listdir", "scandir", "mkdir",
         "rename", "link", "unlink", "utime", "fsync", "statvfs", "access")  # fmt: skip
"""The system calls by which fsqueue asks a filesystem."""


@contextmanager
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Counts the calls to the filesystem while this lasts, by kind. Open the queue within: it binds some of them."""
    counted: Counter[str] = Counter()

    def counting(name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def count(*args: Any, **kwargs: Any) -> Any:
            counted[name] += 1
            return call(*args, **kwargs)

        return count

    with monkeypatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, counting(name, getattr(os, name)))
        patch.setattr(beneath, "openat2", counting("openat2", beneath.openat2))
        yield counted


def drain(
    queue: Queue, clock: ManualClock, complete: Callable[[LeasedTask], None] = LeasedTask.complete, rounds: int = 4
) -> Counter[str]:
    """Complete whatever can be had until no lease is left to run out; how often each task id was executed."""
    executed: Counter[str] = Counter()
    for _ in range(rounds):
        while tasks := queue.lease(3):
            for task in tasks:
                executed[task.id] += 1
                complete(task)
        if queue.status().drained:
            break
        clock.advance(10_000)
    return executed


def base_of(queue: Queue, generation: int | None = None) -> Path:
    """The directory of a generation of the queue, the current one by default."""
    return queue.path / names.generation(generation or queue.generation, queue.store.queue_state.id)


def generations_of(queue: Queue) -> list[Path]:
    """The directories of all generations that are in the queue's, or of queues that were there before."""
    return [path for path in queue.path.iterdir() if names.parse_generation(path.name) is not None]


def files_below(directory: Path | str) -> list[str]:
    """All files below a directory, relative to it. What a reaper removes meanwhile may be among them or not."""
    found = (os.path.join(place, name) for place, _, names in os.walk(directory) for name in names)
    return sorted(os.path.relpath(path, directory) for path in found)


def leftovers(queue: Queue) -> list[str]:
    """What a drained queue must not have any more: task files, logs, staged files, trash."""
    found = []
    for part in ("queue", "movements", "staging", "commits/pending"):
        found += [f"{part}/{name}" for name in files_below(base_of(queue) / part)]
    found += files_below(queue.path / ".trash")
    return found + [path.name for path in generations_of(queue) if path != base_of(queue)]


def age_staging(queue: Queue, seconds: float = collect.ATTEMPT_AGE_S + 86_400) -> None:
    """Make what is staged or proposed look old. By default `gc` may reap all of it, also a commit's attempt."""
    now = queue.store.clock.now_ms() / 1000
    base = base_of(queue)
    for path in (*(base / "staging").glob("*"), *(base / "commits" / "pending").glob("*")):
        os.utime(path, (now - seconds, now - seconds))


def counted(queue: Queue) -> int:
    """The bytes in the completion counters that are not NUL."""
    return sum(len(path.read_bytes().replace(b"\0", b"")) for path in (base_of(queue) / "completions").glob("*"))


def task_file_names(queue: Queue) -> list[names.TaskFileName]:
    """The names of the published task files, oldest batch first."""
    found = (names.parse_task_file(path.name) for path in (base_of(queue) / "queue").glob("*/*"))
    return sorted((name for name in found if name is not None), key=lambda name: name.batch)


def insert_in_file(queue: Queue, payload: Any, *, delay_s: float = 0, available_at: float | None = None) -> TaskRef:
    """Insert one task as a task file of its own, as `insert` does with one that is too long for an open batch."""
    item = payload if isinstance(payload, Task) else Task(payload, delay_s=delay_s, available_at=available_at)
    encoded = Encoded(available_from(item, None))
    encoded.take(encode_task(item.payload, queue.settings.task_bytes_max), 1)
    return TaskRef(names.task_id(insertion.publish(queue.store, [encoded])[0], 0))


def log_files(queue: Queue) -> list[Path]:
    """The movement logs."""
    return sorted((base_of(queue) / "movements").glob("*/*"))


def hand_on(queue: Queue, task: LeasedTask, worker: Any) -> None:
    """Append the records by which the only task of a queue is released, and leased by what calls itself `worker`."""
    queue.close()
    [log] = log_files(queue)
    at = queue.store.clock.now_ms()
    records = [
        {"op": "release", "at": at, "lease": task.lease, "tasks": [[0, 1]], "available_at": 0},
        {"op": "lease", "at": at, "lease": "0" * 16, "tasks": [[0, 1]], "until": at + 1000, "worker": worker},
    ]
    with log.open("ab") as file:
        file.writelines(orjson.dumps(record) + b"\n" for record in records)


@contextmanager
def failing(fs: Filesystem, step: str, code: int = errno.ENOSPC, after: int = 0) -> Iterator[None]:
    """Let a step of a filesystem fail while this lasts, after `after` successes. By default there is no room left."""
    real, left = getattr(fs, step), after

    def fail(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        if not left:
            raise OSError(code, os.strerror(code))
        done = real(*args, **kwargs)
        left -= 1
        return done

    with mock.patch.object(fs, step, fail):
        yield


class Sleeps:
    """What idle workers of this process have slept: see `watched_sleeps`."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        """The thread that began each sleep, in their order; it is set before the thread stands still."""
        self.ended: list[bool] = []
        """Of each sleep that has ended, whether something else than the time ended it."""


@contextmanager
def watched_sleeps() -> Iterator[Sleeps]:
    """Take note of each sleep of an idle worker in this process, with or without inotify, while this lasts."""
    sleeps, make, sleep = Sleeps(), listening.select.poll, Clock.sleep

    class Poller:
        def __init__(self) -> None:
            self._real = make()
            self.register = self._real.register

        def poll(self, timeout_ms: float) -> list[tuple[int, int]]:
            sleeps.begun.append(threading.get_ident())
            found = self._real.poll(timeout_ms)
            sleeps.ended.append(bool(found))
            return found

    def slept(clock: Clock, seconds: float) -> None:
        sleeps.begun.append(threading.get_ident())
        sleep(clock, seconds)
        sleeps.ended.append(False)

    select = SimpleNamespace(poll=Poller, POLLIN=listening.select.POLLIN)
    with mock.patch.object(listening, "select", select), mock.patch.object(Clock, "sleep", slept):
        yield sleeps


@contextmanager
def leasing(lease: Callable[[], list[LeasedTask]]) -> Iterator[list[Any]]:
    """Wait for a lease in another thread while this lasts. Yield a list that gets the payloads of the tasks.

    `lease` is called in that thread. What happens within finds it asleep. It is an error if nothing wakes it.
    """
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.extend(task.payload for task in lease()), daemon=True)
    with watched_sleeps() as sleeps:
        thread.start()
        until(lambda: thread.ident in sleeps.begun, "a worker that sleeps")
        yield found
        thread.join(PATIENCE_S)
    assert not thread.is_alive(), "nothing has woken it"


def in_time(act: Callable[[], object]) -> None:
    """Do something in another thread. AssertionError if that hangs; what it raises, otherwise."""
    failed: list[BaseException] = []

    def run() -> None:
        try:
            act()
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(PATIENCE_S)
    assert not thread.is_alive(), "it hangs"
    if failed:
        raise failed[0]


def raised(kind: type[E], action: Callable[[], object]) -> E | None:
    """The error of this kind that an action raises, if it does."""
    try:
        action()
    except kind as error:
        return error
    return None


def full_state(replay_state: ReplayState) -> dict[str, Any]:
    """All that two readers of one log must agree on: everything but the indexes that `choose` works with."""
    return {
        "at": replay_state.at,
        "gone": replay_state.gone,
        "damaged": replay_state.damaged,
        "count": replay_state.count,
        "left": replay_state.remaining,
        "available_at": replay_state.available_at,
        "finished": replay_state.finished,
        "state": list(replay_state.state),
        "since": list(replay_state.since),
        "holder": [None if holder is None else lease_state(holder) for holder in replay_state.holder],
        "attempts": list(replay_state.attempts),
        "version": list(replay_state.version),
        "solo": set(replay_state.solo),
        "payloads": dict(replay_state.payloads),
        "errors": dict(replay_state.errors),
        "results": dict(replay_state.results),
        "leases": {name: lease_state(lease) for name, lease in replay_state.leases.items()},
        "names": list(replay_state.names),
        "counts": list(replay_state.counts),
        "done": list(replay_state.done),
    }


def lease_state(lease: Lease) -> tuple[object, ...]:
    return lease.id, lease.at, lease.span, lease.worker, lease.is_alone, sorted(lease.tasks)


@contextmanager
def checkpoints_everywhere() -> Iterator[None]:
    """While this lasts, a checkpoint stands behind each movement, and logs are read from there."""
    with (
        mock.patch.object(checkpoints, "LEAST_BYTES", 1),
        mock.patch.object(checkpoints, "SHARE", 0),
        mock.patch.object(logs, "TAIL_BYTES", 128),
        mock.patch.object(logs, "FAR_BYTES", 64),
    ):
        yield


def make_ordered(queue: Queue) -> None:
    """Say in `queue.jsonl` that tasks have priorities."""
    with open(f"{queue.path}/queue.jsonl", "ab") as file:
        file.write(ordered_record(1))
    queue.store.refresh(now=True)


def put_ranked(queue: Queue, tasks: list[tuple[Any, Priority | None]], *, available_at: int = 0) -> names.Batch:
    """Publish a batch with priorities as the public format has it; the queue is ordered then."""
    make_ordered(queue)
    lines = [{"payload": payload} | ({} if given is None else {"priority": given}) for payload, given in tasks]
    batch = names.new_batch(queue.store.entropy, queue.store.clock.now_ms())
    rank = min(map(rank_of, (given for _, given in tasks)))
    name = names.TaskFileName(available_at, batch, len(tasks)).ranked(rank)
    path = Path(queue.store.layout.task_file(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    return batch


def put_open(queue: Queue, tasks: list[tuple[Any, Priority | None]]) -> names.Batch:
    """Make an open batch with these tasks in its log, as the public format has it; the queue is ordered then."""
    make_ordered(queue)
    store = queue.store
    batch = names.new_batch(store.entropy, store.clock.now_ms())
    name = names.open_batch_file(batch, min(map(rank_of, (given for _, given in tasks))))
    path = Path(store.layout.task_file(name))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encode_open_batch(store.domain))
    with LockedBatch(store, batch, create=True) as locked:
        locked.log.name = name
        assert locked.read_lines() is not None
        locked.log.write(transitions.opening(locked, name))
        for index, (payload, given) in enumerate(tasks):
            insert_into(locked, index, payload, given)
    return batch


def insert_into(locked: LockedBatch, index: int, payload: Any, given: Priority | None) -> None:
    """Append an `insert` record."""
    at = locked.store.clock.now_ms()
    identity = locked.store.entropy.hex16()
    locked.append_record("insert", at, id=identity, first=index, payload=payload, priority=given)
