"""An update happens in all logs or in none, whatever dies, fails or interferes."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fsqueue import (
    Group,
    GroupNotFound,
    GroupQueue,
    InvalidArgument,
    InvalidResult,
    InvalidTask,
    LeasedTask,
    NotAQueue,
    Queue,
    StorageError,
    StorageFull,
    Task,
    TaskTooLarge,
    UpdateConflict,
)
from fsqueue.clock import Clock
from fsqueue.filesystem import side_threads
from fsqueue.format import decisions
from fsqueue.format.decisions import DecisionState
from fsqueue.format.names import QueueDirectory
from fsqueue.protocol import update_traces, updates
from fsqueue.protocol.single_inserts import SingleInserter
from fsqueue.storage import decisions as stored
from fsqueue.storage.logs import Log
from tests.concurrency.books import clock_of_later, drain
from tests.concurrency.processes import Child, children, together
from tests.concurrency.trapped import Count, DieAt, FullFrom
from tests.concurrency.trapped import trapped_group as trapped
from tests.levels import how_many
from tests.support import base_of
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group.create(tmp_path / "group", shards=1, durability="default")


def new_group(path: Path, **settings: Any) -> Group:
    return Group.create(path, **{"shards": 1, "durability": "default"} | settings)


def leased(group: Group, name: str, payload: Any = "task", n: int = 1) -> list[LeasedTask]:
    group[name].insert_many([payload] * n)
    return group[name].lease(n, lease_s=60)


def worked_off(group: Group) -> dict[str, list[Any]]:
    """What others find in each queue a day later: leases have run out, and undecided updates are old."""
    found = {}
    for queue in [*group.queues(tasks_min=0)]:
        later = Queue(queue.path, clock=clock_of_later())
        found[queue.name] = sorted(drain(later), key=str)
        later.gc()
        assert later.status().drained
        assert {one.kind for one in later.fsck()} <= {"repeated-history"}  # as an error while clearing away leaves it
        assert not list((base_of(later) / "movements").rglob("*.jsonl")), "a log is left over"
    return found


def test_a_task_that_inserts_into_its_own_batch_costs_one_write(group: Group) -> None:
    group["a"].insert("first")
    for number in range(3):
        [task] = group["a"].lease()
        with group.update() as update:
            update.complete(task)
            update.insert("a", number)
    assert not (group.path / decisions.DIRECTORY).exists()
    assert worked_off(group) == {"a": [2]}


def test_inserts_into_one_batch_cost_one_write(group: Group) -> None:
    for number in range(2):
        with group.update() as update:
            update.insert("a", number)
            update.insert_many("a", ["x", "y"])
        first, more = update.results
        assert [first.inserted, *(each.inserted for each in more)] == [True] * 3
        looked_up = [group["a"].task(str(each)) for each in (first, *more)]
        assert [each.payload for each in looked_up] == [number, "x", "y"]
        assert update.versions == {each.id: each.version for each in looked_up}
    assert not (group.path / decisions.DIRECTORY).exists()
    log = next((group.path / "a").rglob("movements/*/*.jsonl"))
    assert log.read_bytes().count(b'"op":"commit"') == 2
    assert worked_off(group) == {"a": [0, 1, "x", "x", "y", "y"]}


# -- conflicts and bad input --------------------------------------------------------------------------


def test_all_that_is_wrong_is_said_and_nothing_happens(group: Group) -> None:
    mine, gone, other, kept = leased(group, "a", n=4)
    purged = leased(group, "p")[0]
    deleted = leased(group, "d")[0]
    mine.complete()
    group["a"].release_all()
    [again] = [task for task in group["a"].lease(3) if task.id == other.id]
    group["a"].attach(again.token).complete()
    group["p"].purge()
    group.delete("d")
    good = leased(group, "b")[0]
    update = group.update()
    for task in (good, mine, gone, other, purged, deleted):
        update.complete(task)
    update.insert("c", 1)
    with pytest.raises(UpdateConflict) as caught:
        update.apply()
    told = {(one.op, one.id): one.reason for one in caught.value.missing}
    assert told == {
        ("complete", mine.id): "completed by this lease",
        ("complete", other.id): "completed",
        ("complete", purged.id): "purged",
        ("complete", deleted.id): "the queue was deleted",
    }
    assert [one.id for one in caught.value.owned] == [gone.id]
    assert caught.value.changed == caught.value.depends == caught.value.busy == []
    assert kept.id not in str(caught.value)
    good.complete()
    assert not group["c"].exists() or group["c"].status().inserted == 0


def test_a_repeat_after_an_unknown_outcome_is_told_so(group: Group) -> None:
    """Also when the batch has finished: the history tells."""
    group["a"].insert_many(["task"], batch_tasks=1)
    [task] = group["a"].lease()
    for is_first in (True, False):
        update = group.update()
        update.complete(task)
        update.insert("b", 1)
        if is_first:
            update.apply()
            continue
        with pytest.raises(UpdateConflict, match="An earlier update with this lease") as caught:
            update.apply()
        assert [one.reason for one in caught.value.missing] == ["completed by this lease"]
    assert group["b"].status().inserted == 1


def test_bad_input_is_refused_before_anything_happens(group: Group, tmp_path: Path) -> None:
    [task] = leased(group, "a")
    outside = Queue.create(tmp_path / "outside")
    outside.insert(1)
    stranger = new_group(tmp_path / "other")
    update = group.update()
    for error, says, call in (
        (InvalidTask, "the key is empty", lambda: update.insert("b", 1, key="")),
        (InvalidTask, "number 2.*1,025 bytes", lambda: update.insert_many("b", [1, Task(2, key="k" * 1025)])),
        (TaskTooLarge, "insert its path", lambda: update.insert("b", "x" * (64 << 10))),
        (InvalidTask, "JSON", lambda: update.insert("b", object())),
        (InvalidArgument, "cannot be the name", lambda: update.insert("", 1)),
        (InvalidArgument, "or its name", lambda: update.insert(7, 1)),  # type: ignore[arg-type]
        (InvalidArgument, "queues of one group", lambda: update.insert(outside, 1)),
        (InvalidArgument, "queues of one group", lambda: update.insert(stranger["b"], 1)),
        (InvalidArgument, "queues of one group", lambda: update.complete(outside.lease()[0])),
        (InvalidArgument, "A leased task is expected", lambda: update.complete("t")),  # type: ignore[arg-type]
        (InvalidResult, "not completed", lambda: update.complete(task, "x" * (64 << 10))),
        (InvalidArgument, "10,000 operations", lambda: update.insert_many("b", range(10_001))),
        (InvalidArgument, "takes a list", lambda: update.insert_many("b", "text")),
        (InvalidArgument, "delay_s", lambda: update.release(task, -1)),
        (InvalidArgument, "lease_s", lambda: update.renew(task, 0)),
        (InvalidArgument, "timeout_s", lambda: update.apply(-1)),
    ):
        with pytest.raises(error, match=says):
            call()
    update.complete(task)
    with pytest.raises(InvalidArgument, match="is in this update already"):
        update.release(task)
    assert update.apply() == [None]
    single = new_group(tmp_path / "single", batch_tasks_max=1)
    update = single.update()
    update.insert("b", 1)
    with pytest.raises(InvalidArgument, match="a file for each task"):
        update.apply()
    small = new_group(tmp_path / "small", task_bytes_max=100)
    update = small.update()
    update.insert("b", "x" * 200)
    with pytest.raises(TaskTooLarge, match="the queue takes 100"):
        update.apply()


def test_a_renewal_after_the_end_of_the_lease_is_a_conflict(group: Group) -> None:
    group["a"].insert(1)
    clock = Clock()
    mine = Queue(group.path / "a", clock=clock)
    [task] = mine.lease(lease_s=60)
    clock.offset_ms = 100_000
    update = group.update()
    update.renew(task, 60)
    update.insert("b", 1)
    with pytest.raises(UpdateConflict) as caught:
        update.apply()
    assert [one.reason for one in caught.value.owned] == ["it ran out before it was renewed"]


def test_many_inserts_spread_over_batches(group: Group) -> None:
    [task] = leased(group, "a")
    with group.update() as update:
        update.complete(task)
        update.insert_many("b", range(1500))
        update.insert_many("b", ["x" * 60_000 for _ in range(10)])
    assert sorted(map(str, (task.payload for task in group["b"].tasks()))) == sorted(
        map(str, [*range(1500), *["x" * 60_000] * 10])
    )
    ids = [str(ref) for ref in (*update.results[1], *update.results[2])]
    assert [group["b"].task(ids[place]).payload for place in (0, 777, 1499)] == [0, 777, 1499]


# -- deaths, errors ------------------------------------------------------------------------------------


def over_three(group: Group, token: str) -> None:
    with group.update() as update:
        update.complete(group["a"].attach(token))
        update.insert("b", "x")
        update.insert_many("c", ["y", "z"])


def in_one(group: Group, token: str) -> None:
    with group.update() as update:
        update.complete(group["a"].attach(token))
        update.insert("a", "x")


def only_inserts(group: Group, token: str) -> None:
    with group.update() as update:
        update.insert("b", "x")
        update.insert_many("b", ["y", "z"])


def with_keys(group: Group, token: str) -> None:
    with group.update() as update:
        update.complete(group["a"].attach(token))
        update.insert("b", "x", key="k")
        update.insert("c", "y", key="k")


PLANS: dict[Callable[[Group, str], None], tuple[dict[str, list[Any]], dict[str, list[Any]]]] = {
    over_three: ({"a": [], "b": ["x"], "c": ["y", "z"]}, {"a": ["task"], "b": [], "c": []}),
    in_one: ({"a": ["x"]}, {"a": ["task"]}),
    only_inserts: ({"a": ["task"], "b": ["x", "y", "z"]}, {"a": ["task"], "b": []}),
    with_keys: ({"a": [], "b": ["x"], "c": ["y"]}, {"a": ["task"], "b": ["again"], "c": ["again"]}),
}
"""What is left to do afterwards, if the update has happened, and if it has not."""


def begun(path: Path, plan: Callable[[Group, str], None], durability: str = "default") -> tuple[Group, str]:
    """A group with a leased task, and its token. All queues of the plan are there: the steps are the update's."""
    group = new_group(path, durability=durability)
    group["a"].insert("task")
    for name in PLANS[plan][0]:
        if name != "a":
            group[name].insert("gone")
            drain(group[name])
    [task] = group["a"].lease(lease_s=60)
    return group, task.token


def has_happened(group: Group, plan: Callable[[Group, str], None]) -> bool:
    if plan is with_keys:
        clock = clock_of_later()
        clock.offset_ms //= 2
        for name in "bc":  # the key is free if the update has not happened, and only then
            Queue(group.path / name, clock=clock).insert("again", key="k")
    found = worked_off(group)
    done, undone = PLANS[plan]
    assert found in (done, undone), f"half of it: {found}"
    return found == done


@pytest.mark.parametrize("plan", PLANS)
def test_killed_at_every_step(tmp_path: Path, plan: Callable[[Group, str], None]) -> None:
    step, stride = 1, 1
    while True:
        group, token = begun(tmp_path / f"g{step}", plan, ("none", "default", "strict")[step % 3])

        def live(path: Path = group.path, step: int = step, token: str = token) -> None:
            trap = DieAt(step)
            with trapped(path, trap) as mine:
                mine["a"].status()
                trap.armed = True
                plan(mine, token)

        with children((live,)) as [child]:
            status = child.wait()
        assert status in (0, -signal.SIGKILL), child.report()
        assert has_happened(group, plan) or status, f"step {step}"
        if status == 0:
            break
        step += stride
        stride = how_many(8, 2) + step // (10 if plan is with_keys else 20)
    assert step > (15 if plan in (in_one, only_inserts) else 60)


class FailAt(Count):
    """An error of the n-th step, before it is done or after."""

    def __init__(self, number: int, done: bool) -> None:
        super().__init__(lambda step, args: step in ("try_lock", "pread", "write", "fsync", "unlock", "look", "create"))
        self.number, self.done = number, done

    def at(self, number: int, step: str, call: Callable[..., Any], *args: Any) -> Any:
        if number != self.number:
            return call(*args)
        if self.done and step not in ("look", "create"):
            call(*args)
        raise OSError(errno.EIO, os.strerror(errno.EIO))


def told(path: Path, plan: Callable[[Group, str], None], token: str, trap: Count, shared: bool) -> bool | None:
    """What the caller is told: it has happened, it has not, or (None) nobody knows."""
    with trapped(path, trap, shared) as mine:
        mine["a"].status()
        trap.armed = True
        try:
            plan(mine, token)
            return True
        except UpdateConflict as conflict:
            return any(one.reason == "completed by this lease" for one in conflict.missing)
        except (StorageError, StorageFull) as error:
            if "has happened" in str(error) and not error.advice and "Nothing" not in str(error):
                return True
            return None if error.advice else False
        finally:
            trap.armed = False


@pytest.mark.parametrize(
    ("plan", "shared"),
    [*((plan, shared) for plan in (over_three, in_one, only_inserts) for shared in (False, True)), (with_keys, True)],
)
def test_after_an_error_of_each_step_what_is_told_is_so(
    tmp_path: Path, plan: Callable[[Group, str], None], shared: bool
) -> None:
    every = how_many(*{in_one: (7, 1), only_inserts: (7, 1), over_three: (15, 3), with_keys: (41, 7)}[plan])
    number, tries, unknown = 0, 0, 0
    while True:
        number, tries = number + every, tries + 1
        trap = FailAt(number, done=number % 4 < 2)
        group, token = begun(tmp_path / f"g{number}", plan)
        said = told(group.path, plan, token, trap, shared)
        # A sync that fails leaves inserts by themselves unknown, as it does outside of an update.
        unknown += said is None and (plan is not only_inserts or trap.steps[number - 1] != "fsync")
        assert said in (has_happened(group, plan), None), f"step {number}: {trap.steps[number - 1 : number]}"
        if len(trap.steps) < number:
            assert said
            break
    assert number > 20
    assert unknown <= tries // 10 + 1  # none, unless the machine is so slow that the time of an update is over


def test_a_write_that_may_still_land_is_not_called_undone_if_the_second_try_is_refused(tmp_path: Path) -> None:
    group, token = begun(tmp_path / "g", in_one)
    with trapped(group.path, lambda step, call, *args: call(*args), shared=True) as mine, ExitStack() as later:
        task, acted = mine["a"].attach(token), update_traces.acted

        def runs_out(*args: Any) -> Any:
            later.enter_context(mock.patch.object(Clock, "now_ms", clock_of_later().now_ms))
            return acted(*args)

        with (
            mock.patch.object(update_traces, "acted", runs_out),
            mock.patch.object(Log, "write", side_effect=OSError(errno.EIO, os.strerror(errno.EIO))) as write,
            pytest.raises(StorageError) as caught,
            mine.update() as update,
        ):
            update.renew(task, 60)
    assert write.call_count == 1
    assert caught.value.advice


@pytest.mark.parametrize("plan", [in_one, only_inserts])
def test_whole_lines_of_a_write_that_was_cut_off_are_no_part_of_the_next_one(
    tmp_path: Path, plan: Callable[[Group, str], None]
) -> None:
    group, token = begun(tmp_path / "g", plan)
    cut: list[bytes] = []

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step == "write" and not cut and b'"update"' in bytes(args[1]):
            cut.append(bytes(args[1]))
            call(args[0], cut[0][: cut[0].index(b"\n") + 1])
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call(*args)

    with trapped(group.path, trap) as mine:
        plan(mine, token)
    assert cut[0].count(b"\n") > 2
    assert has_happened(group, plan)


@pytest.mark.parametrize("partly", [False, True])
@pytest.mark.parametrize("plan", [over_three, in_one, only_inserts])
def test_on_a_full_disk_what_is_told_is_so(tmp_path: Path, plan: Callable[[Group, str], None], partly: bool) -> None:
    number = 0
    while True:
        number += how_many(7, 1)
        trap = FullFrom(number, times=3, partly=partly)
        group, token = begun(tmp_path / f"g{number}", plan)
        said = told(group.path, plan, token, trap, False)
        assert said in (has_happened(group, plan), None), f"step {number}"
        if not trap.met:
            assert said
            break
    assert number > (30 if plan is over_three else 9)


# -- others in between ----------------------------------------------------------------------------------


@contextmanager
def before(step: str, act: Callable[[], object]) -> Iterator[None]:
    """Call `act` once before a step of the next update, by the name of the method."""
    original, calls = getattr(updates._Try, step), [act]

    def acting(self: Any, *args: Any) -> Any:
        if calls:
            calls.pop()()
        return original(self, *args)

    with mock.patch.object(updates._Try, step, acting):
        yield


def test_a_purge_of_the_target_begins_it_anew_in_the_next_generation(group: Group) -> None:
    [task] = leased(group, "a")
    group["b"].insert("purged")
    with before("_look", group["b"].purge), group.update() as update:
        update.complete(task)
        update.insert("b", "x")
    assert worked_off(group) == {"a": [], "b": ["x"]}


@pytest.mark.parametrize(("end", "reason"), [("purge", "purged"), ("delete", "the queue was deleted")])
def test_two_queues_that_end_between_its_records_leave_no_part_of_it(group: Group, end: str, reason: str) -> None:
    """It would end a task before the first queue ends, and insert another one after the second has ended."""
    [task] = leased(group, "b")
    group["a"].insert("comes into being")

    def ends() -> None:
        for name in ("b", "a"):
            getattr(Queue(group.path / name), end)()

    update = group.update()
    update.complete(task)
    update.insert("a", "follows what ended")
    with before("_insert", ends), pytest.raises(UpdateConflict) as caught:
        update.apply()
    assert [one.reason for one in caught.value.missing] == [reason]
    assert not any(worked_off(group).values())


def test_an_update_makes_no_group_in_place_of_one_that_was_moved(group: Group) -> None:
    [task] = leased(group, "a")
    update = group.update()
    update.complete(task)
    update.insert("b", "x")
    os.rename(group.path, f"{group.path}-2")
    with pytest.raises(
        GroupNotFound, match=r"check that this is mounted; else it was deleted .* Nothing of the update"
    ):
        update.apply()
    assert not group.path.exists()


@pytest.mark.parametrize("into", ["c", "0"], ids=["opened after the task's queue", "opened before it"])
def test_an_update_makes_no_group_in_place_of_one_that_is_moved_meanwhile(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, into: str
) -> None:
    """It would be in the way when the group is moved back, and other processes would work in it until then."""
    group["b"].insert("page")
    [task] = group["b"].lease()
    opened_queue = Group.opened_queue

    def moved_before(self: Group, directory: QueueDirectory) -> GroupQueue:
        queue = opened_queue(self, directory)
        if directory == into and not (tmp_path / "moved").exists():
            os.rename(group.path, tmp_path / "moved")
        return queue

    monkeypatch.setattr(Group, "opened_queue", moved_before)
    update = group.update()
    update.complete(task)
    update.insert(into, "part")
    with pytest.raises(
        GroupNotFound, match=r"check that this is mounted; else it was deleted .* Nothing of the update"
    ):
        update.apply()
    assert not group.path.exists()
    monkeypatch.undo()
    os.rename(tmp_path / "moved", group.path)
    update.apply()
    assert (group["b"].status().completed, group[into].status().waiting) == (1, 1)


def test_an_update_changes_nothing_in_another_group_that_has_come_into_its_place(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process would look there for a decision of the first one, find none, and give one log an `abort`."""
    opened_queue = Group.opened_queue

    def moved_before(self: Group, directory: QueueDirectory) -> GroupQueue:
        if not (tmp_path / "moved").exists():
            os.rename(group.path, tmp_path / "moved")
            new_group(group.path)["b"].insert("new")
        return opened_queue(self, directory)

    monkeypatch.setattr(Group, "opened_queue", moved_before)
    update = group.update()
    update.insert("b", "x")
    update.insert("c", "y")
    with pytest.raises(GroupNotFound, match=r"another group than the one that was opened.* Nothing of the update"):
        update.apply()
    monkeypatch.undo()
    assert worked_off(Group(group.path)) == {"b": ["new"]}
    assert not (tmp_path / "moved" / ".updates").exists()
    assert worked_off(Group(tmp_path / "moved")) == {}


def test_an_update_changes_no_queue_that_was_made_in_another_group(group: Group, tmp_path: Path) -> None:
    """Nobody could decide about its records: the decision would be in a group that is not its own."""
    other = Group.create(tmp_path / "other")
    other["q"].insert("page")
    group["b"].insert("here")
    os.rename(other["q"].path, group.path / "q")
    queue = Queue(group.path / "q")
    [task] = queue.lease()
    update = group.update()
    update.complete(task)
    update.insert("b", "x")
    with pytest.raises(NotAQueue, match="not made in this group"):
        update.apply()
    queue.complete([task])
    assert worked_off(group) == {"b": ["here"], "q": []}


def test_a_purge_of_the_source_is_a_conflict(group: Group) -> None:
    [task] = leased(group, "a")
    update = group.update()
    update.complete(task)
    update.insert("b", "x")
    with before("_look", group["a"].purge), pytest.raises(UpdateConflict) as caught:
        update.apply()
    assert [one.reason for one in caught.value.missing] == ["purged"]
    assert worked_off(group) == {"a": [], "b": []}


def test_a_target_that_is_deleted_is_made_again(group: Group) -> None:
    [task] = leased(group, "a")
    group["b"].insert("deleted")
    with before("_look", lambda: group.delete("b", foreground=True)), group.update() as update:
        update.complete(task)
        update.insert("b", "x")
    assert worked_off(group) == {"a": [], "b": ["x"]}


def test_a_target_that_is_deleted_and_made_again_by_others_gets_it(group: Group) -> None:
    [task] = leased(group, "a")
    group["b"].insert("deleted")

    def replaces() -> None:
        group.delete("b", foreground=True)
        Group(group.path)["b"].insert("new")

    with before("_look", replaces), group.update() as update:
        update.complete(task)
        update.insert("b", "x")
    assert worked_off(group) == {"a": [], "b": ["new", "x"]}


def test_a_queue_that_is_moved_out_is_not_decided(group: Group, tmp_path: Path) -> None:
    [task] = leased(group, "a")
    group["b"].insert("here")
    update = group.update()
    update.complete(task)
    update.insert("b", "x")

    def moves() -> None:
        os.rename(group.path / "b", tmp_path / "moved")

    with before("_look", moves):
        update.apply()
    os.rename(group.path / "b", tmp_path / "second")
    os.rename(tmp_path / "moved", group.path / "b")
    assert worked_off(group) == {"a": [], "b": ["here"]}
    assert (tmp_path / "second").exists()


def test_an_update_of_one_log_is_not_written_into_a_queue_that_was_moved_out(group: Group, tmp_path: Path) -> None:
    """Its files are open here, wherever its directory lies."""
    with group.update() as first:
        first.insert("b", "here")
    [task] = group["b"].lease()
    os.rename(group.path / "b", tmp_path / "moved")
    update = group.update()
    update.complete(task)
    update.insert("b", "with it")
    with pytest.raises(UpdateConflict) as caught:
        update.apply()
    assert [each.id for each in caught.value.missing] == [task.id]
    assert not (group.path / "b").exists()  # an empty queue would be in its way back
    with group.update() as last:
        last.insert("b", "x")
    assert worked_off(group)["b"] == ["x"]
    os.rename(group.path / "b", tmp_path / "second")
    os.rename(tmp_path / "moved", group.path / "b")
    assert [each.payload for each in Group(group.path)["b"].tasks()] == ["here"]


def test_inserts_by_themselves_into_a_queue_that_is_moved_meanwhile_are_unknown(
    group: Group, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are in the directory that was moved: if it comes back, a repetition would have inserted them twice."""
    group["b"].insert("here")
    into = SingleInserter._insert_into

    def moves(self: SingleInserter, *args: Any) -> int:
        index = into(self, *args)
        os.rename(group.path / "b", tmp_path / "moved")
        self.store.queue_file.forget()
        return index

    monkeypatch.setattr(SingleInserter, "_insert_into", moves)
    update = group.update()
    update.insert("b", "x")
    with pytest.raises(StorageError, match="unknown whether the update has happened"):
        update.apply()
    os.rename(tmp_path / "moved", group.path / "b")
    assert worked_off(group)["b"] == ["here", "x"]


def test_a_record_that_others_have_aborted_begins_anew_with_more_patience(group: Group) -> None:
    [task] = leased(group, "a")
    group["b"].insert("here")
    patience: list[int] = []
    original = updates.Coordinator.patience_ms

    def noted(self: Any, logs: int, tries: int) -> int:
        patience.append(original(self, logs, tries))
        return patience[-1]

    def aborts() -> None:
        later = Queue(group.path / "b", clock=clock_of_later())
        [here] = later.lease()
        assert later.lease() == []
        here.release()

    with (
        mock.patch.object(updates.Coordinator, "patience_ms", noted),
        before("_look", aborts),
        group.update() as update,
    ):
        update.complete(task)
        update.insert("b", "x")
    assert patience[1] >= 2 * patience[0] >= 10_000
    assert worked_off(group) == {"a": [], "b": ["here", "x"]}


def test_a_process_that_was_stopped_within_an_update_is_no_more_patient_in_the_next_one(group: Group) -> None:
    """Else its death in that one would freeze tasks for an hour."""
    clock = group.directory().clock
    stopped_s = 0.0

    def is_stopped() -> None:
        nonlocal stopped_s
        stopped_s = 900.0

    real = clock.monotonic

    def monotonic() -> float:
        return real() + stopped_s

    with mock.patch.object(clock, "monotonic", monotonic), before("_sync", is_stopped):
        applied_once(group)
    assert group.coordinator.log_s == updates.LOG_S_MAX
    assert group.coordinator.patience_ms(logs=2, tries=0) <= 60_000


def files_of(group: Group) -> list[Path]:
    return sorted((group.path / decisions.DIRECTORY).iterdir())


def applied_once(group: Group) -> None:
    [task] = leased(group, "first")
    with group.update() as update:
        update.complete(task)
        update.insert("first", 1)
        update.insert("second", 2)
    for name in ("first", "second"):
        drain(group[name])


def test_a_stopped_bystander_in_the_decision_file_delays_one_update_by_two_seconds(group: Group) -> None:
    applied_once(group)
    [file] = files_of(group)
    [task] = leased(group, "a")
    fs = group.directory().fs
    with fs.closing(fs.look(str(file), os.O_RDWR)) as fd, mock.patch.object(stored, "WAIT_S", 0.05):
        assert fs.try_lock(fd)
        with group.update() as update:
            update.complete(task)
            update.insert("b", "x")
    assert len(files_of(group)) == 2
    assert worked_off(group) == {"a": [], "b": ["x"], "first": [], "second": []}


def retire(group: Group, file: Path) -> None:
    """Do as upkeep does: give each log its outcome, and remove the file."""
    state = DecisionState()
    state.replay([(0, file.read_bytes())])
    for name in {log.directory for logs in state.commits.values() for log in logs}:
        found = Queue(group.path / name, clock=clock_of_later())
        found.lease(10, lease_s=0.001)
    with file.open("ab") as appended:
        appended.write(decisions.gone(1))
    file.unlink()


@pytest.mark.parametrize("is_landed", [True, False])
@pytest.mark.parametrize("is_retired", [True, False])
@pytest.mark.parametrize("kind", [OSError, KeyboardInterrupt])
def test_an_error_at_the_decision_leaves_it_to_the_file_or_to_the_logs(
    tmp_path: Path, is_landed: bool, is_retired: bool, kind: type[BaseException]
) -> None:
    """The file may have been retired before the updater looks again: it must not take that for an abort."""
    group, token = begun(tmp_path / "group", over_three)
    failed: list[str] = []

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step != "write" or failed or b'"commit"' not in bytes(args[1]) or b'"logs"' not in bytes(args[1]):
            return call(*args)
        failed.append(step)
        if is_landed:
            call(*args)
        if is_retired:
            retire(group, files_of(group)[0])
        raise kind(errno.EIO, "failed")

    with trapped(group.path, trap) as mine:
        if kind is KeyboardInterrupt:
            with pytest.raises(KeyboardInterrupt):
                over_three(mine, token)
        else:
            over_three(mine, token)
    assert failed
    happened = is_landed or kind is OSError  # then it was begun anew
    assert has_happened(group, over_three) == happened


def test_two_in_opposite_order_both_happen(tmp_path: Path) -> None:
    group = new_group(tmp_path / "group", durability="none")
    rounds = 15
    for name in "ab":
        group[name].insert_many([f"{name}{number}" for number in range(rounds)])

    def works(mine: str, other: str) -> int:
        here = Group(group.path)
        for number in range(rounds):
            [task] = here[mine].lease()
            with here.update() as update:
                update.complete(task)
                update.insert(f"{other}-next", f"{mine}{number}")
                update.insert(f"{mine}-next", f"{mine}{number}")
        return rounds

    assert together((works, "a", "b"), (works, "b", "a")) == [rounds] * 2
    every = sorted(f"{name}{number}" for name in "ab" for number in range(rounds))
    assert worked_off(group) == {"a": [], "b": [], "a-next": every, "b-next": every}


def test_of_two_updates_of_one_task_the_first_happens_and_the_second_is_told(group: Group) -> None:
    [task] = leased(group, "a")
    with ExitStack() as running:
        others: list[Child] = []

        def second() -> None:
            def apply() -> str:
                mine = Group(group.path)
                update = mine.update()
                update.complete(mine["a"].attach(task.token, verify=False))
                update.insert("b", "second")
                try:
                    update.apply()
                except UpdateConflict as conflict:
                    return ", ".join(one.reason for one in conflict.missing)
                return "done"

            others.extend(running.enter_context(children((apply,))))

        with before("_look", second), group.update() as update:
            update.complete(task)
            update.insert("b", "first")
        [other] = others
        assert other.result() == "completed by this lease"
    assert worked_off(group) == {"a": [], "b": ["first"]}


def test_a_copy_that_a_child_applies_is_an_update_of_its_own(group: Group) -> None:
    """One of the two happens, the other is a conflict: they do not count each other's records."""
    applied_once(group)
    [task] = leased(group, "a")
    update = group.update()
    update.complete(task)
    update.insert("b", "x")

    def applies() -> bool:
        try:
            update.apply()
        except UpdateConflict:
            return False
        return True

    assert sorted(together((applies,), (applies,))) == [False, True]
    with pytest.raises(UpdateConflict):
        update.apply()
    assert len(files_of(group)) in (2, 3)
    assert worked_off(group) == {"a": [], "b": ["x"], "first": [], "second": []}


def test_the_order_of_syncs(tmp_path: Path) -> None:
    """Records are on disk before the line that decides, and that is before any outcome."""
    group, token = begun(tmp_path / "group", over_three)
    said: list[str] = []

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step in ("write", "fsync"):
            path = os.path.relpath(os.readlink(f"/proc/self/fd/{args[0]}"), group.path)
            what = path.split("/")[0] if "movements" in path or ".updates" in path else path
            if step == "fsync":
                said.append(f"sync {what}")
            elif b'"update"' in bytes(args[1]):
                is_outcome = b'"op":"commit"' in bytes(args[1])
                said.append(f"{'outcome' if is_outcome else 'prepare'} {what}")
        return call(*args)

    with trapped(group.path, trap) as mine:
        over_three(mine, token)
    decided = said.index("outcome .updates")
    for name in "abc":
        assert said.index(f"prepare {name}") < said.index(f"sync {name}") < decided
    synced = said.index("sync .updates", decided)
    assert all(said.index(f"outcome {name}") > synced for name in "abc")
    assert said.count("sync .updates") == 2  # its name, and the decision


@pytest.mark.parametrize("durability", ["default", "strict", "none"])
@pytest.mark.parametrize("by_update", [True, False])
def test_a_task_file_is_gone_for_good_before_the_log_that_has_the_update(
    tmp_path: Path, durability: str, by_update: bool
) -> None:
    """A power loss could undo the one and keep the other: the task would be back, and what was inserted would stay."""
    group = Group.create(tmp_path / "group", durability=durability)
    group["a"].insert_many(["one", "two"], batch_tasks=2)
    said: list[str] = []

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        found = call(*args)
        if step == "fsync":
            path = Path(os.readlink(f"/proc/self/fd/{args[0]}"))
            said.append(f"sync {path.parent.name}" if path.is_dir() else "")
        elif step == "unlink":
            said.append(f"unlink {Path(args[0]).parent.parent.name}")
        return found

    with trapped(group.path, trap) as mine:
        tasks = mine["a"].lease(2)
        if by_update:
            with mine.update() as update:
                for task in tasks:
                    update.complete(task)
                update.insert("b", "next")
        else:
            mine["a"].complete(tasks)
    assert [*group["a"].tasks()] == []
    gone, over = said.index("unlink queue"), said.index("unlink movements")
    is_synced = durability == "strict" or (durability == "default" and by_update)
    assert ("sync queue" in said[gone:over]) == is_synced, said


@pytest.mark.parametrize("where", ["write", "unlock"])
def test_what_a_signal_handler_raises_comes_out_though_the_update_is_decided(tmp_path: Path, where: str) -> None:
    group, token = begun(tmp_path / "group", over_three)
    raised: list[str] = []

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        found = call(*args)
        if step == where and not raised and "/.updates/" in os.readlink(f"/proc/self/fd/{args[0]}"):
            decided = b'"op":"commit"' in b"".join(path.read_bytes() for path in files_of(group))
            if decided:
                raised.append(step)
                raise RuntimeError("of a signal handler")
        return found

    with trapped(group.path, trap) as mine, pytest.raises(RuntimeError, match="of a signal handler"):
        over_three(mine, token)
    assert raised == [where]
    assert has_happened(group, over_three)


def test_its_logs_are_synced_at_the_same_time(tmp_path: Path) -> None:
    """And so an update over any number of queues waits for two syncs in a row: of its logs, and of the decision."""
    group, token = begun(tmp_path / "group", over_three)
    together = threading.Barrier(3)
    logs: list[str] = []

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        path = os.readlink(f"/proc/self/fd/{args[0]}") if step == "fsync" else ""
        if path.endswith(".jsonl") and "movements" in path:
            logs.append(path)
            if len(logs) <= 3:  # those that come later are of a batch that finishes
                together.wait(PATIENCE_S)  # it breaks unless the others come, too
        return call(*args)

    with (
        trapped(group.path, trap) as mine,
        mock.patch("tests.concurrency.trapped.one_after_the_other", side_threads.at_once),
    ):
        over_three(mine, token)
    assert len(set(logs[:3])) == 3
    assert has_happened(group, over_three)


def test_nothing_is_synced_if_no_queue_asks_for_it(tmp_path: Path) -> None:
    group, token = begun(tmp_path / "group", over_three, "none")
    said: list[str] = []

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        said.append(step)
        return call(*args)

    with trapped(group.path, trap) as mine:
        over_three(mine, token)
    assert "write" in said
    assert "fsync" not in said


def test_who_finds_it_decided_gives_the_outcome_to_all_logs_and_notifies(tmp_path: Path) -> None:
    """Its process died behind the decision. No worker may be looking into the other queues for minutes."""
    group, token = begun(tmp_path / "group", over_three)
    with mock.patch.object(updates._Try, "_give", return_value=None):
        over_three(group, token)
    bell = group["c"].store.doorbell.read()
    assert [task.payload for task in Queue(group.path / "b", clock=clock_of_later()).lease()] == ["x"]
    for name in "ac":
        logs = [*(base_of(group[name]) / "movements").rglob("*.jsonl")]
        assert any(b'{"op":"commit"' in log.read_bytes().splitlines()[-1] for log in logs) or not logs
    group["c"].store.doorbell.forget()
    assert group["c"].store.doorbell.read() != bell
    assert sorted(task.payload for task in Group(group.path)["c"].lease(3)) == ["y", "z"]


def test_many_that_are_left_open_are_decided_by_one_reading_of_the_file(tmp_path: Path) -> None:
    group = new_group(tmp_path / "group", durability="none")
    group["a"].insert_many(range(40))
    with mock.patch.object(updates._Try, "_give", return_value=None):
        for task in group["a"].lease(40):
            with group.update() as update:
                update.complete(task)
                update.insert("b", task.payload)
    read, original = [], stored.read

    def counting(*args: Any) -> Any:
        read.append(args)
        return original(*args)

    with mock.patch.object(stored, "read", counting):
        got = Queue(group.path / "b", clock=clock_of_later()).lease(40)
    assert sorted(task.payload for task in got) == [*range(40)]
    assert len(read) <= 4
