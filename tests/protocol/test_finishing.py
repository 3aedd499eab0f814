"""A crash at any step of any verb: nothing lost, nothing done twice, exact counts, no leftovers.

Each scenario is done once for every change of the disk that it makes, dying just before that change,
and once more dying half-way through what the change would have written. Then another process looks,
drains the queue and tidies up.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, Queue, Status, administration
from fsqueue.clock import ManualClock
from fsqueue.errors import QueueFileLost, QueueNotFound
from fsqueue.filesystem import Filesystem
from fsqueue.format import checkpoints
from fsqueue.protocol import finishing
from fsqueue.storage import counters
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.logs import last_checkpoint
from tests.levels import how_many
from tests.support import (
    Crash,
    CrashingFilesystem,
    QueueFactory,
    age_staging,
    base_of,
    counted,
    crashes,
    drain,
    insert_in_file,
    leftovers,
    log_files,
    task_file_names,
)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(autouse=True)
def _reap_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No threads: a crash must come at the same step every time."""
    monkeypatch.setattr(administration, "reap_later", lambda store: None)


class Books:
    """What was put into a queue and what became of it: payloads, since ids change when letters are retried."""

    def __init__(self) -> None:
        self.inserted: Counter[Any] = Counter()
        self.maybe: Counter[Any] = Counter()
        """Handed to an insert that died: in the queue or not."""
        self.done: Counter[Any] = Counter()
        """Reported done before the crash."""
        self.cancelled: Counter[Any] = Counter()
        self.results = True
        """Whether everybody completes with the payload as the result, so that the history tells which were done."""

    def settle(self, queue: Queue, clock: ManualClock, where: str) -> None:
        """What another process finds; then drain, tidy up, and compare."""
        other = Queue(queue.path, clock=clock)
        before = other.status()
        assert before.inserted == sum(before.as_dict().values()) - before.inserted, where
        held = Counter(str(info.payload) for info in other.tasks())
        dead_before = before.dead
        assert sum(held.values()) == before.remaining, where
        clock.advance(100)
        executed = drain(other, clock, complete)
        assert max(executed.values(), default=0) <= 1, f"{where}: nothing is executed twice while its lease holds"
        after = other.status()
        assert after.drained, where
        assert after.inserted == before.inserted, where
        assert after.dead == dead_before, where
        assert sum(executed.values()) == before.remaining, where
        assert after.completed == before.completed + sum(executed.values()), where
        least = sum((self.inserted - self.cancelled).values())
        assert least <= after.inserted <= least + sum(self.maybe.values()), where
        assert after.completed + after.dead == after.inserted, where
        assert before.completed >= sum(self.done.values()), f"{where}: what was reported done is done"
        if self.results and other.settings.keep_history:
            assert not (self.inserted - self.cancelled) - Counter(self._payloads(other)) - self.maybe, where
        age_staging(other)
        other.gc()
        report = other.gc()
        assert not any(value for key, value in report.as_dict().items() if key != "touched"), f"{where}: {report}"
        assert other.status() == after, where
        assert leftovers(other) == [], where
        assert counted(other) == after.completed, where
        letters = [letter.id for letter in other.dead()]
        assert len(letters) == len(set(letters)) == after.dead, where

    @staticmethod
    def _payloads(queue: Queue) -> list[Any]:
        """What the results and letters say."""
        found = [info.result for info in queue.tasks("completed")]
        return found + [letter.payload for letter in queue.dead()]


def complete(task: Any) -> None:
    task.complete(task.payload)


# -- scenarios: each prepares a queue with a live process, then acts with one that dies -------------------


Scenario = tuple[Callable[[Queue, Books], Any], Callable[[Queue, Books, Any], None]]


def nothing(queue: Queue, books: Books) -> None:
    pass


def five(queue: Queue, books: Books) -> list[str]:
    """Five tasks, together where batches allow it; their tokens once all but one have been dealt with."""
    queue.insert_many(range(5), batch_tasks=5)
    books.inserted.update(range(5))
    return []


def last_of_five(queue: Queue, books: Books) -> str:
    """Of five tasks one is left, and leased; the others: completed, buried, cancelled."""
    five(queue, books)
    tasks = {task.payload: task for task in queue.lease(5)}
    complete(tasks[0])
    complete(tasks[1])
    books.done.update([0, 1])
    tasks[2].bury("no")
    tasks[3].release()
    assert queue.cancel([tasks[3].id]) == 1
    books.cancelled.update([3])
    return tasks[4].token


def one_leased(queue: Queue, books: Books) -> str:
    queue.insert("x")
    books.inserted.update(["x"])
    return queue.lease()[0].token


def three_dead(queue: Queue, books: Books) -> None:
    queue.insert_many(("abc"[index] for index in range(3)), batch_tasks=1)
    books.inserted.update("abc")
    for task in queue.lease(3):
        task.bury("no")


def insert_one(queue: Queue, books: Books, state: Any) -> None:
    books.maybe.update(["new"])
    queue.insert("new")
    books.maybe.subtract(["new"])
    books.inserted.update(["new"])


def insert_many(queue: Queue, books: Books, state: Any) -> None:
    payloads = [f"new{number}" for number in range(7)]
    books.maybe.update(payloads)
    queue.insert_many(payloads, batch_tasks=3)
    books.maybe.subtract(payloads)
    books.inserted.update(payloads)


def lease_some(queue: Queue, books: Books, state: Any) -> None:
    queue.lease(2, lease_s=50)


def lease_all_one_by_one(queue: Queue, books: Books, state: Any) -> None:
    while queue.lease(1, lease_s=50):
        pass


def work(queue: Queue, books: Books, state: Any) -> None:
    while tasks := queue.lease(1, lease_s=50):
        complete(tasks[0])
        books.done.update([tasks[0].payload])


def work_in_twos(queue: Queue, books: Books, state: Any) -> None:
    books.results = False
    while tasks := queue.lease(2, lease_s=50):
        queue.complete(tasks)
        books.done.update([task.payload for task in tasks])


def poll(queue: Queue, books: Books, state: Any) -> None:
    """Completing one task and leasing the next in one append."""
    books.results = False
    for task in queue.poll(lease_s=50):
        task.complete()
        books.done.update([task.payload])


def poll_with_results(queue: Queue, books: Books, state: Any) -> None:
    """The same with a result for each task."""
    for task in queue.poll(lease_s=50):
        complete(task)
        books.done.update([task.payload])


def complete_last(queue: Queue, books: Books, token: str) -> None:
    task = queue.attach(token)
    complete(task)
    books.done.update([task.payload])


def bury_last(queue: Queue, books: Books, token: str) -> None:
    queue.attach(token).bury("no")


def fail_last(queue: Queue, books: Books, token: str) -> None:
    queue.attach(token).fail("oops", 0)


def release_last(queue: Queue, books: Books, token: str) -> None:
    queue.attach(token).release(5)


def renew_last(queue: Queue, books: Books, token: str) -> None:
    queue.attach(token).renew(20)


def release_all(queue: Queue, books: Books, token: str) -> None:
    queue.release_all()


def collect(queue: Queue, books: Books, state: Any) -> None:
    queue.gc(touch=True)


SCENARIOS: dict[str, Scenario] = {
    "insert": (nothing, insert_one),
    "insert_many": (five, insert_many),
    "lease": (five, lease_some),
    "lease_all": (five, lease_all_one_by_one),
    "work": (five, work),
    "work_in_twos": (five, work_in_twos),
    "poll": (five, poll),
    "poll-with-results": (five, poll_with_results),
    "complete_the_last": (last_of_five, complete_last),
    "complete_the_only": (one_leased, complete_last),
    "bury_the_last": (last_of_five, bury_last),
    "fail": (one_leased, fail_last),
    "release": (last_of_five, release_last),
    "renew": (one_leased, renew_last),
    "release_all": (last_of_five, release_all),
    "gc": (last_of_five, collect),
}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a dead process puts nothing back
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_crash_at_any_step_loses_nothing_and_does_nothing_twice(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """All batches write the same bytes into the counters: their offsets alone must tell whose they are."""
    monkeypatch.setattr(counters, "mark", lambda batch, count: b"m" * count)
    prepare, act = SCENARIOS[name]
    books, state = Books(), None

    def build(number: int) -> Queue:
        nonlocal books, state
        books = Books()
        queue = Queue(queue_factory(f"q{number}", shards=1, durability="none").path, worker="first", clock=clock)
        state = prepare(queue, books)
        queue.close()
        return queue

    steps = 0
    for where, queue in crashes(build, lambda worker: act(worker, books, state), clock, every=how_many(7, 1)):
        books.settle(queue, clock, f"{name}, {where}")
        steps += 1
    assert steps >= 2


@pytest.mark.parametrize("keep_history", [True, False])
def test_a_finish_that_dies_again_and_again_ends_well(
    queue_factory: QueueFactory, clock: ManualClock, keep_history: bool
) -> None:
    """The first process dies somewhere in `finish`, the second somewhere in going on with it, the third does it."""
    for first, second in itertools.product(range(1, 14, how_many(3, 1)), range(1, 9, how_many(2, 1))):
        queue = queue_factory(f"q{first}-{second}", shards=1, durability="none", keep_history=keep_history)
        queue = Queue(queue.path, clock=clock)
        books = Books()
        token = last_of_five(queue, books)
        queue.close()
        for at, act in ((first, partial(complete_last, books=books, token=token)), (second, Queue.gc)):
            fs = CrashingFilesystem(str(queue.path), at=at, torn=(first + second) % 2 == 0)
            try:
                act(Queue(queue.path, filesystem=fs, clock=clock))
            except Crash:
                pass
            fs.bury()
        books.settle(queue, clock, f"{first}, {second}")
        if not fs.dead and second == 1:
            break


@pytest.mark.parametrize(("verb", "left"), [("retry_dead", 3), ("purge_dead", 0)])
def test_letters_are_dealt_with_once_whatever_dies(
    queue_factory: QueueFactory, clock: ManualClock, verb: str, left: int
) -> None:
    def build(number: int) -> Queue:
        queue = Queue(queue_factory(f"q{number}", shards=1, durability="none").path, clock=clock)
        three_dead(queue, Books())
        return queue

    for where, queue in crashes(build, lambda worker: getattr(worker, verb)(), clock):
        other = Queue(queue.path, clock=clock)
        status = other.status()
        assert status.waiting + status.dead == status.inserted <= 3, where
        assert status.inserted == 3 or verb == "purge_dead", where
        getattr(other, verb)()
        assert other.status().inserted == left, where
        executed = drain(other, clock)
        assert (len(executed), sum(executed.values())) == (left, left), where
        age_staging(other)
        other.gc()
        assert leftovers(other) == [], where
        assert (counted(other), list(other.dead())) == (left, []), where


def test_a_cancellation_is_done_or_not(queue_factory: QueueFactory, clock: ManualClock) -> None:
    ids: list[str] = []

    def build(number: int) -> Queue:
        queue = Queue(queue_factory(f"q{number}", shards=1, durability="none").path, clock=clock)
        queue.insert_many(range(3), batch_tasks=3)
        ids[:] = [info.id for info in queue.tasks()]
        return queue

    for where, queue in crashes(build, lambda worker: worker.cancel(ids), clock):
        other = Queue(queue.path, clock=clock)
        status = other.status()
        assert status.waiting == status.inserted, where
        executed = drain(other, clock)
        assert sum(executed.values()) == status.inserted, where
        cancelled = {info.id for info in other.tasks("cancelled")}
        assert cancelled | set(executed) == set(ids), where
        assert not cancelled & set(executed), where
        other.gc()
        assert leftovers(other) == [], where


@pytest.mark.batched
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("buries", [False, True])
def test_no_batch_of_cancelled_tasks_goes_before_its_byte_is_there(
    queue_factory: QueueFactory, clock: ManualClock, shared: bool, buries: bool
) -> None:
    """Else two looks that find no task would agree, though tasks came and went in between. A letter that is older than
    the cancellation tells nothing of that."""

    def build(number: int) -> Queue:
        queue = Queue(queue_factory(f"q{number}", shards=1, durability="none").path, clock=clock)
        queue.insert_many(range(3), batch_tasks=3)
        if buries:
            queue.lease()[0].bury("no")
        return queue

    steps = 0
    for where, queue in crashes(build, lambda worker: worker.cancel([x.id for x in worker.tasks()]), clock, shared):
        steps += 1
        byte = base_of(queue) / "cancelled"
        assert log_files(queue) or task_file_names(queue) or byte.read_bytes(), where
        other = Queue(queue.path, clock=clock)
        if other.status().waiting:
            continue
        other.gc()
        assert (leftovers(other), other.is_drained()) == ([], True), where
        assert byte.read_bytes() in (b"x", b"xx"), f"{where}: a process that goes on may append another one"
        assert other.status().as_dict() | {"dead": 0, "inserted": 0} == Status().as_dict(), where
        assert {finding.kind for finding in other.fsck()} <= {"repeated-history"}, where
    assert steps > 8


@pytest.mark.batched
def test_what_a_batch_leaves_depends_on_how_its_tasks_ended(queue_factory: QueueFactory, clock: ManualClock) -> None:
    """A byte if nothing else tells that the batch has ended: the way of completed tasks writes none."""
    q = Queue(queue_factory(shards=1).path, clock=clock)
    byte = base_of(q) / "cancelled"
    for ends, size in (("cc", 0), ("xc", 0), ("dd", 0), ("xd", 1), ("xx", 2)):
        q.insert_many(range(2), batch_tasks=2)
        for end, task in zip(ends, q.lease(2), strict=True):
            if end == "x":
                task.release()
                assert q.cancel([task.id]) == 1
            else:
                task.complete() if end == "c" else task.bury("no")
        assert log_files(q) == []
        assert (byte.stat().st_size if byte.exists() else 0) == size, ends
    assert q.status() == Status(completed=3, dead=3)
    q.purge()
    assert not (base_of(q) / "cancelled").exists()


def test_a_purge_is_done_or_not(queue_factory: QueueFactory, clock: ManualClock) -> None:
    def build(number: int) -> Queue:
        queue = Queue(queue_factory(f"q{number}", shards=1, durability="none").path, clock=clock)
        queue.insert_many(range(3))
        queue.lease()[0].complete()
        queue.lease()
        return queue

    outcomes = set()
    for where, queue in crashes(build, Queue.purge, clock):
        other = Queue(queue.path, clock=clock)
        status = other.status()
        assert status.inserted in (0, 3), where
        outcomes.add(status.inserted)
        assert other.generation == (2 if status.inserted == 0 else 1), where
        other.insert("new")
        assert other.status().inserted == status.inserted + 1, where
        clock.advance(10_000)
        assert sum(drain(other, clock).values()) == (3 if status.inserted else 1), where
        other.gc()
        other.gc()
        assert leftovers(other) == [], where
    assert outcomes == {0, 3}


def test_a_deletion_is_done_or_not_and_the_name_is_free_again(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    current: list[CrashingFilesystem] = []

    class Shared(CrashingFilesystem):
        """What `delete` does outside the queue belongs to the same dying process."""

        def __init__(self, root: str, *, shared: bool = False) -> None:
            super().__init__(root, at=0, shared=shared)
            self.bound = current[-1]

        def change(self, what: str, half: Callable[[], object] | None = None) -> None:
            self.bound.change(what, half)

    for at in range(1, 12):
        with monkeypatch.context() as patch:
            queue = Queue(queue_factory(f"q{at}", durability="none").path, clock=clock)
            queue.insert("x")
            queue.close()
            fs = CrashingFilesystem(str(queue.path), at=at)
            current.append(fs)
            patch.setattr(administration, "Filesystem", Shared)
            try:
                Queue(queue.path, filesystem=fs, clock=clock).delete()
            except Crash:
                pass
        fs.bury()
        try:
            assert Queue(queue.path, clock=clock).status().inserted == 1
            Queue(queue.path, clock=clock).delete(foreground=True)
        except QueueNotFound:
            pass
        Queue.create(queue.path).insert("y")
        assert [task.payload for task in Queue(queue.path).lease(9)] == ["y"]
        if not fs.dead:
            return
    raise AssertionError("delete has more steps than this test tries")


def test_a_creation_is_done_or_not_and_can_be_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for torn, at in itertools.product((False, True), range(1, 20)):
        path = tmp_path / f"{torn}{at}" / "q"
        made: list[CrashingFilesystem] = []

        def dying(root: str, *, shared: bool = False, at: int = at, torn: bool = torn) -> Filesystem:
            made.append(CrashingFilesystem(root, at=at, torn=torn, shared=shared))  # noqa: B023
            return made[-1]  # noqa: B023

        with monkeypatch.context() as patch:
            patch.setattr(administration, "Filesystem", dying)
            try:
                Queue.create(path, shards=3)
            except Crash:
                pass
        made[0].bury()
        try:
            Queue(path)
        except QueueNotFound:
            assert made[0].dead
        assert Queue.create(path, shards=3, exist_ok=True).settings.shards == 3
        assert Queue(path).insert(1).inserted


# -- finishing itself --------------------------------------------------------------------------------------


@pytest.mark.parametrize("died", ["finish", "count", "history", "gone"])
def test_whoever_leases_next_goes_on_with_a_finish_it_meets(
    queue_factory: QueueFactory, clock: ManualClock, died: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = Queue(queue_factory(shards=1).path, clock=clock)
    insert_in_file(q, "x")
    with monkeypatch.context() as patch:

        def crash(*args: object, **kwargs: object) -> None:
            raise Crash

        module, name = {
            "finish": (LockedBatch, "remove_task_file"),
            "count": (finishing.counters, "add"),
            "history": (finishing.history, "keep"),
            "gone": (finishing, "retire"),
        }[died]
        patch.setattr(module, name, crash)
        with pytest.raises(Crash):
            q.lease()[0].complete(1)
    assert len(log_files(q)) == 1
    other = Queue(q.path, clock=clock)
    assert other.status().as_dict() == {
        "inserted": 1,
        "waiting": 0,
        "delayed": 0,
        "leased": 0,
        "completed": 1,
        "dead": 0,
    }
    assert other.status().drained
    assert list(other.poll()) == []
    if died == "finish":
        assert len(task_file_names(q)) == 1
        clock.advance(1000)
        assert other.lease() == []
    else:
        assert other.gc().finished == 1
    assert leftovers(q) == []
    assert other.status().completed == counted(q) == 1
    [info] = other.tasks("completed")
    assert (info.id, info.result) == (other.history(info.id) and info.id, 1)


def test_completing_succeeds_although_clearing_away_fails(
    queue_factory: QueueFactory, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    q = Queue(queue_factory(shards=1).path, clock=clock)
    insert_in_file(q, "x")
    [task] = q.lease()
    (base_of(q) / "completions").write_text("a file where a directory should be")
    task.complete()
    assert "clearing it away failed" in caplog.text
    with pytest.raises(QueueFileLost, match="completions is a file"):
        q.status()
    (base_of(q) / "completions").unlink()
    assert q.status().completed == 1
    assert q.gc().finished == 1
    assert q.status().completed == counted(q) == 1
    assert leftovers(q) == []


def test_letters_that_could_not_be_written_are_written_later(
    queue_factory: QueueFactory, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    q = Queue(queue_factory(shards=1).path, clock=clock)
    insert_in_file(q, "x")
    [task] = q.lease()
    (base_of(q) / "dead").write_text("a file where a directory should be")
    task.bury("no")
    assert "were not written" in caplog.text
    with pytest.raises(QueueFileLost, match="dead is a file"):
        q.status()
    assert len(task_file_names(q)) == 1, "the payload is kept until the letter is written"
    (base_of(q) / "dead").unlink()
    assert q.status().dead == 1
    q.gc()
    assert [(letter.payload, letter.reason) for letter in q.dead()] == [("x", "no")]
    assert q.status().dead == 1
    assert leftovers(q) == []


@pytest.mark.batched
def test_letters_of_a_batch_at_work_are_written_later_by_upkeep(
    queue_factory: QueueFactory, clock: ManualClock
) -> None:
    q = Queue(queue_factory(shards=1).path, clock=clock)
    q.insert_many(["a", "b"], batch_tasks=2)
    tasks = q.lease(2)
    (base_of(q) / "dead").write_text("a file where a directory should be")
    tasks[0].bury("no")
    (base_of(q) / "dead").unlink()
    assert q.gc().letters_added == 1
    assert [letter.payload for letter in q.dead()] == [tasks[0].payload]
    assert q.gc().letters_added == 0
    assert q.status().dead == 1


def test_the_order_of_a_finish(queue_factory: QueueFactory, clock: ManualClock) -> None:
    """Invariants 1 and 6: the outcome is in the log before the task file goes; guard, announcement, bytes."""
    path = queue_factory(shards=1).path
    fs = CrashingFilesystem(str(path), at=10**9)
    q = Queue(path, filesystem=fs, clock=clock)
    insert_in_file(q, "x")
    [task] = q.lease()
    fs.log.clear()
    written: list[bytes] = []
    write, fsync = fs.write, fs.fsync
    fs.write = lambda fd, data: (written.append(data), write(fd, data))[1]
    fs.fsync = lambda fd: (fs.log.append("fsync"), fsync(fd))[1]
    task.complete()
    steps = [step.split(" ")[0] for step in fs.log]
    task_file = next(place for place, step in enumerate(fs.log) if step.startswith("unlink") and "/queue/" in step)
    log_file = next(place for place, step in enumerate(fs.log) if step.startswith("unlink") and "/movements/" in step)
    assert steps[:3] == ["write", "write", "fsync"]
    assert task_file == 3
    assert log_file == len(steps) - 1
    ops = [data[: data.find(b",")] for data in written]
    assert ops[:2] == [b'{"op":"complete"', b'{"op":"finish"']
    assert written[2] == b"\0"
    assert ops[3] == b'{"op":"count"'
    assert len(written[4]) == 1
    assert ops[-1] == b'{"op":"gone"'


@pytest.mark.parametrize("seen", ["as it acts", "replayed", "behind a checkpoint", "no update"])
def test_a_task_file_goes_for_good_before_the_log_in_which_an_update_has_acted(tmp_path: Path, seen: str) -> None:
    group = Group.create(tmp_path / "group", shards=1, durability="default")
    group["a"].insert_many(["first", "last"], batch_tasks=2)
    q = Queue(group.path / "a")
    first, last = q.lease(2)
    if seen != "no update":
        with group.update() as update:
            update.complete(first)
            update.insert("b", "more")
    if seen == "behind a checkpoint":
        with LockedBatch(q.store, last.batch) as locked:
            while locked.log.end < checkpoints.LEAST_BYTES:
                locked.append_record("renew", 0, lease=last.lease, tasks=[[1, 2]], until=last.until_ms)
            locked.log.append_checkpoint()
            locked.log.replay_state, locked.log.end = last_checkpoint(q.store.fs, locked.log.fd)
            assert not locked.log.replay_state.is_whole
    elif seen == "replayed":
        q.store.logs.drop(q.store.logs.get(last.batch))
    synced = []
    sync_directory = q.store.fs.sync_directory
    q.store.fs.sync_directory = lambda path: (synced.append(path), sync_directory(path))
    q.complete([first, last] if seen == "no update" else [last])
    shard = f"{q.store.layout.tasks}/{q.store.layout.shard(last.batch)}"
    assert (shard in synced) == (seen != "no update")
    assert not log_files(q)
