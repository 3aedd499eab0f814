"""The protocol on pyfakefs, step by step: what lies on the disk after each step of one process.

pyfakefs has no `pread` and no locks: here they are made of what it has. One process, one thread.
"""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

from fsqueue import Queue, administration
from fsqueue.clock import ManualClock
from fsqueue.filesystem import Filesystem, beneath, locks, resources
from fsqueue.filesystem.beneath import DIRECTORY_FLAGS, walk
from fsqueue.filesystem.rooted import _Root
from fsqueue.format import layout, movements
from fsqueue.format.layout import Settings
from fsqueue.storage import open_logs
from fsqueue.weak_table import WeakTable

if TYPE_CHECKING:
    from pyfakefs.fake_filesystem import FakeFilesystem

ROOT = "/project/tiles"
locks.require()  # asks the kernel, once: before the fake, which it knows nothing of


class FakeFilesystemLayer(Filesystem):
    """The filesystem layer over a fake filesystem."""

    def __init__(self, root: str) -> None:
        super().__init__(root, shared=False)
        self.try_lock = lambda fd: True
        self.unlock = lambda fd: None
        self.close = self.drop = self._close
        self.pread = self._pread
        self.pwrite = self._pwrite
        self.write = os.write
        self.fsync = os.fsync
        self.fstat = os.fstat
        self._open_beneath = walk

    def _root(self) -> _Root:
        """Without what closes it in the end, when the fake may be gone."""
        if self._root_fd < 0:
            root = _Root(os.open(self.root, DIRECTORY_FLAGS))
            found = os.fstat(root)
            root.number = found.st_dev, found.st_ino
            self._root_fd = root
        return self._root_fd

    def watch(self, path: str, fd: int) -> Callable[[], int]:
        """By the path: what kept the descriptor would close a real one of its number when the fake is gone."""
        os.close(fd)
        return lambda: os.stat(path).st_size

    def drop_cached(self, fd: int) -> None:
        """What the fake has not."""

    @staticmethod
    def _close(fd: int) -> None:
        """At once: later the number would be that of a real file."""
        os.close(fd)
        resources.disown(fd)

    @staticmethod
    def _pread(fd: int, size: int, offset: int) -> bytes:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.read(fd, size)

    @staticmethod
    def _pwrite(fd: int, data: bytes, offset: int) -> int:
        os.lseek(fd, offset, os.SEEK_SET)
        return os.write(fd, data)


QUEUE_ID = "0123456789abcdef"
BASE = f"1-{QUEUE_ID}"


def tree(root: str = ROOT) -> list[str]:
    """The files there are, with batches and days made anonymous."""
    found = []
    for directory, _, names in os.walk(root):
        found += [f"{directory}/{name}".removeprefix(f"{root}/") for name in names]
    return sorted(found)


@pytest.fixture(autouse=True)
def no_openat2(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system call knows nothing of the fake."""
    monkeypatch.setattr(beneath, "openat2_works", lambda: False)


@pytest.fixture(autouse=True)
def no_garbage() -> None:
    """Queues of earlier tests are closed before the fake begins: else its descriptors of the same numbers would be."""
    gc.collect()


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A queue lets go of logs of other open queues, too. Those that earlier tests have left open are real ones."""
    monkeypatch.setattr(open_logs, "_everywhere", WeakTable())


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a purge removes, it removes before it returns.

    pyfakefs is for one thread: while it calls a real function for one, it does so for all of them, and another thread
    closes real descriptors by the fake's numbers.
    """
    monkeypatch.setattr(administration, "_reap_later", lambda reap: reap())


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_795_255_200.0)  # 2026-11-21


@pytest.fixture
def q(fs: FakeFilesystem, clock: ManualClock) -> Iterator[Queue]:
    os.makedirs(ROOT)
    with open(f"{ROOT}/queue.jsonl", "wb") as file:
        file.write(layout.birth_record(Settings(shards=1), QUEUE_ID, 1))
    with Queue(ROOT, worker="w", filesystem=FakeFilesystemLayer(ROOT), clock=clock) as queue:
        threads = set(threading.enumerate())  # those of earlier tests may end meanwhile
        yield queue
    assert set(threading.enumerate()) <= threads


def test_the_tree_after_each_step(q: Queue, clock: ManualClock) -> None:
    now = clock.now_ms()
    assert tree() == ["queue.jsonl"]
    q.insert_many(["a", "b"], batch_tasks=2)
    [batch] = {info.id.partition(".")[0] for info in q.tasks()}
    assert tree() == [f"{BASE}/queue/00/0000000000000-{batch}-2.jsonl", "doorbell", "queue.jsonl"]

    [one] = q.lease(lease_s=10)
    log = f"{BASE}/movements/00/{batch}.jsonl"
    assert tree() == [log, f"{BASE}/queue/00/0000000000000-{batch}-2.jsonl", "doorbell", "queue.jsonl"]

    [two] = q.lease(lease_s=20)
    assert tree() == [log, f"{BASE}/queue/00/{now + 10_000}-{batch}-2.jsonl", "doorbell", "queue.jsonl"]

    two.release(5)
    assert tree() == [log, f"{BASE}/queue/00/{now + 5_000}-{batch}-2.jsonl", "doorbell", "queue.jsonl"]

    one.complete({"r": 1})
    clock.advance(5)
    [two] = q.lease(lease_s=20)
    two.bury("no")
    counter = f"{BASE}/completions/{q.store.counter_number}"
    left = f"{BASE}/dead/00.jsonl", f"{BASE}/history/2026-11-21/00.jsonl"
    assert tree() == [counter, *left, "doorbell", "queue.jsonl"]
    assert os.path.getsize(f"{ROOT}/{counter}") == 2, "a guard, and the byte of a task"
    assert os.path.getsize(f"{ROOT}/doorbell") == 16


def test_the_log_after_each_step(q: Queue) -> None:
    def ops() -> list[str]:
        [path] = [name for name in tree() if name.startswith(f"{BASE}/movements/")]
        with open(f"{ROOT}/{path}", "rb") as file:
            records = [movements.parse(line) for line in file.read().splitlines()]
        assert None not in records
        return [record["op"] for record in records if record is not None]

    q.insert_many(range(3), batch_tasks=3)
    first, second = q.lease(2)
    assert ops() == ["open", "lease"]
    first.renew()
    assert ops()[2:] == ["renew"]
    first.fail("oops", 0)
    assert ops()[3:] == ["fail"]
    second.release()
    assert ops()[4:] == ["release"]
    [third] = q.lease()
    q.release_all()
    assert ops()[5:] == ["lease", "revoke"]
    q.cancel(third.id)
    assert ops()[7:] == ["cancel"]


def test_purged_and_deleted(q: Queue) -> None:
    q.insert("x")
    q.purge()
    assert [name for name in tree() if not name.startswith(".trash")] == ["doorbell", "queue.jsonl"]
    q.insert("y")
    assert any(name.startswith(f"2-{QUEUE_ID}/queue/00/") for name in tree())
    with open(f"{ROOT}/queue.jsonl", "rb") as file:
        assert [line.split(b",")[0] for line in file] == [b'{"op":"create"', b'{"op":"generation"']


def test_a_torn_tail_is_voided(q: Queue, clock: ManualClock) -> None:
    q.insert_many(["a", "b"], batch_tasks=2)
    q.lease()
    [path] = [name for name in tree() if name.startswith(f"{BASE}/movements/")]
    with open(f"{ROOT}/{path}", "ab") as file:
        file.write(b'{"op":"lease","at":1')
    with Queue(ROOT, filesystem=FakeFilesystemLayer(ROOT), clock=clock) as again:
        again.lease()
    with open(f"{ROOT}/{path}", "rb") as file:
        lines = file.read().splitlines()
    assert lines[2] == b'{"op":"lease","at":1~'
    assert q.status().leased == 2


def test_a_whole_life(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(40), total=40)
    done = []
    for task in q.poll(prefetch=3):
        if task.payload % 7 == 3 and task.attempt == 1:
            task.fail("once", 1)
            continue
        with task:
            done.append(task.payload)
    assert sorted(done) == list(range(40))
    assert q.status().as_dict() == {"inserted": 40, "waiting": 0, "delayed": 0, "leased": 0, "completed": 40, "dead": 0}
    assert not [name for name in tree() if name.startswith((f"{BASE}/queue", f"{BASE}/movements", f"{BASE}/staging"))]


def test_names_move_only_where_the_source_is(fs: FakeFilesystem) -> None:
    os.makedirs(ROOT)
    layer = FakeFilesystemLayer(ROOT)
    layer.close(layer.create(f"{ROOT}/.a/b/one"))
    assert layer.rename(f"{ROOT}/.a/b/one", f"{ROOT}/.a/b/two")
    assert not layer.rename(f"{ROOT}/.a/b/one", f"{ROOT}/.a/b/three")
    assert layer.names(f"{ROOT}/.a/b") == ["two"]
    layer.link(f"{ROOT}/.a/b/two", f"{ROOT}/three")
    with pytest.raises(FileExistsError):
        layer.link(f"{ROOT}/.a/b/two", f"{ROOT}/three")
    assert FakeFilesystemLayer("/project").remove_tree(ROOT) == 5  # no queue removes its own root
    assert not os.path.exists(ROOT)
