"""Barriers at a gateway: who leases there, and finds nothing, lets one pass; a client sets one."""

from __future__ import annotations

import pickle  # noqa: TID251 - barriers are sent to other processes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fsqueue
from fsqueue import Group, RemoteGroup
from fsqueue.client.values import PART_ITEMS
from fsqueue.format.barriers import BatchTasks
from fsqueue.format.names import Uuid
from fsqueue.groups.barriers import listed
from tests.gateways import gateways
from tests.waiting import PATIENCE_S

pytestmark = pytest.mark.once


@contextmanager
def served_group(tmp_path: Path, **settings: Any) -> Iterator[tuple[Group, RemoteGroup]]:
    """Yield a new group, and the same one at a gateway."""
    group = Group.create(tmp_path / "g", **settings)
    with gateways(tmp_path) as serve:
        served = fsqueue.connect(serve(group.path))
        assert isinstance(served, RemoteGroup)
        yield group, served


def test_who_leases_at_a_gateway_lets_it_pass(tmp_path: Path) -> None:
    with served_group(tmp_path) as (group, served):
        group["fetch"].insert(1)
        barrier = group.barrier("fetch", then=("report", 2))
        [task] = served["fetch"].lease()
        assert served["report"].lease() == []
        assert barrier.state == "waiting"
        task.complete()
        [task] = served["report"].lease(wait_s=PATIENCE_S)
        assert (task.payload, barrier.state) == (2, "fired")


def test_a_barrier_that_is_drained_already_has_passed_when_the_call_returns(tmp_path: Path) -> None:
    with served_group(tmp_path) as (group, served):
        barrier = served.barrier(["nobody"], then=("report", 2))
        assert [one.state for one in group.barriers()] == [barrier.state] == ["fired"]
        again = pickle.loads(pickle.dumps(barrier))
        assert (again, again.state) == (barrier, "fired")


def test_what_is_no_barriers_id_is_refused_or_forgotten(tmp_path: Path) -> None:
    with served_group(tmp_path) as (_, served):
        known = served.barrier(["nobody"], then=("report", 2))
        for wrong in (known.id + "0", known.id[1:], ""):
            with pytest.raises(fsqueue.InvalidArgument, match="id must be text of 32"):
                _ = replace(known, id=Uuid(wrong)).state
            with pytest.raises(fsqueue.InvalidArgument, match="id must be text of 32"):
                replace(known, id=Uuid(wrong)).cancel()
        for unknown in ("../" + known.id[3:], known.id[::-1]):
            found = replace(known, id=Uuid(unknown))
            assert (found.state, found.cancel()) == ("forgotten", False)


def test_a_join_of_more_tasks_than_a_list_of_a_request_holds(tmp_path: Path) -> None:
    with served_group(tmp_path, shards=1, durability="none") as (group, served):
        refs = served["fetch"].insert_many(range(PART_ITEMS + 1), refs=True)
        join = served.join(refs, then=("report", 2))
        assert sum(part.size for part in _tasks_of(group, join.id)) == len(refs)
        with pytest.raises(fsqueue.TaskTooLarge, match="as a request"):
            served.barrier("fetch", [("report", "x" * 1000)] * 9_000)
        assert [one.id for one in group.barriers()] == [join.id]


def _tasks_of(group: Group, identity: str) -> Sequence[BatchTasks]:
    [record] = [one for one, _ in listed(group.directory()) if one.id == identity]
    return record.tasks


def test_a_gateway_of_one_queue_has_no_barriers_and_tells_of_inputs(tmp_path: Path) -> None:
    group, alone = Group.create(tmp_path / "g"), fsqueue.Queue.create(tmp_path / "q")
    ref = group["fetch"].insert(1)
    group.join([ref], then=("report", 2))
    for task in group["fetch"].lease():
        task.complete("done")
    assert group.pass_barriers(at_once=True) == 1
    alone.insert(1)
    with gateways(tmp_path) as serve:
        report, other = (fsqueue.connect(serve(path)) for path in (f"{group.path}/report", alone.path))
        assert isinstance(report, fsqueue.RemoteQueue)
        assert isinstance(other, fsqueue.RemoteQueue)
        [task] = report.lease()
        assert [one.result for one in task.inputs()] == ["done"]
        [task] = other.lease()
        with pytest.raises(fsqueue.InvalidArgument, match="only a task that a join has inserted"):
            list(task.inputs())
