"""A group of queues of a gateway, and those whose names match. Each method is that of `Group` with the same name."""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from fsqueue.arguments import leased, whole, worker_of
from fsqueue.client.addresses import LOOKS_LIKE, address_of
from fsqueue.client.remote_base import RemoteBase
from fsqueue.client.remote_poll import RemotePoll
from fsqueue.client.remote_queue import RUNS_OUT, TASKS_MAX, QueueStandIn, RemoteQueue, lease_by, leasing
from fsqueue.client.values import json_object, leased_task, made, task_line
from fsqueue.client.wire import (
    Answer,
    NoGateway,
    NothingThere,
    Wire,
    check_token,
    encoded,
    in_one_process,
    in_steps,
    lacking,
    not_a_gateway,
)
from fsqueue.clock import Clock, Entropy, duration_ms
from fsqueue.errors import InvalidArgument, LeaseLost, QueueFileLost, QueuePurged, TaskTooLarge, UpdateConflict
from fsqueue.forks import Late
from fsqueue.format import names
from fsqueue.format.layout import Settings
from fsqueue.format.models import Status, TaskRef
from fsqueue.groups.pending_update import NOTHING, PendingUpdate
from fsqueue.groups.queue_selection import compiled
from fsqueue.leased_task import LeasedTask
from fsqueue.poll import Errors, Until, last_statuses
from fsqueue.protocol.encoding import EncodedTask
from fsqueue.protocol.update_plan import Applied, TaskChange
from fsqueue.protocol.update_traces import HOW_TO_FIND_OUT
from fsqueue.user_code import unwrapped, user_function
from fsqueue.verbs.fields import BODY_BYTES_MAX
from fsqueue.views.flows import Flow
from fsqueue.views.rates import total
from fsqueue.views.usage import Usage

if TYPE_CHECKING:
    from fsqueue.client import remote_barriers
    from fsqueue.format.barriers import OnFailure
    from fsqueue.groups.barriers import Barrier
else:
    remote_barriers = Late("fsqueue.client.remote_barriers")


class RemoteQueues(RemoteBase):
    """The queues of a gateway's group whose names match a pattern, also those that come later: see `GroupQueues`.

    Errors as of `RemoteQueue`.
    """

    def __init__(self, wire: Wire, holder: dict[str, Any], pattern: str | None = None) -> None:
        if pattern is not None:
            compiled(pattern)
        self._wire, self._holder, self.pattern = wire, holder, pattern
        self.store = QueueStandIn(self.url, Clock(), Entropy())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.url == other.url and self.pattern == other.pattern

    def __hash__(self) -> int:
        return hash((self.url, self.pattern))

    @property
    def url(self) -> str:
        """Return the address of the group, as `connect` takes it."""
        return f"{self._wire.address.url}/"

    @property
    def group(self) -> RemoteGroup:
        """Return the group of these queues."""
        return RemoteGroup(self._wire, self._holder)

    @property
    def settings(self) -> Settings:
        """Return the settings that the group's queues begin with."""
        found = Answer(self._wire.call("group_settings"))
        settings: Settings = made(Settings, found | {"backoff_s": tuple(found["backoff_s"])})
        return settings

    def _ask(self, verb: str, /, wait_s: float = 0, **given: Any) -> Any:
        """Return what a verb answers about those that match. `given`: its other fields by name."""
        return self._wire.call(f"group_{verb}", {"match": self.pattern, **given}, wait_s=wait_s)

    def _queue(self, name: str) -> RemoteQueue:
        return RemoteQueue(self._wire, name, self._holder, self.group)

    def queues(self, pattern: str | None = None, tasks_min: int = 1) -> Iterator[RemoteQueue]:
        """Yield the queues with at least `tasks_min` unfinished tasks, by name: see `GroupQueues.queues`."""
        whole("tasks_min", tasks_min, 0)
        matches = None if pattern is None else compiled(pattern).fullmatch
        asked = pattern if self.pattern is None else self.pattern
        after: str | None = None
        while True:
            page = self._wire.call("queues", {"match": asked, "tasks_min": tasks_min, "after": after})
            yield from (self._queue(name) for name in page["queues"] if matches is None or matches(name))
            after = page["next"]
            if after is None:
                return

    def status(self, pattern: str | None = None, *, exact: bool = True) -> dict[str, Status]:
        """Return the counts of each queue that ever had a task, by its name.

        QueueFileLost if those of some queues are not known, since a file of theirs is gone or hidden.
        """
        matches = None if pattern is None else compiled(pattern).fullmatch
        asked = pattern if self.pattern is None else self.pattern
        found = self._wire.call("group_status", {"match": asked, "exact": bool(exact)})
        if lost := found.get("lost"):
            raise QueueFileLost(
                f"The tasks in {', '.join(lost)} cannot be counted: a file of the queue's own is gone, or something "
                "else stands in its place. Nothing was changed. Ask each of them for its status: that says what to do. "
                "`match` leaves them out."
            )
        return {name: made(Status, one) for name, one in found["queues"].items() if matches is None or matches(name)}

    def _states(self, found: dict[str, Any]) -> dict[str, str]:
        return {f"{self.url}{name}": state for name, state in found["states"].items()}

    @in_one_process
    def wait(self, timeout_s: float | None = None, poll: Callable[[Status], object] | None = None) -> Status:
        """Wait until at one instant nothing is waiting, delayed or leased in any of them; return the sum.

        See `GroupQueues.wait`. QueuePurged if one that was there when it began was purged, overwritten or deleted.
        """
        waits_s = math.inf if timeout_s is None else duration_ms(timeout_s, "timeout_s") / 1000
        tell = None if poll is None else user_function(poll)
        known: dict[str, str] | None = None

        def look(step_s: float) -> tuple[bool, Status]:
            nonlocal known
            found = self._ask("wait", wait_s=step_s)
            known = found["states"] if known is None else known
            for name, state in known.items():
                if found["states"].get(name) != state:
                    raise QueuePurged(
                        f"The queue {names.parse_queue_directory(name) or name} of {self.url} was purged, overwritten "
                        "or deleted while it was waited for: what was in it was not worked off. Wait again for what is "
                        "there now."
                    )
            status: Status = made(Status, found)
            if tell is not None:
                with unwrapped():
                    tell(status)
            return found["drained"], status

        is_drained, status = in_steps(look, waits_s, lambda found: found[0])
        return status if is_drained else last_statuses([status], self._sum, self.is_drained)[0]

    def _sum(self) -> list[Status]:
        return [total(self.status().values())]

    @in_one_process
    def lease(
        self,
        n: int = 1,
        *,
        lease_s: float | None = None,
        wait_s: float = 0,
        up_to: str | int | None = None,
    ) -> list[LeasedTask]:
        """Lease up to `n` tasks of all of them: see `Group.lease`."""
        asked = leasing(lease_s, up_to, self._holder) | self._matching()

        def ask(wire: Wire, n: int, step_s: float) -> list[dict[str, Any]]:
            answer = wire.call("lease_any", {**asked, "n": n}, wait_s=step_s, advice=RUNS_OUT)
            found: list[dict[str, Any]] = answer["tasks"]
            return found

        return lease_by(self._wire, ask, n, wait_s, self._leased)

    def _matching(self) -> dict[str, str]:
        return {} if self.pattern is None else {"match": self.pattern}

    def _leased(self, one: dict[str, Any]) -> LeasedTask:
        return leased_task(self._queue(one["queue"]), one)  # type: ignore[arg-type]

    def lease_patiently(self, n: int, lease_s: float | None, wait_s: float) -> list[LeasedTask]:
        """Lease as a loop does, which goes on while the gateway is away. A lease whose answer was lost runs out."""
        sent = leasing(lease_s, None, self._holder) | self._matching() | {"n": min(n, TASKS_MAX)}
        answer = self._wire.call("lease_any", sent, again=True, wait_s=wait_s, advice=RUNS_OUT)
        return [self._leased(one) for one in answer["tasks"]]

    def put_back(self, tasks: Iterable[LeasedTask]) -> None:
        """Put back what a loop has leased ahead, each into its own queue, at once or not at all."""
        mine, lost = leased(tasks), None
        for queue in dict.fromkeys(task.queue for task in mine):
            try:
                queue.put_back([task for task in mine if task.queue == queue])  # type: ignore[attr-defined]
            except LeaseLost as error:
                lost = error
        if lost is not None:
            raise lost

    def poll(
        self,
        *,
        lease_s: float | None = None,
        prefetch: int = 1,
        until: Until = "drained",
        errors: Errors = "record",
        stop_after_failures: int | None = None,
    ) -> RemotePoll:
        """Return an iterator over leased tasks of all of them, until all are drained or for ever: see `Queue.poll`.

        It goes on while the gateway is away, for as long as `patience_s` of `connect` says.
        """
        return RemotePoll(self, lease_s, prefetch, until, errors, stop_after_failures)


class RemoteGroup(RemoteQueues):
    """A group of queues of a gateway: ``group["fetch"].insert(payload)``. Errors as of `RemoteQueue`."""

    def __reduce__(self) -> Any:
        return RemoteGroup, (self._wire, self._holder)

    @property
    def group(self) -> RemoteGroup:
        """Return itself."""
        return self

    def __getitem__(self, name: str) -> RemoteQueue:
        """Return a queue by its name: see `Group`. It comes into being at its first insert. InvalidArgument."""
        names.queue_directory(name)
        return self._queue(name)

    def matching(self, pattern: str) -> RemoteQueues:
        """Return the queues whose whole names match a regular expression, also those that come later."""
        return RemoteQueues(self._wire, self._holder, pattern)

    def usage(self) -> dict[str, Usage]:
        """Return files, directories and bytes of the group and its queues: see `Group.usage`."""
        return {part: made(Usage, one) for part, one in self._wire.call("group_usage").items()}

    def flows(self) -> list[Flow]:
        """Return which queues' tasks updates complete that insert into which: see `Group.flows`. A hint."""
        return [made(Flow, one) for one in self._wire.call("group_flows")]

    def barrier(self, queues: Any, then: Any, *, on_failure: OnFailure = "run") -> Barrier:
        """Insert tasks that become available once, when at one instant all of `queues` are drained.

        See `Group.barrier`. TaskTooLarge if a request does not hold it.
        """
        return remote_barriers.set_barrier(self, self._wire, queues, then, on_failure)

    def join(self, tasks: Any, then: Any, *, on_failure: OnFailure = "wait") -> Barrier:
        """Have tasks become available once all tasks of a set are done, whichever process dies. Return the barrier.

        See `Group.join`. TaskTooLarge if a request does not hold it.
        """
        return remote_barriers.set_join(self, self._wire, tasks, then, on_failure)

    def barriers(self) -> list[Barrier]:
        """Return the group's barriers, the oldest first: those that wait, and those that have ended within a week."""
        return [remote_barriers.barrier_of(self._wire, one) for one in self._wire.call("group_barriers")]

    def update(self) -> RemoteUpdate:
        """Return an update: changes that happen all together, or not at all: see `Group.update`."""
        return RemoteUpdate(self._wire, self.__getitem__)

    @in_one_process
    def delete(self, name: str) -> bool:
        """Delete a queue: see `Group.delete`. Return False if there was none."""
        queue = self[name]
        is_there = queue.exists()
        queue.delete()
        return is_there


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

    def add_change(self, change: TaskChange) -> None:
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

    def _queue_named(self, name: str) -> RemoteQueue:
        return self._queue_of(name)

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
    """Return the outcome of an update, as the gateway's answer tells it."""
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


ABOUT_BYTES_MAX = 64 << 10
"""Maximum number of bytes that are read of the first answer, which shows whether a gateway is there."""


TIMEOUT_S = (0.001, 2_000_000.0)
"""The shortest time that a request may take: a socket with none does not wait at all. And the longest for which a
socket waits, about: 23 days."""


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
    /QUEUE for one queue of the group. If a proxy has the gateway below a path, that stands before: /PREFIX/ or
    /PREFIX/QUEUE. `token`: as `fsqueue serve` has shown it; otherwise that of the environment variable
    FSQUEUE_SERVE_TOKEN. `worker`: a name to appear under in histories. `timeout_s`: how long an answer may take.
    `patience_s`: how long what can be repeated without harm is repeated while the gateway is away. InvalidArgument,
    StorageError.
    """
    worker_of(worker)
    duration_ms(timeout_s, "timeout_s", TIMEOUT_S[0])
    duration_ms(patience_s, "patience_s")
    if token is not None:
        check_token("token", token)
    holder = _this_process(worker)
    wire = Wire(address_of(url), token, min(timeout_s, TIMEOUT_S[1]), patience_s)
    wire, about = _found(wire)
    name = wire.address.queue if wire.address.queue is not None else about["queue"]
    if name is None:
        return RemoteGroup(wire, holder)
    return RemoteQueue(wire, name, holder) if about["queue"] is not None else RemoteGroup(wire, holder)[name]


def _found(wire: Wire) -> tuple[Wire, Any]:
    """Return a gateway's description of itself, and the wire to the gateway. NoGateway if there is none.

    The last segment of an address is a queue's name. If there is no gateway above it, it may belong to the prefix. It
    does so if the gateway says so of its prefix (`--root-path`).
    """
    below = wire.address.below
    try:
        about = _about(wire)
        if below is not None and below.prefix == about.get("root_path"):
            wire = wire.at(below)
        return wire, about
    except NoGateway:
        if below is None:
            raise
        try:
            wire = wire.at(below)
            return wire, _about(wire)
        except NoGateway:
            pass
        raise


def _about(wire: Wire) -> Any:
    try:
        about = wire.ask("GET", "", again=True, bytes_max=ABOUT_BYTES_MAX)
    except NothingThere:
        raise NoGateway(
            f"There is no gateway at {wire.address.url:.200}, but one that answers at another path. {LOOKS_LIKE}"
        ) from None
    if about.get("service") != "fsqueue":
        raise not_a_gateway(wire.address.host, about, "GET")
    return about


def _this_process(worker: str | None) -> dict[str, Any]:
    """Return the worker that histories name for this process. The gateway cannot see whether the process lives."""
    author: dict[str, Any] = {"host": socket.gethostname(), "pid": os.getpid()}
    job = os.environ.get("SLURM_ARRAY_JOB_ID") or os.environ.get("SLURM_JOB_ID")
    author |= {} if worker is None else {"name": worker}
    if job and job.isprintable() and len(job) <= 200:
        author["slurm_job"] = job
        index = os.environ.get("SLURM_ARRAY_TASK_ID")
        author |= {"slurm_index": index} if index and index.isprintable() and len(index) <= 200 else {}
    return author
