"""A worker says of each queue once, before it leases from it, if that may be a copy; of a group once."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from fsqueue import Group, Queue, Worker
from fsqueue.filesystem import Filesystem
from fsqueue.worker import Event
from fsqueue.worker.feeding import CopyCheck
from tests import copied

pytestmark = pytest.mark.once


def told(source: Any, **options: Any) -> list[str]:
    """Return what a worker says of copies, after it has worked to the end."""
    events: list[Event] = []
    Worker(source, command=["true"], tell=events.append, **options).run()
    if any(event.kind == "copy" for event in events):
        assert events[0].kind == "copy", events
    return [event.text for event in events if event.kind == "copy"]


def test_of_several_queues_each_copy_is_named(tmp_path: Path) -> None:
    paths = [Queue.create(tmp_path / name).path for name in "abc"]
    for path in paths[:2]:
        Queue(copied.restored(path)).insert(1)
    texts = told([Queue(path) for path in paths])
    assert [text.split()[0] for text in texts] == [str(path) for path in paths[:2]]


def test_a_queue_that_is_away_and_comes_back_is_asked_anew(tmp_path: Path) -> None:
    """As after a failover: what comes back may be a mirror."""
    queue = Queue(Queue.create(tmp_path / "q").path)
    check, said = CopyCheck(), list[str]()

    def begin(queue: Queue) -> None:
        check.begun.append(queue)
        check.warnings(lambda queue: None, said.append)

    begin(queue)
    begin(Queue(copied.restored(queue.path)))
    assert said == [], "it was asked twice without a reason"
    check.forget()
    begin(Queue(queue.path))
    assert len(said) == 1


def test_a_place_that_cannot_be_asked_for_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = copied.restored(Queue.create(tmp_path / "q").path)
    Queue(path).insert(1)

    def place(*arguments: Any) -> Any:
        raise OSError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(Filesystem, "place", place)
    assert told(Queue(path)) == []
    assert Queue(path).status().completed == 1


def test_of_a_group_s_queues_each_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = Group.create(tmp_path / "group", shards=1)
    paths = []
    for number in range(70):  # more than a worker has open
        with group[f"q{number}"] as queue:
            queue.insert(1)
            paths.append(str(queue.path))
    asked: list[str] = []
    real = Filesystem.place

    def place(fs: Filesystem, path: str) -> Any:
        asked.append(path)
        return real(fs, path)

    monkeypatch.setattr(Filesystem, "place", place)
    assert told(group) == []
    group.close()
    assert sorted(asked) == sorted(paths)
