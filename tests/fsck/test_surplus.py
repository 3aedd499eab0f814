"""Bytes in the completion counters that no batch has written: not believed, told apart from lost history, mended."""

from __future__ import annotations

import os
from pathlib import Path

import orjson
import pytest

from fsqueue import Queue
from fsqueue.clock import ManualClock
from fsqueue.fsck import surplus
from fsqueue.storage import counters
from fsqueue.storage.store import Store
from tests.support import QueueFactory, base_of, counted

pytestmark = pytest.mark.once


@pytest.fixture
def q(queue_factory: QueueFactory) -> Queue:
    queue: Queue = queue_factory(shards=2, durability="none")
    work(queue, 100)
    return queue


def work(queue: Queue, tasks: int) -> None:
    queue.insert_many(range(tasks), batch_tasks=10)
    while held := queue.lease(100):
        queue.complete(held)


def counter(queue: Queue) -> Path:
    [path] = (base_of(queue) / "completions").iterdir()
    return path


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


def mended(queue: Queue) -> list[tuple[str, bool]]:
    return [(finding.kind, finding.repaired) for finding in queue.fsck(repair=True)]


def test_a_hole_counts_nothing(q: Queue) -> None:
    append(counter(q), b"\0" * 1000)
    for queue in (q, Queue(q.path)):
        assert queue.status().completed == queue.status(exact=False).completed == 100
    assert list(q.fsck()) == []
    work(q, 50)
    assert q.status().completed == Queue(q.path).status().completed == 150, "what comes behind it counts"
    assert list(q.fsck()) == []


def test_surplus_bytes_are_found_and_mended_by_the_history(q: Queue) -> None:
    path = counter(q)
    sound = path.read_bytes()
    junk = os.urandom(500).replace(b"\0", b"\1") + b"\0\0" + b"junk"
    append(path, junk)
    assert q.status().completed == 604
    assert [(finding.kind, finding.tasks) for finding in q.fsck()] == [("counter-surplus", 504)]
    assert path.read_bytes() == sound + junk, "looking changes nothing"
    work(q, 50)
    assert mended(q) == [("counter-surplus", True)]
    assert q.status().completed == Queue(q.path).status().completed == 150
    assert path.read_bytes().startswith(sound + b"\0" * len(junk))
    kept = [one.read_bytes() for one in (q.path / ".quarantine").rglob("*.bytes-from-*")]
    assert kept == [junk + b"\0"], "and the guard behind it"
    assert list(q.fsck()) == []


def test_surplus_and_missing_bytes_at_once(q: Queue) -> None:
    path = counter(q)
    sound = path.read_bytes()
    path.write_bytes(b"\0" * 7 + b"xyz" + sound[10:] + b"junk")
    assert sorted(kind for kind, repaired in mended(q) if repaired) == ["counter-bytes", "counter-surplus"]
    assert q.status().completed == 100
    assert path.read_bytes() == sound + b"\0" * 4


def test_what_is_being_counted_is_no_surplus(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch died between its bytes and its line of the history: its log tells whose they are."""
    q.insert_many(range(10), batch_tasks=10)
    with monkeypatch.context() as patch:

        def full(*args: object) -> None:
            raise OSError(28, "full")

        patch.setattr("fsqueue.storage.history.keep", full)
        q.complete(q.lease(10))
    assert surplus._surplus(q.store) == {}
    assert q.status().completed == 110
    assert mended(q) == [("unfinished", True)]
    assert q.status().completed == counted(q) == 110


def test_what_is_counted_while_fsck_reads_is_no_surplus(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The logs and the history were read before, and do not tell whose bytes those are."""
    other, read = Queue(q.path), surplus._CountRecords.read

    def overtaken(claims: surplus._CountRecords, store: Store) -> bool:
        answer = read(claims, store)
        work(other, 10)
        return answer

    monkeypatch.setattr(surplus._CountRecords, "read", overtaken)
    assert mended(q) == []
    assert q.status().completed == counted(q) == 110


def test_history_that_was_removed_by_age_is_no_surplus(queue_factory: QueueFactory) -> None:
    clock = ManualClock(1_795_000_000.0)
    queue = Queue(queue_factory(shards=2, durability="none").path, clock=clock)
    work(queue, 40)
    clock.advance(3 * 86_400)
    work(queue, 20)
    assert queue.gc(history_days=1).history_days_removed == 1
    append(counter(queue), b"junk")
    assert list(queue.fsck()) == [], "it cannot be told from what was removed"
    assert queue.status().completed == 64


@pytest.mark.parametrize("anomaly", ["a resumed batch", "a clock ahead"])
def test_an_old_claim_in_a_young_line_proves_nothing(queue_factory: QueueFactory, anomaly: str) -> None:
    """The counter's first batch has a line on a later day than the others, which were removed with their day."""
    clock = ManualClock(1_795_000_000.0)
    queue = Queue(queue_factory(shards=1, durability="none").path, clock=clock)
    work(queue, 40)
    [day] = (base_of(queue) / "history").iterdir()
    [file] = day.iterdir()
    first, *rest = file.read_bytes().splitlines(keepends=True)
    later = day.with_name("2026-11-27")
    later.mkdir()
    if anomaly == "a clock ahead":
        record = orjson.loads(first)
        for one in record["records"]:
            one["at"] += 9 * 86_400_000
        first = orjson.dumps(record) + b"\n"
    (later / file.name).write_bytes(first)
    file.write_bytes(b"".join(rest))
    clock.advance(5 * 86_400)
    work(queue, 10)
    assert queue.gc(history_days=2).history_days_removed == 1
    assert [finding.kind for finding in queue.fsck()] == []
    assert queue.status().completed == 50


@pytest.mark.parametrize("damage", ["a damaged line", "a torn line", "a voided line", "a damaged log"])
def test_what_a_damaged_line_may_have_told_is_no_surplus(q: Queue, damage: str) -> None:
    paths = sorted((base_of(q) / "history").glob("*/*"))
    lines = paths[0].read_bytes().splitlines(keepends=True)
    match damage:
        case "a damaged line":
            paths[0].write_bytes(b"".join([b"X" + lines[0][1:], *lines[1:]]))
        case "a torn line":
            paths[0].write_bytes(b"".join(lines)[:-30])
        case "a voided line":
            paths[0].write_bytes(b"".join([lines[0][:-2] + b"~\n", *lines[1:]]))
        case "a damaged log":
            q.insert_many(range(10), batch_tasks=10)
            q.lease()
            [log] = (base_of(q) / "movements").glob("*/*")
            append(log, b"garbage\n")
    list(q.fsck(repair=True))
    assert q.status().completed == 100
    assert "counter-surplus" not in [finding.kind for finding in q.fsck()]


def test_without_a_history_nothing_is_judged(queue_factory: QueueFactory) -> None:
    queue: Queue = queue_factory(durability="none", keep_history=False)
    work(queue, 20)
    append(counter(queue), b"junk" + b"\0" * 10)
    assert list(queue.fsck(repair=True)) == []
    assert queue.status().completed == 24


def test_surplus_below_the_first_claim_proves_that_history_is_missing(q: Queue) -> None:
    path = counter(q)
    sound = path.read_bytes()
    assert sound[0] == 0, "a guard"
    path.write_bytes(b"j" + sound[1:] + b"junk")
    assert list(q.fsck()) == []


def test_guards_before_the_first_claim_prove_nothing(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever counted first died behind its guard, and another did so in the middle."""
    queue = Queue.create(q.path.with_name("other"), shards=2, durability="none")
    for expected in (10, 20, 30):
        with monkeypatch.context() as patch:
            patch.setattr(counters, "mark", lambda batch, count: 1 / 0)
            queue.insert_many(range(10), batch_tasks=10)
            with pytest.raises(ZeroDivisionError):
                queue.complete(queue.lease(10))
        queue.gc()
        assert queue.status().completed == expected
    append(counter(queue), b"junk")
    assert mended(queue) == [("counter-surplus", True)]
    assert queue.status().completed == Queue(queue.path).status().completed == 30
