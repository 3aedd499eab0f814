"""A signal handler forks within a verb of a client: the child does nothing of it, and gets ForkedChild.

As in tests/test_signal_forks.py, in lines of fsqueue's own code that the verb executes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

import fsqueue
from fsqueue import Group, RemoteGroup, RemoteQueue
from tests.gateways import Serve
from tests.levels import how_many
from tests.test_signal_forks import Forker

pytestmark = pytest.mark.once

STRIDE = how_many(5, 1)
"""It forks in one of STRIDE new lines."""


def _one(group: RemoteGroup) -> fsqueue.LeasedTask:
    group["a"].insert("x")
    [task] = group["a"].lease()
    return task


def _with_result(group: RemoteGroup) -> tuple[Iterator[fsqueue.LeasedTask], dict[str, int]]:
    task = _one(group)
    return iter([task]), {task.id: 2}


def _update(group: RemoteGroup) -> Any:
    update = group.update()
    update.complete(_one(group), {"links": 2})
    update.insert("b", "x")
    update.insert_many("b", iter(["y", "z"]))
    return update


def _only_inserts(group: RemoteGroup) -> Any:
    update = group.update()
    update.insert("b", "x")
    return update


Counts = tuple[tuple[int, int, int], tuple[int, int, int]]
NONE = (0, 0, 0)
VERBS: dict[str, tuple[Callable[[RemoteGroup], Any], Callable[[RemoteQueue, Any], Any], Counts]] = {
    "insert": (lambda group: None, lambda queue, _: queue.insert("x"), ((1, 0, 0), NONE)),
    "insert_many": (lambda group: None, lambda queue, _: queue.insert_many(iter("xyz")), ((3, 0, 0), NONE)),
    "a commit": (lambda group: None, lambda queue, _: queue.insert_many([*"xyz"], commit="c"), ((3, 0, 0), NONE)),
    "lease": (lambda group: group["a"].insert("x"), lambda queue, _: queue.lease(), ((0, 1, 0), NONE)),
    "complete": (_one, lambda queue, task: task.complete({"links": 2}), ((0, 0, 1), NONE)),
    "complete many": (_with_result, lambda queue, given: queue.complete(*given), ((0, 0, 1), NONE)),
    "renew": (_one, lambda queue, task: queue.renew(iter([task])), ((0, 1, 0), NONE)),
    "fail": (_one, lambda queue, task: task.fail("no", delay_s=3600), ((1, 0, 0), NONE)),
    "release": (_one, lambda queue, task: task.release(), ((1, 0, 0), NONE)),
    "an update": (_update, lambda queue, update: update.apply(), ((0, 0, 1), (3, 0, 0))),
    "an update that only inserts": (_only_inserts, lambda queue, update: update.apply(), (NONE, (1, 0, 0))),
}
"""How to prepare a verb, the verb, and how many tasks of a and of b are waiting, leased and completed afterwards."""


def _counts(group: Group, name: str) -> tuple[int, int, int]:
    status = group[name].status()
    return status.waiting + status.delayed, status.leased, status.completed


@pytest.mark.one_in(3)
@pytest.mark.parametrize("verb", VERBS)
def test_a_child_of_a_signal_handler_does_nothing_in_its_parents_verb(group: Group, serve: Serve, verb: str) -> None:
    prepare, act, counts = VERBS[verb]
    remote = fsqueue.connect(serve(group.path))
    assert isinstance(remote, RemoteGroup)
    queue = remote["a"]
    forker = Forker(stride=STRIDE)
    for _ in forker.rounds(may_return=False):
        given = prepare(remote)
        forker.run(partial(act, queue, given))
        if (_counts(group, "a"), _counts(group, "b")) != counts:
            forker.wrong.append(f"{forker.where}: {group['a'].status()}, {group['b'].status()}")
        for name in ("a", "b"):
            if group[name].exists():
                group[name].purge()
