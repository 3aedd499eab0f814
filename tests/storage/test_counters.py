"""The unary completion counter: one byte a completed task, never twice, whatever crashed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from fsqueue import Queue
from fsqueue.clock import ManualClock
from fsqueue.errors import LockTimeout
from fsqueue.storage import counters
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.logs import Log
from tests import record_lines
from tests.support import QueueFactory, base_of, counted, task_file_names

BATCH = "0193f0c2a4b97c31a2d5e8f001234567"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def q(queue: Queue, clock: ManualClock) -> Queue:
    queue.store.make_generation()
    return Queue(queue.path, clock=clock)


@pytest.fixture
def finished(q: Queue) -> Log:
    """The log of a batch of five completed tasks, ready to be counted."""
    log = q.store.logs.open(BATCH, create=True)
    record_lines.put(log, "open", 1, count=5)
    record_lines.put(log, "lease", 1, lease="a", tasks=[[0, 5]], until=900)
    record_lines.put(log, "complete", 1, lease="a", tasks=[[0, 5]])
    record_lines.put(log, "finish", 1)
    return log


def counter(q: Queue, number: str | None = None) -> Path:
    return Path(q.store.layout.counter(number or q.store.counter_number))


def add(q: Queue, completed: int = 5) -> None:
    with LockedBatch(q.store, BATCH) as locked:
        counters.add(locked, completed, 5, 0.4)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 1024])
def test_a_batch_leaves_as_many_bytes_as_it_has_tasks_and_they_tell_whose_they_are(count: int) -> None:
    mine, other = counters.mark(BATCH, count), counters.mark("0" * 32, count)
    assert len(mine) == len(other) == count
    assert 0 not in mine
    assert counters.mark(BATCH, 2000)[:count] == mine
    if count >= 31:
        assert mine != other


@pytest.mark.parametrize(
    ("found", "length"), [(b"", 0), (b"abc", 3), (b"ab", 2), (b"abX", 2), (b"Xbc", 0), (b"abcd", 3)]
)
def test_the_common_prefix(found: bytes, length: int) -> None:
    assert counters.common_prefix(found, b"abc") == length


def test_counting_writes_a_guard_and_a_record_before_the_bytes(q: Queue, finished: Log) -> None:
    counter(q).parent.mkdir(parents=True)
    counter(q).write_bytes(b"x" * 7)
    add(q)
    assert counter(q).read_bytes() == b"x" * 7 + b"\0" + counters.mark(BATCH, 5)
    assert finished.replay_state.counts == [(q.store.counter_number, 8, 5)]


def finish_log(q: Queue, batch: str, tasks: int) -> None:
    """Make the log of a batch whose tasks are all completed, and not counted yet."""
    log = q.store.logs.open(batch, create=True)
    record_lines.put(log, "open", 1, count=tasks)
    record_lines.put(log, "lease", 1, lease="a", tasks=[[0, tasks]], until=900)
    record_lines.put(log, "complete", 1, lease="a", tasks=[[0, tasks]])
    record_lines.put(log, "finish", 1)


@pytest.mark.parametrize("written", [0, 1, 2, 3])
@pytest.mark.parametrize("tasks", [1, 3])
def test_no_batch_takes_the_bytes_of_another_for_its_own(
    q: Queue, monkeypatch: pytest.MonkeyPatch, tasks: int, written: int
) -> None:
    """Every batch has the same bytes here, as two batches of one task have in one of 255 cases.

    Three batches announce where they count, and write some of their bytes, or none, as on a disk that is full.
    """
    monkeypatch.setattr(counters, "mark", lambda batch, count: b"m" * count)
    batches = [f"{number:032x}" for number in range(3)]
    write_all = q.store.fs.write_all

    def full(fd: int, data: bytes) -> None:
        if data.startswith(b"m"):
            write_all(fd, data[:written])
            raise OSError(28, "No space left on device")
        write_all(fd, data)

    for batch in batches:
        finish_log(q, batch, tasks)
        with monkeypatch.context() as patch, LockedBatch(q.store, batch) as locked:
            patch.setattr(q.store.fs, "write_all", full)
            with pytest.raises(OSError, match="No space"):
                counters.add(locked, tasks, 5, 0.4)
    for batch in reversed(batches):
        for _ in range(2):
            with LockedBatch(q.store, batch) as locked:
                counters.add(locked, tasks, 5, 0.4)
    assert counted(q) == 3 * tasks


def test_counting_twice_counts_once(q: Queue, finished: Log) -> None:
    add(q)
    add(q)
    finished.discard()
    add(q)
    assert counted(q) == 5


@pytest.mark.parametrize("written", range(6))
def test_what_a_crash_left_out_is_added(q: Queue, finished: Log, written: int) -> None:
    """A crash after the record, with none, some or all of the bytes."""
    counter(q).parent.mkdir(parents=True)
    counter(q).write_bytes(b"x" * 7 + counters.mark(BATCH, 5)[:written])
    record_lines.put(finished, "count", 5, file=q.store.counter_number, offset=7, count=5)
    add(q)
    assert counted(q) == 7 + 5


def test_bytes_of_others_at_the_announced_place_are_not_ours(q: Queue, finished: Log) -> None:
    other = counters.mark("f" * 32, 3)
    assert other[0] != counters.mark(BATCH, 1)[0]
    record_lines.put(finished, "count", 5, file=q.store.counter_number, offset=0, count=5)
    counter(q).parent.mkdir(parents=True)
    counter(q).write_bytes(other)
    add(q)
    add(q)
    assert counter(q).read_bytes() == other + b"\0" + counters.mark(BATCH, 5)


def test_a_crash_after_a_crash_is_made_good_too(q: Queue, finished: Log) -> None:
    number = q.store.counter_number
    counter(q).parent.mkdir(parents=True)
    counter(q).write_bytes(counters.mark(BATCH, 5)[:2] + b"other" + counters.mark(BATCH, 3)[:1])
    record_lines.put(finished, "count", 5, file=number, offset=0, count=5)
    record_lines.put(finished, "count", 5, file=number, offset=7, count=3)
    add(q)
    assert counted(q) == 5 + 5
    assert sum(counters.there(q.store, q.store.layout, BATCH, *one) for one in finished.replay_state.counts) == 5


def test_a_counter_that_others_keep_locked_is_passed_over(q: Queue, clock: ManualClock, finished: Log) -> None:
    other = Queue(q.path, clock=clock)
    with other.store.locked(str(counter(q))):
        add(q)
    assert counter(q).stat().st_size == 0
    assert counted(q) == 5


def test_when_all_counters_are_locked_counting_is_left_for_later(
    q: Queue, finished: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = q.store.fs.try_lock
    monkeypatch.setattr(q.store.fs, "try_lock", lambda fd: fd == finished.fd and usual(fd))
    with pytest.raises(LockTimeout, match="stayed locked"):
        add(q)
    monkeypatch.undo()
    add(q)
    assert counted(q) == 5


def test_sizes_are_those_of_the_counters_alone(q: Queue) -> None:
    assert counters.sizes(q.store) == {}
    counter(q).parent.mkdir(parents=True)
    for name, size in (("00", 3), ("0f", 4), ("10", 5), ("0f~", 6), (".nfs01", 7), ("zz", 8)):
        counter(q, name).write_bytes(b"x" * size)
    assert counters.sizes(q.store) == {"00": 3, "0f": 4}


def test_processes_spread_over_the_counters() -> None:
    assert len(counters.NUMBERS) == 16
    assert len(set(counters.NUMBERS)) == 16


def test_status_counts_what_is_being_counted_once(q: Queue, finished: Log) -> None:
    """Between the `count` record and the last byte, completions are in the log and partly in the counter."""
    number = q.store.counter_number
    counter(q).parent.mkdir(parents=True)
    for written in range(6):
        counter(q).write_bytes(b"x" * 7 + counters.mark(BATCH, 5)[:written])
        if not finished.replay_state.counts:
            assert q.status().completed == 7 + written + 5, "no record yet: these bytes are somebody else's"
            counter(q).write_bytes(b"x" * 7)
            record_lines.put(finished, "count", 5, file=number, offset=7, count=5)
        assert q.status().completed == 7 + 5


@pytest.mark.parametrize("total", [1, 17])
def test_completions_are_counted_exactly(queue_factory: QueueFactory, clock: ManualClock, total: int) -> None:
    q = Queue(queue_factory().path, clock=clock)
    q.insert_many(range(total), batch_tasks=total)
    for number in range(total):
        assert q.status().completed == number
        [task] = q.lease()
        task.complete()
    assert q.status().completed == counted(q) == total


def test_the_bytes_of_a_counter_are_those_of_the_format(queue: Queue) -> None:
    """docs/format.md, "Counters": NUL, then the BLAKE2b-256 digest of the batch's name, its NULs replaced, repeated."""
    queue.insert_many(range(40), batch_tasks=3)
    expected = b""
    for name in task_file_names(queue):
        digest = hashlib.blake2b(name.batch.encode(), digest_size=32).digest().replace(b"\0", b"\1")
        expected += b"\0" + (digest * 2)[: name.count]
    queue.complete(queue.lease(40))
    written = b"".join(path.read_bytes() for path in (base_of(queue) / "completions").iterdir())
    assert sorted(written) == sorted(expected)
    assert len(written) - written.count(0) == 40


def reads_of(q: Queue, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Return the list into which each read of a file is written: offset and length."""
    read: list[tuple[int, int]] = []
    pread = q.store.fs.pread
    monkeypatch.setattr(q.store.fs, "pread", lambda fd, size, at: read.append((at, size)) or pread(fd, size, at))
    return read


@pytest.mark.parametrize("read_bytes", [1, 2, 3, 7, 1 << 20])
@pytest.mark.parametrize(
    ("content", "again"),
    [(b"", 0), (b"abc", 3), (b"\0abc", 4), (b"\0a\0b\0cd", 7), (b"\0ab\0", 3), (b"a\0\0b\0c", 0), (b"\0\0\0", 0)],
)
def test_a_process_reads_marks_and_guards_once(
    q: Queue, monkeypatch: pytest.MonkeyPatch, content: bytes, again: int, read_bytes: int
) -> None:
    """Where bytes are missing yet, and at the end, it reads again, and from there on."""
    monkeypatch.setattr(counters, "READ_BYTES", read_bytes)
    counter(q).parent.mkdir(parents=True)
    counter(q).write_bytes(content)
    number = q.store.counter_number
    marks = len(content) - content.count(0)
    assert counters.completed(q.store, {number: len(content)}) == {number: marks}
    read = reads_of(q, monkeypatch)
    for _ in range(2):
        assert counters.completed(q.store, {number: len(content)}) == {number: marks}
        begin = min((at for at, _ in read), default=len(content))
        assert begin == again if read_bytes >= 7 else b"\0\0" not in content[:begin]
        read.clear()
    content = content.replace(b"\0\0", b"xx") + b"more"
    counter(q).write_bytes(content)
    assert counters.completed(q.store, {number: len(content)}) == {number: len(content) - content.count(0)}
