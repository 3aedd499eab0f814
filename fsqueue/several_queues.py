"""Lease from several queues in one call."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from threading import local
from typing import Protocol, runtime_checkable

from fsqueue.arguments import bound_of, whole
from fsqueue.clock import duration_ms
from fsqueue.errors import InvalidArgument
from fsqueue.filesystem import resources
from fsqueue.format.priority import Rank
from fsqueue.leased_task import LeasedTask
from fsqueue.poll import put_back_dropped
from fsqueue.protocol.queue_watches import Several, Watch
from fsqueue.protocol.waiting import wait
from fsqueue.queue import Queue

_turns = local()
"""Of each thread: which queue gave something last, so that another one is asked first the next time."""


@runtime_checkable
class MayNotBeThere(Protocol):
    """A queue of a group, which may not have come into being."""

    def _opens(self) -> bool:
        """Return whether it has, and was not deleted."""

    def _lease_together(
        self, given: Sequence[Queue], n: int, lease_ms: int | None, wait_s: float, up_to: Rank | None
    ) -> list[LeasedTask]:
        """Do what `lease` does, with queues that come and go."""


def lease(
    queues: Iterable[Queue],
    n: int = 1,
    *,
    lease_s: float | None = None,
    wait_s: float = 0,
    up_to: str | int | None = None,
) -> list[LeasedTask]:
    """Lease up to `n` tasks from several queues: the most urgent of all first, about.

    Queues whose tasks are equally urgent take turns, and share `n`. `lease_s`, `wait_s`, `up_to`: see `Queue.lease`.
    [] only after a full look at each queue. A queue that was deleted is left out, with a warning in the log;
    QueueNotFound if all were. From a queue of a group that has not come into being nothing is leased until it has.
    """
    several = _several(queues)
    whole("n", n)
    bound = None if up_to is None else bound_of(up_to)
    put_back_dropped()
    last = getattr(_turns, "last", None)
    last_queue = last() if last is not None else None
    if last_queue in several:
        place = several.index(last_queue) + 1
        several = several[place:] + several[:place]
    waits_s = duration_ms(wait_s, "wait_s") / 1000
    with resources.Scope():
        unborn = next((queue for queue in several if isinstance(queue, MayNotBeThere) and not queue._opens()), None)
        if unborn is not None:
            lease_ms = None if lease_s is None else duration_ms(lease_s, "lease_s", 0.001)
            got = unborn._lease_together(several, n, lease_ms, waits_s, bound)
        else:
            watches = [Watch(queue._leaser, queue._lease_ms(lease_s), bound) for queue in several]
            got = wait(Several(watches, skips_gone=True), n, waits_s)
    if got:
        giver = next(queue for queue in several if queue == got[-1].queue)
        _turns.last = weakref.ref(giver)
    return got


def _several(queues: object) -> list[Queue]:
    """Return what was given as queues, each once; InvalidArgument if that is no list of queues."""
    if isinstance(queues, (Queue, str, bytes)) or not isinstance(queues, Iterable):
        raise InvalidArgument(f"lease takes a list of queues, not {queues!r}. For a single queue use Queue.lease.")
    found = list(dict.fromkeys(queues))
    wrong = [one for one in found if not isinstance(one, Queue)]
    if wrong or not found:
        what = repr(wrong[0]) if wrong else "an empty list"
        raise InvalidArgument(f"lease takes a list of queues, not {what}. Open a path as a queue: Queue(path).")
    return found
