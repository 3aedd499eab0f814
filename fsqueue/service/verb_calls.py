"""What a gateway does for each verb of the table that neither waits nor takes a stream.

Most are the methods of `Queue` with the same names. Each function blocks, and is called in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

import fsqueue
from fsqueue.service import answers
from fsqueue.service.answers import plain
from fsqueue.service.faults import BadField
from fsqueue.verbs.table import ALL, CONFIRM, IDS, NDJSON, Route

Given = Mapping[str, Any]
Act = Callable[[fsqueue.Queue, Given], Any]


def act_of(name: str, route: Route) -> Act:
    """Return what a verb does with the queue that it is about, and with what was given.

    It returns the answer; of a route that gives JSON Lines, what comes into them.
    """
    return _ACTS.get(name) or partial(_call, name, route)


def _call(name: str, route: Route, queue: fsqueue.Queue, given: Given) -> Any:
    """Call the method with the verb's name, by what the fields say."""
    arguments = {one.name: given[one.name] for one in route.fields if one not in (ALL, CONFIRM)}
    if CONFIRM in route.fields and given["confirm"] != given["queue"]:
        raise BadField("confirm", f"must be the name of the queue, {given['queue']!r}. Nothing was done.")
    if IDS in route.fields:
        if (given["ids"] is not None) == given["all"]:
            raise BadField("ids", "or all=true is needed, one of the two. Nothing was done.")
        if given["all"]:
            del arguments["ids"]
    if "{task}" in route.path:
        arguments["id"] = given["task"]
    found = getattr(queue, name)(**arguments)
    if CONFIRM in route.fields:
        return {route.answer: True}
    if route.gives == NDJSON:
        return found
    return {route.answer: plain(found)} if route.answer else plain(found)


def _facts(queue: fsqueue.Queue, given: Given) -> Any:
    exists = queue.exists() if isinstance(queue, fsqueue.GroupQueue) else True
    return {
        "exists": exists,
        "generation": queue.generation,
        "has_priorities": queue.has_priorities,
        "paused": plain(queue.paused),
        "copy": queue.is_copy(),
        "settings": asdict(queue.settings),
    }


def _committed(queue: fsqueue.Queue, given: Given) -> Any:
    is_there = not isinstance(queue, fsqueue.GroupQueue) or queue.exists()
    report = queue.commit(given["name"]).committed() if is_there else None
    return {"report": None if report is None else report.as_dict()}


def drained(queues: fsqueue.Queue | fsqueue.GroupQueues) -> Any:
    """Return whether at one instant nothing was left in any of the queues; and what the look has found, if so."""
    found = queues.drained_proof()
    return {"drained": found is not None, "proof": None if found is None else found.hex()}


def complete(queue: fsqueue.Queue, given: Given) -> Any:
    """Report leased tasks as done."""
    tasks = [queue.attach(one["token"], verify=False) for one in given["tasks"]]
    results = {task.id: one["result"] for task, one in zip(tasks, given["tasks"], strict=True)}
    queue.complete(tasks, {key: value for key, value in results.items() if value is not None})
    return {"completed": len(tasks)}


def _lease_by_id(queue: fsqueue.Queue, given: Given) -> Any:
    tasks = queue.lease_by_id(given["ids"], lease_s=given["lease_s"], holder=given["holder"])
    return {"tasks": [answers.leased(task) for task in tasks]}


def _inputs(queue: fsqueue.Queue, given: Given) -> Any:
    if not isinstance(queue, fsqueue.GroupQueue):
        raise BadField("path", "is for a queue of a group: only a task that a join has inserted there has inputs.")
    return queue.inputs(given["task"])


def _renew(queue: fsqueue.Queue, given: Given) -> Any:
    tasks = [queue.attach(token, verify=False) for token in given["tokens"]]
    queue.renew(tasks, given["lease_s"])
    return {"renewed": len(tasks), "lease_until": [task.lease_until for task in tasks]}


def _release(queue: fsqueue.Queue, given: Given) -> Any:
    queue.release([queue.attach(token, verify=False) for token in given["tokens"]], given["delay_s"])
    return {"released": len(given["tokens"])}


def _fail(queue: fsqueue.Queue, given: Given) -> Any:
    queue.attach(given["token"], verify=False).fail(given["error"], given["delay_s"])
    return {"failed": 1}


def _bury(queue: fsqueue.Queue, given: Given) -> Any:
    queue.attach(given["token"], verify=False).bury(given["reason"])
    return {"buried": 1}


def _release_all(queue: fsqueue.Queue, given: Given) -> Any:
    named = {name: given[name] for name in ("worker", "host", "slurm_job", "job") if given[name] is not None}
    if bool(named) == given["all"]:
        raise BadField("worker", "or host, slurm_job, job, or all=true is needed. No lease was ended.")
    return {"released": queue.release_all(**named)}


_ACTS: Mapping[str, Act] = {
    "activity": lambda queue, given: answers.activity(queue.activity(given["window_s"])),
    "attach": lambda queue, given: answers.attached(queue.attach(given["token"])),
    "bury": _bury,
    "change_settings": lambda queue, given: asdict(queue.change_settings(**given["settings"])),
    "committed": _committed,
    "complete": complete,
    "fail": _fail,
    "lease_by_id": _lease_by_id,
    "inputs": _inputs,
    "is_drained": lambda queue, given: drained(queue),
    "queue": _facts,
    "release": _release,
    "release_all": _release_all,
    "renew": _renew,
    "results_of": lambda queue, given: {"results": plain([*queue.results_of(given["ids"]).values()])},
    "workers": lambda queue, given: {"workers": plain(queue.workers(asks_slurm=False))},
}
"""The verbs that are more than a call of the method with their name."""
