"""Barriers and joins of a gateway's group: see `Group.barrier` and `Group.join` (docs/barriers.md)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fsqueue.arguments import one_of
from fsqueue.client.remote_queue import RemoteQueue
from fsqueue.client.values import BYTES_MAX, PART_ITEMS, json_object, task_line
from fsqueue.client.wire import Wire, encoded, lacking
from fsqueue.errors import InvalidArgument, TaskTooLarge, shown
from fsqueue.format import names
from fsqueue.format.barriers import ON_FAILURE
from fsqueue.format.models import TaskRef
from fsqueue.groups import barriers, joins
from fsqueue.groups.barriers import Barrier, State
from fsqueue.protocol import encoding
from fsqueue.user_code import user_items
from fsqueue.verbs.fields import BODY_BYTES_MAX


class RemoteBarrier(Barrier):
    """A barrier of a gateway's group. The gateway is asked for its state."""

    __slots__ = ()

    @property
    def state(self) -> State:
        """Return "waiting"; "fired" once the tasks are, or will be, available; "cancelled"; or "forgotten"."""
        found: State = self._wire.call("group_barrier_state", {"id": self.id})
        return found

    def cancel(self) -> bool:
        """Cancel it: see `Barrier.cancel`."""
        return bool(self._wire.call("group_cancel_barrier", {"id": self.id}))

    @property
    def _wire(self) -> Wire:
        wire: Any = self._group  # what stands for the group here
        assert isinstance(wire, Wire)
        return wire


def barrier_of(wire: Wire, given: dict[str, Any]) -> RemoteBarrier:
    """Return a barrier from a gateway's answer."""
    stands_for_the_group: Any = wire
    try:
        return RemoteBarrier(
            given["id"], tuple(given["of"]), given["match"], tuple(given["then"]), given["on_failure"],
            given["set_at"], given["join"], stands_for_the_group,
        )  # fmt: skip
    except (KeyError, TypeError):
        raise lacking("fields of a barrier") from None


def set_barrier(group: Any, wire: Wire, queues: object, then: object, on_failure: str) -> RemoteBarrier:
    """Do what `Group.barrier` says. `group`: the `RemoteGroup`."""
    one_of("on_failure", on_failure, ON_FAILURE)
    of, match = _awaited(group, queues)
    what = {"match": match} if of is None else {"of": of}
    return _sent(group, wire, "group_barrier", json_object(what | {"on_failure": on_failure}, then=_then(group, then)))


def set_join(group: Any, wire: Wire, tasks: object, then: object, on_failure: str) -> RemoteBarrier:
    """Do what `Group.join` says. `group`: the `RemoteGroup`."""
    one_of("on_failure", on_failure, ON_FAILURE)
    what = _tasks(group, tasks) | {"on_failure": on_failure}
    return _sent(group, wire, "group_join", json_object(what, then=_then(group, then)))


def _sent(group: Any, wire: Wire, verb: str, body: bytes) -> RemoteBarrier:
    if len(body) > BODY_BYTES_MAX:
        raise TaskTooLarge(
            f"This barrier takes {len(body):,} bytes as a request; a gateway takes up to {BODY_BYTES_MAX:,}. Nothing "
            "was done. Join parts of its tasks, and then those; or set it where the group's directory is mounted."
        )
    return barrier_of(wire, wire.call(verb, body=body))


def _awaited(group: Any, queues: Any) -> tuple[list[str] | None, str | None]:
    """Return the names of the queues that are to be waited for, or the pattern. InvalidArgument."""
    if hasattr(queues, "pattern"):
        if getattr(queues, "group", None) != group:
            raise InvalidArgument(f"{queues!r} is of another group than {group.url}. Nothing was done.")
        if queues.pattern is None:
            raise InvalidArgument(
                "A barrier that waits for all queues of the group would wait for its own tasks. Nothing was done. "
                "Name the queues, or give group.matching(...)."
            )
        return None, queues.pattern
    given = [queues] if isinstance(queues, (str, RemoteQueue)) else queues
    if not isinstance(given, Iterable) or isinstance(given, (bytes, dict)):
        raise InvalidArgument(f"A barrier waits for queues of its group, or their names, not {queues!r:.100}.")
    found = [*dict.fromkeys(_name(group, one) for one in user_items(given))]
    if not found:
        raise InvalidArgument("A barrier waits for one queue at least. Nothing was done.")
    return found, None


def _name(group: Any, queue: object) -> str:
    """Return the name of a queue of this group. InvalidArgument."""
    if isinstance(queue, RemoteQueue):
        if queue.group != group:
            raise InvalidArgument(f"The queue {queue.url} is not in the group {group.url}. Nothing was done.")
        return queue.name
    names.queue_directory(queue)  # InvalidArgument
    return str(queue)


def _then(group: Any, then: object) -> bytes:
    """Return the tasks that are to come then, as a list in JSON. InvalidArgument."""
    found = [
        b'{"queue":%s,%s' % (encoded(name), task_line(encoding.encode(task, BYTES_MAX))[1:])
        for name, task in barriers.tasks_then(then, lambda queue: _name(group, queue))
    ]
    return b"[%s]" % b",".join(found)


def _tasks(group: Any, given: Any) -> dict[str, Any]:
    """Return the tasks that references stand for, each once, by queues; and the named commits. InvalidArgument."""
    each = [given] if isinstance(given, TaskRef) or joins.is_commits_name(given) else given
    if not isinstance(each, Iterable) or isinstance(each, (str, bytes, dict)):
        raise InvalidArgument(_WANTED.format(shown(given)))
    found: dict[str, dict[str, None]] = {}
    commits: list[dict[str, str]] = []
    for one in user_items(each):
        if joins.is_commits_name(one):
            commits.append({"queue": _name(group, one[0]), "name": one[1]})
            continue
        if not isinstance(one, TaskRef):
            raise InvalidArgument(_WANTED.format(shown(one)))
        queue: object = one.queue
        if not isinstance(queue, RemoteQueue) or queue.group != group:
            raise InvalidArgument(
                f"The task {one.id} is not known as one of a queue of {group.url}: insert it by connect(URL)[NAME]. "
                "Nothing was done."
            )
        found.setdefault(queue.name, {})[one.id] = None
    if not found and not commits:
        raise InvalidArgument("A join waits for one task at least. Nothing was done.")
    tasks = [
        {"queue": name, "ids": ids[first : first + PART_ITEMS]}
        for name, ids in ((name, [*ids]) for name, ids in found.items())
        for first in range(0, len(ids), PART_ITEMS)
    ]
    return {"tasks": tasks, "commits": commits}


_WANTED = (
    "At a gateway a join takes references to tasks, as insert returns them, or (queue, name) of a named commit, not "
    "{}. Nothing was done."
)
