"""Requests that are done together: who gathers, what each is told, and what a slow turn holds up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from starlette.testclient import TestClient

import fsqueue
from fsqueue.service import request_batches, request_fields
from fsqueue.service.faults import Overloaded, Unanswered
from fsqueue.service.limits import ServiceLimits
from fsqueue.service.request_batches import AGAIN, ALONE, RequestBatches
from fsqueue.service.served import Served
from fsqueue.service.threads import ServiceThreads
from fsqueue.service.update_requests import RequestedUpdate
from fsqueue.verbs.table import ROUTED, UPDATE_S
from tests.service.conftest import gateway_of
from tests.waiting import until, until_async

pytestmark = pytest.mark.once


class Turns:
    """An act that notes what it was given, and goes on when it is told to."""

    def __init__(self, tell: Callable[[Any], Any] = lambda what: what) -> None:
        self.given: list[list[Any]] = []
        self.may_end = threading.Semaphore(0)
        self._tell = tell

    def __call__(self, what: Sequence[Any]) -> list[Any]:
        self.given.append([*what])
        self.may_end.acquire()
        return [self._tell(one) for one in what]


def told(story: Callable[[RequestBatches, ServiceThreads], Awaitable[None]], **limits: Any) -> None:
    """Tell a story in an event loop."""

    async def telling() -> None:
        threads = ServiceThreads(ServiceLimits(**limits))
        await story(RequestBatches(threads), threads)
        assert threads._asked == 0, "all are counted off"
        threads.close()

    asyncio.run(telling())


def alone(what: Any, is_again: bool) -> Any:
    return ("alone", what, is_again)


@pytest.fixture(autouse=True)
def never_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_batches, "SLOW_S", 3600)


def test_what_comes_during_a_turn_is_done_in_the_next_one() -> None:
    async def story(turns: RequestBatches, threads: ServiceThreads) -> None:
        act = Turns()
        running = [asyncio.ensure_future(turns.run("key", 0, act, alone))]
        await until_async(lambda: act.given, "the first turn to begin")
        running += [asyncio.ensure_future(turns.run("key", n, act, alone)) for n in (1, 2, 3)]
        other = asyncio.ensure_future(turns.run("other", 4, act, alone))
        await until_async(lambda: [4] in act.given, "another key to have a turn of its own")
        act.may_end.release(3)
        assert await asyncio.gather(*running, other) == [0, 1, 2, 3, 4]
        assert act.given == [[0], [4], [1, 2, 3]]
        assert not turns._lanes

    told(story)


def test_a_slow_turn_holds_up_none_that_come_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_batches, "SLOW_S", 0.0)

    async def story(turns: RequestBatches, threads: ServiceThreads) -> None:
        slow, act = Turns(), Turns()
        first = asyncio.ensure_future(turns.run("key", 0, slow, alone))
        await until_async(lambda: slow.given, "the slow turn to begin")
        second = asyncio.ensure_future(turns.run("key", 1, act, alone))
        act.may_end.release()
        assert await second == 1
        assert not first.done()
        slow.may_end.release()
        assert await first == 0

    told(story)


def test_each_is_told_its_own_outcome() -> None:
    async def story(turns: RequestBatches, threads: ServiceThreads) -> None:
        outcomes = {0: 0, 1: fsqueue.StorageFull("no room"), 2: ALONE, 3: AGAIN, 4: 4}
        act = Turns(outcomes.__getitem__)
        act.may_end.release(9)
        found = await asyncio.gather(*(turns.run("key", n, act, alone) for n in outcomes), return_exceptions=True)
        assert [*found[:1], *found[2:]] == [0, ("alone", 2, False), ("alone", 3, True), 4]
        assert isinstance(found[1], fsqueue.StorageFull)

        def breaks(what: Sequence[Any]) -> list[Any]:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await turns.run("key", 0, breaks, alone)

    told(story)


async def one_under_way_and_one_that_waits(
    turns: RequestBatches, act: Turns, late: list[Any]
) -> tuple[asyncio.Future[Any], asyncio.Future[Any]]:
    """Ask twice. Return the request whose turn has begun, and the one behind it."""
    first = asyncio.ensure_future(turns.run("key", 0, act, alone, late.append))
    await until_async(lambda: act.given, "the turn to begin")
    second = asyncio.ensure_future(turns.run("key", 1, act, alone, late.append))
    await asyncio.sleep(0)
    return first, second


def test_what_comes_too_late_is_handed_on() -> None:
    async def story(turns: RequestBatches, threads: ServiceThreads) -> None:
        act, late = Turns(), list[Any]()
        first, second = await one_under_way_and_one_that_waits(turns, act, late)
        first.cancel()
        second.cancel()
        await asyncio.wait([first, second])
        act.may_end.release(2)
        await until_async(lambda: late == [0], "what was done to be handed on")
        assert act.given == [[0]], "what had not begun is not done"

    told(story)


def test_too_many_are_refused_and_a_silent_filesystem_is_told() -> None:
    async def story(turns: RequestBatches, threads: ServiceThreads) -> None:
        act, late = Turns(), list[Any]()
        first, second = await one_under_way_and_one_that_waits(turns, act, late)
        with pytest.raises(Overloaded):
            await turns.run("key", 2, act, alone)
        with pytest.raises(Unanswered, match="unknown"):
            await first
        with pytest.raises(Unanswered, match="Nothing was done"):
            await second
        act.may_end.release()
        await until_async(lambda: late == [0], "what was done to be handed on")

    told(story, answer_s=1.0, verbs_max=1, backlog_max=1)


# -- the verbs -----------------------------------------------------------------------------------------------


@pytest.fixture
def served(group: fsqueue.Group) -> Served:
    return Served(group.path, 64)


HOW: dict[str, Any] = {"lease_s": None, "up_to": None, "order": "priority", "strict": False}


def test_leases_of_many_workers_are_in_their_names(served: Served, group: fsqueue.Group) -> None:
    group["q"].insert_many(range(3))
    wanted = [request_batches.Wanted(n, {"host": host}) for n, host in ((1, "a"), (5, "b"), (1, "c"))]
    found = request_batches.lease(served, "q", HOW, wanted)
    assert [len(one) for one in found if isinstance(one, list)] == [1, 2, 0]
    assert {one.worker["host"]: len(one.tasks) for one in group["q"].workers()} == {"a": 1, "b": 2}
    assert request_batches.lease(served, "none", HOW, wanted) == [[], [], []]


def test_a_wrong_holder_fails_no_other_request(served: Served, group: fsqueue.Group) -> None:
    group["q"].insert_many(range(3))
    wanted = [request_batches.Wanted(1, {"host": "a"}), request_batches.Wanted(1, {"host": ""})]
    assert request_batches.lease(served, "q", HOW, wanted) == [ALONE, ALONE]
    assert group["q"].status().leased == 0


def test_completions_together_tell_each_what_became_of_its_task(served: Served, group: fsqueue.Group) -> None:
    queue = group["q"]
    queue.insert_many(range(6))
    tasks = queue.lease(5)
    tasks[1].release()
    given = [{"tasks": [{"token": task.token, "result": None}]} for task in (*tasks[:4], tasks[0])]
    given[2]["tasks"][0]["result"] = {"pages": 3}
    given[3]["tasks"].append({"token": tasks[4].token, "result": None})
    given.append({"tasks": [{"token": "none", "result": None}]})
    done = {"completed": 1}
    assert request_batches.complete(served, "q", given) == [done, ALONE, done, ALONE, ALONE, ALONE]
    with pytest.raises(fsqueue.LeaseLost, match="given back"):
        request_batches.complete_alone(served, "q", given[1], is_again=True)
    assert request_batches.complete(served, "q", [given[3]]) == [{"completed": 2}]
    assert queue.status().completed == 4


def test_completions_of_which_one_cannot_be_kept_are_asked_about_again(served: Served, group: fsqueue.Group) -> None:
    queue = group["q"]
    queue.insert_many(range(2))
    tasks = queue.lease(2)
    given = [{"tasks": [{"token": task.token, "result": None}]} for task in tasks]
    given[1]["tasks"][0]["result"] = "x" * (1 << 20)
    assert request_batches.complete(served, "q", given) == [AGAIN, AGAIN]
    assert request_batches.complete_alone(served, "q", given[0], is_again=True) == {"completed": 1}
    with pytest.raises(fsqueue.InvalidResult):
        request_batches.complete_alone(served, "q", given[1], is_again=True)
    assert queue.status().leased == 1


BODY = next(route.body for verb, route in ROUTED if verb.name == "update")


def update(**operations: Any) -> RequestedUpdate:
    """Return an update as its fields are checked."""
    return RequestedUpdate(request_fields.given_in(BODY, operations), UPDATE_S)


def test_updates_together_happen_as_one(served: Served, group: fsqueue.Group) -> None:
    queue = group["q"]
    queue.insert_many(range(3))
    tasks = queue.lease(3)
    given = [
        update(
            complete=[{"queue": "q", "token": task.token}],
            inserts=[{"queue": "next", "payload": [task.payload, n]} for n in range(place + 1)],
        )
        for place, task in enumerate(tasks)
    ]
    found = request_batches.update(served, given)
    for place, one in enumerate(found):
        assert isinstance(one, dict)
        ids = [inserted["id"] for inserted in one["inserted"]]
        assert [group["next"].task(id).payload for id in ids] == [[tasks[place].payload, n] for n in range(place + 1)]
    assert queue.status().completed == 3
    assert group["next"].status().waiting == 6


def test_of_updates_that_conflict_each_is_applied_by_itself(served: Served, group: fsqueue.Group) -> None:
    queue = group["q"]
    queue.insert_many(range(3))
    tasks = queue.lease(3)
    tasks[2].complete()
    given = [
        update(complete=[{"queue": "q", "token": task.token}], inserts=[{"queue": "next", "payload": 1}])
        for task in tasks
    ]
    assert request_batches.update(served, given) == [ALONE] * 3
    assert group["next"].status().remaining == 0
    assert request_batches.update(served, [given[0], given[0], given[1]])[1] is ALONE, (
        "one names a task that another one names"
    )
    assert queue.status().completed == 3
    keyed = update(inserts=[{"queue": "next", "payload": 2, "key": "k"}])
    assert request_batches.update(served, [keyed, keyed]) == [ALONE, ALONE]
    many = update(inserts=[{"queue": "next", "payload": n} for n in range(request_batches.OPERATIONS_MAX + 1)])
    assert request_batches.update(served, [many, many]) == [ALONE, ALONE]
    hurried = [one._replace(timeout_s=0) for one in (given[0], given[1])]
    assert request_batches.update(served, hurried) == [ALONE, ALONE], (
        "together they would wait for longer than they may"
    )


def test_an_update_that_may_have_happened_is_applied_once(
    served: Served, group: fsqueue.Group, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(self: fsqueue.Update, timeout_s: float) -> list[Any]:
        raise fsqueue.StorageError("It is unknown whether it has happened.")

    monkeypatch.setattr(fsqueue.Update, "apply", fails)
    given = [update(inserts=[{"queue": "q", "payload": n}]) for n in range(2)]
    assert [type(one) for one in request_batches.update(served, given)] == [fsqueue.StorageError] * 2


def test_many_clients_at_once_do_each_task_once(client: TestClient, group: fsqueue.Group) -> None:
    tasks, clients = 120, 12
    group["q"].insert_many(range(tasks))
    done: list[int] = []

    def work(number: int) -> None:
        while True:
            sent = {"holder": {"host": "h", "pid": number}, "wait_s": 0.01}
            found = client.post("/v1/queues/q/lease", json=sent).json()["tasks"]
            if not found:
                return
            for task in found:
                if number % 2:
                    answer = client.post("/v1/queues/q/complete", json={"tasks": [{"token": task["token"]}]})
                else:
                    inserted = {"queue": "next", "payload": task["payload"]}
                    ended = {"queue": "q", "token": task["token"]}
                    answer = client.post("/v1/update", json={"complete": [ended], "inserts": [inserted]})
                    done.append(task["payload"])
                assert answer.status_code == 200, answer.text

    with ThreadPoolExecutor(clients) as pool:
        for future in [pool.submit(work, number) for number in range(clients)]:
            future.result()
    status = group["q"].status()
    assert (status.completed, status.remaining) == (tasks, 0)
    assert sorted(task.payload for task in group["next"].tasks()) == sorted(done)
    until(lambda: not gateway_of(client).threads._asked, "all to be counted off")
