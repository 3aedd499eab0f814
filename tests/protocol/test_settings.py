"""Settings that change while a queue is in use: who learns them when, what is refused, what outlives what."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import orjson
import pytest

from fsqueue import InvalidArgument, Queue
from fsqueue.clock import ManualClock
from fsqueue.format.layout import CHANGEABLE, REQUIRED, Settings
from tests.concurrency.trapped import trapped
from tests.support import QueueFactory

pytestmark = pytest.mark.once


def test_other_processes_use_changed_settings_a_second_later(queue: Queue) -> None:
    clock = ManualClock()
    worker = Queue(queue.path, clock=clock)
    queue.insert_many(range(3))
    [first] = worker.lease()
    changed = queue.change_settings(max_attempts=1, lease_s=30, backoff_s=(5, 7))
    assert (changed.max_attempts, changed.lease_s, changed.backoff_s) == (1, 30, (5, 7))
    clock.advance(1.1)
    [second] = worker.lease()
    assert second.lease_until - worker.store.clock.now_ms() / 1000 <= 30
    first.renew()
    assert first.lease_until - worker.store.clock.now_ms() / 1000 <= 30
    second.fail("once is enough")
    assert queue.status().dead == 1


def test_a_process_that_only_renews_learns_of_another_length_of_leases(queue: Queue) -> None:
    clock = ManualClock()
    worker = Queue(queue.path, clock=clock)
    queue.insert(1)
    [task] = worker.lease()
    queue.change_settings(lease_s=30)
    clock.advance(1.1)
    task.renew()
    assert task.lease_until - worker.store.clock.now_ms() / 1000 <= 30


def test_more_attempts_are_given_to_a_task_that_has_failed(queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=2, backoff_s=(0, 0))
    queue.insert(1)
    queue.lease()[0].fail("first")
    queue.change_settings(max_attempts=3)
    queue.lease()[0].fail("second")
    queue.lease()[0].fail("third")
    assert queue.status().dead == 1
    queue.change_settings(max_attempts=None)
    assert Queue(queue.path).settings.max_attempts is None


def test_only_what_is_different_is_written(queue: Queue) -> None:
    path = queue.path / "queue.jsonl"
    before = path.read_bytes()
    queue.change_settings(max_attempts=5, lease_s=600)
    assert path.read_bytes() == before
    queue.change_settings(max_attempts=7, lease_s=600)
    line = orjson.loads(path.read_bytes()[len(before) :])
    assert (line["op"], line["settings"]) == ("settings", {"max_attempts": 7})


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"shards": 2}, "shards is fixed when a queue is created"),
        ({"keep_history": False}, "keep_history is fixed"),
        ({"max_attempt": 2}, "no setting 'max_attempt'. These can be changed: max_attempts"),
        ({"max_attempts": 0}, "max_attempts must be a whole number from 1"),
        ({"lease_s": 5, "backoff_s": (3, 1)}, "backoff_s must be"),
        ({"lease_s": "soon"}, "lease_s must be a number"),
    ],
)
def test_what_cannot_be_changed_is_refused_with_nothing_changed(queue: Queue, given: dict[str, Any], why: str) -> None:
    before = (queue.path / "queue.jsonl").read_bytes()
    with pytest.raises(InvalidArgument, match=why):
        queue.change_settings(**given)
    assert (queue.path / "queue.jsonl").read_bytes() == before


def test_settings_outlive_a_purge_that_another_process_begins(queue: Queue) -> None:
    """The purger has read the file before the change: that is no purge by another process."""
    other = Queue(queue.path)
    queue.insert(1)
    queue.change_settings(lease_s=5)
    other.purge()
    assert queue.status().inserted == 0
    assert Queue(queue.path).settings.lease_s == 5


@pytest.mark.parametrize(
    "line",
    [
        b'{"op":"settings","at":1,"settings":{"max_attempts":0,"lease_s":7}}\n',
        b'{"op":"settings","at":1,"settings":{"shards":7}}\n',
        b'{"op":"settings","at":1,"settings":{"of":"a later version"}}\n',
        b'{"op":"settings","at":1,"settings":7}\n',
        b'{"op":"pause","at":"yesterday"}\n',
        b'{"op":"settings","at":1,"settings":{"max_attempts":3',
    ],
)
def test_a_line_that_is_wrong_is_void(queue: Queue, line: bytes) -> None:
    with (queue.path / "queue.jsonl").open("ab") as file:
        file.write(line)
    opened = Queue(queue.path)
    assert (opened.settings, opened.paused) == (Settings(), None)
    opened.change_settings(max_attempts=2)
    assert Queue(queue.path).settings == Settings(max_attempts=2)


def test_every_setting_of_the_first_release_must_be_there() -> None:
    assert set(CHANGEABLE) | set(REQUIRED) <= set(Settings.__dataclass_fields__)


ACTS: dict[str, Callable[[Queue], object]] = {
    "settings": lambda queue: queue.change_settings(lease_s=30),
    "pause": Queue.pause,
    "resume": Queue.resume,
}


@pytest.mark.parametrize("act", ACTS)
def test_what_is_changed_is_on_disk_when_the_call_returns(queue_factory: QueueFactory, act: str) -> None:
    """Whatever the queue's durability is; and where nothing is changed, since another may have died before its sync."""
    queue = queue_factory(durability="none")
    if act == "resume":
        queue.pause()
    lengths, synced = [queue.path.joinpath("queue.jsonl").stat().st_size], list[str]()

    def trap(step: str, call: Callable[..., Any], *args: Any) -> Any:
        if step == "fsync":
            synced.append(os.readlink(f"/proc/self/fd/{args[0]}"))
        return call(*args)

    with trapped(queue, trap) as mine:
        for _ in range(2):
            synced.clear()
            ACTS[act](mine)
            assert f"{queue.path}/queue.jsonl" in synced
            lengths.append(queue.path.joinpath("queue.jsonl").stat().st_size)
    assert lengths[0] < lengths[1] == lengths[2]
