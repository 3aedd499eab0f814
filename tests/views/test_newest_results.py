"""The newest results: those of `results` that ended last, at a cost that does not grow with what a queue has done."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from fsqueue import InvalidArgument, Queue, QueuePurged, Result
from fsqueue.clock import ManualClock
from fsqueue.format.names import Batch
from fsqueue.storage import history, journals, listing, payloads
from fsqueue.views import inspection, newest_results
from tests.support import QueueFactory

AT = 1_800_000_000.0
DAY_S = 86_400
pytestmark = pytest.mark.once


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(AT)


@pytest.fixture
def q(queue_factory: QueueFactory, clock: ManualClock) -> Queue:
    return Queue(queue_factory(backoff_s=(0, 0), max_attempts=3, shards=4).path, worker="me", clock=clock)


def complete(q: Queue, clock: ManualClock, *payloads: Any, more: str = "") -> None:
    """Complete tasks with these payloads, in batches of one, one after the other."""
    for payload in payloads:
        q.insert_many([payload], batch_tasks=1)
        [task] = q.lease()
        clock.advance(1)
        task.complete({"of": payload, "more": more})


def newest(q: Queue, count: int, **more: Any) -> list[Any]:
    return [result.payload for result in q.results(newest=count, **more)]


def by_end(q: Queue) -> list[Result]:
    return sorted(q.results(), key=lambda result: -(result.finished_at or 0))


@pytest.mark.parametrize("seed", range(6))
def test_they_are_those_of_all_results_that_ended_last(
    q: Queue, clock: ManualClock, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In logs, in the history of several days, and among dead letters; with payloads in the line and in files."""
    draw = random.Random(seed)
    monkeypatch.setattr(payloads, "WHOLE_BYTES", draw.choice([1, 1 << 30]))
    for _ in range(12):
        tasks = draw.randrange(1, 7)
        q.insert_many([{"x": draw.random()} for _ in range(tasks)], batch_tasks=draw.randrange(1, tasks + 1))
    q.insert({"x": 2}, key="k")
    while tasks_held := q.lease(draw.randrange(1, 5)):
        for task in tasks_held:
            clock.advance(draw.choice([0.5, 3, 20, DAY_S / 2]))
            end = draw.randrange(12)
            if end == 0:
                task.bury("no")
            elif end == 1:
                task.release()
                q.cancel(task.id)
            elif end == 2:
                task.fail("once more", 0)
            else:
                q.complete([task], {task.id: [1, 2]})
        if draw.randrange(25) == 0:
            break
    whole = by_end(q)
    for count in (1, 3, 10, 1000):
        found = [*q.results(newest=count)]
        assert [result.finished_at for result in found] == [result.finished_at for result in whole[:count]]
        assert [result for result in found if result not in whole] == []
        columns = [Result._make(row) for item in q.result_columns(newest=count) for row in zip(*item, strict=True)]
        assert columns == found
    assert [*q.results(newest=5, dead=True)] == [result for result in whole if result.state == "dead"][:5]
    assert [*q.results(lambda result: result.state == "dead", newest=9)] == [
        result for result in q.results(newest=9) if result.state == "dead"
    ]


def test_tasks_that_ended_together_come_in_the_order_of_their_ids(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(9), batch_tasks=9)
    q.complete(q.lease(9))
    assert newest(q, 4) == [0, 1, 2, 3]


class Reads:
    """What is read of files: which, and how many bytes of the history."""

    def __init__(self, q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: Counter[str] = Counter()
        self.listed: Counter[str] = Counter()
        self.bytes = 0
        fs = q.store.fs
        look, names, pread = fs.look_anew, fs.names, fs.pread

        def looking(path: str, *more: Any) -> int:
            self.opened[path.split("/")[1]] += 1
            return look(path, *more)

        def listing_names(path: str, *more: Any) -> list[str]:
            self.listed[path.split("/")[1]] += 1
            return names(path, *more)

        def reading(fd: int, size: int, offset: int) -> bytes:
            found = pread(fd, size, offset)
            self.bytes += len(found)
            return found

        monkeypatch.setattr(fs, "look_anew", looking)
        monkeypatch.setattr(fs, "names", listing_names)
        monkeypatch.setattr(fs, "pread", reading)


def test_what_is_read_does_not_grow_with_what_the_queue_has_done(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    complete(q, clock, *({"n": n, "what": "x" * 900} for n in range(40)), more="y" * 4000)
    with monkeypatch.context() as patch:
        few = Reads(q, patch)
        assert [payload["n"] for payload in newest(q, 5)] == [39, 38, 37, 36, 35]
    complete(q, clock, *({"n": n, "what": "x" * 900} for n in range(40, 200)), more="y" * 4000)
    with monkeypatch.context() as patch:
        many = Reads(q, patch)
        assert [payload["n"] for payload in newest(q, 5)] == [199, 198, 197, 196, 195]
    assert max(few.opened["history"], many.opened["history"]) <= 2 * 4
    assert many.listed["payloads"] == few.listed["payloads"] == 0
    assert many.bytes < sum(path.stat().st_size for path in history_files(q)) / 3


def test_a_batch_of_many_logs_reads_those_whole_that_may_have_newer_ones(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(20):
        q.insert_many([n, -n], batch_tasks=2)
        clock.advance(5)
        [task] = q.lease()
        clock.advance(5)
        task.complete()
        [other] = q.lease()
        other.release(delay_s=10**6)
    read = []
    whole = inspection.partly_done

    def reading(store: Any, only: Any) -> Any:
        read.extend(only)
        return whole(store, only)

    expected = [result.payload for result in by_end(q)[:2]]
    monkeypatch.setattr(inspection, "partly_done", reading)
    assert newest(q, 2) == expected
    assert len(read) <= 4


def test_the_last_record_of_a_long_log_tells_when_it_was_written(q: Queue, clock: ManualClock) -> None:
    q.insert_many(range(3), batch_tasks=3)
    tasks = q.lease(3)
    batch = next(listing.with_logs(q.store))
    clock.advance(7)
    tasks[0].complete("y" * (journals.PAGE_BYTES - 300))
    size, last = listing.end_of_log(q.store, batch)
    assert (size > journals.PAGE_BYTES, last) == (True, round(clock.now_ms()))
    append(q, batch, b'{"op":"complete","at":9')  # a torn record is none
    assert listing.end_of_log(q.store, batch)[1] == last
    append(q, batch, b'~\n{"op":"move","at":5,"what":"%s"}\n' % (b"y" * journals.PAGE_BYTES))
    assert listing.end_of_log(q.store, batch)[1] is None  # no record begins within the last page
    assert newest(q, 9) == [0]
    assert listing.end_of_log(q.store, Batch("0193f0c2a4b97c31a2d5e8f001234567")) == (0, None)


def append(q: Queue, batch: Batch, content: bytes) -> None:
    with q.store.fs.closing(q.store.fs.open_append(q.store.layout.log(batch))) as fd:
        q.store.fs.write_all(fd, content)


def test_of_a_queue_without_a_history_there_are_dead_letters_alone(
    queue_factory: QueueFactory, clock: ManualClock
) -> None:
    q = Queue(queue_factory(keep_history=False).path, clock=clock)
    q.insert_many(["done", "bad", "more"], batch_tasks=3)
    by_payload = {task.payload: task for task in q.lease(3)}
    by_payload["done"].complete()
    by_payload["bad"].bury("no")
    assert newest(q, 9) == ["bad"]


def test_payloads_that_are_not_kept_are_not_shown(q: Queue, clock: ManualClock) -> None:
    complete(q, clock, "short", "long" * 1000)
    assert newest(q, 9) == [None, "short"]
    q.change_settings(keep_payloads=0)
    assert newest(q, 9) == [None, None]
    assert [result.result for result in q.results(newest=9)][1] == {"of": "short", "more": ""}


def history_files(q: Queue) -> list[Path]:
    return [path for path in (q.path / q.store.layout.history_days).glob("*/*") if "settled" not in path.name]


def test_lines_that_cannot_be_read_and_repeats_are_left_out(
    q: Queue, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    complete(q, clock, *range(8))
    for path in history_files(q):
        lines = path.read_bytes().splitlines(keepends=True)
        damaged = lines[-1].replace(b'"records":[', b'"records":(').replace(b'{"batch":"0', b'{"batch":"1')
        path.write_bytes(b"".join(lines) + lines[-1] + damaged + b'{"batch":"torn')
    assert newest(q, 9) == list(range(7, -1, -1))
    assert f"{len(history_files(q))} lines in the history" in caplog.text


def test_what_is_left_unread_for_its_size_is_said(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    complete(q, clock, *(f"{n} {'x' * 500}" for n in range(30)))
    assert len(newest(q, 30)) == 30
    assert caplog.text == ""
    monkeypatch.setattr(newest_results, "BYTES_MAX", 4000)
    assert 0 < len(newest(q, 30)) < 30
    assert "may not be all here" in caplog.text


def test_at_most_so_many_files_are_opened(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    complete(q, clock, *range(9))
    monkeypatch.setattr(newest_results, "FILES_MAX", 1)
    assert 0 < len(newest(q, 9)) < 9
    assert "may not be all here" in caplog.text


def test_a_time_that_no_calendar_has_is_passed_over(q: Queue, clock: ManualClock) -> None:
    q.insert_many(["now", "then"], batch_tasks=2)
    [task] = q.lease()
    task.complete()
    [batch] = listing.with_logs(q.store)
    append(q, batch, b'{"op":"move","at":99999999999999999999}\n')
    assert newest(q, 1) == [task.payload]


def test_a_queue_that_is_purged_meanwhile_is_said(
    q: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    complete(q, clock, 1, 2)
    read = history.lines_from_end

    def purging(*given: Any) -> Any:
        Queue(q.path).purge()
        return read(*given)

    monkeypatch.setattr(history, "lines_from_end", purging)
    with pytest.raises(QueuePurged):
        newest(q, 2)


@pytest.mark.parametrize("wrong", [0, -1, 1001, True, "5", 2.0])
def test_a_number_that_is_none_is_refused(q: Queue, wrong: Any) -> None:
    with pytest.raises(InvalidArgument):
        q.results(newest=wrong)
    with pytest.raises(InvalidArgument):
        q.result_columns(newest=wrong)


def test_newest_and_latest_by_exclude_each_other(q: Queue) -> None:
    with pytest.raises(InvalidArgument, match="latest_by"):
        q.results(newest=1, latest_by="run")
