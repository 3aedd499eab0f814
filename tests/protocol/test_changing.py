"""`change` gives waiting tasks another priority or time, in each kind of batch, also if it is killed at any step."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from fsqueue import LeaseLost, Queue, Task
from fsqueue.clock import ManualClock
from fsqueue.filesystem import Filesystem
from fsqueue.format import checkpoints, names
from fsqueue.format.movements import without_priority
from fsqueue.storage import logs
from tests.support import QueueFactory, crashes, drain

KINDS = ("file", "log")


def insert(queue: Queue, kind: str, tasks: list[Task]) -> dict[object, str]:
    """Insert tasks into a task file, or into a log; return their ids by their payloads."""
    if kind == "file":
        queue.insert_many(tasks, batch_tasks=len(tasks))
    else:
        for task in tasks:
            queue.insert(task)
    return {task.payload: task.id for task in queue.tasks()}


def order(queue: Queue) -> list[object]:
    """Return the payloads of what another process leases, one after the other."""
    other = Queue(queue.path, clock=queue.store.clock)
    found = []
    while tasks := other.lease(strict=True):
        found.append(tasks[0].payload)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_workers_that_know_a_batch_take_its_tasks_by_their_new_priorities(
    q: Queue, clock: ManualClock, kind: str
) -> None:
    """Of one that has learned all priorities, of one that has learned none, and of one that begins anew."""
    ids = insert(q, kind, [Task(number, priority=number) for number in range(8)])
    knows = Queue(q.path, clock=clock)
    assert [task.payload for task in knows.lease(2, strict=True)] == [0, 1]
    assert q.change([ids[2], ids[3]], priority=100).changed == [ids[2], ids[3]]
    assert q.change(ids[7], priority=-1).changed == [ids[7]]
    assert q.change(ids[4], no_priority=True).changed == [ids[4]]
    assert [task.payload for task in knows.lease(strict=True)] == [7]
    assert order(q) == [5, 6, 2, 3, 4]


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_becomes_urgent_in_a_batch_without_priorities(q: Queue, clock: ManualClock, kind: str) -> None:
    insert(q, "file", [Task(number) for number in range(3)])
    clock.advance(1)
    ids = insert(q, kind, [Task(number) for number in range(3, 9)])
    assert not q.has_priorities
    knows = Queue(q.path, clock=clock)
    assert [task.payload for task in knows.lease(strict=True)] == [0]
    q.change(ids[7], priority="x")
    clock.advance(2)
    assert [task.payload for task in knows.lease(strict=True)] == [7]
    assert sorted(map(str, order(q))) == list("1234568")


@pytest.mark.parametrize("kind", KINDS)
def test_a_task_comes_earlier_or_later(q: Queue, clock: ManualClock, kind: str) -> None:
    ids = insert(q, kind, [Task(number, delay_s=1000) for number in range(3)] + [Task(9)])
    assert order(q) == [9]
    q.change(ids[1], delay_s=0)
    assert order(q) == [1]
    q.change([ids[0], ids[2]], delay_s=5)
    assert order(q) == []
    clock.advance(6)
    assert order(q) == [0, 2]
    assert [q.task(ids[number]).attempt for number in (0, 1, 2)] == [1, 1, 1]


def test_a_lease_that_has_run_out_ends_as_when_another_worker_takes_the_task(q: Queue, clock: ManualClock) -> None:
    q.insert(1)
    [task] = q.lease(lease_s=10)
    assert q.change(task.id, priority=1).leased == [task.id]
    clock.advance(11)
    assert q.change(task.id, delay_s=100).changed == [task.id]
    with pytest.raises(LeaseLost):
        task.complete()
    clock.advance(101)
    [again] = q.lease()
    assert (again.id, again.attempt, again.priority) == (task.id, 2, None)


def test_out_of_attempts_the_dead_letter_says_that_the_lease_ran_out(
    queue_factory: QueueFactory, clock: ManualClock
) -> None:
    queue = Queue(queue_factory(max_attempts=1).path, clock=clock)
    queue.insert(1)
    [task] = queue.lease(lease_s=10)
    clock.advance(11)
    queue.change(task.id, priority=1)
    assert queue.lease() == []
    [letter] = queue.dead()
    assert letter.reason.startswith("lease expired, last worker ")
    assert letter.priority == 1


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_restates_changes(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(checkpoints, "LEAST_BYTES", 1)
    monkeypatch.setattr(checkpoints, "SHARE", 0)
    monkeypatch.setattr(logs, "TAIL_BYTES", 64)
    ids = insert(q, kind, [Task(number, priority=number % 3) for number in range(6)])
    q.change(ids[5], priority=-4)
    q.change(ids[0], no_priority=True)
    q.change(ids[1], priority="text", delay_s=3)
    found = {task.payload: (task.priority, task.state) for task in Queue(q.path, clock=clock).tasks()}
    assert found == {
        0: (None, "waiting"), 1: ("text", "delayed"), 2: (2, "waiting"), 3: (0, "waiting"), 4: (1, "waiting"),
        5: (-4, "waiting"),
    }  # fmt: skip
    assert order(q) == [5, 3, 4, 2, 0]
    assert not [finding for finding in q.fsck() if finding.gravity == "damage"]


def test_views_and_letters_tell_the_new_priority_and_the_history_the_first(q: Queue) -> None:
    ids = insert(q, "file", [Task("a", priority=5), Task("b", priority=5)])
    q.change([*ids.values()], priority="private")
    assert [(one.first, one.waiting) for one in q.waiting_by_priority()] == [("private", 2)]
    for task in q.lease(2):
        attached = q.attach(task.token)
        assert (task.priority, attached.priority) == ("private", "private")
        task.complete() if task.payload == "a" else task.bury("x")
    assert [letter.priority for letter in q.dead()] == ["private"]
    assert q.task(ids["a"]).priority == 5
    assert [move.op for move in q.history(ids["a"])] == ["insert", "change", "lease", "complete"]
    written = b"".join(path.read_bytes() for path in Path(q.path).rglob("history/*/*.jsonl"))
    assert b'"op":"change"' in written
    assert b"private" not in written, "it may tell what a payload does that is not kept"
    assert q.retry_dead() == 1
    assert [task.priority for task in q.lease()] == ["private"]


def test_the_history_cuts_no_record_of_another_form() -> None:
    line = b'{"op":"change","at":5,"tasks":[[0,1],[3,4]],"versions":[7,8],"available_at":9,"priority":"a\\"b"}'
    cut = without_priority(line)
    assert cut.rstrip() == b'{"op":"change","at":5,"tasks":[[0,1],[3,4]],"versions":[7,8],"available_at":9}'
    assert len(cut) == len(line)
    for other in (b'{"op":"change","at":5}', b'{"op":"change","x":",\\"priority\\":","at":5,"priority":1}'):
        assert without_priority(other) == other


@pytest.mark.batched
def test_a_file_whose_name_was_lost_gets_one_that_promises_what_was_changed(q: Queue, clock: ManualClock) -> None:
    """As after a power loss, or by another program's hand: `fsck` finds it, and mends it."""
    ids = insert(q, "file", [Task(number) for number in range(3)])
    q.change(ids[2], priority=1)
    [path] = Path(q.path).rglob("queue/*/*.jsonl")
    name = names.parse_task_file(path.name)
    assert name is not None
    path.rename(path.with_name(str(name._replace(priority=None))))
    other = Queue(q.path, clock=clock)
    assert [finding.kind for finding in other.fsck() if finding.kind == "modest-name"]
    list(other.fsck(repair=True))
    assert [task.payload for task in Queue(q.path, clock=clock).lease(strict=True)] == [2]


@pytest.mark.once
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shared", [False, True])
def test_a_death_at_any_step_leaves_the_task_as_it_was_or_as_it_is_to_be(
    queue_factory: QueueFactory, clock: ManualClock, kind: str, shared: bool
) -> None:
    def build(number: int) -> Queue:
        path = queue_factory(f"q{number}", shards=1).path
        queue = Queue(path, clock=clock, filesystem=Filesystem(str(path), shared=shared))
        queue.store.compare_clock()  # the server's clock is another one: tasks are due by it from the beginning
        insert(queue, kind, [Task(each, delay_s=1000) for each in range(3)])
        return queue

    def act(queue: Queue) -> None:
        [chosen] = [task.id for task in queue.tasks() if task.payload == 1]
        assert queue.change(chosen, priority=7, delay_s=0).changed == [chosen]

    outcomes = set()
    for where, queue in crashes(build, act, clock, shared):
        other = Queue(queue.path, clock=clock)
        [info] = [task for task in other.tasks() if task.payload == 1]
        outcomes.add((info.priority, info.state))
        assert (info.priority, info.state) in ((None, "delayed"), (7, "waiting")), where
        if info.priority is not None:
            assert [task.payload for task in Queue(queue.path, clock=clock).lease(strict=True)] == [1], where
        again = other.change(info.id, priority=7, delay_s=0)
        assert [*again.changed, *again.leased] == [info.id], where
        assert not [finding for finding in other.fsck() if finding.gravity == "damage"], where
        clock.advance(700)
        drain(other, clock)
        clock.advance(700)
        drain(other, clock)
        assert other.status().completed == 3, where
    assert outcomes == {(None, "delayed"), (7, "waiting")}


def test_a_change_is_durable_when_it_returns(queue_factory: QueueFactory) -> None:
    """With the durability that syncs inserts: the name before the record, the log behind it."""
    queue = queue_factory(durability="default")
    ids = insert(queue, "file", [Task(1), Task(2)])
    fs, done = Filesystem(str(queue.path), shared=False), list[str]()
    fsync, write = fs.fsync, fs.write
    fs.fsync = lambda fd: (done.append("sync " + _name(fd)), fsync(fd))[1]
    fs.write = lambda fd, data: (done.append(f"{bytes(data[:12])!r} {_name(fd)}"), write(fd, data))[1]
    Queue(queue.path, filesystem=fs).change(ids[1], priority=1)
    assert [re.sub(r"\S*/(queue|movements)/\S*", r"\1", step) for step in done[-4:]] == [
        """b'{"op":"move"' movements""", "sync queue", """b'{"op":"chang' movements""", "sync movements"
    ]  # fmt: skip


def _name(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")
