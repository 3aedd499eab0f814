"""Measure how long tasks take: how many are worth leasing at once, and whether another one is likely to end in time.

docs/decisions/0019-whether-another-task-fits.md says where the formulas come from, and how they did in simulations.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

AIM_S = 0.25
"""Seconds of work leased ahead for each slot: little enough that a few workers end together."""
AHEAD_MAX = 1000
"""Maximum number of tasks to lease ahead for each, however short they are."""
LEASE_SHARE = 20
"""Never more work than this part of a lease."""
GAIN = 1 / 8
"""The weight of a new measurement, as in the estimate of round-trip times of RFC 6298."""
RECENT = 64
"""Number of last durations to keep: tasks of today may take longer than those of yesterday."""
CONFIDENCE = 0.95
"""With at least this probability, the next task does not outlast the bound (given enough measurements)."""
FAR = 1000
"""With more time left than this many mean durations, no bound is computed: it would be shorter."""


class Pace:
    """A moving mean of the seconds that tasks take, and the last of these durations."""

    def __init__(self, lease_s: float, prefetch: int | None) -> None:
        self._aim_s = min(AIM_S, lease_s / LEASE_SHARE)
        self._prefetch = prefetch
        self.mean_s = math.nan
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._most = 1

    def took(self, seconds: float) -> None:
        """Take in how long a task took."""
        self._recent.append(seconds)
        if math.isnan(self.mean_s):
            self.mean_s = seconds
        else:
            self.mean_s += GAIN * (seconds - self.mean_s)

    def likely_s(self, left_s: float, ages_s: Callable[[], list[float]]) -> float:
        """Return how long the next task may well take, in seconds.

        Return 0 before any was measured, and where `left_s` is far longer. `ages_s` returns for how long the tasks at
        work have been at work: the short ones end first, so those that have ended are no fair sample.
        """
        if not left_s < FAR * self.mean_s:
            return 0.0
        sample = sorted(self._recent)
        typical_s = sample[len(sample) // 2]
        sample += [age for age in ages_s() if age > typical_s]
        return bound_s(sample)

    def each(self) -> int:
        """Return how many tasks each that does them may hold, the one at work included."""
        if self._prefetch is not None:
            return self._prefetch
        if math.isnan(self.mean_s):
            return 1
        return max(1, min(self._most, AHEAD_MAX, int(self._aim_s / max(self.mean_s, 1e-9))))

    def each_within(self, failures_left: float, left_s: float, likely_s: float) -> int:
        """Return `each`, but no more than failures may follow, nor than are likely to end in `left_s` seconds."""
        each = self.each()
        if failures_left < math.inf:
            each = max(1, min(each, int(failures_left)))
        if likely_s > 0:
            each = min(each, max(1, int(left_s / likely_s)))
        return each

    def grow(self) -> None:
        """Allow twice as much for the next request, since this one was filled."""
        self._most = min(2 * self._most, AHEAD_MAX)


def bound_s(sample: list[float]) -> float:
    """Return a duration that one more task of the kind of these is not likely to exceed.

    From 19 on, of n durations: that of rank 0.95 (n + 1). One more exceeds it with 5 % probability at most, whatever
    the distribution (Wilks 1941). Fewer cannot tell that: the longest, and half of an n-th of it more. So the margin is
    50 % after one task, 25 % after two, 3 % after eighteen.
    """
    n = len(sample)
    rank = math.ceil(CONFIDENCE * (n + 1))
    return sorted(sample)[rank - 1] if rank <= n else max(sample) * (1 + 1 / (2 * n))
