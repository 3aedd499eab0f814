"""Barriers and joins of a group over HTTP (docs/barriers.md). Each function blocks, and is called in a thread."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import fsqueue
from fsqueue.service.faults import BadField

Given = Mapping[str, Any]


def set_barrier(group: fsqueue.Group, given: Given) -> Any:
    """Set a barrier. Return all of it."""
    if (given["of"] is None) == (given["match"] is None):
        raise BadField("of", "or match is needed, one of the two. Nothing was done.")
    awaited = given["of"] if given["match"] is None else group.matching(given["match"])
    return _told(group, group.barrier(awaited, _then(given), on_failure=given["on_failure"]))


def set_join(group: fsqueue.Group, given: Given) -> Any:
    """Set a join. Return all of it."""
    awaited: list[Any] = []
    for one in given["tasks"]:
        queue = group[one["queue"]]
        awaited += [fsqueue.TaskRef(task_id, queue=queue) for task_id in one["ids"]]
    awaited += [(one["queue"], one["name"]) for one in given["commits"]]
    if not awaited:
        raise BadField("tasks", "or commits is needed. Nothing was done.")
    return _told(group, group.join(awaited, _then(given), on_failure=given["on_failure"]))


def listed(group: fsqueue.Group, given: Given) -> Any:
    """Return the group's barriers."""
    return {"barriers": [one.as_dict() for one in group.barriers()]}


def state(group: fsqueue.Group, given: Given) -> Any:
    """Return how far a barrier is."""
    found = _known(group, given)
    return {"state": "forgotten" if found is None else found.state}


def cancel(group: fsqueue.Group, given: Given) -> Any:
    """Cancel a barrier. Return whether it is cancelled."""
    found = _known(group, given)
    return {"cancelled": found is not None and found.cancel()}


def _known(group: fsqueue.Group, given: Given) -> fsqueue.Barrier | None:
    return next((one for one in group.barriers() if one.id == given["id"]), None)


def _told(group: fsqueue.Group, made: fsqueue.Barrier) -> Any:
    """Return all of a barrier that was set. If its queues are drained already, or its tasks done, it passes before."""
    group.pass_barriers(at_once=True)
    return made.as_dict()


def _then(given: Given) -> list[tuple[str, fsqueue.Task]]:
    return [(one["queue"], fsqueue.Task(one["payload"], priority=one["priority"])) for one in given["then"]]
