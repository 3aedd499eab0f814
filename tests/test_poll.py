"""Poll: the loop of a worker in the same process."""

from __future__ import annotations

import gc
import itertools
import os
import pickle  # noqa: TID251 - references to tasks are sent to other processes
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import pytest

from fsqueue import (
    InvalidArgument,
    InvalidResult,
    LeasedTask,
    LeaseLost,
    Queue,
    ResultNotReady,
    StorageError,
    TaskInfo,
    TaskNotFound,
    TaskRef,
    as_completed,
    poll,
)
from fsqueue.clock import ManualClock
from fsqueue.filesystem import Filesystem
from fsqueue.format.names import parse_task_id
from fsqueue.protocol import finishing
from fsqueue.storage import deadletters, history, queue_file
from fsqueue.storage.store import Store
from fsqueue.views import inspection
from tests.support import QueueFactory, base_of, full_state, in_time, leftovers, log_files
from tests.waiting import until


def test_the_loop_that_finds_the_end_tells_idle_workers_once(q: Queue) -> None:
    q.insert_many(range(2))
    bells = []
    for task in q.poll():
        task.complete()
        bells.append(q.store.doorbell.read())
    assert len(set(bells)) == 1
    bells.append(q.store.doorbell.read())
    assert len(set(bells)) == 2
    assert list(q.poll()) == []  # it had no task
    assert q.store.doorbell.read() == bells[-1]


def test_everything_is_handed_out_once_until_the_queue_is_drained(q: Queue) -> None:
    q.insert_many(range(30), batch_tasks=1)
    found = []
    for task in q.poll():
        with task:
            found.append(task.payload)
    assert sorted(found) == list(range(30))
    assert q.status().completed == 30
    assert leftovers(q) == []


def test_putting_back_what_was_leased_ahead_fails_with_an_error_of_ours(queue: Queue, clock: ManualClock) -> None:
    fs = Filesystem(str(queue.path), shared=False)
    q = Queue(queue.path, filesystem=fs, clock=clock)
    q.insert_many(range(3), batch_tasks=1)
    poll = q.poll(prefetch=3)
    next(poll)

    def broken(fd: int, data: bytes) -> int:
        raise OSError(5, "Input/output error")

    fs.write = broken
    with pytest.raises(StorageError, match="Input/output error"):
        poll.close()


def test_an_empty_queue_ends_the_loop_at_once(q: Queue) -> None:
    assert list(q.poll()) == []


@pytest.mark.parametrize("prefetch", [1, 2, 5])
def test_tasks_leased_ahead_are_handed_out_one_by_one(q: Queue, prefetch: int) -> None:
    q.insert_many(range(12), batch_tasks=12)
    found = []
    for task in q.poll(prefetch=prefetch):
        assert q.status().leased <= max(prefetch, 1)
        with task:
            found.append(task.payload)
    assert sorted(found) == list(range(12))


@pytest.mark.batched
def test_completing_leases_the_next_in_the_same_append(queue: Queue, clock: ManualClock) -> None:
    fs = Filesystem(str(queue.path), shared=False)
    writes: list[bytes] = []
    write = fs.write
    fs.write = lambda fd, data: (writes.append(data), write(fd, data))[1]
    q = Queue(queue.path, filesystem=fs, clock=clock)
    q.insert_many(range(5), batch_tasks=5)
    writes.clear()
    poll = q.poll()
    task = next(poll)
    for _ in range(4):
        task.complete()
        task = next(poll)
    assert len(writes) == 5, "one with the opening, then one a task"
    assert all(data.count(b"\n") == 2 for data in writes)
    task.complete()
    with pytest.raises(StopIteration):
        next(poll)


@pytest.mark.batched
def test_what_was_exchanged_is_what_is_on_disk(q: Queue) -> None:
    q.insert_many(range(5), batch_tasks=5)
    for task in q.poll():
        [log] = q.store.logs
        reader = type(log.replay_state)()
        reader.replay(Path(log.path).read_bytes(), 0)
        assert full_state(log.replay_state) == full_state(reader)
        task.complete()
        if not log_files(q):
            break
    assert q.status().completed == 5


def test_an_exchange_in_a_purged_generation_is_none(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another thread has read that the queue was purged, and has not closed the logs yet."""
    q.insert_many(range(5), batch_tasks=5)
    poll = q.poll()
    task = next(poll)
    monkeypatch.setattr(q.store.logs, "close", lambda: None)
    q.purge()
    [log] = q.store.logs
    before = os.fstat(log.fd).st_size
    with pytest.raises(LeaseLost) as caught:
        task.complete()
    assert caught.value.reason == "purged"
    assert os.fstat(log.fd).st_size == before
    poll.close()


def test_leaving_the_loop_puts_back_what_was_leased_ahead(q: Queue) -> None:
    q.insert_many(range(10), batch_tasks=10)
    for task in q.poll(prefetch=4):
        with task:
            break
    gc.collect()
    assert q.status().as_dict() == {"inserted": 10, "waiting": 9, "delayed": 0, "leased": 0, "completed": 1, "dead": 0}
    assert all(info.attempt == 0 for info in q.tasks())


@pytest.mark.batched
@pytest.mark.parametrize("result", [None, {"y": [1, None]}, "x" * 5_000])
def test_a_completion_leases_the_next_task_in_the_same_append(
    q: Queue, monkeypatch: pytest.MonkeyPatch, result: Any
) -> None:
    q.insert_many(range(5), batch_tasks=5)
    appended: list[bytes] = []
    write = q.store.fs.write
    monkeypatch.setattr(q.store.fs, "write", lambda fd, data: appended.append(bytes(data)) or write(fd, data))
    poll = iter(q.poll())
    first = next(poll)
    appended.clear()
    first.complete(result)
    second = next(poll)
    [both] = appended
    completion, lease, end = both.split(b"\n")
    assert (orjson.loads(completion)["op"], orjson.loads(lease)["op"], end) == ("complete", "lease", b"")
    [log] = log_files(q)
    assert second.version == log.stat().st_size - len(lease) - 1
    assert (q.task(first.id).state, q.task(first.id).result) == ("completed", result)
    assert Queue(q.path).task(first.id).result == result


@pytest.mark.batched
def test_a_result_that_cannot_be_kept_leases_no_further_task(q: Queue) -> None:
    q.insert_many(range(5), batch_tasks=5)
    poll = q.poll()
    task = next(poll)
    with pytest.raises(InvalidResult):
        task.complete(object())
    assert (q.status().leased, q.status().completed) == (1, 0)
    task.complete(1)
    assert (q.status().leased, q.status().completed) == (1, 1)


def test_leaving_after_an_exchange_puts_back_what_came_with_it(q: Queue) -> None:
    q.insert_many(range(10), batch_tasks=10)
    poll = q.poll()
    next(poll).complete()
    poll.close()
    assert q.status().as_dict() == {"inserted": 10, "waiting": 9, "delayed": 0, "leased": 0, "completed": 1, "dead": 0}


def test_a_task_may_be_completed_after_the_loop_was_left(q: Queue) -> None:
    q.insert_many(range(3), batch_tasks=3)
    with q.poll() as poll:
        task = next(poll)
    task.complete()
    assert q.status().as_dict() == {"inserted": 3, "waiting": 2, "delayed": 0, "leased": 0, "completed": 1, "dead": 0}


def test_an_error_in_the_body_fails_the_task_and_ends_the_loop_if_it_shall(q: Queue) -> None:
    q.insert_many(range(3), batch_tasks=3)

    def loop() -> None:
        for task in q.poll(prefetch=2, errors="raise"):
            with task:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        loop()
    gc.collect()
    status = q.status()
    assert (status.leased, status.delayed, status.waiting) == (0, 1, 2)


def test_a_failing_task_is_recorded_and_logged_and_the_loop_goes_on(
    queue_factory: QueueFactory, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    q = Queue(queue_factory(max_attempts=2).path, clock=clock)
    q.insert_many(range(6), batch_tasks=2)
    done = []
    for task in q.poll():
        with task:
            if task.payload == 3:
                raise ZeroDivisionError("no\x1b[2J way")
            done.append(task.payload)
    assert sorted(done) == [0, 1, 2, 4, 5]
    assert [(letter.payload, letter.reason) for letter in q.dead()] == [(3, "ZeroDivisionError: no\x1b[2J way")]
    assert [record.getMessage().count("the loop goes on: ZeroDivisionError") for record in caplog.records] == [1, 1]
    assert all(record.exc_info for record in caplog.records), "with the place in the program"


def test_an_error_after_the_end_of_the_task_is_logged(q: Queue, caplog: pytest.LogCaptureFixture) -> None:
    q.insert_many(range(2))
    for task in q.poll():
        with task:
            task.complete()
            raise KeyError("late")
    assert (q.status().completed, len(caplog.records)) == (2, 2)


@pytest.mark.parametrize("where", ["at the end", "in the block", "before the error"])
def test_a_lease_lost_in_a_block_does_not_end_the_loop(
    q: Queue, clock: ManualClock, where: str, caplog: pytest.LogCaptureFixture
) -> None:
    q.insert_many(range(2), batch_tasks=1)
    other, found = Queue(q.path, clock=clock), []
    for task in q.poll(lease_s=10):
        with task:
            found.append(task.payload)
            if len(found) == 1:
                assert other.release_all() == 1
                other.cancel([task.id])
                if where == "in the block":
                    task.renew()
                elif where == "before the error":
                    raise ZeroDivisionError
    assert (len(found), q.status().completed) == (2, 1)
    assert ["LeaseLost" in record.getMessage() for record in caplog.records] == [True]


def test_an_interruption_ends_the_loop_also_when_its_lease_is_lost(q: Queue, clock: ManualClock) -> None:
    q.insert("x")
    for task in q.poll():
        q.release_all()
        with pytest.raises(KeyboardInterrupt), task:
            raise KeyboardInterrupt
        break


@pytest.mark.parametrize(
    ("most", "succeeding", "failures"),
    [(None, False, 10), (None, True, 20), (0, False, 20), (3, False, 3), (3, True, 3)],
)
def test_many_failures_in_a_row_end_the_loop(
    queue_factory: QueueFactory, clock: ManualClock, most: int | None, succeeding: bool, failures: int
) -> None:
    """A misspelt name in the body must not bury the queue. By default only before the first success."""
    q = Queue(queue_factory(max_attempts=1).path, clock=clock)
    q.insert_many(range(21 if succeeding else 20), batch_tasks=30)
    tried = 0

    def loop() -> None:
        nonlocal tried
        for number, task in enumerate(q.poll(stop_after_failures=most)):
            with task:
                if succeeding and number == 0:
                    continue
                tried += 1
                raise NameError("rendr")

    if failures == 20:
        loop()
    else:
        with pytest.raises(NameError) as caught:
            loop()
        assert "stop_after_failures" in caught.value.__notes__[0]
    assert (tried, q.status().dead, q.status().leased) == (failures, failures, 0)


def test_a_success_in_between_begins_the_row_anew(queue_factory: QueueFactory, clock: ManualClock) -> None:
    q = Queue(queue_factory(max_attempts=1).path, clock=clock)
    q.insert_many(range(9), batch_tasks=9)
    for number, task in enumerate(q.poll(stop_after_failures=3)):
        with task:
            assert number % 3 == 2
    assert (q.status().completed, q.status().dead) == (3, 6)


def test_outside_of_a_loop_an_error_is_raised(q: Queue) -> None:
    q.insert("x")
    [task] = q.lease()
    with pytest.raises(ZeroDivisionError), task:
        raise ZeroDivisionError
    assert q.status().delayed == 1


def test_a_closed_loop_has_ended(q: Queue) -> None:
    q.insert_many(range(5), batch_tasks=5)
    loop = q.poll(prefetch=2)
    assert repr(loop) == f"<Poll of {q!r} until drained, 0 leased ahead>"
    task = next(loop)
    loop.close()
    assert (list(loop), q.status().leased) == ([], 1)
    assert repr(loop) == f"<Poll of {q!r} until drained, closed>"
    task.complete()
    assert q.status().leased == 0
    with q.poll() as loop:
        next(loop).release()
    with pytest.raises(StopIteration):
        next(loop)


def test_failed_tasks_come_round_again(q: Queue) -> None:
    q.insert_many(["good", "bad"])
    seen = []
    for task in q.poll():
        seen.append((task.payload, task.attempt))
        if task.payload == "bad" and task.attempt < 3:
            task.fail("oops")
        else:
            task.complete()
    assert sorted(seen) == [("bad", 1), ("bad", 2), ("bad", 3), ("good", 1)]
    assert q.status().completed == 2


def test_the_loop_waits_for_what_others_hold(q: Queue, clock: ManualClock) -> None:
    """Their worker may die: only when nothing is leased any more is the queue drained."""
    q.insert("x")
    Queue(q.path, clock=clock).lease(lease_s=50)
    before = clock.now_s
    found = []
    for task in q.poll():
        found.append((task.payload, task.attempt))
        task.complete()
    assert found == [("x", 2)]
    assert 50 <= clock.now_s - before < 60


def test_the_loop_ends_when_others_complete_the_rest(q: Queue, clock: ManualClock) -> None:
    q.insert("x")
    [held] = Queue(q.path, clock=clock).lease(lease_s=10_000)
    naps = [0]

    def sleep(seconds: float) -> None:
        clock.advance(seconds)
        naps[0] += 1
        if naps[0] == 5:
            held.complete()

    clock.sleep = sleep  # type: ignore[method-assign]
    assert list(q.poll()) == []
    assert naps[0] < 10


def test_delayed_tasks_are_waited_for(q: Queue, clock: ManualClock) -> None:
    q.insert("later", delay_s=100)
    before = clock.now_s
    for task in q.poll():
        task.complete()
    assert 100 <= clock.now_s - before < 102
    assert q.status().completed == 1


def test_for_ever_means_beyond_the_end(q: Queue, clock: ManualClock) -> None:
    q.insert("first")
    producer = Queue(q.path, clock=clock)
    naps = [0]

    def sleep(seconds: float) -> None:
        clock.advance(seconds)
        naps[0] += 1
        if naps[0] % 20 == 0:
            producer.insert(naps[0])

    clock.sleep = sleep  # type: ignore[method-assign]
    found = []
    for task in q.poll(until="forever"):
        found.append(task.payload)
        task.complete()
        if len(found) == 4:
            break
    assert found == ["first", 20, 40, 60]


def test_the_lease_asked_for_is_the_lease_of_every_task(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(3), batch_tasks=3)
    for task in q.poll(lease_s=33):
        assert task.lease_until == pytest.approx(clock.now_s + 33)
        task.complete()


def test_a_lost_lease_is_reported_and_the_loop_goes_on(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(2), batch_tasks=2)
    other = Queue(q.path, clock=clock)
    poll = q.poll(lease_s=10)
    task = next(poll)
    clock.advance(100)
    stolen = {one.id: one for one in other.lease(5)}
    if task.id not in stolen:
        stolen |= {one.id: one for one in other.lease(5)}
    with pytest.raises(LeaseLost):
        task.complete()
    other.complete(stolen.values())
    for rest in poll:
        rest.complete()
    assert q.status().completed == 2


def test_tasks_that_go_alone_are_found_too(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(4), batch_tasks=4)
    q.lease(4, lease_s=1)
    clock.advance(5)
    found = []
    for task in q.poll():
        found.append(task.payload)
        assert task.attempt == 1
        task.complete()
    assert sorted(found) == list(range(4))


def test_a_damaged_line_does_not_stop_the_loop(q: Queue) -> None:
    q.insert_many(["a", "b", "c", "d"], batch_tasks=4)
    for path in (base_of(q) / "queue").glob("*/*"):
        path.write_bytes(path.read_bytes().replace(b'"b"', b'"b').replace(b'"c"', b"!!!"))
    found = []
    for task in q.poll():
        found.append(task.payload)
        task.complete()
    assert sorted(found) == ["a", "d"]
    assert q.status().as_dict() == {"inserted": 4, "waiting": 0, "delayed": 0, "leased": 0, "completed": 2, "dead": 2}


def test_tasks_out_of_attempts_are_buried_on_the_way(queue_factory: QueueFactory, clock: ManualClock) -> None:
    q = Queue(queue_factory(max_attempts=1).path, clock=clock)
    q.insert_many(["a", "b"], batch_tasks=2)
    q.lease(lease_s=1)
    clock.advance(5)
    found = []
    for task in q.poll():
        found.append(task.payload)
        task.complete()
    assert len(found) == 1
    assert q.status().as_dict() == {"inserted": 2, "waiting": 0, "delayed": 0, "leased": 0, "completed": 1, "dead": 1}


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"prefetch": 0}, "prefetch"),
        ({"prefetch": 1.5}, "prefetch"),
        ({"until": "done"}, "until"),
        ({"errors": "ignore"}, "errors"),
        ({"stop_after_failures": -1}, "stop_after_failures"),
        ({"stop_after_failures": True}, "stop_after_failures"),
        ({"lease_s": 0}, "lease_s"),
    ],
)
def test_wrong_arguments_are_refused_at_once(q: Queue, arguments: dict[str, object], name: str) -> None:
    with pytest.raises(InvalidArgument, match=name):
        q.poll(**arguments)  # type: ignore[arg-type]


def test_a_purge_under_the_loop_ends_it_or_goes_on_with_what_came_after(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(3), batch_tasks=3)
    poll = q.poll()
    task = next(poll)
    other = Queue(q.path, clock=clock)
    other.purge()
    other.insert("new")
    clock.advance(2)
    with pytest.raises(LeaseLost):
        task.complete()
    assert [rest.payload for rest in [next(poll)]] == ["new"]


# -- loops that are dropped, and processes that fork in them ----------------------------------------------


def test_the_collector_may_drop_a_loop_under_a_lock_of_the_queue(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The finalizer takes no lock: it would wait for the very thread that it runs in."""
    q.insert_many(range(50), batch_tasks=50)

    def leave_in_a_cycle() -> None:
        loop = q.poll(prefetch=5)
        next(loop)
        keep: list[object] = [loop]
        keep.append(keep)

    collected = []

    def collecting(*args: Any) -> Any:
        collected.append(gc.collect())
        return read_queue_state(*args)

    read_queue_state = queue_file.read_queue_state
    gc.collect()
    gc.disable()
    try:
        leave_in_a_cycle()
        monkeypatch.setattr(queue_file, "read_queue_state", collecting)
        q.store.queue_file.forget()  # as after a second
        in_time(q.lease)
    finally:
        gc.enable()
    assert collected
    assert q.status().leased == 2


def test_what_a_dropped_loop_had_leased_comes_back_by_itself(q: Queue) -> None:
    """Also where nothing more is done with the queue in this process."""
    q.insert_many(range(10), batch_tasks=10)
    loop = q.poll(prefetch=4)
    next(loop)
    del loop
    gc.collect()
    other = Queue(q.path, clock=q.store.clock)
    until(lambda: other.status().leased == 1, "the tasks that were leased ahead")


def test_what_a_dropped_loop_had_leased_comes_back_at_the_exit(queue: Queue) -> None:
    queue.insert_many(range(10), batch_tasks=10)
    script = (
        "import _thread, sys, fsqueue\n"
        "def no(*_): raise RuntimeError\n"
        "_thread.start_new_thread = no\n"
        "for task in fsqueue.Queue(sys.argv[1]).poll(prefetch=4): break\n"
    )
    subprocess.run([sys.executable, "-c", script, queue.path], check=True)
    assert queue.status().leased == 1


def leaving(loop: Callable[[], object]) -> None:
    """Run what forks; its child ends here."""
    me = os.getpid()
    try:
        loop()
    except SystemExit:
        pass
    finally:
        if os.getpid() != me:
            gc.collect()
            try:  # wait for a thread that would put back
                until(lambda: len(os.listdir("/proc/self/task")) == 1, "other threads to end")
                poll.put_back_dropped()
            finally:
                os._exit(0)


@pytest.mark.batched
@pytest.mark.parametrize("way", ["for", "with loop", "with task"])
def test_a_child_that_ends_by_sys_exit_gives_nothing_of_its_parent_back(q: Queue, way: str) -> None:
    q.insert_many(range(10), batch_tasks=10)

    def forks() -> None:
        pid = os.fork()
        if pid == 0:
            sys.exit(0)
        os.waitpid(pid, 0)

    def work() -> None:
        loop = q.poll(prefetch=5)
        if way == "for":
            for task in loop:
                forks()
                seen(task)
                return
        elif way == "with loop":
            with loop:
                task = next(loop)
                forks()
                seen(task)
        else:
            with next(loop) as task:
                forks()
                seen(task)

    def seen(task: LeasedTask) -> None:
        other = Queue(q.path, clock=q.store.clock)
        assert sorted(info.payload for info in other.tasks("leased")) == [0, 1, 2, 3, 4]
        assert task.payload == 0
        task.complete()

    leaving(work)
    status = q.status()
    assert (status.completed, status.leased, status.waiting) == (1, 0, 9)


@pytest.mark.batched
def test_a_child_that_goes_on_with_the_loop_leases_its_own(q: Queue) -> None:
    """Else both would work on what was leased ahead."""
    q.insert_many(range(10), batch_tasks=10)
    told, tell = os.pipe()

    def work() -> None:
        loop = q.poll(prefetch=5)
        assert next(loop).payload == 0
        pid = os.fork()
        if pid == 0:
            os.write(tell, b"%d" % next(loop).payload)
            sys.exit(0)
        os.waitpid(pid, 0)
        assert next(loop).payload == 1

    try:
        leaving(work)
        assert os.read(told, 9) == b"5"
    finally:
        os.close(told)
        os.close(tell)


# -- the result of one task ------------------------------------------------------------------------------------------


def test_a_result_is_looked_for_until_the_time_is_over_in_pauses_that_grow(q: Queue, clock: ManualClock) -> None:
    ref, looked_at = q.insert("x"), list[float]()
    begin = clock.monotonic()

    def look(task_id: str) -> TaskInfo:
        looked_at.append(clock.monotonic() - begin)
        return q.task(task_id)

    with pytest.raises(ResultNotReady, match="is waiting still, after 100 s"):
        poll.result_of(ref, 100, look, lambda: q.store)
    pauses = [after - before for before, after in itertools.pairwise(looked_at)]
    assert looked_at[-1] == pytest.approx(100)
    assert 0.007 < pauses[0] < 0.013
    assert 1.5 <= max(pauses) <= 2.5
    assert 60 < len(looked_at) < 130


def test_a_result_that_comes_meanwhile_ends_the_wait(q: Queue, clock: ManualClock) -> None:
    ref = q.insert("x")
    [task] = q.lease(lease_s=10_000)

    def look(task_id: str) -> TaskInfo:
        if clock.monotonic() > begin + 50:
            task.complete({"y": 1})
        return q.task(task_id)

    begin = clock.monotonic()
    assert poll.result_of(ref, None, look, lambda: q.store) == {"y": 1}
    assert 50 < clock.monotonic() - begin < 53


def test_a_result_is_not_waited_for_where_no_history_tells_of_it(queue_factory: QueueFactory) -> None:
    queue = queue_factory(keep_history=False)
    ref = queue.insert("x")
    queue.lease()[0].complete(1)
    with pytest.raises(TaskNotFound, match="keeps nothing of tasks that have ended"):
        queue.result(ref)


def test_references_of_several_queues_come_together_and_each_batch_is_read_once_a_look(
    queue_factory: QueueFactory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other = queue_factory(), Queue.create(tmp_path / "other", batch_tasks_max=10)
    refs = [queue.insert(number) for queue in (one, other) for number in range(40)]
    for queue in (one, other):
        queue.complete(queue.lease(40), results=None)
    asked: list[str] = []
    whole_log = inspection._read_whole

    def counting(store: Store, batch: Any) -> Any:
        asked.append(batch)
        return whole_log(store, batch)

    monkeypatch.setattr(inspection, "_read_whole", counting)
    assert {*as_completed(refs, timeout_s=0)} == {*refs}
    assert len(asked) == len({*asked})


def test_the_work_of_a_caller_makes_no_pause_longer(q: Queue, clock: ManualClock) -> None:
    """A caller that works for a minute on each result is no reason to look more rarely."""
    refs = [q.insert(number) for number in range(3)]
    tasks, pauses = q.lease(3, lease_s=10_000), list[float]()
    sleep = clock.sleep

    def sleeping(seconds: float) -> None:
        pauses.append(seconds)
        sleep(seconds)
        tasks.pop().complete()

    with mock.patch.object(clock, "sleep", sleeping):
        for _ in as_completed(refs):
            clock.advance(60)
    assert len(pauses) == 3
    assert max(pauses) < 0.1


def test_a_look_that_takes_long_makes_the_next_pause_longer(q: Queue, clock: ManualClock) -> None:
    ref, pauses = q.insert(1), list[float]()
    sleep, look = clock.sleep, q.results_of

    def slow(ids: Any) -> Any:
        clock.advance(10)
        return look(ids)

    def sleeping(seconds: float) -> None:
        pauses.append(seconds)
        sleep(seconds)

    with (
        mock.patch.object(clock, "sleep", sleeping),
        mock.patch.object(Queue, "results_of", lambda _, ids: slow(ids)),
        pytest.raises(ResultNotReady),
    ):
        [*as_completed([ref], timeout_s=100)]
    assert pauses[1] == pytest.approx(40)


def test_what_ends_while_the_caller_works_is_found_although_the_time_is_over(q: Queue, clock: ManualClock) -> None:
    refs, found = [q.insert(number) for number in range(3)], list[TaskRef]()
    first, second, _ = q.lease(3, lease_s=10_000)
    first.complete()

    def work() -> None:
        for ref in as_completed(refs, timeout_s=50):
            found.append(ref)
            if len(found) == 1:
                clock.advance(60)
                second.complete()

    with pytest.raises(ResultNotReady, match="1 task of those waited for has not ended after"):
        work()
    assert [ref.id for ref in found] == [first.id, second.id]


def test_looking_reads_the_history_only_of_shards_in_which_a_task_has_ended(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = queue_factory(batch_tasks_max=1)
    for number in range(40):
        q.insert_many([number])
        q.lease()[0].complete({"number": number})
    for number in range(5):
        q.insert_many([number])
    tasks = q.lease(5)
    at_work = [task.id for task in tasks]
    read: list[str] = []
    lines = history._lines_at

    def reading(store: Store, path: str) -> Any:
        read.append(path)
        return lines(store, path)

    monkeypatch.setattr(history, "_lines_at", reading)
    assert {one.state for one in q.results_of(at_work).values()} == {"leased"}
    assert not read
    tasks[0].complete(7)
    found = q.results_of(at_work)
    assert [one.result for one in found.values() if one.state == "completed"] == [7]
    [day] = history.days(q.store)
    assert {*read} == {q.store.layout.history(day, q.store.layout.shard(parse_task_id(tasks[0].id)[0]))}


@pytest.mark.batched
def test_letters_are_looked_for_only_of_tasks_that_are_asked_for(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one retried task of a large batch costs a search for each other task that was given up."""
    q = queue_factory(max_attempts=1)
    q.insert_many(range(6))
    first, *_ = tasks = q.lease(5)
    for task in tasks:
        task.fail("no")
    assert q.retry_dead(first.id) == 1
    asked: list[str] = []
    settled_as = deadletters.settled_as

    def asking(store: Store, task_id: str) -> Any:
        asked.append(task_id)
        return settled_as(store, task_id)

    monkeypatch.setattr(deadletters, "settled_as", asking)
    assert q.results_of([first.id]) == {}
    assert asked == [first.id]


@pytest.mark.parametrize("keep_history", [True, False])
def test_a_task_whose_letter_is_not_written_yet_is_dead_and_not_unknown(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, keep_history: bool
) -> None:
    """Its log has the end of the task before the letter is there."""
    q = queue_factory(keep_history=keep_history, batch_tasks_max=3)
    refs, seen = [q.insert(number) for number in range(3)], list[Any]()
    write = finishing.write_letters

    def looking(*args: Any) -> None:
        seen.append(Queue(q.path).results_of(refs))
        write(*args)

    monkeypatch.setattr(finishing, "write_letters", looking)
    q.lease()[0].bury("broken")
    assert [(one.state, one.error) for one in seen[0].values()][-1] == ("dead", "broken")
    assert sorted(one.state for one in seen[0].values()) == ["dead", "waiting", "waiting"]
    q.retry_dead()
    assert sorted(one.state for one in q.results_of(refs).values()) == ["waiting", "waiting"]


def test_a_reference_is_small_and_waits_for_nothing_that_is_not_kept(queue_factory: QueueFactory) -> None:
    q = queue_factory(keep_history=False)
    refs = [q.insert(number) for number in range(1000)]
    assert len(pickle.dumps(refs)) < 100 * len(refs)
    q.complete(q.lease(1000))
    assert {*as_completed(refs, timeout_s=0)} == {*refs}
    with pytest.raises(TaskNotFound, match="keeps nothing of tasks that have ended"):
        refs[0].result()


@pytest.mark.parametrize("given", [7, "id", [7], ["0.0"], [TaskRef(f"{'0' * 32}.0")]])
def test_what_is_no_reference_with_a_queue_is_refused(given: Any) -> None:
    with pytest.raises(InvalidArgument, match="as_completed takes references to tasks"):
        as_completed(given)


def test_a_reference_without_its_queue_says_whom_to_ask() -> None:
    with pytest.raises(InvalidArgument, match=r"Ask the queue: queue.result\(ref\)"):
        TaskRef(f"{'0' * 32}.0").result()
