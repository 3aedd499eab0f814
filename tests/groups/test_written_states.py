"""What a process knows of the logs that its update has changed is what a replay of them comes to.

Of many records it changes its state itself, and does not replay them: a wrong offset would show only much later.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from fsqueue import Group, LeasedTask, Task, UpdateConflict
from fsqueue.format import checkpoints
from fsqueue.format.models import Used
from fsqueue.format.replay import ReplayState
from fsqueue.protocol import updates
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.logs import Log
from tests import record_lines
from tests.format.test_updates import all_of
from tests.support import log_files

pytestmark = pytest.mark.once

AHEAD_MS = 3 * 3_600_000


def known(state: ReplayState) -> dict[str, Any]:
    """All that does not depend on what was leased here, and what was read of the task file."""
    beside = ["fresh_end", "quiet_until"]
    if state.inserts is None:
        beside += ["is_ranked", "priorities", "ranks"]
    return {name: value for name, value in all_of(state).items() if not name.startswith("_") and name not in beside}


@pytest.fixture(autouse=True)
def compared(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The logs whose states were compared, each at the end of a critical section that went well."""
    leave, found, differences = LockedBatch.__exit__, list[str](), list[Any]()

    def compare(locked: LockedBatch, kind: Any, *more: Any) -> None:
        log = locked.log
        if kind is None and log.fd >= 0 and log.replay_state.is_whole:
            mine, anew = log.replay_state, ReplayState()
            anew.replay(Path(log.path).read_bytes(), 0)
            anew.run = []
            found.append(log.path)
            if (known(mine), mine.stretch.since, mine.stretch.sum) != (
                known(anew),
                anew.stretch.since,
                anew.stretch.sum,
            ):
                differences.append((known(mine), known(anew)))
        leave(locked, kind, *more)

    monkeypatch.setattr(LockedBatch, "__exit__", compare)
    yield found
    assert found
    for mine, anew in differences:
        assert mine == anew
    assert not differences


@pytest.fixture(params=[False, True], ids=["", "checkpoints"])
def group(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Group:
    if request.param:  # at each append
        monkeypatch.setattr(checkpoints, "LEAST_BYTES", 0)
        monkeypatch.setattr(checkpoints, "SHARE", 0)
    return Group.create(tmp_path / "group", shards=1, durability="none", max_attempts=3)


def one(group: Group, queue: str, payload: Any = "task") -> LeasedTask:
    """A leased task of an open batch."""
    group[queue].insert(payload)
    [task] = group[queue].lease(lease_s=60)
    return task


def leave_ahead(group: Group, queue: str) -> None:
    """Let a log end in a record of a clock that is hours ahead: the next append corrects the log's time."""
    [log] = log_files(group[queue])
    with log.open("ab") as file:
        file.write(record_lines.record("move", group[queue].store.clock.now_ms() + AHEAD_MS))
    os.utime(log)


def leave_torn(group: Group, queue: str) -> None:
    [log] = log_files(group[queue])
    with log.open("ab") as file:
        file.write(b'{"op":"comp')


BEFORE: dict[str, Callable[[Group, str], object]] = {
    "nothing": lambda group, queue: None,
    "a torn line": leave_torn,
    "a time far ahead": leave_ahead,
}


@pytest.mark.parametrize("before", BEFORE)
def test_a_completion_and_an_insert(group: Group, before: str) -> None:
    b = group["b"]
    for number in range(4):
        task = one(group, "a")
        b.insert(f"before {number}")
        for queue in ("a", "b"):
            BEFORE[before](group, queue)
        with group.update() as update:
            update.complete(task)
            update.insert(b, number)
        ref = update.results[1]
        found = group["b"].task(ref.id)
        assert (found.payload, found.version) == (number, update.versions[ref.id])
    assert [task.payload for task in b.lease(8)] == [  # by the process that knows its log from the updates
        each for number in range(4) for each in (f"before {number}", number)
    ]


def test_each_operation_on_tasks_of_a_file_and_of_a_log(group: Group) -> None:
    group["a"].insert_many(range(9))
    for number in range(9, 18):
        group["a"].insert(number)
    tasks = group["a"].lease(9) + group["a"].lease(9)
    assert len(tasks) == 18
    for two in zip(tasks[:9], tasks[9:], strict=True):
        with group.update() as update:
            for task in two:
                number = task.payload % 9
                if number == 0:
                    update.complete(task)
                elif number == 1:
                    update.complete(task, {"n": 1})
                elif number == 2:
                    update.fail(task, "no", delay_s=0)
                elif number == 3:
                    update.bury(task, "hopeless")
                elif number == 4:
                    update.release(task)
                elif number == 5:
                    update.renew(task, 90)
                elif number == 6:
                    update.cancel(task)
                elif number == 7:
                    update.replace(task, "another one")
                else:
                    update.depends(task)
            update.insert("b", "plain")
            update.insert("b", "urgent", priority=3)
            update.insert("b", "more urgent", priority="-1", delay_s=60)
            update.insert("b", "keyed", key=tasks[0].id)
            update.insert_many("c", [Task(each, priority=each) for each in range(5)] + [b"bytes", None])
    group["b"].lease(5)
    assert group["c"].status().waiting == 63


@pytest.mark.parametrize(("took_s", "used"), [(7.5, None), (None, Used(5, 6)), (7.5, Used(5, 6))])
def test_what_the_work_took_and_used(group: Group, took_s: float | None, used: Used | None) -> None:
    task = one(group, "a")
    task.took_s, task.used = took_s, used
    with group.update() as update:
        update.complete(task)
        update.insert("b", "next")
    [done] = [each for each in group["a"].history(task.id) if each.op == "complete"]
    assert (done.took_s, done.cpu_s) == (took_s, used and 0.005)


def test_another_process_gives_the_outcome(group: Group, compared: list[str]) -> None:
    """It gives the log its `commit`; the author, which has it open, reads that."""
    other = Group(group.path)
    for number in range(3):
        task = one(group, "a")
        group["a"].insert("stays")
        with mock.patch.object(updates._Try, "_give"), group.update() as update:
            update.complete(task)
            update.insert("b", number)
            update.insert("c", number, priority=number)
        for queue, count in (("a", number), ("b", number), ("c", number)):
            got = other[queue].lease(1 + number, lease_s=0.001)
            assert len(got) >= min(count, 1)
            other[queue].release(got)
        compared.clear()
        for queue in ("a", "b", "c"):
            group[queue].release(group[queue].lease(4))
    assert [task.payload for task in group["b"].lease(3)] == [0, 1, 2]


@pytest.mark.parametrize("failing", [1, 2])
def test_an_append_that_fails_or_may_have_happened(group: Group, failing: int) -> None:
    """Nothing of it stays in the state. The log has an `abort` then, and the update happens by a new try."""
    append = Log.append
    for is_written in (False, True):
        task, count = one(group, "a"), 0

        def fail(log: Log, data: bytes, *more: Any, is_written: bool = is_written) -> int:
            nonlocal count
            count += b'"file":' in data
            if b'"file":' not in data or count != failing:
                return append(log, data, *more)
            if is_written:
                append(log, data, *more)
            raise OSError(errno.EIO, "failed", log.path)

        with mock.patch.object(Log, "append", fail), group.update() as update:
            update.complete(task)
            update.insert("b", is_written)
        assert count == failing + 2
    assert [each.payload for each in group["b"].lease(5)] == [False, True]
    assert group["a"].status().completed == 2


def test_a_task_that_the_log_does_not_have_is_a_conflict(group: Group) -> None:
    """A power loss may have taken it. How long the work took is asked of no task that is not there."""
    task, update = one(group, "a"), group.update()
    task.index, task.took_s = 7, 1.0
    update.complete(task)
    update.insert("b", "never")
    with pytest.raises(UpdateConflict, match=r"complete \w+\.7 in a"):
        update.apply()
    assert group["b"].status().waiting == 0
