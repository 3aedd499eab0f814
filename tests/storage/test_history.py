"""What finished batches went through, kept by day."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue, TaskNotFound
from fsqueue.clock import ManualClock
from fsqueue.storage import history
from fsqueue.storage.locked_batch import LockedBatch
from fsqueue.storage.logs import Log
from tests import record_lines
from tests.concurrency.trapped import trapped
from tests.support import QueueFactory, base_of, insert_in_file

BATCH = "0193f0c2a4b97c31a2d5e8f001234567"
DAY = 86_400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(1_795_255_200.0)  # 2026-11-21 10:00 UTC


@pytest.fixture
def q(queue: Queue, clock: ManualClock) -> Queue:
    queue.store.make_generation()
    return Queue(queue.path, clock=clock)


def log_of(q: Queue, *, torn: bool = False) -> Log:
    log = q.store.logs.open(BATCH, create=True)
    record_lines.put(log, "open", 1, count=2)
    if torn:
        with open(log.path, "ab") as file:
            file.write(b'~\xc3\xbc\n"]],\n{"op":"lease","at":1,"lea')
        log.catch_up()
    record_lines.put(log, "lease", 1, lease="ä]", tasks=[[0, 2]], until=900, worker={"host": 'x"],[{'})
    record_lines.put(log, "complete", 1, lease="ä]", tasks=[[0, 2]], result=[["]"], {"a": "}"}])
    return log


def keep(q: Queue, at: int) -> None:
    with LockedBatch(q.store, BATCH) as locked:
        history.keep(locked, at, 1)


def test_days_are_utc() -> None:
    assert history.day_of(0) == "1970-01-01"
    assert history.day_of(1_795_255_200_000) == "2026-11-21"
    assert history.day_of(1_795_255_200_000 + 14 * 3_600_000 - 1) == "2026-11-21"
    assert history.day_of(1_795_255_200_000 + 14 * 3_600_000) == "2026-11-22"


@pytest.mark.parametrize("torn", [False, True])
def test_records_come_back_with_the_distances_they_had(q: Queue, clock: ManualClock, torn: bool) -> None:
    """Versions are offsets: a `cancel` that names one must be understood in the history as well."""
    log = log_of(q, torn=torn)
    keep(q, clock.now_ms())
    found = history.find(q.store, BATCH)
    assert found is not None
    assert [record["op"] for _, record in found] == ["open", "lease", "complete"]
    assert found[1][1]["worker"] == {"host": 'x"],[{'}
    content = Path(log.path).read_bytes()
    offsets = [content.index(b'{"op":"%s"' % op) for op in (b"open", b"lease", b"complete")]
    if torn:
        offsets[1] = content.index(b'{"op":"lease","at":1,"lease":"\xc3')
    assert [offset - found[0][0] for offset, _ in found] == [offset - offsets[0] for offset in offsets]


def test_an_unknown_batch_has_no_history(q: Queue) -> None:
    assert history.find(q.store, BATCH) is None
    assert history.days(q.store) == []
    assert list(history.finished_batches(q.store)) == []


def test_a_repeat_after_a_crash_is_dropped_also_on_another_day(q: Queue, clock: ManualClock) -> None:
    log_of(q)
    for _ in range(2):
        keep(q, clock.now_ms())
    keep(q, clock.now_ms() + DAY * 1000)
    assert history.days(q.store) == ["2026-11-21", "2026-11-22"]
    assert [found.batch for found in history.finished_batches(q.store)] == [BATCH]


def test_damaged_lines_are_passed_over(q: Queue, clock: ManualClock) -> None:
    log_of(q)
    path = Path(q.store.layout.history("2026-11-21", q.store.layout.shard(BATCH)))
    path.parent.mkdir(parents=True)
    start = b'{"batch":"%s",' % BATCH.encode()
    lists = [start + b'"records":[}', start + b'"records":7}']
    junk = [b"", b"7", b"{}", b'{"batch":7,"records":[]}', start, *lists, b"\xff\xfe"]
    path.write_bytes(b"\n".join(junk) + b"\n" + start)
    assert history.find(q.store, BATCH) is None
    keep(q, clock.now_ms())
    assert history.find(q.store, BATCH) is not None
    assert [found.batch for found in history.finished_batches(q.store)] == [BATCH]


def test_stray_directories_are_no_days(q: Queue, clock: ManualClock) -> None:
    log_of(q)
    keep(q, clock.now_ms())
    for name in ("tmp", ".nfs", "2026-1-1"):
        (base_of(q) / "history" / name).mkdir()
    assert history.days(q.store) == ["2026-11-21"]


def test_a_finished_task_is_known_with_its_result_and_its_path(q: Queue, clock: ManualClock) -> None:
    ref = q.insert({"a": 1})
    [task] = q.lease()
    clock.advance(3)
    task.fail("oops", 0)
    [task] = q.lease()
    task.complete({"sum": 7})
    info = q.task(ref.id)
    assert (info.state, info.result, info.payload, info.attempt) == ("completed", {"sum": 7}, {"a": 1}, 2)
    path = q.history(ref.id)
    assert [movement.op for movement in path] == ["insert", "lease", "fail", "lease", "complete"]
    assert path[2].error == "oops"
    assert path[2].at - path[1].at == pytest.approx(3)
    assert path[4].result == {"sum": 7}
    assert [info.id for info in q.tasks("completed")] == [ref.id]


def test_a_cancelled_task_stays_cancelled_in_the_history(q: Queue) -> None:
    ref = q.insert(1)
    [task] = q.lease()
    task.release()
    assert q.cancel([ref.id]) == 1
    assert q.task(ref.id).state == "cancelled"
    assert [movement.op for movement in q.history(ref.id)] == ["insert", "lease", "release", "cancel"]
    assert [info.id for info in q.tasks("cancelled")] == [ref.id]
    assert list(q.tasks("completed")) == []


def test_of_a_batch_each_task_has_a_history_of_its_own(q: Queue) -> None:
    q.insert_many(["a", "b"], batch_tasks=2)
    first, second = sorted(q.lease(2), key=lambda task: task.payload)
    first.complete(1)
    second.bury("no")
    assert [movement.op for movement in q.history(first.id)] == ["insert", "lease", "complete"]
    assert [movement.op for movement in q.history(second.id)] == ["insert", "lease", "bury"]
    assert q.history(second.id)[-1].reason == "no"


def test_without_a_history_a_finished_task_is_forgotten(queue_factory: QueueFactory) -> None:
    q = queue_factory(keep_history=False)
    ref = insert_in_file(q, 1)
    q.lease()[0].complete()
    for look in (q.task, q.history):
        with pytest.raises(TaskNotFound):
            look(ref.id)
    assert list(q.tasks("completed")) == []
    assert q.status().completed == 1
    assert not (base_of(q) / "history").exists()


def test_without_a_history_a_task_that_has_not_ended_is_known(queue_factory: QueueFactory) -> None:
    q = queue_factory(keep_history=False)
    ref = insert_in_file(q, 1)
    assert [movement.op for movement in q.history(ref.id)] == ["insert"]
    q.lease()
    assert [movement.op for movement in q.history(ref.id)] == ["insert", "lease"]


@pytest.mark.parametrize("durability", ["default", "strict"])
def test_where_every_movement_is_synced_the_history_is_before_the_log_goes(
    queue_factory: QueueFactory, durability: str
) -> None:
    queue = queue_factory(durability=durability)
    insert_in_file(queue, 1)
    steps: list[str] = []

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step in ("fsync", "unlink"):
            path = Path(os.readlink(f"/proc/self/fd/{args[0]}") if step == "fsync" else args[0])
            if base_of(queue) in path.parents:
                steps.append(f"{step} {path.relative_to(base_of(queue)).parts[0]}")
        return call(*args)

    with trapped(queue, trap) as mine:
        mine.lease()[0].complete()
    assert "unlink movements" in steps
    synced = "fsync history" in steps[: steps.index("unlink movements")]
    assert synced == (durability == "strict")


def test_old_days_are_removed_by_upkeep(q: Queue, clock: ManualClock) -> None:
    refs = []
    for _ in range(3):
        refs.append(insert_in_file(q, 1))
        q.lease()[0].complete()
        clock.advance(DAY)
    assert history.days(q.store) == ["2026-11-21", "2026-11-22", "2026-11-23"]
    assert q.gc(history_days=1).history_days_removed == 2  # it is the 24th
    assert history.days(q.store) == ["2026-11-23"]
    with pytest.raises(TaskNotFound):
        q.task(refs[0].id)
    assert q.task(refs[2].id).state == "completed"
    assert q.status().completed == 3


@pytest.mark.parametrize("offsets", [False, True])
def test_lines_that_cannot_be_read_are_left_out_counted_and_kept(
    queue: Queue, caplog: pytest.LogCaptureFixture, offsets: bool
) -> None:
    """A blank line is none, nor one that was marked as void, nor one whose batch has another line."""
    queue.insert_many([1, 2, 3, 4], batch_tasks=1)
    queue.complete(queue.lease(4))
    assert len(list(history.finished_batches(queue.store, offsets))) == 4
    assert caplog.messages == []
    paths = [path for path in queue.path.glob("1-*/history/*/*.jsonl") if path.stat().st_size]
    line = paths[0].read_bytes().splitlines()[0]
    begun = b'{"batch":"%s","count":1,"rec' % b"0193f0c2a4b97c31a2d5e8f001234567"
    written = paths[0].read_bytes() + b"\n".join([b"garbage", begun, line[:50], begun + b"~", b"", b"~", line, b""])
    paths[0].write_bytes(written)
    assert len(list(history.finished_batches(queue.store, offsets))) == 4
    [said] = caplog.messages
    assert said.startswith(f"2 lines in the history of {queue.path} cannot be read: ")
    assert "'fsqueue fsck'" in said
    assert paths[0].read_bytes() == written


def test_a_damaged_line_does_not_count_once_its_batch_is_read_from_a_later_one(
    queue: Queue, caplog: pytest.LogCaptureFixture
) -> None:
    queue.insert_many([1], batch_tasks=1)
    queue.complete(queue.lease())
    [path] = [path for path in queue.path.glob("1-*/history/*/*.jsonl") if path.stat().st_size]
    line = path.read_bytes()
    path.write_bytes(line[:60] + b"\n" + line)
    assert len(list(history.finished_batches(queue.store, False))) == 1
    assert caplog.messages == []
