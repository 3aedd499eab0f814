"""A task is checked and encoded once. What comes later has its line, time, priority, rank and key: none is parsed."""

from __future__ import annotations

from enum import IntEnum
from typing import Any

import orjson
import pytest

from fsqueue import InvalidTask, Queue, Task, TaskTooLarge
from fsqueue.format import priority
from fsqueue.format.priority import INT_MAX, INT_MIN, LAST, rank_of
from fsqueue.format.replay import ReplayState
from fsqueue.protocol import encoding
from fsqueue.protocol.encoding import NOW, Encoded, EncodedTask
from tests.support import log_files


class Text(str):
    """A text of the caller's own type."""


class Level(IntEnum):
    HIGH = 3


TEXTS = ["a", "", 'quo"ted \\ text', "é\n\x7f", "0" * 1024, Text("b")]
PRIORITIES: list[Any] = [*TEXTS, 5, -1, INT_MIN, INT_MAX, Level.HIGH]


@pytest.mark.parametrize("key", [None, "k"])
@pytest.mark.parametrize("given", [None, *PRIORITIES], ids=lambda given: ascii(given)[:20])
def test_all_that_is_known_of_a_task_is_in_the_value(given: Any, key: str | None) -> None:
    task = encoding.encode(Task({"priority": 7, "key": "x"}, key=key, priority=given, delay_s=2.5), 4096)
    line = orjson.loads(task.line)
    assert task == EncodedTask(task.line, (False, 2500), given, rank_of(given), key)
    assert type(task.priority) in (type(None), int, str)
    assert (line["payload"], line.get("priority"), line.get("key")) == ({"priority": 7, "key": "x"}, given, key)
    assert task.line.endswith(b"}\n")


def test_a_task_that_says_nothing_has_the_time_of_the_call() -> None:
    assert encoding.encode(Task(1), 4096) == (b'{"payload":1}\n', NOW, None, LAST, None, None)
    assert encoding.encode(Task(1), 4096, default=(False, 9)).when == (False, 9)
    assert encoding.encode(Task(1, available_at=3), 4096, default=(False, 9)).when == (True, 3000)


@pytest.mark.parametrize("key", [None, "kkkk"])
def test_a_line_is_as_long_as_it_may_be_with_its_priority_and_its_key_in_it(key: str | None) -> None:
    task = Task("x" * 50, key=key, priority="p")
    size = len(encoding.encode(task, 4096).line)
    assert len(encoding.encode(task, size).line) == size
    with pytest.raises(TaskTooLarge, match=f"Task number 8 takes {size} bytes; this queue accepts up to {size - 1}"):
        encoding.encode(task, size - 1, 7)


@pytest.mark.parametrize(
    "task",
    [Task(1, key=""), Task(1, priority=1.5), Task(1, delay_s=-1), Task({1})],
    ids=["key", "priority", "time", "payload"],
)
def test_what_is_wrong_with_a_task_is_said_with_its_place(task: Task) -> None:
    with pytest.raises(InvalidTask, match=r"^Task number 8") as caught:
        encoding.encode(task, 4096, 7)
    assert caught.value.index == 7


def test_the_tasks_of_a_batch_are_those_that_were_put_in() -> None:
    for given in (None, [5, 6, 7], ["a", "b", "text"]):
        batch = Encoded((True, 9), given)
        batch.take(memoryview(b'{"payload":"\\r"}\n{"payload":2}\n'), 2)
        batch.take(b'{"payload":"\xe2\x80\xa8"}\n', 1)
        found = batch.each()
        assert [task.line for task in found] == [
            b'{"payload":"\\r"}\n',
            b'{"payload":2}\n',
            b'{"payload":"\xe2\x80\xa8"}\n',
        ]
        for task, each in zip(found, given or [None] * 3, strict=True):
            assert task[1:] == ((True, 9), each, rank_of(each), None, None)
            assert type(task.line) is bytes


@pytest.mark.batched
@pytest.mark.parametrize("before", [[], ["plain"]], ids=["first", "behind another"])
def test_a_stream_s_delay_counts_for_its_tasks_with_keys(queue: Queue, before: list[Any]) -> None:
    queue.insert_many([*before, Task("x", key="k"), Task("y", key="l", available_at=1)], delay_s=1000)
    assert [task.payload for task in queue.lease(9)] == ["y"]


# -- in an open batch ---------------------------------------------------------------------------------------


def insert_alone(queue: Queue, task: Task) -> None:
    queue.insert(task)


def insert_as_stream(queue: Queue, task: Task) -> None:
    queue.insert_many([task])


def insert_with_key(queue: Queue, task: Task) -> None:
    queue.insert(Task(task.payload, key=f"key of {task.payload}", priority=task.priority))


def insert_with_key_in_stream(queue: Queue, task: Task) -> None:
    queue.insert_many([Task(task.payload, key=f"key of {task.payload}", priority=task.priority)])


WAYS = [insert_alone, insert_as_stream, insert_with_key, insert_with_key_in_stream]


@pytest.mark.batched
@pytest.mark.parametrize("way", WAYS)
def test_an_inserter_knows_the_priorities_that_a_reader_of_its_log_finds(queue: Queue, way: Any) -> None:
    """Workers of its process lease by what it knows, and checkpoints restate that."""
    for number, given in enumerate([*PRIORITIES, None]):
        way(queue, Task(number, priority=given))
    [path] = log_files(queue)
    reader, content = ReplayState(), path.read_bytes()
    assert reader.replay(content, 0) == len(content)
    known = queue.store.logs.get(queue._inserter._batch).replay_state  # type: ignore[arg-type]
    assert known.priorities == reader.priorities == dict(enumerate(PRIORITIES))
    assert known.ranks == reader.ranks


@pytest.mark.batched
@pytest.mark.parametrize("way", WAYS)
def test_no_line_is_parsed_to_insert_it(queue: Queue, monkeypatch: pytest.MonkeyPatch, way: Any) -> None:
    queue.insert(Task(0, priority=9))
    parsed: list[object] = []
    monkeypatch.setattr(priority, "in_lines", lambda lines: parsed.append(lines) or {})
    way(queue, Task({"a": "a payload with a", "priority": 7}, priority=5))
    way(queue, Task({"priority": 7}))
    assert parsed == []
