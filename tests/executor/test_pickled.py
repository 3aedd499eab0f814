"""Pickled calls: any function and argument; signed, so that nothing runs that this user's programs did not write."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Executor, InvalidArgument, InvalidTask, Queue, TaskFailed, functions, pickled
from fsqueue.filesystem.private_files import PREFIX, DataDirectory, fresh_directory, key_in
from tests.executor import called
from tests.gateways import gateways
from tests.house.source import TOP
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once

LONG = 3 * pickled.INLINE_BYTES_MAX
BUFFER = pickled.BUFFER_BYTES_MIN


@pytest.fixture(autouse=True)
def own_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(pickled.KEY_VARIABLE, str(tmp_path / "keys" / "key"))
    return tmp_path / "keys" / "key"


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue.create(tmp_path / "q", durability="none", max_attempts=3, backoff_s=(0.01, 0.01))


@pytest.fixture
def executor(queue: Queue) -> Iterator[Executor]:
    made = Executor(queue, pickle=True)
    yield made
    made.shutdown(cancel_futures=True)


def step(queue: Queue) -> None:
    """Execute the next call, as a worker that has loaded the module does."""
    [task] = queue.lease(1, wait_s=PATIENCE_S)
    try:
        task.complete(functions.handler(["fsqueue.pickled"])(task.payload))
    except fsqueue.Bury as error:
        task.bury(str(error))


def directories(beside: Queue) -> list[Path]:
    return [*beside.path.parent.glob(f"{PREFIX}*")]


def test_an_own_worker_calls_any_function_with_any_arguments(queue: Queue) -> None:
    factor = 3
    with Executor(queue, workers=2, pickle=True) as executor:
        assert executor.submit(lambda value: value * factor, 5).result(PATIENCE_S) == 15
        assert [*executor.map(lambda one, other: {one, other}, "ab", (1, 2))] == [{"a", 1}, {"b", 2}]
        assert executor.submit(called.Tool().method).result(PATIENCE_S) is None
        assert executor.submit(pow, 2, exp=5).result(PATIENCE_S) == 32
        error = executor.submit(called.raises, "of the function").exception(PATIENCE_S)
        assert isinstance(error, ValueError)
        assert "called.py" in str(error.__cause__), "it has the worker's traceback"
        assert executor.submit(bytes, LONG).result(PATIENCE_S) == bytes(LONG)
        futures = executor.submit_many(len, [bytes(LONG), b"", bytes(BUFFER)])
        assert [future.result(PATIENCE_S) for future in futures] == [LONG, 0, BUFFER]
    assert directories(queue) == []
    assert queue.status().dead == 0


def test_a_buffer_that_several_calls_have_is_written_once_and_goes_with_the_last(
    queue: Queue, executor: Executor
) -> None:
    class Array:
        """What pickles a long buffer apart, as arrays do."""

        def __init__(self, data: Any) -> None:
            self.data = data

        def __reduce_ex__(self, protocol: Any) -> Any:
            import pickle  # noqa: TID251

            return memoryview, (pickle.PickleBuffer(self.data),)

    shared = Array(bytearray(BUFFER))
    futures = [executor.submit(lambda array, at: (array.readonly, array[at]), shared, at) for at in range(3)]
    shared.data[1] = 7
    futures.append(executor.submit(lambda array, at: (array.readonly, array[at]), shared, 1))
    [directory] = directories(queue)
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700
    assert len([*directory.iterdir()]) == 2, "the changed one is another"
    for _ in futures:
        step(queue)
    assert [future.result(PATIENCE_S) for future in futures] == [(True, 0), (True, 0), (True, 0), (True, 7)]
    until(lambda: not directories(queue), "the end of the files")


# -- who may have what run ------------------------------------------------------------------------------------


def test_what_is_not_signed_with_the_key_is_not_unpickled_by_a_worker(
    queue: Queue, executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = tmp_path / "ran"
    future = executor.submit(ran.touch)
    until(lambda: future.ref, "the insert")
    [task] = queue.tasks()
    payload = task.payload
    text, signature = payload["args"]
    other = {**json.loads(text), "id": "another"}
    monkeypatch.setattr(pickled.cloudpickle, "loads", lambda *_, **__: pytest.fail("it was unpickled"))
    unsigned = (
        [text, pickled._signature(b"", "call", text)],
        [text, pickled._signature(pickled.key(True), "result", text)],
    )
    for args in ([json.dumps(other), signature], [text, "0" * 64], [text, "é"], *unsigned):
        with pytest.raises(fsqueue.Bury, match="not signed with the key of this worker's user"):
            functions.handler(["fsqueue.pickled"])({**payload, "args": args})
    assert not ran.exists()


def test_a_result_that_another_has_written_is_not_unpickled_by_the_program(queue: Queue, executor: Executor) -> None:
    futures = [executor.submit(pow, 2, exp) for exp in range(4)]
    until(lambda: all(future.ref for future in futures), "the inserts")
    tasks = queue.lease(4)
    good = [functions.handler(["fsqueue.pickled"])(task.payload) for task in tasks]
    by_place = {future.ref: future for future in futures if future.ref}
    ordered = [by_place[next(ref for ref in by_place if ref.id == task.id)] for task in tasks]
    tasks[0].complete(good[1])
    tasks[1].complete([good[1][0], "0" * 64])
    tasks[2].complete("a text")
    tasks[3].complete(good[3])
    with pytest.raises(TaskFailed, match="belongs to another call"):
        ordered[0].result(PATIENCE_S)
    for future in ordered[1:3]:
        with pytest.raises(TaskFailed, match="not signed with this user's key"):
            future.result(PATIENCE_S)
    assert ordered[3].result(PATIENCE_S) in (1, 2, 4, 8)


def test_files_that_another_has_changed_are_not_unpickled(queue: Queue, executor: Executor) -> None:
    future = executor.submit(len, os.urandom(LONG))
    [directory] = directories(queue)
    [file] = directory.iterdir()
    file.write_bytes(b"changed")
    step(queue)
    with pytest.raises(TaskFailed, match="cannot be read as they were written: ChangedFile"):
        future.result(PATIENCE_S)
    future = executor.submit(os.urandom, LONG)
    [task] = queue.lease(1, wait_s=PATIENCE_S)
    result = functions.handler(["fsqueue.pickled"])(task.payload)
    [directory] = directories(queue)
    [file] = directory.iterdir()
    file.write_bytes(b"changed")
    task.complete(result)
    with pytest.raises(TaskFailed, match="cannot be read as it was written: ChangedFile"):
        future.result(PATIENCE_S)


def test_a_worker_with_another_key_or_none_says_so(
    queue: Queue, executor: Executor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = executor.submit(pow, 2, 3)
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv(pickled.KEY_VARIABLE, str(tmp_path / "other"))
        [task] = queue.lease(1, wait_s=PATIENCE_S)
        with pytest.raises(InvalidArgument, match=r"There is no key for pickled calls.*copy its file to this host"):
            functions.handler(["fsqueue.pickled"])(task.payload)
        assert not (tmp_path / "other").exists(), "a worker makes none"
        key_in(str(tmp_path / "other"), True)
        task.release()
        step(queue)
    with pytest.raises(TaskFailed, match="must have one key"):
        future.result(PATIENCE_S)


def test_a_worker_that_was_not_told_to_load_the_module_runs_nothing_pickled(queue: Queue, executor: Executor) -> None:
    future = executor.submit(pow, 2, 3)
    [task] = queue.lease(1, wait_s=PATIENCE_S)
    with pytest.raises(fsqueue.Bury, match="no function of the call's name") as error:
        functions.handler(["tests.executor.called"])(task.payload)
    task.bury(str(error.value))
    with pytest.raises(TaskFailed, match="no function of the call's name"):
        future.result(PATIENCE_S)


# -- the key --------------------------------------------------------------------------------------------------


def test_the_key_is_made_once_for_this_user_alone(own_key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = pickled.key(True)
    assert len(first) == 64
    assert stat.S_IMODE(own_key.stat().st_mode) == 0o600
    assert stat.S_IMODE(own_key.parent.stat().st_mode) == 0o700
    assert key_in(str(own_key), True) == first
    assert [*own_key.parent.iterdir()] == [own_key]
    monkeypatch.delenv(pickled.KEY_VARIABLE)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nowhere")
    assert pickled.key_file() == "/nowhere/fsqueue/pickle.key"


@pytest.mark.parametrize("fault", ["others read it", "a link", "short", "a directory"])
def test_a_key_that_others_may_know_is_refused(own_key: Path, queue: Queue, fault: str) -> None:
    own_key.parent.mkdir()
    if fault == "others read it":
        own_key.write_text("0" * 64)
        own_key.chmod(0o640)
    elif fault == "a link":
        own_key.symlink_to(queue.path / "queue.jsonl")
    elif fault == "a directory":
        own_key.mkdir(mode=0o700)
    else:
        own_key.write_text("0" * 8)
        own_key.chmod(0o600)
    with pytest.raises(InvalidArgument, match="key for pickled calls"):
        Executor(queue, pickle=True)


def test_files_of_data_are_refused_in_a_directory_that_others_may_enter(tmp_path: Path) -> None:
    data = DataDirectory(fresh_directory(str(tmp_path)))
    data.write("a", [b"1", b"2"])
    assert data.read("a") == b"12"
    with pytest.raises(FileExistsError):
        data.write("a", [b"3"])
    os.chmod(data.path, 0o750)
    for act in (lambda: data.read("a"), lambda: data.write("b", [b""])):
        with pytest.raises(PermissionError):
            act()
    data.remove_all()
    assert Path(data.path).exists(), "what is not private any more is left alone"
    os.chmod(data.path, 0o700)
    data.remove_all()
    assert not Path(data.path).exists()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    Path(data.path).symlink_to(elsewhere)
    with pytest.raises(OSError, match="Not a directory"):
        data.write("a", [b""])
    assert [*elsewhere.iterdir()] == []


# -- what cannot be -------------------------------------------------------------------------------------------


def test_what_cannot_be_pickled_is_said(queue: Queue, executor: Executor) -> None:
    with pytest.raises(InvalidTask, match="cannot be pickled"):
        executor.submit(len, called.lock())
    with pytest.raises(InvalidTask, match="cannot be pickled"):
        executor.submit_many(len, ["a", called.lock()])
    for function, says in (
        (called.lock, "what the call has returned cannot be pickled"),
        (lambda: called.fail(called.Odd(1, 2)), "Odd: 3"),
    ):
        future = executor.submit(function)
        step(queue)
        with pytest.raises(TaskFailed, match=says):
            future.result(PATIENCE_S)
    assert queue.status().inserted == 2


def test_a_module_that_the_worker_lacks_is_said(
    queue: Queue, executor: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = executor.submit(called.same, 1)
    monkeypatch.setitem(sys.modules, "tests.executor.called", None)
    step(queue)
    with pytest.raises(TaskFailed, match="the call cannot be unpickled in this worker: ModuleNotFoundError"):
        future.result(PATIENCE_S)


def test_retry_and_bury_go_through(queue: Queue, tmp_path: Path) -> None:
    with Executor(queue, workers=1, pickle=True) as executor:
        assert executor.submit(called.once_more, str(tmp_path / "once")).result(PATIENCE_S) == "repeated"
        with pytest.raises(TaskFailed, match="never"):
            executor.submit(called.fail, fsqueue.Bury("never")).result(PATIENCE_S)
        with pytest.raises(SystemExit):
            executor.submit(sys.exit, 3).result(PATIENCE_S)


def test_at_a_gateway_long_data_needs_a_directory_that_is_named(tmp_path: Path) -> None:
    group = fsqueue.Group.create(tmp_path / "g")
    group["q"].insert_many([])
    with gateways(tmp_path) as serve:
        remote: Any = fsqueue.connect(f"{serve(group.path)}/q")
        bare = Executor(remote, pickle=True)
        with pytest.raises(InvalidTask, match="files=DIRECTORY"):
            bare.submit(len, bytes(LONG))
        future = bare.submit(os.urandom, LONG)
        step(remote)
        with pytest.raises(TaskFailed, match="files=DIRECTORY"):
            future.result(PATIENCE_S)
        future = bare.submit(pow, 2, 3)
        step(remote)
        assert future.result(PATIENCE_S) == 8
        bare.shutdown()
        executor = Executor(remote, pickle=True, files=tmp_path)
        future = executor.submit(len, bytes(LONG))
        step(remote)
        assert future.result(PATIENCE_S) == LONG
        executor.shutdown()


def test_the_files_of_a_queue_of_a_group_lie_outside_of_the_group(tmp_path: Path) -> None:
    group = fsqueue.Group.create(tmp_path / "above" / "g")
    with Executor(group["q"], pickle=True, workers=1) as executor:
        future = executor.submit(len, bytes(LONG))
        assert len([*(tmp_path / "above").glob(f"{PREFIX}*")]) == 1
        assert future.result(PATIENCE_S) == LONG


def test_what_does_not_go_together_is_refused(queue: Queue, executor: Executor) -> None:
    with pytest.raises(InvalidArgument, match="Say pickle=True"):
        Executor(queue, files="/tmp")
    with pytest.raises(InvalidArgument, match="Pickled calls have no name"):
        executor.submit_many(len, ["a"], name="lengths")


def test_import_fsqueue_and_an_executor_of_json_load_no_pickle() -> None:
    script = "import sys, fsqueue; fsqueue.Executor; print({'cloudpickle', 'fsqueue.pickled'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", script], cwd=TOP, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
