"""Single inserts: an append to an open batch, whatever becomes of the batch, the queue, the disk and the process."""

from __future__ import annotations

import errno
import gc
import os
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import FsqueueError, InvalidTask, Queue, StorageError, StorageFull, Task, TaskRef
from fsqueue.clock import ManualClock
from fsqueue.errors import QueueFileLost
from fsqueue.filesystem import LOST, Filesystem
from fsqueue.format import layout, movements, names, task_file
from fsqueue.format.names import Batch
from fsqueue.format.priority import LAST, Rank
from fsqueue.protocol import finishing, sealing, single_inserts, transitions
from fsqueue.protocol.finishing import LINGER_MS
from fsqueue.protocol.insert_errors import LOOK_FIRST
from fsqueue.protocol.keyed_inserts import REPEAT
from fsqueue.protocol.single_inserts import SingleInserter
from fsqueue.storage import journals
from fsqueue.storage.listening import QUIET_S
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.store import Store
from tests import record_lines
from tests.concurrency.processes import children
from tests.concurrency.trapped import Trapped, trapped
from tests.support import base_of, crashes, drain, files_below, in_time, log_files, raised, task_file_names
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once  # of open batches, and one queue without them

LINGER_S = LINGER_MS / 1000

Make = Callable[..., Queue]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Makes queues; `name` makes more than one."""

    def one(name: str = "q", **settings: Any) -> Queue:
        return Queue.create(tmp_path / name, **{"shards": 2, "backoff_s": (0, 0)} | settings)

    return one


@pytest.fixture
def queue(make: Make) -> Queue:
    """An empty queue that takes single inserts into open batches."""
    return make()


def batches(queue: Queue) -> list[str]:
    """The task files of batches with tasks in their logs, as the ends of their names."""
    return [str(name).partition(f"{name.batch}-")[2] for name in task_file_names(queue) if name.inserted is not None]


def open_batch(queue: Queue) -> Batch:
    """The only open batch."""
    [name] = [name for name in task_file_names(queue) if name.is_open]
    return name.batch


def records(queue: Queue) -> list[str]:
    """The operations in the only log."""
    [path] = log_files(queue)
    return [record["op"] for line in path.read_bytes().split(b"\n") if (record := movements.parse(line))]


def work(queue: Queue) -> list[Any]:
    """Complete all that there is; the payloads."""
    done = []
    while tasks := queue.lease(10):
        done += [task.payload for task in tasks]
        queue.complete(tasks)
    return done


# -- what an insert makes ----------------------------------------------------------------------------


def test_single_inserts_are_appended_to_one_log(queue: Queue) -> None:
    refs = [queue.insert(number) for number in range(5)]
    assert batches(queue) == ["0+.jsonl"]
    batch = open_batch(queue)
    assert [ref.id for ref in refs] == [f"{batch}.{number}" for number in range(5)]
    assert records(queue) == ["open"] + ["insert"] * 5
    assert queue.status().waiting == 5
    [path] = (base_of(queue) / "queue").glob("*/*")
    assert path.read_bytes() == task_file.encode_open_batch(queue.store.domain)
    assert work(queue) == [0, 1, 2, 3, 4]


def test_a_batch_of_one_task_is_a_file(make: Make) -> None:
    queue = make(batch_tasks_max=1)
    queue.insert(1)
    assert batches(queue) == []
    assert work(queue) == [1]


def test_a_host_that_does_not_tell_its_boot_makes_files(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue.store, "domain", "")
    queue.insert(1)
    assert batches(queue) == []


def test_a_payload_of_more_than_64_kib_is_a_file(queue: Queue) -> None:
    size = single_inserts.TASK_BYTES_MAX - len('{"payload":""}\n')
    queue.insert("x" * size)
    queue.insert("x" * (size + 1))
    assert [str(name).partition(f"{name.batch}-")[2] for name in task_file_names(queue)] == ["0+.jsonl", "1.jsonl"]
    assert sorted(map(len, work(queue))) == [size, size + 1]


@pytest.mark.parametrize(
    "payload", [b"", b"\x00\xff", None, "", 0, [], {}, {"op": "gone", "payload": 1}, "\n~\n", "ü\u2028"]
)
def test_every_payload_comes_back(queue: Queue, payload: Any) -> None:
    queue.insert("before")
    queue.insert(payload)
    assert work(Queue(queue.path)) == ["before", payload]


def test_delays_hold_in_a_log_as_in_a_file(make: Make) -> None:
    clock = ManualClock()
    queue = Queue(make().path, clock=clock)
    queue.insert("at once")
    queue.insert("later", delay_s=100)
    queue.insert(Task("sooner", delay_s=50))
    queue.insert("then", available_at=clock.now_s + 200)
    assert (queue.status().waiting, queue.status().delayed) == (1, 3)
    assert work(queue) == ["at once"]
    clock.advance(50)
    assert work(queue) == ["sooner"]
    clock.advance(50)
    assert work(Queue(queue.path, clock=clock)) == ["later"]
    clock.advance(100)
    assert work(queue) == ["then"]
    clock.advance(LINGER_S)
    assert queue.lease() == []
    assert task_file_names(queue) == []


def test_a_batch_whose_tasks_are_all_delayed_gets_a_later_name_once_it_is_sealed(make: Make) -> None:
    clock = ManualClock()
    queue = Queue(make().path, clock=clock)
    queue.insert("later", delay_s=1000)
    assert queue.lease() == []
    assert [name.available_at for name in task_file_names(queue)] == [0]
    clock.advance(LINGER_S)
    assert queue.lease() == []
    assert batches(queue) == ["0+1.jsonl"]
    assert [name.available_at for name in task_file_names(queue)] == [round((clock.now_s - LINGER_S + 1000) * 1000)]
    queue.insert("at once")
    assert work(queue) == ["at once"]
    clock.advance(1000)
    assert work(queue) == ["later"]


def test_what_is_no_task_is_refused_and_makes_nothing(queue: Queue) -> None:
    for bad in (float("nan"), {1, 2}, object(), Task("x", priority=1.5), Task("x", priority=True), Task("x", key="")):
        assert raised(InvalidTask, lambda bad=bad: queue.insert(bad))
    assert files_below(queue.path) == ["queue.jsonl"]


# -- which batch ---------------------------------------------------------------------------------------


def test_a_second_process_adopts_the_batch_that_the_first_has_left(queue: Queue) -> None:
    for number in range(5):
        with children((lambda number=number: Queue(queue.path).insert(number).id,)) as [child]:
            assert child.result().endswith(f".{number}")
    assert batches(queue) == ["0+.jsonl"]
    assert work(queue) == [0, 1, 2, 3, 4]


def test_two_processes_may_insert_into_one_batch(queue: Queue) -> None:
    other = Queue(queue.path)
    ids = [inserter.insert(number).id for number in range(10) for inserter in (queue, other)]
    assert len(set(ids)) == 20
    assert batches(queue) == ["0+.jsonl"]
    assert Counter(work(queue)) == Counter(list(range(10)) * 2)


def test_a_batch_of_another_boot_is_sealed(queue: Queue) -> None:
    queue.insert("before the power went")
    other = Queue(queue.path)
    other.store.domain = "another boot"
    other.insert("after it")
    assert sorted(batches(queue)) == ["0+.jsonl", "0+1.jsonl"]
    queue.insert("of the first boot")  # it finds its batch sealed
    assert sorted(batches(queue)) == ["0+.jsonl", "0+.jsonl", "0+1.jsonl"]
    assert sorted(work(queue)) == ["after it", "before the power went", "of the first boot"]


def test_an_untouched_batch_of_another_boot_is_removed(queue: Queue) -> None:
    """Its inserter had made the task file, and no log yet. No name says that a batch is sealed without a task."""
    queue._inserter._make_batch(LAST)
    other = Queue(queue.path)
    other.store.domain = "another boot"
    other.insert("task")
    assert len(files_below(base_of(queue) / "queue")) == len(files_below(base_of(queue) / "movements")) == 1
    assert work(queue) == ["task"]


def test_a_full_batch_is_sealed(make: Make) -> None:
    queue = make(batch_tasks_max=3)
    for number in range(7):
        queue.insert(number)
    assert sorted(batches(queue)) == ["0+.jsonl", "0+3.jsonl", "0+3.jsonl"]
    assert queue.status().waiting == 7
    assert sorted(work(queue)) == list(range(7))


def test_a_batch_with_a_long_log_is_sealed(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    assert sealing.LOG_BYTES_MAX == 1 << 20
    for number in range(18):
        queue.insert(f"{number}" + "x" * 60_000)
    assert batches(queue) == ["0+.jsonl"]
    queue.insert("next")
    assert sorted(batches(queue)) == ["0+.jsonl", "0+18.jsonl"]
    assert len(work(queue)) == 19


def test_many_processes_that_insert_once_share_batches(make: Make) -> None:
    queue = make(batch_tasks_max=10)
    for number in range(25):
        with Queue(queue.path) as one:
            one.insert(number)
    assert sorted(batches(queue)) == ["0+.jsonl", "0+10.jsonl", "0+10.jsonl"]


# -- what others do meanwhile -----------------------------------------------------------------------


def test_a_batch_that_was_worked_off_lingers(make: Make) -> None:
    clock = ManualClock()
    queue = Queue(make().path, clock=clock)
    for number in range(5):
        queue.insert(number)
        assert work(queue) == [number]
        clock.advance(LINGER_S / 2)
    assert batches(queue) == ["0+.jsonl"]
    clock.advance(LINGER_S)
    assert queue.lease() == []
    assert task_file_names(queue) == log_files(queue) == []


def finish(store: Store, batch: Batch, until: str) -> None:
    """Finish a batch as another process does that dies after a step of it."""
    with LockedBatch(store, batch) as locked:
        locked.append_record("finish", store.clock.now_ms())
        if until != "finish":
            os.unlink(store.layout.task_file(names.open_batch_file(batch)))
        if until == "gone":
            finishing.retire(locked)


@pytest.mark.parametrize("until", ["finish", "task file removed", "gone"])
@pytest.mark.parametrize("is_known", [False, True])
def test_a_batch_that_another_process_has_finished_takes_no_insert(queue: Queue, until: str, is_known: bool) -> None:
    other, inserter = Queue(queue.path), queue if is_known else Queue(queue.path)
    first = queue.insert("first")
    assert work(other) == ["first"]
    finish(other.store, Batch(first.id[:32]), until)
    second = inserter.insert("second")
    assert second.id[:32] != first.id[:32]
    assert work(Queue(queue.path)) == ["second"]


def test_a_log_that_is_made_anew_is_retired(queue: Queue) -> None:
    """The inserter's log was closed meanwhile, and the batch finished: to open it makes an empty one."""
    first = queue.insert("first")
    batch = Batch(first.id[:32])
    assert work(queue) == ["first"]
    finish(Queue(queue.path).store, batch, "gone")
    queue.store.logs.close()
    queue.insert("second")
    assert not os.path.exists(queue.store.layout.log(batch))
    assert work(queue) == ["second"]


@pytest.mark.parametrize("at", ["append", "sync of the names", "sync of the log"])
def test_a_purge_that_overtakes_an_insert(queue: Queue, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    """The insert is done again, in the new generation."""
    inserter = queue._inserter
    place: tuple[Any, str] = {
        "append": (inserter, "_append_surely"),
        "sync of the names": (queue.store.names, "sync"),
        "sync of the log": (inserter._syncer, "up_to"),
    }[at]
    call, purges = getattr(*place), []

    def purge_then(*args: Any) -> Any:
        result = call(*args) if at == "append" else None
        if not purges and inserter._batch is not None and log_files(queue):
            purges.append(True)
            Queue(queue.path).purge()
        return call(*args) if at != "append" else result

    with monkeypatch.context() as patch:
        if at == "sync of the log":
            patch.setattr(single_inserts._LogSyncer, "up_to", lambda self, *args: purge_then(*args))
        else:
            patch.setattr(*place, purge_then)
        queue.insert("task")
    assert purges
    assert Queue(queue.path).generation == 2
    assert queue.status().waiting == 1
    assert work(Queue(queue.path)) == ["task"]


def test_after_a_purge_between_two_inserts_the_second_goes_into_the_new_generation(queue: Queue) -> None:
    queue.insert("purged")
    Queue(queue.path).purge()
    queue.insert("task")
    assert work(queue) == ["task"]
    assert [name.inserted for name in task_file_names(queue)] == [names.TAKES_INSERTS]


def test_a_holder_that_is_stopped_delays_nobody(queue: Queue) -> None:
    queue.insert("first")
    batch = open_batch(queue)
    ready = threading.Event()

    def hold() -> None:
        with LockedBatch(Queue(queue.path).store, batch):
            os.kill(os.getpid(), signal.SIGSTOP)

    with children((hold,)) as [child]:
        child.wait_stopped()
        clock = ManualClock(time.time())
        queue.store.clock = clock
        for inserter in (queue, Queue(queue.path, clock=clock)):
            began = clock.monotonic()
            elsewhere = inserter.insert("elsewhere")
            assert clock.monotonic() - began < 1
            assert elsewhere.id[:32] != batch
        assert not ready.is_set()
    assert sorted(work(Queue(queue.path))) == ["elsewhere", "elsewhere", "first"]


def test_a_batch_whose_author_died_before_renaming_it_is_sealed_all_the_same(queue: Queue) -> None:
    queue.insert("first")
    batch = open_batch(queue)
    with LockedBatch(Queue(queue.path).store, batch) as locked:
        locked.append_record("seal", locked.replay_state.at, here=locked.log.next_offset(), tasks=1)
    second = queue.insert("second")
    assert second.id[:32] != batch
    assert sorted(work(queue)) == ["first", "second"]


# -- errors ---------------------------------------------------------------------------------------------


def is_log(fd: int) -> bool:
    """Whether a descriptor is that of a movement log."""
    path = os.readlink(f"/proc/self/fd/{fd}")
    return "/movements/" in path and os.path.isfile(path)


class FailOnLogs:
    """Does something else at a step of interest on a movement log, so many times."""

    def __init__(self, step: str, instead: Callable[..., Any], times: int = 1) -> None:
        self.step, self.instead, self.times = step, instead, times
        self.armed = False
        self.met = 0

    def __call__(self, step: str, call: Callable[..., Any], *args: Any) -> Any:
        if not self.armed or step != self.step or self.met == self.times or not is_log(args[0]):
            return call(*args)
        self.met += 1
        return self.instead(call, *args)


def fail(code: int, after: bool = False) -> Callable[..., Any]:
    def instead(call: Callable[..., Any], *args: Any) -> Any:
        if after:
            call(*args)
        raise OSError(code, os.strerror(code))

    return instead


def half(call: Callable[..., Any], fd: int, data: bytes) -> int:
    return call(fd, data[: len(data) // 2])  # type: ignore[no-any-return]


def overwritten(call: Callable[..., Any], fd: int, data: bytes) -> int:
    """A process that has lost its lock writes over what is written here."""
    offset = os.fstat(fd).st_size
    written: int = call(fd, data)
    with open(f"/proc/self/fd/{fd}", "r+b", buffering=0) as file:
        os.pwrite(file.fileno(), b"#" * (len(data) - 1), offset)
    return written


def all_payloads(queue: Queue) -> list[Any]:
    """What a worker gets, when all leases have ended."""
    return work(Queue(queue.path))


ODD_STEPS = pytest.mark.parametrize(
    ("step", "instead", "times"),
    [
        ("write", fail(errno.EIO), 1),
        ("write", fail(errno.EIO, after=True), 1),
        ("write", half, 1),
        ("write", overwritten, 1),
        ("pread", fail(errno.EIO), 2),
        ("try_lock", fail(errno.EIO), 1),
        ("unlock", fail(errno.EIO), 1),
        ("write", fail(errno.ESTALE), 1),
        ("write", fail(errno.ENOSPC), 1),
        ("write", fail(errno.EDQUOT, after=True), 1),
        ("fsync", fail(errno.EIO), 1),
        ("fsync", fail(errno.EIO, after=True), 1),
        ("fsync", fail(errno.ENOSPC), 1),
        ("fsync", fail(errno.EROFS), 1),
        ("write", fail(errno.EIO), 9),
        ("write", half, 9),
        ("write", overwritten, 9),
    ],
)  # fmt: skip


def met_while_inserting(
    inserter: Queue, trap: FailOnLogs, is_first: bool, key: str | None = None
) -> FsqueueError | None:
    """Insert a task while the trap is armed; return the error, if there is one."""
    if not is_first:
        inserter.insert("before", key=key and "before")
    trap.armed = True
    error = raised(FsqueueError, lambda: inserter.insert("task", key=key))
    trap.armed = False
    return error


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
@ODD_STEPS
def test_what_is_raised_says_whether_the_task_is_in_the_queue(
    make: Make, step: str, instead: Callable[..., Any], times: int, is_first: bool, shared: bool
) -> None:
    queue, trap = make(), FailOnLogs(step, instead, times)
    inserter = trapped(queue, trap, shared=shared)
    error = met_while_inserting(inserter, trap, is_first)
    found = all_payloads(queue).count("task")
    if error is None:
        assert found == 1
        return
    assert trap.met
    text = str(error)
    if "unknown whether the task is in the queue" in text:
        assert "Look for it before you insert it again" in text
        assert found in (0, 1)
        return
    assert found == 0, text
    assert "repeat" in text.lower(), text
    inserter.insert("task")
    assert all_payloads(queue) == ["task"]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
@ODD_STEPS
def test_an_insert_with_a_key_that_ends_with_an_error_may_be_repeated(
    make: Make, step: str, instead: Callable[..., Any], times: int, is_first: bool, shared: bool
) -> None:
    queue, trap = make(), FailOnLogs(step, instead, times)
    inserter = trapped(queue, trap, shared=shared)
    error = met_while_inserting(inserter, trap, is_first, "k")
    if error is not None:
        assert trap.met
        assert "Look for it" not in str(error)
        assert "epeat" in str(error)
        if "unknown" in str(error):
            assert str(error).endswith(f"It is unknown whether the task is in the queue. {REPEAT}")
            assert error.advice == REPEAT
    inserter.insert("task", key="k")
    assert all_payloads(queue).count("task") == 1


def unknown(self: SingleInserter, *_: object) -> None:
    """What becomes of the record in a batch that is gone, if the history does not tell."""
    raise single_inserts._Unknown


def test_a_stream_with_keys_that_ends_with_an_error_is_told_once_how_to_go_on(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    trap = FailOnLogs("write", overwritten, 9)
    inserter = trapped(queue, trap, shared=True)
    inserter.insert("x", key="taken")
    monkeypatch.setattr(SingleInserter, "_read_records", unknown)
    trap.armed = True
    error = raised(FsqueueError, lambda: inserter.insert_many([Task("y", key="taken"), Task("task", key="k")]))
    assert error is not None
    assert str(error).endswith(
        "It is unknown whether the task is in the queue. The first task of this call is in the queue (the keys of 1 "
        "were taken), and some of those that came next may be. The call may be repeated: it inserts no task whose key "
        "is taken."
    )


@pytest.mark.parametrize(("step", "instead"), [("write", half), ("fsync", fail(errno.EIO))])
def test_a_stream_of_one_task_is_told_the_same(queue: Queue, step: str, instead: Callable[..., Any]) -> None:
    trap = FailOnLogs(step, instead)
    inserter = trapped(queue, trap)
    assert inserter.insert_many(["before"]) == 1
    assert batches(queue) == ["0+.jsonl"]
    trap.armed = True
    error = raised(FsqueueError, lambda: inserter.insert_many(["task"]))
    assert error is not None
    if step == "write":
        assert "None of the tasks is in the queue: repeat the call" in str(error)
        assert inserter.insert_many(["task"]) == 1
        assert all_payloads(queue) == ["before", "task"]
    else:
        assert "Some of the tasks may be in the queue" in str(error)


# -- several at once (decision 45) ------------------------------------------------------------------------

SEVERAL = list(range(20))


@pytest.mark.parametrize("shared", [False, True])
def test_several_tasks_are_one_append_and_one_sync(make: Make, shared: bool) -> None:
    queue, calls = make(), Counter[str]()

    def count(step: str, call: Callable[..., Any], *args: Any) -> Any:
        calls[step] += step in ("write", "fsync") and is_log(args[0])
        return call(*args)

    inserter = trapped(queue, count, shared=shared)
    inserter.insert("before")
    calls.clear()
    assert inserter.insert_many(SEVERAL) == 20
    assert (calls["write"], calls["fsync"]) == (1, 1)
    assert batches(queue) == ["0+.jsonl"]
    assert records(queue) == ["open"] + ["insert"] * 21
    assert len({info.id for info in queue.tasks()}) == 21
    assert work(queue) == ["before", *SEVERAL]


def test_several_tasks_keep_their_times_priorities_and_order(make: Make) -> None:
    clock = ManualClock()
    queue = Queue(make().path, clock=clock)
    tasks = [Task("late", delay_s=60), Task("c", priority=3), Task("a", priority=1), Task("b", priority="1")]
    assert queue.insert_many([*tasks, "x", b"y", Task("then", available_at=clock.now_s + 90)]) == 7
    assert len(batches(queue)) == 1
    assert work(Queue(queue.path, clock=clock)) == ["b", "a", "c", "x", b"y"]
    clock.advance(60)
    assert work(queue) == ["late"]
    clock.advance(30)
    assert work(queue) == ["then"]


def test_a_batch_without_room_for_all_of_several_tasks_is_sealed(make: Make) -> None:
    queue = make(batch_tasks_max=30)
    for _ in range(3):
        queue.insert_many(SEVERAL)
    assert sorted(batches(queue)) == ["0+.jsonl", "0+20.jsonl", "0+20.jsonl"]
    queue.insert_many(range(10))
    assert sorted(batches(queue)) == ["0+.jsonl", "0+20.jsonl", "0+20.jsonl"], "to the last place"
    assert Counter(work(queue)) == Counter(SEVERAL * 3 + list(range(10)))


def test_a_batch_whose_log_has_no_room_for_several_tasks_is_sealed(queue: Queue) -> None:
    for number in range(5):
        queue.insert_many(f"{number}" + "x" * 60_000 for _ in range(4))
    assert sorted(batches(queue)) == ["0+.jsonl", "0+16.jsonl"]
    assert max(os.path.getsize(path) for path in log_files(queue)) < sealing.LOG_BYTES_MAX
    assert len(work(queue)) == 20


def test_several_tasks_go_into_a_batch_that_a_neighbour_has_begun(make: Make) -> None:
    """A queue whose batches hold few tasks: no more than one batch takes."""
    queue = make(batch_tasks_max=4)
    for count in (4, 3, 10):
        assert queue.insert_many(range(count)) == count
    assert sorted(name.count for name in task_file_names(queue) if name.inserted is None) == [4, 4]
    assert Counter(work(queue)) == Counter([*range(4), *range(3), *range(10)])


def prefix(call: Callable[..., Any], fd: int, data: bytes) -> int:
    """Write half of it, at least one record and a part of the next, and report an error."""
    call(fd, data[: len(data) // 2])
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def hole(call: Callable[..., Any], fd: int, data: bytes) -> int:
    """Lose the beginning of what is written, as a client may that writes page by page."""
    cut = data.index(b"\n", len(data) // 2) + 1
    call(fd, b"\0" * cut + data[cut:])
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize(
    ("step", "instead", "times", "inserted"),
    [
        ("write", fail(errno.EIO), 1, 20),
        ("write", fail(errno.EIO, after=True), 1, 20),
        ("write", prefix, 1, 20),
        ("write", overwritten, 1, 20),
        ("pread", fail(errno.EIO), 2, 20),
        ("try_lock", fail(errno.EIO), 1, None),
        ("unlock", fail(errno.EIO), 1, 20),
        ("write", fail(errno.ESTALE), 1, 20),
        ("write", half, 1, None),
        ("write", fail(errno.ENOSPC), 1, 0),
        ("write", fail(errno.EDQUOT, after=True), 1, 20),
        ("write", hole, 1, None),
        ("fsync", fail(errno.EIO), 1, None),
        ("fsync", fail(errno.EIO, after=True), 1, None),
        ("write", fail(errno.EIO), 9, None),
        ("write", half, 9, None),
        ("write", prefix, 9, None),
        ("write", overwritten, 9, None),
    ],
)
def test_what_is_raised_says_how_many_of_several_tasks_are_in_the_queue(
    make: Make, step: str, instead: Callable[..., Any], times: int, inserted: int | None, is_first: bool, shared: bool
) -> None:
    queue, trap = make(), FailOnLogs(step, instead, times)
    inserter = trapped(queue, trap, shared=shared)
    if not is_first:
        inserter.insert("before")
    trap.armed = True
    refs: list[TaskRef] = []
    error = raised(FsqueueError, lambda: refs.extend(inserter.insert_many(SEVERAL, refs=True)))
    trap.armed = False
    there = [payload for payload in all_payloads(queue) if payload != "before"]
    assert len(set(there)) == len(there), "no task is there twice"
    if error is None:
        assert sorted(there) == SEVERAL
        assert inserted in (20, None)
        found = queue.results_of(refs)
        assert [found[ref.id].payload for ref in refs] == SEVERAL
        return
    assert not refs
    assert trap.met
    assert error.new == error.inserted
    assert error.new is not None
    assert inserted in (None, error.new), str(error)
    assert there[: error.new] == SEVERAL[: error.new]
    if error.is_exact:
        assert len(there) == error.new
        queue.insert_many(SEVERAL[error.new :])
        assert sorted(there + all_payloads(queue)) == SEVERAL
    else:
        assert "may be" in str(error)
    assert str(error).endswith(error.advice)


def test_a_full_disk_tells_how_many_of_several_tasks_have_found_room(queue: Queue) -> None:
    trap = FailOnLogs("write", half)
    inserter = trapped(queue, trap)
    inserter.insert("before")
    trap.armed = True
    error = raised(StorageFull, lambda: inserter.insert_many(SEVERAL))
    assert error is not None
    assert error.new is not None
    assert 5 < error.new < 15
    assert f"The first {error.new} tasks of this call are in the queue. Repeating the whole call would" in str(error)
    assert "may still take" not in str(error), "they were synced"
    assert inserter.insert_many(SEVERAL[error.new :]) == 20 - error.new
    assert all_payloads(queue) == ["before", *SEVERAL]


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("shared", [False, True])
def test_a_process_that_dies_within_an_insert_of_several_leaves_the_first_of_them(
    tmp_path: Path, is_first: bool, shared: bool
) -> None:
    clock, left = ManualClock(), set[int]()

    def build(number: int) -> Queue:
        queue = Queue.create(tmp_path / f"{number}", shards=2)
        if not is_first:
            Queue(queue.path, clock=clock, filesystem=Filesystem(str(queue.path), shared=shared)).insert("before")
        return queue

    for where, made in crashes(build, lambda q: q.insert_many(SEVERAL), clock, shared):
        queue = Queue(made.path, clock=clock)
        there = [info.payload for info in queue.tasks() if info.payload != "before"]
        assert there == SEVERAL[: len(there)], where
        left.add(len(there))
        assert queue.insert_many(["x", "y"]) == 2, where
        assert set(drain(queue, clock).values()) == {1}, where
        status = queue.status()
        assert status.completed == len(there) + 2 + (not is_first), where
        clock.advance(LINGER_S)
        queue.gc()
        assert queue.lease() == []
        assert list(queue.fsck()) == [], where
    assert {0, 20} < left, "one of them dies within the write"


def test_a_purge_in_the_middle_takes_all_of_several_tasks_along_and_they_are_inserted_again(queue: Queue) -> None:
    for step in ("write", "fsync"):
        purged: list[int] = []

        def purge_then(at: str, call: Callable[..., Any], *args: Any, step: str = step, purged: Any = purged) -> Any:
            done = call(*args)
            if at == step and is_log(args[0]) and not purged:
                purged.append(1)
                Queue(queue.path).purge()
            return done

        refs = trapped(queue, purge_then).insert_many(SEVERAL, refs=True)
        assert purged
        found = queue.results_of(refs)
        assert [found[ref.id].payload for ref in refs] == SEVERAL
        assert sorted(all_payloads(queue)) == SEVERAL


@pytest.mark.parametrize("shared", [False, True])
def test_a_purge_behind_a_full_disk_takes_along_what_had_found_room(make: Make, shared: bool) -> None:
    queue, done = make(), list[str]()

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step == "write" and done == ["armed"] and is_log(args[0]):
            done.append(step)
            return half(call, *args)
        if step == "fsync" and done == ["armed", "write"] and is_log(args[0]):
            done.append(step)
            Queue(queue.path).purge()
        return call(*args)

    inserter = trapped(queue, trap, shared=shared)
    inserter.insert("before")
    done.append("armed")
    error = raised(StorageFull, lambda: inserter.insert_many(SEVERAL))
    assert error is not None
    assert done == ["armed", "write", "fsync"]
    assert "None of the tasks is in the queue: repeat the call" in str(error)
    assert (error.new, error.is_exact, all_payloads(queue)) == (0, True, [])


@pytest.mark.parametrize("shared", [False, True])
def test_a_full_disk_is_told_as_such_and_a_repeat_makes_no_duplicate(make: Make, shared: bool) -> None:
    queue = make()
    trap = FailOnLogs("write", half, 1)
    inserter = trapped(queue, trap, shared=shared)
    inserter.insert("before")
    trap.armed = True
    error = raised(StorageFull, lambda: inserter.insert("task"))
    assert error is not None
    assert "may be repeated" in str(error)
    inserter.insert("task")
    assert all_payloads(queue) == ["before", "task"]


def test_a_lost_lock_in_the_middle_of_an_append_is_mended_by_the_same_record_in_the_same_log(queue: Queue) -> None:
    trap = FailOnLogs("write", overwritten)
    inserter = trapped(queue, trap)
    first = inserter.insert("first")
    trap.armed = True
    second = inserter.insert("second")
    assert trap.met == 1
    assert second.id == f"{first.id[:32]}.1"
    assert all_payloads(queue) == ["first", "second"]


def test_on_a_shared_mount_a_batch_in_which_an_insert_was_uncertain_is_sealed(queue: Queue) -> None:
    """The sync of the seal is that of the insert."""
    trap = FailOnLogs("fsync", fail(errno.EIO))
    inserter = trapped(queue, trap, shared=True)
    inserter.insert("first")
    trap.armed = True
    inserter.insert("second")
    assert records(queue)[-1] == "seal"
    inserter.insert("third")
    assert sorted(batches(queue)) == ["0+.jsonl", "0+2.jsonl"]
    assert sorted(all_payloads(queue)) == ["first", "second", "third"]


@pytest.mark.parametrize("is_first", [False, True])
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("code", sorted(LOST))
@pytest.mark.parametrize("step", ["try_lock", "pread", "write"])
def test_a_log_that_another_client_has_removed_or_whose_lock_is_lost_is_left(
    queue: Queue, step: str, code: int, times: int, is_first: bool
) -> None:
    """As NFS reports it: the file is stale, the lock is not known any more."""
    trap = FailOnLogs(step, fail(code), times)
    inserter = trapped(queue, trap, shared=True)
    if not is_first:
        inserter.insert("before")
    trap.armed = True
    error = raised(StorageError, lambda: inserter.insert("task"))
    assert trap.met == times
    if times == 2 and error is not None:  # a broken disk gives such errors every time
        assert "Repeat" in str(error)
        assert "unknown" not in str(error)
        inserter.insert("task")
    else:
        assert error is None
    assert all_payloads(queue).count("task") == 1


@pytest.mark.parametrize("is_held", ["by the inserter's error", "by a stopped process"])
def test_while_it_is_unknown_whether_a_task_is_in_a_log_it_goes_nowhere_else(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, is_held: str
) -> None:
    """A write that was reported as failed on a network mount may land later: the same record elsewhere were a second
    task.
    """
    monkeypatch.setattr(journals, "LOCK_TIMEOUT_S", 0.1)
    held: list[int] = []

    def fail_and_let_another_in(call: Callable[..., Any], fd: int, data: bytes) -> int:
        held.append(fd)
        raise OSError(errno.EIO, "Input/output error")

    class Busy(FailOnLogs):
        """Once the write has failed, the log is locked by another process: at once, or after the look at it."""

        def __call__(self, step: str, call: Callable[..., Any], *args: Any) -> Any:
            if held and step == "try_lock" and is_log(args[0]):
                held.append(args[0])
                if is_held == "by a stopped process" or len(held) > 2:
                    return False
            return super().__call__(step, call, *args)

    trap = Busy("write", fail_and_let_another_in)
    inserter = trapped(queue, trap, shared=True)
    inserter.insert("first")
    trap.armed = True
    error = raised(FsqueueError, lambda: inserter.insert("second"))
    assert error is not None
    assert "unknown whether" in str(error)
    assert batches(queue) == ["0+.jsonl"]


@pytest.mark.parametrize("is_kept", [True, False])
@pytest.mark.parametrize("is_in", [True, False])
def test_an_uncertain_insert_into_a_batch_that_is_gone_is_looked_up_in_the_history(
    make: Make, is_kept: bool, is_in: bool
) -> None:
    queue = make(keep_history=is_kept)

    def finish_meanwhile(call: Callable[..., Any], fd: int, data: bytes) -> int:
        if is_in:
            call(fd, data)
        other.store.fs.unlock(fd)
        assert work(other) == ["first", "second"][: 1 + is_in]
        clock.advance(LINGER_S)
        assert other.lease() == []
        raise OSError(errno.EIO, "Input/output error")

    clock = ManualClock()
    trap = FailOnLogs("write", finish_meanwhile)
    fs = Trapped(str(queue.path), trap)
    inserter, other = Queue(queue.path, filesystem=fs, clock=clock), Queue(queue.path, clock=clock)
    inserter.insert("first")
    trap.armed = True
    error = raised(FsqueueError, lambda: inserter.insert("second"))
    trap.armed = False
    assert trap.met == 1
    if not is_kept:
        assert error is not None
        assert "unknown whether" in str(error)
    else:
        assert error is None
        assert queue.status().inserted == 2, "once"
        assert work(inserter) == ([] if is_in else ["second"])


@pytest.mark.parametrize(("key", "says"), [(None, LOOK_FIRST), ("k", REPEAT)])
@pytest.mark.parametrize("step", ["look", "pread", "fsync"])
def test_an_error_after_the_append_does_not_invite_to_insert_it_twice(
    queue: Queue, step: str, key: str | None, says: str
) -> None:
    """Whether the queue was purged meanwhile, or whether its format is durable, could not be found out."""
    settings = queue.path / "queue.jsonl"
    is_appended = False

    def trap(step_now: str, call: Callable[..., Any], *args: Any) -> Any:
        nonlocal is_appended
        path = args[0] if isinstance(args[0], str) else os.readlink(f"/proc/self/fd/{args[0]}")
        if is_appended and step_now == step and path.endswith("/queue.jsonl"):
            raise OSError(errno.EIO, "Input/output error")
        if step_now == "write" and "/movements/" in path and not is_appended:
            is_appended = True
            with settings.open("ab") as file:  # as a purge does, or the first task with a priority
                file.write(layout.generation_record(2, 1) if step == "fsync" else layout.ordered_record(1))
        return call(*args)

    inserter = trapped(queue, trap)
    error = raised(FsqueueError, lambda: inserter.insert("task", key=key))
    if step == "fsync":
        assert "The task is in the queue: do not insert it again. A power loss" in str(error)
    else:
        assert str(error).endswith(f"It is unknown whether the task is in the queue. {says}")


def test_after_a_sync_that_failed_the_process_takes_another_batch(queue: Queue) -> None:
    """A second sync of the same file may succeed although the pages of the first were dropped."""
    trap = FailOnLogs("fsync", fail(errno.EIO))
    inserter = trapped(queue, trap)
    first = inserter.insert("first")
    trap.armed = True
    error = raised(StorageError, lambda: inserter.insert("second"))
    assert error is not None
    assert "unknown whether the task is in the queue" in str(error)
    third = inserter.insert("third")
    assert third.id[:32] != first.id[:32]


def test_a_task_is_never_leased_half(queue: Queue) -> None:
    """Whatever is written of an `insert`, but for all of it, is no task."""
    queue.insert("first")
    [path] = log_files(queue)
    whole = path.read_bytes()
    record = record_lines.insert(queue.store.clock.now_ms(), "f" * 16, 1, b'{"payload":"second"}\n')
    for length in range(len(record)):
        path.write_bytes(whole + record[:length])
        assert Queue(queue.path).status().waiting == 1
    with Queue(queue.path) as other:
        other.insert("third")
    assert all_payloads(queue) == ["first", "third"]


# -- threads, forks, descriptors --------------------------------------------------------------------


def test_threads_that_insert_at_once_share_syncs(queue: Queue) -> None:
    syncs: list[str] = []
    begun = threading.Event()

    class Slow:
        armed = False

        def __call__(self, step: str, call: Callable[..., Any], *args: Any) -> Any:
            if self.armed and step == "fsync" and is_log(args[0]):
                syncs.append("log")
                begun.set()
                if len(syncs) == 1:
                    log = Path(os.readlink(f"/proc/self/fd/{args[0]}"))
                    until(lambda: log.read_bytes().count(b'"op":"insert"') == 17, "the inserts of all threads")
            return call(*args)

    trap = Slow()
    inserter = trapped(queue, trap)
    inserter.insert("first")
    trap.armed = True
    workers = [threading.Thread(target=inserter.insert, args=(number,)) for number in range(16)]
    workers[0].start()
    assert begun.wait(PATIENCE_S)
    for thread in workers[1:]:
        thread.start()
    for thread in workers:
        thread.join()
    assert len(syncs) == 2, "one for the first, and one for those that came meanwhile"
    assert sorted(map(str, all_payloads(queue))) == sorted(map(str, ["first", *range(16)]))


@pytest.mark.parametrize("durability", ["default", "none", "strict"])
def test_a_sync_covers_each_insert_before_it_is_reported(make: Make, durability: str) -> None:
    queue = make(durability=durability)
    synced: dict[str, int] = {}

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        result = call(*args)
        if step == "fsync":
            path = os.readlink(f"/proc/self/fd/{args[0]}")
            synced[path] = os.fstat(args[0]).st_size
        return result

    inserter = trapped(queue, trap)
    for number in range(3):
        inserter.insert(number)
        [log] = log_files(queue)
        if durability == "none":
            assert synced == {}
        else:
            assert synced[str(log)] == log.stat().st_size
            [file] = (base_of(queue) / "queue").glob("*/*")
            assert {str(log.parent), str(file.parent), str(base_of(queue)), str(queue.path)} <= synced.keys()
        if number == 0:
            first = len(synced)
    assert len(synced) == first, "names are synced once"


def test_after_a_fork_both_go_on(queue: Queue) -> None:
    queue.insert("before")
    with children((lambda: [queue.insert(f"child {number}").id for number in range(3)],)) as [child]:
        ids = [queue.insert(f"parent {number}").id for number in range(3)]
        ids += child.result()
    assert len(set(ids)) == 6
    assert len(all_payloads(queue)) == 7
    assert len(batches(queue)) == 1


class HeldSync:
    """Stands still in the first sync of a log after it was `armed`, until `go_on`."""

    def __init__(self) -> None:
        self.armed = False
        self.inside, self.go_on = threading.Event(), threading.Event()

    def __call__(self, step: str, call: Callable[..., Any], *args: Any) -> Any:
        if self.armed and step == "fsync" and is_log(args[0]):
            self.armed = False
            self.inside.set()
            self.go_on.wait(PATIENCE_S)
        return call(*args)


def test_a_fork_while_a_thread_syncs_does_not_block_the_child(queue: Queue) -> None:
    """The child has no thread that could give back what that thread had taken."""
    trap = HeldSync()
    inserter = trapped(queue, trap)
    inserter.insert("before")
    trap.armed = True
    thread = threading.Thread(target=inserter.insert, args=("parent",))
    thread.start()
    assert trap.inside.wait(PATIENCE_S)
    try:
        with children((lambda: inserter.insert("child").id,)) as [child]:
            assert child.result()
    finally:
        trap.go_on.set()
        thread.join()
    assert sorted(all_payloads(queue)) == ["before", "child", "parent"]


def test_a_fork_while_a_thread_makes_a_batch_does_not_block_the_child(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, go_on = threading.Event(), threading.Event()
    made = queue._inserter._make_batch

    def wait(rank: Rank) -> Batch:
        inside.set()
        if threading.current_thread() is thread:
            go_on.wait(PATIENCE_S)
        return made(rank)

    monkeypatch.setattr(queue._inserter, "_make_batch", wait)
    thread = threading.Thread(target=queue.insert, args=("parent",))
    thread.start()
    assert inside.wait(PATIENCE_S)
    try:
        with children((lambda: queue.insert("child").id,)) as [child]:
            assert child.result()
    finally:
        go_on.set()
        thread.join()
    assert sorted(all_payloads(queue)) == ["child", "parent"]


def open_below(path: Path) -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass
    return sorted(one for one in found if one.startswith(str(path)))


@pytest.mark.parametrize("is_leased", [False, True])
def test_descriptors_are_closed_with_the_queue(make: Make, is_leased: bool) -> None:
    path = make().path
    queue = Queue(path)
    queue.insert("task")
    if is_leased:
        assert len(queue.lease()) == 1
    assert open_below(path)
    queue.close()
    assert open_below(path) == []
    queue.insert("and again")
    queue.close()
    assert open_below(path) == []


@pytest.mark.parametrize("is_leased", [False, True])
def test_descriptors_of_a_queue_that_is_let_go_of_are_closed_at_once(make: Make, is_leased: bool) -> None:
    path = make().path
    gc.collect()
    gc.disable()
    try:
        queue = Queue(path)
        queue.insert("task")
        if is_leased:
            assert len(queue.lease()) == 1
        del queue
        assert open_below(path) == []
    finally:
        gc.enable()


def test_a_thousand_batches_leave_two_descriptors(make: Make) -> None:
    """One of the log, and one that syncs it."""
    queue = make(batch_tasks_max=2)
    counts = set()
    for number in range(40):
        queue.insert(number)
        counts.add(len([path for path in open_below(queue.path) if path.endswith(".jsonl") and "/movements/" in path]))
    assert max(counts) <= 22
    queue.close()
    assert open_below(queue.path) == []


def test_a_close_by_another_thread_does_not_disturb_a_sync(queue: Queue) -> None:
    """Else the number of the descriptor may be another file's by then, and the insert counts as unknown."""
    trap = HeldSync()
    inserter = trapped(queue, trap)
    inserter.insert("before")
    trap.armed = True
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(raised(FsqueueError, lambda: inserter.insert("task"))))
    thread.start()
    assert trap.inside.wait(PATIENCE_S)
    try:
        in_time(inserter.close)
    finally:
        trap.go_on.set()
    thread.join()
    assert results == [None]
    assert sorted(all_payloads(queue)) == ["before", "task"]


# -- dead letters, and the doorbell -----------------------------------------------------------------


@pytest.mark.parametrize("is_file_there", [True, False])
def test_dead_letters_have_their_payload_even_without_the_task_file(make: Make, is_file_there: bool) -> None:
    queue = make(max_attempts=1)
    queue.insert("first")
    queue.insert(b"second")
    tasks = queue.lease(2)
    if not is_file_there:
        os.unlink(queue.store.layout.task_file(names.open_batch_file(Batch(tasks[0].batch))))
    tasks[0].bury("no")
    tasks[1].fail("no")
    letters = {letter.id: letter.payload for letter in Queue(queue.path).dead()}
    assert letters == {tasks[0].id: "first", tasks[1].id: b"second"}


def test_tasks_whose_file_is_gone_are_buried_with_their_payloads(queue: Queue) -> None:
    queue.insert("first")
    queue.insert("second")
    os.unlink(queue.store.layout.task_file(names.open_batch_file(open_batch(queue))))
    other = Queue(queue.path)
    other.gc()
    assert sorted(letter.payload for letter in other.dead()) == ["first", "second"]
    queue.insert("third")
    assert work(queue) == ["third"]


def test_a_process_notifies_once_in_a_while(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = ManualClock()
    queue = Queue(make().path, clock=clock)
    rings: list[float] = []
    monkeypatch.setattr(queue.store.doorbell, "ring", lambda: rings.append(clock.now_s))
    began = clock.now_s
    for _ in range(10):
        queue.insert(1)
        clock.advance(QUIET_S / 4)
    assert [round((at - began) / QUIET_S, 2) for at in rings] == [0, 1, 2]


def test_a_worker_looks_again_for_what_was_inserted_without_a_notification(make: Make) -> None:
    from fsqueue.protocol.waiting import IdlePoller

    clock = ManualClock()
    path = make().path
    inserter, worker = Queue(path, clock=clock), Queue(path, clock=clock)
    poller = IdlePoller(worker._leaser, 60_000)
    assert poller.look(9) == []
    inserter.insert("first")
    assert [task.payload for task in poller.look(9)] == ["first"]
    assert poller.look(9) == []
    inserter.insert("second")
    assert poller.due_s() <= 1.3 * QUIET_S
    clock.advance(max(0.0, poller.due_s()))
    assert [task.payload for task in poller.look(9)] == ["second"]


@pytest.mark.parametrize("kind", ["link", "pipe", "directory", "garbage"])
@pytest.mark.parametrize("place", ["task file", "log"])
def test_what_is_planted_in_place_of_an_open_batch_is_passed_by(
    queue: Queue, tmp_path: Path, kind: str, place: str
) -> None:
    """Else a member of the group could keep the others from inserting."""
    queue.insert("first").id  # noqa: B018
    [name] = task_file_names(queue)
    later = names.open_batch_file(Batch(f"f{name.batch[1:]}"))  # of the same shard, and tried before
    layout_of = queue.store.layout
    files = {"task file": Path(layout_of.task_file(later)), "log": Path(layout_of.log(later.batch))}
    outside = tmp_path / "outside"
    outside.write_text("mine")
    files["task file"].write_bytes(task_file.encode_open_batch(queue.store.domain))
    files[place].unlink(missing_ok=True)
    match kind:
        case "link":
            files[place].symlink_to(outside)
        case "pipe":
            os.mkfifo(files[place])
        case "directory":
            files[place].mkdir()
        case "garbage":
            files[place].write_bytes(b"\0garbage\n" * 3)
    other = Queue(queue.path)
    assert other.insert("second").id
    assert outside.read_text() == "mine"
    if place == "log" and kind != "garbage":  # an insert passes it by; a look says what may be hidden
        with pytest.raises(QueueFileLost, match=re.escape(str(files[place]))):
            list(queue.tasks())
        files[place].rmdir() if kind == "directory" else files[place].unlink()
    assert {info.payload for info in queue.tasks()} == {"first", "second"}


def test_a_directory_that_went_with_a_purge_does_not_hinder_an_insert(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.insert("first")
    other = Queue(queue.path)
    fails = [OSError(errno.ESTALE, "Stale file handle")]
    real = other.store.fs.names

    def names_once(directory: str) -> list[str]:
        if fails and "/queue/" in directory:
            raise fails.pop()
        return real(directory)

    monkeypatch.setattr(other.store.fs, "names", names_once)
    other.insert("second")
    assert not fails
    assert {info.payload for info in queue.tasks()} == {"first", "second"}


def test_a_clock_that_is_set_back_while_a_log_is_begun(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the correction of the time would stand before the record that begins the log."""
    clock = ManualClock()
    queue = Queue(make().path, clock=clock)
    real = transitions.opening

    def opening_and_step(*args: Any) -> bytes:
        record = real(*args)
        clock.now_s -= 86_400
        return record

    monkeypatch.setattr(transitions, "opening", opening_and_step)
    queue.insert("task")
    [log] = log_files(queue)
    records = [movements.parse(line) for line in log.read_bytes().splitlines()]
    assert [record["op"] for record in records if record] == ["open", "insert"]
    times = [record["at"] for record in records if record]
    assert times == sorted(times)
