"""Insert: streams become batches, and are durable and visible when insert returns."""

from __future__ import annotations

import errno
import os
import signal
import tracemalloc
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from fsqueue import InvalidArgument, InvalidTask, Queue, StorageError, StorageFull, Task, TaskTooLarge
from fsqueue.clock import ManualClock
from fsqueue.filesystem import Filesystem
from fsqueue.format import names
from fsqueue.format.layout import BATCH_BYTES_MAX
from fsqueue.protocol import encoding, insertion, single_inserts
from fsqueue.storage import staging
from tests.concurrency.trapped import trapped
from tests.support import QueueFactory, base_of, crashes, drain, failing, files_below, insert_in_file, task_file_names


def payloads(q: Queue) -> list[Any]:
    return sorted((info.payload for info in q.tasks()), key=repr)


def test_insert_returns_the_id_of_a_new_task(q: Queue) -> None:
    ref = q.insert({"a": 1})
    assert ref.inserted
    assert str(ref) == ref.id
    info = q.task(ref.id)
    assert (info.state, info.payload, info.attempt, info.worker) == ("waiting", {"a": 1}, 0, None)
    assert info.since == pytest.approx(q.store.clock.now_ms() / 1000)


def test_insert_many_says_how_many(q: Queue) -> None:
    assert q.insert_many([]) == 0
    assert q.insert_many(iter(range(7))) == 7
    assert q.insert_many((number for number in range(7, 10)), total=3) == 10 - 7
    assert payloads(q) == list(range(10))


def test_payloads_of_all_kinds_come_back(q: Queue) -> None:
    values: list[Any] = [None, True, 0, -1.5, "", "ü\n", [], {}, {"payload": {"b64": "x"}}, b"", b"\n\x00"]
    q.insert_many(values)
    assert payloads(q) == sorted(values, key=repr)
    leased = [task.payload for task in q.lease(len(values))]
    assert sorted(leased, key=repr) == sorted(values, key=repr)


@pytest.mark.batched
@pytest.mark.parametrize(
    ("tasks", "files", "appended"),
    [
        (2, 0, 2),
        (256, 0, 256),
        (257, 2, 0),
        (300, 2, 0),
        (1_000, 4, 0),
        (1_024, 4, 0),
        (1_030, 5, 0),
        (4_000, 16, 0),
        (5_000, 13, 0),
        (20_000, 20, 0),
    ],
)
@pytest.mark.parametrize("priority", [None, 3])
def test_a_job_is_spread_over_files_of_256_tasks_and_more_and_what_is_too_little_for_one_is_appended(
    q: Queue, tasks: int, files: int, appended: int, priority: int | None
) -> None:
    """Decisions 0008 and 0045: also when nobody said beforehand how large the job is."""
    if priority is not None and tasks > 1_030:
        return  # priorities are sorted within windows: other sizes
    assert q.insert_many(Task(number, priority=priority) for number in range(tasks)) == tasks
    made = task_file_names(q)
    assert [name.count >= 32 for name in made if not name.is_open] == [True] * files
    assert len(made) == files + bool(appended)
    assert sum(name.count for name in made if not name.is_open) == tasks - appended
    assert q.status().waiting == tasks


def on_network(queue: Queue, **given: Any) -> Queue:
    """Open a queue as if it lay on a mount that several hosts share."""
    return Queue(queue.path, filesystem=Filesystem(str(queue.path), shared=True), **given)


@pytest.mark.once
@pytest.mark.parametrize(
    ("tasks", "files", "appended"), [(10, 0, 10), (32, 0, 32), (33, 1, 1), (64, 2, 0), (100, 3, 4), (256, 8, 0)]
)
@pytest.mark.parametrize("priority", [None, 3])
def test_on_a_network_mount_a_small_stream_of_more_than_32_tasks_is_spread_over_files(
    queue: Queue, tasks: int, files: int, appended: int, priority: int | None
) -> None:
    """So that its workers do not wait for the lock of one batch (decision 0045)."""
    q = on_network(queue)
    assert q.insert_many(Task(number, priority=priority) for number in range(tasks)) == tasks
    made = task_file_names(q)
    assert [name.count for name in made if not name.is_open] == [32] * files
    assert len(made) == files + bool(appended)
    assert sorted(task.payload for task in q.lease(300)) == list(range(tasks))


@pytest.mark.once
def test_on_a_network_mount_a_queue_with_small_batches_has_files_of_these(queue_factory: QueueFactory) -> None:
    q = on_network(queue_factory(batch_tasks_max=10))
    q.insert_many(range(25))
    assert [name.count for name in task_file_names(q) if not name.is_open] == [10, 10]
    assert len(task_file_names(q)) == 3


@pytest.mark.once
@pytest.mark.parametrize(("shared", "most"), [(False, 256), (True, 32)])
def test_tasks_with_many_different_delays_take_as_few_appends_as_they_fit_into(
    queue: Queue, shared: bool, most: int
) -> None:
    appends = []

    def count(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step == "write" and "/movements/" in os.readlink(f"/proc/self/fd/{args[0]}"):
            appends.append(args[1].count(b'"op":"insert"'))
        return call(*args)

    q = trapped(queue, count, shared=shared)
    for tasks in (60, 300):
        appends.clear()
        assert q.insert_many(Task(number, delay_s=number) for number in range(tasks)) == tasks
        assert sum(appends) == tasks
        assert max(appends) <= most
        assert len(appends) <= -(-tasks // most) + 300 // encoding.GROUP_BATCHES_MAX
    assert {name.inserted is not None for name in task_file_names(q)} == {True}


def test_a_process_that_dies_within_a_small_stream_on_a_network_mount_leaves_its_first_tasks(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two files and an append: at each step of these."""
    for module in (encoding, insertion):
        monkeypatch.setattr(module, "FILE_TASKS_MIN", 4)
    left = set[int]()

    def build(number: int) -> Queue:
        queue = Queue.create(tmp_path / f"{number}", shards=1)
        on_network(queue, clock=clock).insert(-1)
        return queue

    for where, made in crashes(build, lambda q: q.insert_many(range(11)), clock, shared=True):
        q = on_network(made, clock=clock)
        there = sorted(info.payload for info in q.tasks())
        assert there == list(range(-1, len(there) - 1)), where
        left.add(len(there) - 1)
        assert set(drain(q, clock).values()) == {1}, where
        assert q.status().completed == len(there), where
    assert {0, 4, 8, 9, 11} <= left, "one of them dies within the append"


def test_a_process_that_dies_within_a_stream_on_a_local_disk_leaves_its_first_tasks(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four files in two rows, and an append: at each step of these."""
    monkeypatch.setattr(encoding, "LOCAL_FILE_TASKS_MIN", 4)
    monkeypatch.setattr(insertion, "FILE_TASKS_MIN", 4)
    monkeypatch.setattr(insertion, "APPEND_TASKS_MAX", 4)
    monkeypatch.setattr(insertion, "SHARD_FILES", 2)
    left = set[int]()

    def build(number: int) -> Queue:
        queue = Queue.create(tmp_path / f"{number}", shards=1)
        Queue(queue.path, clock=clock).insert(-1)
        return queue

    for where, made in crashes(build, lambda q: q.insert_many(range(19)), clock):
        q = Queue(made.path, clock=clock)
        there = sorted(info.payload for info in q.tasks())
        assert there == list(range(-1, len(there) - 1)), where
        left.add(len(there) - 1)
        assert set(drain(q, clock).values()) == {1}, where
        assert q.status().completed == len(there), where
    assert {0, 4, 8, 12, 16, 19} <= left


@pytest.mark.batched
@pytest.mark.parametrize("total", [None, 3, 1_000_000], ids=["no total", "too small a total", "too large a total"])
def test_a_stream_syncs_each_file_and_every_eighth_time_a_directory(queue: Queue, total: int | None) -> None:
    """From 257 tasks on. Before, a thousand tasks took more syncs than ten thousand."""
    synced: list[str] = []

    def note(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step == "fsync":
            synced.append(os.readlink(f"/proc/self/fd/{args[0]}"))
        return call(*args)

    q = trapped(queue, note)
    for tasks in (257, 500, 1_000, 2_000, 4_000, 10_000):
        synced.clear()
        assert q.insert_many(range(tasks), total=total) == tasks
        of_files = [path for path in synced if "/staging/" in path]
        made = task_file_names(q)
        shards = [path.rpartition("/")[2] for path in synced if path.rpartition("/")[0] == q.store.layout.tasks]
        assert len(of_files) == len(set(of_files)) == len(made)
        assert {q.store.layout.shard(name.batch) for name in made} == set(shards)
        assert len(shards) <= -(-len(made) // insertion.SHARD_FILES)
        assert len(made) <= max(2, -(-tasks // 256))
        q.purge()


@pytest.mark.batched
def test_batches_grow_with_a_stream_whose_end_is_not_known(q: Queue) -> None:
    """Large payloads: what may be held back in memory is too little to see how large the job is."""
    q.insert_many("x" * 3_000 for _ in range(6_000))
    sizes = [name.count for name in task_file_names(q)]
    assert 200 < sizes[0] <= 256
    assert max(sizes) > 280
    assert q.status().waiting == 6_000


def test_what_comes_slowly_is_not_held_back(q: Queue, clock: ManualClock) -> None:
    """Workers have something to do before the last of a slow stream has come: a second later, at the next task."""
    seen = []

    def stream(pause_s: float) -> Iterator[int]:
        for number in range(100):
            clock.advance(pause_s)
            seen.append(number - q.status().inserted)
            yield number

    q.insert_many(stream(0.1))
    assert max(seen) <= 2 / 0.1
    assert q.status().inserted == 100
    q.purge()
    seen.clear()
    q.insert_many(stream(5))
    assert max(seen) <= 1
    q.purge()
    seen.clear()
    q.insert_many(stream(0.001))
    assert max(seen) == 99, "what comes fast is inserted at once"


@pytest.mark.batched
def test_a_slow_stream_makes_few_files(q: Queue, clock: ManualClock) -> None:
    def stream() -> Iterator[Task]:
        for number in range(200):
            clock.advance(0.5)
            yield Task(number, priority=None if number % 3 else number)

    q.insert_many(stream())
    assert len(task_file_names(q)) == 1
    assert q.status().waiting == 200


@pytest.mark.batched
def test_a_wrong_total_of_a_small_stream_does_no_harm(q: Queue) -> None:
    q.insert_many(range(10), total=100_000)
    q.insert_many(range(300), total=1)
    assert [name.count for name in task_file_names(q) if not name.is_open] == [150, 150]
    assert q.status().waiting == 310


@pytest.mark.batched
def test_a_known_total_makes_batches_large_from_the_start(q: Queue) -> None:
    """So large payloads cannot all be held back. Without the total the first files have 256 tasks."""
    q.insert_many(("x" * 3_000 for _ in range(10_000)), total=10_000)
    assert max(name.count for name in task_file_names(q)[:5]) > 256
    q.purge()
    q.insert_many("x" * 3_000 for _ in range(10_000))
    assert max(name.count for name in task_file_names(q)[:5]) == 256


@pytest.mark.batched
def test_the_size_asked_for_is_kept_within_the_queue_s_limit(queue_factory: QueueFactory) -> None:
    q = queue_factory(batch_tasks_max=10)
    q.insert_many(range(25), batch_tasks=7)
    assert sorted(name.count for name in task_file_names(q)) == [4, 7, 7, 7]
    q.purge()
    q.insert_many(range(25), batch_tasks=500)
    assert sorted(name.count for name in task_file_names(q)) == [5, 10, 10]


@pytest.mark.batched
def test_a_batch_is_not_larger_than_a_mebibyte_but_a_task_may_be(q: Queue) -> None:
    q.insert_many(["x" * 400_000] * 4 + ["y" * 3_000_000] + ["z"], batch_tasks=100)
    sizes = {path: os.path.getsize(base_of(q) / "queue" / path) for path in files_below(base_of(q) / "queue")}
    assert sorted(name.count for name in task_file_names(q)) == [1, 1, 2, 2]
    assert sum(size > BATCH_BYTES_MAX for size in sizes.values()) == 1


def test_the_stream_is_published_as_it_comes(q: Queue) -> None:
    """Memory is bounded by a group of batches, whatever the stream's length."""
    seen = []

    def stream() -> Iterator[str]:
        for number in range(100):
            yield f"{number}" + "x" * 200_000
            seen.append(len(task_file_names(q)))

    q.insert_many(stream(), batch_tasks=1)
    assert all(read - there <= encoding.GROUP_BATCHES_MAX for read, there in enumerate(seen))
    assert seen[80] >= 16
    assert len(task_file_names(q)) == 100


def test_delays_make_tasks_available_later(q: Queue, clock: ManualClock) -> None:
    q.insert("a", delay_s=10)
    q.insert("b", available_at=clock.now_s + 20)
    q.insert_many(["c"], delay_s=30)
    q.insert_many([Task("d", delay_s=40), Task("e", available_at=clock.now_s + 50), Task("f")])
    assert q.status().as_dict() == {"inserted": 6, "waiting": 1, "delayed": 5, "leased": 0, "completed": 0, "dead": 0}
    assert [task.payload for task in q.lease(9)] == ["f"]
    begin = clock.now_s
    for payload, due in zip("abcde", (10, 20, 30, 40, 50), strict=True):
        clock.now_s = begin + due - 0.001
        assert q.lease() == []
        clock.now_s = begin + due
        assert [task.payload for task in q.lease(9)] == [payload]


def test_a_delay_of_the_call_is_for_tasks_that_have_none(q: Queue, clock: ManualClock) -> None:
    q.insert_many([Task("a"), "b", Task("c", delay_s=5)], delay_s=100)
    clock.advance(5)
    assert [task.payload for task in q.lease(9)] == ["c"]
    clock.advance(95)
    assert sorted(task.payload for task in q.lease(9)) == ["a", "b"]


@pytest.mark.parametrize("batched", [False, True])
def test_a_delay_of_the_call_means_the_same_for_one_task_and_for_many(
    q: Queue, clock: ManualClock, batched: bool
) -> None:
    for task in (Task("a"), Task("b", delay_s=5)):
        if batched:
            q.insert_many([task], delay_s=60)
        else:
            q.insert(task, delay_s=60)
    assert q.lease(9) == []
    clock.advance(5)
    assert [task.payload for task in q.lease(9)] == ["b"]
    clock.advance(55)
    assert [task.payload for task in q.lease(9)] == ["a"]


def test_a_time_of_the_call_is_for_a_task_that_has_none(q: Queue, clock: ManualClock) -> None:
    q.insert(Task("a"), available_at=clock.now_s + 60)
    q.insert(Task("b", available_at=clock.now_s + 5), available_at=clock.now_s + 60)
    clock.advance(5)
    assert [task.payload for task in q.lease(9)] == ["b"]
    clock.advance(55)
    assert [task.payload for task in q.lease(9)] == ["a"]


def test_a_time_in_the_past_is_at_once(q: Queue) -> None:
    q.insert("a", available_at=0)
    q.insert("b", available_at=1.5)
    assert len(q.lease(9)) == 2


@pytest.mark.batched
def test_tasks_of_one_time_share_a_batch_and_others_do_not(q: Queue) -> None:
    q.insert_many([Task(number, delay_s=number % 3) for number in range(9)], batch_tasks=10)
    assert [name.count for name in task_file_names(q)] == [3, 3, 3]


def test_more_times_than_batches_are_kept_open(q: Queue) -> None:
    total = 3 * encoding.OPEN_BATCHES_MAX
    assert q.insert_many((Task(number, delay_s=1 + number) for number in range(total)), batch_tasks=10) == total
    assert q.status().delayed == total


@pytest.mark.parametrize(
    "task",
    [
        Task(1, delay_s=-1),
        Task(1, delay_s=float("nan")),
        Task(1, delay_s="5"),  # type: ignore[arg-type]
        Task(1, delay_s=10**400),
        Task(1, available_at=-1),
        Task(1, available_at=float("inf")),
        Task(1, delay_s=1, available_at=5),
        Task(1, key=""),
        Task(1, priority="p" * 1025),
        Task(1, priority=1.5),  # type: ignore[arg-type]
        Task(1, priority=1 << 63),
        Task(float("nan")),
    ],
)
def test_an_invalid_task_is_named_by_its_place_and_those_before_it_are_kept(q: Queue, task: Task) -> None:
    with pytest.raises(InvalidTask) as caught:
        q.insert(task)
    assert caught.value.index is None
    with pytest.raises(InvalidTask, match=r"Task number 4|has no task \w+ yet") as caught:
        q.insert_many(["a", "b", "c", task, "d"])
    assert caught.value.index == 3
    assert caught.value.inserted == 3
    assert payloads(q) == ["a", "b", "c"]
    assert not files_below(base_of(q) / "staging")


def test_a_task_over_the_limit_is_refused(queue_factory: QueueFactory) -> None:
    q = queue_factory(task_bytes_max=100)
    q.insert("x" * 85)
    with pytest.raises(TaskTooLarge, match="accepts up to 100"):
        q.insert("x" * 86)
    with pytest.raises(TaskTooLarge, match="Task number 2") as caught:
        q.insert_many(["x", "x" * 100])
    assert (caught.value.index, caught.value.inserted) == (1, 1)


def test_a_stream_that_breaks_off_keeps_what_came_before(q: Queue) -> None:
    def stream() -> Iterator[int]:
        yield from range(40)
        raise KeyError("of the caller's own")

    with pytest.raises(KeyError, match="of the caller's own"):
        q.insert_many(stream())
    assert payloads(q) == sorted(range(40), key=repr)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"batch_tasks": 0}, "batch_tasks"),
        ({"batch_tasks": 1.5}, "batch_tasks"),
        ({"batch_tasks": True}, "batch_tasks"),
        ({"total": -1}, "total"),
        ({"total": "3"}, "total"),
        ({"delay_s": -1}, "delay_s"),
        ({"delay_s": "1"}, "delay_s"),
    ],
)
def test_wrong_arguments_are_refused_by_name_and_nothing_is_done(
    q: Queue, arguments: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidArgument, match=name):
        q.insert_many([1], **arguments)
    assert q.status().inserted == 0


@pytest.mark.parametrize("payloads", ["text", b"bytes", {"a": 1}])
def test_a_single_payload_is_no_stream(q: Queue, payloads: Any) -> None:
    with pytest.raises(InvalidArgument, match="use insert"):
        q.insert_many(payloads)


def test_nothing_is_visible_before_it_is_synced(queue: Queue, clock: ManualClock) -> None:
    """No loss: file, then its name in the shard, are durable before insert returns."""
    fs = Filesystem(str(queue.path), shared=False)
    events: list[str] = []
    fsync, rename = fs.fsync, fs.rename
    fs.fsync = lambda fd: (events.append(f"sync {os.readlink(f'/proc/self/fd/{fd}')}"), fsync(fd))[1]
    fs.rename = lambda one, two: (events.append(f"rename {two}"), rename(one, two))[1]  # type: ignore[method-assign]
    q = Queue(queue.path, filesystem=fs, clock=clock)
    q.insert("x")
    [name] = task_file_names(q)
    shard = q.store.layout.shard(name.batch)
    renamed = next(place for place, event in enumerate(events) if event.startswith("rename"))
    assert any(event == f"sync {q.store.layout.staging}/{name}" for event in events[:renamed])
    assert f"sync {q.store.layout.tasks}/{shard}" in events[renamed:]
    made = [f"sync {q.store.layout.tasks}", f"sync {q.store.layout.base}", f"sync {q.path}"]
    assert all(directory in events for directory in made), "so are the directories that were made for it"


def test_without_durability_nothing_is_synced(queue_factory: QueueFactory, clock: ManualClock) -> None:
    path = queue_factory(durability="none").path
    fs = Filesystem(str(path), shared=False)

    def fsync(fd: int) -> None:
        raise AssertionError("synced")

    fs.fsync = fsync
    q = Queue(path, filesystem=fs, clock=clock)
    q.insert_many(range(3))
    q.complete(q.lease(3))
    assert q.status().completed == 3


def test_the_bell_rings_for_every_group(q: Queue) -> None:
    before = q.store.doorbell.read()
    insert_in_file(q, 1)
    between = q.store.doorbell.read()
    q.insert_many([1], batch_tasks=1)
    assert len({before, between, q.store.doorbell.read()}) == 3
    assert len(between) == 16


def test_a_silent_bell_does_no_harm(q: Queue) -> None:
    doorbell = q.path / "doorbell"
    doorbell.unlink(missing_ok=True)
    doorbell.mkdir()
    q.insert(1)
    assert len(q.lease()) == 1


def test_an_insert_that_a_purge_overtakes_goes_into_the_new_generation(queue: Queue, clock: ManualClock) -> None:
    """The purge comes at the latest moment: after the rename, before the insert looks again."""
    fs = Filesystem(str(queue.path), shared=False)
    rename, purged = fs.rename, []

    def renaming(source: str, target: str) -> bool:
        done = rename(source, target)
        if "/queue/" in target and not purged:
            purged.append(1)
            Queue(queue.path, clock=clock).purge()
        return done

    fs.rename = renaming  # type: ignore[method-assign]
    q = Queue(queue.path, filesystem=fs, clock=clock)
    q.insert("x")
    assert purged
    assert q.generation == 2
    assert [task.payload for task in Queue(queue.path, clock=clock).lease(9)] == ["x"]


def test_a_lost_reply_does_not_insert_twice_although_somebody_was_quick_to_lease(
    queue: Queue, clock: ManualClock
) -> None:
    """The renaming happened, "not there" is answered, and the file has another name by the time the insert looks."""
    fs = Filesystem(str(queue.path), shared=False)
    rename, leased = fs.rename, []

    def renaming(source: str, target: str) -> bool:
        rename(source, target)
        leased.extend(Queue(queue.path, clock=clock).lease())
        return False

    fs.rename = renaming  # type: ignore[method-assign]
    ref = insert_in_file(Queue(queue.path, filesystem=fs, clock=clock), "x")
    assert [task.id for task in leased] == [ref.id]
    assert queue.status().inserted == 1


@pytest.mark.parametrize("step", ["create", "rename"])
def test_an_insert_whose_generation_vanishes_under_it_starts_over(queue: Queue, clock: ManualClock, step: str) -> None:
    fs = Filesystem(str(queue.path), shared=False)
    real, purged = getattr(fs, step), []

    def before(path: str, other: Any = False) -> Any:
        if "/staging/" in path and not purged:
            purged.append(1)
            Queue(queue.path, clock=clock).purge()
        return real(path, other)

    setattr(fs, step, before)
    q = Queue(queue.path, filesystem=fs, clock=clock)
    q.insert_many(["x", "y"])
    assert purged
    assert sorted(task.payload for task in Queue(queue.path, clock=clock).lease(9)) == ["x", "y"]
    q.gc()
    assert not base_of(q, 1).exists()


def test_shards_that_somebody_removed_are_made_again(q: Queue) -> None:
    insert_in_file(q, 1)
    q.lease()[0].complete()
    for directory in sorted((base_of(q) / "queue").glob("*")):
        directory.rmdir()
    (base_of(q) / "queue").rmdir()
    for number in range(3):
        insert_in_file(q, number)
    assert len(q.lease(9)) == 3


@pytest.mark.once
def test_a_shard_that_a_cleaner_removes_between_two_inserts_doubles_nothing(
    queue_factory: QueueFactory, clock: ManualClock
) -> None:
    q = Queue(queue_factory(shards=4).path, clock=clock)
    q.insert_many(range(64), batch_tasks=1)
    while tasks := q.lease(64):
        q.complete(tasks)
    (base_of(q) / "queue" / "02").rmdir()
    assert q.insert_many(range(64), batch_tasks=1) == 64
    assert sorted(payloads(q)) == list(range(64))


@pytest.mark.once
def test_a_second_try_publishes_only_what_the_first_did_not(
    queue: Queue, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    fs = Filesystem(str(queue.path), shared=False)
    q = Queue(queue.path, filesystem=fs, clock=clock)
    move, moved, synced = staging.publish_staged, list[str](), list[str]()

    def moving(store: Any, staged: Any) -> None:
        if len(moved) == 5:
            moved.append("the shard's directory vanished")
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), staged.path)
        moved.append(store.layout.shard(staged.name.batch))
        move(store, staged)

    sync = fs.sync_directory
    monkeypatch.setattr(staging, "publish_staged", moving)
    monkeypatch.setattr(fs, "sync_directory", lambda path: (synced.append(path), sync(path)))
    refs = q.insert_many(range(20), batch_tasks=1, refs=True)
    assert sorted(payloads(q)) == list(range(20))
    found = q.results_of(refs)
    assert [found[ref.id].payload for ref in refs] == list(range(20))
    del moved[5]
    assert {f"{base_of(q)}/queue/{shard}" for shard in moved} <= set(synced), "what the first try published is durable"
    assert not files_below(base_of(q) / "staging")


@pytest.mark.once
def test_references_to_a_hundred_thousand_tasks_take_less_than_a_kibibyte_each(q: Queue) -> None:
    count = 100_000
    tracemalloc.start()
    try:
        refs = q.insert_many(range(count), refs=True)
        taken, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken / count < 400
    assert peak / count < 1024
    some = refs[:: count // 50]
    found = q.results_of(some)
    assert [found[ref.id].payload for ref in some] == [*range(0, count, count // 50)]


@pytest.mark.once
def test_what_a_try_that_breaks_off_has_published_is_told(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    move, moved = staging.publish_staged, [0]

    def moving(store: Any, staged: Any) -> None:
        if moved[0] >= 5:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), staged.path)
        moved[0] += 1
        move(store, staged)

    monkeypatch.setattr(staging, "publish_staged", moving)
    with pytest.raises(StorageError) as caught:
        q.insert_many(range(20), batch_tasks=1)
    assert caught.value.inserted == 5
    assert payloads(q) == list(range(5))


@pytest.mark.parametrize("step", ["create", "write", "fsync", "rename"])
@pytest.mark.parametrize("skip", [0, 1])
def test_a_full_disk_is_reported_with_what_was_inserted(queue: Queue, clock: ManualClock, step: str, skip: int) -> None:
    fs = Filesystem(str(queue.path), shared=False)
    q = Queue(queue.path, filesystem=fs, clock=clock)
    q.insert("before")
    with failing(fs, step, after=skip), pytest.raises(StorageFull, match="Free space") as caught:
        q.insert_many(range(5), batch_tasks=1)
    there = [payload for payload in payloads(q) if payload != "before"]
    assert caught.value.inserted == len(there)
    assert there == list(range(len(there)))
    assert not files_below(base_of(q) / "staging")


def test_purged_again_and_again_an_insert_gives_up_with_an_error(queue: Queue, clock: ManualClock) -> None:
    fs = Filesystem(str(queue.path), shared=False)
    rename = fs.rename

    def renaming(source: str, target: str) -> bool:
        done = rename(source, target)
        if "/queue/" in target:
            Queue(queue.path, clock=clock).purge()
        return done

    fs.rename = renaming  # type: ignore[method-assign]
    with pytest.raises(StorageError, match="again and again"):
        Queue(queue.path, filesystem=fs, clock=clock).insert("x")
    assert Queue(queue.path).status().inserted == 0


def test_a_full_disk_says_how_many_are_in_and_that_a_repeat_would_insert_them_again(queue: Queue) -> None:
    fs = Filesystem(str(queue.path), shared=False)
    full = Queue(queue.path, filesystem=fs)
    with failing(fs, "create", after=128), pytest.raises(StorageFull) as caught:
        full.insert_many(range(300), batch_tasks=1)
    assert caught.value.inserted == 128 == queue.status().inserted
    text = str(caught.value)
    assert "and repeat" not in text
    assert "The first 128 tasks of this call are in the queue. Repeating the whole call would insert them again" in text
    assert "commit=NAME" in text
    queue.insert_many(range(128, 300))  # as it says
    assert sorted(task.payload for task in queue.lease(999)) == list(range(300))


@pytest.mark.parametrize(
    ("tasks", "at", "code", "says"),
    [
        (range(9), 0, errno.ENOSPC, "None of the tasks is in the queue: repeat the call"),
        (
            range(300),
            128,
            errno.EIO,
            "The first 128 tasks of this call are in the queue. Repeating the whole call would",
        ),
        (range(9), 0, errno.EIO, "None of the tasks is in the queue: repeat the call"),
        (
            [Task(n, delay_s=n) for n in range(200)],
            150,
            errno.ENOSPC,
            r"128 of the tasks .* need not be its first ones",
        ),
        (
            [Task(n, priority=-n) for n in range(200)],
            70,
            errno.ENOSPC,
            r"64 of the tasks .* need not be its first ones",
        ),
        ([Task(n, priority=-n) for n in range(200)], 0, errno.ENOSPC, "None of the tasks is in the queue"),
    ],
)
def test_what_an_error_in_a_stream_says(queue: Queue, tasks: Iterable[object], at: int, code: int, says: str) -> None:
    fs = Filesystem(str(queue.path), shared=False)
    full = Queue(queue.path, filesystem=fs)
    with failing(fs, "create", code, at), pytest.raises((StorageFull, StorageError), match=says) as caught:
        full.insert_many(tasks, batch_tasks=1)
    assert str(caught.value).count("epeat") == 1 + ("may be repeated" in str(caught.value))
    there = sorted(info.payload for info in queue.tasks())
    assert caught.value.new == len(there)
    assert caught.value.inserted == (None if "need not be" in says else len(there))
    assert caught.value.inserted is None or there == list(range(len(there)))


def test_a_wrong_argument_is_not_told_as_an_insert_that_broke_off(queue: Queue) -> None:
    with pytest.raises(InvalidArgument, match="delay_s") as caught:
        queue.insert_many([1, 2], delay_s=-1)
    assert "in the queue" not in str(caught.value)
    assert queue.status().inserted == 0


@pytest.mark.once
def test_tasks_inserted_one_by_one_share_a_batch_and_are_a_file_each_where_batches_have_one_task(
    queue_factory: QueueFactory,
) -> None:
    for queue, files in ((queue_factory("many"), ["0+"]), (queue_factory("one", batch_tasks_max=1), ["1", "1", "1"])):
        for n in range(3):
            queue.insert(n)
        assert [str(name)[47:-6] for name in task_file_names(queue)] == files
        assert queue.status().waiting == 3


def test_a_task_too_long_for_an_open_batch_is_a_file_of_its_own(queue: Queue) -> None:
    queue.insert("x" * single_inserts.TASK_BYTES_MAX)
    assert [name.tasks for name in task_file_names(queue)] == [1]
    assert [len(task.payload) for task in queue.lease(9)] == [single_inserts.TASK_BYTES_MAX]


@pytest.mark.once
def test_insert_many_of_one_task_appends_it_to_an_open_batch(queue: Queue, clock: ManualClock) -> None:
    for n in range(3):
        assert queue.insert_many([n]) == 1
        assert queue.insert_many(iter([Task(n, delay_s=60)]), total=1) == 1
    assert queue.insert_many([5, 6]) == 2
    assert [str(name)[47:-6] for name in task_file_names(queue)] == ["0+"]
    assert (queue.status().waiting, queue.status().delayed) == (5, 3)
    assert queue.insert_many([3], batch_tasks=1) == 1
    assert queue.insert_many([4], commit="c") == 1
    assert queue.insert_many(["x" * single_inserts.TASK_BYTES_MAX]) == 1
    assert len(task_file_names(queue)) == 4
    assert queue.status().waiting == 8


@pytest.mark.once
def test_a_small_stream_whose_tasks_do_not_fit_into_one_append_becomes_a_file(queue: Queue) -> None:
    """A task of more than 64 KiB takes those that come with it along; so do more than 256 KiB."""
    assert queue.insert_many(["x" * single_inserts.TASK_BYTES_MAX, "y", "z"]) == 3
    assert queue.insert_many(["x" * 60_000] * 5) == 5
    assert sorted(name.count for name in task_file_names(queue)) == [3, 5]
    assert queue.insert_many(["x" * 60_000] * 4) == 4
    assert [str(name)[47:-6] for name in task_file_names(queue)][2:] == ["0+"]


@pytest.mark.once
def test_one_task_of_a_stream_that_breaks_off_is_inserted_and_counted(queue: Queue) -> None:
    with pytest.raises(InvalidTask) as caught:
        queue.insert_many([1, float("nan")])
    assert caught.value.inserted == 1
    assert [str(name)[47:-6] for name in task_file_names(queue)] == ["0+"]
    assert [task.payload for task in queue.lease(9)] == [1]


@pytest.mark.once
@pytest.mark.parametrize("tasks", [1, 3])
@pytest.mark.parametrize(
    ("step", "code", "says"),
    [
        ("write", errno.ENOSPC, "None of the tasks is in the queue: repeat the call"),
        ("fsync", errno.ENOSPC, "Some of the tasks may be in the queue; repeating the call would insert those again"),
        ("fsync", errno.EIO, "Some of the tasks may be in the queue; repeating the call would insert those again"),
    ],
)
def test_what_an_error_says_of_a_small_stream(queue: Queue, step: str, code: int, says: str, tasks: int) -> None:
    fs = Filesystem(str(queue.path), shared=False)
    q = Queue(queue.path, filesystem=fs)
    q.insert_many([0])
    with failing(fs, step, code), pytest.raises((StorageFull, StorageError), match=says):
        q.insert_many(range(tasks))


class _Alarm(Exception):
    """What a user's signal handler raises."""


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise _Alarm


def _task_file(path: Path) -> names.TaskFileName:
    found = names.parse_task_file(path.name)
    assert found is not None
    return found


@pytest.mark.parametrize("place", ["before", "between", "behind"])
@pytest.mark.parametrize("priority", [None, 5])
def test_an_interruption_inserts_no_batch_that_is_half_made(
    q: Queue, monkeypatch: pytest.MonkeyPatch, place: str, priority: int | None
) -> None:
    """It may come between a batch's lines and their number: the name of its file would tell of another number."""

    def take(batch: encoding.Encoded, piece: bytes, tasks: int) -> None:
        is_hit = next(left) == 0
        if not is_hit or place != "before":
            batch.pieces.append(piece)
        if is_hit and place != "behind":
            signal.raise_signal(signal.SIGUSR1)
        batch.size, batch.tasks = batch.size + len(piece), batch.tasks + tasks
        if is_hit:
            signal.raise_signal(signal.SIGUSR1)

    left = iter(range(1, -100, -1))  # the second batch is hit
    monkeypatch.setattr(encoding.Encoded, "take", take)
    before = signal.signal(signal.SIGUSR1, _interrupt)
    try:
        with pytest.raises(_Alarm):
            q.insert_many((Task(number, priority=priority) for number in range(60)), batch_tasks=20)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert all(path.read_bytes().count(b"\n") == _task_file(path).count > 0 for path in base_of(q).glob("queue/*/*"))
