"""Every kind of queue hides at once, from whoever asks, what it does not keep of finished tasks."""

from __future__ import annotations

from typing import Any

import pytest

from fsqueue import Group, Task
from tests.conformance.kinds import A_KEY

pytestmark = pytest.mark.once


def told_of(queue: Any, ids: list[str]) -> str:
    """All that the readers tell of finished tasks, as text."""
    found: list[Any] = [*queue.tasks("completed"), *queue.tasks("cancelled"), *queue.results()]
    for task_id in ids:
        found += [queue.task(task_id), *queue.history(task_id)]
    return "\n".join(map(str, found))


@A_KEY
def test_nothing_shows_a_payload_once_the_queue_keeps_it_no_more(queue: Any) -> None:
    """Of batches that have ended, of one that is at work, of tasks that were inserted singly, and of cancelled ones."""
    queue.insert_many([Task(f"secret {number}", key=f"secret key {number}") for number in range(3)])
    queue.insert("secret, alone", key="secret key", priority=3)
    queue.complete(queue.lease(3))
    queue.cancel(next(queue.tasks()).id)
    queue.insert_many([f"secret {number}" for number in range(8)])
    queue.complete(queue.lease(6))
    ended = [info.id for state in ("completed", "cancelled") for info in queue.tasks(state)]
    assert (len(ended), told_of(queue, ended).count("secret") > 2 * len(ended)) == (10, True)
    queue.change_settings(keep_payloads=0)
    assert "secret" not in told_of(queue, ended)
    assert [info.payload for info in queue.tasks()] == ["secret 6", "secret 7"], "what is to be done is shown"
    assert (queue.retry_completed().retried, queue.status().completed) == (0, 9)
    queue.gc()
    assert "secret" not in told_of(queue, ended)


def test_nothing_shows_what_an_update_gave(group: Any) -> None:
    queue, other = group["fetch"], group["parse"]
    with group.update() as update:
        update.insert(queue, "secret", key="secret key")
        update.insert(queue, "first")
    [first] = [info for info in queue.tasks() if info.payload == "first"]
    with group.update() as update:
        update.replace(first, "secret, in its place")
    tasks = queue.lease(2)
    with group.update() as update:
        for task in tasks:
            update.complete(task, result="a result")
        update.insert(other, "what comes of it")
    ids = [task.id for task in tasks]
    assert told_of(queue, ids).count("secret") >= 4
    queue.change_settings(keep_payloads=0)
    assert "secret" not in told_of(queue, ids)
    if isinstance(group, Group):
        lines = [group.lineage("fetch", one) for one in ids]
        assert all(line.successors for line in lines)
        assert "secret" not in str(lines)
    [next_one] = other.tasks()
    assert next_one.payload == "what comes of it"
    queue.gc()
    assert "secret" not in told_of(queue, ids)
