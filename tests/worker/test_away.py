"""A worker over several queues of which some are not there, as on a disk that is not mounted: it names them, does the
tasks of the others, tries again, and never calls all drained.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, Queue, QueueNotFound, Worker
from fsqueue.worker import Away, Event, WorkerReport, feeding
from tests.disks import run, small_disk
from tests.waiting import until

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def looks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "AWAY_LOOK_S", 0.05)


def new_queue(root: Path, *payloads: Any) -> Queue:
    """A queue with some tasks on a root of its own."""
    queue = Queue.create(root / "tiles", durability="none")
    queue.insert_many(payloads)
    return queue


@pytest.fixture
def roots(tmp_path: Path) -> tuple[Path, Path]:
    """Two places at which file servers are mounted."""
    return tmp_path / "a", tmp_path / "b"


def unmount(root: Path) -> None:
    """As if a file server were not mounted: its mount point is empty."""
    root.rename(f"{root}.away")
    root.mkdir()


def mount(root: Path) -> None:
    root.rmdir()
    Path(f"{root}.away").rename(root)


class Work:
    """What tasks do: one with the payload "waits" ends when it is told to."""

    def __init__(self) -> None:
        self.may_end, self.events = threading.Event(), list[Event]()

    def __call__(self, payload: Any) -> None:
        if payload == "waits":
            self.may_end.wait()

    def told(self, root: Path, what: str) -> bool:
        return any(one.kind == "away" and what in one.text and str(root / "tiles") in one.text for one in self.events)


@contextmanager
def working(work: Work, queues: list[Any], **options: Any) -> Iterator[list[WorkerReport]]:
    """Have a worker run, and end."""
    reports: list[WorkerReport] = []
    worker = Worker(queues, work, threads=2, tell=work.events.append, **options)
    thread = threading.Thread(target=lambda: reports.append(worker.run()), daemon=True)
    thread.start()
    yield reports
    work.may_end.set()
    until(lambda: not thread.is_alive(), "the end of the worker")


def opens(path: Path) -> Away:
    return Away(str(path), lambda: Queue(path))


def test_what_is_not_there_is_named_at_once_and_the_run_does_not_end_drained(roots: tuple[Path, Path]) -> None:
    a, b = roots
    queue, work = new_queue(a, 1, 2, "waits"), Work()
    with working(work, [queue], away=[opens(b / "tiles")]) as reports:
        until(lambda: work.told(b, "is not there (not mounted?); it is tried again."), "the name of what is away")
        until(lambda: queue.status().completed == 2, "the tasks of the other")
        assert not reports
    [report] = reports
    assert (report.ended, report.completed) == ("away", 3)
    [end] = [one.text for one in work.events if one.kind == "ending"]
    assert end == f"all else is drained, and {b}/tiles is not there (not mounted?)"


def test_what_comes_later_is_done_and_then_all_is_drained(roots: tuple[Path, Path]) -> None:
    a, b = roots
    other = new_queue(b, 1, 2)
    unmount(b)
    work = Work()
    with working(work, [new_queue(a, "waits")], away=[opens(b / "tiles")]) as reports:
        until(lambda: work.told(b, "is not there"), "the name of what is away")
        mount(b)
        until(lambda: work.told(b, "is there: its tasks are taken, too."), "its return")
        until(lambda: other.status().completed == 2, "its tasks")
    assert [(report.ended, report.completed) for report in reports] == [("drained", 3)]


def test_what_goes_while_it_works_is_named_and_is_taken_again_when_it_comes_back(roots: tuple[Path, Path]) -> None:
    a, b = roots
    other, work = new_queue(b, 1), Work()
    with working(work, [new_queue(a, "waits"), Queue(other.path)]) as reports:
        until(lambda: other.status().completed == 1, "its first task")
        unmount(b)
        until(lambda: work.told(b, "is not there"), "the name of what is away")
        mount(b)
        other.insert(2)
        until(lambda: other.status().completed == 2, "its next task")
    assert [(report.ended, report.completed) for report in reports] == [("drained", 3)]


def test_what_goes_and_stays_away_keeps_the_run_from_being_drained(roots: tuple[Path, Path]) -> None:
    a, b = roots
    mine, other, work = new_queue(a, "waits"), new_queue(b), Work()
    with working(work, [mine, other]) as reports:
        until(lambda: mine.status().leased, "the worker to be at its task")
        unmount(b)
        until(lambda: work.told(b, "is not there"), "the name of what is away")
    assert [(report.ended, report.completed) for report in reports] == [("away", 1)]


def test_a_queue_is_taken_beside_a_group(roots: tuple[Path, Path], tmp_path: Path) -> None:
    b = roots[1]
    group = Group.create(tmp_path / "group", durability="none")
    group["fetch"].insert("waits")
    other = new_queue(b, 1)
    unmount(b)
    work = Work()
    with working(work, [group], away=[opens(b / "tiles")]) as reports:
        until(lambda: work.told(b, "is not there"), "the name of what is away")
        mount(b)
        until(lambda: other.status().completed == 1, "its task")
    assert [(report.ended, report.completed) for report in reports] == [("drained", 2)]


def test_without_any_queue_left_the_run_fails(roots: tuple[Path, Path]) -> None:
    a, b = roots
    queues = [new_queue(a), new_queue(b)]
    unmount(a)
    unmount(b)
    with pytest.raises(QueueNotFound):
        Worker(queues, Work(), threads=1).run()


def test_a_disk_that_is_unmounted_and_mounted_again(roots: tuple[Path, Path]) -> None:
    a, b = roots
    with small_disk(b, 16, 500, "ext4"):
        other, work = new_queue(b, 1), Work()
        with working(work, [new_queue(a, "waits"), Queue(other.path)]) as reports:
            until(lambda: other.status().completed == 1, "its first task")
            other.close()
            run("umount", "--lazy", str(b))
            until(lambda: work.told(b, "is not there"), "the name of what is away")
            run("mount", "-o", "loop", f"{b}.img", str(b))
            Queue(b / "tiles").insert(2)
            until(lambda: work.told(b, "is there"), "its return")
        assert [(report.ended, report.completed) for report in reports] == [("drained", 3)]
        assert Queue(b / "tiles").status().completed == 2
