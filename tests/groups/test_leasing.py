"""Leasing from the queues of a group, waiting for them, and workers over a pattern."""

from __future__ import annotations

import asyncio
import copy
import os
import shutil
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path
from unittest import mock

import pytest

import fsqueue
from fsqueue import Group, InvalidArgument, Queue, QueuePurged, Status, Worker
from fsqueue.clock import Entropy, ManualClock
from fsqueue.format import groups
from fsqueue.groups import members
from fsqueue.protocol import waiting
from fsqueue.protocol.leasing import Leaser
from fsqueue.storage import bells, listening
from fsqueue.storage.listening import Doorbell
from fsqueue.worker import feeding, reclaiming
from tests.support import calls, in_time
from tests.waiting import PATIENCE_S, until
from tests.worker import tasks

pytestmark = pytest.mark.once


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group.create(tmp_path / "group", shards=2, durability="none")


def done(group: Group) -> dict[str, int]:
    return {name: status.completed for name, status in group.status().queues.items()}


def test_a_lease_takes_the_most_urgent_of_all_and_shares_among_equals(group: Group) -> None:
    group["a"].insert_many(range(4))
    group["b"].insert_many(range(4))
    group["urgent"].insert("first", priority=1)
    assert [task.payload for task in group.lease()] == ["first"]
    assert sorted(task.queue.name for task in group.lease(4)) == ["a", "a", "b", "b"]  # type: ignore[attr-defined]
    assert [task.queue for task in group.matching("b").lease(9)] == [group["b"], group["b"]]
    assert group.lease(9, up_to=5) == []


def test_a_lease_finds_a_queue_that_comes_later(group: Group) -> None:
    assert group.lease() == []
    group["late"].insert("task")
    until(lambda: group.lease(), "the new queue to be found")


def test_a_waiting_lease_finds_a_queue_that_comes_meanwhile(group: Group) -> None:
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.extend(group.lease(wait_s=60)), daemon=True)
    waiting.start()
    group["late"].insert("task")
    until(lambda: found, "the new queue to be found")
    waiting.join()


def test_several_queues_are_leased_from_some_of_which_never_were(group: Group, tmp_path: Path) -> None:
    outside = Queue.create(tmp_path / "outside")
    group["a"].insert_many(range(2))
    outside.insert("outside")
    given = [group["a"], group["never"], outside]
    assert sorted(str(task.payload) for task in fsqueue.lease(given, 9)) == ["0", "1", "outside"]
    assert fsqueue.lease(given) == []
    found: list[object] = []
    waiting = threading.Thread(target=lambda: found.extend(fsqueue.lease(given, wait_s=60)), daemon=True)
    waiting.start()
    group["never"].insert("late")
    until(lambda: found, "the new queue to be found")
    waiting.join()
    assert fsqueue.lease([group["nowhere"]]) == []


def test_of_more_queues_than_are_open_each_is_looked_into(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also again later: what is not open is opened when its doorbell was rung, or a task of it comes due."""
    monkeypatch.setattr(members, "OPEN_MAX", 3)
    for number in range(10):
        group[f"q{number}"].insert(number)
    group["q3"].insert("later", delay_s=0.2)
    found: list[object] = []

    def look() -> int:
        for task in group.lease(3):
            task.complete()
            found.append(task.payload)
        return len(found)

    until(lambda: look() == 11, "all tasks")
    assert group.lease(3) == []
    for number in (7, 2):
        group[f"q{number}"].insert("again")
        until(lambda expected=number: look() == (12 if expected == 7 else 13), "what was inserted later")
    assert done(group) == {f"q{number}": 1 + (number in (2, 3, 7)) for number in range(10)}


def test_lessees_begin_in_different_queues(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else all would have the same 64 queues open, and the tasks of the others would wait until these are empty."""
    monkeypatch.setattr(members, "OPEN_MAX", 1)
    for number in range(8):
        group[f"q{number}"].insert_many(range(4))
    found = []
    for luck in (0.0, 0.3, 0.5, 0.99):
        monkeypatch.setattr(Entropy, "random", lambda _, luck=luck: luck)
        [task] = Group(group.path).lease()
        found.append(task.queue.path)
    assert len(set(found)) == 4


def test_nothing_is_said_before_each_queue_was_looked_into(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the lease before has looked into some of those that are open, and found a task in one."""
    monkeypatch.setattr(members, "OPEN_MAX", 3)
    for number in range(20):
        group[f"q{number:02}"].insert(number)
        if number not in (1, 19):
            group[f"q{number:02}"].lease()[0].complete()
    found = [task.payload for _ in range(2) for task in group.lease(1)]
    assert sorted(found) == [1, 19]
    assert group.lease() == []


def test_a_look_at_many_queues_comes_to_an_end(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a notification each is looked into once more, and then not again until something tells of it."""
    monkeypatch.setattr(members, "OPEN_MAX", 2)
    for number in range(40):
        group[f"q{number}"].insert(number)
    while taken := group.lease(9):
        for task in taken:
            task.complete()
    opened: list[object] = []
    real = members.Members._open_one
    monkeypatch.setattr(members.Members, "_open_one", lambda *args: opened.append(args) or real(*args))

    def is_quiet() -> bool:
        del opened[:]
        group.lease()
        return not opened

    until(is_quiet, "looks that open no queue")


def test_a_lessee_that_starts_opens_few_queues(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those beyond the number that may be open are looked into without opening them: most have nothing to do."""
    monkeypatch.setattr(members, "OPEN_MAX", 3)
    for number in range(40):
        group[f"q{number}"].insert(number)
        if number != 20:
            group[f"q{number}"].lease()[0].complete()
    opened: list[object] = []
    real = members.Members._open_one
    monkeypatch.setattr(members.Members, "_open_one", lambda *args: opened.append(args) or real(*args))
    assert [task.payload for task in group.lease(5)] == [20]
    assert len(opened) <= 4
    assert group.lease(5) == []


def test_tasks_are_leased_before_all_queues_were_looked_into(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "OPEN_MAX", 2)
    monkeypatch.setattr(members, "LOOKS_S", 0.0)
    monkeypatch.setattr(Entropy, "random", lambda _: 0.0)
    for number in range(30):
        group[f"q{number:02}"].insert(number)
        group[f"q{number:02}"].lease()[0].complete()
    first = group.directory().directories()[0]  # each lessee begins there, by this chance
    group[first].insert("first")
    looks: list[object] = []
    real = members.unopened_queues.remaining
    monkeypatch.setattr(members.unopened_queues, "remaining", lambda *args: looks.append(args) or real(*args))
    assert [task.payload for task in group.lease()] == ["first"]
    assert len(looks) < 10
    assert group.lease() == []
    assert len(looks) >= 28


def test_a_worker_that_starts_looks_into_all_queues_without_a_pause(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "OPEN_MAX", 2)
    monkeypatch.setattr(members, "LOOKS_S", 0.0)
    monkeypatch.setattr(Entropy, "random", lambda _: 0.0)
    for number in range(30):
        group[f"q{number:02}"].insert(number)
        group[f"q{number:02}"].lease()[0].complete()
    group[group.directory().directories()[-1]].insert("last")
    slept: list[object] = []
    real = feeding.Feeder._sleep
    monkeypatch.setattr(feeding.Feeder, "_sleep", lambda *args: slept.append(args) or real(*args))
    pauses: list[int] = []
    Worker(group, lambda payload: pauses.append(len(slept)), threads=1).run()
    assert pauses == [0]


def test_a_queue_that_comes_is_looked_into_before_those_that_wait_for_it(group: Group) -> None:
    for number in range(20):
        group[f"q{number}"].insert(number)
    clock = ManualClock()
    known = members._OfOne(group, clock)
    known.list_anew(lambda directory: False)
    group["new"].insert("new")
    clock.sleep(members.LIST_S)
    known.list_anew(lambda directory: False)
    assert len(known.wanted) == 21
    assert next(iter(known.wanted)) == "new"


def test_a_look_without_opening_trusts_no_silence_right_after_a_notification(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that inserts singly notifies once in a while: what it inserts in between is found by a second look."""
    monkeypatch.setattr(members, "OPEN_MAX", 1)
    for name in ("a", "b", "c"):
        group[name].insert(name)
        group[name].lease()[0].complete()
    assert group.lease() == []
    for name in ("a", "b", "c"):  # without a notification
        with mock.patch.object(Doorbell, "ring"):
            group[name].insert(name)
    found = [task.payload for _ in range(3) for task in group.lease(wait_s=PATIENCE_S)]
    assert sorted(found) == ["a", "b", "c"]


def test_a_paused_queue_does_not_keep_others_from_being_looked_into(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "OPEN_MAX", 2)
    for number in range(6):
        group[f"q{number}"].insert(number)
    for number in range(3):
        group[f"q{number}"].pause()
    got: list[object] = []
    in_time(lambda: [got.extend(group.lease(9)) for _ in range(6)] and None)
    assert sorted(task.payload for task in got) == [3, 4, 5]  # type: ignore[attr-defined]
    assert group.lease() == []


def test_idle_looks_at_many_queues_cost_a_bounded_number_of_calls(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one for each queue: those that are not open are asked in turn, at a bounded rate."""
    monkeypatch.setattr(members, "OPEN_MAX", 2)
    monkeypatch.setattr(members, "BELLS_MAX", 3)
    believe_bells_at_once(monkeypatch)
    costs = []
    for most in (10, 60):
        for number in range(most):
            group[f"q{number}"].insert(number)
        mine = Group(group.path)
        while mine.lease(50):
            pass
        at_rest(mine)  # on a slow machine what has rung is looked into once more by a later lease only
        with calls(monkeypatch) as counted:
            mine.lease()
        costs.append(sum(counted.values()))
    assert costs[1] <= costs[0] + 40  # lists and doorbells may be due; a look at each queue would cost 150 more


def believe_bells_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have bells count as settled at once, and read at each look."""
    for name in ("QUIET_S", "SETTLED_S", "FRESH_S"):
        monkeypatch.setattr(bells, name, 0)
    for module in (members, waiting):
        monkeypatch.setattr(module, "AGAIN_S", 0)  # the second look after a notification comes at once: ...
    monkeypatch.setattr(listening, "QUIET_S", 0)  # ... each insert has a notification of its own


@pytest.fixture
def other(group: Group, monkeypatch: pytest.MonkeyPatch) -> Group:
    """The group as another process has it; six queues whose tasks are done, two of which a lessee has open at a time.

    Bells count as settled at once, and are read at each look.
    """
    monkeypatch.setattr(members, "OPEN_MAX", 2)
    believe_bells_at_once(monkeypatch)
    made = Group(group.path)
    for number in range(6):
        made[f"q{number}"].insert(number)
        made[f"q{number}"].complete(made[f"q{number}"].lease())
    return made


def at_rest(group: Group) -> None:
    """Have a lessee look until it reads no doorbell any more, and looks into no queue: nothing will be due soon."""

    def does_nothing() -> bool:
        with ExitStack() as stack:
            watched = [
                stack.enter_context(mock.patch.object(of, name, autospec=True, side_effect=getattr(of, name)))
                for of, name in ((Doorbell, "read"), (Leaser, "lease"), (Leaser, "promise"))
            ]
            assert group.lease() == []
        return not any(one.called for one in watched) and group._local.source.due_s() > 60

    until(does_nothing, "the lessee to read no doorbell")


def test_an_idle_lessee_reads_no_doorbell_until_a_bell_rings(group: Group, other: Group) -> None:
    at_rest(group)
    for number in (4, 1, 5):
        other[f"q{number}"].insert("late")
        until(lambda: group.lease(), "the task to be found")
        at_rest(group)


def test_a_lessee_sees_that_queues_were_removed_though_no_bell_tells(
    group: Group, other: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "OPEN_MAX", 6)
    at_rest(group)
    assert len(group._local.source.stores) == 6
    for number in range(6):
        shutil.rmtree(group.path / f"q{number}")
    until(lambda: not group.lease() and not group._local.source.stores, "the lessee to let go of them")
    other.close()
    other["q3"].insert("new")
    until(lambda: group.lease(), "the new queue's task to be found")


def test_a_lessee_of_a_group_without_bells_finds_a_task(group: Group, other: Group) -> None:
    at_rest(group)
    os.unlink(groups.bells_file(str(group.path)))
    other["q2"].insert("late")
    until(lambda: group.lease(), "the task to be found")
    assert not os.path.exists(groups.bells_file(str(group.path)))


def test_a_loop_ends_when_all_are_drained_and_does_what_comes_meanwhile(group: Group) -> None:
    group["fetch"].insert_many(range(5))
    seen = []
    for task in group.poll(prefetch=2):
        with task:
            seen.append(task.payload)
            if isinstance(task.payload, int):
                group[f"parse{task.payload}"].insert(str(task.payload))
    assert sorted(map(str, seen)) == sorted(2 * ["0", "1", "2", "3", "4"])
    assert group.is_drained()


def test_a_loop_that_is_left_puts_back_what_it_had_leased(group: Group) -> None:
    for name in "ab":
        group[name].insert_many(range(3))
    with group.poll(prefetch=6) as tasks, next(tasks):
        pass
    assert group.status().status == Status(waiting=5, completed=1)


def test_a_queue_that_never_was_is_waited_for_together_with_others(group: Group) -> None:
    """It may come into being while it is waited for: a pipeline's next stage."""
    group["first"].insert(1)
    [task] = group["first"].lease()
    found: list[list[Status]] = []
    waiting = threading.Thread(
        target=lambda: found.append(fsqueue.wait([group["first"], group["second"]])), daemon=True
    )
    waiting.start()
    group["second"].insert(2)
    task.complete()
    [second] = group["second"].lease(wait_s=60)
    assert found == []
    second.complete()
    until(lambda: found, "the end")
    assert found == [[Status(completed=1), Status(completed=1)]]


def test_a_queue_outside_and_groups_are_waited_for_together(group: Group, tmp_path: Path) -> None:
    outside = Queue.create(tmp_path / "outside")
    outside.insert(1)
    group["a"].insert(1)
    told: list[list[Status]] = []
    assert fsqueue.wait([group, outside], 0, told.append) == [Status(waiting=1), Status(waiting=1)] == told[0]
    for queue in (outside, group["a"]):
        queue.lease()[0].complete()
    assert fsqueue.wait([str(outside.path), group.matching("a"), group["none"]]) == [
        Status(completed=1),
        Status(completed=1),
        Status(),
    ]
    assert group.wait() == Status(completed=1)


@pytest.mark.parametrize("end", ["purge", "delete"])
def test_what_was_purged_or_deleted_was_not_worked_off(group: Group, end: str) -> None:
    group["a"].insert(1)
    group["b"].insert(1)

    def act(status: Status) -> None:
        if status.waiting:
            getattr(Group(group.path)["b"], end)()
            for task in group["a"].lease():
                task.complete()

    with pytest.raises(QueuePurged, match=r"/b was (purged|deleted)"):
        group.wait(poll=act)


def test_a_group_is_drained_only_if_no_task_hops_from_queue_to_queue(group: Group) -> None:
    """A task lives at each moment, in one queue or the next. New queues come, and old ones are deleted."""
    group["q0"].insert(0)
    enough = threading.Event()
    hops: list[int] = []

    def hop() -> None:
        mine = Group(group.path)
        number = 0
        while not enough.is_set() or number < 20:
            [task] = mine[f"q{number % 5}"].lease(wait_s=60)
            mine[f"q{(number + 1) % 5}"].insert(number + 1)
            task.complete()
            if number % 3 == 2:
                mine.delete(f"q{number % 5}")
            number += 1
            hops.append(number)

    hopping = threading.Thread(target=hop, daemon=True)
    hopping.start()
    wrong = [f"after {len(hops)} hops" for _ in range(30) if group.is_drained()]
    enough.set()
    hopping.join()
    assert wrong == []
    assert not group.is_drained()


def test_a_worker_does_what_comes_into_being_while_it_runs(group: Group) -> None:
    for number in range(3):
        group[f"fetch{number}"].insert_many(range(4))
    group["other"].insert("left alone")
    lock = threading.Lock()
    new = iter(range(3, 6))

    def handler(payload: object) -> None:
        with lock:
            number = next(new, None)
        if number is not None:
            group[f"fetch{number}"].insert(number)

    report = Worker(group.matching("fetch[0-9]+"), handler, threads=2).run()
    assert (report.ended, report.completed) == ("drained", 15)
    assert group["other"].status().waiting == 1


def test_a_worker_of_more_queues_than_are_open(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "OPEN_MAX", 2)
    for number in range(9):
        group[f"q{number}"].insert_many(range(2))
    report = Worker(group, command=["true"], processes=2).run()
    assert (report.ended, report.completed) == ("drained", 18)
    assert set(done(group).values()) == {2}


def test_a_worker_with_processes_and_one_for_a_queue_that_never_was(group: Group) -> None:
    group["a"].insert(5)
    report = Worker([group["a"], group["never"]], tasks.double, processes=1).run()
    assert (report.ended, report.completed) == ("drained", 1)
    assert [result.result for result in group["a"].results()] == [{"double": 10}]
    assert not group["never"].exists()


def test_a_queue_that_is_deleted_while_a_worker_runs_is_no_error(group: Group) -> None:
    group["a"].insert_many(range(3))
    group["b"].insert(0)

    def handler(payload: object) -> None:
        Group(group.path).delete("b")

    report = Worker(group, handler, threads=1, prefetch=1).run()
    assert report.ended == "drained"
    assert group.status().status.completed >= 3


@pytest.mark.parametrize("kind", ["group", "plain"])
def test_a_worker_of_a_later_stage_that_starts_first_waits_for_the_earlier_ones(
    group: Group, tmp_path: Path, kind: str
) -> None:
    if kind == "group":
        first, second = group["fetch"], group["parse"]
    else:
        first, second = Queue.create(tmp_path / "first"), Queue.create(tmp_path / "second")
    first.insert_many(range(3))
    ends: list[str] = []
    said: list[fsqueue.Event] = []
    worker = Worker(second, tasks.nothing, threads=1, upstream=[first], tell=said.append)
    later = threading.Thread(target=lambda: ends.append(worker.run().ended), daemon=True)
    later.start()
    for number in range(3):
        [task] = first.lease()
        second.insert(number)
        until(lambda expected=number: second.status().completed == expected + 1, "the later stage")
        assert ends == []
        task.complete()
    until(lambda: ends, "the end of the later stage")
    assert ends == ["drained"]


def test_the_leases_of_a_killed_worker_end_in_all_queues_of_its_group(group: Group) -> None:
    """What its fork server starts gets the path of the group."""
    run = "0123456789abcdef"
    for name in ("a#1", "b"):
        group[name].insert(1)
        mine = Queue(group[name].path)
        mine._leaser.run_id = run
        assert len(mine.lease()) == 1
    group["c"].insert(1)
    assert len(group["c"].lease()) == 1
    subprocess.run(reclaiming.command([str(group.path)], run), check=True, timeout=PATIENCE_S, cwd="/")
    assert group.status().status == Status(waiting=2, leased=1)


def test_wrong_use_is_refused(group: Group) -> None:
    for wrong in (
        lambda: Worker([], "true"),
        lambda: Worker(str(group.path), "true"),  # type: ignore[arg-type]
        lambda: Worker(group, "true", upstream=5),  # type: ignore[arg-type]
        lambda: group.lease(0),
        lambda: group.lease(lease_s=0),
        lambda: group.poll(until="empty"),  # type: ignore[arg-type]
        lambda: list(group.queues(tasks_min=-1)),
        lambda: fsqueue.wait(group),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgument):
            wrong()


def test_all_of_it_can_be_sent_to_another_process(group: Group) -> None:
    group["a"].insert(1)
    for thing in (group, group["a"], group.matching("a")):
        assert [task.payload for task in copy.deepcopy(thing).lease(wait_s=1)] == [1]
        group["a"].release_all()


def test_an_asynchronous_loop_waits_for_a_queue_that_comes_into_being_and_comes_again(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "BELL_S", (0.01, 0.1))

    async def next_of(loop: fsqueue.AsyncPoll) -> object:
        async for task in loop:
            async with task:
                return task.payload
        return None

    async def use() -> None:
        assert [task async for task in group["q"].poll_async()] == []
        async with group["q"].poll_async(until="forever") as loop, asyncio.timeout(PATIENCE_S):
            for payload in ("first", "after a deletion"):
                waiting = asyncio.create_task(next_of(loop))
                await asyncio.sleep(0)  # it has begun
                await asyncio.to_thread(group["q"].insert, payload)
                assert await waiting == payload
                await asyncio.to_thread(group.delete, "q")

    asyncio.run(use())


def test_asynchronous_loops_over_several_queues_of_a_group(group: Group) -> None:
    """Each for one queue: there is none over a group."""

    async def payloads(name: str) -> list[object]:
        found = []
        async with asyncio.timeout(PATIENCE_S):
            async for task in group[name].poll_async(prefetch=2):
                async with task:
                    found.append(task.payload)
        return found

    async def all_of() -> list[list[object]]:
        return await asyncio.gather(*map(payloads, ("a", "b", "none")))

    group["a"].insert_many(range(5))
    group["b"].insert_many(list("xy"))
    assert [sorted(map(str, found)) for found in asyncio.run(all_of())] == [[*"01234"], [*"xy"], []]
    assert group.is_drained()
    assert not group["none"].exists()


def test_an_asynchronous_loop_ends_when_its_queue_is_deleted(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left to do. A loop in a thread ends by the same check."""
    monkeypatch.setattr(waiting, "BELL_S", (0.01, 0.1))

    async def use() -> list[object]:
        found = []
        async with asyncio.timeout(PATIENCE_S):
            async for task in group["q"].poll_async():
                async with task:
                    found.append(task.payload)
                await asyncio.to_thread(group.delete, "q")
        return found

    group["q"].insert_many(["first", "deleted"])
    assert asyncio.run(use()) == ["first"]
