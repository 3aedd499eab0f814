"""A decision file: one decision about each update, whoever asks, and whatever fails."""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, Queue
from fsqueue.clock import Clock, Entropy, ManualClock
from fsqueue.errors import FsqueueError, LockTimeout, QueueNotFound, SecondName, StorageError
from fsqueue.format import decisions, names
from fsqueue.format.decisions import ABORTED, Decision, LogName
from fsqueue.format.names import Batch, QueueId, UpdateId
from fsqueue.storage import decisions as stored
from fsqueue.storage.decisions import DecisionRequest, OutOfGroup, OwnDecisionFile, OwnDecisionFiles, Vote
from fsqueue.storage.group_directory import GroupDirectory
from tests.concurrency.processes import children
from tests.concurrency.trapped import Trapped
from tests.prepared import ByHand

pytestmark = pytest.mark.once

U, V = UpdateId("a" * 16), UpdateId("b" * 16)
LOGS = [LogName(names.queue_directory("q"), names.generation(1, QueueId("1" * 16)), Batch("0" * 32))]
DONE = Decision("commit", tuple(LOGS))
CLOCK, ENTROPY = Clock(), Entropy()


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group.create(tmp_path / "group", shards=1, durability="none")


@pytest.fixture
def directory(group: Group) -> GroupDirectory:
    return group.directory()


def begun(directory: GroupDirectory, clock: Clock = CLOCK) -> OwnDecisionFile:
    return OwnDecisionFiles().present(directory, clock, ENTROPY, {"pid": 1}, True)


def decide(file: OwnDecisionFile, update: UpdateId = U, clock: Clock = CLOCK) -> Decision:
    return file.decide(Vote(update, LOGS), clock, ENTROPY, True)


def asked(directory: GroupDirectory, file: OwnDecisionFile, update: UpdateId, may_abort: bool) -> Decision | None:
    return stored.ask_in(directory, file.name, update, may_abort, CLOCK, ENTROPY)


def test_the_first_line_counts_for_all(directory: GroupDirectory) -> None:
    file = begun(directory)
    assert asked(directory, file, U, False) is None
    assert decide(file) == DONE == asked(directory, file, U, True)
    assert asked(directory, file, V, True) == ABORTED == decide(file, V) == asked(directory, file, V, False)
    assert decide(file) == DONE
    lines = Path(file.path).read_bytes().splitlines()
    assert len(lines) == 3


@pytest.mark.parametrize("first", ["commit", "abort"])
def test_a_second_line_about_an_update_does_not_count(directory: GroupDirectory, first: str) -> None:
    """Each host has appended its own, and one of them had lost the lock: a log may have the first outcome by then."""
    file = begun(directory)
    lines = {"commit": decisions.commit(1, U, LOGS), "abort": decisions.abort(1, U)}
    [second] = lines.keys() - {first}
    with Path(file.path).open("ab") as appended:
        appended.write(lines[first] + lines[second])
    expected = DONE if first == "commit" else ABORTED
    assert asked(directory, file, U, False) == asked(directory, file, U, True) == decide(file) == expected
    assert stored.vote_against(directory, file.name, U, CLOCK, ENTROPY) == expected


def test_a_line_that_was_written_over_decides_nothing(group: Group) -> None:
    """The lock was lost, and no call has told it: what another host has appended stands there."""

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        found = call(*args)
        if step == "write" and is_armed:
            with Path(file.path).open("r+b") as written:
                written.truncate(begin)
                written.seek(begin)
                written.write(decisions.abort(1, U))
        return found

    is_armed = False
    mine = GroupDirectory(str(group.path), Trapped(str(group.path), trap))
    file, vote = begun(mine), Vote(U, LOGS)
    begin, is_armed = os.path.getsize(file.path), True
    with pytest.raises(StorageError, match="the lock was lost"):
        file.decide(vote, CLOCK, ENTROPY, True)
    is_armed = False
    assert vote.is_begun
    assert asked(group.directory(), file, U, False) == ABORTED


def test_a_file_that_is_retired_or_absent_has_aborted_what_it_does_not_commit(directory: GroupDirectory) -> None:
    file = begun(directory)
    assert decide(file) == DONE
    with Path(file.path).open("ab") as appended:
        appended.write(decisions.gone(1) + decisions.commit(1, V, LOGS))
    assert asked(directory, file, U, False) == DONE
    assert asked(directory, file, V, False) == ABORTED
    vote = Vote(V, LOGS)
    assert file.decide(vote, CLOCK, ENTROPY, True) == ABORTED
    assert not vote.is_begun
    assert file.is_left
    assert stored.vote_against(directory, file.name, V, CLOCK, ENTROPY) is None
    os.unlink(file.path)
    assert asked(directory, file, U, False) == ABORTED
    with pytest.raises(FileNotFoundError):
        stored.vote_against(directory, file.name, U, CLOCK, ENTROPY)


def test_a_file_that_another_program_has_removed_decides_nothing_more(directory: GroupDirectory) -> None:
    """A bystander takes it for aborted: a line in a file without a name must not decide otherwise."""
    file = begun(directory)
    os.unlink(file.path)
    assert decide(file) == ABORTED
    assert file.is_left


@pytest.mark.parametrize("torn", [b"{", b'{"op":"commit","at":1,"update":"aaaa', b"\0" * 70_000])
def test_a_torn_line_is_void_and_stays_so(directory: GroupDirectory, torn: bytes) -> None:
    file = begun(directory)
    for act in (lambda: decide(file), lambda: asked(directory, file, V, True)):
        with Path(file.path).open("ab") as appended:
            appended.write(torn)
        assert act() in (DONE, ABORTED)
    assert (asked(directory, file, U, False), asked(directory, file, V, False)) == (DONE, ABORTED)


def test_threads_decide_side_by_side(directory: GroupDirectory) -> None:
    file, found = begun(directory), []
    updates = [UpdateId(f"{number:016x}") for number in range(20)]

    def decides(mine: list[UpdateId]) -> None:
        found.extend(decide(file, update) for update in mine)

    threads = [threading.Thread(target=decides, args=(updates[number::4],)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [DONE] * 20
    assert len(Path(file.path).read_bytes().splitlines()) == 21


def test_a_forked_child_makes_its_own(directory: GroupDirectory) -> None:
    files = OwnDecisionFiles()
    file = files.present(directory, CLOCK, ENTROPY, {}, True)

    def in_child() -> list[str]:
        with pytest.raises(LockTimeout):
            decide(file, V)
        own = files.present(directory, CLOCK, ENTROPY, {}, True)
        assert decide(own, V) == DONE
        return [own.name]

    with children((in_child,)) as [child]:
        [name] = child.result()
    assert name != file.name
    assert decide(file) == DONE
    assert asked(directory, file, V, False) is None
    assert stored.ask_in(directory, name, V, False, CLOCK, ENTROPY) == DONE


def test_a_busy_file_is_left_and_another_begun(directory: GroupDirectory) -> None:
    files, clock = OwnDecisionFiles(), ManualClock()
    file = files.present(directory, clock, ENTROPY, {}, True)
    fs = directory.fs
    with fs.closing(fs.look(file.path, os.O_RDWR)) as fd:
        assert fs.try_lock(fd)
        vote = Vote(U, LOGS)
        with pytest.raises(LockTimeout, match="locked for 2 s"):
            file.decide(vote, clock, ENTROPY, True)
        assert not vote.is_begun
        assert stored.ask_in(directory, file.name, U, True, clock, ENTROPY) is None
        other = files.present(directory, clock, ENTROPY, {}, True)
        assert other.name != file.name
        assert decide(other, clock=clock) == DONE


def test_another_file_is_begun_after_hours_and_after_a_mebibyte(
    directory: GroupDirectory, monkeypatch: pytest.MonkeyPatch
) -> None:
    files, clock = OwnDecisionFiles(), ManualClock()

    def name() -> str:
        file = files.present(directory, clock, ENTROPY, {}, True)
        decide(file, UpdateId(ENTROPY.hex16()), clock)
        return file.name

    first = name()
    clock.advance(stored.IDLE_S - 1)
    assert name() == first
    clock.advance(stored.IDLE_S + 1)
    second = name()
    assert second != first
    monkeypatch.setattr(decisions, "FILE_BYTES_MAX", 100)
    assert name() not in (first, second)


STEPS = ("try_lock", "pread", "write", "fsync", "unlock", "fstat")


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("done", [False, True])
def test_whatever_fails_all_are_told_the_same(group: Group, shared: bool, done: bool) -> None:
    """An error of each call in turn. What the owner is told is what a bystander is told; else nothing was begun, or the
    file tells.
    """
    at = 0
    while True:
        at += 1
        failed: list[str] = []
        armed = False

        def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
            if not armed or step not in STEPS:  # noqa: B023 - called at once
                return call(*args)
            failed.append(step)  # noqa: B023
            if len(failed) != at:  # noqa: B023
                return call(*args)
            if done:
                call(*args)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        mine = GroupDirectory(str(group.path), Trapped(str(group.path), trap, shared=shared))
        file, vote = begun(mine), Vote(U, LOGS)
        armed = True
        told: Decision | None = None
        try:
            told = file.decide(vote, CLOCK, ENTROPY, True)
        except (OSError, StorageError):
            pass
        armed = False
        if told is None and vote.is_begun:
            told = stored.vote_against(mine, file.name, U, CLOCK, ENTROPY)
        if told is None:
            told = ABORTED
        assert asked(group.directory(), file, U, True) == told, (at, failed)
        if told == DONE:
            assert file.is_left or vote.is_durable
        if len(failed) < at:
            assert told == DONE
            break
    assert at > 5


def test_a_failed_sync_writes_the_line_again_and_leaves_the_file(group: Group) -> None:
    syncs: list[int] = []

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step == "fsync" and file_is_made:
            syncs.append(1)
            if len(syncs) <= failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        return call(*args)

    for failing in (1, 2):
        syncs.clear()
        file_is_made = False
        mine = GroupDirectory(str(group.path), Trapped(str(group.path), trap))
        file, vote = begun(mine), Vote(U, LOGS)
        file_is_made = True
        assert file.decide(vote, CLOCK, ENTROPY, True) == DONE
        assert file.is_left
        assert vote.is_durable == (failing == 1)
        assert Path(file.path).read_bytes().count(b'"commit"') == 2


def test_the_name_is_on_disk_before_the_file_is_used(group: Group) -> None:
    said: list[str] = []

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step == "fsync":
            said.append(os.path.relpath(os.readlink(f"/proc/self/fd/{args[0]}"), group.path))
        return call(*args)

    mine = GroupDirectory(str(group.path), Trapped(str(group.path), trap))
    files = OwnDecisionFiles()
    files.present(mine, CLOCK, ENTROPY, {}, False)
    assert said == []
    files.present(mine, CLOCK, ENTROPY, {}, True)
    files.present(mine, CLOCK, ENTROPY, {}, True)
    assert said == [".updates", "."]


def test_a_queue_that_was_moved_out_of_its_group_is_refused(group: Group, tmp_path: Path) -> None:
    queue = group["q"]
    queue.insert(1)
    file = begun(group.directory())
    assert stored.ask(queue.store, DecisionRequest(file.name, U)) is None
    (tmp_path / "link").symlink_to(group.path)
    assert stored.ask(Group(tmp_path / "link")["q"].store, DecisionRequest(file.name, U)) is None
    os.rename(queue.path, tmp_path / "moved")
    moved = Group.queue_at(tmp_path / "moved")
    with pytest.raises(OutOfGroup, match="Move it back"):
        stored.ask(moved.store, DecisionRequest(file.name, U, may_abort=True))
    other = Group.create(tmp_path / "other")
    os.rename(tmp_path / "moved", other.path / "q")
    with pytest.raises(OutOfGroup):
        stored.ask(Queue(tmp_path / "other" / "q").store, DecisionRequest(file.name, U, may_abort=True))
    os.rename(other.path / "q", queue.path)
    assert stored.ask(Group(group.path)["q"].store, DecisionRequest(file.name, U, may_abort=True)) == ABORTED


def test_a_file_with_a_second_name_is_not_written_to(directory: GroupDirectory, tmp_path: Path) -> None:
    """A neighbour may have linked another file of this user to that name."""
    file = begun(directory)
    os.link(file.path, tmp_path / "private")
    before = Path(file.path).read_bytes()
    with pytest.raises(SecondName):
        asked(directory, file, U, True)
    assert decide(file) == ABORTED
    assert Path(file.path).read_bytes() == before


def test_nothing_is_concluded_from_a_group_that_is_not_in_its_place(group: Group, tmp_path: Path) -> None:
    directory = group.directory()
    file = begun(directory)
    os.rename(group.path, tmp_path / "elsewhere")
    os.unlink(tmp_path / "elsewhere" / ".updates" / names.decision_file(file.name))
    with pytest.raises((QueueNotFound, FsqueueError)):
        asked(directory, file, U, True)


def test_what_is_in_the_place_of_a_file_is_named(tmp_path: Path) -> None:
    by_hand = ByHand(tmp_path / "group")
    by_hand.prepare()
    by_hand.file.mkdir(parents=True)
    for look in (by_hand.first.status, by_hand.task.complete):
        with pytest.raises(StorageError, match=re.escape(str(by_hand.file))):
            look()
