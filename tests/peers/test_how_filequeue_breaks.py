"""How python-task-queue's FileQueue breaks, scenario by scenario: here each must end well.

The numbers are those of the list that the scenarios were collected in. What needs a network is in the
lab's tests; where a scenario has a local half, that is here.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import LeaseLost, Queue, QueueNotFound, StorageFull, Task, TaskNotFound, UnsafeFilesystem
from fsqueue.clock import Clock, ManualClock
from fsqueue.filesystem import Filesystem
from fsqueue.format import checkpoints, names
from tests.concurrency.books import check_drained, counted, drain, leftovers, resume_insert
from tests.concurrency.processes import children, together
from tests.concurrency.trapped import DieAt, FullFrom, trapped
from tests.support import base_of, insert_in_file
from tests.waiting import until

QueueFactory = Callable[..., Queue]


def files(queue: Queue, part: str) -> list[Path]:
    """The files in one part of the queue's generation: "queue" or "movements"."""
    return sorted(path for path in (base_of(queue) / part).rglob("*") if path.is_file())


# -- 1 to 7: counting, renewing and deleting ---------------------------------------------------


def test_01_inserts_of_many_processes_are_all_counted(queue: Queue) -> None:
    """FileQueue: 8 processes x 100 increments of the insert counter gave 13, not 800."""

    def insert(number: int) -> None:
        mine = Queue(queue.path)
        for index in range(40):
            mine.insert([number, index])

    together(*((insert, number) for number in range(8)))
    assert queue.status().inserted == 320
    assert queue.status(exact=False).inserted == 320
    assert len(drain(queue)) == 320


def test_02_a_verb_that_waits_for_the_lock_leaves_the_log_alone(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """FileQueue: renew and delete truncate the log before they hold its lock."""
    insert_in_file(queue, "task")
    [task] = queue.lease()
    [log] = files(queue, "movements")
    before = log.read_bytes()
    fs = queue.store.fs
    fd = os.open(log, os.O_RDWR)
    assert fs.try_lock(fd)
    outcomes: list[object] = []

    def attempt(act: Callable[[], None]) -> None:
        try:
            outcomes.append(act())
        except LeaseLost as error:
            outcomes.append(error)

    tries, real = [], Filesystem.lock

    def lock(self: Filesystem, *arguments: Any) -> bool:
        tries.append(threading.current_thread())
        return real(self, *arguments)

    monkeypatch.setattr(Filesystem, "lock", lock)
    threads = [threading.Thread(target=attempt, args=(act,)) for act in (task.renew, task.renew)]
    for thread in threads:
        thread.start()
    until(lambda: tries, "a thread to wait for the lock")
    assert log.read_bytes() == before
    assert not outcomes
    os.close(fd)
    for thread in threads:
        thread.join()
    assert outcomes == [None, None]
    assert log.read_bytes().startswith(before)
    task.complete()
    assert queue.status().completed == 1
    assert leftovers(queue) == []


def test_03_renewing_races_completing(queue: Queue) -> None:
    """FileQueue: 11 of 60 tasks "deleted", but still queued."""
    queue.insert_many(range(60), batch_tasks=7)
    tokens = [task.token for task in queue.lease(60)]

    def renew(parity: int) -> int:
        mine, lost = Queue(queue.path), 0
        for token in tokens:
            for _ in range(5):
                try:
                    mine.attach(token).renew(60)
                except (LeaseLost, TaskNotFound):
                    lost += 1
                    break
        return lost

    def complete() -> None:
        mine = Queue(queue.path)
        for token in tokens:
            mine.attach(token).complete()

    together((renew, 0), (complete,), (renew, 1))
    completed, _ = check_drained(queue)
    assert len(completed) == 60


def test_04_a_renewer_killed_at_any_step_can_be_followed(queue_factory: QueueFactory) -> None:
    """FileQueue: after kill -9 within renew the log is empty and the task can't be deleted."""
    killed, step = 0, 0
    while True:
        step += 1
        queue = queue_factory(f"q{step}")
        queue.insert("task")
        [task] = queue.lease()

        def renew(queue: Queue = queue, token: str = task.token, step: int = step) -> None:
            trap = DieAt(step)
            mine = trapped(queue, trap).attach(token)
            trap.armed = True
            mine.renew(100)

        with children((renew,)) as [child]:
            status = child.wait()
        queue.attach(task.token).renew()
        queue.attach(task.token).complete()
        assert queue.status().completed == 1
        assert check_drained(queue)[0] == {task.id}
        if status == 0:
            break
        assert status == -signal.SIGKILL
        killed += 1
    assert killed >= 4  # lock, read, write, read back, unlock


def test_05_a_missing_log_is_no_success(queue: Queue) -> None:
    """FileQueue: with its movement log missing, a delete "succeeds"."""
    insert_in_file(queue, "task")
    [task] = queue.lease()
    [log] = files(queue, "movements")
    log.unlink()
    other = Queue(queue.path)
    with pytest.raises((TaskNotFound, LeaseLost)):
        other.attach(task.token).complete()
    with pytest.raises(LeaseLost):
        other.complete([task])
    assert other.status().completed == 0
    assert [info.payload for info in other.tasks()] == ["task"]


def test_06_who_was_taken_over_can_neither_complete_nor_count(queue: Queue) -> None:
    """FileQueue: a worker whose lease was taken over deletes the new holder's task; inserted 1, completed 2."""
    insert_in_file(queue, "task")
    [old] = queue.lease(lease_s=0.05)
    [new] = Queue(queue.path).lease(lease_s=30, wait_s=5)
    assert new.id == old.id
    with pytest.raises(LeaseLost) as error:
        old.complete()
    assert error.value.tasks == [old.id]
    assert queue.status().leased == 1
    new.complete()
    status = queue.status()
    assert (status.inserted, status.completed) == (1, 1)
    assert counted(queue) == 1


def test_07_renewing_a_finished_task_says_so(queue: Queue) -> None:
    """FileQueue: it is silent."""
    queue.insert_many(["one", "two"], batch_tasks=2)
    one, two = queue.lease(2)
    one.complete()
    with pytest.raises(LeaseLost):
        one.renew()
    two.complete()
    with pytest.raises(LeaseLost):  # now the whole batch is gone
        two.renew()


# -- 8 to 13: what is in the tree -----------------------------------------------------------------


def test_08_a_task_file_is_never_seen_half_written(queue: Queue) -> None:
    """FileQueue: 99 of 350 reads were partial."""

    def insert(number: int) -> None:
        mine = Queue(queue.path)
        for index in range(25):
            mine.insert_many([f"{number}.{index}." + "x" * 3000] * 4, batch_tasks=4)

    def watch() -> int:
        seen: dict[str, int] = {}
        is_over = False
        while not is_over:
            is_over = (queue.path / "over").exists()
            for path in files(queue, "queue"):
                if path.name not in seen:
                    name = names.parse_task_file(path.name)
                    content = path.read_bytes()
                    assert name is not None
                    assert content.count(b"\n") == name.count
                    assert content.endswith(b'"}\n')
                    seen[path.name] = 1
        return len(seen)

    with children((watch,), (watch,)) as watchers:
        together((insert, 0), (insert, 1))
        (queue.path / "over").touch()
        assert max(watcher.result() for watcher in watchers) >= 50
    assert queue.status().waiting == 200


@pytest.mark.parametrize("content", [b"", b"garbage\n", b'{"payload":"torn', b"\0" * 100])
def test_09_a_damaged_task_file_becomes_dead_letters(queue: Queue, content: bytes) -> None:
    """FileQueue: it is leased to nobody, for ever, and looks like an empty queue."""
    bad = insert_in_file(queue, "bad")
    good = insert_in_file(queue, "good")
    [path] = [path for path in files(queue, "queue") if bad.id.partition(".")[0] in path.name]
    path.write_bytes(content)
    [task] = queue.lease(5)
    assert task.id == good.id
    task.complete()
    assert queue.lease() == []
    [letter] = queue.dead()
    assert letter.id == bad.id
    assert "unreadable" in letter.reason or "damaged" in letter.reason
    status = queue.status()
    assert (status.completed, status.dead, status.remaining) == (1, 1, 0)


class LyingRenames:
    """Every rename happens, and is reported to have failed: a lost reply of an NFS server."""

    def __call__(self, step: str, call: Callable[..., Any], *args: Any) -> Any:
        result = call(*args)
        return False if step == "rename" else result


def test_10_a_rename_that_happened_but_was_reported_failed(queue: Queue) -> None:
    """FileQueue: it leases the task to nobody."""
    liar = trapped(queue, LyingRenames())
    liar.insert("single")
    liar.insert_many(range(5), batch_tasks=5)
    assert queue.status().inserted == 6
    tasks = liar.lease(6, lease_s=20)
    assert len(tasks) == 6
    assert queue.lease() == []
    tasks[0].release()
    [again] = queue.lease()
    assert again.id == tasks[0].id
    again.complete()
    liar.complete(tasks[1:])
    completed, _ = check_drained(queue)
    assert len(completed) == 6


class NoLocks:
    """Locking fails as on Lustre without the mount option `flock`."""

    def __call__(self, step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step == "try_lock":
            raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
        return call(*args)


def test_11_a_mount_without_locks_is_not_an_empty_queue(queue: Queue) -> None:
    """FileQueue: ENOSYS from locking looks like an empty queue."""
    queue.insert("task")
    [held] = queue.lease()
    queue.insert("another")
    crippled = trapped(queue, NoLocks())
    with pytest.raises(UnsafeFilesystem, match="flock"):
        crippled.lease()
    with pytest.raises(UnsafeFilesystem):
        crippled.complete([held])
    with pytest.raises(UnsafeFilesystem):
        crippled.lease(wait_s=0.5)
    held.complete()
    assert drain(queue) == ["another"]


def test_12_a_fractional_delay(queue: Queue) -> None:
    """FileQueue: it poisons the queue."""
    clock = ManualClock()
    queue = Queue(queue.path, clock=clock)
    queue.insert("later", delay_s=0.35)
    queue.insert(Task("much later", delay_s=1e6 + 1 / 3))
    queue.insert("now")
    begin = clock.now_s
    assert [task.payload for task in queue.lease(5)] == ["now"]
    [later] = queue.lease(5, wait_s=5)
    assert later.payload == "later"
    assert 0.35 <= clock.now_s - begin < 5
    later.release(delay_s=0.123456)
    assert queue.lease(wait_s=5)[0].payload == "later"
    assert queue.status().delayed == 1


STRAYS = [
    *(".nfs0001", ".nfs000000000badc0de", "notes.txt", "0000000000000-x.jsonl~", ".0000.jsonl.swp", "#a#", "-"),
    *("0000000000000-", "0000000000000-zz-1.jsonl", "lost+found", "\udcff\udcfe", "9" * 200),
    "0000000000000-" + "0" * 32 + "-0.jsonl",
]


def test_13_stray_files_anywhere(queue_factory: QueueFactory) -> None:
    """FileQueue: any stray file poisons it."""
    queue = queue_factory(shards=2)
    queue.insert_many(range(6), batch_tasks=2)
    [task] = queue.lease()
    task.fail("once", delay_s=0)
    directories = [queue.path, *(path for path in queue.path.rglob("*") if path.is_dir())]
    assert len(directories) > 4
    for directory in directories:
        for stray in STRAYS:
            (directory / stray).write_bytes(b"stray\n")
    other = Queue(queue.path)
    assert other.status().inserted == 6
    assert len(list(other.tasks())) == 6
    other.insert("seventh")
    assert sorted(map(str, drain(other))) == sorted(["0", "1", "2", "3", "4", "5", "seventh"])
    report = other.gc()
    assert report.stray > 0
    assert other.status().completed == 7
    assert other.lease() == []
    other.purge()
    assert other.status().inserted == 0


# -- 14 to 21: leases and idle workers -------------------------------------------------------------


def test_14_a_short_lease_is_not_taken_early(queue: Queue) -> None:
    """FileQueue: whole-second timestamps, so a 1 s lease was re-leasable after 0.03 s."""
    clock = ManualClock()
    queue = Queue(queue.path, clock=clock)
    for lease_s in (0.3, 0.45, 1.05):
        queue.insert(lease_s)
        begin = clock.now_s
        [task] = queue.lease(lease_s=lease_s)
        [again] = Queue(queue.path, clock=clock).lease(wait_s=5)
        passed = clock.now_s - begin
        assert again.id == task.id
        assert lease_s <= passed < lease_s + 2
        again.complete()


def test_15_a_batch_insert_that_failed_half_way_is_resumed_without_duplicates(queue: Queue) -> None:
    """FileQueue: a retried batch insert makes duplicates (10 inserted, 15 files)."""
    payloads = list(range(200))
    for number in (1, 2, 5, 20, 61, 130):
        name = f"{queue.path}-{number}"
        fresh = Queue.create(name, batch_tasks_max=queue.settings.batch_tasks_max)
        trap = FullFrom(number)
        full = trapped(fresh, trap)
        trap.armed = True
        with pytest.raises(StorageFull) as caught:
            full.insert_many(payloads, batch_tasks=2)
        assert caught.value.inserted is not None
        assert fresh.status().inserted == caught.value.inserted
        assert resume_insert(fresh, payloads, caught.value, batch_tasks=2) == 200
        assert sorted(drain(fresh)) == payloads


@pytest.mark.thorough
def test_16_sixty_four_workers_and_no_false_empty(queue: Queue) -> None:
    """FileQueue: 700 tasks available, 64 workers: 63 false "empty" answers."""
    queue.insert_many(range(700))

    def work() -> dict[str, list[float]]:
        mine = Queue(queue.path)
        began, empty = [], []
        while True:
            start = time.monotonic()
            tasks = mine.lease(1, lease_s=100)
            if not tasks:
                empty.append(time.monotonic())
                return {"began": began, "empty": empty}
            began.append(start)

    found = together(*((work,) for _ in range(64)))
    leases = sorted(start for one in found for start in one["began"])
    assert len(leases) == 700
    # a task whose lease call began after an empty answer was available all the time
    false = [(at, leases[-1] - at) for one in found for at in one["empty"] if leases[-1] > at]
    assert not false


def test_17_releasing_all_leases_while_some_are_being_completed(queue: Queue) -> None:
    """FileQueue: it stops at the first concurrent finish: 14 of 19 stay leased."""
    for lap in range(5):
        queue.insert_many(range(19), batch_tasks=1)
        tokens = [task.token for task in queue.lease(19)]
        assert len(tokens) == 19

        def complete(half: Iterable[str]) -> int:
            mine, done = Queue(queue.path), 0
            for token in half:
                try:
                    mine.attach(token).complete()
                    done += 1
                except (LeaseLost, TaskNotFound):
                    pass
            return done

        with children((complete, tokens[:9])) as [child]:
            released = Queue(queue.path).release_all()
            done = child.result()
        status = queue.status()
        assert status.leased == 0, f"lap {lap}"
        assert released + done == 19
        assert status.waiting == released
        assert len(drain(queue)) == released


def test_18_renewals_make_no_files_and_are_read_once(queue: Queue) -> None:
    """FileQueue: 300 renewals, 303 unlinks for one delete; and each renewal reads the whole log."""
    insert_in_file(queue, "task")
    steps: list[tuple[str, int]] = []

    def watch(step: str, call: Callable[..., Any], *args: Any) -> Any:
        result = call(*args)
        steps.append((step, len(result) if step == "pread" else 0))
        return result

    mine = trapped(queue, watch)
    [task] = mine.lease()
    [log], per_renewal = files(queue, "movements"), []
    for _ in range(300):
        steps.clear()
        size = log.stat().st_size
        task.renew(600)
        read, written = sum(size for _, size in steps), log.read_bytes()[size:]
        assert read <= len(written), "a renewal reads back what it writes, and nothing else"
        checkpoint = written.find(checkpoints.MARK)
        per_renewal.append(read - len(written[checkpoint:]) if checkpoint >= 0 else read)
    assert files(queue, "movements") == [log]
    assert log.stat().st_size < 300 * 200
    assert max(per_renewal) < 500
    steps.clear()
    task.complete()
    assert sum(step == "unlink" for step, _ in steps) <= 3
    assert leftovers(queue) == []


def test_19_a_task_that_kills_its_workers_is_given_up_with_a_reason(queue_factory: QueueFactory) -> None:
    """FileQueue: no attempt limit: one bad task kills worker after worker and leaves no record."""
    queue = queue_factory(max_attempts=3)
    bad = queue.insert("bad")

    def work() -> None:
        mine = Queue(queue.path, worker="victim")
        for task in mine.poll(lease_s=0.1):
            if task.payload == "bad":
                os.kill(os.getpid(), signal.SIGKILL)
            task.complete()

    killed = 0
    for _ in range(10):
        with children((work,)) as [child]:
            if child.wait() == 0:
                break
            killed += 1
    assert killed == 3
    [letter] = queue.dead()
    assert (letter.id, letter.payload, letter.attempt) == (bad.id, "bad", 3)
    assert "victim" in letter.reason
    assert [movement.op for movement in queue.history(bad.id)].count("lease") == 3
    assert queue.status().dead == 1


@pytest.mark.batched
def test_19_of_a_killed_workers_many_tasks_only_the_bad_one_is_given_up(queue_factory: QueueFactory) -> None:
    """One bad task among 12 that are leased together: the others go through uncharged."""
    queue = queue_factory(max_attempts=2)
    queue.insert_many(["bad" if index == 5 else index for index in range(12)], batch_tasks=12)

    def work() -> None:
        mine = Queue(queue.path)
        while tasks := mine.lease(12, lease_s=0.1) or mine.lease(12, lease_s=0.1, wait_s=1):
            for task in tasks:
                if task.payload == "bad":
                    os.kill(os.getpid(), signal.SIGKILL)
            mine.complete(tasks)

    killed = 0
    for _ in range(20):
        with children((work,)) as [child]:
            if child.wait() == 0:
                break
            killed += 1
    status = queue.status()
    assert (status.completed, status.dead, status.remaining) == (11, 1, 0)
    assert [letter.payload for letter in queue.dead()] == ["bad"]
    assert killed == 3  # once with all, uncharged, and twice alone


def test_20_parallel_inserts_keep_their_delay(queue: Queue) -> None:
    """FileQueue: parallel insert drops the delay."""

    def insert(number: int) -> int:
        return Queue(queue.path).insert_many((f"{number}.{index}" for index in range(50)), delay_s=500)

    assert together(*((insert, number) for number in range(4))) == [50] * 4
    assert queue.status().delayed == 200
    assert queue.lease(5) == []
    for info in queue.tasks("delayed"):
        assert info.available_at is not None
        [move] = queue.history(info.id)
        assert info.available_at - move.at == pytest.approx(500, abs=1)


def test_21_idle_workers_list_next_to_nothing(queue: Queue) -> None:
    """FileQueue: idle workers never back off, and each poll lists the whole directory."""
    for index in range(40):
        queue.insert(index)
    busy = queue.lease(40)
    assert len(busy) == 40
    steps: list[str] = []

    def watch(step: str, call: Callable[..., Any], *args: Any) -> Any:
        steps.append(step)
        return call(*args)

    idle = trapped(queue, watch)
    assert idle.lease() == []
    per_look = steps.count("names")
    steps.clear()
    assert idle.lease(wait_s=2.5) == []
    # It looks at once, when it has read the notification, and once more a moment later; then no more.
    assert steps.count("names") <= 3 * per_look + 2
    assert len(steps) - 3 * per_look < 300


# -- 22 to 26 ----------------------------------------------------------------------------------------


def test_22_looking_at_a_mistyped_path_makes_nothing(tmp_path: Path) -> None:
    """FileQueue: a mistyped path in `status` creates a queue."""
    with pytest.raises(QueueNotFound):
        Queue(tmp_path / "tils").status()
    with pytest.raises(QueueNotFound):
        Queue(f"fq://{tmp_path}/a/b/c")
    assert list(tmp_path.iterdir()) == []


def test_23_a_queue_can_be_moved_and_copied_with_everything_in_it(queue_factory: QueueFactory, tmp_path: Path) -> None:
    """FileQueue: moving a queue loses task classes."""
    queue = queue_factory(max_attempts=1, lease_s=77)
    queue.insert_many([{"n": index} for index in range(6)], batch_tasks=3)
    held, failed, *_ = queue.lease(3)
    failed.fail("broken")
    queue.insert(b"\0\1\2", delay_s=1000)
    before = queue.status()
    queue.close()
    (tmp_path / "elsewhere").mkdir()
    os.rename(queue.path, tmp_path / "elsewhere" / "moved")
    shutil.copytree(tmp_path / "elsewhere" / "moved", tmp_path / "copied")
    for place in ("elsewhere/moved", "copied"):
        moved = Queue(tmp_path / place)
        assert moved.settings == queue.settings
        assert moved.status() == before
        moved.attach(held.token).complete()
        assert moved.status().completed == 1
        assert [letter.id for letter in moved.dead()] == [failed.id]
        assert moved.history(held.id)[-1].op == "complete"
        assert moved.release_all() == 1
        assert len(moved.lease(10)) == 4
        assert [info.payload for info in moved.tasks("delayed")] == [b"\0\1\2"]

    def is_missed() -> bool:
        try:
            queue.status()
        except QueueNotFound:
            return True
        return False

    until(is_missed, "the queue to be missed")  # what was read of queue.jsonl is believed for a second


class Recorder:
    """Writes down the steps that matter for durability."""

    def __init__(self) -> None:
        self.steps: list[str] = []

    def __call__(self, step: str, call: Callable[..., Any], *args: Any) -> Any:
        result = call(*args)
        if step in ("write", "rename"):
            self.steps.append(step)
        elif step == "fsync":
            directory = os.path.isdir(f"/proc/self/fd/{args[0]}")
            self.steps.append("sync directory" if directory else "sync file")
        return result


def test_24_an_insert_is_on_the_disk_when_it_returns(queue: Queue) -> None:
    """FileQueue: nothing but a counter is ever synced to disk."""
    queue.insert_many(range(200), batch_tasks=1)  # so that all the directories are there
    recorder = Recorder()
    mine = trapped(queue, recorder)
    for insert in (lambda: mine.insert("one"), lambda: mine.insert_many(["one", "two"], batch_tasks=2)):
        recorder.steps.clear()
        insert()
        relevant = [step for step in recorder.steps if step != "write"]
        last = len(relevant) - 1 - relevant[::-1].index("rename")
        assert "sync file" in relevant[:last]
        assert "sync directory" in relevant[last:]


@pytest.mark.parametrize("durability", ["none", "strict"])
def test_24_movements_are_synced_if_asked_for(queue_factory: QueueFactory, durability: str) -> None:
    """`durability` decides whether a completion is on the disk when it is reported."""
    queue = queue_factory(durability=durability)
    recorder = Recorder()
    mine = trapped(queue, recorder)
    mine.insert("task")
    [task] = mine.lease()
    recorder.steps.clear()
    task.complete()
    assert ("sync file" in recorder.steps) == (durability == "strict")


def test_25_completions_of_many_processes_are_all_counted(queue: Queue) -> None:
    """FileQueue: appending to a shared completion counter loses bytes on NFS. Here: whoever locks, on any mount."""
    queue.insert_many(range(640), batch_tasks=1)

    def work() -> int:
        mine, done = Queue(queue.path), 0
        mine.store.counter_number = "00"  # all on one counter
        for task in mine.poll():
            task.complete()
            done += 1
        return done

    assert sum(together(*((work,) for _ in range(8)))) == 640
    assert counted(queue) == 640
    assert queue.status().completed == 640


class WrongClock(Clock):
    """The clock of a host that is set wrong."""

    def __init__(self, ahead_s: float) -> None:
        super().__init__()
        self.ahead_s = ahead_s

    def local_s(self) -> float:
        return super().local_s() + self.ahead_s


@pytest.mark.once
@pytest.mark.parametrize("ahead_s", [3600.0, -3600.0])
def test_26_the_file_servers_clock_decides_when_a_lease_ends(queue: Queue, ahead_s: float) -> None:
    """FileQueue: hosts' clocks decide expiry."""
    queue.insert("task")
    shared = Filesystem(str(queue.path), shared=True)
    wrong = Queue(queue.path, filesystem=shared, clock=WrongClock(ahead_s))
    assert abs(wrong.store.clock.now_ms() - queue.store.clock.now_ms()) < 60_000
    [task] = queue.lease(lease_s=20)
    assert wrong.lease() == []
    assert wrong.status().leased == 1
    task.release()
    [mine] = wrong.lease(lease_s=0.2, wait_s=2)  # its estimate of the time is some milliseconds off
    assert abs(mine.lease_until * 1000 - queue.store.clock.now_ms()) < 60_000
    [again] = queue.lease(wait_s=3)
    assert again.id == task.id
    with pytest.raises(LeaseLost):
        mine.complete()
