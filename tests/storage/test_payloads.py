"""The payloads of finished tasks: kept whole, copied, or not at all; and never in the way of the end of a batch."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Queue, administration
from fsqueue.clock import ManualClock
from fsqueue.filesystem import Filesystem
from fsqueue.protocol.finishing import LINGER_MS
from fsqueue.storage import history, payloads, published
from fsqueue.storage.store import Store
from tests.concurrency.trapped import trapped
from tests.support import (
    Crash,
    CrashingFilesystem,
    QueueFactory,
    base_of,
    crashes,
    drain,
    insert_in_file,
    leftovers,
    task_file_names,
)

pytestmark = pytest.mark.batched
DAY_S = 86_400
PAYLOADS = [{"n": number, "text": '"records":[{"op":"finish","at":1}] ü\n' * (number % 3)} for number in range(5)]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(autouse=True)
def _reap_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No threads: a crash must come at the same step every time."""
    monkeypatch.setattr(administration, "reap_later", lambda store: None)


@pytest.fixture(params=[1, 1 << 30], ids=["moved", "copied"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Either form in which a task file is kept, whatever its size."""
    monkeypatch.setattr(payloads, "WHOLE_BYTES", request.param)
    return "moved" if request.param == 1 else "copied"


def kept(queue: Queue) -> list[Path]:
    return sorted((base_of(queue) / "payloads").glob("*/*"))


def on_disk(queue: Queue) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(queue.path.rglob("*")) if path.is_file())


def shown(queue: Queue) -> dict[str, Any]:
    """The payloads of completed tasks, by id: by all ways that show one, which agree."""
    found = {info.id: info.payload for info in queue.tasks("completed")}
    assert found == {result.id: result.payload for result in queue.results()}
    assert found == {identity: queue.task(identity).payload for identity in found}
    return found


def complete_all(queue: Queue) -> None:
    for task in queue.lease(100):
        task.complete(None if isinstance(task.payload, bytes) else task.payload)


def test_a_finished_batch_has_its_payloads(queue_factory: QueueFactory, form: str) -> None:
    queue = queue_factory(shards=1)
    queue.insert_many([*PAYLOADS, b"\x00\xff", None, "text"], batch_tasks=8)
    [name] = task_file_names(queue)
    complete_all(queue)
    assert list(shown(queue).values()) == [*PAYLOADS, b"\x00\xff", None, "text"]
    assert [path.name[14:] for path in kept(queue)] == ([str(name)[14:]] if form == "moved" else [])
    assert leftovers(queue) == []
    assert list(queue.fsck()) == []


def test_a_task_file_is_read_once_if_the_process_that_ends_it_has_leased_from_it(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether all of it is kept depends on its longest line alone, which that process knows."""
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    queue = queue_factory(shards=1, keep_payloads=1000)
    queue.insert_many(PAYLOADS, batch_tasks=5)
    reads: list[str] = []
    content_of = published.content_of

    def counting(store: Store, path: str) -> bytes:
        reads.append(path)
        return content_of(store, path)

    monkeypatch.setattr(published, "content_of", counting)
    complete_all(queue)
    assert len(reads) == len(kept(queue)) == 1


def test_each_half_of_a_batch_at_work_is_shown(queue_factory: QueueFactory, form: str) -> None:
    queue = queue_factory(shards=1)
    queue.insert_many(PAYLOADS, batch_tasks=5)
    first = queue.lease(2)
    queue.complete(first)
    assert shown(queue) == {task.id: task.payload for task in first}
    complete_all(queue)
    assert list(shown(queue).values()) == PAYLOADS


@pytest.mark.parametrize("limit", [0, 10, 100, None])
def test_of_a_file_each_short_payload_is_kept(queue_factory: QueueFactory, form: str, limit: int | None) -> None:
    queue = queue_factory(shards=1, keep_payloads=limit)
    queue.insert_many(["a" * 5, "b" * 55], batch_tasks=2)
    queue.insert_many(["c" * 2000], batch_tasks=1)
    complete_all(queue)
    wanted = {0: [], 10: ["a" * 5], 100: ["a" * 5, "b" * 55], None: ["a" * 5, "b" * 55, "c" * 2000]}[limit]
    assert sorted(value for value in shown(queue).values() if value is not None) == wanted
    assert list(queue.fsck()) == []


@pytest.mark.parametrize("limit", [0, 10, 100, None])
def test_of_single_inserts_each_short_payload_is_kept(
    queue_factory: QueueFactory, clock: ManualClock, limit: int | None
) -> None:
    queue = Queue(queue_factory(shards=1, keep_payloads=limit).path, clock=clock)
    given = ["a" * 5, "b" * 55, b"\x00", {"c": "c" * 2000}]
    for payload in given:
        queue.insert(payload)
    tasks = queue.lease(4)
    queue.complete(tasks)
    wanted = {0: [], 10: [given[0], given[2]], 100: given[:3], None: given}[limit]
    assert sorted(map(str, filter(None, shown(queue).values()))) == sorted(map(str, wanted)), "the batch is at work"
    assert b"ccccc" in on_disk(queue)
    clock.advance(LINGER_MS / 1000)
    queue.gc()
    assert leftovers(queue) == []
    assert (b"ccccc" in on_disk(queue)) == (limit is None)
    assert sorted(map(str, filter(None, shown(queue).values()))) == sorted(map(str, wanted))
    assert list(queue.fsck()) == []


@pytest.mark.parametrize("single", [False, True])
def test_a_payload_of_just_the_length_that_is_kept_is_kept(
    queue_factory: QueueFactory, clock: ManualClock, form: str, single: bool
) -> None:
    """Its length is that of its JSON, quotes and all. What stands around it in its line does not count."""
    queue = Queue(queue_factory(shards=1, keep_payloads=100).path, clock=clock)
    for payload in ("a" * 98, "b" * 117):
        queue.insert(payload) if single else queue.insert_many([payload], batch_tasks=1)
    queue.complete(queue.lease(2))
    clock.advance(LINGER_MS / 1000)
    queue.gc()
    assert leftovers(queue) == []
    assert {payload for payload in shown(queue).values() if payload} == {"a" * 98}


def test_an_older_reader_takes_no_payload_for_a_record(queue_factory: QueueFactory, clock: ManualClock) -> None:
    """It looks for the first `"records":[` in a line, and for the last `finish` in the line's end."""
    queue = Queue(queue_factory(shards=1).path, clock=clock)
    queue.insert_many([{"records": [{"op": "finish", "at": 1}], "tasks": "x"}, '"records":[1]'], batch_tasks=2)
    queue.complete(queue.lease(2))
    [path] = (base_of(queue) / "history").glob("*/*.jsonl")
    line = path.read_bytes()
    assert line.count(b'"records":[') == 1
    assert history.finished_ms(line[:-1]) == clock.now_ms()
    found = history.parse(line)
    assert found is not None
    assert next(record["op"] for _, record in found[1]) == "open"


def test_a_replaced_payload_is_shown_as_it_was_executed(queue_factory: QueueFactory, form: str) -> None:
    queue = queue_factory(shards=1)
    queue.insert_many(["old", "other"], batch_tasks=2)
    from fsqueue.storage import record_times
    from fsqueue.storage.locked_batch import LockedBatch

    task = next(task for task in queue.lease(2) if task.payload == "old")
    with LockedBatch(queue.store, task.id.partition(".")[0]) as locked:  # type: ignore[arg-type]
        at = record_times.next_at(locked)
        fields = {"lease": task.token.partition("@")[2], "tasks": [[task.index, task.index + 1]]}
        locked.append_record("replace", at, payload="new", **fields)
    queue.release_all()
    complete_all(queue)
    assert sorted(shown(queue).values()) == ["new", "other"]


def test_whatever_step_a_finish_dies_at_payloads_are_the_right_ones_or_none(
    queue_factory: QueueFactory, clock: ManualClock, form: str
) -> None:
    """A renamed file is never lost. Of a small one the lines are lost if the process dies before the history has them:
    all its tasks have ended by then.
    """
    truth: dict[str, Any] = {}

    def build(number: int) -> Queue:
        queue = Queue(queue_factory(f"q{number}", shards=1, durability="none").path, worker="first", clock=clock)
        queue.insert_many(PAYLOADS, batch_tasks=5)
        truth.clear()
        truth.update({info.id: info.payload for info in queue.tasks()})
        return queue

    for where, queue in crashes(build, lambda worker: worker.complete(worker.lease(5)), clock):
        other = Queue(queue.path, clock=clock)
        held = {info.id: info.payload for info in other.tasks()}
        assert held == {identity: truth[identity] for identity in held}, (
            f"{where}: what is not finished has its payload"
        )
        for identity, payload in shown(other).items():
            assert payload == truth[identity] or (payload is None and form == "copied"), where
        clock.advance(10_000)
        drain(other, clock)
        other.gc()
        found = shown(other)
        assert found.keys() == truth.keys(), where
        lost = [identity for identity, payload in found.items() if payload != truth[identity]]
        assert not lost or (form == "copied" and {found[identity] for identity in lost} == {None}), where
        assert leftovers(other) == [], where
        assert {finding.kind for finding in other.fsck()} <= {"repeated-history", "torn-line"}, where


def test_a_finish_that_dies_twice_leaves_the_payloads(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    for first in range(1, 14):
        for second in range(1, 9):
            queue = Queue(queue_factory(f"q{first}-{second}", shards=1, durability="none").path, clock=clock)
            queue.insert_many(PAYLOADS, batch_tasks=5)
            for at, act in ((first, lambda worker: worker.complete(worker.lease(5))), (second, Queue.gc)):
                fs = CrashingFilesystem(str(queue.path), at=at)
                try:
                    act(Queue(queue.path, filesystem=fs, clock=clock))
                except Crash:
                    pass
                fs.bury()
            clock.advance(10_000)
            drain(queue, clock)
            queue.gc()
            assert list(shown(queue).values()) == PAYLOADS, (first, second)
            if not fs.dead:
                break


class Refusing(Filesystem):
    """Refuses to rename anything into the payloads."""

    error = errno.EDQUOT

    def rename(self, source: str, target: str) -> bool:
        if "/payloads/" in target:
            raise OSError(self.error, os.strerror(self.error), target)
        return super().rename(source, target)


@pytest.mark.parametrize("error", [errno.EDQUOT, errno.EACCES, errno.EIO])
def test_a_batch_ends_though_its_payloads_cannot_be_kept(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, error: int
) -> None:
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    monkeypatch.setattr(Refusing, "error", error)
    path = queue_factory(shards=1).path
    queue = Queue(path, filesystem=Refusing(str(path)))
    queue.insert_many(PAYLOADS, batch_tasks=5)
    complete_all(queue)
    assert leftovers(queue) == []
    assert set(shown(queue).values()) == {None}
    assert "are not kept" in caplog.text


def test_what_has_the_name_of_a_task_file_and_is_none_is_not_moved(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A neighbour may put a directory into the file's place. It is neither moved nor removed."""
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    queue = queue_factory(shards=1)
    insert_in_file(queue, "x")
    [task] = queue.lease()
    [path] = (base_of(queue) / "queue").glob("*/*")
    path.unlink()
    path.mkdir()
    (path / "mine").write_text("precious")
    task.complete()
    assert (path / "mine").read_text() == "precious"
    assert kept(queue) == []


def test_a_link_in_place_of_the_day_leads_nowhere(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    queue = queue_factory(shards=1)
    queue.insert_many(PAYLOADS, batch_tasks=5)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (base_of(queue) / "payloads").symlink_to(elsewhere)
    complete_all(queue)
    assert list(elsewhere.iterdir()) == []
    assert leftovers(queue) == []


def test_days_go_by_age_and_by_bytes_and_today_stays(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    queue = Queue(queue_factory(shards=1, durability="none").path, clock=clock)
    days = []
    for _ in range(4):
        queue.insert_many(PAYLOADS, batch_tasks=5)
        complete_all(queue)
        days.append(payloads.days(queue.store)[-1])
        clock.advance(DAY_S)
    clock.advance(-DAY_S)
    size = kept(queue)[0].stat().st_size
    assert queue.usage()["payloads"].bytes == 4 * size
    assert queue.gc().payload_days_removed == 0
    assert queue.gc(payload_days=2).payload_days_removed == 1
    assert payloads.days(queue.store) == days[1:]
    report = queue.gc(payload_bytes=size)
    assert report.payload_days_removed == 2
    assert report.bytes_given_back >= 2 * size
    assert payloads.days(queue.store) == days[3:]
    assert queue.gc(payload_bytes=0, payload_days=0).payload_days_removed == 0, "today's stay"
    clock.advance(31 * DAY_S)
    assert queue.gc().payload_days_removed == 1
    assert set(shown(queue).values()) == {None}
    assert list(queue.fsck()) == []


@pytest.mark.parametrize("limit", [60, None])
@pytest.mark.parametrize("then", [[], [0], [500, 0], [0, 500]])
def test_a_day_has_no_more_bytes_than_its_names_and_the_settings_tell(
    queue_factory: QueueFactory,
    clock: ManualClock,
    monkeypatch: pytest.MonkeyPatch,
    limit: int | None,
    then: list[int],
) -> None:
    """Else `gc` would not ask for the sizes of files that are too many bytes."""
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    queue = Queue(queue_factory(shards=1, durability="none", keep_payloads=limit).path, clock=clock)
    queue.insert_many(["x" * 58] * 5, batch_tasks=5)
    complete_all(queue)
    for other in then:
        queue.change_settings(keep_payloads=other)
    if then:  # else `gc` erases them
        queue.change_settings(keep_payloads=60)
    [day] = payloads.days(queue.store)
    size = payloads.bytes_of(queue.store, day)
    assert size == kept(queue)[0].stat().st_size <= payloads.most_bytes_of(queue.store, day)
    clock.advance(DAY_S)
    assert queue.gc(payload_bytes=size).payload_days_removed == 0
    assert queue.gc(payload_bytes=size - 1).payload_days_removed == 1


def test_with_strict_durability_the_day_has_a_file_before_the_queue_has_lost_it(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power loss between the two leaves it under both names, and never under none."""
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    queue = Queue(queue_factory(shards=1, durability="strict").path, clock=clock)
    queue.insert_many(PAYLOADS, batch_tasks=5)
    fs, steps = queue.store.fs, list[str]()
    rename, sync = fs.rename, fs.sync_directory

    def renamed(source: str, target: str) -> bool:
        is_done = rename(source, target)
        if is_done and "/payloads/" in target:
            steps.append("renamed")
        return is_done

    monkeypatch.setattr(fs, "rename", renamed)
    monkeypatch.setattr(fs, "sync_directory", lambda path: (steps.append(path), sync(path)))
    complete_all(queue)
    base, [path] = base_of(queue), kept(queue)
    moved = steps.index("renamed")
    assert {str(base), str(base / "payloads")} <= set(steps[:moved]), "the directory of the day is durable"
    assert steps[moved + 1 : moved + 3] == [str(path.parent), str(base / "queue" / "00")]


@pytest.mark.parametrize("kept_now", [None, 10, 0])
def test_bytes_are_bounded_whatever_payloads_are_kept_now(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, kept_now: int | None
) -> None:
    """Files that were kept before the setting was made smaller are larger than it says."""
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    queue = Queue(queue_factory(shards=1, durability="none", keep_payloads=None).path, clock=clock)
    for _ in range(2):
        queue.insert_many(["x" * 5000] * 2, batch_tasks=2)
        complete_all(queue)
        clock.advance(DAY_S)
    clock.advance(-DAY_S)
    queue.change_settings(keep_payloads=5000)
    queue.change_settings(keep_payloads=kept_now)
    if kept_now is not None:
        assert (queue.gc(payload_bytes=0).payload_files_erased, kept(queue)) == (2, [])
        return
    assert queue.gc(payload_bytes=sum(path.stat().st_size for path in kept(queue))).payload_days_removed == 0
    assert queue.gc(payload_bytes=11_000).payload_days_removed == 1
    assert Queue(queue.path, clock=clock).gc(payload_bytes=11_000).payload_days_removed == 0


def test_a_history_that_goes_takes_the_payloads_along(
    queue_factory: QueueFactory, clock: ManualClock, form: str
) -> None:
    queue = Queue(queue_factory(shards=1, durability="none").path, clock=clock)
    queue.insert_many(PAYLOADS, batch_tasks=5)
    complete_all(queue)
    clock.advance(3 * DAY_S)
    queue.gc(history_days=1)
    assert (kept(queue), list(queue.results())) == ([], [])


def test_fsck_knows_the_files_and_finds_strays(queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    queue = queue_factory(shards=1)
    queue.insert_many(PAYLOADS, batch_tasks=5)
    complete_all(queue)
    [path] = kept(queue)
    (path.parent / "stray").write_text("x")
    (base_of(queue) / "payloads" / "tmp").mkdir()
    assert sorted(finding.kind for finding in queue.fsck(repair=True)) == ["stray", "stray"]
    assert list(queue.fsck()) == []
    assert list(shown(queue).values()) == PAYLOADS


@pytest.mark.parametrize("kind", ["directory", "pipe", "link", "loop"])
def test_what_a_neighbour_puts_in_place_of_a_kept_file_is_not_read(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    queue = queue_factory(shards=1)
    queue.insert_many(PAYLOADS, batch_tasks=5)
    complete_all(queue)
    [path] = kept(queue)
    path.rename(tmp_path / "elsewhere")
    if kind == "directory":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.symlink_to(tmp_path / "elsewhere" if kind == "link" else path)
    assert list(shown(queue).values()) == [None] * 5


def test_files_that_gc_removes_after_they_were_listed_have_neither_lines_nor_bytes(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    queue = queue_factory(shards=1)
    queue.insert_many(PAYLOADS, batch_tasks=5)
    complete_all(queue)
    store, [path] = queue.store, kept(queue)
    [day], listed = payloads.days(store), store.fs.names(str(path.parent))
    path.unlink()
    monkeypatch.setattr(store.fs, "names", lambda directory: listed)
    assert (payloads.bytes_of(store, day), payloads.lines_at(store, str(path))) == (0, [])

    def fails(path: str) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(store.fs, "read_pieces", fails)
    with pytest.raises(OSError, match="Input/output error"):
        payloads.lines_at(store, str(path))


def test_a_damaged_file_shows_no_wrong_payload(queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    queue = queue_factory(shards=1)
    queue.insert_many(PAYLOADS, batch_tasks=5)
    complete_all(queue)
    [path] = kept(queue)
    data = path.read_bytes().split(b"\n")
    path.write_bytes(data[0] + b"\n" + data[1][:9] + b"\n" + data[2] + b"\n" + data[3][:5])
    assert list(shown(queue).values()) == [PAYLOADS[0], None, PAYLOADS[2], None, None]


def test_where_every_movement_is_synced_a_kept_file_has_its_new_name_before_the_old_one_is_gone(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a power loss might take both."""
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    queue = queue_factory(shards=1, durability="strict")
    queue.insert_many(PAYLOADS, batch_tasks=5)
    steps: list[str] = []

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        found = call(*args)
        if step == "rename" and "/payloads/" in args[1] and found:
            steps.append("rename")
        elif step == "fsync":
            steps.append(os.readlink(f"/proc/self/fd/{args[0]}").removeprefix(f"{base_of(queue)}/").split("/")[0])
        return found

    with trapped(queue, trap) as mine:
        mine.complete(mine.lease(5))
    after = steps[steps.index("rename") + 1 :]
    assert after.index("payloads") < after.index("queue")
