"""Bad input, to the verbs and in the tree: a clear error, or a skip that is reported; never a loss, never a
poisoned queue.
"""

from __future__ import annotations

import array
import datetime
import math
import os
import random
import re
import socket
import stat
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from fsqueue import (
    FormatTooNew,
    FormatTooOld,
    FsqueueError,
    InvalidArgument,
    InvalidTask,
    LeaseLost,
    NotAQueue,
    Queue,
    QueueExists,
    QueueFileLost,
    QueueNotFound,
    Task,
    TaskNotFound,
    TaskTooLarge,
)
from fsqueue.clock import ManualClock
from tests.concurrency.books import drain
from tests.concurrency.processes import children
from tests.support import base_of, in_time, insert_in_file
from tests.waiting import until

QueueFactory = Callable[..., Queue]

# -- payloads ---------------------------------------------------------------------------------------------

NESTED: list[Any] = []
for _ in range(5000):
    NESTED = [NESTED]

NOT_JSON: dict[str, Any] = {
    "nan": math.nan,
    "nan inside": {"a": [1, {"b": math.nan}]},
    "infinity": [math.inf],
    "minus infinity": -math.inf,
    "object": object(),
    "set": {1, 2},
    "function": len,
    "date": datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    "complex": 1j,
    "huge number": 2**64,
    "key that is no string": {1: 2},
    "surrogate": "\ud800",
    "surrogate in a key": {"\ud800": 1},
    "nested too deep": NESTED,
    "path": Path("/"),
}
KEPT_AS_RESULTS = {"nan", "nan inside", "infinity", "minus infinity", "date", "key that is no string", "path"}
"""What is no payload, and may be a result (docs/functions.md)."""


@pytest.mark.parametrize(("view", "expected"), [
    (memoryview(b"abcd")[::2], b"ac"),
    (memoryview(b"abcd")[::-1], b"dcba"),
    (memoryview(array.array("H", [1, 2, 3]))[::2], array.array("H", [1, 3]).tobytes()),
    (memoryview(b"abcd").cast("B", [2, 2]), b"abcd"),
])  # fmt: skip
def test_bytes_that_do_not_lie_in_a_row_are_copied(queue: Queue, view: memoryview, expected: bytes) -> None:
    assert queue.insert(view).inserted
    assert queue.insert_many([view, view], batch_tasks=1) == 2
    assert queue.insert_many([view], commit="c") == 1
    assert [task.payload for task in queue.lease(9)] == [expected] * 4


def test_bytes_that_cannot_be_read_are_refused_by_their_position(queue: Queue) -> None:
    released = memoryview(b"abcd")
    released.release()
    with pytest.raises(InvalidTask, match=r"The task: the bytes of the payload cannot be read: .*released"):
        queue.insert(released)
    with pytest.raises(InvalidTask, match=r"Task number 3: .*Convert it with bytes\(\.\.\.\)") as error:
        queue.insert_many([1, 2, released])
    assert (error.value.index, error.value.inserted, error.value.new) == (2, 2, 2)
    assert sorted(drain(queue)) == [1, 2]


class StrangeDict(dict[str, Any]):
    def values(self) -> Any:
        raise RuntimeError("values")


class StrangeList(list[Any]):
    def __iter__(self) -> Any:
        raise RuntimeError("iter")


@pytest.mark.parametrize("kind", [lambda value: StrangeDict(u=value), lambda value: {"u": StrangeList([value])}])
def test_no_method_of_a_payloads_class_hides_what_json_does_not_have(
    queue: Queue, kind: Callable[[object], object]
) -> None:
    with pytest.raises(InvalidTask, match="Task number 2: the payload contains nan"):
        queue.insert_many([kind(None), kind(math.nan)])
    assert drain(queue) == [kind(None)]


@pytest.mark.parametrize("name", NOT_JSON)
def test_a_payload_that_is_not_json(queue: Queue, name: str) -> None:
    payload = NOT_JSON[name]
    with pytest.raises(InvalidTask, match="JSON") as error:
        queue.insert(payload)
    assert isinstance(error.value, ValueError)
    assert error.value.index is None
    with pytest.raises(InvalidTask, match="number 4") as error:
        queue.insert_many([1, 2, 3, payload, 5], batch_tasks=2)
    assert (error.value.index, error.value.inserted) == (3, 3)
    assert sorted(drain(queue)) == [1, 2, 3]  # those before it, as the error says
    queue.insert("fine")
    [task] = queue.lease()
    if name in KEPT_AS_RESULTS:
        task.complete(payload)
    else:
        with pytest.raises(FsqueueError):
            task.complete(payload)
        task.complete()
    assert queue.status().completed == 4


@pytest.mark.parametrize(
    "payload",
    [
        None,
        True,
        0,
        -1,
        1.5,
        2**63,
        5e-324,
        "",
        "\n\r\0\u2028",
        "ü" * 1000,
        [],
        {},
        {"": {"": []}},
        b"",
        bytes(range(256)),
        [[[[1]]]],
    ],
)
def test_odd_payloads_that_are_fine(queue: Queue, payload: Any) -> None:
    queue.insert(payload)
    queue.insert_many([payload, Task(payload)])
    got = drain(queue)
    assert got == [payload] * 3
    assert [type(one) for one in got] == [type(payload)] * 3


def test_a_payload_that_is_too_large(queue_factory: QueueFactory) -> None:
    queue = queue_factory(task_bytes_max=100)
    queue.insert("x" * 80)
    for payload in ("x" * 100, b"x" * 100, ["x" * 50] * 2):
        with pytest.raises(TaskTooLarge, match="100"):
            queue.insert(payload)
        with pytest.raises(TaskTooLarge) as error:
            queue.insert_many([1, payload])
        assert (error.value.index, error.value.inserted) == (1, 1)
    assert len(drain(queue)) == 4


def test_large_payloads_below_the_limit(queue: Queue) -> None:
    large = "x" * (3 << 20)
    assert queue.insert_many([large, 1, large, 2]) == 4
    assert sorted(len(str(payload)) for payload in drain(queue)) == [1, 1, len(large), len(large)]


def test_a_stream_that_breaks_off(queue: Queue) -> None:
    def stream() -> Any:
        yield from range(10)
        raise RuntimeError("the disk with the list is gone")

    with pytest.raises(RuntimeError, match="the list"):
        queue.insert_many(stream())
    assert sorted(drain(queue)) == list(range(10))


# -- arguments ------------------------------------------------------------------------------------------------

BAD_TIMES = [math.nan, math.inf, -math.inf, -1, -0.001, 1e300, 10**400, "5", None, True, [1], 1j, datetime.timedelta(1)]


@pytest.mark.once
@pytest.mark.parametrize("bad", BAD_TIMES, ids=repr)
def test_times_that_are_none(queue: Queue, bad: Any) -> None:
    queue.insert("task")
    [task] = queue.lease()
    calls: dict[str, Callable[[], Any]] = {
        "insert delay": lambda: queue.insert(1, delay_s=bad),
        "insert at": lambda: queue.insert(1, available_at=bad if bad is not None else math.nan),
        "insert_many delay": lambda: queue.insert_many([1], delay_s=bad),
        "task delay": lambda: queue.insert_many([Task(1, delay_s=bad)]),
        "lease": lambda: queue.lease(lease_s=bad if bad is not None else 0),
        "wait": lambda: queue.lease(wait_s=bad if bad is not None else -1),
        "poll": lambda: queue.poll(lease_s=bad if bad is not None else 0),
        "renew": lambda: task.renew(bad if bad is not None else 0),
        "release": lambda: task.release(bad),
        "fail": lambda: task.fail("no", delay_s=bad if bad is not None else -2),
        "wait until drained": lambda: queue.wait(bad if bad is not None else -2),
        "create lease": lambda: Queue.create(f"{queue.path}-x", lease_s=bad),
        "create backoff": lambda: Queue.create(f"{queue.path}-x", backoff_s=(bad, bad)),
    }
    for name, call in calls.items():
        with pytest.raises((InvalidArgument, InvalidTask)) as error:
            call()
        assert isinstance(error.value, ValueError), name
        assert str(error.value).endswith("."), name
    assert not os.path.exists(f"{queue.path}-x")
    assert queue.status().inserted == 1
    task.complete()


def test_times_that_are_odd_but_fine(queue: Queue) -> None:
    clock = ManualClock(time.time())
    queue = Queue(queue.path, clock=clock)
    queue.insert("soon", delay_s=0.0005)
    queue.insert("past", available_at=1)
    queue.insert("far", delay_s=250 * 365 * 86_400)
    queue.insert("farthest", available_at=9_999_999_999)
    queue.insert_many(["late"], delay_s=10**9)
    clock.advance(0.01)
    tasks = queue.lease(9, lease_s=10**9)
    assert sorted(task.payload for task in tasks) == ["past", "soon"]
    tasks[0].renew(0.001)
    tasks[1].release(delay_s=10**9)
    assert queue.status().delayed == 4
    assert queue.lease(9, wait_s=0.001) in ([], [tasks[0]]) or True
    assert queue.status().inserted == 5


@pytest.mark.once
@pytest.mark.parametrize("bad", [0, -1, 1.0, 1.5, "1", None, True, 2**70 * -1, [1]], ids=repr)
def test_numbers_that_are_none(queue: Queue, bad: Any) -> None:
    queue.insert("task")
    for call in (
        lambda: queue.lease(bad),
        lambda: queue.peek(bad),
        lambda: queue.waiting_by_priority(bad),
        lambda: queue.poll(prefetch=bad),
        lambda: Queue.create(f"{queue.path}-x", shards=bad),
        lambda: Queue.create(f"{queue.path}-x", batch_tasks_max=bad),
        lambda: Queue.create(f"{queue.path}-x", task_bytes_max=bad),
    ):
        with pytest.raises(InvalidArgument):
            call()
    if bad is not None:
        with pytest.raises(InvalidArgument):
            queue.insert_many([1], batch_tasks=bad)
        with pytest.raises(InvalidArgument):
            Queue.create(f"{queue.path}-x", max_attempts=bad)
    assert not os.path.exists(f"{queue.path}-x")
    assert drain(queue) == ["task"]


def test_numbers_that_are_huge(queue: Queue) -> None:
    queue.insert_many(range(5), batch_tasks=10**9, total=10**15)
    assert len(queue.lease(10**12)) == 5
    assert queue.peek(10**9) == []


def test_arguments_of_the_wrong_kind(queue: Queue) -> None:
    queue.insert("task")
    [task] = queue.lease()
    gone = "0" * 32 + ".0"
    calls: list[Callable[[], Any]] = [
        lambda: queue.insert_many(5),
        lambda: queue.insert_many(None),
        lambda: queue.insert_many("abc"),
        lambda: queue.insert_many({"a": 1}),
        lambda: queue.insert_many(b"abc"),
        lambda: queue.insert_many(bytearray(b"abc")),
        lambda: queue.insert_many(memoryview(b"abc")),
        lambda: queue.insert_many(pd.DataFrame({"a": [1, 2]})),
        lambda: queue.commit("c").stage(pd.DataFrame({"a": [1, 2]})),
        lambda: queue.complete([1]),
        lambda: queue.complete(5),
        lambda: queue.renew(["x"]),
        lambda: queue.release(None),
        lambda: queue.cancel(5),
        lambda: queue.cancel(["x"]),
        lambda: queue.cancel("../../etc/passwd"),
        lambda: queue.attach("x"),
        lambda: queue.attach(5),
        lambda: queue.attach(task.id),
        lambda: queue.attach(task.token + "0"),
        lambda: queue.task(5),
        lambda: queue.task("../x.1"),
        lambda: queue.history("x"),
        lambda: list(queue.tasks("sleeping")),
        lambda: queue.retry_dead(5),
        lambda: queue.retry_completed(5),
        lambda: queue.purge_dead(["x"]),
        lambda: queue.poll(until="tomorrow"),
        lambda: queue.gc(history_days=-1),
        lambda: queue.gc(history_days=1.5),
        lambda: Queue(5),
        lambda: Queue(b"/tmp"),
        lambda: Queue(""),
        lambda: Queue("a\0b"),
        lambda: Queue(queue.path, worker=""),
        lambda: Queue(queue.path, worker=5),
        lambda: Queue(queue.path, worker="x" * 1000),
        lambda: Queue(queue.path, worker="\udc80"),
        lambda: Queue.create(f"{queue.path}-x", durability="maybe"),
        lambda: Queue.create(f"{queue.path}-x", backoff_s=5),
        lambda: Queue.create(f"{queue.path}-x", backoff_s=(5, 1)),
        lambda: Queue.create(f"{queue.path}-x", backoff_s=(1, 2, 3)),
        lambda: Queue.create(f"{queue.path}-x", keep_history="yes"),
        lambda: Queue.create(f"{queue.path}-x", shards=10_000),
        lambda: queue.insert(Task(1, delay_s=1, available_at=5)),
    ]
    for number, call in enumerate(calls):
        try:
            result = call()
        except (InvalidArgument, InvalidTask):
            continue
        raise AssertionError(f"call {number} was taken: {result!r}")
    for unknown in (lambda: queue.task(gone), lambda: queue.history(gone), lambda: queue.attach(f"{gone}@{'0' * 16}")):
        with pytest.raises(TaskNotFound):
            unknown()
    assert queue.status().leased == 1
    assert not os.path.exists(f"{queue.path}-x")


def test_texts_that_are_odd(queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=2)
    queue.insert("task")
    for error in ("\ud800\0\n", ValueError("\udcff")):
        [task] = queue.lease(wait_s=1)
        task.fail(error, delay_s=0)
    [letter] = queue.dead()
    assert letter.reason.startswith("ValueError")
    queue.insert("second")
    [task] = queue.lease()
    task.bury("x" * 10**6)
    reasons = [letter.reason for letter in queue.dead()]
    assert max(map(len, reasons)) < 10_000
    with pytest.raises(InvalidArgument, match="worker must be text that UTF-8 can hold"):  # no worker has such a name
        queue.release_all(worker="\udc80", host="nobody")


def test_a_lease_of_another_queue(queue_factory: QueueFactory) -> None:
    one, two = queue_factory("one"), queue_factory("two")
    one.insert(1)
    two.insert(2)
    [task] = one.lease()
    with pytest.raises((LeaseLost, InvalidArgument)):
        two.complete([task])
    assert (one.status().leased, two.status().waiting) == (1, 1)
    task.complete()


# -- paths ---------------------------------------------------------------------------------------------------


def test_paths_that_are_no_queues(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    before = sorted(str(path) for path in tmp_path.rglob("*"))
    for path in ("file", "file/below"):
        with pytest.raises(NotAQueue):
            Queue(tmp_path / path)
        with pytest.raises(NotAQueue):
            Queue.create(tmp_path / path)
    for path in ("empty", "full", "nothing", "nothing/below", "link"):
        with pytest.raises((QueueNotFound, NotAQueue)):
            Queue(tmp_path / path)
    with pytest.raises(NotAQueue, match="thesis"):
        Queue.create(tmp_path / "full")
    with pytest.raises(FsqueueError):
        Queue("/" + "x" * 300)
    with pytest.raises(FsqueueError):
        Queue("/x" * 3000)
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    Queue.create(tmp_path / "empty").insert(1)
    with pytest.raises(QueueExists):
        Queue.create(tmp_path / "empty")
    assert Queue.create(tmp_path / "empty", exist_ok=True).status().inserted == 1


@pytest.mark.parametrize(
    "name", ["with space", "ünï", "-n", "a'b\"c$d;e", "new\nline", "x" * 200, "fq:", "%20", "[x]*?"]
)
def test_paths_that_are_odd_but_fine(tmp_path: Path, name: str) -> None:
    queue = Queue.create(tmp_path / name)
    queue.insert(1)
    assert drain(Queue(f"fq://{tmp_path}/{name}")) == [1]
    assert Queue(f"{tmp_path}/./x/../{name}/").status().completed == 1
    queue.delete(foreground=True)


def test_a_queue_behind_a_symbolic_link(queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(queue.path)
    linked = Queue(tmp_path / "link")
    linked.insert(1)
    assert drain(queue) == [1]
    linked.purge()
    assert queue.status().inserted == 0


@pytest.mark.once
@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"", NotAQueue),
        (b"garbage\n", NotAQueue),
        (b"\xff\xfe\0\n" * 50, NotAQueue),
        (b"[1]\n{}\nnull\n", NotAQueue),
        (b'{"op":"create","settings":5}\n', NotAQueue),
        (b'{"op":"create","at":1,"format":3,"settings":{"shards":-1}}\n', NotAQueue),
        (b'{"op":"create","at":1,"format":4,"settings":{}}\n', FormatTooNew),
        (b'{"op":"create","at":1,"format":2,"settings":{}}\n', FormatTooOld),
        (b'{"op":"create","at":1,"format":3,"settings":{}}', NotAQueue),
        (b'{"op":"create","at":1,"format":3,"id":"0123456789abcdef","settings":{"batch_tasks_max":4}}\n', NotAQueue),
    ],
)
def test_a_settings_file_that_is_damaged_or_newer(queue: Queue, content: bytes, error: type[Exception]) -> None:
    queue.insert(1)
    path = queue.path / "queue.jsonl"
    good = path.read_bytes()
    path.write_bytes(content)
    with pytest.raises(error):
        Queue(queue.path)
    with pytest.raises(FsqueueError):
        Queue.create(queue.path)
    path.write_bytes(good)
    assert drain(Queue(queue.path)) == [1]


@pytest.mark.once
@pytest.mark.parametrize(
    "tail",
    [
        b"garbage",
        b'{"op":"generation","gener',
        b"\0" * 100,
        b"~\n\n\n[]\n{}\n",
        b'{"op":"generation","generation":-5,"directory":"../x"}\n',
    ],
)
def test_a_settings_file_with_a_torn_or_odd_tail(queue: Queue, tail: bytes) -> None:
    queue.insert(1)
    with open(queue.path / "queue.jsonl", "ab") as file:
        file.write(tail)
    again = Queue(queue.path)
    assert again.status().inserted == 1
    again.purge()
    assert (again.generation, Queue(queue.path).status().inserted) == (2, 0)
    again.insert(2)
    assert drain(Queue(queue.path)) == [2]


def test_a_settings_file_that_grows_newer_under_an_open_queue(queue: Queue) -> None:
    clock = ManualClock()
    queue = Queue(queue.path, clock=clock)
    queue.insert(1)
    with open(queue.path / "queue.jsonl", "ab") as file:
        file.write(b'{"op":"upgrade","at":1,"format":99}\n')
    clock.advance(1.1)
    with pytest.raises(FormatTooNew):
        queue.lease()
    with pytest.raises(FormatTooNew):
        queue.insert(2)


# -- in the tree -----------------------------------------------------------------------------------------------

UUID = "0" * 32
TASK_NAME = f"0000000000000-{UUID}-1.jsonl"


def stray_directory(path: Path) -> None:
    path.mkdir()


def stray_link(path: Path) -> None:
    path.symlink_to("/etc/passwd")


def stray_dangling_link(path: Path) -> None:
    path.symlink_to("/nowhere/at/all")


def stray_pipe(path: Path) -> None:
    os.mkfifo(path)


def stray_socket(path: Path) -> None:
    here = os.getcwd()
    os.chdir(path.parent)  # a socket's path is short
    try:
        socket.socket(socket.AF_UNIX).bind(path.name)
    finally:
        os.chdir(here)


def stray_large(path: Path) -> None:
    path.write_bytes(b"x" * (2 << 20))


def stray_empty(path: Path) -> None:
    path.touch()


STRAYS = [stray_directory, stray_link, stray_dangling_link, stray_pipe, stray_socket, stray_large, stray_empty]


@pytest.mark.once
@pytest.mark.parametrize("make", STRAYS, ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    "where", ["task file", "log of nothing", "log", "staged file", "dead letters", "counter", "history"]
)
def test_something_else_under_one_of_our_names(
    queue_factory: QueueFactory, make: Callable[[Path], None], where: str
) -> None:
    """The tasks beside it are found and completed, nobody hangs, and looking goes on."""
    queue = queue_factory(shards=1, max_attempts=1)
    bad = insert_in_file(queue, "bad")
    [task] = queue.lease()
    task.fail("first")
    kept = insert_in_file(queue, "kept")
    base = base_of(queue)
    batch = kept.id.partition(".")[0]
    path = {
        "task file": base / "queue" / "00" / TASK_NAME,
        "log of nothing": base / "movements" / "00" / f"{UUID}.jsonl",
        "log": base / "movements" / "00" / f"{batch}.jsonl",
        "staged file": base / "staging" / TASK_NAME,
        "dead letters": base / "dead" / "zz.jsonl",
        "counter": base / "completions" / "zz",
        "history": base / "history" / "2020-01-01",
    }[where]
    path.parent.mkdir(parents=True, exist_ok=True)
    make(path)
    outcome: list[Any] = []
    is_hiding = ""
    if not stat.S_ISREG(path.lstat().st_mode):  # a log of nothing might be that of a batch whose file is gone
        is_hiding = {"log": "tasks", "log of nothing": "counts"}.get(where, "")

    def live() -> None:
        other = Queue(queue.path)
        others = [insert_in_file(other, index).id for index in range(3)]
        done = []
        for _ in range(12):
            try:
                for task in other.lease(2):
                    task.complete()
                    done.append(task.id)
            except FsqueueError:
                pass  # it may say that it could not look into one batch
        for look in (other.status, lambda: list(other.tasks()), lambda: other.peek(5)):
            if is_hiding == "tasks" or (is_hiding and look == other.status):
                with pytest.raises(QueueFileLost, match=re.escape(str(path))):
                    look()
            else:
                look()
        other.gc()
        list(other.dead())
        outcome.append((others, done))

    in_time(live)
    others, done = outcome[0]
    assert set(others) <= set(done)
    if where != "log":
        assert kept.id in done
    assert [letter.id for letter in Queue(queue.path).dead() if letter.payload == "bad"] == [bad.id]


@pytest.mark.parametrize(
    "record",
    [
        b'{"op":"open","at":1,"count":999999999}',
        b'{"op":"lease","at":99999999999999,"lease":"x","tasks":[[0,1]],"until":99999999999999}',
        b'{"op":"lease","at":1e3,"lease":"x","tasks":[[0,1]],"until":5}',
        b'{"op":"complete","at":1,"lease":null,"tasks":[[0,1]]}',
        b'{"op":"complete","at":1,"lease":"x","tasks":[[0,999999999999]]}',
        b'{"op":"complete","at":1,"lease":"x","tasks":[[-5,1]]}',
        b'{"op":"bury","at":1,"tasks":"all","reason":5}',
        b'{"op":"fail","at":-1}',
        b'{"op":"finish","at":1}',
        b'{"op":"count","at":1,"file":"../../x","offset":-1,"count":5}',
        b'{"op":"move","at":1,"from":"../../../x","name":"../../../y"}',
        b'{"op":"unheard of","at":1}',
        b'{"op":"prepare","at":1,"id":"x","records":[{"op":"prepare"}]}',
        b'{"at":1}', b"[]", b"null", b"\xff\xfe", b"\0" * 50, b"{" * 2000, b"torn",
    ],
)  # fmt: skip
@pytest.mark.parametrize("place", ["first", "between", "last", "torn"])
def test_a_garbage_record_in_a_log(queue: Queue, record: bytes, place: str) -> None:
    """As if it were never written, or at worst the tasks are executed again; none is lost, and the batch goes on
    working.
    """
    queue.insert_many(range(6), batch_tasks=3)
    tasks = queue.lease(2)
    tasks[0].release()
    queue.close()
    for log in (base_of(queue) / "movements").rglob("*.jsonl"):
        lines = log.read_bytes().splitlines(keepends=True)
        at = {"first": 0, "between": 1}.get(place, len(lines))
        lines.insert(at, record + (b"" if place == "torn" else b"\n"))
        log.write_bytes(b"".join(lines))
    other = Queue(queue.path)
    assert other.status().inserted == 6
    other.release_all()
    other.gc()  # what a damaged log says of the file's name may be wrong, too: upkeep puts it right
    assert sorted(drain(other)) == list(range(6))
    status = other.status()
    assert (status.completed, status.dead) == (6, 0)
    other.gc()
    assert other.status() == status


def test_a_record_of_the_farewell_that_lies(queue: Queue) -> None:
    """A `gone` while the task file is there: the batch starts over, rather than being lost."""
    queue.insert_many(range(3), batch_tasks=3)
    [task] = queue.lease()
    [log] = [path for path in (base_of(queue) / "movements").rglob("*.jsonl") if task.id[:32] in path.name]
    with log.open("ab") as file:
        file.write(b'{"op":"gone","at":1}\n')
    queue.close()
    clock = ManualClock(time.time())
    other = Queue(queue.path, clock=clock)
    found = {task.payload for task in other.lease(9)}
    if found != {0, 1, 2}:  # the name may tell of the time when the lease would have ended
        assert other.status().inserted == 3
    with pytest.raises(LeaseLost):
        task.complete()


LEASE_S = 2.0
"""Long enough that no worker of a slow machine stalls so five times over one task. Letters of many tasks, in one file,
would all be lost by damage to that file. Short enough to wait for: an error leaves tasks leased.
"""


@pytest.mark.one_in(4)
@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("seed", range(12))
def test_random_damage_while_others_work(queue_factory: QueueFactory, seed: int) -> None:
    """Vandals truncate, overwrite and append to task files and logs. Every task is completed, or dead with a
    reason; and the queue lives on.
    """
    dice = random.Random(seed)
    queue = queue_factory(shards=2, max_attempts=5, backoff_s=(0, 0), durability="none")
    queue.insert_many(range(120), batch_tasks=4)
    over, rounds = queue.path.parent / "over", queue.path.parent / "rounds"
    rounds.touch()

    def work() -> int:
        mine, errors = Queue(queue.path), 0

        def play() -> bool:
            nonlocal errors
            with rounds.open("ab") as file:
                file.write(b".")
            try:
                tasks = mine.lease(3, lease_s=LEASE_S, wait_s=0.4)
                if not tasks and over.exists():
                    mine.gc()  # logs damaged when their task files had gone already: nobody else meets them
                    return mine.status().drained
                os.sched_yield()
                for task in tasks:
                    task.complete()
            except FsqueueError:
                errors += 1
            return False

        try:
            until(play, "a drained queue")
        except AssertionError:
            raise AssertionError(f"the queue is poisoned: {mine.status()}, {list(mine.tasks())[:3]}") from None
        return errors

    def damage() -> None:
        base = base_of(queue)
        files = [
            path
            for part in ("queue", "movements", "dead", "history")
            for path in (base / part).rglob("*")
            if path.is_file()
        ]
        if not files:
            return
        path = dice.choice(files)
        try:
            size = path.stat().st_size
            # open, but never create: the file may have been finished meanwhile
            fd = os.open(path, os.O_RDWR)
        except FileNotFoundError:
            return
        try:
            kind = dice.randrange(4)
            if kind == 0:
                os.ftruncate(fd, dice.randrange(size + 1))
            elif kind == 1:
                os.pwrite(fd, dice.randbytes(dice.randrange(1, 40)), dice.randrange(size + 1))
            elif kind == 2:
                os.pwrite(fd, dice.randbytes(20) + b"\n", size)
            else:
                os.pwrite(fd, b"\n", dice.randrange(size + 1))
        finally:
            os.close(fd)
        (path.parent / f"{path.name}~").write_bytes(b"an editor's backup")

    with children((work,), (work,), (work,)) as workers:
        for _ in range(25):
            before = rounds.stat().st_size
            damage()
            until(lambda before=before: rounds.stat().st_size > before, "a worker that goes on")  # type: ignore[misc]
        over.touch()
        for child in workers:
            child.result()
    fresh = Queue(queue.path)
    fresh.gc()
    status = fresh.status()
    assert status.drained
    # a damaged log may make a task run again, a damaged dead letter may hide one; but none is forgotten
    assert status.completed + status.dead >= 120 - 25, status
    assert all(letter.reason for letter in fresh.dead())
    names = {str(uuid.uuid4()) for _ in range(10)}
    fresh.insert_many(sorted(names))
    assert names <= {str(payload) for payload in drain(fresh)}


def test_a_log_that_names_the_file_of_another_batch(queue: Queue) -> None:
    """Finishing removes the batch's own task file, whatever a garbage record says."""
    insert_in_file(queue, "mine")
    [task] = queue.lease()
    insert_in_file(queue, "other")
    [other] = [path for path in (base_of(queue) / "queue").rglob("*.jsonl") if task.id[:32] not in path.name]
    [log] = [path for path in (base_of(queue) / "movements").rglob("*.jsonl") if task.id[:32] in path.name]
    with log.open("ab") as file:
        file.write(b'{"op":"move","at":1,"from":"%s","name":"%s"}\n' % ((other.name.encode(),) * 2))
    task.complete()
    assert other.exists()
    assert [found.payload for found in queue.lease(9)] == ["other"]
    assert not [path for path in (base_of(queue) / "queue").rglob("*.jsonl") if task.id[:32] in path.name]
