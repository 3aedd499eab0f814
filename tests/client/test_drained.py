""" "Drained" through a gateway, beside a task that always lives, and hops from place to place: it is never said."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Group, Queue, QueuePurged, RemoteGroup, RemoteQueue, Status
from fsqueue.worker.sources import sources_of
from tests.gateways import gateways
from tests.hopping import ENDS, WAYS, Hopper
from tests.levels import each_once
from tests.views.test_drained import waits

pytestmark = pytest.mark.once

Connect = Callable[[Path], RemoteGroup | RemoteQueue]

ASKED: dict[str, Callable[[Any], bool]] = {
    "asking": lambda queue: queue.is_drained(),
    "waiting": lambda queue: waits(lambda: [queue.wait(0)]),
    "waiting for a time": lambda queue: waits(lambda: [queue.wait(timeout_s=0.01)]),
    "a loop": lambda queue: queue.poll()._stop(),
    "a worker": lambda queue: sources_of(queue).drain_check()(),
}


def of_a_group(group: Group, connect: Connect) -> RemoteQueue:
    served = connect(group.path)
    assert isinstance(served, RemoteGroup)
    return served["b"]


def alone(group: Group, connect: Connect) -> RemoteQueue:
    served = connect(group.path / "b")
    assert isinstance(served, RemoteQueue)
    return served


def group_itself(group: Group, connect: Connect) -> RemoteGroup:
    served = connect(group.path)
    assert isinstance(served, RemoteGroup)
    return served


SERVED: dict[str, Callable[[Group, Connect], RemoteQueue | RemoteGroup]] = {
    "a queue of a group": of_a_group, "a queue": alone, "a group": group_itself,
}  # fmt: skip


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    with gateways(tmp_path) as serve:
        yield lambda path: fsqueue.connect(serve(path))


def asked_while_a_task_hops(path: Path, connect: Connect, served: str, asked: str, way: str, verb: str) -> None:
    hopper = Hopper(path / "group", way, verb, "ab" if served == "a group" else "b")
    with hopper.hopping() as group, SERVED[served](group, connect) as remote:
        for _ in range(3):
            begun = hopper.hops
            assert not ASKED[asked](remote)
            assert hopper.hops > begun, "the gateway's looks met the task nowhere"
        hopper.end()
        assert ASKED[asked](remote)


@each_once(("asked", list(ASKED)), ("verb", ENDS))
def test_a_task_that_hops_is_not_missed_however_it_ends(
    tmp_path: Path, connect: Connect, asked: str, verb: str
) -> None:
    asked_while_a_task_hops(tmp_path, connect, "a queue of a group", asked, "file", verb)


@each_once(("asked", list(ASKED)), ("way", WAYS))
def test_a_task_that_hops_is_not_missed_however_it_comes(
    tmp_path: Path, connect: Connect, asked: str, way: str
) -> None:
    asked_while_a_task_hops(tmp_path, connect, "a queue", asked, way, "cancel")


TOGETHER: dict[str, Callable[[Group, Any], bool]] = {
    "waiting for two addresses": lambda group, remote: waits(lambda: fsqueue.wait([remote["a"], remote["b"]], 0)),
    "for a path and an address": lambda group, remote: waits(lambda: fsqueue.wait([group["a"], remote["b"]], 0)),
    "for an address and a path": lambda group, remote: waits(
        lambda: fsqueue.wait([remote.matching("a"), Queue(group.path / "b")], 0)
    ),
    "a worker with a stage before it": lambda group, remote: sources_of(remote["b"], remote["a"]).drain_check()(),
    "a worker of a group with one": lambda group, remote: sources_of(
        remote.matching("b"), [remote["a"]]
    ).drain_check()(),
}


@pytest.mark.parametrize("asked", TOGETHER)
def test_a_task_that_hops_is_not_missed_by_looks_at_one_queue_after_the_other(
    tmp_path: Path, connect: Connect, asked: str
) -> None:
    hopper = Hopper(tmp_path / "group", "update", "complete", "ab")
    with hopper.hopping() as group:
        remote = connect(group.path)
        for _ in range(3):
            begun = hopper.hops
            assert not TOGETHER[asked](group, remote)
            assert hopper.hops > begun, "the looks met the task nowhere"
        hopper.end()
        assert TOGETHER[asked](group, remote)


def test_a_wait_for_paths_and_addresses_tells_the_status_of_each(tmp_path: Path, connect: Connect) -> None:
    group = Group.create(tmp_path / "group", shards=1, durability="none")
    remote, told = connect(group.path), list[Any]()
    for name in "ab":
        group[name].insert_many([1, 2])
    given = [group["a"], remote["b"], remote]  # type: ignore[index]
    assert fsqueue.wait(given, 0, told.append) == [Status(waiting=2), Status(waiting=2), Status(waiting=4)]
    assert told
    for name in "ab":
        group[name].complete(group[name].lease(2))
    assert fsqueue.wait(given) == [Status(completed=2), Status(completed=2), Status(completed=4)]
    assert fsqueue.wait([remote["not there"]]) == [Status()]  # type: ignore[index]


@pytest.mark.parametrize("what", ["purged", "deleted"])
def test_a_wait_for_several_says_that_one_at_an_address_was_purged(tmp_path: Path, connect: Connect, what: str) -> None:
    group = Group.create(tmp_path / "group", shards=1, durability="none")
    remote = connect(group.path)
    for name in "ab":
        group[name].insert(1)

    def end(statuses: list[Status]) -> None:
        group["a"].complete(group["a"].lease(1))
        group["b"].purge() if what == "purged" else group.delete("b")

    for queue in (remote["b"], remote):  # type: ignore[index]
        with pytest.raises(QueuePurged, match=what) as purged:
            fsqueue.wait([group["a"], queue], poll=end)
        assert f"{remote.url.rstrip('/')}/b" in str(purged.value)
        group["b"].insert(1)


@pytest.mark.parametrize("asked", [one for one in ASKED if one != "a worker"])
def test_a_task_that_hops_from_queue_to_queue_of_a_group_is_not_missed(
    tmp_path: Path, connect: Connect, asked: str
) -> None:
    asked_while_a_task_hops(tmp_path, connect, "a group", asked, "update", "complete")
