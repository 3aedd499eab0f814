"""Looking without touching: status, tasks, peek, history."""

from __future__ import annotations

import errno
import itertools
import os
import tracemalloc
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import InvalidArgument, Queue, QueueNotFound, QueuePurged, Status, TaskNotFound
from fsqueue.clock import ManualClock
from fsqueue.filesystem import Filesystem
from fsqueue.format import names
from fsqueue.format.models import State
from fsqueue.format.names import TAKES_INSERTS
from fsqueue.protocol import finishing
from fsqueue.storage import counters, history, listing
from fsqueue.storage.store import Store
from fsqueue.views import inspection, outcomes
from tests import record_lines
from tests.concurrency.trapped import Trapped, trapped
from tests.support import QueueFactory, base_of, calls, files_below, insert_in_file, log_files, task_file_names


def numbers(q: Queue) -> tuple[int, ...]:
    """inserted, waiting, delayed, leased, completed, dead"""
    return tuple(q.status().as_dict().values())


def every_state(q: Queue) -> dict[str, str]:
    """One task in each state; their ids by state."""
    ids = {"completed": insert_in_file(q, "completed").id}
    q.lease()[0].complete({"r": 1})
    ids["dead"] = insert_in_file(q, "dead").id
    q.lease()[0].bury("no")
    ids["cancelled"] = insert_in_file(q, "cancelled").id
    q.cancel(ids["cancelled"])
    ids["leased"] = insert_in_file(q, "leased").id
    q.lease()
    ids["waiting"] = insert_in_file(q, "waiting").id
    ids["delayed"] = insert_in_file(q, "delayed", delay_s=50).id
    return ids


# -- status --------------------------------------------------------------------


@pytest.mark.batched
@pytest.mark.parametrize("after", ["logs", "task_files"])
def test_a_batch_that_finishes_between_two_listings_is_not_counted_twice(
    q: Queue, monkeypatch: pytest.MonkeyPatch, after: str
) -> None:
    q.insert_many(range(2), batch_tasks=2)
    [task] = q.lease()
    task.bury("no good")
    [last] = [info.id for info in q.tasks("waiting")]
    assert numbers(q) == (2, 1, 0, 0, 0, 1)
    list_them = getattr(listing, after)

    def finish_then(store: Any, shard: str) -> Any:
        found = list_them(store, shard)
        q.cancel([last])
        return found

    monkeypatch.setattr(listing, after, finish_then)
    assert numbers(q) == (1, 0, 0, 0, 0, 1)


def test_a_new_queue_is_drained(q: Queue) -> None:
    assert q.status() == Status()
    assert q.status().drained
    assert q.is_drained()
    assert numbers(q) == (0,) * 6


def test_the_numbers_follow_every_step(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(4), batch_tasks=4)
    q.insert("later", delay_s=100)
    assert numbers(q) == (5, 4, 1, 0, 0, 0)
    tasks = q.lease(4, lease_s=50)
    assert numbers(q) == (5, 0, 1, 4, 0, 0)
    tasks[0].complete()
    tasks[1].bury("no")
    tasks[2].release(10)
    assert numbers(q) == (5, 0, 2, 1, 1, 1)
    clock.advance(60)
    assert numbers(q) == (5, 2, 1, 0, 1, 1)
    tasks[3].complete()
    clock.advance(60)
    assert numbers(q) == (5, 2, 0, 0, 2, 1)
    status = q.status()
    assert (status.remaining, status.drained) == (2, False)
    q.complete(q.lease(9))
    assert numbers(q) == (5, 0, 0, 0, 4, 1)
    assert q.status().drained


def test_names_alone_give_an_estimate(q: Queue) -> None:
    q.insert_many(range(10), batch_tasks=5)
    q.insert("later", delay_s=100)
    assert q.status(exact=False).as_dict() == q.status().as_dict()
    [task] = q.lease()
    estimate = q.status(exact=False)
    assert estimate.inserted == 11
    assert estimate.leased == 0
    assert q.status().leased == 1
    task.complete()
    q.complete(q.lease(20))
    assert q.status(exact=False).as_dict() == q.status().as_dict()


def test_an_estimate_reads_no_logs(queue: Queue, clock: ManualClock) -> None:
    fs = Filesystem(str(queue.path), shared=False)
    q = Queue(queue.path, filesystem=fs, clock=clock)
    q.insert_many(range(10), batch_tasks=5)
    q.lease(5)
    read: list[str] = []
    look = fs.look
    fs.look = lambda path, flags=0: (read.append(path), look(path, flags))[1]  # type: ignore[method-assign]
    q.status(exact=False)
    assert not [path for path in read if "/movements/" in path]
    q.status()
    assert [path for path in read if "/movements/" in path]
    assert not [path for path in read if f"{base_of(q)}/queue/" in path], "no task is read for a number"


def test_looking_changes_nothing(q: Queue) -> None:
    ids = every_state(q)
    before = [(name, (q.path / name).read_bytes()) for name in files_below(q.path)]
    q.status()
    q.status(exact=False)
    q.peek(9)
    q.is_drained()
    for state in (None, *ids):
        list(q.tasks(state))
    for one in ids.values():
        q.task(one)
        q.history(one)
    list(q.dead())
    assert [(name, (q.path / name).read_bytes()) for name in files_below(q.path)] == before


def test_a_queue_with_all_states(q: Queue) -> None:
    every_state(q)
    assert numbers(q) == (5, 1, 1, 1, 1, 1)


def test_drained_while_something_is_delayed_or_leased_it_is_not(q: Queue, clock: ManualClock) -> None:
    q.insert("x", delay_s=10)
    assert not q.is_drained()
    clock.advance(10)
    [task] = q.lease()
    assert not q.is_drained()
    task.fail("oops", 5)
    assert not q.is_drained()
    clock.advance(5)
    q.lease()[0].bury("no")
    assert q.is_drained()
    assert q.status().drained


# -- tasks -----------------------------------------------------------------------


@pytest.mark.parametrize("state", ["waiting", "delayed", "leased", "completed", "dead", "cancelled"])
def test_tasks_are_listed_by_state(q: Queue, state: str) -> None:
    ids = every_state(q)
    [info] = q.tasks(state)
    assert (info.id, info.state) == (ids[state], state)
    assert q.task(ids[state]).state == state
    assert info.payload == q.task(ids[state]).payload == state


def test_without_a_state_the_unfinished_are_listed(q: Queue) -> None:
    ids = every_state(q)
    assert {info.id for info in q.tasks()} == {ids["waiting"], ids["delayed"], ids["leased"]}


def test_an_unknown_state_is_refused_at_once(q: Queue) -> None:
    with pytest.raises(InvalidArgument, match="state must be one of 'waiting'"):
        q.tasks("sleeping")


@pytest.mark.batched
def test_tasks_of_a_batch_at_work_are_told_apart(q: Queue) -> None:
    q.insert_many(range(6), batch_tasks=6)
    tasks = q.lease(5)
    tasks[0].complete("done")
    tasks[1].bury("no")
    tasks[2].release(5)
    states = {
        info.id: info.state
        for state in ("completed", "dead", "delayed", "leased", "waiting")
        for info in q.tasks(state)
    }
    assert [states[f"{tasks[0].batch}.{index}"] for index in range(6)] == [
        "completed",
        "dead",
        "delayed",
        "leased",
        "leased",
        "waiting",
    ]
    assert {info.payload for info in q.tasks()} == {2, 3, 4, 5}
    assert q.task(tasks[0].id).result == "done"
    assert q.task(tasks[1].id).error == "no"


def test_what_is_known_of_a_task_on_its_way(q: Queue, clock: ManualClock) -> None:
    begin = clock.now_s
    ref = q.insert({"a": 1}, delay_s=10)
    info = q.task(ref.id)
    assert (info.state, info.available_at, info.lease_until, info.attempt) == ("delayed", begin + 10, None, 0)
    clock.advance(10)
    assert q.task(ref.id).state == "waiting"
    [task] = q.lease(lease_s=30)
    clock.advance(1)
    info = q.task(ref.id)
    assert (info.state, info.lease_until, info.attempt, info.since) == ("leased", begin + 40, 1, begin + 10)
    assert info.worker is not None
    assert info.worker["name"] == "w1"
    clock.advance(30)
    info = q.task(ref.id)
    assert (info.state, info.lease_until, info.attempt) == ("waiting", None, 1)
    task.complete()
    info = q.task(ref.id)
    assert (info.state, info.since, info.attempt) == ("completed", begin + 41, 1)
    assert info.as_dict()["state"] == "completed"


def test_versions_grow(q: Queue) -> None:
    ref = q.insert("x")
    seen = [q.task(ref.id).version]
    [task] = q.lease()
    seen.append(q.task(ref.id).version)
    task.renew()
    seen.append(q.task(ref.id).version)
    task.release()
    seen.append(q.task(ref.id).version)
    assert seen == sorted(set(seen))


@pytest.mark.parametrize("verb", ["task", "history"])
def test_an_unknown_task_is_not_found_and_a_malformed_id_is_refused(q: Queue, verb: str) -> None:
    ref = q.insert("x")
    look = getattr(q, verb)
    with pytest.raises(TaskNotFound, match=str(q.path)):
        look(f"{'0' * 32}.0")
    with pytest.raises(InvalidArgument, match="not a task id"):
        look(ref.id.partition(".")[0])


@pytest.mark.parametrize("verb", ["task", "history"])
@pytest.mark.parametrize("step", ["untouched", "leased", "finished"])
def test_an_index_that_a_batch_does_not_have_is_not_found(q: Queue, verb: str, step: str) -> None:
    ref = q.insert("x")
    if step != "untouched":
        [task] = q.lease()
        if step == "finished":
            task.complete()
    with pytest.raises(TaskNotFound):
        getattr(q, verb)(ref.id.replace(".0", ".7"))


# -- history ----------------------------------------------------------------------


def test_the_history_of_a_task_begins_with_its_birth(q: Queue, clock: ManualClock) -> None:
    ref = q.insert("x")
    assert [(movement.op, movement.at) for movement in q.history(ref.id)] == [("insert", clock.now_s)]


def test_every_movement_is_told_with_its_circumstances(q: Queue, clock: ManualClock) -> None:
    begin = clock.now_s
    ref = q.insert("x")
    clock.advance(1)
    [task] = q.lease(lease_s=10)
    clock.advance(1)
    task.renew(20)
    clock.advance(1)
    task.fail("oops", 5)
    clock.advance(5)
    [task] = q.lease()
    q.release_all()
    [task] = q.lease()
    task.release(7)
    assert q.cancel(ref.id) == 1
    path = q.history(ref.id)
    ops = ["insert", "lease", "renew", "fail", "lease", "revoke", "lease", "release", "cancel"]
    assert [movement.op for movement in path] == ops
    assert [movement.at - begin for movement in path[:4]] == [0, 1, 2, 3]
    assert path[1].until == begin + 11
    assert path[2].until == begin + 22
    assert (path[3].error, path[3].available_at) == ("oops", begin + 8)
    assert path[1].worker is not None
    assert path[1].worker["name"] == "w1"
    assert path[1].lease == path[3].lease != path[4].lease
    assert "worker" not in path[3].as_dict()
    assert path[7].as_dict() == {"op": "release", "at": begin + 8, "lease": task.lease, "available_at": begin + 15}


def test_movements_that_did_nothing_are_not_told(q: Queue, clock: ManualClock) -> None:
    ref = q.insert("x")
    [task] = q.lease()
    [log] = log_files(q)
    with open(log, "ab") as file:
        file.write(b'~\n{"op":"complete","at":1,"lease":"nobody","tasks":[[0,1]]}\n{"op":"teleport","at":1}\n')
    assert [movement.op for movement in q.history(ref.id)] == ["insert", "lease"]
    task.complete()
    assert [movement.op for movement in q.history(ref.id)] == ["insert", "lease", "complete"]


# -- peek -------------------------------------------------------------------------


def test_peeking_shows_what_would_be_leased(q: Queue, clock: ManualClock) -> None:
    assert q.peek() == []
    for number in range(5):
        q.insert(number)
        clock.advance(0.001)
    q.insert("later", delay_s=10)
    assert [info.payload for info in q.peek(9)] == list(range(5))
    assert [info.payload for info in q.peek(2)] == [0, 1]
    q.lease(strict=True)
    assert [info.payload for info in q.peek()] == [1]
    clock.advance(10_000)
    assert len(q.peek(9)) == 6
    with pytest.raises(InvalidArgument, match="n must"):
        q.peek(0)


# -- wait -------------------------------------------------------------------------


def test_waiting_for_the_end(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(3))
    tasks = q.lease(3)
    seen: list[Status] = []

    def poll(status: Status) -> None:
        seen.append(status)
        if len(seen) % 5 == 0:
            tasks.pop().complete()

    status = q.wait(poll=poll)
    assert status.drained
    assert status == seen[-1] == Status(completed=3)
    assert len(seen) == 16
    assert len(tasks) == 0


def test_waiting_ends_with_the_time_given(q: Queue, clock: ManualClock) -> None:
    q.insert("x")
    before = clock.now_s
    status = q.wait(timeout_s=12)
    assert not status.drained
    assert clock.now_s - before == pytest.approx(12)
    assert q.wait(timeout_s=0).waiting == 1
    with pytest.raises(InvalidArgument, match="timeout_s"):
        q.wait(timeout_s=-1)


def test_an_idle_minute_of_waiting_costs_few_calls(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """docs/status.md says how many system calls, however many batches there are."""
    costs, of_listing = [], 8  # what os.listdir of a descriptor asks of the kernel, as strace counts
    for batches, leased in ((1, 0), (1, 1), (300, 1)):
        q = Queue(queue_factory(f"of-{batches}-{leased}").path, clock=clock)
        q.insert_many(range(batches), batch_tasks=1)
        if leased:
            q.lease(1, lease_s=10_000)
        begin, at = clock.now_s, {}
        with calls(monkeypatch) as counted:

            def sleep(seconds: float, counted: Counter[str] = counted, at: dict[float, int] = at) -> None:
                counted["sleep"] += 1
                at[clock.now_s] = counted.total() + (of_listing - 1) * counted["listdir"]
                clock.advance(seconds)

            monkeypatch.setattr(clock, "sleep", sleep)
            Queue(q.path, clock=clock).wait(timeout_s=3600)
        first, *_, last = (calls for now, calls in at.items() if 600 < now - begin < 3000)
        costs.append((last - first) / 40)
    assert max(costs) <= 60


def test_the_pauses_of_waiting_grow_with_the_time_waited(q: Queue, clock: ManualClock) -> None:
    q.insert("x")
    naps: list[float] = []

    def sleep(seconds: float) -> None:
        naps.append(seconds)
        clock.advance(seconds)

    clock.sleep = sleep  # type: ignore[method-assign]
    q.wait(timeout_s=3600)
    assert len(naps) < 350
    assert max(naps) <= 15 * 1.25
    waited = 0.0
    for nap in naps:
        assert nap <= max(0.0625, waited * 0.125)
        waited += nap
    assert waited == pytest.approx(3600)


def test_several_queues_are_waited_for_until_all_are_drained_at_once(
    queue_factory: QueueFactory, clock: ManualClock
) -> None:
    """What is completed in one may be inserted into the other, and the other way round."""
    one, two = (Queue(queue_factory(name).path, clock=clock) for name in ("one", "two"))
    one.insert(0)
    moves = [0]

    def sleep(seconds: float) -> None:
        clock.advance(seconds)
        if moves[0] < 6:
            source, target = (one, two) if moves[0] % 2 == 0 else (two, one)
            [task] = source.lease()
            moves[0] += 1
            if moves[0] < 6:
                target.insert(moves[0])
            task.complete()

    clock.sleep = sleep  # type: ignore[method-assign]
    assert fsqueue.wait([one, two]) == [Status(completed=3), Status(completed=3)]
    assert moves == [6]
    assert fsqueue.wait([]) == []


def test_what_was_purged_before_is_not_waited_for(q: Queue, clock: ManualClock) -> None:
    q.insert("x")
    other = Queue(q.path, clock=clock)
    other.purge()
    other.insert("y")
    assert q.wait(timeout_s=1) == Status(waiting=1)


@pytest.mark.parametrize("end", ["purge", "delete"])
@pytest.mark.parametrize("with_poll", [False, True])
def test_waiting_for_what_is_purged_or_deleted_ends_with_an_error(
    q: Queue, clock: ManualClock, end: str, with_poll: bool
) -> None:
    q.insert("x")
    other = Queue(q.path, clock=clock)

    def sleep(seconds: float) -> None:
        clock.advance(5)
        if end:
            getattr(other, end)()

    clock.sleep = sleep  # type: ignore[method-assign]
    with pytest.raises(QueuePurged if end == "purge" else QueueNotFound):
        q.wait(poll=(lambda status: None) if with_poll else None)


# -- what else lies there ------------------------------------------------------------


@pytest.mark.once
def test_what_is_listed_is_looked_at_and_what_is_done_is_not(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 300 batches with one leased task each, all 300,000 lines were parsed to list 300 tasks."""
    q.insert_many(range(100), batch_tasks=100)
    tasks = q.lease(100, lease_s=60)
    q.complete(tasks[3:])
    tasks[0].fail("later", delay_s=1000)
    tasks[1].release()
    looked: list[int] = []
    info = inspection._info
    monkeypatch.setattr(
        inspection,
        "_info",
        lambda batch, state, index, *rest: (looked.append(index), info(batch, state, index, *rest))[1],
    )
    listings: dict[State | None, list[int]] = {"leased": [2], "delayed": [0], "waiting": [1], None: [0, 1, 2]}
    for state, payloads in listings.items():
        looked.clear()
        assert [one.payload for one in q.tasks(state)] == payloads
        assert len(looked) <= 3
    looked.clear()
    assert [one.payload for one in q.peek(9)] == [1]
    assert len(looked) <= 3
    clock.advance(100)  # the lease has run out: the task waits
    assert [one.payload for one in q.tasks("waiting")] == [1, 2]
    assert list(q.tasks("leased")) == []


def test_stray_files_are_no_tasks(q: Queue) -> None:
    every_state(q)
    before = numbers(q)
    shards = list((base_of(q) / "queue").iterdir()) + list((base_of(q) / "movements").iterdir())
    for shard in shards:
        for name in (".nfs01", "notes.txt", "core"):
            (shard / name).write_text("x")
    for part in ("queue", "movements", "completions", "dead", "history"):
        (base_of(q) / part / "README").write_text("x")
        (base_of(q) / part / "zz").mkdir()
    assert numbers(q) == before
    assert len(list(q.tasks())) == 3
    assert len(list(q.tasks("completed"))) == 1
    assert len(list(q.dead())) == 1


def test_a_batch_seen_under_two_names_counts_once(q: Queue) -> None:
    """A listing may show a file before and after its renaming."""
    q.insert("x")
    [name] = task_file_names(q)
    path = Path(q.store.layout.task_file(name))
    path.with_name(str(name.at(5))).hardlink_to(path)
    assert numbers(q) == (1, 1, 0, 0, 0, 0)
    assert len(list(q.tasks())) == 1


def test_status_of_a_queue_that_was_finished_meanwhile(queue_factory: QueueFactory, clock: ManualClock) -> None:
    """Every shard is listed at another moment: what moves from logs to counters meanwhile counts once."""
    path = queue_factory(shards=2).path
    worker = Queue(path, clock=clock)
    worker.insert_many(range(12), batch_tasks=3)
    tasks = worker.lease(6)
    fs = Filesystem(str(path), shared=False)
    q = Queue(path, filesystem=fs, clock=clock)
    names, listed = fs.names, [0]

    def slow_names(directory: str, strict: bool = False) -> list[str]:
        found = names(directory, strict)
        listed[0] += 1
        if listed[0] % 2 == 0 and tasks:
            tasks.pop().complete()
        return found

    fs.names = slow_names  # type: ignore[method-assign]
    while tasks:
        status = q.status()
        assert status.inserted == 12, status
        assert status.dead == status.delayed == 0


def test_drained_is_not_said_of_a_generation_that_was_purged_a_moment_ago(queue: Queue, clock: ManualClock) -> None:
    """`queue.jsonl` was read within the last second, and so would not be read again before the look."""
    q, other = Queue(queue.path, clock=clock), Queue(queue.path, clock=clock)
    assert q.is_drained()
    other.purge()
    other.insert("after")
    assert not q.is_drained()


def at_each_listing(queue: Queue, clock: ManualClock, act: Callable[[int], object]) -> Queue:
    """The same queue; `act(n)` is called before its n-th listing of a directory."""
    listings = itertools.count(1)

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step == "names":
            act(next(listings))
        return call(*args)

    return Queue(queue.path, filesystem=Trapped(str(queue.path), trap), clock=clock)


@pytest.mark.parametrize("moment", range(1, 9))
def test_a_status_is_not_told_of_a_queue_that_was_deleted_meanwhile(
    queue: Queue, clock: ManualClock, moment: int
) -> None:
    """Else a queue that was deleted would be called drained."""
    queue.insert("x")
    with pytest.raises(QueueNotFound):
        at_each_listing(queue, clock, lambda at: queue.delete() if at == moment else None).status()


def test_tasks_that_a_retry_has_recorded_are_there_before_they_are_published(queue: Queue, clock: ManualClock) -> None:
    """The retrier may be stopped at that moment, for ever: its letters are no letters any more."""
    queue.insert("x")
    queue.lease()[0].bury("no")
    seen = []

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step in ("write", "fsync", "rename"):
            other = Queue(queue.path, clock=clock)
            seen.append((other.status().as_dict(), other.is_drained()))
        return call(*args)

    with trapped(queue, trap) as mine:
        mine.retry_dead()
    states = {(found["dead"], found["waiting"], drained) for found, drained in seen}
    assert states == {(1, 0, True), (0, 1, False)}


class Renamed(Filesystem):
    """Where somebody renames the task file whenever it is about to be read."""

    def __init__(self, root: str, rename: Callable[[], object], times: int) -> None:
        super().__init__(root, shared=False)
        self.rename, self.times = rename, times

    def read_pieces(self, path: str) -> list[tuple[int, bytes]]:
        if "/queue/" in path and self.times:
            self.times -= 1
            self.rename()
        return super().read_pieces(path)


def test_a_payload_is_found_while_its_file_is_renamed_again_and_again(q: Queue) -> None:
    q.insert_many(["one", "two"], batch_tasks=2)
    one, two = q.lease(2, lease_s=100_000)
    lease_s = itertools.count(90_000, -1_000)
    fs = Renamed(str(q.path), lambda: q.renew([one, two], next(lease_s)), 5)  # each time to an earlier name
    assert Queue(q.path, filesystem=fs).attach(two.token).payload == two.payload
    assert fs.times == 0
    fs.times = 3
    found = [info.payload for info in Queue(q.path, filesystem=fs).tasks("leased")]
    assert found in (["one", "two"], ["two", "one"])  # with batches of one, in the order of their names
    assert fs.times == 0


@pytest.mark.once
@pytest.mark.parametrize("view", ["peek", "waiting", "unfinished", "task"])
@pytest.mark.parametrize("batch_tasks", [2, None])
def test_a_task_whose_batch_finishes_during_a_look_is_not_shown_without_its_payload(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, view: str, batch_tasks: int | None
) -> None:
    """Its tasks are in a file, which others rename all the time, or in the log. They end before each step of a look."""
    monkeypatch.setattr(finishing, "LINGER_MS", -1)
    shown: set[bool] = set()
    for end_at in itertools.count():
        queue = queue_factory(f"{end_at}", shards=1)
        if batch_tasks is None:
            queue.insert("a")
            queue.insert("b")
        else:
            queue.insert_many(["a", "b"], batch_tasks=batch_tasks)
        one, two = queue.lease(2, lease_s=100_000)
        one.release()
        steps, lease_s = itertools.count(), itertools.count(90_000, -1_000)

        def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
            number = next(steps)  # noqa: B023 - called at once
            if number < end_at:  # noqa: B023
                queue.renew([two], next(lease_s))  # noqa: B023
            elif number == end_at:  # noqa: B023
                queue.cancel(one.id)  # noqa: B023
                two.complete()  # noqa: B023
            return call(*args)

        with trapped(queue, trap) as mine:
            match view:
                case "peek":
                    found = mine.peek(2)
                case "task":
                    found = [mine.task(one.id)]
                    assert found[0].state in ("waiting", "cancelled")
                case _:
                    found = list(mine.tasks("waiting" if view == "waiting" else None))
        assert all(info.payload in ("a", "b") for info in found), f"step {end_at}: {found}"
        shown.add(len(found) > 0)
        if next(steps) <= end_at:
            break
    assert end_at > 5
    assert shown == ({True} if view == "task" else {True, False})


@pytest.mark.batched
def test_the_shards_add_up_to_the_status(queue_factory: QueueFactory) -> None:
    """Whatever is on its way: batches at work, finished ones, letters that were dealt with or are not written yet."""
    queue = queue_factory(shards=4, max_attempts=1)
    queue.insert_many(range(300), batch_tasks=16)
    queue.insert_many(range(20), delay_s=1000)
    tasks = queue.lease(70)
    queue.complete(tasks[:36])
    for task in tasks[40:50]:
        task.bury("no")
    queue.retry_dead([next(iter(queue.dead())).id])
    found = [inspection.status_of_shard(queue.store, shard) for shard in names.all_shards(4)]
    counted = sum(counters.completed(queue.store, counters.sizes(queue.store)).values())
    status = queue.status()
    assert status.as_dict() == {
        name: sum(one.as_dict()[name] for one in found) + (counted if name in ("inserted", "completed") else 0)
        for name in status.as_dict()
    }
    assert 0 < counted < status.completed, "some are in a counter, and some are not"


def test_each_state_is_looked_for_where_it_can_be(
    queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`ls --state leased` read every task file of the queue."""
    q = Queue(queue.path, clock=clock)
    q.insert_many(range(40), batch_tasks=1)
    q.insert_many(range(30), batch_tasks=1, delay_s=60)
    [done, held, failed] = q.lease(3)
    done.complete()
    failed.fail("once more", delay_s=50)
    reads: list[str] = []
    usual = q.store.fs.read_pieces
    monkeypatch.setattr(q.store.fs, "read_pieces", lambda path: (reads.append(path), usual(path))[1])
    found = {}
    for state in ("leased", "delayed", "waiting"):
        reads.clear()
        found[state] = [info.id for info in q.tasks(state)]
        found[f"{state}: files"] = len({path for path in reads if "/queue/" in path})
    assert found["leased"] == [held.id]
    assert failed.id in found["delayed"]
    assert (len(found["delayed"]), len(found["waiting"])) == (31, 37)
    assert found["leased: files"] == 1
    assert found["delayed: files"] <= 33
    assert found["waiting: files"] <= 40
    clock.advance(61)
    assert len(list(q.tasks("waiting"))) == 68
    assert list(q.tasks("delayed")) == []


def test_letters_that_are_retried_during_each_look_are_counted_once(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their letters were read before the retry, and their new batches after it, in one look after the other."""
    other = Queue(q.path, clock=q.store.clock)
    q.insert_many(range(inspection.ROUNDS), batch_tasks=1)
    for task in q.lease(inspection.ROUNDS):
        task.bury("no")
    left = [letter.id for letter in q.dead()]
    read = inspection.deadletters.Ids

    def retried_behind_it(*arguments: Any) -> Any:
        found = read(*arguments)
        if left:
            other.retry_dead([left.pop()])
        return found

    monkeypatch.setattr(inspection.deadletters, "Ids", retried_behind_it)
    assert numbers(q) == (inspection.ROUNDS, inspection.ROUNDS, 0, 0, 0, 0)


@pytest.mark.batched
def test_batches_that_are_counted_during_each_look_are_counted_once(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their bytes came after the look had asked how long the counters are. Their logs are there still."""

    def dying(*_: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    other = Queue(q.path, clock=q.store.clock)
    q.insert_many(range(2 * inspection.ROUNDS), batch_tasks=2)
    held = [other.lease(2) for _ in range(inspection.ROUNDS)]
    shards = listing.shards

    def finish_then(store: Store) -> Any:
        if held:
            other.complete(held.pop())
        return shards(store)

    monkeypatch.setattr(history, "keep", dying)
    monkeypatch.setattr(listing, "shards", finish_then)
    assert numbers(q) == (2 * inspection.ROUNDS, 0, 0, 0, 2 * inspection.ROUNDS, 0)
    assert not held


@pytest.mark.batched
def test_a_status_keeps_numbers_and_not_the_states_of_all_tasks(queue_factory: QueueFactory) -> None:
    q = queue_factory(durability="none")
    q.insert_many(range(150 * 1024))
    for _ in range(150):
        q.lease(1024, lease_s=3600)
    q.status()
    tracemalloc.start()
    try:
        found = q.status()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    assert found.leased == found.inserted == 150 * 1024


# -- open batches ---------------------------------------------------------------------


@pytest.mark.once
def test_an_index_that_an_insert_has_skipped_is_no_task(queue_factory: QueueFactory, clock: ManualClock) -> None:
    """After a power loss others may have seen inserts that are gone, so a later one may leave a gap."""
    q = Queue(queue_factory(shards=1).path, clock=clock)
    first = q.insert("a").id
    [log] = log_files(q)
    with log.open("ab") as file:
        file.write(record_lines.insert(clock.now_ms(), "0" * 16, 3, b'{"payload":"d"}\n'))
    batch = first.partition(".")[0]
    other = Queue(q.path, clock=clock)
    assert other.status() == other.status(exact=False)
    assert other.status().inserted == 2
    assert [info.payload for info in other.tasks()] == [info.payload for info in other.peek(9)] == ["a", "d"]
    for look in (other.task, other.history):
        with pytest.raises(TaskNotFound):
            look(f"{batch}.1")
    assert other.cancel([f"{batch}.2"]) == 0
    assert outcomes.unknown(other.store, [f"{batch}.{index}" for index in range(5)]) == [
        f"{batch}.{n}" for n in (1, 2, 4)
    ]
    assert [task.id for task in other.lease(9)] == [first, f"{batch}.3"]
    assert list(other.fsck()) == []


@pytest.mark.once
def test_views_of_open_and_sealed_batches(queue_factory: QueueFactory, clock: ManualClock) -> None:
    q = Queue(queue_factory(shards=1, batch_tasks_max=3).path, clock=clock)
    ids, born = [], []
    for n in range(5):
        ids.append(q.insert({"n": n}, delay_s=100 if n == 4 else 0).id)
        born.append(clock.now_s)
        clock.advance(1)
    assert [name.inserted for name in task_file_names(q)] == [3, TAKES_INSERTS]
    assert q.status(exact=False) == q.status()
    assert (q.status().waiting, q.status().delayed) == (4, 1)
    assert [info.id for info in q.peek(9)] == ids[:4]
    assert [info.since for info in q.tasks("waiting")] == pytest.approx(born[:4])
    assert [info.available_at for info in q.tasks("delayed")] == pytest.approx([born[4] + 100])
    [done, held] = q.lease(2)
    done.complete({"r": 1})
    [dead] = q.lease()
    dead.bury("no")
    assert [(info.id, info.state, info.payload) for info in q.tasks()] == [
        (ids[1], "leased", {"n": 1}), (ids[3], "waiting", {"n": 3}), (ids[4], "delayed", {"n": 4}),
    ]  # fmt: skip
    assert [info.id for info in q.tasks("leased")] == [held.id] == [ids[1]]
    assert (q.task(ids[0]).state, q.task(ids[0]).result) == ("completed", {"r": 1})
    assert (q.task(ids[2]).state, q.task(ids[2]).payload) == ("dead", {"n": 2})
    for n, task_id in enumerate(ids):
        insert, *others = q.history(task_id)
        assert (insert.op, insert.at) == ("insert", pytest.approx(born[n]))
        assert [move.op for move in others] == [["lease", "complete"], ["lease"], ["lease", "bury"], [], []][n]
    q.release_all()
    assert (q.status().waiting, q.status().leased) == (2, 0)
    assert q.cancel(ids[3:]) == 2
    assert q.status().as_dict() == {"inserted": 3, "waiting": 1, "delayed": 0, "leased": 0, "completed": 1, "dead": 1}
    assert q.retry_dead() == 1
    assert sorted(info.payload["n"] for info in q.tasks("waiting")) == [1, 2]
    assert list(q.fsck()) == []
