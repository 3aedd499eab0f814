"""A join: a task becomes available once all tasks of a set are done, with the results of the set within its reach."""

from __future__ import annotations

import errno
import itertools
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest

import fsqueue
from fsqueue import Group, Task, TaskRef, forks
from fsqueue.clock import ManualClock
from fsqueue.format import barriers as barrier_format
from fsqueue.groups import barriers
from fsqueue.groups.drain_check import BUSY_S
from fsqueue.groups.group_source import GroupSource
from fsqueue.storage import barrier_files, retrying
from tests.groups.test_barriers import check_whole, dies, states, work_off

pytestmark = pytest.mark.once


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group.create(tmp_path / "g", shards=1, durability="none", max_attempts=1)


def fill(group: Group, count: int, queue: str = "fetch") -> list[TaskRef]:
    return [group[queue].insert(number) for number in range(count)]


def complete(group: Group, refs: list[TaskRef]) -> None:
    """Complete these tasks, each with its payload, negated."""
    for ref in refs:
        [task] = group["fetch"].lease_by_id([ref.id])
        task.complete(-task.payload)


def passes(group: Group) -> int:
    return Group(group.path).pass_barriers(at_once=True)  # as another process does


def bury(group: Group, ref: TaskRef) -> None:
    [task] = group["fetch"].lease_by_id([ref.id])
    task.bury("bad")


# -- what it does ------------------------------------------------------------------------------------------------


def test_the_task_comes_once_the_set_is_done_and_others_are_not(group: Group) -> None:
    refs = fill(group, 5)
    join = group.join(refs[1:3], then=("report", "x"))
    assert (join.is_join, join.of, join.match, join.on_failure) == (True, ("fetch",), None, "wait")
    assert join.as_dict()["join"]
    complete(group, [refs[0], refs[1]])
    assert (passes(group), join.state, work_off(group, "report")) == (0, "waiting", [])
    assert not group["report"].is_drained()
    complete(group, [refs[2]])
    assert (passes(group), join.state, work_off(group, "report")) == (1, "fired", ["x"])
    assert group["fetch"].status().waiting == 2


def test_a_set_may_be_of_several_queues_and_of_its_own_queue(group: Group) -> None:
    refs = [group[name].insert(name) for name in ("a", "b", "c")]
    join = group.join(refs, then=[("a", "next"), ("d", Task("urgent", priority=1))])
    assert join.of == ("a", "b", "c")
    assert work_off(group, "a", "b") == ["a", "b"]
    assert passes(group) == 0
    assert work_off(group, "c") == ["c"]
    assert (passes(group), work_off(group, "a", "d")) == (1, ["next", "urgent"])


def test_a_named_commit_is_a_set(group: Group) -> None:
    commit = group["fetch"].commit("seed")
    commit.publish([commit.stage(range(1500)), commit.stage([1500])])
    more = fill(group, 1, "other")
    join = group.join([commit, *more], then=("report", "x"))
    assert (work_off(group, "other"), passes(group)) == ([0], 0)
    tasks = group["fetch"].lease(1501)
    group["fetch"].complete(tasks[1:])
    assert (passes(group), join.state) == (0, "waiting")
    tasks[0].complete()
    assert (passes(group), join.state) == (1, "fired")
    [task] = group["report"].lease()
    assert [one.payload for one in task.inputs()] == [*range(1501), 0]


def test_references_by_way_of_another_object_are_the_same_set(group: Group) -> None:
    refs = fill(group, 2)
    join = group.join([TaskRef(ref.id, True, Group(group.path)["fetch"]) for ref in refs], then=("report", "x"))
    complete(group, refs)
    assert (passes(group), join.state) == (1, "fired")


def test_a_set_that_is_done_already_lets_it_pass_at_once(group: Group) -> None:
    refs = fill(group, 2)
    work_off(group, "fetch")
    group.join(refs, then=("report", "x"))
    assert work_off(group, "report") == ["x"]


def test_joins_may_stand_behind_each_other(group: Group) -> None:
    refs = fill(group, 2)
    first = group.join(refs, then=("b", "first"))
    [held] = group["b"].tasks()
    second = group.join(TaskRef(held.id, True, group["b"]), then=("c", "second"))
    complete(group, refs)
    assert passes(group) == 1
    assert (first.state, second.state) == ("fired", "waiting")
    assert (work_off(group, "b"), work_off(group, "c")) == (["first"], ["second"])


# -- dead letters ------------------------------------------------------------------------------------------------


def test_it_waits_until_a_dead_letter_is_retried_and_done(group: Group) -> None:
    refs = fill(group, 3)
    join = group.join(refs, then=("report", "x"))
    bury(group, refs[1])
    complete(group, [refs[0], refs[2]])
    assert passes(group) == 0
    group["fetch"].retry_dead()
    assert passes(group) == 0
    [again] = group["fetch"].lease()
    again.bury("worse")
    assert passes(group) == 0
    group["fetch"].retry_dead()
    [again] = group["fetch"].lease()
    again.complete("at last")
    assert (passes(group), join.state) == (1, "fired")
    [task] = group["report"].lease()
    assert [one.result for one in task.inputs()] == [0, -2, "at last"]


def test_it_does_not_wait_for_a_dead_letter_that_was_purged(group: Group) -> None:
    refs = fill(group, 2)
    join = group.join(refs, then=("report", "x"))
    bury(group, refs[0])
    complete(group, refs[1:])
    assert passes(group) == 0
    group["fetch"].purge_dead()
    assert (passes(group), join.state) == (1, "fired")


def test_a_retry_whose_process_died_before_it_published_is_waited_for(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    refs = fill(group, 1)
    join = group.join(refs, then=("report", "x"))
    bury(group, refs[0])
    monkeypatch.setattr(retrying, "_publish", lambda *_: None)
    group["fetch"].retry_dead()
    monkeypatch.undo()
    assert (passes(group), join.state) == (0, "waiting")
    [again] = group["fetch"].lease()
    again.complete()
    assert (passes(group), join.state) == (1, "fired")


@pytest.mark.parametrize(("on_failure", "state"), [("wait", "waiting"), ("drop", "cancelled")])
@pytest.mark.parametrize("is_retried", [False, True])
def test_a_dead_letter_counts_that_was_seen_while_others_of_its_batch_were_at_work(
    group: Group, on_failure: Any, state: str, is_retried: bool
) -> None:
    refs = fill(group, 3)
    join = group.join(refs, then=("report", "x"), on_failure=on_failure)
    bury(group, refs[0])
    assert group.pass_barriers(at_once=True) == 0
    if is_retried:
        group["fetch"].retry_dead()
        assert group.pass_barriers(at_once=True) == 0
    complete(group, refs[1:])
    assert group.pass_barriers(at_once=True) == 0
    if not is_retried:
        assert join.state == state
        return
    assert join.state == "waiting"
    group["fetch"].lease()[0].complete("again")
    assert (group.pass_barriers(at_once=True), join.state) == (1, "fired")


@pytest.mark.parametrize("error", [OSError(errno.EIO, "simulated"), fsqueue.StorageError("simulated")])
def test_a_look_that_fails_forgets_no_task(group: Group, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    refs = fill(group, 2)
    join = group.join(refs, then=("report", "x"))

    def fails(*_: object) -> Any:
        raise error

    for name in ("unfinished", "results_of"):
        place = barriers.joins.inspection if name == "unfinished" else barriers.joins.task_results
        with monkeypatch.context() as patch:
            patch.setattr(place, name, fails)
            assert group.pass_barriers(at_once=True) == 0
        assert (group.pass_barriers(at_once=True), join.state) == (0, "waiting")
    bury(group, refs[0])
    complete(group, refs[1:])
    with monkeypatch.context() as patch:
        patch.setattr(barriers.joins.task_results, "results_of", fails)
        assert group.pass_barriers(at_once=True) == 0
    assert (group.pass_barriers(at_once=True), join.state) == (0, "waiting")


@pytest.mark.parametrize(("on_failure", "state"), [("run", "fired"), ("drop", "cancelled")])
def test_it_runs_or_is_dropped_where_a_task_was_given_up(group: Group, on_failure: Any, state: str) -> None:
    refs = fill(group, 2)
    join = group.join(refs, then=("report", "x"), on_failure=on_failure)
    bury(group, refs[0])
    complete(group, refs[1:])
    assert passes(group) == (state == "fired")
    assert (join.state, work_off(group, "report")) == (state, ["x"] * (state == "fired"))
    check_whole(group, ["report"])


def test_a_barrier_is_dropped_too(group: Group) -> None:
    [ref, _] = fill(group, 2)
    barrier = group.barrier("fetch", then=("report", "x"), on_failure="drop")
    bury(group, ref)
    assert (passes(group), barrier.state) == (0, "waiting")
    work_off(group, "fetch")
    assert (passes(group), barrier.state) == (0, "cancelled")
    assert group["report"].is_drained()
    kept = group.barrier("other", then=("report", "x"), on_failure="drop")
    assert (passes(group), kept.state) == (1, "fired")


def test_cancelled_tasks_are_done(group: Group) -> None:
    refs = fill(group, 2)
    join = group.join(refs, then=("report", "x"))
    assert refs[0].cancel()
    complete(group, refs[1:])
    assert (passes(group), join.state) == (1, "fired")
    [task] = group["report"].lease()
    assert [(one.state, one.payload) for one in task.inputs()] == [("cancelled", 0), ("completed", 1)]


@pytest.mark.parametrize("how", ["purge", "delete"])
def test_tasks_whose_queue_is_purged_or_deleted_are_done(group: Group, how: str) -> None:
    join = group.join(fill(group, 2), then=("report", "x"))
    getattr(group["fetch"], how)()
    assert (passes(group), join.state) == (1, "fired")
    [task] = group["report"].lease()
    assert [*task.inputs()] == []


def test_a_queue_without_a_history_joins_only_to_run(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "g", keep_history=False)
    refs = fill(group, 2)
    for how in ("wait", "drop"):
        with pytest.raises(fsqueue.InvalidArgument, match="keeps no history"):
            group.join(refs, then=("report", "x"), on_failure=how)  # type: ignore[arg-type]
    assert group.barriers() == []
    group.join(refs, then=("report", "x"), on_failure="run")
    assert passes(group) == 0
    complete(group, refs)
    assert (passes(group), work_off(group, "report")) == (1, ["x"])


# -- what is refused ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("given", [[], 7, "fetch", b"x", {}, [1], ["id"], None])
def test_what_is_no_set_is_refused_and_leaves_nothing(group: Group, given: Any) -> None:
    with pytest.raises(fsqueue.InvalidArgument, match="Nothing was done"):
        group.join(given, then=("b", 1))
    assert not (group.path / ".barriers").exists()


def test_tasks_of_elsewhere_are_refused(group: Group, tmp_path: Path) -> None:
    other = Group.create(tmp_path / "other")
    alone = fsqueue.Queue.create(tmp_path / "q")
    for ref in (other["fetch"].insert(1), alone.insert(1), TaskRef(other["fetch"].insert(1).id)):
        with pytest.raises(fsqueue.InvalidArgument, match="not known as one of a queue of the group"):
            group.join([ref], then=("b", 1))
    published = alone.commit("seed")
    published.publish(published.stage([1]))
    for commit in (published, other["fetch"].commit("seed")):
        with pytest.raises(fsqueue.InvalidArgument, match="not of a queue of the group"):
            group.join(commit, then=("b", 1))
    group["fetch"].insert(1)
    with pytest.raises(fsqueue.InvalidArgument, match="Nothing was published"):
        group.join(group["fetch"].commit("seed"), then=("b", 1))
    with pytest.raises(fsqueue.InvalidArgument, match="on_failure"):
        group.join(fill(group, 1), then=("b", 1), on_failure="stop")  # type: ignore[arg-type]
    assert group.barriers() == []


def test_a_file_that_would_be_too_long_is_refused(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(barriers, "FILE_BYTES_MAX", 1 << 10)
    refs = [group[f"queue {number}"].insert(number) for number in range(20)]
    with pytest.raises(fsqueue.TaskTooLarge, match="too many batches"):
        group.join(refs, then=("b", 1))
    assert not (group.path / ".barriers").exists()


@pytest.mark.parametrize(
    "tasks",
    [
        7, [7], [["fetch", "0" * 32, []]], [["fetch", "x", [[0, 1]]]], [["fetch", "0" * 32, [[1, 1]]]],
        [["fetch", "0" * 32, [[0, 2000]]]], [["fetch", "0" * 32, [[0]]]], [[7, "0" * 32, [[0, 1]]]],
        [["fetch", "0" * 32, [[0, 1], "x"]]],
    ],
)  # fmt: skip
def test_a_damaged_set_is_not_read_as_one(group: Group, tasks: Any) -> None:
    join = group.join(fill(group, 1), then=("report", "x"))
    record = barrier_files.read(group.directory(), barriers.Uuid(join.id), "waiting")
    assert record is not None
    content = record.encode()
    assert barrier_format.parse(content) == record
    line = orjson.loads(content)
    line["tasks"] = tasks
    assert barrier_format.parse(orjson.dumps(line) + b"\n") is None


# -- inputs ------------------------------------------------------------------------------------------------------


def test_only_a_task_of_a_join_has_inputs(group: Group, tmp_path: Path) -> None:
    group["report"].insert("plain")
    [plain] = group["report"].lease()
    with pytest.raises(fsqueue.InvalidArgument, match="no join has inserted it"):
        next(plain.inputs())
    group.barrier("nothing", then=("report", "behind"))
    [behind] = group["report"].lease()
    with pytest.raises(fsqueue.InvalidArgument, match="no join has inserted it"):
        next(behind.inputs())
    alone = fsqueue.Queue.create(tmp_path / "q")
    alone.insert(1)
    with pytest.raises(fsqueue.InvalidArgument, match="into a queue of a group"):
        alone.lease()[0].inputs()


def test_each_task_finds_the_inputs_of_its_own_join(group: Group) -> None:
    refs = fill(group, 6)
    for place in range(3):
        group.join(refs[2 * place : 2 * place + 2], then=[("report", place), ("report", place)])
    complete(group, refs)
    assert passes(group) == 3
    tasks = group["report"].lease(10)
    assert {(task.payload, *(one.payload for one in task.inputs())) for task in tasks} == {
        (0, 0, 1), (1, 2, 3), (2, 4, 5),
    }  # fmt: skip
    assert [one.result for one in group["report"].inputs(tasks[0].id)] == [0, -1]


def test_a_task_of_a_join_that_was_retried_has_its_inputs(group: Group) -> None:
    refs = fill(group, 2)
    group.join(refs, then=("report", "x"))
    complete(group, refs)
    for _ in range(3):
        group["report"].lease()[0].bury("bad")
        group["report"].retry_dead()
    [task] = group["report"].lease()
    assert [one.payload for one in task.inputs()] == [0, 1]


def test_each_task_is_an_input_once(group: Group) -> None:
    commit = group["fetch"].commit("seed")
    commit.publish(commit.stage(range(3)))
    refs = [TaskRef(task.id, True, group["fetch"]) for task in group["fetch"].tasks()]
    group.join([commit, *refs, commit, *reversed(refs)], then=("report", "x"))
    group["fetch"].complete(group["fetch"].lease(3))
    [task] = group["report"].lease()
    assert [one.payload for one in task.inputs()] == [0, 1, 2]


def test_inputs_are_found_while_the_join_goes_on_and_beside_a_damaged_one(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = group.join(fill(group, 1, "other"), then=("report", "other"))
    (group.path / ".barriers" / f"{damaged.id}.waiting").write_text("~")
    refs = fill(group, 1)
    join = group.join(refs, then=("report", "x"))
    complete(group, refs)
    assert group.pass_barriers(at_once=True) == 1
    [task] = group["report"].lease()
    steps = barrier_files.steps
    monkeypatch.setattr(barrier_files, "steps", lambda given: {**steps(given), barriers.Uuid(join.id): "firing"})
    assert [one.payload for one in task.inputs()] == [0]


# -- who looks, and who dies -------------------------------------------------------------------------------------


def test_a_loop_that_always_finds_tasks_looks_too(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = fill(group, 500)
    join = group.join(refs[:1], then=("fetch", "first"))
    source = GroupSource([group], None)
    source._clock = clock = ManualClock(source._clock.now_ms() / 1000)
    source._barriers_at = clock.monotonic() + BUSY_S
    for _ in range(20):
        source.look(1)[0].complete()
    assert join.state == "waiting"
    clock.advance(BUSY_S)
    source.look(1)
    assert join.state == "fired"


def test_a_loop_over_its_own_queue_does_the_join_s_task_too(group: Group) -> None:
    group.join(fill(group, 20), then=("fetch", "all"))
    done = []
    for task in group["fetch"].poll():
        with task:
            done.append(task.payload)
    assert Counter(done) == Counter([*range(20), "all"])


def test_a_child_that_was_forked_while_another_thread_looked_looks_too(group: Group) -> None:
    refs = fill(group, 1)
    join = group.join(refs, then=("report", "x"))
    group.pass_barriers(at_once=True)
    complete(group, refs)
    looks = group._looks
    assert looks is not None
    looks._looking_at = forks.depth
    assert looks.look(group, at_once=True) == 0
    child = os.fork()
    if not child:
        os._exit(looks.look(group, at_once=True))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 1
    assert join.state == "fired"


def test_a_batch_that_is_done_is_not_read_again(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    refs = [*fill(group, 3, "a"), *fill(group, 3, "b")]
    group.join(refs, then=("report", "x"))
    group["a"].complete(group["a"].lease(3))
    looked = list[str]()
    real = barriers.joins._is_unfinished

    def is_unfinished(given: Any, part: Any) -> bool:
        looked.append(part.queue)
        return real(given, part)

    monkeypatch.setattr(barriers.joins, "_is_unfinished", is_unfinished)
    for _ in range(3):
        group.pass_barriers(at_once=True)
    assert looked == ["a", "b", "b", "b"]


@pytest.mark.parametrize("on_failure", ["wait", "drop"])
def test_whoever_ends_it_dies_at_each_step(tmp_path: Path, on_failure: Any) -> None:
    for at in itertools.count(1):
        group = Group.create(tmp_path / f"{at}", shards=1, durability="none", max_attempts=1)
        refs = fill(group, 2)
        join = group.join(refs, then=[("one", 1), ("two", 2)], on_failure=on_failure)
        if on_failure == "drop":
            bury(group, refs[0])
        complete(group, refs[on_failure == "drop" :])
        has_died = dies(at, lambda path=group.path: Group(path).pass_barriers(at_once=True), False)  # type: ignore[misc]
        other = Group(group.path)
        done = work_off(other, "one", "two")
        other.pass_barriers(at_once=True)
        done += work_off(other, "one", "two")
        assert (join.state, sorted(done)) == (("fired", [1, 2]) if on_failure == "wait" else ("cancelled", []))
        assert all(other[name].status().remaining == 0 for name in ("one", "two"))
        if not has_died:
            break
    assert at > 4


@pytest.mark.parametrize("torn", [False, True])
def test_whoever_sets_it_dies_at_each_step(tmp_path: Path, torn: bool) -> None:
    def begin(path: Path, ids: list[str]) -> Callable[[], object]:
        group = Group(path)
        return lambda: group.join([TaskRef(one, True, group["fetch"]) for one in ids], [("one", 1), ("two", 2)])

    seen = Counter[int]()
    for at in itertools.count(1):
        group = Group.create(tmp_path / f"{at}", shards=1, durability="none")
        refs = fill(group, 2)
        has_died = dies(at, begin(group.path, [ref.id for ref in refs]), torn)
        other = Group(group.path)
        other.pass_barriers(at_once=True)
        is_set = len(barriers.all_of(other))
        seen[is_set] += 1
        assert work_off(other, "one", "two") == []
        assert len(work_off(other, "fetch")) == 2
        other.pass_barriers(at_once=True)  # unless the last lease, which found nothing, has let it pass
        assert work_off(other, "one", "two") == [1, 2] * is_set
        check_whole(other, ["one", "two"])
        assert set(states(other)) <= {"fired"}
        if not has_died:
            break
    assert min(seen[0], seen[1]) > 1
