"""Why a queue stands still, in sentences that somebody understands who has not read the documentation."""

from __future__ import annotations

from dataclasses import replace

import pytest

import fsqueue
from fsqueue import Activity, FailingNode, LeaseHolder, Queue, Settings, Status
from fsqueue.service import actions, attention, page_contents
from fsqueue.service.attention import Notice
from fsqueue.service.page_contents import QueueLook
from fsqueue.storage.nodes import NodeFailures
from tests.conftest import QueueFactory

pytestmark = pytest.mark.once

NOW = 1_795_255_200.0


def of(queue: Queue) -> tuple[str, list[Notice]]:
    look = page_contents.look_at(queue, "q")
    return attention.verdict(look), attention.notices(look, "/scratch/me/q")


def at_work(status: Status, *workers: LeaseHolder, is_worked: bool = True) -> QueueLook:
    """A queue as it was seen at NOW."""
    found = Activity(NOW, None, None, None, None, None, None, 0, 1.0, is_worked=is_worked)
    return QueueLook("q", status, found, Settings(), None, workers)


def worker(host: str, heard: float, tasks: int = 3, life: str = "unknown", pid: int = 1) -> LeaseHolder:
    """A worker that was heard of `heard` seconds ago, with leases of 600 s."""
    who = {"host": host, "pid": pid}
    beat = NOW - heard
    return LeaseHolder(who, beat - 100, beat, beat + 600, [f"{n}" for n in range(tasks)], 0, life, "")


def test_a_queue_with_nothing_to_do_needs_nobody(queue: Queue) -> None:
    assert of(queue) == ("empty", [])
    queue.insert(1)
    queue.lease()[0].complete()
    assert of(queue) == ("done", [])


def test_nobody_works(queue: Queue) -> None:
    queue.insert_many(range(3))
    verdict, [notice] = of(queue)
    assert verdict == "stands still"
    assert notice.kind == "stands still"
    assert notice.says == "3 tasks could be worked on, and no worker is there. Start one:"
    assert notice.command == "fsqueue run /scratch/me/q -- COMMAND"
    [task] = queue.lease()
    assert of(queue) == ("at work", [])
    task.complete()
    assert of(queue)[0] == "at work"  # between two leases it holds none


def test_where_clients_of_taskstore_come_no_worker_is_asked_for(queue: Queue) -> None:
    queue.insert_many(range(3))
    look = page_contents.look_at(queue, "q", has_clients=True)
    [notice] = attention.notices(look, "/scratch/me/q")
    assert (notice.kind, notice.command) == ("note", "")
    assert notice.says.startswith("3 tasks could be claimed. Clients of taskstore")
    assert attention.verdict(look) == "at work"


def test_it_is_paused(queue: Queue) -> None:
    queue.insert(1)
    queue.pause("the licence server is down")
    verdict, [notice] = of(queue)
    assert verdict == "paused"
    assert (notice.kind, notice.action and notice.action.verb) == ("stands still", "resume")
    assert notice.says.startswith("It is paused since 2")
    assert "“the licence server is down”. 1 task waits." in notice.says


def test_tasks_were_given_up_at_the_limit_of_attempts(queue_factory: QueueFactory) -> None:
    queue = queue_factory(max_attempts=2, backoff_s=(0, 0))
    queue.insert_many(range(2))
    for _ in range(4):
        queue.lease()[0].fail("no such tile 17")
    verdict, [notice] = of(queue)
    assert verdict == "done, with dead letters"
    assert notice.kind == "stands still"
    assert notice.says == (
        "2 tasks were given up, and nothing comes of them until somebody retries them. A task is given up after 2 "
        "failed attempts. Most often: “no such tile 17”."
    )
    assert notice.action is not None
    assert notice.action.verb == "retry-dead"


def test_all_that_is_left_waits_after_failures(queue: Queue) -> None:
    queue.insert(1)
    queue.lease()[0].fail("connection refused", delay_s=3600)
    verdict, [notice] = of(queue)
    assert (verdict, notice.kind) == ("waits for its time", "problem")
    assert "1 task comes back after a failed attempt and a pause. Most often: “connection refused”" in (notice.says)


def test_a_dead_node_holds_all_that_is_left() -> None:
    look = at_work(Status(leased=6), worker("node17", 400), worker("node17", 350, pid=2))
    assert attention.verdict(look) == "stands still"
    [notice] = attention.notices(look, "q")
    assert notice.says == (
        "2 workers on node17 have given no sign of life for 5 min 50 s. Perhaps the node is down. They hold 6 tasks. "
        "Other workers get them when the leases run out, in 4 min 10 s, or at once if you release them."
    )
    assert notice.action == attention.Action("Release what node17 holds", "release", {"host": "node17"})


def test_a_dead_node_beside_others_is_a_problem_and_nothing_stands_still() -> None:
    look = at_work(Status(leased=6, waiting=3), worker("node17", 400, life="dead"), worker("node18", 10))
    assert attention.verdict(look) == "at work"
    [notice] = attention.notices(look, "q")
    assert (notice.kind, notice.says.partition(" is dead")[0]) == ("problem", "The worker node17 (process 1)")


@pytest.mark.parametrize(("heard", "life"), [(299, "unknown"), (590, "alive")])
def test_a_worker_that_renews_or_lives_is_not_silent(heard: float, life: str) -> None:
    look = at_work(Status(leased=3), worker("node17", heard, life=life))
    assert attention.notices(look, "q") == []


def test_a_claim_of_taskstore_is_no_silent_worker_and_the_gateways_host_need_not_let_go() -> None:
    claim = replace(worker("gateway", 590, life="dead"), worker={"host": "gateway", "name": "taskstore:7"})
    assert attention.notices(at_work(Status(leased=3), claim), "q") == []
    assert attention.who(claim.worker) == "taskstore:7 on gateway"


def failed_in_a_row(queue: Queue, times: int, after: int) -> str:
    """Have tasks fail on this process's node, as a worker with `exclude_after` counts them. Return the node's name."""
    failures = NodeFailures(queue.store, after)
    for _ in range(times):
        failures.failed("no GPU was found")
    return failures.node


def test_a_node_on_which_tasks_fail_in_a_row_is_named_and_can_take_tasks_again(queue: Queue) -> None:
    queue.insert_many(range(3))
    [task] = queue.lease()
    node = failed_in_a_row(queue, 2, after=3)
    verdict, [notice] = of(queue)
    assert (verdict, notice.kind) == ("at work", "note")
    assert notice.says == f"The latest 2 attempts failed on the node {node}. The last error: “no GPU was found”."
    failed_in_a_row(queue, 1, after=3)
    [notice] = of(queue)[1]
    assert notice.kind == "problem"
    assert notice.says.startswith(
        f"The node {node} takes no more tasks. The latest 3 attempts failed there. The last error: "
    )
    assert notice.action == attention.Action(f"Let {node} take tasks again", "admit-node", {"node": node})
    assert actions.act(queue, notice.action.verb, notice.action.fields) == 1
    assert actions.act(queue, notice.action.verb, notice.action.fields) == 0
    assert of(queue) == ("at work", [])
    task.complete()


def test_a_queue_stands_still_if_its_only_node_takes_no_more_tasks(queue: Queue) -> None:
    queue.insert_many(range(3))
    node = failed_in_a_row(queue, 3, after=3)
    verdict, found = of(queue)
    assert verdict == "stands still"
    assert [notice.kind for notice in found] == ["stands still"] * 2
    assert f"The node {node} takes no more tasks" in found[1].says


def test_of_very_many_failing_nodes_some_are_named() -> None:
    failing = [FailingNode(f"node{n}", 1, NOW, NOW, 5, "") for n in range(attention.NODES_MAX + 5)]
    look = replace(at_work(Status(leased=1)), failing=failing)
    found = attention.notices(look, "q")
    assert len(found) == attention.NODES_MAX + 1
    assert found[0].says == "The latest attempts failed on 5 more nodes."


def test_leases_that_ran_out() -> None:
    late = worker("node17", 700, tasks=0)
    late.expired = 3
    [notice] = attention.notices(at_work(Status(waiting=3), late), "q")
    assert notice.says.startswith("The leases of 3 tasks have run out")


def test_a_queue_that_cannot_be_read(queue: Queue) -> None:
    (queue.path / "queue.jsonl").write_text("{}\n")
    opened = fsqueue.Group.create(queue.path.parent / "none")["x"]
    assert attention.verdict(page_contents.look_at(opened, "x")) == "empty"
    look = QueueLook("q", error="It is damaged.")
    assert attention.verdict(look) == "cannot be read"
    assert [notice.says for notice in attention.notices(look, "q")] == ["It cannot be read: It is damaged."]
