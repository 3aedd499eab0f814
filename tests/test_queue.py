"""A queue as users hold it: opened, shared between threads and processes, closed, used again."""

from __future__ import annotations

import logging
import multiprocessing
import os
import stat
import subprocess
import sys
import threading
from collections import Counter
from multiprocessing import reduction
from pathlib import Path

import pytest

import fsqueue
from fsqueue import (
    Group,
    InvalidArgument,
    LeasedTask,
    LeaseLost,
    NotAQueue,
    Queue,
    QueueNotFound,
    StorageError,
    UnsafeFilesystem,
)
from fsqueue.clock import ManualClock
from fsqueue.errors import FormatTooNew, FormatTooOld
from fsqueue.filesystem import Filesystem
from fsqueue.format.layout import DEFAULTS, FORMAT, Settings
from fsqueue.format.replay import ReplayState
from fsqueue.queue import Queue as QueueClass
from tests.support import QueueFactory, counted, full_state, leftovers, open_below


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_a_queue_is_opened_by_path_or_url(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(queue.path.parent)
    for path in (queue.path, str(queue.path), f"{queue.path}/", f"fq://{queue.path}", "q", Path("q")):
        opened = Queue(path)
        assert opened.path == queue.path
        assert isinstance(opened.path, Path)
        assert str(queue.path) in repr(opened)


def test_what_is_not_there_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(QueueNotFound, match="fsqueue create"):
        Queue(tmp_path / "missing" / "q")
    assert os.listdir(tmp_path) == []


def test_an_empty_directory_is_no_queue_yet(tmp_path: Path) -> None:
    with pytest.raises(QueueNotFound):
        Queue(tmp_path)
    assert os.listdir(tmp_path) == []


def test_something_else_is_no_queue(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "queue.jsonl").write_text("garbage\n")
    for path in (tmp_path / "file", tmp_path / "file" / "below", tmp_path / "broken", tmp_path):
        with pytest.raises(NotAQueue, match=str(path)):
            Queue(path)
    assert (tmp_path / "file").read_text() == "x"
    assert (tmp_path / "broken" / "queue.jsonl").read_text() == "garbage\n"


def test_a_newer_format_is_not_touched(queue: Queue) -> None:
    settings = queue.path / "queue.jsonl"
    settings.write_bytes(settings.read_bytes().replace(b'"format":%d' % FORMAT, b'"format":7'))
    for opened in (lambda: Queue(queue.path), lambda: Queue.create(queue.path, exist_ok=True)):
        with pytest.raises(FormatTooNew, match=r"format 7.*Upgrade"):
            opened()


@pytest.mark.parametrize("number", [1, 2])
def test_a_queue_from_before_the_first_release_is_not_touched(queue: Queue, number: int) -> None:
    settings = queue.path / "queue.jsonl"
    settings.write_bytes(settings.read_bytes().replace(b'"format":%d' % FORMAT, b'"format":%d' % number))
    for opened in (lambda: Queue(queue.path), lambda: Queue.create(queue.path, exist_ok=True)):
        with pytest.raises(FormatTooOld, match=rf"format {number}.*Drain the queue with the fsqueue that made it"):
            opened()


def test_a_queue_that_a_newer_version_raises_while_in_use_stops_this_one(queue: Queue, clock: ManualClock) -> None:
    q = Queue(queue.path, clock=clock)
    q.insert("x")
    with open(queue.path / "queue.jsonl", "ab") as file:
        file.write(b'{"op":"upgrade","at":1,"format":4}\n')
    clock.advance(2)
    with pytest.raises(FormatTooNew):
        q.lease()


@pytest.mark.parametrize("worker", ["", "x" * 201, 7, b"w", "\ud800"])
def test_a_wrong_worker_name_is_refused(queue: Queue, tmp_path: Path, worker: str) -> None:
    with pytest.raises(InvalidArgument, match="worker"):
        Queue(queue.path, worker=worker)
    Group.create(tmp_path / "group")
    with pytest.raises(InvalidArgument, match="worker"):
        Group(tmp_path / "group", worker=worker)


def test_a_worker_s_name_may_have_any_letters(queue: Queue) -> None:
    q = Queue(queue.path, worker='Zoë "w" \\ 1')
    q.insert("x")
    q.lease()
    [info] = q.tasks("leased")
    assert info.worker is not None
    assert info.worker["name"] == 'Zoë "w" \\ 1'
    assert q.release_all(worker='Zoë "w" \\ 1') == 1


def test_a_worker_tells_its_slurm_job(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "77")
    monkeypatch.setenv("SLURM_JOB_ID", "78")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    q = Queue(queue.path)
    q.insert("x")
    q.lease()
    [info] = q.tasks("leased")
    assert info.worker is not None
    assert (info.worker["slurm_job"], info.worker["slurm_index"]) == ("77", "3")


def take(queue: Queue) -> tuple[str, str | None, object]:
    """Lease a task in a process of a pool, from the queue that it was given."""
    [task] = queue.lease()
    return str(queue.path), queue.store.worker_name, task.payload


@pytest.mark.slow
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_process_pool_takes_a_queue_as_an_argument(queue: Queue, method: str) -> None:
    mine = Queue(queue.path, "renderer")
    mine.insert_many(["a", "b"])
    with multiprocessing.get_context(method).Pool(1) as pool:
        found = pool.map(take, [mine, mine])
    assert sorted(found) == [(str(queue.path), "renderer", payload) for payload in ("a", "b")]
    assert queue.status().leased == 2


def test_a_queue_that_is_gone_cannot_be_unpickled(queue: Queue) -> None:
    pickled = reduction.ForkingPickler.dumps(queue)
    queue.delete()
    with pytest.raises(QueueNotFound):
        reduction.ForkingPickler.loads(pickled)


def test_create_has_the_defaults_of_the_settings(tmp_path: Path) -> None:
    assert Queue.create(tmp_path / "defaults").settings == Settings() == DEFAULTS


def test_a_closed_queue_may_be_used_again(queue: Queue, clock: ManualClock) -> None:
    with Queue(queue.path, clock=clock) as q:
        q.insert_many(range(5))
        task, other = q.lease(2)
    held = open_below(queue.path.parent)
    task.complete()
    q.close()
    q.close()
    assert open_below(queue.path.parent) <= held
    other.release()
    assert q.status().as_dict() == {"inserted": 5, "waiting": 4, "delayed": 0, "leased": 0, "completed": 1, "dead": 0}


def test_nothing_stays_open_after_closing(queue: Queue, clock: ManualClock) -> None:
    before = open_below(queue.path.parent)
    with Queue(queue.path, clock=clock) as q:
        q.insert_many(range(300), batch_tasks=1)
        tasks = q.lease(300)
        assert before < open_below(queue.path.parent) < before + 200, "open logs are bounded"
        q.complete(tasks[:150])
        tasks[150].bury("no")
        q.status()
        list(q.dead())
        list(q.tasks("completed"))
        q.gc()
    assert open_below(queue.path.parent) <= before


def test_more_batches_than_may_be_open(queue: Queue, clock: ManualClock) -> None:
    q = Queue(queue.path, clock=clock)
    q.insert_many(range(200), batch_tasks=1)
    tasks = q.lease(200)
    for task in tasks:
        task.renew(50)
    for task in reversed(tasks):
        task.complete()
    assert q.status().completed == counted(q) == 200
    assert leftovers(q) == []


def test_one_object_may_be_used_from_many_threads(queue_factory: QueueFactory) -> None:
    q = queue_factory(shards=4, durability="none")
    q.insert_many(range(300), batch_tasks=10)
    done: list[int] = []
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            while tasks := q.lease(1 + number % 3):
                for task in tasks:
                    done.append(task.payload)
                    task.complete() if task.payload % 2 else q.complete([task])
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert Counter(done) == Counter(range(300))
    assert q.status().as_dict() == {
        "inserted": 300,
        "waiting": 0,
        "delayed": 0,
        "leased": 0,
        "completed": 300,
        "dead": 0,
    }
    assert leftovers(q) == []
    assert counted(q) == 300


def test_a_forked_child_is_somebody_else(queue: Queue) -> None:
    q = queue
    q.insert_many(range(4), batch_tasks=4)
    [task] = q.lease()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            [mine] = q.lease()
            assert mine.token != task.token
            assert mine.lease != task.lease
            mine.complete()
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    task.complete()
    assert q.status().as_dict() == {"inserted": 4, "waiting": 2, "delayed": 0, "leased": 0, "completed": 2, "dead": 0}
    pids = {info.worker["pid"] for info in q.tasks("completed") if info.worker is not None}
    assert len(pids) == 2
    assert {len(q.lease(9)), q.status().leased} == {2}


def test_a_forked_child_draws_other_identifiers(queue: Queue) -> None:
    entropy = queue.store.entropy
    entropy.hex16()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, entropy.hex16().encode())
        os._exit(0)
    os.waitpid(child, 0)
    os.close(writer)
    theirs = os.read(reader, 100).decode()
    os.close(reader)
    assert len(theirs) == 16
    assert theirs != entropy.hex16()


def test_what_is_known_of_a_log_is_what_is_on_disk(queue_factory: QueueFactory, clock: ManualClock) -> None:
    """The quick paths apply their own records without reading them back: a new reader must see the same."""
    q = Queue(queue_factory(shards=1, max_attempts=3, durability="none").path, clock=clock)
    q.insert_many(range(6), batch_tasks=6)
    q.insert_many(range(6, 9), batch_tasks=3)
    held = []
    for step in range(60):
        held += q.lease(1 + step % 3, lease_s=1 + step % 4)
        if step % 3 == 0 and held:
            try:
                held.pop(0).complete()
            except fsqueue.LeaseLost:
                pass
        if step % 4 == 0 and held:
            try:
                held.pop().fail("oops", step % 2)
            except fsqueue.LeaseLost:
                pass
        clock.advance(0.7)
        for log in q.store.logs:
            reader = ReplayState()
            reader.replay(Path(log.path).read_bytes()[: log.end], 0)
            assert full_state(log.replay_state) == full_state(reader), f"step {step}"


def test_a_disk_that_fails_is_a_storage_error(queue: Queue, clock: ManualClock) -> None:
    fs = Filesystem(str(queue.path), shared=False)
    q = Queue(queue.path, filesystem=fs, clock=clock)
    q.insert("x")
    [task] = q.lease()
    write = fs.write

    def failing(fd: int, data: bytes) -> int:
        raise OSError(5, "Input/output error")

    fs.write = failing
    for verb in (task.complete, task.renew, task.release, lambda: task.fail("x"), lambda: q.insert("y")):
        with pytest.raises(StorageError, match="Input/output error"):
            verb()
    fs.write = write
    task.complete()
    assert q.status().completed == 1


def test_a_mount_without_locks_is_refused_by_name(queue: Queue, clock: ManualClock) -> None:
    fs = Filesystem(str(queue.path), shared=False)

    def no_locks(fd: int) -> bool:
        raise OSError(38, "Function not implemented")

    fs.try_lock = no_locks
    q = Queue(queue.path, filesystem=fs, clock=clock)
    Queue(queue.path).insert("x")
    with pytest.raises(UnsafeFilesystem, match="flock"):
        q.lease()


def test_on_a_shared_mount_every_movement_is_synced(queue: Queue, clock: ManualClock) -> None:
    fs = Filesystem(str(queue.path), shared=True)
    synced = [0]
    fsync = fs.fsync
    fs.fsync = lambda fd: (synced.__setitem__(0, synced[0] + 1), fsync(fd))[1]
    q = Queue(queue.path, filesystem=fs, clock=clock)
    q.insert_many(["x", "y"], batch_tasks=2)
    for act in (q.lease, lambda: q.renew([]), lambda: q.lease()[0].complete()):
        before = synced[0]
        act()
        assert synced[0] > before or act is not q.lease
    assert q.status().completed == 1


@pytest.mark.parametrize(("durability", "syncs"), [("none", 0), ("default", 0), ("strict", 2)])
def test_movements_are_synced_as_the_queue_asks_for(
    queue_factory: QueueFactory, clock: ManualClock, durability: str, syncs: int
) -> None:
    path = queue_factory(durability=durability, shards=1).path
    fs = Filesystem(str(path), shared=False)
    q = Queue(path, filesystem=fs, clock=clock)
    q.insert_many(["x", "y"], batch_tasks=2)
    synced: list[bool] = []
    fsync = fs.fsync
    fs.fsync = lambda fd: (synced.append(stat.S_ISDIR(os.fstat(fd).st_mode)), fsync(fd))[1]
    [task] = q.lease()
    task.renew()
    assert synced.count(False) == syncs
    assert any(synced) == (syncs > 0)  # and the log's name, once


def test_importing_fsqueue_brings_only_what_it_needs() -> None:
    code = "import sys; from fsqueue import Queue; print(sorted({name.partition('.')[0] for name in sys.modules}))"
    environment = os.environ | {"PYTHONPATH": str(Path(fsqueue.__file__).parent.parent)}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=environment)
    for name in ("click", "tqdm", "hypothesis", "pyarrow", "pyspark", "asyncio", "ssl", "multiprocessing"):
        assert f"'{name}'" not in done.stdout


def test_public_names_are_there() -> None:
    assert fsqueue.__version__ == "0.1.0"
    for name in fsqueue.__all__:
        assert getattr(fsqueue, name) is not None
    assert QueueClass is Queue


def test_logging_is_silent_by_default(queue: Queue, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        queue.insert_many(range(5))
        queue.complete(queue.lease(5))
        queue.gc()
    assert caplog.records == []


def test_a_lease_for_another_process_is_in_its_name(queue: Queue) -> None:
    queue.insert_many([1, 2])
    holder = {"host": "node7", "pid": 5, "name": "me", "slurm_job": "4711", "slurm_index": "3"}
    [task] = queue.lease(holder=holder)
    [moves] = [queue.history(task.id)]
    assert moves[-1].worker == holder
    [own] = queue.lease()
    assert queue.history(own.id)[-1].worker == queue.store.worker
    assert queue.release_all(job="4711_3") == 1


@pytest.mark.parametrize(
    "holder", [{}, {"name": "me"}, {"host": ""}, {"host": "x", "process": "1"}, {"host": "x", "run": "1"}, "x",
               {"host": "x", "pid": True}, {"host": "x", "pid": -1}, {"host": "x" * 201}, {"host": "a\nb"}, {1: 2}]
)  # fmt: skip
def test_what_is_no_holder_leases_nothing(queue: Queue, holder: object) -> None:
    queue.insert(1)
    with pytest.raises(InvalidArgument, match="holder"):
        queue.lease(holder=holder)  # type: ignore[arg-type]
    assert queue.status().waiting == 1


def test_a_token_is_taken_without_a_look_and_the_verb_tells_whether_it_holds(queue: Queue) -> None:
    queue.insert_many([1, 2])
    first, second = queue.lease(2)
    queue.attach(first.token, verify=False).complete(7)
    assert queue.task(first.id).result == 7
    queue.release(second)
    late = queue.attach(second.token, verify=False)
    with pytest.raises(fsqueue.TaskNotFound, match="not read"):
        print(late.payload)
    with pytest.raises(fsqueue.LeaseLost):
        late.complete()
    with pytest.raises(InvalidArgument, match="not a token"):
        queue.attach("../x@1", verify=False)


@pytest.mark.parametrize(("keeps", "reason"), [(True, "purged"), (False, "it has finished, or was purged")])
def test_a_token_alone_tells_of_a_purge_what_the_history_tells(tmp_path: Path, keeps: bool, reason: str) -> None:
    queue = Queue.create(tmp_path / "q", keep_history=keeps)
    queue.insert(1)
    token = queue.lease()[0].token
    queue.purge()
    for verb in (LeasedTask.complete, LeasedTask.renew, LeasedTask.release):
        with pytest.raises(LeaseLost) as lost:
            verb(queue.attach(token, verify=False))
        assert lost.value.reason == reason
