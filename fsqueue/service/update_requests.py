"""Updates of a group over HTTP: the operations of one request, which happen all together or not at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from typing import Any, NamedTuple

import fsqueue
from fsqueue.service.faults import BadField
from fsqueue.service.served import Served

Given = Mapping[str, Any]


class RequestedUpdate(NamedTuple):
    """The update of one request."""

    operations: Given
    timeout_s: float
    """How long it waits for others that are in its way."""


def check(served: Served, given: Mapping[str, Any]) -> None:
    """Raise BadField if this gateway cannot apply the update, or if it names a task in two ways or none."""
    if served.group is None:
        raise BadField("path", f"/v1/update is for a group. Here is one queue, {served.only!r}.")
    for name in ("cancel", "replace", "depends"):
        check_named(given, name)


def check_named(given: Mapping[str, Any], name: str) -> None:
    """Raise BadField unless each task is named by the token of its lease, or by its id and version."""
    for index, one in enumerate(given[name]):
        is_held = one["token"] is not None
        is_seen = one["id"] is not None and one["version"] is not None
        if is_held == is_seen or (is_held and (one["id"], one["version"]) != (None, None)):
            raise BadField(f"{name}[{index}].token", "is needed, or id and version, one of the two. Nothing was done.")


def apply(served: Served, changes: RequestedUpdate) -> Any:
    """Apply an update. Return what its inserts, renewals and replacements have brought about, each in their order."""
    given = changes.operations
    assert served.group is not None
    made = served.group.update()
    with ExitStack() as queues:
        add(made, served, queues, given)
        return answer_of(made, given, iter(made.apply(changes.timeout_s)))


def add(made: fsqueue.Update, served: Served, queues: ExitStack, given: Mapping[str, Any]) -> None:
    """Add to an update what a request says. `queues`: holds the queues open."""

    held, meant = partial(_held, served, queues), partial(seen, served, queues)

    for one in given["inserts"]:
        task = fsqueue.Task(one["payload"], one["key"], one["priority"], one["delay_s"], one["available_at"])
        made.insert(one["queue"], task)
    for one in given["renew"]:
        made.renew(held(one), one["lease_s"])
    for one in given["replace"]:
        made.replace(meant(one), one["payload"])
    for one in given["complete"]:
        made.complete(held(one), one["result"])
    for one in given["release"]:
        made.release(held(one), one["delay_s"])
    for one in given["fail"]:
        made.fail(held(one), one["error"], one["delay_s"])
    for one in given["bury"]:
        made.bury(held(one), one["reason"])
    for one in given["cancel"]:
        made.cancel(meant(one))
    for one in given["depends"]:
        made.depends(meant(one))


def _held(served: Served, queues: ExitStack, one: Mapping[str, Any]) -> fsqueue.LeasedTask:
    queue: fsqueue.Queue = queues.enter_context(served.queue(one["queue"]))
    return queue.attach(one["token"], verify=False)


def seen(served: Served, queues: ExitStack, one: Mapping[str, Any]) -> fsqueue.LeasedTask | fsqueue.TaskInfo:
    """Return a task as a request has seen it, without a look: the update itself asks whether it still is so."""
    if one["token"] is not None:
        return _held(served, queues, one)
    return fsqueue.TaskInfo(one["id"], "waiting", version=one["version"], queue=one["queue"])


def answer_of(made: fsqueue.Update, given: Mapping[str, Any], results: Iterator[Any]) -> dict[str, Any]:
    """Return the answer to one request, whose operations `add` put into an update.

    `results`: what the update returned. As many are taken as the request has operations; the rest is for others.
    """
    found = {
        "inserted": [_inserted(next(results), made.versions) for _ in given["inserts"]],
        "renewed": [_renewed(next(results)) for _ in given["renew"]],
        "replaced": [_replaced(next(results)) for _ in given["replace"]],
    }
    for name in ("complete", "release", "fail", "bury", "cancel", "depends"):
        for _ in given[name]:
            next(results)
    return found


def tasks_in(given: Mapping[str, Any]) -> list[str]:
    """Return the ids of the tasks that an update names, as far as they are ids."""
    return [
        (one["token"].partition("@")[0] if one.get("token") is not None else one["id"])
        for name, operations in given.items()
        if name != "inserts"
        for one in operations
    ]


def _inserted(ref: fsqueue.TaskRef, versions: Mapping[str, int]) -> dict[str, Any]:
    return {"id": ref.id, "inserted": ref.inserted, "version": versions.get(ref.id)}


def _renewed(task: fsqueue.LeasedTask) -> dict[str, Any]:
    return {"token": task.token, "lease_until": task.lease_until}


def _replaced(task: fsqueue.LeasedTask | fsqueue.TaskInfo) -> dict[str, Any]:
    return {"id": task.id, "version": task.version}
