"""A log whose time is far ahead: not believed, and set right, so that all readers agree."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

import pytest

from fsqueue import Queue
from fsqueue.clock import ManualClock
from fsqueue.format.movements import UpdatePart
from fsqueue.format.names import DecisionFileName, UpdateId
from fsqueue.format.replay import ReplayState
from fsqueue.storage import record_times
from fsqueue.storage.locked_batch import LockedBatch
from tests import record_lines
from tests.support import crashes, full_state, log_files, task_file_names

DAY = 86_400.0


def queue_of(path: Path, tasks: int = 4, **settings: object) -> Queue:
    q = Queue.create(path, shards=1, **{"lease_s": 10, **settings})  # type: ignore[arg-type]
    q.insert_many(range(tasks), batch_tasks=tasks)
    return q


def ahead(q: Queue, days: float = 30) -> Queue:
    """The queue as a process sees it whose clock is ahead."""
    return Queue(q.path, clock=ManualClock(time.time() + days * DAY))


def right(q: Queue, seconds: float = 60) -> tuple[Queue, ManualClock]:
    clock = ManualClock(time.time() + seconds)
    return Queue(q.path, clock=clock), clock


def stamped(q: Queue, seconds: float) -> None:
    """The log's own time stamp: so many seconds from now."""
    [log] = log_files(q)
    os.utime(log, (time.time() + seconds, time.time() + seconds))


def records(q: Queue) -> list[dict[str, object]]:
    [log] = log_files(q)
    return [json.loads(line) for line in log.read_bytes().splitlines()]


def test_one_process_whose_clock_is_ahead_holds_up_nothing(tmp_path: Path) -> None:
    q = queue_of(tmp_path / "q")
    [task] = ahead(q).lease(1)
    task.release()
    r, clock = right(q)
    a, b, c = (task for _ in range(3) for task in r.lease(1))
    assert abs(a.lease_until - clock.now_s - 10) < 1
    a.fail("transient")
    b.complete()  # and c's worker dies
    clock.advance(3600)
    s = Queue(q.path, clock=clock)
    assert (s.status().waiting, s.status().delayed, s.status().leased) == (3, 0, 0)
    assert {task.payload for _ in range(3) for task in s.lease(1)} == {0, 2, 3}
    assert [record["op"] for record in records(q)].count("clock") == 1
    assert c.payload == 2
    assert list(s.fsck()) == []


def test_what_was_leased_or_failed_ahead_comes_back_as_soon_as_it_would_have(tmp_path: Path) -> None:
    q = queue_of(tmp_path / "q", backoff_s=(5, 5))
    r, clock = right(q)
    [early] = r.lease(1, lease_s=40 * DAY)  # before: its end stays
    failed, dead, later = ahead(q).lease(3)
    failed.fail("x")
    later.release(delay_s=1000)
    r.gc()
    clock.advance(4)
    assert r.lease(4) == []
    clock.advance(8)  # the failure's pause, and the lease of the worker that died
    assert {task.payload for _ in range(3) for task in r.lease(1)} == {failed.payload, dead.payload}
    clock.advance(1000)
    assert later.payload in {task.payload for _ in range(3) for task in r.lease(1)}
    assert early.lease_until > clock.now_s + 39 * DAY
    early.renew()
    early.complete()


def test_gc_finds_a_batch_of_which_everything_is_leased_by_a_clock_ahead(tmp_path: Path) -> None:
    """Its file's name promises something only in a month: no worker looks into it."""
    q = queue_of(tmp_path / "q")
    ahead(q).lease(4)
    r, clock = right(q)
    clock.advance(20)
    assert r.lease(4) == []
    r.gc()
    clock.advance(20)
    found = [task.payload for _ in range(4) for task in r.lease(1)]
    assert sorted(found) == [0, 1, 2, 3]


def test_a_stamp_that_agrees_with_the_log_is_believed(tmp_path: Path) -> None:
    """Then it may be this host's clock that is wrong: a month behind, say."""
    q = queue_of(tmp_path / "q")
    [held] = q.lease(1)
    behind = Queue(q.path, clock=ManualClock(time.time() - 30 * DAY))
    assert len(behind.lease(4)) == 3
    behind.gc()
    assert "clock" not in [record["op"] for record in records(q)]
    held.renew()
    held.complete()


def test_fsck_mends_what_no_stamp_disproves(tmp_path: Path) -> None:
    """The host's clock was ahead for a moment, and stamped the file, too; the worker died."""
    q = queue_of(tmp_path / "q")
    ahead(q).lease(4)
    stamped(q, 30 * DAY)
    r, clock = right(q, 0)
    r.gc()
    clock.advance(60)
    assert r.lease(4) == []  # nobody can tell who is right
    [finding] = r.fsck()
    assert (finding.kind, finding.tasks, finding.repaired) == ("future-time", 4, False)
    [finding] = r.fsck(repair=True)
    assert finding.repaired
    assert list(r.fsck()) == []
    clock.advance(15)
    assert sorted(task.payload for _ in range(4) for task in r.lease(1)) == [0, 1, 2, 3]


def test_fsck_mends_what_was_inserted_by_a_clock_ahead(tmp_path: Path) -> None:
    q = Queue.create(tmp_path / "q", shards=1)
    ahead(q).insert_many(range(3), batch_tasks=3, delay_s=5)
    q.insert_many([7], delay_s=40 * DAY)  # due so late by the right clock: that is no error
    r, clock = right(q, 0)
    assert [(one.kind, one.tasks) for one in r.fsck()] == [("future-time", 3)]
    assert [one.repaired for one in r.fsck(repair=True)] == [True]
    assert r.lease(3) == []
    clock.advance(20)
    assert {task.payload for task in r.lease(3)} == {0, 1, 2}
    assert max(name.available_at for name in task_file_names(q)) > clock.now_ms() + 39 * DAY * 1000


def test_a_crash_while_the_time_is_set_right_leaves_it_to_the_next(tmp_path: Path) -> None:
    def build(number: int) -> Queue:
        q = queue_of(tmp_path / f"q{number}")
        ahead(q).lease(3)
        return q

    clock = ManualClock(time.time() + 60)
    for where, q in crashes(build, lambda worker: worker.gc(), clock):
        later = ManualClock(clock.now_s)
        r = Queue(q.path, clock=later)
        r.gc()
        later.advance(30)
        assert sorted(task.payload for _ in range(4) for task in r.lease(1)) == [0, 1, 2, 3], where


# -- the record ------------------------------------------------------------------------------------------


def log_of(*lines: bytes) -> ReplayState:
    replay_state = ReplayState()
    replay_state.replay(b"".join(lines), 0)
    return replay_state


OPEN = record_lines.record("open", 1_000, count=3, birth=0, available_at=0, name="")
LEASE = record_lines.record("lease", 9_000_000, lease="a", tasks=[[0, 2]], until=9_010_000, worker={})


def test_the_record_sets_time_and_tasks_back_and_no_version() -> None:
    clock = record_lines.record("clock", 2_000, tasks=[[0, 2]], since=[12_000, 12_000])
    replay_state = log_of(OPEN, LEASE, clock)
    assert (replay_state.at, list(replay_state.since)) == (2_000, [12_000, 12_000, 0])
    assert replay_state.version[0] == len(OPEN)
    assert replay_state.holds(0, "a")
    assert replay_state.choose(11_999, 3, 0, None)[0] == [2]
    assert replay_state.next_time() == 12_000
    assert replay_state.choose(12_000, 3, 0, None)[0] == [0]  # alone, having been leased with another


@pytest.mark.parametrize(
    "fields",
    [
        {"tasks": [[0, 1]], "since": []},
        {"tasks": [[0, 1]], "since": ["x"]},
        {"tasks": [[0, 1]], "since": [-1]},
        {"tasks": [[0, 9]], "since": [1] * 9},
        {"tasks": [], "since": None},
        {"tasks": []},
    ],
)
def test_a_record_that_makes_no_sense_is_void(fields: dict[str, object]) -> None:
    assert full_state(log_of(OPEN, LEASE, record_lines.record("clock", 2_000, **fields))) == full_state(
        log_of(OPEN, LEASE)
    )


def test_time_is_not_set_forward_by_it() -> None:
    forward = record_lines.record("clock", 9_000_001, tasks=[], since=[])
    assert log_of(OPEN, LEASE, forward).at == 9_000_000


def test_what_has_an_outcome_keeps_it() -> None:
    done = record_lines.complete(9_000_001, "a", [0])
    replay_state = log_of(OPEN, LEASE, done, record_lines.record("clock", 2_000, tasks=[[0, 2]], since=[5, 5]))
    assert (replay_state.state[0], replay_state.remaining, replay_state.since[1]) == (2, 2, 5)


def test_only_what_comes_from_the_future_is_shifted() -> None:
    early = record_lines.record("lease", 2_000, lease="e", tasks=[[2, 3]], until=600_000, worker={})
    fail = record_lines.record("fail", 9_000_500, lease="a", tasks=[[1, 2]], available_at=9_005_500, error="x")
    content = OPEN + early + LEASE + fail
    assert record_times.shifted([(0, content)], 50_000) == {0: 60_000, 1: 55_000}
    again = record_lines.record("clock", 50_000, tasks=[[0, 2]], since=[60_000, 55_000])
    assert record_times.shifted([(0, content + again)], 60_000) == {}  # what was set right is not shifted twice


def test_of_what_was_changed_in_the_future_the_times_that_it_set_are_shifted() -> None:
    """A time that was given, and the end of a lease; not the time of a task that got another priority."""
    opening = record_lines.record("open", 1_000, count=4, birth=1_000, available_at=70_000, name="x")
    held = record_lines.record("lease", 80_000, lease="h", tasks=[[2, 3]], until=90_000, worker={})
    given = record_lines.record("change", 9_000_000, tasks=[[0, 1]], versions=[0], available_at=9_005_000)
    urgent = record_lines.record("change", 9_000_000, tasks=[[1, 2]], versions=[0], priority=1)
    ended = record_lines.record("change", 9_000_000, tasks=[[2, 3]], versions=[len(opening)], priority=1)
    content = opening + held + given + urgent + ended
    assert record_times.shifted([(0, content)], 100_000) == {0: 105_000, 2: 100_000}


def test_a_log_within_the_bounds_costs_no_call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    q = queue_of(tmp_path / "q")
    Queue(q.path, clock=ManualClock(time.time() + 600)).lease(1)
    monkeypatch.setattr(record_times, "correct_time", lambda locked: pytest.fail("it was asked for a stamp"))
    assert len(q.lease(3)) == 3


# -- beside updates (docs/design.md, section 4.22) -------------------------------------------------------------------

PREPARED = UpdatePart(UpdateId("a" * 16), DecisionFileName("b" * 32), 5_000)


def test_what_an_update_has_delayed_is_corrected_as_if_it_had_been_done_alone(tmp_path: Path) -> None:
    now = 1_800_000_000_000
    far = now + 30 * 86_400_000
    log = b"".join(
        (
            record_lines.record("open", now, count=0, inserts="boot", birth=now, available_at=0, name="x"),
            record_lines.insert(now, "i0", 0, b'{"payload":0}\n'),
            record_lines.insert(now, "i1", 1, b'{"payload":1}\n'),
            record_lines.lease(far, "l", [0], far + 600_000, "{}", False),
            record_lines.record(
                "release", far, lease="l", tasks=[[0, 1]], available_at=far + 60_000, **PREPARED.fields
            ),
            record_lines.insert(far, "i2", 2, b'{"payload":2}\n', far + 90_000, PREPARED),
        )
    )
    assert record_times.shifted([(0, log)], now) == {0: now + 600_000}, "it is leased still"
    log += record_lines.commit(far, PREPARED.update, 2)
    assert record_times.shifted([(0, log)], now) == {0: now + 60_000, 2: now + 90_000}


def test_no_time_is_corrected_while_an_update_is_not_decided(tmp_path: Path) -> None:
    q = queue_of(tmp_path / "q")
    [task] = ahead(q).lease(1)
    [log] = log_files(q)
    at = records(q)[-1]["at"]
    assert isinstance(at, int)
    with log.open("ab") as file:
        file.write(record_lines.complete(at, task.lease, [task.index], part=PREPARED))
    stamped(q, 0)
    r, _ = right(q)
    with LockedBatch(r.store, task.batch) as locked:
        assert not record_times.correct_time(locked, certain=True)
    with log.open("ab") as file:
        file.write(record_lines.abort(at, PREPARED.update))
    with LockedBatch(r.store, task.batch) as locked:
        assert record_times.correct_time(locked, certain=True)
        assert locked.replay_state.at < at
