"""Tasks with keys in updates: one living task a key, and nobody waits in a circle."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fsqueue import Group, InvalidArgument, LeasedTask, Queue, StorageError, Task, Worker
from fsqueue.format import decisions
from fsqueue.format.layout import key_epochs_record
from fsqueue.protocol import updates
from fsqueue.storage import queue_changes
from fsqueue.storage.keys import KeyFile
from fsqueue.storage.logs import Log
from fsqueue.worker import completion_updates, inserts
from tests.concurrency.books import clock_of_later
from tests.concurrency.processes import together
from tests.groups.test_updates import before
from tests.worker import tasks as handlers

pytestmark = [pytest.mark.once, pytest.mark.batched]


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group.create(tmp_path / "group", shards=1, durability="default", max_attempts=1)


def leased(group: Group, name: str, key: str) -> LeasedTask:
    assert group[name].insert(f"page {key}", key=key).inserted
    [task] = group[name].lease()
    assert task.key == key
    return task


def waiting(group: Group, name: str) -> list[Any]:
    assert not [*group[name].fsck()]
    return [task.payload for task in group[name].tasks("waiting")]


# -- what is told -----------------------------------------------------------------------------------------------------


def test_an_insert_whose_key_is_taken_is_left_out_and_the_rest_happens(group: Group) -> None:
    task = leased(group, "fetch", "a")
    there = group["fetch"].insert("page b", key="b")
    with group.update() as update:
        update.insert("fetch", "again", key="b")
        update.insert("fetch", "page c", key="c")
        update.insert_many("fetch", ["plain", Task("page c, again", key="c"), Task("page d", "d"), "last"])
        update.insert("extract", "page a", key="a")
        update.release(task, 60)
        update.insert("fetch", "the released one", key="a")
    taken, new, [plain, repeated, other, last], elsewhere, _, released = update.results
    assert (taken.inserted, taken.id) == (False, there.id)
    assert new.inserted
    assert (repeated.inserted, repeated.id) == (False, new.id)
    assert (plain.inserted, other.inserted, last.inserted, elsewhere.inserted) == (True,) * 4
    assert (released.inserted, released.id) == (False, task.id)
    told = {"page b": there, "page c": new, "plain": plain, "page d": other, "last": last}
    assert {name: group["fetch"].task(str(ref)).payload for name, ref in told.items()} == {name: name for name in told}
    assert sorted(waiting(group, "fetch")) == sorted(told)
    assert waiting(group, "extract") == ["page a"]
    assert not group["fetch"].insert("once more", key="c").inserted


def test_nothing_is_decided_where_all_keys_are_taken(group: Group) -> None:
    there = group["fetch"].insert("page", key="a")
    with group.update() as update:
        update.insert("fetch", "again", key="a")
    assert [(ref.id, ref.inserted) for ref in update.results] == [(there.id, False)]
    assert all(b"commit" not in file.read_bytes() for file in (group.path / decisions.DIRECTORY).iterdir())


ENDS: dict[str, Callable[[Any, LeasedTask], None]] = {
    "complete": lambda update, task: update.complete(task),
    "fail": lambda update, task: update.fail(task, "no"),
    "bury": lambda update, task: update.bury(task, "no"),
}


@pytest.mark.parametrize("how", ENDS)
def test_the_key_of_a_task_that_the_update_ends_is_refused(group: Group, how: str) -> None:
    """Also if the caller does not know which key the task has, as of a token."""
    task = leased(group, "fetch", "a")
    update = group.update()
    ENDS[how](update, group["fetch"].attach(task.token, verify=False))
    update.insert("extract", "x")
    update.insert("fetch", "again", key="a")
    with pytest.raises(InvalidArgument, match=r"cannot do both\. Nothing .* release it, with a delay"):
        update.apply()
    assert waiting(group, "extract") == []
    task.complete()
    assert group["fetch"].insert("again", key="a").inserted


# -- others in between ------------------------------------------------------------------------------------------------


def test_two_pages_that_link_to_each_other_do_not_wait_for_each_other(group: Group) -> None:
    """`a` is prepared, and not decided, while the update of `b` inserts its key."""
    a, b = leased(group, "fetch", "a"), leased(group, "fetch", "b")
    other = Group(group.path).update()
    other.complete(Group(group.path)["fetch"].attach(b.token))
    other.insert("fetch", "page a, of b", key="a")
    with before("_insert_keyed", other.apply), group.update() as update:
        update.complete(a)
        update.insert("fetch", "page b, of a", key="b")
    assert [(ref.inserted, ref.id) for ref in other.results[1:]] == [(False, a.id)]
    assert update.results[1].inserted, "b had ended"
    assert waiting(group, "fetch") == ["page b, of a"]


def tries(act: Callable[[Group], None], path: Path) -> int:
    """Do something with updates in this process; return how often one of them had to begin anew."""
    found = []
    original = updates.Coordinator.patience_ms

    def noted(self: Any, logs: int, number: int) -> int:
        found.append(number)
        return original(self, logs, number)

    with mock.patch.object(updates.Coordinator, "patience_ms", noted):
        act(Group(path))
    return max(found)


def test_pages_in_circles_by_processes(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "group", shards=1, durability="none")
    rounds = 12
    for number in range(rounds):
        for name in "ab":
            group[name].insert(number, key=f"{number}")

    def works(mine: str, other: str) -> int:
        def act(here: Group) -> None:
            for _ in range(rounds):
                [task] = here[mine].lease()
                with here.update() as update:
                    update.complete(task)
                    update.insert(other, "link", key=task.key)

        return tries(act, group.path)

    assert together((works, "a", "b"), (works, "b", "a")) == [0, 0]
    for name in "ab":
        keys = [task.key for task in group[name].tasks("waiting")]
        assert len(keys) == len(set(keys))
        waiting(group, name)


def test_the_same_keys_in_opposite_order_by_processes(tmp_path: Path) -> None:
    group = Group.create(tmp_path / "group", shards=1, durability="none")
    rounds = 12

    def works(order: int) -> int:
        def act(here: Group) -> None:
            for number in range(rounds):
                with here.update() as update:
                    update.insert(f"done{order}", number)
                    for place in (0, 1, 2)[::order]:
                        update.insert("fetch", [number, place], key=f"{number}/{place}")

        return tries(act, group.path)

    assert together((works, 1), (works, -1)) == [0, 0]
    assert sorted(waiting(group, "fetch")) == [[number, place] for number in range(rounds) for place in range(3)]


def test_a_key_is_free_after_the_update_is_given_up(group: Group) -> None:
    task = leased(group, "fetch", "a")

    def fails() -> None:
        raise ZeroDivisionError

    update = group.update()
    update.complete(task)
    update.insert("fetch", "page b", key="b")
    with before("_look", fails), pytest.raises(ZeroDivisionError):
        update.apply()
    assert waiting(group, "fetch") == []
    assert group["fetch"].insert("page b", key="b").inserted
    assert not group["fetch"].insert("page a", key="a").inserted


def test_a_key_is_free_once_the_completion_is_decided_if_its_log_does_not_say_so_yet(group: Group) -> None:
    """The updater was told that the task is completed: an insert that comes later must not be lost in it."""
    task = leased(group, "fetch", "a")
    with mock.patch.object(updates._Try, "_give"), group.update() as update:
        update.complete(task)
        update.insert("extract", "x")
    assert group["fetch"].task(task.id).state == "completed"
    again = group["fetch"].insert("page a", key="a")
    assert again.inserted
    assert waiting(group, "fetch") == ["page a"]
    assert waiting(group, "extract") == ["x"]


def test_upkeep_between_the_steps_gives_the_update_up_and_it_begins_anew(group: Group) -> None:
    task = leased(group, "fetch", "a")

    def gc() -> None:
        Queue(group.path / "fetch", clock=clock_of_later()).gc()

    with before("_look", gc), group.update() as update:
        update.complete(task)
        update.insert("fetch", "page b", key="b")
    assert update.results[1].inserted
    assert not group["fetch"].insert("again", key="b").inserted
    assert waiting(group, "fetch") == ["page b"]


def _begin_epoch(queue: Queue) -> None:
    store = Queue(queue.path).store
    store.verify()
    state = store.queue_state
    line = key_epochs_record(state.generation, state.key_epochs.present, state.key_epochs.present + 1, 1)
    assert queue_changes.append(store, lambda present: line)


@pytest.mark.parametrize("how", ["epoch", "purge"])
def test_a_key_epoch_or_a_purge_that_begins_before_the_claim_makes_it_begin_anew(group: Group, how: str) -> None:
    """A claim that is written into an earlier place may never be found."""
    task = leased(group, "extract", "a")
    there = group["fetch"].insert("page b", key="b")
    begun: list[int] = []
    original = KeyFile.add

    def append(self: KeyFile, *args: Any) -> None:
        if not begun:
            begun.append(1)
            _begin_epoch(group["fetch"]) if how == "epoch" else Queue(group.path / "fetch").purge()
        original(self, *args)

    with mock.patch.object(KeyFile, "add", append), group.update() as update:
        update.complete(task)
        update.insert("fetch", "page a", key="a")
        update.insert("fetch", "page b, again", key="b")
    assert begun
    assert not Group(group.path)["fetch"].insert("page a, again", key="a").inserted
    assert (update.results[2].id == there.id) == (how == "epoch")
    assert sorted(waiting(group, "fetch")) == ["page a", "page b" if how == "epoch" else "page b, again"]


def test_a_claim_that_cannot_be_written_gives_the_update_up(group: Group) -> None:
    task = leased(group, "fetch", "a")
    update = group.update()
    update.complete(task)
    update.insert("extract", "x")
    update.insert("fetch", "page b", key="b")
    with mock.patch.object(KeyFile, "add", side_effect=StorageError("lost")), pytest.raises(StorageError):
        update.apply()
    assert waiting(group, "extract") == waiting(group, "fetch") == []
    task.complete()


def test_the_claim_of_a_key_stands_before_its_prepared_insert(group: Group) -> None:
    """Another host that gets the lost lock of the key in between finds the claim, and seals the batch."""
    done: list[str] = []
    append, write = KeyFile.add, Log.append

    def claims(file: KeyFile, *args: Any) -> Any:
        done.append("claim")
        return append(file, *args)

    def writes(log: Log, records: bytes) -> None:
        done.extend(["insert"] if b'"op":"insert"' in records else [])
        write(log, records)

    update = group.update()
    update.insert("extract", "x")
    update.insert("fetch", "page", key="k")
    with mock.patch.object(KeyFile, "add", claims), mock.patch.object(Log, "append", writes):
        update.apply()
    assert done == ["insert", "claim", "insert"]


# -- workers ----------------------------------------------------------------------------------------------------------


class _Done:
    """A completion, as a worker tells it."""

    verb = "complete"

    def __init__(self, task: LeasedTask, *links: str) -> None:
        self.task, self.result = task, None
        self.inserts = inserts.Inserts(
            tuple(inserts.Insert("fetch", b'{"payload":"%s"}\n' % key.encode(), (False, 0), key) for key in links)
        )


def test_completions_that_insert_each_others_keys_are_told_one_after_the_other(group: Group) -> None:
    a, b, c = (leased(group, "fetch", key) for key in "abc")
    one, two, three = _Done(a, "b"), _Done(b, "a"), _Done(c, "d")
    assert [[each.task.key for each in mine] for mine in completion_updates.grouped([one, two, three])] == [
        ["a"],
        ["b", "c"],
    ]
    for mine in completion_updates.grouped([one, two, three]):
        assert completion_updates.complete_and_insert(mine) == {}
    assert sorted(waiting(group, "fetch")) == ["a", "d"], "b lived when a was done, and a had ended when b was"


def test_a_handler_inserts_with_keys_and_not_with_its_own(group: Group) -> None:
    group["links"].insert({"inserts": [["links", "x"]]}, key="self")
    for payload in ("one", "two"):
        group["links"].insert({"inserts": [["fetch", payload]]})
    assert Worker(group["links"], handlers.follow_with_key, threads=1).run().completed == 2
    assert len(waiting(group, "fetch")) == 1
    [letter] = group["links"].dead()
    assert "cannot do both" in letter.reason
