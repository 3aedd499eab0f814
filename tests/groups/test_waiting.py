"""Waiting for a task: at each kind of source a notification of this host ends it, and a queue may come and go."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

import fsqueue
from fsqueue import Group, InvalidArgument, LeasedTask, Queue
from fsqueue.protocol import waiting
from tests.support import leasing

pytestmark = pytest.mark.once

NEVER_S = (600.0, 600.0)
"""Pauses after which a test would have failed: what it finds in time, it was told of."""
SHORT_S = (0.01, 0.05)


@pytest.fixture
def group(tmp_path: Path) -> Group:
    return Group.create(tmp_path / "group", shards=2, durability="none")


def of_queue(group: Group) -> list[LeasedTask]:
    return group["q"].lease(wait_s=NEVER_S[0])


def with_holder(group: Group) -> list[LeasedTask]:
    return group["q"].lease(wait_s=NEVER_S[0], holder={"host": "elsewhere"}, strict=True, up_to=9)


def at_random(group: Group) -> list[LeasedTask]:
    return group["q"].lease(wait_s=NEVER_S[0], order="random")


def by_loop(group: Group) -> list[LeasedTask]:
    with closing(group["q"].poll(until="forever")) as loop:
        return [next(loop)]


def of_group(group: Group) -> list[LeasedTask]:
    return group.lease(wait_s=NEVER_S[0])


def of_pattern(group: Group) -> list[LeasedTask]:
    return group.matching("q").lease(wait_s=NEVER_S[0])


def by_loop_over_group(group: Group) -> list[LeasedTask]:
    with closing(group.poll(until="forever")) as loop:
        return [next(loop)]


def of_several(group: Group) -> list[LeasedTask]:
    return fsqueue.lease([group["a"], group["q"]], wait_s=NEVER_S[0])


Wait = Callable[[Group], list[LeasedTask]]
OF_ONE: list[Wait] = [of_queue, with_holder, at_random, by_loop]
ALL: list[Wait] = [*OF_ONE, of_group, of_pattern, by_loop_over_group, of_several]


@pytest.mark.parametrize("wait", ALL)
def test_a_task_inserted_on_this_host_ends_a_wait(group: Group, monkeypatch: pytest.MonkeyPatch, wait: Wait) -> None:
    for name in "aq":
        group[name].insert("before")
        group[name].complete(group[name].lease())
    monkeypatch.setattr(waiting, "BELL_S", NEVER_S)
    with leasing(lambda: wait(Group(group.path))) as found:
        group["q"].insert("x", priority=3)
    assert found == ["x"]


@pytest.mark.parametrize("wait", OF_ONE)
def test_a_wait_goes_on_while_a_queue_comes_into_being_is_deleted_and_comes_again(
    group: Group, monkeypatch: pytest.MonkeyPatch, wait: Wait
) -> None:
    monkeypatch.setattr(waiting, "BELL_S", SHORT_S)
    with leasing(lambda: wait(Group(group.path))) as found:
        group["q"].insert("too late for that", delay_s=3600)
        group.delete("q")
        group["q"].insert("x", priority=3)
    assert found == ["x"]


@pytest.mark.parametrize("how", [{"order": "best"}, {"up_to": 1.5}, {"holder": 3}, {"lease_s": -1}, {"wait_s": -1}])
@pytest.mark.parametrize("is_there", [True, False])
def test_wrong_arguments_are_refused_at_once(group: Group, how: dict[str, object], is_there: bool) -> None:
    if is_there:
        group["q"].insert(1, delay_s=3600)
    with pytest.raises(InvalidArgument):
        group["q"].lease(**{"wait_s": NEVER_S[0], **how})


def test_a_lease_for_another_worker_that_waited_is_the_only_one_for_it(group: Group, tmp_path: Path) -> None:
    for queue in (group["q"], Queue.create(tmp_path / "plain")):
        queue.insert_many([1, 2])
        queue.lease(wait_s=1, holder={"host": "elsewhere", "name": "other"})
        queue.lease(wait_s=1)
        assert {one.worker["host"] == "elsewhere" for one in queue.workers()} == {True, False}
