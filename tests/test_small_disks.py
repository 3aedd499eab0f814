"""Disks really small, read-only, or not ours: a clear error, nothing lost, and on it goes when there is room."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fsqueue import LeaseLost, Queue, StorageError, StorageFull
from tests.concurrency.books import check_drained, drain, leftovers
from tests.concurrency.processes import Child, children
from tests.disks import DISKS, Ballast, run, small_disk
from tests.levels import each_once
from tests.support import QueueFactory, base_of, generations_of, raised
from tests.verb_calls import NEED_BYTES, NEED_FILES, VERBS, Verb, assert_nothing_lost, set_up

# -- full --------------------------------------------------------------------------------------------


def test_a_fresh_queue_needs_little_room_or_says_so(tmp_path: Path) -> None:
    """Create on a disk without inodes, and again when there are some."""
    with small_disk(tmp_path / "disk", megabytes=1, inodes=64) as disk:
        ballast = Ballast(disk, "inodes")
        ballast.fill()
        with pytest.raises(StorageFull):
            Queue.create(disk / "q")
        ballast.empty()
        Queue.create(disk / "q").insert("task")
        assert Queue(disk / "q").lease()[0].payload == "task"


KINDS = [(kind, what) for kind in DISKS for what in ("bytes", "inodes")]


@pytest.mark.one_in(4)
@each_once(("verb", VERBS), ("disk_kind", KINDS))
def test_each_verb_on_a_full_disk(tmp_path: Path, verb: Verb, disk_kind: tuple[str, str]) -> None:
    """Who needs room is told, who needs none does his work, and nothing is lost."""
    kind, what = disk_kind
    with small_disk(tmp_path / "disk", megabytes=2, inodes=300, kind=kind) as disk:
        ballast = Ballast(disk, what)
        queue = Queue.create(disk / "q", shards=2, backoff_s=(0, 0))
        set_up(queue)
        ballast.fill()
        error = raised(StorageFull, lambda: verb(queue, queue))
        assert error is not None or verb not in (NEED_FILES if what == "inodes" else NEED_BYTES)
        assert error is None or verb in NEED_FILES or what == "bytes", error
        assert error is None or "Free space or inodes, or raise the quota" in str(error)
        queue.close()
        ballast.empty()
        assert_nothing_lost(Queue(queue.path), queue, verb, error, "")


@pytest.mark.parametrize("kind", DISKS)
@pytest.mark.parametrize("what", ["bytes", "inodes"])
def test_a_disk_that_fills_up_while_eight_work(tmp_path: Path, kind: str, what: str) -> None:
    """Producers until the disk is full, workers all the while; then room is made, and all that was reported
    inserted is completed.
    """
    with small_disk(tmp_path / "disk", megabytes=2, inodes=240 if what == "inodes" else 1600, kind=kind) as disk:
        ballast = Ballast(disk, what)
        queue = Queue.create(disk / "q", shards=4, batch_tasks_max=16)
        over = disk.parent / "over"

        def produce(number: int) -> list[str]:
            mine, done = Queue(queue.path), []
            filler = "x" * (3000 if what == "bytes" else 10)
            for step in range(5000):
                payloads = [f"{number}.{step}.{index} {filler}" for index in range(4)]
                try:
                    mine.insert_many(payloads, batch_tasks=4)
                except StorageFull as error:
                    done += [payload.split()[0] for payload in payloads[: error.inserted or 0]]
                    return done
                done += [payload.split()[0] for payload in payloads]
            raise AssertionError("the disk never got full")

        def work() -> list[str]:
            mine, done = Queue(queue.path), []
            while not over.exists():
                try:
                    for task in mine.lease(2, wait_s=0.05, lease_s=2):
                        task.complete()
                        done.append(task.payload.split()[0])
                except StorageFull:
                    if over.exists():
                        break
                except LeaseLost:
                    pass
            return done

        with children((produce, 0), (produce, 1), (work,), (work,)) as (*producers, one, two):
            inserted = [payload for child in producers for payload in child.result()]
            ballast.fill()
            for number in range(20):  # the workers make room again by finishing, so some may find theirs
                try:
                    queue.insert(f"late.{number} " + "x" * 10_000)
                    inserted.append(f"late.{number}")
                except StorageFull:
                    pass
            over.touch()
            done = one.result() + two.result()
        ballast.empty()
        assert len(done) == len(set(done))
        fresh = Queue(queue.path)
        fresh.insert("afterwards")
        fresh.release_all()
        rest = [payload.split()[0] for payload in drain(fresh, patience_s=60)]
        assert len(rest) == len(set(rest))
        completed, dead = check_drained(fresh)
        assert not dead
        assert set(inserted) | {"afterwards"} <= set(done) | set(rest)
        assert len(completed) == len(set(done) | set(rest)), "counted twice, or not at all"


@pytest.mark.parametrize("kind", DISKS)
@pytest.mark.parametrize("what", ["bytes", "inodes"])
def test_what_is_left_can_be_worked_off_and_deleted_on_a_full_disk(tmp_path: Path, kind: str, what: str) -> None:
    """Looking works on a full disk, and deleting, by which users make room."""
    with small_disk(tmp_path / "disk", megabytes=1, inodes=64, kind=kind) as disk:
        ballast = Ballast(disk, what)
        queue = Queue.create(disk / "q", shards=2)
        queue.insert_many(range(20), batch_tasks=5)
        tasks = queue.lease(7)
        ballast.fill()
        assert queue.status().inserted == 20
        assert len(list(queue.tasks())) == 20
        assert queue.task(tasks[0].id).state == "leased"
        assert len(queue.peek(3)) == 3
        try:
            queue.complete(tasks)
        except StorageFull:
            pass
        queue.delete(foreground=True)
        assert not (disk / "q").exists()
        ballast.empty()
        Queue.create(disk / "q").insert("again")


@pytest.mark.parametrize("kind", DISKS)
def test_gc_makes_room_for_itself(tmp_path: Path, kind: str) -> None:
    """Without inodes a batch cannot be cleared away for want of a counter; with those of the trash it can."""
    with small_disk(tmp_path / "disk", megabytes=1, inodes=64, kind=kind) as disk:
        queue = Queue.create(disk / "q", shards=2)
        queue.insert_many(range(4), batch_tasks=2)
        tasks = queue.lease(4)
        trash = queue.path / ".trash" / f"{queue.store.queue_state.directory}-{'6' * 16}"
        trash.mkdir(parents=True)
        ballast = Ballast(disk, "inodes")
        for number in range(4):
            (trash / str(number)).touch()
        ballast.fill()
        queue.complete(tasks[:2])
        assert leftovers(queue) != []
        report = queue.gc()
        assert (report.trash_reaped, report.finished) == (5, 1)
        queue.complete(tasks[2:])
        ballast.empty()
        check_drained(queue)


def test_purging_on_a_full_disk(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", megabytes=1, inodes=64) as disk:
        queue = Queue.create(disk / "q", shards=2)
        queue.insert_many(range(20), batch_tasks=5)
        ballast = Ballast(disk, "inodes")
        ballast.fill()
        try:
            queue.purge()
        except StorageFull:
            assert Queue(queue.path).status().inserted == 20  # not done, so not done at all
            return
        assert Queue(queue.path).status().inserted == 0
        queue.gc()
        ballast.empty()
        queue.gc()
        assert leftovers(queue) == []
        assert generations_of(queue) in ([], [base_of(queue)])


# -- not writable ------------------------------------------------------------------------------------


def looks_and_refusals(path: Path, held: str) -> dict[str, Any]:
    """What a user who may only read can see, and what each verb that writes says to him."""
    queue = Queue(path)
    seen: dict[str, Any] = {
        "status": queue.status().as_dict(),
        "tasks": len(list(queue.tasks())),
        "peek": len(queue.peek(3)),
    }
    for name, verb in {
        "insert": lambda: queue.insert(1),
        "insert_many": lambda: queue.insert_many([1, 2]),
        "lease": lambda: queue.lease(),
        "poll": lambda: next(queue.poll()),
        "complete": lambda: queue.attach(held).complete(),
        "renew": lambda: queue.attach(held).renew(),
        "release_all": lambda: queue.release_all(),
        "purge": lambda: queue.purge(),
        "delete": lambda: queue.delete(),
        "create": lambda: Queue.create(path.parent / "another"),
    }.items():
        try:
            seen[name] = repr(verb())
        except StorageError as error:
            seen[name] = f"StorageError: {error}"
    return seen


def check_refusals(seen: dict[str, Any], words: str) -> None:
    assert seen.pop("status")["inserted"] == 6
    assert seen.pop("tasks") == 6
    assert seen.pop("peek") == 3
    for verb, said in seen.items():
        assert said.startswith("StorageError"), f"{verb}: {said}"
        assert words in said.lower(), f"{verb}: {said}"


@pytest.mark.parametrize("kind", DISKS)
def test_a_read_only_mount(tmp_path: Path, kind: str) -> None:
    with small_disk(tmp_path / "disk", megabytes=1, inodes=64, kind=kind) as disk:
        queue = Queue.create(disk / "q", shards=2)
        queue.insert_many(range(6), batch_tasks=2)
        [task] = queue.lease()
        queue.close()
        run("mount", "-o", "remount,ro", str(disk))
        check_refusals(looks_and_refusals(queue.path, task.token), "read-only")
        with pytest.raises(StorageError, match="read-only"):
            task.complete()
        run("mount", "-o", "remount,rw", str(disk))
        task.complete()
        assert len(queue.lease(9)) == 5


def test_a_queue_of_somebody_else(queue_factory: QueueFactory) -> None:
    """Readable, but not writable: looking works, all else is refused clearly, and nothing has changed."""
    queue = queue_factory(shards=2)
    queue.insert_many(range(6), batch_tasks=2)
    [task] = queue.lease()
    queue.close()
    before = {path: path.read_bytes() for path in queue.path.rglob("*") if path.is_file()}
    paths = [queue.path, *queue.path.rglob("*")]
    for path in reversed(paths):
        path.chmod(0o555 if path.is_dir() else 0o444)
    opened = [queue.path.parent]
    while opened[-1].parent != opened[-1] and opened[-1].stat().st_mode & 0o005 != 0o005:
        opened[-1].chmod(0o755)
        opened.append(opened[-1].parent)

    def look() -> dict[str, Any]:
        if os.geteuid() == 0:
            os.setgroups([])
            os.setegid(65534)
            os.seteuid(65534)
        return looks_and_refusals(queue.path, task.token)

    try:
        child = Child(look)
        try:
            check_refusals(child.result(), "permission denied")
        finally:
            child.close()
        assert {path: path.read_bytes() for path in queue.path.rglob("*") if path.is_file()} == before
    finally:
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert len(queue.lease(9)) == 5


def test_a_queue_that_one_may_not_even_read(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    queue.insert(1)
    queue.path.chmod(0o000)

    def look() -> str:
        if os.geteuid() == 0:
            os.seteuid(65534)
        try:
            Queue(queue.path)
        except StorageError as error:
            return str(error)
        return "opened"

    child = Child(look)
    try:
        assert "Permission denied" in child.result()
    finally:
        child.close()
        queue.path.chmod(0o755)
    assert queue.status().inserted == 1
