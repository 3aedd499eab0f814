"""A decision file that was lost, cut off, or restored from an older backup leaves no half update where that can be
known: `fsck` tells of it before any process works, and no process decides against what another log has.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest

from fsqueue import Group, Queue
from fsqueue.clock import ManualClock
from fsqueue.format.names import UpdateId
from fsqueue.protocol import deciding
from fsqueue.storage import given_outcomes
from fsqueue.storage.locked_batch import LockedBatch
from tests.concurrency.books import clock_of_later

pytestmark = pytest.mark.once

OF_UPDATES = {"undecided-update", "lost-decision", "cut-decisions", "half-update", "moved-queue"}
NAMES = ("A", "B", "C")


class Died(BaseException):
    """The process of the update has died."""


def whole(group: Path) -> None:
    """Assert that all of the update has happened, as a process sees it much later."""
    queues = {name: Queue(group / name, clock=clock_of_later()) for name in NAMES}
    taken = {name: [task.payload for task in queue.lease(9)] for name, queue in queues.items()}
    assert taken == {"A": [], "B": ["old", "new"], "C": ["old", "new"]}
    assert queues["A"].status().completed == 1


@pytest.fixture(params=["none", "default"])
def group(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A group with an update that completes a task of A and inserts into B and C. It is decided, and A has the outcome:
    then its process died.
    """
    path = tmp_path / "group"
    made = Group.create(path, shards=1, durability=request.param, max_attempts=None)
    for name in NAMES:
        made[name].insert("old")
    [task] = made["A"].lease(1)
    give, given = deciding.give, list[UpdateId]()

    def once(locked: LockedBatch, update: UpdateId, outcome: deciding.Outcome) -> bool:
        if given:
            raise Died
        given.append(update)
        return give(locked, update, outcome)

    update = made.update()
    update.complete(task)
    update.insert("B", "new")
    update.insert("C", "new")
    with mock.patch.object(deciding, "give", once), pytest.raises(Died):
        update.apply()
    return path


def decision_file(group: Path) -> Path:
    [path] = (group / ".updates").iterdir()
    return path


def remove(group: Path) -> None:
    decision_file(group).unlink()


def remove_all(group: Path) -> None:
    remove(group)
    (group / ".updates").rmdir()


def older(group: Path) -> None:
    path = decision_file(group)
    first, _, _ = path.read_bytes().partition(b"\n")
    path.write_bytes(first + b"\n")


def torn(group: Path) -> None:
    path = decision_file(group)
    path.write_bytes(path.read_bytes()[:-9])


def zeroed(group: Path) -> None:
    path = decision_file(group)
    path.write_bytes(bytes(path.stat().st_size))


def shortened(group: Path) -> None:
    path = decision_file(group)
    path.write_bytes(path.read_bytes()[:20])


def emptied(group: Path) -> None:
    decision_file(group).write_bytes(b"")


def garbled(group: Path) -> None:
    path = decision_file(group)
    path.write_bytes(path.read_bytes().replace(b'"commit"', b'"cXmmit"'))


LOST, THERE = (remove, remove_all), (older, torn, zeroed, shortened, emptied, garbled)


def kinds(group: Path, repair: bool = False) -> dict[str, list[tuple[str, bool]]]:
    opened = Group(group)
    return {
        name: [(one.kind, one.repaired) for one in opened[name].fsck(repair=repair) if one.kind in OF_UPDATES]
        for name in NAMES
    }


@pytest.mark.parametrize("damage", [*LOST, *THERE])
def test_workers_do_all_of_an_update_whose_decision_is_lost(group: Path, damage: Callable[[Path], None]) -> None:
    """The log in which it was prepared first has the outcome. The records in the others name that log."""
    damage(group)
    whole(group)


@pytest.mark.parametrize("damage", [*LOST, *THERE])
def test_fsck_finds_it_at_once_and_completes_the_update(group: Path, damage: Callable[[Path], None]) -> None:
    damage(group)
    is_there = damage in THERE
    assert kinds(group) == {
        "A": [("cut-decisions", False)] if is_there else [],
        "B": [("lost-decision", False)],
        "C": [("lost-decision", False)],
    }
    # The repair of the first queue writes the decision into the file, if there is one: then nothing is wrong in others.
    repaired = kinds(group, repair=True)
    assert {kind: is_repaired for each in repaired.values() for kind, is_repaired in each} == (
        {"cut-decisions": True} if is_there else {"lost-decision": True}
    )
    assert kinds(group) == {name: [] for name in NAMES}
    with mock.patch.object(given_outcomes, "is_committed", side_effect=AssertionError("the file tells it")):
        whole(group)


@pytest.mark.parametrize("damage", THERE)
def test_a_repair_of_a_queue_that_waits_saves_the_others_too(group: Path, damage: Callable[[Path], None]) -> None:
    damage(group)
    assert [(one.kind, one.repaired) for one in Group(group)["C"].fsck(repair=True)] == [("lost-decision", True)]
    with mock.patch.object(given_outcomes, "is_committed", side_effect=AssertionError("the file tells it")):
        whole(group)


def test_the_log_that_has_it_may_have_gone_to_the_history(group: Path) -> None:
    """The only task of A is completed: upkeep clears its batch away."""
    queue = Queue(group / "A")
    queue.store.clock = ManualClock(queue.store.clock.now_ms() / 1000 + 10)
    queue.gc()
    assert not list((group / "A").rglob("movements/*/*"))
    older(group)
    assert [kind for kind, _ in kinds(group)["B"]] == ["lost-decision"]
    whole(group)


@pytest.mark.parametrize("gone", ["purged", "deleted"])
def test_where_nothing_tells_any_more_the_update_is_given_up(group: Path, gone: str) -> None:
    older(group)
    if gone == "purged":
        Group(group)["A"].purge()
    else:
        Group(group).delete("A")
    for name in ("B", "C"):
        assert [task.payload for task in Queue(group / name, clock=clock_of_later()).lease(9)] == ["old"]
        assert not {one.kind for one in Group(group)[name].fsck()} & OF_UPDATES


def test_a_half_update_is_told_where_the_log_names_the_other(group: Path) -> None:
    """As an earlier version of the program, or a person, has left it: B has an `abort`."""
    remove(group)
    with mock.patch.object(given_outcomes, "is_committed", return_value=False):
        Queue(group / "B", clock=clock_of_later()).lease(9)
    [(kind, repaired)] = kinds(group, repair=True)["B"]
    assert (kind, repaired) == ("half-update", False)
    [finding] = [one for one in Group(group)["B"].fsck() if one.kind == "half-update"]
    assert finding.note.endswith("here abort, in the queue A commit")


def test_a_log_that_cannot_be_read_decides_nothing(group: Path) -> None:
    """An `abort` could be wrong: the tasks wait until the other queue can be read."""
    older(group)
    queue = Queue(group / "B", clock=clock_of_later())
    with mock.patch.object(given_outcomes, "is_committed", side_effect=OSError(5, "Input/output error")):
        assert [task.payload for task in queue.lease(9)] == ["old"]
    assert b"abort" not in decision_file(group).read_bytes()
    assert [task.payload for task in queue.lease(9)] == ["new"]


def link(place: Path, aside: Path) -> None:
    place.symlink_to(aside)


def gap(place: Path, aside: Path) -> None:
    """A cleaner has removed it. fsck writes it again."""


def damaged(place: Path, aside: Path) -> None:
    place.touch()


@pytest.mark.parametrize("damage", [remove, older])
@pytest.mark.parametrize(
    ("place", "hide"), [("A", link), ("A/queue.jsonl", link), ("A/queue.jsonl", gap), ("A/queue.jsonl", damaged)]
)
def test_a_log_that_is_hidden_decides_nothing(
    group: Path, place: str, hide: Callable[[Path, Path], object], damage: Callable[[Path], None]
) -> None:
    """An `abort` could be wrong: the tasks wait until the queue is back that has the outcome. Others are leased."""
    damage(group)
    (group / place).rename(group.parent / "aside")
    hide(group / place, group.parent / "aside")
    queue = Queue(group / "B", clock=clock_of_later())
    [old] = queue.lease(9)
    old.release()
    found = [one for one in queue.fsck(repair=True) if one.kind in OF_UPDATES]
    assert [one.repaired for one in found] == [False] * len(found)
    if (group / place).is_symlink():
        (group / place).unlink()
    (group.parent / "aside").rename(group / place)
    whole(group)
