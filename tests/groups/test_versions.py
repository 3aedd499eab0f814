"""Updates cancel tasks, and replace their payloads: of a task that nobody holds, only if it is as it was seen."""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, InvalidArgument, InvalidTask, LeaseLost, Queue, Task, TaskInfo, TaskTooLarge, UpdateConflict
from fsqueue.clock import Clock
from fsqueue.format import names
from tests.concurrency.books import clock_of_later, drain
from tests.concurrency.processes import children
from tests.concurrency.trapped import DieAt
from tests.groups.test_updates import before, group, leased, new_group, trapped, worked_off
from tests.prepared import ByHand
from tests.support import base_of
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once

__all__ = ["group"]


def seen(group: Group, name: str) -> dict[Any, TaskInfo]:
    """The tasks of a queue by their payloads."""
    return {info.payload: info for info in group[name].tasks()}


def conflict(group: Group, *changes: tuple[str, Any]) -> UpdateConflict:
    """The conflict of an update with an insert, of which nothing may happen."""
    update = group.update()
    for verb, task in changes:
        getattr(update, verb)(task, *(["never"] if verb == "replace" else []))
    update.insert("never", 1)
    with pytest.raises(UpdateConflict) as caught:
        update.apply()
    assert not group["never"].exists() or group["never"].status().inserted == 0
    return caught.value


def test_tasks_that_wait_anywhere_are_cancelled_and_replaced(group: Group) -> None:
    """In a file from which nothing was leased, in one that is at work, in a log; delayed, with a key and a priority."""
    queue = group["a"]
    queue.insert_many(["begun", "at work 1", "at work 2"], batch_tasks=3)
    tasks = {task.payload: task for task in queue.lease(5, lease_s=60)}
    begun = tasks.pop("begun")
    queue.release(tasks.values())
    queue.insert_many(["file 1", "file 2"], batch_tasks=2)
    queue.insert("log 1", key="k", priority=3)
    queue.insert_many([Task("log 2", delay_s=1000)])
    infos = seen(group, "a")
    assert {info.queue for info in infos.values()} == {"a"}
    with group.update() as update:
        for payload, info in infos.items():
            if payload.endswith("1"):
                update.replace(info, [payload])
            elif payload.endswith("2"):
                update.cancel(info)
        update.replace(begun, None)
        update.insert("b", 1)
    found = [info for info in queue.tasks() if info.state != "leased"]
    assert sorted(info.payload for info in found) == [["at work 1"], ["file 1"], ["log 1"]]
    told = [result for result in update.results if isinstance(result, TaskInfo)]
    assert {info.id: (info.payload, info.version) for info in told} == {
        info.id: (info.payload, info.version) for info in found
    }
    assert begun in update.results
    assert (begun.payload, queue.attach(begun.token).payload) == (None, None)
    [keyed] = [info for info in found if info.key]
    assert (keyed.priority, str(queue.insert("again", key="k"))) == (3, keyed.id)
    with group.update() as update:
        update.cancel(keyed)
        update.cancel(begun)
        for info in told:
            if info.id != keyed.id:
                update.replace(info, "twice")  # the version that the last update told
    assert begun.done
    assert queue.insert("again", key="k").inserted, "the key of a cancelled task is free"
    assert worked_off(group) == {"a": ["again", "twice", "twice"], "b": [1]}


def test_all_that_was_seen_and_is_not_so_is_said(group: Group) -> None:
    group["a"].insert_many(["done", "taken", "given back", "stays", "cancelled"], batch_tasks=5)
    group["p"].insert("purged")
    infos, purged = seen(group, "a"), seen(group, "p")["purged"]
    tasks = {task.payload: task for task in group["a"].lease(5, lease_s=60)}
    tasks["done"].complete()
    group["a"].release([tasks["given back"], tasks["stays"], tasks["cancelled"]])
    group["a"].cancel([infos["cancelled"].id])
    group["p"].purge()
    stays = seen(group, "a")["stays"]
    said = conflict(
        group, ("cancel", infos["done"]), ("replace", infos["taken"]), ("cancel", infos["given back"]),
        ("replace", infos["cancelled"]), ("cancel", purged), ("cancel", stays),
    )  # fmt: skip
    assert {(one.op, one.queue, one.id): one.reason for one in said.missing} == {
        ("cancel", "a", infos["done"].id): "completed",
        ("replace", "a", infos["cancelled"].id): "cancelled",
        ("cancel", "p", purged.id): "it has finished, or was purged",
    }
    assert [(one.id, "leased by" in one.reason) for one in said.owned] == [(infos["taken"].id, True)]
    assert [one.id for one in said.changed] == [infos["given back"].id]
    assert stays.id not in str(said)
    assert seen(group, "a")["stays"] == stays


@pytest.mark.parametrize("keep_payloads", [0, 1024])
@pytest.mark.parametrize("batch_tasks", [None, 2])
def test_a_finished_task_has_its_last_payload(group: Group, batch_tasks: int | None, keep_payloads: int) -> None:
    """Whether it came in a file or in the log; a retry inserts the last one, once. If none is kept, none is shown."""
    queue = group["a"]
    other = "other" * 20
    queue.insert_many(["old", other], batch_tasks=batch_tasks)
    queue.change_settings(keep_payloads=keep_payloads)
    info = seen(group, "a")["old"]
    for payload in ("newer", "new"):
        with group.update() as update:
            update.replace(group["a"].task(info.id), payload)
            update.insert("b", payload)
    drain(queue)
    Queue(queue.path, clock=clock_of_later()).gc()  # the batch that takes inserts ends, too
    assert not list((base_of(queue) / "movements").rglob("*.jsonl"))
    assert queue.task(info.id).payload == ("new" if keep_payloads else None)
    shown = ["new", other] if keep_payloads else [None, None]
    assert sorted(map(str, (one.payload for one in queue.results()))) == sorted(map(str, shown))
    steps = [(one.op, one.update is not None) for one in queue.history(info.id)]
    assert steps[:3] == [("insert", False), ("replace", True), ("replace", True)]
    assert queue.retry_completed([info.id]).retried == (1 if keep_payloads else 0)
    assert drain(queue) == (["new"] if keep_payloads else [])


def test_an_update_that_fails_leaves_no_queue_that_is_listed(group: Group) -> None:
    [task] = leased(group, "a")
    task.complete()
    conflict(group, ("cancel", task))
    assert [queue.name for queue in group.queues()] == []
    assert group["never"].status().as_dict() == group["not there"].status().as_dict()
    assert group.wait(PATIENCE_S)


def test_a_single_conflict_is_named_once(group: Group) -> None:
    [task] = leased(group, "a")
    task.complete()
    update = group.update()
    update.cancel(task)
    with pytest.raises(UpdateConflict) as caught:
        update.apply()
    assert len(caught.value.missing) == 1


def test_a_lease_that_was_taken_over_changes_nothing(group: Group) -> None:
    [task] = leased(group, "a")
    group["a"].release_all()
    [now] = group["a"].lease(lease_s=60)
    assert [one.op for one in conflict(group, ("replace", task)).owned] == ["replace"]
    assert [one.op for one in conflict(group, ("cancel", task)).owned] == ["cancel"]
    assert (now.payload, group["a"].task(now.id).payload) == ("task", "task")
    now.complete()


def test_a_lease_that_has_run_out_is_ended_by_a_cancellation_only(group: Group) -> None:
    """Its worker may still complete the task: a new payload would then never be executed."""
    group["a"].insert_many(["old"], batch_tasks=1)
    clock = Clock()
    clock.offset_ms = -100_000
    [late] = Queue(group.path / "a", clock=clock).lease(lease_s=60)
    [info] = group["a"].tasks()
    assert info.state == "waiting"
    [owned] = conflict(group, ("replace", info)).owned
    assert "may still complete it" in owned.reason
    with group.update() as update:
        update.cancel(info)
        update.insert("b", 1)
    with pytest.raises(LeaseLost, match="holds no longer"):
        late.complete()


def test_of_two_that_change_one_task_the_second_one_is_told(group: Group) -> None:
    """It finds the task frozen, waits, and then finds another version."""
    group["a"].insert_many(["task"], batch_tasks=1)
    [info] = group["a"].tasks()
    told: list[UpdateConflict] = []

    def second() -> None:
        update = Group(group.path).update()
        update.replace(info, "second")
        update.insert("b", "second")
        try:
            update.apply()
        except UpdateConflict as error:
            told.append(error)

    thread = threading.Thread(target=second)
    with before("_look", thread.start), group.update() as update:
        update.replace(info, "first")
        update.insert("b", "first")
    thread.join(PATIENCE_S)
    [error] = told
    assert [one.id for one in error.changed] == [info.id]
    assert worked_off(group) == {"a": ["first"], "b": ["first"]}


def test_killed_at_every_step_of_changes_to_a_file(tmp_path: Path) -> None:
    """The log of the file is begun by the update. All of it happens, or nothing, and nothing stays frozen."""
    step, ends = 1, set()
    while True:
        group = new_group(tmp_path / f"g{step}", durability=("none", "default", "strict")[step % 3])
        group["a"].insert_many(["old", "drop"], batch_tasks=2)
        infos = seen(group, "a")
        group["b"].insert("gone")
        drain(group["b"])

        def live(path: Path = group.path, step: int = step, infos: dict[Any, TaskInfo] = infos) -> None:
            trap = DieAt(step)
            with trapped(path, trap) as mine:
                mine["a"].status()
                trap.armed = True
                with mine.update() as update:
                    update.replace(infos["old"], "new")
                    update.cancel(infos["drop"])
                    update.insert("b", "x")

        with children((live,)) as [child]:
            status = child.wait()
        assert status in (0, -signal.SIGKILL), child.report()
        found = worked_off(group)
        has_happened = found == {"a": ["new"], "b": ["x"]}
        assert has_happened or found == {"a": ["drop", "old"], "b": []}, f"step {step}"
        ends.add(has_happened)
        if status == 0:
            assert has_happened
            break
        step += 4 + step // 10
    assert ends == {True, False}
    assert step > 40


def test_what_cannot_be_changed_is_refused_at_once(group: Group, tmp_path: Path) -> None:
    outside = Queue.create(tmp_path / "outside")
    outside.insert(1)
    group["a"].insert(1)
    [info], [stranger] = group["a"].tasks(), outside.tasks()
    update = group.update()
    for error, says, call in (
        (InvalidArgument, "looked up", lambda: update.cancel(info.id)),  # type: ignore[arg-type]
        (InvalidArgument, "not looked up in a queue of a group", lambda: update.cancel(stranger)),
        (InvalidTask, "not bytes", lambda: update.replace(info, b"x")),
        (InvalidTask, "not Task", lambda: update.replace(info, Task(1))),
        (TaskTooLarge, "65,536", lambda: update.replace(info, "x" * (64 << 10))),
        (InvalidTask, "JSON", lambda: update.replace(info, object())),
    ):
        with pytest.raises(error, match=says):
            call()
    update.cancel(info)
    with pytest.raises(InvalidArgument, match="is in this update already"):
        update.replace(info, 2)
    small = new_group(tmp_path / "small", task_bytes_max=100)
    small["a"].insert(1)
    update = small.update()
    update.replace(next(iter(small["a"].tasks())), "x" * 200)
    with pytest.raises(TaskTooLarge, match="the queue takes 100"):
        update.apply()


def test_a_log_that_a_lessee_left_empty_hides_no_task(group: Group) -> None:
    """A lessee makes the log of a batch before it writes there. It may die in between, or take some time."""
    group["a"].insert_many(["out", "old", "kept"], batch_tasks=3)
    infos = seen(group, "a")
    log = Path(group["a"].store.layout.log(names.parse_task_id(infos["out"].id)[0]))
    log.parent.mkdir(parents=True, exist_ok=True)
    log.touch()
    with group.update() as update:
        update.cancel(infos["out"])
        update.replace(infos["old"], "new")
    assert seen(group, "a").keys() == {"new", "kept"}


def test_a_log_that_is_made_anew_for_a_finished_batch_tells_nothing(group: Group) -> None:
    """A lessee has listed the batch before it finished, and makes its log again, for a moment."""
    queue = group["a"]
    queue.insert_many(["task"], batch_tasks=1)
    [task] = queue.lease(1, lease_s=60)
    again, log = queue.attach(task.token), Path(queue.store.layout.log(task.batch))
    task.complete()
    assert not log.exists()
    log.touch()
    [missing] = conflict(group, ("complete", again)).missing
    assert missing.reason == "completed by this lease"


@pytest.mark.parametrize("verb", ["replace", "cancel", "plain cancel"])
@pytest.mark.parametrize("place", [1, 2])
def test_a_task_that_is_shown_can_be_changed_before_its_log_has_the_outcome(
    tmp_path: Path, verb: str, place: int
) -> None:
    """Its update is decided, and the process that applied it has died: no worker has looked into the log since."""
    hand = ByHand(tmp_path / "group")
    hand.prepare()
    hand.says("commit")
    [info] = hand.then.tasks()
    assert info.payload == "new"
    if verb == "plain cancel":
        assert hand.then.cancel([info.id]) == 1
    else:
        update = hand.group.update()
        getattr(update, verb)(info, *(["newer"] if verb == "replace" else []))
        if place == 2:
            update.insert("first", "next")
        update.apply()
    assert [info.payload for info in hand.then.tasks()] == (["newer"] if verb == "replace" else [])


def test_a_task_of_a_queue_that_others_have_deleted_and_made_again_can_be_changed(group: Group) -> None:
    """Also by a process that has had the former queue open, as a gateway does for long."""
    group["b"].insert("old")
    with group.update() as update:
        update.replace(seen(group, "b")["old"], "older")
    other = Group(group.path)
    other.delete("b", foreground=True)
    other["b"].insert("new")
    with group.update() as update:
        update.replace(seen(other, "b")["new"], "newer")
    assert list(seen(group, "b")) == ["newer"]
