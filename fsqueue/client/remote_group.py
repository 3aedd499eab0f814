"""A group of queues of a gateway, and those whose names match. Each method is that of `Group` with the same name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from fsqueue.arguments import leased, whole
from fsqueue.client.over_wire import OverWire
from fsqueue.client.remote_poll import RemotePoll
from fsqueue.client.remote_queue import RUNS_OUT, TASKS_MAX, QueueStandIn, RemoteQueue, lease_by, leasing
from fsqueue.client.remote_update import RemoteUpdate
from fsqueue.client.values import leased_task, made
from fsqueue.client.wire import Answer, Wire, in_one_process, in_steps
from fsqueue.clock import Clock, Entropy, duration_ms
from fsqueue.errors import LeaseLost, QueueFileLost, QueuePurged
from fsqueue.format import names
from fsqueue.format.layout import Settings
from fsqueue.format.models import Status
from fsqueue.groups.selection import compiled
from fsqueue.leased_task import LeasedTask
from fsqueue.poll import Errors, Until, last_statuses
from fsqueue.user_code import unwrapped, user_function
from fsqueue.views.flows import Flow
from fsqueue.views.rates import total
from fsqueue.views.usage import Usage


class RemoteQueues(OverWire):
    """The queues of a gateway's group whose names match a pattern, also those that come later: see `GroupQueues`.

    Errors as of `RemoteQueue`.
    """

    def __init__(self, wire: Wire, holder: dict[str, Any], pattern: str | None = None) -> None:
        if pattern is not None:
            compiled(pattern)
        self._wire, self._holder, self.pattern = wire, holder, pattern
        self.store = QueueStandIn(self.url, Clock(), Entropy())

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and isinstance(other, RemoteQueues) and self.pattern == other.pattern

    def __hash__(self) -> int:
        return hash((self.url, self.pattern))

    @property
    def url(self) -> str:
        """Return the address of the group, as `connect` takes it."""
        return f"{self._wire.address.url}/"

    @property
    def group(self) -> RemoteGroup:
        """Return their group."""
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
        told = None if poll is None else user_function(poll)
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
            if told is not None:
                with unwrapped():
                    told(status)
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
