"""Numbers of tasks: they grow, none is used twice, and each version has one, whoever asks and whatever fails."""

from __future__ import annotations

import errno
import os
import shutil
import signal
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group
from fsqueue.errors import GroupNotFound, LockTimeout, SecondName
from fsqueue.format import numbers as format_of
from fsqueue.format.names import Batch, QueueId
from fsqueue.format.numbers import RECORD_BYTES, TaskVersion
from fsqueue.storage import number_table as stored
from fsqueue.storage.group_directory import GroupDirectory
from fsqueue.storage.number_table import Numbers
from tests.concurrency.processes import children, together
from tests.concurrency.trapped import Count, DieAt, FullFrom, Trap, Trapped

pytestmark = pytest.mark.once


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A group."""
    return str(Group.create(tmp_path / "group", durability="default").path)


def opened(path: str, trap: Trap | None = None) -> Numbers:
    """The numbers of the group, as another process opens them."""
    fs = None if trap is None else Trapped(path, trap)
    return Numbers(GroupDirectory(path, fs), True)


def version(index: int, of: int = 0, batch: str = "b", owner: int = 0, lease: str = "") -> TaskVersion:
    return TaskVersion(QueueId("a" * 16), b"place of", Batch(batch * 32), index, of, 1_000 + of, owner, lease)


def give(numbers: Numbers, *wanted: TaskVersion, is_owner_known: bool = False) -> list[int]:
    return [given.number for given in numbers.give([(one, is_owner_known) for one in wanted])]


def latest(path: str, index: int, batch: str = "b") -> int | None:
    """The number of a task, as a process finds it that opens them now."""
    numbers = opened(path)
    numbers.catch_up()
    found = numbers.latest(version(index, batch=batch).key, index)
    return None if found is None else found.number


def file_of(path: str, place: int = 0) -> Path:
    return Path(path, ".numbers", f"{place:012x}")


@pytest.fixture
def small_files(monkeypatch: pytest.MonkeyPatch) -> int:
    """Files of a few numbers each."""
    for module in (stored, format_of):
        monkeypatch.setattr(module, "FILE_RECORDS", 4)
    return 4


def test_numbers_grow_from_one_and_a_version_has_one(path: str) -> None:
    mine, other = opened(path), opened(path)
    mine.catch_up()
    assert not file_of(path).exists(), "a look makes no file"
    assert give(mine, version(0), version(1)) == [1, 2]
    assert give(other, version(2), version(1), version(0, of=70)) == [3, 2, 4]
    assert give(mine, version(0, of=70), version(0, of=70, batch="c"), version(0, of=70, batch="c")) == [4, 5, 5]
    found = mine.read([4, 1, 99, 0, -1, 2**63 - 1])
    assert found == {1: version(0), 4: version(0, of=70)}
    assert [latest(path, index) for index in range(4)] == [4, 2, 3, None]
    assert file_of(path).stat().st_size == 5 * RECORD_BYTES


def test_all_that_a_record_says_is_kept(path: str) -> None:
    named = TaskVersion(
        QueueId("f" * 16), b"\xff" * 8, Batch("e" * 32), 1023, 2**40, 2**43, -(2**31), "0" * 15 + "1", True
    )
    [number] = give(opened(path), named)
    numbers = opened(path)
    numbers.catch_up()
    assert numbers.read([number]) == {1: named}
    given = numbers.latest(named.key, 1023)
    assert given == (1, 2**40, 2**43, -(2**31))


def test_an_owner_that_is_known_ends_a_number_that_says_another(path: str) -> None:
    seen, made = opened(path), opened(path)
    assert give(seen, version(0)) == [1]
    assert give(made, version(0, owner=7), is_owner_known=True) == [2]
    assert give(made, version(0, owner=7), is_owner_known=True) == [2]
    assert give(seen, version(0)) == [2], "of two records of a version the last one counts"
    assert latest(path, 0) == 2


def test_a_number_that_comes_late_takes_nothing_from_the_next_version(path: str) -> None:
    """Another process has leased the new task, and has numbered that, before its inserter had given it a number."""
    mine, other = opened(path), opened(path)
    assert give(other, version(0, of=500)) == [1]
    assert give(mine, version(0, of=70)) == [2]
    assert give(mine, version(0, of=500)) == [1] == give(opened(path), version(0, of=500))


def test_a_torn_record_names_nothing_and_numbers_go_on_behind_it(path: str) -> None:
    give(opened(path), version(0), version(1))
    torn = file_of(path).read_bytes()[: RECORD_BYTES - 1]
    with file_of(path).open("ab") as file:
        file.write(torn)
    numbers = opened(path)
    assert give(numbers, version(1), version(2)) == [2, 4]
    assert numbers.read([1, 2, 3, 4]).keys() == {1, 2, 4}
    assert give(opened(path), version(3), version(2)) == [5, 4]


def test_numbers_go_on_behind_a_torn_record_at_the_end_of_a_file(path: str, small_files: int) -> None:
    give(opened(path), version(0), version(1), version(2))
    torn = file_of(path).read_bytes()[: RECORD_BYTES - 1]
    with file_of(path).open("ab") as file:
        file.write(torn)
    assert give(opened(path), version(2), version(3)) == [3, 5]
    assert (latest(path, 2), latest(path, 3)) == (3, 5)


@pytest.mark.parametrize("at", [*range(0, RECORD_BYTES, 7), RECORD_BYTES - 1])
def test_a_damaged_record_names_nothing_and_its_task_gets_another_number(path: str, at: int) -> None:
    give(opened(path), version(0), version(1))
    content = bytearray(file_of(path).read_bytes())
    content[at] ^= 1
    file_of(path).write_bytes(content)
    numbers = opened(path)
    assert give(numbers, version(0), version(1)) == [3, 2]
    assert numbers.read([1, 2, 3]).keys() == {2, 3}


def test_zeros_as_a_power_loss_leaves_them_name_nothing(path: str) -> None:
    give(opened(path), version(0))
    with file_of(path).open("ab") as file:
        file.truncate(10 * RECORD_BYTES)
    assert give(opened(path), version(0), version(1)) == [1, 11]


def test_records_in_another_place_or_of_another_group_name_nothing(path: str, tmp_path: Path) -> None:
    give(opened(path), version(0), version(1))
    other = str(Group.create(tmp_path / "other").path)
    file_of(other).parent.mkdir()
    content = file_of(path).read_bytes()
    file_of(other).write_bytes(content)
    file_of(path).write_bytes(content[RECORD_BYTES:] + content[:RECORD_BYTES])
    for each in (path, other):
        assert (latest(each, 0), latest(each, 1)) == (None, None)
        assert give(opened(each), version(0)) == [3]


def test_files_follow_each_other(path: str, small_files: int) -> None:
    mine, other = opened(path), opened(path)
    assert give(mine, *(version(index) for index in range(10))) == list(range(1, 11))
    assert give(other, version(9), version(10), version(0)) == [10, 11, 1]
    assert give(other, *(version(index) for index in range(20))) == list(range(1, 21))
    assert give(mine, version(19), version(20)) == [20, 21]
    assert sorted(os.listdir(file_of(path).parent)) == [f"{place:012x}" for place in range(6)]
    assert mine.read(range(1, 30)).keys() == set(range(1, 22))
    file_of(path, 1).unlink()  # all of its numbers have ended, and it was removed
    again = opened(path)
    assert give(again, version(0), version(4), version(8)) == [1, 22, 9]
    assert again.read(range(1, 10)).keys() == {1, 2, 3, 4, 9}


def test_numbers_of_a_file_that_was_removed_are_not_used_again(path: str, small_files: int) -> None:
    """A gateway was idle meanwhile. The file that it knows as the last one is there, and the next one is not."""
    idle = opened(path)
    give(idle, *(version(index) for index in range(small_files)))
    give(opened(path), *(version(index) for index in range(small_files, 11)))
    file_of(path, 1).unlink()
    assert give(idle, version(11), version(10), version(12)) == [12, 11, 13]
    assert not file_of(path, 1).exists()


def test_what_was_appended_without_a_sync_gets_other_numbers(path: str) -> None:
    """After a sync that has failed, the next one may succeed though what was written is lost."""
    failing = Count(lambda step, args: step == "fsync")

    def fail(number: int, step: str, call: Callable[..., Any], *args: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    numbers = opened(path, failing)
    assert give(numbers, version(0)) == [1]
    failing.at = fail  # type: ignore[method-assign]
    failing.armed = True
    with pytest.raises(OSError, match="Input/output"):
        give(numbers, version(1), version(2))
    with pytest.raises(OSError, match="Input/output"):
        give(numbers, version(1))
    failing.armed = False
    assert give(numbers, version(0), version(1), version(2)) == [1, 4, 5]
    assert latest(path, 1) == 4


def test_what_another_process_has_appended_and_cannot_be_synced_is_never_told(path: str) -> None:
    """The next sync may succeed though what the other process wrote is lost."""
    failing = Count(lambda step, args: step == "fsync")

    def fail(number: int, step: str, call: Callable[..., Any], *args: Any) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    numbers = opened(path, failing)
    assert give(numbers, version(0)) == [1]
    assert give(opened(path), version(1)) == [2]
    failing.at = fail  # type: ignore[method-assign]
    failing.armed = True
    with pytest.raises(OSError, match="Input/output"):
        numbers.catch_up()
    failing.armed = False
    numbers.catch_up()
    assert numbers.latest(version(1).key, 1) is None
    assert give(numbers, version(0), version(1)) == [1, 3]
    assert latest(path, 1) == 3


def test_what_another_process_has_appended_is_synced_before_it_is_told(path: str) -> None:
    syncs = Count(lambda step, args: step == "fsync")
    numbers = opened(path, syncs)
    numbers.catch_up()
    give(opened(path), version(0))
    syncs.armed = True
    numbers.catch_up()
    seen = len(syncs.steps)
    assert seen
    numbers.catch_up()
    assert len(syncs.steps) == seen, "nothing is new"
    assert numbers.latest(version(0).key, 0) is not None


@pytest.mark.parametrize("partly", [False, True])
def test_a_full_disk_gives_no_number_and_costs_none_that_was_given(path: str, partly: bool) -> None:
    full = FullFrom(1, partly=partly)
    numbers = opened(path, full)
    assert give(numbers, version(0)) == [1]
    full.armed = True
    if partly:  # the rest of a short write finds room
        assert give(numbers, version(1)) == [2]
    else:
        with pytest.raises(OSError, match="No space"):
            give(numbers, version(1))
    assert give(numbers, version(0), version(1)) == [1, 2] == give(opened(path), version(0), version(1))


def test_a_process_that_dies_at_any_step_costs_no_number_that_was_told(path: str, small_files: int) -> None:
    step, told, last = 1, [0], False
    while not last:
        before = opened(path)
        wanted = [version(index, batch="d", of=step) for index in range(3)]

        def live(step: int = step, wanted: list[TaskVersion] = wanted) -> list[int]:
            trap = DieAt(step)
            numbers = opened(path, trap)
            trap.armed = True
            return give(numbers, *wanted)

        with children((live,)) as [child]:
            status = child.wait()
            assert status in (0, -signal.SIGKILL), child.report()
            last = status == 0
            found = child.result() if last else []
        now = give(before, *wanted)
        assert now == sorted(set(now)), f"step {step}"
        assert min(now) > max(told), f"step {step}: they grow, and none is used twice"
        assert give(opened(path), *wanted) == now
        assert found in ([], now)
        told += now
        step += 1 + step // 10
    assert step > 10


def test_processes_at_once_give_each_version_one_number(path: str) -> None:
    def live(me: int) -> list[list[int]]:
        numbers = opened(path)
        own = [give(numbers, version(turn, batch=str(me)), version(turn, batch="f")) for turn in range(40)]
        assert all(first < second for (first, _), (second, _) in pairwise(own)), "they grow"
        return own

    found = together((live, 1), (live, 2), (live, 3))
    own = [number for one in found for number, _ in one]
    shared = {tuple(number for _, number in one) for one in found}
    assert len(shared) == 1, "all of them were told the same number of a version"
    assert sorted([*own, *shared.pop()]) == list(range(1, 161)), "none is used twice, and none is left out"


def test_the_lock_of_a_stopped_process_is_waited_for_in_bounds(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = opened(path)
    give(numbers, version(0))
    monkeypatch.setattr(stored, "WAIT_S", 0.01)
    with file_of(path).open("r+b") as held:
        assert numbers.group.fs.try_lock(held.fileno())
        with pytest.raises(LockTimeout):
            give(opened(path), version(1))
    assert give(numbers, version(1)) == [2]


def test_nothing_is_written_to_a_file_with_a_second_name_nor_in_a_group_that_was_moved(path: str) -> None:
    numbers = opened(path)
    give(numbers, version(0))
    os.link(file_of(path), f"{path}/.numbers/other")
    with pytest.raises(SecondName):
        give(numbers, version(1))
    os.unlink(f"{path}/.numbers/other")
    os.rename(path, f"{path} moved")
    assert give(numbers, version(1)) == [2], "it is the same group, which is held open"
    assert not os.path.exists(path)
    shutil.rmtree(f"{path} moved")
    with pytest.raises(GroupNotFound):
        give(numbers, version(2))
    assert not os.path.exists(path)


@pytest.mark.thorough
def test_a_million_numbers_are_followed_in_bounded_memory(path: str) -> None:
    numbers = Numbers(GroupDirectory(path), False)
    for batch in range(1000):
        wanted = [(version(index)._replace(batch=Batch(f"{batch:032x}")), False) for index in range(1000)]
        numbers.give(wanted)
    again = Numbers(GroupDirectory(path), False)
    again.catch_up()
    last = version(999)._replace(batch=Batch(f"{999:032x}"))
    found = again.latest(last.key, 999)
    assert found is not None
    assert found.number == 1_000_000
    assert again.read([1_000_000]) == {1_000_000: last}
