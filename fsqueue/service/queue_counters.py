"""What the gateway has counted of queues since it began: attempts, failures, expired leases, durations of the work.

Nothing on disk counts these, and no worker does anything for it. A look reads what happened since the last one, from
the logs and the history (`views.attempts`). So the counters begin with this process, and grow only.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

import fsqueue
from fsqueue import metrics
from fsqueue.metrics import DURATIONS_S, AttemptCounts, Counted
from fsqueue.service.page_contents import QueueLook

logger = logging.getLogger("fsqueue")

SETTLE_MS = 15_000
"""What happened in this time is counted at the next look: other hosts' writes are seen late, and their clocks differ.
It is three times as long as lines of the history may stand out of order (`history.LATE_MS`)."""
QUEUES_MAX = 4_000
"""Maximum number of queues with counters. The one that was asked for least recently loses them, and begins anew."""


@dataclass(slots=True)
class _Counters:
    """The counters of one queue, and what was seen of the queue when they were brought up to date."""

    since_ms: int
    until_ms: int
    leased: float = 0
    retried: float = 0
    failed: float = 0
    expired: float = 0
    given_up: float = 0
    buckets: list[float] = field(default_factory=lambda: [0.0] * (len(DURATIONS_S) + 1))
    work_s: float = 0
    share: float = 1.0
    state: tuple[fsqueue.Status, float | None] | None = None
    changed_ms: int = 0
    """When `state` was first seen."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, found: AttemptCounts) -> None:
        self.leased += found.leased
        self.retried += found.retried
        self.failed += found.failed
        self.expired += found.expired
        self.given_up += found.given_up
        for seconds, tasks in found.work_s.items():
            self.buckets[bisect_left(DURATIONS_S, seconds)] += tasks
            self.work_s += seconds * tasks
        self.share = found.share if found.is_whole else 0.0

    def counted(self) -> Counted:
        return Counted(
            self.since_ms / 1000, self.until_ms / 1000, self.leased, self.retried, self.failed, self.expired,
            self.given_up, tuple(self.buckets), self.work_s, self.share,
        )  # fmt: skip


class QueueCounters:
    """The counters of a gateway, by the names of queues. Safe to use from many threads."""

    def __init__(self, count: Callable[[fsqueue.Queue, int, int], AttemptCounts] = metrics.count_attempts) -> None:
        self._count = count
        self._known: OrderedDict[str, _Counters] = OrderedDict()
        self._lock = threading.Lock()

    def counted(self, queue: fsqueue.Queue, look: QueueLook) -> Counted | None:
        """Return the counters of a queue, brought up to date. None: it keeps no history, or cannot be read.

        `look`: what has just been seen of it. A queue in which nothing can have happened since is not read.
        """
        if look.error or look.settings is None or not look.settings.keep_history:
            return None
        try:
            return self._counted(queue, look)
        except fsqueue.QueueNotFound:  # it has not come into being
            return None
        except fsqueue.FsqueueError as error:
            logger.warning("the figures of %s lack what happened in it: %s", look.name, error)
            return None

    def _counted(self, queue: fsqueue.Queue, look: QueueLook) -> Counted:
        now_ms = metrics.now_ms(queue)
        until_ms = now_ms - SETTLE_MS
        with self._lock:
            known = self._known.setdefault(look.name, _Counters(until_ms, until_ms))
            self._known.move_to_end(look.name)
            while len(self._known) > QUEUES_MAX:
                self._known.popitem(last=False)
        state = look.status, None if look.activity is None else look.activity.last_leased
        with known.lock:
            if until_ms > known.until_ms:
                if state != known.state or look.status.leased:
                    known.state, known.changed_ms = state, now_ms
                if known.until_ms < known.changed_ms:  # else nothing has happened that is not counted
                    known.add(self._count(queue, known.until_ms, until_ms))
                known.until_ms = until_ms
            return known.counted()
