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

from fsqueue import Group, GroupNotFound, Queue, QueueNotFound, Worker
from fsqueue.format.groups import GROUP_FILE
from fsqueue.groups import members
from fsqueue.storage import queue_file
from fsqueue.worker import Away, Event, WorkerReport, feeding
from tests.disks import run, small_disk
from tests.waiting import LOOK_AGAIN, until

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def looks_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "AWAY_LOOK_S", 0.05)
    monkeypatch.setattr(members, "LIST_S", 0.05)


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


def new_group(root: Path, *payloads: Any) -> Group:
    """A group with some tasks in one of its queues, on a root of its own."""
    group = Group.create(root / "tiles", durability="none", shards=2)
    group["fetch"].insert_many(payloads)
    return group


def completed(group: Group) -> int:
    return Group(group.path)["fetch"].status().completed


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


# -- groups


def test_a_group_that_goes_while_it_is_worked_on_is_named_and_is_taken_again_when_it_comes_back(
    roots: tuple[Path, Path],
) -> None:
    a, b = roots
    mine, other, work = new_group(a, "waits"), new_group(b, 1), Work()
    with working(work, [mine, other.matching("fe.*")]) as reports:
        until(lambda: completed(other) == 1, "its first task")
        unmount(b)
        until(lambda: work.told(b, "is not there (not mounted?); it is tried again."), "the name of what is away")
        mine["fetch"].insert(2)
        until(lambda: completed(mine) == 1, "a task of the other one meanwhile")
        mount(b)
        until(lambda: work.told(b, "is there: its tasks are taken, too."), "its return")
        Group(other.path)["fetch"].insert(3)
        until(lambda: completed(other) == 2, "its next task")
    assert [(report.ended, report.completed) for report in reports] == [("drained", 4)]


@pytest.mark.parametrize("mine_is_group", [False, True])
def test_a_group_that_goes_and_stays_away_keeps_the_run_from_being_drained(
    roots: tuple[Path, Path], mine_is_group: bool
) -> None:
    a, b = roots
    mine = new_group(a, "waits") if mine_is_group else new_queue(a, "waits")
    work = Work()
    with working(work, [mine, new_group(b, 1)]) as reports:
        until(lambda: (mine["fetch"] if isinstance(mine, Group) else mine).status().leased, "its task")
        unmount(b)
        until(lambda: work.told(b, "is not there"), "the name of what is away")
    [report] = reports
    assert report.ended == "away"
    [end] = [one.text for one in work.events if one.kind == "ending"]
    assert end == f"all else is drained, and {b}/tiles is not there (not mounted?)"


def test_of_two_groups_one_may_be_away_when_the_worker_begins(roots: tuple[Path, Path]) -> None:
    a, b = roots
    mine, other, work = new_group(a, "waits"), new_group(b, 1, 2), Work()
    unmount(b)
    with working(work, [mine, other["fetch"]]) as reports:
        until(lambda: work.told(b, "is not there"), "the name of what is away")
        mount(b)
        until(lambda: completed(other) == 2, "its tasks")
    assert [(report.ended, report.completed) for report in reports] == [("drained", 3)]


def test_the_newest_reason_is_told_why_something_is_away(roots: tuple[Path, Path]) -> None:
    """Each time that it changes, and at the end."""
    a, b = roots
    queue, other, work = new_queue(a, "waits"), new_queue(b, 1), Work()
    file = other.path / "queue.jsonl"
    other.close()
    file.write_bytes(file.read_bytes()[:20])
    broken = Away(str(other.path), lambda: Queue(other.path), "cannot be opened (an older reason)")
    with working(work, [queue], away=[broken]) as reports:
        until(lambda: work.told(b, "cannot be opened (an older reason); it is tried again."), "the first reason")
        until(lambda: work.told(b, "empty or damaged"), "the reason that is true now")
        unmount(b)
        until(lambda: work.told(b, "is not there (not mounted?); it is tried again."), "the next one")
    [report] = reports
    assert (report.ended, report.completed) == ("away", 1)
    assert [one.kind for one in work.events].count("away") == 3, "each reason is told once"
    [end] = [one.text for one in work.events if one.kind == "ending"]
    assert end == f"all else is drained, and {b}/tiles is not there (not mounted?)"


def test_another_group_in_the_place_of_the_one_that_was_given_is_not_worked_on(roots: tuple[Path, Path]) -> None:
    a, b = roots
    mine, other, work = new_group(a, "waits"), new_group(b), Work()
    replaced = "holds another group than the one that was opened (not mounted?)"
    with working(work, [mine, other]) as reports:
        until(lambda: mine["fetch"].status().leased, "the worker to be at its task")
        unmount(b)
        until(lambda: work.told(b, "is not there"), "the name of what is away")
        theirs = new_group(b, "theirs")
    assert [(report.ended, report.completed) for report in reports] == [("away", 1)]
    [end] = [one.text for one in work.events if one.kind == "ending"]
    assert end.startswith(f"all else is drained, and {b}/tiles ")
    assert completed(theirs) == 0
    more = Work()
    with working(more, [mine, other]):
        until(lambda: more.told(b, f"{replaced}; it is tried again."), "what is in its place")
    assert completed(theirs) == 0


def test_a_group_whose_own_file_was_purged_is_away_by_that_name(roots: tuple[Path, Path]) -> None:
    a, b = roots
    mine, other, work = new_group(a, "waits"), new_group(b, 1), Work()
    with working(work, [mine, other]) as reports:
        until(lambda: other["fetch"].status().completed == 1, "its task")
        (other.path / GROUP_FILE).rename(b / "aside")
        until(lambda: work.told(b, "has no .group.jsonl any more"), "the name of what is missing")
        (b / "aside").rename(other.path / GROUP_FILE)
        until(lambda: work.told(b, "is there"), "its return")
    assert [report.ended for report in reports] == ["drained"]


@pytest.mark.parametrize("new", [new_queue, new_group])
def test_what_goes_and_is_all_that_the_worker_has_ends_the_run(roots: tuple[Path, Path], new: Any) -> None:
    source = new(roots[0])
    worker, errors = Worker(source, Work(), threads=1, until="forever"), list[Exception]()

    def act() -> None:
        try:
            worker.run()
        except (QueueNotFound, GroupNotFound) as error:
            errors.append(error)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    queue = source["fetch"] if new is new_group else source
    queue.insert(1)
    until(lambda: queue.status().completed == 1, "the worker to be at work")
    unmount(roots[0])
    until(lambda: not thread.is_alive(), "the end of the worker")
    [error] = errors
    assert type(error) is (GroupNotFound if new is new_group else QueueNotFound)
    assert "is not there any more. If it lies on another filesystem, check that this is mounted" in str(error)


@pytest.mark.parametrize("new", [new_queue, new_group])
def test_what_has_to_be_drained_before_and_goes_away_is_waited_for_as_well(roots: tuple[Path, Path], new: Any) -> None:
    a, b = roots
    mine, before, work = new_queue(a, "waits"), new(b), Work()
    with working(work, [mine], upstream=before) as reports:
        until(lambda: mine.status().leased, "the worker to be at its task")
        unmount(b)
    assert [(report.ended, report.completed) for report in reports] == [("away", 1)]
    assert work.told(b, "is not there (not mounted?); it is tried again.")


@pytest.mark.parametrize("exclude_after", [None, 5])
@pytest.mark.parametrize("fails", [False, True])
def test_of_a_task_whose_group_is_away_the_worker_says_first_that_it_may_not_be_mounted(
    roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, fails: bool, exclude_after: int | None
) -> None:
    monkeypatch.setattr(queue_file, "FRESH_S", -1.0)
    a, b = roots
    mine, other, work = new_group(a, "waits"), new_group(b, "waits"), Work()

    def act(payload: Any) -> None:
        work(payload)
        if fails:
            raise ValueError(payload)

    worker = Worker([mine, other], act, threads=3, prefetch=1, tell=work.events.append, exclude_after=exclude_after,
                    max_attempts=1)  # fmt: skip
    reports: list[WorkerReport] = []
    thread = threading.Thread(target=lambda: reports.append(worker.run()), daemon=True)
    thread.start()
    until(lambda: all(group["fetch"].status().leased for group in (mine, other)), "both tasks")
    unmount(b)
    until(lambda: work.told(b, "is not there"), "the name of what is away")
    work.may_end.set()
    until(lambda: not thread.is_alive(), "the end of the worker")
    [report] = reports
    assert (report.ended, report.lost, report.completed, report.buried) == ("away", 1, not fails, fails)
    [lost] = [one.text for one in work.events if one.kind == "lost"]
    assert f"The group {b}/tiles is not there any more. If it lies on another filesystem, check that this is" in lost


@pytest.mark.parametrize("fails", [False, True])
def test_tasks_of_a_group_that_is_away_end_or_begin_after_one_was_lost_and_the_others_are_done(
    roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """The first loss lets go of the queue. Nothing in the loop may ask for it again."""
    monkeypatch.setattr(queue_file, "FRESH_S", -1.0)
    a, b = roots
    mine, other = new_group(a, "waits"), new_group(b, "first", "second", "third", "fourth")
    gates, events = {name: threading.Event() for name in ("waits", "first", "second")}, list[Event]()

    def act(payload: Any) -> None:
        if payload in gates:
            gates[payload].wait()
        if fails and payload not in ("waits", "more"):
            raise ValueError(payload)

    def lost() -> int:
        return sum(one.kind == "lost" for one in events)

    worker = Worker([mine, other], act, threads=3, prefetch=2, tell=events.append, max_attempts=1)
    reports: list[WorkerReport] = []
    thread = threading.Thread(target=lambda: reports.append(worker.run()), daemon=True)
    thread.start()
    until(lambda: (mine["fetch"].status().leased, other["fetch"].status().leased) == (1, 4), "all tasks")
    unmount(b)
    gates["first"].set()
    until(lambda: lost() >= 1, "the first loss")
    gates["second"].set()
    until(lambda: lost() == 4, "the others")
    mine["fetch"].insert("more")
    until(lambda: mine["fetch"].status().completed == 1, "a task of the group that is there")
    gates["waits"].set()
    until(lambda: not thread.is_alive(), "the end of the worker")
    assert [(report.ended, report.lost, report.completed) for report in reports] == [("away", 4, 2)]


def test_a_group_on_a_disk_that_is_unmounted_lazily_and_mounted_again(roots: tuple[Path, Path]) -> None:
    a, b = roots
    with small_disk(b, 16, 500, "ext4"):
        mine, other, work = new_group(a, "waits"), new_group(b, 1), Work()
        with working(work, [mine, other]) as reports:
            until(lambda: completed(other) == 1, "its first task")
            other.close()
            run("umount", "--lazy", str(b))
            until(lambda: work.told(b, "is not there"), "the name of what is away")
            run("mount", "-o", "loop", f"{b}.img", str(b))
            Group(other.path)["fetch"].insert(2)
            until(lambda: work.told(b, "is there"), "its return")
        assert [(report.ended, report.completed) for report in reports] == [("drained", 3)]
        assert completed(other) == 2
        other.close()


def test_commands_for_tasks_of_a_group_that_is_away_begin_and_the_others_are_done(
    roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first loss lets go of the queue, and each command is told its queue's path. Nothing may ask the group."""
    monkeypatch.setattr(queue_file, "FRESH_S", -1.0)
    a, b = roots
    first, waits, never = (str(a.parent / name) for name in ("first", "waits", "never"))
    mine, other, events = new_group(a, waits), new_group(b, first, never, never), list[Event]()
    command = ["sh", "-c", f'[ "$1" = "$2" ] || until [ -e "$1" ]; do {LOOK_AGAIN}; done', "sh", "{}", never]
    worker = Worker([mine, other], command=command, processes=2, prefetch=2, tell=events.append)
    reports: list[WorkerReport] = []
    thread = threading.Thread(target=lambda: reports.append(worker.run()), daemon=True)
    thread.start()
    until(lambda: (mine["fetch"].status().leased, other["fetch"].status().leased) == (1, 3), "all tasks")
    unmount(b)
    Path(first).touch()
    until(lambda: sum(one.kind == "lost" for one in events) == 3 or not thread.is_alive(), "the losses")
    mine["fetch"].insert(never)
    Path(waits).touch()
    until(lambda: not thread.is_alive(), "the end of the worker")
    assert [(report.ended, report.lost, report.completed) for report in reports] == [("away", 3, 2)]


def test_what_has_come_back_since_the_last_look_is_taken_in_before_the_run_ends(
    roots: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeding, "AWAY_LOOK_S", 3600.0)
    a, b = roots
    mine, work = new_group(a, "waits"), Work()
    with working(work, [mine], away=[Away(str(b / "tiles"), lambda: Group(b / "tiles"))]) as reports:
        until(lambda: work.told(b, "is not there"), "the name of what is away")
        other = new_group(b, 1, 2)
    assert [(report.ended, report.completed) for report in reports] == [("drained", 3)]
    assert completed(other) == 2
