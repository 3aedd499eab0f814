"""Keys: a task is unique while it waits, is delayed or leased; then its key is free (design, section 4.17)."""

from __future__ import annotations

import enum
import glob
import logging
import os
import resource
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import orjson
import pytest

from fsqueue import (
    FsqueueError,
    InvalidArgument,
    InvalidTask,
    LockTimeout,
    Queue,
    StorageFull,
    Task,
    TaskRef,
    TaskTooLarge,
)
from fsqueue.filesystem import Filesystem
from fsqueue.format import names
from fsqueue.protocol import insertion, keyed_inserts, single_inserts
from fsqueue.storage import journals, keys
from tests.concurrency.books import clock_of_later
from tests.concurrency.processes import children
from tests.concurrency.trapped import DieAt, one_after_the_other, trapped
from tests.support import failing

QueueFactory = Callable[..., Queue]

pytestmark = pytest.mark.batched  # with one task a batch a queue takes no keys


def files_of(queue: Queue) -> list[str]:
    return glob.glob(f"{queue.store.layout.keys(0)}/*/*")


def lines_of(queue: Queue) -> list[dict[str, object]]:
    [path] = files_of(queue)
    return [orjson.loads(line) for line in Path(path).read_bytes().splitlines()]


def test_a_second_insert_gets_the_id_of_the_first(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    first = queue.insert({"a": 1}, key="k")
    again = queue.insert({"a": 2}, key="k")
    assert (first.inserted, again.inserted, again.id) == (True, False, first.id)
    assert queue.insert({"a": 2}, key="other").inserted
    assert queue.insert(Task({"a": 3}, key="k")).id == first.id
    assert queue.insert(Task({"a": 3}), key="k").id == first.id
    assert queue.insert(Task({"a": 3}, key="k"), key="k").id == first.id
    assert queue.status().waiting == 2


def test_a_key_is_known_with_the_task(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    ref = queue.insert("x", key="k")
    assert queue.task(ref.id).key == "k"
    [task] = queue.lease()
    assert (task.payload, task.key) == ("x", "k")


@pytest.mark.parametrize("end", ["complete", "bury", "cancel"])
def test_a_key_is_free_when_its_task_has_ended(queue_factory: QueueFactory, end: str) -> None:
    queue = queue_factory()
    first = queue.insert("x", key="k")
    if end == "cancel":
        queue.cancel([first.id])
    else:
        [task] = queue.lease()
        assert not queue.insert("y", key="k").inserted  # leased: not free
        task.complete() if end == "complete" else task.bury("hopeless")
    second = queue.insert("y", key="k")
    assert second.inserted
    assert second.id != first.id


def test_a_key_stays_taken_while_its_task_is_delayed_released_or_failed(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    first = queue.insert("x", key="k", delay_s=3600)
    assert queue.insert("y", key="k").id == first.id
    other = queue.insert("z", key="l")
    [task] = queue.lease()
    task.release()
    assert queue.insert("y", key="l").id == other.id
    [task] = queue.lease()
    task.fail("no luck", delay_s=60)
    assert queue.insert("y", key="l").id == other.id


def test_a_key_is_free_when_the_batch_of_its_task_is_gone(queue_factory: QueueFactory) -> None:
    for history in (True, False):
        queue = queue_factory(f"q{history}", keep_history=history)
        first = queue.insert("x", key="k")
        queue.complete(queue.lease())
        later = Queue(queue.path, clock=clock_of_later())
        later.gc()
        assert glob.glob(f"{queue.store.layout.logs}/*/*") == []
        second = later.insert("y", key="k")
        assert second.inserted
        assert second.id != first.id


# -- what takes no key --------------------------------------------------------------------------------


LONGEST = "x" * (single_inserts.TASK_BYTES_MAX - len('{"payload":"","key":"k"}\n'))
TOO_LONG = rf"takes {single_inserts.TASK_BYTES_MAX + 1:,} bytes with its key; a task with a key may take 65,536\. Store"


def leftovers(queue: Queue) -> list[str]:
    """Return what inserts have left: files of keys, task files, logs, and what is staged."""
    base = Path(queue.store.layout.base)
    return [str(path) for part in ("keys", "queue", "movements", "staging") for path in (base / part).rglob("*.*")]


def test_a_task_of_64_kib_may_have_a_key_and_a_longer_one_may_not(queue: Queue) -> None:
    with pytest.raises(TaskTooLarge, match=f"^The task {TOO_LONG}") as caught:
        queue.insert(LONGEST + "x", key="k")
    assert (caught.value.inserted, caught.value.new, caught.value.is_exact) == (0, 0, True)
    assert leftovers(queue) == []
    first = queue.insert(LONGEST, key="k")
    assert first.inserted
    assert queue.insert(LONGEST, key="k").id == first.id
    with pytest.raises(TaskTooLarge, match=TOO_LONG):
        queue.insert(Task(LONGEST + "x", key="k"))
    assert queue.insert(LONGEST + "x").inserted
    assert [task.key for task in queue.lease(9) if task.payload == LONGEST] == ["k"]


@pytest.mark.parametrize("number", [0, 1, 2, 3])
def test_of_a_stream_a_task_that_is_too_long_for_a_key_is_named_and_those_before_it_are_in(
    queue: Queue, number: int
) -> None:
    tasks: list[Any] = [0, 1, Task(2, key="a"), Task(3, key="b")]
    tasks[number:number] = [Task(LONGEST + "x", key="k", priority=1)]
    with pytest.raises(TaskTooLarge, match=f"^Task number {number + 1} takes 65,550 bytes with its key") as caught:
        queue.insert_many(tasks)
    assert (caught.value.index, caught.value.inserted, caught.value.new) == (number, number, number)
    assert sorted(info.payload for info in queue.tasks()) == [*range(number)]
    assert len(files_of(queue)) == max(0, number - 2)
    assert queue.insert_many(tasks[number + 1 :]) == 4 - number


def test_a_queue_of_one_task_a_batch_takes_no_keys(queue_factory: QueueFactory) -> None:
    queue = queue_factory(batch_tasks_max=1)
    with pytest.raises(InvalidTask, match=r"The task has a key, .* it has one task in each batch"):
        queue.insert("x", key="k")
    assert leftovers(queue) == []
    with pytest.raises(InvalidTask, match=r"^Task number 2 has a key, .* with a batch_tasks_max of 2 or more"):
        queue.insert_many([1, Task(2, key="k"), 3])
    assert [info.payload for info in queue.tasks()] == [1]
    assert files_of(queue) == []


def test_a_host_that_does_not_tell_its_boot_inserts_no_keys(queue: Queue) -> None:
    queue.store.domain = ""
    with pytest.raises(InvalidTask, match=r"The task has a key, .*boot_id cannot be read.* or leave the key out\."):
        queue.insert("x", key="k")
    assert leftovers(queue) == []
    assert queue.insert("x").inserted


# -- what is a key ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "given", "why"),
    [
        (Task("x", key="A"), {"key": "B"}, "has the key 'A', and the call says 'B'"),
        (Task("x", priority=1), {"priority": 2}, "has the priority 1, and the call says 2"),
        (Task("x", priority="1"), {"priority": 1}, "has the priority '1', and the call says 1"),
        (Task("x", priority=0), {"priority": ""}, "has the priority 0, and the call says ''"),
    ],
)
def test_a_task_and_the_call_may_not_say_different_things(
    queue: Queue, task: Task, given: dict[str, Any], why: str
) -> None:
    with pytest.raises(InvalidArgument, match=why):
        queue.insert(task, **given)
    assert queue.status().inserted == 0


def test_the_call_gives_what_a_task_has_not(queue: Queue) -> None:
    queue.insert(Task("x", delay_s=0), key="k", priority=0)
    [task] = queue.lease()
    assert (task.key, task.priority) == ("k", 0)


def test_a_purge_frees_all_keys(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    other = Queue(queue.path)
    first = queue.insert("x", key="k")
    other.purge()
    second = queue.insert("x", key="k")
    assert second.inserted
    assert second.id != first.id
    assert other.insert("x", key="k").id == second.id


def test_what_is_no_key_is_refused(queue_factory: QueueFactory) -> None:
    queue = queue_factory(task_bytes_max=2000)
    for key, why in (("", "empty"), ("x" * 1025, "1,024"), ("\ud800", "UTF-8"), (7, "text, not int"), (b"k", "bytes")):
        with pytest.raises(InvalidTask, match=why):
            queue.insert("x", key=key)  # type: ignore[arg-type]
        with pytest.raises(InvalidTask, match=f"Task number 2: .*{why}"):
            queue.insert_many([1, Task("x", key=key)])  # type: ignore[arg-type]
    with pytest.raises(TaskTooLarge):
        queue.insert("x" * 1500, key="k" * 600)
    assert files_of(queue) == []
    for key in ("\0", "/", "..", "é" * 512, "\n", '"'):
        assert queue.insert("x", key=key).inserted
        assert not queue.insert("x", key=key).inserted


class Text(str):
    pass


class Word(str, enum.Enum):  # noqa: UP042 - str() of a StrEnum is its value
    ONE = "one"


class Strange(str):
    """Whatever a subclass of str can answer otherwise than the text that it holds."""

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 7

    def __len__(self) -> int:
        return 0

    def __str__(self) -> str:
        return "other"

    __repr__ = __str__

    def __format__(self, form: str) -> str:
        return "../other"

    def encode(self, *args: Any, **options: Any) -> bytes:
        return b"other"


class Liar:
    """No text, though `isinstance` says so."""

    @property
    def __class__(self) -> type:
        return str


def test_a_key_is_the_text_that_a_subclass_holds_whatever_it_overrides(queue: Queue) -> None:
    assert queue.insert("x", key="k").inserted
    assert not queue.insert("y", key=Strange("k")).inserted
    assert not queue.insert(Task("y", key=Strange("k")), key="k").inserted
    assert queue.insert_many([Task("y", key=Strange("k")), Task("z", key=Strange("l"))]) == 1
    assert not queue.insert("y", key="l").inserted
    assert not queue.insert("y", key=Strange("l")).inserted
    assert sorted((type(task.key), task.key) for task in queue.lease(9)) == [(str, "k"), (str, "l")]
    assert [problem.kind for problem in queue.fsck()] == []


def test_what_only_says_that_it_is_a_text_is_no_key(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    for act in (
        lambda: queue.insert(1, key=Liar()),  # type: ignore[arg-type]
        lambda: queue.insert_many([Task(1, key=Liar())]),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidTask, match="a key is a text, not Liar"):
            act()
    assert queue.status().inserted == 0


@pytest.mark.parametrize("name", [Strange("one"), Word.ONE])
def test_a_commits_name_is_the_text_that_a_subclass_holds(queue_factory: QueueFactory, name: str) -> None:
    queue = queue_factory()
    assert queue.insert_many([1], commit=name) == 1
    assert queue.insert_many([1], commit="one") == 0
    assert type(queue.commit(name).name) is str


@pytest.mark.parametrize(("given", "key"), [(Text("k"), "k"), (Word.ONE, "one")])
def test_subclasses_of_text_are_keys_as_their_values(queue: Queue, given: str, key: str) -> None:
    assert queue.insert("x", key=given).inserted
    assert not queue.insert("again", key=key).inserted
    assert queue.insert_many([Task("again", key=given)]) == 0
    (task,) = queue.lease(5)
    assert (type(task.key), task.key) == (str, key)
    assert list(queue.fsck()) == []


def test_commits_refuse_keys(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    with pytest.raises(InvalidTask, match="named commit takes none"):
        queue.insert_many([1, Task("x", key="k")], commit="once")
    with pytest.raises(InvalidTask, match="named commit takes none"):
        queue.commit("once").stage([Task("x", key="k")])


def test_a_stream_inserts_tasks_with_keys_in_its_order_and_counts_the_new(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    tasks = [0, Task(1, key="a"), 2, Task(3, key="b"), Task(4, key="a"), Task(5, key="c", delay_s=60)]
    assert queue.insert_many(tasks) == 5
    assert sorted(info.payload for info in queue.tasks()) == [0, 1, 2, 3, 5]
    assert queue.insert_many(tasks) == 2
    assert queue.insert_many([Task(9, key="a")]) == 0


def test_an_error_in_a_stream_says_how_many_tasks_are_in_the_queue(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    queue.insert("x", key="a")
    with pytest.raises(InvalidTask) as bad:
        queue.insert_many([0, Task(1, key="a"), Task(2, key="b"), float("nan")])
    assert (bad.value.inserted, bad.value.new, bad.value.index) == (3, 2, 3)
    with keys.locked(queue.store, queue.store.layout, "held"), mock.patch.object(journals, "LOCK_TIMEOUT_S", 0.01):
        locked = mock.patch.object(keys.locked, "__defaults__", (0.01,))
        with locked, pytest.raises(LockTimeout) as busy:
            queue.insert_many([0, Task(1, key="c"), Task(2, key="held"), 3])
    assert busy.value.inserted == 2
    assert "The first 2 tasks of this call are in the queue" in str(busy.value)


MIXED = [0, Task(1, key="taken"), 2, 3, 4, Task(5, key="a"), Task(6, key="b"), 7, Task(8, key="a"), Task(9, key="c")]


@pytest.mark.parametrize("step", ["create", "write", "rename"])
@pytest.mark.parametrize("skip", range(8))
def test_what_is_in_the_queue_after_a_full_disk_is_what_came_first_of_the_stream(
    queue_factory: QueueFactory, step: str, skip: int
) -> None:
    path = queue_factory().path
    fs = Filesystem(str(path), shared=False)
    queue, full = Queue(path), Queue(path, filesystem=fs)
    queue.insert("x", key="taken")
    full.insert("y")
    try:
        with failing(fs, step, after=skip):
            full.insert_many(MIXED)
        done, new, text = len(MIXED), 8, ""
    except StorageFull as error:
        assert error.inserted is not None  # noqa: PT017 - with room for all there is no error
        assert error.is_exact  # noqa: PT017
        done, new, text = error.inserted, error.new, str(error)
    there = [n for n in range(done) if n not in (1, 8)]
    assert new == len(there)
    assert sorted(info.payload for info in queue.tasks() if isinstance(info.payload, int)) == there
    assert "commit" not in text
    full.insert_many(MIXED[done:])  # as it says
    assert sorted(info.payload for info in queue.tasks() if isinstance(info.payload, int)) == [0, *range(2, 8), 9]


def test_a_stream_that_is_cut_off_may_be_repeated_if_all_its_tasks_have_keys(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    queue.insert("x", key="a")
    tasks = [Task(n, key=key) for n, key in enumerate(("a", "b", "held", "c"))]
    with keys.locked(queue.store, queue.store.layout, "held"):
        locked = mock.patch.object(keys.locked, "__defaults__", (0.01,))
        with locked, pytest.raises(LockTimeout) as busy:
            queue.insert_many(tasks)
        with locked, pytest.raises(LockTimeout) as first:
            queue.insert_many([Task(1, key="held")])
        with locked, pytest.raises(LockTimeout) as mixed:
            queue.insert_many([1, Task(1, key="held")])
    assert (busy.value.inserted, busy.value.new) == (2, 1)
    assert "The first 2 tasks of this call are in the queue (the keys of 1 were taken). The call may" in str(busy.value)
    assert (first.value.inserted, first.value.new) == (0, 0)
    assert (mixed.value.inserted, mixed.value.new) == (1, 1)
    for error in (busy.value, first.value):
        assert str(error).endswith("The call may be repeated: it inserts no task whose key is taken.")
    for error in (busy.value, first.value, mixed.value):
        assert "repeat the call" not in str(error)
        assert "commit" not in str(error)
        assert "Some of the tasks may be" not in str(error)
    assert "would insert those without a key again: insert the rest only" in str(mixed.value)
    assert queue.insert_many(tasks) == 2


def test_a_task_without_a_key_does_not_wait_for_those_with_keys_that_come_after_it(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    waiting = []

    def stream() -> Iterator[Any]:
        yield from range(3)
        for n in range(3, 6):
            yield Task(n, key=str(n))
            waiting.append(queue.status().waiting)

    assert queue.insert_many(stream()) == 6
    assert waiting == [4, 4, 6]  # the second one that comes fast waits for the third: they go together


def test_an_error_of_the_callers_own_gets_the_numbers_of_this_call(queue_factory: QueueFactory) -> None:
    queue, other = queue_factory(), queue_factory("other")

    def stream() -> Iterator[Any]:
        yield Task(1, key="a")
        yield Task(2, key="a")
        other.insert_many([1, 2, 3, Task(4, key="")])

    with pytest.raises(InvalidTask) as caught:
        queue.insert_many(stream())
    assert (caught.value.inserted, caught.value.new) == (2, 1)


def test_many_keys_in_one_call_are_advised_against(
    queue_factory: QueueFactory, caplog: pytest.LogCaptureFixture
) -> None:
    queue = queue_factory(durability="none")
    with mock.patch.object(insertion, "KEYS_ADVISED", 3), caplog.at_level(logging.WARNING, "fsqueue"):
        queue.insert_many(Task(n, key=str(n)) for n in range(3))
        assert not caplog.messages
        queue.insert_many(Task(n, key=str(n)) for n in range(6))
    [message] = caplog.messages
    assert "--commit NAME" in message


def test_a_stopped_holder_is_waited_for_and_named(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    first = queue.insert("x", key="k")
    queue.complete(queue.lease())
    with keys.locked(queue.store, queue.store.layout, "k"):
        second = keys.locked(queue.store, queue.store.layout, "k", 0.01)
        with pytest.raises(LockTimeout, match=rf"last saw .*process {os.getpid()}") as busy, second:
            pass
        assert "not inserted" in str(busy.value)
    assert queue.insert("y", key="k").id != first.id


def test_a_line_whose_record_never_came_leaves_the_key_free(queue_factory: QueueFactory) -> None:
    queue = queue_factory()

    def die(*args: object) -> None:
        raise KeyboardInterrupt

    with mock.patch.object(queue._inserter, "_insert_into", die), pytest.raises(KeyboardInterrupt):
        queue.insert("x", key="k")
    assert len(lines_of(queue)) == 1
    assert queue.insert("y", key="k").inserted
    assert len(lines_of(queue)) == 2
    assert queue.status().waiting == 1


def test_a_damaged_last_line_does_not_count(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    first = queue.insert("x", key="k")
    [path] = files_of(queue)
    with open(path, "ab") as file:
        file.write(b'{"op":"key","at":1,"key":"k","ba')
    assert queue.insert("y", key="k").id == first.id
    queue.complete(queue.lease())
    assert queue.insert("y", key="k").inserted
    assert Path(path).read_bytes().count(b"~\n") == 1


def test_a_long_file_of_a_free_key_is_begun_anew(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    with mock.patch.object(keys, "BYTES_MAX", 500):
        for _ in range(20):
            assert queue.insert("x", key="k").inserted
            assert not queue.insert("x", key="k").inserted
            queue.complete(queue.lease())
            assert os.path.getsize(files_of(queue)[0]) < 800


def test_gc_removes_the_files_of_free_keys_after_a_day(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    queue.insert("x", key="free")
    queue.complete(queue.lease())
    kept = queue.insert("y", key="kept")
    assert queue.gc().keys_removed == 0
    for path in files_of(queue):
        os.utime(path, (1, 1))
    assert queue.gc().keys_removed == 1
    assert len(files_of(queue)) == 1
    assert queue.insert("y", key="kept").id == kept.id
    assert queue.insert("x", key="free").inserted


def test_an_empty_file_of_a_key_goes_and_a_damaged_one_stays(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    for key, content in (("empty", b""), ("torn", b"{"), ("damaged", b"{}\n")):
        queue.insert("x", key=key)
        path = queue.store.layout.key(names.key_digest(key), 0)
        Path(path).write_bytes(content)
        os.utime(path, (1, 1))
    assert queue.gc().keys_removed == 2


class Synced(Filesystem):
    """Notes which files are synced, in order."""

    def __init__(self, path: str) -> None:
        super().__init__(path, shared=False)
        self.told: list[str] = []
        plain = self.fsync

        def fsync(fd: int) -> None:
            found = os.readlink(f"/proc/self/fd/{fd}")
            self.told.append(
                found.removeprefix(f"{path}/").split("/", 1)[-1].split("/")[0] + "/" * os.path.isdir(found)
            )
            plain(fd)

        self.fsync = fsync


def test_the_key_is_on_disk_before_the_task(queue_factory: QueueFactory) -> None:
    path = queue_factory(shards=1).path
    queue = Queue(path, filesystem=Synced(str(path)))
    fs = queue.store.fs
    assert isinstance(fs, Synced)
    queue.insert("x", key="first")
    fs.told.clear()
    queue.insert("x", key="k")
    assert fs.told == ["keys/", "keys", "movements"]
    fs.told.clear()
    queue.insert("y", key="k")
    assert len(fs.told) <= 4
    queue.complete(queue.lease(2))
    fs.told.clear()
    queue.insert("y", key="k")
    assert fs.told[0] == "movements"  # the outcome of the first, else a power loss could bring that back
    assert fs.told[-2:] == ["keys", "movements"]
    assert len(fs.told) <= 4


def test_a_task_that_is_named_is_on_disk_and_synced_once(queue_factory: QueueFactory) -> None:
    path = queue_factory(shards=1).path
    first = Queue(path)
    with mock.patch.object(first._inserter, "_make_durable"):  # as one that has died before its sync
        ref = first.insert("x", key="k")
    queue = Queue(path, filesystem=Synced(str(path)))
    fs = queue.store.fs
    assert isinstance(fs, Synced)
    assert queue.insert("y", key="k").id == ref.id
    assert "movements" in fs.told
    first.insert("z")  # the log grows, behind the task
    fs.told.clear()
    assert queue.insert("y", key="k").id == ref.id
    assert fs.told == []
    queue.insert("z", key="l")
    fs.told.clear()
    assert not queue.insert("z", key="l").inserted  # it was synced when it was inserted
    assert fs.told == []


class Counted(Filesystem):
    """Counts the bytes that are read."""

    def __init__(self, path: str) -> None:
        super().__init__(path, shared=False)
        self.read_bytes = 0
        plain = self.pread

        def pread(fd: int, size: int, offset: int) -> bytes:
            data = plain(fd, size, offset)
            self.read_bytes += len(data)
            return data

        self.pread = pread


@pytest.mark.parametrize("is_own", [False, True])
def test_a_look_for_a_task_reads_what_is_new_in_the_log(queue_factory: QueueFactory, is_own: bool) -> None:
    path = queue_factory(durability="none").path
    queue = Queue(path, filesystem=Counted(str(path)))
    fs = queue.store.fs
    assert isinstance(fs, Counted)
    other = queue if is_own else Queue(path)
    refs = [other.insert("x" * 100, key=f"{number}") for number in range(300)]
    assert queue.insert("y", key="0") == TaskRef(refs[0].id, inserted=False)
    fs.read_bytes = 0
    for number, ref in enumerate(refs):
        assert queue.insert("y", key=f"{number}").id == ref.id
    assert fs.read_bytes < 300 * 300  # the files of the keys; the log has more than that
    other.complete(other.lease(150))
    fs.read_bytes = 0
    assert [queue.insert("y", key=f"{number}").inserted for number in range(300)].count(True) == 150
    assert fs.read_bytes < 300 * 1500


def test_a_log_that_another_process_has_locked_is_read_without_its_lock(queue_factory: QueueFactory) -> None:
    queue = queue_factory(durability="none")
    ref = queue.insert("x", key="k")
    path = queue.store.layout.log(names.parse_task_id(ref.id)[0])
    fs = Filesystem(str(queue.path), shared=False)
    fd = fs.open_append(path)
    assert fs.try_lock(fd)
    try:
        assert queue.insert("y", key="k").id == ref.id
        assert Queue(queue.path).insert("y", key="k").id == ref.id
    finally:
        fs.unlock(fd)
        fs.close(fd)


def test_a_task_whose_log_a_cleaner_has_removed_does_not_keep_its_key(queue_factory: QueueFactory) -> None:
    queue = queue_factory(durability="none")
    ref = queue.insert("x", key="k")
    os.unlink(queue.store.layout.log(names.parse_task_id(ref.id)[0]))
    assert queue.insert("y", key="k").inserted


def test_a_file_of_a_key_with_a_second_name_is_neither_waited_for_nor_written(
    queue_factory: QueueFactory, tmp_path: Path
) -> None:
    queue = queue_factory()
    queue.insert("x", key="k")
    queue.complete(queue.lease())
    [path] = files_of(queue)
    elsewhere = tmp_path / "elsewhere"
    os.link(path, elsewhere)
    before = elsewhere.read_bytes()
    with pytest.raises(FsqueueError, match="second name"):
        queue.insert("y", key="k")
    fs = Filesystem(str(tmp_path), shared=False)
    fd = fs.open_append(str(elsewhere))
    assert fs.try_lock(fd)
    try:
        with pytest.raises(FsqueueError, match="second name"):
            queue.insert("y", key="k")
    finally:
        fs.unlock(fd)
        fs.close(fd)
    assert elsewhere.read_bytes() == before


@pytest.mark.slow
@pytest.mark.parametrize("is_used", [False, True])
def test_an_inserter_killed_at_every_step_leaves_one_task_at_most(queue_factory: QueueFactory, is_used: bool) -> None:
    step = 0
    while True:
        step += 1
        queue = queue_factory(f"q{step}", shards=1)
        if is_used:
            queue.insert("before", key="k")
            queue.complete(queue.lease())

        def live(queue: Queue = queue, step: int = step) -> None:
            trap = DieAt(step)
            mine = trapped(queue, trap)
            trap.armed = True
            mine.insert("x", key="k")

        with children((live,)) as [child]:
            status = child.wait()
        assert status in (0, -signal.SIGKILL), child.report()
        living = [info.id for info in queue.tasks() if info.key == "k" and info.state != "completed"]
        assert len(living) <= 1, f"step {step}"
        ref = Queue(queue.path).insert("after", key="k")
        if living:
            assert (ref.id, ref.inserted) == (living[0], False)
        [task] = queue.lease(5)
        assert (task.id, task.key) == (ref.id, "k")
        task.complete()
        assert queue.insert("again", key="k").inserted
        if status == 0:
            assert living
            break
    assert step > 10


def test_errors_are_the_packages_own(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    queue.delete()
    with pytest.raises(FsqueueError):
        queue.insert("x", key="k")


def test_a_key_and_a_priority(queue: Queue) -> None:
    queue.insert("last")
    ref = queue.insert(Task("x", key="k", priority=1))
    assert not queue.insert("x", key="k", priority=0).inserted
    assert queue.insert_many([Task("first", key="l", priority=0), Task("again", key="k", priority=0)]) == 1
    found = {info.payload: (info.key, info.priority) for info in queue.tasks()}
    assert found == {"last": (None, None), "x": ("k", 1), "first": ("l", 0)}
    assert ref.inserted


def test_a_dead_letter_that_is_retried_has_no_key(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    queue.insert("x", key="k")
    [task] = queue.lease()
    task.bury("hopeless")
    second = queue.insert("y", key="k")
    assert second.inserted
    assert queue.retry_dead() == 1
    assert {(info.payload, info.key) for info in queue.tasks() if info.state == "waiting"} == {("x", None), ("y", "k")}
    assert list(queue.fsck()) == []
    assert queue.insert("z", key="k").id == second.id


# -- several together ---------------------------------------------------------------------------------


def keyed(*numbers: int) -> list[Task]:
    return [Task(number, key=f"k{number}") for number in numbers]


def test_several_tasks_are_inserted_together_with_their_names_then_their_lines_then_one_log_synced(
    queue_factory: QueueFactory,
) -> None:
    path = queue_factory(shards=1).path
    queue = Queue(path, filesystem=Synced(str(path)))
    fs = queue.store.fs
    assert isinstance(fs, Synced)
    fs.at_once = one_after_the_other
    queue.insert("x", key="first")
    fs.told.clear()
    assert queue.insert_many(keyed(1, 2, 3, 4)) == 4
    assert fs.told == ["keys/", *["keys"] * 4, "movements"]
    fs.told.clear()
    assert queue.insert_many(keyed(1, 2, 3, 4)) == 0
    assert fs.told == []
    queue.complete(queue.lease(9))
    fs.told.clear()
    assert queue.insert_many(keyed(1, 2, 3, 4)) == 4
    assert fs.told == ["movements", *["keys"] * 4, "movements"]  # first, that the others have ended


def test_what_is_inserted_together_is_told_in_its_order(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    first = queue.insert(2, key="k2")
    found = queue.insert_many([*keyed(1, 2, 3), Task(9, key="k1"), *keyed(4)], refs=True)
    assert [ref.inserted for ref in found] == [True, False, True, False, True]
    assert (found[1].id, found[3].id) == (first.id, found[0].id)
    assert sorted(info.payload for info in queue.tasks()) == [1, 2, 3, 4]
    assert {info.id: info.payload for info in queue.tasks()} == {
        found[0].id: 1, first.id: 2, found[2].id: 3, found[4].id: 4,
    }  # fmt: skip


def test_a_key_is_not_waited_for_while_others_are_locked(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    store = queue.store
    queue.insert("x", key="first")
    with keys.locked(store, store.layout, "k3"):
        with mock.patch.object(keys.locked, "__defaults__", (0.01,)), pytest.raises(LockTimeout) as busy:
            queue.insert_many(keyed(1, 2, 3, 4))
        assert (busy.value.inserted, busy.value.new) == (2, 2)
        for key in ("k1", "k2", "k4"):
            with keys.locked(store, store.layout, key, 0.0):  # nobody has it any more
                pass
    assert queue.insert_many(keyed(1, 2, 3, 4)) == 2


@pytest.mark.parametrize("skip", range(12))
def test_after_an_append_of_several_that_fails_an_error_says_which_are_in(
    queue_factory: QueueFactory, skip: int
) -> None:
    path = queue_factory().path
    fs = Filesystem(str(path), shared=False)
    queue, full = Queue(path), Queue(path, filesystem=fs)
    full.insert("x", key="k2")
    done, new = 5, 4
    try:
        with failing(fs, "write", after=skip):
            full.insert_many(keyed(1, 2, 3, 4, 5))
    except StorageFull as error:
        assert error.is_exact  # noqa: PT017 - with room for all there is no error
        assert error.inserted is not None  # noqa: PT017
        done, new = error.inserted, error.new or 0
    there = [info.payload for info in queue.tasks() if info.payload != "x"]
    assert sorted(there) == [number for number in range(1, done + 1) if number != 2]
    assert len(there) == new
    assert queue.insert_many(keyed(1, 2, 3, 4, 5)) == 4 - new
    assert list(queue.fsck()) == []


def test_more_than_go_together_are_all_inserted(queue_factory: QueueFactory) -> None:
    queue = queue_factory(durability="none", batch_tasks_max=50)
    numbers = range(3 * keyed_inserts.TOGETHER_MAX)
    assert queue.insert_many(Task(n, key=f"k{n}") for n in numbers) == len(numbers)
    assert queue.insert_many(keyed(*numbers, len(numbers))) == 1
    assert queue.insert_many(Task("x" * 9000, key=f"l{n}") for n in range(100)) == 100
    assert queue.status().waiting == len(numbers) + 101
    assert list(queue.fsck()) == []


@pytest.mark.slow
def test_an_inserter_of_several_killed_at_every_step_leaves_one_task_a_key_and_the_call_is_repeated(
    queue_factory: QueueFactory,
) -> None:
    step = 0
    while True:
        step += 1
        queue = queue_factory(f"q{step}", shards=1)
        queue.insert("before", key="k1")
        queue.complete(queue.lease())
        queue.insert(2, key="k2")

        def live(queue: Queue = queue, step: int = step) -> None:
            trap = DieAt(step)
            mine = trapped(queue, trap)
            trap.armed = True
            mine.insert_many(keyed(1, 2, 3, 4))

        with children((live,)) as [child]:
            status = child.wait()
        assert status in (0, -signal.SIGKILL), child.report()
        there = sorted(info.payload for info in queue.tasks() if info.state == "waiting")
        assert set(there) <= {1, 2, 3, 4}, f"step {step}"
        assert len(there) == len(set(there)), f"step {step}"
        assert Queue(queue.path).insert_many(keyed(1, 2, 3, 4)) == 4 - len(there), f"step {step}"
        assert sorted(task.payload for task in queue.lease(9)) == [1, 2, 3, 4]
        assert list(queue.fsck()) == []
        if status == 0:
            break
    assert step > 20


@pytest.mark.batched
def test_few_descriptors_make_small_groups(q: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that took all of them would leave none for the log of its batch, and be broken off each time."""
    sizes: list[int] = []
    insert_all = keyed_inserts.KeyedInserter.insert_all

    def counted(self: keyed_inserts.KeyedInserter, tasks: Any, *arguments: Any) -> None:
        sizes.append(len(tasks))
        insert_all(self, tasks, *arguments)

    monkeypatch.setattr(keyed_inserts.KeyedInserter, "insert_all", counted)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    assert q.insert_many([Task(number, key=f"{number}") for number in range(40)]) == 40
    assert sizes == [16, 16, 8]
