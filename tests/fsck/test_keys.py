"""What fsck finds about keys: tasks that their key's file does not name, and damaged files."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from fsqueue import Queue
from fsqueue.format.names import key_digest

QueueFactory = Callable[..., Queue]

pytestmark = pytest.mark.batched  # with one task a batch a queue takes no keys


def path_of(queue: Queue, key: str) -> Path:
    return Path(queue.store.layout.key(key_digest(key), 0))


def kinds(queue: Queue, repair: bool = False) -> list[tuple[str, bool]]:
    return [(finding.kind, finding.repaired) for finding in queue.fsck(repair=repair)]


def test_a_sound_queue_with_keys_has_no_findings(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    queue.insert("x", key="k")
    queue.insert("x", key="l")
    queue.complete(queue.lease())
    assert kinds(queue) == []


@pytest.mark.parametrize("how", ["removed", "damaged", "another"])
def test_a_living_task_is_named_again(queue_factory: QueueFactory, how: str) -> None:
    queue = queue_factory()
    ref = queue.insert("x", key="k")
    path = path_of(queue, "k")
    if how == "removed":
        path.unlink()
    elif how == "damaged":
        path.write_bytes(path.read_bytes().replace(b'"op"', b'"oP"'))
    else:
        path.write_bytes(path.read_bytes().replace(b'"key":"k"', b'"key":"j"'))
    found = sorted(kind for kind, _ in kinds(queue))
    assert found == (["damaged-line"] if how == "damaged" else []) + ["unnamed-key"]
    assert all(repaired for _, repaired in kinds(queue, repair=True))
    assert kinds(queue) == []
    assert queue.insert("y", key="k").id == ref.id


def test_two_living_tasks_with_one_key(queue_factory: QueueFactory) -> None:
    queue = queue_factory()
    first = queue.insert("x", key="k")
    path_of(queue, "k").unlink()
    second = queue.insert("x", key="k")
    [finding] = queue.fsck(repair=True)
    assert (finding.kind, finding.repaired, finding.tasks) == ("shared-key", False, 1)
    assert first.id in finding.note
    queue.cancel([second.id])
    assert [kind for kind, _ in kinds(queue, repair=True)] == ["unnamed-key"]
    assert queue.insert("y", key="k").id == first.id


def test_what_is_no_keys_file_is_a_stray(queue_factory: QueueFactory) -> None:
    queue = queue_factory(shards=2)
    queue.insert("x", key="k")
    path = path_of(queue, "k")
    other = path.parent.parent / ("01" if path.parent.name == "00" else "00")
    other.mkdir(exist_ok=True)
    os.rename(path, other / path.name)
    (path.parent / "note").touch()
    (path.parent.parent / "7f").mkdir()
    assert sorted(kind for kind, _ in kinds(queue)) == ["stray", "stray", "stray", "unnamed-key"]
    assert all(repaired for _, repaired in kinds(queue, repair=True))
    assert kinds(queue) == []
