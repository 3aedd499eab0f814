"""A decision file goes once all that it commits has its outcome, and not before."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fsqueue import Group, Queue
from fsqueue.clock import Clock
from fsqueue.format import decisions, layout
from fsqueue.format.groups import BELLS_BYTES, GROUP_FILE
from fsqueue.format.names import UpdateId
from fsqueue.protocol import updates
from fsqueue.upkeep import decision_files
from tests.concurrency.books import drain
from tests.concurrency.processes import children
from tests.concurrency.trapped import DieAt, Trapped

pytestmark = pytest.mark.once

DAY_MS = decision_files.AGE_MS


def clock_in(ms: int) -> Clock:
    clock = Clock()
    clock.offset_ms = ms
    return clock


def decided(path: Path) -> Group:
    """A group in which an update was decided, and neither log has the outcome: the updater died."""
    group = Group.create(path, shards=1, durability="none")
    group["a"].insert("task")
    group["b"].insert("here")
    [task] = group["a"].lease(lease_s=1e7)
    with mock.patch.object(updates._Try, "_give", return_value=None), group.update() as update:
        update.complete(task)
        update.insert("b", "x")
    return group


def files(group: Group) -> list[str]:
    return os.listdir(group.path / decisions.DIRECTORY)


def gc(group: Group, name: str, ms: int) -> int:
    return Queue(group.path / name, clock=clock_in(ms)).gc().decision_files_retired


def left(group: Group) -> dict[str, list[Any]]:
    return {
        queue.name: sorted(drain(Queue(queue.path, clock=clock_in(2 * DAY_MS))))
        for queue in [*group.queues(tasks_min=0)]
    }


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return decided(tmp_path / "group")


def test_a_file_goes_a_day_after_its_last_line(group: Group) -> None:
    assert gc(group, "a", DAY_MS - 60_000) == 0
    assert len(files(group)) == 1
    assert gc(group, "b", DAY_MS + 60_000) == 1
    assert files(group) == []
    assert left(group) == {"a": [], "b": ["here", "x"]}


def test_a_full_one_goes_an_hour_after_it(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decisions, "FILE_BYTES_MAX", 100)
    assert gc(group, "a", decision_files.FULL_AGE_MS - 60_000) == 0
    assert gc(group, "a", decision_files.FULL_AGE_MS + 60_000) == 1


def test_an_empty_one_goes_too_and_a_stray_stays(group: Group) -> None:
    for name in ("0" * 32 + ".jsonl", "notes.txt"):
        (group.path / decisions.DIRECTORY / name).touch()
    assert gc(group, "a", 0) == 1
    assert sorted(files(group))[-1] == "notes.txt"


def closes(group: Group) -> Callable[[], object]:
    """Mark a queue as deleted, as a deletion does that may be refused and taken back."""
    path = group.path / "b" / "queue.jsonl"
    before = path.read_bytes()
    path.write_bytes(before + layout.closed_record(1))
    return lambda: path.write_bytes(before)


def moves(group: Group) -> Callable[[], object]:
    os.rename(group.path / "b", group.path.parent / "moved")
    return lambda: os.rename(group.path.parent / "moved", group.path / "b")


def replaces(group: Group) -> Callable[[], object]:
    """Another queue has the name meanwhile."""
    back = moves(group)
    Group(group.path)["b"].insert("another")

    def restore() -> None:
        os.rename(group.path / "b", group.path.parent / "other")
        back()

    return restore


def locks(group: Group) -> Callable[[], object]:
    """A stopped process has the log locked."""
    fs = group.directory().fs
    [log] = (group.path / "b").rglob("movements/*/*.jsonl")
    fd = fs.look(str(log), os.O_RDWR)
    assert fs.try_lock(fd)
    return lambda: fs.close(fd)


@pytest.mark.parametrize("doubt", [closes, moves, replaces, locks])
def test_what_is_in_doubt_keeps_it(
    group: Group, doubt: Callable[[Group], Callable[[], object]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of the update would be lost, once the queue is back."""
    monkeypatch.setattr(decision_files, "WAIT_S", 0.01)
    restore = doubt(group)
    assert gc(group, "a", DAY_MS + 60_000) == 0
    assert len(files(group)) == 1
    restore()
    assert left(group) == {"a": [], "b": ["here", "x"]}


def test_a_queue_that_is_away_keeps_it_for_thirty_days(group: Group) -> None:
    moves(group)
    assert gc(group, "a", decision_files.AWAY_MS - 60_000) == 0
    assert gc(group, "a", decision_files.AWAY_MS + 60_000) == 1


def links(group: Group) -> Path:
    """The disk was full: the queue was moved to another one, and a link left in its place."""
    return aside(group.path / "b", Path.symlink_to)


def links_its_file(group: Group) -> Path:
    return aside(group.path / "b" / "queue.jsonl", Path.symlink_to)


def stands_there(group: Group) -> Path:
    return aside(group.path / "b", lambda path, _: path.touch())


def links_the_tasks(group: Group) -> Path:
    """The log is gone, as after a power loss; its task file is hidden."""
    [log] = (group.path / "b").rglob("movements/*/*.jsonl")
    log.unlink()
    [tasks] = (group.path / "b").glob("*/queue/*")
    return aside(tasks, Path.symlink_to)


def loses_its_file(group: Group) -> Path:
    """A cleaner has removed it. fsck writes it again."""
    return aside(group.path / "b" / "queue.jsonl", lambda path, _: None)


def damages_its_file(group: Group) -> Path:
    return aside(group.path / "b" / "queue.jsonl", lambda path, _: path.touch())


def aside(path: Path, stand: Callable[[Path, Path], object]) -> Path:
    """Move what is at a path aside, and put something else there. Return the path."""
    away = path.parents[path.parts[::-1].index("group")] / "aside"
    path.rename(away)
    stand(path, away)
    return path


HIDDEN = [links, links_its_file, stands_there, links_the_tasks, loses_its_file, damages_its_file]


@pytest.mark.parametrize("hide", HIDDEN)
def test_a_queue_that_is_hidden_keeps_it_for_ever(
    group: Group, hide: Callable[[Group], Path], caplog: pytest.LogCaptureFixture
) -> None:
    """Only a proof that the queue is elsewhere lets its thirty days begin. Upkeep says why the file stays."""
    group.close()
    at = hide(group)
    assert gc(group, "a", 3 * decision_files.AWAY_MS) == 0
    assert len(files(group)) == 1
    [said] = [record.getMessage() for record in caplog.records if "decision file" in record.getMessage()]
    assert said.startswith(f"kept 1 decision file of the group {group.path}: ")
    assert str(group.path / "b") in said
    if hide is not links_the_tasks:
        if os.path.lexists(at):
            at.unlink()
        (group.path.parent / "aside").rename(at)
        assert left(group) == {"a": [], "b": ["here", "x"]}


@pytest.mark.parametrize("end", ["purge", "finish"])
def test_a_log_that_has_ended_needs_no_outcome(group: Group, end: str) -> None:
    if end == "purge":
        group["b"].purge()
    else:
        assert drain(Queue(group.path / "b", clock=clock_in(2 * DAY_MS))) == ["here", "x"]
        Queue(group.path / "b", clock=clock_in(2 * DAY_MS)).gc()
        assert not list((group.path / "b").rglob("movements/*/*.jsonl"))
        assert gc(group, "a", 0) == 0
    assert gc(group, "a", 3 * DAY_MS) == (1 if end == "purge" else 0) or not files(group)


def test_a_line_that_comes_during_the_visits_keeps_it(group: Group) -> None:
    """Another thread of its owner has committed: its logs have not been visited."""
    original = decision_files._remove

    def adds(store: Any, directory: Any, path: str, visited: Any) -> bool:
        with Path(path).open("ab") as appended:
            appended.write(decisions.abort(1, UpdateId("0" * 16)))
        return original(store, directory, path, visited)

    with mock.patch.object(decision_files, "_remove", adds):
        assert gc(group, "a", DAY_MS + 60_000) == 0
    assert len(files(group)) == 1
    assert gc(group, "a", DAY_MS + 60_000) == 1


def test_one_of_a_clock_that_was_ahead_goes_by_its_stamp(group: Group) -> None:
    [name] = files(group)
    path = group.path / decisions.DIRECTORY / name
    with path.open("ab") as appended:
        appended.write(decisions.abort(9_000_000_000_000, UpdateId("0" * 16)))
    assert gc(group, "a", 0) == 0
    os.utime(path, (0, 0))
    assert gc(group, "a", 0) == 1


def test_a_cleaner_is_kept_from_the_files_of_the_group(group: Group) -> None:
    """Without `.group.jsonl` there is no group, and without a decision file its updates count as given up."""
    bells = group.path / ".bells"
    mine = [group.path / GROUP_FILE, bells, *(group.path / decisions.DIRECTORY).iterdir()]
    for path in mine:
        os.utime(path, (0, 0))
    assert group["a"].gc(touch=True).touched > 3
    assert all(path.stat().st_mtime > 0 for path in mine)
    bells.unlink()
    group["a"].gc(touch=True)
    assert bells.stat().st_size == BELLS_BYTES
    assert Queue(group.path / "a").gc().decision_files_retired == 0


@pytest.mark.parametrize("place", ["directory", "file"])
@pytest.mark.parametrize("stray", ["link", "pipe", "other"])
def test_a_stray_stops_no_upkeep(group: Group, place: str, stray: str, tmp_path: Path) -> None:
    """fsck tells of it. Its target is not touched."""
    directory = group.path / decisions.DIRECTORY
    path = directory if place == "directory" else directory / f"{'0' * 32}.jsonl"
    if place == "directory":
        os.rename(directory, tmp_path / "away")
    if stray == "link":
        (tmp_path / "target").mkdir()
        path.symlink_to(tmp_path / "target")
    elif stray == "pipe":
        os.mkfifo(path)
    elif place == "directory":
        path.touch()
    else:
        path.mkdir()
    assert gc(group, "a", DAY_MS + 60_000) == (place == "file")
    assert group["b"].gc(touch=True).touched > 1
    assert os.path.lexists(path)
    assert stray != "link" or not os.listdir(tmp_path / "target")


def test_killed_at_every_step_of_a_removal(tmp_path: Path) -> None:
    step = 0
    while True:
        step += 3
        group = decided(tmp_path / f"g{step}")

        def live(group: Group = group, step: int = step) -> None:
            trap = DieAt(step)
            fs = Trapped(str(group.path / "a"), trap)
            with (
                mock.patch("fsqueue.storage.store.Filesystem", lambda root, **_: Trapped(root, trap)),
                mock.patch("fsqueue.storage.group_directory.Filesystem", lambda root, **_: Trapped(root, trap)),
            ):
                queue = Queue(group.path / "a", filesystem=fs, clock=clock_in(DAY_MS + 60_000))
                trap.armed = True
                decision_files.retire(queue.store)

        with children((live,)) as [child]:
            status = child.wait()
        assert status in (0, -signal.SIGKILL), child.report()
        assert left(group) == {"a": [], "b": ["here", "x"]}, f"step {step}"
        gc(group, "a", 2 * DAY_MS + 120_000)  # a day after the line by which the killed process has retired it
        assert files(group) == [], f"step {step}"
        if status == 0:
            break
    assert step > 30
