"""The client: a gateway's queues as Python has them. Each method is that of `Queue` or `Group` with the same name.

It needs the standard library alone, and opens no file of a queue.
"""

from __future__ import annotations

import base64
import json
import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Literal, NamedTuple
from urllib.parse import quote

import fsqueue
from fsqueue.service.wire import Answer, Wire, address_of, lacking, not_a_gateway, segment

logger = logging.getLogger("fsqueue")

WAIT_S = 30.0
"""How long one request waits at the gateway, in a loop that waits for longer."""
FIRST_FAILURES = 10
"""Number of failures in a row that ends a loop in which nothing has succeeded yet, as in `Queue.poll`."""
ABOUT_BYTES_MAX = 64 << 10
"""Maximum number of bytes that are read of the first answer, which shows whether a gateway is there."""
RETRY_DELAY_S = (5.0, 60.0)
"""Shortest and longest pause before a task comes back whose block asks for another time."""


def connect(
    url: str,
    token: str | None = None,
    *,
    worker: str | None = None,
    timeout_s: float = 90.0,
    patience_s: float = 600.0,
) -> RemoteGroup | RemoteQueue:
    """Return the group, or the queue, that a gateway serves (`fsqueue serve`).

    `url`: http://HOST:PORT, https://HOST:PORT or http+unix://SOCKET, with the socket's path percent-encoded; behind it
    /QUEUE for one queue of the group. `token`: as `fsqueue serve` has shown it; otherwise that of the environment
    variable FSQUEUE_SERVE_TOKEN. `worker`: a name to appear under in histories. `patience_s`: how long what can be
    repeated without harm is repeated while the gateway is away. InvalidArgument, StorageError.
    """
    if worker is not None and (type(worker) is not str or not 1 <= len(worker) <= 200 or not worker.isprintable()):
        raise fsqueue.InvalidArgument(f"worker must be a name of 1 to 200 printable characters, not {worker!r}.")
    for name, seconds in (("timeout_s", timeout_s), ("patience_s", patience_s)):
        if type(seconds) not in (int, float) or not 0 <= seconds < 1e9:
            raise fsqueue.InvalidArgument(f"{name} must be a number of seconds, not {seconds!r:.100}.")
    if token is not None and (type(token) is not str or not token.isascii() or not token.isprintable()):
        raise fsqueue.InvalidArgument("token must be text of printable ASCII characters.")
    address = address_of(url)
    wire = Wire(address, token, timeout_s, patience_s)
    about = wire.ask("GET", "", again=True, bytes_max=ABOUT_BYTES_MAX)
    holder = _this_process(worker)
    if about.get("service") != "fsqueue":
        raise not_a_gateway(address.host, about)
    name = address.queue if address.queue is not None else about["queue"]
    return RemoteGroup(wire, holder) if name is None else RemoteQueue(wire, name, holder)


def _this_process(worker: str | None) -> dict[str, Any]:
    """Return what histories say of this process. The gateway cannot see whether it lives."""
    told: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid()}
    job = os.environ.get("SLURM_ARRAY_JOB_ID") or os.environ.get("SLURM_JOB_ID")
    told |= {} if worker is None else {"name": worker}
    if job and job.isprintable() and len(job) <= 200:
        told["slurm_job"] = job
        index = os.environ.get("SLURM_ARRAY_TASK_ID")
        told |= {"slurm_index": index} if index and index.isprintable() and len(index) <= 200 else {}
    return told


def _task_line(item: Any, delay_s: float = 0) -> dict[str, Any]:
    """Return a payload or a Task as the gateway takes it. InvalidTask if JSON cannot hold it."""
    task = item if isinstance(item, fsqueue.Task) else fsqueue.Task(item)
    if isinstance(task.payload, (bytes, bytearray, memoryview)):
        found: dict[str, Any] = {"b64": base64.b64encode(bytes(task.payload)).decode()}
    else:
        found = {"payload": task.payload}
    found |= {name: value for name in ("key", "priority", "available_at") if (value := getattr(task, name)) is not None}
    if task.available_at is None and (task.delay_s or delay_s):
        found["delay_s"] = task.delay_s or delay_s
    try:
        json.dumps(found, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise fsqueue.InvalidTask(f"The payload is no JSON: {error}. Nothing was inserted.") from None
    return found


def _payload(given: dict[str, Any]) -> Any:
    return base64.b64decode(given["b64"]) if given.get("b64") is not None else given.get("payload")


def _fields(kind: Any, given: dict[str, Any]) -> Any:
    """Return a value of fsqueue from its fields by name; one that is newer than this package is left out."""
    known = getattr(kind, "_fields", None) or kind.__dataclass_fields__
    values = {name: value for name, value in given.items() if name in known}
    if "payload" in known:
        values["payload"] = _payload(given)
    try:
        return kind(**values)
    except TypeError:
        raise lacking(f"fields of {kind.__name__}") from None


class RemoteTask(fsqueue.LeasedTask):
    """A task that this process holds, from a gateway: see `LeasedTask`."""

    def __init__(self, queue: RemoteQueue, given: dict[str, Any]) -> None:
        given = Answer(given)
        task_id, _, lease = given["token"].rpartition("@")
        batch, _, index = task_id.rpartition(".")
        until_ms = round(given["lease_until"] * 1000)
        super().__init__(
            queue,  # type: ignore[arg-type]  # of a queue it asks for the verbs alone, which this one has
            batch,
            int(index),
            lease,
            _payload(given),
            given["attempt"],
            given["version"],
            until_ms,
            0,
        )
        self.key, self.priority = given.get("key"), given.get("priority")

    def _retry(self, error: fsqueue.Retry) -> bool:
        delay_s = error.delay_s
        if delay_s is None:
            delay_s = min(RETRY_DELAY_S[0] * 2 ** min(self.attempt - 1, 10), RETRY_DELAY_S[1])
        self.release(delay_s)
        return True


class WhereItIs(NamedTuple):
    """What a worker calls the queue of a task, in its reports and to its children."""

    path: str


class RemoteQueue:
    """A queue of a gateway, with the methods of `Queue`. Safe to use from many threads, and after a fork; it pickles.

    Errors are those of `Queue`. StorageError besides: the gateway cannot be reached, and what happened is unknown.
    """

    def __init__(self, wire: Wire, name: str, holder: dict[str, Any]) -> None:
        self._wire, self.name, self._holder = wire, name, holder
        self._path = f"/queues/{segment(name)}"
        self.store = WhereItIs(self.url)

    def __repr__(self) -> str:
        return f"RemoteQueue({self.url!r})"

    def __eq__(self, other: object) -> bool:
        return self.url == other.url if isinstance(other, RemoteQueue) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.url)

    @property
    def url(self) -> str:
        """Return its address, as `connect` takes it."""
        return f"{self._wire.address.url}/{quote(self.name, safe='')}"

    @property
    def path(self) -> str:
        """Return its address: what a worker's messages call it."""
        return self.url

    def _get(self, what: str, **query: Any) -> Any:
        return self._wire.ask("GET", self._path + what, query=query, again=True)

    def _post(self, what: str, sent: dict[str, Any], again: bool = False, wait_s: float = 0) -> Any:
        return self._wire.ask("POST", self._path + what, sent, again=again, wait_s=wait_s)

    # -- what it is ---------------------------------------------------------------------------------------------

    @property
    def settings(self) -> fsqueue.Settings:
        """Return its settings."""
        found = Answer(self._get("")["settings"])
        made: fsqueue.Settings = _fields(fsqueue.Settings, found | {"backoff_s": tuple(found["backoff_s"])})
        return made

    @property
    def paused(self) -> fsqueue.Pause | None:
        """Return since when, by whom and why no task is leased; None if the queue is not paused."""
        found = self._get("")["paused"]
        return None if found is None else _fields(fsqueue.Pause, found)

    def exists(self) -> bool:
        """Return whether it has come into being, and was not deleted since."""
        return bool(self._get("")["exists"])

    # -- inserting ----------------------------------------------------------------------------------------------

    def insert(
        self,
        payload: Any,
        *,
        key: str | None = None,
        priority: str | int | None = None,
        delay_s: float = 0,
        available_at: float | None = None,
    ) -> fsqueue.TaskRef:
        """Insert one task: see `Queue.insert`. Without a key it is not repeated if the gateway breaks off."""
        task = payload if isinstance(payload, fsqueue.Task) else fsqueue.Task(payload)
        more = {"key": key, "priority": priority, "available_at": available_at}
        for name, value in more.items():
            if value is not None and getattr(task, name) not in (None, value):
                raise fsqueue.InvalidArgument(f"The task has another {name} than the call says. Nothing was inserted.")
        line = _task_line(task, delay_s) | {name: value for name, value in more.items() if value is not None}
        found = self._post("/tasks", line, again=line.get("key") is not None)
        return fsqueue.TaskRef(found["id"], found["inserted"])

    def insert_many(
        self,
        payloads: Iterable[Any],
        *,
        delay_s: float = 0,
        commit: str | None = None,
        total: int | None = None,
    ) -> int:
        """Insert a stream of payloads or Tasks in bounded memory; return how many are new: see `Queue.insert_many`."""
        if isinstance(payloads, (str, bytes, dict, fsqueue.Task)):
            raise fsqueue.InvalidArgument("insert_many takes a list or another iterable of payloads.")
        lines = (json.dumps(_task_line(one, delay_s)).encode() + b"\n" for one in payloads)
        found = self._wire.send_lines(f"{self._path}/tasks", lines, {"commit": commit, "total": total})
        return int(found["inserted"])

    # -- leasing ------------------------------------------------------------------------------------------------

    def lease(
        self,
        n: int = 1,
        *,
        lease_s: float | None = None,
        wait_s: float = 0,
        up_to: str | int | None = None,
        order: Literal["priority", "random"] = "priority",
        strict: bool = False,
        depends: Iterable[fsqueue.LeasedTask | fsqueue.TaskInfo] = (),
    ) -> list[RemoteTask]:
        """Lease up to `n` tasks: see `Queue.lease`; `depends`, in a group: see `GroupQueue.lease`."""
        asked: dict[str, Any] = {"n": n, "lease_s": lease_s, "up_to": up_to, "order": order, "strict": strict}
        asked["holder"] = self._holder
        if conditions := [_named(task) for task in depends]:
            asked["depends"] = conditions
        return _waiting(lambda step_s: self._post("/lease", {**asked, "wait_s": step_s}, wait_s=step_s), wait_s,
                        lambda one: RemoteTask(self, one))  # fmt: skip

    def poll(
        self,
        *,
        lease_s: float | None = None,
        prefetch: int = 1,
        until: Literal["drained", "forever"] = "drained",
        errors: Literal["record", "raise"] = "record",
        stop_after_failures: int | None = None,
    ) -> RemotePoll:
        """Return an iterator over leased tasks, until the queue is drained or for ever: see `Queue.poll`."""
        return RemotePoll(self, lease_s, prefetch, until, errors, stop_after_failures)

    def complete(
        self, tasks: fsqueue.LeasedTask | Iterable[fsqueue.LeasedTask], results: Mapping[str, Any] | None = None
    ) -> None:
        """Report tasks as done: see `Queue.complete`."""
        mine, given = _listed(tasks), dict(results or {})
        self._post(
            "/complete", {"tasks": [{"token": one.token, "result": given.get(one.id)} for one in mine]}, again=True
        )
        _end(mine)

    def renew(self, tasks: fsqueue.LeasedTask | Iterable[fsqueue.LeasedTask], lease_s: float | None = None) -> None:
        """Extend leases: see `Queue.renew`."""
        mine = _listed(tasks)
        found = self._post("/renew", {"tokens": [one.token for one in mine], "lease_s": lease_s}, again=True)
        for task, until in zip(mine, found["lease_until"], strict=True):
            task.until_ms = round(until * 1000)

    def release(self, tasks: fsqueue.LeasedTask | Iterable[fsqueue.LeasedTask], delay_s: float = 0) -> None:
        """Put tasks back: see `Queue.release`."""
        mine = _listed(tasks)
        self._post("/release", {"tokens": [one.token for one in mine], "delay_s": delay_s})
        _end(mine)

    def _complete_one(self, task: fsqueue.LeasedTask, result: Any) -> None:
        self.complete([task], None if result is None else {task.id: result})

    def _fail(self, task: fsqueue.LeasedTask, error: object, delay_s: float | None) -> None:
        self._post("/fail", {"token": task.token, "error": _text_of(error), "delay_s": delay_s})
        _end([task])

    def _bury(self, task: fsqueue.LeasedTask, reason: object) -> None:
        self._post("/bury", {"token": task.token, "reason": str(reason)})
        _end([task])

    def cancel(self, ids: str | Iterable[str]) -> int:
        """Cancel tasks that no worker holds: see `Queue.cancel`."""
        return int(self._post("/cancel", {"ids": _ids(ids)}, again=True)["cancelled"])

    # -- looking ------------------------------------------------------------------------------------------------

    def status(self, exact: bool = True) -> fsqueue.Status:
        """Count the tasks by state: see `Queue.status`."""
        found: fsqueue.Status = _fields(fsqueue.Status, self._get("/status", exact=exact))
        return found

    def is_drained(self) -> bool:
        """Return whether nothing is waiting, delayed or leased."""
        return bool(self._get("/drained")["drained"])

    def wait(
        self, timeout_s: float | None = None, poll: Callable[[fsqueue.Status], object] | None = None
    ) -> fsqueue.Status:
        """Wait until the queue is drained, or `timeout_s` is over; return the last status: see `Queue.wait`."""
        deadline = math.inf if timeout_s is None else time.monotonic() + timeout_s
        while True:
            step_s = max(0.0, min(WAIT_S, deadline - time.monotonic()))
            given = self._wire.ask("GET", f"{self._path}/wait", query={"timeout_s": step_s}, again=True, wait_s=step_s)
            status: fsqueue.Status = _fields(fsqueue.Status, given)
            if poll is not None:
                poll(status)
            if given["drained"] or time.monotonic() >= deadline:
                return status

    def peek(self, n: int = 1) -> list[fsqueue.TaskInfo]:
        """Return up to `n` waiting tasks: see `Queue.peek`."""
        return [_fields(fsqueue.TaskInfo, one) for one in self._get("/peek", n=n)["tasks"]]

    def task(self, id: str) -> fsqueue.TaskInfo:
        """Return what is known of a task: see `Queue.task`."""
        found: fsqueue.TaskInfo = _fields(fsqueue.TaskInfo, self._get(f"/tasks/{segment(id)}"))
        return found

    def tasks(self, state: fsqueue.State | None = None) -> Iterator[fsqueue.TaskInfo]:
        """Yield the unfinished tasks, or those in one state: see `Queue.tasks`."""
        return (_fields(fsqueue.TaskInfo, one) for one in self._wire.lines(f"{self._path}/tasks", {"state": state}))

    def history(self, id: str) -> list[fsqueue.Movement]:
        """Return what happened to a task: see `Queue.history`."""
        return [_fields(fsqueue.Movement, one) for one in self._get(f"/tasks/{segment(id)}/history")["movements"]]

    def results(
        self, where: Callable[[fsqueue.Result], bool] | None = None, failed: bool = False
    ) -> Iterator[fsqueue.Result]:
        """Yield the tasks that have ended, inputs beside outputs: see `Queue.results`."""
        found = (_fields(fsqueue.Result, one) for one in self._wire.lines(f"{self._path}/results", {"failed": failed}))
        return found if where is None else filter(where, found)

    def activity(self, window_s: float | None = None) -> dict[str, Any]:
        """Return `Queue.activity` as a dict: rates, durations, the oldest leases, failures by reason."""
        return dict(self._get("/activity", window_s=window_s))

    def timeline(self, window_s: float = 3600, pieces: int = 60) -> dict[str, Any]:
        """Return `Queue.timeline` as a dict."""
        return dict(self._get("/timeline", window_s=window_s, pieces=pieces))

    def workers(self) -> list[dict[str, Any]]:
        """Return `Queue.workers` as dicts. Slurm is not asked."""
        return list(self._get("/workers")["workers"])

    def failing_nodes(self) -> list[fsqueue.FailingNode]:
        """Return the nodes on which the latest attempts failed, one after the other: see `Queue.failing_nodes`."""
        return [_fields(fsqueue.FailingNode, one) for one in self._get("/nodes")["nodes"]]

    def admit_node(self, node: str) -> bool:
        """Forget a node's failures, so that it takes tasks again: see `Queue.admit_node`."""
        return bool(self._post("/nodes/admit", {"node": node}, again=True)["admitted"])

    def usage(self) -> dict[str, dict[str, int]]:
        """Return `Queue.usage` as dicts."""
        return dict(self._get("/usage"))

    def waiting_by_priority(self, ranges: int = 8) -> list[dict[str, Any]]:
        """Return `Queue.waiting_by_priority` as dicts."""
        return list(self._get("/priorities", ranges=ranges)["ranges"])

    def stuck(self) -> list[dict[str, Any]]:
        """Return `Queue.stuck` as dicts."""
        return list(self._get("/stuck")["locks"])

    # -- dead letters, and the whole queue ------------------------------------------------------------------------

    def dead(self, where: Callable[[fsqueue.DeadLetter], bool] | None = None) -> Iterator[fsqueue.DeadLetter]:
        """Yield the dead letters: see `Queue.dead`."""
        found = (_fields(fsqueue.DeadLetter, one) for one in self._wire.lines(f"{self._path}/dead", {}))
        return found if where is None else filter(where, found)

    def retry_dead(self, ids: str | Iterable[str] | None = None, *, all: bool = False) -> int:
        """Insert dead letters again, by id, or all of them. Return how many."""
        return int(self._post("/dead/retry", _meant(ids, all))["retried"])

    def purge_dead(self, ids: str | Iterable[str] | None = None, *, all: bool = False) -> int:
        """Remove dead letters, by id, or all of them. Return how many."""
        return int(self._post("/dead/purge", _meant(ids, all))["purged"])

    def retry_completed(self, ids: str | Iterable[str] | None = None, *, all: bool = False) -> fsqueue.RetryReport:
        """Insert completed tasks again, by id, or all of them: see `Queue.retry_completed`."""
        found: fsqueue.RetryReport = _fields(fsqueue.RetryReport, self._post("/completed/retry", _meant(ids, all)))
        return found

    def gc(self) -> fsqueue.GcReport:
        """Finish what crashes left half done; remove trash: see `Queue.gc`."""
        found: fsqueue.GcReport = _fields(fsqueue.GcReport, self._post("/gc", {}, again=True))
        return found

    def release_all(self, **named: str) -> int:
        """End leases of other workers: see `Queue.release_all`. Without a name: all."""
        return int(self._post("/release-all", {**named, "all": not named})["released"])

    def change_settings(self, **settings: Any) -> fsqueue.Settings:
        """Change settings of the queue in use: see `Queue.change_settings`."""
        self._wire.ask("PATCH", f"{self._path}/settings", {"settings": settings}, again=True)
        return self.settings

    def pause(self, reason: str | None = None) -> bool:
        """Have no task leased until `resume`: see `Queue.pause`."""
        return bool(self._post("/pause", {"reason": reason})["changed"])

    def resume(self) -> bool:
        """Have tasks leased again: see `Queue.resume`."""
        return bool(self._post("/resume", {})["changed"])

    def purge(self) -> None:
        """Drop everything in the queue: see `Queue.purge`."""
        self._post("/purge", {"confirm": self.name})

    def delete(self) -> None:
        """Delete the queue: see `Queue.delete`."""
        self._wire.ask("DELETE", self._path, query={"confirm": self.name})


class RemoteGroup:
    """A group of queues of a gateway: ``group["fetch"].insert(payload)``. Errors as of `RemoteQueue`."""

    def __init__(self, wire: Wire, holder: dict[str, Any]) -> None:
        self._wire, self._holder = wire, holder

    def __getitem__(self, name: str) -> RemoteQueue:
        """Return a queue by its name. It comes into being at its first insert."""
        return RemoteQueue(self._wire, name, self._holder)

    def __repr__(self) -> str:
        return f"RemoteGroup({self._wire.address.url!r})"

    def queues(self, pattern: str | None = None, tasks_min: int = 1) -> Iterator[RemoteQueue]:
        """Yield the queues with at least `tasks_min` unfinished tasks, by name: see `Group.queues`."""
        after: str | None = None
        while True:
            query = {"match": pattern, "tasks_min": tasks_min, "after": after}
            page = self._wire.ask("GET", "/queues", query=query, again=True)
            yield from (self[name] for name in page["queues"])
            after = page["next"]
            if after is None:
                return

    def status(self, pattern: str | None = None, *, exact: bool = True) -> dict[str, fsqueue.Status]:
        """Return the counts of each queue that ever had a task, by its name."""
        found = self._wire.ask("GET", "/status", query={"match": pattern, "exact": exact}, again=True)
        return {name: _fields(fsqueue.Status, one) for name, one in found["queues"].items()}

    def lease(
        self,
        n: int = 1,
        *,
        lease_s: float | None = None,
        wait_s: float = 0,
        up_to: str | int | None = None,
        match: str | None = None,
    ) -> list[RemoteTask]:
        """Lease up to `n` tasks of all queues, or of those whose whole names `match`: see `Group.lease`."""
        asked = {"n": n, "lease_s": lease_s, "up_to": up_to, "holder": self._holder}
        asked |= {} if match is None else {"match": match}
        return _waiting(
            lambda step_s: self._wire.ask("POST", "/lease", {**asked, "wait_s": step_s}, wait_s=step_s), wait_s,
            lambda one: RemoteTask(self[one["queue"]], one),
        )  # fmt: skip

    def update(self) -> RemoteUpdate:
        """Return an update: changes that happen all together, or not at all: see `Group.update`."""
        return RemoteUpdate(self._wire)

    def delete(self, name: str) -> None:
        """Delete a queue: see `Group.delete`."""
        self[name].delete()


class RemoteUpdate:
    """Changes to tasks of several queues that happen all together, or not at all: see `Update`.

    As a context manager it is applied at the end of the block, and not after an exception. UpdateConflict: nothing has
    happened. StorageError: nobody knows.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire, self._sent, self._ended = wire, dict[str, list[dict[str, Any]]](), list[fsqueue.LeasedTask]()
        self._calls: list[Callable[[dict[str, Iterator[Any]]], Any]] = []
        self.results: list[Any] = []
        """What each call has brought about, in their order, once it is applied: a TaskRef of an insert, the task of a
        renewal or a replacement, None of all others."""

    @property
    def inserted(self) -> list[fsqueue.TaskRef]:
        """Return the tasks that were inserted, in the order of the inserts, once it is applied."""
        return [one for one in self.results if isinstance(one, fsqueue.TaskRef)]

    def __enter__(self) -> RemoteUpdate:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if kind is None:
            self.apply()

    def insert(self, queue: str | RemoteQueue, payload: Any) -> None:
        """Insert a payload or a Task. `queue`: its name, or the queue."""
        name = queue.name if isinstance(queue, RemoteQueue) else queue
        self._add("inserts", {"queue": name, **_task_line(payload)},
                  lambda found: fsqueue.TaskRef(found["id"], found["inserted"]), "inserted")  # fmt: skip

    def complete(self, task: fsqueue.LeasedTask, result: Any = None) -> None:
        """Report a task as done."""
        self._end("complete", task, result=result)

    def renew(self, task: fsqueue.LeasedTask, lease_s: float | None = None) -> None:
        """Extend a task's lease."""

        def renewed(found: dict[str, Any]) -> fsqueue.LeasedTask:
            task.until_ms = round(found["lease_until"] * 1000)
            return task

        self._add("renew", _named(task) | {"lease_s": lease_s}, renewed, "renewed")

    def release(self, task: fsqueue.LeasedTask, delay_s: float = 0) -> None:
        """Put a task back."""
        self._end("release", task, delay_s=delay_s)

    def fail(self, task: fsqueue.LeasedTask, error: object, delay_s: float | None = None) -> None:
        """Record a failed attempt."""
        self._end("fail", task, error=_text_of(error), delay_s=delay_s)

    def bury(self, task: fsqueue.LeasedTask, reason: object) -> None:
        """Give a task up."""
        self._end("bury", task, reason=str(reason))

    def cancel(self, task: fsqueue.LeasedTask | fsqueue.TaskInfo) -> None:
        """Take a task out that this process has leased, or that still is as it was looked up: see `Update.cancel`."""
        self._end("cancel", task)

    def replace(self, task: fsqueue.LeasedTask | fsqueue.TaskInfo, payload: Any) -> None:
        """Give a task another payload, any JSON: see `Update.replace`."""
        if isinstance(payload, (bytes, bytearray, memoryview, fsqueue.Task)):
            raise fsqueue.InvalidTask(f"A new payload is JSON, not {type(payload).__name__}. Nothing was done.")
        line = _task_line(payload)

        def replaced(found: dict[str, Any]) -> fsqueue.LeasedTask | fsqueue.TaskInfo:
            value = json.loads(json.dumps(payload))  # as a lessee would get it
            if isinstance(task, fsqueue.TaskInfo):
                return replace(task, payload=value, version=found["version"])
            task.payload, task.version = value, found["version"]
            return task

        self._add("replace", _named(task) | line, replaced, "replaced")

    def depends(self, task: fsqueue.LeasedTask | fsqueue.TaskInfo) -> None:
        """Let the update happen only if a task is as it was seen: see `Update.depends`."""
        self._add("depends", _named(task))

    def apply(self) -> list[Any]:
        """Let all of it happen, and return `results`."""
        found = self._wire.ask("POST", "/update", self._sent)
        parts = {name: iter(found[name]) for name in ("inserted", "renewed", "replaced")}
        self.results = [call(parts) for call in self._calls]
        _end(self._ended)
        return self.results

    def _end(self, verb: str, task: fsqueue.LeasedTask | fsqueue.TaskInfo, **how: Any) -> None:
        self._add(verb, _named(task) | how)
        if isinstance(task, fsqueue.LeasedTask):
            self._ended.append(task)

    def _add(
        self, verb: str, sent: dict[str, Any], result: Callable[[dict[str, Any]], Any] | None = None, of: str = ""
    ) -> None:  # fmt: skip
        """Add an operation. `result`: what it has brought about, of its part of the list `of` in the answer."""
        self._sent.setdefault(verb, []).append(sent)
        self._calls.append(lambda parts: None if result is None else result(next(parts[of])))


def _named(task: fsqueue.LeasedTask | fsqueue.TaskInfo) -> dict[str, Any]:
    """Return how an update names a task: by its lease, or as it was seen. InvalidArgument."""
    if isinstance(task, fsqueue.TaskInfo) and task.queue is not None:
        return {"queue": task.queue, "id": task.id, "version": task.version}
    if isinstance(task, fsqueue.LeasedTask):
        queue: Any = task.queue
        if isinstance(queue, RemoteQueue):
            return {"queue": queue.name, "token": task.token}
    raise fsqueue.InvalidArgument(
        f"The task {getattr(task, 'id', task)!s:.100} was leased, or looked up, in no queue of a gateway that serves a "
        "group. Nothing was done."
    )


def _text_of(error: object) -> str:
    return f"{type(error).__name__}: {error}" if isinstance(error, BaseException) else str(error)


class RemotePoll:
    """An iterator over leased tasks of a gateway's queue: see `Queue.poll`. Leaving its `with` puts the rest back."""

    def __init__(
        self, queue: RemoteQueue, lease_s: float | None, prefetch: int, until: str, errors: str,
        stop_after_failures: int | None,
    ) -> None:  # fmt: skip
        if type(prefetch) is not int or prefetch < 1:
            raise fsqueue.InvalidArgument(f"prefetch must be a whole number of at least 1, not {prefetch!r:.100}.")
        if until not in ("drained", "forever"):
            raise fsqueue.InvalidArgument(f"until must be 'drained' or 'forever', not {until!r:.100}.")
        if errors not in ("record", "raise"):
            raise fsqueue.InvalidArgument(f"errors must be 'record' or 'raise', not {errors!r:.100}.")
        self._queue, self._lease_s, self._prefetch = queue, lease_s, prefetch
        self._ends, self._records = until == "drained", errors == "record"
        self._tasks: deque[RemoteTask] = deque()
        self._is_closed = False
        self.failures_max: float = stop_after_failures or math.inf
        self.failures_left: float = FIRST_FAILURES if stop_after_failures is None else self.failures_max

    def __iter__(self) -> RemotePoll:
        return self

    def __next__(self) -> RemoteTask:
        while not self._tasks:
            if self._is_closed:
                raise StopIteration
            got = self._queue.lease(self._prefetch, lease_s=self._lease_s, wait_s=0)
            if not got:
                if self._ends and self._queue.is_drained():
                    raise StopIteration
                got = self._queue.lease(self._prefetch, lease_s=self._lease_s, wait_s=2 if self._ends else WAIT_S)
            self._tasks.extend(got)
        task = self._tasks.popleft()
        task.poll = self
        return task

    def complete(self, task: fsqueue.LeasedTask) -> bool:
        """Return False: completing a task leases no other one here."""
        return False

    def goes_on(self, task: fsqueue.LeasedTask, error: Exception) -> bool:
        """Log the error that has ended a task's block. Return whether the loop goes on with the next task."""
        if not self._records:
            return False
        self.failures_left -= 1
        if self.failures_left <= 0:
            error.add_note("This error ends the loop: too many attempts in a row have failed (stop_after_failures).")
            return False
        logger.warning("task %s of %s: attempt %d failed, and the loop goes on: %s", task.id, self._queue.url,
                       task.attempt, error, exc_info=error)  # fmt: skip
        return True

    def close(self) -> None:
        """Put back what was leased ahead, and end."""
        self._is_closed = True
        if self._tasks:
            tasks = list(self._tasks)
            self._tasks.clear()
            self._queue.release(tasks)

    def __enter__(self) -> RemotePoll:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def _waiting(
    ask: Callable[[float], Any], wait_s: float, made: Callable[[dict[str, Any]], RemoteTask]
) -> list[RemoteTask]:
    """Ask for tasks until there are some, or the time is over. Each request waits for a part of it."""
    if type(wait_s) not in (int, float) or not wait_s >= 0:
        raise fsqueue.InvalidArgument(f"wait_s must be a number of seconds from 0 on, not {wait_s!r:.100}.")
    deadline = time.monotonic() + wait_s
    while True:
        left_s = max(0.0, deadline - time.monotonic())
        got = ask(min(left_s, WAIT_S))["tasks"]
        if got or time.monotonic() >= deadline:
            return [made(one) for one in got]


def _listed(tasks: fsqueue.LeasedTask | Iterable[fsqueue.LeasedTask]) -> list[fsqueue.LeasedTask]:
    found = [tasks] if isinstance(tasks, fsqueue.LeasedTask) else list(tasks)
    wrong = [one for one in found if not isinstance(one, fsqueue.LeasedTask)]
    if wrong:
        raise fsqueue.InvalidArgument(f"This verb takes leased tasks, as `lease` returns them, not {wrong[0]!r:.100}.")
    return found


def _end(tasks: Iterable[fsqueue.LeasedTask]) -> None:
    for task in tasks:
        task.done = True


def _ids(ids: str | Iterable[str]) -> list[str]:
    return [ids] if isinstance(ids, str) else list(ids)


def _meant(ids: str | Iterable[str] | None, all: bool) -> dict[str, Any]:
    if (ids is None) != all:
        raise fsqueue.InvalidArgument("Give ids, or all=True, one of the two. Nothing was done.")
    return {"all": True} if ids is None else {"ids": _ids(ids)}
