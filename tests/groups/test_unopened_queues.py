"""How many tasks a queue of a group has left, as a look says that does not open the queue."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from fsqueue import Group, Queue
from fsqueue.format import names
from fsqueue.storage import unopened_queues
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.store import Store
from tests.prepared import ByHand

pytestmark = pytest.mark.once

STATES: dict[str, Callable[[Group], object]] = {
    "never used": lambda group: GroupDirectory(str(group.path)).begin(names.queue_directory("q")),
    "one by one": lambda group: [group["q"].insert(n) for n in range(5)],
    "in a file": lambda group: group["q"].insert_many(range(3000)),
    "delayed": lambda group: group["q"].insert(1, delay_s=600),
    "with priorities": lambda group: [group["q"].insert(n, priority=n) for n in range(3)],
    "leased": lambda group: (group["q"].insert_many([1, 2]), group["q"].lease(1)),
    "done in part": lambda group: (
        [group["q"].insert(n) for n in range(5)],
        [task.complete() for task in group["q"].lease(3)],
    ),
    "done": lambda group: ([group["q"].insert(n) for n in range(5)], [task.complete() for task in group["q"].lease(5)]),
    "in no batch any more": lambda group: (
        group["q"].insert_many([1], batch_tasks=1),
        [task.complete() for task in group["q"].lease()],
    ),
    "dead": lambda group: (group["q"].insert(1), [task.bury("why") for task in group["q"].lease()]),
    "retried": lambda group: (
        group["q"].insert(1),
        [task.bury("why") for task in group["q"].lease()],
        group["q"].retry_dead(),
    ),
    "purged": lambda group: (group["q"].insert(1), group["q"].purge(), group["q"].insert(2)),
    "paused": lambda group: (group["q"].insert(1), group["q"].pause()),
}


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group.create(tmp_path / "g", durability="none")


def seen(group: Group) -> int | None:
    return unopened_queues.remaining(group.directory(), names.queue_directory("q"))


@pytest.mark.parametrize("state", STATES)
def test_it_counts_what_an_open_queue_does(group: Group, state: str) -> None:
    STATES[state](group)
    assert seen(group) == group["q"].status(exact=False).remaining


def test_a_group_lists_those_with_tasks_without_opening_a_queue(group: Group) -> None:
    for name in ("a", "b", "c"):
        group[name].insert(1)
    [task] = group["b"].lease()
    task.complete()
    with mock.patch.object(Store, "__init__", side_effect=AssertionError("a queue was opened")):
        assert [queue.name for queue in Group(group.path).queues()] == ["a", "c"]
        assert list(Group(group.path).queues(tasks_min=2)) == []


def replaced(path: Path) -> None:
    """Put a link to a directory aside in its place."""
    path.rename(path.parent / "aside")
    path.symlink_to("aside")


def only_log(base: Path) -> None:
    """Remove the task file of an open batch, as a listing shows it that is made while the file is renamed."""
    [file] = base.glob("queue/*/*.jsonl")
    file.unlink()


def without_file(base: Path) -> None:
    (base.parent / "queue.jsonl").unlink()


def foreign(base: Path) -> None:
    shutil.rmtree(base.parent)
    Queue.create(base.parents[2] / "elsewhere").insert(1)
    (base.parents[2] / "elsewhere").rename(base.parent)


def proposed(base: Path) -> None:
    (base / "commits" / "pending").mkdir(parents=True)
    (base / "commits" / "pending" / f"{'0' * 32}.json").touch()


def staged(base: Path) -> None:
    (base / "staging").mkdir(exist_ok=True)
    (base / "staging" / f"{'0' * 13}-{'0' * 32}-5.jsonl").touch()


UNSURE: dict[str, Callable[[Path], object]] = {
    "the file is being renamed": only_log,
    "queue.jsonl is gone": without_file,
    "it is no queue of the group": foreign,
    "something is staged": staged,
    "a commit may be decided": proposed,
    "a link has the place of a generation": replaced,
    "a link has the place of the shards": lambda base: replaced(base / "queue"),
    "a link has the place of a shard": lambda base: replaced(next((base / "queue").iterdir())),
    "a link has the place of the logs": lambda base: replaced(base / "movements"),
    "the log is gone": lambda base: next(base.glob("movements/*/*.jsonl")).unlink(),
}


@pytest.mark.parametrize("change", UNSURE)
def test_it_says_that_it_cannot_tell(group: Group, change: str) -> None:
    group["q"].insert(1)
    [base] = (group.path / "q").glob("1-*")
    group.close()
    UNSURE[change](base)
    assert seen(group) is None


def test_an_update_that_is_prepared_is_decided_elsewhere(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path / "g")
    by_hand.prepare()
    assert [
        unopened_queues.remaining(by_hand.group.directory(), one.directory) for one in (by_hand.first, by_hand.then)
    ] == [
        None,
        None,
    ]
    assert [queue.name for queue in by_hand.group.queues()] == ["first"]
