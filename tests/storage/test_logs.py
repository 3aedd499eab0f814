"""A movement log on disk: the sure append, and catching up with others."""

from __future__ import annotations

import errno
import gc
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import pytest

from fsqueue.errors import StorageError
from fsqueue.filesystem import Filesystem
from fsqueue.format import checkpoints, movements
from fsqueue.format.layout import Layout
from fsqueue.format.names import UpdateId
from fsqueue.format.replay import AVAILABLE, CANCELLED, LEASED, ReplayState
from fsqueue.storage.logs import TAIL_BYTES, Log
from tests import record_lines
from tests.support import full_state

BATCH = "0193f0c2a4b97c31a2d5e8f001234567"
NAMES = [f"{time:013d}-{BATCH}-3.jsonl" for time in (0, 900)]
OPEN = record_lines.record("open", 100, count=3, name=NAMES[0])
LEASE = record_lines.lease(100, "a", [0], 900, "{}", False)


class Opener:
    def __init__(self, root: Path) -> None:
        self.fs = Filesystem(str(root), shared=False)
        self.layout = Layout(str(root), "1", 1)
        self.fs.make_directory(self.layout.base)
        self.made: list[Log] = []

    def __call__(self, sync: bool = False) -> Log:
        log = Log(self.fs, self.layout, BATCH, self.fs.open_append(self.layout.log(BATCH)), sync)
        self.made.append(log)
        return log


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opener]:
    opener = Opener(tmp_path)
    yield opener
    for log in opener.made:
        log.discard()


def test_the_offset_of_the_next_record_counts_what_was_added(opened: Opener) -> None:
    log = opened()
    assert log.next_offset() == 0
    log.append(OPEN)
    assert log.next_offset() == len(OPEN)
    log.add_line(LEASE)
    assert log.next_offset() == len(OPEN + LEASE)
    assert Path(log.path).read_bytes() == OPEN
    log.write()
    assert (log.next_offset(), log.added_bytes) == (len(OPEN + LEASE), 0)
    assert Path(log.path).read_bytes() == OPEN + LEASE


def test_what_is_written_is_folded_as_any_reader_would(opened: Opener) -> None:
    log, reader = opened(), opened()
    record_lines.write(log, OPEN + LEASE)
    record_lines.put(log, "release", 150, lease="a", tasks=[[0, 1]], available_at=150)
    reader.catch_up()
    assert full_state(log.replay_state) == full_state(reader.replay_state)
    assert log.end == reader.end == os.path.getsize(log.path)


def test_catching_up_takes_only_what_is_new(opened: Opener) -> None:
    log, other = opened(), opened()
    record_lines.write(log, OPEN)
    other.catch_up()
    record_lines.write(log, LEASE)
    assert other.replay_state.state[0] == AVAILABLE
    other.catch_up()
    other.catch_up()
    assert other.replay_state.state[0] == LEASED
    assert other.replay_state.version[0] == len(OPEN)


def test_a_long_tail_is_read_whole(opened: Opener) -> None:
    log, other = opened(), opened()
    log.append(OPEN)
    for number in range(1000):
        log.append(record_lines.lease(100, f"{number:016x}", [0], 101, '{"pad":"%s"}' % ("x" * 100), False))
    log.append(record_lines.lease(500, "last", [0], 900, "{}", False))
    assert os.path.getsize(log.path) > 2 * TAIL_BYTES
    other.catch_up()
    assert other.replay_state.holds(0, "last")
    assert other.end == os.path.getsize(log.path)


@pytest.mark.parametrize("size", [TAIL_BYTES - 1, TAIL_BYTES, TAIL_BYTES + 1])
def test_a_tail_that_just_fits_is_read_whole(opened: Opener, size: int) -> None:
    log = opened()
    filler = record_lines.record("noop", 1, pad="x" * (size - len(OPEN) - 100))
    filler = record_lines.record("noop", 1, pad="x" * (size - len(OPEN) - 100 + size - len(OPEN) - len(filler)))
    Path(log.path).write_bytes(filler + OPEN)
    assert os.path.getsize(log.path) == size
    log.catch_up()
    assert (log.replay_state.count, log.end) == (3, size)


def test_a_torn_tail_is_voided_by_the_next_append(opened: Opener) -> None:
    log = opened()
    record_lines.write(log, OPEN)
    torn = LEASE[: len(LEASE) // 2]
    with open(log.path, "ab") as file:
        file.write(torn)
    log.catch_up()
    assert log.torn == len(torn)
    offset = log.next_offset()
    log.append(LEASE.replace(b'"a"', b'"b"'))
    content = Path(log.path).read_bytes()
    assert content[len(OPEN) : offset] == torn + b"~\n"
    reader = opened()
    reader.catch_up()
    assert reader.replay_state.holds(0, "b")
    assert not reader.replay_state.holds(0, "a")
    assert reader.replay_state.version[0] == offset
    assert (log.torn, log.end) == (0, len(content))


def test_a_whole_record_without_its_newline_was_reported_failed_and_stays_void(opened: Opener) -> None:
    log = opened()
    record_lines.write(log, OPEN)
    with open(log.path, "ab") as file:
        file.write(LEASE[:-1])
    log.catch_up()
    record_lines.put(log, "move", 200, **{"from": NAMES[0], "name": NAMES[1]})
    reader = opened()
    reader.catch_up()
    assert reader.replay_state.state[0] == AVAILABLE
    assert [*reader.replay_state.names] == NAMES


def test_a_short_write_is_a_full_disk(opened: Opener) -> None:
    log = opened()
    record_lines.write(log, OPEN)
    real = log.fs.write
    log.fs.write = lambda fd, data: real(fd, data[:10])
    with pytest.raises(OSError) as caught:
        log.append(LEASE)
    assert caught.value.errno == errno.ENOSPC
    log.fs.write = real
    again = opened()
    again.catch_up()
    assert again.torn == 10
    record_lines.write(again, LEASE)
    assert again.replay_state.holds(0, "a")


def test_what_was_written_over_by_another_is_not_owned(opened: Opener) -> None:
    """The lock was lost: somebody appended at the same moment. Reading back finds it out."""
    log = opened()
    record_lines.write(log, OPEN)
    real = log.fs.write

    def crowded(fd: int, data: bytes) -> int:
        with open(log.path, "ab") as file:
            file.write(LEASE)
        return real(fd, data)

    log.fs.write = crowded
    with pytest.raises(StorageError, match="the lock was lost"):
        log.append(LEASE.replace(b'"a"', b'"b"'))


def test_what_somebody_appended_behind_it_is_noticed(opened: Opener) -> None:
    log = opened()
    real = log.fs.write

    def crowded(fd: int, data: bytes) -> int:
        done = real(fd, data)
        with open(log.path, "ab") as file:
            file.write(LEASE)
        return done

    log.fs.write = crowded
    with pytest.raises(StorageError, match="the lock was lost"):
        log.append(OPEN)


@pytest.mark.parametrize("sync", [True, False])
def test_appends_are_synced_before_they_are_read_back_where_asked_for(opened: Opener, sync: bool) -> None:
    log = opened(sync)
    order: list[str] = []
    fsync, pread = log.fs.fsync, log.fs.pread
    log.fs.fsync = lambda fd: (order.append("fsync"), fsync(fd))[1]
    log.fs.pread = lambda fd, size, at: (order.append("pread"), pread(fd, size, at))[1]
    log.append(OPEN)
    assert order == (["fsync", "pread"] if sync else ["pread"])


def test_another_s_renaming_becomes_known(opened: Opener) -> None:
    log, other = opened(), opened()
    record_lines.write(log, OPEN)
    other.catch_up()
    assert str(other.name) == NAMES[0]
    record_lines.put(log, "move", 200, **{"from": NAMES[0], "name": NAMES[1]})
    other.catch_up()
    assert str(other.name) == NAMES[1]


def test_records_come_out_as_a_json_array_at_their_offsets(opened: Opener) -> None:
    log = opened()
    record_lines.write(log, OPEN)
    assert orjson.loads(b"[" + log.records() + b"]") == [orjson.loads(OPEN)]
    with open(log.path, "ab") as file:
        file.write(b'garbage\n{"op":"torn"')
    log.catch_up()
    record_lines.write(log, LEASE)
    records = log.records()
    assert orjson.loads(b"[" + records + b"]") == [orjson.loads(OPEN), orjson.loads(LEASE)]
    content = Path(log.path).read_bytes()
    for line in (OPEN, LEASE):
        assert records.index(line[:-1]) == content.index(line)


def test_a_log_of_garbage_has_no_records(opened: Opener) -> None:
    log = opened()
    with open(log.path, "ab") as file:
        file.write(b"garbage\n\n~\n")
    log.catch_up()
    assert log.records().strip() == b""


def test_discarding_closes_and_gives_the_lock_back(opened: Opener) -> None:
    log, other = opened(), opened()
    assert log.fs.try_lock(log.fd)
    assert not log.fs.try_lock(other.fd)
    log.discard()
    log.discard()
    assert log.closed
    assert log.fs.try_lock(other.fd)


def test_a_log_that_was_never_opened_ends_in_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", said.append)
    with pytest.raises(TypeError):
        Log(Filesystem(str(tmp_path), shared=False))  # type: ignore[call-arg]
    gc.collect()
    assert not said


# -- checkpoints ------------------------------------------------------------------------------------


def work(log: Log, pairs: int, begin: int = 0) -> None:
    """Lease the three tasks one after the other, and give each back."""
    for number in range(begin, begin + pairs):
        at, index = 100 + 2 * number, number % 3
        record_lines.write(
            log, record_lines.lease(at, f"{number:016x}", [index], at + 60_000, '{"host":"h","pid":1}', False)
        )
        record_lines.put(
            log, "release", at + 1, lease=f"{number:016x}", tasks=[[index, index + 1]], available_at=at + 1
        )


def places(log: Log) -> list[int]:
    """Where checkpoints stand in a log."""
    data = Path(log.path).read_bytes()
    return [found.start() + 1 for found in re.finditer(b"\n" + re.escape(checkpoints.MARK), data)]


def test_a_checkpoint_comes_with_the_movement_that_makes_it_due(opened: Opener) -> None:
    log = opened()
    written: list[bytes] = []
    real = log.fs.write
    log.fs.write = lambda fd, data: (written.append(data), real(fd, data))[1]
    record_lines.write(log, OPEN)
    work(log, 100)
    carrying = [data for data in written if checkpoints.MARK in data]
    assert len(carrying) == len(places(log)) >= 2
    for data in carrying:
        assert not data.startswith(checkpoints.MARK)
        assert data.count(b"\n") == 2
    stretches = [b - a for a, b in zip([0, *places(log)], places(log), strict=False)]
    assert min(stretches) >= checkpoints.LEAST_BYTES


def test_a_log_is_longer_by_a_quarter_at_most(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "LEAST_BYTES", 0)
    log = opened()
    count = 40
    record_lines.write(log, record_lines.record("open", 100, count=count, name=NAMES[0].replace("-3.", f"-{count}.")))
    for number in range(10 * count):  # each fails, for a reason of its own: nothing can be told in ranges
        at, task, lease = 200 + number, number % count, f"{number:016x}"
        record_lines.write(log, record_lines.lease(at, lease, [task], at + 900, '{"host":"h"}', False))
        record_lines.put(
            log, "fail", at, lease=lease, tasks=[[task, task + 1]], available_at=at, error=f"e{number}" * 10
        )
    data = Path(log.path).read_bytes()
    restated = sum(len(line) + 1 for line in data.split(b"\n") if line.startswith(checkpoints.MARK))
    assert restated > 5000
    assert restated <= (len(data) - restated) / checkpoints.SHARE


def test_who_opens_a_long_log_begins_at_its_last_checkpoint(opened: Opener) -> None:
    log = opened()
    record_lines.write(log, OPEN)
    work(log, 1000)
    assert Path(log.path).stat().st_size > 2 * TAIL_BYTES
    read: list[int] = []
    pread = log.fs.pread
    log.fs.pread = lambda fd, size, at: (read.append(len(data := pread(fd, size, at))), data)[1]
    other = opened()
    other.catch_up()
    assert not other.replay_state.is_whole
    assert sum(read) < TAIL_BYTES + 4 * checkpoints.LEAST_BYTES + (1 << 15)
    assert other.end == log.end
    assert other.name is not None
    assert str(other.name) == NAMES[0]
    known = {
        field: full_state(each)[field] for field in ("state", "since", "version") for each in (other.replay_state,)
    }
    assert known == {field: full_state(log.replay_state)[field] for field in known}
    work(other, 100, begin=1000)
    log.catch_up()
    assert log.replay_state.disputed == []
    assert full_state(log.replay_state)["version"] == full_state(other.replay_state)["version"]
    other.recall()
    assert other.replay_state.is_whole
    assert full_state(other.replay_state) == full_state(log.replay_state)


def test_who_is_far_behind_in_a_log_goes_on_from_its_last_checkpoint(opened: Opener) -> None:
    log = opened()
    record_lines.write(log, OPEN)
    work(log, 10)
    other = opened()
    other.catch_up()
    other.replay_state.rank_tasks({0: 5, 1: 3, 2: 4})
    work(log, 300, begin=10)
    applied: list[str] = []
    apply = ReplayState.apply

    def counting(state: ReplayState, record: dict[str, Any], offset: int) -> None:
        applied.append(record["op"])
        apply(state, record, offset)

    with mock.patch.object(ReplayState, "apply", counting):
        other.catch_up()
    assert 0 < len(applied) < 200
    assert not other.replay_state.is_whole
    assert other.end == log.end
    known = full_state(other.replay_state)
    same = ("at", "left", "state", "since", "version", "attempts", "holder", "names")
    assert {field: known[field] for field in same} == {field: full_state(log.replay_state)[field] for field in same}
    log.replay_state.rank_tasks({0: 5, 1: 3, 2: 4})
    at = log.replay_state.at + 10**6
    assert other.replay_state.choose(at, 9, 0, None) == log.replay_state.choose(at, 9, 0, None) != ([], [], False)
    other.recall()
    assert full_state(other.replay_state) == full_state(log.replay_state)


def test_where_there_is_room_for_the_movement_only_the_checkpoint_is_left_out(
    opened: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoints, "LEAST_BYTES", 0)
    log = opened()
    record_lines.write(log, OPEN)
    work(log, 20)
    full, real = log.end, log.fs.write

    def almost_full(fd: int, data: bytes) -> int:
        movement, mark, restated = data.partition(checkpoints.MARK)
        return real(fd, movement + mark + restated[:50] if mark else data)

    log.fs.write = almost_full
    work(log, 20, begin=20)
    log.fs.write = real
    data = Path(log.path).read_bytes()[full:]
    assert data.count(checkpoints.MARK) > 0
    assert all(line.endswith(b"~") for line in data.split(b"\n")[:-2] if line.startswith(checkpoints.MARK))
    work(log, 40, begin=40)
    other = opened()
    other.catch_up()
    assert full_state(other.replay_state) == full_state(log.replay_state)
    assert other.replay_state.damaged == log.replay_state.damaged > 0
    assert other.replay_state.disputed == []
    assert other.replay_state.stretch.since > 0, "the next one was trusted"


def test_a_checkpoint_behind_a_hole(opened: Opener) -> None:
    log = opened()
    record_lines.write(log, OPEN)
    work(log, 3)
    with open(log.path, "ab") as file:
        file.truncate(log.end + (3 << 20))
    log.catch_up()
    assert log.torn == 3 << 20
    work(log, 300, begin=3)
    other = opened()
    other.catch_up()
    assert not other.replay_state.is_whole
    whole = opened()
    whole.recall(again=True)
    assert whole.replay_state.disputed == []
    assert full_state(whole.replay_state) == full_state(log.replay_state)


def test_the_history_keeps_no_checkpoints(opened: Opener) -> None:
    log = opened()
    record_lines.write(log, OPEN)
    work(log, 100)
    log.append_checkpoint()
    records = orjson.loads(b"[" + log.records() + b"]")
    assert [record["op"] for record in records] == ["open", *["lease", "release"] * 100]
    text = b" " * 0 + log.records()
    data = Path(log.path).read_bytes()
    assert all(
        text[at : at + 20] == data[at : at + 20] for at in (data.find(b'{"op":"release"'), data.rfind(b'{"op":"l'))
    )
    with open(log.path, "ab") as file:
        file.write(b"torn")
    log.catch_up()
    record_lines.put(log, "move", 9999)
    records = orjson.loads(b"[" + log.records() + b"]")
    assert [record["op"] for record in records] == ["open", *["lease", "release"] * 100, "move"]


def test_none_is_written_once_all_tasks_have_outcomes(opened: Opener, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoints, "LEAST_BYTES", 0)
    monkeypatch.setattr(checkpoints, "SHARE", 0)
    log = opened()
    record_lines.write(log, OPEN)
    record_lines.put(log, "cancel", 200, tasks=[[0, 2]], versions=[0, 0])
    assert len(places(log)) == 2
    record_lines.put(log, "cancel", 200, tasks=[[2, 3]], versions=[0])
    record_lines.put(log, "finish", 200)
    record_lines.put(log, "gone", 200)
    assert len(places(log)) == 2


def test_records_of_an_update_that_was_cut_off_do_not_wait_for_a_commit(opened: Opener) -> None:
    """The verbs of the hot path append records without a replay, which would see that another record follows."""
    log, reader = opened(), opened()
    part = movements.UpdatePart(UpdateId("a" * 16))
    record_lines.write(log, OPEN + LEASE + record_lines.complete(101, "a", [0], part=part))
    reader.catch_up()
    reader.replay_state.decide(1, CANCELLED, 102, reader.end)  # as `transitions.completion` does
    reader.append(record_lines.record("cancel", 102, tasks=[[1, 2]], versions=[0]))
    record_lines.write(reader, record_lines.commit(103, part.update, 1))
    log.catch_up()
    assert log.replay_state.state[0] == reader.replay_state.state[0] == LEASED
