"""What a queue does not keep of finished tasks: no reader shows it from the moment on at which they end, or at which
`keep_payloads` is made smaller; and `gc` erases it.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, LeaseLost, Queue, TaskNotFound, administration
from fsqueue.clock import ManualClock
from fsqueue.filesystem import Filesystem
from fsqueue.format import movements, names, task_file
from fsqueue.format.layout import erased_record
from fsqueue.format.models import GcReport
from fsqueue.protocol.finishing import LINGER_MS
from fsqueue.spark import views as spark_views
from fsqueue.storage import history, payloads
from fsqueue.storage.journals import Journal
from fsqueue.upkeep import payload_erasure
from fsqueue.views import outcomes
from tests import record_lines
from tests.support import QueueFactory, base_of, crashes, drain, leftovers

LONG = "secret" * 500
DAY_S = 86_400


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture(autouse=True)
def _reap_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(administration, "reap_later", lambda store: None)


def on_disk(queue: Queue) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(queue.path.rglob("*")) if path.is_file())


def readable(queue: Queue) -> list[Any]:
    """All payloads, keys and priorities of finished tasks that any reader shows; the readers agree."""
    infos = [*queue.tasks("completed"), *queue.tasks("cancelled")]
    found = {info.id: (info.payload, info.key, info.priority) for info in infos}
    assert found == {key: (one.payload, one.key, one.priority) for key in found for one in [queue.task(key)]}
    for result in queue.results():
        if result.state == "completed":
            assert (result.payload, result.key) == found[result.id][:2]
    columns = [value for part in queue.result_columns() for value in [*part[3]]]
    assert sorted(map(str, columns)) == sorted(
        str(found[one.id][0] if one.id in found else one.payload) for one in queue.results()
    )
    return [value for some in found.values() for value in some if value is not None]


def completed_in_file(queue: Queue, *given: Any, leave: int = 0) -> None:
    queue.insert_many(given, batch_tasks=len(given))
    queue.complete(queue.lease(len(given) - leave))


@pytest.mark.parametrize("single", [False, pytest.param(True, marks=pytest.mark.batched)])
def test_nothing_of_a_batch_at_work_is_shown_that_is_not_kept(
    queue_factory: QueueFactory, clock: ManualClock, single: bool
) -> None:
    queue = Queue(queue_factory(shards=1, keep_payloads=0).path, clock=clock)
    if single:
        for payload in ("secret", "other"):
            queue.insert(payload, key=f"secret {payload}", priority=3)
        queue.complete(queue.lease(1))
    else:
        completed_in_file(queue, "secret", "other", leave=1)
    assert len(list(queue.tasks("completed"))) == 1
    assert readable(queue) == []
    [left] = queue.tasks()
    assert left.payload in ("secret", "other"), "what is to be done is shown"
    report = queue.retry_completed()
    assert (report.retried, report.unkept) == (0, 1)
    queue.complete(queue.lease(1))
    clock.advance(LINGER_MS / 1000)
    queue.gc()
    assert leftovers(queue) == []
    assert b"secret" not in on_disk(queue)


def test_each_payload_counts_by_its_own_length(queue_factory: QueueFactory) -> None:
    """Four long ones among a hundred short ones are not kept, and the short ones beside a long one are."""
    queue = queue_factory(shards=1)
    for given in ([LONG] * 4 + ["short"] * 96, ["brief"] + [LONG] * 9):
        completed_in_file(queue, *given)
    assert leftovers(queue) == []
    assert sorted(readable(queue)) == ["brief"] + ["short"] * 96
    assert b"secret" not in on_disk(queue)


@pytest.mark.batched
def test_what_is_kept_of_a_long_file_is_a_file(queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    queue = queue_factory(shards=1)
    completed_in_file(queue, LONG, "short", {"n": 1})
    [path] = (base_of(queue) / "payloads").glob("*/*")
    assert path.read_bytes() == b'{}\n{"payload":"short"}\n{"payload":{"n":1}}\n'
    assert readable(queue) == ["short", {"n": 1}]
    assert (list((base_of(queue) / "staging").glob("*")), list(queue.fsck())) == ([], [])


@pytest.mark.parametrize("size", [1022, 1023])
@pytest.mark.parametrize("more", [{}, {"priority": 5}, pytest.param({"key": "k" * 200}, marks=pytest.mark.batched)])
def test_what_stands_beside_a_payload_does_not_count(
    queue_factory: QueueFactory, clock: ManualClock, size: int, more: dict[str, Any]
) -> None:
    queue = Queue(queue_factory(shards=1).path, clock=clock)
    queue.insert("x" * size, **more)
    queue.complete(queue.lease(1))
    for _ in range(2):
        assert readable(queue) == (["x" * size, *more.values()] if size == 1022 else [])
        clock.advance(LINGER_MS / 1000)
        queue.gc()
    assert leftovers(queue) == []


@pytest.mark.batched
@pytest.mark.parametrize("whole", [1, 1 << 30])
@pytest.mark.parametrize("smaller", [0, 10])
def test_a_setting_that_is_made_smaller_hides_at_once_and_gc_erases(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, whole: int, smaller: int
) -> None:
    monkeypatch.setattr(payloads, "WHOLE_BYTES", whole)
    queue = Queue(queue_factory(shards=1, keep_payloads=None).path, clock=clock)
    completed_in_file(queue, "secret, in a file", "short", b"\x00secret, bytes", leave=0)
    completed_in_file(queue, "secret, beside none", "secret, too")
    queue.insert("secret, alone", key="secret key")
    queue.insert("brief", key="k", priority=2)
    queue.complete(queue.lease(2))
    clock.advance(LINGER_MS / 1000)
    queue.gc()
    assert leftovers(queue) == []
    assert len(readable(queue)) == 10
    before = [queue.history(info.id) for info in queue.tasks("completed")]
    versions = {info.id: info.version for info in queue.tasks("completed")}
    queue.change_settings(keep_payloads=smaller)
    kept = ["short", "brief", "k", 2] if smaller else []
    assert sorted(map(str, readable(queue))) == sorted(map(str, kept))
    sizes = {path: path.stat().st_size for path in (base_of(queue) / "history").glob("*/*.jsonl")}
    report = queue.gc()
    assert report.payload_files_erased == (1 + 2 if whole == 1 else 1)
    assert [word for word in (b"secret", b"AHNlY3JldC") if word in on_disk(queue)] == []
    assert sorted(map(str, readable(queue))) == sorted(map(str, kept))
    assert {path: path.stat().st_size for path in sizes} == sizes, "streams remember how far they have read"
    assert [queue.history(info.id) for info in queue.tasks("completed")] == before
    assert {info.id: info.version for info in queue.tasks("completed")} == versions
    assert (queue.gc().payload_files_erased, list(queue.fsck())) == (0, [])
    assert queue.status().completed == 7


def test_a_setting_that_is_made_larger_shows_what_was_not_erased(queue_factory: QueueFactory) -> None:
    queue = queue_factory(shards=1)
    completed_in_file(queue, "short", "brief")
    queue.change_settings(keep_payloads=0)
    assert readable(queue) == []
    queue.change_settings(keep_payloads=100)
    assert readable(queue) == ["short", "brief"]
    queue.change_settings(keep_payloads=0)
    queue.gc()
    queue.change_settings(keep_payloads=100)
    assert readable(queue) == []


@pytest.mark.batched
@pytest.mark.parametrize("whole", [1, 1 << 30])
@pytest.mark.parametrize("act", ["finish", "gc"])
def test_whatever_step_it_dies_at_the_short_payloads_are_there_and_the_long_ones_hidden(
    queue_factory: QueueFactory, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, whole: int, act: str
) -> None:
    """Of a finish that dies after the task file went and before the history is written, the short ones may be lost."""
    monkeypatch.setattr(payloads, "WHOLE_BYTES", whole)
    given = [LONG, "short", "brief"]

    def build(number: int) -> Queue:
        queue = Queue(queue_factory(f"q{number}", shards=1, keep_payloads=None).path, clock=clock)
        if act == "gc":
            completed_in_file(queue, *given)
        queue.change_settings(keep_payloads=100)
        if act == "finish":
            queue.insert_many(given, batch_tasks=3)
        return queue

    def run(worker: Queue) -> object:
        return worker.gc() if act == "gc" else worker.complete(worker.lease(3))

    for where, queue in crashes(build, run, clock):
        other = Queue(queue.path, clock=clock)
        assert set(readable(other)) <= {"short", "brief"}, where
        clock.advance(10_000)
        drain(other, clock)
        other.gc()
        may_be_lost = act == "finish" and whole > 1
        assert sorted(readable(other)) in ([["brief", "short"], []] if may_be_lost else [["brief", "short"]]), where
        clock.advance(2 * DAY_S)
        other.gc()
        assert b"secret" not in on_disk(other), where
        assert leftovers(other) == [], where
        assert {one.kind for one in other.fsck()} <= {"repeated-history", "torn-line"}, where


def test_a_process_that_waited_for_a_file_that_was_replaced_appends_nothing_to_it(
    queue_factory: QueueFactory, tmp_path: Path
) -> None:
    """Else the line of a finished batch would go with the old file."""
    fs: Filesystem = queue_factory().store.fs
    path = tmp_path / "file"
    with path.open("ab+", buffering=0) as file:
        path.unlink()
        with pytest.raises(FileNotFoundError):
            Journal(fs, str(path), file.fileno()).append(b"line\n")


def test_on_a_network_mount_the_history_of_today_is_erased_tomorrow(
    queue_factory: QueueFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock(time.time())  # on such a mount the file server's clock counts, too
    queue = Queue(queue_factory(shards=1, keep_payloads=None).path, clock=clock)
    completed_in_file(queue, "secret", "secret, too")
    queue.change_settings(keep_payloads=0)
    monkeypatch.setattr(queue.store.fs, "shared", True)
    report = GcReport()
    payload_erasure.erase(queue.store, report)
    assert (report.payload_files_erased, readable(Queue(queue.path))) == (0, [])
    clock.advance(DAY_S)
    payload_erasure.erase(queue.store, report)
    assert report.payload_files_erased == 1
    assert b"secret" not in on_disk(queue)


def test_a_record_within_a_result_is_no_record(queue_factory: QueueFactory) -> None:
    """Its text stays, whatever it looks like."""
    queue = queue_factory(shards=1, keep_payloads=None)
    queue.insert_many(["secret", "secret"], batch_tasks=2)
    result = {"op": "insert", "at": 1, "id": "a", "first": 0, "payload": LONG}
    for task in queue.lease(2):
        task.complete([result, json.dumps(result)])
    queue.change_settings(keep_payloads=0)
    assert queue.gc().payload_files_erased == 1
    assert [one.result for one in queue.results()] == [[result, json.dumps(result)]] * 2


def test_a_cut_record_is_not_cut_again() -> None:
    """What it says of its length tells where the records behind it stood."""
    line = record_lines.insert(1, "a", 0, task_file.encode_task("x" * 100, 1000))[:-1]
    short = movements.cut(line, 0)
    assert movements.cut(short, 0) == movements.cut(short, 0, shorten=False) == short
    in_place = movements.cut(line, 0, shorten=False)
    assert (len(in_place), json.loads(in_place)["cut"]) == (len(line), 0)


def test_a_payload_that_an_update_gave_is_kept_by_its_own_length(tmp_path: Path, clock: ManualClock) -> None:
    """If it is not kept, the one before is not shown in its place."""
    group = Group.create(tmp_path / "g")
    refs = [group["q"].insert("first") for _ in range(2)]
    for ref, new in zip(refs, ("second", {"long": LONG}), strict=True):
        with group.update() as update:
            update.replace(group["q"].task(ref.id), new)
    queue = Queue(tmp_path / "g" / "q", clock=clock)
    queue.complete(queue.lease(2))
    clock.advance(60)
    for _ in range(2):
        assert readable(queue) == ["second"]
        assert [queue.retry_completed(ids=[refs[1].id]).unkept] == [1]
        queue.gc()
    assert leftovers(queue) == []
    assert b"secret" not in on_disk(queue)
    replaced = [move.op for move in queue.history(refs[1].id)]
    assert replaced == ["insert", "replace", "lease", "complete"]
    queue.change_settings(keep_payloads=0)
    queue.gc()
    assert b"second" not in on_disk(queue)
    assert [move.op for move in queue.history(refs[0].id)] == replaced
    assert list(queue.fsck()) == []
    [path] = (base_of(queue) / "history").glob("*/*.jsonl")
    for line in path.read_bytes().split(b"\n")[:-1]:
        found = history.parse(line)
        assert found is not None
        assert [record["payload"] is history.NOT_KEPT for _, record in found[1] if record["op"] == "replace"] == [
            True, True,
        ]  # fmt: skip


def test_dead_letters_have_their_payloads(queue_factory: QueueFactory) -> None:
    """They are needed to retry them."""
    queue = queue_factory(shards=1, max_attempts=1, keep_payloads=0, keep_history=False)
    queue.insert_many([LONG, "other"], batch_tasks=2)
    for task in queue.lease(2):
        task.fail("broken") if task.payload == LONG else task.complete()
    [letter] = queue.dead()
    assert (letter.payload, queue.task(letter.id).payload) == (LONG, LONG)
    assert [result.payload for result in queue.results()] == [LONG]
    assert queue.retry_dead() == 1
    assert queue.lease(1)[0].payload == LONG


@pytest.mark.parametrize("end", ["complete", "cancel"])
def test_a_queue_without_a_history_shows_nothing_of_what_has_ended(
    queue_factory: QueueFactory, clock: ManualClock, end: str
) -> None:
    queue = Queue(queue_factory(shards=1, keep_history=False).path, clock=clock)
    queue.insert_many(["first", "second"], batch_tasks=2)
    [done] = queue.lease(1)
    if end == "complete":
        done.complete({"secret": 1})
    else:
        done.release()
        assert queue.cancel(done.id) == 1
    state = "completed" if end == "complete" else "cancelled"
    assert [*queue.tasks(state), *queue.results()] == []
    for look in (queue.task, queue.history):
        with pytest.raises(TaskNotFound, match="--no-history"):
            look(done.id)
    assert queue.retry_completed().as_dict() == queue_factory("empty").retry_completed().as_dict()
    assert queue.status().completed == (end == "complete")
    [left] = queue.tasks()
    assert [move.op for move in queue.history(left.id)] == ["insert"]
    shown = [
        row
        for view in ("movements", "history", "attempts")
        for shard in ["00"]
        for row in spark_views.BY_SHARD[view](queue.store, shard)  # type: ignore[arg-type]
    ]
    assert "secret" not in str(shown)
    assert not any(done.id in map(str, row) for row in shown)
    index = done.index
    ranges = [part for row in shown for part in (row[4] if isinstance(row[4], list) else [])]
    assert not any(part["first"] <= index < part["end"] for part in ranges)
    queue.complete(queue.lease(1))
    clock.advance(10)
    queue.gc()
    assert leftovers(queue) == []
    assert b"secret" not in on_disk(queue)


@pytest.mark.batched
def test_a_lease_that_has_completed_its_task_is_told_so_all_the_same(queue_factory: QueueFactory) -> None:
    """Else a worker would call lost what its command has completed by itself."""
    queue = queue_factory(shards=1, keep_history=False)
    queue.insert_many(["first", "second"], batch_tasks=2)
    tasks = queue.lease(2)
    tasks[0].complete()
    assert [outcomes.is_completed_by(queue.store, task.token) for task in tasks] == [True, False]
    from fsqueue.worker.settling import own_outcome

    assert [own_outcome(task) for task in tasks] == ["completed", None]
    with pytest.raises(LeaseLost, match="already"):
        queue.attach(tasks[0].token)


def test_a_damaged_line_of_the_history_stays_as_it_is(
    queue_factory: QueueFactory, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    queue = queue_factory(shards=1, keep_payloads=None)
    completed_in_file(queue, "secret", "other")
    [path] = (base_of(queue) / "history").glob("*/*.jsonl")
    sound = path.read_bytes()
    damaged = b'{"batch":"x","tasks":"oops,"records":[{"op":"insert",]}\n'
    path.write_bytes(damaged + b"\0" * 70_000 + b"\n" + sound + b'{"torn')
    size = path.stat().st_size
    queue.change_settings(keep_payloads=0)
    queue.gc()
    content = path.read_bytes()
    assert (len(content), content.startswith(damaged), content.endswith(b'{"torn')) == (size, True, True)
    assert b"secret" not in content
    assert len(list(queue.tasks("completed"))) == 2


# -- what `gc` remembers of it -----------------------------------------------------------------------------------


def looked_into(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The days of the files of payloads and of the history that `gc` opens to erase."""
    found: list[str] = []
    act = Filesystem.look

    def look(fs: Filesystem, path: str, *args: Any) -> int:
        place = path.removeprefix(f"{base_of(queue)}/").split("/")
        if place[0] in ("payloads", "history"):
            found.append(f"{place[0]} {place[1]}")
        return act(fs, path, *args)

    with monkeypatch.context() as patched:
        patched.setattr(Filesystem, "look", look)
        payload_erasure.erase(queue.store, GcReport())
    return sorted(found)


@pytest.fixture
def at_noon() -> ManualClock:
    return ManualClock(10_000 * DAY_S + DAY_S / 2)


def over_days(queue_factory: QueueFactory, clock: ManualClock, days: int = 4) -> tuple[Queue, list[str]]:
    """A queue that has kept payloads on some days, and the days."""
    queue, found = Queue(queue_factory(shards=1, keep_payloads=None).path, clock=clock), []
    for _ in range(days):
        completed_in_file(queue, "secret, in a file", "secret, too")
        found.append(names.day_of(clock.now_ms()))
        clock.advance(DAY_S)
    return queue, found


@pytest.mark.parametrize("whole", [1, 1 << 30])
def test_a_second_look_reads_what_is_new_and_in_the_end_nothing(
    queue_factory: QueueFactory, at_noon: ManualClock, monkeypatch: pytest.MonkeyPatch, whole: int
) -> None:
    monkeypatch.setattr(payloads, "WHOLE_BYTES", whole)
    queue, days = over_days(queue_factory, at_noon)
    before = (queue.path / "queue.jsonl").read_bytes().count(b"\n")
    queue.change_settings(keep_payloads=10)
    assert {day[-10:] for day in looked_into(queue, monkeypatch)} == set(days)
    assert b"secret" not in on_disk(queue)
    completed_in_file(queue, "brief")
    today = names.day_of(at_noon.now_ms())
    other = Queue(queue.path, clock=at_noon)
    for _ in range(2):
        assert {day[-10:] for day in looked_into(other, monkeypatch)} == {days[-1], today}
    at_noon.advance(2 * DAY_S)
    assert looked_into(other, monkeypatch), "a process may have gone by the earlier setting for a while"
    completed_in_file(queue, "brief, too")
    for one in (other, Queue(queue.path, clock=at_noon)):
        assert looked_into(one, monkeypatch) == []
    assert (queue.path / "queue.jsonl").read_bytes().count(b"\n") == before + 3, "the setting, and two looks"
    queue.change_settings(keep_payloads=3)
    assert looked_into(queue, monkeypatch) != []
    assert readable(queue) == []


@pytest.mark.batched
def test_what_a_process_keeps_by_the_setting_before_is_erased(
    queue_factory: QueueFactory, at_noon: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It learns of the new one within seconds. The first look may come before that."""
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)
    queue, _ = over_days(queue_factory, at_noon, 2)
    queue.change_settings(keep_payloads=10)
    assert queue.gc().payload_files_erased == 2
    assert Queue(queue.path).store.queue_state.erased_at is not None
    keep = payloads._keep
    with monkeypatch.context() as patched:
        patched.setattr(payloads, "_keep", lambda locked, day, payload_bytes_max: keep(locked, day, None))
        completed_in_file(queue, "secret, by the setting before")
    assert b"secret" in on_disk(queue)
    assert readable(queue) == []
    assert queue.gc().payload_files_erased == 1
    assert b"secret" not in on_disk(queue)


@pytest.mark.parametrize("line", ["settings", "erased"])
def test_a_look_that_another_change_of_the_setting_overtakes_says_nothing(
    queue_factory: QueueFactory, at_noon: ManualClock, line: str
) -> None:
    """What it has looked at says nothing of what was kept by the setting in between."""
    queue, _ = over_days(queue_factory, at_noon, 1)
    queue.change_settings(keep_payloads=10)
    slow = Queue(queue.path, clock=at_noon)
    state = slow.store.queue_state
    at_noon.advance(5)
    for kept in (None, 10):
        queue.change_settings(keep_payloads=kept)
        at_noon.advance(5)
    record = erased_record(10, state.limited_at or 0, at_noon.now_ms())
    if line == "settings":
        payload_erasure._record(slow.store, state, record, set())
        assert b"erased" not in (queue.path / "queue.jsonl").read_bytes()
    else:  # it was written all the same: as by a process that had lost its lock
        with (queue.path / "queue.jsonl").open("ab") as file:
            file.write(record)
    assert Queue(queue.path).store.queue_state.erased_at is None


@pytest.mark.parametrize("way", ["a stray", "a busy file", "a second name"])
def test_a_look_that_could_not_read_all_is_repeated(
    queue_factory: QueueFactory, at_noon: ManualClock, monkeypatch: pytest.MonkeyPatch, way: str, tmp_path: Path
) -> None:
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1 if way == "a stray" else 1 << 30)
    monkeypatch.setattr(payload_erasure, "WAIT_S", 0.0)
    queue, _ = over_days(queue_factory, at_noon, 2)
    queue.change_settings(keep_payloads=0)
    path = min(base_of(queue).glob("payloads/*/*" if way == "a stray" else "history/*/*"))
    with contextlib.ExitStack() as stack:
        if way == "a stray":
            path.rename(tmp_path / "aside")
            path.symlink_to(tmp_path / "aside")
        elif way == "a busy file":
            stack.enter_context(Queue(queue.path, clock=at_noon).store.locked(str(path)))
        else:
            os.link(path, tmp_path / "second")
        for _ in range(2):
            payload_erasure.erase(queue.store, GcReport())
            assert Queue(queue.path).store.queue_state.erased_at is None
    if way == "a stray":
        path.unlink()
        (tmp_path / "aside").rename(path)
    elif way == "a second name":
        (tmp_path / "second").unlink()
    report = GcReport()
    payload_erasure.erase(queue.store, report)
    assert report.payload_files_erased >= 1
    assert Queue(queue.path).store.queue_state.erased_at == at_noon.now_ms()
    assert b"secret" not in on_disk(queue)


def test_whatever_step_a_look_dies_at_the_next_one_erases_all(
    queue_factory: QueueFactory, at_noon: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`erased` comes last: it is there only if nothing longer is."""
    monkeypatch.setattr(payloads, "WHOLE_BYTES", 1)

    def build(number: int) -> Queue:
        queue = Queue(queue_factory(f"q{number}", shards=1, keep_payloads=None).path, clock=at_noon)
        completed_in_file(queue, "secret, in a file", "short")
        queue.insert("secret, alone")
        queue.complete(queue.lease(1))
        queue.change_settings(keep_payloads=10)
        return queue

    for where, queue in crashes(build, lambda worker: payload_erasure.erase(worker.store, GcReport()), at_noon):
        is_recorded = Queue(queue.path).store.queue_state.erased_at is not None
        kept = [path.read_bytes() for part in ("payloads", "history") for path in base_of(queue).glob(f"{part}/*/*")]
        assert not (is_recorded and b"secret" in b"".join(kept)), where
        payload_erasure.erase(Queue(queue.path, clock=at_noon).store, GcReport())
        kept = [path.read_bytes() for part in ("payloads", "history") for path in base_of(queue).glob(f"{part}/*/*")]
        assert b"secret" not in b"".join(kept), where
        assert Queue(queue.path).store.queue_state.erased_at is not None, where
