"""An update depends on tasks that it does not change: it happens only if they are as they were seen."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, InvalidArgument, LeaseLost, Queue, Task, TaskInfo, UpdateConflict
from fsqueue.clock import Clock
from fsqueue.format import decisions
from fsqueue.protocol import deciding
from tests.concurrency.books import drain
from tests.concurrency.processes import children
from tests.concurrency.trapped import DieAt
from tests.groups.test_updates import before, group, leased, new_group, trapped, worked_off
from tests.groups.test_versions import seen
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once

__all__ = ["group"]


def as_is(info: TaskInfo) -> tuple[Any, ...]:
    return info.state, info.payload, info.version, info.attempt, info.update


def test_what_it_depends_on_is_left_as_it_was(group: Group) -> None:
    """In a file from which nothing was leased, in a log; waiting, delayed, held by this process or by another one."""
    mine, theirs = leased(group, "a", n=2)
    group["a"].insert_many(["file 1", "file 2"], batch_tasks=2)
    group["b"].insert_many([Task("log"), Task("log, later", delay_s=1000)])
    [own] = leased(group, "c")
    tasks = [*seen(group, "b").values(), group["a"].task(theirs.id), seen(group, "a")["file 1"]]
    told = {task.id: as_is(group[task.queue or ""].task(task.id)) for task in tasks}
    with group.update() as update:
        for task in (mine, *tasks):
            update.depends(task)
        update.complete(own)
        update.insert("d", 1)
    assert update.results[:-1] == [None] * 6
    assert {task.id: as_is(group[task.queue or ""].task(task.id)) for task in tasks} == told
    assert [one.op for one in group["a"].history(mine.id)] == ["insert", "lease"]
    assert not mine.done
    mine.complete()
    theirs.complete()
    assert worked_off(group) == {"a": ["file 1", "file 2"], "b": ["log", "log, later"], "c": [], "d": [1]}


def test_all_that_is_not_so_is_said(group: Group) -> None:
    tasks = leased(group, "a", n=4)
    done, taken, again, kept = tasks
    group["b"].insert_many(["cancelled", "leased", "replaced", "stays"], batch_tasks=4)
    infos = seen(group, "b")
    [purged], [deleted] = leased(group, "p"), leased(group, "d")
    done.complete()
    again.release()
    group["a"].release_all()
    group["a"].lease(3, lease_s=60)
    group["b"].cancel([infos["cancelled"].id])
    with group.update() as update:
        update.replace(infos["replaced"], "new")
    [task] = group["b"].lease()
    group["p"].purge()
    group.delete("d")
    update = group.update()
    for one in (*tasks, *infos.values(), purged, deleted):
        update.depends(one)
    [held] = leased(group, "c")
    update.complete(held)
    update.insert("never", 1)
    with pytest.raises(UpdateConflict) as caught:
        update.apply()
    error = caught.value
    assert error.missing == error.changed == error.owned == error.busy == []
    reasons = {(one.queue, one.id): one.reason for one in error.depends}
    assert {one.op for one in error.depends} == {"depends"}
    gone = {("a", done.id): "completed by this lease", ("b", infos["cancelled"].id): "cancelled",
            ("p", purged.id): "purged", ("d", deleted.id): "the queue was deleted"}  # fmt: skip
    assert reasons.items() >= gone.items()
    other = {("a", one.id) for one in (taken, again, kept)} | {
        ("b", one.id) for one in infos.values() if one.payload == "replaced" or one.id == task.id
    }
    assert reasons.keys() == gone.keys() | other
    assert "has the version" in reasons["b", task.id]
    assert "completed it" not in str(error), "an earlier try has not succeeded"
    assert not group["never"].exists() or group["never"].status().inserted == 0
    held.complete()


def test_conflicts_of_both_kinds_are_told_together(group: Group) -> None:
    condition, own = leased(group, "a", n=2)
    condition.release()
    own.complete()
    update = group.update()
    update.depends(condition)
    update.complete(own)
    with pytest.raises(UpdateConflict, match=r"depends .* in a: given back") as caught:
        update.apply()
    assert ([one.id for one in caught.value.missing], [one.id for one in caught.value.depends]) == (
        [own.id], [condition.id],
    )  # fmt: skip


def test_a_lease_that_has_run_out_holds_until_another_worker_takes_the_task(group: Group) -> None:
    group["a"].insert_many([1], batch_tasks=1)
    clock = Clock()
    clock.offset_ms = -100_000
    [late] = Queue(group.path / "a", clock=clock).lease(lease_s=60)
    info = group["a"].task(late.id)
    for task in (late, info):
        with group.update() as update:
            update.depends(task)
            update.insert("b", 1)
    [now] = group["a"].lease()
    for task in (late, info):
        update = group.update()
        update.depends(task)
        update.insert("b", "never")
        with pytest.raises(UpdateConflict) as caught:
            update.apply()
        assert [one.id for one in caught.value.depends] == [now.id]
    assert worked_off(group) == {"a": [1], "b": [1, 1]}


# -- what others do meanwhile ---------------------------------------------------------------------------------


def test_nothing_of_it_changes_between_the_look_and_the_decision(group: Group) -> None:
    [held] = leased(group, "a")
    group["b"].insert_many(["waits"], batch_tasks=1)
    [info] = group["b"].tasks()
    ended: list[str] = []

    def complete() -> None:
        Queue(group.path / "a").attach(held.token).complete()
        ended.append("completed")

    thread = threading.Thread(target=complete)

    def meanwhile() -> None:
        thread.start()
        assert Queue(group.path / "b").lease(wait_s=0) == []
        shown = group["a"].task(held.id)
        assert (shown.state, shown.update) == ("leased", group["b"].task(info.id).update)
        held.renew(60)
        assert not ended

    with before("_look", meanwhile), group.update() as update:
        update.depends(held)
        update.depends(info)
        update.insert("c", 1)
    thread.join(PATIENCE_S)
    assert ended == ["completed"], "it waits for the decision, and then happens"
    assert [task.payload for task in group["b"].lease()] == ["waits"]


def test_several_updates_depend_on_a_task_at_the_same_time(group: Group) -> None:
    """None waits for the other. A task is changed once none depends on it any more."""
    [held] = leased(group, "a")
    began, times = threading.Event(), []

    def second() -> None:
        began.set()
        other = Group(group.path)
        with other.update() as update:
            update.depends(held)
            update.insert("b", 2)
        times.append(other["b"].status().waiting)

    with before("_look", second), group.update() as update:
        update.depends(held)
        update.insert("b", 1)
    assert times == [1], "the second one was done first"
    with group.update() as update:
        update.complete(held)
        update.insert("b", 3)
    assert worked_off(group) == {"a": [], "b": [1, 2, 3]}


def test_a_task_on_which_one_after_the_other_depends_is_left_in_peace_for_a_moment(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise nobody could change it, as long as updates go on."""
    monkeypatch.setattr(deciding, "JOINED_MS", -1)
    [held] = leased(group, "a")
    waits, order = threading.Event(), []
    out = deciding.DecisionWait.out

    def waiting(self: deciding.DecisionWait, wanted: Any) -> None:
        waits.set()
        out(self, wanted)

    monkeypatch.setattr(deciding.DecisionWait, "out", waiting)

    def second() -> None:
        with Group(group.path).update() as update:
            update.depends(held)
            update.insert("b", 2)
        order.append(2)

    thread = threading.Thread(target=second)

    def meanwhile() -> None:
        thread.start()
        assert waits.wait(PATIENCE_S)
        order.append(1)

    with before("_look", meanwhile), group.update() as update:
        update.depends(held)
        update.insert("b", 1)
    thread.join(PATIENCE_S)
    assert order == [1, 2]


def test_of_two_that_depend_on_what_the_other_changes_one_happens(tmp_path: Path) -> None:
    """Both in one log, and each in a log of its own: never both, and none waits for ever."""
    for names in (("a", "a"), ("a", "b")):
        group = new_group(tmp_path / "".join(names), durability="none")
        x, y = (leased(group, name)[0] for name in names)
        told: list[str] = []

        def apply(change: Any, condition: Any, group: Group = group, told: list[str] = told) -> None:
            update = Group(group.path).update()
            update.complete(change)
            update.depends(condition)
            update.insert("z", 1)
            try:
                update.apply()
                told.append("done")
            except UpdateConflict as error:
                told.append("conflict" if error.depends else str(error))

        threads = [threading.Thread(target=apply, args=pair) for pair in ((x, y), (y, x))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(told) == ["conflict", "done"]
        assert group["z"].status().inserted == 1


# -- one log --------------------------------------------------------------------------------------------------


def test_an_update_of_one_log_is_one_write(group: Group) -> None:
    group["a"].insert("held")
    group["a"].insert("own")
    held, own = group["a"].lease(2)
    with group.update() as update:
        update.depends(held)
        update.complete(own)
        update.insert("a", "next")
    with group.update() as update:
        update.depends(held)
    assert not (group.path / decisions.DIRECTORY).exists()
    [task] = group["a"].lease()
    group["a"].release([held])
    update = group.update()
    update.depends(held)
    update.complete(task)
    with pytest.raises(UpdateConflict) as caught:
        update.apply()
    assert [one.reason for one in caught.value.depends] == ["given back"]
    assert worked_off(group) == {"a": ["held", "next"]}


def test_an_update_that_only_depends_is_a_look_at_all_at_once(group: Group) -> None:
    [x], [y] = leased(group, "a"), leased(group, "b")
    with group.update() as update:
        update.depends(x)
        update.depends(y)
    x.release()
    update = group.update()
    update.depends(x)
    update.depends(y)
    with pytest.raises(UpdateConflict):
        update.apply()
    y.complete()
    assert worked_off(group) == {"a": ["task"], "b": []}


def test_what_names_a_task_twice_is_refused(group: Group) -> None:
    [task] = leased(group, "a")
    update = group.update()
    update.depends(task)
    with pytest.raises(InvalidArgument, match="a change depends on the task, too"):
        update.complete(task)
    with pytest.raises(InvalidArgument, match="looked up"):
        update.depends(task.id)  # type: ignore[arg-type]


# -- leases ---------------------------------------------------------------------------------------------------


def test_tasks_are_leased_only_if_what_the_lease_depends_on_is_so(group: Group) -> None:
    [leader], [gone] = leased(group, "leader"), leased(group, "other")
    group["conf"].insert_many(["seen"], batch_tasks=1)
    [info] = group["conf"].tasks()
    group["a"].insert_many([1, 2], batch_tasks=2)
    [task] = group["a"].lease(depends=[leader, info], lease_s=60)
    assert (task.payload, group["conf"].task(info.id).version) == (1, info.version)
    gone.release()
    for name, conditions in (("a", [leader, gone]), ("never", [gone])):
        with pytest.raises(UpdateConflict) as caught:
            group[name].lease(depends=conditions)
        assert [one.id for one in caught.value.depends] == [gone.id]
    [other] = [one for one in group["a"].tasks() if one.payload == 2]
    assert (other.state, other.attempt) == ("waiting", 0), "it was put back, without blame"
    assert not group["never"].exists()
    assert group["never"].lease(depends=[leader]) == []
    with pytest.raises(InvalidArgument, match="looked up"):
        group["a"].lease(depends=[leader.id])  # type: ignore[list-item]
    with pytest.raises(InvalidArgument, match="a list of tasks"):
        group["a"].lease(depends=leader)  # type: ignore[arg-type]
    for one in (leader, task):
        one.complete()


# -- crashes --------------------------------------------------------------------------------------------------


def test_killed_at_every_step(tmp_path: Path) -> None:
    """All of it happens, or nothing. What it depended on is free again, and as it was."""
    step, ends = 1, set()
    while True:
        group = new_group(tmp_path / f"g{step}", durability=("none", "default", "strict")[step % 3])
        group["f"].insert_many(["in a file"], batch_tasks=1)
        [held], [own], [info] = leased(group, "a", "held"), leased(group, "b", "own"), group["f"].tasks()
        group["c"].insert("gone")
        drain(group["c"])

        def live(
            path: Path = group.path, step: int = step, info: TaskInfo = info, held: str = held.token,
            own: str = own.token,
        ) -> None:  # fmt: skip
            trap = DieAt(step)
            with trapped(path, trap) as mine:
                tasks = mine["a"].attach(held), mine["b"].attach(own)
                trap.armed = True
                with mine.update() as update:
                    update.depends(tasks[0])
                    update.depends(info)
                    update.complete(tasks[1])
                    update.insert("c", "x")

        with children((live,)) as [child]:
            status = child.wait()
        assert status in (0, -signal.SIGKILL), child.report()
        if step % 2:
            try:
                held.complete()  # waits until it is decided
            except LeaseLost as lost:
                pytest.fail(f"step {step}: {lost}")
        found = worked_off(group)
        has_happened = found["c"] == ["x"]
        assert (found["b"] == []) == has_happened, f"step {step}: {found}"
        assert found["f"] == ["in a file"], f"step {step}: {found}"
        assert found["a"] == ([] if step % 2 else ["held"]), f"step {step}: {found}"
        ends.add(has_happened)
        if status == 0:
            assert has_happened
            break
        step += 8 + step // 6
    assert ends == {True, False}
    assert step > 40
