"""A worker over queues on several filesystems, of which one becomes read-only or full while it works."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest

from fsqueue import FsqueueError, Group, Queue, StorageError, StorageFull, Worker, WorkerReport
from fsqueue.worker import Event, feeding, settling
from tests.disks import run, small_disk
from tests.support import QueueFactory
from tests.waiting import until

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def tries_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have what fails tried again soon, and ask often whether the others are drained."""
    monkeypatch.setattr(feeding, "FAILING_LOOK_S", (0.05, 0.2))
    monkeypatch.setattr(feeding, "AWAY_LOOK_S", 0.05)
    monkeypatch.setattr(feeding, "DRAIN_CHECK_S", 0.05)


class Work:
    """Tasks of `mine` wait for their turn; the run's events, and how it ends."""

    def __init__(self, mine: Queue, other: Queue | Group, **options: Any) -> None:
        self.turns, self.events, self.ends = threading.Semaphore(0), list[Event](), list[WorkerReport | FsqueueError]()
        worker = Worker([mine, other], self.act, threads=1, prefetch=1, tell=self.events.append, **options)
        self.thread = threading.Thread(target=self.run, args=[worker], daemon=True)
        self.thread.start()

    def act(self, payload: Any) -> None:
        if payload == "waits":
            self.turns.acquire()

    def run(self, worker: Worker) -> None:
        try:
            self.ends.append(worker.run())
        except FsqueueError as error:
            self.ends.append(error)

    def end(self) -> WorkerReport | FsqueueError:
        until(lambda: not self.thread.is_alive(), "the end of the worker")
        [end] = self.ends
        return end


@contextmanager
def full(disk: Path) -> Iterator[None]:
    """Fill a disk, down to the last byte, and make room again."""
    with (disk / "fill").open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                pass
    yield
    (disk / "fill").unlink()


def left_out(caplog: pytest.LogCaptureFixture, queue: Queue) -> list[str]:
    return [one.message for one in caplog.records if one.message.startswith(f"{queue.path} is left out: ")]


def completed(queue: Queue, count: int) -> None:
    until(lambda: queue.status().completed >= count, f"{count} tasks of {queue.path}")


def test_while_a_disk_is_full_the_tasks_of_the_other_one_are_done_and_it_is_tried_again(
    tmp_path: Path, queue_factory: QueueFactory, caplog: pytest.LogCaptureFixture
) -> None:
    """It is named once, however often it is tried."""
    mine = queue_factory("mine")
    mine.insert_many(["waits"] * 30)
    with small_disk(tmp_path / "disk", 4, 500) as disk:
        other = Queue.create(disk / "q", durability="none")
        other.insert(1)
        work = Work(mine, Queue(other.path))
        work.turns.release()
        completed(other, 1)
        other.insert_many(range(20))
        with full(disk):
            for _ in range(28):
                work.turns.release()
            completed(mine, 29)
            until(lambda: left_out(caplog, other), "the name of the full one")
            assert not work.ends
        work.turns.release()
        report = work.end()
        assert isinstance(report, WorkerReport)
        assert (report.completed, report.ended, report.lost) == (51, "drained", 0)
        assert len(left_out(caplog, other)) == 1
        assert "There is no room left" in left_out(caplog, other)[0]
        assert [task.attempt for task in other.tasks("completed")] == [1] * 21
        other.close()


@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_the_end_of_a_worker_one_of_whose_disks_stays_full_or_read_only(
    tmp_path: Path, queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    kind: str,
) -> None:  # fmt: skip
    """The tasks of the other one are done first. Then the error is raised that tells the command its exit code."""
    patience, real = [600.0], settling.patience_with
    for module in (settling, feeding):
        monkeypatch.setattr(module, "patience_with", lambda error, s: min(real(error, s) * 40, patience[0]))
    mine = queue_factory("mine")
    mine.insert_many(["waits"] * 10)
    with small_disk(tmp_path / "disk", 16, 500, "ext4") as disk:
        other = Queue.create(disk / "q", durability="none")
        other.insert(1)
        work = Work(mine, Queue(other.path), patience_s=600)
        work.turns.release()
        completed(other, 1)
        other.insert_many(range(20))
        if kind == "full":
            filled = full(disk)
            filled.__enter__()
        else:
            run("mount", "-o", "remount,abort", str(disk))
        for _ in range(9):
            work.turns.release()
        completed(mine, 10)
        until(lambda: left_out(caplog, other), "the name of the one that fails")
        patience[0] = 0.0
        error = work.end()
        assert isinstance(error, StorageFull if kind == "full" else StorageError)
        assert error.exit_code == (7 if kind == "full" else 1)
        assert ("There is no room left" if kind == "full" else "The filesystem is mounted read-only") in str(error)
        assert len(left_out(caplog, other)) == 1
        said = [one.text for one in work.events if one.kind == "storage" and one.text.startswith("tasks cannot be")]
        assert len(said) == 1
        if kind == "full":
            filled.__exit__(None, None, None)
            assert other.status().dead == 0
        other.close()


def said(work: Work, text: str) -> list[str]:
    return [one.text for one in work.events if one.kind == "storage" and text in one.text]


def failing(disk: Path, kind: str) -> Any:
    if kind == "full":
        return full(disk)
    run("mount", "-o", "remount,abort", str(disk))
    return nullcontext()


@pytest.mark.parametrize("is_group", [False, True])
@pytest.mark.parametrize("kind", ["full", "read-only"])
def test_a_disk_that_stays_full_or_read_only_is_put_away_while_the_others_are_not_drained(
    tmp_path: Path, queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture,
    kind: str, is_group: bool,
) -> None:  # fmt: skip
    """Nothing else is to be leased, and its time is over: the run goes on. It is named once, and tried again."""
    monkeypatch.setattr(settling, "HOPELESS_S", 0.0)
    mine = queue_factory("mine")
    mine.insert("held")
    [held] = mine.lease(lease_s=1e6)
    mine.insert("waits")
    with small_disk(tmp_path / "disk", 16, 500, "ext4") as disk:
        if is_group:
            group = Group.create(disk / "g", durability="none")
            other, given = group["q"], Group(group.path)
        else:
            other = given = Queue.create(disk / "q", durability="none")
        work = Work(mine, given, patience_s=0)
        until(lambda: mine.status().leased == 2, "the worker to be at its task")
        other.insert_many(range(20))
        with failing(disk, kind):
            work.turns.release()
            until(lambda: said(work, "tasks cannot be leased"), "the trouble")
            for count in (2, 3, 4):
                mine.insert(count)
                completed(mine, count)
            assert not work.ends
            assert len(left_out(caplog, other)) == 1
            assert len(said(work, "tasks cannot be leased")) == 1
        if kind == "full":
            completed(other, 20)
        held.complete()
        end = work.end()
        if kind == "full":
            assert isinstance(end, WorkerReport)
            assert (end.completed, end.ended, end.lost) == (24, "drained", 0)
        else:
            assert isinstance(end, StorageError)
            assert "The filesystem is mounted read-only" in str(end)
        given.close()
        other.close()
        if is_group:
            group.close()


def test_outcomes_that_a_read_only_disk_does_not_take_end_no_run_while_the_others_are_not_drained(
    tmp_path: Path, queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are lost, which is said. At the end the disk's error is raised."""
    monkeypatch.setattr(settling, "HOPELESS_S", 0.0)
    mine = queue_factory("mine")
    mine.insert("held")
    [held] = mine.lease(lease_s=1e6)
    with small_disk(tmp_path / "disk", 16, 500, "ext4") as disk:
        other = Queue.create(disk / "q", durability="none")
        other.insert("waits")
        work = Work(mine, Queue(other.path), patience_s=0)
        until(lambda: other.status().leased == 1, "the worker to be at its task")
        with failing(disk, "read-only"):
            work.turns.release()
            until(lambda: said(work, "1 outcome could not be recorded, and the tasks come back"), "the loss")
            for count in (1, 2, 3):
                mine.insert(count)
                completed(mine, count)
            assert not work.ends
            held.complete()
            end = work.end()
        assert isinstance(end, StorageError)
        assert end.exit_code == 1
        assert "The filesystem is mounted read-only" in str(end)
        other.close()
