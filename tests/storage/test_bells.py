"""The bells of a group: what a lessee need not read, and that it overlooks nothing (docs/decisions/0057)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from fsqueue import FsqueueError, Group, Queue
from fsqueue.clock import Clock, ManualClock
from fsqueue.filesystem import Filesystem
from fsqueue.format.groups import BELL_BYTES, BELLS, BELLS_BYTES, bell_of, bells_file
from fsqueue.format.names import queue_directory
from fsqueue.groups import members
from fsqueue.groups.group_source import GroupSource
from fsqueue.storage import bells
from fsqueue.storage.bells import Bells, GroupDoorbell
from fsqueue.storage.listening import Doorbell
from tests.concurrency.processes import children


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def group(tmp_path: Path) -> Group:
    made = Group.create(tmp_path / "group", shards=2, durability="none")
    made["a"].insert(1)
    made["b"].insert(1)
    return made


def doorbell(group: Group, clock: ManualClock, name: str = "a") -> GroupDoorbell:
    """The doorbell of a queue, as a process of its own has it: with its own view of the bells."""
    directory = queue_directory(name)
    fs, entropy = group.directory().fs, group.directory().entropy
    own = Bells(fs, str(group.path), clock, entropy)
    return GroupDoorbell(fs, f"{group.path}/{directory}/doorbell", entropy, own, bell_of(directory))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Doorbell]:
    """The doorbells that were read themselves, in turn."""
    found: list[Doorbell] = []
    original = Doorbell.read

    def read(self: Doorbell) -> bytes:
        found.append(self)
        return original(self)

    monkeypatch.setattr(Doorbell, "read", read)
    return found


def settled(mine: GroupDoorbell, clock: ManualClock) -> bytes:
    """Read a doorbell until it is known, and what it says."""
    mine.read()
    clock.advance(bells.SETTLED_S)
    return mine.read()


def test_a_group_has_the_file_and_each_queue_a_bell_of_it(group: Group) -> None:
    content = Path(bells_file(str(group.path))).read_bytes()
    assert len(content) == BELLS_BYTES
    rung = {place // 4 for place, byte in enumerate(content) if byte}
    assert rung <= {bell_of(queue_directory(name)) for name in "ab"}
    assert len(rung) == 2
    assert [bell_of(queue_directory(name)) for name in ("a", "a/b", "#")] == [3651, 4069, 2174]  # docs/format.md
    assert all(bell_of(queue_directory(str(number))) < BELLS for number in range(1000))


def test_a_known_doorbell_is_not_read_again_until_its_bell_rings(
    group: Group, clock: ManualClock, reads: list[Doorbell]
) -> None:
    mine, other, theirs = (doorbell(group, clock, name) for name in "aba")
    for one in (mine, other):
        settled(one, clock)
    before = mine.read()
    assert before
    del reads[:]
    for _ in range(10):
        clock.advance(5)
        assert mine.read() == before
        other.read()
    assert reads == []
    theirs.ring()
    clock.advance(5)
    assert mine.read() != before
    other.read()
    assert reads == [mine]


@pytest.mark.parametrize("quiet_s", [0.0, 0.3, 0.99])
@pytest.mark.parametrize("seen_s", [0.0, 0.2, 0.9, 1.5, 6.0])
def test_what_is_rung_without_the_bell_is_not_overlooked(
    group: Group, clock: ManualClock, reads: list[Doorbell], quiet_s: float, seen_s: float
) -> None:
    """A ring so soon after another one that the bell stays silent, before or after a lessee has looked."""
    mine, theirs = doorbell(group, clock), doorbell(group, clock)
    settled(mine, clock)
    theirs.ring()
    if seen_s < quiet_s:
        clock.advance(seen_s)
        mine.read()
        clock.advance(quiet_s - seen_s)
    else:
        clock.advance(quiet_s)
    bell = Path(bells_file(str(group.path))).read_bytes()
    theirs.ring()
    assert Path(bells_file(str(group.path))).read_bytes() == bell
    clock.advance(max(0.0, seen_s - quiet_s))
    mine.read()
    settled(mine, clock)
    assert settled(mine, clock) == Doorbell.read(theirs)
    del reads[:]
    mine.read()
    assert reads == []


def test_the_bell_rings_once_a_second_at_most_and_after_the_doorbell(
    group: Group, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[str] = []
    for name in ("overwrite", "overwrite_at"):
        original = getattr(Filesystem, name)

        def write(fs: Filesystem, path: str, *args: object, original: Callable[..., None] = original) -> None:
            written.append(os.path.basename(path))
            original(fs, path, *args)

        monkeypatch.setattr(Filesystem, name, write)
    theirs = doorbell(group, clock)
    for _ in range(3):
        theirs.ring()
        clock.advance(0.4)
    theirs.ring()
    assert written == ["doorbell", ".bells", "doorbell", "doorbell", "doorbell", ".bells"]


def test_a_doorbell_that_is_not_known_is_read_once_in_a_moment(
    group: Group, clock: ManualClock, reads: list[Doorbell]
) -> None:
    """One look at a queue asks its doorbell several times."""
    mine = doorbell(group, clock)
    for number in range(1, 4):
        assert len({mine.read() for _ in range(3)}) == 1
        assert len(reads) == number
        clock.advance(bells.FRESH_S)


def test_a_doorbell_that_was_heard_is_read_whatever_the_bell_says(group: Group, clock: ManualClock) -> None:
    mine, theirs = doorbell(group, clock), doorbell(group, clock)
    before = settled(mine, clock)
    Doorbell.ring(theirs)
    clock.advance(5)
    assert mine.read() == before
    mine.forget()
    assert mine.read() != before


def broken(path: Path, how: str) -> None:
    """Do something to the file of the bells."""
    if how == "short":
        os.truncate(path, BELLS_BYTES - 1)
        return
    path.unlink()
    if how == "a directory":
        path.mkdir()
    elif how == "a link":
        target = path.parent / "target"
        target.write_bytes(bytes(BELLS_BYTES))
        path.symlink_to(target)
    elif how == "a pipe":
        os.mkfifo(path)


@pytest.mark.parametrize("how", ["gone", "short", "a directory", "a link", "a pipe"])
def test_without_the_file_each_doorbell_is_read(
    group: Group, clock: ManualClock, reads: list[Doorbell], how: str
) -> None:
    path = Path(bells_file(str(group.path)))
    mine, theirs = doorbell(group, clock), doorbell(group, clock)
    settled(mine, clock)
    broken(path, how)
    clock.advance(1)
    del reads[:]
    before = mine.read()
    theirs.ring()
    clock.advance(bells.FRESH_S)
    assert mine.read() != before
    assert len(reads) == 2
    if how == "a link":
        assert (path.parent / "target").read_bytes() == bytes(BELLS_BYTES)
    elif how == "gone":
        assert not path.exists()


def test_a_file_with_a_second_name_is_not_written_to(group: Group, clock: ManualClock, tmp_path: Path) -> None:
    path = Path(bells_file(str(group.path)))
    os.link(path, tmp_path / "elsewhere")
    before = path.read_bytes()
    doorbell(group, clock).ring()
    assert path.read_bytes() == before


def test_a_queue_that_was_opened_by_its_own_path_rings_in_the_group_that_it_lies_in(group: Group) -> None:
    path, directory = Path(bells_file(str(group.path))), queue_directory("a")
    (group.path.parent / "link").symlink_to(group.path)

    def rung_by(queue: Queue) -> set[int]:
        before = path.read_bytes()
        queue.insert(2)
        now = path.read_bytes()
        return {at // BELL_BYTES for at in range(BELLS_BYTES) if before[at] != now[at]}

    for where in (group.path / directory, group.path.parent / "link" / directory):
        with Queue(where) as queue:
            assert rung_by(queue) == {bell_of(directory)}
            assert rung_by(queue) == set(), "once in a moment"
    with Queue(group.path / directory) as queue:
        queue.path.rename(group.path.parent / "moved")
        with suppress(FsqueueError):
            queue.insert(3)
    other = Group.create(group.path.parent / "other", shards=2, durability="none")
    (group.path.parent / "moved").rename(other.path / directory)
    zeros = Path(bells_file(str(other.path))).read_bytes()
    with Queue(other.path / directory) as queue:
        queue.insert(4)
    assert Path(bells_file(str(other.path))).read_bytes() == zeros, "of another group than that it was made in"


@pytest.mark.parametrize("how", ["gone", "short"])
def test_it_is_made_again_and_then_relied_on_only_after_a_while(
    group: Group, clock: ManualClock, reads: list[Doorbell], how: str
) -> None:
    mine = doorbell(group, clock)
    settled(mine, clock)
    path = Path(bells_file(str(group.path)))
    broken(path, how)
    clock.advance(1)
    mine.read()
    Group.create(group.path, exist_ok=True)
    assert path.stat().st_size == BELLS_BYTES
    clock.advance(bells.ABSENT_S)
    settled(mine, clock)
    del reads[:]
    clock.advance(5)
    mine.read()
    assert reads == []


def test_more_than_the_bells_is_not_read_and_not_cut(group: Group, clock: ManualClock, reads: list[Doorbell]) -> None:
    path = Path(bells_file(str(group.path)))
    with open(path, "ab") as file:
        file.write(b"x" * 100)
    Group.create(group.path, exist_ok=True)
    mine = doorbell(group, clock)
    settled(mine, clock)
    del reads[:]
    clock.advance(5)
    mine.read()
    assert reads == []
    assert path.stat().st_size == BELLS_BYTES + 100


# -- crashes --------------------------------------------------------------------------------------------------


def die(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies(act: Callable[[], object]) -> None:
    """Do something in a process that is killed within it."""
    with children((act,)) as [child]:
        assert child.wait() == -signal.SIGKILL, child.report()


def inserting_dies(group: Group, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Insert a task in a process that is killed when it has rung the doorbell, and not yet the bell."""
    with monkeypatch.context() as patch:
        patch.setattr(Bells, "ring", die)
        dies(lambda: Group(group.path)[name].insert("by the killed process"))


def test_killed_between_doorbell_and_bell_the_doorbell_alone_tells_until_the_next_ring(
    group: Group, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = doorbell(group, clock)
    known, rung = settled(mine, clock), Path(bells_file(str(group.path))).read_bytes()
    inserting_dies(group, "a", monkeypatch)
    clock.advance(bells.SETTLED_S)
    assert Path(bells_file(str(group.path))).read_bytes() == rung
    assert mine.read() == known, "it is believed as it was read"
    assert Doorbell.read(mine) != known
    Group(group.path)["a"].insert("by another process")
    clock.advance(bells.FRESH_S)
    assert mine.read() != known
    assert group["a"].status().waiting == 3


def test_killed_between_doorbell_and_bell_the_task_is_found_by_the_next_full_look(
    group: Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(members, "OPEN_MAX", 1)
    lessee = GroupSource([Group(group.path).matching(".*")], None)
    while tasks := lessee.look(10):
        for task in tasks:
            task.complete()
    later_s, monotonic = 0.0, Clock.monotonic
    monkeypatch.setattr(Clock, "monotonic", lambda _: monotonic() + later_s)

    def looks() -> list[object]:
        """Look for tasks again and again, for a minute of the clock."""
        nonlocal later_s
        for _ in range(20):
            later_s += 3.0
            if tasks := lessee.look(1):
                return [task.payload for task in tasks]
        return []

    assert looks() == []
    [closed] = {"a", "b"} - {Path(store.path).name for store in lessee.stores}
    inserting_dies(group, closed, monkeypatch)
    assert looks() == [], "no bell has told of it"
    later_s += 1.25 * members.SWEEP_S
    assert looks() == ["by the killed process"]


def test_a_group_whose_maker_was_killed_before_its_bells_works_and_gets_them_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "made"
    with monkeypatch.context() as patch:
        patch.setattr(bells, "make", die)
        dies(lambda: Group.create(path, durability="none"))
    assert (path / ".group.jsonl").exists()
    assert not (path / ".bells").exists()
    lessee = Group(path).matching(".*")
    assert lessee.lease() == []
    Group(path)["a"].insert(1)
    [task] = lessee.lease(wait_s=600)
    task.complete()
    Group.create(path, exist_ok=True)
    assert (path / ".bells").stat().st_size == BELLS_BYTES
