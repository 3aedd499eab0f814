"""What fsck finds of atomic updates: left behind, decided by a file that is lost, decided in two ways."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue, Status
from fsqueue.clock import ManualClock
from fsqueue.filesystem import Filesystem
from fsqueue.format import decisions
from fsqueue.fsck import logged_updates
from fsqueue.groups.queue import GroupQueue
from tests.prepared import DAY_MS, ByHand, U, add

pytestmark = pytest.mark.once


@pytest.fixture
def update(tmp_path: Path) -> ByHand:
    update = ByHand(tmp_path / "group")
    update.prepare()
    return update


def kinds(queue: Queue, repair: bool = False) -> list[tuple[str, bool]]:
    return [(finding.kind, finding.repaired) for finding in queue.fsck(repair=repair)]


def a_day_later(update: ByHand) -> None:
    for queue in (update.first, update.then):
        queue.store.clock = ManualClock((update.now() + DAY_MS) / 1000)


@pytest.mark.parametrize("what", ["nothing", "commit", "abort", "absent"])
def test_what_is_young_is_no_finding(update: ByHand, what: str) -> None:
    update.says(what)
    assert kinds(update.first) + kinds(update.then) == []


def test_a_finished_batch_without_updates_is_replayed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The history may have millions of them."""
    queue = Queue.create(tmp_path / "queue", shards=1, durability="none")
    queue.insert_many([1, 2], batch_tasks=2)
    queue.complete(queue.lease(2))
    monkeypatch.setattr(logged_updates, "_told_by", None)
    assert kinds(queue) == []


@pytest.mark.parametrize("what", ["nothing", "commit", "abort", "absent", "retired"])
def test_what_was_left_a_day_ago_is_decided(update: ByHand, what: str) -> None:
    update.says(what)
    a_day_later(update)
    for queue in (update.first, update.then):
        [finding] = queue.fsck()
        assert (finding.kind, finding.tasks) == ("undecided-update", 1)
        assert U in finding.note
        assert kinds(queue, repair=True) == [("undecided-update", True)]
        assert kinds(queue) == []
    done = what == "commit"
    assert update.then.status() == (Status(waiting=1, completed=1) if done else Status(completed=1))
    assert update.first.status().completed == done
    if what == "nothing":
        assert decisions.abort(0, U).split(b'"at":0,')[1] in update.file.read_bytes()


def test_while_another_process_keeps_the_decision_file_locked_it_stays(update: ByHand) -> None:
    update.says("nothing")
    a_day_later(update)
    group = update.group.directory()
    with update.first.store.fs.closing(group.fs.look(str(update.file), os.O_RDWR)) as fd:
        assert group.fs.try_lock(fd)
        [finding] = update.first.fsck(repair=True)
    assert (finding.kind, finding.repaired) == ("undecided-update", False)
    assert "keeps the decision file locked" in finding.note


@pytest.mark.parametrize("is_finished", [False, True])
def test_an_update_that_has_happened_elsewhere_is_completed_though_its_file_is_lost(
    update: ByHand, is_finished: bool
) -> None:
    add(update.first, update.source, update.commit())
    if is_finished:
        update.first.store.clock = ManualClock(update.now() / 1000 + 10)
        update.first.gc()
        assert not Path(update.first.store.layout.log(update.source)).exists()
    update.says("absent")
    [finding] = update.then.fsck()
    assert (finding.kind, finding.tasks, finding.gravity) == ("lost-decision", 1, "damage")
    assert kinds(update.then, repair=True) == [("lost-decision", True)]
    assert update.then.status() == Status(waiting=1, completed=1)
    assert kinds(update.then) + kinds(update.first) == []


@pytest.mark.parametrize("is_finished", [False, True])
def test_an_outcome_that_was_not_decided_is_told_and_left(update: ByHand, is_finished: bool) -> None:
    update.says("commit" if not is_finished else "abort")
    if is_finished:  # the log has the commit, the file says abort
        add(update.first, update.source, update.commit())
        update.first.store.clock = ManualClock(update.now() / 1000 + 10)
        update.first.gc()
        queue: GroupQueue = update.first
    else:
        add(update.then, update.target, update.abort())
        queue = update.then
    [finding] = queue.fsck(repair=True)
    assert (finding.kind, finding.repaired) == ("half-update", False)
    here, there = ("commit", "abort") if is_finished else ("abort", "commit")
    assert finding.note.endswith(f"update {U}: here {here}, decided {there}")


@pytest.mark.parametrize("outcome", ["commit", "abort"])
def test_an_outcome_that_was_decided_is_sound(update: ByHand, outcome: str) -> None:
    update.says(outcome)
    line = update.commit() if outcome == "commit" else update.abort()
    add(update.first, update.source, line)
    add(update.then, update.target, line)
    a_day_later(update)
    assert kinds(update.first) + kinds(update.then) == []


def test_a_queue_that_was_moved_out_of_its_group_gives_the_update_up(update: ByHand, tmp_path: Path) -> None:
    update.says("commit")
    update.first.close()
    os.rename(update.first.path, tmp_path / "elsewhere")
    moved = Queue(tmp_path / "elsewhere")
    assert kinds(moved) == [("moved-queue", False)]
    assert kinds(moved, repair=True) == [("moved-queue", True)]
    assert moved.task(update.task.id).update is None
    moved.complete(moved.attach(update.task.token))
    assert moved.status() == Status(completed=1)


def test_a_time_ahead_is_corrected_once_the_update_is_decided(tmp_path: Path) -> None:
    update = ByHand(tmp_path / "group", ago_ms=-30 * DAY_MS)
    update.prepare()
    update.says("nothing")
    assert kinds(update.first) + kinds(update.then) == []
    for queue, batch in ((update.first, update.source), (update.then, update.target)):
        add(queue, batch, update.abort())
        assert kinds(queue, repair=True) == [("future-time", True)]


# -- the group's own files ---------------------------------------------------------------------------------------


def found(update: ByHand, repair: bool = False) -> list[tuple[str, str, bool]]:
    return sorted((one.kind, one.path, one.repaired) for one in update.group.fsck(repair=repair))


def test_what_is_no_decision_file_is_moved_out_of_the_way(update: ByHand, tmp_path: Path) -> None:
    assert found(update) == []
    update.says("commit")
    before = update.file.read_bytes()
    directory = update.file.parent
    (directory / "note").write_text("mine")
    (directory / f"{'a' * 32}.jsonl").mkdir()
    (directory / f"{'b' * 32}.jsonl").symlink_to(update.file)
    (tmp_path / "second").hardlink_to(directory / "note")
    strays = [
        ("in-the-way", f".updates/{'a' * 32}.jsonl"),
        ("link", f".updates/{'b' * 32}.jsonl"),
        ("stray", ".updates/note"),
    ]
    assert found(update) == [(*stray, False) for stray in strays]
    assert found(update, repair=True) == [(*stray, True) for stray in strays]
    assert found(update) == []
    assert os.listdir(directory) == [update.file.name]
    assert update.file.read_bytes() == before
    [run] = (Path(update.group.path) / ".quarantine").iterdir()
    assert sorted(path.name for path in (run / ".updates").iterdir()) == sorted(
        ("note", f"{'a' * 32}.jsonl", f"{'b' * 32}.jsonl")
    )
    assert [queue.name for queue in update.group.queues(tasks_min=0)] == ["first", "then"]


def test_damaged_lines_are_voided_and_the_others_count(update: ByHand) -> None:
    update.decide(b'{"op":"com\0mit"}}}\n', b"{}\n")
    update.says("commit")
    with update.file.open("ab") as file:
        file.write(b'{"op":"abort","at":')  # a writer is at work, or has died
    assert found(update) == [("damaged-line", f".updates/{update.file.name}", False)]
    assert found(update, repair=True) == [("damaged-line", f".updates/{update.file.name}", True)]
    assert found(update) == []
    assert update.then.status().waiting == 1


def test_a_file_with_a_second_name_is_told(update: ByHand, tmp_path: Path) -> None:
    update.says("commit")
    os.link(update.file, tmp_path / "copy")
    assert found(update, repair=True) == [("linked-file", f".updates/{update.file.name}", False)]


def test_something_else_in_the_place_of_the_directory(update: ByHand) -> None:
    (Path(update.group.path) / ".updates").symlink_to("/etc")
    assert found(update, repair=True) == [("link", ".updates", True)]
    assert found(update) == []


@pytest.mark.parametrize("stray", ["link", "pipe", "directory"])
def test_a_stray_in_the_place_of_a_decision_file_ends_no_check(update: ByHand, tmp_path: Path, stray: str) -> None:
    """The group's own check tells of it. The updates that it has decided keep their outcomes."""
    add(update.first, update.source, update.commit())
    update.file.parent.mkdir(exist_ok=True)
    match stray:
        case "link":
            update.file.symlink_to(tmp_path / "elsewhere")
        case "pipe":
            os.mkfifo(update.file)
        case "directory":
            update.file.mkdir()
    assert [name for name, _ in kinds(update.first)] == []
    assert [name for name, _ in kinds(update.then)] == ["lost-decision"]
    assert kinds(update.then, repair=True) == [("lost-decision", True)]
    assert update.then.status().waiting == 1
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("step", ["entries", "look"])
def test_a_decision_file_that_is_retired_meanwhile_does_not_end_the_check(
    update: ByHand, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """`gc` of another process removes it after it was listed, or before the second look."""
    update.says("commit")
    os.link(update.file, tmp_path / "second name")
    act = getattr(Filesystem, step)

    def retired(fs: Filesystem, path: str, *args: Any) -> Any:
        listed = act(fs, path) if step == "entries" else None
        if ".updates" in path:
            update.file.unlink(missing_ok=True)
        return act(fs, path, *args) if listed is None else listed

    monkeypatch.setattr(Filesystem, step, retired)
    assert found(update) == []
    assert not update.file.exists()
