"""What many requests ask for at once, done together: leases of one queue, completions, updates.

Each function is given what the requests say, and tells an outcome for each of them: what it answers, the error that it
answers with, or that it is to be done by itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import fsqueue
from fsqueue.service import operations, updates
from fsqueue.service.served import Served
from fsqueue.service.together import AGAIN, ALONE, Outcome

TASKS_MAX = 1_000
"""Maximum number of tasks that are leased in one call."""
OPERATIONS_MAX = 32
"""An update with more operations is applied by itself: it gains little, and would hold up others."""
MERGED_S = 0.5
"""How long updates that are applied together wait for others in the way. After that each waits by itself."""

Given = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one request wants to lease, and for whom."""

    n: int
    holder: Mapping[str, Any]


def lease(served: Served, name: str, how: Given, wanted: Sequence[Wanted]) -> list[Outcome[list[fsqueue.LeasedTask]]]:
    """Lease for requests that want it in the same way. [] only after a full look."""
    found: list[Outcome[list[fsqueue.LeasedTask]]] = [[] for _ in wanted]
    left = list(range(len(wanted)))
    with served.queue(name) as queue:
        while left:
            some, n = [left[0]], wanted[left[0]].n
            for place in left[1:]:
                if (n := n + wanted[place].n) > TASKS_MAX:
                    break
                some.append(place)
            try:
                parts = queue.lease_for([(wanted[place].n, wanted[place].holder) for place in some], **how)
            except Exception as error:
                for place in left:  # a wrong field of one request fails the others, too
                    found[place] = ALONE if isinstance(error, fsqueue.InvalidArgument) else error
                break
            for place, part in zip(some, parts, strict=True):
                found[place] = part
            if not any(parts):
                break
            left = [place for place in left if not found[place]]
    return found


def complete(served: Served, name: str, given: Sequence[Given]) -> list[Outcome[Any]]:
    """Report tasks as done, those of all requests that have one: one write a batch."""
    if len(given) == 1:
        return [complete_alone(served, name, given[0])]
    found: list[Outcome[Any]] = [ALONE] * len(given)
    tasks: dict[str, tuple[int, fsqueue.LeasedTask]] = {}
    results: dict[str, Any] = {}
    with served.queue(name) as queue:
        for place, one in enumerate(given):
            if len(one["tasks"]) != 1:
                continue
            [told] = one["tasks"]
            try:
                task = queue.attach(told["token"], verify=False)
            except fsqueue.FsqueueError:
                continue
            if task.id not in tasks:  # of two requests for one task the other one is told what became of it
                tasks[task.id] = place, task
                if told["result"] is not None:
                    results[task.id] = told["result"]
        lost: set[str] = set()
        try:
            if tasks:
                queue.complete([task for _, task in tasks.values()], results)
        except fsqueue.LeaseLost as error:
            lost.update(error.tokens)
        except fsqueue.FsqueueError:  # some may be done
            for place, _ in tasks.values():
                found[place] = AGAIN
            return found
        for place, task in tasks.values():
            if task.token not in lost:
                found[place] = {"completed": 1}
    return found


def complete_alone(served: Served, name: str, given: Given, is_again: bool = False) -> Any:
    """Report the tasks of one request as done. `is_again`: they may have been completed for it a moment ago."""
    with served.queue(name) as queue:
        try:
            return operations.complete(queue, given)
        except fsqueue.LeaseLost as error:
            if is_again and error.reason == fsqueue.LeaseLost.COMPLETED_BEFORE:
                return {"completed": len(given["tasks"])}
            raise


def lease_alone(served: Served, name: str, how: Given, wanted: Wanted) -> list[fsqueue.LeasedTask]:
    """Lease for one request."""
    with served.queue(name) as queue:
        found: list[fsqueue.LeasedTask] = queue.lease(min(wanted.n, TASKS_MAX), holder=wanted.holder, **how)
        return found


def update(served: Served, given: Sequence[updates.RequestedUpdate]) -> list[Outcome[Any]]:
    """Apply updates as one: all of them happen, or none, and then each is applied by itself.

    One by itself is applied at once. Those that name the same task, or that have keys, are not for this: what one does
    decides what the other one may.
    """
    if len(given) == 1:
        return [updates.apply(served, given[0])]
    found: list[Outcome[Any]] = [ALONE] * len(given)
    named: set[str] = set()
    together: list[int] = []
    for place, (one, timeout_s) in enumerate(given):
        tasks = updates.tasks_in(one)
        is_small = sum(len(operations) for operations in one.values()) <= OPERATIONS_MAX and timeout_s >= MERGED_S
        if is_small and named.isdisjoint(tasks) and all(insert["key"] is None for insert in one["inserts"]):
            named.update(tasks)
            together.append(place)
    if len(together) < 2:
        return found
    assert served.group is not None
    made = served.group.update()
    try:
        with ExitStack() as queues:
            for place in together:
                updates.add(made, served, queues, given[place].operations)
            results = iter(made.apply(MERGED_S))
    except (fsqueue.UpdateConflict, fsqueue.InvalidArgument):  # nothing has happened, and it may be for one of them
        return found
    except fsqueue.FsqueueError as error:
        for place in together:
            found[place] = error
        return found
    for place in together:
        found[place] = updates.told(made, given[place].operations, results)
    return found
