"""Calls with a name: a program that is killed at any point is begun again, and gets what was done."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Executor, InvalidArgument, InvalidTask, Queue, TaskFailed, TaskNotFound
from fsqueue.format.layout import BATCH_BYTES_MAX
from tests.executor import called
from tests.gateways import gateways
from tests.house.source import TOP
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once

CALLS = 60


@pytest.fixture
def queue(tmp_path: Path) -> Queue:
    return Queue.create(tmp_path / "q", max_attempts=10, backoff_s=(0.01, 0.01))


def results(futures: list[Any]) -> list[Any]:
    return [future.result(PATIENCE_S) for future in futures]


def is_there(pid: int) -> bool:
    """Return whether a process is there, and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_the_same_calls_under_the_same_name_are_inserted_once(queue: Queue) -> None:
    with Executor(queue, workers=2) as executor:
        first = executor.submit_many(called.add, range(10), range(10), name="sweep-1")
        assert results(first) == [2 * one for one in range(10)]
        again = executor.submit_many(called.add, range(10), range(10), name="sweep-1")
        assert results(again) == results(first)
        assert [(future.ref.id, future.ref.inserted) for future in again if future.ref] == [
            (future.ref.id, False) for future in first if future.ref
        ]
        assert all(future.ref and future.ref.inserted for future in first)
        assert results(executor.submit_many(called.add, range(3), [1, 1, 1])) == [1, 2, 3], "without a name: each time"
        assert executor.submit_many(called.add, [], [], name="none") == []
    assert queue.status().completed == 13


@pytest.mark.parametrize("batch_tasks_max", [1, 7, 1024])
@pytest.mark.parametrize("count", [1, 7, 8, 100])
def test_each_call_has_the_id_that_its_place_says(tmp_path: Path, batch_tasks_max: int, count: int) -> None:
    queue = Queue.create(tmp_path / "q", batch_tasks_max=batch_tasks_max, durability="none")
    executor = Executor(queue)
    futures = executor.submit_many(called.same, range(count), name="calls")
    payloads = {task.id: task.payload for task in queue.tasks()}
    assert [payloads[future.ref.id]["args"] for future in futures if future.ref] == [[one] for one in range(count)]
    executor.shutdown(cancel_futures=True)


def test_long_arguments_make_batches_of_one_size_all_the_same(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q", durability="none")
    items = ["a" * size for size in (1, BATCH_BYTES_MAX // 3, 1, 1, BATCH_BYTES_MAX // 3 + 9, 5, 6)]
    executor = Executor(queue)
    futures = executor.submit_many(called.same, items, name="calls")
    payloads = {task.id: task.payload for task in queue.tasks()}
    assert [payloads[future.ref.id]["args"] for future in futures if future.ref] == [[one] for one in items]
    executor.shutdown(cancel_futures=True)


def test_other_calls_under_the_name_are_refused_and_nothing_is_inserted(queue: Queue) -> None:
    queue.insert_many([1, 2], commit="tasks")
    with Executor(queue, workers=1) as executor:
        assert results(executor.submit_many(called.add, [1, 2], [3, 4], name="sum")) == [4, 6]
        with pytest.raises(InvalidArgument, match="other arguments"):
            executor.submit_many(called.add, [1, 2], [3, 5], name="sum")
        with pytest.raises(InvalidArgument, match="another order"):
            executor.submit_many(called.add, [2, 1], [4, 3], name="sum")
        with pytest.raises(InvalidArgument, match="another function"):
            executor.submit_many(called.divide, [1, 2], [3, 4], name="sum")
        with pytest.raises(InvalidArgument, match="2 calls, and here is 1"):
            executor.submit_many(called.add, [1], [3], name="sum")
        with pytest.raises(InvalidArgument, match="and not by submit_many"):
            executor.submit_many(called.add, [1, 2], [3, 4], name="tasks")
        with pytest.raises(InvalidTask):
            executor.submit_many(called.add, [1, b"2"], [3, 4], name="bytes")
        assert results(executor.submit_many(called.add, [1, 2], [3, 4], name="bytes")) == [4, 6], "it was free"
    assert queue.status().inserted == 2 + 2 + 2


def test_a_purge_frees_the_name(queue: Queue) -> None:
    with Executor(queue, workers=1) as executor:
        assert results(executor.submit_many(called.add, [1], [3], name="sum")) == [4]
        queue.purge()
        assert results(executor.submit_many(called.add, [1], [5], name="sum")) == [6]


def test_a_call_whose_history_is_not_kept_any_more_says_so_and_is_not_repeated(queue: Queue) -> None:
    with Executor(queue, workers=1) as executor:
        assert results(executor.submit_many(called.add, [1, 2], [3, 4], name="sum")) == [4, 6]
        queue.wait(PATIENCE_S)
    shutil.rmtree(queue.path / queue.store.layout.directory / "history")
    with Executor(Queue(queue.path), workers=1) as executor:
        for future in executor.submit_many(called.add, [1, 2], [3, 4], name="sum"):
            with pytest.raises(TaskNotFound, match="its history was removed"):
                future.result(PATIENCE_S)
    assert queue.status().inserted == 2


def test_a_call_that_was_given_up_raises_again_and_the_others_have_results(queue: Queue) -> None:
    for _ in range(2):
        with Executor(queue, workers=1) as executor:
            good, bad = executor.submit_many(called.divide, [8, 8], [2, 0], name="part")
            assert good.result(PATIENCE_S) == 4
            assert isinstance(bad.exception(PATIENCE_S), TaskFailed)
    assert queue.status().dead == 1


def test_a_queue_of_a_group_has_names_and_a_gateway_has_none(tmp_path: Path) -> None:
    group = fsqueue.Group.create(tmp_path / "g")
    with Executor(group["q"], workers=1) as executor:
        assert results(executor.submit_many(called.add, [1], [3], name="sum")) == [4]
    with gateways(tmp_path) as serve:
        executor = Executor(fsqueue.connect(f"{serve(group.path)}/q"))
        with pytest.raises(InvalidArgument, match="no name at a gateway"):
            executor.submit_many(called.add, [1], [3], name="sum")
        executor.shutdown()


# -- a driver that is killed ----------------------------------------------------------------------------------

DRIVER = """
import os, signal, sys
import fsqueue
from fsqueue.commit import Commit
from fsqueue.storage import commits
from tests.executor import called

path, notes, at, count = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])

def dies(*args, **kwargs):
    os.kill(os.getpid(), signal.SIGKILL)

if at == "the staging":
    import fsqueue.commit
    fsqueue.commit._Stager._finish_part = dies
elif at == "the decision":
    commits.decide = dies
elif at == "the publishing":
    commits.apply = dies

executor = fsqueue.Executor(path, workers=1)
if at == "a published batch":
    publish = Commit.publish
    def then_dies(*args, **kwargs):
        publish(*args, **kwargs)
        dies()
    Commit.publish = then_dies
futures = executor.submit_many(called.note, [notes] * count, range(count), name="sweep-1")
if at == "the insert":
    dies()
for future in futures[: count // 2]:
    future.result()
print(executor._calls._worker.pid, flush=True)
dies()
"""
POINTS = ["the staging", "the decision", "the publishing", "a published batch", "the insert", "half of the results"]


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    (tmp_path / "notes").mkdir()
    return tmp_path / "notes"


@pytest.mark.parametrize("at", POINTS)
def test_a_driver_that_was_killed_is_begun_again_and_gets_what_was_done(queue: Queue, notes: Path, at: str) -> None:
    died = subprocess.run(
        [sys.executable, "-c", DRIVER, str(queue.path), str(notes), at, str(CALLS)],
        cwd=TOP, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert died.returncode == -9, died.stderr
    if at == "half of the results":
        until(lambda: not is_there(int(died.stdout)), "the end of its worker")
    before = queue.status().completed
    assert before >= (CALLS // 2 if at == "half of the results" else 0)
    with Executor(queue, workers=2) as executor:
        futures = executor.submit_many(called.note, [str(notes)] * CALLS, range(CALLS), name="sweep-1")
        assert results(futures) == [one * one for one in range(CALLS)]
    status = queue.status()
    assert (status.completed, status.inserted, status.remaining) == (CALLS, CALLS, 0)
    executed = Counter(int(path.stem) for path in notes.iterdir())
    assert executed.keys() == {*range(CALLS)}
    if at != "half of the results":
        assert max(executed.values()) == 1


def test_two_drivers_that_insert_under_one_name_insert_once(queue: Queue, notes: Path) -> None:
    other = Executor(Queue(queue.path), workers=1)
    with Executor(queue, workers=1) as executor:
        mine = executor.submit_many(called.note, [str(notes)] * CALLS, range(CALLS), name="sweep-1")
        theirs = other.submit_many(called.note, [str(notes)] * CALLS, range(CALLS), name="sweep-1")
        assert results(mine) == results(theirs) == [one * one for one in range(CALLS)]
    other.shutdown()
    assert queue.status().completed == CALLS
    assert len({path.stem for path in notes.iterdir()}) == CALLS
    assert os.listdir(notes)
