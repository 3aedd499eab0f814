"""What the history keeps of tasks that were in a log: all but the payloads, and versions stay offsets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from fsqueue import Queue
from fsqueue.clock import ManualClock
from fsqueue.format import movements
from fsqueue.protocol.finishing import LINGER_MS
from fsqueue.storage import history
from tests.format.test_inserts import OpenTape, open_logs
from tests.format.test_replay_properties import lines_of
from tests.support import base_of, log_files

pytestmark = pytest.mark.once  # of open batches


@pytest.fixture
def opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """A queue with a clock of its own."""
    Queue.create(tmp_path / "q", backoff_s=(0, 0), max_attempts=1)
    return Queue(tmp_path / "q", clock=ManualClock())


def line_of(data: bytes) -> bytes:
    """The line of the history, as it is kept of a log without damaged lines."""
    records = [movements.cut(line, 0) if line.startswith(movements.INSERT) else line for line in data.split(b"\n")[:-1]]
    return b'{"batch":"%s","count":3,"records":[%s]}' % (b"ab" * 16, b",".join(records))


@given(open_logs())
def test_offsets_in_the_history_are_those_of_the_log(data: bytes) -> None:
    sound = b"".join(line for line in lines_of(data) if movements.parse(line[:-1]) is not None)
    found = history.parse(line_of(sound))
    assert found is not None
    expected, offset = [], 0
    for line in lines_of(sound):
        expected.append((offset, json.loads(line)))
        offset += len(line)
    assert [at for at, _ in found[1]] == [at for at, _ in expected]
    for (_, record), (_, whole) in zip(found[1], expected, strict=True):
        if record["op"] == "insert" and "cut" in record:
            record.pop("cut")
            whole.pop("payload", whole.pop("b64", None))
        assert record == whole


@given(open_logs())
def test_a_replay_of_the_history_gives_the_states_of_the_log(data: bytes) -> None:
    tape = OpenTape()
    tape.data, tape.state = b"", type(tape.state)()
    sound = b"".join(line for line in lines_of(data) if movements.parse(line[:-1]) is not None)
    tape.raw(sound)
    found = history.parse(line_of(sound))
    assert found is not None
    again = history.replay(found[1])
    assert (bytes(again.state), again.version, again.places) == (
        bytes(tape.state.state), tape.state.version, tape.state.places,
    )  # fmt: skip


def finished(queue: Queue, clock: Any) -> bytes:
    """Let the batch end; the history's only line."""
    clock.advance(LINGER_MS / 1000)
    while queue.lease(5):
        raise AssertionError("a task is left")
    [path] = (base_of(queue) / "history").glob("*/*.jsonl")
    return path.read_bytes()


@pytest.mark.parametrize("is_damaged", [False, True])
def test_a_queue_may_keep_no_payloads_in_its_history(tmp_path: Path, opened: Queue, is_damaged: bool) -> None:
    Queue.create(tmp_path / "bare", backoff_s=(0, 0), max_attempts=1, keep_payloads=0)
    opened = Queue(tmp_path / "bare", clock=opened.store.clock)
    clock = opened.store.clock
    refs = [opened.insert(payload) for payload in ("secret", 7, b"\x00secret", {"secret": ["secret"] * 300})]
    refs.append(opened.insert("secret later", delay_s=1))
    if is_damaged:
        with log_files(opened)[0].open("ab") as file:
            file.write(b'{"op":"insert","at":1,"id":"torn","first":9,"payload":"sec')
    versions = [info.version for info in opened.tasks()]
    clock.advance(1)
    tasks = opened.lease(9)
    assert [task.payload for task in tasks][:3] == ["secret", 7, b"\x00secret"]
    content = log_files(opened)[0].read_bytes()
    opened.complete(tasks)
    line = finished(opened, clock)
    assert b"secret" not in line
    found = history.parse(line)
    assert found is not None
    inserted = [(offset, record) for offset, record in found[1] if record["op"] == "insert"]
    assert [offset for offset, _ in inserted] == versions
    for offset, record in inserted:
        assert json.loads(content[offset : content.index(b"\n", offset)])["id"] == record["id"]
    for ref in refs:
        assert [move.op for move in opened.history(ref.id)][-1] == "complete"


def test_an_insert_in_another_form_stays_whole_in_the_history(opened: Queue) -> None:
    """Another program may write blanks: what is kept is longer, and as true."""
    opened.insert("first")
    with log_files(opened)[0].open("ab") as file:
        file.write(b'{"op": "insert", "at": 5, "id": "foreign", "first": 1, "payload": "mine"}\n')
    third = opened.insert("third")
    version = [info.version for info in opened.tasks() if info.id == third.id]
    tasks = opened.lease(9)
    assert [task.payload for task in tasks] == ["first", "mine", "third"]
    opened.complete(tasks)
    line = finished(opened, opened.store.clock)
    assert line.count(b"mine") == 1
    found = history.parse(line)
    assert found is not None
    offsets = [offset for offset, record in found[1] if record.get("first") == 2]
    assert offsets == version
