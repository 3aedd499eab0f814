"""How deep JSON may nest: one bound at every way in, at reading, and for results; beside what is deeper all goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fsqueue import FsqueueError, InvalidResult, InvalidTask, LeaseLost, NotAQueue, Queue, Task, functions
from fsqueue.format import movements, nesting
from fsqueue.format.nesting import NESTING_MAX, is_deeper, is_value_deeper
from fsqueue.format.results import decode_result
from fsqueue.storage import history
from tests.levels import each_once, how_many
from tests.support import QueueFactory, base_of, insert_in_file, log_files

ORJSON_READS, ORJSON_WRITES = 1024, 254


def lists(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def objects(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels - 1):
        value = {"[{": value}
    return value


def mixed(levels: int) -> Any:
    value: Any = {} if levels % 2 else []
    for level in range(levels - 1, 0, -1):
        value = {"a": value, "b": "]}"} if level % 2 else ["[[", value]
    return value


SHAPES = [lists, objects, mixed]
ARRAYS = [10, 201, 202, 250, 300, 1000, 1023, 1024, 1025, 5000]


def text(levels: int) -> bytes:
    return b"[" * levels + b"]" * levels


# -- the scanner ------------------------------------------------------------------------------------------


def levels_of(value: Any) -> int:
    """The reference: how deep a value nests."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(levels_of, inner), default=0)


awkward = st.text(st.sampled_from('[]{}"\\,:a\u00e9\u2028\n'), max_size=6)
values = st.recursive(
    st.none() | st.integers(0, 9) | awkward,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(awkward, inner, max_size=3),
    max_leaves=30,
)


@settings(max_examples=how_many(16, 500), deadline=None)
@given(values, st.integers(0, 12), st.integers(2, 16), st.booleans())
def test_the_scanner_agrees_with_counting_by_recursion(value: Any, more: int, levels: int, indented: bool) -> None:
    for _ in range(more):
        value = {"]": [value]}
    data = orjson.dumps(value, option=orjson.OPT_INDENT_2 if indented else None)
    assert is_deeper(data, levels) == is_value_deeper(value, levels) == (levels_of(value) > levels)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_scanner_at_the_bound(shape: Callable[[int], Any]) -> None:
    for levels in range(NESTING_MAX - 3, NESTING_MAX + 4):
        value = shape(levels)
        assert levels_of(value) == levels
        assert is_deeper(orjson.dumps(value)) == is_value_deeper(value) == (levels > NESTING_MAX)
        assert is_deeper(orjson.dumps([value] * 50)) == (levels + 1 > NESTING_MAX)


def test_scanning_takes_time_in_proportion_to_the_length() -> None:
    began = time.process_time()
    for data in (text(1 << 20), b"[]" * (1 << 20), b'"[' * (1 << 20), b'["\\\\\\""' * (1 << 18), b"{" * (1 << 20)):
        is_deeper(data)
    assert time.process_time() - began < 30  # quadratic: hours


# -- ways in ----------------------------------------------------------------------------------------------


@functions.task
def echo(value: Any) -> Any:
    return value


def stage(queue: Queue, payload: Any) -> None:
    commit = queue.commit("name")
    commit.publish([commit.stage([payload])])


def stage_and_keep(queue: Queue, payload: Any) -> None:
    queue.insert_many([payload], commit="other")


WAYS: dict[str, Callable[[Queue, Any], object]] = {
    "insert": lambda queue, payload: queue.insert(payload),
    "insert a Task": lambda queue, payload: queue.insert(Task(payload)),
    "insert_many": lambda queue, payload: queue.insert_many([payload]),
    "insert_many of Tasks": lambda queue, payload: queue.insert_many([Task(payload, delay_s=0)]),
    "insert_many as a commit": stage_and_keep,
    "stage": stage,
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("way", WAYS)
def test_the_bound_is_held_at_each_way_in(queue: Queue, way: str, shape: Callable[[int], Any]) -> None:
    for levels in (NESTING_MAX + 1, ORJSON_WRITES - 1, ORJSON_WRITES, ORJSON_WRITES + 1, 5000):
        with pytest.raises(InvalidTask, match=f"nests deeper than {NESTING_MAX} levels"):
            WAYS[way](queue, shape(levels))
    assert queue.status().inserted == 0
    WAYS[way](queue, shape(NESTING_MAX))
    [task] = queue.lease()
    assert task.payload == shape(NESTING_MAX)


def test_of_many_those_before_the_deep_one_are_in(queue: Queue) -> None:
    with pytest.raises(InvalidTask, match="Task number 3") as caught:
        queue.insert_many([1, 2, lists(NESTING_MAX + 1), 4])
    assert (caught.value.index, caught.value.inserted) == (2, 2)
    assert queue.status().waiting == 2


def test_arguments_of_calls_have_room_for_the_call_around_them(queue: Queue) -> None:
    deepest = lists(NESTING_MAX - 2)
    queue.insert(Task({"call": "m:f", "args": [deepest], "kwargs": {"a": deepest}}))
    with pytest.raises(InvalidTask, match="levels deep"):
        functions.Function(echo.__wrapped__, "m:f", None, 0).call(lists(NESTING_MAX - 1))


@pytest.mark.parametrize(
    "payload",
    [
        "[" * 5000,
        "[" * 5000 + "]" * 5000,
        {"a": "[{" * 1000, "[" * 500: "}" * 500},
        ['\\"' + "[" * 300, "]" * 300, "\\", '"' + "{" * 999],
        [[n, {"a": [n]}] for n in range(2000)],
        b"[" * 5000,
        '{"a":' * 500,
    ],
    ids=["opening", "both", "keys", "escapes", "wide", "bytes", "JSON in a string"],
)
def test_brackets_that_do_not_nest_are_as_good_as_any(queue: Queue, payload: Any) -> None:
    queue.insert(payload)
    queue.insert_many([payload, payload])
    assert [task.payload for task in queue.lease(3)] == [payload] * 3
    assert list(queue.fsck()) == []


# -- a whole life at the bound ----------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_what_is_as_deep_as_allowed_can_be_wrapped_everywhere(queue: Queue, shape: Callable[[int], Any]) -> None:
    payload = shape(NESTING_MAX)
    queue.insert_many([payload] * 3)
    first, second, third = queue.lease(3)
    first.complete(payload)
    queue.complete([second], {second.id: payload})
    third.bury("why")
    assert [letter.payload for letter in queue.dead()] == [payload]
    assert [info.result for info in queue.tasks("completed")] == [payload] * 2
    assert queue.history(first.id)[-1].result == payload
    assert queue.retry_dead() == 1
    [again] = queue.lease()
    assert again.payload == payload
    for info in [*queue.tasks("completed"), *queue.tasks(), *queue.tasks("dead")]:
        orjson.dumps([info.as_dict(), {"history": [move.as_dict() for move in queue.history(info.id)]}])
    queue.close()
    assert list(Queue(queue.path).fsck()) == []


# -- results ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("levels", [NESTING_MAX + 1, ORJSON_WRITES + 1, 3000])
def test_a_result_that_nests_too_deep_is_an_error_and_the_lease_goes_on(queue: Queue, levels: int) -> None:
    queue.insert(1)
    [task] = queue.lease()
    with pytest.raises(InvalidResult, match="result nests deeper") as caught:
        task.complete(lists(levels))
    assert caught.value.tasks == [task.id]
    assert (queue.status().leased, task.done) == (1, False)
    task.complete("flat")
    assert queue.task(task.id).result == "flat"


@pytest.mark.parametrize("bad", [lists(NESTING_MAX + 1), "x" * 100_000, b"bytes", {1, 2}])
def test_a_bad_result_keeps_no_other_task_from_being_completed(queue: Queue, bad: Any) -> None:
    queue.insert_many(range(4))
    tasks = queue.lease(4)
    with pytest.raises(InvalidResult) as caught:
        queue.complete(tasks, {tasks[0].id: {"good": 1}, tasks[2].id: bad})
    assert caught.value.tasks == [tasks[2].id]
    assert caught.value.__cause__ is None
    assert [task.done for task in tasks] == [True, True, False, True]
    assert (queue.status().completed, queue.status().leased) == (3, 1)
    assert queue.task(tasks[0].id).result == {"good": 1}


def test_bad_results_and_lost_leases_are_both_told(queue: Queue) -> None:
    queue.insert_many(range(3))
    lost, bad, good = tasks = queue.lease(3)
    queue.release([queue.attach(lost.token)])
    with pytest.raises(InvalidResult) as caught:
        queue.complete(tasks, {bad.id: lists(5000)})
    assert caught.value.tasks == [bad.id]
    assert isinstance(caught.value.__cause__, LeaseLost)
    assert caught.value.__cause__.tasks == [lost.id]
    assert queue.task(good.id).state == "completed"


def test_what_a_command_wrote_as_its_result() -> None:
    assert decode_result(b'{"a":1}\n') == {"a": 1}
    assert decode_result(b"no JSON\n") == "no JSON"
    assert decode_result(text(NESTING_MAX)) == lists(NESTING_MAX)
    for data in (text(NESTING_MAX + 1), text(ORJSON_READS), text(ORJSON_READS + 1), b"\x01" * 30_000):
        with pytest.raises(InvalidTask, match="result"):
            decode_result(data)


# -- what others wrote ------------------------------------------------------------------------------------


def use(queue: Queue) -> None:
    """Every verb that reads what others wrote; none ends in anything but a documented error."""
    queue = Queue(queue.path)
    acts: list[Callable[[], object]] = [
        queue.status,
        queue.activity,
        queue.is_drained,
        lambda: queue.peek(9),
        lambda: orjson.dumps(
            [info.as_dict() for state in (None, "completed", "dead") for info in queue.tasks(state)], default=repr
        ),
        lambda: orjson.dumps([letter.as_dict() for letter in queue.dead()], default=repr),
        lambda: [orjson.dumps([move.as_dict() for move in queue.history(info.id)]) for info in queue.tasks()],
        lambda: list(queue.fsck()),
        lambda: [task.fail("no") for task in queue.lease(99)],
        queue.gc,
        lambda: list(queue.fsck(repair=True)),
        lambda: [task.bury("no") for task in queue.lease(99)],
        queue.retry_dead,
        lambda: [task.complete({"a": 1}) for task in queue.lease(99)],
        queue.purge_dead,
        queue.gc,
    ]
    for act in acts:
        try:
            act()
        except FsqueueError:
            pass
    queue.close()


@pytest.mark.parametrize("levels", ARRAYS)
@pytest.mark.parametrize("beside", [b'{"payload":%s}', b'{"payload":1,"more":%s}', b'{"b64":"AA==","x":{"y":%s}}'])
def test_a_line_of_a_task_file_that_nests_too_deep_is_damage(
    queue_factory: QueueFactory, levels: int, beside: bytes
) -> None:
    queue = queue_factory(shards=1)
    insert_in_file(queue, "good")
    [sound] = (base_of(queue) / "queue").glob("*/*")
    uuid = sound.name.split("-")[1]
    other = sound.with_name(sound.name.replace(uuid, uuid[:-1] + ("0" if uuid[-1] != "0" else "8")))
    line = beside % text(levels)
    other.write_bytes(line + b"\n")
    is_sound = levels + beside.count(b"{") <= NESTING_MAX + 1
    assert len(list(queue.tasks())) == 2
    found = [finding.kind for finding in queue.fsck()]
    assert found == ([] if is_sound else ["unreadable-tasks"])
    leased = queue.lease(9) + queue.lease(9)
    assert len(leased) == (2 if is_sound else 1)
    if not is_sound:
        [letter] = queue.dead()
        assert "unreadable" in letter.reason
        assert letter.payload is None
    use(queue)


@pytest.mark.parametrize("levels", [NESTING_MAX + 1, 300, ORJSON_READS + 1])
def test_repairing_buries_what_nests_too_deep_and_keeps_the_file(queue: Queue, levels: int) -> None:
    queue.insert_many(["good", "bad"], batch_tasks=2)
    for file in (base_of(queue) / "queue").glob("*/*"):
        file.write_bytes(file.read_bytes().replace(b'"bad"', text(levels)))
    [finding] = queue.fsck(repair=True)
    assert (finding.kind, finding.tasks, finding.repaired) == ("unreadable-tasks", 1, True)
    assert [letter.payload for letter in queue.dead()] == [None]
    assert text(levels) in b"".join(path.read_bytes() for path in (queue.path / ".quarantine").rglob("*.jsonl"))
    assert list(queue.fsck()) == []
    assert [task.payload for task in queue.lease(9)] == ["good"]


FIELDS = {
    "result": b'{"op":"complete","at":%(at)d,"lease":"%(lease)s","tasks":[[0,1]],"result":%(deep)s}',
    "worker": b'{"op":"lease","at":%(at)d,"lease":"%(more)s","tasks":[[0,1]],"until":%(until)d,'
    b'"worker":{"host":%(deep)s}}',
    "error": b'{"op":"fail","at":%(at)d,"lease":"%(lease)s","tasks":[[0,1]],"available_at":0,"error":"x",'
    b'"reason":%(deep)s}',
    "payload": b'{"op":"replace","at":%(at)d,"lease":"%(lease)s","tasks":[[0,1]],"payload":%(deep)s}',
    "tasks": b'{"op":"bury","at":%(at)d,"tasks":%(deep)s,"reason":"x"}',
    "stranger": b'{"op":"what","at":%(at)d,"name":%(deep)s}',
}


@each_once(("field", list(FIELDS)), ("levels", [NESTING_MAX, *ARRAYS]))
def test_records_of_others_with_deep_fields(queue: Queue, field: str, levels: int) -> None:
    """Whatever is in a log, and in the history and the dead letters after it: nothing ends in an internal error."""
    queue.insert("x")
    [task] = queue.lease()
    queue.close()
    [log] = log_files(queue)
    at = int(time.time() * 1000)
    line = FIELDS[field] % {
        b"at": at, b"lease": task.lease.encode(), b"more": b"f" * 16, b"until": at + 10**6, b"deep": text(levels)
    }  # fmt: skip
    if field == "worker":
        line = (
            b'{"op":"release","at":%d,"lease":"%s","tasks":[[0,1]],"available_at":0}\n' % (at, task.lease.encode())
            + line
        )
    with log.open("ab") as file:
        file.write(line + b"\n")
    is_kept = levels <= NESTING_MAX - (field == "worker")
    looked = Queue(queue.path).task(task.id)
    if field == "result" and levels < nesting.RECORD_NESTING_MAX:
        assert (looked.state, looked.result) == ("completed", lists(levels) if is_kept else None)
    if field == "worker" and levels < nesting.RECORD_NESTING_MAX - 1:
        assert (looked.state, looked.worker) == ("leased", {"host": lists(levels)} if is_kept else None)
    if field in ("payload", "update"):
        assert looked.payload == (lists(levels) if is_kept else "x")
    release = Queue(queue.path)
    release.release_all()
    use(queue)


@pytest.mark.parametrize("levels", ARRAYS)
@pytest.mark.parametrize(
    "line",
    [
        b'{"op":"dead","id":"%(id)s","at":1,"reason":"r","attempt":1,"worker":{"a":1},"payload":%(deep)s}',
        b'{"op":"dead","id":"%(id)s","at":1,"reason":"r","attempt":1,"worker":{"a":%(deep)s},"payload":1}',
        b'{"op":"dead","id":"%(id)s","at":%(deep)s,"reason":%(deep)s,"attempt":%(deep)s,"worker":null,"payload":1}',
        b'{"op":"retried","ids":[%(deep)s],"at":1,"as":%(deep)s,"staged":%(deep)s}',
    ],
    ids=["payload", "worker", "reason", "retried"],
)
def test_letters_of_others_with_deep_fields(queue_factory: QueueFactory, line: bytes, levels: int) -> None:
    queue = queue_factory(shards=1)
    queue.insert("x")
    [task] = queue.lease()
    task.bury("mine")
    [letters] = (base_of(queue) / "dead").glob("*")
    task_id = b"0" * 31 + b"1.0"
    with letters.open("ab") as file:
        file.write(line % {b"id": task_id, b"deep": text(levels)} + b"\n")
    there = {letter.id: letter for letter in queue.dead()}
    assert there[task.id].reason == "mine"
    if b'"op":"dead"' in line and levels < ORJSON_READS - 1:
        assert task_id.decode() in there
    use(queue)


@pytest.mark.parametrize("levels", ARRAYS)
def test_a_history_of_others_with_deep_fields(queue_factory: QueueFactory, levels: int) -> None:
    queue = queue_factory(shards=1)
    insert_in_file(queue, "x")
    [task] = queue.lease()
    task.complete({"mine": 1})
    [day] = (base_of(queue) / "history").glob("*/*")
    kept = day.read_bytes()
    day.write_bytes(kept.replace(b'{"mine":1}', text(levels)) + kept.replace(task.batch.encode(), b"0" * 32))
    known = Queue(queue.path)
    if levels < nesting.RECORD_NESTING_MAX:
        assert known.task(task.id).state == "completed"
    assert known.task("0" * 32 + ".0").result == {"mine": 1}
    use(queue)


def test_every_line_that_can_be_read_can_be_written_wrapped() -> None:
    """The room that the bounds leave, against what orjson writes."""
    deepest = b'{"op":"complete","at":1,"x":' + text(nesting.RECORD_NESTING_MAX) + b"}"
    assert movements.parse(deepest) is None
    record = movements.parse(b'{"op":"complete","at":1,"result":' + text(NESTING_MAX) + b"}")
    orjson.dumps([[[[[record]]]]])
    line = b'{"batch":"%s","count":1,"records":[%s]}' % (b"0" * 32, b'{"op":"x","at":1,"y":' + text(255) + b"}")
    found = history.parse(line)
    assert found is not None
    assert found[1][0][1] == {"op": "x", "at": 1}


def test_settings_that_nest_deep(tmp_path: Path) -> None:
    queue = Queue.create(tmp_path / "q")
    file = queue.path / "queue.jsonl"
    content = file.read_bytes()
    for levels in ARRAYS:
        file.write_bytes(content.replace(b'"shards":64', b'"shards":' + text(levels)) + content)
        try:
            said = str(Queue(queue.path).settings.shards)
        except NotAQueue as error:
            said = str(error)
        assert said == "64" or "shards must be a whole number from 1 to 4,096" in said  # 64: no reader parses the line
