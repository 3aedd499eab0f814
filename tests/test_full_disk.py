"""A disk that is full, read-only, or not ours, at every step of every verb: a clear error, nothing lost, and on it
goes when there is room.
"""

from __future__ import annotations

import ctypes
import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fsqueue import FsqueueError, LeaseLost, Queue, StorageError, StorageFull, Task
from tests.concurrency.books import check_drained, drain, leftovers
from tests.concurrency.processes import Child, children
from tests.concurrency.trapped import FullFrom, trapped

QueueFactory = Callable[..., Queue]

# -- one step at a time -------------------------------------------------------------------------------


def insert_one(queue: Queue, first: Queue) -> None:
    queue.insert("new")


def insert_many(queue: Queue, first: Queue) -> None:
    queue.insert_many(["new 1", "new 2", "new 3"], batch_tasks=2)


def lease_some(queue: Queue, first: Queue) -> None:
    queue.lease(3)


def complete_some(queue: Queue, first: Queue) -> None:
    queue.complete([queue.attach(token) for token in tokens_of(first)])


def complete_each(queue: Queue, first: Queue) -> None:
    for token in tokens_of(first):
        queue.attach(token).complete({"result": 1})


def renew_some(queue: Queue, first: Queue) -> None:
    queue.renew([queue.attach(token) for token in tokens_of(first)], 40)


def release_some(queue: Queue, first: Queue) -> None:
    queue.release([queue.attach(token) for token in tokens_of(first)])


def fail_one(queue: Queue, first: Queue) -> None:
    queue.attach(tokens_of(first)[0]).fail("no luck", delay_s=0)


def bury_each(queue: Queue, first: Queue) -> None:
    for token in tokens_of(first):
        queue.attach(token).bury("hopeless")


def release_all(queue: Queue, first: Queue) -> None:
    queue.release_all()


def cancel_waiting(queue: Queue, first: Queue) -> None:
    queue.cancel([info.id for info in queue.tasks("waiting") if info.payload == "waiting 0"])


def retry_dead(queue: Queue, first: Queue) -> None:
    queue.retry_dead()


def purge_dead(queue: Queue, first: Queue) -> None:
    queue.purge_dead()


def work_by_poll(queue: Queue, first: Queue) -> None:
    for done, task in enumerate(queue.poll(), 1):
        task.complete()
        if done == 5:
            break


def upkeep(queue: Queue, first: Queue) -> None:
    queue.gc(touch=True, history_days=0)


def check_and_repair(queue: Queue, first: Queue) -> None:
    list(queue.fsck(repair=True))


VERBS = [
    insert_one, insert_many, lease_some, complete_some, complete_each, renew_some, release_some, fail_one, bury_each,
    release_all, cancel_waiting, retry_dead, purge_dead, work_by_poll, upkeep, check_and_repair,
]  # fmt: skip

_tokens: dict[str, list[str]] = {}


def tokens_of(queue: Queue) -> list[str]:
    """The leases that were taken when the queue was set up."""
    return _tokens[str(queue.path)]


def set_up(queue: Queue) -> None:
    """Some tasks of every kind: 4 held, 5 waiting, 2 dead."""
    queue.insert_many([f"held {index}" for index in range(4)], batch_tasks=2)
    _tokens[str(queue.path)] = [task.token for task in queue.lease(4)]
    assert len(tokens_of(queue)) == 4
    queue.insert_many(["dead 0", "dead 1"], batch_tasks=2)
    for task in queue.lease(2):
        task.bury("from the beginning")
    queue.insert_many([f"waiting {index}" for index in range(5)], batch_tasks=3)
    assert queue.status().inserted == 11
    queue.close()


def payloads_of(queue: Queue) -> list[str]:
    """Every payload that is in the queue, once: made workable, taken out and completed. Dead ones are retried first."""
    queue.gc()
    queue.release_all()
    retried = queue.retry_dead()
    assert queue.status().dead == 0, retried
    return sorted(drain(queue))


KINDS = [(errno.ENOSPC, False, 1), (errno.EDQUOT, False, 10**9), (errno.ENOSPC, True, 10**9)]


@pytest.mark.parametrize(
    ("code", "partly", "times"), KINDS, ids=["one step", "from a step on, quota", "from a step on, torn"]
)
@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__name__)
def test_no_room_at_any_step(
    queue_factory: QueueFactory, verb: Callable[[Queue, Queue], None], code: int, partly: bool, times: int
) -> None:
    """Whatever the verb reports, nothing that was there is lost or doubled, and it can be repeated when there is
    room.
    """
    step, failures, torn = 0, 0, 0
    while True:
        step += 1
        queue = queue_factory(f"q{step}", durability="strict" if step % 2 else "none", backoff_s=(0, 0))
        set_up(queue)
        trap = FullFrom(step, times=times, code=code, partly=partly)
        full = trapped(queue, trap)
        trap.armed = True
        error: FsqueueError | None = None
        try:
            verb(full, queue)
        except StorageFull as caught:
            error = caught
            failures += 1
        except StorageError as caught:  # what was cut short may also be found out by reading it back
            error = caught
            torn += 1
            failures += 1
        trap.armed = False
        full.close()
        where = f"step {step} ({trap.steps[-1:]})"
        fresh = Queue(queue.path)
        assert_nothing_lost(fresh, queue, verb, error, where)
        if not trap.met:
            assert error is None
            break
        assert step < 200, "it never gets through"
        assert partly or not torn, error
    assert step > 2 or verb in (upkeep, renew_some, check_and_repair)


def assert_nothing_lost(
    fresh: Queue, first: Queue, verb: Callable[[Queue, Queue], None], error: FsqueueError | None, where: str
) -> None:
    wanted = [f"held {index}" for index in range(4)] + ["dead 0", "dead 1"] + [f"waiting {index}" for index in range(5)]
    before = fresh.status()
    optional: set[str] = set()
    if verb is insert_one:
        (wanted.append if error is None else optional.add)("new")
    elif verb is insert_many:
        done = 3 if error is None else error.inserted
        assert done is not None
        wanted += [f"new {index + 1}" for index in range(done)]
    elif verb is cancel_waiting:
        wanted.remove("waiting 0")
        optional |= {"waiting 0"} if error else set()
    elif verb is purge_dead:
        wanted = [payload for payload in wanted if not payload.startswith("dead")]
        optional |= {"dead 0", "dead 1"} if error else set()
    if verb in (complete_some, complete_each):
        optional |= {f"held {index}" for index in range(4)}
        wanted = [payload for payload in wanted if not payload.startswith("held")]
        if error is None:
            assert before.completed == 4, where
        # repeat it, as the error says: what was done already is no loss
        for token in tokens_of(first):
            try:
                fresh.attach(token).complete()
            except (LeaseLost, FsqueueError):
                pass
        assert fresh.status().completed == 4, where
        optional = set()
    completed = fresh.status().completed
    if verb is work_by_poll:
        optional = {payload for payload in wanted if payload.startswith("waiting")}
        wanted = [payload for payload in wanted if not payload.startswith("waiting")]
    found = payloads_of(fresh)
    assert len(found) == len(set(found)), f"{where}: doubled: {found}"
    assert set(wanted) <= set(found) <= set(wanted) | optional, f"{where}: {found}"
    if verb is work_by_poll:
        assert completed + len([p for p in found if p.startswith("waiting")]) >= 5, where
    ids, _ = check_drained(fresh, staged_leftovers=2)
    assert len(ids) == completed + len(found), where


def test_an_insert_with_many_delays_does_not_promise_what_is_not_so(queue_factory: QueueFactory) -> None:
    """Batches of several delays are filled side by side: `inserted` is a beginning of the stream, or says nothing."""
    tasks = [Task(index, delay_s=[0, 1000, 2000, 0, 3000][index % 5]) for index in range(60)]
    step = 0
    while True:
        step += 1
        queue = queue_factory(f"q{step}")
        trap = FullFrom(step)
        full = trapped(queue, trap)
        trap.armed = True
        error: StorageFull | None = None
        try:
            full.insert_many(tasks, batch_tasks=4)
        except StorageFull as caught:
            error = caught
        found = sorted(info.payload for info in queue.tasks())
        assert len(found) == len(set(found)), f"step {step}"
        if error is None:
            assert found == list(range(60)), f"step {step}"
        elif error.inserted is not None:
            assert found == list(range(error.inserted)), f"step {step}"
        if not trap.met:
            break
        step += 5
    assert step > 30


@pytest.mark.once
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


# -- real small disks ----------------------------------------------------------------------------------


@contextmanager
def small_disk(place: Path, megabytes: int, inodes: int, kind: str = "tmpfs") -> Iterator[Path]:
    """A small filesystem mounted at `place` (root only): a tmpfs, or an ext4 on a file."""
    if not can_mount(kind):
        pytest.skip("only root, where it may mount, can make a small disk")
    place.mkdir()
    image = Path(f"{place}.img")
    if kind == "tmpfs":
        mount = ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m,nr_inodes={inodes},mode=777", "small", str(place)]
    else:
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        run("mkfs.ext4", "-q", "-F", "-m", "0", "-O", "^has_journal", "-N", str(inodes), str(image))
        mount = ["mount", "-o", "loop", str(image), str(place)]
    run(*mount)
    try:
        if kind != "tmpfs":
            os.rmdir(place / "lost+found")
        yield place
    finally:
        run("umount", "--lazy", str(place))
        image.unlink(missing_ok=True)


def run(*command: str) -> None:
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, f"{command}: {finished.stderr}"


def can_mount(kind: str) -> bool:
    """Whether this machine lets us mount one (containers often don't)."""
    if os.geteuid() != 0 or (kind == "ext4" and not os.path.exists("/dev/loop-control")):
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.prctl(23, 21, 0, 0, 0) == 1  # PR_CAPBSET_READ, CAP_SYS_ADMIN


DISKS = [kind for kind in ("tmpfs", "ext4") if can_mount(kind)] or ["none"]


class Ballast:
    """What fills a disk, in bytes or inodes: some of it from the beginning, so that there is room again without it."""

    def __init__(self, disk: Path, what: str) -> None:
        self.place = disk / "ballast"
        self.what = what
        self.place.mkdir()
        if what == "bytes":
            (self.place / "0").write_bytes(b"x" * (200 << 10))
        else:
            for number in range(30):
                (self.place / str(number)).touch()

    def fill(self) -> None:
        """Write until there is no room for anything."""
        with pytest.raises(OSError, match="No space left"):
            self._fill()

    def _fill(self) -> None:
        if self.what == "inodes":
            for number in range(30, 10_000):
                (self.place / str(number)).touch()
        with open(self.place / "0", "ab", buffering=0) as file:
            while True:
                file.write(b"x" * 512)

    def empty(self) -> None:
        """Make room."""
        for path in self.place.iterdir():
            path.unlink()


@pytest.mark.once
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
        rest = [payload.split()[0] for payload in drain(fresh, patience_s=4)]
        assert len(rest) == len(set(rest))
        completed, dead = check_drained(fresh)
        assert not dead
        assert set(inserted) | {"afterwards"} <= set(done) | set(rest)
        assert len(completed) == len(set(done) | set(rest)), "counted twice, or not at all"


@pytest.mark.once
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
        queue.delete(wait=True)
        assert not (disk / "q").exists()
        ballast.empty()
        Queue.create(disk / "q").insert("again")


@pytest.mark.once
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
        assert [path.name for path in queue.path.iterdir() if path.name.isdigit()] in ([], ["2"])


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


@pytest.mark.once
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
