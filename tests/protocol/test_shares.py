"""Leases for several holders in one look, and completions of several leases in one write."""

from __future__ import annotations

from contextlib import suppress

import pytest

from fsqueue import InvalidArgument, LeaseLost, Queue, Status
from fsqueue.clock import ManualClock
from fsqueue.filesystem import Filesystem
from tests.support import QueueFactory, crashes, leftovers, log_files

A, B, C = ({"host": host} for host in "abc")


def holders(queue: Queue) -> dict[str, int]:
    """Return how many tasks each host holds."""
    return {str(one.worker["host"]): len(one.tasks) for one in queue.workers(asks_slurm=False)}


def test_each_holder_gets_leases_of_its_own(q: Queue) -> None:
    q.insert_many(range(6))
    parts = q.lease_for([(1, A), (2, B), (1, C)])
    assert [len(part) for part in parts] == [1, 2, 1]
    assert holders(q) == {"a": 1, "b": 2, "c": 1}
    assert len({task.lease for part in parts for task in part}) >= 3
    parts[1][0].complete()
    q.release(parts[0])
    assert holders(Queue(q.path)) == {"b": 1, "c": 1}, "another process reads the same in the log"


def test_the_first_ones_come_first_and_the_rest_is_told_to_call_again(q: Queue) -> None:
    q.insert_many(range(3))
    assert [len(part) for part in q.lease_for([(2, A), (2, B), (2, C)])] == [2, 1, 0]
    assert q.lease_for([(2, A), (1, B)]) == [[], []]
    assert q.lease_for([]) == []


def test_leases_for_one_task_each_do_not_make_their_tasks_go_alone(q: Queue, clock: ManualClock) -> None:
    """Each holder had one task: if it dies, that one is charged, and no other is suspected."""
    q.insert_many(range(2), batch_tasks=2)
    q.lease_for([(1, A), (1, B)])
    clock.advance(10_000)
    assert [len(part) for part in q.lease_for([(1, A), (1, B)])] == [1, 1]


def test_a_holder_of_several_tasks_that_died_leaves_each_of_them_to_go_alone(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(3))
    q.lease_for([(2, A), (1, B)])
    clock.advance(10_000)
    got = []
    while any(parts := q.lease_for([(1, A), (1, B), (1, C)])):
        got.append([len(part) for part in parts])
    assert sum(map(sum, got)) == 3
    assert len(got) > 1, "those of the first holder are not leased together with others"


@pytest.mark.parametrize("wanted", [[(0, A)], [(True, A)], [(1, {})], [(1, A), (1, {"host": "b", "run": "1"})]])
def test_what_is_no_holder_leases_nothing(q: Queue, wanted: list[tuple[int, dict[str, str]]]) -> None:
    q.insert(1)
    with pytest.raises(InvalidArgument):
        q.lease_for(wanted)
    assert q.status() == Status(waiting=1)
    [task] = q.lease()
    assert task.queue.store.worker["host"] in holders(q), "the next lease is this process's again"


def test_a_crash_at_each_step_leases_whole_records(queue_factory: QueueFactory, clock: ManualClock) -> None:
    def build(number: int) -> Queue:
        queue = queue_factory(f"q{number}")
        queue.insert_many(range(3))
        return queue

    seen = set()
    for where, queue in crashes(build, lambda worker: worker.lease_for([(1, A), (1, B), (1, C)]), clock):
        left = Queue(queue.path, clock=clock)
        status, held = left.status(), holders(left)
        assert status.waiting + status.leased == 3, where
        assert set(held) <= {*"abc"}, where
        assert sum(held.values()) == status.leased, where
        seen.add(status.leased)
        clock.advance(10_000)
        while got := left.lease(3):
            left.complete(got)
        assert left.status().completed == 3, where
        assert not leftovers(left), where
    assert {0, 3} <= seen


def test_completions_of_several_leases_are_one_write(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    q.insert_many(range(5))
    tasks = [task for part in q.lease_for([(1, A), (1, B), (2, C)]) for task in part]
    [log] = log_files(q) if len(log_files(q)) == 1 else [None]
    writes = []
    real = q.store.fs.write
    monkeypatch.setattr(q.store.fs, "write", lambda fd, data: writes.append(data) or real(fd, data))
    q.complete(tasks, {tasks[1].id: {"pages": 3}})
    if log is not None:  # else each task has a batch of its own
        assert [data.count(b'"op":"complete"') for data in writes] == [3]
    assert Queue(q.path).status() == Status(waiting=1, completed=4)
    assert [one.result for one in Queue(q.path).results() if one.result is not None] == [{"pages": 3}]


def test_of_many_completions_those_that_are_lost_are_named_and_the_others_done(q: Queue, clock: ManualClock) -> None:
    """The one that is lost is found by reading the log anew, which must have the records before it."""
    q.insert_many(range(4))
    parts = q.lease_for([(1, A), (1, B), (1, C)])
    tasks = [task for part in parts for task in part]
    other = Queue(q.path, clock=clock)
    other.release(other.attach(tasks[1].token))
    with pytest.raises(LeaseLost) as lost:
        q.complete(tasks)
    assert lost.value.tokens == [tasks[1].token]
    assert q.status() == Status(waiting=2, completed=2)


def test_a_crash_while_completing_several_leases_completes_whole_records(
    queue_factory: QueueFactory, clock: ManualClock
) -> None:
    def build(number: int) -> Queue:
        queue = queue_factory(f"q{number}")
        queue.insert_many(range(3))
        tokens[str(queue.path)] = [
            task.token for part in Queue(queue.path, clock=clock).lease_for([(1, A), (1, B), (1, C)]) for task in part
        ]
        return queue

    tokens: dict[str, list[str]] = {}

    def act(worker: Queue) -> None:
        worker.complete([worker.attach(token, verify=False) for token in tokens[str(worker.path)]])

    for where, queue in crashes(build, act, clock):
        left = Queue(queue.path, clock=clock)
        status = left.status()
        assert status.leased + status.completed == 3, where
        for token in tokens[str(queue.path)]:
            with suppress(LeaseLost):  # it has been completed
                left.complete(left.attach(token, verify=False))
        assert left.status().completed == 3, where
        left.gc()
        assert not leftovers(left), where


def test_a_full_disk_completes_none_of_them(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    q.insert_many(range(3))
    tasks = [task for part in q.lease_for([(1, A), (1, B)]) for task in part]
    assert isinstance(q.store.fs, Filesystem)
    with monkeypatch.context() as broken:
        broken.setattr(q.store.fs, "write", lambda fd, data: 0)
        with pytest.raises(Exception, match=r".+"):
            q.complete(tasks)
    assert Queue(q.path).status() == Status(waiting=1, leased=2)
    q.complete(tasks)
    assert Queue(q.path).status() == Status(waiting=1, completed=2)
