"""A task file as a power loss leaves one: under both names of a renaming (btrfs), or longer than it was written."""

from __future__ import annotations

import errno
import os
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from fsqueue import LeaseLost, Queue
from fsqueue.clock import ManualClock
from fsqueue.filesystem import Filesystem
from fsqueue.format import names
from fsqueue.protocol import finishing
from fsqueue.storage import staging
from fsqueue.storage.locked_batch import LockedBatch
from tests.concurrency.trapped import trapped
from tests.support import Crash, QueueFactory, base_of, drain, leftovers, task_file_names


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def q(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    return Queue(queue_factory(shards=1, max_attempts=None).path, clock=clock)


def twin(queue: Queue) -> None:
    """Give each task file a second name, with a later time."""
    for name in task_file_names(queue):
        directory = base_of(queue) / "queue" / "00"
        os.link(directory / str(name), directory / str(name.at(name.available_at + 5)))


def test_renaming_leaves_one_name(tmp_path: Path) -> None:
    fs = Filesystem(str(tmp_path), shared=False)
    (tmp_path / "a").write_text("x")
    os.link(tmp_path / "a", tmp_path / "b")
    assert fs.rename(f"{tmp_path}/a", f"{tmp_path}/b")
    assert os.listdir(tmp_path) == ["b"]


def lease_and_complete(queue: Queue) -> None:
    queue.complete(queue.lease(3))


def lease_and_leave(queue: Queue) -> None:
    queue.lease(3, lease_s=1)


def leave_the_end_to_others(queue: Queue) -> None:
    """All is done, and the file is there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LockedBatch, "remove_task_file", dying)
        with pytest.raises(Crash):
            queue.complete(queue.lease(3))
    queue.close()


def dying(*args: object) -> None:
    raise Crash


@pytest.mark.parametrize("before", [lease_and_leave, leave_the_end_to_others, lambda queue: None])
@pytest.mark.parametrize("after", [Queue.gc, lease_and_complete])
def test_each_task_is_done_once(
    q: Queue, clock: ManualClock, before: Callable[[Queue], None], after: Callable[[Queue], object]
) -> None:
    q.insert_many(["a", "b", "c"], batch_tasks=1)
    before(q)
    twin(q)
    after(Queue(q.path, clock=clock))
    clock.advance(10)
    drain(Queue(q.path, clock=clock), clock)
    status = Queue(q.path, clock=clock).status()
    assert (status.inserted, status.completed) == (3, 3)
    assert leftovers(q) == []


def test_a_commit_s_file_that_is_published_and_still_staged_is_published_once(q: Queue, clock: ManualClock) -> None:
    commit = q.commit("seed")
    part = commit.stage(["a", "b"])
    staged = q.store.layout.attempt(commit.attempt, "seed")
    os.makedirs(base_of(q) / "queue" / "00")
    for name in filter(None, map(names.parse_task_file, os.listdir(staged))):
        os.link(f"{staged}/{name}", q.store.layout.task_file(name))
    assert commit.publish([part]).tasks == 2
    assert not os.path.exists(staged)
    assert sum(drain(q, clock).values()) == 2
    assert q.status().completed == 2


@pytest.mark.parametrize("call", ["stat", "unlink"])
def test_a_purge_in_the_middle_of_a_look_at_a_task_file_is_no_error(q: Queue, call: str) -> None:
    """The generation is moved away between two steps: nothing is there to be leased, or completed twice."""
    q.insert_many(["a", "b"], batch_tasks=1)
    worker, purged = Queue(q.path), []
    usual = getattr(worker.store.fs, call)

    def overtaken(path: str) -> object:
        if not purged and path.endswith(".jsonl") and "/queue/" in path:
            purged.append(path)
            Queue(q.path).purge()
        return usual(path)

    setattr(worker.store.fs, call, overtaken)
    for task in worker.lease(2):
        with suppress(LeaseLost):
            task.complete()
    assert purged
    assert worker.lease() == []
    assert q.status().as_dict() == {"inserted": 0, "waiting": 0, "delayed": 0, "leased": 0, "completed": 0, "dead": 0}


# -- a worker that was cut off renames late -------------------------------------------------------------------


class Late:
    """A worker has recorded a renaming and lost its lock. It renames when another process tries the old name.

    The first listing that this other process gets after that is an old one, as from an NFS client's cache.
    """

    def __init__(self, queue: Queue) -> None:
        [self.old] = task_file_names(queue)
        self.directory = base_of(queue) / "queue" / "00"
        self.cut_off = trapped(queue, self.withhold, shared=True)
        self.new = ""
        self.step = "look"
        """The step of the other process, on the old name, that finds it gone."""
        self.listings: list[list[str]] = []

    def withhold(self, step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step != "rename":
            return call(*args)
        self.new = args[1].rpartition("/")[2]
        raise OSError(errno.EIO, "the client was cut off", args[1])

    def meet(self, step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step == self.step and args[0].endswith(f"/{self.old}") and not self.listings:
            self.listings = [os.listdir(self.directory)]
            os.rename(self.directory / str(self.old), self.directory / self.new)
        elif step == "names" and args[0] == str(self.directory) and self.listings and self.listings[-1]:
            self.listings.append([])
            return self.listings[0]
        return call(*args)


@pytest.fixture
def late(q: Queue) -> Late:
    q.insert_many(["a", "b"], batch_tasks=2)
    return Late(q)


@pytest.mark.batched
def test_a_task_file_that_is_renamed_during_a_look_is_not_called_gone(q: Queue, late: Late, clock: ManualClock) -> None:
    assert len(Queue(q.path, clock=clock, filesystem=late.cut_off.store.fs).lease(2, lease_s=10)) == 2
    clock.advance(11)
    other = Queue(q.path, clock=clock, filesystem=trapped(q, late.meet, shared=True).store.fs)
    [task] = other.lease(2)  # alone, since the worker that held both is gone
    assert len(late.listings) == 2
    task.complete()
    assert q.status().as_dict() == {"inserted": 2, "waiting": 1, "delayed": 0, "leased": 0, "completed": 1, "dead": 0}


@pytest.mark.batched
def test_a_task_file_that_is_renamed_while_its_batch_finishes_is_removed(
    q: Queue, late: Late, clock: ManualClock
) -> None:
    held = Queue(q.path, clock=clock, filesystem=late.cut_off.store.fs).lease(2, lease_s=10)
    other = Queue(q.path, clock=clock, filesystem=trapped(q, late.meet, shared=True).store.fs)
    late.step = "unlink"
    other.complete([other.attach(task.token) for task in held])
    assert len(late.listings) == 2
    assert leftovers(q) == []
    assert (q.lease(), q.status().completed) == ([], 2)


@pytest.mark.batched
def test_a_task_file_that_is_published_while_staging_is_looked_at_is_not_called_gone(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss has put it back into staging. Another process publishes it after the shard was looked at."""
    q.insert_many(["a", "b"], batch_tasks=2)
    q.lease(2, lease_s=1)
    q.close()
    [name] = task_file_names(q)
    there, staged = q.store.layout.task_file(name), q.store.layout.staged(name)
    os.rename(there, staged)
    clock.advance(5)
    usual = staging.has

    def overtaken(*args: Any) -> bool:
        os.rename(staged, there)
        return usual(*args)

    monkeypatch.setattr(staging, "has", overtaken)
    with LockedBatch(q.store, name.batch) as locked:
        assert locked.read_lines() is None
        assert not finishing.bury_lost(locked)
    assert sum(drain(q, clock).values()) == 2
    assert q.status().dead == 0


@pytest.mark.batched
@pytest.mark.parametrize("look", ["lease", "peek", "tasks", "gc", "fsck", "repair"])
def test_a_gigabyte_of_zeros_behind_a_task_file_takes_no_memory(queue_factory: QueueFactory, look: str) -> None:
    """A power loss leaves such a file with durability "none". Once each of these took two gigabytes, or MemoryError."""
    q = queue_factory(shards=1)
    q.insert_many(range(3), batch_tasks=3)
    [file] = (base_of(q) / "queue").glob("*/*")
    os.truncate(file, file.stat().st_size + (1 << 30))
    looks: dict[str, Callable[[], object]] = {
        "lease": lambda: q.lease(1),
        "peek": lambda: q.peek(3),
        "tasks": lambda: list(q.tasks()),
        "gc": q.gc,
        "fsck": lambda: list(q.fsck()),
        "repair": lambda: list(q.fsck(repair=True)),
    }
    tracemalloc.start()
    try:
        looks[look]()
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    assert sorted(task.payload for task in q.lease(3)) == [0, 1, 2][look == "lease" :]
