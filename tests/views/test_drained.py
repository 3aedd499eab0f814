""" "Drained" beside a task that always lives, and hops from place to place by every verb: it is never said."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import fsqueue
from fsqueue import Group, Queue, StorageError
from fsqueue.poll import Prefetched, _EndCheck
from fsqueue.views.inspection import DrainCheck
from fsqueue.worker.sources import sources_of
from tests.hopping import ENDS, WAYS, Hopper
from tests.levels import each_once

pytestmark = pytest.mark.once


def waits(wait: Callable[[], list[fsqueue.Status]]) -> bool:
    """Return whether a wait says that all is drained. It says so of a proof alone."""
    try:
        return all(status.drained for status in wait())
    except StorageError as error:
        if "are not drained" not in str(error):
            raise
        return False


def loop(queue: Queue) -> Prefetched:
    return Prefetched(queue, None, False, "record", None)


ASKED: dict[str, Callable[[Group], bool]] = {
    "a queue": lambda group: group["b"].is_drained(),
    "waiting for a queue": lambda group: waits(lambda: [group["b"].wait(0)]),
    "a loop over a queue": lambda group: _EndCheck(group["b"].store, loop(group["b"]))(),
    "several queues": lambda group: DrainCheck(group["a"].store, group["b"].store)(),
    "waiting for several": lambda group: waits(lambda: fsqueue.wait([group.path / "a", group.path / "b"], 0)),
    "a worker of several": lambda group: sources_of(
        [fsqueue.Queue(group.path / name) for name in "ab"]
    ).drain_check()(),
    "a group": lambda group: group.is_drained(),
    "waiting for a group": lambda group: waits(lambda: [group.wait(0)]),
    "a worker of a group": lambda group: sources_of(group).drain_check()(),
}
OF_ONE = ("a queue", "waiting for a queue", "a loop over a queue")


def asked_while_a_task_hops(path: Path, asked: str, way: str, verb: str) -> None:
    hopper = Hopper(path / "group", way, verb, "b" if asked in OF_ONE else "ab")
    with hopper.hopping() as group:
        for _ in range(3):
            assert not ASKED[asked](group)
        assert hopper.hops
        hopper.end()
        assert ASKED[asked](group)


@each_once(("asked", list(ASKED)), ("verb", ENDS))
def test_a_task_that_hops_is_not_missed_however_it_ends(tmp_path: Path, asked: str, verb: str) -> None:
    asked_while_a_task_hops(tmp_path, asked, "file", verb)


@each_once(("asked", list(ASKED)), ("way", WAYS))
def test_a_task_that_hops_is_not_missed_however_it_comes(tmp_path: Path, asked: str, way: str) -> None:
    asked_while_a_task_hops(tmp_path, asked, way, "cancel")


@each_once(("way", WAYS), ("verb", ENDS))
def test_a_task_that_hops_is_not_missed_however_it_comes_and_ends(tmp_path: Path, way: str, verb: str) -> None:
    asked_while_a_task_hops(tmp_path, "a group", way, verb)
