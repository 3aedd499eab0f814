"""Executors with workers of their own: real processes, which are killed, as their driver is, or forks."""

from __future__ import annotations

import concurrent.futures as cf
import errno
import functools
import gc
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Executor, ForkedChild, InvalidArgument, Queue, QueueNotFound, TaskFailed, functions
from fsqueue.executor import pending_calls
from fsqueue.executor.mapped_calls import MappedCalls
from fsqueue.storage import listening
from fsqueue.worker import settling, started_worker
from fsqueue.worker.own_worker import EndedTasks
from fsqueue.worker.report import Event
from tests.concurrency.processes import together
from tests.executor import called
from tests.house.source import TOP
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue.create(tmp_path / "q", durability="none", max_attempts=10, backoff_s=(0.01, 0.01))


def own_worker(executor: Executor) -> int:
    worker = executor._calls._worker
    assert worker is not None
    return worker.pid


def is_there(pid: int) -> bool:
    """Return whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_an_own_worker_calls_what_has_a_name_and_nothing_is_left_of_it(queue: Queue, tmp_path: Path) -> None:
    with Executor(str(queue.path), workers=2) as executor:
        assert [*executor.map(math.hypot, range(50), range(50))] == [math.hypot(one, one) for one in range(50)]
        assert [*executor.map(called.kind, [(1, 2), [1], {1: 2}, "a"])] == ["tuple", "list", "dict", "str"]
        assert executor.submit(called.pair, 1).result(PATIENCE_S) == [1, {"of": [1]}]
        assert executor.submit(called.add, 1, other=2).result(PATIENCE_S) == 3
        assert executor.submit(called.once_more, str(tmp_path / "once")).result(PATIENCE_S) == "repeated"
        error = executor.submit(called.raises, "of the function").exception(PATIENCE_S)
        assert isinstance(error, TaskFailed)
        assert "ValueError: of the function" in str(error)
        assert "called.py" in str(error), "it has the traceback of the worker"
        assert "after 1 attempt" in str(error)
        error = executor.submit(called.unkept, 1).exception(PATIENCE_S)
        assert isinstance(error, TaskFailed)
        assert "cannot be kept" in str(error)
        worker, child = own_worker(executor), executor.submit(called.process).result(PATIENCE_S)
        assert worker != child
    until(lambda: not is_there(worker) and not is_there(child), "the end of the worker")


def test_an_executor_that_is_forgotten_at_rest_ends_its_worker(queue: Queue) -> None:
    executor = Executor(queue, workers=1)
    assert executor.submit(abs, -1).result(PATIENCE_S) == 1
    calls, pid = executor._calls, own_worker(executor)
    until(lambda: not calls._told and calls._changed._waiters, "its thread to be at rest")  # type: ignore[attr-defined]
    del executor
    gc.collect()
    until(lambda: not is_there(pid), "the worker to end")


def test_an_executor_without_workers_that_is_forgotten_at_rest_ends_its_thread_soon(queue: Queue) -> None:
    executor = Executor(queue)
    future = executor.submit(called.same, 1)
    until(lambda: future.ref is not None, "the call to be inserted")
    assert future.cancel()
    calls = executor._calls
    assert calls._thread is not None
    until(lambda: not calls._pending and calls._changed._waiters, "its thread to be at rest")  # type: ignore[attr-defined]
    assert calls._due_at() - calls._now() <= pending_calls.FORGOTTEN_S <= 2
    del executor
    gc.collect()
    until(lambda: not calls._thread.is_alive(), "the thread to end")


def test_while_a_worker_of_an_executor_has_nothing_else_to_do_it_reports_each_end_at_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settling, "FLUSH_S", 10 * PATIENCE_S)
    there, told = os.pipe()
    with os.fdopen(there), os.fdopen(told, "wb", buffering=0) as ended:
        worker = fsqueue.Worker(
            queue, called.double, threads=1, until="forever", tell=EndedTasks(ended), report_at_once=True
        )
        thread = threading.Thread(target=worker.run)
        thread.start()
        try:
            for number in range(3):
                assert queue.insert(number).result(PATIENCE_S) == 2 * number
        finally:
            worker.finish()
            thread.join(PATIENCE_S)


def test_an_idle_worker_hears_of_each_call_of_its_executor(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listening, "QUIET_S", 10 * PATIENCE_S)
    with Executor(queue, workers=1) as executor:
        rung = set()
        for number in range(4):
            assert executor.submit(called.double, number).result(PATIENCE_S) == 2 * number
            rung.add(queue.store.doorbell.read())
    assert len(rung) >= 3, "of the first call the worker is started"


def test_a_call_of_a_callback_waits_for_no_other_one(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GATHER_S", "QUIET_S"):
        monkeypatch.setattr(pending_calls, name, 10 * PATIENCE_S)
    second: cf.Future[cf.Future[Any]] = cf.Future()
    with Executor(queue, workers=1) as executor:
        first = executor.submit(called.double, 1)
        first.add_done_callback(lambda ended: second.set_result(executor.submit(called.double, ended.result())))
        assert first.result(PATIENCE_S) == 2
        ended, _ = cf.wait([second.result(PATIENCE_S)], PATIENCE_S)  # unlike `result`, this hurries nothing
        assert [one.result() for one in ended] == [4]


def test_a_payload_calls_nothing_that_the_driver_has_not_named(queue: Queue) -> None:
    with Executor(queue, workers=1) as executor:
        assert executor.submit(called.add, 1, 2).result(PATIENCE_S) == 3
        ref = queue.insert({"call": "os:getpid"})
        with pytest.raises(TaskFailed, match="was given no function of the call's name"):
            ref.result(PATIENCE_S)
        with pytest.raises(TaskFailed, match="is no call of a function"):
            queue.insert({"os": "getpid"}).result(PATIENCE_S)


def test_workers_and_their_children_that_are_killed_lose_no_call_and_double_no_result(
    queue: Queue, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    killed: list[int] = []
    with Executor(queue, workers=2) as executor:
        futures = [executor.submit(called.note, str(notes), number) for number in range(400)]
        coming = cf.as_completed(futures, PATIENCE_S)
        for turn in range(5):
            for _ in range(40):
                next(coming)
            pid = own_worker(executor) if turn % 2 else int(max(notes.iterdir(), key=os.path.getmtime).suffix[1:])
            if is_there(pid):
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
        assert not cf.wait(futures, PATIENCE_S).not_done
        assert [future.result() for future in futures] == [number * number for number in range(400)]
    assert len(killed) >= 3
    executed = Counter(int(path.stem) for path in notes.iterdir())
    assert executed.keys() == {*range(400)}
    assert queue.status().completed == 400


def test_a_call_whose_process_dies_is_repeated(queue: Queue, tmp_path: Path) -> None:
    with Executor(queue, workers=1) as executor:
        assert executor.submit(called.die_once, str(tmp_path / "once")).result(PATIENCE_S) == "lives"


def test_a_call_that_always_kills_its_process_ends_with_an_error_that_says_so(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q", max_attempts=2, backoff_s=(0.01, 0.01))
    with Executor(queue, workers=1) as executor:
        error = executor.submit(os.abort).exception(PATIENCE_S)
        assert isinstance(error, TaskFailed)
        assert "after 2 attempts" in str(error)
        assert "SIGABRT" in str(error)
        assert executor.submit(called.add, 1, 2).result(PATIENCE_S) == 3


def test_an_executor_whose_worker_cannot_live_is_broken(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(started_worker, "python", lambda module: [sys.executable, "-c", "raise SystemExit(3)"])
    with Executor(queue, workers=1) as executor:
        futures = [executor.submit(called.add, 1, number) for number in range(3)]
        for future in futures:
            with pytest.raises(cf.BrokenExecutor, match=r"has ended 3 times in a row, the last time so: .*3"):
                future.result(PATIENCE_S)
        with pytest.raises(cf.BrokenExecutor):
            executor.submit(called.add, 1, 2)
    assert queue.status().remaining == 0


def test_calls_that_are_inserted_while_the_executor_breaks_end_with_its_error(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = Executor(queue, workers=1)
    insert_many = Queue.insert_many

    def broken_meanwhile(self: Queue, payloads: Any, **named: Any) -> Any:
        refs = insert_many(self, payloads, **named)
        executor._calls._break(cf.BrokenExecutor("meanwhile"))
        return refs

    monkeypatch.setattr(Queue, "insert_many", broken_meanwhile)
    results = executor.map(called.add, [1, 2], [1, 1])
    with pytest.raises(cf.BrokenExecutor, match="meanwhile"):
        next(results)
    executor.shutdown()
    assert queue.status().remaining == 0


def test_a_call_that_exits_is_not_repeated(queue: Queue) -> None:
    with Executor(queue, workers=1) as executor:
        error = executor.submit(sys.exit, 3).exception(PATIENCE_S)
    assert isinstance(error, TaskFailed)
    assert "after 1 attempt: SystemExit" in str(error)


def test_a_callback_that_exits_breaks_the_executor_and_leaves_no_future_open(queue: Queue) -> None:
    executor = Executor(queue, workers=1)
    first, waiting = executor.submit(called.add, 1, 2), executor.submit(time.sleep, 10)
    first.add_done_callback(lambda future: sys.exit(4))
    assert first.result(PATIENCE_S) == 3
    assert isinstance(waiting.exception(PATIENCE_S), cf.BrokenExecutor)
    with pytest.raises(cf.BrokenExecutor):
        executor.submit(called.add, 1, 2)
    executor.shutdown(wait=False)


def test_a_module_that_submits_when_it_is_imported_starts_no_chain_of_workers(queue: Queue, tmp_path: Path) -> None:
    """A worker imports it, to find the function; without a guard that would submit once more."""
    (tmp_path / "unguarded.py").write_text(
        f"""import fsqueue
def twice(x):
    return 2 * x
with fsqueue.Executor({str(queue.path)!r}, workers=1) as executor:
    print(executor.submit(twice, 1).exception(), flush=True)
"""
    )
    done = subprocess.run(
        [sys.executable, "-m", "unguarded"], capture_output=True, text=True, cwd=tmp_path, timeout=PATIENCE_S,
        env={**os.environ, "PYTHONPATH": f"{TOP}:{tmp_path}"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Put that below: if __name__ == '__main__':" in done.stdout
    assert queue.status().dead == 1
    assert queue.status().remaining == 0


def test_a_queue_that_is_deleted_ends_the_futures(queue: Queue) -> None:
    with Executor(queue) as executor:
        future = executor.submit(called.same, 1)
        until(lambda: future.ref, "the insert")
        Queue(queue.path).delete()
        with pytest.raises(QueueNotFound):
            future.result(PATIENCE_S)


def test_a_purge_ends_the_futures(queue: Queue) -> None:
    with Executor(queue) as executor:
        future = executor.submit(called.same, 1)
        until(lambda: future.ref, "the insert")
        Queue(queue.path).purge()
        with pytest.raises(fsqueue.TaskNotFound, match="purged"):
            future.result(PATIENCE_S)


# -- the driver -----------------------------------------------------------------------------------------------

DRIVER = """
import sys, fsqueue
from tests.executor import called
executor = fsqueue.Executor(sys.argv[1], workers=int(sys.argv[3]))
futures = [executor.submit(called.wait_for, sys.argv[2]) for _ in range(3)]
if int(sys.argv[3]):
    from pathlib import Path
    from tests.waiting import until
    until(lambda: Path(sys.argv[2] + ".begun").exists(), "the first task")
    print(executor._calls._worker.pid, flush=True)
    sys.stdin.read()
"""


def driver(queue: Queue, file: Path, workers: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(queue.path), str(file), str(workers)],
        cwd=TOP, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


@pytest.fixture
def no_driver_left() -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def test_a_driver_that_is_killed_leaves_its_tasks_and_a_worker_that_ends(
    queue: Queue, tmp_path: Path, no_driver_left: list[subprocess.Popen[str]]
) -> None:
    process, file = driver(queue, tmp_path / "file", 1), tmp_path / "file"
    no_driver_left.append(process)
    assert process.stdout is not None
    worker = int(process.stdout.readline())
    process.kill()
    process.wait()
    assert is_there(worker), "it is at a task"
    file.touch()
    until(lambda: not is_there(worker), "the end of the worker")
    status = queue.status()
    assert status.completed >= 1
    assert status.completed + status.waiting == 3, "what it had not begun is put back"
    with Executor(queue, workers=1) as executor:  # which has the function
        assert executor.submit(called.wait_for, str(file)).result(PATIENCE_S) == "waited"
        queue.wait(PATIENCE_S)
    assert queue.status().completed == 4


@pytest.mark.parametrize("workers", [0, 1])
def test_a_driver_that_ends_without_a_shutdown_does_not_wait(
    queue: Queue, tmp_path: Path, workers: int, no_driver_left: list[subprocess.Popen[str]]
) -> None:
    process, file = driver(queue, tmp_path / "file", workers), tmp_path / "file"
    no_driver_left.append(process)
    assert process.stdin is not None
    assert process.stdout is not None
    worker = int(process.stdout.readline()) if workers else 0
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 0
    assert queue.status().remaining == 3, "what was gathered is inserted"
    file.touch()
    if workers:  # it may have inherited the standard output
        until(lambda: not is_there(worker), "the end of the worker")


def test_a_forked_child_is_told_that_the_calls_are_its_parent_s(queue: Queue) -> None:
    executor = Executor(queue, workers=1)
    told: list[Any] = []
    futures = [executor.submit(called.add, number, 1) for number in range(3)]
    futures[0].add_done_callback(lambda future: told.append(os.getpid()))

    def child() -> int:
        left = 0
        for number, future in enumerate(futures):
            if isinstance(future.exception(PATIENCE_S), ForkedChild):
                left += 1
            else:
                assert future.result(0) == number + 1
        with pytest.raises(ForkedChild):
            executor.submit(called.add, 1, 1)
        executor.shutdown()
        return left

    assert together((child,)) == [3], "the worker has not begun so soon"
    assert [future.result(PATIENCE_S) for future in futures] == [1, 2, 3]
    assert executor.submit(called.add, 5, 1).result(PATIENCE_S) == 6
    worker = own_worker(executor)
    executor.shutdown()
    assert not is_there(worker)
    assert told == [os.getpid()]


def test_a_forked_child_has_no_results_of_a_map(queue: Queue) -> None:
    with Executor(queue, workers=1) as executor:
        results = executor.map(called.add, [1, 2], [1, 1])

        def child() -> bool:
            with pytest.raises(ForkedChild):
                print([*results])
            return True

        assert together((child,)) == [True]
        assert [*results] == [2, 3]


def test_each_call_has_its_turn_to_be_looked_at_if_the_worker_tells_of_none(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_calls, "IN_TURN_MAX", 7)
    monkeypatch.setattr(pending_calls, "LOOK_S", (0.001, 0.001))
    monkeypatch.setattr(pending_calls.PendingCalls, "_tell", lambda self, ids: None)
    with Executor(queue, workers=2) as executor:
        assert [*executor.map(called.add, range(100), range(100), timeout=PATIENCE_S)] == [*range(0, 200, 2)]
        futures = [executor.submit(called.raises, str(number)) for number in range(20)]
        assert [type(future.exception(PATIENCE_S)) for future in futures] == [TaskFailed] * 20


def test_of_more_calls_than_one_look_is_for_none_is_forgotten_of_which_the_worker_tells(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_calls, "LOOKS_AT_ONCE", 3)
    monkeypatch.setattr(pending_calls, "TOLD_S", 3600.0)
    monkeypatch.setattr(pending_calls, "LOOK_S", (3600.0, 3600.0))
    with Executor(queue, workers=2) as executor:
        assert [*executor.map(called.add, range(200), range(200), timeout=PATIENCE_S)] == [*range(0, 400, 2)]


def test_each_told_task_is_looked_at_however_long_ago_that_was(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The insert of many calls may take longer than the worker takes for the first ones."""
    monkeypatch.setattr(pending_calls, "LOOKS_AT_ONCE", 2)
    executor = Executor(queue)
    calls = pending_calls.PendingCalls(executor, queue, None, lambda: None, lambda: None)
    names = ["a", "b", "c", "d", "e"]
    calls._pending = {name: MappedCalls(1).each[0] for name in names}
    calls._told = {"unknown": 0.0, **dict.fromkeys(names, 0.0)}
    looks = [calls._next_told(now) for now in (0.5, 100.0, 100.0)]
    assert looks == [["a", "b"], ["c", "d"], ["e", "a"]]
    assert calls._next_told(100.0) == ["b"], "it was told of at the time of its first look"
    assert calls._told == {}


def test_what_a_worker_tells_of_together_it_writes_at_once(tmp_path: Path) -> None:
    with open(tmp_path / "ended", "wb", buffering=0) as file:
        tell = EndedTasks(file)
        for kind, task in ("completed", "a.1"), ("failed", "a.2"), ("put-back", "a.3"), ("given-up", "a.4"):
            tell(Event(kind, "", {"task": task}))
        assert not (tmp_path / "ended").read_bytes()
        tell.flush()
        tell.flush()
    assert (tmp_path / "ended").read_bytes() == b"a.1\na.2\na.4\n"


# -- names ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", ["the second pipe", "the process", "the thread"])
def test_a_worker_that_cannot_be_started_leaves_no_process_and_no_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    started: list[subprocess.Popen[bytes]] = []
    start, pipe, pipes = subprocess.Popen, os.pipe, [0]

    def started_process(*args: Any, **kwargs: Any) -> subprocess.Popen[bytes]:
        if step == "the process":
            raise OSError(errno.EAGAIN, "no process")
        started.append(start(*args, **kwargs))
        return started[-1]

    def second_pipe() -> tuple[int, int]:
        pipes[0] += 1
        if step == "the second pipe" and pipes[0] == 2:
            raise OSError(errno.EMFILE, "no descriptor")
        return pipe()

    def no_thread(_: object) -> None:
        raise OSError(errno.EAGAIN, "no thread")

    listed = started_worker.FunctionList()
    names = listed.names
    before = sorted(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as broken:
        broken.setattr(subprocess, "Popen", started_process)
        broken.setattr(os, "pipe", second_pipe)
        if step == "the thread":
            broken.setattr(started_worker.SideThread, "start", no_thread)
        with pytest.raises(OSError, match="no "):
            started_worker.StartedWorker(str(tmp_path), 1, names, lambda _: None)
    assert [worker.returncode is not None for worker in started] == [True] * (step == "the thread")
    assert sorted(os.listdir("/proc/self/fd")) == before
    listed.close()


def test_a_thread_may_submit_while_another_one_imports_functions(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_functions.py").write_text("import tests.executor.called as called\ncalled.at_import()\n")
    monkeypatch.syspath_prepend(tmp_path)
    with Executor(queue, workers=1) as executor:
        found: list[int] = []

        def submit() -> None:
            found.append(executor.submit(called.add, 1, 2).result(PATIENCE_S))

        def from_a_thread() -> None:
            other = threading.Thread(target=submit)
            other.start()
            other.join()

        monkeypatch.setattr(called, "at_import", from_a_thread, raising=False)
        functions.load("slow_functions")
        assert found == [3]


def test_a_function_that_no_worker_can_import_is_refused_with_what_to_do(queue: Queue) -> None:
    def within() -> None: ...

    executor = Executor(queue, workers=1)
    for function, says in (
        (lambda: 1, "Define it with 'def' at the top of a module"),
        (within, "Define it with 'def' at the top of a module"),
        (functools.partial(called.add, 1), "Give the function itself, and its arguments"),
        (called.Tool().method, "Give a function at the top of a module"),
        (called.in_a_loop, "calls asyncio.run"),
        (called.generator, "Let it return a list"),
        (5, "calls functions"),
    ):
        for act in (executor.submit, executor.map):
            with pytest.raises(InvalidArgument, match=says):
                act(function)  # type: ignore[arg-type]
    executor.shutdown()
    assert queue.status().inserted == 0


def test_a_function_of_the_script_is_refused_with_what_to_do(queue: Queue) -> None:
    script = """
import sys, fsqueue
def own(): pass
with fsqueue.Executor(sys.argv[1], workers=1) as executor:
    try:
        executor.submit(own)
    except fsqueue.InvalidArgument as error:
        print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", script, str(queue.path)], capture_output=True, text=True, check=True, cwd=TOP
    )
    assert "which no worker can import. Move it into a module" in done.stdout


def test_without_own_workers_a_function_is_registered(queue: Queue) -> None:
    with Executor(queue) as executor, pytest.raises(InvalidArgument, match=r"--load tests.executor.called.*workers=N"):
        executor.submit(called.kind, 1)


def test_what_an_executor_cannot_have_is_refused(tmp_path: Path) -> None:
    with pytest.raises(QueueNotFound):
        Executor(tmp_path / "none")
    unkept = Queue.create(tmp_path / "unkept", keep_history=False)
    with pytest.raises(InvalidArgument, match="keeps no history"):
        Executor(unkept)
    queue = Queue.create(tmp_path / "q")
    for workers in (-1, "2", 1.5, True):
        with pytest.raises(InvalidArgument, match="workers"):
            Executor(queue, workers=workers)  # type: ignore[arg-type]
