"""What readers see of an update: nothing of it before the decision, all of it afterwards, in every view."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsqueue import Group, Queue, Status, StorageError, TaskNotFound
from fsqueue.clock import ManualClock
from fsqueue.filesystem import Filesystem
from fsqueue.format import decisions, names
from fsqueue.format.decisions import DecisionState
from fsqueue.format.replay import COMPLETED, LEASED, SKIPPED
from fsqueue.groups.drain_check import GroupDrainCheck
from fsqueue.spark.views import attempts_of
from fsqueue.storage import decided, group_directory, history, listing, store
from fsqueue.storage import decisions as stored
from fsqueue.storage.store import Store
from fsqueue.views import inspection, task_history
from fsqueue.views.finished import FinishedBatch
from fsqueue.views.inspection import DrainCheck
from tests import record_lines
from tests.concurrency.trapped import Trapped
from tests.format.test_replay_properties import folded
from tests.format.test_updates import records_of, soups
from tests.levels import how_many
from tests.prepared import DAY_MS, FILE, ByHand, U, V, add
from tests.support import full_state

pytestmark = pytest.mark.once

DECIDED_AGAINST = ("abort", "retired", "absent")


@pytest.fixture
def update(tmp_path: Path) -> ByHand:
    return ByHand(tmp_path / "group")


def everything(update: ByHand) -> dict[str, Any]:
    """Return what the views of both queues tell."""
    info, new = update.first.task(update.task.id), f"{update.target}.1"
    return {
        "status": (update.first.status(), update.then.status()),
        "fast": (update.first.status(exact=False).remaining, update.then.status(exact=False).remaining),
        "state": (info.state, info.result, info.update),
        "tasks": [task.payload for task in update.then.tasks()],
        "peek": [task.payload for task in update.then.peek()],
        "results": [(one.payload, one.result) for one in update.first.results()],
        "columns": [[*one[3]] for one in update.first.result_columns()],
        "history": [move.op for move in update.first.history(update.task.id)],
        "led to": [one.op for one in update.group.lineage(update.first.name, update.task.id).successors],
        "workers": update.first.activity().workers,
        "priorities": sum(one.waiting for one in update.then.waiting_by_priority()),
        "drained": (update.first.is_drained(), update.then.is_drained()),
        "is there": _is_there(update.then, new),
    }


def _is_there(queue: Queue, task: str) -> bool:
    try:
        return queue.task(task).payload == "new" and queue.history(task)[0].update == U
    except TaskNotFound:
        return False


BEFORE = {
    "status": (Status(leased=1), Status(completed=1)),
    "fast": (1, 0),
    "state": ("leased", None, None),
    "tasks": [],
    "peek": [],
    "results": [],
    "columns": [],
    "history": ["insert", "lease"],
    "led to": [],
    "workers": 1,
    "priorities": 0,
    "drained": (False, True),
    "is there": False,
}
AFTER = {
    "status": (Status(completed=1), Status(waiting=1, completed=1)),
    "fast": (0, 1),
    "state": ("completed", "done", None),
    "tasks": ["new"],
    "peek": ["new"],
    "results": [("old", "done")],
    "columns": [["old"]],
    "history": ["insert", "lease", "complete"],
    "led to": ["insert"],
    "workers": 0,
    "priorities": 1,
    "drained": (True, False),
    "is there": True,
}


def test_what_no_file_decides_has_not_happened_and_the_queue_is_not_drained(update: ByHand) -> None:
    update.prepare()
    update.says("nothing")
    assert everything(update) == BEFORE | {"state": ("leased", None, U), "drained": (False, False)}


def test_what_a_file_commits_has_happened_in_both_queues(update: ByHand) -> None:
    update.prepare()
    update.says("commit")
    assert everything(update) == AFTER
    assert [move.update for move in update.first.history(update.task.id)] == [None, None, U]
    assert update.commit() not in Path(update.first.store.layout.log(update.source)).read_bytes(), "a look changes none"


@pytest.mark.parametrize("what", DECIDED_AGAINST)
def test_what_a_file_aborts_or_cannot_commit_any_more_has_never_been(update: ByHand, what: str) -> None:
    update.prepare()
    update.says(what)
    assert everything(update) == BEFORE


@pytest.mark.parametrize("what", ["commit", *DECIDED_AGAINST])
def test_the_outcome_in_the_logs_says_the_same(update: ByHand, what: str) -> None:
    update.prepare()
    update.says(what)
    before = everything(update)
    outcome = update.commit() if what == "commit" else update.abort()
    add(update.first, update.source, outcome)
    add(update.then, update.target, outcome)
    assert everything(update) == before


def test_a_reader_that_finds_the_file_gone_reads_the_log_again(update: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    # The decision file is retired between the look at the log and the look at the file. Its commits are in the logs.
    update.prepare()
    update.says("commit")
    real = stored.read

    def late(*args: Any, **named: Any) -> Any:
        if update.file.exists():
            add(update.first, update.source, update.commit())
            add(update.then, update.target, update.commit())
            os.unlink(update.file)
        return real(*args, **named)

    monkeypatch.setattr(stored, "read", late)
    assert update.first.status() == Status(completed=1)
    assert update.first.history(update.task.id)[-1].op == "complete"


def test_a_decision_file_is_read_once_for_all_that_a_log_has_prepared_by_it(
    update: ByHand, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The one that is committed is not the first one, and yet durable before it is seen.
    update.first.insert("other")
    (other,) = update.first.lease(1)
    add(
        update.first,
        update.source,
        record_lines.complete(update.at, other.lease, [1], part=update.part._replace(update=V)),
    )
    update.prepare()
    update.says("commit")
    real, reads, syncs = stored.read, [], []

    def read(*args: Any) -> Any:
        reads.append(args[2:])
        return real(*args)

    directory = stored.group_of(update.first.store)
    monkeypatch.setattr(stored, "read", read)
    monkeypatch.setattr(directory.fs, "fsync", syncs.append)
    assert update.first.status() == Status(leased=1, completed=1)
    assert ([set(updates) for updates in reads], len(syncs)) == ([{U, V}], 1)


def test_a_log_that_has_ended_meanwhile_is_no_batch_at_work(update: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    update.prepare()
    update.says("absent")

    def ended(*_: Any, **__: Any) -> None:
        Path(update.first.store.layout.log(update.source)).unlink(missing_ok=True)

    monkeypatch.setattr(stored, "read", ended)
    assert listing.read_present_state(update.first.store, update.source) is None
    assert task_history.decided_records(update.first.store, update.source) == []


def test_a_queue_that_was_moved_out_of_its_group_shows_its_tasks_as_they_were(update: ByHand, tmp_path: Path) -> None:
    update.prepare()
    update.says("commit")
    update.group["then"].close()
    os.rename(tmp_path / "group" / "then", tmp_path / "elsewhere")
    moved = Queue(tmp_path / "elsewhere")
    assert (moved.status(), moved.is_drained()) == (Status(completed=1), False)
    moved.store.clock = ManualClock(update.now() / 1000 + 6)
    with pytest.raises(StorageError, match="fsck --repair"):
        moved.is_drained()


def test_the_lease_of_a_frozen_task_can_be_attached_to(update: ByHand) -> None:
    update.prepare()
    update.says("nothing")
    assert update.first.attach(update.task.token).payload == "old"
    assert update.first.task(update.task.id).update == U


def test_a_decision_file_that_stays_locked_is_named(update: ByHand) -> None:
    update.says("nothing")
    group = update.group.directory()
    update.first.store.clock = ManualClock(update.now() / 1000 + 60)
    with group.fs.closing(group.fs.look(str(update.file), os.O_RDWR)) as fd:
        assert group.fs.try_lock(fd)
        assert [lock.what for lock in update.first.stuck()] == [f"decision file {FILE}"]
    assert update.first.stuck() == []


def test_what_is_seen_in_one_queue_is_seen_in_the_other_at_each_step_of_an_update(tmp_path: Path) -> None:
    others = Group.create(tmp_path / "group", shards=1, durability="none")
    first, then = others["first"], others["then"]
    first.insert("old")
    then.insert("made")
    then.complete(then.lease())
    seen: list[tuple[int, int]] = []

    def look(step: str, call: Callable[..., Any], *args: Any) -> Any:
        done = call(*args)
        if step == "write":
            before, other, after = first.status(), then.status(), first.status()
            assert not before.completed or other.waiting
            assert not other.waiting or after.completed
            assert not others.is_drained(), "there is a task at each moment"
            seen.append((after.completed, other.waiting))
        return done

    def filesystem(root: str, **_: Any) -> Filesystem:
        return Trapped(root, look)

    with (
        mock.patch.object(store, "Filesystem", filesystem),
        mock.patch.object(group_directory, "Filesystem", filesystem),
    ):
        mine = Group(tmp_path / "group")
        (task,) = mine["first"].lease(1)
        with mine.update() as changes:
            changes.complete(task)
            changes.insert("then", "new")
    assert list(dict.fromkeys(seen)) == [(0, 0), (1, 1)]
    assert seen.count((1, 1)) >= 3, "from the decision on, and not only from the outcomes on"


# -- whoever waits for the end -----------------------------------------------------------------------------------------


def says(update: ByHand) -> bytes:
    return update.file.read_bytes() if update.file.exists() else b""


def test_who_asks_whether_it_is_drained_decides_what_is_old(update: ByHand) -> None:
    update.prepare()
    update.says("nothing")
    update.then.store.clock = ManualClock(update.now() / 1000 + 6)
    assert update.then.is_drained(), "nothing is in it, and nothing comes any more"
    assert decisions.abort(0, U).split(b',"at":0,')[1] in says(update)


@pytest.mark.parametrize("ahead_ms", [0, 40 * DAY_MS])
def test_a_wrong_clock_makes_no_record_old_and_keeps_none_young(tmp_path: Path, ahead_ms: int) -> None:
    # The host that has prepared it was ahead, or behind, and died. The waiting process counts from its own first look.
    update = ByHand(tmp_path / "group", ago_ms=-ahead_ms)
    update.prepare()
    update.says("nothing")
    update.then.store.clock = clock = ManualClock(update.at / 1000 - ahead_ms / 1000)
    check = DrainCheck(update.then.store)
    for wait_s, is_decided in ((0, False), (4.9, False), (0.2, True)):
        clock.advance(wait_s)
        assert (check(), U.encode() in says(update)) == (is_decided, is_decided)


def test_a_clock_that_is_ahead_by_less_than_clocks_may_differ_makes_no_record_old(update: ByHand) -> None:
    update.prepare()
    update.says("nothing")
    update.then.store.clock = clock = ManualClock()
    clock.now_s = (update.at + 5_000 + clock.margin_ms - 1) / 1000
    check = DrainCheck(update.then.store)
    assert not check()
    clock.advance(0.002)
    assert check()


def test_who_may_not_write_waits_for_others(update: ByHand, monkeypatch: pytest.MonkeyPatch) -> None:
    update.prepare()
    update.says("nothing")
    update.then.store.clock = ManualClock(update.now() / 1000 + 6)

    def refused(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(stored, "vote_against", refused)
    assert not update.then.is_drained()


def test_a_group_is_not_drained_while_an_update_is_not_decided(update: ByHand) -> None:
    update.task.complete()
    add(update.then, update.target, update.insert())
    update.says("nothing")
    check = GroupDrainCheck([update.group])
    assert not check()
    update.decide(decisions.abort(update.at, U))
    assert check()


def test_what_was_committed_is_work_for_whoever_waits(update: ByHand) -> None:
    update.prepare()
    update.says("commit")
    check = GroupDrainCheck([update.group])
    assert not check()
    assert inspection.status(update.then.store).waiting == 1


# -- any records -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@given(soups())
@settings(max_examples=how_many(10, 1000))
def test_what_views_tell_of_any_records_is_what_the_replay_comes_to(data: bytes) -> None:
    records = records_of(data)
    state = history.replay(records)
    ends = {(one.index, one.outcome): one.ended_at for one in attempts_of("0" * 32, records, 10**15)}
    for index in range(state.count):
        told = task_history._applied(records, index)
        if told and state.state[index] != SKIPPED:
            last = dict(records)[state.version[index]]
            assert told[-1] == last
        assert ((index, "complete") in ends) == (state.state[index] == COMPLETED)
        if state.state[index] == COMPLETED:
            assert ends[index, "complete"] == state.since[index]
        assert state.state[index] != LEASED or ends[index, "expired"] is not None
    times = history.insertion_times(records)
    assert times.keys() >= state.places.keys()
    whole = FinishedBatch(names.Batch("0" * 32), records, [], None)
    assert full_state(whole.replay_state) == full_state(state) | {"damaged": 0}
    assert {index for index in times if whole.inserted_at(index) is not None} == times.keys()


@pytest.mark.slow
@given(soups(), st.sampled_from(["commit", "abort"]))
@settings(max_examples=how_many(10, 1000))
def test_a_decision_that_a_log_lacks_counts_as_the_outcome_that_it_gets(data: bytes, outcome: str) -> None:
    state = folded(data)
    lines = [
        record_lines.commit(state.at, update, len(one.records))
        if outcome == "commit"
        else record_lines.abort(0, update)
        for update, one in state.prepared.items()
    ]
    expected = folded(data + b"".join(lines))

    def read(*_: object) -> DecisionState:
        asked = DecisionState()
        asked.first = {update: decisions.Decision(cast(decisions.Outcome, outcome)) for update in (U, V)}
        return asked

    with mock.patch.object(stored, "read", read), mock.patch.object(stored, "group_of"):
        records = decided.seen_records(cast(Store, None), records_of(data), lambda: records_of(data))
        seen = decided.seen(cast(Store, None), state, lambda: folded(data))
    assert seen is not None
    assert full_state(seen) == full_state(expected)
    assert full_state(history.replay(records)) == full_state(expected) | {"damaged": 0}
    assert (seen.prepared, seen.frozen) == ({}, {})
