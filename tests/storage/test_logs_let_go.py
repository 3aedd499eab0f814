"""A log is closed when its batch has finished, whichever process has finished it.

Two processes share the batches. `Process` runs statements in a process of its own, one after the other; which logs that
has open is read in /proc.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from fsqueue import Group, LeasedTask, LeaseLost, Queue, connect
from fsqueue.clock import ManualClock
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.open_logs import CHECKED, SELDOM_S, UNUSED_S, OpenLogs
from tests.gateways import gateways
from tests.waiting import PATIENCE_S, until

QueueFactory = Callable[..., Queue]

pytestmark = pytest.mark.once

BATCHES = 150
FEW = 2 + CHECKED
"""How many logs a process may keep of the batches that it goes through one after the other."""

PROGRAM = """
import json, sys
from fsqueue import Group, Queue
for line in sys.stdin:
    exec(json.loads(line))
    print("done", flush=True)
"""


def logs_of(pid: int | str) -> list[str]:
    """Return the names of the logs that a process has open: those that are unlinked end in "(deleted)"."""
    found = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        try:
            target = os.readlink(f"/proc/{pid}/fd/{fd}")
        except FileNotFoundError:  # of the listing itself
            continue
        if "/movements/" in target:
            found.append(target)
    return found


def unlinked(pid: int) -> list[str]:
    return [target for target in logs_of(pid) if target.endswith(" (deleted)")]


def logs_here(path: Path) -> list[str]:
    """Return the names of the logs of a queue that this process has open.

    It may have others open: earlier tests ran in this process, and what they have left may not be collected yet.
    """
    return [target for target in logs_of("self") if target.startswith(f"{path}/")]


class Process:
    """A process that runs statements, each once the one before is done."""

    def __init__(self, path: Path) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self.pid = self._child.pid
        self(f"opened = ({'Group' if (path / '.group.jsonl').exists() else 'Queue'})({str(path)!r})")

    def begin(self, statements: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{json.dumps(statements)}\n")
        self._child.stdin.flush()

    def end(self) -> None:
        assert self._child.stdout is not None
        assert self._child.stdout.readline() == "done\n"

    def __call__(self, statements: str) -> None:
        self.begin(statements)
        self.end()

    @property
    def logs(self) -> list[str]:
        return logs_of(self.pid)

    @property
    def unlinked(self) -> list[str]:
        return unlinked(self.pid)

    def close(self) -> None:
        with self._child:
            assert self._child.stdin is not None
            self._child.stdin.close()


@contextmanager
def processes(path: Path, count: int = 2) -> Iterator[list[Process]]:
    started: list[Process] = []
    try:
        for _ in range(count):
            started.append(Process(path))
        yield started
    finally:
        for one in started:
            one.close()


ALL = "while held := opened.lease(50): opened.complete(held)"
"""Works off what is there."""


# -- a process that goes on ---------------------------------------------------------------------------------------


def test_a_process_that_leaves_the_end_of_each_batch_to_another_keeps_few_logs(queue_factory: QueueFactory) -> None:
    queue = queue_factory(shards=1, batch_tasks_max=4, durability="none")
    queue.insert_many(range(4 * BATCHES), batch_tasks=4)
    most = 0
    with processes(queue.path) as (first, last):
        for _ in range(BATCHES):
            last("held = opened.lease(2)")
            first("held = opened.lease(2); opened.complete(held)")
            last("opened.complete(held)")
            most = max(most, len(first.logs))
        assert queue.status().completed == 4 * BATCHES
    assert most <= FEW


def test_a_producer_with_keys_keeps_the_logs_that_it_asked_until_it_opens_others(queue_factory: QueueFactory) -> None:
    """A producer never finds nothing to do (docs/design.md, section 4.5)."""
    queue = queue_factory(batch_tasks_max=2, durability="none")
    with processes(queue.path) as (inserter, worker):
        worker("for key in 'abcdefghijkl': opened.insert(key, key=key)")
        inserter("for key in 'abcdefghijkl': opened.insert(key, key=key)")
        assert len(inserter.logs) == 6
        worker(ALL)
        assert len(inserter.logs) == 6
        assert [queue.status().completed, queue.status().waiting] == [12, 0]
        inserter("opened.insert(1)")
        assert 0 < len(unlinked(inserter.pid)) < 6, "some go with each log that it opens"
        inserter("for number in range(8): opened.insert(1)")
        assert len(unlinked(inserter.pid)) == 0
        inserter("opened.close()")
        assert inserter.logs == []


@pytest.mark.parametrize(
    "insert",
    ["opened.insert('a')", "opened.insert('a', key='k')", "opened.insert_many([1])", "opened.insert_many(range(7))"],
)
@pytest.mark.parametrize("durability", ["none", "default"])
def test_an_inserter_keeps_few_logs_of_the_batches_that_it_filled(
    queue_factory: QueueFactory, insert: str, durability: str
) -> None:
    queue = queue_factory(batch_tasks_max=3, durability=durability)
    most = 0
    with processes(queue.path) as (inserter, worker):
        for _ in range(BATCHES):
            inserter(insert)
            worker(ALL)
            most = max(most, len(inserter.logs))
    assert most <= FEW + 1  # an inserter syncs its batch through a descriptor of its own


def test_updates_keep_few_logs_in_each_queue(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "g", batch_tasks_max=4, durability="none", shards=1)
    group["a"].insert_many(range(4 * BATCHES), batch_tasks=4)
    most = 0
    with processes(group.path) as (mover, last):
        last("a, b = opened['a'], opened['b']")
        for _ in range(BATCHES):
            last("held = a.lease(2)")
            mover(
                "for task in opened['a'].lease(2):\n"
                "    with opened.update() as update:\n"
                "        update.complete(task); update.insert('b', 1)\n"
            )
            last("a.complete(held)")
            last("while held := b.lease(50): b.complete(held)")
            most = max(most, len(mover.logs))
    assert most <= 2 * FEW + 2


# -- a process that finds nothing to do ---------------------------------------------------------------------------


def of_many(queue: Queue, process: Process, batches: int = 20) -> None:
    """Have a process complete one of two tasks of each batch, and hold nothing then."""
    queue.insert_many(range(2 * batches), batch_tasks=2)
    process(
        f"held = opened.lease({2 * batches})\n"
        "done = {task.batch: task for task in held}.values()\n"
        "opened.complete([*done])\n"
        "opened.release([task for task in held if task not in done])"
    )


@pytest.fixture
def pairs(queue_factory: QueueFactory) -> Queue:
    """A queue with batches of two tasks."""
    return queue_factory(batch_tasks_max=2, durability="none")


def rest_of(queue: Queue, batches: int = 20) -> list[LeasedTask]:
    """Lease what `of_many` has left."""
    held = queue.lease(batches + 1)
    assert len({task.batch for task in held}) == len(held) == batches
    return held


def test_the_next_look_that_finds_nothing_closes_logs_of_batches_that_another_has_finished(pairs: Queue) -> None:
    with processes(pairs.path, 1) as (mine,):
        of_many(pairs, mine)
        pairs.complete(rest_of(pairs))
        assert len(mine.unlinked) > FEW, "what is asked for must be possible"
        mine("assert opened.lease() == []")
        assert mine.unlinked == []


@pytest.mark.parametrize(
    "waiting",
    [
        "opened.lease(wait_s=6000)",
        "next(iter(opened.poll(until='forever')))",
        "import asyncio\nasync def first():\n    async for task in opened.poll_async(until='forever'): return\n"
        "asyncio.run(first())",
    ],
)
def test_what_waits_closes_logs_of_batches_that_another_finishes_meanwhile(pairs: Queue, waiting: str) -> None:
    with processes(pairs.path, 1) as (mine,):
        of_many(pairs, mine)
        held = rest_of(pairs)
        mine("assert opened.lease() == []")
        assert len(mine.logs) > FEW, "their batches have not finished"
        mine.begin(waiting)
        pairs.complete(held)
        until(lambda: not mine.unlinked, "the process that waits to close what it has open")
        assert mine.logs == []
        pairs.insert("ends the wait")
        mine.end()


def test_a_producer_that_waits_closes_the_log_of_the_batch_that_it_inserted_into(queue_factory: QueueFactory) -> None:
    queue = queue_factory(batch_tasks_max=8)
    with processes(queue.path) as (producer, worker):
        producer("for i in range(3): opened.insert(i)")
        assert len(producer.logs) == 2
        producer.begin("opened.wait(timeout_s=6000)")
        until(lambda: worker(ALL) or queue.status().drained, "the batch to be worked off")
        producer.end()
        until(lambda: worker("opened.lease()") or not list(queue.path.glob("[0-9]*/movements/*/*")), "its end")
        producer("opened.lease()")
        assert producer.logs == []


def test_a_look_at_one_queue_closes_what_has_finished_in_the_others_of_the_process(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "g", batch_tasks_max=8)
    with processes(group.path) as (mover, worker):
        mover("a, b = opened['a'], opened['b']; a.insert(1); b.insert(1); b.insert(2)")
        mover("while held := a.lease(): a.complete(held)")
        worker("b = opened['b']")
        until(
            lambda: worker("while held := b.lease(50): b.complete(held)") or len(mover.unlinked) >= 2,
            "the batch of the other queue to finish",
        )
        mover("a.lease()")
        assert mover.unlinked == []


def test_a_group_that_waits_closes_logs_in_all_its_queues(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "g", batch_tasks_max=2, durability="none")
    names = [f"q{number}" for number in range(4)]
    for name in names:
        group[name].insert_many(range(10), batch_tasks=2)
    with processes(group.path, 1) as (mine,):
        mine("first, *others = opened.lease(40)\nfirst.complete()\nfor task in others: task.release()")
        assert len(mine.logs) > FEW
        held = group.lease(40)
        assert len(held) == 39
        mine.begin("opened.lease(wait_s=6000)")
        for task in held:
            task.complete()
        until(lambda: mine.logs == [], "the process that waits to close what it has open")
        group["q0"].insert("ends the wait")
        mine.end()


@pytest.mark.parametrize("ended_by", ["purge", "delete", "cancel", "gc"])
def test_batches_that_end_otherwise_are_let_go_of(pairs: Queue, ended_by: str) -> None:
    with processes(pairs.path, 1) as (mine,):
        of_many(pairs, mine)
        assert len(mine.logs) > FEW
        held = rest_of(pairs)  # a look that finds a task closes nothing
        if ended_by == "cancel":
            pairs.release(held)
            pairs.cancel([task.id for task in pairs.tasks()])
        elif ended_by == "purge":
            pairs.purge()
        elif ended_by == "delete":
            pairs.delete()
        else:
            for task in held:
                task.bury("no")
            pairs.gc()
        mine("try: opened.lease()\nexcept Exception as error: assert 'deleted' in str(error)")
        assert mine.logs == []


# -- what stays ---------------------------------------------------------------------------------------------------


def test_a_log_that_is_used_stays_and_one_that_was_not_for_a_while_is_closed(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(2), batch_tasks=1)
    one, other = q.lease(2)
    for _ in range(5):
        clock.advance(UNUSED_S * 0.9)
        one.renew(1000)
        other.renew(1000)
        assert q.lease() == []
        assert {log.batch for log in q.store.logs} == {one.batch, other.batch}
    for _ in range(3):
        clock.advance(UNUSED_S)
        one.renew(1000)
        q.lease()
    assert [log.batch for log in q.store.logs] == [one.batch]
    other.complete()
    one.complete()
    assert q.status().completed == 2


def test_renewals_that_follow_each_other_look_once_a_second(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    q.insert("a")
    [task] = q.lease()
    asked: list[OpenLogs] = []
    monkeypatch.setattr(OpenLogs, "let_go_of_own", lambda logs: asked.append(logs))
    for looks in (1, 2):
        for _ in range(5):
            task.renew(1000)
        assert [logs is q.store.logs for logs in asked].count(True) == looks
        clock.advance(SELDOM_S)


def test_a_log_that_waits_for_a_decision_stays(q: Queue, clock: ManualClock) -> None:
    """It knows for how long the process has waited, which no record says that has a time in the future."""
    q.insert("a")
    q.lease()
    [log] = q.store.logs
    log.replay_state.prepared["of an update"] = object()  # type: ignore[index, assignment]
    for _ in range(3):
        clock.advance(UNUSED_S)
        q.store.logs.let_go()
    assert not log.closed
    log.replay_state.prepared.clear()
    q.store.logs.let_go()
    clock.advance(UNUSED_S)
    q.store.logs.let_go()
    assert log.closed


def test_a_log_in_which_another_thread_is_stays(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    queue.insert("a")
    [task] = queue.lease()
    is_in, may_go = threading.Event(), threading.Event()

    def stay() -> None:
        with LockedBatch(queue.store, task.batch) as locked:
            os.unlink(locked.log.path)  # as if it had finished
            is_in.set()
            assert may_go.wait(PATIENCE_S)
            assert not locked.log.closed

    thread = threading.Thread(target=stay)
    thread.start()
    try:
        assert is_in.wait(PATIENCE_S)
        queue.store.logs.let_go()
        [log] = queue.store.logs
        assert not log.closed
    finally:
        may_go.set()
        thread.join()
    queue.store.logs.let_go()
    assert log.closed


def test_a_lease_whose_log_was_let_go_of_is_lost_as_ever(queue_factory: QueueFactory) -> None:
    queue = queue_factory(lease_s=0.2, batch_tasks_max=1)
    queue.insert("a")
    [late] = queue.lease()
    with Queue(queue.path) as other:
        until(lambda: [task.complete() for task in other.lease()], "the lease to run out")
    [left] = logs_here(queue.path)
    assert left.endswith(" (deleted)")
    assert queue.lease() == []
    assert logs_here(queue.path) == []
    with pytest.raises(LeaseLost, match="finished") as lost:
        late.complete()
    assert lost.value.tokens == [late.token]


# -- programs -----------------------------------------------------------------------------------------------------


def test_a_worker_that_waits_keeps_no_log_of_a_batch_that_another_has_finished(pairs: Queue) -> None:
    pairs.insert_many(range(40), batch_tasks=2)
    held = pairs.lease(40)
    taken = list({task.batch: task for task in held}.values())
    pairs.release([task for task in held if task not in taken])
    worker = subprocess.Popen([sys.executable, "-m", "fsqueue_cli", "run", str(pairs.path), "--forever", "--", "true"])
    try:
        until(lambda: pairs.status().completed == 20, "the worker to do its part")
        assert len(logs_of(worker.pid)) > FEW
        pairs.complete(taken)
        until(lambda: not unlinked(worker.pid), "the worker to close them")
        assert worker.poll() is None
    finally:
        worker.terminate()
        worker.wait()


def test_a_worker_with_a_long_task_keeps_no_log_of_a_finished_batch(pairs: Queue) -> None:
    """It looks for no other task meanwhile, but renews its lease."""
    pairs.insert_many(range(40), batch_tasks=2)
    held = pairs.lease(40)
    taken = list({task.batch: task for task in held}.values())
    pairs.release([task for task in held if task not in taken])
    begun, over = pairs.path.parent / "begun", pairs.path.parent / "over"
    begun.mkdir()
    os.mkfifo(over)
    command = f"touch {begun}/$$; [ $(ls {begun} | wc -l) -lt 20 ] || read -r _ < {over}"
    worker = subprocess.Popen(
        [sys.executable, "-m", "fsqueue_cli", "run", str(pairs.path), "--lease", "2", "--", "sh", "-c", command]
    )
    try:
        until(lambda: len(list(begun.iterdir())) == 20, "the worker to do all but the long task")
        assert len(logs_of(worker.pid)) > FEW
        pairs.complete(taken)
        until(lambda: not unlinked(worker.pid), "the worker to close them")
        assert worker.poll() is None
    finally:
        with open(os.open(over, os.O_RDWR), "w") as pipe:  # open for reading, too: it waits for no reader
            pipe.write("\n")
            pipe.flush()
            assert worker.wait() == 0


def test_a_gateway_keeps_few_logs_of_batches_that_others_finish(queue_factory: QueueFactory, tmp_path: Path) -> None:
    queue = queue_factory(shards=1, batch_tasks_max=4, durability="none")
    queue.insert_many(range(4 * BATCHES), batch_tasks=4)
    elsewhere = queue_factory("elsewhere", batch_tasks_max=1)
    elsewhere.insert_many(range(FEW + 1))
    assert len(elsewhere.lease(FEW + 1)) == len(logs_here(elsewhere.path)) == FEW + 1
    most = 0
    with gateways(tmp_path) as serve, connect(serve(queue.path)) as served, processes(queue.path, 1) as (last,):
        queue.close()
        for _ in range(BATCHES // 3):
            last("held = opened.lease(2)")
            served.complete(served.lease(2))
            last("opened.complete(held)")
            most = max(most, len(logs_here(queue.path)))
    assert 0 < most <= FEW


def test_idle_queues_do_not_ask_each_other_for_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lessee of a group has 64 of them open: each of its looks asked each of the others."""
    group = Group.create(tmp_path / "g", durability="none")
    for number in range(20):
        group[f"q{number}"].insert(number)
        group[f"q{number}"].lease()[0].complete()
    group.close()
    asked: list[OpenLogs] = []
    real = OpenLogs.let_go_of_own
    monkeypatch.setattr(OpenLogs, "let_go_of_own", lambda logs: asked.append(logs) or real(logs))
    mine = Group(group.path)
    assert mine.lease() == []
    mine.lease()
    del asked[:]
    mine.lease()
    assert len(asked) < 100  # 20 squared without this
