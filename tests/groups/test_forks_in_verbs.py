"""A signal handler forks anywhere in a verb of a group: no child gets the exception that the verbs carry inside."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Group, UpdateConflict
from tests.levels import how_many
from tests.test_signal_forks import Forker

pytestmark = pytest.mark.once


def _update(group: Group) -> None:
    for task in group["a"].lease():  # none, if a child has it that was forked before this process had begun to lease
        # A child that is forked while the update is being made applies it as its own: then the parent's is refused.
        with suppress(UpdateConflict), group.update() as update:
            update.complete(task, 1)
            update.insert("b", "x")


VERBS: dict[str, Callable[[Group], Any]] = {
    "status": lambda group: group.status(),
    "queues": lambda group: list(group.queues()),
    "is_drained": lambda group: group.is_drained(),
    "lease": lambda group: group.lease(),
    "wait": lambda group: fsqueue.wait([group["a"], group.matching("b")], 0),
    "delete": lambda group: group.delete("a"),
    "usage": lambda group: group.usage(),
    "fsck": lambda group: list(group.fsck()),
    "a queue exists": lambda group: group["a"].exists(),
    "a queue is paused": lambda group: group["a"].pause("x"),
    "an insert into a new queue": lambda group: group["new"].insert("x"),
    "inserts into a deleted queue": lambda group: group["a"].insert_many(["x"]) if group.delete("a") else None,
    "an update": _update,
}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("verb", VERBS)
def test_a_child_of_a_signal_handler_gets_forked_child(tmp_path: Path, verb: str) -> None:
    forker = Forker(stride=how_many(31, 5))
    group = Group.create(tmp_path / "group", shards=2, durability="none")
    for _ in forker.rounds(forks_min=2):
        group["a"].insert_many(range(2))
        assert len(group["a"].lease()) == 1
        group.close()  # so that the verb opens what it needs
        forker.run(partial(VERBS[verb], group))
        for queue in group.queues(tasks_min=0):
            queue.delete(foreground=True)
