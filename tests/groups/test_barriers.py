"""A barrier: its tasks become available once, after an instant at which the queues before them were drained."""

from __future__ import annotations

import errno
import itertools
import json
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Group, Task
from fsqueue.clock import ManualClock
from fsqueue.format import barriers as barrier_format
from fsqueue.groups import barriers, drain_check
from fsqueue.groups.group import NONE_S
from fsqueue.groups.group_source import GroupSource
from fsqueue.groups.queue import drained_behind_barriers
from fsqueue.storage import barrier_files
from fsqueue.storage.group_directory import GroupDirectory
from tests.waiting import PATIENCE_S, until

pytestmark = pytest.mark.once


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group.create(tmp_path / "g", shards=1, durability="none")


def work_off(group: Group, *queues: str) -> list[Any]:
    """Do what is available in these queues. Return the payloads."""
    done = []
    for name in queues:
        while tasks := group[name].lease(10):
            for task in tasks:
                task.complete()
                done.append(task.payload)
    return done


def states(group: Group) -> Counter[str]:
    return Counter(one.state for one in barriers.all_of(group))


# -- what it does ------------------------------------------------------------------------------------------------


def test_the_tasks_are_there_at_once_and_nobody_gets_them(group: Group) -> None:
    group["fetch"].insert(1)
    barrier = group.barrier(["fetch", "parse"], then=("report", {"a": 1}))
    assert (barrier.state, barrier.of, barrier.then) == ("waiting", ("fetch", "parse"), ("report",))
    assert group["report"].status().delayed == 1
    assert group["report"].lease() == []
    assert not group["report"].is_drained()
    assert barrier.state == "waiting"


def test_they_become_available_once_the_queues_are_drained(group: Group) -> None:
    group["fetch"].insert(1)
    barrier = group.barrier(["fetch", "parse"], then=[("report", Task("x", priority=2)), ("mail", b"y")])
    [task] = group["fetch"].lease()
    with group.update() as update:
        update.complete(task)
        update.insert("parse", 2)
    assert group.pass_barriers(at_once=True) == 0
    assert work_off(group, "parse") == [2]
    assert group.pass_barriers(at_once=True) == 1
    assert barrier.state == "fired"
    [task] = group["report"].lease()
    assert (task.payload, task.priority) == ("x", 2)
    assert work_off(group, "mail") == [b"y"]
    assert group.pass_barriers(at_once=True) == 0
    assert group["mail"].status().inserted == 1


def test_a_barrier_behind_a_barrier_waits_for_its_tasks(group: Group) -> None:
    group["a"].insert(1)
    one = group.barrier("a", then=("b", 2))
    two = group.barrier(["a", "b"], then=("c", 3))
    work_off(group, "a")
    group.pass_barriers(at_once=True)
    assert (one.state, two.state) == ("fired", "waiting")
    [task] = group["b"].lease()
    group.pass_barriers(at_once=True)
    assert two.state == "waiting"
    task.complete()
    group.pass_barriers(at_once=True)
    assert (two.state, work_off(group, "c")) == ("fired", [3])


def test_queues_that_are_drained_already_let_it_pass_at_once(group: Group) -> None:
    group.barrier("nothing", then=("report", 1))
    assert work_off(group, "report") == [1]


def test_a_pattern_counts_queues_that_come_later(group: Group) -> None:
    group["1#fetch"].insert(1)
    barrier = group.barrier(group.matching(".*#fetch"), then=("report", 1))
    group["2#fetch"].insert(2)
    work_off(group, "1#fetch")
    group.pass_barriers(at_once=True)
    assert (barrier.state, barrier.match, barrier.of) == ("waiting", ".*#fetch", ())
    work_off(group, "2#fetch")
    group.pass_barriers(at_once=True)
    assert barrier.state == "fired"


def test_dead_letters_are_no_tasks_unless_it_is_to_wait_for_them(group: Group) -> None:
    group["fetch"].insert(1)
    run = group.barrier("fetch", then=("report", "run"))
    wait = group.barrier("fetch", then=("report", "wait"), on_failure="wait")
    [task] = group["fetch"].lease()
    task.bury("bad")
    group.pass_barriers(at_once=True)
    assert (run.state, wait.state) == ("fired", "waiting")
    group["fetch"].retry_dead()
    group.pass_barriers(at_once=True)
    assert wait.state == "waiting"
    work_off(group, "fetch")
    group.pass_barriers(at_once=True)
    assert wait.state == "fired"


def test_as_dict_is_for_json(group: Group) -> None:
    group["fetch"].insert(1)
    barrier = group.barrier("fetch", then=[("report", 1), ("report", 2)])
    assert json.loads(json.dumps(barrier.as_dict())) == {
        "id": barrier.id,
        "state": "waiting",
        "of": ["fetch"],
        "match": None,
        "then": ["report", "report"],
        "on_failure": "run",
        "set_at": barrier.set_at,
        "join": False,
    }
    assert group.barriers() == [barrier]


@pytest.mark.parametrize(
    ("queues", "then"),
    [
        ([], ("b", 1)),
        ("a", []),
        ("a", ("b",)),
        ("a", "b"),
        ("a", ("a", 1)),
        ("a", ("b", Task(1, key="k"))),
        ("a", ("b", Task(1, delay_s=1))),
        (7, ("b", 1)),
        (b"a", ("b", 1)),
        ("", ("b", 1)),
        ("a", ("b", object())),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(group: Group, queues: Any, then: Any) -> None:
    with pytest.raises(fsqueue.InvalidArgument):
        group.barrier(queues, then)
    assert group.barriers() == []
    assert not (group.path / ".barriers").exists()


def test_the_whole_group_another_group_and_another_word_are_refused(group: Group, tmp_path: Path) -> None:
    other = Group.create(tmp_path / "other")
    for queues in (group, other.matching("a"), other["a"]):
        with pytest.raises(fsqueue.InvalidArgument):
            group.barrier(queues, then=("b", 1))
    with pytest.raises(fsqueue.InvalidArgument):
        group.barrier("a", then=("b", 1), on_failure="stop")  # type: ignore[arg-type]
    with pytest.raises(fsqueue.TaskTooLarge):
        group.barrier("a", then=[("b", "x" * (1 << 20))] * 10)


def test_barriers_that_would_wait_for_each_other_are_refused(group: Group) -> None:
    for name in "abc":
        group[name].insert(1)
    group.barrier("a", then=("b", 1))
    group.barrier("b", then=("c", 1))
    with pytest.raises(fsqueue.InvalidArgument, match="wait for each other"):
        group.barrier(group.matching("[cd]"), then=("a", 1))
    group.barrier("a", then=("c", 1))
    assert states(group) == {"waiting": 3}


def test_a_queue_that_refuses_the_task_leaves_no_barrier(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "g", task_bytes_max=1000)
    with pytest.raises(fsqueue.TaskTooLarge):
        group.barrier("a", then=[("big", 1), ("small", "x" * 2000)])
    assert group.barriers() == []
    assert group["big"].status().inserted == 0


def test_an_error_on_the_way_leaves_no_barrier(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    real = barriers.Commit.publish

    def fails(self: Any, *args: Any, **named: Any) -> Any:
        if self.store.path.endswith("/two") and args[0] != []:
            raise fsqueue.StorageError("It failed.")
        return real(self, *args, **named)

    monkeypatch.setattr(barriers.Commit, "publish", fails)
    with pytest.raises(fsqueue.StorageError, match=r"It failed\. There is no barrier"):
        group.barrier("a", then=[("one", 1), ("two", 2)])
    assert states(group) == {"cancelled": 1}
    assert group["one"].is_drained()
    assert group["two"].is_drained()


def test_an_error_before_anything_is_written_says_so(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting a barrier reads the others first: it refuses one that would wait for itself by way of them."""
    group["a"].insert(1)
    group.barrier("a", then=("b", 1))

    def fails(*args: object) -> Any:
        raise OSError(errno.EIO, "simulated", "a file")

    monkeypatch.setattr(barrier_files, "read", fails)
    with pytest.raises(fsqueue.StorageError, match=r"There is no barrier\.$") as refused:
        group.barrier("b", then=("c", 1))
    assert (refused.value.inserted, refused.value.new, refused.value.is_exact) == (0, 0, True)
    monkeypatch.undo()
    assert states(group) == {"waiting": 1}
    assert not group["c"].exists()


# -- what happens meanwhile ------------------------------------------------------------------------------------------


def test_cancel(group: Group) -> None:
    group["fetch"].insert(1)
    barrier = group.barrier("fetch", then=[("report", 1), ("mail", 2)])
    assert barrier.cancel()
    assert barrier.state == "cancelled"
    assert group["report"].is_drained()
    assert group["mail"].status().remaining == 0
    assert barrier.cancel()
    fired = group.barrier("nothing", then=("report", 1))
    group.pass_barriers(at_once=True)
    assert not fired.cancel()
    assert (fired.state, work_off(group, "report")) == ("fired", [1])


def test_a_task_of_a_barrier_is_cancelled_or_changed_by_its_user(group: Group) -> None:
    group["fetch"].insert(1)
    barrier = group.barrier("fetch", then=[("report", n) for n in range(3)])
    ids = {task.payload: task.id for task in group["report"].tasks()}
    group["report"].cancel(ids[0])
    group["report"].change(ids[1], available_at=4_000_000_000)
    work_off(group, "fetch")
    group.pass_barriers(at_once=True)
    assert (barrier.state, work_off(group, "report")) == ("fired", [2])
    [left] = group["report"].tasks()
    assert (left.payload, left.available_at) == (1, 4_000_000_000)


@pytest.mark.parametrize("how", ["purge", "delete"])
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_the_queue_of_then_is_purged_or_deleted(group: Group, how: str, is_cancelled: bool) -> None:
    group["fetch"].insert(1)
    barrier = group.barrier("fetch", then=("report", 1))
    getattr(group["report"], how)()
    if is_cancelled:
        assert barrier.cancel()
    work_off(group, "fetch")
    group.pass_barriers(at_once=True)
    assert barrier.state == ("cancelled" if is_cancelled else "fired")
    assert group["report"].status().remaining == 0


@pytest.mark.parametrize("how", ["purge", "delete"])
def test_a_queue_that_is_waited_for_is_purged_or_deleted(group: Group, how: str) -> None:
    group["fetch"].insert(1)
    barrier = group.barrier("fetch", then=("report", 1))
    getattr(group["fetch"], how)()
    assert group.pass_barriers(at_once=True) == 1
    assert (barrier.state, work_off(group, "report")) == ("fired", [1])


def test_a_directory_that_is_lost_leaves_the_tasks_where_they_are(group: Group) -> None:
    group["fetch"].insert(1)
    barrier = group.barrier("fetch", then=("report", 1))
    for path in (group.path / ".barriers").iterdir():
        path.unlink()
    (group.path / ".barriers").rmdir()
    work_off(group, "fetch")
    assert group.pass_barriers(at_once=True) == 0
    assert (barrier.state, barrier.cancel()) == ("forgotten", False)
    [task] = group["report"].tasks("delayed")
    group["report"].change(task.id, delay_s=0)
    assert work_off(group, "report") == [1]


def test_a_damaged_file_is_named_once_and_keeps_no_other_from_passing(
    group: Group, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = (group.barrier("nothing", then=("report", n)) for n in range(2))
    (group.path / ".barriers" / f"{bad.id}.waiting").write_text('{"op":"barrier"}\n')
    with caplog.at_level(logging.WARNING, "fsqueue"):
        again = Group(group.path)
        for _ in range(3):
            again.pass_barriers(at_once=True)
    assert (good.state, bad.state) == ("fired", "waiting")
    assert [record.getMessage() for record in caplog.records if bad.id in record.getMessage()][1:] == []
    assert "is damaged" in caplog.text
    assert group.barriers() == [good]


SOUND: dict[str, Any] = {
    "op": "barrier", "id": "01a22f2cccbc775ab1c8153288232f19", "at": 1, "of": ["a"], "match": None, "on_failure": "run",
    "then": [{"queue": "b", "task": {"payload": 1}}],
}  # fmt: skip


@pytest.mark.parametrize("content", [b"", b"[]\n", b"{}\n", json.dumps(SOUND).encode()])
def test_what_is_no_line_of_a_barrier_is_not_read_as_one(content: bytes) -> None:
    assert barrier_format.parse(content) is None


@pytest.mark.parametrize(
    "field",
    [
        {"id": "x"}, {"at": "1"}, {"of": [3]}, {"of": [""]}, {"of": ["a" * 256]}, {"of": []}, {"of": [], "match": "("},
        {"match": "b"}, {"match": "("}, {"on_failure": "no"}, {"then": []}, {"then": [{"queue": "b"}]},
        {"then": [{"queue": "", "task": {"payload": 1}}]}, {"then": [{"queue": "b", "task": {"b64": "!"}}]},
        {"then": [{"queue": "b", "task": {"b64": 1}}]},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_barrier_is_not_read_as_one(field: dict[str, Any]) -> None:
    """Any user of the group may have written it: a worker that looks must not meet an error later."""
    assert barrier_format.parse(json.dumps(SOUND).encode() + b"\n") is not None
    assert barrier_format.parse(json.dumps(SOUND | field).encode() + b"\n") is None


@pytest.mark.parametrize("kind", ["link", "directory", "pipe"])
def test_what_is_no_file_keeps_no_other_barrier_from_anything(
    group: Group, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    group["a"].insert(1)
    bad, good = (group.barrier("a", then=("b", n)) for n in range(2))
    path = group.path / ".barriers" / f"{bad.id}.waiting"
    path.unlink()
    {"link": lambda: path.symlink_to("x"), "directory": path.mkdir, "pipe": lambda: os.mkfifo(path)}[kind]()
    with caplog.at_level(logging.WARNING, "fsqueue"):
        assert group.barriers() == [good]
    [record] = caplog.records
    assert "Something is in the way while looking at the barrier" in record.getMessage()
    assert "It stays as it is until a process can take it further." in record.getMessage()
    assert good.cancel()
    assert group.barrier("a", then=("b", 3)).state == "waiting"
    with pytest.raises(fsqueue.StorageError, match="in the way while cancelling a barrier"):
        bad.cancel()


def test_a_barrier_whose_file_is_damaged_is_not_cancelled(group: Group) -> None:
    group["a"].insert(1)
    barrier = group.barrier("a", then=("b", 1))
    (group.path / ".barriers" / f"{barrier.id}.waiting").write_text("{}\n")
    with pytest.raises(fsqueue.StorageError, match=r"is damaged, .* Nothing was changed\."):
        barrier.cancel()
    assert barrier.state == "waiting"


def test_an_error_behind_the_decision_to_cancel_says_what_was_decided(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    group["a"].insert(1)
    barrier = group.barrier("a", then=("b", 1))

    def fails(*args: object, **named: object) -> Any:
        raise OSError(errno.ENOSPC, "simulated")

    monkeypatch.setattr(barriers.transitions, "cancel", fails)
    with pytest.raises(fsqueue.StorageFull, match="The barrier is cancelled: none of its tasks becomes available"):
        barrier.cancel()
    assert barrier.state == "cancelled"
    assert group["b"].status().remaining == 1
    monkeypatch.setattr(barriers, "insert", fails)
    with pytest.raises(fsqueue.StorageFull, match=r"There is no barrier\.$"):
        group.barrier("a", then=("c", 1))
    monkeypatch.undo()
    group.pass_barriers(at_once=True)
    assert group["b"].is_drained()


# -- who looks ---------------------------------------------------------------------------------------------------


NOTED: list[Any] = []
"""The payloads of what workers did in threads of this process."""


def note(payload: Any) -> None:
    NOTED.append(payload)


def worker(queue: fsqueue.GroupQueue) -> fsqueue.Worker:
    return fsqueue.Worker(queue, note, threads=1)


LOOKS: dict[str, Callable[[Group], object]] = {
    "a lease of a queue": lambda group: group["report"].lease(),
    "a lease of a queue that is not there": lambda group: group["nobody"].lease(),
    "leases for several": lambda group: group["report"].lease_for([(1, {"host": "h"})]),
    "a lease of the group": lambda group: group.lease(),
    "the status of the group": lambda group: group.status(),
    "a list of the barriers": lambda group: group.barriers(),
    "a wait for another queue": lambda group: group["nobody"].wait(),
    "a wait for the queues that are waited for": lambda group: group.matching("fetch|parse").wait(),
    "a loop over another queue": lambda group: [*group["fetch"].poll()],
    "a loop over some queues": lambda group: [*group.matching("fetch|parse").poll()],
    "a worker of those queues": lambda group: worker(group["fetch"]).run(),
}


@pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)
def test_whoever_finds_nothing_to_do_lets_it_pass(group: Group, look: Callable[[Group], object]) -> None:
    group["fetch"].insert(1)
    barrier = group.barrier(["fetch", "parse"], then=("report", 1))
    [task] = Group(group.path)["fetch"].lease()
    task.complete()
    look(Group(group.path))
    assert barrier.state == "fired"


def test_a_wait_for_the_last_stage_lets_all_pass(group: Group) -> None:
    """Also if no worker is left to do so. Here another thread does the tasks."""
    group["a"].insert(1)
    group.barrier("a", then=("b", 2))
    group.barrier("b", then=("c", 3))
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(lambda: Group(group.path)["c"].wait(PATIENCE_S))
        other, done = Group(group.path), list[Any]()
        other.pass_barriers = lambda **named: 0  # type: ignore[method-assign]  # it does its tasks, and no more

        def has_ended() -> bool:
            done.extend(work_off(other, "a", "b", "c"))
            return waited.done()

        until(has_ended, "all stages")
        assert waited.result().drained
    assert done == [1, 2, 3]


def test_a_loop_over_the_group_goes_on_with_the_next_stage(group: Group) -> None:
    group["a"].insert(1)
    group.barrier("a", then=("b", 2))
    group.barrier("b", then=("c", 3))
    done = []
    for task in group.poll():
        with task:
            done.append(task.payload)
    assert done == [1, 2, 3]


def test_workers_of_each_stage_end_when_their_stage_is_done(group: Group) -> None:
    """A worker of a later stage may start first: its task is in the queue, so it stays."""
    done = NOTED
    done.clear()
    group["a"].insert_many(range(20))
    group.barrier("a", then=[("b", n) for n in range(20, 30)])
    group.barrier("b", then=("c", 30))
    with ThreadPoolExecutor(3) as pool:
        workers = [pool.submit(worker(Group(group.path)[name]).run) for name in "cba"]
        reports = [worker.result(PATIENCE_S) for worker in workers]
    assert [report.ended for report in reports] == ["drained"] * 3
    assert sorted(done) == [*range(31)]
    assert done[-1] == 30
    assert sorted(done[:20]) == [*range(20)]


@pytest.mark.parametrize("looks", [[False], [True, False], [True, True]])
@pytest.mark.parametrize("passed", [0, 1])
def test_drained_is_asked_again_once_a_barrier_has_passed(looks: list[bool], passed: int) -> None:
    """The next stage may be among the queues. Without it the first answer holds."""
    asked = iter(looks)
    found = drained_behind_barriers(lambda: next(asked), [], lambda: passed)
    assert found is (looks[0] if not passed or not looks[0] else looks[1])
    assert [*asked] == (looks[1:] if not passed or not looks[0] else [])


def test_an_idle_worker_looks_each_half_second_while_a_barrier_waits(group: Group) -> None:
    """Whatever its pauses have grown to: the process that did the last task may be gone."""
    group["fetch"].insert(1)
    [task] = group["fetch"].lease()
    idle = Group(group.path)
    sources = [
        GroupSource([drain_check.source_of(idle.matching("report|other"))], None),
        idle["report"]._source(lambda: idle["report"]._leaser, None),
    ]
    for source in sources:
        assert source.look(1) == []
        assert source.due_s() > barriers.WAITING_S
    barrier = group.barrier("fetch", then=("report", 1))
    idle.pass_barriers(at_once=True)
    for source in sources:
        assert source.look(1) == []
        assert source.due_s() <= barriers.WAITING_S
    with ThreadPoolExecutor(1) as pool:
        waited = pool.submit(lambda: idle.matching("report|other").lease(wait_s=PATIENCE_S))
        task.complete()
        [got] = waited.result()
    assert (got.payload, barrier.state) == (1, "fired")


def test_a_group_without_barriers_is_asked_rarely(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, clock = list[int](), ManualClock()
    monkeypatch.setattr(GroupDirectory, "has_barriers", lambda group: asked.append(1))
    group._clock = clock
    for n in range(20):
        group["a"].insert(n)
        [task] = group["a"].lease()
        task.complete()
    assert asked == []
    for times in range(1, 4):
        for _ in range(20):
            assert group["a"].lease() == []
            assert group.lease() == []
        assert len(asked) == times
        clock.advance(NONE_S)


# -- whoever dies ------------------------------------------------------------------------------------------------


CHANGES = ("write", "pwrite", "rename", "link", "unlink", "mkdir", "rmdir", "fsync", "fdatasync", "ftruncate")
DIED = 9


def dies(at: int, act: Callable[[], object], torn: bool) -> bool:
    """Do something in a process of its own, which dies before its `at`-th change of the disk, or, if `torn`, half-way
    in it. Return whether it did.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == DIED
    code = 1
    try:
        step = itertools.count(1)

        def dying(name: str, real: Any) -> Any:
            def change(*args: Any, **named: Any) -> Any:
                if next(step) == at:
                    if torn and name in ("write", "pwrite"):
                        real(args[0], args[1][: len(args[1]) // 2], *args[2:])
                    os._exit(DIED)
                return real(*args, **named)

            return change

        for name in CHANGES:
            setattr(os, name, dying(name, getattr(os, name)))
        act()
        code = 0
    finally:
        os._exit(code)


def check_whole(group: Group, then: list[str]) -> None:
    """No task is there twice, none is lost, and nobody waits for ever."""
    for name, other in itertools.product(then, range(2)):
        assert group[name].status().remaining == 0, (name, other)
    for name in then:
        group[name].gc()
        assert [finding.kind for finding in group[name].fsck()] == []
    assert set(states(group)) <= {"fired", "cancelled"}


@pytest.mark.parametrize("torn", [False, True])
def test_whoever_sets_it_dies_at_each_step(tmp_path: Path, torn: bool) -> None:
    seen = Counter[int]()
    for at in itertools.count(1):
        group = Group.create(tmp_path / f"{at}", shards=1, durability="none")
        group["fetch"].insert(1)
        has_died = dies(at, lambda path=group.path: Group(path).barrier("fetch", [("one", 1), ("two", 2)]), torn)  # type: ignore[misc]
        other = Group(group.path)
        other.pass_barriers(at_once=True)
        is_set = len(barriers.all_of(other))
        seen[is_set] += 1
        assert work_off(other, "one", "two") == []
        assert [other[name].status().delayed for name in ("one", "two")] == [is_set, is_set]
        work_off(other, "fetch")
        other.pass_barriers(at_once=True)  # unless the last lease, which found nothing, has let it pass
        assert states(other) == Counter(fired=is_set)
        assert work_off(other, "one", "two") == [1, 2] * is_set
        check_whole(other, ["one", "two"])
        if not has_died:
            break
    assert seen[0] > 2
    assert seen[1] > 20


@pytest.mark.parametrize("torn", [False, True])
def test_whoever_lets_it_pass_dies_at_each_step(tmp_path: Path, torn: bool) -> None:
    for at in itertools.count(1):
        group = Group.create(tmp_path / f"{at}", shards=1, durability="none")
        barrier = group.barrier("fetch", [("one", Task(1, priority=3)), ("two", 2), ("two", 3)])
        has_died = dies(at, lambda path=group.path: Group(path).pass_barriers(at_once=True), torn)  # type: ignore[misc]
        other = Group(group.path)
        done = work_off(other, "one", "two")
        other.pass_barriers(at_once=True)
        assert sorted(done + work_off(other, "one", "two")) == [1, 2, 3]
        assert barrier.state == "fired"
        check_whole(other, ["one", "two"])
        if not has_died:
            break
    assert at > 6


@pytest.mark.parametrize("torn", [False, True])
def test_whoever_cancels_it_dies_at_each_step(tmp_path: Path, torn: bool) -> None:
    seen = Counter[str]()
    for at in itertools.count(1):
        group = Group.create(tmp_path / f"{at}", shards=1, durability="none")
        group["fetch"].insert(1)
        barrier = group.barrier("fetch", [("one", 1), ("two", 2), ("two", 3)])
        has_died = dies(at, barrier.cancel, torn)
        other = Group(group.path)
        other.pass_barriers(at_once=True)
        work_off(other, "fetch")
        other.pass_barriers(at_once=True)
        seen[barrier.state] += 1
        assert work_off(other, "one", "two") == ([1, 2, 3] if barrier.state == "fired" else [])
        check_whole(other, ["one", "two"])
        if not has_died:
            break
    assert min(seen["fired"], seen["cancelled"]) > 0


class Acting:
    """Calls a function before one of the changes of the disk that this process makes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.at, self.step, self.act = 0, 0, lambda: None
        self.is_acting = False
        for name in CHANGES:
            monkeypatch.setattr(os, name, self._watched(getattr(os, name)))

    def _watched(self, real: Any) -> Any:
        def change(*args: Any, **named: Any) -> Any:
            if not self.is_acting:
                self.step += 1
                if self.step == self.at:
                    self.is_acting = True
                    try:
                        self.act()
                    finally:
                        self.is_acting = False
            return real(*args, **named)

        return change


def at_each_step(
    tmp_path: Path,
    acting: Acting,
    begin: Callable[[Group], object],
    act: Callable[[Group], object],
    check: Callable[[Group], object],
) -> int:
    """Begin something, and have another process act before each of its changes of the disk, in turn."""
    for at in itertools.count(1):
        acting.at = 0
        group = Group.create(tmp_path / f"{at}", shards=1, durability="none")
        group["fetch"].insert(1)

        def other(path: Path = group.path) -> None:
            try:
                act(Group(path))
            except fsqueue.LockTimeout:
                pass  # the first one has the lock of a log

        acting.act, acting.step, acting.at = other, 0, at
        begin(group)
        acting.at = 0
        check(Group(group.path))
        if acting.step < at:
            return at
    raise AssertionError


@pytest.fixture
def acting(monkeypatch: pytest.MonkeyPatch) -> Acting:
    monkeypatch.setattr("fsqueue.storage.journals.LOCK_TIMEOUT_S", 0.05)
    return Acting(monkeypatch)


TWO = [("one", 1), ("two", 2)]
"""What comes then: into two queues."""


def finish(group: Group) -> list[Any]:
    work_off(group, "fetch")
    group.pass_barriers(at_once=True)
    group.pass_barriers(at_once=True)
    done = work_off(group, "one", "two")
    check_whole(group, ["one", "two"])
    return done


def test_others_look_at_each_step_of_whoever_sets_it(tmp_path: Path, acting: Acting) -> None:
    def check(group: Group) -> None:
        assert finish(group) == [1, 2]

    steps = at_each_step(
        tmp_path,
        acting,
        lambda group: group.barrier("fetch", TWO),
        lambda group: group.pass_barriers(at_once=True),
        check,
    )
    assert steps > 20


def test_others_let_it_pass_at_each_step_of_whoever_sets_it(tmp_path: Path, acting: Acting) -> None:
    def check(group: Group) -> None:
        assert sorted(done + finish(group)) == [1, 2]
        done.clear()

    def act(group: Group) -> None:
        work_off(group, "fetch")
        group.pass_barriers(at_once=True)
        done.extend(work_off(group, "one", "two"))

    done: list[Any] = []
    assert at_each_step(tmp_path, acting, lambda group: group.barrier("fetch", TWO), act, check) > 20


def test_others_cancel_at_each_step_of_whoever_sets_it(tmp_path: Path, acting: Acting) -> None:
    def act(group: Group) -> None:
        for one in barriers.all_of(group):
            assert one.cancel()

    def check(group: Group) -> None:
        assert finish(group) == ([] if states(group) == {"cancelled": 1} else [1, 2])

    assert at_each_step(tmp_path, acting, lambda group: group.barrier("fetch", TWO), act, check) > 20


@pytest.mark.parametrize("also", ["pass", "cancel"])
def test_others_act_at_each_step_of_whoever_lets_it_pass(tmp_path: Path, acting: Acting, also: str) -> None:
    def begin(group: Group) -> None:
        at, acting.at = acting.at, 0
        group.barrier("fetch", TWO)
        work_off(group, "fetch")
        acting.step, acting.at = 0, at
        group.pass_barriers(at_once=True)

    def act(group: Group) -> None:
        if also == "pass":
            group.pass_barriers(at_once=True)
            done.extend(work_off(group, "one", "two"))
        else:
            for one in barriers.all_of(group):
                cancelled.append(one.cancel())

    def check(group: Group) -> None:
        assert done + finish(group) == ([] if True in cancelled else [1, 2])
        assert states(group) == {"cancelled" if True in cancelled else "fired": 1}
        done.clear()
        cancelled.clear()

    done: list[Any] = []
    cancelled: list[bool] = []
    assert at_each_step(tmp_path, acting, begin, act, check) > 6


def test_workers_are_killed_while_stages_run(tmp_path: Path) -> None:
    """Real processes, each killed at some moment, and others in their place: each stage begins once, and in order."""
    group = Group.create(tmp_path / "g", lease_s=1, max_attempts=None)
    group["fetch"].insert_many(range(60))
    for stage, names in enumerate((["fetch"], ["fetch", "parse"], ["fetch", "parse", "report"])):
        then = ("parse", "report", "end")[stage]
        group.barrier(names, then=[(then, f"{then} {n}") for n in range(10)])
    book = tmp_path / "book"
    book.touch()

    def work() -> None:
        own = Group(group.path)
        with open(book, "a", buffering=1) as lines:
            for task in own.poll(until="forever"):
                queue = task.queue.path.name
                lines.write(f"{queue} begin {task.payload}\n")
                task.complete()
                lines.write(f"{queue} done {task.payload}\n")

    def start() -> int:
        child = os.fork()
        if child == 0:
            try:
                work()
            finally:
                os._exit(0)
        return child

    def has_ended() -> bool:
        return group["end"].status().completed == 10

    children = [start() for _ in range(3)]
    try:
        for turn in range(20):
            lines = 8 * turn
            until(lambda lines=lines: book.read_text().count("\n") > lines or has_ended(), "work")  # type: ignore[misc]
            os.kill(children[turn % 3], signal.SIGKILL)
            os.waitpid(children[turn % 3], 0)
            children[turn % 3] = start()
        until(has_ended, "the end")
    finally:
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
    begun = [line.split(" ", 2) for line in book.read_text().splitlines() if " begin " in line]
    place = {name: [at for at, one in enumerate(begun) if one[0] == name] for name in ("fetch", "parse", "report")}
    place["end"] = [at for at, one in enumerate(begun) if one[0] == "end"]
    for before, after in itertools.pairwise(("fetch", "parse", "report", "end")):
        assert max(place[before]) < min(place[after]), "a stage has begun before the one before it was done"
    assert {one[2] for one in begun if one[0] == "end"} == {f"end {n}" for n in range(10)}
    for name, count in (("fetch", 60), ("parse", 10), ("report", 10), ("end", 10)):
        assert group[name].status().completed == count
    assert states(group) == {"fired": 3}


# -- upkeep ----------------------------------------------------------------------------------------------------------


def test_files_of_those_that_ended_go_after_a_week(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    fired = group.barrier("nothing", then=("report", 1))
    group.pass_barriers(at_once=True)
    group["fetch"].insert(1)
    waiting = group.barrier("fetch", then=("report", 2))
    (group.path / ".barriers" / ".new-0123456789abcdef").touch()
    assert barrier_files.tidy(group.directory()) == 0
    monkeypatch.setattr(barrier_files, "KEPT_MS", -1)
    assert barrier_files.tidy(group.directory()) == 1
    monkeypatch.setattr(barrier_files, "FRESH_MS", -1)
    assert barrier_files.tidy(group.directory()) == 1
    assert (fired.state, waiting.state) == ("forgotten", "waiting")
    assert [path.name for path in (group.path / ".barriers").iterdir()] == [f"{waiting.id}.waiting"]
