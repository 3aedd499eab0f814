"""Garbage collection beside updates: what is decided gets its outcome, and what is old is decided."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fsqueue import Queue, Status
from fsqueue.clock import ManualClock
from fsqueue.format import decisions
from fsqueue.groups.queue import GroupQueue
from tests.prepared import ByHand, U

pytestmark = pytest.mark.once


@pytest.fixture
def update(tmp_path: Path) -> ByHand:
    update = ByHand(tmp_path / "group")
    update.prepare()
    return update


def log_of(queue: GroupQueue) -> bytes:
    return b"".join(path.read_bytes() for path in queue.path.glob("*/movements/*/*"))


@pytest.mark.parametrize("what", ["commit", "abort", "retired", "absent"])
def test_a_log_gets_the_outcome_that_it_lacks(update: ByHand, what: str) -> None:
    update.says(what)
    outcome = b'{"op":"commit"' if what == "commit" else b'{"op":"abort"'
    for queue in (update.first, update.then):
        before = queue.status()
        assert outcome not in log_of(queue)
        queue.gc()
        assert outcome in log_of(queue)
        assert queue.status() == before


def test_what_is_young_is_left_and_what_is_old_is_decided(update: ByHand) -> None:
    update.says("nothing")
    before = log_of(update.then)
    update.then.gc()
    assert log_of(update.then) == before
    update.then.store.clock = ManualClock(update.now() / 1000 + 10)
    update.then.gc()
    assert decisions.abort(0, U).split(b'"at":0,')[1] in update.file.read_bytes()
    assert update.then.status() == Status(completed=1)
    assert not log_of(update.then), "the batch has finished"
    update.first.gc()
    assert update.first.task(update.task.id).update is None


def test_a_committed_completion_finishes_its_batch(update: ByHand) -> None:
    update.says("commit")
    update.first.store.clock = ManualClock(update.now() / 1000 + 10)
    assert update.first.gc().finished <= 1
    assert not log_of(update.first)
    assert [move.op for move in update.first.history(update.task.id)] == ["insert", "lease", "complete"]
    assert update.first.history(update.task.id)[-1].update == U


def test_a_queue_that_was_moved_away_keeps_what_is_prepared(
    update: ByHand, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    update.says("commit")
    update.first.close()
    os.rename(update.first.path, tmp_path / "elsewhere")
    moved = Queue(tmp_path / "elsewhere")
    moved.gc()
    assert moved.task(update.task.id).update == U
    assert "fsck --repair" in caplog.text
