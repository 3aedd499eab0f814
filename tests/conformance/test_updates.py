"""Updates: what guards them, and what they bring about. The same for every kind of group."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fsqueue import InvalidArgument, InvalidResult, InvalidTask, Queue, Status, Task, TaskInfo, UpdateConflict
from fsqueue.format.decisions import OPERATIONS_MAX
from tests.conformance.kinds import GROUPS
from tests.conformance.test_leases import in_a_child

pytestmark = pytest.mark.once


def leased(group: Any, name: str, count: int = 1) -> Any:
    """Insert some tasks into a queue, and return them leased."""
    group[name].insert_many(range(count))
    tasks = group[name].lease(count)
    assert len(tasks) == count
    return tasks


def test_it_is_applied_at_the_end_of_its_block(group: Any) -> None:
    with group.update() as update:
        update.insert("parse", 1)
        assert group["parse"].status() == Status()
    assert group["parse"].status() == Status(waiting=1)


def test_it_is_not_applied_after_an_exception(group: Any) -> None:
    update = group.update()
    update.insert("parse", 1)
    with pytest.raises(ValueError, match="odd"), update:
        raise ValueError("odd")
    assert group["parse"].status() == Status()


def test_apply_in_its_block_is_all_there_is(group: Any) -> None:
    with group.update() as update:
        update.insert("parse", 1)
        [ref] = update.apply()
    assert [info.id for info in group["parse"].tasks()] == [ref.id]


def test_it_is_applied_once(group: Any) -> None:
    [task] = leased(group, "fetch")
    update = group.update()
    update.complete(task)
    update.insert("parse", 1)
    update.apply()
    for act in (
        update.apply, lambda: update.insert("parse", 2), lambda: update.insert_many("parse", [2]),
        lambda: update.complete(task), lambda: update.depends(task),
    ):  # fmt: skip
        with pytest.raises(InvalidArgument, match="has been applied"):
            act()
    with update:
        pass
    assert group["parse"].status() == Status(waiting=1)


def test_a_child_that_was_forked_in_its_block_leaves_it_to_its_parent(group: Any) -> None:
    update = group.update()

    def leave() -> None:
        update.__exit__(None, None, None)

    with update:
        update.insert("parse", 1)
        assert in_a_child(leave) == 0
        assert group["parse"].status() == Status()
    assert group["parse"].status() == Status(waiting=1)


def test_a_block_that_was_entered_in_a_child_is_applied_there(group: Any) -> None:
    def apply() -> bool:
        with group.update() as update:
            update.insert("parse", os.getpid())
        return True

    assert in_a_child(apply) == 1
    assert group["parse"].status() == Status(waiting=1)


def test_each_call_tells_what_it_has_brought_about_in_their_order(group: Any) -> None:
    first, second, third, fourth, fifth, sixth = leased(group, "fetch", 6)
    group["plan"].insert("seen")
    [seen] = group["plan"].peek()
    update = group.update()
    update.complete(first, {"r": 1})
    update.insert(group["parse"], "a", priority=2, delay_s=1000)
    update.renew(second, 1000)
    update.insert_many("parse", ["b", Task("c", key="k"), b"\x00"])
    update.release(third, 1000)
    update.replace(seen, {"new": (1, 2)})
    update.fail(fourth, ValueError("odd"), delay_s=1000)
    update.replace(fifth, "other")
    update.bury(sixth, "no")
    update.insert("parse", "d", key="k")
    found = update.apply()
    assert found == update.results
    a, (b, c, raw), replaced, d = found[1], found[3], found[5], found[9]
    assert [one for number, one in enumerate(found) if number in (0, 4, 6, 8)] == [None] * 4
    assert (found[2], found[7]) == (second, fifth)
    parsed = {info.id: info for info in group["parse"].tasks()}
    assert [parsed[ref.id].payload for ref in (a, b, c, raw)] == ["a", "b", "c", b"\x00"]
    assert (parsed[a.id].priority, parsed[a.id].state, parsed[c.id].key) == (2, "delayed", "k")
    assert (d.id, d.inserted, c.inserted) == (c.id, False, True)
    assert update.versions == {ref.id: parsed[ref.id].version for ref in (a, b, raw)}
    assert (replaced.payload, replaced.version) == ({"new": [1, 2]}, group["plan"].task(seen.id).version)
    assert (fifth.payload, fifth.version) == ("other", group["fetch"].task(fifth.id).version)
    assert (second.done, fifth.done) == (False, False)
    assert all(task.done for task in (first, third, fourth, sixth))
    assert second.lease_until == pytest.approx(group["fetch"].task(second.id).lease_until)
    assert group["fetch"].status() == Status(delayed=2, leased=2, completed=1, dead=1)
    [result] = (one for one in group["fetch"].results() if one.state == "completed")
    assert result.result == {"r": 1}
    assert [(letter.id, letter.reason) for letter in group["fetch"].dead()] == [(sixth.id, "no")]
    assert [one.error for one in group["fetch"].history(fourth.id) if one.error] == ["ValueError: odd"]
    second.complete()


def test_an_update_cancels_and_replaces_what_was_leased_and_what_waits(group: Any) -> None:
    fetch = group["fetch"]
    held, dropped, seen, old, changed = (fetch.insert(name).id for name in "abcde")
    mine = {task.id: task for task in fetch.lease(5, lease_s=60)}
    fetch.release([mine[id] for id in (seen, old, changed)])
    infos = {info.id: info for info in fetch.tasks("waiting")}
    with group.update() as update:
        update.cancel(mine[dropped])
        update.replace(mine[held], {"page": 1})
        update.insert("parse", 1)
        update.replace(infos[seen], [2])
        update.cancel(infos[old])
    nothing, leased, _, waiting, _ = update.results
    assert (nothing, leased, waiting.id) == (None, mine[held], seen)
    assert leased.payload == fetch.task(held).payload == {"page": 1}
    assert leased.version == fetch.task(held).version
    assert waiting == fetch.task(seen)
    assert waiting.payload == [2]
    assert fetch.status() == Status(waiting=2, leased=1)
    leased.complete()
    again = group.update()
    again.cancel(infos[changed])
    again.replace(infos[seen], "never")
    again.cancel(infos[old])
    with pytest.raises(UpdateConflict) as conflict:
        again.apply()
    assert [one.id for one in conflict.value.changed] == [seen]
    assert [one.id for one in conflict.value.missing] == [old]
    assert fetch.task(changed).state == "waiting"
    with pytest.raises(InvalidArgument, match="not looked up in a queue of a group"):
        group.update().cancel(TaskInfo(seen, "waiting"))
    with pytest.raises(InvalidTask, match=r"bytes|JSON"):
        group.update().replace(waiting, b"bytes")


def test_an_update_depends_on_tasks_that_are_as_they_were_seen(group: Any) -> None:
    for name in ("leader", "plan"):
        group[name].insert(name)
    [leader] = group["leader"].lease()
    [seen] = group["plan"].peek()
    with group.update() as update:
        update.depends(leader)
        update.depends(seen)
        update.insert("next", 1)
    assert not leader.done
    assert update.results[:2] == [None, None]
    assert (group["leader"].status().leased, group["next"].status().waiting) == (1, 1)
    leader.release()
    [_] = group["plan"].lease()
    again = group.update()
    again.depends(leader)
    again.depends(seen)
    again.insert("next", 2)
    with pytest.raises(UpdateConflict) as conflict:
        again.apply()
    assert {one.id for one in conflict.value.depends} == {leader.id, seen.id}
    assert group["next"].status().waiting == 1


def test_a_new_task_is_changed_by_the_version_that_the_update_has_told(group: Any) -> None:
    with group.update() as update:
        update.insert("parse", 1)
    [(identity, version)] = update.versions.items()
    with group.update() as again:
        again.replace(TaskInfo(identity, "waiting", version=version, queue="parse"), 2)
    assert group["parse"].task(identity).payload == 2
    with pytest.raises(UpdateConflict) as conflict, group.update() as late:
        late.cancel(TaskInfo(identity, "waiting", version=version, queue="parse"))
    assert [one.id for one in conflict.value.changed] == [identity]


def test_an_update_returns_references_that_know_their_queues(group: Any) -> None:
    with group.update() as update:
        update.insert("a", 1)
        update.insert("b//c", 2, key="k")
        update.insert("b//c", 3, key="k")
    one, two, same = update.results
    assert [ref.state() for ref in (one, two, same)] == ["waiting"] * 3
    assert (two.id, two.inserted, same.inserted) == (same.id, True, False)
    [task] = group["b//c"].lease()
    task.complete("c")
    assert (same.result(), one.cancel(), one.state()) == ("c", True, "cancelled")


def test_a_key_that_is_taken_leaves_the_rest_of_the_update(group: Any) -> None:
    first = group["parse"].insert(1, key="k")
    with group.update() as update:
        update.insert("parse", 2, key="k")
        update.insert("parse", 3)
    assert (update.results[0].id, update.results[0].inserted) == (first.id, False)
    assert group["parse"].status() == Status(waiting=2)


def test_after_a_conflict_nothing_has_happened_and_it_may_be_applied_again(group: Any) -> None:
    first, second = leased(group, "fetch", 2)
    second.release()
    update = group.update()
    update.complete(first)
    update.complete(second)
    update.insert("parse", 1)
    for _ in range(2):
        with pytest.raises(UpdateConflict) as conflict:
            update.apply()
        assert [one.id for one in conflict.value.owned] == [second.id]
    assert (update.results, update.versions, first.done) == ([], {}, False)
    assert (group["fetch"].status(), group["parse"].status()) == (Status(waiting=1, leased=1), Status())
    first.complete()


def test_what_is_wrong_is_refused_by_the_call_and_nothing_of_that_happens(group: Any) -> None:
    [task] = leased(group, "fetch")
    group["plan"].insert(1)
    [seen] = group["plan"].peek()
    update = group.update()
    for wrong in (
        lambda: update.insert("", 1),
        lambda: update.insert(5, 1),
        lambda: update.insert(None, 1),
        lambda: update.insert("\0", 1),
        lambda: update.insert("q", {1: 2}),
        lambda: update.insert("q", "x" * 70_000),
        lambda: update.insert("q", 1, key=""),
        lambda: update.insert("q", 1, priority=1.5),
        lambda: update.insert("q", 1, delay_s=-1),
        lambda: update.insert("q", 1, delay_s=1, available_at=5),
        lambda: update.insert("q", Task(1, key="a"), key="b"),
        lambda: update.insert_many("q", "abc"),
        lambda: update.insert_many("q", [object()]),
        lambda: update.insert_many("q", range(OPERATIONS_MAX + 1)),
        lambda: update.complete(seen),
        lambda: update.complete(5),
        lambda: update.renew(task, 0),
        lambda: update.renew(seen),
        lambda: update.release(task, -1),
        lambda: update.fail(task, "x", -1),
        lambda: update.release(seen),
        lambda: update.bury(seen, "x"),
        lambda: update.cancel(5),
        lambda: update.depends(None),
        lambda: update.cancel(TaskInfo(seen.id, "waiting")),
        lambda: update.replace(seen, b"x"),
        lambda: update.replace(seen, Task(1)),
        lambda: update.replace(seen, bytearray(b"x")),
        lambda: update.replace(seen, {1: 2}),
        lambda: update.replace(seen, "x" * 70_000),
        lambda: update.apply(-1),
        lambda: update.apply(None),
    ):
        with pytest.raises(InvalidArgument):
            wrong()
    update.insert("other", 1)
    update.depends(task)
    with pytest.raises(InvalidArgument, match="in this update already"):
        update.complete(task)
    update.apply()
    assert group["other"].status() == group["plan"].status() == Status(waiting=1)
    assert group["q"].status() == Status()
    assert not task.done


def test_a_result_that_cannot_be_kept_is_refused_by_the_call(group: Any) -> None:
    [task] = leased(group, "fetch")
    update = group.update()
    for result in (b"bytes", object(), "x" * (1 << 20)):
        with pytest.raises(InvalidResult) as refused:
            update.complete(task, result)
        assert refused.value.tasks == [task.id]
    update.complete(task, 7)
    update.apply()
    assert [one.result for one in group["fetch"].results()] == [7]


@pytest.mark.parametrize("kind", GROUPS)
def test_a_task_or_a_queue_of_elsewhere_is_refused(group: Any, tmp_path: Path, kind: str) -> None:
    (tmp_path / "elsewhere").mkdir()
    with GROUPS[kind](tmp_path / "elsewhere") as other:
        [task] = leased(other, "fetch")
        update = group.update()
        for act in (
            lambda: update.insert(other["fetch"], 1), lambda: update.complete(task), lambda: update.depends(task),
            lambda: update.cancel(task), lambda: update.replace(task, 1),
        ):  # fmt: skip
            with pytest.raises(InvalidArgument):
                act()
        update.apply()
        assert other["fetch"].status() == Status(leased=1)


def test_a_plain_queue_of_elsewhere_is_refused(group: Any, tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "plain")
    queue.insert(1)
    [task] = queue.lease()
    with pytest.raises(InvalidArgument):
        group.update().complete(task)


def test_an_empty_update_is_one(group: Any) -> None:
    with group.update() as update:
        pass
    assert update.results == []
    with pytest.raises(InvalidTask):
        group.update().insert("q", object())
