"""What the documentation of `concurrent.futures` says of executors and futures, of ours.

The calls are executed by a thread of the test, as `fsqueue run --load` executes them: when the test says so.
"""

from __future__ import annotations

import concurrent.futures as cf
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Executor, Queue, TaskFailed, functions
from tests.executor.called import add, divide, same
from tests.gateways import gateways
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once


class Working:
    """An executor, and somebody who executes its calls one by one, or all in a thread."""

    def __init__(self, queue: Any, executor: Executor) -> None:
        self.queue, self.executor = queue, executor
        self.call = functions.handler(["tests.executor.called"])

    def lease(self) -> Any:
        """Lease the next call, once it is inserted."""
        [task] = self.queue.lease(1, wait_s=PATIENCE_S)
        return task

    def execute(self, task: Any) -> None:
        """Execute a call."""
        try:
            task.complete(self.call(task.payload))
        except Exception as error:
            task.bury(f"{type(error).__name__}: {error}")

    def step(self) -> None:
        """Execute the next call."""
        self.execute(self.lease())

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Execute all calls, in a thread."""
        ends = threading.Event()

        def work() -> None:
            while not ends.is_set():
                for task in self.queue.lease(5, wait_s=0.02):
                    self.execute(task)

        thread = threading.Thread(target=work)
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join(PATIENCE_S)


@pytest.fixture(params=["queue", "group", "gateway"])
def working(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Working]:
    if request.param == "queue":
        queue: Any = Queue.create(tmp_path / "q")
        with working_on(queue) as found:
            yield found
    elif request.param == "group":
        with working_on(fsqueue.Group.create(tmp_path / "g")["q"]) as found:
            yield found
    else:
        group = fsqueue.Group.create(tmp_path / "g")
        group["q"].insert_many([])
        with gateways(tmp_path) as serve, working_on(fsqueue.connect(f"{serve(group.path)}/q")) as found:
            yield found


@contextmanager
def working_on(queue: Any) -> Iterator[Working]:
    executor = Executor(queue)
    try:
        yield Working(queue, executor)
    finally:
        executor.shutdown(cancel_futures=True)


def in_time(act: Callable[..., Any], *args: Any) -> Any:
    return act(*args, timeout=PATIENCE_S)


# -- executors ------------------------------------------------------------------------------------------------


def test_a_call_that_is_submitted_has_a_future_with_what_it_returns(working: Working) -> None:
    future = working.executor.submit(same, 7, other={"a": [1.5, None]})
    assert isinstance(future, cf.Future)
    with working.at_work():
        assert in_time(future.result) == [7, {"a": [1.5, None]}]
    assert (future.done(), future.running(), future.cancelled(), future.cancel()) == (True, False, False, False)
    assert in_time(future.exception) is None
    assert future.ref is not None
    assert working.queue.result(future.ref.id) == [7, {"a": [1.5, None]}]


def test_a_map_yields_results_in_the_order_of_the_items_and_ends_with_the_shortest(working: Working) -> None:
    with working.at_work():
        assert [*working.executor.map(add, range(40), iter(range(5, 40)))] == [5 + 2 * one for one in range(35)]
        assert [*working.executor.map(same, [])] == []
        assert [*working.executor.map(same, "abc", chunksize=5)] == ["a", "b", "c"]


def test_a_map_reads_its_items_at_once(working: Working) -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for number in range(3):
            read.append(number)
            yield number

    results = working.executor.map(same, items())
    assert read == [0, 1, 2]
    assert working.queue.status().waiting == 3
    with working.at_work():
        assert [*results] == [0, 1, 2]


def test_what_a_call_of_a_map_raises_is_raised_where_its_result_comes(working: Working) -> None:
    results = working.executor.map(divide, [1, 1, 1], [1, 0, 2])
    for _ in range(2):
        working.step()
    assert next(results) == 1.0
    with pytest.raises(TaskFailed, match="division by zero"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)
    until(lambda: working.queue.status().waiting == 0, "the call that has not begun to be cancelled")


def test_a_map_whose_iterator_is_closed_cancels_what_has_not_begun(working: Working) -> None:
    results = working.executor.map(same, [1, 2, 3])
    working.step()
    assert next(results) == 1
    results.close()  # type: ignore[attr-defined]
    until(lambda: working.queue.status().waiting == 0, "the calls to be cancelled")
    assert working.queue.status().completed == 1


def test_a_call_of_a_map_that_is_cancelled_in_the_queue_raises_where_its_result_comes(working: Working) -> None:
    results = working.executor.map(same, [1, 2])
    working.step()
    assert working.queue.cancel([task.id for task in working.queue.tasks("waiting")]) == 1
    assert next(results) == 1
    with pytest.raises(cf.CancelledError):
        next(results)


def test_a_map_raises_timeout_error_when_its_time_is_over(working: Working) -> None:
    results = working.executor.map(same, [1, 2], timeout=0)
    with pytest.raises(TimeoutError):
        next(results)
    until(lambda: working.queue.status().waiting == 0, "the calls to be cancelled")


def test_a_chunk_has_one_item_at_least(working: Working) -> None:
    with pytest.raises(ValueError, match="chunksize must be >= 1"):
        working.executor.map(same, [1], chunksize=0)


def test_after_a_shutdown_no_call_is_taken(working: Working) -> None:
    working.executor.shutdown()
    working.executor.shutdown(wait=False)
    for act in (lambda: working.executor.submit(same, 1), lambda: working.executor.map(same, [1])):
        with pytest.raises(RuntimeError, match="after shutdown"):
            act()
    assert working.queue.status().remaining == 0


def test_a_shutdown_waits_for_all_calls(working: Working) -> None:
    with working.at_work():
        with working.executor as same_one:
            assert same_one is working.executor
            futures = [same_one.submit(same, number) for number in range(20)]
        assert [future.done() for future in futures] == [True] * 20
    assert [future.result() for future in futures] == [*range(20)]


def test_a_shutdown_that_does_not_wait_leaves_the_calls_to_be_done(working: Working) -> None:
    future = working.executor.submit(same, "later")
    working.executor.shutdown(wait=False)
    assert not future.done()
    with working.at_work():
        assert in_time(future.result) == "later"


def test_a_shutdown_may_cancel_what_has_not_begun(working: Working) -> None:
    futures = [working.executor.submit(same, number) for number in range(5)]
    task = working.lease()
    working.executor.shutdown(wait=False, cancel_futures=True)
    done = cf.wait(futures, PATIENCE_S, cf.FIRST_COMPLETED).done
    assert all(future.cancelled() for future in done)
    working.execute(task)
    assert not in_time(cf.wait, futures).not_done
    assert sorted(future.cancelled() for future in futures) == [False, True, True, True, True]
    working.executor.shutdown()
    assert (working.queue.status().completed, working.queue.status().remaining) == (1, 0)


def test_an_executor_that_is_dropped_still_ends_its_calls(working: Working) -> None:
    dropped = Executor(working.queue)
    future = dropped.submit(same, 3)
    del dropped
    with working.at_work():
        assert in_time(future.result) == 3


# -- futures --------------------------------------------------------------------------------------------------


def test_a_call_that_waits_can_be_cancelled(working: Working) -> None:
    calls: list[cf.Future[Any]] = []
    future = working.executor.submit(same, 1)
    future.add_done_callback(calls.append)
    assert future.cancel()
    assert future.cancel()
    assert (future.cancelled(), future.done(), future.running(), calls) == (True, True, False, [future])
    for act in (future.result, future.exception):
        with pytest.raises(cf.CancelledError):
            in_time(act)
    assert cf.wait([future], PATIENCE_S).done == {future}
    assert [*cf.as_completed([future], PATIENCE_S)] == [future]
    working.executor.shutdown()
    assert working.queue.status().remaining == 0


def test_a_call_whose_task_is_in_the_queue_can_be_cancelled(working: Working) -> None:
    future, other = working.executor.submit(same, 1), working.executor.submit(same, 2)
    until(lambda: future.ref, "the insert")
    assert future.cancel()
    assert future.cancelled()
    assert not other.done()
    working.step()
    assert in_time(other.result) == 2
    assert working.queue.status().remaining == 0


def test_a_task_that_is_cancelled_in_the_queue_cancels_its_future(working: Working) -> None:
    future = working.executor.submit(same, 1)
    until(lambda: future.ref, "the insert")
    assert future.ref is not None
    assert future.ref.cancel()
    assert cf.wait([future], PATIENCE_S).done == {future}
    assert future.cancelled()


def test_a_call_that_a_worker_holds_runs_and_cannot_be_cancelled(working: Working) -> None:
    future = working.executor.submit(same, 1)
    assert not future.running()
    task = working.lease()
    until(lambda: future.ref, "the insert")
    assert future.running()
    assert not future.cancel()
    assert (future.cancelled(), future.done()) == (False, False)
    working.execute(task)
    assert in_time(future.result) == 1
    assert not future.running()


def test_what_is_not_there_in_time_is_waited_for_again(working: Working) -> None:
    future = working.executor.submit(same, 1)
    for act in (future.result, future.exception):
        with pytest.raises(TimeoutError):
            act(timeout=0)
        with pytest.raises(cf.TimeoutError):
            act(0)
    assert cf.wait([future], timeout=0) == (set(), {future})
    with pytest.raises(TimeoutError):
        next(iter(cf.as_completed([future], timeout=0)))
    working.step()
    assert in_time(future.result) == 1


def test_what_a_call_raises_its_future_raises(working: Working) -> None:
    future = working.executor.submit(divide, 1, 0)
    working.step()
    error = in_time(future.exception)
    assert isinstance(error, TaskFailed)
    assert "ZeroDivisionError: division by zero" in str(error)
    assert error.task.state == "dead"
    with pytest.raises(TaskFailed, match="given up after 1 attempt"):
        in_time(future.result)


def test_callbacks_are_called_once_in_their_order_and_may_raise(working: Working) -> None:
    told: list[Any] = []

    def bad(future: cf.Future[Any]) -> None:
        told.append("bad")
        raise KeyError("a callback's own")

    future = working.executor.submit(same, 5)
    future.add_done_callback(bad)
    future.add_done_callback(lambda future: told.append(future.result()))
    working.step()
    until(lambda: len(told) == 2, "the callbacks")
    future.add_done_callback(lambda future: told.append("at once"))
    assert told == ["bad", 5, "at once"]


def test_futures_are_waited_for_together_with_others(working: Working) -> None:
    futures = [working.executor.submit(divide, 1, number) for number in (0, 1, 2)]
    with cf.ThreadPoolExecutor(1) as pool:
        other = pool.submit(int, "5")
        found = cf.wait([*futures, other], PATIENCE_S, cf.FIRST_COMPLETED)
        assert other in found.done
        working.step()
        failed = cf.wait(futures, PATIENCE_S, cf.FIRST_EXCEPTION)
        assert [type(future.exception()) for future in failed.done] == [TaskFailed]
        with working.at_work():
            assert cf.wait(futures, PATIENCE_S, cf.ALL_COMPLETED).not_done == set()
            assert {*cf.as_completed([*futures, other], PATIENCE_S)} == {*futures, other}
    assert [future.result() for future in futures[1:]] == [1.0, 0.5]


def test_whoever_waits_for_a_result_has_it_inserted_at_once(working: Working, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fsqueue.executor.pending_calls.GATHER_S", 3600.0)
    monkeypatch.setattr("fsqueue.executor.pending_calls.QUIET_S", 3600.0)
    future = working.executor.submit(same, 1)
    with working.at_work():
        assert in_time(future.result) == 1
        assert in_time(working.executor.submit(same, 2).exception) is None


def test_threads_submit_at_once(working: Working) -> None:
    with working.at_work(), cf.ThreadPoolExecutor(4) as threads:
        futures = [*threads.map(lambda number: working.executor.submit(same, number), range(300))]
        assert [in_time(future.result) for future in futures] == [*range(300)]
    assert working.queue.status().completed == 300


# -- what is refused ------------------------------------------------------------------------------------------


def test_arguments_that_json_cannot_hold_are_refused_and_nothing_is_inserted(working: Working) -> None:
    for args in ((b"bytes",), ({1, 2},), (), (1, 2)):
        with pytest.raises(fsqueue.InvalidTask, match="called:same"):
            working.executor.submit(same, *args)
    with pytest.raises(fsqueue.InvalidTask, match="the argument value is of the type"):
        working.executor.map(same, [1, 2, object()])
    working.executor.shutdown()
    assert working.queue.status().inserted == 0
