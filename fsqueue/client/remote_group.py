"""A group of queues of a gateway. Each method is that of `Group` with the same name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fsqueue.arguments import whole
from fsqueue.client.remote_queue import RemoteQueue, lease_by, leasing
from fsqueue.client.remote_update import RemoteUpdate
from fsqueue.client.values import leased_task, made
from fsqueue.client.wire import OverWire, Wire, in_one_process
from fsqueue.errors import QueueFileLost
from fsqueue.format import names
from fsqueue.format.models import Status
from fsqueue.leased_task import LeasedTask


class RemoteGroup(OverWire):
    """A group of queues of a gateway: ``group["fetch"].insert(payload)``. Errors as of `RemoteQueue`."""

    def __init__(self, wire: Wire, holder: dict[str, Any]) -> None:
        self._wire, self._holder = wire, holder

    def __getitem__(self, name: str) -> RemoteQueue:
        """Return a queue by its name: see `Group`. It comes into being at its first insert. InvalidArgument."""
        names.queue_directory(name)
        return RemoteQueue(self._wire, name, self._holder)

    @property
    def url(self) -> str:
        """Return its address, as `connect` takes it."""
        return f"{self._wire.address.url}/"

    def queues(self, pattern: str | None = None, tasks_min: int = 1) -> Iterator[RemoteQueue]:
        """Yield the queues with at least `tasks_min` unfinished tasks, by name: see `Group.queues`."""
        whole("tasks_min", tasks_min, 0)
        after: str | None = None
        while True:
            query = {"match": pattern, "tasks_min": tasks_min, "after": after}
            page = self._wire.call("queues", query)
            yield from (self[name] for name in page["queues"])
            after = page["next"]
            if after is None:
                return

    def status(self, pattern: str | None = None, *, exact: bool = True) -> dict[str, Status]:
        """Return the counts of each queue that ever had a task, by its name.

        QueueFileLost if those of some queues are not known, since a file of theirs is gone or hidden.
        """
        found = self._wire.call("group_status", {"match": pattern, "exact": bool(exact)})
        if lost := found.get("lost"):
            raise QueueFileLost(
                f"The tasks in {', '.join(lost)} cannot be counted: a file of the queue's own is gone, or something "
                "else stands in its place. Nothing was changed. Ask each of them for its status: that says what to do. "
                "`match` leaves them out."
            )
        return {name: made(Status, one) for name, one in found["queues"].items()}

    @in_one_process
    def lease(
        self,
        n: int = 1,
        *,
        lease_s: float | None = None,
        wait_s: float = 0,
        up_to: str | int | None = None,
        match: str | None = None,
    ) -> list[LeasedTask]:
        """Lease up to `n` tasks of all queues, or of those whose whole names `match`: see `Group.lease`."""
        asked = leasing(lease_s, up_to, self._holder) | ({} if match is None else {"match": match})

        def ask(n: int, step_s: float) -> list[dict[str, Any]]:
            sent = {**asked, "n": n, "wait_s": step_s}
            found: list[dict[str, Any]] = self._wire.call("lease_any", sent, wait_s=step_s)["tasks"]
            return found

        return lease_by(ask, n, wait_s, lambda one: leased_task(self[one["queue"]], one))  # type: ignore[arg-type]

    def update(self) -> RemoteUpdate:
        """Return an update: changes that happen all together, or not at all: see `Group.update`."""
        return RemoteUpdate(self._wire, self.__getitem__)

    def delete(self, name: str) -> bool:
        """Delete a queue: see `Group.delete`. Return False if there was none."""
        queue = self[name]
        is_there = queue.exists()
        queue.delete()
        return is_there
