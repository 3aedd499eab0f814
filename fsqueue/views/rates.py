"""Compute rates, totals and time left from one status after another, of one queue or several.

`activity` reads how fast tasks finish from what is on disk. Where a display counts again and again, the counts
themselves tell it. Nothing here reads a file; clocks are the caller's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from itertools import pairwise

from fsqueue.format.models import Status
from fsqueue.views.activity import Activity, Rate, TimeLeft

WINDOW_S = 60.0
"""A rate is an average over this time, and up to one status more."""
SURE_S = 20.0
"""Counts that are this far apart tell a rate better than a sample of the files does."""


def total(statuses: Iterable[Status]) -> Status:
    """Return the sum of several statuses."""
    each = list(statuses)
    return Status(**{field.name: sum(getattr(one, field.name) for one in each) for field in fields(Status)})


def last_left(each: Sequence[TimeLeft | None]) -> TimeLeft | None:
    """Return the time left until the last of several queues is drained; None if it is unknown of one, or of none.

    It holds if each queue has workers of its own.
    """
    known = [left for left in each if left is not None]
    if not known or len(known) < len(each):
        return None
    most = [left.most_s for left in known if left.most_s is not None]
    return TimeLeft(
        max(left.likely_s for left in known),
        max(left.least_s for left in known),
        max(most) if len(most) == len(known) else None,
    )


def better_rates(sampled: Activity, counted: Activity) -> Activity:
    """Return an activity with the rates of `StatusRates.add`, if they are better than those of `Queue.activity`.

    They are if `Queue.activity` knows none, or read a part of the files while the counts are `SURE_S` apart.
    """
    over_s = counted.finished.over_s if counted.finished is not None else 0.0
    if sampled.finished is not None and (sampled.share >= 1 or over_s <= SURE_S):
        return sampled
    return replace(sampled, inserted=counted.inserted, completed=counted.completed, finished=counted.finished)


class StatusRates:
    """Compute the rates of a queue from one status after another. `monotonic` and `wall` return seconds."""

    def __init__(self, monotonic: Callable[[], float], wall: Callable[[], float]) -> None:
        self._monotonic, self._wall = monotonic, wall
        self._seen: deque[tuple[float, int, int, int]] = deque()

    def add(self, status: Status) -> Activity:
        """Return the rates of insertion, completion and finishing over the last `WINDOW_S`; None while unknown."""
        seen = (self._monotonic(), status.inserted, status.completed, status.completed + status.dead)
        if self._seen and any(now < before for now, before in zip(seen, self._seen[-1], strict=True)):
            self._seen.clear()  # after a purge, of the queue or of dead letters, the difference would be negative
        self._seen.append(seen)
        while len(self._seen) > 2 and seen[0] - self._seen[1][0] > WINDOW_S:
            self._seen.popleft()
        inserted, completed, finished = (self._rate(which) for which in (1, 2, 3))
        return Activity(self._wall(), inserted, None, completed, finished, None, None, 0, 1.0)

    def _rate(self, which: int) -> Rate | None:
        seen = list(self._seen)
        over_s = seen[-1][0] - seen[0][0]
        if over_s <= 0:
            return None
        per_s = (seen[-1][which] - seen[0][which]) / over_s
        pieces = len(seen) - 1
        if pieces == 1 or per_s == 0:
            return Rate(per_s, max(per_s, 1 / over_s), over_s)
        spread = sum((now[which] - before[which] - per_s * (now[0] - before[0])) ** 2 for before, now in pairwise(seen))
        return Rate(per_s, (spread * pieces / (pieces - 1)) ** 0.5 / over_s, over_s)


class WorkerProgress:
    """Estimate how far the queues of a worker are: from the last status, and from what the worker has done since.

    The worker itself is asked what it has done (`completed`: for certain, and at most). Its events would not do. While
    the terminal stands still they are not told, and tasks that the last status has counted would be counted again.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.completed: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self.status: Status | None = None
        """The last status; None before the first."""
        self.leased_elsewhere = 0
        """How many tasks other workers held then."""
        self._completed_then = 0
        self._seen: deque[tuple[float, int]] = deque([(monotonic(), 0)])

    def look(self, status: Status, held: int) -> None:
        """Record a status, right after it was read. Meanwhile this worker held `held` tasks."""
        if self.status is None or self.done > status.completed + status.dead + status.remaining:
            self._seen.clear()  # tasks done before this worker began, or before a purge, would distort the rate
        # At most, and after the look: a task too few until the next look is better than one counted twice.
        self._completed_then = self.completed()[1]
        self.status, self.leased_elsewhere = status, max(0, status.leased - held)

    def _since(self) -> int:
        return max(0, self.completed()[0] - self._completed_then)

    @property
    def done(self) -> int:
        """Return how many tasks have an outcome: of the last status, and of this worker since."""
        status = self.status
        return self._since() + (status.completed + status.dead if status is not None else 0)

    @property
    def remaining(self) -> int:
        """Return how many tasks have no outcome yet; 0 before the first status."""
        return max(0, self.status.remaining - self._since()) if self.status is not None else 0

    def rate(self) -> float:
        """Return the tasks done per second in the last `WINDOW_S`, by all workers; 0 while that is not known.

        Call it once for each drawing: it records the count of now.
        """
        now = self._monotonic()
        self._seen.append((now, self.done))
        while len(self._seen) > 2 and now - self._seen[1][0] > WINDOW_S:
            self._seen.popleft()
        (then, before), (now, done) = self._seen[0], self._seen[-1]
        return max(0.0, (done - before) / (now - then)) if now > then else 0.0
