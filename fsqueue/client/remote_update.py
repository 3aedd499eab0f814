"""An update that a gateway applies."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from fsqueue.client.remote_queue import RemoteQueue
from fsqueue.client.values import json_object, task_line
from fsqueue.client.wire import Answer, Wire, encoded, lacking
from fsqueue.errors import InvalidArgument, TaskTooLarge, UpdateConflict
from fsqueue.format import names
from fsqueue.format.models import TaskRef
from fsqueue.groups.pending_update import NOTHING, PendingUpdate
from fsqueue.leased_task import LeasedTask
from fsqueue.protocol.encoding import EncodedTask
from fsqueue.protocol.update_plan import Applied, TaskChange
from fsqueue.protocol.update_traces import HOW_TO_FIND_OUT
from fsqueue.verbs.fields import BODY_BYTES_MAX

APPLY_S = 30.0
"""Maximum number of seconds that one request waits for others that are in the way of an update."""


class RequestPart:
    """What an update asks of one queue, as a request has it: see `QueuePlan`."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.keys: list[str | None] = []
        """That of each insert."""
        self.inserts: list[bytes] = []
        self.changes: list[tuple[TaskChange, bytes]] = []

    def insert(self, task: EncodedTask) -> None:
        """Add a task to insert. Of several with one key, the first one counts."""
        if task.key is None or task.key not in self.keys:
            self.keys.append(task.key)
            self.inserts.append(b'{"queue":%s,%s' % (encoded(self.name), task_line(task)[1:]))

    def change(self, change: TaskChange) -> None:
        """Add a change of a task that is there."""
        task = change.task
        said: dict[str, Any] = {"queue": self.name}
        if isinstance(task, LeasedTask):
            said["token"] = task.token
        else:
            said |= {"id": names.task_id(task.batch, task.index), "version": task.version}
        for kinds, name, value in (
            (("renew",), "lease_s", None if change.ms is None else change.ms / 1000),
            (("release", "fail"), "delay_s", None if change.ms is None else change.ms / 1000),
            (("fail",), "error", change.text),
            (("bury",), "reason", change.text),
        ):
            if change.kind in kinds:
                said[name] = value
        found = json_object(said, **{"payload" if change.kind == "replace" else "result": change.result})
        self.changes.append((change, found))


class RemoteUpdate(PendingUpdate[RemoteQueue, RequestPart]):
    """An update that a gateway applies: see `PendingUpdate`."""

    def __init__(self, wire: Wire, queue_of: Callable[[str], RemoteQueue]) -> None:
        super().__init__()
        self._wire, self._queue_of = wire, queue_of
        self._parts: dict[str, RequestPart] = {}

    def _plan(self, queue: object) -> RequestPart:
        address = self._wire.address.url
        if isinstance(queue, str):
            name = self._queue_of(queue).name
        elif isinstance(queue, RemoteQueue) and queue.gateway == address:
            name = queue.name
        else:
            raise InvalidArgument(
                f"{queue!r:.200} is no queue of a gateway, or of another one than {address}. An update changes queues "
                "of one group. Nothing was done."
            )
        return self._parts.setdefault(name, RequestPart(name))

    def _usual_lease_ms(self, task: LeasedTask) -> None:
        return None

    def _carry_out(self, timeout_s: float) -> Applied:
        parts, deadline = list(self._parts.values()), time.monotonic() + timeout_s
        changes: dict[str, list[tuple[TaskChange, bytes]]] = {}
        for part in parts:
            for change, line in part.changes:
                changes.setdefault(change.kind, []).append((change, line))
        lists = {"inserts": [line for part in parts for line in part.inserts]}
        lists |= {kind: [line for _, line in lines] for kind, lines in changes.items()}
        body = json_object({}, **{name: b"[%s]" % b",".join(lines) for name, lines in lists.items()})
        if len(body) > BODY_BYTES_MAX:
            raise TaskTooLarge(
                f"This update takes {len(body):,} bytes as a request; a gateway takes up to {BODY_BYTES_MAX:,}. "
                f"{NOTHING} Make several updates, or apply it where the group's directory is mounted."
            )
        while True:
            left_s = max(0.0, deadline - time.monotonic())
            step_s = min(left_s, APPLY_S)
            try:
                found = self._wire.call("update", body=body, wait_s=step_s, advice=HOW_TO_FIND_OUT)
                break
            except UpdateConflict as conflict:  # nothing has happened
                others = any(getattr(conflict, kind) for kind in UpdateConflict.KINDS if kind != "busy")
                if others or not conflict.busy or time.monotonic() >= deadline:
                    raise
        return _applied(parts, changes, found)

    def _forget(self) -> None:
        self._parts = {}


def _applied(parts: list[RequestPart], changes: dict[str, list[tuple[TaskChange, bytes]]], found: Answer) -> Applied:
    """Return what an update has brought about, by the answer to it."""
    applied = Applied()
    inserts = [(part.name, key) for part in parts for key in part.keys]
    for (queue, key), one in _each(inserts, found, "inserted"):
        if key is not None:
            applied.keyed[queue, key] = TaskRef(one["id"], one["inserted"])
        else:
            applied.inserted.setdefault(queue, []).append(one["id"])
            applied.new_versions[one["id"]] = one["version"]
    for (change, _), one in _each(changes.get("renew", []), found, "renewed"):
        applied.until[change.task.batch, change.task.index] = round(one["lease_until"] * 1000)
    for (change, _), one in _each(changes.get("replace", []), found, "replaced"):
        applied.versions[change.task.batch, change.task.index] = one["version"]
    return applied


def _each(asked: list[Any], found: Answer, name: str) -> list[tuple[Any, Answer]]:
    """Return each operation with its part of a list in the answer. StorageError if that has not one for each."""
    if len(found[name]) != len(asked):
        raise lacking(f"some of {name!r}")
    return [(one, Answer(told)) for one, told in zip(asked, found[name], strict=True)]
