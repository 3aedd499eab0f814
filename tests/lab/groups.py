"""What groups cost an NFS server: calls of a look at all queues, of a lessee that waits, of one insert among ten."""

from __future__ import annotations

import time
from collections.abc import Callable

from fsqueue import Group
from tests.concurrency.processes import children
from tests.lab.nfs import at, calls_of
from tests.waiting import until

QUEUES = 20
"""Queues of which all tasks are done, for what looks at each queue."""
MANY = 150
"""Queues of a lessee that waits: more than it has open."""
WORKERS = 10
WINDOW_S = 30.0
"""How long those that wait are watched."""


def worked_off(name: str, queues: int) -> Group:
    """Make a group at client 1. Each of its queues has had two tasks, which are completed."""
    group = Group.create(at(1, name))
    for number in range(queues):
        queue = group[f"site{number}.example#fetch"]
        queue.insert_many([{"n": 1}, {"n": 2}])
        queue.complete(queue.lease(2))
    group.close()
    return group


def calls() -> dict[str, dict[str, float]]:
    """Count all of that, by kind, and `all`."""
    return calls_of_looks() | {"idle": calls_of_an_idle_lessee(), "one insert": calls_of_one_insert()}


def calls_of_looks() -> dict[str, dict[str, float]]:
    """Count the calls for each queue of `status` and `is_drained`: of a group that the client has not seen, and again.

    Each has a group of its own, which is opened anew for each count; that is in the count.
    """
    found: dict[str, dict[str, float]] = {}
    for what, look in {
        "status": lambda group: group.status(),
        "is_drained": lambda group: group.is_drained(),
    }.items():
        name = f"calls-of-{what}"
        worked_off(name, QUEUES)

        def act(look: Callable[[Group], object] = look, name: str = name) -> None:
            with Group(at(2, name)) as group:
                look(group)

        found[what] = calls_of(QUEUES, act, client=2)
        found[f"{what} again"] = calls_of(QUEUES, act, client=2)
    return found


def calls_of_an_idle_lessee() -> dict[str, float]:
    """Count the calls a second of a lessee that waits for a task of a group of many queues without tasks.

    By then it has looked into all of them, its pauses have grown, and its client has returned the delegations of files
    that it does not use any more.
    """
    worked_off("calls-of-idle", MANY)

    def wait() -> None:
        Group(at(2, "calls-of-idle")).matching(".*").lease(wait_s=600)

    with children((wait,)) as [lessee]:
        time.sleep(2 * WINDOW_S)
        found = calls_of(WINDOW_S, lambda: time.sleep(WINDOW_S), client=2)
        lessee.kill()
    return found


def calls_of_one_insert() -> dict[str, float]:
    """Count the calls for each of ten workers that one insert into a queue costs for which they wait, beside what they
    cost while nothing happens.
    """
    group = worked_off("calls-of-one-insert", 1)
    [queue] = group.queues(tasks_min=0)

    def wait() -> None:
        own = Group(at(2, "calls-of-one-insert")).matching(".*")
        while True:
            for task in own.lease(wait_s=600):
                task.complete()

    def window(act: Callable[[], object]) -> Callable[[], None]:
        def watch() -> None:
            act()
            time.sleep(WINDOW_S)

        return watch

    with children(*((wait,),) * WORKERS) as workers:
        time.sleep(WINDOW_S)
        idle = calls_of(WORKERS, window(lambda: None), client=2)
        busy = calls_of(WORKERS, window(lambda: queue.insert(1)), client=2)
        for child in workers:
            child.kill()
    until(lambda: queue.status().drained, "the task to be done")
    return {kind: busy.get(kind, 0.0) - idle.get(kind, 0.0) for kind in busy}
